/* Products keep their bits for any number of rows and threads, inside parallel regions,
 * with strides, and in new threads. Values are compared with the plain version in
 * op_test.c, and here for shapes of every path.
 */
#include "base/folder_testing.h"
#include "base/fpmode.h"
#include "base/sanitized_testing.h"
#include "emu/blas_testing.h"
#include "tensor/matrix_testing.h"
#include "tensor/selfcheck.h"

#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>

enum { MAX_M = 1024 };

static struct kg_mat seeded_matrix(enum kg_dtype t, int64_t rows, int64_t cols,
                                   uint32_t seed)
{
    random_state = seed;
    return random_matrix(t, rows, cols, 1.0);
}

static size_t bytes_of(struct kg_mat m)
{
    return (size_t)(m.rows * m.cols) * kg_dtype_traits(m.dtype)->bytes;
}

static void product(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                    enum kg_matmul_kind kind, bool accumulate)
{
    if (kg_op_matmul(backend(), c, a, b, kind, accumulate, &err) != KG_OK)
        fail_msg("%s", err.message);
}

/* ---- rows ---- */
static const struct {
    int64_t n;
    int64_t k;
} shapes[] = {{64, 64}, {130, 33}, {512, 896}, {151, 1111}, {1, 100}, {896, 1536}};
/* number of shapes and rows if products take long */
enum { N_FEW = 2, FEW_ROWS = 70 };
static const int64_t more_rows[] = {65, 128, 257, 1024, 80, 100, 127, 400, 528, 1023};
enum {
    STEP = SANITIZED ? 9 : 1, /* between small numbers of rows */
    N_MORE = SANITIZED ? 3 : sizeof more_rows / sizeof more_rows[0],
    N_SHAPES = sizeof shapes / sizeof shapes[0] - SANITIZED
};

struct rows_case {
    enum kg_dtype t;
    enum kg_dtype out;
    enum kg_matmul_kind kind;
    bool accumulate;
    struct kg_mat a;
    struct kg_mat b;
    struct kg_mat want;
    struct kg_mat got;
};

static void rows_equal(const struct rows_case *c, int64_t M, const char *how)
{
    int64_t first = (M * 37) % (c->a.rows - M + 1);
    struct kg_mat got = kg_mat_rows(c->got, 0, M);
    struct kg_mat want = kg_mat_rows(c->want, first, M);
    memset(got.data, 0, bytes_of(got));
    product(got, kg_mat_rows(c->a, first, M), c->b, c->kind, c->accumulate);
    if (memcmp(got.data, want.data, bytes_of(got)) != 0)
        fail_msg("kind %d %s to %s, N %lld, K %lld: other bits for M %lld, %s",
                 (int)c->kind, kg_dtype_traits(c->t)->name, kg_dtype_traits(c->out)->name,
                 (long long)got.cols, (long long)c->a.cols, (long long)M, how);
}

/* Emulated kernels are slow, and far memory uses the CPU's kernels again. */
static bool few(void)
{
    return SANITIZED || emulated() || strcmp(backend()->name, "far") == 0;
}

static void all_row_counts(const struct rows_case *c, int threads, const char *how)
{
    omp_set_num_threads(threads);
    for (int64_t M = 1; M <= 64; M += few() ? 9 : M < 34 ? STEP : 5)
        rows_equal(c, M, how);
    for (int i = 0; !few() && i < N_MORE; i++)
        rows_equal(c, more_rows[i], how);
}

static void check_rows(enum kg_dtype t, enum kg_dtype out, enum kg_matmul_kind kind,
                       bool accumulate)
{
    int threads = omp_get_max_threads(), rows = few() ? FEW_ROWS : MAX_M;
    for (int s = 0; s < (few() ? N_FEW : N_SHAPES); s++) {
        int64_t N = shapes[s].n, K = shapes[s].k;
        struct rows_case c = {.t = t, .out = out, .kind = kind, .accumulate = accumulate};
        c.a = seeded_matrix(t, rows, K, 1);
        c.b = kind == KG_MATMUL_NT ? seeded_matrix(t, N, K, 2)
                                   : seeded_matrix(t, K, N, 2);
        c.want = matrix(out, rows, N);
        c.got = matrix(out, rows, N);
        omp_set_num_threads(1);
        product(c.want, c.a, c.b, kind, accumulate);
        all_row_counts(&c, 1, "1 thread");
        if (!few()) {
            all_row_counts(&c, 2, "2 threads");
            all_row_counts(&c, 4, "4 threads");
        }
        omp_set_num_threads(2);
#pragma omp parallel num_threads(2)
        if (omp_get_thread_num() == 1 && !backend()->one_caller)
            all_row_counts(&c, 2, "inside a parallel region");
        buffer_free(c.a.data);
        buffer_free(c.b.data);
        buffer_free(c.want.data);
        buffer_free(c.got.data);
    }
    omp_set_num_threads(threads);
}

static void rows_of_a_forward_product_keep_their_bits_fp32(void **state)
{
    (void)state;
    check_rows(KG_F32, KG_F32, KG_MATMUL_NT, false);
}
static void rows_of_a_forward_product_keep_their_bits_bf16(void **state)
{
    (void)state;
    check_rows(KG_BF16, KG_F32, KG_MATMUL_NT, false);
}
static void rows_rounded_to_bf16_keep_their_bits(void **state)
{
    (void)state;
    check_rows(KG_BF16, KG_BF16, KG_MATMUL_NT, false);
}
static void rows_of_a_backward_product_keep_their_bits(void **state)
{
    (void)state;
    check_rows(KG_F32, KG_F32, KG_MATMUL_NN, false);
    check_rows(KG_BF16, KG_F32, KG_MATMUL_NN, false);
}
static void accumulated_rows_keep_their_bits(void **state)
{
    (void)state;
    check_rows(KG_BF16, KG_F32, KG_MATMUL_NT, true);
    check_rows(KG_F32, KG_F32, KG_MATMUL_NN, true);
}

