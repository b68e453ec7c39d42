/* Opens a checkpoint folder: finds and checks every expected tensor, and maps or converts
 * it.
 *
 * It reads safetensors through data/safetensors.h and trusts nothing in the folder:
 * names, shapes and types are compared with what config.json implies, both ways.
 *
 * The one idea: a tensor is read once, in pieces of whole panels, converted if needed and
 * packed. The pages of a piece are released at once, so opening needs little more memory
 * than the packed weights. A trainable model converts into its master slab first. The
 * mapping does not outlive the call.
 */
#include "model/model_internal.h"

#include "base/file.h"
#include "base/log.h"
#include "base/phase.h"
#include "tensor/coded.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CONVERT_PIECE = 1 << 16 /* elements */ };

/* ---- checks ---- */
static void shape_text(char *out, size_t n, int n_dims, const int64_t *shape)
{
    size_t used = (size_t)snprintf(out, n, "[");
    for (int i = 0; i < n_dims && used < n; i++)
        used += (size_t)snprintf(out + used, n - used, i ? ", %lld" : "%lld",
                                 (long long)shape[i]);
    if (used < n)
        snprintf(out + used, n - used, "]");
}

/* fp32 for blocks, because they are read as fp32. */
static kg_status file_dtype(enum kg_dtype *dtype, const struct kg_st_tensor *t,
                            struct kg_err *err)
{
    *dtype = KG_F32;
    if (t->block)
        return KG_OK;
    for (int d = 0; d < KG_DTYPE_COUNT; d++) {
        if (strcmp(kg_dtype_traits((enum kg_dtype)d)->safetensors_name, t->dtype) == 0) {
            *dtype = (enum kg_dtype)d;
            return KG_OK;
        }
    }
    return kg_fail(
        err, KG_EDTYPE, "%s: tensor %s: expected dtype BF16, F16, F32 or F64, found %s%s",
        t->file, t->name, t->dtype,
        strchr(t->dtype, '8') || t->dtype[1] == '4'
            ? ": quantised weights are not supported, use the model before quantisation"
            : "");
}

kg_status kg_param_check(enum kg_dtype *dtype, const struct kg_param *p,
                         const struct kg_st_tensor *t, const char *by, struct kg_err *err)
{
    KG_TRY(file_dtype(dtype, t, err));
    const int64_t want[2] = {p->n_dims == 1 ? p->cols : p->file_rows, p->cols};
    if (t->n_dims == p->n_dims &&
        memcmp(want, t->shape, (size_t)p->n_dims * sizeof *want) == 0)
        return KG_OK;
    char expected[64];
    char found[192];
    shape_text(expected, sizeof expected, p->n_dims, want);
    shape_text(found, sizeof found, t->n_dims, t->shape);
    return kg_fail(err, KG_ESHAPE, "%s: tensor %s: expected shape %s (from %s), found %s",
                   t->file, p->name, expected, by, found);
}

static kg_status find_tensor(const struct kg_st_tensor **out, enum kg_dtype *dtype,
                             const struct kg_st_set *set, const struct kg_param *p,
                             struct kg_err *err)
{
    *out = kg_st_find(set, p->name);
    if (!*out)
        return kg_fail(err, KG_ENOTFOUND, "tensor %s is missing from the checkpoint%s",
                       p->name,
                       strcmp(p->name, "lm_head.weight") == 0
                           ? ", whose config.json has tie_word_embeddings false: set it "
                             "to true if the embedding is the head"
                           : "");
    return kg_param_check(dtype, p, *out, "config.json", err);
}

/* ---- conversion ---- */
/* Whether the file has all values in order: no blocks, no paired rows, nothing added. */
static bool is_plain(const struct kg_st_tensor *t)
{
    return !t->block && t->paired == 0 && t->added == 0;
}

