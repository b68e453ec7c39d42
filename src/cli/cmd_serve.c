/* kedge serve: OpenAI's API over one checkpoint. Cheap checks come first: key, name and
 * template before the weights. The key comes from a file, because other users of the
 * machine can see arguments. Listening beyond this machine without a key gives a warning.
 * On a signal, open requests may finish within a time limit. */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signal.h"
#include "data/hub.h"
#include "net/http_keys.h"
#include "net/http_parse.h"
#include "serve/serve.h"
#include "text/chat_template.h"

#include <limits.h>
#include <string.h>

enum { DEFAULT_PORT = 8000, MAX_KEY_BYTES = 4096, MAX_ADAPTER_NAME = 127 };

static const char *name;
static const char *train_dir;
static const char *host = "127.0.0.1";
static const char *key_file;
static const char *keys_file;
static const char *chat_template = "auto";
static int64_t port = DEFAULT_PORT;
static int64_t max_batch;
static int64_t max_len;
static int64_t kv_tokens;
static int64_t default_tokens;
static int64_t prefill_chunk;
static int64_t max_requests;
static int64_t max_models;
static int64_t max_body;
static int64_t max_connections;
static int64_t max_held;
static int64_t session_bytes;
static const char *allow_hosts;
static bool routed_experts;
static int64_t drain;
static int64_t piece_ms = 50;
static int64_t seed = -1;
static struct kg_prompt_opts how = {.prefix = "--"};

static struct kg_flag_list adapters;

const struct kg_flag kg_serve_flags[] = {
    {"model", 'm', KG_TO(kg_load.dir), KG_MODEL_ARG,
     "checkpoint folder, or ORG/NAME of the hub's cache (docs/hub.md)"},
    {"adapter", 0, KG_KEY_IF(KG_ADAPTER_KEY, "--model", adapters), "[NAME=]DIR",
     "PEFT folder of adapters for the model; repeat NAME=DIR to serve each under its "
     "name, next to the base model"},
    KG_FLAGS_OF(kg_ignore_flags),
    {"name", 0, KG_TO(name), "NAME",
     "the model's name for clients (default: the name of the folder)"},
    {"train", 0, KG_TO(train_dir), "DIR",
     "serve Tinker's API instead: clients train the model, checkpoints go below DIR "
     "(docs/tinker.md)"},
    {"host", 0, KG_TO(host), "ADDRESS",
     "address to listen on (default 127.0.0.1: only this machine)"},
    {"port", 'p', KG_TO(port), "N", "port (default 8000; 0: any free port)", 0, 65535},
    {"api-key-file", 0, KG_TO(key_file), "FILE",
     "file with the key that clients must send (default: no key)"},
    {"api-keys", 0, KG_IF("--train&--api-key-file=", keys_file), "FILE",
     "with --train: file with a line NAME KEY for each user; users see only their own "
     "models; the file's owner alone may read it (docs/tinker.md)"},
    {"max-models", 0, KG_IF("--train", max_models), "N",
     "with --train: largest number of models in training per user (default: 4 if there "
     "are several users, else no limit)",
     1, 1 << 20},
    {"chat-template", 0, KG_IF("--train=", chat_template), "CHOICE",
     "auto (the model folder's), none, or a file or folder (default auto)"},
    {"system", 0, KG_IF("--train=", how.system), "TEXT",
     "system prompt of conversations that have none"},
    {"opening", 0, KG_IF("--train=", how.opening), "TEXT",
     "beginning of the assistant's turn, if the template does not write it"},
    {"date", 0, KG_IF("--train=", how.date), "YYYY-MM-DD",
     "date for chat templates that use it (default: the day of the request)"},
    {"max-batch", 0, KG_TO(max_batch), "N", "sequences decoded together (default 64)", 1,
     65536},
    {"max-len", 0, KG_TO(max_len), "N",
     "largest number of tokens of prompt and completion (default: the model's "
     "positions)",
     2, INT_MAX},
    {"kv-tokens", 0, KG_TO(kv_tokens), "N",
     "tokens in the cache (default: max-batch times max-len, at most the larger of "
     "65,536 and max-len)",
     64, 1e12},
    {"default-max-tokens", 0, KG_IF("--train=", default_tokens), "N",
     "max_tokens of requests without it (default: chat the rest of the context, "
     "completions 16)",
     1, INT_MAX},
    {"prefill-chunk", 0, KG_TO(prefill_chunk), "N",
     "prompt tokens computed per step (default 512)", 1, 1 << 20},
    {"max-requests", 0, KG_TO(max_requests), "N",
     "open requests; further ones get status 429 (default 512)", 1, 1 << 20},
    {"max-body", 0, KG_TO(max_body), "BYTES",
     "largest request body; a larger one gets status 413 (default 4 MiB)", 1, 1 << 30},
    {"max-connections", 0, KG_TO(max_connections), "N",
     "connections; further ones get status 503 (default 1024)", 1, 1 << 20},
    {"max-held", 0, KG_TO(max_held), "BYTES",
     "memory for bodies and responses of all clients; large requests beyond it get "
     "status 503 (default 256 MiB)",
     1 << 20, 1e12},
    {"session-bytes", 0, KG_IF("--train=", session_bytes), "BYTES",
     "memory for token ids and texts of sessions (session_id); above, the least recently "
     "used is dropped (default 64 MiB)",
     1, 1e12},
    {"allow-host", 0, KG_IF("--api-key-file=&--api-keys=", allow_hosts), "NAMES",
     "further host names, comma-separated, accepted by a local server without a key; *: "
     "any (default: localhost and its addresses)"},
    {"stream-interval", 0, KG_IF("--train=", piece_ms), "MS",
     "least time between two chunks of a stream in ms; a chunk has all tokens since the "
     "previous one (default 50; 0: a chunk for each token)",
     0, 60000},
    {"routed-experts", 0, KG_IF("--train=", routed_experts), NULL,
     "responses that are not streamed list the experts of each token (models with "
     "experts)"},
    {"drain", 0, KG_IF("--train=", drain), "S",
     "time for open requests after SIGTERM, in seconds (default 30)", 1, 86400},
    {"seed", 0, KG_TO(seed), "S",
     "seed of requests without one (default: from the clock)", 0, 1e18},
    KG_FLAGS_OF(kg_compute_flags),
    KG_FLAGS_OF(kg_device_flags),
    {0},
};

