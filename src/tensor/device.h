/* What a model computes on, as a recipe or a flag names it, and the CUDA backend, which
 * is a library of its own: opened when it is asked for, from the folder of the program or
 * ../lib/kedge beside it.
 *
 * Each thing that may be missing there is one line that says what was looked for and
 * where. docs/gpu.md says how to get it.
 */
#ifndef KG_TENSOR_DEVICE_H
#define KG_TENSOR_DEVICE_H

#include "base/str.h"
#include "tensor/backend.h"

/* The backend of `cpu` (the default of kg_backend_open), `cuda` (its device 0), `cuda:N`,
 * or `auto`: the first GPU, or where none can be used the CPU; the log says which and
 * why. NULL: cpu.   *be borrowed, of static life
 * errors: EINVAL (none of these), those of kg_cuda_open */
kg_status kg_device_open(const struct kg_backend **be, const char *device,
                         struct kg_err *err) KG_MUST_CHECK;

/* Append "PATH (sm_80 sm_90a), driver of CUDA 13.0; cuda:0 NAME ..", or "none: REASON".
 * Nothing of a device is taken.   errors: ENOMEM */
kg_status kg_device_say(struct kg_str *out, struct kg_err *err) KG_MUST_CHECK;

/* Device number `device` of the library in the first of n folders that has one.
 * errors: NOTFOUND (no library, folders listed), EFORMAT (not one of kedge's), ECONFLICT
 * (another version's; another device than before), EDEVICE (driver, device, architecture)
 */
kg_status kg_cuda_open_in(const struct kg_backend **be, const char *const *folders,
                          size_t n, int device, struct kg_err *err) KG_MUST_CHECK;
/* The same in the program's folders; name: "cuda" or "cuda:N". */
kg_status kg_cuda_open(const struct kg_backend **be, const char *name,
                       struct kg_err *err) KG_MUST_CHECK;

#endif
