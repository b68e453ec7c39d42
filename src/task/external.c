/* Grading by a program of the user's: a batch of lines in, as many out.
 *
 * On its standard input a line for each response, {"prompt", "response", "ground_truth",
 * "data_source", "extra_info"}; on its standard output a line for each, in the same
 * order: {"score": number}, and "correct": true or false if it wants accuracy to be
 * something else than score >= 1. A score beyond 1e9 in size is refused; one of null says
 * that the response could not be graded. Anything else, one line too few or too many, a
 * time-out or an exit status other than 0 fails the batch.
 */
#include "task/task_internal.h"

#include <math.h>
#include <string.h>

/* Squares and sums of such scores are finite, and so are float32 gradients of them. */
static const double MAX_SCORE = 1e9;

enum {
    MAX_LINE_BYTES = 64 << 10, /* of an answer, on average */
};

kg_status kg_task_external_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                const char *path, struct kg_err *err)
{
    if ((!opts->command || !*opts->command) && !opts->rewards)
        return kg_fail(err, KG_EINVAL,
                       "task external: expected a command that grades, found none");
    return kg_task_read(d, path, opts, false, err);
}

static kg_status put_field(struct kg_str *out, const char *key, const char *text,
                           size_t n, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "\"%s\":", key));
    KG_TRY(kg_json_put_string(out, text, n, err));
    return kg_str_putc(out, ',', err);
}

static kg_status put_item(struct kg_str *out, const struct kg_grade_item *item,
                          struct kg_err *err)
{
    const struct kg_record *r = item->record;

    KG_TRY(kg_str_putc(out, '{', err));
    KG_TRY(put_field(out, "prompt", r->prompt, strlen(r->prompt), err));
    KG_TRY(put_field(out, "response", item->response, item->n, err));
    KG_TRY(put_field(out, "ground_truth", r->ground_truth, strlen(r->ground_truth), err));
    KG_TRY(put_field(out, "data_source", r->data_source, strlen(r->data_source), err));
    return kg_str_printf(out, err, "\"extra_info\":%s}\n",
                         r->extra_json ? r->extra_json : "null");
}

static kg_status read_grade(struct kg_grade *g, const char *line, size_t n,
                            struct kg_err *err)
{
    const struct kg_json *score;
    struct kg_json_doc doc;
    kg_status status = KG_OK;

    KG_TRY(kg_json_parse(&doc, line, n, "answer", err));
    score = kg_json_get(doc.root, "score");
    if (!score || !(kg_json_is_number(score) || kg_json_type(score) == KG_JSON_NULL)) {
        status = kg_fail(err, KG_EFORMAT,
                         "expected {\"score\": number or null}, found '%.*s'",
                         (int)(n < 80 ? n : 80), line);
        goto out;
    }
    if (fabs(kg_json_real(score, 0)) > MAX_SCORE) {
        status = kg_fail(err, KG_EFORMAT,
                         "expected a score of at most %g in size, found %g", MAX_SCORE,
                         kg_json_real(score, 0));
        goto out;
    }
    g->graded = kg_json_is_number(score);
    g->reward = kg_json_real(score, 0);
    g->correct = kg_json_bool(kg_json_get(doc.root, "correct"),
                              g->graded && g->reward >= 1);
out:
    kg_json_release(&doc);
    return status;
}

static kg_status read_grades(struct kg_grade *grades, size_t n,
                             const struct kg_str *answers, const char *command,
                             struct kg_err *err)
{
    const char *text = kg_str_text(answers);
    const char *end = text + answers->len;
    size_t line = 0;

    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t len = stop ? (size_t)(stop - text) : (size_t)(end - text);
        kg_status status;

        if (line == n)
            return kg_fail(err, KG_EFORMAT,
                           "'%.80s': expected %zu answers, found more: '%.*s'", command,
                           n, (int)(len < 80 ? len : 80), text);
        status = read_grade(&grades[line++], text, len, err);
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
                   "task external: expected a command and a time limit from 1 ms, found "
                   "%s and %d ms",
                   opts->command && *opts->command ? "one" : "none", opts->timeout_ms);
}

/* One start for the batch. */
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
    KG_TRY_GOTO(out, read_grades(grades, n, &answers, opts->command, err));
out:
    kg_str_release(&input);
    kg_str_release(&answers);
    return status;
}
