/* Weights of tokens: what they sum to, and that they depend on the whole batch alone. */
#include "policy/policy_testing.h"

enum { S = 4, N = 10 };

static const int64_t begin[] = {0, 3, 3, 8, 10}; /* lengths 3 0 5 2 */
static const uint8_t drop[] = {0, 0, 1, 0};
static struct kg_algo algo;
static double pg[N], kl[N], entropy[N];

static void weigh(const char *mode, const uint8_t *dropped)
{
    struct kg_policy_shape shape = {S, begin, dropped};
    struct kg_policy_weights w = {pg, kl, entropy};
    struct kg_err err;

    must_set(&algo, "algo.aggregate", mode);
    if (kg_policy_weights(&w, &algo, &shape, &err) != KG_OK)
        fail_msg("%s", err.message);
}

static double sum(const double *w, int64_t first, int64_t last)
{
    double total = 0;

    for (int64_t n = first; n < last; n++)
        total += w[n];
    return total;
}

static void weights_sum_as_the_modes_say(void **state)
{
    (void)state;
    kg_algo_init(&algo);
    algo.length_norm = 16;
    weigh("token-mean", NULL);
    assert_near(sum(pg, 0, N), 1, 1e-15);
    assert_near(pg[0], 0.1, 0);
    weigh("seq-mean-token-mean", NULL);
    assert_near(sum(pg, 0, N), 1, 1e-15);
    for (int i = 0; i < S;
         i++) /* sequences with tokens have equal weights, the empty one has none */
        if (begin[i + 1] > begin[i])
            assert_near(sum(pg, begin[i], begin[i + 1]), 1.0 / 3, 1e-15);
    weigh("seq-mean-token-sum", NULL);
    assert_near(sum(pg, 0, N), 10.0 / 3, 1e-14);
    weigh("token-sum", NULL);
    assert_near(sum(pg, 0, N), 10, 0);
    weigh("seq-mean-token-sum-norm", NULL);
    assert_near(sum(pg, 0, N), 10.0 / 16, 1e-15);
    weigh("seq-mean-token-norm", NULL);
    assert_near(sum(pg, 0, N), 10.0 / 16 / 3, 1e-15);
}

static void dropped_sequences_leave_the_policy_and_stay_in_the_kl(void **state)
{
    (void)state;
    kg_algo_init(&algo);
    weigh("token-mean", drop);
    assert_true(sum(pg, 3, 8) == 0 && sum(entropy, 3, 8) == 0);
    assert_near(sum(pg, 0, N), 1, 1e-15);
    assert_near(pg[0], 0.2, 0);
    assert_near(kl[0], 0.1, 0);
    assert_near(kl[5], 0.1, 0);
    algo.kl_after_filter = true;
    weigh("token-mean", drop);
    assert_memory_equal(pg, kl, sizeof pg);
}

static void ranks_share_totals(void **state)
{
    struct kg_policy_totals all, here, there;
    double w[N];
    struct kg_err err;

    (void)state;
    kg_algo_init(&algo);
    weigh("seq-mean-token-mean", drop);
    kg_policy_totals(&all, &algo, S, begin, drop);
    kg_policy_totals(&here, &algo, 2, begin, drop);
    kg_policy_totals(&there, &algo, 2, begin + 2, drop + 2);
    assert_true(here.tokens + there.tokens == all.tokens);
    assert_true(here.seqs + there.seqs == all.seqs);
    assert_int_equal(
        kg_policy_weights_of(w + 3, &algo, &all, 2, (int64_t[]){0, 5, 7}, drop + 2, &err),
        KG_OK);
    assert_memory_equal(w + 3, pg + 3, 7 * sizeof *w);
}

static void a_norm_without_a_length_is_refused(void **state)
{
    struct kg_policy_shape shape = {S, begin, NULL};
    struct kg_policy_weights w = {pg, kl, entropy};
    struct kg_err err;

    (void)state;
    kg_algo_init(&algo);
    must_set(&algo, "algo.aggregate", "seq-mean-token-sum-norm");
    assert_int_equal(kg_policy_weights(&w, &algo, &shape, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "algo.length_norm"));
}

static void everything_dropped_weighs_nothing(void **state)
{
    static const uint8_t every[] = {1, 1, 1, 1};

    (void)state;
    kg_algo_init(&algo);
    weigh("token-mean", every);
    for (int n = 0; n < N; n++)
        assert_true(pg[n] == 0 && isfinite(kl[n]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_sum_as_the_modes_say),
        cmocka_unit_test(dropped_sequences_leave_the_policy_and_stay_in_the_kl),
        cmocka_unit_test(ranks_share_totals),
        cmocka_unit_test(a_norm_without_a_length_is_refused),
        cmocka_unit_test(everything_dropped_weighs_nothing),
    };

    return cmocka_run_group_tests_name("policy/aggregate", tests, NULL, NULL);
}
