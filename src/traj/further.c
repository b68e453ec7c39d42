/* The table of names, and the lists in their order.
 *
 * Which answer mentions a name first says nothing of the name. Places are given as
 * names come, and never move: an answer holds numbers by place, with a mask of those
 * that it has. Whatever is written goes through the order of the names, and is the same
 * every time. The table is small and fixed; a grader that makes up names is stopped by
 * its end.
 */
#include "traj/further.h"

#include "data/json.h"

#include <assert.h>
#include <math.h>
#include <string.h>

kg_status kg_further_find(int *k, struct kg_further_names *names, const char *name,
                          struct kg_err *err)
{
    size_t n = strlen(name);

    assert(n < KG_FURTHER_NAME);
    for (*k = 0; *k < names->n; ++*k)
        if (strcmp(names->name[*k], name) == 0)
            return KG_OK;
    if (*k == KG_FURTHER)
        return kg_fail(err, KG_EFORMAT,
                       "expected at most %d names of numbers besides the score, found "
                       "one more, '%s'",
                       KG_FURTHER, name);
    memcpy(names->name[names->n++], name, n + 1);
    return KG_OK;
}

void kg_further_order(int order[KG_FURTHER], const struct kg_further_names *names)
{
    for (int k = 0; k < names->n; k++) {
        int at = k;

        for (; at > 0 && strcmp(names->name[order[at - 1]], names->name[k]) > 0; at--)
            order[at] = order[at - 1];
        order[at] = k;
    }
}

kg_status kg_further_put_json(struct kg_str *out, const struct kg_further *f,
                              const struct kg_further_names *names, uint32_t mask,
                              struct kg_err *err)
{
    int order[KG_FURTHER];
    const char *before = "{";

    kg_further_order(order, names);
    for (int i = 0; i < names->n; i++) {
        int k = order[i];

        if (!(mask >> k & 1))
            continue;
        KG_TRY(kg_str_printf(out, err, "%s\"%s\":", before, names->name[k]));
        KG_TRY(kg_json_put_cell(out, f->said >> k & 1 ? f->x[k] : NAN, err));
        before = ",";
    }
    return kg_str_puts(out, *before == '{' ? "{}" : "}", err);
}
