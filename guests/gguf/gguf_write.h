/* Writes GGUF files: values, tensors, and a model's config and tokenizer as values.
 * data/gguf.h describes the format.
 */
#ifndef KG_GGUF_GGUF_WRITE_H
#define KG_GGUF_GGUF_WRITE_H

#include "data/gguf_model.h"

/* To write a GGUF file, put the values, declare the tensors, begin, then put the tensors'
 * bytes in the order of their declarations, padding after each, and end.
 */
struct kg_gguf_writer {
    struct kg_str values, tensors; /* owned: bytes of the file */
    uint64_t n_values, n_tensors;
    uint64_t end; /* bytes of the data declared so far, padded */
    struct kg_file_writer file;
    bool open;
};

kg_status kg_gguf_put_int(struct kg_gguf_writer *w, const char *key, int64_t x,
                          struct kg_err *err) KG_MUST_CHECK; /* as U32 */
kg_status kg_gguf_put_real(struct kg_gguf_writer *w, const char *key, double x,
                           struct kg_err *err) KG_MUST_CHECK; /* as F32 */
kg_status kg_gguf_put_bool(struct kg_gguf_writer *w, const char *key, bool x,
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_put_text(struct kg_gguf_writer *w, const char *key, const char *text,
                           size_t n, struct kg_err *err) KG_MUST_CHECK;
/* Begins an array; the next three functions put its n items. */
kg_status kg_gguf_put_array(struct kg_gguf_writer *w, const char *key,
                            enum kg_gguf_type of, uint64_t n,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_item_int(struct kg_gguf_writer *w, int32_t x,
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_item_real(struct kg_gguf_writer *w, float x,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_item_text(struct kg_gguf_writer *w, const char *text, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;
/* Puts a value of another file, unchanged. */
kg_status kg_gguf_put_value(struct kg_gguf_writer *w, const struct kg_gguf_value *v,
                            struct kg_err *err) KG_MUST_CHECK;

/* shape: outermost first; rows are whole blocks of the type */
kg_status kg_gguf_declare(struct kg_gguf_writer *w, const char *name, int n_dims,
                          const int64_t *shape, const struct kg_quant *type,
                          struct kg_err *err) KG_MUST_CHECK;
/* errors: EIO, ENOMEM */
kg_status kg_gguf_begin(struct kg_gguf_writer *w, const char *path,
                        struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_put(struct kg_gguf_writer *w, const void *bytes, size_t n,
                      struct kg_err *err) KG_MUST_CHECK;
/* Pads to the alignment. Call it after the last byte of each tensor. */
kg_status kg_gguf_pad(struct kg_gguf_writer *w, struct kg_err *err) KG_MUST_CHECK;
/* Syncs and closes. */
kg_status kg_gguf_end(struct kg_gguf_writer *w, struct kg_err *err) KG_MUST_CHECK;
/* Required after kg_gguf_end, too. Without kg_gguf_end, removes the unfinished file. */
void kg_gguf_writer_release(struct kg_gguf_writer *w);

/* Writes the fields of config.json as metadata. It omits what GGUF cannot express; the
 * caller reads the file again and compares. */
kg_status kg_gguf_put_config(struct kg_gguf_writer *w, const struct kg_gguf_arch *arch,
                             const struct kg_json *config, int64_t head_dim,
                             struct kg_err *err) KG_MUST_CHECK;
/* Writes tokenizer and chat template of a model. rows: number of rows of its embeddings;
 * *none: set to true if GGUF has no form for the tokenizer, so that none was written
 * errors: EUNSUPPORTED (a part of tokenizer.json without a name in GGUF) */
kg_status kg_gguf_put_tokenizer(struct kg_gguf_writer *w, const char *model, size_t rows,
                                bool *none, struct kg_err *err) KG_MUST_CHECK;

#endif
