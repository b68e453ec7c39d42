/* One micro-batch through the machine: whole sequences packed, hidden states of the
 * wanted rows, their log-probs, and the way back from sparse gradients on log-probs to
 * the gradients of the weights.
 *
 * SFT and RL differ only in what they put between forward and backward.
 */
#ifndef KG_TRAIN_PASS_H
#define KG_TRAIN_PASS_H

#include "base/status.h"
#include "model/model.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_pass {
    const struct kg_model *model; /* borrowed */
    struct kg_acts *acts;         /* owned */
    int64_t max_tokens;

    /* the pack being built */
    int32_t *tokens; /* (max_tokens) owned, as all below */
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

    /* results of the forward */
    double *lse;    /* (max_tokens) */
    float *logp;    /* (max_tokens) */
    float *entropy; /* (max_tokens) */
    float *logp_at; /* (max_tokens, k) */

    /* gradients that the caller fills before the backward */
    float *a_logp;    /* (max_tokens) */
    float *a_entropy; /* (max_tokens) */
    float *a_at;      /* (max_tokens, k) */

    void *hidden_rows;   /* (max_tokens, D) ct */
    float *dhidden_rows; /* (max_tokens, D) */
    float *dhidden;      /* (max_tokens, D) */
};

/* Room for packs of max_tokens tokens and up to max_k ids a row. checkpoint: see
 * kg_acts_create. */
kg_status kg_pass_create(struct kg_pass **p, const struct kg_model *m, int64_t max_tokens,
                         int max_k, bool checkpoint, struct kg_err *err) KG_MUST_CHECK;
void kg_pass_free(struct kg_pass *p);
uint64_t kg_pass_bytes(const struct kg_model_config *c, enum kg_dtype ct,
                       int64_t max_tokens, int max_k, bool checkpoint);

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

/* Fills lse, logp, logp_at and, when asked, entropy. */
kg_status kg_pass_forward(struct kg_pass *p, bool want_entropy,
                          struct kg_err *err) KG_MUST_CHECK;
/* Adds to grads from a_logp, a_at (k > 0) and a_entropy (when use_entropy). */
kg_status kg_pass_backward(struct kg_pass *p, float *grads, bool use_entropy,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
