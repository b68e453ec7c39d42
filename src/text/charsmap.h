/* SentencePiece's precompiled character map, which replaces characters or short sequences
 * before tokenization (nmt_nfkc and others, of T5 and XLM-R).
 * source: sentencepiece's normalizer.cc and Darts-clone's double array. Layout: four
 * bytes, the size of the trie; the trie, an array of 32-bit units; a blob of
 * NUL-terminated texts. The trie's values are offsets into the blob. The input is
 * untrusted: every step of a walk is checked against the array's end. */
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

/* Appends the mapped form of valid UTF-8. kg_charsmap_longest works as SentencePiece: the
 * longest match at every place. kg_charsmap_clusters works as Precompiled of
 * `tokenizers`: a grapheme cluster of less than six bytes is mapped as a whole, by the
 * shortest match; other text character by character.
 * errors: ENOMEM */
kg_status kg_charsmap_longest(struct kg_str *out, const struct kg_charsmap *map,
                              const char *text, size_t n,
                              struct kg_err *err) KG_MUST_CHECK;
kg_status kg_charsmap_clusters(struct kg_str *out, const struct kg_charsmap *map,
                               const char *text, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;

#endif
