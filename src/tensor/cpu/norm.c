/* RMS norm and bias, with their gradients.
 *
 * Rows are independent: each is one chain of lanes in column order. Sums over rows (dw,
 * db) are made by strips of columns: within a strip, rows are added in chunks of 64 from
 * zero and the chunks in order, so the result depends on the shape alone.
 */
#include "tensor/cpu/cpu_internal.h"

enum { STRIP = 2 * KG_LANES, CHUNK_ROWS = 64 };

/* Row r of a norm of so many columns: a row of m, or a head of one. */
static struct kg_mat norm_row(struct kg_mat m, int64_t r, int64_t cols)
{
    const int64_t heads = m.cols / cols;
    return kg_mat_cols(kg_mat_rows(m, r / heads, 1), r % heads * cols, cols);
}

/* ---- forward ---- */
static float row_inv(struct kg_mat x, float eps)
{
    struct kg_v16 sum = kg_v16_zero();
    for (int64_t d = 0; d < x.cols; d += KG_LANES) {
        struct kg_v16 v = kg_cpu_load(x, 0, d, kg_cpu_lanes(x.cols - d));
        sum = kg_v16_fma(v, v, sum);
    }
    return 1.0f / sqrtf(kg_v16_sum(sum) / (float)x.cols + eps);
}

static void row_norm(struct kg_mat y, struct kg_mat x, const float *w, float inv)
{
    struct kg_v16 scale = kg_v16_set1(inv);
    for (int64_t d = 0; d < x.cols; d += KG_LANES) {
        int lanes = kg_cpu_lanes(x.cols - d);
        struct kg_v16 v = kg_v16_mul(kg_cpu_load(x, 0, d, lanes), scale);
        kg_cpu_store(y, 0, d, kg_v16_mul(kg_v16_load_n(w + d, lanes), v), lanes);
    }
}

kg_status kg_cpu_rmsnorm(struct kg_mat y, struct kg_vec inv, struct kg_mat x,
                         struct kg_vec w, float eps, struct kg_err *err)
{
    (void)err;
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(x.rows * x.cols))
    for (int64_t r = 0; r < kg_norm_rows(x, w); r++) {
        const struct kg_mat row = norm_row(x, r, w.n);
        float scale = row_inv(row, eps);
        row_norm(norm_row(y, r, w.n), row, w.data, scale);
        if (inv.data)
            inv.data[r] = scale;
    }
    return KG_OK;
}

/* ---- sums over rows ---- */

/* out[d0..d0+STRIP) += sum_r g[r,d] (x ? x[r,d] inv[r] : 1), r as in norm_row */
static void strip_sum(struct kg_vec out, struct kg_mat g, const struct kg_mat *x,
                      const float *inv, int64_t d0)
{
    int lanes[2] = {kg_cpu_lanes(out.n - d0), kg_cpu_lanes(out.n - d0 - KG_LANES)};
    const int64_t rows = kg_norm_rows(g, out), heads = g.cols / out.n;
    for (int i = 0; i < 2 && lanes[i] > 0; i++) {
        const int64_t first = d0 + (int64_t)i * KG_LANES;
        struct kg_v16 total = kg_v16_load_n(out.data + first, lanes[i]);
        struct kg_v16 part = kg_v16_zero();
        for (int64_t r = 0, n = 0, h = 0; r < rows; r++) {
            const int64_t d = h * out.n + first;
            struct kg_v16 v = kg_cpu_load(g, n, d, lanes[i]);
            struct kg_v16 f = x ? kg_v16_mul(kg_cpu_load(*x, n, d, lanes[i]),
                                             kg_v16_set1(inv[r]))
                                : kg_v16_set1(1.0f);
            part = kg_v16_fma(v, f, part);
            if ((r + 1) % CHUNK_ROWS == 0 || r + 1 == rows) {
                total = kg_v16_add(total, part);
                part = kg_v16_zero();
            }
            h = h + 1 < heads ? h + 1 : 0;
            n += h == 0;
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
                    const float *w, float r)
{
    struct kg_v16 sum = kg_v16_zero();
    for (int64_t d = 0; d < x.cols; d += KG_LANES) {
        int lanes = kg_cpu_lanes(x.cols - d);
        struct kg_v16 g = kg_v16_mul(kg_v16_load_n(w + d, lanes),
                                     kg_cpu_load(dy, 0, d, lanes));
        sum = kg_v16_fma(g, kg_cpu_load(x, 0, d, lanes), sum);
    }
    struct kg_v16 c = kg_v16_set1(r * r * kg_v16_sum(sum) / (float)x.cols);
    struct kg_v16 scale = kg_v16_set1(r);
    for (int64_t d = 0; d < x.cols; d += KG_LANES) {
        int lanes = kg_cpu_lanes(x.cols - d);
        struct kg_v16 g = kg_v16_mul(kg_v16_load_n(w + d, lanes),
                                     kg_cpu_load(dy, 0, d, lanes));
        g = kg_v16_mul(scale, kg_v16_fnma(kg_cpu_load(x, 0, d, lanes), c, g));
        if (accumulate)
            g = kg_v16_add(kg_cpu_load(dx, 0, d, lanes), g);
        kg_cpu_store(dx, 0, d, g, lanes);
    }
}

kg_status kg_cpu_rmsnorm_bwd(struct kg_mat dx, bool accumulate, struct kg_vec dw,
                             struct kg_mat dy, struct kg_mat x, struct kg_vec w,
                             struct kg_vec inv, struct kg_err *err)
{
    (void)err;
    if (dw.data)
        sum_rows(dw, dy, &x, inv.data); /* first: dx may be dy */
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(x.rows * x.cols))
    for (int64_t r = 0; r < kg_norm_rows(x, w); r++)
        row_bwd(norm_row(dx, r, w.n), accumulate, norm_row(dy, r, w.n),
                norm_row(x, r, w.n), w.data, inv.data[r]);
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
