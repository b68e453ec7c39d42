/* Trials on the device: whether two kernels give equal bits for pseudorandom operands. */
#ifndef KG_TENSOR_CUDA_TRIAL_INTERNAL_H
#define KG_TENSOR_CUDA_TRIAL_INTERNAL_H

#include "tensor/cuda/cuda_internal.h"

struct kg_mat kg_cuda_trial_take(struct kg_cuda_piece *p, enum kg_dtype dtype,
                                 int64_t rows, int64_t cols);

/* m <- pseudorandom bf16 factors of either sign from 2^-8 to 1. The second half of each
 * vector (a row, or a column if `down`) repeats the first half. If `cancels`, odd vectors
 * repeat it negated; so their products with vectors filled without `cancels` are mostly
 * rounding error. seed < 16 */
void kg_cuda_trial_fill(struct kg_mat m, bool down, bool cancels, uint32_t seed);

/* n: elements whose bits differ. apart: largest absolute difference; infinity if NaN */
struct kg_cuda_others {
    int n;
    float apart;
};
enum { KG_TRIAL_BLOCKS = 128 };
/* Adds the differences of two fp32 matrices to *sum. room: KG_TRIAL_BLOCKS elements of
 * device memory.   errors: EDEVICE */
kg_status kg_cuda_trial_compare(struct kg_cuda_others *sum, struct kg_mat x,
                                struct kg_mat y, struct kg_cuda_others *room,
                                struct kg_err *err);

#endif
