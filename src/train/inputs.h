/* The files that a run was started from, known by length and hash, so that a resumed run
 * goes on from what it began with or says what has changed.
 *
 * Inputs are the files under data.train, data.val, sft.data, sft.val and
 * data.chat_template, the index under search.where, and the files *.json, *.safetensors
 * and chat_template.jinja of anchor.path and of model.path, or of the checkpoint that
 * init.from names. Every byte is hashed (base/hash.h); names and times
 * are not. A pipe cannot be read twice: it is warned about and left out. What the command
 * of an external grader reads, and what a retriever's server finds, is not known here.
 */
#ifndef KG_TRAIN_INPUTS_H
#define KG_TRAIN_INPUTS_H

#include "base/status.h"
#include "base/str.h"
#include "recipe/options.h"

/* Append {"data.train": {"bytes": n, "hash": "..."}, "model.path/config.json": {..}, ..}.
 * errors: NOTFOUND, EIO */
kg_status kg_inputs_json(struct kg_str *out, const struct kg_recipe *r,
                         struct kg_err *err) KG_MUST_CHECK;

/* Lines "file LABEL<tab>length and hash" of these files, and of those under rollout.data
 * and eval.reference: what every rank of a run must have alike. Of files that cannot be
 * read there is one line that says why: opening the run refuses them.   errors: ENOMEM */
kg_status kg_inputs_put_all(struct kg_str *facts, const struct kg_recipe *r,
                            struct kg_err *err) KG_MUST_CHECK;

/* The inputs of config against those in the "inputs" of a manifest.
 * errors: ECONFLICT listing each that differs, EFORMAT (no manifest of ours) */
kg_status kg_inputs_check(const struct kg_recipe *r, const char *manifest,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
