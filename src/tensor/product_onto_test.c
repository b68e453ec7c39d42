/* Products that are added to sums elsewhere (kg_op_matmul_onto) have the bits of a copy
 * and an accumulating product, in every implementation.
 */
#include "base/folder_testing.h"
#include "emu/blas_testing.h"
#include "emu/emu.h"
#include "tensor/matrix_testing.h"

#include <dlfcn.h>
#include <stdlib.h>

static struct kg_err err;

/* The first columns of a matrix that is `more` wider; the others must stay unchanged. */
static struct kg_mat within(int64_t rows, int64_t cols, int64_t more, uint32_t seed)
{
    random_state = seed;
    return kg_mat_cols(random_matrix(KG_F32, rows, cols + more, 1.0), 0, cols);
}

static void onto_equals_added(enum kg_dtype t, const int64_t *dims, int64_t c_more,
                              int64_t old_more)
{
    struct kg_mat a = random_matrix(t, dims[0], dims[2], 1.0);
    struct kg_mat b = random_matrix(t, dims[1], dims[2], 1.0);
    struct kg_mat old = within(dims[0], dims[1], old_more, 7);
    struct kg_mat kept = within(dims[0], dims[1], old_more, 7);
    struct kg_mat c = within(dims[0], dims[1], c_more, 8);
    struct kg_mat want = within(dims[0], dims[1], c_more, 8);
    assert_int_equal(kg_op_cast(backend(), want, old, &err), KG_OK);
    kg_status status = kg_op_matmul(backend(), want, a, b, KG_MATMUL_NT, true, &err);
    const char *maker = getenv("KEDGE_TEST_PRODUCTS");
    const int64_t before = emulated() ? kg_emu_lose(-1) : 0;
    if (status == KG_OK)
        status = kg_op_matmul_onto(backend(), c, old, a, b, &err);
    if (emulated() && maker && strcmp(maker, "own") == 0 && c_more == old_more)
        assert_int_equal(kg_emu_lose(-1) - before, 1); /* no copy */
    if (status != KG_OK)
        fail_msg("%s: %s", maker ? maker : "exact", err.message);
    const size_t all = (size_t)c.rows * (size_t)c.stride * sizeof(float);
    if (memcmp(c.data, want.data, all) != 0)
        fail_msg("%lld x %lld, K %lld, %s, %lld and %lld columns more: other bits than "
                 "by a copy",
                 (long long)dims[0], (long long)dims[1], (long long)dims[2],
                 kg_dtype_traits(t)->name, (long long)c_more, (long long)old_more);
    assert_memory_equal(old.data, kept.data,
                        (size_t)old.rows * (size_t)old.stride * sizeof(float));
    void *const owned[] = {a.data, b.data, old.data, kept.data, c.data, want.data};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        buffer_free(owned[i]);
}

static void check(enum kg_dtype t, const int64_t *dims)
{
    random_state = 17;
    onto_equals_added(t, dims, 0, 0);
    onto_equals_added(t, dims, 8, 8);
    onto_equals_added(t, dims, 8, 0);
}

static void sums_may_stand_apart(void **state)
{
    static const int64_t dims[][3] = {/* M, N, K */
                                      {1, 72, 104},   {7, 136, 1032}, {5, 33, 50},
                                      {70, 264, 200}, {17, 8, 40},    {150, 144, 72}};
    static const int64_t real[][3] = {{2048, 896, 896}, {4100, 896, 4864}};

    (void)state;
    for (int i = 0; i < 6; i++)
        for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++)
            check(t, dims[i]);
    for (int i = 0; on_device() && i < 2; i++)
        check(KG_BF16, real[i]);
}

/* On emulated kernels; cuBLASLt is a stand-in. */
static void by_each_maker_too(void **state)
{
    static const char *const makers[] = {"own", "cublas", "unpinned"};
    static const int64_t few[] = {7, 40, 24}, many[] = {70, 136, 24};

    (void)state;
    make_good_blas("lib");
    setenv("KEDGE_TEST_LIBRARIES", in_dir("lib"), 1);
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        setenv("KEDGE_TEST_PRODUCTS", makers[i], 1);
        check(KG_BF16, few);
        check(KG_BF16, many);
    }
}

/* *function <- the address of `name` in the open library. */
static void reach(void *function, const char *name)
{
    void *library = dlopen(in_dir("lib/" BLAS_FILE), RTLD_NOW | RTLD_LOCAL);
    void *at = library ? dlsym(library, name) : NULL;

    assert_non_null(at);
    memcpy(function, &at, sizeof at);
    dlclose(library); /* the backend has it open, too */
}

