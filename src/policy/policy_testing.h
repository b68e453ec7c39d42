/* For the tests of policy/: a vocabulary small enough to enumerate.
 *
 * Each batch samples every token of the vocabulary once, in one context, with weight
 * equal to its probability. The loss is then an expectation, and its gradient the
 * expected gradient.
 */
#ifndef KG_POLICY_POLICY_TESTING_H
#define KG_POLICY_POLICY_TESTING_H

#include "base/rng.h"
#include "policy/policy.h"
#include "policy/presets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 12 };

struct world {
    double p[VOCAB], lp[VOCAB]; /* current policy */
    double q[VOCAB], lq[VOCAB]; /* anchor */
    double o[VOCAB], lo[VOCAB]; /* the policy that samples */
};

static inline void log_softmax(double *lp, double *p, const double *z)
{
    double sum = 0;

    for (int v = 0; v < VOCAB; v++)
        sum += exp(z[v]);
    for (int v = 0; v < VOCAB; v++) {
        lp[v] = z[v] - log(sum);
        p[v] = exp(lp[v]);
    }
}

static inline void normals(double *z, uint64_t seed, uint32_t which, double scale)
{
    struct kg_rng_key key = {seed, KG_RNG_TEST};
    float x[4];

    for (int v = 0; v < VOCAB; v++) {
        if (v % 4 == 0)
            kg_rng_normal4(x, key, which, (uint32_t)v, 0);
        z[v] = scale * (double)x[v % 4];
    }
}

/* Three different policies; off_policy false: the sampler is the current one. */
static inline struct world world_of(uint64_t seed, bool off_policy)
{
    struct world w;
    double z[VOCAB], dz[VOCAB];

    normals(z, seed, 0, 1.2);
    log_softmax(w.lp, w.p, z);
    normals(dz, seed, 1, 0.5);
    for (int v = 0; v < VOCAB; v++)
        dz[v] += z[v];
    log_softmax(w.lq, w.q, dz);
    normals(dz, seed, 2, off_policy ? 0.4 : 0);
    for (int v = 0; v < VOCAB; v++)
        dz[v] += z[v];
    log_softmax(w.lo, w.o, dz);
    return w;
}

static inline void largest(int32_t *ids, int k, const double *x)
{
    bool used[VOCAB] = {false};

    for (int j = 0; j < k; j++) {
        int best = -1;

        for (int v = 0; v < VOCAB; v++)
            if (!used[v] && (best < 0 || x[v] > x[best]))
                best = v;
        used[best] = true;
        ids[j] = best;
    }
}

/* Every token once, each a sequence of its own. */
struct sweep {
    struct kg_algo algo;
    struct kg_policy_batch b;
    struct kg_policy_grad g;
    int64_t begin[VOCAB + 1];
    int32_t tokens[VOCAB], ids[VOCAB * VOCAB];
    double at[VOCAB * VOCAB], anchor_at[VOCAB * VOCAB], mu_at[VOCAB * VOCAB];
    double weight[VOCAB], zero[VOCAB], exact[VOCAB], advantage[VOCAB];
    double a_logp[VOCAB], a_at[VOCAB * VOCAB], a_exact[VOCAB], a_entropy[VOCAB];
    double pg_term[VOCAB], kl_term[VOCAB];
    double grad[VOCAB]; /* with respect to the logits of the context */
};

static inline void must_set(struct kg_algo *algo, const char *key, const char *value)
{
    struct kg_err err;

    if (kg_algo_set(algo, key, value, &err) != KG_OK)
        fail_msg("%s", err.message);
}

/* Applies the keys that policy/ reads; sizes of a recipe belong to train. */
static inline void set_values(struct kg_algo *algo, const struct kg_preset *p)
{
    for (const struct kg_preset_value *v = p->values; v->key; v++)
        for (size_t i = 0; i < kg_algo_n_keys(); i++)
            if (strcmp(v->key, kg_algo_key(i)) == 0)
                must_set(algo, v->key, v->value);
}

