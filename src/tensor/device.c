/* Finds libkedge_cuda.so, and checks that it belongs to this program.
 *
 * Only the library's location decides which code runs: no environment variable and no
 * search path of the loader. Its description is checked before any of its functions is
 * called; later errors come from the library itself. It stays open, because what it has
 * registered with the driver refers to it.
 */
#include "tensor/device.h"

#include "base/library.h"
#include "base/log.h"
#include "base/mem.h"
#include "tensor/cuda/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LIBRARY "libkedge_cuda.so"

enum { DEVICES_MAX = 1024 };

/* ---- the library ---- */
struct library {
    char path[PATH_MAX];
    const struct kg_cuda_about *about;
};

static kg_status refuse_folders(const char *const *folders, size_t n, struct kg_err *err)
{
    struct kg_str list = {0};
    kg_status status = KG_OK;

    for (size_t i = 0; i < n && status == KG_OK; i++)
        status = kg_str_printf(&list, err, "%s%s", i ? ", " : "", folders[i]);
    if (status == KG_OK)
        status = kg_fail(err, KG_ENOTFOUND,
                         "cuda: no " LIBRARY " in %s (docs/gpu.md: how to build it)",
                         kg_str_text(&list));
    kg_str_release(&list);
    return status;
}

static kg_status find(char path[static PATH_MAX], const char *const *folders, size_t n,
                      struct kg_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const int bytes = snprintf(path, PATH_MAX, "%s/" LIBRARY, folders[i]);

        if (bytes < PATH_MAX && access(path, F_OK) == 0)
            return KG_OK;
    }
    return refuse_folders(folders, n, err);
}

static kg_status check_about(const struct library *l, struct kg_err *err)
{
    const struct kg_cuda_about *a = l->about;

    if (a->interface != KG_CUDA_INTERFACE)
        return kg_fail(err, KG_ECONFLICT,
                       "cuda: %s: expected the library that was built with this kedge "
                       "(interface %d), found another one (%d)",
                       l->path, KG_CUDA_INTERFACE, (int)a->interface);
    if (strcmp(a->version, KG_VERSION) != 0)
        return kg_fail(err, KG_ECONFLICT,
                       "cuda: %s: expected the library of kedge " KG_VERSION
                       ", found that of %s",
                       l->path, a->version);
    if (a->table_bytes != sizeof(struct kg_backend))
        return kg_fail(err, KG_ECONFLICT,
                       "cuda: %s: expected the library that was built with this kedge (a "
                       "table of %zu bytes), found another one (%u bytes)",
                       l->path, sizeof(struct kg_backend), (unsigned)a->table_bytes);
    return KG_OK;
}

static kg_status load(struct library *l, const char *const *folders, size_t n,
                      struct kg_err *err)
{
    KG_TRY(find(l->path, folders, n, err));
    void *handle = dlopen(l->path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return kg_fail(err, KG_EFORMAT, "cuda: %s", dlerror());
    l->about = dlsym(handle, "kg_backend_cuda_about");
    if (!l->about)
        return kg_fail(err, KG_EFORMAT,
                       "cuda: %s: expected kedge's CUDA library, found one without the "
                       "symbol kg_backend_cuda_about",
                       l->path);
    return check_about(l, err);
}

kg_status kg_cuda_open_in(const struct kg_backend **be, const char *const *folders,
                          size_t n, const struct kg_cuda_opts *opts, struct kg_err *err)
{
    static const struct kg_cuda_host host = {kg_mem_calloc, kg_mem_free};
    struct library l;

    KG_TRY(load(&l, folders, n, err));
    return l.about->open(be, &host, opts, err);
}

/* ---- by name ---- */
kg_status kg_device_number(int *device, const char *name, struct kg_err *err)
{
    const char *digits = name + strlen("cuda");
    char *end;
    long n = 0;

    if (strncmp(name, "cuda:", 5) == 0 && digits[1] >= '0' && digits[1] <= '9') {
        n = strtol(digits + 1, &end, 10);
        digits = end;
    }
    if (*digits || n >= DEVICES_MAX)
        return kg_fail(err, KG_EINVAL,
                       "expected cuda or cuda:N with N below %d, found '%s'", DEVICES_MAX,
                       name);
    *device = (int)n;
    return KG_OK;
}

kg_status kg_cuda_open(const struct kg_backend **be, const struct kg_cuda_opts *opts,
                       struct kg_err *err)
{
    struct kg_program_folders f;

