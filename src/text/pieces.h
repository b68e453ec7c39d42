/* tokenizer.model: the tokens of a BPE without its merges. SentencePiece and tiktoken
 * write such files with the same meaning: two neighbouring tokens merge if their
 * concatenation is a token, the lowest rank first.
 *
 * Settings that the file lacks come from tokenizer_config.json, else from the defaults of
 * SentencePiece and Llama 3.
 */
#ifndef KG_TEXT_PIECES_H
#define KG_TEXT_PIECES_H

#include "text/tokenizer_read.h"

/* sentencepiece.c and tiktoken.c: fill r->tok except `merges`. */
kg_status kg_sentencepiece_parse(struct kg_reader *r,
                                 const struct kg_tokenizer_file *file) KG_MUST_CHECK;
kg_status kg_tiktoken_parse(struct kg_reader *r,
                            const struct kg_tokenizer_file *file) KG_MUST_CHECK;

/* Derives every merge of two ranked tokens into a ranked token. rank (n_ids): lower
 * merges earlier, among equal ranks the leftmost; -1: the token takes no part. If
 * tok->by_char, tokens are split only between characters.   errors: EFORMAT (tokens so
 * long that this takes too much work), ENOMEM */
kg_status kg_pieces_merge(struct kg_tokenizer *tok, const int32_t *rank,
                          struct kg_err *err) KG_MUST_CHECK;

/* *n_ids <- the number of ids of n tokens and those of added_tokens_decoder. */
kg_status kg_pieces_n_ids(struct kg_reader *r, const struct kg_json *config, int64_t n,
                          int64_t *n_ids) KG_MUST_CHECK;
/* Adds the tokens of added_tokens_decoder. *given: false if config has none. */
kg_status kg_pieces_add(struct kg_reader *r, const struct kg_json *config,
                        bool *given) KG_MUST_CHECK;
/* Whether an added token has this id. */
bool kg_pieces_is_added(const struct kg_tokenizer *tok, int32_t id);
/* Makes a token of the vocabulary a special added token, unless it is an added one. */
kg_status kg_pieces_add_special(struct kg_reader *r, int32_t id) KG_MUST_CHECK;
/* Sets the tokens around a text, and tok->eos. bos and eos: from the file (-1: none);
 * bos_token and eos_token of tokenizer_config.json replace them. Its add_bos_token
 * (default true) and add_eos_token (default false) decide which are put. */
kg_status kg_pieces_add_ends(struct kg_reader *r, const struct kg_json *config,
                             int32_t bos, int32_t eos) KG_MUST_CHECK;

#endif
