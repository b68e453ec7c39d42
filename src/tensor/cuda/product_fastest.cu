/* Products of bf16 by cuBLASLt's fastest plan for a shape, with any bits. `kedge bench
 * --unpinned` compares product_blas.cu with these; no run uses them.
 *
 * A shape includes the number of rows and the strides, and a sum over tokens is one
 * product. Plans may split sums and use a workspace. All plans offered are tried at the
 * first use of a shape, on its own factors, with a result in the trial's memory; so this
 * use must not be within the capture of a graph. A plan with a wrong product is not used:
 * some plans with split sums leave out the last factors of some shapes.
 */
#include "tensor/cuda/blas.h"
#include "tensor/cuda/cuda_internal.h"

extern "C" {
#include "base/mem.h"
}

/* WORKSPACE: bytes, as frameworks use on such devices. OFFERED: plans tried. */
enum { WORKSPACE = 32 << 20, OFFERED = 32 };
/* Elements that are compared with sums in double. */
enum { SAMPLES = 256 };

struct shape {
    struct shape *next;
    enum kg_matmul_kind kind;
    int64_t m, n, k; /* of C, and factors per sum */
    int64_t a_stride, b_stride, c_stride;
    enum kg_dtype dtype;
    bool accumulate;
    struct kg_lt_plan plan;
};
static struct shape *shapes;
static void *workspace; /* owned; NULL: plans are pinned */

bool kg_cuda_is_unpinned(void) { return workspace; }

kg_status kg_cuda_unpinned_begin(struct kg_err *err)
{
    kg_status status;

    if (workspace)
        return KG_OK;
    workspace = kg_dev_alloc(WORKSPACE, "workspace of products", err);
    if (!workspace)
        return err->code;
    status = kg_blas_allow(workspace, WORKSPACE, err);
    if (status != KG_OK)
        kg_cuda_unpinned_end();
    return status;
}

kg_status kg_cuda_unpinned_leave(struct kg_err *err)
{
    KG_TRY(kg_blas_allow(NULL, 0, err));
    kg_cuda_unpinned_end();
    return KG_OK;
}

void kg_cuda_unpinned_end(void)
{
    while (shapes) {
        struct shape *s = shapes;

        shapes = s->next;
        kg_mem_free(s);
    }
    if (workspace)
        kg_dev_free(workspace);
    workspace = NULL;
}

/* ---- the fastest plan ---- */
/* A shape's first product, repeated with its result in the trial's memory. */
struct trial {
    struct shape *of;
    struct kg_mat c, a, b;
    uint64_t bytes;  /* of c */
    uint32_t *wrong; /* (SAMPLES), after c */
};

static __device__ double value_of(struct kg_mat m, int64_t r, int64_t c)
{
    return (double)(m.dtype == KG_F32
                        ? kg_cuda_f32(m, r)[c]
                        : kg_cuda_of_bits((uint32_t)kg_cuda_bf16(m, r)[c] << 16));
}

/* wrong[i] <- whether sample i, of SAMPLES spread over C, is not the sum of its terms. */
static __global__ void compare_samples(uint32_t *wrong, struct kg_mat c, struct kg_mat a,
                                       struct kg_mat b, int64_t depth,
                                       enum kg_matmul_kind kind)
{
    const int64_t i = threadIdx.x + (int64_t)blockIdx.x * 32;
    const int64_t at = c.rows * c.cols * i / SAMPLES, row = at / c.cols;
    const int64_t col = at % c.cols;
    const double step = c.dtype == KG_F32 ? 0.0 : 1.0 / 128;
    double sum = 0.0, sizes = 0.0, apart;

    for (int64_t k = 0; k < depth; k++) {
        const double term = (kind == KG_MATMUL_TN ? value_of(a, k, row)
                                                  : value_of(a, row, k)) *
                            (kind == KG_MATMUL_NT ? value_of(b, col, k)
                                                  : value_of(b, k, col));

        sum += term;
        sizes += fabs(term);
    }
    apart = fabs(value_of(c, row, col) - sum);
    wrong[i] = !(apart <= sizes / (1 << 14) + fabs(sum) * step);
}

static kg_status run(const struct trial *t, const struct kg_lt_plan *plan,
                     struct kg_err *err)
{
    return kg_blas_run(plan, t->c, t->a, t->b, t->of->kind,
                       t->of->accumulate ? (const float *)t->c.data : NULL, err);
}

/* *right <- whether the plan's result is correct at the samples */
static kg_status judge(bool *right, const struct trial *t, const struct kg_lt_plan *plan,
                       struct kg_err *err)
{
    uint32_t wrong[SAMPLES];

