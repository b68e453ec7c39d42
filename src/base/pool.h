/* A growing pool: memory that is handed out piece by piece and goes away together.
 *
 * Chunks are taken from the memory door as they are needed, each twice the one before up
 * to a megabyte. Work that is done again and again empties the pool and keeps a chunk, so
 * that it takes no memory the second time. Every piece is zero. A pool is one thread's.
 */
#ifndef KG_BASE_POOL_H
#define KG_BASE_POOL_H

#include "base/status.h"

#include <stdint.h>

struct kg_pool_chunk;
struct kg_pool {
    const char *name;            /* borrowed; in errors; NULL: "pool" */
    size_t max_bytes;            /* of all chunks, headers included; 0: no limit */
    size_t first_bytes;          /* of the first chunk; 0: 4 KiB */
    struct kg_pool_chunk *chunk; /* owned: the newest first */
    size_t bytes;                /* held: chunks with their headers */
};

/* count*size zero bytes, aligned for every type.   returns borrowed pointer, never NULL
 * for a count of 0, or NULL with err set.   errors: ENOMEM, max_bytes passed included */
void *kg_pool_alloc(struct kg_pool *pool, size_t count, size_t size,
                    struct kg_err *err) KG_MUST_CHECK;
/* All is gone but a chunk of at most `keep_bytes`, for what comes next. */
void kg_pool_empty(struct kg_pool *pool, size_t keep_bytes);
/* All is gone; the pool may be used again. */
void kg_pool_release(struct kg_pool *pool);

#endif
