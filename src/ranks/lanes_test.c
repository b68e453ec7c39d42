/* Dealing of sequences to lanes and the summation tree, compared with their definitions
 * for every number of lanes up to 64. */
#include "ranks/lanes.h"

#include "base/need_testing.h"
#include "base/real.h"
#include "base/rng.h"

#include <stdbool.h>
#include <stdlib.h>

enum { MOST = 64 };

/* ---- the tree ---- */

/* Neither commutative nor associative, so a wrong order or bracketing changes the
 * result. */
static uint64_t plus(uint64_t left, uint64_t right)
{
    return (left * 0x9e3779b97f4a7c15u ^ right) * 0xbf58476d1ce4e5b9u + (left >> 29);
}

static uint64_t lane_value(int lane) { return (uint64_t)lane + 1000; }

/* The definition in the header: the left side is the largest power of two that leaves
 * something for the right side, and both sides are split in the same way. */
static uint64_t tree_sum(int from, int to)
{
    int half = 1;

    if (to - from == 1)
        return lane_value(from);
    while (half * 2 < to - from)
        half *= 2;
    return plus(tree_sum(from, from + half), tree_sum(from + half, to));
}

static void the_counter_adds_along_the_tree(void **state)
{
    (void)state;
    for (int lanes = 1; lanes <= MOST; lanes++) {
        uint64_t level[KG_TREE_LEVELS], sum;
        struct kg_tree tree = {0};
        int left[KG_TREE_LEVELS], n, most = 0;

        for (int l = 0; l < lanes; l++) {
            int rest = kg_tree_push(&tree);

            sum = lane_value(l);
            for (int k = 0; k < rest; k++)
                sum = plus(level[k], sum);
            level[rest] = sum;
            most = rest + 1 > most ? rest + 1 : most;
        }
        assert_int_equal(most, kg_tree_room(lanes));
        n = kg_tree_finish(&tree, left);
        sum = level[left[0]];
        for (int k = 1; k < n; k++)
            sum = plus(level[left[k]], sum);
        assert_true(sum == tree_sum(0, lanes));
        assert_int_equal(tree.held, 0);
    }
}

/* ---- the tree over blocks of ranks ---- */

struct sum {
    uint64_t level[KG_TREE_LEVELS];
    struct kg_tree tree;
    int at; /* lanes added so far */
};

static void take_block(struct sum *s, int level)
{
    uint64_t value = tree_sum(s->at, s->at + (1 << level));
    int rest = kg_tree_push_block(&s->tree, level);

    for (int k = level; k < rest; k++)
        value = plus(s->level[k], value);
    s->level[rest] = value;
    s->at += 1 << level;
}

static uint64_t finish(struct sum *s)
{
    int left[KG_TREE_LEVELS];
    int n = kg_tree_finish(&s->tree, left);
    uint64_t value = s->level[left[0]];

    for (int k = 1; k < n; k++)
        value = plus(s->level[left[k]], value);
    return value;
}

/* Each rank adds a contiguous block of lanes into subtrees. However many ranks there are,
 * finishing those subtrees gives the sum of the whole tree. */
static void blocks_of_any_number_of_ranks_add_along_the_tree(void **state)
{
    (void)state;
    for (int lanes = 1; lanes <= MOST; lanes++)
        for (int ranks = 1; ranks <= lanes; ranks++) {
            struct sum s = {.at = 0};

            for (int r = 0; r < ranks; r++) {
                struct kg_share mine = kg_share_of(lanes, r, ranks);
                int levels[2 * KG_TREE_LEVELS];
                int n = kg_tree_cover(levels, (int)mine.first, (int)mine.end);

                assert_int_equal(s.at, mine.first);
                for (int i = 0; i < n; i++)
                    take_block(&s, levels[i]);
                assert_int_equal(s.at, mine.end);
            }
            assert_true(finish(&s) == tree_sum(0, lanes));
        }
}

/* ---- dealing ---- */

static void lengths(int64_t *tokens, int n, uint64_t seed)
{
    const struct kg_rng_key key = {seed, KG_RNG_INIT};

    for (int i = 0; i < n; i++)
        tokens[i] = (int64_t)(kg_rng_uniform(key, 0, 0, (uint32_t)i) * 40) * 25;
}

/* The definition, literally: take the longest remaining sequence, give it to the lane
 * with the lowest cost, repeat. */
