/* The embedded search engine: an index file of passages, and searchers.
 *
 * The file is an SQLite database: a contentless FTS5 table holds the words; plain tables
 * hold the passages, the number of passages per word, and the length of each passage. A
 * query is any bytes, split into words as the passages are. There is no query language,
 * so there are no syntax errors.
 *
 * Scores are exact BM25. Words of a query are processed by falling weight. Once the
 * remaining words cannot lift another passage into the result, their passages are not
 * enumerated. Results are ordered by score, then by position in the corpus, and their
 * bits do not depend on earlier queries. An index may also have a vector per passage
 * (dense.h); kg_index_ask sets whether words, vectors or both are searched. Search-R1's
 * protocol is in protocol.h, the client of servers in retriever.h.
 */
#ifndef KG_SEARCH_INDEX_H
#define KG_SEARCH_INDEX_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KG_INDEX_VERSION = 1,
    KG_INDEX_TOPK_MAX = 1000,
    KG_QUERY_TERMS_MAX = 32,        /* distinct words used: of largest weight */
    KG_QUERY_BYTES_MAX = 64 << 10,  /* bytes of a query that are used */
    KG_QUERY_ROWS_MAX = 200000,     /* passages scored per query */
    KG_QUERY_POSTINGS_MAX = 8000000 /* posting list entries read per query */
};

/* score = sum over words, repeated ones too, of  idf^power ((k1 + 1) tf / (tf + k1 (1 - b
 * + b length / mean length)) + delta),   idf = ln(1 + (N - n + 1/2) / (n + 1/2))
 * delta 0 and power 1 is BM25; delta is the term that BM25+ adds (Lv and Zhai 2011). */
struct kg_bm25 {
    double k1;    /* 0 to 1000 */
    double b;     /* 0 to 1 */
    double delta; /* 0 to 10: bonus for containing the word at all */
    double power; /* 0 to 4: exponent of idf, the weight of rare words */
    /* 1: stop words count; 0: not if the query has 2 other words of the corpus */
    int stop_words;
};
extern const struct kg_bm25 kg_bm25_default;
extern const struct kg_bm25 kg_bm25_unset; /* every field negative: use the index's own */
kg_status kg_bm25_check(const struct kg_bm25 *bm25, struct kg_err *err) KG_MUST_CHECK;
/* Fields of `over` that are not negative, else those of `under`. */
struct kg_bm25 kg_bm25_merge(const struct kg_bm25 *over, const struct kg_bm25 *under);

struct kg_backend;
/* How passages are searched. {0}: by words. The strings must outlive the index. */
struct kg_search_how {
    const char *kind;  /* bm25, dense or hybrid; NULL: bm25 */
    const char *model; /* dense, hybrid: folder of the encoder; NULL or "": none */
    /* dense, hybrid: storage in memory, fp16 or int8; does not affect results; NULL:
     * fp16 */
    const char *vectors;
    const char *fusion; /* hybrid: rank or score, see rank.h; NULL: rank */
    /* dense, hybrid: backend of vectors and encoder; does not affect results; borrowed;
     * NULL: the CPU */
    const struct kg_backend *backend;
    bool beside_model; /* the backend is that of the model that runs or is evaluated */
    /* hybrid: weight of the ranking by vectors, 0 to 1; words have 1 - weight */
    double weight;
    int64_t passages; /* required number of passages; 0: any */
};
enum { KG_HYBRID_DEPTH = 100 }; /* length of both rankings; topk if that is larger */
/* Checks names, and that a model is given where one is needed. Options without effect are
 * refused elsewhere (KG_SEARCH_ROWS). section, model: parts of the keys in messages, such
 * as "search." and "model".   errors: EINVAL */
kg_status kg_search_how_check(const struct kg_search_how *how, const char *section,
                              const char *model, struct kg_err *err) KG_MUST_CHECK;
/* Whether the search uses vectors. */
bool kg_search_how_dense(const struct kg_search_how *how);

struct kg_passage {
    const char *id;       /* "" if the server gives none */
    const char *contents; /* first line: title, the rest: text */
    double score;
};

