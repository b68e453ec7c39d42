/* Products by cuBLASLt, with a stand-in for the library, whose plans differ in bits by
 * design, on emulated kernels: which plans are used, and every way in which the library
 * can be missing or wrong. blas_find_test.c tests where it is found. */
#define _GNU_SOURCE
#include "base/folder_testing.h"
#include "base/mem.h"
#include "emu/blas_testing.h"
#include "tensor/backend_testing.h"

#include <dlfcn.h>
#include <math.h>

enum { N = 24, K = 48, SEVERAL = 1100 };

/* ---- the library and the backend that uses it ---- */
static struct {
    void *object;
    void (*set)(enum kg_fake_mode mode);
    void (*add)(int64_t factors);
    struct kg_fake_last (*last)(void);
    double (*seconds)(void);
    int (*things)(void);
} fake;

static void reach(void *function, const char *name)
{
    void *at = dlsym(fake.object, name);

    assert_non_null(at);
    memcpy(function, &at, sizeof at);
}

/* Opens the backend with the library of a folder. products: "cublas", plans pinned, or
 * "unpinned". */
static kg_status open_by(const char *products, const char *folder)
{
    const struct kg_backend *be;

    setenv("KEDGE_TEST_PRODUCTS", products, true);
    setenv("KEDGE_TEST_LIBRARIES", in_dir(folder), true);
    return kg_emu_open(&be, &err);
}

static kg_status open_with(const char *folder) { return open_by("cublas", folder); }

static void use_by(const char *products, enum kg_fake_mode mode)
{
    make_good_blas("lib");
    fake.object = dlopen(in_dir("lib/" BLAS_FILE), RTLD_NOW | RTLD_LOCAL);
    assert_non_null(fake.object);
    reach(&fake.set, "kg_fake_set");
    reach(&fake.add, "kg_fake_add");
    reach(&fake.last, "kg_fake_last");
    reach(&fake.seconds, "kg_fake_seconds");
    reach(&fake.things, "kg_fake_things");
    fake.set(mode);
    fake.add(8); /* kedge's own kernel has other bits */
    kg_emu_clock(fake.seconds);
    assert_int_equal(open_by(products, "lib"), KG_OK);
}

static void use(enum kg_fake_mode mode) { use_by("cublas", mode); }

/* Opens the same library, without any known plans. */
static void use_anew(void)
{
    setenv("KEDGE_TEST_PRODUCTS", "own", true);
    assert_int_equal(kg_emu_open(&(const struct kg_backend *){NULL}, &err), KG_OK);
    assert_int_equal(open_with("lib"), KG_OK);
}

static int end(void **state)
{
    int things = 0;
    void *stays = &things; /* the library, until the process ends */

    setenv("KEDGE_TEST_PRODUCTS", "own", true);
    (void)backend();
    kg_emu_clock(NULL);
    if (fake.object) {
        things = fake.things();
        dlclose(fake.object);
        stays = dlopen(in_dir("lib/" BLAS_FILE), RTLD_LAZY | RTLD_NOLOAD);
    }
    memset(&fake, 0, sizeof fake);
    return remove_dir(state) != 0 || things != 0 || !stays;
}

static int end_but_scratch(void **state)
{
    (void)end(state);
    return kg_file_exists(in_dir("lib"));
}

/* ---- products ---- */
struct operands {
    struct kg_mat a, b, c;
};

static struct kg_mat matrix_of(enum kg_dtype dtype, int64_t rows, int64_t cols,
                               uint32_t seed)
{
    struct kg_mat m = kg_mat(buffer_of(rows * cols, kg_dtype_traits(dtype)->bytes), dtype,
                             rows, cols);

    for (int64_t i = 0; i < rows * cols; i++) {
        seed = seed * 1664525u + 1013904223u;
        if (dtype == KG_BF16)
            ((uint16_t *)m.data)[i] = (uint16_t)((seed >> 16 & 0x83ffu) + (123u << 7));
        else
            ((float *)m.data)[i] = (float)(int32_t)seed * 0x1p-28f;
    }
    return m;
}

static struct operands operands_of(enum kg_matmul_kind kind, enum kg_dtype c, int64_t m)
{
    const bool tn = kind == KG_MATMUL_TN;

    return (struct operands){matrix_of(KG_BF16, m, tn ? N : K, 1),
                             kind == KG_MATMUL_NT
                                 ? matrix_of(KG_BF16, N, K, 2)
                                 : matrix_of(KG_BF16, tn ? m : K, tn ? K : N, 2),
                             matrix_of(c, tn ? N : m, tn ? K : N, 3)};
}

static void release(struct operands *o)
{
    buffer_free(o->a.data);
    buffer_free(o->b.data);
    buffer_free(o->c.data);
}

