/* Products of bf16 on the processor's tile registers (AMX).
 *
 * One instruction computes a block of 32 factors as backend.h defines it: one chain over
 * the even factors and one over the odd ones, each from +0. It adds the sum of both
 * chains to the accumulator. No processor mode changes the result (Intel SDM, TDPBF16PS).
 * 36 million results equal those of AVX-512 products of pairs (docs/exactness.md).
 *
 * Four of the eight registers hold sums: 2 x 2 tiles (a square), or 1 x 4 for few rows.
 * On instruction sets without tiles these functions exist and are never called.
 */
#ifndef KG_BASE_AMX_H
#define KG_BASE_AMX_H

#include <stdint.h>
#include <string.h>

enum {
    KG_AMX_ROWS = 16,
    KG_AMX_SQUARE = 32,       /* rows, and columns */
    KG_AMX_BLOCK_BYTES = 1024 /* of a panel: 16 pairs of factors by 16 columns */
};

struct kg_amx_job {
    const char *left; /* row r at left + r*left_row, 64 bytes per block */
    int64_t left_row;
    const char *right; /* panel p at right + p*right_panel */
    int64_t right_panel;
    int64_t blocks;
    float *out; /* row r, panel p at out + r*out_row + 16*p */
    int64_t out_row;
    int first; /* nonzero: `out` is set; 0: the sums are added to it */
};

/* A square of sums: two tiles by two. The left operand is streamed from memory; the
 * panels should be in the cache. */
struct kg_amx_square {
    const char *upper; /* sixteen rows left_row bytes apart, 64 bytes per block */
    const char *lower; /* sixteen more */
    int64_t left_row;
    const char *right[2]; /* panels */
    int64_t blocks;
    const float *from; /* sums to continue from (32,32); NULL: zeros */
    float *before;     /* gets the previous square's sums (32,32); NULL: dropped */
};

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include <immintrin.h>
enum { KG_SIMD_AMX = 1 };
#define KG_AMX_INLINE inline __attribute__((always_inline))

/* Tiles 0..3 (sums) and 4 (left operand) have `rows` rows. Tiles 5..7 are full: right
 * operands, and the lower half of a square's left operand. */
static inline void kg_amx_configure(int rows)
{
    struct {
        uint8_t palette;
        uint8_t start_row;
        uint8_t reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = (uint8_t)(i < 5 ? rows : KG_AMX_ROWS);
    }
    /* the compiler does not see that the instruction reads c */
    __asm__ volatile("" : : "r"(&c) : "memory");
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

/* ---- squares of 32 rows by two panels ---- */
static inline void kg_amx_square_store(float *to)
{
    const int64_t row = KG_AMX_SQUARE * 4;
    float *lower = to + KG_AMX_ROWS * KG_AMX_SQUARE;
    _tile_stored(0, to, row);
    _tile_stored(1, to + 16, row);
    _tile_stored(2, lower, row);
    _tile_stored(3, lower + 16, row);
}

/* The previous square's sums are stored one tile at a time, each while the next square's
 * first factors load. Storing all four at once would stall. */
static KG_AMX_INLINE void kg_amx_square_first(const struct kg_amx_square *q)
{
    const int64_t row = KG_AMX_SQUARE * 4, below = KG_AMX_ROWS * KG_AMX_SQUARE;
    const float *from = q->from;
    float *before = q->before;
    _tile_stream_loadd(4, q->upper, q->left_row);
    _tile_loadd(6, q->right[0], 64);
    if (before)
        _tile_stored(0, before, row);
    _tile_zero(0);
    if (from)
        _tile_loadd(0, from, row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, q->right[1], 64);
    if (before)
        _tile_stored(1, before + 16, row);
    _tile_zero(1);
    if (from)
        _tile_loadd(1, from + 16, row);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(5, q->lower, q->left_row);
    if (before)
        _tile_stored(2, before + below, row);
    _tile_zero(2);
    if (from)
        _tile_loadd(2, from + below, row);
    _tile_dpbf16ps(2, 5, 6);
    if (before)
        _tile_stored(3, before + below + 16, row);
    _tile_zero(3);
    if (from)
        _tile_loadd(3, from + below + 16, row);
    _tile_dpbf16ps(3, 5, 7);
}

/* `meanwhile` is called between blocks, while the tiles compute and the core is idle. */
static KG_AMX_INLINE void kg_amx_square(const struct kg_amx_square *q,
                                        void (*meanwhile)(void *user), void *user)
{
    kg_amx_square_first(q);
    for (int64_t b = 1; b < q->blocks; b++) {
        const int64_t at = b * KG_AMX_BLOCK_BYTES;
        _tile_stream_loadd(4, q->upper + b * 64, q->left_row);
        _tile_loadd(6, q->right[0] + at, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, q->right[1] + at, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_stream_loadd(5, q->lower + b * 64, q->left_row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        meanwhile(user);
    }
}

/* Repeats four products of full tiles, to measure the peak rate.   returns FLOP */
static inline double kg_amx_turns(int64_t turns)
{
    kg_amx_configure(KG_AMX_ROWS);
    for (int64_t t = 0; t < turns; t++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    kg_amx_release();
    return 4.0 * KG_AMX_ROWS * 16 * 32 * 2 * (double)turns;
}
#else
enum { KG_SIMD_AMX = 0 };
static inline void kg_amx_configure(int rows) { (void)rows; }
static inline void kg_amx_release(void) {}
static inline void kg_amx_few_rows(const struct kg_amx_job *j, int panels)
{
    (void)j;
    (void)panels;
}
static inline void kg_amx_square_store(float *to) { (void)to; }
static inline void kg_amx_square(const struct kg_amx_square *q,
                                 void (*meanwhile)(void *user), void *user)
{
    (void)q;
    (void)meanwhile;
    (void)user;
}
static inline double kg_amx_turns(int64_t turns) { return (double)turns; }
#endif

#endif
