/* Gradients against torch and against finite differences; splitting a micro-batch,
 * checkpointing and threads must not change them. */
#include "base/sanitized_testing.h"
#include "model/model_testing.h"

struct gradients {
    float *g; /* (n_elements) */
    int64_t n;
    double nll;
};

/* Loss and gradients of the mean over `targets` from a forward and backward of the
 * pack. */
static struct gradients gradients_of(const struct kg_model *m, struct test_pack *t,
                                     int targets, bool checkpoint)
{
    struct gradients r = {buffer_of(m->n_elements, sizeof(float)), m->n_elements, 0.0};
    struct kg_acts *acts = NULL;
    NEED(kg_acts_create(&acts, m, t->pack.n, checkpoint, err));
    r.nll = test_nll(m, acts, t, 1.0 / targets, r.g);
    kg_acts_free(acts);
    return r;
}

static bool same_bits(const struct gradients *a, const struct gradients *b)
{
    return a->n == b->n && memcmp(a->g, b->g, (size_t)a->n * sizeof *a->g) == 0;
}

static void check_gradients_of(const char *arch)
{
    struct test_reference r;
    test_reference_open(&r, arch);
    struct kg_model *m = test_open(r.dir, KG_F32, true);
    struct gradients g = gradients_of(m, &r.pack, TEST_REF_TARGETS, false);
    assert_true(fabs(g.nll - r.nll) < 1e-5);
    printf("%s: largest relative difference of a tensor's gradient %.2e\n", arch,
           test_against_torch(m, g.g, r.dir, "grads.safetensors"));
    buffer_free(g.g);
    kg_model_free(m);
    test_reference_close(&r);
}

static void test_gradients_are_those_of_torch(void **state)
{
    (void)state;
    for (int i = 0; i < TEST_ALL_ARCHS; i++)
        check_gradients_of(test_archs[i]);
}

/* Eight overlapping parts of the repeated reference, 2,348 tokens (half as many under the
 * sanitizers), so that gradients are sums over several chunks of tokens. */
static struct test_pack long_pack(const struct test_pack *t)
{
    enum { REPEATS = SANITIZED ? 3 : 5 };
    const int32_t *seqs[TEST_MAX_SEQS];
    int32_t lengths[TEST_MAX_SEQS];
    static int32_t tokens[REPEATS * TEST_REF_TOKENS];
    for (int i = 0; i < REPEATS; i++)
        memcpy(tokens + i * TEST_REF_TOKENS, t->tokens, TEST_REF_TOKENS * sizeof *tokens);
    for (int i = 0; i < TEST_MAX_SEQS; i++) {
        seqs[i] = tokens + 11 * i;
        lengths[i] = REPEATS * TEST_REF_TOKENS - 11 * TEST_MAX_SEQS - i;
    }
    return test_pack_of(seqs, lengths, TEST_MAX_SEQS);
}

static void for_wide_model(void (*check)(struct kg_model *m, struct test_reference *r),
                           enum kg_dtype ct)
{
    struct test_reference r;
    test_reference_open(&r, "qwen3");
    struct test_pack longer = long_pack(&r.pack);
    struct kg_model *m = test_create_wide(ct);
    test_pack_release(&r.pack);
    r.pack = longer;
    check(m, &r);
    kg_model_free(m);
    test_reference_close(&r);
}

static void for_every_model(void (*check)(struct kg_model *m, struct test_reference *r))
{
    for_wide_model(check, KG_F32);
    for_wide_model(check, KG_BF16);
    for (int i = 0; i < TEST_ARCHS; i++) {
        for (int ct = KG_F32; ct <= KG_BF16; ct++) {
            struct test_reference r;
            test_reference_open(&r, test_archs[i]);
            struct kg_model *m = test_open(r.dir, (enum kg_dtype)ct, true);
            check(m, &r);
            kg_model_free(m);
            test_reference_close(&r);
        }
    }
}

static void check_checkpointed(struct kg_model *m, struct test_reference *r)
{
    struct gradients kept = gradients_of(m, &r->pack, TEST_REF_TARGETS, false);
    struct gradients again = gradients_of(m, &r->pack, TEST_REF_TARGETS, true);
    assert_true(kept.nll == again.nll);
    assert_true(same_bits(&kept, &again));
    buffer_free(kept.g);
    buffer_free(again.g);
}

static void test_checkpointing_gives_the_same_bits(void **state)
{
    (void)state;
    for_every_model(check_checkpointed);
}