static int64_t value_count(const struct kg_st_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* Number of values in a row of the file; 1 for a vector of paired values. */
static int64_t row_values(const struct kg_st_tensor *t)
{
    return t->n_dims == 1 && t->paired ? 1 : t->shape[t->n_dims - 1];
}

/* The row of the file that has row r. If paired > 0 (rows per head), the file interleaves
 * the halves of a head, so that rope pairs are adjacent. */
static int64_t file_row(const struct kg_st_tensor *t, int64_t r)
{
    if (t->paired == 0)
        return r;
    const int64_t half = t->paired / 2, in_head = r % t->paired;
    return r - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
}

/* The bytes of row r in the file. */
static const unsigned char *data_of_row(const struct kg_st_tensor *t, int64_t r)
{
    return t->data + t->bytes / (uint64_t)(value_count(t) / row_values(t)) *
                         (uint64_t)file_row(t, r);
}

/* Converts values from the i-th on: at most n, and at most to the end of their row and
 * block.   *done: out, their number */
static kg_status convert_run(void *dst, enum kg_dtype to, const struct kg_st_tensor *t,
                             enum kg_dtype from, int64_t i, int64_t n, int64_t *done,
                             struct kg_err *err)
{
    float x[KG_QUANT_MAX];
    const int64_t cols = row_values(t), col = i % cols;
    const int64_t block = t->block ? t->block->values : min_i64(cols, KG_QUANT_MAX);
    const int64_t bytes = t->block ? t->block->bytes
                                   : block * (int64_t)kg_dtype_traits(from)->bytes;
    const int64_t begin = col / block * block, skip = col - begin;
    const int64_t has = min_i64(block, cols - begin);
    const unsigned char *data = data_of_row(t, i / cols) + begin / block * bytes;
    if (t->block)
        t->block->widen(x, data);
    else
        KG_TRY(kg_dtype_convert(x, KG_F32, data, from, (size_t)has, err));
    for (int64_t k = 0; k < has && t->added != 0; k++)
        x[k] -= t->added;
    *done = min_i64(n, has - skip);
    return kg_dtype_convert(dst, to, x + skip, KG_F32, (size_t)*done, err);
}

static kg_status convert_runs(char *dst, enum kg_dtype to, const struct kg_st_tensor *t,
                              enum kg_dtype from, int64_t first, int64_t n,
                              struct kg_err *err)
{
    for (int64_t i = 0, done; i < n; i += done)
        KG_TRY(convert_run(dst + (size_t)i * kg_dtype_traits(to)->bytes, to, t, from,
                           first + i, n - i, &done, err));
    return KG_OK;
}

static kg_status convert_piece(void *dst, enum kg_dtype to, const struct kg_st_tensor *t,
                               enum kg_dtype from, int64_t first, int64_t at,
                               int64_t total, struct kg_err *err)
{
    const int64_t n = min_i64(total - at, CONVERT_PIECE);
    char *out = (char *)dst + (size_t)at * kg_dtype_traits(to)->bytes;
    kg_phase_tick();
    if (!is_plain(t))
        return convert_runs(out, to, t, from, first + at, n, err);
    return kg_dtype_convert(out, to,
                            t->data + (size_t)(first + at) * kg_dtype_traits(from)->bytes,
                            from, (size_t)n, err);
}

/* Converts n values of t from `first` on. */
static kg_status convert(void *dst, enum kg_dtype to, const struct kg_st_tensor *t,
                         enum kg_dtype from, int64_t first, int64_t n, struct kg_err *err)
{
    kg_status status = KG_OK;
#pragma omp parallel for schedule(static) if (n > 4 * CONVERT_PIECE)
    for (int64_t i = 0; i < n; i += CONVERT_PIECE) {
        struct kg_err local;
        kg_status s = convert_piece(dst, to, t, from, first, i, n, &local);
        if (s != KG_OK) {
#pragma omp critical(kg_model_convert)
            {
                status = s;
                *err = local;
            }
        }
    }
    return status;
}

enum { PIECE_ELEMENTS = 1 << 22 };

static int64_t piece_of(int64_t elements)
{
    return elements < PIECE_ELEMENTS ? elements : PIECE_ELEMENTS;
}

/* Reads elements [i, i+n) of p as fp32. */
static kg_status read_piece(float *piece, const struct kg_st_tensor *t,
                            enum kg_dtype dtype, const struct kg_param *p, int64_t i,
                            int64_t n, struct kg_err *err)
{
    return convert(piece, KG_F32, t, dtype, p->file_row * p->cols + i, n, err);
}

/* Reads p as fp32 into `to`, in backend memory.   piece: (piece_of its elements) */
static kg_status put_param(const struct kg_backend *be, float *to,
                           const struct kg_st_set *set, const struct kg_param *p,
                           float *piece, struct kg_err *err)
{
    const int64_t total = kg_param_count(p);
    const struct kg_st_tensor *t = NULL;
    enum kg_dtype dtype = KG_F32;
    KG_TRY(find_tensor(&t, &dtype, set, p, err));
    for (int64_t i = 0; i < total; i += PIECE_ELEMENTS) {
        const int64_t n = piece_of(total - i);
        KG_TRY(read_piece(piece, t, dtype, p, i, n, err));
        KG_TRY(kg_buf_put(be, to + i, piece, (uint64_t)n * sizeof *to, err));
    }
    return KG_OK;
}

/* Reads the part of p that is in this rank's shard of the master weights. */
static kg_status put_trained(struct kg_model *m, const struct kg_st_set *set,
                             const struct kg_param *p, float *piece, struct kg_err *err)
{
    const struct kg_cut own = kg_cut_within(m->cut, p->offset, kg_param_count(p));
    const struct kg_st_tensor *t = NULL;
    enum kg_dtype dtype = KG_F32;
    KG_TRY(find_tensor(&t, &dtype, set, p, err));
    for (int64_t i = 0; i < own.n; i += PIECE_ELEMENTS) {
        const int64_t n = piece_of(own.n - i), at = own.first + i;
        KG_TRY(read_piece(piece, t, dtype, p, at - p->offset, n, err));
        KG_TRY(kg_model_put_master(m, at, piece, n, err));
    }
    return KG_OK;
}

static kg_status put_master(struct kg_model *m, const struct kg_st_set *set, float *piece,
                            struct kg_err *err)
{
    for (size_t i = 0; i < m->n_base; i++)
        KG_TRY(put_trained(m, set, &m->params[i], piece, err));
    return KG_OK;
}

/* Calls `put` with a piece for the largest parameter, or vector if not `products`. */
static kg_status
with_piece(struct kg_model *m, const struct kg_st_set *set, bool products,
           kg_status (*put)(struct kg_model *m, const struct kg_st_set *set, float *piece,
                            struct kg_err *err),
           struct kg_err *err)
{
    int64_t most = 0;
    for (size_t i = 0; i < m->n_base; i++)
        if ((products || !m->params[i].is_product) &&
            kg_param_count(&m->params[i]) > most)
            most = kg_param_count(&m->params[i]);
    float *piece = kg_mem_calloc((size_t)piece_of(most), sizeof *piece,
                                 "a piece of a checkpoint", err);
    const kg_status status = piece ? put(m, set, piece, err) : KG_ENOMEM;
    kg_mem_free(piece);
    return status;
}

kg_status kg_tensor_find(enum kg_dtype *dtype, const struct kg_st_set *set,
                         const struct kg_param *p, struct kg_err *err)
{
    const struct kg_st_tensor *t;
    return find_tensor(&t, dtype, set, p, err);
}

kg_status kg_tensor_read(float *to, const struct kg_st_tensor *t, int64_t first,
                         int64_t n, struct kg_err *err)
{
    enum kg_dtype dtype;
    KG_TRY(file_dtype(&dtype, t, err));
    return convert(to, KG_F32, t, dtype, first, n, err);
}

/* ---- inference ---- */
/* Starts reading the pages of a mapped tensor; a failure only costs time later. */
static void read_ahead(const struct kg_st_tensor *t)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (uintptr_t)t->data / page * page;
    (void)madvise((void *)first, (uintptr_t)t->data + t->bytes - first, MADV_WILLNEED);
}

