/* Fields and added tokens, for every file that describes a tokenizer. A field that is
 * overlooked would make a different tokenizer. So an object is checked against a list of
 * its fields: each is read, must have one value, or is known to have no effect; any other
 * field is refused by its path. Added tokens are read after the vocabulary, because most
 * are in it with the same id; a contradiction is an error. */
#include "text/tokenizer_read.h"

#include "base/mem.h"
#include "text/bytelevel.h"

#include <stdio.h>
#include <string.h>

void kg_reader_release(struct kg_reader *r)
{
    kg_str_release(&r->scratch);
    kg_normalizer_release(&r->texts);
}

/* ---- fields ---- */

kg_status kg_reader_refuse(struct kg_reader *r, const char *path, const char *key,
                           const struct kg_json *value, const char *expected)
{
    struct kg_str text = {0};
    if (kg_json_put_value(&text, value, r->err) == KG_OK)
        kg_fail(r->err, KG_EUNSUPPORTED, "%s: %s.%s is %.60s, expected %s", r->where,
                path, key, kg_str_text(&text), expected);
    kg_str_release(&text);
    return r->err->code;
}

static kg_status check_rule(struct kg_reader *r, const char *path,
                            const struct kg_field *field, const struct kg_json *value)
{
    size_t n = 0;
    const char *text = kg_json_text(value, &n);
    bool is_null = kg_json_type(value) == KG_JSON_NULL;
    if (field->rule == KG_FIELD_BOOL && kg_json_type(value) != KG_JSON_BOOL)
        return kg_reader_refuse(r, path, field->key, value, "true or false");
    if (field->rule == KG_FIELD_EMPTY && !is_null && (!text || n > 0))
        return kg_reader_refuse(r, path, field->key, value, "null or \"\"");
    if (field->rule == KG_FIELD_ZERO && !is_null &&
        (!kg_json_is_number(value) || kg_json_real(value, 1) != 0))
        return kg_reader_refuse(r, path, field->key, value, "null or 0");
    return KG_OK;
}

kg_status kg_reader_check(struct kg_reader *r, const char *path,
                          const struct kg_json *object, const struct kg_field *fields)
{
    if (kg_json_type(object) != KG_JSON_OBJECT)
        return kg_fail(r->err, KG_EFORMAT, "%s: %s: expected an object, found %s",
                       r->where, path, kg_json_type_name(object));
    for (size_t i = 0; i < kg_json_size(object); i++) {
        const char *key = kg_json_key_at(object, i);
        const struct kg_json *value = kg_json_value_at(object, i);
        const struct kg_field *field = fields;
        while (field->key && strcmp(field->key, key) != 0)
            field++;
        if (!field->key)
            return kg_reader_refuse(r, path, key, value,
                                    "no such field (kedge does not know it)");
        KG_TRY(check_rule(r, path, field, value));
    }
    return KG_OK;
}

bool kg_reader_has_type(const struct kg_json *object, const char *type)
{
    const char *found = kg_json_text(kg_json_get(object, "type"), NULL);
    return found && strcmp(found, type) == 0;
}

kg_status kg_reader_list(struct kg_reader *r, const char *path,
                         const struct kg_json *object, const char *key,
                         const struct kg_json **list)
{
    *list = kg_json_get(object, key);
    if (kg_json_type(*list) != KG_JSON_ARRAY)
        return kg_fail(r->err, KG_EFORMAT, "%s: %s.%s: expected an array, found %s",
                       r->where, path, key, kg_json_type_name(*list));
    return KG_OK;
}

kg_status kg_reader_id(struct kg_reader *r, const struct kg_json *value,
                       const char *token, int64_t *id)
{
    *id = kg_json_int(value, -1);
    if (kg_json_type(value) == KG_JSON_INT && *id >= 0 && *id < KG_VOCAB_MAX_IDS)
        return KG_OK;
    return kg_fail(r->err, KG_EFORMAT,
                   "%s: id of token '%.40s': expected an integer from 0 to %d", r->where,
                   token, KG_VOCAB_MAX_IDS - 1);
}

/* ---- steps ---- */

enum { MAX_SEQUENCE_DEPTH = 4 };

static kg_status refuse_type(struct kg_reader *r, const struct kg_step_table *table,
                             const struct kg_json *value)
{
    struct kg_str names = {0};
    kg_status status = kg_str_puts(&names, "null", r->err);
    for (const struct kg_step_row *row = table->rows; row->type && status == KG_OK; row++)
        status = kg_str_printf(&names, r->err, ", %s", row->type);
    if (status == KG_OK)
        status = kg_str_puts(&names, " or a Sequence of them", r->err);
    if (status == KG_OK)
        status = kg_reader_refuse(r, table->path, "type", kg_json_get(value, "type"),
                                  kg_str_text(&names));
    kg_str_release(&names);
    return status;
}

