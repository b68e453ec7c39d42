/* Shared by the tests of this folder: a small model, a tokenizer of letters, and the
 * comparison of two trajectories.
 *
 * Included by *_test.c only. If a helper fails, the test fails and prints the message of
 * the err.
 */
#ifndef KG_ROLLOUT_ROLLOUT_TESTING_H
#define KG_ROLLOUT_ROLLOUT_TESTING_H

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/need_testing.h"
#include "rollout/rollout.h"
#include "rollout/score_testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEST_UNUSED __attribute__((unused))

enum { TEST_V = 97 };
static struct kg_err refusal;

TEST_UNUSED static struct kg_model_config config(int32_t vocab)
{
    struct kg_model_config c = {.vocab = vocab,
                                .hidden = 64,
                                .ffn = 96,
                                .layers = 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 16,
                                .max_positions = 512,
                                .norm_eps = 1e-6f,
                                .rope_theta = 10000,
                                .tied = true,
                                .qkv_bias = true,
                                .init_range = 0.25f,
                                .bos = -1,
                                .dtype_name = "float32"};
    assert_int_equal(kg_arch_find(&c.arch, "qwen2", &refusal), KG_OK);
    return c;
}

TEST_UNUSED static struct kg_model *make_model(enum kg_dtype ct, int32_t vocab)
{
    struct kg_model_config c = config(vocab);
    struct kg_model_opts opts = {.ct = ct, .trainable = true};
    struct kg_model *m = NULL;
    assert_int_equal(kg_model_create(&m, &c, &opts, 11, &refusal), KG_OK);
    return m;
}

TEST_UNUSED static void release(struct kg_traj *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        kg_traj_release(&t[i]);
}

TEST_UNUSED static void assert_same_traj(const struct kg_traj *a, const struct kg_traj *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->prompt_n, b->prompt_n);
    assert_int_equal(a->finish, b->finish);
    assert_memory_equal(a->tokens, b->tokens, a->n * sizeof *a->tokens);
    assert_memory_equal(a->source, b->source, a->n);
    assert_memory_equal(a->logp, b->logp, a->n * sizeof *a->logp);
    assert_int_equal(a->n_windows, b->n_windows);
    if (a->n_windows > 0)
        assert_memory_equal(a->windows, b->windows, a->n_windows * sizeof *a->windows);
    size_t k = (size_t)a->top_k;
    size_t from = a->prompt_n * k;
    assert_memory_equal(a->top_ids + from, b->top_ids + from,
                        (a->n * k - from) * sizeof *a->top_ids);
    assert_memory_equal(a->top_logp + from, b->top_logp + from,
                        (a->n * k - from) * sizeof *a->top_logp);
}

/* Checks that the records of MODEL tokens equal the scores, each in the context in which
 * it was sampled. K: ids scored per position, at least the recorded number. */
TEST_UNUSED static void assert_scored_in_parts(const struct kg_model *m,
                                               const struct kg_traj *t, int K)
{
    size_t k = (size_t)K, top = (size_t)t->top_k, n = kg_traj_n_parts(t, false);
    float *logp = malloc(t->n * sizeof *logp);
    int32_t *top_ids = malloc(t->n * k * sizeof *top_ids + 1);
    float *top_logp = malloc(t->n * k * sizeof *top_logp + 1);
    size_t seen = 0;
    for (size_t i = 0; i < n; i++) {
        struct kg_traj_part p = kg_traj_part(t, i, false);
        size_t from = p.begin - p.from;
        struct kg_score_seq seq = {.tokens = t->tokens + p.from,
                                   .n = p.end - p.from,
                                   .from = from,
                                   .temperature = t->temperature,
                                   .logp = logp,
                                   .top_ids = k > 0 ? top_ids : NULL,
                                   .top_logp = k > 0 ? top_logp : NULL};
        score_one(m, &seq, 0, K);
        for (size_t j = p.begin, at = from; j < p.end; j++, at++) {
            if (t->source[j] != KG_SOURCE_MODEL)
                continue;
            seen++;
            assert_memory_equal(&logp[at], &t->logp[j], sizeof *logp);
            assert_memory_equal(top_ids + at * k, t->top_ids + j * top,
                                top * sizeof *top_ids);
            assert_memory_equal(top_logp + at * k, t->top_logp + j * top,
                                top * sizeof *top_logp);
        }
    }
    assert_int_equal(seen, kg_traj_model_tokens(t));
    free(logp);
    free(top_ids);
    free(top_logp);
}

/* A tokenizer of single characters: ids 0..25 are a..z, 26 is special, the rest of TEST_V
 * are other characters. */
TEST_UNUSED static struct kg_tokenizer *letters(void)
{
    char dir[] = "/tmp/kedge-rollout-XXXXXX";
    char path[64];
    struct kg_tokenizer *tok = NULL;
    struct kg_str json = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/token_ids.json", dir);
    assert_int_equal(kg_str_putc(&json, '{', &refusal), KG_OK);
    for (int i = 0; i < TEST_V; i++) {
        int c = i < 26 ? 'a' + i : 0x100 + i;
        assert_int_equal(kg_str_printf(&json, &refusal, "%s\"\\u%04x\": %d",
                                       i > 0 ? ", " : "", (unsigned)c, i),
                         KG_OK);
    }
    assert_int_equal(kg_str_putc(&json, '}', &refusal), KG_OK);
    assert_int_equal(kg_file_write_atomic(path, json.data, json.len, &refusal), KG_OK);
    if (kg_tokenizer_open(&tok, dir, &refusal) != KG_OK)
        fail_msg("%s", refusal.message);
    assert_int_equal(kg_file_remove_tree(dir, &refusal), KG_OK);
    kg_str_release(&json);
    return tok;
}

#endif
