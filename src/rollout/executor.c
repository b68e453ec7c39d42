/* Packs tokens, runs the forward and the head, and draws.
 *
 * Invariant: a row does not depend on its neighbours, so every way to pack rows gives the
 * same bits; all choices below are choices of speed.
 *
 * A decode step packs the newest token of every sequence. For small models it is split
 * into ranges of sequences, one per thread, each with its own activations, so that
 * threads do not synchronise at every product; large models leave the threads to the
 * products. Prompts are packed in chunks; the last hidden states of complete prompts wait
 * among the selected rows while further chunks pass, and go through the head together.
 *
 * The backend draws if it can, and only the drawn tokens are copied to the host. The
 * sampler draws all others from logits: on the CPU, after a prompt (its row may be drawn
 * from many times), and where a request adjusts its logits. The tokens are the same.
 *
 * If the backend replays steps, a step has 1, 2, 4, 8, ... rows: the rows after the
 * sequences' are padding, a token at position 0 of a block that no sequence reads.
 *
 * A pass is launched and later taken. If the backend can feed the tokens that it drew,
 * the next pass is launched before the last one is taken: the device works while the host
 * reads tokens. Otherwise a pass is computed when it is taken.
 *
 * One hidden state can be kept across passes: that of a prompt with samples that still
 * wait for memory.
 */
#include "rollout/executor.h"

#include "base/clock.h"
#include "base/mem.h"

#include <math.h>

/* Buffers of one thread, which computes a part of a batch. */
struct kg_worker {
    struct kg_rows *rows;              /* owned */
    double draw_seconds;               /* for its part of a pass */
    struct kg_sampler_scratch scratch; /* when sampling truncates or adjusts */
    kg_status status;
    struct kg_err err;
};

/* ---- life ---- */

enum { STEPS, PASSES, PROMPTS, CHUNK, LOGITS, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct kg_exec, prompts, PROMPTS),
    KG_COLUMN(struct kg_exec, wanted, PROMPTS),
    KG_COLUMN(struct kg_exec, steps, PASSES),
    KG_COLUMN(struct kg_exec, from, STEPS),
    KG_COLUMN(struct kg_exec, lse, STEPS),
    KG_COLUMN(struct kg_exec, how, STEPS),
    KG_COLUMN(struct kg_exec, drawn, STEPS),
    KG_COLUMN(struct kg_exec, adjusted, STEPS),
    KG_COLUMN(struct kg_exec, prompt_lse, CHUNK),
    KG_COLUMN(struct kg_exec, logits, LOGITS),
    {0},
};

/* Number of rows of a step with n sequences, including padding. */
static int32_t rows_of(const struct kg_model *m, int32_t n)
{
    int32_t rows = 1;

    if (!kg_rows_replays(m))
        return n;
    while (rows < n)
        rows *= 2;
    return rows;
}

static void count(size_t counts[COUNTS], const struct kg_model *m,
                  const struct kg_rollout_opts *opts)
{
    size_t batch = (size_t)opts->max_batch;
    counts[STEPS] = (size_t)rows_of(m, opts->max_batch);
    counts[PASSES] = KG_EXEC_PASSES * counts[STEPS];
    counts[PROMPTS] = batch + 1;
    counts[CHUNK] = (size_t)opts->prefill_chunk;
    counts[LOGITS] = batch * (size_t)m->config.vocab;
}

struct kg_kv_size kg_exec_blocks(const struct kg_model *m, struct kg_kv_size n)
{
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        n.of[kind] += n.of[kind] > 0 && kg_rows_replays(m);
    return n;
}

kg_status kg_exec_init(struct kg_exec *x, const struct kg_model *m,
                       const struct kg_rollout_opts *opts, struct kg_kv_size n_blocks,
                       struct kg_err *err)
{
    size_t counts[COUNTS];

    count(counts, m, opts);
    *x = (struct kg_exec){.m = m,
                          .parameters = kg_model_parameters(m),
                          .max_batch = opts->max_batch,
                          .prefill_chunk = opts->prefill_chunk,
                          .rows = rows_of(m, opts->max_batch),
                          .ahead = kg_rows_feeds(m)};
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        x->spare[kind] = (int32_t)n_blocks.of[kind];
    KG_TRY(kg_columns_take(&x->memory, x, columns, counts, "rollout engine", err));
    for (int i = 0; i < KG_EXEC_PASSES; i++)
        x->passes[i].steps = x->steps + i * x->rows;
    return kg_kv_create(&x->kv, m, kg_exec_blocks(m, n_blocks), err);
}

