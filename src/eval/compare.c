/* Reads two folders of results, pairs their problems, and bootstraps the differences.
 * Most of this file checks that the two may be compared: the same problems by number and
 * gold answer, the same data by hash, the same generator if there is no file. Sampling
 * settings may differ. A mean over sets resamples every set separately, so that sets have
 * equal weight whatever their size. */
#include "eval/compare.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "data/json.h"
#include "data/records.h"
#include "eval/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_METRICS = 2 * KG_EVAL_KS + 32,
    MAX_PROBLEMS = 1 << 28,
    MAX_MANIFEST_BYTES = 1 << 24
};

/* ---- folders ---- */

struct metric {
    char name[KG_EVAL_NAME_BYTES];
    double *x; /* (n) owned; per problem */
    size_t n;
    size_t capacity;
};
struct problem {
    int64_t number;
    uint64_t truth; /* hash of the gold answer */
};
struct set {
    char name[KG_SUITE_NAME_BYTES];
    struct problem *problems; /* (n) owned */
    size_t n;
    size_t capacity;
    struct metric metrics[MAX_METRICS];
    size_t n_metrics;
};
struct folder {
    const char *dir;
    struct set *sets; /* (n) owned */
    size_t n;
    size_t capacity;
};

static void folder_release(struct folder *f)
{
    for (size_t i = 0; i < f->n; i++) {
        for (size_t m = 0; m < f->sets[i].n_metrics; m++)
            kg_mem_free(f->sets[i].metrics[m].x);
        kg_mem_free(f->sets[i].problems);
    }
    kg_mem_free(f->sets);
}

/* The lines of a set are consecutive. */
static kg_status set_for(struct set **set, struct folder *f, const char *name,
                         struct kg_err *err)
{
    if (f->n == 0 || strcmp(f->sets[f->n - 1].name, name) != 0) {
        KG_TRY(kg_mem_grow(&f->sets, &f->capacity, f->n + 1, sizeof *f->sets,
                           KG_SUITE_MAX_SETS, "compared sets", err));
        snprintf(f->sets[f->n].name, sizeof f->sets[f->n].name, "%s", name);
        f->n++;
    }
    *set = &f->sets[f->n - 1];
    return KG_OK;
}

static kg_status put_value(struct set *s, const char *name, double x,
                           const struct kg_json_doc *line, struct kg_err *err)
{
    size_t m = 0;

    while (m < s->n_metrics && strcmp(s->metrics[m].name, name) != 0)
        m++;
    if (m == MAX_METRICS || strlen(name) >= KG_EVAL_NAME_BYTES ||
        (m == s->n_metrics && s->n > 1))
        return kg_fail(
            err, KG_EFORMAT,
            "%s: expected only metrics that the set's first problem has, found '%.60s'",
            line->where, name);
    if (m == s->n_metrics)
        snprintf(s->metrics[s->n_metrics++].name, KG_EVAL_NAME_BYTES, "%s", name);
    KG_TRY(kg_mem_grow(&s->metrics[m].x, &s->metrics[m].capacity, s->n,
                       sizeof *s->metrics[m].x, MAX_PROBLEMS, "compared values", err));
    s->metrics[m].x[s->metrics[m].n++] = x;
    return KG_OK;
}

/* A non-finite number is written as text and skipped here. */
static kg_status put_values(struct set *s, const struct kg_json_doc *line,
                            struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(line->root); i++) {
        const struct kg_json *v = kg_json_value_at(line->root, i);
        const char *key = kg_json_key_at(line->root, i);

        if (kg_json_is_number(v) && strcmp(key, "problem") != 0)
            KG_TRY(put_value(s, key, kg_json_real(v, 0), line, err));
    }
    for (size_t m = 0; m < s->n_metrics; m++)
        if (s->metrics[m].n != s->n)
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected a value of '%s', which the set's first problem "
                           "has, found none",
                           line->where, s->metrics[m].name);
    return KG_OK;
}

static kg_status read_problem(struct folder *f, const struct kg_json_doc *line,
                              struct kg_err *err)
{
    const char *name, *truth;
    int64_t number;
    struct set *s;

