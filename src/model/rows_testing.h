/* Shared by tests of a micro-batch: a model small enough for finite differences.
 *
 * Included by *_test.c only.
 */
#ifndef KG_MODEL_ROWS_TESTING_H
#define KG_MODEL_ROWS_TESTING_H

#include "model/rows.h"

#include "base/mem.h"
#include "base/need_testing.h"

static inline void *must_alloc(size_t n, size_t size)
{
    struct kg_err err;
    void *p = kg_mem_calloc(n, size, "test", &err);

    assert_non_null(p);
    return p;
}

/* Two layers in fp32, head and embeddings tied, random weights. */
static inline struct kg_model *small_model(int64_t vocab, uint64_t seed)
{
    struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model_config c = {.vocab = vocab,
                                .hidden = 16,
                                .ffn = 24,
                                .layers = 2,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 8,
                                .max_positions = 64,
                                .norm_eps = 1e-6f,
                                .rope_theta = 1e4,
                                .tied = true,
                                .qkv_bias = true,
                                .init_range = 0.3f,
                                .bos = -1,
                                .dtype_name = ""};
    struct kg_model *m = NULL;

    NEED(kg_arch_find(&c.arch, "qwen2", err));
    NEED(kg_model_create(&m, &c, &opts, seed, err));
    return m;
}

#endif
