/* Random compositions on random batches: refused with a reason, or finite and equal, in
 * loss, gradient and selection, to the plain version (plain_testing.h).
 *
 * A draw picks a row of every table, numbers for every key, and a batch with empty,
 * one-token and dropped sequences, ratios from 1 to beyond every clamp, truncated
 * sampling, unused slots. The message of a failure has the number of the draw: set FIRST
 * to it.
 */
#include "policy/plain_testing.h"
#include "policy/policy_testing.h"

enum { FIRST = 0, DRAWS = 10000, WORDS = 6, WIDTH = 2 * PLAIN_K };

static const double step = 1e-20;

/* ---- a draw ---- */

static uint64_t state_of_draw;

static double uniform(void)
{
    uint64_t x = state_of_draw += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)((x ^ x >> 31) >> 11) / 9007199254740992.0;
}

static int below(int n) { return (int)(uniform() * n); }
static bool chance(double p) { return uniform() < p; }
static double between(double low, double high) { return low + (high - low) * uniform(); }
static double normal(void)
{
    return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform());
}

static struct kg_algo algo;
static struct kg_algo_setting setting;
static struct plain plain;
static bool selected[PLAIN_N];

static void draw_row(enum kg_policy_table table)
{
    int i = below((int)kg_policy_n_rows(table));

    must_set(&algo, kg_policy_table_key(table), kg_policy_row(table, (size_t)i)->name);
}

static bool starts(enum kg_policy_table table, const char *with)
{
    return strncmp(kg_algo_row_name(&algo, table), with, strlen(with)) == 0;
}

static void draw_policy_numbers(void)
{
    algo.clip_low = chance(0.1) ? 0 : between(0, 0.9);
    algo.clip_high = chance(0.1) ? 0 : between(0, 2);
    algo.dual_clip = chance(0.5) ? 0 : between(1.01, 5);
    algo.ratio_clamp = chance(0.4) ? 0 : chance(0.5) ? 20 : between(0.1, 3);
    algo.truncate = chance(0.5) ? 0 : between(0.5, 5);
    algo.delta_low = between(0.001, 0.4);
    algo.delta_high = between(0.001, 0.4);
    algo.top_k = 1 + below(WORDS);
    algo.tau_pos = between(0.1, 3);
    algo.tau_neg = between(0.1, 3);
    algo.tis = chance(0.6) ? 0 : between(0.5, 4);
    algo.tis_low = algo.tis == 0 || chance(0.5) ? 0 : algo.tis * uniform();
    algo.tis_sequence = chance(0.5);
    algo.entropy_coef = chance(0.5) ? 0 : between(0, 1);
    algo.length_norm = chance(0.1) ? 0 : between(1, 50);
    algo.cov_ratio = between(0, 1);
    algo.cov_low = between(-2, 0.5);
    algo.cov_high = between(-0.2, 3);
    algo.cov_coef = between(0, 2);
    algo.vespo_k_pos = between(0, 4);
    algo.vespo_k_neg = between(0, 4);
    algo.vespo_lambda_pos = between(0.01, 4);
    algo.vespo_lambda_neg = between(0.01, 4);
    algo.prefix_weight = between(0.1, 1);
    algo.prefix_budget = chance(0.2) ? 0 : between(0, 0.2);
    algo.m2_budget = chance(0.1) ? 0 : between(0, 0.5);
    algo.rpg_detach = chance(0.5);
    algo.count_eps = chance(0.5) ? 0 : 1e-8;
    algo.mask_truncated = chance(0.5);
}

