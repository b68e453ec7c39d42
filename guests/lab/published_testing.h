/* Reads docs/published.md as a table of published runs and all their values.
 *
 * A section is a study, which is a paper or released code: the runs that kedge starts for
 * it, and rows. A row has the published value of a key, its source and, if kedge's value
 * differs, that value and the reason. These values are stored nowhere else.
 *
 * Included by tests only.
 */
#ifndef KG_PUBLISHED_TESTING_H
#define KG_PUBLISHED_TESTING_H

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

struct kg_published_run {
    const char *name;
    const char *recipe; /* file; NULL: a suite */
    const char *args;   /* assignments after it, separated by spaces; NULL: none */
    const char *preset; /* with the same method, or NULL */
    const char *suite;  /* file of an evaluation; NULL: a training run */
};

struct kg_published_row {
    /* names of runs, separated by spaces; * matches any bytes; NULL: every training run
     * of the study */
    const char *runs;
    /* a key of the recipe or suite; in parentheses: a value without a key */
    const char *key;
    const char *value;  /* as published, in the key's form */
    const char *kedge;  /* kedge's value; NULL: the same */
    const char *source; /* file of the study's code, or section of its paper */
    const char *note;   /* NULL: no remark; required if kedge differs */
};

struct kg_published_study {
    const char *title;
    struct kg_published_run runs[32];
    size_t n_runs;
    struct kg_published_row rows[256];
    size_t n_rows;
};

enum { PUBLISHED_STUDIES = 16, PUBLISHED_CELLS = 6 };
static struct kg_published_study published[PUBLISHED_STUDIES];
static size_t published_n;
static struct kg_str published_page; /* the texts of all rows point into it */

/* ---- reading ---- */

/* Decodes a cell in place and drops the backticks around it: \| \* \< are these bytes, \n
 * a line break, "(empty)" the empty text, and an empty cell NULL. */
static const char *published_text(char *cell)
{
    char *to = cell, *end = cell + strlen(cell);

    while (end > cell && end[-1] == ' ')
        *--end = '\0';
    cell += strspn(cell, " ");
    if (*cell == '\0')
        return NULL;
    if (end - cell > 1 && *cell == '`' && end[-1] == '`' &&
        memchr(cell + 1, '`', (size_t)(end - cell) - 2) == NULL) {
        *--end = '\0';
        cell++;
    }
    if (strcmp(cell, "(empty)") == 0)
        return "";
    to = cell;
    for (const char *from = cell; *from; from++) {
        const bool escaped = *from == '\\' && from[1] && kg_char_in("|*<n", from[1]);

        from += escaped;
        *to++ = escaped && *from == 'n' ? '\n' : *from;
    }
    *to = '\0';
    return cell;
}

/* Splits a line at its bars and decodes the cells in place. */
static void published_cells(const char *cells[PUBLISHED_CELLS], char *line)
{
    size_t n = 0;
    char *first = line + 1;

    for (char *c = first; *c && n < PUBLISHED_CELLS; c++) {
        if (*c != '|' || c[-1] == '\\')
            continue;
        *c = '\0';
        cells[n++] = published_text(first);
        first = c + 1;
    }
}

/* Parses "kedge train RECIPE ARGS" or "kedge eval SUITE". */
static void published_add_run(struct kg_published_study *study, const char **cells)
{
    static const char train[] = "kedge train ", eval[] = "kedge eval ";
    struct kg_published_run *run = &study->runs[study->n_runs++];
    char *started = (char *)(uintptr_t)cells[1], *space;

    assert_true(study->n_runs < sizeof study->runs / sizeof *study->runs);
    *run = (struct kg_published_run){.name = cells[0], .preset = cells[2]};
    if (strncmp(started, eval, sizeof eval - 1) == 0) {
        run->suite = started + sizeof eval - 1;
        return;
    }
    assert_memory_equal(started, train, sizeof train - 1);
    run->recipe = started + sizeof train - 1;
    space = strchr(run->recipe, ' ');
    if (space)
        *space = '\0';
    run->args = space ? space + 1 : NULL;
}

static void published_add_row(struct kg_published_study *study, const char **cells)
{
    assert_true(study->n_rows < sizeof study->rows / sizeof *study->rows);
    study->rows[study->n_rows++] = (struct kg_published_row){
        cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]};
}

static void published_line(char *line, bool *is_runs)
{
    struct kg_published_study *study;
    const char *cells[PUBLISHED_CELLS] = {NULL};

    if (strncmp(line, "## ", 3) == 0) {
        assert_true(published_n < PUBLISHED_STUDIES);
        published[published_n++].title = line + 3;
    }
    if (*line != '|' || strncmp(line, "|--", 3) == 0)
        return;
    if (strncmp(line, "| run ", 6) == 0 || strncmp(line, "| runs ", 7) == 0) {
        *is_runs = line[5] == ' ';
        return;
    }
    assert_true(published_n > 0);
    study = &published[published_n - 1];
    published_cells(cells, line);
    if (*is_runs)
        published_add_run(study, cells);
    else
        published_add_row(study, cells);
}

/* Reads the page; run from the repository's root. */
static void published_read(void)
{
    struct kg_err err;
    bool is_runs = false;
    char *line, *save = NULL;

    if (published_n > 0)
        return;
    if (kg_file_read(&published_page, "docs/published.md", 1 << 20, &err) != KG_OK)
        fail_msg("%s", err.message);
    for (line = strtok_r(published_page.data, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        published_line(line, &is_runs);
}

static size_t kg_published_count(void) { return published_n; }

static const struct kg_published_study *kg_published_at(size_t i)
{
    return &published[i];
}

/* ---- rows of a run ---- */

/* pattern: len bytes; each * matches any bytes of the name */
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
        } else if (star) { /* the last * takes one more byte */
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

/* Whether the row applies to the run. */
static bool kg_published_applies(const struct kg_published_row *row,
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

/* The row of a key, NULL if there is none. */
static const struct kg_published_row *
kg_published_row(const struct kg_published_study *study,
                 const struct kg_published_run *run, const char *key)
{
    for (size_t i = 0; i < study->n_rows; i++)
        if (strcmp(study->rows[i].key, key) == 0 &&
            kg_published_applies(&study->rows[i], run))
            return &study->rows[i];
    return NULL;
}

#endif