static inline void sweep_init(struct sweep *s, const struct world *w)
{
    memset(s, 0, sizeof *s);
    kg_algo_init(&s->algo);
    must_set(&s->algo, "anchor.kind", "fixed");
    s->algo.kl_beta = 1;
    for (int v = 0; v < VOCAB; v++) {
        s->begin[v + 1] = v + 1;
        s->tokens[v] = v;
        s->weight[v] = w->o[v];
    }
    s->b = (struct kg_policy_batch){.n_seqs = VOCAB,
                                    .n_tokens = VOCAB,
                                    .seq_begin = s->begin,
                                    .tokens = s->tokens,
                                    .logp = w->lp,
                                    .old_logp = w->lo,
                                    .anchor_logp = w->lq,
                                    .advantage = s->advantage,
                                    .kl_exact = s->exact,
                                    .pg_weight = s->zero,
                                    .kl_weight = s->weight,
                                    .entropy_weight = s->zero};
    s->g = (struct kg_policy_grad){.a_logp = s->a_logp,
                                   .a_at = s->a_at,
                                   .a_kl_exact = s->a_exact,
                                   .a_entropy = s->a_entropy,
                                   .pg_term = s->pg_term,
                                   .kl_term = s->kl_term};
}

/* A head of k ids: the sampler's top ids for reverse, the anchor's top ids for
 * forward. */
static inline void sweep_head(struct sweep *s, const struct world *w, bool forward, int k)
{
    int32_t head[VOCAB];

    largest(head, k, forward ? w->lq : w->lo);
    for (int n = 0; n < VOCAB; n++)
        for (int j = 0; j < k; j++) {
            s->ids[n * k + j] = head[j];
            s->at[n * k + j] = w->lp[head[j]];
            s->anchor_at[n * k + j] = w->lq[head[j]];
            s->mu_at[n * k + j] = w->lo[head[j]];
        }
    s->b.ids = s->ids, s->b.logp_at = s->at, s->b.anchor_at = s->anchor_at;
    s->b.mu_at = s->mu_at;
    s->b.k_sampler = forward ? 0 : k;
    s->b.k_anchor = forward ? k : 0;
    s->algo.kl_top_k = k;
}

/* Loss, then the master rule summed over the batch. */
static inline void sweep_run(struct sweep *s, const struct world *w)
{
    int k = s->b.k_sampler + s->b.k_anchor;
    struct kg_err err;

    if (kg_policy_loss(&s->g, &s->algo, &s->b, &err) != KG_OK)
        fail_msg("%s", err.message);
    memset(s->grad, 0, sizeof s->grad);
    for (int n = 0; n < VOCAB; n++) {
        double sum = s->a_logp[n];

        s->grad[s->tokens[n]] += s->a_logp[n];
        for (int j = 0; j < k; j++) {
            s->grad[s->ids[n * k + j]] += s->a_at[n * k + j];
            sum += s->a_at[n * k + j];
        }
        for (int v = 0; v < VOCAB; v++)
            s->grad[v] -= w->p[v] * sum;
    }
}

/* KL(a||b) from log-probs. */
static inline double kl_of(const double *la, const double *lb)
{
    double sum = 0;

    for (int v = 0; v < VOCAB; v++)
        sum += exp(la[v]) * (la[v] - lb[v]);
    return sum;
}

/* Gradients with respect to the current policy's logits. */
static inline void reverse_gradient(double *g, const struct world *w, const double *lq)
{
    double kl = kl_of(w->lp, lq);

    for (int v = 0; v < VOCAB; v++)
        g[v] = w->p[v] * (w->lp[v] - lq[v] - kl);
}
static inline void forward_gradient(double *g, const struct world *w, const double *q)
{
    for (int v = 0; v < VOCAB; v++)
        g[v] = w->p[v] - q[v];
}

static inline double farthest(const double *a, const double *b)
{
    double gap = 0;

    for (int v = 0; v < VOCAB; v++)
        gap = fmax(gap, fabs(a[v] - b[v]));
    return gap;
}

#define assert_near(a, b, tolerance)                                                     \
    do {                                                                                 \
        double near_a = (a), near_b = (b);                                               \
        if (!(fabs(near_a - near_b) <= (tolerance)))                                     \
            fail_msg("%s = %.17g, expected %.17g", #a, near_a, near_b);                  \
    } while (0)

#endif
