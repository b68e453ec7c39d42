/* Reader of HuggingFace's tokenizer.json and of its models: BPE of bytes or characters,
 * and Unigram. WordPiece, which guests/retriever reads, is a row.
 *
 * The file describes a pipeline: added tokens, normalizer, pre_tokenizer, model,
 * post_processor, decoder. Every known field is honoured, is ignored because it affects
 * neither ids nor text, or is refused with its name and value, as unknown fields are.
 * `truncation` and `padding` are ignored: they are settings of the Python object's last
 * user, and kedge neither truncates nor pads. The `pair` template is ignored, because
 * kedge encodes one text.
 *
 * Encoding is in encode.c and models.c, the other parts in tokenizer_normalizer.c,
 * tokenizer_cuts.c and tokenizer_steps.c.
 */
#include "text/tokenizer_read.h"

#include "base/status.h"
#include "text/bytelevel.h"

#include <string.h>

/* ---- vocabulary ---- */

/* vocab: an object of tokens and ids, or NULL. */
static kg_status max_id(struct kg_reader *r, const struct kg_json *vocab,
                        const struct kg_json *added, int64_t *max)
{
    int64_t id;
    for (size_t i = 0; i < kg_json_size(vocab); i++) {
        KG_TRY(
            kg_reader_id(r, kg_json_value_at(vocab, i), kg_json_key_at(vocab, i), &id));
        *max = id > *max ? id : *max;
    }
    for (size_t i = 0; i < kg_json_size(added); i++) {
        KG_TRY(
            kg_reader_id(r, kg_json_get(kg_json_at(added, i), "id"), "added token", &id));
        *max = id > *max ? id : *max;
    }
    return KG_OK;
}

