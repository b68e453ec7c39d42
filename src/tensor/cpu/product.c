/* Matrix products: how a product is cut into blocks, and what is packed first.
 *
 * What an element is stands in backend.h; each is computed by one chain for each chunk,
 * whoever computes it and whatever stands beside it. So the cut may follow the number of
 * rows and of threads: threads take blocks as they come free, and a busy neighbour costs
 * its share and not a stalled barrier.
 *
 * The right operand is read in panels. Weights lie in panels already; what does not
 * (gradients, activations, the weights of dx = dy W) is packed first by all threads, a
 * part at a time. The left operand of y = x W^T and dx = dy W is read as it lies.
 */
#include "base/fpmode.h"
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/parallel_internal.h"
#include "tensor/cpu/product_internal.h"

enum {
    BLOCK_ROWS = 128, /* of a block where there are plenty */
    LEAST_ROWS = 32,
    FEW_ROWS = 16,        /* weights are read once: blocks are of columns alone */
    BLOCK_STRIPS = 4,     /* of one tile's panels each */
    BLOCKS_A_THREAD = 8,  /* so many at least, as far as blocks stay large */
    PART_BYTES = 8 << 20, /* of a right operand that is packed on the way */
    LINE_BYTES = 64,
    WIDEST = 12,       /* panels: a multiple of every strip */
    PANELS_A_TIME = 8, /* packed by a thread: a few lines of each row */
    READING = 8        /* rows whose sums take as long as reading a row of weights */
};

static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
static int64_t min64(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t max64(int64_t x, int64_t y) { return x > y ? x : y; }

static int64_t chunk_steps(enum kg_dtype t) { return kg_cpu_steps(t, KG_PRODUCT_CHUNK); }

/* c (=|+=) a times some panels. */
struct pass {
    struct kg_mat c;
    struct kg_mat a;
    const char *right;   /* the first of the panels */
    int64_t right_panel; /* bytes from one to the next */
    int64_t first;       /* panel of c */
    int64_t panels;
    int64_t steps;
    bool add;          /* c += */
    int64_t unit_rows; /* a block begins with a multiple of them */
    int64_t block_rows;
    int64_t block_panels;
    int64_t strip; /* panels of a tile */
};

/* Rows [row, row+rows) and panels [panel, panel+panels) of a pass. */
struct block {
    int64_t row;
    int64_t rows;
    int64_t panel;
    int64_t panels;
    float *sums; /* (rows, 16 panels) */
};

/* ---- one block ---- */
/* A left operand as tiles read it, from the block's first row on. */
struct left {
    const char *data;
    int64_t row; /* bytes */
};

static kg_status left_of(struct left *l, const struct pass *p, const struct block *b,
                         int64_t s0, int64_t n, struct kg_err *err)
{
    int64_t bytes = kg_cpu_left_bytes(p->a.dtype);
    if (kg_cpu_left_in_place(p->a)) {
        l->row = p->a.stride * (int64_t)kg_dtype_traits(p->a.dtype)->bytes;
        l->data = (const char *)p->a.data + b->row * l->row + s0 * bytes;
        return KG_OK;
    }
    l->row = n * bytes;
    char *own = kg_cpu_scratch(KG_CPU_SCRATCH_OWN_LEFT, (size_t)(b->rows * l->row), err);
    if (!own)
        return err->code;
    kg_cpu_pack_left(own, p->a, b->row, b->rows, s0, n);
    l->data = own;
    return KG_OK;
}

/* All rows of the block by one strip of its panels, one chunk. */
static void add_strip(const struct pass *p, const struct block *b, const struct left *l,
                      int64_t panel, int64_t s0, int64_t n)
{
    int panels = (int)min64(p->strip, b->panels - panel);
    int64_t tiles = ceil_div(b->rows, kg_cpu_tile_rows(p->a.dtype));
    struct kg_cpu_tile t = {
        .left_row = l->row,
        .right = p->right + (b->panel + panel) * p->right_panel + s0 * KG_STEP_BYTES,
        .right_panel = p->right_panel,
        .steps = n,
        .out_row = b->panels * KG_PANEL,
        .first = s0 == 0,
    };
    for (int64_t i = 0; i < tiles; i++) {
        int64_t r0 = b->rows * i / tiles;
        int64_t r1 = b->rows * (i + 1) / tiles;
        t.left = l->data + r0 * l->row;
        t.out = b->sums + r0 * t.out_row + panel * KG_PANEL;
        kg_cpu_tile_chain(&t, p->a.dtype, (int)(r1 - r0), panels);
    }
}

static void store_sums(const struct pass *p, const struct block *b)
{
    int64_t c0 = (p->first + b->panel) * KG_PANEL;
    int64_t cols = min64(b->panels * KG_PANEL, p->c.cols - c0);
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t i = 0; i < cols; i += KG_LANES) {
            int lanes = kg_cpu_lanes(cols - i);
            struct kg_v16 s = kg_v16_load(b->sums + r * b->panels * KG_PANEL + i);
            if (p->add)
                s = kg_v16_add(kg_cpu_load(p->c, b->row + r, c0 + i, lanes), s);
            kg_cpu_store(p->c, b->row + r, c0 + i, s, lanes);
        }
}

