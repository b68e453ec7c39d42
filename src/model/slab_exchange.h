/* Stretches of slabs from rank to rank.
 *
 * Ranks exchange memory of the host. A stretch of a device's slab goes through
 * page-locked memory beside it: down, over the transport, up; one of the host's goes as
 * it lies. Where NCCL joins the devices it is the other way round: what moves is the
 * device's, and a stretch of the host's goes up, from GPU to GPU, and down. Either way it
 * goes piece by piece, so that both ends cut it alike whatever they compute on.
 */
#ifndef KG_MODEL_SLAB_EXCHANGE_H
#define KG_MODEL_SLAB_EXCHANGE_H

#include "model/slab.h"
#include "ranks/ranks.h"

enum { KG_SLAB_SENT = KG_SLAB_PIECE << 6 }; /* elements of a piece that is sent */

/* Elements [first, first+n) of a slab of fp32; n 0: nothing. */
struct kg_slab_stretch {
    struct kg_slab *slab; /* borrowed */
    int64_t first, n;
};

/* {0}: not open. */
struct kg_slab_wire {
    struct kg_ranks *ranks;           /* borrowed */
    const struct kg_backend *backend; /* of the device */
    bool direct;                      /* by NCCL: what moves is the device's */
    float *out, *in;  /* (ranks, KG_SLAB_SENT) owned, of what does not lie where it moves:
                      * page-locked, or direct the device's; NULL: there is none */
    int64_t *longest; /* (ranks) owned: direct: of each the longest stretch */
    struct kg_ranks_part *parts; /* (2, ranks) owned: out, in */
    struct kg_err failed;        /* the first failure of the device here */
};

/* backend: whose slabs may be sent, beside those of the host; by NCCL where that joins
 * the ranks (ranks/nccl.h)
 * errors: ENOMEM */
kg_status kg_slab_wire_open(struct kg_slab_wire *w, struct kg_ranks *ranks,
                            const struct kg_backend *backend,
                            struct kg_err *err) KG_MUST_CHECK;
void kg_slab_wire_close(
    struct kg_slab_wire *w); /* {0} is allowed, and is what it leaves */
/* Bytes of the host that it takes, or by NCCL of the device, but for a few. */
uint64_t kg_slab_wire_bytes(const struct kg_backend *backend, int ranks);

/* By all ranks: out[p] to rank p, in[p] from it, (ranks) each, of lengths that the two
 * agree on; none
 * for the rank itself but of equal lengths, which is a copy. What is sent and what comes
 * do not overlap.
 * A device that fails here stops nothing, since the others wait: what is sent then is of
 * no use, and the failure stands in w->failed for the next agreement.
 * errors: of kg_ranks_exchange, or of kg_ranks_nccl_exchange, which all hear of */
kg_status kg_slab_exchange(struct kg_slab_wire *w, const struct kg_slab_stretch *out,
                           const struct kg_slab_stretch *in, const char *what,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
