/* One RL step: sample, grade, anchor pass, advantages, optimizer updates, anchor update,
 * log and dump.
 *
 * Token weights, and for train.router_aux the load of each expert, are computed once over
 * the whole optimizer batch. Micro-batches of whole sequences therefore add up to the
 * same gradient, however the batch is split. The mathematics is in policy/; this file has
 * only the order of operations.
 */
#include "train/step/rl_step.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/phase.h"
#include "policy/shaping.h"
#include "ranks/lanes.h"
#include "rollout/score.h"
#include "train/keep/checkpoint.h"
#include "train/step/anchor.h"
#include "train/step/rl_deal.h"

/* ---- one optimizer update over trajectories [first, last) ---- */

struct update {
    const struct kg_run_inputs *in;
    const struct kg_algo *algo; /* the step's copy, with its KL coefficient */
    struct kg_run_state *state;
    struct kg_run_work *work;
    struct kg_rl_batch *b;
    size_t first, last;
    uint64_t number; /* index of the update in the run, counting idle ones */
    struct kg_rl_totals *totals;
    bool balanced;         /* train.router_aux has its coefficients for this update */
    double router;         /* router_aux loss of the micro-batch, until in its terms */
    int64_t saved;         /* tokens saved by shared prefixes, until in its terms */
    struct kg_str said;    /* owned: one struct kg_rl_terms per piece, in order */
    struct kg_block block; /* owned: holds the arrays below */
    size_t *list;          /* (last - first) the trajectories to compute */
    int64_t *length;       /* (last - first) in tokens; 0: no loss term */
    int64_t *shared;       /* (last - first) see struct kg_lane_lengths */
    int64_t *seq_begin;
    /* rows of one micro-batch: the head's floats as doubles for the policy */
    double *logp, *logp_at, *entropy;
    /* for batch scope: one value per loss token of the update */
    double *whole_logp, *whole_kept;
    uint8_t *selected; /* NULL: no batch scope */
};

enum { ANSWERS, BEGINS, TOKENS, IDS, WHOLE, WHOLE_KEPT, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct update, seq_begin, BEGINS),
    KG_COLUMN(struct update, list, ANSWERS),
    KG_COLUMN(struct update, length, ANSWERS),
    KG_COLUMN(struct update, shared, ANSWERS),
    KG_COLUMN(struct update, logp, TOKENS),
    KG_COLUMN(struct update, logp_at, IDS),
    KG_COLUMN(struct update, entropy, TOKENS),
    KG_COLUMN(struct update, whole_logp, WHOLE),
    KG_COLUMN(struct update, whole_kept, WHOLE_KEPT),
    KG_COLUMN(struct update, selected, WHOLE),
    {0},
};

/* Moves the block; arrays in it stay valid. */
static void hand_over(struct kg_block *to, struct kg_block *from)
{
    kg_mem_free(to->memory);
    *to = *from;
    *from = (struct kg_block){0};
}

static void update_release(struct update *u)
{
    kg_str_release(&u->said);
    hand_over(&u->work->update_memory, &u->block);
}

static bool selects(const struct update *u)
{
    return kg_algo_scope(u->algo) == KG_SCOPE_BATCH;
}

static kg_status update_init(struct update *u, struct kg_err *err)
{
    const size_t n = (size_t)u->work->rows->max_tokens, answers = u->last - u->first;
    const size_t all = (size_t)(u->b->begin[u->last] - u->b->begin[u->first]);
    const size_t counts[COUNTS] = {
        [ANSWERS] = answers,
        [BEGINS] = answers + 1,
        [TOKENS] = n,
        [IDS] = n * (size_t)u->b->k,
        [WHOLE] = selects(u) ? all : KG_COLUMN_ABSENT,
        [WHOLE_KEPT] = selects(u) && u->b->kept ? all : KG_COLUMN_ABSENT,
    };

    hand_over(&u->block, &u->work->update_memory);
    return kg_columns_take(&u->block, u, columns, counts, "update", err);
}

/* Offsets of trajectories [first, last) from the first one's. */
static void local_begin(int64_t *out, const struct kg_rl_batch *b, size_t first,
                        size_t last)
{
    for (size_t i = first; i <= last; i++)
        out[i - first] = b->begin[i] - b->begin[first];
}

