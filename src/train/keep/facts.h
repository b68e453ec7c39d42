/* The environments of a run in its manifest.json: lists with an entry for the start, and
 * one for every resume in a different environment.
 *
 *     "devices": [{"kind": "cpu"}, {"kind": "cuda", "gpu": "NVIDIA H100 80GB HBM3
 *     (sm_90)", "driver": "CUDA 13.0", .., "since": "step-000040"}]
 *     "ranks": [{"n": "1"}, {"n": "8", "over": "mpi (Open MPI v4.1.4)", "link": "nccl",
 *     "nccl": "2.28.9", "library": "/usr/lib/libnccl.so.2", "since": "step-000040"}]
 *
 * Bits depend on the device. All CPUs are one kind without details, because they give the
 * same bits. Bits do not depend on the ranks, so ranks may change.
 */
#ifndef KG_TRAIN_FACTS_H
#define KG_TRAIN_FACTS_H

#include "base/status.h"
#include "base/str.h"
#include "ranks/ranks.h"
#include "tensor/backend.h"

#include <stdbool.h>

/* Appends `"devices": [..], "ranks": [..]` for a new run. */
kg_status kg_facts_json(struct kg_str *out, const struct kg_backend *be,
                        const struct kg_ranks *ranks, struct kg_err *err) KG_MUST_CHECK;

/* Compares the manifest's last device with the current one.
 * errors: ECONFLICT (lists the differences), EFORMAT */
kg_status kg_facts_check(const char *manifest, const struct kg_backend *be,
                         struct kg_err *err) KG_MUST_CHECK;

/* Adds an entry to each list whose last entry differs, valid since the checkpoint of this
 * name ("": from the beginning). *moved: the device changed.   errors: EFORMAT, those of
 * files */
kg_status kg_facts_note(bool *moved, const char *manifest, const struct kg_backend *be,
                        const struct kg_ranks *ranks, const char *since,
                        struct kg_err *err) KG_MUST_CHECK;

#endif
