/* Flags and functions that commands on a model share.
 *
 * The values of flags are variables. Commands that take the same flags refer to the same
 * tables, so a flag has one meaning and one help in all of them. A folder
 * without a tokenizer is not an error here, because ids are enough for some commands. A
 * command that needs text reports it.
 */
#include "cli/load.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/hub.h"
#include "ranks/devices.h"

#include <pthread.h>
#include <string.h>

struct kg_load_args kg_load;
struct kg_prompt_opts kg_prompt_how = {.prefix = "--"};
const char *kg_prompt_chat;

const struct kg_flag kg_model_flags[] = {
    {"model", 'm', KG_TO(kg_load.dir), KG_MODEL_ARG,
     "checkpoint folder, or ORG/NAME of the hub's cache (docs/hub.md)"},
    {"adapter", 0, KG_KEY_IF(KG_ADAPTER_KEY, "--model", kg_load.adapter), KG_MODEL_ARG,
     "PEFT folder of adapters for the model"},
    {0},
};

const struct kg_flag kg_ignore_flags[] = {
    {"ignore", 0, KG_KEY_IF("model.ignore", NULL, kg_load.ignore), "FIELD",
     "unknown field of config.json to ignore, because it has no effect (may be "
     "repeated)"},
    {0},
};

const struct kg_flag kg_compute_flags[] = {
    {"dtype", 0, KG_TO(kg_load.dtype), "TYPE",
     "dtype of products: bf16 or fp32 (default: bf16)", 0, 0, "bf16|fp32"},
    {"base-dtype", 0, KG_KEY_IF("model.base_dtype", "--dtype!fp32", kg_load.base_dtype),
     "TYPE", "keep weights in blocks of q8_0, q4_0 or q4_k, or as_stored in a GGUF file",
     0, 0, "q8_0|q4_0|q4_k|as_stored"},
    {"threads", 0, KG_TO(kg_load.threads), "N", "threads (default: all cores)", 0, 1024},
    {0},
};

const struct kg_flag kg_device_flags[] = {
    {"device", 0, KG_TO(kg_load.device), "DEVICE",
     "cpu, cuda, cuda:N, or auto: a GPU if one is usable (default: cpu)"},
    {"products", 0, KG_IF("--device", kg_load.products), "BY",
     "bf16 products on a GPU: cublas, own, or exact (default: by the GPU)", 0, 0,
     "cublas|own|exact"},
    {"libraries", 0, KG_IF("--device", kg_load.libraries), "DIR",
     "folder of cuBLASLt (default: search for it)"},
    {0},
};

const struct kg_flag kg_prompt_flags[] = {
    {"template", 0, KG_TO(kg_prompt_how.template_text), "TEXT",
     "text around a prompt; {prompt} is replaced", 0, 0, NULL},
    {"user-turn", 0, KG_TO(kg_prompt_how.user_turn), NULL,
     "render a prompt of text as the user's turn of the chat template"},
    {"system", 0, KG_TO(kg_prompt_how.system), "TEXT",
     "system prompt in front of every conversation"},
    {"opening", 0, KG_TO(kg_prompt_how.opening), "TEXT",
     "beginning of the assistant's turn, if the template does not write it"},
    {"chat-template", 0, KG_TO(kg_prompt_chat), "WHICH",
     "for user turns and messages: auto (the model's template), none, or a file"},
    {"date", 0, KG_TO(kg_prompt_how.date), "YYYY-MM-DD",
     "date for chat templates that use it (default: from the clock)"},
    {0},
};

kg_status kg_load_dtype(enum kg_dtype *ct, const char *name, struct kg_err *err)
{
    *ct = KG_BF16;
    return name ? kg_dtype_parse(ct, name, err) : KG_OK;
}

struct kg_opt_list kg_load_ignored(const struct kg_load_args *args)
{
    return (struct kg_opt_list){args->ignore.items, (size_t)args->ignore.n};
}

kg_status kg_load_tokenizer(struct kg_tokenizer **tok, const char *dir,
                            struct kg_err *err)
{
    *tok = NULL;
    kg_status status = kg_tokenizer_open(tok, dir, err);
    return status == KG_ENOTFOUND ? KG_OK : status;
}

static kg_status open_own(const struct kg_backend **be, const struct kg_load_args *args,
                          enum kg_dtype ct, struct kg_err *err)
{
    struct kg_ranks alone = {0}, *ranks = args->ranks ? args->ranks : &alone;
    struct kg_ranks_device device;
    const struct kg_device_opts opts = {.device = device.name,
                                        .products = args->products,
                                        .libraries = args->libraries,
                                        .unpinned = args->unpinned,
                                        .bf16 = ct == KG_BF16};

    KG_TRY(
        kg_ranks_choose_device(&device, ranks, args->device ? args->device : "cpu", err));
    KG_TRY(kg_device_open(be, &opts, err));
    return kg_ranks_check_devices(ranks, *be, err);
}

kg_status kg_load_device(const struct kg_backend **be, const struct kg_load_args *args,
                         enum kg_dtype ct, struct kg_err *err)
{
    if (open_own(be, args, ct, err) != KG_OK)
        return kg_err_prefix(err, "--device");
    return KG_OK;
}

static kg_status take_adapter(struct kg_model_opts *opts, struct kg_lora *lora,
                              const char *dir, struct kg_err *err)
{
    KG_TRY(kg_lora_read(lora, dir, err));
    opts->lora = lora;
    opts->adapter = dir;
    return KG_OK;
}

