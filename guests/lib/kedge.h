/* libkedge: KL-controlled policy gradients for language models, as a C library.
 *
 * It has two halves, connected by rows. The HEAD turns hidden states (N,D) and head
 * weights (V,D) into one row per position: the log-prob of the sampled token, the
 * log-probs at K ids, the top_k largest, logsumexp, entropy, and the exact KL to a second
 * head. It never allocates an array (N,V). The POLICY turns rows, advantages and weights
 * into a loss, its metrics, and the derivative of the loss with respect to every number
 * of a row. The head's backward turns these derivatives into dhidden and dweight, the
 * gradients of hidden states and head weights. Each half can be used alone: rows may come
 * from any model, and the caller may pass the derivatives back to that model.
 *
 *     kedge_algo_create     choose an algorithm: a preset, then keys and values
 *     kedge_advantages      rewards -> advantages, once over the step
 *     kedge_weights         lengths -> weight of every token, once over the batch
 *     kedge_head            hidden states -> rows                 \
 *     kedge_loss            rows -> loss, derivatives, metrics     > every micro-batch
 *     kedge_head_backward   derivatives -> dhidden, dweight       /
 *
 * The letters: N rows (sampled tokens that are trained on), S sequences, G groups of
 * samples of one prompt, D model width, V vocabulary, K ids per row. Matrices are dense
 * and row-major. Log-probs, entropies and divergences are in nats. Policy mathematics is
 * in double; the head multiplies in fp32, or in bf16 with fp32 sums.
 *
 * Conventions
 *  - The caller zeroes a struct that begins with `size` and sets size to its sizeof:
 *    struct kedge_rows rows = {.size = sizeof rows};   Later versions add fields at the
 *    end, where 0 keeps this version's behaviour. (Some functions and structs share a
 *    name, so C++ needs the word struct, too.)
 *  - A function that can fail returns enum kedge_status and fills *err (NULL is allowed)
 *    with one line: where, expected, found. Its outputs are then undefined. The library
 *    never prints, never touches signals and never reads the environment.
 *  - The caller owns all arrays; the library does not keep them after the call. `out`
 *    marks outputs. The caller frees handles (struct kedge_algo, struct kedge_metrics).
 *  - Functions may be called from several threads at once, but while one thread changes
 *    or frees a handle, no other thread may use that handle.
 *  - The same input gives the same bits for any number of threads; a row of the head does
 *    not depend on the other rows.
 *
 * docs/libkedge.md goes from installation to a loss, in C and in Python.
 */
#ifndef KEDGE_H
#define KEDGE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KEDGE_API        __attribute__((visibility("default")))
#define KEDGE_MUST_CHECK __attribute__((warn_unused_result))
#else
#define KEDGE_API
#define KEDGE_MUST_CHECK
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status and errors ---- */

enum kedge_status {
    KEDGE_OK = 0,
    KEDGE_EINVAL = 1,       /* an argument, key or value that is not allowed */
    KEDGE_ENOMEM = 2,       /* allocation failed */
    KEDGE_ESHAPE = 5,       /* dimensions that do not match */
    KEDGE_EDTYPE = 6,       /* another element type than expected */
    KEDGE_ENOTFOUND = 7,    /* no such key, preset or row; the message may suggest one */
    KEDGE_EUNSUPPORTED = 8, /* valid, but not supported by this build or machine */
    KEDGE_ENONFINITE = 12   /* NaN or infinity; the message names the first */
};

struct kedge_err {
    int code;          /* enum kedge_status */
    char message[768]; /* one line */
};

/* Short name of a status, such as "not found".   never NULL */
KEDGE_API const char *kedge_status_name(int status);

/* ---- the library ---- */

#define KEDGE_VERSION_MAJOR 0
#define KEDGE_VERSION_MINOR 1
#define KEDGE_VERSION_PATCH 0

/* Version of the loaded library, not of this header: "0.1.0". */
KEDGE_API const char *kedge_version(void);

/* Number of threads in kedge_head, kedge_head_backward and kedge_ema, whichever thread
 * calls; 0 (initially): OpenMP's default for that thread. No result depends on it. */
KEDGE_API void kedge_set_threads(int n);
KEDGE_API int kedge_get_threads(void);

