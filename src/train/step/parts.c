/* Sums and names of several rewards, and of what graders say besides.
 *
 * A reward that could not be graded is no number of an answer: each part counts the
 * answers that it is a sum of, and its mean is over these alone.
 */
#include "train/step/parts.h"

#include <math.h>
#include <stdio.h>

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

static void put(struct kg_metrics *log, const char *group, const char *what,
                const char *name, double value)
{
    char under[KG_METRIC_NAME];

    snprintf(under, sizeof under, "%s/%s", group, what);
    kg_metrics_put_in(log, under, name, value);
}

void kg_part_put(struct kg_metrics *log, const char *group, const struct kg_part_sums *s,
                 const struct kg_task_opts *opts)
{
    const struct kg_task_rewards *r = opts->rewards;
    int order[KG_FURTHER];

    for (int k = 0; k < kg_task_rewards_n(r); k++) {
        const char *name = kg_task_rewards_name(r, k);

        put(log, group, "part", name, s->graded[k] > 0 ? s->sum[k] / s->graded[k] : 0);
        put(log, group, "part_ungraded", name, 1 - s->graded[k] / s->answers);
    }
    kg_further_order(order, opts->further);
    for (int i = 0; i < opts->further->n; i++) {
        int k = order[i];

        if (s->said[k] > 0)
            put(log, group, "further", opts->further->name[k],
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
