/* Tests the guarantees of exact products on this machine.
 *
 * A product must have the same bits for any number of rows and threads, and the bits of
 * its definition in plain C. A device may define its own bits, so its products are also
 * compared with sums in double, which any order of additions and any rounding must
 * approximate.
 */
#include "tensor/selfcheck.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/simd.h"

#include <math.h>
#include <omp.h>

enum { MAX_ROWS = 129, MAX_COLS = 520, MAX_K = 1536, TOKENS = 700 };

static const struct {
    int64_t n;
    int64_t k;
} shapes[] = {{64, 64}, {151, 333}, {520, 896}, {192, 1536}};
static const int64_t row_counts[] = {1, 2, 5, 16, 17, 33, 64, 100, 128};
static const int thread_counts[] = {1, 2, 4};

#define COUNT(x) (sizeof(x) / sizeof((x)[0]))

enum { OPERAND = MAX_COLS * MAX_K, RESULT = MAX_ROWS * MAX_COLS };
enum { NEAR_RESULT = 1536 * 2304 }; /* results of the largest of near_dims */

struct check {
    const struct kg_backend *be;
    enum kg_dtype dtype;
    void *a;     /* (OPERAND) owned */
    void *b;     /* (OPERAND) owned */
    float *want; /* (results) owned */
    float *got;  /* (results) owned */
    /* owned, in backend memory: */
    void *a_there, *b_there; /* copies of a and b */
    void *out_there;         /* (results) fp32 */
    uint64_t *digest;        /* borrowed; result of digest_all */
    int64_t most;            /* check_values skips products of more multiply-adds */
    size_t results;          /* elements of want, got and out_there; 0: RESULT */
};

static void fill(void *block, enum kg_dtype dtype, int64_t n, uint32_t seed)
{
    float *f = block;
    uint16_t *h = block;
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        float x = (float)(int32_t)seed * 0x1p-31f;
        if (dtype == KG_F32)
            f[i] = x;
        else
            h[i] = kg_f32_to_bf16(x);
    }
}

static kg_status put_operands(const struct check *c, struct kg_err *err)
{
    uint64_t bytes = OPERAND * kg_dtype_traits(c->dtype)->bytes;

    KG_TRY(kg_buf_put(c->be, c->a_there, c->a, bytes, err));
    return kg_buf_put(c->be, c->b_there, c->b, bytes, err);
}

static kg_status product(const struct check *c, float *out, enum kg_matmul_kind kind,
                         int64_t m, int64_t n, int64_t k, struct kg_err *err)
{
    bool tn = kind == KG_MATMUL_TN;
    bool nt = kind == KG_MATMUL_NT;
    struct kg_mat a = kg_mat(c->a_there, c->dtype, tn ? k : m, tn ? m : k);
    struct kg_mat b = kg_mat(c->b_there, c->dtype, nt ? n : k, nt ? k : n);

    KG_TRY(
        kg_op_matmul(c->be, kg_mat(c->out_there, KG_F32, m, n), a, b, kind, false, err));
    return kg_buf_get(c->be, out, c->out_there, (uint64_t)(m * n) * sizeof *out, err);
}

static kg_status compare(const struct check *c, const char *kind, int64_t m, int64_t n,
                         int64_t k, int threads, struct kg_err *err)
{
    for (int64_t i = 0; i < m * n; i++)
        if (memcmp(&c->want[i], &c->got[i], sizeof(float)) != 0)
            return kg_fail(
                err, KG_ECONFLICT,
                "%s %s product, N %lld, K %lld: row %lld differs between M %lld on %d "
                "threads (%.9g) and M %d on 1 (%.9g), expected the same bits",
                kg_dtype_traits(c->dtype)->name, kind, (long long)n, (long long)k,
                (long long)(i / n), (long long)m, threads, (double)c->got[i], MAX_ROWS,
                (double)c->want[i]);
    return KG_OK;
}

static kg_status check_rows(const struct check *c, enum kg_matmul_kind kind,
                            const char *name, int64_t n, int64_t k, struct kg_err *err)
{
    omp_set_num_threads(1);
    KG_TRY(product(c, c->want, kind, MAX_ROWS, n, k, err));
    for (size_t t = 0; t < COUNT(thread_counts); t++)
        for (size_t i = 0; i < COUNT(row_counts); i++) {
            omp_set_num_threads(thread_counts[t]);
            KG_TRY(product(c, c->got, kind, row_counts[i], n, k, err));
            KG_TRY(compare(c, name, row_counts[i], n, k, thread_counts[t], err));
        }
    return KG_OK;
}

