/* Packing, the head on the selected rows only, and the scatter of their gradients back
 * into the pack.
 *
 * Two blocks of arrays. struct kg_rows_pack is what operations on a device read and
 * write: tokens, positions, sequences, row numbers, hidden states and their gradients.
 * struct kg_rows stays on the host: targets, temperatures, ids, the head's outputs and
 * the coefficients of its backward. This file never reads a hidden state.
 *
 * A selected row keeps its hidden state over several packs, so that the head runs once
 * for prompts whose pieces are in several packs.
 */
#include "model/rows.h"

#include "model/acts_internal.h"
#include "model/prefix_internal.h"

#include "base/mem.h"
#include "base/phase.h"
#include "base/real.h"

#include <assert.h>
#include <string.h>

/* Results of a draw from n rows: one buffer on the backend, with a copy on the host.
 * Tokens come first, at a fixed offset, so that the next step can be fed from there. */
struct found {
    struct kg_drawn *drawn;
    double *lse;
    uint64_t *kept;
    int32_t *top_ids;
    float *top_logp;
};
enum { FOUND_ROWS, FOUND_WORDS, FOUND_TOP, FOUND_COUNTS };
enum { DRAWS = 2 }; /* limit of draws begun and not ended */

static const struct kg_column found_columns[] = {
    KG_COLUMN(struct found, drawn, FOUND_ROWS),
    KG_COLUMN(struct found, lse, FOUND_ROWS),
    KG_COLUMN(struct found, kept, FOUND_WORDS),
    KG_COLUMN(struct found, top_ids, FOUND_TOP),
    KG_COLUMN(struct found, top_logp, FOUND_TOP),
    {0},
};

struct kg_rows_pack {
    struct kg_acts *acts;          /* owned */
    struct kg_acts *anchor_acts;   /* owned; NULL unless opts.anchor */
    const struct kg_model *anchor; /* borrowed: opts.anchor */
    struct kg_kv *kv;              /* borrowed, or NULL */
    int64_t n_tokens;
    int32_t n_seqs;
    int64_t n_there; /* selected rows of earlier packs; their hidden states are kept */
    int64_t n_kept;  /* selected rows when a forward kept its activations; -1: none did */
    int64_t n_asked; /* selected rows that the head has computed; -1: it was not run */

    struct kg_block block;    /* owned: holds the next five arrays */
    int32_t *tokens;          /* (max_tokens) */
    struct kg_pack_seq *seqs; /* (max_tokens) */
    int32_t *from;            /* (max_rows) the pack's row of selected row i */
    uint16_t *experts;        /* (max_tokens,C) preset; NULL unless opts.experts */
    int32_t *keys;            /* (max_keys) see struct kg_pack; NULL unless opts.share */
    bool given;               /* some token of the pack has preset experts */
    struct kg_prefixes prefixes; /* over keys; max 0 unless opts.share */

    const struct kg_backend *backend;
    void *there;         /* owned, in the backend's memory: holds the next five arrays */
    char *hidden;        /* (max_rows+1, D) ct; the last row is that of kg_rows_hold */
    char *anchor_hidden; /* (max_rows, D of the anchor) ct; NULL unless opts.kl */
    float *dhidden_rows; /* (max_rows, D) NULL unless opts.backward */
    float *dhidden;      /* (max_tokens, D) as above */
    /* struct kg_head.kept of the last kg_rows_ask; NULL without a backward, or if the
     * backend keeps nothing */
    char *asked;
    struct kg_stage found; /* results of draws (struct found), a bank per draw */
    uint64_t n_begun;      /* draws so far, as n_ended */
    uint64_t n_ended;
    size_t counts[DRAWS][FOUND_COUNTS]; /* sizes of draw n's results, at n % DRAWS */
    uint64_t marks[DRAWS];              /* set after the copy of draw n, at n % DRAWS */
};

enum {
    TOKENS, /* of the pack */
    CHOICES,
    KEYS,
    HIDDEN_BYTES,
    ANCHOR_BYTES,
    WIDE_ROWS,
    WIDE_TOKENS,
    ASKED_BYTES,
    ROWS, /* selected */
    IDS,
    TOP,
    SETS,
    SQUARES,
    ANCHOR,
    BACK,
    BACK_IDS,
    BACK_SETS,
    BACK_ANCHOR,
    COUNTS
};

static const struct kg_column pack_columns[] = {
    KG_COLUMN(struct kg_rows_pack, tokens, TOKENS),
    KG_COLUMN(struct kg_rows_pack, seqs, TOKENS),
    KG_COLUMN(struct kg_rows_pack, from, ROWS),
    KG_COLUMN(struct kg_rows_pack, experts, CHOICES),
    KG_COLUMN(struct kg_rows_pack, keys, KEYS),
    {0},
};

static const struct kg_column there_columns[] = {
    KG_COLUMN(struct kg_rows_pack, hidden, HIDDEN_BYTES),
    KG_COLUMN(struct kg_rows_pack, anchor_hidden, ANCHOR_BYTES),
    KG_COLUMN(struct kg_rows_pack, dhidden_rows, WIDE_ROWS),
    KG_COLUMN(struct kg_rows_pack, dhidden, WIDE_TOKENS),
    KG_COLUMN(struct kg_rows_pack, asked, ASKED_BYTES),
    {0},
};

