/* Pipeline of stages in shared memory (struct kg_cuda_places; a place is one stage). One
 * producer thread fills stages by TMA; two groups of four consumer warps read them by
 * wgmma (hopper.h). A stage has two barriers, whose phases end when:
 *     full    the bytes of its boxes have arrived
 *     empty   each of the eight consumer warps has waited for its products of the stage
 */
#ifndef KG_TENSOR_CUDA_PIPELINE_INTERNAL_H
#define KG_TENSOR_CUDA_PIPELINE_INTERNAL_H

#include "tensor/cuda/cuda_internal.h"
#include "tensor/cuda/hopper.h"

enum {
    KG_LINE = 2 * KG_BOX,           /* bytes of one row of a box */
    KG_EIGHT_LINES = 8 * KG_LINE,   /* one 128-byte swizzle atom */
    KG_BOX_BYTES = KG_BOX * KG_LINE /* a box of 64 rows */
};
/* Four producer warps, of which one thread works, and eight consumer warps. */
enum { KG_PIPELINE_WARPS = 8, KG_PIPELINE_THREADS = 3 * KG_FOUR_WARPS };
/* Registers per producer and consumer thread; at launch every thread has 168. */
enum { KG_BRINGER_REGISTERS = 40, KG_COMPUTER_REGISTERS = 232 };

struct kg_cuda_places {
    char *at;                        /* first stage */
    struct kg_barrier *full, *empty; /* (stages) */
};
/* kg_cuda_pipeline_asks: bytes of dynamic shared memory to request. kg_cuda_places: the
 * stages in it, after `more` bytes for the kernel, a multiple of KG_BOX_ALIGN. */
static __host__ __device__ constexpr int kg_cuda_pipeline_asks(int stages, int bytes,
                                                               int more)
{
    return KG_BOX_ALIGN + more + stages * (bytes + 2 * (int)sizeof(struct kg_barrier));
}
static __device__ inline struct kg_cuda_places kg_cuda_places(char *asked, int stages,
                                                              int bytes, int more)
{
    /* an offset, so that the compiler sees that it is shared memory */
    char *at = asked + (KG_BOX_ALIGN - (uintptr_t)asked % KG_BOX_ALIGN) % KG_BOX_ALIGN +
               more;
    struct kg_barrier *b = (struct kg_barrier *)(at + stages * bytes);

    return {at, b, b + stages};
}
/* One thread calls this, before kg_barriers_end. */
static __device__ inline void kg_cuda_places_init(const struct kg_cuda_places &p,
                                                  int stages)
{
    for (int i = 0; i < stages; i++) {
        kg_barrier_init(&p.full[i], 1);
        kg_barrier_init(&p.empty[i], KG_PIPELINE_WARPS);
    }
}

/* A thread's stage and the parity of its phase. If a phase does not end within KG_TRIES
 * polls, tries becomes 0 and later waits poll once: instead of hanging, a kernel that
 * does not fit its device ends and writes NaN. */
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

/* A warp calls this after it has waited for its products of the stage. */
static __device__ inline void kg_cuda_leave(const struct kg_cuda_places &p, int place)
{
    if (threadIdx.x % KG_WARP == 0)
        kg_barrier_arrive(&p.empty[place]);
}

/* Warps meet at a barrier; after it, the products of each see what all wrote to shared
 * memory before. parity: of this meeting; toggled for the next */
static __device__ inline void kg_cuda_meet(struct kg_cuda_turn *at, int *parity,
                                           struct kg_barrier *meets)
{
    kg_writes_end();
    kg_barrier_arrive(meets);
    at->await(meets, *parity);
    __syncwarp();
    *parity ^= 1;
}

/* The k-th sixteen factors of the vectors in `side`, which is consecutive boxes of 64
 * rows. COLUMNS: vectors are columns of the boxes. Otherwise they are rows, and k < 4. */
template <bool COLUMNS>
static __device__ inline struct kg_factors_at kg_cuda_factors_of(const char *side, int k)
{
    return kg_factors_at(side + k * (COLUMNS ? 2 * KG_EIGHT_LINES : 32), KG_BOX_BYTES,
                         KG_EIGHT_LINES);
}

#endif