static struct kg_rows_seq first_part(const struct update *u, size_t i)
{
    const struct kg_traj *t = &u->b->trajs[i];

    return kg_traj_seq(t, kg_traj_part(t, 0, u->b->whole), true);
}

/* Lengths of prefixes in common with the previous completion that has a loss term. */
static void measure_shared(struct update *u)
{
    size_t before = u->last;

    for (size_t i = u->first; i < u->last; i++) {
        u->shared[i - u->first] = 0;
        if (u->length[i - u->first] == 0)
            continue;
        if (before < u->last) {
            const struct kg_rows_seq a = first_part(u, before), q = first_part(u, i);

            u->shared[i - u->first] = (int64_t)kg_rows_in_common(u->state->model, &a, &q);
        }
        before = i;
    }
}

/* Lengths of the completions; 0: no token has a loss term. All tokens of a completion
 * have the same weights, so its first token decides. */
static void measure(struct update *u)
{
    const struct kg_rl_batch *b = u->b;
    const struct kg_algo *algo = u->algo;

    for (size_t i = u->first; i < u->last; i++) {
        int64_t at = b->begin[i];
        bool heard = at < b->begin[i + 1] &&
                     (b->pg_weight[at] != 0 ||
                      (kg_algo_kl_in_loss(algo) && b->kl_weight[at] != 0) ||
                      (algo->entropy_coef != 0 && b->entropy_weight[at] != 0));

        u->length[i - u->first] = heard ? (int64_t)kg_traj_span(&b->trajs[i], b->whole)
                                        : 0;
    }
    measure_shared(u);
}

static struct kg_lane_lengths lengths_of(const struct update *u)
{
    const struct kg_rows *p = u->work->rows;
    const bool shares = kg_rows_max_keys(p) > 0;

    return (struct kg_lane_lengths){.tokens = u->length,
                                    .shared = shares ? u->shared : NULL,
                                    .group = (size_t)u->b->group,
                                    .budget = p->max_tokens,
                                    .max_keys = kg_rows_max_keys(p)};
}

static kg_status weigh(struct update *u, struct kg_err *err)
{
    struct kg_rl_batch *b = u->b;
    size_t n = u->last - u->first;
    int64_t base = b->begin[u->first];
    uint8_t *drop = kg_mem_calloc(n, sizeof *drop, "dropped sequences", err);
    struct kg_policy_shape shape = {
        .n_seqs = (int64_t)n, .seq_begin = u->seq_begin, .drop = drop};
    struct kg_policy_weights w = {b->pg_weight + base, b->kl_weight + base,
                                  b->entropy_weight + base};

    if (!drop)
        return err->code;
    for (size_t i = 0; i < n; i++)
        drop[i] = kg_rl_filtered(b, u->algo, u->first + i);
    local_begin(u->seq_begin, b, u->first, u->last);
    kg_status status = kg_policy_weights(&w, u->algo, &shape, err);
    if (status == KG_OK)
        measure(u);
    kg_mem_free(drop);
    return status;
}

static void pack_traj(struct kg_rows *p, const struct kg_rl_batch *b, size_t i)
{
    const struct kg_traj *t = &b->trajs[i];
    int64_t at = b->begin[i];

    for (size_t x = 0; x < kg_traj_n_parts(t, b->whole); x++)
        at += kg_traj_want(p, t, kg_traj_part(t, x, b->whole), true, b->ids + at * b->k,
                           b->k, b->kept ? b->kept + at : NULL);
}

static void read_rows(struct update *u, const struct kg_rows *p)
{
    for (int64_t i = 0; i < p->n_rows; i++) {
        u->logp[i] = p->logp[i];
        u->entropy[i] = p->entropy[i];
    }
    for (int64_t i = 0; i < p->n_rows * p->k; i++)
        u->logp_at[i] = p->logp_at[i];
}

/* Consecutive trajectories of a micro-batch: [first, last) is contiguous in the batch's
 * arrays, and in the pack's rows from `row` on. */
