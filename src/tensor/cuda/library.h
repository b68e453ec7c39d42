/* Between kedge and libkedge_cuda.so, which is built where nvcc is and opened when a GPU
 * is asked for (tensor/device.h): so kedge starts and computes where no CUDA is.
 *
 * One name leaves the library: kg_backend_cuda_about, data that is read before any of its
 * code, which it points to, is trusted.
 */
#ifndef KG_TENSOR_CUDA_LIBRARY_H
#define KG_TENSOR_CUDA_LIBRARY_H

#include "tensor/backend.h"
#include "tensor/device.h"

/* One more whenever a struct that passes between the two changes, or what an operation
 * may be asked for: those of tensor/backend.h, and those below. */
enum { KG_CUDA_INTERFACE = 16 };

/* Who makes products of bf16; those of fp32 are always exact. */
enum kg_cuda_products {
    KG_CUDA_EXACT,  /* product.cu: the CPU's bits */
    KG_CUDA_OWN,    /* product_mma.cu */
    KG_CUDA_CUBLAS, /* product_blas.cu */
};

struct kg_cuda_opts {
    int device; /* its number */
    enum kg_cuda_products products;
    const char *libraries; /* the folder of cuBLASLt; NULL: it is looked for */
    bool unpinned; /* by its fastest plan for each shape, whatever bits: to measure */
    bool shown;    /* the host may touch the device's memory: for tests */
};

/* Finds "cublas", "own" or "exact".   errors: NOTFOUND (valid names listed) */
kg_status kg_cuda_products_find(enum kg_cuda_products *p, const char *name,
                                struct kg_err *err) KG_MUST_CHECK;

/* The memory door of the process (base/mem.h). */
struct kg_cuda_host {
    void *(*calloc)(size_t count, size_t size, const char *what, struct kg_err *err);
    void (*free)(void *block);
};

/* What a library says of itself. */
struct kg_cuda_about {
    int32_t interface;
    uint32_t table_bytes;      /* of struct kg_backend: a slot more shows by itself */
    const char *version;       /* of the kedge that it belongs to */
    const char *architectures; /* "sm_80 sm_90a compute_80" */
    /* text <- driver, devices and where cuBLASLt is, in one line; asks the driver, takes
     * nothing of a device
     * errors: EDEVICE (no driver, one too old, no device) */
    kg_status (*devices)(char *text, size_t bytes, struct kg_err *err);
    /* The backend on a device, the process's one from here on.   *be, host: of static
     * life
     * errors: EDEVICE, ECONFLICT (the process computes on another device), those of
     * kg_blas_open (cuda/blas.h) */
    kg_status (*open)(const struct kg_backend **be, const struct kg_cuda_host *host,
                      const struct kg_cuda_opts *opts, struct kg_err *err);
    /* the devices that there are; takes nothing of one
     * errors: as devices */
    kg_status (*list)(struct kg_device_list *list, struct kg_err *err);
};

extern const struct kg_cuda_about kg_backend_cuda_about
    __attribute__((visibility("default")));

#endif