static kg_status read_step(struct kg_reader *r, const struct kg_step_table *table,
                           const struct kg_json *value, int depth)
{
    const struct kg_field sequence[] = {
        {"type", KG_FIELD_READ}, {table->list, KG_FIELD_READ}, {NULL, KG_FIELD_READ}};
    const struct kg_json *list;
    for (const struct kg_step_row *row = table->rows; row->type; row++)
        if (kg_reader_has_type(value, row->type))
            return row->read(r, value);
    if (!kg_reader_has_type(value, "Sequence") || depth == MAX_SEQUENCE_DEPTH)
        return refuse_type(r, table, value);
    KG_TRY(kg_reader_check(r, table->path, value, sequence));
    KG_TRY(kg_reader_list(r, table->path, value, table->list, &list));
    for (size_t i = 0; i < kg_json_size(list); i++)
        KG_TRY(read_step(r, table, kg_json_at(list, i), depth + 1));
    return KG_OK;
}

kg_status kg_reader_steps(struct kg_reader *r, const struct kg_step_table *table,
                          const struct kg_json *value)
{
    return kg_json_type(value) == KG_JSON_NULL ? KG_OK : read_step(r, table, value, 0);
}

kg_status kg_reader_bare(struct kg_reader *r, const char *path,
                         const struct kg_json *value)
{
    static const struct kg_field bare[] = {{"type", KG_FIELD_READ},
                                           {NULL, KG_FIELD_READ}};
    return kg_reader_check(r, path, value, bare);
}

kg_status kg_reader_byte_level(struct kg_reader *r, const char *path,
                               const struct kg_json *value)
{
    static const struct kg_field fields[] = {
        {"type", KG_FIELD_READ},         {"add_prefix_space", KG_FIELD_BOOL},
        {"trim_offsets", KG_FIELD_BOOL}, {"use_regex", KG_FIELD_BOOL},
        {NULL, KG_FIELD_READ},
    };
    return kg_reader_check(r, path, value, fields);
}

const char *kg_reader_text(const struct kg_json *object, const char *key)
{
    size_t n;
    const char *text = kg_json_text(kg_json_get(object, key), &n);
    return text && n > 0 && strlen(text) == n ? text : NULL;
}

kg_status kg_reader_add_step(struct kg_reader *r, const char *path,
                             struct kg_normalizer *norm, enum kg_normalizer_kind kind,
                             const char *from, const char *to)
{
    if (kg_normalizer_add(norm, kind, from, to, r->err) != KG_OK)
        return kg_err_prefix(r->err, "%s: %s", r->where, path);
    return KG_OK;
}

/* ---- tokens ---- */

kg_status kg_reader_find(struct kg_reader *r, const char *text, size_t n, int32_t *id,
                         bool *raw)
{
    const struct kg_vocab *vocab = &r->tok->vocab;
    kg_str_clear(&r->scratch);
    *raw = false;
    if (r->spelled)
        KG_TRY(kg_bytelevel_unspell(&r->scratch, raw, text, n, r->err));
    else
        KG_TRY(kg_str_append(&r->scratch, text, n, r->err));
    *id = kg_vocab_find(vocab, kg_str_text(&r->scratch), r->scratch.len, *raw);
    if (*id >= 0 || r->spelled)
        return KG_OK;
    *id = kg_vocab_find(vocab, text, n, true);
    *raw = *id >= 0;
    return KG_OK;
}

/* Puts an added token into the vocabulary, or checks it against the one there. */
static kg_status place_added(struct kg_reader *r, const struct kg_added_token *token)
{
    struct kg_vocab *vocab = &r->tok->vocab;
    const int shown = token->n < 40 ? (int)token->n : 40;
    const int flags = KG_VOCAB_ADDED | (token->special ? KG_VOCAB_SPECIAL : 0);
    int32_t id;
    bool raw;
    KG_TRY(kg_reader_find(r, token->content, token->n, &id, &raw));
    if (id < 0)
        return kg_vocab_put(vocab, token->id, token->content, token->n,
                            KG_VOCAB_RAW | flags, r->err);
    if (id != token->id)
        return kg_fail(r->err, KG_EFORMAT, "'%.*s' has id %d, but %d in model.vocab",
                       shown, token->content, token->id, id);
    if (r->scratch.len != token->n ||
        memcmp(r->scratch.data, token->content, token->n) != 0)
        return kg_fail(r->err, KG_EUNSUPPORTED,
                       "expected an added token that decodes to itself, found '%.*s', "
                       "which model.vocab decodes to other bytes",
                       shown, token->content);
    vocab->flags[id] |= (uint8_t)flags;
    return KG_OK;
}

