/* A backward in stages, each into a buffer of exactly its range of the slab, equals the
 * whole backward: every family, tied and untied, with experts, with adapters.
 */
#include "model/model_testing.h"
#include "model/rows.h"

enum { N = 40 };

static struct kg_model *open_model(const char *arch, int32_t rank)
{
    struct kg_lora lora = {.rank = rank, .alpha = 4};
    struct kg_model_opts opts = {.ct = KG_F32, .trainable = true, .seed = 3};
    struct kg_model *m = NULL;
    char dir[128];

    snprintf(dir, sizeof dir, "tests/data/reference/%s", arch);
    if (rank > 0) {
        NEED(kg_lora_add_target(&lora, "q_proj", "targets", err));
        NEED(kg_lora_add_target(&lora, "down_proj", "targets", err));
        opts.lora = &lora;
    }
    NEED(kg_model_open(&m, dir, &opts, err));
    return m;
}

/* A forward and the coefficients of its backward, equal in every call. */
static void forward(struct kg_rows *p, const struct kg_model *m)
{
    static const struct kg_rows_ask ask = {.entropy = true};
    int32_t tokens[N];

    kg_rows_begin(p, m, 0);
    test_tokens(tokens, N, (int32_t)m->config.vocab, 1);
    kg_rows_add(p, tokens, N);
    for (int t = 1; t < N; t += 2)
        kg_rows_want(p, t - 1, tokens[t], 0.9f, NULL);
    NEED(kg_rows_forward(p, true, err));
    NEED(kg_rows_ask(p, &ask, err));
    for (int64_t i = 0; i < p->n_rows; i++) {
        p->a_logp[i] = (double)(i % 5) - 1.5;
        p->a_entropy[i] = 0.01;
    }
}

/* Adds the stages to `sum`, each through a copy of its range. */
static void add_by_stages(float *sum, struct kg_rows *p, const struct kg_model *m)
{
    int64_t n = 0;

    for (int32_t s = 0; s < kg_backward_stages(m); s++) {
        const struct kg_cut cut = kg_backward_cut(m, s);
        float *own = buffer_of(cut.n + 1, sizeof *own);
        const struct kg_grads grads = {.data = own, .first = cut.first};

        memcpy(own, sum + cut.first, (size_t)cut.n * sizeof *own);
        own[cut.n] = 7;
        NEED(kg_rows_backward_stage(p, grads, s, true, err));
        assert_true(own[cut.n] == 7);
        memcpy(sum + cut.first, own, (size_t)cut.n * sizeof *own);
        buffer_free(own);
        n += cut.n;
    }
    assert_int_equal(n, m->n_elements);
}

static void check(const char *arch, int32_t rank)
{
    static const struct kg_rows_opts opts = {
        .max_tokens = N, .backward = true, .checkpoint = true};
    struct kg_model *m = open_model(arch, rank);
    float *whole = buffer_of(m->n_elements, sizeof *whole);
    float *parts = buffer_of(m->n_elements, sizeof *parts);
    struct kg_rows *p = NULL;

    NEED(kg_rows_create(&p, m, &opts, err));
    for (int again = 0; again < 2; again++) { /* the second adds to nonzero values */
        forward(p, m);
        NEED(kg_rows_backward(p, whole, true, err));
        forward(p, m);
        add_by_stages(parts, p, m);
    }
    for (int64_t i = 0; i < m->n_elements; i++)
        if (memcmp(&whole[i], &parts[i], sizeof *whole) != 0)
            fail_msg("%s, rank %d: element %lld: expected %.9g, found %.9g", arch,
                     (int)rank, (long long)i, (double)whole[i], (double)parts[i]);
    kg_rows_free(p);
    buffer_free(whole);
    buffer_free(parts);
    kg_model_free(m);
}

static void stages_have_the_bits_of_the_whole(void **state)
{
    (void)state;
    for (int i = 0; i < TEST_ALL_ARCHS; i++)
        check(test_archs[i], 0);
}

static void adapters_have_stages_of_their_own(void **state)
{
    (void)state;
    check("qwen2", 2);
    check("gemma2", 3);
    check("qwen3_moe", 4); /* and adapters of each expert */
    check("olmoe", 4);
}

/* The ranges go from the end of the slabs to their beginning, without a gap. */
static void stretches_are_all_of_the_slabs(void **state)
{
    struct kg_model *const models[] = {open_model("qwen3", 0), open_model("llama", 0),
                                       open_model("qwen2", 2)};

    (void)state;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        int64_t end = models[k]->n_elements;

        for (int32_t s = 0; s < kg_backward_stages(models[k]); s++) {
            const struct kg_cut cut = kg_backward_cut(models[k], s);

            assert_int_equal(cut.first + cut.n, end);
            end = cut.first;
        }
        assert_int_equal(end, 0);
        kg_model_free(models[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_have_the_bits_of_the_whole),
        cmocka_unit_test(adapters_have_stages_of_their_own),
        cmocka_unit_test(stretches_are_all_of_the_slabs),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
