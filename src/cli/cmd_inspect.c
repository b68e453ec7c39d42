/* kedge inspect: the contents of a checkpoint, and the memory that inference and training
 * need; with --verify whether its files are those that were saved.
 *
 * The model is opened as by the commands that compute, so an error of theirs occurs here
 * too.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/file.h"
#include "data/manifest.h"
#include "data/safetensors.h"
#include "train/keep/checkpoint.h"

#include <string.h>

enum { RUN_TOKENS = 4096, TRAIN_TOKENS = 4096, MAX_DTYPES = 16 };

static bool json;
static bool all;
static bool verify;
static const char *moments; /* NULL: fp32 */

const struct kg_flag kg_inspect_flags[] = {
    {"json", 0, KG_TO(json), NULL, "print one JSON object"},
    {"tensors", 0, KG_IF("--verify=&--json=", all), NULL,
     "list every tensor (--json always does)"},
    {"verify", 0, KG_TO(verify), NULL,
     "only compare all files of a training checkpoint with the hashes in its "
     "manifest.json (in DIR or the folder above it; for a run: the newest checkpoint)"},
    {"dtype", 0, KG_IF("--verify=", kg_load.dtype), "TYPE",
     "compute dtype, for the memory needed (default: bf16)", 0, 0, "bf16|fp32"},
    {"moments", 0, KG_IF("--verify=", moments), "TYPE",
     "optim.moments, for the memory needed (default: fp32)", 0, 0, "fp32|bf16"},
    KG_FLAGS_IF("--verify=", kg_ignore_flags),
    {0},
};

struct report {
    struct kg_loaded l;
    struct kg_st_set *set;
    int64_t n_params;
    const char *dtypes[MAX_DTYPES]; /* dtypes that occur, with their number of tensors */
    size_t dtype_tensors[MAX_DTYPES];
    size_t n_dtypes;
    enum kg_dtype moments;
    uint64_t run_bytes; /* weights, cache and activations of one sequence of RUN_TOKENS */
    /* weights, gradients, moments, anchor, activations of TRAIN_TOKENS */
    uint64_t train_bytes;
};

static void count_dtype(struct report *r, const char *dtype)
{
    size_t i = 0;
    while (i < r->n_dtypes && strcmp(r->dtypes[i], dtype) != 0)
        i++;
    if (i == MAX_DTYPES)
        return;
    if (i == r->n_dtypes)
        r->dtypes[r->n_dtypes++] = dtype;
    r->dtype_tensors[i]++;
}

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

static void count_memory(struct report *r)
{
    const struct kg_optim_opts adamw = {.moments = r->moments};
    const struct kg_model *m = r->l.model;
    const struct kg_model_config *c = &m->config;
    uint64_t n = (uint64_t)r->n_params, packed = kg_model_compute_bytes(m);
    int64_t run = min_i64(RUN_TOKENS, c->max_positions);
    int64_t entries = kg_kv_entries(run);
    struct kg_kv_size blocks = {{entries, kg_kv_round(entries, c->window, 1)}};
    r->run_bytes = kg_model_memory(m, false).read.there + kg_kv_bytes(m, blocks) +
                   kg_bytes_sum(kg_acts_bytes(m, 512, true, 0));
    /* fp32 weights, gradient and anchor; two moments; and the packed weights that
     * products read, of the model and the anchor */
    r->train_bytes = n * 3 * sizeof(float) + kg_optim_state_bytes(&adamw, r->n_params) +
                     2 * packed + kg_bytes_sum(kg_acts_bytes(m, TRAIN_TOKENS, true, 0));
}

static kg_status examine(struct report *r, struct kg_err *err)
{
    if (moments)
        KG_TRY(kg_dtype_parse(&r->moments, moments, err));
    KG_TRY(kg_load_model(&r->l, &kg_load, err));
    KG_TRY(kg_model_open_files(&r->set, r->l.model, kg_load.dir, err));
    KG_TRY(kg_model_check_values(r->l.model, r->set, err));
    for (size_t i = 0; i < kg_st_count(r->set); i++)
        count_dtype(r, kg_st_at(r->set, i)->dtype);
    for (size_t i = 0; i < r->l.model->n_params; i++)
        r->n_params += r->l.model->params[i].rows * r->l.model->params[i].cols;
    count_memory(r);
    return KG_OK;
}

