/* tokenizer.model: the tokens of a BPE without its merges. SentencePiece and tiktoken
 * write such files, and both mean the same by them: two neighbours merge when they are a
 * token when put together, the one of lowest rank first.
 *
 * What the file does not say stands in tokenizer_config.json, or is SentencePiece's and
 * Llama 3's own.
 */
#ifndef KG_TEXT_PIECES_H
#define KG_TEXT_PIECES_H

#include "text/tokenizer_read.h"

/* sentencepiece.c and tiktoken.c: r->tok filled but for the merges' hash. */
kg_status kg_sentencepiece_parse(struct kg_reader *r,
                                 const struct kg_tokenizer_file *file) KG_MUST_CHECK;
kg_status kg_tiktoken_parse(struct kg_reader *r,
                            const struct kg_tokenizer_file *file) KG_MUST_CHECK;

/* Every merge of two tokens that have a rank into one that has: rank (n_ids), lower is
 * merged earlier, -1 for a token that takes no part. Equal ranks: the leftmost first. A
 * token is cut between characters where by_char.   errors: EFORMAT (too much
 * work), ENOMEM */
kg_status kg_pieces_merge(struct kg_tokenizer *tok, const int32_t *rank,
                          struct kg_err *err) KG_MUST_CHECK;

/* Ids needed for n tokens and those of added_tokens_decoder. */
kg_status kg_pieces_n_ids(struct kg_reader *r, const struct kg_json *config, int64_t n,
                          int64_t *n_ids) KG_MUST_CHECK;
/* The tokens of added_tokens_decoder. *given: false when config has none. */
kg_status kg_pieces_add(struct kg_reader *r, const struct kg_json *config,
                        bool *given) KG_MUST_CHECK;
/* Whether an added token stands for this id. */
bool kg_pieces_is_added(const struct kg_tokenizer *tok, int32_t id);
/* A special token that no added token stands for yet; its text is in the vocabulary. */
kg_status kg_pieces_add_special(struct kg_reader *r, int32_t id) KG_MUST_CHECK;
/* What is put around a text: bos and eos are the file's (-1: none), which
 * tokenizer_config.json may name anew, with add_bos_token (true) and add_eos_token
 * (false). tok->eos is set too. */
kg_status kg_pieces_add_ends(struct kg_reader *r, const struct kg_json *config,
                             int32_t bos, int32_t eos) KG_MUST_CHECK;

#endif
