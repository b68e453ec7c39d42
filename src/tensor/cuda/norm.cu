/* RMS norm and bias, with their gradients.
 *
 * A row belongs to sixteen lanes, which are the CPU's: each is a chain in column order,
 * and they are added by its tree. Sums over rows (dw, db) are made by strips of columns:
 * a lane a column, rows in chunks of 64 from zero, each by a warp, then the chunks in
 * order by a thread a column. A lane has eight elements under way at a time, as few rows
 * are all that a device has to do when it decodes.
 */
#include "tensor/cuda/cuda_internal.h"

enum { STRIP = 32, WARPS = 8, CHUNK_ROWS = 64, AT_ONCE = KG_CUDA_AT_ONCE };

/* ---- forward ---- */
static __global__ void rmsnorm(struct kg_mat y, struct kg_vec inv, struct kg_mat x,
                               struct kg_vec w, float eps)
{
    enum { TURN = KG_CUDA_TURN };
    const struct kg_cuda_lane l = kg_cuda_lane_of(x.rows);
    const float *row = kg_cuda_f32(x, l.row);
    float sum = 0.0f, scale, v[AT_ONCE], by[AT_ONCE];

    for (int64_t d = l.first; l.there && d < x.cols; d += TURN) {
        kg_cuda_take(v, row, d, x.cols);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) /* a sum of squares is no -0: 0 adds nothing */
            sum = kg_fma(v[i], v[i], sum);
    }
    scale = 1.0f / sqrtf(kg_cuda_sum_lanes(sum) / (float)x.cols + eps);
    for (int64_t d = l.first; l.there && d < x.cols; d += TURN) {
        kg_cuda_take(v, row, d, x.cols);
        kg_cuda_take(by, w.data, d, x.cols);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (d + i * KG_CUDA_LANES < x.cols)
                kg_cuda_store(y, l.row, d + i * KG_CUDA_LANES, by[i] * (v[i] * scale));
    }
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

/* part[c,d] <- the sum of chunk c: a warp a chunk */
static __global__ void sum_chunks(float *part, struct kg_mat g, struct kg_mat x,
                                  struct kg_vec inv)
{
    const int lane = (int)threadIdx.x % STRIP, warp = (int)threadIdx.x / STRIP;
    const int64_t d = (int64_t)blockIdx.y * STRIP + lane;
    const int64_t chunk = (int64_t)blockIdx.x * WARPS + warp;

    if (d < g.cols && chunk * CHUNK_ROWS < g.rows)
        part[chunk * g.cols + d] = chunk_sum(g, x, inv, chunk * CHUNK_ROWS, d);
}

/* out[d] += part[0,d] + ..., one after the other */
static __global__ void add_chunks(struct kg_vec out, const float *part, int64_t chunks,
                                  int64_t cols)
{
    const int64_t d = kg_cuda_flat();
    float total;

    if (d >= cols)
        return;
    total = out.data[d];
#pragma unroll 32
    for (int64_t c = 0; c < chunks; c++)
        total += part[c * cols + d];
    out.data[d] = total;
}

/* out[d] += sum_n g[n,d] (inv ? x[n,d] inv[n] : 1) */
static kg_status launch_sum(struct kg_vec out, struct kg_mat g, struct kg_mat x,
                            struct kg_vec inv, struct kg_err *err)
{
    const int64_t chunks = kg_cuda_pieces(g.rows, CHUNK_ROWS);
    float *part;

    if (g.rows == 0 || g.cols == 0)
        return KG_OK;
    part = (float *)kg_cuda_scratch((uint64_t)(chunks * g.cols) * sizeof *part, err);
    if (!part)
        return err->code;
    KG_LAUNCH(sum_chunks,
              kg_grid(kg_cuda_pieces(chunks, WARPS), kg_cuda_pieces(g.cols, STRIP)),
              STRIP * WARPS, part, g, x, inv);
    KG_LAUNCH(add_chunks, kg_cuda_all(g.cols), KG_FLAT_THREADS, out, (const float *)part,
              chunks, g.cols);
    return KG_OK;
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
        KG_TRY(launch_sum(dw, dy, x, inv, err)); /* first: dx may be dy */
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

    KG_TRY(launch_sum(db, dy, dy, none, err));
    return kg_dev_done("bias_bwd", err);
}
