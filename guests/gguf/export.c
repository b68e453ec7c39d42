/* Writes a GGUF file of a checkpoint, or of adapters, in llama.cpp's form.
 *
 * Tensors are copied in bands of rows and never become a model. A GGUF file contains less
 * than config.json: its architecture fixes values that config.json leaves open. So the
 * file of a model is read again before it gets its name; if a field then has another
 * value, the export is refused.
 */
#include "gguf/export.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"
#include "base/signal.h"
#include "data/source.h"
#include "gguf/gguf_write.h"
#include "model/model_internal.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum part { WEIGHT, LORA_A, LORA_B };

struct out {
    char name[KG_GGUF_NAME + 1];
    const struct kg_param *first; /* the weight; of experts, that of expert 0 */
    int32_t n;                    /* number of experts; 1 for other weights */
    enum part part;               /* the weight, or one of its LoRA factors */
    const struct kg_quant *type;
};

struct job {
    const struct kg_export_opts *opts;
    struct kg_model *m;    /* an outline; owned */
    struct kg_st_set *set; /* owned: tensors of the model, or of the adapters */
    const struct kg_gguf_arch *arch;
    const struct kg_quant *wanted; /* NULL: as stored */
    struct kg_gguf_writer w;
    struct out *outs; /* owned */
    size_t n_outs;
    float *rope[3];       /* owned: factors */
    double alpha;         /* of the file: llama.cpp's scale is alpha / rank */
    size_t fall_backs[2]; /* tensors that have these types instead of the wanted one */
};
static const char *const fall_back[2] = {"Q8_0", "F16"};

static const struct kg_param *param_of(const struct out *out, int32_t expert)
{
    const struct kg_param *w = out->first + 3 * (ptrdiff_t)expert;

    return out->part == WEIGHT ? w : out->part == LORA_A ? w->adapter->a : w->adapter->b;
}

static const struct kg_st_tensor *tensor_of(const struct job *j, const struct out *out,
                                            int32_t expert)
{
    return kg_st_find(j->set, param_of(out, expert)->name);
}

/* Whether tensors are copied byte by byte: a GGUF source has llama.cpp's layout. */
static bool is_copied(const struct job *j)
{
    return !j->wanted && !j->opts->adapter && kg_source_is_file(j->m->dir);
}

/* ---- the list ---- */

static const struct kg_quant *type_of(struct job *j, const struct kg_st_tensor *t,
                                      const struct out *out)
{
    const struct kg_quant *single = kg_quant_named("F32");
    const bool vector = t->n_dims == 1 || t->shape[0] == 1 ||
                        strstr(out->name, "ffn_gate_inp");

    if (is_copied(j))
        return t->block ? t->block : kg_quant_named(t->dtype);
    if (vector)
        return single;
    if (!j->wanted)
        return strcmp(t->dtype, "F64") == 0 || t->block ? single
                                                        : kg_quant_named(t->dtype);
    const int64_t cols = t->shape[t->n_dims - 1];

    if (cols % j->wanted->values == 0)
        return j->wanted;
    const int i = j->wanted->values == 32 || cols % 32 != 0;

    j->fall_backs[i]++;
    return kg_quant_named(fall_back[i]);
}

/* All experts of a layer are one tensor of the file, listed with expert 0. */
static bool is_further_expert(const char *name)
{
    const char *at = strstr(name, ".experts.");

    return at && strncmp(at, ".experts.0.", 11) != 0;
}

static kg_status declare(struct job *j, struct out *out, struct kg_err *err)
{
    const struct kg_st_tensor *t = tensor_of(j, out, 0);
    int64_t shape[3] = {out->n, t->shape[0], t->shape[1]};
    const bool each = out->n > 1 || strstr(out->first->name, ".experts.");
    /* the gate of a shared expert has one row, and is a vector in GGUF */
    const bool vector = t->n_dims == 1 ||
                        (out->part == WEIGHT && strstr(out->name, "ffn_gate_inp_shexp"));

    if (vector)
        shape[2] = t->n_dims == 1 ? t->shape[0] : t->shape[1];
    out->type = type_of(j, t, out);
    return kg_gguf_declare(&j->w, out->name,
                           each     ? 3
                           : vector ? 1
                                    : 2,
                           shape + (each     ? 0
                                    : vector ? 2
                                             : 1),
                           out->type, err);
}