struct kg_index_info {
    int version;
    bool stemmed;
    struct kg_bm25 bm25;
    int64_t passages;
    int64_t terms;    /* distinct */
    int64_t tokens;   /* in all passages */
    uint64_t bytes;   /* of the file */
    uint64_t hash;    /* the seal: equal hashes, equal contents */
    int32_t dim;      /* dimension of vectors; 0: none */
    uint64_t encoder; /* hash of the vectors' encoder, see encoder.h */
};

/* ---- searching ---- */

struct kg_index; /* opaque: one file, shared by the searchers of all threads */
/* bm25: NULL or negative fields: the index's own. A file of up to a gigabyte is verified
 * against its hash; `kg_index_verify` verifies any file.
 * errors: ENOTFOUND, EFORMAT (not an index, truncated, modified), EUNSUPPORTED (another
 * version), EINVAL (bm25 out of range) */
kg_status kg_index_open(struct kg_index **index, const char *path,
                        const struct kg_bm25 *bm25, struct kg_err *err) KG_MUST_CHECK;
/* Sets how the index is searched; call it before opening searchers.
 * errors: EINVAL (how), ECONFLICT (another number of passages), EUNSUPPORTED (vectors,
 * without the guest `retriever`), those of kg_dense_open */
kg_status kg_index_ask(struct kg_index *index, const struct kg_search_how *how,
                       struct kg_err *err) KG_MUST_CHECK;
/* Bytes of device memory of the index's vectors and encoder, and bytes copied to (up) and
 * from the device since the process began; zeros without a device. */
struct kg_index_device {
    uint64_t bytes;
    uint64_t up, down;
};
void kg_index_device(struct kg_index_device *out, const struct kg_index *index) KG_GUEST;
/* kg_index_device.bytes in advance, before kg_index_ask; 0 without a device.
 * errors: those of kg_index_ask */
kg_status kg_index_device_plan(uint64_t *bytes, const struct kg_index *index,
                               const struct kg_search_how *how,
                               struct kg_err *err) KG_GUEST;
void kg_index_close(struct kg_index *index); /* close its searchers first; NULL allowed */
void kg_index_info(struct kg_index_info *out, const struct kg_index *index);
kg_status kg_index_verify(const char *path, struct kg_err *err) KG_MUST_CHECK;

struct kg_searcher; /* opaque: for one thread */
kg_status kg_searcher_open(struct kg_searcher **s, const struct kg_index *index,
                           struct kg_err *err) KG_MUST_CHECK;
void kg_searcher_close(struct kg_searcher *s); /* NULL allowed */

struct kg_hits {
    const struct kg_passage *passages; /* (n) best first; borrowed until the next find */
    size_t n;
    int64_t rows; /* passages scored */
    bool cut;     /* a KG_QUERY_ limit dropped bytes, words or passages */
};
/* Announces the next queries, in this order and with this topk: up to KG_AHEAD_MAX
 * queries share one pass over the vectors. Results do not depend on it. */
enum { KG_AHEAD_MAX = 64 };
struct kg_query {
    const char *bytes;
    size_t n;
};
kg_status kg_searcher_ahead(struct kg_searcher *s, const struct kg_query *queries,
                            size_t n, int topk, struct kg_err *err) KG_MUST_CHECK;
/* The topk best passages for a query of any bytes. A search by words finds nothing if no
 * word of the query is in the corpus.
 * topk: 1 to KG_INDEX_TOPK_MAX.   errors: EINVAL, EFORMAT (index damaged) */
kg_status kg_searcher_find(struct kg_hits *hits, struct kg_searcher *s, const char *query,
                           size_t n, int topk, struct kg_err *err) KG_MUST_CHECK;

/* Estimated sizes of an index, for plans; the index need not exist. */
struct kg_search_size {
    uint64_t lengths;      /* in memory: length of each passage */
    uint64_t vectors_fp16; /* in memory */
    uint64_t vectors_int8; /* in memory: codes, and two numbers per vector */
};
/* passages > 0; dim of vectors, 0: none */
void kg_search_size(struct kg_search_size *out, int64_t passages, int32_t dim);

#endif
