/* Matrix products: packing, and the distribution of blocks to threads.
 *
 * Invariant: each element is computed by one chain of additions per chunk (backend.h).
 * The chain depends only on its row and its column, not on the thread or on neighbours.
 * So the division into blocks may follow the number of rows and threads without changing
 * a bit. Threads take the next block when they are free, so a slow core costs little.
 *
 * The right operand is read in panels. Weights are stored in panels; other matrices
 * (gradients, activations, the weights of dx = dy W) are packed first by all threads, a
 * part at a time. The left operand is read in place if its layout allows it; otherwise
 * each thread packs the rows of its block and keeps them for the next blocks in them.
 */
#include "base/fpmode.h"
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/parallel_internal.h"
#include "tensor/cpu/product_internal.h"
#include "tensor/cut.h"

enum {
    BLOCK_ROWS = 256,     /* maximum rows per block */
    LEFT_BYTES = 1 << 19, /* of a block's chunk of the left operand: half of L2, */
    SUMS_BYTES = 1 << 18, /* and of its sums, if they wait for the next chunk */
    BLOCKS_A_THREAD = 8,  /* with tile registers, and for narrow products */
    PART_BYTES = 8 << 20, /* of a right operand that is packed part by part */
    LINE_BYTES = 64,
    WIDEST = 12,        /* panels: a multiple of every strip's width */
    PANELS_A_TIME = 8,  /* panels that a thread packs at once: few lines per row, */
    STEPS_A_TIME = 256, /* and its number of steps */
    READING = 8,        /* rows whose sums take as long as reading a row of weights */
    NARROW = 64,        /* most columns of the narrow side of dW */
    LEAST_PANELS = 2
};

static int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
static int64_t min64(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t max64(int64_t x, int64_t y) { return x > y ? x : y; }

static int64_t chunk_steps(enum kg_dtype t) { return kg_cpu_steps(t, KG_PRODUCT_CHUNK); }

/* A left operand, and the panels that it is multiplied by. */
struct factors {
    struct kg_mat a;
    bool split;          /* a is already in step order */
    const char *right;   /* first panel */
    int64_t right_panel; /* bytes from one panel to the next */
    int64_t steps;       /* 0: there is no such product */
    struct kg_mat coded; /* the panels, if they are quantized; else quant is NULL */
};

/* c (=|+=) product `one`, then c += product `two`, if it has steps. */
struct pass {
    struct kg_mat c;
    struct factors one;
    struct factors two;
    int64_t first; /* first panel of c */
    int64_t panels;
    bool add; /* c += */
};

/* ---- one block ---- */
/* Steps of a left operand as tiles read them: in place, or packed in the scratch of
 * `use`. */
struct left {
    const char *data;
    int64_t row;   /* bytes per row */
    int64_t first; /* row of c; -1: empty */
    int64_t rows;
    int64_t s0;
    enum kg_cpu_scratch_use use;
};

/* The left operands that a thread keeps from block to block. */
struct hand {
    struct left one;
    struct left two;
};
static struct hand empty_hand(void)
{
    return (struct hand){{.first = -1, .use = KG_CPU_SCRATCH_OWN_LEFT},
                         {.first = -1, .use = KG_CPU_SCRATCH_SECOND_LEFT}};
}

static bool lies_ready_left(const struct factors *f)
{
    bool as_it_lies = f->split || (KG_SIMD_AMX && f->a.cols % KG_PRODUCT_BLOCK == 0);
    return f->a.dtype == KG_F32 || (as_it_lies && kg_cpu_left_bytes(KG_BF16) == 4);
}

/* Provides steps [s0,s0+n) of the block's rows; l often has them from the last block. */
static kg_status left_of(struct left *l, const struct factors *f,
                         const struct kg_cut_block *b, int64_t s0, int64_t n,
                         struct kg_err *err)
{
    const int64_t bytes = kg_cpu_left_bytes(f->a.dtype);
    if (n == 0 || (l->first == b->row && l->rows >= b->rows && l->s0 == s0))
        return KG_OK;
    l->first = b->row;
    l->rows = b->rows;
    l->s0 = s0;
    if (lies_ready_left(f)) {
        l->row = f->a.stride * (int64_t)kg_dtype_traits(f->a.dtype)->bytes;
        l->data = (const char *)f->a.data + b->row * l->row + s0 * bytes;
        return KG_OK;
    }
    l->row = n * bytes;
    char *own = kg_cpu_scratch(l->use, (size_t)(b->rows * l->row), err);
    if (!own)
        return err->code;
    kg_cpu_pack_left(own, f->a, f->split, b->row, b->rows, s0, n);
    l->data = own;
    return KG_OK;
}

/* c (=|+=) the sums of a block, whose rows are b->panels panels long. two: sums of the
 * second product, or NULL */
static void store_sums(const struct pass *p, const struct kg_cut_block *b,
                       const float *sums, const float *two)
{
    int64_t c0 = (p->first + b->panel) * KG_PANEL;
    int64_t cols = min64(b->panels * KG_PANEL, p->c.cols - c0);
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t i = 0; i < cols; i += KG_LANES) {
            int lanes = kg_cpu_lanes(cols - i);
            int64_t at = r * b->panels * KG_PANEL + i;
            struct kg_v16 s = kg_v16_load(sums + at);
            if (p->add)
                s = kg_v16_add(kg_cpu_load(p->c, b->row + r, c0 + i, lanes), s);
            if (two)
                s = kg_v16_add(s, kg_v16_load(two + at));
            kg_cpu_store(p->c, b->row + r, c0 + i, s, lanes);
        }
}

