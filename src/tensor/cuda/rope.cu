/* Rotary position embedding in place, its inverse, and kg_op_heads, which joins it with
 * bias, rounding and scattering. Angle, sine and cosine are those of cpu/rope.c. */
#include "tensor/cuda/cuda_internal.h"

struct rotation {
    float cos;
    float sin;
};

static __device__ float nearest(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

static __device__ struct rotation small_angle(float r)
{
    const float r2 = r * r;
    float s = kg_fma(r2, 0x1.71de3ap-19f, -0x1.a01a02p-13f);
    float c = kg_fma(r2, -0x1.27e4fcp-22f, 0x1.a01a02p-16f);

    s = kg_fma(r2, s, 0x1.111112p-7f);
    s = kg_fma(r2, s, -0x1.555556p-3f);
    c = kg_fma(r2, c, -0x1.6c16c2p-10f);
    c = kg_fma(r2, c, 0x1.555556p-5f);
    c = kg_fma(r2, c, -0.5f);
    return {kg_fma(r2, c, 1.0f), kg_fma(r * r2, s, r)};
}

static __device__ struct rotation rotation_of(float a)
{
    const float n = nearest(a * 0x1.45f306p-1f);
    const float q = kg_fma(-4.0f, nearest(n * 0.25f), n), q2 = q * q;
    const bool odd = q2 > 0.5f && !(q2 > 2.0f);
    const float flip = q2 > 2.0f ? -1.0f : 1.0f;
    float r = kg_fma(-n, 0x1.921fb6p+0f, a);
    struct rotation t;

    r = kg_fma(-n, -0x1.777a5cp-25f, r);
    r = kg_fma(-n, -0x1.ee59dap-50f, r);
    t = small_angle(r);
    return {(odd ? t.sin : t.cos) * (odd ? 0.0f - q : flip),
            (odd ? t.cos : t.sin) * (-0.5f > q ? -1.0f : flip)};
}

static __device__ void turn(float *a, float *b, float angle, float cos_factor,
                            float sin_factor)
{
    const struct rotation t = rotation_of(angle);
    const float c = t.cos * cos_factor, s = t.sin * sin_factor, x = *a, y = *b;

    *a = kg_fma(-y, s, x * c);
    *b = kg_fma(x, s, y * c);
}

/* A thread per pair: element i of a head's rotated part, and the one half of the part
 * after it. */
static __global__ void rope(struct kg_mat x, struct kg_turn by, float sin_factor)
{
    const int64_t n = blockIdx.x, half = by.inv_freq.n;
    const int64_t end = kg_cuda_end(x.cols / by.head_dim * half);

    for (int64_t p = kg_cuda_first(); p < end; p += KG_ROW_THREADS) {
        float *lo = kg_cuda_f32(x, n) + p / half * by.head_dim + p % half;

        turn(lo, lo + half, (float)by.pos.data[n] * by.inv_freq.data[p % half],
             by.attention_factor, sin_factor);
    }
}

kg_status kg_cuda_rope(struct kg_mat x, const struct kg_turn *by, bool inverse,
                       struct kg_err *err)
{
    if (x.rows > 0 && x.cols > 0)
        KG_LAUNCH(rope, kg_cuda_rows(x.rows, x.cols / by->head_dim * by->inv_freq.n),
                  KG_ROW_THREADS, x, *by,
                  inverse ? -by->attention_factor : by->attention_factor);
    return kg_dev_done("rope", err);
}

/* ---- bias, rope, rounding and scattering ---- */
struct list {
    int n;
    struct kg_heads of[KG_HEADS_AT_ONCE];
};

/* Pairs per row; if its length is odd, the last element is alone. */
static __host__ __device__ inline int64_t pairs_of(const struct kg_heads *h)
{
    return (h->x.cols + 1) / 2;
}

/* Pair p of a row: two rotated elements, or two others of its head. */
static __device__ void one_pair(const struct kg_heads *h, const struct kg_turn *by,
                                int64_t n, int64_t p)
{
    const int64_t width = h->turned ? by->head_dim : h->x.cols, half = (width + 1) / 2;
    const int64_t turned = h->turned ? by->inv_freq.n : 0, i = p % half;
    const bool is_turned = i < turned;
    const int64_t lo = p / half * width + (is_turned ? i : i + turned);
    const int64_t hi = lo + (is_turned ? turned : half - turned);
    const bool is_pair = hi < h->x.cols;
    const struct kg_mat to = h->pool.data ? h->pool : h->out;
    const int64_t row = h->pool.data ? h->rows.data[n] : n;
    float a = kg_cuda_load(h->x, n, lo), b = is_pair ? kg_cuda_load(h->x, n, hi) : 0.0f;

    if (h->bias.data) {
        a += h->bias.data[lo];
        b += is_pair ? h->bias.data[hi] : 0.0f;
    }
    if (is_turned)
        turn(&a, &b, (float)by->pos.data[n] * by->inv_freq.data[i], by->attention_factor,
             by->attention_factor);
    kg_cuda_store(to, row, lo, a);
    if (is_pair)
        kg_cuda_store(to, row, hi, b);
}

/* A thread per pair; the pairs of all entries of `list`, one entry after another. */
static __global__ void heads(struct list list, struct kg_turn by)
{
    int64_t p = (int64_t)blockIdx.y * KG_ROW_THREADS + threadIdx.x;

    for (int i = 0; i < list.n; i++) {
        const int64_t pairs = pairs_of(&list.of[i]);

        if (p >= 0 && p < pairs)
            one_pair(&list.of[i], &by, blockIdx.x, p);
        p -= pairs;
    }
}

kg_status kg_cuda_heads(const struct kg_heads *h, int n, const struct kg_turn *by,
                        struct kg_err *err)
{
    struct list list;
    int64_t pairs = 0;

    list.n = n;
    for (int i = 0; i < n; i++) {
        list.of[i] = h[i];
        pairs += pairs_of(&h[i]);
    }
    if (h->x.rows > 0 && pairs > 0)
        KG_LAUNCH(heads, kg_grid(h->x.rows, kg_cuda_pieces(pairs, KG_ROW_THREADS)),
                  KG_ROW_THREADS, list, *by);
    return kg_dev_done("heads", err);
}
