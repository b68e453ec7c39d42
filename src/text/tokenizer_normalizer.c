/* The normalizer of a tokenizer.json: a row for every type, read into steps.
 *
 * BertNormalizer is up to four steps, which its fields turn on and off; most others are
 * one step. A field that is neither read nor known to be harmless is refused by its path.
 */
#include "text/bytelevel.h"
#include "text/tokenizer_read.h"

#include <string.h>

static const char PATH[] = "normalizer";

static kg_status add(struct kg_reader *r, enum kg_normalizer_kind kind)
{
    return kg_reader_add_step(r, PATH, &r->tok->normalizer, kind, NULL, NULL);
}

static kg_status add_bare(struct kg_reader *r, const struct kg_json *value,
                          enum kg_normalizer_kind kind)
{
    KG_TRY(kg_reader_bare(r, PATH, value));
    return add(r, kind);
}

static kg_status read_nfc(struct kg_reader *r, const struct kg_json *value)
{
    return add_bare(r, value, KG_NORMALIZE_NFC);
}

static kg_status read_nfd(struct kg_reader *r, const struct kg_json *value)
{
    return add_bare(r, value, KG_NORMALIZE_NFD);
}

static kg_status read_nfkc(struct kg_reader *r, const struct kg_json *value)
{
    return add_bare(r, value, KG_NORMALIZE_NFKC);
}

static kg_status read_nfkd(struct kg_reader *r, const struct kg_json *value)
{
    return add_bare(r, value, KG_NORMALIZE_NFKD);
}

static kg_status read_lowercase(struct kg_reader *r, const struct kg_json *value)
{
    return add_bare(r, value, KG_NORMALIZE_LOWER);
}

static kg_status read_strip_accents(struct kg_reader *r, const struct kg_json *value)
{
    return add_bare(r, value, KG_NORMALIZE_DROP_MARKS);
}

static kg_status read_nmt(struct kg_reader *r, const struct kg_json *value)
{
    return add_bare(r, value, KG_NORMALIZE_NMT);
}

static kg_status read_strip(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {{"type", KG_FIELD_READ},
                                             {"strip_left", KG_FIELD_BOOL},
                                             {"strip_right", KG_FIELD_BOOL},
                                             {NULL, KG_FIELD_READ}};
    KG_TRY(kg_reader_check(r, PATH, value, fields));
    if (kg_json_bool(kg_json_get(value, "strip_left"), true))
        KG_TRY(add(r, KG_NORMALIZE_STRIP_LEFT));
    if (kg_json_bool(kg_json_get(value, "strip_right"), true))
        KG_TRY(add(r, KG_NORMALIZE_STRIP_RIGHT));
    return KG_OK;
}

static kg_status read_prepend(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ}, {"prepend", KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    KG_TRY(kg_reader_check(r, PATH, value, fields));
    const char *front = kg_reader_text(value, "prepend");
    if (!front)
        return kg_reader_refuse(r, PATH, "prepend", kg_json_get(value, "prepend"),
                                "text");
    return kg_reader_add_step(r, PATH, &r->tok->normalizer, KG_NORMALIZE_PREPEND, NULL,
                              front);
}

