/* The optimizer's passes over all parameters: AdamW, schedule-free AdamW, the moving
 * average, a sum of squares.
 *
 * Elements are independent, and memory bandwidth is the limit. So an update is one pass
 * with vectors, over pieces of fixed length. The random bits that round moments are drawn
 * for a group of elements at once and stay in the L1 cache. The sum of squares adds its
 * pieces in order, in double.
 */
#include "base/real.h"
#include "base/rng_inline.h"
#include "tensor/cpu/cpu_internal.h"

enum { PIECE = 16384 }; /* elements */

static int64_t piece_end(int64_t first, int64_t n)
{
    return first + PIECE < n ? first + PIECE : n;
}

/* ---- moments: fp32, or bf16 with stochastic rounding ---- */

/* Random words of one group of elements, drawn at the first use. */
struct draws {
    const struct kg_adamw *a;
    int64_t group; /* -1: none */
    uint32_t word[4][KG_DRAW_LANES];
};

static void draw_group(struct draws *d, int64_t group)
{
    uint32_t counter[4], k0 = (uint32_t)d->a->rounding.seed,
                         k1 = (uint32_t)(d->a->rounding.seed >> 32);
    uint64_t block = (uint64_t)group * KG_DRAW_LANES;
    uint32_t(*x)[KG_DRAW_LANES] = d->word;

    d->group = group;
    kg_rng_counter(counter, d->a->rounding, (uint64_t)d->a->step, (uint32_t)block,
                   (uint32_t)(block >> 32));
    for (uint32_t l = 0; l < KG_DRAW_LANES; l++)
        for (int i = 0; i < 4; i++)
            x[i][l] = counter[i] + (i == 2 ? l : 0);
    for (uint32_t round = 0; round < KG_RNG_ROUNDS; round++)
        for (int l = 0; l < KG_DRAW_LANES; l++)
            kg_rng_round(&x[0][l], &x[1][l], &x[2][l], &x[3][l], round, k0, k1);
}

static struct kg_v16 load_moment(const struct kg_mat *m, int64_t i, int n)
{
    return m->dtype == KG_F32 ? kg_v16_load_n((const float *)m->data + i, n)
                              : kg_v16_load_bf16_n((const uint16_t *)m->data + i, n);
}

/* shift: position of this moment's 16 bits in a word */
static void store_moment(const struct kg_mat *m, int64_t i, struct kg_v16 x,
                         struct draws *d, int shift, int n)
{
    int64_t at = d->a->first + i;
    float f[KG_LANES];
    uint16_t h[KG_LANES];

    if (m->dtype == KG_F32) {
        kg_v16_store_n((float *)m->data + i, x, n);
        return;
    }
    if (at / KG_DRAW_GROUP != d->group)
        draw_group(d, at / KG_DRAW_GROUP);
    kg_v16_store(f, x);
    for (int l = 0; l < KG_LANES; l++)
        h[l] = kg_f32_to_bf16_drawn(
            f[l], (uint16_t)(d->word[at / KG_DRAW_LANES % 4][l] >> shift));
    memcpy((uint16_t *)m->data + i, h, (size_t)n * sizeof *h);
}

/* ---- AdamW ---- */

/* The update's constants: w <- keep w - rate m / (sqrt(v) inv_c2 + eps) with the bias
 * corrections rate = lr / (1 - b1^t), inv_c2 = 1 / sqrt(1 - b2^t), keep = 1 - lr decay */
struct adamw {
    struct kg_v16 b1;
    struct kg_v16 b2;
    struct kg_v16 g1; /* 1 - b1 */
    struct kg_v16 g2; /* 1 - b2 */
    struct kg_v16 grad_scale;
    struct kg_v16 rate;
    struct kg_v16 inv_c2;
    struct kg_v16 eps;
    struct kg_v16 keep;
};

static struct adamw adamw_constants(const struct kg_adamw *a)
{
    double c1 = 1.0 - kg_power((double)a->beta1, a->step);
    double c2 = 1.0 - kg_power((double)a->beta2, a->step);
    return (struct adamw){
        .b1 = kg_v16_set1(a->beta1),
        .b2 = kg_v16_set1(a->beta2),
        .g1 = kg_v16_set1((float)(1.0 - (double)a->beta1)),
        .g2 = kg_v16_set1((float)(1.0 - (double)a->beta2)),
        .grad_scale = kg_v16_set1(a->grad_scale),
        .rate = kg_v16_set1((float)((double)a->lr / c1)),
        .inv_c2 = kg_v16_set1((float)(1.0 / sqrt(c2))),
        .eps = kg_v16_set1(a->eps),
        .keep = kg_v16_set1((float)(1.0 - (double)a->lr * (double)a->weight_decay)),
    };
}

