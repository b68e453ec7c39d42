/* Experts: which expert gets which token, sums of their outputs, and the gradients of
 * both.
 *
 * To choose experts, a warp has a token, and its lanes have the experts; every lane
 * computes the sums, in the CPU's order of experts or slots. To assign places, a block
 * has an expert and finds its slots among all, in order: each warp counts those in its
 * run of slots, then assigns places after those of earlier warps. So no block waits for
 * another. The products are in product.cu.
 */
#include "tensor/cuda/cuda_internal.h"

enum { WARPS = 16 /* of the block that places an expert */ };

static __device__ int warp_sum(int x)
{
    for (unsigned by = KG_WARP / 2; by > 0; by /= 2)
        x += __shfl_xor_sync(~0u, x, by);
    return x;
}

/* ---- routes ---- */
/* p = softmax(z), by a block of one warp */
static __device__ void softmax(float *p, const float *z, int32_t n, int lane)
{
    float top = z[0], sum = 0.0f;

    for (int32_t e = lane; e < n; e += KG_WARP)
        top = z[e] > top ? z[e] : top;
    for (unsigned by = KG_WARP / 2; by > 0; by /= 2) {
        const float other = __shfl_xor_sync(~0u, top, by);

        top = other > top ? other : top;
    }
    for (int32_t e = lane; e < n; e += KG_WARP)
        p[e] = kg_cuda_exp(z[e] - top);
    __syncthreads();
    for (int32_t e = 0; e < n; e++)
        sum += p[e];
    __syncthreads();
    for (int32_t e = lane; e < n; e += KG_WARP)
        p[e] /= sum;
    __syncthreads();
}

struct candidate {
    float p;
    int32_t e;
};
static __device__ struct candidate better(struct candidate a, struct candidate b)
{
    return a.p > b.p || (!(b.p > a.p) && a.e < b.e) ? a : b;
}

/* The k largest, ties by smaller index. If one p is NaN all are, and the first k are
 * chosen. */
static __device__ void choose(int32_t *ids, const float *p, int32_t n, int32_t k,
                              int lane)
{
    uint32_t taken = 0; /* bits of this lane's experts */

    for (int32_t i = 0; i < k; i++) {
        struct candidate best = {-1.0f, KG_MAX_EXPERTS};

        for (int32_t e = lane; e < n; e += KG_WARP)
            if (!(taken >> e / KG_WARP & 1u))
                best = better({p[e], e}, best);
        for (unsigned by = KG_WARP / 2; by > 0; by /= 2) {
            const float other = __shfl_xor_sync(~0u, best.p, by);

            best = better({other, __shfl_xor_sync(~0u, best.e, by)}, best);
        }
        if (best.e % KG_WARP == lane)
            taken |= 1u << best.e / KG_WARP;
        if (lane == 0)
            ids[i] = best.e;
    }
}

static __device__ float chosen_sum(const float *p, const int32_t *ids, int32_t k)
{
    float sum = 0.0f;

    for (int32_t i = 0; i < k; i++)
        sum += p[ids[i]];
    return sum;
}

static __global__ void route_tokens(struct kg_route r, struct kg_mat logits,
                                    const int32_t *given)
{
    KG_SHARED(float, p, [KG_MAX_EXPERTS]);
    KG_SHARED(int32_t, ids, [KG_MAX_EXPERTS]);
    const int64_t n = blockIdx.x, slot = n * r.k;
    const int lane = (int)threadIdx.x;
    float sum;

    softmax(p, kg_cuda_f32(logits, n), r.n_experts, lane);
    if (!given || given[slot] < 0)
        choose(ids, p, r.n_experts, r.k, lane);
    else
        for (int32_t i = lane; i < r.k; i += KG_WARP)
            ids[i] = given[slot + i];
    __syncthreads();
    sum = r.normalise ? chosen_sum(p, ids, r.k) : 1.0f;
    for (int32_t e = lane; e < r.n_experts; e += KG_WARP)
        kg_cuda_f32(r.p, n)[e] = p[e];
    for (int32_t i = lane; i < r.k; i += KG_WARP) {
        r.ids[slot + i] = ids[i];
        kg_cuda_f32(r.weight, n)[i] = p[ids[i]] / sum;
    }
}

