/* SentencePiece's precompiled map of characters: what becomes of a character, or of
 * several in a row, before text is cut (nmt_nfkc and its kin, of T5 and XLM-R).
 *
 * source: sentencepiece's normalizer.cc and Darts-clone's double array: four bytes, the
 * size of the trie; the trie, an array of 32-bit units; a blob of texts, each ended by a
 * NUL, that the trie's values are offsets into. It comes from outside: every step of a
 * walk is checked against the array's end.
 */
#ifndef KG_TEXT_CHARSMAP_H
#define KG_TEXT_CHARSMAP_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_charsmap; /* immutable, usable from any thread */

/* errors: EFORMAT (sizes that do not fit, texts that are not UTF-8), ENOMEM */
kg_status kg_charsmap_create(struct kg_charsmap **out, const void *bytes, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
void kg_charsmap_free(struct kg_charsmap *map);

/* Append what valid UTF-8 becomes. As SentencePiece does it: the longest match at every
 * place; or as `tokenizers` does its Precompiled: grapheme clusters of less than six
 * bytes as a whole, by the shortest match, else character by character.
 * errors: ENOMEM */
kg_status kg_charsmap_longest(struct kg_str *out, const struct kg_charsmap *map,
                              const char *text, size_t n,
                              struct kg_err *err) KG_MUST_CHECK;
kg_status kg_charsmap_clusters(struct kg_str *out, const struct kg_charsmap *map,
                               const char *text, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;

#endif
