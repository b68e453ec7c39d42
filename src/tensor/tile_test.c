/* The tiles of attention against plain loops, exactly, for shapes that attention uses and
 * others. An object of cpu/ exports only its table, so this test includes the source
 * file. */
#include "tensor/cpu/tile.c"

#include "tensor/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 11, COLS = 7 * KG_LANES, DEPTH = 5, MOST = 96 };

/* Small numbers; neighbours differ. */
static float number(int i) { return (float)((i * 37 + 11) % 101 - 50) / 16; }

static void fill(float *x, int n, int salt)
{
    for (int i = 0; i < n; i++)
        x[i] = number(i + salt);
}

static void check_product(int rows, int cols, int depth, bool transposed)
{
    enum { LDC = COLS + 5, LDA = 16 };
    static float a[ROWS * LDA], b[DEPTH * COLS], c[(ROWS + 1) * LDC],
        half_c[(ROWS + 1) * LDC], want[(ROWS + 1) * LDC];
    static uint16_t half[DEPTH * COLS];
    struct kg_cpu_left left = {a, transposed ? 1 : LDA, transposed ? LDA : 1};

    fill(a, ROWS * LDA, rows);
    fill(b, DEPTH * COLS, cols);
    fill(c, (ROWS + 1) * LDC, depth);
    for (int i = 0; i < DEPTH * COLS; i++)
        half[i] = kg_f32_to_bf16(b[i]);
    memcpy(want, c, sizeof c);
    memcpy(half_c, c, sizeof c);
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < cols; j++)
            for (int k = 0; k < depth; k++)
                want[r * LDC + j] = fmaf(a[r * left.row + k * left.step], b[k * COLS + j],
                                         want[r * LDC + j]);
    kg_cpu_tile_madd(c, LDC, left, b, COLS, rows, cols, depth);
    if (memcmp(c, want, sizeof c) != 0)
        fail_msg("%d x %d x %d: another product", rows, cols, depth);
    kg_cpu_tile_madd_bf16(half_c, LDC, left, half, COLS, rows, cols, depth);
    if (memcmp(half_c, want, sizeof c) != 0)
        fail_msg("%d x %d x %d: another product with bf16", rows, cols, depth);
}

static void a_product_is_its_chains_and_touches_nothing_else(void **state)
{
    (void)state;
    for (int rows = 0; rows <= ROWS; rows++)
        for (int cols = 0; cols <= COLS; cols += KG_LANES)
            for (int depth = 0; depth <= DEPTH; depth++) {
                check_product(rows, cols, depth, false);
                check_product(rows, cols, depth, true);
            }
}

/* A part of a matrix of either type, of any width, goes to a tile and back. */
static void a_part_is_loaded_padded_and_stored_alone(void **state)
{
    static float tile[8 * MOST], f[12 * 50], g[12 * 50];
    static uint16_t h[12 * 50], i[12 * 50];

    (void)state;
    for (int cols = 1; cols <= 40; cols++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct kg_mat from = bf16 ? kg_mat(h, KG_BF16, 12, 50)
                                      : kg_mat(f, KG_F32, 12, 50);
            struct kg_mat to = bf16 ? kg_mat(i, KG_BF16, 12, 50)
                                    : kg_mat(g, KG_F32, 12, 50);

            fill(f, 12 * 50, cols);
            for (int n = 0; n < 12 * 50; n++)
                h[n] = kg_f32_to_bf16(f[n]);
            memset(g, 0, sizeof g), memset(i, 0, sizeof i);
            memset(tile, 0x7f, sizeof tile);
            kg_cpu_tile_load(tile, MOST, from, 2, 7, 8, cols);
            for (int r = 0; r < 8; r++)
                for (int c = 0; c < kg_cpu_padded(cols); c++)
                    assert_true(tile[r * MOST + c] ==
                                (c < cols ? f[(2 + r) * 50 + 7 + c] : 0));
            kg_cpu_tile_store(to, 2, 7, tile, MOST, 8, cols);
            for (int n = 0; n < 12 * 50; n++) {
                bool within = n / 50 >= 2 && n / 50 < 10 && n % 50 >= 7 &&
                              n % 50 < 7 + cols;
                float found = bf16 ? kg_bf16_to_f32(i[n]) : g[n];

                assert_true(found == (within ? f[n] : 0));
            }
        }
}

static void a_tile_is_transposed(void **state)
{
    static float from[3 * KG_LANES * MOST], to[4 * KG_LANES * MOST];

    (void)state;
    fill(from, 3 * KG_LANES * MOST, 0);
    kg_cpu_tile_transpose(to, MOST, from, MOST, 3 * KG_LANES, 4 * KG_LANES);
    for (int r = 0; r < 3 * KG_LANES; r++)
        for (int c = 0; c < 4 * KG_LANES; c++)
            assert_true(to[c * MOST + r] == from[r * MOST + c]);
}

/* Nothing after the matrix is read. */
static void check_transposed(bool bf16, int rows, int cols)
{
    static float to[4 * KG_LANES * MOST], room[4 * KG_LANES * MOST];
    const int width = cols + 7, n = (rows + 2) * width;
    float *f = malloc((size_t)n * sizeof *f);
    uint16_t *h = malloc((size_t)n * sizeof *h);

    assert_true(f && h);
    fill(f, n, rows);
    for (int i = 0; i < n; i++)
        h[i] = kg_f32_to_bf16(f[i]);
    kg_cpu_tile_load_transposed(to, MOST, room,
                                bf16 ? kg_mat(h, KG_BF16, rows + 2, width)
                                     : kg_mat(f, KG_F32, rows + 2, width),
                                2, 7, rows, cols);
    for (int i = 0; i < rows * cols; i++)
        if (to[i % cols * MOST + i / cols] != f[(2 + i / cols) * width + 7 + i % cols])
            fail_msg("%d x %d: element %d", rows, cols, i);
    free(f);
    free(h);
}

static void a_part_is_loaded_transposed(void **state)
{
    (void)state;
    for (int rows = 1; rows <= 40; rows++)
        for (int cols = 1; cols <= 64; cols++) {
            check_transposed(false, rows, cols);
            check_transposed(true, rows, cols);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_is_its_chains_and_touches_nothing_else),
        cmocka_unit_test(a_part_is_loaded_padded_and_stored_alone),
        cmocka_unit_test(a_part_is_loaded_transposed),
        cmocka_unit_test(a_tile_is_transposed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
