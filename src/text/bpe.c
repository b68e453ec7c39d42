/* The merge table and the two merge loops.
 *
 * Invariant of the heap: it has every live pair with its current rank. A pair that a
 * neighbouring merge changed leaves a stale entry, whose rank differs from that of its
 * node. Heap keys are rank << 32 | position, so the smallest key is the leftmost pair of
 * the lowest rank.
 */
#include "text/bpe.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

/* ---- the table ---- */

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static uint64_t slot_of(const struct kg_merges *m, uint64_t pair)
{
    uint64_t h = (pair ^ pair >> 29) * 0x9E3779B97F4A7C15u;
    uint64_t at = (h >> 32) & m->mask;
    while (m->slots[at].pair != pair && m->slots[at].pair != UINT64_MAX)
        at = (at + 1) & m->mask;
    return at;
}

kg_status kg_merges_init(struct kg_merges *m, size_t n, struct kg_err *err)
{
    size_t slots = 16;
    while (slots < n + n / 2)
        slots *= 2;
    KG_TRY(kg_mem_new(&m->slots, slots, sizeof *m->slots, "merge table", err));
    m->mask = slots - 1;
    for (size_t i = 0; i < slots; i++)
        m->slots[i] = (struct kg_merge){UINT64_MAX, KG_BPE_NO_RANK, -1};
    return KG_OK;
}

void kg_merges_release(struct kg_merges *m)
{
    kg_mem_free(m->slots);
    *m = (struct kg_merges){0};
}

void kg_merges_put(struct kg_merges *m, int32_t left, int32_t right, int32_t rank,
                   int32_t id)
{
    uint64_t pair = pair_of(left, right);
    m->slots[slot_of(m, pair)] = (struct kg_merge){pair, rank, id};
}

struct kg_merge kg_merges_find(const struct kg_merges *m, int32_t left, int32_t right)
{
    return m->slots[slot_of(m, pair_of(left, right))];
}

/* ---- short pre-tokens ---- */

size_t kg_bpe_merge_short(int32_t *ids, size_t n, const struct kg_merges *m)
{
    struct kg_merge pairs[KG_BPE_SHORT]; /* pairs[i]: ids[i] and ids[i+1] */
    assert(n <= KG_BPE_SHORT);
    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = kg_merges_find(m, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (pairs[i].rank < pairs[best].rank)
                best = i;
        if (pairs[best].rank == KG_BPE_NO_RANK)
            break;
        ids[best] = pairs[best].id;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        memmove(pairs + best, pairs + best + 1, (n - best - 2) * sizeof *pairs);
        n--;
        if (best > 0)
            pairs[best - 1] = kg_merges_find(m, ids[best - 1], ids[best]);
        if (best + 1 < n)
            pairs[best] = kg_merges_find(m, ids[best], ids[best + 1]);
    }
    return n;
}

/* ---- long pre-tokens ---- */

struct kg_bpe_node {
    int32_t id;   /* -1: merged into its left neighbour */
    int32_t rank; /* rank of the pair that begins here */
    int32_t merged_id;
    uint32_t prev; /* NONE at the ends */
    uint32_t next;
};

enum { NONE = UINT32_MAX };

struct heap {
    uint64_t *keys; /* borrowed */
    size_t n;
};

static void sift_down(struct heap *h, size_t at)
{
    uint64_t key = h->keys[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= h->n)
            break;
        if (child + 1 < h->n && h->keys[child + 1] < h->keys[child])
            child++;
        if (h->keys[child] >= key)
            break;
        h->keys[at] = h->keys[child];
        at = child;
    }
    h->keys[at] = key;
}

