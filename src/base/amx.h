/* Products of bf16 by the processor's tile registers (AMX).
 *
 * What the instruction computes is what backend.h defines for a block of thirty-two
 * factors: a chain of the even ones and a chain of the odd ones, each from +0, their sum,
 * and that added to what stood there; no mode of the processor has a say (Intel SDM,
 * TDPBF16PS; 36 million results of every range compared: none differs).
 *
 * Eight registers hold two by two tiles of sums, or for few rows one by four. Elsewhere
 * than on a set with tiles these functions exist and are never called.
 */
#ifndef KG_BASE_AMX_H
#define KG_BASE_AMX_H

#include <stdint.h>
#include <string.h>

enum { KG_AMX_ROWS = 16, KG_AMX_BLOCK_BYTES = 1024 /* of a panel: sixteen steps */ };

struct kg_amx_job {
    const char *left; /* row r at left + r*left_row, 64 bytes a block */
    int64_t left_row;
    const char *right; /* panel p at right + p*right_panel */
    int64_t right_panel;
    int64_t blocks;
    float *out; /* row r, panel p at out + r*out_row + 16*p */
    int64_t out_row;
    int first; /* out = instead of out += */
};

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include <immintrin.h>
enum { KG_SIMD_AMX = 1 };

/* Tiles 0..3 hold sums, 4 and 5 (few rows: 4) the left operand, the others the right. */
static inline void kg_amx_configure(int upper, int lower)
{
    struct {
        uint8_t palette;
        uint8_t start_row;
        uint8_t reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    const int rows[8] = {upper,
                         upper,
                         lower ? lower : upper,
                         lower ? lower : upper,
                         upper,
                         lower ? lower : 16,
                         16,
                         16};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = (uint8_t)rows[i];
    }
    _tile_loadconfig(&c);
}
static inline void kg_amx_release(void) { _tile_release(); }

/* rows <= 16, panels <= 4 */
static inline void kg_amx_few_rows(const struct kg_amx_job *j, int panels)
{
    const int64_t out = j->out_row * 4;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (!j->first) {
        _tile_loadd(0, j->out, out);
        if (panels > 1)
            _tile_loadd(1, j->out + 16, out);
        if (panels > 2)
            _tile_loadd(2, j->out + 32, out);
        if (panels > 3)
            _tile_loadd(3, j->out + 48, out);
    }
    for (int64_t b = 0; b < j->blocks; b++) {
        const char *right = j->right + b * KG_AMX_BLOCK_BYTES;
        for (int p = 0; p < panels; p++)
            for (int i = 0; i < KG_AMX_BLOCK_BYTES; i += 64)
                _mm_prefetch(right + p * j->right_panel + 4 * KG_AMX_BLOCK_BYTES + i,
                             _MM_HINT_T0);
        _tile_loadd(4, j->left + b * 64, j->left_row);
        _tile_loadd(6, right, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (panels > 1) {
            _tile_loadd(7, right + j->right_panel, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (panels > 2) {
            _tile_loadd(5, right + 2 * j->right_panel, 64);
            _tile_dpbf16ps(2, 4, 5);
        }
        if (panels > 3) {
            _tile_loadd(6, right + 3 * j->right_panel, 64);
            _tile_dpbf16ps(3, 4, 6);
        }
    }
    _tile_stored(0, j->out, out);
    if (panels > 1)
        _tile_stored(1, j->out + 16, out);
    if (panels > 2)
        _tile_stored(2, j->out + 32, out);
    if (panels > 3)
        _tile_stored(3, j->out + 48, out);
}

/* 17..32 rows, panels <= 2 */
static inline void kg_amx_many_rows(const struct kg_amx_job *j, int panels)
{
    const int64_t out = j->out_row * 4;
    const char *lower = j->left + KG_AMX_ROWS * j->left_row;
    float *out2 = j->out + KG_AMX_ROWS * j->out_row;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (!j->first) {
        _tile_loadd(0, j->out, out);
        _tile_loadd(2, out2, out);
        if (panels > 1) {
            _tile_loadd(1, j->out + 16, out);
            _tile_loadd(3, out2 + 16, out);
        }
    }
    for (int64_t b = 0; b < j->blocks; b++) {
        const char *right = j->right + b * KG_AMX_BLOCK_BYTES;
        _tile_loadd(4, j->left + b * 64, j->left_row);
        _tile_loadd(6, right, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, lower + b * 64, j->left_row);
        _tile_dpbf16ps(2, 5, 6);
        if (panels > 1) {
            _tile_loadd(7, right + j->right_panel, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, j->out, out);
    _tile_stored(2, out2, out);
    if (panels > 1) {
        _tile_stored(1, j->out + 16, out);
        _tile_stored(3, out2 + 16, out);
    }
}
#else
enum { KG_SIMD_AMX = 0 };
static inline void kg_amx_configure(int upper, int lower)
{
    (void)upper;
    (void)lower;
}
static inline void kg_amx_release(void) {}
static inline void kg_amx_few_rows(const struct kg_amx_job *j, int panels)
{
    (void)j;
    (void)panels;
}
static inline void kg_amx_many_rows(const struct kg_amx_job *j, int panels)
{
    (void)j;
    (void)panels;
}
#endif

#endif
