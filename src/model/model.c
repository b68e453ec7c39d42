/* The parameters of a model and their lifetimes: list, create, clone, refresh, free.
 *
 * It knows no files (load.c, save.c) and no mathematics (forward.c, backward.c).
 *
 * The one idea: the tensors of every architecture are rows of one table. A row says how
 * the tensor is called in a HuggingFace checkpoint, which dimensions it has, when it
 * exists, and where struct kg_layer_params keeps the pointer to it. Everything else walks
 * the list that the table makes.
 */
#include "model/model_internal.h"

#include "base/rng.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- the table ---- */
enum dim { DIM_ONE, DIM_HIDDEN, DIM_FFN, DIM_QUERY, DIM_KEY, DIM_HEAD, DIM_VOCAB };
enum presence { ALWAYS, WITH_BIAS, WITH_QK_NORM };

struct param_row {
    const char *suffix; /* after "model.layers.N." */
    enum dim rows;      /* DIM_ONE: a vector */
    enum dim cols;
    enum presence when;
    size_t slot; /* offset in struct kg_layer_params */
};

#define SLOT(field) offsetof(struct kg_layer_params, field)
static const struct param_row layer_rows[] = {
    {"self_attn.q_proj.weight", DIM_QUERY, DIM_HIDDEN, ALWAYS, SLOT(wq)},
    {"self_attn.q_proj.bias", DIM_ONE, DIM_QUERY, WITH_BIAS, SLOT(bq)},
    {"self_attn.k_proj.weight", DIM_KEY, DIM_HIDDEN, ALWAYS, SLOT(wk)},
    {"self_attn.k_proj.bias", DIM_ONE, DIM_KEY, WITH_BIAS, SLOT(bk)},
    {"self_attn.v_proj.weight", DIM_KEY, DIM_HIDDEN, ALWAYS, SLOT(wv)},
    {"self_attn.v_proj.bias", DIM_ONE, DIM_KEY, WITH_BIAS, SLOT(bv)},
    {"self_attn.o_proj.weight", DIM_HIDDEN, DIM_QUERY, ALWAYS, SLOT(wo)},
    {"self_attn.q_norm.weight", DIM_ONE, DIM_HEAD, WITH_QK_NORM, SLOT(qnorm)},
    {"self_attn.k_norm.weight", DIM_ONE, DIM_HEAD, WITH_QK_NORM, SLOT(knorm)},
    {"mlp.gate_proj.weight", DIM_FFN, DIM_HIDDEN, ALWAYS, SLOT(wgate)},
    {"mlp.up_proj.weight", DIM_FFN, DIM_HIDDEN, ALWAYS, SLOT(wup)},
    {"mlp.down_proj.weight", DIM_HIDDEN, DIM_FFN, ALWAYS, SLOT(wdown)},
    {"input_layernorm.weight", DIM_ONE, DIM_HIDDEN, ALWAYS, SLOT(norm1)},
    {"post_attention_layernorm.weight", DIM_ONE, DIM_HIDDEN, ALWAYS, SLOT(norm2)},
};
enum {
    LAYER_ROWS = sizeof layer_rows / sizeof *layer_rows,
    OUTER_PARAMS = 3, /* embedding, final norm, head */
    NAME_BYTES = 80,
};

static int64_t dim_size(const struct kg_model_config *c, enum dim d)
{
    switch (d) {
    case DIM_ONE:
        return 1;
    case DIM_HIDDEN:
        return c->hidden;
    case DIM_FFN:
        return c->ffn;
    case DIM_QUERY:
        return (int64_t)c->heads * c->head_dim;
    case DIM_KEY:
        return (int64_t)c->kv_heads * c->head_dim;
    case DIM_HEAD:
        return c->head_dim;
    case DIM_VOCAB:
        return c->vocab;
    }
    return 0;
}

static bool is_present(const struct kg_model_config *c, enum presence when)
{
    return when == ALWAYS || (when == WITH_BIAS && c->qkv_bias) ||
           (when == WITH_QK_NORM && c->arch->qk_norm);
}

