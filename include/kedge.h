/* libkedge: KL-controlled policy gradients for language models, as a C library.
 *
 * Two halves that meet in rows. The HEAD turns hidden states (N,D) and head weights (V,D)
 * into one row a position: the log-prob of the sampled token, log-probs at K ids, the k
 * largest, logsumexp, entropy, the exact KL to a second head. It never holds an array of
 * (N,V). The POLICY turns rows, advantages and weights into a loss, its metrics, and the
 * derivative of the loss with respect to every number of a row. The head's backward makes
 * gradients of hidden states and weights from those. Either half is of use without the
 * other: rows may come from any model, and so may derivatives go back to one.
 *
 *     kedge_algo_create     choose an algorithm: a preset, then keys and values
 *     kedge_advantages      rewards -> advantages, once over the step
 *     kedge_weights         lengths -> weight of every token, once over the batch
 *     kedge_head            hidden states -> rows                 \
 *     kedge_loss            rows -> loss, derivatives, metrics     > every micro-batch
 *     kedge_head_backward   derivatives -> dhidden, dW            /
 *
 * The letters: N rows (sampled tokens that are trained on), S sequences, G groups of
 * answers to one prompt, D model width, V vocabulary, K ids a row. Matrices are dense and
 * row-major. Log-probs, entropies and divergences are in nats. Policy mathematics is in
 * double; the head multiplies in fp32, or in bf16 with fp32 sums.
 *
 * Conventions
 *  - A struct that begins with `size` is set to zero by the caller, who writes sizeof of
 *    it there:  struct kedge_rows rows = {.size = sizeof rows};   A field that later
 *    versions add stands at the end, and 0 in it means what this version does. (Some
 *    functions have the name of a struct: keep the word struct in C++, too.)
 *  - A function that can fail returns enum kedge_status and fills *err (NULL is allowed)
 *    with one line: what was expected, what was found, where. What it writes into is then
 *    undefined. Nothing is printed, no signal is touched, no environment is read.
 *  - Arrays are the caller's and are not kept after the call. `out` marks what is
 *    written. Handles (struct kedge_algo, struct kedge_metrics) are the library's.
 *  - Any function may be called from any thread at any time; a handle that is being
 *    changed belongs to one thread.
 *  - Same input, same bits: whatever the number of threads, and for a row of the head
 *    whatever stands in the other rows.
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
    KEDGE_ESHAPE = 5,       /* dimensions that do not fit each other */
    KEDGE_EDTYPE = 6,       /* another element type than expected */
    KEDGE_ENOTFOUND = 7,    /* no such key, preset or row; the message lists the names */
    KEDGE_EUNSUPPORTED = 8, /* understood, but not something this build or machine does */
    KEDGE_ENONFINITE = 12   /* NaN or infinity; the message names the first place */
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

/* "0.1.0": of the library that is loaded, not of this header. */
KEDGE_API const char *kedge_version(void);

/* Threads that the head uses when called from any thread; 0 (the start): as many as the
 * OpenMP of the calling thread would. No result depends on it. */
KEDGE_API void kedge_set_threads(int n);
KEDGE_API int kedge_get_threads(void);

/* 1 where heads of KEDGE_BF16 run: on every processor since 0.1. */
KEDGE_API int kedge_has_bf16(void);

/* ---- an algorithm: one row of each table, and numbers ---- */

struct kedge_algo;

/* A new algorithm: the defaults (advantage grpo, surrogate ppo-clip 0.2/0.2, token-mean,
 * no KL, no anchor), and on top of them what a preset says of the algorithm (not of the
 * run around it); preset NULL: nothing.
 * *algo out: owned by the caller, for kedge_algo_free (NULL is allowed there).
 * errors: ENOTFOUND (preset), ENOMEM */
KEDGE_API int kedge_algo_create(struct kedge_algo **algo, const char *preset,
                                struct kedge_err *err) KEDGE_MUST_CHECK;
KEDGE_API void kedge_algo_free(struct kedge_algo *algo);

/* Set one key from text, as in a recipe: ("kl.beta", "0.001"), ("kl.estimator", "k3").
 * Keys: kedge_key; rows: kedge_row; both with formula and source in docs/algorithms.md.
 * errors: ENOTFOUND (key or row; valid names listed), EINVAL (not a value of the key) */
