/* What a model computes on, as a recipe or a flag names it, and the CUDA backend, which
 * is a library of its own: opened when it is asked for, from the folder of the program or
 * ../lib/kedge beside it.
 *
 * Each thing that may be missing there is one line that says what was looked for and
 * where. docs/gpu.md says how to get it.
 */
#ifndef KG_TENSOR_DEVICE_H
#define KG_TENSOR_DEVICE_H

#include "base/str.h"
#include "tensor/backend.h"

struct kg_cuda_opts;

/* Devices by what the driver calls them, the same wherever they are seen from. */
enum { KG_DEVICES_MOST = 16 };
struct kg_device_list {
    int n;
    struct {
        char text[40];
    } id[KG_DEVICES_MOST];
};

struct kg_device_opts {
    const char *device;    /* NULL: cpu */
    const char *products;  /* who makes those of bf16 on a GPU; NULL: cublas */
    const char *libraries; /* the folder of cuBLASLt; NULL: it is looked for */
    bool unpinned;         /* struct kg_cuda_opts; of cublas alone */
    bool bf16;             /* there are products of bf16 */
};

/* The backend of `cpu` (the default of kg_backend_open), `cuda` (its device 0), `cuda:N`,
 * or `auto`: the first GPU, or where none can be used the CPU; the log says which and
 * why. products: `cublas`, `own` or `exact`.   *be borrowed, of static life
 * errors: EINVAL (none of these, or one that has no effect), those of kg_cuda_open */
kg_status kg_device_open(const struct kg_backend **be, const struct kg_device_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;

/* A GPU that need not be there, for plans: how its memory is laid out, and no
 * operation. */
const struct kg_backend *kg_device_planned(void);

/* N of "cuda:N", 0 of "cuda".   name: begins so
 * errors: EINVAL (neither) */
kg_status kg_device_number(int *device, const char *name,
                           struct kg_err *err) KG_MUST_CHECK;

/* The devices that this process sees, in the order of their numbers. Nothing of one is
 * taken.   errors: NOTFOUND, EFORMAT, ECONFLICT (the library), EDEVICE (driver, no
 * device) */
kg_status kg_device_list(struct kg_device_list *list, struct kg_err *err) KG_MUST_CHECK;

/* Append "PATH (sm_80 sm_90a compute_80), driver of CUDA 13.0; cuda:0 NAME ..", or "none:
 * REASON".
 * Nothing of a device is taken.   errors: ENOMEM */
kg_status kg_device_say(struct kg_str *out, struct kg_err *err) KG_MUST_CHECK;

/* A device of the library in the first of n folders that has one.
 * errors: NOTFOUND (no library, folders listed), EFORMAT (not one of kedge's), ECONFLICT
 * (another version's; another device than before), EDEVICE (driver, device,
 * architecture), those of kg_blas_open (cuda/blas.h) */
kg_status kg_cuda_open_in(const struct kg_backend **be, const char *const *folders,
                          size_t n, const struct kg_cuda_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;
/* The same in the program's folders. */
kg_status kg_cuda_open(const struct kg_backend **be, const struct kg_cuda_opts *opts,
                       struct kg_err *err) KG_MUST_CHECK;

#endif
