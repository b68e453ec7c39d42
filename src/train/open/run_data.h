/* The data of a run: problems for training and validation, from files or a generator, and
 * the sequences of SFT.
 *
 * Several files form one set of problems, in file order. Without data.weights all are
 * shuffled together; with it each file gets its share of every step's prompts
 * (kg_epochs_mix).
 */
#ifndef KG_TRAIN_RUN_DATA_H
#define KG_TRAIN_RUN_DATA_H

#include "train/run.h"

/* Chooses and checks how prompts are made, with the chat template. *t: owned by the
 * caller, may be NULL
 * errors: those of kg_prompt_choose and kg_prompt_check */
kg_status kg_run_choose_prompt(struct kg_chat_template **t, struct kg_prompt_opts *how,
                               const struct kg_recipe *r, const char *model_dir,
                               struct kg_err *err) KG_MUST_CHECK;

/* Sets task, task_opts, chat, train and val of run->in; logs the number of excluded
 * prompts per file.   errors: EINVAL (lists of different lengths), those of the files */
kg_status kg_run_data_open(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
/* Sets sft, sft_val and sft_steps of in.
 * errors: EINVAL (both sft.steps and sft.epochs; no loss tokens), those of the files */
kg_status kg_run_sft_open(struct kg_run_inputs *in, const struct kg_run_state *state,
                          struct kg_err *err) KG_MUST_CHECK;

/* The longest sequence of sft and sft_val. */
size_t kg_run_sft_longest(const struct kg_run_inputs *in);

/* Logs the first prompt of training and of validation, as the model reads it. */
kg_status kg_run_data_log(const struct kg_run_inputs *in,
                          struct kg_err *err) KG_MUST_CHECK;

/* The prompts at positions first .. first+n-1 of the run's endless sequence: indices into
 * in->train.   errors: ENOMEM */
kg_status kg_run_prompts_at(uint32_t *index, size_t n, uint64_t first,
                            const struct kg_run_inputs *in,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