KEDGE_API int kedge_algo_set(struct kedge_algo *algo, const char *key, const char *value,
                             struct kedge_err *err) KEDGE_MUST_CHECK;

/* The value of a key as text that kedge_algo_set reads back to the same value.
 * text (bytes) out.   errors: ENOTFOUND, EINVAL (bytes too few) */
KEDGE_API int kedge_algo_get(const struct kedge_algo *algo, const char *key, char *text,
                             size_t bytes, struct kedge_err *err) KEDGE_MUST_CHECK;

/* What an algorithm reads beyond logp, old_logp and advantage; a mask. */
enum kedge_need {
    KEDGE_NEED_ANCHOR = 1 << 0,        /* anchor_logp */
    KEDGE_NEED_TOP_SAMPLER = 1 << 1,   /* the sampler's largest ids; logp_at, anchor_at */
    KEDGE_NEED_TOP_ANCHOR = 1 << 2,    /* the anchor's largest ids; logp_at, anchor_at */
    KEDGE_NEED_MU_AT = 1 << 3,         /* mu_at: the sampler's log-probs at its ids */
    KEDGE_NEED_EXACT_REVERSE = 1 << 4, /* kl_exact = KL(p||q) */
    KEDGE_NEED_EXACT_FORWARD = 1 << 5, /* kl_exact = KL(q||p) */
    KEDGE_NEED_GREEDY = 1 << 6,        /* scores.greedy */
    KEDGE_NEED_VALUES = 1 << 7,        /* scores.value: a critic */
    KEDGE_NEED_SUM_SQ = 1 << 8,        /* scores.sum_sq and .old_logp */
    KEDGE_NEED_GROUP = 1 << 9,         /* two or more answers to a prompt */
    KEDGE_NEED_ON_POLICY_OR_IW = 1 << 10, /* misleads off-policy without kl.importance */
    KEDGE_NEED_ENTROPY = 1 << 11,         /* entropy */
    KEDGE_NEED_SELECTION = 1 << 12,       /* kedge_select over the optimizer batch */
    KEDGE_NEED_PARTS = 1 << 13            /* scores.part, .part_weight, .n_parts */
};

/* How much of the optimizer batch one kedge_loss must see. */
enum kedge_scope { KEDGE_SCOPE_TOKEN, KEDGE_SCOPE_SEQUENCE, KEDGE_SCOPE_BATCH };

struct kedge_needs {
    size_t size;
    unsigned needs;    /* enum kedge_need of all rows */
    int scope;         /* enum kedge_scope */
    int sampler_top_k; /* columns of the sampler's ids; 0: none */
    int anchor_top_k;  /* columns of the anchor's ids; 0: none. K is the sum of both */
};

/* *needs out, of the algorithm as it is set. */
KEDGE_API int kedge_algo_needs(struct kedge_needs *needs, const struct kedge_algo *algo,
                               struct kedge_err *err) KEDGE_MUST_CHECK;

/* What the trainer around the algorithm does. 0 is: unknown, not checked. */
struct kedge_setting {
    size_t size;
    int64_t vocab;          /* V */
    int64_t samples;        /* answers to one prompt */
    int max_top_k;          /* most ids that the sampler can record */
    int off_policy;         /* several updates a step, lag, or another sampler */
    int truncated_sampling; /* top_p, top_k or min_p */
    unsigned provides; /* needs that can be met: GREEDY to SUM_SQ, EXACT, SELECTION */
    int reproduction;  /* let compositions that mislead through, as published */
    int sampled_old; /* old log-probs are the sampler's: algo.tis has nothing to weigh */
};

/* Is the algorithm one that can be computed, and not one that misleads?  Numbers out of
 * range, a KL without an anchor, a need that `provides` lacks, ...; setting NULL checks
 * what needs no setting, and takes every need as met.
 * errors: EINVAL, EUNSUPPORTED, each with the key and the reason */
KEDGE_API int kedge_algo_check(const struct kedge_algo *algo,
                               const struct kedge_setting *setting,
                               struct kedge_err *err) KEDGE_MUST_CHECK;

/* ---- what there is: keys, tables, presets ---- */

/* The i-th key of kedge_algo_set; NULL behind the last. */
KEDGE_API const char *kedge_key(size_t i);

/* One row of a table, or a preset (table "method", or "recipe" for a published run;
 * formula "" and needs 0). Static texts. */
