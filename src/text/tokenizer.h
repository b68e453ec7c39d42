/* Tokenizers: text to ids and back.
 *
 * A table of kinds: HuggingFace's tokenizer.json (BPE of bytes or characters, WordPiece,
 * Unigram; normalizer, pre-tokenizer, added and special tokens, post-processor, decoder),
 * a tokenizer.model (SentencePiece's, or tiktoken's ranks as Llama 3 has them), a
 * token_ids.json that maps single characters to ids. Anything else is refused by name;
 * docs/formats.md has the list.
 *
 * The bytes of an id never depend on its neighbours, so text grows by appending what
 * single ids decode to. SentencePiece puts a space in front of every text: those bytes
 * are the first id's too, and kg_tokenizer_decode_text leaves them out. Decoding is
 * exact: decode_text(encode(t)) == NFC(t) for every valid UTF-8 text (t itself where the
 * file names no NFC), and decode(encode(t)) is that too where t `continues` other text.
 * Some settings lose that by design: normalizers that lose letters (Lowercase, NFKC);
 * what a vocabulary lacks; add_prefix_space; Metaspace, which puts nothing in front of
 * what begins with a space; SentencePiece's mark U+2581, which becomes a space; the space
 * in front of every stretch behind an added token (Prepend, or Metaspace with `always`);
 * lstrip and rstrip of an added token, which swallow white space.
 *
 * Ids equal those of HuggingFace's `tokenizers`, of `sentencepiece` and of `tiktoken`;
 * pretoken.h says how the two regular expression engines were brought together. One
 * difference is left, on purpose: NFC here is Unicode 15's (utf8proc 2.8), there it is
 * that of Unicode 9, which does not know the 98 combining marks and the composite U+11938
 * added since and leaves them unsorted. So it is with marks (StripAccents,
 * BertNormalizer).
 */
#ifndef KG_TEXT_TOKENIZER_H
#define KG_TEXT_TOKENIZER_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_tokenizer; /* opaque; immutable after loading, usable from any thread */

struct kg_ids {
    int32_t *ids; /* owned */
    size_t n;
    size_t capacity;
};
void kg_ids_release(struct kg_ids *ids);
kg_status kg_ids_push(struct kg_ids *ids, int32_t id, struct kg_err *err) KG_MUST_CHECK;

/* From a model folder: tokenizer.json, else tokenizer.model, else token_ids.json.
 * errors: NOTFOUND (neither is there), EFORMAT, UNSUPPORTED naming the field and its
 * value, CONFLICT (a text could become an id that config.json's vocab_size lacks) */
kg_status kg_tokenizer_open(struct kg_tokenizer **tok, const char *dir,
                            struct kg_err *err) KG_MUST_CHECK;
/* From the text of a tokenizer.json, or the bytes of a tokenizer.model without a
 * tokenizer_config.json beside it; for tests, fuzzing and benchmarks. */
kg_status kg_tokenizer_parse(struct kg_tokenizer **tok, const char *json, size_t n,
                             const char *where, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_tokenizer_parse_model(struct kg_tokenizer **tok, const void *bytes, size_t n,
                                   const char *where, struct kg_err *err) KG_MUST_CHECK;
void kg_tokenizer_close(struct kg_tokenizer *tok);

/* same.c. That another tokenizer, of the folder dir, has as many ids with the same bytes.
 * errors: CONFLICT, with the id and both texts */
kg_status kg_tokenizer_compare(const struct kg_tokenizer *tok,
                               const struct kg_tokenizer *other, const char *dir,
                               struct kg_err *err) KG_MUST_CHECK;
/* That a folder of adapters, if it has a tokenizer, has the base's; special tokens that
 * one of them lacks are let be.   errors: those of opening and comparing */
kg_status kg_tokenizer_check_beside(const struct kg_tokenizer *tok, const char *dir,
                                    struct kg_err *err) KG_MUST_CHECK;

const char *kg_tokenizer_kind(
    const struct kg_tokenizer *tok); /* "bpe", "wordpiece", "unigram", "chars" */
int32_t kg_tokenizer_vocab_size(const struct kg_tokenizer *tok); /* largest id + 1 */
int32_t kg_tokenizer_eos(
    const struct kg_tokenizer *tok); /* eos_token of tokenizer_config.json, or -1 */
int32_t kg_tokenizer_find(const struct kg_tokenizer *tok,
                          const char *piece); /* added/special token id, or -1 */
/* Ids that can be decoded: those, and the rows that config.json's vocab_size has beyond
 * them; and whether an id has a token. */
int32_t kg_tokenizer_n_ids(const struct kg_tokenizer *tok);
bool kg_tokenizer_has(const struct kg_tokenizer *tok, int32_t id);
bool kg_tokenizer_is_special(const struct kg_tokenizer *tok, int32_t id);

/* Append the ids of text. parse_special: special tokens in the text are recognised (added
 * tokens that are not marked special, such as <think>, always are: they are vocabulary);
 * add_special: the post-processor adds its tokens (BOS); continues: the text goes on
 * behind other tokens, so that no space is put in front. On failure out is as it was.
 * errors: EFORMAT (not UTF-8, with byte offset; a character or byte that the vocabulary
 * lacks and has no unknown token for), ENOMEM */
struct kg_encode_opts {
    bool parse_special;
    bool add_special;
    bool continues;
};
kg_status kg_tokenizer_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                              const char *text, size_t n, struct kg_encode_opts opts,
                              struct kg_err *err) KG_MUST_CHECK;

/* Append the bytes of ids; special tokens print their content unless skip_special. An id
 * without a token (a hole, or a row that config.json's vocab_size has beyond the
 * tokenizer's) has no bytes, as in HuggingFace's decode.
 * errors: EINVAL (id out of range) */
kg_status kg_tokenizer_decode(struct kg_str *out, const struct kg_tokenizer *tok,
                              const int32_t *ids, size_t n, bool skip_special,
                              struct kg_err *err) KG_MUST_CHECK;
/* The same for ids that begin a text: without the space that the tokenizer puts in front
 * of every text. */
kg_status kg_tokenizer_decode_text(struct kg_str *out, const struct kg_tokenizer *tok,
                                   const int32_t *ids, size_t n, bool skip_special,
                                   struct kg_err *err) KG_MUST_CHECK;

/* ---- training a byte-level BPE on text (deterministic: ties by the smaller pair of ids)
 * ---- */
struct kg_bpe_train {
    int32_t vocab_size; /* 256 bytes + merges + specials */
    const char *const
        *specials; /* borrowed; get the last ids; the first one is named eos_token */
    size_t n_specials;
    const char *pattern; /* pre-tokenizer regex; NULL for the Qwen2 one */
};
/* Append the text of a tokenizer.json that loads in `tokenizers` and kg_tokenizer_parse.
 * texts: n documents; specials found in them are cut out first.
 * errors: EINVAL (vocab too small; text that gives fewer tokens than asked, naming the
 * number reached), EFORMAT (not UTF-8, naming the document) */
kg_status kg_bpe_train_json(struct kg_str *out, const char *const *texts, size_t n,
                            const struct kg_bpe_train *opts,
                            struct kg_err *err) KG_MUST_CHECK;
/* The same as dir/tokenizer.json, with a tokenizer_config.json.   errors: those, EIO */
kg_status kg_bpe_train_write(const char *dir, const char *const *texts, size_t n,
                             const struct kg_bpe_train *opts,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
