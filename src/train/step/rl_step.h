/* The part of an RL step after its batch is prepared, for the step and for tests with
 * their own trajectories. */
#ifndef KG_TRAIN_RL_STEP_H
#define KG_TRAIN_RL_STEP_H

#include "train/step/rl_log.h"

/* Computes the advantages of samples to learn from, for all their tokens; with kl.in
 * other than loss also sets totals->kl_taken. a out: only the statistics
 * errors: those of the policy */
kg_status kg_rl_advantages(struct kg_policy_advantage *a, struct kg_rl_totals *totals,
                           struct kg_rl_batch *b, const struct kg_algo *algo,
                           const struct kg_task_rewards *rewards,
                           struct kg_err *err) KG_MUST_CHECK;

/* Computes advantages, then does every optimizer update of the step. Non-finite numbers
 * skip the rest of the step (totals->skipped), dump the trajectories and are counted.
 * a: statistics of the advantages, out.   errors: ENONFINITE after train.max_skips such
 * steps in a row, and those of the policy and the model */
kg_status kg_rl_train(struct kg_rl_totals *totals, struct kg_policy_advantage *a,
                      struct kg_rl_batch *b, struct kg_run *run,
                      struct kg_err *err) KG_MUST_CHECK;

/* Computes the gradient of a prepared batch with advantages, as one update at the current
 * weights under algo, group by group; updates nothing. If the run's recipe has
 * train.router_aux, that loss counts as one more group.
 * each: called with the gradient of each group; the sum over groups is the whole
 * gradient. totals: loss, its parts and metrics, out; kl_divisor in.   errors: those of
 * the policy and of each */
typedef kg_status (*kg_rl_group_fn)(void *user, const struct kg_slab *grads,
                                    struct kg_err *err);
kg_status kg_rl_gradients(struct kg_rl_totals *totals, struct kg_rl_batch *b,
                          struct kg_run *run, const struct kg_algo *algo,
                          kg_rl_group_fn each, void *user,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
