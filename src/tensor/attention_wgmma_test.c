/* Attention of many rows by wgmma has the bits that the same rows have in sequences so
 * short that other kernels compute them: of a few rows, or of one as in decoding.
 */
#include "tensor/attention_testing.h"

static int64_t products(void) { return emulated() ? kg_emu_products() : 0; }

/* Divides the sequences of a into sequences of at most `most` rows. */
static struct kg_attn_seq *cut(int32_t *n, const struct kg_attn *a, int most)
{
    struct kg_attn_seq *seqs = buffer_of(a->q.rows, sizeof *seqs);

    *n = 0;
    for (int s = 0; s < a->n_seqs; s++) {
        const struct kg_attn_seq *of = &a->seqs[s];

        for (int i = 0; i < of->n_rows; i += most)
            seqs[(*n)++] = (struct kg_attn_seq){
                .row = of->row + i,
                .n_rows = of->n_rows - i < most ? of->n_rows - i : most,
                .pos = of->pos + i,
                .keys = of->keys,
            };
    }
    return seqs;
}

/* The output of rows that are in a sequence; NaN for other rows. */
static struct answer attended(const struct problem *p, const struct kg_attn *a, bool four)
{
    struct answer out = answer_init(p, a->q.rows);
    const int64_t before = products();

    for (int64_t i = 0; i < out.o.rows * out.o.cols; i++)
        set(out.o, i / out.o.cols, i % out.o.cols, NAN);
    for (int64_t i = 0; i < a->q.rows * p->heads; i++)
        out.lse[i] = NAN;
    attend(&out, a);
    if (emulated() && (products() > before) != four)
        fail_msg("%d rows of %d heads of %d in %d sequences: expected %s", (int)a->q.rows,
                 a->n_heads, a->head_dim, a->n_seqs,
                 four ? "the instruction of four warps" : "that of one warp");
    return out;
}

static void agrees(const struct problem *p, const struct kg_attn *a,
                   const struct answer *four, int most)
{
    struct kg_attn parts = *a;
    struct answer other;

    parts.seqs = cut(&parts.n_seqs, a, most);
    other = attended(p, &parts, false);
    assert_rows_equal(four, 0, &other, 0, a->q.rows);
    assert_lse_equal(four, 0, &other, 0, a->q.rows, p->heads);
    buffer_free((void *)(uintptr_t)parts.seqs);
    answer_release(&other);
}

/* Compares with sequences of half a pair of tiles of a KV head at most and, if rows are
 * few, with single rows. */
static void both_agree(const struct problem *p, const struct kg_attn *a)
{
    struct answer four = attended(p, a, true);

    agrees(p, a, &four, (127 * p->kv_heads / p->heads + 1) / 2);
    if (a->q.rows < 160 && p->heads < 5)
        agrees(p, a, &four, 1);
    answer_release(&four);
}

/* A device has more multiprocessors, so it takes more heads to make enough pairs of
 * tiles. */
static void fill(struct problem *p)
{
    p->heads *= on_device() ? 48 : 1;
    p->kv_heads *= on_device() ? 48 : 1;
    problem_init(p);
}

static void check(struct problem p)
{
    fill(&p);
    const struct kg_attn a = attn_of(&p);

    both_agree(&p, &a);
    problem_release(&p);
}

/* ---- tiles ---- */
/* Tiles, pairs of tiles, blocks of keys and parts of the softmax end before, at and after
 * the last token. */
static void sequences_of_any_length(void **state)
{
    static const int lengths[] = {128, 129, 191, 192, 193, 255, 256, 257, 300, 320, 321};

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int hd = 64; hd <= 128; hd += 64)
            check((struct problem){KG_BF16, .heads = 1, .kv_heads = 1, .hd = hd,
                                   .n_seqs = 1, .lengths = {lengths[i]}});
}

static void groups_of_any_size(void **state)
{
    (void)state;
    for (int group = 1; group <= 8; group++)
        check((struct problem){KG_BF16, .heads = 2 * group, .kv_heads = 2,
                               .hd = group % 2 ? 64 : 128, .n_seqs = 2,
                               .lengths = {130 - group, 150}});
}

