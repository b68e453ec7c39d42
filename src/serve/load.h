/* Measures a server under load against its engine alone, paired in one process.
 *
 * Rounds alternate: the engine runs all sequences by itself; then the same number of
 * clients stream the same sequences from a server with that model. The served rounds
 * share the cores with the clients.
 */
#ifndef KG_SERVE_LOAD_H
#define KG_SERVE_LOAD_H

#include "base/str.h"
#include "model/model.h"
#include "text/tokenizer.h"

struct kg_serve_load_opts {
    const struct kg_model *model;
    const struct kg_tokenizer *tok; /* NULL: streams ids instead of text */
    int streams;                    /* 0: 64 */
    int tokens;                     /* tokens per completion; 0: 256 */
    int rounds;                     /* 0: 5 */
    double piece_seconds;           /* kg_serve_opts.piece_seconds of the server */
    double soak_seconds; /* duration of extra served rounds after the paired ones */
    bool json;
};

/* Appends: the token rates of engine and server; their ratio in the best round and the
 * median; in decode steps, the time from a free slot to the first token of the request
 * that takes it; the requests completed in the soak; the change of memory.
 * errors: of the engine and the server; EIO if a response was not as expected */
kg_status kg_serve_load(struct kg_str *out, const struct kg_serve_load_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
