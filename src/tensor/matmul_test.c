/* Products keep their bits: over the number of rows, threads, enclosing regions, strides
 * and thread lives. Values are compared with the plain version in op_test.c; here also
 * for shapes of every path.
 */
#include "tensor/matrix_testing.h"
#include "tensor/selfcheck.h"

#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>

enum { MAX_M = 1024 };

static struct kg_err err;

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
    if (kg_op_matmul(kg_backend_cpu(), c, a, b, kind, accumulate, &err) != KG_OK)
        fail_msg("%s", err.message);
}

static void skip_without(enum kg_dtype t)
{
    if (t == KG_BF16 && !kg_backend_cpu()->has_bf16) {
        print_message("skip: no bf16 products on this machine\n");
        skip();
    }
}

/* ---- rows ---- */
static const struct {
    int64_t n;
    int64_t k;
} shapes[] = {{64, 64}, {130, 33}, {512, 896}, {151, 1111}, {1, 100}, {896, 1536}};
static const int64_t more_rows[] = {65, 80, 100, 127, 128, 257, 400, 528, 1023, 1024};
enum {
    N_SHAPES = sizeof shapes / sizeof shapes[0],
    N_MORE = sizeof more_rows / sizeof more_rows[0]
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

static void all_row_counts(const struct rows_case *c, int threads, const char *how)
{
    omp_set_num_threads(threads);
    for (int64_t M = 1; M <= 64; M += M < 34 ? 1 : 5)
        rows_equal(c, M, how);
    for (int i = 0; i < N_MORE; i++)
        rows_equal(c, more_rows[i], how);
}

static void check_rows(enum kg_dtype t, enum kg_dtype out, enum kg_matmul_kind kind,
                       bool accumulate)
{
    skip_without(t);
    int threads = omp_get_max_threads();
    for (int s = 0; s < N_SHAPES; s++) {
        int64_t N = shapes[s].n, K = shapes[s].k;
        struct rows_case c = {.t = t, .out = out, .kind = kind, .accumulate = accumulate};
        c.a = seeded_matrix(t, MAX_M, K, 1);
        c.b = kind == KG_MATMUL_NT ? seeded_matrix(t, N, K, 2)
                                   : seeded_matrix(t, K, N, 2);
        c.want = matrix(out, MAX_M, N);
        c.got = matrix(out, MAX_M, N);
        omp_set_num_threads(1);
        product(c.want, c.a, c.b, kind, accumulate);
        all_row_counts(&c, 1, "1 thread");
        all_row_counts(&c, 2, "2 threads");
        all_row_counts(&c, 4, "4 threads");
        omp_set_num_threads(2);
#pragma omp parallel num_threads(2)
        if (omp_get_thread_num() == 1)
            all_row_counts(&c, 2, "inside a parallel region");
        kg_mem_free(c.a.data);
        kg_mem_free(c.b.data);
        kg_mem_free(c.want.data);
        kg_mem_free(c.got.data);
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
    skip_without(t);
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
        kg_mem_free(a.data);
        kg_mem_free(b.data);
        kg_mem_free(want.data);
        kg_mem_free(got.data);
    }
    omp_set_num_threads(threads);
}

static void weight_gradients_keep_their_bits_over_threads(void **state)
{
    (void)state;
    check_sums(KG_F32);
    check_sums(KG_BF16);
}

/* ---- views ---- */

/* The middle columns of a wider matrix with the content of m. */
static struct kg_mat widened(struct kg_mat m)
{
    struct kg_mat wide = matrix(m.dtype, m.rows, m.cols + 48);
    size_t bytes = kg_dtype_traits(m.dtype)->bytes;
    struct kg_mat v = {(char *)wide.data + 16 * bytes, m.dtype, m.rows, m.cols,
                       wide.stride};
    for (int64_t r = 0; r < m.rows; r++)
        memcpy((char *)v.data + (size_t)(r * v.stride) * bytes,
               (char *)m.data + (size_t)(r * m.stride) * bytes, (size_t)m.cols * bytes);
    return v;
}

static void widened_free(struct kg_mat m)
{
    kg_mem_free((char *)m.data - 16 * kg_dtype_traits(m.dtype)->bytes);
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
        /* nothing is written beside the view */
        assert_true(((float *)wc.data)[(M - 1) * wc.stride + N] == 0.0f);
        assert_true(((float *)wc.data)[-1] == 0.0f);
    }
    kg_mem_free(a.data);
    kg_mem_free(b.data);
    kg_mem_free(c.data);
    widened_free(wa);
    widened_free(wb);
    widened_free(wc);
}

