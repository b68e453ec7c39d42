/* An algorithm: one row from each of seven tables, and the values of its options.
 *
 * A row has a name, one line of help, a formula, a source, its needs (scope, statistics,
 * passes) and a pure function. The step plans its passes by these needs, so a new
 * algorithm is a row and a function.
 *
 * kg_algo_rows has the options algo.*, kl.* and anchor.*, with range and default. Recipes
 * include these rows.
 */
#ifndef KG_POLICY_ALGO_H
#define KG_POLICY_ALGO_H

#include "base/option.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum kg_policy_table {
    KG_TABLE_ADVANTAGE,
    KG_TABLE_SURROGATE,
    KG_TABLE_KL,
    KG_TABLE_ANCHOR,
    KG_TABLE_AGGREGATE,
    KG_TABLE_MASK,
    KG_TABLE_PLACE,
    KG_TABLE_COUNT
};

/* Part of the batch that one evaluation needs. A micro-batch holds whole sequences. */
enum kg_policy_scope { KG_SCOPE_TOKEN, KG_SCOPE_SEQUENCE, KG_SCOPE_BATCH };

/* Inputs of a row besides log-probs, old log-probs and advantages. */
enum kg_policy_need {
    KG_NEED_ANCHOR = 1 << 0, /* anchor log-prob of the sampled token */
    /* the sampler's top ids, with log-probs of p (and the anchor) at these ids */
    KG_NEED_TOP_SAMPLER = 1 << 1,
    /* the anchor's top ids, with log-probs of p and the anchor at these ids */
    KG_NEED_TOP_ANCHOR = 1 << 2,
    KG_NEED_MU_AT = 1 << 3,         /* the sampler's log-probs at its top ids */
    KG_NEED_EXACT_REVERSE = 1 << 4, /* exact KL(p||q) from the two-head pass */
    KG_NEED_EXACT_FORWARD = 1 << 5, /* exact KL(q||p) */
    KG_NEED_GREEDY = 1 << 6,        /* reward of a greedy completion of each prompt */
    KG_NEED_VALUES = 1 << 7,        /* a critic */
    KG_NEED_SUM_SQ = 1 << 8,        /* sum_v p_v^2 of the old policy */
    KG_NEED_GROUP = 1 << 9,         /* at least two samples per prompt */
    /* off-policy, without an importance weight, its gradient has the wrong direction */
    KG_NEED_ON_POLICY_OR_IW = 1 << 10,
    KG_NEED_ENTROPY =
        1 << 11, /* entropy of the current policy; needed if algo.entropy_coef > 0 */
    KG_NEED_SELECTION = 1 << 12, /* kg_policy_select over the whole optimizer batch */
    KG_NEED_PARTS = 1 << 13,     /* several separate rewards per completion */
};

/* The first member of every row of every table. */
struct kg_policy_about {
    const char *name;
    const char *help;    /* one line */
    const char *formula; /* plain text; symbols as in docs/algorithms.md */
    const char *source;
    enum kg_policy_scope scope;
    unsigned needs; /* enum kg_policy_need */
    /* keys that this row reads but not all rows of its table, separated by blanks; NULL:
     * none */
    const char *reads;
};

/* The expectation of a row's terms at a fixed context, while no clip, clamp, mask or
 * truncation is active. Tests prove these claims by enumeration; docs/algorithms.md
 * prints them. */
enum kg_unbiased { KG_UNBIASED_VALUE = 1 << 0, KG_UNBIASED_GRADIENT = 1 << 1 };
enum kg_target {
    KG_TARGET_NONE,     /* no claim */
    KG_TARGET_REVERSE,  /* KL(p||q) */
    KG_TARGET_FORWARD,  /* KL(q||p) */
    KG_TARGET_JEFFREYS, /* (KL(p||q) + KL(q||p)) / 2 */
    /* -E_p[A], where A depends on y but has no gradient; rpg rows: plus kl.beta times
     * their KL to the old policy */
    KG_TARGET_RETURN,
};
struct kg_policy_claims {
    const char *gradient; /* derivative of a token's term by its log-prob inputs */
    enum kg_target target;
    unsigned on_policy; /* enum kg_unbiased: y drawn from p = old = mu */
    /* y drawn from old = mu, which is not p. KL rows that can use an importance weight
     * (kl.importance) use it here. For rows that estimate their KL only against the
     * sampling policy, old = q */
    unsigned off_policy;
    unsigned published; /* enum kg_unbiased, with kl.gradient=published; topk rows only */
    const char *memory; /* memory of the term per token */
    const char *bounds; /* what the row's trust region bounds; surrogates only */
};

struct kg_advantage_row; /* internal to policy/ */
struct kg_surrogate_row;
struct kg_kl_row;
struct kg_aggregate_row;
struct kg_mask_row;

