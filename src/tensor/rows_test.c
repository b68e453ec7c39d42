/* Norms, biases, gates and casts of rows: a device's kernels give the CPU's bits, for any
 * width, stride, alignment and values of a row. Copied rows are unchanged, and sums of
 * rows are added in order.
 */
#include "tensor/matrix_testing.h"

#include <math.h>

static struct kg_err err;

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

static const struct kg_backend *of_the_host(void)
{
    const struct kg_backend *be = NULL;

    must(kg_backend_open(&be, "cpu", &err));
    return be;
}

/* ---- norms and biases ---- */
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

/* A norm into both types; its gradient in place of dy, and added to other values; a bias
 * and its gradient. */
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

/* More chunks than a block of threads takes at once. */
static void a_sum_over_many_rows_has_the_bits_of_the_cpu(void **state)
{
    enum { ROWS = 64 * 64 + 100, COLS = 9 };
    const struct kg_mat dy = random_matrix(KG_F32, ROWS, COLS, 1);
    const struct kg_vec want = kg_vec(buffer_of(COLS, sizeof(float)), COLS);
    const struct kg_vec got = kg_vec(buffer_of(COLS, sizeof(float)), COLS);

    (void)state;
    must(kg_op_bias_bwd(of_the_host(), want, dy, &err));
    must(kg_op_bias_bwd(backend(), got, dy, &err));
    assert_memory_equal(want.data, got.data, COLS * sizeof(float));
    buffer_free(dy.data);
    buffer_free(want.data);
    buffer_free(got.data);
}

static void rows_of_any_width_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    random_state = 5;
    for (int i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        const struct kg_mat x = random_apart(KG_F32, s), dy = random_apart(KG_F32, s);
        const struct kg_mat narrow = random_apart(KG_BF16, s);
        const struct kg_mat w = random_matrix(KG_F32, 1, s->cols, 1);
        const struct kg_vec v = kg_vec(w.data, s->cols);
        const struct results want = run(of_the_host(), s, x, dy, narrow, v);
        const struct results got = run(backend(), s, x, dy, narrow, v);

        compare(s, &want, &got);
        buffer_free(x.data);
        buffer_free(dy.data);
        buffer_free(narrow.data);
        buffer_free(w.data);
    }
}

/* x has gaps between its rows, as columns of a product may have. */
static void heads_are_normed_as_rows_are(void **state)
{
    static const struct shape heads = {74, 60, 21}, each = {222, 20, 0};
    const struct kg_mat x = random_apart(KG_F32, &heads), row = apart(KG_F32, &each);
    const struct kg_mat dy = random_apart(KG_F32, &each);
    const struct kg_mat as_heads = kg_mat(dy.data, KG_F32, heads.rows, heads.cols);
    const struct kg_vec w = kg_vec(dy.data, each.cols);
    struct kg_mat y[2], dx[2];
    struct kg_vec inv[2], dw[2];

    (void)state;
    for (int64_t n = 0; n < heads.rows; n++)
        memcpy((float *)row.data + n * heads.cols, (float *)x.data + n * x.stride,
               (size_t)heads.cols * sizeof(float));
    for (int i = 0; i < 2; i++) {
        const struct kg_backend *be = i ? backend() : of_the_host();
        const struct shape *s = i ? &heads : &each;

        y[i] = apart(KG_F32, &each), y[i].rows = s->rows,
        y[i].cols = y[i].stride = s->cols;
        dx[i] = y[i], dx[i].data = buffer_with(y[i].data, each.rows, 20 * sizeof(float));
        inv[i] = kg_vec(buffer_of(each.rows, sizeof(float)), each.rows);
        dw[i] = copy_of(w);
        must(kg_op_rmsnorm(be, y[i], inv[i], i ? x : row, w, 1e-6f, &err));
        must(kg_op_rmsnorm_bwd(be, dx[i], true, dw[i], i ? as_heads : dy, i ? x : row, w,
                               inv[i], &err));
    }
    same("the norm", &heads, y[0].data, y[1].data, 222 * 20 * sizeof(float));
    same("the gradient", &heads, dx[0].data, dx[1].data, 222 * 20 * sizeof(float));
    same("a factor", &heads, inv[0].data, inv[1].data, 222 * sizeof(float));
    same("the weight's", &heads, dw[0].data, dw[1].data, 20 * sizeof(float));
    for (int i = 0; i < 2; i++) {
        buffer_free(y[i].data);
        buffer_free(dx[i].data);
        buffer_free(inv[i].data);
        buffer_free(dw[i].data);
    }
    buffer_free(x.data);
    buffer_free(row.data);
    buffer_free(dy.data);
}

