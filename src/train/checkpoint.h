/* Checkpoints: RUN/checkpoints/NAME/{model,anchor,state.json,state.safetensors}, listed
 * with their hashes in manifest.json (data/manifest.h), and `latest` pointing at the
 * newest.
 *
 * NAME is sft-NNNNNN during the warm start and step-NNNNNN after it. A checkpoint is
 * written under a temporary name, every file synced, then renamed; the link moves after
 * that; only then are older ones removed. So whatever carries such a name is whole, and
 * at any moment one is there. The newest is found by its name, not by the link, which a
 * kill may have left one behind.
 */
#ifndef KG_TRAIN_CHECKPOINT_H
#define KG_TRAIN_CHECKPOINT_H

#include "data/safetensors.h"
#include "train/run.h"

/* Free space is checked first.
 * errors: ENOSPACE (needed and found), EIO; the previous checkpoint stays whole */
kg_status kg_checkpoint_save(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* The same, written beside what follows: what is refused before writing is refused now,
 * what fails then is told by kg_checkpoint_wait. Until that, weights, optimizer and
 * anchor may be read and not changed: whoever changes them calls it first. The newest
 * checkpoint is the one before, until then. */
kg_status kg_checkpoint_begin(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;
/* OK where none is on its way.   errors: EIO, ENOMEM: that checkpoint is not there, or
 * one that should have gone is, and the error says which */
kg_status kg_checkpoint_wait(struct kg_run *run, struct kg_err *err) KG_MUST_CHECK;

/* Name of the newest checkpoint of the run in dir; "" without one. Puts back what a
 * killed replacement left under NAME.old: for who holds the run's lock. */
kg_status kg_checkpoint_newest(char name[KG_CHECKPOINT_NAME], const char *dir,
                               struct kg_err *err) KG_MUST_CHECK;

/* The folder that the newest checkpoint is in until then, NAME or NAME.old; "" without
 * one. Writes nothing. */
kg_status kg_checkpoint_seen(char folder[KG_CHECKPOINT_NAME], const char *dir,
                             struct kg_err *err) KG_MUST_CHECK;

/* The same name of a run that is only read: writes nothing, and knows of no NAME.old. */
kg_status kg_checkpoint_last(char name[KG_CHECKPOINT_NAME], const char *dir,
                             struct kg_err *err) KG_MUST_CHECK;
/* The counters in a state.json, and such a file of them. */
kg_status kg_checkpoint_counters(struct kg_counters *c, const char *path,
                                 struct kg_err *err) KG_MUST_CHECK;
kg_status kg_checkpoint_put_counters(const struct kg_counters *c, const char *path,
                                     struct kg_err *err) KG_MUST_CHECK;

/* Weights, optimizer, anchor, lagged weights and counters of the newest checkpoint, to
 * which the link is moved; *found false without one.
 * errors: EFORMAT, NOTFOUND (a file is not what was saved: nothing is taken; the newest
 * that is whole is named) */
kg_status kg_checkpoint_load(struct kg_run *run, bool *found,
                             struct kg_err *err) KG_MUST_CHECK;

/* Newest checkpoint of RL at or before `step`; "" without one. Writes nothing. */
kg_status kg_checkpoint_before(char name[KG_CHECKPOINT_NAME], const char *dir,
                               int64_t step, struct kg_err *err) KG_MUST_CHECK;
/* The tensor `name` of a state's file at path: n elements of a type.
 * errors: EFORMAT (none, or another) */
kg_status kg_checkpoint_find(const struct kg_st_tensor **t, const struct kg_st_set *set,
                             const char *name, enum kg_dtype dtype, int64_t n,
                             const char *path, struct kg_err *err) KG_MUST_CHECK;
/* One slab of the state out of it: m's cut of what has m's layout.   errors: as above */
kg_status kg_checkpoint_take(struct kg_slab *to, const struct kg_model *m,
                             const struct kg_st_set *set, const char *name,
                             const char *path, struct kg_err *err) KG_MUST_CHECK;
/* The state in the checkpoint folder dir, for a run that is only looked at.
 * errors: as above */
kg_status kg_checkpoint_read(const struct kg_run_inputs *in, struct kg_run_state *state,
                             const char *dir, struct kg_err *err) KG_MUST_CHECK;

/* Bytes that one checkpoint of this run takes. */
uint64_t kg_checkpoint_bytes(const struct kg_run_inputs *in,
                             const struct kg_run_state *state);

#endif