static void free_workers(struct kg_exec *x)
{
    for (int i = 0; i < x->n_workers; i++) {
        kg_rows_free(x->workers[i].rows);
        kg_sampler_scratch_release(&x->workers[i].scratch);
    }
    kg_mem_free(x->workers);
    x->n_workers = 0;
}

void kg_exec_release(struct kg_exec *x)
{
    free_workers(x);
    for (int32_t i = 0; x->steps && i < KG_EXEC_PASSES * x->rows; i++)
        kg_sampler_pick_release(&x->steps[i].pick);
    kg_mem_free(x->top_ids);
    kg_mem_free(x->top_logp);
    kg_mem_free(x->kept);
    kg_mem_free(x->experts);
    kg_columns_free(&x->memory, x, columns);
    kg_kv_free(x->kv);
}

/* The first worker has room for prompts, their scores and the whole batch, each other
 * worker for its part of the batch. */
static struct kg_rows_opts worker_room(const struct kg_exec *x, int i, int T)
{
    int64_t batch = x->rows, chunk = x->prefill_chunk;
    struct kg_rows_opts o = {.max_tokens = (batch + T - 1) / T, .kv = x->kv};
    if (i == 0) {
        o.max_tokens = batch > chunk ? batch : chunk;
        o.max_rows = batch + chunk;
    }
    return o;
}

static int workers_of(const struct kg_model *m)
{
    bool alone = m->backend->one_caller || m->on_host == KG_HOST_LAYERS;
    return alone ? 1 : kg_threads_get();
}

struct kg_bytes kg_exec_memory(const struct kg_model *m,
                               const struct kg_rollout_opts *opts)
{
    const struct kg_exec x = {.rows = rows_of(m, opts->max_batch),
                              .prefill_chunk = opts->prefill_chunk};
    struct kg_bytes sum = {0};
    size_t counts[COUNTS];
    count(counts, m, opts);
    sum.host = kg_columns_bytes(columns, counts);
    for (int i = 0, T = workers_of(m); i < T; i++) {
        struct kg_rows_opts room = worker_room(&x, i, T);
        struct kg_bytes one = kg_rows_memory(m, &room);
        sum.there += one.there;
        sum.host += one.host;
    }
    return sum;
}

kg_status kg_exec_begin(struct kg_exec *x, struct kg_err *err)
{
    int T = workers_of(x->m);
    KG_TRY(kg_exec_drop(x, err));
    if (x->n_workers != T) {
        free_workers(x);
        x->workers = kg_mem_calloc((size_t)T, sizeof *x->workers, "rollout engine", err);
        if (x->workers == NULL)
            return err->code;
    }
    while (x->n_workers < T) {
        struct kg_rows_opts room = worker_room(x, x->n_workers, T);
        KG_TRY(kg_rows_create(&x->workers[x->n_workers].rows, x->m, &room, err));
        x->n_workers++;
    }
    return KG_OK;
}

static kg_status grow_top_k(struct kg_exec *x, int top_k, struct kg_err *err)
{
    if (top_k <= x->top_capacity)
        return KG_OK;
    size_t n = (size_t)x->rows * (size_t)top_k;
    int32_t *ids = kg_mem_calloc(n, sizeof *ids, "rollout engine", err);
    float *logp = ids ? kg_mem_calloc(n, sizeof *logp, "rollout engine", err) : NULL;
    if (logp == NULL) {
        kg_mem_free(ids);
        return err->code;
    }
    kg_mem_free(x->top_ids);
    kg_mem_free(x->top_logp);
    x->top_ids = ids;
    x->top_logp = logp;
    x->top_capacity = top_k;
    return KG_OK;
}

static size_t words(const struct kg_exec *x)
{
    return ((size_t)x->m->config.vocab + 63) / 64;
}

static kg_status make_kept(struct kg_exec *x, const struct kg_sampling *s,
                           struct kg_err *err)
{
    if (!s->record_kept || !x->m->backend->draw || x->kept)
        return KG_OK;
    x->kept = kg_mem_calloc((size_t)x->rows * words(x), sizeof *x->kept, "rollout engine",
                            err);
    return x->kept ? KG_OK : err->code;
}

static size_t choices(const struct kg_exec *x)
{
    return (size_t)kg_model_config_choices(&x->m->config);
}

