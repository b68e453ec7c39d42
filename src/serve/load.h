/* A server under load, beside its engine alone: one paired measurement in one process.
 *
 * Rounds alternate: the engine runs all sequences by itself; then as many clients stream
 * the same sequences from a server over that model. Shared cores are part of the served
 * side, the clients included.
 */
#ifndef KG_SERVE_LOAD_H
#define KG_SERVE_LOAD_H

#include "base/str.h"
#include "model/model.h"
#include "text/tokenizer.h"

struct kg_serve_load_opts {
    const struct kg_model *model;
    const struct kg_tokenizer *tok; /* NULL: ids are streamed instead of text */
    int streams;                    /* 0: 64 */
    int tokens;                     /* of each answer; 0: 256 */
    int rounds;                     /* 0: 5 */
    double piece_seconds;           /* of the server */
    double soak_seconds;            /* served rounds alone, after the paired ones */
    bool json;
};

/* Append: the rate alone and served, their ratio in the best of the paired rounds and the
 * median, the time from a free slot to the first token of the request that takes it in
 * decode steps, what a soak answered, and what memory did over all of it.
 * errors: of the engine and the server; EIO when an answer was not what it should be */
kg_status kg_serve_load(struct kg_str *out, const struct kg_serve_load_opts *opts,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