    KG_TRY(kg_json_need_text(&name, line, line->root, "set", err));
    KG_TRY(kg_json_need_int(&number, line, line->root, "problem", 0, INT64_MAX, err));
    KG_TRY(kg_json_need_text(&truth, line, line->root, "ground_truth", err));
    KG_TRY(set_for(&s, f, name, err));
    KG_TRY(kg_mem_grow(&s->problems, &s->capacity, s->n + 1, sizeof *s->problems,
                       MAX_PROBLEMS, "compared problems", err));
    s->problems[s->n++] = (struct problem){number, kg_hash_bytes(truth, strlen(truth))};
    return put_values(s, line, err);
}

static kg_status read_problems(struct folder *f, const char *path, struct kg_err *err)
{
    struct kg_records *records = NULL;
    struct kg_json_doc doc = {0};
    bool more = true;
    kg_status status;

    KG_TRY(kg_records_open(&records, path, err));
    while (more) {
        KG_TRY_GOTO(out, kg_records_next(records, &doc, &more, err));
        if (more)
            KG_TRY_GOTO(out, read_problem(f, &doc, err));
    }
out:
    kg_json_release(&doc);
    kg_records_close(records);
    return status;
}

static kg_status folder_read(struct folder *f, const char *dir, struct kg_err *err)
{
    *f = (struct folder){.dir = dir};
    if (!kg_file_exists(kg_path_in(dir, "results.json").text))
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected a finished evaluation, found no results.json; run "
                       "its command again to finish it",
                       dir);
    return read_problems(f, kg_path_in(dir, "problems.jsonl").text, err);
}

/* ---- whether the folders can be compared ---- */

static kg_status same_problems(const struct set *a, const struct set *b,
                               const struct folder *in_a, const struct folder *in_b,
                               struct kg_err *err)
{
    if (strcmp(a->name, b->name) != 0)
        return kg_fail(err, KG_ECONFLICT,
                       "expected the same sets, found %s in %s and %s in %s instead",
                       a->name, in_a->dir, b->name, in_b->dir);
    if (a->n != b->n)
        return kg_fail(
            err, KG_ECONFLICT,
            "set %s: expected the same problems, found %zu in %s and %zu in %s", a->name,
            a->n, in_a->dir, b->n, in_b->dir);
    for (size_t i = 0; i < a->n; i++) {
        const struct problem *p = &a->problems[i], *q = &b->problems[i];

        if (p->number != q->number)
            return kg_fail(err, KG_ECONFLICT,
                           "set %s: expected the same problems, found problem %lld in %s "
                           "and %lld in %s instead",
                           a->name, (long long)p->number, in_a->dir, (long long)q->number,
                           in_b->dir);
        if (p->truth != q->truth)
            return kg_fail(err, KG_ECONFLICT,
                           "set %s: expected the same problems, found different ground "
                           "truths of problem %lld in %s and in %s",
                           a->name, (long long)p->number, in_b->dir, in_a->dir);
    }
    return KG_OK;
}

/* The hash of a set's data file in a manifest; "" for a set without a file. */
static const char *data_hash(const struct kg_json_doc *manifest, const char *set)
{
    char key[KG_SUITE_NAME_BYTES + 16];
    const char *hash;

    snprintf(key, sizeof key, "sets.%s.data", set);
    hash = kg_json_text(
        kg_json_get(kg_json_get(kg_json_get(manifest->root, "inputs"), key), "hash"),
        NULL);
    return hash ? hash : "";
}

/* The keys that choose a set's problems: in its file, or by the generator's task, level
 * and seed. */
static kg_status put_choice(struct kg_str *out, const struct kg_suite *s, const char *set,
                            bool has_file, struct kg_err *err)
{
    static const char *const of_file[] = {"prompt_key", "answer_key", NULL};
    static const char *const of_task[] = {"task", "level", NULL};
    const char *const *keys = has_file ? of_file : of_task;
    char key[2 * KG_SUITE_NAME_BYTES];

    for (; *keys; keys++) {
        snprintf(key, sizeof key, "sets.%s.%s", set, *keys);
        KG_TRY(
            kg_str_printf(out, err, "%s '%s', ", *keys, kg_config_text(s->config, key)));
    }
    return has_file ? KG_OK
                    : kg_str_printf(out, err, "seed %lld, ",
                                    (long long)kg_suite_about(s).seed);
}

