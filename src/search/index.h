/* The embedded search engine: an index file of passages, and searchers that find in it.
 *
 * The file is one SQLite database: an FTS5 table without contents holds the words, plain
 * tables the passages, the number of passages that each word is in, and the length of
 * each passage. A query is any bytes: it is cut into words as the passages were, and
 * every word counts; there is no query language, so nothing can be a syntax error.
 *
 * Scores are BM25 and exact: the words of a query are taken from the rarest on, and those
 * whose greatest possible contribution cannot lift another passage into the answer are
 * never enumerated. Order: score, then place in the corpus. The same query gives the same
 * bits whatever ran before it. An index may have a vector of each passage too (dense.h);
 * how it is asked, by words, by vectors or by both, is said when it is opened. Not here:
 * the protocol (service.h), other engines (retriever.h).
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
    KG_QUERY_TERMS_MAX = 32,        /* distinct words that count: the rarest */
    KG_QUERY_BYTES_MAX = 64 << 10,  /* of a query that are read */
    KG_QUERY_ROWS_MAX = 200000,     /* passages scored for one query */
    KG_QUERY_POSTINGS_MAX = 8000000 /* entries of word lists walked for one query */
};

/* score = sum over words of  idf^power ((k1 + 1) tf / (tf + k1 (1 - b + b length / mean
 * length)) + delta),   idf = ln(1 + (N - n + 1/2) / (n + 1/2))
 * delta 0 and power 1 is BM25; delta is that of BM25+ (Lv and Zhai 2011). */
struct kg_bm25 {
    double k1;      /* 0 to 1000 */
    double b;       /* 0 to 1 */
    double delta;   /* 0 to 10: for having the word at all */
    double power;   /* 0 to 4: of idf, how much more rare words count */
    int stop_words; /* 1: they count like others, 0: only where there is little else */
};
extern const struct kg_bm25 kg_bm25_default;
extern const struct kg_bm25 kg_bm25_unset; /* every field negative: the index's own */
kg_status kg_bm25_check(const struct kg_bm25 *bm25, struct kg_err *err) KG_MUST_CHECK;
/* The fields of `over` that are not negative, else those of `under`. */
struct kg_bm25 kg_bm25_merge(const struct kg_bm25 *over, const struct kg_bm25 *under);

#define KG_HYBRID_WEIGHT 0.5 /* of the vectors' ranking, where none is given */

struct kg_backend;
/* By what passages are found. {0}: by words. Its texts are borrowed by whoever opens. */
struct kg_search_how {
    const char *kind;    /* bm25, dense or hybrid; NULL: bm25 */
    const char *model;   /* dense, hybrid: folder of the encoder; NULL or "": none */
    const char *vectors; /* dense, hybrid: fp16 or int8, of those in memory: no answer
                          * depends on it; NULL: fp16 */
    const char *fusion;  /* hybrid: rank or score, see rank.h; NULL: rank */
    /* dense, hybrid: has the vectors and the encoder; no answer depends on it; borrowed;
     * NULL: the CPU */
    const struct kg_backend *backend;
    double weight; /* hybrid: of the vectors' ranking, 0 to 1; the words' has the rest */
    int64_t passages; /* that there must be; 0: any number */
};
enum { KG_HYBRID_DEPTH = 100 }; /* of both rankings, or topk where that is more */
/* Names, a model where one is needed and none where not, the weight, and that nothing is
 * other than its default where it has no effect: vectors of bm25, fusion and weight of
 * anything but a hybrid (a kind that is given has a weight: KG_HYBRID_WEIGHT). A server
 * (where: "http://..") finds as it was started: of it kind and passages are what it is
 * expected to have, model is what a plan reckons with, and how a hybrid is made is not
 * for the asker to say.
 * errors: EINVAL, with `section` before the names of keys ("search."; "--", where the
 * model's is --dense) */
kg_status kg_search_how_check(const struct kg_search_how *how, const char *where,
                              const char *section, struct kg_err *err) KG_MUST_CHECK;
/* Whether it is anything but by words. */
bool kg_search_how_dense(const struct kg_search_how *how);

struct kg_passage {
    const char *id;       /* "" when the server gives none */
    const char *contents; /* first line: title, the rest: text */
    double score;
};

/* ---- building ---- */