static void adamw_lanes(const struct adamw *k, float *w, const struct kg_mat *m,
                        const struct kg_mat *v, const float *g, int64_t i,
                        struct draws *d, int n)
{
    struct kg_v16 grad = kg_v16_mul(kg_v16_load_n(g + i, n), k->grad_scale);
    struct kg_v16 m1 = kg_v16_fma(k->b1, load_moment(m, i, n), kg_v16_mul(k->g1, grad));
    struct kg_v16 v1 = kg_v16_fma(k->b2, load_moment(v, i, n),
                                  kg_v16_mul(k->g2, kg_v16_mul(grad, grad)));
    struct kg_v16 root = kg_v16_fma(kg_v16_sqrt(v1), k->inv_c2, k->eps);
    struct kg_v16 kept = kg_v16_mul(kg_v16_load_n(w + i, n), k->keep);
    kg_v16_store_n(w + i, kg_v16_fnma(k->rate, kg_v16_div(m1, root), kept), n);
    store_moment(m, i, m1, d, 0, n);
    store_moment(v, i, v1, d, 16, n);
}

/* Also stores runs of the new weights rounded to bf16 (kg_adamw.rounded). */
static kg_status round_runs(struct kg_vec w, const struct kg_adamw *a, struct kg_err *err)
{
    for (int32_t i = 0; i < a->n_rounded; i++) {
        const struct kg_rounded *r = &a->rounded[i];
        KG_TRY(kg_cpu_cast(kg_mat(r->to, KG_BF16, 1, r->n),
                           kg_mat(w.data + (r->first - a->first), KG_F32, 1, r->n), err));
    }
    return KG_OK;
}

kg_status kg_cpu_adamw(struct kg_vec w, struct kg_mat m, struct kg_mat v, struct kg_vec g,
                       const struct kg_adamw *a, struct kg_err *err)
{
    struct adamw k = adamw_constants(a);
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(w.n))
    for (int64_t first = 0; first < w.n; first += PIECE) {
        struct draws d = {.a = a, .group = -1};
        for (int64_t i = first, end = piece_end(first, w.n); i < end; i += KG_LANES)
            adamw_lanes(&k, w.data, &m, &v, g.data, i, &d, kg_cpu_lanes(end - i));
    }
    return round_runs(w, a, err);
}

/* ---- schedule-free AdamW ---- */

/* With x eliminated from the recursion (backend.h); c is the weight of the new z:
 *     y' = y + c (z - y) - lr (1 - b1 (1 - c)) d,   z' = z - lr d */
struct schedule_free {
    struct kg_v16 b2;
    struct kg_v16 g2; /* 1 - b2 */
    struct kg_v16 grad_scale;
    struct kg_v16 inv_c2; /* 1 / sqrt(1 - b2^t) */
    struct kg_v16 eps;
    struct kg_v16 decay;
    struct kg_v16 average;
    struct kg_v16 y_rate; /* lr (1 - b1 (1 - c)) */
    struct kg_v16 z_rate; /* lr */
};

static struct schedule_free schedule_free_constants(const struct kg_adamw *a)
{
    double c2 = 1.0 - kg_power((double)a->beta2, a->step);
    double moves = 1.0 - (double)a->beta1 * (1.0 - (double)a->average);

    return (struct schedule_free){
        .b2 = kg_v16_set1(a->beta2),
        .g2 = kg_v16_set1((float)(1.0 - (double)a->beta2)),
        .grad_scale = kg_v16_set1(a->grad_scale),
        .inv_c2 = kg_v16_set1((float)(1.0 / sqrt(c2))),
        .eps = kg_v16_set1(a->eps),
        .decay = kg_v16_set1(a->weight_decay),
        .average = kg_v16_set1(a->average),
        .y_rate = kg_v16_set1((float)((double)a->lr * moves)),
        .z_rate = kg_v16_set1(a->lr),
    };
}

static void schedule_free_lanes(const struct schedule_free *k, float *y, float *z,
                                const struct kg_mat *v, const float *g, int64_t i,
                                struct draws *d, int n)
{
    struct kg_v16 grad = kg_v16_mul(kg_v16_load_n(g + i, n), k->grad_scale);
    struct kg_v16 v1 = kg_v16_fma(k->b2, load_moment(v, i, n),
                                  kg_v16_mul(k->g2, kg_v16_mul(grad, grad)));
    struct kg_v16 root = kg_v16_fma(kg_v16_sqrt(v1), k->inv_c2, k->eps);
    struct kg_v16 y0 = kg_v16_load_n(y + i, n), z0 = kg_v16_load_n(z + i, n);
    struct kg_v16 move = kg_v16_fma(k->decay, y0, kg_v16_div(grad, root));
    struct kg_v16 nearer = kg_v16_fma(k->average, kg_v16_sub(z0, y0), y0);

    kg_v16_store_n(y + i, kg_v16_fnma(k->y_rate, move, nearer), n);
    kg_v16_store_n(z + i, kg_v16_fnma(k->z_rate, move, z0), n);
    store_moment(v, i, v1, d, 16, n);
}

