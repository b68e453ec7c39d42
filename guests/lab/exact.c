/* The enumeration: a tree of contexts, its completions as one batch, and their moments.
 *
 * Context 0 is the prompt; the children of context c are V c + 1 .. V c + V. A KL row
 * needs the prompt alone, whose V completions have one token. Every completion is in the
 * batch once, with weight 1, so a_logp and a_at are the coefficients of its own gradient;
 * moments weight them by probability. But for a row that selects tokens of the whole
 * batch, a completion y is in the batch about COPIES mu(y) times.
 *
 * The logits come from fractions of multiples of irrational numbers: spread evenly,
 * without a generator, and easy to repeat elsewhere. To the power -3/2 they are as peaked
 * as a language model's next token. Half of the stale policy's change follows the
 * rewards, because bounds act on the side to which the advantage leads.
 */
#include "lab/exact.h"

#include "base/columns.h"
#include "base/mem.h"
#include "base/real.h"
#include "policy/policy.h"
#include "policy/presets.h"

#include <math.h>
#include <string.h>

enum {
    V = KG_EXACT_VOCAB,
    T = KG_EXACT_TOKENS,
    CONTEXTS = 1 + V + V * V,
    SEQS = V * V * V,
    COPIES = 4000,
    MOST_TOKENS = (COPIES + SEQS) * T,
    BISECTIONS = 100
};
_Static_assert(T == 3, "three levels of contexts");

const double kg_exact_kl_nats[] = {0.01, 0.1, 1};
const double kg_exact_stale_nats[] = {0.001, 0.01, 0.1};

/* Log-probs at every context. */
struct softmax {
    double at[CONTEXTS][V];
};

struct kg_exact {
    int depth; /* tokens of a completion: 1 for KL rows */
    struct softmax p, old, mu, q;
    double reach[CONTEXTS];          /* probability of a context */
    double advantage[SEQS];          /* of a completion */
    double quality[SEQS + CONTEXTS]; /* E[A] given a context; then A of completions */
    struct softmax towards;          /* the direction in which policies move */
    double target[CONTEXTS][V];      /* the exact gradient */
    double mean[CONTEXTS][V];        /* E of the estimated gradient */
    double squares, value, value_squares, stopped; /* E of |g|^2, KL term, its square */
    /* the batch, one row per token */
    struct kg_policy_batch b;
    struct kg_policy_grad g;
    struct kg_block block; /* owned: all that follows */
    int64_t *begin;        /* (MOST_TOKENS + 1) */
    int32_t *context, *tokens, *ids;
    double *logp, *old_logp, *mu_logp, *anchor_logp, *token_advantage, *exact, *one,
        *chance;
    double *at, *anchor_at, *mu_at;
    double *a_logp, *a_at, *a_exact, *term;
    uint8_t *selected;
};

enum { TOKENS, BEGINS, IDS, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct kg_exact, begin, BEGINS),
    KG_COLUMN(struct kg_exact, context, TOKENS),
    KG_COLUMN(struct kg_exact, tokens, TOKENS),
    KG_COLUMN(struct kg_exact, ids, IDS),
    KG_COLUMN(struct kg_exact, logp, TOKENS),
    KG_COLUMN(struct kg_exact, old_logp, TOKENS),
    KG_COLUMN(struct kg_exact, mu_logp, TOKENS),
    KG_COLUMN(struct kg_exact, anchor_logp, TOKENS),
    KG_COLUMN(struct kg_exact, token_advantage, TOKENS),
    KG_COLUMN(struct kg_exact, exact, TOKENS),
    KG_COLUMN(struct kg_exact, one, TOKENS),
    KG_COLUMN(struct kg_exact, chance, TOKENS),
    KG_COLUMN(struct kg_exact, at, IDS),
    KG_COLUMN(struct kg_exact, anchor_at, IDS),
    KG_COLUMN(struct kg_exact, mu_at, IDS),
    KG_COLUMN(struct kg_exact, a_logp, TOKENS),
    KG_COLUMN(struct kg_exact, a_at, IDS),
    KG_COLUMN(struct kg_exact, a_exact, TOKENS),
    KG_COLUMN(struct kg_exact, term, TOKENS),
    KG_COLUMN(struct kg_exact, selected, TOKENS),
    {0},
};

