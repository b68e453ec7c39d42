/* One supervised update: a batch in the order of its epoch, the mean negative
 * log-likelihood of the model's tokens, and an optimizer step.
 *
 * loss = -(1/N) sum logp(y),  N the model's tokens of the whole batch, so that the split
 * into micro-batches changes the gradient by summation order only. train.router_aux adds
 * the loss of train/step/expert_load.h over all tokens of the batch.
 */
#include "train/run.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/jsonl.h"
#include "ranks/lanes.h"
#include "recipe/options.h"
#include "report/history.h"
#include "train/log.h"
#include "train/open/epochs.h"
#include "traj/traj.h"

#include <math.h>
#include <string.h>

struct batch {
    uint32_t *index; /* (n) owned: sequences of this update */
    size_t n;
    int64_t loss_tokens;
};

static kg_status draw_batch(struct batch *b, const struct kg_run_inputs *in, int64_t step,
                            struct kg_err *err)
{
    struct kg_rng_key key = {in->recipe.run.seed, KG_RNG_SFT};

    b->n = in->recipe.sft.batch;
    b->index = kg_mem_calloc(b->n, sizeof *b->index, "batch", err);
    if (!b->index)
        return err->code;
    KG_TRY(kg_epochs_take(b->index, b->n, (uint64_t)step * b->n, in->sft.n, key, err));
    for (size_t i = 0; i < b->n; i++)
        b->loss_tokens += (int64_t)in->sft.learned[b->index[i]];
    return KG_OK;
}

/* Sequence s. most: its tokens before the first learned one, which may be shared. */
static struct kg_rows_seq seq_of(const struct kg_sft_set *set, size_t s)
{
    const uint8_t *source = set->source + set->begin[s];
    struct kg_rows_seq q = {.tokens = set->tokens.ids + set->begin[s],
                            .n = set->begin[s + 1] - set->begin[s]};

    while (q.most + 1 < q.n && (q.most == 0 || source[q.most] != KG_SOURCE_MODEL))
        q.most++;
    return q;
}

static void add_sequence(struct kg_rows *p, const struct kg_sft_set *set, size_t s)
{
    const struct kg_rows_seq q = seq_of(set, s);
    const uint8_t *source = set->source + set->begin[s];

    kg_rows_add_seq(p, &q);
    for (size_t t = 1; t < q.n; t++)
        if (source[t] == KG_SOURCE_MODEL)
            kg_rows_want(p, kg_rows_at(p, t - 1), q.tokens[t], 1.0f, NULL);
}

/* With shared prefixes: moves each sequence after the first one of the batch that has the
 * same tokens up to the first learned one, so that equal prompts are neighbours. */
static void gather_prompts(struct batch *b, const struct kg_run_inputs *in,
                           const struct kg_model *m)
{
    for (size_t i = 2; i < b->n; i++) {
        const uint32_t s = b->index[i];
        const struct kg_rows_seq q = seq_of(&in->sft, s);
        size_t to = q.most > 1 ? 0 : i;

        for (; to < i; to++) {
            const struct kg_rows_seq a = seq_of(&in->sft, b->index[to]);

            if (kg_rows_in_common(m, &a, &q) == q.most)
                break;
        }
        if (to + 1 >= i)
            continue;
        memmove(b->index + to + 2, b->index + to + 1, (i - to - 1) * sizeof *b->index);
        b->index[to + 1] = s;
    }
}

/* ---- held-out sequences ---- */

/* Adds the log-probs of the sequences from `first` on that fit in a pack.   *next out */
static kg_status held_out_batch(size_t *next, double *sum, const struct kg_sft_set *set,
                                struct kg_rows *p, const struct kg_model *m, size_t first,
                                struct kg_err *err)
{
    size_t i = first;

    kg_rows_begin(p, m, 0);
    for (; i < set->n; i++) {
        const struct kg_rows_seq q = seq_of(set, i);

        if (i > first && !kg_rows_fits_seq(p, &q))
            break;
        add_sequence(p, set, i);
    }
    *next = i;
    KG_TRY(kg_rows_forward(p, false, err));
    KG_TRY(kg_rows_ask(p, NULL, err));
    for (int64_t r = 0; r < p->n_rows; r++)
        *sum += (double)p->logp[r];
    return KG_OK;
}

kg_status kg_sft_held_out(double *loss, const struct kg_sft_set *set,
                          struct kg_rows *rows, const struct kg_model *m,
                          struct kg_err *err)
{
    double sum = 0;
    size_t next = 0, tokens = 0;

