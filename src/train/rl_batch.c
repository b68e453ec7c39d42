/* From graded answers to flat arrays of loss tokens: the anchor's pass over what was
 * sampled. */
#include "train/rl_batch.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"
#include "rollout/score.h"
#include "train/anchor.h"

#include <math.h>
#include <string.h>

/* ---- flattening ---- */

/* Whether truncated sampling recorded what it kept. */
static bool records_kept(const struct kg_rl_batch *b)
{
    for (size_t i = 0; i < b->n_trajs; i++)
        if (b->trajs[i].kept_total > 0)
            return true;
    return false;
}

static kg_status count_tokens(struct kg_rl_batch *b, const struct kg_algo *algo,
                              struct kg_err *err)
{
    b->begin = kg_mem_calloc(b->n_trajs + 1, sizeof *b->begin, "loss tokens", err);
    if (!b->begin)
        return err->code;
    for (size_t i = 0; i < b->n_trajs; i++)
        b->begin[i + 1] = b->begin[i] + (int64_t)kg_traj_model_tokens(&b->trajs[i]);
    b->n = b->begin[b->n_trajs];
    b->k_sampler = kg_algo_recorded_top_k(algo);
    b->k_anchor = kg_algo_width(algo) - b->k_sampler;
    b->k = b->k_sampler + b->k_anchor;
    return KG_OK;
}

static kg_status allocate(struct kg_rl_batch *b, const struct kg_algo *algo, bool anchor,
                          struct kg_err *err)
{
    size_t n = (size_t)b->n;
    size_t at = n * (size_t)b->k;
    bool kept = records_kept(b);
    struct {
        double **array;
        size_t count;
    } rows[] = {
        {&b->old_logp, n},
        {&b->mu_logp, n},
        {&b->advantage, n},
        {&b->pg_weight, n},
        {&b->kl_weight, n},
        {&b->entropy_weight, n},
        {&b->anchor_logp, anchor ? n : 0},
        {&b->anchor_at, at},
        {&b->mu_at, at},
        {&b->old_log_kept, kept ? n : 0},
        {&b->sum_sq, kg_algo_needs(algo) & KG_NEED_SUM_SQ ? n : 0},
    };

    b->tokens = kg_mem_calloc(n, sizeof *b->tokens, "loss tokens", err);
    b->ids = b->tokens ? kg_mem_calloc(n * (size_t)b->k, sizeof *b->ids,
                                       "ids of loss tokens", err)
                       : NULL;
    if (!b->ids)
        return err->code;
    if (kept)
        b->kept = kg_mem_calloc(n, sizeof *b->kept, "kept ids of loss tokens", err);
    if (kept && !b->kept)
        return err->code;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].count == 0)
            continue;
        *rows[i].array = kg_mem_calloc(rows[i].count, sizeof(double), "loss tokens", err);
        if (!*rows[i].array)
            return err->code;
    }
    return KG_OK;
}

/* What the sampler recorded with token j of t, as loss token `at`. */
static void flatten_token(struct kg_rl_batch *b, int64_t at, const struct kg_traj *t,
                          size_t j)
{
    int32_t *ids = b->ids + at * b->k;

    b->tokens[at] = t->tokens[j];
    b->mu_logp[at] = b->old_logp[at] = t->logp[j];
    for (int k = 0; k < b->k_sampler; k++) {
        ids[k] = t->top_ids[j * (size_t)t->top_k + (size_t)k];
        b->mu_at[at * b->k + k] = t->top_logp[j * (size_t)t->top_k + (size_t)k];
    }
}

static void flatten(struct kg_rl_batch *b)
{
    int64_t at = 0;

    for (size_t i = 0; i < b->n_trajs; i++) {
        const struct kg_traj *t = &b->trajs[i];
        size_t behind = 0;

        for (size_t j = 0; j < t->n; j++) {
            struct kg_idset kept = kg_traj_kept(t, j, &behind);

            if (t->source[j] != KG_SOURCE_MODEL)
                continue;
            if (b->kept)
                b->kept[at] = kept;
            flatten_token(b, at++, t, j);
        }
    }
}

