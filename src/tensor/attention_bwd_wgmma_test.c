/* Attention backward by wgmma: the gradients have the bits that other kernels give (tests
 * choose the kernels by KEDGE_TEST_WITHOUT).
 */
#include "tensor/attention_testing.h"

static int64_t products(void) { return emulated() ? kg_emu_products() : 0; }

struct gradient {
    struct kg_mat dq, dk, dv;
};

static struct gradient gradient_init(const struct kg_attn *a)
{
    struct gradient g = {matrix(KG_F32, a->q.rows, a->q.cols),
                         matrix(KG_F32, a->k.rows, a->k.cols),
                         matrix(KG_F32, a->v.rows, a->v.cols)};

    return g;
}

static void gradient_release(struct gradient *g)
{
    buffer_free(g->dq.data);
    buffer_free(g->dk.data);
    buffer_free(g->dv.data);
}

/* A problem and the output of its forward. */
struct given {
    struct kg_attn a;
    struct kg_mat dout, o;
    struct kg_vec lse;
};

/* returns the number of four-warp products; four: whether any are expected */
static int64_t go_back(struct gradient *to, const struct given *g, bool four)
{
    const int64_t before = products();
    struct kg_err why;

    if (kg_op_attention_bwd(backend(), to->dq, to->dk, to->dv, g->dout, g->o, g->lse,
                            &g->a, &why) != KG_OK)
        fail_msg("%s", why.message);
    if (emulated() && (products() > before) != four)
        fail_msg("%d rows of %d heads of %d in %d sequences: expected %s",
                 (int)g->a.q.rows, g->a.n_heads, g->a.head_dim, g->a.n_seqs,
                 four ? "the instruction of four warps" : "that of one warp");
    return products() - before;
}

/* The gradients by the kernels of one warp. */
static struct gradient plain(const struct given *g)
{
    struct gradient to = gradient_init(&g->a);

    setenv("KEDGE_TEST_WITHOUT", "attention", 1);
    go_back(&to, g, false);
    unsetenv("KEDGE_TEST_WITHOUT");
    return to;
}

static void assert_bits_equal(const char *name, struct kg_mat want, struct kg_mat got)
{
    for (int64_t r = 0; r < want.rows; r++)
        for (int64_t c = 0; c < want.cols; c++) {
            const float x = ((const float *)want.data)[r * want.stride + c];
            const float y = ((const float *)got.data)[r * got.stride + c];

            if (memcmp(&x, &y, sizeof x) != 0)
                fail_msg("%s of row %d, column %d: expected %.9g, found %.9g", name,
                         (int)r, (int)c, (double)x, (double)y);
        }
}

static void assert_gradients_equal(const struct gradient *want,
                                   const struct gradient *got)
{
    assert_bits_equal("dq", want->dq, got->dq);
    assert_bits_equal("dk", want->dk, got->dk);
    assert_bits_equal("dv", want->dv, got->dv);
}

static void both_agree(const struct given *g)
{
    struct gradient want = plain(g), got = gradient_init(&g->a);

    go_back(&got, g, true);
    assert_gradients_equal(&want, &got);
    gradient_release(&want);
    gradient_release(&got);
}

/* On a device, sequences are longer and there are more heads, to occupy its
 * multiprocessors. */
static void fill(struct problem *p)
{
    for (int s = 0; s < p->n_seqs; s++)
        p->lengths[s] += on_device() ? 1024 : 0;
    p->heads *= on_device() ? 6 : 1;
    p->kv_heads *= on_device() ? 6 : 1;
    problem_init(p);
}

static struct given given_of(const struct problem *p, struct answer *out)
{
    struct given g = {.a = attn_of(p)};

    *out = whole(p);
    g.o = out->o;
    g.lse = lse_of(out, &g.a);
    g.dout = random_matrix(KG_BF16, p->n, p->q.cols, 1.0);
    return g;
}

static void release(const struct given *g, struct answer *out, struct problem *p)
{
    buffer_free(g->dout.data);
    answer_release(out);
    problem_release(p);
}

static void check(struct problem p)
{
    struct answer out;

    fill(&p);
    struct given g = given_of(&p, &out);

    both_agree(&g);
    release(&g, &out, &p);
}

/* ---- tiles ---- */
static void sequences_of_any_length(void **state)
{
    static const int lengths[] = {128, 129, 191, 192, 193, 255, 256, 257, 300, 320, 321};

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int hd = 64; hd <= 128; hd += 64)
            check((struct problem){KG_BF16, .heads = 1, .kv_heads = 1, .hd = hd,
                                   .n_seqs = 1, .lengths = {lengths[i]}});
}