/* ---- the list ---- */
/* Appends a parameter behind the slabs' present end.   errors: SHAPE (more elements than
 * can be counted) */
static kg_status add_param(struct kg_model *m, struct kg_param **out, const char *name,
                           enum dim rows, enum dim cols, struct kg_err *err)
{
    struct kg_param *p = &m->params[m->n_params++];
    p->name = name;
    p->rows = dim_size(&m->config, rows);
    p->cols = dim_size(&m->config, cols);
    p->n_dims = rows == DIM_ONE ? 1 : 2;
    p->is_product = rows != DIM_ONE;
    p->offset = m->n_elements;
    int64_t n = 0;
    if (__builtin_mul_overflow(p->rows, p->cols, &n) ||
        n > INT64_MAX / 64 - m->n_elements)
        return kg_fail(err, KG_ESHAPE,
                       "model has too many parameters to address (at tensor %s)", name);
    m->n_elements += (n + KG_PARAM_ALIGN - 1) / KG_PARAM_ALIGN * KG_PARAM_ALIGN;
    *out = p;
    return KG_OK;
}

static kg_status add_layer(struct kg_model *m, int32_t layer, char **name,
                           struct kg_err *err)
{
    for (size_t i = 0; i < LAYER_ROWS; i++) {
        const struct param_row *row = &layer_rows[i];
        if (!is_present(&m->config, row->when))
            continue;
        snprintf(*name, NAME_BYTES, "model.layers.%d.%s", (int)layer, row->suffix);
        struct kg_param *p = NULL;
        KG_TRY(add_param(m, &p, *name, row->rows, row->cols, err));
        char *slot = (char *)&m->layers[layer] + row->slot;
        memcpy(slot, &p, sizeof p);
        *name += NAME_BYTES;
    }
    return KG_OK;
}

/* Embedding, layers, final norm, head: HF order. */
static kg_status list_params(struct kg_model *m, struct kg_err *err)
{
    struct kg_model_priv *priv = m->priv;
    char *name = priv->names;
    KG_TRY(
        add_param(m, &m->embed, "model.embed_tokens.weight", DIM_VOCAB, DIM_HIDDEN, err));
    for (int32_t l = 0; l < m->config.layers; l++)
        KG_TRY(add_layer(m, l, &name, err));
    KG_TRY(add_param(m, &m->norm, "model.norm.weight", DIM_ONE, DIM_HIDDEN, err));
    m->head = m->embed;
    if (m->config.tied)
        return KG_OK;
    return add_param(m, &m->head, "lm_head.weight", DIM_VOCAB, DIM_HIDDEN, err);
}

static kg_status put_inv_freq(struct kg_model *m, struct kg_err *err)
{
    const int64_t n = m->config.head_dim / 2;
    const uint64_t bytes = (uint64_t)n * sizeof(float);
    float *own = kg_mem_calloc((size_t)n, sizeof *own, "rope", err);
    if (!own)
        return KG_ENOMEM;
    kg_rope_inv_freq(own, &m->config);
    m->inv_freq = kg_vec(kg_buf_alloc(m->backend, bytes, "rope", err), n);
    const kg_status status = m->inv_freq.data ? kg_buf_put(m->backend, m->inv_freq.data,
                                                           own, bytes, err)
                                              : err->code;
    kg_mem_free(own);
    return status;
}

static kg_status outline(struct kg_model *m, struct kg_err *err)
{
    const size_t layers = (size_t)m->config.layers;
    struct kg_model_priv *priv = m->priv = kg_mem_calloc(1, sizeof *priv, "model", err);
    if (!priv)
        return KG_ENOMEM;
    m->params = kg_mem_calloc(layers * LAYER_ROWS + OUTER_PARAMS, sizeof *m->params,
                              "parameters", err);
    m->layers = m->params ? kg_mem_calloc(layers, sizeof *m->layers, "layers", err)
                          : NULL;
    priv->names = m->layers ? kg_mem_calloc(layers * LAYER_ROWS, NAME_BYTES,
                                            "tensor names", err)
                            : NULL;
    if (!priv->names)
        return KG_ENOMEM;
    KG_TRY(put_inv_freq(m, err));
    return list_params(m, err);
}

