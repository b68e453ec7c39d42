/* Slabs, the operations on whole slabs, and their shards.
 *
 * This file knows a length and a backend, no tensors: model.c decides which parameter is
 * where.
 *
 * The one idea: everything works in pieces of one size. Threads share the pieces, a hash
 * is chained over them, a walk on the host copies a run of them at a time, and a shard is
 * a run of them. Only this file handles slabs that the host cannot access.
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
    /* an empty shard is a slab, too */
    s->memory = kg_buf_alloc(backend, bytes_of(s, n > 0 ? n : 1), what, err);
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
                   "slab: expected a range within its %lld elements, found %lld elements "
                   "at offset %lld",
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
    const uint64_t bytes = bytes_of(to, to->n);
    KG_TRY(check_alike(to, from, err));
    if (to->backend == from->backend)
        return kg_buf_copy(to->backend, to->memory, from->memory, bytes, err);
    return from->backend->host_memory
               ? kg_buf_put(to->backend, to->memory, from->memory, bytes, err)
               : kg_buf_get(from->backend, to->memory, from->memory, bytes, err);
}

/* near: on the host */
static kg_status swap_apart(struct kg_slab *near, struct kg_slab *far, struct kg_err *err)
{
    float piece[KG_SLAB_PIECE];
    for (int64_t i = 0; i < near->n; i += KG_SLAB_PIECE) {
        const int64_t n = kg_slab_piece(near->n, i);
        KG_TRY(kg_slab_read(piece, far, i, n, err));
        KG_TRY(kg_slab_write(far, i, address(near, i), n, err));
        KG_TRY(kg_slab_write(near, i, piece, n, err));
    }
    return KG_OK;
}

kg_status kg_slab_swap(struct kg_slab *a, struct kg_slab *b, struct kg_err *err)
{
    KG_TRY(check_alike(a, b, err));
    if (a->backend != b->backend)
        return a->backend->host_memory ? swap_apart(a, b, err) : swap_apart(b, a, err);
    return kg_buf_swap(a->backend, a->memory, b->memory, bytes_of(a, a->n), err);
}

kg_status kg_slab_add(struct kg_slab *to, const struct kg_slab *from, struct kg_err *err)
{
    KG_TRY(check_alike(to, from, err));
    return kg_op_add(to->backend, kg_slab_all(to), kg_slab_all(from), err);
}

/* ---- slabs in different memories ---- */
kg_status kg_slab_room(float **room, const struct kg_slab *s, struct kg_err *err)
{
    *room = NULL;
    if (s->backend->host_memory)
        return KG_OK;
    return kg_mem_new(room, KG_SLAB_RUN, sizeof **room, "a piece of a slab", err);
}

kg_status kg_slab_see(struct kg_vec *v, float *room, const struct kg_slab *s,
                      int64_t first, int64_t n, struct kg_err *err)
{
    *v = room ? kg_vec(room, n) : kg_slab_part(s, first, n);
    return room ? kg_slab_read(room, s, first, n, err) : KG_OK;
}

static kg_status ema_apart(struct kg_slab *avg, const struct kg_slab *w, float eta,
                           float *room, struct kg_err *err)
{
    for (int64_t i = 0; i < w->n; i += KG_SLAB_RUN) {
        const int64_t n = kg_slab_run(w->n, i);
        struct kg_vec seen;
        KG_TRY(kg_slab_see(&seen, room, w, i, n, err));
        KG_TRY(kg_op_ema(avg->backend, kg_slab_part(avg, i, n), seen, eta, err));
    }
    return KG_OK;
}

kg_status kg_slab_ema(struct kg_slab *avg, const struct kg_slab *w, float eta,
                      struct kg_err *err)
{
    float *room = NULL;
    KG_TRY(check_alike(avg, w, err));
    if (avg->backend == w->backend)
        return kg_op_ema(w->backend, kg_slab_all(avg), kg_slab_all(w), eta, err);
    assert(avg->backend->host_memory);
    KG_TRY(kg_slab_room(&room, w, err));
    kg_status status = ema_apart(avg, w, eta, room, err);
    kg_mem_free(room);
    return status;
}

/* Adds the squares of one run to *sum piece by piece, as in a sum of the whole slab. */
static kg_status add_squares(double *sum, const struct kg_backend *be, struct kg_vec x,
                             struct kg_vec minus, struct kg_err *err)
{
    for (int64_t i = 0; i < x.n; i += KG_SLAB_PIECE) {
        const int64_t n = kg_slab_piece(x.n, i);
        double piece = 0;
        KG_TRY(kg_op_sum_squares(be, &piece, kg_vec(x.data + i, n),
                                 kg_vec(minus.data + i, n), err));
        *sum += piece;
    }
    return KG_OK;
}

