/* Value and gradient of every KL estimator against the exact KL, by enumeration over 12
 * tokens. */
#include "policy/policy_testing.h"

enum { SEEDS = 8 };
static const double tolerance = 1e-10;

static struct sweep sweep; /* one at a time */

static void topk(const struct world *w, bool forward, int k, const char *gradient)
{
    sweep_init(&sweep, w);
    must_set(&sweep.algo, "kl.estimator", forward ? "topk-forward" : "topk-reverse");
    must_set(&sweep.algo, "kl.gradient", gradient);
    sweep_head(&sweep, w, forward, k);
    sweep_run(&sweep, w);
}

static double exact(double *gradient, const struct world *w, bool forward)
{
    if (forward) {
        forward_gradient(gradient, w, w->q);
        return kl_of(w->lq, w->lp);
    }
    reverse_gradient(gradient, w, w->lq);
    return kl_of(w->lp, w->lq);
}

static void corrected_topk_is_the_exact_kl_for_every_k(void **state)
{
    (void)state;
    for (int i = 0; i < SEEDS * 4; i++) {
        bool forward = i & 1, off_policy = i & 2;
        struct world w = world_of((uint64_t)i, off_policy);
        double want[VOCAB], value = exact(want, &w, forward);

        for (int k = 0; k <= VOCAB; k++) {
            topk(&w, forward, k, "corrected");
            assert_near(sweep.g.kl, value, tolerance);
            assert_near(farthest(sweep.grad, want), 0, tolerance);
        }
    }
}

static void published_topk_adds_the_gradient_of_the_head_mass(void **state)
{
    (void)state;
    for (int i = 0; i < SEEDS * 4; i++) {
        bool forward = i & 1, off_policy = i & 2;
        struct world w = world_of((uint64_t)i, off_policy);
        double want[VOCAB], value = exact(want, &w, forward);

        for (int k = 0; k <= VOCAB; k++) {
            double shifted[VOCAB], mass = 0, inside[VOCAB] = {0};
            int32_t head[VOCAB];

            largest(head, k, forward ? w.lq : w.lo);
            for (int j = 0; j < k; j++) {
                inside[head[j]] = 1;
                mass += w.p[head[j]];
            }
            for (int v = 0; v < VOCAB; v++)
                shifted[v] = want[v] + (forward ? -1 : 1) * w.p[v] * (inside[v] - mass);
            topk(&w, forward, k, "published");
            assert_near(sweep.g.kl, value, tolerance);
            assert_near(farthest(sweep.grad, shifted), 0, tolerance);
        }
    }
}

/* ---- truncated: the exact KL of both policies renormalised on the head ---- */

static double renormalised(double out[VOCAB], const double *logp, const int32_t *head,
                           int k)
{
    double mass = 0;

    for (int v = 0; v < VOCAB; v++)
        out[v] = 0;
    for (int j = 0; j < k; j++)
        mass += exp(logp[head[j]]);
    for (int j = 0; j < k; j++)
        out[head[j]] = exp(logp[head[j]]) / mass;
    return mass;
}

/* By its definition: sum over the head of x log(x / y). */
static double truncated_kl(const double x[VOCAB], const double y[VOCAB])
{
    double sum = 0;

    for (int v = 0; v < VOCAB; v++)
        sum += x[v] > 0 ? x[v] * log(x[v] / y[v]) : 0;
    return sum;
}

static double truncated_of_logits(const double z[VOCAB], const struct world *w,
                                  const int32_t *head, int k, bool forward)
{
    double a[VOCAB], b[VOCAB];

    renormalised(a, z, head, k);
    renormalised(b, w->lq, head, k);
    return forward ? truncated_kl(b, a) : truncated_kl(a, b);
}

static void truncated_is_the_kl_of_the_renormalised_heads(void **state)
{
    (void)state;
    for (int i = 0; i < SEEDS * 4; i++) {
        bool forward = i & 1, off_policy = i & 2;
        struct world w = world_of((uint64_t)i, off_policy);

        for (int k = 1; k <= VOCAB; k++) {
            int32_t head[VOCAB];

            sweep_init(&sweep, &w);
            must_set(&sweep.algo, "kl.estimator",
                     forward ? "truncated-forward" : "truncated-reverse");
            sweep_head(&sweep, &w, true, k);
            sweep_run(&sweep, &w);
            largest(head, k, w.lq);
            assert_near(sweep.g.kl, truncated_of_logits(w.lp, &w, head, k, forward),
                        tolerance);
            for (int v = 0; v < VOCAB; v++) { /* the policy's logits, moved one by one */
                double z[VOCAB], up, down, h = 1e-5;

                memcpy(z, w.lp, sizeof z);
                z[v] += h;
                up = truncated_of_logits(z, &w, head, k, forward);
                z[v] -= 2 * h;
                down = truncated_of_logits(z, &w, head, k, forward);
                assert_near(sweep.grad[v], (up - down) / (2 * h), 1e-8);
            }
        }
    }
}

