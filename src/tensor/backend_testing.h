/* What tests of operations share: the backend under test.
 *
 * Included by *_test.c only. A failing helper fails the test.
 */
#ifndef KG_TENSOR_BACKEND_TESTING_H
#define KG_TENSOR_BACKEND_TESTING_H

#include "tensor/backend.h"
#include "tensor/cuda/emu.h"
#include "tensor/pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const char *backend_name; /* NULL: the default */

static inline const struct kg_backend *backend(void)
{
    const struct kg_backend *be = NULL;
    struct kg_err why;

    assert_int_equal(kg_backend_open(&be, backend_name, &why), KG_OK);
    return be;
}

/* Zeros of the backend, for operands; freed by buffer_free. */
static inline void *buffer_of(int64_t count, size_t size)
{
    struct kg_err why;
    void *p = kg_buf_alloc(backend(), (uint64_t)count * size, "test", &why);

    assert_non_null(p);
    return p;
}

/* A copy of what the test can touch, where it can touch the backend's memory. */
static inline void *buffer_with(const void *from, int64_t count, size_t size)
{
    return memcpy(buffer_of(count, size), from, (size_t)count * size);
}

static inline void buffer_free(void *p) { kg_buf_free(backend(), p); }

/* For tests of kg_mem's counts, and of calls from parallel regions. */
static inline void need_host_memory(void)
{
    if (backend()->host_memory)
        return;
    print_message("skip: the backend is %s\n", backend()->name);
    skip();
}

/* Tests that touch the backend's memory in place, between operations. */
#define RUN_SHOWN(tests, setup, teardown)                                                \
    (kg_pages_show(true), cmocka_run_group_tests(tests, setup, teardown))

/* The tests of a program once more on memory that opens for operations alone; between
 * them tests may touch it. */
static inline void use_backend(const char *name)
{
    backend_name = name;
    kg_pages_show(true);
}
#define RUN_FAR_TOO(tests, setup, teardown)                                              \
    ({                                                                                   \
        int failures;                                                                    \
                                                                                         \
        use_backend("cpu");                                                              \
        failures = cmocka_run_group_tests_name("cpu", tests, setup, teardown);           \
        use_backend("far");                                                              \
        failures += cmocka_run_group_tests_name("far", tests, setup, teardown);          \
        failures;                                                                        \
    })

/* Whether the backend under test is many times as slow as a device. */
static inline bool emulated(void) { return strcmp(backend()->name, "emu") == 0; }

/* The same on kernels for devices, emulated in each of the schedules. */
static inline void kernels_are_not_emulated(void **state)
{
    (void)state;
    print_message("skip: no C++ compiler: kernels for devices are not emulated\n");
    skip();
}
static inline const char *use_emulation(enum kg_emu_schedule order)
{
    static const char *const names[] = {"emu by turns", "emu forward", "emu backward"};

    use_backend("emu");
    kg_emu_schedule(order);
    return names[order];
}
#define RUN_EMULATED(tests, setup, teardown)                                             \
    ({                                                                                   \
        const struct CMUnitTest none_here[] = {                                          \
            cmocka_unit_test(kernels_are_not_emulated)};                                 \
        int failures = kg_emu_open ? 0 : cmocka_run_group_tests(none_here, NULL, NULL);  \
                                                                                         \
        for (int i = 0; kg_emu_open && i < KG_EMU_SCHEDULES; i++) {                      \
            const char *name = use_emulation((enum kg_emu_schedule)i);                   \
                                                                                         \
            failures += cmocka_run_group_tests_name(name, tests, setup, teardown);       \
        }                                                                                \
        failures;                                                                        \
    })

#endif