    KG_TRY(kg_program_folders(&f, err));
    return kg_cuda_open_in(be, f.list, f.n, opts, err);
}

/* ---- implementations of products ---- */
static const struct {
    const char *name;
    const char *help;
    enum kg_cuda_products is;
} makers[] = {
    {"cublas", "NVIDIA's cuBLASLt, by plans that agree in a row's bits", KG_CUDA_CUBLAS},
    {"own", "kedge's kernels, by the matrix instruction", KG_CUDA_OWN},
    {"exact", "kedge's kernels, with the CPU's bits", KG_CUDA_EXACT},
};

kg_status kg_cuda_products_find(enum kg_cuda_products *p, const char *name,
                                struct kg_err *err)
{
    const size_t n = sizeof makers / sizeof *makers;

    for (size_t i = 0; i < n; i++)
        if (strcmp(makers[i].name, name) == 0) {
            *p = makers[i].is;
            return KG_OK;
        }
    return kg_str_unknown(KG_ENOTFOUND, "products", name, makers, n, sizeof *makers, err);
}

enum kg_cuda_products kg_cuda_products_auto(int major)
{
    return major == 9 || major == 10 ? KG_CUDA_CUBLAS : KG_CUDA_OWN;
}

/* Name of the first set option that affects only bf16 products; NULL: none is set. */
static const char *said(const struct kg_device_opts *opts)
{
    if (opts->products)
        return "products";
    return opts->libraries ? "libraries" : opts->unpinned ? "unpinned" : NULL;
}

/* Without bf16 products cuBLAS is not needed, and options about it are errors. */
static kg_status read_products(struct kg_cuda_opts *to, const struct kg_device_opts *opts,
                               struct kg_err *err)
{
    to->products = opts->bf16 ? KG_CUDA_CUBLAS : KG_CUDA_EXACT;
    to->libraries = opts->libraries;
    to->unpinned = opts->unpinned;
    if (!opts->bf16 && said(opts))
        return kg_fail(err, KG_EINVAL,
                       "%s: has an effect only with bf16 matrix products, but all are "
                       "fp32; remove it, or compute in bf16",
                       said(opts));
    if (opts->products)
        KG_TRY(kg_cuda_products_find(&to->products, opts->products, err));
    if ((opts->libraries || opts->unpinned) && to->products != KG_CUDA_CUBLAS)
        return kg_fail(err, KG_EINVAL,
                       "%s: has an effect only with products=cublas, found %s",
                       opts->libraries ? "libraries" : "unpinned", opts->products);
    return KG_OK;
}

/* ---- by key or flag ---- */
static kg_status open_cpu(const struct kg_backend **be, const struct kg_device_opts *opts,
                          struct kg_err *err)
{
    if (said(opts))
        return kg_fail(err, KG_EINVAL,
                       "%s: has an effect only on a GPU, found device cpu", said(opts));
    return kg_backend_open(be, NULL, err);
}

/* choose: products=auto. If no device is found, kg_cuda_open reports why. */
static kg_status open_cuda(const struct kg_backend **be, struct kg_cuda_opts *cuda,
                           bool choose, struct kg_err *err)
{
    struct kg_device_list l;
    struct kg_err none;

    choose = choose && kg_device_list(&l, &none) == KG_OK && cuda->device < l.n;
    if (choose)
        cuda->products = kg_cuda_products_auto(l.id[cuda->device].major);
    KG_TRY(kg_cuda_open(be, cuda, err));
    if (choose)
        kg_log_info("products: %s (auto: cuda:%d is sm_%d%d%s)",
                    cuda->products == KG_CUDA_OWN ? "own" : "cublas", cuda->device,
                    l.id[cuda->device].major, l.id[cuda->device].minor,
                    cuda->products == KG_CUDA_OWN
                        ? ", where plans of cuBLASLt with equal bits are few"
                        : "");
    return KG_OK;
}

/* If only cuBLAS is missing, a GPU exists, so this is an error: the CPU is not used. */
static kg_status open_auto(const struct kg_backend **be, struct kg_cuda_opts *cuda,
                           bool choose, struct kg_err *err)
{
    char text[512];

    if (open_cuda(be, cuda, choose, err) != KG_OK) {
        if (strncmp(err->message, "cublas: ", 8) == 0)
            return err->code;
        kg_log_info("device: cpu (%s)", err->message);
        return kg_backend_open(be, NULL, err);
    }
    (*be)->describe(text, sizeof text);
    kg_log_info("device: cuda:0 (%s)", text);
    return KG_OK;
}

kg_status kg_device_open(const struct kg_backend **be, const struct kg_device_opts *opts,
                         struct kg_err *err)
{
    const char *device = opts->device;
    const bool any = device && strcmp(device, "auto") == 0;
    struct kg_cuda_opts cuda = {.device = 0};

