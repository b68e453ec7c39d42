/* The benchmark rows of encoders and of vector search. Measured values are not tested. */
#include "retriever/bench/retriever_bench.h"

#include "tensor/backend_testing.h"

#include <string.h>

/* A report whose ceilings are measured so briefly that they mean nothing. */
static struct kg_bench_report brief_report(struct kg_str *out,
                                           const struct kg_backend *be, enum kg_dtype ct)
{
    return (struct kg_bench_report){
        .out = out, .be = be, .ct = ct, .gemm_side = 128, .ceiling_time = 1e-3};
}

static void embedding_and_searching_are_measured(void **state)
{
    static const struct kg_encoder_shape tiny = {
        .dim = 32, .ffn = 48, .layers = 1, .heads = 2, .vocab = 9, .max_tokens = 5};
    struct kg_str out = {0};
    struct kg_bench_report r = brief_report(&out, backend(), KG_F32);
    struct kg_err err;

    (void)state;
    assert_int_equal(kg_bench_encode_of(&r, "tiny", &tiny, 3, 1, &err), KG_OK);
    assert_int_equal(kg_bench_search_of(&r, 5000, 1, &err), KG_OK);
    assert_non_null(strstr(kg_str_text(&out), "embedding, tiny, 3 x 5 tokens"));
    assert_non_null(strstr(kg_str_text(&out), "search, 1 question, 5000 x 384 fp16"));
    assert_non_null(strstr(kg_str_text(&out), "search, 64 questions, 5000 x 384 int8"));
    assert_non_null(strstr(kg_str_text(&out), "at most"));
    kg_buf_free(r.be, r.slab);
    kg_str_release(&out);
}

/* On a backend whose memory the host cannot touch. */
static void searching_a_device_is_measured(void **state)
{
    struct kg_str out = {0};
    struct kg_bench_report r = {
        .out = &out, .ct = KG_F32, .gemm_side = 128, .ceiling_time = 1e-3};
    struct kg_err err = {0};
    kg_status status;

    (void)state;
    assert_int_equal(kg_backend_open(&r.be, "far", &err), KG_OK);
    status = kg_bench_search_of(&r, 5000, 1, &err);
    if (status != KG_OK)
        fail_msg("%s", err.message);
    assert_non_null(strstr(kg_str_text(&out), "search, 1 question, 5000 x 384 int8"));
    assert_non_null(strstr(kg_str_text(&out), "search, 64 questions, 5000 x 384 fp16"));
    kg_buf_free(r.be, r.slab);
    kg_str_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_and_searching_are_measured),
        cmocka_unit_test(searching_a_device_is_measured),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