kg_status kg_exact_create(struct kg_exact **exact, struct kg_err *err)
{
    const size_t counts[COUNTS] = {MOST_TOKENS, MOST_TOKENS + 1, (size_t)MOST_TOKENS * V};
    struct kg_exact *e = kg_mem_calloc(1, sizeof *e, "enumeration", err);
    kg_status status = e ? kg_columns_take(&e->block, e, columns, counts, "enumeration",
                                           err)
                         : err->code;

    *exact = e;
    if (status != KG_OK) {
        kg_exact_free(e);
        *exact = NULL;
    }
    return status;
}

void kg_exact_free(struct kg_exact *e)
{
    if (!e)
        return;
    kg_columns_free(&e->block, e, columns);
    kg_mem_free(e);
}

/* ---- policies ---- */

static int n_contexts(const struct kg_exact *e) { return e->depth == 1 ? 1 : CONTEXTS; }

static int n_completions(const struct kg_exact *e) { return e->depth == 1 ? V : SEQS; }

/* The i-th of a fixed sequence of numbers in (0, 1). */
static double fraction(int i, double irrational)
{
    double x = (i + 1) * irrational;

    return x - floor(x);
}

static void normalise(double l[V])
{
    double sum = 0;

    for (int v = 0; v < V; v++)
        sum += kg_exp(l[v]);
    for (int v = 0; v < V; v++)
        l[v] -= kg_log(sum);
}

static void start(struct softmax *out, const struct kg_exact *e)
{
    for (int c = 0; c < n_contexts(e); c++) {
        for (int v = 0; v < V; v++)
            out->at[c][v] = -1.5 * kg_log(fraction(c * V + v, 0.6180339887498949));
        normalise(out->at[c]);
    }
}

static double divergence(const double from[V], const double to[V])
{
    double sum = 0;

    for (int v = 0; v < V; v++)
        sum += kg_exp(from[v]) * (from[v] - to[v]);
    return sum;
}

/* out = from + step e->towards.   returns the mean KL(from||out) per completion token */
static double step_to(struct softmax *out, const struct softmax *from,
                      const struct kg_exact *e, double step)
{
    double sum = 0;

    for (int c = 0; c < n_contexts(e); c++) {
        for (int v = 0; v < V; v++)
            out->at[c][v] = from->at[c][v] + step * e->towards.at[c][v];
        normalise(out->at[c]);
        sum += e->reach[c] * divergence(from->at[c], out->at[c]);
    }
    return sum / e->depth;
}

/* out: `from` moved along e->towards until KL(from||out) = nats, found by bisection */
static void move(struct softmax *out, const struct softmax *from,
                 const struct kg_exact *e, double nats)
{
    double low = 0, high = 1;

    while (step_to(out, from, e, high) < nats)
        high *= 2;
    for (int i = 0; i < BISECTIONS; i++) {
        double middle = (low + high) / 2;

        *(step_to(out, from, e, middle) < nats ? &low : &high) = middle;
    }
}

/* ---- the batch ---- */

/* The ids of a context, most likely first. */
static void rank_ids(int32_t ids[V], const double l[V])
{
    for (int v = 0; v < V; v++) {
        int j = v;

        for (; j > 0 && l[ids[j - 1]] < l[v]; j--)
            ids[j] = ids[j - 1];
        ids[j] = v;
    }
}

static void put_token(struct kg_exact *e, int64_t n, int context, int token)
{
    bool anchor_head = e->b.k_anchor > 0;

    e->context[n] = context;
    e->tokens[n] = token;
    e->logp[n] = e->p.at[context][token];
    e->old_logp[n] = e->old.at[context][token];
    e->mu_logp[n] = e->mu.at[context][token];
    e->anchor_logp[n] = e->q.at[context][token];
    e->one[n] = 1;
    if (e->b.k_anchor + e->b.k_sampler == 0)
        return;
    rank_ids(&e->ids[n * V], (anchor_head ? e->q : e->mu).at[context]);
    for (int j = 0; j < V; j++) {
        int id = e->ids[n * V + j];

        e->at[n * V + j] = e->p.at[context][id];
        e->anchor_at[n * V + j] = e->q.at[context][id];
        e->mu_at[n * V + j] = e->mu.at[context][id];
    }
}

