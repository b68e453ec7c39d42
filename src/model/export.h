/* A checkpoint as a GGUF file, for llama.cpp and what is built on it.
 */
#ifndef KG_MODEL_EXPORT_H
#define KG_MODEL_EXPORT_H

#include "base/option.h"
#include "base/status.h"

#define KG_EXPORT_TYPES "f32|f16|bf16|q8_0|q4_0"

/* Writes path from a model's folder or GGUF file. Matrices become `type`, one of
 * KG_EXPORT_TYPES, or stay in the type of their file (NULL); norms and biases are fp32.
 * path appears complete or not at all.
 * errors: those of opening; UNSUPPORTED (an architecture, a field or a pre_tokenizer that
 * GGUF cannot express, by name); EIO, ENOSPACE */
kg_status kg_model_export(const char *model, const char *path, const char *type,
                          const struct kg_opt_list *ignore,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
