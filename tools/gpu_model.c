/* A model of the times of kernels on a GPU: what a decode or training step launches, at a
 * shape, and how long each launch should take. No GPU and no memory for weights is needed.
 *
 *   make gpu-model
 *   build/release/gpu-model [--gpu H200|H100|A100] [--shape 135M|0.5B|1.5B|3B|7B]
 *                           [--decode BATCH --context N] [--train SEQS --tokens N]
 *
 * kedge's own code makes the steps, on a backend that computes nothing: an operation adds
 * its launches, bytes and FLOPs to the row of its kernel. The time of a launch is
 *   start + max(bytes / (share of copies * copies), FLOPs / (share of the best product *
 *   best product)),
 * for products with tiles in waves over the processors, see product_seconds. Rates and
 * shares are measured where docs/gpu-results.md has them, else predicted: `by` says which.
 * A step is what lies between two calls of `embed`, as in a trace of kernels.
 */
#include "base/str.h"
#include "bench/measure.h"
#include "tensor/codes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- devices, shapes, kernels ---- */
struct gpu {
    const char *name;
    double copies;  /* bytes/s, read and written */
    double product; /* FLOP/s of the best product, bf16 */
    double fp32;    /* FLOP/s */
    int processors;
    double wgmma; /* clocks/s of processors that have it */
};
static const struct gpu gpus[] = {
    {"H200", 4176e9, 818e12, 61e12, 132, 1.75e9}, /* measured */
    {"H100", 3000e9, 790e12, 61e12, 132, 1.7e9},  /* of other programs */
    {"A100", 1700e9, 280e12, 18e12, 108, 0},
};
static const struct kg_bench_shape shapes[] = {
    /* the first if none is named */
    {"0.5B", 896, 4864, 24, 14, 2, 151936, 0, 0},
    {"135M", 576, 1536, 30, 9, 3, 49152, 0, 0},
    {"1.5B", 1536, 8960, 28, 12, 2, 151936, 0, 0},
    {"3B", 2048, 11008, 36, 16, 2, 151936, 0, 0},
    {"7B", 3584, 18944, 28, 28, 4, 152064, 0, 0},
};

enum kernel {
    PRODUCT,
    PRODUCT_DX,
    PRODUCT_DW,
    EMBED,
    EMBED_BWD,
    NORM,
    NORM_BWD,
    HEADS,
    ROPE,
    BIAS,
    GATE,
    GATE_BWD,
    CAST,
    ROWS,
    ATTENTION,
    ATTENTION_WGMMA,
    ATTENTION_BWD,
    ATTENTION_BWD_WGMMA,
    HEAD,
    HEAD_BWD,
    DRAW,
    ADAMW,
    SUMS,
    MEMORY,
    KERNELS
};
/* what a kernel reaches of a device: of copies where it moves more than it computes, of
 * the best product elsewhere; 0: it computes nothing worth counting */
static const struct {
    const char *name, *by;
    int launches; /* of one operation */
    double of_copies, of_product;
} kernels[KERNELS] = {
    [PRODUCT] = {"x W^T", "measured", 1, 0.9, 1},
    [PRODUCT_DX] = {"dy W", "measured", 1, 0.9, 1},
    [PRODUCT_DW] = {"dy^T x", "measured", 1, 0.9, 0.9},
    [EMBED] = {"embed", "predicted", 1, 0.5, 0},
    [EMBED_BWD] = {"embed, backward", "predicted", 3, 0.3, 0},
    [NORM] = {"rmsnorm", "predicted", 1, 0.6, 0},
    [NORM_BWD] = {"rmsnorm, backward", "predicted", 2, 0.6, 0},
    [HEADS] = {"heads", "predicted", 1, 0.6, 0},
    [ROPE] = {"rope", "predicted", 1, 0.6, 0},
    [BIAS] = {"bias", "predicted", 1, 0.6, 0},
    [GATE] = {"swiglu", "predicted", 1, 0.8, 0},
    [GATE_BWD] = {"swiglu, backward", "predicted", 1, 0.8, 0},
    [CAST] = {"cast", "predicted", 1, 0.8, 0},
    [ROWS] = {"rows moved", "predicted", 1, 0.5, 0},
    [ATTENTION] = {"attention", "predicted", 1, 0.5, 0.26},
    [ATTENTION_WGMMA] = {"attention, wgmma", "predicted", 1, 0.5, 0},
    [ATTENTION_BWD] = {"attention, backward", "predicted", 5, 0.5, 0.2},
    [ATTENTION_BWD_WGMMA] = {"its backward, wgmma", "predicted", 5, 0.5, 0},
    [HEAD] = {"head", "predicted", 1, 0.7, 0.9},
    [HEAD_BWD] = {"head, backward", "predicted", 1, 0.85, 0.9},
    [DRAW] = {"drawing", "predicted", 3, 0.1, 0},
    [ADAMW] = {"adamw", "measured", 1, 0.89, 0},
    [SUMS] = {"sum of squares", "predicted", 2, 0.8, 0},
    [MEMORY] = {"copies, zeros, sums", "measured", 1, 0.9, 0},
};

