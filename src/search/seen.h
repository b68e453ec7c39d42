/* A hash set of texts, each with two numbers: detects duplicate ids.
 *
 * The texts are not stored: on an equal hash the caller compares the text at the row.
 */
#ifndef KG_SEARCH_SEEN_H
#define KG_SEARCH_SEEN_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct kg_seen_entry {
    uint64_t hash;   /* 0: free */
    uint32_t row;    /* from 1 */
    uint32_t number; /* number of the record in its file */
};
struct kg_seen {                   /* {0} is empty */
    struct kg_seen_entry *entries; /* (capacity) owned */
    size_t capacity;               /* a power of two, or 0 */
    size_t used;
};
void kg_seen_release(struct kg_seen *seen);
/* The first entry with this hash from *at on, or NULL; *at moves past it. Start with
 * SIZE_MAX. */
const struct kg_seen_entry *kg_seen_find(const struct kg_seen *seen, uint64_t hash,
                                         size_t *at);
kg_status kg_seen_add(struct kg_seen *seen, const struct kg_seen_entry *entry,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