static void multiply(const struct operands *o, enum kg_matmul_kind kind, bool accumulate)
{
    if (kg_op_matmul(backend(), o->c, o->a, o->b, kind, accumulate, &err) != KG_OK)
        fail_msg("%s", err.message);
}

/* The first m rows of o, with their own C. */
static struct operands rows_of(const struct operands *o, int64_t m)
{
    struct operands some = {kg_mat_rows(o->a, 0, m), o->b, o->c};

    some.c = matrix_of(o->c.dtype, m, N, 3);
    return some;
}

/* Asserts which plan makes m rows of such a C, and how many of them in the last call. */
static void of_type_is_made_by(enum kg_dtype c, bool accumulate, int64_t m,
                               enum kg_fake_plan plan, int64_t rows)
{
    struct operands o = operands_of(KG_MATMUL_NT, c, m);
    struct kg_fake_last last;

    multiply(&o, KG_MATMUL_NT, accumulate);
    last = fake.last();
    if (last.plan != plan || last.rows != rows)
        fail_msg("%d rows: expected plan %d of %d, found plan %d of %d", (int)m, plan,
                 (int)rows, last.plan, (int)last.rows);
    release(&o);
}

static void is_made_by(int64_t m, enum kg_fake_plan plan, int64_t rows)
{
    of_type_is_made_by(KG_F32, false, m, plan, rows);
}

/* ---- which plans ---- */
static void the_fastest_of_those_with_the_bits_is_taken(void **state)
{
    (void)state;
    use(KG_FAKE_USUAL);
    is_made_by(16, KG_FAKE_ODD, 16);
    is_made_by(64, KG_FAKE_ODD, 64);
    is_made_by(100, KG_FAKE_ODD, 100);
    is_made_by(1000, KG_FAKE_ODD, 1000);
    is_made_by(1025, KG_FAKE_STEADY, 1025);
}

/* If the fastest plan has other bits at this number of rows, another plan is used. */
static void a_plan_is_tried_at_every_number_of_rows(void **state)
{
    (void)state;
    use(KG_FAKE_USUAL);
    is_made_by(15, KG_FAKE_ODD, 15);
    is_made_by(17, KG_FAKE_GAP, 17);
    is_made_by(99, KG_FAKE_GAP, 99);
    is_made_by(101, KG_FAKE_FEW, 101);
    is_made_by(131, KG_FAKE_GAP, 131);
    is_made_by(17, KG_FAKE_GAP, 17);
}

/* Many rows are made 4,096 at a time, and each number is tried as few rows are. A plan
 * that has other bits from some number on makes 1,024 at a time. */
static void many_rows_are_tried_too(void **state)
{
    (void)state;
    use(KG_FAKE_USUAL);
    is_made_by(3001, KG_FAKE_STEADY, 3001);
    is_made_by(4096, KG_FAKE_STEADY, 4096);
    is_made_by(4096 + 2000, KG_FAKE_STEADY, 2000);
    fake.set(KG_FAKE_OTHER_HUGE);
    use_anew();
    is_made_by(3000, KG_FAKE_HUGE, 3000);
    is_made_by(3001, KG_FAKE_HUGE, 3001 - 1024);
    is_made_by(4096 + 100, KG_FAKE_HUGE, 4096 + 100 - 2048);
    fake.set(KG_FAKE_OTHER_MANY);
    use_anew();
    is_made_by(2000, KG_FAKE_MANY, 2000 - 1024);
}

static void where_no_plan_has_the_bits_rows_are_padded(void **state)
{
    (void)state;
    use(KG_FAKE_NONE_FOR_FEW);
    is_made_by(1, KG_FAKE_BIG, 256);
    is_made_by(64, KG_FAKE_BIG, 256);
    is_made_by(65, KG_FAKE_BIG, 65);
}

/* The first offer cannot make 1,024 rows; the next two have the bits of one plan each for
 * few rows. Then kedge's own kernel, with the second's bits, is one more. */
static void the_reference_has_the_bits_of_most_plans_for_few_rows(void **state)
{
    (void)state;
    use(KG_FAKE_TWO_CLASSES);
    is_made_by(1025, KG_FAKE_HALVES, 1025);
    is_made_by(16, KG_FAKE_HALVES, 16);
    fake.add(16);
    use_anew();
    is_made_by(1025, KG_FAKE_STEADY, 1025);
}

static void a_fifth_offer_is_no_reference(void **state)
{
    (void)state;
    use(KG_FAKE_FIFTH);
    is_made_by(1025, KG_FAKE_HALVES, 1025);
    is_made_by(16, KG_FAKE_HALVES, 16);
}

