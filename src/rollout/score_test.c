/* Scoring: packing and gathering do not change the numbers, and the statistics of a
 * position agree with one another. */
#include "rollout/score_testing.h"

#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { V = 83, N = 7, LEN = 90, K = 3 };
static const size_t lengths[N] = {1, 2, 90, 64, 65, 17, 40};
static int32_t tokens[N][LEN];
static struct kg_model *model;
static struct kg_err err;

struct result {
    float logp[N][LEN], entropy[N][LEN], logp_at[N][LEN * K], top_logp[N][LEN * K];
    int32_t top_ids[N][LEN * K];
};
static struct result one, two;
static int32_t indices[N][LEN * K];

static int setup(void **state)
{
    (void)state;
    const struct kg_rng_key key = {1, KG_RNG_TEST};
    struct kg_model_config c = {.vocab = V,
                                .hidden = 32,
                                .ffn = 64,
                                .layers = 2,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 16,
                                .max_positions = 128,
                                .norm_eps = 1e-6f,
                                .rope_theta = 10000,
                                .init_range = 0.3f,
                                .bos = -1,
                                .dtype_name = "float32"};
    struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t t = 0; t < LEN; t++) {
            tokens[i][t] = (int32_t)kg_rng_below(key, i, t, 0, V);
            for (uint32_t j = 0; j < K; j++)
                indices[i][t * K + j] = (int32_t)kg_rng_below(key, i, t, 1 + j, V);
            indices[i][t * K] = tokens[i][t];
        }
    if (kg_arch_find(&c.arch, "llama", &err) != KG_OK)
        return 1;
    return kg_model_create(&model, &c, &opts, 2, &err) != KG_OK;
}

static int teardown(void **state)
{
    (void)state;
    kg_model_free(model);
    return 0;
}

static void fill(struct kg_score_seq *seqs, struct result *r, float temperature,
                 const size_t *from)
{
    memset(r, 0x7f, sizeof *r);
    for (int i = 0; i < N; i++)
        seqs[i] = (struct kg_score_seq){.tokens = tokens[i],
                                        .n = lengths[i],
                                        .from = from ? from[i] : 0,
                                        .temperature = temperature,
                                        .indices = indices[i],
                                        .logp = r->logp[i],
                                        .entropy = r->entropy[i],
                                        .logp_at = r->logp_at[i],
                                        .top_ids = r->top_ids[i],
                                        .top_logp = r->top_logp[i]};
}

static struct kg_rows *rows_of(int64_t pack)
{
    struct kg_rows_opts opts = {.max_tokens = pack, .max_k = K, .top_k = K};
    struct kg_rows *rows = NULL;
    assert_int_equal(kg_rows_create(&rows, model, &opts, &err), KG_OK);
    return rows;
}

static void score(struct result *r, int64_t pack, float temperature, const size_t *from)
{
    struct kg_score_seq seqs[N];
    struct kg_rows *rows = rows_of(pack);
    fill(seqs, r, temperature, from);
    if (kg_score(rows, model, seqs, N, K, K, &err) != KG_OK)
        fail_msg("%s", err.message);
    kg_rows_free(rows);
}

static void packing_leaves_no_trace(void **state)
{
    (void)state;
    score(&one, LEN, 1, NULL);
    score(&two, 1000, 1, NULL);
    assert_memory_equal(&one, &two, sizeof one);
    score(&two, 157, 1, NULL);
    assert_memory_equal(&one, &two, sizeof one);
    score(&two, 157, 0, NULL); /* 0 counts as 1 */
    assert_memory_equal(&one, &two, sizeof one);
}

static void the_statistics_of_a_position_agree(void **state)
{
    (void)state;
    score(&one, 1000, 0.5f, NULL);
    for (int i = 0; i < N; i++) {
        assert_true(one.logp[i][0] == 0);
        for (size_t t = 1; t < lengths[i]; t++) {
            const float *top = &one.top_logp[i][t * K];
            assert_true(one.logp[i][t] == one.logp_at[i][t * K]);
            assert_true(one.logp[i][t] <= top[0] && top[0] >= top[1] && top[1] >= top[2]);
            assert_true(top[0] <= 0 && one.entropy[i][t] >= 0);
            assert_true((double)one.entropy[i][t] <= log((double)V) + 1e-6);
        }
    }
}