    for (size_t i = 0; i < set->n; i++)
        tokens += set->learned[i];
    while (next < set->n)
        KG_TRY(held_out_batch(&next, &sum, set, rows, m, next, err));
    *loss = tokens ? -sum / (double)tokens : 0;
    return KG_OK;
}

/* Logs the held-out loss if it is due after update `step`. */
static kg_status measure(struct kg_metrics *log, const struct kg_run_inputs *in,
                         const struct kg_run_state *state, struct kg_run_work *work,
                         int64_t step, struct kg_err *err)
{
    int64_t every = in->recipe.sft.eval_every;
    bool due = step == in->sft_steps || (every > 0 && step % every == 0);
    double loss;

    if (in->sft_val.n == 0 || !due)
        return KG_OK;
    KG_TRY(kg_sft_held_out(&loss, &in->sft_val, work->rows, state->model, err));
    kg_metrics_put(log, "val_loss", loss);
    kg_log_info("sft %lld: held-out loss %.4f", (long long)step, loss);
    return KG_OK;
}

/* ---- a batch ---- */

/* Sums over the sequences of a lane, or of all lanes. */
struct terms {
    double loss;
    double router; /* part of loss: that of train.router_aux */
    double shared; /* tokens saved by shared prefixes */
};

struct update {
    const struct kg_run_inputs *in;
    struct kg_run_state *state;
    struct kg_run_work *work;
    const struct batch *b;
    struct kg_lane_lengths lengths; /* of the batch's sequences */
    bool balanced;                  /* train.router_aux has coefficients of this batch */
    struct kg_str said;             /* owned: struct said and log-probs, lane by lane */
};

/* Precedes the log-probs of a micro-batch in update.said. */
struct said {
    int64_t begins; /* whether it begins its lane */
    int64_t n;
    int64_t saved; /* tokens saved by shared prefixes */
    double router; /* its part of the loss of train.router_aux */
};

/* The forward of a micro-batch: sequences of one lane that fit in a pack. */
static kg_status forward(struct update *u, const size_t *list, size_t n, bool begins,
                         struct kg_err *err)
{
    struct kg_rows *p = u->work->rows;
    const struct kg_rows_ask ask = {.load = true};
    struct said said = {.begins = begins};

    kg_rows_begin(p, u->state->model, 0);
    for (size_t i = 0; i < n; i++)
        add_sequence(p, &u->in->sft, u->b->index[list[i]]);
    KG_TRY(kg_rows_forward(p, true, err));
    KG_TRY(kg_rows_ask(p, &ask, err));
    for (int64_t r = 0; r < p->n_rows; r++)
        p->a_logp[r] = -1.0 / (double)u->b->loss_tokens;
    KG_TRY(kg_expert_load_add(&u->work->load, p, err));
    if (u->balanced)
        KG_TRY(kg_expert_load_loss(&said.router, &u->work->whole_load, p, err));
    said.n = p->n_rows;
    said.saved = kg_rows_saved(p);
    KG_TRY(kg_str_append(&u->said, &said, sizeof said, err));
    return kg_str_append(&u->said, p->logp, (size_t)p->n_rows * sizeof *p->logp, err);
}

/* A kg_lane_fn. */
static kg_status lane(void *context, const size_t *list, size_t n, struct kg_err *err)
{
    struct update *u = context;

    for (size_t i = 0, more; i < n; i += more) {
        more = kg_lanes_fit(&u->lengths, list + i, n - i, 0);
        KG_TRY(forward(u, list + i, more, i == 0, err));
        KG_TRY(kg_rows_backward(u->work->rows, u->state->optim->grads.data, false, err));
    }
    return KG_OK;
}

/* The functions of struct kg_lane_stages. */
static kg_status pack(bool *any, void *context, const size_t *list, size_t n, bool begins,
                      struct kg_err *err)
{
    *any = true;
    return forward(context, list, n, begins, err);
}

static kg_status stage(void *context, struct kg_grads grads, int i, struct kg_err *err)
{
    struct update *u = context;

    return kg_rows_backward_stage(u->work->rows, grads, i, false, err);
}

static void add_lane(struct terms *sum, struct terms *lane_sum)
{
    sum->loss += lane_sum->loss;
    sum->router += lane_sum->router;
    sum->shared += lane_sum->shared;
    *lane_sum = (struct terms){0};
}

/* The loss is summed like the gradient: within each lane, then over the lanes. */
static struct terms loss_of(const struct kg_str *said, int64_t loss_tokens)
{
    struct terms sum = {0}, lane_sum = {0};
    struct said s;