/* A plan with the right bits for one type of C may have other bits for another type, or
 * if C is accumulated; so may the reference. The order of calls does not matter. */
static void each_type_of_result_has_a_class_of_its_own(void **state)
{
    (void)state;
    use(KG_FAKE_BY_ADDING);
    for (int i = 0; i < 2; i++) {
        of_type_is_made_by(KG_F32, false, 40, KG_FAKE_ADDS, 40);
        of_type_is_made_by(KG_F32, true, 40, KG_FAKE_FEW, 40);
        use_anew();
        of_type_is_made_by(KG_F32, true, 40, KG_FAKE_FEW, 40);
    }
    fake.set(KG_FAKE_OTHER_NARROW);
    use_anew();
    for (int i = 0; i < 2; i++) {
        of_type_is_made_by(KG_F32, false, 40, KG_FAKE_FEW, 40);
        of_type_is_made_by(KG_BF16, false, 40, KG_FAKE_HALVES, 40);
        use_anew();
        of_type_is_made_by(KG_BF16, false, 40, KG_FAKE_HALVES, 40);
    }
}

/* kedge's own kernel takes no time on the emulation's clock: for few rows, it is used
 * exactly if its bits are the reference's. */
static void own_products_are_taken_where_they_have_the_bits(void **state)
{
    static const int64_t rows[] = {1, 16, 17, 64, 100, 131, 256, 1000, 1024};
    static const int64_t added[] = {8, 16, 24, 48};
    (void)state;
    use(KG_FAKE_USUAL);
    for (size_t w = 0; w < sizeof added / sizeof *added; w++) {
        fake.add(added[w]);
        use_anew();
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct operands o = operands_of(KG_MATMUL_NT, KG_F32, rows[i]);
            multiply(&o, KG_MATMUL_NT, false);
            fake.set(KG_FAKE_USUAL);                /* the trials are forgotten */
            const int64_t four = kg_emu_products(); /* of four warps, before this call */
            multiply(&o, KG_MATMUL_NT, false);
            if ((fake.last().rows == 0) != (added[w] == 16) ||
                (kg_emu_products() > four) != (added[w] == 16 && rows[i] > 64))
                fail_msg("%d rows, %d at once: by the plan of %d rows", (int)rows[i],
                         (int)added[w], (int)fake.last().rows);
            release(&o);
        }
        is_made_by(1025, KG_FAKE_STEADY, 1025);
    }
}

static void nor_does_a_row_that_is_an_own_product(void **state)
{
    static const int64_t rows[] = {1, 7, 15, 16, 17, 63, 100, 255, 256, 300, 1024};
    struct operands o;

    (void)state;
    use(KG_FAKE_USUAL);
    fake.add(16);
    use_anew();
    o = operands_of(KG_MATMUL_NT, KG_F32, SEVERAL);
    multiply(&o, KG_MATMUL_NT, false);
    assert_int_equal(fake.last().plan, KG_FAKE_STEADY);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct operands some = rows_of(&o, rows[i]);

        multiply(&some, KG_MATMUL_NT, false);
        assert_memory_equal(some.c.data, o.c.data, (size_t)(rows[i] * N) * 4);
        buffer_free(some.c.data);
    }
    release(&o);
}

/* The sanitizer, ten times slower, looks for memory errors: numbers of rows next to a
 * multiple of sixteen take every branch of a choice. */
static bool is_left_out(int64_t m) { return SANITIZED && (m + 1) % 16 > 2; }

/* For each number of rows and each type of C, a row equals the same row among many. */
static void no_row_depends_on(enum kg_matmul_kind kind, enum kg_dtype dtype,
                              bool accumulate)
{
    static const int64_t more[] = {1024, 1025};
    struct operands o = operands_of(kind, dtype, SEVERAL);
    const size_t row = N * kg_dtype_traits(dtype)->bytes;
    bool differs = false;

    multiply(&o, kind, accumulate);
    for (int64_t m = 1; m <= 302; m++) {
        const int64_t rows = m > 300 ? more[m - 301] : m;
        struct operands some;

        if (m <= 300 && is_left_out(m))
            continue;
        some = rows_of(&o, rows);
        multiply(&some, kind, accumulate);
        differs = differs || memcmp(some.c.data, o.c.data, (size_t)rows * row) != 0;
        if (differs)
            fail_msg("%d rows differ from the same among %d", (int)rows, SEVERAL);
        buffer_free(some.c.data);
    }
    release(&o);
}