enum kg_anchor_kind {
    KG_ANCHOR_NONE,
    KG_ANCHOR_FIXED, /* the initial weights, or those of anchor.path */
    /* anchor <- eta anchor + (1 - eta) policy, every period steps or updates */
    KG_ANCHOR_EMA,
    KG_ANCHOR_ITERATIVE, /* the policy that sampled the batch; needs no second model */
    /* anchor <- policy, every period steps or updates, or when a KL exceeds kappa */
    KG_ANCHOR_COPY,
};
struct kg_anchor_row {
    struct kg_policy_about about;
    enum kg_anchor_kind kind;
};

/* Where the KL is applied. Outside the loss, the KL is a number that is subtracted before
 * the update; it has no gradient. */
enum kg_place { KG_PLACE_LOSS, KG_PLACE_REWARD, KG_PLACE_ADVANTAGE };
struct kg_place_row {
    struct kg_policy_about about;
    enum kg_place place;
    bool later; /* a token's KL includes that of all tokens after it */
};

struct kg_algo {
    const struct kg_advantage_row *advantage;
    const struct kg_surrogate_row *surrogate;
    const struct kg_kl_row *kl;
    const struct kg_anchor_row *anchor;
    const struct kg_aggregate_row *aggregate;
    const struct kg_mask_row *mask;
    const struct kg_place_row *kl_in;
    const char *name[KG_TABLE_COUNT]; /* names of the chosen rows; static or borrowed */

    double mask_delta;
    double clip_low, clip_high;
    double dual_clip;   /* 0 off */
    double ratio_clamp; /* 0 off */
    double truncate;    /* 0 off */
    double delta_low, delta_high;
    int top_k; /* of dppo-topk */
    double tau_pos, tau_neg;
    double tis; /* 0 off */
    double tis_low;
    bool tis_sequence;
    double entropy_coef;
    double length_norm;
    bool mask_truncated;
    double gamma, lambda;
    double gpg_norm;
    double std_eps;
    double cov_ratio, cov_low, cov_high, cov_coef;
    double m2_budget;
    double prefix_weight, prefix_budget;
    double vespo_k_pos, vespo_k_neg, vespo_lambda_pos, vespo_lambda_neg;
    bool rpg_detach;
    double count_eps;

    double kl_beta;    /* with kl_target: the current value, updated by the run */
    double kl_target;  /* 0 off */
    double kl_horizon; /* in samples */
    int kl_top_k;
    bool kl_tail;
    bool kl_corrected;
    bool kl_importance;
    double kl_iw_lower, kl_iw_upper; /* 0 off */
    bool kl_clamp;
    bool kl_after_filter;

    double anchor_eta;
    int64_t anchor_period;
    bool anchor_per_update; /* anchor_period counts optimizer updates, not steps */
    double anchor_kappa;    /* 0 off */
    double anchor_smoothing;
};

/* Defaults: grpo advantages, ppo-clip 0.2/0.2, token-mean, no mask, no KL, no anchor. */
void kg_algo_init(struct kg_algo *algo);

/* Conditions of the KL's keys (data/needs.h), evaluated by the kg_algo_kl_* below. */
#define KG_NEEDS_WEIGHABLE                                                               \
    "@a kl.estimator of the sampled token in the loss (k1 to k5, k3++, abs, topk-* "     \
    "with kl.tail true):kl.estimator,kl.in,kl.tail"
#define KG_NEEDS_CLAMPED                                                                 \
    "@a kl.estimator that has a clamp (`kedge algorithms`), or kl.importance true on "   \
    "one that takes the weight,:kl.estimator,kl.in,kl.tail,kl.importance"
#define KG_NEEDS_KL_IN_LOSS "@a kl.estimator in the loss:kl.estimator,kl.in"
/* Rows over struct kg_algo, ended by key NULL. After kg_config_fill, kg_algo_choose looks
 * up the table rows. A row without default keeps kg_algo_init's value, and a recipe that
 * does not set it does not list it. */
extern const struct kg_opt_row kg_algo_rows[];
/* Looks up the rows named by algo->name.   errors: ENOTFOUND (lists valid names) */
kg_status kg_algo_choose(struct kg_algo *algo, struct kg_err *err) KG_MUST_CHECK;

/* Sets one key from text; empty text keeps the old value. kg_algo_check checks ranges.
 * errors: ENOTFOUND (unknown key, names the nearest; unknown row, lists all), EINVAL */
kg_status kg_algo_set(struct kg_algo *algo, const char *key, const char *value,
                      struct kg_err *err) KG_MUST_CHECK;
/* The value of a key as text; kg_algo_set reads back the same value.
 * errors: ENOTFOUND (unknown key), EINVAL (`bytes` is too small) */
kg_status kg_algo_get(const struct kg_algo *algo, const char *key, char *text,
                      size_t bytes, struct kg_err *err) KG_MUST_CHECK;
size_t kg_algo_n_keys(void);
const char *kg_algo_key(size_t i);