/* Adds a token as it is spelled in the file. */
static kg_status put_token(struct kg_reader *r, int64_t id, const char *key)
{
    bool raw = false;
    kg_str_clear(&r->scratch);
    if (r->spelled)
        KG_TRY(kg_bytelevel_unspell(&r->scratch, &raw, key, strlen(key), r->err));
    else
        KG_TRY(kg_str_puts(&r->scratch, key, r->err));
    if (kg_vocab_put(&r->tok->vocab, id, kg_str_text(&r->scratch), r->scratch.len,
                     raw ? KG_VOCAB_RAW : 0, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s: model.vocab", r->where);
    return KG_OK;
}

/* {"token": id, ...} */
kg_status kg_reader_vocab(struct kg_reader *r, const struct kg_json *model,
                          const struct kg_json *added)
{
    const struct kg_json *vocab = kg_json_get(model, "vocab");
    int64_t max = -1;
    size_t n = kg_json_size(vocab);
    if (kg_json_type(vocab) != KG_JSON_OBJECT || n == 0)
        return kg_fail(r->err, KG_EUNSUPPORTED,
                       "%s: model.vocab is %s, expected an object of tokens and ids",
                       r->where, n ? "not an object" : "empty");
    KG_TRY(max_id(r, vocab, added, &max));
    KG_TRY(kg_vocab_init(&r->tok->vocab, max + 1, n + kg_json_size(added), r->err));
    for (size_t i = 0; i < n; i++)
        KG_TRY(put_token(r, kg_json_int(kg_json_value_at(vocab, i), -1),
                         kg_json_key_at(vocab, i)));
    return KG_OK;
}

kg_status kg_reader_unknown(struct kg_reader *r, const struct kg_json *model, bool needed)
{
    const struct kg_json *unk = kg_json_get(model, "unk_token");
    size_t n;
    bool raw;
    const char *text = kg_json_text(unk, &n);
    if (!text && (needed || kg_json_type(unk) != KG_JSON_NULL))
        return kg_reader_refuse(r, "model", "unk_token", unk,
                                needed ? "text" : "null or text");
    if (!text)
        return KG_OK;
    KG_TRY(kg_reader_find(r, text, n, &r->tok->unknown, &raw));
    if (r->tok->unknown < 0)
        r->tok->unknown = KG_LOST_UNKNOWN;
    return KG_OK;
}

/* ---- merges ---- */

struct halves {
    const char *left, *right;
    size_t n_left, n_right;
};

/* "a b" or ["a", "b"]; false when it is neither */
static bool read_halves(const struct kg_json *merge, struct halves *h)
{
    size_t n;
    const char *text = kg_json_text(merge, &n);
    if (!text) {
        h->left = kg_json_text(kg_json_at(merge, 0), &h->n_left);
        h->right = kg_json_text(kg_json_at(merge, 1), &h->n_right);
        return kg_json_size(merge) == 2 && h->left && h->right;
    }
    const char *space = memchr(text, ' ', n);
    if (!space)
        return false;
    h->left = text;
    h->n_left = (size_t)(space - text);
    h->right = space + 1;
    h->n_right = n - h->n_left - 1;
    return !memchr(h->right, ' ', h->n_right);
}

static kg_status merge_failed(struct kg_reader *r, size_t i, const struct kg_json *merge,
                              const char *problem)
{
    struct kg_str text = {0};
    if (kg_json_put_value(&text, merge, r->err) == KG_OK)
        kg_fail(r->err, KG_EFORMAT, "%s: model.merges[%zu] %.60s: %s", r->where, i,
                kg_str_text(&text), problem);
    kg_str_release(&text);
    return r->err->code;
}

static kg_status read_merge(struct kg_reader *r, const struct kg_json *merge, size_t i,
                            struct kg_str *whole)
{
    struct halves h;
    int32_t left, right, id;
    bool raw_left, raw_right, raw;
    if (!read_halves(merge, &h))
        return merge_failed(r, i, merge,
                            "expected \"left right\" or [\"left\", \"right\"]");
    KG_TRY(kg_reader_find(r, h.left, h.n_left, &left, &raw_left));
    KG_TRY(kg_reader_find(r, h.right, h.n_right, &right, &raw_right));
    kg_str_clear(whole);
    KG_TRY(kg_str_append(whole, h.left, h.n_left, r->err));
    KG_TRY(kg_str_append(whole, h.right, h.n_right, r->err));
    KG_TRY(kg_reader_find(r, kg_str_text(whole), whole->len, &id, &raw));
    if (left < 0 || right < 0 || id < 0)
        return merge_failed(r, i, merge,
                            left < 0    ? "the left half is not in the vocabulary"
                            : right < 0 ? "the right half is not in the vocabulary"
                                        : "the merged token is not in the vocabulary");
    /* A raw token is not made of bytes, so its merge could never apply. */
    if (!raw)
        kg_merges_put(&r->tok->merges, left, right, (int32_t)i, id);
    return KG_OK;
}

static kg_status read_merges(struct kg_reader *r, const struct kg_json *merges)
{
    kg_status status = KG_OK;
    struct kg_str whole = {0};
    size_t n = kg_json_size(merges);
    if (kg_json_type(merges) != KG_JSON_ARRAY || n > KG_VOCAB_MAX_IDS)
        return kg_fail(r->err, KG_EFORMAT,
                       "%s: model.merges: expected an array of at most %d", r->where,
                       KG_VOCAB_MAX_IDS);
    KG_TRY(kg_merges_init(&r->tok->merges, n, r->err));
    for (size_t i = 0; i < n; i++)
        KG_TRY_GOTO(out, read_merge(r, kg_json_at(merges, i), i, &whole));
out:
    kg_str_release(&whole);
    return status;
}

/* ---- the models ---- */

kg_status kg_reader_bpe(struct kg_reader *r, const struct kg_json *model,
                        const struct kg_json *added)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ},
        {"dropout", KG_FIELD_ZERO},
        {"unk_token", KG_FIELD_READ},
        {"fuse_unk", KG_FIELD_BOOL},
        {"byte_fallback", KG_FIELD_BOOL},
        {"continuing_subword_prefix", KG_FIELD_EMPTY},
        {"ignore_merges", KG_FIELD_BOOL},
        {"vocab", KG_FIELD_READ},
        {"end_of_word_suffix", KG_FIELD_EMPTY},
        {"merges", KG_FIELD_READ},
        {NULL, KG_FIELD_READ},
    };
    struct kg_tokenizer *tok = r->tok;
    KG_TRY(kg_reader_check(r, "model", model, fields));
    tok->ignore_merges = kg_json_bool(kg_json_get(model, "ignore_merges"), false);
    tok->fuse_unknown = kg_json_bool(kg_json_get(model, "fuse_unk"), false);
    tok->byte_fallback = kg_json_bool(kg_json_get(model, "byte_fallback"), false);
    if (r->spelled && tok->byte_fallback)
        return kg_reader_refuse(r, "model", "byte_fallback",
                                kg_json_get(model, "byte_fallback"),
                                "false where the pre_tokenizer has a ByteLevel");
    tok->by_char = !r->spelled;
    KG_TRY(kg_reader_vocab(r, model, added));
    KG_TRY(kg_reader_unknown(r, model, false));
    if (r->spelled) {
        for (int byte = 0; byte < 256; byte++) {
            char c = (char)byte;
            tok->byte_ids[byte] = kg_vocab_find(&tok->vocab, &c, 1, false);
        }
    } else
        KG_TRY(kg_reader_find_bytes(r));
    return read_merges(r, kg_json_get(model, "merges"));
}

