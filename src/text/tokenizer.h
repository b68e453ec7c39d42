/* Tokenizers: text to ids and back.
 *
 * Supported kinds: HuggingFace's tokenizer.json (BPE of bytes or characters, WordPiece,
 * Unigram; normalizer, pre-tokenizer, added and special tokens, post-processor, decoder),
 * a tokenizer.model (of SentencePiece, or ranks of tiktoken as in Llama 3), and a
 * token_ids.json that maps single characters to ids. A setting that is not supported is
 * refused by name; docs/formats.md has the list.
 *
 * The bytes of an id never depend on its neighbours, so decoding appends the bytes of
 * single ids. SentencePiece puts a space before every text; this space is among the first
 * id's bytes, and kg_tokenizer_decode_text drops it. decode_text(encode(t)) == NFC(t) for
 * every valid UTF-8 text (t itself if the file has no NFC step), and decode(encode(t)) is
 * the same if t `continues` other text. Exceptions, lossy by design: normalizers that
 * change letters (Lowercase, NFKC); characters missing from the vocabulary;
 * add_prefix_space; Metaspace, which puts nothing before text that begins with a space;
 * SentencePiece's mark U+2581, which becomes a space; the space after an added token
 * (Prepend, or Metaspace with `always`); lstrip and rstrip of an added token, which
 * swallow white space.
 *
 * Ids equal the output of HuggingFace's `tokenizers`, of `sentencepiece` and of
 * `tiktoken`; pretoken.h explains how the regular expression engines are reconciled. One
 * difference is deliberate: NFC follows Unicode 15 here (utf8proc 2.8), but Unicode 9 in
 * those libraries, which therefore do not sort 98 combining marks or compose U+11938. The
 * removal of marks (StripAccents, BertNormalizer) differs in the same way.
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

/* Reads a model's folder: tokenizer.json, else tokenizer.model, else token_ids.json.
 * errors: ENOTFOUND (no such file), EFORMAT, EUNSUPPORTED (names the field and its
 * value), ECONFLICT (some text would get an id beyond config.json's vocab_size) */
kg_status kg_tokenizer_open(struct kg_tokenizer **tok, const char *dir,
                            struct kg_err *err) KG_MUST_CHECK;
/* Reads the text of a tokenizer.json, or the bytes of a tokenizer.model without a
 * tokenizer_config.json; for tests, fuzzing and benchmarks. */
kg_status kg_tokenizer_parse(struct kg_tokenizer **tok, const char *json, size_t n,
                             const char *where, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_tokenizer_parse_model(struct kg_tokenizer **tok, const void *bytes, size_t n,
                                   const char *where, struct kg_err *err) KG_MUST_CHECK;
void kg_tokenizer_close(struct kg_tokenizer *tok);

/* same.c. Checks that tok and `other`, the tokenizer of folder dir, have the same number
 * of ids, each with the same bytes.
 * errors: ECONFLICT, with both numbers, or the id and both texts */
kg_status kg_tokenizer_compare(const struct kg_tokenizer *tok,
                               const struct kg_tokenizer *other, const char *dir,
                               struct kg_err *err) KG_MUST_CHECK;
/* Checks that the tokenizer of an adapter's folder dir, if it has one, equals tok, that
 * of the base model. Special tokens that only one of them has are ignored.   errors:
 * those of kg_tokenizer_open and kg_tokenizer_compare */
kg_status kg_tokenizer_check_beside(const struct kg_tokenizer *tok, const char *dir,
                                    struct kg_err *err) KG_MUST_CHECK;

const char *kg_tokenizer_kind(
    const struct kg_tokenizer *tok); /* "bpe", "wordpiece", "unigram", "chars" */
int32_t kg_tokenizer_vocab_size(const struct kg_tokenizer *tok); /* largest id + 1 */
int32_t kg_tokenizer_eos(
    const struct kg_tokenizer *tok); /* by tokenizer_config.json or model; -1: none */
int32_t
kg_tokenizer_find(const struct kg_tokenizer *tok,
                  const char *piece); /* id of an added (in chars: any) token; -1: none */
/* Number of ids that can be decoded: that of the tokenizer, or config.json's vocab_size
 * if larger, whose further ids have no token. _has: whether an id has a token. */
int32_t kg_tokenizer_n_ids(const struct kg_tokenizer *tok);
bool kg_tokenizer_has(const struct kg_tokenizer *tok, int32_t id);
bool kg_tokenizer_is_special(const struct kg_tokenizer *tok, int32_t id);

/* Appends the ids of text. parse_special: recognise special tokens in the text. Added
 * tokens not marked special, such as <think>, are always recognised. add_special: add the
 * post-processor's tokens (BOS). continues: the text follows other tokens, so no space is
 * put before it. On failure out is unchanged.
 * errors: EFORMAT (not UTF-8, with byte offset; a character or byte that the vocabulary
 * lacks, if the tokenizer has no way to encode or drop it), ENOMEM */
struct kg_encode_opts {
    bool parse_special;
    bool add_special;
    bool continues;
};
kg_status kg_tokenizer_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                              const char *text, size_t n, struct kg_encode_opts opts,
                              struct kg_err *err) KG_MUST_CHECK;

/* Appends the bytes of ids; special tokens print their content unless skip_special. An id
 * without a token (a hole, or a row of config.json's vocab_size beyond the tokenizer) has
 * no bytes, as in HuggingFace's decode.
 * errors: EINVAL (id out of range) */
kg_status kg_tokenizer_decode(struct kg_str *out, const struct kg_tokenizer *tok,
                              const int32_t *ids, size_t n, bool skip_special,
                              struct kg_err *err) KG_MUST_CHECK;
/* kg_tokenizer_decode for ids at the start of a text: leaves out the space that the
 * tokenizer puts before every text. */
kg_status kg_tokenizer_decode_text(struct kg_str *out, const struct kg_tokenizer *tok,
                                   const int32_t *ids, size_t n, bool skip_special,
                                   struct kg_err *err) KG_MUST_CHECK;

/* ---- training a byte-level BPE on text (deterministic: ties by the smaller pair of ids)
 * ---- */
struct kg_bpe_train {
    int32_t vocab_size;          /* 256 bytes + merges + specials */
    const char *const *specials; /* borrowed; have the last ids; [0] is eos_token */
    size_t n_specials;
    const char *pattern; /* pre-tokenizer regex; NULL: Qwen2's */
};
/* Appends the text of a tokenizer.json, which `tokenizers` and kg_tokenizer_parse load.
 * texts: n documents; specials in them are removed first.
 * errors: EINVAL (vocab_size too small; the texts give too few tokens: how many),
 * EFORMAT (not UTF-8, naming the document) */
kg_status kg_bpe_train_json(struct kg_str *out, const char *const *texts, size_t n,
                            const struct kg_bpe_train *opts,
                            struct kg_err *err) KG_MUST_CHECK;
/* Writes dir/tokenizer.json (kg_bpe_train_json) and dir/tokenizer_config.json.
 * errors: those of kg_bpe_train_json, EIO */
kg_status kg_bpe_train_write(const char *dir, const char *const *texts, size_t n,
                             const struct kg_bpe_train *opts,
                             struct kg_err *err) KG_MUST_CHECK;

#endif
