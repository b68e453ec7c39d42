/* Scoring: log-probs of given tokens by the training forward pass.
 *
 * The same packed forward and head as in training; used by `score` and the anchor pass.
 */
#ifndef KG_ROLLOUT_SCORE_H
#define KG_ROLLOUT_SCORE_H

#include "base/status.h"
#include "model/rows.h"
#include "traj/traj.h"

#include <stdint.h>

struct kg_score_seq {
    const int32_t *tokens; /* (n) borrowed */
    size_t n;
    /* first position to score. The head skips earlier ones: logp, entropy and sum_sq are
     * 0 there, and the other arrays are unchanged, as at position 0 */
    size_t from;
    float temperature; /* 0 means 1 */
    /* (n,K) ids whose log-probs are computed at position t; NULL: none */
    const int32_t *indices;
    float *logp; /* (n) out: logp[t] of tokens[t] given tokens[0..t); logp[0] = 0 */
    /* (n) out or NULL: entropy of the distribution of tokens[t] */
    float *entropy;
    float *logp_at;   /* (n,K) out or NULL */
    int32_t *top_ids; /* (n,top_k) out or NULL */
    float *top_logp;  /* (n,top_k) out or NULL */
    /* (n) out or NULL: sum_v p_v^2 of that distribution; runs the head again */
    float *sum_sq;
};

/* Scores n_seqs sequences under m, packed by rows. rows must have been created for k,
 * top_k and sum_sq, and fit m as for kg_rows_begin. k, top_k: widths of the arrays above.
 * errors: EINVAL (empty sequence, one longer than a pack, unknown token), ENONFINITE */
kg_status kg_score(struct kg_rows *rows, const struct kg_model *m,
                   struct kg_score_seq *seqs, size_t n_seqs, int k, int top_k,
                   struct kg_err *err) KG_MUST_CHECK;

/* A part of a trajectory as a sequence of a pack; tokens before the part's first MODEL
 * token may be shared. replay: with the sampler's experts, if they were recorded */
struct kg_rows_seq kg_traj_seq(const struct kg_traj *t, struct kg_traj_part part,
                               bool replay);
/* Adds a part to the pack, where it must fit, and selects the rows of its MODEL tokens,
 * at the temperature of the draw. ids: (n,width) of these tokens, as in kg_rows_want;
 * kept: (n) their sets, as in kg_rows_want_set; NULL: none.   returns n, their number */
int64_t kg_traj_want(struct kg_rows *p, const struct kg_traj *t, struct kg_traj_part part,
                     bool replay, const int32_t *ids, int width,
                     const struct kg_idset *kept);

#endif
