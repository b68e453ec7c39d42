/* Writes a checkpoint folder that transformers loads: config.json, safetensors, sidecar
 * files.
 *
 * It writes into the folder directly, so it is not atomic: the caller passes a temporary
 * folder and renames it after OK (every file is fsynced by then).
 *
 * The one idea: the tensors are written in the order of the parameter list. A new shard
 * begins if the next tensor would exceed shard_bytes. Tensors are converted piece by
 * piece, so saving needs no second copy of the weights.
 */
#include "model/model_internal.h"

#include "base/file.h"
#include "base/str.h"
#include "data/source.h"

#include <stdio.h>

enum { PIECE = 1 << 18 /* elements */, FILE_NAME_BYTES = 64 };
static const uint64_t default_shard_bytes = (uint64_t)4 << 30;

/* Files besides config.json and tensors; copied byte for byte, if present. */
static const char *const sidecars[] = {
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
    "token_ids.json",
};
enum { N_SIDECARS = sizeof sidecars / sizeof *sidecars, MAX_SIDECAR_BYTES = 256 << 20 };

/* A file with parameters [first, first+n) of the list. */
struct shard {
    size_t first;
    size_t n;
    char name[FILE_NAME_BYTES];
};
struct plan {
    const struct kg_model *m;
    struct shard *shards; /* owned */
    size_t n_shards;
    uint64_t total_bytes;
    enum kg_dtype dtype;
    const struct kg_slab *weights; /* borrowed; NULL: from `compute` */
    bool merge;
    enum kg_save_part part;
};

/* Parameters of one tensor of the file are consecutive; the first represents it. */
static bool is_tensor(const struct kg_param *p) { return p->file_row == 0; }

static uint64_t tensor_bytes(const struct kg_param *p, enum kg_dtype dtype)
{
    return is_tensor(p)
               ? (uint64_t)(p->file_rows * p->cols) * kg_dtype_traits(dtype)->bytes
               : 0;
}

static uint64_t param_bytes(const struct kg_param *p, enum kg_dtype dtype)
{
    return (uint64_t)kg_param_count(p) * kg_dtype_traits(dtype)->bytes;
}

/* Whether only adapters are written: fp32, one file. */
static bool adapters_alone(const struct kg_model *m, const struct kg_model_save *opts)
{
    return m->lora && !opts->merge;
}

/* ---- tensors ---- */
static void name_shards(struct plan *plan, bool adapters)
{
    if (adapters) {
        snprintf(plan->shards[0].name, FILE_NAME_BYTES, "adapter_model.safetensors");
        return;
    }
    if (plan->n_shards == 1) {
        snprintf(plan->shards[0].name, FILE_NAME_BYTES, "model.safetensors");
        return;
    }
    for (size_t i = 0; i < plan->n_shards; i++)
        snprintf(plan->shards[i].name, FILE_NAME_BYTES,
                 "model-%05zu-of-%05zu.safetensors", i + 1, plan->n_shards);
}

static kg_status make_plan(struct plan *plan, const struct kg_model *m,
                           const struct kg_model_save *opts, struct kg_err *err)
{
    const uint64_t limit = opts->shard_bytes ? opts->shard_bytes : default_shard_bytes;
    const bool adapters = adapters_alone(m, opts);
    const size_t first = adapters ? m->n_base : 0;
    const size_t end = adapters ? m->n_params : m->n_base;
    *plan = (struct plan){.m = m,
                          .dtype = adapters ? KG_F32 : opts->dtype,
                          .weights = opts->weights,
                          .merge = opts->merge,
                          .part = opts->part};
    if (!plan->weights && m->master.data && !opts->merge)
        plan->weights = &m->master;
    KG_TRY(
        kg_mem_new(&plan->shards, m->n_params, sizeof *plan->shards, "shard list", err));
    uint64_t used = 0;
    for (size_t i = first; i < end; i++) {
        const uint64_t bytes = tensor_bytes(&m->params[i], plan->dtype);
        const bool full = bytes > 0 && used + bytes > limit && !adapters;
        if (plan->n_shards == 0 || full) {
            plan->shards[plan->n_shards++].first = i;
            used = 0;
        }
        plan->shards[plan->n_shards - 1].n++;
        used += bytes;
        plan->total_bytes += bytes;
    }
    name_shards(plan, adapters);
    return KG_OK;
}

