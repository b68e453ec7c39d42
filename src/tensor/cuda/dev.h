/* Device code, of one source for two compilers: nvcc makes kernels of it, a C++ compiler
 * an emulation for tests (emu.h).
 *
 * What a kernel may use: threadIdx.x, blockIdx.x and .y, KG_SHARED, __syncthreads,
 * __syncwarp, __shfl_xor_sync and __ballot_sync of all lanes, __ffs, __popc,
 * kg_fragments, kg_mma, kg_copy_later and its kin, and arithmetic that IEEE 754 defines
 * to the last bit; a multiply-add is one where kg_fma says so and nowhere else
 * (--fmad=false). Blocks are of whole warps. No float atomics, and no partition that
 * depends on the grid: a result is a function of the operands.
 *
 * Kernels are started by KG_LAUNCH(kernel, kg_grid(x, y), threads, arguments) with a
 * block at least, in order; whoever starts some ends with kg_dev_done. KG_LAUNCH_ASKING
 * gives each block more shared memory than a compiler may: bytes, KG_ASKED_MOST at most,
 * which the kernel calls by KG_SHARED_ASKED.
 */
#ifndef KG_TENSOR_CUDA_DEV_H
#define KG_TENSOR_CUDA_DEV_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

extern "C" {
#include "tensor/backend.h"
#include "tensor/codes.h"
}

/* What every architecture of the build has. */
enum { KG_ASKED_MOST = 99 << 10 };

#ifndef __CUDACC__
#include KG_DEV_EMULATED /* the header of the emulation that is built (tests/emu/) */
#else
#define KG_DEV_NAME                 "cuda"
#define KG_SHARED(type, name, dims) __shared__ type name dims
#define KG_DEV_STREAM               kg_dev_stream_here()
#define KG_LAUNCH(kernel, grid, threads, ...)                                            \
    kernel<<<grid, threads, 0, KG_DEV_STREAM>>>(__VA_ARGS__)
#define KG_SHARED_ASKED(type, name) extern __shared__ type name[]
#define KG_LAUNCH_ASKING(bytes, kernel, grid, threads, ...)                              \
    (kg_dev_come(),                                                                      \
     (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,     \
                                bytes),                                                  \
     kernel<<<grid, threads, bytes, kg_dev_stream>>>(__VA_ARGS__))
static inline dim3 kg_grid(int64_t x, int64_t y)
{
    return dim3((unsigned)x, (unsigned)y);
}

/* Where CUDA's libraries were beside the compiler. */
#define KG_DEV_CUDA_ROOT KG_CUDA_ROOT

/* Products of which the time is taken together. */
enum { KG_DEV_REPEATS = 10 };
/* Rows and logits that the head has at a time, bytes for rows that it draws from, blocks
 * that fill a device: no result depends on them. */
enum { KG_DEV_HEAD_ROWS = 1024, KG_DEV_LOGITS = 4 << 20, KG_DEV_WHOLE = 256 << 20 };
enum { KG_DEV_BLOCKS = 108 };

