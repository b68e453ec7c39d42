/* Grading by a program of the user: it reads a batch of lines and writes one line for
 * each.
 *
 * On its standard input a line for each completion, {"prompt", "response",
 * "ground_truth", "data_source", "extra_info"}; on its standard output a line for each,
 * in the same order: {"score": number}, and optionally "correct": true or false (default:
 * score >= 1). A score beyond +-1e9 is refused; null means that the completion could
 * not be graded. Numbers and booleans under other keys are kept by their names, for
 * metrics. Anything else, one line too few or too many, a timeout or an exit status other
 * than 0 fails the batch.
 */
#include "task/task_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Squares, sums and float32 gradients of such scores are finite. */
static const double MAX_SCORE = 1e9;
/* Limit of further numbers, which are only averaged: their squares are finite. */
static const double MAX_FURTHER = 1e100;

enum {
    MAX_LINE_BYTES = 64 << 10, /* of an answer, on average */
};

kg_status kg_task_external_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                const char *path, struct kg_err *err)
{
    if ((!opts->command || !*opts->command) && !opts->rewards)
        return kg_fail(
            err, KG_EINVAL,
            "task external: expected a grading command (the key command), found none");
    return kg_task_read(d, path, opts, false, err);
}

static kg_status put_field(struct kg_str *out, const char *key, const char *text,
                           size_t n, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "\"%s\":", key));
    KG_TRY(kg_json_put_string(out, text, n, err));
    return kg_str_putc(out, ',', err);
}

kg_status kg_task_put_record(struct kg_str *out, const struct kg_record *r,
                             const char *response, size_t n, struct kg_err *err)
{
    KG_TRY(put_field(out, "prompt", r->prompt, strlen(r->prompt), err));
    if (response)
        KG_TRY(put_field(out, "response", response, n, err));
    KG_TRY(put_field(out, "ground_truth", r->ground_truth, strlen(r->ground_truth), err));
    KG_TRY(put_field(out, "data_source", r->data_source, strlen(r->data_source), err));
    KG_TRY(kg_str_printf(out, err, "\"extra_info\":%s",
                         r->extra_json ? r->extra_json : "null"));
    return r->turns ? kg_str_printf(out, err, ",\"conversation\":%s", r->turns) : KG_OK;
}

static kg_status put_item(struct kg_str *out, const struct kg_grade_item *item,
                          struct kg_err *err)
{
    KG_TRY(kg_str_putc(out, '{', err));
    KG_TRY(kg_task_put_record(out, item->record, item->response, item->n, err));
    return kg_str_puts(out, "}\n", err);
}

/* ---- answers ---- */

/* The key becomes part of a metric's name, after the name of its reward. */
static kg_status check_key(const char *key, struct kg_err *err)
{
    size_t n = strlen(key);
    bool good = n > 0 && n < KG_TASK_PART_NAME;

    for (size_t i = 0; good && i < n; i++)
        good = isalnum((unsigned char)key[i]) || kg_char_in("_-.", key[i]);
    if (good)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "expected a number's name of up to %d letters, digits, '_', '-' and "
                   "'.', found '%.80s'",
                   KG_TASK_PART_NAME - 1, key);
}

static kg_status keep_number(struct kg_grade *g, const struct kg_task_opts *opts,
                             const char *key, double x, struct kg_err *err)
{
    const char *of = opts->further_of;
    char name[KG_FURTHER_NAME];
    int k;

    KG_TRY(check_key(key, err));
    if (!(fabs(x) <= MAX_FURTHER))
        return kg_fail(err, KG_EFORMAT, "expected %s of magnitude at most %g, found %g",
                       key, MAX_FURTHER, x);
    if (!opts->further)
        return KG_OK;
    snprintf(name, sizeof name, "%s%s%s", of ? of : "", of ? "/" : "", key);
    KG_TRY(kg_further_find(&k, opts->further, name, err));
    g->further.said |= (uint32_t)1 << k;
    g->further.x[k] = x;
    return KG_OK;
}

static kg_status read_further(struct kg_grade *g, const struct kg_task_opts *opts,
                              const struct kg_json *answer, struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(answer); i++) {
        const struct kg_json *v = kg_json_value_at(answer, i);
        const char *key = kg_json_key_at(answer, i);
        bool truth = kg_json_type(v) == KG_JSON_BOOL;

        if (strcmp(key, "score") == 0 || strcmp(key, "correct") == 0)
            continue;
        if (truth || kg_json_is_number(v))
            KG_TRY(keep_number(g, opts, key,
                               truth ? kg_json_bool(v, false) : kg_json_real(v, 0), err));
    }
    return KG_OK;
}

