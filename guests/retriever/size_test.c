/* Tests of predicted sizes. */
#include "search/index.h"

#include "base/folder_testing.h"
#include "retriever/dense/dense_internal.h"

/* Does not check for leaks: pool threads keep scratch of the CPU's operations. */
static int end(void **state)
{
    (void)state;
    return kg_file_remove_tree(dir, &err) != KG_OK;
}

/* Just above 4 Mi passages, Wikipedia 2018 with E5, and the maximum: sizes and the offset
 * of the last panel do not overflow. */
static void sizes_of_many_are_right(void **state)
{
    static const int64_t counts[] = {(1 << 22) + 1, 21015324, KG_DENSE_PASSAGES_MAX};
    struct kg_search_size size;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const int64_t n = counts[i];
        const struct kg_codes codes = {(void *)(uintptr_t)64, KG_CODE_F16, n, 768};
        const uint64_t fp16 = (uint64_t)n * 768 * 2;

        kg_search_size(&size, n, 768);
        assert_int_equal(size.vectors_fp16, fp16);
        assert_int_equal(size.vectors_int8, (uint64_t)n * (768 + 8));
        assert_int_equal(size.lengths, (uint64_t)n * 4);
        assert_in_range(kg_codes_bytes(KG_CODE_F16, n, 768), fp16, fp16 + 16 * 768 * 2);
        assert_int_equal((uintptr_t)kg_codes_rows(&codes, n / 16 * 16, 1).data,
                         64 + n / 16 * 16 * 768 * 2);
    }
    kg_search_size(&size, KG_DENSE_PASSAGES_MAX, KG_DENSE_DIM_MAX);
    assert_int_equal(size.vectors_fp16, 1ull << (26 + 22 + 1));
    assert_int_equal(kg_codes_bytes(KG_CODE_F16, KG_DENSE_PASSAGES_MAX, KG_DENSE_DIM_MAX),
                     1ull << (26 + 22 + 1));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, make_dir, end)
    const struct CMUnitTest tests[] = {
        T(sizes_of_many_are_right),
    };
    return cmocka_run_group_tests_name("size", tests, NULL, NULL);
}
