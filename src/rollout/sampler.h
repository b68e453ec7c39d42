/* Sampling one token from one row of logits.
 *
 * The token is a function of (row, parameters, u) alone: one uniform number walks an
 * inverse CDF over the ids in a fixed order, with sums in double. The row comes from the
 * head, already divided by the temperature, together with its log sum exp; the log-prob
 * that is recorded is the head's, of the full softmax, whatever truncation drew the
 * token.
 */
#ifndef KG_ROLLOUT_SAMPLER_H
#define KG_ROLLOUT_SAMPLER_H

#include "base/idset.h"
#include "base/status.h"
#include "rollout/rollout.h"
#include "tensor/backend.h"

#include <stdbool.h>
#include <stdint.h>

/* One row as the head returned it. */
struct kg_sampler_row {
    const float *z;      /* (V) logits over temperature; borrowed */
    int32_t vocab;       /* V */
    double lse;          /* log sum_v exp z_v */
    const int32_t *text; /* (n_text) prompt and answer so far; for penalties */
    size_t n_text;
    size_t n_prompt; /* tokens of text before the answer */
};

/* Room for sampling that truncates or adjusts: for one thread, reused from row to row. */
struct kg_sampler_scratch {
    struct kg_draw_candidate *candidates; /* (V) owned, as the next: to truncate */
    double *weights;                      /* (V) */
    float *adjusted;                      /* (V) owned, as the next: to adjust */
    int32_t *times;                       /* (V) zeros between two rows */
    uint64_t
        *words; /* ((V+63)/64) owned, zeros between two rows: to record what is kept */
};
/* Make what s needs and is not there yet.   {0}: nothing is */
kg_status kg_sampler_scratch_grow(struct kg_sampler_scratch *scratch,
                                  const struct kg_sampling *s, int32_t vocab,
                                  struct kg_err *err) KG_MUST_CHECK;
void kg_sampler_scratch_release(struct kg_sampler_scratch *scratch);

struct kg_sampler_pick {
    int32_t token;
    float logp;
    int32_t n_kept; /* ids that truncation kept; 0: all of the vocabulary */
    float cut;      /* -log of the mass that they have of the full softmax */
    /* the ids, n 0 where all were or sampling does not ask for them; data lies in room */
    struct kg_idset kept;
    uint8_t *room; /* owned (capacity) */
    size_t capacity;
};
void kg_sampler_pick_release(struct kg_sampler_pick *pick);

/* Ranges of the sampling parameters (temperature, top_p, top_k, min_p, max_tokens, stops,
 * adjust, its ids left out).
 * errors: EINVAL */
kg_status kg_sampler_check(const struct kg_sampling *s, struct kg_err *err) KG_MUST_CHECK;
/* Whether sampling keeps less than the vocabulary. */
bool kg_sampler_truncates(const struct kg_sampling *s, int32_t vocab);

/* Draw a token.   scratch NULL allowed when nothing is truncated or adjusted; u in [0, 1)
 * temperature 0: the largest logit, ties by the smaller id; u is not looked at.
 * errors: ENONFINITE (lse), ENOMEM (room for what is kept) */
kg_status kg_sampler_draw(struct kg_sampler_pick *pick,
                          struct kg_sampler_scratch *scratch,
                          const struct kg_sampler_row *row, const struct kg_sampling *s,
                          double u, struct kg_err *err) KG_MUST_CHECK;
/* The same of a row that the backend draws from (kg_op_draw): what it is to do, and what
 * it did.   kept: the row's bits where they are recorded, else NULL
 * errors: as above */
struct kg_draw kg_sampler_draw_of(const struct kg_sampling *s, double u);
kg_status kg_sampler_take(struct kg_sampler_pick *pick, const struct kg_drawn *drawn,
                          double lse, const uint64_t *kept, int32_t vocab,
                          struct kg_err *err) KG_MUST_CHECK;
/* What a draw from the row would keep: n_kept, cut and kept of the pick, whatever
 * record_kept says. It depends on row and parameters alone.   errors: as above */
kg_status kg_sampler_keep(struct kg_sampler_pick *pick,
                          struct kg_sampler_scratch *scratch,
                          const struct kg_sampler_row *row, const struct kg_sampling *s,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
