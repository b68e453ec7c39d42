/* Writing a GGUF file of a checkpoint: its tensors in llama.cpp's order and types.
 *
 * Tensors are copied row by row and never become a model. A GGUF file says less than
 * config.json: its architecture fixes values that config.json leaves open. So the file is
 * read again before it gets its name, and a field that its reader would see with another
 * value is refused.
 */
#include "model/export.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"
#include "data/gguf_model.h"
#include "data/source.h"
#include "model/model_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct out {
    char name[KG_GGUF_NAME + 1];
    const struct kg_param *first; /* of the first expert, or all */
    int32_t n;                    /* experts; 1 */
    const struct kg_quant *type;
};

struct job {
    struct kg_model *m;    /* an outline; owned */
    struct kg_st_set *set; /* owned */
    const struct kg_gguf_arch *arch;
    const struct kg_quant *wanted; /* NULL: as stored */
    struct kg_gguf_writer w;
    struct out *outs; /* owned */
    size_t n_outs;
    float *rope[3];  /* owned: factors */
    size_t narrowed; /* tensors that cannot have the type */
};

static const struct kg_st_tensor *tensor_of(const struct job *j, const struct kg_param *p)
{
    return kg_st_find(j->set, p->name);
}

/* Whether bytes go as they are: rows and values are llama.cpp's already. */
static bool is_copied(const struct job *j)
{
    return !j->wanted && kg_source_is_file(j->m->dir);
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
    if (t->shape[t->n_dims - 1] % j->wanted->values == 0)
        return j->wanted;
    j->narrowed++;
    return kg_quant_named("F16");
}

/* Expert 0 stands for all of its layer. */
static bool is_further_expert(const char *name)
{
    const char *at = strstr(name, ".experts.");

    return at && strncmp(at, ".experts.0.", 11) != 0;
}

