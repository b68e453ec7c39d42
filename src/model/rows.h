/* Rows: sequences are packed, the forward runs over them, the head is asked about the
 * positions that are wanted, and sparse gradients on its answers go back to the weights.
 *
 * One mechanism for all who read a model: training (whole sequences, there and back),
 * scoring (whole sequences), prompts and decoding (sequences continued in the cache).
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

/* What the head is asked besides lse, log-probs of targets and of ids. `{0}`: nothing. */
struct kg_rows_ask {
    bool entropy;
    bool sets;   /* log mass of the rows' sets */
    bool sum_sq; /* a second run of the head */
    bool load;   /* of experts: kg_rows_load and kg_rows_p_sum wait for nothing then */
    int top_k;   /* how many of the largest ids */
    /* exact: KL(model||anchor) or KL(anchor||model). The anchor's forward runs over the
     * same pack. */
    enum kg_rows_kl kl;
    /* borrowed until after the backward; of the same dtype, of the shape that opts
     * named */
    const struct kg_model *anchor;
};

/* Room that is taken once. The tables of cache blocks alone are as long as the sequences
 * that share a pack: theirs grows by doubling, and stays. */
struct kg_rows_opts {
    int64_t max_tokens; /* of a pack */
    int64_t max_rows;   /* wanted; 0: as many as tokens */
    int max_k;          /* most ids of a row */
    int top_k;          /* most of the largest ids */
    bool sets;          /* rows may carry sets of ids */
    bool sum_sq;
    bool experts; /* tokens may be given theirs */
    bool backward;
    bool checkpoint; /* see kg_acts_create; without backward it is always so */
    bool kl;         /* to an anchor */
    bool share;      /* what sequences begin with in common stands in a pack once */
    /* borrowed: a model of another shape, or the anchor of a KL; has activations of its
     * own. NULL: none */
    const struct kg_model *anchor;
    struct kg_kv *kv; /* borrowed: sequences are continued in this cache; or NULL */
};

struct kg_rows_pack; /* the pack and its hidden states: what a device reads */

/* How all wanted rows are drawn from. The host's. */
struct kg_rows_draws {
    const struct kg_draw *how; /* (n_rows) */
    bool truncates;            /* a row of how, at least */
    bool keeps;                /* what was kept is wanted */
    int top_k;
    float *const *logits; /* (n_rows) out, see struct kg_draws; NULL: none, and the step
                           * can be replayed */
    /* of every token of the pack, whose it is: drawn of so-and-so row of the draw begun
     * last, or -1: as it stands; NULL: all are */
    const int32_t *from;
};
/* What is found of them; where the host wants it. See struct kg_draws. */
struct kg_rows_found {
    struct kg_drawn *drawn; /* (n_rows) */
    double *lse;            /* (n_rows) */
    uint64_t *kept;         /* (n_rows, (V+63)/64); NULL where none are wanted */
    int32_t *top_ids;       /* (n_rows, top_k), as the next; NULL where that is 0 */
    float *top_logp;
};

/* The wanted rows: what is known of them here, on the host. */
struct kg_rows {
    const struct kg_model *model; /* of the present rows; borrowed */
    struct kg_rows_pack *pack;    /* owned */
    int64_t max_tokens;
    int64_t max_rows;
    int max_k, top_k;       /* as opts */
    struct kg_rows_ask ask; /* the last one */
    int64_t n_rows;
    int k; /* width of ids */

    struct kg_block block; /* owned: what follows stands in it */
    int32_t *target;       /* (max_rows) */
    float *inv_temp;       /* (max_rows) */
    int32_t *ids;          /* (max_rows, k) */
    /* (max_rows) of which the log mass is wanted, n 0: of all; NULL unless opts.sets */
    struct kg_idset *sets;

