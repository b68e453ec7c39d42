/* Functions around the loss: reward shaping, the KL in the reward, its controller, the
 * anchor's recursion, and a critic's loss. Pure, in double precision. */
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

/* token_reward[n] -= kl_beta kl[n], by algo's KL estimator on old_logp and anchor_logp
 * (no importance weight: the old policy drew the samples). mean_kl out, for the
 * controller: mean over sequences of the mean over tokens.
 * errors: EINVAL (an estimator that needs more than these log-probs), ENONFINITE */
kg_status kg_policy_kl_reward(double *token_reward, double *mean_kl,
                              const struct kg_algo *algo, int64_t n_seqs,
                              const int64_t *seq_begin, const double *old_logp,
                              const double *anchor_logp,
                              struct kg_err *err) KG_MUST_CHECK;

/* Amounts subtracted from advantages. */
struct kg_policy_taken {
    double mean_kl; /* mean over sequences of the mean over tokens, for the controller */
    double most;    /* the largest amount for a token; at least 0 */
};
/* advantage[n] -= kl_beta kl[n], with the KL of kg_policy_kl_reward; with
 * algo->kl_in->later: kl_beta times the sum of kl[u] over the sequence's tokens u >= n.
 * The arrays hold loss tokens only: observations have no KL and do not interrupt the sum.
 * errors: as kg_policy_kl_reward.   source: LunjunZhang/ema-pg,
 * search/verl/trainer/ppo/ray_trainer.py, apply_kl_to_advantages */
kg_status kg_policy_kl_advantage(double *advantage, struct kg_policy_taken *taken,
                                 const struct kg_algo *algo, int64_t n_seqs,
                                 const int64_t *seq_begin, const double *old_logp,
                                 const double *anchor_logp,
                                 struct kg_err *err) KG_MUST_CHECK;

/* Whether the anchor is updated after this step (counted from 1), or after this optimizer
 * update if anchor.unit is updates. Never for fixed, none, iterative, and ema with eta 1.
 * Ignores anchor.kappa. */
bool kg_policy_anchor_due(const struct kg_algo *algo, int64_t step);
/* Defines the recursion: anchor <- eta anchor + (1 - eta) theta. The weights themselves
 * are updated by an operation of tensor/ in fp32.
 * source: arXiv 2602.04417 */
void kg_policy_ema(double *anchor, const double *theta, int64_t n, double eta);

/* Clipped critic loss: 1/2 max((v - G)^2, (clip(v, v_old +- range) - G)^2), and its
 * derivative. kedge trains no critic; this is for users of the library.
 * clipped out: the second branch is larger.   returns the loss */
double kg_policy_value_loss(double *dvalue, bool *clipped, double value, double old_value,
                            double returns, double range);

#endif
