/* The exchange of lanes over ranks, each a thread: for any number of ranks the sum has
 * the bits of one process. On a device: whichever read or write of device memory fails on
 * one rank, all ranks fail alike and can communicate afterwards.
 */
#include "train/step/lane_exchange.h"

#include "ranks/ranks_testing.h"
#include "tensor/selfcheck.h"
#include "train/failing_device_testing.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 3, LANES = 5, N = 3 * KG_SLAB_PIECE + 40, MOST_BLOCKS = 4 };

/* ---- one exchange on every rank ---- */
struct rank {
    struct kg_ranks ranks;
    int fails_at; /* number of a transfer; 0: none */
    bool cut;
    kg_status status;
    struct kg_err err;
    bool still_talks;
    float first; /* of its shard of the sum */
};

static void fill(struct kg_slab *slabs, int n)
{
    static float ones[N];

    for (int i = 0; i < N; i++)
        ones[i] = 1;
    for (int b = 0; b < n; b++) {
        NEED(kg_slab_init(&slabs[b], &device, N, "block", err));
        NEED(kg_slab_write(&slabs[b], 0, ones, N, err));
    }
}

/* A block sums a lane or two, here with ones, so the total is the number of blocks. */
static void *exchange(void *of)
{
    struct rank *x = of;
    struct kg_slab slab[MOST_BLOCKS];
    struct kg_lane_blocks own = {.n = 0};
    int levels[2 * KG_TREE_LEVELS], first = LANES * x->ranks.me / RANKS;
    bool any = x->ranks.me == 1;
    struct kg_err e;

    own.n = kg_tree_cover(levels, first, LANES * (x->ranks.me + 1) / RANKS);
    fill(slab, own.n);
    for (int b = 0; b < own.n; b++)
        own.block[b] = &slab[b];
    transfers_left = x->fails_at;
    x->status = kg_lane_exchange(&slab[0], &own, LANES, x->cut, &x->ranks, &x->err);
    transfers_left = 0;
    kg_ranks_forgive(&x->ranks);
    x->still_talks = kg_ranks_any(&x->ranks, &any, "afterwards", &e) == KG_OK && any;
    NEED(kg_slab_read(&x->first, &slab[0], kg_cut_of(N, x->ranks.me, RANKS).first, 1,
                      err));
    for (int b = 0; b < own.n; b++)
        kg_slab_release(&slab[b]);
    return NULL;
}

static void on_all(struct rank x[RANKS], bool cut, int which, int fails_at)
{
    struct rank_sockets s;
    pthread_t thread[RANKS];

    ranks_join(&s, RANKS);
    memset(x, 0, RANKS * sizeof *x);
    for (int p = 0; p < RANKS; p++) {
        x[p].fails_at = p == which ? fails_at : 0;
        x[p].cut = cut;
        NEED(kg_ranks_on_sockets(&x[p].ranks, p, RANKS, s.fd[p], s.rings, err));
        x[p].ranks.wait_s = 20;
        assert_int_equal(pthread_create(&thread[p], NULL, exchange, &x[p]), 0);
    }
    for (int p = 0; p < RANKS; p++)
        pthread_join(thread[p], NULL);
    ranks_part(&s, -1);
}

static void all_blocks_are_added(void **state)
{
    struct rank x[RANKS];
    int blocks = 0, levels[2 * KG_TREE_LEVELS];

    (void)state;
    for (int p = 0; p < RANKS; p++)
        blocks += kg_tree_cover(levels, LANES * p / RANKS, LANES * (p + 1) / RANKS);
    for (int cut = 0; cut < 2; cut++) {
        on_all(x, cut, -1, 0);
        for (int p = 0; p < RANKS; p++) {
            assert_int_equal(x[p].status, KG_OK);
            assert_true(x[p].first == (float)blocks);
        }
    }
}

static void a_device_that_fails_on_one_rank_fails_all(void **state)
{
    struct rank x[RANKS];
    int failures = 0;

    (void)state;
    for (int which = 0; which < 2 * RANKS; which++)
        for (int at = 1;; at++) {
            char who[32];

            on_all(x, which >= RANKS, which % RANKS, at);
            if (x[0].status == KG_OK)
                break;
            failures++;
            snprintf(who, sizeof who, "rank %d (", which % RANKS);
            for (int p = 0; p < RANKS; p++) {
                assert_int_equal(x[p].status, KG_EDEVICE);
                assert_non_null(strstr(x[p].err.message, who));
                assert_non_null(strstr(x[p].err.message, "a device that fell off"));
                assert_true(x[p].still_talks);
            }
        }
    assert_true(failures > 4 * RANKS); /* reads and writes of each */
}

/* ---- in host memory, in several pieces ---- */
enum { LONG = (13 << 16) + 77, LOOK = 7 /* at every 7th */, MOST_RANKS = 5 };

