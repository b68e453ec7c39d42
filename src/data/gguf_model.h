/* A GGUF file as the folder that HuggingFace's libraries would have written: config.json,
 * tokenizer files and tensors by transformers' names (rows of data/source.c).
 *
 * What the metadata says about the model becomes a field of config.json; a key that no
 * table has becomes a field of its own name, so that the rules for unknown fields hold
 * for it too: refused where it can bear on the mathematics, else named in a warning.
 */
#ifndef KG_DATA_GGUF_MODEL_H
#define KG_DATA_GGUF_MODEL_H

#include "base/str.h"
#include "data/gguf.h"
#include "data/safetensors.h"

/* Append a file of the folder.   errors: NOTFOUND (no such file), those of kg_gguf_open,
 * UNSUPPORTED (an architecture, tokenizer or pre-tokenizer that is not known) */
kg_status kg_gguf_read(struct kg_str *out, const char *path, const char *file,
                       struct kg_err *err) KG_MUST_CHECK;
/* The tensors over the file's map. Rows that llama.cpp has in another order, and norms
 * that it has with 1 added, are marked (kg_st_tensor); experts are tensors of their own.
 */
kg_status kg_gguf_tensors(struct kg_st_set **set, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;

/* ---- what the files of this module share ---- */

enum kg_gguf_flag {
    KG_GGUF_PAIRED = 1 << 0,  /* rows of queries and keys: the two of a pair together */
    KG_GGUF_NORM_1 = 1 << 1,  /* norms with 1 added */
    KG_GGUF_EXPERTS = 1 << 2, /* of those of this name the one with experts */
    KG_GGUF_OUT = 1 << 3,     /* written under a name that is read as another row */
};
struct kg_gguf_arch {
    const char *name; /* general.architecture */
    const char *model_type;
    const char *class_name;
    uint32_t flags; /* of enum kg_gguf_flag */
};
/* errors: UNSUPPORTED, with the names that are known */
kg_status kg_gguf_find_arch(const struct kg_gguf_arch **arch, const struct kg_gguf *g,
                            struct kg_err *err) KG_MUST_CHECK;
/* The value of "ARCHITECTURE.key", or NULL. */
const struct kg_gguf_value *kg_gguf_of(const struct kg_gguf *g,
                                       const struct kg_gguf_arch *arch, const char *key);
/* Values of a head of queries and keys. */
int64_t kg_gguf_head_dim(const struct kg_gguf *g, const struct kg_gguf_arch *arch);
/* Whether a list of names, "gemma2 gemma3", has this one; NULL has all. */
bool kg_gguf_names(const char *names, const char *name);

kg_status kg_gguf_config(struct kg_str *out, const struct kg_gguf *g,
                         struct kg_err *err) KG_MUST_CHECK;
/* errors: NOTFOUND (the other of the two, or no tokenizer), UNSUPPORTED, EFORMAT */
kg_status kg_gguf_tokenizer_json(struct kg_str *out, const struct kg_gguf *g,
                                 struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_tokenizer_model(struct kg_str *out, const struct kg_gguf *g,
                                  struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_tokenizer_config(struct kg_str *out, const struct kg_gguf *g,
                                   struct kg_err *err) KG_MUST_CHECK;

#endif
