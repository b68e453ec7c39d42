/* Finds cuBLASLt, and calls it.
 *
 * The library has 540 MB, belongs to NVIDIA and is not shipped. It is opened only if
 * products are to use it. If something is missing or wrong, a one-line error tells what
 * was expected and where.
 *
 * It stores matrices column by column. So rows of C are columns of C^T there, and
 *     C = A B^T  is  C^T = B A^T,   C = A B  is  C^T = B^T A^T,   C = A^T B  is  C^T =
 *     B^T A,   where a matrix in rows is its own transpose in columns.
 */
#include "tensor/cuda/blas.h"
#include "tensor/cuda/cuda_internal.h"

extern "C" {
#include "base/library.h"
}

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define WITHOUT "products=own needs no cuBLASLt (docs/gpu.md)"

enum { KINDS = 3, OFFERS = 32, ALIGNMENT = 16 };

static struct {
    char path[PATH_MAX];
    char version[32];
    void *object; /* NULL: not open */
    struct kg_lt_calls call;
    void *lt;
    void *desc[KINDS]; /* by enum kg_matmul_kind */
    void *preference;
    void *workspace; /* borrowed; NULL: plans use none and split no sums */
    uint64_t workspace_bytes;
} lib;

/* ---- search ---- */
kg_status kg_blas_find(char *path, const char *folder, struct kg_err *err)
{
    struct kg_library_search s = {KG_BLAS_LIBRARY, path, false, ""};

    if (folder) {
        kg_library_look_at(&s, folder);
    } else {
        kg_library_look_below(&s, KG_DEV_CUDA_ROOT, "lib64");
        kg_library_look_below(&s, KG_DEV_CUDA_ROOT, "lib");
        kg_library_look_as_loader(&s);
        kg_library_look_among_wheels(&s, KG_BLAS_WHEEL);
    }
    return s.found ? KG_OK
                   : kg_fail(err, KG_ENOTFOUND,
                             "cublas: no " KG_BLAS_LIBRARY " in %s; " WITHOUT, s.places);
}

/* ---- loading ---- */
static kg_status fail(int e, const char *what, struct kg_err *err)
{
    return kg_fail(err, KG_EDEVICE, "cublas: %s: %s", what, lib.call.status_name(e));
}

static const struct {
    const char *name;
    size_t at;
} symbols[] = {
#define SYMBOL(name, field)                                                              \
    {                                                                                    \
        name, offsetof(struct kg_lt_calls, field)                                        \
    }
    SYMBOL("cublasLtGetVersion", version),
    SYMBOL("cublasLtGetStatusName", status_name),
    SYMBOL("cublasLtCreate", create),
    SYMBOL("cublasLtDestroy", destroy),
    SYMBOL("cublasLtMatmulDescCreate", desc_create),
    SYMBOL("cublasLtMatmulDescSetAttribute", desc_set),
    SYMBOL("cublasLtMatmulDescDestroy", desc_destroy),
    SYMBOL("cublasLtMatrixLayoutCreate", layout_create),
    SYMBOL("cublasLtMatrixLayoutDestroy", layout_destroy),
    SYMBOL("cublasLtMatmulPreferenceCreate", preference_create),
    SYMBOL("cublasLtMatmulPreferenceSetAttribute", preference_set),
    SYMBOL("cublasLtMatmulPreferenceDestroy", preference_destroy),
    SYMBOL("cublasLtMatmulAlgoGetHeuristic", heuristic),
    SYMBOL("cublasLtMatmulAlgoConfigGetAttribute", config_get),
    SYMBOL("cublasLtMatmul", matmul),
};

