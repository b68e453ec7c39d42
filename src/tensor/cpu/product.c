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
    READING = 8,       /* rows whose sums take as long as reading a row of weights */
    NARROW = 64,       /* columns of a side of dW */
    LEAST_PANELS = 2
};

static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
static int64_t min64(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t max64(int64_t x, int64_t y) { return x > y ? x : y; }

static int64_t chunk_steps(enum kg_dtype t) { return kg_cpu_steps(t, KG_PRODUCT_CHUNK); }

/* A left operand, and panels that it is multiplied by. */
struct factors {
    struct kg_mat a;
    const char *right;   /* the first of the panels */
    int64_t right_panel; /* bytes from one to the next */
    int64_t steps;       /* 0: there is no such product */
};

/* c (=|+=) a times some panels, and then += the same of a second product. */
struct pass {
    struct kg_mat c;
    struct factors one;
    struct factors two;
    int64_t first; /* panel of c */
    int64_t panels;
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
    float *sums; /* (rows, 16 panels) of one product */
};

/* ---- one block ---- */
/* A left operand as tiles read it, from the block's first row on. */
struct left {
    const char *data;
    int64_t row; /* bytes */
};

/* use: of the scratch where it stands, if it must be packed */
static kg_status left_of(struct left *l, struct kg_mat a, const struct block *b,
                         int64_t s0, int64_t n, enum kg_cpu_scratch_use use,
                         struct kg_err *err)
{
    int64_t bytes = kg_cpu_left_bytes(a.dtype);
    if (kg_cpu_left_in_place(a)) {
        l->row = a.stride * (int64_t)kg_dtype_traits(a.dtype)->bytes;
        l->data = (const char *)a.data + b->row * l->row + s0 * bytes;
        return KG_OK;
    }
    l->row = n * bytes;
    char *own = kg_cpu_scratch(use, (size_t)(b->rows * l->row), err);
    if (!own)
        return err->code;
    kg_cpu_pack_left(own, a, b->row, b->rows, s0, n);
    l->data = own;
    return KG_OK;
}

/* All rows of the block by one strip of its panels, one chunk. */
static void add_strip(const struct factors *f, const struct block *b,
                      const struct left *l, int64_t panel, int panels, int64_t s0,
                      int64_t n)
{
    int64_t tiles = ceil_div(b->rows, kg_cpu_tile_rows(f->a.dtype));
    struct kg_cpu_tile t = {
        .left_row = l->row,
        .right = f->right + (b->panel + panel) * f->right_panel + s0 * KG_STEP_BYTES,
        .right_panel = f->right_panel,
        .steps = n,
        .out_row = b->panels * KG_PANEL,
        .first = s0 == 0,
    };
    for (int64_t i = 0; i < tiles; i++) {
        int64_t r0 = b->rows * i / tiles;
        int64_t r1 = b->rows * (i + 1) / tiles;
        t.left = l->data + r0 * l->row;
        t.out = b->sums + r0 * t.out_row + panel * KG_PANEL;
        kg_cpu_tile_chain(&t, f->a.dtype, (int)(r1 - r0), panels);
    }
}

/* two: sums of the second product, or NULL */
static void store_sums(const struct pass *p, const struct block *b, const float *two)
{
    int64_t c0 = (p->first + b->panel) * KG_PANEL;
    int64_t cols = min64(b->panels * KG_PANEL, p->c.cols - c0);
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t i = 0; i < cols; i += KG_LANES) {
            int lanes = kg_cpu_lanes(cols - i);
            int64_t at = r * b->panels * KG_PANEL + i;
            struct kg_v16 s = kg_v16_load(b->sums + at);
            if (p->add)
                s = kg_v16_add(kg_cpu_load(p->c, b->row + r, c0 + i, lanes), s);
            if (two)
                s = kg_v16_add(s, kg_v16_load(two + at));
            kg_cpu_store(p->c, b->row + r, c0 + i, s, lanes);
        }
}