/* Weight gradients: m x n sums over TOKENS. */
static kg_status check_sums(const struct check *c, int64_t n, struct kg_err *err)
{
    omp_set_num_threads(1);
    KG_TRY(product(c, c->want, KG_MATMUL_TN, MAX_ROWS, n, TOKENS, err));
    for (size_t t = 1; t < COUNT(thread_counts); t++) {
        omp_set_num_threads(thread_counts[t]);
        KG_TRY(product(c, c->got, KG_MATMUL_TN, MAX_ROWS, n, TOKENS, err));
        KG_TRY(compare(c, "TN", MAX_ROWS, n, TOKENS, thread_counts[t], err));
    }
    return KG_OK;
}

/* ---- against the definition ---- */
static float factor(const struct check *c, const void *block, int64_t i)
{
    return c->dtype == KG_F32
               ? ((const float *)block)[i]
               : kg_simd_flush(kg_bf16_to_f32(((const uint16_t *)block)[i]));
}

/* One chunk of row a and row b; see kg_matmul_kind. */
static float chain(const struct check *c, int64_t a, int64_t b, int64_t n, int64_t step)
{
    float sum = 0.0f;
    for (int64_t k = 0; k < n; k += step) {
        float x = factor(c, c->a, a + k), w = factor(c, c->b, b + k);
        sum = c->dtype == KG_F32 ? kg_simd_fma(x, w, sum)
                                 : kg_simd_fma_flushed(x, w, sum);
    }
    return sum;
}

static float defined(const struct check *c, int64_t m, int64_t n, int64_t K)
{
    int64_t piece = c->dtype == KG_F32 ? KG_PRODUCT_CHUNK : KG_PRODUCT_BLOCK;
    float sum = 0.0f;
    for (int64_t k = 0; k < K; k += piece) {
        int64_t left = K - k < piece ? K - k : piece;
        int64_t a = m * K + k, b = n * K + k;
        if (c->dtype == KG_F32) {
            float chunk = chain(c, a, b, left, 1);
            sum = k == 0 ? chunk : sum + chunk;
        } else {
            float both = kg_simd_flush(chain(c, a, b, left, 2) +
                                       chain(c, a + 1, b + 1, left - 1, 2));
            sum = kg_simd_flush(sum + both);
        }
    }
    return sum;
}

/* Scales factors by 1, 2^-63 (products of two are nearly subnormal), 2^-126 or 0. */
static void spread(const struct check *c, void *block, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int kind = (int)(i * 7 % 11);
        float scale = kind < 5    ? 1.0f
                      : kind < 9  ? 0x1p-63f
                      : kind < 10 ? 0x1p-126f
                                  : 0.0f;
        if (c->dtype == KG_F32)
            ((float *)block)[i] *= scale;
        else
            ((uint16_t *)block)[i] = kg_f32_to_bf16(factor(c, block, i) * scale);
    }
}

static kg_status check_elements(const struct check *c, int64_t rows, int64_t n, int64_t k,
                                struct kg_err *err)
{
    KG_TRY(product(c, c->got, KG_MATMUL_NT, rows, n, k, err));
    for (int64_t i = 0; i < rows * n; i++) {
        float want = defined(c, i / n, i % n, k);
        if (memcmp(&want, &c->got[i], sizeof want) != 0)
            return kg_fail(err, KG_ECONFLICT,
                           "%s product of K %lld, element (%lld, %lld): expected %.9g as "
                           "defined, found %.9g",
                           kg_dtype_traits(c->dtype)->name, (long long)k,
                           (long long)(i / n), (long long)(i % n), (double)want,
                           (double)c->got[i]);
    }
    return KG_OK;
}

static kg_status check_definition(const struct check *c, struct kg_err *err)
{
    static const int64_t rows[] = {1, 3, 20, 33};
    for (size_t i = 0; i < COUNT(rows); i++)
        KG_TRY(check_elements(c, rows[i], 37, i % 2 ? MAX_K - 3 : 100, err));
    spread(c, c->a, MAX_ROWS * MAX_K);
    spread(c, c->b, MAX_ROWS * MAX_K);
    KG_TRY(put_operands(c, err));
    for (size_t i = 0; i < COUNT(rows); i++)
        KG_TRY(check_elements(c, rows[i], 37, i % 2 ? 333 : 64, err));
    return KG_OK;
}

/* ---- against double ---- */
/* Few and many rows, aligned and not, sums of several chunks. The last shapes use each
 * tile size that a device of about a hundred multiprocessors chooses. */
static const struct dims {
    int64_t m, n, k;
} near_dims[] = {{1, 520, 896},   {7, 192, 1536},   {24, 40, 1040},  {1104, 56, 72},
                 {129, 151, 333}, {64, 520, 1100},  {16, 6912, 72},  {16, 3456, 136},
                 {32, 1728, 200}, {128, 1728, 200}, {640, 704, 200}, {1536, 1152, 72},
                 {1536, 2304, 72}};