struct kedge_about {
    size_t size;
    const char *table;   /* key that chooses the row: "algo.advantage", "kl.estimator" */
    const char *name;    /* the value of that key, or the preset */
    const char *help;    /* one line */
    const char *formula; /* plain text in the letters of docs/algorithms.md */
    const char *source;  /* paper */
    unsigned needs;      /* enum kedge_need of the row by itself */
    /* of a token's term by the log-probs that it reads; "" where the table has none */
    const char *gradient;
};

/* The i-th row of all tables together, table by table.
 * returns 1, or 0 behind the last (or where about->size is not set) */
KEDGE_API int kedge_row(struct kedge_about *about, size_t i);

/* The i-th preset, and its j-th key and value, those of the run around the algorithm
 * included (train.*, rollout.*, ...: not keys of kedge_algo_set).
 * returns 1, or 0 behind the last */
KEDGE_API int kedge_preset(struct kedge_about *about, size_t i);
KEDGE_API int kedge_preset_value(const char **key, const char **value, size_t i,
                                 size_t j);

/* ---- rewards -> advantages ---- */

/* S trajectories in G groups of the same prompt, N tokens in all. */
struct kedge_scores {
    size_t size;
    int64_t n_seqs;             /* S */
    int64_t n_groups;           /* G */
    const double *reward;       /* (S) of the whole answer */
    const int64_t *group_begin; /* (G+1) group g: group_begin[g] .. group_begin[g+1]-1 */
    const int64_t *seq_begin;   /* (S+1) tokens of a sequence; 0 first, N last */
    const double *token_reward; /* (N) or NULL: added; reward is on the last token */
    const unsigned char *mask;  /* (N) or NULL: tokens that count */
    const double *greedy;       /* (S) reward of the greedy answer; NEED_GREEDY */
    const double *value;        /* (N) of a critic; NEED_VALUES */
    const double *old_logp;     /* (N) NEED_SUM_SQ, as the next */
    const double *sum_sq;       /* (N) sum_v p_v^2 of the old policy */
    const double *is_weight;    /* (N) or NULL: importance weight of the sampler */
    /* Several rewards of an answer, for the rows that normalise each by itself (gdpo,
     * gdpo-token: NEED_PARTS); reward is then their sum by weight, which describes the
     * groups alone. Other rows take that sum, and part is NULL. */
    const double *part;        /* (S,n_parts) without weight; NaN: this one has none */
    const double *part_weight; /* (n_parts) */
    int64_t n_parts;
    /* (S) or NULL: answers without a verdict (1), whatever their reward: in no mean,
     * deviation or count, advantage 0. Where one alone is left of a group, 0 too */
    const unsigned char *drop;
};

struct kedge_advantage {
    size_t size;
    double *seq;           /* (S) out or NULL; of rows on tokens: mean over the tokens */
    double *token;         /* (N) out; NULL is allowed for rows on trajectories */
    double *returns;       /* (N) out or NULL; rows on tokens only (gae: A + value) */
    double batch_std;      /* out: what batch-std divided by; 0 where it did not */
    double mean, min, max; /* out: over trajectories */
    int64_t groups_equal;  /* out: groups without a signal of their own */
};

/* A = algo.advantage of the rewards; one of a trajectory stands at each of its tokens.
 *   grpo   (R_i - mean) / (std + 1e-6) of the group      rloo   R_i - mean of the others
 *   gae    A_t = delta_t + gamma lambda A_{t+1},  delta_t = r_t + gamma V_{t+1} - V_t
 * and every other row of kedge_row.
 * errors: EINVAL (an input that the row needs is absent), ENONFINITE, ENOMEM
 * source: of each row, kedge_about */
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

/* Weight of every token's term, so that  loss = sum_n weight[n] term[n]  is
 * algo.aggregate over the whole optimizer batch, L_i the length of the sequence:
 *   token-mean          1 / N     seq-mean-token-mean       1 / (S L_i)
 *   seq-mean-token-sum  1 / S     seq-mean-token-sum-norm   1 / algo.length_norm
 *                                 seq-mean-token-norm       1 / (S algo.length_norm)
 * Computed before the batch is split (into micro-batches, or over processes: only lengths
 * are needed), they make the gradient the same however it is.
 * seq_begin (S+1); drop (S) or NULL: sequences without policy and entropy loss (they keep
 * their KL, unless kl.after_filter).
 * errors: EINVAL */