static kg_status side_of(struct kg_cpu_side *side, const struct factors *f,
                         const struct block *b, enum kg_cpu_scratch_use use,
                         struct kg_err *err)
{
    struct left l = {0};
    KG_TRY(left_of(&l, f->a, b, 0, f->steps, use, err));
    *side = (struct kg_cpu_side){.left = l.data,
                                 .left_row = l.row,
                                 .right = f->right + b->panel * f->right_panel,
                                 .right_panel = f->right_panel,
                                 .blocks = f->steps / KG_BLOCK_STEPS};
    return KG_OK;
}

/* The whole depth at once. The last square may reach up, but not over the block's first
 * row: a block that has others above it is of several squares. */
static kg_status run_squares(const struct pass *p, const struct block *b,
                             struct kg_err *err)
{
    struct kg_cpu_squares squares = {
        .c = p->c,
        .add = p->add,
        .unit = b->row / KG_AMX_SQUARE,
        .units = ceil_div(b->rows, KG_AMX_SQUARE),
        .left_first = b->row,
        .first = p->first + b->panel,
        .panels = b->panels,
    };
    KG_TRY(side_of(&squares.one, &p->one, b, KG_CPU_SCRATCH_OWN_LEFT, err));
    if (p->two.steps > 0)
        KG_TRY(side_of(&squares.two, &p->two, b, KG_CPU_SCRATCH_SECOND_LEFT, err));
    return kg_cpu_squares(&squares, err);
}

/* Steps that a strip is taken down at once. What bf16 adds up does not end with a chunk,
 * and one row waits for memory: its panels are read from end to end. */
static int64_t depth_of(const struct pass *p, const struct factors *f)
{
    bool streams = f->a.dtype == KG_BF16 && !KG_SIMD_AMX && p->c.rows == 1;
    return streams ? f->steps : chunk_steps(f->a.dtype);
}

static kg_status sum_block(const struct pass *p, const struct factors *f,
                           const struct block *b, struct kg_err *err)
{
    int64_t chunk = depth_of(p, f);
    for (int64_t s0 = 0; s0 < f->steps; s0 += chunk) {
        int64_t n = min64(chunk, f->steps - s0);
        struct left l = {0};
        KG_TRY(left_of(&l, f->a, b, s0, n, KG_CPU_SCRATCH_OWN_LEFT, err));
        for (int64_t panel = 0; panel < b->panels; panel += p->strip)
            add_strip(f, b, &l, panel, (int)min64(p->strip, b->panels - panel), s0, n);
    }
    return KG_OK;
}

static __attribute__((noinline)) kg_status run_block(const struct pass *p, struct block b,
                                                     struct kg_err *err)
{
    if (kg_cpu_by_squares(p->one.a.dtype, p->c.rows))
        return run_squares(p, &b, err);
    const bool both = p->two.steps > 0;
    size_t count = (size_t)(b.rows * b.panels) * KG_PANEL;
    float *sums = kg_cpu_scratch(KG_CPU_SCRATCH_SUMS,
                                 count * (both ? 2 : 1) * sizeof *sums, err);
    if (!sums)
        return err->code;
    b.sums = both ? sums + count : sums;
    if (both)
        KG_TRY(sum_block(p, &p->two, &b, err));
    b.sums = sums;
    KG_TRY(sum_block(p, &p->one, &b, err));
    store_sums(p, &b, both ? sums + count : NULL);
    return KG_OK;
}

/* ---- the cut ---- */
/* Tall blocks: the left operand of one stays in the second cache while its panels pass,
 * and panels that come from afar meet many rows. A deep product's sums stay there too. */
