/* Answers from a server that speaks OpenAI's protocol: one request for each sample.
 *
 * Requests are in flight up to a bound, and tried again when a failure may pass
 * (net/http_client.h). The seed of the sample goes with each, so that a kedge server
 * gives the bits that the engine of this process would; another server does what it does
 * with a seed. What is graded is choices[0]'s text or message content, as it comes.
 */
#ifndef KG_EVAL_REMOTE_H
#define KG_EVAL_REMOTE_H

#include "eval/runner.h"

struct kg_eval_remote_opts {
    const char *base_url; /* "http://127.0.0.1:8000/v1" */
    const char *model;    /* NULL: the only one that the server lists */
    bool completions;     /* POST /completions with text; else /chat/completions */
    const char *key;      /* NULL: none */
    int in_flight;        /* requests at once; 0: 16 */
    int timeout_ms;       /* of one try; 0: 600,000 */
    int tries;            /* 0: 6 */
    int backoff_ms;       /* 0: 500 */
};

struct kg_eval_remote {
    struct kg_eval_source source; /* first */
    struct kg_eval_remote_opts opts;
    char *url;       /* owned: where requests go */
    char *model;     /* owned */
    bool listed;     /* the list of models was asked for */
    int64_t max_len; /* positions of the model by that list; 0: not said. An answer gets
                      * what its prompt leaves of them, as here */
    struct kg_http_client *client;
    double heard; /* when it answered last, or the client was opened */
};

/* Opens nothing but asks for the list of models where none is named; else it is asked
 * for once, for the model's positions, when the first set is prepared.
 * errors: EINVAL (no http:// or https:// address), EIO, ETIMEOUT (server not reached),
 * EFORMAT (an answer of another shape), ENOTFOUND (no or several models: named) */
kg_status kg_eval_remote_open(struct kg_eval_remote *r,
                              const struct kg_eval_remote_opts *opts,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_eval_remote_close(struct kg_eval_remote *r); /* {0} allowed */

#endif