static void draw_kl_numbers(void)
{
    bool rpg = starts(KG_TABLE_SURROGATE, "rpg-") || starts(KG_TABLE_SURROGATE, "ipo");

    if (rpg && chance(0.9))
        must_set(&algo, "kl.estimator", "none");
    algo.kl_beta = starts(KG_TABLE_KL, "none") && !rpg ? 0 : between(0, 1);
    algo.kl_top_k = below(WORDS);
    algo.kl_tail = chance(0.8);
    algo.kl_corrected = chance(0.5);
    algo.kl_importance = chance(0.7);
    algo.kl_iw_lower = chance(0.7) ? 0 : between(0, 1);
    algo.kl_iw_upper = chance(0.7) ? 0 : between(0.5, 3);
    algo.kl_clamp = chance(0.5);
    algo.kl_after_filter = chance(0.5);
    algo.anchor_eta = between(0.1, 1);
    algo.anchor_period = 1;
    if (chance(0.05))
        *(chance(0.5) ? &algo.kl_beta : &algo.dual_clip) = -between(0.1, 1);
}

/* Removes the most common reasons for refusals, so that most draws are computed. */
static void make_sense(void)
{
    bool at_sampler = starts(KG_TABLE_KL, "rpg-") || starts(KG_TABLE_KL, "jeffreys");
    bool own_kl = starts(KG_TABLE_SURROGATE, "rpg-") || starts(KG_TABLE_SURROGATE, "ipo");

    if (starts(KG_TABLE_KL, "reward-"))
        must_set(&algo, "kl.estimator", "k3");
    if (at_sampler)
        must_set(&algo, "anchor.kind", "iterative");
    else if (starts(KG_TABLE_ANCHOR, "none") || starts(KG_TABLE_KL, "exact-"))
        must_set(&algo, "anchor.kind", "ema");
    if (own_kl && starts(KG_TABLE_KL, "none"))
        must_set(&algo, "anchor.kind", "none");
    algo.kl_beta = fabs(algo.kl_beta);
    algo.dual_clip = fabs(algo.dual_clip) > 1 ? fabs(algo.dual_clip) : 0;
    algo.length_norm = fmax(algo.length_norm, 1);
    algo.kl_top_k += !starts(KG_TABLE_KL, "topk-");
    algo.mask_delta = starts(KG_TABLE_MASK, "none") || starts(KG_TABLE_MASK, "icepop")
                          ? 0
                          : between(0.001, 1);
    if (starts(KG_TABLE_MASK, "icepop") && algo.tis == 0)
        algo.tis = between(0.8, 4), algo.tis_low = between(0.1, 0.8);
    algo.kl_iw_lower = algo.kl_iw_upper > 0 ? fmin(algo.kl_iw_lower, algo.kl_iw_upper)
                                            : algo.kl_iw_lower;
}

static void draw_algo(void)
{
    kg_algo_init(&algo);
    for (int t = 0; t < KG_TABLE_COUNT; t++)
        if ((t != KG_TABLE_ADVANTAGE && t != KG_TABLE_PLACE) || chance(0.1))
            draw_row((enum kg_policy_table)t);
    draw_policy_numbers();
    draw_kl_numbers();
    if (chance(0.85))
        make_sense();
    setting = (struct kg_algo_setting){
        .vocab = WORDS,
        .samples = 4,
        .off_policy = chance(0.5),
        .truncated_sampling = chance(0.2),
        .max_top_k = 512,
        .provides = KG_NEED_EXACT_REVERSE | KG_NEED_EXACT_FORWARD | KG_NEED_SELECTION,
        .reproduction = chance(0.3)};
}

/* lp <- log-probs of logits z + spread * noise; with spread 0, no noise: the same bits as
 * the plain version */
static void draw_policy(double *lp, int n, double spread)
{
    double complex c[PLAIN_V];
    double z[PLAIN_V];

    memcpy(z, plain.z[n], sizeof z);
    for (int v = 0; v < WORDS; v++)
        plain.z[n][v] += spread * normal();
    plain_log_softmax(c, &plain, n, -1, 0);
    memcpy(plain.z[n], z, sizeof z);
    for (int v = 0; v < WORDS; v++)
        lp[v] = creal(c[v]);
}

