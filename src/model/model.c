/* The parameters of a model and their lifetimes: list, create, clone, refresh, free.
 *
 * It knows no files (load.c, save.c) and no mathematics (forward.c, backward.c).
 *
 * The one idea: the tensors of every architecture are rows of one table (arch.c).
 * Everything else walks the list that the table makes.
 */
#include "model/model_internal.h"

#include "base/rng.h"
#include "ranks/ranks.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- the list ---- */
enum { OUTER_PARAMS = 3 /* embedding, final norm, head */ };

static int64_t dim_size(const struct kg_model_config *c, enum kg_dim d)
{
    switch (d) {
    case KG_DIM_ONE:
        return 1;
    case KG_DIM_HIDDEN:
        return c->hidden;
    case KG_DIM_FFN:
        return c->ffn;
    case KG_DIM_QUERY:
        return (int64_t)c->heads * c->head_dim;
    case KG_DIM_KEY:
        return (int64_t)c->kv_heads * c->head_dim;
    case KG_DIM_HEAD:
        return c->head_dim;
    case KG_DIM_VOCAB:
        return c->vocab;
    case KG_DIM_EXPERTS:
        return c->experts.n;
    case KG_DIM_EXPERT_FFN:
        return c->experts.ffn;
    case KG_DIM_SHARED_FFN:
        return c->experts.shared_ffn;
    case KG_DIM_SINGLE:
        return 1;
    }
    return 0;
}

kg_status kg_param_place(struct kg_model *m, struct kg_param *p, struct kg_err *err)
{
    int64_t n = 0;
    p->offset = m->n_elements;
    p->file_rows = p->rows;
    if (__builtin_mul_overflow(p->rows, p->cols, &n) ||
        n > INT64_MAX / 64 - m->n_elements)
        return kg_fail(
            err, KG_ESHAPE,
            "tensor %s: expected fewer than 2^57 parameters in all, found more", p->name);
    m->n_elements += (n + KG_PARAM_ALIGN - 1) / KG_PARAM_ALIGN * KG_PARAM_ALIGN;
    return KG_OK;
}

static bool is_bias(const char *name)
{
    const size_t len = strlen(name);
    return len > 5 && strcmp(name + len - 5, ".bias") == 0;
}

/* Appends a parameter at the end of the slabs.   errors: ESHAPE (too many elements) */
static kg_status add_param(struct kg_model *m, struct kg_param **out, const char *name,
                           enum kg_dim rows, enum kg_dim cols, struct kg_err *err)
{
    struct kg_param *p = &m->params[m->n_params++];
    p->name = name;
    p->rows = dim_size(&m->config, rows);
    p->cols = dim_size(&m->config, cols);
    p->n_dims = rows == KG_DIM_ONE ? 1 : 2;
    p->is_product = rows != KG_DIM_ONE;
    p->plus_one = !p->is_product && !is_bias(name) &&
                  (m->config.arch->features & KG_UNIT_NORM);
    *out = p;
    return kg_param_place(m, p, err);
}

void kg_param_join(const struct kg_model *m, struct kg_param *p)
{
    struct kg_param *q = p - 1;
    if (q < m->params || strcmp(q->name, p->name) != 0)
        return;
    p->file_row = q->file_row + q->rows;
    p->file_rows = p->file_row + p->rows;
    for (; q->file_rows != p->file_rows; q -= q->file_row > 0)
        q->file_rows = p->file_rows;
}

/* Adds one tensor of a layer: that of expert e, if each expert has one; else e is 0. */
static kg_status add_row(struct kg_model *m, int32_t layer,
                         const struct kg_tensor_row *row, int32_t e, char **name,
                         struct kg_err *err)
{
    struct kg_param *p = NULL;
    char suffix[KG_NAME_BYTES - 26];
    if (kg_arch_each_expert(row))
        kg_arch_expert_name(suffix, sizeof suffix, row, e);
    snprintf(*name, KG_NAME_BYTES, "model.layers.%d.%s", (int)layer,
             kg_arch_each_expert(row) ? suffix : row->suffix);
    KG_TRY(add_param(m, &p, *name, row->rows, row->cols, err));
    kg_param_join(m, p);
    *name += KG_NAME_BYTES;
    if (e == 0)
        memcpy((char *)&m->layers[layer] + row->slot, &p, sizeof p);
    return KG_OK;
}

/* Adds the tensors of rows [from, to) for every expert. */
static kg_status add_experts(struct kg_model *m, int32_t layer,
                             const struct kg_tensor_row *from,
                             const struct kg_tensor_row *to, char **name,
                             struct kg_err *err)
{
    for (int32_t e = 0; e < m->config.experts.n; e++)
        for (const struct kg_tensor_row *row = from; row < to; row++)
            KG_TRY(add_row(m, layer, row, e, name, err));
    return KG_OK;
}

