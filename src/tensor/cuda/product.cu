/* Matrix products: selects the implementation, and has the one with the CPU's bits
 * (FMAs).
 *
 * A block has 64 x 64 elements of C, a thread 4 x 4 of them in registers. The factors
 * come through shared memory, 32 of each row at a time, which is a block of the bf16
 * definition. A thread without rows or columns of C only helps to load factors, so few
 * rows cost little. Sums over tokens are computed chunk by chunk; the thread of an
 * element adds each chunk to C.
 */
#include "tensor/cuda/blas.h"
#include "tensor/cuda/groups_internal.h"

enum { TILE = 64, EACH = 4, SIDE = TILE / EACH, THREADS = SIDE * SIDE };
enum { DEPTH = KG_PRODUCT_BLOCK, PAD = 4 /* against bank conflicts */ };

/* A matrix as a product reads it: vectors of factors, each along a row or a column. */
struct factors {
    struct kg_mat m;
    bool down; /* vector i is column i */
    int64_t n; /* vectors */
    int64_t k; /* factors of each */
};

static __device__ float factor(const struct factors &f, int64_t i, int64_t k)
{
    if (i >= f.n || k >= f.k)
        return 0.0f;
    return f.down ? kg_cuda_load(f.m, k, i) : kg_cuda_load(f.m, i, k);
}

typedef float tile[DEPTH][TILE + PAD];

/* to[j][i] <- factor k+j of vector first+i; adjacent threads read adjacent elements. */
static __device__ void bring(tile &to, const struct factors &f, int64_t first, int64_t k)
{
    for (int e = (int)threadIdx.x; e < TILE * DEPTH; e += THREADS) {
        const int i = f.down ? e % TILE : e / DEPTH, j = f.down ? e / TILE : e % DEPTH;

        to[j][i] = factor(f, first + i, k + j);
    }
}

/* A thread's sums. */
struct sums {
    float part[EACH][EACH]; /* fp32: the chain of this chunk */
    float sum[EACH][EACH];
};

/* fp32: adds n factors to the chain. */
static __device__ void chain(struct sums *s, const tile &a, int i, const tile &b, int j,
                             int n)
{
    for (int k = 0; k < n; k++)
#pragma unroll
        for (int r = 0; r < EACH; r++)
#pragma unroll
            for (int c = 0; c < EACH; c++)
                s->part[r][c] = kg_fma(b[k][j + c], a[k][i + r], s->part[r][c]);
}

/* fp32: the end of a chunk. */
static __device__ void add_chunk(struct sums *s, bool first)
{
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int c = 0; c < EACH; c++) {
            s->sum[r][c] = first ? s->part[r][c] : s->sum[r][c] + s->part[r][c];
            s->part[r][c] = 0.0f;
        }
}

/* One block of bf16: a chain of its even factors, and one of its odd factors. */
static __device__ void add_block(struct sums *s, const tile &a, int i, const tile &b,
                                 int j)
{
    float even[EACH][EACH] = {{0.0f}}, odd[EACH][EACH] = {{0.0f}};

    for (int k = 0; k < DEPTH; k += 2)
#pragma unroll
        for (int r = 0; r < EACH; r++)
#pragma unroll
            for (int c = 0; c < EACH; c++) {
                even[r][c] = kg_fma_flushed(b[k][j + c], a[k][i + r], even[r][c]);
                odd[r][c] = kg_fma_flushed(b[k + 1][j + c], a[k + 1][i + r], odd[r][c]);
            }
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int c = 0; c < EACH; c++)
            s->sum[r][c] = kg_add_flushed(s->sum[r][c],
                                          kg_add_flushed(even[r][c], odd[r][c]));
}

static __device__ void store(struct kg_mat c, bool add, int64_t row, int64_t col,
                             const struct sums *s)
{
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (row + i < c.rows && col + j < c.cols) {
                const float old = add ? kg_cuda_load(c, row + i, col + j) : 0.0f;
                const float sum = s->sum[i][j];

                kg_cuda_store(c, row + i, col + j, add ? old + sum : sum);
            }
}

/* A tile of c (=|+=) a times b; vectors of a are rows of c, those of b its columns. TN:
 * sums over tokens, chunk by chunk. */