static void check_threads(struct kg_model *m, struct test_reference *r)
{
    kg_threads_set(1);
    struct gradients one = gradients_of(m, &r->pack, TEST_REF_TARGETS, false);
    for (int threads = SANITIZED ? 4 : 2; threads <= 4; threads += 2) {
        kg_threads_set(threads);
        struct gradients many = gradients_of(m, &r->pack, TEST_REF_TARGETS, false);
        assert_true(same_bits(&one, &many));
        buffer_free(many.g);
    }
    kg_threads_set(0);
    buffer_free(one.g);
}

static void test_gradients_do_not_depend_on_threads(void **state)
{
    (void)state;
    for_every_model(check_threads);
}

/* bf16 gradients stay near the fp32 ones: rounding, not another function. */
static void test_bf16_gradients_point_where_fp32_ones_do(void **state)
{
    (void)state;
    for (int i = 0; i < TEST_ARCHS; i++) {
        struct test_reference r;
        test_reference_open(&r, test_archs[i]);
        struct kg_model *exact = test_open(r.dir, KG_F32, true);
        struct kg_model *rounded = test_open(r.dir, KG_BF16, true);
        struct gradients a = gradients_of(exact, &r.pack, TEST_REF_TARGETS, false);
        struct gradients b = gradients_of(rounded, &r.pack, TEST_REF_TARGETS, false);
        const double diff = test_relative(b.g, a.g, a.n);
        printf("%s: bf16 against fp32 gradient, relative %.2e\n", test_archs[i], diff);
        assert_true(diff < 0.05);
        buffer_free(a.g);
        buffer_free(b.g);
        kg_model_free(exact);
        kg_model_free(rounded);
        test_reference_close(&r);
    }
}

/* grad(pack of two) = grad(first) + grad(second), to fp32 rounding. The sum is made by
 * adding both into one slab. */
static void test_a_pack_has_the_gradient_of_its_sequences(void **state)
{
    (void)state;
    for (int i = 0; i < TEST_ARCHS; i++) {
        struct test_reference r;
        test_reference_open(&r, test_archs[i]);
        struct kg_model *m = test_open(r.dir, KG_F32, true);
        struct kg_acts *acts = NULL;
        NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, false, err));
        struct gradients both = gradients_of(m, &r.pack, TEST_REF_TARGETS, false);
        float *sum = buffer_of(m->n_elements, sizeof *sum);
        for (int s = 0; s < 2; s++) {
            const int32_t *tokens = r.pack.tokens + s * r.pack.seqs[0].n;
            struct test_pack one = test_pack_of(&tokens, &r.pack.seqs[s].n, 1);
            test_nll(m, acts, &one, 1.0 / TEST_REF_TARGETS, sum);
            test_pack_release(&one);
        }
        assert_true(test_relative(sum, both.g, m->n_elements) < 1e-6);
        buffer_free(sum);
        buffer_free(both.g);
        kg_acts_free(acts);
        kg_model_free(m);
        test_reference_close(&r);
    }
}

static void test_gradients_are_finite_differences_of_the_loss(void **state)
{
    (void)state;
    for (int i = 0; i < TEST_ARCHS; i++) {
        struct test_reference r;
        test_reference_open(&r, test_archs[i]);
        struct kg_model *m = test_open(r.dir, KG_F32, true);
        struct kg_acts *acts = NULL;
        NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, true, err));
        struct gradients g = gradients_of(m, &r.pack, TEST_REF_TARGETS, false);
        for (size_t j = 0; j < m->n_params; j++) {
            const struct kg_param *p = &m->params[j];
            const int64_t at = test_largest(g.g + p->offset, p->rows * p->cols);
            const double have = g.g[p->offset + at];
            const double want = test_slope(m, acts, &r.pack, 1.0 / TEST_REF_TARGETS,
                                           p->master + at, 0.004f);
            if (!(fabs(have - want) < 1e-4 + 0.02 * fabs(want)))
                fail_msg("%s %s[%lld]: gradient %g, finite difference %g", test_archs[i],
                         p->name, (long long)at, have, want);
        }
        buffer_free(g.g);
        kg_acts_free(acts);
        kg_model_free(m);
        test_reference_close(&r);
    }
}

