/* What a run reads besides its model: problems to train and to validate on, out of one
 * file, several or a generator, and the sequences of the warm start.
 *
 * Several files are one set of problems: those of the first, then those of the second,
 * and so on. Without data.weights all are shuffled together; with it each file has its
 * share of every step's prompts (kg_epochs_mix).
 */
#ifndef KG_TRAIN_RUN_DATA_H
#define KG_TRAIN_RUN_DATA_H

#include "train/run.h"

/* How prompts are made, and the chat template that makes them, checked.   *t: owned by
 * the caller, may be NULL
 * errors: those of kg_prompt_choose and kg_prompt_check */
kg_status kg_run_choose_prompt(struct kg_chat_template **t, struct kg_prompt_opts *how,
                               const struct kg_recipe *r, const char *model_dir,
                               struct kg_err *err) KG_MUST_CHECK;

/* task, task_opts, chat, train and val of run->in; prompts left out are counted in the
 * log, file by file.   errors: EINVAL (lists that do not fit), those of the files */
kg_status kg_run_data_open(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
/* sft, sft_val and sft_steps of in.
 * errors: EINVAL (sft.steps and sft.epochs; nothing to learn from), those of the files */
kg_status kg_run_sft_open(struct kg_run_inputs *in, const struct kg_run_state *state,
                          struct kg_err *err) KG_MUST_CHECK;

/* The longest sequence of sft and sft_val. */
size_t kg_run_sft_longest(const struct kg_run_inputs *in);

/* The first prompt of training and of validation, as the model reads them, in the log. */
kg_status kg_run_data_log(const struct kg_run_inputs *in,
                          struct kg_err *err) KG_MUST_CHECK;

/* The prompts at places first .. first+n-1 of the run's endless row: indices into
 * in->train.   errors: ENOMEM */
kg_status kg_run_prompts_at(uint32_t *index, size_t n, uint64_t first,
                            const struct kg_run_inputs *in,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
