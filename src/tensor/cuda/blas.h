/* cuBLASLt, loaded at run time: lists the plans (algorithms) for a bf16 product, and runs
 * a product by a plan. product_blas.cu chooses the plan. */
#ifndef KG_TENSOR_CUDA_BLAS_H
#define KG_TENSOR_CUDA_BLAS_H

#include "tensor/cuda/dev.h"
#include "tensor/cuda/lt.h"

/* The library's file name and its folder in Python's wheels, for the CUDA version that
 * compiled the kernels. */
#ifdef __CUDACC_VER_MAJOR__
#define KG_BLAS_MAJOR __CUDACC_VER_MAJOR__
#else
#define KG_BLAS_MAJOR 13
#endif
#define KG_BLAS_QUOTED(x) #x
#define KG_BLAS_TEXT(x)   KG_BLAS_QUOTED(x)
#define KG_BLAS_LIBRARY   "libcublasLt.so." KG_BLAS_TEXT(KG_BLAS_MAJOR)
#define KG_BLAS_WHEEL     (KG_BLAS_MAJOR < 13 ? "nvidia/cublas/lib" : "nvidia/cu13/lib")

/* path (PATH_MAX) <- the library's file in `folder`. If folder is NULL, searches the
 * build's CUDA folder, the loader's path, and Python's wheels, in this order.
 * errors: ENOTFOUND (lists the folders) */
kg_status kg_blas_find(char *path, const char *folder, struct kg_err *err) KG_MUST_CHECK;

/* Opens the library that kg_blas_find finds; does nothing if that file is open.
 * errors: ENOTFOUND (lists the folders), EFORMAT (not a library, a missing symbol),
 * ECONFLICT (too old a version; another file is open), EDEVICE (it does not start) */
kg_status kg_blas_open(const char *folder, struct kg_err *err) KG_MUST_CHECK;
void kg_blas_close(void);

/* "13.1.0", and the library's path; static, "" while no library is open. */
const char *kg_blas_version(void);
const char *kg_blas_path(void);

/* Allows later plans to split sums and to use `workspace`, which must live as long as the
 * library is open. NULL, the default, allows neither.
 * errors: EDEVICE; on failure nothing changes */
kg_status kg_blas_allow(void *workspace, uint64_t bytes,
                        struct kg_err *err) KG_MUST_CHECK;

/* plans[0..*n) <- at most max plans that the library offers for C (=|+=) op(A) op(B),
 * best first by the library's estimate, for pointers aligned to 16 bytes. Plans use a
 * workspace or split sums only if kg_blas_allow allows it. Reads only the shapes of the
 * matrices.   errors: EDEVICE */
kg_status kg_blas_offer(struct kg_lt_plan *plans, int *n, int max, struct kg_mat c,
                        struct kg_mat a, struct kg_mat b, enum kg_matmul_kind kind,
                        struct kg_err *err) KG_MUST_CHECK;

/* config <- the attributes of a plan. Compare these, not the bytes of *plan. */
void kg_blas_describe(uint32_t config[KG_LT_CONFIGS], const struct kg_lt_plan *plan);

/* C = op(A) op(B), or old + op(A) op(B), by a plan; old has the shape and stride of C and
 * may be C.   errors: EUNSUPPORTED (the plan does not support this shape; nothing was
 * computed), EDEVICE */
kg_status kg_blas_run(const struct kg_lt_plan *plan, struct kg_mat c, struct kg_mat a,
                      struct kg_mat b, enum kg_matmul_kind kind, const float *old,
                      struct kg_err *err) KG_MUST_CHECK;

/* *seconds <- the device's time for run(arg, i) with all i below 2 KG_DEV_REPEATS. They
 * run as one captured graph, so the host's time per launch does not count. Must not be
 * called while a graph is captured.
 * errors: those of run, EDEVICE */
kg_status kg_blas_time(double *seconds,
                       kg_status (*run)(const void *arg, int i, struct kg_err *err),
                       const void *arg, struct kg_err *err) KG_MUST_CHECK;

#endif
