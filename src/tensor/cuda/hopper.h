/* Instructions that only sm_90a has: copies of boxes of a matrix to shared memory (TMA),
 * barriers that count arrived bytes (mbarrier), and products by four warps (wgmma).
 *
 * Copies, products and writes for products are asynchronous:
 *   - A box is in shared memory after a thread has waited for the phase of its barrier.
 *   - A product may read its factors and change its sums until its threads have waited
 *     for its group (kg_products_wait).
 *   - A product sees the bytes of kg_write_later after the writer's kg_writes_end.
 * The emulation delays each effect until that point; before, it shows NaN (emu_hopper.h).
 *
 * Kernels are compiled for every architecture; without KG_HOPPER their bodies are empty.
 * The host calls kg_dev_hoppers before it launches them.
 */
#ifndef KG_TENSOR_CUDA_HOPPER_H
#define KG_TENSOR_CUDA_HOPPER_H

#include "tensor/cuda/dev.h"

extern "C" {
#include "tensor/cuda/boxes.h"
}

/* KG_HOPPER_MOST: maximum shared memory of a block in bytes. KG_FOUR_WARPS: threads of a
 * warpgroup. KG_BOX: columns of a box; its rows have 128 bytes, the swizzle width. */
enum {
    KG_HOPPER_MOST = 227 << 10,
    KG_FOUR_WARPS = 128,
    KG_BOX = 64,
    KG_BOX_ALIGN = 1024
};

/* An mbarrier in shared memory: counts the arrivals and bytes of its current phase. The
 * parity of phases is 0, 1, 0, .. */
struct kg_barrier {
    uint64_t word;
};

#ifndef __CUDACC__
#include KG_DEV_EMULATED_HOPPER
#else
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
enum { KG_HOPPER = 1 };
#else
enum { KG_HOPPER = 0 };
#endif
#define KG_LAUNCH_HOPPER KG_LAUNCH_ASKING

static __device__ inline uint32_t kg_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers ---- */
/* One thread calls kg_barrier_init, then kg_barriers_end; then all call __syncthreads.
 * `arrivals` arrivals end a phase. */
static __device__ inline void kg_barrier_init(struct kg_barrier *b, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(kg_shared_address(b)), "r"(arrivals)
                 : "memory");
}
static __device__ inline void kg_barriers_end(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}
static __device__ inline void kg_barrier_arrive(struct kg_barrier *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 :
                 : "r"(kg_shared_address(b))
                 : "memory");
}
/* Arrives, and lets the phase await `bytes` more: the total of the thread's boxes. */
static __device__ inline void kg_barrier_expect(struct kg_barrier *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(kg_shared_address(b)), "r"(bytes)
                 : "memory");
}
/* Waits until the phase of this parity has ended. On a new barrier, parity 1 has ended.
 * returns false: it did not end within `tries` polls; each poll may suspend for a time */
static __device__ inline bool kg_barrier_wait(struct kg_barrier *b, int parity, int tries)
{
    uint32_t ended;

    do
        asm volatile("{\n"
                     ".reg .pred ended;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, ended;\n"
                     "}"
                     : "=r"(ended)
                     : "r"(kg_shared_address(b)), "r"(parity)
                     : "memory");
    while (!ended && --tries > 0);
    return ended;
}

/* ---- boxes ---- */
/* Copies the box at (row, col) to `to`, aligned to KG_BOX_ALIGN; elements outside the
 * matrix become 0. Rows of bf16 have 128 bytes, in which 16-byte chunk c of row r is
 * swizzled to chunk c ^ r % 8. Rows of fp32 have 16 bytes without gaps, and `col` counts
 * halves of an element. */
static __device__ inline void kg_box_later(void *to, const struct kg_boxes *boxes,
                                           int row, int col, struct kg_barrier *b)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 :
                 : "r"(kg_shared_address(to)), "l"(boxes), "r"(kg_shared_address(b)),
                   "r"(col), "r"(row)
                 : "memory");
}

/* Byte offset in a box of 16-byte chunk c of row r. */
static __host__ __device__ inline int kg_box_place(int r, int c)
{
    return r * 2 * KG_BOX + (c ^ r % 8) * 16;
}

/* Writes sixteen aligned bytes of shared memory for products. Before a product reads
 * them, the writer calls kg_writes_end and all threads synchronize. */
static __device__ inline void kg_write_later(void *to, const uint32_t part[4])
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(kg_shared_address(to)), "r"(part[0]), "r"(part[1]), "r"(part[2]),
                   "r"(part[3])
                 : "memory");
}
static __device__ inline void kg_writes_end(void)
{
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

/* ---- products ---- */
/* wgmma descriptor of one operand in the layout of kg_box_later: sixteen factors of each
 * vector, with strides in bytes.
 *   vector = row of boxes:     `eight` from 8 vectors to the next 8; `block` is unused;
 *                              `at` advances by 32 bytes per sixteen factors
 *   vector = column (COLUMNS): `block` from 64 vectors to the next 64, `eight` from 8
 *                              factors to the next 8 */
struct kg_factors_at {
    uint64_t bits;
};
static __device__ inline struct kg_factors_at kg_factors_at(const void *at, int block,
                                                            int eight)
{
    return {(uint64_t)(kg_shared_address(at) >> 4 & 0x3fff) |
            (uint64_t)(block >> 4) << 16 | (uint64_t)(eight >> 4) << 32 |
            (uint64_t)1 << 62};
}

/* The descriptor of the factors `bytes` further, a multiple of 16. */
static __device__ inline struct kg_factors_at kg_factors_after(struct kg_factors_at f,
                                                               int bytes)
{
    return {(f.bits & ~(uint64_t)UINT32_MAX) |
            ((uint32_t)f.bits + (uint32_t)(bytes >> 4))};
}
/* Returns its argument, equal in all lanes of a warp, in a form that the compiler knows
 * to be equal: values that depend on it alone are then computed once per warp. */
static __device__ inline int kg_same(int x) { return __shfl_sync(~0u, x, 0); }
static __device__ inline struct kg_factors_at kg_same(struct kg_factors_at f)
{
    return {(f.bits & ~(uint64_t)UINT32_MAX) | (uint32_t)kg_same((int)(uint32_t)f.bits)};
}

/* Call before the first product, and again after each access to registers d or a. All
 * threads of four warps call this and the functions below. */
static __device__ inline void kg_products_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}
/* Ends a group of products. */
static __device__ inline void kg_products_end(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}
/* Waits for all groups but the last N. */
template <int N> static __device__ inline void kg_products_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(N) : "memory");
}

