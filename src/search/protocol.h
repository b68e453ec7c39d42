/* Search-R1's protocol, both sides, as text.
 *
 *   request   {"queries": [text, ...], "topk": 3, "return_scores": true}
 *   answer    {"result": [[{"document": {"id", "contents"}, "score": 12.3}, ...], ...]}
 *   answer without scores   {"result": [[{"id", "contents"}, ...], ...]}
 *
 * One list of passages for each query, in order. This file uses neither sockets nor an
 * index.
 */
#ifndef KG_SEARCH_PROTOCOL_H
#define KG_SEARCH_PROTOCOL_H

#include "base/str.h"
#include "data/json.h"
#include "search/index.h"

/* ---- requests ---- */

struct kg_retrieve_request { /* released by kg_retrieve_request_release; {0} allowed */
    struct kg_json_doc doc;
    const struct kg_json *queries; /* in the document */
    size_t n;
    int topk; /* 0: not given */
    bool scores;
};
/* Refuses an unknown key, a value of the wrong type, a missing or empty list of queries,
 * more than max_queries queries, or a topk above KG_INDEX_TOPK_MAX. On an error r is
 * released.   errors: EFORMAT, EINVAL, ENOMEM */
kg_status kg_retrieve_request_read(struct kg_retrieve_request *r, const char *body,
                                   size_t n, size_t max_queries,
                                   struct kg_err *err) KG_MUST_CHECK;
void kg_retrieve_request_release(struct kg_retrieve_request *r);
const char *kg_retrieve_query(const struct kg_retrieve_request *r, size_t i, size_t *n);

struct kg_retrieve_text {
    const char *bytes; /* malformed UTF-8 is sent as U+FFFD */
    size_t n;
};
kg_status kg_retrieve_request_write(struct kg_str *out,
                                    const struct kg_retrieve_text *queries, size_t n,
                                    int topk, struct kg_err *err) KG_MUST_CHECK;

/* ---- answers: begin, the passages of each query in order, end ---- */

kg_status kg_retrieve_answer_begin(struct kg_str *out, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_retrieve_answer_put(struct kg_str *out, size_t query,
                                 const struct kg_passage *passages, size_t n, bool scores,
                                 struct kg_err *err) KG_MUST_CHECK;
kg_status kg_retrieve_answer_end(struct kg_str *out, struct kg_err *err) KG_MUST_CHECK;

struct kg_retrieve_answer { /* {0} allowed */
    struct kg_json_doc doc;
    struct kg_passage *passages; /* passages of all queries; their texts are in doc */
    size_t *first;               /* (n + 1) index of each query's first passage */
    char **wrong;                /* (n) owned; why a list cannot be read, or NULL */
    size_t n;                    /* queries */
};
/* Reads either format. A missing score is 0, a missing id is "", and other keys are
 * ignored. A list with an unreadable document is empty, with a reason in `wrong`; the
 * others are kept.
 * n: number of queries sent.   errors: EFORMAT with expected and found; all is released
 * then */
kg_status kg_retrieve_answer_read(struct kg_retrieve_answer *a, const char *body,
                                  size_t bytes, size_t n,
                                  struct kg_err *err) KG_MUST_CHECK;
void kg_retrieve_answer_release(struct kg_retrieve_answer *a);

#endif
