/* The TensorBoard events of a run: RUN/events.out.tfevents.* of RL and validation, and
 * RUN/sft/events.out.tfevents.* of SFT, whose steps are counted separately.
 *
 * To a reader the events of a folder equal the lines of metrics.jsonl, also after a
 * resume that truncated them. They are only a view: a failure is logged once, and the run
 * continues without them.
 */
#ifndef KG_TRAIN_RUN_EVENTS_H
#define KG_TRAIN_RUN_EVENTS_H

#include "train/run.h"

/* After metrics.jsonl was truncated to the counters: discards events of later steps, and
 * writes events for lines logged while events were off. */
void kg_run_events_resume(const struct kg_run_inputs *in,
                          const struct kg_run_state *state, struct kg_run_log *log);

/* Writes the event of a line that is about to be appended to metrics.jsonl. */
void kg_run_events_put(struct kg_run_log *log, const struct kg_metrics *m,
                       const char *phase, int64_t step);

void kg_run_events_close(struct kg_run_log *log);

#endif
