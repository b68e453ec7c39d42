/* Mathematics: answers in LaTeX or plain text, graded by math/ in one of its modes.
 *
 * A gold answer is text, or a JSON list of texts, each of which is right. Before a run
 * starts every gold answer is graded against itself, boxed (or after "Answer:" if the
 * mode reads that). If it is not right, no completion can be: the run stops, unless the
 * record is excluded by name, or such records are to be dropped and counted.
 */
#include "math/math.h"
#include "base/log.h"
#include "base/mem.h"
#include "task/task_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { MAX_GOLDS = 64, NAMED = 8 };

static kg_status math_opts(struct kg_math_opts *out, const struct kg_task_opts *opts,
                           struct kg_err *err)
{
    *out = (struct kg_math_opts){.form = KG_MATH_FORM_RESPONSE,
                                 .keep_thinking = opts->keep_thinking};
    if (!opts->grader || !*opts->grader)
        return KG_OK;
    return kg_math_mode_find(&out->mode, opts->grader, err);
}

/* ---- gold answers ---- */

struct golds {
    struct kg_json_doc doc; /* owns the texts of a list */
    struct kg_math_text text[MAX_GOLDS];
    size_t n;
};

/* A list of strings holds alternatives; "[1, 2]" or any other text is one answer. */
static kg_status read_golds(struct golds *g, const char *truth, struct kg_err *err)
{
    memset(g, 0, sizeof *g);
    g->text[0] = (struct kg_math_text){truth, strlen(truth)};
    g->n = 1;
    if (truth[0] != '[' || truth[1] != '"' ||
        kg_json_parse(&g->doc, truth, strlen(truth), "gold answers", err) != KG_OK) {
        memset(&g->doc, 0, sizeof g->doc);
        return KG_OK;
    }
    g->n = kg_json_size(g->doc.root);
    if (g->n > MAX_GOLDS)
        return kg_fail(err, KG_EFORMAT, "expected at most %d gold answers, found %zu",
                       MAX_GOLDS, g->n);
    for (size_t i = 0; i < g->n; i++) {
        g->text[i].text = kg_json_text(kg_json_at(g->doc.root, i), &g->text[i].n);
        if (!g->text[i].text)
            return kg_fail(err, KG_EFORMAT,
                           "expected gold answers that are strings, found %s",
                           kg_json_type_name(kg_json_at(g->doc.root, i)));
    }
    return KG_OK;
}

kg_status kg_task_math_grade(struct kg_grade *g, const struct kg_task_opts *opts,
                             const struct kg_grade_item *item, struct kg_err *err)
{
    struct kg_math_opts how;
    struct kg_math_result result = {0};
    struct golds golds;
    kg_status status;

    KG_TRY(math_opts(&how, opts, err));
    KG_TRY_GOTO(out, read_golds(&golds, item->record->ground_truth, err));
    KG_TRY_GOTO(out, kg_math_grade(&result, &how,
                                   (struct kg_math_text){item->response, item->n},
                                   golds.text, golds.n, err));
    g->undecided = result.verdict == KG_MATH_UNDECIDED;
    g->graded = !g->undecided;
    g->correct = result.verdict == KG_MATH_RIGHT;
    g->reward = g->correct;
out:
    kg_math_result_release(&result);
    kg_json_release(&golds.doc);
    return status;
}

/* ---- votes ---- */

kg_status kg_task_math_extract(struct kg_str *out, const struct kg_task_opts *opts,
                               const struct kg_grade_item *item, struct kg_err *err)
{
    struct kg_math_text gold = {item->record->ground_truth,
                                strlen(item->record->ground_truth)};
    struct kg_math_result result = {0};
    struct kg_math_opts how;
    kg_status status;

    KG_TRY(math_opts(&how, opts, err));
    KG_TRY_GOTO(out, kg_math_grade(&result, &how,
                                   (struct kg_math_text){item->response, item->n}, &gold,
                                   1, err));
    status = kg_str_append(out, kg_str_text(&result.extracted), result.extracted.len,
                           err);
out:
    kg_math_result_release(&result);
    return status;
}

/* Equal texts are the same even if the grader cannot decide. */
kg_status kg_task_math_same(bool *same, const struct kg_task_opts *opts, const char *a,
                            const char *b, struct kg_err *err)
{
    struct kg_math_text gold = {b, strlen(b)};
    struct kg_math_result result = {0};
    struct kg_math_opts how;
    kg_status status;

    *same = strcmp(a, b) == 0;
    if (*same)
        return KG_OK;
    KG_TRY(math_opts(&how, opts, err));
    how.form = KG_MATH_FORM_ANSWER;
    status = kg_math_grade(&result, &how, (struct kg_math_text){a, strlen(a)}, &gold, 1,
                           err);
    *same = result.verdict == KG_MATH_RIGHT;
    kg_math_result_release(&result);
    return status;
}

