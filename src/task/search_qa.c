/* Questions for a search agent: prompts in Search-R1's manner, answers by task/qa.h.
 *
 * A bare question is put into the instruction of a wording (task/wording.h), or only into
 * data.template if that is set. A prompt that already names the search and answer tags is
 * not changed: verl's files of Search-R1 have such prompts. Gold answers are kept as a
 * JSON list of alternatives.
 */
#include "base/log.h"
#include "base/mem.h"
#include "task/qa.h"
#include "task/task_internal.h"
#include "task/wording.h"

#include <string.h>

enum { MAX_GOLDS = 1 << 16 };

/* ---- prompts ---- */

static bool is_ready(const char *prompt)
{
    return strstr(prompt, kg_search_tags.tool.open) &&
           strstr(prompt, kg_search_tags.answer.open);
}

/* Puts the trimmed question, with a question mark. */
static kg_status put_question(struct kg_str *out, const char *question,
                              struct kg_err *err)
{
    size_t n;
    const char *text = kg_text_trim(&n, question, strlen(question));

    KG_TRY(kg_str_append(out, text, n, err));
    return n > 0 && text[n - 1] == '?' ? KG_OK : kg_str_putc(out, '?', err);
}

static kg_status make_prompt(struct kg_str *out, const char *question,
                             const struct kg_task_opts *opts, struct kg_err *err)
{
    const char *own = opts->prompt.template_text;
    const struct kg_wording *words;

    if (own && *own)
        return put_question(out, question, err);
    KG_TRY(kg_wording_find(&words, opts->wording, err));
    KG_TRY(kg_str_puts(out, words->instruction, err));
    KG_TRY(put_question(out, question, err));
    return kg_str_putc(out, '\n', err);
}

/* ---- gold answers ---- */

struct golds {
    struct kg_json_doc doc;  /* owns the texts of a list */
    struct kg_qa_text *text; /* (n) owned array */
    size_t n;
    size_t capacity;
    char **number; /* (n_numbers) owned: texts of answers that are numbers */
    size_t n_numbers;
    size_t number_capacity;
};

static void golds_release(struct golds *g)
{
    kg_json_release(&g->doc);
    for (size_t i = 0; i < g->n_numbers; i++)
        kg_mem_free(g->number[i]);
    kg_mem_free(g->number);
    kg_mem_free(g->text);
}

static kg_status add_gold(struct golds *g, struct kg_qa_text gold, struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&g->text, &g->capacity, g->n + 1, sizeof *g->text, MAX_GOLDS,
                       "gold answers", err));
    g->text[g->n++] = gold;
    return KG_OK;
}

/* A number in the file, such as a year, becomes its text. */
static kg_status add_number(struct golds *g, const struct kg_json *v, struct kg_err *err)
{
    struct kg_str digits = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_mem_grow(&g->number, &g->number_capacity, g->n_numbers + 1,
                                 sizeof *g->number, MAX_GOLDS, "gold answers", err));
    KG_TRY_GOTO(out, kg_json_put_value(&digits, v, err));
    size_t n = digits.len;
    char *text = kg_str_take(&digits, err);
    if (!text)
        return err->code;
    g->number[g->n_numbers++] = text;
    return add_gold(g, (struct kg_qa_text){text, n}, err);
out:
    kg_str_release(&digits);
    return status;
}

static kg_status add_value(struct golds *g, const struct kg_json *v, struct kg_err *err)
{
    struct kg_qa_text gold;

    if (kg_json_is_number(v))
        return add_number(g, v, err);
    gold.text = kg_json_text(v, &gold.n);
    if (!gold.text)
        return kg_fail(err, KG_EFORMAT,
                       "expected gold answers that are strings or numbers, found %s",
                       kg_json_type_name(v));
    return add_gold(g, gold, err);
}

/* A list or an object is JSON. A text that only looks like one ("[sic]") is one
 * answer. */
