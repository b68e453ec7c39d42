/* The run directory: made once, refused when it belongs to another run, cut back on
 * resume. */
#ifndef KG_TRAIN_RUN_DIR_H
#define KG_TRAIN_RUN_DIR_H

#include "train/run.h"

/* A new run: RUN/ with config.yaml (resolved), manifest.json, and the lock that run holds
 * until kg_run_close. A folder that holds a run already is refused, unless that made no
 * step: the files that it left are removed. So is one with a config.yaml, metrics.jsonl
 * or manifest.json but without a manifest of kedge's: those are the user's.
 * errors: ECONFLICT (also: another process is at work in it), EIO (not writable) */
kg_status kg_run_dir_create(const struct kg_run_inputs *in,
                            const struct kg_run_state *state,
                            const struct kg_ranks *ranks, struct kg_run_log *log,
                            struct kg_err *err) KG_MUST_CHECK;

/* A run to continue: takes the lock, compares RUN/config.yaml with the present config,
 * the inputs in RUN/manifest.json with the present files, and the device there with the
 * model's, unless that may change.
 * errors: NOTFOUND (no run here), ECONFLICT (another process is at work in it; keys,
 * inputs or devices differ, each is listed) */
kg_status kg_run_dir_check(const struct kg_run_inputs *in,
                           const struct kg_run_state *state, struct kg_run_log *log,
                           struct kg_err *err) KG_MUST_CHECK;

/* Whether dir holds something to continue: a checkpoint, or a step in its log. A run
 * that came to neither (its first checkpoint is half there, say) is begun anew. Writes
 * nothing: whose folder it is, is known behind the lock.
 * errors: EIO */
kg_status kg_run_dir_resumable(bool *resumable, const char *dir,
                               struct kg_err *err) KG_MUST_CHECK;

/* What one of the two above would refuse, without a trace: for a plan. Where another
 * process is at work, or the folder cannot be made or written to, too. */
kg_status kg_run_dir_try(const struct kg_run_inputs *in, const struct kg_run_state *state,
                         struct kg_run_log *log, bool resume,
                         struct kg_err *err) KG_MUST_CHECK;

/* A device that is another than before becomes one more of RUN/manifest.json, and so do
 * ranks that are others or are joined by something else (train/joined.h). Open
 * metrics.jsonl cut to count.metrics_bytes, void TensorBoard events of steps after
 * the present ones, and remove dumps of these. */
kg_status kg_run_dir_cut(const struct kg_run_inputs *in, const struct kg_run_state *state,
                         const struct kg_ranks *ranks, struct kg_run_log *log,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