static kg_status make_experts(struct kg_exec *x, const struct kg_sampling *s,
                              struct kg_err *err)
{
    if (!s->record_experts || x->experts)
        return KG_OK;
    x->experts = kg_mem_calloc((size_t)x->rows * choices(x), sizeof *x->experts,
                               "rollout engine", err);
    return x->experts ? KG_OK : err->code;
}

kg_status kg_exec_reserve(struct kg_exec *x, const struct kg_sampling *s,
                          struct kg_err *err)
{
    KG_TRY(grow_top_k(x, s->record_top_k, err));
    KG_TRY(make_kept(x, s, err));
    KG_TRY(make_experts(x, s, err));
    for (int i = 0; i < x->n_workers; i++)
        KG_TRY(
            kg_sampler_scratch_grow(&x->workers[i].scratch, s, x->m->config.vocab, err));
    return KG_OK;
}

/* ---- head and draw ---- */

/* Raises *top_k to the number of ids that a sequence records. */
static void widen(int *top_k, const struct kg_sampling *s)
{
    *top_k = s->record_top_k > *top_k ? s->record_top_k : *top_k;
}

static float *logits_of(const struct kg_exec *x, int64_t row)
{
    return x->logits + row * x->m->config.vocab;
}

/* Outputs of the head for rows from `first` on. */
static struct kg_head_out out_of(const struct kg_exec *x, int64_t first)
{
    struct kg_head_out out = {.lse = x->lse + first};
    if (x->top_k > 0) {
        out.top_ids = x->top_ids + first * x->top_k;
        out.top_logp = x->top_logp + first * x->top_k;
    }
    return out;
}

/* Runs the head for the selected rows of p, into x's arrays from row `first` on. */
static kg_status head(struct kg_exec *x, const struct kg_rows *p, int64_t first,
                      struct kg_err *err)
{
    struct kg_head_out out = out_of(x, first);
    out.logits = logits_of(x, first);
    return kg_rows_read(&out, p, 0, p->n_rows, x->top_k, err);
}

/* Sets how the backend draws row i. If the host draws instead, because logits are
 * adjusted, the backend's draw is unused, so it is greedy, which is cheapest. */
static void say_how(struct kg_exec *x, struct kg_rows_draws *d,
                    const struct kg_exec_step *step, int32_t i)
{
    const struct kg_sampling *s = step->sampling;

    x->from[i] = step->from;
    x->adjusted[i] = s->adjust ? logits_of(x, i) : NULL;
    if (s->adjust) {
        x->how[i] = (struct kg_draw){.greedy = true};
        d->logits = x->adjusted;
        return;
    }
    x->how[i] = kg_sampler_draw_of(s, step->u);
    d->truncates |= kg_sampler_truncates(s, x->m->config.vocab);
}

/* Launches the forward and the draws. Row i of p is step i; rows from pass->n on are
 * padding. A backend that draws has one caller, so p has all steps. */
static kg_status begin_draws(struct kg_exec *x, const struct kg_rows *p,
                             const struct kg_exec_pass *pass, struct kg_err *err)
{
    struct kg_rows_draws d = {.how = x->how,
                              .keeps = pass->keeps,
                              .top_k = pass->top_k,
                              .from = x->ahead ? x->from : NULL};
    for (int32_t i = 0; i < pass->n; i++)
        say_how(x, &d, &pass->steps[i], i);
    for (int32_t i = pass->n; i < p->n_rows; i++) {
        x->how[i] = (struct kg_draw){.greedy = true};
        x->adjusted[i] = NULL;
        x->from[i] = -1;
    }
    return kg_rows_draw_begin(&d, p, err);
}

static kg_status end_draws(struct kg_exec *x, const struct kg_exec_pass *pass,
                           struct kg_err *err)
{
    const struct kg_head_out out = out_of(x, 0);
    const struct kg_rows_found found = {.drawn = x->drawn,
                                        .lse = out.lse,
                                        .kept = pass->keeps ? x->kept : NULL,
                                        .top_ids = out.top_ids,
                                        .top_logp = out.top_logp};
    return kg_rows_draw_end(&found, x->workers[0].rows, err);
}

static void point_at_records(const struct kg_exec *x, struct kg_exec_step *s, int64_t row)
{
    bool records = s->sampling->record_top_k > 0;
    s->top_ids = records ? x->top_ids + row * x->top_k : NULL;
    s->top_logp = records ? x->top_logp + row * x->top_k : NULL;
}

