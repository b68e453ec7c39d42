/* Opens the compute device named in a recipe or flag. The CUDA backend is a separate
 * library, loaded on request from the program's folder or ../lib/kedge.
 *
 * If something is missing, a one-line error names it and the places searched. docs/gpu.md
 * explains how to install it.
 */
#ifndef KG_TENSOR_DEVICE_H
#define KG_TENSOR_DEVICE_H

#include "base/str.h"
#include "tensor/backend.h"

struct kg_cuda_opts;

/* Devices by their UUIDs, which are the same for all processes. */
enum { KG_DEVICES_MOST = 16 };
struct kg_device_list {
    int n;
    struct {
        char text[40];    /* the UUID in hexadecimal */
        int major, minor; /* compute capability */
    } id[KG_DEVICES_MOST];
};

struct kg_device_opts {
    const char *device;    /* NULL: cpu */
    const char *products;  /* implementation of bf16 products on a GPU; NULL: cublas if
                            * libraries or unpinned is set, else auto */
    const char *libraries; /* folder of cuBLASLt; NULL: search */
    bool unpinned;         /* see struct kg_cuda_opts; only with cublas */
    bool bf16;             /* bf16 products are needed */
};

/* Opens `cpu` (the default of kg_backend_open), `cuda` (device 0), `cuda:N`, or `auto`:
 * device 0, or the CPU if that fails, unless cuBLASLt is the reason; logs which and why.
 * products: `cublas`, `own` or `exact`; for auto, kg_cuda_products_auto chooses, and a
 * log line gives the reason. *be borrowed, static
 * errors: EINVAL (device, useless option), ENOTFOUND (products), those of kg_cuda_open */
kg_status kg_device_open(const struct kg_backend **be, const struct kg_device_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;

/* A stand-in for a GPU, for memory planning: has a GPU's layouts, but no operations. */
const struct kg_backend *kg_device_planned(void);

/* N for "cuda:N", 0 for "cuda".   name: must begin with "cuda"
 * errors: EINVAL (neither; N of 1024 or more) */
kg_status kg_device_number(int *device, const char *name,
                           struct kg_err *err) KG_MUST_CHECK;

/* The first KG_DEVICES_MOST devices visible to this process, in order, without using
 * them.   errors: ENOTFOUND, EFORMAT, ECONFLICT (library), EDEVICE (driver, no device) */
kg_status kg_device_list(struct kg_device_list *list, struct kg_err *err) KG_MUST_CHECK;

/* Appends "PATH (CUDA 13.0, sm_80 sm_90a compute_80), driver of CUDA 13.0; cuda:0 NAME
 * ..; PATH OF CUBLASLT", or "none: REASON". Uses no device.   errors: ENOMEM */
kg_status kg_device_say(struct kg_str *out, struct kg_err *err) KG_MUST_CHECK;

/* Opens a device with the CUDA library in the first of n folders that has one.
 * errors: ENOTFOUND (no library, lists the folders), EFORMAT (not a library of kedge),
 * ECONFLICT (library of another version; the process uses another device), EDEVICE
 * (driver, device, architecture), those of kg_blas_open (cuda/blas.h) */
kg_status kg_cuda_open_in(const struct kg_backend **be, const char *const *folders,
                          size_t n, const struct kg_cuda_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;
/* kg_cuda_open_in in the program's folders. */
kg_status kg_cuda_open(const struct kg_backend **be, const struct kg_cuda_opts *opts,
                       struct kg_err *err) KG_MUST_CHECK;

#endif