static kg_status same_choice(const struct kg_suite *a, const struct kg_suite *b,
                             const char *set, bool has_file, struct kg_err *err)
{
    struct kg_str x = {0}, y = {0};
    kg_status status;

    KG_TRY_GOTO(out, put_choice(&x, a, set, has_file, err));
    KG_TRY_GOTO(out, put_choice(&y, b, set, has_file, err));
    if (strcmp(x.data, y.data) != 0)
        status = kg_fail(err, KG_ECONFLICT,
                         "set %s: expected the same problems, found those of %.*s and of "
                         "%.*s",
                         set, (int)x.len - 2, x.data, (int)y.len - 2, y.data);
out:
    kg_str_release(&x);
    kg_str_release(&y);
    return status;
}

static kg_status same_choices(const struct folder *a, const struct folder *b,
                              const struct kg_json_doc *manifest, struct kg_err *err)
{
    struct kg_suite x = {0}, y = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_suite_open(&x, kg_path_in(a->dir, "config.yaml").text, err));
    KG_TRY_GOTO(out, kg_suite_open(&y, kg_path_in(b->dir, "config.yaml").text, err));
    for (size_t i = 0; i < a->n && status == KG_OK; i++)
        status = same_choice(&x, &y, a->sets[i].name,
                             *data_hash(manifest, a->sets[i].name) != 0, err);
out:
    kg_suite_release(&x);
    kg_suite_release(&y);
    return status;
}

static kg_status same_data(const struct folder *a, const struct folder *b,
                           struct kg_err *err)
{
    struct kg_json_doc x = {0}, y = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_json_read(&x, kg_path_in(a->dir, "manifest.json").text,
                                  MAX_MANIFEST_BYTES, err));
    KG_TRY_GOTO(out, kg_json_read(&y, kg_path_in(b->dir, "manifest.json").text,
                                  MAX_MANIFEST_BYTES, err));
    for (size_t i = 0; i < a->n && status == KG_OK; i++) {
        const char *p = data_hash(&x, a->sets[i].name);
        const char *q = data_hash(&y, a->sets[i].name);

        if (strcmp(p, q) != 0)
            status = kg_fail(err, KG_ECONFLICT,
                             "set %s: expected the same data, found a file of hash '%s' "
                             "in %s and '%s' in %s",
                             a->sets[i].name, p, a->dir, q, b->dir);
    }
    if (status == KG_OK)
        status = same_choices(a, b, &x, err);
out:
    kg_json_release(&x);
    kg_json_release(&y);
    return status;
}

static kg_status can_compare(const struct folder *a, const struct folder *b,
                             struct kg_err *err)
{
    if (a->n != b->n)
        return kg_fail(err, KG_ECONFLICT,
                       "expected the same sets, found %zu in %s and %zu in %s", a->n,
                       a->dir, b->n, b->dir);
    for (size_t i = 0; i < a->n; i++)
        KG_TRY(same_problems(&a->sets[i], &b->sets[i], a, b, err));
    return same_data(a, b, err);
}

/* ---- the bootstrap ---- */

kg_status kg_eval_interval(double *low, double *high, double *means, const double *d,
                           int64_t n, uint32_t set, struct kg_err *err)
{
    struct kg_eval_bounds bounds;

    KG_TRY(kg_eval_bootstrap(&bounds, means, kg_eval_mean, d, (size_t)n, set, err));
    *low = bounds.low;
    *high = bounds.high;
    return KG_OK;
}

/* ---- differences ---- */

static const struct metric *find(const struct set *s, const char *name)
{
    for (size_t m = 0; m < s->n_metrics; m++)
        if (strcmp(s->metrics[m].name, name) == 0)
            return &s->metrics[m];
    return NULL;
}

static void summarise(struct kg_eval_difference *row, double *d, const double *a,
                      const double *b, int64_t n)
{
    double square = 0;

    for (int64_t p = 0; p < n; p++) {
        d[p] = b[p] - a[p];
        row->a += a[p] / (double)n;
        row->b += b[p] / (double)n;
        row->difference += d[p] / (double)n;
        row->better += d[p] > 0;
        row->worse += d[p] < 0;
    }
    for (int64_t p = 0; p < n; p++)
        square += (d[p] - row->difference) * (d[p] - row->difference);
    row->stderror = n > 1 ? sqrt(square / (double)(n - 1) / (double)n) : 0;
}