/* ---- gates and casts ---- */
enum { LAID_ROWS = 3, LAID_STRIDE = 1048, LAID = LAID_ROWS * LAID_STRIDE };
enum { LAID_OUT = 8 };

/* out (LAID_OUT): h, dgate and dup of both gates, a GELU and a layer norm, of rows of
 * `cols` columns from element `first` of memory on. */
static void gate_laid(const struct kg_backend *be, uint16_t **out, float *x, int64_t cols,
                      int64_t first)
{
    const struct kg_mat from = {x + first,   KG_F32,  LAID_ROWS, cols,
                                LAID_STRIDE, KG_ROWS, NULL};
    const struct kg_vec w = {x + first, cols};
    struct kg_mat m[LAID_OUT + 2], gate, up;

    for (int i = 0; i < LAID_OUT + 2; i++) {
        uint16_t *memory = buffer_of(LAID, sizeof *memory);

        m[i] = (struct kg_mat){memory + first, KG_BF16, LAID_ROWS, cols,
                               LAID_STRIDE,    KG_ROWS, NULL};
        if (i < LAID_OUT)
            out[i] = memory;
    }
    gate = m[LAID_OUT], up = m[LAID_OUT + 1];
    must(kg_op_cast(be, gate, from, &err));
    must(kg_op_cast(be, up, from, &err));
    must(kg_op_swiglu(be, m[0], gate, up, &err));
    must(kg_op_swiglu_bwd(be, m[1], m[2], from, gate, up, &err));
    must(kg_op_gelu(be, m[3], from, &err));
    must(kg_op_geglu(be, m[5], gate, up, &err));
    must(kg_op_geglu_bwd(be, m[6], m[7], from, gate, up, &err));
    must(kg_op_layernorm(be, m[4], from, w, w, 1e-5f, &err));
    for (int i = LAID_OUT; i < LAID_OUT + 2; i++)
        buffer_free((uint16_t *)m[i].data - first);
}

/* A backend may move several elements at once if rows are aligned. */
static void rows_have_the_same_bits_however_they_lie(void **state)
{
    static const int64_t cols[] = {1040, 24, 13}, first[] = {0, 8, 1};
    float *x = buffer_of(LAID, sizeof *x);

    (void)state;
    for (int i = 0; i < LAID; i++)
        x[i] = (float)(i % 211 - 105) / 17;
    for (int i = 0; i < 9; i++) {
        uint16_t *want[LAID_OUT], *got[LAID_OUT];

        if (first[i % 3] + cols[i / 3] > LAID_STRIDE)
            continue;
        gate_laid(of_the_host(), want, x, cols[i / 3], first[i % 3]);
        gate_laid(backend(), got, x, cols[i / 3], first[i % 3]);
        for (int k = 0; k < LAID_OUT; k++) {
            assert_memory_equal(want[k], got[k], LAID * sizeof **got);
            buffer_free(want[k]);
            buffer_free(got[k]);
        }
    }
    buffer_free(x);
}

/* Bit patterns 2^12 apart; the gate's values are at most 1e12, because the bits of a NaN
 * that an operation makes are unspecified. */
