/* Trajectories without a reward get advantage 0; the others get, in every row, the
 * advantages that they would get without them. */
#include "base/mem.h"
#include "policy/policy_internal.h"
#include "policy/policy_testing.h"

enum { GROUPS = 3, SEQS = 10, PARTS = 2, LENGTH = 3, TOKENS = SEQS * LENGTH };

/* A batch with every input that any row reads. */
struct batch {
    int64_t group_begin[GROUPS + 1], seq_begin[SEQS + 1];
    double reward[SEQS], greedy[SEQS], part[SEQS * PARTS], weight[PARTS];
    double token_reward[TOKENS], value[TOKENS], old_logp[TOKENS], sum_sq[TOKENS];
    double is_weight[TOKENS];
    uint8_t mask[TOKENS], drop[SEQS];
};

static struct kg_algo algo;
static double seq[SEQS], token[TOKENS], returns[TOKENS];

static uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

static struct batch fill(uint32_t *state)
{
    struct batch b = {.group_begin = {0, 4, 9, SEQS}, .weight = {1, -0.5}};

    for (int i = 0; i < SEQS; i++) {
        b.seq_begin[i + 1] = b.seq_begin[i] + 1 + draw(state, LENGTH);
        b.reward[i] = draw(state, 4) - 1.0;
        b.greedy[i] = draw(state, 3);
        for (int k = 0; k < PARTS; k++)
            b.part[i * PARTS + k] = draw(state, 3);
    }
    for (int t = 0; t < TOKENS; t++) {
        b.token_reward[t] = 0.01 * draw(state, 9);
        b.value[t] = 0.1 * draw(state, 9);
        b.old_logp[t] = -0.1 - 0.2 * draw(state, 9);
        b.sum_sq[t] = 0.05 * draw(state, 9);
        b.is_weight[t] = 0.5 + 0.1 * draw(state, 9);
        b.mask[t] = draw(state, 5) > 0;
    }
    return b;
}

static struct kg_policy_advantage advantages(const struct batch *b, bool with_drop,
                                             bool parts)
{
    struct kg_policy_advantage out = {.seq = seq, .token = token, .returns = returns};
    struct kg_policy_scores in = {
        .n_seqs = b->group_begin[GROUPS],
        .n_groups = GROUPS,
        .reward = b->reward,
        .group_begin = b->group_begin,
        .seq_begin = b->seq_begin,
        .token_reward = b->token_reward,
        .mask = b->mask,
        .drop = with_drop ? b->drop : NULL,
        .n_parts = parts ? PARTS : 0,
        .part = b->part,
        .part_weight = b->weight,
        .greedy = b->greedy,
        .value = b->value,
        .old_logp = b->old_logp,
        .sum_sq = b->sum_sq,
        .is_weight = b->is_weight,
    };
    struct kg_err err;

    if (!algo.advantage->token)
        out.returns = NULL;
    if (kg_policy_advantages(&out, &algo, &in, &err) != KG_OK)
        fail_msg("%s: %s", algo.advantage->about.name, err.message);
    return out;
}

static void copy(struct batch *to, const struct batch *from, int64_t i)
{
    int64_t at = to->group_begin[GROUPS]++, n = from->seq_begin[i + 1], t;

    to->reward[at] = from->reward[i];
    to->greedy[at] = from->greedy[i];
    memcpy(to->part + at * PARTS, from->part + i * PARTS, sizeof(double[PARTS]));
    t = to->seq_begin[at];
    for (int64_t s = from->seq_begin[i]; s < n; s++, t++) {
        to->token_reward[t] = from->token_reward[s];
        to->value[t] = from->value[s];
        to->old_logp[t] = from->old_logp[s];
        to->sum_sq[t] = from->sum_sq[s];
        to->is_weight[t] = from->is_weight[s];
        to->mask[t] = from->mask[s];
    }
    to->seq_begin[at + 1] = t;
}

/* A copy of b without dropped trajectories. within_group: if a group has only one of
 * several left, that one is dropped, too, and marked in b. */
static struct batch without(struct batch *b, bool within_group)
{
    struct batch r = {.weight = {b->weight[0], b->weight[1]}};

    for (int g = 0; g < GROUPS; g++) {
        int64_t begin = b->group_begin[g], end = b->group_begin[g + 1], left = 0;

        for (int64_t i = begin; i < end; i++)
            left += !b->drop[i];
        for (int64_t i = begin; i < end; i++)
            b->drop[i] |= within_group && left == 1 && end - begin > 1;
        for (int64_t i = begin; i < end; i++)
            if (!b->drop[i])
                copy(&r, b, i);
        r.group_begin[g + 1] = r.group_begin[GROUPS];
    }
    return r;
}

static void same(const double *a, const double *b, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s: %s %lld: expected %.17g, found %.17g",
                     algo.advantage->about.name, what, (long long)i, b[i], a[i]);
}

static void zero(const double *a, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        assert_true(a[i] == 0);
}

