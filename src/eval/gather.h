/* Splits sampling and grading among ranks, and gathers all samples on every rank in the
 * order of their requests.
 *
 * If there are at least as many requests as ranks, requests are dealt whole, so that a
 * prompt is computed once for all its samples; else single samples are dealt. Samples do
 * not depend on the rank.
 */
#ifndef KG_EVAL_GATHER_H
#define KG_EVAL_GATHER_H

#include "eval/metrics.h"
#include "ranks/lanes.h"
#include "ranks/ranks.h"
#include "rollout/rollout.h"
#include "task/task.h"
#include "traj/traj.h"

/* The range of this rank among the trajectories of n requests. */
struct kg_share kg_eval_share(const struct kg_request *requests, size_t n,
                              const struct kg_ranks *ranks);
/* The requests for the samples in `mine` only: (n) out.   returns their number */
size_t kg_eval_cut_requests(struct kg_request *out, const struct kg_request *requests,
                            size_t n, struct kg_share mine);

/* Arrays over all trajectories (n); each rank has its share. */
struct kg_eval_items {
    struct kg_traj *trajs;
    struct kg_grade *grades;        /* NULL: none */
    struct kg_str *texts;           /* NULL: none */
    struct kg_eval_answer *answers; /* token sums; NULL: none */
    size_t n;
};

/* Fills in the shares of the other ranks. Additional numbers of graders are matched by
 * name; new names are added to `names` (NULL: there are no such numbers).
 * errors: ENOMEM, EFORMAT (the requests of the ranks differ), those of the ranks */
kg_status kg_eval_gather(struct kg_eval_items *items, struct kg_share mine,
                         struct kg_further_names *names, struct kg_ranks *ranks,
                         struct kg_err *err) KG_MUST_CHECK;

/* Appends a range of items as bytes, with the names of their additional numbers (NULL:
 * none).   errors: ENOMEM */
kg_status kg_eval_items_put(struct kg_str *out, const struct kg_eval_items *items,
                            struct kg_share which, const struct kg_further_names *names,
                            struct kg_err *err) KG_MUST_CHECK;
/* Reads all n of `items` from bytes of kg_eval_items_put. New names are added; those
 * beyond KG_FURTHER are dropped with a warning.   errors: ENOMEM, EFORMAT (malformed) */
kg_status kg_eval_items_take(struct kg_eval_items *items, struct kg_further_names *names,
                             struct kg_traj_bytes *from,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