static void numbers_of_any_size_have_the_same_bits(void **state)
{
    enum { COLS = 1 << 20, OUT = 4 };
    float *x = buffer_of(COLS, sizeof *x), *y = buffer_of(COLS, sizeof *y);
    uint16_t *out[OUT][2];

    (void)state;
    for (uint32_t i = 0; i < COLS; i++) {
        const uint32_t bits = i << 12 | (i * 2654435761u >> 20);

        memcpy(&x[i], &bits, sizeof bits);
        y[i] = fabsf(x[i]) < 1e12f ? x[i] : 1.0f;
    }
    for (int i = 0; i < OUT * 2; i++)
        out[i / 2][i % 2] = buffer_of(COLS, sizeof(uint16_t));
    for (int i = 0; i < 2; i++) {
        const struct kg_backend *be = i ? backend() : of_the_host();
        struct kg_mat to[OUT], gate = kg_mat(y, KG_F32, COLS / 1024, 1024),
                               one = kg_mat(x, KG_F32, 1, COLS);

        for (int k = 0; k < OUT; k++)
            to[k] = kg_mat(out[k][i], KG_BF16, COLS / 1024, 1024);
        must(kg_op_cast(be, kg_mat(to[0].data, KG_BF16, 1, COLS), one, &err));
        must(kg_op_swiglu(be, to[1], gate, gate, &err));
        must(kg_op_swiglu_bwd(be, to[2], to[3], gate, gate, gate, &err));
    }
    for (int k = 0; k < OUT; k++) {
        assert_memory_equal(out[k][0], out[k][1], COLS * sizeof(uint16_t));
        buffer_free(out[k][0]);
        buffer_free(out[k][1]);
    }
    buffer_free(x);
    buffer_free(y);
}

/* A slab is one row, which a device casts in pieces. */
static void a_row_longer_than_a_launch_is_cast(void **state)
{
    enum { COLS = (1 << 20) + 5 };
    float *x = buffer_of(COLS, sizeof *x);
    uint16_t *y = buffer_of(COLS, sizeof *y);

    (void)state;
    for (int i = 0; i < COLS; i++)
        x[i] = (float)(i % 251);
    must(kg_op_cast(backend(), kg_mat(y, KG_BF16, 1, COLS), kg_mat(x, KG_F32, 1, COLS),
                    &err));
    for (int i = 0; i < COLS; i++)
        if (y[i] != kg_f32_to_bf16(x[i]))
            fail_msg("element %d of %d", i, (int)COLS);
    buffer_free(x);
    buffer_free(y);
}

/* ---- moving and adding ---- */
enum { FROM = 23, TO = 9, MOST_PLACES = 40 };

/* A matrix of zeros that begins at element `first` of memory, with gaps between rows. */
static struct kg_mat laid(enum kg_dtype t, int64_t rows, int64_t cols, int64_t first)
{
    struct kg_mat m = matrix(t, rows, cols + 16);

    m.data = (char *)m.data + (size_t)first * kg_dtype_traits(t)->bytes;
    m.cols = cols;
    return m;
}
static void unlay(struct kg_mat m, int64_t first)
{
    buffer_free((char *)m.data - (size_t)first * kg_dtype_traits(m.dtype)->bytes);
}

static void must_have(const char *what, struct kg_mat m, int64_t r, int64_t c,
                      double want)
{
    const double found = get(m, r, c);

    if (found != want || signbit(found) != signbit(want))
        fail_msg("%s of %d columns: row %d, column %d: expected %g, found %g", what,
                 (int)m.cols, (int)r, (int)c, want, found);
}

static void move_laid(enum kg_dtype t, int64_t cols, int64_t first)
{
    const struct kg_mat src = laid(t, FROM, cols, first);
    const struct kg_mat some = laid(t, TO, cols, first),
                        pool = laid(t, FROM, cols, first);
    int32_t *rows = buffer_of(TO, sizeof *rows);

    for (int r = 0; r < FROM; r++)
        for (int c = 0; c < cols; c++)
            set(src, r, c, uniform());
    for (int r = 0; r < TO; r++)
        rows[r] = (7 * r + 2) % FROM;
    must(kg_op_gather_rows(backend(), some, src, kg_ivec(rows, TO), &err));
    must(kg_op_scatter_rows(backend(), pool, kg_ivec(rows, TO), some, &err));
    for (int r = 0; r < TO; r++)
        for (int c = 0; c < cols; c++) {
            must_have("gathered", some, r, c, get(src, rows[r], c));
            must_have("scattered", pool, rows[r], c, get(src, rows[r], c));
        }
    for (int c = 0; c < cols + 16 - first;
         c++) /* a row that is not written, and the gap after one */
        must_have("left alone", pool, c < cols ? 1 : rows[0], c, 0);
    buffer_free(rows);
    unlay(src, first);
    unlay(some, first);
    unlay(pool, first);
}

