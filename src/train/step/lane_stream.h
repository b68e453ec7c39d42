/* The gradient of all lanes if no rank has memory for all of it: the ranks compute it
 * bucket by bucket, and each keeps its shard.
 *
 * A bucket is the range that one backward stage adds to: a layer. Lanes are split into
 * packs as on a single rank, and in each round every rank gets one pack. All ranks run
 * their forward at the same time. In the backward a bucket passes from rank to rank along
 * the packs of a lane, and each rank adds its pack's gradient in place. So the ranks do
 * the same additions as one rank that computes the packs in order. A rank starts a bucket
 * one stage after the previous rank; for the first pack of a lane it starts from 0
 * without waiting.
 *
 * After the last pack of a round, or of its lane, the bucket is dealt out in equal
 * stripes. The stripe of an unfinished lane continues in the next round; the stripe of a
 * finished lane is added along the tree of ranks/lanes.h by the rank that has it. In the
 * end the stripes are sent to the owners of the shards.
 *
 * Any number of ranks works with any number of lanes.
 */
#ifndef KG_TRAIN_LANE_STREAM_H
#define KG_TRAIN_LANE_STREAM_H

#include "model/model.h"
#include "model/slab_exchange.h"
#include "ranks/lanes.h"
#include "ranks/ranks.h"

/* The buckets of a slab, in the order of the backward: disjoint ranges that cover it. */
struct kg_lane_buckets {
    int n;
    int64_t elements; /* of the slab */
    struct kg_cut (*cut)(const void *of, int i);
    const void *of; /* borrowed */
};
/* The buckets of a model: kg_backward_cut. */
struct kg_lane_buckets kg_lane_buckets_of(const struct kg_model *m);

/* Computes a job by buckets (struct kg_lane_job). */
struct kg_lane_stages {
    struct kg_lane_buckets buckets;
    /* The forward of a pack: sequences list[0..n) of a lane; the next backward belongs to
     * it. begins: the pack is the first of its lane. *any: whether it has a gradient */
    kg_status (*forward)(bool *any, void *context, const size_t *list, size_t n,
                         bool begins, struct kg_err *err);
    /* grads += the pack's gradient of bucket i; called in order, i = 0, 1, ... */
    kg_status (*backward)(void *context, struct kg_grads grads, int i,
                          struct kg_err *err);
};

/* Memory of the stages, allocated once: the bucket on the gradient's backend, the rest on
 * the host, except for buffers of NCCL. {0}: not allocated. */
struct kg_lane_stream {
    struct kg_slab bucket; /* owned, as all slabs here: size of the largest bucket */
    struct kg_slab slot
        /* stripes of all buckets: one slot per level of the tree, then one for the
         * unfinished lane */
        [KG_TREE_LEVELS + 1];
    struct kg_slab room; /* received data, on the device if NCCL joins the ranks */
    struct kg_slab near; /* with NCCL: a piece on the host, on its way to a stripe */
    struct kg_slab_wire wire;
};
void kg_lane_stream_release(struct kg_lane_stream *s);
/* Bytes of struct kg_lane_stream, the same on every rank, for gradients of a backend;
 * `room` includes the wire. direct: NCCL joins the devices */
struct kg_lane_stream_memory {
    uint64_t bucket;  /* on the device */
    uint64_t stripes; /* on the host */
    uint64_t room;    /* on the host; direct: on the device */
    uint64_t near;    /* on the host */
};
struct kg_lane_stream_memory kg_lane_stream_memory(const struct kg_lane_buckets *b,
                                                   const struct kg_backend *backend,
                                                   int lanes, int ranks, bool direct);

struct kg_lane_job;

/* grads = this rank's shard (kg_cut_of) of the gradient of a job with stages; *job->said
 * is gathered from all ranks, as in kg_lane_sum_run. lane: (job->n) lane of each sequence
 * errors: of forward and backward on any rank, ENOMEM; reported on all */
kg_status kg_lane_stream_run(struct kg_lane_stream *memory, struct kg_slab *grads,
                             const struct kg_lane_job *job, const int32_t *lane,
                             struct kg_ranks *ranks, struct kg_err *err) KG_MUST_CHECK;

#endif