/* A tensor of the file while it is packed. */
struct source {
    const struct kg_st_tensor *t;
    enum kg_dtype dtype;
    /* (PIECE_ELEMENTS or one panel of rows) owned: in ct, if it must be converted first;
     * and in the backend's memory, if that is not host memory. Else NULL */
    void *piece;
    void *there;
    int64_t rows; /* of a piece, whole panels */
};

static kg_status source_init(struct source *s, const struct kg_model *m,
                             const struct kg_st_set *set, const struct kg_param *p,
                             struct kg_err *err)
{
    *s = (struct source){0};
    KG_TRY(find_tensor(&s->t, &s->dtype, set, p, err));
    read_ahead(s->t);
    const int64_t fit = PIECE_ELEMENTS / p->cols / KG_PANEL * KG_PANEL;
    s->rows = fit > KG_PANEL ? fit : KG_PANEL;
    s->rows = s->rows < p->rows ? s->rows : p->rows;
    const size_t align = kg_dtype_traits(s->dtype)->bytes;
    if (is_plain(s->t) && (s->dtype == KG_F32 || s->dtype == KG_BF16) &&
        (uintptr_t)s->t->data % align == 0)
        return KG_OK;
    return kg_mem_new(&s->piece, (size_t)(s->rows * p->cols),
                      kg_dtype_traits(m->ct)->bytes, "a piece of a checkpoint", err);
}