static void a_row_does_not_depend_on_the_number_of_rows(void **state)
{
    (void)state;
    use(KG_FAKE_USUAL);
    no_row_depends_on(KG_MATMUL_NT, KG_F32, false);
    no_row_depends_on(KG_MATMUL_NT, KG_BF16, false);
    no_row_depends_on(KG_MATMUL_NN, KG_F32, true);
}

static void nor_where_rows_are_padded(void **state)
{
    (void)state;
    use(KG_FAKE_NONE_FOR_FEW);
    no_row_depends_on(KG_MATMUL_NT, KG_F32, true);
    no_row_depends_on(KG_MATMUL_NN, KG_BF16, false);
}

/* Rows among 9,000 and alone, if the reference has other bits for many rows. */
static void nor_where_a_plan_has_other_bits_for_many(void **state)
{
    enum { ALL = 9000 };
    static const int64_t some[] = {1, 1024, 1025, 2049, 3001, 4096, 4097, 8191};
    struct operands o;

    (void)state;
    use(KG_FAKE_OTHER_HUGE);
    o = operands_of(KG_MATMUL_NT, KG_F32, ALL);
    multiply(&o, KG_MATMUL_NT, false);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        struct operands alone = rows_of(&o, some[i]);

        multiply(&alone, KG_MATMUL_NT, false);
        assert_memory_equal(alone.c.data, o.c.data,
                            (size_t)(some[i] * N) * sizeof(float));
        buffer_free(alone.c.data);
    }
    release(&o);
}

/* A vocabulary of several strips, aligned or not; with logits and without. */
static void a_log_prob_does_not_depend_on_the_rows_beside_it(void **state)
{
    enum { ROWS = 24, WIDTH = 64 };
    static const int64_t vocabularies[] = {1000, 1001};

    (void)state;
    use(KG_FAKE_OTHER_WIDE);
    for (size_t i = 0; i < 2; i++) {
        const int64_t V = vocabularies[i];
        struct kg_head h = {.hidden = matrix_of(KG_BF16, ROWS, WIDTH, 5),
                            .weight = matrix_of(KG_BF16, V, WIDTH, 6)};
        double all[ROWS], one;
        float *logits = calloc((size_t)V, sizeof *logits);
        struct kg_head alone = h;

        assert_non_null(logits);
        assert_int_equal(
            kg_op_head(backend(), &(struct kg_head_out){.lse = all}, &h, &err), KG_OK);
        for (int64_t n = 0; n < ROWS; n++)
            for (int asks = 0; asks < 2; asks++) {
                const struct kg_head_out out = {.lse = &one,
                                                .logits = asks ? logits : NULL};

                alone.hidden = kg_mat_rows(h.hidden, n, 1);
                assert_int_equal(kg_op_head(backend(), &out, &alone, &err), KG_OK);
                assert_memory_equal(&one, &all[n], sizeof one);
            }
        free(logits);
        buffer_free(h.hidden.data);
        buffer_free(h.weight.data);
    }
}

/* All tokens at once equal the first chunk and then the others. The last chunk, of four
 * tokens, is too short for any plan. */
static void sums_over_tokens_are_chunk_by_chunk(void **state)
{
    enum { TOKENS = 2 * KG_PRODUCT_CHUNK + 4 };
    struct operands once, first, then;

    (void)state;
    use(KG_FAKE_USUAL);
    once = operands_of(KG_MATMUL_TN, KG_F32, TOKENS);
    first = (struct operands){kg_mat_rows(once.a, 0, KG_PRODUCT_CHUNK),
                              kg_mat_rows(once.b, 0, KG_PRODUCT_CHUNK),
                              matrix_of(KG_F32, N, K, 4)};
    then = (struct operands){
        kg_mat_rows(once.a, KG_PRODUCT_CHUNK, TOKENS - KG_PRODUCT_CHUNK),
        kg_mat_rows(once.b, KG_PRODUCT_CHUNK, TOKENS - KG_PRODUCT_CHUNK), first.c};
    multiply(&once, KG_MATMUL_TN, false);
    assert_int_equal(fake.last().plan, KG_FAKE_HALVES);
    multiply(&first, KG_MATMUL_TN, false);
    multiply(&then, KG_MATMUL_TN, true);
    assert_memory_equal(once.c.data, first.c.data, N * K * sizeof(float));
    buffer_free(first.c.data);
    release(&once);
}

