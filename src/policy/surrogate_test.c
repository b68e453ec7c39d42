/* Policy-gradient terms: derivatives by finite differences, expectations by enumeration,
 * regions, and what must be equal bit for bit. */
#include "base/mem.h"
#include "policy/policy_internal.h"
#include "policy/policy_testing.h"

enum { N = 6, S = 2 };

/* Two sequences of 4 and 2 tokens, ratios away from every kink of clip 0.2 / 0.28 and
 * dual clip 3. */
struct fixture {
    struct kg_algo algo;
    struct kg_policy_batch b;
    struct kg_policy_grad g;
    int64_t begin[S + 1];
    double logp[N], old[N], mu[N], advantage[N], weight[N], a[N], term[N], a_kept[N];
    double kept[N], old_kept[N], entropy[N], a_entropy[N];
    uint8_t selected[N];
};
static struct fixture f;

static void fixture_init(const char *surrogate)
{
    static const double old[N] = {-1.2, -0.9, -2.0, -1.9, -1.5, -0.7};
    static const double gap[N] = {0.1, 0.5, -0.6, 1.5, -0.1, -0.4};
    static const double advantage[N] = {0.7, 0.7, -0.8, -0.8, 1.1, -0.3};

    memset(&f, 0, sizeof f);
    kg_algo_init(&f.algo);
    must_set(&f.algo, "algo.surrogate", surrogate);
    must_set(&f.algo, "algo.clip_high", "0.28");
    must_set(&f.algo, "algo.dual_clip", "3");
    f.begin[1] = 4, f.begin[2] = 6;
    for (int n = 0; n < N; n++) {
        f.old[n] = old[n];
        f.mu[n] = old[n] + 0.05 * (n - 2);
        f.logp[n] = old[n] + gap[n];
        f.advantage[n] = advantage[n];
        f.weight[n] = n < 4 ? 0.125 : 0.25; /* one weight per sequence */
        f.selected[n] = n % 2;
    }
    f.b = (struct kg_policy_batch){.n_seqs = S,
                                   .n_tokens = N,
                                   .seq_begin = f.begin,
                                   .logp = f.logp,
                                   .old_logp = f.old,
                                   .mu_logp = f.mu,
                                   .advantage = f.advantage,
                                   .pg_weight = f.weight,
                                   .selected = f.selected};
    f.g = (struct kg_policy_grad){.a_logp = f.a, .pg_term = f.term};
}

static double loss(void)
{
    struct kg_err err;

    if (kg_policy_loss(&f.g, &f.algo, &f.b, &err) != KG_OK)
        fail_msg("%s: %s", f.algo.surrogate->about.name, err.message);
    return f.g.loss;
}

static void differences_match(void)
{
    double a[N];

    loss();
    memcpy(a, f.a, sizeof a);
    for (int n = 0; n < N; n++) {
        double at = f.logp[n], h = 1e-6, up, down;

        f.logp[n] = at + h;
        up = loss();
        f.logp[n] = at - h;
        down = loss();
        f.logp[n] = at;
        if (fabs((up - down) / (2 * h) - a[n]) > 1e-8)
            fail_msg("%s, token %d: difference %.12g, coefficient %.12g",
                     f.algo.surrogate->about.name, n, (up - down) / (2 * h), a[n]);
    }
}

static void differentiable_rows_match_finite_differences(void **state)
{
    static const char *const rows[] = {
        "ppo-clip", "importance", "reinforce", "gpg",          "sapo",    "gmpo",
        "kl-cov",   "clip-cov",   "rpg-fkl",   "rpg-ufkl",     "rpg-rkl", "rpg-urkl",
        "ipo",      "m2po",       "drpo",      "m2po-released"};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fixture_init(rows[i]);
        f.algo.kl_beta = 0.03;
        f.algo.rpg_detach = false;
        differences_match();
    }
}

static void detached_rows_are_a_constant_times_the_score(void **state)
{
    static const char *const rows[] = {
        "cispo",      "pg-is",  "dppo-binary-tv", "dppo-binary-kl",
        "ratio-mask", "minirl", "rpg-rf-urkl",    "rpg-rf-fkl",
        "vespo",      "cppo",   "cppo-calibrated"};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fixture_init(rows[i]);
        f.algo.kl_beta = 0.03;
        loss();
        for (int n = 0; n < N; n++)
            assert_near(f.term[n] * f.weight[n], f.a[n] * f.logp[n], 1e-14);
    }
}