static const struct kg_column columns[] = {
    KG_COLUMN(struct kg_rows, target, ROWS),
    KG_COLUMN(struct kg_rows, inv_temp, ROWS),
    KG_COLUMN(struct kg_rows, ids, IDS),
    KG_COLUMN(struct kg_rows, sets, SETS),
    KG_COLUMN(struct kg_rows, lse, ROWS),
    KG_COLUMN(struct kg_rows, logp, ROWS),
    KG_COLUMN(struct kg_rows, entropy, ROWS),
    KG_COLUMN(struct kg_rows, logp_at, IDS),
    KG_COLUMN(struct kg_rows, top_ids, TOP),
    KG_COLUMN(struct kg_rows, top_logp, TOP),
    KG_COLUMN(struct kg_rows, set_logp, SETS),
    KG_COLUMN(struct kg_rows, sum_sq, SQUARES),
    KG_COLUMN(struct kg_rows, twice, SQUARES),
    KG_COLUMN(struct kg_rows, lse_twice, SQUARES),
    KG_COLUMN(struct kg_rows, kl, ANCHOR),
    KG_COLUMN(struct kg_rows, anchor_lse, ANCHOR),
    KG_COLUMN(struct kg_rows, a_logp, BACK),
    KG_COLUMN(struct kg_rows, a_entropy, BACK),
    KG_COLUMN(struct kg_rows, a_at, BACK_IDS),
    KG_COLUMN(struct kg_rows, a_set, BACK_SETS),
    KG_COLUMN(struct kg_rows, a_kl, BACK_ANCHOR),
    {0},
};

/* ---- room ---- */

static size_t only_if(bool wanted, size_t n) { return wanted ? n : KG_COLUMN_ABSENT; }

static int64_t max_rows(const struct kg_rows_opts *opts)
{
    return opts->max_rows > 0 ? opts->max_rows : opts->max_tokens;
}

/* The smallest limit of the models that read the packs. */
static int64_t max_keys(const struct kg_model *m, const struct kg_rows_opts *opts)
{
    int64_t n = opts->share ? kg_acts_keys(m, opts->max_tokens) : 0, other = n;

    if (opts->share && opts->anchor)
        other = kg_acts_keys(opts->anchor, opts->max_tokens);
    return other < n ? other : n;
}

static void count(size_t counts[COUNTS], const struct kg_model *m,
                  const struct kg_rows_opts *opts)
{
    const struct kg_model_config *c = &m->config;
    size_t n = (size_t)max_rows(opts), tokens = (size_t)opts->max_tokens;
    size_t ids = n * (size_t)opts->max_k, bytes = kg_dtype_traits(m->ct)->bytes;
    size_t width = (size_t)c->hidden;
    size_t other = opts->anchor ? (size_t)opts->anchor->config.hidden : 0;

    counts[TOKENS] = tokens;
    counts[CHOICES] = only_if(opts->experts, tokens * (size_t)kg_model_config_choices(c));
    counts[KEYS] = only_if(opts->share, (size_t)max_keys(m, opts));
    counts[HIDDEN_BYTES] = (n + 1) * (width > other ? width : other) * bytes;
    counts[ANCHOR_BYTES] = only_if(opts->kl, n * other * bytes);
    counts[WIDE_ROWS] = only_if(opts->backward, n * width);
    counts[WIDE_TOKENS] = only_if(opts->backward, tokens * width);
    counts[ASKED_BYTES] = only_if(opts->backward && m->backend->keeps_heads,
                                  kg_head_kept_bytes((int64_t)n, opts->max_k));
    counts[ROWS] = n;
    counts[IDS] = ids;
    counts[TOP] = n * (size_t)opts->top_k;
    counts[SETS] = only_if(opts->sets, n);
    counts[SQUARES] = only_if(opts->sum_sq, n);
    counts[ANCHOR] = only_if(opts->kl, n);
    counts[BACK] = only_if(opts->backward, n);
    counts[BACK_IDS] = only_if(opts->backward, ids);
    counts[BACK_SETS] = only_if(opts->backward && opts->sets, n);
    counts[BACK_ANCHOR] = only_if(opts->backward && opts->kl, n);
}

static bool checkpointed(const struct kg_rows_opts *opts)
{
    return opts->checkpoint || !opts->backward;
}

/* Number of int32 staged besides those of every pack: preset experts, keys, and for a
 * backward key_ends and places of struct kg_staged. anchor: for the anchor's forward */
static int64_t n_more(const struct kg_model *m, const struct kg_rows_opts *opts,
                      bool anchor)
{
    const int64_t choices = kg_model_config_choices(&m->config);
    const int64_t keys = max_keys(m, opts);

    return (opts->experts && !anchor ? opts->max_tokens * choices : 0) + keys +
           (keys > 0 && opts->backward && !anchor ? opts->max_tokens + keys : 0);
}

static kg_status create_pack(struct kg_rows *p, const struct kg_model *m,
                             const struct kg_rows_opts *opts, const size_t *counts,
                             struct kg_err *err)
{
    struct kg_rows_pack *k = kg_mem_calloc(1, sizeof *k, "pack", err);