static kg_status load(struct kg_err *err)
{
    /* NODELETE: it stays in the process after dlclose, because libraries with kernels and
     * threads leave work to the exit of the process */
    lib.object = dlopen(lib.path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!lib.object)
        return kg_fail(err, KG_EFORMAT, "cublas: %s; " WITHOUT, dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *at = dlsym(lib.object, symbols[i].name);

        if (!at)
            return kg_fail(err, KG_EFORMAT,
                           "cublas: %s: expected the symbol %s, found none; " WITHOUT,
                           lib.path, symbols[i].name);
        memcpy((char *)&lib.call + symbols[i].at, &at, sizeof at);
    }
    return KG_OK;
}

static kg_status check_version(struct kg_err *err)
{
    const int v = (int)lib.call.version();

    snprintf(lib.version, sizeof lib.version, "%d.%d.%d", v / 10000, v / 100 % 100,
             v % 100);
    if (v / 10000 >= KG_BLAS_MAJOR)
        return KG_OK;
    return kg_fail(err, KG_ECONFLICT,
                   "cublas: %s: expected version %d or newer, found %s; " WITHOUT,
                   lib.path, KG_BLAS_MAJOR, lib.version);
}

/* ---- descriptions, made once ---- */
static int make_descriptions(void)
{
    static const int transposed = KG_LT_TRANSPOSED;
    int e = KG_LT_OK;

    for (int i = 0; i < KINDS && e == KG_LT_OK; i++)
        e = lib.call.desc_create(&lib.desc[i], KG_LT_COMPUTE_F32, KG_LT_F32);
    if (e == KG_LT_OK)
        e = lib.call.desc_set(lib.desc[KG_MATMUL_NT], KG_LT_DESC_TRANSPOSE_A, &transposed,
                              sizeof transposed);
    return e != KG_LT_OK
               ? e
               : lib.call.desc_set(lib.desc[KG_MATMUL_TN], KG_LT_DESC_TRANSPOSE_B,
                                   &transposed, sizeof transposed);
}

static int make_preference(void)
{
    static const uint64_t no_bytes = 0;
    static const uint32_t no_way = 0, alignment = ALIGNMENT;
    int e = lib.call.preference_create(&lib.preference);

    if (e == KG_LT_OK)
        e = lib.call.preference_set(lib.preference, KG_LT_PREF_WORKSPACE, &no_bytes,
                                    sizeof no_bytes);
    if (e == KG_LT_OK)
        e = lib.call.preference_set(lib.preference, KG_LT_PREF_REDUCTIONS, &no_way,
                                    sizeof no_way);
    for (int i = 0; i < 4 && e == KG_LT_OK; i++)
        e = lib.call.preference_set(lib.preference, KG_LT_PREF_ALIGNMENT + i, &alignment,
                                    sizeof alignment);
    return e;
}

static kg_status start(struct kg_err *err)
{
    int e = lib.call.create(&lib.lt);

    if (e == KG_LT_OK)
        e = make_descriptions();
    if (e == KG_LT_OK)
        e = make_preference();
    return e == KG_LT_OK
               ? KG_OK
               : kg_fail(err, KG_EDEVICE, "cublas: %s does not start: %s; " WITHOUT,
                         lib.path, lib.call.status_name(e));
}

/* A process has one library: the requested file must be the open one. */
static kg_status check_open(const char *folder, struct kg_err *err)
{
    char path[PATH_MAX];
    struct stat asked, open;

    KG_TRY(kg_blas_find(path, folder, err));
    if (stat(path, &asked) == 0 && stat(lib.path, &open) == 0 &&
        asked.st_dev == open.st_dev && asked.st_ino == open.st_ino)
        return KG_OK;
    return kg_fail(err, KG_ECONFLICT,
                   "cublas: expected %s, found %s open: a process has one library", path,
                   lib.path);
}

kg_status kg_blas_open(const char *folder, struct kg_err *err)
{
    kg_status status;

    if (lib.object)
        return check_open(folder, err);
    KG_TRY(kg_blas_find(lib.path, folder, err));
    KG_TRY_GOTO(out, load(err));
    KG_TRY_GOTO(out, check_version(err));
    KG_TRY_GOTO(out, start(err));
out:
    if (status != KG_OK)
        kg_blas_close();
    return status;
}

