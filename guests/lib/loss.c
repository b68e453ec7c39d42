/* Advantages, weights, selection and loss for the library's user: checks public structs
 * and passes them to policy/. policy/ trusts its callers, but a user's arrays may hold
 * anything: negative counts, decreasing offsets and unbounded scores are refused here,
 * with field and index, before anything is written. Pointers are passed on uncopied.
 * Metrics are kept as sums, because means of micro-batches cannot be added. */
#include "lib/lib_internal.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

struct kedge_metrics {
    struct kg_policy_metrics sum;
};

/* ---- advantages ---- */

enum { MOST_PARTS = 1024 };
static const double MOST_SCORE = 1e9;

/* Only rows of algo.advantage that read each reward separately take scores.part. */
static kg_status check_parts(const struct kedge_scores *s, const struct kg_algo *algo,
                             struct kg_err *err)
{
    bool any = s->part || s->part_weight || s->n_parts != 0;

    if (!any)
        return KG_OK;
    if (!(kg_algo_needs(algo) & KG_NEED_PARTS))
        return kg_fail(
            err, KG_EINVAL,
            "scores.part: expected none for algo.advantage %s, which takes the "
            "sum of the rewards (scores.reward), found %lld",
            kg_algo_row_name(algo, KG_TABLE_ADVANTAGE), (long long)s->n_parts);
    if (s->n_parts < 1 || s->n_parts > MOST_PARTS)
        return kg_fail(err, KG_EINVAL, "scores.n_parts: expected 1 to %d, found %lld",
                       MOST_PARTS, (long long)s->n_parts);
    KG_TRY(kg_lib_given(s->part, "scores.part", err));
    KG_TRY(kg_lib_given(s->part_weight, "scores.part_weight", err));
    for (int64_t k = 0; k < s->n_parts; k++)
        if (!isfinite(s->part_weight[k]))
            return kg_fail(err, KG_ENONFINITE,
                           "scores.part_weight[%lld]: expected a number, found %g",
                           (long long)k, s->part_weight[k]);
    return KG_OK;
}

/* Squares of larger scores would overflow or absorb all others; training has the same
 * limit for graders. NaN and infinity are left to policy/, which refuses them. */
static kg_status check_sizes(const double *x, int64_t n, const char *name,
                             struct kg_err *err)
{
    for (int64_t i = 0; x && i < n; i++)
        if (fabs(x[i]) > MOST_SCORE && isfinite(x[i]))
            return kg_fail(err, KG_EINVAL,
                           "%s[%lld]: expected at most %g in size, found %g", name,
                           (long long)i, MOST_SCORE, x[i]);
    return KG_OK;
}

static kg_status take_scores(struct kg_policy_scores *in, const struct kg_algo *algo,
                             const struct kedge_scores *scores, struct kg_err *err)
{
    struct kedge_scores own;

    KG_LIB_TAKE(own, scores, err);
    KG_TRY(check_parts(&own, algo, err));
    KG_TRY(kg_lib_given(own.reward, "scores.reward", err));
    KG_TRY(
        kg_lib_check_begin(own.seq_begin, own.n_seqs, -1, "", "scores.seq_begin", err));
    KG_TRY(kg_lib_check_begin(own.group_begin, own.n_groups, own.n_seqs, "scores.n_seqs",
                              "scores.group_begin", err));
    KG_TRY(check_sizes(own.reward, own.n_seqs, "scores.reward", err));
    KG_TRY(check_sizes(own.token_reward, own.n_seqs > 0 ? own.seq_begin[own.n_seqs] : 0,
                       "scores.token_reward", err));
    KG_TRY(check_sizes(own.part, own.n_seqs * own.n_parts, "scores.part", err));
    *in = (struct kg_policy_scores){
        .n_seqs = own.n_seqs,
        .n_groups = own.n_groups,
        .reward = own.reward,
        .group_begin = own.group_begin,
        .seq_begin = own.seq_begin,
        .token_reward = own.token_reward,
        .mask = own.mask,
        .greedy = own.greedy,
        .value = own.value,
        .old_logp = own.old_logp,
        .sum_sq = own.sum_sq,
        .is_weight = own.is_weight,
        .part = own.part,
        .part_weight = own.part_weight,
        .n_parts = (int)own.n_parts,
        .drop = own.drop,
    };
    return KG_OK;
}

static kg_status advantages(struct kedge_advantage *out, const struct kedge_algo *algo,
                            const struct kedge_scores *scores, struct kg_err *err)
{
    struct kedge_advantage own;
    struct kg_policy_scores in;

    KG_LIB_TAKE(own, out, err);
    KG_TRY(kg_lib_check_algo(algo, err));
    KG_TRY(take_scores(&in, &algo->algo, scores, err));
    struct kg_policy_advantage a = {
        .seq = own.seq, .token = own.token, .returns = own.returns};
    KG_TRY(kg_policy_advantages(&a, &algo->algo, &in, err));
    own.batch_std = a.batch_std;
    own.mean = a.mean, own.min = a.min, own.max = a.max;
    own.groups_equal = a.groups_equal;
    kg_lib_give(out, &own, sizeof own);
    return KG_OK;
}