template <bool BF16, bool TN>
static __device__ void make(const struct kg_mat &c, bool add, const struct kg_mat &a,
                            const struct kg_mat &b, bool b_down, int64_t row, int64_t col)
{
    KG_SHARED(float, left, [DEPTH][TILE + PAD]);
    KG_SHARED(float, right, [DEPTH][TILE + PAD]);
    const int i = (int)threadIdx.x / SIDE * EACH, j = (int)threadIdx.x % SIDE * EACH;
    const int64_t K = TN ? a.rows : a.cols;
    const bool works = row + i < c.rows && col + j < c.cols;
    struct sums s = {{{0.0f}}, {{0.0f}}};

    for (int64_t k = 0; k < K; k += DEPTH) {
        const int64_t behind = kg_cuda_min(k + DEPTH, K);
        const bool ends = behind == K || behind % KG_PRODUCT_CHUNK == 0;

        bring(left, {a, TN, c.rows, K}, row, k);
        bring(right, {b, b_down, c.cols, K}, col, k);
        __syncthreads();
        if (works && BF16)
            add_block(&s, left, i, right, j);
        else if (works)
            chain(&s, left, i, right, j, (int)(behind - k));
        if (!BF16 && ends)
            add_chunk(&s, TN || behind <= KG_PRODUCT_CHUNK);
        if (TN && works && ends && behind < K) {
            store(c, add, row + i, col + j, &s);
            s = {{{0.0f}}, {{0.0f}}};
            add = true;
        }
        __syncthreads();
    }
    if (works)
        store(c, add, row + i, col + j, &s);
}

template <bool BF16, bool TN>
static __global__ void __launch_bounds__(THREADS)
    product(struct kg_mat c, bool add, struct kg_mat a, struct kg_mat b, bool b_down)
{
    make<BF16, TN>(c, add, a, b, b_down, (int64_t)blockIdx.x * TILE,
                   (int64_t)blockIdx.y * TILE);
}

/* The product of one expert. */
template <bool BF16, bool TN>
static __global__ void __launch_bounds__(THREADS)
    groups(struct kg_mat c, bool add, struct kg_mat a, struct kg_mat b, bool b_down,
           struct kg_groups g)
{
    KG_SHARED(struct kg_cuda_share, s, [1]);

    kg_cuda_share_out<TN>(s, c, a, b, g, add, TILE);
    if (s->row >= 0)
        make<BF16, TN>(s->c, add, s->a, s->b, b_down, s->row, (int64_t)blockIdx.y * TILE);
}

/* g: NULL: no experts */
template <bool BF16, bool TN>
static void launch(struct kg_mat c, bool add, struct kg_mat a, struct kg_mat b,
                   bool b_down, const struct kg_groups *g)
{
    const int64_t tiles = g ? kg_cuda_group_tiles(g, c, TN, TILE)
                            : kg_cuda_pieces(c.rows, TILE);
    const dim3 grid = kg_grid(tiles, kg_cuda_pieces(c.cols, TILE));

    if (g)
        KG_LAUNCH((groups<BF16, TN>), grid, THREADS, c, add, a, b, b_down, *g);
    else
        KG_LAUNCH((product<BF16, TN>), grid, THREADS, c, add, a, b, b_down);
}

static void exact(struct kg_mat c, bool add, struct kg_mat a, struct kg_mat b,
                  const struct kg_groups *g, enum kg_matmul_kind kind)
{
    const bool bf16 = a.dtype == KG_BF16, b_down = kind != KG_MATMUL_NT;

    if (kind == KG_MATMUL_TN)
        (bf16 ? launch<true, true> : launch<false, true>)(c, add, a, b, b_down, g);
    else
        (bf16 ? launch<true, false> : launch<false, false>)(c, add, a, b, b_down, g);
}

/* ---- choice of implementation ---- */
static enum kg_cuda_products used;
static bool by_mma, attention_by_mma; /* never wgmma */

static bool changes(const struct kg_cuda_opts *opts)
{
    return opts->products != used || opts->mma_only != by_mma ||
           opts->attention_mma_only != attention_by_mma ||
           (used == KG_CUDA_CUBLAS && opts->unpinned != kg_cuda_is_unpinned());
}

static kg_status try_kernels(const struct kg_cuda_opts *opts, struct kg_err *err)
{
    if (!opts->attention_mma_only)
        KG_TRY(kg_cuda_attention_try(err));
    return opts->products == KG_CUDA_OWN && !opts->mma_only ? kg_cuda_own_try(err)
                                                            : KG_OK;
}