kg_status kg_model_outline(struct kg_model **out, const struct kg_model_config *config,
                           const struct kg_model_opts *opts, struct kg_err *err)
{
    assert(opts->ct == KG_BF16 || opts->ct == KG_F32);
    *out = NULL;
    const struct kg_backend *be = opts->backend;
    if (!be)
        KG_TRY(kg_backend_open(&be, NULL, err));
    struct kg_model *m = kg_mem_calloc(1, sizeof *m, "model", err);
    if (!m)
        return KG_ENOMEM;
    m->config = *config;
    m->backend = be;
    m->ct = opts->ct;
    kg_status status = outline(m, err);
    if (status != KG_OK) {
        kg_model_free(m);
        return status;
    }
    *out = m;
    return KG_OK;
}

/* ---- slabs ---- */
/* What products read of p. */
static uint64_t panel_bytes(const struct kg_model *m, const struct kg_param *p)
{
    const uint64_t bytes = kg_panels_bytes(m->ct, p->rows, p->cols);
    return (bytes + KG_COMPUTE_ALIGN - 1) / KG_COMPUTE_ALIGN * KG_COMPUTE_ALIGN;
}

uint64_t kg_model_compute_bytes(const struct kg_model *m)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->n_params; i++)
        if (m->params[i].is_product)
            bytes += panel_bytes(m, &m->params[i]);
    return bytes;
}

kg_status kg_model_attach_panels(struct kg_model *m, struct kg_err *err)
{
    struct kg_model_priv *priv = m->priv;
    priv->panels = kg_mem_calloc(kg_model_compute_bytes(m), 1, "weights in panels", err);
    if (!priv->panels)
        return KG_ENOMEM;
    unsigned char *to = priv->panels;
    for (size_t i = 0; i < m->n_params; i++) {
        struct kg_param *p = &m->params[i];
        if (!p->is_product)
            continue;
        p->compute = kg_panels(to, m->ct, p->rows, p->cols);
        to += panel_bytes(m, p);
    }
    return KG_OK;
}

kg_status kg_model_attach_slabs(struct kg_model *m, struct kg_err *err)
{
    KG_TRY(kg_slab_init(&m->master, m->backend, m->n_elements, "master weights", err));
    for (size_t i = 0; i < m->n_params; i++) {
        struct kg_param *p = &m->params[i];
        p->master = m->master.data + p->offset;
        p->compute = kg_mat(p->master, KG_F32, p->rows, p->cols);
    }
    return kg_model_attach_panels(m, err);
}

kg_status kg_model_refresh(struct kg_model *m, struct kg_err *err)
{
    if (!m->master.data)
        return KG_OK; /* packed while the file was read */
    for (size_t i = 0; i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        if (!p->is_product)
            continue;
        KG_TRY(kg_op_cast(m->backend, p->compute,
                          kg_mat(p->master, KG_F32, p->rows, p->cols), err));
    }
    return KG_OK;
}

kg_status kg_param_read(void *dst, enum kg_dtype dtype, const struct kg_param *p,
                        const struct kg_slab *weights, int64_t first, int64_t n,
                        struct kg_err *err)
{
    const enum kg_dtype from = weights ? KG_F32 : p->compute.dtype;
    for (int64_t i = 0; i < n; i += KG_SLAB_PIECE) {
        float piece[KG_SLAB_PIECE]; /* or as many bf16 */
        const int64_t count = kg_slab_piece(n, i);
        if (weights)
            KG_TRY(kg_slab_read(piece, weights, p->offset + first + i, count, err));
        else
            kg_mat_read(piece, p->compute, first + i, count);
        KG_TRY(kg_dtype_convert((char *)dst + (size_t)i * kg_dtype_traits(dtype)->bytes,
                                dtype, piece, from, (size_t)count, err));
    }
    return KG_OK;
}

