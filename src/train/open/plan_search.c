/* See plan_search.h. An index is opened as the run will open it, its encoder too: what
 * would be refused then is refused now. A server is not asked, and of an encoder that is
 * not here, which the server has and not the run, the size is not known.
 */
#include "train/open/plan_search.h"

#include "base/status.h"
#include "data/hub.h"
#include "search/dense.h"
#include "search/index.h"

#include <string.h>

static double gb(uint64_t bytes) { return (double)bytes / 1e9; }

struct sizes {
    bool vectors; /* are searched */
    int64_t passages;
    struct kg_search_size size;
    struct kg_encoder_outline encoder; /* {0}: none */
};

/* A name of the hub is the folder in its cache, if it is there. */
static kg_status outline(struct kg_encoder_outline *out, const char *model,
                         struct kg_err *err)
{
    struct kg_hub_found found;
    struct kg_err hub;

    if (!kg_encoder_outline)
        return kg_guest_missing("search.model", "retriever", err);
    const bool here = kg_hub_find_model(&found, model, &hub) == KG_OK;

    if (kg_encoder_outline(out, here ? found.path.text : model, err) == KG_OK)
        return KG_OK;
    if (here)
        return kg_err_prefix(err, "search.model");
    return kg_fail(err, hub.code, "search.model: %s", hub.message);
}

static kg_status take_sizes(struct sizes *s, const struct kg_search_how *how,
                            int64_t passages, struct kg_err *err)
{
    *s = (struct sizes){.vectors = kg_search_how_dense(how), .passages = passages};
    if (s->vectors)
        KG_TRY(outline(&s->encoder, how->model, err));
    kg_search_size(&s->size, passages, s->encoder.dim);
    return KG_OK;
}

static kg_status put_memory(struct kg_str *out, const struct sizes *s, struct kg_err *err)
{
    const struct kg_search_size *z = &s->size;

    if (s->vectors)
        KG_TRY(kg_str_printf(out, err,
                             "            in memory: vectors of %d numbers %.3f GB as "
                             "fp16, %.3f GB as int8; encoder %.3f GB\n",
                             (int)s->encoder.dim, gb(z->vectors_fp16),
                             gb(z->vectors_int8), gb(s->encoder.bytes)));
    return kg_str_printf(out, err,
                         "            in memory: lengths of passages %.3f GB, and the "
                         "file as far as it fits\n",
                         gb(z->lengths));
}

static kg_status put_expected(struct kg_str *out, const struct sizes *s,
                              struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "            the file of an index: about %.1f GB\n",
                         gb(s->size.file)));
    KG_TRY(put_memory(out, s, err));
    if (!s->vectors || s->passages <= KG_DENSE_PASSAGES_MAX)
        return KG_OK;
    return kg_str_printf(out, err,
                         "            kedge searches up to %d vectors: another engine "
                         "serves these (docs/search-at-scale.md)\n",
                         (int)KG_DENSE_PASSAGES_MAX);
}

static kg_status put_server(struct kg_str *out, const struct kg_env_opts *o,
                            struct kg_err *err)
{
    const struct kg_search_how *how = &o->how;
    const bool dense = kg_search_how_dense(how);
    struct kg_err why;
    struct sizes s;

    if (!dense && how->passages == 0)
        return kg_str_printf(out, err,
                             "retriever   %s, which a plan does not contact; set "
                             "search.passages to plan its size\n",
                             o->retriever);
    KG_TRY(kg_str_printf(out, err, "retriever   %s, expected to find by %s%s%s",
                         o->retriever, dense ? how->kind : "bm25", dense ? " of " : "",
                         dense ? how->model : ""));
    if (how->passages == 0)
        return kg_str_printf(out, err, "; set search.passages to plan its size\n");
    KG_TRY(kg_str_printf(out, err, " among %lld passages\n", (long long)how->passages));
    if (take_sizes(&s, how, how->passages, &why) == KG_OK)
        return put_expected(out, &s, err);
    return kg_str_printf(out, err, "            its size is not known: %s\n",
                         why.message);
}

static kg_status put_index(struct kg_str *out, const struct kg_env_opts *o,
                           struct kg_index *index, struct kg_err *err)
{
    struct kg_index_info info;
    struct sizes s;

    if (!o->how.backend) /* beside the model it is once, and the run has opened it */
        KG_TRY(kg_index_ask(index, &o->how, err));
    kg_index_info(&info, index);
    KG_TRY(take_sizes(&s, &o->how, info.passages, err));
    KG_TRY(kg_str_printf(
        out, err, "retriever   %s: %lld passages by %s, %.3f GB of file\n", o->retriever,
        (long long)info.passages, s.vectors ? o->how.kind : "bm25", gb(info.bytes)));
    return put_memory(out, &s, err);
}

kg_status kg_plan_search(struct kg_str *out, const struct kg_env_opts *o,
                         struct kg_err *err)
{
    struct kg_index *index = NULL;

    if (!o->retriever || !*o->retriever)
        return KG_OK;
    if (strstr(o->retriever, "://"))
        return put_server(out, o, err);
    KG_TRY(kg_index_open(&index, o->retriever, NULL, err));
    kg_status status = put_index(out, o, index, err);
    kg_index_close(index);
    return status;
}

kg_status kg_search_beside(struct kg_env_opts *o, uint64_t *bytes,
                           const struct kg_backend *be, struct kg_err *err)
{
    struct kg_index *index = NULL;

    *bytes = 0;
    if (!o->how.beside_model)
        return KG_OK;
    o->how.backend = be;
    if (!kg_index_device_plan)
        return kg_guest_missing("search.device", "retriever", err);
    KG_TRY(kg_index_open(&index, o->retriever, NULL, err));
    kg_status status = kg_index_device_plan(bytes, index, &o->how, err);
    kg_index_close(index);
    return status;
}
