/* Shared by forward and backward of the vocabulary head: see head_internal.h.
 *
 * A set of ids is copied to the device in its packed form (base/idset.h) and becomes one
 * bit per id there, so that every column can test its own. A block copies a bitmap; one
 * thread walks a list, which is shorter than a bitmap.
 */
#include "tensor/cuda/head_internal.h"
#include <assert.h>

/* ---- inputs from the host ---- */
static const struct kg_idset *set_of(const struct kg_head *h, const int32_t *row,
                                     int64_t i)
{
    return &h->sets[row ? row[i] : i];
}

void kg_cuda_sets_place(struct kg_cuda_asked *a, struct kg_cuda_piece *p,
                        const struct kg_head *h, const int32_t *row, int64_t n)
{
    int64_t packed = 0;

    for (int64_t i = 0; h->sets && i < n; i++)
        packed += set_of(h, row, i)->n > 0 ? set_of(h, row, i)->bytes : 0;
    kg_cuda_take(p, &a->sets, h->sets ? n : 0);
    kg_cuda_take(p, &a->packed, packed);
}

void kg_cuda_asked_place(struct kg_cuda_asked *a, struct kg_cuda_piece *p,
                         const struct kg_head *h, int64_t n)
{
    kg_cuda_take(p, &a->inv_temp, h->inv_temp ? n : 0);
    kg_cuda_take(p, &a->anchor_temp, h->anchor && h->anchor->inv_temp ? n : 0);
    kg_cuda_take(p, &a->target, h->target ? n : 0);
    kg_cuda_take(p, &a->indices, h->indices ? n * h->k : 0);
}

void kg_cuda_asked_fill(const struct kg_cuda_asked *a, const struct kg_head *h,
                        const int32_t *row, int64_t n)
{
    kg_cuda_fill(a->inv_temp, h->inv_temp, row, n, 1);
    kg_cuda_fill(a->anchor_temp, h->anchor ? h->anchor->inv_temp : NULL, row, n, 1);
    kg_cuda_fill(a->target, h->target, row, n, 1);
    kg_cuda_fill(a->indices, h->indices, row, n, h->k);
}

void kg_cuda_sets_fill(const struct kg_cuda_asked *a, const struct kg_head *h,
                       const int32_t *row, int64_t n)
{
    int64_t at = 0;

    for (int64_t i = 0; a->sets && i < n; i++) {
        const struct kg_idset *set = set_of(h, row, i);
        const uint32_t bytes = set->n > 0 ? set->bytes : 0;

        a->sets[i] = {at, bytes, set->n};
        if (bytes > 0)
            memcpy(a->packed + at, set->data, bytes);
        at += bytes;
    }
}

void kg_cuda_kept_place(struct kg_cuda_kept *k, const struct kg_head *h)
{
    const int64_t n = h->hidden.rows;
    struct kg_cuda_piece p = {(char *)h->kept, 0};

    memset(k, 0, sizeof *k);
    kg_cuda_take(&p, &k->asked.inv_temp, n);
    kg_cuda_take(&p, &k->asked.anchor_temp, n);
    kg_cuda_take(&p, &k->asked.target, n);
    kg_cuda_take(&p, &k->asked.indices, n * h->k);
    kg_cuda_take(&p, &k->found.lse, n);
    kg_cuda_take(&p, &k->found.kl_reverse, n);
    kg_cuda_take(&p, &k->found.anchor_lse, n);
    kg_cuda_take(&p, &k->found.entropy, n);
    assert(p.used == kg_head_kept_bytes(n, h->k));
}

/* ---- logits ---- */
/* Whether kedge's kernel gives the library's bits for both shapes of strips. Then it
 * computes all columns at once, because their number does not affect its bits. */
static kg_status are_own(bool *are, struct kg_mat z, int64_t strip, struct kg_mat hidden,
                         struct kg_mat weight, struct kg_err *err)
{
    const int64_t rest = z.cols % strip;

    *are = true;
    if (z.cols >= strip)
        KG_TRY(kg_cuda_blas_is_own(are, kg_mat_cols(z, 0, strip), hidden,
                                   kg_mat_rows(weight, 0, strip), err));
    if (*are && rest > 0)
        KG_TRY(kg_cuda_blas_is_own(are, kg_mat_cols(z, z.cols - rest, rest), hidden,
                                   kg_mat_rows(weight, z.cols - rest, rest), err));
    return KG_OK;
}

kg_status kg_cuda_head_products(struct kg_mat z, int64_t strip, struct kg_mat hidden,
                                struct kg_mat weight, struct kg_err *err)
{
    const bool of_library = kg_cuda_used() == KG_CUDA_CUBLAS && hidden.dtype == KG_BF16 &&
                            z.rows > 0;
    bool own = false;

    if (of_library)
        KG_TRY(are_own(&own, z, strip, hidden, weight, err));
    if (own) {
        kg_cuda_product_mma(z, hidden, weight, KG_MATMUL_NT, NULL);
        return kg_dev_done("head", err);
    }
    for (int64_t v = 0, n; v < z.cols; v += n) {
        n = of_library ? kg_cuda_min(strip, z.cols - v) : z.cols;
        KG_TRY(kg_cuda_matmul(kg_mat_cols(z, v, n), hidden, kg_mat_rows(weight, v, n),
                              KG_MATMUL_NT, false, err));
    }
    return KG_OK;
}

/* ---- sets ---- */
/* Ascending ids as differences, seven bits per byte; see base/idset.c. */
static __device__ void walk_list(uint32_t *bits, const uint8_t *list, uint32_t bytes)
{
    int64_t id = -1;
    uint32_t gap = 0;
    int shift = 0;

    for (uint32_t i = 0; i < bytes; i++) {
        gap |= (uint32_t)(list[i] & 127) << shift;
        shift += 7;
        if (list[i] & 128)
            continue;
        id += (int64_t)gap + 1;
        bits[id / 32] |= 1u << id % 32;
        gap = 0;
        shift = 0;
    }
}

static __device__ uint32_t word_of(const uint8_t *bitmap, uint32_t bytes, int64_t w)
{
    uint32_t word = 0;

    for (int64_t i = 0; i < 4 && w * 4 + i < bytes; i++)
        word |= (uint32_t)bitmap[w * 4 + i] << i * 8;
    return word;
}

/* A block per row. */
static __global__ void open_set(uint32_t *bits, const struct kg_cuda_set *sets,
                                const uint8_t *packed, int64_t words, uint32_t most)
{
    const struct kg_cuda_set set = sets[blockIdx.x];
    const bool bitmap = set.bytes == most;
    uint32_t *row = bits + blockIdx.x * words;

    for (int64_t w = threadIdx.x; w < words; w += KG_ROW_THREADS)
        row[w] = bitmap ? word_of(packed + set.at, set.bytes, w) : 0;
    __syncthreads();
    if (!bitmap && threadIdx.x == 0)
        walk_list(row, packed + set.at, set.bytes);
}

void kg_cuda_open_sets(uint32_t *bits, const struct kg_cuda_set *sets,
                       const uint8_t *packed, int64_t rows, int64_t vocab)
{
    KG_LAUNCH(open_set, kg_grid(rows, 1), KG_ROW_THREADS, bits, sets, packed,
              kg_cuda_set_words(vocab), kg_idset_most((int32_t)vocab));
}