static void truncated_to_everything_is_exact(void **state)
{
    (void)state;
    for (int forward = 0; forward < 2; forward++) {
        struct world w = world_of(7, false);
        double want[VOCAB], value = exact(want, &w, forward);

        sweep_init(&sweep, &w);
        must_set(&sweep.algo, "kl.estimator",
                 forward ? "truncated-forward" : "truncated-reverse");
        sweep_head(&sweep, &w, true, VOCAB);
        sweep_run(&sweep, &w);
        assert_near(sweep.g.kl, value, tolerance);
        assert_near(farthest(sweep.grad, want), 0, tolerance);
    }
}

/* ---- bucket and generalised: the head not renormalised, with and without the rest
 * ---- */

static double coarse_of_logits(const double z[VOCAB], const struct world *w,
                               const int32_t *head, int k, const char *row)
{
    double all = 0, P = 0, Q = 0, sum = 0;

    for (int v = 0; v < VOCAB; v++)
        all += exp(z[v]);
    for (int j = 0; j < k; j++) {
        double p = exp(z[head[j]]) / all, q = exp(w->lq[head[j]]);

        P += p, Q += q;
        sum += strstr(row, "forward") ? q * log(q / p) : p * log(p / q);
    }
    if (strstr(row, "generalised"))
        return sum - P + Q;
    P = fmax(1 - P, 1e-7), Q = fmax(1 - Q, 1e-7);
    return sum + (strstr(row, "forward") ? Q * log(Q / P) : P * log(P / Q));
}

static void run_coarse(const char *row, const struct world *w, int k)
{
    sweep_init(&sweep, w);
    must_set(&sweep.algo, "kl.estimator", row);
    sweep_head(&sweep, w, true, k);
    sweep_run(&sweep, w);
}

static const char *const coarse[] = {"bucket-reverse", "bucket-forward",
                                     "generalised-reverse"};

static void a_coarse_kl_is_that_of_its_events(void **state)
{
    (void)state;
    for (int i = 0; i < SEEDS * 3; i++) {
        struct world w = world_of((uint64_t)i, i & 1);
        const char *row = coarse[i % 3];

        for (int k = 1; k < VOCAB; k++) {
            int32_t head[VOCAB];

            run_coarse(row, &w, k);
            largest(head, k, w.lq);
            assert_near(sweep.g.kl, coarse_of_logits(w.lp, &w, head, k, row), tolerance);
            for (int v = 0; v < VOCAB; v++) {
                double z[VOCAB], up, down, h = 1e-5;

                memcpy(z, w.lp, sizeof z);
                z[v] += h;
                up = coarse_of_logits(z, &w, head, k, row);
                z[v] -= 2 * h;
                down = coarse_of_logits(z, &w, head, k, row);
                assert_near(sweep.grad[v], (up - down) / (2 * h), 1e-8);
            }
        }
    }
}

/* As the head grows, the KL never falls; with all ids but one in the head, it is
 * exact. */
static void a_bucket_bounds_the_exact_kl_from_below(void **state)
{
    (void)state;
    for (int i = 0; i < SEEDS * 2; i++) {
        struct world w = world_of((uint64_t)i, true);
        double want[VOCAB], value = exact(want, &w, i & 1), before = 0;

        for (int k = 1; k < VOCAB; k++) {
            run_coarse(coarse[i & 1], &w, k);
            assert_true(sweep.g.kl >= before - 1e-12 && sweep.g.kl <= value + 1e-12);
            before = sweep.g.kl;
        }
        assert_near(sweep.g.kl, value, tolerance);
        assert_near(farthest(sweep.grad, want), 0, tolerance);
    }
}

