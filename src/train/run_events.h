/* The TensorBoard events of a run: RUN/events.out.tfevents.* of RL and validation, and
 * RUN/sft/events.out.tfevents.* of the warm start, whose steps are counted by themselves.
 *
 * To a reader the events of a folder are the lines of metrics.jsonl, also behind a resume
 * that cut lines off. They are a view of it: what fails here is warned of once, and the
 * run goes on without them.
 */
#ifndef KG_TRAIN_RUN_EVENTS_H
#define KG_TRAIN_RUN_EVENTS_H

#include "train/run.h"

/* The run stands where its counters say, metrics.jsonl is cut to it: events of later
 * steps, if there are any, become void, and lines that were logged while events were off
 * or given up are said now. */
void kg_run_events_resume(const struct kg_run_inputs *in,
                          const struct kg_run_state *state, struct kg_run_log *log);

/* A line that is about to be appended to metrics.jsonl. */
void kg_run_events_put(struct kg_run_log *log, const struct kg_metrics *m,
                       const char *phase, int64_t step);

void kg_run_events_close(struct kg_run_log *log);

#endif
