/* Own products and attention on a device where wgmma and mma.sync add in different ways:
 * wgmma is not used, and the backend reports it. This test has its own process, because a
 * process tries a device only once: here first without memory for the trial. */
#define _GNU_SOURCE
#include "base/folder_testing.h"
#include "base/mem.h"
#include "emu/blas_testing.h"
#include "tensor/attention_testing.h"

#include <dlfcn.h>

static void a_trial_that_fails_opens_no_library(void **state)
{
    const struct kg_backend *be;

    (void)state;
    make_good_blas("lib");
    setenv("KEDGE_TEST_LIBRARIES", in_dir("lib"), 1);
    setenv("KEDGE_TEST_PRODUCTS", "cublas", 1);
    kg_mem_fail_at(1);
    assert_int_equal(kg_emu_open(&be, &err), KG_ENOMEM);
    kg_mem_fail_at(0);
    setenv("KEDGE_TEST_PRODUCTS", "own", 1);
    assert_non_null(strstr(err.message, "trial of attention"));
    assert_null(dlopen(in_dir("lib/" BLAS_FILE), RTLD_LAZY | RTLD_NOLOAD));
}

static void an_instruction_with_other_bits_is_not_used(void **state)
{
    enum { ROWS = 200, COLS = 136, K = 40 };
    char text[320];

    (void)state;
    kg_emu_eights(true);
    struct kg_mat a = matrix(KG_BF16, ROWS, K), b = matrix(KG_BF16, COLS, K);
    struct kg_mat c = matrix(KG_F32, ROWS, COLS);
    const int64_t tried = kg_emu_products();

    assert_true(tried > 0);
    backend()->describe(text, sizeof text);
    if (!strstr(text, "; not by wgmma: other bits of NT ") || strstr(text, "NT 0 ") ||
        strstr(text, "NN 0 ") || strstr(text, "TN 0 "))
        fail_msg("expected other bits of each kind, found \"%s\"", text);
    assert_int_equal(kg_op_matmul(backend(), c, a, b, KG_MATMUL_NT, false, &err), KG_OK);
    assert_true(kg_emu_products() == tried);
    buffer_free(a.data);
    buffer_free(b.data);
    buffer_free(c.data);
}

static void nor_is_it_for_attention(void **state)
{
    struct problem p = {KG_BF16,  .heads = 2,  .kv_heads = 1,
                        .hd = 64, .n_seqs = 1, .lengths = {200}};
    const int64_t tried = kg_emu_products();
    struct answer out;
    char text[400];

    (void)state;
    backend()->describe(text, sizeof text);
    if (!strstr(text, "; attention not by wgmma: other bits of ") ||
        !strstr(text, "; its backward not by wgmma: other bits of ") ||
        strstr(text, "other bits of 0 ") || strstr(text, " and 0 in"))
        fail_msg("expected other bits of heads of 64 and 128, found \"%s\"", text);
    problem_init(&p);
    out = whole(&p);
    struct kg_attn a = attn_of(&p);
    struct kg_mat dq = matrix(KG_F32, p.n, p.q.cols), dk = matrix(KG_F32, p.n, p.k.cols);
    struct kg_mat dv = matrix(KG_F32, p.n, p.k.cols);

    assert_int_equal(kg_op_attention_bwd(backend(), dq, dk, dv, out.o, out.o,
                                         lse_of(&out, &a), &a, &err),
                     KG_OK);
    assert_true(kg_emu_products() == tried);
    buffer_free(dq.data);
    buffer_free(dk.data);
    buffer_free(dv.data);
    answer_release(&out);
    problem_release(&p);
}

struct zeros {
    const struct kg_backend *be;
    void *to;
};
static kg_status zero(void *arg, struct kg_err *why)
{
    const struct zeros *z = (const struct zeros *)arg;

    return kg_buf_zero(z->be, z->to, 64, why);
}

/* How many of two calls are replayed. */
static int recorded(void *to)
{
    struct zeros z = {backend(), to};
    const uint64_t before = kg_buf_traffic(z.be).replays;

    for (int i = 0; i < 2; i++)
        assert_int_equal(kg_op_replay(z.be, 7, zero, &z, &err), KG_OK);
    return (int)(kg_buf_traffic(z.be).replays - before);
}

static void what_is_left_out_is_in_no_record(void **state)
{
    static const char *const without[] = {"attention", "wgmma", "none"};
    void *to = buffer_of(64, 1);

    (void)state;
    assert_int_equal(recorded(to), 1);
    assert_int_equal(recorded(to), 2);
    for (int i = 0; i < 3; i++) {
        setenv("KEDGE_TEST_WITHOUT", without[i], 1);
        assert_int_equal(recorded(to), 1);
        assert_int_equal(recorded(to), 2);
    }
    unsetenv("KEDGE_TEST_WITHOUT");
    buffer_free(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_trial_that_fails_opens_no_library, make_dir,
                                        remove_dir),
        cmocka_unit_test(an_instruction_with_other_bits_is_not_used),
        cmocka_unit_test(nor_is_it_for_attention),
        cmocka_unit_test(what_is_left_out_is_in_no_record)};

    if (!use_backend("emu"))
        return 0;
    setenv("KEDGE_TEST_PRODUCTS", "own", 1);
    return RUN_OPENING_EMULATION(tests);
}
