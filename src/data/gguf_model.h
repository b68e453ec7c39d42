/* A GGUF file as the folder that HuggingFace's libraries would have written: config.json,
 * tokenizer files and tensors by transformers' names (rows of data/source.c).
 *
 * Metadata about the model becomes fields of config.json. A key that no table has becomes
 * a field with its own name, so the rules for unknown fields hold for it too: refused if
 * it can bear on the mathematics, else named in a warning.
 */
#ifndef KG_DATA_GGUF_MODEL_H
#define KG_DATA_GGUF_MODEL_H

#include "base/str.h"
#include "data/gguf.h"
#include "data/json.h"
#include "data/safetensors.h"

/* Writing a GGUF file: put the values, declare the tensors, begin, then put the tensors'
 * bytes in the order in which they were declared.
 */
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
/* A value of another file, unchanged. */
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
/* Required after kg_gguf_end, too. Without kg_gguf_end it removes the file. */
void kg_gguf_writer_release(struct kg_gguf_writer *w);

/* Append a file of the folder.   errors: NOTFOUND (no such file), those of kg_gguf_open,
 * UNSUPPORTED (an architecture, tokenizer or pre-tokenizer that is not known) */
kg_status kg_gguf_read(struct kg_str *out, const char *path, const char *file,
                       struct kg_err *err) KG_MUST_CHECK;
/* The tensors over the file's map. Rows that llama.cpp has in another order, and norms
 * that it has with 1 added, are marked (kg_st_tensor); experts are tensors of their own.
 */
kg_status kg_gguf_tensors(struct kg_st_set **set, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;

/* ---- shared by the files of this module ---- */

enum kg_gguf_flag {
    KG_GGUF_PAIRED = 1 << 0,  /* rows of q and k: rotary pairs adjacent */
    KG_GGUF_NORM_1 = 1 << 1,  /* norms with 1 added */
    KG_GGUF_EXPERTS = 1 << 2, /* the one for experts, of two rows with this name */
    KG_GGUF_OUT = 1 << 3,     /* only for writing; read by another row */
};
struct kg_gguf_arch {
    const char *name; /* general.architecture */
    const char *model_type;
    const char *class_name;
    uint32_t flags; /* of enum kg_gguf_flag */
};
/* errors: UNSUPPORTED, lists the known names */
kg_status kg_gguf_find_arch(const struct kg_gguf_arch **arch, const struct kg_gguf *g,
                            struct kg_err *err) KG_MUST_CHECK;
/* The value of "ARCHITECTURE.key", or NULL. */
const struct kg_gguf_value *kg_gguf_of(const struct kg_gguf *g,
                                       const struct kg_gguf_arch *arch, const char *key);
/* Values of a head of queries and keys. */
int64_t kg_gguf_head_dim(const struct kg_gguf *g, const struct kg_gguf_arch *arch);
/* Whether a list of names, "gemma2 gemma3", contains this one; NULL: always. */
bool kg_gguf_names(const char *names, const char *name);

kg_status kg_gguf_config(struct kg_str *out, const struct kg_gguf *g,
                         struct kg_err *err) KG_MUST_CHECK;
/* errors: NOTFOUND (a tokenizer of the other format, or none), UNSUPPORTED, EFORMAT */
kg_status kg_gguf_tokenizer_json(struct kg_str *out, const struct kg_gguf *g,
                                 struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_tokenizer_model(struct kg_str *out, const struct kg_gguf *g,
                                  struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_tokenizer_config(struct kg_str *out, const struct kg_gguf *g,
                                   struct kg_err *err) KG_MUST_CHECK;

/* ---- writing ---- */

/* errors: UNSUPPORTED (GGUF has no such architecture) */
kg_status kg_gguf_arch_of(const struct kg_gguf_arch **arch, const char *model_type,
                          struct kg_err *err) KG_MUST_CHECK;
/* Writes the fields of config.json as metadata. It omits what GGUF cannot express; the
 * caller reads the file again and compares. */
kg_status kg_gguf_put_config(struct kg_gguf_writer *w, const struct kg_gguf_arch *arch,
                             const struct kg_json *config, int64_t head_dim,
                             struct kg_err *err) KG_MUST_CHECK;
/* Divisors of the rope's frequencies: llama3's (0), longrope's for long (1) and for short
 * sequences (2).   to (pairs)   returns pairs, or 0 if there is no such tensor */
int64_t kg_gguf_rope_factors(float *to, int which, const struct kg_json *config,
                             int64_t pairs);
extern const char *const kg_gguf_rope_names[3];
/* A tensor's name in GGUF, where all experts of a layer are one tensor.
 * errors: UNSUPPORTED (no row has it) */
kg_status kg_gguf_name_of(char to[KG_GGUF_NAME + 1], const char *name,
                          const struct kg_gguf_arch *arch,
                          struct kg_err *err) KG_MUST_CHECK;
/* Tokenizer and chat template of a model.   rows: of its embeddings   *none: no tokenizer
 * was written, because GGUF has no form for it
 * errors: UNSUPPORTED (a part of tokenizer.json without a name in GGUF) */
kg_status kg_gguf_put_tokenizer(struct kg_gguf_writer *w, const char *model, size_t rows,
                                bool *none, struct kg_err *err) KG_MUST_CHECK;
/* llama.cpp's name (n bytes) for the pre-tokenizer of a tokenizer.json with byte-level
 * BPE. errors: UNSUPPORTED */
kg_status kg_gguf_pre_of(const char **pre, size_t *n, const struct kg_json *tokenizer,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
