/* The vocabulary head of every backend has the CPU's bits: random problems, forward and
 * backward, with NaN and infinite logits, ids requested twice, sets in both forms, and
 * rows without a gradient.
 */
#include "tensor/matrix_testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_V = 263000 };

struct problem {
    enum kg_dtype dtype;
    int64_t n, d, v;
    int k, top_k;
    bool tempered, anchored, with_sets;
    float softcap; /* 0: none */
    double broken; /* one weight that is NaN, infinite or huge; 0: none */
    struct kg_mat hidden, weight;
    float *inv_temp;
    int32_t *target, *indices;
    struct kg_idset *sets;
    uint8_t *packed; /* (n) bitmaps at most */
    struct kg_head_anchor anchor;
    void *kept; /* of the backend, or NULL */
};

/* Uniform in [0, n). */
static int64_t below(int64_t n)
{
    return (int64_t)((uniform() + 1.0) * 0.5 * (double)n) % n;
}

static void make_sets(struct problem *p)
{
    static const double share[] = {0, 0.002, 0.6, 0.05};
    const uint32_t most = kg_idset_most((int32_t)p->v);

    p->sets = block_of(p->n, sizeof *p->sets);
    p->packed = block_of(p->n, most);
    for (int64_t n = 0; n < p->n; n++) {
        uint64_t words[MOST_V / 64 + 1] = {0};

        for (int64_t v = 0; v < p->v; v++)
            if ((uniform() + 1) / 2 < share[n % 4])
                words[v / 64] |= (uint64_t)1 << v % 64;
        p->sets[n] = kg_idset_pack(p->packed + n * most, words, (int32_t)p->v);
    }
}

/* Hidden states are rows of a wider matrix; some ids are missing, some occur twice. */
static void problem_init(struct problem *p)
{
    random_state = 11;
    p->hidden = random_matrix(p->dtype, p->n, p->d + 8, 2.0);
    p->hidden.cols = p->d;
    p->weight = random_matrix(p->dtype, p->v, p->d, 1.0);
    p->inv_temp = p->tempered ? block_of(p->n, sizeof *p->inv_temp) : NULL;
    for (int64_t n = 0; p->tempered && n < p->n; n++)
        p->inv_temp[n] = n % 3 ? 1.0f + 0.4f * (float)uniform() : 1.0f;
    p->target = block_of(p->n, sizeof *p->target);
    p->indices = block_of(p->n * p->k, sizeof *p->indices);
    for (int64_t i = 0; i < p->n * p->k; i++)
        p->indices[i] = below(9) ? (int32_t)below(p->v) : -1;
    for (int64_t n = 0; n < p->n; n++) {
        p->target[n] = n % 3 && p->k ? p->indices[n * p->k] : (int32_t)below(p->v);
        if (p->k > 2 && n % 4 == 1)
            p->indices[n * p->k + 2] = p->indices[n * p->k];
    }
    if (p->with_sets)
        make_sets(p);
    if (p->broken != 0)
        set(p->weight, p->v / 2, 0, p->broken);
    if (!p->anchored)
        return;
    p->anchor.hidden = random_matrix(p->dtype, p->n, p->d + 3, 2.0);
    p->anchor.weight = random_matrix(p->dtype, p->v, p->d + 3, 1.0);
    p->anchor.inv_temp = p->inv_temp;
    p->anchor.softcap = p->softcap;
}

static void problem_release(struct problem *p)
{
    buffer_free(p->hidden.data);
    buffer_free(p->weight.data);
    buffer_free(p->anchor.hidden.data);
    buffer_free(p->anchor.weight.data);
    kg_mem_free(p->inv_temp);
    kg_mem_free(p->target);
    kg_mem_free(p->indices);
    kg_mem_free(p->sets);
    kg_mem_free(p->packed);
}

static struct kg_head head_of(const struct problem *p)
{
    return (struct kg_head){.hidden = p->hidden,
                            .weight = p->weight,
                            .inv_temp = p->inv_temp,
                            .softcap = p->softcap,
                            .target = p->target,
                            .indices = p->indices,
                            .k = p->k,
                            .top_k = p->top_k,
                            .sets = p->sets,
                            .anchor = p->anchored ? &p->anchor : NULL,
                            .kept = p->kept};
}