/* ---- JSON ---- */

static kg_status put_key_text(struct kg_str *out, const char *key, const char *text,
                              struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "\"%s\": ", key));
    return kg_json_put_string(out, text, strlen(text), err);
}

static kg_status put_tensor(struct kg_str *out, const struct kg_st_tensor *t,
                            struct kg_err *err)
{
    KG_TRY(kg_str_putc(out, '{', err));
    KG_TRY(put_key_text(out, "name", t->name, err));
    KG_TRY(kg_str_puts(out, ", ", err));
    KG_TRY(put_key_text(out, "dtype", t->dtype, err));
    KG_TRY(kg_str_puts(out, ", \"shape\": [", err));
    for (int d = 0; d < t->n_dims; d++)
        KG_TRY(
            kg_str_printf(out, err, "%s%lld", d > 0 ? ", " : "", (long long)t->shape[d]));
    return kg_str_puts(out, "]}", err);
}

static kg_status put_sizes(struct kg_str *out, const struct kg_model_config *c,
                           struct kg_err *err)
{
    KG_TRY(kg_str_printf(
        out, err,
        ", \"vocab\": %d, \"hidden\": %d, \"ffn\": %d, \"layers\": %d, \"heads\": %d, "
        "\"kv_heads\": %d, \"head_dim\": %d, \"max_positions\": %d, \"tied\": %s",
        c->vocab, c->hidden, c->ffn, c->layers, c->heads, c->kv_heads, c->head_dim,
        c->max_positions, c->tied ? "true" : "false"));
    if (c->experts.n > 0)
        KG_TRY(kg_str_printf(
            out, err,
            ", \"experts\": %d, \"experts_per_token\": %d, \"expert_ffn\": %d, "
            "\"shared_ffn\": %d",
            (int)c->experts.n, (int)c->experts.k, (int)c->experts.ffn,
            (int)c->experts.shared_ffn));
    KG_TRY(kg_str_puts(out, ", \"eos\": ", err));
    return kg_json_put_ints(out, c->eos, (size_t)c->n_eos, err);
}

static kg_status put_tokenizer_json(struct kg_str *out, const struct kg_tokenizer *tok,
                                    struct kg_err *err)
{
    if (tok == NULL)
        return kg_str_puts(out, ", \"tokenizer\": null", err);
    return kg_str_printf(out, err, ", \"tokenizer\": {\"kind\": \"%s\", \"vocab\": %d}",
                         kg_tokenizer_kind(tok), kg_tokenizer_vocab_size(tok));
}

static kg_status put_json(struct kg_str *out, const struct report *r, struct kg_err *err)
{
    const struct kg_model *m = r->l.model;
    KG_TRY(kg_str_putc(out, '{', err));
    KG_TRY(put_key_text(out, "architecture", m->config.arch->class_name, err));
    KG_TRY(kg_str_puts(out, ", ", err));
    KG_TRY(put_key_text(out, "model_type", m->config.arch->model_type, err));
    KG_TRY(kg_str_printf(out, err, ", \"parameters\": %lld, \"active_parameters\": %lld",
                         (long long)r->n_params,
                         (long long)kg_model_active_parameters(m)));
    KG_TRY(put_sizes(out, &m->config, err));
    KG_TRY(put_tokenizer_json(out, r->l.tok, err));
    KG_TRY(kg_str_printf(
        out, err,
        ", \"memory\": {\"dtype\": \"%s\", \"run_bytes\": %llu, \"train_bytes\": %llu}",
        kg_dtype_traits(m->ct)->name, (unsigned long long)r->run_bytes,
        (unsigned long long)r->train_bytes));
    KG_TRY(kg_str_puts(out, ", \"dtypes\": {", err));
    for (size_t i = 0; i < r->n_dtypes; i++)
        KG_TRY(kg_str_printf(out, err, "%s\"%s\": %zu", i > 0 ? ", " : "", r->dtypes[i],
                             r->dtype_tensors[i]));
    KG_TRY(kg_str_puts(out, "}, \"tensors\": [", err));
    for (size_t i = 0; i < kg_st_count(r->set); i++) {
        KG_TRY(kg_str_puts(out, i > 0 ? ", " : "", err));
        KG_TRY(put_tensor(out, kg_st_at(r->set, i), err));
    }
    return kg_str_puts(out, "]}\n", err);
}

