/* The vocabulary head at the size of a training batch: time against the product ceiling,
 * and memory against an implementation that holds the logits. Useful work is three
 * products of rows x vocabulary x width. The backward computes the logits again instead
 * of keeping them, which is a fourth product; so its share of the ceiling is always below
 * three quarters. */
#include "bench/measure.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#include <stdio.h>
#include <string.h>

enum { ROWS = 4096, D = 896, V = 151936, K = 32 };
static const char NAME[] = "head Top-k k=32, V=151936 D=896 N=4096, fwd+bwd";

/* Everything that belongs to the caller, not to the head. All owned. */
struct arrays {
    void *hidden;    /* (ROWS,D) ct */
    void *weight;    /* (V,D) ct */
    float *dhidden;  /* (ROWS,D) */
    float *dweight;  /* (V,D) */
    int32_t *target; /* (ROWS) */
    int32_t *ids;    /* (ROWS,K) */
    double *lse;     /* (ROWS) */
    float *logp;     /* (ROWS) */
    double *a_target;
    float *logp_at; /* (ROWS,K) */
    double *a_at;   /* (ROWS,K) */
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
    KG_TRY(fill(&x->hidden, dtype, (size_t)ROWS * D, 0x3e00, 3, err));
    KG_TRY(get(&x->dhidden, (size_t)ROWS * D, sizeof(float), err));
    KG_TRY(get(&x->dweight, (size_t)V * D, sizeof(float), err));
    KG_TRY(get(&x->target, ROWS, sizeof(int32_t), err));
    KG_TRY(get(&x->ids, (size_t)ROWS * K, sizeof(int32_t), err));
    KG_TRY(get(&x->lse, ROWS, sizeof(double), err));
    KG_TRY(get(&x->logp, ROWS, sizeof(float), err));
    KG_TRY(get(&x->a_target, ROWS, sizeof(double), err));
    KG_TRY(get(&x->logp_at, (size_t)ROWS * K, sizeof(float), err));
    KG_TRY(get(&x->a_at, (size_t)ROWS * K, sizeof(double), err));
    for (int n = 0; n < ROWS; n++) {
        x->target[n] = (int32_t)kg_rng_below(key, (uint64_t)n, 0, 0, V);
        x->a_target[n] = 1e-3;
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

static kg_status measure(struct kg_bench_report *r, struct both_ways *b,
                         struct kg_err *err)
{
    struct kg_bench_job job = {.run = run_both_ways,
                               .user = b,
                               .repeats = 2,
                               .ceiling = kg_bench_compute(r, false)};
    struct kg_bench_bar most = {128 << 20, true}, none = {0};
    struct kg_bench_rate rate = {NAME, 2.0 * 3 * ROWS * V * D, "GFLOP/s", {0.5, false}};
    struct kg_bench_timing t;

    KG_TRY(kg_bench_prepare(r, err));
    uint64_t before = kg_mem_current_bytes();
    kg_mem_reset_peak();
    KG_TRY(kg_bench_time(&t, r, &job, err));
    KG_TRY(kg_bench_put_rate(r, &rate, &t, err));
    KG_TRY(kg_bench_put_bytes(r, "  its extra memory at the peak",
                              (double)(kg_mem_peak_bytes() - before), most, err));
    return kg_bench_put_bytes(r, "  two [tokens x vocabulary] fp32 arrays: logits, grad",
                              4.0 * 2 * ROWS * V, none, err);
}

static struct both_ways top_k_of(const struct kg_bench_report *r, const struct arrays *x)
{
    struct both_ways b = {
        .be = r->be,
        .head = {.hidden = kg_mat(x->hidden, r->ct, ROWS, D),
                 .weight = kg_mat(x->weight, r->ct, V, D),
                 .target = x->target,
                 .indices = x->ids,
                 .k = K},
        .out = {.lse = x->lse, .logp = x->logp, .logp_at = x->logp_at},
        .grad = {.lse = x->lse,
                 .dhidden = kg_mat(x->dhidden, KG_F32, ROWS, D),
                 .dweight = kg_mat(x->dweight, KG_F32, V, D),
                 .a_target = x->a_target,
                 .a_indices = x->a_at},
    };

    return b;
}

static kg_status top_k_rows(struct kg_bench_report *r, const struct arrays *x,
                            struct kg_err *err)
{
    struct both_ways b = top_k_of(r, x);

    return measure(r, &b, err);
}

static kg_status top_k_parts(struct kg_bench_report *r, const struct arrays *x,
                             struct kg_err *err)
{
    struct both_ways b = top_k_of(r, x);

    return kg_bench_best_parts(r, NAME, run_both_ways, &b, err);
}

typedef kg_status (*part_fn)(struct kg_bench_report *r, const struct arrays *x,
                             struct kg_err *err);

static void arrays_release(struct arrays *x)
{
    void *all[] = {x->hidden, x->weight, x->dhidden,  x->dweight, x->target, x->ids,
                   x->lse,    x->logp,   x->a_target, x->logp_at, x->a_at};

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