static struct kg_cpu_side side_of(const struct left *l, const struct factors *f,
                                  const struct kg_cut_block *b)
{
    return (struct kg_cpu_side){.left = l->data,
                                .left_row = l->row,
                                .right = f->right + b->panel * f->right_panel,
                                .right_panel = f->right_panel,
                                .blocks = f->steps / KG_BLOCK_STEPS};
}

/* All steps at once. The last square covers the last 32 rows of c and may overlap the one
 * above, which is in the same block: a block below others has several squares. */
static kg_status run_squares(const struct pass *p, struct hand *h,
                             const struct kg_cut_block *b, struct kg_err *err)
{
    KG_TRY(left_of(&h->one, &p->one, b, 0, p->one.steps, err));
    KG_TRY(left_of(&h->two, &p->two, b, 0, p->two.steps, err));
    struct kg_cpu_squares squares = {
        .c = p->c,
        .add = p->add,
        .unit = b->row / KG_AMX_SQUARE,
        .units = ceil_div(b->rows, KG_AMX_SQUARE),
        .left_first = b->row,
        .one = side_of(&h->one, &p->one, b),
        .first = p->first + b->panel,
        .panels = b->panels,
    };
    if (p->two.steps > 0)
        squares.two = side_of(&h->two, &p->two, b);
    return kg_cpu_squares(&squares, err);
}

/* Sums coded panels by widening some steps at a time to bf16 in the L1 cache. */
static void sum_widened(struct kg_cpu_strip s, const struct factors *f,
                        const struct kg_cut_block *b, int64_t s0)
{
    enum { MOST_PANELS = 4, STEPS = 128 };
    _Alignas(64) char wide[MOST_PANELS * STEPS * KG_STEP_BYTES];
    const int64_t end = s0 + s.steps;
    s.right = wide;
    for (int64_t i = s0; i < end; i += s.steps) {
        s.steps = min64(STEPS, end - i);
        s.right_panel = s.steps * KG_STEP_BYTES;
        for (int64_t p = 0; p < b->panels; p++)
            kg_cpu_widen(wide + p * s.right_panel, f->coded, b->panel + p, i, s.steps);
        kg_cpu_sum_strip(&s, KG_BF16, b->rows, (int)b->panels);
        s.left += s.steps * kg_cpu_left_bytes(KG_BF16);
        s.first = false;
    }
}

