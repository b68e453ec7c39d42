/* Declarations of the cuBLASLt calls that kedge uses. kedge is built without NVIDIA's
 * header and loads the library at run time (blas.h). If nvcc finds the header,
 * static_asserts compare these declarations with it.
 *
 * Handles are opaque pointers; the library allocates descriptions.
 * source: cublasLt.h of CUDA 13
 */
#ifndef KG_TENSOR_CUDA_LT_H
#define KG_TENSOR_CUDA_LT_H

#include <stddef.h>
#include <stdint.h>

enum {
    KG_LT_OK = 0,
    KG_LT_NOT_INITIALIZED = 1,
    KG_LT_INVALID_VALUE = 7,
    KG_LT_NOT_SUPPORTED = 15,
};
enum { KG_LT_F32 = 0, KG_LT_BF16 = 14, KG_LT_COMPUTE_F32 = 68, KG_LT_TRANSPOSED = 1 };
enum kg_lt_desc_attribute { KG_LT_DESC_TRANSPOSE_A = 3, KG_LT_DESC_TRANSPOSE_B = 4 };
enum kg_lt_preference {
    KG_LT_PREF_WORKSPACE = 1, /* maximum workspace in bytes, uint64_t */
    /* mask of allowed split-K reduction schemes, uint32_t; 0: none */
    KG_LT_PREF_REDUCTIONS = 3,
    /* attributes 5 to 8: minimum alignment in bytes of A, B, C, D; uint32_t each */
    KG_LT_PREF_ALIGNMENT = 5,
};
enum { KG_LT_REDUCTIONS = 7 }; /* all */
/* Attributes of a plan (kernel, tile, ...): 4 bytes each, but the last two 2 bytes. */
enum kg_lt_config {
    KG_LT_CONFIG_SPLIT = 2,
    KG_LT_CONFIG_REDUCTION = 3,
    KG_LT_CONFIG_INNER_SHAPE = 7,
    KG_LT_CONFIGS = 9
};

/* An algorithm for a product: data that only the library interprets. */
struct kg_lt_plan {
    uint64_t data[8];
};
struct kg_lt_offer {
    struct kg_lt_plan plan;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
};

/* Matrices are column-major: `stride` is the number of elements between columns.
 *   d = alpha op(a) op(b) + beta c */
struct kg_lt_calls {
    size_t (*version)(void); /* 130100 is 13.1.0 */
    const char *(*status_name)(int status);
    int (*create)(void **lt);
    int (*destroy)(void *lt);
    int (*desc_create)(void **desc, int compute, int scale);
    int (*desc_set)(void *desc, int attribute, const void *value, size_t bytes);
    int (*desc_destroy)(void *desc);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols,
                         int64_t stride);
    int (*layout_destroy)(void *layout);
    int (*preference_create)(void **preference);
    int (*preference_set)(void *preference, int attribute, const void *value,
                          size_t bytes);
    int (*preference_destroy)(void *preference);
    int (*heuristic)(void *lt, void *desc, void *a, void *b, void *c, void *d,
                     void *preference, int max, struct kg_lt_offer *offers, int *n);
    int (*config_get)(const struct kg_lt_plan *plan, int attribute, void *value,
                      size_t bytes, size_t *written);
    int (*matmul)(void *lt, void *desc, const void *alpha, const void *a, void *la,
                  const void *b, void *lb, const void *beta, const void *c, void *lc,
                  void *d, void *ld, const struct kg_lt_plan *plan, void *workspace,
                  size_t workspace_bytes, void *stream);
};

#if defined(__CUDACC__) && __has_include(<cublasLt.h>)
#include <cublasLt.h>
static_assert((int)KG_LT_NOT_INITIALIZED == (int)CUBLAS_STATUS_NOT_INITIALIZED &&
                  (int)KG_LT_INVALID_VALUE == (int)CUBLAS_STATUS_INVALID_VALUE &&
                  (int)KG_LT_NOT_SUPPORTED == (int)CUBLAS_STATUS_NOT_SUPPORTED,
              "statuses");
static_assert((int)KG_LT_F32 == (int)CUDA_R_32F && (int)KG_LT_BF16 == (int)CUDA_R_16BF &&
                  (int)KG_LT_COMPUTE_F32 == (int)CUBLAS_COMPUTE_32F &&
                  (int)KG_LT_TRANSPOSED == (int)CUBLAS_OP_T,
              "types");
static_assert((int)KG_LT_DESC_TRANSPOSE_A == (int)CUBLASLT_MATMUL_DESC_TRANSA &&
                  (int)KG_LT_DESC_TRANSPOSE_B == (int)CUBLASLT_MATMUL_DESC_TRANSB,
              "descriptions");
static_assert(
    (int)KG_LT_PREF_WORKSPACE == (int)CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES &&
        (int)KG_LT_PREF_REDUCTIONS == (int)CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK &&
        (int)KG_LT_PREF_ALIGNMENT == (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
        (int)KG_LT_PREF_ALIGNMENT + 3 == (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    "preferences");
static_assert((int)KG_LT_CONFIG_SPLIT == (int)CUBLASLT_ALGO_CONFIG_SPLITK_NUM &&
                  (int)KG_LT_CONFIG_REDUCTION ==
                      (int)CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME &&
                  (int)KG_LT_CONFIG_INNER_SHAPE ==
                      (int)CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID &&
                  (int)KG_LT_CONFIGS == (int)CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID + 1 &&
                  (int)CUBLASLT_REDUCTION_SCHEME_NONE == 0 &&
                  (int)KG_LT_REDUCTIONS == (int)CUBLASLT_REDUCTION_SCHEME_MASK,
              "configurations");
static_assert(sizeof(struct kg_lt_plan) == sizeof(cublasLtMatmulAlgo_t) &&
                  sizeof(struct kg_lt_offer) == sizeof(cublasLtMatmulHeuristicResult_t) &&
                  offsetof(struct kg_lt_offer, workspace) ==
                      offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) &&
                  offsetof(struct kg_lt_offer, status) ==
                      offsetof(cublasLtMatmulHeuristicResult_t, state),
              "offers");
#endif

#endif