    for (size_t at = 0; at < said->len;) {
        memcpy(&s, said->data + at, sizeof s);
        at += sizeof s;
        if (s.begins)
            add_lane(&sum, &lane_sum);
        for (int64_t r = 0; r < s.n; r++, at += sizeof(float)) {
            float logp;

            memcpy(&logp, said->data + at, sizeof logp);
            lane_sum.loss -= (double)logp / (double)loss_tokens;
        }
        lane_sum.loss += s.router;
        lane_sum.router += s.router;
        lane_sum.shared += (double)s.saved;
    }
    add_lane(&sum, &lane_sum);
    return sum;
}

/* Counts the tokens of each expert by forwards over this rank's share of the batch. */
static kg_status count_experts(struct update *u, struct kg_err *err)
{
    const struct kg_ranks *ranks = u->work->ranks;
    struct kg_share mine = kg_share_of((int64_t)u->b->n, ranks->me, ranks->n);
    struct kg_rows *p = u->work->rows;

    for (size_t i = (size_t)mine.first; i < (size_t)mine.end;) {
        kg_rows_begin(p, u->state->model, 0);
        for (; i < (size_t)mine.end; i++) {
            const struct kg_rows_seq q = seq_of(&u->in->sft, u->b->index[i]);

            if (kg_rows_tokens(p) > 0 && !kg_rows_fits_seq(p, &q))
                break;
            add_sequence(p, &u->in->sft, u->b->index[i]);
        }
        KG_TRY(kg_rows_forward(p, false, err));
        KG_TRY(kg_expert_load_add(&u->work->whole_load, p, err));
    }
    return KG_OK;
}

/* From this call on, micro-batches include the gradient of train.router_aux. */
static kg_status balance(struct update *u, struct kg_err *err)
{
    struct kg_run_work *work = u->work;
    const double c = u->in->recipe.train.router_aux;

    if (c == 0)
        return KG_OK;
    kg_expert_load_clear(&work->whole_load);
    kg_status status = count_experts(u, err);
    KG_TRY(kg_ranks_agree(work->ranks, status, "load of experts", err));
    KG_TRY(kg_expert_load_gather(&work->whole_load, work->ranks, err));
    u->balanced = true;
    return kg_expert_load_balance(&work->whole_load, work->rows, c, err);
}

/* The gradient of the batch, and its loss. */
static kg_status gradient(struct terms *loss, const struct kg_run_inputs *in,
                          struct kg_run_state *state, struct kg_run_work *work,
                          const struct batch *b, struct kg_err *err)
{
    const int64_t max_keys = kg_rows_max_keys(work->rows);
    int64_t *tokens = kg_mem_calloc(2 * b->n, sizeof *tokens, "lengths", err);
    struct update u = {.in = in,
                       .state = state,
                       .work = work,
                       .b = b,
                       .lengths = {.tokens = tokens,
                                   .shared = max_keys > 0 ? tokens + b->n : NULL,
                                   .budget = work->rows->max_tokens,
                                   .max_keys = max_keys}};
    const struct kg_lane_stages stages = {
        .buckets = kg_lane_buckets_of(state->model),
        .forward = pack,
        .backward = stage,
    };
    const struct kg_lane_job job = {.lanes = in->recipe.train.lanes,
                                    .lengths = u.lengths,
                                    .n = b->n,
                                    .work = lane,
                                    .context = &u,
                                    .cut = state->model->ranks != NULL,
                                    .stages = kg_run_divides_gradients(in) ? &stages
                                                                           : NULL,
                                    .said = &u.said};

    if (!tokens)
        return err->code;
    for (size_t i = 0; i < b->n; i++) {
        const struct kg_rows_seq a = seq_of(&in->sft, b->index[i > 0 ? i - 1 : 0]);
        const struct kg_rows_seq q = seq_of(&in->sft, b->index[i]);

        tokens[i] = (int64_t)q.n;
        tokens[b->n + i] = i > 0 ? (int64_t)kg_rows_in_common(state->model, &a, &q) : 0;
    }
    kg_expert_load_clear(&work->load);
    kg_status status = balance(&u, err);
    if (status == KG_OK)
        status = kg_lane_sum_run(&work->lane_sum, &state->optim->grads, &job, work->ranks,
                                 err);
    if (status == KG_OK)
        status = kg_expert_load_gather(&work->load, work->ranks, err);
    if (status == KG_OK)
        status = kg_rows_balance(work->rows, NULL, err);
    if (status == KG_OK)
        *loss = loss_of(&u.said, b->loss_tokens);
    kg_str_release(&u.said);
    kg_mem_free(tokens);
    return status;
}

