/* Online softmax of sixteen query rows by one warp, with kg_mma: adds one block of keys
 * to the sums of a part (attention_internal.h). All forward kernels on kg_mma use these
 * functions, so they give the same bits although they divide rows and keys differently.
 *
 * With g = lane / 4, a thread holds row g (h = 0) and row g + 8 (h = 1).
 */
#ifndef KG_TENSOR_SOFTMAX_INTERNAL_H
#define KG_TENSOR_SOFTMAX_INTERNAL_H

#include "tensor/cuda/attention_internal.h"

/* Sums of a thread's two rows. */
template <int HD> struct kg_cuda_sums {
    float acc[HD / 8][4]; /* sum of p v: [c][2 h + i] is column 8 c + 2 (lane % 4) + i */
    float m[2];           /* maximum of x */
    float l[2];           /* sum of p */
};

template <int HD> static __device__ void kg_cuda_clear(struct kg_cuda_sums<HD> *w)
{
#pragma unroll
    for (int c = 0; c < HD / 8; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w->acc[c][i] = 0.0f;
    w->m[0] = w->m[1] = -INFINITY;
    w->l[0] = w->l[1] = 0.0f;
}

/* Merges `from` into `to`, then clears `from`. */
template <int HD>
static __device__ void kg_cuda_merge_sums(struct kg_cuda_sums<HD> *to,
                                          struct kg_cuda_sums<HD> *from)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const struct kg_cuda_factors f = kg_cuda_factors(to->m[h], from->m[h]);

#pragma unroll
        for (int c = 0; c < HD / 8; c++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++)
                to->acc[c][i] = kg_cuda_merge(to->acc[c][i], from->acc[c][i], f);
        to->l[h] = kg_cuda_merge(to->l[h], from->l[h], f);
        to->m[h] = f.m;
    }
    kg_cuda_clear(from);
}

/* ---- a block of keys ---- */
/* s[n][2 h + i] <- q . k of key first + 8 n + 2 (lane % 4) + i; 16 keys from `first` */
template <int HD>
static __device__ void kg_cuda_score(float s[2][4], const uint32_t q[HD / 16][4],
                                     const struct kg_cuda_eight (*k)[HD / 8 + 1],
                                     int first)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[0][i] = s[1][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < HD / 16; c++) {
        uint32_t b[4];

        kg_fragments(b, kg_cuda_right(k, first, c));
        kg_mma(s[0], q[c], b);
        kg_mma(s[1], q[c], b + 2);
    }
}

/* A row sees keys [from, end) of a block. */
struct kg_cuda_seen_keys {
    int from;
    int end;
};

template <bool PLAIN>
static __device__ bool kg_cuda_sees(struct kg_cuda_seen_keys k, int key)
{
    return (PLAIN || key >= k.from) && key < k.end;
}

/* The maximum score of row h over the keys that it sees; other scores become -infinity.
 * PLAIN: no window and no softcap. MASKED: the row may not see all keys of the block. */
template <bool PLAIN, bool MASKED>
static __device__ float kg_cuda_largest(float s[8][4], int h, struct kg_cuda_scores by,
                                        struct kg_cuda_seen_keys k)
{
    const int t = (int)threadIdx.x % 4;
    float top = -INFINITY;

#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *x = &s[n][2 * h + i];

            if (!PLAIN && by.out > 0.0f)
                *x = by.out * kg_cuda_tanh(*x * by.in);
            if (MASKED)
                *x = kg_cuda_sees<PLAIN>(k, 8 * n + 2 * t + i) ? *x : -INFINITY;
            top = fmaxf(top, *x);
        }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    return fmaxf(top, __shfl_xor_sync(~0u, top, 2));
}

/* Replaces the scores of row h by p = 2^(x - m), with *m raised to the new maximum and *l
 * updated. While the row has seen no key, p is 0.   returns the factor for acc */
