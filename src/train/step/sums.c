/* Sums over samples by data source and by reward, and of the additional numbers of
 * graders.
 *
 * A mean over a mixture hides that one source falls while another rises. Sources are
 * found by name in a short list; all others are combined as "other", so that a file with
 * a thousand names does not make a thousand metrics. A completion without a grade has no
 * reward: each part counts the completions in its sum, and its mean is over these.
 */
#include "train/step/sums.h"

#include <math.h>
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
                const char *name, double value)
{
    char group[KG_METRIC_NAME];

    snprintf(group, sizeof group, "%s%s", prefix, what);
    kg_metrics_put_in(log, group, name, value);
}

void kg_sources_put(struct kg_metrics *log, const char *prefix,
                    const struct kg_sources *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct kg_source_sums *row = &s->row[i];

        if (row->judged > 0)
            put(log, prefix, "reward/source", row->name, row->reward / row->judged);
        put(log, prefix, "accuracy/source", row->name, row->correct / row->answers);
        put(log, prefix, "length/source", row->name, row->tokens / row->answers);
        put(log, prefix, "answers/source", row->name, row->answers);
        if (row->problems > 0)
            put(log, prefix, "accuracy_stderr/source", row->name,
                kg_metrics_stderr(row->problems, row->share, row->share_squared));
    }
}

/* ---- parts ---- */

void kg_part_add(struct kg_part_sums *s, const struct kg_traj *t)
{
    s->answers++;
    for (int k = 0; k < t->n_parts; k++) {
        if (isnan(t->part[k]))
            continue;
        s->sum[k] += t->part[k];
        s->graded[k]++;
    }
    for (int k = 0; k < KG_FURTHER; k++) {
        if (!(t->further.said >> k & 1))
            continue;
        s->further[k] += t->further.x[k];
        s->said[k]++;
    }
}

void kg_part_put(struct kg_metrics *log, const char *group, const struct kg_part_sums *s,
                 const struct kg_task_opts *opts)
{
    const struct kg_task_rewards *r = opts->rewards;
    int order[KG_FURTHER];

    for (int k = 0; k < kg_task_rewards_n(r); k++) {
        const char *name = kg_task_rewards_name(r, k);

        put(log, group, "/part", name, s->graded[k] > 0 ? s->sum[k] / s->graded[k] : 0);
        put(log, group, "/part_ungraded", name, 1 - s->graded[k] / s->answers);
    }
    kg_further_order(order, opts->further);
    for (int i = 0; i < opts->further->n; i++) {
        int k = order[i];

        if (s->said[k] > 0)
            put(log, group, "/further", opts->further->name[k],
                s->further[k] / s->said[k]);
    }
}

void kg_part_notes(struct kg_traj_notes *notes, const struct kg_task_opts *opts,
                   uint32_t mask)
{
    const struct kg_task_rewards *r = opts->rewards;

    for (int k = 0; k < kg_task_rewards_n(r); k++)
        notes->part_names[k] = kg_task_rewards_name(r, k);
    notes->further = opts->further;
    notes->further_mask = mask;
}
