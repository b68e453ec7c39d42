/* Attention: against a plain double reference, and bit for bit against itself over every
 * way of cutting the same work (chunks, pages, neighbours, batches, threads).
 */
#include "tensor/matrix_testing.h"
#include "tensor/selfcheck.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEQS = 8 };

/* Whole sequences lying one after the other. */
struct problem {
    enum kg_dtype dtype;
    int heads;
    int kv_heads;
    int hd;
    int window; /* 0: none */
    float softcap;
    int n_seqs;
    int lengths[MAX_SEQS];
    int64_t n;
    struct kg_mat q;
    struct kg_mat k;
    struct kg_mat v;
    struct kg_attn_seq *seqs; /* (n_seqs) */
};

struct answer {
    struct kg_mat o;
    float *lse; /* (rows, heads) */
};

static void problem_init(struct problem *p)
{
    random_state = 7;
    p->n = 0;
    p->seqs = buffer_of(p->n_seqs, sizeof *p->seqs);
    for (int s = 0; s < p->n_seqs; s++) {
        int32_t row = (int32_t)p->n;
        p->seqs[s] = (struct kg_attn_seq){
            .row = row, .n_rows = p->lengths[s], .keys = row};
        p->n += p->lengths[s];
    }
    p->q = random_matrix(p->dtype, p->n, (int64_t)p->heads * p->hd, 2.0);
    p->k = random_matrix(p->dtype, p->n, (int64_t)p->kv_heads * p->hd, 2.0);
    p->v = random_matrix(p->dtype, p->n, (int64_t)p->kv_heads * p->hd, 1.0);
}

static void problem_release(struct problem *p)
{
    buffer_free(p->q.data);
    buffer_free(p->k.data);
    buffer_free(p->v.data);
    buffer_free(p->seqs);
}

static struct kg_attn attn_of(const struct problem *p)
{
    return (struct kg_attn){
        .q = p->q,
        .k = p->k,
        .v = p->v,
        .n_heads = p->heads,
        .n_kv_heads = p->kv_heads,
        .head_dim = p->hd,
        .scale = (float)(1.0 / sqrt(p->hd)),
        .window = p->window,
        .softcap = p->softcap,
        .seqs = p->seqs,
        .n_seqs = p->n_seqs,
    };
}

static struct answer answer_init(const struct problem *p, int64_t rows)
{
    return (struct answer){matrix(p->dtype, rows, (int64_t)p->heads * p->hd),
                           buffer_of(rows * p->heads, sizeof(float))};
}

static void answer_release(struct answer *a)
{
    buffer_free(a->o.data);
    buffer_free(a->lse);
}

static struct kg_vec lse_of(const struct answer *y, const struct kg_attn *a)
{
    return kg_vec(y->lse, a->q.rows * a->n_heads);
}

static void attend_on(const struct kg_backend *be, struct answer *out,
                      const struct kg_attn *a)
{
    struct kg_err err;
    kg_status status = kg_op_attention(be, out->o, lse_of(out, a), a, &err);
    if (status != KG_OK)
        fail_msg("%s", err.message);
}
static void attend(struct answer *out, const struct kg_attn *a)
{
    attend_on(backend(), out, a);
}

static struct answer whole(const struct problem *p)
{
    struct answer out = answer_init(p, p->n);
    struct kg_attn a = attn_of(p);
    attend(&out, &a);
    return out;
}

static size_t row_bytes(struct kg_mat m)
{
    return (size_t)m.cols * kg_dtype_traits(m.dtype)->bytes;
}

static void assert_rows_equal(const struct answer *a, int64_t ra, const struct answer *b,
                              int64_t rb, int64_t rows)
{
    size_t bytes = row_bytes(a->o);
    assert_memory_equal((char *)a->o.data + (size_t)ra * bytes,
                        (char *)b->o.data + (size_t)rb * bytes, (size_t)rows * bytes);
}

static void assert_lse_equal(const struct answer *a, int64_t ra, const struct answer *b,
                             int64_t rb, int64_t rows, int heads)
{
    assert_memory_equal(a->lse + ra * heads, b->lse + rb * heads,
                        (size_t)(rows * heads) * sizeof(float));
}

/* ---- the plain version ---- */
static int first_key(const struct problem *p, int i)
{
    return p->window > 0 && i >= p->window ? i - p->window + 1 : 0;
}

/* A score, capped where the problem has a softcap, and *slope. */
static double capped(const struct problem *p, double s, double *slope)
{
    double t = p->softcap > 0 ? tanh(s / (double)p->softcap) : 0.0;
    *slope = 1.0 - t * t;
    return p->softcap > 0 ? (double)p->softcap * t : s;
}

/* p[0..i] of query i of a sequence;   returns lse */
static double plain_weights(double *w, const struct problem *p, int s, int i, int h)
{
    int64_t row = p->seqs[s].row;
    int64_t kv = (int64_t)(h / (p->heads / p->kv_heads)) * p->hd;
    double top = -INFINITY, sum = 0.0, slope;
    for (int j = 0; j < first_key(p, i); j++)
        w[j] = -INFINITY;
    for (int j = first_key(p, i); j <= i; j++) {
        w[j] = 0.0;
        for (int d = 0; d < p->hd; d++)
            w[j] += get(p->q, row + i, (int64_t)h * p->hd + d) *
                    get(p->k, row + j, kv + d);
        w[j] = capped(p, w[j] / sqrt(p->hd), &slope);
        top = w[j] > top ? w[j] : top;
    }
    for (int j = 0; j <= i; j++)
        sum += exp(w[j] - top);
    for (int j = 0; j <= i; j++)
        w[j] = exp(w[j] - top) / sum;
    return top + log(sum);
}