/* Makes a host piece readable for a backend: in place, or by a copy to s->there. */
static kg_status lend(struct kg_mat *from, struct source *s, const struct kg_backend *be,
                      struct kg_err *err)
{
    const uint64_t row_bytes = (uint64_t)from->cols * kg_dtype_traits(from->dtype)->bytes;
    if (be->host_memory)
        return KG_OK;
    if (!s->there)
        s->there = kg_buf_alloc(be, (uint64_t)s->rows * row_bytes,
                                "a piece of a checkpoint", err);
    if (!s->there)
        return err->code;
    KG_TRY(kg_buf_put(be, s->there, from->data, (uint64_t)from->rows * row_bytes, err));
    from->data = s->there;
    return KG_OK;
}

static kg_status pack_piece(const struct kg_model *m, struct source *s,
                            const struct kg_param *p, int64_t row, struct kg_err *err)
{
    const int64_t rows = p->rows - row < s->rows ? p->rows - row : s->rows;
    const struct kg_stored to = kg_param_stored(m, p);
    const size_t row_bytes = s->t->bytes / (size_t)(value_count(s->t) / p->cols);
    char *data = (char *)(uintptr_t)s->t->data +
                 (size_t)(p->file_row + row) * row_bytes; /* not written */
    struct kg_mat from = kg_mat(data, s->dtype, rows, p->cols);
    if (s->piece) {
        from = kg_mat(s->piece, m->ct, rows, p->cols);
        KG_TRY(convert(s->piece, m->ct, s->t, s->dtype, (p->file_row + row) * p->cols,
                       rows * p->cols, err));
    }
    kg_phase_tick();
    KG_TRY(lend(&from, s, to.backend, err));
    KG_TRY(kg_op_cast(to.backend, kg_mat_rows(to.mat, row, rows), from, err));
    kg_map_let_go(data, (size_t)rows * row_bytes);
    return KG_OK;
}

/* ---- panels of 4 and 8 bits ---- */
/* Fills one panel. Blocks of the wanted type are copied from a GGUF file; other values
 * are rounded to nearest, as in llama.cpp.   x: (cols) values, then room for their
 * blocks */
static kg_status code_panel(const struct kg_param *p, const struct kg_st_tensor *t,
                            int64_t panel, float *x, struct kg_err *err)
{
    const struct kg_quant *q = p->compute.quant;
    unsigned char *own = (unsigned char *)(x + p->cols);
    const int64_t end = (panel + 1) * KG_PANEL < p->rows ? (panel + 1) * KG_PANEL
                                                         : p->rows;

    for (int64_t r = panel * KG_PANEL; r < end; r++) {
        if (t->block == q) {
            KG_TRY(kg_coded_put(p->compute, r, data_of_row(t, p->file_row + r), err));
            continue;
        }
        KG_TRY(kg_tensor_read(x, t, (p->file_row + r) * p->cols, p->cols, err));
        KG_TRY(kg_model_code_row(p, r, x, own, err));
    }
    return KG_OK;
}

