/* The op suite: each operation is declared once, in a table, with its plain double
 * version, and is then run against that version, against finite differences, over thread
 * counts and over instruction sets.
 */
#include "base/mem.h"
#include "tensor/backend_testing.h"
#include "tensor/selfcheck.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* Odd sizes, with enough elements to start threads. */
enum { N = 523, D = 70, V = 211, HD = 14, PART = 5, MAX_IN = 2, MAX_ELEMENTS = N * D };

static struct kg_err err;
static int32_t *ids;    /* (N) owned: tokens; some occur often */
static int32_t *pos;    /* (N) owned */
static int32_t *places; /* (N) owned: a permutation */
static float *inv_freq; /* (HD/2) owned */
static const float eps = 1e-5f;

/* One operation on inputs x[0..n_in), each (rows,cols) fp32, to y (N,out_cols) fp32. `ct`
 * is the dtype of what the contract calls ct. */
struct op {
    const char *name;
    int n_in;
    int64_t rows[MAX_IN];
    int64_t cols[MAX_IN];
    int64_t out_cols;
    kg_status (*run)(const struct kg_backend *be, enum kg_dtype ct, float *y,
                     float *const *x);
    void (*plain)(double *y, double *const *x);
    /* dx[i] += dy d(op)/dx[i]; NULL for none */
    kg_status (*back)(const struct kg_backend *be, float *const *dx, const float *dy,
                      float *const *x);
};

static float *array_new(int64_t n) { return buffer_of(n, sizeof(float)); }

static struct kg_mat f32(const float *p, int64_t rows, int64_t cols)
{
    return kg_mat((void *)(uintptr_t)p, KG_F32, rows, cols);
}

static const struct kg_vec none;

/* A fresh matrix of dtype t with the content of x. */
static struct kg_mat as_type(enum kg_dtype t, const float *x, int64_t rows, int64_t cols)
{
    struct kg_mat m = kg_mat(array_new(rows * cols), t, rows, cols);
    if (x)
        assert_int_equal(
            kg_dtype_convert(m.data, t, x, KG_F32, (size_t)(rows * cols), &err), KG_OK);
    return m;
}

/* Converts m's content to y and frees m. */
static void take(float *y, struct kg_mat m)
{
    size_t n = (size_t)(m.rows * m.cols);
    assert_int_equal(kg_dtype_convert(y, KG_F32, m.data, m.dtype, n, &err), KG_OK);
    buffer_free(m.data);
}

/* ---- the operations ---- */
static kg_status run_nt(const struct kg_backend *be, enum kg_dtype ct, float *y,
                        float *const *x)
{
    struct kg_mat a = as_type(ct, x[0], N, D), b = as_type(ct, x[1], V, D);
    kg_status s = kg_op_matmul(be, f32(y, N, V), a, b, KG_MATMUL_NT, false, &err);
    buffer_free(a.data);
    buffer_free(b.data);
    return s;
}
static void plain_nt(double *y, double *const *x)
{
    for (int n = 0; n < N; n++)
        for (int v = 0; v < V; v++)
            for (int d = 0; d < D; d++)
                y[n * V + v] += x[0][n * D + d] * x[1][v * D + d];
}
static kg_status back_nt(const struct kg_backend *be, float *const *dx, const float *dy,
                         float *const *x)
{
    KG_TRY(kg_op_matmul(be, f32(dx[0], N, D), f32(dy, N, V), f32(x[1], V, D),
                        KG_MATMUL_NN, true, &err));
    return kg_op_matmul(be, f32(dx[1], V, D), f32(dy, N, V), f32(x[0], N, D),
                        KG_MATMUL_TN, true, &err);
}

static kg_status run_embed(const struct kg_backend *be, enum kg_dtype ct, float *y,
                           float *const *x)
{
    struct kg_mat table = as_type(ct, x[0], V, D);
    kg_status s = kg_op_embed(be, f32(y, N, D), table, kg_ivec(ids, N), &err);
    buffer_free(table.data);
    return s;
}
static void plain_embed(double *y, double *const *x)
{
    for (int n = 0; n < N; n++)
        for (int d = 0; d < D; d++)
            y[n * D + d] = x[0][ids[n] * D + d];
}
static kg_status back_embed(const struct kg_backend *be, float *const *dx,
                            const float *dy, float *const *x)
{
    (void)x;
    return kg_op_embed_bwd(be, f32(dx[0], V, D), f32(dy, N, D), kg_ivec(ids, N), &err);
}

static kg_status run_rmsnorm(const struct kg_backend *be, enum kg_dtype ct, float *y,
                             float *const *x)
{
    struct kg_mat out = as_type(ct, NULL, N, D);
    KG_TRY(kg_op_rmsnorm(be, out, none, f32(x[0], N, D), kg_vec(x[1], D), eps, &err));
    take(y, out);
    return KG_OK;
}
static void plain_rmsnorm(double *y, double *const *x)
{
    for (int n = 0; n < N; n++) {
        double sum = 0;
        for (int d = 0; d < D; d++)
            sum += x[0][n * D + d] * x[0][n * D + d];
        for (int d = 0; d < D; d++)
            y[n * D + d] = x[1][d] * x[0][n * D + d] / sqrt(sum / D + (double)eps);
    }
}
/* Runs both ways: dx = bwd, then dx += bwd, each with dy / 2. */
static kg_status back_rmsnorm(const struct kg_backend *be, float *const *dx,
                              const float *dy, float *const *x)
{
    float *inv = array_new(N);
    float *half = array_new(N * D);
    float *y = array_new(N * D);
    for (int i = 0; i < N * D; i++)
        half[i] = dy[i] / 2;
    KG_TRY(kg_op_rmsnorm(be, f32(y, N, D), kg_vec(inv, N), f32(x[0], N, D),
                         kg_vec(x[1], D), eps, &err));
    for (int pass = 0; pass < 2; pass++)
        KG_TRY(kg_op_rmsnorm_bwd(be, f32(dx[0], N, D), pass == 1, kg_vec(dx[1], D),
                                 f32(half, N, D), f32(x[0], N, D), kg_vec(x[1], D),
                                 kg_vec(inv, N), &err));
    buffer_free(half);
    buffer_free(inv);
    buffer_free(y);
    return KG_OK;
}