/* ---- passes over what was sampled ---- */

/* Which ids a pass asks for, and where its answers go; arrays are by loss token, NULL
 * where not wanted. */
struct pass_plan {
    const struct kg_model *model;
    const struct kg_algo *anchored; /* only what its anchor is asked about; NULL: all */
    int k;                          /* given ids: the first k columns of b->ids */
    int top_k;    /* the model's own largest, written to columns k_sampler.. of b->ids */
    double *logp; /* (N) */
    double *logp_at;  /* (N,k of b), given ids first, then the own ones */
    double *log_kept; /* (N) log mass of b->kept */
    double *sum_sq;   /* (N) sum_v p_v^2 */
};

struct pass_arrays {
    size_t n_seqs;
    struct kg_score_seq *seqs; /* (n_trajs) owned, as below */
    size_t *from;
    float *logp;           /* (positions) */
    float *sum_sq;         /* (positions) where wanted */
    struct kg_idset *sets; /* (positions) as the next: where wanted */
    double *set_logp;
    int32_t *indices; /* (positions, k) */
    float *logp_at;
    int32_t *top_ids; /* (positions, top_k) */
    float *top_logp;
};

static void pass_release(struct pass_arrays *a)
{
    kg_mem_free(a->seqs);
    kg_mem_free(a->from);
    kg_mem_free(a->logp);
    kg_mem_free(a->sum_sq);
    kg_mem_free(a->sets);
    kg_mem_free(a->set_logp);
    kg_mem_free(a->indices);
    kg_mem_free(a->logp_at);
    kg_mem_free(a->top_ids);
    kg_mem_free(a->top_logp);
}

static kg_status pass_allocate(struct pass_arrays *a, const struct kg_rl_batch *b,
                               const struct pass_plan *p, struct kg_err *err)
{
    size_t positions = 0;
    const char *what = "scored trajectories";

    for (size_t i = 0; i < b->n_trajs; i++)
        positions += b->trajs[i].n;
    a->seqs = kg_mem_calloc(b->n_trajs, sizeof *a->seqs, what, err);
    a->from = a->seqs ? kg_mem_calloc(b->n_trajs, sizeof *a->from, what, err) : NULL;
    a->logp = a->from ? kg_mem_calloc(positions, sizeof *a->logp, what, err) : NULL;
    a->sum_sq = a->logp ? kg_mem_calloc(p->sum_sq ? positions : 0, sizeof *a->sum_sq,
                                        what, err)
                        : NULL;
    a->sets = a->sum_sq
                  ? kg_mem_calloc(p->log_kept ? positions : 0, sizeof *a->sets, what, err)
                  : NULL;
    a->set_logp = a->sets ? kg_mem_calloc(p->log_kept ? positions : 0,
                                          sizeof *a->set_logp, what, err)
                          : NULL;
    a->indices = a->set_logp ? kg_mem_calloc(positions * (size_t)p->k, sizeof *a->indices,
                                             what, err)
                             : NULL;
    a->logp_at = a->indices ? kg_mem_calloc(positions * (size_t)p->k, sizeof *a->logp_at,
                                            what, err)
                            : NULL;
    a->top_ids = a->logp_at ? kg_mem_calloc(positions * (size_t)p->top_k,
                                            sizeof *a->top_ids, what, err)
                            : NULL;
    a->top_logp = a->top_ids ? kg_mem_calloc(positions * (size_t)p->top_k,
                                             sizeof *a->top_logp, what, err)
                             : NULL;
    return a->top_logp ? KG_OK : err->code;
}

bool kg_rl_filtered(const struct kg_rl_batch *b, const struct kg_algo *algo, size_t i)
{
    return !kg_rl_learns(b, i) ||
           (algo->mask_truncated && b->trajs[i].finish == KG_FINISH_LENGTH);
}

bool kg_rl_anchored(const struct kg_rl_batch *b, const struct kg_algo *algo, size_t i)
{
    return !(kg_algo_kl_in_loss(algo) && algo->kl_after_filter &&
             kg_rl_filtered(b, algo, i));
}

