/* What the two directions of the vocabulary head share: tiles, logits of a tile, ids
 * sorted into tiles.
 *
 * The vocabulary is cut into tiles whose width depends on V alone; rows are taken in
 * chunks that keep a tile of logits near the core. Ids that a row asks about (its target,
 * its indices) are sorted into tiles once per row, so a tile never searches all of them.
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

/* ---- two softmaxes, of sixteen columns ---- */
/* z - z', to the last digit; absent lanes 0 */
static inline struct kg_d16 kg_cpu_head_log_ratio(const float *z, const float *zq, int n)
{
    return kg_d16_sub(kg_d16_widen(kg_v16_load_n(z, n)),
                      kg_d16_widen(kg_v16_load_n(zq, n)));
}
/* p - q from the larger of them and d = log p - log q: digits stay where p is nearly q,
 * and the same d and 0 give exactly 0. */
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

/* asks (up to K+1) <- the ids of row n of h, tile by tile; tile t has asks[start[t]] ..
 * asks[start[t+1]-1]. start (tiles+1) */
void kg_cpu_head_sort_ids(struct kg_head_ask *asks, int32_t *start,
                          const struct kg_head *h, int64_t n, int64_t width,
                          int64_t tiles);

/* ---- sets of ids, by tile ---- */
/* Of the walk over the set, at[t]: its first id in tile t or behind.   at (tiles) */
void kg_cpu_head_set_starts(struct kg_idset_walk *at, const struct kg_idset *set,
                            int64_t width, int64_t tiles);

/* ---- the k largest: a heap whose root is the worst of those kept ---- */
struct kg_head_top {
    float z;
    int32_t id;
};

/* Offer z[0..n) with ids first, first+1, ...; NaN is never kept.   heap (k), *count of it
 * in use */
void kg_cpu_head_top_offer(struct kg_head_top *heap, int32_t *count, int k,
                           const float *z, int64_t n, int32_t first);
void kg_cpu_head_top_merge(struct kg_head_top *heap, int32_t *count, int k,
                           const struct kg_head_top *other, int32_t other_count);
/* Largest first, ties by smaller id; no heap any more. */
void kg_cpu_head_top_sort(struct kg_head_top *heap, int32_t count);

#endif
