/* Embedding: texts to tokens, tokens in packs through the layers, rows to vectors.
 *
 * A pack holds the next texts that fit, one after another, without padding or sorting, so
 * its cost is that of its tokens. The division into packs changes no bit. The host pools,
 * in the order of the tokens and in double.
 */
#include "retriever/encoder/encoder_internal.h"

#include "base/columns.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { PACK_TOKENS = 2048 };

struct kg_embedder {
    const struct kg_encoder *e;
    int64_t capacity; /* tokens of a pack */

    /* the pack, on the host */
    struct kg_block block;
    int32_t *tokens;          /* (capacity) */
    int32_t *positions;       /* (capacity) */
    struct kg_attn_seq *seqs; /* (capacity) */
    float *hidden;            /* (capacity, D) input of pooling */
    int32_t n, n_seqs;

    /* the backend's */
    void *memory;                 /* owned: all arrays below */
    struct kg_mat x;              /* (capacity, D) */
    struct kg_mat y;              /* (capacity, D) positions, then attention's output */
    struct kg_mat q, k, v;        /* (capacity, D) */
    struct kg_mat f;              /* (capacity, F) */
    int32_t *put_tokens;          /* (capacity) */
    int32_t *put_positions;       /* (capacity) */
    struct kg_attn_seq *put_seqs; /* (capacity) */

    struct kg_str text; /* prefix and text */
    struct kg_ids ids;  /* of one text */
};

/* ---- memory ---- */
enum { TOKENS, HIDDEN, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct kg_embedder, tokens, TOKENS),
    KG_COLUMN(struct kg_embedder, positions, TOKENS),
    KG_COLUMN(struct kg_embedder, seqs, TOKENS),
    KG_COLUMN(struct kg_embedder, hidden, HIDDEN),
    {0},
};

/* Tokens of a pack: a multiple of 16, so that all of its parts begin aligned. */
static int64_t capacity_of(int32_t max_tokens)
{
    const int32_t longest = (max_tokens + 15) / 16 * 16;

    return longest > PACK_TOKENS ? longest : PACK_TOKENS;
}

uint64_t kg_encoder_pack_bytes(const struct kg_encoder_config *c, int32_t max_tokens)
{
    const uint64_t floats = 5 * (uint64_t)c->dim + (uint64_t)c->ffn;

    return (uint64_t)capacity_of(max_tokens) *
           (floats * sizeof(float) + 2 * sizeof(int32_t) + sizeof(struct kg_attn_seq));
}

static kg_status take_memory(struct kg_embedder *m, struct kg_err *err)
{
    const struct kg_encoder_config *c = &m->e->config;
    const int64_t n = m->capacity, wide = n * c->dim, floats = 5 * wide + n * c->ffn;
    const uint64_t bytes = kg_encoder_pack_bytes(c, m->e->settings.max_tokens);

    m->memory = kg_buf_alloc(m->e->backend, bytes, "a pack of texts", err);
    if (!m->memory)
        return err->code;
    float *at = m->memory;
    m->x = kg_mat(at, KG_F32, n, c->dim);
    m->y = kg_mat(at + wide, KG_F32, n, c->dim);
    m->q = kg_mat(at + 2 * wide, KG_F32, n, c->dim);
    m->k = kg_mat(at + 3 * wide, KG_F32, n, c->dim);
    m->v = kg_mat(at + 4 * wide, KG_F32, n, c->dim);
    m->f = kg_mat(at + 5 * wide, KG_F32, n, c->ffn);
    m->put_tokens = (int32_t *)(void *)(at + floats);
    m->put_positions = m->put_tokens + n;
    m->put_seqs = (struct kg_attn_seq *)(void *)(m->put_positions + n);
    return KG_OK;
}

kg_status kg_embedder_open(struct kg_embedder **m, const struct kg_encoder *e,
                           struct kg_err *err)
{
    struct kg_embedder *fresh = kg_mem_calloc(1, sizeof *fresh, "embedder", err);
    kg_status status;

    *m = NULL;
    if (!fresh)
        return KG_ENOMEM;
    fresh->e = e;
    fresh->capacity = capacity_of(e->settings.max_tokens);
    const size_t counts[COUNTS] = {(size_t)fresh->capacity,
                                   (size_t)(fresh->capacity * e->config.dim)};
    KG_TRY_GOTO(out, kg_columns_take(&fresh->block, fresh, columns, counts,
                                     "a pack of texts", err));
    status = take_memory(fresh, err);
out:
    if (status != KG_OK) {
        kg_embedder_close(fresh);
        return status;
    }
    *m = fresh;
    return KG_OK;
}

