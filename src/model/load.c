/* Opening a checkpoint folder: every expected tensor found, checked, and mapped or
 * converted.
 *
 * It reads safetensors through data/safetensors.h and trusts nothing that the folder
 * says: names, shapes and types are compared with what config.json implies, both ways.
 *
 * The one idea: a model for inference keeps the map and points its products straight into
 * it when the file already holds the compute dtype, so opening costs no reading; whatever
 * must change type (and every norm and bias) goes to one block of copies. A trainable
 * model converts into its master slab and lets the map go.
 */
#include "model/model_internal.h"

#include "base/file.h"
#include "base/phase.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CONVERT_PIECE = 1 << 16 /* elements */, COPY_ALIGN = 64 };

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

static kg_status check_shape(const struct kg_param *p, const struct kg_st_tensor *t,
                             struct kg_err *err)
{
    const int64_t want[2] = {p->n_dims == 1 ? p->cols : p->rows, p->cols};
    if (t->n_dims == p->n_dims &&
        memcmp(want, t->shape, (size_t)p->n_dims * sizeof *want) == 0)
        return KG_OK;
    char expected[64];
    char found[192];
    shape_text(expected, sizeof expected, p->n_dims, want);
    shape_text(found, sizeof found, t->n_dims, t->shape);
    return kg_fail(err, KG_ESHAPE,
                   "%s: tensor %s: expected shape %s by config.json, found %s", t->file,
                   p->name, expected, found);
}

static kg_status file_dtype(enum kg_dtype *dtype, const struct kg_st_tensor *t,
                            struct kg_err *err)
{
    for (int d = 0; d < KG_DTYPE_COUNT; d++) {
        if (strcmp(kg_dtype_traits((enum kg_dtype)d)->safetensors_name, t->dtype) == 0) {
            *dtype = (enum kg_dtype)d;
            return KG_OK;
        }
    }
    return kg_fail(err, KG_EDTYPE,
                   "%s: tensor %s: expected dtype BF16, F16 or F32, found %s", t->file,
                   t->name, t->dtype);
}

static kg_status find_tensor(const struct kg_st_tensor **out, enum kg_dtype *dtype,
                             const struct kg_st_set *set, const struct kg_param *p,
                             struct kg_err *err)
{
    *out = kg_st_find(set, p->name);
    if (!*out)
        return kg_fail(err, KG_ENOTFOUND, "tensor %s is missing from the checkpoint",
                       p->name);
    KG_TRY(check_shape(p, *out, err));
    return file_dtype(dtype, *out, err);
}

/* A tied checkpoint may carry the head as well, if it is the embedding byte for byte. */
static kg_status check_tied_head(const struct kg_model *m, const struct kg_st_set *set,
                                 const struct kg_st_tensor *head, struct kg_err *err)
{
    const struct kg_st_tensor *embed = kg_st_find(set, m->embed->name);
    struct kg_param want = *m->embed;
    want.name = head->name;
    KG_TRY(check_shape(&want, head, err));
    if (embed && strcmp(embed->dtype, head->dtype) == 0 && embed->bytes == head->bytes &&
        memcmp(embed->data, head->data, head->bytes) == 0)
        return KG_OK;
    return kg_fail(
        err, KG_EFORMAT,
        "%s: tensor %s: differs from %s although config.json says tie_word_embeddings",
        head->file, head->name, m->embed->name);
}

static bool is_expected(const struct kg_model *m, const char *name)
{
    for (size_t i = 0; i < m->n_params; i++) {
        if (strcmp(m->params[i].name, name) == 0)
            return true;
    }
    return false;
}

/* Old Llama checkpoints carry the rotary frequencies, which config.json determines. */
static bool is_rotary_buffer(const char *name)
{
    static const char suffix[] = "rotary_emb.inv_freq";
    const size_t len = strlen(name);
    return len >= sizeof suffix - 1 &&
           strcmp(name + len - (sizeof suffix - 1), suffix) == 0;
}

static kg_status check_no_others(const struct kg_model *m, const struct kg_st_set *set,
                                 struct kg_err *err)
{
    for (size_t i = 0; i < kg_st_count(set); i++) {
        const struct kg_st_tensor *t = kg_st_at(set, i);
        if (is_expected(m, t->name) || is_rotary_buffer(t->name))
            continue;
        if (m->config.tied && strcmp(t->name, "lm_head.weight") == 0) {
            KG_TRY(check_tied_head(m, set, t, err));
            continue;
        }
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: tensor %s: not a tensor of a %s model with this config.json",
                       t->file, t->name, m->config.arch->model_type);
    }
    return KG_OK;
}

/* ---- conversion ---- */
static kg_status convert_piece(void *dst, enum kg_dtype to, const void *src,
                               enum kg_dtype from, int64_t first, int64_t total,
                               struct kg_err *err)
{
    const int64_t n = total - first < CONVERT_PIECE ? total - first : CONVERT_PIECE;
    kg_phase_tick();
    return kg_dtype_convert((char *)dst + (size_t)first * kg_dtype_traits(to)->bytes, to,
                            (const char *)src +
                                (size_t)first * kg_dtype_traits(from)->bytes,
                            from, (size_t)n, err);
}

