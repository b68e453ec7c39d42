/* Sums and metrics of samples: by the data source of their problem, and by part of their
 * reward.
 *
 * The first 16 sources have their own names; the rest are combined as "other".
 */
#ifndef KG_TRAIN_SUMS_H
#define KG_TRAIN_SUMS_H

#include "report/metrics.h"
#include "train/run.h"

enum {
    KG_SOURCES = 16,
    KG_SOURCE_NAME = 100 /* maximum bytes, for metric names */
};

struct kg_source_sums {
    const char *name; /* borrowed */
    double answers;
    double judged; /* completions with a reward; `reward` is their sum */
    double reward;
    double correct;
    double tokens;
    /* over problems, for the standard error: their number, and the sum and sum of squares
     * of each one's fraction of correct samples */
    double problems, share, share_squared;
};
struct kg_sources {
    struct kg_source_sums row[KG_SOURCES + 1];
    size_t n;
};

/* The data source of prompt i.   borrowed */
const char *kg_source_of(const struct kg_prompts *p, size_t i);
/* Whether there are at least two. */
bool kg_sources_differ(const struct kg_prompts *p);

/* Checks that the names of sources, if there are several, have at most KG_SOURCE_NAME
 * bytes.   errors: EINVAL, after key */
kg_status kg_sources_check(const struct kg_prompts *p, const char *key,
                           struct kg_err *err) KG_MUST_CHECK;

/* The sums of a source, which is added if new; "other" after the first KG_SOURCES. */
struct kg_source_sums *kg_sources_row(struct kg_sources *s, const char *name);
/* Adds a problem whose samples were correct with fraction `share`. */
void kg_source_problem(struct kg_source_sums *row, double share);

/* Logs reward/source/NAME, accuracy/source/NAME, length/source/NAME, answers/source/NAME,
 * each after prefix; accuracy_stderr/source/NAME if problems were counted. */
void kg_sources_put(struct kg_metrics *log, const char *prefix,
                    const struct kg_sources *s);

/* Additional results of graders besides the reward: each of several rewards, and numbers
 * of an external grader. */
struct kg_part_sums {
    double answers;
    double sum[KG_TRAJ_PARTS];
    double graded[KG_TRAJ_PARTS]; /* number of samples in the sum */
    double further[KG_FURTHER];
    double said[KG_FURTHER]; /* number of samples in `further` */
};

void kg_part_add(struct kg_part_sums *s, const struct kg_traj *t);
/* Logs group/part/NAME and group/part_ungraded/NAME of each reward, and
 * group/further/NAME of numbers that some sample has, sorted by name. */
void kg_part_put(struct kg_metrics *log, const char *group, const struct kg_part_sums *s,
                 const struct kg_task_opts *opts);
/* Sets names in notes, for the numbers in mask (the union of kg_further.named). */
void kg_part_notes(struct kg_traj_notes *notes, const struct kg_task_opts *opts,
                   uint32_t mask);

/* ---- episodes.c ---- */

/* For a tool failure that stops the run: adds to the message how to continue.
 * returns status */
kg_status kg_run_tool_failed(const struct kg_episodes *episodes, int64_t step,
                             kg_status status, struct kg_err *err);

/* PREFIX/turns, calls, invalid, failed, windowed (means per episode), answered and cut
 * (fractions); nothing without episodes. */
void kg_episodes_put(struct kg_metrics *log, const char *prefix,
                     const struct kg_episode_sums *sums);

#endif