    if (!k)
        return err->code;
    p->pack = k;
    k->backend = m->backend;
    k->anchor = opts->anchor;
    k->kv = opts->kv;
    KG_TRY(kg_acts_create_more(&k->acts, m, opts->max_tokens, checkpointed(opts),
                               n_more(m, opts, false), err));
    if (opts->anchor) /* scratch only, so one layer's set is enough */
        KG_TRY(kg_acts_create_more(&k->anchor_acts, opts->anchor, opts->max_tokens, true,
                                   n_more(opts->anchor, opts, true), err));
    KG_TRY(kg_columns_take(&k->block, k, pack_columns, counts, "pack", err));
    k->prefixes = (struct kg_prefixes){.keys = k->keys, .max = max_keys(m, opts)};
    k->there = kg_buf_alloc(m->backend, kg_columns_bytes(there_columns, counts), "pack",
                            err);
    if (!k->there)
        return err->code;
    kg_columns_place(k->there, k, there_columns, counts);
    return KG_OK;
}

kg_status kg_rows_create(struct kg_rows **p, const struct kg_model *m,
                         const struct kg_rows_opts *opts, struct kg_err *err)
{
    struct kg_rows *new = kg_mem_calloc(1, sizeof *new, "rows of a pack", err);
    size_t counts[COUNTS];
    kg_status status;

    if (!new)
        return err->code;
    count(counts, m, opts);
    new->max_tokens = opts->max_tokens;
    new->max_rows = max_rows(opts);
    new->max_k = opts->max_k;
    new->top_k = opts->top_k;
    KG_TRY_GOTO(fail, create_pack(new, m, opts, counts, err));
    KG_TRY_GOTO(
        fail, kg_columns_take(&new->block, new, columns, counts, "rows of a pack", err));
    kg_rows_begin(new, m, 0);
    *p = new;
    return KG_OK;
fail:
    kg_rows_free(new);
    return status;
}

void kg_rows_free(struct kg_rows *p)
{
    struct kg_err ignored;

    if (!p)
        return;
    if (p->pack) {
        if (kg_rows_draw_drop(p, &ignored) != KG_OK)
            p->pack->n_ended =
                p->pack->n_begun; /* a failed device has nothing in flight */
        kg_acts_free(p->pack->acts);
        kg_acts_free(p->pack->anchor_acts);
        kg_columns_free(&p->pack->block, p->pack, pack_columns);
        kg_buf_free(p->pack->backend, p->pack->there);
        kg_stage_release(&p->pack->found, p->pack->backend);
    }
    kg_mem_free(p->pack);
    kg_columns_free(&p->block, p, columns);
    kg_mem_free(p);
}

/* At most UINT64_MAX/16, more than any memory, so that sums of these do not overflow. */
static uint64_t bytes_of(const struct kg_column *list, const size_t *counts)
{
    uint64_t bytes = kg_columns_bytes(list, counts);

    return bytes < UINT64_MAX / 16 ? bytes : UINT64_MAX / 16;
}

struct kg_bytes kg_rows_memory(const struct kg_model *m, const struct kg_rows_opts *opts)
{
    size_t counts[COUNTS];
    struct kg_bytes b, anchor = {0};

    b = kg_acts_bytes(m, opts->max_tokens, checkpointed(opts), n_more(m, opts, false));
    count(counts, m, opts);
    if (opts->anchor)
        anchor = kg_acts_bytes(opts->anchor, opts->max_tokens, true,
                               n_more(opts->anchor, opts, true));
    b.there += anchor.there + bytes_of(there_columns, counts);
    b.host += kg_acts_load_bytes(&m->config, opts->max_tokens);
    b.host += anchor.host + bytes_of(pack_columns, counts) + bytes_of(columns, counts);
    return b;
}

/* ---- the pack ---- */

void kg_rows_begin(struct kg_rows *p, const struct kg_model *m, int k)
{
    assert(k <= p->max_k);
    p->model = m;
    p->n_rows = 0;
    p->k = k;
    kg_rows_next(p);
}

void kg_rows_next(struct kg_rows *p)
{
    p->pack->n_tokens = 0;
    p->pack->n_seqs = 0;
    p->pack->n_there = p->n_rows;
    p->pack->n_kept = -1;
    p->pack->n_asked = -1;
    p->pack->given = false;
    kg_prefixes_clear(&p->pack->prefixes);
}

int64_t kg_rows_tokens(const struct kg_rows *p) { return p->pack->n_tokens; }

static bool fits(const struct kg_rows *p, size_t tokens, size_t keys)
{
    const struct kg_rows_pack *k = p->pack;

    return k->n_tokens + (int64_t)tokens <= p->max_tokens &&
           (k->prefixes.max == 0 || k->prefixes.n + (int64_t)keys <= k->prefixes.max);
}

static int64_t add(struct kg_rows *p, const int32_t *tokens, struct kg_pack_seq seq)
{
    struct kg_rows_pack *k = p->pack;
    int64_t first = k->n_tokens;

    assert(fits(p, (size_t)seq.n, 0));
    memcpy(k->tokens + first, tokens, (size_t)seq.n * sizeof *tokens);
    k->seqs[k->n_seqs++] = seq;
    k->n_tokens += seq.n;
    return first;
}