/* A token that is searched in normalized text is normalized itself, and so printed. */
static kg_status push_normalized(struct kg_reader *r, const struct kg_added_token *token)
{
    struct kg_added_token copy = *token;
    struct kg_normalizer_work work = {0};
    const char *text;
    kg_status status = kg_normalize(&text, &copy.n, &r->tok->normalizer, token->content,
                                    token->n, true, &work, r->err);
    if (status == KG_OK) {
        kg_str_clear(&r->scratch);
        status = kg_str_append(&r->scratch, text, copy.n, r->err);
    }
    kg_normalizer_work_release(&work);
    KG_TRY(status);
    copy.content = r->scratch.data;
    KG_TRY(kg_vocab_set_text(&r->tok->vocab, copy.id, copy.content, copy.n, r->err));
    return kg_added_push(&r->tok->normalized, &copy, r->err);
}

kg_status kg_reader_add(struct kg_reader *r, const struct kg_json *item, int64_t id)
{
    static const struct kg_field fields[] = {
        {"id", KG_FIELD_READ},          {"content", KG_FIELD_READ},
        {"single_word", KG_FIELD_BOOL}, {"lstrip", KG_FIELD_BOOL},
        {"rstrip", KG_FIELD_BOOL},      {"normalized", KG_FIELD_BOOL},
        {"special", KG_FIELD_BOOL},     {NULL, KG_FIELD_READ},
    };
    struct kg_added_token token = {.id = (int32_t)id};
    KG_TRY(kg_reader_check(r, "added_tokens", item, fields));
    const char *content = kg_json_text(kg_json_get(item, "content"), &token.n);
    if (!content || token.n == 0)
        return kg_fail(r->err, KG_EFORMAT, "%s: added_tokens: an item has no content",
                       r->where);
    token.content = kg_mem_copy(content, token.n, "added token", r->err);
    if (!token.content)
        return r->err->code;
    token.single_word = kg_json_bool(kg_json_get(item, "single_word"), false);
    token.lstrip = kg_json_bool(kg_json_get(item, "lstrip"), false);
    token.rstrip = kg_json_bool(kg_json_get(item, "rstrip"), false);
    token.special = kg_json_bool(kg_json_get(item, "special"), false);
    kg_status status = place_added(r, &token);
    if (status != KG_OK)
        kg_err_prefix(r->err, "%s: added_tokens", r->where);
    else if (kg_json_bool(kg_json_get(item, "normalized"), !token.special))
        status = push_normalized(r, &token);
    else
        status = kg_added_push(&r->tok->raw, &token, r->err);
    kg_mem_free(token.content);
    return status;
}

/* ---- bytes and texts of tokens made of characters ---- */

kg_status kg_reader_find_bytes(struct kg_reader *r)
{
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        bool raw;
        snprintf(name, sizeof name, "<0x%02X>", byte);
        KG_TRY(kg_reader_find(r, name, strlen(name), &r->tok->byte_ids[byte], &raw));
    }
    return KG_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* -1 unless the token names a byte, such as <0x0A> */
static int named_byte(const char *token, size_t n)
{
    if (n != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    int high = hex_digit(token[3]);
    int low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static kg_status set_text(struct kg_reader *r, int32_t id, const char *token, size_t n,
                          struct kg_normalizer_work *work)
{
    const char *text;
    size_t n_text;
    KG_TRY(kg_normalize(&text, &n_text, &r->texts, token, n, true, work, r->err));
    int byte = r->decodes_bytes ? named_byte(text, n_text) : -1;
    const char c = (char)byte;
    if (byte >= 0)
        return kg_vocab_set_text(&r->tok->vocab, id, &c, 1, r->err);
    if (n_text == n && memcmp(text, token, n) == 0)
        return KG_OK;
    return kg_vocab_set_text(&r->tok->vocab, id, text, n_text, r->err);
}

kg_status kg_reader_set_texts(struct kg_reader *r)
{
    kg_status status = KG_OK;
    struct kg_normalizer_work work = {0};
    struct kg_vocab *vocab = &r->tok->vocab;
    for (int32_t id = 0; id < vocab->n_ids && status == KG_OK; id++) {
        size_t n;
        const char *text = kg_vocab_bytes(vocab, id, &n);
        if (!text)
            continue;
        /* kg_vocab_set_text() may move the block that `text` points into */
        kg_str_clear(&r->scratch);
        status = kg_str_append(&r->scratch, text, n, r->err);
        if (status == KG_OK)
            status = set_text(r, id, r->scratch.data, n, &work);
    }
    kg_normalizer_work_release(&work);
    return status;
}
