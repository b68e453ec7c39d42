/* The gradient of all lanes where no rank has room for one: it is made bucket by bucket,
 * and of what is made each rank keeps a part.
 *
 * A bucket is what one stage of the backward adds to: a layer. Lanes are cut into packs,
 * as one rank would, and packs go to ranks in their order, one each: a round. All make
 * the forward of theirs at once. In the backward a bucket goes from rank to rank along
 * the packs of a lane, and each adds in place what its pack has, so additions are those
 * of one rank that makes the packs one after the other; a rank begins a bucket a stage
 * behind the one before it, and where another lane begins it begins from 0 without
 * waiting. What has passed the last pack of a round, or of its lane, is dealt out in
 * equal stripes of the bucket: the part of a lane that is not whole goes on in the next
 * round, a whole lane is added along the tree of ranks/tree.h by whoever has the stripe.
 * In the end stripes go to the owners of cuts.
 *
 * Any number of ranks does for any number of lanes.
 */
#ifndef KG_TRAIN_LANE_STREAM_H
#define KG_TRAIN_LANE_STREAM_H

#include "model/model.h"
#include "model/slab_exchange.h"
#include "ranks/ranks.h"
#include "ranks/tree.h"

/* The buckets of a slab, in the order in which a backward makes them: stretches that do
 * not meet and are all of it. */
struct kg_lane_buckets {
    int n;
    int64_t elements; /* of the slab */
    struct kg_cut (*cut)(const void *of, int i);
    const void *of; /* borrowed */
};
/* Those of a model: kg_backward_cut. */
struct kg_lane_buckets kg_lane_buckets_of(const struct kg_model *m);

/* How a job is made by buckets (struct kg_lane_job). */
struct kg_lane_stages {
    struct kg_lane_buckets buckets;
    /* The forward of a pack, sequences list[0..n) of a lane; the next backward is its.
     * begins: it is the first of its lane.   *any: whether it has a gradient */
    kg_status (*forward)(bool *any, void *context, const size_t *list, size_t n,
                         bool begins, struct kg_err *err);
    /* grads += what bucket i has of it; in order, i = 0, 1, ... */
    kg_status (*backward)(void *context, struct kg_grads grads, int i,
                          struct kg_err *err);
};

/* Memory of it, which is taken once: the bucket is the gradient's backend's, the rest the
 * host's, but for what NCCL moves. {0}: none is. */
struct kg_lane_stream {
    struct kg_slab bucket;                   /* owned, as the rest: of the largest */
    struct kg_slab slot[KG_TREE_LEVELS + 1]; /* stripes of all buckets, each: levels of
                                              * the tree, then the lane that goes on */
    struct kg_slab room; /* what comes, piece by piece: the device's where NCCL joins */
    struct kg_slab near; /* then, on its way to a stripe: a piece on the host */
    struct kg_slab_wire wire;
};
void kg_lane_stream_release(struct kg_lane_stream *s);
/* Bytes of it, on every rank alike, for gradients of a backend; the wire's with the
 * room's.   direct: NCCL joins the devices */
struct kg_lane_stream_memory {
    uint64_t bucket;  /* of the device */
    uint64_t stripes; /* of the host */
    uint64_t room;    /* of the host; direct: of the device */
    uint64_t near;    /* of the host */
};
struct kg_lane_stream_memory kg_lane_stream_memory(const struct kg_lane_buckets *b,
                                                   const struct kg_backend *backend,
                                                   int lanes, int ranks, bool direct);

struct kg_lane_job;

/* grads = this rank's cut (kg_cut_of) of the gradient of a job that has stages;
 * *job->said is that of all, as kg_lane_sum_run has it.   lane: (job->n) as dealt
 * errors: of forward and backward on any rank, ENOMEM; all hear of each */
kg_status kg_lane_stream_run(struct kg_lane_stream *memory, struct kg_slab *grads,
                             const struct kg_lane_job *job, const int32_t *lane,
                             struct kg_ranks *ranks, struct kg_err *err) KG_MUST_CHECK;

#endif