/* [["piece", score], ...], where the index is the id. */
static kg_status read_pieces(struct kg_reader *r, const struct kg_json *vocab)
{
    struct kg_unigram *u = r->tok->own;
    double least = 0;
    for (int32_t id = 0; id < u->n_scores; id++) {
        const struct kg_json *item = kg_json_at(vocab, (size_t)id);
        const struct kg_json *score = kg_json_at(item, 1);
        const char *text = kg_json_text(kg_json_at(item, 0), NULL);
        if (kg_json_size(item) != 2 || !text || !kg_json_is_number(score))
            return kg_fail(r->err, KG_EFORMAT,
                           "%s: model.vocab[%d]: expected [text, score]", r->where, id);
        KG_TRY(put_token(r, id, text));
        u->scores[id] = kg_json_real(score, 0);
        least = id == 0 || u->scores[id] < least ? u->scores[id] : least;
    }
    u->unknown = least - KG_UNKNOWN_PENALTY;
    return KG_OK;
}

kg_status kg_reader_unigram(struct kg_reader *r, const struct kg_json *model,
                            const struct kg_json *added)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ},  {"unk_id", KG_FIELD_READ},
        {"vocab", KG_FIELD_READ}, {"byte_fallback", KG_FIELD_BOOL},
        {NULL, KG_FIELD_READ},
    };
    struct kg_tokenizer *tok = r->tok;
    const struct kg_json *vocab, *unk = kg_json_get(model, "unk_id");
    KG_TRY(kg_reader_check(r, "model", model, fields));
    KG_TRY(kg_reader_list(r, "model", model, "vocab", &vocab));
    const int64_t n = (int64_t)kg_json_size(vocab);
    int64_t max = n - 1;
    if (n == 0 || n > KG_VOCAB_MAX_IDS)
        return kg_fail(r->err, KG_EUNSUPPORTED,
                       "%s: model.vocab: expected 1 to %d pieces, found %lld", r->where,
                       KG_VOCAB_MAX_IDS, (long long)n);
    if (kg_json_type(unk) != KG_JSON_NULL &&
        (kg_json_int(unk, -1) < 0 || kg_json_int(unk, -1) >= n))
        return kg_reader_refuse(r, "model", "unk_id", unk, "null or the id of a piece");
    tok->unknown = (int32_t)kg_json_int(unk, KG_NO_UNKNOWN);
    tok->byte_fallback = kg_json_bool(kg_json_get(model, "byte_fallback"), false);
    KG_TRY(max_id(r, NULL, added, &max));
    KG_TRY(kg_vocab_init(&tok->vocab, max + 1, (size_t)n + kg_json_size(added), r->err));
    tok->own = kg_unigram_create((size_t)n, r->err);
    if (!tok->own)
        return r->err->code;
    KG_TRY(read_pieces(r, vocab));
    KG_TRY(kg_reader_find_bytes(r));
    return kg_unigram_build(tok->own, &tok->vocab, r->err);
}

