/* A frozen base in 4 or 8 bits: which matrices are stored in blocks, and of which type.
 *
 * Their values are decoded and rounded to bf16, so a forward and a backward have the bits
 * of a checkpoint with these values in bf16. load.c fills the panels.
 */
#include "model/model_internal.h"

#include "base/log.h"
#include "data/safetensors.h"
#include "tensor/coded.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- types ---- */
static kg_status check(const struct kg_model *m, const struct kg_model_opts *opts,
                       struct kg_err *err)
{
    if (m->ct != KG_BF16)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "base_dtype %s: expected products of bf16, found %s",
                       opts->base_dtype, kg_dtype_traits(m->ct)->name);
    if (!m->backend->coded)
        return kg_fail(
            err, KG_EUNSUPPORTED,
            "base_dtype %s: expected the CPU, found %s, which reads weights in "
            "bf16 only",
            opts->base_dtype, m->backend->name);
    return opts->trainable && !m->lora
               ? kg_fail(err, KG_EUNSUPPORTED,
                         "base_dtype %s: expected adapters on frozen weights, found "
                         "weights that are trained",
                         opts->base_dtype)
               : KG_OK;
}

static bool is_router(const struct kg_model *m, const struct kg_param *p)
{
    int32_t l = 0;
    while (l < m->config.layers && m->layers[l].router != p)
        l++;
    return l < m->config.layers;
}

/* The type that `kedge export --type` chooses; NULL: bf16. */
static const struct kg_quant *
narrowed(const struct kg_model *m, const struct kg_quant *type, const struct kg_param *p)
{
    if (is_router(m, p) || p->rows == 1)
        return NULL;
    if (p->cols % type->values == 0)
        return type;
    return type->values > 32 && p->cols % 32 == 0 ? kg_quant_named("Q8_0") : NULL;
}

static kg_status stored(const struct kg_quant **type, const struct kg_st_set *set,
                        const struct kg_param *p, struct kg_err *err)
{
    const struct kg_st_tensor *t = kg_st_find(set, p->name);

    *type = t ? t->block : NULL; /* a missing tensor is reported when it is read */
    if (!*type || (*type)->form.bits > 0)
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "%s: tensor %s: base_dtype as_stored: expected blocks of Q8_0, Q4_0, "
                   "Q4_1, Q4_K or Q6_K, found %s; base_dtype q8_0 holds them in 8 bits",
                   t->file, t->name, (*type)->name);
}

/* type: NULL: as stored in set */
static kg_status choose(struct kg_model *m, const struct kg_quant *type,
                        const struct kg_st_set *set, struct kg_err *err)
{
    size_t n = 0;

    for (size_t i = 0; i < m->n_base; i++) {
        struct kg_param *p = &m->params[i];

        if (!p->is_product)
            continue;
        if (type)
            p->compute.quant = narrowed(m, type, p);
        else
            KG_TRY(stored(&p->compute.quant, set, p, err));
        n += p->compute.quant != NULL;
    }
    return n > 0 ? KG_OK
                 : kg_fail(err, KG_EUNSUPPORTED, "base_dtype %s: expected %s, found none",
                           m->base_dtype,
                           type ? "matrices with a multiple of 32 columns"
                                : "a GGUF file with matrices in blocks of 4 to 8 bits");
}

kg_status kg_model_choose_types(struct kg_model *m, const struct kg_model_opts *opts,
                                struct kg_err *err)
{
    const struct kg_quant *type;
    struct kg_st_set *set = NULL;
    kg_status status;

    if (!opts->base_dtype || opts->base)
        return KG_OK;
    KG_TRY(check(m, opts, err));
    type = kg_quant_named(opts->base_dtype); /* NULL: as_stored */
    m->base_dtype = type ? type->name : "as_stored";
    if (!type)
        KG_TRY(kg_model_open_files(&set, m, opts->source, err));
    status = choose(m, type, set, err);
    kg_st_close(set);
    return status;
}

/* ---- rows ---- */
kg_status kg_model_code_row(const struct kg_param *p, int64_t r, const float *x,
                            unsigned char *blocks, struct kg_err *err)
{
    const struct kg_quant *q = p->compute.quant;

    for (int64_t i = 0; i < p->cols; i++)
        if (!isfinite(x[i]))
            return kg_fail(err, KG_ENONFINITE,
                           "expected finite weights, found NaN or infinity");
    for (int64_t i = 0; i < p->cols / q->values; i++)
        q->narrow(blocks + i * q->bytes, x + i * q->values);
    return kg_coded_put(p->compute, r, blocks, err);
}

/* ---- the log ---- */
/* "210 matrices in Q4_1, 1 in Q8_0, 61 vectors in fp32": appended to the line */
static void say_type(char *line, size_t bytes, const struct kg_model *m, const char *name)
{
    const size_t used = strlen(line);
    size_t n = 0;

    for (size_t i = 0; i < m->n_base; i++) {
        const struct kg_quant *q = m->params[i].compute.quant;
        const char *own = q ? q->name : m->params[i].is_product ? "bf16" : "fp32";

        n += strcmp(own, name) == 0;
    }
    if (n > 0)
        snprintf(line + used, bytes - used, "%s %zu %s%s in %s", used ? "," : "", n,
                 strcmp(name, "fp32") == 0 ? "vector" : "matri",
                 strcmp(name, "fp32") == 0 ? n == 1 ? "" : "s"
                 : n == 1                  ? "x"
                                           : "ces",
                 name);
}

void kg_model_say_types(const struct kg_model *m)
{
    static const char *const names[] = {"Q8_0", "Q6_K", "Q4_K", "Q4_1",
                                        "Q4_0", "bf16", "fp32"};
    char line[256] = "";
    uint64_t bytes = 0;

    for (size_t i = 0; i < m->n_base; i++)
        bytes += kg_mat_bytes(m->params[i].compute);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        say_type(line, sizeof line, m, names[i]);
    kg_log_info("base_dtype %s:%s; %.1f MB", m->base_dtype, line, (double)bytes / 1e6);
}
