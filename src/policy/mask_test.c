/* Sequence masks: which completions they mask, that the others are unchanged, and the
 * gradient of what is left. */
#include "policy/policy_testing.h"

enum { S = 3, N = 7 };

/* Completions of 4, 2 and 1 tokens: near the sampler, far above it at one token, far
 * below it with A < 0. Ratios to the old policy stay inside every clip. */
static const int64_t begin[] = {0, 4, 6, 7};
static const double gap[N] = {0.02, -0.03, 0.01, 0.04, 0.9, -0.1, -0.8};
static const double advantage[N] = {0.7, 0.7, 0.7, 0.7, 0.5, 0.5, -0.8};
static double logp[N], mu[N], weight[N], kl_weight[N], anchor[N], a[N], term[N];
static struct kg_algo algo;
static struct kg_policy_batch b;
static struct kg_policy_grad g;

static void prepare(const char *surrogate, const char *mask, const char *delta)
{
    kg_algo_init(&algo);
    must_set(&algo, "algo.surrogate", surrogate);
    must_set(&algo, "algo.mask", mask);
    must_set(&algo, "algo.mask_delta", delta);
    must_set(&algo, "algo.clip_low", "0.9");
    must_set(&algo, "algo.clip_high", "9");
    for (int n = 0; n < N; n++) {
        mu[n] = -1 - 0.2 * n;
        logp[n] = mu[n] + gap[n];
        anchor[n] = mu[n] - 0.3;
        weight[n] = kl_weight[n] = n < 4 ? 0.125 : 0.25;
    }
    b = (struct kg_policy_batch){.n_seqs = S,
                                 .n_tokens = N,
                                 .seq_begin = begin,
                                 .logp = logp,
                                 .old_logp = mu,
                                 .advantage = advantage,
                                 .pg_weight = weight,
                                 .anchor_logp = anchor,
                                 .kl_weight = kl_weight};
    g = (struct kg_policy_grad){.a_logp = a, .pg_term = term};
}

static double loss(void)
{
    struct kg_err err;

    if (kg_policy_loss(&g, &algo, &b, &err) != KG_OK)
        fail_msg("%s: %s", kg_algo_row_name(&algo, KG_TABLE_MASK), err.message);
    return g.loss;
}

/* Exactly the completions in `gone` have zero terms; the terms of the others are those
 * without a mask. */
static void takes(const char *surrogate, const char *mask, const char *delta,
                  const bool gone[S])
{
    double plain[N];

    prepare(surrogate, "none", "0");
    loss();
    memcpy(plain, a, sizeof plain);
    prepare(surrogate, mask, delta);
    loss();
    for (int i = 0; i < S; i++)
        for (int64_t n = begin[i]; n < begin[i + 1]; n++) {
            assert_true(plain[n] != 0);
            if (a[n] != (gone[i] ? 0 : plain[n]) || (gone[i] && term[n] != 0))
                fail_msg("%s with %s %s, token %d: %g", surrogate, mask, delta, (int)n,
                         a[n]);
        }
    assert_int_equal(g.metrics.mask_seqs, S);
    assert_int_equal(g.metrics.mask_dropped, gone[0] + gone[1] + gone[2]);
}

static void each_mask_takes_the_answers_that_are_too_far(void **state)
{
    static const char *const surrogates[] = {"ppo-clip", "reinforce", "cispo",   "gspo",
                                             "gmpo",     "pg-is",     "rpg-urkl"};

    (void)state;
    for (size_t i = 0; i < sizeof surrogates / sizeof surrogates[0]; i++) {
        const char *pg = surrogates[i];

        takes(pg, "trm-max", "0.41", (bool[]){false, false, false});
        takes(pg, "trm-max", "0.4", (bool[]){false, true, false});
        takes(pg, "trm-max", "0.3", (bool[]){false, true, true});
        takes(pg, "trm-max", "0.0001", (bool[]){true, true, true});
        takes(pg, "trm-mean", "0.29", (bool[]){false, false, false});
        takes(pg, "trm-mean", "0.26", (bool[]){false, true, false});
        takes(pg, "trm-mean", "0.24", (bool[]){false, true, true});
        takes(pg, "off-policy", "0.79", (bool[]){false, false, true});
        takes(pg, "off-policy", "0.81", (bool[]){false, false, false});
        takes(pg, "off-policy", "0.001", (bool[]){false, false, true});
        takes(pg, "off-policy-old", "0.79", (bool[]){false, false, true});
        takes(pg, "off-policy-old", "0.81", (bool[]){false, false, false});
    }
}

/* vaco masks the tokens that move away from the sampler, in completions at a total
 * variation of 0.0126, 0.389 and 0.275; `gone` has a bit per token, the first is bit 0.
 * vaco-old: the same for the old policy, at twice these distances; p moves the other way
 * there, which vaco-old does not read. */
static void vaco_takes_tokens_that_lead_away(void **state)
{
    static const struct {
        double delta;
        unsigned gone;
    } at[] = {{0.0001, 0x5d}, {0.012, 0x5d}, {0.013, 0x50},
              {0.27, 0x50},   {0.28, 0x10},  {0.4, 0}};
    static const char *const surrogates[] = {"ppo-clip", "reinforce", "gspo", "pg-is"};
    double p[N];

    (void)state;
    for (int i = 0; i < 2 * 4 * 6; i++) {
        bool of_old = i % 2;
        char delta[32];

        snprintf(delta, sizeof delta, "%g", (1 + of_old) * at[i / 8].delta);
        prepare(surrogates[i / 2 % 4], of_old ? "vaco-old" : "vaco", delta);
        for (int n = 0; n < N; n++)
            p[n] = mu[n] - gap[n] / 2;
        if (of_old)
            b.mu_logp = mu, b.old_logp = logp, b.logp = p;
        loss();
        for (int n = 0; n < N; n++)
            if ((a[n] == 0) != (at[i / 8].gone >> n & 1))
                fail_msg("%s %s, token %d: %g", of_old ? "vaco-old" : "vaco", delta, n,
                         a[n]);
    }
}

