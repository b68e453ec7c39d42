/* A report as JSON, as a table, and problem by problem.
 *
 * The JSON is complete and for programs; the table is for a quick look and omits some
 * numbers: of many k's it shows powers of two. If a set lacks a number, the mean over
 * sets names the sets that it includes, because a mean that silently omits the hard set
 * is wrong. Nothing is computed here except widths.
 */
#include "eval/runner.h"

#include "data/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON ---- */

static kg_status put_text(struct kg_str *out, const char *key, const char *text,
                          struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "\"%s\": ", key));
    return kg_json_put_string(out, text, strlen(text), err);
}

static kg_status put_metric(struct kg_str *out, const struct kg_eval_metric *m,
                            struct kg_err *err)
{
    KG_TRY(kg_json_put_string(out, m->name, strlen(m->name), err));
    KG_TRY(kg_str_puts(out, ": {\"value\": ", err));
    KG_TRY(kg_json_put_double(out, m->value, err));
    KG_TRY(kg_str_puts(out, ", \"stderr\": ", err));
    KG_TRY(kg_json_put_double(out, m->stderror, err));
    return kg_str_putc(out, '}', err);
}

static kg_status put_metrics(struct kg_str *out, const struct kg_eval_score *s,
                             struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "\"metrics\": {", err));
    for (size_t i = 0; i < s->n; i++) {
        KG_TRY(kg_str_puts(out, i ? ", " : "", err));
        KG_TRY(put_metric(out, &s->metrics[i], err));
    }
    return kg_str_putc(out, '}', err);
}

static kg_status put_set(struct kg_str *out, const struct kg_eval_set_report *r,
                         const struct kg_eval_set *set, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "  {", err));
    KG_TRY(put_text(out, "name", set->name, err));
    KG_TRY(kg_str_puts(out, ", ", err));
    KG_TRY(put_text(out, "group", set->group, err));
    KG_TRY(kg_str_puts(out, ", ", err));
    KG_TRY(put_text(out, "task", set->task->name, err));
    KG_TRY(kg_str_printf(out, err,
                         ", \"problems\": %lld, \"samples\": %d, \"left_out\": %lld, "
                         "\"cut_short\": %lld, ",
                         (long long)r->score.problems, r->score.samples,
                         (long long)(set->records - (int64_t)set->data.n),
                         (long long)r->cut_short));
    KG_TRY(put_metrics(out, &r->score, err));
    return kg_str_putc(out, '}', err);
}

kg_status kg_eval_report_json(struct kg_str *out, const struct kg_eval_report *r,
                              const struct kg_suite *suite,
                              const struct kg_eval_set *sets, struct kg_err *err)
{
    struct kg_suite_about about = kg_suite_about(suite);

    KG_TRY(kg_str_puts(out, "{", err));
    KG_TRY(put_text(out, "suite", about.name, err));
    KG_TRY(kg_str_printf(out, err, ", \"seed\": %lld,\n \"sets\": [\n",
                         (long long)about.seed));
    for (size_t i = 0; i < r->n_sets; i++) {
        KG_TRY(put_set(out, &r->sets[i], &sets[i], err));
        KG_TRY(kg_str_puts(out, i + 1 < r->n_sets ? ",\n" : "],\n \"groups\": [", err));
    }
    for (size_t i = 0; i < r->n_groups; i++) {
        KG_TRY(kg_str_puts(out, i ? ",\n  {" : "\n  {", err));
        KG_TRY(put_text(out, "name", r->groups[i].name, err));
        KG_TRY(kg_str_printf(out, err, ", \"sets\": %zu, ", r->groups[i].sets));
        KG_TRY(put_metrics(out, &r->groups[i].mean, err));
        KG_TRY(kg_str_putc(out, '}', err));
    }
    KG_TRY(kg_str_puts(out, "],\n \"left_out\": [", err));
    for (size_t i = suite->n; i < suite->n_all; i++)
        KG_TRY(kg_str_printf(out, err, "%s\"%s\"", i > suite->n ? ", " : "",
                             suite->names[i]));
    KG_TRY(kg_str_printf(out, err, "],\n \"mean\": {\"sets\": %zu, ", r->n_sets));
    KG_TRY(put_metrics(out, &r->mean, err));
    return kg_str_puts(out, "}}\n", err);
}

/* ---- problems ---- */