static void sum_coded(struct kg_cpu_strip s, const struct factors *f,
                      const struct kg_cut_block *b, int64_t s0)
{
    for (int64_t p = 0; p < b->panels; p++, s.out += KG_PANEL)
        if (s0 > 0 || s.steps < f->steps ||
            !kg_cpu_sum_coded(&s, f->coded, b->panel + p, b->rows)) {
            sum_widened(s, f, b, s0);
            return;
        }
}

/* Sums of all rows of the block by its panels (at most a tile's) over steps [s0,s0+n),
 * which l holds. */
static void sum_strip(float *sums, const struct factors *f, const struct left *l,
                      const struct kg_cut_block *b, int64_t s0, int64_t n)
{
    const struct kg_cpu_strip s = {
        .left = l->data + (s0 - l->s0) * kg_cpu_left_bytes(f->a.dtype),
        .left_row = l->row,
        .right = f->right + b->panel * f->right_panel + s0 * KG_STEP_BYTES,
        .right_panel = f->right_panel,
        .steps = n,
        .out = sums,
        .out_row = b->panels * KG_PANEL,
        .first = s0 == 0};
    if (f->coded.quant)
        sum_coded(s, f, b, s0);
    else
        kg_cpu_sum_strip(&s, f->a.dtype, b->rows, (int)b->panels);
}

/* Steps that a block sums at once. The rows of one tile read each panel once, from end to
 * end; bf16 permits this, because its sum continues across chunks. */
static int64_t depth_of(const struct factors *f, int64_t rows)
{
    const bool once = f->a.dtype == KG_BF16 && rows <= kg_cpu_tile_rows(KG_BF16);
    return once ? f->steps : min64(chunk_steps(f->a.dtype), f->steps);
}

/* One chunk of all strips; after the last chunk, stores the sums. two: scratch for sums
 * of one strip of the second product, then sums of the first: of one strip, or of all
 * strips if they wait for another chunk */
static kg_status run_chunk(const struct pass *p, struct hand *h,
                           const struct kg_cut_block *b, float *two, int64_t s0,
                           int64_t n, struct kg_err *err)
{
    const int64_t strip = kg_cpu_tile_panels(p->one.a.dtype, b->rows);
    const int64_t apart = n == p->one.steps ? 0 : b->rows * strip * KG_PANEL;
    const int64_t chunk = chunk_steps(p->one.a.dtype);
    struct kg_cut_block part = *b;
    float *sums = two + (p->two.steps > 0 ? b->rows * strip * KG_PANEL : 0);
    KG_TRY(left_of(&h->one, &p->one, b, s0, n, err));
    for (; part.panel < b->panel + b->panels; part.panel += strip, sums += apart) {
        part.panels = min64(strip, b->panel + b->panels - part.panel);
        sum_strip(sums, &p->one, &h->one, &part, s0, n);
        if (s0 + n < p->one.steps)
            continue;
        for (int64_t s = 0; s < p->two.steps; s += chunk)
            sum_strip(two, &p->two, &h->two, &part, s, min64(chunk, p->two.steps - s));
        store_sums(p, &part, sums, p->two.steps > 0 ? two : NULL);
    }
    return KG_OK;
}

static __attribute__((noinline)) kg_status
run_block(const struct pass *p, struct hand *h, struct kg_cut_block b, struct kg_err *err)
{
    if (kg_cpu_by_squares(p->one.a.dtype, p->c.rows))
        return run_squares(p, h, &b, err);
    const int64_t strip = kg_cpu_tile_panels(p->one.a.dtype, b.rows);
    const int64_t depth = depth_of(&p->one, b.rows);
    const int64_t wait = depth < p->one.steps ? b.panels : 0;
    const int64_t strips = (p->two.steps > 0 ? 2 : 1) * strip;
    const size_t count = (size_t)(b.rows * (wait + strips)) * KG_PANEL;
    float *sums = kg_cpu_scratch(KG_CPU_SCRATCH_SUMS, count * sizeof *sums, err);
    if (!sums)
        return err->code;
    KG_TRY(left_of(&h->two, &p->two, &b, 0, p->two.steps, err));
    for (int64_t s0 = 0; s0 < p->one.steps; s0 += depth)
        KG_TRY(run_chunk(p, h, &b, sums, s0, min64(depth, p->one.steps - s0), err));
    return KG_OK;
}

