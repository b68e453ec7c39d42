/* Device code from one source for two compilers: nvcc builds kernels, a C++ compiler
 * builds an emulation for tests (emu.h).
 *
 * A kernel may use threadIdx.x, blockIdx.x and .y, KG_SHARED, __syncthreads, __syncwarp,
 * __shfl_xor_sync and __ballot_sync of all lanes, __ffs, __popc, kg_fragments, kg_mma,
 * kg_exp2, kg_store_sixteen, kg_copy_later and related, and arithmetic that IEEE 754
 * defines exactly; multiply-adds are fused only by kg_fma (--fmad=false). Blocks consist
 * of whole warps. Kernels use no float atomics and no partition that depends on the grid,
 * so a result is a function of the operands.
 *
 * KG_LAUNCH(kernel, kg_grid(x, y), threads, arguments) launches a kernel of at least one
 * block on the backend's stream. After its launches a function calls kg_dev_done.
 * KG_LAUNCH_ASKING also gives each block dynamic shared memory (at most KG_ASKED_MOST
 * bytes), which the kernel declares by KG_SHARED_ASKED.
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

/* Dynamic shared memory that every architecture of the build supports. */
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
    (kg_dev_come(), kg_dev_allow<kernel>(bytes),                                         \
     kernel<<<grid, threads, bytes, kg_dev_stream>>>(__VA_ARGS__))
/* Raises a kernel's limit of dynamic shared memory. The limit never falls, because a
 * recorded launch may need more than the current one. */
template <auto KERNEL> static inline void kg_dev_allow(int bytes)
{
    static int most;

    if (bytes > most &&
        cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             bytes) == cudaSuccess)
        most = bytes;
}
static inline dim3 kg_grid(int64_t x, int64_t y)
{
    return dim3((unsigned)x, (unsigned)y);
}

/* The compiler's CUDA folder. */
#define KG_DEV_CUDA_ROOT KG_CUDA_ROOT

/* Half the number of products that one timing measures together. */
enum { KG_DEV_REPEATS = 10 };
/* Factors per sum in comparisons of kernels: two chunks and a part of a third. */
enum { KG_DEV_TRIED = 2 * KG_PRODUCT_CHUNK + 80 };
/* Sizes that do not affect results. HEAD_ROWS, LOGITS: rows and logits per pass of the
 * head. WHOLE: most bytes of whole rows to draw from. HEADS: most bytes of an optional
 * array of attention. BLOCKS: blocks that fill a device. LONG: rows of a sequence, with
 * heads of 128, from which attention_bwd_wgmma.cu is predicted to be faster. */
enum { KG_DEV_HEAD_ROWS = 2048, KG_DEV_LOGITS = 4 << 20, KG_DEV_WHOLE = 256 << 20 };
enum { KG_DEV_BLOCKS = 108, KG_DEV_HEADS = 256 << 20, KG_DEV_LONG = 512 };

/* a*b + c, one rounding */
static __device__ inline float kg_fma(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}
static __device__ inline double kg_fma(double a, double b, double c)
{
    return __fma_rn(a, b, c);
}
/* a*b + c, and a + b; subnormal operands and results become zeros of their sign. */
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
/* 2^x for x up to about 0, with an error of at most 3 ulp; the bits are the device's. The
 * result is 1 for 0, 0 for x < -126, and NaN for NaN. */
static __device__ inline float kg_exp2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* d (16 x 8) += a (16 x 16) b (16 x 8) by one warp; a and b are pairs of bf16. In PTX's
 * layout, with g = lane / 4 and t = lane % 4,
 *   d[i] is row g + i/2*8, column 2t + i%2;  b[i] is column g, rows 2t + i*8 and + 1;
 *   a[i] is row g + i%2*8, columns 2t + i/2*8 and + 1. */
static __device__ inline void kg_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* Loads four matrices of 8 x 8 bf16 from shared memory: in lane i, `row` points to row i
 * % 8 of matrix i / 8 (16 bytes, aligned). With g and t as in kg_mma, f[i] holds row g,
 * columns 2t and 2t+1 of matrix i; transposed: column g, rows 2t and 2t+1. */
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
/* Writes sixteen bytes to shared memory: the first `bytes` of `from`, then zeros. Both
 * pointers are aligned to sixteen. A copy is complete after its thread has waited for its
 * group: kg_copies_end ends a group, kg_copies_wait<N> waits for all but the last N. */
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
/* Stores sixteen aligned bytes by one instruction. For a struct of sixteen bytes, the
 * compiler may emit four stores, each as slow as this one. */
