/* The run directory: created once, refused if it belongs to another run, truncated on
 * resume. */
#ifndef KG_TRAIN_RUN_DIR_H
#define KG_TRAIN_RUN_DIR_H

#include "train/run.h"

/* A new run: creates RUN/ with config.yaml (resolved), manifest.json, and a lock held
 * until kg_run_close. A folder with a run is refused, unless that run made no step: then
 * its files are removed. A folder with config.yaml, metrics.jsonl or manifest.json but no
 * manifest of kedge is refused too: these files belong to the user.
 * errors: ECONFLICT (also: another process is using it), EIO (not writable) */
kg_status kg_run_dir_create(const struct kg_run_inputs *in,
                            const struct kg_run_state *state,
                            const struct kg_ranks *ranks, struct kg_run_log *log,
                            struct kg_err *err) KG_MUST_CHECK;

/* A run to continue: takes the lock; compares RUN/config.yaml with the current config,
 * the inputs in RUN/manifest.json with the current files, and the device in it with the
 * model's device, unless devices may change; then rewrites config.yaml.
 * errors: ENOTFOUND (no run here, or its checkpoints are gone), EFORMAT (a truncated
 * config.yaml), ECONFLICT (another process is using it; lists differing keys, inputs or
 * devices) */
kg_status kg_run_dir_check(const struct kg_run_inputs *in,
                           const struct kg_run_state *state, struct kg_run_log *log,
                           struct kg_err *err) KG_MUST_CHECK;

/* The steps in RUN/metrics.jsonl, up to a malformed line. any: some line is malformed or
 * not of a validation. first, last: RL steps; 0: none   errors: EIO */
struct kg_logged {
    bool any;
    int64_t first, last;
};
kg_status kg_run_dir_logged(struct kg_logged *found, const char *dir,
                            struct kg_err *err) KG_MUST_CHECK;

/* Whether dir has something to continue: a checkpoint, or a step in its log. A run
 * without either (its first checkpoint is incomplete, say) starts over. Writes nothing;
 * ownership is checked later, under the lock.
 * errors: EIO */
kg_status kg_run_dir_resumable(bool *resumable, const char *dir,
                               struct kg_err *err) KG_MUST_CHECK;

/* For a plan: fails as kg_run_dir_create or _check would, without writing; also if
 * another process is using the folder, or it cannot be created or written. */
kg_status kg_run_dir_try(const struct kg_run_inputs *in, const struct kg_run_state *state,
                         struct kg_run_log *log, bool resume,
                         struct kg_err *err) KG_MUST_CHECK;

/* Records a changed device, and changed ranks or transport (train/keep/facts.h), in
 * RUN/manifest.json. Opens metrics.jsonl truncated to count.metrics_bytes, discards later
 * TensorBoard events, and removes later dumps. */
kg_status kg_run_dir_cut(const struct kg_run_inputs *in, const struct kg_run_state *state,
                         const struct kg_ranks *ranks, struct kg_run_log *log,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
