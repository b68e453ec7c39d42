/* Tokenizers: the table of kinds, opening a folder, decoding.
 *
 * A kind determines how its file is read and how text is encoded. Decoding is the same
 * for all: each id has its bytes, and a text is their sequence.
 */
#include "base/file.h"
#include "base/mem.h"
#include "data/json.h"
#include "data/source.h"
#include "text/tokenizer_internal.h"
#include "text/unicode.h"

#include <string.h>

enum { MAX_FILE_BYTES = 256 << 20, MAX_IDS = 1 << 30 };

/* Opening a folder takes the first kind whose file exists. */
enum { KIND_JSON, KIND_MODEL, KIND_CHARS, N_KINDS };
static const struct kg_tokenizer_kind KINDS[N_KINDS] = {
    [KIND_JSON] = {NULL, "tokenizer.json", kg_json_tokenizer_parse, kg_pipeline_encode},
    [KIND_MODEL] = {NULL, "tokenizer.model", kg_pieces_parse, kg_pipeline_encode},
    [KIND_CHARS] = {"chars", "token_ids.json", kg_chars_parse, kg_chars_encode},
};

/* ---- ids ---- */

void kg_ids_release(struct kg_ids *ids)
{
    kg_mem_free(ids->ids);
    *ids = (struct kg_ids){0};
}

kg_status kg_ids_reserve(struct kg_ids *ids, size_t n, struct kg_err *err)
{
    if (n <= ids->capacity)
        return KG_OK;
    return kg_mem_grow(&ids->ids, &ids->capacity, n, sizeof *ids->ids, MAX_IDS,
                       "token ids", err);
}

kg_status kg_ids_push(struct kg_ids *ids, int32_t id, struct kg_err *err)
{
    KG_TRY(kg_ids_reserve(ids, ids->n + 1, err));
    ids->ids[ids->n++] = id;
    return KG_OK;
}

/* ---- opening ---- */

static kg_status parse_kind(struct kg_tokenizer **out,
                            const struct kg_tokenizer_kind *kind,
                            const struct kg_tokenizer_file *file, struct kg_err *err)
{
    struct kg_tokenizer *tok = kg_mem_calloc(1, sizeof *tok, "tokenizer", err);
    if (!tok)
        return err->code;
    tok->kind = kind;
    tok->eos = -1;
    tok->unknown = KG_NO_UNKNOWN;
    kg_status status = kind->parse(tok, file, err);
    if (status != KG_OK) {
        kg_tokenizer_close(tok);
        return status;
    }
    tok->n_padded = tok->vocab.n_ids;
    *out = tok;
    return KG_OK;
}

kg_status kg_tokenizer_parse(struct kg_tokenizer **tok, const char *json, size_t n,
                             const char *where, struct kg_err *err)
{
    const struct kg_tokenizer_file file = {.bytes = json, .n = n, .where = where};
    return parse_kind(tok, &KINDS[KIND_JSON], &file, err);
}

kg_status kg_tokenizer_parse_model(struct kg_tokenizer **tok, const void *bytes, size_t n,
                                   const char *where, struct kg_err *err)
{
    const struct kg_tokenizer_file file = {.bytes = bytes, .n = n, .where = where};
    return parse_kind(tok, &KINDS[KIND_MODEL], &file, err);
}

/* The end token of tokenizer_config.json: a text, or an object with `content`. */
static void read_eos(struct kg_tokenizer *tok, const struct kg_json *config)
{
    size_t n;
    const struct kg_json *eos = kg_json_get(config, "eos_token");
    if (kg_json_type(eos) == KG_JSON_OBJECT)
        eos = kg_json_get(eos, "content");
    const char *text = kg_json_text(eos, &n);
    if (!text)
        return;
    tok->eos = kg_tokenizer_find(tok, text);
    if (tok->eos < 0)
        tok->eos = kg_vocab_find(&tok->vocab, text, n, false);
}

/* Fails if text can become an id that has no row in the model. Special tokens beyond the
 * rows are allowed: Gemma 3 1B lists one of its multimodal siblings. If such a token is
 * used, an error names its id. */