static void deal_plainly(int32_t *lane, const int64_t *tokens, int n, int lanes)
{
    uint64_t cost[MOST] = {0};
    bool dealt[512] = {false};

    for (int round = 0; round < n; round++) {
        int longest = -1, to = 0;

        for (int i = 0; i < n; i++)
            if (!dealt[i] && (longest < 0 || tokens[i] > tokens[longest]))
                longest = i;
        for (int l = 1; l < lanes; l++)
            if (cost[l] < cost[to])
                to = l;
        dealt[longest] = true;
        lane[longest] = tokens[longest] > 0 ? to : -1;
        if (tokens[longest] > 0)
            cost[to] += (uint64_t)(24576 * tokens[longest] +
                                   tokens[longest] * tokens[longest]);
    }
}

static void dealing_is_longest_first_onto_the_least(void **state)
{
    (void)state;
    for (int lanes = 1; lanes <= MOST; lanes++) {
        int64_t tokens[300];
        int32_t lane[300], expected[300];
        int n = 1 + lanes * 37 % 300;

        lengths(tokens, n, (uint64_t)lanes);
        NEED(kg_lanes_deal(lane, &(struct kg_lane_lengths){.tokens = tokens}, n, lanes,
                           err));
        deal_plainly(expected, tokens, n, lanes);
        for (int i = 0; i < n; i++)
            assert_int_equal(lane[i], expected[i]);
    }
}

static void one_lane_is_all_that_is_computed(void **state)
{
    const int64_t tokens[] = {5, 0, 9, 1};
    int32_t lane[4];

    (void)state;
    NEED(kg_lanes_deal(lane, &(struct kg_lane_lengths){.tokens = tokens}, 4, 1, err));
    assert_int_equal(lane[0] | lane[2] | lane[3], 0);
    assert_int_equal(lane[1], -1);
    NEED(kg_lanes_deal(lane, &(struct kg_lane_lengths){.tokens = tokens}, 0, 3, err));
}

/* No lane costs more than 4/3 of a lower bound of the best deal: the mean lane or the
 * costliest sequence, whichever is larger. 4/3 is the known bound of longest-first
 * dealing. */
static void lanes_are_nearly_even(void **state)
{
    int64_t tokens[300];
    int32_t lane[300];

    (void)state;
    lengths(tokens, 300, 7);
    for (int lanes = 2; lanes <= MOST; lanes++) {
        uint64_t cost[MOST] = {0}, all = 0, worst = 0, bound = 0;

        NEED(kg_lanes_deal(lane, &(struct kg_lane_lengths){.tokens = tokens}, 300, lanes,
                           err));
        for (int i = 0; i < 300; i++)
            if (lane[i] >= 0) {
                cost[lane[i]] += kg_lanes_cost(tokens[i]);
                all += kg_lanes_cost(tokens[i]);
                bound = kg_lanes_cost(tokens[i]) > bound ? kg_lanes_cost(tokens[i])
                                                         : bound;
            }
        for (int l = 0; l < lanes; l++)
            worst = cost[l] > worst ? cost[l] : worst;
        bound = all / (uint64_t)lanes > bound ? all / (uint64_t)lanes : bound;
        assert_true(worst * 3 <= bound * 4);
    }
}

/* ---- lengths distributed as completions are ---- */

enum { ANSWERS_A_LANE = 8, STEPS = 50, CAP = 16384 };

/* Log-normal: exp(mean + sigma normal), at most CAP. One in `capped_in` runs into the cap
 * (0: none). Each `group` of neighbours shares a shift of its mean, with standard
 * deviation `apart`. */
static const struct lengths {
    const char *name;
    double mean, sigma;
    int capped_in, group;
    double apart;
    bool even; /* no completion is as long as a lane: the mean can be reached */
} kinds[] = {
    {"mean 4,096, sigma 0.8", 8.0, 0.8, 0, 1, 0, true},
    {"short, sigma 0.4", 6.0, 0.4, 0, 1, 0, true},
    {"by prompts of 16 answers", 8.0, 0.35, 0, 16, 0.7, false},
    {"sigma 1.2", 7.6, 1.2, 0, 1, 0, false},
    {"every fifth at the cap", 7.3, 0.5, 5, 1, 0, false},
    {"every fiftieth at the cap", 6.0, 0.5, 50, 1, 0, false},
};

static double normal(struct kg_rng_key key, uint32_t stream, int i)
{
    float four[4];

    kg_rng_normal4(four, key, stream, (uint32_t)i, 0);
    return (double)four[0];
}