/* ---- the check of gold answers ---- */

/* A response with the gold answer and nothing else. */
static kg_status put_response(struct kg_str *out, const struct kg_math_opts *how,
                              struct kg_math_text gold, struct kg_err *err)
{
    bool line = how->mode && strcmp(how->mode->name, "dapo") == 0;
    bool boxed = gold.n && strstr(gold.text, "\\boxed{");

    kg_str_clear(out);
    if (line || !boxed)
        KG_TRY(kg_str_puts(out, line ? "Answer: " : "\\boxed{", err));
    KG_TRY(kg_str_append(out, gold.text, gold.n, err));
    return line || boxed ? KG_OK : kg_str_putc(out, '}', err);
}

static bool is_blank(struct kg_math_text t)
{
    for (size_t i = 0; i < t.n; i++) {
        if (!isspace((unsigned char)t.text[i]))
            return false;
    }
    return true;
}

/* *good: each gold answer of the record is graded as right; why: what is not */
static kg_status check_gold(bool *good, char why[160], const struct kg_math_opts *how,
                            const struct kg_record *r, struct kg_err *err)
{
    struct kg_math_result result = {0};
    struct kg_str response = {0};
    struct golds golds;
    kg_status status;

    *good = true;
    KG_TRY_GOTO(out, read_golds(&golds, r->ground_truth, err));
    for (size_t i = 0; i < golds.n && *good; i++) {
        KG_TRY_GOTO(out, put_response(&response, how, golds.text[i], err));
        KG_TRY_GOTO(out, kg_math_grade(
                             &result, how,
                             (struct kg_math_text){kg_str_text(&response), response.len},
                             golds.text, golds.n, err));
        /* the string modes grade an empty answer as equal to an empty gold answer */
        *good = result.verdict == KG_MATH_RIGHT && !is_blank(golds.text[i]);
        if (!*good)
            snprintf(why, 160, "'%.60s': %.80s", golds.text[i].text,
                     is_blank(golds.text[i]) ? "empty" : result.reason);
    }
out:
    kg_str_release(&response);
    kg_math_result_release(&result);
    kg_json_release(&golds.doc);
    return status;
}

/* How a record is named: by its id, else by its line, element or row. */
static void record_name(char out[80], const struct kg_record *r)
{
    if (r->id)
        snprintf(out, 80, "%s", r->id);
    else
        snprintf(out, 80, "%lld", (long long)r->line);
}

/* Whether an item of the list "a,b.jsonl:c" names a record of file, by its base name. */
static bool is_named(const char *item, size_t len, const char *file, const char *name)
{
    const char *slash = strrchr(file, '/');
    const char *base = slash ? slash + 1 : file;
    size_t n = strlen(name), m = strlen(base);

    if (len == n)
        return memcmp(item, name, n) == 0;
    return len == m + 1 + n && memcmp(item, base, m) == 0 && item[m] == ':' &&
           memcmp(item + m + 1, name, n) == 0;
}

/* The name at *at of a list, without blanks before it; *at moves past it.
 * returns NULL at the end */
static const char *next_name(const char **at, size_t *len)
{
    const char *name = *at ? *at + strspn(*at, " ") : NULL;
    const char *comma = name ? strchr(name, ',') : NULL;

    if (!name || !*name)
        return NULL;
    *len = comma ? (size_t)(comma - name) : strlen(name);
    *at = comma ? comma + 1 : NULL;
    return name;
}

size_t kg_task_names(const char *list)
{
    size_t n = 0, len;

    while (next_name(&list, &len))
        n++;
    return n;
}

static const char *key_of(const struct kg_task_opts *opts)
{
    return opts->exclude_key ? opts->exclude_key : "task.exclude";
}

kg_status kg_task_check_excluded(const struct kg_task_opts *opts, struct kg_err *err)
{
    const char *at = opts->exclude, *name;
    size_t len;

    for (size_t i = 0; (name = next_name(&at, &len)); i++)
        if (!opts->excluded[i])
            return kg_fail(err, KG_EINVAL,
                           "%s: expected ids (or lines) of records of task math, found "
                           "'%.*s', which no record has",
                           key_of(opts), len < 80 ? (int)len : 80, name);
    return KG_OK;
}

