/* The optimizers' passes over all parameters: against their formulas in double; the same
 * bits on every backend and instruction set, for any division into calls and threads; how
 * moments in bf16 are rounded.
 */
#include "tensor/backend_testing.h"
#include "tensor/matrix_testing.h"
#include "tensor/selfcheck.h"

#include <math.h>
#include <omp.h>

static struct kg_err err;
static const struct kg_vec none;

enum { PARAMETERS = 100003 };

static struct kg_vec all(float *p) { return kg_vec(p, PARAMETERS); }

static struct kg_mat row(float *p) { return kg_mat(p, KG_F32, 1, PARAMETERS); }

static struct kg_mat bf16(uint16_t *p) { return kg_mat(p, KG_BF16, 1, PARAMETERS); }

static float *array_new(int64_t n) { return buffer_of(n, sizeof(float)); }

static float *random_new(int64_t n)
{
    float *p = array_new(n);
    for (int64_t i = 0; i < n; i++)
        p[i] = (float)uniform();
    return p;
}

static void adamw_follows_its_formula(void **state)
{
    (void)state;
    struct kg_adamw a = {.lr = 1e-2f,
                         .beta1 = 0.9f,
                         .beta2 = 0.99f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .grad_scale = 0.5f};
    float *w = random_new(PARAMETERS), *g = random_new(PARAMETERS);
    float *m = array_new(PARAMETERS), *v = array_new(PARAMETERS);
    double pw = (double)w[77], pm = 0, pv = 0;
    for (a.step = 1; a.step <= 5; a.step++) {
        assert_int_equal(kg_op_adamw(backend(), all(w), row(m), row(v), all(g), &a, &err),
                         KG_OK);
        double grad = 0.5 * (double)g[77], b1 = (double)a.beta1, b2 = (double)a.beta2;
        pm = b1 * pm + (1 - b1) * grad;
        pv = b2 * pv + (1 - b2) * grad * grad;
        double mh = pm / (1 - pow(b1, (double)a.step)),
               vh = pv / (1 - pow(b2, (double)a.step));
        pw -= (double)a.lr *
              (mh / (sqrt(vh) + (double)a.eps) + (double)a.weight_decay * pw);
    }
    assert_true(fabs((double)w[77] - pw) < 1e-6);
    assert_true(fabs((double)m[77] - pm) < 1e-6);
    assert_true(fabs((double)v[77] - pv) < 1e-6);
    buffer_free(w);
    buffer_free(g);
    buffer_free(m);
    buffer_free(v);
}

/* The three sequences of the paper in double, for one parameter. */
static void schedule_free_follows_its_three_sequences(void **state)
{
    (void)state;
    const struct kg_backend *be = backend();
    struct kg_adamw a = {.lr = 1e-2f,
                         .beta1 = 0.8f,
                         .beta2 = 0.99f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .grad_scale = 0.5f};
    float *y = random_new(PARAMETERS), *g = random_new(PARAMETERS);
    float *z = buffer_with(y, PARAMETERS, sizeof *y);
    float *v = array_new(PARAMETERS), *x = array_new(PARAMETERS);
    double b1 = (double)a.beta1, b2 = (double)a.beta2, lr = (double)a.lr;
    double px = (double)y[77], pz = px, py = px, pv = 0;
    assert_non_null(z);
    for (a.step = 1; a.step <= 6; a.step++) {
        a.average = 1.0f / (float)a.step;
        g[77] = 0.3f * (float)(a.step % 3) - 0.2f;
        assert_int_equal(
            kg_op_schedule_free(be, all(y), all(z), row(v), all(g), &a, &err), KG_OK);
        double grad = 0.5 * (double)g[77], c = (double)a.average;
        pv = b2 * pv + (1 - b2) * grad * grad;
        double vh = pv / (1 - pow(b2, (double)a.step));
        pz -= lr * (grad / (sqrt(vh) + (double)a.eps) + (double)a.weight_decay * py);
        px = (1 - c) * px + c * pz;
        py = (1 - b1) * pz + b1 * px;
    }
    assert_int_equal(
        kg_op_schedule_free_average(be, all(x), all(y), all(z), a.beta1, &err), KG_OK);
    assert_true(fabs((double)y[77] - py) < 1e-6);
    assert_true(fabs((double)z[77] - pz) < 1e-6);
    assert_true(fabs((double)x[77] - px) < 1e-6);
    assert_true(fabs(px - py) > 1e-4);
    assert_int_equal(kg_op_schedule_free_average(be, all(x), all(y), all(z), 0.0f, &err),
                     KG_EINVAL);
    buffer_free(x);
    buffer_free(y);
    buffer_free(z);
    buffer_free(v);
    buffer_free(g);
}

