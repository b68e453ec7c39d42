/* Internal to policy/: inputs and outputs of the rows' functions.
 *
 * A surrogate gets one sequence: an array of per-token inputs, whose log-probs are all
 * renormalised to the kept set if sampling was truncated. A KL estimator gets one token.
 * Both return the value of a term and its derivative with respect to log-probs, without
 * weights; loss.c multiplies by weights, coefficients and importance factors.
 */
#ifndef KG_POLICY_POLICY_INTERNAL_H
#define KG_POLICY_POLICY_INTERNAL_H

#include "policy/policy.h"
#include "policy/unbiased.h"

#define KG_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- advantages ---- */
struct kg_advantage_job {
    const struct kg_algo *algo;
    const struct kg_policy_scores *in;
    const double *score; /* (S) reward plus token rewards */
    double *seq;         /* (S) output of trajectory rows */
    double *token;       /* (N) output of token rows */
    double *returns;     /* (N) scratch and output of token rows */
    double batch_std;    /* out */
};

#define KG_STD_EPS 1e-6 /* the default of algo.std_eps */

struct kg_advantage_row {
    struct kg_policy_about about;
    void (*trajectory)(struct kg_advantage_job *job); /* exactly one of the two is set */
    void (*token)(struct kg_advantage_job *job);
};

/* Whether some trajectory is dropped; see kg_policy_scores.drop. */
bool kg_advantage_drops(const struct kg_policy_scores *scores);
/* kg_policy_advantages for scores with dropped trajectories. */
kg_status kg_advantage_of_kept(struct kg_policy_advantage *out,
                               const struct kg_algo *algo,
                               const struct kg_policy_scores *in,
                               struct kg_err *err) KG_MUST_CHECK;

/* Whether n numbers are all equal; then their mean is exact. */
bool kg_advantage_equal(const double *x, int64_t n);

/* sum_k w_k (r_k - mean_k) / (std_k + eps) of each completion. Each reward is normalised
 * within its group, over the completions that have it. out (S) */
void kg_advantage_sum_parts(double *out, const struct kg_advantage_job *job);
void kg_advantage_gdpo_token(struct kg_advantage_job *job);

void kg_advantage_reinforce_pp(struct kg_advantage_job *job);
void kg_advantage_reinforce_pp_baseline(struct kg_advantage_job *job);
void kg_advantage_remax(struct kg_advantage_job *job);
void kg_advantage_gae(struct kg_advantage_job *job);
void kg_advantage_token_baseline(struct kg_advantage_job *job);
void kg_advantage_token_baseline_tail(struct kg_advantage_job *job);

/* ---- surrogates ---- */
enum kg_clip { KG_CLIP_NONE, KG_CLIP_LOW, KG_CLIP_HIGH, KG_CLIP_DUAL };

struct kg_pg_in {
    double logp, old, mu; /* log-probs of the sampled token, renormalised to one set */
    double advantage;
    double is_weight;
    bool outside;        /* is_weight passed a bound of algo.tis */
    const int32_t *ids;  /* (K) the sampler's top ids for this token */
    const double *at;    /* (K) current policy */
    const double *mu_at; /* (K) sampler */
    int k;
    int32_t token;
    bool selected;  /* batch scope */
    double entropy; /* entropy, for the metrics; 0 if unknown */
};

struct kg_pg_out {
    double value, coef; /* coef: d(sum of the sequence's terms)/dlogp of this token */
    double ratio;       /* the row's own ratio, unclipped, for the metrics */
    double divergence;  /* of trust-region rows */
    enum kg_clip clip;  /* the bound that limits the token */
    int clips;          /* 1 if the published clip fraction counts this token */
    int clips_lower;    /* the same for the published fraction of A < 0 */
    bool masked;        /* removed by a trust region */
};

struct kg_pg_call {
    const struct kg_algo *algo;
    const struct kg_surrogate_row *row;
};