static kg_status read_score(struct kg_grade *g, const struct kg_json *answer,
                            const char *line, size_t n, struct kg_err *err)
{
    const struct kg_json *score = kg_json_get(answer, "score");
    const struct kg_json *correct = kg_json_get(answer, "correct");

    if (!score || !(kg_json_is_number(score) || kg_json_type(score) == KG_JSON_NULL))
        return kg_fail(err, KG_EFORMAT,
                       "expected {\"score\": number or null}, found '%.*s'",
                       (int)(n < 80 ? n : 80), line);
    if (fabs(kg_json_real(score, 0)) > MAX_SCORE)
        return kg_fail(err, KG_EFORMAT,
                       "expected a score of magnitude at most %g, found %g", MAX_SCORE,
                       kg_json_real(score, 0));
    if (correct && kg_json_type(correct) != KG_JSON_BOOL &&
        kg_json_type(correct) != KG_JSON_NULL)
        return kg_fail(err, KG_EFORMAT, "expected correct as true or false, found '%.*s'",
                       (int)(n < 80 ? n : 80), line);
    g->graded = kg_json_is_number(score);
    g->reward = kg_json_real(score, 0);
    g->correct = kg_json_bool(correct, g->graded && g->reward >= 1);
    return KG_OK;
}

static kg_status read_grade(struct kg_grade *g, const struct kg_task_opts *opts,
                            const char *line, size_t n, struct kg_err *err)
{
    struct kg_json_doc doc;

    KG_TRY(kg_json_parse(&doc, line, n, "answer", err));
    kg_status status = read_score(g, doc.root, line, n, err);
    if (status == KG_OK)
        status = read_further(g, opts, doc.root, err);
    kg_json_release(&doc);
    return status;
}

static kg_status read_grades(struct kg_grade *grades, size_t n,
                             const struct kg_str *answers,
                             const struct kg_task_opts *opts, struct kg_err *err)
{
    const char *command = opts->command;
    const char *text = kg_str_text(answers);
    const char *end = text + answers->len;
    size_t line = 0;

    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t len = stop ? (size_t)(stop - text) : (size_t)(end - text);

        if (line == n)
            return kg_fail(err, KG_EFORMAT,
                           "'%.80s': expected %zu answers, found more: '%.*s'", command,
                           n, (int)(len < 80 ? len : 80), text);
        kg_status status = read_grade(&grades[line++], opts, text, len, err);
        if (status != KG_OK)
            return kg_err_prefix(err, "'%.80s': line %zu", command, line);
        text += stop ? len + 1 : len;
    }
    if (line < n)
        return kg_fail(err, KG_EFORMAT, "'%.80s': expected %zu answers, found %zu",
                       command, n, line);
    return KG_OK;
}

kg_status kg_task_external_check(const struct kg_task_opts *opts, struct kg_err *err)
{
    if (opts->command && *opts->command && opts->timeout_ms >= 1)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "task external: expected a grading command (the key command) and a "
                   "timeout of at least 1 ms, found %s and %d ms",
                   opts->command && *opts->command ? "one" : "none", opts->timeout_ms);
}

/* Starts the command for this batch alone. */
static kg_status ask_once(struct kg_str *answers, const struct kg_task_opts *opts,
                          const struct kg_task_talk *batch, struct kg_err *err)
{
    const struct kg_task_command command = {
        .command = opts->command, .env = opts->env, .timeout_ms = opts->timeout_ms};
    struct kg_task_talk talk = *batch;
    struct kg_task_child *child;

    talk.end = true;
    KG_TRY(kg_task_env_check(opts->env, err));
    KG_TRY(kg_task_child_start(&child, &command, err));
    if (kg_task_child_ask(answers, child, &talk, err) == KG_OK)
        return kg_task_child_end(child, err);
    kg_task_child_kill(child);
    return err->code;
}

kg_status kg_task_external_grade(struct kg_grade *grades, const struct kg_task_opts *opts,
                                 const struct kg_grade_item *items, size_t n,
                                 struct kg_err *err)
{
    struct kg_task_talk talk = {.lines = n, .max_output = (n + 1) * MAX_LINE_BYTES};
    struct kg_str input = {0};
    struct kg_str answers = {0};
    kg_status status = KG_OK;

    KG_TRY(kg_task_external_check(opts, err));
    for (size_t i = 0; i < n; i++)
        KG_TRY_GOTO(out, put_item(&input, &items[i], err));
    talk.input = kg_str_text(&input);
    talk.input_n = input.len;
    KG_TRY_GOTO(out, opts->running
                         ? kg_task_grader_ask(&answers, opts->running, &talk, err)
                         : ask_once(&answers, opts, &talk, err));
    KG_TRY_GOTO(out, read_grades(grades, n, &answers, opts, err));
out:
    kg_str_release(&input);
    kg_str_release(&answers);
    return status;
}
