/* Episodes of a run: an open environment, and their metrics. */
#ifndef KG_TRAIN_EPISODES_H
#define KG_TRAIN_EPISODES_H

#include "train/run.h"

/* work->episodes, where the config asks for them. */
kg_status kg_run_episodes_open(struct kg_run_inputs *in, struct kg_run_work *work,
                               struct kg_err *err) KG_MUST_CHECK;

/* A tool failed for good and the run is to stop: how to go on is added to the message.
 * returns status */
kg_status kg_run_tool_failed(const struct kg_episodes *episodes, int64_t step,
                             kg_status status, struct kg_err *err);

/* PREFIX/turns, calls, invalid, failed, windowed (means of an episode), answered and cut
 * (shares); nothing where there were none. */
void kg_episodes_put(struct kg_metrics *log, const char *prefix,
                     const struct kg_episode_sums *sums);

#endif