struct kg_surrogate_row {
    struct kg_policy_about about;
    struct kg_policy_claims claims;
    /* Exactly one is set. A sequence function may put the derivative of all terms of the
     * sequence into a token's coefficient, because weights are constant within a
     * sequence. */
    void (*token)(struct kg_pg_out *out, const struct kg_pg_in *in,
                  struct kg_pg_call call);
    void (*sequence)(struct kg_pg_out *out, const struct kg_pg_in *in, int64_t n,
                     struct kg_pg_call call);
    int kind, style; /* data of the row for functions that serve several rows */
    bool own_is;     /* applies is_weight itself */
    bool to_mu;      /* the row's ratio is against the sampler, not the old policy */
    bool divergence; /* sets divergence */
    /* contains kl.beta times a KL to the old policy (ipo: a squared log-ratio to the
     * sampler); kl.estimator must be none */
    bool own_kl;
};

double kg_pg_log_ratio(double log_ratio, const struct kg_algo *algo, bool *inside);
void kg_pg_dual_clip(struct kg_pg_out *out, double ratio, bool inside, double advantage,
                     const struct kg_algo *algo);
void kg_pg_none(struct kg_pg_out *out, const struct kg_pg_in *in, struct kg_pg_call call);
void kg_pg_kl_cov(struct kg_pg_out *out, const struct kg_pg_in *in,
                  struct kg_pg_call call);
void kg_pg_clip_cov(struct kg_pg_out *out, const struct kg_pg_in *in,
                    struct kg_pg_call call);
/* row->kind of kg_pg_m2po, for the selection */
enum kg_m2_kind { KG_M2_PAPER, KG_M2_RELEASED };
void kg_pg_m2po(struct kg_pg_out *out, const struct kg_pg_in *in, struct kg_pg_call call);
void kg_pg_gspo(struct kg_pg_out *out, const struct kg_pg_in *in, int64_t n,
                struct kg_pg_call call);
void kg_pg_gmpo(struct kg_pg_out *out, const struct kg_pg_in *in, int64_t n,
                struct kg_pg_call call);

void kg_pg_vespo(struct kg_pg_out *out, const struct kg_pg_in *in, int64_t n,
                 struct kg_pg_call call);

/* row->kind of kg_pg_mask; row->style is unused */
enum kg_mask_kind {
    KG_MASK_NEVER,
    KG_MASK_BINARY_TV,
    KG_MASK_BINARY_KL,
    KG_MASK_BINARY_TV_OLD,
    KG_MASK_BINARY_KL_OLD,
    KG_MASK_TOPK_TV,
    KG_MASK_TOPK_KL,
    KG_MASK_RATIO_MU,
    KG_MASK_RATIO_OLD,
    KG_MASK_RELAX_POSITIVE,
    KG_MASK_RELAX_NEGATIVE,
    KG_MASK_RELAX_BOTH,
};
void kg_pg_mask(struct kg_pg_out *out, const struct kg_pg_in *in, struct kg_pg_call call);
void kg_pg_ipo(struct kg_pg_out *out, const struct kg_pg_in *in, struct kg_pg_call call);
/* row->kind of kg_pg_cppo */
enum kg_cppo_kind { KG_CPPO_FIXED, KG_CPPO_CALIBRATED };
void kg_pg_cppo(struct kg_pg_out *out, const struct kg_pg_in *in, int64_t n,
                struct kg_pg_call call);
void kg_pg_drpo(struct kg_pg_out *out, const struct kg_pg_in *in, struct kg_pg_call call);
void kg_pg_topk_divergence(double *tv, double *kl, const struct kg_pg_in *in, int k);

/* row->kind of the rpg functions, and row->style of kg_pg_rpg_reinforce */
enum kg_rpg_kind { KG_RPG_FKL, KG_RPG_RKL, KG_RPG_UFKL, KG_RPG_URKL };
enum kg_rpg_style { KG_RPG_PAPER, KG_RPG_HARD, KG_RPG_CLIP, KG_RPG_CLIP_V3 };
void kg_pg_rpg(struct kg_pg_out *out, const struct kg_pg_in *in, struct kg_pg_call call);
void kg_pg_rpg_reinforce(struct kg_pg_out *out, const struct kg_pg_in *in,
                         struct kg_pg_call call);

/* ---- masks ---- */
struct kg_mask_row {
    struct kg_policy_about about;
    /* divergence of a sequence of n >= 1 tokens; NULL: nothing is masked */
    double (*divergence)(const struct kg_pg_in *in, int64_t n);
    bool (*takes)(const struct kg_pg_in *in); /* tokens that lose their term; NULL: all */
    bool single;    /* may mask some tokens of a sequence that has one advantage */
    bool of_weight; /* reads the weight old/sampler, 1 unless old is recomputed */
    bool pops;      /* a weight old/sampler outside its bounds becomes 0, not a bound */
};
/* Removes terms of a sequence whose divergence exceeds algo.mask_delta.
 * returns the divergence; *masked: whether a token lost its term */
