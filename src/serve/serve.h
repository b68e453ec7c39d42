/* `kedge serve`: OpenAI's API over the rollout engine.
 *
 * Three threads: the HTTP server's takes requests and counts what it must refuse; the
 * intake's parses them and makes tokens of them; the one that calls kg_serve_run has the
 * engine: it submits what is ready, steps, and tells tokens as they come. A request joins
 * the running batch at the next step, and leaves it when its client does.
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

/* Adapters beside the weights of the model that is served, under a name of their own. */
struct kg_serve_adapter {
    const char *name;
    const struct kg_model *model; /* kg_model_share of it */
};

struct kg_serve_opts {
    /* borrowed, as all below; where there are adapters it is mixed with these, in their
     * order (kg_model_mix) */
    const struct kg_model *model;
    const struct kg_serve_adapter *adapters; /* (n_adapters) */
    size_t n_adapters;
    const struct kg_tokenizer *tok;      /* NULL: prompts of ids only */
    const struct kg_chat_template *chat; /* NULL: no chat */
    /* of chat: see struct kg_api_model; NULL: none */
    const char *system, *opening, *date;
    const char *name;       /* of the model, for clients */
    const char *host;       /* NULL: 127.0.0.1 */
    int port;               /* 0: one that is free */
    const char *bearer_key; /* NULL: none asked for */
    int32_t max_batch;      /* sequences that decode together; 0: 64 */
    int32_t max_len;        /* prompt and answer; 0: the model's positions */
    int64_t
        kv_tokens; /* of the cache; 0: max_batch contexts or 65,536 tokens, the less */
    int32_t prefill_chunk;   /* prompt tokens that a step computes; 0: 512 */
    int32_t default_tokens;  /* as in struct kg_api_model */
    int max_requests;        /* taken and not answered; beyond: 429; 0: 512 */
    size_t max_body_bytes;   /* 0: 4 MiB */
    int max_connections;     /* 0: 1024 */
    size_t max_held_bytes;   /* of bodies and answers of all; 0: 256 MiB */
    const char *allow_hosts; /* as in struct kg_http_server_opts */
    /* A stream's pieces come at least so far apart: tokens between are told together. The
     * first one is told at once. 0: a piece for each token */
    double piece_seconds;
    int drain_s;   /* for open answers after the stop; 0: 30 */
    uint64_t seed; /* of requests that name none */
};

/* The engine that they ask for, what is not given filled in. */
struct kg_rollout_opts kg_serve_engine_opts(const struct kg_serve_opts *opts);

struct kg_serve; /* opaque */
/* Listens when it returns; answers once kg_serve_run is called.
 * errors: EINVAL (also a name twice), EIO (port in use), EFORMAT (the chat template fails
 * on a short message, or needs too much for it), ENOMEM */
kg_status kg_serve_open(struct kg_serve **out, const struct kg_serve_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;
int kg_serve_port(const struct kg_serve *s);

/* Serve until stop(user) is true (looked at between steps, and every 0.1 s when idle),
 * then finish what is open within drain_s: new requests get 503.   errors: of the engine,
 * when it cannot be begun again */
kg_status kg_serve_run(struct kg_serve *s, bool (*stop)(void *user), void *user,
                       struct kg_err *err) KG_MUST_CHECK;
void kg_serve_close(struct kg_serve *s); /* NULL allowed */

#endif
