/* Lists of the best: keeping one while scores come, and making one of two.
 *
 * A list is in order of score, and of place in the corpus where scores are equal, so it
 * is the same however its entries came.
 */
#ifndef KG_SEARCH_RANK_H
#define KG_SEARCH_RANK_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct kg_candidate {
    double score;
    int64_t row; /* of the passage, from 1 */
};

/* Keep the `max` best of all that were given.   best (max); *n of them are there */
void kg_rank_keep(struct kg_candidate *best, size_t *n, size_t max, double score,
                  int64_t row);

struct kg_ranking {
    const struct kg_candidate *at; /* (n) best first */
    size_t n;
    double weight;
};
/* Where two rankings are one:
 *   RANK   sum over rankings that have it   weight / (60 + place from 1)
 *   SCORE  the same of   weight (score - least) / (greatest - least),   1 where all are
 *          equal
 * source: Cormack, Clarke and Buettcher 2009 (RANK) */
enum kg_fusion { KG_FUSION_RANK, KG_FUSION_SCORE, KG_FUSIONS };
extern const char *const kg_fusion_names[KG_FUSIONS + 1]; /* ends with NULL */
/* best (max) out; returns how many of it are there */
size_t kg_rank_fuse(struct kg_candidate *best, size_t max, const struct kg_ranking *a,
                    const struct kg_ranking *b, enum kg_fusion fusion);

#endif