static kg_status parse_golds(bool *parsed, struct golds *g, const char *truth,
                             struct kg_err *err)
{
    *parsed = false;
    if (*truth != '[' && *truth != '{')
        return KG_OK;
    kg_status status = kg_json_parse(&g->doc, truth, strlen(truth), "gold answers", err);
    *parsed = status == KG_OK;
    if (!*parsed)
        memset(&g->doc, 0, sizeof g->doc);
    return status == KG_EFORMAT ? KG_OK : status;
}

/* {"target": text or list} is verl's form; a list holds alternatives; any other value is
 * one answer. */
static kg_status read_golds(struct golds *g, const char *truth, struct kg_err *err)
{
    bool parsed;

    memset(g, 0, sizeof *g);
    KG_TRY(parse_golds(&parsed, g, truth, err));
    if (!parsed)
        return add_gold(g, (struct kg_qa_text){truth, strlen(truth)}, err);
    const struct kg_json *v = g->doc.root;
    if (kg_json_type(v) == KG_JSON_OBJECT)
        v = kg_json_get(v, "target");
    if (kg_json_type(v) != KG_JSON_ARRAY)
        return add_value(g, v, err);
    for (size_t i = 0; i < kg_json_size(v); i++)
        KG_TRY(add_value(g, kg_json_at(v, i), err));
    if (g->n == 0)
        return kg_fail(err, KG_EFORMAT, "expected at least one gold answer, found none");
    return KG_OK;
}

static kg_status put_golds(struct kg_str *out, const struct golds *g, struct kg_err *err)
{
    for (size_t i = 0; i < g->n; i++) {
        KG_TRY(kg_str_puts(out, i ? "," : "[", err));
        KG_TRY(kg_json_put_string(out, g->text[i].text, g->text[i].n, err));
    }
    return kg_str_putc(out, ']', err);
}

/* *empty: a gold answer is empty when normalised, so that an empty answer is right */
static kg_status has_empty(bool *empty, const struct golds *g, struct kg_err *err)
{
    struct kg_str plain = {0};
    kg_status status = KG_OK;

    *empty = false;
    for (size_t i = 0; i < g->n && !*empty && status == KG_OK; i++) {
        kg_str_clear(&plain);
        status = kg_qa_normalise(&plain, g->text[i].text, g->text[i].n, err);
        *empty = plain.len == 0;
    }
    kg_str_release(&plain);
    return status;
}

/* ---- loading ---- */

static kg_status replace(char **text, struct kg_str *by, struct kg_err *err)
{
    char *fresh = kg_str_take(by, err);

    if (!fresh)
        return err->code;
    kg_mem_free(*text);
    *text = fresh;
    return KG_OK;
}

static kg_status instruct(struct kg_record *r, const struct kg_task_opts *opts,
                          struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status = make_prompt(&text, r->prompt, opts, err);
    char *prompt = status == KG_OK ? kg_str_take(&text, err) : NULL;

    kg_str_release(&text);
    KG_TRY(status);
    return prompt ? kg_task_set_question(r, prompt, err) : err->code;
}

static kg_status prepare(struct kg_record *r, bool *empty,
                         const struct kg_task_opts *opts, struct kg_err *err)
{
    struct kg_str text = {0};
    struct golds golds;
    kg_status status;

    KG_TRY_GOTO(out, read_golds(&golds, r->ground_truth, err));
    KG_TRY_GOTO(out, has_empty(empty, &golds, err));
    KG_TRY_GOTO(out, put_golds(&text, &golds, err));
    KG_TRY_GOTO(out, replace(&r->ground_truth, &text, err));
    if (kg_task_has_question(r) && !is_ready(r->prompt))
        status = instruct(r, opts, err);
out:
    golds_release(&golds);
    kg_str_release(&text);
    return status;
}