/* ---- the record of a step ---- */
struct record {
    double launches[KERNELS], bytes[KERNELS], flops[KERNELS], seconds[KERNELS];
};
static struct record now, step; /* the last whole one */
static const struct gpu *gpu = gpus;
static double start = 2e-6; /* of a launch that follows another, in a graph */

static void launch(enum kernel k, double bytes, double flops, double seconds)
{
    now.launches[k] += kernels[k].launches;
    now.bytes[k] += bytes;
    now.flops[k] += flops;
    now.seconds[k] += seconds;
}

/* A kernel whose time is that of its bytes or of its FLOPs. */
static void moved(enum kernel k, double bytes, double flops)
{
    const double by_bytes = bytes / (kernels[k].of_copies * gpu->copies);
    const double by_flops = kernels[k].of_product > 0
                                ? flops / (kernels[k].of_product * gpu->product)
                                : 0;

    launch(k, bytes, flops, kernels[k].launches * start + fmax(by_bytes, by_flops));
}

/* Of an m x n result over k factors: the best of four tiles, whose blocks come in waves; a
 * block's factors take a nanosecond each at least, however small its tile. */
static double product_seconds(double m, double n, double k)
{
    static const struct {
        double m, n, share;
    } tiles[] = {{128, 256, 1}, {128, 128, 0.93}, {64, 128, 0.75}, {64, 64, 0.55}};
    double best = INFINITY;

    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        const double blocks = ceil(m / tiles[i].m) * ceil(n / tiles[i].n);
        const double rate = tiles[i].share * gpu->product / gpu->processors;
        const double block = k * fmax(2 * tiles[i].m * tiles[i].n / rate, 1e-9);

        best = fmin(best, ceil(blocks / gpu->processors) * block);
    }
    return best;
}

static double bytes_of(struct kg_mat m)
{
    return (double)(m.rows * m.cols) * (double)kg_dtype_traits(m.dtype)->bytes;
}