/* Runs everything that updates vectors on x (4).   returns a sum of squares */
static double update(const struct kg_backend *be, float *const x[4])
{
    struct kg_adamw a = {.lr = 1e-2f,
                         .beta1 = 0.9f,
                         .beta2 = 0.99f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .grad_scale = 0.7f};
    double squares = 0;
    for (a.step = 1; a.step <= 3; a.step++) {
        a.average = 1.0f / (float)a.step;
        assert_int_equal(
            kg_op_adamw(be, all(x[0]), row(x[1]), row(x[2]), all(x[3]), &a, &err), KG_OK);
        assert_int_equal(
            kg_op_schedule_free(be, all(x[1]), all(x[0]), row(x[2]), all(x[3]), &a, &err),
            KG_OK);
        assert_int_equal(kg_op_schedule_free_average(be, all(x[3]), all(x[1]), all(x[0]),
                                                     a.beta1, &err),
                         KG_OK);
        assert_int_equal(kg_op_ema(be, all(x[0]), all(x[3]), 0.3f * (float)a.step, &err),
                         KG_OK);
        assert_int_equal(kg_op_add(be, all(x[3]), all(x[1]), &err), KG_OK);
    }
    assert_int_equal(kg_op_sum_squares(be, &squares, all(x[0]), all(x[1]), &err), KG_OK);
    return squares;
}

static void updates_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    float *want[4], *got[4];
    for (int i = 0; i < 4; i++) {
        want[i] = random_new(PARAMETERS);
        for (int j = 0; i == 2 && j < PARAMETERS; j++)
            want[i][j] = want[i][j] * want[i][j]; /* second moments */
        got[i] = buffer_with(want[i], PARAMETERS, sizeof **got);
    }
    double squares = update(kg_backend_cpu_variant(0), want);
    assert_true(update(backend(), got) == squares && squares > 1);
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(got[i], want[i], PARAMETERS * sizeof **got);
        buffer_free(want[i]);
        buffer_free(got[i]);
    }
}

/* ---- moments in bf16 ---- */

/* Elements beyond 2^32 blocks, beginning in the last quarter of a group. */
static const struct kg_adamw with_draws = {
    .lr = 1e-2f,
    .beta1 = 0.9f,
    .beta2 = 0.99f,
    .eps = 1e-8f,
    .weight_decay = 0.1f,
    .grad_scale = 0.7f,
    .step = ((int64_t)1 << 40) + 5,
    .average = 0.25f,
    .rounding = {.seed = 0x0123456789abcdefu, .stream = KG_RNG_TEST},
    .first = ((int64_t)5 << 34) - 64 * 700 + 48,
};

/* The random word of element i, as backend.h defines it. */
static uint32_t word_of(const struct kg_adamw *a, int64_t i)
{
    uint64_t e = (uint64_t)(a->first + i), block = e / 64 * 16 + e % 16;
    uint32_t word[4];
    kg_rng_words(word, a->rounding, (uint64_t)a->step, (uint32_t)block,
                 (uint32_t)(block >> 32));
    return word[e / 16 % 4];
}

/* Random weights, gradients and moments; moments in bf16 and, with the same values, in
 * fp32. */
struct bf16_case {
    float *w, *z, *g, *m, *v;
    uint16_t *m16, *v16;
};