kg_status kg_cpu_schedule_free(struct kg_vec y, struct kg_vec z, struct kg_mat v,
                               struct kg_vec g, const struct kg_adamw *a,
                               struct kg_err *err)
{
    struct schedule_free k = schedule_free_constants(a);
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(y.n))
    for (int64_t first = 0; first < y.n; first += PIECE) {
        struct draws d = {.a = a, .group = -1};
        for (int64_t i = first, end = piece_end(first, y.n); i < end; i += KG_LANES)
            schedule_free_lanes(&k, y.data, z.data, &v, g.data, i, &d,
                                kg_cpu_lanes(end - i));
    }
    return round_runs(y, a, err);
}

/* x = (y - (1 - b1) z) / b1 = y + (1/b1 - 1) (y - z): exactly y if y = z */
static void average_lanes(float *x, const float *y, const float *z, struct kg_v16 beyond,
                          int n)
{
    struct kg_v16 y0 = kg_v16_load_n(y, n);

    kg_v16_store_n(x, kg_v16_fma(beyond, kg_v16_sub(y0, kg_v16_load_n(z, n)), y0), n);
}

kg_status kg_cpu_schedule_free_average(struct kg_vec x, struct kg_vec y, struct kg_vec z,
                                       float beta1, struct kg_err *err)
{
    (void)err;
    struct kg_v16 beyond = kg_v16_set1((float)(1.0 / (double)beta1 - 1.0));
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(x.n))
    for (int64_t first = 0; first < x.n; first += PIECE)
        for (int64_t i = first, end = piece_end(first, x.n); i < end; i += KG_LANES)
            average_lanes(x.data + i, y.data + i, z.data + i, beyond,
                          kg_cpu_lanes(end - i));
    return KG_OK;
}

/* ---- moving average ---- */

/* avg = large + small; the FMA does not round the product with the larger weight. */
static void ema_lanes(float *avg, const float *w, bool keeps, float large, float small,
                      int lanes)
{
    struct kg_v16 a = kg_v16_load_n(avg, lanes), b = kg_v16_load_n(w, lanes);
    struct kg_v16 more = keeps ? a : b, less = keeps ? b : a;
    struct kg_v16 added = kg_v16_mul(kg_v16_set1(small), less);

    kg_v16_store_n(avg, kg_v16_fma(kg_v16_set1(large), more, added), lanes);
}

/* eta 0 copies w, and avg = w is kept exactly for every eta: the larger weight is at
 * least 1/2, so the smaller, 1 minus it, is exact; and the rounding error of the smaller
 * product is at most a quarter ulp of the result. Otherwise an anchor equal to the policy
 * would drift from it, and Adam amplifies any drift. */
kg_status kg_cpu_ema(struct kg_vec avg, struct kg_vec w, float eta, struct kg_err *err)
{
    (void)err;
    bool keeps = eta >= 0.5f;
    float large = keeps ? eta : (float)(1.0 - (double)eta);
    float small = 1.0f - large;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(avg.n))
    for (int64_t first = 0; first < avg.n; first += PIECE)
        for (int64_t i = first, end = piece_end(first, avg.n); i < end; i += KG_LANES)
            ema_lanes(avg.data + i, w.data + i, keeps, large, small,
                      kg_cpu_lanes(end - i));
    return KG_OK;
}

/* ---- sum ---- */
static void add_piece(float *y, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void scale_piece(float *y, float factor, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] *= factor;
}

kg_status kg_cpu_add(struct kg_vec y, struct kg_vec x, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(y.n))
    for (int64_t first = 0; first < y.n; first += PIECE)
        add_piece(y.data + first, x.data + first, piece_end(first, y.n) - first);
    return KG_OK;
}

kg_status kg_cpu_scale(struct kg_vec y, float factor, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(y.n))
    for (int64_t first = 0; first < y.n; first += PIECE)
        scale_piece(y.data + first, factor, piece_end(first, y.n) - first);
    return KG_OK;
}

/* ---- sum of squares ---- */
static double piece_squares(const float *x, const float *minus, int64_t n)
{
    double sum[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) {
            double d = (double)x[i + j] - (minus ? (double)minus[i + j] : 0.0);
            sum[j] += d * d;
        }
    for (; i < n; i++) {
        double d = (double)x[i] - (minus ? (double)minus[i] : 0.0);
        sum[0] += d * d;
    }
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) +
           ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

kg_status kg_cpu_sum_squares(double *out, struct kg_vec x, struct kg_vec minus,
                             struct kg_err *err)
{
    int64_t pieces = (x.n + PIECE - 1) / PIECE;
    double *sums = kg_cpu_scratch(KG_CPU_SCRATCH_SUMS, (size_t)pieces * sizeof *sums + 8,
                                  err);
    if (!sums)
        return err->code;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(x.n))
    for (int64_t p = 0; p < pieces; p++) {
        int64_t first = p * PIECE;
        sums[p] = piece_squares(x.data + first, minus.data ? minus.data + first : NULL,
                                piece_end(first, x.n) - first);
    }
    double total = 0;
    for (int64_t p = 0; p < pieces; p++)
        total += sums[p];
    *out = total;
    return KG_OK;
}