static void draw(struct kg_exec *x, struct kg_worker *w, struct kg_exec_step *s,
                 int64_t row)
{
    struct kg_sampler_row z = {.z = logits_of(x, row),
                               .vocab = x->m->config.vocab,
                               .lse = x->lse[row],
                               .text = s->text,
                               .n_text = s->n_text,
                               .n_prompt = s->n_prompt};
    point_at_records(x, s, row);
    s->status = kg_sampler_draw(&s->pick, &w->scratch, &z, s->sampling, s->u, &s->err);
}

/* Reads what the backend drew in row i. */
static void take(struct kg_exec *x, struct kg_exec_step *s, int32_t i)
{
    const uint64_t *kept = s->sampling->record_kept ? x->kept + (size_t)i * words(x)
                                                    : NULL;
    point_at_records(x, s, i);
    s->status = kg_sampler_take(&s->pick, &x->drawn[i], x->lse[i], kept,
                                x->m->config.vocab, &s->err);
}

static void draw_or_take(struct kg_exec *x, struct kg_worker *w, struct kg_exec_step *s,
                         int32_t i)
{
    bool records = s->sampling->record_experts;

    s->experts = records ? x->experts + (size_t)i * choices(x) : NULL;
    if (x->m->backend->draw && !s->sampling->adjust)
        take(x, s, i);
    else
        draw(x, w, s, i);
}

/* ---- prompts ---- */

static float inv_temp(const struct kg_exec_prompt *g)
{
    return kg_inv_temperature(g->sampling->temperature);
}

/* Starts a pack with the next pieces of the prompts, in order, and selects the last row
 * of each prompt that it completes. */
static void pack_pieces(struct kg_exec *x, struct kg_rows *p, int32_t n)
{
    kg_rows_next(p);
    for (int32_t i = 0; i < n; i++) {
        struct kg_exec_prompt *g = x->wanted[i];
        int64_t left = g->n - g->cached;
        int64_t room = x->prefill_chunk - kg_rows_tokens(p);
        g->piece_n = (int32_t)(left < room ? left : room);
        if (g->piece_n == 0)
            continue;
        g->piece_row = kg_rows_continue(p, g->tokens + g->cached, (size_t)g->piece_n,
                                        g->cached, g->blocks, g->adapter);
        g->cached += g->piece_n;
        if (g->piece_n == left)
            g->row = kg_rows_want(p, kg_rows_tokens(p) - 1, -1, inv_temp(g), NULL);
    }
}

/* Index of the first token that a row of the prompt's piece predicts. */
static size_t first_scored(const struct kg_exec_prompt *g)
{
    return (size_t)(g->cached - g->piece_n + 1);
}

/* Selects the rows that score a piece. A row predicts the token after it; a prompt's last
 * row predicts a sampled token and is not scored. */
static void want_scores(struct kg_rows *p, struct kg_exec_prompt *g)
{
    g->score_row = p->n_rows;
    g->n_scored = g->scores && g->piece_n > 0 ? g->piece_n - (g->cached == g->n) : 0;
    for (int32_t j = 0; j < g->n_scored; j++)
        kg_rows_want(p, g->piece_row + j, g->tokens[first_scored(g) + (size_t)j],
                     inv_temp(g), NULL);
}

/* The head writes scores directly into the caller's arrays. If logits are not finite,
 * only this prompt fails. */
static kg_status score_piece(struct kg_exec *x, struct kg_exec_prompt *g,
                             const struct kg_rows *p, struct kg_err *err)
{
    const struct kg_prompt_scores *to = g->scores;
    int top_k = g->sampling->record_top_k;
    size_t at = first_scored(g);
    size_t first = at * (size_t)top_k;
    struct kg_head_out out = {.lse = x->prompt_lse,
                              .logp = to->logp + at,
                              .top_ids = top_k > 0 ? to->top_ids + first : NULL,
                              .top_logp = top_k > 0 ? to->top_logp + first : NULL};
    KG_TRY(kg_rows_read(&out, p, g->score_row, g->n_scored, top_k, err));
    for (int32_t i = 0; i < g->n_scored && g->status == KG_OK; i++)
        if (!isfinite(x->prompt_lse[i]))
            g->status = kg_fail(&g->err, KG_ENONFINITE,
                                "prompt %lld, token %zu: expected finite logits, found a "
                                "log sum exp of %g",
                                (long long)g->index, at + (size_t)i, x->prompt_lse[i]);
    return KG_OK;
}

