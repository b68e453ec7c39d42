/* What an algorithm is: one row from each of seven tables, and numbers.
 *
 * A row carries its name, one line of help, its formula and source, and what it needs
 * from the step (scope, statistics, passes); the function behind it is pure. The step is
 * scheduled from the needs, so a new algorithm is a row and a function, and nothing else.
 * Its options, the keys algo.*, kl.* and anchor.*, are kg_algo_rows: what each sets, its
 * range and its default stand there. A recipe has these rows among its own.
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

/* How much of the batch one evaluation must see. A micro-batch holds whole sequences. */
enum kg_policy_scope { KG_SCOPE_TOKEN, KG_SCOPE_SEQUENCE, KG_SCOPE_BATCH };

/* What a row reads beyond log-probs, old log-probs and advantages. */
enum kg_policy_need {
    KG_NEED_ANCHOR = 1 << 0, /* anchor log-prob of the sampled token */
    /* the sampler's top ids, and p (and anchor's) log-probs at them */
    KG_NEED_TOP_SAMPLER = 1 << 1,
    /* the anchor's top ids, and p's and its log-probs at them */
    KG_NEED_TOP_ANCHOR = 1 << 2,
    KG_NEED_MU_AT = 1 << 3,         /* the sampler's log-probs at its top ids */
    KG_NEED_EXACT_REVERSE = 1 << 4, /* exact KL(p||q) from the two-head pass */
    KG_NEED_EXACT_FORWARD = 1 << 5, /* exact KL(q||p) */
    KG_NEED_GREEDY = 1 << 6,        /* reward of a greedy answer of each prompt */
    KG_NEED_VALUES = 1 << 7,        /* a critic */
    KG_NEED_SUM_SQ = 1 << 8,        /* sum_v p_v^2 of the old policy */
    KG_NEED_GROUP = 1 << 9,         /* at least two samples a prompt */
    /* misleading off-policy without an importance weight */
    KG_NEED_ON_POLICY_OR_IW = 1 << 10,
    KG_NEED_ENTROPY = 1 << 11,   /* of the current policy; set by algo.entropy_coef */
    KG_NEED_SELECTION = 1 << 12, /* kg_policy_select over the whole optimizer batch */
    KG_NEED_PARTS = 1 << 13,     /* several rewards of an answer, each by itself */
};

/* The part that every row of every table begins with. */
struct kg_policy_about {
    const char *name;
    const char *help;    /* one line */
    const char *formula; /* plain text, the letters of docs/algorithms */
    const char *source;
    enum kg_policy_scope scope;
    unsigned needs; /* enum kg_policy_need */
    /* keys that it reads and some other row of its table does not, parted by blanks;
     * NULL: none */
    const char *reads;
};

/* What a row's terms are on average, at fixed context, while no clip, clamp, mask or
 * truncation holds: tests prove it by enumeration, docs/algorithms.md prints it. */
enum kg_unbiased { KG_UNBIASED_VALUE = 1 << 0, KG_UNBIASED_GRADIENT = 1 << 1 };
enum kg_target {
    KG_TARGET_NONE,     /* no claim is made */
    KG_TARGET_REVERSE,  /* KL(p||q) */
    KG_TARGET_FORWARD,  /* KL(q||p) */
    KG_TARGET_JEFFREYS, /* (KL(p||q) + KL(q||p)) / 2 */
    /* -E_p[A], A a constant of y; rpg rows: plus kl.beta times their KL to the old
     * policy */
    KG_TARGET_RETURN,
};
struct kg_policy_claims {
    const char *gradient; /* of a token's term with respect to the log-probs it reads */
    enum kg_target target;
    unsigned on_policy; /* enum kg_unbiased: y drawn from p = old = mu */
    /* y drawn from old = mu, which is not p; a KL row that takes an importance weight has
     * it, one that is a KL against the sampling policy alone has old = q */
    unsigned off_policy;
    unsigned published; /* both of them with kl.gradient published; topk rows alone */
    const char *memory; /* of the term, a token */
};

struct kg_advantage_row; /* the functions of a row stay inside policy/ */
struct kg_surrogate_row;
struct kg_kl_row;
struct kg_aggregate_row;
struct kg_mask_row;

