/* The run directory: made once, refused when it belongs to another run, cut back on
 * resume. */
#ifndef KG_TRAIN_RUN_DIR_H
#define KG_TRAIN_RUN_DIR_H

#include "train/run.h"

/* A new run: RUN/ with config.yaml (resolved) and manifest.json. A folder that already
 * holds a run is refused.
 * errors: ECONFLICT, EIO (not writable) */
kg_status kg_run_dir_create(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* A run to continue: compares RUN/config.yaml with the present config.
 * errors: NOTFOUND (no run here), ECONFLICT listing every key that differs */
kg_status kg_run_dir_check(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* Open metrics.jsonl cut to count.metrics_bytes, and remove dumps of steps after the
 * present ones. */
kg_status kg_run_dir_cut(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

#endif
