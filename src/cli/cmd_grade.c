/* kedge grade: a filter from lines of responses to lines of verdicts.
 *
 * The verdict for a line is written before the next line is read, so another program can
 * keep it open and grade one by one. It uses the graders of the tasks.
 */
#include "cli/cli.h"

#include "base/mem.h"
#include "data/json.h"
#include "math/math.h"

#include <stdio.h>
#include <string.h>

enum { MAX_GOLDS = 64 };

const char *kg_grade_kind = "math";
static const char *mode_name = "default";
static const char *answer_tags = "1";
static struct kg_qa_format format = {.structure = 0.2, .final = 0.1};

const struct kg_flag kg_grade_flags[] = {
    {"kind", 'k', KG_TO(kg_grade_kind), "KIND", "kind of grading (default math)", 0, 0,
     "math|qa-em|qa-subem|qa-f1|qa-format|qa-extract"},
    {"mode", 0, KG_IF("=math", mode_name), "MODE",
     "mode: default, ema-pg, mathd or dapo (default default)"},
    {"answer-tags", 0, KG_IF("=qa-*", answer_tags), "N",
     "pairs of answer tags that a response must contain; 2 if it includes a prompt that "
     "shows one (default 1)",
     0, 0, "1|2"},
    {"structure", 0, KG_IF("=qa-format", format.structure), "S",
     "score of a valid format (default 0.2)", 0, 1},
    {"final", 0, KG_IF("=qa-format", format.final), "F",
     "score of a wrong answer without a valid format (default 0.1)", 0, 1},
    {"retrieval", 0, KG_IF("=qa-format", format.retrieval), "R",
     "score added if a gold answer was retrieved (default 0)", 0, 1},
    {0},
};

struct line {
    struct kg_math_opts opts;
    struct kg_math_text answer;
    struct kg_math_text golds[MAX_GOLDS];
    size_t n_golds;
};

static kg_status read_text(const char **text, size_t *n, const struct kg_json_doc *doc,
                           const struct kg_json *v, const char *key, struct kg_err *err)
{
    *text = kg_json_text(v, n);
    if (*text)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT, "%s: key '%s': expected string, found %s", doc->where,
                   key, kg_json_type_name(v));
}

static kg_status read_golds(struct line *line, const struct kg_json_doc *doc,
                            struct kg_err *err)
{
    const struct kg_json *gold;

    KG_TRY(kg_json_need(&gold, doc, doc->root, "gold",
                        kg_json_type(kg_json_get(doc->root, "gold")) == KG_JSON_ARRAY
                            ? KG_JSON_ARRAY
                            : KG_JSON_STRING,
                        err));
    if (kg_json_type(gold) == KG_JSON_STRING) {
        line->n_golds = 1;
        return read_text(&line->golds[0].text, &line->golds[0].n, doc, gold, "gold", err);
    }
    line->n_golds = kg_json_size(gold);
    if (line->n_golds == 0 || line->n_golds > MAX_GOLDS)
        return kg_fail(err, KG_EFORMAT,
                       "%s: key 'gold': expected 1 to %d alternatives, found %zu",
                       doc->where, MAX_GOLDS, line->n_golds);
    for (size_t i = 0; i < line->n_golds; i++)
        KG_TRY(read_text(&line->golds[i].text, &line->golds[i].n, doc,
                         kg_json_at(gold, i), "gold", err));
    return KG_OK;
}

/* An integer counts decimals; another number is a tolerance; a list has one per item. */
static kg_status read_precision(struct kg_math_opts *o, const struct kg_json_doc *doc,
                                struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(doc->root, "precision");
    size_t n = kg_json_type(v) == KG_JSON_ARRAY ? kg_json_size(v) : 1;

    if (!v || kg_json_type(v) == KG_JSON_NULL)
        return KG_OK;
    if (kg_json_type(v) == KG_JSON_INT && kg_json_int(v, 0) >= 1 &&
        kg_json_int(v, 0) <= 100) {
        o->decimals = (int)kg_json_int(v, 0);
        return KG_OK;
    }
    if (n == 0 || n > KG_MATH_MAX_TOLERANCES)
        return kg_fail(err, KG_EFORMAT,
                       "%s: key 'precision': expected 1 to %d tolerances, found %zu",
                       doc->where, KG_MATH_MAX_TOLERANCES, n);
    for (size_t i = 0; i < n; i++) {
        const struct kg_json *x = kg_json_type(v) == KG_JSON_ARRAY ? kg_json_at(v, i) : v;

        const bool number = kg_json_is_number(x);
        char text[KG_NUMBER];

        if (!number || !(kg_json_real(x, -1) > 0))
            return kg_fail(err, KG_EFORMAT,
                           "%s: key 'precision': expected a number of decimal places (an "
                           "integer from 1 to 100) or tolerances above 0, found %s",
                           doc->where,
                           number ? kg_number(text, kg_json_real(x, 0), 6)
                                  : kg_json_type_name(x));
        o->tolerance[i] = kg_json_real(x, 0);
    }
    o->n_tolerance = (int)n;
    return KG_OK;
}

/* Refuses a key of another type; a missing key or null is allowed. */
static kg_status check_type(const struct kg_json_doc *doc, const char *key,
                            enum kg_json_type want, const char *name, struct kg_err *err)
{
    const struct kg_json *v = kg_json_get(doc->root, key);