/* ---- sums over tokens ---- */
static void check_sums(enum kg_dtype t)
{
    static const int64_t dims[][3] = {
        {64, 64, 2048}, {896, 128, 1000}, {130, 70, 33}, {300, 896, 4200}, {1, 5, 70}};
    int threads = omp_get_max_threads();
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        int64_t M = dims[i][0], N = dims[i][1], K = dims[i][2];
        struct kg_mat a = seeded_matrix(t, K, M, 1), b = seeded_matrix(t, K, N, 2);
        struct kg_mat want = matrix(KG_F32, M, N), got = matrix(KG_F32, M, N);
        omp_set_num_threads(1);
        product(want, a, b, KG_MATMUL_TN, false);
        for (int th = 1; th <= 4; th *= 2) {
            omp_set_num_threads(th);
            memset(got.data, 0, bytes_of(got));
            product(got, a, b, KG_MATMUL_TN, true);
            assert_memory_equal(got.data, want.data, bytes_of(got));
        }
        double sum = 0;
        for (int64_t k = 0; k < K; k++)
            sum += get(a, k, M - 1) * get(b, k, N / 2);
        assert_true(fabs(sum - get(want, M - 1, N / 2)) < 1e-5 * (double)K);
        buffer_free(a.data);
        buffer_free(b.data);
        buffer_free(want.data);
        buffer_free(got.data);
    }
    omp_set_num_threads(threads);
}

static void weight_gradients_keep_their_bits_over_threads(void **state)
{
    (void)state;
    check_sums(KG_F32);
    check_sums(KG_BF16);
}

/* A side of few columns takes another code path: its bits equal those among many
 * columns. */
static void check_narrow(enum kg_dtype t, int64_t few, int64_t many, int64_t tokens)
{
    enum { WIDER = 100 }; /* wider than any narrow side */
    struct kg_mat x = seeded_matrix(t, tokens, few + WIDER, 1), part = x;
    struct kg_mat y = seeded_matrix(t, tokens, many, 2);
    struct kg_mat wide = seeded_matrix(KG_F32, few + WIDER, many, 3);
    struct kg_mat tall = matrix(KG_F32, many, few);
    struct kg_mat flat = matrix(KG_F32, few, many);
    part.cols = few;
    for (int64_t i = 0; i < few * many; i++) {
        set(flat, i / many, i % many, get(wide, i / many, i % many));
        set(tall, i % many, i / many, get(wide, i / many, i % many));
    }
    product(wide, x, y, KG_MATMUL_TN, true);
    product(flat, part, y, KG_MATMUL_TN, true);
    product(tall, y, part, KG_MATMUL_TN, true);
    assert_memory_equal(flat.data, wide.data, bytes_of(flat));
    for (int64_t i = 0; i < few * many; i++)
        assert_true(get(tall, i % many, i / many) == get(wide, i / many, i % many));
    product(tall, y, part, KG_MATMUL_TN, false);
    product(wide, x, y, KG_MATMUL_TN, false);
    for (int64_t i = 0; i < few * many; i++)
        assert_true(get(tall, i % many, i / many) == get(wide, i / many, i % many));
    buffer_free(x.data);
    buffer_free(y.data);
    buffer_free(wide.data);
    buffer_free(tall.data);
    buffer_free(flat.data);
}

static void narrow_weight_gradients_have_the_bits_of_wide_ones(void **state)
{
    static const int64_t few[] = {1, 9, 16, 24, 64}, many[] = {70, 300};
    static const int64_t tokens[] = {1, 70, 1030, 2100};
    int threads = omp_get_max_threads();
    (void)state;
    for (int f = 0; f < 5; f++)
        for (int m = 0; m < 2; m++) {
            omp_set_num_threads(1 + (f + m) % 3);
            for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++)
                check_narrow(t, few[f], many[m], tokens[(f + m) % 4]);
        }
    omp_set_num_threads(threads);
}

/* ---- views ---- */

/* The middle columns of a wider matrix with the content of m. */
static struct kg_mat widened(struct kg_mat m)
{
    struct kg_mat wide = matrix(m.dtype, m.rows, m.cols + 48);
    size_t bytes = kg_dtype_traits(m.dtype)->bytes;
    struct kg_mat v = kg_mat((char *)wide.data + 16 * bytes, m.dtype, m.rows, m.cols);
    v.stride = wide.stride;
    for (int64_t r = 0; r < m.rows; r++)
        memcpy((char *)v.data + (size_t)(r * v.stride) * bytes,
               (char *)m.data + (size_t)(r * m.stride) * bytes, (size_t)m.cols * bytes);
    return v;
}

static void widened_free(struct kg_mat m)
{
    buffer_free((char *)m.data - 16 * kg_dtype_traits(m.dtype)->bytes);
}