/* ---- text ---- */

static kg_status put_shapes(struct kg_str *out, const struct report *r,
                            struct kg_err *err)
{
    for (size_t i = 0; i < kg_st_count(r->set); i++) {
        const struct kg_st_tensor *t = kg_st_at(r->set, i);
        KG_TRY(kg_str_printf(out, err, "  %-56s %-5s", t->name, t->dtype));
        for (int d = 0; d < t->n_dims; d++)
            KG_TRY(kg_str_printf(out, err, "%s%lld", d > 0 ? " x " : " ",
                                 (long long)t->shape[d]));
        KG_TRY(kg_str_putc(out, '\n', err));
    }
    return KG_OK;
}

static kg_status put_tokenizer_text(struct kg_str *out, const struct report *r,
                                    struct kg_err *err)
{
    const struct kg_model_config *c = &r->l.model->config;
    if (r->l.tok)
        KG_TRY(kg_str_printf(out, err, "tokenizer      %s, %d ids\n",
                             kg_tokenizer_kind(r->l.tok),
                             kg_tokenizer_vocab_size(r->l.tok)));
    else
        KG_TRY(kg_str_puts(out, "tokenizer      none: prompts are ids\n", err));
    KG_TRY(kg_str_puts(out, "end tokens     ", err));
    for (int i = 0; i < c->n_eos; i++)
        KG_TRY(kg_str_printf(out, err, "%s%d", i > 0 ? ", " : "", c->eos[i]));
    return kg_str_puts(out, c->n_eos > 0 ? "\n" : "none\n", err);
}

static kg_status put_experts_text(struct kg_str *out, const struct kg_model *m,
                                  struct kg_err *err)
{
    const struct kg_experts_config *x = &m->config.experts;
    if (x->n == 0)
        return KG_OK;
    KG_TRY(kg_str_printf(out, err, "experts        %d of %d a token, ffn %d", (int)x->k,
                         (int)x->n, (int)x->ffn));
    if (x->shared_ffn > 0)
        KG_TRY(kg_str_printf(out, err, "; one of ffn %d shared", (int)x->shared_ffn));
    return kg_str_printf(out, err, "; %lld parameters active\n",
                         (long long)kg_model_active_parameters(m));
}

static kg_status put_text(struct kg_str *out, const struct report *r, struct kg_err *err)
{
    const struct kg_model *m = r->l.model;
    const struct kg_model_config *c = &m->config;
    const char *ct = kg_dtype_traits(m->ct)->name;
    char run[32];
    char train[32];
    kg_cli_bytes(run, (double)r->run_bytes);
    kg_cli_bytes(train, (double)r->train_bytes);
    KG_TRY(kg_str_printf(out, err, "architecture   %s\nparameters     %lld\n",
                         c->arch->class_name, (long long)r->n_params));
    KG_TRY(kg_str_printf(
        out, err,
        "shape          vocab %d, hidden %d, ffn %d, layers %d, heads %d (%d kv) of "
        "%d, %d positions, embeddings %s\n",
        c->vocab, c->hidden, c->ffn, c->layers, c->heads, c->kv_heads, c->head_dim,
        c->max_positions, c->tied ? "tied" : "untied"));
    KG_TRY(put_experts_text(out, m, err));
    KG_TRY(kg_str_puts(out, "tensors        ", err));
    for (size_t i = 0; i < r->n_dtypes; i++)
        KG_TRY(kg_str_printf(out, err, "%s%zu %s", i > 0 ? ", " : "", r->dtype_tensors[i],
                             r->dtypes[i]));
    KG_TRY(kg_str_putc(out, '\n', err));
    KG_TRY(put_tokenizer_text(out, r, err));
    KG_TRY(kg_str_printf(out, err,
                         "memory to run  %s (%s weights, cache of %lld tokens)\n", run,
                         ct, (long long)min_i64(RUN_TOKENS, c->max_positions)));
    KG_TRY(kg_str_printf(
        out, err,
        "to train       %s (fp32 weights, gradients and anchor, %s moments, %s copies, "
        "micro-batch of %d tokens)\n",
        train, kg_dtype_traits(r->moments)->name, ct, TRAIN_TOKENS));
    return all ? put_shapes(out, r, err) : KG_OK;
}

