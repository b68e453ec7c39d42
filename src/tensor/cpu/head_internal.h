/* Shared by forward and backward of the vocabulary head: tiles, logits of a tile, ids
 * sorted by tile.
 *
 * The vocabulary is divided into tiles whose width depends only on V; rows are processed
 * in chunks so that a tile of logits stays in cache. The ids of a row (target and
 * indices) are sorted by tile once, so a tile never searches all of them.
 */
#ifndef KG_TENSOR_CPU_HEAD_INTERNAL_H
#define KG_TENSOR_CPU_HEAD_INTERNAL_H

#include "base/simd.h"
#include "tensor/backend.h"

#include <stdint.h>

enum { KG_HEAD_ROWS = 256 }; /* rows per chunk of the forward */

/* z (rows, columns of the tile) <- cap(hidden . weight) inv_temp; inv_temp (rows) or
 * NULL; softcap 0: none */
kg_status kg_cpu_head_logits(struct kg_mat z, struct kg_mat hidden, struct kg_mat weight,
                             const float *inv_temp, float softcap,
                             struct kg_err *err) KG_MUST_CHECK;

/* ---- two softmaxes, sixteen columns at a time ---- */
/* z - z' in double, exact; lanes from n on are 0 */
static inline struct kg_d16 kg_cpu_head_log_ratio(const float *z, const float *zq, int n)
{
    return kg_d16_sub(kg_d16_widen(kg_v16_load_n(z, n)),
                      kg_d16_widen(kg_v16_load_n(zq, n)));
}
/* p - q from the larger of p and q and from d = log p - log q: accurate when p is close
 * to q, and exactly 0 for d = 0. */
static inline struct kg_v16 kg_cpu_head_p_minus_q(struct kg_v16 larger, struct kg_v16 d)
{
    struct kg_v16 minus = kg_v16_sub(kg_v16_zero(), d);
    struct kg_v16 below = kg_v16_min(d, minus);
    struct kg_v16 gap = kg_v16_mul(larger, kg_v16_one_minus_exp(below));
    return kg_v16_select_gt(d, kg_v16_zero(), gap, kg_v16_sub(kg_v16_zero(), gap));
}

/* ---- ids of a row, by tile ---- */
struct kg_head_ask {
    int32_t id;
    int32_t slot; /* column of indices; K is the target */
};

/* asks (up to K+1) <- the ids of row n of h, sorted by tile; those of tile t are
 * asks[start[t]] to asks[start[t+1]-1]. start (tiles+1) */
void kg_cpu_head_sort_ids(struct kg_head_ask *asks, int32_t *start,
                          const struct kg_head *h, int64_t n, int64_t width,
                          int64_t tiles);

/* ---- sets of ids, by tile ---- */
/* at[t] <- a walk positioned at the set's first id in tile t or later. at (tiles) */
void kg_cpu_head_set_starts(struct kg_idset_walk *at, const struct kg_idset *set,
                            int64_t width, int64_t tiles);

/* ---- the k largest: a heap whose root is the worst of those kept ---- */
struct kg_head_top {
    float z;
    int32_t id;
};

/* Offers z[0..n) with ids first, first+1, ... to the heap; NaN is never kept. heap (k),
 * of which *count entries are used */
void kg_cpu_head_top_offer(struct kg_head_top *heap, int32_t *count, int k,
                           const float *z, int64_t n, int32_t first);
void kg_cpu_head_top_merge(struct kg_head_top *heap, int32_t *count, int k,
                           const struct kg_head_top *other, int32_t other_count);
/* Sorts the heap: largest first, ties by smaller id. */
void kg_cpu_head_top_sort(struct kg_head_top *heap, int32_t count);

#endif
