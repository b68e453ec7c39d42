/* Reading golden cases and holding what one of them needs: logits in, compressed loss
 * tokens out.
 *
 * A case gives logits [B,T,V] and a mask; the policy sees only the N tokens of the mask.
 * This file does the plain softmax on the way in and the master rule on the way out, so
 * that what is compared is the gradient with respect to logits.
 */
#ifndef KG_TESTS_POLICY_GOLDEN_H
#define KG_TESTS_POLICY_GOLDEN_H

#include "base/mem.h"
#include "data/json.h"
#include "policy/policy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tensor {
    double *x; /* (n) in the arena; NULL when absent */
    int64_t n, d[3];
};

/* What one case is judged by. */
struct verdict {
    bool failed;
    double worst; /* relative error, where beyond the absolute allowance */
    double rel, abs;
    int64_t compared; /* numbers */
    char why[KG_ERR_MESSAGE_BYTES];
};

struct golden {
    const struct kg_json *c;
    struct kg_arena arena;
    struct verdict v;
};

static inline const struct kg_json *section(const struct golden *g, const char *s,
                                            const char *k)
{
    return kg_json_get(kg_json_get(g->c, s), k);
}
static inline const char *config_text(const struct golden *g, const char *k)
{
    const char *t = kg_json_text(section(g, "config", k), NULL);
    return t ? t : "";
}
static inline double config_real(const struct golden *g, const char *k, double fallback)
{
    return kg_json_real(section(g, "config", k), fallback);
}
static inline bool config_bool(const struct golden *g, const char *k)
{
    return kg_json_bool(section(g, "config", k), false);
}

static inline void *room(struct golden *g, int64_t n, size_t size)
{
    struct kg_err err;
    void *p = kg_arena_alloc(&g->arena, (size_t)(n > 0 ? n : 1), size, &err);

    if (!p)
        abort();
    memset(p, 0, (size_t)n * size);
    return p;
}
static inline double *reals(struct golden *g, int64_t n)
{
    return room(g, n, sizeof(double));
}

static inline struct tensor tensor_at(struct golden *g, const char *s, const char *k)
{
    const struct kg_json *v = section(g, s, k), *shape, *data;
    struct tensor t = {0};

    if (kg_json_type(v) != KG_JSON_OBJECT)
        return t;
    shape = kg_json_get(v, "shape");
    data = kg_json_get(v, "data");
    t.n = (int64_t)kg_json_size(data);
    t.x = reals(g, t.n);
    for (size_t i = 0; i < 3 && i < kg_json_size(shape); i++)
        t.d[i] = kg_json_int(kg_json_at(shape, i), 0);
    for (int64_t i = 0; i < t.n; i++)
        t.x[i] = kg_json_real(kg_json_at(data, (size_t)i), NAN);
    return t;
}
static inline struct tensor input(struct golden *g, const char *k)
{
    return tensor_at(g, "inputs", k);
}

static inline void compare(struct golden *g, const char *what, int64_t i, double got,
                           double want)
{
    double gap = fabs(got - want), allowed = g->v.rel * fabs(want) + g->v.abs;

    g->v.compared++;
    if (gap > g->v.abs && fabs(want) > 0 && gap / fabs(want) > g->v.worst)
        g->v.worst = gap / fabs(want);
    if (gap <= allowed || g->v.failed)
        return;
    g->v.failed = true;
    snprintf(g->v.why, sizeof g->v.why, "%s[%lld]: expected %.17g, found %.17g", what,
             (long long)i, want, got);
}
static inline void give_up(struct golden *g, const struct kg_err *err)
{
    g->v.failed = true;
    snprintf(g->v.why, sizeof g->v.why, "%s", err->message);
}
/* A scalar of "expected", when the case has it. */
static inline void expect_scalar(struct golden *g, const char *k, double got)
{
    const struct kg_json *v = section(g, "expected", k);

    if (kg_json_is_number(v))
        compare(g, k, 0, got, kg_json_real(v, NAN));
}
static inline void expect_metric(struct golden *g, const char *k, double got)
{
    const struct kg_json *v = kg_json_get(section(g, "expected", "metrics"), k);

    if (kg_json_type(v) == KG_JSON_ARRAY)
        v = kg_json_at(v, 0);
    if (kg_json_is_number(v))
        compare(g, k, 0, got, kg_json_real(v, NAN));
}

/* ---- a batch of a case
 * -------------------------------------------------------------------------- */