static kg_status read_model(struct kg_reader *r, const struct kg_json *model,
                            const struct kg_json *added)
{
    static const struct {
        const char *type;
        const struct kg_token_model *model;
        const char *guest; /* the guest that defines it */
    } rows[] = {{"BPE", &KG_MODEL_BPE, NULL},
                {"WordPiece", &KG_MODEL_WORDPIECE, "retriever"},
                {"Unigram", &KG_MODEL_UNIGRAM, NULL}};
    const struct kg_json *type = kg_json_get(model, "type");
    if (kg_json_type(model) == KG_JSON_OBJECT && !type)
        r->tok->model = &KG_MODEL_BPE; /* older files have no type */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!kg_reader_has_type(model, rows[i].type))
            continue;
        if (!rows[i].model && kg_guest_missing(rows[i].type, rows[i].guest, r->err))
            return kg_err_prefix(r->err, "%s: model.type", r->where);
        r->tok->model = rows[i].model;
    }
    if (!r->tok->model)
        return kg_reader_refuse(r, "model", "type", type,
                                "\"BPE\", \"WordPiece\" or \"Unigram\"");
    if (r->spelled && r->tok->model != &KG_MODEL_BPE)
        return kg_reader_refuse(r, "model", "type", type,
                                "\"BPE\" where the pre_tokenizer has a ByteLevel");
    return r->tok->model->read(r, model, added);
}

/* ---- the whole file ---- */

static kg_status read_root(struct kg_reader *r, const struct kg_json *root)
{
    static const struct kg_field fields[] = {
        {"version", KG_FIELD_READ},        {"truncation", KG_FIELD_READ},
        {"padding", KG_FIELD_READ},        {"added_tokens", KG_FIELD_READ},
        {"normalizer", KG_FIELD_READ},     {"pre_tokenizer", KG_FIELD_READ},
        {"post_processor", KG_FIELD_READ}, {"decoder", KG_FIELD_READ},
        {"model", KG_FIELD_READ},          {NULL, KG_FIELD_READ},
    };
    KG_TRY(kg_reader_check(r, "tokenizer.json", root, fields));
    const char *version = kg_json_text(kg_json_get(root, "version"), NULL);
    if (!version || strcmp(version, "1.0") != 0)
        return kg_reader_refuse(r, "tokenizer.json", "version",
                                kg_json_get(root, "version"), "\"1.0\"");
    const struct kg_json *added = kg_json_get(root, "added_tokens");
    if (kg_json_type(added) != KG_JSON_NULL && kg_json_type(added) != KG_JSON_ARRAY)
        return kg_reader_refuse(r, "tokenizer.json", "added_tokens", added, "an array");
    r->spelled = kg_reader_has_byte_level(kg_json_get(root, "pre_tokenizer"), 0);
    KG_TRY(read_model(r, kg_json_get(root, "model"), added));
    KG_TRY(kg_reader_normalizer(r, kg_json_get(root, "normalizer")));
    KG_TRY(kg_reader_pre_tokenizer(r, kg_json_get(root, "pre_tokenizer")));
    KG_TRY(kg_reader_decoder(r, kg_json_get(root, "decoder")));
    for (size_t i = 0; i < kg_json_size(added); i++) {
        const struct kg_json *item = kg_json_at(added, i);
        KG_TRY(kg_reader_add(r, item, kg_json_int(kg_json_get(item, "id"), -1)));
    }
    kg_added_sort(&r->tok->raw);
    kg_added_sort(&r->tok->normalized);
    if (!r->spelled)
        KG_TRY(kg_reader_set_texts(r));
    return kg_reader_post_processor(r, kg_json_get(root, "post_processor"));
}

kg_status kg_json_tokenizer_parse(struct kg_tokenizer *tok,
                                  const struct kg_tokenizer_file *file,
                                  struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_reader r = {.tok = tok, .where = file->where, .err = err};
    KG_TRY(kg_json_parse(&doc, file->bytes, file->n, file->where, err));
    kg_status status = read_root(&r, doc.root);
    kg_json_release(&doc);
    kg_reader_release(&r);
    return status;
}