/* ---- shared prefixes ---- */
int64_t kg_rows_max_keys(const struct kg_rows *p) { return p->pack->prefixes.max; }

int64_t kg_rows_saved(const struct kg_rows *p)
{
    const struct kg_prefixes *x = &p->pack->prefixes;

    return x->n > 0 ? x->n - p->pack->n_tokens : 0;
}

int64_t kg_rows_at(const struct kg_rows *p, size_t t)
{
    const struct kg_rows_pack *k = p->pack;
    const struct kg_pack_seq *last = &k->seqs[k->n_seqs - 1];

    assert(t < (size_t)last->pos + (size_t)last->n);
    return k->prefixes.max > 0
               ? k->keys[k->prefixes.last + (int64_t)t]
               : k->n_tokens - last->n + (int64_t)t; /* the pack has all its tokens */
}

static size_t shared(int64_t *from, const struct kg_rows *p, const struct kg_rows_seq *q)
{
    const struct kg_rows_pack *k = p->pack;
    const struct kg_prefix_pack pack = {
        .tokens = k->tokens,
        .experts = k->given ? k->experts : NULL,
        .choices = (size_t)kg_model_config_choices(&p->model->config),
        .seqs = k->seqs,
        .n_seqs = k->n_seqs};

    return kg_prefixes_find(from, &k->prefixes, &pack, q);
}

size_t kg_rows_shared(const struct kg_rows *p, const struct kg_rows_seq *q)
{
    int64_t from;

    return shared(&from, p, q);
}

bool kg_rows_fits_seq(const struct kg_rows *p, const struct kg_rows_seq *q)
{
    return fits(p, q->n - kg_rows_shared(p, q), q->n);
}

static void give_experts(struct kg_rows *p, size_t n, const uint16_t *experts)
{
    struct kg_rows_pack *k = p->pack;
    size_t c = (size_t)kg_model_config_choices(&p->model->config);

    assert(k->experts);
    if (!k->given)
        memset(k->experts, 0xff, (size_t)p->max_tokens * c * sizeof *experts);
    k->given = true;
    memcpy(k->experts + (size_t)k->n_tokens * c, experts, n * c * sizeof *experts);
}

void kg_rows_add_seq(struct kg_rows *p, const struct kg_rows_seq *q)
{
    int64_t from;
    const int32_t same = (int32_t)shared(&from, p, q), n = (int32_t)q->n - same;
    const size_t choices = (size_t)kg_model_config_choices(&p->model->config);

    kg_prefixes_add(&p->pack->prefixes, from, same, p->pack->n_tokens, n);
    if (q->experts)
        give_experts(p, (size_t)n, q->experts + (size_t)same * choices);
    add(p, q->tokens + same, (struct kg_pack_seq){.n = n, .pos = same});
}

int64_t kg_rows_add(struct kg_rows *p, const int32_t *tokens, size_t n)
{
    const struct kg_rows_seq q = {.tokens = tokens, .n = n};

    kg_rows_add_seq(p, &q);
    return p->pack->n_tokens - (int64_t)n;
}

int64_t kg_rows_continue(struct kg_rows *p, const int32_t *tokens, size_t n, int32_t pos,
                         struct kg_kv_tables blocks, int32_t adapter)
{
    return add(p, tokens, (struct kg_pack_seq){(int32_t)n, pos, blocks, adapter});
}

int64_t kg_rows_want(struct kg_rows *p, int64_t row, int32_t target, float inv_temp,
                     const int32_t *ids)
{
    int64_t i = p->n_rows++;

    assert(i < p->max_rows);
    p->pack->from[i] = (int32_t)row;
    p->target[i] = target;
    p->inv_temp[i] = inv_temp;
    if (ids)
        memcpy(p->ids + i * p->k, ids, (size_t)p->k * sizeof *ids);
    else
        memset(p->ids + i * p->k, 0xff, (size_t)p->k * sizeof *ids);
    if (p->sets)
        p->sets[i] = (struct kg_idset){0};
    return i;
}

void kg_rows_want_set(struct kg_rows *p, int64_t index, const struct kg_idset *set)
{
    p->sets[index] = *set;
}

void kg_rows_forget(struct kg_rows *p, int64_t n)
{
    assert(n >= p->pack->n_there && n <= p->n_rows);
    p->n_rows = n;
    if (p->pack->n_kept > n)
        p->pack->n_kept = n;
}

/* ---- forward ---- */

static struct kg_pack pack_of(const struct kg_rows *p)
{
    const struct kg_rows_pack *k = p->pack;

    return (struct kg_pack){.tokens = k->tokens,
                            .n = k->n_tokens,
                            .seqs = k->seqs,
                            .n_seqs = k->n_seqs,
                            .keys = k->keys,
                            .n_keys = k->prefixes.any ? k->prefixes.n : 0};
}

/* Rows [first, first + n) of hidden states of m. */
static struct kg_mat hidden_of(char *hidden, const struct kg_model *m, int64_t first,
                               int64_t n)
{
    struct kg_mat all = kg_mat(hidden, m->ct, first + n, m->config.hidden);

    return kg_mat_rows(all, first, n);
}

