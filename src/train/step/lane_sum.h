/* Sums a gradient from lanes: each lane is computed separately and in place, and lanes
 * are added along the tree of ranks/lanes.h, on any number of ranks.
 *
 * With one lane, the lane is the gradient: no copies and no memory.
 */
#ifndef KG_TRAIN_LANE_SUM_H
#define KG_TRAIN_LANE_SUM_H

#include "base/str.h"
#include "model/slab.h"
#include "ranks/lanes.h"
#include "ranks/ranks.h"
#include "train/step/lane_stream.h"

/* {0}: no lane yet. */
struct kg_lane_sum {
    struct kg_tree tree;
    struct kg_slab level[KG_TREE_LEVELS]; /* owned: sums of 2^k lanes, if tree has k */
    struct kg_slab spare[KG_TREE_LEVELS]; /* owned: allocated once, reused later */
    int n_spare;
    struct kg_lane_stream stream; /* owned: for jobs computed by buckets */
};

/* Number of slabs that the lanes need in addition to the gradient's, maximum over the
 * ranks. */
int kg_lane_sum_slabs(int lanes, int ranks);

/* Adds `lane`, which is not the last one, to the sum, and zeroes it.
 * errors: ENOMEM */
kg_status kg_lane_sum_push(struct kg_lane_sum *s, struct kg_slab *lane,
                           struct kg_err *err) KG_MUST_CHECK;
/* Adds the last lane; `last` then holds the sum of all. */
kg_status kg_lane_sum_finish(struct kg_lane_sum *s, struct kg_slab *last,
                             struct kg_err *err) KG_MUST_CHECK;
/* Discards the lanes added so far: for an abandoned update. */
void kg_lane_sum_drop(struct kg_lane_sum *s);
void kg_lane_sum_release(struct kg_lane_sum *s);

/* Adds the gradient of the sequences list[0..n), in this order, to the slab given to
 * kg_lane_sum_run. n > 0 */
typedef kg_status (*kg_lane_fn)(void *context, const size_t *list, size_t n,
                                struct kg_err *err);

/* Sequences to deal to lanes, and the function that computes a lane. */
struct kg_lane_job {
    int lanes;
    struct kg_lane_lengths lengths; /* n lengths; a sequence of 0 tokens gets no lane */
    size_t n;
    kg_lane_fn work;
    void *context;
    struct kg_str *said; /* empty at first; `work` appends to it, in order of the lanes */
    bool cut; /* with ranks: compute only this rank's shard of the sum (kg_cut_of) */
    /* how to compute the gradient if no rank has memory for all of it: `grads` is then
     * this rank's shard; borrowed. NULL: lane by lane */
    const struct kg_lane_stages *stages;
};

/* grads = the gradient of a job's sequences, dealt to its lanes (ranks/lanes.h). The rank
 * that has a lane computes it from 0. Every rank gets the sum, or with job->cut its shard
 * of the sum. *job->said then has the texts of all lanes in order. The bits depend only
 * on the lengths and the number of lanes.
 * errors: of work on any rank, ENOMEM */
kg_status kg_lane_sum_run(struct kg_lane_sum *s, struct kg_slab *grads,
                          const struct kg_lane_job *job, struct kg_ranks *ranks,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
