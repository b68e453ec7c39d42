#include "ranks/message.h"

#include <stdio.h>
#include <string.h>

static const char mark[8] = "kedge 1";
_Static_assert(sizeof(struct kg_ranks_head) == 64, "a line of a ring");

void kg_ranks_head_make(struct kg_ranks_head *head, const struct kg_ranks *r,
                        const char *what, size_t bytes)
{
    const char *kind = r->kind ? r->kind : what;

    memset(head, 0, sizeof *head);
    memcpy(head->mark, mark, sizeof mark);
    head->bytes = bytes;
    memcpy(head->kind, kind, strnlen(kind, KG_RANKS_KIND - 1));
}

kg_status kg_ranks_head_check(const struct kg_ranks_head *head, const struct kg_ranks *r,
                              int from, const char *what, size_t bytes,
                              struct kg_err *err)
{
    struct kg_ranks_head expected;
    char found[KG_RANKS_KIND + 48] = "bytes that are not a message of this kedge";

    kg_ranks_head_make(&expected, r, what, bytes);
    if (memcmp(head, &expected, sizeof expected) == 0)
        return KG_OK;
    if (memcmp(head->mark, mark, sizeof mark) == 0)
        snprintf(found, sizeof found, "%llu bytes of '%.*s'",
                 (unsigned long long)head->bytes, KG_RANKS_KIND - 1, head->kind);
    return kg_fail(
        err, KG_ECONFLICT,
        "%s: %s: expected %zu bytes of '%s' from %s, found %s: these ranks are "
        "not at the same place of the same run",
        what, kg_ranks_name(r, r->me).text, bytes, expected.kind,
        kg_ranks_name(r, from).text, found);
}
