/* Products of many rows by tile registers: squares of 32 rows by two panels.
 *
 * A block of four tiles takes 64 cycles, in which the core can load half of it from the
 * L2 cache and half from the L1 cache. So two panels stay in L1 for a run of blocks, for
 * all squares down the rows; the sums of a square are in memory until the next run. While
 * one square is computed, the previous one is written to C, a few rows after each block,
 * and the panels of the next run and the next rows of C are prefetched. So the registers
 * never wait for memory.
 *
 * If the last rows do not fill a square, two squares overlap, and each row is written
 * from one of them. An element keeps its one chain of additions (product.c), so neither
 * the order of squares nor the place of their sums changes a bit.
 */
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/product_internal.h"

enum {
    SQUARE = KG_AMX_SQUARE,
    SQUARE_FLOATS = SQUARE * SQUARE,
    RUN_BLOCKS = 14,      /* of two panels: 28 KiB */
    FEW_SQUARES = 4,      /* or fewer: time between runs is so short ... */
    SHORT_RUN_BLOCKS = 7, /* ... that prefetching in small pieces is best */
    LINE_BYTES = 64
};

static int64_t min64(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t max64(int64_t x, int64_t y) { return x > y ? x : y; }
static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

/* ---- from a square to C ---- */
/* A square of C: rows upper.. and lower.., sixteen each, and their sums. */
struct sink {
    const struct kg_cpu_squares *b;
    const float *sums; /* NULL: no square is finished */
    const float *two;  /* of the second product; or NULL */
    int64_t upper;
    int64_t lower;
    int64_t fresh; /* rows before it are written from another square */
    int64_t col;
    int64_t cols;
    char *to;       /* in C, if leave_whole can write the square; else NULL */
    int64_t row;    /* bytes per row of C */
    bool two_lines; /* a row of the square is in two cache lines of C */
    int done;       /* rows already written */
};

/* The state from square to square. */
struct walk {
    struct sink last; /* the previous square, which is written to C */
    struct sink now;
    int asked;     /* rows of `now` that are prefetched */
    int at_once;   /* rows to write after a block */
    float *before; /* where the sums in registers belong */
    /* two panels that the next run reads; lines of each to prefetch after a block */
    const char *next;
    int64_t next_panel; /* bytes */
    int lines;
};

static int64_t row_of(const struct sink *s, int i)
{
    return i < KG_AMX_ROWS ? s->upper + i : s->lower + i - KG_AMX_ROWS;
}

static bool is_fresh(const struct sink *s, int i)
{
    int64_t r = row_of(s, i);
    return r >= s->fresh && (i < KG_AMX_ROWS || r >= s->upper + KG_AMX_ROWS);
}

static void leave_row(const struct sink *s, int i)
{
    const struct kg_mat c = s->b->c;
    int64_t r = row_of(s, i);
    for (int64_t j = 0; j < s->cols; j += KG_LANES) {
        int lanes = kg_cpu_lanes(s->cols - j);
        struct kg_v16 v = kg_v16_load(s->sums + i * SQUARE + j);
        if (s->b->add)
            v = kg_v16_add(kg_cpu_load(c, r, s->col + j, lanes), v);
        if (s->two)
            v = kg_v16_add(v, kg_v16_load(s->two + i * SQUARE + j));
        kg_cpu_store(c, r, s->col + j, v, lanes);
    }
}

static __attribute__((noinline)) void leave_part(const struct sink *s, int end)
{
    for (int i = s->done; i < end; i++)
        if (is_fresh(s, i))
            leave_row(s, i);
}

/* How a whole square is written to C. */
struct manner {
    bool bf16;
    bool add; /* fp32: C += */
    bool two;
};

/* Half of a row of a square. */
static inline void leave_half(char *to, const float *sums, const float *two,
                              const struct manner how)
{
    struct kg_v16 v = kg_v16_load(sums);
    if (how.add)
        v = kg_v16_add(kg_v16_load((float *)(void *)to), v);
    if (how.two)
        v = kg_v16_add(v, kg_v16_load(two));
    if (how.bf16)
        kg_v16_store_bf16((uint16_t *)(void *)to, v);
    else
        kg_v16_store((float *)(void *)to, v);
}

/* Writes rows [s->done,end) of a whole square. */
static inline void leave_whole(const struct sink *s, int end, const struct manner how)
{
    const int64_t half = KG_LANES * (how.bf16 ? 2 : 4);
    char *to = s->to + s->done * s->row;
    for (int i = s->done; i < end; i++, to += s->row) {
        const float *sums = s->sums + i * SQUARE;
        const float *two = how.two ? s->two + i * SQUARE : sums;
        leave_half(to, sums, two, how);
        leave_half(to + half, sums + KG_LANES, two + KG_LANES, how);
    }
}

static inline void leave_manner(const struct sink *s, int end, const bool two)
{
    if (s->b->c.dtype == KG_BF16)
        leave_whole(s, end, (struct manner){.bf16 = true, .two = two});
    else if (s->b->add)
        leave_whole(s, end, (struct manner){.add = true, .two = two});
    else
        leave_whole(s, end, (struct manner){.two = two});
}

static inline void leave(struct sink *s, int rows)
{
    int end = s->done + rows < SQUARE ? s->done + rows : SQUARE;
    if (!s->to)
        leave_part(s, end);
    else if (s->two)
        leave_manner(s, end, true);
    else
        leave_manner(s, end, false);
    s->done = end;
}

/* Prefetches rows of C, which are too far apart for hardware prefetchers. */
static inline void ask_for(const struct sink *s, int first, int rows)
{
    for (int i = first; i < first + rows && i < SQUARE; i++) {
        __builtin_prefetch(s->to + i * s->row, 1, 2);
        if (s->two_lines)
            __builtin_prefetch(s->to + i * s->row + LINE_BYTES, 1, 2);
    }
}

/* Called after each block of a square. */
static inline void meanwhile(void *user)
{
    struct walk *w = user;
    if (w->now.sums && w->now.to) {
        ask_for(&w->now, w->asked, w->at_once);
        w->asked += w->at_once;
    }
    if (w->last.sums)
        leave(&w->last, w->at_once);
    for (int i = 0; i < w->lines; i++, w->next += LINE_BYTES) {
        __builtin_prefetch(w->next, 0, 2);
        __builtin_prefetch(w->next + w->next_panel, 0, 2);
    }
}

/* ---- runs ---- */
/* Blocks [first,first+n) of a strip (two panels), for all squares. */
struct run {
    const struct kg_cpu_side *side;
    int64_t first;
    int64_t n;
    int64_t panel;
    bool begins;
    bool ends;        /* then its squares are written, with the second product's */
    float *sums;      /* (units) squares */
    const float *two; /* (units) squares, or NULL */
};

static struct sink sink_of(const struct kg_cpu_squares *b, int64_t unit, int64_t panel)
{
    int64_t rows = b->c.rows, first = unit * SQUARE;
    struct sink s = {.b = b, .fresh = first, .upper = min64(first, rows - SQUARE)};
    s.upper = max64(s.upper, 0);
    s.lower = min64(s.upper + KG_AMX_ROWS, rows - KG_AMX_ROWS);
    s.col = (b->first + panel) * KG_PANEL;
    s.cols = min64(SQUARE, b->c.cols - s.col);
    s.row = b->c.stride * (int64_t)kg_dtype_traits(b->c.dtype)->bytes;
    if (s.cols == SQUARE && s.lower == s.upper + KG_AMX_ROWS && s.fresh == s.upper)
        s.to = (char *)b->c.data + s.upper * s.row +
               s.col * (int64_t)kg_dtype_traits(b->c.dtype)->bytes;
    s.two_lines = b->c.dtype == KG_F32 || (uintptr_t)s.to % LINE_BYTES != 0;
    return s;
}

/* All squares of a run together prefetch what the next run reads. */
static void look_ahead(struct walk *w, const struct kg_cpu_squares *b, struct run run,
                       int64_t unit)
{
    const struct kg_cpu_side *s = run.side;
    int64_t steps = max64(run.n - 1, 1);
    const char *panel = s->right + run.panel * s->right_panel;
    w->next_panel = s->right_panel;
    w->lines = (int)ceil_div(run.n * (KG_AMX_BLOCK_BYTES / LINE_BYTES), b->units * steps);
    w->next = panel + (run.first + run.n) * KG_AMX_BLOCK_BYTES;
    if (run.ends && run.panel + 3 < b->panels)
        w->next = panel + 2 * s->right_panel;
    else if (run.ends)
        w->lines = 0;
    w->next += (unit - b->unit) * steps * w->lines * LINE_BYTES;
}

static void square(struct walk *w, const struct kg_cpu_squares *b, struct run run,
                   int64_t unit)
{
    const struct kg_cpu_side *s = run.side;
    const char *left = s->left + run.first * 64;
    const char *right = s->right + run.panel * s->right_panel +
                        run.first * KG_AMX_BLOCK_BYTES;
    float *sums = run.sums + (unit - b->unit) * SQUARE_FLOATS;
    w->now = sink_of(b, unit, run.panel);
    w->now.two = run.two ? run.two + (unit - b->unit) * SQUARE_FLOATS : NULL;
    struct kg_amx_square q = {
        .upper = left + (w->now.upper - b->left_first) * s->left_row,
        .lower = left + (w->now.lower - b->left_first) * s->left_row,
        .left_row = s->left_row,
        .right = {right, right + (run.panel + 1 < b->panels ? s->right_panel : 0)},
        .blocks = run.n,
        .from = run.begins ? NULL : sums,
        .before = w->before,
    };
    w->now.sums = run.ends ? sums : NULL;
    w->asked = 0;
    w->at_once = (int)ceil_div(SQUARE, max64(run.n - 1, 1));
    look_ahead(w, b, run, unit);
    kg_amx_square(&q, meanwhile, w);
    if (w->last.sums)
        leave(&w->last, SQUARE);
    w->last = w->now;
    w->before = sums;
}

static void walk_run(struct walk *w, const struct kg_cpu_squares *b, struct run run)
{
    for (int64_t u = 0; u < b->units; u++)
        square(w, b, run, b->unit + u);
}

/* Memory for sums, in squares. */
struct room {
    float *sums;
    int64_t apart; /* floats from one strip to the next */
    float *two;    /* of the current strip; NULL: no second product, or not yet */
};

/* The second product of a strip; its sums wait for the first one's last run. */
static void walk_second(struct walk *w, const struct kg_cpu_squares *b, int64_t panel,
                        float *two)
{
    const struct run run = {
        .side = &b->two, .n = b->two.blocks, .panel = panel, .begins = true, .sums = two};
    walk_run(w, b, run);
}

/* Blocks [first,first+n) of every strip. */
static void walk_part(struct walk *w, const struct kg_cpu_squares *b, int64_t first,
                      int64_t n, struct room room)
{
    int64_t longest = b->units <= FEW_SQUARES ? SHORT_RUN_BLOCKS : RUN_BLOCKS;
    int64_t runs = b->units > 1 ? ceil_div(n, longest) : 1;
    for (int64_t panel = 0; panel < b->panels; panel += 2, room.sums += room.apart) {
        if (room.two)
            walk_second(w, b, panel, room.two);
        for (int64_t i = 0; i < runs; i++) {
            struct run run = {.side = &b->one,
                              .first = first + n * i / runs,
                              .panel = panel,
                              .sums = room.sums,
                              .two = room.two};
            run.n = first + n * (i + 1) / runs - run.first;
            run.begins = run.first == 0;
            run.ends = run.first + run.n == b->one.blocks;
            walk_run(w, b, run);
        }
    }
}

kg_status kg_cpu_squares(const struct kg_cpu_squares *b, struct kg_err *err)
{
    int64_t strips = ceil_div(b->panels, 2), blocks = b->one.blocks;
    int64_t most = max64(KG_CPU_LEFT_BYTES / (b->units * SQUARE * 64), 1);
    int64_t parts = ceil_div(blocks, most);
    int64_t strip = b->units * SQUARE_FLOATS;
    int64_t all = strip * (parts > 1 ? strips : 1);
    size_t floats = (size_t)(all + (b->two.blocks > 0 ? strip : 0));
    float *sums = kg_cpu_scratch(KG_CPU_SCRATCH_SUMS, floats * sizeof *sums, err);
    struct walk w = {.before = NULL};
    if (!sums)
        return err->code;
    kg_amx_configure(KG_AMX_ROWS);
    for (int64_t i = 0; i < parts; i++) {
        int64_t first = blocks * i / parts;
        struct room room = {.sums = sums, .apart = parts > 1 ? strip : 0};
        if (i + 1 == parts && b->two.blocks > 0)
            room.two = sums + all;
        walk_part(&w, b, first, blocks * (i + 1) / parts - first, room);
    }
    kg_amx_square_store(w.before);
    kg_amx_release();
    leave(&w.last, SQUARE);
    return KG_OK;
}
