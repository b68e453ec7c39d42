/* Attention forward: against a plain double reference, and bit for bit against the same
 * work divided in other ways (chunks, blocks, neighbours, batches, threads).
 */
#include "tensor/attention_testing.h"
#include "tensor/selfcheck.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

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

/* ---- the same bits however the work is divided ---- */
/* Computes rows [first, first+n) of sequence 0 alone. */
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

/* One row at a time, and one chunk, of a sequence that is longer than what is summed at
 * once. */
static void decoding_has_the_bits_of_the_whole(void **state)
{
    (void)state;
    static const int from[] = {0,   63,  64,   127,  254,  255,  256,
                               257, 512, 1000, 1023, 1024, 1025, 1089};
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

/* ---- rows alone ---- */
/* Computes the rows at n positions of sequence 0, each as its own sequence. */
static struct answer alone(const struct problem *p, const int *pos, int n)
{
    struct kg_attn a = attn_of(p);
    struct answer out = answer_init(p, n);
    struct kg_attn_seq *seqs = buffer_of(n, sizeof *seqs);
    struct kg_mat q = matrix(p->dtype, n, p->q.cols);

    for (int i = 0; i < n; i++) {
        seqs[i] = (struct kg_attn_seq){.row = i, .n_rows = 1, .pos = pos[i]};
        memcpy((char *)q.data + (size_t)i * row_bytes(q),
               (char *)p->q.data + (size_t)pos[i] * row_bytes(q), row_bytes(q));
    }
    a.q = q;
    a.seqs = seqs;
    a.n_seqs = n;
    attend(&out, &a);
    buffer_free(q.data);
    buffer_free(seqs);
    return out;
}

/* Computes rows pos - 1 and pos of sequence 0, as of a prompt. */
static struct answer beside_another(const struct problem *p, int pos)
{
    const struct kg_attn_seq seq = {.row = 0, .n_rows = 2, .pos = pos - 1};
    struct kg_attn a = attn_of(p);
    struct answer out = answer_init(p, 2);

    a.q = kg_mat_rows(p->q, pos - 1, 2);
    a.seqs = buffer_with(&seq, 1, sizeof seq);
    attend(&out, &a);
    buffer_free((void *)(uintptr_t)a.seqs);
    return out;
}

/* Asserts equal bits; any NaN equals any other. */
static void assert_row_equal(const struct problem *p, const struct answer *a, int64_t ra,
                             const struct answer *b, int64_t rb, const char *which)
{
    for (int64_t c = 0; c < p->q.cols; c++) {
        const double x = get(a->o, ra, c), y = get(b->o, rb, c);

        if (isnan(x) ? !isnan(y) : x != y)
            fail_msg("%s, column %d: expected %a, found %a", which, (int)c, x, y);
    }
    for (int h = 0; h < p->heads; h++) {
        const float x = a->lse[ra * p->heads + h], y = b->lse[rb * p->heads + h];

        if (isnan(x) ? !isnan(y) : memcmp(&x, &y, sizeof x) != 0)
            fail_msg("%s, head %d: expected lse %a, found %a", which, h, (double)x,
                     (double)y);
    }
}

/* Computes n of the positions at a time, with every bound on the number of keys. */
static void check_alone(struct problem *p, const struct answer *expected, const int *pos,
                        int n_pos, int n)
{
    static const int most[] = {0, 1, 2};
    char which[80];

    for (size_t m = 0; m < sizeof most / sizeof *most; m++)
        for (int first = 0; first + n <= n_pos; first += n) {
            p->most_keys = most[m] * 4160;
            struct answer out = alone(p, pos + first, n);
            for (int i = 0; i < n; i++) {
                snprintf(which, sizeof which, "position %d, %d rows, at most %d keys",
                         pos[first + i], n, p->most_keys);
                assert_row_equal(p, &expected[first + i], 1, &out, i, which);
            }
            answer_release(&out);
        }
}

/* The parts of a long row are shared by several warps and, if rows are few, by several
 * blocks of threads. */
static void long_rows_have_the_bits_of_prompts(void **state)
{
    static const int pos[] = {4159, 255, 256, 4095, 1023, 4096};
    enum { N = sizeof pos / sizeof *pos };
    static const struct problem of[] = {
        {KG_BF16, .heads = 7, .kv_heads = 1, .hd = 64},
        {KG_BF16, .heads = 2, .kv_heads = 2, .hd = 128, .window = 700},
        {KG_BF16, .heads = 20, .kv_heads = 1, .hd = 64, .softcap = 0.8f},
    };

    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct problem p = of[i];
        struct answer expected[N];
        p.n_seqs = 1;
        p.lengths[0] = 4160;
        problem_init(&p);
        for (int k = 0; k < N; k++)
            expected[k] = beside_another(&p, pos[k]);
        for (int n = 1; n <= N; n += n < 3 ? 1 : N - 3)
            check_alone(&p, expected, pos, N, n);
        for (int k = 0; k < N; k++)
            answer_release(&expected[k]);
        problem_release(&p);
    }
}

