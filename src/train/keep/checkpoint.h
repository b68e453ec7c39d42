/* Checkpoints: RUN/checkpoints/NAME with model/ (or adapter/), anchor/, state.json,
 * state.safetensors and begun.bin (train/step/begun.h), all listed with their hashes in
 * manifest.json (data/manifest.h), and a link `latest` to the newest.
 *
 * NAME is sft-NNNNNN during SFT and step-NNNNNN during RL. A checkpoint is written under
 * a temporary name and renamed when every file is synced. Then the link is moved, and
 * older checkpoints are removed. So a directory with such a name is always complete, and
 * after the first save at least one always exists. The newest is found by its name,
 * because after a kill the link may point to the previous checkpoint.
 */
#ifndef KG_TRAIN_CHECKPOINT_H
#define KG_TRAIN_CHECKPOINT_H

#include "data/safetensors.h"
#include "train/run.h"

/* Saves a checkpoint, unless this state is saved already; checks free space first.
 * errors: ENOSPACE (needed and found), EIO; the previous checkpoint stays complete */
kg_status kg_checkpoint_save(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* kg_checkpoint_save in the background; with lag, at once. Refusals are reported now,
 * failures of writing by kg_checkpoint_wait. Wait before changing weights, optimizer or
 * anchor, which are read meanwhile. Until then, the previous checkpoint is the newest. */
kg_status kg_checkpoint_begin(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
/* OK if none is being written.   errors: EIO, ENOMEM: the checkpoint is missing, or an
 * old one was not removed; the message says which */
kg_status kg_checkpoint_wait(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* Name of the newest checkpoint of the run in dir; "" if none. Restores NAME.old after a
 * killed replacement, so the caller must hold the run's lock. */
kg_status kg_checkpoint_newest(char name[KG_CHECKPOINT_NAME], const char *dir,
                               struct kg_err *err) KG_MUST_CHECK;

/* The current folder of the newest checkpoint, NAME or NAME.old; "" if none. Writes
 * nothing. */
kg_status kg_checkpoint_seen(char folder[KG_CHECKPOINT_NAME], const char *dir,
                             struct kg_err *err) KG_MUST_CHECK;

/* Name of the newest checkpoint for readers: writes nothing, ignores NAME.old. */
kg_status kg_checkpoint_last(char name[KG_CHECKPOINT_NAME], const char *dir,
                             struct kg_err *err) KG_MUST_CHECK;
/* _counters reads a state.json, _put_counters writes it. */
kg_status kg_checkpoint_counters(struct kg_counters *c, const char *path,
                                 struct kg_err *err) KG_MUST_CHECK;
kg_status kg_checkpoint_put_counters(const struct kg_counters *c, const char *path,
                                     struct kg_err *err) KG_MUST_CHECK;

/* Loads weights, optimizer, anchor, lagged weights and counters of the newest checkpoint,
 * and moves the link to it; *found is false if there is none.
 * errors: EFORMAT, ENOTFOUND (a file differs from the saved one or is missing; the
 * message names the newest intact checkpoint) */
kg_status kg_checkpoint_load(struct kg_run *run, bool *found,
                             struct kg_err *err) KG_MUST_CHECK;

/* Newest RL checkpoint at or before `step`; "" if none. Writes nothing. */
kg_status kg_checkpoint_before(char name[KG_CHECKPOINT_NAME], const char *dir,
                               int64_t step, struct kg_err *err) KG_MUST_CHECK;
/* Finds tensor `name` in the state file at path: n elements of a type.
 * errors: EFORMAT (missing, or different) */
kg_status kg_checkpoint_find(const struct kg_st_tensor **t, const struct kg_st_set *set,
                             const char *name, enum kg_dtype dtype, int64_t n,
                             const char *path, struct kg_err *err) KG_MUST_CHECK;
/* Loads one slab of the state: m's shard of a tensor in m's layout.
 * errors: those of kg_checkpoint_find */
kg_status kg_checkpoint_take(struct kg_slab *to, const struct kg_model *m,
                             const struct kg_st_set *set, const char *name,
                             const char *path, struct kg_err *err) KG_MUST_CHECK;
/* Writes the slabs of a state (weights, optimizer, anchor, lagged weights) into one file;
 * loads the slabs that the state has.   errors: EIO, ENOSPACE; EFORMAT (other slabs) */
kg_status kg_checkpoint_put_state(const struct kg_run_state *state, const char *path,
                                  struct kg_err *err) KG_MUST_CHECK;
kg_status kg_checkpoint_take_state(struct kg_run_state *state, const char *path,
                                   struct kg_err *err) KG_MUST_CHECK;
/* Verifies and loads the state in checkpoint folder dir; alone for a run that is only
 * inspected.   errors: those of kg_manifest_check and kg_checkpoint_take_state */
kg_status kg_checkpoint_read(const struct kg_run_inputs *in, struct kg_run_state *state,
                             const char *dir, struct kg_err *err) KG_MUST_CHECK;

/* Size of one checkpoint of this run in bytes. */
uint64_t kg_checkpoint_bytes(const struct kg_run_inputs *in,
                             const struct kg_run_state *state);

#endif
