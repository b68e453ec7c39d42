/* The adapters of a model: which weights have one, their first values, their files, and
 * what they add to a weight.
 *
 * It knows neither how they are applied (linear.c) nor adapter_config.json
 * (lora_config.c).
 *
 * The one idea: A and B are parameters like any other, behind those of the checkpoint,
 * which lose their places in the slabs. So gradients, moments, averages and checkpoints
 * of a run are those of the adapters without a word about it elsewhere.
 */
#include "model/lora.h"

#include "base/file.h"
#include "base/rng.h"
#include "model/model_internal.h"

#include <stdio.h>
#include <string.h>

static const char weight_suffix[] = ".weight";

/* ---- targets ---- */

/* "model.layers.3.self_attn.q_proj.weight": q_proj, and *n of it; NULL: no layer's */
static const char *module_of(size_t *n, const struct kg_param *p)
{
    const size_t len = strlen(p->name), end = len - (sizeof weight_suffix - 1);
    size_t begin = end;

    if (!p->is_product || strncmp(p->name, "model.layers.", 13) != 0)
        return NULL;
    while (p->name[begin - 1] != '.')
        begin--;
    *n = end - begin;
    return p->name + begin;
}

/* Whether p is the matrix of a module of this name, or of one whose name ends in it
 * behind a dot. */
static bool is_module(const struct kg_param *p, const char *name)
{
    size_t n = 0;
    const char *module = module_of(&n, p);
    const size_t len = strlen(name);

    if (!module || len > (size_t)(module + n - p->name))
        return false;
    const char *begin = module + n - len;
    return memcmp(begin, name, len) == 0 && (begin == p->name || begin[-1] == '.');
}

static bool is_target(const struct kg_lora *l, const struct kg_param *p)
{
    for (int i = 0; i < l->n_targets; i++)
        if (is_module(p, l->target[i]))
            return true;
    return false;
}

enum { MAX_MODULES = 32 };

/* Names of the layers' linear modules, once each. */
static size_t list_modules(char names[MAX_MODULES][KG_LORA_NAME],
                           const char *list[MAX_MODULES], const struct kg_model *m)
{
    size_t count = 0;

    for (size_t i = 0; i < m->n_base && count < MAX_MODULES; i++) {
        size_t n = 0, at = 0;
        const char *module = module_of(&n, &m->params[i]);

        while (module && at < count && !is_module(&m->params[i], names[at]))
            at++;
        if (!module || at < count)
            continue;
        snprintf(names[count], KG_LORA_NAME, "%.*s", (int)n, module);
        list[count] = names[count];
        count++;
    }
    return count;
}

static kg_status check_target(const struct kg_model *m, const char *name,
                              const char *const *list, size_t n, struct kg_err *err)
{
    const char *nearest = kg_str_nearest(name, list, n, sizeof *list);

    for (size_t i = 0; i < m->n_base; i++)
        if (is_module(&m->params[i], name))
            return KG_OK;
    if (nearest)
        return kg_fail(err, KG_EINVAL,
                       "adapter's targets: no layer has a matrix %s; did you mean %s?",
                       name, nearest);
    return kg_str_unknown(KG_EINVAL, "adapter's targets", name, list, n, sizeof *list,
                          err);
}

/* Every target is some layer's; "every one" becomes their names. */
static kg_status settle_targets(struct kg_model *m, struct kg_err *err)
{
    char names[MAX_MODULES][KG_LORA_NAME];
    const char *list[MAX_MODULES];
    const size_t n = list_modules(names, list, m);
    const bool all = m->lora.n_targets == 0;

    for (size_t i = 0; m->lora.n_targets < (int)n && all; i++)
        KG_TRY(kg_lora_add_target(&m->lora, list[i], "adapter's targets", err));
    for (int i = 0; i < m->lora.n_targets; i++)
        KG_TRY(check_target(m, m->lora.target[i], list, n, err));
    return KG_OK;
}

kg_status kg_lora_add_target(struct kg_lora *l, const char *name, const char *what,
                             struct kg_err *err)
{
    const size_t len = strlen(name);