static kg_status check_rows(const struct kg_tokenizer *tok, int64_t rows, const char *dir,
                            struct kg_err *err)
{
    int32_t id = tok->vocab.n_ids - 1;
    while (id >= rows && (kg_tokenizer_is_special(tok, id) || !kg_tokenizer_has(tok, id)))
        id--;
    if (id < rows)
        return KG_OK;
    return kg_fail(
        err, KG_ECONFLICT,
        "%s: expected ordinary tokens with ids below %lld (vocab_size of config.json), "
        "found id %d: the tokenizer belongs to another model",
        dir, (long long)rows, (int)id);
}

/* A model may have rows for more ids than its tokenizer has tokens (Qwen2: 151,936 and
 * 151,646). The ids between have no text; vocab_size of the folder's config.json counts
 * the rows. */
static kg_status read_padding(struct kg_tokenizer *tok, const char *dir,
                              struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    KG_TRY(kg_source_json_or_none(&doc, dir, "config.json", MAX_FILE_BYTES, err));
    int64_t vocab_size = kg_json_int(kg_json_get(doc.root, "vocab_size"), 0);
    kg_json_release(&doc);
    if (vocab_size > tok->n_padded && vocab_size <= KG_VOCAB_MAX_IDS)
        tok->n_padded = (int32_t)vocab_size;
    return vocab_size > 0 ? check_rows(tok, vocab_size, dir, err) : KG_OK;
}

/* Older folders list tokens in added_tokens.json next to a tokenizer.model, without the
 * rules for finding them in text. */
static kg_status check_added(const struct kg_tokenizer_kind *kind, const char *dir,
                             const struct kg_json *config, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    if (kind != &KINDS[KIND_MODEL] || kg_json_get(config, "added_tokens_decoder"))
        return KG_OK;
    KG_TRY(kg_source_json_or_none(&doc, dir, "added_tokens.json", MAX_FILE_BYTES, err));
    size_t n = kg_json_size(doc.root);
    kg_json_release(&doc);
    if (n == 0)
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "%s: added_tokens.json has %zu tokens: expected them in "
                   "added_tokens_decoder of tokenizer_config.json, too",
                   dir, n);
}

static kg_status open_kind(struct kg_tokenizer **out,
                           const struct kg_tokenizer_kind *kind, const char *dir,
                           struct kg_err *err)
{
    const struct kg_path path = kg_path_in(dir, kind->file);
    kg_status status;
    struct kg_str text = {0};
    struct kg_json_doc config = {0};
    struct kg_tokenizer *tok = NULL;
    KG_TRY_GOTO(out, kg_source_read(&text, dir, kind->file, MAX_FILE_BYTES, err));
    KG_TRY_GOTO(out, kg_source_json_or_none(&config, dir, "tokenizer_config.json",
                                            MAX_FILE_BYTES, err));
    KG_TRY_GOTO(out, check_added(kind, dir, config.root, err));
    const struct kg_tokenizer_file file = {.bytes = kg_str_text(&text),
                                           .n = text.len,
                                           .where = path.text,
                                           .config = config.root};
    KG_TRY_GOTO(out, parse_kind(&tok, kind, &file, err));
    read_eos(tok, config.root);
    KG_TRY_GOTO(out, read_padding(tok, dir, err));
    *out = tok;
    tok = NULL;
out:
    kg_str_release(&text);
    kg_json_release(&config);
    kg_tokenizer_close(tok);
    return status;
}

kg_status kg_tokenizer_open(struct kg_tokenizer **tok, const char *dir,
                            struct kg_err *err)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        const kg_status status = open_kind(tok, &KINDS[i], dir, err);

        if (status != KG_ENOTFOUND)
            return status;
    }
    return kg_fail(err, KG_ENOTFOUND, "%s: no tokenizer (expected %s, %s or %s)", dir,
                   KINDS[0].file, KINDS[1].file, KINDS[2].file);
}

void kg_tokenizer_close(struct kg_tokenizer *tok)
{
    if (!tok)
        return;
    for (size_t i = 0; i < KG_MAX_STAGES; i++) {
        kg_cut_release(&tok->stages[i].cut);
        kg_str_release(&tok->stages[i].mark);
    }
    kg_normalizer_release(&tok->normalizer);
    kg_added_release(&tok->raw);
    kg_added_release(&tok->normalized);
    kg_ids_release(&tok->prefix);
    kg_ids_release(&tok->suffix);
    kg_merges_release(&tok->merges);
    if (tok->model && tok->model->free)
        tok->model->free(tok->own);
    kg_vocab_release(&tok->vocab);
    kg_mem_free(tok);
}