static void cut_squares(struct pass *p, int64_t threads)
{
    enum { PANELS = 2, TALL = 512, DEEP = 1024, DEEP_PANELS = 28, LEAST_SQUARES = 4 };
    bool deep = p->one.steps * 2 > DEEP;
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
    if (kg_cpu_by_squares(p->one.a.dtype, rows)) {
        cut_squares(p, threads);
        return;
    }
    p->unit_rows = 1;
    p->strip = kg_cpu_tile_panels(p->one.a.dtype, rows);
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
/* Panels [first,first+panels) of c's columns, whole depth. */
static void pack_part(char *to, int64_t first, int64_t panels, struct kg_mat b,
                      enum kg_matmul_kind kind, int64_t steps, bool threads)
{
    const int64_t panel_bytes = steps * KG_STEP_BYTES;
#pragma omp parallel for schedule(dynamic) if (threads)
    for (int64_t i = 0; i < panels; i += PANELS_A_TIME) {
        int64_t n = min64(PANELS_A_TIME, panels - i);
        char *at = to + i * panel_bytes;
        if (kind == KG_MATMUL_NN)
            kg_cpu_pack_cols(at, panel_bytes, b, (first + i) * KG_PANEL, n, 0, steps);
        for (int64_t j = 0; j < n && kind == KG_MATMUL_NT; j++)
            kg_cpu_pack_rows(at + j * panel_bytes, b.dtype, b, (first + i + j) * KG_PANEL,
                             0, steps);
    }
}

static struct factors factors_of(const struct kg_factors *f)
{
    const int64_t steps = kg_cpu_steps(f->b.dtype, f->a.cols);
    return (struct factors){
        .a = f->a, .right_panel = steps * KG_STEP_BYTES, .steps = steps};
}

static bool lies_ready(const struct kg_factors *f, enum kg_matmul_kind kind)
{
    return kind == KG_MATMUL_NT && f->b.layout == KG_PANELS;
}

/* A second product's right operand, all of it: it is narrow. */
static kg_status second_of(struct factors *two, const struct kg_factors *f,
                           int64_t panels, enum kg_matmul_kind kind, bool threads,
                           struct kg_err *err)
{
    *two = factors_of(f);
    two->right = f->b.data;
    if (lies_ready(f, kind))
        return KG_OK;
    char *packed = kg_cpu_scratch(KG_CPU_SCRATCH_SECOND_RIGHT,
                                  (size_t)(panels * two->right_panel), err);
    if (!packed)
        return err->code;
    two->right = packed;
    pack_part(packed, 0, panels, f->b, kind, two->steps, threads);
    return KG_OK;
}

/* two: NULL: there is no second product */
static kg_status product_of_rows(struct pass *p, const struct kg_factors *one,
                                 const struct kg_factors *two, enum kg_matmul_kind kind,
                                 bool threads, struct kg_err *err)
{
    int64_t panels = ceil_div(p->c.cols, KG_PANEL);
    const char *right;
    p->one = factors_of(one);
    if (two)
        KG_TRY(second_of(&p->two, two, panels, kind, threads, err));
    right = p->two.right;
    if (lies_ready(one, kind)) {
        p->panels = panels;
        p->one.right = one->b.data;
        return run_pass(p, threads, err);
    }
    int64_t part = max64(PART_BYTES / p->one.right_panel / WIDEST, 1) * WIDEST;
    part = min64(part, panels);
    char *packed = kg_cpu_scratch(KG_CPU_SCRATCH_RIGHT,
                                  (size_t)part * (size_t)p->one.right_panel, err);
    if (!packed)
        return err->code;
    p->one.right = packed;
    for (p->first = 0; p->first < panels; p->first += part) {
        p->panels = min64(part, panels - p->first);
        if (two)
            p->two.right = right + p->first * p->two.right_panel;
        pack_part(packed, p->first, p->panels, one->b, kind, p->one.steps, threads);
        KG_TRY(run_pass(p, threads, err));
    }
    return KG_OK;
}

/* ---- dW = dy^T x: one pass for each chunk of tokens, whose dy is turned ---- */
static void pack_chunk(char *right, const struct pass *p, struct kg_mat a,
                       struct kg_mat b, int64_t s0, bool threads)
{
    const struct factors *f = &p->one;
    int64_t lefts = ceil_div(a.cols, KG_PANEL);
    int64_t row_bytes = f->a.stride * (int64_t)kg_dtype_traits(a.dtype)->bytes;
    int64_t left_tasks = ceil_div(lefts, PANELS_A_TIME);
    int64_t tasks = left_tasks + ceil_div(p->panels, PANELS_A_TIME);
#pragma omp parallel for schedule(dynamic) if (threads)
    for (int64_t i = 0; i < tasks; i++) {
        bool is_left = i < left_tasks;
        int64_t first = (is_left ? i : i - left_tasks) * PANELS_A_TIME;
        int64_t n = min64(PANELS_A_TIME, (is_left ? lefts : p->panels) - first);
        if (is_left)
            kg_cpu_turn_cols((char *)f->a.data + first * KG_PANEL * row_bytes, row_bytes,
                             a, first * KG_PANEL, n, s0, f->steps);
        else
            kg_cpu_pack_cols(right + first * f->right_panel, f->right_panel, b,
                             first * KG_PANEL, n, s0, f->steps);
    }
}

/* Steps [s0,s0+n) of a, turned, in rows of `left`. */
static struct factors chunk_of(struct kg_mat a, char *left, int64_t row_bytes, int64_t n)
{
    struct factors f = {.right_panel = n * KG_STEP_BYTES, .steps = n};
    f.a = kg_mat(left, a.dtype, a.cols, n * kg_cpu_step_factors(a.dtype));
    f.a.stride = row_bytes / (int64_t)kg_dtype_traits(a.dtype)->bytes;
    return f;
}

static kg_status product_of_tokens(struct pass *p, struct kg_mat a, struct kg_mat b,
                                   bool threads, struct kg_err *err)
{
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
    for (int64_t s0 = 0; s0 < steps; s0 += chunk) {
        p->one = chunk_of(a, left, row_bytes, min64(chunk, steps - s0));
        p->one.right = right;
        pack_chunk(right, p, a, b, s0, threads);
        KG_TRY(run_pass(p, threads, err));
        p->add = true;
    }
    return KG_OK;
}

/* ---- the same, narrow ---- */
/* Where one side of dW has a few columns, moving the other one is the work: each thread
 * packs some panels of it and multiplies them while its cache holds them. */
struct narrow {
    struct kg_mat c; /* (few, cols), or turned: (cols, few) */
    bool turned;
    bool add;
    struct kg_mat few;  /* (few, tokens) in rows of steps, as tiles read them */
    struct kg_mat wide; /* (tokens, cols) */
    int64_t panels;     /* of a task */
};

/* c[col + i, r] (=|+=) sums[r, i] */
static void add_turned(struct kg_mat c, struct kg_mat sums, int64_t col, bool add)
{
    const int64_t n = min64(sums.cols, c.rows - col);
    for (int64_t i = 0; i < n; i++) {
        float *to = kg_cpu_f32(c, col + i);
        for (int64_t r = 0; r < sums.rows; r++) {
            float s = kg_cpu_f32(sums, r)[i];
            to[r] = add ? to[r] + s : s;
        }
    }
}

/* One chunk of tokens, from step s0. */
static kg_status narrow_chunk(const struct narrow *n, struct pass *p, char *right,
                              int64_t first, int64_t s0, struct kg_err *err)
{
    const struct block whole = {.rows = n->few.rows, .panels = p->panels};
    kg_cpu_pack_cols(right, p->one.right_panel, n->wide, first * KG_PANEL, p->panels, s0,
                     p->one.steps);
    KG_TRY(run_block(p, whole, err));
    if (n->turned)
        add_turned(n->c, p->c, first * KG_PANEL, n->add || s0 > 0);
    return KG_OK;
}

/* Panels [first,first+panels) of the wide side. */
static kg_status narrow_task(const struct narrow *n, int64_t first, int64_t panels,
                             struct kg_err *err)
{
    const int64_t chunk = chunk_steps(n->wide.dtype), rows = n->few.rows;
    const int64_t steps = kg_cpu_steps(n->wide.dtype, n->wide.rows);
    const int64_t longest = min64(chunk, steps), width = panels * KG_PANEL;
    float *sums = kg_cpu_scratch(KG_CPU_SCRATCH_TURNED,
                                 (size_t)(rows * width) * sizeof *sums, err);
    char *right = sums ? kg_cpu_scratch(KG_CPU_SCRATCH_OWN_RIGHT,
                                        (size_t)(panels * longest) * KG_STEP_BYTES, err)
                       : NULL;
    struct pass p = {.c = n->turned ? kg_mat(sums, KG_F32, rows, width) : n->c,
                     .first = n->turned ? 0 : first,
                     .panels = panels,
                     .add = n->add && !n->turned,
                     .strip = kg_cpu_tile_panels(n->wide.dtype, rows)};
    if (!right)
        return err->code;
    for (int64_t s0 = 0; s0 < steps; s0 += chunk) {
        p.one = (struct factors){
            .a = n->few, .right = right, .steps = min64(chunk, steps - s0)};
        p.one.a.data = (char *)n->few.data + s0 * 4;
        p.one.a.cols = p.one.steps * kg_cpu_step_factors(n->wide.dtype);
        p.one.right_panel = p.one.steps * KG_STEP_BYTES;
        KG_TRY(narrow_chunk(n, &p, right, first, s0, err));
        p.add = !n->turned;
    }
    return KG_OK;
}

static kg_status run_narrow(const struct narrow *n, bool threads, struct kg_err *err)
{
    const int64_t panels = ceil_div(n->wide.cols, KG_PANEL);
    const int64_t tasks = ceil_div(panels, n->panels);
    kg_status status = KG_OK;
#pragma omp parallel for schedule(dynamic) if (threads && tasks > 1)
    for (int64_t i = 0; i < tasks; i++) {
        struct kg_err mine;
        unsigned mode = kg_fp_enter();
        if (narrow_task(n, i * n->panels, min64(n->panels, panels - i * n->panels),
                        &mine) != KG_OK)
            kg_cpu_report(&status, err, &mine);
        kg_fp_leave(mode);
    }
    return status;
}

static bool is_narrow(struct kg_mat c) { return min64(c.rows, c.cols) <= NARROW; }

static kg_status narrow_of_tokens(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                                  bool add, bool threads, struct kg_err *err)
{
    struct narrow n = {.c = c, .turned = c.cols < c.rows, .add = add};
    const struct kg_mat few = n.turned ? b : a;
    const int64_t steps = kg_cpu_steps(b.dtype, b.rows);
    const int64_t row_bytes = steps * 4 + LINE_BYTES;
    char *left = kg_cpu_scratch(KG_CPU_SCRATCH_LEFT, (size_t)(few.cols * row_bytes), err);
    if (!left)
        return err->code;
    kg_cpu_turn_cols(left, row_bytes, few, 0, ceil_div(few.cols, KG_PANEL), 0, steps);
    n.few = chunk_of(few, left, row_bytes, steps).a;
    n.wide = n.turned ? a : b;
    n.panels = ceil_div(n.wide.cols, KG_PANEL) /
               (omp_get_max_threads() * BLOCKS_A_THREAD);
    n.panels = max64(min64(n.panels, PANELS_A_TIME), LEAST_PANELS);
    return run_narrow(&n, threads, err);
}

/* c = 0 for an empty sum. */
static kg_status clear(struct kg_mat c)
{
    for (int64_t r = 0; r < c.rows; r++)
        memset((char *)c.data + (size_t)(r * c.stride) * kg_dtype_traits(c.dtype)->bytes,
               0, (size_t)c.cols * kg_dtype_traits(c.dtype)->bytes);
    return KG_OK;
}

/* To read the right operand is work, however few rows it meets. */
static bool use_threads(struct kg_mat c, int64_t factors)
{
    return kg_cpu_use_threads((c.rows + READING) * c.cols * factors / 32);
}

kg_status kg_cpu_matmul(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                        enum kg_matmul_kind kind, bool accumulate, struct kg_err *err)
{
    int64_t K = kind == KG_MATMUL_TN ? a.rows : a.cols;
    struct pass p = {.c = c, .add = accumulate};
    const struct kg_factors f = {a, b};
    if (c.rows == 0 || c.cols == 0)
        return KG_OK;
    if (K == 0)
        return accumulate ? KG_OK : clear(c);
    bool threads = use_threads(c, K);
    if (kind != KG_MATMUL_TN)
        return product_of_rows(&p, &f, NULL, kind, threads, err);
    return is_narrow(c) ? narrow_of_tokens(c, a, b, accumulate, threads, err)
                        : product_of_tokens(&p, a, b, threads, err);
}

kg_status kg_cpu_matmul_two(struct kg_mat c, const struct kg_factors f[2],
                            enum kg_matmul_kind kind, bool accumulate, struct kg_err *err)
{
    struct pass p = {.c = c, .add = accumulate};
    if (c.rows == 0 || c.cols == 0)
        return KG_OK;
    return product_of_rows(&p, &f[0], &f[1], kind,
                           use_threads(c, f[0].a.cols + f[1].a.cols), err);
}