static void answer_lengths(int64_t *tokens, int n, const struct lengths *d, uint64_t seed)
{
    const struct kg_rng_key key = {seed, KG_RNG_INIT};

    for (int i = 0; i < n; i++) {
        double x = d->mean + d->sigma * normal(key, 0, i) +
                   d->apart * normal(key, 1, i / d->group);
        double length = kg_exp(x);

        tokens[i] = length < 1 ? 1 : length < CAP ? (int64_t)length : CAP;
        if (d->capped_in && kg_rng_uniform(key, 2, 0, (uint32_t)i) * d->capped_in < 1)
            tokens[i] = CAP;
    }
}

static int costliest_first(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

/* Lower bound on the worst lane: the mean; and, because one of C lanes gets at least k +
 * 1 of the k C + 1 costliest sequences, the sum of the k + 1 cheapest of those. */
static double best_possible(const int64_t *tokens, int n, int lanes)
{
    uint64_t cost[MOST * ANSWERS_A_LANE], all = 0;
    double best;

    for (int i = 0; i < n; i++)
        all += cost[i] = kg_lanes_cost(tokens[i]);
    qsort(cost, (size_t)n, sizeof *cost, costliest_first);
    best = (double)all / lanes;
    for (int k = 0; k * lanes < n; k++) {
        uint64_t least = 0;

        for (int i = 0; i <= k; i++)
            least += cost[k * lanes - i];
        best = (double)least > best ? (double)least : best;
    }
    return best;
}

struct evenness {
    double of_mean, of_best; /* cost of the worst lane, divided by each */
};

static struct evenness deal_once(const int64_t *tokens, int n, int lanes)
{
    int32_t lane[MOST * ANSWERS_A_LANE];
    uint64_t cost[MOST] = {0}, all = 0, worst = 0;

    NEED(kg_lanes_deal(lane, &(struct kg_lane_lengths){.tokens = tokens}, n, lanes, err));
    for (int i = 0; i < n; i++) {
        all += kg_lanes_cost(tokens[i]);
        cost[lane[i]] += kg_lanes_cost(tokens[i]);
    }
    for (int l = 0; l < lanes; l++)
        worst = cost[l] > worst ? cost[l] : worst;
    return (struct evenness){(double)worst * lanes / (double)all,
                             (double)worst / best_possible(tokens, n, lanes)};
}

/* docs/ranks.md quotes the printed ratios. */
static void the_worst_lane_is_within_a_twentieth_of_the_mean_that_can_be_had(void **state)
{
    (void)state;
    for (size_t d = 0; d < sizeof kinds / sizeof *kinds; d++) {
        struct evenness worst = {0};

        for (int lanes = 2; lanes <= MOST; lanes *= 2)
            for (int step = 0; step < STEPS; step++) {
                int64_t tokens[MOST * ANSWERS_A_LANE];
                struct evenness e;

                answer_lengths(tokens, lanes * ANSWERS_A_LANE, &kinds[d],
                               (uint64_t)(step * MOST + lanes));
                e = deal_once(tokens, lanes * ANSWERS_A_LANE, lanes);
                worst.of_mean = e.of_mean > worst.of_mean ? e.of_mean : worst.of_mean;
                worst.of_best = e.of_best > worst.of_best ? e.of_best : worst.of_best;
            }
        print_message("  %-26s worst lane %.3f of the mean, %.3f of the best deal's\n",
                      kinds[d].name, worst.of_mean, worst.of_best);
        assert_true(worst.of_best <= 1.05);
        assert_true(!kinds[d].even || worst.of_mean <= 1.05);
    }
}

/* A pack takes neighbours while they fit the budget, also if they fill it exactly; a
 * larger sequence is a pack alone. */
static void neighbours_are_computed_at_once_while_they_fit(void **state)
{
    static const int64_t tokens[] = {3, 5, 2, 11, 1, 1};
    static const size_t list[] = {100, 101, 102, 103, 104, 105};
    static const size_t expected[] = {3, 1, 2};
    const struct kg_lane_lengths ten = {.tokens = tokens, .budget = 10};
    const struct kg_lane_lengths nine = {.tokens = tokens, .budget = 9};
    size_t at = 0;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kg_lanes_fit(&ten, list + at, 6 - at, 100), expected[i]);
        at += expected[i];
    }
    assert_int_equal(at, 6);
    assert_int_equal(kg_lanes_fit(&ten, list, 0, 100), 0);
    assert_int_equal(kg_lanes_fit(&nine, list, 6, 100), 2);
}

/* ---- groups that share ---- */

/* Groups of 8 with a prompt of 400 tokens; completion i is empty (not computed) where i %
 * 11 is 3. */
enum { GROUP = 8, GROUPS = 24, PROMPT = 400 };

static struct kg_lane_lengths groups_that_share(int64_t *tokens, int64_t *shared)
{
    bool first = true;