void kg_embedder_close(struct kg_embedder *m)
{
    if (!m)
        return;
    kg_buf_free(m->e->backend, m->memory);
    kg_columns_free(&m->block, m, columns);
    kg_str_release(&m->text);
    kg_ids_release(&m->ids);
    kg_mem_free(m);
}

/* ---- the layers ---- */
static kg_status linear(const struct kg_embedder *m, struct kg_mat y, struct kg_mat x,
                        const struct kg_encoder_linear *w, bool onto, struct kg_err *err)
{
    KG_TRY(kg_op_matmul(m->e->backend, y, x, w->w, KG_MATMUL_NT, onto, err));
    return kg_op_bias(m->e->backend, y, w->b, err);
}

static kg_status normed(const struct kg_embedder *m, struct kg_mat x,
                        const struct kg_encoder_norm *norm, struct kg_err *err)
{
    return kg_op_layernorm(m->e->backend, x, x, norm->w, norm->b, m->e->config.eps, err);
}

static kg_status attend(const struct kg_embedder *m, struct kg_mat o, struct kg_mat q,
                        struct kg_mat k, struct kg_mat v, struct kg_err *err)
{
    const struct kg_encoder_config *c = &m->e->config;
    const int32_t hd = c->dim / c->heads;
    const struct kg_attn a = {.q = q,
                              .k = k,
                              .v = v,
                              .n_heads = c->heads,
                              .n_kv_heads = c->heads,
                              .head_dim = hd,
                              .scale = (float)(1 / sqrt((double)hd)),
                              .both_ways = true,
                              .seqs = m->put_seqs,
                              .n_seqs = m->n_seqs};

    return kg_op_attention(m->e->backend, o, kg_vec(NULL, 0), &a, err);
}

static kg_status layer(const struct kg_embedder *m, const struct kg_encoder_layer *w,
                       struct kg_err *err)
{
    const struct kg_mat x = kg_mat_rows(m->x, 0, m->n), y = kg_mat_rows(m->y, 0, m->n);
    const struct kg_mat q = kg_mat_rows(m->q, 0, m->n), k = kg_mat_rows(m->k, 0, m->n);
    const struct kg_mat v = kg_mat_rows(m->v, 0, m->n), f = kg_mat_rows(m->f, 0, m->n);

    KG_TRY(linear(m, q, x, &w->q, false, err));
    KG_TRY(linear(m, k, x, &w->k, false, err));
    KG_TRY(linear(m, v, x, &w->v, false, err));
    KG_TRY(attend(m, y, q, k, v, err));
    KG_TRY(linear(m, x, y, &w->o, true, err));
    KG_TRY(normed(m, x, &w->norm1, err));
    KG_TRY(linear(m, f, x, &w->up, false, err));
    KG_TRY(kg_op_gelu(m->e->backend, f, f, err));
    KG_TRY(linear(m, x, f, &w->down, true, err));
    return normed(m, x, &w->norm2, err);
}

static kg_status put_pack(const struct kg_embedder *m, struct kg_err *err)
{
    const struct kg_backend *be = m->e->backend;
    const uint64_t n = (uint64_t)m->n * sizeof(int32_t);

    KG_TRY(kg_buf_put(be, m->put_tokens, m->tokens, n, err));
    KG_TRY(kg_buf_put(be, m->put_positions, m->positions, n, err));
    return kg_buf_put(be, m->put_seqs, m->seqs, (uint64_t)m->n_seqs * sizeof *m->seqs,
                      err);
}

static kg_status forward(const struct kg_embedder *m, struct kg_err *err)
{
    const struct kg_encoder *e = m->e;
    const struct kg_backend *be = e->backend;
    const struct kg_mat x = kg_mat_rows(m->x, 0, m->n), y = kg_mat_rows(m->y, 0, m->n);
    const int64_t floats = (int64_t)m->n * e->config.dim;

    KG_TRY(put_pack(m, err));
    KG_TRY(kg_op_embed(be, x, e->words, kg_ivec(m->put_tokens, m->n), err));
    KG_TRY(kg_op_embed(be, y, e->positions, kg_ivec(m->put_positions, m->n), err));
    KG_TRY(kg_op_add(be, kg_vec(x.data, floats), kg_vec(y.data, floats), err));
    KG_TRY(kg_op_bias(be, x, e->type, err));
    KG_TRY(normed(m, x, &e->norm, err));
    for (int32_t l = 0; l < e->config.layers; l++)
        KG_TRY(layer(m, &e->layers[l], err));
    return kg_buf_get(be, m->hidden, x.data, (uint64_t)floats * sizeof(float), err);
}