struct kg_index_build_opts {
    const char *corpus;  /* records {id, contents} or {id?, title, text} */
    const char *path;    /* of the index; an old one is replaced when the new is whole */
    bool words_as_are;   /* no stemming */
    struct kg_bm25 bm25; /* kept in the index as its default */
    const struct kg_encoder
        *encoder; /* of passages' vectors, see encoder.h; NULL: none */
    /* a file of the vectors that it or its like made of the passages, in their order, see
     * retriever/vectors.h; NULL: they are made here */
    const char *vectors;
};

struct kg_index_info {
    int version;
    bool stemmed;
    struct kg_bm25 bm25;
    int64_t passages;
    int64_t terms;    /* distinct */
    int64_t tokens;   /* of all passages */
    uint64_t bytes;   /* of the file */
    uint64_t hash;    /* of its pages: of words, indexes of one hash answer alike */
    int32_t dim;      /* of vectors; 0: it has none */
    uint64_t encoder; /* hash of the encoder that made them, see encoder.h */
};

/* Progress goes to the log. On failure there is no new file.
 * errors: EFORMAT (a record, an id given twice: both places, an empty corpus; vectors),
 * ECONFLICT (vectors that are not the encoder's of these passages), ENOSPACE,
 * EINTERRUPTED, EIO */
kg_status kg_index_build(struct kg_index_info *info,
                         const struct kg_index_build_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;

/* ---- looking ---- */

struct kg_index; /* opaque: one file, shared by the searchers of all threads */
/* bm25: NULL, or a negative value in it, for that of the index.
 * A file of up to a gigabyte is checked whole against the hash in it; `kg_index_verify`
 * checks any.
 * errors: ENOTFOUND, EFORMAT (no index, cut off, changed), EUNSUPPORTED (of another
 * version), EINVAL (bm25 out of range) */
kg_status kg_index_open(struct kg_index **index, const char *path,
                        const struct kg_bm25 *bm25, struct kg_err *err) KG_MUST_CHECK;
/* From now on it is asked so: before its searchers are opened.
 * errors: EINVAL (how; an index without vectors), ECONFLICT (another encoder's vectors),
 * those of kg_dense_open */
kg_status kg_index_ask(struct kg_index *index, const struct kg_search_how *how,
                       struct kg_err *err) KG_MUST_CHECK;
/* What its vectors and their encoder hold of a device, and what went there and came from
 * there since the process began; zeros where all is the host's. */
struct kg_index_device {
    uint64_t bytes;
    uint64_t up, down; /* bytes */
};
void kg_index_device(struct kg_index_device *out, const struct kg_index *index) KG_GUEST;
void kg_index_close(struct kg_index *index); /* after its searchers; NULL allowed */
void kg_index_info(struct kg_index_info *out, const struct kg_index *index);
kg_status kg_index_verify(const char *path, struct kg_err *err) KG_MUST_CHECK;

struct kg_searcher; /* opaque: of one thread */
kg_status kg_searcher_open(struct kg_searcher **s, const struct kg_index *index,
                           struct kg_err *err) KG_MUST_CHECK;
void kg_searcher_close(struct kg_searcher *s); /* NULL allowed */

struct kg_hits {
    const struct kg_passage *passages; /* (n) best first; borrowed until the next find */
    size_t n;
    int64_t rows; /* passages that were scored */
    bool cut;     /* a limit above left out bytes, words or passages */
};
/* What the next finds will be asked, in this order and with this topk: vectors of up to
 * KG_AHEAD_MAX queries share one pass over the passages'. No answer depends on it. */
enum { KG_AHEAD_MAX = 64 };
struct kg_query {
    const char *bytes;
    size_t n;
};
kg_status kg_searcher_ahead(struct kg_searcher *s, const struct kg_query *queries,
                            size_t n, int topk, struct kg_err *err) KG_MUST_CHECK;
/* The topk best passages for any bytes. By words, a query without a word that the corpus
 * has finds nothing.
 * topk: 1 to KG_INDEX_TOPK_MAX.   errors: EINVAL, EFORMAT (index damaged) */
kg_status kg_searcher_find(struct kg_hits *hits, struct kg_searcher *s, const char *query,
                           size_t n, int topk, struct kg_err *err) KG_MUST_CHECK;

#endif
