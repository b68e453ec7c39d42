/* Unigram, the model of T5 and ALBERT: of all ways to cut a text into pieces the one with
 * the largest sum of their scores.
 *
 * A character that is no piece costs the smallest score less 10, and is unknown: all
 * unknown ones in a row are one token, or where the model falls back to bytes, the tokens
 * of their bytes.
 *   time: text bytes times the length of the longest piece; memory: 16 bytes a text byte
 */
#ifndef KG_TEXT_UNIGRAM_H
#define KG_TEXT_UNIGRAM_H

#include "base/status.h"
#include "text/vocab.h"

/* What an unknown character costs below the worst piece. */
enum { KG_UNKNOWN_PENALTY = 10 };

struct kg_unigram_node { /* of the trie of all pieces */
    uint32_t first;      /* its children stand in a row, by byte */
    int32_t id;          /* of the piece that ends here; -1: none */
    uint16_t n;
    uint8_t byte; /* that leads to it */
};

struct kg_unigram {
    struct kg_unigram_node *nodes; /* owned; the root is the first */
    size_t n_nodes;
    size_t capacity;
    double *scores; /* (n_scores) by id; owned */
    int32_t n_scores;
    double unknown; /* the score of a character that is no piece */
    /* scores are summed up as float32, as sentencepiece does; else as float64, as
     * `tokenizers` does */
    bool single;
};
void kg_unigram_release(struct kg_unigram *u);

/* The trie of the n_scores first ids of the vocabulary; u->scores are there, and NaN
 * leaves an id out.   errors: ENOMEM, EFORMAT (a text of two ids) */
kg_status kg_unigram_build(struct kg_unigram *u, const struct kg_vocab *vocab,
                           struct kg_err *err) KG_MUST_CHECK;

/* A piece of the best way: text up to `end` (bytes), beginning where the one before ends.
 */
struct kg_unigram_step {
    double score; /* of the best way to here */
    int32_t id;   /* -1: no piece */
    uint32_t start;
};
struct kg_unigram_work {
    struct kg_unigram_step *steps; /* owned; (text bytes + 1), by their end */
    size_t capacity;
};
void kg_unigram_work_release(struct kg_unigram_work *work);
/* Fills work->steps for n >= 1 bytes of valid UTF-8; the last piece ends at n.
 * errors: ENOMEM, EFORMAT (n too large) */
kg_status kg_unigram_cut(struct kg_unigram_work *work, const struct kg_unigram *u,
                         const char *text, size_t n, struct kg_err *err) KG_MUST_CHECK;

#endif
