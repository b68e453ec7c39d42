/* SIMD lanes against scalar models. Here they are compiled for the baseline instruction
 * set; tensor/op_test.c checks through the operations that the other instruction sets
 * give the same bits. */
#include "base/pairs.h"
#include "base/simd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* The steps of kg_v16_exp for one lane, in C. */
static float exp_model(float x)
{
    x = -105.0f > x ? -105.0f : x;
    x = 89.0f < x ? 89.0f : x;
    float n = fmaf(x, 0x1.715476p+0f, 0x1.8p23f) - 0x1.8p23f;
    float r = fmaf(-n, 0x1.62e400p-1f, x);
    r = fmaf(-n, 0x1.7f7d1cp-20f, r);
    static const float c[] = {0x1.1239e2p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f,
                              0x1.fffffcp-2f, 1.0f,           1.0f};
    float p = 0x1.6a2434p-10f;
    for (int i = 0; i < 6; i++)
        p = fmaf(p, r, c[i]);
    return (float)ldexp((double)p, (int)n);
}

static void exp_is_within_two_ulp_and_follows_its_model(void **state)
{
    (void)state;
    for (uint64_t u = 0; u < 1ull << 32; u += 16 * 9973) {
        float x[16];
        float y[16];
        for (uint32_t i = 0; i < 16; i++)
            x[i] = from_bits((uint32_t)u + i * 9973);
        kg_v16_store(y, kg_v16_exp(kg_v16_load(x)));
        for (int i = 0; i < 16; i++) {
            if (isnan(x[i])) {
                assert_true(isnan(y[i]));
                continue;
            }
            double want = exp((double)x[i]);
            double ulp = ldexp(1.0, (want < 0x1p-126 ? -126 : ilogb(want)) - 23);
            assert_true(to_bits(y[i]) == to_bits(exp_model(x[i])));
            assert_true(want >= 0x1.fffffep127 || fabs((double)y[i] - want) <= 2 * ulp);
        }
    }
}

/* At the end of the range: every float from the last nonzero results to the clamp. */
static void exp_ends_where_its_model_does(void **state)
{
    (void)state;
    uint32_t zeros = 0;
    for (uint32_t u = to_bits(-103.5f); u <= to_bits(-105.5f); u += 16) {
        float x[16];
        float y[16];
        for (uint32_t i = 0; i < 16; i++)
            x[i] = from_bits(u + i);
        kg_v16_store(y, kg_v16_exp(kg_v16_load(x)));
        for (int i = 0; i < 16; i++) {
            assert_true(to_bits(y[i]) == to_bits(exp_model(x[i])));
            zeros += to_bits(y[i]) == 0;
        }
    }
    assert_true(zeros > 0 && zeros < to_bits(-105.5f) - to_bits(-103.5f));
}

static void exp_is_defined_at_the_ends(void **state)
{
    (void)state;
    float x[16] = {-INFINITY, INFINITY, 0,       -0.0f,   88.8f,
                   -104.0f,   -87.5f,   3.4e38f, -3.4e38f};
    float y[16];
    kg_v16_store(y, kg_v16_exp(kg_v16_load(x)));
    assert_true(y[0] == 0 && isinf(y[1]) && y[2] == 1 && y[3] == 1);
    assert_true(isinf(y[4]) && y[5] == 0 && y[6] > 0 && y[6] < 0x1p-126f);
    assert_true(isinf(y[7]) && y[8] == 0);
}

static void one_minus_exp_keeps_its_digits(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t u = 0x2f000000u; u < 0x42d00000u; u += 16 * 997) { /* 1e-10 .. 104 */
        float x[16];
        float y[16];
        for (uint32_t i = 0; i < 16; i++)
            x[i] = -from_bits(u + i * 997);
        kg_v16_store(y, kg_v16_one_minus_exp(kg_v16_load(x)));
        for (int i = 0; i < 16; i++) {
            double want = -expm1((double)x[i]);
            worst = fmax(worst, fabs((double)y[i] - want) / ldexp(1.0, ilogb(want) - 23));
        }
    }
    assert_true(worst <= 4);
    float x[16] = {0, -0.0f, -INFINITY, NAN};
    float y[16];
    kg_v16_store(y, kg_v16_one_minus_exp(kg_v16_load(x)));
    assert_true(y[0] == 0 && y[1] == 0 && y[2] == 1 && isnan(y[3]));
}