KEDGE_API int kedge_weights(struct kedge_weights *out, const struct kedge_algo *algo,
                            int64_t n_seqs, const int64_t *seq_begin,
                            const unsigned char *drop,
                            struct kedge_err *err) KEDGE_MUST_CHECK;

/* ---- rows -> loss ---- */

/* A micro-batch: whole sequences, the tokens in them that are trained on. p is the policy
 * as it is now, old what ratios refer to, mu what sampled, q the anchor. */
struct kedge_rows {
    size_t size;
    int64_t n_seqs;            /* S */
    int64_t n_tokens;          /* N */
    const int64_t *seq_begin;  /* (S+1) 0 first, N last */
    const int32_t *tokens;     /* (N) sampled ids; may be NULL where K is 0 */
    const double *logp;        /* (N) log p of the sampled token */
    const double *old_logp;    /* (N) log old */
    const double *mu_logp;     /* (N) log mu, or NULL: the same as old */
    const double *anchor_logp; /* (N) log q; NEED_ANCHOR. Iterative, and NULL: log mu */
    const double *advantage;   /* (N) */
    const double *entropy;     /* (N) of p, or NULL; NEED_ENTROPY */
    const double *kl_exact;    /* (N) exact KL; NEED_EXACT_* */
    /* K = k_sampler + k_anchor ids a row: the sampler's largest, largest first; then the
     * anchor's own. -1: slot not used. */
    int k_sampler;
    int k_anchor;
    const int32_t *ids;      /* (N,K) */
    const double *logp_at;   /* (N,K) log p at them */
    const double *anchor_at; /* (N,K) log q at them */
    const double *mu_at;     /* (N,K) log mu at them; NEED_MU_AT */
    /* Truncated sampling: log of the mass of the recorded kept set. Ratios are then of
     * the policies renormalised on it. Both NULL: the full softmax was sampled. */
    const double *log_kept;     /* (N) of p */
    const double *old_log_kept; /* (N) of old */
    /* (N) each, of kedge_weights. All three NULL: these rows are the whole optimizer
     * batch, and kedge_loss makes weights (and a selection, where needed) of them. */
    const double *pg_weight;
    const double *kl_weight;
    const double *entropy_weight;
    const double *is_weight;       /* (N) or NULL: factor of each policy term (no tis) */
    const unsigned char *selected; /* (N) of kedge_select; NEED_SELECTION */
    double kl_divisor;             /* 0, or what each KL term is divided by */
    /* clip-cov chooses at random, as a function of both; the draw is the number of the
     * optimizer batch in its run, below 2^56 */
    uint64_t select_seed;
    uint64_t select_draw;
};

/* Metrics of one or more micro-batches; made by kedge_metrics_create. */
struct kedge_metrics;

struct kedge_grad {
    size_t size;
    double *a_logp; /* (N) out: dloss/dlogp */
    double *a_at;   /* (N,K) out: dloss/dlogp_at; may be NULL where K is 0 */
    double
        *a_entropy; /* (N) out: dloss/dentropy; NULL where entropy is not in the loss */
    double *a_kl_exact;            /* (N) out: dloss/dkl_exact; NULL where it is not */
    double *a_log_kept;            /* (N) out: dloss/dlog_kept; needed with log_kept */
    double *pg_term;               /* (N) out or NULL: policy terms without weight */
    double *kl_term;               /* (N) out or NULL: KL terms without weight and beta */
    struct kedge_metrics *metrics; /* NULL, or what this batch is added to */
    double pg, kl, entropy;        /* out: sums of weight times term */
    double loss;                   /* out: pg + kl.beta kl - algo.entropy_coef entropy */
    int any;                       /* out: 1 where some derivative is not zero */
};

/* Loss of the algorithm and its derivative with respect to every number of the rows that
 * comes from p. Derivatives at ids and at the sampled token add up where they are the
 * same token. Losses and metrics of micro-batches add up to those of the batch.
 *   loss = sum_n pg_weight is_weight surrogate + kl.beta kl_weight KL
 *          - algo.entropy_coef entropy_weight H
 * errors: EINVAL (an input that the algorithm needs is absent, by name; or what
 * kedge_algo_check refuses of the numbers), ENONFINITE (the first bad token), ENOMEM
 * source: of each row, kedge_about */
KEDGE_API int kedge_loss(struct kedge_grad *grad, const struct kedge_algo *algo,
                         const struct kedge_rows *rows,
                         struct kedge_err *err) KEDGE_MUST_CHECK;