static kg_status add_layer(struct kg_model *m, int32_t layer, char **name,
                           struct kg_err *err)
{
    const uint32_t features = kg_model_config_layer(&m->config, layer);
    size_t n;
    const struct kg_tensor_row *rows = kg_arch_tensors(&n);
    m->layers[layer].first = m->n_params;
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        while (kg_arch_each_expert(&rows[i]) && end < n &&
               kg_arch_each_expert(&rows[end]) && rows[end].with == rows[i].with)
            end++;
        if (rows[i].with & ~features)
            continue;
        KG_TRY(kg_arch_each_expert(&rows[i])
                   ? add_experts(m, layer, &rows[i], &rows[end], name, err)
                   : add_row(m, layer, &rows[i], 0, name, err));
    }
    m->layers[layer].n = m->n_params - m->layers[layer].first;
    assert(m->layers[layer].n <= KG_MAX_LAYER_TENSORS + 3 * (size_t)m->config.experts.n);
    return KG_OK;
}

/* Embedding, layers, final norm, head: HF order. */
static kg_status list_base(struct kg_model *m, char **name, struct kg_err *err)
{
    KG_TRY(add_param(m, &m->embed, "model.embed_tokens.weight", KG_DIM_VOCAB,
                     KG_DIM_HIDDEN, err));
    for (int32_t l = 0; l < m->config.layers; l++)
        KG_TRY(add_layer(m, l, name, err));
    KG_TRY(add_param(m, &m->norm, "model.norm.weight", KG_DIM_ONE, KG_DIM_HIDDEN, err));
    m->head = m->embed;
    if (m->config.tied)
        return KG_OK;
    return add_param(m, &m->head, "lm_head.weight", KG_DIM_VOCAB, KG_DIM_HIDDEN, err);
}

/* adapter: folder of the adapters' values, or NULL */
static kg_status list_params(struct kg_model *m, const char *adapter, struct kg_err *err)
{
    struct kg_model_priv *priv = m->priv;
    char *name = priv->names;
    KG_TRY(list_base(m, &name, err));
    m->n_base = m->n_params;
    return m->lora ? kg_lora_list(m, name, adapter, err) : KG_OK;
}

static kg_status put_inv_freq(struct kg_vec *to, const struct kg_model *m,
                              void (*fill)(float *, const struct kg_model_config *),
                              struct kg_err *err)
{
    const int64_t n = kg_rope_pairs(&m->config);
    const uint64_t bytes = (uint64_t)n * sizeof(float);
    float *own = kg_mem_calloc((size_t)n, sizeof *own, "rope", err);
    if (!own)
        return KG_ENOMEM;
    fill(own, &m->config);
    *to = kg_vec(kg_buf_alloc(m->backend, bytes, "rope", err), n);
    const kg_status status = to->data ? kg_buf_put(m->backend, to->data, own, bytes, err)
                                      : err->code;
    kg_mem_free(own);
    return status;
}

static kg_status put_rope(struct kg_model *m, struct kg_err *err)
{
    KG_TRY(put_inv_freq(&m->inv_freq, m, kg_rope_inv_freq, err));
    return m->config.rope_local_theta > 0
               ? put_inv_freq(&m->local_inv_freq, m, kg_rope_local_inv_freq, err)
               : KG_OK;
}

static kg_status outline(struct kg_model *m, const char *adapter, struct kg_err *err)
{
    const size_t layers = (size_t)m->config.layers;
    const size_t own = layers * (KG_MAX_LAYER_TENSORS + 3 * (size_t)m->config.experts.n);
    const size_t most = m->lora ? 3 * own : own; /* with A and B of each */
    struct kg_model_priv *priv = m->priv = kg_mem_calloc(1, sizeof *priv, "model", err);
    if (!priv)
        return KG_ENOMEM;
    m->params = kg_mem_calloc(most + OUTER_PARAMS, sizeof *m->params, "parameters", err);
    m->layers = m->params ? kg_mem_calloc(layers, sizeof *m->layers, "layers", err)
                          : NULL;
    priv->names = m->layers ? kg_mem_calloc(most, KG_NAME_BYTES, "tensor names", err)
                            : NULL;
    priv->adapters = priv->names
                         ? kg_mem_calloc(own, sizeof *priv->adapters, "adapters", err)
                         : NULL;
    if (!priv->adapters)
        return KG_ENOMEM;
    return list_params(m, adapter, err);
}

static kg_status check_experts(const struct kg_model *m, struct kg_err *err)
{
    const char *type = m->config.arch->model_type;
    const char *missing = kg_experts_missing(m->backend);
    if (m->config.experts.n == 0)
        return KG_OK;
    return missing
               ? kg_fail(err, KG_EUNSUPPORTED,
                         "model_type %s: backend %s has no operation %s, which models "
                         "with experts need",
                         type, m->backend->name, missing)
               : KG_OK;
}

