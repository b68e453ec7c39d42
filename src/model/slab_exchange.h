/* Exchanges ranges of slabs between ranks.
 *
 * Ranks exchange host memory. A range of a device's slab is copied to page-locked host
 * memory, sent, and copied to the other device; a range on the host is sent directly.
 * With NCCL, ranks exchange device memory: a range on the host is copied to the GPU, sent
 * from GPU to GPU, and copied to the other host. Both ways split ranges into pieces of a
 * fixed size, so sender and receiver may have different backends.
 */
#ifndef KG_MODEL_SLAB_EXCHANGE_H
#define KG_MODEL_SLAB_EXCHANGE_H

#include "model/slab.h"
#include "ranks/ranks.h"

enum { KG_SLAB_SENT = KG_SLAB_PIECE << 6 }; /* elements per piece */

/* Elements [first, first+n) of an fp32 slab; n 0: none. */
struct kg_slab_stretch {
    struct kg_slab *slab; /* borrowed */
    int64_t first, n;
};

/* {0}: not open. */
struct kg_slab_wire {
    struct kg_ranks *ranks;           /* borrowed */
    const struct kg_backend *backend; /* of the device */
    bool direct;                      /* exchanges device memory, by NCCL */
    float *out,
        /* (ranks, KG_SLAB_SENT) owned staging, for ranges that are not in the exchanged
         * memory: page-locked, or if `direct` on the device; NULL: none */
        *in;
    int64_t *longest; /* (ranks) owned: if direct, the longest range of each rank */
    struct kg_ranks_part *parts; /* (2, ranks) owned: out, in */
    struct kg_err failed;        /* the first device failure on this rank */
};

/* backend: that of the slabs that may be exchanged besides slabs in host memory. Uses
 * NCCL if it joins the ranks (ranks/nccl.h) and the backend is a device's.
 * errors: ENOMEM */
kg_status kg_slab_wire_open(struct kg_slab_wire *w, struct kg_ranks *ranks,
                            const struct kg_backend *backend,
                            struct kg_err *err) KG_MUST_CHECK;
void kg_slab_wire_close(
    struct kg_slab_wire *w); /* {0} is allowed, and is the state afterwards */
/* Bytes of staging on the host, or, with NCCL, on the device; 0 for a CPU backend. */
uint64_t kg_slab_wire_bytes(const struct kg_backend *backend, int ranks);

/* Collective: sends out[p] to rank p and receives in[p] from it, (ranks) each; both sides
 * must pass equal lengths. The rank's own entries must be both empty or of equal length;
 * their data is copied. Sent and received ranges must not overlap.
 * A device failure here does not stop the exchange, because the other ranks wait: the
 * data sent is then invalid, and w->failed holds the error for the next agreement.
 * errors: those of kg_ranks_exchange or kg_ranks_nccl_exchange, reported on all */
kg_status kg_slab_exchange(struct kg_slab_wire *w, const struct kg_slab_stretch *out,
                           const struct kg_slab_stretch *in, const char *what,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