/* Shape and alignment alone decide, for one row and for many. */
static void odd_shapes_are_own_products(void **state)
{
    (void)state;
    use(KG_FAKE_USUAL);
    for (int64_t m = 1; m < 2000; m += 1500) {
        struct operands o = operands_of(KG_MATMUL_NT, KG_F32, m);

        o.a.cols = o.b.cols = K - 4;
        multiply(&o, KG_MATMUL_NT, false);
        assert_int_equal(fake.last().rows, 0);
        o.a.cols = o.b.cols = K - 8;
        o.a.data = (uint16_t *)o.a.data + 4;
        multiply(&o, KG_MATMUL_NT, false);
        assert_int_equal(fake.last().rows, 0);
        o.a.data = (uint16_t *)o.a.data + 4;
        multiply(&o, KG_MATMUL_NT, false);
        assert_int_equal(fake.last().rows, m);
        o.a.data = (uint16_t *)o.a.data - 8;
        release(&o);
        fake.set(KG_FAKE_USUAL);
    }
}

static void products_of_fp32_are_exact(void **state)
{
    struct kg_mat a, c;

    (void)state;
    use(KG_FAKE_USUAL);
    a = matrix_of(KG_F32, 8, 8, 1);
    c = matrix_of(KG_F32, 8, 8, 2);
    assert_int_equal(kg_op_matmul(backend(), c, a, a, KG_MATMUL_NT, false, &err), KG_OK);
    assert_int_equal(fake.last().rows, 0);
    buffer_free(a.data);
    buffer_free(c.data);
}

/* The text that users see, and by which a resumed run is compared. */
static void the_library_and_its_plans_are_named(void **state)
{
    /* other offers for many rows, and for few only */
    static const enum kg_fake_mode others[] = {KG_FAKE_OTHER_MANY, KG_FAKE_OTHER_FEW};
    char usual[300], other[300], again[300];
    const char *behind;

    (void)state;
    use(KG_FAKE_USUAL);
    backend()->describe(usual, sizeof usual);
    if (strncmp(usual, "emu, products: cublas 13.1.0, plans ", 36) != 0 ||
        !strstr(usual, in_dir("lib/" BLAS_FILE)))
        fail_msg("%s", usual);
    assert_true(backend()->exact(KG_F32) && !backend()->exact(KG_BF16));
    /* depends on what plans are, not on other bytes of theirs */
    for (int i = 0; i < 10; i++) {
        backend()->describe(again, sizeof again);
        assert_string_equal(again, usual);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        fake.set(others[i]);
        backend()->describe(other, sizeof other);
        behind = strchr(other + 36, ' ');
        assert_non_null(behind);
        assert_memory_equal(usual, other, 36);
        assert_int_not_equal(
            strncmp(usual + 36, other + 36, (size_t)(behind - other - 36)), 0);
    }
}

/* ---- unpinned: what exactness is measured against ---- */
/* Unpinned, plans may split sums and use memory; each shape is tried once. */
static void unpinned_the_fastest_of_all_is_taken(void **state)
{
    double before;

    (void)state;
    use_by("unpinned", KG_FAKE_USUAL);
    is_made_by(16, KG_FAKE_WORKSPACE, 16);
    is_made_by(17, KG_FAKE_WORKSPACE, 17);
    is_made_by(1025, KG_FAKE_SPLIT, 1025);
    is_made_by(9000, KG_FAKE_SPLIT, 9000);
    before = fake.seconds();
    is_made_by(9000, KG_FAKE_SPLIT, 9000);
    assert_true(fake.seconds() - before == 0.5);
    fake.set(KG_FAKE_NONE_FOR_FEW);
    is_made_by(1, KG_FAKE_HALVES, 1);
}

/* The fastest plan omits factors: it is not taken for any kind, type of C, accumulation
 * or number of rows. */
static void unpinned_a_plan_without_the_product_is_not_taken(void **state)
{
    static const int64_t rows[] = {1, 16, 40, 1100};

    (void)state;
    use_by("unpinned", KG_FAKE_WRONG);
    for (int i = 0; i < 5 * 4; i++) {
        const enum kg_matmul_kind kind = (enum kg_matmul_kind)(i % 5 % 3);
        struct operands o;

        if (kind == KG_MATMUL_TN && rows[i / 5] < 16)
            continue; /* no more factors than the plan omits */
        o = operands_of(kind, i % 5 == 1 ? KG_BF16 : KG_F32, rows[i / 5]);
        multiply(&o, kind, i % 5 >= 3);
        assert_int_not_equal(fake.last().plan, KG_FAKE_SHORT);
        release(&o);
    }
}