static void ppo_clip_is_flat_beyond_its_bounds(void **state)
{
    (void)state;
    fixture_init("ppo-clip");
    loss();
    assert_true(f.a[0] < 0);
    assert_true(f.a[1] == 0); /* A > 0, ratio e^0.5 > 1.28 */
    assert_true(f.a[2] == 0); /* A < 0, ratio e^-0.6 < 0.8 */
    assert_true(f.a[3] == 0); /* A < 0, ratio e^1.5 > 3: the dual clip */
    assert_near(f.term[1], -0.7 * 1.28, 1e-15);
    assert_near(f.term[2], 0.8 * 0.8, 1e-15);
    assert_near(f.term[3], 0.8 * 3, 1e-15);
    assert_int_equal(f.g.metrics.clip_high, 1);
    assert_int_equal(f.g.metrics.clip_low, 2);
    assert_int_equal(f.g.metrics.clip_dual, 1);
    assert_near(f.g.metrics.ratio_max, exp(1.5), 1e-14);
    f.algo.dual_clip = 0;
    loss();
    assert_near(f.term[3], 0.8 * exp(1.5), 1e-15);
    assert_true(f.a[3] != 0);
}

/* The weight is 1 at mu, 0 where p has moved by delta in the direction of A, and of the
 * other sign beyond; in the direction against A it grows. */
static void drpo_turns_back_beyond_its_region(void **state)
{
    (void)state;
    for (int i = -5; i <= 5; i++) {
        double mu = 0.4, p = mu + 0.06 * i, delta = 0.15;

        fixture_init("drpo");
        for (int n = 0; n < N; n++) {
            f.advantage[n] = n % 2 ? -2 : 2;
            f.mu[n] = log(mu), f.logp[n] = log(p);
        }
        loss();
        for (int n = 0; n < N; n++) {
            double up = n % 2 ? -1 : 1,
                   c = -2 * up * (1 - up * (p - mu) / delta) * p / mu;

            assert_near(f.a[n], c * f.weight[n], 1e-14);
            assert_true(up * (p - mu) < delta ? f.a[n] * up < 0 : f.a[n] * up > 0);
        }
    }
}

/* Six tokens that all move away by 0.1, under delta 0.15. With weights of 1 and a budget
 * of 0.08, the fourth has 0.15 - 3 * 0.02 left. */
static void cppo_tightens_as_the_prefix_drifts(void **state)
{
    static const struct {
        const char *weight, *budget;
        int first; /* first of the six tokens that is masked */
    } rows[] = {{"1", "0.08", 3},     {"1", "0.095", 6},  {"1", "0.11", 6},
                {"1", "0.04", 1},     {"1", "0", 1},      {"0.5", "0.08", 6},
                {"0.5", "0", 1},      {"0.8", "0.08", 4}, {"0.8", "0.06", 2},
                {"0.001", "0.08", 6}, {"0.001", "0", 1}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int up = 0; up < 2; up++) {
            fixture_init("cppo");
            must_set(&f.algo, "algo.prefix_weight", rows[i].weight);
            must_set(&f.algo, "algo.prefix_budget", rows[i].budget);
            f.b.n_seqs = 1;
            f.begin[1] = N;
            for (int n = 0; n < N; n++) {
                f.advantage[n] = up ? 1 : -1;
                f.mu[n] = log(0.5), f.logp[n] = log(up ? 0.6 : 0.4);
            }
            loss();
            for (int n = 0; n < N; n++)
                if ((f.a[n] == 0) != (n >= rows[i].first))
                    fail_msg("row %zu, token %d: coefficient %g", i, n, f.a[n]);
        }
}

/* In each sequence, one token has the ratio w and the others 1. phi is 1 at w = 1, and
 * largest at w = k / lambda. */
static void vespo_weighs_by_the_ratio_of_the_sequence(void **state)
{
    static const double logs[] = {
        -30, -3, -1, -0.4054651081081644, -0.1, 0, 0.1, 0.4054651081081644, 1, 2, 15};

    (void)state;
    for (size_t i = 0; i < sizeof logs / sizeof logs[0]; i++) {
        double x = fmax(fmin(logs[i], 20), -20), w = exp(x), phi[2];

        fixture_init("vespo");
        for (int n = 0; n < N; n++) {
            f.advantage[n] = n < 4 ? 1 : -1;
            f.logp[n] = f.mu[n] + (n == 0 || n == 4 ? logs[i] : 0);
        }
        loss();
        phi[0] = pow(fmax(w, 1e-8), 2) * exp(3 * (1 - w));
        phi[1] = pow(fmax(w, 1e-8), 3) * exp(2 * (1 - w));
        for (int n = 0; n < N; n++) {
            double c = n < 4 ? -phi[0] : phi[1];

            assert_near(f.a[n], c * f.weight[n], 1e-14);
            assert_near(f.term[n], c * f.logp[n], 1e-13);
            assert_true(fabs(f.a[n]) <=
                        f.weight[n] *
                            (n < 4 ? pow(2 / 3.0, 2) * exp(1) : pow(1.5, 3) * exp(-1)) *
                            (1 + 1e-12));
        }
    }
}

static void gspo_clips_whole_sequences(void **state)
{
    double mean, s;

    (void)state;
    fixture_init("gspo");
    must_set(&f.algo, "algo.clip_low", "0.01");
    must_set(&f.algo, "algo.clip_high", "0.01");
    loss();
    mean = (0.1 + 0.5 - 0.6 + 1.5) / 4;
    s = exp(mean);
    assert_true(f.a[0] == 0 && f.a[1] == 0); /* A > 0, s above */
    assert_near(f.a[2], 0.125 * 0.8 * s, 1e-14);
    assert_near(f.a[3], 0.125 * 0.8 * s, 1e-14);
}