/* ---- results, a row of a table each ---- */
static const struct {
    const char *name;
    size_t at; /* in struct kg_head_out */
    size_t bytes;
    int each; /* values per row: 1, or K, top_k, V */
} results[] = {
    {"lse", offsetof(struct kg_head_out, lse), 8, 1},
    {"logp", offsetof(struct kg_head_out, logp), 4, 1},
    {"logp_at", offsetof(struct kg_head_out, logp_at), 4, 'k'},
    {"entropy", offsetof(struct kg_head_out, entropy), 4, 1},
    {"top_ids", offsetof(struct kg_head_out, top_ids), 4, 't'},
    {"top_logp", offsetof(struct kg_head_out, top_logp), 4, 't'},
    {"logits", offsetof(struct kg_head_out, logits), 4, 'v'},
    {"set_logp", offsetof(struct kg_head_out, set_logp), 8, 's'},
    {"kl_reverse", offsetof(struct kg_head_out, kl_reverse), 8, 'a'},
    {"kl_forward", offsetof(struct kg_head_out, kl_forward), 8, 'a'},
    {"anchor_lse", offsetof(struct kg_head_out, anchor_lse), 8, 'a'},
};
enum { N_RESULTS = sizeof results / sizeof *results };

static int64_t count_of(const struct problem *p, int result)
{
    const int each = results[result].each;

    return p->n * (each == 'k'   ? p->k
                   : each == 't' ? p->top_k
                   : each == 'v' ? p->v
                   : each == 's' ? p->with_sets
                   : each == 'a' ? p->anchored
                                 : 1);
}

static void *result_of(const struct kg_head_out *o, int result)
{
    void *x;

    memcpy(&x, (const char *)o + results[result].at, sizeof x);
    return x;
}

static struct kg_head_out out_init(const struct problem *p)
{
    struct kg_head_out o = {0};

    for (int i = 0; i < N_RESULTS; i++) {
        const int64_t n = count_of(p, i);
        void *x = n > 0 ? block_of(n, results[i].bytes) : NULL;

        memcpy((char *)&o + results[i].at, &x, sizeof x);
    }
    return o;
}

static void out_release(struct kg_head_out *o)
{
    for (int i = 0; i < N_RESULTS; i++)
        kg_mem_free(result_of(o, i));
}

/* Any NaN equals any other: its payload is unspecified. */
static bool same(const void *a, const void *b, size_t bytes)
{
    double x, y;
    float f, g;

    if (memcmp(a, b, bytes) == 0)
        return true;
    if (bytes == sizeof x)
        return memcpy(&x, a, bytes), memcpy(&y, b, bytes), isnan(x) && isnan(y);
    return memcpy(&f, a, bytes), memcpy(&g, b, bytes), isnan(f) && isnan(g);
}

static void all_same(const char *name, const void *a, const void *b, int64_t n,
                     size_t bytes)
{
    for (int64_t i = 0; i < n; i++)
        if (!same((const char *)a + (size_t)i * bytes,
                  (const char *)b + (size_t)i * bytes, bytes))
            fail_msg("%s differs at %lld of %lld", name, (long long)i, (long long)n);
}

/* ---- the two directions on two backends, from the same memory ---- */
static const struct kg_backend *cpu(void)
{
    const struct kg_backend *be = NULL;
    struct kg_err err;

    assert_int_equal(kg_backend_open(&be, "cpu", &err), KG_OK);
    return be;
}

static struct kg_head_out forward(const struct kg_backend *be, const struct problem *p)
{
    struct kg_head_out out = out_init(p);
    const struct kg_head h = head_of(p);
    struct kg_err err;

    if (kg_op_head(be, &out, &h, &err) != KG_OK)
        fail_msg("%s", err.message);
    return out;
}

struct gradient {
    double *a[6];
    struct kg_mat dhidden, dweight;
};

