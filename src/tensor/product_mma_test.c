/* Products of bf16 by a device's matrix instruction: each element is the chain that
 * backend.h defines, bit for bit as the emulation adds, wherever its tile begins or ends
 * and for any layout of its factors; no other element affects it.
 */
#include "emu/emu.h"
#include "tensor/matrix_testing.h"

#include <math.h>

static struct kg_err err;

static void product(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                    enum kg_matmul_kind kind, bool accumulate)
{
    if (kg_op_matmul(backend(), c, a, b, kind, accumulate, &err) != KG_OK)
        fail_msg("%s", err.message);
}

/* ---- the definition ---- */
struct shape {
    enum kg_matmul_kind kind;
    int64_t m, n, k;
};

static double left(const struct shape *s, struct kg_mat a, int64_t i, int64_t k)
{
    return s->kind == KG_MATMUL_TN ? get(a, k, i) : get(a, i, k);
}
static double right(const struct shape *s, struct kg_mat b, int64_t j, int64_t k)
{
    return s->kind == KG_MATMUL_NT ? get(b, j, k) : get(b, k, j);
}

/* Factors [from, to): sixteen are added to the sum at once, as the emulation does it. */
static float chain(const struct shape *s, struct kg_mat a, struct kg_mat b, int64_t i,
                   int64_t j, int64_t from, int64_t to)
{
    float sum = 0.0f;

    for (int64_t k = from; k < to; k += 16) {
        double some = (double)sum;

        for (int64_t e = k; e < k + 16 && e < to; e++)
            some += left(s, a, i, e) * right(s, b, j, e);
        sum = (float)some;
    }
    return sum;
}

static float defined(const struct shape *s, struct kg_mat a, struct kg_mat b, int64_t i,
                     int64_t j, bool add, float old)
{
    const int64_t chunk = s->kind == KG_MATMUL_TN ? KG_PRODUCT_CHUNK : s->k + 1;
    int64_t k = 0;

    do {
        const int64_t end = k + chunk < s->k ? k + chunk : s->k;
        const float sum = chain(s, a, b, i, j, k, end);

        old = add ? old + sum : sum;
        add = true;
        k = end;
    } while (k < s->k);
    return old;
}

/* ---- operands ---- */
/* Layout of a matrix: elements between its rows, and before its first row. */
struct place {
    int64_t between, before;
};

/* A random matrix in this layout; all other elements are NaN. */
static struct kg_mat placed(enum kg_dtype t, int64_t rows, int64_t cols, struct place p)
{
    const int64_t stride = cols + p.between, n = rows * stride + p.before;
    struct kg_mat all = matrix(t, 1, n > 0 ? n : 1), m;

    for (int64_t i = 0; i < all.cols; i++)
        set(all, 0, i, NAN);
    m = kg_mat((char *)all.data + (uint64_t)p.before * kg_dtype_traits(t)->bytes, t, rows,
               cols);
    m.stride = stride;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            set(m, r, c, uniform());
    return m;
}

static void placed_free(struct kg_mat m, struct place p)
{
    buffer_free((char *)m.data - (uint64_t)p.before * kg_dtype_traits(m.dtype)->bytes);
}

struct operands {
    struct kg_mat a, b, c;
    struct place at;
};

static struct operands operands(const struct shape *s, enum kg_dtype out, struct place at)
{
    const bool tn = s->kind == KG_MATMUL_TN, nt = s->kind == KG_MATMUL_NT;

    return (struct operands){
        .a = placed(KG_BF16, tn ? s->k : s->m, tn ? s->m : s->k, at),
        .b = placed(KG_BF16, nt ? s->n : s->k, nt ? s->k : s->n, at),
        .c = placed(out, s->m, s->n, at),
        .at = at,
    };
}

static void operands_free(struct operands *o)
{
    placed_free(o->a, o->at);
    placed_free(o->b, o->at);
    placed_free(o->c, o->at);
}

