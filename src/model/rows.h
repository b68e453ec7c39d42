/* Rows: functions that pack sequences, run the forward, run the head at selected
 * positions, and propagate sparse gradients of the head's outputs back to the weights.
 *
 * Used by training (whole sequences, forward and backward), scoring (whole sequences),
 * prompts and decoding (sequences continued in the cache).
 *
 *     kg_rows_begin(p, model, k);
 *     row = kg_rows_add(p, tokens, n);
 *     kg_rows_want(p, row + t - 1, tokens[t], inv_temp, ids);
 *     KG_TRY(kg_rows_forward(p, true, err));
 *     KG_TRY(kg_rows_ask(p, &ask, err));
 *     ... reads p->logp[i], fills p->a_logp[i] ...
 *     KG_TRY(kg_rows_backward(p, grads, false, err));
 */
#ifndef KG_MODEL_ROWS_H
#define KG_MODEL_ROWS_H

#include "base/columns.h"
#include "model/model.h"

#include <stdbool.h>
#include <stdint.h>

enum kg_rows_kl { KG_ROWS_KL_NONE, KG_ROWS_KL_REVERSE, KG_ROWS_KL_FORWARD };

/* Outputs of the head in addition to lse and log-probs of targets and ids. {0}: none. */
struct kg_rows_ask {
    bool entropy;
    bool sets;   /* log mass of the rows' sets */
    bool sum_sq; /* runs the head a second time */
    /* models with experts: start copying the router's statistics (tokens per expert, sums
     * of probabilities) to the host before the head runs, so that kg_rows_load and
     * kg_rows_p_sum need not wait */
    bool load;
    int top_k; /* number of top ids */
    /* exact KL(model||anchor) or KL(anchor||model). The anchor's forward runs over the
     * same pack. */
    enum kg_rows_kl kl;
    /* borrowed until after the backward; with the dtype and shape of opts.anchor */
    const struct kg_model *anchor;
};

/* Capacities, allocated once. Only the tables of cache blocks and the results of draws
 * grow (by doubling), because their sizes depend on the pack. */
struct kg_rows_opts {
    int64_t max_tokens; /* tokens per pack */
    int64_t max_rows;   /* selected rows; 0: max_tokens */
    int max_k;          /* ids per row */
    int top_k;          /* number of top ids */
    bool sets;          /* rows may have sets of ids */
    bool sum_sq;
    bool experts; /* tokens may have preset experts */
    bool backward;
    bool checkpoint; /* as in kg_acts_create; implied if `backward` is false */
    bool kl;         /* exact KL to an anchor */
    bool share;      /* a pack stores common prefixes of sequences once */
    /* borrowed: a model of another shape, or the anchor of a KL; gets its own
     * activations. NULL: none */
    const struct kg_model *anchor;
    struct kg_kv *kv; /* borrowed: cache of continued sequences; or NULL */
};

struct kg_rows_pack; /* the pack and its hidden states in backend memory */

/* How to draw from all selected rows. On the host. */
struct kg_rows_draws {
    const struct kg_draw *how; /* (n_rows) */
    bool truncates;            /* some row truncates */
    bool keeps;                /* kept sets are needed */
    int top_k;
    /* (n_rows) out, see struct kg_draws; NULL: none, and the step can be replayed */
    float *const *logits;
    /* for every token of the pack, the row of the previous draw whose token replaces it,
     * or -1; NULL: no replacement */
    const int32_t *from;
};
/* Results of a draw, in host memory. See struct kg_draws. */
struct kg_rows_found {
    struct kg_drawn *drawn; /* (n_rows) */
    double *lse;            /* (n_rows) */
    uint64_t *kept;         /* (n_rows, (V+63)/64); NULL: not needed */
    int32_t *top_ids;       /* (n_rows, top_k), as top_logp; NULL if top_k is 0 */
    float *top_logp;
};

/* The selected rows and their values on the host. */
struct kg_rows {
    const struct kg_model *model; /* model of the current rows; borrowed */
    struct kg_rows_pack *pack;    /* owned */
    int64_t max_tokens;
    int64_t max_rows;
    int max_k, top_k;       /* as in opts */
    struct kg_rows_ask ask; /* the last one */
    int64_t n_rows;
    int k; /* width of ids */

    struct kg_block block; /* owned: holds the arrays below */
    int32_t *target;       /* (max_rows) */
    float *inv_temp;       /* (max_rows) */
    int32_t *ids;          /* (max_rows, k) */
    /* (max_rows) sets whose log mass is computed, n = 0: all ids; NULL unless
     * opts.sets */
    struct kg_idset *sets;

