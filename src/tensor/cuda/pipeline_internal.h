/* Pipelines of places in shared memory: one thread fills them by boxes, and products of
 * two times four warps read them (hopper.h).
 *
 * A place has two barriers: full (its bytes are there) and empty (each of the eight warps
 * has waited for the products that read it).
 */
#ifndef KG_TENSOR_CUDA_PIPELINE_INTERNAL_H
#define KG_TENSOR_CUDA_PIPELINE_INTERNAL_H

#include "tensor/cuda/cuda_internal.h"
#include "tensor/cuda/hopper.h"

enum {
    KG_LINE = 2 * KG_BOX,           /* bytes of a row of a box */
    KG_EIGHT_LINES = 8 * KG_LINE,   /* one pattern of banks */
    KG_BOX_BYTES = KG_BOX * KG_LINE /* of 64 rows */
};
/* Threads: four warps bring, by one thread, eight compute. */
enum { KG_PIPELINE_WARPS = 8, KG_PIPELINE_THREADS = 3 * KG_FOUR_WARPS };
/* Registers of a thread, after launch with 168. */
enum { KG_BRINGER_REGISTERS = 40, KG_COMPUTER_REGISTERS = 232 };

struct kg_cuda_places {
    char *at;                        /* of the first */
    struct kg_barrier *full, *empty; /* (stages) */
};
/* Bytes to ask for, and the places there: after `more` bytes of the kernel's own, a
 * multiple of KG_BOX_ALIGN. */
static __host__ __device__ constexpr int kg_cuda_pipeline_asks(int stages, int bytes,
                                                               int more)
{
    return KG_BOX_ALIGN + more + stages * (bytes + 2 * (int)sizeof(struct kg_barrier));
}
static __device__ inline struct kg_cuda_places kg_cuda_places(char *asked, int stages,
                                                              int bytes, int more)
{
    char *at = (char *)(((uintptr_t)asked + KG_BOX_ALIGN - 1) / KG_BOX_ALIGN *
                        KG_BOX_ALIGN) +
               more;
    struct kg_barrier *b = (struct kg_barrier *)(at + stages * bytes);

    return {at, b, b + stages};
}
/* By one thread, before kg_barriers_end. */
static __device__ inline void kg_cuda_places_init(const struct kg_cuda_places &p,
                                                  int stages)
{
    for (int i = 0; i < stages; i++) {
        kg_barrier_init(&p.full[i], 1);
        kg_barrier_init(&p.empty[i], KG_PIPELINE_WARPS);
    }
}

/* Where a thread is: the place, and how often all of them were gone through. A barrier
 * that does not end within some seconds is left, and then no other is waited for: a
 * kernel that is wrong about a device ends, and gives NaN. */
enum { KG_TRIES = 1 << 20 };
struct kg_cuda_turn {
    int place, parity, tries;

    __device__ void await(struct kg_barrier *b, int phase)
    {
        if (!kg_barrier_wait(b, phase, tries))
            tries = 0;
    }
};
template <int STAGES> static __device__ inline void kg_cuda_go_on(struct kg_cuda_turn *t)
{
    if (++t->place == STAGES) {
        t->place = 0;
        t->parity ^= 1;
    }
}

/* By a warp that has waited for its products of a place. */
static __device__ inline void kg_cuda_leave(const struct kg_cuda_places &p, int place)
{
    if (threadIdx.x % KG_WARP == 0)
        kg_barrier_arrive(&p.empty[place]);
}

/* Sixteen factors k of vectors from a multiple of 64 on, of boxes of 64 rows: of their
 * columns, or of rows, whose k is below 4. */
template <bool COLUMNS>
static __device__ inline struct kg_factors_at kg_cuda_factors_of(const char *side, int k)
{
    return kg_factors_at(side + k * (COLUMNS ? 2 * KG_EIGHT_LINES : 32), KG_BOX_BYTES,
                         KG_EIGHT_LINES);
}

#endif