static kg_status run_layernorm(const struct kg_backend *be, enum kg_dtype ct, float *y,
                               float *const *x)
{
    struct kg_mat out = as_type(ct, NULL, N, D);
    const struct kg_vec w = kg_vec(x[1], D), b = kg_vec(x[1] + D, D);
    KG_TRY(kg_op_layernorm(be, out, f32(x[0], N, D), w, b, eps, &err));
    take(y, out);
    return KG_OK;
}
static void plain_layernorm(double *y, double *const *x)
{
    for (int n = 0; n < N; n++) {
        double mean = 0, sum = 0;
        for (int d = 0; d < D; d++)
            mean += x[0][n * D + d] / D;
        for (int d = 0; d < D; d++)
            sum += (x[0][n * D + d] - mean) * (x[0][n * D + d] - mean);
        for (int d = 0; d < D; d++)
            y[n * D + d] = x[1][D + d] + x[1][d] * (x[0][n * D + d] - mean) /
                                             sqrt(sum / D + (double)eps);
    }
}

/* Inputs are within 2; times 5, they reach where GELU is 0 or x. */
static kg_status run_gelu(const struct kg_backend *be, enum kg_dtype ct, float *y,
                          float *const *x)
{
    struct kg_mat h = as_type(KG_F32, x[0], N, D), out = as_type(ct, NULL, N, D);
    KG_TRY(kg_op_scale(be, kg_vec(h.data, N * D), 5.0f, &err));
    KG_TRY(kg_op_gelu(be, out, h, &err));
    take(y, out);
    buffer_free(h.data);
    return KG_OK;
}
static void plain_gelu(double *y, double *const *x)
{
    for (int i = 0; i < N * D; i++)
        y[i] = 5 * x[0][i] * (1 + erf(5 * x[0][i] / sqrt(2))) / 2;
}

static kg_status run_bias(const struct kg_backend *be, enum kg_dtype ct, float *y,
                          float *const *x)
{
    (void)ct;
    memcpy(y, x[0], N * D * sizeof *y);
    return kg_op_bias(be, f32(y, N, D), kg_vec(x[1], D), &err);
}
static void plain_bias(double *y, double *const *x)
{
    for (int i = 0; i < N * D; i++)
        y[i] = x[0][i] + x[1][i % D];
}
static kg_status back_bias(const struct kg_backend *be, float *const *dx, const float *dy,
                           float *const *x)
{
    (void)x;
    for (int i = 0; i < N * D; i++)
        dx[0][i] += dy[i];
    return kg_op_bias_bwd(be, kg_vec(dx[1], D), f32(dy, N, D), &err);
}

static struct kg_turn turn_by(int32_t *at, int64_t n, float *freq, int pairs, int hd)
{
    return (struct kg_turn){kg_ivec(at, n), kg_vec(freq, pairs), hd, 1.25f};
}

/* y <- x or dy with the first 2 pairs values of every head rotated. */
static kg_status turn(const struct kg_backend *be, float *y, const float *x, int pairs,
                      bool inverse)
{
    memcpy(y, x, N * D * sizeof *y);
    const struct kg_turn by = turn_by(pos, N, inv_freq, pairs, HD);

    return kg_op_rope(be, f32(y, N, D), &by, inverse, &err);
}
static void plain_turn(double *y, const double *x, int pairs)
{
    for (int i = 0; i < N * D; i++)
        y[i] = x[i];
    for (int n = 0; n < N; n++)
        for (int d = 0; d < D; d++) {
            int i = d % HD % pairs;
            bool low = d % HD < pairs;
            if (d % HD >= 2 * pairs)
                continue;
            double a = (double)((float)pos[n] * inv_freq[i]);
            double other = x[n * D + (low ? d + pairs : d - pairs)];
            y[n * D + d] = 1.25 *
                           (x[n * D + d] * cos(a) + (low ? -other : other) * sin(a));
        }
}
static kg_status run_rope(const struct kg_backend *be, enum kg_dtype ct, float *y,
                          float *const *x)
{
    (void)ct;
    return turn(be, y, x[0], HD / 2, false);
}
static void plain_rope(double *y, double *const *x) { plain_turn(y, x[0], HD / 2); }
static kg_status back_rope(const struct kg_backend *be, float *const *dx, const float *dy,
                           float *const *x)
{
    (void)x;
    return turn(be, dx[0], dy, HD / 2, true);
}
/* Rotates a part of every head. */
static kg_status run_part(const struct kg_backend *be, enum kg_dtype ct, float *y,
                          float *const *x)
{
    (void)ct;
    return turn(be, y, x[0], PART, false);
}
static void plain_part(double *y, double *const *x) { plain_turn(y, x[0], PART); }
static kg_status back_part(const struct kg_backend *be, float *const *dx, const float *dy,
                           float *const *x)
{
    (void)x;
    return turn(be, dx[0], dy, PART, true);
}