/* Odd heads, whose lse and D are the second of a pair; heads of a group one by one. */
static void groups_of_any_size(void **state)
{
    static const int groups[] = {1, 2, 3, 7};

    (void)state;
    for (int i = 0; i < 4; i++)
        check((struct problem){KG_BF16, .heads = 2 * groups[i], .kv_heads = 2,
                               .hd = i % 2 ? 128 : 64, .n_seqs = 2,
                               .lengths = {130 - i, 150}});
}

static void packed_sequences(void **state)
{
    (void)state;
    check((struct problem){KG_BF16, .heads = 4, .kv_heads = 1, .hd = 64, .n_seqs = 8,
                           .lengths = {1, 64, 65, 3, 128, 17, 1, 300}});
    check((struct problem){KG_BF16, .heads = 6, .kv_heads = 2, .hd = 128, .n_seqs = 5,
                           .lengths = {20, 90, 1, 64, 77}});
}

static void a_long_sequence_goes_around_the_places(void **state)
{
    (void)state;
    check((struct problem){KG_BF16, .heads = 1, .kv_heads = 1, .hd = 64, .n_seqs = 1,
                           .lengths = {1100}});
    check((struct problem){KG_BF16, .heads = 2, .kv_heads = 1, .hd = 128, .n_seqs = 1,
                           .lengths = {600}});
}

/* ---- continued sequences ---- */
/* Rows begin at a position, and their chains with them: at the start of a block of keys,
 * or within the first or the second block of a pair. */
static void rows_begin_anywhere(void **state)
{
    static const int from[] = {1, 15, 63, 64, 65, 127, 128, 130, 200};

    (void)state;
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        struct problem p = {KG_BF16,       .heads = 3,
                            .kv_heads = 1, .hd = i % 2 ? 64 : 128,
                            .n_seqs = 2,   .lengths = {from[i] + 140, 129}};
        struct answer out;

        fill(&p);
        struct given g = given_of(&p, &out);

        p.seqs[0].row += from[i];
        p.seqs[0].n_rows -= from[i];
        p.seqs[0].pos = from[i];
        both_agree(&g);
        release(&g, &out, &p);
    }
}

/* ---- NaN, infinity, and unaligned operands ---- */
static void spoil(struct kg_mat m, int64_t from, int64_t end)
{
    for (int64_t r = from; r < end; r++)
        for (int64_t c = 0; c < m.cols; c++)
            set(m, r, c, c % 2 ? NAN : INFINITY);
}

/* NaN and infinity in rows of no sequence or of the next one, which are loaded together
 * with the last rows of a sequence. */
static void other_rows_that_are_no_numbers_change_nothing(void **state)
{
    (void)state;
    for (int hd = 64; hd <= 128; hd += 64) {
        struct problem p = {KG_BF16,  .heads = 2,  .kv_heads = 1,
                            .hd = hd, .n_seqs = 2, .lengths = {150, 200}};
        struct answer out;

        fill(&p);
        struct given g = given_of(&p, &out);

        g.a.n_seqs = 1;
        for (int last = 0; last < 2; last++) {
            p.seqs[0] = p.seqs[1];
            p.seqs[0].n_rows -= 70;
            if (last)
                p.seqs[0] = (struct kg_attn_seq){.n_rows = p.lengths[0]};
            const struct kg_attn_seq of = p.seqs[0];
            struct gradient want = plain(&g), got = gradient_init(&g.a);
            const struct kg_mat all[] = {p.q, p.k, p.v, g.dout, g.o};

            for (int m = 0; m < 5; m++)
                spoil(all[m], of.row + of.n_rows, p.n);
            for (int64_t r = of.row + of.n_rows; r < p.n; r++)
                for (int h = 0; h < p.heads; h++)
                    out.lse[r * p.heads + h] = NAN;
            go_back(&got, &g, true);
            assert_gradients_equal(&want, &got);
            gradient_release(&want);
            gradient_release(&got);
        }
        release(&g, &out, &p);
    }
}

/* A copy of m with unaligned rows. */
static struct kg_mat moved(struct kg_mat m, int by)
{
    struct kg_mat to = matrix(m.dtype, m.rows, m.cols + by);

