/* Where ranks spend their time: each rank's sampling, waiting and exchanging, and which
 * rank the others wait for.
 *
 * Only these times in a run's log depend on the number of ranks.
 */
#ifndef KG_TRAIN_RANK_TIMES_H
#define KG_TRAIN_RANK_TIMES_H

#include "ranks/ranks.h"
#include "report/metrics.h"

/* Seconds of a rank since the last kg_rank_times_take. */
struct kg_rank_times {
    double sampling; /* with grading */
    double waiting;  /* time in agreements, until the slowest rank arrives */
    double exchange; /* time to exchange gradients, trajectories, weights */
};

/* The times of this rank; resets the clock of `all`. */
struct kg_rank_times kg_rank_times_take(struct kg_ranks *all, double sampling);
/* The times of every rank, in order. times: (ranks->n, or 1 for a single process) out
 * errors: those of the ranks */
kg_status kg_rank_times_gather(struct kg_rank_times *times,
                               const struct kg_rank_times *own, struct kg_ranks *ranks,
                               struct kg_err *err) KG_MUST_CHECK;

/* The rank with the least waiting time, for which the others wait. */
int kg_rank_times_slowest(const struct kg_rank_times *times, int n);
/* Logs seconds/WHAT/rank/N of the first KG_RANK_TIMES_SHOWN ranks, and the slowest of
 * all. */
enum { KG_RANK_TIMES_SHOWN = 64 };
void kg_rank_times_put(struct kg_metrics *log, const struct kg_rank_times *times, int n);

#endif