static void take(const struct kg_cuda_opts *opts)
{
    used = opts->products;
    by_mma = opts->mma_only;
    attention_by_mma = opts->attention_mma_only;
    kg_cuda_wgmma_leave_out(by_mma);
    kg_cuda_own_leave_out(by_mma);
    kg_cuda_attention_leave_out(attention_by_mma);
}

/* Steps that may fail come first. */
kg_status kg_cuda_use(const struct kg_cuda_opts *opts, struct kg_err *err)
{
    const bool before = used == KG_CUDA_CUBLAS, cublas = opts->products == KG_CUDA_CUBLAS;
    kg_status status = KG_OK;

    KG_TRY(try_kernels(opts, err));
    if (cublas)
        KG_TRY(kg_blas_open(opts->libraries, err));
    if (changes(opts))
        kg_cuda_forget(); /* records contain kernels of the old choice */
    if (cublas && opts->unpinned != kg_cuda_is_unpinned())
        status = opts->unpinned ? kg_cuda_unpinned_begin(err)
                                : kg_cuda_unpinned_leave(err);
    if (status == KG_OK)
        take(opts);
    else if (before)
        return status;
    if (used != KG_CUDA_CUBLAS && (before || cublas))
        kg_cuda_blas_end();
    return status;
}
enum kg_cuda_products kg_cuda_used(void) { return used; }

kg_status kg_cuda_reserve(uint64_t bytes, struct kg_err *err)
{
    return used == KG_CUDA_CUBLAS && !kg_cuda_is_unpinned()
               ? kg_cuda_blas_reserve(bytes, err)
               : KG_OK;
}

kg_status kg_cuda_matmul(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                         enum kg_matmul_kind kind, bool accumulate, struct kg_err *err)
{
    const float *old = accumulate ? (const float *)c.data : NULL;

    if (c.rows == 0 || c.cols == 0)
        return KG_OK;
    if (used == KG_CUDA_CUBLAS && a.dtype == KG_BF16)
        KG_TRY(kg_cuda_product_blas(c, a, b, kind, old, err));
    else if (used == KG_CUDA_OWN && a.dtype == KG_BF16)
        kg_cuda_product_own(c, a, b, kind, old);
    else
        exact(c, accumulate, a, b, NULL, kind);
    return kg_dev_done("matmul", err);
}

static kg_status add_to_copy(struct kg_mat c, struct kg_mat old, struct kg_mat a,
                             struct kg_mat b, struct kg_err *err)
{
    KG_TRY(kg_cuda_cast(c, old, err));
    return kg_cuda_matmul(c, a, b, KG_MATMUL_NT, true, err);
}

/* Exact products, and an `old` whose layout is not c's, go through a copy. So do products
 * whose plan of cuBLASLt cannot add from outside c: plans are tried with sums in c. */
kg_status kg_cuda_matmul_onto(struct kg_mat c, struct kg_mat old, struct kg_mat a,
                              struct kg_mat b, struct kg_err *err)
{
    const float *const sums = (const float *)old.data;
    const bool apart = used != KG_CUDA_EXACT && a.dtype == KG_BF16 &&
                       old.stride == c.stride && (uintptr_t)sums % 16 == 0;
    kg_status status = KG_OK;

    if (!apart || c.rows == 0 || c.cols == 0)
        return add_to_copy(c, old, a, b, err);
    if (used == KG_CUDA_CUBLAS)
        status = kg_cuda_product_blas(c, a, b, KG_MATMUL_NT, sums, err);
    else
        kg_cuda_product_own(c, a, b, KG_MATMUL_NT, sums);
    if (status == KG_EUNSUPPORTED)
        return add_to_copy(c, old, a, b, err);
    return status == KG_OK ? kg_dev_done("matmul_onto", err) : status;
}

/* Never by cuBLASLt: which of its plans has the required bits depends on the number of
 * rows, and the host does not know that of an expert. */
kg_status kg_cuda_matmul_groups(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                                const struct kg_groups *g, enum kg_matmul_kind kind,
                                bool accumulate, struct kg_err *err)
{
    if (c.rows == 0 || c.cols == 0)
        return KG_OK;
    if (used != KG_CUDA_EXACT && a.dtype == KG_BF16)
        kg_cuda_groups_mma(c, a, b, g, kind, accumulate);
    else
        exact(c, accumulate, a, b, g, kind);
    return kg_dev_done("matmul_groups", err);
}