template <bool PLAIN, bool MASKED>
static __device__ float kg_cuda_weigh(float s[8][4], float *m, float *l, int h,
                                      struct kg_cuda_scores by,
                                      struct kg_cuda_seen_keys k)
{
    const float factor = !PLAIN && by.out > 0.0f ? 1.0f : by.in; /* x = score factor */
    const float top = fmaxf(*m, factor * kg_cuda_largest<PLAIN, MASKED>(s, h, by, k));
    const float shift = PLAIN || k.end > k.from ? top : 0.0f;
    const float alpha = kg_exp2(*m - shift);
    float sum = 0.0f;

#pragma unroll
    for (int n = 0; n < 8; n++) {
        float *pair = &s[n][2 * h];

#pragma unroll
        for (int i = 0; i < 2; i++) {
            pair[i] = kg_exp2(kg_fma(pair[i], factor, -shift));
            sum += pair[i];
        }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    *l = kg_fma(*l, alpha, sum);
    *m = top;
    return alpha;
}

/* Multiplies acc of row h by alpha, for a new maximum. */
template <int HD>
static __device__ void kg_cuda_fade(float acc[HD / 8][4], int h, float alpha)
{
#pragma unroll
    for (int c = 0; c < HD / 8; c++)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; i++)
            acc[c][i] = kg_fma(acc[c][i], alpha, 0.0f); /* no -0: kg_cuda_add_values */
}

/* kg_cuda_weigh and kg_cuda_fade. p[n][h] <- bf16 pair of keys 8 n + 2 (lane % 4), + 1 */
template <int HD, bool PLAIN, bool MASKED>
static __device__ void
kg_cuda_soften(uint32_t p[8][2], float s[8][4], struct kg_cuda_sums<HD> *w, int h,
               struct kg_cuda_scores by, struct kg_cuda_seen_keys k)
{
    const float alpha = kg_cuda_weigh<PLAIN, MASKED>(s, &w->m[h], &w->l[h], h, by, k);

#pragma unroll
    for (int n = 0; n < 8; n++)
        p[n][h] = kg_pair(s[n][2 * h], s[n][2 * h + 1]);
    kg_cuda_fade<HD>(w->acc, h, alpha);
}

/* acc += p v for sixteen keys from `first`. A key that a row does not see adds 0 v, a
 * zero of either sign; it would change only an acc of -0, which kg_cuda_fade prevents. */
template <int HD>
static __device__ void
kg_cuda_add_values(struct kg_cuda_sums<HD> *w, const uint32_t p[2][2],
                   const struct kg_cuda_eight (*v)[HD / 8 + 1], int first)
{
    const uint32_t left[4] = {p[0][0], p[0][1], p[1][0], p[1][1]};

#pragma unroll
    for (int c = 0; c < HD / 8; c += 2) {
        uint32_t b[4];

        kg_fragments_transposed(b, kg_cuda_left(v, first, c / 2));
        kg_mma(w->acc[c], left, b);
        kg_mma(w->acc[c + 1], left, b + 2);
    }
}

/* ---- infinite and NaN values ---- */
/* Whether the window of the last position of key block t.last excludes keys of `block`.
 * Then kernels call kg_cuda_hide on `block`, even if the sequence ends before. */
static __device__ inline bool kg_cuda_in_part(const struct kg_attn &a,
                                              const struct kg_cuda_tile &t, int block)
{
    const int end = (t.last + 1) * KG_KV_BLOCK - 1;

    return block * KG_KV_BLOCK < kg_cuda_first_key(a, end);
}

/* Two bf16 NaNs. Written to a key, they make its scores NaN. */
enum { KG_ATTN_NO_NUMBER = 0x7fff7fff };

/* Zeroes pairs that hold an infinity or NaN.   returns whether all were finite */
static __device__ inline bool kg_cuda_hide(struct kg_cuda_eight *row, int eights)
{
    bool numbers = true;

    for (int c = 0; c < eights; c++)
        for (int i = 0; i < 4; i++) {
            const uint32_t pair = row[c].pair[i];

            if ((pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u) {
                row[c].pair[i] = 0;
                numbers = false;
            }
        }
    return numbers;
}

/* m ln 2 + log l */
static __device__ inline float kg_cuda_lse(float m, float l)
{
    return (float)((double)m * 0x1.62e42fefa39efp-1 + kg_cuda_log((double)l));
}

#endif
