/* The parts of opening a run (run.c): the model and its sampler, a second checkpoint, the
 * data, checks, sizes.
 *
 * Several files of data form one set of problems, in file order. Without data.weights all
 * problems are shuffled together; with weights each file gets its share of every step's
 * prompts (kg_epochs_mix).
 */
#ifndef KG_TRAIN_OPEN_H
#define KG_TRAIN_OPEN_H

#include "train/run.h"

/* ---- model.c ---- */

/* The folder of the model, its shape, and how it is opened. */
struct kg_run_found {
    struct kg_path dir;
    struct kg_model_config config;
    struct kg_model_opts opts; /* without backend */
};
/* Finds the model, and sets the parts of `in` that need only its shape: init, lora, algo,
 * rl_optim. ranks: those that share the model, one shard each; NULL: not sharded. step:
 * as for kg_init_find
 * errors: those of the recipe's keys and of the folder */
kg_status kg_run_model_find(struct kg_run_found *found, struct kg_run_inputs *in,
                            struct kg_ranks *ranks, int64_t step,
                            struct kg_err *err) KG_MUST_CHECK;
/* Opens this rank's device, then finds the model for it.
 * errors: EDEVICE, those of kg_run_model_find */
kg_status kg_run_device_open(struct kg_run_found *found, struct kg_run_inputs *in,
                             const struct kg_run_work *work, int64_t step,
                             struct kg_err *err) KG_MUST_CHECK;
/* Sets state->model and in->tok.   errors: ENONFINITE (weights), those of the files */
kg_status kg_run_model_open(struct kg_run_inputs *in, struct kg_run_state *state,
                            const struct kg_run_found *found,
                            struct kg_err *err) KG_MUST_CHECK;
/* Sets state->lag, and opts for a separate sampler. *wanted: whether the run has one */
kg_status kg_run_sampler_describe(bool *wanted, struct kg_model_opts *opts,
                                  const struct kg_run_inputs *in,
                                  struct kg_run_state *state,
                                  struct kg_err *err) KG_MUST_CHECK;
/* Sets state->sampler and state->lagged; both stay NULL if the model itself samples. */
kg_status kg_run_sampler_open(const struct kg_run_inputs *in, struct kg_run_state *state,
                              struct kg_err *err) KG_MUST_CHECK;

/* ---- reference.c: an anchor, a teacher, or the reference of validation's KL ----
 *
 * Log-probs of both models are compared id by id, so ids must have the same meaning:
 * equal vocab_size in config.json, and tokenizers that give every id the same bytes.
 * Shapes may differ. */

/* Opens the checkpoint at dir, named by option `key`, with m's vocabulary and compute
 * type, on its backend. opts: its other settings
 * errors: those of opening; ECONFLICT with the key and the difference */
kg_status kg_reference_open(struct kg_model **out, const char *dir, const char *key,
                            const struct kg_model *m, const struct kg_tokenizer *tok,
                            const struct kg_model_opts *opts,
                            struct kg_err *err) KG_MUST_CHECK;
/* Sets in->reference, or an outline of it, if eval.reference names a model. */
kg_status kg_run_reference_open(struct kg_run_inputs *in,
                                const struct kg_run_state *state,
                                struct kg_err *err) KG_MUST_CHECK;
kg_status kg_run_reference_outline(struct kg_run_inputs *in, const struct kg_model *m,
                                   struct kg_err *err) KG_MUST_CHECK;

/* ---- run_data.c ---- */

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

/* step/episodes.c: opens work->episodes if the config has an environment.
 * be: the model's backend */
kg_status kg_run_episodes_open(struct kg_run_inputs *in, struct kg_run_work *work,
                               const struct kg_backend *be,
                               struct kg_err *err) KG_MUST_CHECK;

/* ---- check.c: errors EINVAL, with the key ---- */

kg_status kg_run_check_sampling(const struct kg_run_inputs *in,
                                struct kg_err *err) KG_MUST_CHECK;
kg_status kg_run_check_router(const struct kg_run_inputs *in, const struct kg_model *m,
                              struct kg_err *err) KG_MUST_CHECK;
/* All checks of keys about models and data, including kg_run_check_router. */
kg_status kg_run_check(const struct kg_run_inputs *in, const struct kg_run_state *state,
                       struct kg_err *err) KG_MUST_CHECK;
/* Sets the options of rows and engines, for the lengths of the data. */
void kg_run_size(struct kg_run_work *work, const struct kg_run_inputs *in,
                 const struct kg_run_state *state);

/* work.c: allocates the memory that steps reuse, at these sizes, if it fits. */
kg_status kg_run_work_open(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

#endif