struct eval {
    struct golden *g;
    struct kg_algo algo;
    struct kg_policy_batch b;
    struct kg_policy_grad grad;
    struct kg_policy_totals totals;
    double scale; /* of every weight: dp_size and the like */
    double temperature;
    bool all_rows;   /* empty rows count as sequences */
    int64_t B, T, V; /* T, V of the case; B rows of this (micro-)batch */
    int64_t first;   /* its first row in the case */
    int64_t *at;     /* (N) position of a token in [B,T] of the case */
    double *logits;  /* all of the case, divided by the temperature */
    double *ref;     /* reference logits, or NULL */
    double *logits_grad;
};

static inline double log_sum_exp(const double *z, int64_t n)
{
    double top = -INFINITY, sum = 0;

    for (int64_t v = 0; v < n; v++)
        top = fmax(top, z[v]);
    for (int64_t v = 0; v < n; v++)
        sum += exp(z[v] - top);
    return top + log(sum);
}

static inline double *gather(struct eval *e, const char *name)
{
    struct tensor t = input(e->g, name);
    double *out;

    if (!t.x)
        return NULL;
    out = reals(e->g, e->b.n_tokens);
    for (int64_t n = 0; n < e->b.n_tokens; n++)
        out[n] = t.x[e->at[n]];
    return out;
}

/* The tokens under the mask of rows first .. first+B-1, and their plain statistics. */
static inline void eval_rows(struct eval *e)
{
    struct golden *g = e->g;
    struct tensor mask = input(g, "response_mask"), tokens = input(g, "tokens");
    int64_t *begin = room(g, e->B + 1, sizeof *begin), n = 0;
    int32_t *ids = room(g, e->B * e->T, sizeof *ids);

    e->at = room(g, e->B * e->T, sizeof *e->at);
    for (int64_t r = 0; r < e->B; r++) {
        for (int64_t t = 0; t < e->T; t++) {
            int64_t at = (e->first + r) * e->T + t;

            if (mask.x && mask.x[at] == 0)
                continue;
            ids[n] = tokens.x ? (int32_t)tokens.x[at] : 0;
            e->at[n++] = at;
        }
        begin[r + 1] = n;
    }
    e->b.n_seqs = e->B;
    e->b.n_tokens = n;
    e->b.seq_begin = begin;
    e->b.tokens = ids;
}

static inline void eval_statistics(struct eval *e)
{
    struct golden *g = e->g;
    int64_t N = e->b.n_tokens, V = e->V;
    double *lp = reals(g, N), *h = reals(g, N), *kl = reals(g, N);
    bool forward = e->algo.kl &&
                   strcmp(kg_algo_row_name(&e->algo, KG_TABLE_KL), "exact-forward") == 0;

    for (int64_t n = 0; n < N; n++) {
        const double *z = e->logits + e->at[n] * V;
        const double *q = e->ref ? e->ref + e->at[n] * V : NULL;
        double lse = log_sum_exp(z, V), ref_lse = q ? log_sum_exp(q, V) : 0;

        lp[n] = z[e->b.tokens[n]] - lse;
        for (int64_t v = 0; v < V; v++) {
            double p = exp(z[v] - lse), d = q ? z[v] - lse - q[v] + ref_lse : 0;

            h[n] -= p * (z[v] - lse);
            kl[n] += forward ? -exp(q[v] - ref_lse) * d : p * d;
        }
    }
    e->b.logp = lp;
    e->b.entropy = h;
    e->b.kl_exact = kl;
}

static inline void eval_columns(struct eval *e, const char *ids_name, bool anchor_part)
{
    struct golden *g = e->g;
    struct tensor t = input(g, ids_name), mu = input(g, "rollout_topk_log_probs");
    int64_t N = e->b.n_tokens, K = t.d[2];
    int32_t *ids = room(g, N * K, sizeof *ids);
    double *at = reals(g, N * K), *ref = reals(g, N * K), *mu_at = reals(g, N * K);

    for (int64_t n = 0; n < N; n++) {
        const double *z = e->logits + e->at[n] * e->V;
        const double *q = e->ref ? e->ref + e->at[n] * e->V : NULL;
        double lse = log_sum_exp(z, e->V), ref_lse = q ? log_sum_exp(q, e->V) : 0;

        for (int64_t j = 0; j < K; j++) {
            int32_t v = (int32_t)t.x[e->at[n] * K + j];

            ids[n * K + j] = v;
            at[n * K + j] = z[v] - lse;
            ref[n * K + j] = q ? q[v] - ref_lse : 0;
            mu_at[n * K + j] = mu.x ? mu.x[e->at[n] * K + j] : 0;
        }
    }
    e->b.ids = ids, e->b.logp_at = at, e->b.anchor_at = ref, e->b.mu_at = mu_at;
    e->b.k_sampler = anchor_part ? 0 : (int)K;
    e->b.k_anchor = anchor_part ? (int)K : 0;
    e->grad.a_at = reals(g, N * K);
}

