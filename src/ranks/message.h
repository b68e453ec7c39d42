/* The head of a message between ranks: what it is, and how many bytes follow.
 *
 * Every message has one, whatever carries it. The receiver compares the head with what it
 * expects before it takes a byte. So ranks that are not at the same place of the same run
 * end in words, and no rank writes past what it has room for.
 */
#ifndef KG_RANKS_MESSAGE_H
#define KG_RANKS_MESSAGE_H

#include "ranks/ranks.h"

enum { KG_RANKS_KIND = 48 };
struct kg_ranks_head {
    char mark[8];
    uint64_t bytes;
    char kind[KG_RANKS_KIND]; /* the caller's `what`, cut; zeros behind it; or r->kind */
};

/* What a rank says where all agree (kg_ranks_agree). */
struct kg_ranks_word {
    struct kg_err err;
    char at[KG_RANKS_KIND];
};

void kg_ranks_head_make(struct kg_ranks_head *head, const struct kg_ranks *r,
                        const char *what, size_t bytes);
/* Of a message from rank `from`, where `bytes` of `what` are expected.
 * errors: ECONFLICT, with both ranks, what was expected and what was found */
kg_status kg_ranks_head_check(const struct kg_ranks_head *head, const struct kg_ranks *r,
                              int from, const char *what, size_t bytes,
                              struct kg_err *err) KG_MUST_CHECK;

#endif