/* Dropped trajectories have a reward of NaN, since nothing may read it. */
static void compare(struct batch *b, bool within_group, bool parts)
{
    struct batch rest = without(b, within_group);
    struct kg_policy_advantage of_rest = advantages(&rest, false, parts), out;
    double seq_rest[SEQS], token_rest[TOKENS];
    int64_t at = 0;

    memcpy(seq_rest, seq, sizeof seq);
    memcpy(token_rest, token, sizeof token);
    for (int i = 0; i < SEQS; i++)
        if (b->drop[i])
            b->reward[i] = NAN;
    out = advantages(b, true, parts);
    assert_int_equal(out.groups_equal, of_rest.groups_equal);
    assert_true(out.mean == of_rest.mean && out.batch_std == of_rest.batch_std);
    for (int64_t i = 0; i < SEQS; i++) {
        int64_t t = b->seq_begin[i], n = b->seq_begin[i + 1] - t;

        if (b->drop[i]) {
            zero(seq + i, 1);
            zero(token + t, n);
            continue;
        }
        same(seq + i, seq_rest + at, 1, "trajectory");
        same(token + t, token_rest + rest.seq_begin[at], n, "token");
        at++;
    }
}

/* Drops none, one, all but one or all of a group, or any at random. */
static void mark(uint8_t drop[SEQS], int pattern, uint32_t *state)
{
    for (int i = 0; i < SEQS; i++)
        switch (pattern) {
        case 0:
            drop[i] = 0;
            break;
        case 1:
            drop[i] = i == 1;
            break;
        case 2:
            drop[i] = i < 4;
            break;
        case 3:
            drop[i] = i < 3;
            break;
        case 4:
            drop[i] = i >= 5;
            break;
        case 5:
            drop[i] = i == 0 || i == 4 || i == 9;
            break;
        case 6:
            drop[i] = 1;
            break;
        case 7:
            drop[i] = i != 5;
            break;
        default:
            drop[i] = draw(state, 3) == 0;
            break;
        }
}

static void every_row_is_as_without_them(void **state)
{
    struct kg_policy_rows rows = kg_advantage_rows();
    uint32_t seed = 7;

    (void)state;
    for (size_t r = 0; r < rows.n; r++) {
        const struct kg_advantage_row *row = (const void *)((const char *)rows.rows +
                                                            r * rows.stride);

        kg_algo_init(&algo);
        algo.advantage = row;
        for (int pattern = 0; pattern < 24; pattern++) {
            struct batch b = fill(&seed);

            mark(b.drop, pattern, &seed);
            compare(&b, row->about.needs & KG_NEED_GROUP,
                    row->about.needs & KG_NEED_PARTS);
        }
    }
}

/* Rewards 1, 0, 0 and one without: as a group of three. Reward 1 and three without:
 * nothing to compare with, so the advantage is 0. But a group of one sample keeps its
 * reward, as published. */
static void an_only_one_has_no_baseline(void **state)
{
    static const double reward[4] = {1, 0, 0, 7};
    static const uint8_t one[4] = {0, 0, 0, 1}, three[4] = {0, 1, 1, 1};
    struct kg_policy_scores in = {.n_seqs = 4,
                                  .n_groups = 1,
                                  .reward = reward,
                                  .group_begin = (int64_t[]){0, 4},
                                  .seq_begin = (int64_t[]){0, 1, 2, 3, 4},
                                  .drop = one};
    struct kg_policy_advantage out = {.seq = seq};
    struct kg_err err;

    (void)state;
    kg_algo_init(&algo);
    must_set(&algo, "algo.std_eps", "0");
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
    assert_near(seq[0], 2 / sqrt(3), 1e-15);
    assert_near(seq[1], -1 / sqrt(3), 1e-15);
    assert_true(seq[3] == 0 && out.groups_equal == 0);
    in.drop = three;
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
    zero(seq, 4);
    assert_int_equal(out.groups_equal, 1);
    in.group_begin = (int64_t[]){0, 1, 4}, in.n_groups = 2;
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
    assert_true(seq[0] == 1);
}

static void memory_that_is_refused_is_an_error(void **state)
{
    uint32_t seed = 3;
    struct batch b = fill(&seed);
    struct kg_policy_advantage out = {.seq = seq};
    struct kg_policy_scores in = {.n_seqs = SEQS,
                                  .n_groups = GROUPS,
                                  .reward = b.reward,
                                  .group_begin = b.group_begin,
                                  .seq_begin = b.seq_begin,
                                  .drop = b.drop};
    struct kg_err err;

    (void)state;
    kg_algo_init(&algo);
    b.drop[2] = 1;
    for (int n = 1; n <= 2; n++) {
        kg_mem_fail_at(n);
        assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_ENOMEM);
    }
    kg_mem_fail_at(0);
    assert_int_equal(kg_policy_advantages(&out, &algo, &in, &err), KG_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_as_without_them),
        cmocka_unit_test(an_only_one_has_no_baseline),
        cmocka_unit_test(memory_that_is_refused_is_an_error),
    };

    return cmocka_run_group_tests_name("policy/advantage_drop", tests, NULL, NULL);
}