static struct bf16_case bf16_case_new(void)
{
    struct bf16_case c = {.w = random_new(PARAMETERS),
                          .z = random_new(PARAMETERS),
                          .g = random_new(PARAMETERS),
                          .m = random_new(PARAMETERS),
                          .v = random_new(PARAMETERS),
                          .m16 = buffer_of(PARAMETERS, sizeof(uint16_t)),
                          .v16 = buffer_of(PARAMETERS, sizeof(uint16_t))};
    for (int i = 0; i < PARAMETERS; i++) {
        c.m16[i] = kg_f32_to_bf16(c.m[i]);
        c.m[i] = kg_bf16_to_f32(c.m16[i]);
        c.v16[i] = kg_f32_to_bf16(c.v[i] * c.v[i]);
        c.v[i] = kg_bf16_to_f32(c.v16[i]);
    }
    return c;
}

static void bf16_case_free(struct bf16_case *c)
{
    void *const all_of[] = {c->w, c->z, c->g, c->m, c->v, c->m16, c->v16};
    for (size_t i = 0; i < sizeof all_of / sizeof *all_of; i++)
        buffer_free(all_of[i]);
}

static void must_be_drawn(const uint16_t *got, const float *exact, int shift)
{
    for (int i = 0; i < PARAMETERS; i++)
        assert_int_equal(
            got[i],
            kg_f32_to_bf16_drawn(exact[i], (uint16_t)(word_of(&with_draws, i) >> shift)));
}

/* Weights equal those with fp32 moments, and moments are fp32 moments rounded as
 * defined. */
static void must_round_as_defined(const struct kg_backend *be)
{
    const struct kg_backend *plain = kg_backend_cpu_variant(0);
    const struct kg_adamw *a = &with_draws;
    struct bf16_case c = bf16_case_new();
    float *w = buffer_with(c.w, PARAMETERS, sizeof *w);
    float *z = buffer_with(c.z, PARAMETERS, sizeof *z);
    assert_int_equal(kg_op_adamw(be, all(w), bf16(c.m16), bf16(c.v16), all(c.g), a, &err),
                     KG_OK);
    assert_int_equal(kg_op_adamw(plain, all(c.w), row(c.m), row(c.v), all(c.g), a, &err),
                     KG_OK);
    assert_memory_equal(w, c.w, PARAMETERS * sizeof *w);
    must_be_drawn(c.m16, c.m, 0);
    must_be_drawn(c.v16, c.v, 16);
    for (int i = 0; i < PARAMETERS; i++)
        c.v[i] = kg_bf16_to_f32(c.v16[i]);
    assert_int_equal(
        kg_op_schedule_free(be, all(w), all(z), bf16(c.v16), all(c.g), a, &err), KG_OK);
    assert_int_equal(
        kg_op_schedule_free(plain, all(c.w), all(c.z), row(c.v), all(c.g), a, &err),
        KG_OK);
    assert_memory_equal(w, c.w, PARAMETERS * sizeof *w);
    assert_memory_equal(z, c.z, PARAMETERS * sizeof *z);
    must_be_drawn(c.v16, c.v, 16);
    buffer_free(w);
    buffer_free(z);
    bf16_case_free(&c);
}

static void moments_in_bf16_are_rounded_as_defined(void **state)
{
    (void)state;
    must_round_as_defined(backend());
    for (int i = 0; !emulated() && kg_backend_cpu_variant(i); i++)
        must_round_as_defined(kg_backend_cpu_variant(i));
}

