/* What a run's metrics.jsonl says over time, thinned as it is read.
 *
 * For each phase (sft, rl, validation) the lines are put into at most KG_HISTORY_POINTS
 * points, and for each metric a point keeps how many numbers fell into it, their sum and
 * their extremes. Where the points are used up, neighbours become one. So memory does not
 * grow with the run, no extreme is lost, and a file that grows is read on from where the
 * last reading ended, with the same result as one reading of the whole.
 */
#ifndef KG_REPORT_HISTORY_H
#define KG_REPORT_HISTORY_H

#include "base/status.h"
#include "report/metric_table.h"
#include "report/metrics.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_HISTORY_POINTS = 2048, KG_HISTORY_SERIES = 2048, KG_HISTORY_PHASES = 3 };

/* Lines that share a point. */
struct kg_history_tick {
    int64_t first_step, last_step;
};
/* The finite numbers of a metric in them: n 0 is a gap. */
struct kg_history_point {
    uint32_t n;
    double sum;
    double low, high; /* least and largest */
    /* the same of the number less and plus its standard error, where it has one (the
     * extremes themselves otherwise) */
    double below, above;
};

struct kg_series {
    char name[KG_METRIC_NAME];
    const struct kg_metric_row *row; /* NULL: a metric that this version does not know */
    /* the metric that holds its standard error, by number in the phase; -1 without */
    int error;
    struct kg_history_point *points; /* (n_points) owned */
    size_t n_points, capacity;
    /* of all its finite numbers, unthinned */
    int64_t n;
    int64_t not_finite; /* null, NaN or an infinity stood there */
    double sum, low, high;
    double first, last, first_error, last_error; /* an error is NaN where there is none */
    int64_t last_step;
    double now; /* of the line in progress; NaN without */
};

struct kg_history_phase {
    const char *name;
    struct kg_series *series; /* (n_series) owned, in order of first mention */
    size_t n_series, capacity;
    struct kg_history_tick ticks[KG_HISTORY_POINTS];
    size_t n_ticks;
    int64_t lines, width; /* width: lines of a full point */
    int64_t beyond;       /* numbers left out: of metrics beyond KG_HISTORY_SERIES */
    int64_t first_step, last_step;
};

struct kg_history {
    struct kg_history_phase phase[KG_HISTORY_PHASES]; /* sft, rl, validation */
    uint64_t offset;                                  /* bytes of the file read so far */
    int64_t lines;                                    /* of it, the next two too */
    int64_t unreadable, first_unreadable; /* left out: how many, number of the first */
    struct kg_err why;                    /* of the last of them, with its line */
};

/* {0} to a history without lines. */
void kg_history_init(struct kg_history *h);
void kg_history_release(struct kg_history *h);

/* Read on to the end of the file. A last line without a line break is still being written
 * and is left for the next time; one that cannot be read is counted and left out.
 * errors: NOTFOUND, EIO, ENOMEM */
kg_status kg_history_read(struct kg_history *h, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;

/* NULL where there is none. */
const struct kg_history_phase *kg_history_phase(const struct kg_history *h,
                                                const char *name);
const struct kg_series *kg_history_find(const struct kg_history *h, const char *phase,
                                        const char *name);

#endif