struct piece {
    size_t first, last;
    int64_t row;
};

/* Moves *p to the next piece of the list ({0}: before the first).   *at: entries of the
 * list used so far */
static bool next_piece(struct piece *p, size_t *at, const struct kg_rl_batch *b,
                       const size_t *list, size_t n)
{
    p->row += b->begin[p->last] - b->begin[p->first];
    if (*at == n)
        return false;
    p->first = list[*at];
    p->last = p->first;
    for (; *at < n && list[*at] == p->last; ++*at)
        p->last++;
    return true;
}

/* The array from row `at` on; NULL if there is no array. */
static double *from_row(double *rows, int64_t at) { return rows ? rows + at : NULL; }

static struct kg_policy_batch policy_batch(const struct update *u,
                                           const struct piece *piece)
{
    const struct kg_rl_batch *b = u->b;
    const struct kg_rows *p = u->work->rows;
    int64_t base = b->begin[piece->first];
    int64_t at = base * b->k;

    return (struct kg_policy_batch){
        .n_seqs = (int64_t)(piece->last - piece->first),
        .n_tokens = b->begin[piece->last] - base,
        .seq_begin = u->seq_begin,
        .tokens = b->tokens + base,
        .logp = u->logp + piece->row,
        .old_logp = b->old_logp + base,
        .mu_logp = b->mu_logp + base,
        .anchor_logp = from_row(b->anchor_logp, base),
        .advantage = b->advantage + base,
        .entropy = u->entropy + piece->row,
        .kl_exact = from_row(p->kl, piece->row),
        .k_sampler = b->k_sampler,
        .k_anchor = b->k_anchor,
        .logp_at = u->logp_at + piece->row * b->k,
        .anchor_at = from_row(b->anchor_at, at),
        .mu_at = from_row(b->mu_at, at),
        .ids = b->ids + at,
        .log_kept = b->kept ? p->set_logp + piece->row : NULL,
        .old_log_kept = b->kept ? b->old_log_kept + base : NULL,
        .pg_weight = b->pg_weight + base,
        .kl_weight = b->kl_weight + base,
        .entropy_weight = b->entropy_weight + base,
        .selected = u->selected ? u->selected + (base - b->begin[u->first]) : NULL,
        .kl_divisor = u->totals->kl_divisor,
    };
}

/* Runs the forward of the listed trajectories and copies its rows. */
static kg_status forward(struct update *u, const size_t *list, size_t n, bool no_backward,
                         struct kg_err *err)
{
    struct kg_rows *p = u->work->rows;
    unsigned needs = no_backward ? 0 : kg_algo_needs(u->algo);
    struct kg_rows_ask ask = {.entropy = true,
                              .sets = u->b->kept != NULL,
                              .load = !no_backward,
                              .kl = needs & KG_NEED_EXACT_REVERSE   ? KG_ROWS_KL_REVERSE
                                    : needs & KG_NEED_EXACT_FORWARD ? KG_ROWS_KL_FORWARD
                                                                    : KG_ROWS_KL_NONE,
                              .anchor = u->state->anchor};

    kg_rows_begin(p, u->state->model, u->b->k);
    for (size_t i = 0; i < n; i++)
        pack_traj(p, u->b, list[i]);
    KG_TRY(kg_rows_forward(p, !no_backward, err));
    KG_TRY(kg_rows_ask(p, &ask, err));
    read_rows(u, p);
    return KG_OK;
}

/* Computes the policy's gradient on the rows of a piece.   *any: set if there is one */
static kg_status grade_piece(bool *any, struct update *u, const struct piece *piece,
                             struct kg_err *err)
{
    struct kg_rows *p = u->work->rows;
    struct kg_policy_grad grad = {.a_logp = p->a_logp + piece->row,
                                  .a_at = p->a_at + piece->row * p->k,
                                  .a_entropy = p->a_entropy + piece->row,
                                  .a_kl_exact = from_row(p->a_kl, piece->row),
                                  .a_log_kept = from_row(p->a_set, piece->row)};
    struct kg_rl_terms terms;