static kg_status put_problem(struct kg_str *out, const struct kg_eval_score *s,
                             const struct kg_eval_set *set, size_t p, struct kg_err *err)
{
    const struct kg_record *r = &set->data.records[p];

    KG_TRY(kg_str_printf(out, err, "{\"set\": \"%s\", \"problem\": %lld, ", set->name,
                         (long long)r->line));
    if (r->id) {
        KG_TRY(put_text(out, "id", r->id, err));
        KG_TRY(kg_str_puts(out, ", ", err));
    }
    for (size_t i = 0; i < s->n; i++) {
        const struct kg_eval_metric *m = &s->metrics[i];

        if (!m->by_problem)
            continue; /* its values are not per problem */
        KG_TRY(kg_json_put_string(out, m->name, strlen(m->name), err));
        KG_TRY(kg_str_puts(out, ": ", err));
        KG_TRY(kg_json_put_double(out, m->by_problem[p], err));
        KG_TRY(kg_str_puts(out, ", ", err));
    }
    KG_TRY(put_text(out, "ground_truth", r->ground_truth, err));
    KG_TRY(kg_str_puts(out, ", ", err));
    KG_TRY(put_text(out, "prompt", r->prompt, err));
    return kg_str_puts(out, "}\n", err);
}

kg_status kg_eval_report_problems(struct kg_str *out, const struct kg_eval_report *r,
                                  const struct kg_eval_set *sets, struct kg_err *err)
{
    for (size_t i = 0; i < r->n_sets; i++)
        for (size_t p = 0; p < sets[i].data.n; p++)
            KG_TRY(put_problem(out, &r->sets[i].score, &sets[i], p, err));
    return KG_OK;
}

/* ---- table ---- */

enum {
    MOST_COLUMNS = 2 * KG_EVAL_KS + 16 + 2 * (2 * KG_TRAJ_PARTS + KG_FURTHER),
    CELL_BYTES = 32
};

struct table {
    const char *names[MOST_COLUMNS]; /* of metrics, in order of appearance */
    size_t n;
    int width[MOST_COLUMNS];
    int first; /* width of the first column */
};

/* Shares are shown in percent, other metrics as numbers. */
static bool is_share(const char *name)
{
    return strncmp(name, "pass@", 5) == 0 || strncmp(name, "maj@", 4) == 0 ||
           strcmp(name, "accuracy") == 0 || strcmp(name, "truncated") == 0 ||
           strcmp(name, "undecided") == 0 || strcmp(name, "finished") == 0;
}

static void cell(char text[CELL_BYTES], const struct kg_eval_metric *m)
{
    double scale = m && is_share(m->name) ? 100 : 1;

    if (!m)
        snprintf(text, CELL_BYTES, "-");
    else if (strcmp(m->name, "reward") == 0 || strchr(m->name, '/'))
        snprintf(text, CELL_BYTES, "%.3f +- %.3f", m->value, m->stderror);
    else if (scale == 1 && strcmp(m->name, "tokens") != 0)
        snprintf(text, CELL_BYTES, "%.2f +- %.2f", m->value, m->stderror);
    else
        snprintf(text, CELL_BYTES, "%.1f +- %.1f", scale * m->value, scale * m->stderror);
}

/* Of more than MANY k's, only powers of two are shown; results.json has all. */
static bool is_shown(const struct kg_eval_score *s, const char *name)
{
    enum { MANY = 8 };
    const char *at = strchr(name, '@');
    long k = at ? strtol(at + 1, NULL, 10) : 0;
    int n = 0;

    for (size_t i = 0; i < s->n; i++)
        n += strchr(s->metrics[i].name, '@') != NULL;
    return !at || n <= MANY || (k & (k - 1)) == 0;
}

static void add_columns(struct table *t, const struct kg_eval_score *s, const char *name)
{
    char text[CELL_BYTES];

    t->first = (int)strlen(name) > t->first ? (int)strlen(name) : t->first;
    for (size_t i = 0; i < s->n; i++) {
        size_t c = 0;

        while (c < t->n && strcmp(t->names[c], s->metrics[i].name) != 0)
            c++;
        if (c == MOST_COLUMNS || !is_shown(s, s->metrics[i].name))
            continue;
        if (c == t->n) {
            t->names[t->n++] = s->metrics[i].name;
            t->width[c] = (int)strlen(t->names[c]);
        }
        cell(text, &s->metrics[i]);
        t->width[c] = (int)strlen(text) > t->width[c] ? (int)strlen(text) : t->width[c];
    }
}

static kg_status put_row(struct kg_str *out, const struct table *t, const char *name,
                         const struct kg_eval_score *s, struct kg_err *err)
{
    char text[CELL_BYTES];

    KG_TRY(
        kg_str_printf(out, err, "%-*s  %8lld  ", t->first, name, (long long)s->problems));
    if (s->samples)
        KG_TRY(kg_str_printf(out, err, "%4d", s->samples));
    else
        KG_TRY(kg_str_puts(out, "   -", err));
    for (size_t c = 0; c < t->n; c++) {
        cell(text, kg_eval_metric_find(s, t->names[c]));
        KG_TRY(kg_str_printf(out, err, "  %*s", t->width[c], text));
    }
    return kg_str_putc(out, '\n', err);
}