static void cut_slabs(struct kg_model *m)
{
    m->cut = m->ranks ? kg_cut_of(m->n_elements, m->ranks->me, m->ranks->n)
                      : (struct kg_cut){0, m->n_elements};
}

static kg_status take_lora(struct kg_model *m, const struct kg_lora *l,
                           struct kg_err *err)
{
    if (!l || l->rank == 0)
        return KG_OK;
    m->lora = kg_mem_copy(l, sizeof *l, "what adapters are", err);
    return m->lora ? KG_OK : KG_ENOMEM;
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
    m->on_host = opts->on_host;
    m->whose = opts->whose ? opts->whose : "";
    m->ranks = opts->ranks && opts->ranks->n > 1 ? opts->ranks : NULL;
    kg_status status = take_lora(m, opts->lora, err);
    if (status == KG_OK)
        status = check_experts(m, err);
    if (status == KG_OK)
        status = kg_backend_host(&m->host, be, err);
    if (status == KG_OK)
        status = outline(m, opts->adapter, err);
    if (status == KG_OK)
        status = kg_model_choose_types(m, opts, err);
    if (status == KG_OK) {
        ((struct kg_model_priv *)m->priv)->shares = opts->base != NULL;
        cut_slabs(m);
    }
    if (status != KG_OK) {
        kg_model_free(m);
        return status;
    }
    *out = m;
    return KG_OK;
}

/* ---- slabs ---- */
/* p->compute, if it were at `data`. */
static struct kg_mat panels_of(const struct kg_model *m, const struct kg_param *p,
                               void *data)
{
    struct kg_mat w = kg_weights(m->backend, data, m->ct, p->rows, p->cols);
    w.quant = p->compute.quant;
    return w;
}

static uint64_t panel_bytes(const struct kg_model *m, const struct kg_param *p)
{
    const uint64_t bytes = kg_mat_bytes(panels_of(m, p, NULL));
    return (bytes + KG_COMPUTE_ALIGN - 1) / KG_COMPUTE_ALIGN * KG_COMPUTE_ALIGN;
}

/* The layer of p; -1 for embedding, final norm, head and adapters. */
static int32_t layer_of(const struct kg_model *m, const struct kg_param *p)
{
    const size_t i = (size_t)(p - m->params);
    int32_t l = m->config.layers - 1;
    if (i < m->layers[0].first || i >= m->layers[l].first + m->layers[l].n)
        return -1;
    while (i < m->layers[l].first)
        l--;
    return l;
}

/* Places `compute` of matrices [first, first+n) from base on; base NULL: only counts.
 * returns bytes */
static uint64_t place_run(const struct kg_model *m, size_t first, size_t n,
                          unsigned char *base)
{
    uint64_t used = 0;
    for (size_t i = first; i < first + n; i++) {
        struct kg_param *p = &m->params[i];
        if (!p->is_product)
            continue;
        if (base)
            p->compute = panels_of(m, p, base + used);
        used += panel_bytes(m, p);
    }
    return used;
}