    local_begin(u->seq_begin, u->b, piece->first, piece->last);
    struct kg_policy_batch batch = policy_batch(u, piece);
    KG_TRY(kg_policy_loss(&grad, u->algo, &batch, err));
    kg_rl_terms_fill(&terms, &grad, &batch);
    terms.router = u->router;
    terms.loss += u->router;
    terms.any |= u->balanced;
    terms.shared = (double)u->saved;
    u->router = 0;
    u->saved = 0;
    *any = *any || terms.any;
    return kg_str_append(&u->said, &terms, sizeof terms, err);
}

/* Forward, and the policy's gradient on all rows.   *any: whether there is one */
static kg_status grade_micro_batch(bool *any, struct update *u, const size_t *list,
                                   size_t n, struct kg_err *err)
{
    struct piece piece = {0};
    size_t at = 0;

    *any = false;
    KG_TRY(forward(u, list, n, false, err));
    u->saved = kg_rows_saved(u->work->rows);
    KG_TRY(kg_expert_load_add(&u->work->load, u->work->rows, err));
    if (u->balanced)
        KG_TRY(kg_expert_load_loss(&u->router, &u->work->whole_load, u->work->rows, err));
    while (next_piece(&piece, &at, u->b, list, n))
        KG_TRY(grade_piece(any, u, &piece, err));
    return KG_OK;
}

static kg_status train_micro_batch(struct update *u, const size_t *list, size_t n,
                                   struct kg_err *err)
{
    bool any;

    KG_TRY(grade_micro_batch(&any, u, list, n, err));
    if (!any)
        return KG_OK;
    return kg_rows_backward(u->work->rows, u->state->optim->grads.data,
                            u->algo->entropy_coef != 0, err);
}

/* Processes listed trajectories whose contexts fit in one pack. */
typedef kg_status (*micro_batch_fn)(struct update *u, const size_t *list, size_t n,
                                    struct kg_err *err);

/* Calls `work` on consecutive parts of the list, each as long as a pack allows. */
static kg_status micro_batches(struct update *u, const size_t *list, size_t n,
                               micro_batch_fn work, struct kg_err *err)
{
    const struct kg_lane_lengths lengths = lengths_of(u);
    int phase = kg_phase_begin((int64_t)n, "sequences", "micro-batches");

    for (size_t i = 0, more; i < n; i += more) {
        more = kg_lanes_fit(&lengths, list + i, n - i, u->first);
        KG_TRY(work(u, list + i, more, err));
        kg_phase_at(phase, (int64_t)(i + more));
    }
    kg_phase_end(phase);
    return KG_OK;
}

/* micro_batches on the trajectories of [first, last) that have a loss term. */
static kg_status all_micro_batches(struct update *u, size_t first, size_t last,
                                   micro_batch_fn work, struct kg_err *err)
{
    size_t n = 0;

    for (size_t i = first; i < last; i++)
        if (u->length[i - u->first] > 0)
            u->list[n++] = i;
    return micro_batches(u, u->list, n, work, err);
}

/* ---- batch scope: a forward over the whole update selects its tokens ---- */

static kg_status read_whole(struct update *u, const size_t *list, size_t n,
                            struct kg_err *err)
{
    const struct kg_rl_batch *b = u->b;
    const struct kg_rows *p = u->work->rows;
    struct piece piece = {0};
    size_t at = 0;

    KG_TRY(forward(u, list, n, true, err));
    while (next_piece(&piece, &at, b, list, n)) {
        int64_t to = b->begin[piece.first] - b->begin[u->first];
        size_t bytes = (size_t)(b->begin[piece.last] - b->begin[piece.first]) *
                       sizeof *u->logp;

        memcpy(u->whole_logp + to, u->logp + piece.row, bytes);
        if (b->kept)
            memcpy(u->whole_kept + to, p->set_logp + piece.row, bytes);
    }
    return KG_OK;
}

static kg_status gather_whole(struct update *u, const struct kg_rl_deal *d,
                              struct kg_err *err)
{
    struct kg_ranks *ranks = u->work->ranks;

    KG_TRY(kg_rl_deal_gather(u->whole_logp, sizeof *u->whole_logp, d, ranks, "selection",
                             err));
    return kg_rl_deal_gather(u->whole_kept, sizeof *u->whole_kept, d, ranks, "selection",
                             err);
}

