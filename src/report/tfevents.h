/* TensorBoard event files: the scalars of a step as records for `tensorboard --logdir`.
 *
 * A file is a sequence of TFRecords, each an Event protocol buffer; both are encoded by
 * hand, since only four messages are needed. TensorBoard reads the files of a folder in
 * name order. A resumed run begins a new file, whose second event, START, discards all
 * events of earlier files from its step on. Written files never change, so a running
 * TensorBoard stays correct.
 *
 * Values are single precision, as in all scalar events. metrics.jsonl has full precision.
 */
#ifndef KG_REPORT_TFEVENTS_H
#define KG_REPORT_TFEVENTS_H

#include "base/file.h"
#include "base/status.h"
#include "report/metrics.h"

#include <stdbool.h>
#include <stdint.h>

/* {0}: not open */
struct kg_tfevents {
    struct kg_file_writer file;
    bool open;
};

/* Whether a file has a name given by _open; other writers' names lack ".kedge.". */
bool kg_tfevents_is_name(const char *name);

/* The step of the last complete event in dir; -1 if there is no event file, 0 if the last
 * file has no event or another program wrote it. */
kg_status kg_tfevents_last_step(int64_t *step, const char *dir,
                                struct kg_err *err) KG_MUST_CHECK;

/* Opens DIR/events.out.tfevents.SECONDS.kedge.NNNN, which sorts after all existing files;
 * discards their events of steps >= `from` (0 or more).   errors: EIO, ENOSPACE */
kg_status kg_tfevents_open(struct kg_tfevents *t, const char *dir, int64_t from,
                           struct kg_err *err) KG_MUST_CHECK;
/* Writes one event with every number of m and flushes it to the system. */
kg_status kg_tfevents_put(struct kg_tfevents *t, const struct kg_metrics *m, int64_t step,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_tfevents_close(struct kg_tfevents *t,
                            struct kg_err *err) KG_MUST_CHECK; /* {0} is allowed */
/* Closes after a failure; keeps what was written. */
void kg_tfevents_abort(struct kg_tfevents *t);

#endif
