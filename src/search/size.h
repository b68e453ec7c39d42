/* What an index takes, before there is one: for the plan of a run whose retriever is
 * elsewhere, or not yet made.
 *
 * The part of the vectors is counted in pages of the file that dense_write.c makes, and
 * right to within a few of the tree above its leaves; that of words and texts depends on
 * the texts, and is a ratio that was measured.
 */
#ifndef KG_SEARCH_SIZE_H
#define KG_SEARCH_SIZE_H

#include <stdint.h>

struct kg_search_size {
    uint64_t words_file;   /* about: passages of 100 words of English, texts included */
    uint64_t vectors_file; /* of the table `vector` */
    uint64_t lengths;      /* memory: words of each passage */
    uint64_t vectors_fp16; /* memory */
    uint64_t vectors_int8; /* memory: codes, and two numbers for each vector */
};
/* passages > 0; dim of vectors, 0: none */
void kg_search_size(struct kg_search_size *out, int64_t passages, int32_t dim);

#endif