static kg_status run_swiglu(const struct kg_backend *be, enum kg_dtype ct, float *y,
                            float *const *x)
{
    struct kg_mat gate = as_type(ct, x[0], N, D), up = as_type(ct, x[1], N, D);
    struct kg_mat h = as_type(ct, NULL, N, D);
    KG_TRY(kg_op_swiglu(be, h, gate, up, &err));
    take(y, h);
    buffer_free(gate.data);
    buffer_free(up.data);
    return KG_OK;
}
static void plain_swiglu(double *y, double *const *x)
{
    for (int i = 0; i < N * D; i++)
        y[i] = x[0][i] / (1 + exp(-x[0][i])) * x[1][i];
}
/* Into the memory of gate and up, as the contract allows. */
static kg_status back_swiglu(const struct kg_backend *be, float *const *dx,
                             const float *dy, float *const *x)
{
    memcpy(dx[0], x[0], N * D * sizeof *dy);
    memcpy(dx[1], x[1], N * D * sizeof *dy);
    return kg_op_swiglu_bwd(be, f32(dx[0], N, D), f32(dx[1], N, D), f32(dy, N, D),
                            f32(dx[0], N, D), f32(dx[1], N, D), &err);
}

static kg_status run_geglu(const struct kg_backend *be, enum kg_dtype ct, float *y,
                           float *const *x)
{
    struct kg_mat gate = as_type(ct, x[0], N, D), up = as_type(ct, x[1], N, D);
    struct kg_mat h = as_type(ct, NULL, N, D);
    KG_TRY(kg_op_geglu(be, h, gate, up, &err));
    take(y, h);
    buffer_free(gate.data);
    buffer_free(up.data);
    return KG_OK;
}
static void plain_geglu(double *y, double *const *x)
{
    for (int i = 0; i < N * D; i++) {
        const double g = x[0][i], u = sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
        y[i] = g * (1 + tanh(u)) / 2 * x[1][i];
    }
}
static kg_status back_geglu(const struct kg_backend *be, float *const *dx,
                            const float *dy, float *const *x)
{
    memcpy(dx[0], x[0], N * D * sizeof *dy);
    memcpy(dx[1], x[1], N * D * sizeof *dy);
    return kg_op_geglu_bwd(be, f32(dx[0], N, D), f32(dx[1], N, D), f32(dy, N, D),
                           f32(dx[0], N, D), f32(dx[1], N, D), &err);
}

static kg_status run_scale(const struct kg_backend *be, enum kg_dtype ct, float *y,
                           float *const *x)
{
    (void)ct;
    memcpy(y, x[0], N * D * sizeof *y);
    return kg_op_scale(be, kg_vec(y, N * D), 0.3f, &err);
}
static void plain_scale(double *y, double *const *x)
{
    for (int i = 0; i < N * D; i++)
        y[i] = x[0][i] * (double)0.3f;
}
static kg_status back_scale(const struct kg_backend *be, float *const *dx,
                            const float *dy, float *const *x)
{
    (void)x;
    memcpy(dx[0], dy, N * D * sizeof *dy);
    return kg_op_scale(be, kg_vec(dx[0], N * D), 0.3f, &err);
}

static kg_status run_cast(const struct kg_backend *be, enum kg_dtype ct, float *y,
                          float *const *x)
{
    struct kg_mat c = as_type(ct, NULL, N, D);
    KG_TRY(kg_op_cast(be, c, f32(x[0], N, D), &err));
    KG_TRY(kg_op_cast(be, f32(y, N, D), c, &err));
    buffer_free(c.data);
    return KG_OK;
}
static void plain_copy(double *y, double *const *x)
{
    memcpy(y, x[0], N * D * sizeof *y);
}

/* Scatters to a pool, then gathers from it, by the same places. */
static kg_status run_rows(const struct kg_backend *be, enum kg_dtype ct, float *y,
                          float *const *x)
{
    struct kg_mat src = as_type(ct, x[0], N, D), pool = as_type(ct, NULL, N, D);
    struct kg_mat back = as_type(ct, NULL, N, D);
    KG_TRY(kg_op_scatter_rows(be, pool, kg_ivec(places, N), src, &err));
    assert_memory_equal(
        (char *)pool.data + (size_t)(places[3] * D) * kg_dtype_traits(ct)->bytes,
        (char *)src.data + (size_t)(3 * D) * kg_dtype_traits(ct)->bytes, D * 2);
    KG_TRY(kg_op_gather_rows(be, back, pool, kg_ivec(places, N), &err));
    take(y, back);
    buffer_free(src.data);
    buffer_free(pool.data);
    return KG_OK;
}

static const struct op ops[] = {
    {"matmul", 2, {N, V}, {D, D}, V, run_nt, plain_nt, back_nt},
    {"embed", 1, {V}, {D}, D, run_embed, plain_embed, back_embed},
    {"rmsnorm", 2, {N, 1}, {D, D}, D, run_rmsnorm, plain_rmsnorm, back_rmsnorm},
    {"layernorm", 2, {N, 2}, {D, D}, D, run_layernorm, plain_layernorm, NULL},
    {"gelu", 1, {N}, {D}, D, run_gelu, plain_gelu, NULL},
    {"bias", 2, {N, 1}, {D, D}, D, run_bias, plain_bias, back_bias},
    {"rope", 1, {N}, {D}, D, run_rope, plain_rope, back_rope},
    {"rope of a part", 1, {N}, {D}, D, run_part, plain_part, back_part},
    {"swiglu", 2, {N, N}, {D, D}, D, run_swiglu, plain_swiglu, back_swiglu},
    {"geglu", 2, {N, N}, {D, D}, D, run_geglu, plain_geglu, back_geglu},
    {"scale", 1, {N}, {D}, D, run_scale, plain_scale, back_scale},
    {"cast", 1, {N}, {D}, D, run_cast, plain_copy, NULL},
    {"scatter and gather", 1, {N}, {D}, D, run_rows, plain_copy, NULL},
};
enum { N_OPS = sizeof ops / sizeof ops[0] };

/* ---- inputs ---- */
static uint32_t random_state;
static float uniform(void) /* (-1, 1) */
{
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(int32_t)random_state * 0x1p-31f;
}