/* Products of each kind, accumulating or not; a sum over tokens is one call. */
static void unpinned_products_are_products(void **state)
{
    enum { MANY = 2 * KG_PRODUCT_CHUNK + 8 };
    static const enum kg_matmul_kind kinds[] = {KG_MATMUL_NT, KG_MATMUL_NN, KG_MATMUL_TN};

    (void)state;
    use_by("unpinned", KG_FAKE_USUAL);
    for (int i = 0; i < 6; i++) {
        const enum kg_matmul_kind kind = kinds[i % 3];
        struct operands o = operands_of(kind, KG_F32, MANY), pinned = o;
        const int64_t n = o.c.rows * o.c.cols;
        double apart = 0, size = 0;

        multiply(&o, kind, i >= 3);
        assert_int_equal(fake.last().factors, kind == KG_MATMUL_TN ? MANY : K);
        use_anew();
        pinned.c = matrix_of(KG_F32, o.c.rows, o.c.cols, 3);
        multiply(&pinned, kind, i >= 3);
        for (int64_t j = 0; j < n; j++) {
            apart += fabs(((float *)o.c.data)[j] - ((float *)pinned.c.data)[j]);
            size += fabs(((float *)pinned.c.data)[j]);
        }
        assert_true(apart > 0 && apart < 1e-5 * size);
        assert_int_equal(open_by("unpinned", "lib"), KG_OK);
        buffer_free(pinned.c.data);
        release(&o);
    }
}

/* Measurements say that plans were not pinned; runs never use this. */
static void unpinned_is_said(void **state)
{
    char text[300];

    (void)state;
    use_by("unpinned", KG_FAKE_USUAL);
    backend()->describe(text, sizeof text);
    assert_int_equal(strncmp(text, "emu, products: cublas 13.1.0, unpinned of ", 42), 0);
    use_anew();
    backend()->describe(text, sizeof text);
    assert_null(strstr(text, "unpinned"));
}

/* Rows with gaps between them, after rows without. */
static void unpinned_rows_may_lie_apart(void **state)
{
    struct operands o, apart;

    (void)state;
    use_by("unpinned", KG_FAKE_USUAL);
    o = operands_of(KG_MATMUL_NT, KG_F32, 40);
    apart = o;
    apart.c = matrix_of(KG_F32, 40, 2 * o.c.cols, 3);
    apart.c.cols = o.c.cols;
    multiply(&o, KG_MATMUL_NT, false);
    fake.set(KG_FAKE_USUAL); /* forgets the last product */
    multiply(&apart, KG_MATMUL_NT, false);
    for (int64_t r = 0; r < 40; r++)
        assert_memory_equal((float *)apart.c.data + r * apart.c.stride,
                            (float *)o.c.data + r * o.c.stride,
                            (size_t)o.c.cols * sizeof(float));
    buffer_free(apart.c.data);
    release(&o);
}

/* `who` still makes products, with the bits of before. */
static void is_still_by(const char *who, const struct operands *o, const float *before)
{
    char text[300];

    backend()->describe(text, sizeof text);
    assert_non_null(strstr(text, who));
    assert_null(strstr(text, "unpinned"));
    multiply(o, KG_MATMUL_NT, false);
    assert_memory_equal(o->c.data, before, (size_t)(o->c.rows * o->c.cols) * 4);
}

static void a_change_that_fails_changes_nothing(void **state)
{
    float before[40 * N];
    struct operands o;

    (void)state;
    use(KG_FAKE_USUAL);
    o = operands_of(KG_MATMUL_NT, KG_F32, 40);
    multiply(&o, KG_MATMUL_NT, false);
    memcpy(before, o.c.data, sizeof before);
    kg_mem_fail_at(1);
    assert_int_equal(open_by("unpinned", "lib"), KG_ENOMEM);
    kg_mem_fail_at(0);
    setenv("KEDGE_TEST_PRODUCTS", "cublas", true);
    is_still_by("products: cublas 13.1.0, plans", &o, before);
    assert_int_equal(open_by("own", "lib"), KG_OK);
    multiply(&o, KG_MATMUL_NT, false);
    memcpy(before, o.c.data, sizeof before);
    kg_mem_fail_at(1);
    assert_int_equal(open_by("unpinned", "lib"), KG_ENOMEM);
    kg_mem_fail_at(0);
    assert_int_equal(open_with("elsewhere"), KG_ENOTFOUND); /* nothing is left open */
    setenv("KEDGE_TEST_PRODUCTS", "own", true);
    is_still_by("products: own", &o, before);
    release(&o);
}

static void unpinned_a_shape_without_plans_is_refused(void **state)
{
    struct operands o;

    (void)state;
    use_by("unpinned", KG_FAKE_EMPTY);
    o = operands_of(KG_MATMUL_NT, KG_F32, 3);
    assert_int_equal(kg_op_matmul(backend(), o.c, o.a, o.b, KG_MATMUL_NT, false, &err),
                     KG_EDEVICE);
    assert_string_equal(err.message,
                        "cublas 13.1.0: product of bf16 to fp32, 3 x 24 of 48 factors: "
                        "expected an algorithm of cuBLAS, found none");
    release(&o);
}