static void tanh_keeps_its_digits(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t u = 0x2f000000u; u < 0x42d00000u; u += 16 * 997) { /* 1e-10 .. 104 */
        float x[16];
        float y[16];
        for (uint32_t i = 0; i < 16; i++)
            x[i] = i % 2 ? -from_bits(u + i * 997) : from_bits(u + i * 997);
        kg_v16_store(y, kg_v16_tanh(kg_v16_load(x)));
        for (int i = 0; i < 16; i++) {
            double want = tanh((double)x[i]);
            worst = fmax(worst, fabs((double)y[i] - want) / ldexp(1.0, ilogb(want) - 23));
        }
    }
    assert_true(worst <= 6);
    float x[16] = {0, INFINITY, -INFINITY, NAN};
    float y[16];
    kg_v16_store(y, kg_v16_tanh(kg_v16_load(x)));
    assert_true(y[0] == 0 && y[1] == 1 && y[2] == -1 && isnan(y[3]));
}

/* Every operation on doubles, lane by lane, and the summation tree. */
static void doubles_are_sixteen_lanes_too(void **state)
{
    (void)state;
    float x[16];
    float y[16];
    double t[16];
    for (int i = 0; i < 16; i++) {
        x[i] = (float)(1.0 / (i + 3)) * (i % 3 ? 1 : -1e3f);
        t[i] = fma((double)x[i], 0.1, (double)x[i] + 1e-12) - 0.3;
    }
    struct kg_d16 a = kg_d16_widen(kg_v16_load(x));
    a = kg_d16_fma(a, kg_d16_set1(0.1), kg_d16_add(a, kg_d16_set1(1e-12)));
    a = kg_d16_sub(a, kg_d16_set1(0.3));
    kg_v16_store(y, kg_d16_narrow(a));
    for (int i = 0; i < 16; i++)
        assert_true(y[i] == (float)t[i]);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            t[i] += t[i + half];
    assert_true(kg_d16_sum(a) == t[0]);
}

static void sums_run_over_one_tree(void **state)
{
    (void)state;
    float x[16];
    for (int i = 0; i < 16; i++)
        x[i] = (float)(1.0 / (i + 3)) * (i % 3 ? 1 : -1e3f);
    float t[16];
    memcpy(t, x, sizeof t);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            t[i] += t[i + half];
    assert_true(to_bits(kg_v16_sum(kg_v16_load(x))) == to_bits(t[0]));
    float most = x[0];
    for (int i = 1; i < 16; i++)
        most = x[i] > most ? x[i] : most;
    assert_true(kg_v16_hmax(kg_v16_load(x)) == most);
}

static void first_lanes_are_all_that_is_touched(void **state)
{
    (void)state;
    float x[16];
    uint16_t h[16];
    for (int i = 0; i < 16; i++)
        x[i] = (float)(i + 1);
    kg_v16_store_bf16(h, kg_v16_load(x));
    for (int n = 0; n <= 16; n++) {
        float y[17] = {0};
        float z[16];
        uint16_t g[17] = {0};
        kg_v16_store_n(y, kg_v16_load(x), n);
        kg_v16_store_bf16_n(g, kg_v16_load_n(x, n), n);
        assert_true(y[n] == 0 && g[n] == 0);
        kg_v16_store(z, kg_v16_first_n(kg_v16_load_bf16_n(h, n), n, kg_v16_set1(-1)));
        for (int i = 0; i < 16; i++)
            assert_true(z[i] == (i < n ? x[i] : -1.0f) &&
                        (i >= n || (y[i] == x[i] && g[i] == h[i])));
    }
}

