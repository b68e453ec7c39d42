/* Products of few rows by a bf16 weight matrix: y = x W^T for 1..16 rows, the step of
 * decoding.
 *
 * A measured reason to have it: the library first copies W into its own layout, so one
 * row runs at a third of the memory's speed. Here W is read once, sixteen rows at a time,
 * and turned in registers so that the lanes are output columns; then each row of x is one
 * chain of dot instructions.
 *
 * The idea that keeps promise 1: it returns the library's bits. The library sums over K
 * in chunks, each a chain of bf16 pairs from zero, added in order. The length of a chunk
 * is found by experiment at the first use of a K; where no candidate gives the library's
 * bits the kernel is not used, and kg_cpu_small_counts says so.
 */
#include "tensor/cpu/cpu_internal.h"

#include <pthread.h>

enum { PAIRS = 16, GROUP = 2 * PAIRS }; /* elements of K in one 16 x 16 block of pairs */

/* ---- the kernel ---- */

/* acc[r] += the group's pairs in order, for R rows at once so that their chains overlap.
 * R is a constant where this is inlined. */
static inline __attribute__((always_inline)) void
rows_dot(struct kg_v16 *acc, const struct kg_pairs w[PAIRS], const uint16_t *x,
         int64_t stride, int pairs, int R)
{
    struct kg_v16 sum[8];
    for (int r = 0; r < R; r++)
        sum[r] = acc[r];
    for (int j = 0; j < pairs; j++)
        for (int r = 0; r < R; r++) {
            uint32_t pair;
            memcpy(&pair, x + r * stride + 2 * j, sizeof pair);
            sum[r] = kg_v16_dot_bf16(sum[r], w[j], kg_pairs_set1(pair));
        }
    for (int r = 0; r < R; r++)
        acc[r] = sum[r];
}

static inline __attribute__((always_inline)) void
group_dot(struct kg_v16 *acc, const struct kg_pairs w[PAIRS], const uint16_t *x,
          int64_t stride, int pairs, int M)
{
    for (; M >= 8; M -= 8, acc += 8, x += 8 * stride)
        rows_dot(acc, w, x, stride, pairs, 8);
    if (M & 4) {
        rows_dot(acc, w, x, stride, pairs, 4);
        acc += 4, x += 4 * stride;
    }
    if (M & 2) {
        rows_dot(acc, w, x, stride, pairs, 2);
        acc += 2, x += 2 * stride;
    }
    if (M & 1)
        rows_dot(acc, w, x, stride, pairs, 1);
}

/* x with rows padded by zeros to whole groups, and W: what one block of columns needs. */
struct small {
    struct kg_mat c;
    struct kg_mat w; /* (N,K) bf16 */
    const uint16_t *x;
    int64_t x_stride;
    int M;
    int64_t K;
    int64_t chunk; /* a multiple of GROUP, or >= K */
    bool accumulate;
};

/* Sixteen rows of W from column k; rows beyond `rows` and columns beyond `n` read as
 * zero. `ahead` elements further stands what the next block will want. */
static inline void load_group(struct kg_pairs w[PAIRS], const uint16_t *p, int64_t stride,
                              int rows, int n, int64_t ahead)
{
    if (rows == PAIRS && n == GROUP) {
        for (int i = 0; i < PAIRS; i++) {
            __builtin_prefetch(p + i * stride + ahead, 0, 2);
            w[i] = kg_pairs_load(p + i * stride);
        }
    } else {
        for (int i = 0; i < PAIRS; i++)
            w[i] = i < rows ? kg_pairs_load_n(p + i * stride, n) : kg_pairs_set1(0);
    }
    kg_pairs_transpose(w);
}

/* sum (=|+=) acc, acc = 0: the end of a chunk */
static inline void close_chunk(struct kg_v16 *sum, struct kg_v16 *acc, int M, bool first)
{
    for (int r = 0; r < M; r++) {
        sum[r] = first ? acc[r] : kg_v16_add(sum[r], acc[r]);
        acc[r] = kg_v16_zero();
    }
}

/* What c holds already is added last, to the whole sum. */
static void store_sums(const struct small *s, struct kg_v16 *sum, int64_t n0, int lanes)
{
    for (int r = 0; r < s->M; r++) {
        if (s->c.dtype == KG_BF16) {
            kg_v16_store_bf16_machine_n(kg_cpu_bf16(s->c, r) + n0, sum[r], lanes);
            continue;
        }
        float *c = kg_cpu_f32(s->c, r) + n0;
        if (s->accumulate)
            sum[r] = kg_v16_add(sum[r], kg_v16_load_n(c, lanes));
        kg_v16_store_n(c, sum[r], lanes);
    }
}