    /* outputs of the head */
    double *lse;        /* (max_rows) */
    float *logp;        /* (max_rows) */
    float *entropy;     /* (max_rows) */
    float *logp_at;     /* (max_rows, k) */
    int32_t *top_ids;   /* (max_rows, ask.top_k) largest first */
    float *top_logp;    /* (max_rows, ask.top_k) */
    double *set_logp;   /* (max_rows) 0 for all ids; NULL unless opts.sets */
    float *sum_sq;      /* (max_rows) sum_v p_v^2; NULL unless opts.sum_sq */
    float *twice;       /* (max_rows) 2 inv_temp; NULL unless opts.sum_sq */
    double *lse_twice;  /* (max_rows) NULL unless opts.sum_sq */
    double *kl;         /* (max_rows) KL in ask.kl's direction; NULL unless opts.kl */
    double *anchor_lse; /* (max_rows) as kl */

    /* gradients, filled by the caller before the backward; NULL unless opts.backward */
    double *a_logp;    /* (max_rows) */
    double *a_entropy; /* (max_rows) */
    double *a_at;      /* (max_rows, k) */
    double *a_set;     /* (max_rows) dloss/dset_logp; NULL unless opts.sets */
    double *a_kl;      /* (max_rows) as kl */
};

kg_status kg_rows_create(struct kg_rows **p, const struct kg_model *m,
                         const struct kg_rows_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
void kg_rows_free(struct kg_rows *p);
/* Memory of rows; m and opts.anchor may be outlines. */
struct kg_bytes kg_rows_memory(const struct kg_model *m, const struct kg_rows_opts *opts);

/* Starts new rows of m with k ids each, and a new pack. m: the model that p was created
 * for, one of its shape and dtype, or opts.anchor. */
void kg_rows_begin(struct kg_rows *p, const struct kg_model *m, int k);
/* Starts another pack; the rows selected so far stay, with their hidden states. */
void kg_rows_next(struct kg_rows *p);
int64_t kg_rows_tokens(const struct kg_rows *p); /* number of tokens in the pack */
/* Adds a whole sequence, which must fit (assert).   returns the pack's row of its first
 * token */
int64_t kg_rows_add(struct kg_rows *p, const int32_t *tokens, size_t n);

/* A whole sequence that may share the tokens and hidden states of a prefix with another
 * sequence of the pack. The forward has the same bits as without sharing. The backward
 * first adds the gradients of a shared token, in the order of its sequences. */
struct kg_rows_seq {
    const int32_t *tokens;
    size_t n;
    size_t most; /* limit of shared tokens, at most n - 1 */
    /* (n,C) preset, as in kg_forward; needs opts.experts; NULL: the router chooses */
    const uint16_t *experts;
};
/* Lower bound of the tokens that q shares with a if both are in a pack of m. */
size_t kg_rows_in_common(const struct kg_model *m, const struct kg_rows_seq *a,
                         const struct kg_rows_seq *q);
/* Number of tokens of q that would be shared; 0 without opts.share. */
size_t kg_rows_shared(const struct kg_rows *p, const struct kg_rows_seq *q);
bool kg_rows_fits_seq(const struct kg_rows *p, const struct kg_rows_seq *q);
void kg_rows_add_seq(struct kg_rows *p, const struct kg_rows_seq *q); /* must fit */
/* The pack's row of position t of the last added sequence. */
int64_t kg_rows_at(const struct kg_rows *p, size_t t);
/* Maximum number of keys (kg_pack.n_keys) of a pack with shared prefixes. */
int64_t kg_rows_max_keys(const struct kg_rows *p);
/* Number of tokens that sharing saves in the pack. */
int64_t kg_rows_saved(const struct kg_rows *p);

/* Adds tokens at positions pos, pos+1, ... of a sequence with the given cache blocks
 * (borrowed until after the forward). adapter: as in struct kg_pack_seq.   returns as
 * kg_rows_add */
int64_t kg_rows_continue(struct kg_rows *p, const int32_t *tokens, size_t n, int32_t pos,
                         struct kg_kv_tables blocks, int32_t adapter);
/* Selects a row of the pack for the log-prob of `target` (-1: none) and of k ids (-1:
 * unused slot; NULL: none) at 1/temperature inv_temp. Before a backward only shared rows
 * may be selected more than once; gradients are added in the order of selection.
 * returns the index of the selected row */
int64_t kg_rows_want(struct kg_rows *p, int64_t row, int32_t target, float inv_temp,
                     const int32_t *ids);
/* Also computes the log mass of `set` for the selected row `index`. The set's data is
 * borrowed until after the backward. */
void kg_rows_want_set(struct kg_rows *p, int64_t index, const struct kg_idset *set);
/* Drops the selected rows from n on; after a kept forward they have no gradient. */
void kg_rows_forget(struct kg_rows *p, int64_t n);

/* Computes hidden states of the selected rows. keep: for a backward. */
kg_status kg_rows_forward(struct kg_rows *p, bool keep, struct kg_err *err) KG_MUST_CHECK;
/* (n,C) out: the experts of tokens [row, row+n) of the pack in the last forward or
 * draw. */
kg_status kg_rows_experts(uint16_t *out, const struct kg_rows *p, int64_t row, int64_t n,
                          struct kg_err *err) KG_MUST_CHECK;
/* kg_acts_load, kg_acts_balance and kg_acts_p_sum of the model that p was created for. */
kg_status kg_rows_load(int64_t *counts, const struct kg_rows *p,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_rows_balance(const struct kg_rows *p, const float *balance,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_rows_p_sum(float *p_sum, const struct kg_rows *p,
                        struct kg_err *err) KG_MUST_CHECK;
/* Computes lse, logp, logp_at and the outputs in `ask` (NULL: none). */
kg_status kg_rows_ask(struct kg_rows *p, const struct kg_rows_ask *ask,
                      struct kg_err *err) KG_MUST_CHECK;
/* Runs the head for selected rows [first, first+n) only. out: the caller's arrays of lse,
 * logp, top_k ids, logits. A backward needs kg_rows_ask instead. */
kg_status kg_rows_read(const struct kg_head_out *out, const struct kg_rows *p,
                       int64_t first, int64_t n, int top_k,
                       struct kg_err *err) KG_MUST_CHECK;
/* Whether a draw of m can be launched as a unit: the backend can replay it, and no
 * operation waits for host weights. */
bool kg_rows_replays(const struct kg_model *m);
/* Whether a draw of m can be begun before the previous one has ended. */
bool kg_rows_feeds(const struct kg_model *m);
/* Starts a forward of the pack and a draw from every selected row (kg_op_draw), which the
 * backend must have: one copy to the backend and one back, without waiting, unless logits
 * are needed. With kg_rows_feeds a second draw may be begun before this one has ended,
 * and its `from` may refer to this draw's tokens. Draws end in the order begun. */
kg_status kg_rows_draw_begin(const struct kg_rows_draws *d, const struct kg_rows *p,
                             struct kg_err *err) KG_MUST_CHECK;
/* Waits for the oldest draw. */
kg_status kg_rows_draw_end(const struct kg_rows_found *to, const struct kg_rows *p,
                           struct kg_err *err) KG_MUST_CHECK;
/* Waits for all draws and discards them; also after a failure. */
kg_status kg_rows_draw_drop(struct kg_rows *p, struct kg_err *err) KG_MUST_CHECK;
/* Adds to grads (n_elements) the gradient given by a_logp, a_at (k > 0), a_entropy (if
 * use_entropy) and, if set_logp and kl were computed, a_set and a_kl. The last forward
 * must have had `keep`, with no row selected since, and all rows in one pack (assert).
 * errors: EINVAL (the last run of the head had other rows, or lacked the entropy for
 * use_entropy) */
kg_status kg_rows_backward(struct kg_rows *p, float *grads, bool use_entropy,
                           struct kg_err *err) KG_MUST_CHECK;
/* kg_rows_backward in stages, as kg_model_backward_stage; stage 0 begins with the head.
 * The gradient of a tied head belongs to the last stage, which runs the head again; with
 * whole grads it belongs to stage 0. */
kg_status kg_rows_backward_stage(struct kg_rows *p, struct kg_grads grads, int32_t stage,
                                 bool use_entropy, struct kg_err *err) KG_MUST_CHECK;

/* kg_rows_hold saves the hidden state of one selected row. kg_rows_recall selects it
 * again, before any row of the current pack; *index: its index among the selected rows */
kg_status kg_rows_hold(struct kg_rows *p, int64_t index,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_rows_recall(int64_t *index, struct kg_rows *p, float inv_temp,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