/* Assigns places from `place` on to expert e's slots among [first, end), by one warp. */
static __device__ void place_run(const struct kg_route &r, int32_t e, int64_t first,
                                 int64_t end, int32_t place, int lane)
{
    for (int64_t s = first + lane; s - lane < end; s += KG_WARP) {
        const bool mine = s < end && r.ids[s] == e;
        const unsigned all = __ballot_sync(~0u, mine);

        if (mine) {
            const int32_t at = place + __popc(all & ((1u << lane) - 1u));

            r.place[s] = at;
            r.token[at] = (int32_t)s / r.k;
        }
        place += __popc(all);
    }
}

static __global__ void place_slots(struct kg_route r, int64_t slots)
{
    KG_SHARED(int, own, [WARPS]);
    KG_SHARED(int, less, [WARPS]);
    const int32_t e = (int32_t)blockIdx.x;
    const int warp = (int)threadIdx.x / KG_WARP, lane = (int)threadIdx.x % KG_WARP;
    const int64_t run = (slots + WARPS * KG_WARP - 1) / (WARPS * KG_WARP) * KG_WARP;
    const int64_t first = warp * run, end = kg_cuda_min(first + run, slots);
    int mine = 0, below = 0;

    for (int64_t s = first + lane; s < end; s += KG_WARP) {
        mine += r.ids[s] == e;
        below += r.ids[s] < e;
    }
    mine = warp_sum(mine);
    below = warp_sum(below);
    if (lane == 0) {
        own[warp] = mine;
        less[warp] = below;
    }
    __syncthreads();
    int32_t place = 0;
    for (int w = 0; w < WARPS; w++)
        place += less[w];
    if (threadIdx.x == 0)
        r.first[e] = place;
    if (threadIdx.x == 0 && e + 1 == r.n_experts)
        r.first[e + 1] = (int32_t)slots;
    for (int w = 0; w < warp; w++)
        place += own[w];
    place_run(r, e, first, end, place, lane);
}

kg_status kg_cuda_route(const struct kg_route *r, struct kg_mat logits,
                        struct kg_ivec given, struct kg_err *err)
{
    if (logits.rows > 0)
        KG_LAUNCH(route_tokens, kg_grid(logits.rows, 1), KG_WARP, *r, logits, given.data);
    KG_LAUNCH(place_slots, kg_grid(r->n_experts, 1), WARPS * KG_WARP, *r,
              logits.rows * r->k);
    return kg_dev_done("route", err);
}

/* With w_i = p_i / S:   dp_i = (dw_i - sum_j dw_j w_j) / S;   dz = p (dp - sum p dp) */
static __global__ void route_bwd(struct kg_mat dlogits, struct kg_route r,
                                 struct kg_mat dweight, struct kg_vec dp)
{
    KG_SHARED(float, g, [KG_MAX_EXPERTS]);
    const int64_t n = blockIdx.x;
    const int lane = (int)threadIdx.x;
    const float *p = kg_cuda_f32(r.p, n), *w = kg_cuda_f32(r.weight, n);
    const float *dw = kg_cuda_f32(dweight, n);
    const int32_t *ids = r.ids + n * r.k;
    const float sum = r.normalise ? chosen_sum(p, ids, r.k) : 1.0f;
    float mean = 0.0f, whole = 0.0f;

    for (int32_t e = lane; e < r.n_experts; e += KG_WARP)
        g[e] = dp.data ? dp.data[e] : 0.0f;
    for (int32_t i = 0; i < r.k && r.normalise; i++)
        mean += dw[i] * w[i];
    __syncthreads();
    for (int32_t i = 0; i < r.k && lane == 0; i++)
        g[ids[i]] += (dw[i] - mean) / sum;
    __syncthreads();
    for (int32_t e = 0; e < r.n_experts; e++)
        whole += p[e] * g[e];
    for (int32_t e = lane; e < r.n_experts; e += KG_WARP)
        kg_cuda_f32(dlogits, n)[e] = p[e] * (g[e] - whole);
}

kg_status kg_cuda_route_bwd(struct kg_mat dlogits, const struct kg_route *r,
                            struct kg_mat dweight, struct kg_vec dp, struct kg_err *err)
{
    if (dlogits.rows > 0)
        KG_LAUNCH(route_bwd, kg_grid(dlogits.rows, 1), KG_WARP, dlogits, *r, dweight, dp);
    return kg_dev_done("route_bwd", err);
}