/* ---- an element ---- */
static void element_is(const struct shape *s, const struct operands *o,
                       const struct kg_mat *before, bool add, int64_t i, int64_t j)
{
    const float old = add ? (float)get(*before, i, j) : 0.0f;
    const float want = defined(s, o->a, o->b, i, j, add, old);
    double exact = (double)old, scale = fabs((double)old), got = get(o->c, i, j);

    for (int64_t k = 0; k < s->k; k++) {
        const double p = left(s, o->a, i, k) * right(s, o->b, j, k);

        exact += p;
        scale += fabs(p);
    }
    if (emulated()) {
        const float there = o->c.dtype == KG_F32 ? want
                                                 : kg_bf16_to_f32(kg_f32_to_bf16(want));

        if (!(got == (double)there))
            fail_msg("kind %d %lld x %lld x %lld, element (%lld, %lld): %.9g, expected "
                     "%.9g",
                     (int)s->kind, (long long)s->m, (long long)s->n, (long long)s->k,
                     (long long)i, (long long)j, got, (double)there);
    }
    assert_true(fabs(got - exact) <=
                scale * 0x1p-18 + (o->c.dtype == KG_F32 ? 0 : fabs(exact) * 0x1p-8));
}

/* Checks every element of a small product, some of a large one; nothing is written
 * outside c. */
static void check(const struct shape *s, enum kg_dtype out, bool add, struct place at)
{
    struct operands o = operands(s, out, at);
    struct kg_mat before = matrix(out, s->m, s->n);
    const int64_t step = s->m * s->n > 2000 ? 37 : 1;

    for (int64_t r = 0; r < s->m; r++)
        for (int64_t c = 0; c < s->n; c++)
            set(before, r, c, get(o.c, r, c));
    product(o.c, o.a, o.b, s->kind, add);
    for (int64_t e = 0; e < s->m * s->n; e += step)
        element_is(s, &o, &before, add, e / s->n, e % s->n);
    for (int64_t r = 0; r < s->m; r++)
        for (int64_t c = 0; c < at.between; c++)
            assert_true(isnan(get(o.c, r, s->n + c)));
    buffer_free(before.data);
    operands_free(&o);
}

/* Aligned rows, unaligned rows, and an unaligned matrix. */
static const struct place places[] = {{0, 0}, {8, 8}, {3, 0}, {8, 1}, {0, 5}};

static void an_element_is_its_chain(void **state)
{
    static const int64_t dims[][3] = {{1, 1, 1},      {3, 5, 16},    {16, 16, 17},
                                      {17, 40, 33},   {65, 66, 70},  {5, 130, 129},
                                      {33, 8, 200},   {2, 3, 0},     {40, 70, 140},
                                      {150, 140, 50}, {70, 300, 33}, {300, 150, 45}};

    (void)state;
    random_state = 1;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (size_t p = 0; p < sizeof places / sizeof *places; p++)
            for (int kind = KG_MATMUL_NT; kind <= KG_MATMUL_TN; kind++) {
                const struct shape s = {(enum kg_matmul_kind)kind, dims[i][0], dims[i][1],
                                        dims[i][2]};

                check(&s, KG_F32, p % 2, places[p]);
                if (kind != KG_MATMUL_TN)
                    check(&s, KG_BF16, false, places[p]);
            }
}

static void many_tokens_are_chunks(void **state)
{
    (void)state;
    random_state = 2;
    for (int add = 0; add < 2; add++)
        for (int64_t tokens = 1023; tokens <= 2070; tokens += 349) {
            const struct shape s = {KG_MATMUL_TN, 20, 9, tokens};
            const struct shape deep = {KG_MATMUL_NN, 9, 20, tokens};

            check(&s, KG_F32, add, places[0]);
            check(&deep, KG_F32, add, places[2]);
        }
}

/* ---- large products ---- */
static void rows_equal(struct kg_mat got, struct kg_mat want, const char *what)
{
    const uint64_t bytes = (uint64_t)got.cols * kg_dtype_traits(got.dtype)->bytes;

    for (int64_t r = 0; r < got.rows; r++)
        if (memcmp(kg_mat_rows(got, r, 1).data, kg_mat_rows(want, r, 1).data, bytes) != 0)
            fail_msg("%s: row %lld of %lld has other bits", what, (long long)r,
                     (long long)got.rows);
}

/* A device with two instructions uses large tiles from some rows and columns on, the last
 * of which extend beyond c. Factors take more stages than the pipeline has, and the last
 * stage is not full. */
