/* With how many ranks a run is made, and what joins them, as its manifest.json says: one
 * entry of "ranks" for each that it was made by.
 *
 *     "ranks": [{"n": "1"}, {"n": "8", "over": "mpi (Open MPI v4.1.4)", "link": "nccl",
 *     "nccl": "2.28.9", "library": "/usr/lib/libnccl.so.2", "since": "step-000040"}]
 *
 * No bit depends on any of it: whatever differs may, and is written down.
 */
#ifndef KG_TRAIN_JOINED_H
#define KG_TRAIN_JOINED_H

#include "base/str.h"
#include "ranks/ranks.h"

/* Append `"ranks": [..]` of a run that begins. */
kg_status kg_run_joined_json(struct kg_str *out, const struct kg_ranks *r,
                             struct kg_err *err) KG_MUST_CHECK;
/* Where these are not those of the last entry, one more, since the checkpoint of this
 * name.   errors: EFORMAT, those of files */
kg_status kg_run_joined_note(const char *manifest, const struct kg_ranks *r,
                             const char *since, struct kg_err *err) KG_MUST_CHECK;

#endif
