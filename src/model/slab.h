/* Slabs: one value per parameter element of a model, in the layout of kg_param.offset;
 * fp32, or bf16 for an optimizer's moments.
 *
 * Master weights, gradients, optimizer state, averages, and weights of an anchor or of an
 * earlier step are slabs of one length, so an operation on a whole model is one call.
 *
 * The memory belongs to the backend. Operations take `data`; use kg_slab_read and
 * kg_slab_write to copy values to and from the host. For a model on a device some slabs
 * may be on the host (enum kg_on_host). Two slabs in one memory are combined there,
 * others on the host in pieces; the bits are the same.
 */
#ifndef KG_MODEL_SLAB_H
#define KG_MODEL_SLAB_H

#include "base/status.h"
#include "tensor/backend.h"

#include <assert.h>
#include <stdint.h>

struct kg_slab {
    union { /* (n) owned, backend memory; NULL: none */
        void *memory;
        float *data; /* if fp32 */
    };
    int64_t n;
    enum kg_dtype dtype;
    const struct kg_backend *backend;
};

/* fp32 operands: the whole slab, or elements [first, first+n). */
static inline struct kg_vec kg_slab_part(const struct kg_slab *s, int64_t first,
                                         int64_t n)
{
    assert(s->dtype == KG_F32);
    return kg_vec(s->data + first, n);
}
static inline struct kg_vec kg_slab_all(const struct kg_slab *s)
{
    return kg_slab_part(s, 0, s->n);
}
/* Elements [first, first+n) of a slab of either type, as a matrix of one row. */
struct kg_mat kg_slab_row(const struct kg_slab *s, int64_t first, int64_t n);

/* n zeros, in fp32 or dtype; `what` names them in errors.   errors: ENOMEM */
kg_status kg_slab_init_as(struct kg_slab *s, const struct kg_backend *backend,
                          enum kg_dtype dtype, int64_t n, const char *what,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_slab_init(struct kg_slab *s, const struct kg_backend *backend, int64_t n,
                       const char *what, struct kg_err *err) KG_MUST_CHECK;
void kg_slab_release(struct kg_slab *s); /* {0} is allowed, and is the state afterwards */

/* Set to 0; copy; swap; to = to + from (fp32, same backend). The first three are bitwise.
 * errors: ESHAPE (lengths differ), EDTYPE (types differ), ENOMEM */
kg_status kg_slab_zero(struct kg_slab *s, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_slab_copy(struct kg_slab *to, const struct kg_slab *from,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_slab_swap(struct kg_slab *a, struct kg_slab *b,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_slab_add(struct kg_slab *to, const struct kg_slab *from,
                      struct kg_err *err) KG_MUST_CHECK;

/* avg = eta avg + (1 - eta) w, as kg_op_ema; if avg and w are in different memories, avg
 * must be on the host
 * errors: as above */
kg_status kg_slab_ema(struct kg_slab *avg, const struct kg_slab *w, float eta,
                      struct kg_err *err) KG_MUST_CHECK;
/* *out = sum_i (x_i - minus_i)^2, as kg_op_sum_squares; minus NULL for 0
 * errors: as above */
kg_status kg_slab_sum_squares(double *out, const struct kg_slab *x,
                              const struct kg_slab *minus,
                              struct kg_err *err) KG_MUST_CHECK;

/* Copies elements [first, first+n), in the slab's type, to and from host memory, which
 * may be unaligned.
 * errors: ESHAPE (out of range) */
kg_status kg_slab_read(void *host, const struct kg_slab *s, int64_t first, int64_t n,
                       struct kg_err *err) KG_MUST_CHECK;
/* kg_slab_read, concurrent with operations of another thread that do not write these
 * elements. pinned: from kg_buf_pin, of the slab's backend or the device it belongs to */
kg_status kg_slab_fetch(void *pinned, const struct kg_slab *s, int64_t first, int64_t n,
                        struct kg_err *err) KG_MUST_CHECK;
kg_status kg_slab_write(struct kg_slab *s, int64_t first, const void *host, int64_t n,
                        struct kg_err *err) KG_MUST_CHECK;

/* A hash of all stored values: kg_hash_bytes of its pieces, chained. */
kg_status kg_slab_hash(uint64_t *hash, const struct kg_slab *s,
                       struct kg_err *err) KG_MUST_CHECK;

/* ---- pieces and shards ---- */

/* Elements per piece. kg_op_sum_squares sums a piece as a unit, so adding the sums of all
 * pieces in order gives the bits of the whole. */
enum { KG_SLAB_PIECE = 1 << 14 };

/* Number of elements in the piece that begins at `first`, of n. */
static inline int64_t kg_slab_piece(int64_t n, int64_t first)
{
    return n - first < KG_SLAB_PIECE ? n - first : KG_SLAB_PIECE;
}

/* Host access to the elements of a slab, a run of pieces at a time: in place if its
 * memory is host memory, else a copy.
 *
 *     for (int64_t i = 0; i < s->n; i += KG_SLAB_RUN) {
 *         KG_TRY(kg_slab_see(&v, room, s, i, kg_slab_run(s->n, i), err)); ...
 *
 * room: (KG_SLAB_RUN) fp32 from kg_slab_room, NULL for a slab on the host */
enum { KG_SLAB_RUN = KG_SLAB_PIECE << 8 };
static inline int64_t kg_slab_run(int64_t n, int64_t first)
{
    return n - first < KG_SLAB_RUN ? n - first : KG_SLAB_RUN;
}
kg_status kg_slab_see(struct kg_vec *v, float *room, const struct kg_slab *s,
                      int64_t first, int64_t n, struct kg_err *err) KG_MUST_CHECK;
/* *room: owned, freed by kg_mem_free; NULL for a slab on the host.   errors: ENOMEM */
kg_status kg_slab_room(float **room, const struct kg_slab *s,
                       struct kg_err *err) KG_MUST_CHECK;

/* A shard, the part of a slab that one rank holds: whole pieces, except the last at the
 * slab's end. */
struct kg_cut {
    int64_t first;
    int64_t n;
};
/* Shard `part` of `parts`, as even as pieces allow; all shards in order cover [0, n). */
struct kg_cut kg_cut_of(int64_t n, int64_t part, int64_t parts);
/* The part of elements [first, first+n) inside the shard; n 0: none. */
struct kg_cut kg_cut_within(struct kg_cut cut, int64_t first, int64_t n);
/* The shard's elements as a slab that owns nothing; never release it. */
struct kg_slab kg_slab_view(const struct kg_slab *s, struct kg_cut cut);
/* pieces[i] = sum over piece i of (x - minus)^2, minus NULL for 0; same backend. Added in
 * order they give kg_slab_sum_squares. pieces: (kg_slab_pieces(x->n)) */
static inline int64_t kg_slab_pieces(int64_t n)
{
    return (n + KG_SLAB_PIECE - 1) / KG_SLAB_PIECE;
}
kg_status kg_slab_square_pieces(double *pieces, const struct kg_slab *x,
                                const struct kg_slab *minus,
                                struct kg_err *err) KG_MUST_CHECK;

#endif
