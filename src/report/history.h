/* A run's metrics.jsonl over time, thinned while reading.
 *
 * For each phase (sft, rl, validation) the lines are grouped into at most
 * KG_HISTORY_POINTS points; for each metric a point keeps the count, sum and extremes of
 * its numbers. When the points are used up, neighbours are merged. So memory does not
 * grow with the run, no extreme is lost, and a growing file gives the same result whether
 * it is read at once or in steps.
 */
#ifndef KG_REPORT_HISTORY_H
#define KG_REPORT_HISTORY_H

#include "base/file.h"
#include "base/status.h"
#include "report/metrics.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_HISTORY_POINTS = 2048, KG_HISTORY_SERIES = 2048, KG_HISTORY_PHASES = 3 };

/* The lines of one point. */
struct kg_history_tick {
    int64_t first_step, last_step;
};
/* The finite numbers of a metric in these lines; n 0 is a gap. */
struct kg_history_point {
    uint32_t n;
    double sum;
    double low, high; /* least and largest */
    /* least x - e and largest x + e of a value x with standard error e (0 if there is
     * none) */
    double below, above;
};

struct kg_series {
    char name[KG_METRIC_NAME];
    const struct kg_metric_row *row; /* NULL: unknown to this version */
    /* index in the phase of the metric with its standard error; -1: none */
    int error;
    struct kg_history_point *points; /* (n_points) owned */
    size_t n_points, capacity;
    /* over all finite numbers of the series */
    int64_t n;
    int64_t not_finite; /* number of null, NaN or infinite values */
    double sum, low, high;
    double first, last, first_error, last_error; /* a missing standard error is NaN */
    int64_t last_step;
    double now; /* value in the current line; NaN: none */
};

struct kg_history_phase {
    const char *name;
    struct kg_series *series; /* (n_series) owned, in order of first occurrence */
    size_t n_series, capacity;
    struct kg_history_tick ticks[KG_HISTORY_POINTS];
    size_t n_ticks;
    int64_t lines, width; /* width: lines per full point */
    int64_t beyond;       /* numbers dropped because of KG_HISTORY_SERIES */
    int64_t first_step, last_step;
};

struct kg_history {
    struct kg_history_phase phase[KG_HISTORY_PHASES]; /* sft, rl, validation */
    uint64_t offset;                                  /* bytes of the file read so far */
    int64_t lines;                                    /* lines of the file */
    int64_t unreadable,
        /* lines skipped: their number, and the line number of the first */
        first_unreadable;
    struct kg_err why; /* error of the last skipped line */
};

/* Makes h empty. */
void kg_history_init(struct kg_history *h);
void kg_history_release(struct kg_history *h);

/* Continues reading to the end of the file. A last line without a line break is still
 * being written and is left for the next call; unreadable lines are counted and skipped.
 * errors: ENOTFOUND, EIO, ENOMEM */
kg_status kg_history_read(struct kg_history *h, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;

/* NULL if there is none. */
const struct kg_history_phase *kg_history_phase(const struct kg_history *h,
                                                const char *name);
const struct kg_series *kg_history_find(const struct kg_history *h, const char *phase,
                                        const char *name);

/* The maximum length of a run folder's path, which leaves room for the files in it. */
enum { KG_RUN_DIR_MAX = 3000 };

#endif
