/* fp32 products of our own, for machines on which the library does not keep the bits of a
 * row.
 *
 * On processors without AVX-512 the library's sums depend on where a row stands in its
 * tiles (measured with oneDNN 2.6.3). Exactness comes before speed: there y = x W^T and
 * dx = dy W are made here, where an element is one chain of FMAs along K in chunks of
 * 512, whatever stands beside it. Sums over tokens stay with the library: their cut
 * follows the shapes alone.
 *
 * Which of the two a machine needs is found once, by comparing bits.
 */
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/parallel_internal.h"

#include <pthread.h>

enum { CHUNK = 512, BLOCK_ROWS = 256, GROUP_ROWS = 6 };

struct job {
    struct kg_mat c;
    struct kg_mat a;
    struct kg_mat b;
    bool transposed; /* b is (N,K) */
    bool accumulate;
};

/* panel[k][lane] = op(B)[k0+k, n0+lane]; missing lanes are left as they are and never
 * stored. */
static void pack_panel(float *panel, const struct job *j, int64_t k0, int64_t k1,
                       int64_t n0, int lanes)
{
    for (int64_t k = k0; k < k1; k++)
        for (int i = 0; i < lanes; i++)
            panel[(k - k0) * KG_LANES + i] = j->transposed ? kg_cpu_f32(j->b, n0 + i)[k]
                                                           : kg_cpu_f32(j->b, k)[n0 + i];
}

/* R rows from row m of one panel; R is a constant where this is inlined. */
static inline __attribute__((always_inline)) void
rows_times_panel(const struct job *j, const float *panel, int64_t k0, int64_t k1,
                 int64_t m, int64_t n0, int R)
{
    struct kg_v16 acc[GROUP_ROWS];
    const float *a[GROUP_ROWS];
    int lanes = kg_cpu_lanes(j->c.cols - n0);
    for (int r = 0; r < R; r++) {
        acc[r] = kg_v16_zero();
        a[r] = kg_cpu_f32(j->a, m + r);
    }
    for (int64_t k = k0; k < k1; k++) {
        struct kg_v16 b = kg_v16_load(panel + (k - k0) * KG_LANES);
        for (int r = 0; r < R; r++)
            acc[r] = kg_v16_fma(kg_v16_set1(a[r][k]), b, acc[r]);
    }
    for (int r = 0; r < R; r++) {
        float *c = kg_cpu_f32(j->c, m + r) + n0;
        if (j->accumulate || k0 > 0)
            acc[r] = kg_v16_add(kg_v16_load_n(c, lanes), acc[r]);
        kg_v16_store_n(c, acc[r], lanes);
    }
}

static kg_status block(const struct job *j, int64_t m0, int64_t n0, struct kg_err *err)
{
    float *panel = kg_cpu_scratch(KG_CPU_SCRATCH_B, sizeof(float) * CHUNK * KG_LANES,
                                  err);
    if (!panel)
        return err->code;
    int64_t K = j->a.cols;
    int64_t m1 = m0 + BLOCK_ROWS < j->c.rows ? m0 + BLOCK_ROWS : j->c.rows;
    for (int64_t k0 = 0; k0 < K; k0 += CHUNK) {
        int64_t k1 = k0 + CHUNK < K ? k0 + CHUNK : K;
        int64_t m = m0;
        pack_panel(panel, j, k0, k1, n0, kg_cpu_lanes(j->c.cols - n0));
        for (; m + GROUP_ROWS <= m1; m += GROUP_ROWS)
            rows_times_panel(j, panel, k0, k1, m, n0, GROUP_ROWS);
        for (; m < m1; m++)
            rows_times_panel(j, panel, k0, k1, m, n0, 1);
    }
    return KG_OK;
}

kg_status kg_cpu_matmul_plain(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                              enum kg_matmul_kind kind, bool accumulate,
                              struct kg_err *err)
{
    struct job j = {c, a, b, kind == KG_MATMUL_NT, accumulate};
    int64_t col_blocks = (c.cols + KG_LANES - 1) / KG_LANES;
    int64_t blocks = col_blocks * ((c.rows + BLOCK_ROWS - 1) / BLOCK_ROWS);
    kg_status status = KG_OK;
#pragma omp parallel for schedule(                                                       \
    dynamic) if (kg_cpu_use_threads(c.rows * c.cols * a.cols / 8))
    for (int64_t i = 0; i < blocks; i++) {
        struct kg_err mine;
        if (block(&j, i / col_blocks * BLOCK_ROWS, i % col_blocks * KG_LANES, &mine) !=
            KG_OK)
            kg_cpu_report(&status, err, &mine);
    }
    return status;
}

/* ---- which one does this machine need ---- */
enum { TRIAL_M = 40, TRIAL_N = 48, TRIAL_K = 600 };

static pthread_once_t asked = PTHREAD_ONCE_INIT;
static bool keeps_rows;

static kg_status trial_product(float *c, int64_t m, int64_t n, int64_t k, const float *x,
                               enum kg_matmul_kind kind, struct kg_err *err)
{
    struct kg_cpu_product p = {.kind = kind,
                               .in = KG_F32,
                               .out = KG_F32,
                               .m = m,
                               .n = n,
                               .k = k,
                               .a = x,
                               .b = x + TRIAL_M * TRIAL_K,
                               .c = c};
    return kg_cpu_library_product(&p, err);
}

/* Products of 1..m rows against the rows of the whole; of NT also with fewer columns. */
static bool trial_keeps(const float *x, int64_t k, enum kg_matmul_kind kind)
{
    static const int64_t rows[] = {1, 2, 3, 7, 8, 9, 16, 17, 32};
    static const int64_t cols[] = {1, 7, 16, 24, 32};
    float want[TRIAL_M * TRIAL_N];
    float got[TRIAL_M * TRIAL_N];
    struct kg_err err;
    if (trial_product(want, TRIAL_M, TRIAL_N, k, x, kind, &err) != KG_OK)
        return false;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (trial_product(got, rows[i], TRIAL_N, k, x, kind, &err) != KG_OK ||
            memcmp(got, want, (size_t)(rows[i] * TRIAL_N) * sizeof *got) != 0)
            return false;
    if (kind != KG_MATMUL_NT)
        return true;
    for (size_t i = 0; i < sizeof cols / sizeof cols[0]; i++) {
        if (trial_product(got, TRIAL_M, cols[i], k, x, kind, &err) != KG_OK)
            return false;
        for (int64_t r = 0; r < TRIAL_M; r++)
            if (memcmp(got + r * cols[i], want + r * TRIAL_N,
                       (size_t)cols[i] * sizeof *got) != 0)
                return false;
    }
    return true;
}

static void ask(void)
{
    struct kg_err err;
    int64_t n = (TRIAL_M + TRIAL_N) * TRIAL_K;
    float *x = kg_cpu_scratch(KG_CPU_SCRATCH_A, (size_t)n * sizeof *x, &err);
    if (!x)
        return;
    uint32_t seed = 1;
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * 0x1p-31f;
    }
    keeps_rows = trial_keeps(x, 33, KG_MATMUL_NT) &&
                 trial_keeps(x, TRIAL_K, KG_MATMUL_NT) &&
                 trial_keeps(x, 33, KG_MATMUL_NN) &&
                 trial_keeps(x, TRIAL_K, KG_MATMUL_NN);
}

bool kg_cpu_library_keeps_rows(void)
{
    pthread_once(&asked, ask);
    return keeps_rows;
}
