/* The option rows of training. The same rows give the help of keys, the resolved
 * config.yaml and the error for a mistyped key. */
#ifndef KG_RECIPE_OPTIONS_H
#define KG_RECIPE_OPTIONS_H

#include "base/status.h"
#include "data/options.h"
#include "model/optim.h"
#include "policy/algo.h"
#include "rollout/episode.h"
#include "text/prompt.h"

/* The state that is sharded over ranks instead of copied to each. */
enum kg_shard {
    KG_SHARD_NONE,
    KG_SHARD_OPTIMIZER, /* master weights, the optimizer's state, an anchor's masters */
    KG_SHARD_GRADIENTS, /* the same, and gradients, computed bucket by bucket */
};

/* The values of a recipe, with one member per section of keys. A member may be the
 * options struct of the module that reads the section. Text and lists are borrowed from
 * the config. Fields without a key stay 0. */
struct kg_recipe {
    struct {
        const char *dir;
        uint64_t seed;
        int threads;
    } run;
    struct {
        const char *path;
        const char *dtype;
        const char *base_dtype; /* "same": dtype */
        const char *device;
        const char *adapter; /* "": none */
        struct kg_opt_list ignore;
    } model;
    struct {
        int rank; /* 0: trains all weights, or the weights of model.adapter */
        double alpha;
        struct kg_opt_list targets;
        bool rslora;
    } lora;
    struct {
        const char *products;
        const char *libraries;
        bool may_change; /* may change on resume */
    } device;
    struct {
        const char *from;
        struct kg_opt_list parts;
    } init;
    struct {
        const char *name;
        int64_t val_count;
        struct kg_opt_list rewards, reward_weights;
    } task;
    struct kg_task_opts task_opts; /* the other keys of task; keys of data for tasks */
    struct {
        struct kg_opt_list train, val;
        struct kg_opt_list weights, templates, val_templates;
        const char *chat_template;
        size_t max_prompt_tokens;
        bool drop_overlong;
        enum kg_special add_special;
    } data;
    struct {
        const char *data;
        int64_t prompts;
        int samples;
        struct kg_sampling sampling; /* without stop strings */
        struct kg_opt_list stop;
        bool dynamic;
        /* `dynamic` keeps groups whose rewards (false: accuracies) differ */
        bool dynamic_reward;
        double oversample;
        int64_t max_refills;
        int64_t overlong_buffer;
        double overlong_factor;
        struct kg_rollout_opts engine;
        int lag;
        int max_staleness;
        int tool_steps;
        const char *dtype;
        bool router_replay;
    } rollout;
    const char *episode_env;
    struct kg_episode_opts episode; /* keys of episode and search */
    const char *preset;             /* "": none */
    struct kg_algo algo;            /* names of rows are not looked up yet */
    bool reproduction;
    const char *anchor_path;
    bool anchor_on_host;
    struct {
        const char *kind;
        struct kg_optim_opts opts; /* row and number of updates are not set */
        int64_t warmup_steps;
        bool stairs; /* warmup rises once per step */
        bool on_host;
    } optim;
    struct {
        int64_t steps;
        int64_t updates_per_step;
        int lanes;
        int64_t micro_tokens;
        bool checkpoint_layers;
        bool share_prefix;
        bool recompute; /* recompute the old log-probs */
        double router_aux;
        int64_t max_skips;
    } train;
    struct {
        double wait_s;
        int rollout;
        enum kg_shard shard;
        bool nccl; /* between devices */
        const char *libraries;
    } ranks;
    struct {
        int64_t steps;
        double epochs;
        const char *data, *val;
        int64_t eval_every;
        const char *level;
        int64_t count;
        double fault_rate;
        size_t batch;
        struct kg_optim_opts opts; /* lr, its schedule and warmup, weight decay */
        size_t max_tokens;
    } sft;
    struct {
        int64_t every;
        bool at_start;
        size_t problems;
        int samples;
        struct kg_sampling sampling; /* only the fields that have keys */
        bool anchor;
        const char *reference;
    } eval;
    struct {
        int64_t every, keep;
        bool fp32;
    } checkpoint;
    struct {
        bool rollouts, validation, tensorboard;
        double watchdog_s;
        bool report;
    } log;
};

/* Conditions of keys (data/needs.h). VALIDATION: there are problems to validate on (a
 * recipe may leave them to the command line). GENERATED: the code of effect.c decides. */
