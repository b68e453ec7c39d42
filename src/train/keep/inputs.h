/* Fingerprints of a run's input files, by length and hash, so that a resumed run
 * continues with the same inputs or reports what changed.
 *
 * Inputs are the files of data.train, data.val, sft.data, sft.val and data.chat_template,
 * the index of search.where, and the files *.json, *.safetensors and chat_template.jinja
 * of anchor.path, model.adapter, init.from, and model.path or init.from/model (not once
 * the run has its own checkpoint instead of init.from). All bytes are hashed
 * (base/hash.h); names and times are not. A pipe cannot be read twice, so it is left out
 * with a warning. Files read by an external grader's command or by a retrieval server are
 * unknown here.
 */
#ifndef KG_TRAIN_INPUTS_H
#define KG_TRAIN_INPUTS_H

#include "base/status.h"
#include "base/str.h"
#include "recipe/options.h"

/* Appends {"data.train": {"bytes": n, "hash": "..."}, "model.path/config.json": {..},
 * ..}.
 * errors: ENOTFOUND, EIO */
kg_status kg_inputs_json(struct kg_str *out, const struct kg_recipe *r,
                         struct kg_err *err) KG_MUST_CHECK;

/* Appends lines "file LABEL<tab>length and hash" of these files and of the files of
 * rollout.data and eval.reference. Lines must be equal on all ranks. For unreadable files
 * there is one line with the reason; opening the run refuses them.   errors: ENOMEM */
kg_status kg_inputs_put_all(struct kg_str *facts, const struct kg_recipe *r,
                            struct kg_err *err) KG_MUST_CHECK;

/* Compares the inputs of config with the "inputs" of a manifest.
 * errors: ECONFLICT listing all differences, EFORMAT (not a manifest of kedge) */
kg_status kg_inputs_check(const struct kg_recipe *r, const char *manifest,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
