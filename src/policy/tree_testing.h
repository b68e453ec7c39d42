/* For the tests of policy/: a tree of two positions, small enough to enumerate batches.
 *
 * Token 0 ends a completion, so its length depends on what was sampled; a completion
 * whose second token is not 0 is truncated. Every context has its own logits, so a
 * gradient has a row per context.
 */
#ifndef KG_POLICY_TREE_TESTING_H
#define KG_POLICY_TREE_TESTING_H

#include "policy/policy_testing.h"

enum { BRANCH = 3, CONTEXTS = BRANCH, PATHS = 1 + (BRANCH - 1) * BRANCH };

struct tree {
    /* (CONTEXTS,BRANCH) log-probs of the policy, the anchor and the sampler */
    double lp[CONTEXTS][BRANCH], lq[CONTEXTS][BRANCH], lo[CONTEXTS][BRANCH];
};

/* Path 0 is "0"; the others are "ab" with a > 0. */
static inline int path_length(int path) { return path == 0 ? 1 : 2; }
static inline int path_first(int path) { return path == 0 ? 0 : 1 + (path - 1) / BRANCH; }
static inline int path_token(int path, int t)
{
    return t == 0 ? path_first(path) : (path - 1) % BRANCH;
}
/* The root is context 0; after token a comes context a. */
static inline int path_context(int path, int t) { return t == 0 ? 0 : path_first(path); }
static inline bool path_is_cut(int path) { return path > 0 && path_token(path, 1) != 0; }

static inline double path_logp(double lp[CONTEXTS][BRANCH], int path)
{
    double sum = 0;

    for (int t = 0; t < path_length(path); t++)
        sum += lp[path_context(path, t)][path_token(path, t)];
    return sum;
}

/* gradient += c grad log p(token | context) */
static inline void add_score(double gradient[CONTEXTS][BRANCH], const struct tree *w,
                             int context, int token, double c)
{
    for (int v = 0; v < BRANCH; v++)
        gradient[context][v] += c * ((v == token) - exp(w->lp[context][v]));
}

static inline double tree_norm(double x[CONTEXTS][BRANCH])
{
    double sum = 0;

    for (int h = 0; h < CONTEXTS; h++)
        for (int v = 0; v < BRANCH; v++)
            sum += x[h][v] * x[h][v];
    return sqrt(sum);
}

/* |a - b| / |b| */
static inline double tree_gap(double a[CONTEXTS][BRANCH], double b[CONTEXTS][BRANCH])
{
    double d[CONTEXTS][BRANCH];

    for (int h = 0; h < CONTEXTS; h++)
        for (int v = 0; v < BRANCH; v++)
            d[h][v] = a[h][v] - b[h][v];
    return tree_norm(d) / tree_norm(b);
}

static inline void branch_log_softmax(double *lp, const double *z)
{
    double sum = 0;

    for (int v = 0; v < BRANCH; v++)
        sum += exp(z[v]);
    for (int v = 0; v < BRANCH; v++)
        lp[v] = z[v] - log(sum);
}

/* Three different policies; spread 0: the sampler is the policy. */
static inline struct tree tree_of(uint64_t seed, double spread)
{
    struct tree w;
    double z[VOCAB], dq[VOCAB], dold[VOCAB];

    for (int h = 0; h < CONTEXTS; h++) {
        uint32_t at = 16 * (uint32_t)h;

        normals(z, seed, at, 0.8);
        normals(dq, seed, at + 1, 0.7);
        normals(dold, seed, at + 2, spread);
        for (int v = 0; v < BRANCH; v++)
            dq[v] += z[v], dold[v] += z[v];
        branch_log_softmax(w.lp[h], z);
        branch_log_softmax(w.lq[h], dq);
        branch_log_softmax(w.lo[h], dold);
    }
    return w;
}

#endif