/* The whole depth at once. The last square may reach up, but not over the block's first
 * row: a block that has others above it is of several squares. */
static kg_status run_squares(const struct pass *p, const struct block *b,
                             struct kg_err *err)
{
    struct left l = {0};
    KG_TRY(left_of(&l, p, b, 0, p->steps, err));
    const struct kg_cpu_squares squares = {
        .c = p->c,
        .add = p->add,
        .unit = b->row / KG_AMX_SQUARE,
        .units = ceil_div(b->rows, KG_AMX_SQUARE),
        .left = l.data,
        .left_first = b->row,
        .left_row = l.row,
        .right = p->right + b->panel * p->right_panel,
        .right_panel = p->right_panel,
        .first = p->first + b->panel,
        .panels = b->panels,
        .blocks = p->steps / KG_BLOCK_STEPS,
    };
    return kg_cpu_squares(&squares, err);
}

/* Steps that a strip is taken down at once. What bf16 adds up does not end with a chunk,
 * and one row waits for memory: its panels are read from end to end. */
static int64_t depth_of(const struct pass *p)
{
    bool streams = p->a.dtype == KG_BF16 && !KG_SIMD_AMX && p->c.rows == 1;
    return streams ? p->steps : chunk_steps(p->a.dtype);
}

static __attribute__((noinline)) kg_status run_block(const struct pass *p, struct block b,
                                                     struct kg_err *err)
{
    if (kg_cpu_by_squares(p->a.dtype, p->c.rows))
        return run_squares(p, &b, err);
    size_t bytes = (size_t)(b.rows * b.panels) * KG_PANEL * sizeof *b.sums;
    int64_t chunk = depth_of(p);
    b.sums = kg_cpu_scratch(KG_CPU_SCRATCH_SUMS, bytes, err);
    if (!b.sums)
        return err->code;
    for (int64_t s0 = 0; s0 < p->steps; s0 += chunk) {
        int64_t n = min64(chunk, p->steps - s0);
        struct left l = {0};
        KG_TRY(left_of(&l, p, &b, s0, n, err));
        for (int64_t panel = 0; panel < b.panels; panel += p->strip)
            add_strip(p, &b, &l, panel, s0, n);
    }
    store_sums(p, &b);
    return KG_OK;
}

/* ---- the cut ---- */
/* Tall blocks: the left operand of one stays in the second cache while its panels pass,
 * and panels that come from afar meet many rows. A deep product's sums stay there too. */
static void cut_squares(struct pass *p, int64_t threads)
{
    enum { PANELS = 2, TALL = 512, DEEP = 1024, DEEP_PANELS = 28, LEAST_SQUARES = 4 };
    bool deep = p->steps * 2 > DEEP;
    int64_t strips = ceil_div(p->panels, PANELS);
    p->unit_rows = KG_AMX_SQUARE;
    p->block_rows = deep ? TALL / 2 : TALL;
    int64_t row_blocks = ceil_div(p->c.rows, p->block_rows);
    int64_t units = ceil_div(min64(p->c.rows, p->block_rows), KG_AMX_SQUARE);
    int64_t wanted = threads > 1 ? threads * BLOCKS_A_THREAD : 1;
    p->block_panels = max64(strips * row_blocks / wanted, ceil_div(LEAST_SQUARES, units));
    p->block_panels *= PANELS;
    if (deep)
        p->block_panels = min64(p->block_panels, DEEP_PANELS);
}

