/* Operations of experts against plain double versions: routes with ties, products by
 * expert, weighted sums, and the gradient of a whole layer against finite differences.
 * Bits do not depend on threads, instruction set or other tokens, also with device
 * kernels, exact or by the matrix instruction.
 */
#include "tensor/matrix_testing.h"
#include "tensor/selfcheck.h"

#include <math.h>
#include <omp.h>

/* Enough work to start threads. */
enum { N = 67, D = 40, F = 24, E = 11, K = 3, R = N * K };

static struct kg_err err;
static const struct kg_ivec none_of;

#define OK(call) ok_or_fail(call, #call)
static void ok_or_fail(kg_status status, const char *what)
{
    if (status != KG_OK)
        fail_msg("%s: %s", what, err.message);
}

/* ---- routes ---- */
static struct kg_route route_new(int64_t n, int32_t experts, int32_t k, bool normalise)
{
    return (struct kg_route){.n_experts = experts,
                             .k = k,
                             .normalise = normalise,
                             .p = matrix(KG_F32, n, experts),
                             .weight = matrix(KG_F32, n, k),
                             .ids = buffer_of(n * k, sizeof(int32_t)),
                             .place = buffer_of(n * k, sizeof(int32_t)),
                             .token = buffer_of(n * k, sizeof(int32_t)),
                             .first = buffer_of(experts + 1, sizeof(int32_t))};
}

static void route_free(struct kg_route *r)
{
    buffer_free(r->p.data);
    buffer_free(r->weight.data);
    buffer_free(r->ids);
    buffer_free(r->place);
    buffer_free(r->token);
    buffer_free(r->first);
}

static struct kg_ivec slots_of(const int32_t *of, const struct kg_route *r)
{
    return kg_ivec(of, r->weight.rows * r->k);
}

static void check_places(const struct kg_route *r)
{
    const int64_t slots = r->weight.rows * r->k;
    assert_int_equal(r->first[0], 0);
    assert_int_equal(r->first[r->n_experts], slots);
    for (int32_t e = 0; e < r->n_experts; e++)
        for (int32_t i = r->first[e]; i + 1 < r->first[e + 1]; i++)
            assert_true(r->token[i] < r->token[i + 1]);
    for (int64_t s = 0; s < slots; s++) {
        const int32_t place = r->place[s], e = r->ids[s];
        assert_in_range(place, r->first[e], r->first[e + 1] - 1);
        assert_int_equal(r->token[place], s / r->k);
    }
}

static void a_route_takes_the_largest_of_a_softmax(void **state)
{
    (void)state;
    for (int normalise = 0; normalise < 2; normalise++) {
        struct kg_route r = route_new(N, E, K, normalise);
        struct kg_mat z = random_matrix(KG_F32, N, E, 3);
        OK(kg_op_route(backend(), &r, z, none_of, &err));
        for (int64_t n = 0; n < N; n++) {
            double whole = 0, chosen = 0;
            for (int e = 0; e < E; e++)
                whole += exp(get(z, n, e));
            for (int k = 0; k < K; k++)
                chosen += exp(get(z, n, r.ids[n * K + k])) / whole;
            for (int k = 0; k < K; k++) {
                const int32_t id = r.ids[n * K + k];
                const double p = exp(get(z, n, id)) / whole;
                int larger = 0;
                for (int e = 0; e < E; e++)
                    larger += get(z, n, e) > get(z, n, id);
                assert_int_equal(larger, k);
                assert_true(fabs(get(r.p, n, id) - p) < 1e-6);
                assert_true(fabs(get(r.weight, n, k) - (normalise ? p / chosen : p)) <
                            2e-6);
            }
        }
        check_places(&r);
        buffer_free(z.data);
        route_free(&r);
    }
}

static void ties_go_to_the_smaller_index(void **state)
{
    (void)state;
    static const float rows[3][5] = {
        {1, 2, 2, 0, 2}, {0, 0, 0, 0, 0}, {NAN, NAN, NAN, NAN, NAN}};
    static const int32_t want[3][3] = {{1, 2, 4}, {0, 1, 2}, {0, 1, 2}};
    struct kg_route r = route_new(3, 5, 3, true);
    struct kg_mat z = matrix(KG_F32, 3, 5);
    memcpy(z.data, rows, sizeof rows);
    OK(kg_op_route(backend(), &r, z, none_of, &err));
    assert_memory_equal(r.ids, want, sizeof want);
    check_places(&r);
    buffer_free(z.data);
    route_free(&r);
}

