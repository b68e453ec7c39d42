/* Products of bf16 without a library: by product_mma.cu, and large ones by
 * product_wgmma.cu if it gives the same bits.
 *
 * Whether it does depends on the device. So both are tried when products are chosen, once
 * per process and with every kernel, on factors whose sums cancel, so that mostly
 * rounding errors are compared. If the bits differ, kedge uses product_mma.cu alone and
 * reports it.
 */
#include "tensor/cuda/trial_internal.h"
#include <stdio.h>

extern "C" {
#include "tensor/cuda/boxes.h"
}

enum { ROWS = 136, COLS = 264 /* more than a tile */ };

/* Results of the trial, over all kernels. */
static struct {
    bool done, left_out;
    bool refused;                                 /* a kernel was not launched */
    struct kg_cuda_others of[3][KG_WGMMA_WIDTHS]; /* of ROWS x COLS elements */
    struct kg_cuda_others all;
} found;

struct trial {
    struct kg_mat a, b, by_mma, by_wgmma;
    struct kg_cuda_others *room;
};

/* memory NULL: only *bytes. */
static void place(struct trial *t, char *memory, uint64_t *bytes,
                  enum kg_matmul_kind kind)
{
    const int64_t k = KG_DEV_TRIED, m = ROWS, n = COLS;
    const bool tn = kind == KG_MATMUL_TN, nt = kind == KG_MATMUL_NT;
    struct kg_cuda_piece p = {memory, 0};

    t->a = kg_cuda_trial_take(&p, KG_BF16, tn ? k : m, tn ? m : k);
    t->b = kg_cuda_trial_take(&p, KG_BF16, nt ? n : k, nt ? k : n);
    t->by_mma = kg_cuda_trial_take(&p, KG_F32, ROWS, COLS);
    t->by_wgmma = kg_cuda_trial_take(&p, KG_F32, ROWS, COLS);
    kg_cuda_take(&p, &t->room, KG_TRIAL_BLOCKS);
    *bytes = p.used;
}

static kg_status try_width(struct trial *t, enum kg_matmul_kind kind, int width,
                           struct kg_err *err)
{
    struct kg_cuda_others *of = &found.of[kind][width];

    if (!kg_cuda_product_wgmma(t->by_wgmma, t->a, t->b, kind, NULL, width)) {
        found.refused = true;
        return KG_OK;
    }
    KG_TRY(kg_cuda_trial_compare(of, t->by_mma, t->by_wgmma, t->room, err));
    found.all.n += of->n;
    found.all.apart = of->apart > found.all.apart ? of->apart : found.all.apart;
    return KG_OK;
}

static kg_status try_kind(char *memory, enum kg_matmul_kind kind, struct kg_err *err)
{
    struct trial t;
    uint64_t bytes;

    place(&t, memory, &bytes, kind);
    kg_cuda_trial_fill(t.a, kind == KG_MATMUL_TN, true, 0);
    kg_cuda_trial_fill(t.b, kind != KG_MATMUL_NT, false, 1);
    kg_cuda_product_mma(t.by_mma, t.a, t.b, kind, NULL);
    for (int width = 0; width < KG_WGMMA_WIDTHS; width++)
        KG_TRY(try_width(&t, kind, width, err));
    return KG_OK;
}

void kg_cuda_own_leave_out(bool yes) { found.left_out = yes; }

kg_status kg_cuda_own_try(struct kg_err *err)
{
    if (found.done || kg_dev_hoppers() == 0)
        return KG_OK;
    struct trial t;
    uint64_t bytes; /* equal for all kinds */
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
    else if (found.all.n == 0)
        snprintf(text, bytes, "; large ones by wgmma, with its bits");
    else
        snprintf(text, bytes,
                 "; not by wgmma: other bits of NT %d %d, NN %d %d, TN %d %d in %d each, "
                 "%.2g apart",
                 found.of[0][0].n, found.of[0][1].n, found.of[1][0].n, found.of[1][1].n,
                 found.of[2][0].n, found.of[2][1].n, ROWS * COLS,
                 (double)found.all.apart);
}

/* ---- choice of the kernel ---- */
/* Whether large tiles occupy the device; for fewer elements, small tiles do. */
static bool is_large(struct kg_mat c)
{
    enum { TILE = 128, SHARE = 3 };
    const int64_t tiles = kg_cuda_pieces(c.rows, TILE) * kg_cuda_pieces(c.cols, TILE);

    return 2 * c.rows > TILE && 2 * c.cols > TILE && SHARE * tiles >= kg_dev_hoppers();
}

void kg_cuda_product_own(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                         enum kg_matmul_kind kind, const float *old)
{
    const bool same = found.done && !found.left_out && !found.refused && found.all.n == 0;

    if (!same || !is_large(c) || !kg_cuda_product_wgmma(c, a, b, kind, old, -1))
        kg_cuda_product_mma(c, a, b, kind, old);
}