static void a_region_drops_only_what_leads_away(void **state)
{
    (void)state;
    fixture_init("dppo-binary-tv");
    must_set(&f.algo, "algo.delta_low", "0.05");
    must_set(&f.algo, "algo.delta_high", "0.05");
    loss();
    for (int n = 0; n < N; n++) {
        double p = exp(f.logp[n]), mu = exp(f.mu[n]);
        bool away = f.advantage[n] > 0 ? p > mu : p < mu;

        assert_int_equal(f.a[n] == 0, away && fabs(p - mu) > 0.05);
    }
    assert_true(f.g.metrics.masked_positive + f.g.metrics.masked_negative > 0);
    must_set(&f.algo, "algo.surrogate", "pg-is");
    must_set(&f.algo, "algo.truncate", "1.1");
    loss();
    for (int n = 0; n < N; n++)
        assert_near(f.a[n],
                    -f.weight[n] * f.advantage[n] * fmin(exp(f.logp[n] - f.mu[n]), 1.1),
                    1e-15);
}

/* A token at its bound stays; with the bound one ulp lower, it is masked. */
static void a_divergence_at_its_bound_is_within(void **state)
{
    static const char *const keys[] = {"algo.delta_high", "algo.delta_low"};

    (void)state;
    for (int low = 0; low < 2; low++) {
        int n = low ? 2 : 1; /* up where A > 0, down where A < 0 */

        for (int below = 0; below < 2; below++) {
            char text[32];
            double bound;

            fixture_init("dppo-binary-tv");
            bound = fabs(exp(f.logp[n]) - exp(f.mu[n]));
            snprintf(text, sizeof text, "%.17g", below ? nextafter(bound, 0) : bound);
            must_set(&f.algo, keys[low], text);
            must_set(&f.algo, keys[1 - low], "1");
            loss();
            assert_int_equal(f.a[n] == 0, below);
        }
    }
}

static double binary_kl_of(double mu, double p)
{
    return mu * log(mu / p) + (1 - mu) * log((1 - mu) / (1 - p));
}

static void topk_divergences_bound_the_exact_ones_from_below(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct world w = world_of(seed, true);
        int32_t ids[VOCAB];
        double at[VOCAB], mu_at[VOCAB], exact_tv = 0, exact_kl = kl_of(w.lo, w.lp);

        largest(ids, VOCAB, w.lo);
        for (int j = 0; j < VOCAB; j++) {
            at[j] = w.lp[ids[j]];
            mu_at[j] = w.lo[ids[j]];
            exact_tv += fabs(w.o[j] - w.p[j]) / 2;
        }
        for (int y = 0; y < VOCAB; y++) {
            struct kg_pg_in in = {.logp = w.lp[y],
                                  .old = w.lo[y],
                                  .mu = w.lo[y],
                                  .ids = ids,
                                  .at = at,
                                  .mu_at = mu_at,
                                  .k = VOCAB,
                                  .token = y};
            double tv, kl, binary;

            kg_pg_topk_divergence(&tv, &binary, &in, 0); /* S' = {y}: the binary one */
            assert_near(tv, fabs(w.o[y] - w.p[y]), 1e-12);
            assert_near(binary, binary_kl_of(w.o[y], w.p[y]), 1e-10);
            for (int k = 0; k <= VOCAB; k++) {
                kg_pg_topk_divergence(&tv, &kl, &in, k);
                assert_true(tv <= exact_tv + 1e-12);
                assert_true(kl <= exact_kl + 1e-10);
                assert_true(kl >= -1e-12);
            }
            assert_near(tv, exact_tv, 1e-11);
            assert_near(kl, exact_kl, 1e-10);
        }
    }
}

/* A missing id counts nowhere, an id that the sampler could not sample adds nothing to
 * the KL, and a token outside the recorded ids has its own bucket. */
static void topk_divergences_have_a_bucket_for_each_id(void **state)
{
    static const int32_t ids[] = {0, -1, 5, 4};
    const double at[] = {log(0.25), 0, log(0.25), NAN},
                 mu_at[] = {log(0.5), 0, -INFINITY, NAN};
    struct kg_pg_in in = {.logp = log(0.125),
                          .mu = log(0.25),
                          .ids = ids,
                          .at = at,
                          .mu_at = mu_at,
                          .k = 3,
                          .token = 5};
    double tv, kl;

    (void)state;
    for (int k = 3; k < 5; k++) { /* k is at most what was recorded */
        kg_pg_topk_divergence(&tv, &kl, &in, k);
        assert_near(tv, (0.25 + 0.25 + 0) / 2, 1e-15);
        assert_near(kl, 0.5 * log(2), 1e-15);
    }
    in.token = 7;
    kg_pg_topk_divergence(&tv, &kl, &in, 3);
    assert_near(tv, (0.25 + 0.25 + 0.125 + 0.125) / 2, 1e-15);
    assert_near(kl, 0.5 * log(2) + 0.25 * log(2) + 0.25 * log(0.25 / 0.375), 1e-15);
}

