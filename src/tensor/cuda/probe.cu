/* Runs single instructions of this backend's kernels on a test's operands.
 *
 * Kernels rely on properties that a compiler or a device could change: where fragments
 * are, what is rounded or flushed, in which order the matrix instruction adds. Tests
 * check each alone, so that a change does not first appear as a wrong product.
 */
#include "tensor/cuda/attention_internal.h"

extern "C" {
#include "tensor/cuda/probe.h"
}

struct alignas(16) quad {
    uint32_t word[4];
};

static __device__ float number(uint32_t bits) { return kg_cuda_of_bits(bits); }

static __device__ uint32_t of_one_lane(const uint32_t *in, enum kg_probe which)
{
    const float x = number(in[0]), y = number(in[1]), z = number(in[2]);

    switch (which) {
    case KG_PROBE_FMA:
        return kg_cuda_bits(kg_fma(x, y, z));
    case KG_PROBE_FMA_FLUSHED:
        return kg_cuda_bits(kg_fma_flushed(x, y, z));
    case KG_PROBE_ADD_FLUSHED:
        return kg_cuda_bits(kg_add_flushed(x, y));
    case KG_PROBE_MULTIPLY:
        return kg_cuda_bits(x * y);
    case KG_PROBE_DIVIDE:
        return kg_cuda_bits(x / y);
    case KG_PROBE_ROOT:
        return kg_cuda_bits(sqrtf(x));
    case KG_PROBE_PAIR:
        return kg_pair(x, y);
    case KG_PROBE_HALF:
        return kg_cuda_bits(kg_of_half((uint16_t)in[0]));
    default:
        return kg_cuda_bits(kg_exp2(x));
    }
}

static __global__ void by_lanes(uint32_t *out, const uint32_t *in, enum kg_probe which)
{
    out[threadIdx.x] = of_one_lane(in + 3 * threadIdx.x, which);
}

static __global__ void by_warp(uint32_t *out, const uint32_t *in)
{
    const uint32_t *mine = in + 10 * threadIdx.x;
    float d[4];

    for (int i = 0; i < 4; i++)
        d[i] = number(mine[6 + i]);
    kg_mma(d, mine, mine + 4);
    for (int i = 0; i < 4; i++)
        out[4 * threadIdx.x + i] = kg_cuda_bits(d[i]);
}

static __global__ void by_shared(uint32_t *out, const uint32_t *in, enum kg_probe which)
{
    KG_SHARED(struct quad, rows, [32]);
    const int lane = (int)threadIdx.x;
    uint32_t f[4];

    for (int i = 0; i < 4; i++)
        rows[lane].word[i] = which == KG_PROBE_COPY ? ~0u : in[4 * lane + i];
    __syncthreads();
    if (which == KG_PROBE_COPY)
        kg_copy_later(&rows[lane], in + 4 * lane, lane % 17);
    kg_copies_end();
    kg_copies_wait<0>();
    __syncthreads();
    for (int i = 0; i < 4; i++)
        f[i] = rows[lane].word[i];
    if (which == KG_PROBE_FRAGMENTS)
        kg_fragments(f, &rows[lane]);
    else if (which == KG_PROBE_TRANSPOSED)
        kg_fragments_transposed(f, &rows[lane]);
    for (int i = 0; i < 4; i++)
        out[4 * lane + i] = f[i];
}

kg_status kg_cuda_probe(uint32_t out[KG_PROBE_OUT], const uint32_t in[KG_PROBE_IN],
                        enum kg_probe which, struct kg_err *err)
{
    const uint64_t bytes = KG_PROBE_IN * sizeof *in;
    uint32_t *there = (uint32_t *)kg_cuda_scratch(bytes + KG_PROBE_OUT * sizeof *out,
                                                  err);

    if (!there)
        return err->code;
    kg_dev_put(there, in, bytes);
    kg_dev_zero(there + KG_PROBE_IN, KG_PROBE_OUT * sizeof *out);
    if (which == KG_PROBE_MMA)
        KG_LAUNCH(by_warp, kg_grid(1, 1), 32, there + KG_PROBE_IN, there);
    else if (which <= KG_PROBE_COPY)
        KG_LAUNCH(by_shared, kg_grid(1, 1), 32, there + KG_PROBE_IN, there, which);
    else
        KG_LAUNCH(by_lanes, kg_grid(1, 1), 32, there + KG_PROBE_IN, there, which);
    kg_dev_get(out, there + KG_PROBE_IN, KG_PROBE_OUT * sizeof *out);
    return kg_dev_done("probe", err);
}