static kg_status code_panels(const struct kg_param *p, const struct kg_st_tensor *t,
                             int64_t first, int64_t end, struct kg_err *err)
{
    /* blocks are smaller than their values */
    float *x = kg_mem_calloc((size_t)p->cols * 2, sizeof *x, "a row of weights", err);
    kg_status status = x ? KG_OK : KG_ENOMEM;

    for (int64_t i = first; i < end && status == KG_OK; i++)
        status = code_panel(p, t, i, x, err);
    kg_mem_free(x);
    return status;
}

static kg_status code_param(const struct kg_param *p, const struct kg_st_tensor *t,
                            struct kg_err *err)
{
    enum { PANELS = 16 };
    const int64_t panels = (p->rows + KG_PANEL - 1) / KG_PANEL;
    kg_status status = KG_OK;

#pragma omp parallel for schedule(dynamic) if (panels > PANELS)
    for (int64_t i = 0; i < panels; i += PANELS) {
        struct kg_err mine;
        const int64_t end = i + PANELS < panels ? i + PANELS : panels;
        const kg_status got = code_panels(p, t, i, end, &mine);

        kg_phase_tick();
        if (got != KG_OK) {
#pragma omp critical(kg_model_convert)
            {
                status = got;
                *err = mine;
            }
        }
    }
    kg_map_let_go(t->data, t->bytes);
    return status == KG_OK ? KG_OK
                           : kg_err_prefix(err, "%s: tensor %s", t->file, t->name);
}

static kg_status pack_param(const struct kg_model *m, const struct kg_st_set *set,
                            const struct kg_param *p, struct kg_err *err)
{
    struct source s;
    if (p->compute.quant)
        return code_param(p, kg_st_find(set, p->name), err);
    kg_status status = source_init(&s, m, set, p, err);
    for (int64_t row = 0; status == KG_OK && row < p->rows; row += s.rows)
        status = pack_piece(m, &s, p, row, err);
    kg_mem_free(s.piece);
    kg_buf_free(kg_param_stored(m, p).backend, s.there);
    return status;
}

static kg_status put_vector(const struct kg_model *m, const struct kg_st_set *set,
                            const struct kg_param *p, float *piece, struct kg_err *err)
{
    KG_TRY(put_param(m->backend, p->compute.data, set, p, piece, err));
    return p->plus_one ? kg_model_put_vector(m, p, m->backend, p->compute.data, err)
                       : KG_OK;
}

static kg_status put_vectors(struct kg_model *m, const struct kg_st_set *set,
                             float *piece, struct kg_err *err)
{
    for (size_t i = 0; i < m->n_base; i++)
        if (!m->params[i].is_product)
            KG_TRY(put_vector(m, set, &m->params[i], piece, err));
    return KG_OK;
}

static kg_status load_inference(struct kg_model *m, const struct kg_st_set *set,
                                struct kg_err *err)
{
    KG_TRY(kg_model_attach_panels(m, err));
    KG_TRY(kg_model_attach_vectors(m, err));
    KG_TRY(with_piece(m, set, false, put_vectors, err));
    for (size_t i = 0; i < m->n_base; i++)
        if (m->params[i].is_product)
            KG_TRY(pack_param(m, set, &m->params[i], err));
    return KG_OK;
}

/* ---- values ---- */
static bool all_finite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return false;
    }
    return true;
}

static kg_status check_values(const struct kg_st_tensor *t, float *piece,
                              struct kg_err *err)
{
    enum kg_dtype dtype = KG_F32;
    KG_TRY(file_dtype(&dtype, t, err));
    const int64_t total = value_count(t);
    read_ahead(t);
    for (int64_t i = 0; i < total; i += CONVERT_PIECE) {
        const int64_t n = min_i64(total - i, CONVERT_PIECE);
        KG_TRY(convert_piece(piece, KG_F32, t, dtype, i, 0, n, err));
        if (!all_finite(piece, n))
            return kg_fail(err, KG_ENONFINITE,
                           "%s: tensor %s: expected finite weights, found NaN or "
                           "infinity",
                           t->file, t->name);
    }
    kg_map_let_go(t->data, t->bytes);
    return KG_OK;
}

