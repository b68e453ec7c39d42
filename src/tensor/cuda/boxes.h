/* Host functions for kernels that use Hopper's instructions (hopper.h). */
#ifndef KG_TENSOR_CUDA_BOXES_H
#define KG_TENSOR_CUDA_BOXES_H

#include "tensor/backend.h"

/* Number of multiprocessors of the chosen device; 0 if it lacks these instructions. */
int kg_dev_hoppers(void);

/* Describes a matrix to TMA: kernels copy boxes of `rows` rows and 64 columns (bf16) or 4
 * columns (fp32). It is passed by value (__grid_constant__), so a recorded graph has its
 * own copy. */
struct kg_boxes {
#ifdef __cplusplus
    alignas(64)
#else
    _Alignas(64)
#endif
        uint64_t words[16];
};
/* returns false: m's rows are not at multiples of 16 bytes, or the driver refuses it */
bool kg_dev_boxes(struct kg_boxes *boxes, struct kg_mat m, int rows);

#endif