/* If policy and anchor agree, the value and the gradient are 0. */
static void generalised_is_least_where_the_head_is_the_anchors(void **state)
{
    (void)state;
    for (int i = 0; i < SEEDS * 2; i++) {
        struct world w = world_of((uint64_t)i, true);
        double far;

        run_coarse("generalised-reverse", &w, 1 + i % (VOCAB - 1));
        far = sweep.g.kl;
        assert_true(far > 0);
        memcpy(w.lq, w.lp, sizeof w.lq);
        run_coarse("generalised-reverse", &w, 1 + i % (VOCAB - 1));
        assert_near(sweep.g.kl, 0, 0);
        for (int v = 0; v < VOCAB; v++)
            assert_near(sweep.grad[v], 0, 0);
    }
}

static void without_the_tail_the_value_is_the_head(void **state)
{
    struct world w = world_of(3, false);
    double head = 0;
    int32_t ids[VOCAB];

    (void)state;
    sweep_init(&sweep, &w);
    must_set(&sweep.algo, "kl.estimator", "topk-reverse");
    must_set(&sweep.algo, "kl.tail", "false");
    sweep_head(&sweep, &w, false, 4);
    sweep_run(&sweep, &w);
    largest(ids, 4, w.lo);
    for (int j = 0; j < 4; j++)
        head += w.p[ids[j]] * (w.lp[ids[j]] - w.lq[ids[j]]);
    assert_near(sweep.g.kl, head, 1e-14);
    for (int n = 0; n < VOCAB; n++)
        assert_true(sweep.a_logp[n] == 0);
}

static void importance_weight_belongs_to_the_tail_alone(void **state)
{
    struct world w = world_of(5, true);
    double with_weight[VOCAB * VOCAB];

    (void)state;
    topk(&w, false, 4, "corrected");
    memcpy(with_weight, sweep.a_at, sizeof with_weight);
    for (int n = 0; n < VOCAB; n++) {
        bool inside = false;

        for (int j = 0; j < 4; j++)
            inside = inside || sweep.ids[n * 4 + j] == n;
        if (inside)
            assert_true(sweep.a_logp[n] == 0);
        else
            assert_near(sweep.a_logp[n] / sweep.weight[n],
                        w.p[n] / w.o[n] * (w.lp[n] - w.lq[n]), 1e-12);
    }
    sweep.algo.kl_importance = false;
    sweep_run(&sweep, &w);
    assert_memory_equal(with_weight, sweep.a_at, sizeof with_weight);
}

/* A row of the table of estimators. */
struct claim {
    const char *name;
    enum { REVERSE, FORWARD, HALF_SQUARE } value;
    enum { GRAD_REVERSE, GRAD_FORWARD, GRAD_ZERO } gradient;
};

static void sampled_estimators_have_the_value_and_gradient_of_the_table(void **state)
{
    static const struct claim claims[] = {
        {"k1", REVERSE, GRAD_ZERO},    {"k2", HALF_SQUARE, GRAD_REVERSE},
        {"k3", REVERSE, GRAD_FORWARD}, {"k3++", REVERSE, GRAD_REVERSE},
        {"k4", REVERSE, GRAD_REVERSE}, {"k5", FORWARD, GRAD_FORWARD},
    };

    (void)state;
    for (int i = 0; i < SEEDS * 4; i++) {
        struct world w = world_of((uint64_t)i, i & 1);
        double zero[VOCAB] = {0}, reverse[VOCAB], forward[VOCAB], half = 0;

        exact(reverse, &w, false);
        exact(forward, &w, true);
        for (int v = 0; v < VOCAB; v++)
            half += w.p[v] * (w.lp[v] - w.lq[v]) * (w.lp[v] - w.lq[v]) / 2;
        for (size_t c = 0; c < sizeof claims / sizeof claims[0]; c++) {
            const double *grads[] = {reverse, forward, zero};
            double values[] = {kl_of(w.lp, w.lq), kl_of(w.lq, w.lp), half};

            sweep_init(&sweep, &w);
            must_set(&sweep.algo, "kl.estimator", claims[c].name);
            must_set(&sweep.algo, "kl.clamp", i & 2 ? "true" : "false");
            sweep_run(&sweep, &w);
            assert_near(sweep.g.kl, values[claims[c].value], tolerance);
            assert_near(farthest(sweep.grad, grads[claims[c].gradient]), 0, tolerance);
        }
    }
}