static kg_status read_all_whole(struct update *u, struct kg_err *err)
{
    struct kg_ranks *ranks = u->work->ranks;
    struct kg_rl_deal d;
    kg_status status = kg_rl_deal(&d, u->b, u->first, u->last, u->length, ranks, err);

    if (status == KG_OK)
        status = all_micro_batches(u, u->first + (size_t)d.mine.first,
                                   u->first + (size_t)d.mine.end, read_whole, err);
    status = kg_ranks_agree(ranks, status, "selection", err);
    if (status == KG_OK)
        status = gather_whole(u, &d, err);
    kg_rl_deal_release(&d);
    return status;
}

static kg_status choose_tokens(struct update *u, struct kg_err *err)
{
    const struct kg_rl_batch *b = u->b;
    int64_t base = b->begin[u->first];
    struct kg_policy_batch whole = {.n_seqs = (int64_t)(u->last - u->first),
                                    .n_tokens = b->begin[u->last] - base,
                                    .seq_begin = u->seq_begin,
                                    .logp = u->whole_logp,
                                    .old_logp = b->old_logp + base,
                                    .log_kept = u->whole_kept,
                                    .old_log_kept = from_row(b->old_log_kept, base),
                                    .advantage = b->advantage + base,
                                    .pg_weight = b->pg_weight + base,
                                    .select_seed = u->in->recipe.run.seed,
                                    .select_draw = u->number};

    KG_TRY(read_all_whole(u, err));
    local_begin(u->seq_begin, b, u->first, u->last);
    return kg_policy_select(u->selected, u->algo, &whole, err);
}

/* ---- load of experts: counted by a forward over the whole update ---- */

static kg_status count_experts(struct update *u, const size_t *list, size_t n,
                               struct kg_err *err)
{
    struct kg_rows *p = u->work->rows;

    kg_rows_begin(p, u->state->model, u->b->k);
    for (size_t i = 0; i < n; i++)
        pack_traj(p, u->b, list[i]);
    KG_TRY(kg_rows_forward(p, false, err));
    return kg_expert_load_add(&u->work->whole_load, p, err);
}

static kg_status count_all(struct update *u, struct kg_err *err)
{
    struct kg_run_work *work = u->work;
    struct kg_rl_deal d;
    kg_status status = kg_rl_deal(&d, u->b, u->first, u->last, u->length, work->ranks,
                                  err);

    kg_expert_load_clear(&work->whole_load);
    if (status == KG_OK)
        status = all_micro_batches(u, u->first + (size_t)d.mine.first,
                                   u->first + (size_t)d.mine.end, count_experts, err);
    kg_rl_deal_release(&d);
    KG_TRY(kg_ranks_agree(work->ranks, status, "load of experts", err));
    return kg_expert_load_gather(&work->whole_load, work->ranks, err);
}

/* From this call on, micro-batches include the gradient of train.router_aux. */
static kg_status balance(struct update *u, struct kg_err *err)
{
    const double c = u->in->recipe.train.router_aux;

    if (c == 0)
        return KG_OK;
    KG_TRY(count_all(u, err));
    u->balanced = true;
    return kg_expert_load_balance(&u->work->whole_load, u->work->rows, c, err);
}

static kg_status end_balance(struct update *u, struct kg_err *err)
{
    u->balanced = false;
    return kg_rows_balance(u->work->rows, NULL, err);
}

/* ---- the update ---- */

static double mean_kl(const struct kg_policy_metrics *m, double sum, int64_t tokens)
{
    int64_t n = m->kl_tokens - tokens;

    return n > 0 ? (m->kl_sum - sum) / (double)n : 0;
}

/* If the anchor moved and the step has more updates, reads the anchor's rows again. */
static kg_status after_update(struct update *u, double kl, struct kg_err *err)
{
    bool moved;

    KG_TRY(kg_run_anchor_after_update(&moved, u->algo, u->state, kl, err));
    return moved && u->last < u->b->n_trajs
               ? kg_rl_ask_anchor(u->b, u->algo, u->state, u->work, err)
               : KG_OK;
}

