/* One training run, in the four parts that its functions distinguish.
 *
 * A run is a function of its inputs, including config and seed. Everything that changes
 * from step to step is its state; a checkpoint holds exactly the state, without values
 * that can be recomputed. Steps work in memory that is allocated once, and logs are never
 * read back.
 *
 * A function takes the parts that it needs, in the order below, const if it only reads
 * them. Only opening, closing, the loop and whole steps take the run.
 */
#ifndef KG_TRAIN_RUN_H
#define KG_TRAIN_RUN_H

#include "base/columns.h"
#include "base/file.h"
#include "base/status.h"
#include "data/options.h"
#include "eval/eval.h"
#include "model/optim.h"
#include "model/rows.h"
#include "policy/policy.h"
#include "ranks/ranks.h"
#include "report/metrics.h"
#include "report/tfevents.h"
#include "rollout/episode.h"
#include "rollout/rollout.h"
#include "task/prompts.h"
#include "train/open/epochs.h"
#include "train/open/init.h"
#include "train/open/sft_data.h"
#include "train/step/ahead.h"
#include "train/step/expert_load.h"
#include "train/step/lane_sum.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_CHECKPOINT_NAME = 32 };

struct kg_report_run; /* report/report.h */

struct kg_counters {
    int64_t sft_step;     /* SFT updates done */
    int64_t step;         /* RL steps done */
    int64_t prompts;      /* prompts taken from the endless sequence of epochs */
    int64_t optim_step;   /* updates of the current phase's optimizer */
    int64_t optim_before; /* updates in the moments taken from init.from; 0: none taken */
    int64_t anchor_updates;
    int64_t anchor_refreshed; /* updates caused by anchor.kappa */
    int64_t skipped;          /* steps skipped as non-finite, in the whole run */
    int64_t skipped_in_row;
    int64_t idle_updates;   /* updates skipped because there was no gradient */
    int64_t validated;      /* 1 + the last validated step; 0: none yet */
    double kl_beta;         /* KL coefficient of the next step; changed by kl.target */
    double anchor_kl;       /* moving average of the token KL, for anchor.kappa */
    uint64_t metrics_bytes; /* length of metrics.jsonl at this point */
};

/* The inputs of a run: recipe, data and settings. Set when it is opened; steps do not
 * change them. */
struct kg_run_inputs {
    const struct kg_config *config; /* borrowed; the values with their sources */
    struct kg_recipe recipe;        /* its parsed values */
    struct kg_init init;            /* parts that the run takes from another run */
    struct kg_lora *lora; /* trained adapters; rank 0: all weights are trained; owned */

    const struct kg_task_row *task;
    struct kg_task_opts task_opts; /* owns running and rewards; the log owns further */
    struct kg_chat_template *chat; /* template of data.chat_template, or NULL; owned */
    struct kg_prompt_opts prompt;  /* how prompts are made; borrows chat */
    struct kg_tokenizer *tok;
    struct kg_dataset train_data, val_data;
    struct kg_prompts train, val;
    struct kg_epochs_part
        parts[KG_EPOCHS_PARTS];     /* files of train; weight 0: unweighted */
    size_t n_parts;                 /* 0 if problems are generated */
    struct kg_sft_set sft, sft_val; /* sequences for SFT, and held-out ones */
    int64_t sft_steps; /* SFT updates: sft.steps, or the number that sft.epochs gives */
    struct kg_sft_set answers; /* of rollout.data; empty if completions are sampled */
    /* eval.reference, for validation's KL; NULL: none */
    struct kg_model *reference;

    struct kg_algo algo;
    struct kg_optim_opts rl_optim;       /* options of RL's optimizer */
    struct kg_episode_opts episode_opts; /* env NULL: single turns */
};

/* The state of a run: weights and progress. It is changed by updates of policy and
 * anchor, the sampler's refresh, a validation (which swaps weights with their average
 * meanwhile) and loading a checkpoint. */
struct kg_run_state {
    struct kg_model *model;
    struct kg_model *anchor;  /* NULL: none; saved only if it has master weights */
    struct kg_model *sampler; /* NULL: model itself samples */
    struct kg_slab *lagged;   /* (lag+1) masters of the last steps; NULL: no lag */
    int lag;
    /* completions begun for later steps (train/step/begun.h); empty: none */
    struct kg_str begun;
    struct kg_optim *optim; /* optimizer of the current phase */
    struct kg_counters count;
    /* newest checkpoint of this run, to avoid writing it again */
    char saved_name[KG_CHECKPOINT_NAME];
    /* only some updates of a step are done: the state belongs to no step */
    bool midway;
};