void kg_blas_close(void)
{
    if (lib.preference)
        lib.call.preference_destroy(lib.preference);
    for (int i = 0; i < KINDS; i++)
        if (lib.desc[i])
            lib.call.desc_destroy(lib.desc[i]);
    if (lib.lt)
        lib.call.destroy(lib.lt);
    if (lib.object)
        dlclose(lib.object);
    memset(&lib, 0, sizeof lib);
}

const char *kg_blas_version(void) { return lib.version; }
const char *kg_blas_path(void) { return lib.path; }

kg_status kg_blas_allow(void *workspace, uint64_t bytes, struct kg_err *err)
{
    const uint32_t ways = workspace ? KG_LT_REDUCTIONS : 0;
    int e = lib.call.preference_set(lib.preference, KG_LT_PREF_WORKSPACE, &bytes,
                                    sizeof bytes);

    if (e == KG_LT_OK)
        e = lib.call.preference_set(lib.preference, KG_LT_PREF_REDUCTIONS, &ways,
                                    sizeof ways);
    if (e != KG_LT_OK) {
        (void)lib.call.preference_set(lib.preference, KG_LT_PREF_WORKSPACE,
                                      &lib.workspace_bytes, sizeof lib.workspace_bytes);
        return fail(e, "cannot set the workspace", err);
    }
    lib.workspace = workspace;
    lib.workspace_bytes = bytes;
    return KG_OK;
}

/* ---- products ---- */
struct layouts {
    void *a, *b, *c; /* by the backend's letters */
};

static int make_layout(void **layout, struct kg_mat m)
{
    return lib.call.layout_create(layout, m.dtype == KG_BF16 ? KG_LT_BF16 : KG_LT_F32,
                                  (uint64_t)m.cols, (uint64_t)m.rows, m.stride);
}

static void release(struct layouts *l)
{
    if (l->a)
        lib.call.layout_destroy(l->a);
    if (l->b)
        lib.call.layout_destroy(l->b);
    if (l->c)
        lib.call.layout_destroy(l->c);
}

static int make_layouts(struct layouts *l, struct kg_mat c, struct kg_mat a,
                        struct kg_mat b)
{
    int e;

    memset(l, 0, sizeof *l);
    e = make_layout(&l->a, a);
    if (e == KG_LT_OK)
        e = make_layout(&l->b, b);
    if (e == KG_LT_OK)
        e = make_layout(&l->c, c);
    if (e != KG_LT_OK)
        release(l);
    return e;
}

void kg_blas_describe(uint32_t config[KG_LT_CONFIGS], const struct kg_lt_plan *plan)
{
    uint16_t half;

    memset(config, 0, KG_LT_CONFIGS * sizeof *config);
    for (int i = 0; i < KG_LT_CONFIG_INNER_SHAPE; i++)
        (void)lib.call.config_get(plan, i, &config[i], sizeof *config, NULL);
    for (int i = KG_LT_CONFIG_INNER_SHAPE; i < KG_LT_CONFIGS; i++) {
        half = 0;
        (void)lib.call.config_get(plan, i, &half, sizeof half, NULL);
        config[i] = half;
    }
}

/* Checks each offer, because a plan with split sums has different bits. */
static bool is_allowed(const struct kg_lt_offer *o)
{
    int32_t split = 1;
    uint32_t reduction = 0;

    if (lib.workspace)
        return o->status == KG_LT_OK && o->workspace <= lib.workspace_bytes;
    (void)lib.call.config_get(&o->plan, KG_LT_CONFIG_SPLIT, &split, sizeof split, NULL);
    (void)lib.call.config_get(&o->plan, KG_LT_CONFIG_REDUCTION, &reduction,
                              sizeof reduction, NULL);
    return o->status == KG_LT_OK && o->workspace == 0 && (split == 0 || split == 1) &&
           reduction == 0;
}

