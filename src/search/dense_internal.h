/* What writing, opening and searching the vectors of an index share. */
#ifndef KG_SEARCH_DENSE_INTERNAL_H
#define KG_SEARCH_DENSE_INTERNAL_H

#include "data/vectors.h"
#include "search/dense.h"

enum { KG_DENSE_BLOCK = 4096 }; /* passages whose scores are there at once */

struct kg_dense {
    const char *path; /* borrowed from the index */
    const struct kg_backend *backend;
    struct kg_encoder *encoder;
    struct kg_codes codes; /* (n, D) owned: what a pass reads */
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

/* ---- opening ---- */
/* Whether so many vectors fit into a machine's memory (0: nobody knows), as this code.
 * errors: ENOMEM; EUNSUPPORTED (more passages than are searched) */
kg_status kg_dense_check_memory(const struct kg_dense *d, uint64_t machine,
                                struct kg_err *err) KG_MUST_CHECK;

/* codes (dim), *scale, *bound of a vector in fp16, all numbers */
void kg_dense_shrink(int8_t *codes, float *scale, float *bound, const uint16_t *halves,
                     int32_t dim);
/* The vectors of a row of the table, borrowed from `get`, which stands at it.
 * errors: EFORMAT */
kg_status kg_dense_chunk(const uint16_t **halves, int64_t *n, const struct kg_dense *d,
                         sqlite3_stmt *get, struct kg_err *err) KG_MUST_CHECK;

#endif