static kg_status add(struct job *j, const struct kg_param *p, enum part part,
                     struct kg_err *err)
{
    static const char *const ends[] = {"", ".lora_a", ".lora_b"};
    struct out *out = &j->outs[j->n_outs++];
    const size_t room = sizeof out->name;

    out->first = p;
    out->n = strstr(p->name, ".experts.") ? j->m->config.experts.n : 1;
    out->part = part;
    KG_TRY(kg_gguf_name_of(out->name, p->name, j->arch, err));
    if (strlen(out->name) + strlen(ends[part]) < room)
        strcat(out->name, ends[part]);
    return declare(j, out, err);
}

static kg_status list(struct job *j, struct kg_err *err)
{
    const bool adapters = j->opts->adapter != NULL;

    KG_TRY(kg_mem_new(&j->outs, 2 * j->m->n_base, sizeof *j->outs, "tensors", err));
    for (size_t i = 0; i < j->m->n_base; i++) {
        const struct kg_param *p = &j->m->params[i];
        enum kg_dtype dtype;

        if (!adapters)
            KG_TRY(kg_tensor_find(&dtype, j->set, p, err));
        if (p->file_row > 0 || is_further_expert(p->name) || (adapters && !p->adapter))
            continue;
        if (adapters)
            KG_TRY(add(j, p, LORA_A, err));
        KG_TRY(add(j, p, adapters ? LORA_B : WEIGHT, err));
    }
    return KG_OK;
}

/* ---- values ---- */

/* The row of the checkpoint that is row r of the GGUF file: with PAIRED, GGUF interleaves
 * the two halves of each head of q and k. */
static int64_t row_of(const struct job *j, const struct out *out, int64_t r)
{
    const int64_t hd = j->m->config.head_dim, in_head = r % hd;
    const bool turned = strstr(out->name, ".attn_q.") || strstr(out->name, ".attn_k.");

    if (!turned || out->part == LORA_A || !(j->arch->flags & KG_GGUF_PAIRED))
        return r;
    return r - in_head + in_head / 2 + (in_head % 2) * (hd / 2);
}

/* Rows of a tensor, converted a band at a time. */
struct rows {
    const struct kg_st_tensor *t;
    int64_t n, cols;
    float times, plus;  /* factor; or, if not 0, summand of each value */
    float *x;           /* (BAND or one row) owned */
    unsigned char *raw; /* owned: the band as it is written */
};
enum { BAND = 1 << 20 /* values, at least one row */ };

static struct rows rows_of(const struct job *j, const struct out *out, int32_t expert)
{
    const struct kg_st_tensor *t = tensor_of(j, out, expert);
    const struct kg_adapter *c = out->first->adapter;
    const bool vector = t->n_dims == 1, one = vector && row_of(j, out, 1) == 1;
    const bool unit = j->arch->flags & KG_GGUF_NORM_1 && strstr(out->name, "norm.");

    return (struct rows){
        .t = t,
        .n = one ? 1 : t->shape[0],
        .cols = one      ? t->shape[0]
                : vector ? 1
                         : t->shape[1],
        .times = out->part == LORA_B
                     ? (float)((double)c->scale * (double)c->a->rows / j->alpha)
                     : 1,
        .plus = unit ? 1 : 0};
}

static kg_status narrow(unsigned char *raw, const struct kg_quant *q, const float *x,
                        int64_t n, struct kg_err *err)
{
    enum kg_dtype dtype = KG_F32;

    for (int64_t i = 0; i < n / q->values && q->narrow; i++)
        q->narrow(raw + i * q->bytes, x + i * q->values);
    if (q->narrow)
        return KG_OK;
    while (strcmp(kg_dtype_traits(dtype)->safetensors_name, q->name) != 0)
        dtype = (enum kg_dtype)((int)dtype + 1);
    return kg_dtype_convert(raw, dtype, x, KG_F32, (size_t)n, err);
}