static void compare_plain_row(const struct problem *p, const struct answer *got, int s,
                              int i, int h, double *w, double tolerance)
{
    int64_t row = p->seqs[s].row + i;
    int64_t kv = (int64_t)(h / (p->heads / p->kv_heads)) * p->hd;
    double lse = plain_weights(w, p, s, i, h);
    assert_true(fabs(lse - (double)got->lse[row * p->heads + h]) < 1e-5);
    for (int d = 0; d < p->hd; d++) {
        double o = 0.0;
        for (int j = 0; j <= i; j++)
            o += w[j] * get(p->v, p->seqs[s].row + j, kv + d);
        assert_true(fabs(o - get(got->o, row, (int64_t)h * p->hd + d)) < tolerance);
    }
}

static void compare_plain(const struct problem *p, const struct answer *got,
                          double tolerance)
{
    double *w = block_of(p->n, sizeof *w);
    for (int s = 0; s < p->n_seqs; s++)
        for (int i = 0; i < p->lengths[s]; i++)
            for (int h = 0; h < p->heads; h++)
                compare_plain_row(p, got, s, i, h, w, tolerance);
    kg_mem_free(w);
}

static const struct problem shapes[] = {
    {KG_F32, .heads = 4, .kv_heads = 4, .hd = 16, .n_seqs = 1, .lengths = {70}},
    {KG_F32, .heads = 4, .kv_heads = 2, .hd = 6, .n_seqs = 3, .lengths = {1, 64, 65}},
    {KG_F32, .heads = 6, .kv_heads = 1, .hd = 40, .n_seqs = 2, .lengths = {33, 130}},
    {KG_F32, .heads = 2, .kv_heads = 2, .hd = 256, .n_seqs = 1, .lengths = {129}},
    {KG_BF16, .heads = 14, .kv_heads = 2, .hd = 64, .n_seqs = 2, .lengths = {100, 40}},
    {KG_BF16, .heads = 3, .kv_heads = 3, .hd = 80, .n_seqs = 1, .lengths = {150}},
    {KG_BF16, .heads = 72, .kv_heads = 1, .hd = 2, .n_seqs = 1, .lengths = {66}},
    {KG_BF16, .heads = 8, .kv_heads = 1, .hd = 128, .n_seqs = 2, .lengths = {5, 67}},
    {KG_F32, .heads = 4, .kv_heads = 2, .hd = 16, .window = 7, .n_seqs = 3,
     .lengths = {1, 64, 140}},
    {KG_F32, .heads = 3, .kv_heads = 1, .hd = 10, .window = 65, .softcap = 1.5f,
     .n_seqs = 2, .lengths = {33, 200}},
    {KG_BF16, .heads = 4, .kv_heads = 1, .hd = 64, .window = 130, .n_seqs = 1,
     .lengths = {270}},
    {KG_BF16, .heads = 3, .kv_heads = 1, .hd = 128, .window = 20, .softcap = 0.8f,
     .n_seqs = 2, .lengths = {130, 9}},
    {KG_BF16, .heads = 2, .kv_heads = 2, .hd = 32, .softcap = 0.8f, .n_seqs = 2,
     .lengths = {100, 40}},
};
enum {
    N_SHAPES = sizeof shapes / sizeof shapes[0],
    FIRST_SHAPE = SANITIZED ? 2 : 0, /* some of each kind there */
    NEXT_SHAPE = SANITIZED ? 3 : 1
};

/* Of a shape, or of one sequence of `length` > 0 tokens. */
static struct problem problem_of(int shape, int length)
{
    struct problem p = shapes[shape];
    if (length > 0) {
        p.n_seqs = 1;
        p.lengths[0] = length;
    }
    problem_init(&p);
    return p;
}

/* Whether the backend makes the products of these by a matrix instruction, in which
 * weights are bf16: another definition than the CPU's. */
static bool other_definition(const struct problem *p)
{
    return by_kernels() && p->dtype == KG_BF16 && (p->hd == 64 || p->hd == 128);
}

static void matches_plain_version(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = problem_of(i, 0);
        struct answer got = whole(&p);
        compare_plain(&p, &got, p.dtype == KG_F32 ? 5e-6 : 5e-3);
        answer_release(&got);
        problem_release(&p);
    }
}

/* ---- the same bits however the work is cut ---- */
/* Rows [first, first+n) of sequence 0 alone. */
static void check_chunk(const struct problem *p, const struct answer *full, int first,
                        int n)
{
    struct kg_attn a = attn_of(p);
    struct kg_attn_seq chunk = {
        .row = 0, .n_rows = n, .pos = first, .keys = p->seqs[0].keys};
    struct answer out = answer_init(p, n);
    a.q = kg_mat_rows(p->q, p->seqs[0].row + first, n);
    a.seqs = buffer_with(&chunk, 1, sizeof chunk);
    a.n_seqs = 1;
    attend(&out, &a);
    assert_rows_equal(full, p->seqs[0].row + first, &out, 0, n);
    assert_lse_equal(full, p->seqs[0].row + first, &out, 0, n, p->heads);
    buffer_free((void *)(uintptr_t)a.seqs);
    answer_release(&out);
}

