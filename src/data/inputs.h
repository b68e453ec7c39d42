/* Fingerprints of input files (length and hash), so that resumed work continues with the
 * same inputs or reports what changed.
 *
 * All bytes are hashed (base/hash.h); names and times are not. A pipe cannot be read
 * twice, so it is left out with a warning.
 */
#ifndef KG_DATA_INPUTS_H
#define KG_DATA_INPUTS_H

#include "base/status.h"
#include "base/str.h"

/* Appends `"label": {"bytes": n, "hash": "..."}` to an open JSON object, after a comma if
 * needed.   errors: ENOTFOUND, EIO */
kg_status kg_inputs_put_file(struct kg_str *out, const char *label, const char *path,
                             struct kg_err *err) KG_MUST_CHECK;
/* Appends the files *.json, *.safetensors and chat_template.jinja of a model's folder as
 * "label/name", or a single-file model as "label". For a snapshot of the hub's cache also
 * appends `"label": {"hub": "ORG/NAME", "commit": "..."}`. */
kg_status kg_inputs_put_model(struct kg_str *out, const char *label, const char *dir,
                              struct kg_err *err) KG_MUST_CHECK;

/* Appends lines "file LABEL<tab>N bytes (hash H)" for the JSON object of inputs; for a
 * snapshot, "file LABEL<tab>ORG/NAME of the hub at commit C". */
kg_status kg_inputs_put_facts(struct kg_str *out, const char *inputs,
                              struct kg_err *err) KG_MUST_CHECK;

/* Compares the "inputs" of a manifest with `present`, the object for the current files.
 * Skips the manifest's labels that begin with `past`: no longer inputs (NULL: none).
 * errors: ECONFLICT listing all differences, EFORMAT (not a manifest of kedge) */
kg_status kg_inputs_compare(const char *manifest, const char *present, const char *past,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
