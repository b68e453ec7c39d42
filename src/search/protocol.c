/* The protocol's texts. The other side may be any program, such as Search-R1's server or
 * a notebook. So requests and answers are written as Search-R1's code accepts them, and
 * every value read is checked; messages name its place (result[2][0]). Unknown keys of a
 * request are refused, because an option without effect would go unnoticed. Passages that
 * were read point into the parsed document and live as long as it. */
#include "search/protocol.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_PASSAGES_A_QUERY = 10000 };

/* ---- requests: reading ---- */

static const char *const keys[] = {"queries", "topk", "return_scores"};
enum { KEYS = sizeof keys / sizeof *keys };

static kg_status check_keys(const struct kg_json *root, struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(root); i++) {
        const char *key = kg_json_key_at(root, i);
        bool known = false;

        for (size_t k = 0; k < KEYS; k++)
            known = known || strcmp(key, keys[k]) == 0;
        if (known)
            continue;
        const char *near = kg_str_nearest(key, keys, KEYS, sizeof *keys);
        return kg_fail(err, KG_EINVAL,
                       "expected the keys queries, topk and return_scores, found "
                       "'%.40s'%s%s%s",
                       key, near ? ", did you mean '" : "", near ? near : "",
                       near ? "'?" : "");
    }
    return KG_OK;
}

static kg_status read_queries(struct kg_retrieve_request *r, size_t max_queries,
                              struct kg_err *err)
{
    KG_TRY(
        kg_json_need(&r->queries, &r->doc, r->doc.root, "queries", KG_JSON_ARRAY, err));
    r->n = kg_json_size(r->queries);
    if (r->n == 0 || r->n > max_queries)
        return kg_fail(err, KG_EINVAL,
                       "key 'queries': expected 1 to %zu queries, found %zu", max_queries,
                       r->n);
    for (size_t i = 0; i < r->n; i++) {
        const struct kg_json *q = kg_json_at(r->queries, i);

        if (kg_json_type(q) != KG_JSON_STRING)
            return kg_fail(err, KG_EFORMAT,
                           "key 'queries': expected strings, found %s at index %zu",
                           kg_json_type_name(q), i);
    }
    return KG_OK;
}

static kg_status read_topk(struct kg_retrieve_request *r, struct kg_err *err)
{
    int64_t topk;

    if (kg_json_type(kg_json_get(r->doc.root, "topk")) == KG_JSON_NULL)
        return KG_OK; /* absent, or null: the server chooses */
    KG_TRY(
        kg_json_need_int(&topk, &r->doc, r->doc.root, "topk", 1, KG_INDEX_TOPK_MAX, err));
    r->topk = (int)topk;
    return KG_OK;
}

static kg_status read_scores(struct kg_retrieve_request *r, struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(r->doc.root, "return_scores");

    if (!v)
        return KG_OK;
    if (kg_json_type(v) != KG_JSON_BOOL)
        return kg_fail(err, KG_EFORMAT, "key 'return_scores': expected bool, found %s",
                       kg_json_type_name(v));
    r->scores = kg_json_bool(v, false);
    return KG_OK;
}

kg_status kg_retrieve_request_read(struct kg_retrieve_request *r, const char *body,
                                   size_t n, size_t max_queries, struct kg_err *err)
{
    kg_status status;

    *r = (struct kg_retrieve_request){0};
    KG_TRY_GOTO(out, kg_json_parse(&r->doc, body, n, "request", err));
    if (kg_json_type(r->doc.root) != KG_JSON_OBJECT) {
        status = kg_fail(err, KG_EFORMAT, "request: expected an object, found %s",
                         kg_json_type_name(r->doc.root));
        goto out;
    }
    KG_TRY_GOTO(out, check_keys(r->doc.root, err));
    KG_TRY_GOTO(out, read_queries(r, max_queries, err));
    KG_TRY_GOTO(out, read_topk(r, err));
    KG_TRY_GOTO(out, read_scores(r, err));
    return KG_OK;
out:
    kg_retrieve_request_release(r);
    return status;
}

void kg_retrieve_request_release(struct kg_retrieve_request *r)
{
    kg_json_release(&r->doc);
    *r = (struct kg_retrieve_request){0};
}