static void chunks_have_the_bits_of_the_whole(void **state)
{
    (void)state;
    static const int all[] = {1, 2, 3, 5, 8, 9, 31, 64, 65, 149};
    const int *sizes = emulated() ? all + 8 : SANITIZED ? all + 6 : all;
    const int n_sizes = emulated() ? 1 : SANITIZED ? 3 : sizeof all / sizeof *all;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = problem_of(i, 150);
        struct answer full = whole(&p);
        for (int s = 0; s < n_sizes; s++)
            for (int first = 0; first < 150; first += sizes[s])
                check_chunk(&p, &full, first,
                            first + sizes[s] > 150 ? 150 - first : sizes[s]);
        answer_release(&full);
        problem_release(&p);
    }
}

/* One row at a time, and some about it, from a sequence that is longer than what is
 * summed at once. */
static void decoding_has_the_bits_of_the_whole(void **state)
{
    (void)state;
    static const int from[] = {0, 63, 64, 127, 1000, 1023, 1024, 1025, 1089};
    for (int windowed = 0; windowed < 2; windowed++) {
        struct problem p = {
            KG_BF16,          .heads = windowed ? 1 : 2,   .kv_heads = windowed ? 1 : 2,
            .hd = 64,         .window = windowed ? 20 : 0, .n_seqs = 1,
            .lengths = {1090}};
        problem_init(&p);
        struct answer full = whole(&p);
        compare_plain(&p, &full, 5e-3);
        for (size_t i = 0; i < sizeof from / sizeof *from; i++)
            check_chunk(&p, &full, from[i], 1);
        check_chunk(&p, &full, 1000, 50);
        answer_release(&full);
        problem_release(&p);
    }
}

/* Keys of every sequence in shuffled pages of a pool whose other rows are NaN. */
struct pages {
    struct kg_mat k;
    struct kg_mat v;
    int32_t (*table)[8]; /* (n_seqs) */
    struct kg_attn_seq *seqs;
};

static void pages_init(struct pages *g, const struct problem *p)
{
    int page = 0, n_pages = 0;
    for (int s = 0; s < p->n_seqs; s++)
        n_pages += (p->lengths[s] + KG_KV_BLOCK - 1) / KG_KV_BLOCK;
    g->k = random_matrix(p->dtype, (int64_t)n_pages * KG_KV_BLOCK, p->k.cols, NAN);
    g->v = random_matrix(p->dtype, (int64_t)n_pages * KG_KV_BLOCK, p->k.cols, NAN);
    g->table = buffer_of(p->n_seqs, sizeof *g->table);
    g->seqs = buffer_with(p->seqs, p->n_seqs, sizeof *g->seqs);
    for (int s = 0; s < p->n_seqs; s++) {
        g->seqs[s].keys = 8 * s;
        for (int j = 0; j < p->lengths[s]; j++) {
            if (j % KG_KV_BLOCK == 0)
                g->table[s][j / KG_KV_BLOCK] = n_pages - 1 - page++;
            int64_t row = (int64_t)g->table[s][j / KG_KV_BLOCK] * KG_KV_BLOCK +
                          j % KG_KV_BLOCK;
            for (int64_t c = 0; c < p->k.cols; c++) {
                set(g->k, row, c, get(p->k, p->seqs[s].row + j, c));
                set(g->v, row, c, get(p->v, p->seqs[s].row + j, c));
            }
        }
    }
}

static void paged_keys_have_the_bits_of_contiguous_keys(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = problem_of(i, 0);
        struct pages g;
        pages_init(&g, &p);
        struct answer full = whole(&p);
        struct answer out = answer_init(&p, p.n);
        struct kg_attn a = attn_of(&p);
        a.k = g.k;
        a.v = g.v;
        a.seqs = g.seqs;
        a.blocks = kg_ivec(g.table[0], p.n_seqs * 8);
        attend(&out, &a);
        assert_rows_equal(&full, 0, &out, 0, p.n);
        assert_lse_equal(&full, 0, &out, 0, p.n, p.heads);
        answer_release(&out);
        answer_release(&full);
        buffer_free(g.k.data);
        buffer_free(g.v.data);
        buffer_free(g.table);
        buffer_free(g.seqs);
        problem_release(&p);
    }
}

/* ---- decoding in batches ---- */
enum { BATCH = 64, PAGES = 3, POOL = BATCH * PAGES * KG_KV_BLOCK };

/* Rows of sequence s at position 37 s % 150 of keys in pages of its own, of a pool that
 * is NaN elsewhere. */
static void fill_pool(struct kg_mat pool, const int32_t (*table)[PAGES])
{
    for (int64_t i = 0; i < pool.rows * pool.cols; i++)
        set(pool, i / pool.cols, i % pool.cols, NAN);
    for (int s = 0; s < BATCH; s++)
        for (int j = 0; j <= 37 * s % 150; j++)
            for (int64_t c = 0; c < pool.cols; c++)
                set(pool, table[s][j / KG_KV_BLOCK] * KG_KV_BLOCK + j % KG_KV_BLOCK, c,
                    uniform());
}

