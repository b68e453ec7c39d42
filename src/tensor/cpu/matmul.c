/* Matrix products: how a product is cut into blocks, and which kernel makes a block.
 *
 * The library (matmul_onednn.c) makes single-threaded products of dense blocks. Here the
 * output is cut into blocks that threads take as they come free, so that a busy neighbour
 * costs its share and not a stalled barrier; operands that are not dense are packed
 * first.
 *
 * The ideas: (1) for y = x W^T and dx = dy W the chain along K is the same for every
 * block, so the cut may follow the number of threads; rows beyond a multiple of 16 are
 * made apart, so that few shapes occur and primitives are found in the cache. (2) For dW
 * = dy^T x the cut follows the shapes alone, and the sum over tokens runs in one fixed
 * order within each block.
 */
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/parallel_internal.h"

enum {
    ROW_STEP = 16,    /* rows of a block are a multiple of this, but for short matrices */
    EXACT_ROWS = 64,  /* at most so many rows are one block of exactly that many */
    BLOCK_ROWS = 256, /* rows of a block where there are plenty */
    COL_STEP = 64,    /* columns of a block are a multiple of this */
    TOKEN_STEP = 64,  /* tokens beyond a multiple of this are padded with zeros */
    TOKEN_PIECE = 4096 /* longest sum over tokens in one library call */
};

struct job {
    struct kg_mat c;
    struct kg_mat a;
    struct kg_mat b;
    enum kg_matmul_kind kind;
    bool accumulate;
    int64_t M;
    int64_t N;
    int64_t K;
    int64_t block_rows;
    int64_t block_cols;
    int64_t body_rows;   /* cut into blocks; the rest is one padded block */
    int64_t small_chunk; /* of kg_cpu_small_chunk; 0: leave few rows to the library */
};