/* ---- verification ---- */

/* The newest checkpoint, if dir is a run; else an empty path. A run's own manifest.json
 * lists its inputs, not its files. */
static kg_status find_in_run(struct kg_path *path, const char *dir, struct kg_err *err)
{
    char name[KG_CHECKPOINT_NAME];
    const struct kg_path folder = kg_path_in(dir, "checkpoints");

    path->text[0] = '\0';
    if (!kg_file_exists(folder.text))
        return KG_OK;
    KG_TRY(kg_checkpoint_last(name, dir, err));
    if (!name[0])
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected a checkpoint, found a run that has none yet", dir);
    *path = kg_path_in(folder.text, name);
    return KG_OK;
}

/* The folder with the manifest of dir: the newest checkpoint of a run, dir itself, or its
 * parent (dir is the model/ of a checkpoint). */
static kg_status find_manifest(struct kg_path *path, const char *dir, struct kg_err *err)
{
    static const char *const folders[] = {".", ".."};

    KG_TRY(find_in_run(path, dir, err));
    for (size_t i = 0; !path->text[0] && i < 2; i++) {
        *path = kg_path_in(dir, folders[i]);
        if (!kg_file_exists(kg_path_in(path->text, KG_MANIFEST_NAME).text))
            path->text[0] = '\0';
    }
    if (path->text[0])
        return KG_OK;
    return kg_fail(err, KG_ENOTFOUND,
                   "%s: expected a checkpoint of a run, with %s in it or in the folder "
                   "above, found none",
                   dir, KG_MANIFEST_NAME);
}

static kg_status put_verified(struct kg_str *out, const char *dir, struct kg_err *err)
{
    struct kg_manifest_size size;
    struct kg_path path;
    char bytes[32];

    KG_TRY(find_manifest(&path, dir, err));
    KG_TRY(kg_manifest_check(&size, path.text, err));
    if (json)
        return kg_str_printf(out, err, "{\"files\": %zu, \"bytes\": %llu}\n", size.files,
                             (unsigned long long)size.bytes);
    kg_cli_bytes(bytes, (double)size.bytes);
    return kg_str_printf(out, err, "%s: %zu files, %s: all match the saved hashes\n",
                         path.text, size.files, bytes);
}

int kg_cmd_inspect(int argc, char **argv)
{
    struct report r = {0};
    struct kg_str out = {0};
    struct kg_err err;
    kg_status status = KG_OK;
    if (argc != 1)
        return kg_cli_usage("expected DIR, the folder of a checkpoint");
    kg_load.dir = argv[0];
    KG_TRY_GOTO(out, kg_cli_find_model(&kg_load.dir, &err));
    if (verify) {
        KG_TRY_GOTO(out, put_verified(&out, kg_load.dir, &err));
    } else {
        KG_TRY_GOTO(out, examine(&r, &err));
        KG_TRY_GOTO(out, json ? put_json(&out, &r, &err) : put_text(&out, &r, &err));
    }
    status = kg_cli_put(&out, &err);
out:
    kg_str_release(&out);
    kg_st_close(r.set);
    kg_load_release(&r.l);
    return kg_cli_exit(status, &err);
}
