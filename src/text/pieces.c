/* What the two forms of tokenizer.model share. These files have tokens and ranks but no
 * merges. The merges are recovered by splitting every token at every position: if both
 * halves are tokens, the pair merges with the rank of the whole. This gives the same BPE
 * as a tokenizer.json. What such a file lacks (special tokens, ids at both ends of a
 * text) is read from tokenizer_config.json or is known for the two families. */
#include "text/pieces.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- merges ---- */

static int32_t ranked(const struct kg_vocab *v, const int32_t *rank, const char *bytes,
                      size_t n)
{
    int32_t id = kg_vocab_find(v, bytes, n, false);
    return id >= 0 && rank[id] >= 0 ? id : -1;
}

/* Counts the pairs of tokens that form token id, and puts them into m (NULL: nowhere). */
static size_t cut_token(const struct kg_tokenizer *tok, const int32_t *rank, int32_t id,
                        struct kg_merges *m)
{
    const struct kg_vocab *v = &tok->vocab;
    size_t n, found = 0;
    const char *bytes = kg_vocab_key(v, id, &n);
    for (size_t i = 1; i < n; i++) {
        if (tok->by_char && ((unsigned char)bytes[i] & 0xC0) == 0x80)
            continue;
        int32_t left = ranked(v, rank, bytes, i);
        int32_t right = left < 0 ? -1 : ranked(v, rank, bytes + i, n - i);
        if (right < 0)
            continue;
        found++;
        if (m)
            kg_merges_put(m, left, right, rank[id], id);
    }
    return found;
}

/* Every split of a token hashes its bytes, so the work grows with the square of its
 * length, and a small file could cause much. The 151,643 tokens of Qwen2 sum to 2^24. */
static kg_status check_work(const struct kg_tokenizer *tok, const int32_t *rank,
                            struct kg_err *err)
{
    const uint64_t most = (uint64_t)1 << 28;
    uint64_t work = 0;

    for (int32_t id = 0; id < tok->vocab.n_ids; id++) {
        const uint64_t n = rank[id] >= 0 ? tok->vocab.lengths[id] : 0;
        work += n * n;
    }
    if (work <= most)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "expected tokens whose squared lengths add up to at most %" PRIu64
                   ", found %" PRIu64,
                   most, work);
}

kg_status kg_pieces_merge(struct kg_tokenizer *tok, const int32_t *rank,
                          struct kg_err *err)
{
    size_t n = 0;
    KG_TRY(check_work(tok, rank, err));
    for (int32_t id = 0; id < tok->vocab.n_ids; id++)
        if (rank[id] >= 0)
            n += cut_token(tok, rank, id, NULL);
    KG_TRY(kg_merges_init(&tok->merges, n, err));
    for (int32_t id = 0; id < tok->vocab.n_ids; id++)
        if (rank[id] >= 0)
            cut_token(tok, rank, id, &tok->merges);
    return KG_OK;
}

/* ---- added tokens ---- */

/* {"128000": {"content": ...}, ...}: the id of the i-th. */
static kg_status added_id(struct kg_reader *r, const struct kg_json *added, size_t i,
                          int64_t *id)
{
    const char *key = kg_json_key_at(added, i);
    char *end;
    *id = strtoll(key, &end, 10);
    if (*key >= '0' && *key <= '9' && *end == '\0' && *id < KG_VOCAB_MAX_IDS)
        return KG_OK;
    return kg_fail(r->err, KG_EFORMAT,
                   "tokenizer_config.json: added_tokens_decoder: key '%.40s': expected "
                   "an id from 0 to %d",
                   key, KG_VOCAB_MAX_IDS - 1);
}

kg_status kg_pieces_n_ids(struct kg_reader *r, const struct kg_json *config, int64_t n,
                          int64_t *n_ids)
{
    const struct kg_json *added = kg_json_get(config, "added_tokens_decoder");
    *n_ids = n;
    for (size_t i = 0; i < kg_json_size(added); i++) {
        int64_t id;
        KG_TRY(added_id(r, added, i, &id));
        *n_ids = id >= *n_ids ? id + 1 : *n_ids;
    }
    return KG_OK;
}