enum kg_anchor_kind {
    KG_ANCHOR_NONE,
    KG_ANCHOR_FIXED,     /* the initial weights */
    KG_ANCHOR_EMA,       /* anchor <- eta anchor + (1 - eta) policy, every period steps */
    KG_ANCHOR_ITERATIVE, /* the policy that sampled the batch: no second model */
    /* anchor <- policy, every period steps or updates, or when a KL passes kappa */
    KG_ANCHOR_COPY,
};
struct kg_anchor_row {
    struct kg_policy_about about;
    enum kg_anchor_kind kind;
};

/* Where the KL stands. Outside the loss it is a number that is taken off before the
 * update, and has no gradient of its own. */
enum kg_place { KG_PLACE_LOSS, KG_PLACE_REWARD, KG_PLACE_ADVANTAGE };
struct kg_place_row {
    struct kg_policy_about about;
    enum kg_place place;
    bool later; /* a token pays for all that follow it, too */
};

struct kg_algo {
    const struct kg_advantage_row *advantage;
    const struct kg_surrogate_row *surrogate;
    const struct kg_kl_row *kl;
    const struct kg_anchor_row *anchor;
    const struct kg_aggregate_row *aggregate;
    const struct kg_mask_row *mask;
    const struct kg_place_row *kl_in;
    const char *name[KG_TABLE_COUNT]; /* of these rows; of tables or borrowed */

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
    bool rpg_detach;
    double count_eps;