kg_status kg_load_adapter(struct kg_model **out, const struct kg_model *base,
                          const struct kg_tokenizer *tok, const char *dir,
                          struct kg_err *err)
{
    struct kg_model_opts opts = {.ct = base->ct};
    struct kg_lora lora;
    *out = NULL;
    KG_TRY(take_adapter(&opts, &lora, dir, err));
    if (tok)
        KG_TRY(kg_tokenizer_check_beside(tok, dir, err));
    return kg_model_share(out, base, &opts, err);
}

struct reading {
    const char *dir;
    struct kg_tokenizer *tok;
    kg_status status;
    struct kg_err err;
};

static void *read_tokenizer(void *user)
{
    struct reading *r = user;
    r->status = kg_load_tokenizer(&r->tok, r->dir, &r->err);
    return NULL;
}

/* Reads tokenizer and weights at the same time: for a small model the tokenizer takes one
 * thread half as long as the weights, while the other threads wait for memory. If both
 * fail, the model's error is reported, as if it were read first. */
static kg_status open_both(struct kg_loaded *l, const char *dir,
                           const struct kg_model_opts *opts, struct kg_err *err)
{
    struct reading r = {.dir = dir};
    pthread_t thread;
    const bool apart = pthread_create(&thread, NULL, read_tokenizer, &r) == 0;
    const kg_status status = kg_model_open(&l->model, dir, opts, err);
    if (apart)
        pthread_join(thread, NULL);
    else
        read_tokenizer(&r);
    l->tok = r.tok;
    if (status == KG_OK && r.status != KG_OK)
        *err = r.err;
    return status == KG_OK ? r.status : status;
}

kg_status kg_load_model(struct kg_loaded *l, const struct kg_load_args *args,
                        struct kg_err *err)
{
    struct kg_model_opts opts = {.ignore = kg_load_ignored(args),
                                 .base_dtype = args->base_dtype};
    struct kg_lora lora;
    kg_status status = KG_OK;
    *l = (struct kg_loaded){0};
    kg_threads_set((int)args->threads);
    if (args->adapter)
        KG_TRY(take_adapter(&opts, &lora, args->adapter, err));
    KG_TRY(kg_load_dtype(&opts.ct, args->dtype, err));
    KG_TRY(kg_load_device(&opts.backend, args, opts.ct, err));
    KG_TRY_GOTO(out, open_both(l, args->dir, &opts, err));
    if (l->tok && args->adapter)
        KG_TRY_GOTO(out, kg_tokenizer_check_beside(l->tok, args->adapter, err));
    if (l->tok)
        status = kg_model_config_add_eos(&l->model->config, kg_tokenizer_eos(l->tok),
                                         err);
out:
    if (status != KG_OK)
        kg_load_release(l);
    return status;
}

void kg_load_release(struct kg_loaded *l)
{
    kg_model_free(l->model);
    kg_tokenizer_close(l->tok);
    *l = (struct kg_loaded){0};
}

kg_status kg_load_check_length(const struct kg_loaded *l, int64_t max_len,
                               struct kg_err *err)
{
    if (max_len > l->model->config.max_positions)
        return kg_fail(err, KG_EINVAL,
                       "--max-len: expected at most the %d positions of the model, found "
                       "%lld",
                       l->model->config.max_positions, (long long)max_len);
    return KG_OK;
}

kg_status kg_load_ids(struct kg_ids *out, const struct kg_json_doc *doc, int32_t vocab,
                      struct kg_err *err)
{
    const struct kg_json *ids;
    KG_TRY(kg_json_need(&ids, doc, doc->root, "ids", KG_JSON_ARRAY, err));
    for (size_t i = 0; i < kg_json_size(ids); i++) {
        const struct kg_json *v = kg_json_at(ids, i);
        int64_t id = kg_json_int(v, -1);
        if (kg_json_type(v) != KG_JSON_INT)
            return kg_fail(err, KG_EFORMAT, "%s: ids[%zu]: expected a token id, found %s",
                           doc->where, i, kg_json_type_name(v));
        if (id < 0 || id >= vocab)
            return kg_fail(err, KG_EFORMAT,
                           "%s: ids[%zu]: expected an id between 0 and %d, found %lld",
                           doc->where, i, vocab - 1, (long long)kg_json_int(v, 0));
        KG_TRY(kg_ids_push(out, (int32_t)id, err));
    }
    return KG_OK;
}

/* ---- names of the hub ---- */

/* Logs the commit of a name, because a branch like "main" may move. */
static kg_status take(const char **text, const struct kg_hub_found *found,
                      struct kg_err *err)
{
    if (!found->cached)
        return KG_OK;
    kg_log_info("%s: %s in the hub's cache", *text, found->pinned);
    *text = kg_mem_strdup(found->path.text, err);
    return *text ? KG_OK : KG_ENOMEM;
}

kg_status kg_cli_find_model(const char **dir, struct kg_err *err)
{
    struct kg_hub_found found;

    if (!*dir)
        return KG_OK;
    KG_TRY(kg_hub_find_model(&found, *dir, err));
    return take(dir, &found, err);
}

kg_status kg_cli_find_file(const char **path, struct kg_err *err)
{
    struct kg_hub_found found;

    if (!*path)
        return KG_OK;
    KG_TRY(kg_hub_find_file(&found, *path, err));
    return take(path, &found, err);
}

kg_status kg_cli_find_flags(const struct kg_command *c, struct kg_err *err)
{
    struct kg_flag_walk walk = {c->flags, NULL};

    for (const struct kg_flag *f; (f = kg_flag_next(&walk));)
        if (f->arg_name && strcmp(f->arg_name, KG_MODEL_ARG) == 0 &&
            kg_cli_find_model(f->target, err) != KG_OK)
            return kg_err_prefix(err, "--%s", f->name);
    return KG_OK;
}