/* Converts row r of the file to row i of the band. */
static kg_status convert(const struct job *j, const struct out *out, const struct rows *w,
                         int64_t r, int64_t i, struct kg_err *err)
{
    const struct kg_quant *q = out->type;
    const bool half = q->narrow || strcmp(q->name, "F16") == 0; /* F16, or F16 scales */
    const float most = half ? 65504 : FLT_MAX;
    float *x = w->x + i * w->cols;

    KG_TRY(kg_tensor_read(x, w->t, row_of(j, out, r) * w->cols, w->cols, err));
    for (int64_t k = 0; k < w->cols; k++) {
        if (!isfinite(x[k]))
            return kg_fail(err, KG_ENONFINITE,
                           "%s: tensor %s: expected finite weights, found NaN or "
                           "infinity",
                           w->t->file, w->t->name);
        x[k] = w->plus != 0 ? x[k] + w->plus : w->times * x[k];
        if (fabsf(x[k]) > most)
            return kg_fail(err, KG_EUNSUPPORTED,
                           "%s: tensor %s: expected weights of at most %g in a file of "
                           "%s, found %g",
                           w->t->file, w->t->name, (double)most, q->name, (double)x[k]);
    }
    return narrow(w->raw + i * (w->cols / q->values * q->bytes), q, x, w->cols, err);
}

static kg_status put_band(struct job *j, const struct out *out, const struct rows *w,
                          int64_t first, int64_t n, struct kg_err *err)
{
    kg_status status = KG_OK;

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        struct kg_err local;
        const kg_status s = convert(j, out, w, first + i, i, &local);

        if (s != KG_OK) {
#pragma omp critical(kg_model_export)
            {
                status = s;
                *err = local;
            }
        }
    }
    KG_TRY(status);
    return kg_gguf_put(&j->w, w->raw,
                       (size_t)(n * w->cols / out->type->values * out->type->bytes), err);
}

static kg_status put_rows(struct job *j, const struct out *out, struct rows *w,
                          struct kg_err *err)
{
    const int64_t band = w->cols < BAND ? BAND / w->cols : 1;
    kg_status status = KG_ENOMEM;

    w->x = kg_mem_calloc((size_t)(band * w->cols), sizeof *w->x, "rows", err);
    w->raw = w->x ? kg_mem_calloc((size_t)(band * w->cols), sizeof *w->x, "rows", err)
                  : NULL;
    if (w->raw)
        status = KG_OK;
    for (int64_t r = 0; r < w->n && status == KG_OK; r += band) {
        kg_phase_tick();
        if (kg_signal_stop_requested())
            status = kg_fail(err, KG_EINTERRUPTED,
                             "stopped by a signal, nothing written");
        else
            status = put_band(j, out, w, r, w->n - r < band ? w->n - r : band, err);
    }
    kg_mem_free(w->x);
    kg_mem_free(w->raw);
    return status;
}

static kg_status put_tensor(struct job *j, const struct out *out, struct kg_err *err)
{
    for (int32_t e = 0; e < out->n; e++) {
        const struct kg_st_tensor *t = tensor_of(j, out, e);
        struct rows w = rows_of(j, out, e);

        KG_TRY(is_copied(j) ? kg_gguf_put(&j->w, t->data, t->bytes, err)
                            : put_rows(j, out, &w, err));
        kg_map_let_go(t->data, t->bytes);
    }
    return kg_gguf_pad(&j->w, err);
}

/* ---- the rope ---- */

static kg_status declare_rope(struct job *j, const struct kg_json *config,
                              struct kg_err *err)
{
    const int64_t pairs = kg_rope_pairs(&j->m->config);

    for (int i = 0; i < 3; i++) {
        KG_TRY(kg_mem_new(&j->rope[i], (size_t)pairs, sizeof(float), "rope", err));
        if (kg_gguf_rope_factors(j->rope[i], i, config, pairs) > 0) {
            KG_TRY(kg_gguf_declare(&j->w, kg_gguf_rope_names[i], 1, &pairs,
                                   kg_quant_named("F32"), err));
        } else {
            kg_mem_free(j->rope[i]);
            j->rope[i] = NULL;
        }
    }
    return KG_OK;
}

/* ---- checking the written file ---- */

/* Fields that may differ: those of training, and the name of the class. */
static bool is_free(const char *key)
{
    static const char *const free[] = {"architectures", "model_type", "torch_dtype",
                                       "initializer_range", "transformers_version"};

    for (size_t i = 0; i < sizeof free / sizeof *free; i++)
        if (strcmp(free[i], key) == 0)
            return true;
    return false;
}

static bool is_near(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(a); }