/* ---- the slots ---- */
static kg_status matmul(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                        enum kg_matmul_kind kind, bool accumulate, struct kg_err *err)
{
    const enum kernel k = kind == KG_MATMUL_NT   ? PRODUCT
                          : kind == KG_MATMUL_NN ? PRODUCT_DX
                                                 : PRODUCT_DW;
    const double depth = (double)(kind == KG_MATMUL_TN ? a.rows : a.cols);
    const double flops = 2.0 * (double)(c.rows * c.cols) * depth;
    const double bytes = bytes_of(a) + bytes_of(b) + (1 + accumulate) * bytes_of(c);
    const double computing = c.dtype == KG_F32 && a.dtype == KG_F32
                                 ? flops / (0.17 * gpu->fp32)
                                 : product_seconds((double)c.rows, (double)c.cols, depth);

    (void)err;
    launch(k, bytes, flops,
           start + fmax(bytes / (kernels[k].of_copies * gpu->copies),
                        computing / kernels[k].of_product));
    return KG_OK;
}
static kg_status matmul_onto(struct kg_mat c, struct kg_mat old, struct kg_mat a,
                             struct kg_mat b, struct kg_err *err)
{
    (void)old;
    return matmul(c, a, b, KG_MATMUL_NT, true, err);
}
static kg_status embed(struct kg_mat x, struct kg_mat table, struct kg_ivec tokens,
                       struct kg_err *err)
{
    (void)table, (void)tokens, (void)err;
    step = now;
    now = (struct record){0};
    moved(EMBED, 2 * bytes_of(x), 0);
    return KG_OK;
}
static kg_status embed_bwd(struct kg_mat dtable, struct kg_mat dx, struct kg_ivec tokens,
                           struct kg_err *err)
{
    (void)dtable, (void)tokens, (void)err;
    moved(EMBED_BWD, 3 * bytes_of(dx), 0);
    return KG_OK;
}
static kg_status rmsnorm(struct kg_mat y, struct kg_vec inv, struct kg_mat x,
                         struct kg_vec w, float eps, struct kg_err *err)
{
    (void)inv, (void)w, (void)eps, (void)err;
    moved(NORM, bytes_of(x) + bytes_of(y), 0);
    return KG_OK;
}
static kg_status rmsnorm_bwd(struct kg_mat dx, bool accumulate, struct kg_vec dw,
                             struct kg_mat dy, struct kg_mat x, struct kg_vec w,
                             struct kg_vec inv, struct kg_err *err)
{
    (void)dw, (void)w, (void)inv, (void)err;
    moved(NORM_BWD, bytes_of(x) + bytes_of(dy) + (1 + accumulate) * bytes_of(dx), 0);
    return KG_OK;
}
static kg_status bias(struct kg_mat y, struct kg_vec b, struct kg_err *err)
{
    (void)b, (void)err;
    moved(BIAS, 2 * bytes_of(y), 0);
    return KG_OK;
}
static kg_status bias_bwd(struct kg_vec db, struct kg_mat dy, struct kg_err *err)
{
    (void)db, (void)err;
    moved(BIAS, bytes_of(dy), 0);
    return KG_OK;
}
static kg_status rope(struct kg_mat x, const struct kg_turn *by, bool inverse,
                      struct kg_err *err)
{
    (void)by, (void)inverse, (void)err;
    moved(ROPE, 2 * bytes_of(x), 0);
    return KG_OK;
}
static kg_status heads(const struct kg_heads *h, int n, const struct kg_turn *by,
                       struct kg_err *err)
{
    double bytes = 0;

    (void)by, (void)err;
    for (int i = 0; i < n; i++)
        bytes += bytes_of(h[i].x) + bytes_of(h[i].out) * (h[i].pool.data ? 2 : 1);
    moved(HEADS, bytes, 0);
    return KG_OK;
}
static kg_status swiglu(struct kg_mat h, struct kg_mat gate, struct kg_mat up,
                        struct kg_err *err)
{
    (void)err;
    moved(GATE, bytes_of(h) + bytes_of(gate) + bytes_of(up), 0);
    return KG_OK;
}
static kg_status swiglu_bwd(struct kg_mat dgate, struct kg_mat dup, struct kg_mat dh,
                            struct kg_mat gate, struct kg_mat up, struct kg_err *err)
{
    (void)err;
    moved(GATE_BWD,
          bytes_of(dgate) + bytes_of(dup) + bytes_of(dh) + bytes_of(gate) + bytes_of(up),
          0);
    return KG_OK;
}
static kg_status cast(struct kg_mat dst, struct kg_mat src, struct kg_err *err)
{
    (void)err;
    moved(CAST, bytes_of(dst) + bytes_of(src), 0);
    return KG_OK;
}
static kg_status scatter_rows(struct kg_mat pool, struct kg_ivec at, struct kg_mat src,
                              struct kg_err *err)
{
    (void)pool, (void)at, (void)err;
    moved(ROWS, 2 * bytes_of(src), 0);
    return KG_OK;
}
static kg_status gather_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec at,
                             struct kg_err *err)
{
    (void)src, (void)at, (void)err;
    moved(ROWS, 2 * bytes_of(dst), 0);
    return KG_OK;
}
static kg_status sum_rows(struct kg_mat dst, struct kg_mat src, struct kg_ivec ends,
                          struct kg_ivec places, struct kg_err *err)
{
    (void)src, (void)ends, (void)err;
    moved(ROWS, 4.0 * (double)(places.n * dst.cols) + bytes_of(dst), 0);
    return KG_OK;
}

