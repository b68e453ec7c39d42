/* TensorBoard's event files: scalars of a step as records that `tensorboard --logdir`
 * reads.
 *
 * A file is a row of TFRecords, each an Event message of protocol buffers; both are
 * written by hand, as only four messages are needed. A reader takes the files of a folder
 * in the order of their names. A run that goes on begins a new file, whose first word is
 * "forget what the files before this one say of step S and later"; nothing that was
 * written is changed, so a reader that follows is never misled.
 *
 * Values are single precision: that is what a scalar event holds. metrics.jsonl has all
 * bits.
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

/* Whether a file has a name that _open gives; others' names lack ".kedge.". */
bool kg_tfevents_is_name(const char *name);

/* Step of the last whole event in dir, so of what its files say up to now: -1 where there
 * is no file, 0 where the last one has no event or is none of kedge's. */
kg_status kg_tfevents_last_step(int64_t *step, const char *dir,
                                struct kg_err *err) KG_MUST_CHECK;

/* Begin DIR/events.out.tfevents.SECONDS.kedge.NNNN, a name behind all that are there;
 * what those say of steps from `from` on (0 or more) is void.   errors: EIO, ENOSPACE */
kg_status kg_tfevents_open(struct kg_tfevents *t, const char *dir, int64_t from,
                           struct kg_err *err) KG_MUST_CHECK;
/* One event with every number of m, on its way to the disk when this returns. */
kg_status kg_tfevents_put(struct kg_tfevents *t, const struct kg_metrics *m, int64_t step,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_tfevents_close(struct kg_tfevents *t,
                            struct kg_err *err) KG_MUST_CHECK; /* {0} is allowed */
/* What was written stays. */
void kg_tfevents_abort(struct kg_tfevents *t);

#endif