/* ---- weighted sums ---- */
static __global__ void combine(struct kg_mat y, struct kg_mat x, struct kg_mat weight,
                               const int32_t *place, bool accumulate)
{
    const int64_t n = blockIdx.x, slot = n * weight.cols, end = kg_cuda_end(y.cols);

    for (int64_t d = kg_cuda_first(); d < end; d += KG_ROW_THREADS) {
        float *to = kg_cuda_f32(y, n) + d, sum = 0.0f;

        for (int64_t k = 0; k < weight.cols; k++) {
            const int64_t row = place ? place[slot + k] : slot + k;
            const float w = weight.data ? kg_cuda_f32(weight, n)[k] : 1.0f;

            sum = kg_fma(w, kg_cuda_f32(x, row)[d], sum);
        }
        *to = accumulate ? *to + sum : sum;
    }
}

kg_status kg_cuda_combine(struct kg_mat y, struct kg_mat x, struct kg_mat weight,
                          struct kg_ivec place, bool accumulate, struct kg_err *err)
{
    if (y.rows > 0 && y.cols > 0)
        KG_LAUNCH(combine, kg_cuda_rows(y.rows, y.cols), KG_ROW_THREADS, y, x, weight,
                  place.data, accumulate);
    return kg_dev_done("combine", err);
}

/* Sixteen lanes compute a slot, in the order of the CPU's lanes. */
static __global__ void combine_bwd(struct kg_mat dweight, struct kg_mat dx,
                                   struct kg_mat x, struct kg_mat weight,
                                   const int32_t *place)
{
    const struct kg_cuda_lane l = kg_cuda_lane_of(weight.rows * weight.cols);
    const int64_t n = l.row / weight.cols, k = l.row % weight.cols;
    const int64_t row = l.there && place ? place[l.row] : l.row;
    const float w = l.there ? kg_cuda_f32(weight, n)[k] : 0.0f;
    float sum = 0.0f;

    for (int64_t f = l.first; l.there && f < x.cols; f += KG_CUDA_LANES) {
        const float d = kg_cuda_f32(dx, row)[f], v = kg_cuda_load(x, row, f);

        sum = kg_fma(d, v, sum);
        kg_cuda_f32(dx, row)[f] = w * d;
        kg_cuda_store(x, row, f, w * v);
    }
    sum = kg_cuda_sum_lanes(sum);
    if (l.there && l.first == 0)
        kg_cuda_f32(dweight, n)[k] = sum;
}

kg_status kg_cuda_combine_bwd(struct kg_mat dweight, struct kg_mat dx, struct kg_mat x,
                              struct kg_mat weight, struct kg_ivec place,
                              struct kg_err *err)
{
    if (weight.rows * weight.cols > 0)
        KG_LAUNCH(combine_bwd, kg_cuda_lanes(weight.rows * weight.cols), KG_ROW_THREADS,
                  dweight, dx, x, weight, place.data);
    return kg_dev_done("combine_bwd", err);
}

/* ---- the gate of a shared expert ---- */
static __global__ void sigmoid(struct kg_vec y, struct kg_vec x)
{
    const int64_t i = kg_cuda_flat();

    if (i < y.n)
        y.data[i] = 1.0f / (1.0f + kg_cuda_exp(0.0f - x.data[i]));
}

kg_status kg_cuda_sigmoid(struct kg_vec y, struct kg_vec x, struct kg_err *err)
{
    if (y.n > 0)
        KG_LAUNCH(sigmoid, kg_cuda_all(y.n), KG_FLAT_THREADS, y, x);
    return kg_dev_done("sigmoid", err);
}

static __global__ void sigmoid_bwd(struct kg_vec dx, struct kg_vec dy, struct kg_vec y)
{
    const int64_t i = kg_cuda_flat();

    if (i < y.n)
        dx.data[i] = dy.data[i] * (y.data[i] * (1.0f - y.data[i]));
}

kg_status kg_cuda_sigmoid_bwd(struct kg_vec dx, struct kg_vec dy, struct kg_vec y,
                              struct kg_err *err)
{
    if (y.n > 0)
        KG_LAUNCH(sigmoid_bwd, kg_cuda_all(y.n), KG_FLAT_THREADS, dx, dy, y);
    return kg_dev_done("sigmoid_bwd", err);
}