/* Keys and values read by a decode step or a prompt; FLOPs of one of its products. */
static double attention_work(const struct kg_attn *a, double *keys)
{
    double pairs = 0;

    *keys = 0;
    for (int32_t i = 0; i < a->n_seqs; i++) {
        const double n = a->seqs[i].n_rows;

        pairs += n * a->seqs[i].pos + n * (n + 1) / 2;
        *keys += a->seqs[i].pos + n;
    }
    *keys *= 2.0 * a->n_kv_heads * a->head_dim *
             (double)kg_dtype_traits(a->k.dtype)->bytes;
    return 2.0 * a->n_heads * a->head_dim * pairs;
}
/* Of few rows (tensor/cuda/attention_rows.cu): a warp takes 256 keys at a time, four of
 * them are a block, and two blocks fit a processor. The first keys arrive after three
 * waits for memory. Keys of a warp alone: predicted from the kernel's instructions. Where
 * a row is split, the second launch merges parts one after another: each takes a quarter
 * of a wait for L2, 270 clocks, and 50 clocks of instructions.
 * *launches: 2 where a row is split */
static double rows_seconds(int *launches, const struct kg_attn *a, double bytes)
{
    const double part = 4 * (a->head_dim > 64 ? 1.0e-6 : 0.7e-6), first = 2e-6;
    const double merge = 0.07e-6;
    const double rows = (double)a->n_seqs * a->n_kv_heads;
    const double turns = ceil(a->most_keys / 1024.0);
    const double split = fmax(1, fmin(floor(2 * 108 / rows), turns));
    double keys = 0;

    for (int32_t i = 0; i < a->n_seqs; i++)
        keys = fmax(keys, a->seqs[i].pos + a->seqs[i].n_rows);
    *launches = 1 + (split > 1);
    return fmax(bytes / (0.8 * gpu->copies),
                ceil(rows * split / (2 * gpu->processors)) *
                    (first + ceil(keys / 1024 / split) * part)) +
           (split > 1 ? ceil(keys / 256) * merge : 0) + *launches * start;
}
/* As attention_own.cu chooses. */
static bool by_wgmma(const struct kg_attn *a)
{
    const double pairs = (double)a->q.rows * a->n_heads / 128;

    return gpu->wgmma > 0 && a->q.dtype == KG_BF16 && a->window == 0 && a->softcap == 0 &&
           !a->both_ways && (a->head_dim == 64 || a->head_dim == 128) &&
           pairs / a->n_kv_heads >= a->n_seqs && 3 * pairs >= gpu->processors;
}
/* A pair of tiles of 64 rows takes a turn for each block of 64 keys, of its last one two;
 * a processor makes pairs one after another, and the longest ends last. */
static double wgmma_seconds(const struct kg_attn *a)
{
    const double turn = (a->head_dim == 64 ? 1250 : 1900) / gpu->wgmma, ends = 3000;
    double all = 0, longest = 0;

    for (int32_t i = 0; i < a->n_seqs; i++) {
        const double n = a->seqs[i].n_rows, pos = a->seqs[i].pos;
        const double pairs = ceil(n * a->n_heads / a->n_kv_heads / 128) * a->n_kv_heads;

        all += pairs * (turn * (pos / 64 + n / 128 + 1.5) + ends / gpu->wgmma);
        longest = fmax(longest, turn * ((pos + n) / 64 + 1));
    }
    return all / gpu->processors + longest / 2;
}
static kg_status attention(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a,
                           struct kg_err *err)
{
    double keys, flops = 2 * attention_work(a, &keys);
    const double bytes = keys + bytes_of(a->q) + bytes_of(o);

