/* Batch-scope rows: which tokens of the whole optimizer batch a method singles out.
 *
 * The covariance of a token is (A - mean A)(log p - mean log p), means over the tokens in
 * the loss. kl-cov takes the largest share. clip-cov takes unclipped tokens whose
 * covariance lies strictly inside (cov_low, cov_high); where the published code draws a
 * random subset of that many, kedge takes them in the batch's order: the choice must not
 * depend on anything but the batch.
 */
#include "policy/policy_internal.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct ranked {
    double cov;
    int64_t n;
};

static int by_cov_descending(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->cov != y->cov)
        return x->cov < y->cov ? 1 : -1;
    return x->n < y->n ? -1 : x->n > y->n;
}

static int64_t covariances(struct ranked *out, const struct kg_policy_batch *b)
{
    double mean_a = 0, mean_lp = 0;
    int64_t n = 0;

    for (int64_t t = 0; t < b->n_tokens; t++) {
        if (b->pg_weight && b->pg_weight[t] == 0)
            continue;
        out[n++].n = t;
        mean_a += b->advantage[t];
        mean_lp += b->logp[t];
    }
    mean_a /= n > 0 ? (double)n : 1;
    mean_lp /= n > 0 ? (double)n : 1;
    for (int64_t i = 0; i < n; i++)
        out[i].cov = (b->advantage[out[i].n] - mean_a) * (b->logp[out[i].n] - mean_lp);
    return n;
}

static bool is_clipped(const struct kg_algo *algo, const struct kg_policy_batch *b,
                       int64_t n)
{
    double r = exp(b->logp[n] - b->old_logp[n]);

    return (b->advantage[n] > 0 && r > 1 + algo->clip_high) ||
           (b->advantage[n] < 0 && r < 1 - algo->clip_low);
}

static void pick(uint8_t *selected, struct ranked *r, int64_t n,
                 const struct kg_algo *algo, const struct kg_policy_batch *b)
{
    bool largest = algo->surrogate->token == kg_pg_kl_cov;
    int64_t most = (int64_t)((double)n * algo->cov_ratio);

    if (most < 1)
        most = 1;
    if (largest)
        qsort(r, (size_t)n, sizeof *r, by_cov_descending);
    for (int64_t i = 0; i < n && most > 0; i++) {
        if (!largest && (!(r[i].cov > algo->cov_low && r[i].cov < algo->cov_high) ||
                         is_clipped(algo, b, r[i].n)))
            continue;
        selected[r[i].n] = 1;
        most--;
    }
}

kg_status kg_policy_select(uint8_t *selected, const struct kg_algo *algo,
                           const struct kg_policy_batch *whole, struct kg_err *err)
{
    struct ranked *ranked;

    if (!whole->logp || !whole->old_logp || !whole->advantage)
        return kg_fail(err, KG_EINVAL,
                       "policy selection: expected logp, old_logp and advantage");
    memset(selected, 0, (size_t)whole->n_tokens);
    if (algo->surrogate->about.scope != KG_SCOPE_BATCH)
        return KG_OK;
    ranked = kg_mem_calloc((size_t)whole->n_tokens + 1, sizeof *ranked, "covariances",
                           err);
    if (!ranked)
        return err->code;
    pick(selected, ranked, covariances(ranked, whole), algo, whole);
    kg_mem_free(ranked);
    return KG_OK;
}