/* Given experts are used with the present weights; to give the experts that would be
 * chosen changes nothing.
 */
static void given_experts_are_taken(void **state)
{
    (void)state;
    struct kg_route own = route_new(N, E, K, true), r = route_new(N, E, K, true);
    struct kg_mat z = random_matrix(KG_F32, N, E, 3);
    OK(kg_op_route(backend(), &own, z, none_of, &err));
    OK(kg_op_route(backend(), &r, z, slots_of(own.ids, &own), &err));
    assert_memory_equal(r.ids, own.ids, R * sizeof *r.ids);
    assert_memory_equal(r.weight.data, own.weight.data, R * sizeof(float));
    assert_memory_equal(r.place, own.place, R * sizeof *r.place);

    int32_t *given = buffer_of(R, sizeof *given);
    for (int i = 0; i < R; i++)
        given[i] = (i * 5 + i / K) % E;
    OK(kg_op_route(backend(), &r, z, kg_ivec(given, R), &err));
    for (int64_t n = 0; n < N; n++) {
        double sum = 0;
        for (int k = 0; k < K; k++)
            sum += get(r.p, n, given[n * K + k]);
        for (int k = 0; k < K; k++)
            assert_true(fabs(get(r.weight, n, k) - get(r.p, n, given[n * K + k]) / sum) <
                        1e-6);
    }
    check_places(&r);

    /* every other token chooses for itself */
    for (int i = 0; i < R; i++)
        given[i] = i / K % 2 ? -1 : given[i];
    OK(kg_op_route(backend(), &r, z, kg_ivec(given, R), &err));
    for (int i = 0; i < R; i++)
        assert_int_equal(r.ids[i], i / K % 2 ? own.ids[i] : given[i]);
    check_places(&r);
    buffer_free(given);
    buffer_free(z.data);
    route_free(&own);
    route_free(&r);
}

/* Routes have the CPU's bits, also with many experts, many per token, and no tokens. */
static void check_route_bits(int64_t n, int32_t experts, int32_t k)
{
    const struct kg_backend *be = backend(), *cpu = kg_backend_cpu_variant(0);
    struct kg_route r = route_new(n, experts, k, true);
    struct kg_route want = route_new(n, experts, k, true);
    struct kg_mat z = random_matrix(KG_F32, n, experts, 5);
    const size_t slots = (size_t)(n * k);
    for (int64_t i = 0; i < n * experts; i += 3)
        ((float *)z.data)[i] = 1; /* ties */
    memset(r.first, 0xff, sizeof *r.first * (size_t)(experts + 1));
    OK(kg_op_route(be, &r, z, none_of, &err));
    OK(kg_op_route(cpu, &want, z, none_of, &err));
    assert_memory_equal(r.p.data, want.p.data, (size_t)(n * experts) * sizeof(float));
    assert_memory_equal(r.weight.data, want.weight.data, slots * sizeof(float));
    assert_memory_equal(r.ids, want.ids, slots * sizeof *r.ids);
    assert_memory_equal(r.place, want.place, slots * sizeof *r.place);
    assert_memory_equal(r.token, want.token, slots * sizeof *r.token);
    assert_memory_equal(r.first, want.first, (size_t)(experts + 1) * sizeof *r.first);
    buffer_free(z.data);
    route_free(&r);
    route_free(&want);
}

static void routes_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    check_route_bits(300, 130, 8);
    check_route_bits(2, KG_MAX_EXPERTS, 70);
    check_route_bits(41, 1, 1);
    check_route_bits(0, 5, 2);
}

/* ---- products ---- */
struct stack { /* E matrices, one after the other */
    struct kg_mat first;
    int64_t stride;
};

static struct stack stack_new(const struct kg_backend *be, enum kg_dtype t, int64_t rows,
                              int64_t cols)
{
    struct stack s = {.stride = (int64_t)(kg_weights_bytes(be, t, rows, cols) + 63) / 64 *
                                64};
    s.first = kg_weights(be, buffer_of(E, (size_t)s.stride), t, rows, cols);
    for (int e = 0; e < E; e++) {
        struct kg_mat m = random_matrix(t, rows, cols, 0.5), to = s.first;
        to.data = (char *)to.data + e * s.stride;
        OK(kg_op_cast(be, to, m, &err));
        buffer_free(m.data);
    }
    return s;
}