static void check_views(enum kg_dtype t, enum kg_matmul_kind kind, int64_t M)
{
    int64_t N = 200, K = 300;
    bool tn = kind == KG_MATMUL_TN, nt = kind == KG_MATMUL_NT;
    struct kg_mat a = tn ? seeded_matrix(t, K, M, 1) : seeded_matrix(t, M, K, 1);
    struct kg_mat b = nt ? seeded_matrix(t, N, K, 2) : seeded_matrix(t, K, N, 2);
    struct kg_mat c = seeded_matrix(KG_F32, M, N, 3);
    struct kg_mat wa = widened(a), wb = widened(b), wc = widened(c);
    for (int accumulate = 1; accumulate >= 0; accumulate--) {
        product(c, a, b, kind, accumulate);
        product(wc, wa, wb, kind, accumulate);
        for (int64_t r = 0; r < M; r++)
            assert_memory_equal((float *)c.data + r * c.stride,
                                (float *)wc.data + r * wc.stride,
                                (size_t)N * sizeof(float));
        /* nothing is written outside the view */
        assert_true(((float *)wc.data)[(M - 1) * wc.stride + N] == 0.0f);
        assert_true(((float *)wc.data)[-1] == 0.0f);
    }
    buffer_free(a.data);
    buffer_free(b.data);
    buffer_free(c.data);
    widened_free(wa);
    widened_free(wb);
    widened_free(wc);
}

static void strided_views_give_the_bits_of_dense_matrices(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 7, 50, 200, 530};
    for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++) {
        for (int i = 0; i < (emulated() ? 3 : 5); i++) {
            check_views(t, KG_MATMUL_NT, rows[i]);
            check_views(t, KG_MATMUL_NN, rows[i]);
            check_views(t, KG_MATMUL_TN, rows[i]);
        }
    }
}

/* ---- panels ---- */
static struct kg_mat packed(struct kg_mat m, enum kg_dtype t)
{
    void *block = buffer_of((int64_t)kg_panels_bytes(t, m.rows, m.cols), 1);
    struct kg_mat p = kg_weights(backend(), block, t, m.rows, m.cols);
    if (kg_op_cast(backend(), p, m, &err) != KG_OK)
        fail_msg("%s", err.message);
    return p;
}

static const int64_t panel_shapes[][2] = {{1, 1},  {16, 32},  {17, 33},   {5, 100},
                                          {48, 7}, {130, 64}, {33, 1111}, {96, 1056}};

static void what_is_packed_is_read_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof panel_shapes / sizeof *panel_shapes; i++)
        for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++) {
            int64_t rows = panel_shapes[i][0], cols = panel_shapes[i][1];
            struct kg_mat m = seeded_matrix(t, rows, cols, 5);
            struct kg_mat p = packed(m, t), back = matrix(t, rows, cols);
            assert_int_equal(kg_op_cast(backend(), back, p, &err), KG_OK);
            assert_memory_equal(back.data, m.data, bytes_of(m));
            memset(back.data, 0, bytes_of(m));
            kg_mat_read(back.data, p, 0, rows * cols);
            assert_memory_equal(back.data, m.data, bytes_of(m));
            struct kg_mat twin = packed(back, t);
            memset(twin.data, 0, kg_panels_bytes(t, rows, cols));
            kg_mat_write(twin, m.data, 0, rows * cols);
            assert_memory_equal(twin.data, p.data, kg_panels_bytes(t, rows, cols));
            buffer_free(m.data);
            buffer_free(p.data);
            buffer_free(back.data);
            buffer_free(twin.data);
        }
}

/* fp32 master weights become bf16 panels and embedding rows. */
static void packing_rounds_as_a_cast_does(void **state)
{
    (void)state;
    enum { ROWS = 37, COLS = 75, N = 3 };
    static const int32_t three[N] = {36, 0, 17};
    int32_t *tokens = buffer_with(three, N, sizeof *tokens);
    struct kg_mat m = seeded_matrix(KG_F32, ROWS, COLS, 6);
    struct kg_mat narrow = matrix(KG_BF16, ROWS, COLS);
    assert_int_equal(kg_op_cast(backend(), narrow, m, &err), KG_OK);
    for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++) {
        struct kg_mat p = packed(m, t), plain = t == KG_F32 ? m : narrow;
        struct kg_mat x = matrix(KG_F32, N, COLS), y = matrix(KG_F32, N, COLS);
        assert_int_equal(kg_op_embed(backend(), x, p, kg_ivec(tokens, N), &err), KG_OK);
        assert_int_equal(kg_op_embed(backend(), y, plain, kg_ivec(tokens, N), &err),
                         KG_OK);
        assert_memory_equal(x.data, y.data, bytes_of(x));
        buffer_free(p.data);
        buffer_free(x.data);
        buffer_free(y.data);
    }
    buffer_free(m.data);
    buffer_free(tokens);
    buffer_free(narrow.data);
}

static void check_panels(enum kg_dtype t, enum kg_matmul_kind kind, int64_t M, size_t i)
{
    int64_t rows = panel_shapes[i][0], cols = panel_shapes[i][1];
    bool nt = kind == KG_MATMUL_NT;
    struct kg_mat w = seeded_matrix(t, rows, cols, 2), p = packed(w, t);
    struct kg_mat a = seeded_matrix(t, M, nt ? cols : rows, 1);
    struct kg_mat want = matrix(KG_F32, M, nt ? rows : cols);
    struct kg_mat got = matrix(KG_F32, M, nt ? rows : cols);
    product(want, a, w, kind, false);
    product(got, a, p, kind, false);
    assert_memory_equal(got.data, want.data, bytes_of(got));
    if (nt && rows > 16) { /* a part of the panels, as the head takes them */
        struct kg_mat part = kg_mat(got.data, KG_F32, M, rows - 16);
        product(part, a, kg_mat_rows(p, 16, rows - 16), kind, false);
        for (int64_t r = 0; r < M; r++)
            assert_memory_equal((float *)part.data + r * part.stride,
                                (float *)want.data + r * want.stride + 16,
                                (size_t)part.cols * sizeof(float));
    }
    buffer_free(w.data);
    buffer_free(p.data);
    buffer_free(a.data);
    buffer_free(want.data);
    buffer_free(got.data);
}