/* Row i is of sequence i or, backwards, of the i-th last of n; some have none. */
static struct answer decode(const struct problem *p, const int32_t *table, int n,
                            bool backwards)
{
    struct problem part = *p;
    struct answer out = answer_init(p, n);
    struct kg_attn a;

    part.n_seqs = n;
    part.q = matrix(p->dtype, n, p->q.cols);
    part.seqs = buffer_of(n, sizeof *part.seqs);
    for (int i = 0; i < n; i++) {
        const int s = backwards ? n - 1 - i : i;

        part.seqs[i] = (struct kg_attn_seq){i, s % 5 != 3, 37 * s % 150, PAGES * s};
        memcpy((char *)part.q.data + (size_t)i * row_bytes(p->q),
               (char *)p->q.data + (size_t)s * row_bytes(p->q), row_bytes(p->q));
    }
    a = attn_of(&part);
    a.blocks = kg_ivec(table, BATCH * PAGES);
    attend(&out, &a);
    buffer_free(part.q.data);
    buffer_free(part.seqs);
    return out;
}

static void a_row_has_its_bits_in_every_batch(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 7, 33, 64};
    struct problem p = {KG_BF16, .heads = 6, .kv_heads = 2, .hd = 64};
    int32_t(*table)[PAGES] = buffer_of(BATCH, sizeof *table);
    struct answer all, some;

    random_state = 5;
    for (int i = 0; i < BATCH * PAGES; i++) /* 37 and the number of pages are coprime */
        table[i / PAGES][i % PAGES] = i * 37 % (BATCH * PAGES);
    p.q = random_matrix(p.dtype, BATCH, 6 * 64, 2.0);
    p.k = matrix(p.dtype, POOL, 2 * 64);
    p.v = matrix(p.dtype, POOL, 2 * 64);
    fill_pool(p.k, table);
    fill_pool(p.v, table);
    all = decode(&p, table[0], BATCH, false);
    for (int64_t i = 0; i < BATCH * p.heads; i++)
        assert_false(isnan(all.lse[i]) || isnan(get(all.o, i / p.heads, i % p.heads)));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        some = decode(&p, table[0], sizes[i], true);
        for (int r = 0; r < sizes[i]; r++) {
            assert_rows_equal(&all, r, &some, sizes[i] - 1 - r, 1);
            assert_lse_equal(&all, r, &some, sizes[i] - 1 - r, 1, p.heads);
        }
        answer_release(&some);
    }
    answer_release(&all);
    buffer_free(table);
    buffer_free(p.q.data);
    buffer_free(p.k.data);
    buffer_free(p.v.data);
}

static void neighbours_in_the_batch_change_no_bit(void **state)
{
    (void)state;
    struct problem p = shapes[4];
    p.n_seqs = 5;
    memcpy(p.lengths, (int[MAX_SEQS]){20, 90, 1, 64, 77}, sizeof p.lengths);
    problem_init(&p);
    struct answer full = whole(&p);
    for (int s = 0; s < p.n_seqs; s++) {
        struct kg_attn a = attn_of(&p);
        struct answer out = answer_init(&p, p.n);
        a.seqs = p.seqs + s;
        a.n_seqs = 1;
        attend(&out, &a);
        assert_rows_equal(&full, p.seqs[s].row, &out, p.seqs[s].row, p.lengths[s]);
        answer_release(&out);
    }
    answer_release(&full);
    problem_release(&p);
}

/* Later keys and values become NaN: earlier rows must not notice. */
static void masked_keys_never_contribute(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = problem_of(i, 100);
        struct answer full = whole(&p);
        for (int64_t r = 71; r < 100; r++)
            for (int64_t c = 0; c < p.k.cols; c++) {
                set(p.k, r, c, NAN);
                set(p.v, r, c, NAN);
            }
        struct answer out = whole(&p);
        assert_rows_equal(&full, 0, &out, 0, 71);
        assert_true(isnan(out.lse[71 * p.heads]));
        answer_release(&out);
        answer_release(&full);
        problem_release(&p);
    }
}

/* Every `step`th row of p a sequence of its own, at the last position of its keys. */
static struct kg_attn_seq *last_queries(int32_t *n, const struct problem *p, int step)
{
    struct kg_attn_seq *seqs = buffer_of(p->n, sizeof *seqs);
    *n = 0;
    for (int s = 0; s < p->n_seqs; s++)
        for (int i = 0; i < p->lengths[s]; i += step)
            seqs[(*n)++] = (struct kg_attn_seq){.row = p->seqs[s].row + i,
                                                .n_rows = 1,
                                                .pos = p->lengths[s] - 1,
                                                .keys = p->seqs[s].keys};
    return seqs;
}

/* Both ways every query is the last one of its sequence, bit for bit. */
static void both_ways_each_query_sees_all(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = shapes[i];
        if (p.window > 0)
            continue;
        problem_init(&p);
        struct kg_attn a = attn_of(&p);
        struct answer all = answer_init(&p, p.n), one = answer_init(&p, p.n);
        a.both_ways = true;
        attend(&all, &a);
        a.both_ways = false;
        a.seqs = last_queries(&a.n_seqs, &p, emulated() ? 37 : 1);
        attend(&one, &a);
        for (int s = 0; s < a.n_seqs; s++) {
            assert_rows_equal(&all, a.seqs[s].row, &one, a.seqs[s].row, 1);
            assert_lse_equal(&all, a.seqs[s].row, &one, a.seqs[s].row, 1, p.heads);
        }
        buffer_free((void *)(uintptr_t)a.seqs);
        answer_release(&all);
        answer_release(&one);
        problem_release(&p);
    }
}

