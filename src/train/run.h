/* One training run, in the four parts that its functions tell apart.
 *
 * A run is a function of its inputs, config and seed among them. All that changes from
 * step to step is its state; a checkpoint holds exactly that, but for what can be made of
 * it again. Steps work in memory that is taken once, and what is logged never comes back.
 * A function takes the parts that it needs, in this order, const where it only reads:
 * opening and closing, the loop and whole steps alone take the run.
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
#include "train/ahead.h"
#include "train/epochs.h"
#include "train/expert_load.h"
#include "train/init.h"
#include "train/lane_sum.h"
#include "train/sft_data.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_CHECKPOINT_NAME = 32 };

struct kg_report_run; /* report/report.h */

struct kg_counters {
    int64_t sft_step;     /* supervised updates done */
    int64_t step;         /* RL steps done */
    int64_t prompts;      /* taken from the endless row of epochs */
    int64_t optim_step;   /* updates of the optimizer of the present phase */
    int64_t optim_before; /* of earlier stages, in RL's moments: init.parts */
    int64_t anchor_updates;
    int64_t anchor_refreshed; /* of these: by anchor.kappa */
    int64_t skipped;          /* steps skipped as non-finite, in the whole run */
    int64_t skipped_in_row;
    int64_t idle_updates;   /* updates not made because nothing carried a gradient */
    int64_t validated;      /* 1 + the step that was validated last; 0: none yet */
    double kl_beta;         /* KL coefficient of the next step; moved by kl.target */
    double anchor_kl;       /* moving average of the token KL, for anchor.kappa */
    uint64_t metrics_bytes; /* length of metrics.jsonl at this point */
};

/* What a run is a function of: its recipe, what it reads, and how it learns. Opening
 * fills it; no step changes it. */
struct kg_run_inputs {
    const struct kg_config *config; /* borrowed; what it was said in, and where */
    struct kg_recipe recipe;        /* the same as values */
    struct kg_init init;            /* what it takes from another run */
    struct kg_lora *lora; /* adapters that are trained; rank 0: all weights; owned */

    const struct kg_task_row *task;
    struct kg_task_opts task_opts; /* running, rewards owned; further: the log's */
    struct kg_chat_template *chat; /* of data.chat_template, or NULL; owned */
    struct kg_prompt_opts prompt;  /* how prompts are made; borrows chat */
    struct kg_tokenizer *tok;
    struct kg_dataset train_data, val_data;
    struct kg_prompts train, val;
    struct kg_epochs_part
        parts[KG_EPOCHS_PARTS];     /* files of train; weight 0: unweighed */
    size_t n_parts;                 /* 0 where problems are generated */
    struct kg_sft_set sft, sft_val; /* of the warm start, and held out */
    int64_t sft_steps;              /* its updates: sft.steps, or those of sft.epochs */
    struct kg_sft_set answers;      /* of rollout.data; empty where answers are sampled */
    /* eval.reference: what validation measures the KL to; NULL without */
    struct kg_model *reference;

    struct kg_algo algo;
    struct kg_optim_opts rl_optim;       /* that RL will make its optimizer with */
    struct kg_episode_opts episode_opts; /* env NULL: answers are one turn */
};

/* What steps change: the weights, and how far the run has come. Updates, moves of the
 * anchor, the sampler's refresh, a validation (it exchanges weights with their average
 * for a while) and a checkpoint that is read change it. */
struct kg_run_state {
    struct kg_model *model;
    struct kg_model *anchor;  /* NULL without; one that stands still is no state */
    struct kg_model *sampler; /* NULL: model itself (promise 4) */
    struct kg_slab *lagged;   /* (lag+1) masters of the last steps; NULL without lag */
    int lag;
    struct kg_optim *optim; /* of the present phase */
    struct kg_counters count;
    /* newest checkpoint of this run: what is there already is not written again */
    char saved_name[KG_CHECKPOINT_NAME];
    /* in a step whose updates have begun: the state is that of no step */
    bool midway;
};