static struct kg_mat of_expert(const struct stack *s, int e)
{
    struct kg_mat m = s->first;
    m.data = (char *)m.data + e * s->stride;
    return m;
}

/* Shares of many sizes: more than a tile's rows, one row, none. */
static int32_t *shares(int32_t rows)
{
    int32_t *first = buffer_of(E + 1, sizeof *first);
    for (int e = 0; e < E; e++)
        first[e] = e < 2 ? 0 : e == E - 1 ? rows : rows / 2 + e / 2;
    first[E] = rows;
    return first;
}

struct sides {
    enum kg_dtype t, out;
    int64_t n, k; /* columns of c and of a */
};

/* Each row of c is a product with one expert's matrix, added to the old row if fp32. */
static void check_groups_of_rows(const struct sides *s, enum kg_matmul_kind kind,
                                 int32_t rows)
{
    const struct kg_backend *be = backend();
    const size_t bytes = kg_dtype_traits(s->out)->bytes;
    const bool nt = kind == KG_MATMUL_NT, add = s->out == KG_F32;
    struct stack w = stack_new(be, s->t, nt ? s->n : s->k, nt ? s->k : s->n);
    struct kg_mat x = random_matrix(s->t, rows, s->k, 1);
    struct kg_mat y = random_matrix(s->out, rows, s->n, 1);
    struct kg_mat want = matrix(s->out, rows, s->n);
    int32_t *first = shares(rows);
    const struct kg_groups g = {first, E, w.stride};
    memcpy(want.data, y.data, (size_t)(rows * s->n) * bytes);
    OK(kg_op_matmul_groups(be, y, x, w.first, &g, kind, add, &err));
    for (int e = 0; e < E; e++)
        for (int32_t i = first[e]; i < first[e + 1]; i++)
            OK(kg_op_matmul(be, kg_mat_rows(want, i, 1), kg_mat_rows(x, i, 1),
                            of_expert(&w, e), kind, add, &err));
    assert_memory_equal(y.data, want.data, (size_t)(rows * s->n) * bytes);
    buffer_free(first);
    buffer_free(want.data);
    buffer_free(y.data);
    buffer_free(x.data);
    buffer_free(w.first.data);
}

static void rows_have_the_bits_of_products_of_their_own(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        const enum kg_dtype ct = t ? KG_BF16 : KG_F32;
        const struct sides wide = {ct, KG_F32, 130, 40}, narrow = {ct, ct, 24, 1100};
        check_groups_of_rows(&wide, KG_MATMUL_NT, 140);
        check_groups_of_rows(&wide, KG_MATMUL_NN, 140);
        check_groups_of_rows(&narrow, KG_MATMUL_NT, 21);
        check_groups_of_rows(&narrow, KG_MATMUL_NN, 9);
    }
}

/* Each expert's sum is over its rows alone: more than a chunk, or none. */
static void check_groups_of_tokens(enum kg_dtype t, bool add)
{
    enum { ROWS = 2 * KG_PRODUCT_CHUNK + 100 };
    const struct kg_backend *be = backend();
    struct kg_mat dy = random_matrix(t, ROWS, 9, 1), x = random_matrix(t, ROWS, 20, 1);
    struct kg_mat c = random_matrix(KG_F32, E * 9, 20, 1),
                  want = matrix(KG_F32, E * 9, 20);
    const size_t bytes = E * 9 * 20 * sizeof(float);
    int32_t *first = shares(ROWS);
    const struct kg_groups g = {first, E, 9 * 20 * sizeof(float)};
    ((float *)c.data)[3] = -0.0f; /* of an expert without rows */
    memcpy(want.data, c.data, bytes);
    OK(kg_op_matmul_groups(be, kg_mat_rows(c, 0, 9), dy, x, &g, KG_MATMUL_TN, add, &err));
    for (int e = 0; e < E; e++) {
        const int64_t n = first[e + 1] - first[e];
        if (n > 0 || !add)
            OK(kg_op_matmul(be, kg_mat_rows(want, 9 * e, 9), kg_mat_rows(dy, first[e], n),
                            kg_mat_rows(x, first[e], n), KG_MATMUL_TN, add, &err));
    }
    assert_memory_equal(c.data, want.data, bytes);
    buffer_free(first);
    buffer_free(want.data);
    buffer_free(c.data);
    buffer_free(x.data);
    buffer_free(dy.data);
}

