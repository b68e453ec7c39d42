/* The vocabulary head: against plain double formulas and finite differences; its bits do
 * not depend on other outputs, the number of rows or the number of threads.
 */
#include "base/sanitized_testing.h"
#include "tensor/matrix_testing.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

struct problem {
    enum kg_dtype dtype;
    int64_t n;
    int64_t d;
    int64_t v;
    int k;
    int top_k;
    bool tempered;
    bool anchored;
    float softcap; /* the anchor's is twice as large */
    struct kg_mat hidden;
    struct kg_mat weight;
    float *inv_temp;
    int32_t *target;
    int32_t *indices;
    struct kg_head_anchor anchor; /* of width d + 3 */
};

static int64_t below(int64_t n)
{
    return (int64_t)((uniform() + 1.0) * 0.5 * (double)n) % n;
}

static double *random_doubles(int64_t n, double size)
{
    double *x = block_of(n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = size * uniform();
    return x;
}

static float *random_floats(int64_t n, double size)
{
    float *x = block_of(n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(size * uniform());
    return x;
}

/* Some targets and slots are unused, and every third target is among its row's
 * indices. */
static void problem_init(struct problem *p)
{
    random_state = 11;
    p->hidden = random_matrix(p->dtype, p->n, p->d, 2.0);
    p->weight = random_matrix(p->dtype, p->v, p->d, 1.0);
    p->inv_temp = p->tempered ? random_floats(p->n, 0.4) : NULL;
    for (int64_t n = 0; p->tempered && n < p->n; n++)
        p->inv_temp[n] += 1.0f;
    p->target = block_of(p->n, sizeof *p->target);
    p->indices = block_of(p->n * p->k, sizeof *p->indices);
    for (int64_t i = 0; i < p->n * p->k; i++)
        p->indices[i] = (int32_t)((i / p->k * 31 + i % p->k * (p->v / p->k)) % p->v);
    for (int64_t n = 0; n < p->n; n++) {
        p->target[n] = n % 3 == 0 ? p->indices[n * p->k] : (int32_t)below(p->v);
        if (n % 7 == 5)
            p->target[n] = -1;
        if (n % 4 == 1)
            p->indices[n * p->k + p->k - 1] = -1;
    }
    if (!p->anchored)
        return;
    p->anchor.hidden = random_matrix(p->dtype, p->n, p->d + 3, 2.0);
    p->anchor.weight = random_matrix(p->dtype, p->v, p->d + 3, 1.0);
    p->anchor.inv_temp = p->inv_temp;
    p->anchor.softcap = 2 * p->softcap;
}

static void problem_release(struct problem *p)
{
    buffer_free(p->hidden.data);
    buffer_free(p->weight.data);
    kg_mem_free(p->inv_temp);
    kg_mem_free(p->target);
    kg_mem_free(p->indices);
    buffer_free(p->anchor.hidden.data);
    buffer_free(p->anchor.weight.data);
}

static struct kg_head head_of(const struct problem *p)
{
    return (struct kg_head){
        .hidden = p->hidden,
        .weight = p->weight,
        .inv_temp = p->inv_temp,
        .softcap = p->softcap,
        .target = p->target,
        .indices = p->indices,
        .k = p->k,
        .top_k = p->top_k,
        .anchor = p->anchored ? &p->anchor : NULL,
    };
}

static struct kg_head_out out_init(const struct problem *p)
{
    int64_t n = p->n;
    return (struct kg_head_out){
        .lse = block_of(n, sizeof(double)),
        .logp = block_of(n, sizeof(float)),
        .logp_at = block_of(n * p->k, sizeof(float)),
        .entropy = block_of(n, sizeof(float)),
        .top_ids = block_of(n * p->top_k, sizeof(int32_t)),
        .top_logp = block_of(n * p->top_k, sizeof(float)),
        .logits = block_of(n * p->v, sizeof(float)),
        .kl_reverse = p->anchored ? block_of(n, sizeof(double)) : NULL,
        .kl_forward = p->anchored ? block_of(n, sizeof(double)) : NULL,
        .anchor_lse = p->anchored ? block_of(n, sizeof(double)) : NULL,
    };
}

static void out_release(struct kg_head_out *o)
{
    kg_mem_free(o->lse);
    kg_mem_free(o->logp);
    kg_mem_free(o->logp_at);
    kg_mem_free(o->entropy);
    kg_mem_free(o->top_ids);
    kg_mem_free(o->top_logp);
    kg_mem_free(o->logits);
    kg_mem_free(o->kl_reverse);
    kg_mem_free(o->kl_forward);
    kg_mem_free(o->anchor_lse);
}

static void run_head(const struct kg_head_out *out, const struct kg_head *h)
{
    struct kg_err err;
    if (kg_op_head(backend(), out, h, &err) != KG_OK)
        fail_msg("%s", err.message);
}

static struct kg_head_out run_all(const struct problem *p)
{
    struct kg_head_out out = out_init(p);
    struct kg_head h = head_of(p);
    run_head(&out, &h);
    return out;
}

/* ---- the plain version ---- */
struct plain {
    double *z; /* (v) logits, then log-probs */
    double *q; /* (v) log-probs of the anchor */
    double lse;
    double entropy;
    double reverse;
    double forward;
};

static double plain_softmax(double *z, const struct kg_mat *hidden,
                            const struct kg_mat *weight, const float *inv_temp,
                            double cap, int64_t n)
{
    double top = -INFINITY;
    double sum = 0.0;
    for (int64_t v = 0; v < weight->rows; v++) {
        z[v] = 0.0;
        for (int64_t d = 0; d < weight->cols; d++)
            z[v] += get(*hidden, n, d) * get(*weight, v, d);
        z[v] = cap > 0 ? cap * tanh(z[v] / cap) : z[v];
        z[v] *= inv_temp ? (double)inv_temp[n] : 1.0;
        top = z[v] > top ? z[v] : top;
    }
    for (int64_t v = 0; v < weight->rows; v++)
        sum += exp(z[v] - top);
    for (int64_t v = 0; v < weight->rows; v++)
        z[v] -= top + log(sum);
    return top + log(sum);
}

static struct plain plain_init(const struct problem *p)
{
    return (struct plain){.z = block_of(p->v, sizeof(double)),
                          .q = block_of(p->v, sizeof(double))};
}

static void plain_release(struct plain *x)
{
    kg_mem_free(x->z);
    kg_mem_free(x->q);
}

static void plain_row(struct plain *x, const struct problem *p, int64_t n)
{
    x->entropy = x->reverse = x->forward = 0.0;
    x->lse = plain_softmax(x->z, &p->hidden, &p->weight, p->inv_temp, (double)p->softcap,
                           n);
    for (int64_t v = 0; v < p->v; v++)
        x->entropy -= exp(x->z[v]) * x->z[v];
    if (!p->anchored)
        return;
    plain_softmax(x->q, &p->anchor.hidden, &p->anchor.weight, p->anchor.inv_temp,
                  (double)p->anchor.softcap, n);
    for (int64_t v = 0; v < p->v; v++) {
        x->reverse += exp(x->z[v]) * (x->z[v] - x->q[v]);
        x->forward += exp(x->q[v]) * (x->q[v] - x->z[v]);
    }
}

static void close_to(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.9g, expected %.9g", got, want);
}

static void compare_top(const struct problem *p, const struct kg_head_out *o,
                        const struct plain *x, int64_t n)
{
    const float *z = o->logits + n * p->v;
    for (int i = 0; i < p->top_k; i++) {
        int32_t id = o->top_ids[n * p->top_k + i];
        int64_t rank = 0; /* by the head's own logits, so that near ties do not matter */
        for (int64_t v = 0; v < p->v; v++)
            rank += z[v] > z[id] || (z[v] == z[id] && v < id);
        assert_int_equal(rank, i);
        close_to((double)o->top_logp[n * p->top_k + i], x->z[id], 2e-5);
    }
}

static void compare_row(const struct problem *p, const struct kg_head_out *o,
                        const struct plain *x, int64_t n)
{
    const double tolerance = 2e-5;
    close_to(o->lse[n], x->lse, tolerance);
    close_to((double)o->entropy[n], x->entropy, tolerance);
    for (int64_t v = 0; v < p->v; v++)
        close_to((double)o->logits[n * p->v + v], x->z[v] + x->lse, tolerance);
    if (p->target[n] >= 0)
        close_to((double)o->logp[n], x->z[p->target[n]], tolerance);
    else
        assert_true(o->logp[n] == 0.0f);
    for (int k = 0; k < p->k; k++) {
        int32_t id = p->indices[n * p->k + k];
        if (id >= 0)
            close_to((double)o->logp_at[n * p->k + k], x->z[id], tolerance);
        else
            assert_true(o->logp_at[n * p->k + k] == -INFINITY);
    }
    compare_top(p, o, x, n);
    if (!p->anchored)
        return;
    close_to(o->kl_reverse[n], x->reverse, tolerance);
    close_to(o->kl_forward[n], x->forward, tolerance);
}

static const struct problem shapes[] = {
    {.dtype = KG_F32, .n = 3, .d = 8, .v = 5, .k = 3, .top_k = 5},
    {.dtype = KG_F32, .n = 130, .d = 12, .v = 300, .k = 4, .top_k = 5, .tempered = true},
    {.dtype = KG_F32, .n = 9, .d = 16, .v = 4099, .k = 33, .top_k = 20, .anchored = true},
    {.dtype = KG_BF16,
     .n = 140,
     .d = 32,
     .v = 700,
     .k = 8,
     .top_k = 32,
     .tempered = true,
     .anchored = true},
    {.dtype = KG_BF16,
     .n = 2,
     .d = 24,
     .v = 17001,
     .k = 5,
     .top_k = 64,
     .tempered = true},
    {.dtype = KG_F32,
     .n = 9,
     .d = 16,
     .v = 700,
     .k = 9,
     .top_k = 9,
     .tempered = true,
     .anchored = true,
     .softcap = 1.25f},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static void matches_plain_version(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        struct problem p = shapes[i];
        problem_init(&p);
        struct plain x = plain_init(&p);
        struct kg_head_out o = run_all(&p);
        for (int64_t n = 0; n < p.n; n++) {
            plain_row(&x, &p, n);
            compare_row(&p, &o, &x, n);
        }
        out_release(&o);
        plain_release(&x);
        problem_release(&p);
    }
}

/* Equal weight rows have equal logits. */
static void ties_go_to_the_smaller_id(void **state)
{
    (void)state;
    struct problem p = {.dtype = KG_F32, .n = 5, .d = 16, .v = 5000, .k = 1, .top_k = 40};
    problem_init(&p);
    for (int64_t v = 0; v < p.v; v++)
        for (int64_t d = 0; d < p.d; d++)
            set(p.weight, v, d, get(p.weight, v % 10, d));
    struct kg_head_out o = run_all(&p);
    for (int64_t n = 0; n < p.n; n++)
        for (int i = 0; i < 40; i++) {
            assert_int_equal(o.top_ids[n * 40 + i] / 10,
                             i); /* the best of ten rows, 500 times */
            assert_int_equal(o.top_ids[n * 40 + i] % 10, o.top_ids[n * 40] % 10);
        }
    out_release(&o);
    problem_release(&p);
}

/* ---- bits ---- */
static void rows_equal(const void *a, int64_t ra, const void *b, int64_t rb, int64_t rows,
                       size_t row_bytes)
{
    if (a && b &&
        memcmp((const char *)a + (size_t)ra * row_bytes,
               (const char *)b + (size_t)rb * row_bytes, (size_t)rows * row_bytes))
        fail_msg("rows %lld and %lld differ", (long long)ra, (long long)rb);
}

/* Compares the outputs that both have. */
static void outs_equal(const struct problem *p, const struct kg_head_out *a, int64_t ra,
                       const struct kg_head_out *b, int64_t rb, int64_t rows)
{
    size_t k = (size_t)p->k;
    size_t top = (size_t)p->top_k;
    rows_equal(a->lse, ra, b->lse, rb, rows, sizeof(double));
    rows_equal(a->logp, ra, b->logp, rb, rows, sizeof(float));
    rows_equal(a->logp_at, ra, b->logp_at, rb, rows, k * sizeof(float));
    rows_equal(a->entropy, ra, b->entropy, rb, rows, sizeof(float));
    rows_equal(a->top_ids, ra, b->top_ids, rb, rows, top * sizeof(int32_t));
    rows_equal(a->top_logp, ra, b->top_logp, rb, rows, top * sizeof(float));
    rows_equal(a->logits, ra, b->logits, rb, rows, (size_t)p->v * sizeof(float));
    rows_equal(a->kl_reverse, ra, b->kl_reverse, rb, rows, sizeof(double));
    rows_equal(a->kl_forward, ra, b->kl_forward, rb, rows, sizeof(double));
    rows_equal(a->anchor_lse, ra, b->anchor_lse, rb, rows, sizeof(double));
}

/* The problem's rows [first, first+n), borrowed. */
static struct problem part_of(const struct problem *p, int64_t first, int64_t n)
{
    struct problem part = *p;
    part.n = n;
    part.hidden = kg_mat_rows(p->hidden, first, n);
    part.inv_temp = p->inv_temp ? p->inv_temp + first : NULL;
    part.target = p->target + first;
    part.indices = p->indices + first * p->k;
    if (p->anchored) {
        part.anchor.hidden = kg_mat_rows(p->anchor.hidden, first, n);
        part.anchor.inv_temp = part.inv_temp;
    }
    return part;
}

static const struct problem wide[] = {
    {.dtype = KG_F32, .n = 300, .d = 64, .v = 3000, .k = 8, .top_k = 8, .tempered = true},
    {.dtype = KG_BF16,
     .n = 300,
     .d = 64,
     .v = 3000,
     .k = 8,
     .top_k = 8,
     .tempered = true,
     .anchored = true},
};
enum { N_WIDE = sizeof wide / sizeof wide[0] };

static struct problem wide_of(int i)
{
    struct problem p = wide[i];
    if (emulated()) {
        p.n = 70;
        p.d = 16;
        p.v = 1300;
    }
    return p;
}

static void number_of_rows_changes_no_bit(void **state)
{
    (void)state;
    for (int i = 0; i < N_WIDE; i++) {
        struct problem p = wide_of(i);
        problem_init(&p);
        struct kg_head_out full = run_all(&p);
        for (int64_t n = 1; n <= 64; n += emulated() || SANITIZED ? 9 : 1) {
            int64_t first = below(p.n - n);
            struct problem part = part_of(&p, first, n);
            struct kg_head_out o = run_all(&part);
            outs_equal(&p, &full, first, &o, 0, n);
            out_release(&o);
        }
        out_release(&full);
        problem_release(&p);
    }
}

static void other_wishes_change_no_bit(void **state)
{
    (void)state;
    for (int i = 0; i < N_WIDE; i++) {
        struct problem p = wide_of(i);
        problem_init(&p);
        struct kg_head_out full = run_all(&p);
        struct kg_head_out o = out_init(&p);
        struct kg_head h = head_of(&p);
        struct kg_head_out few = {.lse = o.lse, .logp = o.logp, .entropy = o.entropy};
        h.top_k = 0;
        h.anchor = NULL;
        run_head(&few, &h);
        outs_equal(&p, &full, 0, &few, 0, p.n);
        few = (struct kg_head_out){.top_ids = o.top_ids, .top_logp = o.top_logp};
        h.top_k = p.top_k;
        h.target = h.indices = NULL;
        run_head(&few, &h);
        outs_equal(&p, &full, 0, &few, 0, p.n);
        out_release(&o);
        out_release(&full);
        problem_release(&p);
    }
}

static void threads_change_no_bit(void **state)
{
    (void)state;
    int before = omp_get_max_threads();
    for (int i = 0; i < N_WIDE; i++) {
        struct problem p = wide_of(i);
        problem_init(&p);
        omp_set_num_threads(1);
        struct kg_head_out full = run_all(&p);
        for (int threads = 2; threads <= 4; threads += 2) {
            omp_set_num_threads(threads);
            for (int64_t n = 1; n <= 300; n += 299) {
                struct problem part = part_of(&p, 0, n);
                struct kg_head_out o = run_all(&part);
                outs_equal(&p, &full, 0, &o, 0, n);
                out_release(&o);
            }
        }
        out_release(&full);
        problem_release(&p);
    }
    omp_set_num_threads(before);
}

static void an_enclosing_region_changes_no_bit(void **state)
{
    (void)state;
    struct problem p = wide_of(1);
    problem_init(&p);
    struct kg_head h = head_of(&p);
    struct kg_head_out full = run_all(&p);
    struct kg_head_out out[2] = {out_init(&p), out_init(&p)};
    kg_status status[2];
#pragma omp parallel for num_threads(2) if (!backend()->one_caller)
    for (int i = 0; i < 2; i++) {
        struct kg_err err;
        status[i] = kg_op_head(backend(), &out[i], &h, &err);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(status[i], KG_OK);
        outs_equal(&p, &full, 0, &out[i], 0, p.n);
        out_release(&out[i]);
    }
    out_release(&full);
    problem_release(&p);
}

/* ---- backward ---- */
struct gradient {
    double *a_target;
    double *a_indices;
    double *a_entropy;
    double *a_reverse;
    double *a_forward;
    struct kg_mat dhidden;
    struct kg_mat dweight;
};

/* Every fifth row has no gradient; dhidden and dweight are not zero before. */
static struct gradient gradient_init(const struct problem *p)
{
    struct gradient g = {
        .a_target = random_doubles(p->n, 1.0),
        .a_indices = random_doubles(p->n * p->k, 0.5),
        .a_entropy = random_doubles(p->n, 0.3),
        .a_reverse = p->anchored ? random_doubles(p->n, 0.5) : NULL,
        .a_forward = p->anchored ? random_doubles(p->n, 0.5) : NULL,
        .dhidden = random_matrix(KG_F32, p->n, p->d, 1.0),
        .dweight = random_matrix(KG_F32, p->v, p->d, 1.0),
    };
    for (int64_t n = 2; n < p->n; n += 5) {
        g.a_target[n] = g.a_entropy[n] = 0.0;
        memset(g.a_indices + n * p->k, 0, (size_t)p->k * sizeof(double));
        if (p->anchored)
            g.a_reverse[n] = g.a_forward[n] = 0.0;
    }
    return g;
}

static void gradient_release(struct gradient *g)
{
    kg_mem_free(g->a_target);
    kg_mem_free(g->a_indices);
    kg_mem_free(g->a_entropy);
    kg_mem_free(g->a_reverse);
    kg_mem_free(g->a_forward);
    buffer_free(g->dhidden.data);
    buffer_free(g->dweight.data);
}

static struct kg_head_grad grad_of(const struct gradient *g, const struct kg_head_out *o)
{
    return (struct kg_head_grad){
        .lse = o->lse,
        .a_target = g->a_target,
        .a_indices = g->a_indices,
        .a_entropy = g->a_entropy,
        .entropy = o->entropy,
        .a_kl_reverse = g->a_reverse,
        .a_kl_forward = g->a_forward,
        .kl_reverse = o->kl_reverse,
        .anchor_lse = o->anchor_lse,
        .dhidden = g->dhidden,
        .dweight = g->dweight,
    };
}

static kg_status backward_status(const struct problem *p, const struct gradient *g,
                                 const struct kg_head_out *o, struct kg_err *err)
{
    struct kg_head h = head_of(p);
    struct kg_head_grad grad = grad_of(g, o);
    return kg_op_head_bwd(backend(), &grad, &h, err);
}

static void backward(const struct problem *p, const struct gradient *g,
                     const struct kg_head_out *o)
{
    struct kg_err err;
    if (backward_status(p, g, o, &err) != KG_OK)
        fail_msg("%s", err.message);
}

/* dz[v] of row n, term by term as the rules are written. */
static void plain_dz(double *dz, const struct problem *p, const struct gradient *g,
                     const struct plain *x, int64_t n)
{
    double t = p->inv_temp ? (double)p->inv_temp[n] : 1.0;
    memset(dz, 0, (size_t)p->v * sizeof *dz);
    double sum = p->target[n] >= 0 ? g->a_target[n] : 0.0;
    if (p->target[n] >= 0)
        dz[p->target[n]] += g->a_target[n];
    for (int k = 0; k < p->k; k++) {
        int32_t id = p->indices[n * p->k + k];
        if (id < 0)
            continue;
        dz[id] += g->a_indices[n * p->k + k];
        sum += g->a_indices[n * p->k + k];
    }
    for (int64_t v = 0; v < p->v; v++) {
        double prob = exp(x->z[v]);
        dz[v] -= prob * sum + g->a_entropy[n] * prob * (x->z[v] + x->entropy);
        if (p->anchored) {
            dz[v] += g->a_reverse[n] * prob * (x->z[v] - x->q[v] - x->reverse);
            dz[v] += g->a_forward[n] * (prob - exp(x->q[v]));
        }
        double y = (x->z[v] + x->lse) / (t * (double)p->softcap);
        dz[v] *= p->softcap > 0 ? t * (1 - y * y) : t;
    }
}

static void compare_gradient(const struct problem *p, const struct gradient *g,
                             const float *dweight_before, double tolerance)
{
    struct plain x = plain_init(p);
    double *dz = block_of(p->v, sizeof *dz);
    double *dw = block_of(p->v * p->d, sizeof *dw);
    for (int64_t n = 0; n < p->n; n++) {
        plain_row(&x, p, n);
        plain_dz(dz, p, g, &x, n);
        for (int64_t d = 0; d < p->d; d++) {
            double dh = 0.0;
            for (int64_t v = 0; v < p->v; v++) {
                dh += dz[v] * get(p->weight, v, d);
                dw[v * p->d + d] += dz[v] * get(p->hidden, n, d);
            }
            close_to(get(g->dhidden, n, d), dh, tolerance);
        }
    }
    for (int64_t i = 0; i < p->v * p->d; i++)
        close_to((double)((float *)g->dweight.data)[i], dw[i] + (double)dweight_before[i],
                 tolerance);
    kg_mem_free(dw);
    kg_mem_free(dz);
    plain_release(&x);
}

static float *copy_of(struct kg_mat m)
{
    struct kg_err err;
    return kg_mem_copy(m.data, (size_t)(m.rows * m.cols) * sizeof(float), "test", &err);
}

static void backward_matches_plain_version(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        struct problem p = shapes[i];
        problem_init(&p);
        struct kg_head_out o = run_all(&p);
        struct gradient g = gradient_init(&p);
        float *before = copy_of(g.dweight);
        backward(&p, &g, &o);
        compare_gradient(&p, &g, before, p.dtype == KG_F32 ? 2e-5 : 2e-2);
        kg_mem_free(before);
        gradient_release(&g);
        out_release(&o);
        problem_release(&p);
    }
}

/* The weight is the identity, so hidden states are logits. Row n gives its target a
 * probability from 0.9 to 1 - 1e-7, and its anchor differs from it by 1e-1 down to 1e-7:
 * coefficients nearly cancel, and the small remainder has to be right to 1e-5 of itself
 * (and to the rounding of lse, a double). */
static struct problem nearly_cancelling(void)
{
    struct problem p = {.dtype = KG_F32, .n = 60, .d = 600, .v = 600, .k = 3, .top_k = 1};
    p.n = emulated() ? 26 : p.n;
    problem_init(&p);
    p.anchor.hidden = random_matrix(KG_F32, p.n, p.d, 1.0);
    p.anchor.weight = p.weight;
    p.anchored = true;
    memset(p.weight.data, 0, (size_t)(p.v * p.d) * sizeof(float));
    for (int64_t v = 0; v < p.v; v++)
        set(p.weight, v, v, 1.0);
    for (int64_t n = 0; n < p.n; n++) {
        double apart = pow(10, -1 - (double)(n % 13) / 2);
        p.target[n] = p.indices[n * p.k];
        set(p.hidden, n, p.target[n], 9 + 0.25 * (double)n);
        for (int64_t d = 0; d < p.d; d++)
            set(p.anchor.hidden, n, d,
                get(p.hidden, n, d) + apart * get(p.anchor.hidden, n, d));
    }
    return p;
}

enum { TARGET, ENTROPY, REVERSE, FORWARD, INDICES, N_KINDS };

/* Coefficients of one kind alone; those of the indices cancel too, as near the anchor. */
static void one_kind(struct gradient *g, const struct problem *p, int kind,
                     const struct kg_head_out *o)
{
    for (int64_t n = 0; n < p->n; n++) {
        g->a_target[n] = kind == TARGET ? 0.7 : 0;
        g->a_entropy[n] = kind == ENTROPY ? 0.7 : 0;
        g->a_reverse[n] = kind == REVERSE ? 0.7 : 0;
        g->a_forward[n] = kind == FORWARD ? 0.7 : 0;
        for (int64_t i = n * p->k; i < (n + 1) * p->k; i++)
            g->a_indices[i] = kind == INDICES ? -exp((double)o->logp_at[i]) : 0;
    }
}

static void small_remainders_keep_their_digits(void **state)
{
    (void)state;
    struct problem p = nearly_cancelling();
    struct kg_head_out o = run_all(&p);
    struct gradient g[N_KINDS];
    struct plain x = plain_init(&p);
    double *dz = block_of(p.v, sizeof *dz);
    for (int kind = 0; kind < N_KINDS; kind++) {
        g[kind] = gradient_init(&p);
        one_kind(&g[kind], &p, kind, &o);
        backward(&p, &g[kind], &o);
    }
    for (int64_t n = 0; n < p.n; n++) {
        plain_row(&x, &p, n);
        for (int kind = 0; kind < N_KINDS; kind++) {
            double off = 0.0, size = 0.0;
            plain_dz(dz, &p, &g[kind], &x, n);
            for (int64_t v = 0; v < p.v; v++) {
                off += pow(get(g[kind].dhidden, n, v) - dz[v], 2);
                size += dz[v] * dz[v];
            }
            if (!(sqrt(off) <= 1e-5 * sqrt(size) + 4e-15))
                fail_msg("kind %d, row %d: off by %.2e of %.2e", kind, (int)n, sqrt(off),
                         sqrt(size));
        }
    }
    for (int kind = 0; kind < N_KINDS; kind++)
        gradient_release(&g[kind]);
    kg_mem_free(dz);
    plain_release(&x);
    out_release(&o);
    buffer_free(p.anchor.hidden.data);
    p.anchor = (struct kg_head_anchor){0};
    problem_release(&p);
}

/* A smooth function of everything the head returns, and its derivatives. */
static double objective(const struct problem *p, struct gradient *g)
{
    struct kg_head_out o = run_all(p);
    double sum = 0.0;
    for (int64_t n = 0; n < p->n; n++) {
        double x = (double)o.logp[n];
        sum += sin(x) + 0.3 * (double)o.entropy[n] * (double)o.entropy[n] +
               0.5 * o.kl_reverse[n] * x + exp(-o.kl_forward[n]);
        g->a_target[n] = cos(x) + 0.5 * o.kl_reverse[n];
        g->a_entropy[n] = 0.6 * (double)o.entropy[n];
        g->a_reverse[n] = 0.5 * x;
        g->a_forward[n] = -exp(-o.kl_forward[n]);
        for (int k = 0; k < p->k; k++) {
            double at = (double)o.logp_at[n * p->k + k];
            if (p->indices[n * p->k + k] < 0)
                continue;
            sum += 0.1 * at * at;
            g->a_indices[n * p->k + k] = 0.2 * at;
        }
    }
    out_release(&o);
    return sum;
}

static void check_difference(const struct problem *p, struct kg_mat x, const float *dx)
{
    struct gradient unused = gradient_init(p);
    for (int trial = 0; trial < 40; trial++) {
        int64_t r = below(x.rows);
        int64_t c = below(x.cols);
        double old = get(x, r, c);
        set(x, r, c, old + 4e-3);
        double up = objective(p, &unused);
        set(x, r, c, old - 4e-3);
        double down = objective(p, &unused);
        set(x, r, c, old);
        double got = (double)dx[r * x.cols + c];
        close_to(got, (up - down) / 8e-3, 2e-3 * (1.0 + fabs(got)));
    }
    gradient_release(&unused);
}

static void backward_matches_finite_differences(void **state)
{
    (void)state;
    struct problem p = {.dtype = KG_F32,
                        .n = 6,
                        .d = 8,
                        .v = 40,
                        .k = 3,
                        .top_k = 1,
                        .tempered = true,
                        .anchored = true};
    problem_init(&p);
    struct gradient g = gradient_init(&p);
    objective(&p, &g);
    memset(g.dweight.data, 0, (size_t)(p.v * p.d) * sizeof(float));
    struct kg_head_out o = run_all(&p);
    backward(&p, &g, &o);
    check_difference(&p, p.hidden, g.dhidden.data);
    check_difference(&p, p.weight, g.dweight.data);
    out_release(&o);
    gradient_release(&g);
    problem_release(&p);
}

static void no_coefficient_gives_exact_zero(void **state)
{
    (void)state;
    struct problem p = wide_of(1);
    problem_init(&p);
    struct kg_head_out o = run_all(&p);
    struct gradient g = gradient_init(&p);
    float *before = copy_of(g.dweight);
    memset(g.a_target, 0, (size_t)p.n * sizeof(double));
    memset(g.a_entropy, 0, (size_t)p.n * sizeof(double));
    memset(g.a_reverse, 0, (size_t)p.n * sizeof(double));
    memset(g.a_forward, 0, (size_t)p.n * sizeof(double));
    memset(g.a_indices, 0, (size_t)(p.n * p.k) * sizeof(double));
    backward(&p, &g, &o);
    for (int64_t i = 0; i < p.n * p.d; i++)
        assert_true(((float *)g.dhidden.data)[i] == 0.0f);
    assert_memory_equal(before, g.dweight.data, (size_t)(p.v * p.d) * sizeof(float));
    kg_mem_free(before);
    gradient_release(&g);
    out_release(&o);
    problem_release(&p);
}

/* A policy that is its own anchor: both divergences and their gradients are exactly 0. */
static void own_anchor_is_at_distance_zero(void **state)
{
    (void)state;
    struct problem p = wide_of(1);
    struct problem twin = wide_of(1);
    problem_init(&p);
    twin.anchored = false;
    problem_init(&twin);
    buffer_free(p.anchor.hidden.data);
    buffer_free(p.anchor.weight.data);
    p.anchor = (struct kg_head_anchor){twin.hidden, twin.weight, p.inv_temp, 0};
    struct kg_head_out o = run_all(&p);
    struct gradient g = gradient_init(&p);
    memset(g.a_target, 0, (size_t)p.n * sizeof(double));
    memset(g.a_entropy, 0, (size_t)p.n * sizeof(double));
    memset(g.a_indices, 0, (size_t)(p.n * p.k) * sizeof(double));
    backward(&p, &g, &o);
    for (int64_t n = 0; n < p.n; n++)
        assert_true(o.kl_reverse[n] == 0.0 && o.kl_forward[n] == 0.0);
    for (int64_t i = 0; i < p.n * p.d; i++)
        assert_true(((float *)g.dhidden.data)[i] == 0.0f);
    p.anchor = (struct kg_head_anchor){0};
    gradient_release(&g);
    out_release(&o);
    problem_release(&twin);
    problem_release(&p);
}

static void gradients_equal(const struct gradient *a, const struct gradient *b)
{
    assert_memory_equal(a->dhidden.data, b->dhidden.data,
                        (size_t)(a->dhidden.rows * a->dhidden.cols) * sizeof(float));
    assert_memory_equal(a->dweight.data, b->dweight.data,
                        (size_t)(a->dweight.rows * a->dweight.cols) * sizeof(float));
}

/* An id without a coefficient was only looked up. */
static void ids_without_a_coefficient_change_no_bit(void **state)
{
    (void)state;
    struct problem p = wide_of(1);
    problem_init(&p);
    struct problem none = p;
    none.k = 0;
    struct kg_head_out o = run_all(&p);
    random_state = 5;
    struct gradient with = gradient_init(&p);
    memset(with.a_indices, 0, (size_t)(p.n * p.k) * sizeof(double));
    backward(&p, &with, &o);
    random_state = 5;
    struct gradient without = gradient_init(&p);
    kg_mem_free(without.a_indices);
    without.a_indices = NULL;
    backward(&none, &without, &o);
    gradients_equal(&with, &without);
    gradient_release(&with);
    gradient_release(&without);
    out_release(&o);
    problem_release(&p);
}

/* More than one block of rows and more than one strip. */
static void threads_change_no_bit_of_gradients(void **state)
{
    (void)state;
    int before = omp_get_max_threads();
    for (int i = 0; i < N_WIDE; i++) {
        struct problem p = wide_of(i);
        p.n = 1400;
        problem_init(&p);
        struct kg_head_out o = run_all(&p);
        random_state = 5;
        omp_set_num_threads(1);
        struct gradient one = gradient_init(&p);
        backward(&p, &one, &o);
        for (int threads = 2; threads <= 4; threads += 2) {
            omp_set_num_threads(threads);
            random_state = 5;
            struct gradient many = gradient_init(&p);
            backward(&p, &many, &o);
            gradients_equal(&one, &many);
            gradient_release(&many);
        }
        gradient_release(&one);
        out_release(&o);
        problem_release(&p);
    }
    omp_set_num_threads(before);
}

/* ---- memory ---- */
/* Only two row blocks grow with the width D, so a narrow model suffices to measure the
 * bound. */
static void peak_memory_stays_below_the_bound(void **state)
{
    (void)state;
    struct problem p = {
        .dtype = KG_BF16, .n = 1100, .d = 16, .v = 151936, .k = 32, .top_k = 32};
    problem_init(&p);
    struct kg_head_out o = out_init(&p);
    struct kg_head h = head_of(&p);
    struct gradient g = gradient_init(&p);
    kg_mem_free(o.logits);
    o.logits = NULL;
    uint64_t held = kg_mem_current_bytes();
    kg_mem_reset_peak();
    run_head(&o, &h);
    backward(&p, &g, &o);
    uint64_t extra = kg_mem_peak_bytes() - held;
    if (extra > (uint64_t)64 << 20)
        fail_msg("%llu bytes", (unsigned long long)extra);
    gradient_release(&g);
    out_release(&o);
    problem_release(&p);
}

/* Each allocation fails in turn: the call returns a status, and no memory is kept. One
 * thread, because products keep scratch per thread, and it varies which thread makes
 * which product. Not on a device, which keeps nearly all that it takes. */
static void failing_allocations_are_a_status(void **state)
{
    (void)state;
    need_counted_memory();
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    struct problem p = wide_of(1);
    p.n = 20;
    problem_init(&p);
    struct kg_head_out o = run_all(&p);
    struct kg_head h = head_of(&p);
    struct gradient g = gradient_init(&p);
    backward(&p, &g, &o);
    uint64_t held = kg_mem_current_bytes();
    int failures = 0;
    for (uint64_t n = 1; n <= (emulated() ? 4 : 40); n++) {
        struct kg_err err;
        kg_mem_fail_at(n);
        kg_status status = kg_op_head(backend(), &o, &h, &err);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        failures += status == KG_ENOMEM;
        kg_mem_fail_at(n);
        status = backward_status(&p, &g, &o, &err);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        failures += status == KG_ENOMEM;
        assert_int_equal(kg_mem_current_bytes(), held);
    }
    kg_mem_fail_at(0);
    omp_set_num_threads(before);
    assert_true(failures >= (emulated() ? 1 : 15));
    gradient_release(&g);
    out_release(&o);
    problem_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_plain_version),
        cmocka_unit_test(ties_go_to_the_smaller_id),
        cmocka_unit_test(number_of_rows_changes_no_bit),
        cmocka_unit_test(other_wishes_change_no_bit),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(an_enclosing_region_changes_no_bit),
        cmocka_unit_test(backward_matches_plain_version),
        cmocka_unit_test(small_remainders_keep_their_digits),
        cmocka_unit_test(backward_matches_finite_differences),
        cmocka_unit_test(no_coefficient_gives_exact_zero),
        cmocka_unit_test(own_anchor_is_at_distance_zero),
        cmocka_unit_test(ids_without_a_coefficient_change_no_bit),
        cmocka_unit_test(threads_change_no_bit_of_gradients),
        cmocka_unit_test(peak_memory_stays_below_the_bound),
        cmocka_unit_test(failing_allocations_are_a_status),
    };
    const struct CMUnitTest of_kernels[] = {
        cmocka_unit_test(matches_plain_version),
        cmocka_unit_test(ties_go_to_the_smaller_id),
        cmocka_unit_test(number_of_rows_changes_no_bit),
        cmocka_unit_test(other_wishes_change_no_bit),
        cmocka_unit_test(backward_matches_plain_version),
        cmocka_unit_test(small_remainders_keep_their_digits),
        cmocka_unit_test(backward_matches_finite_differences),
        cmocka_unit_test(no_coefficient_gives_exact_zero),
        cmocka_unit_test(own_anchor_is_at_distance_zero),
        cmocka_unit_test(ids_without_a_coefficient_change_no_bit),
        cmocka_unit_test(failing_allocations_are_a_status),
    };
    const int failed = RUN_FAR_TOO(tests, NULL, NULL);
    return failed + RUN_EMULATED(of_kernels, NULL, NULL);
}