/* Elements [first, first+n) of a weight merged with its adapter.   sum: (n) scratch */
static kg_status read_merged(void *dst, float *sum, const struct plan *plan,
                             const struct kg_param *p, int64_t first, int64_t n,
                             struct kg_err *err)
{
    KG_TRY(kg_param_read(sum, KG_F32, plan->m, p, NULL, first, n, err));
    KG_TRY(kg_lora_add(sum, plan->m, p, first, n, err));
    return kg_dtype_convert(dst, plan->dtype, sum, KG_F32, (size_t)n, err);
}

/* piece: (2 PIECE) pinned. A save may run during a rollout, so it uses kg_slab_fetch. */
static kg_status read_piece(float *piece, const struct plan *plan,
                            const struct kg_param *p, int64_t first, int64_t n,
                            struct kg_err *err)
{
    if (plan->merge && p->adapter)
        return read_merged(piece, piece + PIECE, plan, p, first, n, err);
    if (!plan->weights)
        return kg_param_read(piece, plan->dtype, plan->m, p, NULL, first, n, err);
    KG_TRY(kg_slab_fetch(piece + PIECE, plan->weights,
                         p->offset + first - plan->m->cut.first, n, err));
    return kg_dtype_convert(piece, plan->dtype, piece + PIECE, KG_F32, (size_t)n, err);
}

/* The elements of p that this rank has: those in its shard, if weights are sharded. */
static struct kg_cut elements_here(const struct plan *plan, const struct kg_param *p)
{
    struct kg_cut c = {0, kg_param_count(p)};
    if (!plan->weights || !plan->m->ranks)
        return c;
    c = kg_cut_within(plan->m->cut, p->offset, c.n);
    c.first -= c.n > 0 ? p->offset : 0;
    return c;
}

/* Writes this rank's elements of p into tensor `index` of the file. */
static kg_status put_tensor(struct kg_st_writer *w, size_t index, const struct plan *plan,
                            const struct kg_param *p, float *piece, struct kg_err *err)
{
    const uint64_t bytes = kg_dtype_traits(plan->dtype)->bytes;
    const struct kg_cut here = elements_here(plan, p);
    const int64_t end = here.first + here.n, before = p->file_row * p->cols;
    for (int64_t i = here.first; i < end; i += PIECE) {
        const int64_t count = end - i < PIECE ? end - i : PIECE;
        KG_TRY(read_piece(piece, plan, p, i, count, err));
        KG_TRY(kg_st_writer_put(w, index, (uint64_t)(before + i) * bytes, piece,
                                (uint64_t)count * bytes, err));
    }
    return KG_OK;
}

static size_t tensors_of(const struct kg_model *m, const struct shard *shard)
{
    size_t n = 0;
    for (size_t i = 0; i < shard->n; i++)
        n += is_tensor(&m->params[shard->first + i]);
    return n;
}

static kg_status put_tensors(const char *path, const struct kg_model *m,
                             const struct plan *plan, const struct shard *shard,
                             const struct kg_st_decl *decls, struct kg_err *err)
{
    kg_status status = KG_OK;
    struct kg_st_writer *w = NULL;
    float *piece = kg_buf_pin(m->backend, 2 * PIECE * sizeof *piece, "conversion buffer",
                              err);
    if (!piece)
        return KG_ENOMEM;
    const size_t n = tensors_of(m, shard);
    KG_TRY_GOTO(out, plan->part == KG_SAVE_VALUES
                         ? kg_st_writer_join(&w, path, decls, n, err)
                         : kg_st_writer_open(&w, path, decls, n, err));
    for (size_t i = 0, tensor = 0; plan->part != KG_SAVE_FRAME && i < shard->n; i++) {
        const struct kg_param *p = &m->params[shard->first + i];
        tensor += i > 0 && is_tensor(p);
        KG_TRY_GOTO(out, put_tensor(w, tensor, plan, p, piece, err));
    }
    struct kg_st_writer *done = w;
    w = NULL;
    KG_TRY_GOTO(out, plan->part == KG_SAVE_ALL ? kg_st_writer_close(done, err)
                                               : kg_st_writer_leave(done, err));
out:
    if (w)
        kg_st_writer_abort(w);
    kg_buf_unpin(m->backend, piece);
    return status;
}

