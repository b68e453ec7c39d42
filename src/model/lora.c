/* The adapters of a model: their place in its list, their initial values, their files,
 * and what they add to a weight.
 *
 * Not here: which weights have one (lora_select.c), how they are applied (linear.c),
 * adapter_config.json (lora_config.c).
 *
 * The one idea: A and B are parameters like any other, after those of the checkpoint,
 * which lose their places in the slabs. So gradients, moments, averages and checkpoints
 * of a run cover only the adapters, without special code elsewhere.
 */
#include "model/lora.h"

#include "base/file.h"
#include "base/rng.h"
#include "model/model_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the list ---- */

/* "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight" */
static kg_status add(struct kg_model *m, struct kg_param **out, const struct kg_param *w,
                     int64_t r, char side, char **name, struct kg_err *err)
{
    struct kg_param *p = *out = &m->params[m->n_params++];

    snprintf(*name, KG_NAME_BYTES, "base_model.model.%.*s.lora_%c.weight",
             (int)kg_module_bytes(w), w->name, side);
    *p = (struct kg_param){.name = *name,
                           .rows = side == 'A' ? r : w->rows,
                           .cols = side == 'A' ? w->cols : r,
                           .n_dims = 2,
                           .is_product = true};
    *name += KG_NAME_BYTES;
    return kg_param_place(m, p, err);
}

/* Parameters that are parts of one tensor have parts of one B and share one A. */
static bool shares_a(const struct kg_param *w) { return w->file_row > 0; }

static kg_status add_pair(struct kg_model *m, struct kg_adapter *c, struct kg_param *w,
                          const struct kg_lora_choice *how, char **name,
                          struct kg_err *err)
{
    const double r = how->rank;

    if (shares_a(w))
        c->a = w[-1].adapter->a;
    else
        KG_TRY(add(m, &c->a, w, how->rank, 'A', name, err));
    KG_TRY(add(m, &c->b, w, how->rank, 'B', name, err));
    kg_param_join(m, c->b);
    c->scale = (float)(how->alpha / (m->lora->rslora ? sqrt(r) : r));
    c->rank_rule = (int16_t)how->rank_rule;
    m->most_rank = how->rank > m->most_rank ? how->rank : m->most_rank;
    w->adapter = c;
    return KG_OK;
}

/* Compares the adapters of w and v, matrices of two experts.   key: that of the targets,
 * for errors */
static kg_status check_alike(const struct kg_param *w, const struct kg_param *v,
                             const char *key, struct kg_err *err)
{
    const struct kg_adapter *a = w->adapter, *b = v->adapter;

    if (!a != !b)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: expected adapters on every expert's matrix of a layer or on "
                       "none, found %s%s",
                       key, v->name, b ? " alone" : " without an adapter");
    if (!a || (a->a->rows == b->a->rows && a->scale == b->scale))
        return KG_OK;
    return kg_fail(
        err, KG_EUNSUPPORTED,
        "adapter's ranks: expected one rank and one scale for the experts of a "
        "layer, found %lld and %g at %s, %lld and %g at %s",
        (long long)a->a->rows, (double)a->scale, w->name, (long long)b->a->rows,
        (double)b->scale, v->name);
}

/* The experts of a layer are computed together: all or none have an adapter on a matrix,
 * with one rank and scale. Parameters are ordered by expert. */
static kg_status check_experts(const struct kg_model *m, const char *key,
                               struct kg_err *err)
{
    enum { MATRICES = 3 };

    for (int32_t l = 0; l < m->config.layers; l++) {
        const struct kg_param *first = m->layers[l].egate;

        for (int64_t i = MATRICES; first && i < MATRICES * m->config.experts.n; i++)
            KG_TRY(check_alike(&first[i % MATRICES], &first[i], key, err));
    }
    return KG_OK;
}

static kg_status list_pairs(struct kg_model *m, const struct kg_lora_choice *how,
                            char *name, const char *key, struct kg_err *err)
{
    struct kg_adapter *next = ((struct kg_model_priv *)m->priv)->adapters;

    m->n_elements = 0;
    for (size_t i = 0; i < m->n_base; i++)
        m->params[i].offset = -1;
    for (size_t i = 0; i < m->n_base; i++)
        if (how[i].rank > 0)
            KG_TRY(add_pair(m, next++, &m->params[i], &how[i], &name, err));
    return check_experts(m, key, err);
}

kg_status kg_lora_list(struct kg_model *m, char *name, const char *folder,
                       struct kg_err *err)
{
    const char *key = folder ? "key 'target_modules'" : "lora.targets";
    struct kg_lora_choice *how = kg_mem_calloc(m->n_base, sizeof *how, "adapters", err);
    kg_status status = how ? kg_lora_choose(how, m, folder != NULL, err) : KG_ENOMEM;

