/* A GGUF file as the folder that HuggingFace's libraries would have written: config.json,
 * tokenizer files and tensors by transformers' names. data/source.c calls this.
 *
 * Metadata about the model becomes fields of config.json. A key without a row in a table
 * becomes a field of the same name. So it is treated like any unknown field: refused if
 * it may affect the mathematics, else named in a warning.
 */
#ifndef KG_DATA_GGUF_MODEL_H
#define KG_DATA_GGUF_MODEL_H

#include "base/str.h"
#include "data/gguf.h"
#include "data/json.h"
#include "data/safetensors.h"

/* Appends a file of the folder.   errors: those of kg_gguf_open, ENOTFOUND (no such
 * file), EUNSUPPORTED (an unknown architecture, tokenizer or pre-tokenizer) */
kg_status kg_gguf_read(struct kg_str *out, const char *path, const char *file,
                       struct kg_err *err) KG_MUST_CHECK;
/* The tensors over the file's map. Rows that llama.cpp stores in another order, and norms
 * that it stores with 1 added, are marked (kg_st_tensor). Each expert has its own tensor.
 */
kg_status kg_gguf_tensors(struct kg_st_set **set, const char *path,
                          struct kg_err *err) KG_MUST_CHECK;

/* ---- shared by the files of this module ---- */

enum kg_gguf_flag {
    KG_GGUF_PAIRED = 1 << 0,  /* rows of q and k: rotary pairs adjacent */
    KG_GGUF_NORM_1 = 1 << 1,  /* norms with 1 added */
    KG_GGUF_EXPERTS = 1 << 2, /* two rows have this name: this one is for experts */
    KG_GGUF_OUT = 1 << 3,     /* only for writing; another row is for reading */
};
struct kg_gguf_arch {
    const char *name; /* general.architecture */
    const char *model_type;
    const char *class_name;
    uint32_t flags; /* of enum kg_gguf_flag */
};
/* errors: EUNSUPPORTED, lists the known names */
kg_status kg_gguf_find_arch(const struct kg_gguf_arch **arch, const struct kg_gguf *g,
                            struct kg_err *err) KG_MUST_CHECK;
/* The value of "ARCHITECTURE.key", or NULL. */
const struct kg_gguf_value *kg_gguf_of(const struct kg_gguf *g,
                                       const struct kg_gguf_arch *arch, const char *key);
/* Dimension of a head of queries and keys. */
int64_t kg_gguf_head_dim(const struct kg_gguf *g, const struct kg_gguf_arch *arch);
/* Whether a list of names, "gemma2 gemma3", contains this one; NULL: always. */
bool kg_gguf_names(const char *names, const char *name);

kg_status kg_gguf_config(struct kg_str *out, const struct kg_gguf *g,
                         struct kg_err *err) KG_MUST_CHECK;
/* errors: ENOTFOUND (a tokenizer of the other format, or none), EUNSUPPORTED, EFORMAT */
kg_status kg_gguf_tokenizer_json(struct kg_str *out, const struct kg_gguf *g,
                                 struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_tokenizer_model(struct kg_str *out, const struct kg_gguf *g,
                                  struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gguf_tokenizer_config(struct kg_str *out, const struct kg_gguf *g,
                                   struct kg_err *err) KG_MUST_CHECK;

/* ---- writing GGUF, for guests/gguf ---- */

/* A key of metadata that is a field of config.json. */
struct kg_gguf_key {
    const char *key; /* after the architecture's name */
    const char *field;
    const char *archs; /* GGUF's names of architectures, "gemma2 gemma3"; NULL: all */
    bool real;         /* a float, else an integer */
};
extern const struct kg_gguf_key kg_gguf_keys[]; /* ended by NULL */
/* The attention factor of a longrope model whose config has none. */
double kg_gguf_usual_attention(double positions, double original);

/* errors: EUNSUPPORTED (kedge writes no such architecture) */
kg_status kg_gguf_arch_of(const struct kg_gguf_arch **arch, const char *model_type,
                          struct kg_err *err) KG_MUST_CHECK;
/* Divisors of the rope's frequencies. which: 0 llama3's, 1 longrope's for long sequences,
 * 2 longrope's for short ones.   to (pairs)   returns pairs, or 0 if config has none */
int64_t kg_gguf_rope_factors(float *to, int which, const struct kg_json *config,
                             int64_t pairs);
extern const char *const kg_gguf_rope_names[3];
/* A tensor's name in GGUF, where all experts of a layer are one tensor.
 * errors: EUNSUPPORTED (no row has it) */
kg_status kg_gguf_name_of(char to[KG_GGUF_NAME + 1], const char *name,
                          const struct kg_gguf_arch *arch,
                          struct kg_err *err) KG_MUST_CHECK;
/* llama.cpp's name (n bytes) for the pre-tokenizer of a tokenizer.json with byte-level
 * BPE.   errors: EUNSUPPORTED */
kg_status kg_gguf_pre_of(const char **pre, size_t *n, const struct kg_json *tokenizer,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