static void sums_have_the_bits_of_products_of_their_own(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        check_groups_of_tokens(i % 2 ? KG_BF16 : KG_F32, i / 2);
}

/* ---- a layer ---- */
/* y = sum_k w_k (silu(x Wg^T) * x Wu^T) Wd^T over the experts chosen by softmax(x Wr^T),
 * times a gate s = sigmoid(y_0); with gradients. Inputs are in ct, sums in fp32. */
struct layer {
    const struct kg_backend *be;
    enum kg_dtype ct;
    bool normalise;
    struct kg_mat x;          /* (N,D) ct */
    struct kg_mat router;     /* (E,D) ct */
    struct stack wg, wu, wd;  /* ct */
    struct kg_mat dy;         /* (N,D) fp32 */
    struct kg_vec push;       /* (E) dloss/dp of every token */
    struct kg_mat y, dx;      /* (N,D) fp32 out */
    struct kg_mat drouter;    /* (E,D) fp32 out */
    struct kg_mat dg, du, dd; /* (E F,D), (E F,D), (E D,F) fp32 out */
};

static void layer_init(struct layer *l, const struct kg_backend *be, enum kg_dtype ct,
                       bool normalise)
{
    random_state = 11;
    *l = (struct layer){.be = be, .ct = ct, .normalise = normalise};
    l->x = random_matrix(ct, N, D, 1);
    l->router = random_matrix(ct, E, D, 0.5);
    l->wg = stack_new(be, ct, F, D);
    l->wu = stack_new(be, ct, F, D);
    l->wd = stack_new(be, ct, D, F);
    l->dy = random_matrix(KG_F32, N, D, 1);
    l->push = kg_vec(random_matrix(KG_F32, 1, E, 0.1).data, E);
    l->y = matrix(KG_F32, N, D);
    l->dx = matrix(KG_F32, N, D);
    l->drouter = matrix(KG_F32, E, D);
    l->dg = matrix(KG_F32, E * F, D);
    l->du = matrix(KG_F32, E * F, D);
    l->dd = matrix(KG_F32, E * D, F);
}

static void layer_release(struct layer *l)
{
    void *const all[] = {
        l->x.data,  l->router.data, l->wg.first.data, l->wu.first.data, l->wd.first.data,
        l->dy.data, l->push.data,   l->y.data,        l->dx.data,       l->drouter.data,
        l->dg.data, l->du.data,     l->dd.data};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buffer_free(all[i]);
}

/* The buffers of one pass. */
struct pass {
    struct kg_route r;
    struct kg_mat logits;              /* (N,E) fp32 */
    struct kg_mat rows, gate, up, act; /* (R, D, F, F, F) ct */
    struct kg_mat dact, out;           /* (R,F), (R,D) fp32 */
    struct kg_mat dw, narrow, dz;      /* (N,K) fp32, (N,D) ct, (N,E) ct */
};

static struct kg_groups groups(const struct pass *p, const struct stack *s)
{
    return (struct kg_groups){p->r.first, E, s->stride};
}

/* The first expert's part of a stack of gradients that is one matrix. */
static struct kg_mat first_of(struct kg_mat all)
{
    return kg_mat_rows(all, 0, all.rows / E);
}
static struct kg_groups packed(const struct pass *p, struct kg_mat all)
{
    return (struct kg_groups){p->r.first, E,
                              all.rows / E * all.cols * (int64_t)sizeof(float)};
}

static void layer_forward(struct layer *l, struct pass *p)
{
    const struct kg_backend *be = l->be;
    const struct kg_groups g = groups(p, &l->wg), d = groups(p, &l->wd);
    OK(kg_op_matmul(be, p->logits, l->x, l->router, KG_MATMUL_NT, false, &err));
    OK(kg_op_route(be, &p->r, p->logits, none_of, &err));
    OK(kg_op_gather_rows(be, p->rows, l->x, slots_of(p->r.token, &p->r), &err));
    OK(kg_op_matmul_groups(be, p->gate, p->rows, l->wg.first, &g, KG_MATMUL_NT, false,
                           &err));
    OK(kg_op_matmul_groups(be, p->up, p->rows, l->wu.first, &g, KG_MATMUL_NT, false,
                           &err));
    OK(kg_op_swiglu(be, p->act, p->gate, p->up, &err));
    OK(kg_op_matmul_groups(be, p->out, p->act, l->wd.first, &d, KG_MATMUL_NT, false,
                           &err));
    OK(kg_op_combine(be, l->y, p->out, p->r.weight, slots_of(p->r.place, &p->r), true,
                     &err));
}