    if (status == KG_OK)
        status = list_pairs(m, how, name, key, err);
    kg_mem_free(how);
    if (status == KG_OK || status == KG_ENOMEM || !folder)
        return status;
    return kg_err_prefix(err, "%s", kg_path_in(folder, "adapter_config.json").text);
}

bool kg_lora_on_experts(const struct kg_model *m)
{
    for (int32_t l = 0; l < m->config.layers; l++) {
        const struct kg_layer_params *w = &m->layers[l];

        if (w->egate && (w->egate->adapter || w->eup->adapter || w->edown->adapter))
            return true;
    }
    return false;
}

/* Parameters are in the order of the forward: a layer's router is after its attention. */
bool kg_model_moves_routers(const struct kg_model *m)
{
    const struct kg_param *last = NULL;

    for (int32_t l = 0; l < m->config.layers; l++)
        last = m->layers[l].router ? m->layers[l].router : last;
    for (const struct kg_param *p = m->params; last && p <= last; p++)
        if (p->offset >= 0 || p->adapter)
            return true;
    return false;
}

/* ---- values ---- */

enum { PIECE = 1 << 16 };

/* Uniform in +-bound; element e uses word e % 4 of the counter (parameter, e / 4). With
 * bound 1/sqrt(in): the distribution of torch.nn.init.kaiming_uniform_(a=sqrt(5)). */
static void fill_uniform(float *w, int64_t first, int64_t n, double bound, uint64_t param,
                         uint64_t seed)
{
    const struct kg_rng_key key = {seed, KG_RNG_INIT};

    for (int64_t i = 0; i < n; i++) {
        const int64_t block = (first + i) / 4;
        uint32_t words[4];

        kg_rng_words(words, key, param, (uint32_t)block, (uint32_t)(block >> 32));
        w[i] = (float)(bound * (words[(first + i) % 4] * 0x1p-31 - 1.0));
    }
}

static kg_status init_a(struct kg_model *m, const struct kg_param *p, uint64_t seed,
                        float *piece, struct kg_err *err)
{
    const int64_t total = kg_param_count(p);
    const double bound = 1.0 / sqrt((double)p->cols);

    for (int64_t i = 0; i < total; i += PIECE) {
        const int64_t n = total - i < PIECE ? total - i : PIECE;

        fill_uniform(piece, i, n, bound, (uint64_t)(p - m->params), seed);
        KG_TRY(kg_model_put_master(m, p->offset + i, piece, n, err));
    }
    return KG_OK;
}

kg_status kg_lora_init(struct kg_model *m, uint64_t seed, struct kg_err *err)
{
    float *piece = kg_mem_calloc(PIECE, sizeof *piece, "fresh adapters", err);
    kg_status status = piece ? kg_slab_zero(&m->master, err) : KG_ENOMEM;

    for (size_t i = 0; i < m->n_base && status == KG_OK; i++)
        if (m->params[i].adapter && !shares_a(&m->params[i]))
            status = init_a(m, m->params[i].adapter->a, seed, piece, err);
    kg_mem_free(piece);
    return status == KG_OK ? kg_model_refresh(m, err) : status;
}

/* ---- files ---- */

/* by: where the shape comes from */
static kg_status check_param(const struct kg_st_set *set, const struct kg_param *p,
                             const char *by, struct kg_err *err)
{
    const struct kg_st_tensor *t = kg_st_find(set, p->name);
    enum kg_dtype dtype;

    if (!t)
        return kg_fail(err, KG_ENOTFOUND, "tensor %s is missing from the adapter",
                       p->name);
    return kg_param_check(&dtype, p, t, by, err);
}

static kg_status check_pair(const struct kg_model *m, const struct kg_st_set *set,
                            const struct kg_adapter *c, struct kg_err *err)
{
    char by[160];

    if (c->rank_rule < 0)
        snprintf(by, sizeof by, "config.json and adapter_config.json: r is %lld",
                 (long long)c->a->rows);
    else
        snprintf(by, sizeof by,
                 "config.json and adapter_config.json: rank_pattern '%.60s' is %lld",
                 kg_lora_rule_text(m->lora, c->rank_rule), (long long)c->a->rows);
    KG_TRY(check_param(set, c->a, by, err));
    return check_param(set, c->b, by, err);
}

static kg_status check_no_others(const struct kg_model *m, const struct kg_st_set *set,
                                 struct kg_err *err)
{
    for (size_t i = 0; i < kg_st_count(set); i++) {
        const struct kg_st_tensor *t = kg_st_at(set, i);
        size_t at = m->n_base;

        while (at < m->n_params && strcmp(m->params[at].name, t->name) != 0)
            at++;
        if (at == m->n_params)
            return kg_fail(err, KG_EUNSUPPORTED,
                           "%s: tensor %s: belongs to no target of adapter_config.json "
                           "in the model at %.200s",
                           t->file, t->name, m->dir);
    }
    return KG_OK;
}

