/* From graded completions to flat arrays of loss tokens, and the passes that fill them.
 *
 * An algorithm may need more than the record: log-probs of the anchor, recomputed old
 * log-probs, the mass of kept sets. One pass over the samples computes them; its plan
 * names the model and the outputs. The pass skips completions that no term of the loss
 * reads (is_asked), to save forwards. With rollout.router_replay the policy uses the
 * experts that the sampler chose. The sampler would choose the same experts again; an
 * anchor, another policy, chooses its own.
 */
#include "train/step/rl_batch.h"

#include "base/mem.h"
#include "base/phase.h"
#include "rollout/score.h"
#include "train/step/anchor.h"
#include "train/step/rl_deal.h"

#include <math.h>
#include <string.h>

/* ---- flattening ---- */

/* Whether truncated sampling recorded kept sets. */
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

enum { TOKENS, IDS, KEPT, ANCHOR_ROWS, SUM_SQ, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct kg_rl_batch, tokens, TOKENS),
    KG_COLUMN(struct kg_rl_batch, ids, IDS),
    KG_COLUMN(struct kg_rl_batch, kept, KEPT),
    KG_COLUMN(struct kg_rl_batch, old_logp, TOKENS),
    KG_COLUMN(struct kg_rl_batch, mu_logp, TOKENS),
    KG_COLUMN(struct kg_rl_batch, advantage, TOKENS),
    KG_COLUMN(struct kg_rl_batch, pg_weight, TOKENS),
    KG_COLUMN(struct kg_rl_batch, kl_weight, TOKENS),
    KG_COLUMN(struct kg_rl_batch, entropy_weight, TOKENS),
    KG_COLUMN(struct kg_rl_batch, anchor_logp, ANCHOR_ROWS),
    KG_COLUMN(struct kg_rl_batch, anchor_at, IDS),
    KG_COLUMN(struct kg_rl_batch, mu_at, IDS),
    KG_COLUMN(struct kg_rl_batch, old_log_kept, KEPT),
    KG_COLUMN(struct kg_rl_batch, sum_sq, SUM_SQ),
    {0},
};

static kg_status allocate(struct kg_rl_batch *b, const struct kg_algo *algo, bool anchor,
                          struct kg_err *err)
{
    const size_t n = (size_t)b->n;
    const size_t counts[COUNTS] = {
        [TOKENS] = n,
        [IDS] = n * (size_t)b->k,
        [KEPT] = records_kept(b) ? n : KG_COLUMN_ABSENT,
        [ANCHOR_ROWS] = anchor ? n : KG_COLUMN_ABSENT,
        [SUM_SQ] = kg_algo_needs(algo) & KG_NEED_SUM_SQ ? n : KG_COLUMN_ABSENT,
    };

    return kg_columns_take(&b->block, b, columns, counts, "loss tokens", err);
}

/* Copies the sampler's record of token j of t to loss token `at`. */
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

/* ---- passes over the samples ---- */

/* What a pass computes, and where to; arrays are by loss token, NULL if not wanted. */
struct pass_plan {
    const struct kg_model *model;
    const struct kg_algo *anchored; /* only kg_rl_anchored trajectories; NULL: all */
    int k;                          /* given ids: the first k columns of b->ids */
    int top_k;        /* number of the model's top ids, stored in columns k.. of b->ids */
    double *logp;     /* (N) */
    double *logp_at;  /* (N,k of b) of the given ids, then of the top ids */
    double *log_kept; /* (N) log mass of b->kept */
    double *sum_sq;   /* (N) sum_v p_v^2 */
    bool displaced;   /* only kg_rl_displaced trajectories */
    bool replay;      /* the model is the policy: see kg_traj_seq */
};

bool kg_rl_filtered(const struct kg_rl_batch *b, const struct kg_algo *algo, size_t i)
{
    return !kg_rl_learns(b, i) || !kg_rl_judged(b, i) ||
           (algo->mask_truncated && b->trajs[i].finish == KG_FINISH_LENGTH);
}