const char *kg_retrieve_query(const struct kg_retrieve_request *r, size_t i, size_t *n)
{
    return kg_json_text(kg_json_at(r->queries, i), n);
}

/* ---- requests: writing ---- */

kg_status kg_retrieve_request_write(struct kg_str *out,
                                    const struct kg_retrieve_text *queries, size_t n,
                                    int topk, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "{\"queries\": [", err));
    for (size_t i = 0; i < n; i++) {
        KG_TRY(kg_str_puts(out, i ? ", " : "", err));
        KG_TRY(kg_json_put_string(out, queries[i].bytes, queries[i].n, err));
    }
    /* scores always: Search-R1's own server fails without them */
    return kg_str_printf(out, err, "], \"topk\": %d, \"return_scores\": true}", topk);
}

/* ---- answers: writing ---- */

kg_status kg_retrieve_answer_begin(struct kg_str *out, struct kg_err *err)
{
    return kg_str_puts(out, "{\"result\":[", err);
}

static kg_status put_document(struct kg_str *out, const struct kg_passage *p,
                              struct kg_err *err)
{
    KG_TRY(kg_json_put_text(out, "{\"id\":", p->id, err));
    KG_TRY(kg_json_put_text(out, ",\"contents\":", p->contents, err));
    return kg_str_putc(out, '}', err);
}

static kg_status put_scored(struct kg_str *out, const struct kg_passage *p,
                            struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "{\"document\":", err));
    KG_TRY(put_document(out, p, err));
    KG_TRY(kg_str_puts(out, ",\"score\":", err));
    KG_TRY(kg_json_put_double(out, p->score, err));
    return kg_str_putc(out, '}', err);
}

kg_status kg_retrieve_answer_put(struct kg_str *out, size_t query,
                                 const struct kg_passage *passages, size_t n, bool scores,
                                 struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, query ? ",[" : "[", err));
    for (size_t i = 0; i < n; i++) {
        KG_TRY(kg_str_puts(out, i ? "," : "", err));
        KG_TRY(scores ? put_scored(out, &passages[i], err)
                      : put_document(out, &passages[i], err));
    }
    return kg_str_putc(out, ']', err);
}

kg_status kg_retrieve_answer_end(struct kg_str *out, struct kg_err *err)
{
    return kg_str_puts(out, "]}", err);
}

/* ---- answers: reading ---- */

/* "result[2][0]", for messages */
struct place {
    size_t query, hit;
};

static kg_status wrong(struct kg_err *err, const struct place *at, const char *expected,
                       const struct kg_json *found)
{
    return kg_fail(err, KG_EFORMAT, "answer: result[%zu][%zu]: expected %s, found %s",
                   at->query, at->hit, expected, kg_json_type_name(found));
}

static kg_status read_text(const char **out, const struct kg_json *v,
                           const struct place *at, const char *expected,
                           struct kg_err *err)
{
    size_t n;
    const char *text = kg_json_text(v, &n);

    if (!text)
        return wrong(err, at, expected, v);
    if (strlen(text) != n)
        return kg_fail(err, KG_EFORMAT,
                       "answer: result[%zu][%zu]: expected text without NUL, found one "
                       "at byte %zu",
                       at->query, at->hit, strlen(text));
    *out = text;
    return KG_OK;
}

/* {"id", "contents"}, or the bare text. */
static kg_status read_document(struct kg_passage *p, const struct kg_json *v,
                               const struct place *at, struct kg_err *err)
{
    const struct kg_json *id;

    if (kg_json_type(v) == KG_JSON_STRING)
        return read_text(&p->contents, v, at, "text", err);
    if (kg_json_type(v) != KG_JSON_OBJECT)
        return wrong(err, at, "a document", v);
    id = kg_json_get(v, "id");
    if (kg_json_type(id) == KG_JSON_STRING)
        KG_TRY(read_text(&p->id, id, at, "an id", err));
    return read_text(&p->contents, kg_json_get(v, "contents"), at,
                     "a document with the text 'contents'", err);
}

