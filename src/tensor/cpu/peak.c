/* The most that products can reach on this instruction set: the multiply-adds of a tile
 * whose sums fill the registers, and nothing read or written.
 *
 * What a product of matrices reaches is less by what it reads, packs and stores. The
 * clock that a processor keeps under such a load is part of the ceiling, so it is
 * measured in turns with what is related to it.
 */
#include "base/amx.h"
#include "base/pairs.h"
#include "tensor/cpu/cpu_internal.h"

enum {
    PIECES = 256, /* that threads share */
    SUMS = KG_TILE_ROWS * KG_TILE_PANELS
};

static volatile float kept; /* results that nobody reads are not computed */

/* One multiply-add into each sum of a tile, `turns` times, by floats or by the
 * instruction for pairs. */
static inline __attribute__((always_inline)) void turn(int64_t turns, const bool pairs)
{
    static const uint32_t pair[KG_LANES];
    struct kg_v16 sums[KG_TILE_ROWS][KG_TILE_PANELS], all = kg_v16_zero();
    const struct kg_v16 a = kg_v16_set1(1.0f), b = kg_v16_set1(0x1p-20f);
    float start = kept, lanes[KG_LANES]; /* that compilers do not know: all stay apart */
    const struct kg_pairs w = kg_pairs_load(pair);
    for (int i = 0; i < KG_LANES; i++)
        lanes[i] = start * (float)i;
    KG_UNROLL
    for (int r = 0; r < KG_TILE_ROWS; r++)
        KG_UNROLL
    for (int p = 0; p < KG_TILE_PANELS; p++)
        sums[r][p] = kg_v16_add(kg_v16_load(lanes), kg_v16_set1(start += 1.0f));
    for (int64_t t = 0; t < turns; t++)
        KG_UNROLL
    for (int r = 0; r < KG_TILE_ROWS; r++)
        KG_UNROLL
    for (int p = 0; p < KG_TILE_PANELS; p++)
        sums[r][p] = pairs ? kg_v16_dot_bf16(sums[r][p], w, pair)
                           : kg_v16_fma(a, b, sums[r][p]);
    KG_UNROLL
    for (int r = 0; r < KG_TILE_ROWS; r++)
        KG_UNROLL
    for (int p = 0; p < KG_TILE_PANELS; p++)
        all = kg_v16_add(all, sums[r][p]);
    kept = kg_v16_sum(all);
}

/* returns FLOP */
static double turns_of(enum kg_dtype t, int64_t turns)
{
    if (t == KG_BF16 && KG_SIMD_AMX)
        return kg_amx_turns(turns);
    if (t == KG_BF16 && KG_SIMD_BF16_DOT) {
        turn(turns, true);
        return 4.0 * KG_LANES * SUMS * (double)turns;
    }
    turn(turns, false);
    return 2.0 * KG_LANES * SUMS * (double)turns;
}

void kg_cpu_peak(enum kg_dtype t, double flops)
{
    const int64_t turns = (int64_t)(flops / PIECES / turns_of(t, 1)) + 1;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < PIECES; i++)
        turns_of(t, turns);
}