static struct kg_st_decl declare(const struct kg_param *p, enum kg_dtype dtype)
{
    struct kg_st_decl d = {
        p->name, kg_dtype_traits(dtype)->safetensors_name, p->n_dims, {0}};
    d.shape[0] = p->n_dims == 1 ? p->cols : p->file_rows;
    d.shape[1] = p->n_dims == 1 ? 0 : p->cols;
    return d;
}

static kg_status write_shard(const char *dir, const struct kg_model *m,
                             const struct plan *plan, const struct shard *shard,
                             struct kg_err *err)
{
    kg_status status;
    struct kg_st_decl *decls = kg_mem_calloc(shard->n, sizeof *decls, "tensor list", err);
    if (!decls)
        return KG_ENOMEM;
    for (size_t i = 0, n = 0; i < shard->n; i++)
        if (is_tensor(&m->params[shard->first + i]))
            decls[n++] = declare(&m->params[shard->first + i], plan->dtype);
    status = put_tensors(kg_path_in(dir, shard->name).text, m, plan, shard, decls, err);
    kg_mem_free(decls);
    return status;
}

/* ---- small files ---- */
static kg_status write_text(const char *dir, const char *name, const struct kg_str *text,
                            struct kg_err *err)
{
    return kg_file_write_atomic(kg_path_in(dir, name).text, kg_str_text(text), text->len,
                                err);
}

static kg_status index_text(struct kg_str *out, const struct kg_model *m,
                            const struct plan *plan, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err,
                         "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n",
                         (unsigned long long)plan->total_bytes));
    KG_TRY(kg_str_puts(out, "  \"weight_map\": {", err));
    for (size_t s = 0; s < plan->n_shards; s++) {
        const struct shard *shard = &plan->shards[s];
        for (size_t i = shard->first; i < shard->first + shard->n; i++)
            if (is_tensor(&m->params[i]))
                KG_TRY(kg_str_printf(out, err, "%s\n    \"%s\": \"%s\"", i ? "," : "",
                                     m->params[i].name, shard->name));
    }
    return kg_str_puts(out, "\n  }\n}\n", err);
}

static kg_status write_index(const char *dir, const struct kg_model *m,
                             const struct plan *plan, struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status = index_text(&text, m, plan, err);
    if (status == KG_OK)
        status = write_text(dir, "model.safetensors.index.json", &text, err);
    kg_str_release(&text);
    return status;
}

/* An absent file leaves doc empty: a new model has none. */
static kg_status read_source(struct kg_json_doc *doc, const char *source_dir,
                             struct kg_err *err)
{
    enum { MAX_BYTES = 16 << 20 };
    return source_dir
               ? kg_source_json_or_none(doc, source_dir, "config.json", MAX_BYTES, err)
               : KG_OK;
}

static kg_status write_config(const char *dir, const struct kg_model *m,
                              enum kg_dtype dtype, const char *source_dir,
                              struct kg_err *err)
{
    struct kg_str text = {0};
    struct kg_json_doc source = {0};
    kg_status status;
    KG_TRY_GOTO(out, read_source(&source, source_dir, err));
    KG_TRY_GOTO(out, kg_model_config_write(&text, &m->config,
                                           dtype == KG_BF16 ? "bfloat16" : "float32",
                                           source.root, err));
    status = write_text(dir, "config.json", &text, err);
out:
    kg_json_release(&source);
    kg_str_release(&text);
    return status;
}

static kg_status write_adapter_config(const char *dir, const struct kg_model *m,
                                      struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status = kg_lora_write(&text, m->lora, m->dir, err);
    if (status == KG_OK)
        status = write_text(dir, "adapter_config.json", &text, err);
    kg_str_release(&text);
    return status == KG_OK ? kg_lora_write_base(m, dir, err) : status;
}

