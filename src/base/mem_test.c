/* Tests of memory accounting. */
#include "base/mem.h"

#include "base/cgroup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;

static int reset(void **state)
{
    (void)state;
    kg_mem_fail_at(0);
    kg_mem_set_cap(0);
    kg_mem_reset_peak();
    memset(&err, 0, sizeof err);
    return kg_mem_current_bytes() != 0; /* the previous test leaked */
}

static void blocks_are_zero_and_aligned(void **state)
{
    const size_t sizes[] = {1, 63, 64, 65, 4096, 1 << 20, (1 << 20) + 1, 5 << 20};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = kg_mem_calloc(sizes[i], 1, "block", &err);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t k = 0; k < sizes[i]; k += 61)
            assert_int_equal(p[k], 0);
        assert_int_equal(p[sizes[i] - 1], 0);
        memset(p, 0xff, sizes[i]);
        kg_mem_free(p);
    }
}

static void zero_bytes_are_a_block_too(void **state)
{
    void *p = kg_mem_calloc(0, 8, "nothing", &err);

    (void)state;
    assert_non_null(p);
    kg_mem_free(p);
    kg_mem_free(NULL);
}

static void counts_current_and_peak(void **state)
{
    (void)state;
    void *a = kg_mem_calloc(1000, 1, "a", &err);
    void *b = kg_mem_calloc(3, 1 << 20, "b", &err);
    assert_int_equal(kg_mem_current_bytes(), 1000 + (3 << 20));
    kg_mem_free(b);
    assert_int_equal(kg_mem_current_bytes(), 1000);
    assert_int_equal(kg_mem_peak_bytes(), 1000 + (3 << 20));
    kg_mem_reset_peak();
    assert_int_equal(kg_mem_peak_bytes(), 1000);
    kg_mem_free(a);
}

static void counts_hold_with_threads(void **state)
{
    int bad = 0;

    (void)state;
#pragma omp parallel for num_threads(4) reduction(+ : bad)
    for (int i = 0; i < 2000; i++) {
        struct kg_err mine;
        char *p = kg_mem_calloc((size_t)i + 1, 1, "block", &mine);
        bad += !p || p[i] != 0;
        kg_mem_free(p);
    }
    assert_int_equal(bad, 0);
    assert_int_equal(kg_mem_current_bytes(), 0);
}

static void cap_refuses_and_names_the_block(void **state)
{
    (void)state;
    kg_mem_set_cap(1000);
    void *a = kg_mem_calloc(600, 1, "first", &err);
    assert_non_null(a);
    assert_null(kg_mem_calloc(401, 1, "second", &err));
    assert_int_equal(err.code, KG_ENOMEM);
    assert_string_equal(err.message,
                        "second: 401 bytes do not fit under the memory cap of 1000 "
                        "bytes, of which 600 are in use");
    void *b = kg_mem_calloc(400, 1, "third", &err);
    assert_non_null(b);
    kg_mem_free(a);
    kg_mem_free(b);
}

static void overflow_is_out_of_memory(void **state)
{
    (void)state;
    assert_null(kg_mem_calloc(SIZE_MAX / 2, 4, "huge", &err));
    assert_int_equal(err.code, KG_ENOMEM);
    assert_null(kg_mem_calloc(SIZE_MAX, 1, "huge", &err));
    assert_int_equal(err.code, KG_ENOMEM);
}

static void the_nth_allocation_fails_once(void **state)
{
    (void)state;
    kg_mem_fail_at(3);
    void *a = kg_mem_calloc(1, 1, "a", &err);
    void *b = kg_mem_calloc(1, 1, "b", &err);
    assert_null(kg_mem_calloc(1, 1, "c", &err));
    assert_int_equal(err.code, KG_ENOMEM);
    assert_memory_equal(err.message, "c: ", 3);
    void *d = kg_mem_calloc(1, 1, "d", &err);
    assert_true(a && b && d);
    kg_mem_free(a);
    kg_mem_free(b);
    kg_mem_free(d);
}