kg_status kg_blas_offer(struct kg_lt_plan *plans, int *n, int max, struct kg_mat c,
                        struct kg_mat a, struct kg_mat b, enum kg_matmul_kind kind,
                        struct kg_err *err)
{
    struct kg_lt_offer offers[OFFERS];
    struct layouts l;
    int e, found = 0;

    *n = 0;
    e = make_layouts(&l, c, a, b);
    if (e != KG_LT_OK)
        return fail(e, "cannot describe a matrix", err);
    e = lib.call.heuristic(lib.lt, lib.desc[kind], l.b, l.a, l.c, l.c, lib.preference,
                           OFFERS, offers, &found);
    release(&l);
    if (e == KG_LT_NOT_SUPPORTED)
        return KG_OK;
    if (e != KG_LT_OK)
        return fail(e, "cannot list plans", err);
    for (int i = 0; i < found && *n < max; i++)
        if (is_allowed(&offers[i]))
            plans[(*n)++] = offers[i].plan;
    return KG_OK;
}

struct product {
    struct kg_lt_plan plan;
    struct kg_mat c, a, b;
    enum kg_matmul_kind kind;
    const float *old;
};

static int multiply(void *arg)
{
    static const float one = 1.0f, none = 0.0f;
    const struct product *p = (const struct product *)arg;
    const void *const before = p->old ? p->old : p->c.data;
    const void *const memory[] = {p->a.data, p->b.data, p->c.data, before, lib.workspace};
    const size_t n = lib.workspace ? 5 : 4;
    struct layouts l;
    int e = make_layouts(&l, p->c, p->a, p->b);

    if (e == KG_LT_OK) {
        kg_dev_lend(memory, n);
        e = lib.call.matmul(lib.lt, lib.desc[p->kind], &one, p->b.data, l.b, p->a.data,
                            l.a, p->old ? &one : &none, before, l.c, p->c.data, l.c,
                            &p->plan, lib.workspace, lib.workspace_bytes, KG_DEV_STREAM);
        kg_dev_take_back(memory, n);
        release(&l);
    }
    return e;
}

kg_status kg_blas_run(const struct kg_lt_plan *plan, struct kg_mat c, struct kg_mat a,
                      struct kg_mat b, enum kg_matmul_kind kind, const float *old,
                      struct kg_err *err)
{
    struct product p = {*plan, c, a, b, kind, old};
    int e = kg_dev_call(multiply, &p, sizeof p);

    if (e == KG_LT_NOT_SUPPORTED || e == KG_LT_INVALID_VALUE)
        return kg_fail(err, KG_EUNSUPPORTED, "cublas: the plan failed: %s",
                       lib.call.status_name(e));
    return e == KG_LT_OK ? KG_OK : fail(e, "product", err);
}

/* ---- time ---- */
static kg_status run_all(kg_status (*run)(const void *arg, int i, struct kg_err *err),
                         const void *arg, struct kg_err *err)
{
    for (int i = 0; i < 2 * KG_DEV_REPEATS; i++)
        KG_TRY(run(arg, i, err));
    return KG_OK;
}

/* If run cannot be recorded, it is timed as launched. */
kg_status kg_blas_time(double *seconds,
                       kg_status (*run)(const void *arg, int i, struct kg_err *err),
                       const void *arg, struct kg_err *err)
{
    kg_status status;
    void *record;
    double before;

    kg_dev_record_begin();
    status = run_all(run, arg, err);
    record = kg_dev_record_end();
    if (record)
        kg_dev_record_launch(record); /* the first launch uploads it */
    before = kg_dev_seconds();
    if (record)
        kg_dev_record_launch(record);
    else
        status = run_all(run, arg, err);
    *seconds = kg_dev_seconds() - before;
    if (record)
        kg_dev_record_free(record);
    return status == KG_OK ? kg_dev_done("trial of a product", err) : status;
}
