/* Advantages by hand on small groups, and what is refused. */
#include "base/mem.h"
#include "policy/policy_testing.h"

enum { S = 5, N = 12 };

static const int64_t groups[] = {0, 3, 5};
static const int64_t begin[] = {0, 2, 5, 6, 10, 12};
static const double reward[S] = {1, 0, 0.5, 2, -1};

static struct kg_algo algo;
static struct kg_policy_scores in;
static struct kg_policy_advantage out;
static double seq[S], token[N], returns[N], value[N];

static void run(const char *row)
{
    struct kg_err err;

    kg_algo_init(&algo);
    must_set(&algo, "algo.advantage", row);
    in = (struct kg_policy_scores){.n_seqs = S,
                                   .n_groups = 2,
                                   .reward = reward,
                                   .group_begin = groups,
                                   .seq_begin = begin,
                                   .value = value,
                                   .greedy = reward};
    out = (struct kg_policy_advantage){.seq = seq, .token = token, .returns = returns};
    if (kg_policy_advantages(&out, &algo, &in, &err) != KG_OK)
        fail_msg("%s", err.message);
}

static void expect(const double want[S])
{
    for (int i = 0; i < S; i++)
        assert_near(seq[i], want[i], 1e-14);
}

static void grpo_divides_by_the_group_deviation(void **state)
{
    double a = 0.5 + 1e-6, b = sqrt(4.5) + 1e-6;

    (void)state;
    run("grpo");
    expect((double[]){0.5 / a, -0.5 / a, 0, 1.5 / b, -1.5 / b});
    for (int i = 0; i < S; i++)
        for (int64_t t = begin[i]; t < begin[i + 1]; t++)
            assert_true(token[t] == seq[i]);
    assert_int_equal(out.groups_equal, 0);
    assert_true(out.batch_std == 0);
    assert_near(out.max, 0.5 / a, 1e-14);
}

static void other_baselines_by_hand(void **state)
{
    double std = sqrt((0.25 + 0.25 + 2.25 + 2.25) / 4);

    (void)state;
    run("dr-grpo");
    expect((double[]){0.5, -0.5, 0, 1.5, -1.5});
    run("batch-std");
    assert_near(out.batch_std, std, 1e-14);
    expect((double[]){0.5 / (std + 1e-6), -0.5 / (std + 1e-6), 0, 1.5 / (std + 1e-6),
                      -1.5 / (std + 1e-6)});
    run("batch-mean");
    expect((double[]){0.5, -0.5, 0, 1.5, -1.5}); /* the batch mean is 0.5 as well */
    run("rloo");
    expect((double[]){0.75, -0.75, 0, 3, -3});
    run("opo"); /* lengths 2 3 1 and 4 2 */
    expect((double[]){1 - 2.5 / 6, -2.5 / 6, 0.5 - 2.5 / 6, 2 - 1, -1 - 1});
    run("gpg"); /* four of five rewards are not 0 */
    expect((double[]){0.625, -0.625, 0, 1.875, -1.875});
    run("passk");
    expect((double[]){0.5, 0, 0, 3, 0});
}

static void maxrl_divides_by_the_mean(void **state)
{
    static const double bad[S] = {0, 0, 0, -2, 1};
    struct kg_err err;

    (void)state;
    run("maxrl");
    expect((double[]){1, -1, 0, 3, -3}); /* means 0.5 and 0.5 */
    run("maxrl-eps");
    expect(
        (double[]){0.5 / 0.500001, -0.5 / 0.500001, 0, 1.5 / 0.500001, -1.5 / 0.500001});
    /* a mean of 0 gives no signal; a mean below 0, the sign of the published code */
    in.reward = bad;
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
    expect((double[]){0, 0, 0, -1.5 / (-0.5 + 1e-6), 1.5 / (-0.5 + 1e-6)});
    run("maxrl");
    in.reward = bad;
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
    expect((double[]){0, 0, 0, 0, 0});
    /* a group of one */
    in.group_begin = (int64_t[]){0, 1, 5}, in.reward = reward;
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
    assert_true(seq[0] == 0);
}

/* Two rewards each. In group 0 the first is 1, 0, 0.5 and the second 0, 0, 3; in group 1
 * the first is 2, -1 and the second always 1. */
static const double parts[S * 2] = {1, 0, 0, 0, 0.5, 3, 2, 1, -1, 1};
static const double part_weight[2] = {1, 0.5};

static void run_parts(const char *row)
{
    struct kg_err err;

    run("dr-grpo");
    must_set(&algo, "algo.advantage", row);
    in.part = parts, in.part_weight = part_weight, in.n_parts = 2;
    if (kg_policy_advantages(&out, &algo, &in, &err) != KG_OK)
        fail_msg("%s", err.message);
}

static void gdpo_normalises_each_reward_by_itself(void **state)
{
    double a = 0.5 + 1e-6, b = sqrt(3) + 1e-6, c = sqrt(4.5) + 1e-6, mean = 0, std = 0;
    double x[S] = {0.5 / a - 0.5 / b, -0.5 / a - 0.5 / b, 1 / b, 1.5 / c, -1.5 / c};
    double tokens = 0, variance = 0;

    (void)state;
    for (int i = 0; i < S; i++)
        mean += x[i] / S;
    for (int i = 0; i < S; i++)
        std += (x[i] - mean) * (x[i] - mean) / (S - 1);
    run_parts("gdpo");
    for (int i = 0; i < S; i++)
        assert_near(seq[i], (x[i] - mean) / (sqrt(std) + 1e-6), 1e-14);
    run_parts("gdpo-token"); /* lengths 2 3 1 4 2 */
    for (int i = 0; i < S; i++)
        tokens += x[i] * (double)(begin[i + 1] - begin[i]) / N;
    for (int i = 0; i < S; i++)
        variance += (x[i] - tokens) * (x[i] - tokens) *
                    (double)(begin[i + 1] - begin[i]) / (N - 1);
    for (int i = 0; i < S; i++)
        assert_near(token[begin[i]], (x[i] - tokens) / sqrt(variance + 1e-8), 1e-13);
}

