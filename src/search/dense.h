/* Vectors of an index: written beside its words, and searched. guests/retriever has
 * them; here is what building, opening and finding ask of it.
 *
 * A vector is fp16 numbers, 64 vectors a row of table `vector`. The encoder is not in
 * the index: what it was asked for, and its hash, are, so that no other one's vectors are
 * ever compared with these.
 */
#ifndef KG_SEARCH_DENSE_H
#define KG_SEARCH_DENSE_H

#include "search/encoder.h"
#include "search/index_file.h"
#include "search/rank.h"
#include "tensor/codes.h"

enum {
    KG_DENSE_ROWS = 64,              /* vectors in one row of the table */
    KG_DENSE_PASSAGES_MAX = 1 << 26, /* beyond, one by one takes too long */
};

/* ---- writing ---- */
struct kg_dense_writer; /* opaque; one for the build of an index */
/* The table is made in db; all names and the encoder are borrowed. vectors: a file of the
 * passages' vectors (retriever/vectors.h) that the encoder or one like it made elsewhere;
 * NULL: they are made here.
 * errors: those of kg_vectors_open; EFORMAT (of another width), EUNSUPPORTED (too many;
 * made for L2 distances, where vectors are not of length 1) */
kg_status kg_dense_writer_open(struct kg_dense_writer **w, sqlite3 *db, const char *path,
                               const struct kg_encoder *encoder, const char *vectors,
                               struct kg_err *err) KG_GUEST;
/* The next passage.   errors: EUNSUPPORTED (too many), those of kg_embed with the number
 * of the passage, ENONFINITE (beyond fp16); of a file's vectors EFORMAT (too few, NaN,
 * not of length 1) and ECONFLICT (not that of this passage, where that is looked at) */
kg_status kg_dense_writer_add(struct kg_dense_writer *w, const char *contents, size_t n,
                              struct kg_err *err) KG_GUEST;
/* What is left, and what the encoder was asked for; the index is not yet committed.
 * errors: those above; EFORMAT (a file of more vectors than passages) */
kg_status kg_dense_writer_end(struct kg_dense_writer *w, struct kg_err *err) KG_GUEST;
void kg_dense_writer_close(struct kg_dense_writer *w) KG_GUEST; /* NULL allowed */

/* ---- searching ---- */
struct kg_dense; /* opaque: vectors and encoder, shared by seekers of all threads */
/* how: its model and backend; code: of the vectors in memory.
 * errors: EINVAL (an index without vectors), ECONFLICT (another encoder's), EFORMAT,
 * ENOMEM (more than this process may have, or a device has), EUNSUPPORTED (more passages
 * than are searched one by one), those of kg_encoder_open */
kg_status kg_dense_open(struct kg_dense **d, sqlite3 *db, const struct kg_index *index,
                        const struct kg_search_how *how, enum kg_code code,
                        struct kg_err *err) KG_GUEST;
void kg_dense_close(struct kg_dense *d) KG_GUEST; /* NULL allowed */

struct kg_seeker; /* opaque: of one thread */
/* db: of the index, the seeker's alone while it is open */
kg_status kg_seeker_open(struct kg_seeker **k, const struct kg_dense *d, sqlite3 *db,
                         struct kg_err *err) KG_GUEST;
void kg_seeker_close(struct kg_seeker *k) KG_GUEST; /* NULL allowed */
/* One pass for n <= KG_DENSE_QUERIES queries that are asked next, in this order. */
kg_status kg_seeker_ahead(struct kg_seeker *k, const struct kg_text *queries, size_t n,
                          size_t depth, struct kg_err *err) KG_GUEST;
/* The `depth` best passages; of the next query of a pass where it is that, else by a pass
 * of its own.   *found: borrowed until the next call */
kg_status kg_seeker_find(struct kg_ranking *found, struct kg_seeker *k,
                         const struct kg_text *query, size_t depth,
                         struct kg_err *err) KG_GUEST;

#endif