/* The key is one line; white space around it is not part of it. */
static kg_status read_key(struct kg_str *key, struct kg_err *err)
{
    if (key_file == NULL)
        return KG_OK;
    KG_TRY(kg_file_read_stream(key, key_file, MAX_KEY_BYTES, err));
    while (key->len > 0 && kg_char_in(" \t\r\n", key->data[key->len - 1]))
        key->data[--key->len] = '\0';
    if (key->len == 0 || strlen(key->data) != key->len ||
        strcspn(key->data, " \t\r\n") != key->len)
        return kg_fail(err, KG_EFORMAT, "%s: expected one key without spaces", key_file);
    return KG_OK;
}

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
           strcmp(address, "localhost") == 0;
}

/* The last part of the folder's path; for a model of the hub, ORG/NAME. */
static kg_status model_name(struct kg_str *out, struct kg_err *err)
{
    char id[KG_HUB_ID_MAX + 1], commit[41];
    size_t n = strlen(kg_load.dir);
    if (name)
        return kg_str_puts(out, name, err);
    if (kg_hub_is_snapshot(id, commit, kg_load.dir))
        return kg_str_puts(out, id, err);
    while (n > 1 && kg_load.dir[n - 1] == '/')
        n--;
    size_t from = n;
    while (from > 0 && kg_load.dir[from - 1] != '/')
        from--;
    return kg_str_append(out, kg_load.dir + from, n - from, err);
}

/* ---- adapters ---- */

/* Adapters with a name. */
struct named {
    struct kg_serve_adapter list[KG_FLAG_LIST_MAX];
    char names[KG_FLAG_LIST_MAX][MAX_ADAPTER_NAME + 1];
    struct kg_model *models[KG_FLAG_LIST_MAX]; /* owned */
    size_t n;
};

/* Length of NAME in NAME=DIR; 0: only a folder (a '=' after a '/' belongs to a path). */
static size_t name_length(const char *item)
{
    const size_t n = strcspn(item, "=/");
    return item[n] == '=' ? n : 0;
}

/* A single folder without a name is loaded as the model's adapter. */
static kg_status find_single(struct kg_err *err)
{
    for (int i = 0; i < adapters.n; i++) {
        const char *item = adapters.items[i];
        if (name_length(item) > MAX_ADAPTER_NAME)
            return kg_fail(err, KG_EINVAL,
                           "--adapter: expected a name of at most %d bytes, found "
                           "'%.80s'",
                           MAX_ADAPTER_NAME, item);
        if (name_length(item) > 0)
            continue;
        if (adapters.n > 1)
            return kg_fail(err, KG_EINVAL,
                           "--adapter: expected NAME=DIR for each of several, found "
                           "'%.200s'",
                           item);
        kg_load.adapter = item;
        KG_TRY(kg_cli_find_model(&kg_load.adapter, err));
    }
    return KG_OK;
}

static kg_status open_named(struct named *x, struct kg_model *base,
                            const struct kg_tokenizer *tok, struct kg_err *err)
{
    for (int i = 0; i < adapters.n && !kg_load.adapter; i++) {
        const char *item = adapters.items[i];
        const size_t n = name_length(item);
        const char *dir = item + n + 1;
        memcpy(x->names[i], item, n);
        if (kg_cli_find_model(&dir, err) != KG_OK ||
            kg_load_adapter(&x->models[i], base, tok, dir, err) != KG_OK)
            return kg_err_prefix(err, "--adapter %s", x->names[i]);
        x->list[x->n++] = (struct kg_serve_adapter){x->names[i], x->models[i]};
    }
    return kg_model_mix(base, (const struct kg_model *const *)x->models, (int32_t)x->n,
                        err);
}