static void heap_push(struct heap *h, uint64_t key)
{
    size_t at = h->n++;
    while (at > 0 && h->keys[(at - 1) / 2] > key) {
        h->keys[at] = h->keys[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    h->keys[at] = key;
}

static uint64_t heap_pop(struct heap *h)
{
    uint64_t top = h->keys[0];
    h->keys[0] = h->keys[--h->n];
    if (h->n)
        sift_down(h, 0);
    return top;
}

/* Looks up the pair at `at`, and puts it on the heap if it can be merged. */
static void refresh_pair(struct kg_bpe_node *nodes, uint32_t at,
                         const struct kg_merges *m, struct heap *h)
{
    struct kg_bpe_node *node = &nodes[at];
    struct kg_merge merge = {.rank = KG_BPE_NO_RANK};
    if (node->next != NONE)
        merge = kg_merges_find(m, node->id, nodes[node->next].id);
    node->rank = merge.rank;
    node->merged_id = merge.id;
    if (merge.rank != KG_BPE_NO_RANK)
        heap_push(h, (uint64_t)(uint32_t)merge.rank << 32 | at);
}

static void merge_at(struct kg_bpe_node *nodes, uint32_t at, const struct kg_merges *m,
                     struct heap *h)
{
    struct kg_bpe_node *node = &nodes[at];
    struct kg_bpe_node *right = &nodes[node->next];
    node->id = node->merged_id;
    node->next = right->next;
    if (right->next != NONE)
        nodes[right->next].prev = at;
    right->id = -1;
    right->rank = KG_BPE_NO_RANK;
    refresh_pair(nodes, at, m, h);
    if (node->prev != NONE)
        refresh_pair(nodes, node->prev, m, h);
}

kg_status kg_bpe_merge_long(int32_t *ids, size_t *n, const struct kg_merges *m,
                            struct kg_bpe_scratch *s, struct kg_err *err)
{
    struct heap heap = {0};
    size_t kept = 0;
    if (*n >= NONE / 4)
        return kg_fail(err, KG_ENOMEM, "a pre-token of %zu bytes is too long", *n);
    /* The heap starts with n - 1 pairs. Each of at most n - 1 merges removes one and adds
     * at most two. */
    size_t room = 3 * *n + 1;
    KG_TRY(kg_mem_grow(&s->nodes, &s->nodes_capacity, *n + 1, sizeof *s->nodes, NONE,
                       "BPE nodes", err));
    KG_TRY(kg_mem_grow(&s->heap, &s->heap_capacity, room, sizeof *s->heap, NONE,
                       "BPE heap", err));
    heap.keys = s->heap;
    for (size_t i = 0; i < *n; i++)
        s->nodes[i] = (struct kg_bpe_node){.id = ids[i],
                                           .prev = i ? (uint32_t)i - 1 : NONE,
                                           .next = i + 1 < *n ? (uint32_t)i + 1 : NONE};
    for (size_t i = 0; i < *n; i++)
        refresh_pair(s->nodes, (uint32_t)i, m, &heap);
    while (heap.n) {
        uint64_t key = heap_pop(&heap);
        uint32_t at = (uint32_t)key;
        /* A merged-away node has no rank, so its entries are stale too. */
        if (s->nodes[at].rank == (int32_t)(key >> 32))
            merge_at(s->nodes, at, m, &heap);
    }
    for (size_t i = 0; i < *n; i++)
        if (s->nodes[i].id >= 0)
            ids[kept++] = s->nodes[i].id;
    *n = kept;
    return KG_OK;
}

void kg_bpe_scratch_release(struct kg_bpe_scratch *s)
{
    kg_mem_free(s->nodes);
    kg_mem_free(s->heap);
    *s = (struct kg_bpe_scratch){0};
}

kg_status kg_bpe_merge(int32_t *ids, size_t *n, const struct kg_merges *m,
                       struct kg_bpe_scratch *s, struct kg_err *err)
{
    if (*n > KG_BPE_SHORT)
        return kg_bpe_merge_long(ids, n, m, s, err);
    *n = kg_bpe_merge_short(ids, *n, m);
    return KG_OK;
}