static void layer_backward(struct layer *l, struct pass *p)
{
    const struct kg_backend *be = l->be;
    const struct kg_groups g = groups(p, &l->wg), d = groups(p, &l->wd);
    const struct kg_groups gg = packed(p, l->dg), gd = packed(p, l->dd);
    const struct kg_ivec place = slots_of(p->r.place, &p->r);
    OK(kg_op_cast(be, p->narrow, l->dy, &err));
    OK(kg_op_gather_rows(be, p->rows, p->narrow, slots_of(p->r.token, &p->r), &err));
    OK(kg_op_matmul_groups(be, p->dact, p->rows, l->wd.first, &d, KG_MATMUL_NN, false,
                           &err));
    OK(kg_op_combine_bwd(be, p->dw, p->dact, p->act, p->r.weight, place, &err));
    OK(kg_op_matmul_groups(be, first_of(l->dd), p->rows, p->act, &gd, KG_MATMUL_TN, true,
                           &err));
    OK(kg_op_swiglu_bwd(be, p->gate, p->up, p->dact, p->gate, p->up, &err));
    OK(kg_op_gather_rows(be, p->rows, l->x, slots_of(p->r.token, &p->r), &err));
    OK(kg_op_matmul_groups(be, first_of(l->dg), p->gate, p->rows, &gg, KG_MATMUL_TN, true,
                           &err));
    OK(kg_op_matmul_groups(be, first_of(l->du), p->up, p->rows, &gg, KG_MATMUL_TN, true,
                           &err));
    OK(kg_op_matmul_groups(be, p->out, p->gate, l->wg.first, &g, KG_MATMUL_NN, false,
                           &err));
    OK(kg_op_matmul_groups(be, p->out, p->up, l->wu.first, &g, KG_MATMUL_NN, true, &err));
    OK(kg_op_combine(be, l->dx, p->out, kg_mat(NULL, KG_F32, N, K), place, false, &err));
    OK(kg_op_route_bwd(be, p->logits, &p->r, p->dw, l->push, &err));
    OK(kg_op_cast(be, p->dz, p->logits, &err));
    OK(kg_op_matmul(be, l->drouter, p->dz, l->x, KG_MATMUL_TN, true, &err));
    OK(kg_op_matmul(be, l->dx, p->dz, l->router, KG_MATMUL_NN, true, &err));
}

static void layer_run(struct layer *l)
{
    struct pass p = {.r = route_new(N, E, K, l->normalise),
                     .logits = matrix(KG_F32, N, E),
                     .rows = matrix(l->ct, R, D),
                     .gate = matrix(l->ct, R, F),
                     .up = matrix(l->ct, R, F),
                     .act = matrix(l->ct, R, F),
                     .dact = matrix(KG_F32, R, F),
                     .out = matrix(KG_F32, R, D),
                     .dw = matrix(KG_F32, N, K),
                     .narrow = matrix(l->ct, N, D),
                     .dz = matrix(l->ct, N, E)};
    void *const all[] = {p.logits.data, p.rows.data, p.gate.data, p.up.data,
                         p.act.data,    p.dact.data, p.out.data,  p.dw.data,
                         p.narrow.data, p.dz.data};
    memset(l->y.data, 0, N * D * sizeof(float));
    layer_forward(l, &p);
    layer_backward(l, &p);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buffer_free(all[i]);
    route_free(&p.r);
}

/* The layer in double, from weights in rows: loss = sum dy y + sum push p. */
struct plain {
    double x[N][D], router[E][D], wg[E][F][D], wu[E][F][D], wd[E][D][F];
};
static struct plain plain;