/* cuBLASLt may have a plan for a shape only if the sums are in the result. */
static void sums_that_a_plan_does_not_take_are_copied(void **state)
{
    static const char *const makers[] = {"cublas", "unpinned"};
    static const int64_t few[] = {7, 40, 24}, many[] = {70, 136, 24};
    int (*in_place)(int only);
    void (*add)(int64_t factors);

    (void)state;
    make_good_blas("lib");
    setenv("KEDGE_TEST_LIBRARIES", in_dir("lib"), 1);
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        setenv("KEDGE_TEST_PRODUCTS", makers[i], 1);
        (void)backend();
        reach(&in_place, "kg_fake_in_place");
        reach(&add, "kg_fake_add");
        add(8); /* kedge's own kernel has other bits */
        (void)in_place(1);
        check(KG_BF16, few);
        assert_true(in_place(1) > 0);
        check(KG_BF16, many);
        assert_true(in_place(0) > 0);
    }
}

static void sums_of_another_shape_are_refused(void **state)
{
    struct kg_mat a = matrix(KG_F32, 3, 4), b = matrix(KG_F32, 5, 4);
    struct kg_mat c = matrix(KG_F32, 3, 5), old = matrix(KG_F32, 3, 6);

    (void)state;
    assert_int_equal(kg_op_matmul_onto(backend(), c, old, a, b, &err), KG_ESHAPE);
    if (!strstr(err.message, "matmul_onto: old is 3 x 6, expected 3 x 5"))
        fail_msg("%s", err.message);
    buffer_free(a.data), buffer_free(b.data);
    buffer_free(c.data), buffer_free(old.data);
}

static void sums_overlap_nowhere_or_everywhere(void **state)
{
    enum { M = 3, N = 5, K = 4, ALL = 2 * M * N };
    struct kg_mat a = random_matrix(KG_F32, M, K, 1.0);
    struct kg_mat b = random_matrix(KG_F32, N, K, 1.0);
    struct kg_mat all = random_matrix(KG_F32, ALL / N, N, 1.0);
    struct kg_mat want = matrix(KG_F32, M, N);
    const struct kg_mat c = kg_mat_rows(all, 0, M);
    struct kg_mat wide = c;

    (void)state;
    wide.stride = N + 1;
    assert_int_equal(kg_op_matmul_onto(backend(), want, c, a, b, &err), KG_OK);
    for (int64_t first = 1; first < M; first++)
        for (int i = 0; i < 2; i++) {
            const struct kg_mat other = kg_mat_rows(all, first, M);

            assert_int_equal(
                kg_op_matmul_onto(backend(), i ? other : c, i ? c : other, a, b, &err),
                KG_EINVAL);
            assert_string_equal(err.message,
                                "matmul_onto: the ranges of 60 bytes overlap");
        }
    assert_int_equal(kg_op_matmul_onto(backend(), c, wide, a, b, &err), KG_EINVAL);
    assert_int_equal(kg_op_matmul_onto(backend(), kg_mat_rows(all, M, M), c, a, b, &err),
                     KG_OK);
    assert_memory_equal(kg_mat_rows(all, M, M).data, want.data, M * N * sizeof(float));
    assert_int_equal(kg_op_matmul_onto(backend(), c, c, a, b, &err), KG_OK);
    assert_memory_equal(c.data, want.data, M * N * sizeof(float));
    void *const owned[] = {a.data, b.data, all.data, want.data};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        buffer_free(owned[i]);
}

/* Closes all but an operation's scratch, which stays. */
static int close_library(void **state)
{
    setenv("KEDGE_TEST_PRODUCTS", "own", 1);
    (void)backend();
    (void)remove_dir(state);
    return kg_file_exists(in_dir("lib"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_may_stand_apart),
        cmocka_unit_test(sums_of_another_shape_are_refused),
        cmocka_unit_test(sums_overlap_nowhere_or_everywhere),
    };
    const struct CMUnitTest of_makers[] = {
        cmocka_unit_test_setup_teardown(by_each_maker_too, make_dir, close_library),
        cmocka_unit_test_setup_teardown(sums_that_a_plan_does_not_take_are_copied,
                                        make_dir, close_library)};
    int failed = RUN_FAR_TOO(tests, NULL, NULL);

    failed += RUN_EMULATED(tests, NULL, NULL);
    if (kg_emu_open && !getenv("KEDGE_TEST_PRODUCTS") && use_backend("emu"))
        failed += cmocka_run_group_tests(of_makers, NULL, NULL);
    return failed;
}
