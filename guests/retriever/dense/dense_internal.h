/* Shared by writing, opening and searching the vectors of an index. */
#ifndef KG_RETRIEVER_DENSE_INTERNAL_H
#define KG_RETRIEVER_DENSE_INTERNAL_H

#include "retriever/build.h"
#include "retriever/encoder/encoder.h"
#include "retriever/vectors.h"
#include "search/dense.h"

enum {
    KG_DENSE_QUERIES = 64,      /* queries that share a pass */
    KG_DENSE_DIM_MAX = 1 << 22, /* SQLite limits a row of the table */
};
/* errors: EUNSUPPORTED (above KG_DENSE_PASSAGES_MAX) */
kg_status kg_dense_check_count(int64_t passages, struct kg_err *err) KG_MUST_CHECK;
/* Bytes of device memory for a search, from the encoder's config.json and before any
 * allocation.   errors: those of kg_encoder_plan */
struct kg_dense_memory {
    uint64_t vectors;
    uint64_t encoder; /* its weights */
    uint64_t beside;  /* a pack of texts, vectors of queries, a block of scores */
    uint64_t most;    /* peak: the sum of these, or more while weights are loaded */
};
kg_status kg_dense_plan(struct kg_dense_memory *out, const char *model,
                        const struct kg_backend *be, enum kg_code code, int64_t n,
                        int32_t dim, struct kg_err *err) KG_MUST_CHECK;

enum { KG_DENSE_BLOCK = 4096 }; /* passages scored at a time */

struct kg_dense {
    const char *path;               /* borrowed from the index */
    const struct kg_backend *host;  /* computes products on the host */
    struct kg_dense_device *device; /* owned; NULL: passes run on the host */
    struct kg_dense_memory planned; /* of the device */
    struct kg_encoder *encoder;     /* on the device, if there is one */
    struct kg_codes codes; /* (n, D) owned: vectors for passes on the host, or empty */
    float *scale;          /* (n) owned, int8 only: x is about scale * code */
    float *bound;          /* (n) owned, int8 only: see dense_open.c */
    int64_t n;
    int32_t dim;
};

/* ---- vectors made elsewhere (dense_given.c) ---- */
enum { KG_GIVEN_SAMPLE = 16 }; /* number of vectors recomputed and compared */
#define KG_GIVEN_COSINE 0.999  /* least cosine of the two */
kg_status kg_given_open(struct kg_vectors *v, const char *path,
                        const struct kg_encoder_info *encoder,
                        struct kg_err *err) KG_MUST_CHECK;
/* out (n, D): vectors first .. first + n - 1, checked to be finite and of the encoder's
 * length; their pages are dropped from memory.   errors: EFORMAT */
kg_status kg_given_take(float *out, const struct kg_vectors *v, const char *path,
                        const struct kg_encoder_info *encoder, int64_t first, int64_t n,
                        struct kg_err *err) KG_MUST_CHECK;
/* Whether this row is in the sample: the first, the last, and evenly spaced ones. */
bool kg_given_sampled(const struct kg_vectors *v, int64_t row);
/* Compares made (D), by the encoder, with found (D), in the file.   errors: ECONFLICT */
kg_status kg_given_compare(const float *made, const float *found, int32_t dim,
                           const char *path, int64_t row,
                           struct kg_err *err) KG_MUST_CHECK;

/* ---- vectors on a device (dense_device.c) ---- */
/* Shared by all seekers of an index: vectors, the encoder's pack, buffers for vectors of
 * queries and for scores. Threads take turns. */
struct kg_dense_device;             /* opaque */
enum { KG_DENSE_SCORES = 1 << 20 }; /* scores per block, of all its queries */
/* d: only path, encoder (on the backend), codes' type, n and dim are read
 * errors: ENOMEM */
kg_status kg_dense_device_open(struct kg_dense_device **v, const struct kg_backend *be,
                               const struct kg_dense *d,
                               struct kg_err *err) KG_MUST_CHECK;
void kg_dense_device_close(struct kg_dense_device *v); /* NULL allowed */
/* Stores a block as vectors `first` and later; first: a multiple of KG_PANEL */
kg_status kg_dense_device_put(struct kg_dense_device *v, int64_t first,
                              const struct kg_codes *block,
                              struct kg_err *err) KG_MUST_CHECK;
/* Host memory for a block of scores.
 * returns owned pointer, or NULL with err set.   errors: ENOMEM */
float *kg_dense_device_pin(struct kg_dense_device *v, struct kg_err *err) KG_MUST_CHECK;
void kg_dense_device_unpin(struct kg_dense_device *v, float *scores); /* NULL allowed */
/* Does the same as kg_embed for queries. */
kg_status kg_dense_device_embed(float *out, struct kg_dense_device *v,
                                const struct kg_text *texts, size_t n,
                                struct kg_err *err) KG_MUST_CHECK;
/* Passages per block for this many queries, a multiple of KG_PANEL; does not affect
 * scores. */
int64_t kg_dense_device_passages(const struct kg_dense_device *v, int64_t queries);
void kg_dense_device_limit(struct kg_dense_device *v, int64_t scores); /* for tests */
/* scores (Q, n) out, as in kg_op_scan, for passages first .. first + n - 1; queries (Q,
 * D). Both are on the host. */
kg_status kg_dense_device_scan(struct kg_mat scores, struct kg_dense_device *v,
                               struct kg_mat queries, int64_t first,
                               struct kg_err *err) KG_MUST_CHECK;

/* ---- opening ---- */
/* Checks that the vectors, in this code, fit into a machine's memory (0: unknown).
 * errors: ENOMEM; EUNSUPPORTED (too many passages) */
kg_status kg_dense_check_memory(const struct kg_dense *d, uint64_t machine,
                                struct kg_err *err) KG_MUST_CHECK;

/* Checks that the planned memory is free on the device, and logs it.   errors: ENOMEM,
 * EUNSUPPORTED */
kg_status kg_dense_check_device(const struct kg_dense *d, const struct kg_backend *be,
                                struct kg_err *err) KG_MUST_CHECK;

/* codes (dim), *scale and *bound out, for a finite fp16 vector, halves (dim). */
void kg_dense_shrink(int8_t *codes, float *scale, float *bound, const uint16_t *halves,
                     int32_t dim);
/* *halves (*n, dim) out: the vectors of the current row of `get`, borrowed from `get`.
 * errors: EFORMAT */
kg_status kg_dense_chunk(const uint16_t **halves, int64_t *n, const struct kg_dense *d,
                         sqlite3_stmt *get, struct kg_err *err) KG_MUST_CHECK;

#endif
