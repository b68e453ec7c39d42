/* Shared by tests of operations: the backend under test.
 *
 * Included by *_test.c only. A failing helper fails the test.
 */
#ifndef KG_TENSOR_BACKEND_TESTING_H
#define KG_TENSOR_BACKEND_TESTING_H

#include "base/sanitized_testing.h"
#include "emu/emu.h"
#include "emu/pages.h"
#include "tensor/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *backend_name; /* NULL: the default */

static inline const struct kg_backend *backend(void)
{
    const struct kg_backend *be = NULL;
    struct kg_err why;

    if (kg_backend_open(&be, backend_name, &why) != KG_OK)
        fail_msg("%s", why.message);
    return be;
}

/* Zeros of the backend, for operands; freed by buffer_free. */
static inline void *buffer_of(int64_t count, size_t size)
{
    struct kg_err why;
    void *p = kg_buf_alloc(backend(), (uint64_t)count * size, "test", &why);

    assert_non_null(p);
    assert_true(!kg_emu_is_asked || kg_emu_is_asked());
    return p;
}

/* A copy that the test can access, if it can access the backend's memory. */
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

/* For tests that access the backend's memory in place, between operations. */
#define RUN_SHOWN(tests, setup, teardown)                                                \
    (kg_pages_show(true), cmocka_run_group_tests(tests, setup, teardown))

/* Whether a group of tests runs on this backend: KEDGE_TEST_BACKEND names the only one.
 * Tests may access its memory between operations. */
static inline bool use_backend(const char *name)
{
    const char *only = getenv("KEDGE_TEST_BACKEND");

    if (only && strcmp(only, name) != 0)
        return false;
    backend_name = name;
    kg_pages_show(true);
    return true;
}
#define RUN_ON(name, tests, setup, teardown)                                             \
    (use_backend(name) ? cmocka_run_group_tests_name(name, tests, setup, teardown) : 0)
/* Runs a program's tests again on memory that only operations can access. */
#define RUN_FAR_TOO(tests, setup, teardown)                                              \
    ({                                                                                   \
        int failures = RUN_ON("cpu", tests, setup, teardown);                            \
                                                                                         \
        failures += RUN_ON("far", tests, setup, teardown);                               \
        failures;                                                                        \
    })

/* Whether kernels are emulated, which is many times slower, or run on a device. */
static inline bool emulated(void) { return strcmp(backend()->name, "emu") == 0; }
static inline bool on_device(void) { return strcmp(backend()->name, "cuda") == 0; }
static inline bool by_kernels(void) { return emulated() || on_device(); }

/* For tests that compare the bits of products with those of the CPU. */
static inline bool has_exact_products(void)
{
    return !backend()->exact || backend()->exact(KG_BF16);
}
static inline void need_exact_products(void)
{
    if (has_exact_products())
        return;
    print_message("skip: bf16 products have bits of the device's own\n");
    skip();
}

/* For tests in which every allocation of an operation fails once; kg_mem does not see a
 * device's. */
static inline void need_counted_memory(void)
{
    if (!on_device())
        return;
    print_message("skip: a device's memory is not counted\n");
    skip();
}

/* The only test of a group whose tests need emulated kernels, if those are not built. */
static inline void kernels_are_not_emulated(void **state)
{
    (void)state;
    print_message("skip: no C++ compiler with __builtin_setjmp: kernels for devices are "
                  "not emulated\n");
    skip();
}

/* For tests that open the emulation themselves. */
#define RUN_OPENING_EMULATION(tests)                                                     \
    ({                                                                                   \
        const struct CMUnitTest none_here[] = {                                          \
            cmocka_unit_test(kernels_are_not_emulated)};                                 \
                                                                                         \
        kg_emu_open ? cmocka_run_group_tests(tests, NULL, NULL)                          \
                    : cmocka_run_group_tests(none_here, NULL, NULL);                     \
    })

/* Schedules differ in the order of threads, and memory errors occur in every one; so the
 * ten times slower sanitizer runs only the first. */
enum { SCHEDULES = SANITIZED ? 1 : KG_EMU_SCHEDULES };

static inline const char *use_emulation(enum kg_emu_schedule order)
{
    static const char *const names[] = {"emu by turns", "emu forward", "emu backward"};

    kg_emu_schedule(order);
    return names[order];
}
#define RUN_SCHEDULES(n, tests, setup, teardown)                                         \
    ({                                                                                   \
        const struct CMUnitTest none_here[] = {                                          \
            cmocka_unit_test(kernels_are_not_emulated)};                                 \
        const bool asked = use_backend("emu");                                           \
        int failures = asked && !kg_emu_open                                             \
                           ? cmocka_run_group_tests(none_here, NULL, NULL)               \
                           : 0;                                                          \
                                                                                         \
        for (int i = 0; asked && kg_emu_open && i < (n); i++) {                          \
            const char *name = use_emulation((enum kg_emu_schedule)i);                   \
                                                                                         \
            failures += cmocka_run_group_tests_name(name, tests, setup, teardown);       \
        }                                                                                \
        if (getenv("KEDGE_TEST_BACKEND"))                                                \
            failures += RUN_ON("cuda", tests, setup, teardown);                          \
        failures;                                                                        \
    })
#define RUN_EMULATED(tests, setup, teardown)                                             \
    RUN_SCHEDULES(SCHEDULES, tests, setup, teardown)
/* For tests of host code that calls kernels, in the first schedule only: tests of single
 * kernels cover the order of threads. */
#define RUN_EMULATED_ONCE(tests, setup, teardown) RUN_SCHEDULES(1, tests, setup, teardown)

#endif
