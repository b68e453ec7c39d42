/* Offline distillation: completions are read from a file instead of sampled.
 *
 * A step uses the next rollout.prompts lines of the file's epochs. This run's policy did
 * not sample them, so the loss must not depend on the sampled tokens; the recorded
 * log-prob of a token is that of the current policy, and the ratio is 1.
 */
#ifndef KG_TRAIN_ANSWERS_H
#define KG_TRAIN_ANSWERS_H

#include "train/step/rl_batch.h"

/* Reads rollout.data into in->answers; does nothing if the key is empty.
 * errors: those of kg_sft_from_jsonl; EINVAL (a key that needs samples) */
kg_status kg_run_answers_open(struct kg_run_inputs *in, const struct kg_run_state *state,
                              struct kg_err *err) KG_MUST_CHECK;

/* Replaces kg_rl_sample. */
kg_status kg_rl_read_answers(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                             const struct kg_run_state *state, struct kg_run_work *work,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