/* Bytes of `compute` of the largest layer. */
static uint64_t layer_bytes(const struct kg_model *m)
{
    uint64_t most = 0;
    for (int32_t l = 0; l < m->config.layers; l++) {
        const uint64_t bytes = place_run(m, m->layers[l].first, m->layers[l].n, NULL);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* The first parameter whose `compute` is not that of a shared base. */
static size_t first_own(const struct kg_model *m)
{
    const struct kg_model_priv *priv = m->priv;
    return priv->shares ? m->n_base : 0;
}

/* As place_run, for all matrices that are not shared. Layers that a forward fetches share
 * one place. */
static uint64_t place_panels(const struct kg_model *m, unsigned char *base)
{
    struct kg_model_priv *priv = m->priv;
    const struct kg_layer_params *last = &m->layers[m->config.layers - 1];
    const size_t first = m->layers[0].first, end = last->first + last->n;
    uint64_t used = 0;
    if (priv->shares)
        return place_run(m, m->n_base, m->n_params - m->n_base, base);
    used = place_run(m, 0, first, base);
    if (m->on_host == KG_HOST_LAYERS) {
        if (base)
            priv->room = base + used;
        for (int32_t l = 0; base && l < m->config.layers; l++)
            place_run(m, m->layers[l].first, m->layers[l].n, priv->room);
        used += layer_bytes(m);
    } else {
        used += place_run(m, first, end - first, base ? base + used : NULL);
    }
    return used + place_run(m, end, m->n_params - end, base ? base + used : NULL);
}

uint64_t kg_model_compute_bytes(const struct kg_model *m)
{
    return place_panels(m, NULL);
}

int64_t kg_model_parameters(const struct kg_model *m)
{
    int64_t n = 0;
    for (size_t i = 0; i < m->n_params; i++)
        n += kg_param_count(&m->params[i]);
    return n;
}

int64_t kg_model_active_parameters(const struct kg_model *m)
{
    const struct kg_experts_config *x = &m->config.experts;
    int64_t n = kg_model_parameters(m);
    for (int32_t l = 0; l < m->config.layers; l++)
        if (m->layers[l].egate)
            n -= 3 * (int64_t)(x->n - x->k) * kg_param_count(m->layers[l].egate);
    return n;
}

static uint64_t vector_bytes(const struct kg_model *m)
{
    uint64_t floats = 0;
    for (size_t i = first_own(m); i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        floats += p->is_product ? 0 : (uint64_t)p->cols * (p->plus_one ? 2 : 1);
    }
    return floats * sizeof(float);
}

struct kg_model_memory kg_model_memory(const struct kg_model *m, bool trainable)
{
    const bool apart = m->host != m->backend; /* the host has separate memory */
    const bool on_host = apart && m->on_host != KG_HOST_NONE;
    const bool slab = trainable || m->lora;
    const uint64_t master = slab ? (uint64_t)m->cut.n * sizeof(float) : 0;
    struct kg_model_memory b = {.read.there = kg_model_compute_bytes(m)};
    *(on_host ? &b.master.host : &b.master.there) = master;
    if (!trainable || on_host || m->lora || m->norm->plus_one || m->ranks)
        b.read.there += vector_bytes(m);
    if (apart && m->on_host == KG_HOST_LAYERS)
        b.read.host = layer_bytes(m) * (uint64_t)m->config.layers;
    return b;
}

/* errors: ENOMEM, naming whose memory it is */
static void *take(const struct kg_model *m, const struct kg_backend *be, uint64_t bytes,
                  const char *what, struct kg_err *err)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s", m->whose, what);
    return kg_buf_alloc(be, bytes, name, err);
}

static kg_status attach_layers(struct kg_model *m, struct kg_err *err)
{
    struct kg_model_priv *priv = m->priv;
    priv->there = -1;
    priv->layer_bytes = layer_bytes(m);
    assert(m->host != m->backend || m->master.data);
    if (m->host == m->backend)
        return KG_OK; /* a fetch packs a layer from the master weights */
    priv->layers = take(m, m->host, priv->layer_bytes * (uint64_t)m->config.layers,
                        "weights of layers", err);
    return priv->layers ? KG_OK : err->code;
}

kg_status kg_model_attach_panels(struct kg_model *m, struct kg_err *err)
{
    struct kg_model_priv *priv = m->priv;
    if (!priv->shares)
        KG_TRY(put_rope(m, err));
    if (first_own(m) < m->n_params)
        priv->panels = take(m, m->backend, kg_model_compute_bytes(m), "weights in panels",
                            err);
    if (!priv->panels)
        return first_own(m) < m->n_params ? err->code : KG_OK;
    place_panels(m, priv->panels);
    KG_TRY(kg_op_reserve(m->backend, kg_model_product_bytes(m), err));
    return m->on_host == KG_HOST_LAYERS ? attach_layers(m, err) : KG_OK;
}

kg_status kg_model_attach_vectors(struct kg_model *m, struct kg_err *err)
{
    struct kg_model_priv *priv = m->priv;
    priv->vectors = take(m, m->backend, vector_bytes(m), "norms and biases", err);
    if (!priv->vectors)
        return err->code;
    float *to = priv->vectors;
    for (size_t i = 0; i < m->n_params; i++) {
        struct kg_param *p = &m->params[i];
        if (p->is_product)
            continue;
        p->compute = kg_mat(to, KG_F32, 1, p->cols);
        to += p->cols;
        if (p->plus_one) {
            p->as_stored = to;
            to += p->cols;
        }
    }
    return KG_OK;
}

kg_status kg_model_attach_master(struct kg_model *m, struct kg_err *err)
{
    const struct kg_backend *be = m->on_host == KG_HOST_NONE ? m->backend : m->host;
    char name[64];
    snprintf(name, sizeof name, "%smaster weights", m->whose);
    KG_TRY(kg_slab_init(&m->master, be, m->cut.n, name, err));
    for (size_t i = kg_model_first_trained(m); !m->ranks && i < m->n_params; i++)
        m->params[i].master = m->master.data + m->params[i].offset;
    return KG_OK;
}

kg_status kg_model_attach_slabs(struct kg_model *m, struct kg_err *err)
{
    assert(!m->lora);
    KG_TRY(kg_model_attach_master(m, err));
    for (size_t i = 0; i < m->n_params; i++) {
        struct kg_param *p = &m->params[i];
        p->compute = kg_mat(p->master, KG_F32, p->rows, p->cols);
    }
    if (m->master.backend != m->backend || m->norm->plus_one || m->ranks)
        KG_TRY(kg_model_attach_vectors(m, err));
    return kg_model_attach_panels(m, err);
}

kg_status kg_model_put_master(struct kg_model *m, int64_t first, const float *values,
                              int64_t n, struct kg_err *err)
{
    const struct kg_cut own = kg_cut_within(m->cut, first, n);
    return own.n > 0 ? kg_slab_write(&m->master, own.first - m->cut.first,
                                     values + (own.first - first), own.n, err)
                     : KG_OK;
}

/* ---- `compute` ---- */
struct kg_stored kg_param_stored(const struct kg_model *m, const struct kg_param *p)
{
    const struct kg_model_priv *priv = m->priv;
    const int32_t layer = priv->layers ? layer_of(m, p) : -1;
    struct kg_stored s = {m->backend, p->compute};
    if (layer < 0)
        return s;
    s.backend = m->host;
    s.mat.data = priv->layers + (uint64_t)layer * priv->layer_bytes +
                 ((unsigned char *)p->compute.data - priv->room);
    return s;
}

static struct kg_mat master_of(const struct kg_param *p)
{
    return kg_mat(p->master, KG_F32, p->rows, p->cols);
}

kg_status kg_model_fetch_layer(const struct kg_model *m, int32_t l, struct kg_err *err)
{
    struct kg_model_priv *priv = m->priv;
    if (m->on_host != KG_HOST_LAYERS || priv->there == l)
        return KG_OK;
    priv->there = -1;
    if (priv->layers)
        KG_TRY(kg_buf_put(m->backend, priv->room,
                          priv->layers + (uint64_t)l * priv->layer_bytes,
                          priv->layer_bytes, err));
    else {
        const size_t n = m->layers[l].n, first = m->layers[l].first;
        for (size_t i = first; i < first + n; i++)
            if (m->params[i].is_product)
                KG_TRY(kg_op_cast(m->backend, m->params[i].compute,
                                  master_of(&m->params[i]), err));
    }
    priv->there = l;
    return KG_OK;
}

/* Number of rows sent to the backend at once. */
static int64_t sent_rows(const struct kg_param *p)
{
    enum { SENT_ELEMENTS = 1 << 24 };
    const int64_t fit = SENT_ELEMENTS / p->cols / KG_PANEL * KG_PANEL;
    const int64_t rows = fit > KG_PANEL ? fit : KG_PANEL;
    return rows < p->rows ? rows : p->rows;
}

kg_status kg_model_send_rows(const struct kg_model *m, const struct kg_param *p,
                             int64_t row, struct kg_mat from, void *piece,
                             struct kg_err *err)
{
    const int64_t n = from.rows;
    KG_TRY(
        kg_op_cast(m->host, kg_weights(m->backend, piece, m->ct, n, p->cols), from, err));
    return kg_buf_put(m->backend, kg_mat_rows(p->compute, row, n).data, piece,
                      kg_weights_bytes(m->backend, m->ct, n, p->cols), err);
}

/* Sets n elements of a vector from `first` on.   w: as stored in a file; may change */
static kg_status put_piece(const struct kg_model *m, const struct kg_param *p,
                           int64_t first, float *w, int64_t n, struct kg_err *err)
{
    const uint64_t bytes = (uint64_t)n * sizeof *w;
    if (p->plus_one) {
        KG_TRY(kg_buf_put(m->backend, p->as_stored + first, w, bytes, err));
        for (int64_t i = 0; i < n; i++)
            w[i] += 1.0f;
    }
    return kg_buf_put(m->backend, (float *)p->compute.data + first, w, bytes, err);
}

kg_status kg_model_put_vector(const struct kg_model *m, const struct kg_param *p,
                              const struct kg_backend *be, const float *from,
                              struct kg_err *err)
{
    for (int64_t i = 0; i < p->cols; i += KG_SLAB_PIECE) {
        float piece[KG_SLAB_PIECE];
        const int64_t n = kg_slab_piece(p->cols, i);
        KG_TRY(kg_buf_get(be, piece, from + i, (uint64_t)n * sizeof *piece, err));
        KG_TRY(put_piece(m, p, i, piece, n, err));
    }
    return KG_OK;
}

static kg_status refresh_from_host(struct kg_model *m, void *piece, struct kg_err *err)
{
    for (size_t i = kg_model_first_trained(m); i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        const struct kg_stored to = kg_param_stored(m, p);
        if (!p->is_product)
            KG_TRY(kg_model_put_vector(m, p, m->host, p->master, err));
        else if (to.backend == m->host)
            KG_TRY(kg_op_cast(m->host, to.mat, master_of(p), err));
        else {
            const int64_t most = sent_rows(p);
            for (int64_t row = 0; row < p->rows; row += most) {
                const int64_t n = p->rows - row < most ? p->rows - row : most;
                KG_TRY(kg_model_send_rows(m, p, row, kg_mat_rows(master_of(p), row, n),
                                          piece, err));
            }
        }
    }
    return KG_OK;
}

static kg_status refresh_with_piece(struct kg_model *m, struct kg_err *err)
{
    uint64_t most = 0;
    for (size_t i = kg_model_first_trained(m); i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        const uint64_t bytes = kg_weights_bytes(m->backend, m->ct, sent_rows(p), p->cols);
        most = p->is_product && bytes > most ? bytes : most;
    }
    void *piece = kg_buf_alloc(m->host, most, "a piece of weights", err);
    const kg_status status = piece ? refresh_from_host(m, piece, err) : err->code;
    kg_buf_free(m->host, piece);
    return status;
}

kg_status kg_model_refresh_but(struct kg_model *m, bool rounded, struct kg_err *err)
{
    struct kg_model_priv *priv = m->priv;
    if (!m->master.data)
        return KG_OK; /* packed while the file was read */
    priv->there = -1;
    if (m->ranks)
        return kg_model_collect(m, err);
    if (m->master.backend != m->backend)
        return refresh_with_piece(m, err);
    for (size_t i = kg_model_first_trained(m); i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        if (!p->is_product && priv->vectors)
            KG_TRY(kg_model_put_vector(m, p, m->backend, p->master, err));
        /* layers on the host are packed when they are fetched */
        if (!p->is_product || (m->on_host == KG_HOST_LAYERS && layer_of(m, p) >= 0) ||
            (rounded && kg_param_is_rounded(m, p)))
            continue;
        KG_TRY(kg_op_cast(m->backend, p->compute, master_of(p), err));
    }
    return KG_OK;
}

kg_status kg_model_refresh(struct kg_model *m, struct kg_err *err)
{
    return kg_model_refresh_but(m, false, err);
}

/* Number of elements copied between host and backend at once. */
enum { PIECE = 1 << 20 };

/* own: room for KG_PANEL rows in the backend's layout, then for their elements by row */
static kg_status read_pieces(void *dst, enum kg_dtype dtype, const struct kg_backend *be,
                             struct kg_mat m, int64_t first, int64_t n, char *own,
                             struct kg_err *err)
{
    char *elements = own + kg_weights_bytes(be, m.dtype, KG_PANEL, m.cols);
    const int64_t whole = KG_PANEL * m.cols;
    for (int64_t i = 0, count; i < n; i += count) {
        const int64_t at = first + i, row = at / whole * KG_PANEL;
        const int64_t rows = m.rows - row < KG_PANEL ? m.rows - row : KG_PANEL;
        count = n - i < whole - at % whole ? n - i : whole - at % whole;
        struct kg_mat part = kg_mat_rows(m, row, rows);
        KG_TRY(kg_buf_get(be, own, part.data, kg_mat_bytes(part), err));
        part.data = own;
        kg_mat_read(elements, part, at % whole, count);
        KG_TRY(kg_dtype_convert((char *)dst + (size_t)i * kg_dtype_traits(dtype)->bytes,
                                dtype, elements, m.dtype, (size_t)count, err));
    }
    return KG_OK;
}

static kg_status read_weights(void *dst, enum kg_dtype dtype, const struct kg_backend *be,
                              struct kg_mat m, int64_t first, int64_t n,
                              struct kg_err *err)
{
    char *own = kg_mem_calloc(2, kg_weights_bytes(be, m.dtype, KG_PANEL, m.cols),
                              "a panel of weights", err);
    const kg_status status = own ? read_pieces(dst, dtype, be, m, first, n, own, err)
                                 : KG_ENOMEM;
    kg_mem_free(own);
    return status;
}

kg_status kg_param_read(void *dst, enum kg_dtype dtype, const struct kg_model *m,
                        const struct kg_param *p, const struct kg_slab *weights,
                        int64_t first, int64_t n, struct kg_err *err)
{
    const struct kg_backend *be = weights ? weights->backend : m->backend;
    const struct kg_stored stored = kg_param_stored(m, p);
    if (!weights && p->is_product)
        return read_weights(dst, dtype, stored.backend, stored.mat, first, n, err);
    const float *own = p->plus_one ? p->as_stored : p->compute.data;
    const float *from = weights ? weights->data + p->offset : own;
    for (int64_t i = 0; i < n; i += KG_SLAB_PIECE) {
        float piece[KG_SLAB_PIECE];
        const int64_t count = kg_slab_piece(n, i);
        KG_TRY(kg_buf_get(be, piece, from + first + i, (uint64_t)count * sizeof *piece,
                          err));
        KG_TRY(kg_dtype_convert((char *)dst + (size_t)i * kg_dtype_traits(dtype)->bytes,
                                dtype, piece, KG_F32, (size_t)count, err));
    }
    return KG_OK;
}

/* ---- fresh weights ---- */
/* w[i] = sigma z[first+i]. A block of four z depends only on the counter (parameter,
 * block), not on the thread. first is a multiple of 4. */
static void fill_normal(float *w, int64_t first, int64_t n, float sigma, uint64_t param,
                        uint64_t seed)
{
    const struct kg_rng_key key = {seed, KG_RNG_INIT};
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += 4) {
        const int64_t block = (first + i) / 4;
        float z[4];
        kg_rng_normal4(z, key, param, (uint32_t)block, (uint32_t)(block >> 32));
        for (int64_t j = 0; j < 4 && i + j < n; j++)
            w[i + j] = sigma * z[j];
    }
}

