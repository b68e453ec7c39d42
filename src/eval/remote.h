/* Samples from a server with OpenAI's protocol, one request per sample.
 *
 * The number of requests in flight is bounded, and failures that may pass are retried
 * (net/http_client.h). Each request has the seed of its sample, so a kedge server returns
 * the same bits as the local engine; other servers may ignore the seed. The text or
 * message content of choices[0] is graded.
 */
#ifndef KG_EVAL_REMOTE_H
#define KG_EVAL_REMOTE_H

#include "eval/runner.h"

struct kg_eval_remote_opts {
    const char *base_url; /* "http://127.0.0.1:8000/v1" */
    const char *model;    /* NULL: the only one in the server's list */
    bool completions;     /* POST /completions with text; else /chat/completions */
    const char *key;      /* NULL: none */
    int in_flight;        /* requests at once; 0: 16 */
    int timeout_ms;       /* timeout of one try; 0: 600,000 */
    int tries;            /* tries of a request; 0: 6 */
    int backoff_ms;       /* wait before the first retry; 0: 500 */
};

struct kg_eval_remote {
    struct kg_eval_source source; /* first */
    struct kg_eval_remote_opts opts;
    char *url;   /* owned: URL of requests */
    char *model; /* owned */
    bool listed; /* the list of models was fetched */
    /* the model's context length in that list; 0: unknown. max_tokens is limited to the
     * rest after the prompt, as in the local engine */
    int64_t max_len;
    struct kg_http_client *client;
    double heard; /* time of the last response, or of opening */
};

/* Fetches the list of models if no model is named. Otherwise the first set fetches the
 * list, to learn the context length.
 * errors: EINVAL (not an http:// or https:// address), EIO, ETIMEOUT (server not
 * reached), EFORMAT (an unexpected response), ENOTFOUND (no model, or several: lists
 * them) */
kg_status kg_eval_remote_open(struct kg_eval_remote *r,
                              const struct kg_eval_remote_opts *opts,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_eval_remote_close(struct kg_eval_remote *r); /* {0} allowed */

#endif