/* Working memory of steps, with its options. Checkpoints do not hold it: steps overwrite
 * it, and a resumed run samples the batches in `ahead` again, with the same bits. */
struct kg_run_work {
    /* rows for training, and for scoring with the model, the anchor, or a sampler of the
     * same dtype */
    struct kg_rows *rows;
    struct kg_rows_opts rows_opts; /* options of rows */
    /* rows for scoring with a sampler of another dtype; NULL: none */
    struct kg_rows *sampler_rows;
    struct kg_rows_opts sampler_opts;       /* max_tokens 0: none */
    struct kg_rollout *engine;              /* owned; NULL during validation */
    struct kg_rollout_opts engine_opts;     /* options of engine */
    struct kg_rollout_opts validation_opts; /* engine of validation; max_batch 0: none */
    /* bytes of device memory when the run was opened; 0: no device, or unknown */
    uint64_t device_total, device_free;
    uint64_t index_bytes;         /* the retriever's memory on the model's device */
    struct kg_episodes *episodes; /* NULL: single turns */
    struct kg_lane_sum lane_sum;  /* sums gradients of several lanes or ranks */
    /* experts: the load of all updates of a step, and that of the current update as a
     * whole, for its loss (train.router_aux) */
    struct kg_expert_load load, whole_load;
    /* the ranks that share this one's work: all, or its group (ahead.part); borrowed */
    struct kg_ranks *ranks;
    struct kg_ahead ahead; /* state of separate rollout ranks */
    /* blocks for arrays of a step and of an update, reused by the next */
    struct kg_block step_memory, update_memory;
};

/* The output of a run: its directory, and all files there except checkpoints. It never
 * affects results. */
struct kg_run_log {
    const char *dir;          /* from the recipe */
    bool elsewhere;           /* another rank writes it: nothing is written here */
    struct kg_file_lock lock; /* of the directory */
    struct kg_file_writer metrics;
    bool metrics_open;
    struct kg_tfevents events;       /* events of the last logged phase (log.h) */
    bool events_sft;                 /* that phase is SFT */
    bool events_off;                 /* not requested, or given up */
    struct kg_report_run *report;    /* data of report.html; NULL: none yet */
    struct kg_further_names further; /* names returned by graders so far */
    bool told_ungraded;              /* the warning about missing verdicts was logged */
    /* since training began or was resumed: number of samples to learn from, and of those
     * with a verdict */
    int64_t samples, judged;
    double compute_ceiling; /* FLOP/s of this machine, measured at start; 0 unknown */
};

struct kg_saving; /* train/keep/checkpoint.c */

struct kg_run {
    struct kg_run_inputs in;
    struct kg_run_state state;
    struct kg_run_work work;
    struct kg_run_log log;
    struct kg_saving *saving; /* a checkpoint being written; owned; NULL: none */
    bool stopped;             /* stopped by a signal, before the last step */
};

/* Loads and builds everything; writes nothing. */
kg_status kg_run_open(struct kg_run *run, const struct kg_config *config,
                      struct kg_err *err) KG_MUST_CHECK;
/* kg_run_open on one of several ranks. */
kg_status kg_run_open_on(struct kg_run *run, struct kg_ranks *ranks,
                         const struct kg_config *config,
                         struct kg_err *err) KG_MUST_CHECK;
/* kg_run_open, but a run with init.from opens the model of its own newest RL checkpoint
 * at or before `step`, else of init.from. Loads no training state: kg_checkpoint_read
 * does. */
kg_status kg_run_open_at(struct kg_run *run, const struct kg_config *config, int64_t step,
                         struct kg_err *err) KG_MUST_CHECK;
/* Opens a run without weights, data or device, for memory planning (kg_run_memory);
 * assumes prompts of max_prompt_tokens. Reads each model's config.json, and verifies
 * init.from's checkpoint. device_bytes: memory of the planned device; 0: the CPU */
kg_status kg_run_outline(struct kg_run *run, const struct kg_config *config,
                         uint64_t device_bytes, struct kg_err *err) KG_MUST_CHECK;
