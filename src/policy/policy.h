/* Policy mathematics: from rows of log-probs to loss, sparse gradients and metrics.
 *
 * Pure functions on host arrays, in double precision. They need no model, device or full
 * vocabulary: every loss depends on a position's logits z only through the sampled
 * token's log-prob, the log-probs at K given ids, the entropy and an exact KL. The result
 * is the derivative with respect to each of these. The backward of the vocabulary head
 * turns them into logit gradients (a_v: derivative for id v; J: the set of these ids):
 *
 *   dloss/dz_v = 1[v in J] a_v - p_v sum_J a  + (dense forms of entropy and exact KL)
 *
 * A step calls kg_policy_advantages once for its trajectories. Each of its updates calls:
 *
 *   kg_policy_weights     once for the tokens of the whole batch, before it is split
 *   kg_policy_loss        per micro-batch of whole sequences; parts and metrics add up
 */
#ifndef KG_POLICY_POLICY_H
#define KG_POLICY_POLICY_H

#include "base/status.h"
#include "policy/algo.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- advantages ---- */

/* S trajectories in G groups of the same prompt, N loss tokens. */
struct kg_policy_scores {
    int64_t n_seqs;       /* S */
    int64_t n_groups;     /* G */
    const double *reward; /* (S) or NULL: 0 */
    /* (G+1) trajectories group_begin[g] .. group_begin[g+1]-1 */
    const int64_t *group_begin;
    const int64_t *seq_begin; /* (S+1) tokens; seq_begin[0] = 0 */
    /* (N) or NULL: added to reward, which counts at the last token */
    const double *token_reward;
    /* (S) or NULL: 1 if a trajectory has no verdict or is filtered. It is left out of all
     * means, deviations and counts, regardless of reward; its advantage is 0. Rows with a
     * group baseline also drop the only kept trajectory of a larger group */
    const uint8_t *drop;
    /* number of separate rewards, for advantages with KG_NEED_PARTS; `reward` is then
     * used for counts and metrics only */
    int n_parts;
    /* (S,n_parts) NaN: no verdict; it adds 0 and that reward's mean and deviation omit
     * it */
    const double *part;
    const double *part_weight; /* (n_parts) */
    /* (N) or NULL for all: tokens that count */
    const uint8_t *mask;
    const double *greedy;    /* (S) reward of the greedy completion; KG_NEED_GREEDY */
    const double *value;     /* (N) critic; KG_NEED_VALUES */
    const double *old_logp;  /* (N) KG_NEED_SUM_SQ */
    const double *sum_sq;    /* (N) sum_v p_v^2 of the old policy; KG_NEED_SUM_SQ */
    const double *is_weight; /* (N) or NULL: importance weights; KG_NEED_SUM_SQ */
};

struct kg_policy_advantage {
    /* (S) out; NULL is allowed. Token-level rows: the mean over the tokens */
    double *seq;
    double *token;         /* (N) out; NULL is allowed for trajectory-level rows */
    double *returns;       /* (N) out or NULL; token-level rows only */
    double batch_std;      /* out: the divisor of batch-std; 0 if nothing was divided */
    double mean, min, max; /* out: over trajectories that are not dropped */
    /* out: groups that are dropped or whose rewards are all equal, so they give no
     * signal */
    int64_t groups_equal;
};

/* Computes advantages by the algorithm's row: one per trajectory, broadcast to its
 * tokens, or one per token.
 * errors: EINVAL (an input that the row needs is missing), ENONFINITE (a reward, with its
 * index), ENOMEM */
kg_status kg_policy_advantages(struct kg_policy_advantage *out,
                               const struct kg_algo *algo,
                               const struct kg_policy_scores *scores,
                               struct kg_err *err) KG_MUST_CHECK;

/* ---- weights ---- */

/* Divisors of the aggregation, summed over all ranks. */
struct kg_policy_totals {
    double tokens; /* kept tokens */
    double seqs;   /* kept sequences that have tokens */
    /* algo.count_eps: added to sequence lengths that are divisors; normally 0 */
    double length_eps;
    double length_norm; /* algo.length_norm: a constant length as divisor */
};

/* The loss tokens of the whole optimizer batch. */
struct kg_policy_shape {
    int64_t n_seqs;           /* S */
    const int64_t *seq_begin; /* (S+1) */
    /* (S) or NULL: sequences without policy and entropy loss (truncated under
     * algo.mask_truncated, or filtered) */
    const uint8_t *drop;
};

struct kg_policy_weights {
    double *pg; /* (N) out */
    double *kl; /* (N) out: dropped sequences count too, unless algo.kl_after_filter */
    double *entropy; /* (N) out: as pg */
};

/* Weight of every token's term, so that loss = sum_n weight[n] term[n].
 * errors: EINVAL (algo.length_norm is 0, but the row divides by it) */
