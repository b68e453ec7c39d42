/* Numbers of a whole slab from the shards of all ranks.
 *
 * A shard is whole pieces, and a sum over a slab is the sum of its pieces in order. So
 * ranks exchange the sums of their pieces and add them in the order of a single rank.
 */
#include "model/cut.h"

#include "base/mem.h"

/* pieces: (pieces of the slab) this rank's are set.   ends: (ranks) scratch */
static kg_status gather(double *pieces, uint64_t *ends, struct kg_ranks *ranks, int64_t n,
                        struct kg_err *err)
{
    for (int r = 0; r < ranks->n; r++) {
        const struct kg_cut cut = kg_cut_of(n, r, ranks->n);
        ends[r] = (uint64_t)kg_slab_pieces(cut.first + cut.n) * sizeof *pieces;
    }
    return kg_ranks_gather(ranks, pieces, ends, "sum of squares", err);
}

static double sum_of(const double *pieces, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += pieces[i];
    return sum;
}

kg_status kg_cut_sum_squares(double *out, struct kg_ranks *ranks, int64_t n,
                             const struct kg_slab *x, const struct kg_slab *minus,
                             struct kg_err *err)
{
    kg_status status;
    if (!ranks)
        return kg_slab_sum_squares(out, x, minus, err);
    const int64_t n_pieces = kg_slab_pieces(n);
    const int64_t before = kg_slab_pieces(kg_cut_of(n, ranks->me, ranks->n).first);
    double *pieces = kg_mem_calloc((size_t)n_pieces, sizeof *pieces, "sums of pieces",
                                   err);
    uint64_t *ends = kg_mem_calloc((size_t)ranks->n, sizeof *ends, "sums of pieces", err);
    status = pieces && ends ? kg_slab_square_pieces(pieces + before, x, minus, err)
                            : KG_ENOMEM;
    status = kg_ranks_agree(ranks, status, "sum of squares", err);
    if (status == KG_OK)
        status = gather(pieces, ends, ranks, n, err);
    if (status == KG_OK)
        *out = sum_of(pieces, n_pieces);
    kg_mem_free(pieces);
    kg_mem_free(ends);
    return status;
}
