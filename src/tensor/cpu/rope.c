/* Rotary position embedding in place, and back.
 *
 * The angle is pos * inv_freq in fp32, as in transformers. Its sine and cosine are
 * computed here, lane by lane, so that a position gives the same bits everywhere and the
 * cost is small against the products even of small models.
 */
#include "tensor/cpu/cpu_internal.h"

struct rotation {
    struct kg_v16 cos;
    struct kg_v16 sin;
};

static struct kg_v16 round_lanes(struct kg_v16 x)
{
    struct kg_v16 magic = kg_v16_set1(0x1.8p23f);
    return kg_v16_sub(kg_v16_add(x, magic), magic);
}

/* sin r and cos r for |r| <= pi/4: Taylor polynomials of degree 9 and 10, with truncation
 * errors below 2^-26. */
static struct rotation small_angle(struct kg_v16 r)
{
    struct kg_v16 r2 = kg_v16_mul(r, r);
    struct kg_v16 s = kg_v16_fma(r2, kg_v16_set1(0x1.71de3ap-19f),
                                 kg_v16_set1(-0x1.a01a02p-13f));
    s = kg_v16_fma(r2, s, kg_v16_set1(0x1.111112p-7f));
    s = kg_v16_fma(r2, s, kg_v16_set1(-0x1.555556p-3f));
    struct kg_v16 c = kg_v16_fma(r2, kg_v16_set1(-0x1.27e4fcp-22f),
                                 kg_v16_set1(0x1.a01a02p-16f));
    c = kg_v16_fma(r2, c, kg_v16_set1(-0x1.6c16c2p-10f));
    c = kg_v16_fma(r2, c, kg_v16_set1(0x1.555556p-5f));
    c = kg_v16_fma(r2, c, kg_v16_set1(-0.5f));
    return (struct rotation){.cos = kg_v16_fma(r2, c, kg_v16_set1(1.0f)),
                             .sin = kg_v16_fma(kg_v16_mul(r, r2), s, r)};
}

/* a = n pi/2 + r, with pi/2 in three parts, each product exact within the FMA; then the
 * quadrant n mod 4. For |a| < 2^20, the errors of sine and cosine are below 2^-23. */
static struct rotation rotation_of(struct kg_v16 a)
{
    struct kg_v16 one = kg_v16_set1(1.0f);
    struct kg_v16 minus = kg_v16_set1(-1.0f);
    struct kg_v16 n = round_lanes(kg_v16_mul(a, kg_v16_set1(0x1.45f306p-1f)));
    struct kg_v16 r = kg_v16_fnma(n, kg_v16_set1(0x1.921fb6p+0f), a);
    r = kg_v16_fnma(n, kg_v16_set1(-0x1.777a5cp-25f), r);
    r = kg_v16_fnma(n, kg_v16_set1(-0x1.ee59dap-50f), r);
    struct rotation t = small_angle(r);
    /* q in -2..2; odd: sine and cosine are exchanged */
    struct kg_v16 q = kg_v16_fnma(kg_v16_set1(4.0f),
                                  round_lanes(kg_v16_mul(n, kg_v16_set1(0.25f))), n);
    struct kg_v16 q2 = kg_v16_mul(q, q);
    struct kg_v16 half = kg_v16_set1(0.5f);
    struct kg_v16 two = kg_v16_set1(2.0f);
    struct kg_v16 odd = kg_v16_select_gt(q2, half, kg_v16_select_gt(q2, two, minus, one),
                                         minus);
    struct kg_v16 s = kg_v16_select_gt(odd, half, t.cos, t.sin);
    struct kg_v16 c = kg_v16_select_gt(odd, half, t.sin, t.cos);
    struct kg_v16 flip = kg_v16_select_gt(q2, two, minus, one); /* q = +-2 negates both */
    struct kg_v16 s_sign = kg_v16_select_gt(kg_v16_set1(-0.5f), q, minus, flip);
    struct kg_v16 c_sign = kg_v16_select_gt(odd, half, kg_v16_sub(kg_v16_zero(), q),
                                            flip);
    return (struct rotation){.cos = kg_v16_mul(c, c_sign), .sin = kg_v16_mul(s, s_sign)};
}

/* All heads of one row: pairs [i, i+lanes) of each head. */
static void rotate_row(struct kg_mat x, int64_t n, int head_dim, int64_t pairs, int64_t i,
                       int lanes, struct rotation t)
{
    for (int64_t h = 0; h < x.cols; h += head_dim) {
        float *lo = kg_cpu_f32(x, n) + h + i;
        float *hi = lo + pairs;
        struct kg_v16 a = kg_v16_load_n(lo, lanes);
        struct kg_v16 b = kg_v16_load_n(hi, lanes);
        kg_v16_store_n(lo, kg_v16_fnma(b, t.sin, kg_v16_mul(a, t.cos)), lanes);
        kg_v16_store_n(hi, kg_v16_fma(a, t.sin, kg_v16_mul(b, t.cos)), lanes);
    }
}

kg_status kg_cpu_rope(struct kg_mat x, const struct kg_turn *by, bool inverse,
                      struct kg_err *err)
{
    (void)err;
    const struct kg_vec inv_freq = by->inv_freq;
    const float turned = by->attention_factor;
    const int64_t pairs = inv_freq.n;
    struct kg_v16 factor = kg_v16_set1(turned);
    struct kg_v16 sin_factor = kg_v16_set1(inverse ? -turned : turned);
#pragma omp parallel for schedule(static) if (kg_cpu_use_threads(x.rows * x.cols * 2))
    for (int64_t n = 0; n < x.rows; n++)
        for (int64_t i = 0; i < pairs; i += KG_LANES) {
            int lanes = kg_cpu_lanes(pairs - i);
            struct kg_v16 freq = kg_v16_load_n(inv_freq.data + i, lanes);
            struct rotation t = rotation_of(
                kg_v16_mul(kg_v16_set1((float)by->pos.data[n]), freq));
            t.cos = kg_v16_mul(t.cos, factor);
            t.sin = kg_v16_mul(t.sin, sin_factor);
            rotate_row(x, n, by->head_dim, pairs, i, lanes, t);
        }
    return KG_OK;
}
