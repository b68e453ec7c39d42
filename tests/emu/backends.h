/* Environment variables that select a device's products in tests (backends.c). */
#ifndef KG_EMU_BACKENDS_H
#define KG_EMU_BACKENDS_H

#ifdef __cplusplus
extern "C" {
#endif
#include "tensor/cuda/library.h"

/* *opts <- KEDGE_TEST_PRODUCTS, _LIBRARIES, _WITHOUT.
 * errors: NOTFOUND (valid names listed) */
kg_status kg_device_test_opts(struct kg_cuda_opts *opts, struct kg_err *err);

#ifdef __cplusplus
}
#endif
#endif