/* The mask is constant: the gradient is that of the loss that is left. */
static void what_is_left_matches_finite_differences(void **state)
{
    static const char *const masks[] = {"trm-max", "trm-mean", "off-policy", "vaco"};
    double grad[N];

    (void)state;
    for (int i = 0; i < 4; i++) {
        prepare("ppo-clip", masks[i], "0.25");
        loss();
        memcpy(grad, a, sizeof grad);
        for (int n = 0; n < N; n++) {
            double at = logp[n], up, down;

            logp[n] = at + 1e-6;
            up = loss();
            logp[n] = at - 1e-6;
            down = loss();
            logp[n] = at;
            assert_near((up - down) / 2e-6, grad[n], 1e-8);
        }
        assert_true(grad[0] != 0);
    }
}

static void the_kl_of_a_masked_answer_stays(void **state)
{
    double kl[N];

    (void)state;
    prepare("ppo-clip", "none", "0");
    memset(weight, 0, sizeof weight); /* only the KL */
    must_set(&algo, "anchor.kind", "fixed");
    must_set(&algo, "kl.estimator", "k2");
    must_set(&algo, "kl.beta", "0.5");
    loss();
    memcpy(kl, a, sizeof kl);
    prepare("ppo-clip", "trm-max", "0.0001");
    must_set(&algo, "anchor.kind", "fixed");
    must_set(&algo, "kl.estimator", "k2");
    must_set(&algo, "kl.beta", "0.5");
    loss();
    for (int n = 0; n < N; n++)
        assert_true(a[n] == kl[n] && a[n] != 0);
}

/* The distance is to the sampler, not to the old policy. */
static void the_divergence_is_to_the_sampler(void **state)
{
    double old[N];

    (void)state;
    prepare("reinforce", "trm-max", "0.4");
    memcpy(old, logp, sizeof old);
    b.old_logp = old;
    b.mu_logp = mu;
    loss();
    assert_true(a[0] != 0 && a[4] == 0 && a[5] == 0 && a[6] != 0);
    assert_near(g.metrics.mask_max, 0.405, 1e-12);
}

/* ... unless a row says so. */
static void off_policy_old_is_to_the_old_policy(void **state)
{
    double old[N];

    (void)state;
    prepare("reinforce", "off-policy", "0.7");
    memcpy(old, logp, sizeof old);
    b.old_logp = old;
    b.mu_logp = mu;
    loss();
    assert_true(a[6] == 0 && a[4] != 0);
    prepare("reinforce", "off-policy-old", "0.7");
    b.old_logp = old;
    b.mu_logp = mu;
    loss();
    assert_true(a[6] != 0);
    old[6] = mu[6], b.mu_logp = logp;
    loss();
    assert_true(a[6] == 0 && a[4] != 0);
}

static void metrics_add_up_over_micro_batches(void **state)
{
    struct kg_policy_metrics sum = {0}, whole;
    struct kg_policy_metric rows[KG_POLICY_METRICS_MAX];
    size_t n, found = 0;

    (void)state;
    prepare("ppo-clip", "trm-mean", "0.26");
    loss();
    whole = g.metrics;
    b.n_seqs = 2, b.n_tokens = 6;
    loss();
    kg_policy_metrics_merge(&sum, &g.metrics);
    b = (struct kg_policy_batch){.n_seqs = 1,
                                 .n_tokens = 1,
                                 .seq_begin = (int64_t[]){0, 1},
                                 .logp = logp + 6,
                                 .old_logp = mu + 6,
                                 .advantage = advantage + 6,
                                 .pg_weight = weight + 6};
    loss();
    kg_policy_metrics_merge(&sum, &g.metrics);
    assert_int_equal(sum.mask_seqs, whole.mask_seqs);
    assert_int_equal(sum.mask_dropped, 1);
    assert_near(sum.mask_sum, whole.mask_sum, 1e-15);
    assert_true(sum.mask_max == whole.mask_max);
    n = kg_policy_metrics_list(rows, &algo, &sum);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, "mask/answers") == 0) {
            assert_near(rows[i].value, 1.0 / 3, 1e-15);
            found++;
        }
    assert_int_equal(found, 1);
}

static void a_delta_belongs_to_a_mask(void **state)
{
    struct kg_algo_setting setting = {.samples = 2};
    struct kg_err err;

    (void)state;
    prepare("ppo-clip", "trm-max", "0");
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "algo.mask_delta"));
    prepare("ppo-clip", "none", "0.1");
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_EINVAL);
    prepare("ppo-clip", "off-policy", "0.1");
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_mask_takes_the_answers_that_are_too_far),
        cmocka_unit_test(vaco_takes_tokens_that_lead_away),
        cmocka_unit_test(what_is_left_matches_finite_differences),
        cmocka_unit_test(the_kl_of_a_masked_answer_stays),
        cmocka_unit_test(the_divergence_is_to_the_sampler),
        cmocka_unit_test(off_policy_old_is_to_the_old_policy),
        cmocka_unit_test(metrics_add_up_over_micro_batches),
        cmocka_unit_test(a_delta_belongs_to_a_mask),
    };

    return cmocka_run_group_tests_name("policy/mask", tests, NULL, NULL);
}