enum { ROW_BYTES = KG_SUITE_NAME_BYTES + 56 };

/* "NAME (5 sets)", or "NAME (5 of 7 sets)" if sets were left out.   group NULL: all
 * sets */
static void row_name(char text[ROW_BYTES], const char *name, size_t sets,
                     const struct kg_suite *suite, const char *group)
{
    char key[KG_SUITE_NAME_BYTES + 16];
    size_t all = sets;

    for (size_t i = suite->n; i < suite->n_all; i++) {
        snprintf(key, sizeof key, "sets.%.63s.group", suite->names[i]);
        all += !group || strcmp(kg_config_text(suite->config, key), group) == 0;
    }
    if (all > sets)
        snprintf(text, ROW_BYTES, "%.64s (%zu of %zu sets)", name, sets, all);
    else
        snprintf(text, ROW_BYTES, "%.64s (%zu sets)", name, sets);
}

static void group_name(char text[ROW_BYTES], const struct kg_eval_group_report *g,
                       const struct kg_suite *suite)
{
    row_name(text, g->name, g->sets, suite, g->name);
}

/* Lists the sets that the mean does not include. */
static kg_status put_left_out(struct kg_str *out, const struct kg_suite *suite,
                              struct kg_err *err)
{
    for (size_t i = suite->n; i < suite->n_all; i++)
        KG_TRY(kg_str_printf(out, err, "%s%s",
                             i > suite->n ? ", " : "left out: ", suite->names[i]));
    return suite->n < suite->n_all ? kg_str_putc(out, '\n', err) : KG_OK;
}

kg_status kg_eval_report_put_cut(struct kg_str *out, const struct kg_eval_set_report *r,
                                 const struct kg_eval_set *set, struct kg_err *err)
{
    if (r->cut_short == 0)
        return KG_OK;
    return kg_str_printf(out, err,
                         "%lld of %lld problems have a completion that ended before "
                         "max_tokens %d, at the end of the model's positions",
                         (long long)r->cut_short, (long long)r->score.problems,
                         set->sampling.max_tokens);
}

/* A line about samples of a set that were cut short, if there are any. */
static kg_status put_notes(struct kg_str *out, const struct kg_eval_set_report *r,
                           const struct kg_eval_set *set, struct kg_err *err)
{
    if (r->cut_short == 0)
        return KG_OK;
    KG_TRY(kg_str_printf(out, err, "%s: ", set->name));
    KG_TRY(kg_eval_report_put_cut(out, r, set, err));
    return kg_str_putc(out, '\n', err);
}

kg_status kg_eval_report_table(struct kg_str *out, const struct kg_eval_report *r,
                               const struct kg_suite *suite,
                               const struct kg_eval_set *sets, struct kg_err *err)
{
    struct table t = {.first = 4};
    char name[ROW_BYTES], mean[ROW_BYTES];
    bool all = r->n_sets > 1;

    row_name(mean, "mean", r->n_sets, suite, NULL);
    for (size_t i = 0; i < r->n_sets; i++)
        add_columns(&t, &r->sets[i].score, sets[i].name);
    for (size_t i = 0; i < r->n_groups; i++) {
        group_name(name, &r->groups[i], suite);
        add_columns(&t, &r->groups[i].mean, name);
    }
    if (all)
        add_columns(&t, &r->mean, mean);
    KG_TRY(kg_str_printf(out, err, "%-*s  problems     n", t.first, "set"));
    for (size_t c = 0; c < t.n; c++)
        KG_TRY(kg_str_printf(out, err, "  %*s", t.width[c], t.names[c]));
    KG_TRY(kg_str_putc(out, '\n', err));
    for (size_t i = 0; i < r->n_sets; i++)
        KG_TRY(put_row(out, &t, sets[i].name, &r->sets[i].score, err));
    for (size_t i = 0; i < r->n_groups; i++) {
        group_name(name, &r->groups[i], suite);
        KG_TRY(put_row(out, &t, name, &r->groups[i].mean, err));
    }
    if (all)
        KG_TRY(put_row(out, &t, mean, &r->mean, err));
    KG_TRY(put_left_out(out, suite, err));
    for (size_t i = 0; i < r->n_sets; i++)
        KG_TRY(put_notes(out, &r->sets[i], &sets[i], err));
    return KG_OK;
}