static void equal_policies_have_exactly_zero_gradient(void **state)
{
    static const char *const names[] = {"k2", "k3", "k3++", "k4", "k5"};
    struct world w = world_of(11, false);

    (void)state;
    memcpy(w.lq, w.lp, sizeof w.lq);
    memcpy(w.q, w.p, sizeof w.q);
    memcpy(w.lo, w.lp, sizeof w.lo);
    memcpy(w.o, w.p, sizeof w.o);
    for (int k = 0; k <= VOCAB; k++) {
        topk(&w, false, k, "corrected");
        assert_false(sweep.g.any);
        topk(&w, true, k, "corrected");
        assert_false(sweep.g.any);
        topk(&w, false, k, "published");
        assert_int_equal(sweep.g.any, k > 0);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        sweep_init(&sweep, &w);
        must_set(&sweep.algo, "kl.estimator", names[i]);
        sweep_run(&sweep, &w);
        assert_false(sweep.g.any);
        assert_true(sweep.g.kl == 0);
    }
}

static void coefficients(double out[VOCAB], const struct world *w, const char *name)
{
    sweep_init(&sweep, w);
    must_set(&sweep.algo, "kl.estimator", name);
    sweep_run(&sweep, w);
    memcpy(out, sweep.a_logp, sizeof(double) * VOCAB);
}

static void k2_k3pp_k4_and_k3_k5_share_their_gradients(void **state)
{
    (void)state;
    for (int i = 0; i < SEEDS; i++) {
        struct world w = world_of((uint64_t)i, true);
        double a[VOCAB], b[VOCAB];

        coefficients(a, &w, "k2");
        coefficients(b, &w, "k4");
        assert_memory_equal(a, b, sizeof a);
        coefficients(b, &w, "k3++");
        assert_near(farthest(a, b), 0, 1e-14);
        coefficients(a, &w, "k3");
        coefficients(b, &w, "k5");
        assert_memory_equal(a, b, sizeof a);
    }
}

/* One token at log-ratio d. */
static void at_ratio(double *value, double *coef, const char *name, double d, bool clamp)
{
    int64_t begin[2] = {0, 1};
    double lp = -30, anchor = lp - d, one = 1, zero = 0, a;
    struct kg_policy_batch b = {.n_seqs = 1,
                                .n_tokens = 1,
                                .seq_begin = begin,
                                .logp = &lp,
                                .old_logp = &lp,
                                .anchor_logp = &anchor,
                                .advantage = &zero,
                                .pg_weight = &zero,
                                .kl_weight = &one};
    struct kg_policy_grad g = {.a_logp = &a};
    struct kg_algo algo;
    struct kg_err err;

    kg_algo_init(&algo);
    must_set(&algo, "anchor.kind", "fixed");
    must_set(&algo, "kl.estimator", name);
    algo.kl_beta = 1;
    algo.kl_clamp = clamp;
    if (kg_policy_loss(&g, &algo, &b, &err) != KG_OK)
        fail_msg("%s", err.message);
    *value = g.kl;
    *coef = a;
}

static void clamps_hold_as_published_and_can_be_left_out(void **state)
{
    double value, coef;

    (void)state;
    at_ratio(&value, &coef, "k3", -3, true); /* w = e^3: the value exceeds 10 */
    assert_true(value == 10 && coef == 0);
    at_ratio(&value, &coef, "k3", -3, false);
    assert_near(value, exp(3) - 4, 1e-12);
    assert_near(coef, 1 - exp(3), 1e-12);
    at_ratio(&value, &coef, "k3++", -3,
             true); /* the value keeps its score-function part */
    assert_true(value == 10 && coef == 10);
    at_ratio(&value, &coef, "k3++", -3, false);
    assert_near(coef, -3, 1e-12);
    at_ratio(&value, &coef, "k5", -25, true);
    assert_near(value / (20 * exp(20)), 1, 1e-12);
    assert_true(coef == 1);
    at_ratio(&value, &coef, "k5", 25, true);
    assert_near(value / (-20 * exp(-20)), 1, 1e-12);
    assert_true(coef == 1);
    for (int sign = -1; sign < 2; sign += 2) { /* within its clamp */
        at_ratio(&value, &coef, "k5", sign * 19, true);
        assert_near(value / (-sign * 19 * exp(-sign * 19)), 1, 1e-12);
        assert_near(coef / (1 - exp(-sign * 19)), 1, 1e-12);
    }
    at_ratio(&value, &coef, "k4", 25, true);
    assert_true(value == 25 && coef == 25);
}