/* Keys and values become NaN: rows whose window has passed them must not notice. */
static void keys_before_a_window_never_contribute(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        const int last = 37, first = last + shapes[i].window;
        if (shapes[i].window == 0)
            continue;
        struct problem p = problem_of(i, first + 70);
        struct answer full = whole(&p);
        for (int64_t r = 0; r <= last; r++)
            for (int64_t c = 0; c < p.k.cols; c++) {
                set(p.k, r, c, NAN);
                set(p.v, r, c, NAN);
            }
        struct answer out = whole(&p);
        assert_true(isnan(out.lse[(first - 1) * p.heads]));
        assert_rows_equal(&full, first, &out, first, 70);
        assert_lse_equal(&full, first, &out, first, 70, p.heads);
        answer_release(&out);
        answer_release(&full);
        problem_release(&p);
    }
}

static void threads_change_no_bit(void **state)
{
    (void)state;
    int before = omp_get_max_threads();
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = problem_of(i, 0);
        omp_set_num_threads(1);
        struct answer full = whole(&p);
        for (int threads = 2; threads <= 4; threads += 2) {
            omp_set_num_threads(threads);
            struct answer out = whole(&p);
            assert_rows_equal(&full, 0, &out, 0, p.n);
            assert_lse_equal(&full, 0, &out, 0, p.n, p.heads);
            answer_release(&out);
        }
        answer_release(&full);
        problem_release(&p);
    }
    omp_set_num_threads(before);
}

static void an_enclosing_region_changes_no_bit(void **state)
{
    (void)state;
    struct problem p = problem_of(4, 0);
    struct kg_attn a = attn_of(&p);
    struct answer full = whole(&p);
    struct answer out[2] = {answer_init(&p, p.n), answer_init(&p, p.n)};
    kg_status status[2];
#pragma omp parallel for num_threads(2) if (!backend()->one_caller)
    for (int i = 0; i < 2; i++) {
        struct kg_err err;
        status[i] = kg_op_attention(backend(), out[i].o, lse_of(&out[i], &a), &a, &err);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(status[i], KG_OK);
        assert_rows_equal(&full, 0, &out[i], 0, p.n);
        answer_release(&out[i]);
    }
    answer_release(&full);
    problem_release(&p);
}

/* The same bits, or, where weights are rounded to bf16, those off by a 256th of values
 * that are 1 at most, and each output once more by a 256th. */
static void compare_definitions(const struct problem *p, const struct answer *a,
                                const struct answer *b)
{
    if (!other_definition(p)) {
        assert_rows_equal(a, 0, b, 0, p->n);
        assert_lse_equal(a, 0, b, 0, p->n, p->heads);
        return;
    }
    for (int64_t r = 0; r < p->n; r++)
        for (int64_t c = 0; c < p->q.cols; c++) {
            const double x = get(a->o, r, c), y = get(b->o, r, c);
            const int64_t h = r * p->heads + c / p->hd;

            assert_true(fabs(x - y) < 0x1p-8 + 0x1p-7 * fabs(y));
            assert_true(fabs((double)(a->lse[h] - b->lse[h])) < 1e-5);
        }
}

/* The i-th instruction set to compare with: each of the CPU's but the backend's own, one
 * with kernels. */
static const struct kg_backend *other_set(int i)
{
    return kg_backend_cpu_variant(!by_kernels() ? i + 1 : i == 0 ? 0 : 99);
}

/* Attention is made of lanes alone, so even bf16 agrees between instruction sets. */
static void instruction_sets_agree_in_every_bit(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = problem_of(i, 0);
        struct kg_attn a = attn_of(&p);
        struct answer best = whole(&p);
        for (int c = 0; other_set(c); c++) {
            struct answer out = answer_init(&p, p.n);
            attend_on(other_set(c), &out, &a);
            compare_definitions(&p, &best, &out);
            answer_release(&out);
        }
        answer_release(&best);
        problem_release(&p);
    }
}

/* ---- backward ---- */
struct gradient {
    struct kg_mat dq;
    struct kg_mat dk;
    struct kg_mat dv;
};

static struct gradient gradient_init(const struct problem *p)
{
    struct gradient g = {random_matrix(KG_F32, p->n, p->q.cols, 1.0),
                         random_matrix(KG_F32, p->n, p->k.cols, 1.0),
                         random_matrix(KG_F32, p->n, p->k.cols, 1.0)};
    return g; /* not zero: the operation overwrites */
}

static void gradient_release(struct gradient *g)
{
    buffer_free(g->dq.data);
    buffer_free(g->dk.data);
    buffer_free(g->dv.data);
}

