/* RMS norm and bias, with their gradients.
 *
 * Rows are independent: each is one chain of lanes in column order. Sums over rows (dw,
 * db) are computed by strips of columns: in a strip, each chunk of 64 rows is added up
 * from zero, and then the chunks in order, so the result depends on the shape alone.
 */
#include "tensor/cpu/cpu_internal.h"

enum { STRIP = 2 * KG_LANES, CHUNK_ROWS = 64 };

/* Position of row r of a norm. If a matrix row has several heads, each is one row. */
struct place {
    int64_t n, d;
};
static struct place place_of(int64_t r, int64_t heads, int64_t width)
{
    const int64_t n = heads == 1 ? r : r / heads;
    return (struct place){n, (r - n * heads) * width};
}

/* ---- forward ---- */
static float row_inv(struct kg_mat x, struct place at, int64_t width, float eps)
{
    struct kg_v16 sum = kg_v16_zero();
    for (int64_t d = 0; d < width; d += KG_LANES) {
        struct kg_v16 v = kg_cpu_load(x, at.n, at.d + d, kg_cpu_lanes(width - d));
        sum = kg_v16_fma(v, v, sum);
    }
    return 1.0f / sqrtf(kg_v16_sum(sum) / (float)width + eps);
}

static void row_norm(struct kg_mat y, struct kg_mat x, struct place at, struct kg_vec w,
                     float inv)
{
    struct kg_v16 scale = kg_v16_set1(inv);
    for (int64_t d = 0; d < w.n; d += KG_LANES) {
        int lanes = kg_cpu_lanes(w.n - d);
        struct kg_v16 v = kg_v16_mul(kg_cpu_load(x, at.n, at.d + d, lanes), scale);
        kg_cpu_store(y, at.n, at.d + d, kg_v16_mul(kg_v16_load_n(w.data + d, lanes), v),
                     lanes);
    }
}

kg_status kg_cpu_rmsnorm(struct kg_mat y, struct kg_vec inv, struct kg_mat x,
                         struct kg_vec w, float eps, struct kg_err *err)
{
    (void)err;
    const int64_t rows = kg_norm_rows(x, w), heads = rows > 0 ? x.cols / w.n : 1;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(x.rows * x.cols))
    for (int64_t r = 0; r < rows; r++) {
        const struct place at = place_of(r, heads, w.n);
        float scale = row_inv(x, at, w.n, eps);
        row_norm(y, x, at, w, scale);
        if (inv.data)
            inv.data[r] = scale;
    }
    return KG_OK;
}

/* ---- sums over rows ---- */

/* out[d0..d0+STRIP) += sum_r g[r,d] (x ? x[r,d] inv[r] : 1), rows as in place_of */
static void strip_sum(struct kg_vec out, struct kg_mat g, const struct kg_mat *x,
                      const float *inv, int64_t d0)
{
    int lanes[2] = {kg_cpu_lanes(out.n - d0), kg_cpu_lanes(out.n - d0 - KG_LANES)};
    const int64_t rows = kg_norm_rows(g, out);
    for (int i = 0; i < 2 && lanes[i] > 0; i++) {
        const int64_t first = d0 + (int64_t)i * KG_LANES;
        struct kg_v16 total = kg_v16_load_n(out.data + first, lanes[i]);
        struct kg_v16 part = kg_v16_zero();
        for (int64_t r = 0, n = 0, d = first; r < rows; r++) {
            struct kg_v16 v = kg_cpu_load(g, n, d, lanes[i]);
            struct kg_v16 f = x ? kg_v16_mul(kg_cpu_load(*x, n, d, lanes[i]),
                                             kg_v16_set1(inv[r]))
                                : kg_v16_set1(1.0f);
            part = kg_v16_fma(v, f, part);
            if ((r + 1) % CHUNK_ROWS == 0 || r + 1 == rows) {
                total = kg_v16_add(total, part);
                part = kg_v16_zero();
            }
            d += out.n;
            if (d >= g.cols)
                n++, d = first;
        }
        kg_v16_store_n(out.data + first, total, lanes[i]);
    }
}