int kedge_advantages(struct kedge_advantage *out, const struct kedge_algo *algo,
                     const struct kedge_scores *scores, struct kedge_err *err)
{
    struct kg_err e;
    unsigned mode = kg_fp_enter();
    kg_status status = advantages(out, algo, scores, &e);

    kg_fp_leave(mode);
    return kg_lib_report(status, &e, err);
}

/* ---- weights ---- */

static kg_status weights(struct kedge_weights *out, const struct kedge_algo *algo,
                         int64_t n_seqs, const int64_t *seq_begin,
                         const unsigned char *drop, struct kg_err *err)
{
    struct kg_policy_shape shape = {
        .n_seqs = n_seqs, .seq_begin = seq_begin, .drop = drop};
    struct kedge_weights own;

    KG_LIB_TAKE(own, out, err);
    KG_TRY(kg_lib_check_algo(algo, err));
    KG_TRY(kg_lib_check_begin(seq_begin, n_seqs, -1, "", "seq_begin", err));
    struct kg_policy_weights w = {own.pg, own.kl, own.entropy};
    return kg_policy_weights(&w, &algo->algo, &shape, err);
}

int kedge_weights(struct kedge_weights *out, const struct kedge_algo *algo,
                  int64_t n_seqs, const int64_t *seq_begin, const unsigned char *drop,
                  struct kedge_err *err)
{
    struct kg_err e;
    unsigned mode = kg_fp_enter();
    kg_status status = weights(out, algo, n_seqs, seq_begin, drop, &e);

    kg_fp_leave(mode);
    return kg_lib_report(status, &e, err);
}

/* ---- rows ---- */

static kg_status check_rows(const struct kedge_rows *r, struct kg_err *err)
{
    if (r->n_tokens < 0 || r->k_sampler < 0 || r->k_anchor < 0)
        return kg_fail(err, KG_EINVAL,
                       "rows: expected n_tokens, k_sampler and k_anchor of 0 or more, "
                       "found %lld, %d and %d",
                       (long long)r->n_tokens, r->k_sampler, r->k_anchor);
    return kg_lib_check_begin(r->seq_begin, r->n_seqs, r->n_tokens, "rows.n_tokens",
                              "rows.seq_begin", err);
}

static kg_status check_logps(const struct kedge_rows *r, struct kg_err *err)
{
    KG_TRY(kg_lib_check_logp(r->logp, r->n_tokens, "rows.logp", err));
    KG_TRY(kg_lib_check_logp(r->old_logp, r->n_tokens, "rows.old_logp", err));
    KG_TRY(kg_lib_check_logp(r->mu_logp, r->n_tokens, "rows.mu_logp", err));
    return kg_lib_check_logp(r->anchor_logp, r->n_tokens, "rows.anchor_logp", err);
}

static kg_status take_rows(struct kg_policy_batch *b, const struct kedge_rows *rows,
                           struct kg_err *err)
{
    struct kedge_rows own;

    KG_LIB_TAKE(own, rows, err);
    KG_TRY(check_rows(&own, err));
    KG_TRY(check_logps(&own, err));
    *b = (struct kg_policy_batch){
        .n_seqs = own.n_seqs,
        .n_tokens = own.n_tokens,
        .seq_begin = own.seq_begin,
        .tokens = own.tokens,
        .logp = own.logp,
        .old_logp = own.old_logp,
        .mu_logp = own.mu_logp,
        .anchor_logp = own.anchor_logp,
        .advantage = own.advantage,
        .entropy = own.entropy,
        .kl_exact = own.kl_exact,
        .k_sampler = own.k_sampler,
        .k_anchor = own.k_anchor,
        .ids = own.ids,
        .logp_at = own.logp_at,
        .anchor_at = own.anchor_at,
        .mu_at = own.mu_at,
        .log_kept = own.log_kept,
        .old_log_kept = own.old_log_kept,
        .pg_weight = own.pg_weight,
        .kl_weight = own.kl_weight,
        .entropy_weight = own.entropy_weight,
        .is_weight = own.is_weight,
        .selected = own.selected,
        .kl_divisor = own.kl_divisor,
        .select_seed = own.select_seed,
        .select_draw = own.select_draw,
    };
    return KG_OK;
}

