/* One micro-batch through the machine: whole sequences packed, hidden states of the
 * wanted rows, their log-probs, and the way back from sparse gradients on log-probs to
 * the gradients of the weights.
 *
 * SFT and RL differ only in what they put between forward and backward. An exact KL needs
 * the whole vocabulary of a second model at every wanted row: its forward runs here, on
 * the same pack, and only its hidden states are held.
 */
#ifndef KG_TRAIN_PASS_H
#define KG_TRAIN_PASS_H

#include "base/columns.h"
#include "model/model.h"

#include <stdbool.h>
#include <stdint.h>

enum kg_pass_kl { KG_PASS_KL_NONE, KG_PASS_KL_REVERSE, KG_PASS_KL_FORWARD };

/* What a forward is asked for besides log-probs. `{0}`: nothing, and a backward
 * follows. */
struct kg_pass_ask {
    bool entropy;
    bool no_backward;   /* activations serve as scratch */
    enum kg_pass_kl kl; /* KL(model||anchor) or KL(anchor||model), exact */
    /* borrowed until after the backward; of the same dtype, of the shape that opts
     * named */
    const struct kg_model *anchor;
};

/* Room that is taken once. */
struct kg_pass_opts {
    int64_t max_tokens; /* of a pack */
    int max_k;          /* most ids of a row */
    bool sets;          /* rows may carry sets of ids */
    bool checkpoint;    /* see kg_acts_create */
    /* borrowed: asks may name an anchor of this one's shape; NULL: none */
    const struct kg_model *anchor;
};

struct kg_pass {
    const struct kg_model *model; /* borrowed */
    struct kg_acts *acts;         /* owned */
    struct kg_acts *anchor_acts;  /* owned; NULL unless opts.anchor */
    int64_t max_tokens;
    struct kg_pass_ask ask; /* of the last forward */

    struct kg_block block; /* owned: what follows stands in it */
    /* the pack being built */
    int32_t *tokens; /* (max_tokens) */
    int32_t *pos;
    struct kg_attn_seq *seqs; /* (max_tokens) */
    int64_t n_tokens;
    int32_t n_seqs;

    /* the wanted rows: row r of the pack predicts target[r] */
    int32_t *rows;   /* (max_tokens) */
    int32_t *target; /* (max_tokens) */
    float *inv_temp; /* (max_tokens) */
    int64_t n_rows;
    int k;        /* width of ids, set by kg_pass_begin */
    int32_t *ids; /* (max_tokens, k) */
    /* (max_tokens) of which the log mass is wanted, n 0: of all; NULL unless opts.sets */
    struct kg_idset *sets;

    /* results of the forward */
    double *lse;      /* (max_tokens) */
    float *logp;      /* (max_tokens) */
    float *entropy;   /* (max_tokens) */
    float *logp_at;   /* (max_tokens, k) */
    double *set_logp; /* (max_tokens) as sets; 0 for all ids */
    double *kl; /* (max_tokens) of ask.kl's direction; NULL without room for an anchor */
    double *anchor_lse; /* (max_tokens) as kl */

    /* gradients that the caller fills before the backward */
    double *a_logp;    /* (max_tokens) */
    double *a_entropy; /* (max_tokens) */
    double *a_at;      /* (max_tokens, k) */
    double *a_set;     /* (max_tokens) dloss/dset_logp, as sets */
    double *a_kl;      /* (max_tokens) as kl */

    char *hidden_rows;   /* (max_tokens, D) ct */
    char *anchor_rows;   /* (max_tokens, D of the anchor) ct, as kl */
    float *dhidden_rows; /* (max_tokens, D) */
    float *dhidden;      /* (max_tokens, D) */
};

kg_status kg_pass_create(struct kg_pass **p, const struct kg_model *m,
                         const struct kg_pass_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
void kg_pass_free(struct kg_pass *p);
uint64_t kg_pass_bytes(const struct kg_model_config *c, enum kg_dtype ct,
                       const struct kg_pass_opts *opts);

/* Start a pack whose rows carry k ids each. */
void kg_pass_begin(struct kg_pass *p, int k);
bool kg_pass_fits(const struct kg_pass *p, size_t n_tokens);
/* Add a whole sequence.   returns the row of its first token.   n_tokens must fit
 * (assert) */
int64_t kg_pass_add(struct kg_pass *p, const int32_t *tokens, size_t n);
/* Want the log-prob of `target` at pack row `row`; ids of length k or NULL when k is 0.
 * returns its index */
int64_t kg_pass_want(struct kg_pass *p, int64_t row, int32_t target, float inv_temp,
                     const int32_t *ids);
/* The mass of this set at the index too; its data is borrowed until after the
 * backward. */
void kg_pass_want_set(struct kg_pass *p, int64_t index, const struct kg_idset *set);

/* Fills lse, logp, logp_at and what `ask` names (NULL: nothing more). */
kg_status kg_pass_forward(struct kg_pass *p, const struct kg_pass_ask *ask,
                          struct kg_err *err) KG_MUST_CHECK;
/* Adds to grads from a_logp, a_at (k > 0), a_entropy (when use_entropy), a_set (where
 * rows may carry sets) and, where the forward was asked for a KL, a_kl. */
kg_status kg_pass_backward(struct kg_pass *p, float *grads, bool use_entropy,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