kg_status kg_lora_open(struct kg_st_set **set, const struct kg_model *m, const char *dir,
                       struct kg_err *err)
{
    KG_TRY(kg_lora_check_base(m, dir, err));
    KG_TRY(kg_st_open_file(set, kg_path_in(dir, "adapter_model.safetensors").text, err));
    kg_status status = check_no_others(m, *set, err);
    for (size_t i = 0; i < m->n_base && status == KG_OK; i++)
        if (m->params[i].adapter)
            status = check_pair(m, *set, m->params[i].adapter, err);
    if (status == KG_OK)
        return KG_OK;
    kg_st_close(*set);
    *set = NULL;
    return strstr(err->message, dir) ? status : kg_err_prefix(err, "%s", dir);
}

static kg_status load_param(struct kg_model *m, const struct kg_st_set *set,
                            const struct kg_param *p, float *piece, struct kg_err *err)
{
    const struct kg_st_tensor *t = kg_st_find(set, p->name);
    const int64_t total = kg_param_count(p);

    for (int64_t i = 0; i < total; i += PIECE) {
        const int64_t n = total - i < PIECE ? total - i : PIECE;

        KG_TRY(kg_tensor_read(piece, t, p->file_row * p->cols + i, n, err));
        for (int64_t j = 0; j < n; j++)
            if (!isfinite(piece[j]))
                return kg_fail(err, KG_ENONFINITE,
                               "%s: tensor %s: expected finite weights, found NaN or "
                               "infinity",
                               t->file, p->name);
        KG_TRY(kg_model_put_master(m, p->offset + i, piece, n, err));
    }
    return KG_OK;
}

static kg_status load_set(struct kg_model *m, const struct kg_st_set *set,
                          struct kg_err *err)
{
    float *piece = kg_mem_calloc(PIECE, sizeof *piece, "a piece of an adapter", err);
    kg_status status = piece ? KG_OK : KG_ENOMEM;

    for (size_t i = m->n_base; i < m->n_params && status == KG_OK; i++)
        status = load_param(m, set, &m->params[i], piece, err);
    kg_mem_free(piece);
    return status;
}

kg_status kg_lora_load(struct kg_model *m, const char *dir, struct kg_err *err)
{
    struct kg_st_set *set;

    KG_TRY(kg_lora_open(&set, m, dir, err));
    kg_status status = load_set(m, set, err);
    kg_st_close(set);
    if (status != KG_OK)
        return strstr(err->message, dir) ? status : kg_err_prefix(err, "%s", dir);
    return kg_model_refresh(m, err);
}

/* ---- merging ---- */

/* A, and rows [row, row+n) of B, on the host. */
struct pair {
    float *a; /* (r, cols) owned */
    float *b; /* (n, r) in the same block */
};

static kg_status read_pair(struct pair *out, const struct kg_model *m,
                           const struct kg_param *p, int64_t row, int64_t n,
                           struct kg_err *err)
{
    const int64_t r = p->adapter->a->rows, count = r * p->cols;

    KG_TRY(
        kg_mem_new(&out->a, (size_t)(count + n * r), sizeof *out->a, "an adapter", err));
    out->b = out->a + count;
    KG_TRY(kg_slab_read(out->a, &m->master, p->adapter->a->offset, count, err));
    return kg_slab_read(out->b, &m->master, p->adapter->b->offset + row * r, n * r, err);
}

/* w[j] += s sum_k b[k] a[k,first+j], j < n: a row's sum in order of k from 0, in fp32 */
static void add_row(float *w, float *sum, const float *b, const float *a, int64_t n,
                    int64_t stride, const struct kg_adapter *c)
{
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t k = 0; k < c->a->rows; k++)
        for (int64_t j = 0; j < n; j++)
            sum[j] += b[k] * a[k * stride + j];
    for (int64_t j = 0; j < n; j++)
        w[j] += c->scale * sum[j];
}

kg_status kg_lora_add(float *w, const struct kg_model *m, const struct kg_param *p,
                      int64_t first, int64_t n, struct kg_err *err)
{
    const int64_t row = first / p->cols, end = (first + n - 1) / p->cols + 1;
    float *sum = kg_mem_calloc((size_t)p->cols, sizeof *sum, "a row of weights", err);
    struct pair c = {0};
    kg_status status = sum ? read_pair(&c, m, p, row, end - row, err) : KG_ENOMEM;

    for (int64_t i = first; i < first + n && status == KG_OK;) {
        const int64_t at = i / p->cols, col = i % p->cols;
        const int64_t left = first + n - i, rest = p->cols - col;
        const int64_t count = left < rest ? left : rest;

        add_row(w + (i - first), sum, c.b + (at - row) * p->adapter->a->rows, c.a + col,
                count, p->cols, p->adapter);
        i += count;
    }
    kg_mem_free(c.a);
    kg_mem_free(sum);
    return status;
}
