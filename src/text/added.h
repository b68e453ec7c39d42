/* Added tokens: strings that are always one token (<|im_end|>, <think>).
 *
 * The leftmost match wins; among matches at one position, the longest. HuggingFace's
 * AddedVocabulary does the same.
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
    bool single_word; /* matches only if no kg_class_is_word character is next to it */
    bool lstrip;      /* the match includes white space before it */
    bool rstrip;      /* the match includes white space after it */
    bool special;
    size_t place; /* number of the push; among equal contents, the first is found */
};

/* A set of added tokens. {0} is the empty set. */
struct kg_added {
    /* owned; after sorting: by first byte, then longest first */
    struct kg_added_token *tokens;
    size_t n;
    size_t capacity;
    uint32_t first[257]; /* tokens that begin with byte b: [first[b], first[b + 1]) */
};
void kg_added_release(struct kg_added *set);
/* Adds a copy of the token.   errors: ENOMEM, EFORMAT (empty) */
kg_status kg_added_push(struct kg_added *set, const struct kg_added_token *token,
                        struct kg_err *err) KG_MUST_CHECK;
/* Call after the last push and before any search. */
void kg_added_sort(struct kg_added *set);
/* The token with this content; NULL: none. */
const struct kg_added_token *kg_added_find(const struct kg_added *set,
                                           const char *content, size_t n);

/* A walk over a text that yields plain text and tokens alternately. */
struct kg_added_scan {
    const struct kg_added *set; /* borrowed */
    const char *text;           /* borrowed */
    size_t n;
    bool with_special; /* false: tokens marked special are plain text */
    size_t at;         /* everything before this position was returned */
    size_t searched;   /* where the search continues */
    /* the token after the plain text just returned */
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
/* Returns false at the end. */
bool kg_added_scan_next(struct kg_added_scan *scan, struct kg_added_piece *piece);

#endif