/* What the run provides. */
struct kg_algo_setting {
    int64_t vocab;           /* size of the vocabulary; 0: not checked */
    int64_t samples;         /* samples per prompt; 0: not checked */
    bool off_policy;         /* several updates per step, lag, or another sampler dtype */
    bool sampled_old;        /* old log-probs are the sampler's records */
    bool truncated_sampling; /* top_p, top_k or min_p below the full softmax */
    int max_top_k; /* maximum number of ids that the sampler can record; 0: not checked */
    /* needs that the run meets: KG_NEED_GREEDY, _VALUES, _SUM_SQ, _EXACT_*,
     * _SELECTION */
    unsigned provides;
    /* allows combinations with a wrong gradient (reproduction presets) */
    bool reproduction;
};

/* Refuses an algorithm that cannot be computed, with the key and the reason.
 * errors: EINVAL, EUNSUPPORTED */
kg_status kg_algo_check(const struct kg_algo *algo, const struct kg_algo_setting *setting,
                        struct kg_err *err) KG_MUST_CHECK;

/* Whether the KL in the loss is estimated from the sampled token (biased under truncated
 * sampling). */
bool kg_algo_kl_samples(const struct kg_algo *algo);
/* Whether the KL is multiplied by the importance weight if kl.importance is set. */
bool kg_algo_kl_weighs(const struct kg_algo *algo);
/* Whether kl.clamp has an effect, on the estimator or on its importance weight. */
bool kg_algo_kl_may_clamp(const struct kg_algo *algo);

/* Top-k with k >= vocab is the exact KL, so kl becomes exact-reverse / exact-forward. (k
 * = 0 is kept: K4 / K5.)   returns whether it changed, so that the caller logs it */
bool kg_algo_exact_when_full(struct kg_algo *algo, int64_t vocab);
/* Limits algo.top_k to vocab: a trust region over more ids covers the whole vocabulary.
 * returns whether it changed, so that the caller logs it */
bool kg_algo_region_when_full(struct kg_algo *algo, int64_t vocab);

/* ---- what the step must provide ---- */
unsigned kg_algo_needs(const struct kg_algo *algo); /* enum kg_policy_need of all rows */
/* Whether some term depends on which token was sampled, or on the sampler's records. If
 * none does, tokens that the policy did not sample can be used too. */
bool kg_algo_reads_sample(const struct kg_algo *algo);
/* Whether the loss has a policy term (weighted by rewards); distillation has none. */
bool kg_algo_reads_reward(const struct kg_algo *algo);
/* Whether the loss contains a KL term. */
bool kg_algo_kl_in_loss(const struct kg_algo *algo);
/* Whether kl.in subtracts the KL from rewards or advantages before the update. */
bool kg_algo_kl_taken(const struct kg_algo *algo);
enum kg_policy_scope kg_algo_scope(const struct kg_algo *algo);
/* Number of top ids per token that the sampler must record; 0: none. */
int kg_algo_recorded_top_k(const struct kg_algo *algo);
/* Number of the anchor's own top ids per token (topk-forward); 0: none. */
int kg_algo_anchor_top_k(const struct kg_algo *algo);
/* Columns K of ids in the training pass: the recorded ids, then the anchor's ids. */
int kg_algo_width(const struct kg_algo *algo);

/* ---- the tables, for help, docs and look-ups ---- */
const char *kg_policy_table_key(enum kg_policy_table table); /* "algo.advantage", ... */
size_t kg_policy_n_rows(enum kg_policy_table table);
const struct kg_policy_about *kg_policy_row(enum kg_policy_table table, size_t i);
/* NULL for tables without claims (KL and surrogate have them). */
const struct kg_policy_claims *kg_policy_row_claims(enum kg_policy_table table, size_t i);
/* Further properties of a row, for a comparison of its estimate with the exact value. */
struct kg_policy_nature {
    bool forward;     /* of a KL: its direction, if its claims name none */
    bool iterative;   /* of a KL: estimated only against the sampling policy */
    bool reward_only; /* of a KL: for rewards only, not a loss */
    bool pops;        /* of a mask: sets a weight old/sampler outside its bounds to 0 */
};
struct kg_policy_nature kg_policy_row_nature(enum kg_policy_table table, size_t i);
/* The row's `about`; NULL without such a row: err lists the valid names.
 * errors: ENOTFOUND */
const struct kg_policy_about *kg_policy_find(enum kg_policy_table table, const char *name,
                                             struct kg_err *err) KG_MUST_CHECK;
/* The limit of kl.clamp for this KL ("log w within +-20"), static; NULL: none. */
const char *kg_algo_clamps(const struct kg_algo *algo);
/* Whether the key is in the `reads` of `row`; of any row of any table (with rows that do
 * not list it, the key then has no effect); of one of algo's rows. */
bool kg_policy_reads(const struct kg_policy_about *row, const char *key);
bool kg_policy_is_read(const char *key);
bool kg_algo_reads(const struct kg_algo *algo, const char *key);
/* Name of the row chosen in each table. */
const char *kg_algo_row_name(const struct kg_algo *algo, enum kg_policy_table table);

#endif
