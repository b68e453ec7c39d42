/* The rows of the KL and surrogate tables claim that values and gradients are unbiased,
 * on- or off-policy. Enumeration has to find exactly these unbiased, and the others
 * biased: over 12 tokens in one context (two positions for rows that see a sequence).
 */
#include "policy/policy_internal.h"
#include "policy/policy_testing.h"

enum { SEEDS = 6, K = 5, PAIRS = VOCAB * VOCAB };

static const double exactly = 1e-10; /* unbiased */
static const double apart = 1e-3;    /* biased, in the worst of the seeds */

/* The largest deviations from the target over the seeds. */
struct deviation {
    double value, gradient;
};

static void worst(struct deviation *d, double value, double gradient)
{
    d->value = fmax(d->value, value);
    d->gradient = fmax(d->gradient, gradient);
}

static void compare_one(const char *row, const char *where, const char *what, bool claims,
                        double deviation)
{
    if (claims && !(deviation <= exactly))
        fail_msg("%s, %s: claims to be unbiased in %s, enumeration finds %g off", row,
                 where, what, deviation);
    if (!claims && !(deviation >= apart))
        fail_msg("%s, %s: claims to be biased in %s, enumeration finds %g off", row,
                 where, what, deviation);
}

static void compare(const char *row, const char *where, unsigned claims,
                    struct deviation d)
{
    compare_one(row, where, "value", claims & KG_UNBIASED_VALUE, d.value);
    compare_one(row, where, "gradient", claims & KG_UNBIASED_GRADIENT, d.gradient);
}

/* ---- KL estimators ---- */

static struct sweep sweep;

/* The divergence that the row claims to estimate, and its gradient. */
static double target_of(double *gradient, const struct world *w, enum kg_target target)
{
    double reverse[VOCAB], forward[VOCAB], share = 0.5;

    reverse_gradient(reverse, w, w->lq);
    forward_gradient(forward, w, w->q);
    if (target != KG_TARGET_JEFFREYS)
        share = target == KG_TARGET_REVERSE ? 1 : 0;
    for (int v = 0; v < VOCAB; v++)
        gradient[v] = share * reverse[v] + (1 - share) * forward[v];
    return share * kl_of(w->lp, w->lq) + (1 - share) * kl_of(w->lq, w->lp);
}

/* The world that a claim is about: if a row is a KL to the sampling policy only, that
 * policy is the anchor. */
static struct world world_for(const struct kg_kl_row *row, uint64_t seed, bool off_policy)
{
    struct world w = world_of(seed, off_policy);

    if (row->iterative) {
        memcpy(w.lq, w.lo, sizeof w.lq);
        memcpy(w.q, w.o, sizeof w.q);
    }
    return w;
}

/* The exact rows: the head supplies value and gradient. */
static void add_exact(double *grad, const struct world *w, bool forward)
{
    double g[VOCAB], sum = 0;

    target_of(g, w, forward ? KG_TARGET_FORWARD : KG_TARGET_REVERSE);
    for (int n = 0; n < VOCAB; n++)
        sum += sweep.a_exact[n];
    for (int v = 0; v < VOCAB; v++)
        grad[v] += sum * g[v];
}

static void sweep_row(const struct kg_kl_row *row, const struct world *w, bool published)
{
    sweep_init(&sweep, w);
    sweep.algo.kl = row;
    sweep.algo.kl_corrected = !published;
    if (row->about.needs & (KG_NEED_TOP_SAMPLER | KG_NEED_TOP_ANCHOR))
        sweep_head(&sweep, w, kg_kl_anchor_head(row), K);
    for (int n = 0; n < VOCAB; n++)
        sweep.exact[n] = row->forward ? kl_of(w->lq, w->lp) : kl_of(w->lp, w->lq);
    sweep_run(&sweep, w);
    add_exact(sweep.grad, w, row->forward);
}