void kg_run_close(struct kg_run *run);
/* Checks that the recipe fits this many ranks: a lane per trainer, unless gradients are
 * sharded; on CPUs anchor.place=host only with ranks.shard=none, since such an anchor is
 * packed from whole master weights.   errors: EINVAL */
kg_status kg_run_check_ranks(const struct kg_recipe *r, int trainers, int ranks,
                             bool on_cpu, struct kg_err *err) KG_MUST_CHECK;

/* Replace the current optimizer by a new one for the phase. _rl also begins the anchor
 * and fills the lagged weights. */
kg_status kg_run_start_sft(const struct kg_run_inputs *in, struct kg_run_state *state,
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_run_start_rl(const struct kg_run_inputs *in, struct kg_run_state *state,
                          struct kg_err *err) KG_MUST_CHECK;

/* Whether trainers hold only their shards of the gradient. */
bool kg_run_divides_gradients(const struct kg_run_inputs *in);
/* The model that samples: state->sampler, or state->model if that is NULL. */
struct kg_model *kg_run_sampler(const struct kg_run_state *state);
/* Updates the weights that sample the next step, if they are not the model's own. */
kg_status kg_run_refresh_sampler(struct kg_run_state *state,
                                 struct kg_err *err) KG_MUST_CHECK;

/* With lag: sets the sampler's weights for `step`, from lagged weights already loaded. */
kg_status kg_run_load_sampler(struct kg_run_state *state, int64_t step,
                              struct kg_err *err) KG_MUST_CHECK;

/* Reopens or closes the rollout engine, which kg_run_open has opened.   errors: ENOMEM */
kg_status kg_run_engine_open(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
void kg_run_engine_close(struct kg_run *run);

/* The sampling settings of training rollouts. */
struct kg_sampling kg_run_sampling(const struct kg_run_inputs *in);
/* The options of a validation; the caller adds rows, episodes and ranks. */
struct kg_eval_opts kg_run_eval_opts(const struct kg_run_inputs *in);

/* Call if a value of this SFT or RL step was not finite; what: its name. Counts the step.
 * errors: ENONFINITE after train.max_skips in a row */
kg_status kg_run_skip(struct kg_run *run, const char *what,
                      struct kg_err *err) KG_MUST_CHECK;

/* ---- the phases: one update of SFT, one step of RL ---- */
kg_status kg_sft_step(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
/* The loss on a held-out set: mean negative log-likelihood of loss tokens. */
kg_status kg_sft_held_out(double *loss, const struct kg_sft_set *set,
                          struct kg_rows *rows, const struct kg_model *m,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_rl_step(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_run_validate(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* Runs everything: creates or resumes the run directory; SFT, RL, checkpoints,
 * validation. resume: continue from the newest checkpoint. Names in the config are
 * resolved (train/open/pin.h).
 * stop_on_signal: after opening, a stop signal (base/signal.h) is a stop request
 * errors: ECONFLICT (resume with another config or other files, listed; another process
 * is using the run directory); EINTERRUPTED (a stop request: the run saved its state) */
kg_status kg_train_run(struct kg_config *config, bool resume, bool stop_on_signal,
                       struct kg_err *err) KG_MUST_CHECK;
/* kg_train_run on each of several ranks; together they give the same run as one rank. The
 * first rank writes the run directory.   errors: those of any rank, on all */
kg_status kg_train_run_on(struct kg_ranks *ranks, struct kg_config *config, bool resume,
                          bool stop_on_signal, struct kg_err *err) KG_MUST_CHECK;

/* Describes a run in advance for the user: batch arithmetic, memory, disk. Starts no rank
 * and writes nothing. Names in the config are resolved. ranks: their number; memory is
 * per rank   errors: all that kg_train_run would raise before its first step */
kg_status kg_train_plan(struct kg_str *out, struct kg_config *config, bool resume,
                        int ranks, struct kg_err *err) KG_MUST_CHECK;
/* Describes the memory use on a device of device_bytes, or with 0 on this machine, by
 * kg_run_outline. The text is complete even if the run does not fit.   errors: ENOMEM,
 * and those of the recipe */
kg_status kg_train_plan_memory(struct kg_str *out, struct kg_config *config, bool resume,
                               int ranks, uint64_t device_bytes,
                               struct kg_err *err) KG_MUST_CHECK;

#endif