/* ---- division into blocks ---- */
/* Tall blocks: the left operand stays in the L2 cache while panels pass, and each panel
 * read from memory serves many rows. The sums of a deep product stay in L2, too. */
static void cut_squares(struct kg_tiling *cut, int64_t steps, int64_t threads)
{
    enum { TALL = 512, DEEP = 1024, DEEP_STRIPS = 14, LEAST_SQUARES = 4 };
    bool deep = steps * 2 > DEEP;
    int64_t tall = deep ? TALL / 2 : TALL;
    int64_t strips = ceil_div(cut->panels, cut->unit_panels);
    int64_t units = ceil_div(min64(cut->rows, tall), KG_AMX_SQUARE);
    int64_t wanted = threads > 1 ? threads * BLOCKS_A_THREAD : 1;
    cut->row_blocks = ceil_div(cut->rows, tall);
    int64_t wide = max64(strips * cut->row_blocks / wanted,
                         ceil_div(LEAST_SQUARES, units));
    cut->col_blocks = ceil_div(strips, deep ? min64(wide, DEEP_STRIPS) : wide);
}

static struct kg_tiling cut_of(const struct pass *p, int64_t threads)
{
    const enum kg_dtype t = p->one.a.dtype;
    const int64_t strip = kg_cpu_tile_panels(t, p->c.rows);
    struct kg_tiling cut = {.rows = p->c.rows,
                            .panels = p->panels,
                            .unit_rows = 1,
                            .unit_panels = strip == 1 ? 2 : strip};
    if (kg_cpu_by_squares(t, cut.rows)) {
        cut.unit_rows = KG_AMX_SQUARE;
        cut.unit_panels = 2;
        cut_squares(&cut, p->one.steps, threads);
        return cut;
    }
    const int64_t depth = depth_of(&p->one, cut.rows);
    const int64_t tall = min64(LEFT_BYTES / (depth * kg_cpu_left_bytes(t)), BLOCK_ROWS);
    const int64_t sums = min64(cut.rows, tall) * KG_PANEL * (int64_t)sizeof(float);
    kg_cut_for(&cut, tall, depth == p->one.steps ? cut.panels : SUMS_BYTES / sums,
               threads);
    return cut;
}

static int64_t blocks_of(const struct kg_tiling *cut)
{
    return cut->row_blocks * cut->col_blocks;
}

/* Runs blocks of n passes that share a left operand, in order. */
static kg_status run_blocks(const struct pass *p, const struct kg_tiling *cut, int n,
                            int64_t *next, struct kg_err *err)
{
    struct hand hand = empty_hand();
    int64_t before = 0; /* blocks of finished passes */
    for (int j = 0; j < n;) {
        const int64_t i = kg_cpu_take(next);
        while (j < n && i - before >= blocks_of(&cut[j]))
            before += blocks_of(&cut[j++]);
        if (j < n)
            KG_TRY(run_block(&p[j], &hand, kg_cut_at(&cut[j], i - before), err));
    }
    return KG_OK;
}

static kg_status run_passes(const struct pass *p, int n, bool threads, struct kg_err *err)
{
    struct kg_tiling cut[KG_PRODUCTS_AT_ONCE];
    kg_status status = KG_OK;
    int64_t next = 0, blocks = 0;
    for (int j = 0; j < n; j++) {
        cut[j] = cut_of(&p[j], threads ? omp_get_max_threads() : 1);
        blocks += blocks_of(&cut[j]);
    }
#pragma omp parallel if (threads && blocks > 1)
    {
        struct kg_err mine;
        unsigned mode = kg_fp_enter();
        if (run_blocks(p, cut, n, &next, &mine) != KG_OK)
            kg_cpu_report(&status, err, &mine);
        kg_fp_leave(mode);
    }
    return status;
}