static void draws_do_not_depend_on_cuts_or_threads(void **state)
{
    (void)state;
    enum { CUT = 48 * 613 };
    struct bf16_case c = bf16_case_new();
    float *w = buffer_with(c.w, PARAMETERS, sizeof *w);
    uint16_t *m = buffer_with(c.m16, PARAMETERS, sizeof *m);
    uint16_t *v = buffer_with(c.v16, PARAMETERS, sizeof *v);
    int threads = omp_get_max_threads();
    omp_set_num_threads(4);
    assert_int_equal(
        kg_op_adamw(backend(), all(w), bf16(m), bf16(v), all(c.g), &with_draws, &err),
        KG_OK);
    omp_set_num_threads(threads);
    for (int64_t i = 0; i < PARAMETERS; i += CUT) {
        int64_t n = PARAMETERS - i < CUT ? PARAMETERS - i : CUT;
        struct kg_adamw a = with_draws;
        a.first += i;
        assert_int_equal(
            kg_op_adamw(backend(), kg_vec(c.w + i, n), kg_mat(c.m16 + i, KG_BF16, 1, n),
                        kg_mat(c.v16 + i, KG_BF16, 1, n), kg_vec(c.g + i, n), &a, &err),
            KG_OK);
    }
    assert_memory_equal(w, c.w, PARAMETERS * sizeof *w);
    assert_memory_equal(m, c.m16, PARAMETERS * sizeof *m);
    assert_memory_equal(v, c.v16, PARAMETERS * sizeof *v);
    buffer_free(w);
    buffer_free(m);
    buffer_free(v);
    bf16_case_free(&c);
}

/* ---- rounded copies of the new weights ---- */
enum { WAYS = 160 /* runs: more than a launch takes */, WAY = 512 /* elements apart */ };

static void updates_store_runs_rounded(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        const bool drawn = kind % 2;
        struct kg_rounded runs[WAYS];
        struct kg_adamw a = with_draws;
        struct bf16_case c = bf16_case_new();
        uint16_t *to = buffer_of(PARAMETERS, sizeof *to);
        const struct kg_mat m = drawn ? bf16(c.m16) : row(c.m);
        const struct kg_mat v = drawn ? bf16(c.v16) : row(c.v);
        memset(to, 0xee, PARAMETERS * sizeof *to);
        for (int i = 0; i < WAYS; i++)
            runs[i] = (struct kg_rounded){a.first + i * WAY + 32 * (i % 3),
                                          1 + 31 * (i % 13), to + i * WAY + 32 * (i % 3)};
        c.g[3 * WAY] = NAN;
        a.rounded = runs;
        a.n_rounded = WAYS;
        const kg_status status = kind < 2
                                     ? kg_op_adamw(backend(), all(c.w), m, v, all(c.g),
                                                   &a, &err)
                                     : kg_op_schedule_free(backend(), all(c.w), all(c.z),
                                                           v, all(c.g), &a, &err);
        if (status != KG_OK)
            fail_msg("%s", err.message);
        for (int i = 0; i < PARAMETERS; i++) {
            const int run = i / WAY < WAYS ? i / WAY : WAYS - 1;
            const int64_t at = a.first + i - runs[run].first;
            const bool within = at >= 0 && at < runs[run].n;
            assert_int_equal(to[i], within ? kg_f32_to_bf16(c.w[i]) : 0xeeee);
        }
        buffer_free(to);
        bf16_case_free(&c);
    }
}

static void expect_refused(struct kg_rounded run, const char *says)
{
    float *w = array_new(PARAMETERS);
    const struct kg_adamw a = {.step = 1, .rounded = &run, .n_rounded = 1};

    assert_int_equal(kg_op_adamw(backend(), all(w), row(w), row(w), all(w), &a, &err),
                     KG_EINVAL);
    if (!strstr(err.message, says))
        fail_msg("expected \"%s\", found \"%s\"", says, err.message);
    buffer_free(w);
}

static void runs_that_do_not_fit_are_refused(void **state)
{
    enum { FIRST = PARAMETERS / KG_DRAW_LANES * KG_DRAW_LANES };
    uint16_t to[KG_DRAW_LANES];

    (void)state;
    expect_refused((struct kg_rounded){FIRST, PARAMETERS - FIRST + 1, to},
                   "adamw: run 0 of rounded weights: expected 1 or more elements in "
                   "0..100002, the first a multiple of 16, found 4 from 100000");
    expect_refused((struct kg_rounded){24, 1, to},
                   "the first a multiple of 16, found 1 from 24");
}

