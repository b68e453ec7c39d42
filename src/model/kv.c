/* The paged KV cache: pools of key and value rows, in blocks.
 *
 * It holds no sequence and no text of its own, and does not know which of its blocks are
 * in use: that is the caller's table (kg_pack_seq.blocks). Different rows of the pools
 * may be written at the same time.
 *
 * The one idea: a block is KG_KV_BLOCK rows of every layer's pools under one number, so
 * that the samples of a group share their prompt by naming the same numbers.
 */
#include "model/model.h"

#include <assert.h>

static int64_t row_elements(const struct kg_model *m)
{
    return (int64_t)m->config.kv_heads * m->config.head_dim;
}

uint64_t kg_kv_block_bytes(const struct kg_model *m)
{
    return (uint64_t)m->config.layers * 2 * KG_KV_BLOCK * (uint64_t)row_elements(m) *
           kg_dtype_traits(m->ct)->bytes;
}

static kg_status create_pool(struct kg_mat *pool, const struct kg_model *m,
                             int32_t n_blocks, struct kg_err *err)
{
    const int64_t rows = (int64_t)n_blocks * KG_KV_BLOCK;
    const int64_t cols = row_elements(m);
    const uint64_t bytes = (uint64_t)rows * (uint64_t)cols *
                           kg_dtype_traits(m->ct)->bytes;
    void *data = kg_buf_alloc(m->backend, bytes, "KV cache", err);
    *pool = kg_mat(data, m->ct, rows, cols);
    return data ? KG_OK : err->code;
}

static kg_status create_parts(struct kg_kv *kv, const struct kg_model *m,
                              int32_t n_blocks, struct kg_err *err)
{
    kv->backend = m->backend;
    kv->n_blocks = n_blocks;
    kv->layers = m->config.layers;
    kv->k = kg_mem_calloc(2 * (size_t)kv->layers, sizeof *kv->k, "KV pools", err);
    if (!kv->k)
        return KG_ENOMEM;
    kv->v = kv->k + kv->layers;
    for (int32_t i = 0; i < 2 * kv->layers; i++)
        KG_TRY(create_pool(&kv->k[i], m, n_blocks, err));
    return KG_OK;
}

kg_status kg_kv_create(struct kg_kv **out, const struct kg_model *m, int32_t n_blocks,
                       struct kg_err *err)
{
    *out = NULL;
    if (n_blocks < 1 || n_blocks > INT32_MAX / KG_KV_BLOCK)
        return kg_fail(err, KG_EINVAL, "KV cache: expected 1 to %d blocks, found %d",
                       INT32_MAX / KG_KV_BLOCK, (int)n_blocks);
    struct kg_kv *kv = kg_mem_calloc(1, sizeof *kv, "KV cache", err);
    if (!kv)
        return KG_ENOMEM;
    const kg_status status = create_parts(kv, m, n_blocks, err);
    if (status != KG_OK) {
        kg_kv_free(kv);
        return status;
    }
    *out = kv;
    return KG_OK;
}

void kg_kv_free(struct kg_kv *kv)
{
    if (!kv)
        return;
    for (int32_t i = 0; i < 2 * kv->layers && kv->k; i++)
        kg_buf_free(kv->backend, kv->k[i].data);
    kg_mem_free(kv->k);
    kg_mem_free(kv);
}

static kg_status copy_rows(const struct kg_backend *be, struct kg_mat pool, int32_t to,
                           int32_t from, struct kg_err *err)
{
    const uint64_t bytes = KG_KV_BLOCK * (uint64_t)pool.cols *
                           kg_dtype_traits(pool.dtype)->bytes;
    char *base = pool.data;
    return kg_buf_copy(be, base + (uint64_t)to * bytes, base + (uint64_t)from * bytes,
                       bytes, err);
}

kg_status kg_kv_copy_block(struct kg_kv *kv, int32_t to, int32_t from, struct kg_err *err)
{
    assert(to != from && to >= 0 && to < kv->n_blocks && from >= 0 &&
           from < kv->n_blocks);
    for (int32_t i = 0; i < 2 * kv->layers; i++)
        KG_TRY(copy_rows(kv->backend, kv->k[i], to, from, err));
    return KG_OK;
}