/* One product, stored in C or added to C; C has type `out`. */
struct near_case {
    enum kg_matmul_kind kind;
    enum kg_dtype out;
    struct dims d;
    int times; /* how often C has received the product */
};

static double number(const struct check *c, const void *block, int64_t i)
{
    return c->dtype == KG_F32 ? (double)((const float *)block)[i]
                              : (double)kg_bf16_to_f32(((const uint16_t *)block)[i]);
}

/* Whether element i of C is close enough to the sum in double; NaN is not. */
static bool is_near(const struct check *c, const struct near_case *n, int64_t i,
                    double *want, double *most)
{
    const int64_t M = n->d.m, N = n->d.n, K = n->d.k, row = i / N, col = i % N;
    const bool tn = n->kind == KG_MATMUL_TN, nt = n->kind == KG_MATMUL_NT;
    const double step = n->out == KG_F32 ? 0 : 0x1p-8;
    double sum = 0, sizes = 0;

    for (int64_t k = 0; k < K; k++) {
        const double term = number(c, c->a, tn ? k * M + row : row * K + k) *
                            number(c, c->b, nt ? col * K + k : k * N + col);

        sum += term;
        sizes += fabs(term);
    }
    *want = n->times * sum;
    *most = n->times * sizes * 0x1p-16 + fabs(*want) * step;
    return fabs((double)c->got[i] - *want) <= *most;
}

/* Checks every step-th element; step is odd, so that all places of a tile occur. */
static kg_status check_near(const struct check *c, const struct near_case *n,
                            struct kg_err *err)
{
    static const char *const kinds[] = {"NT", "NN", "TN"};
    const int64_t M = n->d.m, N = n->d.n, K = n->d.k, step = 1 + 2 * (M * N * K >> 21);
    double want, most;

    for (int64_t i = 0; i < M * N; i += step)
        if (!is_near(c, n, i, &want, &most))
            return kg_fail(
                err, KG_ECONFLICT,
                "%s %s product to %s%s, M %lld, N %lld, K %lld, element (%lld, %lld): "
                "expected %.9g within %.2g, found %.9g",
                kg_dtype_traits(c->dtype)->name, kinds[n->kind],
                kg_dtype_traits(n->out)->name, n->times > 1 ? ", added to" : "",
                (long long)M, (long long)N, (long long)K, (long long)(i / N),
                (long long)(i % N), want, most, (double)c->got[i]);
    return KG_OK;
}

static kg_status get_sums(const struct check *c, enum kg_dtype out, int64_t n,
                          struct kg_err *err)
{
    KG_TRY(kg_buf_get(c->be, c->got, c->out_there,
                      (uint64_t)n * kg_dtype_traits(out)->bytes, err));
    for (int64_t i = out == KG_F32 ? 0 : n; i-- > 0;) /* in place, from the end */
        c->got[i] = kg_bf16_to_f32(((const uint16_t *)(const void *)c->got)[i]);
    return KG_OK;
}

static kg_status check_case(const struct check *c, enum kg_matmul_kind kind,
                            enum kg_dtype out, struct dims d, struct kg_err *err)
{
    const bool tn = kind == KG_MATMUL_TN, nt = kind == KG_MATMUL_NT;
    const struct kg_mat a = kg_mat(c->a_there, c->dtype, tn ? d.k : d.m, tn ? d.m : d.k);
    const struct kg_mat b = kg_mat(c->b_there, c->dtype, nt ? d.n : d.k, nt ? d.k : d.n);
    const struct kg_mat to = kg_mat(c->out_there, out, d.m, d.n);

    for (int times = 1; times <= (out == KG_F32 && d.m < MAX_ROWS ? 2 : 1); times++) {
        const struct near_case n = {kind, out, d, times};

        KG_TRY(kg_op_matmul(c->be, to, a, b, kind, times > 1, err));
        KG_TRY(get_sums(c, out, d.m * d.n, err));
        KG_TRY(check_near(c, &n, err));
    }
    return KG_OK;
}

static kg_status check_values(const struct check *c, struct kg_err *err)
{
    /* fp32 products have one tile size, so the small shapes suffice */
    const int64_t enough = c->dtype == KG_F32 ? 1 << 23 : INT64_MAX;

    for (size_t i = 0; i < 3 * COUNT(near_dims); i++) {
        const enum kg_matmul_kind kind = (enum kg_matmul_kind)(i % 3);
        const struct dims d = near_dims[i / 3];

        if (d.m * d.n * d.k > c->most || d.m * d.n * d.k > enough)
            continue;
        KG_TRY(check_case(c, kind, KG_F32, d, err));
        if (c->dtype != KG_F32 && kind != KG_MATMUL_TN)
            KG_TRY(check_case(c, kind, c->dtype, d, err));
    }
    return KG_OK;
}