static void large_products_are_chains_too(void **state)
{
    static const int64_t few[][3] = {{65, 72, 8},    {128, 256, 64}, {130, 264, 72},
                                     {200, 136, 40}, {72, 200, 600}, {300, 400, 16}};
    static const int64_t many[][3] = {{1024, 1024, 8},    {2048, 1536, 328},
                                      {1100, 2056, 4864}, {896, 4864, 1040},
                                      {4104, 896, 896},   {3000, 1000, 2200}};
    const int64_t(*dims)[3] = emulated() ? few : many;
    const int64_t before = emulated() ? kg_emu_products() : 0;

    (void)state;
    random_state = 6;
    for (int i = 0; i < 18; i++) {
        const struct shape s = {(enum kg_matmul_kind)(i % 3), dims[i / 3][0],
                                dims[i / 3][1], dims[i / 3][2]};
        const struct place at = places[i / 3 % 2];

        check(&s, KG_F32, i % 2, at);
        if (s.kind != KG_MATMUL_TN)
            check(&s, KG_BF16, false, at);
    }
    assert_true(!emulated() || kg_emu_products() > before);
}

/* An unaligned c, whose adjacent elements cannot be stored as one. */
static void large_products_go_anywhere(void **state)
{
    const struct shape s = {KG_MATMUL_NT, emulated() ? 140 : 2000,
                            emulated() ? 136 : 2000, 80};

    (void)state;
    random_state = 7;
    for (enum kg_dtype out = KG_F32; out <= KG_BF16; out++) {
        const struct place at = {1, 3};
        struct operands o = operands(&s, KG_F32, places[0]);
        const struct operands odd = {o.a, o.b, placed(out, s.m, s.n, at), at};

        product(odd.c, o.a, o.b, s.kind, false);
        for (int64_t e = 0; e < s.m * s.n; e += 37)
            element_is(&s, &odd, NULL, false, e / s.n, e % s.n);
        placed_free(odd.c, at);
        operands_free(&o);
    }
}

/* A device with the four-warp instruction has the bits of one without it. */
static void the_other_instruction_has_no_say(void **state)
{
    (void)state;
    if (!emulated())
        skip();
    random_state = 8;
    for (int kind = KG_MATMUL_NT; kind <= KG_MATMUL_TN; kind++) {
        const struct shape s = {(enum kg_matmul_kind)kind, 200, 136, 1096};
        struct operands o = operands(&s, KG_F32, places[1]);
        struct kg_mat without = matrix(KG_F32, s.m, s.n);
        int64_t before = kg_emu_products();

        product(o.c, o.a, o.b, s.kind, false);
        assert_true(kg_emu_products() > before);
        before = kg_emu_products();
        kg_emu_hoppers(0);
        product(without, o.a, o.b, s.kind, false);
        kg_emu_hoppers(3);
        assert_true(kg_emu_products() == before);
        rows_equal(o.c, without, "without it");
        buffer_free(without.data);
        operands_free(&o);
    }
}

/* ---- what must not change a bit ---- */
static void check_rows(enum kg_matmul_kind kind, enum kg_dtype out, int64_t most,
                       int64_t n, int64_t k)
{
    const struct shape s = {kind, most, n, k};
    struct operands o = operands(&s, out, places[0]);
    struct kg_mat got = matrix(out, s.m, n);

    product(o.c, o.a, o.b, kind, false);
    for (int64_t m = 1; m <= s.m; m += m < 20 ? 1 : m % 16 == 1 ? 14 : 1) {
        const int64_t first = m * 37 % (s.m - m + 1);
        struct kg_mat some = kg_mat_rows(got, 0, m);

        product(some, kg_mat_rows(o.a, first, m), o.b, kind, false);
        rows_equal(some, kg_mat_rows(o.c, first, m), "fewer rows");
    }
    buffer_free(got.data);
    operands_free(&o);
}

static void a_row_is_the_same_among_any_others(void **state)
{
    (void)state;
    random_state = 3;
    check_rows(KG_MATMUL_NT, KG_F32, 300, 140, 40);
    check_rows(KG_MATMUL_NT, KG_BF16, 200, 70, 33);
    check_rows(KG_MATMUL_NN, KG_F32, 300, 140, 24);
}

/* Row 3 of a and vector 5 of b are NaN or infinite: so are row 3 and column 5 of c, and
 * nothing else. */