static float value(int lane, int64_t i)
{
    uint64_t h = ((uint64_t)lane << 32 ^ (uint64_t)i) * 0x9e3779b97f4a7c15u;

    return ((float)(h >> 40) - 8388608.0f) * (h & 1 ? 1.0f : 1e-4f);
}

/* Element i of lanes [first, end), summed along the tree. */
static float tree_sum(int64_t i, int first, int end)
{
    float level[KG_TREE_LEVELS], sum = 0;
    int left[KG_TREE_LEVELS], n;
    struct kg_tree tree = {0};

    for (int lane = first; lane < end; lane++) {
        int rest = kg_tree_push(&tree);

        sum = value(lane, i);
        for (int k = 0; k < rest; k++)
            sum = level[k] + sum;
        level[rest] = sum;
    }
    n = kg_tree_finish(&tree, left);
    sum = level[left[0]];
    for (int k = 1; k < n; k++)
        sum = level[left[k]] + sum;
    return sum;
}

struct near_rank {
    struct kg_ranks ranks;
    int lanes;
    bool cut;
    bool apart;    /* the sum has its own slab */
    int64_t wrong; /* elements */
};

static int64_t count_wrong(const struct near_rank *x, const struct kg_slab *sum)
{
    const struct kg_cut all = {0, LONG};
    const struct kg_cut c = x->cut ? kg_cut_of(LONG, x->ranks.me, x->ranks.n) : all;
    int64_t wrong = 0;

    for (int64_t i = c.first; i < c.first + c.n; i += LOOK)
        wrong += sum->data[i] != tree_sum(i, 0, x->lanes);
    return wrong;
}

static void *exchange_near(void *of)
{
    struct near_rank *x = of;
    struct kg_slab slab[MOST_BLOCKS], apart = {0}, *sum = &apart;
    struct kg_lane_blocks own = {.n = 0};
    int levels[2 * KG_TREE_LEVELS], first = x->lanes * x->ranks.me / x->ranks.n;

    own.n = kg_tree_cover(levels, first, x->lanes * (x->ranks.me + 1) / x->ranks.n);
    for (int b = 0; b < own.n; first += 1 << levels[b++]) {
        NEED(kg_slab_init(&slab[b], cpu, LONG, "block", err));
        for (int64_t i = 0; i < LONG; i++)
            slab[b].data[i] = tree_sum(i, first, first + (1 << levels[b]));
        own.block[b] = &slab[b];
    }
    if (x->apart)
        NEED(kg_slab_init(&apart, cpu, LONG, "sum", err));
    else
        sum = &slab[own.n - 1];
    NEED(kg_lane_exchange(sum, &own, x->lanes, x->cut, &x->ranks, err));
    x->wrong = count_wrong(x, sum);
    kg_slab_release(&apart);
    for (int b = 0; b < own.n; b++)
        kg_slab_release(&slab[b]);
    return NULL;
}

static void compare(int n, int lanes, bool cut, bool apart)
{
    struct near_rank x[MOST_RANKS] = {0};
    struct rank_sockets s;
    pthread_t thread[MOST_RANKS];

    ranks_join(&s, n);
    for (int p = 0; p < n; p++) {
        x[p].lanes = lanes;
        x[p].cut = cut;
        x[p].apart = apart;
        NEED(kg_ranks_on_sockets(&x[p].ranks, p, n, s.fd[p], s.rings, err));
        x[p].ranks.wait_s = 20;
        assert_int_equal(pthread_create(&thread[p], NULL, exchange_near, &x[p]), 0);
    }
    for (int p = 0; p < n; p++) {
        pthread_join(thread[p], NULL);
        assert_int_equal(x[p].wrong, 0);
    }
    ranks_part(&s, -1);
}

static void any_number_of_ranks_has_the_bits_of_one_process(void **state)
{
    (void)state;
    compare(2, 3, false, false);
    compare(3, 8, true, false);
    compare(3, 5, false, false);
    compare(5, 6, true, true);
}

/* One block per rank: other ranks read it in place. */
static void blocks_that_are_lent_have_the_bits_of_one_process(void **state)
{
    (void)state;
    compare(2, 2, true, false);
    compare(2, 4, false, false);
    compare(3, 3, true, true);
    compare(4, 8, true, false);
    compare(4, 4, false, true);
    compare(5, 5, true, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_has_the_bits_of_one_process),
        cmocka_unit_test(blocks_that_are_lent_have_the_bits_of_one_process),
        cmocka_unit_test(all_blocks_are_added),
        cmocka_unit_test(a_device_that_fails_on_one_rank_fails_all),
    };
    return cmocka_run_group_tests(tests, open_device, NULL);
}