bool kg_rl_anchored(const struct kg_rl_batch *b, const struct kg_algo *algo, size_t i)
{
    return !(kg_algo_kl_in_loss(algo) && algo->kl_after_filter &&
             kg_rl_filtered(b, algo, i));
}

static bool is_asked(const struct kg_rl_batch *b, const struct pass_plan *p, size_t i)
{
    if (p->displaced && !kg_rl_displaced(b, i))
        return false;
    return !p->anchored || kg_rl_anchored(b, p->anchored, i);
}

struct pass {
    struct kg_rl_batch *b;
    const struct pass_plan *plan;
    struct kg_rows *rows;
    int64_t *at; /* (rows->max_rows) owned: the loss token of a requested row */
    int phase;
};

/* Requests rows for the model's tokens of a part; the first is loss token `at`.
 * returns the loss token after the last */
static int64_t want_part(struct pass *p, size_t i, struct kg_traj_part part, int64_t at)
{
    const struct kg_rl_batch *b = p->b;
    int64_t row = p->rows->n_rows;

    kg_traj_want(p->rows, &b->trajs[i], part, p->plan->replay, b->ids + at * b->k, b->k,
                 p->plan->log_kept ? b->kept + at : NULL);
    while (row < p->rows->n_rows)
        p->at[row++] = at++;
    return at;
}

static void take_row(const struct pass *p, int64_t w)
{
    const struct pass_plan *plan = p->plan;
    const struct kg_rows *rows = p->rows;
    int64_t at = p->at[w], k = p->b->k, first = at * k + plan->k;

    if (plan->logp)
        plan->logp[at] = rows->logp[w];
    if (plan->sum_sq)
        plan->sum_sq[at] = rows->sum_sq[w];
    if (plan->log_kept)
        plan->log_kept[at] = rows->set_logp[w];
    for (int x = 0; x < plan->k; x++)
        plan->logp_at[at * k + x] = rows->logp_at[w * plan->k + x];
    for (int x = 0; x < plan->top_k; x++) {
        p->b->ids[first + x] = rows->top_ids[w * plan->top_k + x];
        plan->logp_at[first + x] = rows->top_logp[w * plan->top_k + x];
    }
}

/* Computes the rows of a pack, stores them, and begins the next pack. */
static kg_status answer_pack(struct pass *p, struct kg_err *err)
{
    const struct pass_plan *plan = p->plan;
    const struct kg_rows_ask ask = {.top_k = plan->top_k,
                                    .sum_sq = plan->sum_sq != NULL,
                                    .sets = plan->log_kept != NULL};
    const struct kg_rows *rows = p->rows;
    size_t i = 0;

    if (rows->n_rows > 0) {
        KG_TRY(kg_rows_forward(p->rows, false, err));
        KG_TRY(kg_rows_ask(p->rows, &ask, err));
    }
    for (int64_t w = 0; w < rows->n_rows; w++) {
        while (p->b->begin[i + 1] <= p->at[w])
            i++;
        if (!isfinite(rows->lse[w]))
            return kg_fail(err, KG_ENONFINITE,
                           "trajectory %zu, loss token %lld: expected finite logits, "
                           "found a log sum exp of %g",
                           i, (long long)(p->at[w] - p->b->begin[i]),
                           isnan(rows->lse[w]) ? (double)NAN : rows->lse[w]);
        take_row(p, w);
    }
    kg_rows_begin(p->rows, plan->model, plan->k);
    return KG_OK;
}

/* Runs the pass on this rank's share of the trajectories. */
static kg_status ask_all(struct pass *p, struct kg_share mine, struct kg_err *err)
{
    const struct kg_rl_batch *b = p->b;

    kg_rows_begin(p->rows, p->plan->model, p->plan->k);
    for (size_t i = (size_t)mine.first; i < (size_t)mine.end; i++) {
        const struct kg_traj *t = &b->trajs[i];
        int64_t at = b->begin[i];

        for (size_t x = 0; is_asked(b, p->plan, i) && x < kg_traj_n_parts(t, b->whole);
             x++) {
            struct kg_traj_part part = kg_traj_part(t, x, b->whole);
            struct kg_rows_seq q = kg_traj_seq(t, part, p->plan->replay);

            if (!kg_rows_fits_seq(p->rows, &q)) {
                KG_TRY(answer_pack(p, err));
                kg_phase_at(p->phase, (int64_t)i);
            }
            at = want_part(p, i, part, at);
        }
    }
    return answer_pack(p, err);
}