static struct gradient backward_on(const struct kg_backend *be, const struct problem *p,
                                   const struct answer *y, struct kg_mat dout)
{
    struct gradient g = gradient_init(p);
    struct kg_attn a = attn_of(p);
    struct kg_err err;
    kg_status status = kg_op_attention_bwd(be, g.dq, g.dk, g.dv, dout, y->o,
                                           lse_of(y, &a), &a, &err);
    if (status != KG_OK)
        fail_msg("%s", err.message);
    return g;
}
static struct gradient backward(const struct problem *p, const struct answer *y,
                                struct kg_mat dout)
{
    return backward_on(backend(), p, y, dout);
}

/* Of the softcap at a score. */
static double slope_of(const struct problem *p, int s, int i, int j, int h)
{
    int64_t row = p->seqs[s].row;
    int64_t kv = (int64_t)(h / (p->heads / p->kv_heads)) * p->hd;
    double score = 0.0, slope;
    for (int d = 0; p->softcap > 0 && d < p->hd; d++)
        score += get(p->q, row + i, (int64_t)h * p->hd + d) * get(p->k, row + j, kv + d);
    capped(p, score / sqrt(p->hd), &slope);
    return slope;
}

/* One query row's share of the gradients, in double; w: 2 for each key. */
static void plain_backward_row(double *dq, double *dk, double *dv,
                               const struct problem *p, int s, int i, int h,
                               struct kg_mat dout, double *w)
{
    int64_t row = p->seqs[s].row;
    int64_t kv = (int64_t)(h / (p->heads / p->kv_heads)) * p->hd;
    int64_t qc = (int64_t)h * p->hd;
    double scale = 1.0 / sqrt(p->hd);
    double mean = 0.0, *dp = w + p->n;
    plain_weights(w, p, s, i, h);
    for (int j = 0; j <= i; j++) {
        dp[j] = 0.0;
        for (int d = 0; d < p->hd; d++)
            dp[j] += get(dout, row + i, qc + d) * get(p->v, row + j, kv + d);
        mean += w[j] * dp[j];
    }
    for (int j = 0; j <= i; j++) {
        double ds = w[j] * (dp[j] - mean) * scale * slope_of(p, s, i, j, h);
        for (int d = 0; d < p->hd; d++) {
            dq[(row + i) * p->q.cols + qc + d] += ds * get(p->k, row + j, kv + d);
            dk[(row + j) * p->k.cols + kv + d] += ds * get(p->q, row + i, qc + d);
            dv[(row + j) * p->k.cols + kv + d] += w[j] * get(dout, row + i, qc + d);
        }
    }
}

static void assert_close(struct kg_mat got, const double *want, double tolerance)
{
    for (int64_t i = 0; i < got.rows * got.cols; i++)
        if (!(fabs((double)((float *)got.data)[i] - want[i]) < tolerance))
            fail_msg("element %lld: %g, expected %g", (long long)i,
                     (double)((float *)got.data)[i], want[i]);
}

static void check_backward(const struct problem *p, enum kg_dtype dout_type,
                           double tolerance)
{
    struct answer y = whole(p);
    struct kg_mat dout = random_matrix(dout_type, p->n, p->q.cols, 1.0);
    struct gradient g = backward(p, &y, dout);
    double *dq = block_of(p->n * p->q.cols, sizeof *dq);
    double *dk = block_of(p->n * p->k.cols, sizeof *dk);
    double *dv = block_of(p->n * p->k.cols, sizeof *dv);
    double *w = block_of(2 * p->n, sizeof *w);
    for (int s = 0; s < p->n_seqs; s++)
        for (int i = 0; i < p->lengths[s]; i++)
            for (int h = 0; h < p->heads; h++)
                plain_backward_row(dq, dk, dv, p, s, i, h, dout, w);
    assert_close(g.dq, dq, tolerance);
    assert_close(g.dk, dk, tolerance);
    assert_close(g.dv, dv, tolerance);
    kg_mem_free(dq);
    kg_mem_free(dk);
    kg_mem_free(dv);
    kg_mem_free(w);
    buffer_free(dout.data);
    gradient_release(&g);
    answer_release(&y);
}

static void backward_matches_plain_version(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = shapes[i];
        if (by_kernels() && !other_definition(&p))
            continue; /* it has the CPU's bits */
        problem_init(&p);
        check_backward(&p, KG_F32, p.dtype == KG_F32 ? 2e-5 : 2e-2);
        if (p.dtype == KG_BF16)
            check_backward(&p, KG_BF16, 2e-2);
        problem_release(&p);
    }
}

/* sum of o * dout in double arithmetic on fp32 outputs */
static double objective(const struct problem *p, struct kg_mat dout)
{
    struct answer y = whole(p);
    double sum = 0.0;
    for (int64_t r = 0; r < p->n; r++)
        for (int64_t c = 0; c < p->q.cols; c++)
            sum += get(y.o, r, c) * get(dout, r, c);
    answer_release(&y);
    return sum;
}

static void check_difference(const struct problem *p, struct kg_mat x, struct kg_mat dx,
                             struct kg_mat dout)
{
    for (int trial = 0; trial < 20; trial++) {
        int64_t r = (int64_t)((uniform() + 1.0) * 0.5 * (double)x.rows);
        int64_t c = (int64_t)((uniform() + 1.0) * 0.5 * (double)x.cols);
        double old = get(x, r, c);
        set(x, r, c, old + 1e-2);
        double up = objective(p, dout);
        set(x, r, c, old - 1e-2);
        double down = objective(p, dout);
        set(x, r, c, old);
        assert_true(fabs((up - down) / 2e-2 - get(dx, r, c)) < 2e-3);
    }
}