/* Adds the terms of the computed pieces to the totals of the step. */
static void add_said(struct update *u)
{
    struct kg_rl_terms terms;

    for (size_t at = 0; at + sizeof terms <= u->said.len; at += sizeof terms) {
        memcpy(&terms, u->said.data + at, sizeof terms);
        kg_rl_totals_add(u->totals, &terms);
    }
    kg_str_clear(&u->said);
}

/* Converts a lane's list to indices of the batch's trajectories. */
static const size_t *listed(struct update *u, const size_t *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        u->list[i] = u->first + list[i];
    return u->list;
}

/* A kg_lane_fn. */
static kg_status train_lane(void *context, const size_t *list, size_t n,
                            struct kg_err *err)
{
    struct update *u = context;

    return micro_batches(u, listed(u, list, n), n, train_micro_batch, err);
}

/* The functions of struct kg_lane_stages. */
static kg_status train_pack(bool *any, void *context, const size_t *list, size_t n,
                            bool begins, struct kg_err *err)
{
    struct update *u = context;

    (void)begins;
    return grade_micro_batch(any, u, listed(u, list, n), n, err);
}

static kg_status train_stage(void *context, struct kg_grads grads, int i,
                             struct kg_err *err)
{
    struct update *u = context;

    return kg_rows_backward_stage(u->work->rows, grads, i, u->algo->entropy_coef != 0,
                                  err);
}

/* The gradient of the whole update. If it fails, none of its terms are counted. */
static kg_status gradient(struct update *u, struct kg_err *err)
{
    const struct kg_lane_stages stages = {
        .buckets = kg_lane_buckets_of(u->state->model),
        .forward = train_pack,
        .backward = train_stage,
    };
    const struct kg_lane_job job = {.lanes = u->in->recipe.train.lanes,
                                    .lengths = lengths_of(u),
                                    .n = u->last - u->first,
                                    .work = train_lane,
                                    .context = u,
                                    .cut = u->state->model->ranks != NULL,
                                    .stages = kg_run_divides_gradients(u->in) ? &stages
                                                                              : NULL,
                                    .said = &u->said};

    KG_TRY(kg_lane_sum_run(&u->work->lane_sum, &u->state->optim->grads, &job,
                           u->work->ranks, err));
    add_said(u);
    return end_balance(u, err);
}

/* Forward, backward, optimizer. Without a gradient the optimizer does not run: it would
 * only apply old moments and weight decay. */
static kg_status update(struct update *u, struct kg_err *err)
{
    double norm = 0, lr = 0, kl_sum = u->totals->metrics.kl_sum;
    int64_t kl_tokens = u->totals->metrics.kl_tokens;

    KG_TRY(weigh(u, err));
    u->totals->any = false;
    if (u->selected)
        KG_TRY(choose_tokens(u, err));
    KG_TRY(balance(u, err));
    KG_TRY(gradient(u, err));
    if (!u->totals->any) {
        u->state->count.idle_updates++;
        return KG_OK;
    }
    KG_TRY(kg_optim_update(u->state->optim, u->state->model, &norm, &lr, err));
    kg_rl_totals_update(u->totals, norm, lr);
    return after_update(u, mean_kl(&u->totals->metrics, kl_sum, kl_tokens), err);
}

/* ---- gradients without an update ---- */

static kg_status group_gradients(struct update *u, kg_rl_group_fn each, void *user,
                                 struct kg_err *err)
{
    size_t group = (size_t)u->b->group;

    KG_TRY(weigh(u, err));
    if (u->selected)
        KG_TRY(choose_tokens(u, err));
    KG_TRY(balance(u, err));
    for (size_t i = u->first; i < u->last; i += group) {
        KG_TRY(kg_slab_zero(&u->state->optim->grads, err));
        KG_TRY(all_micro_batches(u, i, i + group, train_micro_batch, err));
        add_said(u);
        KG_TRY(each(user, &u->state->optim->grads, err));
    }
    return end_balance(u, err);
}

