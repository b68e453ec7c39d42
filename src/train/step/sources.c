/* Sums by data source, and their metrics.
 *
 * A mean over a mixture hides that one source falls while another rises. Sources are
 * found by name in a short list; the list's end is "other", so that a file with a
 * thousand names does not make a thousand metrics.
 */
#include "train/step/sources.h"

#include <stdio.h>
#include <string.h>

const char *kg_source_of(const struct kg_prompts *p, size_t i)
{
    return p->data->records[p->record[i]].data_source;
}

bool kg_sources_differ(const struct kg_prompts *p)
{
    for (size_t i = 1; i < p->n; i++)
        if (strcmp(kg_source_of(p, i), kg_source_of(p, 0)) != 0)
            return true;
    return false;
}

kg_status kg_sources_check(const struct kg_prompts *p, const char *key,
                           struct kg_err *err)
{
    if (!kg_sources_differ(p))
        return KG_OK;
    for (size_t i = 0; i < p->n; i++) {
        const char *name = kg_source_of(p, i);

        if (strlen(name) > KG_SOURCE_NAME)
            return kg_fail(err, KG_EINVAL,
                           "%s: expected a data_source of at most %d bytes, because it "
                           "names metrics, found %zu: '%.300s'",
                           key, KG_SOURCE_NAME, strlen(name), name);
    }
    return KG_OK;
}

struct kg_source_sums *kg_sources_row(struct kg_sources *s, const char *name)
{
    size_t at = 0;

    while (at < s->n && strcmp(s->row[at].name, name) != 0)
        at++;
    at = at > KG_SOURCES ? KG_SOURCES : at;
    if (at == s->n)
        s->row[s->n++] = (struct kg_source_sums){.name = at < KG_SOURCES ? name
                                                                         : "other"};
    return &s->row[at];
}

void kg_source_problem(struct kg_source_sums *row, double share)
{
    row->problems++;
    row->share += share;
    row->share_squared += share * share;
}

static void put(struct kg_metrics *log, const char *prefix, const char *what,
                const struct kg_source_sums *row, double value)
{
    char group[KG_METRIC_NAME];

    snprintf(group, sizeof group, "%s%s/source", prefix, what);
    kg_metrics_put_in(log, group, row->name, value);
}

void kg_sources_put(struct kg_metrics *log, const char *prefix,
                    const struct kg_sources *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct kg_source_sums *row = &s->row[i];

        if (row->judged > 0)
            put(log, prefix, "reward", row, row->reward / row->judged);
        put(log, prefix, "accuracy", row, row->correct / row->answers);
        put(log, prefix, "length", row, row->tokens / row->answers);
        put(log, prefix, "answers", row, row->answers);
        if (row->problems > 0)
            put(log, prefix, "accuracy_stderr", row,
                kg_metrics_stderr(row->problems, row->share, row->share_squared));
    }
}
