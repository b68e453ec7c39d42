/* Prompts alone: nothing is graded. For distillation, where a teacher takes the place
 * of a reward.
 *
 * A task all the same, so that data sets are read, joined and shown by the one way that
 * there is. An answer is not graded, which is not a grade of 0: what averages over
 * grades leaves it out.
 */
#include "task/task_internal.h"

kg_status kg_task_none_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                            const char *path, struct kg_err *err)
{
    return kg_task_read(d, path, opts, opts->need_answer, err);
}

kg_status kg_task_none_grade(struct kg_grade *g, const struct kg_record *r,
                             const char *response, size_t n, struct kg_err *err)
{
    (void)r, (void)response, (void)n, (void)err;
    *g = (struct kg_grade){.graded = false};
    return KG_OK;
}