static void packed_sequences(void **state)
{
    (void)state;
    check((struct problem){KG_BF16, .heads = 4, .kv_heads = 1, .hd = 64, .n_seqs = 8,
                           .lengths = {1, 64, 65, 3, 128, 17, 1, 300}});
    check((struct problem){KG_BF16, .heads = 6, .kv_heads = 2, .hd = 128, .n_seqs = 5,
                           .lengths = {20, 90, 1, 64, 77}});
}

static void a_long_sequence_has_several_parts(void **state)
{
    (void)state;
    check((struct problem){KG_BF16, .heads = 1, .kv_heads = 1, .hd = 64, .n_seqs = 1,
                           .lengths = {1100}});
    check((struct problem){KG_BF16, .heads = 2, .kv_heads = 1, .hd = 128, .n_seqs = 1,
                           .lengths = {600}});
}

/* ---- chunks and blocks ---- */
static void chunks_begin_anywhere(void **state)
{
    static const int from[] = {1, 63, 64, 65, 130, 255, 256, 257};

    (void)state;
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        struct problem p = {KG_BF16,       .heads = 3,
                            .kv_heads = 1, .hd = i % 2 ? 64 : 128,
                            .n_seqs = 1,   .lengths = {from[i] + 140}};
        struct kg_attn_seq *chunk;

        fill(&p);
        struct kg_attn a = attn_of(&p);

        chunk = buffer_of(1, sizeof *chunk);
        *chunk = (struct kg_attn_seq){.row = 0, .n_rows = 140, .pos = from[i]};
        a.q = kg_mat_rows(p.q, from[i], 140);
        a.seqs = chunk;
        both_agree(&p, &a);
        buffer_free(chunk);
        problem_release(&p);
    }
}

/* Blocks of a pool in reverse order; the other rows of the pool are NaN. */
static void blocks_lie_anywhere(void **state)
{
    enum { LENGTH = 280, BLOCKS = (LENGTH + KG_KV_BLOCK - 1) / KG_KV_BLOCK };

    (void)state;
    for (int hd = 64; hd <= 128; hd += 64) {
        struct problem p = {KG_BF16,  .heads = 4,  .kv_heads = 2,
                            .hd = hd, .n_seqs = 1, .lengths = {LENGTH}};
        int32_t *table = buffer_of(BLOCKS, sizeof *table);

        fill(&p);
        struct kg_attn a = attn_of(&p);
        struct answer plain = attended(&p, &a, true), paged;

        a.k = random_matrix(KG_BF16, (int64_t)2 * BLOCKS * KG_KV_BLOCK, p.k.cols, NAN);
        a.v = random_matrix(KG_BF16, a.k.rows, p.k.cols, NAN);
        for (int b = 0; b < BLOCKS; b++)
            table[b] = 2 * (BLOCKS - 1 - b);
        for (int64_t r = 0; r < LENGTH; r++)
            for (int64_t c = 0; c < p.k.cols; c++) {
                const int64_t at = (int64_t)table[r / KG_KV_BLOCK] * KG_KV_BLOCK +
                                   r % KG_KV_BLOCK;

                set(a.k, at, c, get(p.k, r, c));
                set(a.v, at, c, get(p.v, r, c));
            }
        a.blocks = kg_ivec(table, BLOCKS);
        paged = attended(&p, &a, true);
        assert_rows_equal(&plain, 0, &paged, 0, LENGTH);
        both_agree(&p, &a);
        answer_release(&plain);
        answer_release(&paged);
        buffer_free(a.k.data);
        buffer_free(a.v.data);
        buffer_free(table);
        problem_release(&p);
    }
}

/* ---- NaN, infinity, and unaligned operands ---- */
/* NaN and infinities in a first, a middle and a last block of keys or values: rows that
 * do not see them stay finite. */
