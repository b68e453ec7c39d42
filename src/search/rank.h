/* Rankings: collects the best passages in a list, and fuses two lists.
 *
 * A list is ordered by score, then by position in the corpus, so it does not depend on
 * the order of its entries' arrival.
 */
#ifndef KG_SEARCH_RANK_H
#define KG_SEARCH_RANK_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct kg_candidate {
    double score;
    int64_t row; /* row of the passage, from 1 */
};

/* Adds an entry to best (max), the list of the `max` best ones; *n: its length so far */
void kg_rank_keep(struct kg_candidate *best, size_t *n, size_t max, double score,
                  int64_t row);

struct kg_ranking {
    const struct kg_candidate *at; /* (n) best first */
    size_t n;
    double weight;
};
/* Fusion of two rankings:
 *   RANK   sum over the rankings with this passage of weight / (60 + position from 1)
 *   SCORE  the same sum, of weight (score - min) / (max - min); the quotient is 1 if all
 *          scores of the ranking are equal
 * source: Cormack, Clarke and Buettcher 2009 (RANK) */
enum kg_fusion { KG_FUSION_RANK, KG_FUSION_SCORE, KG_FUSIONS };
extern const char *const kg_fusion_names[KG_FUSIONS + 1]; /* ends with NULL */
/* best (max) out; returns the number of entries */
size_t kg_rank_fuse(struct kg_candidate *best, size_t max, const struct kg_ranking *a,
                    const struct kg_ranking *b, enum kg_fusion fusion);

#endif
