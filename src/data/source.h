/* Opens a model by its path: a folder of HuggingFace's files (such as one in the hub's
 * cache, data/hub.h), or a single file of another format. Such a file is read as the
 * equivalent folder: config.json, tokenizer files, and tensors by name.
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

/* Whether `model` is an existing folder, or an existing file of a supported format. */
bool kg_source_is_model(const char *model);
/* Whether `model` is a file of a supported format, not a folder. */
bool kg_source_is_file(const char *model);

/* Appends a file of the model, such as "config.json". max_bytes limits files of folders.
 * errors: ENOTFOUND (no such file or folder), EINVAL (a single-file model is missing),
 * EIO, ENOMEM, EFORMAT (more than max_bytes); those of the format */
kg_status kg_source_read(struct kg_str *out, const char *model, const char *file,
                         uint64_t max_bytes, struct kg_err *err) KG_MUST_CHECK;
/* Reads a file of the model as JSON.   errors: of kg_source_read and kg_json_read */
kg_status kg_source_json(struct kg_json_doc *doc, const char *model, const char *file,
                         uint64_t max_bytes, struct kg_err *err) KG_MUST_CHECK;
/* kg_source_json; doc becomes {0} if the model has no such file. */
kg_status kg_source_json_or_none(struct kg_json_doc *doc, const char *model,
                                 const char *file, uint64_t max_bytes,
                                 struct kg_err *err) KG_MUST_CHECK;

/* The weights, mapped.   errors: those of kg_st_open_dir and of the format */
kg_status kg_source_tensors(struct kg_st_set **set, const char *model,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