static void panels_give_the_bits_of_rows(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 3, 17, 129};
    for (size_t i = 0; i < sizeof panel_shapes / sizeof *panel_shapes; i++)
        for (int r = 0; r < 4; r++)
            for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++) {
                check_panels(t, KG_MATMUL_NT, rows[r], i);
                check_panels(t, KG_MATMUL_NN, rows[r], i);
            }
}

static void a_backend_of_rows_refuses_panels(void **state)
{
    (void)state;
    struct kg_mat m = seeded_matrix(KG_F32, 16, 16, 1);
    struct kg_mat c = matrix(KG_F32, 16, 16), p = matrix(KG_F32, 16, 16);
    const struct kg_backend *be = backend();
    assert_true(kg_weights(be, m.data, KG_F32, 16, 16).layout == KG_ROWS);
    p.layout = KG_PANELS;
    assert_int_equal(kg_op_cast(be, p, m, &err), KG_EINVAL);
    assert_string_equal(err.message, "cast: dst is in panels, expected rows");
    assert_int_equal(kg_op_matmul(be, c, m, p, KG_MATMUL_NT, false, &err), KG_EINVAL);
    assert_string_equal(err.message, "matmul NT: b is in panels, expected rows");
    buffer_free(m.data);
    buffer_free(c.data);
    buffer_free(p.data);
}

static void panels_are_refused_where_nobody_reads_them(void **state)
{
    (void)state;
    struct kg_mat m = seeded_matrix(KG_F32, 16, 16, 1), p = packed(m, KG_F32);
    struct kg_mat c = matrix(KG_F32, 16, 16);
    const struct kg_backend *be = backend();
    assert_int_equal(kg_op_matmul(be, c, p, m, KG_MATMUL_NT, false, &err), KG_EINVAL);
    assert_string_equal(err.message, "matmul NT: a is in panels, expected rows");
    assert_int_equal(kg_op_matmul(be, c, m, p, KG_MATMUL_TN, false, &err), KG_EINVAL);
    assert_int_equal(kg_op_matmul(be, p, m, m, KG_MATMUL_NN, false, &err), KG_EINVAL);
    buffer_free(m.data);
    buffer_free(p.data);
    buffer_free(c.data);
}

/* ---- every instruction set, every mode of the processor ---- */
/* Magnitudes from 1 down to subnormal sums; some zeros. */
static struct kg_mat spread_matrix(enum kg_dtype t, int64_t rows, int64_t cols)
{
    struct kg_mat m = matrix(t, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        int e = (int)(i * 31 % 23);
        set(m, i / cols, i % cols, e == 0 ? 0 : ldexp(uniform(), -e * 4));
    }
    return m;
}

struct variant_case {
    enum kg_dtype t;
    enum kg_matmul_kind kind;
    int64_t M, N, K;
};

static void run_variant(const struct kg_backend *be, float *out,
                        const struct variant_case *v, struct kg_mat a, struct kg_mat b)
{
    memset(out, 0, (size_t)(v->M * v->N) * sizeof *out);
    if (kg_op_matmul(be, kg_mat(out, KG_F32, v->M, v->N), a, b, v->kind, v->M & 1,
                     &err) != KG_OK)
        fail_msg("%s", err.message);
}

static void same_bits(const char *whose, const struct variant_case *v, const float *got,
                      const float *want)
{
    if (memcmp(got, want, (size_t)(v->M * v->N) * sizeof *got) != 0)
        fail_msg("%s: other bits, kind %d, %s, %lld x %lld, K %lld", whose, (int)v->kind,
                 kg_dtype_traits(v->t)->name, (long long)v->M, (long long)v->N,
                 (long long)v->K);
}

/* All instruction sets of the CPU, and the backend, have the same bits. */
static void variants_equal(const struct variant_case *v)
{
    bool tn = v->kind == KG_MATMUL_TN, nt = v->kind == KG_MATMUL_NT;
    struct kg_mat a = spread_matrix(v->t, tn ? v->K : v->M, tn ? v->M : v->K);
    struct kg_mat b = spread_matrix(v->t, nt ? v->N : v->K, nt ? v->K : v->N);
    float *want = buffer_of(v->M * v->N, sizeof *want);
    float *got = buffer_of(v->M * v->N, sizeof *got);
    run_variant(kg_backend_cpu_variant(0), want, v, a, b);
    for (int i = 1; !few() && kg_backend_cpu_variant(i); i++) {
        char text[128];
        run_variant(kg_backend_cpu_variant(i), got, v, a, b);
        kg_backend_cpu_variant(i)->describe(text, sizeof text);
        same_bits(text, v, got, want);
    }
    run_variant(backend(), got, v, a, b);
    same_bits(backend()->name, v, got, want);
    buffer_free(a.data);
    buffer_free(b.data);
    buffer_free(want);
    buffer_free(got);
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    need_exact_products();
    static const int64_t rows[] = {1, 2, 4, 7, 16, 17, 33, 70};
    static const int64_t depths[] = {1, 31, 33, 64, 1025, 2060};
    random_state = 4;
    for (int r = 0; r < 8; r += 1 + SANITIZED)
        for (int d = 0; d < 6; d++)
            for (int kind = KG_MATMUL_NT; kind <= KG_MATMUL_TN; kind++)
                for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++)
                    variants_equal(&(struct variant_case){t, (enum kg_matmul_kind)kind,
                                                          rows[r], 19 + 16 * (r % 4),
                                                          depths[d]});
}