    if (len == 0 || len >= KG_LORA_NAME)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected names of 1 to %d bytes, found '%.60s'", what,
                       KG_LORA_NAME - 1, name);
    for (int i = 0; i < l->n_targets; i++)
        if (strcmp(l->target[i], name) == 0)
            return kg_fail(err, KG_EINVAL, "%s: expected each name once, found %s twice",
                           what, name);
    if (l->n_targets == KG_LORA_TARGETS)
        return kg_fail(err, KG_EINVAL, "%s: expected at most %d names, found more", what,
                       KG_LORA_TARGETS);
    memcpy(l->target[l->n_targets++], name, len + 1);
    return KG_OK;
}

/* ---- the list ---- */

/* "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight" */
static kg_status add(struct kg_model *m, struct kg_param **out, const struct kg_param *w,
                     char side, char **name, struct kg_err *err)
{
    const int stem = (int)(strlen(w->name) - (sizeof weight_suffix - 1));
    const int64_t r = m->lora.rank;
    struct kg_param *p = *out = &m->params[m->n_params++];

    snprintf(*name, KG_NAME_BYTES, "base_model.model.%.*s.lora_%c%s", stem, w->name, side,
             weight_suffix);
    *p = (struct kg_param){.name = *name,
                           .rows = side == 'A' ? r : w->rows,
                           .cols = side == 'A' ? w->cols : r,
                           .n_dims = 2,
                           .is_product = true};
    *name += KG_NAME_BYTES;
    return kg_param_place(m, p, err);
}

/* Beside parts of one tensor stand parts of one B, and one A, which all of them read. */
static bool shares_a(const struct kg_param *w) { return w->file_row > 0; }

static kg_status add_pair(struct kg_model *m, struct kg_adapter *c, struct kg_param *w,
                          char **name, struct kg_err *err)
{
    if (shares_a(w))
        c->a = w[-1].adapter->a;
    else
        KG_TRY(add(m, &c->a, w, 'A', name, err));
    KG_TRY(add(m, &c->b, w, 'B', name, err));
    kg_param_join(m, c->b);
    w->adapter = c;
    return KG_OK;
}

/* Beyond the smaller side of a tensor a rank adds nothing that a lower one had not. A
 * gate of one row is a target among others, and has their rank. */
static kg_status check_rank(const struct kg_model *m, const struct kg_param *w,
                            struct kg_err *err)
{
    const int64_t rows = w->file_rows, least = rows < w->cols ? rows : w->cols;

    if (m->lora.rank <= least || rows == 1)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "adapter's rank: expected at most %lld, the smaller side of %s "
                   "[%lld, %lld], found %d",
                   (long long)least, w->name, (long long)rows, (long long)w->cols,
                   (int)m->lora.rank);
}

/* Experts of a layer are computed together: a matrix of one has an adapter if that of the
 * others has. Parameters of one expert stand behind those of the one before. */
static kg_status check_experts(const struct kg_model *m, struct kg_err *err)
{
    enum { MATRICES = 3 };

    for (int32_t l = 0; l < m->config.layers; l++) {
        const struct kg_param *first = m->layers[l].egate;

        for (int64_t i = MATRICES; first && i < MATRICES * m->config.experts.n; i++)
            if (!first[i].adapter != !first[i % MATRICES].adapter)
                return kg_fail(err, KG_EUNSUPPORTED,
                               "adapter's targets: expected each expert's matrix of a "
                               "layer or none, found %s%s",
                               first[i].name,
                               first[i].adapter ? " alone" : " without an adapter");
    }
    return KG_OK;
}

