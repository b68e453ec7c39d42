/* Products with vectors in few bits per number: the bits of a product with the same
 * numbers in fp32, for any number of queries and threads and on every instruction set;
 * and what is refused.
 */
#include "tensor/codes.h"

#include "base/half.h"
#include "tensor/matrix_testing.h"
#include "tensor/selfcheck.h"

#include <omp.h>

static struct kg_err err;

static void must(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

enum { QUERIES = 67 };
struct scan_case {
    struct kg_codes codes;
    struct kg_mat wide; /* the same numbers in fp32 */
    struct kg_mat queries;
    struct kg_mat want, got; /* (QUERIES, rows) */
};

/* fp16 with subnormals and both zeros; int8 of every size. */
static void fill(struct scan_case *s)
{
    uint16_t *halves = block_of(s->codes.cols, sizeof *halves);
    int8_t *bytes = block_of(s->codes.cols, sizeof *bytes);

    for (int64_t r = 0; r < s->codes.rows; r++) {
        for (int64_t d = 0; d < s->codes.cols; d++) {
            const int e = (int)((r + d * 7) % 29);
            const double x = ldexp(uniform(), -e);

            halves[d] = kg_half_of((float)x);
            bytes[d] = (int8_t)(uniform() * 127.9);
            set(s->wide, r, d,
                s->codes.code == KG_CODE_F16 ? (double)kg_half_float(halves[d])
                                             : (double)bytes[d]);
        }
        kg_codes_put(&s->codes, r,
                     s->codes.code == KG_CODE_F16 ? (void *)halves : (void *)bytes);
    }
    kg_mem_free(halves);
    kg_mem_free(bytes);
}

static struct kg_mat padded(int64_t rows, int64_t cols)
{
    struct kg_mat m = matrix(KG_F32, rows, (cols + KG_PANEL - 1) / KG_PANEL * KG_PANEL);

    m.cols = cols;
    return m;
}

static void open_case(struct scan_case *s, enum kg_code code, int64_t rows, int64_t cols)
{
    s->codes = (struct kg_codes){buffer_of(1, kg_codes_bytes(code, rows, cols)), code,
                                 rows, cols};
    s->wide = matrix(KG_F32, rows, cols);
    s->queries = random_matrix(KG_F32, QUERIES, cols, 1);
    s->want = padded(QUERIES, rows);
    s->got = padded(QUERIES, rows);
    fill(s);
    must(
        kg_op_matmul(backend(), s->want, s->queries, s->wide, KG_MATMUL_NT, false, &err));
}

static void close_case(struct scan_case *s)
{
    buffer_free(s->codes.data);
    buffer_free(s->wide.data);
    buffer_free(s->queries.data);
    buffer_free(s->want.data);
    buffer_free(s->got.data);
}

static void check_queries(const struct scan_case *s, const struct kg_backend *be,
                          int64_t first, int64_t n)
{
    struct kg_mat got = kg_mat_rows(s->got, first, n);

    memset(s->got.data, 0xff, (size_t)(QUERIES * s->got.stride) * sizeof(float));
    must(kg_op_scan(be, got, kg_mat_rows(s->queries, first, n), &s->codes, &err));
    for (int64_t q = first; q < first + n; q++)
        assert_memory_equal((float *)s->got.data + q * s->got.stride,
                            (float *)s->want.data + q * s->want.stride,
                            (size_t)s->codes.rows * sizeof(float));
}

static void check_case(enum kg_code code, int64_t rows, int64_t cols)
{
    static const int64_t counts[] = {1, 2, 3, 5, 8, 17, QUERIES};
    const int threads = omp_get_max_threads();
    struct scan_case s;

    open_case(&s, code, rows, cols);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int t = 1; t <= 3; t += 2) {
            omp_set_num_threads(t);
            check_queries(&s, backend(), QUERIES - counts[i], counts[i]);
        }
    omp_set_num_threads(threads);
    for (int i = 0; kg_backend_cpu_variant(i); i++) {
        check_queries(&s, kg_backend_cpu_variant(i), 0, 1);
        check_queries(&s, kg_backend_cpu_variant(i), 0, QUERIES);
    }
    close_case(&s);
}

static void a_product_has_the_bits_of_fp32(void **state)
{
    (void)state;
    random_state = 3;
    for (int code = 0; code < KG_CODES; code++) {
        check_case((enum kg_code)code, 1, 1);
        check_case((enum kg_code)code, 16, 33);
        check_case((enum kg_code)code, 203, 64);
        check_case((enum kg_code)code, 50, 1100); /* more than a chunk */
    }
}

static void a_part_is_those_rows(void **state)
{
    struct scan_case s;
    struct kg_codes part;
    struct kg_mat got = padded(1, 20);

    (void)state;
    random_state = 8;
    open_case(&s, KG_CODE_I8, 100, 24);
    part = kg_codes_rows(&s.codes, 48, 20);
    must(kg_op_scan(backend(), got, kg_mat_rows(s.queries, 2, 1), &part, &err));
    assert_memory_equal(got.data, (float *)s.want.data + 2 * s.want.stride + 48,
                        20 * sizeof(float));
    buffer_free(got.data);
    close_case(&s);
}

static void refuses(struct kg_mat c, struct kg_mat a, const struct kg_codes *m,
                    kg_status status, const char *part)
{
    assert_int_equal(kg_op_scan(backend(), c, a, m, &err), status);
    if (!strstr(err.message, part))
        fail_msg("expected \"%s\" in \"%s\"", part, err.message);
}

static void what_does_not_fit_is_refused(void **state)
{
    static float x[16 * 16];
    static uint16_t h[16 * 4];
    const struct kg_codes m = {h, KG_CODE_F16, 16, 4}, none = {NULL, KG_CODE_F16, 16, 4};
    const struct kg_mat a = kg_mat(x, KG_F32, 2, 4);
    struct kg_mat narrow = kg_mat(x, KG_F32, 2, 16);

    (void)state;
    narrow.stride = 17;
    refuses(kg_mat(x, KG_F32, 2, 16), kg_mat(x, KG_F32, 2, 5), &m, KG_ESHAPE,
            "scan: a has 5 columns, expected 4");
    refuses(kg_mat(x, KG_F32, 2, 15), a, &m, KG_ESHAPE, "scan: c is 2 x 15, expected");
    refuses(narrow, a, &m, KG_ESHAPE, "a row stride of 17 elements, expected a multiple");
    refuses(kg_mat(x, KG_F32, 2, 16), a, &none, KG_EINVAL, "has no data");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_has_the_bits_of_fp32),
        cmocka_unit_test(a_part_is_those_rows),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };

    const int failed = RUN_FAR_TOO(tests, NULL, NULL);

    return failed + RUN_EMULATED(tests, NULL, NULL);
}