static void backward_matches_finite_differences(void **state)
{
    (void)state;
    struct problem p = {KG_F32,  .heads = 4,  .kv_heads = 2,
                        .hd = 8, .n_seqs = 2, .lengths = {70, 9}};
    problem_init(&p);
    struct answer y = whole(&p);
    struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
    struct gradient g = backward(&p, &y, dout);
    check_difference(&p, p.q, g.dq, dout);
    check_difference(&p, p.k, g.dk, dout);
    check_difference(&p, p.v, g.dv, dout);
    buffer_free(dout.data);
    gradient_release(&g);
    answer_release(&y);
    problem_release(&p);
}

static void assert_gradients_equal(const struct gradient *a, const struct gradient *b)
{
    assert_memory_equal(a->dq.data, b->dq.data, (size_t)a->dq.rows * row_bytes(a->dq));
    assert_memory_equal(a->dk.data, b->dk.data, (size_t)a->dk.rows * row_bytes(a->dk));
    assert_memory_equal(a->dv.data, b->dv.data, (size_t)a->dv.rows * row_bytes(a->dv));
}

/* |a - b| / |b| of all elements. */
static double distance(struct kg_mat a, struct kg_mat b)
{
    double off = 0.0, size = 0.0;

    for (int64_t i = 0; i < a.rows * a.cols; i++) {
        const double x = get(a, i / a.cols, i % a.cols);
        const double y = get(b, i / a.cols, i % a.cols);

        off += (x - y) * (x - y);
        size += y * y;
    }
    return sqrt(off / size);
}

/* Weights and their gradients are off by a 256th at most where they are rounded. */
static void compare_gradients(const struct problem *p, const struct gradient *a,
                              const struct gradient *b)
{
    if (!other_definition(p)) {
        assert_gradients_equal(a, b);
        return;
    }
    assert_true(distance(a->dq, b->dq) < 0x1p-8);
    assert_true(distance(a->dk, b->dk) < 0x1p-8);
    assert_true(distance(a->dv, b->dv) < 0x1p-8);
}

/* Attention is made of the same chains everywhere, forward and backward. */
static void gradients_agree_and_repeat_in_every_bit(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = problem_of(i, 0);
        struct answer y = whole(&p);
        struct kg_mat dout = random_matrix(p.dtype, p.n, p.q.cols, 1.0);
        struct gradient g = backward(&p, &y, dout);
        for (int c = 0; other_set(c); c++) {
            struct gradient other = backward_on(other_set(c), &p, &y, dout);
            compare_gradients(&p, &g, &other);
            gradient_release(&other);
        }
        if (other_definition(&p)) {
            struct gradient again = backward(&p, &y, dout);
            assert_gradients_equal(&g, &again);
            gradient_release(&again);
        }
        gradient_release(&g);
        buffer_free(dout.data);
        answer_release(&y);
        problem_release(&p);
    }
}

/* One thread walks pairs once, several may walk them twice: the bits must agree. */
static void threads_change_no_bit_of_gradients(void **state)
{
    (void)state;
    int before = omp_get_max_threads();
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE) {
        struct problem p = problem_of(i, 0);
        struct answer y = whole(&p);
        struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
        omp_set_num_threads(1);
        struct gradient one = backward(&p, &y, dout);
        for (int threads = 2; threads <= 4; threads += 2) {
            omp_set_num_threads(threads);
            struct gradient many = backward(&p, &y, dout);
            assert_gradients_equal(&one, &many);
            gradient_release(&many);
        }
        gradient_release(&one);
        buffer_free(dout.data);
        answer_release(&y);
        problem_release(&p);
    }
    omp_set_num_threads(before);
}

/* Sequence s continued at `step` quarters of its length: its last row at least. */
static void continue_at(struct problem *p, int s, int step)
{
    int32_t pos = p->lengths[s] * step / 4;

    p->seqs[s].row += pos;
    p->seqs[s].n_rows -= pos;
    p->seqs[s].pos = pos;
}

/* A sequence without its first queries has the gradients that it has where nothing is
 * asked of these. A matrix instruction adds other rows together. */
static void continuations_have_the_gradients_of_the_whole(void **state)
{
    (void)state;
    for (int i = FIRST_SHAPE; i < N_SHAPES; i += NEXT_SHAPE)
        for (int step = 1; step < 4; step++) {
            struct problem p = problem_of(i, 0);
            struct answer y = whole(&p);
            struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
            for (int s = 0; s < p.n_seqs; s++)
                for (int r = 0; r < p.lengths[s] * step / 4; r++)
                    memset((float *)dout.data + (p.seqs[s].row + r) * dout.stride, 0,
                           row_bytes(dout));
            struct gradient all = backward(&p, &y, dout);
            for (int s = 0; s < p.n_seqs; s++)
                continue_at(&p, s, step);
            struct gradient rest = backward(&p, &y, dout);
            compare_gradients(&p, &rest, &all);
            gradient_release(&rest);
            gradient_release(&all);
            buffer_free(dout.data);
            answer_release(&y);
            problem_release(&p);
        }
}