static void draw_top(int *top, const double *lp)
{
    bool used[PLAIN_V] = {false};

    for (int j = 0; j < PLAIN_K; j++) {
        int best = -1;

        for (int v = 0; v < WORDS; v++)
            if (!used[v] && (best < 0 || lp[v] > lp[best]))
                best = v;
        top[j] = best;
        if (best >= 0)
            used[best] = true;
    }
    for (int j = PLAIN_K - 1; j > 1 && chance(0.3); j--)
        top[j] = -1;
}

static void draw_token(int n, double to_old, double to_mu, double to_anchor)
{
    bool iterative = starts(KG_TABLE_ANCHOR, "iterative");

    for (int v = 0; v < WORDS; v++)
        plain.z[n][v] = 1.3 * normal();
    plain.y[n] = below(WORDS);
    draw_policy(plain.lo[n], n, to_old);
    memcpy(plain.mu[n], plain.lo[n], sizeof plain.mu[n]);
    if (to_mu > 0 && !iterative)
        draw_policy(plain.mu[n], n, to_mu);
    draw_policy(plain.lq[n], n, to_anchor);
    if (iterative)
        memcpy(plain.lq[n], plain.lo[n], sizeof plain.lq[n]);
    for (int v = 0; v < WORDS; v++)
        plain.kept[n][v] = v == plain.y[n] || chance(0.6);
    draw_top(plain.sampler_top[n], plain.mu[n]);
    draw_top(plain.anchor_top[n], plain.lq[n]);
}

static double bounded_weight(double k)
{
    if (starts(KG_TABLE_MASK, "icepop"))
        return k >= algo.tis_low && k <= algo.tis ? k : 0;
    return k < algo.tis_low ? algo.tis_low : k > algo.tis ? algo.tis : k;
}

/* Weights from old and sampler, as a training step makes them if algo.tis is set. */
static void importance_weights(int s)
{
    double sum = 0;

    for (int n = plain.begin[s]; n < plain.begin[s + 1]; n++)
        sum += plain.lo[n][plain.y[n]] - plain.mu[n][plain.y[n]];
    for (int n = plain.begin[s]; n < plain.begin[s + 1]; n++) {
        double one = plain.lo[n][plain.y[n]] - plain.mu[n][plain.y[n]];
        double x = algo.tis_sequence ? sum : one;

        plain.is[n] = algo.tis > 0 ? bounded_weight(exp(fmin(fmax(x, -20), 20))) : 1;
    }
}

static void draw_batch(void)
{
    static const double spreads[] = {0, 0.2, 0.6, 2, 60, 900};
    int reach = chance(0.05) ? 6 : 5;
    double to_old = spreads[below(reach)], to_mu = spreads[below(4)];
    double to_anchor = spreads[below(reach)];

    memset(&plain, 0, sizeof plain);
    plain.algo = &algo;
    plain.vocab = WORDS;
    plain.n_seqs = 1 + below(4);
    plain.truncated = setting.truncated_sampling;
    plain.divisor = chance(0.7) ? 0 : between(0.1, 2);
    for (int s = 0; s < plain.n_seqs; s++) {
        double advantage = chance(0.15) ? 0 : normal();
        bool one_sign = starts(KG_TABLE_SURROGATE, "gmpo") &&
                        starts(KG_TABLE_MASK, "off-policy");
        bool each = chance(0.2) && !one_sign;

        plain.begin[s + 1] = plain.begin[s] + below(5);
        plain.drop[s] = algo.mask_truncated && chance(0.4);
        for (int n = plain.begin[s]; n < plain.begin[s + 1]; n++) {
            draw_token(n, to_old, to_mu, to_anchor);
            plain.advantage[n] = each ? normal() : advantage;
        }
        importance_weights(s);
    }
}

/* ---- the same batch as rows of log-probs ---- */

