/* The peak rate of products on this instruction set: executes the multiply-adds of a tile
 * whose sums fill the registers, without reads and writes.
 *
 * A matrix product reaches less, because it reads, packs and stores. The clock of a
 * processor under this load is part of the ceiling, so the peak is measured alternately
 * with the product that is compared with it.
 */
#include "base/amx.h"
#include "base/pairs.h"
#include "tensor/cpu/cpu_internal.h"

enum {
    PIECES = 256, /* units for the threads */
    SUMS = KG_TILE_ROWS * KG_TILE_PANELS
};

static volatile float unknown; /* 0, which compilers do not know, so they fold nothing */

/* One multiply-add into each sum of a tile, `turns` times, by floats or by the
 * instruction for pairs.
 * returns the FLOP: each step adds its FLOP to its lane, exact below 2^24 per lane */
static inline __attribute__((always_inline)) double turn(int64_t turns, const bool pairs)
{
    uint32_t twos[KG_LANES];
    struct kg_v16 sums[KG_TILE_ROWS][KG_TILE_PANELS];
    const struct kg_v16 a = kg_v16_set1(unknown + 1.0f), b = kg_v16_set1(unknown + 2.0f);
    float start = unknown, lanes[KG_LANES];
    double flops = 0;
    for (int i = 0; i < KG_LANES; i++) {
        lanes[i] = start * (float)i; /* so that all differ */
        twos[i] = 0x4000;            /* 2 and 0 in bf16 */
    }
    const struct kg_pairs w = kg_pairs_load(twos);
    KG_UNROLL
    for (int r = 0; r < KG_TILE_ROWS; r++)
        KG_UNROLL
    for (int p = 0; p < KG_TILE_PANELS; p++)
        sums[r][p] = kg_v16_add(kg_v16_load(lanes), kg_v16_set1(start += 4.0f));
    for (int64_t t = 0; t < turns; t++)
        KG_UNROLL
    for (int r = 0; r < KG_TILE_ROWS; r++)
        KG_UNROLL
    for (int p = 0; p < KG_TILE_PANELS; p++)
        sums[r][p] = pairs ? kg_v16_dot_bf16(sums[r][p], w, twos)
                           : kg_v16_fma(a, b, sums[r][p]);
    KG_UNROLL
    for (int r = 0; r < KG_TILE_ROWS; r++)
        KG_UNROLL
    for (int p = 0; p < KG_TILE_PANELS; p++)
        flops += (double)kg_v16_sum(sums[r][p]);
    return flops - 4.0 * KG_LANES * SUMS * (SUMS + 1) / 2;
}

static double turns_of(enum kg_dtype t, int64_t turns)
{
    if (t == KG_BF16 && KG_SIMD_AMX)
        return kg_amx_turns(turns);
    if (t == KG_BF16 && KG_SIMD_BF16_DOT)
        return turn(turns, true);
    return turn(turns, false);
}

double kg_cpu_peak(enum kg_dtype t, double flops)
{
    const int64_t turns = (int64_t)(flops / PIECES / turns_of(t, 1)) + 1;
    double done = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : done)
    for (int i = 0; i < PIECES; i++)
        done += turns_of(t, turns);
    return done;
}