/* Many rows are divided into tall blocks, a deep product into parts with stored sums. */
static void
tall_and_deep_products_have_the_same_bits_on_every_instruction_set(void **state)
{
    (void)state;
    static const int64_t dims[][3] = {
        {530, 35, 64}, {300, 70, 4610}, {17, 66, 470}, {49, 512, 900}, {1070, 40, 33}};
    int threads = omp_get_max_threads();
    random_state = 5;
    for (int th = 1; th <= 4; th += 3) {
        omp_set_num_threads(th);
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
            for (int kind = KG_MATMUL_NT; kind <= KG_MATMUL_TN; kind++)
                variants_equal(&(struct variant_case){KG_BF16, (enum kg_matmul_kind)kind,
                                                      dims[i][0] + (kind + th) % 2,
                                                      dims[i][1], dims[i][2]});
    }
    omp_set_num_threads(threads);
}

/* ---- two products ---- */
/* kg_op_matmul_two on `be` has the bits of two products one after the other. */
static void two_equal_one_by_one(const struct kg_backend *be, struct kg_mat c,
                                 const struct kg_factors f[2], enum kg_matmul_kind kind,
                                 bool accumulate)
{
    struct kg_mat wide = seeded_matrix(KG_F32, c.rows, c.cols, 7);
    struct kg_mat want = c, sum = c.dtype == KG_F32 ? c : wide;
    want.data = buffer_of(c.rows * c.cols, kg_dtype_traits(c.dtype)->bytes);
    if (accumulate) {
        memcpy(c.data, wide.data, bytes_of(c));
        memcpy(want.data, wide.data, bytes_of(c));
    }
    if (kg_op_matmul_two(be, c, f, sum, kind, accumulate, &err) != KG_OK)
        fail_msg("%s", err.message);
    sum = want.dtype == KG_F32 ? want : wide;
    product(sum, f[0].a, f[0].b, kind, accumulate);
    product(sum, f[1].a, f[1].b, kind, true);
    if (want.data != sum.data)
        assert_int_equal(kg_op_cast(backend(), want, sum, &err), KG_OK);
    if (memcmp(c.data, want.data, bytes_of(c)) != 0)
        fail_msg("%s: other bits, kind %d, %s to %s, %lld x %lld, K %lld and %lld",
                 be->name, (int)kind, kg_dtype_traits(f[0].a.dtype)->name,
                 kg_dtype_traits(c.dtype)->name, (long long)c.rows, (long long)c.cols,
                 (long long)f[0].a.cols, (long long)f[1].a.cols);
    buffer_free(wide.data);
    buffer_free(want.data);
}

static void check_two(const struct variant_case *v, int64_t rank, bool accumulate,
                      bool in_panels)
{
    const bool nt = v->kind == KG_MATMUL_NT;
    const enum kg_dtype out = accumulate ? KG_F32 : v->t;
    struct kg_mat b = spread_matrix(v->t, nt ? v->N : v->K, nt ? v->K : v->N);
    struct kg_mat b2 = spread_matrix(v->t, nt ? v->N : rank, nt ? rank : v->N);
    const struct kg_factors f[2] = {
        {spread_matrix(v->t, v->M, v->K), in_panels ? packed(b, v->t) : b},
        {spread_matrix(v->t, v->M, rank), in_panels ? packed(b2, v->t) : b2}};
    struct kg_mat c = matrix(out, v->M, v->N);
    two_equal_one_by_one(backend(), c, f, v->kind, accumulate);
    for (int i = 0; !few() && has_exact_products() && kg_backend_cpu_variant(i); i++)
        if (!in_panels || kg_backend_cpu_variant(i)->weights == f[0].b.layout)
            two_equal_one_by_one(kg_backend_cpu_variant(i), c, f, v->kind, accumulate);
    for (int i = 0; i < 2; i++) {
        buffer_free(f[i].a.data);
        if (in_panels)
            buffer_free(f[i].b.data);
    }
    buffer_free(b.data);
    buffer_free(b2.data);
    buffer_free(c.data);
}

static void two_products_in_one_pass_have_the_bits_of_two(void **state)
{
    static const int64_t dims[][4] = {
        /* M, N, K, rank */
        {1, 70, 100, 8},    {7, 33, 1030, 16},   {17, 16, 33, 1}, {33, 100, 64, 16},
        {70, 130, 900, 40}, {300, 70, 4610, 16}, {530, 66, 96, 8}};
    int threads = omp_get_max_threads();
    (void)state;
    random_state = 11;
    for (int i = 0; i < (emulated() ? 4 : 7); i++)
        for (int how = 0; how < 8; how++) {
            const enum kg_matmul_kind kind = how & 1 ? KG_MATMUL_NN : KG_MATMUL_NT;
            const enum kg_dtype t = how & 2 ? KG_F32 : KG_BF16;
            omp_set_num_threads(1 + (i + how) % 2);
            check_two(&(struct variant_case){t, kind, dims[i][0], dims[i][1], dims[i][2]},
                      dims[i][3], how & 4, how % 3 == 0 && backend()->weights != KG_ROWS);
        }
    omp_set_num_threads(threads);
}

/* ---- several products of one left operand ---- */
static void shared_equal_one_by_one(const struct kg_backend *be, enum kg_dtype t,
                                    const int64_t *dims, bool in_panels)
{
    struct kg_mat a = spread_matrix(t, dims[0], dims[1]), b[3], want[3];
    struct kg_product to[3];
    for (int j = 0; j < 3; j++) {
        b[j] = spread_matrix(t, dims[2 + j], dims[1]);
        to[j].b = in_panels ? packed(b[j], t) : b[j];
        to[j].c = matrix(j == 1 ? KG_F32 : t, dims[0], dims[2 + j]);
        want[j] = matrix(to[j].c.dtype, dims[0], dims[2 + j]);
        product(want[j], a, b[j], KG_MATMUL_NT, false);
    }
    if (kg_op_matmul_shared(be, to, 3, a, &err) != KG_OK)
        fail_msg("%s", err.message);
    for (int j = 0; j < 3; j++) {
        if (memcmp(to[j].c.data, want[j].data, bytes_of(want[j])) != 0)
            fail_msg("%s: other bits in product %d of M %lld, K %lld, %s", be->name, j,
                     (long long)dims[0], (long long)dims[1], kg_dtype_traits(t)->name);
        if (in_panels)
            buffer_free(to[j].b.data);
        buffer_free(to[j].c.data);
        buffer_free(want[j].data);
        buffer_free(b[j].data);
    }
    buffer_free(a.data);
}

