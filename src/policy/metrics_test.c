/* Metrics of the loss, by hand on five tokens: ratios outside bounds, the gap to the
 * sampler, what a region masks. */
#include "policy/policy_testing.h"

enum { N = 5, K = 2 };

static const int64_t begin[] = {0, 3, N};
static const double p[N] = {0.5, 0.1, 0.4, 0.9, 0.2};
static const double mu[N] = {0.5, 0.2, 0.3, 0.6, 0.25};
static const double advantage[N] = {1, -1, 1, 1, -1};
static double logp[N], mu_logp[N], weight[N], entropy[N], a[N];
static double old[N], anchor[N], kl_weight[N], at[N * K], anchor_at[N * K], a_at[N * K];
static double a_entropy[N], term[N];
static int32_t token[N], ids[N * K];
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

/* One token of the batch as a whole batch. */
static void only_token(int n)
{
    static const int64_t one[] = {0, 1};

    b.n_seqs = b.n_tokens = 1;
    b.seq_begin = one;
    b.tokens = &token[n];
    b.logp = &logp[n], b.old_logp = &old[n], b.mu_logp = &mu_logp[n];
    b.anchor_logp = &anchor[n], b.advantage = &advantage[n], b.entropy = &entropy[n];
    b.pg_weight = b.entropy_weight = &weight[n];
    b.kl_weight = &kl_weight[n];
    b.ids = &ids[n * K], b.logp_at = &at[n * K], b.anchor_at = &anchor_at[n * K];
}

/* A region, a KL on a head of two ids with importance weights, weights old/sampler (1.11,
 * 1.05, 1, 0.95, 0.90), and entropy: every metric of tokens that can be listed. The third
 * token has no KL, the first no policy term. */
static void prepare_all(void)
{
    prepare();
    must_set(&algo, "anchor.kind", "fixed");
    must_set(&algo, "kl.estimator", "topk-reverse");
    must_set(&algo, "kl.beta", "0.5");
    must_set(&algo, "kl.top_k", "2");
    must_set(&algo, "kl.importance", "true");
    must_set(&algo, "algo.entropy_coef", "0.1");
    must_set(&algo, "algo.tis", "1.04");
    must_set(&algo, "algo.tis_low", "0.96");
    for (int n = 0; n < N; n++) {
        token[n] = n;
        old[n] = mu_logp[n] - 0.05 * (n - 2);
        anchor[n] = logp[n] + 0.3 * (n - 1);
        kl_weight[n] = n == 2 ? 0 : 0.25;
        weight[n] = n == 0 ? 0 : 0.25;
        for (int j = 0; j < K; j++) {
            ids[n * K + j] = n + j; /* the token and one more */
            at[n * K + j] = j == 0 ? logp[n] : log(0.04);
            anchor_at[n * K + j] = j == 0 ? anchor[n] : log(0.03 + 0.01 * n);
        }
    }
    ids[4 * K] = 9; /* the last token is not in its head */
    b.tokens = token, b.old_logp = old, b.mu_logp = mu_logp, b.anchor_logp = anchor;
    b.kl_weight = kl_weight, b.entropy_weight = weight;
    b.k_sampler = K, b.ids = ids, b.logp_at = at, b.anchor_at = anchor_at;
    g.a_at = a_at, g.a_entropy = a_entropy;
}

static void every_number_is_the_same_from_single_tokens(void **state)
{
    struct kg_policy_metrics sum = {0};
    struct kg_policy_metric whole[KG_POLICY_METRICS_MAX];
    struct kg_policy_metrics all;
    size_t n_whole;

    (void)state;
    prepare_all();
    evaluate();
    all = g.metrics;
    n_whole = kg_policy_metrics_list(whole, &algo, &all);
    for (int n = N - 1; n >= 0; n--) {
        only_token(n);
        evaluate();
        assert_int_equal(kg_policy_metrics_list(rows, &algo, &g.metrics), n_whole);
        kg_policy_metrics_merge(&sum, &g.metrics);
    }
    n_rows = kg_policy_metrics_list(rows, &algo, &sum);
    assert_int_equal(n_rows, n_whole);
    for (size_t i = 0; i < n_whole; i++)
        expect(whole[i].name, whole[i].value);
    assert_true(all.clips > 0 && all.clips_lower > 0 && all.clips_lower < all.clips);
    assert_int_equal(sum.clips, all.clips);
    assert_int_equal(sum.clips_lower, all.clips_lower);
    assert_int_equal(sum.positive, all.positive);
    assert_int_equal(sum.negative, all.negative);
}

/* Merging into zeros copies every field; if two rows were about one field, it would be
 * added twice, and another would be omitted. */
static void every_field_is_merged_once(void **state)
{
    enum { FIELDS = sizeof(struct kg_policy_metrics) / sizeof(double) };
    struct kg_policy_metrics from, sum = {0};
    double field[FIELDS];

    (void)state;
    for (int i = 0; i < FIELDS; i++)
        field[i] = 1.5 + i; /* as an integer not 0 either */
    memcpy(&from, field, sizeof from);
    kg_policy_metrics_merge(&sum, &from);
    assert_memory_equal(&sum, &from, sizeof sum);
}

static void every_number_by_hand(void **state)
{
    double entropies = 0, kl_max = -INFINITY, weights = 0, squares = 0, gaps = 0;
    double old_gaps = 0, old_gap_max = 0, k1 = 0, k3 = 0;

    (void)state;
    prepare_all();
    g.kl_term = term;
    evaluate();
    n_rows = kg_policy_metrics_list(rows, &algo, &g.metrics);
    for (int n = 0; n < N; n++) {
        double gap = logp[n] - old[n], s = exp(gap);

        if (n > 0) { /* the first has no policy term */
            old_gaps += fabs(gap) / (N - 1);
            old_gap_max = fmax(old_gap_max, fabs(gap));
            k1 -= gap / (N - 1);
            k3 += (s - 1 - gap) / (N - 1);
        }
        entropies += entropy[n] / N;
        gaps += n == 0 ? 0 : fabs(old[n] - mu_logp[n]) / (N - 1);
        if (n == 2)
            continue;
        kl_max = fmax(kl_max, term[n]);
        weights += s;
        squares += s * s;
    }
    expect("policy/tokens", N);
    expect("policy/entropy", entropies);
    expect("policy/mismatch_mean", gaps);
    expect("policy/gap_mean", old_gaps);
    expect("policy/gap_max", old_gap_max);
    expect("policy/kl_old_k1", k1);
    expect("policy/kl_old_k3", k3);
    expect("policy/mismatch_max", 0.1);
    expect("policy/tis_outside", 3.0 / (N - 1));
    expect("policy/prob_gap_min", -0.1);
    expect("policy/prob_gap_max", 0.3);
    expect("kl/tail_tokens", 1.0 / (N - 1));
    expect("kl/iw_mean", weights / (N - 1));
    expect("kl/iw_ess", weights * weights / (N - 1) / squares);
    expect("kl/head_mass", (0.5 + 0.1 + 0.9 + 0.2) / (N - 1) + 0.04);
    assert_true(g.metrics.kl_tokens == N - 1 && g.metrics.kl_max > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_and_what_was_dropped),
        cmocka_unit_test(micro_batches_add_up_to_the_whole),
        cmocka_unit_test(every_number_is_the_same_from_single_tokens),
        cmocka_unit_test(every_field_is_merged_once),
        cmocka_unit_test(every_number_by_hand),
    };

    return cmocka_run_group_tests_name("policy/metrics", tests, NULL, NULL);
}