/* Under the old policy, with nothing clipped, the expected gradient is that of
 * -E_p[R] + beta D(p, old). */
static void rpg_losses_have_the_gradient_of_their_objective(void **state)
{
    static const struct {
        const char *name;
        bool forward;
    } rows[] = {{"rpg-fkl", true},
                {"rpg-ufkl", true},
                {"rpg-rkl", false},
                {"rpg-urkl", false},
                {"rpg-reinforce-fkl", true},
                {"rpg-reinforce-ufkl", true},
                {"rpg-reinforce-rkl", false},
                {"rpg-reinforce-urkl", false}};
    static struct sweep s;

    (void)state;
    for (int i = 0; i < 16; i++)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            struct world w = world_of((uint64_t)i, true);
            double reward[VOCAB], kl[VOCAB], mean = 0, want[VOCAB];

            normals(reward, (uint64_t)i, 7, 1);
            sweep_init(&s, &w);
            must_set(&s.algo, "anchor.kind", "none");
            must_set(&s.algo, "algo.surrogate", rows[r].name);
            s.algo.clip_low = 1, s.algo.clip_high = 1e9, s.algo.dual_clip = 0;
            s.algo.kl_beta = 0.3;
            s.algo.rpg_detach = i % 2;
            s.b.pg_weight = s.weight;
            for (int v = 0; v < VOCAB; v++) {
                s.advantage[v] = reward[v];
                mean += w.p[v] * reward[v];
            }
            if (rows[r].forward)
                forward_gradient(kl, &w, w.o);
            else
                reverse_gradient(kl, &w, w.lo);
            for (int v = 0; v < VOCAB; v++)
                want[v] = -w.p[v] * (reward[v] - mean) + 0.3 * kl[v];
            sweep_run(&s, &w);
            assert_near(farthest(s.grad, want), 0, 1e-10);
        }
}

static void algorithm_two_stops_where_it_says(void **state)
{
    (void)state;
    fixture_init("rpg-reinforce-ufkl"); /* beta 0: psi has the sign of A */
    loss();
    assert_near(f.a[0], -0.125 * 0.7 * exp(0.1), 1e-15);
    assert_true(f.a[1] == 0 && f.a[2] == 0 && f.a[3] == 0);
    assert_near(f.a[5], 0, 0); /* A < 0, ratio e^-0.4 < 0.8 */
    f.algo.kl_beta = 100; /* -beta (r - 1) outweighs A: the branch follows A + C / r */
    loss();
    assert_true(f.a[1] != 0); /* C = 100 (1 - r) < 0, and r = 1.65 < c */
}

static void families_agree_bit_for_bit_on_policy(void **state)
{
    static const char *const rows[] = {"ppo-clip",
                                       "importance",
                                       "cispo",
                                       "pg-is",
                                       "dppo-binary-tv",
                                       "dppo-binary-kl",
                                       "ratio-mask",
                                       "minirl",
                                       "rpg-ufkl",
                                       "rpg-urkl",
                                       "rpg-reinforce-ufkl",
                                       "rpg-reinforce-urkl",
                                       "reinforce"};
    double first[N];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fixture_init(rows[i]);
        f.algo.kl_beta = 1e-4;
        memcpy(f.logp, f.old, sizeof f.logp);
        memcpy(f.mu, f.old, sizeof f.mu);
        loss();
        if (i == 0)
            memcpy(first, f.a, sizeof first);
        assert_memory_equal(first, f.a, sizeof first);
    }
}

static void renormalised_ratios_are_one_on_policy_and_differentiable(void **state)
{
    (void)state;
    fixture_init("ppo-clip");
    for (int n = 0; n < N; n++) {
        f.old_kept[n] = -0.1 - 0.02 * n;
        f.kept[n] = f.old_kept[n] + 0.03 * (n - 2);
    }
    f.b.log_kept = f.kept, f.b.old_log_kept = f.old_kept;
    f.g.a_log_kept = f.a_kept;
    differences_match();
    loss();
    for (int n = 0; n < N; n++)
        assert_true(f.a_kept[n] == -f.a[n]);
    memcpy(f.logp, f.old, sizeof f.logp);
    memcpy(f.kept, f.old_kept, sizeof f.kept);
    loss();
    assert_true(f.g.metrics.ratio_min == 1 && f.g.metrics.ratio_max == 1);
    f.b.old_log_kept = NULL;
    {
        struct kg_err err;

        assert_int_equal(kg_policy_loss(&f.g, &f.algo, &f.b, &err), KG_EINVAL);
        assert_non_null(strstr(err.message, "old_log_kept"));
    }
}

