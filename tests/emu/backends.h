/* How the environment of a test has products of the device made (backends.c). */
#ifndef KG_EMU_BACKENDS_H
#define KG_EMU_BACKENDS_H

#ifdef __cplusplus
extern "C" {
#endif
#include "tensor/cuda/library.h"

/* KEDGE_TEST_PRODUCTS and KEDGE_TEST_LIBRARIES.
 * errors: NOTFOUND (valid names listed) */
kg_status kg_device_test_opts(struct kg_cuda_opts *opts, struct kg_err *err);

#ifdef __cplusplus
}
#endif
#endif