/* near: on the host */
static kg_status squares_apart(double *out, const struct kg_slab *near,
                               const struct kg_slab *far, float *room, struct kg_err *err)
{
    *out = 0;
    for (int64_t i = 0; i < near->n; i += KG_SLAB_RUN) {
        const int64_t n = kg_slab_run(near->n, i);
        struct kg_vec seen;
        KG_TRY(kg_slab_see(&seen, room, far, i, n, err));
        KG_TRY(add_squares(out, near->backend, kg_slab_part(near, i, n), seen, err));
    }
    return KG_OK;
}

kg_status kg_slab_sum_squares(double *out, const struct kg_slab *x,
                              const struct kg_slab *minus, struct kg_err *err)
{
    const struct kg_slab *near = x, *far = minus;
    float *room = NULL;
    if (!minus)
        return kg_op_sum_squares(x->backend, out, kg_slab_all(x), (struct kg_vec){0},
                                 err);
    KG_TRY(check_alike(x, minus, err));
    if (x->backend == minus->backend)
        return kg_op_sum_squares(x->backend, out, kg_slab_all(x), kg_slab_all(minus),
                                 err);
    if (!x->backend->host_memory) {
        near = minus;
        far = x;
    }
    KG_TRY(kg_slab_room(&room, far, err));
    kg_status status = squares_apart(out, near, far, room, err);
    kg_mem_free(room);
    return status;
}

static kg_status square_piece(double *sum, const struct kg_slab *x,
                              const struct kg_slab *minus, int64_t piece,
                              struct kg_err *err)
{
    const int64_t first = piece * KG_SLAB_PIECE, n = kg_slab_piece(x->n, first);
    return kg_op_sum_squares(x->backend, sum, kg_slab_part(x, first, n),
                             minus ? kg_slab_part(minus, first, n) : (struct kg_vec){0},
                             err);
}

kg_status kg_slab_square_pieces(double *pieces, const struct kg_slab *x,
                                const struct kg_slab *minus, struct kg_err *err)
{
    const bool near = x->backend->host_memory;
    kg_status status = KG_OK;
    assert(!minus || (minus->n == x->n && minus->backend == x->backend));
#pragma omp parallel for schedule(static) if (near && x->n > 4 * KG_SLAB_PIECE)
    for (int64_t i = 0; i < kg_slab_pieces(x->n); i++) {
        struct kg_err local;
        if (square_piece(&pieces[i], x, minus, i, &local) != KG_OK) {
#pragma omp critical(kg_slab_square_pieces)
            {
                *err = local;
                status = local.code;
            }
        }
    }
    return status;
}

/* ---- to and from the host ---- */
kg_status kg_slab_read(void *host, const struct kg_slab *s, int64_t first, int64_t n,
                       struct kg_err *err)
{
    KG_TRY(check_range(s, first, n, err));
    return kg_buf_get(s->backend, host, address(s, first), bytes_of(s, n), err);
}

kg_status kg_slab_fetch(void *pinned, const struct kg_slab *s, int64_t first, int64_t n,
                        struct kg_err *err)
{
    KG_TRY(check_range(s, first, n, err));
    return kg_buf_fetch(s->backend, pinned, address(s, first), bytes_of(s, n), err);
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
    uint64_t chain[2] = {(uint64_t)s->n, 0}; /* hash of the pieces so far, of the next */
    for (int64_t i = 0; i < s->n; i += KG_SLAB_PIECE) {
        const int64_t n = kg_slab_piece(s->n, i);
        KG_TRY(kg_slab_read(piece, s, i, n, err));
        chain[1] = kg_hash_bytes(piece, bytes_of(s, n));
        chain[0] = kg_hash_bytes(chain, sizeof chain);
    }
    *hash = chain[0];
    return KG_OK;
}

/* ---- shards ---- */
struct kg_cut kg_cut_of(int64_t n, int64_t part, int64_t parts)
{
    assert(0 <= part && part < parts);
    const int64_t pieces = kg_slab_pieces(n);
    /* the first `pieces % parts` shards have one piece more */
    const int64_t each = pieces / parts, more = pieces % parts;
    const int64_t before = part * each + (part < more ? part : more);
    const int64_t first = before * KG_SLAB_PIECE;
    const int64_t end = (before + each + (part < more)) * KG_SLAB_PIECE;
    return (struct kg_cut){first < n ? first : n,
                           (end < n ? end : n) - (first < n ? first : n)};
}

struct kg_cut kg_cut_within(struct kg_cut cut, int64_t first, int64_t n)
{
    const int64_t end = first + n < cut.first + cut.n ? first + n : cut.first + cut.n;
    const int64_t begin = first > cut.first ? first : cut.first;
    return end > begin ? (struct kg_cut){begin, end - begin} : (struct kg_cut){0};
}

struct kg_slab kg_slab_view(const struct kg_slab *s, struct kg_cut cut)
{
    struct kg_slab view = *s;
    assert(cut.first >= 0 && cut.first + cut.n <= s->n);
    view.memory = address(s, cut.first);
    view.n = cut.n;
    return view;
}
