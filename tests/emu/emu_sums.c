/* Sums of the matrix instructions, kg_mma and wgmma: sixteen products are added at once,
 * in double; a device's own sum may differ in the last bits.
 *
 * Tests on emulated kernels spend most of their time here, so this file is compiled for
 * speed and without sanitizers. Independent sums are computed side by side, each in its
 * own order.
 */
#include "emu/emu_internal.h"

#include "base/half.h"

#include <string.h>

enum { ROWS = 16, COLS = 8, FACTORS = KG_EMU_FACTORS };

static double half_of(uint32_t pair, int half)
{
    return (double)kg_bf16_to_f32((uint16_t)(pair >> 16 * half));
}

/* ---- kg_mma ---- */
void kg_emu_mma(char *shown)
{
    double d[ROWS][COLS], a[ROWS][FACTORS], b[FACTORS][COLS];
    struct kg_emu_parts p;

    for (int lane = 0; lane < KG_EMU_WARP; lane++) {
        const int g = lane / 4, t = lane % 4 * 2;

        memcpy(&p, shown + lane * KG_EMU_SHOWN, sizeof p);
        for (int i = 0; i < 4; i++)
            d[g + i / 2 * 8][t + i % 2] = (double)p.d[i];
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 4; i++)
                a[g + i % 2 * 8][t + i / 2 * 8 + half] = half_of(p.a[i], half);
            for (int i = 0; i < 2; i++)
                b[t + i * 8 + half][g] = half_of(p.b[i], half);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < FACTORS; k++)
            for (int c = 0; c < COLS; c++)
                d[r][c] += a[r][k] * b[k][c];
    for (int lane = 0; lane < KG_EMU_WARP; lane++) {
        for (int i = 0; i < 4; i++)
            p.d[i] = (float)d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
        memcpy(shown + lane * KG_EMU_SHOWN, p.d, sizeof p.d);
    }
}

/* ---- wgmma ---- */
static double factor(const struct kg_emu_factors *f, int v, int k)
{
    const char *at = f->at;
    uint16_t x;

    at += f->columns ? v / 64 * f->block + k / 8 * f->eight + k % 8 * 128 + v % 64 * 2
                     : v / 8 * f->eight + v % 8 * 128 + k * 2;
    memcpy(&x, kg_emu_placed((char *)(uintptr_t)at), sizeof x);
    return (double)kg_bf16_to_f32(x);
}

/* Row lane / 4 of the warp's sixteen, and the row eight below it. */
static void load_left(double left[2][FACTORS], unsigned thread,
                      const struct kg_emu_factors *a, const uint32_t *const *registers)
{
    const int lane = (int)(thread % KG_EMU_WARP), warp = (int)(thread / KG_EMU_WARP % 4);

    for (int k = 0; k < FACTORS; k++)
        for (int h = 0; h < 2; h++)
            left[h][k] = registers ? half_of(registers[k % 8 / 2][k / 8 * 2 + h], k % 2)
                                   : factor(a, warp * 16 + lane / 4 + h * 8, k);
}

void kg_emu_sum(float *sums, int cols, unsigned thread, const struct kg_emu_factors *a,
                const uint32_t *const *registers, const struct kg_emu_factors *b,
                bool eights)
{
    const int lane = (int)(thread % KG_EMU_WARP), n = cols / 4;
    double left[2][FACTORS], right[KG_EMU_SUMS / 2], d[2][KG_EMU_SUMS / 2];

    load_left(left, thread, a, registers);
    for (int i = 0; i < 2 * n; i++)
        d[i / 2 % 2][i / 4 * 2 + i % 2] = (double)sums[i];
    for (int k = 0; k < FACTORS; k++) {
        for (int j = 0; j < n; j++)
            right[j] = factor(b, j / 2 * 8 + lane % 4 * 2 + j % 2, k);
        for (int h = 0; h < 2; h++) {
            for (int j = 0; j < n; j++)
                d[h][j] += left[h][k] * right[j];
            for (int j = 0; eights && k == 7 && j < n; j++)
                d[h][j] = (double)(float)d[h][j];
        }
    }
    for (int i = 0; i < 2 * n; i++)
        sums[i] = (float)d[i / 2 % 2][i / 4 * 2 + i % 2];
}