/* {"type": "Replace", "pattern": {"String": from} or {"Regex": from}, "content": to} */
kg_status kg_reader_replace(struct kg_reader *r, const char *path,
                            const struct kg_json *value, struct kg_normalizer *norm)
{
    static const struct kg_field fields[] = {{"type", KG_FIELD_READ},
                                             {"pattern", KG_FIELD_READ},
                                             {"content", KG_FIELD_READ},
                                             {NULL, KG_FIELD_READ}};
    KG_TRY(kg_reader_check(r, path, value, fields));
    const struct kg_json *pattern = kg_json_get(value, "pattern");
    const struct kg_json *content = kg_json_get(value, "content");
    const char *from = kg_reader_text(pattern, "String");
    const char *regex = kg_reader_text(pattern, "Regex");
    size_t n;
    const char *to = kg_json_text(content, &n);
    if ((!from && !regex) || kg_json_size(pattern) != 1)
        return kg_reader_refuse(r, path, "pattern", pattern,
                                "{\"String\": text} or {\"Regex\": text}");
    if (!to || strlen(to) != n)
        return kg_reader_refuse(r, path, "content", content, "text");
    if (from)
        return kg_reader_add_step(r, path, norm, KG_NORMALIZE_REPLACE, from, to);
    KG_TRY(kg_reader_add_step(r, path, norm, KG_NORMALIZE_PATTERN, NULL, to));
    if (kg_pretoken_create(&kg_normalizer_newest(norm)->pattern, regex, strlen(regex),
                           false, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s: %s", r->where, path);
    return KG_OK;
}

static kg_status read_replace(struct kg_reader *r, const struct kg_json *value)
{
    return kg_reader_replace(r, PATH, value, &r->tok->normalizer);
}

static kg_status read_bert(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {{"type", KG_FIELD_READ},
                                             {"clean_text", KG_FIELD_BOOL},
                                             {"handle_chinese_chars", KG_FIELD_BOOL},
                                             {"strip_accents", KG_FIELD_READ},
                                             {"lowercase", KG_FIELD_BOOL},
                                             {NULL, KG_FIELD_READ}};
    KG_TRY(kg_reader_check(r, PATH, value, fields));
    const struct kg_json *accents = kg_json_get(value, "strip_accents");
    const bool lower = kg_json_bool(kg_json_get(value, "lowercase"), true);
    if (kg_json_type(accents) != KG_JSON_NULL && kg_json_type(accents) != KG_JSON_BOOL)
        return kg_reader_refuse(r, PATH, "strip_accents", accents, "null or a boolean");
    if (kg_json_bool(kg_json_get(value, "clean_text"), true))
        KG_TRY(add(r, KG_NORMALIZE_CLEAN));
    if (kg_json_bool(kg_json_get(value, "handle_chinese_chars"), true))
        KG_TRY(add(r, KG_NORMALIZE_CJK));
    if (kg_json_bool(accents, lower)) {
        KG_TRY(add(r, KG_NORMALIZE_NFD));
        KG_TRY(add(r, KG_NORMALIZE_DROP_NONSPACING));
    }
    return lower ? add(r, KG_NORMALIZE_LOWER) : KG_OK;
}

static kg_status read_precompiled(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_field fields[] = {{"type", KG_FIELD_READ},
                                             {"precompiled_charsmap", KG_FIELD_READ},
                                             {NULL, KG_FIELD_READ}};
    KG_TRY(kg_reader_check(r, PATH, value, fields));
    const struct kg_json *map = kg_json_get(value, "precompiled_charsmap");
    size_t n;
    bool valid = false;
    const char *text = kg_json_text(map, &n);
    kg_str_clear(&r->scratch);
    if (text)
        KG_TRY(kg_base64_decode(&r->scratch, text, n, &valid, r->err));
    if (!valid)
        return kg_reader_refuse(r, PATH, "precompiled_charsmap", map, "base64");
    KG_TRY(add(r, KG_NORMALIZE_CLUSTERS));
    if (kg_charsmap_create(&kg_normalizer_newest(&r->tok->normalizer)->map,
                           kg_str_text(&r->scratch), r->scratch.len, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s: %s.precompiled_charsmap", r->where, PATH);
    return KG_OK;
}

static const struct kg_step_row ROWS[] = {
    {"NFC", read_nfc},
    {"NFD", read_nfd},
    {"NFKC", read_nfkc},
    {"NFKD", read_nfkd},
    {"Lowercase", read_lowercase},
    {"Strip", read_strip},
    {"StripAccents", read_strip_accents},
    {"Replace", read_replace},
    {"Prepend", read_prepend},
    {"Nmt", read_nmt},
    {"BertNormalizer", read_bert},
    {"Precompiled", read_precompiled},
    {NULL, NULL},
};

kg_status kg_reader_normalizer(struct kg_reader *r, const struct kg_json *value)
{
    static const struct kg_step_table table = {PATH, "normalizers", ROWS};
    return kg_reader_steps(r, &table, value);
}