static void column_block(const struct small *s, int64_t n0)
{
    int rows = kg_cpu_lanes(s->w.rows - n0);
    int64_t ahead = n0 + 2 * PAIRS <= s->w.rows ? PAIRS * s->w.stride : 0;
    const uint16_t *w0 = kg_cpu_bf16(s->w, n0);
    struct kg_v16 sum[KG_CPU_SMALL_ROWS];
    struct kg_v16 acc[KG_CPU_SMALL_ROWS];
    for (int r = 0; r < s->M; r++)
        acc[r] = kg_v16_zero();
    for (int64_t k0 = 0; k0 < s->K; k0 += s->chunk) {
        int64_t end = k0 + s->chunk < s->K ? k0 + s->chunk : s->K;
        for (int64_t k = k0; k < end; k += GROUP) {
            struct kg_pairs w[PAIRS];
            int n = end - k < GROUP ? (int)(end - k) : GROUP;
            load_group(w, w0 + k, s->w.stride, rows, n, ahead);
            if (n == GROUP)
                group_dot(acc, w, s->x + k, s->x_stride, PAIRS, s->M);
            else
                group_dot(acc, w, s->x + k, s->x_stride, (n + 1) / 2, s->M);
        }
        close_chunk(sum, acc, s->M, k0 == 0);
    }
    store_sums(s, sum, n0, rows);
}

/* Rows of x are read in whole pairs; an odd K needs a zero behind each row. */
static kg_status pad_rows(struct small *s, struct kg_mat a, struct kg_err *err)
{
    s->x = a.data;
    s->x_stride = a.stride;
    if (a.cols % 2 == 0)
        return KG_OK;
    s->x_stride = a.cols + 1;
    size_t bytes = (size_t)(a.rows * s->x_stride) * sizeof(uint16_t);
    uint16_t *x = kg_cpu_scratch(KG_CPU_SCRATCH_SMALL, bytes, err);
    if (!x)
        return err->code;
    memset(x, 0, bytes);
    for (int64_t r = 0; r < a.rows; r++)
        memcpy(x + r * s->x_stride, kg_cpu_bf16(a, r), (size_t)a.cols * sizeof(uint16_t));
    s->x = x;
    return KG_OK;
}

kg_status kg_cpu_matmul_small(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                              int64_t chunk, bool accumulate, struct kg_err *err)
{
    struct small s = {.c = c,
                      .w = b,
                      .M = (int)a.rows,
                      .K = a.cols,
                      .chunk = chunk,
                      .accumulate = accumulate};
    KG_TRY(pad_rows(&s, a, err));
    int64_t blocks = (b.rows + PAIRS - 1) / PAIRS;
    bool threads = kg_cpu_use_threads(b.rows * b.cols / 8);
    /* Some blocks a time: neighbours in memory, and seldom a new grab; the bits know
     * nothing of it. */
    int64_t grab = blocks / (8 * (int64_t)omp_get_max_threads()) + 1;
#pragma omp parallel for schedule(dynamic, grab) if (threads)
    for (int64_t i = 0; i < blocks; i++)
        column_block(&s, i * PAIRS);
    return KG_OK;
}

/* ---- what the library does with this K ---- */
enum { MAX_KNOWN = 256, TRIAL_ROWS = 5, TRIAL_COLS = 80 };

static struct {
    int64_t k;
    bool accumulate;
    int64_t chunk;
} known[MAX_KNOWN];
static int n_known; /* written last, under the lock; read without it */
static int n_refused;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

/* bf16 between 2^-4 and 2^2 of either sign: sums whose order shows in the last bits. */
static void fill_random(uint16_t *x, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t exponent = 123 + (seed >> 28) % 6;
        x[i] = (uint16_t)((seed >> 9 & 0x8000u) | exponent << 7 | (seed >> 16 & 0x7fu));
    }
}

/* One product to learn from, and the library's result of it. */
struct trial {
    struct kg_mat a;
    struct kg_mat b;
    enum kg_dtype out;
    bool accumulate;
    uint32_t want[TRIAL_ROWS * TRIAL_COLS];
};

static size_t trial_bytes(const struct trial *t)
{
    return kg_dtype_traits(t->out)->bytes * (size_t)(t->a.rows * t->b.rows);
}