static kg_status copy_sidecar(const char *from_dir, const char *to_dir, const char *name,
                              struct kg_err *err)
{
    const struct kg_path from = kg_path_in(from_dir, name);
    struct kg_str text = {0};
    if (!kg_source_is_file(from_dir))
        return kg_file_exists(from.text)
                   ? kg_file_copy(from.text, kg_path_in(to_dir, name).text, err)
                   : KG_OK;
    kg_status status = kg_source_read(&text, from_dir, name, MAX_SIDECAR_BYTES, err);
    if (status == KG_OK)
        status = write_text(to_dir, name, &text, err);
    kg_str_release(&text);
    return status == KG_ENOTFOUND ? KG_OK : status;
}

/* A missing source is an error: the checkpoint would silently lack a tokenizer. */
static kg_status copy_sidecars(const char *from_dir, const char *to_dir,
                               struct kg_err *err)
{
    if (!from_dir)
        return KG_OK;
    if (!kg_source_is_model(from_dir))
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected a model with tokenizer files to copy, found none",
                       from_dir);
    for (size_t i = 0; i < N_SIDECARS; i++)
        KG_TRY(copy_sidecar(from_dir, to_dir, sidecars[i], err));
    return KG_OK;
}

/* ---- saving ---- */
static kg_status check_empty(const char *dir, struct kg_err *err)
{
    char **names = NULL;
    size_t n = 0;
    KG_TRY(kg_file_list(&names, &n, dir, err));
    kg_status status = KG_OK;
    if (n > 0)
        status = kg_fail(err, KG_ECONFLICT,
                         "%s: expected an empty folder to save into, found %s", dir,
                         names[0]);
    kg_file_names_free(names, n);
    return status;
}

static kg_status write_all(const struct kg_model *m, const char *dir,
                           const struct plan *plan, const char *source_dir,
                           struct kg_err *err)
{
    for (size_t i = 0; i < plan->n_shards; i++)
        KG_TRY(write_shard(dir, m, plan, &plan->shards[i], err));
    if (plan->part == KG_SAVE_VALUES)
        return KG_OK;
    if (plan->n_shards > 1)
        KG_TRY(write_index(dir, m, plan, err));
    KG_TRY(copy_sidecars(source_dir, dir, err));
    if (m->lora && !plan->merge)
        return write_adapter_config(dir, m, err);
    return write_config(dir, m, plan->dtype, source_dir, err);
}

kg_status kg_model_save(const struct kg_model *m, const char *dir,
                        const struct kg_model_save *opts, struct kg_err *err)
{
    if (opts->dtype != KG_BF16 && opts->dtype != KG_F32)
        return kg_fail(err, KG_EDTYPE,
                       "%s: checkpoints are written as bf16 or fp32, not %s", dir,
                       kg_dtype_traits(opts->dtype)->name);
    if (opts->part != KG_SAVE_VALUES) {
        KG_TRY(kg_file_make_dirs(dir, err));
        KG_TRY(check_empty(dir, err));
    }
    struct plan plan;
    kg_status status = make_plan(&plan, m, opts, err);
    if (status == KG_OK)
        status = write_all(m, dir, &plan, opts->source_dir ? opts->source_dir : m->dir,
                           err);
    kg_mem_free(plan.shards);
    return status;
}

uint64_t kg_model_save_bytes(const struct kg_model *m, enum kg_dtype dtype)
{
    enum { BYTES_A_NAME = 256, SMALL_FILES = 1 << 16, PATH_BYTES = 4096 };
    char path[PATH_BYTES]; /* no allocation: this function cannot fail */
    uint64_t bytes = SMALL_FILES + (uint64_t)m->n_params * BYTES_A_NAME;
    for (size_t i = kg_model_first_trained(m); i < m->n_params; i++)
        bytes += param_bytes(&m->params[i], m->lora ? KG_F32 : dtype);
    struct kg_err ignored;
    uint64_t size = 0;
    /* the tokenizer in a file of another format becomes text, smaller than the file */
    if (m->dir && kg_source_is_file(m->dir) &&
        kg_file_size(&size, m->dir, &ignored) == KG_OK)
        bytes += size;
    for (size_t i = 0; m->dir && i < N_SIDECARS; i++) {
        int n = snprintf(path, sizeof path, "%s/%s", m->dir, sidecars[i]);
        if (n < PATH_BYTES && kg_file_exists(path) &&
            kg_file_size(&size, path, &ignored) == KG_OK)
            bytes += size;
    }
    return bytes;
}
