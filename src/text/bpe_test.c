/* Tests of the two merge loops: both compute the same tokens. */
#include "text/bpe.h"

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;
static const struct kg_rng_key KEY = {7, KG_RNG_TEST};

/* Random merges of `letters` letters; merge i makes token letters + i. */
static void random_merges(struct kg_merges *m, int32_t letters, int32_t n, uint64_t round)
{
    assert_int_equal(kg_merges_init(m, (size_t)n, &err), KG_OK);
    for (int32_t i = 0; i < n; i++) {
        int32_t left = (int32_t)kg_rng_below(KEY, round, (uint32_t)i, 0,
                                             (uint64_t)(letters + i));
        int32_t right = (int32_t)kg_rng_below(KEY, round, (uint32_t)i, 1,
                                              (uint64_t)(letters + i));
        kg_merges_put(m, left, right, i, letters + i);
    }
}

static void fill(int32_t *ids, size_t n, int32_t letters, uint64_t round)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)kg_rng_below(KEY, round, (uint32_t)i, 2, (uint64_t)letters);
}

static void heap_and_scan_agree(void **state)
{
    struct kg_bpe_scratch scratch = {0};
    (void)state;
    for (uint64_t round = 0; round < 2000; round++) {
        int32_t a[KG_BPE_SHORT], b[KG_BPE_SHORT];
        struct kg_merges m;
        int32_t letters = 1 + (int32_t)kg_rng_below(KEY, round, 0, 3, 4);
        size_t n = kg_rng_below(KEY, round, 0, 4, KG_BPE_SHORT + 1);
        size_t n_long = n;
        random_merges(&m, letters, 30, round);
        fill(a, n, letters, round);
        memcpy(b, a, sizeof a);
        size_t n_short = kg_bpe_merge_short(a, n, &m);
        assert_int_equal(kg_bpe_merge_long(b, &n_long, &m, &scratch, &err), KG_OK);
        assert_int_equal(n_short, n_long);
        assert_memory_equal(a, b, n_short * sizeof *a);
        kg_merges_release(&m);
    }
    kg_bpe_scratch_release(&scratch);
}

static void lowest_rank_first_then_leftmost(void **state)
{
    int32_t ids[] = {0, 0, 0, 1};
    size_t n = 4;
    struct kg_merges m;
    struct kg_bpe_scratch scratch = {0};
    (void)state;
    assert_int_equal(kg_merges_init(&m, 2, &err), KG_OK);
    kg_merges_put(&m, 0, 0, 1, 2);
    kg_merges_put(&m, 0, 1, 0, 3);
    assert_int_equal(kg_bpe_merge(ids, &n, &m, &scratch, &err), KG_OK);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[1], 3);
    kg_merges_release(&m);
    kg_bpe_scratch_release(&scratch);
}

/* With quadratic cost this would take minutes. */
static void a_long_pretoken_is_merged_in_reasonable_time(void **state)
{
    enum { N = 1 << 20 };
    int32_t *ids = calloc(N, sizeof *ids);
    size_t n = N;
    struct kg_merges m;
    struct kg_bpe_scratch scratch = {0};
    (void)state;
    assert_int_equal(kg_merges_init(&m, 10, &err), KG_OK);
    for (int32_t i = 0; i < 10; i++)
        kg_merges_put(&m, i, i, i, i + 1);
    assert_int_equal(kg_bpe_merge(ids, &n, &m, &scratch, &err), KG_OK);
    assert_int_equal(n, N >> 10);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], 10);
    kg_merges_release(&m);
    kg_bpe_scratch_release(&scratch);
    free(ids);
}

static void of_a_pair_given_twice_the_later_counts(void **state)
{
    struct kg_merges m;
    (void)state;
    assert_int_equal(kg_merges_init(&m, 2, &err), KG_OK);
    kg_merges_put(&m, 1, 2, 0, 5);
    kg_merges_put(&m, 1, 2, 1, 6);
    assert_int_equal(kg_merges_find(&m, 1, 2).rank, 1);
    assert_int_equal(kg_merges_find(&m, 1, 2).id, 6);
    assert_int_equal(kg_merges_find(&m, 2, 1).rank, KG_BPE_NO_RANK);
    kg_merges_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heap_and_scan_agree),
        cmocka_unit_test(lowest_rank_first_then_leftmost),
        cmocka_unit_test(a_long_pretoken_is_merged_in_reasonable_time),
        cmocka_unit_test(of_a_pair_given_twice_the_later_counts),
    };
    return cmocka_run_group_tests_name("bpe", tests, NULL, NULL);
}
