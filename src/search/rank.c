/* See rank.h. */
#include "search/rank.h"

enum { RANK_CONSTANT = 60 };

const char *const kg_fusion_names[KG_FUSIONS + 1] = {"rank", "score", NULL};

void kg_rank_keep(struct kg_candidate *best, size_t *n, size_t max, double score,
                  int64_t row)
{
    size_t at = *n;

    if (at == max) {
        const struct kg_candidate *last = &best[at - 1];

        if (score < last->score || (score == last->score && row > last->row))
            return;
        at--;
    } else {
        ++*n;
    }
    while (at > 0 && (best[at - 1].score < score ||
                      (best[at - 1].score == score && best[at - 1].row > row))) {
        best[at] = best[at - 1];
        at--;
    }
    best[at] = (struct kg_candidate){score, row};
}

static double share(const struct kg_ranking *r, size_t i, enum kg_fusion fusion)
{
    const double most = r->at[0].score, least = r->at[r->n - 1].score;

    if (fusion == KG_FUSION_RANK)
        return r->weight / (double)(RANK_CONSTANT + i + 1);
    return r->weight * (most > least ? (r->at[i].score - least) / (most - least) : 1);
}

/* The index of a passage in the ranking; n if it is not in it. */
static size_t find(const struct kg_ranking *r, int64_t row)
{
    size_t i = 0;

    while (i < r->n && r->at[i].row != row)
        i++;
    return i;
}

size_t kg_rank_fuse(struct kg_candidate *best, size_t max, const struct kg_ranking *a,
                    const struct kg_ranking *b, enum kg_fusion fusion)
{
    size_t n = 0;

    for (size_t i = 0; i < a->n; i++) {
        const size_t other = find(b, a->at[i].row);
        double score = share(a, i, fusion);

        if (other < b->n)
            score += share(b, other, fusion);
        kg_rank_keep(best, &n, max, score, a->at[i].row);
    }
    for (size_t i = 0; i < b->n; i++)
        if (find(a, b->at[i].row) == a->n)
            kg_rank_keep(best, &n, max, share(b, i, fusion), b->at[i].row);
    return n;
}