/* What c holds before an accumulating product: numbers of the size of its sums. */
static void trial_start(uint32_t *c, const struct trial *t)
{
    uint32_t seed = 7;
    for (int64_t i = 0; t->accumulate && i < t->a.rows * t->b.rows; i++) {
        seed = seed * 1664525u + 1013904223u;
        float x = (float)(int32_t)seed * 0x1p-24f;
        memcpy(c + i, &x, sizeof x);
    }
}

static kg_status trial_init(struct trial *t, struct kg_err *err)
{
    struct kg_cpu_product p = {.kind = KG_MATMUL_NT,
                               .in = KG_BF16,
                               .out = t->out,
                               .accumulate = t->accumulate,
                               .m = t->a.rows,
                               .n = t->b.rows,
                               .k = t->a.cols,
                               .a = t->a.data,
                               .b = t->b.data,
                               .c = t->want};
    trial_start(t->want, t);
    return kg_cpu_library_product(&p, err);
}

/* Whether the kernel with this chunk gives the library's bits. */
static bool chunk_fits(int64_t chunk, const struct trial *t)
{
    uint32_t got[TRIAL_ROWS * TRIAL_COLS];
    struct kg_mat c = kg_mat(got, t->out, t->a.rows, t->b.rows);
    struct kg_err err;
    trial_start(got, t);
    return kg_cpu_matmul_small(c, t->a, t->b, chunk, t->accumulate, &err) == KG_OK &&
           memcmp(got, t->want, trial_bytes(t)) == 0;
}

static int64_t calibrate(int64_t k, bool accumulate)
{
    int64_t candidates[] = {
        (k + GROUP - 1) / GROUP * GROUP, 512, 1024, 256, 2048, 128, 384, 768, 640, 4096};
    int n = (int)(sizeof candidates / sizeof candidates[0]);
    static const struct {
        int64_t m;
        int64_t n;
        enum kg_dtype out;
    } shapes[] = {{1, TRIAL_COLS, KG_F32},
                  {TRIAL_ROWS, 48, KG_F32},
                  {TRIAL_ROWS, TRIAL_COLS, KG_BF16}};
    int n_shapes = accumulate ? 2 : 3; /* only fp32 is added to */
    struct kg_err err;
    size_t row_bytes = (size_t)k * sizeof(uint16_t);
    uint16_t *x = kg_cpu_scratch(KG_CPU_SCRATCH_A, (TRIAL_ROWS + TRIAL_COLS) * row_bytes,
                                 &err);
    if (!x)
        return 0;
    fill_random(x, (TRIAL_ROWS + TRIAL_COLS) * k, 1);
    for (int i = 0; i < n_shapes; i++) {
        struct trial t = {.a = kg_mat(x, KG_BF16, shapes[i].m, k),
                          .b = kg_mat(x + TRIAL_ROWS * k, KG_BF16, shapes[i].n, k),
                          .out = shapes[i].out,
                          .accumulate = accumulate};
        if (trial_init(&t, &err) != KG_OK)
            return 0;
        for (int j = 0; j < n; j++) /* those that are no candidates become 0 */
            if (candidates[j] &&
                ((j > 0 && candidates[j] >= k) || !chunk_fits(candidates[j], &t)))
                candidates[j] = 0;
    }
    for (int j = 0; j < n; j++)
        if (candidates[j])
            return candidates[j];
    return 0;
}

static bool find_known(int64_t *chunk, int64_t k, bool accumulate)
{
    int n = __atomic_load_n(&n_known, __ATOMIC_ACQUIRE);
    for (int i = 0; i < n; i++)
        if (known[i].k == k && known[i].accumulate == accumulate) {
            *chunk = known[i].chunk;
            return true;
        }
    return false;
}

int64_t kg_cpu_small_chunk(int64_t k, bool accumulate)
{
    int64_t chunk = 0;
    if (!kg_simd_has_bf16_dot() || find_known(&chunk, k, accumulate))
        return chunk;
    pthread_mutex_lock(&known_lock);
    if (!find_known(&chunk, k, accumulate) && n_known < MAX_KNOWN) {
        chunk = calibrate(k, accumulate);
        n_refused += chunk == 0;
        known[n_known].k = k;
        known[n_known].accumulate = accumulate;
        known[n_known].chunk = chunk;
        __atomic_store_n(&n_known, n_known + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&known_lock);
    return chunk;
}

void kg_cpu_small_counts(int *n, int *refused)
{
    pthread_mutex_lock(&known_lock);
    *n = n_known;
    *refused = n_refused;
    pthread_mutex_unlock(&known_lock);
}