static double plain_expert(const double *x, const double *dy, int e)
{
    double loss = 0, act[F];
    for (int f = 0; f < F; f++) {
        double g = 0, u = 0;
        for (int d = 0; d < D; d++) {
            g += x[d] * plain.wg[e][f][d];
            u += x[d] * plain.wu[e][f][d];
        }
        act[f] = g / (1 + exp(-g)) * u;
    }
    for (int d = 0; d < D; d++)
        for (int f = 0; f < F; f++)
            loss += dy[d] * act[f] * plain.wd[e][d][f];
    return loss;
}

static double plain_token(const struct layer *l, int n)
{
    double p[E], whole = 0, chosen = 0, loss = 0, dy[D];
    bool taken[E] = {false};
    for (int d = 0; d < D; d++)
        dy[d] = get(l->dy, n, d);
    for (int e = 0; e < E; e++) {
        p[e] = 0;
        for (int d = 0; d < D; d++)
            p[e] += plain.x[n][d] * plain.router[e][d];
        whole += p[e] = exp(p[e]);
    }
    for (int e = 0; e < E; e++)
        loss += (p[e] /= whole) * (double)l->push.data[e];
    for (int pass = 0; pass < 2; pass++)
        for (int e = 0; e < E; e++) {
            int larger = 0;
            for (int f = 0; f < E; f++)
                larger += p[f] > p[e];
            taken[e] = larger < K;
            if (pass == 0)
                chosen += taken[e] ? p[e] : 0;
            else if (taken[e])
                loss += p[e] / (l->normalise ? chosen : 1) *
                        plain_expert(plain.x[n], dy, e);
        }
    return loss;
}

static double plain_loss(const struct layer *l)
{
    double loss = 0;
    for (int n = 0; n < N; n++)
        loss += plain_token(l, n);
    return loss;
}

static void plain_stack(double *to, const struct kg_backend *be, const struct stack *s)
{
    const int64_t rows = s->first.rows, cols = s->first.cols;
    struct kg_mat m = matrix(KG_F32, rows, cols);
    for (int e = 0; e < E; e++) {
        OK(kg_op_cast(be, m, of_expert(s, e), &err));
        for (int64_t i = 0; i < rows * cols; i++)
            *to++ = get(m, i / cols, i % cols);
    }
    buffer_free(m.data);
}

static void plain_of(const struct layer *l)
{
    for (int n = 0; n < N; n++)
        for (int d = 0; d < D; d++)
            plain.x[n][d] = get(l->x, n, d);
    for (int e = 0; e < E; e++)
        for (int d = 0; d < D; d++)
            plain.router[e][d] = get(l->router, e, d);
    plain_stack(&plain.wg[0][0][0], l->be, &l->wg);
    plain_stack(&plain.wu[0][0][0], l->be, &l->wu);
    plain_stack(&plain.wd[0][0][0], l->be, &l->wd);
}

static void check_differences(const struct layer *l, const char *what, double *x,
                              struct kg_mat dx)
{
    const int64_t n = dx.rows * dx.cols;
    for (int64_t s = 0; s < 12; s++) {
        const int64_t i = s == 0 ? 0 : s == 1 ? n - 1 : s * 7919 % n;
        const double was = x[i], got = (double)((float *)dx.data)[i];
        x[i] = was + 1e-5;
        const double up = plain_loss(l);
        x[i] = was - 1e-5;
        const double want = (up - plain_loss(l)) / 2e-5;
        x[i] = was;
        if (fabs(got - want) > 2e-5 * (1 + fabs(want)))
            fail_msg("%s: gradient of element %lld is %.9g, differences give %.9g", what,
                     (long long)i, got, want);
    }
}

static void gradients_of_a_layer_equal_finite_differences(void **state)
{
    (void)state;
    for (int normalise = 0; normalise < 2; normalise++) {
        struct layer l;
        double loss = 0;
        layer_init(&l, backend(), KG_F32, normalise);
        layer_run(&l);
        plain_of(&l);
        for (int64_t n = 0; n < N; n++)
            for (int64_t d = 0; d < D; d++)
                loss += get(l.y, n, d) * get(l.dy, n, d);
        const double want = plain_loss(&l);
        memset(l.push.data, 0, E * sizeof(float));
        assert_true(fabs(loss - plain_loss(&l)) < 1e-5 * (1 + fabs(want)));
        layer_release(&l);

        layer_init(&l, backend(), KG_F32, normalise);
        layer_run(&l);
        check_differences(&l, "x", &plain.x[0][0], l.dx);
        check_differences(&l, "router", &plain.router[0][0], l.drouter);
        check_differences(&l, "gate", &plain.wg[0][0][0], l.dg);
        check_differences(&l, "up", &plain.wu[0][0][0], l.du);
        check_differences(&l, "down", &plain.wd[0][0][0], l.dd);
        layer_release(&l);
    }
}

