/* Reader of HuggingFace's tokenizer.json for byte-level BPE.
 *
 * The file describes a pipeline: added tokens, normalizer, pre_tokenizer, model,
 * post_processor, decoder. Every field of it is honoured, is known to have no effect on
 * ids and text, or is refused by name with its value; so is every field this reader does
 * not know. `truncation` and `padding` are read over: they are settings of the last user
 * of the Python object, and kedge neither truncates nor pads. The `pair` template is read
 * over, as kedge encodes one text.
 *
 * Encoding is in bpe_encode.c.
 */
#include "base/mem.h"
#include "data/json.h"
#include "text/bytelevel.h"
#include "text/tokenizer_internal.h"
#include "text/unicode.h"

#include <string.h>

const char KG_PATTERN_GPT2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char KG_PATTERN_QWEN2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{"
                                "L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

enum { MAX_SEQUENCE_DEPTH = 4 };

struct reader {
    struct kg_tokenizer *tok;
    struct kg_json_doc doc;
    struct kg_str scratch;     /* bytes of a spelling */
    const struct kg_json *unk; /* model.unk_token */
    bool byte_level;           /* the pre-tokenizer had its ByteLevel step */
    bool has_template;
    struct kg_err *err;
};

/* ---- fields ---- */

enum rule {
    READ,     /* honoured by the code that asked, or without effect on ids and text */
    IS_BOOL,  /* honoured; a boolean or absent */
    IS_FALSE, /* false or null */
    IS_EMPTY, /* null or "" */
    IS_ZERO,  /* null or 0 */
};

struct field {
    const char *key;
    enum rule rule;
};

static kg_status refuse(struct reader *r, const char *path, const char *key,
                        const struct kg_json *value, const char *expected)
{
    struct kg_str text = {0};
    if (kg_json_put_value(&text, value, r->err) == KG_OK)
        kg_fail(r->err, KG_EUNSUPPORTED, "%s: %s.%s is %.60s, expected %s", r->doc.where,
                path, key, kg_str_text(&text), expected);
    kg_str_release(&text);
    return r->err->code;
}

static kg_status check_rule(struct reader *r, const char *path, const struct field *field,
                            const struct kg_json *value)
{
    size_t n = 0;
    const char *text = kg_json_text(value, &n);
    bool is_null = kg_json_type(value) == KG_JSON_NULL;
    if (field->rule == IS_BOOL && kg_json_type(value) != KG_JSON_BOOL)
        return refuse(r, path, field->key, value, "true or false");
    if (field->rule == IS_FALSE && !is_null &&
        (kg_json_type(value) != KG_JSON_BOOL || kg_json_bool(value, true)))
        return refuse(r, path, field->key, value, "false");
    if (field->rule == IS_EMPTY && !is_null && (!text || n > 0))
        return refuse(r, path, field->key, value, "null or \"\"");
    if (field->rule == IS_ZERO && !is_null &&
        (!kg_json_is_number(value) || kg_json_real(value, 1) != 0))
        return refuse(r, path, field->key, value, "null or 0");
    return KG_OK;
}

/* Every key of object must be in fields (ended by a NULL key) and keep its rule. */
static kg_status check_fields(struct reader *r, const char *path,
                              const struct kg_json *object, const struct field *fields)
{
    if (kg_json_type(object) != KG_JSON_OBJECT)
        return kg_fail(r->err, KG_EFORMAT, "%s: %s: expected an object, found %s",
                       r->doc.where, path, kg_json_type_name(object));
    for (size_t i = 0; i < kg_json_size(object); i++) {
        const char *key = kg_json_key_at(object, i);
        const struct kg_json *value = kg_json_value_at(object, i);
        const struct field *field = fields;
        while (field->key && strcmp(field->key, key) != 0)
            field++;
        if (!field->key)
            return refuse(r, path, key, value,
                          "no such field (it is not known to kedge)");
        KG_TRY(check_rule(r, path, field, value));
    }
    return KG_OK;
}

static bool has_type(const struct kg_json *object, const char *type)
{
    const char *found = kg_json_text(kg_json_get(object, "type"), NULL);
    return found && strcmp(found, type) == 0;
}

/* The list under key, which a Sequence must have. */
static kg_status need_list(struct reader *r, const char *path,
                           const struct kg_json *object, const char *key,
                           const struct kg_json **list)
{
    *list = kg_json_get(object, key);
    if (kg_json_type(*list) != KG_JSON_ARRAY)
        return kg_fail(r->err, KG_EFORMAT, "%s: %s.%s: expected an array, found %s",
                       r->doc.where, path, key, kg_json_type_name(*list));
    return KG_OK;
}

/* ---- vocabulary ---- */

/* The id of a token by its spelling in the file; -1 when the vocabulary lacks it. */
static kg_status find_spelling(struct reader *r, const char *text, size_t n, int32_t *id,
                               bool *raw)
{
    kg_str_clear(&r->scratch);
    KG_TRY(kg_bytelevel_unspell(&r->scratch, raw, text, n, r->err));
    *id = kg_vocab_find(&r->tok->vocab, kg_str_text(&r->scratch), r->scratch.len, *raw);
    return KG_OK;
}

static kg_status read_id(struct reader *r, const struct kg_json *value, const char *token,
                         int64_t *id)
{
    *id = kg_json_int(value, -1);
    if (kg_json_type(value) == KG_JSON_INT && *id >= 0 && *id < KG_VOCAB_MAX_IDS)
        return KG_OK;
    return kg_fail(r->err, KG_EFORMAT,
                   "%s: id of token '%.40s': expected an integer from 0 to %d",
                   r->doc.where, token, KG_VOCAB_MAX_IDS - 1);
}

static kg_status max_id(struct reader *r, const struct kg_json *vocab,
                        const struct kg_json *added, int64_t *max)
{
    int64_t id;
    *max = -1;
    for (size_t i = 0; i < kg_json_size(vocab); i++) {
        KG_TRY(read_id(r, kg_json_value_at(vocab, i), kg_json_key_at(vocab, i), &id));
        *max = id > *max ? id : *max;
    }
    for (size_t i = 0; i < kg_json_size(added); i++) {
        KG_TRY(read_id(r, kg_json_get(kg_json_at(added, i), "id"), "added token", &id));
        *max = id > *max ? id : *max;
    }
    return KG_OK;
}

static kg_status read_vocab(struct reader *r, const struct kg_json *vocab,
                            const struct kg_json *added)
{
    int64_t max;
    size_t n = kg_json_size(vocab);
    if (kg_json_type(vocab) != KG_JSON_OBJECT || n == 0)
        return kg_fail(r->err, KG_EUNSUPPORTED,
                       "%s: model.vocab is %s, expected the tokens of a "
                       "byte-level BPE",
                       r->doc.where, n ? "not an object" : "empty");
    KG_TRY(max_id(r, vocab, added, &max));
    KG_TRY(kg_vocab_init(&r->tok->vocab, max + 1, n + kg_json_size(added), r->err));
    for (size_t i = 0; i < n; i++) {
        bool raw;
        const char *key = kg_json_key_at(vocab, i);
        kg_str_clear(&r->scratch);
        KG_TRY(kg_bytelevel_unspell(&r->scratch, &raw, key, strlen(key), r->err));
        if (kg_vocab_put(&r->tok->vocab, kg_json_int(kg_json_value_at(vocab, i), -1),
                         kg_str_text(&r->scratch), r->scratch.len, raw ? KG_VOCAB_RAW : 0,
                         r->err) != KG_OK)
            return kg_err_prefix(r->err, "%s: model.vocab", r->doc.where);
    }
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        r->tok->byte_ids[byte] = kg_vocab_find(&r->tok->vocab, &c, 1, false);
        if (r->tok->byte_ids[byte] < 0 && kg_json_type(r->unk) != KG_JSON_NULL)
            return refuse(r, "model", "unk_token", r->unk,
                          "null where the vocabulary does not have every byte");
    }
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

static kg_status merge_failed(struct reader *r, size_t i, const struct kg_json *merge,
                              const char *problem)
{
    struct kg_str text = {0};
    if (kg_json_put_value(&text, merge, r->err) == KG_OK)
        kg_fail(r->err, KG_EFORMAT, "%s: model.merges[%zu] %.60s: %s", r->doc.where, i,
                kg_str_text(&text), problem);
    kg_str_release(&text);
    return r->err->code;
}

static kg_status read_merge(struct reader *r, const struct kg_json *merge, size_t i,
                            struct kg_str *whole)
{
    struct halves h;
    int32_t left, right, id;
    bool raw_left, raw_right, raw;
    if (!read_halves(merge, &h))
        return merge_failed(r, i, merge,
                            "expected \"left right\" or [\"left\", \"right\"]");
    KG_TRY(find_spelling(r, h.left, h.n_left, &left, &raw_left));
    KG_TRY(find_spelling(r, h.right, h.n_right, &right, &raw_right));
    kg_str_clear(whole);
    KG_TRY(kg_str_append(whole, h.left, h.n_left, r->err));
    KG_TRY(kg_str_append(whole, h.right, h.n_right, r->err));
    KG_TRY(find_spelling(r, kg_str_text(whole), whole->len, &id, &raw));
    if (left < 0 || right < 0 || id < 0)
        return merge_failed(r, i, merge,
                            left < 0    ? "the left half is not in the vocabulary"
                            : right < 0 ? "the right half is not in the vocabulary"
                                        : "the merged token is not in the vocabulary");
    /* A raw half is never made of bytes, so its merge would never be used. */
    if (!raw)
        kg_merges_put(&r->tok->merges, left, right, (int32_t)i, id);
    return KG_OK;
}

static kg_status read_merges(struct reader *r, const struct kg_json *merges)
{
    kg_status status = KG_OK;
    struct kg_str whole = {0};
    size_t n = kg_json_size(merges);
    if (kg_json_type(merges) != KG_JSON_ARRAY || n > KG_VOCAB_MAX_IDS)
        return kg_fail(r->err, KG_EFORMAT,
                       "%s: model.merges: expected an array of at most %d", r->doc.where,
                       KG_VOCAB_MAX_IDS);
    KG_TRY(kg_merges_init(&r->tok->merges, n, r->err));
    for (size_t i = 0; i < n; i++)
        KG_TRY_GOTO(out, read_merge(r, kg_json_at(merges, i), i, &whole));
out:
    kg_str_release(&whole);
    return status;
}

static kg_status read_model(struct reader *r, const struct kg_json *model,
                            const struct kg_json *added)
{
    static const struct field fields[] = {
        {"type", READ},
        {"dropout", IS_ZERO},
        {"unk_token", READ},
        {"fuse_unk", IS_BOOL},
        {"byte_fallback", IS_FALSE},
        {"continuing_subword_prefix", IS_EMPTY},
        {"ignore_merges", IS_BOOL},
        {"vocab", READ},
        {"end_of_word_suffix", IS_EMPTY},
        {"merges", READ},
        {NULL, READ},
    };
    const struct kg_json *type = kg_json_get(model, "type");
    if (kg_json_type(model) == KG_JSON_OBJECT && type && !has_type(model, "BPE"))
        return refuse(r, "model", "type", type, "\"BPE\" (byte-level)");
    KG_TRY(check_fields(r, "model", model, fields));
    r->unk = kg_json_get(model, "unk_token");
    if (kg_json_type(r->unk) != KG_JSON_NULL && kg_json_type(r->unk) != KG_JSON_STRING)
        return refuse(r, "model", "unk_token", r->unk, "null or text");
    r->tok->ignore_merges = kg_json_bool(kg_json_get(model, "ignore_merges"), false);
    KG_TRY(read_vocab(r, kg_json_get(model, "vocab"), added));
    return read_merges(r, kg_json_get(model, "merges"));
}

/* ---- added tokens ---- */

/* Enter an added token into the vocabulary, or find it there. */
static kg_status place_added(struct reader *r, const struct kg_added_token *token)
{
    struct kg_vocab *vocab = &r->tok->vocab;
    const int shown = token->n < 40 ? (int)token->n : 40;
    int32_t id;
    bool raw;
    KG_TRY(find_spelling(r, token->content, token->n, &id, &raw));
    if (id < 0)
        return kg_vocab_put(vocab, token->id, token->content, token->n,
                            KG_VOCAB_RAW | (token->special ? KG_VOCAB_SPECIAL : 0),
                            r->err);
    if (id != token->id)
        return kg_fail(r->err, KG_EFORMAT, "'%.*s' has id %d, but %d in model.vocab",
                       shown, token->content, token->id, id);
    if (r->scratch.len != token->n ||
        memcmp(r->scratch.data, token->content, token->n) != 0)
        return kg_fail(r->err, KG_EUNSUPPORTED,
                       "'%.*s' stands for other bytes in model.vocab than its own", shown,
                       token->content);
    vocab->flags[id] |= token->special ? KG_VOCAB_SPECIAL : 0;
    return KG_OK;
}

/* A token that is looked for after normalization is normalized too. */
static kg_status push_normalized(struct reader *r, const struct kg_added_token *token)
{
    struct kg_added_token copy = *token;
    kg_str_clear(&r->scratch);
    if (r->tok->nfc)
        KG_TRY(kg_unicode_nfc(&r->scratch, token->content, token->n, r->err));
    else
        KG_TRY(kg_str_append(&r->scratch, token->content, token->n, r->err));
    copy.content = r->scratch.data;
    copy.n = r->scratch.len;
    return kg_added_push(&r->tok->normalized, &copy, r->err);
}

static kg_status read_added(struct reader *r, const struct kg_json *item)
{
    static const struct field fields[] = {
        {"id", READ},         {"content", READ},   {"single_word", IS_FALSE},
        {"lstrip", IS_BOOL},  {"rstrip", IS_BOOL}, {"normalized", IS_BOOL},
        {"special", IS_BOOL}, {NULL, READ},
    };
    struct kg_added_token token = {0};
    KG_TRY(check_fields(r, "added_tokens", item, fields));
    const char *content = kg_json_text(kg_json_get(item, "content"), &token.n);
    if (!content || token.n == 0)
        return kg_fail(r->err, KG_EFORMAT, "%s: added_tokens: an item has no content",
                       r->doc.where);
    token.content = kg_mem_copy(content, token.n, "added token", r->err);
    if (!token.content)
        return r->err->code;
    token.id = (int32_t)kg_json_int(kg_json_get(item, "id"), -1);
    token.lstrip = kg_json_bool(kg_json_get(item, "lstrip"), false);
    token.rstrip = kg_json_bool(kg_json_get(item, "rstrip"), false);
    token.special = kg_json_bool(kg_json_get(item, "special"), false);
    kg_status status = place_added(r, &token);
    if (status != KG_OK)
        kg_err_prefix(r->err, "%s: added_tokens", r->doc.where);
    else if (kg_json_bool(kg_json_get(item, "normalized"), !token.special))
        status = push_normalized(r, &token);
    else
        status = kg_added_push(&r->tok->raw, &token, r->err);
    kg_mem_free(token.content);
    return status;
}

static kg_status read_all_added(struct reader *r, const struct kg_json *added)
{
    for (size_t i = 0; i < kg_json_size(added); i++)
        KG_TRY(read_added(r, kg_json_at(added, i)));
    kg_added_sort(&r->tok->raw);
    kg_added_sort(&r->tok->normalized);
    return KG_OK;
}

/* ---- normalizer and pre_tokenizer ---- */

static kg_status read_normalizer(struct reader *r, const struct kg_json *value, int depth)
{
    static const struct field nfc[] = {{"type", READ}, {NULL, READ}};
    static const struct field sequence[] = {
        {"type", READ}, {"normalizers", READ}, {NULL, READ}};
    const struct kg_json *list;
    if (kg_json_type(value) == KG_JSON_NULL)
        return KG_OK;
    if (has_type(value, "NFC")) {
        r->tok->nfc = true;
        return check_fields(r, "normalizer", value, nfc);
    }
    if (!has_type(value, "Sequence") || depth == MAX_SEQUENCE_DEPTH)
        return refuse(r, "normalizer", "type", kg_json_get(value, "type"),
                      "null, NFC or a Sequence of NFC");
    KG_TRY(check_fields(r, "normalizer", value, sequence));
    KG_TRY(need_list(r, "normalizer", value, "normalizers", &list));
    for (size_t i = 0; i < kg_json_size(list); i++)
        KG_TRY(read_normalizer(r, kg_json_at(list, i), depth + 1));
    return KG_OK;
}

/* pattern NULL: the stage that puts a space in front */
static kg_status add_stage(struct reader *r, const char *pattern, size_t n, bool literal)
{
    struct kg_tokenizer *tok = r->tok;
    if (tok->n_stages == KG_MAX_STAGES)
        return kg_fail(r->err, KG_EUNSUPPORTED,
                       "%s: pre_tokenizer has more than %d steps", r->doc.where,
                       KG_MAX_STAGES);
    if (pattern && kg_pretoken_create(&tok->stages[tok->n_stages].pattern, pattern, n,
                                      literal, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s: pre_tokenizer", r->doc.where);
    tok->n_stages++;
    return KG_OK;
}

static kg_status read_byte_level(struct reader *r, const struct kg_json *value)
{
    static const struct field fields[] = {
        {"type", READ},
        {"add_prefix_space", IS_BOOL},
        {"trim_offsets", IS_BOOL},
        {"use_regex", IS_BOOL},
        {NULL, READ},
    };
    KG_TRY(check_fields(r, "pre_tokenizer", value, fields));
    r->byte_level = true;
    if (kg_json_bool(kg_json_get(value, "add_prefix_space"), true))
        KG_TRY(add_stage(r, NULL, 0, false));
    if (kg_json_bool(kg_json_get(value, "use_regex"), true))
        KG_TRY(add_stage(r, KG_PATTERN_GPT2, strlen(KG_PATTERN_GPT2), false));
    return KG_OK;
}

static kg_status read_split(struct reader *r, const struct kg_json *value)
{
    static const struct field fields[] = {
        {"type", READ},       {"pattern", READ}, {"behavior", READ},
        {"invert", IS_FALSE}, {NULL, READ},
    };
    static const struct field kinds[] = {{"Regex", READ}, {"String", READ}, {NULL, READ}};
    size_t n = 0;
    KG_TRY(check_fields(r, "pre_tokenizer", value, fields));
    const char *behavior = kg_json_text(kg_json_get(value, "behavior"), NULL);
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return refuse(r, "pre_tokenizer", "behavior", kg_json_get(value, "behavior"),
                      "\"Isolated\"");
    const struct kg_json *pattern = kg_json_get(value, "pattern");
    KG_TRY(check_fields(r, "pre_tokenizer.pattern", pattern, kinds));
    const char *text = kg_json_text(kg_json_get(pattern, "Regex"), &n);
    bool literal = !text;
    if (literal)
        text = kg_json_text(kg_json_get(pattern, "String"), &n);
    if (!text || kg_json_size(pattern) != 1)
        return refuse(r, "pre_tokenizer", "pattern", pattern,
                      "{\"Regex\": text} or {\"String\": text}");
    return add_stage(r, text, n, literal);
}

static kg_status read_pre_tokenizer(struct reader *r, const struct kg_json *value,
                                    int depth)
{
    static const struct field sequence[] = {
        {"type", READ}, {"pretokenizers", READ}, {NULL, READ}};
    const struct kg_json *list;
    if (r->byte_level)
        return refuse(r, "pre_tokenizer", "type", kg_json_get(value, "type"),
                      "nothing after ByteLevel");
    if (has_type(value, "ByteLevel"))
        return read_byte_level(r, value);
    if (has_type(value, "Split"))
        return read_split(r, value);
    if (!has_type(value, "Sequence") || depth == MAX_SEQUENCE_DEPTH)
        return refuse(r, "pre_tokenizer", "type", kg_json_get(value, "type"),
                      "ByteLevel, Split or a Sequence of them");
    KG_TRY(check_fields(r, "pre_tokenizer", value, sequence));
    KG_TRY(need_list(r, "pre_tokenizer", value, "pretokenizers", &list));
    for (size_t i = 0; i < kg_json_size(list); i++)
        KG_TRY(read_pre_tokenizer(r, kg_json_at(list, i), depth + 1));
    return KG_OK;
}

/* ---- post_processor and decoder ---- */

static kg_status push_template_ids(struct reader *r, const struct kg_json *template,
                                   const struct kg_json *item, struct kg_ids *ids)
{
    const struct kg_json *name = kg_json_get(item, "id");
    const char *key = kg_json_text(name, NULL);
    const struct kg_json *special = kg_json_get(kg_json_get(template, "special_tokens"),
                                                key ? key : "");
    const struct kg_json *list;
    KG_TRY(need_list(r, "post_processor.special_tokens", special, "ids", &list));
    for (size_t i = 0; i < kg_json_size(list); i++) {
        size_t n;
        int64_t id = kg_json_int(kg_json_at(list, i), -1);
        if (id < 0 || id > INT32_MAX || !kg_vocab_bytes(&r->tok->vocab, (int32_t)id, &n))
            return refuse(r, "post_processor.special_tokens", key, special,
                          "ids of known tokens");
        KG_TRY(kg_ids_push(ids, (int32_t)id, r->err));
    }
    return KG_OK;
}

static kg_status read_template(struct reader *r, const struct kg_json *value)
{
    static const struct field fields[] = {
        {"type", READ},           {"single", READ}, {"pair", READ},
        {"special_tokens", READ}, {NULL, READ},
    };
    static const struct field kinds[] = {
        {"SpecialToken", READ}, {"Sequence", READ}, {NULL, READ}};
    const struct kg_json *list;
    size_t n_texts = 0;
    KG_TRY(check_fields(r, "post_processor", value, fields));
    KG_TRY(need_list(r, "post_processor", value, "single", &list));
    if (r->has_template)
        return refuse(r, "post_processor", "single", list,
                      "one TemplateProcessing, not two");
    r->has_template = true;
    for (size_t i = 0; i < kg_json_size(list); i++) {
        const struct kg_json *item = kg_json_at(list, i);
        KG_TRY(check_fields(r, "post_processor.single", item, kinds));
        const struct kg_json *special = kg_json_get(item, "SpecialToken");
        n_texts += !special;
        if (special)
            KG_TRY(push_template_ids(r, value, special,
                                     n_texts ? &r->tok->suffix : &r->tok->prefix));
    }
    if (n_texts != 1)
        return refuse(r, "post_processor", "single", list,
                      "the text (Sequence A) exactly once");
    return KG_OK;
}

static kg_status read_post_processor(struct reader *r, const struct kg_json *value,
                                     int depth)
{
    static const struct field byte_level[] = {
        {"type", READ},
        {"add_prefix_space", IS_BOOL},
        {"trim_offsets", IS_BOOL},
        {"use_regex", IS_BOOL},
        {NULL, READ},
    };
    static const struct field sequence[] = {
        {"type", READ}, {"processors", READ}, {NULL, READ}};
    const struct kg_json *list;
    if (kg_json_type(value) == KG_JSON_NULL)
        return KG_OK;
    if (has_type(value, "ByteLevel")) /* it moves offsets only */
        return check_fields(r, "post_processor", value, byte_level);
    if (has_type(value, "TemplateProcessing"))
        return read_template(r, value);
    if (!has_type(value, "Sequence") || depth == MAX_SEQUENCE_DEPTH)
        return refuse(r, "post_processor", "type", kg_json_get(value, "type"),
                      "null, ByteLevel, TemplateProcessing or a Sequence of them");
    KG_TRY(check_fields(r, "post_processor", value, sequence));
    KG_TRY(need_list(r, "post_processor", value, "processors", &list));
    for (size_t i = 0; i < kg_json_size(list); i++)
        KG_TRY(read_post_processor(r, kg_json_at(list, i), depth + 1));
    return KG_OK;
}

static kg_status read_decoder(struct reader *r, const struct kg_json *value, int depth)
{
    static const struct field byte_level[] = {
        {"type", READ},
        {"add_prefix_space", IS_BOOL},
        {"trim_offsets", IS_BOOL},
        {"use_regex", IS_BOOL},
        {NULL, READ},
    };
    static const struct field sequence[] = {
        {"type", READ}, {"decoders", READ}, {NULL, READ}};
    const struct kg_json *list;
    if (has_type(value, "ByteLevel"))
        return check_fields(r, "decoder", value, byte_level);
    if (!has_type(value, "Sequence") || depth == MAX_SEQUENCE_DEPTH)
        return refuse(r, "decoder", "type", kg_json_get(value, "type"), "ByteLevel");
    KG_TRY(check_fields(r, "decoder", value, sequence));
    KG_TRY(need_list(r, "decoder", value, "decoders", &list));
    if (kg_json_size(list) != 1)
        return refuse(r, "decoder", "decoders", list, "one ByteLevel");
    return read_decoder(r, kg_json_at(list, 0), depth + 1);
}

/* ---- the whole ---- */

static kg_status read_root(struct reader *r)
{
    static const struct field fields[] = {
        {"version", READ},        {"truncation", READ},
        {"padding", READ},        {"added_tokens", READ},
        {"normalizer", READ},     {"pre_tokenizer", READ},
        {"post_processor", READ}, {"decoder", READ},
        {"model", READ},          {NULL, READ},
    };
    const struct kg_json *root = r->doc.root;
    KG_TRY(check_fields(r, "tokenizer.json", root, fields));
    const char *version = kg_json_text(kg_json_get(root, "version"), NULL);
    if (!version || strcmp(version, "1.0") != 0)
        return refuse(r, "tokenizer.json", "version", kg_json_get(root, "version"),
                      "\"1.0\"");
    const struct kg_json *added = kg_json_get(root, "added_tokens");
    if (kg_json_type(added) != KG_JSON_NULL && kg_json_type(added) != KG_JSON_ARRAY)
        return refuse(r, "tokenizer.json", "added_tokens", added, "an array");
    KG_TRY(read_model(r, kg_json_get(root, "model"), added));
    KG_TRY(read_normalizer(r, kg_json_get(root, "normalizer"), 0));
    KG_TRY(read_pre_tokenizer(r, kg_json_get(root, "pre_tokenizer"), 0));
    if (!r->byte_level)
        return refuse(r, "tokenizer.json", "pre_tokenizer",
                      kg_json_get(root, "pre_tokenizer"), "a ByteLevel step at its end");
    KG_TRY(read_decoder(r, kg_json_get(root, "decoder"), 0));
    KG_TRY(read_all_added(r, added));
    return read_post_processor(r, kg_json_get(root, "post_processor"), 0);
}

kg_status kg_bpe_parse(struct kg_tokenizer *tok, const char *json, size_t n,
                       const char *where, struct kg_err *err)
{
    struct reader r = {.tok = tok, .err = err};
    KG_TRY(kg_json_parse(&r.doc, json, n, where, err));
    kg_status status = read_root(&r);
    kg_json_release(&r.doc);
    kg_str_release(&r.scratch);
    return status;
}