static kg_status deal(struct kg_rl_deal *d, const struct kg_rl_batch *b,
                      const struct pass_plan *plan, const struct kg_ranks *ranks,
                      struct kg_err *err)
{
    int64_t *tokens = kg_mem_calloc(b->n_trajs + 1, sizeof *tokens, "lengths", err);

    if (!tokens)
        return err->code;
    for (size_t i = 0; i < b->n_trajs; i++)
        if (is_asked(b, plan, i))
            tokens[i] = (int64_t)kg_traj_span(&b->trajs[i], b->whole);
    kg_status status = kg_rl_deal(d, b, 0, b->n_trajs, tokens, ranks, err);
    kg_mem_free(tokens);
    return status;
}

/* Gathers the outputs of the pass from all ranks. */
static kg_status gather_pass(struct kg_rl_batch *b, const struct pass_plan *p,
                             const struct kg_rl_deal *d, struct kg_ranks *ranks,
                             struct kg_err *err)
{
    size_t k = (size_t)b->k;
    const struct {
        void *array;
        size_t size;
    } arrays[] = {{p->logp, sizeof *p->logp},
                  {p->sum_sq, sizeof *p->sum_sq},
                  {p->log_kept, sizeof *p->log_kept},
                  {p->logp_at, k * sizeof *p->logp_at},
                  {p->top_k > 0 ? b->ids : NULL, k * sizeof *b->ids}};

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        KG_TRY(kg_rl_deal_gather(arrays[i].array, arrays[i].size, d, ranks, "pass", err));
    return KG_OK;
}

static kg_status run_pass(struct kg_rl_batch *b, const struct kg_run_state *state,
                          struct kg_run_work *work, const struct pass_plan *plan,
                          struct kg_err *err)
{
    struct pass p = {.b = b, .plan = plan, .rows = kg_run_rows(state, work, plan->model)};
    bool anchor = plan->model == state->anchor;
    struct kg_rl_deal d = {0};
    kg_status status;

    if (!plan->displaced)
        *(anchor ? &b->anchor_passes : &b->own_passes) += 1;
    p.at = kg_mem_calloc((size_t)p.rows->max_rows, sizeof *p.at, "loss tokens", err);
    if (!p.at)
        return err->code;
    KG_TRY_GOTO(out, deal(&d, b, plan, work->ranks, err));
    p.phase = kg_phase_begin((int64_t)b->n_trajs, "completions", "%s",
                             anchor ? "anchor pass" : "policy pass");
    status = ask_all(&p, d.mine, err);
    kg_phase_end(p.phase);
    KG_TRY_GOTO(out, kg_ranks_agree(work->ranks, status, "pass", err));
    status = gather_pass(b, plan, &d, work->ranks, err);
out:
    kg_rl_deal_release(&d);
    kg_mem_free(p.at);
    return status;
}

/* Whether there are anchor rows. An exact KL reads the anchor in micro-batches. */
static bool has_anchor_rows(const struct kg_algo *algo)
{
    return kg_algo_needs(algo) & (KG_NEED_ANCHOR | KG_NEED_TOP_ANCHOR);
}

bool kg_rl_asks_anchor(const struct kg_algo *algo, const struct kg_model *anchor)
{
    return has_anchor_rows(algo) && (anchor || kg_algo_anchor_top_k(algo) > 0);
}

static size_t n_displaced(const struct kg_rl_batch *b)
{
    size_t n = 0;

    for (size_t i = 0; i < b->n_trajs; i++)
        n += kg_rl_displaced(b, i);
    return n;
}