/* Copies the experts of the piece's tokens, if they are recorded. */
static kg_status take_experts(const struct kg_exec *x, struct kg_exec_prompt *g,
                              const struct kg_rows *p, struct kg_err *err)
{
    size_t at = (size_t)(g->cached - g->piece_n) * choices(x);

    if (!g->experts || g->piece_n == 0)
        return KG_OK;
    return kg_rows_experts(g->experts + at, p, g->piece_row, g->piece_n, err);
}

/* Computes one chunk of the missing tokens.   *n_tokens: out, its length; 0: all done */
static kg_status compute_chunk(struct kg_exec *x, int32_t n, int64_t *n_tokens,
                               struct kg_err *err)
{
    struct kg_rows *p = x->workers[0].rows;
    pack_pieces(x, p, n);
    *n_tokens = kg_rows_tokens(p);
    if (*n_tokens == 0)
        return KG_OK;
    int64_t n_ready = p->n_rows;
    for (int32_t i = 0; i < n; i++)
        want_scores(p, x->wanted[i]);
    KG_TRY(kg_rows_forward(p, false, err));
    for (int32_t i = 0; i < n; i++)
        KG_TRY(take_experts(x, x->wanted[i], p, err));
    for (int32_t i = 0; i < n; i++)
        if (x->wanted[i]->n_scored > 0)
            KG_TRY(score_piece(x, x->wanted[i], p, err));
    kg_rows_forget(p, n_ready);
    return KG_OK;
}

/* Runs the head for all complete prompts; holds the row of the one with `again`. */
static kg_status ask_complete(struct kg_exec *x, int32_t n, struct kg_err *err)
{
    struct kg_rows *p = x->workers[0].rows;
    x->top_k = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct kg_exec_prompt *g = x->wanted[i];
        if (g->row < 0)
            continue;
        widen(&x->top_k, g->sampling);
        if (g->again)
            KG_TRY(kg_rows_hold(p, g->row, err));
    }
    return p->n_rows > 0 ? head(x, p, 0, err) : KG_OK;
}

kg_status kg_exec_prompts(struct kg_exec *x, int32_t n, bool one_chunk, int64_t *n_tokens,
                          struct kg_err *err)
{
    struct kg_rows *p = x->workers[0].rows;
    int64_t computed;
    kg_rows_begin(p, x->m, 0);
    for (int32_t i = 0; i < n; i++) {
        struct kg_exec_prompt *g = x->wanted[i];
        g->row = -1;
        if (g->cached == g->n)
            KG_TRY(kg_rows_recall(&g->row, p, inv_temp(g), err));
    }
    do {
        KG_TRY(compute_chunk(x, n, &computed, err));
        *n_tokens += computed;
    } while (computed > 0 && !one_chunk);
    return ask_complete(x, n, err);
}

void kg_exec_draw(struct kg_exec *x, struct kg_exec_step *step,
                  const struct kg_exec_prompt *prompt)
{
    step->experts = NULL;
    draw(x, &x->workers[0], step, prompt->row);
}

/* ---- a decode step ---- */

static const int32_t nobodys = 0; /* token of padding, or where kg_op_feed sets one */

/* Packs steps [first, first+n) of a pass, then padding. */
static void pack_range(const struct kg_exec *x, struct kg_rows *p,
                       const struct kg_exec_pass *pass, int32_t first, int32_t n)
{
    const int32_t adapter = pass->steps[first + n - 1].adapter; /* of padding, too */
    const struct kg_kv_tables spare = {{&x->spare[KG_KV_ALL], &x->spare[KG_KV_WINDOW]}};
    kg_rows_begin(p, x->m, 0);
    for (int32_t i = first; i < first + n; i++) {
        const struct kg_exec_step *s = &pass->steps[i];
        const int32_t *token = s->from >= 0 ? &nobodys : s->token;
        int64_t row = kg_rows_continue(p, token, 1, s->pos, s->blocks, s->adapter);
        kg_rows_want(p, row, -1, kg_inv_temperature(s->sampling->temperature), NULL);
    }
    for (int32_t i = n; i < rows_of(x->m, n); i++)
        kg_rows_want(p, kg_rows_continue(p, &nobodys, 1, 0, spare, adapter), -1, 1, NULL);
}

/* Copies the experts of the fed tokens, if a sequence records them; waits for them. */
static kg_status read_experts(const struct kg_exec *x, struct kg_rows *p,
                              const struct kg_exec_pass *pass, int32_t first, int32_t n,
                              struct kg_err *err)
{
    return pass->records_experts
               ? kg_rows_experts(x->experts + (size_t)first * choices(x), p, 0, n, err)
               : KG_OK;
}

