/* Shared by tests of an RL step: runs of the digit checkpoint with a few options, and
 * hand-made trajectories with observations in between.
 */
#ifndef KG_TRAIN_RL_TESTING_H
#define KG_TRAIN_RL_TESTING_H

#include "recipe/config_testing.h"
#include "train/keep/run_dir.h"
#include "train/step/rl_step.h"

#include "base/mem.h"
#include "model/slab_testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DATA "tests/data/verl_digit_llama"

enum { VOCAB = 16, TOP = 3, MOST = 32 };

static const char *const rl_base[] = {
    "model.path=" DATA,
    "task.name=digits",
    "data.train=" DATA "/train.jsonl",
    "data.val=" DATA "/test.jsonl",
    "rollout.prompts=4",
    "rollout.samples=4",
    "rollout.max_tokens=12",
    "optim.lr=1e-2",
    "optim.weight_decay=0",
    "eval.problems=1",
    "run.threads=1",
    "eval.at_start=false",
    NULL,
};

static inline struct kg_config *config_of(const char *dir, const char *const *extra)
{
    const char *const *const lists[] = {rl_base, extra};

    return config_from(dir, lists, 2);
}

/* Creates the parent folder of dir and removes dir. */
static inline void fresh(const char *dir)
{
    NEED(kg_file_make_dirs(dir, err));
    NEED(kg_file_remove_tree(dir, err));
}

/* A run before its first RL step. */
struct opened {
    struct kg_run run;
    struct kg_config *config;
};

/* Opens a run from a config and takes ownership of it. */
static inline void open_config(struct opened *o, struct kg_config *config)
{
    o->config = config;
    NEED(kg_run_open(&o->run, config, err));
    NEED(kg_run_dir_create(&o->run.in, &o->run.state, o->run.work.ahead.all, &o->run.log,
                           err));
    NEED(kg_run_dir_cut(&o->run.in, &o->run.state, o->run.work.ahead.all, &o->run.log,
                        err));
    NEED(kg_run_start_rl(&o->run.in, &o->run.state, err));
}

static inline void open_run(struct opened *o, const char *dir, const char *const *extra)
{
    fresh(dir);
    open_config(o, config_of(dir, extra));
}

static inline void close_run(struct opened *o)
{
    kg_run_close(&o->run);
    kg_config_free(o->config);
}

/* Changes every weight slightly, to a value that needs all bits of fp32. */
static inline void disturb(struct kg_model *m)
{
    scale_slab(&m->master, 0.88f, 0.0513f, 7);
    NEED(kg_model_refresh(m, err));
}

static inline double last_metric(const char *dir, const char *name)
{
    struct kg_str text = {0};
    char path[256], key[256];
    const char *found = NULL;
    double value;

    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    snprintf(key, sizeof key, "\"%s\": ", name);
    NEED(kg_file_read(&text, path, 1u << 24, err));
    for (const char *at = text.data; (at = strstr(at, key)); at += strlen(key))
        found = at;
    if (!found)
        fail_msg("%s has no %s", path, name);
    value = strtod(found + strlen(key), NULL);
    kg_str_release(&text);
    return value;
}

/* ---- hand-made trajectories ---- */

/* One letter per token: p prompt, m model, t tool. */
static const char *const layouts[] = {"pppmmtttmmmt", "ppmtmtm", "pppppmmm",
                                      "pmmttttmmmmmtm"};
enum { N_TRAJS = 4 };

static inline int32_t token_of(size_t i, size_t j)
{
    return (int32_t)((3 * i + 5 * j) % VOCAB);
}

static inline void push_model_token(struct kg_traj *t, size_t i, bool keep_ids)
{
    size_t j = t->n;
    int32_t top[TOP] = {(int32_t)(j % VOCAB), (int32_t)((j + 4) % VOCAB), token_of(i, j)};
    float top_logp[TOP] = {-0.5f - 0.01f * (float)j, -1.5f, -2.5f - 0.1f * (float)i};
    static const int32_t beside[] = {0, 1, 7, 9};
    uint64_t words[(VOCAB + 63) / 64] = {0};
    uint8_t packed[VOCAB / 8 + 1];
    struct kg_traj_step step = {.token = token_of(i, j),
                                .logp = -1.0f - 0.125f * (float)j - (float)i,
                                .top_ids = t->top_k ? top : NULL,
                                .top_logp = t->top_k ? top_logp : NULL,
                                .cut = keep_ids ? 0.5f : 0};

    for (size_t k = 0; k < 1 + j % 4; k++) {
        int32_t id = (token_of(i, j) + beside[k]) % VOCAB;

        words[id / 64] |= (uint64_t)1 << (id % 64);
    }
    if (keep_ids)
        step.kept = kg_idset_pack(packed, words, VOCAB);
    NEED(kg_traj_push(t, &step, err));
}

/* Trajectory 2 has no kept ids, which means the whole vocabulary. */
static inline void make_trajs(struct kg_rl_batch *b, int top_k, bool keep_ids)
{
    struct kg_err e;

    b->group = 2;
    b->n_trajs = b->n_learned = N_TRAJS;
    b->trajs = kg_mem_calloc(N_TRAJS, sizeof *b->trajs, "test", &e);
    assert_non_null(b->trajs);
    for (size_t i = 0; i < N_TRAJS; i++) {
        struct kg_traj *t = &b->trajs[i];

        t->top_k = top_k;
        t->temperature = 0.7f;
        t->reward = (double)(i % 2);
        t->graded = true;
        for (const char *c = layouts[i]; *c; c++) {
            int32_t token = token_of(i, t->n);

            if (*c == 'm')
                push_model_token(t, i, keep_ids && i != 2);
            else
                NEED(kg_traj_append(t, &token, 1,
                                    *c == 'p' ? KG_SOURCE_PROMPT : KG_SOURCE_TOOL, err));
        }
    }
}

#endif