    lengths(tokens, GROUP * GROUPS, 3);
    for (int i = 0; i < GROUP * GROUPS; i++) {
        first = first || i % GROUP == 0;
        tokens[i] = i % 11 == 3 ? 0 : tokens[i] + PROMPT + 1;
        shared[i] = tokens[i] == 0 || first ? 0 : PROMPT;
        first = first && tokens[i] == 0;
    }
    return (struct kg_lane_lengths){.tokens = tokens, .shared = shared, .group = GROUP};
}

/* Counts sequences that share a prompt with the sequence before them in the same lane. */
static int count_shared(const struct kg_lane_lengths *l, const int32_t *lane)
{
    int n = 0, before = -1;

    for (int i = 0; i < GROUP * GROUPS; i++)
        if (lane[i] >= 0) {
            n += l->shared[i] > 0 && lane[i] == lane[before];
            before = i;
        }
    return n;
}

/* With few lanes a group goes to one lane, with many it is split into up to `pieces`
 * equal parts. Every sequence with tokens gets a lane. */
static void groups_are_dealt_whole_while_there_are_enough(void **state)
{
    static const int lanes[] = {1, 4, 6, 8, 16, 64};
    static const int pieces[] = {1, 1, 1, 2, 4, 8}; /* per group */
    int64_t tokens[GROUP * GROUPS], shared[GROUP * GROUPS];
    const struct kg_lane_lengths l = groups_that_share(tokens, shared);

    (void)state;
    for (size_t k = 0; k < sizeof lanes / sizeof *lanes; k++) {
        int32_t lane[GROUP * GROUPS];
        const int size = GROUP / pieces[k];

        NEED(kg_lanes_deal(lane, &l, GROUP * GROUPS, lanes[k], err));
        for (int i = 0; i < GROUP * GROUPS; i++) {
            assert_true(tokens[i] > 0 ? lane[i] >= 0 && lane[i] < lanes[k]
                                      : lane[i] == -1);
            for (int j = i / size * size; j < i; j++)
                assert_true(lane[j] < 0 || lane[i] < 0 || lane[j] == lane[i]);
        }
        assert_true(pieces[k] < GROUP || count_shared(&l, lane) < GROUP * GROUPS / 8);
        assert_true(pieces[k] > 1 || count_shared(&l, lane) > GROUP * GROUPS * 3 / 4);
    }
}

/* Tokens of a shared prefix count once towards the budget and each time towards max_keys.
 * A prefix is shared only with the sequence directly before it in the list. */
static void what_is_shared_fits_more_often(void **state)
{
    static const int64_t tokens[] = {50, 45, 0, 41, 60, 45};
    static const int64_t shared[] = {0, 40, 0, 40, 0, 40};
    static const size_t list[] = {0, 1, 3, 4, 5}, other[] = {1, 5, 4};
    struct kg_lane_lengths l = {.tokens = tokens, .shared = shared, .budget = 56};

    (void)state;
    assert_int_equal(kg_lanes_fit(&l, list, 5, 0), 3); /* 50 + 5 + 1; 2 is empty */
    l.budget = 55;
    assert_int_equal(kg_lanes_fit(&l, list, 5, 0), 2);
    l.budget = 121;
    assert_int_equal(kg_lanes_fit(&l, list, 5, 0), 5);
    l.max_keys = 240;
    assert_int_equal(kg_lanes_fit(&l, list, 5, 0), 4);
    l.max_keys = 10; /* at least one */
    assert_int_equal(kg_lanes_fit(&l, list, 5, 0), 1);
    l.max_keys = 0;
    l.budget = 89; /* 45 + 45: 5 does not share with 1 */
    assert_int_equal(kg_lanes_fit(&l, other, 3, 0), 1);
    l.shared = NULL;
    l.budget = 120;
    assert_int_equal(kg_lanes_fit(&l, list, 5, 0), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_adds_along_the_tree),
        cmocka_unit_test(blocks_of_any_number_of_ranks_add_along_the_tree),
        cmocka_unit_test(dealing_is_longest_first_onto_the_least),
        cmocka_unit_test(one_lane_is_all_that_is_computed),
        cmocka_unit_test(lanes_are_nearly_even),
        cmocka_unit_test(
            the_worst_lane_is_within_a_twentieth_of_the_mean_that_can_be_had),
        cmocka_unit_test(neighbours_are_computed_at_once_while_they_fit),
        cmocka_unit_test(groups_are_dealt_whole_while_there_are_enough),
        cmocka_unit_test(what_is_shared_fits_more_often),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
