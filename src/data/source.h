/* What the name of a model stands for: a folder of HuggingFace's files (a model of the
 * hub's cache is one, data/hub.h), or one file of another format, which is read as the
 * folder that it would be: config.json, tokenizer files, and tensors by their names.
 *
 * All readers of a part of a model call these functions, so a new format is a row of the
 * table in source.c.
 */
#ifndef KG_DATA_SOURCE_H
#define KG_DATA_SOURCE_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"
#include "data/safetensors.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether it is a folder, or a file of a format that is there. */
bool kg_source_is_model(const char *model);
/* Whether it names a file of a format: there is no folder to list. */
bool kg_source_is_file(const char *model);

/* Append a file of the model, "config.json".   errors: NOTFOUND (the model has no such
 * file), EINVAL (there is no such model), EIO, ENOMEM, EFORMAT (more than max_bytes;
 * those of the format) */
kg_status kg_source_read(struct kg_str *out, const char *model, const char *file,
                         uint64_t max_bytes, struct kg_err *err) KG_MUST_CHECK;
/* The same as JSON.   errors: those of kg_json_read, too */
kg_status kg_source_json(struct kg_json_doc *doc, const char *model, const char *file,
                         uint64_t max_bytes, struct kg_err *err) KG_MUST_CHECK;
/* The same; a file that the model does not have leaves doc empty. */
kg_status kg_source_json_or_none(struct kg_json_doc *doc, const char *model,
                                 const char *file, uint64_t max_bytes,
                                 struct kg_err *err) KG_MUST_CHECK;

/* The weights, mapped.   errors: those of kg_st_open_dir and of the format */
kg_status kg_source_tensors(struct kg_st_set **set, const char *model,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
