/* The size of a planned index, for runs whose retriever is elsewhere or not yet built.
 *
 * The size of vectors is computed from the pages of dense_write.c's file and is exact
 * except for a few inner pages of the tree. The size of words and texts depends on the
 * texts; it uses a measured ratio.
 */
#ifndef KG_SEARCH_SIZE_H
#define KG_SEARCH_SIZE_H

#include <stdint.h>

struct kg_search_size {
    uint64_t words_file;   /* approximate: passages of 100 English words, with texts */
    uint64_t vectors_file; /* of the table `vector` */
    uint64_t lengths;      /* in memory: length of each passage */
    uint64_t vectors_fp16; /* in memory */
    uint64_t vectors_int8; /* in memory: codes, and two numbers per vector */
};
/* passages > 0; dim of vectors, 0: none */
void kg_search_size(struct kg_search_size *out, int64_t passages, int32_t dim);

#endif