/* Several products share one parallel region; their rows are divided differently. */
static void products_of_one_left_operand_have_the_bits_of_each(void **state)
{
    static const int64_t dims[][5] = {/* M, K, and N of each */
                                      {1, 100, 70, 33, 1},     {3, 576, 576, 192, 192},
                                      {17, 1030, 200, 16, 35}, {64, 96, 19, 530, 300},
                                      {300, 610, 16, 1070, 7}, {530, 64, 900, 130, 16}};
    int threads = omp_get_max_threads();
    (void)state;
    random_state = 13;
    for (int i = 0; i < (emulated() ? 3 : 6); i++)
        for (int how = 0; how < 6; how++) {
            const enum kg_dtype t = how & 1 ? KG_F32 : KG_BF16;
            const bool in_panels = how > 1 && backend()->weights != KG_ROWS;
            omp_set_num_threads(1 + how / 2);
            shared_equal_one_by_one(backend(), t, dims[i], in_panels);
        }
    omp_set_num_threads(threads);
}

static void the_mode_of_the_caller_changes_no_bit(void **state)
{
    (void)state;
    unsigned before = kg_fp_mode();
    for (int i = 0; kg_backend_cpu_variant(i); i++)
        for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++) {
            struct variant_case v = {t, KG_MATMUL_NT, 40, 50, 1100};
            struct kg_mat a = spread_matrix(t, v.M, v.K), b = spread_matrix(t, v.N, v.K);
            float *want = block_of(v.M * v.N, sizeof *want);
            float *got = block_of(v.M * v.N, sizeof *got);
            run_variant(kg_backend_cpu_variant(i), want, &v, a, b);
            /* flushed subnormals and truncated sums, as another library may leave
             * behind */
            unsigned hostile = KG_FP_FLUSH | KG_FP_CUT;
            kg_fp_set_mode(hostile);
            run_variant(kg_backend_cpu_variant(i), got, &v, a, b);
            unsigned after = kg_fp_mode();
            kg_fp_set_mode(before);
            assert_int_equal(after & ~(unsigned)KG_FP_FLAGS,
                             hostile & ~(unsigned)KG_FP_FLAGS);
            assert_memory_equal(got, want, (size_t)(v.M * v.N) * sizeof *got);
            buffer_free(a.data);
            buffer_free(b.data);
            kg_mem_free(want);
            kg_mem_free(got);
        }
}

/* ---- many shapes, many threads ---- */

/* Values over odd shapes and more shapes than a thread's cache holds. */
static void every_odd_shape_is_right(void **state)
{
    (void)state;
    struct kg_mat a = seeded_matrix(KG_F32, 70, 70, 1),
                  b = seeded_matrix(KG_F32, 70, 70, 2);
    struct kg_mat c = matrix(KG_F32, 70, 70);
    for (int64_t M = 1; M < 70; M += SANITIZED ? 11 : 4)
        for (int64_t N = 1; N < 70; N += 7)
            for (int64_t K = 1; K < 70; K += 9) {
                struct kg_mat y = kg_mat(c.data, KG_F32, M, N);
                struct kg_mat x = kg_mat(a.data, KG_F32, M, K),
                              w = kg_mat(b.data, KG_F32, N, K);
                product(y, x, w, KG_MATMUL_NT, false);
                double sum = 0;
                for (int64_t k = 0; k < K; k++)
                    sum += get(x, M - 1, k) * get(w, N - 1, k);
                assert_true(fabs(sum - get(y, M - 1, N - 1)) < 1e-5);
            }
    buffer_free(a.data);
    buffer_free(b.data);
    buffer_free(c.data);
}

static void *one_life(void *arg)
{
    struct kg_mat *m = arg;
    struct kg_err mine;
    kg_status s = kg_op_matmul(backend(), m[0], m[1], m[2], KG_MATMUL_NT, false, &mine);
    return s == KG_OK ? NULL : m;
}

static void a_thread_gives_back_what_it_kept(void **state)
{
    (void)state;
    struct kg_mat m[3] = {matrix(KG_F32, 40, 50), seeded_matrix(KG_F32, 40, 60, 1),
                          seeded_matrix(KG_F32, 50, 60, 2)};
    uint64_t before = kg_mem_current_bytes();
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *failed = m;
        assert_int_equal(pthread_create(&thread, NULL, one_life, m), 0);
        assert_int_equal(pthread_join(thread, &failed), 0);
        assert_null(failed);
    }
    assert_true(kg_mem_current_bytes() == before);
    for (int i = 0; i < 3; i++)
        buffer_free(m[i].data);
}

/* Each allocation fails in turn in a new thread: its scratch, the packed operand,
 * sums. */
