/* What an RL step does with a prepared batch, for the step itself and for tests that
 * bring their own trajectories. */
#ifndef KG_TRAIN_RL_STEP_H
#define KG_TRAIN_RL_STEP_H

#include "train/rl_log.h"

/* Advantages of the answers that are learned from, on every one of their tokens; with
 * kl.in other than loss totals->kl_taken is set.   a: its statistics alone, out
 * errors: those of the policy */
kg_status kg_rl_advantages(struct kg_policy_advantage *a, struct kg_rl_totals *totals,
                           struct kg_rl_batch *b, const struct kg_algo *algo,
                           const struct kg_task_rewards *rewards,
                           struct kg_err *err) KG_MUST_CHECK;

/* Advantages, then every optimizer update of the step. Non-finite numbers leave out what
 * is left of it (totals->skipped), dump the trajectories and are counted.
 * a: statistics of the advantages, out.   errors: ENONFINITE after train.max_skips such
 * steps in a row, and those of the policy and the model */
kg_status kg_rl_train(struct kg_rl_totals *totals, struct kg_policy_advantage *a,
                      struct kg_rl_batch *b, struct kg_run *run,
                      struct kg_err *err) KG_MUST_CHECK;

/* The weights that sample the next step, where they are not the model's own. */
kg_status kg_rl_refresh_sampler(struct kg_run_state *state,
                                struct kg_err *err) KG_MUST_CHECK;

/* Those of one that has a lag, of a step; the lagged weights are there. */
kg_status kg_rl_load_sampler(struct kg_run_state *state, int64_t step,
                             struct kg_err *err) KG_MUST_CHECK;

/* The gradient of a prepared batch with advantages, as of one update at the present
 * weights under algo, one group of answers after the other; nothing is updated.
 * Where the recipe of the run has train.router_aux, that loss is one of them.
 * each: called with the part of a group; the sum of all is the gradient.   totals: loss,
 * its parts and metrics, out; kl_divisor in.   errors: those of the policy and of each */
typedef kg_status (*kg_rl_group_fn)(void *user, const struct kg_slab *grads,
                                    struct kg_err *err);
kg_status kg_rl_gradients(struct kg_rl_totals *totals, struct kg_rl_batch *b,
                          struct kg_run *run, const struct kg_algo *algo,
                          kg_rl_group_fn each, void *user,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