kg_status kg_policy_weights(const struct kg_policy_weights *w, const struct kg_algo *algo,
                            const struct kg_policy_shape *shape,
                            struct kg_err *err) KG_MUST_CHECK;

/* kg_policy_weights in two parts, for several ranks: the totals of a shape (drop NULL: of
 * all sequences), and the weights for given totals. */
void kg_policy_totals(struct kg_policy_totals *totals, const struct kg_algo *algo,
                      int64_t n_seqs, const int64_t *seq_begin, const uint8_t *drop);
kg_status kg_policy_weights_of(double *weight, const struct kg_algo *algo,
                               const struct kg_policy_totals *totals, int64_t n_seqs,
                               const int64_t *seq_begin, const uint8_t *drop,
                               struct kg_err *err) KG_MUST_CHECK;

/* ---- loss ---- */

/* A micro-batch: the N loss tokens (sampled by the model) of S whole sequences. Log-probs
 * are of the softmax at the sampling temperature. */
struct kg_policy_batch {
    int64_t n_seqs;           /* S */
    int64_t n_tokens;         /* N */
    const int64_t *seq_begin; /* (S+1), seq_begin[0] = 0, seq_begin[S] = N */
    const int32_t *tokens;    /* (N) sampled ids; may be NULL if K is 0 */
    const double *logp;       /* (N) current policy */
    /* (N) denominators of the ratios: recorded by the sampler, or recomputed */
    const double *old_logp;
    /* (N) log-probs of the sampler; NULL: equal to old_logp */
    const double *mu_logp;
    /* (N) KG_NEED_ANCHOR; NULL is allowed with an iterative anchor: mu_logp is used */
    const double *anchor_logp;
    const double *advantage; /* (N) */
    const double *entropy;   /* (N) or NULL; needed when algo.entropy_coef > 0 */
    const double *kl_exact; /* (N) KG_NEED_EXACT_*: the exact KL of the row's direction */

    /* The ids of a token: columns 0 .. k_sampler-1 are the sampler's most likely ids,
     * most likely first; then the anchor's k_anchor most likely ids. -1 marks an unused
     * slot. An id may be in both parts. */
    int k_sampler, k_anchor; /* K = k_sampler + k_anchor */
    const int32_t *ids;      /* (N,K) */
    const double *logp_at;   /* (N,K) current policy at ids */
    const double *anchor_at; /* (N,K) anchor at ids, if the KL reads them */
    const double *mu_at;     /* (N,K) sampler at ids; NULL unless KG_NEED_MU_AT */

    /* Truncated sampling: log of the mass that each policy gives to the recorded kept
     * set; ratios then use the policies renormalised on it. Both NULL: the full softmax
     * was sampled. */
    const double *log_kept;     /* (N) current policy */
    const double *old_log_kept; /* (N) old policy */

    const double *pg_weight;      /* (N) from kg_policy_weights */
    const double *kl_weight;      /* (N) from kg_policy_weights; may be NULL without KL */
    const double *entropy_weight; /* (N) may be NULL if algo.entropy_coef is 0 */
    /* (N) or NULL: detached factor of each policy term (replaces algo.tis) */
    const double *is_weight;
    const uint8_t *selected; /* (N) rows of batch scope: output of kg_policy_select */
    double kl_divisor;       /* divisor of every KL term (batch_std + 1e-6); 0: none */
    /* kg_policy_select draws by these two numbers, in rows that draw; select_draw is the
     * index of the optimizer batch in its run, below 2^56 */
    uint64_t select_seed, select_draw;
};

/* Differences between the current policy p and the sampler mu at the sampled tokens: sums
 * and maxima, in nats (log-probs, KL) or of probabilities. */
struct kg_policy_gap {
    double logp_sum; /* log-probs of the current policy, for its perplexity */
    double mu_sum;   /* of the sampler */
    double k3_sum;   /* KL(mu||p) by its low-variance form */
    double abs_sum;  /* |p - mu| */
    double abs_sum_sq;
    double abs_max;
    double weight_sum; /* p / mu */
    double weight_sum_sq;
    double weight_max;
};

/* Sums over the tokens that a trust region drops. */
struct kg_policy_dropped {
    double p_sum, mu_sum, ratio_sum, entropy_sum;
};

/* Sums and counts over loss tokens, added up over micro-batches. Start with {0};
 * kg_policy_metrics_list turns them into named metrics. */
