/* Writing a GGUF file: put the values, declare the tensors, begin, then put the tensors'
 * bytes in the order in which they were declared.
 */
#ifndef KG_DATA_GGUF_WRITE_H
#define KG_DATA_GGUF_WRITE_H

#include "base/str.h"
#include "data/gguf.h"
#include "data/json.h"

struct kg_gguf_writer {
    struct kg_str values, tensors; /* owned: as the file has them */
    uint64_t n_values, n_tensors;
    uint64_t end; /* of the data declared */
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
/* An array, whose n items follow by the next three. */
kg_status kg_gguf_put_array(struct kg_gguf_writer *w, const char *key,
                            enum kg_gguf_type of, uint64_t n,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_item_int(struct kg_gguf_writer *w, int32_t x,
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_item_real(struct kg_gguf_writer *w, float x,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_item_text(struct kg_gguf_writer *w, const char *text, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;
/* A value of another file, as it is. */
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
/* After the last byte of a tensor. */
kg_status kg_gguf_pad(struct kg_gguf_writer *w, struct kg_err *err) KG_MUST_CHECK;
/* Syncs and closes. */
kg_status kg_gguf_end(struct kg_gguf_writer *w, struct kg_err *err) KG_MUST_CHECK;
/* Also after _end; a file that was not ended is removed. */
void kg_gguf_writer_release(struct kg_gguf_writer *w);

#endif
