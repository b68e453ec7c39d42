/* Rollout ranks beside trainer ranks (ranks.rollout): the last of the ranks sample and
 * grade, the others do all else.
 *
 * With rollout.lag L a step learns from answers of the weights that stood L steps before
 * it, whoever samples them. So while the trainers make step t, the batch of step t + L
 * can be made of the weights that stand before t. Behind each step weights and counters
 * go to the rollout ranks and a batch comes back. The lag is the config's, not the
 * clock's: the batches are those of one process.
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
    struct kg_ranks part; /* this rank's: the trainers, or those that sample */
    int trainers;         /* they are the first of all; 0: every rank does everything */
    bool samples;         /* this rank is not one of them */
    bool begun;           /* the batches of the next steps are there */
    int64_t places;       /* of one that samples: prompts taken by all batches so far */
    struct kg_slab_wire wire; /* of weights to ranks that sample, from the first on */
    /* owned: the batch of step s at s mod (lag + 1); of one that samples those are
     * empty but for the last */
    struct kg_str batch[KG_MAX_LAG + 1];
};

/* errors: EINVAL (ranks.rollout leaves nobody to train) */
kg_status kg_ahead_check(const struct kg_recipe *r, const struct kg_ranks *all,
                         struct kg_err *err) KG_MUST_CHECK;
/* rollout: ranks of all that sample; 0: none does it alone */
void kg_ahead_open(struct kg_ahead *a, struct kg_ranks *all, int rollout);
void kg_ahead_close(struct kg_ahead *a); /* {0} is allowed */

/* ---- by all ranks, with rollout ranks ---- */

/* kg_ranks_agree of all, by their parts first: what fails in a step is heard where the
 * step agrees, in the part. Without rollout ranks the same as that. */
kg_status kg_ahead_agree(struct kg_ahead *a, kg_status status, const char *what,
                         struct kg_err *err) KG_MUST_CHECK;
/* Before the first step of this process: the rollout ranks get weights and counters, and
 * the trainers the batches of the next L steps. Nothing where that was done.
 * errors: of sampling, on all; of the ranks */
kg_status kg_ahead_begin(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
/* Behind a step that all made (kg_rl_step, kg_ahead_sample): weights and counters there,
 * the batch that was sampled here.   errors: ENOMEM, of the ranks */
kg_status kg_ahead_pass(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
/* The counters of the trainers, on all. */
kg_status kg_ahead_count(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* ---- by one of them ---- */

/* By a rollout rank, in the place of a step: the batch of L steps later; nothing where
 * the run ends before that. Numbers that are not finite are the batch's to say.
 * errors: of sampling and grading */
kg_status kg_ahead_sample(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
/* By a trainer: the batch of a step.   b: {0} but for its block
 * errors: what sampling it said (ENONFINITE: as far as it came it is there), ENOMEM */
kg_status kg_ahead_take(struct kg_rl_batch *b, struct kg_ahead *a, int64_t step,
                        const struct kg_run_inputs *in, struct kg_err *err) KG_MUST_CHECK;

#endif