static void same_layer(const struct layer *a, const struct layer *b)
{
    const struct kg_mat of_a[] = {a->y, a->dx, a->drouter, a->dg, a->du, a->dd};
    const struct kg_mat of_b[] = {b->y, b->dx, b->drouter, b->dg, b->du, b->dd};
    for (size_t i = 0; i < sizeof of_a / sizeof *of_a; i++)
        assert_memory_equal(of_a[i].data, of_b[i].data,
                            (size_t)(of_a[i].rows * of_a[i].cols) * sizeof(float));
}

static void bits_do_not_depend_on_threads_or_enclosing_regions(void **state)
{
    (void)state;
    const int threads = omp_get_max_threads();
    for (int t = 0; t < 2; t++) {
        struct layer one, other;
        omp_set_num_threads(1);
        layer_init(&one, backend(), t ? KG_BF16 : KG_F32, true);
        layer_run(&one);
        for (int n = 2; n <= 6; n += 4) {
            omp_set_num_threads(n);
            layer_init(&other, backend(), one.ct, true);
            layer_run(&other);
            same_layer(&one, &other);
            layer_release(&other);
        }
        layer_init(&other, backend(), one.ct, true);
#pragma omp parallel num_threads(2)
        if (omp_get_thread_num() == 1 && !backend()->one_caller)
            layer_run(&other);
        if (!backend()->one_caller)
            same_layer(&one, &other);
        layer_release(&other);
        layer_release(&one);
    }
    omp_set_num_threads(threads);
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct layer one;
        layer_init(&one, kg_backend_cpu_variant(0), t ? KG_BF16 : KG_F32, true);
        layer_run(&one);
        const struct kg_backend *other = by_kernels() ? backend()
                                                      : kg_backend_cpu_variant(1);
        for (int i = 1; other; other = kg_backend_cpu_variant(++i)) {
            struct layer l;
            layer_init(&l, other, one.ct, true);
            layer_run(&l);
            same_layer(&one, &l);
            layer_release(&l);
        }
        layer_release(&one);
    }
}

static void the_gate_of_a_shared_expert(void **state)
{
    (void)state;
    struct kg_mat x = random_matrix(KG_F32, 1, N, 4), y = matrix(KG_F32, 1, N);
    struct kg_mat dy = random_matrix(KG_F32, 1, N, 1);
    const struct kg_vec vx = kg_vec(x.data, N), vy = kg_vec(y.data, N);
    OK(kg_op_sigmoid(backend(), vy, vx, &err));
    for (int i = 0; i < N; i++)
        assert_true(fabs(get(y, 0, i) - 1 / (1 + exp(-get(x, 0, i)))) < 1e-6);
    OK(kg_op_sigmoid_bwd(backend(), vx, kg_vec(dy.data, N), vy, &err));
    for (int i = 0; i < N; i++)
        assert_true(fabs(get(x, 0, i) -
                         get(dy, 0, i) * get(y, 0, i) * (1 - get(y, 0, i))) < 1e-6);
    buffer_free(x.data);
    buffer_free(y.data);
    buffer_free(dy.data);
}

/* ---- refusals ---- */
static void expect(kg_status got, kg_status want, const char *part)
{
    assert_int_equal(got, want);
    if (!strstr(err.message, part))
        fail_msg("expected \"%s\" in \"%s\"", part, err.message);
}

