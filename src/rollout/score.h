/* Scoring: log-probs of given tokens by the training forward pass.
 *
 * The same packed forward and head that training uses; what `score` prints and what the
 * anchor pass reads.
 */
#ifndef KG_ROLLOUT_SCORE_H
#define KG_ROLLOUT_SCORE_H

#include "base/status.h"
#include "model/rows.h"

#include <stdint.h>

struct kg_score_seq {
    const int32_t *tokens; /* (n) borrowed */
    size_t n;
    /* the first position that is wanted. The head is not run before it: there logp,
     * entropy and sum_sq are 0 and the other arrays are left alone, as for position 0 */
    size_t from;
    float temperature; /* > 0; 0 means 1 */
    /* (n,K) ids whose log-probs are wanted for position t's token; NULL for none */
    const int32_t *indices;
    float *logp; /* (n) out: logp[t] of tokens[t] given tokens[0..t); logp[0] = 0 */
    /* (n) out or NULL: of the distribution that tokens[t] was drawn from */
    float *entropy;
    float *logp_at;   /* (n,K) out or NULL */
    int32_t *top_ids; /* (n,top_k) out or NULL */
    float *top_logp;  /* (n,top_k) out or NULL */
    /* (n) out or NULL: sum_v p_v^2 of that distribution; a second run of the head */
    float *sum_sq;
};

/* Score n_seqs sequences under m in packs that rows hold; rows have room for what is
 * asked (k, top_k, sum_sq) and fit m as kg_rows_begin says.  k, top_k: widths of the
 * arrays above.
 * errors: EINVAL (empty sequence, one longer than a pack, unknown token), ENONFINITE */
kg_status kg_score(struct kg_rows *rows, const struct kg_model *m,
                   struct kg_score_seq *seqs, size_t n_seqs, int k, int top_k,
                   struct kg_err *err) KG_MUST_CHECK;

#endif
