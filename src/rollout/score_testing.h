/* A reference for tests: one sequence scored alone.
 *
 * Included by *_test.c only. If a helper fails, the test fails and prints the message of
 * the err.
 */
#ifndef KG_ROLLOUT_SCORE_TESTING_H
#define KG_ROLLOUT_SCORE_TESTING_H

#include "base/need_testing.h"
#include "rollout/score.h"

/* Scores q alone in a pack; the arguments are those of kg_score. */
static inline void score_one(const struct kg_model *m, struct kg_score_seq *q, int k,
                             int top_k)
{
    struct kg_rows_opts opts = {
        .max_tokens = (int64_t)q->n, .max_k = k, .top_k = top_k, .sum_sq = q->sum_sq};
    struct kg_rows *rows;

    NEED(kg_rows_create(&rows, m, &opts, err));
    NEED(kg_score(rows, m, q, 1, k, top_k, err));
    kg_rows_free(rows);
}

#endif