static bool is_same(const struct kg_json *a, const struct kg_json *b)
{
    const size_t n = kg_json_size(a);
    const bool object = kg_json_type(a) == KG_JSON_OBJECT;
    const char *text = kg_json_text(a, NULL), *other = kg_json_text(b, NULL);

    if (kg_json_is_number(a) || kg_json_is_number(b))
        return kg_json_is_number(a) && kg_json_is_number(b) &&
               is_near(kg_json_real(a, 0), kg_json_real(b, 0));
    if (kg_json_type(a) != kg_json_type(b) || n != kg_json_size(b))
        return false;
    if (text)
        return strcmp(text, other) == 0;
    if (n == 0)
        return kg_json_bool(a, false) == kg_json_bool(b, false);
    for (size_t i = 0; i < n; i++)
        if (!is_same(object ? kg_json_value_at(a, i) : kg_json_at(a, i),
                     object ? kg_json_get(b, kg_json_key_at(a, i)) : kg_json_at(b, i)))
            return false;
    return true;
}

static kg_status compare(const struct kg_json *want, const struct kg_json *found,
                         const char *arch, struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(want); i++) {
        const char *key = kg_json_key_at(want, i);
        const struct kg_json *value = kg_json_value_at(want, i);
        struct kg_str text = {0};

        if (is_free(key) || is_same(value, kg_json_get(found, key)))
            continue;
        if (kg_json_put_value(&text, value, err) == KG_OK)
            kg_fail(
                err, KG_EUNSUPPORTED,
                "%s of config.json is %.80s, but GGUF has no key for it and its readers "
                "assume another value for %s: this model cannot be exported",
                key, kg_str_text(&text), arch);
        kg_str_release(&text);
        return err->code;
    }
    return KG_OK;
}

/* All fields of a config, including those with default values. */
static kg_status whole_config(struct kg_json_doc *doc, const struct kg_model_config *c,
                              struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status = kg_model_config_write(&text, c, "float32", NULL, err);

    if (status == KG_OK)
        status = kg_json_parse(doc, kg_str_text(&text), text.len, "config.json", err);
    kg_str_release(&text);
    return status;
}

static kg_status check_written(const struct job *j, const struct kg_json *want,
                               const char *path, struct kg_err *err)
{
    struct kg_str text = {0};
    struct kg_json_doc found = {0};
    struct kg_model_config c;
    kg_status status;

    KG_TRY_GOTO(out, kg_gguf_read(&text, path, "config.json", err));
    KG_TRY_GOTO(out, kg_model_config_parse(&c, kg_str_text(&text), text.len,
                                           "what was written", err));
    c.tied = j->m->config.tied;
    KG_TRY_GOTO(out, whole_config(&found, &c, err));
    status = compare(want, found.root, j->arch->name, err);
out:
    kg_json_release(&found);
    kg_str_release(&text);
    return status;
}

/* ---- the file ---- */

/* general.name: the last component of the path. */
static kg_status put_name(struct job *j, const char *dir, struct kg_err *err)
{
    size_t n = strlen(dir), first;

    while (n > 0 && dir[n - 1] == '/')
        n--;
    first = n;
    while (first > 0 && dir[first - 1] != '/')
        first--;
    return kg_gguf_put_text(&j->w, "general.name", dir + first, n - first, err);
}

static kg_status put_model(struct job *j, const struct kg_json *config,
                           struct kg_err *err)
{
    bool none;

    KG_TRY(kg_gguf_put_config(&j->w, j->arch, config, j->m->config.head_dim, err));
    KG_TRY(put_name(j, j->m->dir, err));
    KG_TRY(
        kg_gguf_put_tokenizer(&j->w, j->m->dir, (size_t)j->m->config.vocab, &none, err));
    if (none)
        kg_log_warn(
            "%s: GGUF has no form for this tokenizer: the file is written without one",
            j->m->dir);
    return declare_rope(j, config, err);
}

/* A file has one alpha, and llama.cpp scales each adapter by alpha / rank. Writes the
 * alpha of the first adapter; rows_of multiplies the B of the others by the ratio. */
