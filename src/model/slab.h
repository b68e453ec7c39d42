/* Slabs: one value for every parameter of a model, in the layout of kg_param.offset; fp32
 * but for moments of an optimizer that are kept in bf16.
 * Master weights, gradients, an optimizer's state, an average, the weights of an anchor
 * or of an earlier step: all are slabs of one length, so what is done to all of a model
 * is one call.
 *
 * The memory is the backend's. Operations take `data`; to the host the values go by
 * kg_slab_read and come by kg_slab_write. Of a model on a device some slabs may be the
 * host's (enum kg_on_host): what is done to two slabs at once is done where both lie, or
 * on the host by pieces, with the same bits.
 */
#ifndef KG_MODEL_SLAB_H
#define KG_MODEL_SLAB_H

#include "base/status.h"
#include "tensor/backend.h"

#include <assert.h>
#include <stdint.h>

struct kg_slab {
    union { /* (n) owned, memory of the backend; NULL: there is none */
        void *memory;
        float *data; /* of fp32 */
    };
    int64_t n;
    enum kg_dtype dtype;
    const struct kg_backend *backend;
};

/* What operations take of fp32: all of it, or elements [first, first+n). */
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
/* The same of either type, as a matrix of one row. */
struct kg_mat kg_slab_row(const struct kg_slab *s, int64_t first, int64_t n);

/* n zeros, fp32 or of a type; `what` names them in errors.   errors: ENOMEM */
kg_status kg_slab_init_as(struct kg_slab *s, const struct kg_backend *backend,
                          enum kg_dtype dtype, int64_t n, const char *what,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_slab_init(struct kg_slab *s, const struct kg_backend *backend, int64_t n,
                       const char *what, struct kg_err *err) KG_MUST_CHECK;
void kg_slab_release(struct kg_slab *s); /* {0} is allowed, and is what it leaves */

/* s = 0;   to = from;   a, b = b, a, all bit for bit;   to = to + from (of one backend)
 * errors: SHAPE (not of one length), DTYPE (not of one type), ENOMEM */
kg_status kg_slab_zero(struct kg_slab *s, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_slab_copy(struct kg_slab *to, const struct kg_slab *from,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_slab_swap(struct kg_slab *a, struct kg_slab *b,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_slab_add(struct kg_slab *to, const struct kg_slab *from,
                      struct kg_err *err) KG_MUST_CHECK;

/* avg = eta avg + (1 - eta) w, as kg_op_ema; of two places avg is the host's
 * errors: as those above */
kg_status kg_slab_ema(struct kg_slab *avg, const struct kg_slab *w, float eta,
                      struct kg_err *err) KG_MUST_CHECK;
/* *out = sum_i (x_i - minus_i)^2, as kg_op_sum_squares; minus NULL for 0
 * errors: as those above */
kg_status kg_slab_sum_squares(double *out, const struct kg_slab *x,
                              const struct kg_slab *minus,
                              struct kg_err *err) KG_MUST_CHECK;

/* Elements [first, first+n), in the slab's type, to and from the host, where they may be
 * unaligned.
 * errors: SHAPE (outside of the slab) */
kg_status kg_slab_read(void *host, const struct kg_slab *s, int64_t first, int64_t n,
                       struct kg_err *err) KG_MUST_CHECK;
/* The same beside operations that another thread calls, which write none of it.   pinned:
 * of kg_buf_pin, of the slab's backend or of the device's beside it */
kg_status kg_slab_fetch(void *pinned, const struct kg_slab *s, int64_t first, int64_t n,
                        struct kg_err *err) KG_MUST_CHECK;
kg_status kg_slab_write(struct kg_slab *s, int64_t first, const void *host, int64_t n,
                        struct kg_err *err) KG_MUST_CHECK;

/* A hash of all values as they are stored: kg_hash_bytes of its pieces, chained. */
kg_status kg_slab_hash(uint64_t *hash, const struct kg_slab *s,
                       struct kg_err *err) KG_MUST_CHECK;

/* ---- pieces and cuts ---- */

/* Elements of a piece: those that kg_op_sum_squares sums as one, so that the sums of the
 * pieces of all cuts, added in order, are the bits of the whole. */
enum { KG_SLAB_PIECE = 1 << 14 };

/* How many the piece has that begins at `first` of n. */
static inline int64_t kg_slab_piece(int64_t n, int64_t first)
{
    return n - first < KG_SLAB_PIECE ? n - first : KG_SLAB_PIECE;
}

/* Elements of a slab as the host sees them, a run of pieces at a time: themselves where
 * its memory is the host's, else a copy.
 *
 *     for (int64_t i = 0; i < s->n; i += KG_SLAB_RUN) {
 *         KG_TRY(kg_slab_see(&v, room, s, i, kg_slab_run(s->n, i), err)); ...
 *
 * room: (KG_SLAB_RUN) fp32 of kg_slab_room, or NULL where that gave none */
enum { KG_SLAB_RUN = KG_SLAB_PIECE << 8 };
static inline int64_t kg_slab_run(int64_t n, int64_t first)
{
    return n - first < KG_SLAB_RUN ? n - first : KG_SLAB_RUN;
}
kg_status kg_slab_see(struct kg_vec *v, float *room, const struct kg_slab *s,
                      int64_t first, int64_t n, struct kg_err *err) KG_MUST_CHECK;
/* *room: freed by kg_mem_free; NULL for a slab of the host's.   errors: ENOMEM */
kg_status kg_slab_room(float **room, const struct kg_slab *s,
                       struct kg_err *err) KG_MUST_CHECK;

/* What one holder has of a slab: whole pieces of it, but for the end of the last. */
struct kg_cut {
    int64_t first;
    int64_t n;
};
/* Cut `part` of `parts`, as even as pieces allow; of n elements all cuts in order are
 * [0, n). */
struct kg_cut kg_cut_of(int64_t n, int64_t part, int64_t parts);
/* What of elements [first, first+n) lies in it; n 0: nothing. */
struct kg_cut kg_cut_within(struct kg_cut cut, int64_t first, int64_t n);
/* Those elements of a slab as a slab that owns nothing: never released. */
struct kg_slab kg_slab_view(const struct kg_slab *s, struct kg_cut cut);
/* pieces[i] = sum over piece i of (x - minus)^2, minus NULL for 0; of one backend: added
 * in order they are kg_slab_sum_squares.   pieces: (kg_slab_pieces(x->n)) */
static inline int64_t kg_slab_pieces(int64_t n)
{
    return (n + KG_SLAB_PIECE - 1) / KG_SLAB_PIECE;
}
kg_status kg_slab_square_pieces(double *pieces, const struct kg_slab *x,
                                const struct kg_slab *minus,
                                struct kg_err *err) KG_MUST_CHECK;

#endif