/* Biases begin as 0, norms as 1: as w = 0, if compute is 1 + w. */
static void fill_vector(float *w, int64_t n, const struct kg_param *p)
{
    const float first = is_bias(p->name) || p->plus_one ? 0.0f : 1.0f;
    for (int64_t i = 0; i < n; i++)
        w[i] = first;
}

/* piece: (PIECE) */
static kg_status init_param(struct kg_model *m, size_t index, uint64_t seed, float *piece,
                            struct kg_err *err)
{
    const struct kg_param *p = &m->params[index];
    const int64_t total = kg_param_count(p);
    for (int64_t i = 0; i < total; i += PIECE) {
        const int64_t n = total - i < PIECE ? total - i : PIECE;
        if (p->is_product)
            fill_normal(piece, i, n, m->config.init_range, index, seed);
        else
            fill_vector(piece, n, p);
        KG_TRY(kg_model_put_master(m, p->offset + i, piece, n, err));
    }
    return KG_OK;
}

/* init_param for a model without master weights. */
static kg_status init_frozen(struct kg_model *m, size_t index, uint64_t seed,
                             float *piece, struct kg_err *err)
{
    const struct kg_param *p = &m->params[index];
    const int64_t most = p->is_product ? KG_PANEL : p->rows, n = most * p->cols;
    if (!p->is_product) {
        fill_vector(piece, n, p);
        return put_piece(m, p, 0, piece, n, err);
    }
    for (int64_t row = 0; row < p->rows; row += most) {
        const int64_t rows = p->rows - row < most ? p->rows - row : most;
        fill_normal(piece, row * p->cols, rows * p->cols, m->config.init_range, index,
                    seed);
        if (!p->compute.quant)
            KG_TRY(kg_op_cast(m->backend, kg_mat_rows(p->compute, row, rows),
                              kg_mat(piece, KG_F32, rows, p->cols), err));
        for (int64_t r = 0; r < rows && p->compute.quant; r++)
            KG_TRY(kg_model_code_row(p, row + r, piece + r * p->cols,
                                     (unsigned char *)(piece + n), err));
    }
    return KG_OK;
}