static struct rows {
    int64_t begin[PLAIN_S + 1];
    int k;
    uint8_t drop[PLAIN_S], selected[PLAIN_N];
    int32_t tokens[PLAIN_N], ids[PLAIN_N * WIDTH];
    double lp[PLAIN_N][PLAIN_V];
    double logp[PLAIN_N], old[PLAIN_N], mu[PLAIN_N], anchor[PLAIN_N], exact[PLAIN_N];
    double entropy[PLAIN_N], at[PLAIN_N * WIDTH], anchor_at[PLAIN_N * WIDTH];
    double mu_at[PLAIN_N * WIDTH], kept[PLAIN_N], old_kept[PLAIN_N];
    double frame[PLAIN_N], old_frame[PLAIN_N];
    double pg_weight[PLAIN_N], kl_weight[PLAIN_N], entropy_weight[PLAIN_N];
    double a[PLAIN_N], a_at[PLAIN_N * WIDTH], a_entropy[PLAIN_N], a_exact[PLAIN_N];
    double a_kept[PLAIN_N];
} rows;

static bool is_forward(void)
{
    return strstr(kg_algo_row_name(&algo, KG_TABLE_KL), "forward") != NULL;
}

static void fill_slots(int n)
{
    int sampler = kg_algo_recorded_top_k(&algo), k = rows.k;

    for (int j = 0; j < k; j++) {
        int v = j < sampler ? plain.sampler_top[n][j] : plain.anchor_top[n][j - sampler];
        size_t at = (size_t)(n * k + j);

        rows.ids[at] = v;
        rows.at[at] = v < 0 ? -INFINITY : rows.lp[n][v];
        rows.anchor_at[at] = v < 0 ? -INFINITY : plain.lq[n][v];
        rows.mu_at[at] = v < 0 ? -INFINITY : plain.mu[n][v];
    }
}

static void fill_row(int n)
{
    double complex lp[PLAIN_V];
    int y = plain.y[n];

    plain_log_softmax(lp, &plain, n, -1, 0);
    for (int v = 0; v < WORDS; v++) {
        double p, q = exp(plain.lq[n][v]);

        rows.lp[n][v] = creal(lp[v]);
        p = exp(rows.lp[n][v]);
        rows.entropy[n] -= p * rows.lp[n][v];
        rows.exact[n] += is_forward() ? q * (plain.lq[n][v] - rows.lp[n][v])
                                      : p * (rows.lp[n][v] - plain.lq[n][v]);
    }
    rows.tokens[n] = y;
    rows.logp[n] = rows.lp[n][y];
    rows.old[n] = plain.lo[n][y];
    rows.mu[n] = plain.mu[n][y];
    rows.anchor[n] = plain.lq[n][y];
    rows.kept[n] = creal(plain_log_kept(&plain, n, lp));
    rows.old_kept[n] = plain_old_log_kept(&plain, n);
    rows.frame[n] = rows.logp[n] - rows.kept[n];
    rows.old_frame[n] = rows.old[n] - rows.old_kept[n];
    fill_slots(n);
}

static void fill_rows(void)
{
    memset(&rows, 0, sizeof rows);
    rows.k = kg_algo_width(&algo);
    for (int s = 0; s < plain.n_seqs; s++) {
        rows.begin[s + 1] = plain.begin[s + 1];
        rows.drop[s] = plain.drop[s];
    }
    for (int n = 0; n < plain.begin[plain.n_seqs]; n++)
        fill_row(n);
}

/* The batch as a training step passes it: if the anchor is the sampler, without rows of
 * the anchor. */
static struct kg_policy_batch batch_of_rows(void)
{
    bool iterative = starts(KG_TABLE_ANCHOR, "iterative");