static bool is_asked(const struct kg_rl_batch *b, const struct pass_plan *p, size_t i)
{
    return !p->anchored || kg_rl_anchored(b, p->anchored, i);
}

static void pass_ask(struct pass_arrays *a, const struct kg_rl_batch *b,
                     const struct pass_plan *p)
{
    size_t position = 0;
    int64_t at = 0;

    for (size_t i = 0; i < b->n_trajs; i++) {
        const struct kg_traj *t = &b->trajs[i];
        size_t k = (size_t)p->k, top = (size_t)p->top_k;

        if (!is_asked(b, p, i)) {
            position += t->n;
            at += b->begin[i + 1] - b->begin[i];
            continue;
        }
        a->from[a->n_seqs] = t->prompt_n;
        a->seqs[a->n_seqs++] = (struct kg_score_seq){
            .tokens = t->tokens,
            .n = t->n,
            .temperature = t->temperature,
            .indices = k > 0 ? a->indices + position * k : NULL,
            .logp = a->logp + position,
            .sum_sq = p->sum_sq ? a->sum_sq + position : NULL,
            .sets = p->log_kept ? a->sets + position : NULL,
            .set_logp = p->log_kept ? a->set_logp + position : NULL,
            .logp_at = k > 0 ? a->logp_at + position * k : NULL,
            .top_ids = top > 0 ? a->top_ids + position * top : NULL,
            .top_logp = top > 0 ? a->top_logp + position * top : NULL};
        for (size_t j = 0; j < t->n; j++, position++) {
            int32_t *ids = a->indices + position * k;

            if (t->source[j] != KG_SOURCE_MODEL) {
                memset(ids, 0xff, k * sizeof *ids); /* -1: nothing is asked for */
                continue;
            }
            if (p->log_kept)
                a->sets[position] = b->kept[at];
            memcpy(ids, b->ids + at++ * b->k, k * sizeof *ids);
        }
    }
}

static void take_token(struct kg_rl_batch *b, int64_t at, const struct pass_arrays *a,
                       size_t position, const struct pass_plan *p)
{
    if (p->logp)
        p->logp[at] = a->logp[position];
    if (p->sum_sq)
        p->sum_sq[at] = a->sum_sq[position];
    if (p->log_kept)
        p->log_kept[at] = a->set_logp[position];
    for (int k = 0; k < p->k; k++)
        p->logp_at[at * b->k + k] = a->logp_at[position * (size_t)p->k + (size_t)k];
    for (int k = 0; k < p->top_k; k++) {
        b->ids[at * b->k + b->k_sampler + k] =
            a->top_ids[position * (size_t)p->top_k + (size_t)k];
        p->logp_at[at * b->k + p->k + k] =
            a->top_logp[position * (size_t)p->top_k + (size_t)k];
    }
}

static void pass_take(struct kg_rl_batch *b, const struct pass_arrays *a,
                      const struct pass_plan *p)
{
    size_t position = 0;
    int64_t at = 0;

    for (size_t i = 0; i < b->n_trajs; i++) {
        bool asked = is_asked(b, p, i);

        for (size_t j = 0; j < b->trajs[i].n; j++, position++) {
            if (b->trajs[i].source[j] != KG_SOURCE_MODEL)
                continue;
            if (asked)
                take_token(b, at, a, position, p);
            at++;
        }
    }
}

static kg_status run_pass(struct kg_rl_batch *b, const struct kg_run *run,
                          const struct pass_plan *p, struct kg_err *err)
{
    struct pass_arrays a = {0};
    kg_status status;
    int phase;

    *(p->model == run->anchor ? &b->anchor_passes : &b->own_passes) += 1;
    KG_TRY_GOTO(out, pass_allocate(&a, b, p, err));
    pass_ask(&a, b, p);
    phase = kg_phase_begin(0, NULL, "%s",
                           p->model == run->anchor ? "anchor pass" : "policy pass");
    KG_TRY_GOTO(out,
                kg_score(p->model, kg_run_score_acts(run, p->model), run->score_tokens,
                         a.seqs, a.n_seqs, p->k, p->top_k, a.from, err));
    kg_phase_end(phase);
    pass_take(b, &a, p);
out:
    pass_release(&a);
    return status;
}

