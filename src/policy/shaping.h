/* What stands around the loss: reward shaping, the KL in the reward, its controller, the
 * anchor's recursion, a critic's loss. Pure functions in double precision. */
#ifndef KG_POLICY_SHAPING_H
#define KG_POLICY_SHAPING_H

#include "base/status.h"
#include "policy/algo.h"

#include <stdbool.h>
#include <stdint.h>

/* Overlong shaping: min(-(length - (max_length - buffer)) / buffer factor, 0), added to
 * the reward. buffer > 0.   source: Yu et al. 2025, arXiv 2503.14476 */
double kg_policy_overlong(int64_t length, int64_t max_length, int64_t buffer,
                          double factor);

/* coef (1 + clip(kl / target - 1, +-0.2) n / horizon): the next KL coefficient after n
 * samples. target and horizon > 0.   source: Ziegler et al. 2019, arXiv 1909.08593 */
double kg_policy_adaptive_kl(double coef, double kl, double target, double horizon,
                             int64_t n);

/* token_reward[n] -= beta kl[n], the KL of algo's estimator from old_logp and anchor_logp
 * (no importance weight: the sample is the old policy's). mean_kl out: mean over
 * sequences of the mean over tokens, which the controller takes.
 * errors: EINVAL (an estimator that needs more than the sampled token), ENONFINITE */
kg_status kg_policy_kl_reward(double *token_reward, double *mean_kl,
                              const struct kg_algo *algo, int64_t n_seqs,
                              const int64_t *seq_begin, const double *old_logp,
                              const double *anchor_logp,
                              struct kg_err *err) KG_MUST_CHECK;

/* What was taken off advantages. */
struct kg_policy_taken {
    double mean_kl; /* mean over sequences of the mean over tokens, for the controller */
    double most;    /* the largest amount, of a token; at least 0 */
};
/* advantage[n] -= beta kl[n], the same KL, and with algo->kl_in->later -= beta times the
 * sum of kl[u] over the sequence's tokens u >= n. Only loss tokens stand in the arrays:
 * an observation has no KL, and passes on what follows it.
 * errors: as kg_policy_kl_reward.   source: LunjunZhang/ema-pg, search/verl/trainer/ppo/
 * ray_trainer.py, apply_kl_to_advantages */
kg_status kg_policy_kl_advantage(double *advantage, struct kg_policy_taken *taken,
                                 const struct kg_algo *algo, int64_t n_seqs,
                                 const int64_t *seq_begin, const double *old_logp,
                                 const double *anchor_logp,
                                 struct kg_err *err) KG_MUST_CHECK;

/* Does the anchor move after this step, or update where anchor.unit says so (counted from
 * 1)?  fixed, none, iterative, and ema with eta 1: never. anchor.kappa is not in it. */
bool kg_policy_anchor_due(const struct kg_algo *algo, int64_t step);
/* The recursion itself: anchor <- eta anchor + (1 - eta) theta. The weights' own
 * update is an operation of tensor/ in fp32; this is its definition.
 * source: arXiv 2602.04417 */
void kg_policy_ema(double *anchor, const double *theta, int64_t n, double eta);

/* Clipped loss of a critic: 1/2 max((v - G)^2, (clip(v, v_old +- range) - G)^2), and its
 * derivative. kedge trains no critic; for users of the library.
 * clipped out: second branch larger.   returns the loss */
double kg_policy_value_loss(double *dvalue, bool *clipped, double value, double old_value,
                            double returns, double range);

#endif