static struct deviation deviation_of(const struct kg_kl_row *row, bool off_policy,
                                     bool published)
{
    struct deviation d = {0, 0};

    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct world w = world_for(row, seed, off_policy);
        double gradient[VOCAB], value = target_of(gradient, &w, row->claims.target);

        sweep_row(row, &w, published);
        worst(&d, fabs(sweep.g.kl - value), farthest(sweep.grad, gradient));
    }
    return d;
}

static void every_estimator_is_as_unbiased_as_its_row_says(void **state)
{
    struct kg_policy_rows table = kg_kl_rows();

    (void)state;
    for (size_t i = 0; i < table.n; i++) {
        const struct kg_kl_row *row = (const void *)((const char *)table.rows +
                                                     i * table.stride);
        const struct kg_policy_claims *c = &row->claims;
        const char *name = row->about.name;

        if (c->target == KG_TARGET_NONE) {
            assert_int_equal(c->on_policy | c->off_policy | c->published, 0);
            continue;
        }
        compare(name, "on-policy", c->on_policy, deviation_of(row, false, false));
        compare(name, "off-policy", c->off_policy, deviation_of(row, true, false));
        if (!(row->about.needs & (KG_NEED_TOP_SAMPLER | KG_NEED_TOP_ANCHOR)))
            continue;
        compare(name, "published, on-policy", c->published,
                deviation_of(row, false, true));
        compare(name, "published, off-policy", c->published,
                deviation_of(row, true, true));
    }
}

/* Without the weight p/old, what was unbiased is biased off-policy. */
static void without_the_importance_weight_every_sampled_row_is_biased(void **state)
{
    struct kg_policy_rows table = kg_kl_rows();
    int seen = 0;

    (void)state;
    for (size_t i = 0; i < table.n; i++) {
        const struct kg_kl_row *row = (const void *)((const char *)table.rows +
                                                     i * table.stride);
        struct deviation d = {0, 0};

        if (!row->weighted || row->claims.target == KG_TARGET_NONE)
            continue;
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct world w = world_of(seed, true);
            double gradient[VOCAB], value = target_of(gradient, &w, row->claims.target);

            sweep_row(row, &w, false);
            sweep.algo.kl_importance = false;
            sweep_run(&sweep, &w);
            worst(&d, fabs(sweep.g.kl - value), farthest(sweep.grad, gradient));
        }
        compare(row->about.name, "off-policy without the weight", 0, d);
        seen++;
    }
    assert_true(seen >= 8);
}

/* ---- surrogates ---- */

/* All sequences of two tokens, each position with its own context, or of one token;
 * sequence n has the tokens n / VOCAB and n % VOCAB. */
static struct pairs {
    struct world at[2];
    int positions;
    int64_t n_seqs, begin[PAIRS + 1];
    double probability[PAIRS], reward[PAIRS]; /* (n_seqs) under the sampler */
    int32_t tokens[2 * PAIRS], ids[2 * PAIRS * K];
    double logp[2 * PAIRS], old[2 * PAIRS], advantage[2 * PAIRS], weight[2 * PAIRS];
    double logp_at[2 * PAIRS * K], mu_at[2 * PAIRS * K];
    double a[2 * PAIRS], a_at[2 * PAIRS * K], term[2 * PAIRS];
    uint8_t selected[2 * PAIRS];
} pairs;

static int token_at(const struct pairs *x, int64_t seq, int t)
{
    return (int)(x->positions == 1 || t == 1 ? seq % VOCAB : seq / VOCAB);
}

static void fill_token(struct pairs *x, const struct kg_surrogate_row *row, int64_t seq,
                       int t)
{
    const struct world *w = &x->at[t];
    int64_t n = seq * x->positions + t;
    int v = token_at(x, seq, t);
    int32_t top[K];

    largest(top, K, w->lo);
    x->tokens[n] = v;
    x->logp[n] = w->lp[v];
    x->old[n] = w->lo[v];
    x->advantage[n] = x->reward[seq];
    x->weight[n] = x->probability[seq];
    x->selected[n] = n % 3 == 0 && row->token != kg_pg_m2po;
    for (int j = 0; j < K; j++) {
        x->ids[n * K + j] = top[j];
        x->logp_at[n * K + j] = w->lp[top[j]];
        x->mu_at[n * K + j] = w->lo[top[j]];
    }
}