static void sum_rows(struct kg_vec out, struct kg_mat g, const struct kg_mat *x,
                     const float *inv)
{
#pragma omp parallel for schedule(dynamic) if (kg_cpu_use_threads(g.rows * g.cols))
    for (int64_t d0 = 0; d0 < out.n; d0 += STRIP)
        strip_sum(out, g, x, inv, d0);
}

/* ---- backward ---- */

/* y_d = w_d x_d r with r = (mean x^2 + eps)^-1/2, so dr/dx_d = -r^3 x_d / D and
 * dL/dx_d = r w_d dy_d - x_d r^3 / D sum_e w_e dy_e x_e  =  r (w_d dy_d - x_d c) */
static void row_bwd(struct kg_mat dx, bool accumulate, struct kg_mat dy, struct kg_mat x,
                    struct kg_vec w, float r, struct place at)
{
    struct kg_v16 sum = kg_v16_zero();
    for (int64_t d = 0; d < w.n; d += KG_LANES) {
        int lanes = kg_cpu_lanes(w.n - d);
        struct kg_v16 g = kg_v16_mul(kg_v16_load_n(w.data + d, lanes),
                                     kg_cpu_load(dy, at.n, at.d + d, lanes));
        sum = kg_v16_fma(g, kg_cpu_load(x, at.n, at.d + d, lanes), sum);
    }
    struct kg_v16 c = kg_v16_set1(r * r * kg_v16_sum(sum) / (float)w.n);
    struct kg_v16 scale = kg_v16_set1(r);
    for (int64_t d = 0; d < w.n; d += KG_LANES) {
        int lanes = kg_cpu_lanes(w.n - d);
        struct kg_v16 g = kg_v16_mul(kg_v16_load_n(w.data + d, lanes),
                                     kg_cpu_load(dy, at.n, at.d + d, lanes));
        g = kg_v16_mul(scale, kg_v16_fnma(kg_cpu_load(x, at.n, at.d + d, lanes), c, g));
        if (accumulate)
            g = kg_v16_add(kg_cpu_load(dx, at.n, at.d + d, lanes), g);
        kg_cpu_store(dx, at.n, at.d + d, g, lanes);
    }
}

kg_status kg_cpu_rmsnorm_bwd(struct kg_mat dx, bool accumulate, struct kg_vec dw,
                             struct kg_mat dy, struct kg_mat x, struct kg_vec w,
                             struct kg_vec inv, struct kg_err *err)
{
    (void)err;
    const int64_t rows = kg_norm_rows(x, w), heads = rows > 0 ? x.cols / w.n : 1;
    if (dw.data)
        sum_rows(dw, dy, &x, inv.data); /* before dx is written, which may be dy */
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(x.rows * x.cols))
    for (int64_t r = 0; r < rows; r++)
        row_bwd(dx, accumulate, dy, x, w, inv.data[r], place_of(r, heads, w.n));
    return KG_OK;
}

/* ---- bias ---- */
kg_status kg_cpu_bias(struct kg_mat y, struct kg_vec b, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(y.rows * y.cols))
    for (int64_t n = 0; n < y.rows; n++)
        for (int64_t d = 0; d < y.cols; d += KG_LANES) {
            int lanes = kg_cpu_lanes(y.cols - d);
            struct kg_v16 v = kg_cpu_load(y, n, d, lanes);
            kg_cpu_store(y, n, d, kg_v16_add(v, kg_v16_load_n(b.data + d, lanes)), lanes);
        }
    return KG_OK;
}

kg_status kg_cpu_bias_bwd(struct kg_vec db, struct kg_mat dy, struct kg_err *err)
{
    (void)err;
    sum_rows(db, dy, NULL, NULL);
    return KG_OK;
}