static kg_status select_tokens(unsigned char *selected, const struct kedge_algo *algo,
                               const struct kedge_rows *whole, struct kg_err *err)
{
    struct kg_policy_batch b;

    KG_TRY(kg_lib_given(selected, "selected", err));
    KG_TRY(kg_lib_check_algo(algo, err));
    KG_TRY(take_rows(&b, whole, err));
    return kg_policy_select(selected, &algo->algo, &b, err);
}

int kedge_select(unsigned char *selected, const struct kedge_algo *algo,
                 const struct kedge_rows *whole, struct kedge_err *err)
{
    struct kg_err e;
    unsigned mode = kg_fp_enter();
    kg_status status = select_tokens(selected, algo, whole, &e);

    kg_fp_leave(mode);
    return kg_lib_report(status, &e, err);
}

/* ---- loss ---- */

/* Rows without weights are a whole optimizer batch: computes its weights and selection.
 * *block: the memory of b's new arrays; the caller frees it. */
static kg_status weigh_whole(struct kg_policy_batch *b, void **block,
                             const struct kg_algo *algo, struct kg_err *err)
{
    size_t n = (size_t)b->n_tokens;
    struct kg_policy_shape shape = {.n_seqs = b->n_seqs, .seq_begin = b->seq_begin};
    unsigned char *selected;
    double *weight;

    *block = NULL;
    if (b->pg_weight || b->kl_weight || b->entropy_weight)
        return KG_OK;
    weight = *block = kg_mem_calloc(n + 1, 2 * sizeof *weight + 1, "weights", err);
    if (!weight)
        return err->code;
    struct kg_policy_weights w = {.pg = weight, .kl = weight + n};
    KG_TRY(kg_policy_weights(&w, algo, &shape, err));
    b->pg_weight = b->entropy_weight = weight;
    b->kl_weight = weight + n;
    if (b->selected || kg_algo_scope(algo) != KG_SCOPE_BATCH)
        return KG_OK;
    selected = (unsigned char *)(weight + 2 * n);
    b->selected = selected;
    return kg_policy_select(selected, algo, b, err);
}

static kg_status loss(struct kedge_grad *grad, const struct kedge_algo *algo,
                      const struct kedge_rows *rows, struct kg_err *err)
{
    struct kedge_grad own;
    struct kg_policy_batch b;
    void *block;
    kg_status status;

    KG_LIB_TAKE(own, grad, err);
    KG_TRY(kg_lib_check_algo(algo, err));
    KG_TRY(take_rows(&b, rows, err));
    struct kg_policy_grad g = {
        .a_logp = own.a_logp,
        .a_at = own.a_at,
        .a_entropy = own.a_entropy,
        .a_kl_exact = own.a_kl_exact,
        .a_log_kept = own.a_log_kept,
        .pg_term = own.pg_term,
        .kl_term = own.kl_term,
    };
    KG_TRY_GOTO(out, weigh_whole(&b, &block, &algo->algo, err));
    KG_TRY_GOTO(out, kg_policy_loss(&g, &algo->algo, &b, err));
    own.pg = g.pg, own.kl = g.kl, own.entropy = g.entropy;
    own.loss = g.loss;
    own.any = g.any;
    if (own.metrics)
        kg_policy_metrics_merge(&own.metrics->sum, &g.metrics);
    kg_lib_give(grad, &own, sizeof own);
out:
    kg_mem_free(block);
    return status;
}

int kedge_loss(struct kedge_grad *grad, const struct kedge_algo *algo,
               const struct kedge_rows *rows, struct kedge_err *err)
{
    struct kg_err e;
    unsigned mode = kg_fp_enter();
    kg_status status = loss(grad, algo, rows, &e);

    kg_fp_leave(mode);
    return kg_lib_report(status, &e, err);
}

/* ---- metrics ---- */

int kedge_metrics_create(struct kedge_metrics **metrics, struct kedge_err *err)
{
    struct kg_err e;
    kg_status status = kg_lib_given(metrics, "metrics", &e);

    if (status == KG_OK) {
        *metrics = kg_mem_calloc(1, sizeof **metrics, "metrics", &e);
        status = *metrics ? KG_OK : e.code;
    }
    return kg_lib_report(status, &e, err);
}

void kedge_metrics_free(struct kedge_metrics *metrics) { kg_mem_free(metrics); }

void kedge_metrics_clear(struct kedge_metrics *metrics)
{
    memset(metrics, 0, sizeof *metrics);
}

int kedge_metric(const char **name, double *value, const struct kedge_metrics *metrics,
                 const struct kedge_algo *algo, size_t i)
{
    struct kg_policy_metric list[KG_POLICY_METRICS_MAX];

    if (i >= kg_policy_metrics_list(list, &algo->algo, &metrics->sum))
        return 0;
    *name = list[i].name;
    *value = list[i].value;
    return 1;
}
