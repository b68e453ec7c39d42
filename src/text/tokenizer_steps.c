/* The steps of a tokenizer.json around its model: normalizer, pre_tokenizer,
 * post_processor, decoder.
 *
 * Each is read into what kedge has for it, and every field is accounted for: one that is
 * not known is refused by its path, as ids that differ from the model's training are
 * worse than none. Patterns of known families are recognised and kept as constants.
 */
#include "text/tokenizer_read.h"
#include "text/unicode.h"

#include <string.h>

const char KG_PATTERN_GPT2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char KG_PATTERN_QWEN2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{"
                                "L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char KG_PATTERN_LLAMA3[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p"
                                 "{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                 "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

enum { MAX_SEQUENCE_DEPTH = 4 };

/* A text of object[key] that is not empty and has no NUL; NULL otherwise. */
static const char *text_of(const struct kg_json *object, const char *key)
{
    size_t n;
    const char *text = kg_json_text(kg_json_get(object, key), &n);
    return text && n > 0 && strlen(text) == n ? text : NULL;
}

static kg_status add_step(struct kg_reader *r, const char *path,
                          struct kg_normalizer *norm, enum kg_normalizer_kind kind,
                          const char *from, const char *to)
{
    if (kg_normalizer_add(norm, kind, from, to, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s: %s", r->where, path);
    return KG_OK;
}

/* {"type": "Replace", "pattern": {"String": from}, "content": to}, of normalizers and
 * decoders */
static kg_status read_replace(struct kg_reader *r, const char *path,
                              const struct kg_json *value, struct kg_normalizer *norm)
{
    static const struct kg_field fields[] = {{"type", KG_FIELD_READ},
                                             {"pattern", KG_FIELD_READ},
                                             {"content", KG_FIELD_READ},
                                             {NULL, KG_FIELD_READ}};
    KG_TRY(kg_reader_check(r, path, value, fields));
    const struct kg_json *pattern = kg_json_get(value, "pattern");
    const struct kg_json *content = kg_json_get(value, "content");
    const char *from = text_of(pattern, "String");
    size_t n;
    const char *to = kg_json_text(content, &n);
    if (!from || kg_json_size(pattern) != 1)
        return kg_reader_refuse(r, path, "pattern", pattern, "{\"String\": text}");
    if (!to || strlen(to) != n)
        return kg_reader_refuse(r, path, "content", content, "text");
    return add_step(r, path, norm, KG_NORMALIZE_REPLACE, from, to);
}

/* ---- normalizer ---- */

static kg_status read_prepend(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ}, {"prepend", KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    KG_TRY(kg_reader_check(r, "normalizer", value, fields));
    const char *front = text_of(value, "prepend");
    if (!front)
        return kg_reader_refuse(r, "normalizer", "prepend", kg_json_get(value, "prepend"),
                                "text");
    return add_step(r, "normalizer", &r->tok->normalizer, KG_NORMALIZE_PREPEND, NULL,
                    front);
}

/* One that is no Sequence. */
static kg_status read_normalizer_step(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field nfc[] = {{"type", KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    struct kg_normalizer *norm = &r->tok->normalizer;
    if (kg_reader_has_type(value, "Replace"))
        return read_replace(r, "normalizer", value, norm);
    if (kg_reader_has_type(value, "Prepend"))
        return read_prepend(r, value);
    if (!kg_reader_has_type(value, "NFC"))
        return kg_reader_refuse(r, "normalizer", "type", kg_json_get(value, "type"),
                                "null, NFC, Prepend, Replace or a Sequence of them");
    KG_TRY(kg_reader_check(r, "normalizer", value, nfc));
    return add_step(r, "normalizer", norm, KG_NORMALIZE_NFC, NULL, NULL);
}

kg_status kg_reader_normalizer(struct kg_reader *r, const struct kg_json *value,
                               int depth)
{
    static const struct kg_field sequence[] = {
        {"type", KG_FIELD_READ}, {"normalizers", KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    const struct kg_json *list;
    if (kg_json_type(value) == KG_JSON_NULL)
        return KG_OK;
    if (!kg_reader_has_type(value, "Sequence") || depth == MAX_SEQUENCE_DEPTH)
        return read_normalizer_step(r, value);
    KG_TRY(kg_reader_check(r, "normalizer", value, sequence));
    KG_TRY(kg_reader_list(r, "normalizer", value, "normalizers", &list));
    for (size_t i = 0; i < kg_json_size(list); i++)
        KG_TRY(kg_reader_normalizer(r, kg_json_at(list, i), depth + 1));
    return KG_OK;
}

/* ---- pre_tokenizer ---- */

/* NULL, with err set, when there are too many. */
static struct kg_pretoken_stage *add_stage(struct kg_reader *r,
                                           enum kg_pretoken_kind kind)
{
    struct kg_tokenizer *tok = r->tok;
    if (tok->n_stages < KG_MAX_STAGES) {
        tok->stages[tok->n_stages].kind = kind;
        return &tok->stages[tok->n_stages++];
    }
    kg_fail(r->err, KG_EUNSUPPORTED, "%s: pre_tokenizer has more than %d steps", r->where,
            KG_MAX_STAGES);
    return NULL;
}

kg_status kg_reader_cut(struct kg_reader *r, const char *pattern, size_t n, bool literal)
{
    struct kg_pretoken_stage *stage = add_stage(r, KG_PRETOKEN_PATTERN);
    if (!stage)
        return r->err->code;
    if (kg_pretoken_create(&stage->pattern, pattern, n, literal, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s: pre_tokenizer", r->where);
    return KG_OK;
}

static kg_status read_byte_level(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ},         {"add_prefix_space", KG_FIELD_BOOL},
        {"trim_offsets", KG_FIELD_BOOL}, {"use_regex", KG_FIELD_BOOL},
        {NULL, KG_FIELD_READ},
    };
    KG_TRY(kg_reader_check(r, "pre_tokenizer", value, fields));
    r->byte_level = true;
    if (kg_json_bool(kg_json_get(value, "add_prefix_space"), true) &&
        !add_stage(r, KG_PRETOKEN_SPACE))
        return r->err->code;
    if (kg_json_bool(kg_json_get(value, "use_regex"), true))
        KG_TRY(kg_reader_cut(r, KG_PATTERN_GPT2, strlen(KG_PATTERN_GPT2), false));
    return KG_OK;
}

static kg_status read_split(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ},     {"pattern", KG_FIELD_READ},
        {"behavior", KG_FIELD_READ}, {"invert", KG_FIELD_FALSE},
        {NULL, KG_FIELD_READ},
    };
    static const struct kg_field kinds[] = {
        {"Regex", KG_FIELD_READ}, {"String", KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    size_t n = 0;
    KG_TRY(kg_reader_check(r, "pre_tokenizer", value, fields));
    const char *behavior = kg_json_text(kg_json_get(value, "behavior"), NULL);
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return kg_reader_refuse(r, "pre_tokenizer", "behavior",
                                kg_json_get(value, "behavior"), "\"Isolated\"");
    const struct kg_json *pattern = kg_json_get(value, "pattern");
    KG_TRY(kg_reader_check(r, "pre_tokenizer.pattern", pattern, kinds));
    const char *text = kg_json_text(kg_json_get(pattern, "Regex"), &n);
    bool literal = !text;
    if (literal)
        text = kg_json_text(kg_json_get(pattern, "String"), &n);
    if (!text || kg_json_size(pattern) != 1)
        return kg_reader_refuse(r, "pre_tokenizer", "pattern", pattern,
                                "{\"Regex\": text} or {\"String\": text}");
    return kg_reader_cut(r, text, n, literal);
}

static kg_status read_byte_cuts(struct kg_reader *r, const struct kg_json *value,
                                int depth)
{
    static const struct kg_field sequence[] = {
        {"type", KG_FIELD_READ}, {"pretokenizers", KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    const struct kg_json *list;
    if (r->byte_level)
        return kg_reader_refuse(r, "pre_tokenizer", "type", kg_json_get(value, "type"),
                                "nothing after ByteLevel");
    if (kg_reader_has_type(value, "ByteLevel"))
        return read_byte_level(r, value);
    if (kg_reader_has_type(value, "Split"))
        return read_split(r, value);
    if (!kg_reader_has_type(value, "Sequence") || depth == MAX_SEQUENCE_DEPTH)
        return kg_reader_refuse(r, "pre_tokenizer", "type", kg_json_get(value, "type"),
                                "ByteLevel, Split or a Sequence of them");
    KG_TRY(kg_reader_check(r, "pre_tokenizer", value, sequence));
    KG_TRY(kg_reader_list(r, "pre_tokenizer", value, "pretokenizers", &list));
    for (size_t i = 0; i < kg_json_size(list); i++)
        KG_TRY(read_byte_cuts(r, kg_json_at(list, i), depth + 1));
    return KG_OK;
}

static bool is_character(const char *text)
{
    uint32_t cp;
    return text && kg_utf8_decode(&cp, text) == strlen(text);
}

static kg_status read_front(struct kg_reader *r, const char *path,
                            const struct kg_json *value, enum kg_mark_front *front)
{
    static const char *const names[] = {[KG_MARK_ALWAYS] = "always",
                                        [KG_MARK_FIRST] = "first",
                                        [KG_MARK_NEVER] = "never"};
    const struct kg_json *scheme = kg_json_get(value, "prepend_scheme");
    const char *text = scheme ? kg_json_text(scheme, NULL) : names[KG_MARK_ALWAYS];
    for (size_t i = 0; text && i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i]) != 0)
            continue;
        *front = (enum kg_mark_front)i;
        /* older files say it so */
        if (kg_json_bool(kg_json_get(value, "add_prefix_space"), true))
            return KG_OK;
        if (scheme && *front != KG_MARK_NEVER)
            break;
        *front = KG_MARK_NEVER;
        return KG_OK;
    }
    return kg_reader_refuse(r, path, "prepend_scheme", scheme,
                            "\"always\", \"first\" or \"never\", as add_prefix_space");
}

/* Metaspace, which is a pre-tokenizer and a decoder. */
static kg_status check_mark(struct kg_reader *r, const char *path,
                            const struct kg_json *value, const char **mark,
                            enum kg_mark_front *front)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ},
        {"replacement", KG_FIELD_READ},
        {"str_rep", KG_FIELD_READ},
        {"add_prefix_space", KG_FIELD_BOOL},
        {"prepend_scheme", KG_FIELD_READ},
        {"split", KG_FIELD_BOOL},
        {NULL, KG_FIELD_READ},
    };
    KG_TRY(kg_reader_check(r, path, value, fields));
    *mark = text_of(value, "replacement");
    if (!is_character(*mark))
        return kg_reader_refuse(r, path, "replacement", kg_json_get(value, "replacement"),
                                "one character");
    return read_front(r, path, value, front);
}

static kg_status read_mark(struct kg_reader *r, const struct kg_json *value)
{
    const char *mark;
    enum kg_mark_front front;
    KG_TRY(check_mark(r, "pre_tokenizer", value, &mark, &front));
    struct kg_pretoken_stage *stage = add_stage(r, KG_PRETOKEN_MARK);
    if (!stage)
        return r->err->code;
    stage->front = front;
    stage->split = kg_json_bool(kg_json_get(value, "split"), true);
    return kg_str_puts(&stage->mark, mark, r->err);
}

kg_status kg_reader_pre_tokenizer(struct kg_reader *r, const struct kg_json *value)
{
    if (r->tok->by_char) {
        if (kg_json_type(value) == KG_JSON_NULL)
            return KG_OK;
        if (kg_reader_has_type(value, "Metaspace"))
            return read_mark(r, value);
        return kg_reader_refuse(r, "pre_tokenizer", "type", kg_json_get(value, "type"),
                                "null or Metaspace (model.byte_fallback is true)");
    }
    KG_TRY(read_byte_cuts(r, value, 0));
    if (!r->byte_level)
        return kg_reader_refuse(r, "tokenizer.json", "pre_tokenizer", value,
                                "a ByteLevel step at its end");
    return KG_OK;
}

/* ---- post_processor ---- */

static kg_status push_template_ids(struct kg_reader *r, const struct kg_json *template,
                                   const struct kg_json *item, struct kg_ids *ids)
{
    const struct kg_json *name = kg_json_get(item, "id");
    const char *key = kg_json_text(name, NULL);
    const struct kg_json *special = kg_json_get(kg_json_get(template, "special_tokens"),
                                                key ? key : "");
    const struct kg_json *list;
    KG_TRY(kg_reader_list(r, "post_processor.special_tokens", special, "ids", &list));
    for (size_t i = 0; i < kg_json_size(list); i++) {
        size_t n;
        int64_t id = kg_json_int(kg_json_at(list, i), -1);
        if (id < 0 || id > INT32_MAX || !kg_vocab_bytes(&r->tok->vocab, (int32_t)id, &n))
            return kg_reader_refuse(r, "post_processor.special_tokens", key, special,
                                    "ids of known tokens");
        KG_TRY(kg_ids_push(ids, (int32_t)id, r->err));
    }
    return KG_OK;
}

static kg_status read_template(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ}, {"single", KG_FIELD_READ},
        {"pair", KG_FIELD_READ}, {"special_tokens", KG_FIELD_READ},
        {NULL, KG_FIELD_READ},
    };
    static const struct kg_field kinds[] = {{"SpecialToken", KG_FIELD_READ},
                                            {"Sequence", KG_FIELD_READ},
                                            {NULL, KG_FIELD_READ}};
    const struct kg_json *list;
    size_t n_texts = 0;
    KG_TRY(kg_reader_check(r, "post_processor", value, fields));
    KG_TRY(kg_reader_list(r, "post_processor", value, "single", &list));
    if (r->has_template)
        return kg_reader_refuse(r, "post_processor", "single", list,
                                "one TemplateProcessing, not two");
    r->has_template = true;
    for (size_t i = 0; i < kg_json_size(list); i++) {
        const struct kg_json *item = kg_json_at(list, i);
        KG_TRY(kg_reader_check(r, "post_processor.single", item, kinds));
        const struct kg_json *special = kg_json_get(item, "SpecialToken");
        n_texts += !special;
        if (special)
            KG_TRY(push_template_ids(r, value, special,
                                     n_texts ? &r->tok->suffix : &r->tok->prefix));
    }
    if (n_texts != 1)
        return kg_reader_refuse(r, "post_processor", "single", list,
                                "the text (Sequence A) exactly once");
    return KG_OK;
}

kg_status kg_reader_post_processor(struct kg_reader *r, const struct kg_json *value,
                                   int depth)
{
    static const struct kg_field byte_level[] = {
        {"type", KG_FIELD_READ},         {"add_prefix_space", KG_FIELD_BOOL},
        {"trim_offsets", KG_FIELD_BOOL}, {"use_regex", KG_FIELD_BOOL},
        {NULL, KG_FIELD_READ},
    };
    static const struct kg_field sequence[] = {
        {"type", KG_FIELD_READ}, {"processors", KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    const struct kg_json *list;
    if (kg_json_type(value) == KG_JSON_NULL)
        return KG_OK;
    if (kg_reader_has_type(value, "ByteLevel")) /* it moves offsets only */
        return kg_reader_check(r, "post_processor", value, byte_level);
    if (kg_reader_has_type(value, "TemplateProcessing"))
        return read_template(r, value);
    if (!kg_reader_has_type(value, "Sequence") || depth == MAX_SEQUENCE_DEPTH)
        return kg_reader_refuse(
            r, "post_processor", "type", kg_json_get(value, "type"),
            "null, ByteLevel, TemplateProcessing or a Sequence of them");
    KG_TRY(kg_reader_check(r, "post_processor", value, sequence));
    KG_TRY(kg_reader_list(r, "post_processor", value, "processors", &list));
    for (size_t i = 0; i < kg_json_size(list); i++)
        KG_TRY(kg_reader_post_processor(r, kg_json_at(list, i), depth + 1));
    return KG_OK;
}

/* ---- decoder ---- */

static kg_status read_byte_decoder(struct kg_reader *r, const struct kg_json *value,
                                   int depth)
{
    static const struct kg_field byte_level[] = {
        {"type", KG_FIELD_READ},         {"add_prefix_space", KG_FIELD_BOOL},
        {"trim_offsets", KG_FIELD_BOOL}, {"use_regex", KG_FIELD_BOOL},
        {NULL, KG_FIELD_READ},
    };
    static const struct kg_field sequence[] = {
        {"type", KG_FIELD_READ}, {"decoders", KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    const struct kg_json *list;
    if (kg_reader_has_type(value, "ByteLevel"))
        return kg_reader_check(r, "decoder", value, byte_level);
    if (!kg_reader_has_type(value, "Sequence") || depth == MAX_SEQUENCE_DEPTH)
        return kg_reader_refuse(r, "decoder", "type", kg_json_get(value, "type"),
                                "ByteLevel");
    KG_TRY(kg_reader_check(r, "decoder", value, sequence));
    KG_TRY(kg_reader_list(r, "decoder", value, "decoders", &list));
    if (kg_json_size(list) != 1)
        return kg_reader_refuse(r, "decoder", "decoders", list, "one ByteLevel");
    return read_byte_decoder(r, kg_json_at(list, 0), depth + 1);
}

/* What stands behind ByteFallback or Fuse would see more than a token. */
static kg_status need_tokens(struct kg_reader *r, const struct kg_json *value)
{
    if (!r->decodes_bytes && !r->fused)
        return KG_OK;
    return kg_reader_refuse(r, "decoder", "type", kg_json_get(value, "type"),
                            "it before ByteFallback and Fuse");
}

static kg_status decode_mark(struct kg_reader *r, const struct kg_json *value)
{
    const char *mark;
    enum kg_mark_front front;
    KG_TRY(need_tokens(r, value));
    KG_TRY(check_mark(r, "decoder", value, &mark, &front));
    /* all marks of the first token go */
    r->tok->lead = front == KG_MARK_NEVER ? r->tok->lead : INT32_MAX;
    return add_step(r, "decoder", &r->texts, KG_NORMALIZE_REPLACE, mark, " ");
}

static kg_status decode_strip(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ}, {"content", KG_FIELD_READ}, {"start", KG_FIELD_READ},
        {"stop", KG_FIELD_ZERO}, {NULL, KG_FIELD_READ},
    };
    KG_TRY(kg_reader_check(r, "decoder", value, fields));
    const char *content = text_of(value, "content");
    int64_t start = kg_json_int(kg_json_get(value, "start"), -1);
    if (!content || strcmp(content, " ") != 0)
        return kg_reader_refuse(r, "decoder", "content", kg_json_get(value, "content"),
                                "a space");
    if (start < 0 || start > 1 || r->tok->lead > 0)
        return kg_reader_refuse(r, "decoder", "start", kg_json_get(value, "start"),
                                "0 or 1, once");
    if (!r->fused)
        return kg_reader_refuse(r, "decoder", "type", kg_json_get(value, "type"),
                                "it behind Fuse");
    r->tok->lead = (int32_t)start;
    return KG_OK;
}

static kg_status read_char_step(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field bare[] = {{"type", KG_FIELD_READ},
                                           {NULL, KG_FIELD_READ}};
    if (kg_reader_has_type(value, "Metaspace"))
        return decode_mark(r, value);
    if (kg_reader_has_type(value, "Strip"))
        return decode_strip(r, value);
    if (kg_reader_has_type(value, "Replace")) {
        KG_TRY(need_tokens(r, value));
        return read_replace(r, "decoder", value, &r->texts);
    }
    bool fuse = kg_reader_has_type(value, "Fuse");
    if (!fuse && !kg_reader_has_type(value, "ByteFallback"))
        return kg_reader_refuse(
            r, "decoder", "type", kg_json_get(value, "type"),
            "Replace, ByteFallback, Fuse, Strip, Metaspace or a Sequence of them");
    r->decodes_bytes |= !fuse;
    r->fused |= fuse;
    return kg_reader_check(r, "decoder", value, bare);
}

static kg_status read_char_decoder(struct kg_reader *r, const struct kg_json *value,
                                   int depth)
{
    static const struct kg_field sequence[] = {
        {"type", KG_FIELD_READ}, {"decoders", KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    const struct kg_json *list;
    if (!kg_reader_has_type(value, "Sequence") || depth == MAX_SEQUENCE_DEPTH)
        return read_char_step(r, value);
    KG_TRY(kg_reader_check(r, "decoder", value, sequence));
    KG_TRY(kg_reader_list(r, "decoder", value, "decoders", &list));
    for (size_t i = 0; i < kg_json_size(list); i++)
        KG_TRY(read_char_decoder(r, kg_json_at(list, i), depth + 1));
    return KG_OK;
}

kg_status kg_reader_decoder(struct kg_reader *r, const struct kg_json *value)
{
    if (!r->tok->by_char)
        return read_byte_decoder(r, value, 0);
    KG_TRY(read_char_decoder(r, value, 0));
    if (!r->decodes_bytes)
        return kg_reader_refuse(r, "tokenizer.json", "decoder", value,
                                "a ByteFallback step (model.byte_fallback is true)");
    return KG_OK;
}
