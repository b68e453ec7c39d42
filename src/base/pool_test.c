/* Pools grow, keep what they must keep, and hand out zeroed memory; columns are laid out
 * in one block. */
#include "base/pool.h"

#include "base/columns.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;

static bool is_zero(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

/* ---- pools ---- */

static void pieces_are_zero_aligned_and_apart(void **state)
{
    struct kg_pool pool = {0};
    unsigned char *last = NULL;
    size_t last_n = 0;

    (void)state;
    for (size_t i = 0; i < 1000; i++) {
        size_t n = i * 37 % 300;
        unsigned char *p = kg_pool_alloc(&pool, n, 1, &err);

        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        assert_true(is_zero(p, n));
        assert_true(p >= last + last_n || p + n <= last);
        memset(p, 0xff, n);
        last = p, last_n = n;
    }
    assert_true(pool.bytes >= 1000 * 149 && pool.bytes < 4 * 1000 * 160);
    kg_pool_release(&pool);
    assert_int_equal(pool.bytes, 0);
}

static void an_emptied_pool_hands_out_zeros_again(void **state)
{
    struct kg_pool pool = {.first_bytes = 1 << 10};
    unsigned char *first = kg_pool_alloc(&pool, 700, 1, &err), *again;
    uint64_t held;

    (void)state;
    memset(first, 0xff, 700);
    kg_pool_empty(&pool, 1 << 20);
    held = kg_mem_current_bytes();
    again = kg_pool_alloc(&pool, 100, 1, &err);
    assert_ptr_equal(again, first);
    assert_true(is_zero(again, 100));
    assert_true(is_zero(kg_pool_alloc(&pool, 800, 1, &err), 800));
    assert_int_equal(kg_mem_current_bytes(), held);
    kg_pool_release(&pool);
}

static void what_is_kept_is_one_chunk_of_that_size(void **state)
{
    struct kg_pool pool = {0};

    (void)state;
    assert_non_null(kg_pool_alloc(&pool, 3 << 20, 1, &err));
    kg_pool_empty(&pool, 1 << 20);
    assert_int_equal(pool.bytes, 0);
    for (int i = 0; i < 100; i++)
        assert_non_null(kg_pool_alloc(&pool, 4000, 1, &err));
    kg_pool_empty(&pool, 2 << 20);
    assert_true(pool.bytes > 0 && pool.bytes < 300000);
    kg_pool_release(&pool);
}

static void a_limit_counts_whole_chunks(void **state)
{
    struct kg_pool pool = {.name = "answers", .max_bytes = 10000};
    uint64_t before = kg_mem_current_bytes();

    (void)state;
    while (kg_pool_alloc(&pool, 100, 1, &err))
        assert_true(kg_mem_current_bytes() - before <= 10000);
    assert_int_equal(err.code, KG_ENOMEM);
    assert_string_equal(err.message, "answers: expected at most 10000 bytes, found more");
    assert_true(pool.bytes > 9000);
    assert_null(kg_pool_alloc(&pool, SIZE_MAX / 2, 4, &err));
    kg_pool_release(&pool);
}

/* ---- columns ---- */

struct arrays {
    int32_t *ids;
    double *logp;
    char *marks;
    struct kg_block block;
};
enum { IDS, ROWS, MARKS, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct arrays, ids, IDS),
    KG_COLUMN(struct arrays, logp, ROWS),
    KG_COLUMN(struct arrays, marks, MARKS),
    {0},
};

static void columns_place_what_they_count(void **state)
{
    const size_t counts[COUNTS] = {100, 0, 3};
    struct arrays a = {0};

    (void)state;
    assert_int_equal(kg_columns_bytes(columns, counts), 448 + 64);
    assert_int_equal(kg_columns_take(&a.block, &a, columns, counts, "arrays", &err),
                     KG_OK);
    assert_ptr_equal(a.ids, a.block.memory);
    assert_non_null(a.logp); /* has no elements */
    assert_ptr_equal(a.marks, (char *)a.ids + 448);
    assert_true(is_zero(a.block.memory, 512));
    kg_columns_free(&a.block, &a, columns);
    assert_null(a.ids);
    assert_null(a.block.memory);
}

static void a_block_is_used_again_and_zero(void **state)
{
    const size_t large[COUNTS] = {100, 10, 3}, small[COUNTS] = {50, 20, KG_COLUMN_ABSENT};
    struct arrays a = {0};
    void *memory;

    (void)state;
    assert_int_equal(kg_columns_take(&a.block, &a, columns, large, "arrays", &err),
                     KG_OK);
    memory = a.block.memory;
    memset(memory, 0xff, kg_columns_bytes(columns, large));
    assert_int_equal(kg_columns_take(&a.block, &a, columns, small, "arrays", &err),
                     KG_OK);
    assert_ptr_equal(a.block.memory, memory);
    assert_null(a.marks);
    assert_true(is_zero(memory, kg_columns_bytes(columns, small)));
    kg_columns_free(&a.block, &a, columns);
}

static void without_memory_no_field_is_set(void **state)
{
    const size_t counts[COUNTS] = {100, 10, 3}, many[COUNTS] = {SIZE_MAX / 4, 10, 3};
    struct arrays a = {0};

    (void)state;
    assert_int_equal(kg_columns_take(&a.block, &a, columns, counts, "arrays", &err),
                     KG_OK);
    assert_int_equal(kg_columns_take(&a.block, &a, columns, many, "arrays", &err),
                     KG_ENOMEM);
    assert_null(a.ids);
    assert_null(a.block.memory);
    kg_mem_fail_at(1);
    assert_int_equal(kg_columns_take(&a.block, &a, columns, counts, "arrays", &err),
                     KG_ENOMEM);
    kg_mem_fail_at(0);
    assert_null(a.marks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_zero_aligned_and_apart),
        cmocka_unit_test(an_emptied_pool_hands_out_zeros_again),
        cmocka_unit_test(what_is_kept_is_one_chunk_of_that_size),
        cmocka_unit_test(a_limit_counts_whole_chunks),
        cmocka_unit_test(columns_place_what_they_count),
        cmocka_unit_test(a_block_is_used_again_and_zero),
        cmocka_unit_test(without_memory_no_field_is_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