/* The iterative anchor is the sampler: its rows are the sampler's record. */
static void copy_record(struct kg_rl_batch *b)
{
    size_t n = (size_t)b->n;

    memcpy(b->anchor_logp, b->mu_logp, n * sizeof *b->anchor_logp);
    if (b->k_sampler > 0)
        memcpy(b->anchor_at, b->mu_at, n * (size_t)b->k_sampler * sizeof *b->anchor_at);
}

kg_status kg_rl_ask_anchor(struct kg_rl_batch *b, const struct kg_algo *algo,
                           const struct kg_run_state *state, struct kg_run_work *work,
                           struct kg_err *err)
{
    const struct kg_model *sampler = kg_run_sampler(state);
    struct pass_plan p = {.model = state->anchor ? state->anchor : sampler,
                          .anchored = algo,
                          .k = b->k_sampler,
                          .top_k = b->k_anchor,
                          .logp = b->anchor_logp,
                          .logp_at = b->anchor_at};

    if (kg_rl_asks_anchor(algo, state->anchor) ||
        (has_anchor_rows(algo) && n_displaced(b) > 0))
        return run_pass(b, state, work, &p, err);
    if (has_anchor_rows(algo))
        copy_record(b);
    return KG_OK;
}

/* algo.reproduction reads whole texts. For a turn that was sampled in a window, old_logp
 * becomes the sampler's log-prob given the whole text; mu_logp stays as recorded. */
static kg_status displace(struct kg_rl_batch *b, const struct kg_algo *algo,
                          const struct kg_run_state *state, struct kg_run_work *work,
                          struct kg_err *err)
{
    bool own = kg_algo_needs(algo) & KG_NEED_MU_AT;
    struct pass_plan p = {.model = kg_run_sampler(state),
                          .top_k = own ? 0 : b->k_sampler,
                          .logp = b->old_logp,
                          .logp_at = b->mu_at,
                          .displaced = true};

    for (size_t i = 0; i < b->n_trajs; i++)
        if (kg_rl_displaced(b, i))
            b->whole_tokens += (double)b->trajs[i].n;
    return n_displaced(b) > 0 ? run_pass(b, state, work, &p, err) : KG_OK;
}

kg_status kg_rl_prepare(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                        const struct kg_run_state *state, struct kg_run_work *work,
                        struct kg_err *err)
{
    const struct kg_model *sampler = kg_run_sampler(state);

    KG_TRY(count_tokens(b, &in->algo, err));
    KG_TRY(allocate(b, &in->algo, has_anchor_rows(&in->algo), err));
    flatten(b);
    b->whole = in->recipe.reproduction;
    KG_TRY(displace(b, &in->algo, state, work, err));
    KG_TRY(kg_rl_ask_anchor(b, &in->algo, state, work, err));
    if (in->recipe.train.recompute) {
        struct pass_plan p = {.model = state->model, .logp = b->old_logp, .replay = true};

        KG_TRY(run_pass(b, state, work, &p, err));
        sampler = state->model; /* the passes below use the old policy, too */
    }
    if (b->kept) {
        struct pass_plan p = {.model = sampler,
                              .log_kept = b->old_log_kept,
                              .replay = sampler == state->model};

        KG_TRY(run_pass(b, state, work, &p, err));
    }
    if (b->sum_sq) {
        struct pass_plan p = {
            .model = sampler, .sum_sq = b->sum_sq, .replay = sampler == state->model};

        KG_TRY(run_pass(b, state, work, &p, err));
    }
    return KG_OK;
}

void kg_rl_take_begun(struct kg_run_state *state, struct kg_rl_batch *b)
{
    kg_str_release(&state->begun);
    state->begun = b->begun;
    b->begun = (struct kg_str){0};
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
    kg_columns_free(&b->block, b, columns);
    kg_mem_free(b->greedy);
    kg_mem_free(b->times);
    kg_str_release(&b->begun);
    memset(b, 0, sizeof *b);
}
