/* Shared by the forward and backward of the vocabulary head: copying host arrays to the
 * device, logits of some columns, sets of ids as bitmaps.
 *
 * Both use the tiles and the order of sums of cpu/head*.c, and give their bits.
 */
#ifndef KG_TENSOR_CUDA_HEAD_INTERNAL_H
#define KG_TENSOR_CUDA_HEAD_INTERNAL_H

#include "tensor/cuda/cuda_internal.h"

#define KG_REAL static __host__ __device__ inline
#include "base/real_inline.h"
#define KG_DRAW static __host__ __device__ inline
#include "tensor/draw_inline.h"

/* to[i] <- from[row[i]], or from[i] if row is NULL, `each` elements per row. Does nothing
 * if to or from is NULL. */
template <typename T>
static inline void kg_cuda_fill(T *to, const T *from, const int32_t *row, int64_t n,
                                int64_t each)
{
    for (int64_t i = 0; to && from && i < n; i++)
        memcpy(to + i * each, from + (row ? row[i] : i) * each, (size_t)each * sizeof(T));
}

/* ---- inputs per row ---- */
/* Location of a set's bytes in `packed`. */
struct kg_cuda_set {
    int64_t at;
    uint32_t bytes;
    int32_t n; /* 0: all ids */
};
struct kg_cuda_asked {
    float *inv_temp;          /* (n), NULL for 1 */
    float *anchor_temp;       /* (n), NULL for 1 */
    int32_t *target;          /* (n) or NULL */
    int32_t *indices;         /* (n,K) or NULL */
    struct kg_cuda_set *sets; /* (n) or NULL */
    uint8_t *packed;
};
/* Lay out (_place) and fill (_fill) the inputs of n rows of h: rows row[i], or rows i if
 * row is NULL. kg_cuda_sets_* handle the sets, kg_cuda_asked_* everything else. */
void kg_cuda_sets_place(struct kg_cuda_asked *a, struct kg_cuda_piece *p,
                        const struct kg_head *h, const int32_t *row, int64_t n);
void kg_cuda_sets_fill(const struct kg_cuda_asked *a, const struct kg_head *h,
                       const int32_t *row, int64_t n);
void kg_cuda_asked_place(struct kg_cuda_asked *a, struct kg_cuda_piece *p,
                         const struct kg_head *h, int64_t n);
void kg_cuda_asked_fill(const struct kg_cuda_asked *a, const struct kg_head *h,
                        const int32_t *row, int64_t n);

/* Results of the forward for the backward, (n) each; NULL: not computed. */
struct kg_cuda_found {
    double *lse;
    double *kl_reverse;
    double *anchor_lse;
    float *entropy;
};
/* The contents of kg_head.kept, with space for all results, computed or not. */
struct kg_cuda_kept {
    struct kg_cuda_asked asked; /* without sets */
    struct kg_cuda_found found;
};
void kg_cuda_kept_place(struct kg_cuda_kept *k, const struct kg_head *h);

/* ---- on the device ---- */
/* Tiles per strip in the backward; also in the forward if the bits of products depend on
 * their shape. Then every logit comes from products of one shape, independent of free
 * memory. */
enum { KG_CUDA_STRIP_TILES = KG_HEAD_STRIP_TILES };
/* z <- hidden weight^T   strip: columns of a strip, at whose first column z begins */
kg_status kg_cuda_head_products(struct kg_mat z, int64_t strip, struct kg_mat hidden,
                                struct kg_mat weight, struct kg_err *err);
/* The kernel that reads z applies z <- cap(z) inv_temp. */
struct kg_cuda_scale {
    float softcap;         /* 0: none */
    const float *inv_temp; /* (rows) on the device, or NULL for 1 */
};
static __device__ inline float kg_cuda_inv_temp(struct kg_cuda_scale by, int64_t row)
{
    return by.inv_temp ? by.inv_temp[row] : 1.0f;
}
static __device__ inline float kg_cuda_scaled(float x, float softcap, float inv_temp)
{
    return (softcap > 0.0f ? kg_cuda_softcap(x, softcap) : x) * inv_temp;
}

/* 32-bit words per bitmap of a row. */
static inline int64_t kg_cuda_set_words(int64_t vocab) { return (vocab + 31) / 32; }
/* bits (rows, words) <- the ids in sets[0..rows) */
void kg_cuda_open_sets(uint32_t *bits, const struct kg_cuda_set *sets,
                       const uint8_t *packed, int64_t rows, int64_t vocab);

/* ---- drawing, draw.cu ---- */
/* Arrays (n) are for all rows; arrays (rows, ..) are scratch for the rows of one pass. */
struct kg_cuda_drawing {
    const struct kg_draw *how; /* (n) */
    struct kg_drawn *drawn;    /* (n) */
    uint32_t *kept;            /* (n, words) or NULL */
    int64_t words;
    float *maxima; /* (rows, tiles): maximum logit per tile */
    int64_t tiles;
    int64_t width;                        /* of a tile */
    double *sums;                         /* (rows, spans) */
    struct kg_draw_candidate *candidates; /* (rows, V), or NULL */
    double *weights;
};
/* Draws tokens for rows [first, first + z.rows), whose logits are z. */
void kg_cuda_draw_rows(const struct kg_cuda_drawing *d, struct kg_mat z,
                       const double *lse, int64_t first);

/* p - q from the larger of p and q and d = log p - log q; see cpu/head_internal.h */
static __device__ inline float kg_cuda_p_minus_q(float larger, float d)
{
    const float minus = 0.0f - d, below = d < minus ? d : minus;
    const float gap = larger * kg_cuda_one_minus_exp(below);

    return d > 0.0f ? gap : 0.0f - gap;
}

#endif
