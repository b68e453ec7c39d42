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
 * bits whatever ran before it. Not here: the protocol (service.h), other engines
 * (retriever.h).
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
};

struct kg_index_info {
    int version;
    bool stemmed;
    struct kg_bm25 bm25;
    int64_t passages;
    int64_t terms;  /* distinct */
    int64_t tokens; /* of all passages */
    uint64_t bytes; /* of the file */
};

/* Progress goes to the log. On failure there is no new file.
 * errors: EFORMAT (a record, an id given twice: both places, an empty corpus), ENOSPACE,
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
/* The topk best passages for any bytes. A query without a word that the corpus has finds
 * nothing.   topk: 1 to KG_INDEX_TOPK_MAX.   errors: EINVAL, EFORMAT (index damaged) */
kg_status kg_searcher_find(struct kg_hits *hits, struct kg_searcher *s, const char *query,
                           size_t n, int topk, struct kg_err *err) KG_MUST_CHECK;

#endif