static void running_out_of_memory_is_a_status(void **state)
{
    (void)state;
    struct kg_mat w = seeded_matrix(KG_F32, 50, 60, 2);
    struct kg_mat m[3] = {matrix(KG_F32, 70, 50), seeded_matrix(KG_F32, 70, 60, 1),
                          widened(w)};
    int failures = 0;
    void *failed = m;
    for (uint64_t n = 1; failed && n < 50; n++) {
        pthread_t thread;
        kg_mem_fail_at(n);
        assert_int_equal(pthread_create(&thread, NULL, one_life, m), 0);
        assert_int_equal(pthread_join(thread, &failed), 0);
        failures += failed != NULL;
    }
    kg_mem_fail_at(0);
    assert_null(failed);
    assert_true(failures >= 3);
    buffer_free(w.data);
    buffer_free(m[0].data);
    buffer_free(m[1].data);
    widened_free(m[2]);
}

/* ---- the checks of kedge doctor ---- */
static void the_self_check_passes_where_products_exist(void **state)
{
    (void)state;
    int threads = omp_get_max_threads();
    for (int i = 0; kg_backend_cpu_variant(i); i++) {
        const struct kg_backend *be = kg_backend_cpu_variant(i);
        for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++)
            if (kg_selfcheck_rows(be, t, &err) != KG_OK ||
                kg_selfcheck_definition(be, t, &err) != KG_OK ||
                kg_selfcheck_values(be, t, &err) != KG_OK)
                fail_msg("%s", err.message);
    }
    assert_int_equal(omp_get_max_threads(), threads);
}

/* A backend whose rows depend on their number: row 5 is off if there are 17 or 20. */
static kg_status crooked(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                         enum kg_matmul_kind kind, bool accumulate, struct kg_err *e)
{
    KG_TRY(backend()->matmul(c, a, b, kind, accumulate, e));
    if (c.rows == 17 || c.rows == 20)
        ((float *)c.data)[5 * c.stride] += 1e-3f;
    return KG_OK;
}

static void the_definition_holds_on_this_backend(void **state)
{
    (void)state;
    need_exact_products();
    for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++)
        if (kg_selfcheck_definition(backend(), t, &err) != KG_OK)
            fail_msg("%s", err.message);
}

static void the_self_check_finds_a_row_that_changes(void **state)
{
    (void)state;
    struct kg_backend be = *backend();
    be.matmul = crooked;
    assert_int_equal(kg_selfcheck_rows(&be, KG_F32, &err), KG_ECONFLICT);
    assert_non_null(strstr(err.message, "row 5 differs between M 17"));
    assert_int_equal(kg_selfcheck_definition(&be, KG_F32, &err), KG_ECONFLICT);
    assert_non_null(strstr(err.message, "element (5, 0)"));
}

/* Errors of a kernel, most of which do not depend on the number of rows. All are large
 * compared with rounding; some are in one place only. */
enum slip {
    NO_SLIP,
    SHORT_K,      /* the last factor is omitted */
    ONE_CHUNK,    /* factors after 1,024 are omitted */
    HALVES,       /* rows of a tile of sixteen are those of its other half */
    PAIRS,        /* columns are exchanged in pairs */
    NO_ADDING,    /* C is overwritten */
    ALWAYS_ADDS,  /* C is never overwritten */
    NONE,         /* an element is NaN */
    LAST_ROW,     /* the last row is left as it was */
    LAST_COLUMN,  /* so is the last column */
    BEHIND_1024,  /* rows after 1,024 repeat those before */
    OTHER_SIGN,   /* one row has the wrong sign */
    COARSE,       /* sums are rounded to bf16 in fp32 */
    TRANSPOSED_B, /* the right factor is read as another kind's */
    SLIPS
};
static enum slip slip;

static void exchange(struct kg_mat c, int64_t r, int64_t k, int64_t s, int64_t l)
{
    const double x = get(c, r, k), y = get(c, s, l);

    set(c, r, k, y);
    set(c, s, l, x);
}

static void spoil(struct kg_mat c, bool accumulate)
{
    for (int64_t r = 0; r < c.rows; r++)
        for (int64_t k = 0; k < c.cols; k++) {
            if (slip == HALVES && r % 16 < 8 && r + 8 < c.rows)
                exchange(c, r, k, r + 8, k);
            if (slip == PAIRS && k % 2 == 0 && k + 1 < c.cols)
                exchange(c, r, k, r, k + 1);
            if (slip == BEHIND_1024 && r >= 1024)
                set(c, r, k, get(c, r - 1024, k));
            if (slip == COARSE && c.dtype == KG_F32 && !accumulate)
                set(c, r, k, kg_bf16_to_f32(kg_f32_to_bf16((float)get(c, r, k))));
            if (slip == OTHER_SIGN && r == c.rows / 2)
                set(c, r, k, -get(c, r, k));
            if ((slip == LAST_ROW && r == c.rows - 1) ||
                (slip == LAST_COLUMN && k == c.cols - 1))
                set(c, r, k, 0);
        }
    if (slip == NONE)
        set(c, c.rows / 2, 0, NAN);
}

static kg_status slipping(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                          enum kg_matmul_kind kind, bool accumulate, struct kg_err *e)
{
    const bool tn = kind == KG_MATMUL_TN, nt = kind == KG_MATMUL_NT;
    const int64_t depth = tn ? a.rows : a.cols;
    const int64_t k = slip == SHORT_K                     ? depth - 1
                      : slip == ONE_CHUNK && depth > 1024 ? 1024
                                                          : depth;

    *(tn ? &a.rows : &a.cols) = *(nt ? &b.cols : &b.rows) = k;
    if (slip == TRANSPOSED_B && !tn)
        b = kg_mat(b.data, b.dtype, b.cols, b.rows),
        kind = nt ? KG_MATMUL_NN : KG_MATMUL_NT;
    KG_TRY(backend()->matmul(
        c, a, b, kind, slip == ALWAYS_ADDS || (accumulate && slip != NO_ADDING), e));
    spoil(c, accumulate);
    return KG_OK;
}

