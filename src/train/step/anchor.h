/* The anchor of a run: the source of its weights, and when they change.
 *
 * An anchor with master weights is part of the run's state and of its checkpoints. A
 * fixed anchor from anchor.path is not saved: it never changes and may have another
 * shape. `--resume` reads it from anchor.path again.
 *
 * With anchor.unit steps, the anchor moves after the last update of a step; with updates,
 * between updates, and the rest of the step uses the new anchor. anchor.kappa copies the
 * policy to the anchor if a moving average of the updates' token KL exceeds it:
 *   m <- smoothing m + (1 - smoothing) KL,   m = 0 when the anchor becomes the policy
 */
#ifndef KG_TRAIN_ANCHOR_H
#define KG_TRAIN_ANCHOR_H

#include "train/run.h"

/* Opens the anchor of anchor.kind and anchor.path; state->anchor stays NULL if there is
 * none.
 * errors: those of kg_reference_open; EINVAL, ESHAPE */
kg_status kg_run_anchor_open(const struct kg_run_inputs *in, struct kg_run_state *state,
                             struct kg_err *err) KG_MUST_CHECK;
/* kg_run_anchor_open as an outline, from the model's config.json only. */
kg_status kg_run_anchor_outline(const struct kg_run_inputs *in,
                                struct kg_run_state *state,
                                struct kg_err *err) KG_MUST_CHECK;
/* Sets opts for an outline that shares m's frozen weights, if it has any. */
void kg_run_adapted(struct kg_model_opts *opts, const struct kg_model *m);
/* Whether the anchor has master weights. */
bool kg_run_anchor_moves(const struct kg_run_inputs *in);
/* Call when RL begins: without anchor.path the anchor takes the policy's weights. */
kg_status kg_run_anchor_begin(const struct kg_run_inputs *in, struct kg_run_state *state,
                              struct kg_err *err) KG_MUST_CHECK;
/* Whether checkpoints contain the anchor. */
bool kg_run_anchor_saved(const struct kg_run_state *state);
/* Call after an update; kl: its mean token KL. *moved: the anchor changed, so its
 * log-probs are stale */
kg_status kg_run_anchor_after_update(bool *moved, const struct kg_algo *a,
                                     struct kg_run_state *state, double kl,
                                     struct kg_err *err) KG_MUST_CHECK;
/* Call after the last update of a step that was not skipped. */
kg_status kg_run_anchor_after_step(const struct kg_algo *a, struct kg_run_state *state,
                                   struct kg_err *err) KG_MUST_CHECK;

/* The struct kg_rows that kg_score needs for m, a model of the run. */
struct kg_rows *kg_run_rows(const struct kg_run_state *state,
                            const struct kg_run_work *work, const struct kg_model *m);

#endif