kg_status kg_model_check_values(const struct kg_model *m, const struct kg_st_set *set,
                                struct kg_err *err)
{
    float *piece = kg_mem_calloc(CONVERT_PIECE, sizeof *piece, "a piece of a checkpoint",
                                 err);
    kg_status status = piece ? KG_OK : KG_ENOMEM;
    for (size_t i = 0; i < m->n_base && status == KG_OK; i++) {
        const struct kg_st_tensor *t = NULL;
        enum kg_dtype dtype = KG_F32;
        status = find_tensor(&t, &dtype, set, &m->params[i], err);
        if (status == KG_OK)
            status = check_values(t, piece, err);
    }
    kg_mem_free(piece);
    return status;
}

/* ---- opening ---- */
static kg_status load_weights(struct kg_model *m, const struct kg_st_set *set,
                              const struct kg_model_opts *opts, struct kg_err *err)
{
    if (m->lora) {
        /* the base as for inference, then the adapters */
        if (opts->trainable)
            KG_TRY(kg_model_check_values(m, set, err));
        KG_TRY(load_inference(m, set, err));
        KG_TRY(kg_model_attach_master(m, err));
        return opts->adapter ? kg_lora_load(m, opts->adapter, err)
                             : kg_lora_init(m, opts->seed, err);
    }
    if (!opts->trainable)
        return load_inference(m, set, err);
    KG_TRY(kg_model_attach_slabs(m, err));
    KG_TRY(with_piece(m, set, true, put_master, err));
    return kg_model_refresh(m, err);
}

static kg_status load(struct kg_model *m, const char *dir,
                      const struct kg_model_opts *opts, struct kg_err *err)
{
    struct kg_model_priv *priv = m->priv;
    m->dir = kg_mem_strdup(dir, err);
    if (!m->dir)
        return KG_ENOMEM;
    KG_TRY(kg_model_open_files(&priv->set, m, dir, err));
    /* check every tensor before memory of the model's size is allocated */
    for (size_t i = 0; i < m->n_base; i++) {
        const struct kg_st_tensor *t = NULL;
        enum kg_dtype dtype = KG_F32;
        KG_TRY(find_tensor(&t, &dtype, priv->set, &m->params[i], err));
    }
    KG_TRY(kg_model_check_others(m, priv->set, err));
    if (m->lora)
        m->base_hash = kg_lora_base_hash(m, priv->set);
    KG_TRY(load_weights(m, priv->set, opts, err));
    kg_st_close(priv->set);
    priv->set = NULL;
    return KG_OK;
}

kg_status kg_model_open(struct kg_model **out, const char *dir,
                        const struct kg_model_opts *opts, struct kg_err *err)
{
    struct kg_model_config config;
    struct kg_model_opts own = *opts;
    struct kg_model *m = NULL;
    *out = NULL;
    own.source = dir;
    KG_TRY(kg_model_config_open(&config, dir, &opts->ignore, err));
    KG_TRY(kg_model_outline(&m, &config, &own, err));
    if (config.rope_positions > config.max_positions)
        kg_log_warn(
            "%s: longrope: at most %d tokens per sequence, not max_position_embeddings "
            "%d: longer ones would need the long factors, also for their earlier tokens",
            dir, (int)config.max_positions, (int)config.rope_positions);
    const int phase = kg_phase_begin(0, NULL, "loading %s", dir);
    const kg_status status = load(m, dir, opts, err);
    kg_phase_end(phase);
    if (status != KG_OK) {
        kg_model_free(m);
        return strstr(err->message, dir) ? status : kg_err_prefix(err, "%s", dir);
    }
    if (m->base_dtype)
        kg_model_say_types(m);
    *out = m;
    return KG_OK;
}