static void the_self_check_finds_what_is_no_product(void **state)
{
    struct kg_backend be = *backend();

    (void)state;
    be.matmul = slipping;
    for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++)
        for (slip = NO_SLIP; slip < SLIPS; slip++)
            if (kg_selfcheck_values(&be, t, &err) !=
                (slip == NO_SLIP ? KG_OK : KG_ECONFLICT))
                fail_msg("%s, slip %d: %s", kg_dtype_traits(t)->name, (int)slip,
                         slip == NO_SLIP ? err.message : "not found");
}

/* With any maker of products (KEDGE_TEST_PRODUCTS), whatever their bits are. */
static void products_are_sums_on_this_backend(void **state)
{
    const int64_t most = emulated() ? 1 << 20 : INT64_MAX;

    (void)state;
    for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++)
        if (kg_selfcheck_values_to(backend(), t, most, &err) != KG_OK)
            fail_msg("%s", err.message);
}

/* On emulated kernels, by each maker of products; cuBLASLt is a stand-in. */
static void products_are_sums_by_each_maker(void **state)
{
    static const char *const makers[] = {"own", "cublas", "unpinned"};
    const int64_t most = SANITIZED ? 1 << 19 : 1 << 20; /* of m n k */

    (void)state;
    make_good_blas("lib");
    setenv("KEDGE_TEST_LIBRARIES", in_dir("lib"), 1);
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        setenv("KEDGE_TEST_PRODUCTS", makers[i], 1);
        if (kg_selfcheck_values_to(backend(), KG_BF16, most, &err) != KG_OK)
            fail_msg("%s: %s", makers[i], err.message);
    }
}

/* Closes all but an operation's scratch, which stays. */
static int close_library(void **state)
{
    setenv("KEDGE_TEST_PRODUCTS", "own", 1);
    (void)backend();
    (void)remove_dir(state);
    return kg_file_exists(in_dir("lib"));
}

static void the_machine_is_described(void **state)
{
    (void)state;
    char text[256];
    backend()->describe(text, sizeof text);
    if (!strstr(text, "bf16 by") && !strstr(text, "plans "))
        fail_msg("expected who makes products of bf16, found '%s'", text);
    kg_selfcheck_cpu_features(text, sizeof text);
    assert_true(text[0] != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_a_forward_product_keep_their_bits_fp32),
        cmocka_unit_test(rows_of_a_forward_product_keep_their_bits_bf16),
        cmocka_unit_test(rows_rounded_to_bf16_keep_their_bits),
        cmocka_unit_test(rows_of_a_backward_product_keep_their_bits),
        cmocka_unit_test(accumulated_rows_keep_their_bits),
        cmocka_unit_test(weight_gradients_keep_their_bits_over_threads),
        cmocka_unit_test(narrow_weight_gradients_have_the_bits_of_wide_ones),
        cmocka_unit_test(two_products_in_one_pass_have_the_bits_of_two),
        cmocka_unit_test(strided_views_give_the_bits_of_dense_matrices),
        cmocka_unit_test(what_is_packed_is_read_back),
        cmocka_unit_test(packing_rounds_as_a_cast_does),
        cmocka_unit_test(panels_give_the_bits_of_rows),
        cmocka_unit_test(panels_are_refused_where_nobody_reads_them),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(
            tall_and_deep_products_have_the_same_bits_on_every_instruction_set),
        cmocka_unit_test(every_odd_shape_is_right),
        cmocka_unit_test(a_thread_gives_back_what_it_kept),
        cmocka_unit_test(running_out_of_memory_is_a_status),
        cmocka_unit_test(the_self_check_finds_a_row_that_changes),
        cmocka_unit_test(the_machine_is_described),
    };
    /* these do not depend on the backend */
    const struct CMUnitTest of_instruction_sets[] = {
        cmocka_unit_test(the_mode_of_the_caller_changes_no_bit),
        cmocka_unit_test(the_self_check_passes_where_products_exist),
        cmocka_unit_test(the_self_check_finds_what_is_no_product),
    };
    const struct CMUnitTest of_kernels[] = {
        cmocka_unit_test(rows_of_a_forward_product_keep_their_bits_fp32),
        cmocka_unit_test(rows_of_a_forward_product_keep_their_bits_bf16),
        cmocka_unit_test(rows_rounded_to_bf16_keep_their_bits),
        cmocka_unit_test(rows_of_a_backward_product_keep_their_bits),
        cmocka_unit_test(accumulated_rows_keep_their_bits),
        cmocka_unit_test(two_products_in_one_pass_have_the_bits_of_two),
        cmocka_unit_test(strided_views_give_the_bits_of_dense_matrices),
        cmocka_unit_test(a_backend_of_rows_refuses_panels),
        cmocka_unit_test(products_of_one_left_operand_have_the_bits_of_each),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(every_odd_shape_is_right),
        cmocka_unit_test(products_are_sums_on_this_backend),
        cmocka_unit_test(the_definition_holds_on_this_backend),
        cmocka_unit_test(the_machine_is_described),
    };
    const struct CMUnitTest of_makers[] = {cmocka_unit_test_setup_teardown(
        products_are_sums_by_each_maker, make_dir, close_library)};
    int failed = RUN_FAR_TOO(tests, NULL, NULL);
    failed += RUN_ON("cpu", of_instruction_sets, NULL, NULL);
    failed += RUN_EMULATED(of_kernels, NULL, NULL);
    if (kg_emu_open && !getenv("KEDGE_TEST_PRODUCTS") && use_backend("emu"))
        failed += cmocka_run_group_tests(of_makers, NULL, NULL);
    return failed;
}