struct problem {
    const struct op *op;
    int64_t n_out;
    int64_t n[MAX_IN];
    float *x[MAX_IN];
    double *xd[MAX_IN];
    float *y;
    double *want;
};

/* Inputs that both dtypes hold exactly, and what the plain version makes of them. */
static void problem_init(struct problem *p, const struct op *op)
{
    *p = (struct problem){.op = op, .n_out = N * op->out_cols};
    random_state = 7;
    for (int i = 0; i < op->n_in; i++) {
        p->n[i] = op->rows[i] * op->cols[i];
        p->x[i] = array_new(p->n[i]);
        p->xd[i] = (double *)(void *)array_new(2 * p->n[i]);
        for (int64_t j = 0; j < p->n[i]; j++) {
            p->x[i][j] = kg_bf16_to_f32(kg_f32_to_bf16(2.0f * uniform()));
            p->xd[i][j] = (double)p->x[i][j];
        }
    }
    p->y = array_new(p->n_out);
    p->want = (double *)(void *)array_new(2 * p->n_out);
    op->plain(p->want, p->xd);
}

static void problem_release(struct problem *p)
{
    for (int i = 0; i < p->op->n_in; i++) {
        buffer_free(p->x[i]);
        buffer_free(p->xd[i]);
    }
    buffer_free(p->y);
    buffer_free(p->want);
}

static int setup(void **state)
{
    (void)state;
    ids = buffer_of(N, sizeof *ids);
    pos = buffer_of(N, sizeof *pos);
    places = buffer_of(N, sizeof *places);
    inv_freq = buffer_of(HD / 2, sizeof *inv_freq);
    for (int i = 0; i < N; i++) {
        ids[i] = i % 7 == 0 ? 5 : i * 31 % V;
        pos[i] = i < 4 ? i : i * 251; /* up to 131,000 */
        places[i] = (int32_t)((i * 100 + 17) % N);
    }
    for (int i = 0; i < HD / 2; i++)
        inv_freq[i] = (float)pow(10000.0, -2.0 * i / HD);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    buffer_free(ids);
    buffer_free(pos);
    buffer_free(places);
    buffer_free(inv_freq);
    return 0;
}

/* ---- tests ---- */
static void compare_with_plain(enum kg_dtype ct, double tolerance)
{
    for (int o = 0; o < N_OPS; o++) {
        struct problem p;
        problem_init(&p, &ops[o]);
        assert_int_equal(ops[o].run(backend(), ct, p.y, p.x), KG_OK);
        for (int64_t i = 0; i < p.n_out; i++)
            if (fabs((double)p.y[i] - p.want[i]) > tolerance * (1 + fabs(p.want[i])))
                fail_msg("%s: element %lld is %.9g, the plain version gives %.9g",
                         ops[o].name, (long long)i, (double)p.y[i], p.want[i]);
        problem_release(&p);
    }
}

static void forward_equals_the_plain_version_fp32(void **state)
{
    (void)state;
    compare_with_plain(KG_F32, 3e-6);
}

static void forward_equals_the_plain_version_bf16(void **state)
{
    (void)state;
    compare_with_plain(KG_BF16, 0x1p-8);
}

static double plain_loss(struct problem *p, const float *dy)
{
    memset(p->want, 0, (size_t)p->n_out * sizeof *p->want);
    p->op->plain(p->want, p->xd);
    double loss = 0;
    for (int64_t i = 0; i < p->n_out; i++)
        loss += p->want[i] * (double)dy[i];
    return loss;
}

/* Checks some elements of each input by central differences of the plain version. */
static void check_gradient(struct problem *p, const float *dy, float *const *dx)
{
    enum { SAMPLES = 12 };
    for (int i = 0; i < p->op->n_in; i++)
        for (int s = 0; s < SAMPLES; s++) {
            int64_t j = s == 0 ? 0 : s == 1 ? p->n[i] - 1 : s * 7919 % p->n[i];
            double x = p->xd[i][j];
            p->xd[i][j] = x + 1e-4;
            double up = plain_loss(p, dy);
            p->xd[i][j] = x - 1e-4;
            double want = (up - plain_loss(p, dy)) / 2e-4;
            p->xd[i][j] = x;
            if (fabs((double)dx[i][j] - want) > 2e-5 * (1 + fabs(want)))
                fail_msg("%s: gradient of input %d, element %lld is %.9g, differences "
                         "give %.9g",
                         p->op->name, i, (long long)j, (double)dx[i][j], want);
        }
}

static void gradients_equal_finite_differences(void **state)
{
    (void)state;
    for (int o = 0; o < N_OPS; o++) {
        if (!ops[o].back)
            continue;
        struct problem p;
        problem_init(&p, &ops[o]);
        float *dy = array_new(p.n_out);
        float *dx[MAX_IN] = {array_new(MAX_ELEMENTS), array_new(MAX_ELEMENTS)};
        for (int64_t i = 0; i < p.n_out; i++)
            dy[i] = uniform();
        assert_int_equal(ops[o].back(backend(), dx, dy, p.x), KG_OK);
        check_gradient(&p, dy, dx);
        buffer_free(dy);
        buffer_free(dx[0]);
        buffer_free(dx[1]);
        problem_release(&p);
    }
}

/* Forward and gradients into `all`, one after the other.   returns their number */
static int64_t everything(const struct kg_backend *be, const struct op *op,
                          enum kg_dtype ct, float *all)
{
    struct problem p;
    problem_init(&p, op);
    float *dy = array_new(p.n_out);
    for (int64_t i = 0; i < p.n_out; i++)
        dy[i] = uniform();
    memset(all, 0, (size_t)(N * V + 2 * MAX_ELEMENTS) * sizeof *all);
    float *dx[MAX_IN] = {all + p.n_out, all + p.n_out + MAX_ELEMENTS};
    assert_int_equal(op->run(be, ct, all, p.x), KG_OK);
    if (op->back)
        assert_int_equal(op->back(be, dx, dy, p.x), KG_OK);
    int64_t n = p.n_out + 2 * MAX_ELEMENTS;
    buffer_free(dy);
    problem_release(&p);
    return n;
}