static void sampler_mismatch_is_weighted_and_capped(void **state)
{
    double plain[N];

    (void)state;
    fixture_init("ppo-clip");
    f.algo.dual_clip = 0;
    loss();
    memcpy(plain, f.a, sizeof plain);
    must_set(&f.algo, "algo.tis", "1.04");
    loss();
    for (int n = 0; n < N; n++)
        assert_near(f.a[n], plain[n] * fmin(exp(f.old[n] - f.mu[n]), 1.04), 1e-15);
    must_set(&f.algo, "algo.tis_level", "sequence");
    loss();
    assert_near(f.a[0], plain[0] * fmin(exp(0.05 * (2 + 1 + 0 - 1)), 1.04), 1e-15);
    assert_near(f.g.metrics.mismatch_max, 0.15, 1e-15);
}

/* Weights old/sampler: 1.1, 1.05, 1, 0.95, 0.9, 0.86. */
static void a_weight_outside_its_bounds_is_cut_or_popped(void **state)
{
    double plain[N];

    (void)state;
    fixture_init("importance");
    loss();
    memcpy(plain, f.a, sizeof plain);
    assert_int_equal(f.g.metrics.tis_outside, 0);
    must_set(&f.algo, "algo.tis", "1.08");
    must_set(&f.algo, "algo.tis_low", "0.92");
    loss();
    for (int n = 0; n < N; n++)
        assert_near(f.a[n], plain[n] * fmin(fmax(exp(f.old[n] - f.mu[n]), 0.92), 1.08),
                    1e-15);
    assert_int_equal(f.g.metrics.tis_outside, 3);
    must_set(&f.algo, "algo.mask", "icepop");
    loss();
    for (int n = 0; n < N; n++)
        assert_near(f.a[n], n == 0 || n > 3 ? 0 : plain[n] * exp(f.old[n] - f.mu[n]),
                    1e-15);
    assert_true(f.a[1] != 0 && f.a[3] != 0);
    assert_int_equal(f.g.metrics.tis_outside, 3);
    /* of whole sequences: exp(0.05 (2 + 1 + 0 - 1)) = 1.105, and exp(-0.25) = 0.78 */
    must_set(&f.algo, "algo.tis_level", "sequence");
    must_set(&f.algo, "algo.tis", "1.2");
    loss();
    for (int n = 0; n < N; n++)
        assert_near(f.a[n], n < 4 ? plain[n] * exp(0.1) : 0, 1e-15);
    /* a weight at its bound stays */
    must_set(&f.algo, "algo.tis_level", "token");
    f.algo.tis = exp(f.old[0] - f.mu[0]), f.algo.tis_low = exp(f.old[5] - f.mu[5]);
    loss();
    assert_true(f.a[0] == plain[0] * f.algo.tis && f.a[5] == plain[5] * f.algo.tis_low);
}

/* Beyond delta to either side, whatever the advantage, only the squared log-ratio is
 * left; inside, -A r is added. */
static void ipo_masks_both_ways(void **state)
{
    (void)state;
    fixture_init("ipo");
    must_set(&f.algo, "algo.delta_low", "0.05");
    must_set(&f.algo, "algo.delta_high", "0.1");
    f.algo.kl_beta = 0.02;
    loss();
    for (int n = 0; n < N; n++) {
        double x = f.logp[n] - f.mu[n], gap = exp(f.logp[n]) - exp(f.mu[n]);
        bool far = gap > 0.1 || gap < -0.05;

        assert_near(f.term[n], (far ? 0 : -f.advantage[n] * exp(x)) + 0.02 * x * x,
                    1e-14);
        assert_near(f.a[n] / f.weight[n], (far ? 0 : -f.advantage[n] * exp(x)) + 0.04 * x,
                    1e-14);
    }
    /* token 1 rose by 0.24 with A > 0, token 3 by 0.5 with A < 0: dppo keeps that */
    assert_int_equal(f.g.metrics.masked_positive, 1);
    assert_int_equal(f.g.metrics.masked_negative, 3);
    fixture_init("dppo-binary-tv");
    must_set(&f.algo, "algo.delta_low", "0.05");
    must_set(&f.algo, "algo.delta_high", "0.1");
    loss();
    assert_true(f.a[1] == 0 && f.a[3] != 0);
}

static void entropy_enters_with_its_own_weight(void **state)
{
    (void)state;
    fixture_init("ppo-clip");
    must_set(&f.algo, "algo.entropy_coef", "0.5");
    for (int n = 0; n < N; n++)
        f.entropy[n] = n;
    f.b.entropy = f.entropy, f.b.entropy_weight = f.weight;
    f.g.a_entropy = f.a_entropy;
    loss();
    assert_near(f.g.entropy, 0.125 * (0 + 1 + 2 + 3) + 0.25 * (4 + 5), 1e-15);
    assert_near(f.g.loss, f.g.pg - 0.5 * f.g.entropy, 1e-15);
    for (int n = 0; n < N; n++)
        assert_true(f.a_entropy[n] == -0.5 * f.weight[n]);
}

