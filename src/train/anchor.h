/* The anchor of a run: where its weights come from, and when they move.
 *
 * An anchor with master weights belongs to the run's state and is in its checkpoints. A
 * fixed one from anchor.path is neither: it never changes, may have another shape, and is
 * read from there again.
 *
 * anchor.unit steps: it moves after the last update of a step. updates: it moves between
 * updates, and what is left of the step sees the new one. anchor.kappa replaces a copy
 * when a moving average of the token KL of updates passes it:
 *     m <- smoothing m + (1 - smoothing) KL,   m = 0 when the anchor becomes the policy
 */
#ifndef KG_TRAIN_ANCHOR_H
#define KG_TRAIN_ANCHOR_H

#include "train/run.h"

/* As anchor.kind and anchor.path say; state->anchor stays NULL where there is none.
 * errors: those of kg_reference_open; EINVAL, SHAPE */
kg_status kg_run_anchor_open(const struct kg_run_inputs *in, struct kg_run_state *state,
                             struct kg_err *err) KG_MUST_CHECK;
/* The same as an outline, of its config.json alone. */
kg_status kg_run_anchor_outline(const struct kg_run_inputs *in,
                                struct kg_run_state *state,
                                struct kg_err *err) KG_MUST_CHECK;
/* opts <- those of an outline that shares m's frozen weights, where it has such. */
void kg_run_adapted(struct kg_model_opts *opts, const struct kg_model *m);
/* Whether it has master weights. */
bool kg_run_anchor_moves(const struct kg_run_inputs *in);
/* RL begins: without anchor.path the anchor becomes the policy. */
kg_status kg_run_anchor_begin(const struct kg_run_inputs *in, struct kg_run_state *state,
                              struct kg_err *err) KG_MUST_CHECK;
/* Whether checkpoints hold it. */
bool kg_run_anchor_saved(const struct kg_run_state *state);
/* After an update whose mean token KL was kl.   *moved out: its log-probs are stale */
kg_status kg_run_anchor_after_update(bool *moved, const struct kg_algo *a,
                                     struct kg_run_state *state, double kl,
                                     struct kg_err *err) KG_MUST_CHECK;
/* After the last update of a step that was not skipped. */
kg_status kg_run_anchor_after_step(const struct kg_algo *a, struct kg_run_state *state,
                                   struct kg_err *err) KG_MUST_CHECK;

/* Rows that fit m, which is one of the run's models: for kg_score. */
struct kg_rows *kg_run_rows(const struct kg_run_state *state,
                            const struct kg_run_work *work, const struct kg_model *m);

#endif