struct pairing {
    const struct folder *a;
    const struct folder *b;
    struct kg_eval_comparison *out;
    double *means; /* (KG_EVAL_RESAMPLES) of one set */
    double *sums;  /* (KG_EVAL_RESAMPLES) means over the sets */
    double *d;     /* (longest set) */
};

/* Adds the row of one metric of one set, and adds its resampled means to the sums. */
static kg_status compare_set(struct pairing *p, size_t set, const char *name,
                             struct kg_err *err)
{
    const struct set *a = &p->a->sets[set];
    struct kg_eval_difference *row = &p->out->rows[p->out->n++];

    snprintf(row->set, sizeof row->set, "%s", a->name);
    snprintf(row->metric, sizeof row->metric, "%s", name);
    row->problems = (int64_t)a->n;
    summarise(row, p->d, find(a, name)->x, find(&p->b->sets[set], name)->x,
              (int64_t)a->n);
    KG_TRY(kg_eval_interval(&row->low, &row->high, p->means, p->d, (int64_t)a->n,
                            (uint32_t)set, err));
    for (size_t r = 0; r < KG_EVAL_RESAMPLES; r++)
        p->sums[r] += p->means[r] / (double)p->a->n;
    return KG_OK;
}

static bool in_both(const struct pairing *p, size_t set, const char *name)
{
    return find(&p->a->sets[set], name) && find(&p->b->sets[set], name);
}

static kg_status compare_sets(struct pairing *p, struct kg_err *err)
{
    for (size_t s = 0; s < p->a->n; s++)
        for (size_t m = 0; m < p->a->sets[s].n_metrics; m++)
            if (in_both(p, s, p->a->sets[s].metrics[m].name))
                KG_TRY(compare_set(p, s, p->a->sets[s].metrics[m].name, err));
    return KG_OK;
}

/* Adds the unweighted mean over the sets. Each set's row is computed again for its
 * resampled means, and dropped. */
static kg_status compare_mean(struct pairing *p, const char *name, struct kg_err *err)
{
    size_t n = p->out->n;
    struct kg_eval_difference mean = {.set = "mean"};
    double square = 0;

    snprintf(mean.metric, sizeof mean.metric, "%s", name);
    memset(p->sums, 0, KG_EVAL_RESAMPLES * sizeof *p->sums);
    for (size_t s = 0; s < p->a->n; s++) {
        struct kg_eval_difference *row = &p->out->rows[n];

        memset(row, 0, sizeof *row);
        p->out->n = n;
        KG_TRY(compare_set(p, s, name, err));
        mean.problems += row->problems;
        mean.a += row->a / (double)p->a->n;
        mean.b += row->b / (double)p->a->n;
        mean.difference += row->difference / (double)p->a->n;
        square += row->stderror * row->stderror;
    }
    mean.stderror = sqrt(square) / (double)p->a->n;
    kg_eval_ends(&mean.low, &mean.high, p->sums);
    p->out->rows[n] = mean;
    p->out->n = n + 1;
    return KG_OK;
}

static kg_status compare_means(struct pairing *p, struct kg_err *err)
{
    for (size_t m = 0; m < p->a->sets[0].n_metrics; m++) {
        const char *name = p->a->sets[0].metrics[m].name;
        bool all = true;

        for (size_t s = 0; s < p->a->n; s++)
            all = all && in_both(p, s, name);
        if (all)
            KG_TRY(compare_mean(p, name, err));
    }
    return KG_OK;
}

static kg_status compare_folders(struct kg_eval_comparison *c, const struct folder *a,
                                 const struct folder *b, struct kg_err *err)
{
    struct pairing p = {.a = a, .b = b, .out = c};
    size_t longest = 0, rows = MAX_METRICS;
    kg_status status = KG_OK;

    for (size_t s = 0; s < a->n; s++) {
        longest = a->sets[s].n > longest ? a->sets[s].n : longest;
        rows += a->sets[s].n_metrics;
    }
    c->rows = kg_mem_calloc(rows, sizeof *c->rows, "comparison", err);
    p.means = kg_mem_calloc(KG_EVAL_RESAMPLES, sizeof *p.means, "resamples", err);
    p.sums = kg_mem_calloc(KG_EVAL_RESAMPLES, sizeof *p.sums, "resamples", err);
    p.d = kg_mem_calloc(longest, sizeof *p.d, "differences", err);
    if (!c->rows || !p.means || !p.sums || !p.d)
        status = KG_ENOMEM;
    if (status == KG_OK)
        status = compare_sets(&p, err);
    if (status == KG_OK && a->n > 1)
        status = compare_means(&p, err);
    kg_mem_free(p.d);
    kg_mem_free(p.sums);
    kg_mem_free(p.means);
    return status;
}