/* An exact KL reads the anchor inside the micro-batches instead. */
static bool has_anchor_rows(const struct kg_run *run)
{
    return kg_algo_needs(&run->algo) & (KG_NEED_ANCHOR | KG_NEED_TOP_ANCHOR);
}

bool kg_rl_asks_anchor(const struct kg_run *run)
{
    return has_anchor_rows(run) && (run->anchor || kg_algo_anchor_top_k(&run->algo) > 0);
}

/* The iterative anchor is what sampled: its rows are the record. */
static void copy_record(struct kg_rl_batch *b)
{
    size_t n = (size_t)b->n;

    memcpy(b->anchor_logp, b->mu_logp, n * sizeof *b->anchor_logp);
    if (b->k_sampler > 0)
        memcpy(b->anchor_at, b->mu_at, n * (size_t)b->k_sampler * sizeof *b->anchor_at);
}

kg_status kg_rl_ask_anchor(struct kg_rl_batch *b, struct kg_run *run, struct kg_err *err)
{
    const struct kg_model *sampler = run->sampler ? run->sampler : run->model;
    struct pass_plan p = {.model = run->anchor ? run->anchor : sampler,
                          .anchored = &run->algo,
                          .k = b->k_sampler,
                          .top_k = b->k_anchor,
                          .logp = b->anchor_logp,
                          .logp_at = b->anchor_at};

    if (kg_rl_asks_anchor(run))
        return run_pass(b, run, &p, err);
    if (has_anchor_rows(run))
        copy_record(b);
    return KG_OK;
}

kg_status kg_rl_prepare(struct kg_rl_batch *b, struct kg_run *run, struct kg_err *err)
{
    const struct kg_model *sampler = run->sampler ? run->sampler : run->model;

    KG_TRY(count_tokens(b, &run->algo, err));
    KG_TRY(allocate(b, &run->algo, has_anchor_rows(run), err));
    flatten(b);
    KG_TRY(kg_rl_ask_anchor(b, run, err));
    if (strcmp(kg_config_text(run->config, "train.old_logp"), "recompute") == 0) {
        struct pass_plan p = {.model = run->model, .logp = b->old_logp};

        KG_TRY(run_pass(b, run, &p, err));
        sampler =
            run->model; /* what follows must be of the policy that the ratio refers to */
    }
    if (b->kept) {
        struct pass_plan p = {.model = sampler, .log_kept = b->old_log_kept};

        KG_TRY(run_pass(b, run, &p, err));
    }
    if (b->sum_sq) {
        struct pass_plan p = {.model = sampler, .sum_sq = b->sum_sq};

        KG_TRY(run_pass(b, run, &p, err));
    }
    return KG_OK;
}

void kg_rl_batch_release(struct kg_rl_batch *b)
{
    for (size_t i = 0; b->trajs && i < b->n_trajs; i++)
        kg_traj_release(&b->trajs[i]);
    for (size_t i = 0; b->spare && i < b->n_spare; i++)
        kg_traj_release(&b->spare[i]);
    kg_mem_free(b->trajs);
    kg_mem_free(b->spare);
    kg_mem_free(b->grades);
    kg_mem_free(b->drop);
    kg_mem_free(b->begin);
    kg_mem_free(b->tokens);
    kg_mem_free(b->old_logp);
    kg_mem_free(b->mu_logp);
    kg_mem_free(b->anchor_logp);
    kg_mem_free(b->advantage);
    kg_mem_free(b->pg_weight);
    kg_mem_free(b->kl_weight);
    kg_mem_free(b->entropy_weight);
    kg_mem_free(b->ids);
    kg_mem_free(b->kept);
    kg_mem_free(b->anchor_at);
    kg_mem_free(b->mu_at);
    kg_mem_free(b->old_log_kept);
    kg_mem_free(b->sum_sq);
    kg_mem_free(b->greedy);
    memset(b, 0, sizeof *b);
}
