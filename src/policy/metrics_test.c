/* What the loss says of itself, by hand on five tokens: ranges, the gap to the sampler,
 * what a region dropped. */
#include "policy/policy_testing.h"

enum { N = 5 };

static const int64_t begin[] = {0, 3, N};
static const double p[N] = {0.5, 0.1, 0.4, 0.9, 0.2};
static const double mu[N] = {0.5, 0.2, 0.3, 0.6, 0.25};
static const double advantage[N] = {1, -1, 1, 1, -1};
static double logp[N], mu_logp[N], weight[N], entropy[N], a[N];
static struct kg_algo algo;
static struct kg_policy_batch b;
static struct kg_policy_grad g;
static struct kg_policy_metric rows[KG_POLICY_METRICS_MAX];
static size_t n_rows;

static void prepare(void)
{
    kg_algo_init(&algo);
    must_set(&algo, "algo.surrogate", "dppo-binary-tv");
    must_set(&algo, "algo.delta_low", "0.07");
    must_set(&algo, "algo.delta_high", "0.25");
    for (int n = 0; n < N; n++) {
        logp[n] = log(p[n]);
        mu_logp[n] = log(mu[n]);
        weight[n] = 0.2;
        entropy[n] = 0.1 * n;
    }
    b = (struct kg_policy_batch){.n_seqs = 2,
                                 .n_tokens = N,
                                 .seq_begin = begin,
                                 .logp = logp,
                                 .old_logp = mu_logp,
                                 .advantage = advantage,
                                 .entropy = entropy,
                                 .pg_weight = weight};
    g = (struct kg_policy_grad){.a_logp = a};
}

static void evaluate(void)
{
    struct kg_err err;

    if (kg_policy_loss(&g, &algo, &b, &err) != KG_OK)
        fail_msg("%s", err.message);
}

static void expect(const char *name, double want)
{
    for (size_t i = 0; i < n_rows; i++)
        if (strcmp(rows[i].name, name) == 0) {
            if (!(fabs(rows[i].value - want) < 1e-12))
                fail_msg("%s: %.15g, expected %.15g", name, rows[i].value, want);
            return;
        }
    fail_msg("%s is not listed", name);
}

static void expect_mismatch(const struct kg_policy_metrics *m)
{
    double logs = 0, mus = 0, k3 = 0, weights = 0, squares = 0;

    for (int n = 0; n < N; n++) {
        logs += log(p[n]) / N;
        mus += log(mu[n]) / N;
        k3 += (p[n] / mu[n] - 1 - log(p[n] / mu[n])) / N;
        weights += p[n] / mu[n];
        squares += p[n] * p[n] / mu[n] / mu[n];
    }
    n_rows = kg_policy_mismatch_list(rows, m);
    expect("mismatch/prob_mean", (0.1 + 0.1 + 0.3 + 0.05) / N);
    expect("mismatch/prob_std", sqrt((0.01 + 0.01 + 0.09 + 0.0025) / N - 0.11 * 0.11));
    expect("mismatch/prob_max", 0.3);
    expect("mismatch/kl_k1", mus - logs);
    expect("mismatch/kl_k3", k3);
    expect("mismatch/perplexity", exp(-logs));
    expect("mismatch/perplexity_sampler", exp(-mus));
    expect("mismatch/weight_mean", weights / N);
    expect("mismatch/weight_max", 1.5);
    expect("mismatch/weight_ess", weights * weights / N / squares);
}

static void ranges_and_what_was_dropped(void **state)
{
    (void)state;
    prepare();
    evaluate();
    n_rows = kg_policy_metrics_list(rows, &algo, &g.metrics);
    expect("policy/outside_low", 1.0 / N); /* 0.5; the bounds are 0.8 and 1.2 */
    expect("policy/outside_high", 2.0 / N);
    expect("region/masked_positive", 1.0 / 3); /* 0.6 -> 0.9 */
    expect("region/masked_positive_p", 0.9);
    expect("region/masked_positive_mu", 0.6);
    expect("region/masked_positive_ratio", 1.5);
    expect("region/masked_positive_entropy", 0.3);
    expect("region/masked_negative", 1.0 / 2); /* 0.2 -> 0.1 */
    expect("region/masked_negative_p", 0.1);
    expect("region/masked_negative_mu", 0.2);
    expect("region/masked_negative_ratio", 0.5);
    expect("region/masked_negative_entropy", 0.1);
    expect_mismatch(&g.metrics);
}

static void micro_batches_add_up_to_the_whole(void **state)
{
    static const int64_t second[] = {0, N - 3};
    struct kg_policy_metrics sum = {0};

    (void)state;
    prepare();
    b.n_seqs = 1, b.n_tokens = 3;
    evaluate();
    kg_policy_metrics_merge(&sum, &g.metrics);
    b.n_tokens = N - 3, b.seq_begin = second;
    b.logp += 3, b.old_logp += 3, b.advantage += 3, b.entropy += 3, b.pg_weight += 3;
    evaluate();
    kg_policy_metrics_merge(&sum, &g.metrics);
    expect_mismatch(&sum);
    n_rows = kg_policy_metrics_list(rows, &algo, &sum);
    expect("policy/outside_high", 2.0 / N);
    expect("region/masked_positive_p", 0.9);
    expect("region/masked_negative_entropy", 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_and_what_was_dropped),
        cmocka_unit_test(micro_batches_add_up_to_the_whole),
    };

    return cmocka_run_group_tests_name("policy/metrics", tests, NULL, NULL);
}