/* Puts completion y, whose tokens are y's digits in base V.   returns its probability */
static double put_completion(struct kg_exact *e, int64_t n, int y)
{
    double log_chance = 0;

    for (int t = 0, context = 0, unit = n_completions(e) / V; t < e->depth; t++) {
        int token = y / unit % V;

        put_token(e, n + t, context, token);
        e->token_advantage[n + t] = e->depth > 1 ? e->advantage[y] : 0;
        log_chance += e->mu.at[context][token];
        context = V * context + token + 1;
        unit /= V;
    }
    return kg_exp(log_chance);
}

static void fill(struct kg_exact *e, const struct kg_algo *algo)
{
    bool counts = kg_algo_scope(algo) == KG_SCOPE_BATCH;
    int64_t n = 0, seqs = 0;

    for (int y = 0; y < n_completions(e); y++) {
        double chance = put_completion(e, n, y);
        int64_t copies = counts ? (int64_t)(chance * COPIES + 0.5) : 1;

        copies = copies < 1 ? 1 : copies;
        for (int64_t i = 0; i < copies; i++, n += e->depth) {
            put_completion(e, n, y);
            e->chance[seqs] = chance / (double)copies;
            e->begin[seqs++] = n;
        }
    }
    e->begin[seqs] = n;
    e->b.n_seqs = seqs;
    e->b.n_tokens = n;
}

/* exact: the divergence, for algorithms that read kl_exact */
static void make_batch(struct kg_exact *e, const struct kg_algo *algo, double exact)
{
    unsigned needs = kg_algo_needs(algo);

    e->b = (struct kg_policy_batch){.seq_begin = e->begin,
                                    .tokens = e->tokens,
                                    .logp = e->logp,
                                    .old_logp = e->old_logp,
                                    .mu_logp = e->mu_logp,
                                    .anchor_logp = e->anchor_logp,
                                    .advantage = e->token_advantage,
                                    .kl_exact = e->exact,
                                    .k_sampler = needs & KG_NEED_TOP_SAMPLER ? V : 0,
                                    .k_anchor = needs & KG_NEED_TOP_ANCHOR ? V : 0,
                                    .ids = e->ids,
                                    .logp_at = e->at,
                                    .anchor_at = e->anchor_at,
                                    .mu_at = e->mu_at,
                                    .pg_weight = e->one,
                                    .kl_weight = e->one,
                                    .selected = e->selected};
    e->g = (struct kg_policy_grad){.a_logp = e->a_logp,
                                   .a_at = e->a_at,
                                   .a_kl_exact = e->a_exact,
                                   .kl_term = e->term};
    fill(e, algo);
    for (int64_t n = 0; n < e->b.n_tokens; n++)
        e->exact[n] = exact;
}

/* ---- moments ---- */

/* The gradient of a token's term with respect to the logits of its context:
 *     sum_J a_j (1[v = j] - p_v)  +  a_exact dKL/dz_v */
static void token_gradient(double out[V], const struct kg_exact *e, int64_t n)
{
    const double *p = e->p.at[e->context[n]];
    double sum = e->a_logp[n];

    for (int v = 0; v < V; v++)
        out[v] = e->a_exact[n] * e->target[e->context[n]][v];
    out[e->tokens[n]] += e->a_logp[n];
    for (int j = 0; j < e->b.k_sampler + e->b.k_anchor; j++) {
        out[e->ids[n * V + j]] += e->a_at[n * V + j];
        sum += e->a_at[n * V + j];
    }
    for (int v = 0; v < V; v++)
        out[v] -= sum * kg_exp(p[v]);
}

static void add_token(struct kg_exact *e, int64_t n, double chance)
{
    double g[V];

    token_gradient(g, e, n);
    for (int v = 0; v < V; v++) {
        e->mean[e->context[n]][v] += chance * g[v];
        e->squares += chance * g[v] * g[v];
    }
    e->value += chance * e->term[n];
    e->value_squares += chance * e->term[n] * e->term[n];
    if (e->token_advantage[n] != 0 && e->a_logp[n] == 0)
        e->stopped += chance / e->depth;
}

/* A completion's tokens have different contexts, so their squared gradients add up. */
static void take_moments(struct kg_exact *e)
{
    memset(e->mean, 0, sizeof e->mean);
    e->squares = e->value = e->value_squares = e->stopped = 0;
    for (int64_t i = 0; i < e->b.n_seqs; i++)
        for (int64_t n = e->begin[i]; n < e->begin[i + 1]; n++)
            add_token(e, n, e->chance[i]);
}

