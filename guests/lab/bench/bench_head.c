/* The vocabulary head at the size of a training batch: time against the product ceiling,
 * memory against an implementation that holds the logits, and the cost of selecting the
 * largest ids. Useful work is three products of rows x vocabulary x width. The backward
 * computes the logits again instead of keeping them, one product more; so by design its
 * share of the ceiling is below three quarters. */
#include "bench/measure.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#include <stdio.h>
#include <string.h>

enum { ROWS = 4096, D = 896, V = 151936, K = 32 };

/* Everything that belongs to the caller, not to the head. All owned. */
struct arrays {
    void *hidden;        /* (ROWS,D) ct */
    void *weight;        /* (V,D) ct */
    void *anchor_hidden; /* (ROWS,D) ct */
    void *anchor_weight; /* (V,D) ct */
    float *dhidden;      /* (ROWS,D) */
    float *dweight;      /* (V,D) */
    int32_t *target;     /* (ROWS) */
    int32_t *ids;        /* (ROWS,K) */
    double *lse;         /* (ROWS) */
    double *anchor_lse;  /* (ROWS) */
    float *logp;         /* (ROWS), as the next three */
    double *kl;
    double *a_target;
    double *a_kl;
    float *logp_at; /* (ROWS,K) */
    double *a_at;   /* (ROWS,K) */
    int32_t *top_ids;
    float *top_logp;
};

static kg_status get(void *slot, size_t count, size_t size, struct kg_err *err)
{
    void *p = kg_mem_calloc(count, size, "head benchmark", err);

    memcpy(slot, &p, sizeof p);
    return p ? KG_OK : err->code;
}

/* Numbers of some spread and either sign: the upper half of a float is a bf16. */
static kg_status fill(void *slot, enum kg_dtype dtype, size_t n, uint32_t exponent,
                      uint32_t seed, struct kg_err *err)
{
    uint16_t *half;
    uint32_t *whole;

    KG_TRY(get(slot, n, kg_dtype_traits(dtype)->bytes, err));
    memcpy(&half, slot, sizeof half);
    memcpy(&whole, slot, sizeof whole);
    for (size_t i = 0; i < n; i++) {
        uint32_t mixed = (uint32_t)i * 2654435761u + seed, bits;

        mixed = (mixed ^ mixed >> 15) * 2246822519u;
        bits = exponent | (mixed >> 16 & 0x80ffu);
        if (dtype == KG_BF16)
            half[i] = (uint16_t)bits;
        else
            whole[i] = bits << 16;
    }
    return KG_OK;
}

static kg_status arrays_init(struct arrays *x, enum kg_dtype dtype, struct kg_err *err)
{
    struct kg_rng_key key = {3, KG_RNG_TEST};

    KG_TRY(fill(&x->weight, dtype, (size_t)V * D, 0x3c00, 1, err));
    KG_TRY(fill(&x->anchor_weight, dtype, (size_t)V * D, 0x3c00, 2, err));
    KG_TRY(fill(&x->hidden, dtype, (size_t)ROWS * D, 0x3e00, 3, err));
    KG_TRY(fill(&x->anchor_hidden, dtype, (size_t)ROWS * D, 0x3e00, 4, err));
    KG_TRY(get(&x->dhidden, (size_t)ROWS * D, sizeof(float), err));
    KG_TRY(get(&x->dweight, (size_t)V * D, sizeof(float), err));
    KG_TRY(get(&x->target, ROWS, sizeof(int32_t), err));
    KG_TRY(get(&x->ids, (size_t)ROWS * K, sizeof(int32_t), err));
    KG_TRY(get(&x->lse, ROWS, sizeof(double), err));
    KG_TRY(get(&x->anchor_lse, ROWS, sizeof(double), err));
    KG_TRY(get(&x->logp, ROWS, sizeof(float), err));
    KG_TRY(get(&x->kl, ROWS, sizeof(double), err));
    KG_TRY(get(&x->a_target, ROWS, sizeof(double), err));
    KG_TRY(get(&x->a_kl, ROWS, sizeof(double), err));
    KG_TRY(get(&x->logp_at, (size_t)ROWS * K, sizeof(float), err));
    KG_TRY(get(&x->a_at, (size_t)ROWS * K, sizeof(double), err));
    KG_TRY(get(&x->top_ids, (size_t)ROWS * K, sizeof(int32_t), err));
    KG_TRY(get(&x->top_logp, (size_t)ROWS * K, sizeof(float), err));
    for (int n = 0; n < ROWS; n++) {
        x->target[n] = (int32_t)kg_rng_below(key, (uint64_t)n, 0, 0, V);
        x->a_target[n] = x->a_kl[n] = 1e-3;
        for (int k = 0; k < K; k++) {
            x->ids[n * K + k] = (x->target[n] + 1 + k * 4747) % V;
            x->a_at[n * K + k] = 1e-4;
        }
    }
    return KG_OK;
}

/* ---- forward and backward ---- */

