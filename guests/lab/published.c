/* Look-ups in the tables of published runs, and their page.
 *
 * A published run is rows: a key, the value that was published, and where that stands.
 * What kedge runs is resolved from the preset as for any run, and the two are set side
 * by side, so a difference is seen and needs a reason. Rows may hold for several runs
 * by a pattern of names. The page is printed from the rows, and a test walks over them:
 * no value is kept twice.
 */
#include "lab/published_internal.h"

#include "cli/cli.h"

#include <string.h>

static const struct kg_published_study *const studies[] = {
    &kg_published_ema_pg_math, &kg_published_search, &kg_published_rpg,
    &kg_published_dapo,        &kg_published_dppo,   &kg_published_stability,
    &kg_published_verl,
};

size_t kg_published_count(void) { return KG_COUNT(studies); }

const struct kg_published_study *kg_published_at(size_t i)
{
    return i < KG_COUNT(studies) ? studies[i] : NULL;
}

/* ---- which rows are of which runs ---- */

/* pattern: len bytes, each * of them any bytes of name */
static bool is_match(const char *pattern, size_t len, const char *name)
{
    const char *end = pattern + len, *star = NULL, *again = NULL;

    while (*name) {
        if (pattern < end && *pattern == '*') {
            star = ++pattern;
            again = name;
        } else if (pattern < end && *pattern == *name) {
            pattern++;
            name++;
        } else if (star) { /* the last * takes one byte more */
            pattern = star;
            name = ++again;
        } else {
            return false;
        }
    }
    while (pattern < end && *pattern == '*')
        pattern++;
    return pattern == end;
}

bool kg_published_applies(const struct kg_published_row *row,
                          const struct kg_published_run *run)
{
    if (!row->runs)
        return !run->suite;
    for (const char *at = row->runs; *at;) {
        size_t len = strcspn(at, " ");

        if (is_match(at, len, run->name))
            return true;
        at += len;
        at += strspn(at, " ");
    }
    return false;
}

const struct kg_published_row *kg_published_row(const struct kg_published_study *study,
                                                const struct kg_published_run *run,
                                                const char *key)
{
    for (size_t i = 0; i < study->n_rows; i++)
        if (strcmp(study->rows[i].key, key) == 0 &&
            kg_published_applies(&study->rows[i], run))
            return &study->rows[i];
    return NULL;
}

/* ---- the page ---- */

static const char intro[] =
    "# Published runs, value by value\n"
    "\n"
    "`kedge presets --published` prints this page: do not edit it.\n"
    "`guests/lab/published_test.c` resolves every run below as `kedge train` and\n"
    "`kedge eval` do and compares each value. It fails if a recipe or preset of a\n"
    "published run sets a key without a row here.\n"
    "\n"
    "*Published* is the value of the authors' paper or code, in terms of kedge's key.\n"
    "*kedge* is empty if kedge has the same value; otherwise it is kedge's, and the\n"
    "note gives the reason. Text in parentheses has no key in kedge.\n"
    "\n"
    "A row without runs belongs to every training run of its section; `*` in a name\n"
    "matches any text. Put models and files that cannot be shipped at the named paths\n"
    "(`models/`, names of files).\n"
    "\n"
    "The papers' numbers were not reproduced: no run on this page was trained to its\n"
    "end with kedge.\n";

/* Text of a cell: a bar would end it, a line break the row, and outside of code, which
 * stands between backticks, * and < would be markup. */
static kg_status put_cell(struct kg_str *out, const char *text, bool is_code,
                          struct kg_err *err)
{
    for (const char *c = text; *c; c++) {
        if (*c == '\n') {
            KG_TRY(kg_str_puts(out, "\\n", err));
            continue;
        }
        if (*c == '`')
            is_code = !is_code;
        if (*c == '|' || (!is_code && kg_char_in("*<", *c)))
            KG_TRY(kg_str_putc(out, '\\', err));
        KG_TRY(kg_str_putc(out, *c, err));
    }
    return KG_OK;
}

/* A cell and the bar behind it; empty where there is no text. */
static kg_status put_next(struct kg_str *out, const char *text, bool is_code,
                          struct kg_err *err)
{
    const char *mark = is_code && text && *text ? "`" : "";

    if (text && !*text)
        text = "(empty)";
    KG_TRY(kg_str_printf(out, err, " %s", mark));
    KG_TRY(put_cell(out, text ? text : "", *mark, err));
    return kg_str_printf(out, err, "%s |", mark);
}

static kg_status put_row(struct kg_str *out, const struct kg_published_row *row,
                         struct kg_err *err)
{
    bool is_key = *row->key != '(', is_code = is_key || *row->value == '<';

    KG_TRY(kg_str_puts(out, "|", err));
    KG_TRY(put_next(out, row->runs, true, err));
    KG_TRY(put_next(out, row->key, is_key, err));
    KG_TRY(put_next(out, row->value, is_code, err));
    KG_TRY(put_next(out, row->kedge, is_code, err));
    KG_TRY(put_next(out, row->source, false, err));
    KG_TRY(put_next(out, row->note, false, err));
    return kg_str_putc(out, '\n', err);
}

static kg_status put_run(struct kg_str *out, const struct kg_published_run *run,
                         struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "| %s | ", run->name));
    if (run->suite)
        KG_TRY(kg_str_printf(out, err, "`kedge eval %s`", run->suite));
    else
        KG_TRY(kg_str_printf(out, err, "`kedge train %s%s%s`", run->recipe,
                             run->args ? " " : "", run->args ? run->args : ""));
    return kg_str_printf(out, err, " | %s |\n", run->preset ? run->preset : "");
}

static kg_status put_study(struct kg_str *out, const struct kg_published_study *study,
                           struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "\n## %s\n\n%s\n\n", study->title, study->about));
    KG_TRY(kg_str_puts(out, "| run | started by | its preset |\n|---|---|---|\n", err));
    for (size_t i = 0; i < study->n_runs; i++)
        KG_TRY(put_run(out, &study->runs[i], err));
    KG_TRY(kg_str_puts(out,
                       "\n| runs | key | published | kedge | source | note "
                       "|\n|---|---|---|---|---|---|\n",
                       err));
    for (size_t i = 0; i < study->n_rows; i++)
        KG_TRY(put_row(out, &study->rows[i], err));
    return KG_OK;
}

kg_status kg_published_page(struct kg_str *out, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, intro, err));
    for (size_t i = 0; i < KG_COUNT(studies); i++)
        KG_TRY(put_study(out, studies[i], err));
    return KG_OK;
}