/* ---- memory ---- */
/* Makes the first product of m rows while every allocation fails. */
static void is_made_when_full(const struct operands *all, enum kg_matmul_kind kind,
                              bool accumulate, int64_t m)
{
    const size_t bytes = (size_t)(m * N) * kg_dtype_traits(all->c.dtype)->bytes;
    struct operands some = rows_of(all, m);
    kg_status status;

    kg_mem_fail_at(1);
    status = kg_op_matmul(backend(), some.c, some.a, some.b, kind, accumulate, &err);
    kg_mem_fail_at(0);
    if (status != KG_OK)
        fail_msg("%d rows: %s", (int)m, err.message);
    assert_memory_equal(some.c.data, all->c.data, bytes);
    buffer_free(some.c.data);
}

/* What kg_product_room says is enough for a weight at every number of rows: tried, padded
 * or divided. */
static void needs_no_more(enum kg_fake_mode mode, enum kg_matmul_kind kind,
                          enum kg_dtype dtype, bool accumulate)
{
    static const int64_t rows[] = {1, 17, 65, 101, 256, 999, 1024, 1025, 3001, 4096};
    struct operands o;

    fake.set(mode);
    use_anew();
    assert_int_equal(kg_op_reserve(backend(), kg_product_room(N, K), &err), KG_OK);
    o = operands_of(kind, dtype, 2 * KG_PRODUCT_TRIED);
    multiply(&o, kind, accumulate);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        is_made_when_full(&o, kind, accumulate, rows[i]);
    release(&o);
}

static void trials_take_what_was_reserved(void **state)
{
    (void)state;
    use(KG_FAKE_USUAL);
    needs_no_more(KG_FAKE_USUAL, KG_MATMUL_NT, KG_BF16, false);
    needs_no_more(KG_FAKE_USUAL, KG_MATMUL_NN, KG_F32, true);
    needs_no_more(KG_FAKE_NONE_FOR_FEW, KG_MATMUL_NT, KG_F32, true);
    needs_no_more(KG_FAKE_OTHER_HUGE, KG_MATMUL_NT, KG_F32, false);
}

/* For a shape without reserved memory, the error names what is missing, and only this
 * product fails. */
static void a_trial_without_memory_is_refused_and_made_later(void **state)
{
    struct operands o;

    (void)state;
    use(KG_FAKE_USUAL);
    o = operands_of(KG_MATMUL_NT, KG_F32, 1100);
    multiply(&o, KG_MATMUL_NT, false);
    is_made_when_full(&o, KG_MATMUL_NT, false, 1000);
    release(&o);
    o = operands_of(KG_MATMUL_NT, KG_F32, 2000);
    kg_mem_fail_at(1);
    assert_int_equal(kg_op_matmul(backend(), o.c, o.a, o.b, KG_MATMUL_NT, false, &err),
                     KG_ENOMEM);
    assert_non_null(strstr(err.message, "trials of products"));
    kg_mem_fail_at(0);
    multiply(&o, KG_MATMUL_NT, false);
    is_made_when_full(&o, KG_MATMUL_NT, false, 1100);
    release(&o);
}

/* ---- refusals ---- */
static void refuses_product(enum kg_fake_mode mode, int64_t m, const char *says)
{
    struct operands o;

    use(mode);
    o = operands_of(KG_MATMUL_NT, KG_F32, m);
    assert_int_equal(kg_op_matmul(backend(), o.c, o.a, o.b, KG_MATMUL_NT, false, &err),
                     KG_EDEVICE);
    if (!strstr(err.message, says) || !strstr(err.message, "N 24, K 48") ||
        !strstr(err.message, "products=own"))
        fail_msg("expected \"%s\" in \"%s\"", says, err.message);
    release(&o);
}

static void a_shape_without_plans_is_refused(void **state)
{
    (void)state;
    refuses_product(KG_FAKE_NOTHING, 3, "expected a plan without split sums");
}

static void refuses(const char *folder, kg_status code, const char *says)
{
    assert_int_equal(open_with(folder), code);
    if (!strstr(err.message, says) || strncmp(err.message, "cublas: ", 8) != 0 ||
        !strstr(err.message, "; products=own needs no cuBLASLt"))
        fail_msg("expected \"%s\" in \"%s\"", says, err.message);
}

static void a_library_that_is_not_there_is_refused(void **state)
{
    char says[200];

    (void)state;
    snprintf(says, sizeof says, "cublas: no " BLAS_FILE " in %s;", in_dir("nowhere"));
    refuses("nowhere", KG_ENOTFOUND, says);
}

