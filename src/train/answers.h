/* Answers that are read instead of sampled: offline distillation.
 *
 * A step then takes the next rollout.prompts lines of the file's epochs. No policy of
 * this run drew them, so only a loss that reads no sampled token may learn from them; the
 * log-prob recorded with a token is the present policy's own, and the ratio is 1.
 */
#ifndef KG_TRAIN_ANSWERS_H
#define KG_TRAIN_ANSWERS_H

#include "train/rl_batch.h"

/* Read rollout.data into in->answers; nothing where the key is empty.
 * errors: those of kg_sft_from_jsonl; EINVAL (a key that wants samples) */
kg_status kg_run_answers_open(struct kg_run_inputs *in, const struct kg_run_state *state,
                              struct kg_err *err) KG_MUST_CHECK;

/* In the place of kg_rl_sample. */
kg_status kg_rl_read_answers(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                             const struct kg_run_state *state, struct kg_run_work *work,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