static const struct kg_exact_gradient unknown = {NAN, NAN, NAN, NAN};

/* Standard deviation; a variance that is only rounding error counts as 0. */
static double deviation(double squares, double square_of_mean)
{
    double x = squares - square_of_mean;

    return x > 1e-12 * squares ? sqrt(x) : 0;
}

static struct kg_exact_gradient compared(const struct kg_exact *e)
{
    const double *mean = e->mean[0], *target = e->target[0];
    double apart = 0, squares = 0, product = 0, exact = 0;

    for (int i = 0; i < n_contexts(e) * V; i++) {
        apart += (mean[i] - target[i]) * (mean[i] - target[i]);
        squares += mean[i] * mean[i];
        product += mean[i] * target[i];
        exact += target[i] * target[i];
    }
    return (struct kg_exact_gradient){
        .bias = sqrt(apart / exact),
        .noise = deviation(e->squares, squares) / sqrt(exact),
        .cosine = squares > 1e-20 * exact ? product / sqrt(squares * exact) : NAN,
        .length = sqrt(squares / exact)};
}

static kg_status set_key(struct kg_algo *algo, const char *key, const char *value,
                         struct kg_err *err)
{
    for (const struct kg_opt_row *row = kg_algo_rows; row->key; row++)
        if (strcmp(row->key, key) == 0)
            KG_TRY(kg_opt_check(row, value, NULL, err));
    return kg_algo_set(algo, key, value, err);
}

bool kg_exact_takes(enum kg_policy_table table, size_t i, const char *key)
{
    return kg_policy_reads(kg_policy_row(table, i), key) ||
           (kg_policy_row_nature(table, i).pops && strncmp(key, "algo.tis", 8) == 0);
}

static kg_status set_keys(struct kg_algo *algo, enum kg_policy_table table, size_t at,
                          const struct kg_exact_keys *keys, struct kg_err *err)
{
    for (size_t i = 0; i < keys->n; i++)
        if (kg_exact_takes(table, at, keys->key[i]))
            KG_TRY(set_key(algo, keys->key[i], keys->value[i], err));
    if (algo->tis_low > algo->tis)
        return kg_fail(err, KG_EINVAL,
                       "algo.tis_low: expected at most algo.tis, %g, found %g", algo->tis,
                       algo->tis_low);
    if (algo->kl_top_k > V || algo->top_k > V)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected at most %d of a vocabulary of %d ids",
                       algo->top_k > V ? "algo.top_k" : "kl.top_k", V, V);
    return KG_OK;
}

/* ---- KL rows ---- */

static enum kg_target target_of(size_t i)
{
    const struct kg_policy_claims *claims = kg_policy_row_claims(KG_TABLE_KL, i);

    if (claims->target != KG_TARGET_NONE)
        return claims->target;
    return kg_policy_row_nature(KG_TABLE_KL, i).forward ? KG_TARGET_FORWARD
                                                        : KG_TARGET_REVERSE;
}

/* e->target: the gradient; reverse: dKL/dz_v = p_v (log p_v - log q_v - KL); forward:
 * p_v - q_v.   returns the divergence */
static double divergence_of(struct kg_exact *e, enum kg_target target)
{
    const double *p = e->p.at[0], *q = e->q.at[0];
    double reverse = divergence(p, q), forward = divergence(q, p);
    double share = target == KG_TARGET_REVERSE   ? 1
                   : target == KG_TARGET_FORWARD ? 0
                                                 : 0.5;

    for (int v = 0; v < V; v++)
        e->target[0][v] = share * kg_exp(p[v]) * (p[v] - q[v] - reverse) +
                          (1 - share) * (kg_exp(p[v]) - kg_exp(q[v]));
    return share * reverse + (1 - share) * forward;
}

/* In an advantage the value is a constant: the gradient is value x grad log p(y). */
static struct kg_exact_gradient as_advantage(struct kg_exact *e)
{
    memcpy(e->a_logp, e->term, (size_t)e->b.n_tokens * sizeof *e->a_logp);
    memset(e->a_at, 0, (size_t)e->b.n_tokens * V * sizeof *e->a_at);
    memset(e->a_exact, 0, (size_t)e->b.n_tokens * sizeof *e->a_exact);
    take_moments(e);
    return compared(e);
}

