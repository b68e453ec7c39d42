/* cuBLASLt, found when kedge runs, behind a few functions: which plans there are for a
 * product of bf16, and a product by one of them. Which plan a product is made by is not
 * its matter (product_blas.cu).
 */
#ifndef KG_TENSOR_CUDA_BLAS_H
#define KG_TENSOR_CUDA_BLAS_H

#include "tensor/cuda/dev.h"
#include "tensor/cuda/lt.h"

/* What is looked for. */
#define KG_BLAS_LIBRARY "libcublasLt.so.13"
enum { KG_BLAS_MAJOR = 13 };

/* path (PATH_MAX) <- the library's file: in `folder`, or where that is NULL in the first
 * of CUDA's folder at build, the loader's path, and the folders of Python's wheels.
 * errors: NOTFOUND (places listed) */
kg_status kg_blas_find(char *path, const char *folder, struct kg_err *err) KG_MUST_CHECK;

/* Open the library that is found so; where it is open already, nothing is done.
 * errors: NOTFOUND (places listed), EFORMAT (no library, a symbol missing), ECONFLICT
 * (an older version; another is open), EDEVICE (it does not start) */
kg_status kg_blas_open(const char *folder, struct kg_err *err) KG_MUST_CHECK;
void kg_blas_close(void);

/* "13.1.0" and the path, of static life; "" while none is open. */
const char *kg_blas_version(void);
const char *kg_blas_path(void);

/* From here on plans may split sums and use this memory, which is as long as the library
 * is open; NULL: they may do neither, as before.
 * errors: EDEVICE, nothing has changed */
kg_status kg_blas_allow(void *workspace, uint64_t bytes,
                        struct kg_err *err) KG_MUST_CHECK;

/* plans[0..*n) <- at most max plans that the library offers for C (=|+=) op(A) op(B), the
 * best by its own reckoning first: without workspace and split sums where neither was
 * allowed, for bases of 16 bytes. Of the matrices their shapes are read, and nothing in
 * them.   errors: EDEVICE */
kg_status kg_blas_offer(struct kg_lt_plan *plans, int *n, int max, struct kg_mat c,
                        struct kg_mat a, struct kg_mat b, enum kg_matmul_kind kind,
                        struct kg_err *err) KG_MUST_CHECK;

/* C (=|+=) op(A) op(B) by a plan.   errors: UNSUPPORTED (not this plan for this shape:
 * nothing was computed), EDEVICE */
kg_status kg_blas_run(const struct kg_lt_plan *plan, struct kg_mat c, struct kg_mat a,
                      struct kg_mat b, enum kg_matmul_kind kind, bool accumulate,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