/* ---- rows to a vector ---- */
static void pool(float *out, const struct kg_embedder *m, const struct kg_attn_seq *s)
{
    const int32_t D = m->e->config.dim;
    const float *rows = m->hidden + (int64_t)s->row * D;
    const int32_t n = m->e->settings.pooling == KG_POOLING_CLS ? 1 : s->n_rows;
    double squares = 0, scale = 1;

    for (int32_t d = 0; d < D; d++) {
        double sum = 0;

        for (int32_t i = 0; i < n; i++)
            sum += (double)rows[(int64_t)i * D + d];
        out[d] = (float)(sum / n);
        squares += (double)out[d] * (double)out[d];
    }
    if (m->e->settings.normalised)
        scale = 1 / fmax(sqrt(squares), 1e-12);
    for (int32_t d = 0; d < D; d++)
        out[d] = (float)((double)out[d] * scale);
}

static bool is_finite(const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* out: vectors of the pack's texts; first: number of the pack's first text */
static kg_status run_pack(float *out, struct kg_embedder *m, size_t first,
                          struct kg_err *err)
{
    const int32_t D = m->e->config.dim;

    if (m->n_seqs == 0)
        return KG_OK;
    KG_TRY(forward(m, err));
    for (int32_t i = 0; i < m->n_seqs; i++) {
        pool(out + (int64_t)i * D, m, &m->seqs[i]);
        if (!is_finite(out + (int64_t)i * D, D))
            return kg_fail(
                err, KG_ENONFINITE,
                "text %zu: expected a finite vector from %s, found NaN or infinity",
                first + (size_t)i, m->e->dir);
    }
    m->n = m->n_seqs = 0;
    return KG_OK;
}

/* ---- texts to packs ---- */
/* m->ids: a text's ids, at most max_tokens; a cut text keeps its last special ids */
static kg_status tokenise(struct kg_embedder *m, const struct kg_text *t,
                          enum kg_text_side side, struct kg_err *err)
{
    const struct kg_encoder_settings *s = &m->e->settings;
    const struct kg_encode_opts how = {.parse_special = true, .add_special = true};
    const size_t max = (size_t)s->max_tokens, ends = m->e->ends;

    kg_str_clear(&m->text);
    m->ids.n = 0;
    if (side != KG_TEXT_PLAIN)
        KG_TRY(kg_str_puts(
            &m->text, side == KG_TEXT_QUERY ? s->query_prefix : s->passage_prefix, err));
    KG_TRY(kg_str_append(&m->text, t->bytes, t->n, err));
    KG_TRY(kg_tokenizer_encode(&m->ids, m->e->tok, m->text.data, m->text.len, how, err));
    if (m->ids.n > max) {
        memmove(m->ids.ids + max - ends, m->ids.ids + m->ids.n - ends,
                ends * sizeof *m->ids.ids);
        m->ids.n = max;
    }
    return m->ids.n > 0 ? KG_OK
                        : kg_fail(err, KG_EFORMAT,
                                  "expected a text of at least one token, found none");
}

static void add_to_pack(struct kg_embedder *m, const int32_t *ids, int32_t n)
{
    const int32_t first = m->e->config.first;

    m->seqs[m->n_seqs++] = (struct kg_attn_seq){.row = m->n, .n_rows = n, .keys = m->n};
    for (int32_t i = 0; i < n; i++) {
        m->tokens[m->n + i] = ids[i];
        m->positions[m->n + i] = first + i;
    }
    m->n += n;
}

kg_status kg_embed(float *out, struct kg_embedder *m, const struct kg_text *texts,
                   size_t n, enum kg_text_side side, struct kg_err *err)
{
    const size_t D = (size_t)m->e->config.dim;
    size_t done = 0;

    m->n = m->n_seqs = 0;
    for (size_t i = 0; i < n; i++) {
        if (tokenise(m, &texts[i], side, err) != KG_OK)
            return kg_err_prefix(err, "text %zu", i);
        if (m->n + (int64_t)m->ids.n > m->capacity) {
            KG_TRY(run_pack(out + done * D, m, done, err));
            done = i;
        }
        add_to_pack(m, m->ids.ids, (int32_t)m->ids.n);
    }
    return run_pack(out + done * D, m, done, err);
}

kg_status kg_embed_ids(float *out, struct kg_embedder *m, const int32_t *ids,
                       const int32_t *lengths, size_t n, struct kg_err *err)
{
    const size_t D = (size_t)m->e->config.dim;
    size_t done = 0;

    m->n = m->n_seqs = 0;
    for (size_t i = 0; i < n; ids += lengths[i++]) {
        if (m->n + lengths[i] > m->capacity) {
            KG_TRY(run_pack(out + done * D, m, done, err));
            done = i;
        }
        add_to_pack(m, ids, lengths[i]);
    }
    return run_pack(out + done * D, m, done, err);
}
