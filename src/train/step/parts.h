/* Additional results of graders besides the reward: each of several rewards, and numbers
 * of an external grader. Their sums and metrics in training and validation, and their
 * names in dumps. */
#ifndef KG_TRAIN_PARTS_H
#define KG_TRAIN_PARTS_H

#include "report/metrics.h"
#include "train/run.h"
#include "traj/traj.h"

struct kg_part_sums {
    double answers;
    double sum[KG_TRAJ_PARTS];
    double graded[KG_TRAJ_PARTS]; /* number of samples in the sum */
    double further[KG_FURTHER];
    double said[KG_FURTHER]; /* likewise */
};

void kg_part_add(struct kg_part_sums *s, const struct kg_traj *t);
/* Logs group/part/NAME and group/part_ungraded/NAME of each reward, and
 * group/further/NAME of numbers that some sample has, sorted by name. */
void kg_part_put(struct kg_metrics *log, const char *group, const struct kg_part_sums *s,
                 const struct kg_task_opts *opts);
/* Sets the names, for lines with the numbers in mask (the union of kg_further.named). */
void kg_part_notes(struct kg_traj_notes *notes, const struct kg_task_opts *opts,
                   uint32_t mask);

#endif