/* Columns first, as long as a block keeps a strip, then rows. */
static void cut(struct pass *p, int64_t threads)
{
    int64_t rows = p->c.rows;
    int64_t wanted = threads * BLOCKS_A_THREAD;
    if (kg_cpu_by_squares(p->a.dtype, rows)) {
        cut_squares(p, threads);
        return;
    }
    p->unit_rows = 1;
    p->strip = kg_cpu_tile_panels(p->a.dtype, rows);
    if (rows <= FEW_ROWS) {
        p->block_rows = rows;
        p->block_panels = max64(p->panels / wanted / p->strip, 1) * p->strip;
        return;
    }
    p->block_rows = BLOCK_ROWS;
    p->block_panels = BLOCK_STRIPS * p->strip;
    while (threads > 1 &&
           ceil_div(rows, p->block_rows) * ceil_div(p->panels, p->block_panels) <
               wanted) {
        if (p->block_panels > p->strip)
            p->block_panels -= p->strip;
        else if (p->block_rows > LEAST_ROWS)
            p->block_rows /= 2;
        else
            return;
    }
}

/* Block i: columns first, so that its left operand is the one of the block before. */
static struct block block_at(const struct pass *p, int64_t i)
{
    int64_t columns = ceil_div(p->panels, p->block_panels);
    int64_t row_blocks = ceil_div(p->c.rows, p->block_rows);
    int64_t units = ceil_div(p->c.rows, p->unit_rows);
    int64_t end = units * (i / columns + 1) / row_blocks * p->unit_rows;
    struct block b = {.panel = i % columns * p->block_panels,
                      .row = units * (i / columns) / row_blocks * p->unit_rows};
    b.panels = min64(p->block_panels, p->panels - b.panel);
    b.rows = min64(end, p->c.rows) - b.row;
    return b;
}

static kg_status run_pass(struct pass *p, bool threads, struct kg_err *err)
{
    kg_status status = KG_OK;
    cut(p, threads ? omp_get_max_threads() : 1);
    int64_t blocks = ceil_div(p->c.rows, p->block_rows) *
                     ceil_div(p->panels, p->block_panels);
#pragma omp parallel for schedule(dynamic) if (threads && blocks > 1)
    for (int64_t i = 0; i < blocks; i++) {
        struct kg_err mine;
        unsigned mode = kg_fp_enter();
        if (run_block(p, block_at(p, i), &mine) != KG_OK)
            kg_cpu_report(&status, err, &mine);
        kg_fp_leave(mode);
    }
    return status;
}

/* ---- y = x W^T and dx = dy W ---- */
static void pack_part(char *to, const struct pass *p, struct kg_mat b,
                      enum kg_matmul_kind kind, bool threads)
{
#pragma omp parallel for schedule(dynamic) if (threads)
    for (int64_t i = 0; i < p->panels; i += PANELS_A_TIME) {
        int64_t n = min64(PANELS_A_TIME, p->panels - i);
        char *at = to + i * p->right_panel;
        if (kind == KG_MATMUL_NN)
            kg_cpu_pack_cols(at, p->right_panel, b, (p->first + i) * KG_PANEL, n, 0,
                             p->steps);
        for (int64_t j = 0; j < n && kind == KG_MATMUL_NT; j++)
            kg_cpu_pack_rows(at + j * p->right_panel, b.dtype, b,
                             (p->first + i + j) * KG_PANEL, 0, p->steps);
    }
}

static kg_status product_of_rows(struct pass *p, struct kg_mat b,
                                 enum kg_matmul_kind kind, bool threads,
                                 struct kg_err *err)
{
    int64_t panels = ceil_div(p->c.cols, KG_PANEL);
    p->steps = kg_cpu_steps(b.dtype, p->a.cols);
    p->right_panel = p->steps * KG_STEP_BYTES;
    if (kind == KG_MATMUL_NT && b.layout == KG_PANELS) {
        p->panels = panels;
        p->right = b.data;
        return run_pass(p, threads, err);
    }
    int64_t part = max64(PART_BYTES / p->right_panel / WIDEST, 1) * WIDEST;
    part = min64(part, panels);
    char *packed = kg_cpu_scratch(KG_CPU_SCRATCH_RIGHT,
                                  (size_t)part * (size_t)p->right_panel, err);
    if (!packed)
        return err->code;
    p->right = packed;
    for (p->first = 0; p->first < panels; p->first += part) {
        p->panels = min64(part, panels - p->first);
        pack_part(packed, p, b, kind, threads);
        KG_TRY(run_pass(p, threads, err));
    }
    return KG_OK;
}