/* 1 if KEDGE_BF16 heads are supported: since 0.1, always. */
KEDGE_API int kedge_has_bf16(void);

/* ---- an algorithm: one row of each table, and numbers ---- */

struct kedge_algo;

/* A new algorithm: the defaults (advantage grpo, surrogate ppo-clip 0.2/0.2, token-mean,
 * no KL, no anchor), then the preset's values of algo.*, kl.* and anchor.* (its other
 * values are ignored). preset NULL: defaults only.
 * *algo out: owned by the caller, who calls kedge_algo_free (NULL is allowed there).
 * errors: ENOTFOUND (preset), ENOMEM */
KEDGE_API int kedge_algo_create(struct kedge_algo **algo, const char *preset,
                                struct kedge_err *err) KEDGE_MUST_CHECK;
KEDGE_API void kedge_algo_free(struct kedge_algo *algo);

/* Sets one key from text, as in a recipe: ("kl.beta", "0.001"), ("kl.estimator", "k3").
 * Keys: kedge_key; rows: kedge_row; both with formula and source in docs/algorithms.md.
 * errors: ENOTFOUND (no such key or row), EINVAL (not a value of the key) */
KEDGE_API int kedge_algo_set(struct kedge_algo *algo, const char *key, const char *value,
                             struct kedge_err *err) KEDGE_MUST_CHECK;

/* The value of a key as text, from which kedge_algo_set restores exactly this value.
 * text (bytes) out.   errors: ENOTFOUND, EINVAL (bytes too few) */
KEDGE_API int kedge_algo_get(const struct kedge_algo *algo, const char *key, char *text,
                             size_t bytes, struct kedge_err *err) KEDGE_MUST_CHECK;

/* Bits for the inputs of an algorithm besides logp, old_logp and advantage. */
enum kedge_need {
    KEDGE_NEED_ANCHOR = 1 << 0,        /* anchor_logp */
    KEDGE_NEED_TOP_SAMPLER = 1 << 1,   /* ids: the sampler's top; logp_at, anchor_at */
    KEDGE_NEED_TOP_ANCHOR = 1 << 2,    /* ids: the anchor's top; logp_at, anchor_at */
    KEDGE_NEED_MU_AT = 1 << 3,         /* mu_at: the sampler's log-probs at its top ids */
    KEDGE_NEED_EXACT_REVERSE = 1 << 4, /* kl_exact = KL(p||q) */
    KEDGE_NEED_EXACT_FORWARD = 1 << 5, /* kl_exact = KL(q||p) */
    KEDGE_NEED_GREEDY = 1 << 6,        /* scores.greedy */
    KEDGE_NEED_VALUES = 1 << 7,        /* scores.value: a critic */
    KEDGE_NEED_SUM_SQ = 1 << 8,        /* scores.sum_sq and .old_logp */
    KEDGE_NEED_GROUP = 1 << 9,         /* two or more samples per prompt */
    /* without kl.importance, the gradient is wrong in off-policy updates */
    KEDGE_NEED_ON_POLICY_OR_IW = 1 << 10,
    KEDGE_NEED_ENTROPY = 1 << 11,   /* entropy */
    KEDGE_NEED_SELECTION = 1 << 12, /* kedge_select over the optimizer batch */
    KEDGE_NEED_PARTS = 1 << 13      /* scores.part, .part_weight, .n_parts */
};

/* The part of the optimizer batch that one kedge_loss needs. */
enum kedge_scope { KEDGE_SCOPE_TOKEN, KEDGE_SCOPE_SEQUENCE, KEDGE_SCOPE_BATCH };

struct kedge_needs {
    size_t size;
    unsigned needs;    /* bits of enum kedge_need, of all chosen rows */
    int scope;         /* enum kedge_scope, of the surrogate */
    int sampler_top_k; /* columns of the sampler's ids; 0: none */
    int anchor_top_k;  /* columns of the anchor's ids; 0: none. K is the sum of both */
};

/* *needs out, for the current settings of the algorithm. */
KEDGE_API int kedge_algo_needs(struct kedge_needs *needs, const struct kedge_algo *algo,
                               struct kedge_err *err) KEDGE_MUST_CHECK;

