/* A checkpoint as a GGUF file, for llama.cpp and programs built on it.
 */
#ifndef KG_GGUF_EXPORT_H
#define KG_GGUF_EXPORT_H

#include "base/option.h"
#include "base/status.h"

#define KG_EXPORT_TYPES "f32|f16|bf16|q8_0|q4_0|q4_k|q6_k"

struct kg_export_opts {
    const char *adapter; /* PEFT folder, exported instead of the model; or NULL */
    const char *type;    /* type of matrices, one of KG_EXPORT_TYPES. NULL: as stored */
    struct kg_opt_list ignore;
};

/* Writes a model's folder or GGUF file as GGUF to path; with an adapter, writes only the
 * adapter, which llama.cpp loads with the model's GGUF file. Norms and biases are fp32.
 * Matrices whose rows are not whole blocks of the type become Q8_0, or F16, with a
 * warning. path appears complete or not at all.
 * errors: those of opening; EUNSUPPORTED (names an architecture, field or pre_tokenizer
 * that GGUF cannot express); ENONFINITE; EIO, ENOSPACE; EINTERRUPTED (by a signal) */
kg_status kg_model_export(const char *model, const char *path,
                          const struct kg_export_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