static void bits_do_not_depend_on_threads_or_enclosing_regions(void **state)
{
    (void)state;
    float *want = array_new(N * V + 2 * MAX_ELEMENTS);
    float *got = array_new(N * V + 2 * MAX_ELEMENTS);
    int threads = omp_get_max_threads();
    for (int o = 0; o < N_OPS; o++) {
        omp_set_num_threads(1);
        int64_t n = everything(backend(), &ops[o], KG_F32, want);
        for (int t = 2; t <= 4; t += 2) {
            omp_set_num_threads(t);
            everything(backend(), &ops[o], KG_F32, got);
            assert_memory_equal(got, want, (size_t)n * sizeof *got);
        }
        /* the second thread of a team of two: a worker, inside a region */
#pragma omp parallel num_threads(2)
        if (omp_get_thread_num() == 1 && !backend()->one_caller)
            everything(backend(), &ops[o], KG_F32, got);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
    }
    omp_set_num_threads(threads);
    buffer_free(want);
    buffer_free(got);
}

/* So does every backend. */
static void every_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    need_exact_products();
    float *want = array_new(N * V + 2 * MAX_ELEMENTS);
    float *got = array_new(N * V + 2 * MAX_ELEMENTS);
    for (int o = 0; o < 2 * N_OPS; o++) {
        enum kg_dtype ct = o < N_OPS ? KG_F32 : KG_BF16;
        const struct op *op = &ops[o % N_OPS];
        int64_t n = everything(kg_backend_cpu_variant(0), op, ct, want);
        for (int i = 1; !emulated() && kg_backend_cpu_variant(i); i++) {
            everything(kg_backend_cpu_variant(i), op, ct, got);
            assert_memory_equal(got, want, (size_t)n * sizeof *got);
        }
        everything(backend(), op, ct, got);
        if (memcmp(got, want, (size_t)n * sizeof *got) != 0)
            fail_msg("%s: other bits than the CPU's", op->name);
    }
    buffer_free(want);
    buffer_free(got);
}

/* ---- refusals ---- */
static void expect(kg_status got, kg_status want, const char *part)
{
    assert_int_equal(got, want);
    if (!strstr(err.message, part))
        fail_msg("expected \"%s\" in \"%s\"", part, err.message);
}

static void wrong_shapes_types_and_ids_are_named_with_their_numbers(void **state)
{
    (void)state;
    const struct kg_backend *be = backend();
    float x[64] = {0};
    uint16_t h[64] = {0};
    struct kg_mat bf = kg_mat(h, KG_BF16, 4, 8);
    expect(kg_op_matmul(be, f32(x, 4, 5), f32(x, 4, 8), f32(x, 5, 7), KG_MATMUL_NT, false,
                        &err),
           KG_ESHAPE, "matmul NT: b has 7 columns, expected 8");
    expect(kg_op_matmul(be, f32(x, 4, 6), f32(x, 4, 8), f32(x, 5, 8), KG_MATMUL_NT, false,
                        &err),
           KG_ESHAPE, "c is 4 x 6, expected 4 x 5");
    expect(kg_op_matmul(be, f32(x, 8, 8), f32(x, 4, 8), f32(x, 3, 8), KG_MATMUL_TN, false,
                        &err),
           KG_ESHAPE, "matmul TN: b has 3 rows, expected 4");
    expect(kg_op_matmul(be, f32(x, 4, 4), f32(x, 4, 8), bf, KG_MATMUL_NT, false, &err),
           KG_EDTYPE, "b is bf16, expected fp32");
    expect(kg_op_matmul(be, kg_mat(h, KG_BF16, 4, 4), bf, bf, KG_MATMUL_NT, true, &err),
           KG_EDTYPE, "c is bf16, expected fp32");
    expect(kg_op_rmsnorm(be, f32(x, 4, 7), none, f32(x, 4, 8), kg_vec(x, 8), eps, &err),
           KG_ESHAPE, "rmsnorm: y is 4 x 7, expected 4 x 8");
    expect(kg_op_rmsnorm(be, f32(x, 4, 8), none, f32(x, 4, 8), kg_vec(x, 7), eps, &err),
           KG_ESHAPE, "rmsnorm: w has 7 elements, expected 8");
    expect(
        kg_op_rmsnorm(be, f32(x, 4, 8), none, f32(x, 4, 8), kg_vec(NULL, 8), eps, &err),
        KG_EINVAL, "rmsnorm: w (8) has no memory");
    expect(kg_op_rmsnorm(be, f32(x, 4, 8), kg_vec(x, 3), f32(x, 4, 8), kg_vec(x, 8), eps,
                         &err),
           KG_ESHAPE, "rmsnorm: inv has 3 elements, expected 4");
    expect(kg_op_ema(be, kg_vec(x, 8), kg_vec(x, 7), 0.5f, &err), KG_ESHAPE,
           "ema: w has 7 elements, expected 8");
    expect(kg_op_add(be, kg_vec(x, 8), kg_vec(x, 7), &err), KG_ESHAPE,
           "add: x has 7 elements, expected 8");
    struct kg_adamw a = {.step = 1, .first = 8};
    expect(
        kg_op_adamw(be, kg_vec(x, 8), f32(x, 1, 8), f32(x, 1, 8), kg_vec(x, 8), &a, &err),
        KG_EINVAL, "adamw: first 8, expected a multiple of 16");
    a.first = 0;
    expect(
        kg_op_adamw(be, kg_vec(x, 8), f32(x, 1, 8), f32(x, 1, 7), kg_vec(x, 8), &a, &err),
        KG_ESHAPE, "adamw: v is 1 x 7, expected 1 x 8");
    expect(kg_op_schedule_free(be, kg_vec(x, 8), kg_vec(x, 8), kg_mat(h, KG_F16, 1, 8),
                               kg_vec(x, 8), &a, &err),
           KG_EDTYPE, "schedule_free: v is fp16, expected fp32 or bf16");
    expect(kg_op_bias(be, bf, kg_vec(x, 8), &err), KG_EDTYPE,
           "bias: y is bf16, expected fp32");
    int32_t bad[4] = {0, 1, 8, 0};
    expect(kg_op_gather_rows(be, f32(x, 4, 8), f32(x, 4, 8), kg_ivec(bad, 3), &err),
           KG_ESHAPE, "rows has 3 elements, expected 4");
    const struct kg_turn turns[] = {turn_by(bad, 4, x, 1, 3), turn_by(bad, 4, x, 3, 6),
                                    turn_by(bad, 4, x, 5, 8)};
    static const char *const why[] = {"dimension 3", "8 columns",
                                      "inv_freq has 5 elements, expected 1 to 4"};
    for (int i = 0; i < 3; i++) {
        struct kg_heads q = {.x = f32(x, 4, 8), .out = f32(x, 4, 8), .turned = true};
        expect(kg_op_rope(be, q.x, &turns[i], false, &err), KG_ESHAPE, why[i]);
        expect(kg_op_heads(be, &q, 1, &turns[i], &err), KG_ESHAPE, why[i]);
    }
    expect(kg_op_cast(be, kg_mat(h, KG_F16, 4, 8), bf, &err), KG_EDTYPE, "dst is fp16");
    const struct kg_mat w = kg_weights(be, x, KG_F32, 4, 8);
    expect(kg_op_cast(be, w, w, &err), KG_EINVAL, "expected rows on one side");
    struct kg_backend empty = {.name = "empty"};
    expect(kg_op_cast(&empty, f32(x, 4, 8), f32(x, 4, 8), &err), KG_EUNSUPPORTED,
           "backend empty has no operation cast");
}