/* Sets pack, cache and rows of f; the caller has set the other fields. */
static void complete(struct kg_forward *f, const struct kg_pack *pack,
                     const struct kg_rows *p)
{
    const struct kg_rows_pack *k = p->pack;

    f->pack = pack;
    f->kv = k->kv;
    f->rows = k->from + k->n_there;
    f->n_rows = p->n_rows - k->n_there;
}

/* Runs the forward of a staged pack, and gathers its selected rows into `out`. */
static kg_status run_staged(const struct kg_rows *p, char *out, const struct kg_model *m,
                            struct kg_acts *acts, const struct kg_forward *f,
                            struct kg_err *err)
{
    struct kg_mat hidden;

    KG_TRY(kg_model_run(&hidden, m, acts, f, err));
    return kg_op_gather_rows(m->backend, hidden_of(out, m, p->pack->n_there, f->n_rows),
                             hidden, kg_acts_rows(acts), err);
}

static kg_status run_forward(const struct kg_rows *p, char *out, const struct kg_model *m,
                             struct kg_acts *acts, bool keep, const uint16_t *experts,
                             struct kg_err *err)
{
    const struct kg_pack pack = pack_of(p);
    struct kg_forward f = {.keep = keep, .experts = experts};

    complete(&f, &pack, p);
    KG_TRY(kg_model_stage(m, acts, &f, err));
    return run_staged(p, out, m, acts, &f, err);
}

kg_status kg_rows_forward(struct kg_rows *p, bool keep, struct kg_err *err)
{
    struct kg_rows_pack *k = p->pack;
    struct kg_acts *acts = p->model == k->anchor ? k->anchor_acts : k->acts;

    k->n_kept = keep ? p->n_rows : -1;
    return run_forward(p, k->hidden, p->model, acts, keep, k->given ? k->experts : NULL,
                       err);
}

kg_status kg_rows_experts(uint16_t *out, const struct kg_rows *p, int64_t row, int64_t n,
                          struct kg_err *err)
{
    const struct kg_rows_pack *k = p->pack;

    return kg_acts_experts(out, p->model == k->anchor ? k->anchor_acts : k->acts, row, n,
                           err);
}

kg_status kg_rows_load(int64_t *counts, const struct kg_rows *p, struct kg_err *err)
{
    return kg_acts_load(counts, p->pack->acts, err);
}

kg_status kg_rows_balance(const struct kg_rows *p, const float *balance,
                          struct kg_err *err)
{
    return kg_acts_balance(p->pack->acts, balance, err);
}

kg_status kg_rows_p_sum(float *p_sum, const struct kg_rows *p, struct kg_err *err)
{
    return kg_acts_p_sum(p_sum, p->pack->acts, err);
}

/* Copies one hidden state to another index; index max_rows is that of kg_rows_hold. */
static kg_status copy_hidden(const struct kg_rows *p, int64_t to, int64_t from,
                             struct kg_err *err)
{
    const struct kg_model *m = p->model;

    return kg_buf_copy(m->backend, hidden_of(p->pack->hidden, m, to, 1).data,
                       hidden_of(p->pack->hidden, m, from, 1).data,
                       (uint64_t)m->config.hidden * kg_dtype_traits(m->ct)->bytes, err);
}

kg_status kg_rows_hold(struct kg_rows *p, int64_t index, struct kg_err *err)
{
    return copy_hidden(p, p->max_rows, index, err);
}

kg_status kg_rows_recall(int64_t *index, struct kg_rows *p, float inv_temp,
                         struct kg_err *err)
{
    assert(p->pack->n_there == p->n_rows);
    *index = kg_rows_want(p, -1, -1, inv_temp, NULL);
    p->pack->n_there = p->n_rows;
    return copy_hidden(p, *index, p->max_rows, err);
}

/* ---- the head ---- */

/* The head's operands for selected rows [first, first + n). */
static struct kg_head head_of(const struct kg_rows *p, int64_t first, int64_t n)
{
    return (struct kg_head){
        .hidden = hidden_of(p->pack->hidden, p->model, first, n),
        .weight = p->model->head->compute,
        .inv_temp = p->inv_temp + first,
        .softcap = (float)p->model->config.logit_softcap,
        .target = p->target + first,
        .indices = p->k > 0 ? p->ids + first * p->k : NULL,
        .k = p->k,
    };
}

/* The head's operands of the last kg_rows_ask. anchor: set and referenced if it computes
 * a KL */
static struct kg_head asked_head(const struct kg_rows *p, struct kg_head_anchor *anchor)
{
    struct kg_head head = head_of(p, 0, p->n_rows);

    head.top_k = p->ask.top_k;
    head.sets = p->ask.sets ? p->sets : NULL;
    head.kept = p->pack->asked;
    if (p->ask.kl == KG_ROWS_KL_NONE)
        return head;
    *anchor = (struct kg_head_anchor){
        .hidden = hidden_of(p->pack->anchor_hidden, p->ask.anchor, 0, p->n_rows),
        .weight = p->ask.anchor->head->compute,
        .inv_temp = p->inv_temp,
        .softcap = (float)p->ask.anchor->config.logit_softcap,
    };
    head.anchor = anchor;
    return head;
}

static struct kg_head_out own_arrays(const struct kg_rows *p)
{
    const struct kg_rows_ask *ask = &p->ask;