static void what_does_not_fit_is_named(void **state)
{
    (void)state;
    const struct kg_backend *be = backend();
    float x[64] = {0};
    int32_t ids[8] = {0}, first[4] = {0, 1, 3, 2};
    struct kg_route r = {
        3,   2,   true, kg_mat(x, KG_F32, 4, 3), kg_mat(x, KG_F32, 4, 2), ids,
        ids, ids, first};
    const struct kg_mat z = kg_mat(x, KG_F32, 4, 3);
    expect(kg_op_route(be, &r, kg_mat(x, KG_F32, 4, 5), none_of, &err), KG_ESHAPE,
           "route: logits has 5 columns, expected 3");
    expect(kg_op_route(be, &r, z, kg_ivec(ids, 7), &err), KG_ESHAPE,
           "given has 7 elements, expected 8");
    r.k = 4;
    expect(kg_op_route(be, &r, z, none_of, &err), KG_ESHAPE, "4 of 3 experts");
    r.k = 2, r.weight.cols = 3;
    expect(kg_op_route(be, &r, z, none_of, &err), KG_ESHAPE,
           "weight is 4 x 3, expected 4 x 2");
    r.weight.cols = 2, r.place = NULL;
    expect(kg_op_route(be, &r, z, none_of, &err), KG_EINVAL, "has no memory");
    const struct kg_groups g = {first, 3, 64};
    const struct kg_mat four = kg_mat(x, KG_F32, 4, 4);
    expect(kg_op_matmul_groups(be, four, four, kg_mat(x, KG_F32, 4, 5), &g, KG_MATMUL_NT,
                               false, &err),
           KG_ESHAPE, "matmul_groups NT: b has 5 columns, expected 4");
    expect(kg_op_combine(be, four, four, kg_mat(NULL, KG_F32, 4, 2), kg_ivec(ids, 4),
                         false, &err),
           KG_ESHAPE, "place has 4 elements, expected 8");
    if (!be->host_memory)
        return;
    expect(kg_op_matmul_groups(be, four, four, four, &g, KG_MATMUL_NT, false, &err),
           KG_ESHAPE, "expert 2 has places 3..1, expected within 4 rows");
    ids[5] = 3;
    r.place = ids;
    expect(kg_op_route(be, &r, z, kg_ivec(ids, 8), &err), KG_EINVAL,
           "given[5] is 3, expected 0..2");
}

static void a_backend_without_them_says_which(void **state)
{
    (void)state;
    struct kg_backend some = *backend();
    assert_null(kg_experts_missing(&some));
    some.combine = NULL;
    assert_string_equal(kg_experts_missing(&some), "combine");
    const struct kg_mat m = kg_mat(&(float){0}, KG_F32, 1, 1);
    expect(kg_op_combine(&some, m, m, m, none_of, false, &err), KG_EUNSUPPORTED,
           "has no operation combine");
    some.matmul = NULL; /* a plan's backend computes nothing */
    assert_null(kg_experts_missing(&some));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_route_takes_the_largest_of_a_softmax),
        cmocka_unit_test(ties_go_to_the_smaller_index),
        cmocka_unit_test(given_experts_are_taken),
        cmocka_unit_test(routes_have_the_bits_of_the_cpu),
        cmocka_unit_test(rows_have_the_bits_of_products_of_their_own),
        cmocka_unit_test(sums_have_the_bits_of_products_of_their_own),
        cmocka_unit_test(gradients_of_a_layer_equal_finite_differences),
        cmocka_unit_test(bits_do_not_depend_on_threads_or_enclosing_regions),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(the_gate_of_a_shared_expert),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(a_backend_without_them_says_which),
    };
    const struct CMUnitTest of_kernels[] = {
        cmocka_unit_test(a_route_takes_the_largest_of_a_softmax),
        cmocka_unit_test(ties_go_to_the_smaller_index),
        cmocka_unit_test(given_experts_are_taken),
        cmocka_unit_test(routes_have_the_bits_of_the_cpu),
        cmocka_unit_test(rows_have_the_bits_of_products_of_their_own),
        cmocka_unit_test(sums_have_the_bits_of_products_of_their_own),
        cmocka_unit_test(gradients_of_a_layer_equal_finite_differences),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(the_gate_of_a_shared_expert),
    };
    const struct CMUnitTest of_matrix_instructions[] = {
        cmocka_unit_test(rows_have_the_bits_of_products_of_their_own),
        cmocka_unit_test(sums_have_the_bits_of_products_of_their_own),
    };
    int failed = RUN_FAR_TOO(tests, NULL, NULL);
    setenv("KEDGE_TEST_PRODUCTS", "exact", 1);
    failed += RUN_EMULATED(of_kernels, NULL, NULL);
    setenv("KEDGE_TEST_PRODUCTS", "own", 1);
    return failed + RUN_EMULATED(of_matrix_instructions, NULL, NULL);
}