/* ---- fresh weights ---- */
/* w[i] = sigma z[i], z by blocks of four from the counter (parameter, block): threads
 * cannot matter. */
static void fill_normal(float *w, int64_t n, float sigma, uint64_t param, uint64_t seed)
{
    const struct kg_rng_key key = {seed, KG_RNG_INIT};
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < (n + 3) / 4; block++) {
        float z[4];
        kg_rng_normal4(z, key, param, (uint32_t)block, (uint32_t)(block >> 32));
        for (int64_t j = 0; j < 4 && block * 4 + j < n; j++)
            w[block * 4 + j] = sigma * z[j];
    }
}

static void init_param(const struct kg_model *m, size_t index, uint64_t seed)
{
    const struct kg_param *p = &m->params[index];
    if (p->is_product) {
        fill_normal(p->master, kg_param_count(p), m->config.init_range, index, seed);
        return;
    }
    const size_t len = strlen(p->name);
    const bool is_bias = len > 5 && strcmp(p->name + len - 5, ".bias") == 0;
    for (int64_t i = 0; i < p->cols; i++)
        p->master[i] = is_bias ? 0.0f : 1.0f;
}

kg_status kg_model_create(struct kg_model **out, const struct kg_model_config *config,
                          const struct kg_model_opts *opts, uint64_t seed,
                          struct kg_err *err)
{
    struct kg_model *m = NULL;
    kg_status status = KG_OK;
    *out = NULL;
    KG_TRY(kg_model_outline(&m, config, opts, err));
    KG_TRY_GOTO(out, kg_model_attach_slabs(m, err));
    for (size_t i = 0; i < m->n_params; i++)
        init_param(m, i, seed);
    KG_TRY_GOTO(out, kg_model_refresh(m, err));
    *out = m;
    return KG_OK;
out:
    kg_model_free(m);
    return status;
}

/* ---- copies ---- */
static kg_status copy_weights(struct kg_model *to, const struct kg_model *from,
                              struct kg_err *err)
{
    if (from->master.data)
        return kg_slab_copy(&to->master, &from->master, err);
    for (size_t i = 0; i < to->n_params; i++) {
        const struct kg_param *p = &from->params[i];
        KG_TRY(kg_param_read(to->params[i].master, KG_F32, p, NULL, 0, kg_param_count(p),
                             err));
    }
    return KG_OK;
}

kg_status kg_model_clone(struct kg_model **out, const struct kg_model *src,
                         enum kg_dtype ct, struct kg_err *err)
{
    const struct kg_model_opts opts = {src->backend, ct, true};
    struct kg_model *m = NULL;
    kg_status status = KG_OK;
    *out = NULL;
    KG_TRY(kg_model_outline(&m, &src->config, &opts, err));
    if (src->dir) {
        m->dir = kg_mem_strdup(src->dir, err);
        KG_TRY_GOTO(out, m->dir ? KG_OK : KG_ENOMEM);
    }
    KG_TRY_GOTO(out, kg_model_attach_slabs(m, err));
    KG_TRY_GOTO(out, copy_weights(m, src, err));
    KG_TRY_GOTO(out, kg_model_refresh(m, err));
    *out = m;
    return KG_OK;
out:
    kg_model_free(m);
    return status;
}

void kg_model_free(struct kg_model *m)
{
    if (!m)
        return;
    struct kg_model_priv *priv = m->priv;
    if (priv) {
        kg_st_close(priv->set);
        kg_mem_free(priv->panels);
        kg_mem_free(priv->vectors);
        kg_mem_free(priv->names);
        kg_mem_free(priv);
    }
    kg_slab_release(&m->master);
    kg_mem_free(m->params);
    kg_mem_free(m->layers);
    kg_buf_free(m->backend, m->inv_freq.data);
    kg_mem_free(m->dir);
    kg_mem_free(m);
}