/* The open library, whose plans are pinned, stays in use; another one is refused. */
static void a_second_library_is_refused(void **state)
{
    char says[300], text[300];

    (void)state;
    use(KG_FAKE_USUAL);
    copy_blas("other");
    snprintf(says, sizeof says, "cublas: expected %s, found ",
             in_dir("other/" BLAS_FILE));
    assert_int_equal(open_with("other"), KG_ECONFLICT);
    if (strncmp(err.message, says, strlen(says)) != 0 ||
        !strstr(err.message, in_dir("lib/" BLAS_FILE " open: a process has one library")))
        fail_msg("%s", err.message);
    assert_int_equal(open_with("nowhere"), KG_ENOTFOUND);
    setenv("KEDGE_TEST_PRODUCTS", "cublas", true);
    setenv("KEDGE_TEST_LIBRARIES", in_dir("lib"), true);
    is_made_by(16, KG_FAKE_ODD, 16);
    backend()->describe(text, sizeof text);
    assert_non_null(strstr(text, in_dir("lib/" BLAS_FILE)));
    assert_int_equal(symlink("lib", in_dir("link")), 0);
    assert_int_equal(open_with("link"), KG_OK);
}

static void a_library_that_is_none_is_refused(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_dir("text"), 0777), 0);
    put("text/" BLAS_FILE, "some text, longer than the header of a library is, so that "
                           "it is read as one\n");
    refuses("text", KG_EFORMAT, in_dir("text/" BLAS_FILE));
}

static void a_library_without_a_symbol_is_refused(void **state)
{
    (void)state;
    make_blas("half", "130100", "KG_LT_OK", "cublasLtOther");
    refuses("half", KG_EFORMAT, "expected the symbol cublasLtMatmul, found none");
}

static void an_older_library_is_refused(void **state)
{
    (void)state;
    make_blas("older", "120604", "KG_LT_OK", "cublasLtMatmul");
    refuses("older", KG_ECONFLICT, "expected version 13 or newer, found 12.6.4");
}

static void a_library_that_does_not_start_is_refused(void **state)
{
    (void)state;
    make_blas("stopped", "130100", "KG_LT_NOT_INITIALIZED", "cublasLtMatmul");
    refuses("stopped", KG_EDEVICE, "does not start: CUBLAS_STATUS_NOT_INITIALIZED");
}

int main(void)
{
#define OF(test) cmocka_unit_test_setup_teardown(test, make_dir, end)
    const struct CMUnitTest tests[] = {
        OF(the_fastest_of_those_with_the_bits_is_taken),
        OF(a_plan_is_tried_at_every_number_of_rows),
        OF(many_rows_are_tried_too),
        OF(where_no_plan_has_the_bits_rows_are_padded),
        OF(the_reference_has_the_bits_of_most_plans_for_few_rows),
        OF(a_fifth_offer_is_no_reference),
        OF(each_type_of_result_has_a_class_of_its_own),
        OF(a_row_does_not_depend_on_the_number_of_rows),
        OF(nor_where_rows_are_padded),
        OF(nor_does_a_row_that_is_an_own_product),
        OF(own_products_are_taken_where_they_have_the_bits),
        OF(nor_where_a_plan_has_other_bits_for_many),
        OF(trials_take_what_was_reserved),
        OF(a_trial_without_memory_is_refused_and_made_later),
        OF(sums_over_tokens_are_chunk_by_chunk),
        OF(odd_shapes_are_own_products),
        OF(products_of_fp32_are_exact),
        OF(the_library_and_its_plans_are_named),
        OF(a_shape_without_plans_is_refused),
        OF(unpinned_the_fastest_of_all_is_taken),
        OF(unpinned_a_plan_without_the_product_is_not_taken),
        OF(unpinned_products_are_products),
        OF(unpinned_is_said),
        OF(unpinned_rows_may_lie_apart),
        OF(a_change_that_fails_changes_nothing),
        OF(unpinned_a_shape_without_plans_is_refused),
        OF(a_library_that_is_not_there_is_refused),
        OF(a_second_library_is_refused),
        OF(a_library_that_is_none_is_refused),
        OF(a_library_without_a_symbol_is_refused),
        OF(an_older_library_is_refused),
        OF(a_library_that_does_not_start_is_refused),
        /* the last: an operation's scratch stays */
        cmocka_unit_test_setup_teardown(a_log_prob_does_not_depend_on_the_rows_beside_it,
                                        make_dir, end_but_scratch),
    };
    const struct CMUnitTest none_here[] = {cmocka_unit_test(kernels_are_not_emulated)};

    if (!use_backend("emu"))
        return 0;
    return kg_emu_open ? cmocka_run_group_tests(tests, NULL, NULL)
                       : cmocka_run_group_tests(none_here, NULL, NULL);
}
