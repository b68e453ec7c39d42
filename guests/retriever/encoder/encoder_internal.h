/* Shared by opening, loading and embedding: the settings of a folder, its weights. */
#ifndef KG_RETRIEVER_ENCODER_INTERNAL_H
#define KG_RETRIEVER_ENCODER_INTERNAL_H

#include "retriever/encoder/encoder.h"
#include "text/tokenizer.h"

/* A family of models: a row of the table in config.c, by model_type. */
struct kg_encoder_row {
    const char *model_type;
    const char *prefix; /* optional prefix of tensor names */
    const char *help;
    bool behind_padding; /* positions start at pad_token_id + 1, not at 0 */
};

struct kg_encoder_config {
    const struct kg_encoder_row *row;
    int32_t dim;    /* D */
    int32_t layers; /* L */
    int32_t heads;  /* H */
    int32_t ffn;    /* F */
    int32_t vocab;  /* V */
    int32_t rows;   /* P, rows of the position table */
    int32_t types;  /* T, number of token types */
    int32_t first;  /* position of the first token */
    float eps;      /* of layer norms */
};

/* Settings besides config.json: how a text becomes a vector. */
struct kg_encoder_settings {
    enum kg_pooling pooling;
    bool normalised;
    int32_t max_tokens;
    char *query_prefix;   /* owned */
    char *passage_prefix; /* owned */
};

struct kg_encoder_norm {
    struct kg_vec w, b; /* (D) */
};
struct kg_encoder_linear {
    struct kg_mat w; /* (out, in), in the layout of products */
    struct kg_vec b; /* (out) */
};
struct kg_encoder_layer {
    struct kg_encoder_linear q, k, v, o; /* (D,D) */
    struct kg_encoder_norm norm1;
    struct kg_encoder_linear up;   /* (F,D) */
    struct kg_encoder_linear down; /* (D,F) */
    struct kg_encoder_norm norm2;
};

struct kg_encoder {
    const struct kg_backend *backend;
    struct kg_encoder_config config;
    struct kg_encoder_settings settings;
    char *dir; /* owned */
    struct kg_tokenizer *tok;
    size_t ends;             /* special tokens after a text */
    void *memory;            /* owned, backend memory of all arrays below */
    struct kg_mat words;     /* (V,D) */
    struct kg_mat positions; /* (P,D) */
    struct kg_vec type;      /* (D) row 0 of the types */
    struct kg_encoder_norm norm;
    struct kg_encoder_layer *layers; /* (L) owned */
    uint64_t hash;
};

/* config.c.   errors: those of kg_encoder_open */
kg_status kg_encoder_config_read(struct kg_encoder_config *c, const char *dir,
                                 struct kg_err *err) KG_MUST_CHECK;
void kg_encoder_config_of(struct kg_encoder_config *c, const struct kg_encoder_shape *s);
/* settings.c; released by kg_encoder_settings_release, {0} is allowed */
kg_status kg_encoder_settings_read(struct kg_encoder_settings *s, const char *dir,
                                   const struct kg_encoder_config *c,
                                   const struct kg_encoder_opts *opts,
                                   struct kg_err *err) KG_MUST_CHECK;
void kg_encoder_settings_release(struct kg_encoder_settings *s);
/* weights.c: memory, tables, layers, and the hash of all tensors */
kg_status kg_encoder_weights_read(struct kg_encoder *e, struct kg_err *err) KG_MUST_CHECK;
/* Like kg_encoder_weights_read, but draws random weights and computes no hash. */
kg_status kg_encoder_weights_draw(struct kg_encoder *e, struct kg_err *err) KG_MUST_CHECK;
/* Backend memory of the weights, before anything is read. */
uint64_t kg_encoder_weights_bytes(const struct kg_backend *be,
                                  const struct kg_encoder_config *c);
/* Additional memory while loading: a copy of the largest tensor. */
uint64_t kg_encoder_staged_bytes(const struct kg_encoder_config *c);
/* embed.c: backend memory of an embedder for texts of up to max_tokens. */
uint64_t kg_encoder_pack_bytes(const struct kg_encoder_config *c, int32_t max_tokens);

#endif