static void rows_are_moved_however_they_lie(void **state)
{
    static const int64_t cols[] = {1040, 24, 13, 8, 1}, first[] = {0, 8, 1};

    (void)state;
    random_state = 8;
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        for (size_t j = 0; j < sizeof first / sizeof *first; j++) {
            move_laid(KG_F32, cols[i], first[j]);
            move_laid(KG_BF16, cols[i], first[j]);
        }
}

/* Row 0 of dst adds 12 rows, row 3 none, and row 5 one row of -0. */
static void add_laid(int64_t cols, int64_t first)
{
    static const int32_t n[TO] = {12, 1, 2, 0, 5, 1, 7, 1, 3};
    const struct kg_mat src = laid(KG_F32, FROM, cols, first);
    const struct kg_mat dst = laid(KG_F32, TO, cols, first);
    int32_t *ends = buffer_of(TO, sizeof *ends), at = 0;
    int32_t *places = buffer_of(MOST_PLACES, sizeof *places);

    for (int r = 0; r < FROM; r++)
        for (int c = 0; c < cols; c++)
            set(src, r, c, r == FROM - 1 ? -0.0 : uniform());
    for (int r = 0; r < TO; r++) {
        for (int i = 0; i < n[r]; i++, at++)
            places[at] = r == 5 ? FROM - 1 : 11 * at % FROM;
        ends[r] = at;
        for (int c = 0; c < cols; c++)
            set(dst, r, c, 77);
    }
    must(kg_op_sum_rows(backend(), dst, src, kg_ivec(ends, TO), kg_ivec(places, at),
                        &err));
    for (int r = 0; r < TO; r++)
        for (int c = 0; c < cols; c++) {
            float sum = 0.0f;

            for (int i = ends[r] - n[r]; i < ends[r]; i++)
                sum += (float)get(src, places[i], c);
            must_have("a sum", dst, r, c, sum);
        }
    must_have("beside a sum", kg_mat(dst.data, KG_F32, TO, cols + 16), 2, cols, 0);
    buffer_free(ends);
    buffer_free(places);
    unlay(src, first);
    unlay(dst, first);
}

static void rows_are_added_in_order(void **state)
{
    (void)state;
    random_state = 9;
    for (int i = 0; i < 9; i++)
        add_laid((const int64_t[]){1040, 24, 13}[i / 3],
                 (const int64_t[]){0, 8, 1}[i % 3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_normed_as_rows_are),
        cmocka_unit_test(rows_are_moved_however_they_lie),
        cmocka_unit_test(rows_are_added_in_order),
        cmocka_unit_test(rows_have_the_same_bits_however_they_lie),
        cmocka_unit_test(numbers_of_any_size_have_the_same_bits),
        cmocka_unit_test(a_row_longer_than_a_launch_is_cast),
    };
    const struct CMUnitTest of_kernels[] = {
        cmocka_unit_test(rows_are_moved_however_they_lie),
        cmocka_unit_test(rows_are_added_in_order),
        cmocka_unit_test(rows_of_any_width_have_the_bits_of_the_cpu),
        cmocka_unit_test(a_sum_over_many_rows_has_the_bits_of_the_cpu),
        cmocka_unit_test(heads_are_normed_as_rows_are),
        cmocka_unit_test(rows_have_the_same_bits_however_they_lie),
        cmocka_unit_test(numbers_of_any_size_have_the_same_bits),
        cmocka_unit_test(a_row_longer_than_a_launch_is_cast),
    };
    const int failed = RUN_FAR_TOO(tests, NULL, NULL);

    return failed + RUN_EMULATED(of_kernels, NULL, NULL);
}