    to.cols = m.cols;
    for (int64_t r = 0; r < m.rows; r++)
        for (int64_t c = 0; c < m.cols; c++)
            set(to, r, c, get(m, r, c));
    return to;
}

/* Other kernels take operands that are too unaligned for boxes (TMA). If only a gradient
 * is unaligned, they replace only the kernel that writes it. */
static void operands_of_any_place(void **state)
{
    struct problem p = {KG_BF16,  .heads = 2,  .kv_heads = 1,
                        .hd = 64, .n_seqs = 1, .lengths = {150}};
    struct answer out;

    (void)state;
    fill(&p);
    const struct given g = given_of(&p, &out);
    struct gradient want = plain(&g), all = gradient_init(&g.a);
    int64_t left = go_back(&all, &g, true);

    for (int i = 0; i < 6; i++) {
        struct given other = g;
        struct gradient got = gradient_init(&g.a);
        struct kg_mat *const operands[] = {&other.a.q,  &other.a.k, &other.a.v,
                                           &other.dout, &got.dq,    &got.dv};
        struct kg_mat *const m = operands[i], old = *m;

        *m = moved(*m, 3);
        left -= go_back(&got, &other, i >= 4);
        assert_gradients_equal(&want, &got);
        buffer_free(i < 4 ? m->data : old.data);
        gradient_release(&got);
    }
    if (left != 0)
        fail_msg("%lld products fewer by each kernel alone than by both",
                 (long long)left);
    gradient_release(&want);
    gradient_release(&all);
    release(&g, &out, &p);
}

/* dO of fp32 is rounded first. */
static void dout_of_fp32(void **state)
{
    struct problem p = {KG_BF16,  .heads = 2,  .kv_heads = 1,
                        .hd = 64, .n_seqs = 1, .lengths = {150}};
    struct answer out;

    (void)state;
    fill(&p);
    struct given g = given_of(&p, &out);

    buffer_free(g.dout.data);
    g.dout = random_matrix(KG_F32, p.n, p.q.cols, 1.0);
    both_agree(&g);
    release(&g, &out, &p);
}

/* Windows and softcaps, which only other kernels compute, and sequences that are too
 * short. (On a device they are long, and both must agree all the same.) */
static void windows_softcaps_and_short_sequences_are_of_other_kernels(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct problem p = {KG_BF16,  .heads = 8,  .kv_heads = 1,
                            .hd = 64, .n_seqs = 1, .lengths = {150}};
        struct answer out;

        p.window = i == 0 ? 100 : 0;
        p.softcap = i == 1 ? 20.0f : 0.0f;
        for (int s = 0; i == 2 && s < 4; s++) {
            p.n_seqs = s + 1;
            p.lengths[s] = 30;
        }
        fill(&p);
        struct given g = given_of(&p, &out);
        struct gradient want = plain(&g), got = gradient_init(&g.a);

        go_back(&got, &g, false);
        assert_gradients_equal(&want, &got);
        gradient_release(&want);
        gradient_release(&got);
        release(&g, &out, &p);
    }
}

/* If a device does not use wgmma, these tests compare one-warp kernels with
 * themselves. */
static void the_backend_says_who_computes_it(void **state)
{
    char text[320];

    (void)state;
    backend()->describe(text, sizeof text);
    print_message("attention: %s\n", text);
    if (strstr(text, "attention not by wgmma") || strstr(text, "backward not by wgmma"))
        fail_msg("expected attention by wgmma, found \"%s\"", text);
    if (emulated())
        assert_non_null(strstr(text, "; attention of many rows by wgmma, with the same"));
}

int main(void)
{
    /* tests of values: the order of a kernel's threads does not matter */
    const struct CMUnitTest once[] = {
        cmocka_unit_test(sequences_of_any_length),
        cmocka_unit_test(a_long_sequence_goes_around_the_places),
        cmocka_unit_test(rows_begin_anywhere),
        cmocka_unit_test(dout_of_fp32),
        cmocka_unit_test(windows_softcaps_and_short_sequences_are_of_other_kernels),
        cmocka_unit_test(the_backend_says_who_computes_it),
    };
    const struct CMUnitTest reordered[] = {
        cmocka_unit_test(groups_of_any_size),
        cmocka_unit_test(packed_sequences),
        cmocka_unit_test(other_rows_that_are_no_numbers_change_nothing),
        cmocka_unit_test(operands_of_any_place),
    };

    return RUN_EMULATED_ONCE(once, NULL, NULL) + RUN_EMULATED(reordered, NULL, NULL);
}
