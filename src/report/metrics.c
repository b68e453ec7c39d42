/* An ordered list of numbers; the order of first mention is the order in the log.
 *
 * A list and no map: a step has a hundred numbers or two, and a reader who looks at
 * lines of a log wants related ones side by side and always in one place. A second
 * mention of a name replaces the number and keeps the place. What is not finite is null
 * in JSON, and is read back as not a number. It knows no meanings and no units; those
 * are in metric_table.c.
 */
#include "report/metrics.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void kg_metrics_put(struct kg_metrics *m, const char *name, double value)
{
    int i = 0;

    while (i < m->n && strcmp(m->row[i].name, name) != 0)
        i++;
    assert(i < KG_METRICS_MAX && strlen(name) < KG_METRIC_NAME);
    if (i == m->n) {
        strncpy(m->row[i].name, name, KG_METRIC_NAME - 1);
        m->row[i].name[KG_METRIC_NAME - 1] = '\0';
        m->n++;
    }
    m->row[i].value = value;
}

void kg_metrics_put_in(struct kg_metrics *m, const char *group, const char *what,
                       double value)
{
    char name[KG_METRIC_NAME];

    snprintf(name, sizeof name, "%s/%s", group, what);
    kg_metrics_put(m, name, value);
}

double kg_metrics_get(const struct kg_metrics *m, const char *name, double fallback)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->row[i].name, name) == 0)
            return m->row[i].value;
    return fallback;
}

double kg_metrics_stderr(double n, double sum, double squares)
{
    double spread = squares - sum * sum / n;

    return n > 1 ? sqrt(fmax(0, spread / (n - 1)) / n) : 0;
}

kg_status kg_metrics_json(struct kg_str *out, const struct kg_metrics *m,
                          const char *phase, int64_t step, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "{\"phase\": \"%s\", \"step\": %lld", phase,
                         (long long)step));
    for (int i = 0; i < m->n; i++) {
        KG_TRY(kg_json_put_text(out, ", ", m->row[i].name, err));
        KG_TRY(kg_str_puts(out, ": ", err));
        KG_TRY(kg_json_put_cell(out, m->row[i].value, err));
    }
    return kg_str_puts(out, "}\n", err);
}

static double value_of(const struct kg_json *v)
{
    return kg_json_is_number(v) ? kg_json_real(v, 0) : NAN;
}

kg_status kg_metrics_parse(struct kg_metrics *m, const char **phase, int64_t *step,
                           const struct kg_json_doc *doc, struct kg_err *err)
{
    m->n = 0;
    KG_TRY(kg_json_need_text(phase, doc, doc->root, "phase", err));
    KG_TRY(kg_json_need_int(step, doc, doc->root, "step", 0, INT64_MAX, err));
    for (size_t i = 0; i < kg_json_size(doc->root); i++) {
        const char *name = kg_json_key_at(doc->root, i);

        if (strcmp(name, "phase") == 0 || strcmp(name, "step") == 0)
            continue;
        if (m->n == KG_METRICS_MAX || strlen(name) >= KG_METRIC_NAME)
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected at most %d metrics with names of at most %d "
                           "bytes, found '%.100s' as number %d",
                           doc->where, KG_METRICS_MAX, KG_METRIC_NAME - 1, name,
                           m->n + 1);
        strcpy(m->row[m->n].name, name);
        m->row[m->n++].value = value_of(kg_json_value_at(doc->root, i));
    }
    return KG_OK;
}