/* ---- dW = dy^T x: one pass for each chunk of tokens, whose dy is turned ---- */
static void pack_chunk(char *right, const struct pass *p, struct kg_mat a,
                       struct kg_mat b, int64_t s0, bool threads)
{
    int64_t lefts = ceil_div(a.cols, KG_PANEL);
    int64_t row_bytes = p->a.stride * (int64_t)kg_dtype_traits(a.dtype)->bytes;
    int64_t left_tasks = ceil_div(lefts, PANELS_A_TIME);
    int64_t tasks = left_tasks + ceil_div(p->panels, PANELS_A_TIME);
#pragma omp parallel for schedule(dynamic) if (threads)
    for (int64_t i = 0; i < tasks; i++) {
        bool is_left = i < left_tasks;
        int64_t first = (is_left ? i : i - left_tasks) * PANELS_A_TIME;
        int64_t n = min64(PANELS_A_TIME, (is_left ? lefts : p->panels) - first);
        if (is_left)
            kg_cpu_turn_cols((char *)p->a.data + first * KG_PANEL * row_bytes, row_bytes,
                             a, first * KG_PANEL, n, s0, p->steps);
        else
            kg_cpu_pack_cols(right + first * p->right_panel, p->right_panel, b,
                             first * KG_PANEL, n, s0, p->steps);
    }
}

static kg_status product_of_tokens(struct pass *p, struct kg_mat b, bool threads,
                                   struct kg_err *err)
{
    struct kg_mat a = p->a;
    int64_t chunk = chunk_steps(b.dtype);
    int64_t steps = kg_cpu_steps(b.dtype, b.rows);
    int64_t longest = min64(chunk, steps);
    int64_t row_bytes = longest * 4 + LINE_BYTES; /* rows apart in the cache, too */
    p->panels = ceil_div(p->c.cols, KG_PANEL);
    char *left = kg_cpu_scratch(KG_CPU_SCRATCH_LEFT, (size_t)(a.cols * row_bytes), err);
    char *right = left
                      ? kg_cpu_scratch(KG_CPU_SCRATCH_RIGHT,
                                       (size_t)(p->panels * longest) * KG_STEP_BYTES, err)
                      : NULL;
    if (!right)
        return err->code;
    p->right = right;
    for (int64_t s0 = 0; s0 < steps; s0 += chunk) {
        p->steps = min64(chunk, steps - s0);
        p->right_panel = p->steps * KG_STEP_BYTES;
        p->a = kg_mat(left, a.dtype, a.cols, p->steps * kg_cpu_step_factors(a.dtype));
        p->a.stride = row_bytes / (int64_t)kg_dtype_traits(a.dtype)->bytes;
        pack_chunk(right, p, a, b, s0, threads);
        KG_TRY(run_pass(p, threads, err));
        p->add = true;
    }
    return KG_OK;
}

/* c = 0 for an empty sum. */
static kg_status clear(struct kg_mat c)
{
    for (int64_t r = 0; r < c.rows; r++)
        memset((char *)c.data + (size_t)(r * c.stride) * kg_dtype_traits(c.dtype)->bytes,
               0, (size_t)c.cols * kg_dtype_traits(c.dtype)->bytes);
    return KG_OK;
}

kg_status kg_cpu_matmul(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                        enum kg_matmul_kind kind, bool accumulate, struct kg_err *err)
{
    int64_t K = kind == KG_MATMUL_TN ? a.rows : a.cols;
    struct pass p = {.c = c, .a = a, .add = accumulate};
    if (c.rows == 0 || c.cols == 0)
        return KG_OK;
    if (K == 0)
        return accumulate ? KG_OK : clear(c);
    /* to read the right operand is work, however few rows it meets */
    bool threads = kg_cpu_use_threads((c.rows + READING) * c.cols * K / 32);
    return kind == KG_MATMUL_TN ? product_of_tokens(&p, b, threads, err)
                                : product_of_rows(&p, b, kind, threads, err);
}
