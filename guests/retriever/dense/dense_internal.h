/* What writing, opening and searching the vectors of an index share.
 *
 * A search is exact: the products of the queries, in fp32, with every passage's vector.
 * Memory is read once for up to KG_DENSE_QUERIES queries. It holds the fp16 of the file,
 * or half of that, a byte a number: then the few passages that may be among the best are
 * multiplied again by their fp16, and the answer is the same (dense.c). Where vectors are
 * near-equal many may be: up to 16 bytes a passage for each query of a pass. A product
 * does not depend on what stands beside it, so neither does an answer. A device may have
 * the vectors, the encoder and the products (dense_device.c): its products are the CPU's.
 */
#ifndef KG_RETRIEVER_DENSE_INTERNAL_H
#define KG_RETRIEVER_DENSE_INTERNAL_H

#include "retriever/encoder/encoder.h"
#include "retriever/vectors.h"
#include "search/dense.h"

enum {
    KG_DENSE_QUERIES = 64,      /* that share a pass */
    KG_DENSE_DIM_MAX = 1 << 22, /* a row of the table is what SQLite takes */
};
/* errors: EUNSUPPORTED (more passages than are searched one by one) */
kg_status kg_dense_check_count(int64_t passages, struct kg_err *err) KG_MUST_CHECK;
/* What that takes of a device's memory, in bytes: by the encoder's config.json, and
 * before anything is taken.   errors: those of kg_encoder_plan */
struct kg_dense_memory {
    uint64_t vectors;
    uint64_t encoder; /* its weights */
    uint64_t beside;  /* a pack of texts, questions, a block of scores */
    uint64_t most;    /* at one time: all that, or weights as they are read */
};
kg_status kg_dense_plan(struct kg_dense_memory *out, const char *model,
                        const struct kg_backend *be, enum kg_code code, int64_t n,
                        int32_t dim, struct kg_err *err) KG_MUST_CHECK;

enum { KG_DENSE_BLOCK = 4096 }; /* passages whose scores are there at once */

struct kg_dense {
    const char *path;               /* borrowed from the index */
    const struct kg_backend *host;  /* makes products that are the host's */
    struct kg_dense_device *device; /* owned; NULL: passes are the host's */
    struct kg_dense_memory planned; /* of it */
    struct kg_encoder *encoder;     /* the device's, where there is one */
    struct kg_codes codes; /* (n, D) owned: what a pass of the host reads, or no data */
    float *scale;          /* (n) owned, of bytes alone: x is about scale code */
    float *bound;          /* (n) owned, of bytes alone: see dense_open.c */
    int64_t n;
    int32_t dim;
};

/* ---- vectors that were made elsewhere (dense_given.c) ---- */
enum { KG_GIVEN_SAMPLE = 16 }; /* that are compared with what the encoder makes */
#define KG_GIVEN_COSINE 0.999  /* at least */
kg_status kg_given_open(struct kg_vectors *v, const char *path,
                        const struct kg_encoder_info *encoder,
                        struct kg_err *err) KG_MUST_CHECK;
/* out (n, D): vectors first..first + n, whose pages of the file are let go, finite and as
 * long as the encoder's.   errors: EFORMAT */
kg_status kg_given_take(float *out, const struct kg_vectors *v, const char *path,
                        const struct kg_encoder_info *encoder, int64_t first, int64_t n,
                        struct kg_err *err) KG_MUST_CHECK;
/* Whether this one is of the sample: the first, the last, and as far apart as can be. */
bool kg_given_sampled(const struct kg_vectors *v, int64_t row);
/* made (D): by the encoder; found (D): of the file.   errors: ECONFLICT */
kg_status kg_given_compare(const float *made, const float *found, int32_t dim,
                           const char *path, int64_t row,
                           struct kg_err *err) KG_MUST_CHECK;

/* ---- vectors on a device (dense_device.c) ---- */
/* One for all seekers of an index: the vectors, the encoder's pack, room for questions
 * and for scores. Threads take turns. */
struct kg_dense_device;             /* opaque */
enum { KG_DENSE_SCORES = 1 << 20 }; /* of a block, of all its questions together */
/* d: its encoder, which is the backend's, path, number, width and code
 * errors: ENOMEM */
kg_status kg_dense_device_open(struct kg_dense_device **v, const struct kg_backend *be,
                               const struct kg_dense *d,
                               struct kg_err *err) KG_MUST_CHECK;
void kg_dense_device_close(struct kg_dense_device *v); /* NULL allowed */
/* Vectors first.. <- all of a block; first: a multiple of KG_PANEL */
kg_status kg_dense_device_put(struct kg_dense_device *v, int64_t first,
                              const struct kg_codes *block,
                              struct kg_err *err) KG_MUST_CHECK;
/* Room of the host's for a block of scores.
 * returns owned pointer, or NULL with err set   errors: ENOMEM */
float *kg_dense_device_pin(struct kg_dense_device *v, struct kg_err *err) KG_MUST_CHECK;
void kg_dense_device_unpin(struct kg_dense_device *v, float *scores); /* NULL allowed */
/* As kg_embed, of queries. */
kg_status kg_dense_device_embed(float *out, struct kg_dense_device *v,
                                const struct kg_text *texts, size_t n,
                                struct kg_err *err) KG_MUST_CHECK;
/* Passages of a block of so many queries, a multiple of KG_PANEL; no score depends on
 * it. */
int64_t kg_dense_device_passages(const struct kg_dense_device *v, int64_t queries);
void kg_dense_device_limit(struct kg_dense_device *v, int64_t scores); /* for tests */
/* scores (Q, n) out, as kg_op_scan's: the host's, of passages first..first + n
 * queries (Q, D): the host's */
kg_status kg_dense_device_scan(struct kg_mat scores, struct kg_dense_device *v,
                               struct kg_mat queries, int64_t first,
                               struct kg_err *err) KG_MUST_CHECK;

/* ---- opening ---- */
/* Whether so many vectors fit into a machine's memory (0: nobody knows), as this code.
 * errors: ENOMEM; EUNSUPPORTED (more passages than are searched) */
kg_status kg_dense_check_memory(const struct kg_dense *d, uint64_t machine,
                                struct kg_err *err) KG_MUST_CHECK;

/* Whether what is planned fits into what is free of a device's memory; the log says how
 * much that is.   errors: ENOMEM, EUNSUPPORTED */
kg_status kg_dense_check_device(const struct kg_dense *d, const struct kg_backend *be,
                                struct kg_err *err) KG_MUST_CHECK;

/* codes (dim), *scale, *bound of a vector in fp16, all numbers */
void kg_dense_shrink(int8_t *codes, float *scale, float *bound, const uint16_t *halves,
                     int32_t dim);
/* The vectors of a row of the table, borrowed from `get`, which stands at it.
 * errors: EFORMAT */
kg_status kg_dense_chunk(const uint16_t **halves, int64_t *n, const struct kg_dense *d,
                         sqlite3_stmt *get, struct kg_err *err) KG_MUST_CHECK;

#endif