kg_status kg_pieces_add(struct kg_reader *r, const struct kg_json *config, bool *given)
{
    const struct kg_json *added = kg_json_get(config, "added_tokens_decoder");
    *given = kg_json_size(added) > 0;
    for (size_t i = 0; i < kg_json_size(added); i++) {
        int64_t id;
        KG_TRY(added_id(r, added, i, &id));
        KG_TRY(kg_reader_add(r, kg_json_value_at(added, i), id));
    }
    return KG_OK;
}

bool kg_pieces_is_added(const struct kg_tokenizer *tok, int32_t id)
{
    return tok->vocab.flags[id] & KG_VOCAB_ADDED;
}

kg_status kg_pieces_add_special(struct kg_reader *r, int32_t id)
{
    struct kg_tokenizer *tok = r->tok;
    struct kg_added_token token = {.id = id, .special = true};
    const char *key = kg_vocab_key(&tok->vocab, id, &token.n);
    if (kg_pieces_is_added(tok, id))
        return KG_OK;
    token.content = kg_mem_copy(key, token.n, "added token", r->err);
    if (!token.content)
        return r->err->code;
    kg_status status = kg_added_push(&tok->raw, &token, r->err);
    kg_mem_free(token.content);
    tok->vocab.flags[id] |= KG_VOCAB_SPECIAL | KG_VOCAB_ADDED;
    return status;
}

/* ---- the ends of a text ---- */

/* *id <- the token that config[key] names, as text or as an object with `content`;
 * unchanged if it names none. */
static kg_status find_named(struct kg_reader *r, const struct kg_json *config,
                            const char *key, int32_t *id)
{
    size_t n;
    bool raw;
    const struct kg_json *token = kg_json_get(config, key);
    if (kg_json_type(token) == KG_JSON_OBJECT)
        token = kg_json_get(token, "content");
    const char *text = kg_json_text(token, &n);
    if (!text)
        return KG_OK;
    KG_TRY(kg_reader_find(r, text, n, id, &raw));
    if (*id >= 0)
        return KG_OK;
    return kg_fail(r->err, KG_EFORMAT,
                   "%s: %s of tokenizer_config.json is '%.40s', expected a token of the "
                   "vocabulary",
                   r->where, key, text);
}

kg_status kg_pieces_add_ends(struct kg_reader *r, const struct kg_json *config,
                             int32_t bos, int32_t eos)
{
    struct kg_tokenizer *tok = r->tok;
    KG_TRY(find_named(r, config, "bos_token", &bos));
    KG_TRY(find_named(r, config, "eos_token", &eos));
    tok->eos = eos;
    if (bos >= 0 && kg_json_bool(kg_json_get(config, "add_bos_token"), true))
        KG_TRY(kg_ids_push(&tok->prefix, bos, r->err));
    if (eos >= 0 && kg_json_bool(kg_json_get(config, "add_eos_token"), false))
        KG_TRY(kg_ids_push(&tok->suffix, eos, r->err));
    return KG_OK;
}

/* ---- telling the two forms apart ---- */

/* A SentencePiece file begins with the tag of its first piece, which is a line feed; a
 * tiktoken file with a base64 digit. */
kg_status kg_pieces_parse(struct kg_tokenizer *tok, const struct kg_tokenizer_file *file,
                          struct kg_err *err)
{
    struct kg_reader r = {.tok = tok, .where = file->where, .err = err};
    kg_status status;
    tok->model = &KG_MODEL_BPE;
    if (file->n == 0)
        return kg_fail(err, KG_EFORMAT, "%s: expected a model, found an empty file",
                       file->where);
    if (file->bytes[0] == '\n')
        status = kg_sentencepiece_parse(&r, file);
    else
        status = kg_tiktoken_parse(&r, file);
    kg_reader_release(&r);
    return status;
}