static kg_status init_params(struct kg_model *m, uint64_t seed, struct kg_err *err)
{
    float *piece = kg_mem_calloc(PIECE, sizeof *piece, "fresh weights", err);
    kg_status status = piece ? KG_OK : KG_ENOMEM;
    for (size_t i = 0; i < m->n_params && status == KG_OK; i++)
        status = m->base_dtype ? init_frozen(m, i, seed, piece, err)
                               : init_param(m, i, seed, piece, err);
    kg_mem_free(piece);
    return status;
}

static kg_status attach_fresh(struct kg_model *m, struct kg_err *err)
{
    if (!m->base_dtype)
        return kg_model_attach_slabs(m, err);
    KG_TRY(kg_model_attach_panels(m, err));
    return kg_model_attach_vectors(m, err);
}

kg_status kg_model_create(struct kg_model **out, const struct kg_model_config *config,
                          const struct kg_model_opts *opts, uint64_t seed,
                          struct kg_err *err)
{
    struct kg_model *m = NULL;
    kg_status status = KG_OK;
    *out = NULL;
    KG_TRY(kg_model_outline(&m, config, opts, err));
    KG_TRY_GOTO(out, attach_fresh(m, err));
    KG_TRY_GOTO(out, init_params(m, seed, err));
    KG_TRY_GOTO(out, kg_model_refresh(m, err));
    *out = m;
    return KG_OK;
out:
    kg_model_free(m);
    return status;
}

