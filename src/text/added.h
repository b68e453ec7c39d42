/* Added tokens: strings of a text that are a token as a whole (<|im_end|>, <think>).
 *
 * The leftmost match counts, of several there the longest, as in HuggingFace's
 * AddedVocabulary.
 */
#ifndef KG_TEXT_ADDED_H
#define KG_TEXT_ADDED_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_added_token {
    char *content; /* owned */
    size_t n;      /* bytes, >= 1 */
    int32_t id;
    bool single_word; /* no letter, digit or mark stands at either end of it */
    bool lstrip;      /* takes the white space before it along */
    bool rstrip;      /* and after it */
    bool special;
    size_t place; /* in the order of pushing: of equal contents the first is found */
};

/* A set of added tokens. {0} is the empty set. */
struct kg_added {
    /* owned; by first byte, then longest first, once sorted */
    struct kg_added_token *tokens;
    size_t n;
    size_t capacity;
    uint32_t first[257]; /* tokens that begin with byte b: [first[b], first[b + 1]) */
};
void kg_added_release(struct kg_added *set);
/* Copies the content.   errors: ENOMEM, EFORMAT (empty) */
kg_status kg_added_push(struct kg_added *set, const struct kg_added_token *token,
                        struct kg_err *err) KG_MUST_CHECK;
/* After the last push, before any search. */
void kg_added_sort(struct kg_added *set);
const struct kg_added_token *kg_added_find(const struct kg_added *set,
                                           const char *content, size_t n);

/* A walk over a text: stretches of plain text and tokens by turns. */
struct kg_added_scan {
    const struct kg_added *set; /* borrowed */
    const char *text;           /* borrowed */
    size_t n;
    bool with_special; /* false: tokens marked special are plain text */
    size_t at;         /* everything before was handed out */
    size_t searched;   /* where the search goes on */
    /* found behind the plain text just handed out */
    const struct kg_added_token *waiting;
    size_t waiting_end;
};
struct kg_added_piece {
    size_t start;
    size_t len;
    const struct kg_added_token *token; /* NULL for plain text */
};
void kg_added_scan_start(struct kg_added_scan *scan, const struct kg_added *set,
                         const char *text, size_t n, bool with_special);
/* false at the end */
bool kg_added_scan_next(struct kg_added_scan *scan, struct kg_added_piece *piece);

#endif