/* What steps work with. Nothing in it outlives a step but memory that the next one uses
 * again: no result depends on what a step left here. */
struct kg_run_work {
    /* training, and scoring by the model, the anchor and a sampler of its dtype */
    struct kg_rows *rows;
    struct kg_rows_opts rows_opts; /* that it was made with */
    /* for scoring by a sampler of another dtype; NULL without */
    struct kg_rows *sampler_rows;
    struct kg_rows_opts sampler_opts;       /* max_tokens 0 without */
    struct kg_rollout *engine;              /* owned; NULL in a validation */
    struct kg_rollout_opts engine_opts;     /* that it was made with */
    struct kg_rollout_opts validation_opts; /* of its engine; max_batch 0 without */
    /* bytes of the device when the run was opened; 0: there is none, or not known */
    uint64_t device_total, device_free;
    struct kg_episodes *episodes; /* NULL: answers are one turn */
    struct kg_lane_sum lane_sum;  /* of gradients, where lanes or ranks share them */
    /* of experts: of the updates of a step, and of the present update as a whole, which
     * its loss is of (train.router_aux) */
    struct kg_expert_load load, whole_load;
    struct kg_ranks *ranks; /* with whom this one shares its work: all that make the run,
                             * or its part of them (ahead.part); borrowed */
    struct kg_ahead ahead;  /* rollout ranks beside trainer ranks */
    /* arrays of a step and of an update, between steps: the next ones stand in them */
    struct kg_block step_memory, update_memory;
};

/* What a run says of itself: its directory and what is written there beside checkpoints.
 * Nothing in it comes back into a result. */
struct kg_run_log {
    const char *dir;          /* of the recipe */
    bool elsewhere;           /* another rank keeps it: nothing is written here */
    struct kg_file_lock lock; /* of the directory */
    struct kg_file_writer metrics;
    bool metrics_open;
    struct kg_tfevents events;    /* of the phase that was logged last (run_events.h) */
    bool events_sft;              /* which that is */
    bool events_off;              /* not asked for, or given up */
    struct kg_report_run *report; /* what report.html shows; NULL: nothing yet */
    struct kg_further_names further; /* said by graders so far */
    bool told_ungraded;              /* that many answers have no verdict */
    double compute_ceiling; /* FLOP/s of this machine, measured at start; 0 unknown */
};

struct kg_saving; /* train/checkpoint.c */

struct kg_run {
    struct kg_run_inputs in;
    struct kg_run_state state;
    struct kg_run_work work;
    struct kg_run_log log;
    struct kg_saving *saving; /* a checkpoint on its way; owned; NULL: none */
    bool stopped;             /* by a signal, before its last step */
};

/* Load and build all of it; nothing is written. */
kg_status kg_run_open(struct kg_run *run, const struct kg_config *config,
                      struct kg_err *err) KG_MUST_CHECK;
/* As one of several ranks. */
kg_status kg_run_open_on(struct kg_run *run, struct kg_ranks *ranks,
                         const struct kg_config *config,
                         struct kg_err *err) KG_MUST_CHECK;
/* As it stood when the step was done: for a stage that has no checkpoint at or before
 * that, as it began. */
kg_status kg_run_open_at(struct kg_run *run, const struct kg_config *config, int64_t step,
                         struct kg_err *err) KG_MUST_CHECK;
/* Of outlines of its models, with no data, at prompts of max_prompt_tokens: what
 * kg_run_memory reads. config.json of the model is enough, and no device is asked.
 * device_bytes: that it has; 0: it is the CPU that computes */
kg_status kg_run_outline(struct kg_run *run, const struct kg_config *config,
                         uint64_t device_bytes, struct kg_err *err) KG_MUST_CHECK;
void kg_run_close(struct kg_run *run);
/* What a run of so many ranks must have, planned or begun: a lane for each of those that
 * train, unless they divide gradients; and on CPUs no anchor that is made of master
 * weights as it comes, of which they have cuts.   errors: EINVAL */
