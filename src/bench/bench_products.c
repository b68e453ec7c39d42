/* The products of a layer at the 0.5B shape, one by one, as in a run: weights in panels;
 * products of few rows read weights from memory, those of many rows from the cache.
 *
 * Few rows are bound by the memory's rate, many by the multiply-adds of registers; each
 * row has its own ceiling. The targets depend on how the processor multiplies.
 */
#include "bench/measure.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tensor/backend.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { REPEATS = 5 };
static const double WORK_SECONDS = 0.05; /* per repetition */

static const struct {
    int64_t n, k;
} shapes[] = {{896, 896}, {4864, 896}, {896, 4864}};

static const struct {
    enum kg_matmul_kind kind;
    int64_t rows;
    const char *what;
} cases[] = {
    {KG_MATMUL_NT, 1, "x W^T"},    {KG_MATMUL_NT, 8, "x W^T"},
    {KG_MATMUL_NT, 16, "x W^T"},   {KG_MATMUL_NT, 64, "x W^T"},
    {KG_MATMUL_NT, 512, "x W^T"},  {KG_MATMUL_NT, 2048, "x W^T"},
    {KG_MATMUL_NN, 512, "dy W"},   {KG_MATMUL_NN, 2048, "dy W"},
    {KG_MATMUL_TN, 512, "dy^T x"}, {KG_MATMUL_TN, 2048, "dy^T x"},
};

/* The target share of the register ceiling, by how the backend says that it multiplies:
 * bf16 by an instruction, in tile registers, or widened to fp32; or fp32. */
double kg_bench_product_bar(const struct kg_backend *be, const struct kg_bench_product *p)
{
    const bool few = p->rows < 64 || p->kind == KG_MATMUL_TN;
    char how[160] = "";

    if (p->rows <= KG_BENCH_FEW_ROWS)
        return 0;
    if (p->dtype == KG_F32)
        return 0.90;
    if (be->describe)
        be->describe(how, sizeof how);
    if (strstr(how, "tile registers"))
        return p->rows >= 512 ? 0.60 : 0;
    if (strstr(how, "an instruction for pairs"))
        return few ? 0.80 : 0.88;
    return 0.85;
}

/* Operands of a product. With few rows, a repetition cycles through copies of the
 * weights, which then come from memory. */
struct work {
    const struct kg_backend *be;
    struct kg_bench_product p;
    struct kg_mat a, b, c;
    int64_t copies, copy_bytes;
    int64_t next;
    int64_t turns; /* products per repetition */
};

static bool from_memory(const struct kg_bench_product *p)
{
    return p->rows <= KG_BENCH_FEW_ROWS;
}

/* Bytes of a matrix: the sides of these shapes are whole panels, so none is padded. */
static size_t bytes_of(struct kg_mat m)
{
    return (size_t)(m.rows * m.cols) * kg_dtype_traits(m.dtype)->bytes;
}

static void shape_work(struct work *w)
{
    const struct kg_bench_product *p = &w->p;
    enum kg_dtype t = p->dtype;
    bool down = p->kind == KG_MATMUL_TN;

    w->a = kg_mat(NULL, t, p->rows, p->kind == KG_MATMUL_NT ? p->k : p->n);
    w->b = down ? kg_mat(NULL, t, p->rows, p->k) : kg_weights(w->be, NULL, t, p->n, p->k);
    w->c = kg_mat(NULL, down ? KG_F32 : t, down ? p->n : p->rows,
                  p->kind == KG_MATMUL_NT ? p->n : p->k);
    w->copy_bytes = (int64_t)bytes_of(w->b);
    w->copies = from_memory(p) ? KG_BENCH_FROM_MEMORY / w->copy_bytes : 1;
}

static void release(struct work *w)
{
    kg_mem_free(w->a.data);
    kg_mem_free(w->b.data);
    kg_mem_free(w->c.data);
}

static kg_status operand(struct kg_mat *m, int64_t copies, struct kg_err *err)
{
    size_t bytes = bytes_of(*m);
    uint16_t *words = kg_mem_calloc((size_t)copies, bytes, "operands of products", err);

    m->data = words;
    if (!words)
        return err->code;
    for (size_t i = 0; i < (size_t)copies * bytes / 2; i++)
        words[i] = (uint16_t)(0x3c00u | (i * 2654435761u >> 20 & 0x81ffu)); /* ~ +-0.01 */
    return KG_OK;
}

