/* The header of a message between ranks: its kind, and the number of bytes that follow.
 *
 * Every message on every transport has this header. The receiver checks it before it
 * takes a byte of the message. So ranks that are at different points of a run end with an
 * error message, and no rank writes past its buffer.
 */
#ifndef KG_RANKS_MESSAGE_H
#define KG_RANKS_MESSAGE_H

#include "ranks/ranks.h"

enum { KG_RANKS_KIND = 48 };
struct kg_ranks_head {
    char mark[8];
    uint64_t bytes;
    char kind
        [KG_RANKS_KIND]; /* r->kind, or the caller's `what`; truncated and zero-padded */
};

/* The contribution of a rank to kg_ranks_agree. */
struct kg_ranks_word {
    struct kg_err err;
    char at[KG_RANKS_KIND];
};

void kg_ranks_head_make(struct kg_ranks_head *head, const struct kg_ranks *r,
                        const char *what, size_t bytes);
/* Checks a message from rank `from`; `bytes` of `what` are expected.
 * errors: ECONFLICT, with both ranks, what was expected and what was found */
kg_status kg_ranks_head_check(const struct kg_ranks_head *head, const struct kg_ranks *r,
                              int from, const char *what, size_t bytes,
                              struct kg_err *err) KG_MUST_CHECK;

#endif
