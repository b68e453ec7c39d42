/* Backends by name, their memory, and a backend whose memory the host cannot access. */
#include "tensor/backend_testing.h"

#include "base/mem.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct kg_err err;

static void an_unknown_backend_lists_the_valid_ones(void **state)
{
    const struct kg_backend *be;

    (void)state;
    assert_int_equal(kg_backend_open(&be, "gpu", &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "expected one of cpu, cuda, far"));
    assert_non_null(strstr(err.message, "found 'gpu'"));
    assert_int_equal(kg_backend_open(&be, "cpu", &err), KG_OK);
    assert_string_equal(be->name, "cpu");
}

/* Several of the ranges that threads share, and a part of one. */
enum { BYTES = (3 << 20) + 1001 };

static void buffers_are_zero_and_hold_what_is_put_there(void **state)
{
    const struct kg_backend *be = backend();
    char *a = buffer_of(BYTES, 1), *b = buffer_of(BYTES, 1);
    char *x = kg_mem_calloc(2, BYTES, "test", &err), *y = x + BYTES;

    (void)state;
    assert_true((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0);
    memset(y, 1, BYTES);
    assert_int_equal(kg_buf_get(be, y, a, BYTES, &err), KG_OK);
    assert_memory_equal(x, y, BYTES);
    for (int i = 0; i < BYTES; i++)
        x[i] = (char)(i % 251);
    assert_int_equal(kg_buf_put(be, a, x, BYTES, &err), KG_OK);
    assert_int_equal(kg_buf_copy(be, b + 7, a + 3, BYTES - 9, &err), KG_OK);
    assert_int_equal(kg_buf_get(be, y, b + 7, BYTES - 9, &err), KG_OK);
    assert_memory_equal(x + 3, y, BYTES - 9);
    assert_int_equal(kg_buf_zero(be, b, BYTES, &err), KG_OK);
    assert_int_equal(kg_buf_swap(be, a, b, BYTES, &err), KG_OK);
    assert_int_equal(kg_buf_get(be, y, b, BYTES, &err), KG_OK);
    assert_memory_equal(x, y, BYTES);
    memset(x, 0, BYTES);
    assert_int_equal(kg_buf_get(be, y, a, BYTES, &err), KG_OK);
    assert_memory_equal(x, y, BYTES);
    buffer_free(a);
    buffer_free(b);
    kg_mem_free(x);
}

static void pinned_memory_is_zero_and_holds_what_is_fetched(void **state)
{
    const struct kg_backend *be = backend();
    char *a = buffer_of(BYTES, 1), x[8] = "fetched";
    char *pinned = kg_buf_pin(be, BYTES, "test", &err);

    (void)state;
    assert_non_null(pinned);
    for (int i = 0; i < BYTES; i++)
        assert_int_equal(pinned[i], 0);
    assert_int_equal(kg_buf_put(be, a + BYTES - 8, x, 8, &err), KG_OK);
    assert_int_equal(kg_buf_fetch(be, pinned + 3, a + BYTES - 8, 8, &err), KG_OK);
    assert_string_equal(pinned + 3, "fetched");
    assert_int_equal(pinned[2], 0);
    assert_int_equal(kg_buf_fetch(be, pinned, NULL, 1, &err), KG_EINVAL);
    kg_buf_unpin(be, pinned);
    kg_buf_unpin(be, NULL);
    buffer_free(a);
}

static void wrong_ranges_are_refused(void **state)
{
    const struct kg_backend *be = backend();
    char *a = buffer_of(64, 1), x[64];

    (void)state;
    assert_int_equal(kg_buf_put(be, NULL, x, 1, &err), KG_EINVAL);
    assert_int_equal(kg_buf_get(be, x, NULL, 1, &err), KG_EINVAL);
    assert_int_equal(kg_buf_zero(be, NULL, 1, &err), KG_EINVAL);
    assert_int_equal(kg_buf_copy(be, a, a + 31, 32, &err), KG_EINVAL);
    assert_int_equal(kg_buf_swap(be, a + 31, a, 32, &err), KG_EINVAL);
    assert_int_equal(kg_buf_copy(be, a, a + 32, 32, &err), KG_OK);
    assert_int_equal(kg_buf_put(be, a, x, 0, &err), KG_OK);
    buffer_free(a);
}

static void a_failing_allocation_is_a_status(void **state)
{
    uint64_t before = kg_mem_current_bytes();

    (void)state;
    need_counted_memory();
    kg_mem_fail_at(1);
    assert_null(kg_buf_alloc(backend(), 100, "the anchor", &err));
    kg_mem_fail_at(0);
    assert_int_equal(err.code, KG_ENOMEM);
    assert_non_null(strstr(err.message, "the anchor"));
    assert_int_equal(kg_mem_current_bytes(), before);
}

/* ---- far ---- */
/* Whether reading p[i] ends a process, by a signal or a sanitizer's report. */
static bool dies_of_reading(const char *p, size_t i)
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* instead of a sanitizer's handler */
        (void)((const volatile char *)p)[i];
        _exit(0);
    }
    assert_true(waitpid(child, &status, 0) == child);
    return status != 0;
}