/* ---- a batch whose loss or gradient is not finite ---- */

static kg_status put_sequence(struct kg_zst_writer *w, const struct kg_sft_set *set,
                              size_t s, struct kg_err *err)
{
    struct kg_str line = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_printf(&line, err, "{\"sequence\":%zu,\"source\":\"", s));
    for (size_t t = set->begin[s]; t < set->begin[s + 1]; t++)
        KG_TRY_GOTO(out, kg_str_putc(&line, kg_source_letter(set->source[t]), err));
    KG_TRY_GOTO(out, kg_str_puts(&line, "\",\"tokens\":", err));
    KG_TRY_GOTO(out, kg_json_put_ints(&line, set->tokens.ids + set->begin[s],
                                      set->begin[s + 1] - set->begin[s], err));
    KG_TRY_GOTO(out, kg_str_puts(&line, "}\n", err));
    status = kg_zst_put(w, line.data, line.len, err);
out:
    kg_str_release(&line);
    return status;
}

/* RUN/rollouts/skipped-sft-NNNNNN.jsonl.zst */
static kg_status dump(const struct kg_run *run, const struct batch *b, struct kg_err *err)
{
    char name[64];
    struct kg_zst_writer *w;
    kg_status status = KG_OK;

    if (run->log.elsewhere)
        return KG_OK;
    snprintf(name, sizeof name, "rollouts/skipped-sft-%06lld.jsonl.zst",
             (long long)run->state.count.sft_step + 1);
    KG_TRY(kg_zst_open(&w, kg_path_in(run->log.dir, name).text, 0, err));
    for (size_t i = 0; i < b->n && status == KG_OK; i++)
        status = put_sequence(w, &run->in.sft, b->index[i], err);
    if (status == KG_OK)
        return kg_zst_close(w, err);
    kg_zst_abort(w);
    return status;
}

static kg_status skip(struct kg_run *run, const struct batch *b, const char *what,
                      struct kg_err *err)
{
    KG_TRY(dump(run, b, err));
    return kg_run_skip(run, what, err);
}

static kg_status apply(struct kg_run *run, const struct batch *b, double loss,
                       struct kg_metrics *log, struct kg_err *err)
{
    double norm = 0, lr = 0;
    struct kg_err why = {0};
    kg_status status;

    if (!isfinite(loss))
        return skip(run, b, "the loss is not finite", err);
    status = kg_optim_update(run->state.optim, run->state.model, &norm, &lr, &why);
    if (status == KG_ENONFINITE)
        return skip(run, b, why.message, err);
    if (status != KG_OK) {
        *err = why;
        return status;
    }
    run->state.count.skipped_in_row = 0;
    kg_metrics_put(log, "grad_norm", norm);
    kg_metrics_put(log, "lr", lr);
    return KG_OK;
}

kg_status kg_sft_step(struct kg_run *run, struct kg_err *err)
{
    struct batch b = {0};
    struct kg_metrics log = {.n = 0};
    double start = kg_clock_seconds();
    struct terms loss = {0};
    kg_status status;

    KG_TRY_GOTO(out, draw_batch(&b, &run->in, run->state.count.sft_step, err));
    if (kg_recipe_shares(&run->in.recipe))
        gather_prompts(&b, &run->in, run->state.model);
    KG_TRY_GOTO(out, gradient(&loss, &run->in, &run->state, &run->work, &b, err));
    kg_metrics_put(&log, "loss", loss.loss);
    if (run->in.recipe.train.router_aux > 0)
        kg_metrics_put(&log, "router_aux", loss.router);
    kg_expert_load_put(&log, &run->work.load);
    KG_TRY_GOTO(out, apply(run, &b, loss.loss, &log, err));
    run->state.count.sft_step++;
    KG_TRY_GOTO(out, measure(&log, &run->in, &run->state, &run->work,
                             run->state.count.sft_step, err));
    kg_metrics_put(&log, "loss_tokens", (double)b.loss_tokens);
    kg_metrics_put(&log, "perf/shared_tokens", loss.shared);
    kg_metrics_put(&log, "seconds", kg_clock_seconds() - start);
    kg_log_progress(5000, "sft %lld/%lld  loss %.4f  %.2f s",
                    (long long)run->state.count.sft_step, (long long)run->in.sft_steps,
                    loss.loss, kg_clock_seconds() - start);
    status = kg_run_log_put(&run->log, &log, "sft", run->state.count.sft_step, err);
out:
    kg_mem_free(b.index);
    return status;
}
