/* The files that a result depends on, known by length and hash, so that work that is
 * taken up again goes on from what it began with or says what has changed.
 *
 * Every byte is hashed (base/hash.h); names and times are not. A pipe cannot be read
 * twice: it is warned about and left out.
 */
#ifndef KG_DATA_INPUTS_H
#define KG_DATA_INPUTS_H

#include "base/status.h"
#include "base/str.h"

/* Append `"label": {"bytes": n, "hash": "..."}` to an object that has begun with {.
 * errors: NOTFOUND, EIO */
kg_status kg_inputs_put_file(struct kg_str *out, const char *label, const char *path,
                             struct kg_err *err) KG_MUST_CHECK;
/* The files *.json, *.safetensors and chat_template.jinja of a model's folder, as
 * "label/name", and where it is a snapshot of the hub's cache
 * `"label": {"hub": "ORG/NAME", "commit": "..."}`. */
kg_status kg_inputs_put_model(struct kg_str *out, const char *label, const char *dir,
                              struct kg_err *err) KG_MUST_CHECK;

/* Lines "file LABEL<tab>length and hash" of such an object. */
kg_status kg_inputs_put_facts(struct kg_str *out, const char *inputs,
                              struct kg_err *err) KG_MUST_CHECK;

/* The "inputs" of a manifest against the present ones, an object as above; not those of
 * the manifest whose label begins with `past`, which are read no more (NULL: none).
 * errors: ECONFLICT listing each that differs, EFORMAT (no manifest of ours) */
kg_status kg_inputs_compare(const char *manifest, const char *present, const char *past,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
