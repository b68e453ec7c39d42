/* Encoders turn texts into vectors: BERT-like models (E5, MiniLM, BGE) from HuggingFace
 * folders, with the results of sentence-transformers.
 *
 *   x = LN(word[token] + position[place] + type[0])
 *   each layer   x = LN(x + attention(x) Wo + bo),   x = LN(x + gelu(x W1 + b1) W2 + b2)
 *   vector = mean of x over the text's tokens, or x of the first one; scaled to length 1
 *
 * All linear layers have biases, attention is bidirectional, GELU uses erf, and
 * everything is in fp32. Texts are concatenated without padding, and a row of an
 * operation depends only on its own sequence (tensor/backend.h). So a text's vector has
 * the same bits in every batch and with any number of threads. Encoders are not trained.
 */
#ifndef KG_RETRIEVER_ENCODER_H
#define KG_RETRIEVER_ENCODER_H

#include "base/str.h"
#include "search/dense.h"
#include "tensor/backend.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kg_pooling { KG_POOLING_MEAN, KG_POOLING_CLS, KG_POOLINGS };
extern const char *const kg_pooling_names[KG_POOLINGS + 1]; /* ends with NULL */

/* Role of a text: some models were trained with a prefix for each. */
enum kg_text_side { KG_TEXT_PLAIN, KG_TEXT_QUERY, KG_TEXT_PASSAGE };

/* {0}: all settings are read from the folder. */
struct kg_encoder_opts {
    const struct kg_backend *backend; /* NULL: the CPU */
    const char *pooling;              /* mean or cls; NULL: 1_Pooling's */
    /* most tokens of a text, special ones included; longer texts are truncated. 0:
     * max_seq_length of sentence_bert_config.json, or all positions */
    int32_t max_tokens;
    /* NULL: prompts of config_sentence_transformers.json, or none */
    const char *query_prefix;
    const char *passage_prefix;
};

struct kg_encoder; /* opaque; immutable, shared by embedders of all threads */
/* Close its embedders first; NULL allowed. */
void kg_encoder_close(struct kg_encoder *e);

/* errors: ENOTFOUND (folder, tensor), EUNSUPPORTED (a decoder, another pooling or
 * activation, another module; a backend without the operations), EINVAL (no pooling in
 * folder or options; max_tokens), EFORMAT, ESHAPE */
kg_status kg_encoder_open(struct kg_encoder **e, const char *dir,
                          const struct kg_encoder_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;
/* A BERT with random weights and no tokenizer, for benchmarks (kg_embed_ids). Mean
 * pooling, length 1.   errors: ENOMEM, those of the backend */
struct kg_encoder_shape {
    int32_t dim, ffn, layers, heads, vocab;
    int32_t max_tokens;
};
kg_status kg_encoder_create(struct kg_encoder **e, const struct kg_encoder_shape *shape,
                            struct kg_err *err) KG_MUST_CHECK;
struct kg_encoder_info {
    const char *model_type; /* "bert"; static */
    int32_t dim;            /* D, of a vector */
    int32_t layers, heads, max_tokens;
    enum kg_pooling pooling;
    bool normalised;            /* vectors have length 1 */
    const char *query_prefix;   /* borrowed from the encoder; "" for none */
    const char *passage_prefix; /* the same */
    /* covers weights, tokenizer and all fields above: encoders with equal hashes give
     * equal vectors */
    uint64_t hash;
};
void kg_encoder_info(struct kg_encoder_info *out, const struct kg_encoder *e);

/* Backend memory of a folder's encoder, from its config.json and before any allocation.
 * errors: those of its config.json */
struct kg_encoder_memory {
    uint64_t weights;
    uint64_t staged; /* additional while loading */
    uint64_t pack;   /* per embedder */
};
kg_status kg_encoder_plan(struct kg_encoder_memory *out, const char *dir,
                          const struct kg_backend *be, struct kg_err *err) KG_MUST_CHECK;

struct kg_embedder; /* opaque: work memory of one thread */
kg_status kg_embedder_open(struct kg_embedder **m, const struct kg_encoder *e,
                           struct kg_err *err) KG_MUST_CHECK;
void kg_embedder_close(struct kg_embedder *m); /* NULL allowed */
/* out (n, D) fp32.   errors: EFORMAT (not UTF-8, no token), ENONFINITE, each with the
 * number of the text from 0; ENOMEM */
kg_status kg_embed(float *out, struct kg_embedder *m, const struct kg_text *texts,
                   size_t n, enum kg_text_side side, struct kg_err *err) KG_MUST_CHECK;
/* kg_embed for texts given as tokens, special ones included: ids holds n texts one after
 * another, text i with lengths[i] tokens (1 to max_tokens).   errors: ENONFINITE,
 * ENOMEM */
kg_status kg_embed_ids(float *out, struct kg_embedder *m, const int32_t *ids,
                       const int32_t *lengths, size_t n,
                       struct kg_err *err) KG_MUST_CHECK;

#endif