static void no_number_stays_in_its_row(void **state)
{
    (void)state;
    random_state = 4;
    for (int kind = KG_MATMUL_NT; kind <= KG_MATMUL_TN; kind++) {
        const struct shape s = {(enum kg_matmul_kind)kind, 20, 23, 45};
        struct operands o = operands(&s, KG_F32, places[1]);

        for (int64_t k = 0; k < s.k; k++) {
            const bool tn = kind == KG_MATMUL_TN, nt = kind == KG_MATMUL_NT;

            set(o.a, tn ? k : 3, tn ? 3 : k, k % 2 ? NAN : INFINITY);
            set(o.b, nt ? 5 : k, nt ? k : 5, k % 2 ? INFINITY : NAN);
        }
        product(o.c, o.a, o.b, s.kind, false);
        for (int64_t i = 0; i < s.m; i++)
            for (int64_t j = 0; j < s.n; j++)
                assert_true(isnan(get(o.c, i, j)) == (i == 3 || j == 5));
        operands_free(&o);
    }
}

/* All tokens at once have the bits of calls that end at chunks. */
static void calls_add_up_as_chunks_do(void **state)
{
    const struct shape s = {KG_MATMUL_TN, 30, 21, 3 * KG_PRODUCT_CHUNK + 40};
    struct operands o;
    struct kg_mat parts;

    (void)state;
    random_state = 5;
    o = operands(&s, KG_F32, places[0]);
    parts = matrix(KG_F32, s.m, s.n);
    product(o.c, o.a, o.b, s.kind, false);
    for (int64_t k = 0; k < s.k; k += KG_PRODUCT_CHUNK) {
        const int64_t n = s.k - k < KG_PRODUCT_CHUNK ? s.k - k : KG_PRODUCT_CHUNK;

        product(parts, kg_mat_rows(o.a, k, n), kg_mat_rows(o.b, k, n), s.kind, k > 0);
    }
    rows_equal(parts, o.c, "tokens in calls");
    buffer_free(parts.data);
    operands_free(&o);
}

/* kg_op_peak, whose result bounds the speed of products: it launches and ends without a
 * fault. */
static void the_loops_in_registers_run(void **state)
{
    float *one = buffer_of(1, sizeof *one), back;

    (void)state;
    for (enum kg_dtype t = KG_F32; t <= KG_BF16; t++) {
        assert_int_equal(kg_op_peak(backend(), t, 1e5, &err), KG_OK);
        assert_int_equal(kg_buf_get(backend(), &back, one, sizeof back, &err), KG_OK);
    }
    buffer_free(one);
}

/* ---- who makes products ---- */
static void the_backend_says_who_makes_products(void **state)
{
    char text[256];

    (void)state;
    backend()->describe(text, sizeof text);
    assert_non_null(strstr(text, "bf16 by the matrix instruction"));
    if (emulated())
        assert_non_null(strstr(text, "; large ones by wgmma, with its bits"));
    print_message("products: %s\n", text); /* of a device: whether it has those bits */
}

static void an_unknown_name_is_refused(void **state)
{
    const struct kg_backend *be;

    (void)state;
    setenv("KEDGE_TEST_PRODUCTS", "some", 1);
    assert_int_equal(kg_backend_open(&be, backend_name, &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "expected one of cublas, own, exact"));
    setenv("KEDGE_TEST_PRODUCTS", "own", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_element_is_its_chain),
        cmocka_unit_test(many_tokens_are_chunks),
        cmocka_unit_test(large_products_are_chains_too),
        cmocka_unit_test(large_products_go_anywhere),
        cmocka_unit_test(the_other_instruction_has_no_say),
        cmocka_unit_test(a_row_is_the_same_among_any_others),
        cmocka_unit_test(no_number_stays_in_its_row),
        cmocka_unit_test(calls_add_up_as_chunks_do),
        cmocka_unit_test(the_loops_in_registers_run),
        cmocka_unit_test(the_backend_says_who_makes_products),
        cmocka_unit_test(an_unknown_name_is_refused),
    };

    setenv("KEDGE_TEST_PRODUCTS", "own", 1);
    return RUN_EMULATED(tests, NULL, NULL);
}