/* Properties of the trainer. vocab, samples, max_top_k: 0 means unknown, not checked. */
struct kedge_setting {
    size_t size;
    int64_t vocab;          /* V */
    int64_t samples;        /* samples per prompt */
    int max_top_k;          /* maximum number of ids that the sampler can record */
    int off_policy;         /* several updates per step, lag, or another sampler */
    int truncated_sampling; /* top_p, top_k or min_p */
    /* needs that the trainer meets: EXACT_*, GREEDY, VALUES, SUM_SQ, SELECTION, PARTS */
    unsigned provides;
    int reproduction; /* allows published combinations that have a wrong gradient */
    int sampled_old;  /* old log-probs are the sampler's: algo.tis is refused */
};

/* Refuses an algorithm that cannot be computed or has a wrong gradient: numbers out of
 * range, a KL without an anchor, a need missing in `provides`, ... setting NULL: as zeros
 * in every field but `provides`, where every need is met.
 * errors: EINVAL, EUNSUPPORTED, each with the key and the reason */
KEDGE_API int kedge_algo_check(const struct kedge_algo *algo,
                               const struct kedge_setting *setting,
                               struct kedge_err *err) KEDGE_MUST_CHECK;

/* ---- lists of keys, tables, presets ---- */

/* The i-th key of kedge_algo_set; NULL past the end. */
KEDGE_API const char *kedge_key(size_t i);

/* One row of a table, or a preset (table "method", or "recipe" for a published run;
 * formula and gradient "", needs 0). The strings are static. */
struct kedge_about {
    size_t size;
    const char *table;   /* key that selects the row: "algo.advantage", "kl.estimator" */
    const char *name;    /* the value of that key, or the name of the preset */
    const char *help;    /* one line */
    const char *formula; /* plain text; symbols as in docs/algorithms.md */
    const char *source;  /* paper or code */
    unsigned needs;      /* bits of enum kedge_need, of this row alone */
    /* derivative of a token's term with respect to its log-prob inputs; "" if the table
     * has none */
    const char *gradient;
};

/* The i-th row of all tables, table by table.
 * returns 1, or 0 past the end (or if about->size is not set) */
KEDGE_API int kedge_row(struct kedge_about *about, size_t i);

/* The i-th preset, and its j-th key and value. Some keys are of the run, not of the
 * algorithm (train.*, rollout.*, ...): kedge_algo_set does not know these.
 * returns 1, or 0 past the end */
KEDGE_API int kedge_preset(struct kedge_about *about, size_t i);
KEDGE_API int kedge_preset_value(const char **key, const char **value, size_t i,
                                 size_t j);

/* ---- rewards -> advantages ---- */

/* S trajectories in G groups of the same prompt, N tokens in all. */
struct kedge_scores {
    size_t size;
    int64_t n_seqs;             /* S */
    int64_t n_groups;           /* G */
    const double *reward;       /* (S) reward of the whole sequence */
    const int64_t *group_begin; /* (G+1) group g: group_begin[g] .. group_begin[g+1]-1 */
    const int64_t *seq_begin;   /* (S+1) tokens of a sequence; 0 first, N last */
    const double *token_reward; /* (N) or NULL: per token; reward is at the last token */
    const unsigned char *mask;  /* (N) or NULL for all: 1 for tokens that count */
    const double *greedy;       /* (S) reward of the greedy completion; NEED_GREEDY */
    const double *value;        /* (N) a critic's values; NEED_VALUES */
    const double *old_logp;     /* (N) log-probs of the old policy; NEED_SUM_SQ */
    const double *sum_sq;       /* (N) sum_v p_v^2 of the old policy; NEED_SUM_SQ */
    const double *is_weight;    /* (N) or NULL: importance weight old/mu */
    /* Several rewards per sample, for rows that normalise each separately (gdpo,
     * gdpo-token: NEED_PARTS); `reward`, their weighted sum, then only determines
     * groups_equal. Other rows use `reward`, and part must be NULL. */
    const double *part;        /* (S,n_parts) unweighted; NaN: no verdict, adds 0 */
    const double *part_weight; /* (n_parts) */
    int64_t n_parts;
    /* (S) or NULL. 1: the sample has no verdict. Its reward is ignored, means, deviations
     * and counts leave it out, and its advantage is 0. With NEED_GROUP, the only sample
     * that a group keeps of several also gets 0 */
    const unsigned char *drop;
};