/* ---- copies ---- */
/* piece: (PIECE) */
static kg_status copy_param(struct kg_model *to, const struct kg_model *from,
                            size_t index, float *piece, struct kg_err *err)
{
    const struct kg_param *p = &from->params[index];
    const int64_t total = kg_param_count(p);
    for (int64_t i = 0; i < total; i += PIECE) {
        const int64_t n = total - i < PIECE ? total - i : PIECE;
        KG_TRY(kg_param_read(piece, KG_F32, from, p, NULL, i, n, err));
        KG_TRY(kg_model_put_master(to, p->offset + i, piece, n, err));
    }
    return KG_OK;
}

static kg_status copy_weights(struct kg_model *to, const struct kg_model *from,
                              struct kg_err *err)
{
    if (from->master.data)
        return kg_slab_copy(&to->master, &from->master, err);
    float *piece = kg_mem_calloc(PIECE, sizeof *piece, "a piece of weights", err);
    kg_status status = piece ? KG_OK : KG_ENOMEM;
    for (size_t i = 0; i < to->n_params && status == KG_OK; i++)
        status = copy_param(to, from, i, piece, err);
    kg_mem_free(piece);
    return status;
}

static kg_status copy_dir(struct kg_model *to, const struct kg_model *from,
                          struct kg_err *err)
{
    if (!from->dir)
        return KG_OK;
    to->base_hash = from->base_hash;
    to->base_dtype = from->base_dtype;
    to->dir = kg_mem_strdup(from->dir, err);
    if (!to->dir)
        return KG_ENOMEM;
    return to->lora && !from->lora ? kg_lora_read_base(to, err) : KG_OK;
}

