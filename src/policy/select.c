/* Batch-scope rows: which tokens of the whole optimizer batch a method singles out.
 *
 * The covariance of a token is (A - mean A)(log p - mean log p), means over the tokens in
 * the loss; under truncated sampling p is renormalised on the kept set, as in the ratio.
 * kl-cov takes the largest share. clip-cov draws a random subset of that many among the
 * unclipped tokens whose covariance lies strictly inside (cov_low, cov_high), as the
 * published code does; the draw is a function of seed, update and the batch, so
 * micro-batches, threads and resuming do not change it.
 *
 * m2po bounds the mean of (log r)^2 over the tokens whose step leads away from the old
 * policy, and selects the largest. The paper removes them until the mean of the rest is
 * within the budget. The released code clips them: a clipped token still counts, with the
 * largest value that is not clipped.
 */
#include "policy/policy_internal.h"

#include "base/mem.h"
#include "base/real.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct ranked {
    double by; /* covariance, or squared log-ratio */
    int64_t n;
};

static int descending(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->by != y->by)
        return x->by < y->by ? 1 : -1;
    return x->n < y->n ? -1 : x->n > y->n;
}

static double now(const struct kg_policy_batch *b, int64_t n)
{
    return b->logp[n] - (b->log_kept ? b->log_kept[n] : 0);
}

static double then(const struct kg_policy_batch *b, int64_t n)
{
    return b->old_logp[n] - (b->log_kept ? b->old_log_kept[n] : 0);
}

/* A single non-finite value would make all covariances non-finite. */
static kg_status check_finite(const struct kg_policy_batch *b, struct kg_err *err)
{
    for (int64_t t = 0; t < b->n_tokens; t++)
        if (!isfinite(now(b, t)) || !isfinite(then(b, t)) || !isfinite(b->advantage[t]))
            return kg_fail(err, KG_ENONFINITE,
                           "policy selection: loss token %lld: expected finite log-probs "
                           "and advantage, found %g, old %g and %g",
                           (long long)t, now(b, t), then(b, t), b->advantage[t]);
    return KG_OK;
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
        mean_lp += now(b, t);
    }
    mean_a /= n > 0 ? (double)n : 1;
    mean_lp /= n > 0 ? (double)n : 1;
    for (int64_t i = 0; i < n; i++)
        out[i].by = (b->advantage[out[i].n] - mean_a) * (now(b, out[i].n) - mean_lp);
    return n;
}

static bool is_clipped(const struct kg_algo *algo, const struct kg_policy_batch *b,
                       int64_t n)
{
    double r = kg_exp(now(b, n) - then(b, n));

    return (b->advantage[n] > 0 && r > 1 + algo->clip_high) ||
           (b->advantage[n] < 0 && r < 1 - algo->clip_low);
}

static void pick_largest(uint8_t *selected, struct ranked *r, int64_t n, int64_t most)
{
    qsort(r, (size_t)n, sizeof *r, descending);
    for (int64_t i = 0; i < n && i < most; i++)
        selected[r[i].n] = 1;
}

/* Moves the tokens that clip-cov may take to the front.   returns their number */
static int64_t candidates(struct ranked *r, int64_t n, const struct kg_algo *algo,
                          const struct kg_policy_batch *b)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < n; i++)
        if (r[i].by > algo->cov_low && r[i].by < algo->cov_high &&
            !is_clipped(algo, b, r[i].n))
            r[kept++] = r[i];
    return kept;
}

/* Selects `most` of n without replacement: the first steps of a shuffle. */
static void pick_random(uint8_t *selected, struct ranked *r, int64_t n, int64_t most,
                        struct kg_rng_key key, uint64_t draw)
{
    for (int64_t i = 0; i < n && i < most; i++) {
        int64_t at = i +
                     (int64_t)kg_rng_below(key, draw, (uint32_t)i, 0, (uint64_t)(n - i));

        selected[r[at].n] = 1;
        r[at] = r[i];
    }
}

/* Lists loss tokens with A > 0 and r > 1, or A < 0 and r < 1.   returns their number */
static int64_t leading_away(struct ranked *out, const struct kg_policy_batch *b)
{
    int64_t n = 0;

    for (int64_t t = 0; t < b->n_tokens; t++) {
        double x = now(b, t) - then(b, t);

        if ((!b->pg_weight || b->pg_weight[t] != 0) && b->advantage[t] * x > 0)
            out[n++] = (struct ranked){x * x, t};
    }
    return n;
}

/* r: descending. cut: tokens over the budget are clipped, else removed.   returns how
 * many tokens, from the first on, are over the budget */
static int64_t over_budget(const struct ranked *r, int64_t n, double budget, bool cut)
{
    double sum = 0;

    for (int64_t i = n - 1; i >= 0; i--) {
        sum += r[i].by;
        if (!cut && sum > budget * (double)(n - i))
            return i + 1;
        if (cut && sum + r[i].by * (double)i > budget * (double)n)
            return i + 2 < n ? i + 2 : n; /* i + 1 equals the bound */
    }
    return 0;
}

static void pick_second_moment(uint8_t *selected, struct ranked *r,
                               const struct kg_algo *algo,
                               const struct kg_policy_batch *b)
{
    bool cut = algo->surrogate->kind == KG_M2_RELEASED;
    int64_t n = leading_away(r, b), over;

    qsort(r, (size_t)n, sizeof *r, descending);
    over = over_budget(r, n, algo->m2_budget, cut);
    for (int64_t i = 0; i < over; i++)
        selected[r[i].n] = !cut || is_clipped(algo, b, r[i].n);
}

static void pick_covariance(uint8_t *selected, struct ranked *r,
                            const struct kg_algo *algo, const struct kg_policy_batch *b)
{
    struct kg_rng_key key = {b->select_seed, KG_RNG_SELECT};
    int64_t n = covariances(r, b), most = (int64_t)((double)n * algo->cov_ratio);

    most = most < 1 ? 1 : most;
    if (algo->surrogate->token == kg_pg_kl_cov)
        pick_largest(selected, r, n, most);
    else
        pick_random(selected, r, candidates(r, n, algo, b), most, key, b->select_draw);
}

kg_status kg_policy_select(uint8_t *selected, const struct kg_algo *algo,
                           const struct kg_policy_batch *whole, struct kg_err *err)
{
    struct ranked *ranked;

    if (!whole->logp || !whole->old_logp || !whole->advantage)
        return kg_fail(err, KG_EINVAL,
                       "policy selection: expected logp, old_logp and advantage");
    if (whole->log_kept && !whole->old_log_kept)
        return kg_fail(
            err, KG_EINVAL,
            "policy selection: expected old_log_kept for log_kept, found none");
    if (whole->select_draw >> 56)
        return kg_fail(err, KG_EINVAL,
                       "policy selection: expected select_draw below 2^56, found %llu",
                       (unsigned long long)whole->select_draw);
    memset(selected, 0, (size_t)whole->n_tokens);
    if (algo->surrogate->about.scope != KG_SCOPE_BATCH)
        return KG_OK;
    KG_TRY(check_finite(whole, err));
    KG_TRY(kg_mem_new(&ranked, (size_t)whole->n_tokens + 1, sizeof *ranked,
                      "ranked tokens", err));
    if (algo->surrogate->token == kg_pg_m2po)
        pick_second_moment(selected, ranked, algo, whole);
    else
        pick_covariance(selected, ranked, algo, whole);
    kg_mem_free(ranked);
    return KG_OK;
}