/* Rows of batch scope (clip-cov, kl-cov): which tokens of the whole optimizer batch are
 * chosen. selected (N) out; reads logp, old_logp, log_kept, old_log_kept, advantage,
 * pg_weight, select_seed and select_draw.
 * errors: EINVAL, ENONFINITE (the first bad token), ENOMEM */
KEDGE_API int kedge_select(unsigned char *selected, const struct kedge_algo *algo,
                           const struct kedge_rows *whole,
                           struct kedge_err *err) KEDGE_MUST_CHECK;

/* errors: ENOMEM.   free: NULL is allowed; clear: back to nothing */
KEDGE_API int kedge_metrics_create(struct kedge_metrics **metrics,
                                   struct kedge_err *err) KEDGE_MUST_CHECK;
KEDGE_API void kedge_metrics_free(struct kedge_metrics *metrics);
KEDGE_API void kedge_metrics_clear(struct kedge_metrics *metrics);

/* The i-th metric under its name in docs/training.md ("policy/ratio_max", ...); which
 * there are depends on the algorithm.   returns 1, or 0 behind the last */
KEDGE_API int kedge_metric(const char **name, double *value,
                           const struct kedge_metrics *metrics,
                           const struct kedge_algo *algo, size_t i);

/* ---- hidden states -> rows ---- */

enum kedge_dtype {
    KEDGE_F32 = 0, /* float */
    KEDGE_BF16 = 1 /* the upper 16 bits of a float */
};

/* z[n,v] = (hidden[n] . weight[v]) inv_temp[n],   logp[n,v] = z[n,v] - lse[n],
 * lse[n] = log sum_v exp z[n,v].   The anchor is a second head over the same V, the
 * constant q of an exact KL; its width may differ. */
struct kedge_head {
    size_t size;
    int dtype;                     /* enum kedge_dtype, of all four matrices */
    int64_t n_rows;                /* N */
    int64_t width;                 /* D */
    int64_t vocab;                 /* V */
    const void *hidden;            /* (N,D) behind the model's last norm */
    const void *weight;            /* (V,D) lm_head.weight */
    const double *inv_temp;        /* (N) 1 / sampling temperature, or NULL for 1 */
    const int32_t *tokens;         /* (N) sampled ids, -1 for none; or NULL */
    int k;                         /* K */
    const int32_t *ids;            /* (N,K), -1: slot not used; or NULL */
    int top_k;                     /* how many of the largest to return; 0: none */
    int64_t anchor_width;          /* Da; 0 is D */
    const void *anchor_hidden;     /* (N,Da) or NULL */
    const void *anchor_weight;     /* (V,Da) or NULL */
    const double *anchor_inv_temp; /* (N), or NULL: inv_temp */
};

/* Every pointer may be NULL: not wanted. */
struct kedge_head_rows {
    size_t size;
    double *lse;        /* (N) out */
    double *logp;       /* (N) out: at tokens; 0 where a token is -1 */
    double *logp_at;    /* (N,K) out: at ids; -infinity in slots not used */
    double *entropy;    /* (N) out: -sum_v p_v log p_v */
    int32_t *top_ids;   /* (N,top_k) out: largest first, ties by smaller id */
    double *top_logp;   /* (N,top_k) out */
    double *kl_reverse; /* (N) out: sum_v p_v (log p_v - log q_v); needs the anchor */
    double *kl_forward; /* (N) out: sum_v q_v (log q_v - log p_v); needs the anchor */
    double *anchor_lse; /* (N) out; needs the anchor */
};

/* Rows of a head, by tiles of the vocabulary.
 * numerics: products and exponentials in fp32 (bf16: inputs as given, sums in fp32),
 * tiles added in double; rows carry fp32 precision, lse and anchor_lse double.
 * memory: O(N V / tile) sums and one tile a thread; never (N,V).
 * errors: EINVAL (id out of range, a KL without anchor), ESHAPE, ENOMEM, EUNSUPPORTED */
KEDGE_API int kedge_head(struct kedge_head_rows *rows, const struct kedge_head *head,
                         struct kedge_err *err) KEDGE_MUST_CHECK;

/* Derivatives of a loss with respect to the rows, as kedge_loss returns them; NULL where
 * the loss does not read the row. */
