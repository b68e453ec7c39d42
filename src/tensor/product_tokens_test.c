/* Sums over tokens with the stand-in for cuBLASLt: the bits of a plan, chunk by chunk, or
 * at once by those of kedge's own kernels that give the same bits. */
#define _GNU_SOURCE
#include "base/folder_testing.h"
#include "emu/blas_testing.h"
#include "tensor/matrix_testing.h"

#include <dlfcn.h>

enum { M = 136, N = 72, TOKENS = 2 * KG_PRODUCT_CHUNK + 40 };

static void *library;

static void *function(const char *name)
{
    void *at = dlsym(library, name);

    assert_non_null(at);
    return at;
}

/* For the next weight, the library has one plan, which adds so many factors at once. */
static void use(int64_t added)
{
    void (*offer)(enum kg_fake_mode), (*add)(int64_t);
    double (*seconds)(void);
    void *at;

    setenv("KEDGE_TEST_PRODUCTS", "own", 1);
    (void)backend(); /* forgets plans */
    library = dlopen(in_dir("lib/" BLAS_FILE), RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    memcpy(&offer, (at = function("kg_fake_set"), &at), sizeof offer);
    memcpy(&add, (at = function("kg_fake_add"), &at), sizeof add);
    memcpy(&seconds, (at = function("kg_fake_seconds"), &at), sizeof seconds);
    offer(KG_FAKE_OTHER_WIDE);
    add(added);
    kg_emu_clock(seconds);
    setenv("KEDGE_TEST_PRODUCTS", "cublas", 1);
    setenv("KEDGE_TEST_LIBRARIES", in_dir("lib"), 1);
    assert_int_equal(kg_op_reserve(backend(), kg_product_room(1024, 1024), &err), KG_OK);
}

static struct kg_mat numbers(int64_t rows, int64_t cols)
{
    struct kg_mat m = matrix(KG_BF16, rows, cols);

    for (int64_t i = 0; i < rows * cols; i++)
        set(m, 0, i, uniform());
    return m;
}

/* c <- or += the sum over tokens [from, from + n) of a and b */
static void sum(struct kg_mat c, struct kg_mat a, struct kg_mat b, int64_t from,
                int64_t n, bool add)
{
    if (kg_op_matmul(backend(), c, kg_mat_rows(a, from, n), kg_mat_rows(b, from, n),
                     KG_MATMUL_TN, add, &err) != KG_OK)
        fail_msg("%s", err.message);
}

/* Own kernels take no time on the emulation's clock, so they are used if they have the
 * bits, for whole chunks; results are the same. */
static void own_sums_are_used_where_they_have_the_bits(void **state)
{
    static const int64_t added[] = {8, 16};

    (void)state;
    random_state = 9;
    make_good_blas("lib");
    for (int i = 0; i < 2; i++) {
        use(added[i]);
        struct kg_mat a = numbers(TOKENS, M), b = numbers(TOKENS, N);
        struct kg_mat once = matrix(KG_F32, M, N), parts = matrix(KG_F32, M, N);
        int64_t before;

        sum(once, a, b, 0, TOKENS, false); /* tried */
        before = kg_emu_products();
        sum(once, a, b, 0, TOKENS, false);
        assert_true((kg_emu_products() > before) == (added[i] == 16));
        before = kg_emu_products();
        for (int64_t t = 0; t < TOKENS; t += 1000) /* not whole chunks */
            sum(parts, a, b, t, t + 1000 < TOKENS ? 1000 : TOKENS - t, t > 0);
        assert_true(kg_emu_products() == before);
        for (int64_t t = 0; t < TOKENS; t += KG_PRODUCT_CHUNK)
            sum(parts, a, b, t, t < 2 * KG_PRODUCT_CHUNK ? KG_PRODUCT_CHUNK : 40, t > 0);
        assert_memory_equal(once.data, parts.data, M * N * sizeof(float));
        buffer_free(a.data);
        buffer_free(b.data);
        buffer_free(once.data);
        buffer_free(parts.data);
        dlclose(library);
    }
    setenv("KEDGE_TEST_PRODUCTS", "own", 1);
    (void)backend();
    kg_emu_clock(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        own_sums_are_used_where_they_have_the_bits, make_dir, remove_dir)};

    if (!use_backend("emu"))
        return 0;
    return RUN_OPENING_EMULATION(tests);
}