/* An update that has no trajectories yet. */
static struct update update_of(struct kg_run *run, const struct kg_algo *algo,
                               struct kg_rl_batch *b, struct kg_rl_totals *totals)
{
    return (struct update){.in = &run->in,
                           .algo = algo,
                           .state = &run->state,
                           .work = &run->work,
                           .b = b,
                           .totals = totals};
}

kg_status kg_rl_gradients(struct kg_rl_totals *totals, struct kg_rl_batch *b,
                          struct kg_run *run, const struct kg_algo *algo,
                          kg_rl_group_fn each, void *user, struct kg_err *err)
{
    struct update u = update_of(run, algo, b, totals);

    u.number = (uint64_t)run->state.count.step;
    u.last = b->n_trajs;
    kg_status status = update_init(&u, err);
    if (status == KG_OK)
        status = group_gradients(&u, each, user, err);
    update_release(&u);
    return status;
}

/* ---- the step's updates ---- */

/* End of the share that has the first `prompts` prompts to learn from. A group kept only
 * for its KL belongs to the share in which its position falls. */
static size_t end_of_share(const struct kg_rl_batch *b, size_t prompts)
{
    size_t group = (size_t)b->group, seen = 0, i = 0;

    if (prompts * group == b->n_learned)
        return b->n_trajs;
    for (; seen < prompts; i += group)
        seen += kg_rl_learns(b, i);
    return i;
}

/* Runs the updates of the step, each on a contiguous, nearly equal share of prompts. */
static kg_status updates(struct update *u, struct kg_err *err)
{
    size_t prompts = u->b->n_learned / (size_t)u->b->group;
    size_t n = (size_t)u->in->recipe.train.updates_per_step;
    kg_status status = KG_OK;
    int phase = kg_phase_begin((int64_t)n, "updates", "learning");

    kg_expert_load_clear(&u->work->load);
    for (size_t i = 0; i < n && status == KG_OK; i++) {
        u->number = (uint64_t)u->state->count.step * n + i;
        u->first = u->last;
        u->last = end_of_share(u->b, prompts * (i + 1) / n);
        if (u->first == u->last)
            continue;
        status = update_init(u, err);
        if (status == KG_OK)
            status = update(u, err);
        update_release(u);
        kg_phase_at(phase, (int64_t)i + 1);
    }
    kg_phase_end(phase);
    return status == KG_OK ? kg_expert_load_gather(&u->work->load, u->work->ranks, err)
                           : status;
}

/* ---- the KL coefficient ---- */

/* The next step's coefficient, from this step's KL in rewards or advantages, or in the
 * loss before weights and divisor. The controller counts each completion as a sample. */
static void steer_kl(const struct kg_algo *a, struct kg_counters *count,
                     const struct kg_rl_batch *b, const struct kg_rl_totals *t)
{
    double kl = kg_algo_kl_taken(a) ? t->kl_taken
                : t->metrics.kl_tokens > 0
                    ? t->metrics.kl_sum / (double)t->metrics.kl_tokens
                    : 0;

    if (a->kl_target > 0)
        count->kl_beta = kg_policy_adaptive_kl(count->kl_beta, kl, a->kl_target,
                                               a->kl_horizon, (int64_t)b->n_trajs);
}

/* ---- the step ---- */

/* Non-finite values skip the rest of the step; any other error stops the run. The batch
 * is dumped as far as it was computed. All ranks know `why`, but not an error of the
 * dump. */
static kg_status skip(struct kg_run *run, const struct kg_rl_batch *b,
                      const struct kg_err *why, struct kg_err *err)
{
    kg_ranks_forgive(run->work.ranks);
    KG_TRY(kg_rl_dump(run, b, true, err));
    return kg_run_skip(run, why->message, err);
}

kg_status kg_rl_train(struct kg_rl_totals *totals, struct kg_policy_advantage *a,
                      struct kg_rl_batch *b, struct kg_run *run, struct kg_err *err)
{
    struct kg_algo algo = run->in.algo;
    struct update u = update_of(run, &algo, b, totals);
    struct kg_err why = {0};
    kg_status status;