static kg_status declare(struct job *j, struct out *out, struct kg_err *err)
{
    const struct kg_st_tensor *t = tensor_of(j, out->first);
    int64_t shape[3] = {out->n, t->shape[0], t->shape[1]};
    const bool each = out->n > 1 || strstr(out->first->name, ".experts.");
    /* the gate of a shared expert has one row, and is a vector there */
    const bool vector = t->n_dims == 1 || strstr(out->name, "ffn_gate_inp_shexp");

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

static kg_status list(struct job *j, struct kg_err *err)
{
    j->outs = kg_mem_calloc(j->m->n_base, sizeof *j->outs, "tensors", err);
    if (!j->outs)
        return KG_ENOMEM;
    for (size_t i = 0; i < j->m->n_base; i++) {
        const struct kg_param *p = &j->m->params[i];
        struct out *out = &j->outs[j->n_outs];
        enum kg_dtype dtype;

        KG_TRY(kg_tensor_find(&dtype, j->set, p, err));
        if (p->file_row > 0 || is_further_expert(p->name))
            continue;
        out->first = p;
        out->n = strstr(p->name, ".experts.") ? j->m->config.experts.n : 1;
        KG_TRY(kg_gguf_name_of(out->name, p->name, j->arch, err));
        KG_TRY(declare(j, out, err));
        j->n_outs++;
    }
    return KG_OK;
}

/* ---- values ---- */

/* The row here that is row r of the file to be written. */
static int64_t row_of(const struct job *j, const struct out *out, int64_t r)
{
    const int64_t hd = j->m->config.head_dim, in_head = r % hd;
    const bool turned = strstr(out->name, ".attn_q.") || strstr(out->name, ".attn_k.");

    if (!turned || !(j->arch->flags & KG_GGUF_PAIRED))
        return r;
    return r - in_head + in_head / 2 + (in_head % 2) * (hd / 2);
}

static kg_status put_row(struct job *j, const struct out *out, const float *x,
                         unsigned char *bytes, int64_t n, struct kg_err *err)
{
    const struct kg_quant *q = out->type;
    const size_t size = (size_t)(n / q->values * q->bytes);
    enum kg_dtype dtype = KG_F32;

    if (q->narrow) {
        for (int64_t i = 0; i < n / q->values; i++)
            q->narrow(bytes + i * q->bytes, x + i * q->values);
        return kg_gguf_put(&j->w, bytes, size, err);
    }
    while (strcmp(kg_dtype_traits(dtype)->safetensors_name, q->name) != 0)
        dtype = (enum kg_dtype)((int)dtype + 1);
    KG_TRY(kg_dtype_convert(bytes, dtype, x, KG_F32, (size_t)n, err));
    return kg_gguf_put(&j->w, bytes, size, err);
}

static kg_status put_rows(struct job *j, const struct out *out,
                          const struct kg_st_tensor *t, float *x, unsigned char *bytes,
                          struct kg_err *err)
{
    const bool vector = t->n_dims == 1, one = vector && row_of(j, out, 1) == 1;
    const int64_t cols = one ? t->shape[0] : vector ? 1 : t->shape[1];
    const int64_t rows = one ? 1 : t->shape[0];
    const bool unit = j->arch->flags & KG_GGUF_NORM_1 && strstr(out->name, "norm.");

    for (int64_t r = 0; r < rows; r++) {
        KG_TRY(kg_tensor_read(x, t, row_of(j, out, r) * cols, cols, err));
        for (int64_t i = 0; i < cols && unit; i++)
            x[i] += 1;
        KG_TRY(put_row(j, out, x, bytes, cols, err));
    }
    return KG_OK;
}

static kg_status put_tensor(struct job *j, const struct out *out, float *x,
                            unsigned char *bytes, struct kg_err *err)
{
    for (int32_t e = 0; e < out->n; e++) {
        const struct kg_st_tensor *t = tensor_of(j, out->first + 3 * (ptrdiff_t)e);

        kg_phase_tick();
        KG_TRY(is_copied(j) ? kg_gguf_put(&j->w, t->data, t->bytes, err)
                            : put_rows(j, out, t, x, bytes, err));
        kg_map_let_go(t->data, t->bytes);
    }
    return kg_gguf_pad(&j->w, err);
}

static kg_status put_all(struct job *j, struct kg_err *err)
{
    int64_t most = 1;
    float *x;
    unsigned char *bytes;
    kg_status status = KG_ENOMEM;

    for (size_t i = 0; i < j->m->n_base; i++)
        most = j->m->params[i].cols > most ? j->m->params[i].cols : most;
    x = kg_mem_calloc((size_t)most, sizeof *x, "a row", err);
    bytes = x ? kg_mem_calloc((size_t)most, sizeof *x, "a row", err) : NULL;
    if (bytes)
        status = KG_OK;
    for (size_t i = 0; i < j->n_outs && status == KG_OK; i++)
        status = put_tensor(j, &j->outs[i], x, bytes, err);
    kg_mem_free(bytes);
    kg_mem_free(x);
    return status;
}

/* ---- the rope ---- */

static kg_status declare_rope(struct job *j, const struct kg_json *config,
                              struct kg_err *err)
{
    const int64_t pairs = kg_rope_pairs(&j->m->config);

    for (int i = 0; i < 3; i++) {
        j->rope[i] = kg_mem_calloc((size_t)pairs, sizeof(float), "rope", err);
        if (!j->rope[i])
            return KG_ENOMEM;
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

static kg_status put_rope(struct job *j, struct kg_err *err)
{
    const size_t bytes = (size_t)kg_rope_pairs(&j->m->config) * sizeof(float);

    for (int i = 0; i < 3; i++) {
        if (!j->rope[i])
            continue;
        KG_TRY(kg_gguf_put(&j->w, j->rope[i], bytes, err));
        KG_TRY(kg_gguf_pad(&j->w, err));
    }
    return KG_OK;
}

/* ---- what was written ---- */

/* Fields that are not the reader's: of training, or the class's name. */
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
            kg_fail(err, KG_EUNSUPPORTED,
                    "%s of config.json is %.80s: expected what %s is in GGUF, which has "
                    "no key for it",
                    key, kg_str_text(&text), arch);
        kg_str_release(&text);
        return err->code;
    }
    return KG_OK;
}

/* All fields of a config, with the usual ones. */
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

static kg_status put_name(struct job *j, struct kg_err *err)
{
    const char *dir = j->m->dir;
    size_t n = strlen(dir), first;

    while (n > 0 && dir[n - 1] == '/')
        n--;
    first = n;
    while (first > 0 && dir[first - 1] != '/')
        first--;
    return kg_gguf_put_text(&j->w, "general.name", dir + first, n - first, err);
}

static kg_status write_file(struct job *j, const struct kg_json *config, const char *path,
                            struct kg_err *err)
{
    bool none;

    KG_TRY(kg_gguf_put_config(&j->w, j->arch, config, j->m->config.head_dim, err));
    KG_TRY(put_name(j, err));
    KG_TRY(
        kg_gguf_put_tokenizer(&j->w, j->m->dir, (size_t)j->m->config.vocab, &none, err));
    if (none)
        kg_log_warn("%s: no tokenizer that GGUF has a form for: the file has none",
                    j->m->dir);
    KG_TRY(declare_rope(j, config, err));
    KG_TRY(list(j, err));
    if (j->narrowed > 0)
        kg_log_warn("%zu tensors have rows that are no whole blocks of %d values: they "
                    "are written as f16",
                    j->narrowed, j->wanted->values);
    KG_TRY(kg_gguf_begin(&j->w, path, err));
    KG_TRY(put_rope(j, err));
    KG_TRY(put_all(j, err));
    return kg_gguf_end(&j->w, err);
}

static kg_status write_named(struct job *j, const char *path, struct kg_err *err)
{
    struct kg_json_doc config = {0};
    struct kg_str work = {0};
    kg_status status;

    KG_TRY_GOTO(out, whole_config(&config, &j->m->config, err));
    KG_TRY_GOTO(out, kg_gguf_arch_of(&j->arch, j->m->config.arch->model_type, err));
    KG_TRY_GOTO(out, kg_file_temporary(&work, path, err));
    KG_TRY_GOTO(out, write_file(j, config.root, work.data, err));
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

kg_status kg_model_export(const char *model, const char *path, const char *type,
                          const struct kg_opt_list *ignore, struct kg_err *err)
{
    struct kg_model_opts opts = {.ct = KG_F32, .ignore = *ignore};
    struct kg_model_config config;
    struct job j = {.wanted = type ? kg_quant_named(type) : NULL};
    kg_status status;

    KG_TRY(kg_model_config_open(&config, model, ignore, err));
    KG_TRY(kg_model_outline(&j.m, &config, &opts, err));
    j.m->dir = kg_mem_strdup(model, err);
    KG_TRY_GOTO(out, j.m->dir ? KG_OK : KG_ENOMEM);
    KG_TRY_GOTO(out, kg_model_open_files(&j.set, j.m, model, err));
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
