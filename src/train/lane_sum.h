/* A gradient out of lanes: each lane is summed in place, by itself, and lanes are added
 * along the tree of ranks/tree.h, whichever rank made them.
 *
 * One lane is the gradient itself: nothing is copied and no memory is taken.
 */
#ifndef KG_TRAIN_LANE_SUM_H
#define KG_TRAIN_LANE_SUM_H

#include "base/str.h"
#include "model/slab.h"
#include "ranks/lanes.h"
#include "ranks/ranks.h"
#include "ranks/tree.h"
#include "train/lane_stream.h"

/* {0}: no lane has come. */
struct kg_lane_sum {
    struct kg_tree tree;
    struct kg_slab
        level[KG_TREE_LEVELS]; /* owned: sums of 2^k lanes where tree holds k */
    struct kg_slab spare[KG_TREE_LEVELS]; /* owned: taken once, used by the next sums */
    int n_spare;
    struct kg_lane_stream stream; /* owned: of jobs that are made by buckets */
};

/* The slabs that C lanes need beside the one of the gradient, on the rank that needs
 * most. */
int kg_lane_sum_slabs(int lanes, int ranks);

/* `lane` holds a lane that is not the last one: it goes into the sum, and is 0 then.
 * errors: ENOMEM */
kg_status kg_lane_sum_push(struct kg_lane_sum *s, struct kg_slab *lane,
                           struct kg_err *err) KG_MUST_CHECK;
/* `last` holds the last lane, and then the sum of all. */
kg_status kg_lane_sum_finish(struct kg_lane_sum *s, struct kg_slab *last,
                             struct kg_err *err) KG_MUST_CHECK;
/* Forget what came: an update that is given up. */
void kg_lane_sum_drop(struct kg_lane_sum *s);
void kg_lane_sum_release(struct kg_lane_sum *s);

/* Adds the gradient of the sequences list[0..n), in this order, to the slab that
 * kg_lane_sum_run was given.   n > 0 */
typedef kg_status (*kg_lane_fn)(void *context, const size_t *list, size_t n,
                                struct kg_err *err);

/* What is dealt, and who makes a lane of it. */
struct kg_lane_job {
    int lanes;
    struct kg_lane_lengths lengths; /* of n sequences; one of 0 tokens is in no lane */
    size_t n;
    kg_lane_fn work;
    void *context;
    struct kg_str *said; /* what `work` appends to, lane after lane; empty before */
    bool cut; /* over ranks: the sum is wanted of a rank's cut (kg_cut_of) alone */
    /* how it is made over ranks that have no room for all of it: `grads` is that cut;
     * borrowed. NULL: lane by lane */
    const struct kg_lane_stages *stages;
};

/* grads = the gradient of the sequences of a job, dealt to its lanes (ranks/lanes.h),
 * each made from 0 by the rank whose share it is in, on every rank, or with job->cut its
 * cut of that; *job->said is then that of all lanes. The bits depend on the lengths and
 * on the number of lanes.
 * errors: of work on any rank, ENOMEM */
kg_status kg_lane_sum_run(struct kg_lane_sum *s, struct kg_slab *grads,
                          const struct kg_lane_job *job, struct kg_ranks *ranks,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
