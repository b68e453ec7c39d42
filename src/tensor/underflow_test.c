/* Sums of bf16 products near the smallest normal number, 2^-126: a smaller factor or
 * result is zero, and a result is tested after rounding to 24 bits, as if exponents were
 * unlimited. The expected values are computed by hand from the definition in backend.h. A
 * processor that tests before rounding, or rounds to subnormals first, gives others. */
#include "tensor/matrix_testing.h"
#include "tensor/selfcheck.h"

#include <string.h>

static struct kg_err err;

/* a b at place k of the row: places of one parity below 32 are one chain. */
struct term {
    int k;
    double a, b;
};
struct sum {
    struct term terms[3];
    double want;
};

enum { K = 96, SUMS = 22 };
static const struct sum sums[SUMS] = {
    {{{0, 0x1p-63, 0x1p-63}, {2, -0x1p-120, 0x1p-100}}, 0x1p-126},
    {{{0, -0x1p-63, 0x1p-63}, {2, 0x1p-120, 0x1p-100}}, -0x1p-126},
    {{{1, 0x1p-63, 0x1p-63}, {3, -0x1p-120, 0x1p-100}}, 0x1p-126},
    {{{0, 0x1p-63, 0x1p-63}, {2, -0x1p-76, 0x1p-75}}, 0x1p-126}, /* a tie, to even */
    {{{0, 0x1p-63, 0x1p-63}, {2, -0x1.02p-76, 0x1p-75}}, 0},
    {{{0, 0x1p-63, 0x1p-63}, {2, -0x1.8p-76, 0x1p-75}}, 0},
    {{{0, -0x1p-63, 0x1p-63}, {2, 0x1.8p-76, 0x1p-75}}, 0},
    {{{0, 0x1p-63, 0x1p-63}, {2, -0x1p-75, 0x1p-75}}, 0},
    {{{31, 0x1p-63, 0x1p-63}, {29, -0x1p-75, 0x1p-75}}, 0x1p-126}, /* 29 is first */
    {{{0, 0x1p-63, 0x1p-63}, {2, -0x1p-75, 0x1p-74}}, 0},
    {{{0, 0x1p-63, 0x1p-63}, {2, 0x1p-76, 0x1p-75}}, 0x1p-126},
    {{{0, 0x1p-63, 0x1p-63}, {2, 0x1.8p-75, 0x1p-74}}, 0x1.000004p-126},
    {{{0, 0x1.02p-63, 0x1p-63}, {2, -0x1p-63, 0x1p-63}}, 0},
    {{{0, 0x1p-64, 0x1p-63}}, 0},
    {{{0, 0x1.fep-64, 0x1.fep-64}}, 0},
    {{{0, 0x1p-130, 0x1p100}}, 0}, /* a factor that counts as zero */
    {{{0, 0x1p-64, 0x1p-63}, {2, 0x1p-64, 0x1p-63}}, 0},
    {{{0, 0x1p-64, 0x1p-63}, {2, 0x1p-63, 0x1p-63}}, 0x1p-126},
    {{{0, 0x1p-63, 0x1p-63}, {2, -0x1p-120, 0x1p-100}, {4, 0x1p-63, 0x1p-63}}, 0x1p-125},
    {{{0, 0x1p-63, 0x1p-63}, {2, -0x1.8p-76, 0x1p-75}, {4, 0x1p-63, 0x1p-63}}, 0x1p-126},
    {{{0, 0x1.02p-63, 0x1p-63}, {1, -0x1p-63, 0x1p-63}}, 0},  /* even + odd */
    {{{0, 0x1.02p-63, 0x1p-63}, {32, -0x1p-63, 0x1p-63}}, 0}, /* of two blocks */
};

/* Row i of a and of b: the factors of sum i, which is element (i, i). */
static void small_results_are_zero_after_rounding(void **state)
{
    float c[SUMS][SUMS], first[SUMS][SUMS];

    (void)state;
    for (int v = 0; kg_backend_cpu_variant(v); v++) {
        struct kg_mat a = matrix(KG_BF16, SUMS, K), b = matrix(KG_BF16, SUMS, K);
        for (int i = 0; i < SUMS; i++)
            for (int t = 0; t < 3; t++) {
                const struct term *f = &sums[i].terms[t];
                if (f->a == 0)
                    continue;
                set(a, i, f->k, f->a);
                set(b, i, f->k, f->b);
            }
        for (int rows = 1; rows <= SUMS; rows++) {
            struct kg_mat top = kg_mat_rows(a, 0, rows);
            if (kg_op_matmul(kg_backend_cpu_variant(v), kg_mat(c, KG_F32, rows, SUMS),
                             top, b, KG_MATMUL_NT, false, &err) != KG_OK)
                fail_msg("%s", err.message);
            for (int i = 0; i < rows; i++)
                if ((double)c[i][i] != sums[i].want)
                    fail_msg("variant %d, sum %d of %d: expected %a, found %a", v, i,
                             rows, sums[i].want, (double)c[i][i]);
        }
        if (v == 0)
            memcpy(first, c, sizeof c);
        assert_memory_equal(c, first, sizeof c);
        buffer_free(a.data);
        buffer_free(b.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_results_are_zero_after_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