    return (struct kg_head_out){
        .lse = p->lse,
        .logp = p->logp,
        .logp_at = p->k > 0 ? p->logp_at : NULL,
        .entropy = ask->entropy ? p->entropy : NULL,
        .top_ids = ask->top_k > 0 ? p->top_ids : NULL,
        .top_logp = ask->top_k > 0 ? p->top_logp : NULL,
        .set_logp = ask->sets ? p->set_logp : NULL,
        .kl_reverse = ask->kl == KG_ROWS_KL_REVERSE ? p->kl : NULL,
        .kl_forward = ask->kl == KG_ROWS_KL_FORWARD ? p->kl : NULL,
        .anchor_lse = ask->kl != KG_ROWS_KL_NONE ? p->anchor_lse : NULL,
    };
}

/* sum_v p_v^2 = sum_v exp(2 z_v - 2 lse) = exp(lse of 2 z - 2 lse) */
static kg_status square(struct kg_rows *p, struct kg_err *err)
{
    struct kg_head head = head_of(p, 0, p->n_rows);
    struct kg_head_out out = {.lse = p->lse_twice};

    for (int64_t i = 0; i < p->n_rows; i++)
        p->twice[i] = 2 * p->inv_temp[i];
    head.inv_temp = p->twice;
    head.target = head.indices = NULL;
    head.k = 0;
    KG_TRY(kg_op_head(p->model->backend, &out, &head, err));
    for (int64_t i = 0; i < p->n_rows; i++)
        p->sum_sq[i] = (float)kg_exp(p->lse_twice[i] - 2 * p->lse[i]);
    return KG_OK;
}

kg_status kg_rows_ask(struct kg_rows *p, const struct kg_rows_ask *ask,
                      struct kg_err *err)
{
    struct kg_rows_pack *k = p->pack;
    struct kg_head_anchor anchor;

    k->n_asked = -1;
    p->ask = ask ? *ask : (struct kg_rows_ask){0};
    assert(p->ask.top_k <= p->top_k && (p->sets || !p->ask.sets) &&
           (p->sum_sq || !p->ask.sum_sq));
    if (p->ask.kl != KG_ROWS_KL_NONE) {
        assert(p->kl && k->n_there == 0);
        KG_TRY(run_forward(p, k->anchor_hidden, p->ask.anchor, k->anchor_acts, false,
                           NULL, err));
    }
    if (p->ask.load)
        KG_TRY(kg_acts_load_later(k->acts, err));
    struct kg_head head = asked_head(p, &anchor);
    struct kg_head_out out = own_arrays(p);
    KG_TRY(kg_op_head(p->model->backend, &out, &head, err));
    k->n_asked = p->n_rows;
    return p->ask.sum_sq ? square(p, err) : KG_OK;
}

static struct kg_head read_head(const struct kg_head_out *out, const struct kg_rows *p,
                                int64_t first, int64_t n, int top_k)
{
    struct kg_head head = head_of(p, first, n);

    head.top_k = top_k;
    if (!out->logp)
        head.target = NULL;
    return head;
}

kg_status kg_rows_read(const struct kg_head_out *out, const struct kg_rows *p,
                       int64_t first, int64_t n, int top_k, struct kg_err *err)
{
    struct kg_head head = read_head(out, p, first, n, top_k);

    return kg_op_head(p->model->backend, out, &head, err);
}

/* ---- draws ---- */

/* The host's copy of draw n's results. */
static int32_t *bank_of(const struct kg_rows_pack *k, uint64_t n)
{
    return kg_stage_host(&k->found, (int)(n % (uint64_t)kg_stage_banks(k->backend)));
}

static void give(void *to, const void *from, size_t count, size_t size)
{
    if (count != KG_COLUMN_ABSENT)
        memcpy(to, from, count * size);
}

/* From the staged pack to the draw's results, all in backend memory: no copy from or to
 * the host. */
struct step {
    const struct kg_rows *p;
    const struct kg_rows_draws *d;
    const struct kg_forward *f;
    struct found there;
};

static kg_status draw(const struct step *s, struct kg_err *err)
{
    const struct kg_rows *p = s->p;
    const struct kg_head head = {
        .hidden = hidden_of(p->pack->hidden, p->model, 0, p->n_rows),
        .weight = p->model->head->compute,
        .softcap = (float)p->model->config.logit_softcap,
        .top_k = s->d->top_k};
    const struct kg_head_out out = {
        .lse = s->there.lse, .top_ids = s->there.top_ids, .top_logp = s->there.top_logp};
    struct kg_draws draws = {.truncates = s->d->truncates,
                             .drawn = s->there.drawn,
                             .kept = s->there.kept,
                             .logits = s->d->logits};

    kg_acts_draws(&draws, p->pack->acts);
    return kg_op_draw(p->model->backend, &draws, &out, &head, err);
}

static kg_status run_step(void *arg, struct kg_err *err)
{
    const struct step *s = arg;
    const struct kg_rows_pack *k = s->p->pack;

    if (s->d->from)
        KG_TRY(kg_op_feed(k->backend, k->acts->stage.there, k->acts->pack.from,
                          s->there.drawn, err));
    KG_TRY(run_staged(s->p, k->hidden, s->p->model, k->acts, s->f, err));
    return draw(s, err);
}

/* A hash of all that the step's operations take by value: buffers, numbers of rows and
 * options. A backend drops its records when memory is freed, so the address of an owner
 * identifies the buffers that it owns. */