static void no_numbers_stay_with_rows_that_see_them(void **state)
{
    static const int at[] = {5, 100, 170, 199};

    (void)state;
    for (int what = 0; what < 6; what++)
        for (int i = 0; i < 4; i++) {
            struct problem p = {KG_BF16,  .heads = 2,  .kv_heads = 1,
                                .hd = 64, .n_seqs = 1, .lengths = {200}};
            struct answer out;

            fill(&p);
            const struct kg_attn a = attn_of(&p);

            set(what % 2 ? p.v : p.k, at[i], 9 * i,
                what / 2 == 0   ? NAN
                : what / 2 == 1 ? INFINITY
                                : -INFINITY);
            out = attended(&p, &a, true);
            for (int64_t r = 0; r < at[i]; r++)
                for (int64_t c = 0; c < out.o.cols; c++)
                    assert_false(isnan(get(out.o, r, c)));
            both_agree(&p, &a);
            answer_release(&out);
            problem_release(&p);
        }
}

/* A copy of m with unaligned rows. */
static struct kg_mat moved(struct kg_mat m)
{
    struct kg_mat to = matrix(m.dtype, m.rows, m.cols + 3);

    to.cols = m.cols;
    for (int64_t r = 0; r < m.rows; r++)
        for (int64_t c = 0; c < m.cols; c++)
            set(to, r, c, get(m, r, c));
    return to;
}

/* Outputs whose columns cannot be stored in pairs; queries, keys and values too unaligned
 * for boxes (TMA), which the other kernel takes. */
static void operands_of_any_place(void **state)
{
    struct problem p = {KG_BF16,  .heads = 2,  .kv_heads = 1,
                        .hd = 64, .n_seqs = 1, .lengths = {150}};

    (void)state;
    fill(&p);
    const struct kg_attn plain = attn_of(&p);
    struct answer want = attended(&p, &plain, true), got = answer_init(&p, p.n);
    struct kg_mat o = moved(want.o);
    struct kg_err err;

    assert_int_equal(kg_op_attention(backend(), o, lse_of(&got, &plain), &plain, &err),
                     KG_OK);
    for (int64_t r = 0; r < p.n; r++)
        for (int64_t c = 0; c < o.cols; c++)
            set(got.o, r, c, get(o, r, c));
    assert_rows_equal(&want, 0, &got, 0, p.n);
    assert_lse_equal(&want, 0, &got, 0, p.n, p.heads);
    answer_release(&got);
    for (int i = 0; i < 3; i++) {
        struct kg_attn a = plain;
        struct kg_mat *const m = i == 0 ? &a.q : i == 1 ? &a.k : &a.v;

        *m = moved(*m);
        got = attended(&p, &a, false);
        assert_rows_equal(&want, 0, &got, 0, p.n);
        assert_lse_equal(&want, 0, &got, 0, p.n, p.heads);
        buffer_free(m->data);
        answer_release(&got);
    }
    buffer_free(o.data);
    answer_release(&want);
    problem_release(&p);
}

static void the_backend_says_who_computes_it(void **state)
{
    char text[320];

    (void)state;
    backend()->describe(text, sizeof text);
    if (emulated())
        assert_non_null(strstr(text, "; attention of many rows by wgmma, with the same"));
    print_message("attention: %s\n", text);
}

int main(void)
{
    /* tests of values: the order of a kernel's threads does not matter */
    const struct CMUnitTest once[] = {
        cmocka_unit_test(sequences_of_any_length),
        cmocka_unit_test(a_long_sequence_has_several_parts),
        cmocka_unit_test(chunks_begin_anywhere),
        cmocka_unit_test(blocks_lie_anywhere),
        cmocka_unit_test(the_backend_says_who_computes_it),
    };
    const struct CMUnitTest reordered[] = {
        cmocka_unit_test(groups_of_any_size),
        cmocka_unit_test(packed_sequences),
        cmocka_unit_test(no_numbers_stay_with_rows_that_see_them),
        cmocka_unit_test(operands_of_any_place),
    };

    return RUN_EMULATED_ONCE(once, NULL, NULL) + RUN_EMULATED(reordered, NULL, NULL);
}