static kg_status put_lora(struct job *j, struct kg_err *err)
{
    const char *arch = j->arch->name;

    for (size_t i = 0; i < j->m->n_base && j->alpha == 0; i++) {
        const struct kg_adapter *c = j->m->params[i].adapter;

        j->alpha = c ? (double)c->scale * (double)c->a->rows : 0;
    }
    KG_TRY(kg_gguf_put_text(&j->w, "general.architecture", arch, strlen(arch), err));
    KG_TRY(kg_gguf_put_text(&j->w, "general.type", "adapter", 7, err));
    KG_TRY(kg_gguf_put_text(&j->w, "adapter.type", "lora", 4, err));
    KG_TRY(kg_gguf_put_real(&j->w, "adapter.lora.alpha", j->alpha, err));
    return put_name(j, j->opts->adapter, err);
}

static kg_status write_file(struct job *j, const struct kg_json *config, const char *path,
                            struct kg_err *err)
{
    KG_TRY(j->opts->adapter ? put_lora(j, err) : put_model(j, config, err));
    KG_TRY(list(j, err));
    for (int i = 0; i < 2; i++)
        if (j->fall_backs[i] > 0)
            kg_log_warn("%zu tensors have rows whose length is no multiple of %d: they "
                        "are written as %s",
                        j->fall_backs[i], j->wanted->values, fall_back[i]);
    KG_TRY(kg_gguf_begin(&j->w, path, err));
    const size_t bytes = (size_t)kg_rope_pairs(&j->m->config) * sizeof(float);

    for (int i = 0; i < 3; i++) {
        if (!j->rope[i])
            continue;
        KG_TRY(kg_gguf_put(&j->w, j->rope[i], bytes, err));
        KG_TRY(kg_gguf_pad(&j->w, err));
    }
    for (size_t i = 0; i < j->n_outs; i++)
        KG_TRY(put_tensor(j, &j->outs[i], err));
    return kg_gguf_end(&j->w, err);
}

static kg_status write_named(struct job *j, const char *path, struct kg_err *err)
{
    struct kg_json_doc config = {0};
    struct kg_str work = {0};
    kg_status status;

    KG_TRY_GOTO(out, whole_config(&config, &j->m->config, err));
    KG_TRY_GOTO(out, kg_gguf_arch_of(&j->arch, j->m->config.arch->model_type, err));
    KG_TRY_GOTO(out, kg_file_remove_stale(path, err));
    KG_TRY_GOTO(out, kg_file_temporary(&work, path, err));
    status = write_file(j, config.root, work.data, err);
    kg_gguf_writer_release(&j->w); /* removes an incomplete file */
    if (status == KG_OK && !j->opts->adapter)
        status = check_written(j, config.root, work.data, err);
    if (status == KG_OK)
        status = kg_file_replace(work.data, path, err);
    else
        (void)remove(work.data);
out:
    kg_str_release(&work);
    kg_json_release(&config);
    return status;
}

static kg_status open_files(struct job *j, const char *model, struct kg_err *err)
{
    j->m->dir = kg_mem_strdup(model, err);
    if (!j->m->dir)
        return KG_ENOMEM;
    KG_TRY(kg_model_open_files(&j->set, j->m, model, err));
    if (!j->opts->adapter)
        return KG_OK;
    j->m->base_hash = kg_lora_base_hash(j->m, j->set);
    kg_st_close(j->set);
    j->set = NULL;
    return kg_lora_open(&j->set, j->m, j->opts->adapter, err);
}

kg_status kg_model_export(const char *model, const char *path,
                          const struct kg_export_opts *opts, struct kg_err *err)
{
    struct kg_lora lora = {0};
    const struct kg_model_opts how = {
        .ct = KG_F32, .lora = &lora, .adapter = opts->adapter, .ignore = opts->ignore};
    struct kg_model_config config;
    struct job j = {.opts = opts,
                    .wanted = opts->type ? kg_quant_named(opts->type) : NULL};
    kg_status status;

    if (opts->adapter)
        KG_TRY(kg_lora_read(&lora, opts->adapter, err));
    KG_TRY(kg_model_config_open(&config, model, &opts->ignore, err));
    KG_TRY(kg_model_outline(&j.m, &config, &how, err));
    KG_TRY_GOTO(out, open_files(&j, model, err));
    status = write_named(&j, path, err);
out:
    for (int i = 0; i < 3; i++)
        kg_mem_free(j.rope[i]);
    kg_mem_free(j.outs);
    kg_gguf_writer_release(&j.w);
    kg_st_close(j.set);
    kg_model_free(j.m);
    return status == KG_OK ? KG_OK : kg_err_prefix(err, "%s", path);
}
