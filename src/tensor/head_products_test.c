/* Which products compute the logits of few rows: emulated kernels, and a stand-in for
 * cuBLASLt. */
#define _GNU_SOURCE
#include "base/folder_testing.h"
#include "emu/blas_testing.h"
#include "tensor/backend_testing.h"

#include <dlfcn.h>

enum { V = 1104 /* two strips of 512 and one of 80 */, K = 48, ROWS = 4 };

static void (*set_mode)(enum kg_fake_mode mode);
static void (*add_at_once)(int64_t factors);
static struct kg_fake_last (*last_of_fake)(void);

static void reach(void *function, void *object, const char *name)
{
    void *at = dlsym(object, name);

    assert_non_null(at);
    memcpy(function, &at, sizeof at);
}

static struct kg_mat matrix_of(int64_t rows)
{
    struct kg_mat m = kg_mat(buffer_of(rows * K, sizeof(uint16_t)), KG_BF16, rows, K);

    for (int64_t i = 0; i < rows * K; i++)
        ((uint16_t *)m.data)[i] = (uint16_t)(i * 40503 % 1024 + (123 << 7));
    return m;
}

/* Opens a backend that has forgotten earlier plans. */
static void use(const char *products)
{
    const struct kg_backend *be;

    setenv("KEDGE_TEST_PRODUCTS", products, true);
    setenv("KEDGE_TEST_LIBRARIES", in_dir("lib"), true);
    assert_int_equal(kg_emu_open(&be, &err), KG_OK);
}

/* logits (ROWS,V).   returns the last call of the library, after its trials */
static struct kg_fake_last run_head(float *logits, const char *products, int64_t factors)
{
    const struct kg_head h = {.hidden = matrix_of(ROWS), .weight = matrix_of(V)};
    double lse[ROWS];

    use("own");
    add_at_once(factors);
    use(products);
    for (int i = 0; i < 2; i++) {
        set_mode(KG_FAKE_USUAL);
        assert_int_equal(kg_op_head(backend(),
                                    &(struct kg_head_out){.lse = lse, .logits = logits},
                                    &h, &err),
                         KG_OK);
    }
    buffer_free(h.hidden.data);
    buffer_free(h.weight.data);
    return last_of_fake();
}

/* If the library has other bits, it computes the logits, and no strip has kedge's
 * bits. */
static void own_products_make_all_logits_where_they_have_the_bits(void **state)
{
    static float own[ROWS][V], same[ROWS][V], other[ROWS][V];
    void *object;

    (void)state;
    make_good_blas("lib");
    object = dlopen(in_dir("lib/" BLAS_FILE), RTLD_NOW | RTLD_LOCAL);
    assert_non_null(object);
    reach(&set_mode, object, "kg_fake_set");
    reach(&last_of_fake, object, "kg_fake_last");
    reach(&add_at_once, object, "kg_fake_add");
    assert_int_equal(run_head(own[0], "own", 16).rows, 0);
    assert_int_equal(run_head(same[0], "cublas", 16).rows, 0);
    assert_memory_equal(own, same, sizeof own);
    assert_int_equal(run_head(other[0], "cublas", 8).rows, ROWS);
    for (int64_t v = 0; v < V; v += 512)
        assert_memory_not_equal(&own[0][v], &other[0][v], 80 * sizeof(float));
    use("own");
    dlclose(object);
}

/* The head keeps its scratch. */
static int leave(void **state)
{
    (void)state;
    return kg_file_remove_tree(dir, &err) != KG_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        own_products_make_all_logits_where_they_have_the_bits, make_dir, leave)};

    return use_backend("emu") ? RUN_OPENING_EMULATION(tests) : 0;
}
