/* What graders say of an answer besides its reward: each of several rewards, and numbers
 * of an external grader's own. Their sums and metrics in training and in validation, and
 * their names in dumps.
 */
#ifndef KG_TRAIN_PARTS_H
#define KG_TRAIN_PARTS_H

#include "report/metrics.h"
#include "train/run.h"
#include "traj/traj.h"

struct kg_part_sums {
    double answers;
    double sum[KG_TRAJ_PARTS];
    double graded[KG_TRAJ_PARTS]; /* answers that it is a sum of */
    double further[KG_FURTHER];
    double said[KG_FURTHER]; /* likewise */
};

void kg_part_add(struct kg_part_sums *s, const struct kg_traj *t);
/* group/part/NAME and group/part_ungraded/NAME of each reward; group/further/NAME of what
 * was said of some answer, in the order of the names. */
void kg_part_put(struct kg_metrics *log, const char *group, const struct kg_part_sums *s,
                 const struct kg_task_opts *opts);
/* The names, for lines that have the numbers of mask (kg_further.named of them all). */
void kg_part_notes(struct kg_traj_notes *notes, const struct kg_task_opts *opts,
                   uint32_t mask);

#endif