static uint64_t key_of(const struct step *s)
{
    const struct kg_rows_pack *k = s->p->pack;
    const struct kg_staged *staged = &k->acts->pack;
    const uint64_t given[] = {(uintptr_t)s->p->model,
                              (uintptr_t)s->p->model->embed->compute.data,
                              (uintptr_t)s->p->model->head->compute.data,
                              (uintptr_t)k,
                              (uintptr_t)k->acts->stage.there,
                              (uintptr_t)k->found.there,
                              (uintptr_t)k->acts->runs[0].model,
                              (uint64_t)s->p->n_rows,
                              (uint64_t)staged->n,
                              (uint64_t)staged->n_seqs,
                              (uint64_t)staged->most_keys,
                              (uint64_t)s->d->top_k,
                              s->d->truncates,
                              s->there.kept != NULL,
                              s->d->from != NULL,
                              staged->inv_temp != NULL};
    uint64_t key = 0xcbf29ce484222325;

    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        key = (key ^ given[i]) * 0x9e3779b97f4a7c15;
        key ^= key >> 32;
    }
    return key;
}

/* Whether the step is launched as a unit (kg_op_replay): not if logits are copied to the
 * host, and not with several adapters, because the key lacks their runs of rows. */
static bool is_replayed(const struct step *s)
{
    return !s->d->logits && s->p->pack->acts->pack.n_runs == 1 &&
           kg_rows_replays(s->p->model);
}

bool kg_rows_replays(const struct kg_model *m)
{
    return m->backend->draw && m->backend->replay && m->on_host != KG_HOST_LAYERS;
}

bool kg_rows_feeds(const struct kg_model *m)
{
    return m->backend->draw && m->backend->feed && m->on_host != KG_HOST_LAYERS;
}

/* Makes room for the results and sets s->there to their arrays.   *bytes: out, the size
 * of their copy to the host */
static kg_status place_found(struct step *s, uint64_t *bytes, const size_t *counts,
                             struct kg_err *err)
{
    struct kg_rows_pack *k = s->p->pack;

    *bytes = kg_columns_bytes(found_columns, counts);
    KG_TRY(
        kg_stage_room(&k->found, k->backend, (int64_t)(*bytes / sizeof(int32_t)), err));
    kg_columns_place(k->found.there, &s->there, found_columns, counts);
    return KG_OK;
}

kg_status kg_rows_draw_begin(const struct kg_rows_draws *d, const struct kg_rows *p,
                             struct kg_err *err)
{
    const struct kg_pack pack = pack_of(p);
    struct kg_rows_pack *k = p->pack;
    const int at = (int)(k->n_begun % DRAWS);
    const size_t before = k->n_begun > 0 ? k->counts[(at + 1) % DRAWS][FOUND_ROWS] : 0;
    struct kg_forward f = {.how = d->how,
                           .inv_temp = kg_not_one(p->inv_temp, p->n_rows),
                           .from = d->from,
                           .n_drawn = (int64_t)before,
                           .later = true};
    struct step s = {p, d, &f, {0}};
    uint64_t bytes;

    assert(k->n_there == 0 &&
           k->n_begun < k->n_ended + (uint64_t)kg_stage_banks(k->backend));
    complete(&f, &pack, p);
    size_t n = (size_t)p->n_rows, words = ((size_t)p->model->config.vocab + 63) / 64;

    k->counts[at][FOUND_ROWS] = n;
    k->counts[at][FOUND_WORDS] = only_if(d->keeps, n * words);
    k->counts[at][FOUND_TOP] = only_if(d->top_k > 0, n * (size_t)d->top_k);
    KG_TRY(place_found(&s, &bytes, k->counts[at], err));
    KG_TRY(kg_model_stage(p->model, k->acts, &f, err));
    KG_TRY(is_replayed(&s) ? kg_op_replay(k->backend, key_of(&s), run_step, &s, err)
                           : run_step(&s, err));
    KG_TRY(
        kg_buf_get_later(k->backend, bank_of(k, k->n_begun), k->found.there, bytes, err));
    KG_TRY(kg_buf_mark(k->backend, &k->marks[at], err));
    k->n_begun++;
    return KG_OK;
}

kg_status kg_rows_draw_end(const struct kg_rows_found *to, const struct kg_rows *p,
                           struct kg_err *err)
{
    struct kg_rows_pack *k = p->pack;
    const size_t *counts = k->counts[k->n_ended % DRAWS];
    struct found f;

    assert(k->n_ended < k->n_begun);
    KG_TRY(kg_buf_wait(k->backend, k->marks[k->n_ended % DRAWS], err));
    kg_columns_place(bank_of(k, k->n_ended), &f, found_columns, counts);
    give(to->drawn, f.drawn, counts[FOUND_ROWS], sizeof *f.drawn);
    give(to->lse, f.lse, counts[FOUND_ROWS], sizeof *f.lse);
    give(to->kept, f.kept, counts[FOUND_WORDS], sizeof *f.kept);
    give(to->top_ids, f.top_ids, counts[FOUND_TOP], sizeof *f.top_ids);
    give(to->top_logp, f.top_logp, counts[FOUND_TOP], sizeof *f.top_logp);
    k->n_ended++;
    kg_phase_tick(); /* layers tick when they are called, but not in a replay */
    return KG_OK;
}