/* With both betas 0, m is the gradient g and v its square, rounded at random in each
 * update. With g = 1 + 2^-9, m is a quarter of the way from 1 to the next bf16 and v, 1 +
 * 2^-8 + 2^-18, slightly above half. Over U updates of P elements, the shares that were
 * rounded up are within 5 sigma: of m, of v, of both at once, and of neighbours in place
 * and in time. An element with g = 1.5 never changes. */
static void the_mean_of_the_draws_is_the_value(void **state)
{
    (void)state;
    enum { UPDATES = 8 };
    struct bf16_case c = bf16_case_new();
    struct kg_adamw a = {.grad_scale = 1, .eps = 1, .rounding = with_draws.rounding};
    double p = 0.25, q = 0.5 + 0x1p-11, n = (double)UPDATES * (PARAMETERS / 2);
    int64_t up[5] = {0}; /* m, v, both, m and the next place's, m and the next update's */
    uint16_t *old = buffer_of(PARAMETERS, sizeof *old);
    for (int i = 0; i < PARAMETERS; i++)
        c.g[i] = i % 2 ? 1.5f : 1 + 0x1p-9f;
    for (a.step = 1; a.step <= UPDATES; a.step++) {
        memcpy(old, c.m16, PARAMETERS * sizeof *old);
        assert_int_equal(kg_op_adamw(backend(), all(c.w), bf16(c.m16), bf16(c.v16),
                                     all(c.g), &a, &err),
                         KG_OK);
        for (int i = 0; i + 1 < PARAMETERS; i += 2) {
            bool m = c.m16[i] == 0x3f81, v = c.v16[i] == 0x3f81;
            assert_true((m || c.m16[i] == 0x3f80) && (v || c.v16[i] == 0x3f80));
            assert_true(c.m16[i + 1] == 0x3fc0 && c.v16[i + 1] == 0x4010);
            up[0] += m;
            up[1] += v;
            up[2] += m && v;
            up[3] += m && c.m16[i + 2] == 0x3f81;
            up[4] += m && old[i] == 0x3f81;
        }
    }
    double want[5] = {p, q, p * q, p * p, p * p * (UPDATES - 1) / UPDATES};
    for (int i = 0; i < 5; i++)
        if (fabs((double)up[i] - n * want[i]) > 5 * sqrt(n * want[i] * (1 - want[i])))
            fail_msg("%d: %lld of %g, expected %g", i, (long long)up[i], n, want[i]);
    buffer_free(old);
    bf16_case_free(&c);
}

static void ema_keeps_copies_and_averages(void **state)
{
    (void)state;
    float *avg = random_new(PARAMETERS), *w = random_new(PARAMETERS);
    float *old = buffer_with(avg, PARAMETERS, sizeof *avg);
    assert_non_null(old);
    const struct kg_backend *be = backend();
    assert_int_equal(kg_op_ema(be, all(avg), all(w), 1.0f, &err), KG_OK);
    assert_memory_equal(avg, old, PARAMETERS * sizeof *avg);
    for (int i = 0; i <= 100; i++) { /* equal values stay equal, whatever the weights */
        float eta = (float)i / 100;
        assert_int_equal(kg_op_ema(be, all(avg), all(old), eta, &err), KG_OK);
        assert_memory_equal(avg, old, PARAMETERS * sizeof *avg);
    }
    assert_int_equal(kg_op_ema(be, all(avg), all(w), 0.9f, &err), KG_OK);
    for (int i = 0; i < PARAMETERS; i++)
        assert_true(fabs((double)avg[i] - (0.9 * (double)old[i] + 0.1 * (double)w[i])) <
                    2e-7);
    memcpy(old, avg, PARAMETERS * sizeof *avg);
    assert_int_equal(kg_op_ema(be, all(avg), all(w), 0.1f, &err), KG_OK);
    for (int i = 0; i < PARAMETERS; i++)
        assert_true(fabs((double)avg[i] - (0.1 * (double)old[i] + 0.9 * (double)w[i])) <
                    2e-7);
    assert_int_equal(kg_op_ema(be, all(avg), all(w), 0.0f, &err), KG_OK);
    assert_memory_equal(avg, w, PARAMETERS * sizeof *avg);
    assert_int_equal(kg_op_ema(be, all(avg), all(w), 1.5f, &err), KG_EINVAL);
    buffer_free(avg);
    buffer_free(w);
    buffer_free(old);
}

