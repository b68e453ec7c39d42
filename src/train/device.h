/* What a run computes on, as its manifest.json says: one entry of "devices" for each
 * device that it has computed on, since the checkpoint that it was resumed from.
 *
 *     "devices": [{"kind": "cpu"}, {"kind": "cuda", "gpu": "NVIDIA H100 80GB HBM3
 *     (sm_90)", "driver": "CUDA 13.0", .., "since": "step-000040"}]
 *
 * CPUs are one kind and have no more to say: they give the same bits (promise 6). A run
 * whose manifest has no such list was begun by an earlier kedge, on a CPU.
 */
#ifndef KG_TRAIN_DEVICE_H
#define KG_TRAIN_DEVICE_H

#include "base/status.h"
#include "base/str.h"
#include "tensor/backend.h"

#include <stdbool.h>

/* Append `"devices": [..]` of a run that begins. */
kg_status kg_run_device_json(struct kg_str *out, const struct kg_backend *be,
                             struct kg_err *err) KG_MUST_CHECK;

/* The last entry of the manifest against what computes now.   *other: they differ, which
 * may be
 * errors: ECONFLICT (it may not be; what differs is listed), EFORMAT */
kg_status kg_run_device_check(bool *other, const char *manifest,
                              const struct kg_backend *be, bool may_differ,
                              struct kg_err *err) KG_MUST_CHECK;

/* One entry more, since the checkpoint of this name ("": since the beginning). */
kg_status kg_run_device_add(const char *manifest, const struct kg_backend *be,
                            const char *since, struct kg_err *err) KG_MUST_CHECK;

#endif