struct kedge_advantage {
    size_t size;
    double *seq;           /* (S) out or NULL; for token rows: mean over the tokens */
    double *token;         /* (N) out; NULL is allowed for trajectory rows */
    double *returns;       /* (N) out or NULL; token rows only (gae: A_t + V_t) */
    double batch_std;      /* out: the deviation that batch-std divides by; else 0 */
    double mean, min, max; /* out: over the trajectories that are not dropped */
    int64_t groups_equal;  /* out: groups dropped or with equal rewards: no signal */
};

/* A = algo.advantage of the rewards; a trajectory's advantage is repeated for all its
 * tokens.
 *   grpo   (R_i - mean) / (std + 1e-6) of the group      rloo   R_i - mean of the others
 *   gae    A_t = delta_t + gamma lambda A_{t+1},  delta_t = r_t + gamma V_{t+1} - V_t,
 *          whitened over all tokens at the end (returns: before)
 * kedge_row lists the other rows and the source of each.
 * errors: EINVAL (an input that the row needs is absent), ENONFINITE, ENOMEM */
KEDGE_API int kedge_advantages(struct kedge_advantage *out, const struct kedge_algo *algo,
                               const struct kedge_scores *scores,
                               struct kedge_err *err) KEDGE_MUST_CHECK;

/* ---- lengths -> weights ---- */

struct kedge_weights {
    size_t size;
    double *pg;      /* (N) out or NULL */
    double *kl;      /* (N) out or NULL */
    double *entropy; /* (N) out or NULL */
};

/* Weight of every token's term, so that loss = sum_n weight[n] term[n] is algo.aggregate
 * over the optimizer batch: N tokens, S sequences that have tokens, L_i their length
 *   token-mean          1 / N          seq-mean-token-mean      1 / (S L_i)
 *   seq-mean-token-sum  1 / S          seq-mean-token-sum-norm  1 / algo.length_norm
 *   seq-mean-token-norm 1 / (S algo.length_norm)             token-sum  1
 * Compute them before the batch is split into micro-batches or over processes; then the
 * split does not change the gradient. Weights depend on lengths and drop only.
 * seq_begin (S+1); drop (S) or NULL: 1 for sequences that get pg and entropy weights of 0
 * and that N and S omit. For kl this holds only with kl.after_filter.
 * errors: EINVAL */
KEDGE_API int kedge_weights(struct kedge_weights *out, const struct kedge_algo *algo,
                            int64_t n_seqs, const int64_t *seq_begin,
                            const unsigned char *drop,
                            struct kedge_err *err) KEDGE_MUST_CHECK;

/* ---- rows -> loss ---- */

/* A micro-batch: the trained tokens of whole sequences. p is the current policy, old the
 * denominator of ratios, mu the sampler, q the anchor. */
struct kedge_rows {
    size_t size;
    int64_t n_seqs;           /* S */
    int64_t n_tokens;         /* N */
    const int64_t *seq_begin; /* (S+1) 0 first, N last */
    const int32_t *tokens;    /* (N) sampled ids; may be NULL if K is 0 */
    const double *logp;       /* (N) log p of the sampled token */
    const double *old_logp;   /* (N) log old */
    const double *mu_logp;    /* (N) log mu; NULL: log old */
    /* (N) log q; NEED_ANCHOR. May be NULL with anchor.kind iterative: q is then mu */
    const double *anchor_logp;
    const double *advantage; /* (N) */
    const double *entropy;   /* (N) entropy of p, or NULL; NEED_ENTROPY */
    const double *kl_exact;  /* (N) exact KL; NEED_EXACT_* */
    /* K = k_sampler + k_anchor ids per row: the sampler's top ids, largest first; then
     * the anchor's top ids. -1: unused slot. */
    int k_sampler;
    int k_anchor;
    const int32_t *ids;      /* (N,K) */
    const double *logp_at;   /* (N,K) log p at ids */
    const double *anchor_at; /* (N,K) log q at ids; iterative and NULL: mu_at */
    const double *mu_at;     /* (N,K) log mu at ids; NEED_MU_AT */
    /* Truncated sampling: log of the mass that p and old give to the recorded kept set;
     * ratios then use p and old renormalised on it. Both NULL: full softmax sampled */
    const double *log_kept;     /* (N) mass under p */
    const double *old_log_kept; /* (N) mass under old */
    /* (N) each, from kedge_weights. All three NULL: these rows are the whole optimizer
     * batch, and kedge_loss computes weights (and a selection, if needed) itself. */
    const double *pg_weight;
    const double *kl_weight;
    const double *entropy_weight;
    const double *is_weight;       /* (N) factor of each policy term; NULL: by algo.tis */
    const unsigned char *selected; /* (N) output of kedge_select; NEED_SELECTION */
    double kl_divisor;             /* divisor of each KL term; 0: none */
    /* clip-cov selects at random, by these two numbers; select_draw is the index of the
     * optimizer batch in its run, below 2^56 */
    uint64_t select_seed;
    uint64_t select_draw;
};

