/* Products of bf16 without a library: by product_mma.cu, and large ones by
 * product_wgmma.cu where that gives the same bits.
 *
 * Whether it does is a device's own. So both are tried when products are chosen, on
 * factors whose sums cancel, so that what is compared is mostly what roundings left; by
 * every kernel that there is, once in a process. A device with other bits is left with
 * product_mma.cu, and says so.
 */
#include "tensor/cuda/cuda_internal.h"
#include <stdio.h>

extern "C" {
#include "tensor/cuda/boxes.h"
}

enum { ROWS = 136, COLS = 264 /* a tile and a bit */ };

/* What the trial found, over all kernels. */
static struct {
    bool done, left_out;
    bool refused;                   /* a kernel was not launched */
    int others[3][KG_WGMMA_WIDTHS]; /* elements with other bits, of ROWS x COLS */
    int all;                        /* of these */
    float apart;                    /* at most */
} found;

/* ---- operands ---- */
static __device__ uint32_t scramble(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Vectors of K factors from 2^-8 to 1, either sign; those of the second half are those of
 * the first once more, of odd vectors with the other sign (cancels). */
static __global__ void fill(struct kg_mat m, bool down, bool cancels)
{
    const int64_t r = blockIdx.x, half = (down ? m.rows : m.cols) / 2;

    for (int64_t c = threadIdx.x; c < m.cols; c += KG_ROW_THREADS) {
        const int64_t v = down ? c : r, k = down ? r : c, at = k % half;
        const uint32_t drawn = scramble((uint32_t)(v * 65537 + at * 2 + cancels));
        const bool turns = cancels && v % 2 == 1 && k >= half;
        const uint32_t sign = (drawn & 0x8000u) ^ (turns ? 0x8000u : 0u);

        kg_cuda_bf16(m, r)[c] = (uint16_t)(sign | ((119u << 7) + (drawn & 0x3ffu)));
    }
}

/* others[r] <- elements of row r whose bits differ; apart[r] <- by how much at most, or
 * infinity. A warp a row. */
static __global__ void compare(int32_t *others, float *apart, struct kg_mat x,
                               struct kg_mat y)
{
    const int64_t r = blockIdx.x;
    int n = 0;
    float most = 0.0f;

    for (int64_t c = threadIdx.x; c < x.cols; c += KG_WARP) {
        const float a = kg_cuda_f32(x, r)[c], b = kg_cuda_f32(y, r)[c], d = fabsf(a - b);

        n += kg_cuda_bits(a) != kg_cuda_bits(b);
        most = d <= most ? most : d == d ? d : INFINITY;
    }
    for (unsigned by = KG_WARP / 2; by > 0; by /= 2) {
        const float other = __shfl_xor_sync(~0u, most, by);

        n += __shfl_xor_sync(~0u, n, by);
        most = other > most ? other : most;
    }
    if (threadIdx.x == 0) {
        others[r] = n;
        apart[r] = most;
    }
}

struct trial {
    struct kg_mat a, b, by_mma, by_wgmma;
    int32_t *others; /* (ROWS) */
    float *apart;    /* (ROWS) */
};

static struct kg_mat take(struct kg_cuda_piece *p, enum kg_dtype dtype, int64_t rows,
                          int64_t cols)
{
    char *at;

    kg_cuda_take(p, &at, rows * cols * (int64_t)kg_dtype_traits(dtype)->bytes);
    return kg_mat(at, dtype, rows, cols);
}

/* Over NULL: *bytes alone. */
static void place(struct trial *t, char *memory, uint64_t *bytes,
                  enum kg_matmul_kind kind)
{
    const int64_t k = KG_DEV_TRIED, m = ROWS, n = COLS;
    const bool tn = kind == KG_MATMUL_TN, nt = kind == KG_MATMUL_NT;
    struct kg_cuda_piece p = {memory, 0};

    t->a = take(&p, KG_BF16, tn ? k : m, tn ? m : k);
    t->b = take(&p, KG_BF16, nt ? n : k, nt ? k : n);
    t->by_mma = take(&p, KG_F32, ROWS, COLS);
    t->by_wgmma = take(&p, KG_F32, ROWS, COLS);
    kg_cuda_take(&p, &t->others, ROWS);
    kg_cuda_take(&p, &t->apart, ROWS);
    *bytes = p.used;
}

static kg_status try_width(struct trial *t, enum kg_matmul_kind kind, int width,
                           struct kg_err *err)
{
    int32_t others[ROWS];
    float apart[ROWS];

    if (!kg_cuda_product_wgmma(t->by_wgmma, t->a, t->b, kind, false, width)) {
        found.refused = true;
        return KG_OK;
    }
    KG_LAUNCH(compare, kg_grid(ROWS, 1), KG_WARP, t->others, t->apart, t->by_mma,
              t->by_wgmma);
    kg_dev_get(others, t->others, sizeof others);
    kg_dev_get(apart, t->apart, sizeof apart);
    KG_TRY(kg_dev_done("trial of own products", err));
    for (int r = 0; r < ROWS; r++) {
        found.others[kind][width] += others[r];
        found.all += others[r];
        found.apart = apart[r] > found.apart ? apart[r] : found.apart;
    }
    return KG_OK;
}

static kg_status try_kind(char *memory, enum kg_matmul_kind kind, struct kg_err *err)
{
    struct trial t;
    uint64_t bytes;

    place(&t, memory, &bytes, kind);
    KG_LAUNCH(fill, kg_grid(t.a.rows, 1), KG_ROW_THREADS, t.a, kind == KG_MATMUL_TN,
              true);
    KG_LAUNCH(fill, kg_grid(t.b.rows, 1), KG_ROW_THREADS, t.b, kind != KG_MATMUL_NT,
              false);
    kg_cuda_product_mma(t.by_mma, t.a, t.b, kind, false);
    for (int width = 0; width < KG_WGMMA_WIDTHS; width++)
        KG_TRY(try_width(&t, kind, width, err));
    return KG_OK;
}

kg_status kg_cuda_own_try(bool mma_only, struct kg_err *err)
{
    found.left_out = mma_only;
    if (mma_only || found.done || kg_dev_hoppers() == 0)
        return KG_OK;
    struct trial t;
    uint64_t bytes; /* the same of each kind */
    kg_status status = KG_OK;
    char *memory;

    place(&t, NULL, &bytes, KG_MATMUL_NT);
    memory = (char *)kg_dev_alloc(bytes, "trial of own products", err);
    if (!memory)
        return err->code;
    for (int kind = KG_MATMUL_NT; kind <= KG_MATMUL_TN && status == KG_OK; kind++)
        status = try_kind(memory, (enum kg_matmul_kind)kind, err);
    kg_dev_free(memory);
    found.done = status == KG_OK;
    return status;
}

void kg_cuda_own_describe(char *text, size_t bytes)
{
    text[0] = 0;
    if (!found.done || found.left_out)
        return;
    if (found.refused)
        snprintf(text, bytes, "; wgmma: not launched");
    else if (found.all == 0)
        snprintf(text, bytes, "; large ones by wgmma, with its bits");
    else
        snprintf(text, bytes,
                 "; not by wgmma: other bits of NT %d %d, NN %d %d, TN %d %d in %d each, "
                 "%.2g apart",
                 found.others[0][0], found.others[0][1], found.others[1][0],
                 found.others[1][1], found.others[2][0], found.others[2][1], ROWS * COLS,
                 (double)found.apart);
}

/* ---- who makes them ---- */
/* Large tiles of few elements leave a device idle: small ones fill it. */
static bool is_large(struct kg_mat c)
{
    enum { TILE = 128, SHARE = 3 };
    const int64_t tiles = kg_cuda_pieces(c.rows, TILE) * kg_cuda_pieces(c.cols, TILE);

    return 2 * c.rows > TILE && 2 * c.cols > TILE && SHARE * tiles >= kg_dev_hoppers();
}

void kg_cuda_product_own(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                         enum kg_matmul_kind kind, bool accumulate)
{
    const bool same = found.done && !found.left_out && !found.refused && found.all == 0;

    if (!same || !is_large(c) || !kg_cuda_product_wgmma(c, a, b, kind, accumulate, -1))
        kg_cuda_product_mma(c, a, b, kind, accumulate);
}
