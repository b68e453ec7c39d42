/* Tiles of the vocabulary head, for both directions: see head_internal.h.
 *
 * Logits exist for one tile of columns at a time. The width depends on the vocabulary
 * alone, so the order of a row's sums does not depend on the other rows. Requested ids
 * are sorted by tile once per row; each tile then reads its own range of them.
 */
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/head_internal.h"

static void cap_logits(struct kg_mat z, float softcap)
{
    for (int64_t r = 0; r < z.rows; r++)
        for (int64_t v = 0; v < z.cols; v += KG_LANES) {
            int n = kg_cpu_lanes(z.cols - v);
            kg_cpu_store(z, r, v, kg_v16_softcap(kg_cpu_load(z, r, v, n), softcap), n);
        }
}

kg_status kg_cpu_head_logits(struct kg_mat z, struct kg_mat hidden, struct kg_mat weight,
                             const float *inv_temp, float softcap, struct kg_err *err)
{
    KG_TRY(kg_cpu_matmul(z, hidden, weight, KG_MATMUL_NT, false, err));
    if (softcap > 0)
        cap_logits(z, softcap);
    for (int64_t r = 0; inv_temp && r < z.rows; r++) {
        if (inv_temp[r] == 1.0f)
            continue;
        struct kg_v16 t = kg_v16_set1(inv_temp[r]);
        for (int64_t v = 0; v < z.cols; v += KG_LANES) {
            int n = kg_cpu_lanes(z.cols - v);
            kg_cpu_store(z, r, v, kg_v16_mul(kg_cpu_load(z, r, v, n), t), n);
        }
    }
    return KG_OK;
}

static int32_t id_at(const struct kg_head *h, int64_t n, int32_t slot)
{
    if (slot < h->k && h->indices)
        return h->indices[n * h->k + slot];
    return slot == h->k && h->target ? h->target[n] : -1;
}

/* Counting sort, stable: entries of a tile keep the order of their slots. */
void kg_cpu_head_sort_ids(struct kg_head_ask *asks, int32_t *start,
                          const struct kg_head *h, int64_t n, int64_t width,
                          int64_t tiles)
{
    memset(start, 0, (size_t)(tiles + 1) * sizeof *start);
    for (int32_t s = 0; s <= h->k; s++) {
        int32_t id = id_at(h, n, s);
        if (id >= 0)
            start[id / width + 1]++;
    }
    for (int64_t t = 0; t < tiles; t++)
        start[t + 1] += start[t];
    for (int32_t s = 0; s <= h->k; s++) {
        int32_t id = id_at(h, n, s);
        if (id >= 0)
            asks[start[id / width]++] = (struct kg_head_ask){id, s};
    }
    for (int64_t t = tiles; t > 0; t--) /* each start has become its tile's end */
        start[t] = start[t - 1];
    start[0] = 0;
}

void kg_cpu_head_set_starts(struct kg_idset_walk *at, const struct kg_idset *set,
                            int64_t width, int64_t tiles)
{
    struct kg_idset_walk w;
    kg_idset_begin(&w, set);
    for (int64_t t = 0; t < tiles; t++) {
        while (w.id < set->bound && w.id < t * width)
            kg_idset_next(&w, set);
        at[t] = w;
    }
}