/* Metrics of one or more micro-batches; made by kedge_metrics_create. */
struct kedge_metrics;

struct kedge_grad {
    size_t size;
    double *a_logp;     /* (N) out: dloss/dlogp */
    double *a_at;       /* (N,K) out: dloss/dlogp_at; may be NULL if K is 0 */
    double *a_entropy;  /* (N) out: dloss/dentropy; NULL if entropy is not in the loss */
    double *a_kl_exact; /* (N) out: dloss/dkl_exact; NULL if not in the loss */
    double *a_log_kept; /* (N) out: dloss/dlog_kept; needed with log_kept */
    double *pg_term;    /* (N) out or NULL: is_weight surrogate */
    double *kl_term;    /* (N) out or NULL: KL / kl_divisor */
    struct kedge_metrics *metrics; /* NULL, or metrics to add this micro-batch to */
    double pg, kl, entropy;        /* out: sums of weight times term */
    double loss;                   /* out: pg + kl.beta kl - algo.entropy_coef entropy */
    int any;                       /* out: 1 if some derivative is not zero */
};

/* Loss of the algorithm and its derivative with respect to all numbers of the rows that
 * depend on p. If the sampled token is among the ids, its total derivative is a_logp plus
 * its a_at. Losses and metrics of micro-batches add up to those of the batch.
 *   loss = sum_n pg_weight is_weight surrogate + kl.beta kl_weight KL / kl_divisor
 *          - algo.entropy_coef entropy_weight H
 * errors: EINVAL (an input that the algorithm needs is absent; or a value that
 * kedge_algo_check refuses), ENONFINITE (names the first bad token), ENOMEM
 * source: kedge_row gives that of each row */
KEDGE_API int kedge_loss(struct kedge_grad *grad, const struct kedge_algo *algo,
                         const struct kedge_rows *rows,
                         struct kedge_err *err) KEDGE_MUST_CHECK;

/* For surrogates of batch scope (clip-cov, m2po, ...): selects tokens of the whole
 * optimizer batch. Reads logp, old_logp, log_kept, old_log_kept, advantage, pg_weight,
 * select_seed and select_draw. selected (N) out: 1 or 0 (0 for all other surrogates).
 * errors: EINVAL, ENONFINITE (names the first bad token), ENOMEM */
KEDGE_API int kedge_select(unsigned char *selected, const struct kedge_algo *algo,
                           const struct kedge_rows *whole,
                           struct kedge_err *err) KEDGE_MUST_CHECK;

/* kedge_metrics_free allows NULL; kedge_metrics_clear resets to empty. errors: ENOMEM */
KEDGE_API int kedge_metrics_create(struct kedge_metrics **metrics,
                                   struct kedge_err *err) KEDGE_MUST_CHECK;
KEDGE_API void kedge_metrics_free(struct kedge_metrics *metrics);
KEDGE_API void kedge_metrics_clear(struct kedge_metrics *metrics);

/* The i-th metric, with its name in docs/metrics.md ("policy/ratio_max", ...); the list
 * depends on the algorithm.   returns 1, or 0 past the end */
KEDGE_API int kedge_metric(const char **name, double *value,
                           const struct kedge_metrics *metrics,
                           const struct kedge_algo *algo, size_t i);

/* ---- hidden states -> rows ---- */

