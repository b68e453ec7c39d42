/* The devices of a run in its manifest.json: one entry of "devices" for each device it
 * has used, with the checkpoint from which it was used.
 *
 *     "devices": [{"kind": "cpu"}, {"kind": "cuda", "gpu": "NVIDIA H100 80GB HBM3
 *     (sm_90)", "driver": "CUDA 13.0", .., "since": "step-000040"}]
 *
 * All CPUs are one kind without details, because they give the same bits (promise 6). A
 * manifest without this list is from an earlier kedge, on a CPU.
 */
#ifndef KG_TRAIN_FACTS_H
#define KG_TRAIN_FACTS_H

#include "base/status.h"
#include "base/str.h"
#include "ranks/ranks.h"
#include "tensor/backend.h"

#include <stdbool.h>

/* Appends `"devices": [..]` for a new run. */
kg_status kg_run_device_json(struct kg_str *out, const struct kg_backend *be,
                             struct kg_err *err) KG_MUST_CHECK;

/* Compares the manifest's last entry with the current device. *other: they differ, which
 * is allowed
 * errors: ECONFLICT (not allowed; lists the differences), EFORMAT */
kg_status kg_run_device_check(bool *other, const char *manifest,
                              const struct kg_backend *be, bool may_differ,
                              struct kg_err *err) KG_MUST_CHECK;

/* Adds an entry, used since the checkpoint of this name ("": from the beginning). */
kg_status kg_run_device_add(const char *manifest, const struct kg_backend *be,
                            const char *since, struct kg_err *err) KG_MUST_CHECK;

/* The ranks of a run and their transport: one entry of "ranks" for each setup used.
 *
 *     "ranks": [{"n": "1"}, {"n": "8", "over": "mpi (Open MPI v4.1.4)", "link": "nccl",
 *     "nccl": "2.28.9", "library": "/usr/lib/libnccl.so.2", "since": "step-000040"}]
 *
 * Results do not depend on any of this, so it may change; changes are recorded. */

/* Appends `"ranks": [..]` for a new run. */
kg_status kg_run_joined_json(struct kg_str *out, const struct kg_ranks *r,
                             struct kg_err *err) KG_MUST_CHECK;
/* Adds an entry, used since the checkpoint of this name, if it differs from the last one.
 * errors: EFORMAT, those of files */
kg_status kg_run_joined_note(const char *manifest, const struct kg_ranks *r,
                             const char *since, struct kg_err *err) KG_MUST_CHECK;

#endif
