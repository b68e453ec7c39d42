/* Samples one token from one row of logits.
 *
 * The token is a function of (row, parameters, u): one uniform number walks an inverse
 * CDF over the ids in a fixed order, with sums in double. The head gives the row, already
 * divided by the temperature, and its log sum exp. The recorded log-prob is the head's,
 * of the full softmax, even under truncation.
 */
#ifndef KG_ROLLOUT_SAMPLER_H
#define KG_ROLLOUT_SAMPLER_H

#include "base/idset.h"
#include "base/status.h"
#include "rollout/rollout.h"
#include "tensor/backend.h"

#include <stdbool.h>
#include <stdint.h>

/* One row from the head. */
struct kg_sampler_row {
    const float *z;      /* (V) logits over temperature; borrowed */
    int32_t vocab;       /* V */
    double lse;          /* log sum_v exp z_v */
    const int32_t *text; /* (n_text) prompt and completion so far; for penalties */
    size_t n_text;
    size_t n_prompt; /* prompt tokens in text */
};

/* Scratch for truncation and adjustments: for one thread, reused between rows. */
struct kg_sampler_scratch {
    struct kg_draw_candidate *candidates; /* (V) owned; for truncation */
    double *weights;                      /* (V) */
    float *adjusted;                      /* (V) owned; for adjustments */
    int32_t *times;                       /* (V) zero between rows */
    uint64_t *words; /* ((V+63)/64) owned, zero between rows: for recording kept ids */
};
/* Allocates what s needs and is missing. {0}: nothing allocated */
kg_status kg_sampler_scratch_grow(struct kg_sampler_scratch *scratch,
                                  const struct kg_sampling *s, int32_t vocab,
                                  struct kg_err *err) KG_MUST_CHECK;
void kg_sampler_scratch_release(struct kg_sampler_scratch *scratch);

struct kg_sampler_pick {
    int32_t token;
    float logp;
    int32_t n_kept; /* number of ids kept by truncation; 0: the whole vocabulary */
    float cut;      /* -log of their mass under the full softmax */
    /* the kept ids; n is 0 if all were kept or recording is off; its data is in room */
    struct kg_idset kept;
    uint8_t *room; /* owned (capacity) */
    size_t capacity;
};
void kg_sampler_pick_release(struct kg_sampler_pick *pick);

/* Checks the ranges of temperature, top_p, top_k, min_p, max_tokens, stops and adjust,
 * except the ids in adjust.   errors: EINVAL */
kg_status kg_sampler_check(const struct kg_sampling *s, struct kg_err *err) KG_MUST_CHECK;
/* Whether sampling may drop ids of the vocabulary. */
bool kg_sampler_truncates(const struct kg_sampling *s, int32_t vocab);

/* Draws a token. At temperature 0 it is that of the largest logit, ties by the smaller
 * id, and u is ignored. scratch: NULL allowed without truncation and adjustments; u: in
 * [0, 1)   errors: ENONFINITE (lse), ENOMEM (for kept ids) */
kg_status kg_sampler_draw(struct kg_sampler_pick *pick,
                          struct kg_sampler_scratch *scratch,
                          const struct kg_sampler_row *row, const struct kg_sampling *s,
                          double u, struct kg_err *err) KG_MUST_CHECK;
/* kg_sampler_draw for rows that the backend samples (kg_op_draw): the parameters, and the
 * conversion of the result. kept: bits of the row if recorded, else NULL
 * errors: as above */
struct kg_draw kg_sampler_draw_of(const struct kg_sampling *s, double u);
kg_status kg_sampler_take(struct kg_sampler_pick *pick, const struct kg_drawn *drawn,
                          double lse, const uint64_t *kept, int32_t vocab,
                          struct kg_err *err) KG_MUST_CHECK;
/* Computes the ids that a draw from the row would keep: n_kept, cut and kept of the pick,
 * even without record_kept; adjustments are ignored.   errors: as above */
kg_status kg_sampler_keep(struct kg_sampler_pick *pick,
                          struct kg_sampler_scratch *scratch,
                          const struct kg_sampler_row *row, const struct kg_sampling *s,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
