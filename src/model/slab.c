/* Slabs, all that is done to them in whole, and how they are cut.
 *
 * It knows a length and a backend, no tensor: which parameter lies where is model.c's.
 *
 * The one idea: everything goes by pieces of one size. Threads share the pieces, a hash
 * is chained over them, a walk to the host needs a buffer of one, and a cut is a run of
 * them. Whoever holds memory that the host cannot touch has to be asked in this file
 * alone.
 */
#include "model/slab.h"

#include "base/hash.h"
#include "base/mem.h"

#include <assert.h>

static uint64_t bytes_of(const struct kg_slab *s, int64_t n)
{
    return (uint64_t)n * kg_dtype_traits(s->dtype)->bytes;
}

static char *address(const struct kg_slab *s, int64_t first)
{
    return (char *)s->memory + bytes_of(s, first);
}

struct kg_mat kg_slab_row(const struct kg_slab *s, int64_t first, int64_t n)
{
    return kg_mat(address(s, first), s->dtype, 1, n);
}

/* ---- life ---- */
kg_status kg_slab_init_as(struct kg_slab *s, const struct kg_backend *backend,
                          enum kg_dtype dtype, int64_t n, const char *what,
                          struct kg_err *err)
{
    *s = (struct kg_slab){.backend = backend, .dtype = dtype};
    s->memory = kg_buf_alloc(backend, bytes_of(s, n), what, err);
    s->n = s->memory ? n : 0;
    return s->memory ? KG_OK : err->code;
}

kg_status kg_slab_init(struct kg_slab *s, const struct kg_backend *backend, int64_t n,
                       const char *what, struct kg_err *err)
{
    return kg_slab_init_as(s, backend, KG_F32, n, what, err);
}

void kg_slab_release(struct kg_slab *s)
{
    if (s->memory)
        kg_buf_free(s->backend, s->memory);
    *s = (struct kg_slab){0};
}

/* ---- whole slabs ---- */
static kg_status check_range(const struct kg_slab *s, int64_t first, int64_t n,
                             struct kg_err *err)
{
    if (first >= 0 && n >= 0 && first <= s->n && n <= s->n - first)
        return KG_OK;
    return kg_fail(err, KG_ESHAPE,
                   "slab: expected a range of %lld elements, found %lld from %lld on",
                   (long long)s->n, (long long)n, (long long)first);
}

static kg_status check_alike(const struct kg_slab *a, const struct kg_slab *b,
                             struct kg_err *err)
{
    if (a->n != b->n)
        return kg_fail(err, KG_ESHAPE,
                       "slabs: expected %lld elements in both, found %lld",
                       (long long)a->n, (long long)b->n);
    if (a->dtype != b->dtype)
        return kg_fail(err, KG_EDTYPE, "slabs: expected %s in both, found %s",
                       kg_dtype_traits(a->dtype)->name, kg_dtype_traits(b->dtype)->name);
    return KG_OK;
}

kg_status kg_slab_zero(struct kg_slab *s, struct kg_err *err)
{
    return s->memory ? kg_buf_zero(s->backend, s->memory, bytes_of(s, s->n), err) : KG_OK;
}

kg_status kg_slab_copy(struct kg_slab *to, const struct kg_slab *from, struct kg_err *err)
{
    KG_TRY(check_alike(to, from, err));
    return kg_buf_copy(to->backend, to->memory, from->memory, bytes_of(to, to->n), err);
}

kg_status kg_slab_swap(struct kg_slab *a, struct kg_slab *b, struct kg_err *err)
{
    KG_TRY(check_alike(a, b, err));
    return kg_buf_swap(a->backend, a->memory, b->memory, bytes_of(a, a->n), err);
}

kg_status kg_slab_add(struct kg_slab *to, const struct kg_slab *from, struct kg_err *err)
{
    KG_TRY(check_alike(to, from, err));
    return kg_op_add(to->backend, kg_slab_all(to), kg_slab_all(from), err);
}

/* ---- to and from the host ---- */
kg_status kg_slab_read(void *host, const struct kg_slab *s, int64_t first, int64_t n,
                       struct kg_err *err)
{
    KG_TRY(check_range(s, first, n, err));
    return kg_buf_get(s->backend, host, address(s, first), bytes_of(s, n), err);
}

kg_status kg_slab_write(struct kg_slab *s, int64_t first, const void *host, int64_t n,
                        struct kg_err *err)
{
    KG_TRY(check_range(s, first, n, err));
    return kg_buf_put(s->backend, address(s, first), host, bytes_of(s, n), err);
}

kg_status kg_slab_hash(uint64_t *hash, const struct kg_slab *s, struct kg_err *err)
{
    float piece[KG_SLAB_PIECE];
    uint64_t chain[2] = {(uint64_t)s->n, 0}; /* of the pieces so far, of the next one */
    for (int64_t i = 0; i < s->n; i += KG_SLAB_PIECE) {
        const int64_t n = kg_slab_piece(s->n, i);
        KG_TRY(kg_slab_read(piece, s, i, n, err));
        chain[1] = kg_hash_bytes(piece, bytes_of(s, n));
        chain[0] = kg_hash_bytes(chain, sizeof chain);
    }
    *hash = chain[0];
    return KG_OK;
}

/* ---- cuts ---- */
struct kg_cut kg_cut_of(int64_t n, int64_t part, int64_t parts)
{
    assert(0 <= part && part < parts);
    const int64_t pieces = (n + KG_SLAB_PIECE - 1) / KG_SLAB_PIECE;
    /* the first `pieces % parts` cuts have one piece more */
    const int64_t each = pieces / parts, more = pieces % parts;
    const int64_t before = part * each + (part < more ? part : more);
    const int64_t first = before * KG_SLAB_PIECE;
    const int64_t end = (before + each + (part < more)) * KG_SLAB_PIECE;
    return (struct kg_cut){first < n ? first : n,
                           (end < n ? end : n) - (first < n ? first : n)};
}
