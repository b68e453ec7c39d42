/* The ranks of a run and their transport in its manifest.json: one entry of "ranks" for
 * each setup used.
 *
 *     "ranks": [{"n": "1"}, {"n": "8", "over": "mpi (Open MPI v4.1.4)", "link": "nccl",
 *     "nccl": "2.28.9", "library": "/usr/lib/libnccl.so.2", "since": "step-000040"}]
 *
 * Results do not depend on any of this, so it may change; changes are recorded.
 */
#ifndef KG_TRAIN_JOINED_H
#define KG_TRAIN_JOINED_H

#include "base/str.h"
#include "ranks/ranks.h"

/* Appends `"ranks": [..]` for a new run. */
kg_status kg_run_joined_json(struct kg_str *out, const struct kg_ranks *r,
                             struct kg_err *err) KG_MUST_CHECK;
/* Adds an entry, used since the checkpoint of this name, if it differs from the last one.
 * errors: EFORMAT, those of files */
kg_status kg_run_joined_note(const char *manifest, const struct kg_ranks *r,
                             const char *since, struct kg_err *err) KG_MUST_CHECK;

#endif