/* The same tokens in one micro-batch and in two: same coefficients, and metrics that add
 * up. */
static void splitting_the_batch_changes_nothing(void **state)
{
    static const char *const rows[] = {"ppo-clip", "gspo",           "gmpo",
                                       "kl-cov",   "dppo-binary-kl", "vespo",
                                       "cppo",     "cppo-calibrated"};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kg_policy_metrics whole, sum = {0};
        struct kg_policy_batch all;
        double a[N], total = 0, whole_loss;
        int64_t second[2] = {0, 2};

        fixture_init(rows[i]);
        whole_loss = loss();
        whole = f.g.metrics;
        memcpy(a, f.a, sizeof a);
        all = f.b;
        f.b.n_seqs = 1, f.b.n_tokens = 4;
        total += loss();
        kg_policy_metrics_merge(&sum, &f.g.metrics);
        assert_memory_equal(a, f.a, 4 * sizeof *a);
        f.b = all;
        f.b.n_seqs = 1, f.b.n_tokens = 2, f.b.seq_begin = second;
        f.b.logp += 4, f.b.old_logp += 4, f.b.mu_logp += 4, f.b.advantage += 4;
        f.b.pg_weight += 4, f.b.selected += 4;
        total += loss();
        kg_policy_metrics_merge(&sum, &f.g.metrics);
        assert_memory_equal(a + 4, f.a, 2 * sizeof *a);
        assert_near(total, whole_loss, 1e-15);
        assert_int_equal(sum.tokens, whole.tokens);
        assert_int_equal(sum.clips, whole.clips);
        assert_true(sum.ratio_max == whole.ratio_max && sum.ratio_min == whole.ratio_min);
        assert_near(sum.k1_sum, whole.k1_sum, 1e-14);
    }
}

static void what_is_missing_is_named(void **state)
{
    struct kg_err err;

    (void)state;
    fixture_init("dppo-topk-kl");
    assert_int_equal(kg_policy_loss(&f.g, &f.algo, &f.b, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "ids for dppo-topk-kl"));
    fixture_init("kl-cov");
    f.b.selected = NULL;
    assert_int_equal(kg_policy_loss(&f.g, &f.algo, &f.b, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "selected for kl-cov"));
    fixture_init("ppo-clip");
    must_set(&f.algo, "anchor.kind", "ema");
    must_set(&f.algo, "kl.estimator", "k3");
    assert_int_equal(kg_policy_loss(&f.g, &f.algo, &f.b, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "anchor_logp for k3"));
}

static void a_number_that_is_not_finite_is_reported_with_its_place(void **state)
{
    struct kg_err err;

    (void)state;
    fixture_init("ppo-clip");
    f.logp[5] = NAN;
    assert_int_equal(kg_policy_loss(&f.g, &f.algo, &f.b, &err), KG_ENONFINITE);
    assert_non_null(strstr(err.message, "sequence 1, loss token 1"));
    fixture_init("ppo-clip");
    f.advantage[2] = INFINITY;
    assert_int_equal(kg_policy_loss(&f.g, &f.algo, &f.b, &err), KG_ENONFINITE);
    assert_non_null(strstr(err.message, "sequence 0, loss token 2"));
    assert_non_null(strstr(err.message, "advantage"));
}

static void a_nan_is_never_clamped_away(void **state)
{
    static const char *const kls[] = {"k1", "k2", "k3", "k3++", "k4", "k5"};
    double anchor[N], kl[N] = {0};
    struct kg_err err;

    (void)state;
    for (size_t i = 0; i < kg_policy_n_rows(KG_TABLE_SURROGATE); i++) {
        const char *name = kg_policy_row(KG_TABLE_SURROGATE, i)->name;

        if (strncmp(name, "dppo-topk", 9) == 0)
            continue;
        for (int which = 0; which < 3; which++) {
            double *const inputs[] = {f.logp, f.old, f.advantage};

            fixture_init(name);
            inputs[which][3] = NAN;
            assert_int_equal(kg_policy_loss(&f.g, &f.algo, &f.b, &err), KG_ENONFINITE);
        }
    }
    for (size_t i = 0; i < sizeof kls / sizeof kls[0]; i++) {
        fixture_init("ppo-clip");
        must_set(&f.algo, "anchor.kind", "fixed");
        must_set(&f.algo, "kl.estimator", kls[i]);
        memcpy(anchor, f.old, sizeof anchor);
        anchor[1] = NAN;
        f.b.anchor_logp = anchor, f.b.kl_weight = kl;
        assert_int_equal(kg_policy_loss(&f.g, &f.algo, &f.b, &err), KG_ENONFINITE);
        assert_non_null(strstr(err.message, "log-ratio to the anchor"));
    }
}

static void an_allocation_that_fails_is_a_status(void **state)
{
    struct kg_err err;

    (void)state;
    fixture_init("ppo-clip");
    for (uint64_t n = 1; n <= 2; n++) {
        kg_mem_fail_at(n);
        assert_int_equal(kg_policy_loss(&f.g, &f.algo, &f.b, &err), KG_ENOMEM);
        kg_mem_fail_at(0);
    }
    loss();
}