struct both_ways {
    const struct kg_backend *be;
    struct kg_head head;
    struct kg_head_out out;
    struct kg_head_grad grad;
};

static kg_status run_both_ways(double *seconds, void *user, struct kg_err *err)
{
    struct both_ways *b = user;
    double start = kg_clock_seconds();

    KG_TRY(kg_op_head(b->be, &b->out, &b->head, err));
    KG_TRY(kg_op_head_bwd(b->be, &b->grad, &b->head, err));
    *seconds = kg_clock_seconds() - start;
    return KG_OK;
}

struct subject {
    const char *name;
    double products;  /* N x V x D multiplications that are useful work */
    double max_bytes; /* asked for */
    double arrays;    /* [tokens x vocabulary] arrays that a plain one holds */
    const char *arrays_name;
};

static kg_status measure(struct kg_bench_report *r, const struct subject *s,
                         struct both_ways *b, struct kg_err *err)
{
    struct kg_bench_job job = {.run = run_both_ways,
                               .user = b,
                               .repeats = 2,
                               .ceiling = kg_bench_compute(r, false)};
    struct kg_bench_bar most = {s->max_bytes, true}, none = {0};
    struct kg_bench_rate rate = {
        s->name, 2 * s->products * ROWS * V * D, "GFLOP/s", {0.5, false}};
    struct kg_bench_timing t;

    KG_TRY(kg_bench_prepare(r, err));
    uint64_t before = kg_mem_current_bytes();
    kg_mem_reset_peak();
    KG_TRY(kg_bench_time(&t, r, &job, err));
    KG_TRY(kg_bench_put_rate(r, &rate, &t, err));
    KG_TRY(kg_bench_put_bytes(r, "  its extra memory at the peak",
                              (double)(kg_mem_peak_bytes() - before), most, err));
    return kg_bench_put_bytes(r, s->arrays_name, 4.0 * s->arrays * ROWS * V, none, err);
}

static struct kg_head head_of(const struct arrays *x, enum kg_dtype dtype, int64_t rows)
{
    return (struct kg_head){.hidden = kg_mat(x->hidden, dtype, rows, D),
                            .weight = kg_mat(x->weight, dtype, V, D)};
}

static struct kg_head_grad grad_of(const struct arrays *x)
{
    return (struct kg_head_grad){.lse = x->lse,
                                 .dhidden = kg_mat(x->dhidden, KG_F32, ROWS, D),
                                 .dweight = kg_mat(x->dweight, KG_F32, V, D)};
}

static struct both_ways top_k_of(const struct kg_bench_report *r, const struct arrays *x)
{
    struct both_ways b = {
        .be = r->be,
        .head = head_of(x, r->ct, ROWS),
        .out = {.lse = x->lse, .logp = x->logp, .logp_at = x->logp_at},
        .grad = grad_of(x),
    };

    b.head.target = x->target;
    b.head.indices = x->ids;
    b.head.k = K;
    b.grad.a_target = x->a_target;
    b.grad.a_indices = x->a_at;
    return b;
}

static const struct subject top_k = {
    "head Top-k k=32, V=151936 D=896 N=4096, fwd+bwd", 3, 128 << 20, 2,
    "  two [tokens x vocabulary] fp32 arrays: logits, grad"};

static kg_status top_k_rows(struct kg_bench_report *r, const struct arrays *x,
                            struct kg_err *err)
{
    struct both_ways b = top_k_of(r, x);

    return measure(r, &top_k, &b, err);
}

static kg_status top_k_parts(struct kg_bench_report *r, const struct arrays *x,
                             struct kg_err *err)
{
    struct both_ways b = top_k_of(r, x);

    return kg_bench_best_parts(r, top_k.name, run_both_ways, &b, err);
}

/* The anchor's logits are useful work in the forward; made again in the backward they
 * are not. */
static kg_status exact_rows(struct kg_bench_report *r, const struct arrays *x,
                            struct kg_err *err)
{
    static const struct subject s = {"head exact KL, V=151936 D=896 N=4096, fwd+bwd", 4,
                                     256 << 20, 3,
                                     "  three such arrays: both models' logits, grad"};
    struct kg_head_anchor anchor = {.hidden = kg_mat(x->anchor_hidden, r->ct, ROWS, D),
                                    .weight = kg_mat(x->anchor_weight, r->ct, V, D)};
    struct both_ways b = {
        .be = r->be,
        .head = head_of(x, r->ct, ROWS),
        .out = {.lse = x->lse,
                .logp = x->logp,
                .kl_reverse = x->kl,
                .anchor_lse = x->anchor_lse},
        .grad = grad_of(x),
    };

    b.head.target = x->target;
    b.head.anchor = &anchor;
    b.grad.a_target = x->a_target;
    b.grad.a_kl_reverse = x->a_kl;
    b.grad.kl_reverse = x->kl;
    b.grad.anchor_lse = x->anchor_lse;
    return measure(r, &s, &b, err);
}

/* ---- the largest k ---- */