#define KG_NEEDS_VALIDATION "data.val|task.name=" KG_TASKS_MADE
#define KG_NEEDS_GENERATED                                                               \
    "problems that no file replaces (data.train, rollout.data, data.val, sft.data)"      \
    ":data.train,rollout.data,data.val,sft.steps,sft.epochs,sft.data,sft.level"

/* Row i of all, the algorithm's (policy/algo.h) included; NULL past the end. */
const struct kg_opt_row *kg_recipe_row(size_t i);

/* Reads a recipe from a config over these rows; valid until the config changes. */
void kg_recipe_read(struct kg_recipe *r, const struct kg_config *config);
/* Whether the recipe has an SFT phase. */
bool kg_recipe_has_sft(const struct kg_recipe *r);

/* Makes a config over these rows from, in rising precedence: defaults, the preset and its
 * bases, the file, the assignments. An assignment preset=NAME means algo.preset=NAME.
 * path NULL: no file.
 * errors: those of kg_config_load_yaml and kg_config_override; an unknown preset */
kg_status kg_train_config(struct kg_config **config, const char *path,
                          char *const *assignments, size_t n,
                          struct kg_err *err) KG_MUST_CHECK;

/* kg_train_config for distillation: anchor.path must name a teacher, and the loss must
 * not have a policy term. Defaults are a distillation preset and one sample per prompt.
 * errors: those of kg_train_config; EINVAL */
kg_status kg_distill_config(struct kg_config **config, const char *path,
                            char *const *assignments, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;

/* ---- the algorithm of a run (algo.c) ---- */

/* Looks up the rows that the recipe names and checks them against what the run provides.
 * config: from which the recipe was read; names the source of refused values
 * vocab: the model's; a Top-k KL with k at or above it becomes the exact KL, which is
 * logged.
 * errors: those of kg_algo_set and kg_algo_check */
kg_status kg_algo_from_recipe(struct kg_algo *algo, const struct kg_recipe *r,
                              const struct kg_config *config, int64_t vocab,
                              struct kg_err *err) KG_MUST_CHECK;

/* Whether a key of a config (or an assignment to it) belongs to the algorithm rather than
 * to the run: algo, kl, anchor. */
bool kg_config_of_algorithm(const char *key);

/* Whether the updated policy may differ from the policy that sampled. */
bool kg_recipe_off_policy(const struct kg_recipe *r);

/* Appends a summary of the algorithm in one line. */
kg_status kg_recipe_algorithm(struct kg_str *out, const struct kg_recipe *r,
                              struct kg_err *err) KG_MUST_CHECK;

/* Whether the sampler of this run truncates the distribution. */
bool kg_recipe_truncates(const struct kg_recipe *r);
/* Whether the sampler records the kept sets, so that ratios are those of the renormalised
 * policies. A reproduction does not: the runs that it reproduces use ratios of the full
 * softmax. */
bool kg_recipe_records_kept(const struct kg_recipe *r);
/* Whether a micro-batch computes a shared prefix of its sequences only once.
 * train.router_aux prevents this: that loss covers every token of every sequence. */
bool kg_recipe_shares(const struct kg_recipe *r);

/* ---- keys that have an effect only under a condition (effect.c) ---- */

/* Refuses a key that has no effect in this config, unless its value is the default or the
 * preset's, or the command line disabled this key of the recipe file.
 * errors: EINVAL "KEY: has an effect only with ...; remove it (...), found ..." */
kg_status kg_effect_check(const struct kg_config *config,
                          struct kg_err *err) KG_MUST_CHECK;
/* kg_effect_check for SFT alone (`kedge sft`): refuses keys of RL updates on the command
 * line if the run cannot have RL updates, not even when resumed.
 * errors: EINVAL */
kg_status kg_effect_check_sft(const struct kg_config *config,
                              struct kg_err *err) KG_MUST_CHECK;

/* ---- episodes ---- */

/* The options of sections episode and search; env NULL without an environment.
 * errors: ENOTFOUND (the environment), EINVAL (search without a retriever or encoder; a
 * limit at or above episode.context) */
kg_status kg_episodes_from_recipe(struct kg_episode_opts *opts, const struct kg_recipe *r,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Most tokens that the model may write in a completion or in all turns of an episode. */
int64_t kg_recipe_answer_tokens(const struct kg_recipe *r);

#endif
