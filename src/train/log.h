/* The log of a run: RUN/metrics.jsonl, and two views of it. If a view fails, the run only
 * warns.
 *
 * TensorBoard events: RUN/events.out.tfevents.* of RL and validation, and
 * RUN/sft/events.out.tfevents.* of SFT, whose steps are counted separately. Readers of a
 * folder's events find the values of metrics.jsonl, also after a resume that truncated
 * both; after a failure the run continues without events. RUN/report.html: the page that
 * kedge report makes.
 */
#ifndef KG_TRAIN_LOG_H
#define KG_TRAIN_LOG_H

#include "train/run.h"

/* After metrics.jsonl was truncated to the counters: discards events of later steps, and
 * writes events for lines logged while events were off. */
void kg_run_log_resume(const struct kg_run_inputs *in, const struct kg_run_state *state,
                       struct kg_run_log *log);

/* Appends a line to metrics.jsonl and a TensorBoard event. */
kg_status kg_run_log_put(struct kg_run_log *log, const struct kg_metrics *m,
                         const char *phase, int64_t step,
                         struct kg_err *err) KG_MUST_CHECK;

/* Rewrites report.html if metrics.jsonl has new lines (log.report).
 * returns whether there is a page */
bool kg_run_report(const struct kg_run_inputs *in, struct kg_run_log *log);

void kg_run_log_close(struct kg_run_log *log);

#endif