    return (struct kg_policy_batch){
        .n_seqs = plain.n_seqs,
        .n_tokens = plain.begin[plain.n_seqs],
        .seq_begin = rows.begin,
        .tokens = rows.tokens,
        .logp = rows.logp,
        .old_logp = rows.old,
        .mu_logp = rows.mu,
        .anchor_logp = iterative ? NULL : rows.anchor,
        .advantage = plain.advantage,
        .entropy = rows.entropy,
        .kl_exact = rows.exact,
        .k_sampler = kg_algo_recorded_top_k(&algo),
        .k_anchor = rows.k - kg_algo_recorded_top_k(&algo),
        .ids = rows.ids,
        .logp_at = rows.at,
        .anchor_at = iterative ? NULL : rows.anchor_at,
        .mu_at = rows.mu_at,
        .log_kept = plain.truncated ? rows.kept : NULL,
        .old_log_kept = plain.truncated ? rows.old_kept : NULL,
        .pg_weight = rows.pg_weight,
        .kl_weight = rows.kl_weight,
        .entropy_weight = rows.entropy_weight,
        .selected = rows.selected,
        .select_seed = state_of_draw,
        .kl_divisor = plain.divisor,
    };
}

/* Weights, selection and loss of an update.   returns ENONFINITE if the loss does */
static kg_status library(struct kg_policy_grad *g, const char *where)
{
    struct kg_policy_shape shape = {plain.n_seqs, rows.begin, rows.drop};
    struct kg_policy_weights w = {rows.pg_weight, rows.kl_weight, rows.entropy_weight};
    struct kg_policy_batch b = batch_of_rows();
    struct kg_err err;
    kg_status status = kg_policy_weights(&w, &algo, &shape, &err);

    if (status == KG_OK && kg_algo_scope(&algo) == KG_SCOPE_BATCH)
        status = kg_policy_select(rows.selected, &algo, &b, &err);
    *g = (struct kg_policy_grad){.a_logp = rows.a,
                                 .a_at = rows.a_at,
                                 .a_entropy = rows.a_entropy,
                                 .a_kl_exact = rows.a_exact,
                                 .a_log_kept = rows.a_kept};
    if (status == KG_OK)
        status = kg_policy_loss(g, &algo, &b, &err);
    if (status != KG_OK && status != KG_ENONFINITE)
        fail_msg("%s: %s", where, err.message);
    return status;
}

/* ---- comparison ---- */

/* g <- dloss/dz of token n by the master rule and its dense forms.   returns the sum of
 * the magnitudes that were added
 */
static double dense_gradient(double *g, int n)
{
    double size = fabs(rows.a[n]) + fabs(rows.a_kept[n]);
    double h = rows.entropy[n], kl = rows.exact[n], kept = rows.kept[n];

    for (int v = 0; v < WORDS; v++) {
        double lp = rows.lp[n][v], p = exp(lp), lq = plain.lq[n][v];
        double exact = is_forward() ? p - exp(lq) : p * (lp - lq - kl);
        double inside = plain.kept[n][v] ? exp(lp - kept) : 0;

        g[v] = rows.a[n] * ((v == plain.y[n]) - p) - rows.a_entropy[n] * p * (lp + h) +
               rows.a_exact[n] * exact + rows.a_kept[n] * (inside - p);
        size += fabs(rows.a_entropy[n] * p * (lp + h)) + fabs(rows.a_exact[n] * exact);
    }
    for (int j = 0; j < rows.k; j++) {
        double a = rows.a_at[n * rows.k + j];

        size += fabs(a);
        for (int v = 0; v < WORDS; v++)
            g[v] += a * ((v == rows.ids[n * rows.k + j]) - exp(rows.lp[n][v]));
    }
    return size;
}

/* Does a ratio of the batch, or its square, overflow a double? */
static bool overflows(void)
{
    for (int n = 0; n < plain.begin[plain.n_seqs]; n++)
        if (fabs(rows.logp[n] - rows.old[n]) > 300 ||
            fabs(rows.logp[n] - rows.anchor[n]) > 300 ||
            fabs(rows.logp[n] - rows.mu[n]) > 300)
            return true;
    return false;
}