static kg_status run(struct kg_exact *e, const struct kg_algo *algo, double exact,
                     struct kg_err *err)
{
    make_batch(e, algo, exact);
    KG_TRY(kg_policy_select(e->selected, algo, &e->b, err));
    KG_TRY(kg_policy_loss(&e->g, algo, &e->b, err));
    take_moments(e);
    return KG_OK;
}

static kg_status stale(struct kg_exact_gradient *out, struct kg_exact *e,
                       struct kg_algo algo, size_t i, bool weighted, struct kg_err *err)
{
    algo.kl_importance = weighted;
    KG_TRY(run(e, &algo, divergence_of(e, target_of(i)), err));
    *out = compared(e);
    return KG_OK;
}

/* Places p, and q with KL(p||q) = nats in another direction than place_stale. */
static void place_policies(struct kg_exact *e, bool iterative, double nats)
{
    e->depth = 1;
    e->reach[0] = 1;
    start(&e->p, e);
    for (int v = 0; v < V; v++)
        e->towards.at[0][v] = 2 * fraction(v, 0.4142135623730951) - 1;
    move(&e->q, &e->p, e, nats);
    e->mu = e->old = iterative ? e->q : e->p;
}

static void place_stale(struct kg_exact *e, double nats)
{
    for (int v = 0; v < V; v++)
        e->towards.at[0][v] = 2 * fraction(v, 0.7320508075688772) - 1;
    move(&e->old, &e->p, e, nats);
    e->mu = e->old;
}

static kg_status kl_at(struct kg_exact_kl *out, struct kg_exact *e,
                       const struct kg_algo *algo, size_t i, double nats,
                       struct kg_err *err)
{
    const struct kg_policy_nature row = kg_policy_row_nature(KG_TABLE_KL, i);

    place_policies(e, row.iterative, nats);
    out->kl = divergence_of(e, target_of(i));
    KG_TRY(run(e, algo, out->kl, err));
    out->value_bias = (e->value - out->kl) / out->kl;
    out->value_noise = deviation(e->value_squares, e->value * e->value) / out->kl;
    out->in_loss = compared(e);
    out->in_advantage = as_advantage(e);
    out->stale = out->stale_unweighted = unknown;
    if (row.reward_only) {
        out->value_bias = out->value_noise = NAN;
        out->in_loss = unknown;
    }
    if (row.iterative)
        return KG_OK;
    place_stale(e, nats);
    KG_TRY(stale(&out->stale, e, *algo, i, true, err));
    return stale(&out->stale_unweighted, e, *algo, i, false, err);
}

kg_status kg_exact_kl_row(struct kg_exact_kl out[KG_EXACT_PLACES], struct kg_exact *e,
                          size_t i, const struct kg_exact_keys *keys, struct kg_err *err)
{
    const char *name = kg_policy_row(KG_TABLE_KL, i)->name;
    struct kg_algo algo;

    kg_algo_init(&algo);
    KG_TRY(kg_algo_set(&algo, "anchor.kind", "fixed", err));
    KG_TRY(kg_algo_set(&algo, "kl.estimator", name, err));
    algo.kl_beta = 1;
    algo.top_k = algo.kl_top_k = KG_EXACT_HEAD;
    KG_TRY(set_keys(&algo, KG_TABLE_KL, i, keys, err));
    for (int place = 0; place < KG_EXACT_PLACES; place++)
        KG_TRY(kl_at(&out[place], e, &algo, i, kg_exact_kl_nats[place], err));
    return KG_OK;
}

/* ---- surrogates and masks ---- */

/* Reach and quality of every context under a policy. The children of context c begin at
 * V c + 1; those of the last contexts are the completions. */
static void walk(struct kg_exact *e, const struct softmax *policy)
{
    memcpy(&e->quality[CONTEXTS], e->advantage, sizeof e->advantage);
    for (int c = CONTEXTS - 1; c >= 0; c--) {
        e->quality[c] = 0;
        for (int v = 0; v < V; v++)
            e->quality[c] += kg_exp(policy->at[c][v]) * e->quality[V * c + v + 1];
    }
    e->reach[0] = 1;
    for (int c = 1; c < CONTEXTS; c++)
        e->reach[c] = e->reach[(c - 1) / V] *
                      kg_exp(policy->at[(c - 1) / V][(c - 1) % V]);
}