    if (!v || kg_json_type(v) == want || kg_json_type(v) == KG_JSON_NULL)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT, "%s: key '%s': expected %s, found %s", doc->where,
                   key, name, kg_json_type_name(v));
}

static kg_status read_switches(struct kg_math_opts *o, const struct kg_json_doc *doc,
                               struct kg_err *err)
{
    static const char set[] = "allow_set_relation_comp";

    KG_TRY(check_type(doc, "strict", KG_JSON_BOOL, "true or false", err));
    KG_TRY(check_type(doc, set, KG_JSON_BOOL, "true or false", err));
    KG_TRY(check_type(doc, "language", KG_JSON_STRING, "string", err));
    o->lenient = !kg_json_bool(kg_json_get(doc->root, "strict"), true);
    o->strict_sets = !kg_json_bool(kg_json_get(doc->root, set), true);
    return KG_OK;
}

static kg_status read_line(struct line *line, const struct kg_json_doc *doc,
                           const struct kg_math_mode *mode, struct kg_err *err)
{
    const struct kg_json *answer = kg_json_get(doc->root, "answer");
    const struct kg_json *response = kg_json_get(doc->root, "response");
    const struct kg_json *form = kg_json_get(doc->root, "form");
    const char *key = answer ? "answer" : "response";

    line->opts = (struct kg_math_opts){.mode = mode};
    if (!answer && !response)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected key 'answer' or 'response', found neither",
                       doc->where);
    KG_TRY(read_text(&line->answer.text, &line->answer.n, doc, answer ? answer : response,
                     key, err));
    KG_TRY(read_golds(line, doc, err));
    KG_TRY(read_precision(&line->opts, doc, err));
    KG_TRY(read_switches(&line->opts, doc, err));
    if (!answer)
        line->opts.form = KG_MATH_FORM_RESPONSE;
    if (form) {
        struct kg_math_text name;

        KG_TRY(read_text(&name.text, &name.n, doc, form, "form", err));
        if (kg_math_form_find(&line->opts.form, name.text, err) != KG_OK)
            return kg_err_prefix(err, "%s: key 'form'", doc->where);
    }
    return KG_OK;
}

static kg_status put_result(struct kg_str *out, const struct kg_math_result *r,
                            struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "{\"verdict\": \"%s\", \"extracted\": ",
                         kg_math_verdict_name(r->verdict)));
    KG_TRY(kg_json_put_string(out, kg_str_text(&r->extracted), r->extracted.len, err));
    KG_TRY(kg_json_put_text(out, ", \"reason\": ", r->reason, err));
    return kg_str_puts(out, "}\n", err);
}

struct grading {
    const struct kg_math_mode *mode;
    struct kg_math_result result; /* owned */
};

static kg_status answer(struct kg_str *out, const struct kg_json_doc *doc, void *context,
                        struct kg_err *err)
{
    struct grading *g = context;
    struct line line;

    KG_TRY(read_line(&line, doc, g->mode, err));
    KG_TRY(kg_math_grade(&g->result, &line.opts, line.answer, line.golds, line.n_golds,
                         err));
    return put_result(out, &g->result, err);
}

static kg_status grade_math(struct kg_err *err)
{
    struct grading g = {0};

    KG_TRY(kg_math_mode_find(&g.mode, mode_name, err));
    kg_status status = kg_cli_filter(answer, &g, err);
    kg_math_result_release(&g.result);
    return status;
}

/* kedge grade --kind qa-*: answers to questions, graded by the metrics of task/qa.h. A
 * line has a prediction, which is the answer itself, or a response, from which the answer
 * is extracted as in training; and one or several gold answers. A kind is "qa-" and the
 * name of a metric. Extraction and the format reward treat a response as one turn of the
 * model. */

static kg_status put_gold(struct kg_grade_qa *g, const struct kg_json_doc *doc,
                          const struct kg_json *v, struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&g->golds, &g->capacity, g->n_golds + 1, sizeof *g->golds, 1 << 16,
                       "golden answers", err));
    struct kg_qa_text *gold = &g->golds[g->n_golds++];
    return read_text(&gold->text, &gold->n, doc, v, "golden_answers", err);
}

static kg_status read_qa_golds(struct kg_grade_qa *g, const struct kg_json_doc *doc,
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

/* The answer of a line: the prediction itself, or extracted from the response. Format and
 * extraction accept either.   *response: the text that was read, or empty */
static kg_status read_qa_answer(struct kg_qa_text *answer, bool *answered,
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
        return read_text(&answer->text, &answer->n, doc, prediction, key, err);
    KG_TRY(read_text(&response->text, &response->n, doc, kg_json_get(doc->root, key), key,
                     err));
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

    KG_TRY(read_qa_golds(g, doc, err));
    KG_TRY(read_qa_answer(&answer, &answered, &response, g, doc, err));
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

static kg_status grade_qa(struct kg_err *err)
{
    struct kg_grade_qa g = {.pairs = answer_tags[0] - '0', .scores = format};

    KG_TRY(kg_grade_qa_init(&g, kg_grade_kind, err));
    kg_status status = kg_cli_filter(kg_grade_qa_line, &g, err);
    kg_grade_qa_release(&g);
    return status;
}

int kg_cmd_grade(int argc, char **argv)
{
    struct kg_err err;

    (void)argc;
    (void)argv;
    return kg_cli_exit(
        strcmp(kg_grade_kind, "math") == 0 ? grade_math(&err) : grade_qa(&err), &err);
}
