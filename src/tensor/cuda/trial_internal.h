/* Trials on the device: whether two kernels give the same bits, on operands that are
 * drawn. */
#ifndef KG_TENSOR_CUDA_TRIAL_INTERNAL_H
#define KG_TENSOR_CUDA_TRIAL_INTERNAL_H

#include "tensor/cuda/cuda_internal.h"

struct kg_mat kg_cuda_trial_take(struct kg_cuda_piece *p, enum kg_dtype dtype,
                                 int64_t rows, int64_t cols);

/* m <- vectors (rows, or with `down` columns) of bf16 factors from 2^-8 to 1, either
 * sign; those of the second half are those of the first once more, of odd vectors with
 * the other sign (cancels), so that their sums are mostly what roundings left. seed below
 * 16 */
void kg_cuda_trial_fill(struct kg_mat m, bool down, bool cancels, uint32_t seed);

/* Elements whose bits differ, and by how much at most, or infinity. */
struct kg_cuda_others {
    int n;
    float apart;
};
enum { KG_TRIAL_BLOCKS = 128 };
/* Adds those of two fp32 matrices to *sum. room (KG_TRIAL_BLOCKS) on the device
 * errors: EDEVICE */
kg_status kg_cuda_trial_compare(struct kg_cuda_others *sum, struct kg_mat x,
                                struct kg_mat y, struct kg_cuda_others *room,
                                struct kg_err *err);

#endif
