/* cuBLASLt's plans on a device, for weights of two shapes of Qwen2.5: the reference, how
 * many plans have its bits, and what this costs in time. On emulated kernels the test
 * uses a stand-in for the library, whose plans it knows.
 */
#define _GNU_SOURCE
#include "base/folder_testing.h"
#include "emu/blas_testing.h"
#include "tensor/backend_testing.h"
#include "tensor/cuda/probe.h"

#include <dlfcn.h>

/* The function of the emulation, which is linked, or of the CUDA library. */
#pragma weak kg_cuda_plans
static kg_cuda_plans_fn *opened(void)
{
    kg_cuda_plans_fn *found = kg_cuda_plans;
    Dl_info library;
    void *symbol;

    if (!on_device())
        return found;
    assert_true(dladdr((const void *)(uintptr_t)backend()->matmul, &library) != 0);
    symbol = dlsym(dlopen(library.dli_fname, RTLD_NOW | RTLD_NOLOAD), "kg_cuda_plans");
    memcpy(&found, &symbol, sizeof found);
    return found;
}

static struct kg_plan_row look(int64_t rows, int64_t n, int64_t k)
{
    struct kg_plan_row row;

    assert_non_null(opened());
    if (opened()(&row, rows, n, k, &err) != KG_OK)
        fail_msg("%s", err.message);
    return row;
}

/* ---- emulated ---- */
static void use(enum kg_fake_mode mode)
{
    void (*set)(enum kg_fake_mode);
    double (*seconds)(void);
    void *library, *symbol;

    make_good_blas("lib");
    library = dlopen(in_dir("lib/" BLAS_FILE), RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    symbol = dlsym(library, "kg_fake_set");
    memcpy(&set, &symbol, sizeof set);
    symbol = dlsym(library, "kg_fake_seconds");
    memcpy(&seconds, &symbol, sizeof seconds);
    set(mode);
    kg_emu_clock(seconds);
    setenv("KEDGE_TEST_PRODUCTS", "cublas", true);
    setenv("KEDGE_TEST_LIBRARIES", in_dir("lib"), true);
}

static int end(void **state)
{
    setenv("KEDGE_TEST_PRODUCTS", "own", true);
    (void)backend();
    kg_emu_clock(NULL);
    return remove_dir(state);
}

/* One of seven plans has other bits; kedge's own kernel takes no time on this clock. */
static void members_are_those_with_the_bits(void **state)
{
    struct kg_plan_row row;

    (void)state;
    use(KG_FAKE_USUAL);
    row = look(64, 24, 48);
    assert_int_equal(row.config[0], KG_FAKE_STEADY);
    assert_int_equal(row.tried, 7);
    assert_int_equal(row.members, 6);
    assert_int_equal(row.made, 64);
    assert_true(row.seconds == 0 && row.own_seconds == 0 && row.fastest_seconds == 0);
    row = look(1025, 24, 48);
    assert_int_equal(row.made, 1025);
    assert_true(row.seconds == 100 && row.own_seconds == 0);
}

static void rows_that_are_made_are_said(void **state)
{
    (void)state;
    use(KG_FAKE_OTHER_MANY);
    assert_int_equal(look(2000, 24, 48).made, 1024);
}

/* ---- on a device ---- */
static const struct {
    const char *name;
    int64_t n, k;
} weights[] = {
    {"0.5B o", 896, 896},     {"0.5B k", 128, 896},       {"0.5B q, k, v", 1152, 896},
    {"0.5B gate", 4864, 896}, {"0.5B down", 896, 4864},   {"7B o", 3584, 3584},
    {"7B k", 512, 3584},      {"7B q, k, v", 4608, 3584}, {"7B gate", 18944, 3584},
    {"7B down", 3584, 18944},
};

/* A line that tools/gpu-check reads. */
static void print_row(const char *name, int64_t m, const struct kg_plan_row *r)
{
    printf("plans: %s, %d rows\t%d of %d\tid %u, tile %u, stages %u, split %u; made %d "
           "rows at a time; us: %.4g in use, %.4g own, %.4g fastest of any bits\n",
           name, (int)m, r->members, r->tried, r->config[0], r->config[1], r->config[6],
           r->config[2], (int)r->made, r->seconds * 1e6, r->own_seconds * 1e6,
           r->fastest_seconds * 1e6);
}

static void plans_of_weights_are_printed(void **state)
{
    static const int64_t rows[] = {16, 64, 256, 1024, 4096};

    (void)state;
    for (size_t w = 0; w < sizeof weights / sizeof *weights; w++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const struct kg_plan_row r = look(rows[i], weights[w].n, weights[w].k);

            print_row(weights[w].name, rows[i], &r);
            assert_true(r.members > 0 || r.made != rows[i]);
            assert_true(r.seconds > 0 && r.fastest_seconds <= r.own_seconds);
        }
}

int main(void)
{
#define OF(test) cmocka_unit_test_setup_teardown(test, make_dir, end)
    const struct CMUnitTest emulated[] = {
        OF(members_are_those_with_the_bits),
        OF(rows_that_are_made_are_said),
    };
    const struct CMUnitTest device[] = {cmocka_unit_test(plans_of_weights_are_printed)};
    const struct CMUnitTest none_here[] = {cmocka_unit_test(kernels_are_not_emulated)};
    const char *name = getenv("KEDGE_TEST_BACKEND");

    if (name && strcmp(name, "cuda") == 0)
        return cmocka_run_group_tests(device, NULL, NULL);
    if (!use_backend("emu"))
        return 0;
    return kg_emu_open ? cmocka_run_group_tests(emulated, NULL, NULL)
                       : cmocka_run_group_tests(none_here, NULL, NULL);
}