static void copies_bytes_and_text(void **state)
{
    (void)state;
    int *p = kg_mem_copy((int[]){1, 2, 3}, 12, "numbers", &err);
    char *s = kg_mem_strdup("text", &err);
    assert_int_equal(p[2], 3);
    assert_string_equal(s, "text");
    kg_mem_free(p);
    kg_mem_free(s);
}

static void grow_keeps_contents_and_zeroes_the_rest(void **state)
{
    int *v = NULL;
    size_t capacity = 0;

    (void)state;
    for (size_t n = 0; n < 1000; n++) {
        assert_int_equal(kg_mem_grow(&v, &capacity, n + 1, sizeof *v, 1000, "v", &err),
                         KG_OK);
        assert_int_equal(v[n], 0);
        v[n] = (int)n;
    }
    assert_int_equal(capacity, 1000);
    for (int n = 0; n < 1000; n++)
        assert_int_equal(v[n], n);
    kg_mem_free(v);
}

static void grow_refuses_more_than_the_maximum(void **state)
{
    char *v = NULL;
    size_t capacity = 0;

    (void)state;
    assert_int_equal(kg_mem_grow(&v, &capacity, 11, 1, 10, "v", &err), KG_ENOMEM);
    assert_string_equal(err.message, "v: 11 elements are needed, at most 10 are allowed");
    assert_null(v);
    assert_int_equal(capacity, 0);
}

static void failed_growth_keeps_the_block(void **state)
{
    char *v = NULL;
    size_t capacity = 0;

    (void)state;
    assert_int_equal(kg_mem_grow(&v, &capacity, 4, 1, 100, "v", &err), KG_OK);
    memcpy(v, "abc", 4);
    size_t before = capacity;
    kg_mem_fail_at(1);
    assert_int_equal(kg_mem_grow(&v, &capacity, before + 1, 1, 100, "v", &err),
                     KG_ENOMEM);
    assert_int_equal(capacity, before);
    assert_string_equal(v, "abc");
    kg_mem_free(v);
}

static void large_blocks_cost_what_is_touched(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    print_message("skip: under AddressSanitizer blocks come from the C library\n");
    skip();
#endif
    uint64_t before = kg_mem_resident_bytes();
    unsigned char *p = kg_mem_calloc((size_t)1 << 30, 1, "slab", &err);
    assert_non_null(p);
    uint64_t untouched = kg_mem_resident_bytes();
    memset(p, 1, 32 << 20);
    uint64_t touched = kg_mem_resident_bytes();
    kg_mem_free(p);
    assert_true(before > 0);
    assert_true(untouched < before + (8 << 20));
    assert_true(touched >= untouched + (24 << 20));
    assert_true(kg_mem_resident_bytes() < before + (8 << 20));
}

/* The values of free(1) and of the container are not known here, so only their range is
 * checked. */
static void a_machine_has_more_than_is_taken(void **state)
{
    (void)state;
    assert_true(kg_cgroup_machine_bytes() > kg_mem_resident_bytes());
    assert_true(kg_cgroup_machine_bytes() < 1ull << 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(blocks_are_zero_and_aligned, reset),
        cmocka_unit_test_setup(zero_bytes_are_a_block_too, reset),
        cmocka_unit_test_setup(counts_current_and_peak, reset),
        cmocka_unit_test_setup(counts_hold_with_threads, reset),
        cmocka_unit_test_setup(cap_refuses_and_names_the_block, reset),
        cmocka_unit_test_setup(overflow_is_out_of_memory, reset),
        cmocka_unit_test_setup(the_nth_allocation_fails_once, reset),
        cmocka_unit_test_setup(copies_bytes_and_text, reset),
        cmocka_unit_test_setup(grow_keeps_contents_and_zeroes_the_rest, reset),
        cmocka_unit_test_setup(grow_refuses_more_than_the_maximum, reset),
        cmocka_unit_test_setup(failed_growth_keeps_the_block, reset),
        cmocka_unit_test_setup(large_blocks_cost_what_is_touched, reset),
        cmocka_unit_test(a_machine_has_more_than_is_taken),
    };

    return cmocka_run_group_tests_name("mem", tests, NULL, NULL);
}
