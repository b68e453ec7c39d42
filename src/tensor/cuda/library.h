/* The interface between kedge and libkedge_cuda.so. The build makes the library if nvcc
 * exists; kedge loads it when a GPU is requested (tensor/device.h). So kedge starts and
 * computes without CUDA.
 *
 * The library exports kg_backend_cuda_about, which kedge checks before it calls any of
 * the library's code, and for tests kg_cuda_probe and kg_cuda_plans (probe.h).
 */
#ifndef KG_TENSOR_CUDA_LIBRARY_H
#define KG_TENSOR_CUDA_LIBRARY_H

#include "tensor/backend.h"
#include "tensor/device.h"

/* Increase this number whenever a struct shared by kedge and the library, or the contract
 * of an operation, changes here or in tensor/backend.h. */
enum { KG_CUDA_INTERFACE = 23 };

/* Implementations of bf16 products; fp32 products are always exact. */
enum kg_cuda_products {
    KG_CUDA_EXACT,  /* product.cu: same bits as the CPU */
    KG_CUDA_OWN,    /* product_own.cu */
    KG_CUDA_CUBLAS, /* product_blas.cu */
};

struct kg_cuda_opts {
    int device; /* number of the device */
    enum kg_cuda_products products;
    const char *libraries; /* folder of cuBLASLt; NULL: search */
    bool unpinned;         /* for benchmarks: the fastest plan per shape, with any bits */
    bool mma_only;         /* for tests: products never use wgmma */
    bool attention_mma_only; /* for tests: attention never uses wgmma */
    bool shown;              /* for tests: the host may access the device's memory */
};

/* Finds "cublas", "own" or "exact".   errors: ENOTFOUND (valid names listed) */
kg_status kg_cuda_products_find(enum kg_cuda_products *p, const char *name,
                                struct kg_err *err) KG_MUST_CHECK;

/* What `auto` means: cublas for compute capability 9.x and 10.x; own for others, where
 * few plans of cuBLASLt have equal bits (docs/gpu.md) */
enum kg_cuda_products kg_cuda_products_auto(int major);

/* The host's allocator (base/mem.h). */
struct kg_cuda_host {
    void *(*calloc)(size_t count, size_t size, const char *what, struct kg_err *err);
    void (*free)(void *block);
};

/* Description of the library. */
struct kg_cuda_about {
    int32_t interface;
    uint32_t table_bytes;      /* sizeof(struct kg_backend): detects added slots */
    const char *version;       /* the kedge version that the library was built with */
    const char *architectures; /* "CUDA 13.0, sm_80 sm_90a compute_80" */
    /* text <- driver, devices and path of cuBLASLt, in one line; queries the driver only
     * errors: EDEVICE (no driver, too old a driver, no device) */
    kg_status (*devices)(char *text, size_t bytes, struct kg_err *err);
    /* Opens the backend on a device, for the rest of the process. *be, host: static
     * errors: EDEVICE, ECONFLICT (the process uses another device), those of kg_blas_open
     * (cuda/blas.h) */
    kg_status (*open)(const struct kg_backend **be, const struct kg_cuda_host *host,
                      const struct kg_cuda_opts *opts, struct kg_err *err);
    /* Lists the devices without using them.   errors: as `devices` */
    kg_status (*list)(struct kg_device_list *list, struct kg_err *err);
};

extern const struct kg_cuda_about kg_backend_cuda_about
    __attribute__((visibility("default")));

#endif