/* The plan is right about clamps: a row for which it names none has none. */
static void what_is_clamped_is_said(void **state)
{
    static const char *const names[] = {"k1", "k2", "k3", "k3++", "k4", "k5", "abs"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct kg_algo algo;
        bool differs = false;

        kg_algo_init(&algo);
        must_set(&algo, "kl.estimator", names[i]);
        for (double d = -25; d <= 25; d += 50) {
            double value[2], coef[2];

            for (int clamp = 0; clamp < 2; clamp++)
                at_ratio(&value[clamp], &coef[clamp], names[i], d, clamp);
            differs = differs || value[0] != value[1] || coef[0] != coef[1];
        }
        if (differs != (kg_algo_clamps(&algo) != NULL))
            fail_msg("%s: clamps %s, and says %s", names[i], differs ? "yes" : "no",
                     kg_algo_clamps(&algo) ? kg_algo_clamps(&algo) : "none");
        algo.kl_clamp = false;
        assert_null(kg_algo_clamps(&algo));
    }
}

static void ratio_estimators_are_exact_under_the_anchor(void **state)
{
    static const struct {
        const char *name;
        double reverse, forward;
    } rows[] = {{"rpg-fkl", 0, 1},
                {"rpg-ufkl", 0, 1},
                {"rpg-rkl", 1, 0},
                {"rpg-urkl", 1, 0},
                {"jeffreys", 0.5, 0.5}};

    (void)state;
    for (int i = 0; i < SEEDS; i++)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            struct world w = world_of((uint64_t)i, true);
            double reverse[VOCAB], forward[VOCAB], want[VOCAB];
            double value = rows[r].reverse * kl_of(w.lp, w.lo) +
                           rows[r].forward * kl_of(w.lo, w.lp);

            reverse_gradient(reverse, &w, w.lo);
            forward_gradient(forward, &w, w.o);
            for (int v = 0; v < VOCAB; v++)
                want[v] = rows[r].reverse * reverse[v] + rows[r].forward * forward[v];
            sweep_init(&sweep, &w);
            must_set(&sweep.algo, "anchor.kind", "iterative");
            must_set(&sweep.algo, "kl.estimator", rows[r].name);
            sweep.b.anchor_logp = NULL; /* the old policy is the anchor */
            sweep_run(&sweep, &w);
            assert_near(sweep.g.kl, value, tolerance);
            assert_near(farthest(sweep.grad, want), 0, tolerance);
        }
}

static void exact_rows_pass_value_and_coefficient_through(void **state)
{
    struct world w = world_of(2, false);

    (void)state;
    sweep_init(&sweep, &w);
    must_set(&sweep.algo, "kl.estimator", "exact-reverse");
    sweep.algo.kl_beta = 0.25;
    sweep.b.kl_divisor = 2;
    for (int n = 0; n < VOCAB; n++)
        sweep.exact[n] = 3;
    sweep_run(&sweep, &w);
    assert_near(sweep.g.kl, 1.5, 1e-14);
    assert_near(sweep.g.loss, 0.375, 1e-14);
    for (int n = 0; n < VOCAB; n++) {
        assert_near(sweep.a_exact[n], 0.125 * w.o[n], 1e-15);
        assert_true(sweep.a_logp[n] == 0);
    }
}

static void iterative_anchor_reads_what_the_sampler_recorded(void **state)
{
    struct world w = world_of(9, true);
    double want[VOCAB];

    (void)state;
    memcpy(w.lq, w.lo, sizeof w.lq);
    memcpy(w.q, w.o, sizeof w.q);
    exact(want, &w, false);
    sweep_init(&sweep, &w);
    must_set(&sweep.algo, "anchor.kind", "iterative");
    must_set(&sweep.algo, "kl.estimator", "topk-reverse");
    sweep_head(&sweep, &w, false, 5);
    sweep.b.anchor_logp = sweep.b.anchor_at = NULL;
    sweep_run(&sweep, &w);
    assert_near(sweep.g.kl, kl_of(w.lp, w.lo), tolerance);
    assert_near(farthest(sweep.grad, want), 0, tolerance);
}

/* The anchor is the sampler for the sampled token and for the head: if p is the sampler,
 * the KL and its gradient are 0, whatever ratios refer to. */
