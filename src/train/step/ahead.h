/* Rollout ranks and trainer ranks (ranks.rollout): the last ranks sample and grade, the
 * others do everything else.
 *
 * With rollout.lag L, a step learns from samples of the weights L steps earlier. So while
 * the trainers compute step t, the rollout ranks can sample the batch of step t + L with
 * the weights from before step t. After each step the trainers send weights and counters
 * to the rollout ranks and receive a batch. The lag is set by the config, not by timing,
 * so the batches equal those of a single process.
 */
#ifndef KG_TRAIN_AHEAD_H
#define KG_TRAIN_AHEAD_H

#include "base/str.h"
#include "model/slab_exchange.h"
#include "ranks/ranks.h"
#include "recipe/options.h"

enum { KG_MAX_LAG = 64 };

struct kg_rl_batch;
struct kg_run;
struct kg_run_inputs;

/* {0}: every rank does everything. */
struct kg_ahead {
    struct kg_ranks *all; /* borrowed */
    struct kg_ranks part; /* this rank's group: the trainers, or the rollout ranks */
    /* number of trainers, which are the first ranks; 0: every rank does everything */
    int trainers;
    bool samples;             /* this is a rollout rank */
    bool begun;               /* kg_ahead_begin has run */
    int64_t places;           /* on rollout ranks: prompts used by all batches so far */
    struct kg_slab_wire wire; /* sends the trainers' weights to the rollout ranks */
    /* owned: the batch of step s at index s mod (lag + 1); on rollout ranks only the last
     * one is set */
    struct kg_str batch[KG_MAX_LAG + 1];
};

/* errors: EINVAL (ranks.rollout leaves no trainers) */
kg_status kg_ahead_check(const struct kg_recipe *r, const struct kg_ranks *all,
                         struct kg_err *err) KG_MUST_CHECK;

/* ---- collective, with rollout ranks ---- */

/* kg_ranks_agree within each group, then among all ranks: a failure inside a step is
 * agreed on in the group first. Without rollout ranks, just kg_ranks_agree. */
kg_status kg_ahead_agree(struct kg_ahead *a, kg_status status, const char *what,
                         struct kg_err *err) KG_MUST_CHECK;
/* Before the first step of this process: sends weights and begun completions to the
 * rollout ranks, and the batches of the next L steps to the trainers. Later calls do
 * nothing.   errors: those of sampling and of the ranks, on all ranks */
kg_status kg_ahead_begin(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
/* After a step of all ranks (kg_rl_step, kg_ahead_sample): sends weights and counters to
 * the rollout ranks, and the sampled batch to the trainers.
 * errors: ENOMEM, those of the ranks */
kg_status kg_ahead_pass(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
/* Copies the first rank's counters to the rollout ranks. */
kg_status kg_ahead_count(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* ---- by a single rank ---- */

/* On a rollout rank, instead of a step: samples the batch of L steps later; nothing if
 * the run ends before that. Non-finite values are reported through the batch.
 * errors: those of sampling and grading */
kg_status kg_ahead_sample(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
/* On a trainer: takes the batch of a step. b: {0} except for its block
 * errors: those of sampling it (ENONFINITE: with a partial batch), ENOMEM */
kg_status kg_ahead_take(struct kg_rl_batch *b, struct kg_ahead *a, int64_t step,
                        const struct kg_run_inputs *in, struct kg_err *err) KG_MUST_CHECK;

#endif