static int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }
static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
static int64_t min64(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t max64(int64_t x, int64_t y) { return x > y ? x : y; }

/* Rows [r0,r0+rows) x columns [c0,c0+cols) of m. */
static struct kg_mat view(struct kg_mat m, int64_t r0, int64_t rows, int64_t c0,
                          int64_t cols)
{
    size_t bytes = kg_dtype_traits(m.dtype)->bytes;
    char *p = (char *)m.data + (size_t)(r0 * m.stride + c0) * bytes;
    return (struct kg_mat){p, m.dtype, rows, cols, m.stride};
}

static bool dense(struct kg_mat m) { return m.stride == m.cols || m.rows == 1; }

static void copy_rows(struct kg_mat dst, struct kg_mat src)
{
    size_t bytes = kg_dtype_traits(src.dtype)->bytes;
    for (int64_t r = 0; r < src.rows; r++)
        memcpy((char *)dst.data + (size_t)(r * dst.stride) * bytes,
               (char *)src.data + (size_t)(r * src.stride) * bytes,
               (size_t)src.cols * bytes);
}

/* A dense matrix of `rows` >= m->rows rows with m's content, zero below: m itself where
 * it is that already, else a copy in the thread's scratch (content only if `fill`). */
static kg_status make_dense(struct kg_mat *m, int64_t rows, bool fill,
                            enum kg_cpu_scratch_use use, struct kg_err *err)
{
    if (dense(*m) && m->rows == rows)
        return KG_OK;
    size_t row_bytes = (size_t)m->cols * kg_dtype_traits(m->dtype)->bytes;
    void *block = kg_cpu_scratch(use, (size_t)rows * row_bytes + 64, err);
    if (!block)
        return err->code;
    struct kg_mat d = kg_mat(block, m->dtype, rows, m->cols);
    if (fill)
        copy_rows(d, *m);
    memset((char *)block + (size_t)m->rows * row_bytes, 0,
           (size_t)(rows - m->rows) * row_bytes);
    *m = d;
    return KG_OK;
}

/* c (=|+=) a b for views of any stride, c padded to `c_rows` rows and the inner dimension
 * of TN to `tokens`. */
static kg_status block_product(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                               enum kg_matmul_kind kind, bool accumulate,
                               int64_t pad_rows, struct kg_err *err)
{
    struct kg_mat out = c;
    bool tn = kind == KG_MATMUL_TN;
    KG_TRY(make_dense(&a, pad_rows, true, KG_CPU_SCRATCH_A, err));
    KG_TRY(make_dense(&b, tn ? pad_rows : b.rows, true, KG_CPU_SCRATCH_B, err));
    KG_TRY(make_dense(&out, tn ? c.rows : pad_rows, accumulate, KG_CPU_SCRATCH_C, err));
    struct kg_cpu_product p = {.kind = kind,
                               .in = a.dtype,
                               .out = c.dtype,
                               .accumulate = accumulate,
                               .m = out.rows,
                               .n = out.cols,
                               .k = tn ? a.rows : a.cols,
                               .a = a.data,
                               .b = b.data,
                               .c = out.data};
    KG_TRY(kg_cpu_library_product(&p, err));
    if (out.data != c.data)
        copy_rows(c, view(out, 0, c.rows, 0, c.cols));
    return KG_OK;
}

/* ---- y = x W^T and dx = dy W: blocks of rows and columns ---- */
static kg_status rows_block(const struct job *j, int64_t r0, int64_t rows, int64_t c0,
                            int64_t cols, struct kg_err *err)
{
    struct kg_mat c = view(j->c, r0, rows, c0, cols);
    struct kg_mat a = view(j->a, r0, rows, 0, j->K);
    struct kg_mat b = j->kind == KG_MATMUL_NT ? view(j->b, c0, cols, 0, j->K)
                                              : view(j->b, 0, j->K, c0, cols);
    if (j->small_chunk > 0 && rows <= KG_CPU_SMALL_ROWS)
        return kg_cpu_matmul_small(c, a, b, j->small_chunk, j->accumulate, err);
    int64_t pad = j->M > EXACT_ROWS ? round_up(rows, ROW_STEP) : rows;
    return block_product(c, a, b, j->kind, j->accumulate, pad, err);
}

/* Block i of the cut: the body's blocks first, then the rest of the rows, column by
 * column. */
static kg_status rows_task(const struct job *j, int64_t i, struct kg_err *err)
{
    int64_t col_blocks = ceil_div(j->N, j->block_cols);
    int64_t r0 = min64(i / col_blocks * j->block_rows, j->body_rows);
    int64_t end = r0 < j->body_rows ? min64(r0 + j->block_rows, j->body_rows) : j->M;
    int64_t c0 = i % col_blocks * j->block_cols;
    return rows_block(j, r0, end - r0, c0, min64(j->block_cols, j->N - c0), err);
}

/* Some four blocks a thread. Rows are cut first; columns only where rows are few and the
 * kind allows it without packing the weights (NT). */
static void cut_rows(struct job *j, int64_t threads)
{
    j->body_rows = j->M > EXACT_ROWS ? j->M / ROW_STEP * ROW_STEP : j->M;
    j->block_rows = min64(j->body_rows, BLOCK_ROWS);
    j->block_cols = j->N;
    if (threads == 1)
        return;
    if (j->body_rows >= 4 * COL_STEP * threads || j->kind == KG_MATMUL_NN) {
        int64_t fair = round_up(ceil_div(j->body_rows, 4 * threads), ROW_STEP);
        j->block_rows = min64(max64(fair, 2 * ROW_STEP), BLOCK_ROWS);
        return;
    }
    j->block_cols = min64(
        max64(round_up(ceil_div(j->N, 4 * threads), COL_STEP), COL_STEP), j->N);
}

/* ---- dW = dy^T x: blocks of output rows, by the shapes alone ---- */
static void cut_weights(struct job *j)
{
    bool tiny = j->M * j->N * j->K < (1 << 20);
    int64_t quarter = round_up(ceil_div(j->M, 4), 2 * ROW_STEP);
    j->block_rows = tiny ? j->M : min64(max64(quarter, 2 * ROW_STEP), BLOCK_ROWS);
    j->block_cols = j->N;
    j->body_rows = j->M;
}

/* The sum over tokens in order: long pieces, then what is left, padded by zeros. */
static kg_status weights_task(const struct job *j, int64_t i, struct kg_err *err)
{
    int64_t m0 = i * j->block_rows;
    int64_t m = min64(j->block_rows, j->M - m0);
    int64_t body = j->K / TOKEN_STEP * TOKEN_STEP;
    struct kg_mat c = view(j->c, m0, m, 0, j->N);
    for (int64_t k = 0; k < j->K;) {
        int64_t tokens = k < body ? min64(TOKEN_PIECE, body - k) : j->K - k;
        KG_TRY(block_product(c, view(j->a, k, tokens, m0, m),
                             view(j->b, k, tokens, 0, j->N), j->kind,
                             j->accumulate || k > 0, round_up(tokens, TOKEN_STEP), err));
        k += tokens;
    }
    return KG_OK;
}

/* ---- all kinds ---- */
static kg_status run_tasks(const struct job *j, int64_t tasks, bool threads,
                           struct kg_err *err)
{
    kg_status status = KG_OK;
#pragma omp parallel for schedule(dynamic) if (threads && tasks > 1)
    for (int64_t i = 0; i < tasks; i++) {
        struct kg_err mine;
        kg_status s = j->kind == KG_MATMUL_TN ? weights_task(j, i, &mine)
                                              : rows_task(j, i, &mine);
        if (s != KG_OK)
            kg_cpu_report(&status, err, &mine);
    }
    return status;
}

/* c = 0 for an empty sum. */
static kg_status clear(struct kg_mat c)
{
    for (int64_t r = 0; r < c.rows; r++)
        memset((char *)c.data + (size_t)(r * c.stride) * kg_dtype_traits(c.dtype)->bytes,
               0, (size_t)c.cols * kg_dtype_traits(c.dtype)->bytes);
    return KG_OK;
}

kg_status kg_cpu_matmul(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                        enum kg_matmul_kind kind, bool accumulate, struct kg_err *err)
{
    if (a.dtype == KG_BF16 && !kg_simd_has_bf16_dot())
        return kg_fail(
            err, KG_EUNSUPPORTED,
            "bf16 products need a CPU with AVX512_BF16, which this one does not have; "
            "use dtype fp32");
    struct job j = {.c = c,
                    .a = a,
                    .b = b,
                    .kind = kind,
                    .accumulate = accumulate,
                    .M = c.rows,
                    .N = c.cols,
                    .K = kind == KG_MATMUL_TN ? a.rows : a.cols};
    if (j.M == 0 || j.N == 0)
        return KG_OK;
    if (j.K == 0)
        return accumulate ? KG_OK : clear(c);
    if (kind != KG_MATMUL_TN && a.dtype == KG_F32 && !kg_cpu_library_keeps_rows())
        return kg_cpu_matmul_plain(c, a, b, kind, accumulate, err);
    if (kind == KG_MATMUL_NT && a.dtype == KG_BF16)
        j.small_chunk = kg_cpu_small_chunk(j.K, accumulate);
    if (j.small_chunk > 0 && j.M <= KG_CPU_SMALL_ROWS)
        return kg_cpu_matmul_small(c, a, b, j.small_chunk, accumulate, err);
    bool threads = kg_cpu_use_threads(j.M * j.N * j.K / 32);
    if (kind == KG_MATMUL_TN)
        cut_weights(&j);
    else
        cut_rows(&j, threads ? omp_get_max_threads() : 1);
    int64_t row_blocks = ceil_div(j.body_rows, j.block_rows) + (j.body_rows < j.M);
    return run_tasks(&j, row_blocks * ceil_div(j.N, j.block_cols), threads, err);
}
