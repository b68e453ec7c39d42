/* The paged KV cache: pools of key and value rows, in blocks.
 *
 * It holds no sequences, and does not track which of its blocks are in use: the caller's
 * tables do (kg_pack_seq.blocks). Different rows of the pools may be written at the same
 * time.
 *
 * The one idea: a block is KG_KV_BLOCK rows of the pools of all layers of a kind under
 * one number. The samples of a group therefore share their prompt by using the same
 * numbers.
 */
#include "model/kv.h"

#include "model/model.h"

#include <assert.h>

static int64_t row_elements(const struct kg_model *m)
{
    return (int64_t)m->config.kv_heads * m->config.head_dim;
}

static uint64_t pool_bytes(const struct kg_model *m, int64_t n_blocks)
{
    return (uint64_t)n_blocks * KG_KV_BLOCK * (uint64_t)row_elements(m) *
           kg_dtype_traits(m->ct)->bytes;
}

uint64_t kg_kv_bytes(const struct kg_model *m, struct kg_kv_size n_blocks)
{
    uint64_t bytes = 0;
    for (int32_t l = 0; l < m->config.layers; l++)
        bytes += 2 * pool_bytes(m, n_blocks.of[kg_kv_kind_of(&m->config, l)]);
    return bytes;
}

bool kg_kv_used(const struct kg_model_config *c, enum kg_kv_kind kind)
{
    for (int32_t l = 0; l < c->layers; l++)
        if (kg_kv_kind_of(c, l) == kind)
            return true;
    return false;
}

static kg_status create_pool(struct kg_mat *pool, const struct kg_model *m,
                             int64_t n_blocks, struct kg_err *err)
{
    void *data = kg_buf_alloc(m->backend, pool_bytes(m, n_blocks), "KV cache", err);
    *pool = kg_mat(data, m->ct, n_blocks * KG_KV_BLOCK, row_elements(m));
    return data ? KG_OK : err->code;
}

static kg_status create_parts(struct kg_kv *kv, const struct kg_model *m,
                              struct kg_err *err)
{
    kv->backend = m->backend;
    kv->config = &m->config;
    kv->layers = m->config.layers;
    KG_TRY(kg_mem_new(&kv->k, 2 * (size_t)kv->layers, sizeof *kv->k, "KV pools", err));
    kv->v = kv->k + kv->layers;
    for (int32_t i = 0; i < 2 * kv->layers; i++) {
        const enum kg_kv_kind kind = kg_kv_kind_of(kv->config, i % kv->layers);
        KG_TRY(create_pool(&kv->k[i], m, kv->n_blocks.of[kind], err));
    }
    return KG_OK;
}

kg_status kg_kv_create(struct kg_kv **out, const struct kg_model *m,
                       struct kg_kv_size n_blocks, struct kg_err *err)
{
    *out = NULL;
    for (int kind = 0; kind < KG_KV_KINDS; kind++) {
        const int64_t n = n_blocks.of[kind];
        if (kg_kv_used(&m->config, kind) && (n < 1 || n > INT32_MAX / KG_KV_BLOCK))
            return kg_fail(err, KG_EINVAL,
                           "KV cache: expected 1 to %d blocks, found %lld",
                           INT32_MAX / KG_KV_BLOCK, (long long)n);
    }
    struct kg_kv *kv = kg_mem_calloc(1, sizeof *kv, "KV cache", err);
    if (!kv)
        return KG_ENOMEM;
    for (int kind = 0; kind < KG_KV_KINDS; kind++)
        kv->n_blocks.of[kind] = kg_kv_used(&m->config, kind) ? n_blocks.of[kind] : 0;
    const kg_status status = create_parts(kv, m, err);
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

kg_status kg_kv_copy_block(struct kg_kv *kv, enum kg_kv_kind kind, int32_t to,
                           int32_t from, struct kg_err *err)
{
    const int64_t n = kv->n_blocks.of[kind];
    assert(to != from && to >= 0 && to < n && from >= 0 && from < n);
    for (int32_t i = 0; i < 2 * kv->layers; i++)
        if (kg_kv_kind_of(kv->config, i % kv->layers) == kind) {
            const uint64_t bytes = KG_KV_BLOCK * (uint64_t)kv->k[i].cols *
                                   kg_dtype_traits(kv->k[i].dtype)->bytes;
            char *base = kv->k[i].data;
            KG_TRY(kg_buf_copy(kv->backend, base + (uint64_t)to * bytes,
                               base + (uint64_t)from * bytes, bytes, err));
        }
    return KG_OK;
}
