/* The vectors of an index. They are stored in the same file as the BM25 index, loaded
 * completely, and searched exhaustively.
 *
 * A vector is fp16 numbers; a row of table `vector` has 64 vectors. The index holds the
 * encoder's settings and hash (not the encoder), so queries of another encoder are never
 * compared with these vectors.
 *
 * Search is exact: it multiplies the queries, in fp32, by every passage's vector. Memory
 * is read once for up to KG_DENSE_QUERIES queries. Vectors are held in fp16, as in the
 * file, or as int8, in half the memory. With int8, passages that may be among the best
 * are multiplied again in fp16, so the result is the same (dense.c). These are few unless
 * vectors are nearly equal, and need up to 16 bytes of memory per passage and query. A
 * product depends only on its query and its passage. A device may hold the vectors and
 * the encoder and compute the products (dense_device.c), which equal those of the CPU.
 */
#ifndef KG_SEARCH_DENSE_H
#define KG_SEARCH_DENSE_H

#include "base/status.h"
#include "search/index_file.h"
#include "search/rank.h"
#include "tensor/codes.h"

#include <stddef.h>
#include <stdint.h>

enum {
    KG_DENSE_ROWS = 64,              /* vectors in one row of the table */
    KG_DENSE_PASSAGES_MAX = 1 << 26, /* beyond, exhaustive search is too slow */
};

struct kg_text {
    const char *bytes; /* UTF-8 */
    size_t n;
};

/* ---- searching ---- */
struct kg_dense; /* opaque: vectors and encoder, shared by seekers of all threads */
/* how: only model and backend are read; code: type of the vectors in memory.
 * errors: EINVAL (an index without vectors), ECONFLICT (vectors of another encoder),
 * EFORMAT, ENOMEM (more than this process may use, or than the device has), EUNSUPPORTED
 * (above KG_DENSE_PASSAGES_MAX), those of kg_encoder_open */
kg_status kg_dense_open(struct kg_dense **d, sqlite3 *db, const struct kg_index *index,
                        const struct kg_search_how *how, enum kg_code code,
                        struct kg_err *err) KG_GUEST;
void kg_dense_close(struct kg_dense *d) KG_GUEST; /* NULL allowed */

struct kg_seeker; /* opaque: for one thread */
/* db: the index's database, used only by this seeker until it is closed */
kg_status kg_seeker_open(struct kg_seeker **k, const struct kg_dense *d, sqlite3 *db,
                         struct kg_err *err) KG_GUEST;
void kg_seeker_close(struct kg_seeker *k) KG_GUEST; /* NULL allowed */
/* Makes one pass for the next n <= KG_DENSE_QUERIES queries to find, in this order. */
kg_status kg_seeker_ahead(struct kg_seeker *k, const struct kg_text *queries, size_t n,
                          size_t depth, struct kg_err *err) KG_GUEST;
/* The `depth` best passages: from kg_seeker_ahead's pass if this is its next query, else
 * from a separate pass.   *found: borrowed until the next call */
kg_status kg_seeker_find(struct kg_ranking *found, struct kg_seeker *k,
                         const struct kg_text *query, size_t depth,
                         struct kg_err *err) KG_GUEST;

#endif