static void compare_token(int s, int n, const char *where)
{
    double g[PLAIN_V], size = dense_gradient(g, n);

    for (int v = 0; v < WORDS; v++) {
        double want = cimag(plain_loss(&plain, selected, s, n, v, step)) / step;

        if (isnan(want) && isfinite(g[v]) && overflows())
            continue; /* infinity times 0, in the plain version only */
        if (!(fabs(g[v] - want) <= 1e-9 * (size + fabs(want)) + 1e-11))
            fail_msg("%s: token %d, logit %d: gradient %.15g, plainly %.15g", where, n, v,
                     g[v], want);
    }
}

static double plain_total(double *size)
{
    double sum = 0;

    *size = 0;
    for (int s = 0; s < plain.n_seqs; s++) {
        double one = creal(plain_loss(&plain, selected, s, -1, -1, 0));

        sum += one;
        *size += fabs(one);
    }
    return sum;
}

/* The library selects as many tokens as it should, all of them candidates; the plain
 * version continues with its selection. */
static void compare_selection(const char *where)
{
    bool may[PLAIN_N];
    int most, found = 0;

    memset(selected, 0, sizeof selected);
    if (kg_algo_scope(&algo) != KG_SCOPE_BATCH)
        return;
    most = plain_candidates(may, &plain, rows.frame, rows.old_frame);
    for (int n = 0; n < plain.begin[plain.n_seqs]; n++) {
        selected[n] = rows.selected[n] != 0;
        found += selected[n];
        if (selected[n] && !may[n])
            fail_msg("%s: token %d is selected, plainly it may not be", where, n);
    }
    if (found != most)
        fail_msg("%s: %d tokens are selected, plainly %d are", where, found, most);
}

/* returns false if an overflow left nothing to compare */
static bool compare(const char *where)
{
    struct kg_policy_grad g;
    double size, want;
    kg_status status;

    fill_rows();
    status = library(&g, where);
    if (status == KG_OK)
        compare_selection(where);
    want = plain_total(&size);
    if (status == KG_ENONFINITE) {
        if (!overflows())
            fail_msg("%s: refused as not finite, plainly it is %g", where, want);
        return false;
    }
    if (isnan(want) && isfinite(g.loss) && overflows())
        return false; /* infinity minus infinity, in the plain version only */
    if (!isfinite(g.loss) ||
        !(fabs(g.loss - want) <= 1e-9 * (size + fabs(g.pg) + fabs(g.kl)) + 1e-11))
        fail_msg("%s: loss %.15g, plainly %.15g", where, g.loss, want);
    for (int s = 0; s < plain.n_seqs; s++)
        for (int n = plain.begin[s]; n < plain.begin[s + 1]; n++)
            compare_token(s, n, where);
    return true;
}

static void random_compositions_equal_the_plain_version_or_are_refused(void **state)
{
    int compared = 0, refused = 0, overflowed = 0;

    (void)state;
    for (int draw = FIRST; draw < FIRST + DRAWS; draw++) {
        struct kg_err err = {0};
        char where[200];

        state_of_draw = 1000003u * (uint64_t)draw;
        draw_algo();
        draw_batch();
        snprintf(where, sizeof where, "draw %d: %s, %s, %s, %s", draw,
                 kg_algo_row_name(&algo, KG_TABLE_SURROGATE),
                 kg_algo_row_name(&algo, KG_TABLE_KL),
                 kg_algo_row_name(&algo, KG_TABLE_ANCHOR),
                 kg_algo_row_name(&algo, KG_TABLE_AGGREGATE));
        if (kg_algo_check(&algo, &setting, &err) != KG_OK) {
            if (!strchr(err.message, '.') || !strchr(err.message, ':'))
                fail_msg("%s: refused without key and reason: %s", where, err.message);
            refused++;
        } else if (compare(where)) {
            compared++;
        } else {
            overflowed++;
        }
    }
    printf("    %d draws: %d equal, %d refused, %d beyond a double\n", DRAWS, compared,
           refused, overflowed);
    assert_true(compared > DRAWS / 3 && refused > DRAWS / 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_compositions_equal_the_plain_version_or_are_refused),
    };

    return cmocka_run_group_tests_name("policy/random", tests, NULL, NULL);
}
