/* The promises on a machine without AVX-512, as far as it can be played on a larger one:
 * the library is held to AVX2 before its first use, and the smaller tables of the backend
 * are run.
 */
#include "base/mem.h"
#include "tensor/selfcheck.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct kg_err err;

static void rows_of_fp32_products_keep_their_bits(void **state)
{
    (void)state;
    char text[256];
    for (int i = 0; kg_backend_cpu_variant(i); i++) {
        const struct kg_backend *be = kg_backend_cpu_variant(i);
        if (kg_selfcheck_rows(be, KG_F32, &err) != KG_OK) {
            be->describe(text, sizeof text);
            fail_msg("%s: %s", text, err.message);
        }
    }
}

static void products_are_right(void **state)
{
    (void)state;
    enum { M = 29, N = 53, K = 1100 };
    static float a[M * K], b[N * K], c[M * N];
    for (int i = 0; i < N * K; i++) {
        b[i] = (float)sin(i * 0.7);
        if (i < M * K)
            a[i] = (float)cos(i * 0.3);
    }
    for (int kind = KG_MATMUL_NT; kind <= KG_MATMUL_NN; kind++) {
        bool nt = kind == KG_MATMUL_NT;
        assert_int_equal(
            kg_op_matmul(kg_backend_cpu(), kg_mat(c, KG_F32, M, N),
                         kg_mat(a, KG_F32, M, K),
                         nt ? kg_mat(b, KG_F32, N, K) : kg_mat(b, KG_F32, K, N),
                         (enum kg_matmul_kind)kind, false, &err),
            KG_OK);
        for (int i = 0; i < M * N; i++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += (double)a[i / N * K + k] *
                       (double)b[nt ? i % N * K + k : k * N + i % N];
            assert_true(fabs(sum - (double)c[i]) < 1e-4);
        }
    }
}

int main(void)
{
    setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
    setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_fp32_products_keep_their_bits),
        cmocka_unit_test(products_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