/* Lets m's base parameters use the weights of base; allocates memory for its adapters. */
static kg_status attach_shared(struct kg_model *m, const struct kg_model *base,
                               struct kg_err *err)
{
    for (size_t i = 0; i < m->n_base; i++) {
        m->params[i].compute = base->params[i].compute;
        m->params[i].as_stored = base->params[i].as_stored;
    }
    m->inv_freq = base->inv_freq;
    m->local_inv_freq = base->local_inv_freq;
    KG_TRY(kg_model_attach_panels(m, err));
    return m->lora ? kg_model_attach_master(m, err) : KG_OK;
}

static kg_status outline_shared(struct kg_model **out, const struct kg_model *base,
                                const struct kg_model_opts *opts, struct kg_err *err)
{
    struct kg_model_opts own = *opts;
    own.backend = base->backend;
    own.base = base;
    if (own.ct != base->ct)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "adapters: expected the base's dtype, %s, found %s",
                       kg_dtype_traits(base->ct)->name, kg_dtype_traits(own.ct)->name);
    assert(base->on_host != KG_HOST_LAYERS && own.on_host != KG_HOST_LAYERS);
    return kg_model_outline(out, &base->config, &own, err);
}

kg_status kg_model_share(struct kg_model **out, const struct kg_model *base,
                         const struct kg_model_opts *opts, struct kg_err *err)
{
    struct kg_model *m = NULL;
    kg_status status = KG_OK;
    *out = NULL;
    KG_TRY(outline_shared(&m, base, opts, err));
    KG_TRY_GOTO(out, copy_dir(m, base, err));
    KG_TRY_GOTO(out, attach_shared(m, base, err));
    if (m->lora)
        KG_TRY_GOTO(out, opts->adapter ? kg_lora_load(m, opts->adapter, err)
                                       : kg_lora_init(m, opts->seed, err));
    *out = m;
    return KG_OK;
out:
    kg_model_free(m);
    return status;
}

kg_status kg_model_clone(struct kg_model **out, const struct kg_model *src,
                         const struct kg_model_opts *opts, struct kg_err *err)
{
    struct kg_model_opts own = *opts;
    struct kg_model *m = NULL;
    const bool shares = src->lora != NULL;
    kg_status status = KG_OK;
    *out = NULL;
    own.backend = src->backend;
    own.ranks = src->ranks;
    own.lora = src->lora;
    KG_TRY(shares ? outline_shared(&m, src, &own, err)
                  : kg_model_outline(&m, &src->config, &own, err));
    KG_TRY_GOTO(out, copy_dir(m, src, err));
    KG_TRY_GOTO(out, shares ? attach_shared(m, src, err) : kg_model_attach_slabs(m, err));
    KG_TRY_GOTO(out, copy_weights(m, src, err));
    KG_TRY_GOTO(out, kg_model_refresh(m, err));
    *out = m;
    return KG_OK;
out:
    kg_model_free(m);
    return status;
}

kg_status kg_model_mix(struct kg_model *base, const struct kg_model *const *others,
                       int32_t n, struct kg_err *err)
{
    for (int32_t i = 0; i < n; i++) {
        assert(others[i]->n_base == base->n_base && others[i]->ct == base->ct);
        if (kg_lora_on_experts(others[i]))
            return kg_fail(err, KG_EUNSUPPORTED,
                           "adapters in a mixed batch: expected none on matrices of "
                           "experts, found some");
    }
    base->others = others;
    base->n_others = n;
    return KG_OK;
}

void kg_model_free(struct kg_model *m)
{
    if (!m)
        return;
    struct kg_model_priv *priv = m->priv;
    if (priv && !priv->shares) {
        kg_buf_free(m->backend, m->inv_freq.data);
        kg_buf_free(m->backend, m->local_inv_freq.data);
    }
    if (priv) {
        kg_st_close(priv->set);
        kg_mem_free(priv->adapters);
        kg_buf_free(m->backend, priv->panels);
        kg_buf_free(m->backend, priv->vectors);
        kg_buf_free(m->host, priv->layers);
        kg_mem_free(priv->names);
        kg_mem_free(priv);
    }
    kg_slab_release(&m->master);
    kg_mem_free(m->params);
    kg_mem_free(m->layers);
    kg_mem_free(m->dir);
    kg_mem_free(m->lora);
    kg_mem_free(m);
}
