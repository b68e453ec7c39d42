/* Builds an index: one file of the words of passages and, if wanted, of their vectors.
 */
#ifndef KG_RETRIEVER_BUILD_H
#define KG_RETRIEVER_BUILD_H

#include "search/dense.h"

struct kg_encoder; /* encoder/encoder.h */

struct kg_index_build_opts {
    const char *corpus;  /* records {id, contents} or {id?, title, text} */
    const char *path;    /* of the index; an old one is replaced at the end */
    bool words_as_are;   /* words are not stemmed */
    struct kg_bm25 bm25; /* kept in the index as its default */
    const struct kg_encoder *encoder; /* for vectors of passages; NULL: none */
    /* a file of the passages' vectors, made by the same encoder, in the passages' order,
     * see retriever/vectors.h; NULL: vectors are computed here */
    const char *vectors;
};

/* Progress goes to the log. On failure there is no new file.
 * errors: EFORMAT (a record, a duplicate id with both places, an empty corpus; vectors),
 * ECONFLICT (vectors of other passages or another encoder), ENOSPACE,
 * EINTERRUPTED, EIO */
kg_status kg_index_build(struct kg_index_info *info,
                         const struct kg_index_build_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;

/* ---- vectors of passages (dense/dense_write.c) ---- */
struct kg_dense_writer; /* opaque; one for the build of an index */
/* Creates the table of vectors in db. path, encoder and vectors are borrowed. vectors: a
 * file of the passages' vectors (retriever/vectors.h) from an encoder equal to this one;
 * NULL: vectors are computed here.
 * errors: those of kg_vectors_open; EFORMAT (vectors of another width), EUNSUPPORTED (too
 * many passages; a file for L2 distances from an encoder whose vectors do not have length
 * 1) */
kg_status kg_dense_writer_open(struct kg_dense_writer **w, sqlite3 *db, const char *path,
                               const struct kg_encoder *encoder, const char *vectors,
                               struct kg_err *err) KG_MUST_CHECK;
/* Adds the next passage.   errors: EUNSUPPORTED (too many), those of kg_embed with the
 * number of the passage, ENONFINITE (beyond fp16); for a file's vectors EFORMAT (too few,
 * NaN, not of length 1) and ECONFLICT (a sampled one is of another passage) */
kg_status kg_dense_writer_add(struct kg_dense_writer *w, const char *contents, size_t n,
                              struct kg_err *err) KG_MUST_CHECK;
/* Writes the rest and the encoder's settings; does not commit the index.
 * errors: those above; EFORMAT (a file of more vectors than passages) */
kg_status kg_dense_writer_end(struct kg_dense_writer *w,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_dense_writer_close(struct kg_dense_writer *w); /* NULL allowed */

#endif