static void add_rounds_each_sum_once(void **state)
{
    (void)state;
    float *y = random_new(PARAMETERS), *x = random_new(PARAMETERS);
    float *old = buffer_with(y, PARAMETERS, sizeof *y);
    assert_non_null(old);
    assert_int_equal(kg_op_add(backend(), all(y), all(x), &err), KG_OK);
    for (int i = 0; i < PARAMETERS; i++)
        assert_true(y[i] == old[i] + x[i]);
    buffer_free(y);
    buffer_free(x);
    buffer_free(old);
}

static void sum_of_squares_is_exact_enough_and_lets_nan_through(void **state)
{
    (void)state;
    float *x = random_new(PARAMETERS), *minus = random_new(PARAMETERS);
    double want = 0, want_minus = 0, got, again;
    for (int i = 0; i < PARAMETERS; i++) {
        want += (double)x[i] * (double)x[i];
        want_minus += ((double)x[i] - (double)minus[i]) *
                      ((double)x[i] - (double)minus[i]);
    }
    const struct kg_backend *be = backend();
    assert_int_equal(kg_op_sum_squares(be, &got, all(x), none, &err), KG_OK);
    assert_true(fabs(got - want) < 1e-12 * want);
    int threads = omp_get_max_threads();
    omp_set_num_threads(4);
    assert_int_equal(kg_op_sum_squares(be, &again, all(x), none, &err), KG_OK);
    omp_set_num_threads(threads);
    assert_true(got == again);
    assert_int_equal(kg_op_sum_squares(be, &got, all(x), all(minus), &err), KG_OK);
    assert_true(fabs(got - want_minus) < 1e-12 * want_minus);
    assert_int_equal(kg_op_sum_squares(be, &got, none, none, &err), KG_OK);
    assert_true(got == 0.0);
    x[4321] = NAN;
    assert_int_equal(kg_op_sum_squares(be, &got, all(x), none, &err), KG_OK);
    assert_true(isnan(got));
    buffer_free(x);
    buffer_free(minus);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_follows_its_formula),
        cmocka_unit_test(schedule_free_follows_its_three_sequences),
        cmocka_unit_test(updates_have_the_same_bits_everywhere),
        cmocka_unit_test(moments_in_bf16_are_rounded_as_defined),
        cmocka_unit_test(updates_store_runs_rounded),
        cmocka_unit_test(runs_that_do_not_fit_are_refused),
        cmocka_unit_test(draws_do_not_depend_on_cuts_or_threads),
        cmocka_unit_test(the_mean_of_the_draws_is_the_value),
        cmocka_unit_test(ema_keeps_copies_and_averages),
        cmocka_unit_test(add_rounds_each_sum_once),
        cmocka_unit_test(sum_of_squares_is_exact_enough_and_lets_nan_through),
    };
    const struct CMUnitTest of_kernels[] = {
        cmocka_unit_test(updates_have_the_same_bits_everywhere),
        cmocka_unit_test(moments_in_bf16_are_rounded_as_defined),
        cmocka_unit_test(updates_store_runs_rounded),
        cmocka_unit_test(ema_keeps_copies_and_averages),
        cmocka_unit_test(sum_of_squares_is_exact_enough_and_lets_nan_through),
    };
    const int failed = RUN_FAR_TOO(tests, NULL, NULL);
    return failed + RUN_EMULATED(of_kernels, NULL, NULL);
}
