/* Single instructions of a device's kernels, which a test tries one by one. The second
 * name that libkedge_cuda.so exports; kedge does not call it. */
#ifndef KG_TENSOR_CUDA_PROBE_H
#define KG_TENSOR_CUDA_PROBE_H

#include "base/status.h"

#include <stdint.h>

/* Lane l of one warp has words of its own: x, y, z are in[3 l] and the next two, and the
 * result is out[l], unless a row says otherwise. */
enum kg_probe {
    KG_PROBE_MMA,        /* in[10 l]: a[4], b[2], d[4]; out[4 l]: d[4] (dev.h) */
    KG_PROBE_FRAGMENTS,  /* in[4 l]: a row of 16 bytes; out[4 l]: f[4] */
    KG_PROBE_TRANSPOSED, /* the same */
    KG_PROBE_COPY,       /* in[4 l]: 16 bytes, of which l % 17 are copied; out[4 l] */
    KG_PROBE_FMA,        /* x y + z */
    KG_PROBE_FMA_FLUSHED,
    KG_PROBE_ADD_FLUSHED, /* x + y */
    KG_PROBE_MULTIPLY,
    KG_PROBE_DIVIDE,
    KG_PROBE_ROOT, /* of x */
    KG_PROBE_PAIR, /* x and y in bf16 */
    KG_PROBE_HALF, /* x in fp16, to fp32 */
    KG_PROBE_EXP2, /* attention's 2^x, for x <= 0 */
};
enum { KG_PROBE_IN = 320, KG_PROBE_OUT = 128 };

/* in, out: on the host; the backend must be open
 * errors: EDEVICE, ENOMEM */
typedef kg_status kg_cuda_probe_fn(uint32_t out[KG_PROBE_OUT],
                                   const uint32_t in[KG_PROBE_IN], enum kg_probe which,
                                   struct kg_err *err);
extern kg_cuda_probe_fn kg_cuda_probe __attribute__((visibility("default")));

#endif