kg_status kg_eval_compare(struct kg_eval_comparison *c, const char *dir_a,
                          const char *dir_b, struct kg_err *err)
{
    struct folder a = {0}, b = {0};
    kg_status status;

    *c = (struct kg_eval_comparison){0};
    KG_TRY_GOTO(out, folder_read(&a, dir_a, err));
    KG_TRY_GOTO(out, folder_read(&b, dir_b, err));
    KG_TRY_GOTO(out, can_compare(&a, &b, err));
    status = compare_folders(c, &a, &b, err);
out:
    folder_release(&a);
    folder_release(&b);
    if (status != KG_OK)
        kg_eval_comparison_release(c);
    return status;
}

void kg_eval_comparison_release(struct kg_eval_comparison *c)
{
    kg_mem_free(c->rows);
    *c = (struct kg_eval_comparison){0};
}

/* ---- output ---- */

static kg_status put_row(struct kg_str *out, const struct kg_eval_difference *row,
                         struct kg_err *err)
{
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"a", row->a},
                   {"b", row->b},
                   {"difference", row->difference},
                   {"stderr", row->stderror},
                   {"low", row->low},
                   {"high", row->high}};

    KG_TRY(kg_str_printf(out, err, "{\"set\": \"%s\", \"metric\": ", row->set));
    KG_TRY(kg_json_put_string(out, row->metric, strlen(row->metric), err));
    KG_TRY(kg_str_printf(out, err, ", \"problems\": %lld", (long long)row->problems));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        KG_TRY(kg_str_printf(out, err, ", \"%s\": ", numbers[i].name));
        KG_TRY(kg_json_put_double(out, numbers[i].value, err));
    }
    return kg_str_printf(out, err, ", \"better\": %lld, \"worse\": %lld}",
                         (long long)row->better, (long long)row->worse);
}

kg_status kg_eval_comparison_json(struct kg_str *out, const struct kg_eval_comparison *c,
                                  struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "{\"resamples\": %d, \"rows\": [", KG_EVAL_RESAMPLES));
    for (size_t i = 0; i < c->n; i++) {
        KG_TRY(kg_str_puts(out, i ? ",\n " : "\n ", err));
        KG_TRY(put_row(out, &c->rows[i], err));
    }
    return kg_str_puts(out, "]}\n", err);
}

kg_status kg_eval_comparison_table(struct kg_str *out, const struct kg_eval_comparison *c,
                                   struct kg_err *err)
{
    int wide = 4;

    for (size_t i = 0; i < c->n; i++) {
        int n = (int)strlen(c->rows[i].set);

        wide = n > wide ? n : wide;
    }
    KG_TRY(kg_str_printf(
        out, err,
        "%-*s  problems  %-12s          A          B      B - A     stderr  "
        "95 %% interval             better/worse\n",
        wide, "set", "metric"));
    for (size_t i = 0; i < c->n; i++) {
        const struct kg_eval_difference *r = &c->rows[i];
        const char *sure = r->low > 0 || r->high < 0 ? "*" : " ";

        KG_TRY(kg_str_printf(out, err,
                             "%-*s  %8lld  %-12s %10.4f %10.4f %+10.4f %10.4f  [%+9.4f, "
                             "%+9.4f] %s",
                             wide, r->set, (long long)r->problems, r->metric, r->a, r->b,
                             r->difference, r->stderror, r->low, r->high, sure));
        if (strcmp(r->set, "mean") != 0)
            KG_TRY(kg_str_printf(out, err, "  %lld/%lld", (long long)r->better,
                                 (long long)r->worse));
        KG_TRY(kg_str_putc(out, '\n', err));
    }
    return KG_OK;
}