    double kl_beta;    /* with kl_target: the present one; the run carries it */
    double kl_target;  /* 0 off */
    double kl_horizon; /* answers */
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

/* The defaults: grpo advantages, ppo-clip 0.2/0.2, token-mean, no mask, no KL, no
 * anchor. */
void kg_algo_init(struct kg_algo *algo);

/* Rows over struct kg_algo, ended by key NULL. After they have filled fields,
 * kg_algo_choose finds the rows of tables. Where a row has no default, kg_algo_init has:
 * a recipe that does not name the key says nothing of it. */
/* What keys of a KL need (data/needs.h), which its row tells: the functions below. */
#define KG_NEEDS_WEIGHABLE                                                               \
    "@a kl.estimator of the sampled token in the loss (k1 to k5, k3++, abs, topk-* "     \
    "with kl.tail true):kl.estimator,kl.in,kl.tail"
#define KG_NEEDS_CLAMPED                                                                 \
    "@a kl.estimator that has a clamp (`kedge algorithms`), or kl.importance true on "   \
    "one that takes the weight,:kl.estimator,kl.in,kl.tail,kl.importance"
#define KG_NEEDS_KL_IN_LOSS "@a kl.estimator in the loss:kl.estimator,kl.in"
extern const struct kg_opt_row kg_algo_rows[];
/* Find the rows that algo->name names.   errors: NOTFOUND (valid names listed) */
kg_status kg_algo_choose(struct kg_algo *algo, struct kg_err *err) KG_MUST_CHECK;

/* Set what one key names from text; an empty text leaves what was there.
 * errors: NOTFOUND (unknown key or row, valid names listed), EINVAL */
kg_status kg_algo_set(struct kg_algo *algo, const char *key, const char *value,
                      struct kg_err *err) KG_MUST_CHECK;
/* The value of a key as text that kg_algo_set reads back to the same.
 * errors: NOTFOUND (unknown key), EINVAL (text of so many bytes does not hold it) */
kg_status kg_algo_get(const struct kg_algo *algo, const char *key, char *text,
                      size_t bytes, struct kg_err *err) KG_MUST_CHECK;
size_t kg_algo_n_keys(void);
const char *kg_algo_key(size_t i);

/* What the run around the algorithm can provide. 0 or false where unknown is not checked,
 * except as said. */
struct kg_algo_setting {
    int64_t vocab;           /* 0: not checked */
    int64_t samples;         /* of one prompt; 0: not checked */
    bool off_policy;         /* several updates a step, lag, or another sampler dtype */
    bool sampled_old;        /* old log-probs are what the sampler recorded */
    bool truncated_sampling; /* top_p, top_k or min_p below the full softmax */
    int max_top_k;           /* most ids the sampler can record; 0: not checked */
    /* needs that can be met: KG_NEED_GREEDY, _VALUES, _SUM_SQ, _EXACT_*, _SELECTION */
    unsigned provides;
    /* compositions that mislead are let through (reproduction presets) */
    bool reproduction;
};

/* Refuse what cannot be computed, with the key and the reason.
 * errors: EINVAL, UNSUPPORTED */
kg_status kg_algo_check(const struct kg_algo *algo, const struct kg_algo_setting *setting,
                        struct kg_err *err) KG_MUST_CHECK;

/* Is the KL in the loss estimated from the sampled token (biased where the sampling was
 * truncated)? */
bool kg_algo_kl_samples(const struct kg_algo *algo);
/* Is it multiplied by the importance weight, where kl.importance says so? */
bool kg_algo_kl_weighs(const struct kg_algo *algo);
/* Would kl.clamp hold anything: of the estimator, or of that weight? */
bool kg_algo_kl_may_clamp(const struct kg_algo *algo);

/* Top-k with k >= vocab is the exact KL: turns kl into exact-reverse / exact-forward.
 * returns whether it did, for the one logged line.   (k = 0 stays: K4 / K5.) */
bool kg_algo_exact_when_full(struct kg_algo *algo, int64_t vocab);
/* A trust region over more ids than there are is over all of them: cuts algo.top_k to
 * vocab.   returns whether it did, for the one logged line */
bool kg_algo_region_when_full(struct kg_algo *algo, int64_t vocab);

/* ---- what the step must supply ---- */
unsigned kg_algo_needs(const struct kg_algo *algo); /* enum kg_policy_need of all rows */
/* Whether some term reads which token was sampled, or what the sampler recorded. Where
 * none does, tokens that the policy did not sample can be learned from. */
bool kg_algo_reads_sample(const struct kg_algo *algo);
/* Whether the loss has a KL term: there is one, and it does not stand elsewhere. */
bool kg_algo_kl_in_loss(const struct kg_algo *algo);
/* Whether the KL is taken off before the update: of rewards or of advantages. */
bool kg_algo_kl_taken(const struct kg_algo *algo);
enum kg_policy_scope kg_algo_scope(const struct kg_algo *algo);
/* Ids a token that the sampler must record (0: none). */
int kg_algo_recorded_top_k(const struct kg_algo *algo);
/* Of the anchor's own largest ids (topk-forward). */
int kg_algo_anchor_top_k(const struct kg_algo *algo);
/* Columns K of ids in the training pass: the recorded ones first, then the anchor's. */
int kg_algo_width(const struct kg_algo *algo);

/* ---- the tables, for help, docs and look-ups ---- */
const char *kg_policy_table_key(enum kg_policy_table table); /* "algo.advantage", ... */
size_t kg_policy_n_rows(enum kg_policy_table table);
const struct kg_policy_about *kg_policy_row(enum kg_policy_table table, size_t i);
/* NULL for a row of a table without claims (KL and surrogate have them). */
const struct kg_policy_claims *kg_policy_row_claims(enum kg_policy_table table, size_t i);
/* The row's about; NULL and err listing the valid names.   errors: NOTFOUND */
const struct kg_policy_about *kg_policy_find(enum kg_policy_table table, const char *name,
                                             struct kg_err *err) KG_MUST_CHECK;
/* What kl.clamp holds of this KL ("log w within +-20"), static; NULL: nothing. */
const char *kg_algo_clamps(const struct kg_algo *algo);
/* Whether a row lists the key as read; whether any row of any table does, so that beside
 * others it does nothing; and whether one of the rows that algo has chosen does. */
bool kg_policy_reads(const struct kg_policy_about *row, const char *key);
bool kg_policy_is_read(const char *key);
bool kg_algo_reads(const struct kg_algo *algo, const char *key);
/* Name of the row chosen in each table. */
const char *kg_algo_row_name(const struct kg_algo *algo, enum kg_policy_table table);

#endif
