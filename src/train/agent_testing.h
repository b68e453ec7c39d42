/* Shared by tests of training on episodes: a small policy over a byte-level tokenizer
 * with a few words.
 *
 * Included by *_test.c only.
 */
#ifndef KG_TRAIN_AGENT_TESTING_H
#define KG_TRAIN_AGENT_TESTING_H

#include "base/file.h"
#include "base/need_testing.h"
#include "model/model.h"
#include "text/bpe.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Keys of a run on episodes with the calculator; the policy is ROOT/model. */
#define EPISODES                                                                         \
    "model.path=" ROOT "/model", "model.dtype=fp32", "task.name=arithmetic",             \
        "task.level=easy", "task.count=40", "task.val_count=5",                          \
        "data.train=", "data.val=", "rollout.prompts=3", "rollout.samples=3",            \
        "rollout.max_batch=4", "episode.env=calculator", "episode.turns=2",              \
        "episode.turn_tokens=9", "episode.obs_tokens=15", "episode.context=100",         \
        "kl.estimator=k3", "kl.beta=0.1", "anchor.kind=ema"

static inline void put_file(const char *root, const char *name, const char *text)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", root, name);
    NEED(kg_file_write_atomic(path, text, strlen(text), err));
}

/* Saves a model and its tokenizer in ROOT/model. `more`: number of ids for pieces of
 * `text`; wide: a policy that can learn its turns, instead of one that only writes
 * noise */
static inline void make_agent(const char *root, const char *text, int more, bool wide)
{
    static const char *const specials[] = {"<|endoftext|>"};
    struct kg_bpe_train train = {
        .vocab_size = 257 + more, .specials = specials, .n_specials = 1};
    struct kg_model_config c = {.vocab = 257 + more,
                                .hidden = 32,
                                .ffn = wide ? 64 : 48,
                                .layers = 2,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 16,
                                .max_positions = wide ? 512 : 256,
                                .norm_eps = 1e-6f,
                                .rope_theta = 10000,
                                .tied = true,
                                .qkv_bias = true,
                                .init_range = wide ? 0.1f : 0.2f,
                                .bos = -1,
                                .dtype_name = "float32"};
    struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    char tokenizer[256], model[256];
    struct kg_model_save save = {.dtype = KG_F32, .source_dir = tokenizer};
    struct kg_model *m = NULL;

    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer", root);
    snprintf(model, sizeof model, "%s/model", root);
    NEED(kg_file_make_dirs(tokenizer, err));
    NEED(kg_bpe_train_write(tokenizer, &text, 1, &train, err));
    NEED(kg_arch_find(&c.arch, "qwen2", err));
    NEED(kg_model_create(&m, &c, &opts, 5, err));
    NEED(kg_model_save(m, model, &save, err));
    kg_model_free(m);
}

/* make_agent in a child process, so that this one has no threads when it forks later.
 * returns 0, or the child's status */
static inline int make_agent_apart(const char *root, const char *text, int more,
                                   bool wide)
{
    const pid_t child = fork();
    int ended;

    if (child == 0) {
        make_agent(root, text, more, wide);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    return ended;
}

/* Writes root/NAME with a record for each number from 10 to 39, which `format` may
 * contain up to three times. */
static inline void put_records(const char *root, const char *name, const char *format)
{
    struct kg_str text = {0};

    for (int i = 10; i < 40; i++)
        NEED(kg_str_printf(&text, err, format, i, i, i));
    put_file(root, name, text.data);
    kg_str_release(&text);
}

/* Makes a policy that can learn to search, problems (train.jsonl), and demonstrations
 * that search once and then answer (sft.jsonl). */
static inline void make_search_agent(const char *root)
{
    make_agent(
        root,
        "<search>10</search><search>23</search><answer>45</answer>\n\n<information>"
        "Doc 1(Title: 67) is 2</information>\n\n<answer>89</answer><search>45"
        "</search>",
        33, true);
    put_records(root, "train.jsonl", "{\"question\": \"%d?\", \"answer\": \"%d%d\"}\n");
    put_records(root, "sft.jsonl",
                "{\"prompt\": \"%d?\", \"segments\": [{\"source\": \"model\", \"text\": "
                "\"<search>%d</search>\"}, {\"source\": \"tool\", \"text\": "
                "\"\\n\\n<information>Doc 1(Title: 1) is 2</information>\\n\\n\"}, "
                "{\"source\": \"model\", \"text\": \"<answer>%d</answer>\"}]}\n");
}

#endif