static void gdpo_needs_its_rewards(void **state)
{
    static const double bad[S * 2] = {1, 0, 0, 0, 0.5, INFINITY, 2, 1, -1, 1};
    struct kg_algo_setting setting = {.samples = 2};
    struct kg_err err;

    (void)state;
    run_parts("gdpo");
    in.part = bad;
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_ENONFINITE);
    assert_non_null(strstr(err.message, "reward 1 of trajectory 2"));
    in.part = NULL;
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "several rewards"));
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "task.rewards"));
    setting.provides = KG_NEED_PARTS;
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_OK);
}

static void equal_rewards_give_no_advantage(void **state)
{
    static const double same[S] = {1, 1, 1, 0, 0}, zero[S] = {0};
    struct kg_err err;

    (void)state;
    run("grpo");
    in.reward = same;
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
    for (int i = 0; i < S; i++)
        assert_true(seq[i] == 0);
    assert_int_equal(out.groups_equal, 2);
    run("gpg");
    in.reward = zero; /* all 0: nothing to divide by */
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
    for (int i = 0; i < S; i++)
        assert_true(seq[i] == 0);
}

/* The rounded sum of three numbers 0.1, divided by 3, is not 0.1; the difference would be
 * enough for an update. */
static void equal_rewards_of_any_size_leave_no_rounding(void **state)
{
    static const double sizes[] = {0.1, 0.7, 1.0 / 3, -0.3};
    const struct kg_policy_about *row;
    double same[S], both[S * 2];
    struct kg_err err;

    (void)state;
    for (size_t r = 0; (row = kg_policy_row(KG_TABLE_ADVANTAGE, r)); r++)
        for (size_t x = 0; x < sizeof sizes / sizeof *sizes; x++) {
            if (row->needs & (KG_NEED_VALUES | KG_NEED_SUM_SQ))
                continue; /* reads a critic, or weights with 1e-8 added */
            for (int i = 0; i < S; i++)
                same[i] = both[2 * i] = both[2 * i + 1] = sizes[x];
            run("dr-grpo");
            must_set(&algo, "algo.advantage", row->name);
            in.reward = in.greedy = same;
            in.part = both, in.part_weight = part_weight, in.n_parts = 2;
            assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
            for (int n = 0; n < N; n++)
                if (token[n] != 0)
                    fail_msg("%s of %g: %g", row->name, sizes[x], token[n]);
        }
}

static void whitened_rows_have_mean_zero_and_variance_one(void **state)
{
    static const char *const rows[] = {"reinforce++", "reinforce++-baseline", "gae"};

    (void)state;
    for (int n = 0; n < N; n++)
        value[n] = 0.1 * n * (n % 3 - 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double mean = 0, var = 0;

        run(rows[i]);
        for (int n = 0; n < N; n++)
            mean += token[n] / N;
        for (int n = 0; n < N; n++)
            var += (token[n] - mean) * (token[n] - mean) / (N - 1);
        assert_near(mean, 0, 1e-14);
        assert_near(var, 1, 1e-7);
    }
}

static void discounted_returns_reach_back_from_the_last_token(void **state)
{
    struct kg_err err;

    (void)state;
    run("reinforce++");
    must_set(&algo, "algo.gamma", "0.5");
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
    assert_near(returns[9], 2, 0);
    assert_near(returns[8], 1, 0);
    assert_near(returns[6], 0.25, 0);
    run("remax"); /* the greedy completions have the same rewards here */
    for (int n = 0; n < N; n++)
        assert_near(token[n], 0, 1e-15);
}

static void token_rewards_add_to_the_score(void **state)
{
    double extra[N] = {0};
    struct kg_err err;

    (void)state;
    run("dr-grpo");
    extra[0] = -0.6;
    extra[4] = 0.3;
    in.token_reward = extra;
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
    assert_near(seq[0], 0.4 - 0.4, 1e-14); /* scores 0.4 0.3 0.5 */
    assert_near(seq[1], 0.3 - 0.4, 1e-14);
}

static void missing_inputs_and_bad_rewards_are_refused(void **state)
{
    static const double bad[S] = {1, 0, NAN, 0, 0};
    struct kg_err err;

    (void)state;
    run("remax");
    in.greedy = NULL;
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "greedy"));
    run("grpo");
    in.reward = bad;
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_ENONFINITE);
    assert_non_null(strstr(err.message, "trajectory 2"));
    in.reward = reward;
    kg_mem_fail_at(1);
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_ENOMEM);
    kg_mem_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grpo_divides_by_the_group_deviation),
        cmocka_unit_test(other_baselines_by_hand),
        cmocka_unit_test(maxrl_divides_by_the_mean),
        cmocka_unit_test(gdpo_normalises_each_reward_by_itself),
        cmocka_unit_test(gdpo_needs_its_rewards),
        cmocka_unit_test(equal_rewards_give_no_advantage),
        cmocka_unit_test(equal_rewards_of_any_size_leave_no_rounding),
        cmocka_unit_test(whitened_rows_have_mean_zero_and_variance_one),
        cmocka_unit_test(discounted_returns_reach_back_from_the_last_token),
        cmocka_unit_test(token_rewards_add_to_the_score),
        cmocka_unit_test(missing_inputs_and_bad_rewards_are_refused),
    };

    return cmocka_run_group_tests_name("policy/advantage", tests, NULL, NULL);
}
