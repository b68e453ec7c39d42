/* RMS norm and bias, with their gradients.
 *
 * A row belongs to sixteen lanes, which are the CPU's: each is a chain in column order,
 * and they are added by its tree. Sums over rows (dw, db) are made by strips of columns:
 * a lane a column, rows in chunks of 64 from zero, the chunks in order.
 */
#include "tensor/cuda/cuda_internal.h"

enum { STRIP = 32, WARPS = 8, CHUNK_ROWS = 64 };

/* ---- forward ---- */
static __global__ void rmsnorm(struct kg_mat y, struct kg_vec inv, struct kg_mat x,
                               struct kg_vec w, float eps)
{
    const struct kg_cuda_lane l = kg_cuda_lane_of(x.rows);
    float sum = 0.0f, scale;

    for (int64_t d = l.first; l.there && d < x.cols; d += KG_CUDA_LANES) {
        const float v = kg_cuda_f32(x, l.row)[d];

        sum = kg_fma(v, v, sum);
    }
    scale = 1.0f / sqrtf(kg_cuda_sum_lanes(sum) / (float)x.cols + eps);
    for (int64_t d = l.first; l.there && d < x.cols; d += KG_CUDA_LANES)
        kg_cuda_store(y, l.row, d, w.data[d] * (kg_cuda_f32(x, l.row)[d] * scale));
    if (inv.data && l.there && l.first == 0)
        inv.data[l.row] = scale;
}

kg_status kg_cuda_rmsnorm(struct kg_mat y, struct kg_vec inv, struct kg_mat x,
                          struct kg_vec w, float eps, struct kg_err *err)
{
    if (x.rows > 0)
        KG_LAUNCH(rmsnorm, kg_cuda_lanes(x.rows), KG_ROW_THREADS, y, inv, x, w, eps);
    return kg_dev_done("rmsnorm", err);
}

/* ---- sums over rows ---- */
/* One chunk of column d of g, or of g x inv. */
static __device__ float chunk_sum(struct kg_mat g, struct kg_mat x, struct kg_vec inv,
                                  int64_t first, int64_t d)
{
    const int64_t end = kg_cuda_min(first + CHUNK_ROWS, g.rows);
    float sum = 0.0f;

    for (int64_t n = first; n < end; n++) {
        const float f = inv.data ? kg_cuda_f32(x, n)[d] * inv.data[n] : 1.0f;

        sum = kg_fma(kg_cuda_load(g, n, d), f, sum);
    }
    return sum;
}

/* out[d] += sum_n g[n,d] (inv ? x[n,d] inv[n] : 1): a warp a chunk, the first adds */
static __global__ void sum_rows(struct kg_vec out, struct kg_mat g, struct kg_mat x,
                                struct kg_vec inv)
{
    KG_SHARED(float, part, [WARPS][STRIP]);
    const int lane = (int)threadIdx.x % STRIP, warp = (int)threadIdx.x / STRIP;
    const int64_t d = (int64_t)blockIdx.x * STRIP + lane;
    const bool there = d < g.cols;
    float total = there ? out.data[d] : 0.0f;

    for (int64_t n = 0; n < g.rows; n += WARPS * CHUNK_ROWS) {
        const int64_t first = n + warp * CHUNK_ROWS;

        part[warp][lane] = there && first < g.rows ? chunk_sum(g, x, inv, first, d)
                                                   : 0.0f;
        __syncthreads();
        for (int i = 0; warp == 0 && i < WARPS && n + i * CHUNK_ROWS < g.rows; i++)
            total += part[i][lane];
        __syncthreads();
    }
    if (warp == 0 && there)
        out.data[d] = total;
}

static void launch_sum(struct kg_vec out, struct kg_mat g, struct kg_mat x,
                       struct kg_vec inv)
{
    if (g.rows > 0 && g.cols > 0)
        KG_LAUNCH(sum_rows, kg_grid(kg_cuda_pieces(g.cols, STRIP), 1), STRIP * WARPS, out,
                  g, x, inv);
}

/* ---- backward ---- */
/* dL/dx_d = r (w_d dy_d - x_d c), see cpu/norm.c */
static __global__ void rmsnorm_bwd(struct kg_mat dx, bool accumulate, struct kg_mat dy,
                                   struct kg_mat x, struct kg_vec w, struct kg_vec inv)
{
    const struct kg_cuda_lane l = kg_cuda_lane_of(x.rows);
    const float r = l.there ? inv.data[l.row] : 0.0f;
    float sum = 0.0f, c;

    for (int64_t d = l.first; l.there && d < x.cols; d += KG_CUDA_LANES)
        sum = kg_fma(w.data[d] * kg_cuda_f32(dy, l.row)[d], kg_cuda_f32(x, l.row)[d],
                     sum);
    c = r * r * kg_cuda_sum_lanes(sum) / (float)x.cols;
    for (int64_t d = l.first; l.there && d < x.cols; d += KG_CUDA_LANES) {
        const float g = w.data[d] * kg_cuda_f32(dy, l.row)[d];
        const float to = r * kg_fma(-kg_cuda_f32(x, l.row)[d], c, g);
        float *out = kg_cuda_f32(dx, l.row) + d;

        *out = accumulate ? *out + to : to;
    }
}

kg_status kg_cuda_rmsnorm_bwd(struct kg_mat dx, bool accumulate, struct kg_vec dw,
                              struct kg_mat dy, struct kg_mat x, struct kg_vec w,
                              struct kg_vec inv, struct kg_err *err)
{
    if (dw.data)
        launch_sum(dw, dy, x, inv); /* first: dx may be dy */
    if (x.rows > 0)
        KG_LAUNCH(rmsnorm_bwd, kg_cuda_lanes(x.rows), KG_ROW_THREADS, dx, accumulate, dy,
                  x, w, inv);
    return kg_dev_done("rmsnorm_bwd", err);
}

/* ---- bias ---- */
static __global__ void bias(struct kg_mat y, struct kg_vec b)
{
    const int64_t n = blockIdx.x, end = kg_cuda_end(y.cols);

    for (int64_t d = kg_cuda_first(); d < end; d += KG_ROW_THREADS)
        kg_cuda_f32(y, n)[d] += b.data[d];
}

kg_status kg_cuda_bias(struct kg_mat y, struct kg_vec b, struct kg_err *err)
{
    if (y.rows > 0 && y.cols > 0)
        KG_LAUNCH(bias, kg_cuda_rows(y.rows, y.cols), KG_ROW_THREADS, y, b);
    return kg_dev_done("bias", err);
}

kg_status kg_cuda_bias_bwd(struct kg_vec db, struct kg_mat dy, struct kg_err *err)
{
    const struct kg_vec none = {NULL, 0};

    launch_sum(db, dy, dy, none);
    return kg_dev_done("bias_bwd", err);
}