struct kedge_head_grad {
    size_t size;
    const double *lse;          /* (N) of the forward; always needed */
    const double *a_logp;       /* (N) dloss/dlogp */
    const double *a_at;         /* (N,K) dloss/dlogp_at */
    const double *a_entropy;    /* (N) dloss/dentropy */
    const double *entropy;      /* (N) of the forward; with a_entropy */
    const double *a_kl_reverse; /* (N) dloss/dkl_reverse */
    const double *kl_reverse;   /* (N) of the forward; with a_kl_reverse */
    const double *a_kl_forward; /* (N) dloss/dkl_forward */
    const double *anchor_lse;   /* (N) of the forward; with either KL */
    float *dhidden;             /* (N,D) out, overwritten */
    float *dweight;             /* (V,D) out, added to; or NULL */
};

/* Gradients of hidden states and weights; the logits are recomputed tile by tile.
 *   dloss/dz_v = a_v - p_v sum_J a  -  c_H p_v (log p_v + H)       J: tokens and ids
 *                + c_R p_v (log p_v - log q_v - R)  +  c_F (p_v - q_v)
 * with a of tokens and ids, c_H, c_R, c_F the dense ones; the anchor gets no gradient.
 * numerics: derivatives are rounded to fp32 first; sums over N in a fixed order.
 * errors: EINVAL (a value of the forward that a derivative needs is absent), ESHAPE,
 * ENOMEM, EUNSUPPORTED */
KEDGE_API int kedge_head_backward(const struct kedge_head_grad *grad,
                                  const struct kedge_head *head,
                                  struct kedge_err *err) KEDGE_MUST_CHECK;

/* ---- around the loss ---- */

/* Overlong penalty, added to a reward:
 *   min(-(length - (max_length - buffer)) / buffer factor, 0),  buffer > 0
 * source: Yu et al. 2025, arXiv 2503.14476 */
KEDGE_API double kedge_overlong(int64_t length, int64_t max_length, int64_t buffer,
                                double factor);

/* KL in the reward: token_reward[n] -= kl.beta KL_n, the sampled estimator of the
 * algorithm between old and anchor (no importance weight: old sampled). With kl.in reward
 * (or advantage, advantage-future) kedge_loss has no KL term.
 * token_reward (N) in and out; mean_kl out: mean over sequences of means over tokens;
 * seq_begin (S+1); old_logp, anchor_logp (N)
 * errors: EINVAL (an estimator that reads more than the sampled token), ENONFINITE */
KEDGE_API int kedge_kl_reward(double *token_reward, double *mean_kl,
                              const struct kedge_algo *algo, int64_t n_seqs,
                              const int64_t *seq_begin, const double *old_logp,
                              const double *anchor_logp,
                              struct kedge_err *err) KEDGE_MUST_CHECK;

/* KL off the advantage: advantage[n] -= kl.beta KL_n, the same estimator; with kl.in
 * advantage-future -= kl.beta times the sum of KL_u over the sequence's tokens u >= n.
 * Loss tokens alone stand in the arrays.
 * advantage (N) in and out; mean_kl out, NULL allowed: as kedge_kl_reward; most out, NULL
 * allowed: the largest amount
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

/* 1 where the anchor moves after this step, or this optimizer update where anchor.unit is
 * updates (counted from 1): anchor.kind, .eta, .period. anchor.kappa is the caller's. */
KEDGE_API int kedge_anchor_due(const struct kedge_algo *algo, int64_t step);

/* anchor <- eta anchor + (1 - eta) theta, element by element; anchor (n) in and out, fp32
 * master weights; eta in 0..1. Equal weights stay equal, and eta 0 copies.
 * errors: EINVAL.   source: Zhang & Ba 2026, arXiv 2602.04417 */
KEDGE_API int kedge_ema(float *anchor, const float *theta, int64_t n, double eta,
                        struct kedge_err *err) KEDGE_MUST_CHECK;

/* Loss of a critic at one token, and its derivative by value:
 *   1/2 max((v - G)^2, (clip(v, v_old - range, v_old + range) - G)^2)
 * dvalue, clipped (1 where the second is larger) out; NULL is allowed.   returns the loss
 * source: Schulman et al. 2017, arXiv 1707.06347, as verl computes it */
KEDGE_API double kedge_value_loss(double *dvalue, int *clipped, double value,
                                  double old_value, double returns, double range);

#ifdef __cplusplus
}
#endif

#endif