static void pairs_init(struct pairs *x, const struct kg_surrogate_row *row, uint64_t seed,
                       bool off_policy, int positions)
{
    struct kg_rng_key key = {seed, KG_RNG_TEST};

    memset(x, 0, sizeof *x);
    x->positions = positions;
    x->n_seqs = positions == 2 ? PAIRS : VOCAB;
    for (int t = 0; t < positions; t++)
        x->at[t] = world_of(100 * seed + (uint64_t)t, off_policy);
    for (int64_t i = 0; i < x->n_seqs; i++) {
        float z[4];

        kg_rng_normal4(z, key, 9, (uint32_t)i, 0);
        x->reward[i] = (double)z[0];
        x->probability[i] = 1;
        x->begin[i + 1] = (i + 1) * positions;
        for (int t = 0; t < positions; t++)
            x->probability[i] *= x->at[t].o[token_at(x, i, t)];
        for (int t = 0; t < positions; t++)
            fill_token(x, row, i, t);
    }
}

/* -E_p[A] plus beta times the KL inside an rpg row, and its gradient. */
static double objective(double gradient[2][VOCAB], const struct pairs *x,
                        const struct kg_surrogate_row *row, double beta)
{
    bool forward = row->kind == KG_RPG_FKL || row->kind == KG_RPG_UFKL;
    double value = 0;

    for (int64_t i = 0; i < x->n_seqs; i++) {
        double p = 1;

        for (int t = 0; t < x->positions; t++)
            p *= x->at[t].p[token_at(x, i, t)];
        value -= p * x->reward[i];
        for (int t = 0; t < x->positions; t++)
            for (int v = 0; v < VOCAB; v++)
                gradient[t][v] -= p * x->reward[i] *
                                  ((v == token_at(x, i, t)) - x->at[t].p[v]);
    }
    if (row->own_kl) {
        const struct world *w = &x->at[0];
        double g[VOCAB];

        if (forward)
            forward_gradient(g, w, w->o);
        else
            reverse_gradient(g, w, w->lo);
        value += beta * (forward ? kl_of(w->lo, w->lp) : kl_of(w->lp, w->lo));
        for (int v = 0; v < VOCAB; v++)
            gradient[0][v] += beta * g[v];
    }
    return value;
}

/* Bounds so wide that no clip, clamp, mask or truncation takes effect. */
static void wide_open(struct kg_algo *algo, const struct kg_surrogate_row *row)
{
    kg_algo_init(algo);
    algo->surrogate = row;
    algo->clip_low = strcmp(row->about.name, "gmpo") == 0 ? 1e9 : 1;
    algo->clip_high = algo->delta_low = algo->delta_high = 1e9;
    if (row->token == kg_pg_drpo) /* has no bounds: its region is always active */
        algo->delta_low = algo->delta_high = 0.2;
    algo->dual_clip = algo->truncate = algo->ratio_clamp = 0;
    algo->top_k = K;
    algo->cov_coef = 0.7;
    algo->kl_beta = row->own_kl ? 0.3 : 0;
}

