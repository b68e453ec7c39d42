/* `kedge serve`: OpenAI's API over the rollout engine.
 *
 * Three threads: the HTTP server's thread accepts requests within the limits; the intake
 * thread parses and tokenizes them; the thread in kg_serve_run owns the engine: it
 * submits prepared requests, makes steps, and streams new tokens. A request joins the
 * running batch at the next step, and is removed when its client leaves.
 */
#ifndef KG_SERVE_SERVE_H
#define KG_SERVE_SERVE_H

#include "base/status.h"
#include "model/model.h"
#include "rollout/rollout.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

/* Adapters served with the base model under their own names. */
struct kg_serve_adapter {
    const char *name;
    const struct kg_model *model; /* made from the base by kg_model_share */
};

struct kg_policy;
struct kg_http_keys;
struct kg_serve_opts {
    struct kg_policy *policy; /* NULL: a server for clients; else see serve/policy.h */
    /* borrowed, like all pointers below; if there are adapters, kg_model_mix has mixed
     * them into it in their order */
    const struct kg_model *model;
    const struct kg_serve_adapter *adapters; /* (n_adapters) */
    size_t n_adapters;
    const struct kg_tokenizer *tok;      /* NULL: prompts of ids only */
    const struct kg_chat_template *chat; /* NULL: no chat */
    /* for chat: see struct kg_api_model; NULL: none */
    const char *system, *opening, *date;
    const char *name;       /* name of the model, shown to clients */
    const char *host;       /* NULL: 127.0.0.1 */
    int port;               /* 0: any free port */
    const char *bearer_key; /* NULL: no key needed */
    /* kg_serve_train: a key for each user (net/http_keys.h); NULL: one user */
    const struct kg_http_keys *keys;
    int max_models;    /* kg_serve_train: models per user; 0: 4 (keys NULL: no limit) */
    int32_t max_batch; /* number of sequences decoded together; 0: 64 */
    int32_t max_len;   /* of prompt and completion; 0: the model's context length */
    /* size of the cache; 0: max_batch contexts, at most 65,536 tokens or one context */
    int64_t kv_tokens;
    int32_t prefill_chunk;    /* prompt tokens computed per step; 0: 512 */
    int32_t default_tokens;   /* as in struct kg_api_model */
    int max_requests;         /* open at once; further requests get a 429; 0: 512 */
    size_t max_body_bytes;    /* 0: 4 MiB */
    int max_connections;      /* 0: 1024 */
    size_t max_held_bytes;    /* all request and response bodies together; 0: 256 MiB */
    size_t max_session_bytes; /* ids and texts of all sessions together; 0: 64 MiB */
    const char *allow_hosts;  /* as in struct kg_http_server_opts */
    /* Minimum time between pieces of a stream; tokens in between are sent together. The
     * first piece is sent at once. 0: a piece per token */
    double piece_seconds;
    bool routed_experts; /* complete responses list the experts of their tokens */
    int drain_s;         /* seconds that open requests have after stop; 0: 30 */
    uint64_t seed;       /* determines the seeds of requests without one */
};

/* The engine options for opts, with defaults filled in. */
struct kg_rollout_opts kg_serve_engine_opts(const struct kg_serve_opts *opts);

struct kg_serve; /* opaque */
/* Listens on return; requests are served once kg_serve_run is called.
 * errors: EINVAL (also a duplicate name, or routed_experts of a model without experts),
 * EIO (port in use), EFORMAT (the chat template fails on a short message, or exceeds its
 * limits), ENOMEM */
kg_status kg_serve_open(struct kg_serve **out, const struct kg_serve_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;
int kg_serve_port(const struct kg_serve *s);

/* Serves until stop(user) is true (checked between steps, and every 0.1 s when idle).
 * Then new requests get a 503, and open ones have drain_s seconds to finish.   errors:
 * the engine's, if it failed and cannot be restarted */
kg_status kg_serve_run(struct kg_serve *s, bool (*stop)(void *user), void *user,
                       struct kg_err *err) KG_MUST_CHECK;
void kg_serve_close(struct kg_serve *s); /* NULL allowed */

/* Serves Tinker's API instead (guests/tinker): clients train and sample models that start
 * as opts->model, which must be opened for inference. Checkpoints are folders below dir.
 * Serves until stop(user) is true.   errors: those of kg_serve_open */
kg_status kg_serve_train(const struct kg_serve_opts *opts, const char *dir,
                         bool (*stop)(void *user), void *user,
                         struct kg_err *err) KG_GUEST;

#endif
