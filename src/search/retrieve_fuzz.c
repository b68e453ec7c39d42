/* Fuzz target: requests and answers of the search protocol. What parses holds what its
 * type promises, and what is written from it parses again. */
#include "search/protocol.h"

#include "base/str.h"

#include <stdlib.h>
#include <string.h>

int kg_fuzz_retrieve(const uint8_t *bytes, size_t n);

enum { QUERIES = 8 };

static void demand(kg_status status)
{
    if (status != KG_OK)
        abort();
}

static void rewrite_request(const struct kg_retrieve_request *r)
{
    struct kg_retrieve_text texts[QUERIES];
    struct kg_retrieve_request again;
    struct kg_str out = {0};
    struct kg_err err;

    if (r->n < 1 || r->n > QUERIES || r->topk < 0 || r->topk > KG_INDEX_TOPK_MAX)
        abort();
    for (size_t i = 0; i < r->n; i++)
        texts[i].bytes = kg_retrieve_query(r, i, &texts[i].n);
    demand(kg_retrieve_request_write(&out, texts, r->n, r->topk ? r->topk : 3, &err));
    demand(kg_retrieve_request_read(&again, out.data, out.len, QUERIES, &err));
    for (size_t i = 0; i < r->n; i++) {
        size_t m;
        const char *text = kg_retrieve_query(&again, i, &m);

        if (m != texts[i].n || memcmp(text, texts[i].bytes, m) != 0)
            abort();
    }
    kg_retrieve_request_release(&again);
    kg_str_release(&out);
}

static void rewrite_answer(const struct kg_retrieve_answer *a)
{
    struct kg_retrieve_answer again;
    struct kg_str out = {0};
    struct kg_err err;

    demand(kg_retrieve_answer_begin(&out, &err));
    for (size_t i = 0; i < a->n; i++)
        demand(kg_retrieve_answer_put(&out, i, a->passages + a->first[i],
                                      a->first[i + 1] - a->first[i], true, &err));
    demand(kg_retrieve_answer_end(&out, &err));
    demand(kg_retrieve_answer_read(&again, out.data, out.len, a->n, &err));
    if (memcmp(again.first, a->first, (a->n + 1) * sizeof *a->first) != 0)
        abort();
    for (size_t i = 0; i < a->first[a->n]; i++)
        if (strcmp(again.passages[i].contents, a->passages[i].contents) != 0 ||
            strcmp(again.passages[i].id, a->passages[i].id) != 0)
            abort();
    kg_retrieve_answer_release(&again);
    kg_str_release(&out);
}

int kg_fuzz_retrieve(const uint8_t *bytes, size_t n)
{
    struct kg_retrieve_request r;
    struct kg_retrieve_answer a;
    struct kg_err err;

    if (kg_retrieve_request_read(&r, (const char *)bytes, n, QUERIES, &err) == KG_OK) {
        rewrite_request(&r);
        kg_retrieve_request_release(&r);
    }
    for (size_t queries = 1; queries <= 2; queries++) {
        if (kg_retrieve_answer_read(&a, (const char *)bytes, n, queries, &err) != KG_OK)
            continue;
        rewrite_answer(&a);
        kg_retrieve_answer_release(&a);
    }
    return 0;
}
