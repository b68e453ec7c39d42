/* The k largest logits of a row: a heap with the worst kept entry at its root.
 *
 * The order is total (larger z, then smaller id), so the result does not depend on how
 * the vocabulary was split or in which order parts were merged. Nearly all logits are
 * below the root: sixty-four at a time are compared with it before the heap is touched.
 */
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/head_internal.h"

static bool better(struct kg_head_top a, struct kg_head_top b)
{
    return a.z > b.z || (a.z == b.z && a.id < b.id);
}

static void sift_down(struct kg_head_top *heap, int32_t count, int32_t i)
{
    struct kg_head_top x = heap[i];
    for (int32_t child = 2 * i + 1; child < count; child = 2 * i + 1) {
        if (child + 1 < count && better(heap[child], heap[child + 1]))
            child++;
        if (!better(x, heap[child]))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = x;
}

static void sift_up(struct kg_head_top *heap, int32_t i)
{
    struct kg_head_top x = heap[i];
    while (i > 0 && better(heap[(i - 1) / 2], x)) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = x;
}

static void push(struct kg_head_top *heap, int32_t *count, int k, struct kg_head_top x)
{
    if (x.z != x.z)
        return;
    if (*count < k) {
        heap[*count] = x;
        sift_up(heap, (*count)++);
    } else if (better(x, heap[0])) {
        heap[0] = x;
        sift_down(heap, k, 0);
    }
}

/* Whether any of 64 logits is above the limit. */
static bool any_above(const float *z, float limit)
{
    struct kg_v16 a = kg_v16_max(kg_v16_load(z), kg_v16_load(z + 16));
    struct kg_v16 b = kg_v16_max(kg_v16_load(z + 32), kg_v16_load(z + 48));
    struct kg_v16 x = kg_v16_set1(limit);
    return (kg_v16_gt_bits(a, x) | kg_v16_gt_bits(b, x)) != 0;
}

static void offer_lanes(struct kg_head_top *heap, int32_t *count, int k, const float *z,
                        int32_t first)
{
    uint32_t bits = kg_v16_gt_bits(kg_v16_load(z), kg_v16_set1(heap[0].z));
    for (; bits; bits &= bits - 1) {
        int i = __builtin_ctz(bits);
        push(heap, count, k, (struct kg_head_top){z[i], first + i});
    }
}

void kg_cpu_head_top_offer(struct kg_head_top *heap, int32_t *count, int k,
                           const float *z, int64_t n, int32_t first)
{
    int64_t v = 0;
    for (; v < n && *count < k; v++)
        push(heap, count, k, (struct kg_head_top){z[v], first + (int32_t)v});
    for (; v + 64 <= n;
         v += 64) { /* full heap, ascending ids: an equal logit never enters */
        if (!any_above(z + v, heap[0].z))
            continue;
        for (int i = 0; i < 64; i += KG_LANES)
            offer_lanes(heap, count, k, z + v + i, first + (int32_t)v + i);
    }
    for (; v < n; v++)
        push(heap, count, k, (struct kg_head_top){z[v], first + (int32_t)v});
}

void kg_cpu_head_top_merge(struct kg_head_top *heap, int32_t *count, int k,
                           const struct kg_head_top *other, int32_t other_count)
{
    for (int32_t i = 0; i < other_count; i++)
        push(heap, count, k, other[i]);
}

void kg_cpu_head_top_sort(struct kg_head_top *heap, int32_t count)
{
    for (int32_t n = count - 1; n > 0; n--) {
        struct kg_head_top worst = heap[0];
        heap[0] = heap[n];
        heap[n] = worst;
        sift_down(heap, n, 0);
    }
}