static void keys_of_two_sequences_are_refused(void **state)
{
    (void)state;
    struct problem p = problem_of(1, 0);
    struct answer y = whole(&p);
    struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
    struct gradient g = gradient_init(&p);
    struct kg_attn a = attn_of(&p);
    struct kg_err err;

    p.seqs[2].keys = 64;
    if (backend()->host_memory) { /* what lies elsewhere is not read before it is used */
        assert_int_equal(kg_op_attention_bwd(backend(), g.dq, g.dk, g.dv, dout, y.o,
                                             lse_of(&y, &a), &a, &err),
                         KG_ESHAPE);
        assert_non_null(strstr(err.message, "sequence 2 begin at row 64, expected 65"));
    }
    buffer_free(dout.data);
    gradient_release(&g);
    answer_release(&y);
    problem_release(&p);
}

static void rows_of_no_sequence_get_zero(void **state)
{
    (void)state;
    struct problem p = problem_of(1, 0);
    struct answer y = whole(&p);
    struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
    p.n_seqs = 2; /* the third sequence's 65 rows are nobody's now */
    struct gradient g = backward(&p, &y, dout);
    for (int64_t r = 65; r < p.n; r++) {
        for (int64_t c = 0; c < p.q.cols; c++)
            assert_true(get(g.dq, r, c) == 0.0);
        for (int64_t c = 0; c < p.k.cols; c++)
            assert_true(get(g.dk, r, c) == 0.0 && get(g.dv, r, c) == 0.0);
    }
    buffer_free(dout.data);
    gradient_release(&g);
    answer_release(&y);
    problem_release(&p);
}

/* Every allocation in turn fails: a status, and nothing is kept. */
static void failing_allocations_are_a_status(void **state)
{
    (void)state;
    struct problem p = problem_of(4, 0);
    struct answer y = whole(&p);
    struct kg_mat dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
    struct gradient g = gradient_init(&p);
    struct kg_attn a = attn_of(&p);
    uint64_t held = kg_mem_current_bytes();
    for (uint64_t n = 1; n <= 2; n++) {
        struct kg_err err;
        kg_mem_fail_at(n);
        assert_int_equal(kg_op_attention(backend(), y.o, lse_of(&y, &a), &a, &err),
                         KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), held);
        kg_mem_fail_at(n);
        assert_int_equal(kg_op_attention_bwd(backend(), g.dq, g.dk, g.dv, dout, y.o,
                                             lse_of(&y, &a), &a, &err),
                         KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), held);
    }
    kg_mem_fail_at(0);
    buffer_free(dout.data);
    gradient_release(&g);
    answer_release(&y);
    problem_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_plain_version),
        cmocka_unit_test(chunks_have_the_bits_of_the_whole),
        cmocka_unit_test(decoding_has_the_bits_of_the_whole),
        cmocka_unit_test(paged_keys_have_the_bits_of_contiguous_keys),
        cmocka_unit_test(a_row_has_its_bits_in_every_batch),
        cmocka_unit_test(neighbours_in_the_batch_change_no_bit),
        cmocka_unit_test(masked_keys_never_contribute),
        cmocka_unit_test(keys_before_a_window_never_contribute),
        cmocka_unit_test(both_ways_each_query_sees_all),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(an_enclosing_region_changes_no_bit),
        cmocka_unit_test(instruction_sets_agree_in_every_bit),
        cmocka_unit_test(backward_matches_plain_version),
        cmocka_unit_test(backward_matches_finite_differences),
        cmocka_unit_test(gradients_agree_and_repeat_in_every_bit),
        cmocka_unit_test(threads_change_no_bit_of_gradients),
        cmocka_unit_test(continuations_have_the_gradients_of_the_whole),
        cmocka_unit_test(keys_of_two_sequences_are_refused),
        cmocka_unit_test(rows_of_no_sequence_get_zero),
        cmocka_unit_test(failing_allocations_are_a_status),
    };
    /* kernels by values: an order of threads has no say in them */
    const struct CMUnitTest once[] = {
        cmocka_unit_test(matches_plain_version),
        cmocka_unit_test(chunks_have_the_bits_of_the_whole),
        cmocka_unit_test(decoding_has_the_bits_of_the_whole),
        cmocka_unit_test(paged_keys_have_the_bits_of_contiguous_keys),
        cmocka_unit_test(neighbours_in_the_batch_change_no_bit),
        cmocka_unit_test(masked_keys_never_contribute),
        cmocka_unit_test(keys_before_a_window_never_contribute),
        cmocka_unit_test(both_ways_each_query_sees_all),
        cmocka_unit_test(backward_matches_plain_version),
        cmocka_unit_test(continuations_have_the_gradients_of_the_whole),
        cmocka_unit_test(rows_of_no_sequence_get_zero),
    };
    /* every kernel in every shape, and more sequences than a warp has lanes */
    const struct CMUnitTest reordered[] = {
        cmocka_unit_test(a_row_has_its_bits_in_every_batch),
        cmocka_unit_test(instruction_sets_agree_in_every_bit),
        cmocka_unit_test(gradients_agree_and_repeat_in_every_bit),
    };
    const int failed = RUN_FAR_TOO(tests, NULL, NULL);

    return failed + RUN_EMULATED_ONCE(once, NULL, NULL) +
           RUN_EMULATED(reordered, NULL, NULL);
}