kg_status kg_rows_draw_drop(struct kg_rows *p, struct kg_err *err)
{
    p->pack->n_ended = p->pack->n_begun;
    return kg_buf_settle(p->pack->backend, err);
}

/* ---- backward ---- */

/* Checks that the head's results, also those that a backend kept, belong to these rows
 * and include all that the gradient needs. */
static kg_status check_asked(const struct kg_rows *p, bool use_entropy,
                             struct kg_err *err)
{
    const int64_t n_asked = p->pack->n_asked;

    if (n_asked < 0)
        return kg_fail(err, KG_EINVAL,
                       "backward of rows: expected outputs of the head, found none");
    if (n_asked != p->n_rows)
        return kg_fail(
            err, KG_EINVAL,
            "backward of rows: expected the %lld rows of the head's outputs, found %lld",
            (long long)n_asked, (long long)p->n_rows);
    if (use_entropy && !p->ask.entropy)
        return kg_fail(err, KG_EINVAL,
                       "backward of rows: expected the head to compute the entropy, "
                       "found it without");
    return KG_OK;
}

/* Computes drows, and adds to dweight if it has data, from the caller's gradients. */
static kg_status head_bwd(const struct kg_rows *p, struct kg_mat drows,
                          struct kg_mat dweight, bool use_entropy, struct kg_err *err)
{
    struct kg_head_anchor anchor;
    struct kg_head head = asked_head(p, &anchor);
    struct kg_head_grad g = {
        .lse = p->lse,
        .a_target = p->a_logp,
        .a_indices = p->k > 0 ? p->a_at : NULL,
        .a_entropy = use_entropy ? p->a_entropy : NULL,
        .entropy = use_entropy ? p->entropy : NULL,
        .a_kl_reverse = p->ask.kl == KG_ROWS_KL_REVERSE ? p->a_kl : NULL,
        .a_kl_forward = p->ask.kl == KG_ROWS_KL_FORWARD ? p->a_kl : NULL,
        .kl_reverse = p->kl,
        .anchor_lse = p->anchor_lse,
        .a_set = p->ask.sets ? p->a_set : NULL,
        .set_logp = p->set_logp,
        .dhidden = drows,
        .dweight = dweight,
    };

    return kg_op_head_bwd(p->model->backend, &g, &head, err);
}

/* The gradient of a tied table is the head's, then the embedding's. If stage 0 has no
 * memory for it (not grads.whole), the head runs again in the last stage. */
static bool head_is_late(const struct kg_model *m, struct kg_grads grads)
{
    return m->head == m->embed && m->head->offset >= 0 && !grads.whole;
}

/* Stage 0 up to the gradient of the pack's hidden states. */
static kg_status begin_backward(struct kg_rows *p, struct kg_mat drows,
                                struct kg_mat dhidden, struct kg_grads grads,
                                bool use_entropy, struct kg_err *err)
{
    const struct kg_model *m = p->model;
    const struct kg_rows_pack *k = p->pack;
    struct kg_mat dweight = {0};
    const struct kg_ivec rows = kg_ivec(kg_acts_rows(k->acts).data, p->n_rows);

    if (!head_is_late(m, grads))
        dweight = kg_grad_mat(grads, m->head);
    KG_TRY(check_asked(p, use_entropy, err));
    assert(k->n_there == 0 && k->n_kept == p->n_rows);
    KG_TRY(head_bwd(p, drows, dweight, use_entropy, err));
    KG_TRY(kg_buf_zero(m->backend, k->dhidden,
                       (uint64_t)(dhidden.rows * dhidden.cols) * sizeof *k->dhidden,
                       err));
    if (k->prefixes.any) /* a shared row may be selected several times: add them all */
        return kg_op_embed_bwd(m->backend, dhidden, drows, rows, err);
    return kg_op_scatter_rows(m->backend, dhidden, rows, drows, err);
}

kg_status kg_rows_backward_stage(struct kg_rows *p, struct kg_grads grads, int32_t stage,
                                 bool use_entropy, struct kg_err *err)
{
    const struct kg_model *m = p->model;
    const struct kg_rows_pack *k = p->pack;
    int64_t width = m->config.hidden;
    struct kg_mat drows = kg_mat(k->dhidden_rows, KG_F32, p->n_rows, width);
    struct kg_mat dhidden = kg_mat(k->dhidden, KG_F32, k->n_tokens, width);

    if (stage == 0)
        KG_TRY(begin_backward(p, drows, dhidden, grads, use_entropy, err));
    if (stage + 1 == kg_backward_stages(m) && head_is_late(m, grads))
        KG_TRY(head_bwd(p, drows, kg_grad_mat(grads, m->head), use_entropy, err));
    return kg_model_backward_stage(m, k->acts, dhidden, grads, stage, err);
}

kg_status kg_rows_backward(struct kg_rows *p, float *grads, bool use_entropy,
                           struct kg_err *err)
{
    for (int32_t s = 0; s < kg_backward_stages(p->model); s++)
        KG_TRY(kg_rows_backward_stage(p, kg_grads_all(grads), s, use_entropy, err));
    return KG_OK;
}