static void a_stray_read_of_far_memory_dies(void **state)
{
    const struct kg_backend *be;
    char *p, x[64] = {5}, y[64];

    (void)state;
    assert_int_equal(kg_backend_open(&be, "far", &err), KG_OK);
    assert_true(!be->host_memory && be->one_caller);
    kg_pages_show(false);
    p = kg_buf_alloc(be, sizeof x, "test", &err);
    assert_non_null(p);
    assert_int_equal(kg_buf_put(be, p, x, sizeof x, &err), KG_OK);
    assert_int_equal(kg_buf_get(be, y, p, sizeof y, &err), KG_OK);
    assert_memory_equal(x, y, sizeof x);
    assert_true(dies_of_reading(p, 0));
    kg_pages_show(true);
    assert_false(dies_of_reading(p, 0));
    assert_true(dies_of_reading(p, sizeof x)); /* beyond the end */
    kg_buf_free(be, p);
    assert_true(dies_of_reading(p, 0));
    assert_int_equal(kg_buf_get(be, y, p, sizeof y, &err), KG_EINVAL);
    kg_pages_show(false);
}

static void memory_that_is_not_far_and_other_threads_are_refused(void **state)
{
    const struct kg_backend *be;
    float x[8] = {0}, *p;
    kg_status status = KG_OK;

    (void)state;
    assert_int_equal(kg_backend_open(&be, "far", &err), KG_OK);
    p = kg_buf_alloc(be, sizeof x, "test", &err);
    assert_non_null(p);
    assert_int_equal(kg_op_ema(be, kg_vec(p, 8), kg_vec(x, 8), 0.5f, &err), KG_EINVAL);
    assert_string_equal(err.message,
                        "far_ema: operand 1 is not memory of the backend far");
#pragma omp parallel num_threads(2) reduction(max : status)
    {
        struct kg_err own;

        status = kg_op_ema(be, kg_vec(p, 8), kg_vec(p, 8), 0.5f, &own);
    }
    assert_int_equal(status, KG_ECONFLICT);
    assert_int_equal(kg_op_ema(be, kg_vec(p, 8), kg_vec(p, 8), 0.5f, &err), KG_OK);
    kg_buf_free(be, p);
}

/* KEDGE_TEST_MEMORY is the size of the device's memory. */
static void a_device_that_is_full_says_how_much_it_has(void **state)
{
    const struct kg_backend *be;
    uint64_t total, free, held;
    void *p;

    (void)state;
    setenv("KEDGE_TEST_MEMORY", "1000000000", 1);
    assert_int_equal(kg_backend_open(&be, "far", &err), KG_OK);
    assert_int_equal(be->memory(&total, &free, &err), KG_OK);
    assert_true(total == 1000000000 && free <= total);
    held = kg_pages_memory().held;
    p = kg_buf_alloc(be, 600000000 - held, "test", &err);
    assert_non_null(p);
    assert_int_equal(be->memory(&total, &free, &err), KG_OK);
    assert_true(free == 400000000);
    assert_null(kg_buf_alloc(be, 400000001, "the anchor", &err));
    assert_int_equal(err.code, KG_ENOMEM);
    assert_string_equal(err.message,
                        "the anchor: no memory for 400000001 bytes; of 1.00 "
                        "GB, 0.40 GB are free (another process may hold some)");
    kg_buf_free(be, p);
    unsetenv("KEDGE_TEST_MEMORY");
    assert_true(kg_pages_memory().most == 600000000);
    assert_true(kg_pages_memory().most == held);
    assert_int_equal(kg_backend_open(&be, "cpu", &err), KG_OK);
    assert_true(be->memory == NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_backend_lists_the_valid_ones),
        cmocka_unit_test(buffers_are_zero_and_hold_what_is_put_there),
        cmocka_unit_test(pinned_memory_is_zero_and_holds_what_is_fetched),
        cmocka_unit_test(wrong_ranges_are_refused),
        cmocka_unit_test(a_failing_allocation_is_a_status),
        cmocka_unit_test(a_stray_read_of_far_memory_dies),
        cmocka_unit_test(memory_that_is_not_far_and_other_threads_are_refused),
        cmocka_unit_test(a_device_that_is_full_says_how_much_it_has),
    };

    const int failed = RUN_FAR_TOO(tests, NULL, NULL);
    return failed + RUN_EMULATED(tests, NULL, NULL);
}
