/* Advantages of groups with missing rewards, compared with TRL's.
 *
 * tests/data/verdict/trl_advantages.jsonl has groups of four; `rewards` of each
 * completion are null where a reward function returned None. The expected advantages were
 * computed in float64 by the statements of TRL's GRPO and RLOO trainers between rewards
 * and advantages (f2cd5771, with its 1e-4); gdpo is its normalize_then_sum.
 */
#include "data/jsonl.h"
#include "policy/policy_testing.h"

#include <stdlib.h>

#define FILE_NAME "tests/data/verdict/trl_advantages.jsonl"

enum { SEQS = 8, PARTS = 2 };

static double part[SEQS * PARTS], weight[PARTS], reward[SEQS];
static uint8_t drop[SEQS];
static int n_parts;

/* A completion without any reward is ungraded. With some rewards, TRL sums these, and so
 * does kedge's gdpo. */
static void read_scores(const struct kg_json *line)
{
    const struct kg_json *rewards = kg_json_get(line, "rewards");
    const struct kg_json *weights = kg_json_get(line, "weights");

    n_parts = (int)kg_json_size(weights);
    assert_int_equal(kg_json_size(rewards), SEQS);
    for (int i = 0; i < SEQS; i++) {
        drop[i] = 1, reward[i] = 0;
        for (int k = 0; k < n_parts; k++) {
            double x = kg_json_real(kg_json_at(kg_json_at(rewards, (size_t)i), (size_t)k),
                                    NAN);

            weight[k] = kg_json_real(kg_json_at(weights, (size_t)k), NAN);
            part[i * n_parts + k] = x;
            drop[i] &= isnan(x);
            reward[i] += isnan(x) ? 0 : weight[k] * x;
        }
    }
}

static void compare(const struct kg_json *line, const char *row, int number)
{
    const struct kg_json *expected = kg_json_get(line, row);
    struct kg_policy_scores in = {.n_seqs = SEQS,
                                  .n_groups = 2,
                                  .reward = reward,
                                  .group_begin = (int64_t[]){0, 4, 8},
                                  .seq_begin = (int64_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8},
                                  .drop = drop,
                                  .n_parts = strcmp(row, "gdpo") == 0 ? n_parts : 0,
                                  .part = part,
                                  .part_weight = weight};
    double seq[SEQS];
    struct kg_policy_advantage out = {.seq = seq};
    struct kg_algo algo;
    struct kg_err err;

    if (!expected)
        return;
    kg_algo_init(&algo);
    must_set(&algo, "algo.advantage", row);
    must_set(&algo, "algo.std_eps", "1e-4");
    if (kg_policy_advantages(&out, &algo, &in, &err) != KG_OK)
        fail_msg("%s: %s", row, err.message);
    for (int i = 0; i < SEQS; i++) {
        double want = kg_json_real(kg_json_at(expected, (size_t)i), NAN);

        if (!(fabs(seq[i] - want) < 1e-12))
            fail_msg("line %d, %s, answer %d: expected %.15g, found %.15g", number, row,
                     i, want, seq[i]);
    }
}

static void silent_graders_are_as_in_trl(void **state)
{
    static const char *const rows[] = {"grpo", "dr-grpo", "rloo", "gdpo"};
    struct kg_jsonl *lines;
    struct kg_json_doc doc = {0};
    struct kg_err err;
    bool more = true;
    int n = 0;

    (void)state;
    assert_int_equal(kg_jsonl_open(&lines, FILE_NAME, &err), KG_OK);
    while (kg_jsonl_next(lines, &doc, &more, &err) == KG_OK && more) {
        read_scores(doc.root);
        n++;
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            compare(doc.root, rows[r], n);
    }
    assert_int_equal(n, 24);
    kg_json_release(&doc);
    kg_jsonl_close(lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(silent_graders_are_as_in_trl)};

    return cmocka_run_group_tests_name("ungraded_golden", tests, NULL, NULL);
}