static void zero_advantages_leave_nothing_to_do(void **state)
{
    (void)state;
    fixture_init("ppo-clip");
    memset(f.advantage, 0, sizeof f.advantage);
    loss();
    assert_false(f.g.any);
}

static void selection_takes_the_largest_covariances(void **state)
{
    struct kg_err err;
    uint8_t selected[N];
    int taken = 0;

    (void)state;
    fixture_init("kl-cov");
    must_set(&f.algo, "algo.cov_ratio", "0.34");
    assert_int_equal(kg_policy_select(selected, &f.algo, &f.b, &err), KG_OK);
    for (int n = 0; n < N; n++)
        taken += selected[n];
    assert_int_equal(taken, 2);
    f.weight[1] = 0; /* not in the loss: never selected */
    assert_int_equal(kg_policy_select(selected, &f.algo, &f.b, &err), KG_OK);
    assert_int_equal(selected[1], 0);
    f.logp[2] = NAN; /* then the mean is NaN, too */
    assert_int_equal(kg_policy_select(selected, &f.algo, &f.b, &err), KG_ENONFINITE);
    assert_non_null(strstr(err.message, "loss token 2"));
}

/* The tokens that clip-cov selects, as bits. */
static unsigned drawn(uint64_t seed, uint64_t draw)
{
    struct kg_err err;
    uint8_t selected[N];
    unsigned bits = 0;

    f.b.select_seed = seed;
    f.b.select_draw = draw;
    assert_int_equal(kg_policy_select(selected, &f.algo, &f.b, &err), KG_OK);
    for (int n = 0; n < N; n++)
        bits |= (unsigned)selected[n] << n;
    return bits;
}

static void random_selection_draws_every_candidate_alike(void **state)
{
    enum { DRAWS = 6000, TAKEN = 2 };
    int times[N] = {0}, candidates = 0, changes = 0;

    (void)state;
    fixture_init("clip-cov");
    must_set(&f.algo, "algo.cov_ratio", "1");
    must_set(&f.algo, "algo.cov_low", "-1e9");
    must_set(&f.algo, "algo.cov_high", "1e9");
    unsigned all = drawn(1, 0); /* every token that is not clipped */

    candidates = __builtin_popcount(all);
    assert_true(candidates > TAKEN && candidates <= N);
    must_set(&f.algo, "algo.cov_ratio", "0.34");
    for (int i = 0; i < DRAWS; i++) {
        unsigned bits = drawn(1, (uint64_t)i);

        assert_int_equal(__builtin_popcount(bits), TAKEN);
        assert_int_equal(bits & ~all, 0);
        assert_int_equal(bits, drawn(1, (uint64_t)i)); /* repeatable */
        changes += bits != drawn(2, (uint64_t)i);
        for (int n = 0; n < N; n++)
            times[n] += bits >> n & 1;
    }
    assert_true(changes > DRAWS / 4); /* the seed matters */
    f.b.select_draw = (uint64_t)1 << 56;
    assert_int_equal(kg_policy_select(&(uint8_t){0}, &f.algo, &f.b, &(struct kg_err){0}),
                     KG_EINVAL);
    for (int n = 0; n < N; n++) {
        double mean = all >> n & 1 ? (double)DRAWS * TAKEN / candidates : 0;

        if (fabs(times[n] - mean) > 5 * sqrt(mean))
            fail_msg("token %d: expected about %.0f of %d draws, found %d", n, mean,
                     DRAWS, times[n]);
    }
}

/* Tokens that each bound holds, by hand from the ratios of the fixture: 1.11 1.65 0.55
 * 4.48 0.90 0.67; the advantage is negative for the third, fourth and sixth. */
struct counts {
    const char *surrogate;
    int64_t low, high, dual; /* the bound that holds */
    int64_t clips, lower;    /* the published clip fractions */
};