static kg_status run_pass(const struct pass *p, bool threads, struct kg_err *err)
{
    return run_passes(p, 1, threads, err);
}

/* ---- y = x W^T and dx = dy W ---- */
/* Packs panels [first,first+panels) of c's columns, steps [s0,s0+n). */
static void pack_piece(char *to, int64_t panel_bytes, int64_t first, int64_t panels,
                       struct kg_mat b, enum kg_matmul_kind kind, int64_t s0, int64_t n)
{
    if (kind == KG_MATMUL_NN)
        kg_cpu_pack_cols(to, panel_bytes, b, first * KG_PANEL, panels, s0, n);
    for (int64_t j = 0; j < panels && kind == KG_MATMUL_NT; j++, to += panel_bytes)
        if (b.quant)
            kg_cpu_widen(to, b, first + j, s0, n);
        else
            kg_cpu_pack_rows(to, b.dtype, b, (first + j) * KG_PANEL, s0, n);
}

/* Packs all steps, on all threads. */
static void pack_part(char *to, int64_t first, int64_t panels, struct kg_mat b,
                      enum kg_matmul_kind kind, int64_t steps, bool threads)
{
    const int64_t panel_bytes = steps * KG_STEP_BYTES;
    const int64_t deep = ceil_div(steps, STEPS_A_TIME);
#pragma omp parallel for schedule(dynamic) if (threads)
    for (int64_t i = 0; i < ceil_div(panels, PANELS_A_TIME) * deep; i++) {
        int64_t s0 = i % deep * STEPS_A_TIME, at = i / deep * PANELS_A_TIME;
        pack_piece(to + at * panel_bytes + s0 * KG_STEP_BYTES, panel_bytes, first + at,
                   min64(PANELS_A_TIME, panels - at), b, kind, s0,
                   min64(STEPS_A_TIME, steps - s0));
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
    return kind == KG_MATMUL_NT && f->b.layout != KG_ROWS &&
           !(f->b.quant && kg_cpu_by_squares(KG_BF16, f->a.rows));
}

/* Uses b's own panels as the right operand. */
static void take_ready(struct factors *f, struct kg_mat b)
{
    f->right = b.data;
    f->coded = b;
}

/* The second product's right operand, packed whole, because it has few steps. */
static kg_status second_of(struct factors *two, const struct kg_factors *f,
                           int64_t panels, enum kg_matmul_kind kind, bool threads,
                           struct kg_err *err)
{
    *two = factors_of(f);
    take_ready(two, f->b);
    if (lies_ready(f, kind))
        return KG_OK;
    two->coded.quant = NULL;
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
        take_ready(&p->one, one->b);
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

/* ---- dW = dy^T x: one pass for each chunk of tokens, whose dy is transposed ---- */
/* Packs piece i of a chunk: some steps of some columns of a or, after all of a, of b. */
static void pack_chunk_piece(char *right, const struct pass *p, struct kg_mat a,
                             struct kg_mat b, int64_t s0, int64_t i)
{
    const struct factors *f = &p->one;
    const int64_t lefts = ceil_div(a.cols, KG_PANEL),
                  deep = ceil_div(f->steps, STEPS_A_TIME);
    const int64_t left_groups = ceil_div(lefts, PANELS_A_TIME), group = i / deep;
    const bool is_left = group < left_groups;
    const int64_t first = (is_left ? group : group - left_groups) * PANELS_A_TIME;
    const int64_t panels = min64(PANELS_A_TIME, (is_left ? lefts : p->panels) - first);
    const int64_t s = i % deep * STEPS_A_TIME, n = min64(STEPS_A_TIME, f->steps - s);
    const int64_t row = f->a.stride * (int64_t)kg_dtype_traits(a.dtype)->bytes;
    if (is_left)
        kg_cpu_turn_cols((char *)f->a.data + first * KG_PANEL * row + s * 4, row, a,
                         first * KG_PANEL, panels, s0 + s, n);
    else
        kg_cpu_pack_cols(right + first * f->right_panel + s * KG_STEP_BYTES,
                         f->right_panel, b, first * KG_PANEL, panels, s0 + s, n);
}

static void pack_chunk(char *right, const struct pass *p, struct kg_mat a,
                       struct kg_mat b, int64_t s0, bool threads)
{
    const int64_t lefts = ceil_div(a.cols, KG_PANEL);
    const int64_t groups = ceil_div(lefts, PANELS_A_TIME) +
                           ceil_div(p->panels, PANELS_A_TIME);
    const int64_t pieces = groups * ceil_div(p->one.steps, STEPS_A_TIME);
#pragma omp parallel for schedule(dynamic) if (threads)
    for (int64_t i = 0; i < pieces; i++)
        pack_chunk_piece(right, p, a, b, s0, i);
}

/* The left operand: n steps of a, transposed, in rows of `left`. */
static struct factors chunk_of(struct kg_mat a, char *left, int64_t row_bytes, int64_t n)
{
    struct factors f = {.split = true, .right_panel = n * KG_STEP_BYTES, .steps = n};
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
    int64_t row_bytes = longest * 4 + LINE_BYTES; /* spread over cache sets */
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

/* ---- dW with a narrow side ---- */
/* If one side of dW has few columns, most of the time is spent moving the other. So each
 * thread packs some panels of it and multiplies them while they are in its cache. */
struct narrow {
    struct kg_mat c; /* (few, cols); if turned: (cols, few) */
    bool turned;
    bool add;
    struct kg_mat few;  /* (few, tokens) in step order */
    struct kg_mat wide; /* (tokens, cols) */
    int64_t panels;     /* per task */
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

/* One chunk of tokens, which begins at step s0. */
static kg_status narrow_chunk(const struct narrow *n, struct pass *p, char *right,
                              int64_t first, int64_t s0, struct kg_err *err)
{
    const struct kg_cut_block whole = {.rows = n->few.rows, .panels = p->panels};
    struct hand hand = empty_hand();
    kg_cpu_pack_cols(right, p->one.right_panel, n->wide, first * KG_PANEL, p->panels, s0,
                     p->one.steps);
    KG_TRY(run_block(p, &hand, whole, err));
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
                     .add = n->add && !n->turned};
    if (!right)
        return err->code;
    for (int64_t s0 = 0; s0 < steps; s0 += chunk) {
        p.one = (struct factors){.a = n->few,
                                 .split = true,
                                 .right = right,
                                 .steps = min64(chunk, steps - s0)};
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

/* Reading the right operand takes time even if c has few rows. */
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

static kg_status one_by_one(const struct kg_product *to, int n, struct kg_mat a,
                            struct kg_err *err)
{
    for (int j = 0; j < n; j++)
        KG_TRY(kg_cpu_matmul(to[j].c, a, to[j].b, KG_MATMUL_NT, false, err));
    return KG_OK;
}

kg_status kg_cpu_matmul_shared(const struct kg_product *to, int n, struct kg_mat a,
                               struct kg_err *err)
{
    struct pass p[KG_PRODUCTS_AT_ONCE];
    int64_t cols = 0;
    for (int j = 0; j < n; j++) {
        const struct kg_factors f = {a, to[j].b};
        if (a.rows == 0 || a.cols == 0 || !lies_ready(&f, KG_MATMUL_NT))
            return one_by_one(to, n, a, err);
        p[j] = (struct pass){.c = to[j].c,
                             .one = factors_of(&f),
                             .panels = ceil_div(to[j].c.cols, KG_PANEL)};
        take_ready(&p[j].one, to[j].b);
        cols += to[j].c.cols;
    }
    const struct kg_mat all = {.rows = a.rows, .cols = cols};
    return run_passes(p, n, use_threads(all, a.cols), err);
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