    totals->kl_beta = algo.kl_beta = run->state.count.kl_beta;
    status = kg_rl_advantages(a, totals, b, &algo, run->in.task_opts.rewards, &why);
    if (status == KG_OK) {
        totals->kl_divisor = a->batch_std > 0 ? a->batch_std + 1e-6 : 0;
        status = kg_checkpoint_wait(run, &why);
    }
    if (status == KG_OK) {
        run->state.midway = true;
        status = updates(&u, &why);
    }
    if (status == KG_ENONFINITE) {
        totals->skipped = true;
        return skip(run, b, &why, err);
    }
    if (status != KG_OK) {
        *err = why;
        return status;
    }
    run->state.count.skipped_in_row = 0;
    return KG_OK;
}

/* The batch is sampled here, received from rollout ranks, or read from a file. */
static kg_status find_answers(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                              const struct kg_run_state *state, struct kg_run_work *work,
                              struct kg_err *err)
{
    if (in->answers.n > 0)
        return kg_rl_read_answers(b, in, state, work, err);
    if (work->ahead.trainers > 0)
        return kg_ahead_take(b, &work->ahead, state->count.step, in, err);
    return kg_rl_sample(b, in, state, work, err);
}

/* Sampling, grading and passes over the batch. Only the sampler's weights change. */
static kg_status make_batch(struct kg_rl_batch *b, struct kg_rl_totals *totals,
                            const struct kg_run_inputs *in, struct kg_run_state *state,
                            struct kg_run_work *work, struct kg_err *err)
{
    totals->clock[KG_PHASE_ROLLOUT] = kg_clock_seconds();
    KG_TRY(kg_run_refresh_sampler(state, err));
    KG_TRY(find_answers(b, in, state, work, err));
    totals->clock[KG_PHASE_ANCHOR] = kg_clock_seconds();
    KG_TRY(kg_rl_prepare(b, in, state, work, err));
    totals->clock[KG_PHASE_TRAIN] = kg_clock_seconds();
    return KG_OK;
}

/* Counts a finished step and its prompts, and keeps the completions begun meanwhile. */
static void pass_step(struct kg_run_state *state, struct kg_rl_batch *b)
{
    state->count.step++;
    state->count.prompts += b->places;
    kg_rl_take_begun(state, b);
}

static kg_status learn(struct kg_rl_totals *totals, struct kg_rl_batch *b,
                       struct kg_run *run, struct kg_err *err)
{
    struct kg_policy_advantage a = {0};

    KG_TRY(kg_rl_train(totals, &a, b, run, err));
    pass_step(&run->state, b);
    if (!totals->skipped) {
        steer_kl(&run->in.algo, &run->state.count, b, totals);
        KG_TRY(kg_run_anchor_after_step(&run->in.algo, &run->state, err));
    }
    totals->clock[KG_PHASE_END] = kg_clock_seconds();
    KG_TRY(kg_rl_dump(run, b, false, err));
    return kg_rl_log(run, b, totals, &a, err);
}

/* The weights are finite, but logits or anchor rows are not. There is nothing to learn
 * from; the next batch may be finite. */
static kg_status skip_batch(struct kg_run *run, struct kg_rl_batch *b,
                            const struct kg_err *why, struct kg_err *err)
{
    KG_TRY(skip(run, b, why, err));
    pass_step(&run->state, b);
    return kg_rl_log_skip(run, err);
}

kg_status kg_rl_step(struct kg_run *run, struct kg_err *err)
{
    struct kg_rl_batch b = {0};
    struct kg_rl_totals totals = {0};
    struct kg_err why = {0};
    int phase = kg_phase_begin(0, NULL, "step %lld",
                               (long long)run->state.count.step + 1);

    hand_over(&b.block, &run->work.step_memory);
    kg_status status = make_batch(&b, &totals, &run->in, &run->state, &run->work, &why);
    run->state.midway = status == KG_ENONFINITE;
    if (status == KG_OK)
        status = learn(&totals, &b, run, err);
    else if (status == KG_ENONFINITE)
        status = skip_batch(run, &b, &why, err);
    else
        *err = why;
    run->state.midway = run->state.midway && status != KG_OK;
    hand_over(&run->work.step_memory, &b.block);
    kg_rl_batch_release(&b);
    kg_phase_end(phase);
    return status;
}