static void comparisons_are_false_for_nan(void **state)
{
    (void)state;
    float a[16] = {1, 2, NAN, 4, -INFINITY, 0};
    float b[16] = {2, 1, 0, NAN, 0, 0};
    float y[16];
    assert_int_equal(kg_v16_gt_bits(kg_v16_load(a), kg_v16_load(b)), 2);
    kg_v16_store(y, kg_v16_select_gt(kg_v16_load(a), kg_v16_load(b), kg_v16_set1(7),
                                     kg_v16_zero()));
    for (int i = 0; i < 16; i++)
        assert_true(y[i] == (i == 1 ? 7.0f : 0.0f));
    kg_v16_store(y, kg_v16_max(kg_v16_load(a), kg_v16_load(b)));
    assert_true(y[0] == 2 && y[1] == 2 && y[2] == 0 && isnan(y[3]));
}

static void pairs_are_transposed_and_multiplied(void **state)
{
    (void)state;
    uint16_t rows[16][32];
    struct kg_pairs w[16];
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 32; j++) { /* small integers: every sum is exact */
            float f = (float)((i * 5 + j * 3) % 11 - 5);
            rows[i][j] = (uint16_t)(to_bits(f) >> 16);
        }
        w[i] = kg_pairs_load(rows[i]);
    }
    kg_pairs_transpose(w);
    struct kg_v16 acc = kg_v16_zero();
    for (int p = 0; p < 16; p++) {
        float even = from_bits((uint32_t)rows[3][2 * p] << 16);
        float odd = from_bits((uint32_t)rows[3][2 * p + 1] << 16);
        acc = kg_v16_fma_flushed(kg_pairs_low(w[p]), kg_v16_set1(even), acc);
        acc = kg_v16_fma_flushed(kg_pairs_high(w[p]), kg_v16_set1(odd), acc);
    }
    float y[16];
    kg_v16_store(y, acc);
    for (int i = 0; i < 16; i++) {
        float want = 0;
        for (int j = 0; j < 32; j++)
            want += from_bits((uint32_t)rows[3][j] << 16) *
                    from_bits((uint32_t)rows[i][j] << 16);
        assert_true(y[i] == want);
    }
}

/* A block of 32 alternates between two chains: element e is number e / 2 of chain e % 2.
 * In a pair of a chain, the upper half comes first. */
static void a_block_is_split_into_its_chains_and_joined_again(void **state)
{
    (void)state;
    uint16_t block[32], joined[32];
    uint32_t chains[16];
    for (int e = 0; e < 32; e++)
        block[e] = (uint16_t)(0x9e37 * (e + 1));
    struct kg_pairs w = kg_pairs_split(kg_pairs_load(block));
    kg_pairs_store(chains, w);
    for (int e = 0; e < 32; e++) {
        uint32_t pair = chains[e % 2 * 8 + e / 4];
        assert_int_equal(e / 2 % 2 ? pair & 0xffffu : pair >> 16, block[e]);
    }
    kg_pairs_store(joined, kg_pairs_join(w));
    assert_memory_equal(joined, block, sizeof block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_ulp_and_follows_its_model),
        cmocka_unit_test(exp_ends_where_its_model_does),
        cmocka_unit_test(exp_is_defined_at_the_ends),
        cmocka_unit_test(one_minus_exp_keeps_its_digits),
        cmocka_unit_test(tanh_keeps_its_digits),
        cmocka_unit_test(doubles_are_sixteen_lanes_too),
        cmocka_unit_test(sums_run_over_one_tree),
        cmocka_unit_test(first_lanes_are_all_that_is_touched),
        cmocka_unit_test(comparisons_are_false_for_nan),
        cmocka_unit_test(pairs_are_transposed_and_multiplied),
        cmocka_unit_test(a_block_is_split_into_its_chains_and_joined_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