enum kedge_dtype {
    KEDGE_F32 = 0, /* float */
    KEDGE_BF16 = 1 /* the upper 16 bits of a float */
};

/* z[n,v] = (hidden[n] . weight[v]) inv_temp[n],   logp[n,v] = z[n,v] - lse[n],
 * lse[n] = log sum_v exp z[n,v].   The anchor is a second head over the same vocabulary,
 * of any width; it gives the q of the exact KLs, a constant. */
struct kedge_head {
    size_t size;
    int dtype;                     /* enum kedge_dtype, of all four matrices */
    int64_t n_rows;                /* N */
    int64_t width;                 /* D */
    int64_t vocab;                 /* V */
    const void *hidden;            /* (N,D) states after the model's last norm */
    const void *weight;            /* (V,D) lm_head.weight */
    const double *inv_temp;        /* (N) 1 / sampling temperature, or NULL for 1 */
    const int32_t *tokens;         /* (N) sampled ids, -1: none; NULL without logp */
    int k;                         /* K */
    const int32_t *ids;            /* (N,K), -1: unused slot; NULL without logp_at */
    int top_k;                     /* number of top ids; 0: none */
    int64_t anchor_width;          /* Da; 0 means D */
    const void *anchor_hidden;     /* (N,Da) or NULL */
    const void *anchor_weight;     /* (V,Da) or NULL */
    const double *anchor_inv_temp; /* (N), or NULL: inv_temp */
};

/* Outputs whose pointers are NULL are not computed. */
struct kedge_head_rows {
    size_t size;
    double *lse;        /* (N) out */
    double *logp;       /* (N) out: log-prob of tokens; 0 if a token is -1 */
    double *logp_at;    /* (N,K) out: log-probs of ids; -infinity in unused slots */
    double *entropy;    /* (N) out: -sum_v p_v log p_v */
    int32_t *top_ids;   /* (N,top_k) out: largest first, ties by smaller id */
    double *top_logp;   /* (N,top_k) out */
    double *kl_reverse; /* (N) out: sum_v p_v (log p_v - log q_v); needs the anchor */
    double *kl_forward; /* (N) out: sum_v q_v (log q_v - log p_v); needs the anchor */
    double *anchor_lse; /* (N) out; needs the anchor */
};

/* Rows of a head, computed tile by tile of the vocabulary.
 * numerics: products and exponentials in fp32 (bf16: inputs as given, sums in fp32),
 * tiles added in double; rows have fp32 precision, lse and anchor_lse double.
 * memory: O(N V / tile) sums and one tile per thread; never (N,V).
 * errors: EINVAL (id out of range, a KL without anchor), ESHAPE, EDTYPE, ENOMEM */
KEDGE_API int kedge_head(struct kedge_head_rows *rows, const struct kedge_head *head,
                         struct kedge_err *err) KEDGE_MUST_CHECK;

/* Derivatives of a loss with respect to the rows, as kedge_loss returns them (its
 * a_kl_exact is one of the two KLs); NULL if the loss does not use that output. */
struct kedge_head_grad {
    size_t size;
    const double *lse;          /* (N) from kedge_head; always needed */
    const double *a_logp;       /* (N) dloss/dlogp */
    const double *a_at;         /* (N,K) dloss/dlogp_at */
    const double *a_entropy;    /* (N) dloss/dentropy */
    const double *entropy;      /* (N) from kedge_head; needed with a_entropy */
    const double *a_kl_reverse; /* (N) dloss/dkl_reverse */
    const double *kl_reverse;   /* (N) from kedge_head; needed with a_kl_reverse */
    const double *a_kl_forward; /* (N) dloss/dkl_forward */
    const double *anchor_lse;   /* (N) from kedge_head; needed with either KL */
    float *dhidden;             /* (N,D) out, overwritten */
    float *dweight;             /* (V,D) out, added to; or NULL */
};

/* Gradients of hidden states and weights; the logits are recomputed tile by tile.
 *   dloss/dz_v = a_v - p_v sum_J a  -  c_H p_v (log p_v + H)       J: token and ids of n
 *                + c_R p_v (log p_v - log q_v - R)  +  c_F (p_v - q_v)
 * where a is a_logp and a_at; H and R are entropy and kl_reverse; c_H, c_R and c_F are
 * a_entropy, a_kl_reverse and a_kl_forward. The anchor gets no gradient.
 * numerics: derivatives are rounded to fp32 first; sums over N in a fixed order.
 * errors: EINVAL (a required value of the forward is absent), ESHAPE, EDTYPE, ENOMEM */