    (void)lse, (void)err;
    if (a->q.rows <= a->n_seqs) {
        int launches;
        const double seconds = rows_seconds(&launches, a, bytes);

        launch(ATTENTION, bytes, flops, seconds);
        now.launches[ATTENTION] += launches - 1;
        return KG_OK;
    }
    if (by_wgmma(a))
        launch(ATTENTION_WGMMA, bytes, flops, start + wgmma_seconds(a));
    else
        moved(ATTENTION, bytes, flops);
    return KG_OK;
}
/* Whether the heads of a group have sums of their own, which are then added, as
 * attention_bwd.cu chooses. */
static bool has_heads_apart(const struct kg_attn *a)
{
    const double sums = 8.0 * (double)(a->k.rows * a->q.cols);
    const double pairs = floor((double)a->k.rows / 128) * a->n_kv_heads;

    return a->n_heads > a->n_kv_heads && sums <= 256 << 20 &&
           2 * pairs < 3 * gpu->processors;
}
/* A block of threads is a pair of 64 keys (rows), which takes a turn for each 64 rows
 * that see them (keys that they see), and clocks before it and after each head. */
static double bwd_wgmma_seconds(const struct kg_attn *a, bool of_keys, bool apart)
{
    const bool wide = a->head_dim > 64;
    const double before = 3000, after = wide ? 2000 : 1000;
    const double turn = of_keys ? (wide ? 2900 : 1700) : (wide ? 2300 : 1300);
    const double heads = of_keys && !apart ? (double)a->n_heads / a->n_kv_heads : 1;
    double all = 0, longest = 0;

    for (int32_t i = 0; i < a->n_seqs; i++) {
        const double n = a->seqs[i].n_rows, pos = a->seqs[i].pos;
        const double pairs = ceil((of_keys ? pos + n : n) / 128);
        const double turns = pairs + n * pos / 64 / 128 + n * n / 64 / 256;

        all += a->n_heads * (turns * turn + pairs * (before / heads + after));
        longest = fmax(longest, heads * turn * (of_keys ? n : pos + n) / 64);
    }
    return (all / gpu->processors + longest / 2) / gpu->wgmma;
}
static kg_status attention_bwd(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                               struct kg_mat dout, struct kg_mat o, struct kg_vec lse,
                               const struct kg_attn *a, struct kg_err *err)
{
    double keys, flops = 5 * attention_work(a, &keys);
    const double bytes = keys + bytes_of(a->q) + bytes_of(dq) + bytes_of(dk) +
                         bytes_of(dv) + bytes_of(dout) + bytes_of(o);

    (void)lse, (void)err;
    if (by_wgmma(a) && a->q.rows * a->head_dim >= 512 * 128 * (int64_t)a->n_seqs) {
        const bool apart = has_heads_apart(a);
        const double sums = apart ? 16.0 * (double)(a->k.rows * a->q.cols) : 0;

        launch(ATTENTION_BWD_WGMMA, bytes, flops,
               5 * start + sums / (0.8 * gpu->copies) +
                   bwd_wgmma_seconds(a, true, apart) +
                   bwd_wgmma_seconds(a, false, apart));
    } else
        moved(ATTENTION_BWD, bytes, flops);
    return KG_OK;
}

/* Of the head, which makes its products and what reads them itself (cuda/head*.cu): strips
 * of the vocabulary, some rows at a time. */
enum { STRIP = 4096, HEAD_ROWS = 2048, LOGITS = 4 << 20, FEW = 128 };
enum { BLOCK = 1024, GROUP = 4 /* blocks that meet a strip together */ };

static void head_product(enum kernel k, double m, double n, double depth, double bytes)
{
    launch(k, bytes, 2 * m * n * depth,
           start + fmax(bytes / (0.9 * gpu->copies),
                        product_seconds(m, n, depth) / kernels[k].of_product));
}
/* Logits of r rows and c columns; of few rows by an own kernel, all at once. */
static void head_logits(enum kernel k, double r, double c, double d)
{
    const double width = r <= FEW ? c : STRIP;

    for (double v = 0; v < c; v += width) {
        const double n = fmin(width, c - v);

        head_product(k, r, n, d, 2 * d * (r + n) + 4 * r * n);
    }
}
static kg_status head(const struct kg_head_out *out, const struct kg_head *h,
                      struct kg_err *err)
{
    const double n = (double)h->hidden.rows, v = (double)h->weight.rows;
    const double d = (double)h->hidden.cols;