    if (!device || strcmp(device, "cpu") == 0)
        return open_cpu(be, opts, err);
    if (!any && strcmp(device, "cuda") != 0 && strncmp(device, "cuda:", 5) != 0)
        return kg_fail(err, KG_EINVAL, "expected cpu, cuda, cuda:N or auto, found '%s'",
                       device);
    if (!any)
        KG_TRY(kg_device_number(&cuda.device, device, err));
    KG_TRY(read_products(&cuda, opts, err));
    return (any ? open_auto : open_cuda)(be, &cuda, opts->bf16 && !said(opts), err);
}

/* The planned device draws and replays: their memory is part of a plan. */
static kg_status draw_nowhere(const struct kg_draws *d, const struct kg_head_out *out,
                              const struct kg_head *h, struct kg_err *err)
{
    (void)d, (void)out, (void)h;
    return kg_fail(
        err, KG_EUNSUPPORTED,
        "draw: expected a real device, found one that exists for planning only");
}
static kg_status replay_nowhere(uint64_t key, kg_status (*body)(void *, struct kg_err *),
                                void *arg, struct kg_err *err)
{
    (void)key, (void)body, (void)arg;
    return kg_fail(
        err, KG_EUNSUPPORTED,
        "replay: expected a real device, found one that exists for planning only");
}

const struct kg_backend *kg_device_planned(void)
{
    static const struct kg_backend table = {.name = "cuda, planned",
                                            .one_caller = true,
                                            .keeps_heads = true,
                                            .weights = KG_ROWS,
                                            .draw = draw_nowhere,
                                            .replay = replay_nowhere};

    return &table;
}

/* ---- devices of this machine ---- */
static kg_status look(char *text, size_t bytes, struct library *l, struct kg_err *err)
{
    struct kg_program_folders f;

    KG_TRY(kg_program_folders(&f, err));
    KG_TRY(load(l, f.list, f.n, err));
    return l->about->devices(text, bytes, err);
}

kg_status kg_device_list(struct kg_device_list *list, struct kg_err *err)
{
    struct kg_program_folders f;
    struct library l;

    KG_TRY(kg_program_folders(&f, err));
    KG_TRY(load(&l, f.list, f.n, err));
    memset(list, 0, sizeof *list);
    return l.about->list(list, err);
}

kg_status kg_device_say(struct kg_str *out, struct kg_err *err)
{
    char text[4096];
    struct library l = {0};
    struct kg_err why;

    if (look(text, sizeof text, &l, &why) == KG_OK)
        return kg_str_printf(out, err, "%s (%s), %s", l.path, l.about->architectures,
                             text);
    return kg_str_printf(out, err, "none: %s",
                         why.message + (strncmp(why.message, "cuda: ", 6) ? 0 : 6));
}
