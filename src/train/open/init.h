/* Starts a run (a stage) from another run (the stage before).
 *
 * init.from names a run, whose newest checkpoint is used, or a checkpoint. init.parts
 * lists the parts of its state that the new run starts with, each bit for bit (fp32, for
 * any checkpoint.dtype):
 *   model      the policy's weights, with config and tokenizer
 *   anchor     the anchor's weights; without it the anchor starts as the policy
 *   optimizer  Adam's moments and their number of updates
 *   steps      steps done, position in the prompts, the learning-rate schedule, the state
 *              of kl.target and anchor.kappa, as in a resumed run; needs optimizer. The
 *              stage ends at step train.steps, which includes the other run's steps
 * Without `steps`, these values start as in any run: the schedule restarts.
 *
 * The other run is needed only at the start: the first checkpoint of this run holds its
 * full state and the model's small files, and is used from then on.
 *
 * Schedule-free runs are refused: their learned weights are an average of the trained
 * weights, and a new run cannot continue that average.
 */
#ifndef KG_TRAIN_INIT_H
#define KG_TRAIN_INIT_H

#include "base/status.h"
#include "base/str.h"
#include "recipe/options.h"
#include "report/history.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_init {
    struct kg_path dir; /* the checkpoint; "" without init.from */
    bool model, anchor, optimizer, steps;
    /* with `steps`, before this run's first step: steps done by the other run */
    int64_t step;
    bool own; /* dir belongs to this run: its state is loaded as on any resume */
};
struct kg_run_inputs;
struct kg_run_state;

/* step of kg_init_find: the run's newest checkpoint, including SFT */
#define KG_INIT_NEWEST INT64_MAX

/* Resolves init.from, init.parts and model.path. If run.dir already holds an RL
 * checkpoint at or before `step` (KG_INIT_NEWEST: any checkpoint), the newest such one is
 * used instead of init.from.   errors: EINVAL, ENOTFOUND (no checkpoint there) */
kg_status kg_init_find(struct kg_init *init, const struct kg_recipe *r, int64_t step,
                       struct kg_err *err) KG_MUST_CHECK;
/* Replaces init.from by a checkpoint: the newest of the run that it names; on resume, the
 * checkpoint in run.dir's config.yaml, even if newer ones exist.
 * errors: those of kg_init_find */
kg_status kg_init_pin(struct kg_config *config, bool resume,
                      struct kg_err *err) KG_MUST_CHECK;
/* Verifies another run's checkpoint; this run's own are verified when loaded.
 * errors: as kg_manifest_check */
kg_status kg_init_verify(const struct kg_init *init, struct kg_err *err) KG_MUST_CHECK;
/* The model folder to open for a recipe. */
struct kg_path kg_init_model_dir(const struct kg_init *init, const struct kg_recipe *r);

/* Loads the policy's weights after its folder was opened. */
kg_status kg_init_model(const struct kg_run_inputs *in, struct kg_run_state *state,
                        struct kg_err *err) KG_MUST_CHECK;
/* Checks that the other parts fit this run's anchor and optimizer.
 * errors: EINVAL, EFORMAT, ESHAPE, EUNSUPPORTED (schedule-free) */
kg_status kg_init_check(const struct kg_run_inputs *in, const struct kg_run_state *state,
                        struct kg_err *err) KG_MUST_CHECK;
/* Loads anchor and optimizer when RL begins. */
kg_status kg_init_rl(const struct kg_run_inputs *in, struct kg_run_state *state,
                     struct kg_err *err) KG_MUST_CHECK;
/* Appends "DIR: model anchor". */
kg_status kg_init_say(struct kg_str *out, const struct kg_init *init,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