kg_status kg_task_search_qa_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                 const char *path, struct kg_err *err)
{
    size_t empties = 0;
    int64_t first = 0;
    kg_status status;

    KG_TRY(kg_task_read(d, path, opts, true, err));
    for (size_t i = 0; i < d->n; i++) {
        struct kg_record *r = &d->records[i];
        bool empty = false;

        if (prepare(r, &empty, opts, err) != KG_OK) {
            status = kg_err_prefix(err, "%s: %s %lld", d->name, d->unit,
                                   (long long)r->line);
            kg_dataset_release(d);
            return status;
        }
        first = empty && empties == 0 ? r->line : first;
        empties += empty;
    }
    if (empties)
        kg_log_warn("%s: %zu records have a gold answer that is empty after "
                    "normalisation (first: %s %lld): an empty answer is graded as right",
                    d->name, empties, d->unit, (long long)first);
    return KG_OK;
}

/* ---- grading ---- */

/* The episode of an item; a completion of one turn is one span.   whole: that span */
static struct kg_qa_episode episode_of(struct kg_span *whole,
                                       const struct kg_grade_item *item)
{
    const char *prompt = item->record->prompt ? item->record->prompt : "";

    *whole = (struct kg_span){item->response, item->n, KG_SOURCE_MODEL};
    return (struct kg_qa_episode){.prompt = prompt,
                                  .prompt_n = strlen(prompt),
                                  .spans = item->spans ? item->spans : whole,
                                  .n_spans = item->spans ? item->n_spans : 1};
}

static bool find_answer(struct kg_qa_text *answer, const struct kg_task_opts *opts,
                        const struct kg_qa_episode *e)
{
    return kg_qa_extract(answer, e, opts->answer_tags == 2 ? 2 : 1);
}

static kg_status score(struct kg_grade *g, const struct kg_task_opts *opts,
                       const struct kg_qa_episode *e, const struct golds *golds,
                       struct kg_err *err)
{
    const char *name = opts->metric && *opts->metric ? opts->metric : "em";
    bool format = strcmp(name, "format") == 0;
    const struct kg_qa_metric *metric;
    const struct kg_qa_metric *exact = kg_qa_metrics();
    struct kg_qa_facts facts = {0};
    struct kg_qa_text answer;
    double right = 0;

    KG_TRY(kg_qa_metric_find(&metric, format ? "em" : name, err));
    facts.answered = find_answer(&answer, opts, e);
    if (facts.answered) {
        KG_TRY(kg_qa_score(&g->reward, metric, answer, golds->text, golds->n, err));
        KG_TRY(kg_qa_score(&right, metric->exact ? metric : exact, answer, golds->text,
                           golds->n, err));
    }
    g->correct = facts.right = right == 1;
    if (!format)
        return KG_OK;
    facts.valid = kg_qa_is_valid(e);
    KG_TRY(kg_qa_is_retrieved(&facts.retrieved, e, golds->text, golds->n, err));
    g->reward = kg_qa_format_score(&opts->format, &facts);
    return KG_OK;
}

kg_status kg_task_search_qa_grade(struct kg_grade *g, const struct kg_task_opts *opts,
                                  const struct kg_grade_item *item, struct kg_err *err)
{
    struct kg_span whole;
    const struct kg_qa_episode e = episode_of(&whole, item);
    struct golds golds;
    kg_status status;

    *g = (struct kg_grade){.graded = true};
    KG_TRY_GOTO(out, read_golds(&golds, item->record->ground_truth, err));
    status = score(g, opts, &e, &golds, err);
out:
    golds_release(&golds);
    return status;
}

kg_status kg_task_search_qa_extract(struct kg_str *out, const struct kg_task_opts *opts,
                                    const struct kg_grade_item *item, struct kg_err *err)
{
    struct kg_span whole;
    const struct kg_qa_episode e = episode_of(&whole, item);
    struct kg_qa_text answer;

    find_answer(&answer, opts, &e);
    return kg_str_append(out, answer.text, answer.n, err);
}

kg_status kg_task_search_qa_same(bool *same, const struct kg_task_opts *opts,
                                 const char *a, const char *b, struct kg_err *err)
{
    const struct kg_qa_text gold = {b, strlen(b)};
    double equal;

    (void)opts;
    KG_TRY(kg_qa_score(&equal, kg_qa_metrics(), (struct kg_qa_text){a, strlen(a)}, &gold,
                       1, err));
    *same = equal == 1;
    return KG_OK;
}