/* Each statistic has the same values with and without the others. */
static void each_statistic_may_be_asked_for_alone(void **state)
{
    struct kg_score_seq seqs[N];
    struct kg_rows *rows = rows_of(1000);
    (void)state;
    score(&one, 1000, 1, NULL);
    for (int top_k = 0; top_k < 2; top_k++) {
        fill(seqs, &two, 1, NULL);
        for (int i = 0; i < N; i++)
            seqs[i].indices = NULL, seqs[i].logp_at = NULL, seqs[i].entropy = NULL,
            seqs[i].top_ids = top_k ? two.top_ids[i] : NULL,
            seqs[i].top_logp = top_k ? two.top_logp[i] : NULL;
        assert_int_equal(kg_score(rows, model, seqs, N, 0, top_k, &err), KG_OK);
        for (int i = 0; i < N; i++)
            for (size_t t = 1; t < lengths[i]; t++) {
                assert_true(two.logp[i][t] == one.logp[i][t]);
                assert_true(!top_k || two.top_ids[i][t] == one.top_ids[i][t * K]);
                assert_true(!top_k || two.top_logp[i][t] == one.top_logp[i][t * K]);
            }
    }
    kg_rows_free(rows);
}

static void rows_before_the_first_wanted_are_skipped(void **state)
{
    (void)state;
    const size_t from[N] = {0, 2, 80, 0, 64, 1, 1000};
    score(&one, 1000, 1, NULL);
    score(&two, 200, 1, from);
    for (int i = 0; i < N; i++)
        for (size_t t = 0; t < lengths[i]; t++) {
            bool wanted = t > 0 && t >= from[i];
            assert_true(two.logp[i][t] == (wanted ? one.logp[i][t] : 0));
            assert_true(two.entropy[i][t] == (wanted ? one.entropy[i][t] : 0));
            assert_true(!wanted || two.top_ids[i][t * K] == one.top_ids[i][t * K]);
        }
}

static void expect_refusal(struct kg_score_seq *seqs, int64_t pack, const char *words)
{
    struct kg_rows *rows = rows_of(pack);
    assert_int_equal(kg_score(rows, model, seqs, N, K, K, &err), KG_EINVAL);
    if (strstr(err.message, words) == NULL)
        fail_msg("expected '%s' in: %s", words, err.message);
    kg_rows_free(rows);
}

static void sequences_that_cannot_be_scored_are_named(void **state)
{
    (void)state;
    struct kg_score_seq seqs[N];
    fill(seqs, &one, 1, NULL);
    expect_refusal(seqs, 89, "sequence 2: 90 tokens, and a pack holds at most 89");
    seqs[3].n = 0;
    expect_refusal(seqs, 128, "sequence 3: expected at least one token");
    tokens[5][4] = V;
    seqs[3].n = 1;
    expect_refusal(seqs, 128,
                   "sequence 5: token 4 is 83, expected an id between 0 and 82");
    tokens[5][4] = 0;
}

static void running_out_of_memory_is_a_status_and_leaks_nothing(void **state)
{
    (void)state;
    struct kg_score_seq seqs[N];
    struct kg_rows *rows = rows_of(128);
    kg_status status = KG_ENOMEM;
    fill(seqs, &one, 1, NULL);
    uint64_t before = kg_mem_current_bytes();
    for (uint64_t n = 1; status == KG_ENOMEM; n++) {
        kg_mem_fail_at(n);
        status = kg_score(rows, model, seqs, N, K, K, &err);
        kg_mem_fail_at(0);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    assert_int_equal(status, KG_OK);
    kg_rows_free(rows);
}

/* The expected sums come from the same head, asked for the log-prob of every id. */
static void sums_of_squares_are_of_the_softmax_that_was_sampled(void **state)
{
    static float logp[LEN], all[LEN * V], sum_sq[LEN];
    static int32_t ids[LEN * V];

    (void)state;
    for (int i = 0; i < LEN * V; i++)
        ids[i] = i % V;
    for (int i = 1; i < 4; i++) {
        struct kg_score_seq q = {.tokens = tokens[i],
                                 .n = lengths[i],
                                 .temperature = 0.5f * (float)i,
                                 .indices = ids,
                                 .logp = logp,
                                 .logp_at = all,
                                 .sum_sq = sum_sq};

        score_one(model, &q, V, 0);
        assert_true(sum_sq[0] == 0);
        for (size_t t = 1; t < q.n; t++) {
            double sum = 0;

            for (size_t v = 0; v < V; v++)
                sum += exp(2 * (double)all[t * V + v]);
            assert_true(fabs(sum_sq[t] / sum - 1) < 1e-5);
            assert_true(sum_sq[t] > 1.0 / V && sum_sq[t] < 1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_squares_are_of_the_softmax_that_was_sampled),
        cmocka_unit_test(packing_leaves_no_trace),
        cmocka_unit_test(the_statistics_of_a_position_agree),
        cmocka_unit_test(each_statistic_may_be_asked_for_alone),
        cmocka_unit_test(rows_before_the_first_wanted_are_skipped),
        cmocka_unit_test(sequences_that_cannot_be_scored_are_named),
        cmocka_unit_test(running_out_of_memory_is_a_status_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