static void iterative_anchor_is_the_sampler_where_old_is_another(void **state)
{
    struct world w = world_of(9, true);
    struct kg_err err;

    (void)state;
    memcpy(w.lp, w.lo, sizeof w.lp);
    memcpy(w.p, w.o, sizeof w.p);
    sweep_init(&sweep, &w);
    must_set(&sweep.algo, "anchor.kind", "iterative");
    must_set(&sweep.algo, "kl.estimator", "topk-reverse");
    sweep_head(&sweep, &w, false, 5);
    sweep.b.anchor_logp = sweep.b.anchor_at = NULL;
    sweep.b.mu_logp = w.lo, sweep.b.old_logp = w.lq;
    assert_int_equal(kg_policy_loss(&sweep.g, &sweep.algo, &sweep.b, &err), KG_OK);
    assert_true(sweep.g.kl == 0 && !sweep.g.any);
}

static void unused_slots_are_skipped(void **state)
{
    struct world w = world_of(4, false);
    double want[VOCAB], value = exact(want, &w, true);

    (void)state;
    sweep_init(&sweep, &w);
    must_set(&sweep.algo, "kl.estimator", "topk-forward");
    sweep_head(&sweep, &w, true, 6);
    for (int n = 0; n < VOCAB; n++) {
        sweep.ids[n * 6 + 5] = -1;
        sweep.at[n * 6 + 5] = sweep.anchor_at[n * 6 + 5] = -INFINITY;
    }
    {
        struct kg_err err;

        assert_int_equal(kg_policy_loss(&sweep.g, &sweep.algo, &sweep.b, &err), KG_OK);
        assert_near(sweep.g.kl, value, tolerance);
        for (int n = 0; n < VOCAB; n++)
            assert_true(sweep.a_at[n * 6 + 5] == 0);
    }
}

static void metrics_tell_head_from_tail(void **state)
{
    struct world w = world_of(6, false);
    struct kg_policy_metric rows[KG_POLICY_METRICS_MAX];
    size_t n;
    bool seen = false;

    (void)state;
    topk(&w, false, 5, "corrected");
    assert_int_equal(sweep.g.metrics.kl_tokens, VOCAB);
    assert_int_equal(sweep.g.metrics.tail_tokens, VOCAB - 5);
    assert_near(sweep.g.metrics.kl_head_sum + sweep.g.metrics.kl_tail_sum,
                sweep.g.metrics.kl_sum, 1e-12);
    n = kg_policy_metrics_list(rows, &sweep.algo, &sweep.g.metrics);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, "kl/tail_tokens") == 0) {
            seen = true;
            assert_near(rows[i].value, 7.0 / 12, 1e-15);
        }
    assert_true(seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corrected_topk_is_the_exact_kl_for_every_k),
        cmocka_unit_test(published_topk_adds_the_gradient_of_the_head_mass),
        cmocka_unit_test(a_coarse_kl_is_that_of_its_events),
        cmocka_unit_test(a_bucket_bounds_the_exact_kl_from_below),
        cmocka_unit_test(generalised_is_least_where_the_head_is_the_anchors),
        cmocka_unit_test(truncated_is_the_kl_of_the_renormalised_heads),
        cmocka_unit_test(truncated_to_everything_is_exact),
        cmocka_unit_test(without_the_tail_the_value_is_the_head),
        cmocka_unit_test(importance_weight_belongs_to_the_tail_alone),
        cmocka_unit_test(sampled_estimators_have_the_value_and_gradient_of_the_table),
        cmocka_unit_test(equal_policies_have_exactly_zero_gradient),
        cmocka_unit_test(k2_k3pp_k4_and_k3_k5_share_their_gradients),
        cmocka_unit_test(clamps_hold_as_published_and_can_be_left_out),
        cmocka_unit_test(what_is_clamped_is_said),
        cmocka_unit_test(ratio_estimators_are_exact_under_the_anchor),
        cmocka_unit_test(exact_rows_pass_value_and_coefficient_through),
        cmocka_unit_test(iterative_anchor_reads_what_the_sampler_recorded),
        cmocka_unit_test(iterative_anchor_is_the_sampler_where_old_is_another),
        cmocka_unit_test(unused_slots_are_skipped),
        cmocka_unit_test(metrics_tell_head_from_tail),
    };

    return cmocka_run_group_tests_name("policy/kl", tests, NULL, NULL);
}