    /* answers of the head */
    double *lse;        /* (max_rows) */
    float *logp;        /* (max_rows) */
    float *entropy;     /* (max_rows) */
    float *logp_at;     /* (max_rows, k) */
    int32_t *top_ids;   /* (max_rows, ask.top_k) largest first */
    float *top_logp;    /* (max_rows, ask.top_k) */
    double *set_logp;   /* (max_rows) as sets; 0 for all ids */
    float *sum_sq;      /* (max_rows) sum_v p_v^2; NULL unless opts.sum_sq */
    float *twice;       /* (max_rows) 2 inv_temp, as sum_sq */
    double *lse_twice;  /* (max_rows) as sum_sq */
    double *kl;         /* (max_rows) of ask.kl's direction; NULL unless opts.kl */
    double *anchor_lse; /* (max_rows) as kl */

    /* gradients that the caller fills before the backward; NULL unless opts.backward */
    double *a_logp;    /* (max_rows) */
    double *a_entropy; /* (max_rows) */
    double *a_at;      /* (max_rows, k) */
    double *a_set;     /* (max_rows) dloss/dset_logp, as sets */
    double *a_kl;      /* (max_rows) as kl */
};

kg_status kg_rows_create(struct kg_rows **p, const struct kg_model *m,
                         const struct kg_rows_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
void kg_rows_free(struct kg_rows *p);
/* What they hold; m and opts.anchor may be outlines. */
struct kg_bytes kg_rows_memory(const struct kg_model *m, const struct kg_rows_opts *opts);

/* Start rows of m with k ids each, and their pack. m: the model that p was made for, one
 * of its shape and dtype, or opts.anchor. */
void kg_rows_begin(struct kg_rows *p, const struct kg_model *m, int k);
/* Start another pack: the rows wanted so far stay, with their hidden states. */
void kg_rows_next(struct kg_rows *p);
int64_t kg_rows_tokens(const struct kg_rows *p); /* of the pack */
bool kg_rows_fits(const struct kg_rows *p, size_t n_tokens);
/* Add a whole sequence.   returns the pack's row of its first token.   n_tokens must fit
 * (assert) */
int64_t kg_rows_add(struct kg_rows *p, const int32_t *tokens, size_t n);

/* A whole sequence that may begin with tokens of another one of the pack, with their
 * hidden states: the forward has the bits that it would have alone. The backward adds
 * what sequences make of a shared token in their order, before it goes on. */
struct kg_rows_seq {
    const int32_t *tokens;
    size_t n;
    size_t most;             /* tokens that may be shared, at most n - 1 */
    const uint16_t *experts; /* (n,C) given, as kg_forward has them; opts.experts; NULL:
                              * tokens choose */
};
/* How many tokens q shares with a at least, where both are in a pack of m. */
size_t kg_rows_in_common(const struct kg_model *m, const struct kg_rows_seq *a,
                         const struct kg_rows_seq *q);
/* How many tokens of q would be shared; 0 without opts.share. */
size_t kg_rows_shared(const struct kg_rows *p, const struct kg_rows_seq *q);
bool kg_rows_fits_seq(const struct kg_rows *p, const struct kg_rows_seq *q);
void kg_rows_add_seq(struct kg_rows *p, const struct kg_rows_seq *q); /* must fit */
/* The pack's row of position t of the sequence added last. */
int64_t kg_rows_at(const struct kg_rows *p, size_t t);
/* Keys that sequences of a pack may have together, where they share. */
int64_t kg_rows_max_keys(const struct kg_rows *p);
/* Tokens that the pack's sequences have beyond those that stand there. */
int64_t kg_rows_saved(const struct kg_rows *p);

/* Add tokens at positions pos, pos+1, ... of a sequence whose cache blocks are given
 * (borrowed until after the forward).   adapter: as in struct kg_pack_seq.   returns as
 * above */
int64_t kg_rows_continue(struct kg_rows *p, const int32_t *tokens, size_t n, int32_t pos,
                         struct kg_kv_tables blocks, int32_t adapter);
/* Want the log-prob of `target` (-1: of none) at the pack's row; ids of length k (-1: an
 * unused slot) or NULL for none. Where a backward follows, only what sequences share is
 * wanted more than once: gradients are added in the order of wanting.   returns its
 * index */
int64_t kg_rows_want(struct kg_rows *p, int64_t row, int32_t target, float inv_temp,
                     const int32_t *ids);
/* The mass of this set at the index too; its data is borrowed until after the
 * backward. */
void kg_rows_want_set(struct kg_rows *p, int64_t index, const struct kg_idset *set);
/* Rows from n on are wanted no more. */
void kg_rows_forget(struct kg_rows *p, int64_t n);

/* Hidden states of the wanted rows. keep: a backward follows. */
kg_status kg_rows_forward(struct kg_rows *p, bool keep, struct kg_err *err) KG_MUST_CHECK;
/* (n,C) out: the experts that tokens [row, row+n) of the pack had in the last forward, or
 * draw. */
kg_status kg_rows_experts(uint16_t *out, const struct kg_rows *p, int64_t row, int64_t n,
                          struct kg_err *err) KG_MUST_CHECK;
/* kg_acts_load, kg_acts_balance and kg_acts_p_sum of the model that p was made for. */
kg_status kg_rows_load(int64_t *counts, const struct kg_rows *p,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_rows_balance(const struct kg_rows *p, const float *balance,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_rows_p_sum(float *p_sum, const struct kg_rows *p,
                        struct kg_err *err) KG_MUST_CHECK;
/* Fills lse, logp, logp_at and what `ask` names (NULL: nothing more). */
kg_status kg_rows_ask(struct kg_rows *p, const struct kg_rows_ask *ask,
                      struct kg_err *err) KG_MUST_CHECK;
/* Rows [first, first+n) alone, into the caller's arrays: lse, logp, the top_k largest,
 * logits. No backward. */
kg_status kg_rows_read(const struct kg_head_out *out, const struct kg_rows *p,
                       int64_t first, int64_t n, int top_k,
                       struct kg_err *err) KG_MUST_CHECK;
/* Whether a draw of m can be launched as one: the backend replays, and no operation waits
 * for weights of the host. */
bool kg_rows_replays(const struct kg_model *m);
/* Whether one can be begun before the one before it has ended. */
bool kg_rows_feeds(const struct kg_model *m);
/* The forward and a token of every wanted row, all of this pack (kg_op_draw), where the
 * backend draws: one copy up, one down, and no wait for either, but where logits are
 * wanted. Another pack may follow at once, and, where kg_rows_feeds, one more draw, to
 * whose tokens `from` refers. They end in the order in which they were begun. */
kg_status kg_rows_draw_begin(const struct kg_rows_draws *d, const struct kg_rows *p,
                             struct kg_err *err) KG_MUST_CHECK;
/* Waits for the first that has not ended. */
kg_status kg_rows_draw_end(const struct kg_rows_found *to, const struct kg_rows *p,
                           struct kg_err *err) KG_MUST_CHECK;
/* All that were begun end, and what they found is nobody's; after a failure, too. */
kg_status kg_rows_draw_drop(struct kg_rows *p, struct kg_err *err) KG_MUST_CHECK;
/* Adds to grads from a_logp, a_at (k > 0), a_entropy (when use_entropy) and, where the
 * head was asked for them, a_set and a_kl. The forward was to keep, and nothing has been
 * wanted since (assert); the rows are of one pack.
 * errors: EINVAL (the head was not asked about just these rows, or not for the entropy
 * that use_entropy takes) */
kg_status kg_rows_backward(struct kg_rows *p, float *grads, bool use_entropy,
                           struct kg_err *err) KG_MUST_CHECK;
/* The same in the stages of kg_model_backward_stage, of which 0 begins with the head. The
 * gradient of a head that is the embedding's table is the last stage's, for which the
 * head runs once more; with whole grads it is stage 0's. */
kg_status kg_rows_backward_stage(struct kg_rows *p, struct kg_grads grads, int32_t stage,
                                 bool use_entropy, struct kg_err *err) KG_MUST_CHECK;

/* Lay the hidden state of a wanted row aside, and want it again among other rows, before
 * the first pack's or behind kg_rows_next.   returns its index */
kg_status kg_rows_hold(struct kg_rows *p, int64_t index,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_rows_recall(int64_t *index, struct kg_rows *p, float inv_temp,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
