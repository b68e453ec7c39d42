/* The settings of the score.
 *
 * A setting that was not given is -1, which no setting can be, so that what a caller
 * asks for can be laid over what an index was built with, and that over the defaults,
 * by one rule. The defaults are a choice by measurement on three corpora at once: the
 * best values of each differ, and a setting that is best on one of them only was not
 * taken.
 */
#include "search/index.h"

/* Chosen on Cranfield, joined_multihop and wiki_passages together (docs/search.md). */
const struct kg_bm25 kg_bm25_default = {
    .k1 = 1.2, .b = 0.55, .delta = 0.3, .power = 1.2, .stop_words = 0};

const struct kg_bm25 kg_bm25_unset = {-1, -1, -1, -1, -1};

static kg_status in_range(const char *name, double x, double max, struct kg_err *err)
{
    if (x >= 0 && x <= max)
        return KG_OK;
    return kg_fail(err, KG_EINVAL, "%s: expected 0 to %g, found %g", name, max, x);
}

kg_status kg_bm25_check(const struct kg_bm25 *bm25, struct kg_err *err)
{
    KG_TRY(in_range("k1", bm25->k1, 1000, err));
    KG_TRY(in_range("b", bm25->b, 1, err));
    KG_TRY(in_range("delta", bm25->delta, 10, err));
    return in_range("power", bm25->power, 4, err);
}

struct kg_bm25 kg_bm25_merge(const struct kg_bm25 *over, const struct kg_bm25 *under)
{
    return (struct kg_bm25){.k1 = over->k1 < 0 ? under->k1 : over->k1,
                            .b = over->b < 0 ? under->b : over->b,
                            .delta = over->delta < 0 ? under->delta : over->delta,
                            .power = over->power < 0 ? under->power : over->power,
                            .stop_words = over->stop_words < 0 ? under->stop_words
                                                               : over->stop_words};
}