static kg_status read_passage(struct kg_passage *p, const struct kg_json *v,
                              const struct place *at, struct kg_err *err)
{
    const struct kg_json *document = kg_json_get(v, "document");
    const struct kg_json *score = kg_json_get(v, "score");

    *p = (struct kg_passage){.id = ""};
    if (!document)
        return read_document(p, v, at, err);
    if (score && !kg_json_is_number(score))
        return wrong(err, at, "a number as score", score);
    p->score = kg_json_real(score, 0);
    return read_document(p, document, at, err);
}

/* Finds the lists, and counts their passages. */
static kg_status read_lists(const struct kg_json **lists, size_t *total,
                            const struct kg_json *root, size_t n, struct kg_err *err)
{
    *lists = kg_json_get(root, "result");
    *total = 0;
    if (kg_json_type(*lists) != KG_JSON_ARRAY)
        return kg_fail(
            err, KG_EFORMAT, "answer: expected {\"result\": [...]}, found %s%s",
            *lists ? "a result that is " : "", kg_json_type_name(*lists ? *lists : root));
    if (kg_json_size(*lists) != n)
        return kg_fail(
            err, KG_EFORMAT,
            "answer: expected %zu lists in 'result', one for each query, found %zu", n,
            kg_json_size(*lists));
    for (size_t i = 0; i < n; i++) {
        const struct kg_json *list = kg_json_at(*lists, i);

        if (kg_json_type(list) != KG_JSON_ARRAY ||
            kg_json_size(list) > MAX_PASSAGES_A_QUERY)
            return kg_fail(err, KG_EFORMAT,
                           "answer: result[%zu]: expected a list of at most %d passages, "
                           "found %s of %zu",
                           i, MAX_PASSAGES_A_QUERY, kg_json_type_name(list),
                           kg_json_size(list));
        *total += kg_json_size(list);
    }
    return KG_OK;
}

static kg_status read_list(struct kg_passage *passages, const struct kg_json *list,
                           size_t query, struct kg_err *err)
{
    struct place at = {query, 0};

    for (at.hit = 0; at.hit < kg_json_size(list); at.hit++)
        KG_TRY(read_passage(&passages[at.hit], kg_json_at(list, at.hit), &at, err));
    return KG_OK;
}

static kg_status read_passages(struct kg_retrieve_answer *a, const struct kg_json *lists,
                               size_t total, struct kg_err *err)
{
    struct kg_err why;

    a->passages = kg_mem_calloc(total, sizeof *a->passages, "passages", err);
    a->first = kg_mem_calloc(a->n + 1, sizeof *a->first, "passages", err);
    a->wrong = kg_mem_calloc(a->n, sizeof *a->wrong, "passages", err);
    if (!a->passages || !a->first || !a->wrong)
        return KG_ENOMEM;
    for (size_t i = 0; i < a->n; i++) {
        const struct kg_json *list = kg_json_at(lists, i);

        a->first[i + 1] = a->first[i];
        if (read_list(a->passages + a->first[i], list, i, &why) == KG_OK) {
            a->first[i + 1] += kg_json_size(list);
            continue;
        }
        a->wrong[i] = kg_mem_strdup(why.message, err);
        if (!a->wrong[i])
            return KG_ENOMEM;
    }
    return KG_OK;
}

kg_status kg_retrieve_answer_read(struct kg_retrieve_answer *a, const char *body,
                                  size_t bytes, size_t n, struct kg_err *err)
{
    const struct kg_json *lists;
    size_t total;
    kg_status status;

    *a = (struct kg_retrieve_answer){.n = n};
    KG_TRY_GOTO(out, kg_json_parse(&a->doc, body, bytes, "answer", err));
    KG_TRY_GOTO(out, read_lists(&lists, &total, a->doc.root, n, err));
    KG_TRY_GOTO(out, read_passages(a, lists, total, err));
    return KG_OK;
out:
    kg_retrieve_answer_release(a);
    return status;
}

void kg_retrieve_answer_release(struct kg_retrieve_answer *a)
{
    for (size_t i = 0; a->wrong && i < a->n; i++)
        kg_mem_free(a->wrong[i]);
    kg_mem_free(a->wrong);
    kg_json_release(&a->doc);
    kg_mem_free(a->passages);
    kg_mem_free(a->first);
    *a = (struct kg_retrieve_answer){0};
}
