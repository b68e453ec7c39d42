/* kedge grade --kind qa-*: answers to questions, by the metrics of task/qa.h.
 *
 * A line has a prediction, which is the answer, or a response, in which the answer is
 * looked for as training does; golds are one text or several. The names of the kinds
 * are those of the metrics' table with "qa-" before them. Extraction and the format
 * reward read a response as one turn that the model wrote.
 */
#include "cli/grade_qa.h"

#include "base/mem.h"
#include "data/json.h"

#include <string.h>

enum { MAX_GOLDS = 1 << 16 };

static kg_status need_text(struct kg_qa_text *out, const struct kg_json_doc *doc,
                           const struct kg_json *v, const char *key, struct kg_err *err)
{
    out->text = kg_json_text(v, &out->n);
    if (out->text)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT, "%s: key '%s': expected string, found %s", doc->where,
                   key, kg_json_type_name(v));
}

static kg_status put_gold(struct kg_grade_qa *g, const struct kg_json_doc *doc,
                          const struct kg_json *v, struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&g->golds, &g->capacity, g->n_golds + 1, sizeof *g->golds,
                       MAX_GOLDS, "golden answers", err));
    return need_text(&g->golds[g->n_golds++], doc, v, "golden_answers", err);
}

static kg_status read_golds(struct kg_grade_qa *g, const struct kg_json_doc *doc,
                            struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(doc->root, "golden_answers");

    g->n_golds = 0;
    if (!g->metric)
        return KG_OK;
    if (kg_json_type(v) != KG_JSON_ARRAY)
        return put_gold(g, doc, v, err);
    if (kg_json_size(v) == 0)
        return kg_fail(err, KG_EFORMAT,
                       "%s: key 'golden_answers': expected at least one, found none",
                       doc->where);
    for (size_t i = 0; i < kg_json_size(v); i++)
        KG_TRY(put_gold(g, doc, kg_json_at(v, i), err));
    return KG_OK;
}

/* The answer of the line: a prediction is one, in a response it is looked for. Format and
 * extraction look into either.   *response: what was looked into, or empty */
static kg_status read_answer(struct kg_qa_text *answer, bool *answered,
                             struct kg_qa_text *response, const struct kg_grade_qa *g,
                             const struct kg_json_doc *doc, struct kg_err *err)
{
    const struct kg_json *prediction = kg_json_get(doc->root, "prediction");
    const char *key = prediction ? "prediction" : "response";
    struct kg_span span = {.source = KG_SOURCE_MODEL};
    const struct kg_qa_episode e = {.spans = &span, .n_spans = 1};

    if (!prediction && !kg_json_get(doc->root, "response"))
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected key 'prediction' or 'response', found neither",
                       doc->where);
    *answered = true;
    if (prediction && g->metric && !g->format)
        return need_text(answer, doc, prediction, key, err);
    KG_TRY(need_text(response, doc, kg_json_get(doc->root, key), key, err));
    span.text = response->text;
    span.n = response->n;
    *answered = kg_qa_extract(answer, &e, g->pairs);
    return KG_OK;
}

static kg_status score_format(double *score, const struct kg_grade_qa *g, bool answered,
                              bool right, struct kg_qa_text response, struct kg_err *err)
{
    struct kg_qa_facts facts = {.answered = answered, .right = right};

    facts.valid = kg_qa_is_valid_text(response.text, response.n, g->pairs == 2);
    KG_TRY(kg_qa_is_retrieved_text(&facts.retrieved, response.text, response.n, g->golds,
                                   g->n_golds, err));
    *score = kg_qa_format_score(&g->scores, &facts);
    return KG_OK;
}

kg_status kg_grade_qa_line(struct kg_str *out, const struct kg_json_doc *doc,
                           void *context, struct kg_err *err)
{
    struct kg_grade_qa *g = context;
    struct kg_qa_text answer = {"", 0};
    struct kg_qa_text response = {"", 0};
    bool answered = false;

    KG_TRY(read_golds(g, doc, err));
    KG_TRY(read_answer(&answer, &answered, &response, g, doc, err));
    double score = answered;
    if (answered && g->metric)
        KG_TRY(kg_qa_score(&score, g->metric, answer, g->golds, g->n_golds, err));
    if (g->format)
        KG_TRY(score_format(&score, g, answered, score > 0, response, err));
    else if (g->metric && answered && score == 0)
        score = kg_json_real(kg_json_get(doc->root, "format_score"), 0);
    KG_TRY(kg_str_puts(out, "{\"score\": ", err));
    KG_TRY(kg_json_put_double(out, score, err));
    KG_TRY(kg_str_puts(out, ", \"answer\": ", err));
    if (answered)
        KG_TRY(kg_json_put_string(out, answer.text, answer.n, err));
    else
        KG_TRY(kg_str_puts(out, "null", err));
    return kg_str_puts(out, "}\n", err);
}

kg_status kg_grade_qa_init(struct kg_grade_qa *g, const char *kind, struct kg_err *err)
{
    const char *name = kind + strlen("qa-");

    g->format = strcmp(name, "format") == 0;
    if (strcmp(name, "extract") == 0)
        return KG_OK;
    return kg_qa_metric_find(&g->metric, g->format ? "em" : name, err);
}

void kg_grade_qa_release(struct kg_grade_qa *g) { kg_mem_free(g->golds); }