/* Fill everything the case supplies. The algorithm must be set. B 0: every row. */
static inline void eval_load(struct eval *e, struct golden *g, int64_t first, int64_t B)
{
    struct tensor z = input(g, "logits"), ref = input(g, "ref_logits");
    double tau = config_real(g, "temperature", 1);

    e->g = g;
    e->T = z.d[1], e->V = z.d[2], e->first = first, e->B = B > 0 ? B : z.d[0];
    e->temperature = tau, e->scale = 1;
    for (int64_t i = 0; i < z.n; i++)
        z.x[i] /= tau;
    for (int64_t i = 0; i < ref.n; i++)
        ref.x[i] /= tau;
    e->logits = z.x, e->ref = ref.x;
    e->logits_grad = reals(g, z.n);
    eval_rows(e);
    eval_statistics(e);
    e->b.old_logp = gather(e, "old_log_prob");
    e->b.mu_logp = gather(e, "rollout_log_prob");
    e->b.anchor_logp = gather(e, "ref_log_prob");
    e->b.advantage = gather(e, "advantages");
    e->b.is_weight = gather(e, "rollout_is_weights");
    if (!e->b.old_logp)
        e->b.old_logp = e->b.logp;
    if (!e->b.advantage)
        e->b.advantage = reals(g, e->b.n_tokens);
    kg_policy_totals(&e->totals, &e->algo, e->B, e->b.seq_begin, NULL);
}

/* Weights under e->totals, loss, gradient. */
static inline bool eval_run(struct eval *e, bool with_pg)
{
    struct golden *g = e->g;
    int64_t N = e->b.n_tokens;
    double *w = reals(g, N);
    struct kg_err err;

    if (kg_policy_weights_of(w, &e->algo, &e->totals, e->B, e->b.seq_begin, NULL, &err)) {
        give_up(g, &err);
        return false;
    }
    for (int64_t n = 0; n < N; n++)
        w[n] *= e->scale;
    e->b.pg_weight = with_pg ? w : reals(g, N);
    e->b.kl_weight = e->b.entropy_weight = w;
    e->grad.a_logp = reals(g, N);
    e->grad.a_entropy = reals(g, N);
    e->grad.a_kl_exact = reals(g, N);
    e->grad.kl_term = reals(g, N);
    if (kg_policy_loss(&e->grad, &e->algo, &e->b, &err)) {
        give_up(g, &err);
        return false;
    }
    return true;
}

/* dloss/dz_v = 1[v in J] a_v - p_v sum a - c p_v (log p_v + H) + dense KL, over the
 * temperature. */
static inline void master_rule(struct eval *e, double factor)
{
    const struct kg_policy_batch *b = &e->b;
    int64_t V = e->V, K = b->k_sampler + b->k_anchor;
    bool forward = strcmp(kg_algo_row_name(&e->algo, KG_TABLE_KL), "exact-forward") == 0;

    for (int64_t n = 0; n < b->n_tokens; n++) {
        const double *z = e->logits + e->at[n] * V,
                     *q = e->ref ? e->ref + e->at[n] * V : z;
        double *out = e->logits_grad + e->at[n] * V, *row = reals(e->g, V);
        double lse = log_sum_exp(z, V), ref_lse = log_sum_exp(q, V),
               sum = e->grad.a_logp[n];

        row[b->tokens[n]] += e->grad.a_logp[n];
        for (int64_t j = 0; j < K; j++) {
            row[b->ids[n * K + j]] += e->grad.a_at[n * K + j];
            sum += e->grad.a_at[n * K + j];
        }
        for (int64_t v = 0; v < V; v++) {
            double lp = z[v] - lse, lq = q[v] - ref_lse, p = exp(lp);
            double dense = forward ? p - exp(lq) : p * (lp - lq - b->kl_exact[n]);

            row[v] -= p * sum + e->grad.a_entropy[n] * p * (lp + b->entropy[n]);
            row[v] += e->grad.a_kl_exact[n] * dense;
            out[v] += factor * row[v] / e->temperature;
        }
    }
}

static inline void expect_logits(struct eval *e)
{
    struct tensor want = tensor_at(e->g, "grad", "logits");

    for (int64_t i = 0; i < want.n; i++)
        compare(e->g, "grad.logits", i, e->logits_grad[i], want.x[i]);
}

/* Values at the tokens of the mask. */
static inline void expect_tokens(struct eval *e, const char *s, const char *k,
                                 const double *got, double factor)
{
    struct tensor want = tensor_at(e->g, s, k);

    for (int64_t n = 0; want.x && n < e->b.n_tokens; n++)
        compare(e->g, k, e->at[n], factor * got[n], want.x[e->at[n]]);
}

#endif