/* If the host cannot read ids, the code that puts them there has checked them. */
static void ids_that_the_host_can_read_are_checked(void **state)
{
    (void)state;
    const struct kg_backend *be = backend();
    float x[64] = {0};
    int32_t bad[4] = {0, 1, 8, 0};
    if (!be->host_memory)
        return;
    expect(kg_op_embed(be, f32(x, 4, 4), f32(x, 8, 4), kg_ivec(bad, 4), &err), KG_EINVAL,
           "embed: tokens[2] is 8, expected 0..7");
    expect(kg_op_gather_rows(be, f32(x, 4, 8), f32(x, 4, 8), kg_ivec(bad, 4), &err),
           KG_EINVAL, "rows[2] is 8, expected 0..3");
    expect(kg_op_sum_rows(be, f32(x, 4, 8), f32(x, 4, 8), kg_ivec(bad, 4),
                          kg_ivec(bad, 2), &err),
           KG_EINVAL, "sum_rows: ends[2] is 8, expected 0..2");
    expect(kg_op_sum_rows(be, f32(x, 1, 8), f32(x, 4, 8), kg_ivec(bad, 1),
                          kg_ivec(bad, 4), &err),
           KG_EINVAL, "sum_rows: places[2] is 8, expected 0..3");
}

/* Computes nothing: it is only called if all checks passed. */
static kg_status accept_attention(struct kg_mat o, struct kg_vec lse,
                                  const struct kg_attn *a, struct kg_err *e)
{
    (void)o;
    (void)lse;
    (void)a;
    (void)e;
    return KG_OK;
}
static const struct kg_backend accepting = {
    .name = "accepting", .host_memory = true, .attention = accept_attention};

/* One sequence of 3 queries at position 2, after 5 rows of others; 4 heads of 2, keys of
 * 2 heads in 70 rows. */
static float attended[70 * 8];
static struct kg_attn attn_of(const struct kg_attn_seq *seq, struct kg_ivec blocks)
{
    return (struct kg_attn){.q = f32(attended, 8, 8),
                            .k = f32(attended, 70, 4),
                            .v = f32(attended, 70, 4),
                            .n_heads = 4,
                            .n_kv_heads = 2,
                            .head_dim = 2,
                            .scale = 1,
                            .seqs = seq,
                            .n_seqs = 1,
                            .blocks = blocks};
}

static kg_status attend(const struct kg_attn *a)
{
    return kg_op_attention(&accepting, f32(attended, 8, 8), none, a, &err);
}