    (void)out, (void)err;
    for (double i = 0; i < n; i += HEAD_ROWS) {
        const double r = fmin(HEAD_ROWS, n - i);
        const double most = fmax(1, floor(LOGITS / (r * STRIP))) * STRIP;

        for (double c = 0; c < v; c += most) {
            head_logits(HEAD, r, fmin(most, v - c), d);
            moved(HEAD, 4 * r * fmin(most, v - c), 0);
        }
        moved(HEAD, 72 * r * v / 2048, 0);
        moved(HEAD, 8 * r, 0);
    }
    return KG_OK;
}
static kg_status head_bwd(const struct kg_head_grad *g, const struct kg_head *h,
                          struct kg_err *err)
{
    const double n = (double)h->hidden.rows, v = (double)h->weight.rows;
    const double d = (double)h->hidden.cols;
    const double block = ceil(n / ceil(n / BLOCK) / 16) * 16;

    (void)g, (void)err;
    for (double i = 0; i < n; i += GROUP * block) {
        const double group = fmin(GROUP * block, n - i);

        moved(HEAD_BWD, 100 * group, 0);
        moved(HEAD_BWD, 4 * group * d, 0);
        for (double c = 0; c < v; c += STRIP) {
            const double w = fmin(STRIP, v - c);

            for (double b = 0; b < group; b += block) {
                const double r = fmin(block, group - b);

                head_logits(HEAD_BWD, r, w, d);
                moved(HEAD_BWD, 6 * r * w, 0);
                head_product(HEAD_BWD, w, d, r, 2 * r * (w + d) + 8 * w * d);
            }
            head_product(HEAD_BWD, group, d, w, 2 * w * (group + d) + 8 * group * d);
        }
        moved(HEAD_BWD, 8 * group * d, 0);
    }
    return KG_OK;
}
static kg_status draw(const struct kg_draws *d, const struct kg_head_out *out,
                      const struct kg_head *h, struct kg_err *err)
{
    (void)d;
    KG_TRY(head(out, h, err));
    moved(DRAW, 4.0 * (double)h->hidden.rows * (double)h->weight.rows, 0);
    return KG_OK;
}
static kg_status feed(int32_t *tokens, struct kg_ivec from, const struct kg_drawn *drawn,
                      struct kg_err *err)
{
    (void)tokens, (void)drawn, (void)err;
    moved(ROWS, 8.0 * (double)from.n, 0);
    return KG_OK;
}
static kg_status adamw(struct kg_vec w, struct kg_mat m, struct kg_mat v, struct kg_vec g,
                       const struct kg_adamw *a, struct kg_err *err)
{
    double rounded = 0;

    (void)g, (void)err;
    for (int32_t i = 0; i < a->n_rounded; i++)
        rounded += 2.0 * (double)a->rounded[i].n;
    moved(ADAMW, 12.0 * (double)w.n + 2 * bytes_of(m) + 2 * bytes_of(v) + rounded, 0);
    return KG_OK;
}
static kg_status sum_squares(double *out, struct kg_vec x, struct kg_vec minus,
                             struct kg_err *err)
{
    (void)err;
    *out = 1;
    moved(SUMS, 4.0 * (double)(x.n + minus.n), 0);
    return KG_OK;
}
static kg_status add(struct kg_vec y, struct kg_vec x, struct kg_err *err)
{
    (void)x, (void)err;
    moved(MEMORY, 12.0 * (double)y.n, 0);
    return KG_OK;
}
static kg_status scale(struct kg_vec y, float factor, struct kg_err *err)
{
    (void)factor, (void)err;
    moved(MEMORY, 8.0 * (double)y.n, 0);
    return KG_OK;
}
static kg_status copy(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    (void)to, (void)from, (void)err;
    moved(MEMORY, 2.0 * (double)bytes, 0);
    return KG_OK;
}
static kg_status zero(void *to, uint64_t bytes, struct kg_err *err)
{
    (void)to, (void)err;
    moved(MEMORY, (double)bytes, 0);
    return KG_OK;
}