/* Whether a record is in the list; marks every name of the list that matches. */
static bool is_listed(const struct kg_task_opts *opts, const char *file, const char *name)
{
    const char *at = opts->exclude, *item;
    bool listed = false;
    size_t len;

    for (size_t i = 0; (item = next_name(&at, &len)); i++) {
        if (!is_named(item, len, file, name))
            continue;
        listed = true;
        if (opts->excluded)
            opts->excluded[i] = true;
    }
    return listed;
}

struct failures {
    char names[400];
    size_t n;
};

static void note_failure(struct failures *f, const struct kg_dataset *d, const char *name,
                         const char *why, bool excluded)
{
    size_t used = strlen(f->names);

    kg_log_warn("%s: %s %s: gold answer %s%s", d->name, d->is_file ? "record" : "problem",
                name, why, excluded ? " (excluded)" : "");
    if (excluded)
        return;
    if (f->n < NAMED)
        snprintf(f->names + used, sizeof f->names - used, "%s%s", used ? "," : "", name);
    f->n++;
}

/* *drop: whether the record is left out */
static kg_status check_record(struct failures *failures, bool *drop, struct kg_dataset *d,
                              const struct kg_record *r, const struct kg_math_opts *how,
                              bool drop_golds, struct kg_err *err)
{
    char name[80], why[160] = "";
    bool good;

    record_name(name, r);
    KG_TRY(check_gold(&good, why, how, r, err));
    *drop = r->excluded || (!good && drop_golds);
    if (!good || r->excluded)
        note_failure(failures, d, name, good ? "grades itself right" : why, *drop);
    d->dropped_excluded += r->excluded;
    d->dropped_golds += *drop && !r->excluded;
    return KG_OK;
}

/* The message has the setting to copy, with the names that are in the list already. */
static kg_status fail_golds(const struct failures *f, const struct kg_dataset *d,
                            const struct kg_task_opts *opts, struct kg_err *err)
{
    const char *before = opts->exclude ? opts->exclude : "";
    bool more = f->n > NAMED, fits = strlen(before) < sizeof f->names / 2;
    const char *names = fits ? before : "";

    return kg_fail(
        err, KG_EFORMAT,
        "%s: expected gold answers that are graded as right, found %zu that are not; to "
        "drop them%s: %s=\"%s%s%s%s\", or bad_golds=drop for all of them",
        d->name, f->n, fits ? "" : ", add to", key_of(opts), names, *names ? "," : "",
        f->names, more ? ",..." : "");
}

static kg_status check_golds(struct kg_dataset *d, const struct kg_task_opts *opts,
                             struct kg_err *err)
{
    bool *excluded = kg_mem_calloc(d->n, sizeof *excluded, "gold answers", err);
    struct failures failures = {.n = 0};
    struct kg_math_opts how;
    kg_status status = excluded ? KG_OK : err->code;

    KG_TRY_GOTO(out, status);
    KG_TRY_GOTO(out, math_opts(&how, opts, err));
    for (size_t i = 0; i < d->n; i++)
        KG_TRY_GOTO(out, check_record(&failures, &excluded[i], d, &d->records[i], &how,
                                      opts->drop_golds, err));
    kg_dataset_drop(d, excluded);
    if (failures.n > 0)
        status = fail_golds(&failures, d, opts, err);
out:
    kg_mem_free(excluded);
    return status;
}

/* GSM8K's own answers are worked solutions that end in "#### n". */
static kg_status take_marked(struct kg_record *r, struct kg_err *err)
{
    size_t len;
    const char *marked = kg_task_after_marker(r->ground_truth, strlen(r->ground_truth),
                                              &len);

    if (!marked)
        return KG_OK;
    while (len > 0 && *marked == ' ') {
        marked++;
        len--;
    }
    return kg_task_split_answer(r, marked, len, err);
}

kg_status kg_task_math_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                            const char *path, struct kg_err *err)
{
    kg_status status;

    KG_TRY(kg_task_read_all(d, path, opts, true, err));
    /* before repeated records are dropped, so that every name of the file is found */
    char name[80];

    for (size_t i = 0; i < d->n; i++) {
        record_name(name, &d->records[i]);
        d->records[i].excluded = is_listed(opts, d->name, name);
    }
    KG_TRY_GOTO(fail, kg_task_settle_repeated(d, opts->unique, err));
    for (size_t i = 0; i < d->n; i++)
        KG_TRY_GOTO(fail, take_marked(&d->records[i], err));
    KG_TRY_GOTO(fail, check_golds(d, opts, err));
    return KG_OK;
fail:
    kg_dataset_release(d);
    return status;
}
