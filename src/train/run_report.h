/* RUN/report.html while the run goes on (kedge report makes the same page). */
#ifndef KG_TRAIN_RUN_REPORT_H
#define KG_TRAIN_RUN_REPORT_H

#include "train/run.h"

/* Write it anew where metrics.jsonl has more than it shows (log.report). What fails is
 * warned of: a page is no reason to end a run.   returns whether there is a page */
bool kg_run_report(const struct kg_run_inputs *in, struct kg_run_log *log);

#endif
