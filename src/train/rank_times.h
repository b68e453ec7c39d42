/* Where the time of ranks goes: each one's sampling, its waiting for the others, what it
 * exchanges with them; and which of them all wait for.
 *
 * Clocks alone: they are the one part of a log that is another for every number of ranks.
 */
#ifndef KG_TRAIN_RANK_TIMES_H
#define KG_TRAIN_RANK_TIMES_H

#include "ranks/ranks.h"
#include "report/metrics.h"

/* Seconds of a rank since its last ones were taken. */
struct kg_rank_times {
    double sampling; /* and grading */
    double waiting;  /* where ranks agree, for the slowest of them */
    double exchange; /* of gradients, answers, weights */
};

/* Of this rank, from the clock of all ranks, which begins anew. */
struct kg_rank_times kg_rank_times_take(struct kg_ranks *all, double sampling);
/* Those of every rank, in order.   times: (ranks->n, or 1 alone) out
 * errors: of the ranks */
kg_status kg_rank_times_gather(struct kg_rank_times *times,
                               const struct kg_rank_times *own, struct kg_ranks *ranks,
                               struct kg_err *err) KG_MUST_CHECK;

/* The rank that waits least: the others wait for it. */
int kg_rank_times_slowest(const struct kg_rank_times *times, int n);
/* seconds/WHAT/rank/N of the first KG_RANK_TIMES_SHOWN, and the slowest of all. */
enum { KG_RANK_TIMES_SHOWN = 64 };
void kg_rank_times_put(struct kg_metrics *log, const struct kg_rank_times *times, int n);

#endif