static kg_status convert(void *dst, enum kg_dtype to, const struct kg_st_tensor *t,
                         enum kg_dtype from, int64_t n, struct kg_err *err)
{
    kg_status status = KG_OK;
#pragma omp parallel for schedule(static) if (n > 4 * CONVERT_PIECE)
    for (int64_t i = 0; i < n; i += CONVERT_PIECE) {
        struct kg_err local;
        kg_status s = convert_piece(dst, to, t->data, from, i, n, &local);
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

static kg_status load_trainable(struct kg_model *m, const struct kg_st_set *set,
                                struct kg_err *err)
{
    for (size_t i = 0; i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        const struct kg_st_tensor *t = NULL;
        enum kg_dtype dtype = KG_F32;
        KG_TRY(find_tensor(&t, &dtype, set, p, err));
        KG_TRY(convert(p->master, KG_F32, t, dtype, kg_param_count(p), err));
    }
    return kg_model_refresh(m, err);
}

/* ---- inference ---- */
static enum kg_dtype compute_dtype(const struct kg_model *m, const struct kg_param *p)
{
    return p->is_product ? m->ct : KG_F32;
}

static bool can_map(const struct kg_st_tensor *t, enum kg_dtype have, enum kg_dtype want)
{
    return have == want && (uintptr_t)t->data % kg_dtype_traits(want)->bytes == 0;
}

/* Starts reading the pages behind a mapped tensor; a refusal only costs time later. */
static void read_ahead(const struct kg_st_tensor *t)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (uintptr_t)t->data / page * page;
    (void)madvise((void *)first, (uintptr_t)t->data + t->bytes - first, MADV_WILLNEED);
}

/* Points what can be mapped into the map; leaves data NULL elsewhere and counts the bytes
 * to copy. */
static kg_status map_params(struct kg_model *m, const struct kg_st_set *set,
                            size_t *copy_bytes, struct kg_err *err)
{
    *copy_bytes = 0;
    for (size_t i = 0; i < m->n_params; i++) {
        struct kg_param *p = &m->params[i];
        const struct kg_st_tensor *t = NULL;
        enum kg_dtype have = KG_F32;
        KG_TRY(find_tensor(&t, &have, set, p, err));
        const enum kg_dtype want = compute_dtype(m, p);
        p->compute = kg_mat(NULL, want, p->rows, p->cols);
        if (can_map(t, have, want)) {
            memcpy(&p->compute.data, &t->data,
                   sizeof t->data); /* never written: weights are const */
            read_ahead(t);
            continue;
        }
        const size_t bytes = (size_t)kg_param_count(p) * kg_dtype_traits(want)->bytes;
        *copy_bytes += (bytes + COPY_ALIGN - 1) / COPY_ALIGN * COPY_ALIGN;
    }
    return KG_OK;
}

static kg_status copy_params(struct kg_model *m, const struct kg_st_set *set,
                             unsigned char *to, struct kg_err *err)
{
    for (size_t i = 0; i < m->n_params; i++) {
        struct kg_param *p = &m->params[i];
        if (p->compute.data)
            continue;
        const struct kg_st_tensor *t = NULL;
        enum kg_dtype have = KG_F32;
        KG_TRY(find_tensor(&t, &have, set, p, err));
        const enum kg_dtype want = p->compute.dtype;
        p->compute.data = to;
        KG_TRY(convert(to, want, t, have, kg_param_count(p), err));
        const size_t bytes = (size_t)kg_param_count(p) * kg_dtype_traits(want)->bytes;
        to += (bytes + COPY_ALIGN - 1) / COPY_ALIGN * COPY_ALIGN;
    }
    return KG_OK;
}

static kg_status load_inference(struct kg_model *m, const struct kg_st_set *set,
                                struct kg_err *err)
{
    struct kg_model_priv *priv = m->priv;
    size_t copy_bytes = 0;
    KG_TRY(map_params(m, set, &copy_bytes, err));
    priv->copies = kg_mem_calloc(copy_bytes, 1, "converted weights", err);
    if (!priv->copies)
        return KG_ENOMEM;
    return copy_params(m, set, priv->copies, err);
}

/* ---- opening ---- */
/* Every tensor is checked before memory of the model's size is asked for. */
static kg_status check_tensors(const struct kg_model *m, const struct kg_st_set *set,
                               struct kg_err *err)
{
    for (size_t i = 0; i < m->n_params; i++) {
        const struct kg_st_tensor *t = NULL;
        enum kg_dtype dtype = KG_F32;
        KG_TRY(find_tensor(&t, &dtype, set, &m->params[i], err));
    }
    return check_no_others(m, set, err);
}

static kg_status load(struct kg_model *m, const char *dir,
                      const struct kg_model_opts *opts, struct kg_err *err)
{
    struct kg_model_priv *priv = m->priv;
    m->dir = kg_mem_strdup(dir, err);
    if (!m->dir)
        return KG_ENOMEM;
    KG_TRY(kg_st_open_dir(&priv->set, dir, err));
    KG_TRY(check_tensors(m, priv->set, err));
    if (!opts->trainable)
        return load_inference(m, priv->set, err);
    KG_TRY(kg_model_attach_slabs(m, err));
    KG_TRY(load_trainable(m, priv->set, err));
    kg_st_close(priv->set);
    priv->set = NULL;
    return KG_OK;
}

kg_status kg_model_open(struct kg_model **out, const char *dir,
                        const struct kg_model_opts *opts, struct kg_err *err)
{
    struct kg_model_config config;
    *out = NULL;
    KG_TRY(kg_model_config_read(&config, dir, err));
    struct kg_model *m = NULL;
    KG_TRY(kg_model_outline(&m, &config, opts, err));
    const int phase = kg_phase_begin(0, NULL, "loading %s", dir);
    const kg_status status = load(m, dir, opts, err);
    kg_phase_end(phase);
    if (status != KG_OK) {
        kg_model_free(m);
        return strstr(err->message, dir) ? status : kg_err_prefix(err, "%s", dir);
    }
    *out = m;
    return KG_OK;
}
