/* A list of chunks, newest first; pieces come from the newest.
 *
 * Invariant: all bytes of a chunk from `touched` on are zero, because the chunk came from
 * calloc and no piece has reached them. So a new piece needs to be cleared only below
 * `touched`, where an earlier piece was: a first use clears nothing, a reuse clears only
 * what was used before. Emptying the pool resets `used` and keeps `touched`.
 */
#include "base/pool.h"

#include "base/mem.h"

#include <string.h>

enum { ALIGN = 16, FIRST_BYTES = 4 << 10, LAST_BYTES = 1 << 20 };

struct kg_pool_chunk {
    struct kg_pool_chunk *next; /* older */
    size_t capacity;            /* bytes after this header */
    size_t used;
    size_t touched; /* after it all bytes are zero */
};
_Static_assert(sizeof(struct kg_pool_chunk) % ALIGN == 0, "pieces behind it are aligned");

static const char *name_of(const struct kg_pool *pool)
{
    return pool->name ? pool->name : "pool";
}

/* Size of the next chunk: at least `need` bytes, at most `room`. */
static size_t chunk_bytes(const struct kg_pool *pool, size_t need, size_t room)
{
    size_t first = pool->first_bytes ? pool->first_bytes : FIRST_BYTES;
    size_t bytes = pool->chunk ? 2 * pool->chunk->capacity : first;

    bytes = bytes > LAST_BYTES ? LAST_BYTES : bytes;
    bytes = bytes > room ? room : bytes;
    return bytes < need ? need : bytes;
}

static kg_status add_chunk(struct kg_pool *pool, size_t need, struct kg_err *err)
{
    const size_t header = sizeof(struct kg_pool_chunk);
    size_t left = (pool->max_bytes ? pool->max_bytes : SIZE_MAX / 4) - pool->bytes;
    size_t room = left > header ? left - header : 0;
    size_t bytes;

    if (need > room)
        return kg_fail(err, KG_ENOMEM, "%s: expected at most %zu bytes, found more",
                       name_of(pool), left + pool->bytes);
    bytes = chunk_bytes(pool, need, room);
    struct kg_pool_chunk *c = kg_mem_calloc(1, header + bytes, name_of(pool), err);
    if (!c)
        return KG_ENOMEM;
    c->capacity = bytes;
    c->next = pool->chunk;
    pool->chunk = c;
    pool->bytes += header + bytes;
    return KG_OK;
}

/* Takes the next `bytes` of a chunk that has them, zeroed. */
static void *take(struct kg_pool_chunk *c, size_t bytes)
{
    char *piece = (char *)(c + 1) + c->used;
    size_t dirty = c->touched - c->used;

    memset(piece, 0, dirty < bytes ? dirty : bytes);
    c->used += bytes;
    c->touched = c->used > c->touched ? c->used : c->touched;
    return piece;
}

void *kg_pool_alloc(struct kg_pool *pool, size_t count, size_t size, struct kg_err *err)
{
    size_t bytes;

    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 8) {
        kg_fail(err, KG_ENOMEM, "%s: %zu elements of %zu bytes are too many",
                name_of(pool), count, size);
        return NULL;
    }
    bytes = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    if (!pool->chunk || pool->chunk->capacity - pool->chunk->used < bytes)
        if (add_chunk(pool, bytes, err) != KG_OK)
            return NULL;
    return take(pool->chunk, bytes);
}

void kg_pool_empty(struct kg_pool *pool, size_t keep_bytes)
{
    struct kg_pool_chunk *kept = NULL;

    for (struct kg_pool_chunk *c = pool->chunk, *next; c; c = next) {
        size_t bytes = sizeof *c + c->capacity;

        next = c->next;
        if (!kept && bytes <= keep_bytes) {
            kept = c;
            continue;
        }
        pool->bytes -= bytes;
        kg_mem_free(c);
    }
    pool->chunk = kept;
    if (kept) {
        kept->next = NULL;
        kept->used = 0;
    }
}

void kg_pool_release(struct kg_pool *pool) { kg_pool_empty(pool, 0); }