struct selection {
    const struct kg_backend *be;
    struct kg_head head;
    struct kg_head_out out;
    float *tile; /* owned (rows, TILE): the bare product writes here */
};
enum { TILE = 2048 };

static kg_status run_forward(double *seconds, void *user, struct kg_err *err)
{
    struct selection *s = user;
    double start = kg_clock_seconds();

    KG_TRY(kg_op_head(s->be, &s->out, &s->head, err));
    *seconds = kg_clock_seconds() - start;
    return KG_OK;
}

/* The head's product and nothing else, tile by tile. */
static kg_status run_product(double *seconds, void *user, struct kg_err *err)
{
    struct selection *s = user;
    double start = kg_clock_seconds();

    for (int64_t v = 0; v < V; v += TILE) {
        int64_t cols = V - v < TILE ? V - v : TILE;

        KG_TRY(kg_op_matmul(s->be, kg_mat(s->tile, KG_F32, s->head.hidden.rows, cols),
                            s->head.hidden, kg_mat_rows(s->head.weight, v, cols),
                            KG_MATMUL_NT, false, err));
    }
    *seconds = kg_clock_seconds() - start;
    return KG_OK;
}

/* Product, forward, and forward with selection by turns: the selection is what the last
 * two differ by. */
static kg_status time_selection(struct kg_bench_timing t[3], struct kg_bench_report *r,
                                struct selection *bare, struct selection *selecting,
                                struct kg_err *err)
{
    const struct kg_bench_job jobs[3] = {
        {.run = run_product, .user = bare, .warm = true},
        {.run = run_forward, .user = bare, .warm = true},
        {.run = run_forward, .user = selecting, .warm = true},
    };

    for (int i = 0; i < 3; i++)
        KG_TRY(kg_bench_time(&t[i], r, &jobs[i], err));
    for (int turn = 0; turn < 4; turn++)
        for (int i = 0; i < 3; i++)
            KG_TRY(kg_bench_repeat(&t[i], r, &jobs[i], err));
    return KG_OK;
}

static kg_status selection_row(struct kg_bench_report *r, const struct arrays *x,
                               int64_t rows, struct kg_err *err)
{
    struct selection bare = {
        .be = r->be, .head = head_of(x, r->ct, rows), .out = {.lse = x->lse}};
    struct selection selecting = bare;
    struct kg_bench_timing t[3];
    char name[80];
    struct kg_bench_share share = {
        .name = name, .unit = "s", .of = "its product", .bar = {0.1, true}};
    kg_status status;

    KG_TRY(get(&bare.tile, (size_t)rows * TILE, sizeof(float), err));
    selecting.head.top_k = K;
    selecting.out.top_ids = x->top_ids;
    selecting.out.top_logp = x->top_logp;
    KG_TRY_GOTO(out, time_selection(t, r, &bare, &selecting, err));
    share.part = kg_bench_best(&t[2]) - kg_bench_best(&t[1]);
    share.whole = kg_bench_best(&t[0]);
    snprintf(name, sizeof name, "head selection of the largest 32, N=%d", (int)rows);
    status = kg_bench_put_share(r, &share, err);
out:
    kg_mem_free(bare.tile);
    return status;
}

/* N = 1,024: a training batch's anchor; N = 64: a decode step. */
static kg_status selection_rows(struct kg_bench_report *r, const struct arrays *x,
                                struct kg_err *err)
{
    KG_TRY(selection_row(r, x, 1024, err));
    return selection_row(r, x, 64, err);
}

typedef kg_status (*part_fn)(struct kg_bench_report *r, const struct arrays *x,
                             struct kg_err *err);

static void arrays_release(struct arrays *x)
{
    void *all[] = {x->hidden,   x->weight,     x->anchor_hidden, x->anchor_weight,
                   x->dhidden,  x->dweight,    x->target,        x->ids,
                   x->lse,      x->anchor_lse, x->logp,          x->kl,
                   x->a_target, x->a_kl,       x->logp_at,       x->a_at,
                   x->top_ids,  x->top_logp};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        kg_mem_free(all[i]);
}

static kg_status with_arrays(struct kg_bench_report *r, part_fn part, struct kg_err *err)
{
    struct arrays x = {0};
    kg_status status;

    KG_TRY_GOTO(out, arrays_init(&x, r->ct, err));
    status = part(r, &x, err);
out:
    arrays_release(&x);
    return status;
}

kg_status kg_bench_head(struct kg_bench_report *r, struct kg_err *err)
{
    return with_arrays(r, top_k_rows, err);
}

kg_status kg_bench_head_parts(struct kg_bench_report *r, struct kg_err *err)
{
    return with_arrays(r, top_k_parts, err);
}

kg_status kg_bench_exact_kl(struct kg_bench_report *r, struct kg_err *err)
{
    return with_arrays(r, exact_rows, err);
}

kg_status kg_bench_selection(struct kg_bench_report *r, struct kg_err *err)
{
    return with_arrays(r, selection_rows, err);
}