/* Value: the mean over a sequence's terms. Gradient: that of their sum. */
static double evaluate(double gradient[2][VOCAB], struct pairs *x,
                       const struct kg_algo *algo)
{
    struct kg_policy_batch b = {.n_seqs = x->n_seqs,
                                .n_tokens = x->n_seqs * x->positions,
                                .seq_begin = x->begin,
                                .tokens = x->tokens,
                                .logp = x->logp,
                                .old_logp = x->old,
                                .advantage = x->advantage,
                                .k_sampler = K,
                                .ids = x->ids,
                                .logp_at = x->logp_at,
                                .mu_at = x->mu_at,
                                .selected = x->selected,
                                .pg_weight = x->weight};
    struct kg_policy_grad g = {.a_logp = x->a, .a_at = x->a_at, .pg_term = x->term};
    struct kg_err err;

    if (kg_policy_loss(&g, algo, &b, &err) != KG_OK)
        fail_msg("%s: %s", algo->surrogate->about.name, err.message);
    assert_int_equal(g.metrics.clip_low + g.metrics.clip_high + g.metrics.clip_dual, 0);
    assert_int_equal(g.metrics.masked_positive + g.metrics.masked_negative, 0);
    for (int64_t n = 0; n < b.n_tokens; n++) {
        int t = (int)(n % x->positions);

        for (int v = 0; v < VOCAB; v++)
            gradient[t][v] += x->a[n] * ((v == x->tokens[n]) - x->at[t].p[v]);
    }
    return g.pg / x->positions;
}

static struct deviation surrogate_deviation(const struct kg_surrogate_row *row,
                                            bool off_policy, bool detach)
{
    /* cppo reads the sequence only for its mask; its ratios are of single tokens */
    bool pair = row->about.scope == KG_SCOPE_SEQUENCE && row->sequence != kg_pg_cppo;
    struct deviation d = {0, 0};

    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        double want[2][VOCAB] = {{0}}, found[2][VOCAB] = {{0}}, value, gap;
        struct kg_algo algo;

        wide_open(&algo, row);
        algo.rpg_detach = detach;
        pairs_init(&pairs, row, seed, off_policy, pair ? 2 : 1);
        value = objective(want, &pairs, row, algo.kl_beta);
        gap = fabs(evaluate(found, &pairs, &algo) - value);
        worst(&d, gap, farthest(found[0], want[0]));
        worst(&d, gap, farthest(found[1], want[1]));
    }
    return d;
}

static void every_surrogate_is_as_unbiased_as_its_row_says(void **state)
{
    struct kg_policy_rows table = kg_surrogate_rows();

    (void)state;
    for (size_t i = 0; i < table.n; i++) {
        const struct kg_surrogate_row *row = (const void *)((const char *)table.rows +
                                                            i * table.stride);
        const struct kg_policy_claims *c = &row->claims;

        if (c->target == KG_TARGET_NONE) { /* no policy term */
            assert_int_equal(c->on_policy | c->off_policy | c->published, 0);
            continue;
        }
        assert_int_equal(c->target, KG_TARGET_RETURN);
        for (int detach = 0; detach < 2; detach++) {
            compare(row->about.name, "on-policy", c->on_policy,
                    surrogate_deviation(row, false, detach));
            compare(row->about.name, "off-policy", c->off_policy,
                    surrogate_deviation(row, true, detach));
        }
    }
}

/* Every row has claims, and states its gradient, its memory and what it bounds. */
static void every_row_makes_its_claims(void **state)
{
    static const enum kg_policy_table tables[] = {KG_TABLE_KL, KG_TABLE_SURROGATE};

    (void)state;
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < kg_policy_n_rows(tables[t]); i++) {
            const struct kg_policy_about *a = kg_policy_row(tables[t], i);
            const struct kg_policy_claims *c = kg_policy_row_claims(tables[t], i);

            assert_non_null(c);
            if (strcmp(a->name, "none") == 0)
                continue;
            if (tables[t] == KG_TABLE_SURROGATE && !c->bounds)
                fail_msg("%s: expected what it bounds, found nothing", a->name);
            if (!c->gradient || !c->memory)
                fail_msg("%s: expected a gradient and a memory, found none", a->name);
        }
    assert_null(kg_policy_row_claims(KG_TABLE_ANCHOR, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_estimator_is_as_unbiased_as_its_row_says),
        cmocka_unit_test(without_the_importance_weight_every_sampled_row_is_biased),
        cmocka_unit_test(every_surrogate_is_as_unbiased_as_its_row_says),
        cmocka_unit_test(every_row_makes_its_claims),
    };

    return cmocka_run_group_tests_name("policy/claims", tests, NULL, NULL);
}
