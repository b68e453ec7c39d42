/* Answers that ranks sampled and graded between them: which are whose, and all of them on
 * every rank, in the order of their requests.
 *
 * Requests are dealt whole where there are as many as ranks or more, so that a prompt is
 * computed once for all its samples; else by samples. What is drawn does not depend on
 * where.
 */
#ifndef KG_EVAL_GATHER_H
#define KG_EVAL_GATHER_H

#include "eval/metrics.h"
#include "ranks/ranks.h"
#include "ranks/share.h"
#include "rollout/rollout.h"
#include "task/task.h"
#include "traj/pack.h"

/* The trajectories, of those of n requests in a row, that are this rank's to sample. */
struct kg_share kg_eval_share(const struct kg_request *requests, size_t n,
                              const struct kg_ranks *ranks);
/* The requests for these alone: (n) out.   returns how many */
size_t kg_eval_cut_requests(struct kg_request *out, const struct kg_request *requests,
                            size_t n, struct kg_share mine);

/* Arrays over all trajectories (n), of which each rank has its share. */
struct kg_eval_items {
    struct kg_traj *trajs;
    struct kg_grade *grades;        /* NULL: none */
    struct kg_str *texts;           /* NULL: none */
    struct kg_eval_answer *answers; /* sums over tokens; NULL: none */
    size_t n;
};

/* What the others have, into its places. Numbers that graders say besides are known by
 * their names: `names` grows by those of the others; NULL: there are none.
 * errors: ENOMEM, of the ranks */
kg_status kg_eval_gather(struct kg_eval_items *items, struct kg_share mine,
                         struct kg_further_names *names, struct kg_ranks *ranks,
                         struct kg_err *err) KG_MUST_CHECK;

/* Some of them as bytes: appended, with the names of their numbers; NULL: there are none.
 * errors: ENOMEM */
kg_status kg_eval_items_put(struct kg_str *out, const struct kg_eval_items *items,
                            struct kg_share which, const struct kg_further_names *names,
                            struct kg_err *err) KG_MUST_CHECK;
/* All n of `items` out of what was put of so many; `names` grows by those that came.
 * errors: ENOMEM, EFORMAT (other bytes, too many names) */
kg_status kg_eval_items_take(struct kg_eval_items *items, struct kg_further_names *names,
                             struct kg_traj_bytes *from,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
