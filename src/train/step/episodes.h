/* Episodes of a run: an open environment, and their metrics. */
#ifndef KG_TRAIN_EPISODES_H
#define KG_TRAIN_EPISODES_H

#include "train/run.h"

/* Opens work->episodes if the config has an environment. */
kg_status kg_run_episodes_open(struct kg_run_inputs *in, struct kg_run_work *work,
                               struct kg_err *err) KG_MUST_CHECK;

/* For a tool failure that stops the run: adds to the message how to continue.
 * returns status */
kg_status kg_run_tool_failed(const struct kg_episodes *episodes, int64_t step,
                             kg_status status, struct kg_err *err);

/* PREFIX/turns, calls, invalid, failed, windowed (means per episode), answered and cut
 * (fractions); nothing without episodes. */
void kg_episodes_put(struct kg_metrics *log, const char *prefix,
                     const struct kg_episode_sums *sums);

#endif