struct kg_policy_metrics {
    int64_t tokens;
    int64_t seqs;
    int64_t ratios;   /* tokens with a policy term; the following fields count these */
    int64_t positive; /* by sign of the advantage */
    int64_t negative;
    int64_t clip_low; /* tokens limited by the lower, upper and dual bound */
    int64_t clip_high;
    int64_t clip_dual;
    int64_t outside_low; /* ratio below 1 - clip_low, for either sign of the advantage */
    int64_t outside_high;
    struct kg_policy_gap gap;
    struct kg_policy_dropped dropped[2]; /* A < 0, A > 0 */
    int64_t clips;           /* tokens that the published clip fraction counts */
    int64_t clips_lower;     /* the same for the published fraction of A < 0 */
    int64_t tis_outside;     /* weight old/sampler beyond a bound of algo.tis */
    int64_t masked_positive; /* dropped by a trust region */
    int64_t masked_negative;
    double ratio_sum; /* sum of the row's raw ratio */
    double ratio_sum_sq;
    double ratio_min;
    double ratio_max;
    double k1_sum;  /* KL(old||p) by old - logp */
    double k3_sum;  /* KL(old||p) by its low-variance form */
    double gap_sum; /* |logp - old_logp| */
    double gap_max;
    double mismatch_sum; /* |old_logp - mu_logp|: expected to be 0 */
    double mismatch_max;
    double prob_gap_min; /* exp(logp) - exp(mu_logp), signed */
    double prob_gap_max;
    double divergence_sum; /* divergences of a trust region */
    double divergence_max;
    int64_t divergence_below_01; /* tokens with a divergence below 0.01, below 0.05 */
    int64_t divergence_below_05;
    int64_t mask_seqs;    /* sequences with a policy term that algo.mask checked */
    int64_t mask_dropped; /* of these, sequences in which a token lost its term */
    double mask_sum;      /* sum of the divergences of mask_seqs */
    double mask_max;
    int64_t entropy_tokens;
    double entropy_sum;
    int64_t kl_tokens; /* tokens with a KL term; the following fields count these */
    double kl_sum;     /* values before weight, beta and divisor */
    double kl_max;
    double kl_head_sum;   /* topk: L1, the head's part */
    double kl_tail_sum;   /* topk: s L2, the sampled tail's part */
    double head_mass_sum; /* topk: mass of the current policy on the head */
    int64_t tail_tokens;  /* topk: sampled token outside the head */
    double iw_sum;        /* importance weight s */
    double iw_sum_sq;
    double iw_max;
};

struct kg_policy_metric {
    const char *name; /* "policy/ratio_max", ...; static */
    double value;
};
enum { KG_POLICY_METRICS_MAX = 64 };

void kg_policy_metrics_merge(struct kg_policy_metrics *into,
                             const struct kg_policy_metrics *from);
/* kg_policy_metrics_list gives means, fractions and effective sample sizes;
 * kg_policy_mismatch_list compares the policy with the sampler, mainly for the first
 * update.   returns the number of entries of out */
size_t kg_policy_mismatch_list(struct kg_policy_metric out[KG_POLICY_METRICS_MAX],
                               const struct kg_policy_metrics *m);
size_t kg_policy_metrics_list(struct kg_policy_metric out[KG_POLICY_METRICS_MAX],
                              const struct kg_algo *algo,
                              const struct kg_policy_metrics *m);

struct kg_policy_grad {
    /* the caller's arrays; kg_policy_loss overwrites them */
    double *a_logp; /* (N) dloss/dlogp of the sampled token */
    /* (N,K) dloss/dlogp_at; NULL if K is 0. If the sampled token is among ids, the
     * vocabulary head adds its entry to a_logp */
    double *a_at;
    /* (N) dloss/dH = -c_H weight; NULL if entropy is not in the loss */
    double *a_entropy;
    double *a_kl_exact; /* (N) dloss/d(exact KL); NULL without exact KL */
    /* (N) dloss/dlog_kept; needed with log_kept. The vocabulary head adds a p_j/P_kept
     * to dloss/dlogp of each kept id j */
    double *a_log_kept;
    /* (N) or NULL: each token's policy term, with is_weight, without pg_weight */
    double *pg_term;
    /* (N) or NULL: value of each token's KL term, after importance weight and divisor */
    double *kl_term;
    /* results */
    double pg, kl,
        entropy; /* weighted sums; loss = pg + kl_beta kl - entropy_coef entropy */
    double loss;
    bool any; /* some derivative is not 0: the loss has a gradient */
    struct kg_policy_metrics metrics;
};

/* Computes the loss of one micro-batch, its gradient with respect to every log-prob, and
 * metrics.
 * errors: EINVAL (names the missing input), ENONFINITE (first bad token and value),
 * ENOMEM */
kg_status kg_policy_loss(struct kg_policy_grad *grad, const struct kg_algo *algo,
                         const struct kg_policy_batch *batch,
                         struct kg_err *err) KG_MUST_CHECK;

/* For rows of batch scope: selects tokens of the whole optimizer batch, one byte per
 * token. Reads the batch's logp, old_logp, kept masses, advantage and pg_weight (0: not
 * in the loss). Rows that draw use select_seed and select_draw.
 * errors: EINVAL, ENONFINITE (first bad token), ENOMEM */
kg_status kg_policy_select(uint8_t *selected, const struct kg_algo *algo,
                           const struct kg_policy_batch *whole,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
