/* The cache's pools of blocks. forward_test.c shows that decoding through them equals the
 * full forward. */
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
    NEED(kg_kv_create(&kv, m, kg_kv_alike(3), err));
    const size_t n = (size_t)KG_KV_BLOCK * (size_t)kv->k[0].cols;
    for (int32_t l = 0; l < kv->layers; l++) {
        float *k = kv->k[l].data;
        float *v = kv->v[l].data;
        for (size_t i = 0; i < n; i++) {
            k[n + i] = (float)(l * 1000 + (int)i);
            v[n + i] = -k[n + i];
        }
    }
    NEED(kg_kv_copy_block(kv, KG_KV_ALL, 2, 1, err));
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
    assert_int_equal(kg_kv_create(&kv, m, kg_kv_alike(0), &why), KG_EINVAL);
    assert_null(kv);
    assert_int_equal(kg_kv_bytes(m, kg_kv_alike(1)), 2 * 2 * 64 * 2 * 16 * 4);
    kg_model_free(m);
}

/* Layers 0 and 1 see everything, layer 2 has a window. */
static void test_each_kind_of_layers_has_its_own_blocks(void **state)
{
    (void)state;
    const struct kg_kv_size size = {{4, 2}};
    struct kg_model *m = test_open("tests/data/reference/qwen2_window", KG_F32, false);
    struct kg_kv *kv = NULL;
    NEED(kg_kv_create(&kv, m, size, err));
    const size_t n = (size_t)KG_KV_BLOCK * (size_t)kv->k[0].cols;
    const size_t bytes = n * sizeof(float);
    assert_int_equal(kg_kv_bytes(m, size), (2 * 2 * 4 + 2 * 2) * bytes);
    for (int32_t l = 0; l < 3; l++) {
        assert_int_equal(kv->v[l].rows, (l < 2 ? 4 : 2) * KG_KV_BLOCK);
        ((float *)kv->k[l].data)[n] = (float)(l + 1);
    }
    NEED(kg_kv_copy_block(kv, KG_KV_WINDOW, 0, 1, err));
    for (int32_t l = 0; l < 3; l++)
        assert_true(((const float *)kv->k[l].data)[0] == (l < 2 ? 0.0f : 3.0f));
    kg_kv_free(kv);
    kg_model_free(m);
}

/* Windows of 1 to 200 keys, at positions 0 to 399, in steps of 1 to 100 tokens. */
static void test_a_table_goes_round_behind_what_is_seen(void **state)
{
    (void)state;
    for (int64_t window = 1; window <= 200; window += window < 70 ? 1 : 13)
        for (int64_t step = 1; step <= 100; step += step < 4 ? 1 : 31) {
            int64_t most = 0;
            for (int64_t pos = 0; pos < 400; pos++) {
                const int64_t first = kg_kv_first_seen(pos, window);
                const int64_t key = pos < window ? 0 : pos - window + 1;
                const int64_t n = (pos + step - 1) / KG_KV_BLOCK - first + 1;
                assert_int_equal(first, key / KG_KV_BLOCK);
                most = n > most ? n : most;
            }
            assert_int_equal(kg_kv_round(1000, window, step), most);
            assert_int_equal(kg_kv_round(1, window, step), 1);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_copied_block_is_equal_in_every_layer),
        cmocka_unit_test(test_a_cache_without_blocks_is_refused),
        cmocka_unit_test(test_each_kind_of_layers_has_its_own_blocks),
        cmocka_unit_test(test_a_table_goes_round_behind_what_is_seen),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