KEDGE_API int kedge_head_backward(const struct kedge_head_grad *grad,
                                  const struct kedge_head *head,
                                  struct kedge_err *err) KEDGE_MUST_CHECK;

/* ---- around the loss ---- */

/* Overlong penalty, added to a reward:
 *   min(0, -factor (length - (max_length - buffer)) / buffer),  buffer > 0
 * source: Yu et al. 2025, arXiv 2503.14476 */
KEDGE_API double kedge_overlong(int64_t length, int64_t max_length, int64_t buffer,
                                double factor);

/* KL in the reward: token_reward[n] -= kl.beta KL_n, with the algorithm's sampled
 * estimator between old and anchor (no importance weight: old drew the samples). With
 * kl.in reward, advantage or advantage-future, kedge_loss has no KL term.
 * token_reward (N) in and out; mean_kl out, NULL allowed: mean over sequences of means
 * over tokens; seq_begin (S+1); old_logp, anchor_logp (N)
 * errors: EINVAL (an estimator that needs more than the sampled token), ENONFINITE */
KEDGE_API int kedge_kl_reward(double *token_reward, double *mean_kl,
                              const struct kedge_algo *algo, int64_t n_seqs,
                              const int64_t *seq_begin, const double *old_logp,
                              const double *anchor_logp,
                              struct kedge_err *err) KEDGE_MUST_CHECK;

/* KL in the advantage: advantage[n] -= kl.beta KL_n, with the estimator of
 * kedge_kl_reward. With kl.in advantage-future, KL_n is replaced by the sum of KL_u over
 * the sequence's tokens u >= n. The arrays hold loss tokens only.
 * advantage (N) in and out; mean_kl out, NULL allowed: as kedge_kl_reward; most out, NULL
 * allowed: the largest amount subtracted from one token, at least 0
 * errors: EINVAL (as kedge_kl_reward; kl.in neither advantage nor advantage-future),
 * ENONFINITE
 * source: Zhang & Ba 2026, arXiv 2602.04417, code */
KEDGE_API int kedge_kl_advantage(double *advantage, double *mean_kl, double *most,
                                 const struct kedge_algo *algo, int64_t n_seqs,
                                 const int64_t *seq_begin, const double *old_logp,
                                 const double *anchor_logp,
                                 struct kedge_err *err) KEDGE_MUST_CHECK;

/* Next KL coefficient after n samples:
 *   coef (1 + clip(kl / target - 1, +-0.2) n / horizon),  target and horizon > 0
 * source: Ziegler et al. 2019, arXiv 1909.08593 */
KEDGE_API double kedge_adaptive_kl(double coef, double kl, double target, double horizon,
                                   int64_t n);

/* 1 if the anchor is updated after step `step` (with anchor.unit updates: after that
 * optimizer update), counted from 1; by anchor.kind, .eta and .period. The caller
 * applies anchor.kappa. */
KEDGE_API int kedge_anchor_due(const struct kedge_algo *algo, int64_t step);

/* anchor <- eta anchor + (1 - eta) theta, element by element; anchor (n) in and out,
 * theta (n): fp32 master weights; eta in 0..1. Equal weights stay equal; eta 0 copies.
 * errors: EINVAL.   source: Zhang & Ba 2026, arXiv 2602.04417 */
KEDGE_API int kedge_ema(float *anchor, const float *theta, int64_t n, double eta,
                        struct kedge_err *err) KEDGE_MUST_CHECK;

/* Loss of a critic at one token, and its derivative with respect to value:
 *   1/2 max((v - G)^2, (clip(v, v_old - range, v_old + range) - G)^2)
 * dvalue, clipped (1 if the clipped term is larger) out, NULL allowed.   returns the loss
 * source: Schulman et al. 2017, arXiv 1707.06347, as verl computes it */
KEDGE_API double kedge_value_loss(double *dvalue, int *clipped, double value,
                                  double old_value, double returns, double range);

#ifdef __cplusplus
}
#endif

#endif
