/* Starting a run from where another one ended: a stage that follows a stage.
 *
 * init.from names a run, of which the newest checkpoint is taken, or a checkpoint.
 * init.parts says what of its state the new run begins with, each bit for bit as it was
 * trained (fp32, whatever checkpoint.dtype was):
 *   model      the policy's weights; config and tokenizer are those beside them
 *   anchor     the anchor's; without it the anchor begins as the policy
 *   optimizer  Adam's moments and the number of updates in them; the schedule of the
 *              learning rate begins anew, unless with
 *   steps      where it stood, as a resumed run goes on: steps done, place in the row of
 *              prompts, the schedule, what kl.target and anchor.kappa have come to. The
 *              stage ends at step train.steps of all; needs optimizer
 * Without steps all of that begins as in any run.
 * The other run is needed at the start alone: as soon as this one has a checkpoint, that
 * holds its state and the model's small files, and is what it is opened from.
 * Schedule-free runs are refused: what they learn is not what they train, and their
 * average has no second beginning.
 */
#ifndef KG_TRAIN_INIT_H
#define KG_TRAIN_INIT_H

#include "base/status.h"
#include "base/str.h"
#include "recipe/options.h"
#include "report/path.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_init {
    struct kg_path dir; /* the checkpoint; "" without init.from */
    bool model, anchor, optimizer, steps;
    int64_t step; /* with steps, before this run has any of its own: those done there */
    bool own;     /* dir is of this run: its state is loaded as that of any other */
};
struct kg_run_inputs;
struct kg_run_state;

/* step of kg_init_find: whatever the run's newest checkpoint is, of its warm start too */
#define KG_INIT_NEWEST INT64_MAX

/* As init.from, init.parts, model.path and what they exclude say, and run.dir has: in the
 * place of init.from comes the run's own newest checkpoint of RL at or before the step,
 * if it has one; none is before step 0.
 * errors: EINVAL, NOTFOUND (no checkpoint there) */
kg_status kg_init_find(struct kg_init *init, const struct kg_recipe *r, int64_t step,
                       struct kg_err *err) KG_MUST_CHECK;
/* Make init.from the checkpoint that it stands for: the newest of the run it names; on
 * resume the one that config.yaml in run.dir has, whatever came after it.
 * errors: as above */
kg_status kg_init_pin(struct kg_config *config, bool resume,
                      struct kg_err *err) KG_MUST_CHECK;
/* Is another run's checkpoint what was saved? Its own is checked where it is loaded.
 * errors: as kg_manifest_check */
kg_status kg_init_verify(const struct kg_init *init, struct kg_err *err) KG_MUST_CHECK;
/* The model folder that a run of this recipe opens. */
struct kg_path kg_init_model_dir(const struct kg_init *init, const struct kg_recipe *r);

/* The policy's weights, after its folder was opened. */
kg_status kg_init_model(const struct kg_run_inputs *in, struct kg_run_state *state,
                        struct kg_err *err) KG_MUST_CHECK;
/* Whether the rest is there for this run's anchor and optimizer.
 * errors: EINVAL, EFORMAT */
kg_status kg_init_check(const struct kg_run_inputs *in, const struct kg_run_state *state,
                        struct kg_err *err) KG_MUST_CHECK;
/* Anchor and optimizer, where RL begins. */
kg_status kg_init_rl(const struct kg_run_inputs *in, struct kg_run_state *state,
                     struct kg_err *err) KG_MUST_CHECK;
/* "DIR: model, anchor" */
kg_status kg_init_say(struct kg_str *out, const struct kg_init *init,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