static void strided_views_give_the_bits_of_dense_matrices(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 7, 50, 200, 530};
    for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++) {
        skip_without(t);
        for (int i = 0; i < 5; i++) {
            check_views(t, KG_MATMUL_NT, rows[i]);
            check_views(t, KG_MATMUL_NN, rows[i]);
            check_views(t, KG_MATMUL_TN, rows[i]);
        }
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
    for (int64_t M = 1; M < 70; M += 4)
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
    kg_mem_free(a.data);
    kg_mem_free(b.data);
    kg_mem_free(c.data);
}

static void *one_life(void *arg)
{
    struct kg_mat *m = arg;
    struct kg_err mine;
    kg_status s = kg_op_matmul(kg_backend_cpu(), m[0], m[1], m[2], KG_MATMUL_NT, false,
                               &mine);
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
        kg_mem_free(m[i].data);
}

/* In a fresh thread, which has nothing yet: its cache, the library's scratch and the
 * packed operands. */
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
    assert_true(failures >= 4);
    kg_mem_free(w.data);
    kg_mem_free(m[0].data);
    kg_mem_free(m[1].data);
    widened_free(m[2]);
}

/* ---- what doctor says ---- */
static void the_self_check_passes_where_products_exist(void **state)
{
    (void)state;
    int threads = omp_get_max_threads();
    for (int i = 0; kg_backend_cpu_variant(i); i++) {
        const struct kg_backend *be = kg_backend_cpu_variant(i);
        if (kg_selfcheck_rows(be, KG_F32, &err) != KG_OK)
            fail_msg("%s", err.message);
        kg_status s = kg_selfcheck_rows(be, KG_BF16, &err);
        assert_int_equal(s, be->has_bf16 ? KG_OK : KG_EUNSUPPORTED);
        if (s != KG_OK)
            assert_non_null(strstr(err.message, "AVX512_BF16"));
    }
    assert_int_equal(omp_get_max_threads(), threads);
}

/* A backend whose rows do depend on their number: y += M in the last bit. */
static kg_status crooked(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                         enum kg_matmul_kind kind, bool accumulate, struct kg_err *e)
{
    KG_TRY(kg_backend_cpu()->matmul(c, a, b, kind, accumulate, e));
    if (c.rows == 17)
        ((float *)c.data)[5 * c.stride] += 1e-3f;
    return KG_OK;
}

static void the_self_check_finds_a_row_that_changes(void **state)
{
    (void)state;
    struct kg_backend be = *kg_backend_cpu();
    be.matmul = crooked;
    assert_int_equal(kg_selfcheck_rows(&be, KG_F32, &err), KG_ECONFLICT);
    assert_non_null(strstr(err.message, "row 5 differs between M 17"));
}

static void the_machine_is_described(void **state)
{
    (void)state;
    char text[256];
    kg_backend_cpu()->describe(text, sizeof text);
    assert_non_null(strstr(text, "oneDNN"));
    /* no K of these tests was refused by the kernel for few rows */
    assert_non_null(strstr(text, "refused for 0"));
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
        cmocka_unit_test(strided_views_give_the_bits_of_dense_matrices),
        cmocka_unit_test(every_odd_shape_is_right),
        cmocka_unit_test(a_thread_gives_back_what_it_kept),
        cmocka_unit_test(running_out_of_memory_is_a_status),
        cmocka_unit_test(the_self_check_passes_where_products_exist),
        cmocka_unit_test(the_self_check_finds_a_row_that_changes),
        cmocka_unit_test(the_machine_is_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