static void close_named(struct named *x)
{
    for (size_t i = 0; i < x->n; i++)
        kg_model_free(x->models[i]);
}

/* ---- serving ---- */

static bool stop_requested(void *user)
{
    (void)user;
    return kg_signal_stop_requested();
}

static kg_status serve(const struct kg_serve_opts *opts, struct kg_err *err)
{
    struct kg_serve *s = NULL;
    struct kg_str at = {0};
    kg_status status;
    kg_signal_install();
    if (!opts->bearer_key && !opts->keys && !is_loopback(host))
        kg_log_warn(
            "anyone who can reach %s can use the model: --api-key-file is not set", host);
    if (train_dir)
        return kg_serve_train(opts, train_dir, stop_requested, NULL, err);
    KG_TRY_GOTO(out, kg_http_put_host(&at, host, err));
    KG_TRY_GOTO(out, kg_serve_open(&s, opts, err));
    kg_log_info("serving %s at http://%s:%d/v1 (%s key, %s)", opts->name, at.data,
                kg_serve_port(s), opts->bearer_key ? "with a" : "no",
                opts->chat ? "completions and chat"
                           : "only completions: no chat template");
    for (size_t i = 0; i < opts->n_adapters; i++)
        kg_log_info("also %s, adapters of rank %d", opts->adapters[i].name,
                    opts->adapters[i].model->most_rank);
    status = kg_serve_run(s, stop_requested, NULL, err);
out:
    kg_serve_close(s);
    kg_str_release(&at);
    return status;
}

static struct kg_serve_opts options(const struct kg_loaded *l)
{
    return (struct kg_serve_opts){
        .model = l->model,
        .tok = l->tok,
        .system = how.system,
        .opening = how.opening,
        .date = how.date,
        .host = host,
        .port = (int)port,
        .max_batch = (int32_t)max_batch,
        .max_len = (int32_t)max_len,
        .kv_tokens = kv_tokens,
        .default_tokens = (int32_t)default_tokens,
        .prefill_chunk = (int32_t)prefill_chunk,
        .max_requests = (int)max_requests,
        .max_models = (int)max_models,
        .max_body_bytes = (size_t)max_body,
        .max_connections = (int)max_connections,
        .max_held_bytes = (size_t)max_held,
        .max_session_bytes = (size_t)session_bytes,
        .allow_hosts = allow_hosts,
        .routed_experts = routed_experts,
        .drain_s = (int)drain,
        .seed = seed >= 0 ? (uint64_t)seed : (uint64_t)(kg_clock_unix_seconds() * 1e6)};
}

int kg_cmd_serve(int argc, char **argv)
{
    struct kg_loaded l = {0};
    struct named named = {.n = 0};
    struct kg_chat_template *chat = NULL;
    struct kg_http_keys keys = {.n = 0};
    struct kg_str key = {0};
    struct kg_str called = {0};
    struct kg_err err;
    kg_status status = KG_OK;
    (void)argc;
    (void)argv;
    if (kg_load.dir == NULL)
        return kg_cli_usage("expected --model DIR");
    if (train_dir && !kg_serve_train)
        return kg_cli_exit(kg_guest_missing("--train", "tinker", &err), &err);
    KG_TRY_GOTO(out, find_single(&err));
    KG_TRY_GOTO(out, read_key(&key, &err));
    if (keys_file)
        KG_TRY_GOTO(out, kg_http_keys_read(&keys, keys_file, &err));
    KG_TRY_GOTO(out, model_name(&called, &err));
    KG_TRY_GOTO(out, kg_chat_template_choose(&chat, chat_template, kg_load.dir, &err));
    how.chat = chat;
    KG_TRY_GOTO(out, kg_prompt_check(&how, &err));
    KG_TRY_GOTO(out, kg_load_model(&l, &kg_load, &err));
    KG_TRY_GOTO(out, kg_load_check_length(&l, max_len, &err));
    KG_TRY_GOTO(out, open_named(&named, l.model, l.tok, &err));
    struct kg_serve_opts opts = options(&l);
    opts.adapters = named.list;
    opts.n_adapters = named.n;
    opts.name = called.data;
    opts.chat = chat;
    opts.bearer_key = key_file ? key.data : NULL;
    opts.keys = keys_file ? &keys : NULL;
    status = serve(&opts, &err);
out:
    close_named(&named);
    kg_load_release(&l);
    kg_chat_template_close(chat);
    kg_str_release(&key);
    kg_http_keys_release(&keys);
    kg_str_release(&called);
    return kg_cli_exit(status, &err);
}
