/* Tests of Philox4x32-10 against its published test vectors, and of the numbers made from
 * it. */
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Known-answer vectors published with Random123. */
static void philox_gives_the_known_answers(void **state)
{
    static const uint32_t cases[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff,
         0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0,
         0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
    };

    (void)state;
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        kg_rng_philox(out, cases[i], cases[i] + 4);
        assert_memory_equal(out, cases[i] + 6, sizeof out);
    }
}

/* The layout of rng.c must not change: dumps and resumed runs depend on it. */
static void words_are_philox_of_the_documented_counter(void **state)
{
    struct kg_rng_key key = {.seed = 0x0123456789abcdefu, .stream = KG_RNG_TASK};
    uint32_t counter[4] = {0x55667788u, 0x00223344u | (uint32_t)KG_RNG_TASK << 24, 7, 9};
    uint32_t expected[4], found[4];

    (void)state;
    kg_rng_philox(expected, counter, (uint32_t[]){0x89abcdefu, 0x01234567u});
    kg_rng_words(found, key, 0x0022334455667788u, 7, 9);
    assert_memory_equal(found, expected, sizeof found);
}

static void streams_and_counters_do_not_share_draws(void **state)
{
    uint32_t seen[4 * 256][4];
    size_t n = 0;

    (void)state;
    for (int stream = KG_RNG_SAMPLE; stream < KG_RNG_SAMPLE + 4; stream++)
        for (uint32_t i = 0; i < 256; i++) {
            struct kg_rng_key key = {.seed = 1, .stream = (enum kg_rng_stream)stream};
            kg_rng_words(seen[n++], key, i & 3, i >> 2 & 7, i >> 5);
        }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(memcmp(seen[i], seen[j], sizeof seen[i]) != 0);
}

static void uniform_is_uniform(void **state)
{
    struct kg_rng_key key = {.seed = 42, .stream = KG_RNG_TEST};
    enum { N = 200000, BINS = 20 };
    int count[BINS] = {0};
    double chi2 = 0;

    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        double u = kg_rng_uniform(key, 0, i, 0);
        assert_true(u >= 0 && u < 1);
        count[(int)(u * BINS)]++;
    }
    for (int i = 0; i < BINS; i++)
        chi2 += pow(count[i] - N / BINS, 2) / (N / BINS);
    assert_true(chi2 < 43.8); /* 99.9 % of 19 degrees of freedom */
}

static void below_covers_its_range_evenly(void **state)
{
    struct kg_rng_key key = {.seed = 3, .stream = KG_RNG_TEST};
    int count[7] = {0};
    double chi2 = 0;

    (void)state;
    for (uint32_t i = 0; i < 70000; i++)
        count[kg_rng_below(key, i, 0, 0, 7)]++;
    for (int i = 0; i < 7; i++)
        chi2 += pow(count[i] - 10000, 2) / 10000;
    assert_true(chi2 < 22.5); /* 99.9 % of 6 degrees of freedom */
    assert_int_equal(kg_rng_below(key, 0, 0, 0, 1), 0);
    assert_true(kg_rng_below(key, 0, 0, 0, UINT64_MAX) < UINT64_MAX);
}

static void normals_have_mean_zero_and_variance_one(void **state)
{
    struct kg_rng_key key = {.seed = 5, .stream = KG_RNG_TEST};
    enum { BLOCKS = 50000 };
    double moment[5] = {0};
    double pairs = 0;

    (void)state;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        float x[4];
        kg_rng_normal4(x, key, 0, i, 0);
        for (int j = 0; j < 4; j++)
            for (int k = 1; k <= 4; k++)
                moment[k] += pow(x[j], k) / (4.0 * BLOCKS);
        pairs += (double)x[0] * x[1] / BLOCKS;
    }
    assert_true(fabs(moment[1]) < 0.01);
    assert_true(fabs(moment[2] - 1) < 0.02);
    assert_true(fabs(moment[3]) < 0.04);
    assert_true(fabs(moment[4] - 3) < 0.1);
    assert_true(fabs(pairs) < 0.02);
}

static void permutation_holds_every_index_once(void **state)
{
    struct kg_rng_key key = {.seed = 9, .stream = KG_RNG_SHUFFLE};
    uint32_t order[1000], other[1000];
    int seen[1000] = {0};
    int fixed = 0;

    (void)state;
    kg_rng_permutation(order, 1000, key, 0);
    kg_rng_permutation(other, 1000, key, 1);
    for (uint32_t i = 0; i < 1000; i++) {
        seen[order[i]]++;
        fixed += order[i] == i;
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(seen[i], 1);
    assert_true(fixed < 10);
    assert_true(memcmp(order, other, sizeof order) != 0);
    kg_rng_permutation(other, 1000, key, 0);
    assert_memory_equal(order, other, sizeof order);
    kg_rng_permutation(order, 0, key, 0);
}

/* All 24 orders of four elements are equally frequent. */
static void permutations_are_equally_likely(void **state)
{
    struct kg_rng_key key = {.seed = 11, .stream = KG_RNG_SHUFFLE};
    int count[256] = {0};
    int different = 0;

    (void)state;
    for (uint64_t a = 0; a < 24000; a++) {
        uint32_t p[4];
        kg_rng_permutation(p, 4, key, a);
        count[p[0] | p[1] << 2 | p[2] << 4 | p[3] << 6]++;
    }
    for (int i = 0; i < 256; i++) {
        different += count[i] > 0;
        assert_true(count[i] == 0 || (count[i] > 840 && count[i] < 1160));
    }
    assert_int_equal(different, 24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(words_are_philox_of_the_documented_counter),
        cmocka_unit_test(streams_and_counters_do_not_share_draws),
        cmocka_unit_test(uniform_is_uniform),
        cmocka_unit_test(below_covers_its_range_evenly),
        cmocka_unit_test(normals_have_mean_zero_and_variance_one),
        cmocka_unit_test(permutation_holds_every_index_once),
        cmocka_unit_test(permutations_are_equally_likely),
    };

    return cmocka_run_group_tests_name("rng", tests, NULL, NULL);
}