/* a*b + c, one rounding */
static __device__ inline float kg_fma(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}
static __device__ inline double kg_fma(double a, double b, double c)
{
    return __fma_rn(a, b, c);
}
/* The same, and a + b, where subnormal operands and results are zero of their sign. */
static __device__ inline float kg_fma_flushed(float a, float b, float c)
{
    float d;

    asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
    return d;
}
static __device__ inline float kg_add_flushed(float a, float b)
{
    float c;

    asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
/* d (16 x 8) += a (16 x 16) b (16 x 8) by a warp, bf16 in pairs, as PTX lays them out:
 * with g = lane / 4 and t = lane % 4, d[i] is row g + i/2*8, column 2t + i%2; a[i] is row
 * g + i%2*8, columns 2t + i/2*8 and the next; b[i] is column g, rows 2t + i*8 and the
 * next. */
static __device__ inline void kg_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* Four matrices of 8 x 8 bf16 from shared memory: `row` of lane i is row i % 8 of matrix
 * i / 8, 16 bytes aligned to as many. f[i] is of matrix i its row g, columns 2t and the
 * next; transposed, its rows 2t and the next of column g. */
static __device__ inline void kg_fragments(uint32_t f[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}
static __device__ inline void kg_fragments_transposed(uint32_t f[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}
/* Sixteen bytes of shared memory <- the first of sixteen there, then zeros; both begin at
 * a multiple of sixteen. The copy is done when its thread has waited for its group, not
 * before: kg_copies_end ends a group, kg_copies_wait<N> waits for all but the last N. */
static __device__ inline void kg_copy_later(void *to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(to)),
                   "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}
static __device__ inline void kg_copies_end(void)
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}
template <int N> static __device__ inline void kg_copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}
/* x, of which the compiler knows nothing more: what is made of it is made where it is
 * needed, instead of being kept in registers through a loop. */
static __device__ inline int64_t kg_anew(int64_t x)
{
    asm volatile("" : "+l"(x));
    return x;
}
static __device__ inline int kg_anew(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}
/* fp16 in fp32 */
static __device__ inline float kg_of_half(uint16_t h)
{
    float f;

    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
/* Two rounded to bf16, the first in the lower half. */
static __device__ inline uint32_t kg_pair(float first, float second)
{
    uint32_t d;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(second), "f"(first));
    return d;
}

/* Tests fill operands and read results in place: memory that the host shares, and an
 * operation that returns is done. */
extern bool kg_dev_shown;

/* All that is launched and copied stands in one stream, which a record is made of, but
 * for what one thread fetches beside it. Other threads wait while one is made
 * (library.cu). */
extern cudaStream_t kg_dev_stream, kg_dev_beside;
extern cudaEvent_t kg_dev_launched;
enum { KG_DEV_MARKS = 8 };
extern cudaEvent_t kg_dev_marks[KG_DEV_MARKS];
extern bool kg_dev_recording;
/* Which device a call is for is a matter of each thread: from here on the chosen one. It
 * is asked before whatever may be a thread's first call; locking asks, too. */
void kg_dev_come(void);
static inline cudaStream_t kg_dev_stream_here(void)
{
    kg_dev_come();
    return kg_dev_stream;
}
void kg_dev_lock(void);
void kg_dev_unlock(void);

/* What is launched from begin to end is recorded and computes nothing.
 * returns owned record; NULL: it could not be recorded */
void kg_dev_record_begin(void);
void *kg_dev_record_end(void);
void kg_dev_record_launch(void *record);
void kg_dev_record_free(void *record);
/* f(arg), which launches by a library; a record has what it launches. */
static inline int kg_dev_call(int (*f)(void *), void *arg, size_t bytes)
{
    (void)bytes;
    return f(arg);
}

/* Of the device that was chosen (library.cu). */
int kg_dev_traits(struct kg_trait traits[KG_TRAITS]);

/* Of all copies but those within the device; memory.cu has it. */
extern "C" struct kg_traffic kg_dev_traffic;

static inline kg_status kg_dev_failed(cudaError_t e, const char *op, struct kg_err *err)
{
    return kg_fail(err, KG_EDEVICE,
                   "%s: %s (found here; kernels launched before run beside the host, and "
                   "one of them may be its cause)",
                   op, cudaGetErrorString(e));
}
/* An allocation also fails of what went wrong before it: then memory is not missing. */
static inline void *kg_dev_refused(cudaError_t e, const char *memory, uint64_t bytes,
                                   const char *what, struct kg_err *err)
{
    (void)cudaGetLastError();
    if (e == cudaErrorMemoryAllocation)
        kg_fail(err, KG_ENOMEM, "%s: no %s for %llu bytes", what, memory,
                (unsigned long long)bytes);
    else
        kg_dev_failed(e, what, err);
    return NULL;
}

/* Errors of these come from kg_dev_done, but for alloc's and pin's. */
static inline void *kg_dev_alloc(uint64_t bytes, const char *what, struct kg_err *err)
{
    const uint64_t some = bytes > 0 ? bytes : 1;
    void *p = NULL;
    cudaError_t e;

    kg_dev_come();
    e = kg_dev_shown ? cudaMallocManaged(&p, some) : cudaMalloc(&p, some);
    return e == cudaSuccess ? p : kg_dev_refused(e, "device memory", bytes, what, err);
}
/* What stands in it is nobody's: tests make it no number. */
static inline void kg_dev_spoil(void *memory, uint64_t bytes)
{
    (void)memory, (void)bytes;
}
static inline void kg_dev_free(void *memory)
{
    kg_dev_come();
    (void)cudaFree(memory);
}
static inline kg_status kg_dev_memory(uint64_t *total, uint64_t *free, struct kg_err *err)
{
    size_t there = 0, left = 0;
    cudaError_t e;

    kg_dev_come();
    e = cudaMemGetInfo(&left, &there);
    *total = there;
    *free = left;
    return e == cudaSuccess
               ? KG_OK
               : kg_fail(err, KG_EDEVICE, "memory: %s", cudaGetErrorString(e));
}
/* Until what was launched into the stream, by any thread, is done. */
static inline void kg_dev_settle(cudaStream_t stream)
{
    kg_traffic_count_wait(&kg_dev_traffic);
    (void)cudaStreamSynchronize(stream);
}
static inline void kg_dev_put_later(void *to, const void *from, uint64_t bytes)
{
    kg_traffic_count(&kg_dev_traffic.up, &kg_dev_traffic.ups, bytes);
    (void)cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, KG_DEV_STREAM);
}
static inline void kg_dev_get_later(void *to, const void *from, uint64_t bytes)
{
    kg_traffic_count(&kg_dev_traffic.down, &kg_dev_traffic.downs, bytes);
    (void)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, KG_DEV_STREAM);
}
/* Where the stream stands: an event, which is a later mark's when it is taken again. */
static inline void kg_dev_mark(uint64_t mark)
{
    (void)cudaEventRecord(kg_dev_marks[mark % KG_DEV_MARKS], KG_DEV_STREAM);
}
static inline void kg_dev_wait(uint64_t mark)
{
    kg_traffic_count_wait(&kg_dev_traffic);
    kg_dev_come();
    (void)cudaEventSynchronize(kg_dev_marks[mark % KG_DEV_MARKS]);
}
/* An event that was not reached is no error of the operation that comes next; one that
 * failed is. */