static __device__ inline void kg_store_sixteen(void *to, const uint32_t part[4])
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(part[0]), "r"(part[1]),
                   "r"(part[2]), "r"(part[3])
                 : "memory");
}
/* Returns x, but hides its value from the optimizer. So the compiler recomputes values
 * derived from x where needed, instead of keeping them in registers through a loop. */
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
/* fp16 to fp32 */
static __device__ inline float kg_of_half(uint16_t h)
{
    float f;

    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
/* Two floats rounded to bf16, the first in the lower half. */
static __device__ inline uint32_t kg_pair(float first, float second)
{
    uint32_t d;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(second), "f"(first));
    return d;
}

/* For tests. If true, the host may access device memory, and an operation is complete
 * when kg_dev_done returns. */
extern bool kg_dev_shown;
cudaError_t kg_dev_alloc_shown(void **memory, uint64_t bytes);

/* All launches and copies use kg_dev_stream, except kg_dev_fetch, which uses
 * kg_dev_beside. During a recording, kg_dev_lock blocks all other threads. */
extern cudaStream_t kg_dev_stream, kg_dev_beside;
extern cudaEvent_t kg_dev_launched;
enum { KG_DEV_MARKS = 8 };
extern cudaEvent_t kg_dev_marks[KG_DEV_MARKS];
extern bool kg_dev_recording;
/* Selects the chosen device for the calling thread. Call it before the thread's first
 * CUDA call, which would otherwise use device 0. kg_dev_lock calls it. */
void kg_dev_come(void);
static inline cudaStream_t kg_dev_stream_here(void)
{
    kg_dev_come();
    return kg_dev_stream;
}
void kg_dev_lock(void);
void kg_dev_unlock(void);

/* Between kg_dev_record_begin and kg_dev_record_end, launches are recorded, not executed.
 * _end returns the owned record; NULL: recording failed */
void kg_dev_record_begin(void);
void *kg_dev_record_end(void);
void kg_dev_record_launch(void *record);
void kg_dev_record_free(void *record);
/* Calls f(arg), which launches a library's kernels; a record includes them. */
static inline int kg_dev_call(int (*f)(void *), void *arg, size_t bytes)
{
    (void)bytes;
    return f(arg);
}

/* Traits of the chosen device (library.cu). */
int kg_dev_traits(struct kg_trait traits[KG_TRAITS]);

/* Counts all copies between host and device; defined in memory.cu. */
extern "C" struct kg_traffic kg_dev_traffic;

static inline kg_status kg_dev_failed(cudaError_t e, const char *op, struct kg_err *err)
{
    return kg_fail(
        err, KG_EDEVICE,
        "%s: %s (detected here; an earlier asynchronous kernel may be the cause)", op,
        cudaGetErrorString(e));
}
/* Fails with ENOMEM, or EDEVICE if e comes from an earlier operation; returns NULL. */
static inline void *kg_dev_refused(cudaError_t e, const char *memory, uint64_t bytes,
                                   const char *what, struct kg_err *err)
{
    (void)cudaGetLastError();
    if (e == cudaErrorMemoryAllocation)
        kg_fail(err, KG_ENOMEM, "%s: expected %llu bytes of %s, found too little free",
                what, (unsigned long long)bytes, memory);
    else
        kg_dev_failed(e, what, err);
    return NULL;
}

/* kg_dev_done reports errors of the functions below, except kg_dev_alloc, kg_dev_memory
 * and kg_dev_pin. */
static inline void *kg_dev_alloc(uint64_t bytes, const char *what, struct kg_err *err)
{
    const uint64_t some = bytes > 0 ? bytes : 1;
    void *p = NULL;
    cudaError_t e;

    kg_dev_come();
    e = kg_dev_shown ? kg_dev_alloc_shown(&p, some) : cudaMalloc(&p, some);
    return e == cudaSuccess ? p : kg_dev_refused(e, "device memory", bytes, what, err);
}
/* Marks memory as undefined: tests fill it with NaN. */
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
               : kg_fail(err, KG_EDEVICE, "cannot read the free memory of the GPU: %s",
                         cudaGetErrorString(e));
}
/* Waits for all launches into the stream, by any thread. */
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
/* Records event mark % KG_DEV_MARKS in the stream. Later marks reuse the event. */
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
/* cudaErrorNotReady is cleared; other errors remain for the next kg_dev_done. */
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
/* Copies on a separate stream, ordered after the current work of kg_dev_stream. */
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
/* Enclose a library call whose kernels access the buffers at memory[0..n). */
static inline void kg_dev_lend(const void *const *memory, size_t n)
{
    (void)memory, (void)n;
}
static inline void kg_dev_take_back(const void *const *memory, size_t n)
{
    (void)memory, (void)n;
}
/* Waits for all launches, then returns the time. */
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
