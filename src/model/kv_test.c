/* The paged cache's pools; that decoding through them equals the full forward is
 * forward_test.c. */
#include "model/model_testing.h"

static struct kg_model *open_tiny(void)
{
    return test_open("tests/data/reference/qwen3", KG_F32, false);
}

static void test_a_copied_block_is_equal_in_every_layer(void **state)
{
    (void)state;
    struct kg_model *m = open_tiny();
    struct kg_kv *kv = NULL;
    NEED(kg_kv_create(&kv, m, 3, err));
    const size_t n = (size_t)KG_KV_BLOCK * (size_t)kv->k[0].cols;
    for (int32_t l = 0; l < kv->layers; l++) {
        float *k = kv->k[l].data;
        float *v = kv->v[l].data;
        for (size_t i = 0; i < n; i++) {
            k[n + i] = (float)(l * 1000 + (int)i);
            v[n + i] = -k[n + i];
        }
    }
    NEED(kg_kv_copy_block(kv, 2, 1, err));
    for (int32_t l = 0; l < kv->layers; l++) {
        const float *k = kv->k[l].data;
        const float *v = kv->v[l].data;
        assert_memory_equal(k + 2 * n, k + n, n * sizeof *k);
        assert_memory_equal(v + 2 * n, v + n, n * sizeof *v);
        assert_true(k[n - 1] == 0.0f);
    }
    kg_kv_free(kv);
    kg_model_free(m);
}

static void test_a_cache_without_blocks_is_refused(void **state)
{
    (void)state;
    struct kg_model *m = open_tiny();
    struct kg_kv *kv = NULL;
    struct kg_err why;
    assert_int_equal(kg_kv_create(&kv, m, 0, &why), KG_EINVAL);
    assert_null(kv);
    assert_int_equal(kg_kv_block_bytes(m), 2 * 2 * 64 * 2 * 16 * 4);
    kg_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_copied_block_is_equal_in_every_layer),
        cmocka_unit_test(test_a_cache_without_blocks_is_refused),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