/* Coefficients of all kinds; every fifth row has none, every third row has one kind. */
static struct gradient gradient_init(const struct problem *p)
{
    struct gradient g;

    random_state = 5;
    for (int kind = 0; kind < 6; kind++) {
        const int64_t each = kind == 1 ? p->k : 1;

        g.a[kind] = block_of(p->n * each, sizeof(double));
        for (int64_t i = 0; i < p->n * each; i++) {
            const int64_t n = i / each;
            const bool has = n % 5 != 2 && (n % 3 != 1 || kind == n % 6);

            g.a[kind][i] = has && below(4) ? uniform() : 0;
        }
    }
    g.dhidden = random_matrix(KG_F32, p->n, p->d + 8, 1.0);
    g.dhidden.cols = p->d;
    g.dweight = random_matrix(KG_F32, p->v, p->d, 1.0);
    return g;
}

static void gradient_release(struct gradient *g)
{
    for (int kind = 0; kind < 6; kind++)
        kg_mem_free(g->a[kind]);
    buffer_free(g->dhidden.data);
    buffer_free(g->dweight.data);
}

static struct gradient backward(const struct kg_backend *be, const struct problem *p,
                                const struct kg_head_out *o)
{
    struct gradient g = gradient_init(p);
    const struct kg_head h = head_of(p);
    const struct kg_head_grad grad = {.lse = o->lse,
                                      .a_target = g.a[0],
                                      .a_indices = p->k ? g.a[1] : NULL,
                                      .a_entropy = g.a[2],
                                      .entropy = o->entropy,
                                      .a_kl_reverse = p->anchored ? g.a[3] : NULL,
                                      .a_kl_forward = p->anchored ? g.a[4] : NULL,
                                      .kl_reverse = o->kl_reverse,
                                      .anchor_lse = o->anchor_lse,
                                      .a_set = p->with_sets ? g.a[5] : NULL,
                                      .set_logp = o->set_logp,
                                      .dhidden = g.dhidden,
                                      .dweight = g.dweight};
    struct kg_err err;

    if (kg_op_head_bwd(be, &grad, &h, &err) != KG_OK)
        fail_msg("%s", err.message);
    return g;
}

static void compare(struct problem p)
{
    struct kg_head_out want, got;
    struct gradient dwant, dgot;

    problem_init(&p);
    want = forward(cpu(), &p);
    got = forward(backend(), &p);
    for (int i = 0; i < N_RESULTS; i++)
        if (result_of(&want, i))
            all_same(results[i].name, result_of(&want, i), result_of(&got, i),
                     count_of(&p, i), results[i].bytes);
    dwant = backward(cpu(), &p, &want);
    dgot = backward(backend(), &p, &want);
    all_same("dhidden", dwant.dhidden.data, dgot.dhidden.data, p.n * dwant.dhidden.stride,
             sizeof(float));
    all_same("dweight", dwant.dweight.data, dgot.dweight.data, p.v * p.d, sizeof(float));
    gradient_release(&dwant), gradient_release(&dgot);
    out_release(&want), out_release(&got);
    problem_release(&p);
}

/* Overwrites what the host has of the forward's requests and results. */
static void spoil(struct problem *p, struct kg_head_out *o)
{
    for (int64_t i = 0; i < p->n; i++) {
        o->lse[i] = o->kl_reverse[i] = o->anchor_lse[i] = -3;
        o->entropy[i] = 7;
        p->target[i] = 0;
        p->inv_temp[i] = 2;
    }
    for (int64_t i = 0; i < p->n * p->k; i++)
        p->indices[i] = p->indices[i] < 0 ? -1 : 0;
}

/* ---- tests ---- */
/* Vocabularies of one tile, two tiles of a strip, several strips, the widest tiles, and
 * more than a block of threads takes; every kind of output. */