/* ---- memory: addresses, of which only what a step's tables need is ever touched ---- */
enum { PAGE = 4096, TABLES = 1 << 20 };
static void *reserve_addresses(uint64_t bytes, const char *what, struct kg_err *err)
{
    uint64_t *p = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED) {
        (void)kg_fail(err, KG_ENOMEM, "%s: expected %llu bytes of addresses", what,
                      (unsigned long long)bytes);
        return NULL;
    }
    *p = bytes + PAGE;
    return p + PAGE / sizeof *p;
}
static void free_addresses(void *memory)
{
    uint64_t *p = memory;

    if (p)
        munmap(p - PAGE / sizeof *p, p[-(ptrdiff_t)(PAGE / sizeof *p)]);
}
static kg_status put(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    (void)err;
    if (bytes <= TABLES)
        memcpy(to, from, bytes);
    return KG_OK;
}
static kg_status get(void *to, const void *from, uint64_t bytes, struct kg_err *err)
{
    (void)from, (void)err;
    memset(to, 0, bytes);
    return KG_OK;
}
static kg_status mark(uint64_t *at, struct kg_err *err)
{
    (void)err;
    *at = 0;
    return KG_OK;
}
static kg_status wait(uint64_t at, struct kg_err *err)
{
    (void)at, (void)err;
    return KG_OK;
}
static kg_status replay(uint64_t key, kg_status (*body)(void *arg, struct kg_err *err),
                        void *arg, struct kg_err *err)
{
    (void)key;
    return body(arg, err);
}
static void describe(char *text, size_t bytes)
{
    snprintf(text, bytes, "%s, a model", gpu->name);
}
static struct kg_traffic traffic;

static const struct kg_backend model = {
    .name = "model",
    .describe = describe,
    .one_caller = true,
    .keeps_heads = true,
    .traffic = &traffic,
    .weights = KG_ROWS,
    .alloc = reserve_addresses,
    .free = free_addresses,
    .put = put,
    .get = get,
    .pin = reserve_addresses,
    .unpin = free_addresses,
    .fetch = get,
    .put_later = put,
    .get_later = get,
    .mark = mark,
    .wait = wait,
    .copy = copy,
    .zero = zero,
    .matmul = matmul,
    .matmul_onto = matmul_onto,
    .embed = embed,
    .embed_bwd = embed_bwd,
    .rmsnorm = rmsnorm,
    .rmsnorm_bwd = rmsnorm_bwd,
    .bias = bias,
    .bias_bwd = bias_bwd,
    .rope = rope,
    .heads = heads,
    .swiglu = swiglu,
    .swiglu_bwd = swiglu_bwd,
    .cast = cast,
    .scatter_rows = scatter_rows,
    .gather_rows = gather_rows,
    .sum_rows = sum_rows,
    .attention = attention,
    .attention_bwd = attention_bwd,
    .head = head,
    .head_bwd = head_bwd,
    .draw = draw,
    .feed = feed,
    .replay = replay,
    .adamw = adamw,
    .add = add,
    .scale = scale,
    .sum_squares = sum_squares,
};

