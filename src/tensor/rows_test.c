/* Norms and biases of rows of every kind of width: a device's kernels give the CPU's
 * bits, however many threads have a row and however the row lies.
 */
#include "tensor/matrix_testing.h"

static struct kg_err err;

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* Widths around what sixteen threads load at once (128), what a block does (1024) and
 * what it holds (8192), rows around the chunks of a sum over them (64, by 16). */
static const struct shape {
    int64_t rows, cols, apart; /* apart: elements between rows */
} shapes[] = {{1, 1, 0},    {9, 13, 3},   {8, 16, 0},   {17, 64, 0},  {65, 127, 1},
              {33, 128, 0}, {5, 129, 0},  {80, 256, 8}, {3, 896, 0},  {130, 70, 2},
              {2, 1023, 0}, {1, 1025, 7}, {2, 2048, 0}, {64, 31, 0},  {640, 33, 0},
              {1, 8191, 0}, {1, 8192, 0}, {2, 8193, 5}, {1, 16400, 0}};
enum { SHAPES = sizeof shapes / sizeof *shapes, STEPS = 6 };

struct results {
    struct kg_mat m[STEPS];
    struct kg_vec inv, dw, db;
};

static struct kg_mat apart(enum kg_dtype t, const struct shape *s)
{
    struct kg_mat m = matrix(t, s->rows, s->cols + s->apart);

    m.cols = s->cols;
    return m;
}
static struct kg_mat random_apart(enum kg_dtype t, const struct shape *s)
{
    struct kg_mat m = random_matrix(t, s->rows, s->cols + s->apart, 1);

    m.cols = s->cols;
    return m;
}
static struct kg_vec copy_of(struct kg_vec v)
{
    return kg_vec(buffer_with(v.data, v.n, sizeof *v.data), v.n);
}
static struct kg_mat copy_of_mat(struct kg_mat m)
{
    m.data = buffer_with(m.data, m.rows * m.stride, sizeof(float));
    return m;
}

/* A norm into both types, its gradient into its own place, then added to that; a bias and
 * the gradients of one of either type. */
static struct results run(const struct kg_backend *be, const struct shape *s,
                          struct kg_mat x, struct kg_mat dy, struct kg_mat narrow,
                          struct kg_vec w)
{
    struct results r = {.m = {apart(KG_F32, s), apart(KG_BF16, s), copy_of_mat(dy),
                              copy_of_mat(x), copy_of_mat(dy), copy_of_mat(x)},
                        .inv = kg_vec(buffer_of(s->rows, sizeof(float)), s->rows),
                        .dw = copy_of(w),
                        .db = copy_of(w)};
    const struct kg_vec none = {NULL, 0};

    must(kg_op_rmsnorm(be, r.m[0], r.inv, x, w, 1e-6f, &err));
    must(kg_op_rmsnorm(be, r.m[1], none, x, w, 1e-6f, &err));
    must(kg_op_rmsnorm_bwd(be, r.m[2], false, r.dw, r.m[2], x, w, r.inv, &err));
    must(kg_op_rmsnorm_bwd(be, r.m[3], true, r.dw, dy, x, w, r.inv, &err));
    must(kg_op_rmsnorm_bwd(be, r.m[4], true, none, dy, x, w, r.inv, &err));
    must(kg_op_bias(be, r.m[5], w, &err));
    must(kg_op_bias_bwd(be, r.db, dy, &err));
    must(kg_op_bias_bwd(be, r.db, narrow, &err));
    return r;
}

static void same(const char *what, const struct shape *s, const void *want,
                 const void *got, uint64_t bytes)
{
    if (memcmp(want, got, bytes) != 0)
        fail_msg("%s of %d rows of %d columns has other bits", what, (int)s->rows,
                 (int)s->cols);
}

static void compare(const struct shape *s, const struct results *want,
                    const struct results *got)
{
    static const char *const names[] = {"the norm",           "the norm in bf16",
                                        "the gradient",       "the gradient added to x",
                                        "the gradient added", "the bias"};
    for (int i = 0; i < STEPS; i++) {
        const struct kg_mat m = want->m[i];

        same(names[i], s, m.data, got->m[i].data,
             (uint64_t)(m.rows * m.stride) * kg_dtype_traits(m.dtype)->bytes);
        buffer_free(want->m[i].data);
        buffer_free(got->m[i].data);
    }
    const struct kg_vec a[] = {want->inv, want->dw, want->db};
    const struct kg_vec b[] = {got->inv, got->dw, got->db};
    for (int i = 0; i < 3; i++) {
        same("a vector", s, a[i].data, b[i].data, (uint64_t)a[i].n * sizeof(float));
        buffer_free(a[i].data);
        buffer_free(b[i].data);
    }
}

/* More chunks than a block has at once. */
static void a_sum_over_many_rows_has_the_bits_of_the_cpu(void **state)
{
    enum { ROWS = 64 * 64 + 100, COLS = 9 };
    const struct kg_backend *cpu = NULL;
    const struct kg_mat dy = random_matrix(KG_F32, ROWS, COLS, 1);
    const struct kg_vec want = kg_vec(buffer_of(COLS, sizeof(float)), COLS);
    const struct kg_vec got = kg_vec(buffer_of(COLS, sizeof(float)), COLS);

    (void)state;
    must(kg_backend_open(&cpu, "cpu", &err));
    must(kg_op_bias_bwd(cpu, want, dy, &err));
    must(kg_op_bias_bwd(backend(), got, dy, &err));
    assert_memory_equal(want.data, got.data, COLS * sizeof(float));
    buffer_free(dy.data);
    buffer_free(want.data);
    buffer_free(got.data);
}

static void rows_of_any_width_have_the_bits_of_the_cpu(void **state)
{
    const struct kg_backend *cpu = NULL;

    (void)state;
    random_state = 5;
    must(kg_backend_open(&cpu, "cpu", &err));
    for (int i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        const struct kg_mat x = random_apart(KG_F32, s), dy = random_apart(KG_F32, s);
        const struct kg_mat narrow = random_apart(KG_BF16, s);
        const struct kg_mat w = random_matrix(KG_F32, 1, s->cols, 1);
        const struct kg_vec v = kg_vec(w.data, s->cols);
        const struct results want = run(cpu, s, x, dy, narrow, v);
        const struct results got = run(backend(), s, x, dy, narrow, v);

        compare(s, &want, &got);
        buffer_free(x.data);
        buffer_free(dy.data);
        buffer_free(narrow.data);
        buffer_free(w.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_any_width_have_the_bits_of_the_cpu),
        cmocka_unit_test(a_sum_over_many_rows_has_the_bits_of_the_cpu),
    };

    return RUN_EMULATED(tests, NULL, NULL);
}