/* ---- queries ---- */

const char *kg_tokenizer_kind(const struct kg_tokenizer *tok)
{
    return tok->model ? tok->model->name : tok->kind->name;
}

int32_t kg_tokenizer_vocab_size(const struct kg_tokenizer *tok)
{
    return tok->vocab.n_ids;
}

int32_t kg_tokenizer_eos(const struct kg_tokenizer *tok) { return tok->eos; }

int32_t kg_tokenizer_find(const struct kg_tokenizer *tok, const char *piece)
{
    size_t n = strlen(piece);
    if (tok->kind == &KINDS[KIND_CHARS])
        return kg_vocab_find(&tok->vocab, piece, n, false);
    const struct kg_added_token *token = kg_added_find(&tok->raw, piece, n);
    if (!token)
        token = kg_added_find(&tok->normalized, piece, n);
    return token ? token->id : -1;
}

int32_t kg_tokenizer_n_ids(const struct kg_tokenizer *tok) { return tok->n_padded; }

bool kg_tokenizer_has(const struct kg_tokenizer *tok, int32_t id)
{
    size_t len;

    return id >= 0 && id < tok->n_padded && kg_vocab_bytes(&tok->vocab, id, &len);
}

bool kg_tokenizer_is_special(const struct kg_tokenizer *tok, int32_t id)
{
    return id >= 0 && id < tok->vocab.n_ids && (tok->vocab.flags[id] & KG_VOCAB_SPECIAL);
}

/* ---- encoding and decoding ---- */

kg_status kg_tokenizer_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                              const char *text, size_t n, struct kg_encode_opts opts,
                              struct kg_err *err)
{
    size_t before = out->n;
    KG_TRY(kg_utf8_check(text, n, err));
    kg_status status = tok->kind->encode(out, tok, text, n, opts, err);
    if (status != KG_OK)
        out->n = before;
    return status;
}

/* ids[from, to) */
static kg_status decode_range(struct kg_str *out, const struct kg_tokenizer *tok,
                              const int32_t *ids, size_t from, size_t to,
                              bool skip_special, struct kg_err *err)
{
    for (size_t i = from; i < to; i++) {
        size_t len;
        if (ids[i] < 0 || ids[i] >= tok->n_padded)
            return kg_fail(err, KG_EINVAL,
                           "token id %d at index %zu is out of range, expected 0 to %d",
                           ids[i], i, tok->n_padded - 1);
        const char *bytes = kg_vocab_bytes(&tok->vocab, ids[i], &len);
        if (bytes && !(skip_special && kg_tokenizer_is_special(tok, ids[i])))
            KG_TRY(kg_str_append(out, bytes, len, err));
    }
    return KG_OK;
}

kg_status kg_tokenizer_decode(struct kg_str *out, const struct kg_tokenizer *tok,
                              const int32_t *ids, size_t n, bool skip_special,
                              struct kg_err *err)
{
    return decode_range(out, tok, ids, 0, n, skip_special, err);
}

/* Bytes of the leading spaces that encoding put before the text. */
static size_t lead_of(const struct kg_tokenizer *tok, const char *bytes, size_t n)
{
    size_t lead = 0;
    while (lead < n && lead < (size_t)tok->lead && bytes[lead] == ' ')
        lead++;
    return lead;
}

kg_status kg_tokenizer_decode_text(struct kg_str *out, const struct kg_tokenizer *tok,
                                   const int32_t *ids, size_t n, bool skip_special,
                                   struct kg_err *err)
{
    size_t begin = out->len;
    size_t i = 0;
    for (; i < n && out->len == begin; i++) /* up to the first id with bytes */
        KG_TRY(decode_range(out, tok, ids, i, i + 1, skip_special, err));
    size_t lead = lead_of(tok, kg_str_text(out) + begin, out->len - begin);
    if (lead > 0) {
        out->len -= lead;
        memmove(out->data + begin, out->data + begin + lead, out->len - begin + 1);
    }
    return decode_range(out, tok, ids, i, n, skip_special, err);
}