/* Call after kg_products_wait: keeps the compiler from reading the sums earlier. Call
 * before kg_products_begin where sums, or a left factor in registers, were written: keeps
 * it from writing them later. */
template <int N> static __device__ inline void kg_sums_are_there(float *d)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i]) : : "memory");
}
template <int N> static __device__ inline void kg_left_is_there(uint32_t *a)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(a[i]) : : "memory");
}

#define KG_8(d, i)                                                                       \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),          \
        "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define KG_32(d, i) KG_8(d, i), KG_8(d, i + 8), KG_8(d, i + 16), KG_8(d, i + 24)
#define KG_0_31                                                                          \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22," \
    "%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define KG_32_63                                                                         \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"  \
    "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define KG_64_95                                                                         \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,"  \
    "%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define KG_96_127                                                                        \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112," \
    "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define KG_WGMMA(n, sums, a, b, one, columns)                                            \
    "{\n.reg .pred adds;\nsetp.ne.b32 adds, " one ", 0;\n"                               \
    "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" sums "}, " a ", " b      \
    ", adds, 1, 1, " columns ";\n}"
#define KG_OPERANDS(a, b, a_columns, b_columns)                                          \
    "l"(a.bits), "l"(b.bits), "r"((int)adds), "n"(a_columns), "n"(b_columns)
#define KG_LEFT_OPERANDS(a, b, b_columns)                                                \
    "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"((int)adds),             \
        "n"(b_columns)

/* d (64 x N) += a (64 x 16) b (N x 16)^T by four warps; without `adds`, d = a b^T, and d
 * may be uninitialized. Warp w holds rows [16 w, +16); its d[4 j .. 4 j + 3] is d of
 * kg_mma for columns [8 j, +8). */
template <int N, bool A_COLUMNS, bool B_COLUMNS>
static __device__ inline void kg_multiply_later(float d[N / 2], struct kg_factors_at a,
                                                struct kg_factors_at b, bool adds = true)
{
    static_assert(N == 64 || N == 128 || N == 192 || N == 256, "columns of a product");
    if constexpr (N == 64)
        asm volatile(KG_WGMMA("64", KG_0_31, "%32", "%33", "%34", "%35, %36")
                     : KG_32(d, 0)
                     : KG_OPERANDS(a, b, A_COLUMNS, B_COLUMNS));
    else if constexpr (N == 128)
        asm volatile(KG_WGMMA("128", KG_0_31 KG_32_63, "%64", "%65", "%66", "%67, %68")
                     : KG_32(d, 0), KG_32(d, 32)
                     : KG_OPERANDS(a, b, A_COLUMNS, B_COLUMNS));
    else if constexpr (N == 192)
        asm volatile(
            KG_WGMMA("192", KG_0_31 KG_32_63 KG_64_95, "%96", "%97", "%98", "%99, %100")
            : KG_32(d, 0), KG_32(d, 32), KG_32(d, 64)
            : KG_OPERANDS(a, b, A_COLUMNS, B_COLUMNS));
    else
        asm volatile(KG_WGMMA("256", KG_0_31 KG_32_63 KG_64_95 KG_96_127, "%128", "%129",
                              "%130", "%131, %132")
                     : KG_32(d, 0), KG_32(d, 32), KG_32(d, 64), KG_32(d, 96)
                     : KG_OPERANDS(a, b, A_COLUMNS, B_COLUMNS));
}

/* As above, with `a` in registers in the layout of kg_mma, unchanged until the wait. */
template <int N, bool B_COLUMNS>
static __device__ inline void kg_multiply_later(float d[N / 2], const uint32_t a[4],
                                                struct kg_factors_at b, bool adds = true)
{
    static_assert(N == 64 || N == 128, "columns of a product");
    if constexpr (N == 64)
        asm volatile(KG_WGMMA("64", KG_0_31, "{%32, %33, %34, %35}", "%36", "%37", "%38")
                     : KG_32(d, 0)
                     : KG_LEFT_OPERANDS(a, b, B_COLUMNS));
    else
        asm volatile(
            KG_WGMMA("128", KG_0_31 KG_32_63, "{%64, %65, %66, %67}", "%68", "%69", "%70")
            : KG_32(d, 0), KG_32(d, 32)
            : KG_LEFT_OPERANDS(a, b, B_COLUMNS));
}

/* Sets the registers per thread of the calling warpgroup to N. */
template <int N> static __device__ inline void kg_registers_fewer(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(N));
}
template <int N> static __device__ inline void kg_registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(N));
}
#endif

#endif