/* About one completion in four is right; A = (R - mean) / std, under mu. */
static void grade(struct kg_exact *e)
{
    double mean;

    for (int y = 0; y < SEQS; y++)
        e->advantage[y] = fraction(y, 0.4142135623730951) < 0.25;
    walk(e, &e->mu);
    mean = e->quality[0];
    for (int y = 0; y < SEQS; y++)
        e->advantage[y] = (e->advantage[y] - mean) / sqrt(mean * (1 - mean));
    walk(e, &e->mu);
}

/* -dE_p[A]/dz_v at a context = -reach p_v (quality of v - quality), under p. */
static void take_objective(struct kg_exact *e)
{
    walk(e, &e->p);
    for (int c = 0; c < CONTEXTS; c++)
        for (int v = 0; v < V; v++)
            e->target[c][v] = -e->reach[c] * kg_exp(e->p.at[c][v]) *
                              (e->quality[V * c + v + 1] - e->quality[c]);
}

static void place_sampler(struct kg_exact *e, double nats, bool recomputed)
{
    e->depth = T;
    start(&e->mu, e);
    grade(e);
    for (int c = 0; c < CONTEXTS; c++)
        for (int v = 0; v < V; v++)
            e->towards.at[c][v] = e->quality[V * c + v + 1] - e->quality[c] +
                                  2 * fraction(c * V + v, 0.7320508075688772) - 1;
    move(&e->p, &e->mu, e, nats);
    e->q = e->mu;
    e->old = recomputed ? e->p : e->mu;
    take_objective(e);
}

const struct kg_preset *kg_exact_preset(enum kg_policy_table table, size_t i)
{
    const char *name = kg_policy_row(table, i)->name;
    const struct kg_preset *first = NULL;

    for (size_t at = kg_preset_count(); at-- > 0;) {
        const struct kg_preset *p = kg_preset_at(at);
        const char *found = kg_preset_get(p, kg_policy_table_key(table));

        if (p->kind != KG_PRESET_METHOD || !found || strcmp(found, name) != 0)
            continue;
        if (strcmp(p->name, name) == 0)
            return p;
        first = p;
    }
    return first;
}

static bool recomputes(const struct kg_preset *preset)
{
    const char *old = preset ? kg_preset_get(preset, "train.old_logp") : NULL;

    return old && strcmp(old, "recompute") == 0;
}

/* The row with its preset's bounds, but without the preset's KL, mask and entropy. */
static kg_status take_row(struct kg_algo *algo, enum kg_policy_table table, size_t i,
                          const struct kg_preset *preset, struct kg_err *err)
{
    const char *name = kg_policy_row(table, i)->name;

    kg_algo_init(algo);
    if (preset)
        KG_TRY(kg_preset_apply(algo, preset, err));
    KG_TRY(kg_algo_set(algo, "kl.estimator", "none", err));
    KG_TRY(kg_algo_set(algo, "kl.in", "loss", err));
    KG_TRY(kg_algo_set(algo, "algo.mask", "none", err));
    KG_TRY(kg_algo_set(algo, "algo.surrogate", "importance", err));
    algo->entropy_coef = algo->kl_beta = 0;
    algo->tis = table == KG_TABLE_MASK ? algo->tis : 0;
    algo->top_k = algo->kl_top_k = KG_EXACT_HEAD;
    return kg_algo_set(algo, kg_policy_table_key(table), name, err);
}

kg_status kg_exact_region_row(struct kg_exact_region out[KG_EXACT_PLACES],
                              struct kg_exact *e, enum kg_policy_table table, size_t i,
                              const struct kg_exact_keys *keys, struct kg_err *err)
{
    const struct kg_policy_about *row = kg_policy_row(table, i);
    const struct kg_preset *preset = kg_exact_preset(table, i);
    struct kg_algo algo;

    KG_TRY(take_row(&algo, table, i, preset, err));
    KG_TRY(set_keys(&algo, table, i, keys, err));
    for (int place = 0; place < KG_EXACT_PLACES; place++) {
        out[place] = (struct kg_exact_region){unknown, NAN};
        if (kg_policy_reads(row, "algo.mask_delta") && algo.mask_delta == 0)
            continue;
        place_sampler(e, kg_exact_stale_nats[place], recomputes(preset));
        KG_TRY(run(e, &algo, 0, err));
        out[place] = (struct kg_exact_region){compared(e), e->stopped};
    }
    return KG_OK;
}