static inline bool kg_dev_reached(uint64_t mark)
{
    cudaError_t e;

    kg_dev_come();
    e = cudaEventQuery(kg_dev_marks[mark % KG_DEV_MARKS]);
    if (e == cudaErrorNotReady)
        (void)cudaGetLastError();
    return e != cudaErrorNotReady;
}
static inline void kg_dev_put(void *to, const void *from, uint64_t bytes)
{
    kg_dev_put_later(to, from, bytes);
    kg_dev_settle(kg_dev_stream);
}
static inline void kg_dev_get(void *to, const void *from, uint64_t bytes)
{
    kg_dev_lock();
    kg_dev_get_later(to, from, bytes);
    kg_dev_settle(kg_dev_stream);
    kg_dev_unlock();
}
static inline void *kg_dev_pin(uint64_t bytes, const char *what, struct kg_err *err)
{
    void *p = NULL;
    cudaError_t e;

    kg_dev_lock();
    e = cudaHostAlloc(&p, bytes, cudaHostAllocDefault);
    kg_dev_unlock();
    return e == cudaSuccess
               ? memset(p, 0, bytes)
               : kg_dev_refused(e, "page-locked memory of the host", bytes, what, err);
}
static inline void kg_dev_unpin(void *memory)
{
    kg_dev_lock();
    (void)cudaFreeHost(memory);
    kg_dev_unlock();
}
/* By a stream of its own, behind what stands in the other one by now. */
static inline void kg_dev_fetch(void *to, const void *from, uint64_t bytes)
{
    kg_traffic_count(&kg_dev_traffic.down, &kg_dev_traffic.downs, bytes);
    kg_dev_lock();
    (void)cudaEventRecord(kg_dev_launched, kg_dev_stream);
    (void)cudaStreamWaitEvent(kg_dev_beside, kg_dev_launched, 0);
    kg_dev_unlock();
    (void)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, kg_dev_beside);
    kg_dev_settle(kg_dev_beside);
}
static inline void kg_dev_copy(void *to, const void *from, uint64_t bytes)
{
    (void)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, KG_DEV_STREAM);
}
static inline void kg_dev_zero(void *to, uint64_t bytes)
{
    (void)cudaMemsetAsync(to, 0, bytes, KG_DEV_STREAM);
}
/* Around the call of a library whose kernels read and write what begins there. */
static inline void kg_dev_lend(const void *const *memory, size_t n)
{
    (void)memory, (void)n;
}
static inline void kg_dev_take_back(const void *const *memory, size_t n)
{
    (void)memory, (void)n;
}
/* When all that was launched is done. */
static inline double kg_dev_seconds(void)
{
    struct timespec t;

    kg_dev_come();
    (void)cudaDeviceSynchronize();
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static inline kg_status kg_dev_done(const char *op, struct kg_err *err)
{
    cudaError_t e = cudaGetLastError();

    if (e == cudaSuccess && kg_dev_shown) {
        kg_dev_lock();
        if (!kg_dev_recording)
            e = cudaDeviceSynchronize();
        kg_dev_unlock();
    }
    return e == cudaSuccess ? KG_OK : kg_dev_failed(e, op, err);
}
#endif

#endif
