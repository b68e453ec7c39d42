/* The public face of tokenizers: the table of kinds, opening a folder, decoding.
 *
 * Decoding knows no kinds: an id is some bytes, and a text is their sequence.
 */
#include "base/file.h"
#include "base/mem.h"
#include "data/json.h"
#include "text/tokenizer_internal.h"
#include "text/unicode.h"

#include <string.h>

enum { MAX_FILE_BYTES = 256 << 20, MAX_IDS = 1 << 30 };

/* The first kind whose file is in the folder is taken. */
static const struct kg_tokenizer_kind KINDS[] = {
    {"bpe", "tokenizer.json", kg_bpe_parse, kg_bpe_encode},
    {"chars", "token_ids.json", kg_chars_parse, kg_chars_encode},
};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

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
                            const struct kg_tokenizer_kind *kind, const char *json,
                            size_t n, const char *where, struct kg_err *err)
{
    struct kg_tokenizer *tok = kg_mem_calloc(1, sizeof *tok, "tokenizer", err);
    if (!tok)
        return err->code;
    tok->kind = kind;
    tok->eos = -1;
    kg_status status = kind->parse(tok, json, n, where, err);
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
    return parse_kind(tok, &KINDS[0], json, n, where, err);
}

/* dir/name as JSON; an absent file leaves doc empty. */
static kg_status read_optional(struct kg_json_doc *doc, const char *dir, const char *name,
                               struct kg_err *err)
{
    kg_status status = KG_OK;
    char *path = kg_path_join(dir, name, err);
    if (!path)
        return err->code;
    if (kg_file_exists(path))
        status = kg_json_read(doc, path, MAX_FILE_BYTES, err);
    kg_mem_free(path);
    return status;
}

/* `chars`: the characters that char_ords does not list are special. */
static void mark_special_chars(struct kg_tokenizer *tok, const struct kg_json *ords)
{
    for (int32_t id = 0; id < tok->vocab.n_ids; id++) {
        size_t n;
        uint32_t cp;
        bool listed = false;
        const char *bytes = kg_vocab_bytes(&tok->vocab, id, &n);
        if (!bytes)
            continue;
        kg_utf8_decode(&cp, bytes);
        for (size_t i = 0; i < kg_json_size(ords) && !listed; i++)
            listed = kg_json_int(kg_json_at(ords, i), -1) == (int64_t)cp;
        if (!listed)
            tok->vocab.flags[id] |= KG_VOCAB_SPECIAL;
    }
}

/* What tokenizer_config.json adds to the ids: the end token, as text or as an object with
 * content. */
static kg_status read_tokenizer_config(struct kg_tokenizer *tok, const char *dir,
                                       struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    size_t n;
    KG_TRY(read_optional(&doc, dir, "tokenizer_config.json", err));
    const struct kg_json *eos = kg_json_get(doc.root, "eos_token");
    const struct kg_json *ords = kg_json_get(doc.root, "char_ords");
    if (kg_json_type(eos) == KG_JSON_OBJECT)
        eos = kg_json_get(eos, "content");
    const char *text = kg_json_text(eos, &n);
    if (text)
        tok->eos = kg_tokenizer_find(tok, text);
    if (text && tok->eos < 0)
        tok->eos = kg_vocab_find(&tok->vocab, text, n, false);
    if (kg_json_type(ords) == KG_JSON_ARRAY && tok->kind == &KINDS[1])
        mark_special_chars(tok, ords);
    kg_json_release(&doc);
    return KG_OK;
}

/* Models have rows for more ids than their tokenizer has tokens (Qwen2: 151,936 against
 * 151,646). Those ids have no text; config.json beside the tokenizer says how many there
 * are. */
static kg_status read_padding(struct kg_tokenizer *tok, const char *dir,
                              struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    KG_TRY(read_optional(&doc, dir, "config.json", err));
    int64_t vocab_size = kg_json_int(kg_json_get(doc.root, "vocab_size"), 0);
    if (vocab_size > tok->n_padded && vocab_size <= KG_VOCAB_MAX_IDS)
        tok->n_padded = (int32_t)vocab_size;
    kg_json_release(&doc);
    return KG_OK;
}

static kg_status open_kind(struct kg_tokenizer **out,
                           const struct kg_tokenizer_kind *kind, const char *dir,
                           const char *path, struct kg_err *err)
{
    kg_status status;
    struct kg_str text = {0};
    struct kg_tokenizer *tok = NULL;
    KG_TRY_GOTO(out, kg_file_read(&text, path, MAX_FILE_BYTES, err));
    KG_TRY_GOTO(out, parse_kind(&tok, kind, kg_str_text(&text), text.len, path, err));
    KG_TRY_GOTO(out, read_tokenizer_config(tok, dir, err));
    KG_TRY_GOTO(out, read_padding(tok, dir, err));
    *out = tok;
    tok = NULL;
out:
    kg_str_release(&text);
    kg_tokenizer_close(tok);
    return status;
}

kg_status kg_tokenizer_open(struct kg_tokenizer **tok, const char *dir,
                            struct kg_err *err)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        char *path = kg_path_join(dir, KINDS[i].file, err);
        if (!path)
            return err->code;
        bool there = kg_file_exists(path);
        kg_status status = there ? open_kind(tok, &KINDS[i], dir, path, err) : KG_OK;
        kg_mem_free(path);
        if (there)
            return status;
    }
    return kg_fail(err, KG_ENOTFOUND, "%s: no tokenizer (expected %s or %s)", dir,
                   KINDS[0].file, KINDS[1].file);
}

void kg_tokenizer_close(struct kg_tokenizer *tok)
{
    if (!tok)
        return;
    for (size_t i = 0; i < KG_MAX_STAGES; i++)
        kg_pretoken_free(tok->stages[i].pattern);
    kg_added_release(&tok->raw);
    kg_added_release(&tok->normalized);
    kg_ids_release(&tok->prefix);
    kg_ids_release(&tok->suffix);
    kg_merges_release(&tok->merges);
    kg_vocab_release(&tok->vocab);
    kg_mem_free(tok);
}

/* ---- looking ---- */

const char *kg_tokenizer_kind(const struct kg_tokenizer *tok) { return tok->kind->name; }

int32_t kg_tokenizer_vocab_size(const struct kg_tokenizer *tok)
{
    return tok->vocab.n_ids;
}

int32_t kg_tokenizer_eos(const struct kg_tokenizer *tok) { return tok->eos; }

int32_t kg_tokenizer_find(const struct kg_tokenizer *tok, const char *piece)
{
    size_t n = strlen(piece);
    if (tok->kind == &KINDS[1])
        return kg_vocab_find(&tok->vocab, piece, n, false);
    const struct kg_added_token *token = kg_added_find(&tok->raw, piece, n);
    if (!token)
        token = kg_added_find(&tok->normalized, piece, n);
    return token ? token->id : -1;
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

kg_status kg_tokenizer_decode(struct kg_str *out, const struct kg_tokenizer *tok,
                              const int32_t *ids, size_t n, bool skip_special,
                              struct kg_err *err)
{
    for (size_t i = 0; i < n; i++) {
        size_t len;
        if (ids[i] < 0 || ids[i] >= tok->n_padded)
            return kg_fail(err, KG_EINVAL,
                           "token id %d at place %zu is out of range, expected 0 to %d",
                           ids[i], i, tok->n_padded - 1);
        const char *bytes = kg_vocab_bytes(&tok->vocab, ids[i], &len);
        if (bytes && !(skip_special && kg_tokenizer_is_special(tok, ids[i])))
            KG_TRY(kg_str_append(out, bytes, len, err));
    }
    return KG_OK;
}