    kg_dev_zero(t->c.data, t->bytes);
    KG_TRY(run(t, plan, err));
    KG_LAUNCH(compare_samples, kg_grid(SAMPLES / 32, 1), 32, t->wrong, t->c, t->a, t->b,
              t->of->k, t->of->kind);
    kg_dev_get(wrong, t->wrong, sizeof wrong);
    *right = true;
    for (int i = 0; i < SAMPLES; i++)
        *right = *right && !wrong[i];
    return kg_dev_done("trial of a product", err);
}

struct timed {
    const struct trial *t;
    const struct kg_lt_plan *plan;
};
static kg_status run_timed(const void *arg, int i, struct kg_err *err)
{
    const struct timed *of = (const struct timed *)arg;

    (void)i;
    return run(of->t, of->plan, err);
}

/* *seconds < 0: the plan does not support the shape */
static kg_status time_of(double *seconds, const struct trial *t,
                         const struct kg_lt_plan *plan, struct kg_err *err)
{
    const struct timed one = {t, plan};
    const kg_status warm = run(t, plan, err);

    *seconds = -1;
    if (warm != KG_OK)
        return warm == KG_EUNSUPPORTED ? KG_OK : warm;
    return kg_blas_time(seconds, run_timed, &one, err);
}

static kg_status choose(const struct trial *t, struct kg_err *err)
{
    struct kg_lt_plan plans[OFFERED];
    double best = -1, seconds;
    bool right;
    int n;

    KG_TRY(kg_blas_offer(plans, &n, OFFERED, t->c, t->a, t->b, t->of->kind, err));
    kg_dev_zero(t->c.data, t->bytes);
    for (int i = 0; i < n; i++) {
        KG_TRY(time_of(&seconds, t, &plans[i], err));
        if (seconds < 0 || (best >= 0 && seconds >= best))
            continue;
        KG_TRY(judge(&right, t, &plans[i], err));
        if (!right)
            continue;
        best = seconds;
        t->of->plan = plans[i];
    }
    if (best >= 0)
        return KG_OK;
    return kg_fail(err, KG_EDEVICE,
                   "cublas %s: product of bf16 to %s, %lld x %lld of %lld factors: "
                   "expected an algorithm of cuBLAS, found none",
                   kg_blas_version(), kg_dtype_traits(t->of->dtype)->name,
                   (long long)t->of->m, (long long)t->of->n, (long long)t->of->k);
}

static kg_status try_plans(struct shape *s, struct kg_mat c, struct kg_mat a,
                           struct kg_mat b, struct kg_err *err)
{
    const uint64_t bytes = (uint64_t)(c.rows * c.stride) *
                           kg_dtype_traits(c.dtype)->bytes;
    const uint64_t before = (bytes + 15) / 16 * 16;
    char *memory = (char *)kg_dev_alloc(before + SAMPLES * sizeof(uint32_t),
                                        "trial of a product", err);
    struct trial t = {s, {memory, c.dtype, c.rows, c.cols, c.stride}, a, b, bytes, NULL};
    kg_status status;

    if (!memory)
        return err->code;
    t.wrong = (uint32_t *)(memory + before);
    status = choose(&t, err);
    kg_dev_free(memory);
    return status;
}

static bool is_of(const struct shape *s, const struct shape *of)
{
    return s->kind == of->kind && s->m == of->m && s->n == of->n && s->k == of->k &&
           s->a_stride == of->a_stride && s->b_stride == of->b_stride &&
           s->c_stride == of->c_stride && s->dtype == of->dtype &&
           s->accumulate == of->accumulate;
}

static kg_status find(const struct shape **found, const struct shape *of, struct kg_mat c,
                      struct kg_mat a, struct kg_mat b, struct kg_err *err)
{
    struct shape *s = shapes;
    kg_status status;

    while (s && !is_of(s, of))
        s = s->next;
    *found = s;
    if (s)
        return KG_OK;
    s = (struct shape *)kg_mem_calloc(1, sizeof *s, "plan of a product", err);
    if (!s)
        return KG_ENOMEM;
    *s = *of;
    status = try_plans(s, c, a, b, err);
    if (status != KG_OK) {
        kg_mem_free(s);
        return status;
    }
    s->next = shapes;
    *found = shapes = s;
    return KG_OK;
}

kg_status kg_cuda_product_fastest(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                                  enum kg_matmul_kind kind, const float *old,
                                  struct kg_err *err)
{
    const struct shape of = {.next = NULL,
                             .kind = kind,
                             .m = c.rows,
                             .n = c.cols,
                             .k = kind == KG_MATMUL_TN ? a.rows : a.cols,
                             .a_stride = a.stride,
                             .b_stride = b.stride,
                             .c_stride = c.stride,
                             .dtype = c.dtype,
                             .accumulate = old != NULL};
    const struct shape *s;

    KG_TRY(find(&s, &of, c, a, b, err));
    return kg_blas_run(&s->plan, c, a, b, kind, old, err);
}