static kg_status check_all(const struct check *c, struct kg_err *err)
{
    for (size_t s = 0; s < COUNT(shapes); s++) {
        KG_TRY(check_rows(c, KG_MATMUL_NT, "NT", shapes[s].n, shapes[s].k, err));
        KG_TRY(check_rows(c, KG_MATMUL_NN, "NN", shapes[s].n, shapes[s].k, err));
        KG_TRY(check_sums(c, shapes[s].n, err));
    }
    return KG_OK;
}

/* On a device, only small shapes: its traits cover the rest, and emulation is slow. */
static kg_status digest_all(const struct check *c, struct kg_err *err)
{
    const size_t n = c->be->traits ? 2 : COUNT(shapes);
    uint64_t each[COUNT(shapes)];

    for (size_t s = 0; s < n; s++) {
        KG_TRY(product(c, c->got, KG_MATMUL_NT, MAX_ROWS, shapes[s].n, shapes[s].k, err));
        each[s] = kg_hash_bytes(c->got,
                                (size_t)(MAX_ROWS * shapes[s].n) * sizeof *c->got);
    }
    *c->digest = kg_hash_bytes(each, n * sizeof *each);
    return KG_OK;
}

static kg_status take_room(struct check *c, struct kg_err *err)
{
    static const char what[] = "self-check";
    size_t bytes = kg_dtype_traits(c->dtype)->bytes;
    size_t n = c->results > 0 ? c->results : RESULT;

    c->a = kg_mem_calloc(OPERAND, bytes, what, err);
    c->b = c->a ? kg_mem_calloc(OPERAND, bytes, what, err) : NULL;
    c->want = c->b ? kg_mem_calloc(n, sizeof(float), what, err) : NULL;
    c->got = c->want ? kg_mem_calloc(n, sizeof(float), what, err) : NULL;
    c->a_there = c->got ? kg_buf_alloc(c->be, OPERAND * bytes, what, err) : NULL;
    c->b_there = c->a_there ? kg_buf_alloc(c->be, OPERAND * bytes, what, err) : NULL;
    c->out_there = c->b_there ? kg_buf_alloc(c->be, n * sizeof(float), what, err) : NULL;
    return c->out_there ? KG_OK : err->code;
}

static kg_status with_operands(struct check *c,
                               kg_status (*run)(const struct check *, struct kg_err *),
                               struct kg_err *err)
{
    int threads = omp_get_max_threads();
    kg_status status;

    KG_TRY_GOTO(out, take_room(c, err));
    fill(c->a, c->dtype, OPERAND, 1);
    fill(c->b, c->dtype, OPERAND, 2);
    KG_TRY_GOTO(out, put_operands(c, err));
    status = run(c, err);
out:
    omp_set_num_threads(threads);
    kg_buf_free(c->be, c->a_there);
    kg_buf_free(c->be, c->b_there);
    kg_buf_free(c->be, c->out_there);
    kg_mem_free(c->a);
    kg_mem_free(c->b);
    kg_mem_free(c->want);
    kg_mem_free(c->got);
    return status;
}

kg_status kg_selfcheck_rows(const struct kg_backend *be, enum kg_dtype dtype,
                            struct kg_err *err)
{
    return with_operands(&(struct check){.be = be, .dtype = dtype}, check_all, err);
}

kg_status kg_selfcheck_definition(const struct kg_backend *be, enum kg_dtype dtype,
                                  struct kg_err *err)
{
    return with_operands(&(struct check){.be = be, .dtype = dtype}, check_definition,
                         err);
}

kg_status kg_selfcheck_values_to(const struct kg_backend *be, enum kg_dtype dtype,
                                 int64_t most, struct kg_err *err)
{
    return with_operands(
        &(struct check){.be = be, .dtype = dtype, .most = most, .results = NEAR_RESULT},
        check_values, err);
}

kg_status kg_selfcheck_values(const struct kg_backend *be, enum kg_dtype dtype,
                              struct kg_err *err)
{
    return kg_selfcheck_values_to(be, dtype, INT64_MAX, err);
}

kg_status kg_selfcheck_digest(uint64_t *digest, const struct kg_backend *be,
                              enum kg_dtype dtype, struct kg_err *err)
{
    return with_operands(&(struct check){.be = be, .dtype = dtype, .digest = digest},
                         digest_all, err);
}
