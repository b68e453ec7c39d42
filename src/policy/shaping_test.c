/* The KL that is added to rewards, by hand, and the controller of its coefficient. */
#include "policy/policy_testing.h"

#include "policy/shaping.h"

enum { S = 3, N = 6 };

static const int64_t begin[] = {0, 3, 5, 6};
static const double old_logp[N] = {-1, -2, -0.5, -3, -0.25, -1.5};
static const double anchor_logp[N] = {-1.5, -1, -0.5, -2, -2.25, -0.5};
static struct kg_algo algo;

static double kl_reward(double reward[N], const char *estimator)
{
    struct kg_err err;
    double mean;

    kg_algo_init(&algo);
    must_set(&algo, "kl.estimator", estimator);
    must_set(&algo, "kl.in", "reward");
    must_set(&algo, "kl.beta", "0.25");
    memset(reward, 0, N * sizeof *reward);
    if (kg_policy_kl_reward(reward, &mean, &algo, S, begin, old_logp, anchor_logp,
                            &err) != KG_OK)
        fail_msg("%s", err.message);
    return mean;
}

static void every_token_pays_for_its_kl(void **state)
{
    double reward[N], mean = kl_reward(reward, "k1");

    (void)state;
    for (int n = 0; n < N; n++)
        assert_near(reward[n], -0.25 * (old_logp[n] - anchor_logp[n]), 1e-15);
    assert_near(mean, ((0.5 - 1 + 0) / 3 + (-1 + 2) / 2.0 - 1) / 3, 1e-15);
    mean = kl_reward(reward, "k3");
    for (int n = 0; n < N; n++) {
        double d = old_logp[n] - anchor_logp[n];

        assert_near(reward[n], -0.25 * (d + exp(-d) - 1), 1e-15);
        assert_true(reward[n] <= 0);
    }
    assert_true(mean > 0);
}

/* A completion without a token has nothing to average, and is not counted. */
static void an_empty_answer_has_no_kl(void **state)
{
    static const int64_t holed[] = {0, 3, 3, 5, 6};
    double reward[N] = {0}, all[N], mean, full = kl_reward(all, "k1");
    struct kg_err err;

    (void)state;
    for (int published = 0; published < 2; published++) {
        must_set(&algo, "algo.count_eps", published ? "1e-8" : "0");
        assert_int_equal(kg_policy_kl_reward(reward, &mean, &algo, S + 1, holed, old_logp,
                                             anchor_logp, &err),
                         KG_OK);
        assert_near(mean, full, 1e-7);
        assert_int_equal(kg_policy_kl_reward(reward, &mean, &algo, 0, holed, old_logp,
                                             anchor_logp, &err),
                         KG_OK);
        assert_near(mean, 0, 0);
    }
}

/* Trajectory rows see the sum over the tokens, token rows the return from each token
 * on. */
static void the_kl_enters_advantages_of_both_kinds(void **state)
{
    static const int64_t groups[] = {0, 3};
    static const double task[S] = {1, 0, 0.5};
    double kl[N], token[N], returns[N], seq[S];
    struct kg_policy_scores in = {.n_seqs = S,
                                  .n_groups = 1,
                                  .reward = task,
                                  .group_begin = groups,
                                  .seq_begin = begin,
                                  .token_reward = kl};
    struct kg_policy_advantage out = {.seq = seq, .token = token, .returns = returns};
    double score[S], mean = 0;
    struct kg_err err;

    (void)state;
    (void)kl_reward(kl, "k1");
    for (int i = 0; i < S; i++) {
        score[i] = task[i];
        for (int64_t t = begin[i]; t < begin[i + 1]; t++)
            score[i] += kl[t];
        mean += score[i] / S;
    }
    must_set(&algo, "algo.advantage", "dr-grpo");
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
    for (int i = 0; i < S; i++)
        assert_near(seq[i], score[i] - mean, 1e-14);
    must_set(&algo, "algo.advantage", "reinforce++");
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
    assert_near(returns[2], 1 + kl[2], 1e-14);
    assert_near(returns[1], 1 + kl[2] + kl[1], 1e-14);
    assert_near(returns[0], score[0], 1e-14);
    assert_near(returns[5], score[2], 1e-14);
}

/* If the KL is in the reward, the loss has no KL term. */
static void the_loss_has_no_kl_then(void **state)
{
    struct world w = world_of(3, false);
    static struct sweep s;
    double pg;

    (void)state;
    sweep_init(&s, &w);
    for (int v = 0; v < VOCAB; v++)
        s.advantage[v] = v - 3;
    must_set(&s.algo, "kl.estimator", "k3");
    must_set(&s.algo, "anchor.kind", "fixed");
    s.algo.kl_beta = 0;
    sweep_run(&s, &w);
    pg = s.g.loss;
    s.algo.kl_beta = 7;
    must_set(&s.algo, "kl.in", "reward");
    s.b.anchor_logp = NULL;
    s.b.kl_weight = NULL;
    sweep_run(&s, &w);
    assert_true(s.g.loss == pg);
    assert_int_equal(s.g.metrics.kl_tokens, 0);
    assert_false(kg_algo_kl_in_loss(&s.algo));
}

static void length_costs_only_within_the_buffer(void **state)
{
    (void)state;
    assert_near(kg_policy_overlong(1, 20, 5, 1), 0, 0);
    assert_near(kg_policy_overlong(15, 20, 5, 1), 0, 0);
    assert_near(kg_policy_overlong(16, 20, 5, 1), -0.2, 1e-15);
    assert_near(kg_policy_overlong(20, 20, 5, 0.5), -0.5, 1e-15);
}

static void the_controller_moves_by_at_most_a_fifth_per_horizon(void **state)
{
    (void)state;
    assert_near(kg_policy_adaptive_kl(0.5, 0.1, 0.1, 100, 10), 0.5, 0);
    assert_near(kg_policy_adaptive_kl(0.5, 0.11, 0.1, 100, 10), 0.5 * 1.01, 1e-15);
    assert_near(kg_policy_adaptive_kl(0.5, 9, 0.1, 100, 10), 0.5 * 1.02, 1e-15);
    assert_near(kg_policy_adaptive_kl(0.5, -9, 0.1, 100, 10), 0.5 * 0.98, 1e-15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_pays_for_its_kl),
        cmocka_unit_test(an_empty_answer_has_no_kl),
        cmocka_unit_test(the_kl_enters_advantages_of_both_kinds),
        cmocka_unit_test(the_loss_has_no_kl_then),
        cmocka_unit_test(length_costs_only_within_the_buffer),
        cmocka_unit_test(the_controller_moves_by_at_most_a_fifth_per_horizon),
    };

    return cmocka_run_group_tests_name("policy/shaping", tests, NULL, NULL);
}
