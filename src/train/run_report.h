/* RUN/report.html while the run continues (kedge report makes the same page). */
#ifndef KG_TRAIN_RUN_REPORT_H
#define KG_TRAIN_RUN_REPORT_H

#include "train/run.h"

/* Rewrites it if metrics.jsonl has new lines (log.report). A failure is only a warning.
 * returns whether there is a page */
bool kg_run_report(const struct kg_run_inputs *in, struct kg_run_log *log);

#endif
