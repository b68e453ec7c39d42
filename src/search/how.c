/* How an index is searched: settings of the score, names, and the files that it opens.
 *
 * A setting of the score that was not given is -1. So one rule puts a caller's settings
 * over those of the index.
 */
#include "search/dense.h"

#include "base/status.h"
#include "base/str.h"
#include "search/index.h"

#include <string.h>

/* ---- settings of the score ---- */

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

static const char *const kinds[] = {"bm25", "dense", "hybrid"};
enum { BM25, DENSE, HYBRID, KINDS };
static const char *const codes[KG_CODES] = {
    [KG_CODE_F16] = "fp16", [KG_CODE_I8] = "int8"};

struct names {
    size_t kind, code, fusion;
};

static bool given(const char *text) { return text && *text; }

bool kg_search_how_dense(const struct kg_search_how *how)
{
    return given(how->kind) && strcmp(how->kind, kinds[BM25]) != 0;
}

static kg_status read_names(struct names *n, const struct kg_search_how *how,
                            struct kg_err *err)
{
    *n = (struct names){BM25, KG_CODE_F16, KG_FUSION_RANK};
    if (given(how->kind))
        KG_TRY(kg_str_pick(&n->kind, KG_EINVAL, "kind", how->kind, kinds, KINDS,
                           sizeof *kinds, err));
    if (given(how->vectors))
        KG_TRY(kg_str_pick(&n->code, KG_EINVAL, "vectors", how->vectors, codes, KG_CODES,
                           sizeof *codes, err));
    if (given(how->fusion))
        KG_TRY(kg_str_pick(&n->fusion, KG_EINVAL, "fusion", how->fusion, kg_fusion_names,
                           KG_FUSIONS, sizeof *kg_fusion_names, err));
    return KG_OK;
}

kg_status kg_search_how_check(const struct kg_search_how *how, const char *section,
                              const char *model, struct kg_err *err)
{
    struct names n;

    if (read_names(&n, how, err) != KG_OK)
        return kg_fail(err, err->code, "%s%s", section, err->message);
    if (n.kind != BM25 && !given(how->model))
        return kg_fail(err, KG_EINVAL,
                       "%s%s: expected the folder of the encoder for %skind %s, found "
                       "none",
                       section, model, section, how->kind);
    return KG_OK;
}

static kg_status check_passages(const struct kg_index *index,
                                const struct kg_search_how *how, struct kg_err *err)
{
    if (how->passages == 0 || how->passages == index->info.passages)
        return KG_OK;
    return kg_fail(err, KG_ECONFLICT,
                   "%s: expected %lld passages, as configured, found %lld", index->path,
                   (long long)how->passages, (long long)index->info.passages);
}

kg_status kg_index_ask(struct kg_index *index, const struct kg_search_how *how,
                       struct kg_err *err)
{
    struct names n;
    sqlite3 *db = NULL;

    KG_TRY(kg_search_how_check(how, "search.", "model", err));
    KG_TRY(read_names(&n, how, err));
    KG_TRY(check_passages(index, how, err));
    if (n.kind == BM25)
        return KG_OK;
    if (!kg_dense_open)
        return kg_guest_missing("search.kind dense and hybrid", "retriever", err);
    index->by_words = n.kind == HYBRID;
    index->fusion = (int)n.fusion;
    index->weight = how->weight;
    kg_status status = kg_sql_open_index(&db, index->path, err);
    if (status == KG_OK)
        status = kg_dense_open(&index->dense, db, index, how, (enum kg_code)n.code, err);
    sqlite3_close(db);
    return status;
}
