/* Unigram, the model of T5 and ALBERT: among all ways to split a text into pieces, the
 * one with the largest sum of scores.
 *
 * A character that is not a piece scores 10 less than the smallest score, and is unknown.
 * A sequence of unknown characters becomes one unknown token, or the tokens of its bytes
 * if the model has byte fallback.
 *
 * time: text bytes times the length of the longest piece; memory: 16 bytes per text byte
 */
#ifndef KG_TEXT_UNIGRAM_H
#define KG_TEXT_UNIGRAM_H

#include "base/status.h"
#include "text/vocab.h"

/* How far an unknown character scores below the worst piece. */
enum { KG_UNKNOWN_PENALTY = 10 };

struct kg_unigram_node { /* a node of the trie of all pieces */
    uint32_t first;      /* first child; children are consecutive, ordered by byte */
    int32_t id;          /* id of the piece that ends here; -1: none */
    uint16_t n;          /* number of children */
    uint8_t byte;        /* the byte that leads to this node */
};

struct kg_unigram {
    struct kg_unigram_node *nodes; /* owned; the root is the first */
    size_t n_nodes;
    size_t capacity;
    double *scores; /* (n_scores) by id; owned */
    int32_t n_scores;
    double unknown; /* the score of a character that is not a piece */
    /* sum scores in float32, as sentencepiece does; else in float64, as `tokenizers`
     * does */
    bool single;
};
/* Allocates n scores, all 0.   NULL with err set: ENOMEM */
struct kg_unigram *kg_unigram_create(size_t n, struct kg_err *err);
void kg_unigram_free(void *own); /* NULL is allowed */

/* Builds the trie of the first n_scores ids of the vocabulary. u->scores must be set; NaN
 * excludes an id.   errors: ENOMEM, EFORMAT (two ids with the same bytes) */
kg_status kg_unigram_build(struct kg_unigram *u, const struct kg_vocab *vocab,
                           struct kg_err *err) KG_MUST_CHECK;

/* The last piece of the best split of the first `end` bytes of the text. */
struct kg_unigram_step {
    double score; /* score of the best split up to this end */
    int32_t id;   /* -1: no piece */
    uint32_t start;
};
struct kg_unigram_work {
    struct kg_unigram_step *steps; /* owned; (text bytes + 1), indexed by end */
    size_t capacity;
};
void kg_unigram_work_release(struct kg_unigram_work *work);
/* Fills work->steps for n >= 1 bytes of valid UTF-8; the last piece ends at n.
 * errors: ENOMEM, EFORMAT (n too large) */
kg_status kg_unigram_cut(struct kg_unigram_work *work, const struct kg_unigram *u,
                         const char *text, size_t n, struct kg_err *err) KG_MUST_CHECK;

#endif