double kg_policy_mask(struct kg_pg_out *out, bool *masked, const struct kg_pg_in *in,
                      int64_t n, const struct kg_algo *algo);

/* ---- KL ---- */
struct kg_kl_in {
    double d; /* logp - anchor_logp of the sampled token */
    double s; /* importance weight of the sample; 1 if off */
    double exact;
    const int32_t *ids;      /* (k) the head: top ids of this token */
    const double *at;        /* (k) current policy */
    const double *anchor_at; /* (k) anchor */
    int k;
    int32_t token;
};

struct kg_kl_out {
    double value; /* includes s */
    double coef;  /* dvalue/dlogp of the sampled token */
    double exact; /* dvalue/d(exact KL) */
    /* (k) out: dvalue/dlogp_at, zero on entry; NULL if the row has no head */
    double *at;
    double head, tail, mass;
    bool in_tail;
};

struct kg_kl_row {
    struct kg_policy_about about;
    struct kg_policy_claims claims;
    void (*token)(struct kg_kl_out *out, const struct kg_kl_in *in,
                  const struct kg_kl_row *row, const struct kg_algo *algo);
    const char *clamps; /* limit of kl.clamp, as text; NULL: none */
    int kind;
    bool forward;     /* direction of topk and exact */
    bool weighted;    /* takes the importance weight */
    bool iterative;   /* estimates its KL only against the policy that sampled */
    bool reward_only; /* for rewards only, not a loss */
    bool head_only;   /* reads only the head, which must have ids */
    /* independent of the sampled token (topk: only if kl.tail is false) */
    bool of_context;
};

/* Whether the head is the anchor's top ids; else it is the sampler's recorded ids. */
static inline bool kg_kl_anchor_head(const struct kg_kl_row *row)
{
    return row->about.needs & KG_NEED_TOP_ANCHOR;
}

void kg_kl_topk_reverse(struct kg_kl_out *out, const struct kg_kl_in *in,
                        const struct kg_kl_row *row, const struct kg_algo *algo);
void kg_kl_topk_forward(struct kg_kl_out *out, const struct kg_kl_in *in,
                        const struct kg_kl_row *row, const struct kg_algo *algo);
void kg_kl_truncated(struct kg_kl_out *out, const struct kg_kl_in *in,
                     const struct kg_kl_row *row, const struct kg_algo *algo);
void kg_kl_bucket(struct kg_kl_out *out, const struct kg_kl_in *in,
                  const struct kg_kl_row *row, const struct kg_algo *algo);
void kg_kl_generalised(struct kg_kl_out *out, const struct kg_kl_in *in,
                       const struct kg_kl_row *row, const struct kg_algo *algo);

/* ---- aggregation ---- */
struct kg_aggregate_row {
    struct kg_policy_about about;
    double (*weight)(double length, const struct kg_policy_totals *totals);
    /* bias of the average, for a term that is unbiased at a fixed context */
    enum kg_average average;
    bool divides_by_answers; /* divides by the number of samples in the batch */
    bool divides_by_norm;    /* divides by algo.length_norm, which is then required */
};

/* ---- metrics ---- */
void kg_policy_metrics_pg(struct kg_policy_metrics *m, const struct kg_pg_in *in,
                          const struct kg_pg_out *out, const struct kg_algo *algo);
void kg_policy_metrics_mask(struct kg_policy_metrics *m, double divergence, bool masked);
void kg_policy_metrics_kl(struct kg_policy_metrics *m, const struct kg_kl_in *in,
                          const struct kg_kl_out *out);

/* ---- tables, combined by algo.c ---- */
struct kg_policy_rows {
    const void *rows; /* every row begins with a struct kg_policy_about */
    size_t n, stride;
};
struct kg_policy_rows kg_advantage_rows(void);
struct kg_policy_rows kg_surrogate_rows(void);
struct kg_policy_rows kg_kl_rows(void);
struct kg_policy_rows kg_aggregate_rows(void);
struct kg_policy_rows kg_mask_rows(void);
struct kg_policy_rows kg_place_rows(void);

#endif
