/* A growing pool: many small allocations that are freed together.
 *
 * base/mem.h allocates chunks as needed: each twice the size of the previous one, up to a
 * megabyte, or larger for one larger allocation. Emptying the pool can keep one chunk.
 * All memory handed out is zero. A pool belongs to one thread.
 */
#ifndef KG_BASE_POOL_H
#define KG_BASE_POOL_H

#include "base/status.h"

#include <stdint.h>

struct kg_pool_chunk;
struct kg_pool {
    const char *name;            /* borrowed; the name in errors; NULL: "pool" */
    size_t max_bytes;            /* limit of all chunks with headers; 0: no limit */
    size_t first_bytes;          /* size of the first chunk; 0: 4 KiB */
    struct kg_pool_chunk *chunk; /* owned: the newest first */
    size_t bytes;                /* bytes held: chunks with their headers */
};

/* count*size zero bytes, aligned for every type.   returns a borrowed pointer (never NULL
 * for a count of 0), or NULL with err set.   errors: ENOMEM, also when max_bytes would be
 * passed */
void *kg_pool_alloc(struct kg_pool *pool, size_t count, size_t size,
                    struct kg_err *err) KG_MUST_CHECK;
/* Frees everything but one chunk of at most `keep_bytes`, for reuse. */
void kg_pool_empty(struct kg_pool *pool, size_t keep_bytes);
/* Frees everything; the pool may be used again. */
void kg_pool_release(struct kg_pool *pool);

#endif