static kg_status compute_range(struct kg_exec *x, struct kg_worker *w,
                               const struct kg_exec_pass *pass, int32_t first, int32_t n,
                               struct kg_err *err)
{
    pack_range(x, w->rows, pass, first, n);
    KG_TRY(kg_rows_forward(w->rows, false, err));
    KG_TRY(head(x, w->rows, first, err));
    return read_experts(x, w->rows, pass, first, n, err);
}

/* When to split a step by sequences, not by products. With small weights, threads that
 * wait for each other at every product dominate a step. With many rows per thread,
 * arithmetic dominates, and it costs little that every thread reads all weights. In
 * between, threads that share each product are faster: weights are read once. */
static const double OUTER_WEIGHT_BYTES = 64e6;
enum { OUTER_ROWS = 16 };

static bool outer_is_faster(const struct kg_exec *x, int32_t n)
{
    double bytes = (double)x->parameters * (double)kg_dtype_traits(x->m->ct)->bytes;
    int32_t rows = n / x->n_workers;
    return x->n_workers > 1 && rows >= 2 &&
           (bytes <= OUTER_WEIGHT_BYTES || rows >= OUTER_ROWS);
}

/* Each worker draws the tokens of its part of the steps; with `compute` it first runs
 * forward and head for this part. */
static kg_status in_parallel(struct kg_exec *x, const struct kg_exec_pass *pass,
                             bool compute, struct kg_err *err)
{
    int T = x->n_workers;
    int64_t n = pass->n;
#pragma omp parallel for num_threads(T) schedule(static, 1)
    for (int i = 0; i < T; i++) {
        struct kg_worker *w = &x->workers[i];
        int32_t first = (int32_t)(n * i / T), end = (int32_t)(n * (i + 1) / T);
        w->status = KG_OK;
        if (compute && first < end)
            w->status = compute_range(x, w, pass, first, end - first, &w->err);
        w->draw_seconds = -kg_clock_seconds();
        for (int32_t k = first; k < end && w->status == KG_OK; k++)
            draw_or_take(x, w, &pass->steps[k], k);
        w->draw_seconds += kg_clock_seconds();
    }
    for (int i = 0; i < T; i++) {
        x->draw_seconds += x->workers[i].draw_seconds / T;
        if (x->workers[i].status != KG_OK) {
            *err = x->workers[i].err;
            return err->code;
        }
    }
    return KG_OK;
}

kg_status kg_exec_launch(struct kg_exec *x, int32_t n, struct kg_err *err)
{
    struct kg_exec_pass *pass = kg_exec_next(x);
    pass->n = n;
    pass->top_k = 0;
    pass->keeps = pass->records_experts = false;
    for (int32_t i = 0; i < n; i++) {
        const struct kg_sampling *s = pass->steps[i].sampling;
        widen(&pass->top_k, s);
        pass->keeps |= s->record_kept;
        pass->records_experts |= s->record_experts;
    }
    if (x->m->backend->draw) {
        pack_range(x, x->workers[0].rows, pass, 0, n);
        KG_TRY(begin_draws(x, x->workers[0].rows, pass, err));
        KG_TRY(read_experts(x, x->workers[0].rows, pass, 0, n, err));
    }
    x->launched++;
    return KG_OK;
}

kg_status kg_exec_take(const struct kg_exec_pass **out, struct kg_exec *x,
                       struct kg_err *err)
{
    const struct kg_exec_pass *pass = &x->passes[x->taken % KG_EXEC_PASSES];
    bool drawn = x->m->backend->draw, outer = !drawn && outer_is_faster(x, pass->n);
    x->top_k = pass->top_k;
    x->draw_seconds = 0;
    if (drawn)
        KG_TRY(end_draws(x, pass, err));
    else if (!outer)
        KG_TRY(compute_range(x, &x->workers[0], pass, 0, pass->n, err));
    x->taken++;
    *out = pass;
    if (pass->n > 1)
        return in_parallel(x, pass, outer, err);
    x->draw_seconds = -kg_clock_seconds();
    draw_or_take(x, &x->workers[0], pass->steps, 0); /* with all threads on one row */
    x->draw_seconds += kg_clock_seconds();
    return KG_OK;
}

kg_status kg_exec_drop(struct kg_exec *x, struct kg_err *err)
{
    bool begun = kg_exec_flies(x) && x->m->backend->draw;
    x->taken = x->launched;
    return begun ? kg_rows_draw_drop(x->workers[0].rows, err) : KG_OK;
}
