/* See plan_search.h. Opens an index and its encoder as the run will, so that an error
 * occurs now. Does not contact a server.
 */
#include "train/open/plan_search.h"

#include "base/status.h"
#include "search/dense.h"
#include "search/index.h"

#include <string.h>

static double gb(uint64_t bytes) { return (double)bytes / 1e9; }

static kg_status put_server(struct kg_str *out, const struct kg_env_opts *o,
                            struct kg_err *err)
{
    const struct kg_search_how *how = &o->how;
    const bool dense = kg_search_how_dense(how);

    KG_TRY(kg_str_printf(out, err, "retriever   %s, which a plan does not contact",
                         o->retriever));
    if (dense || how->passages > 0)
        KG_TRY(kg_str_printf(out, err, ", expected to search by %s%s%s",
                             dense ? how->kind : "bm25", dense ? " of " : "",
                             dense ? how->model : ""));
    if (how->passages > 0)
        KG_TRY(kg_str_printf(out, err, " among %lld passages", (long long)how->passages));
    return kg_str_putc(out, '\n', err);
}

static kg_status put_index(struct kg_str *out, const struct kg_env_opts *o,
                           struct kg_index *index, struct kg_err *err)
{
    const bool dense = kg_search_how_dense(&o->how);
    struct kg_index_info info;
    struct kg_search_size size;

    if (!o->how.backend) /* else the run has opened it on the model's device */
        KG_TRY(kg_index_ask(index, &o->how, err));
    kg_index_info(&info, index);
    kg_search_size(&size, info.passages, info.dim);
    KG_TRY(kg_str_printf(out, err,
                         "retriever   %s: %lld passages by %s, a file of %.3f GB\n",
                         o->retriever, (long long)info.passages,
                         dense ? o->how.kind : "bm25", gb(info.bytes)));
    if (dense)
        KG_TRY(kg_str_printf(out, err,
                             "            in memory: vectors of %d numbers %.3f GB as "
                             "fp16, %.3f GB as int8\n",
                             (int)info.dim, gb(size.vectors_fp16),
                             gb(size.vectors_int8)));
    return kg_str_printf(out, err,
                         "            in memory: lengths of passages %.3f GB, and the "
                         "file as far as it fits\n",
                         gb(size.lengths));
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