/* *seconds: mean time of a product. */
static kg_status run(double *seconds, void *user, struct kg_err *err)
{
    struct work *w = user;
    double start = kg_clock_seconds();

    for (int64_t i = 0; i < w->turns; i++) {
        struct kg_mat b = w->b;

        b.data = (char *)b.data + w->next * w->copy_bytes;
        w->next = (w->next + 1) % w->copies;
        KG_TRY(kg_op_matmul(w->be, w->c, w->a, b, w->p.kind, false, err));
    }
    *seconds = (kg_clock_seconds() - start) / (double)w->turns;
    return KG_OK;
}

static kg_status make(struct work *w, struct kg_err *err)
{
    double seconds;

    shape_work(w);
    KG_TRY(operand(&w->a, 1, err));
    KG_TRY(operand(&w->b, w->copies, err));
    KG_TRY(operand(&w->c, 1, err));
    w->turns = w->copies;
    KG_TRY(run(&seconds, w, err)); /* warm */
    w->turns = (int64_t)ceil(WORK_SECONDS / seconds);
    return KG_OK;
}

/* Measures kedge's product and, alternating with it, the rival library's. */
static kg_status measure(struct kg_bench_timing *t, double *theirs,
                         struct kg_bench_report *r, struct work *w,
                         const struct kg_bench_rival *rival, struct kg_err *err)
{
    struct kg_bench_job job = {.run = run,
                               .user = w,
                               .ceiling = from_memory(&w->p) ? KG_BENCH_MEMORY
                                                             : KG_BENCH_PEAK};
    double seconds;

    *theirs = 0;
    for (int i = 0; i < REPEATS; i++) {
        KG_TRY(kg_bench_repeat(t, r, &job, err));
        if (!rival)
            continue;
        KG_TRY(rival->run(&seconds, &w->p, err));
        *theirs = i == 0 ? seconds : fmin(*theirs, seconds);
    }
    return KG_OK;
}

static kg_status report(struct kg_bench_report *r, const char *name, const struct work *w,
                        const struct kg_bench_timing *t,
                        const struct kg_bench_rival *rival, double theirs,
                        struct kg_err *err)
{
    const struct kg_bench_product *p = &w->p;
    const bool memory = from_memory(p);
    char text[128];
    struct kg_bench_rate rate = {.name = name,
                                 .work = memory ? (double)w->copy_bytes
                                                : 2.0 * (double)p->rows * (double)p->n *
                                                      (double)p->k,
                                 .unit = memory ? "GB/s" : "GFLOP/s",
                                 .bar = {kg_bench_product_bar(r->be, p), false}};

    KG_TRY(kg_bench_put_rate(r, &rate, t, err));
    if (!rival)
        return KG_OK;
    snprintf(text, sizeof text, "%.1f %s; ours is %.2f of it", rate.work / theirs / 1e9,
             rate.unit, theirs / kg_bench_best(t));
    return kg_bench_put_note(r, rival->name, text, err);
}

static kg_status bench_one(struct kg_bench_report *r, const char *what,
                           const struct kg_bench_product *p,
                           const struct kg_bench_rival *rival, struct kg_err *err)
{
    struct work w = {.be = r->be, .p = *p};
    struct kg_bench_timing t = {.n = 0};
    char name[64];
    double theirs;
    kg_status status;

    snprintf(name, sizeof name, "%s, %lld rows, W %lld x %lld", what, (long long)p->rows,
             (long long)p->n, (long long)p->k);
    if (!kg_bench_wants(r, name))
        return KG_OK;
    KG_TRY_GOTO(out, make(&w, err));
    KG_TRY_GOTO(out, measure(&t, &theirs, r, &w, rival, err));
    status = report(r, name, &w, &t, rival, theirs, err);
out:
    release(&w);
    return status;
}

kg_status kg_bench_products_beside(struct kg_bench_report *r,
                                   const struct kg_bench_rival *rival, struct kg_err *err)
{
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            const struct kg_bench_product p = {.kind = cases[c].kind,
                                               .rows = cases[c].rows,
                                               .n = shapes[s].n,
                                               .k = shapes[s].k,
                                               .dtype = r->ct};
            KG_TRY(bench_one(r, cases[c].what, &p, rival, err));
        }
    return KG_OK;
}

kg_status kg_bench_products(struct kg_bench_report *r, struct kg_err *err)
{
    return kg_bench_products_beside(r, NULL, err);
}
