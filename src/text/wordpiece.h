/* WordPiece, the model of BERT: takes the longest token at the start of a word, then
 * repeats on the rest; tokens inside a word carry a prefix ("##"). */
#ifndef KG_TEXT_WORDPIECE_H
#define KG_TEXT_WORDPIECE_H

#include "base/str.h"

#include <stdint.h>

struct kg_wordpiece {
    struct kg_str prefix; /* owned; of tokens that continue a word */
    uint64_t max_chars;   /* a longer word is unknown */
    size_t longest;       /* bytes of the longest token */
};

#endif