/* An infinite value in the row's last block of keys, or in one before. */
static void infinite_values_are_alike_in_every_row(void **state)
{
    static const int pos[] = {300}, at[] = {299, 260, 100};

    (void)state;
    for (int windowed = 0; windowed < 2; windowed++)
        for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
            struct problem p = {KG_BF16,         .heads = 3,
                                .kv_heads = 1,   .hd = 64,
                                .n_seqs = 1,     .window = windowed ? 250 : 0,
                                .lengths = {310}};
            problem_init(&p);
            set(p.v, at[i], 5, INFINITY);
            struct answer two = beside_another(&p, 300), one = alone(&p, pos, 1);
            assert_row_equal(&p, &two, 1, &one, 0, "a row with an infinite value");
            assert_false(isfinite(get(one.o, 0, 5)));
            answer_release(&two);
            answer_release(&one);
            problem_release(&p);
        }
}

/* A row is split, at the cost of a launch, only if it may have many keys and rows are
 * few. */
static void a_row_is_split_where_it_may_have_many_keys(void **state)
{
    static const struct {
        int most_keys, rows, launches;
    } of[] = {{0, 1, 1}, {1024, 1, 1}, {1025, 1, 2}, {4160, 1, 2}, {4160, 4, 1}};
    static const int pos[] = {3, 5, 4, 0};
    struct problem p = {KG_BF16,  .heads = 2,  .kv_heads = 1,
                        .hd = 64, .n_seqs = 1, .lengths = {6}};

    (void)state;
    if (!emulated())
        skip();
    problem_init(&p);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const int64_t before = kg_emu_lose(-1);
        p.most_keys = of[i].most_keys;
        struct answer out = alone(&p, pos, of[i].rows);
        assert_int_equal(kg_emu_lose(-1) - before, of[i].launches);
        answer_release(&out);
    }
    problem_release(&p);
}

/* If the memory for the sums of a split is refused once, it is not requested again, even
 * if there is some. */
static void a_row_is_not_split_without_memory(void **state)
{
    static const struct {
        int most_keys, memory, launches;
    } of[] = {{1 << 22, 4 << 20, 1}, {1 << 22, 1 << 30, 1}, {4160, 4 << 20, 2}};
    static const int pos[] = {1300};
    struct problem p = {KG_BF16,  .heads = 2,  .kv_heads = 1,
                        .hd = 64, .n_seqs = 1, .lengths = {1301}};
    char total[24];

    (void)state;
    if (!emulated())
        skip();
    problem_init(&p);
    struct answer expected = alone(&p, pos, 1);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const int64_t before = kg_emu_lose(-1);
        const uint64_t held = kg_pages_memory().held;

        snprintf(total, sizeof total, "%llu",
                 (unsigned long long)held + (unsigned)of[i].memory);
        setenv("KEDGE_TEST_MEMORY", total, 1);
        p.most_keys = of[i].most_keys;
        struct answer out = alone(&p, pos, 1);
        unsetenv("KEDGE_TEST_MEMORY");
        assert_int_equal(kg_emu_lose(-1) - before, of[i].launches);
        assert_row_equal(&p, &expected, 0, &out, 0, "a row that may be split");
        answer_release(&out);
    }
    answer_release(&expected);
    problem_release(&p);
}