static void test_a_kept_forward_serves_one_backward(void **state)
{
    (void)state;
    struct kg_err why;
    struct test_reference r;
    test_reference_open(&r, "llama");
    struct kg_model *m = test_open(r.dir, KG_F32, true);
    struct kg_acts *acts = NULL;
    struct kg_mat hidden;
    NEED(kg_acts_create(&acts, m, TEST_REF_TOKENS, false, err));
    float *grads = buffer_of(m->n_elements, sizeof *grads);
    float *d = buffer_of(TEST_REF_TOKENS * 32, sizeof *d);
    const struct kg_mat dhidden = kg_mat(d, KG_F32, TEST_REF_TOKENS, 32);
    const struct kg_pack *pack = test_pack_get(&r.pack);

    assert_int_equal(kg_model_backward(m, acts, dhidden, grads, &why), KG_EINVAL);
    NEED(kg_model_forward(&hidden, m, acts, &(struct kg_forward){.pack = pack}, err));
    assert_int_equal(kg_model_backward(m, acts, dhidden, grads, &why), KG_EINVAL);
    const struct kg_forward keep = {.pack = pack, .keep = true};
    NEED(kg_model_forward(&hidden, m, acts, &keep, err));
    assert_int_equal(kg_model_backward(m, acts, kg_mat_rows(dhidden, 0, 3), grads, &why),
                     KG_ESHAPE);
    NEED(kg_model_backward(m, acts, dhidden, grads, err));
    assert_int_equal(kg_model_backward(m, acts, dhidden, grads, &why), KG_EINVAL);
    for (int64_t i = 0; i < m->n_elements; i++)
        assert_true(grads[i] == 0.0f); /* dhidden was zero */
    buffer_free(d);
    buffer_free(grads);
    kg_acts_free(acts);
    kg_model_free(m);
    test_reference_close(&r);
}

static kg_status refuse_embed(struct kg_mat x, struct kg_mat table, struct kg_ivec tokens,
                              struct kg_err *err)
{
    (void)x;
    (void)table;
    (void)tokens;
    return kg_fail(err, KG_EIO, "the device is gone");
}

/* A backward needs a forward that kept its activations and succeeded; shown on the
 * smallest pack, one token. */
static void test_no_backward_without_a_kept_forward(void **state)
{
    (void)state;
    static const int32_t token = 3, one = 1;
    static const int32_t *const seqs[] = {&token};
    struct kg_backend broken = *backend();
    struct kg_err why;
    struct test_reference r;
    test_reference_open(&r, "llama");
    struct kg_model *m = test_open(r.dir, KG_F32, true);
    struct kg_acts *acts = NULL;
    struct test_pack t = test_pack_of(seqs, &one, 1);
    const struct kg_forward plain = {.pack = test_pack_get(&t)};
    const struct kg_forward keep = {.pack = test_pack_get(&t), .keep = true};
    struct kg_mat hidden;
    float *grads = buffer_of(m->n_elements, sizeof *grads);
    float *d = buffer_of(32, sizeof *d);
    const struct kg_mat dh = kg_mat(d, KG_F32, 1, 32);
    broken.embed = refuse_embed;

    NEED(kg_acts_create(&acts, m, 4, false, err));
    NEED(kg_model_forward(&hidden, m, acts, &plain, err));
    assert_int_equal(kg_model_backward(m, acts, dh, grads, &why), KG_EINVAL);
    NEED(kg_model_forward(&hidden, m, acts, &keep, err));
    m->backend = &broken;
    assert_int_equal(kg_model_forward(&hidden, m, acts, &keep, &why), KG_EIO);
    m->backend = backend();
    assert_int_equal(kg_model_backward(m, acts, dh, grads, &why), KG_EINVAL);
    NEED(kg_model_forward(&hidden, m, acts, &keep, err));
    NEED(kg_model_backward(m, acts, dh, grads, err));
    buffer_free(grads);
    buffer_free(d);
    kg_acts_free(acts);
    test_pack_release(&t);
    kg_model_free(m);
    test_reference_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_are_those_of_torch),
        cmocka_unit_test(test_checkpointing_gives_the_same_bits),
        cmocka_unit_test(test_gradients_do_not_depend_on_threads),
        cmocka_unit_test(test_bf16_gradients_point_where_fp32_ones_do),
        cmocka_unit_test(test_a_pack_has_the_gradient_of_its_sequences),
        cmocka_unit_test(test_gradients_are_finite_differences_of_the_loss),
        cmocka_unit_test(test_a_kept_forward_serves_one_backward),
        cmocka_unit_test(test_no_backward_without_a_kept_forward),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