static void the_tokens_that_a_bound_holds_are_counted(void **state)
{
    static const struct counts rows[] = {
        {"none", 0, 0, 0, 0, 0},       {"reinforce", 0, 0, 0, 0, 0},
        {"importance", 0, 0, 0, 0, 0}, {"ppo-clip", 2, 1, 1, 3, 1},
        {"clip-cov", 2, 1, 1, 4, 1}, /* the fourth was selected */
        {"kl-cov", 0, 0, 0, 3, 0},     {"cispo", 2, 2, 0, 4, 0},
        {"rpg-rf-fkl", 2, 2, 0, 4, 2}, {"rpg-reinforce-fkl", 2, 1, 1, 4, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct counts *r = &rows[i];
        const struct kg_policy_metrics *m = &f.g.metrics;

        fixture_init(r->surrogate);
        loss();
        if (m->clip_low != r->low || m->clip_high != r->high || m->clip_dual != r->dual ||
            m->clips != r->clips || m->clips_lower != r->lower)
            fail_msg("%s: found %d low, %d high, %d dual, clips %d and %d", r->surrogate,
                     (int)m->clip_low, (int)m->clip_high, (int)m->clip_dual,
                     (int)m->clips, (int)m->clips_lower);
        assert_near(m->ratio_max, exp(1.5), 1e-14);
        assert_near(m->ratio_min, exp(-0.6), 1e-14);
    }
}

/* A token that the sampler almost never samples: its weight is clamped to e^20 before
 * algo.tis applies. */
static void a_weight_stays_a_number_whatever_its_cap(void **state)
{
    double plain;

    (void)state;
    fixture_init("reinforce");
    loss();
    plain = f.a[0];
    must_set(&f.algo, "algo.tis", "1e30");
    f.mu[0] = f.old[0] - 800;
    loss();
    assert_near(f.a[0] / (plain * exp(20)), 1, 1e-12);
    f.mu[0] = f.old[0] - 20.5;
    loss();
    assert_near(f.a[0] / (plain * exp(20)), 1, 1e-12);
    f.mu[0] = f.old[0] + 20.5;
    loss();
    assert_near(f.a[0] / (plain * exp(-20)), 1, 1e-12);
    f.mu[0] = f.old[0] - 19.5;
    loss();
    assert_near(f.a[0] / (plain * exp(19.5)), 1, 1e-12);
}

static void a_batch_without_tokens_has_no_loss(void **state)
{
    static const int64_t empty[] = {0, 0, 0};

    (void)state;
    fixture_init("ppo-clip");
    f.b.n_tokens = 0;
    f.b.seq_begin = empty;
    assert_true(loss() == 0 && !f.g.any);
    f.b.n_seqs = 0;
    assert_true(loss() == 0 && f.g.metrics.tokens == 0);
}

/* With bounds of width 0, a ratio of 1 is on both. */
static void a_ratio_on_its_bound_is_not_cut(void **state)
{
    static const char *const rows[] = {"ppo-clip", "cispo", "gspo", "rpg-rf-urkl"};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct kg_policy_metrics *m = &f.g.metrics;

        fixture_init(rows[i]);
        must_set(&f.algo, "algo.clip_low", "0");
        must_set(&f.algo, "algo.clip_high", "0");
        memcpy(f.logp, f.old, sizeof f.logp);
        loss();
        if (m->clip_low || m->clip_high || m->clip_dual || m->clips || m->clips_lower ||
            m->outside_low || m->outside_high)
            fail_msg("%s: a ratio of 1 was held by bounds at 1", rows[i]);
        for (int n = 0; n < N; n++)
            assert_true(f.a[n] != 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differentiable_rows_match_finite_differences),
        cmocka_unit_test(detached_rows_are_a_constant_times_the_score),
        cmocka_unit_test(ppo_clip_is_flat_beyond_its_bounds),
        cmocka_unit_test(drpo_turns_back_beyond_its_region),
        cmocka_unit_test(cppo_tightens_as_the_prefix_drifts),
        cmocka_unit_test(vespo_weighs_by_the_ratio_of_the_sequence),
        cmocka_unit_test(gspo_clips_whole_sequences),
        cmocka_unit_test(a_region_drops_only_what_leads_away),
        cmocka_unit_test(a_divergence_at_its_bound_is_within),
        cmocka_unit_test(topk_divergences_bound_the_exact_ones_from_below),
        cmocka_unit_test(topk_divergences_have_a_bucket_for_each_id),
        cmocka_unit_test(rpg_losses_have_the_gradient_of_their_objective),
        cmocka_unit_test(algorithm_two_stops_where_it_says),
        cmocka_unit_test(families_agree_bit_for_bit_on_policy),
        cmocka_unit_test(renormalised_ratios_are_one_on_policy_and_differentiable),
        cmocka_unit_test(sampler_mismatch_is_weighted_and_capped),
        cmocka_unit_test(a_weight_outside_its_bounds_is_cut_or_popped),
        cmocka_unit_test(ipo_masks_both_ways),
        cmocka_unit_test(entropy_enters_with_its_own_weight),
        cmocka_unit_test(splitting_the_batch_changes_nothing),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(a_number_that_is_not_finite_is_reported_with_its_place),
        cmocka_unit_test(a_nan_is_never_clamped_away),
        cmocka_unit_test(an_allocation_that_fails_is_a_status),
        cmocka_unit_test(zero_advantages_leave_nothing_to_do),
        cmocka_unit_test(selection_takes_the_largest_covariances),
        cmocka_unit_test(random_selection_draws_every_candidate_alike),
        cmocka_unit_test(the_tokens_that_a_bound_holds_are_counted),
        cmocka_unit_test(a_weight_stays_a_number_whatever_its_cap),
        cmocka_unit_test(a_batch_without_tokens_has_no_loss),
        cmocka_unit_test(a_ratio_on_its_bound_is_not_cut),
    };

    return cmocka_run_group_tests_name("policy/surrogate", tests, NULL, NULL);
}