kg_status kg_run_check_ranks(const struct kg_recipe *r, int trainers, int ranks,
                             bool on_cpu, struct kg_err *err) KG_MUST_CHECK;

/* The optimizer of a phase: supervised or RL. Replaces the present one. */
kg_status kg_run_start_sft(const struct kg_run_inputs *in, struct kg_run_state *state,
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_run_start_rl(const struct kg_run_inputs *in, struct kg_run_state *state,
                          struct kg_err *err) KG_MUST_CHECK;

/* Whether ranks that train have of the gradient their cuts alone. */
bool kg_run_divides_gradients(const struct kg_run_inputs *in);
/* The model that samples: its own where there is one. */
struct kg_model *kg_run_sampler(const struct kg_run_state *state);

/* The engine of rollouts, which kg_run_open has opened: given back, and taken again as it
 * was.   errors: ENOMEM */
kg_status kg_run_engine_open(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
void kg_run_engine_close(struct kg_run *run);

/* The settings of a rollout of this run, and of a validation; rows and episodes are the
 * caller's. */
struct kg_sampling kg_run_sampling(const struct kg_run_inputs *in);
struct kg_eval_opts kg_run_eval_opts(const struct kg_run_inputs *in);

/* Append a line to metrics.jsonl and an event to the TensorBoard events. */
kg_status kg_run_log_put(struct kg_run_log *log, const struct kg_metrics *m,
                         const char *phase, int64_t step,
                         struct kg_err *err) KG_MUST_CHECK;

/* Something was not finite in this step of SFT or RL; what says what it was. Counts it.
 * errors: ENONFINITE when train.max_skips came in a row */
kg_status kg_run_skip(struct kg_run *run, const char *what,
                      struct kg_err *err) KG_MUST_CHECK;

/* ---- the phases: one update of SFT, one step of RL ---- */
kg_status kg_sft_step(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
/* The loss of a set that is held out: mean negative log-likelihood of learned tokens. */
kg_status kg_sft_held_out(double *loss, const struct kg_sft_set *set,
                          struct kg_rows *rows, const struct kg_model *m,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_rl_step(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_run_validate(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* The whole of it: create or resume the run directory, warm start, RL, checkpoints,
 * validation. resume: continue from the newest checkpoint. init.from of the config
 * becomes the checkpoint that it stands for.
 * errors: ECONFLICT (resume with another config or other files, listed; another process
 * at work in the run directory). A stop request is none: it saves and returns OK.
 * stop_on_signal: from when all is open a stop signal (base/signal.h) is one */
kg_status kg_train_run(struct kg_config *config, bool resume, bool stop_on_signal,
                       struct kg_err *err) KG_MUST_CHECK;
/* The same as one of several ranks, each of which calls it alike: together they make the
 * run that one would make. The first of them keeps the folder.
 * errors: those of any rank, on all */
kg_status kg_train_run_on(struct kg_ranks *ranks, struct kg_config *config, bool resume,
                          bool stop_on_signal, struct kg_err *err) KG_MUST_CHECK;

/* What a run would do: batch arithmetic, memory, disk. Text for the user; starts
 * nothing, and leaves nothing. init.from becomes what it stands for. ranks: memory is
 * that of each of so many, none of which is begun
 * errors: whatever kg_train_run would refuse before its first step */
kg_status kg_train_plan(struct kg_str *out, struct kg_config *config, bool resume,
                        int ranks, struct kg_err *err) KG_MUST_CHECK;
/* What of the memory of such a device, or with 0 of this machine, it would take, by
 * kg_run_outline. Text as above; is
 * complete where it does not fit, too.   errors: ENOMEM, and those of the recipe */
kg_status kg_train_plan_memory(struct kg_str *out, struct kg_config *config, bool resume,
                               int ranks, uint64_t device_bytes,
                               struct kg_err *err) KG_MUST_CHECK;

#endif
