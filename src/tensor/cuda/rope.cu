/* Rotary position embedding in place, and back: the angle is pos * inv_freq in fp32, its
 * sine and cosine are those of cpu/rope.c, which explains them. */
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

/* A thread a pair: element i of what is turned of a head, and the one half of that
 * after it. */
static __global__ void rope(struct kg_mat x, struct kg_ivec pos, struct kg_vec inv_freq,
                            int head_dim, float cos_factor, float sin_factor)
{
    const int64_t n = blockIdx.x, half = inv_freq.n;
    const int64_t end = kg_cuda_end(x.cols / head_dim * half);

    for (int64_t p = kg_cuda_first(); p < end; p += KG_ROW_THREADS) {
        float *lo = kg_cuda_f32(x, n) + p / half * head_dim + p % half;
        const float a = lo[0], b = lo[half];
        const struct rotation t = rotation_of((float)pos.data[n] *
                                              inv_freq.data[p % half]);
        const float c = t.cos * cos_factor, s = t.sin * sin_factor;

        lo[0] = kg_fma(-b, s, a * c);
        lo[half] = kg_fma(a, s, b * c);
    }
}

kg_status kg_cuda_rope(struct kg_mat x, struct kg_ivec pos, struct kg_vec inv_freq,
                       int head_dim, float attention_factor, bool inverse,
                       struct kg_err *err)
{
    if (x.rows > 0 && x.cols > 0)
        KG_LAUNCH(rope, kg_cuda_rows(x.rows, x.cols / head_dim * inv_freq.n),
                  KG_ROW_THREADS, x, pos, inv_freq, head_dim, attention_factor,
                  inverse ? -attention_factor : attention_factor);
    return kg_dev_done("rope", err);
}
