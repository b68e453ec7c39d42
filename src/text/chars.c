/* The `chars` kind: a token_ids.json that maps single characters to ids, as in verl's
 * digit model.
 *
 * The folder's tokenizer_config.json may list the ordinary characters in `char_ords`; all
 * others are special. Nothing is normalized and nothing is added.
 */
#include "data/json.h"
#include "text/tokenizer_internal.h"
#include "text/unicode.h"

#include <string.h>

static kg_status put_char(struct kg_tokenizer *tok, const struct kg_json_doc *doc,
                          size_t i, struct kg_err *err)
{
    const char *key = kg_json_key_at(doc->root, i);
    size_t n = strlen(key);
    uint32_t cp;
    if (n == 0 || kg_utf8_decode(&cp, key) != n)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: key '%.40s': expected a single character", doc->where, key);
    if (kg_vocab_put(&tok->vocab, kg_json_int(kg_json_value_at(doc->root, i), -1), key, n,
                     0, err) != KG_OK)
        return kg_err_prefix(err, "%s", doc->where);
    return KG_OK;
}

static kg_status read_chars(struct kg_tokenizer *tok, const struct kg_json_doc *doc,
                            struct kg_err *err)
{
    int64_t max = -1;
    size_t n = kg_json_size(doc->root);
    if (kg_json_type(doc->root) != KG_JSON_OBJECT || n == 0)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a JSON object that maps characters to ids, found %s",
                       doc->where,
                       n == 0 ? "no character" : kg_json_type_name(doc->root));
    for (size_t i = 0; i < n; i++) {
        const struct kg_json *value = kg_json_value_at(doc->root, i);
        int64_t id = kg_json_int(value, -1);
        if (kg_json_type(value) != KG_JSON_INT || id < 0)
            return kg_fail(err, KG_EFORMAT,
                           "%s: key '%.40s': expected an id of 0 or more", doc->where,
                           kg_json_key_at(doc->root, i));
        max = id > max ? id : max;
    }
    if (max >= KG_VOCAB_MAX_IDS)
        return kg_fail(err, KG_EFORMAT, "%s: expected ids of at most %d, found %lld",
                       doc->where, KG_VOCAB_MAX_IDS - 1, (long long)max);
    KG_TRY(kg_vocab_init(&tok->vocab, max + 1, n, err));
    for (size_t i = 0; i < n; i++)
        KG_TRY(put_char(tok, doc, i, err));
    return KG_OK;
}

/* The characters that char_ords of tokenizer_config.json does not list are special. */
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

kg_status kg_chars_parse(struct kg_tokenizer *tok, const struct kg_tokenizer_file *file,
                         struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    const struct kg_json *ords = kg_json_get(file->config, "char_ords");
    KG_TRY(kg_json_parse(&doc, file->bytes, file->n, file->where, err));
    kg_status status = read_chars(tok, &doc, err);
    if (status == KG_OK && kg_json_type(ords) == KG_JSON_ARRAY)
        mark_special_chars(tok, ords);
    kg_json_release(&doc);
    return status;
}

kg_status kg_chars_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                          const char *text, size_t n, struct kg_encode_opts opts,
                          struct kg_err *err)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = kg_utf8_decode(&cp, text + i);
        int32_t id = kg_vocab_find(&tok->vocab, text + i, len, false);
        if (id < 0 || (!opts.parse_special && kg_tokenizer_is_special(tok, id)))
            return kg_fail(
                err, KG_EFORMAT,
                "character '%.*s' at byte offset %zu is not in the vocabulary%s",
                (int)len, text + i, i, id < 0 ? "" : " of plain text");
        KG_TRY(kg_ids_push(out, id, err));
        i += len;
    }
    return KG_OK;
}
