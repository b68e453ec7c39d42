/* What the branches of a record may not share, on emulated kernels with a cuBLASLt of the
 * test's own. */
#define _GNU_SOURCE
#include "base/folder_testing.h"
#include "emu/blas_testing.h"
#include "tensor/backend_testing.h"

#include <dlfcn.h>

enum { N = 24, K = 48 };

static void (*set_mode)(enum kg_fake_mode mode);
static struct kg_fake_last (*last_of_fake)(void);

static void open_by(const char *products)
{
    const struct kg_backend *be;

    setenv("KEDGE_TEST_PRODUCTS", products, true);
    setenv("KEDGE_TEST_LIBRARIES", in_dir("lib"), true);
    assert_int_equal(kg_emu_open(&be, &err), KG_OK);
}

/* Nothing is known of the plans of before. */
static void use(const char *products, enum kg_fake_mode mode)
{
    open_by("own");
    set_mode(mode);
    open_by(products);
}

static void reach(void *function, void *object, const char *name)
{
    void *at = dlsym(object, name);

    assert_non_null(at);
    memcpy(function, &at, sizeof at);
}

struct operands {
    struct kg_mat a, b, c[KG_PRODUCTS_AT_ONCE];
};

static struct kg_mat matrix_of(enum kg_dtype dtype, int64_t rows, int64_t cols)
{
    struct kg_mat m = kg_mat(buffer_of(rows * cols, kg_dtype_traits(dtype)->bytes), dtype,
                             rows, cols);

    for (int64_t i = 0; dtype == KG_BF16 && i < rows * cols; i++)
        ((uint16_t *)m.data)[i] = (uint16_t)(i * 40503 % 1024 + (123 << 7));
    return m;
}

static kg_status multiply(void *arg, struct kg_err *e)
{
    const struct operands *o = arg;
    const struct kg_product to[] = {{o->c[0], o->b}, {o->c[1], o->b}, {o->c[2], o->b}};

    return kg_op_matmul_shared(backend(), to, KG_PRODUCTS_AT_ONCE, o->a, e);
}

/* By a record, that of the key's second call.   returns what the library did last */
static struct kg_fake_last made(int64_t rows, uint64_t key)
{
    struct operands o = {matrix_of(KG_BF16, rows, K), matrix_of(KG_BF16, N, K), {{0}}};
    struct kg_fake_last last;

    for (int j = 0; j < KG_PRODUCTS_AT_ONCE; j++)
        o.c[j] = matrix_of(KG_F32, rows, N);
    for (int call = 0; call < 2; call++)
        assert_int_equal(kg_op_replay(backend(), key, multiply, &o, &err), KG_OK);
    last = last_of_fake();
    assert_true(*(float *)o.c[0].data > 0);
    for (int j = 1; j < KG_PRODUCTS_AT_ONCE; j++)
        assert_memory_equal(o.c[j].data, o.c[0].data, (size_t)(rows * N) * sizeof(float));
    for (int j = 0; j < KG_PRODUCTS_AT_ONCE; j++)
        buffer_free(o.c[j].data);
    buffer_free(o.a.data);
    buffer_free(o.b.data);
    return last;
}

/* Neither padded operands nor a library's workspace: these products come after each
 * other, the last of three in branch 0. */
static void memory_of_one_is_not_shared(void **state)
{
    static const struct {
        const char *products;
        enum kg_fake_mode mode;
        int64_t rows;
        enum kg_fake_plan plan;
        int branch;
    } cases[] = {
        {"cublas", KG_FAKE_USUAL, 16, KG_FAKE_ODD, 2},
        {"cublas", KG_FAKE_USUAL, 64, KG_FAKE_ODD, 2},
        {"cublas", KG_FAKE_USUAL, 100, KG_FAKE_ODD, 2},
        {"cublas", KG_FAKE_USUAL, 1025, KG_FAKE_STEADY, 2},
        {"cublas", KG_FAKE_NONE_FOR_FEW, 65, KG_FAKE_BIG, 2},
        {"cublas", KG_FAKE_NONE_FOR_FEW, 64, KG_FAKE_BIG, 0}, /* padded, as the next */
        {"cublas", KG_FAKE_NONE_FOR_FEW, 1, KG_FAKE_BIG, 0},
        {"unpinned", KG_FAKE_USUAL, 16, KG_FAKE_WORKSPACE, 0},
        {"unpinned", KG_FAKE_USUAL, 17, KG_FAKE_WORKSPACE, 0},
        {"unpinned", KG_FAKE_USUAL, 64, KG_FAKE_WORKSPACE, 0},
        {"unpinned", KG_FAKE_USUAL, 1025, KG_FAKE_SPLIT, 0},
    };
    void (*add)(int64_t factors);
    double (*seconds)(void);
    void *object;

    (void)state;
    make_good_blas("lib");
    object = dlopen(in_dir("lib/" BLAS_FILE), RTLD_NOW | RTLD_LOCAL);
    assert_non_null(object);
    reach(&set_mode, object, "kg_fake_set");
    reach(&last_of_fake, object, "kg_fake_last");
    reach(&add, object, "kg_fake_add");
    reach(&seconds, object, "kg_fake_seconds");
    add(8); /* kedge's own kernel has other bits, so no product is its */
    kg_emu_clock(seconds);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        use(cases[i].products, cases[i].mode);
        const struct kg_fake_last last = made(cases[i].rows, i + 1);

        if (last.plan != cases[i].plan || last.branch != cases[i].branch)
            fail_msg("%s, %d rows: expected plan %d in branch %d, found %d in %d",
                     cases[i].products, (int)cases[i].rows, (int)cases[i].plan,
                     cases[i].branch, (int)last.plan, last.branch);
    }
    open_by("own");
    kg_emu_clock(NULL);
    dlclose(object);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        memory_of_one_is_not_shared, make_dir, remove_dir)};

    return use_backend("emu") ? RUN_OPENING_EMULATION(tests) : 0;
}