/* ---- the table ---- */
static void print_step(const char *what, double tokens)
{
    double seconds = 0, allowed = 0, launches = 0;

    printf("%s on %s: predicted, unmeasured\n", what, gpu->name);
    printf("%-22s %8s %10s %10s %9s %7s %8s  %s\n", "kernel", "launches", "MB", "GFLOP",
           "us", "of step", "of bound", "by");
    for (int k = 0; k < KERNELS; k++)
        seconds += step.seconds[k];
    for (int k = 0; k < KERNELS; k++) {
        const double bound = fmax(step.bytes[k] / gpu->copies,
                                  step.flops[k] / gpu->product);

        if (step.launches[k] == 0)
            continue;
        launches += step.launches[k];
        allowed += bound;
        printf("%-22s %8.0f %10.2f %10.2f %9.1f %6.1f%% %7.0f%%  %s\n", kernels[k].name,
               step.launches[k], step.bytes[k] / 1e6, step.flops[k] / 1e9,
               1e6 * step.seconds[k], 100 * step.seconds[k] / seconds,
               100 * bound / step.seconds[k], kernels[k].by);
    }
    printf("%-22s %8.0f %10s %10s %9.1f %7s %7.0f%%  %.0f tokens/s\n\n", "step", launches,
           "", "", 1e6 * seconds, "", 100 * allowed / seconds, tokens / seconds);
}

static kg_status decode(struct kg_bench_report *r, const struct kg_bench_shape *s,
                        int batch, int context, struct kg_err *err)
{
    struct kg_model *m = NULL;
    char what[80];

    KG_TRY(kg_bench_model(&m, r, s, false, err));
    kg_status status = kg_bench_decode_bus(r, m, batch, context, err);
    kg_model_free(m);
    snprintf(what, sizeof what, "decode step of %d, %s, %d tokens", batch, s->name,
             context);
    print_step(what, batch);
    return status;
}

static kg_status train(struct kg_bench_report *r, const struct kg_bench_shape *s,
                       int n_seqs, int tokens, struct kg_err *err)
{
    char what[80];

    start = 2.5e-6; /* no graph */
    KG_TRY(kg_bench_train_bus(r, s, n_seqs, tokens, err));
    snprintf(what, sizeof what, "training step, %s, %d x %d tokens", s->name, n_seqs,
             tokens);
    print_step(what, (double)n_seqs * tokens);
    return KG_OK;
}

/* ---- flags ---- */
static int wrong(const char *found)
{
    fprintf(stderr,
            "gpu-model: expected --gpu H200|H100|A100, --shape 135M|0.5B|1.5B|3B|7B, "
            "--decode BATCH, --context N, --train SEQS or --tokens N, found '%s'\n",
            found);
    return 2;
}

static const void *named(const char *name, const void *rows, size_t n, size_t each)
{
    for (size_t i = 0; i < n; i++) {
        const char *const *row = (const void *)((const char *)rows + i * each);
        if (strcmp(*row, name) == 0)
            return row;
    }
    return NULL;
}
#define NAMED(name, rows) named(name, rows, sizeof(rows) / sizeof *(rows), sizeof *(rows))

int main(int argc, char **argv)
{
    const struct kg_bench_shape *shape = shapes;
    int batch = 0, context = 512, n_seqs = 0, tokens = 1024;
    struct kg_str notes = {0};
    struct kg_bench_report r = {.out = &notes, .be = &model, .ct = KG_BF16};
    struct kg_err err = {0};

    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        int *number = strcmp(argv[i], "--decode") == 0    ? &batch
                      : strcmp(argv[i], "--context") == 0 ? &context
                      : strcmp(argv[i], "--train") == 0   ? &n_seqs
                      : strcmp(argv[i], "--tokens") == 0  ? &tokens
                                                          : NULL;
        if (number && (*number = atoi(value)) > 0)
            continue;
        if (strcmp(argv[i], "--gpu") == 0 && NAMED(value, gpus))
            gpu = NAMED(value, gpus);
        else if (strcmp(argv[i], "--shape") == 0 && NAMED(value, shapes))
            shape = NAMED(value, shapes);
        else
            return wrong(number || value[0] ? value : argv[i]);
    }
    if (batch == 0 && n_seqs == 0)
        batch = 1;
    kg_status status = batch > 0 ? decode(&r, shape, batch, context, &err) : KG_OK;
    if (status == KG_OK && n_seqs > 0)
        status = train(&r, shape, n_seqs, tokens, &err);
    if (status != KG_OK)
        fprintf(stderr, "gpu-model: %s\n", err.message);
    kg_str_release(&notes);
    return status != KG_OK;
}