static void attention_stays_within_its_rows(void **state)
{
    (void)state;
    static const int32_t pages[] = {1, 2, -1, 0, 1};
    const struct kg_ivec none_of = {0}, last = {pages, 1}, table = {pages, 5};
    const struct {
        struct kg_attn_seq seq;
        struct kg_ivec blocks;
        const char *says; /* NULL: accepted */
    } rows[] = {
        {{5, 3, 2, 65}, none_of, NULL}, /* the last row of each */
        {{6, 3, 2, 0}, none_of, "rows 6+3"},
        {{-1, 3, 2, 0}, none_of, "rows -1+3"},
        {{5, -1, 2, 0}, none_of, "rows 5+-1"},
        {{5, 3, -1, 0}, none_of, "at position -1"},
        {{5, 3, 2, 66}, none_of, "needs key rows 66..70"},
        {{5, 3, 2, -1}, none_of, "needs key rows -1..3"},
        {{5, 3, 3, 65}, none_of, "needs key rows 65..70"},
        {{5, 0, 2, 99}, none_of, NULL}, /* no query, no key */
        {{5, 3, 2, 0}, last, NULL},     /* keys 64..68 */
        {{5, 3, 4, 0}, last, "is cache block 1"},
        {{5, 3, 2, 1}, last, "needs blocks 1..1 of a table of 1"},
        {{5, 3, 2, -1}, last, "needs blocks -1..-1 of a table of 1"},
        {{5, 3, 2, 1}, table, "block 0 of sequence 0 is cache block 2"},
        {{5, 3, 2, 2}, table, "cache block -1"},
        {{5, 3, 67, 3}, table, NULL}, /* 70 keys: all of block 0, 6 of block 1 */
        {{5, 3, 68, 3}, table, "block 1 of sequence 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_attn a = attn_of(&rows[i].seq, rows[i].blocks);
        if (!rows[i].says)
            assert_int_equal(attend(&a), KG_OK);
        else
            expect(attend(&a), KG_ESHAPE, rows[i].says);
    }
}

static void attention_has_no_more_keys_than_most_keys(void **state)
{
    (void)state;
    const struct kg_attn_seq seq = {5, 3, 2, 65};
    struct kg_attn a = attn_of(&seq, (struct kg_ivec){0});
    a.most_keys = 5;
    assert_int_equal(attend(&a), KG_OK);
    a.most_keys = 4;
    expect(attend(&a), KG_ESHAPE, "sequence 0 has 5 keys, expected at most 4");
}

static void attention_has_heads_that_fit(void **state)
{
    (void)state;
    const struct kg_attn_seq seq = {5, 3, 2, 65};
    const struct kg_ivec whole = {0};
    uint16_t h[70 * 4] = {0};
    struct kg_attn a = attn_of(&seq, whole);
    a.n_heads = 3;
    expect(attend(&a), KG_ESHAPE, "attention: 8 columns, expected 3 heads of 2");
    a = attn_of(&seq, whole), a.n_kv_heads = 1;
    expect(attend(&a), KG_ESHAPE, "4 columns, expected 1 heads of 2");
    a = attn_of(&seq, whole), a.k.cols = a.k.stride = a.v.cols = a.v.stride = 6;
    a.k.rows = a.v.rows = 40, a.n_kv_heads = 3;
    expect(attend(&a), KG_ESHAPE, "4 query heads, expected a multiple of 3 key heads");
    a = attn_of(&seq, whole), a.v.rows = 69;
    expect(attend(&a), KG_ESHAPE, "v is 69 x 4, expected 70 x 4");
    a = attn_of(&seq, whole), a.k = kg_mat(h, KG_BF16, 70, 4);
    expect(attend(&a), KG_EDTYPE, "k is bf16, expected fp32");
    a = attn_of(&seq, whole);
    expect(kg_op_attention(&accepting, f32(attended, 7, 8), none, &a, &err), KG_ESHAPE,
           "o is 7 x 8, expected 8 x 8");
}

static void no_rows_is_no_work(void **state)
{
    (void)state;
    const struct kg_backend *be = backend();
    float *x = array_new(64), *y = array_new(16);
    y[2] = 3;
    struct kg_mat nothing = f32(NULL, 0, 8);
    assert_int_equal(kg_op_rmsnorm(be, nothing, none, nothing, kg_vec(x, 8), eps, &err),
                     KG_OK);
    assert_int_equal(kg_op_matmul(be, f32(NULL, 0, 8), nothing, f32(x, 8, 8),
                                  KG_MATMUL_NT, false, &err),
                     KG_OK);
    /* a sum over no tokens */
    assert_int_equal(kg_op_matmul(be, f32(y, 4, 4), f32(NULL, 0, 4), f32(NULL, 0, 4),
                                  KG_MATMUL_TN, true, &err),
                     KG_OK);
    assert_true(y[2] == 3.0f);
    assert_int_equal(kg_op_matmul(be, f32(y, 4, 4), f32(NULL, 0, 4), f32(NULL, 0, 4),
                                  KG_MATMUL_TN, false, &err),
                     KG_OK);
    assert_true(y[2] == 0.0f);
    buffer_free(x);
    buffer_free(y);
}

/* ---- heads ---- */
static const struct kg_backend *of_the_host(void)
{
    const struct kg_backend *be = NULL;

    assert_int_equal(kg_backend_open(&be, "cpu", &err), KG_OK);
    return be;
}

enum { HEADS_ROWS = 5, HEADS_POOL = 11, HEADS_HD = 8, HEADS_MOST = 4 * HEADS_HD };

struct heads_case {
    enum kg_dtype ct;
    bool has_bias, is_turned, has_pool, in_place;
    int pairs; /* rotated pairs of a head */
};

/* Queries of four heads, keys of two, and values, which are not rotated and have an odd
 * number of columns. */
static void heads_of(struct kg_heads h[3], const struct heads_case *c, const float *x,
                     float *bias, int32_t *rows)
{
    for (int i = 0; i < 3; i++) {
        const int64_t cols = i == 0   ? HEADS_MOST
                             : i == 1 ? 2 * HEADS_HD
                                      : 2 * HEADS_HD - 1;
        const bool in_place = c->in_place || (i == 2 && !c->has_bias);
        const enum kg_dtype t = in_place ? c->ct : KG_F32;

        h[i] = (struct kg_heads){.out = as_type(c->ct, NULL, HEADS_ROWS, cols)};
        h[i].x = as_type(t, x + i, HEADS_ROWS, cols);
        if (in_place) {
            buffer_free(h[i].out.data);
            h[i].out = h[i].x;
        }
        if (c->has_bias)
            h[i].bias = kg_vec(bias, cols);
        h[i].turned = c->is_turned && i < 2;
        if (c->has_pool && i > 0) {
            h[i].pool = as_type(c->ct, NULL, HEADS_POOL, cols);
            h[i].rows = kg_ivec(rows, HEADS_ROWS);
        }
    }
}

static void compare_heads(const struct heads_case *c, const float *x, float *bias,
                          int32_t *at, int32_t *rows, float *freq)
{
    const struct kg_turn by = turn_by(at, HEADS_ROWS, freq, c->pairs, HEADS_HD);
    struct kg_heads want[3], got[3];

    heads_of(want, c, x, bias, rows);
    heads_of(got, c, x, bias, rows);
    for (int i = 0; i < 3; i++)
        assert_int_equal(kg_op_heads(of_the_host(), &want[i], 1, &by, &err), KG_OK);
    assert_int_equal(kg_op_heads(backend(), got, 3, &by, &err), KG_OK);
    for (int i = 0; i < 3; i++) {
        const bool pooled = want[i].pool.data != NULL;
        const struct kg_mat a = pooled ? want[i].pool : want[i].out;
        const struct kg_mat b = pooled ? got[i].pool : got[i].out;

        if (memcmp(a.data, b.data, kg_mat_bytes(a)) != 0)
            fail_msg("part %d, %s, bias %d, turned %d of %d pairs, pool %d, in place %d",
                     i, kg_dtype_traits(c->ct)->name, c->has_bias, c->is_turned, c->pairs,
                     c->has_pool, c->in_place);
        for (int k = 0; k < 2; k++) {
            const struct kg_heads *h = k ? &got[i] : &want[i];

            if (h->x.data != h->out.data)
                buffer_free(h->x.data);
            buffer_free(h->out.data);
            if (pooled)
                buffer_free(h->pool.data);
        }
    }
}

/* One pass has the bits of bias, rope, cast and scatter one after the other. */
static void heads_have_the_bits_of_their_parts(void **state)
{
    float *x = array_new(HEADS_ROWS * HEADS_MOST + 2), *bias = array_new(HEADS_MOST);
    float *freq = array_new(HEADS_HD / 2);
    int32_t *at = buffer_of(HEADS_ROWS, sizeof *at);
    int32_t *rows = buffer_of(HEADS_ROWS, sizeof *rows);

    (void)state;
    for (int i = 0; i < HEADS_ROWS * HEADS_MOST + 2; i++)
        x[i] = (float)(i % 211 - 105) / 17;
    for (int i = 0; i < HEADS_MOST; i++)
        bias[i] = (float)(i % 7 - 3) / 3;
    for (int i = 0; i < HEADS_HD / 2; i++)
        freq[i] = 1.0f / (float)(1 + 3 * i);
    for (int i = 0; i < HEADS_ROWS; i++)
        at[i] = 37 * i, rows[i] = (4 * i + 3) % HEADS_POOL;
    for (int i = 0; i < 48; i++) {
        const struct heads_case c = {
            i & 1 ? KG_BF16 : KG_F32, i & 2,          i & 4, i & 8,
            !(i & 1) && i >= 32,      i >= 16 ? 3 : 4};

        compare_heads(&c, x, bias, at, rows, freq);
    }
    buffer_free(x), buffer_free(bias), buffer_free(freq);
    buffer_free(at), buffer_free(rows);
}

/* More rows than a block has threads; a token with no row to take from stays. */
static void what_was_drawn_is_fed(void **state)
{
    enum { ROWS = 300 };
    int32_t *tokens = buffer_of(ROWS, sizeof *tokens),
            *from = buffer_of(ROWS, sizeof *from);
    struct kg_drawn *drawn = buffer_of(ROWS, sizeof *drawn);

    (void)state;
    for (int n = 0; n < ROWS; n++) {
        tokens[n] = 5000 + n;
        from[n] = n % 3 ? ROWS - 1 - n : -1;
        drawn[n] = (struct kg_drawn){.token = 7 * n};
    }
    assert_int_equal(kg_op_feed(backend(), tokens, kg_ivec(from, ROWS), drawn, &err),
                     KG_OK);
    for (int n = 0; n < ROWS; n++)
        assert_int_equal(tokens[n], n % 3 ? 7 * (ROWS - 1 - n) : 5000 + n);
    assert_int_equal(kg_op_feed(backend(), tokens, kg_ivec(from, 0), drawn, &err), KG_OK);
    buffer_free(tokens);
    buffer_free(from);
    buffer_free(drawn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_equals_the_plain_version_fp32),
        cmocka_unit_test(forward_equals_the_plain_version_bf16),
        cmocka_unit_test(gradients_equal_finite_differences),
        cmocka_unit_test(bits_do_not_depend_on_threads_or_enclosing_regions),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(wrong_shapes_types_and_ids_are_named_with_their_numbers),
        cmocka_unit_test(ids_that_the_host_can_read_are_checked),
        cmocka_unit_test(attention_stays_within_its_rows),
        cmocka_unit_test(attention_has_no_more_keys_than_most_keys),
        cmocka_unit_test(attention_has_heads_that_fit),
        cmocka_unit_test(no_rows_is_no_work),
        cmocka_unit_test(heads_have_the_bits_of_their_parts),
    };
    const struct CMUnitTest of_kernels[] = {
        cmocka_unit_test(forward_equals_the_plain_version_fp32),
        cmocka_unit_test(forward_equals_the_plain_version_bf16),
        cmocka_unit_test(gradients_equal_finite_differences),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(no_rows_is_no_work),
        cmocka_unit_test(heads_have_the_bits_of_their_parts),
        cmocka_unit_test(what_was_drawn_is_fed),
    };
    const int failed = RUN_FAR_TOO(tests, setup, teardown);
    return failed + RUN_EMULATED(of_kernels, setup, teardown);
}