static void all_wishes_have_the_bits_of_the_cpu(void **state)
{
    static const struct problem shapes[] = {
        {.dtype = KG_F32, .n = 1, .d = 1, .v = 1, .k = 1, .top_k = 1},
        {.dtype = KG_F32, .n = 3, .d = 8, .v = 5, .k = 3, .top_k = 5, .with_sets = true},
        {.dtype = KG_F32, .n = 30, .d = 8, .v = 300, .k = 0, .top_k = 0},
        {.dtype = KG_BF16, .n = 17, .d = 16, .v = 512, .k = 2, .top_k = 7},
        {.dtype = KG_BF16,
         .n = 29,
         .d = 40,
         .v = 1301,
         .k = 5,
         .top_k = 40,
         .tempered = true,
         .anchored = true,
         .with_sets = true},
        {.dtype = KG_F32,
         .n = 7,
         .d = 12,
         .v = 4400,
         .k = 33,
         .top_k = 64,
         .tempered = true,
         .anchored = true,
         .with_sets = true},
        {.dtype = KG_BF16, .n = 17, .d = 16, .v = 512, .k = 2, .top_k = 7, .softcap = 3},
        {.dtype = KG_F32,
         .n = 29,
         .d = 12,
         .v = 700,
         .k = 5,
         .top_k = 9,
         .tempered = true,
         .anchored = true,
         .with_sets = true,
         .softcap = 1.25f},
        {.dtype = KG_F32,
         .n = 3,
         .d = 2,
         .v = 16501,
         .k = 4,
         .top_k = 3,
         .tempered = true,
         .anchored = true,
         .with_sets = true},
        {.dtype = KG_F32, .n = 2, .d = 1, .v = 9002, .k = 1, .anchored = true},
        {.dtype = KG_F32, .n = 1, .d = 1, .v = MOST_V, .k = 2, .with_sets = true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        compare(shapes[i]);
}

/* A backend that keeps the requests and results of a forward reads those in the backward,
 * not the host's, which have changed. */
static void what_the_forward_kept_is_what_the_backward_reads(void **state)
{
    struct problem p = {.dtype = KG_F32,
                        .n = 29,
                        .d = 12,
                        .v = 700,
                        .k = 5,
                        .tempered = true,
                        .anchored = true,
                        .with_sets = true};
    struct kg_head_out want, got;
    struct gradient dwant, dgot;

    (void)state;
    problem_init(&p);
    want = forward(cpu(), &p);
    dwant = backward(cpu(), &p, &want);
    p.kept = buffer_of((int64_t)kg_head_kept_bytes(p.n, p.k), 1);
    got = forward(backend(), &p);
    if (backend()->keeps_heads)
        spoil(&p, &got);
    dgot = backward(backend(), &p, &got);
    all_same("dhidden", dwant.dhidden.data, dgot.dhidden.data, p.n * dwant.dhidden.stride,
             sizeof(float));
    all_same("dweight", dwant.dweight.data, dgot.dweight.data, p.v * p.d, sizeof(float));
    gradient_release(&dwant), gradient_release(&dgot);
    out_release(&want), out_release(&got);
    buffer_free(p.kept);
    problem_release(&p);
}

static void what_is_kept_without_lse_is_refused(void **state)
{
    struct problem p = {.dtype = KG_F32, .n = 3, .d = 4, .v = 300, .k = 1};
    const struct kg_head_out out = {0};
    struct kg_head h;
    struct kg_err err;

    (void)state;
    problem_init(&p);
    p.kept = buffer_of((int64_t)kg_head_kept_bytes(p.n, p.k), 1);
    h = head_of(&p);
    assert_int_equal(kg_op_head(cpu(), &out, &h, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "expected an array for lse"));
    buffer_free(p.kept);
    problem_release(&p);
}

/* Sums over more rows than a block of threads takes; rows without a gradient are
 * skipped. */
static void sums_over_many_rows_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    compare((struct problem){
        .dtype = KG_F32, .n = 2600, .d = 3, .v = 300, .k = 2, .top_k = 1});
    compare((struct problem){.dtype = KG_F32,
                             .n = 1500,
                             .d = 2,
                             .v = 530,
                             .k = 1,
                             .top_k = 1,
                             .tempered = true,
                             .anchored = true,
                             .with_sets = true});
}

static void what_is_no_number_is_none_in_the_same_places(void **state)
{
    static const double broken[] = {NAN, INFINITY, -INFINITY, 3e38};

    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        compare((struct problem){.dtype = KG_F32,
                                 .n = 6,
                                 .d = 4,
                                 .v = 600,
                                 .k = 3,
                                 .top_k = 4,
                                 .anchored = true,
                                 .with_sets = true,
                                 .broken = broken[i]});
}

/* A larger top_k than a warp holds; nearly all logits are equal. */
static void ties_have_the_order_of_the_cpu(void **state)
{
    struct problem p = {.dtype = KG_BF16, .n = 4, .d = 1, .v = 700, .k = 1, .top_k = 130};

    (void)state;
    compare(p);
    p.top_k = 700;
    compare(p);
}

/* Launches of a forward that is asked for lse alone, or for all but lists and sets. */
static int64_t launches_of(const struct problem *p, bool all)
{
    const int64_t before = kg_emu_lose(-1);
    struct kg_head_out out = out_init(p), asked = {.lse = out.lse};
    const struct kg_head h = head_of(p);
    struct kg_err err;

    if (all)
        asked = (struct kg_head_out){.lse = out.lse,
                                     .logp = out.logp,
                                     .logp_at = out.logp_at,
                                     .entropy = out.entropy};
    if (kg_op_head(backend(), &asked, &h, &err) != KG_OK)
        fail_msg("%s", err.message);
    out_release(&out);
    return kg_emu_lose(-1) - before;
}

/* Kernels take a few microseconds, so gaps between launches count. A group of tiles takes
 * two launches, whatever is asked of its logits but lists and sets; then one launch
 * combines the tiles of a row, and one subtracts lse. */
static void tiles_are_launched_twice_whatever_is_asked(void **state)
{
    struct problem p = {
        .dtype = KG_F32, .n = 5, .d = 8, .v = 700, .k = 3, .tempered = true};

    (void)state;
    if (!emulated())
        skip(); /* other backends count no launches */
    problem_init(&p);
    p.softcap = 3.0f;
    assert_int_equal(launches_of(&p, false), 3);
    assert_int_equal(launches_of(&p, true), 4);
    problem_release(&p);
}

/* Backward, four launches for a strip: its logits, their gradient and two products with
 * that. Four for the rows: their factors, and copies to and from their places. */
static void strips_are_launched_four_times_back(void **state)
{
    struct problem p = {
        .dtype = KG_F32, .n = 5, .d = 8, .v = 1300, .k = 3, .tempered = true};
    struct kg_head_out out;
    struct gradient g;
    int64_t before;

    (void)state;
    if (!emulated())
        skip();
    p.softcap = 3.0f;
    problem_init(&p);
    out = forward(cpu(), &p);
    before = kg_emu_lose(-1);
    g = backward(backend(), &p, &out);
    assert_int_equal(kg_emu_lose(-1) - before, 4 + 3 * 4); /* strips of 512 columns */
    gradient_release(&g);
    out_release(&out);
    problem_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_wishes_have_the_bits_of_the_cpu),
        cmocka_unit_test(what_the_forward_kept_is_what_the_backward_reads),
        cmocka_unit_test(what_is_kept_without_lse_is_refused),
        cmocka_unit_test(sums_over_many_rows_have_the_bits_of_the_cpu),
        cmocka_unit_test(what_is_no_number_is_none_in_the_same_places),
        cmocka_unit_test(ties_have_the_order_of_the_cpu),
    };
    const struct CMUnitTest of_kernels[] = {
        cmocka_unit_test(tiles_are_launched_twice_whatever_is_asked),
        cmocka_unit_test(strips_are_launched_four_times_back),
    };
    int failed = RUN_FAR_TOO(tests, NULL, NULL);

    failed += RUN_EMULATED(tests, NULL, NULL);
    return failed + RUN_EMULATED_ONCE(of_kernels, NULL, NULL);
}