/* Keys of every sequence in shuffled blocks of a pool whose other rows are NaN. */
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

/* Fills the pool: sequence s has 37 s % 150 + 1 rows, in its own blocks; all other rows
 * are NaN. */
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

/* Row i is of sequence i or, backwards, of sequence n - 1 - i; some sequences have no
 * row. */
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
    for (int i = 0; i < BATCH * PAGES; i++) /* 37 and the number of blocks are coprime */
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

/* Later keys and values become NaN: earlier rows must not change. */
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

/* Makes every `step`th row of p a sequence at the last position of its keys. */
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

/* With both_ways, every query has the bits of the last query of its sequence. */
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

/* Keys and values become NaN: rows whose window has passed them must not change. */
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
        check_chunk(&p, &full, first, 1);
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

/* Equal bits; or, if weights are rounded to bf16, they are off by 1/256 of values that
 * are 1 at most, and each of the two outputs by another 1/256. */
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

/* Attention adds within SIMD lanes, so even bf16 agrees between instruction sets. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_plain_version),
        cmocka_unit_test(chunks_have_the_bits_of_the_whole),
        cmocka_unit_test(decoding_has_the_bits_of_the_whole),
        cmocka_unit_test(long_rows_have_the_bits_of_prompts),
        cmocka_unit_test(infinite_values_are_alike_in_every_row),
        cmocka_unit_test(a_row_is_split_where_it_may_have_many_keys),
        cmocka_unit_test(a_row_is_not_split_without_memory),
        cmocka_unit_test(paged_keys_have_the_bits_of_contiguous_keys),
        cmocka_unit_test(a_row_has_its_bits_in_every_batch),
        cmocka_unit_test(neighbours_in_the_batch_change_no_bit),
        cmocka_unit_test(masked_keys_never_contribute),
        cmocka_unit_test(keys_before_a_window_never_contribute),
        cmocka_unit_test(both_ways_each_query_sees_all),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(an_enclosing_region_changes_no_bit),
        cmocka_unit_test(instruction_sets_agree_in_every_bit),
    };
    /* tests of values: the order of a kernel's threads does not matter */
    const struct CMUnitTest once[] = {
        cmocka_unit_test(matches_plain_version),
        cmocka_unit_test(chunks_have_the_bits_of_the_whole),
        cmocka_unit_test(decoding_has_the_bits_of_the_whole),
        cmocka_unit_test(long_rows_have_the_bits_of_prompts),
        cmocka_unit_test(infinite_values_are_alike_in_every_row),
        cmocka_unit_test(a_row_is_split_where_it_may_have_many_keys),
        cmocka_unit_test(a_row_is_not_split_without_memory),
        cmocka_unit_test(paged_keys_have_the_bits_of_contiguous_keys),
        cmocka_unit_test(neighbours_in_the_batch_change_no_bit),
        cmocka_unit_test(masked_keys_never_contribute),
        cmocka_unit_test(keys_before_a_window_never_contribute),
        cmocka_unit_test(both_ways_each_query_sees_all),
    };
    /* every kernel in every shape, and more sequences than a warp has lanes */
    const struct CMUnitTest reordered[] = {
        cmocka_unit_test(a_row_has_its_bits_in_every_batch),
        cmocka_unit_test(instruction_sets_agree_in_every_bit),
    };
    const int failed = RUN_FAR_TOO(tests, NULL, NULL);

    return failed + RUN_EMULATED_ONCE(once, NULL, NULL) +
           RUN_EMULATED(reordered, NULL, NULL);
}
