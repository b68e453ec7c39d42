/* Times of waiting and exchanging come from the clock in struct kg_ranks. */
#include "train/step/rank_times.h"

#include <stdio.h>

struct kg_rank_times kg_rank_times_take(struct kg_ranks *all, double sampling)
{
    struct kg_rank_times t = {sampling, all->clock.waiting, all->clock.exchange};

    all->clock = (struct kg_ranks_clock){0};
    return t;
}

kg_status kg_rank_times_gather(struct kg_rank_times *times,
                               const struct kg_rank_times *own, struct kg_ranks *ranks,
                               struct kg_err *err)
{
    if (ranks->n < 2) {
        *times = *own;
        return KG_OK;
    }
    times[ranks->me] = *own;
    return kg_ranks_gather_equal(ranks, times, sizeof *times, "clocks", err);
}

int kg_rank_times_slowest(const struct kg_rank_times *times, int n)
{
    int slowest = 0;

    for (int r = 1; r < n; r++)
        if (times[r].waiting < times[slowest].waiting)
            slowest = r;
    return slowest;
}

static void put(struct kg_metrics *log, const char *what, int rank, double seconds)
{
    char name[KG_METRIC_NAME];

    snprintf(name, sizeof name, "seconds/%s/rank/%d", what, rank);
    kg_metrics_put(log, name, seconds);
}

void kg_rank_times_put(struct kg_metrics *log, const struct kg_rank_times *times, int n)
{
    for (int r = 0; r < n && r < KG_RANK_TIMES_SHOWN; r++) {
        put(log, "sampling", r, times[r].sampling);
        put(log, "waiting", r, times[r].waiting);
        put(log, "exchange", r, times[r].exchange);
    }
    kg_metrics_put(log, "seconds/slowest_rank", kg_rank_times_slowest(times, n));
}