kg_status kg_lora_list(struct kg_model *m, char *name, struct kg_err *err)
{
    struct kg_adapter *next = ((struct kg_model_priv *)m->priv)->adapters;

    KG_TRY(settle_targets(m, err));
    m->n_elements = 0;
    for (size_t i = 0; i < m->n_base; i++)
        m->params[i].offset = -1;
    for (size_t i = 0; i < m->n_base; i++) {
        struct kg_param *w = &m->params[i];

        if (!is_target(&m->lora, w))
            continue;
        KG_TRY(check_rank(m, w, err));
        KG_TRY(add_pair(m, next++, w, &name, err));
    }
    return check_experts(m, err);
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

/* Parameters stand as the forward meets them, a layer's router behind its attention. */
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

/* Uniform in +-1/sqrt(in), element e by word e % 4 of the counter (parameter, e / 4), as
 * torch.nn.init.kaiming_uniform_(a=sqrt(5)) has it in distribution. */
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

static kg_status load_param(struct kg_model *m, const struct kg_st_set *set,
                            const struct kg_param *p, float *piece, struct kg_err *err)
{
    const struct kg_st_tensor *t = kg_st_find(set, p->name);
    const int64_t total = kg_param_count(p);
    enum kg_dtype dtype;

    if (!t)
        return kg_fail(err, KG_ENOTFOUND, "tensor %s is missing from the adapter",
                       p->name);
    KG_TRY(kg_param_check(&dtype, p, t, err));
    for (int64_t i = 0; i < total; i += PIECE) {
        const int64_t n = total - i < PIECE ? total - i : PIECE;
        const unsigned char *from = t->data + (size_t)(p->file_row * p->cols + i) *
                                                  kg_dtype_traits(dtype)->bytes;

        KG_TRY(kg_dtype_convert(piece, KG_F32, from, dtype, (size_t)n, err));
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
                           "%s: tensor %s: none of adapter_config.json's targets in the "
                           "model at %.200s",
                           t->file, t->name, m->dir);
    }
    return KG_OK;
}

static kg_status load_set(struct kg_model *m, const struct kg_st_set *set,
                          struct kg_err *err)
{
    float *piece = kg_mem_calloc(PIECE, sizeof *piece, "a piece of an adapter", err);
    kg_status status = piece ? check_no_others(m, set, err) : KG_ENOMEM;

    for (size_t i = m->n_base; i < m->n_params && status == KG_OK; i++)
        status = load_param(m, set, &m->params[i], piece, err);
    kg_mem_free(piece);
    return status;
}

kg_status kg_lora_load(struct kg_model *m, const char *dir, struct kg_err *err)
{
    struct kg_st_set *set;
    kg_status status;

    KG_TRY(kg_lora_check_base(m, dir, err));
    KG_TRY(kg_st_open_file(&set, kg_path_in(dir, "adapter_model.safetensors").text, err));
    status = load_set(m, set, err);
    kg_st_close(set);
    if (status != KG_OK)
        return strstr(err->message, dir) ? status : kg_err_prefix(err, "%s", dir);
    return kg_model_refresh(m, err);
}

/* ---- merging ---- */

/* A, and of B the rows [row, row+n), on the host. */
struct pair {
    float *a; /* (r, cols) owned */
    float *b; /* (n, r) in the same block */
};

static kg_status read_pair(struct pair *out, const struct kg_model *m,
                           const struct kg_param *p, int64_t row, int64_t n,
                           struct kg_err *err)
{
    const int64_t r = m->lora.rank, count = r * p->cols;

    out->a = kg_mem_calloc((size_t)(count + n * r), sizeof *out->a, "an adapter", err);
    if (!out->a)
        return KG_ENOMEM;
    out->b = out->a + count;
    KG_TRY(kg_slab_read(out->a, &m->master, p->adapter->a->offset, count, err));
    return kg_slab_read(out->b, &m->master, p->adapter->b->offset + row * r, n * r, err);
}

/* w[j] += s sum_k b[k] a[k,first+j], j < n: a row's sum in order of k from 0, in fp32 */
static void add_row(float *w, float *sum, const float *b, const float *a, int64_t n,
                    int64_t stride, const struct kg_lora *l)
{
    const float s = kg_lora_scale(l);

    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int32_t k = 0; k < l->rank; k++)
        for (int64_t j = 0; j < n; j++)
            sum[j] += b[k] * a[k * stride + j];
    for (int64_t j = 0; j < n; j++)
        w[j] += s * sum[j];
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

        add_row(w + (i - first), sum, c.b + (at - row) * m->lora.rank, c.a + col, count,
                p->cols, &m->lora);
        i += count;
    }
    kg_mem_free(c.a);
    kg_mem_free(sum);
    return status;
}
