/* Fuzz target: bytes that parse as a tokenizer.json or, if they do not begin with a
 * brace, as a tokenizer.model, encode a fixed text; the ids are decoded together and one
 * by one. */
#include "text/tokenizer.h"

#include <assert.h>
#include <string.h>

int kg_fuzz_tokenizer(const uint8_t *bytes, size_t n);

static const char TEXT[] = "Hello world's 12 + 34 = 46\n\n  <|im_end|> caf\x65\xCC\x81 "
                           "\xE6\xB1\x89\xE5\xAD\x97 aaaaaaaaaaaaaaaa"
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

static kg_status fuzz_parse(struct kg_tokenizer **tok, const uint8_t *bytes, size_t n,
                            struct kg_err *err)
{
    if (n > 0 && bytes[0] == '{')
        return kg_tokenizer_parse(tok, (const char *)bytes, n, "fuzz", err);
    return kg_tokenizer_parse_model(tok, bytes, n, "fuzz", err);
}

/* Encoding yields only valid ids, so decoding can fail only for lack of memory. */
static void fuzz_decode(const struct kg_tokenizer *tok, const struct kg_ids *ids)
{
    struct kg_err err;
    struct kg_str whole = {0}, parts = {0}, text = {0};
    kg_status status = kg_tokenizer_decode(&whole, tok, ids->ids, ids->n, false, &err);
    for (size_t i = 0; i < ids->n && status == KG_OK; i++)
        status = kg_tokenizer_decode(&parts, tok, ids->ids + i, 1, false, &err);
    if (status == KG_OK)
        status = kg_tokenizer_decode_text(&text, tok, ids->ids, ids->n, false, &err);
    assert(status == KG_OK || status == KG_ENOMEM);
    assert(status != KG_OK ||
           (whole.len == parts.len && text.len <= whole.len &&
            memcmp(kg_str_text(&whole), kg_str_text(&parts), whole.len) == 0));
    kg_str_release(&whole);
    kg_str_release(&parts);
    kg_str_release(&text);
}

int kg_fuzz_tokenizer(const uint8_t *bytes, size_t n)
{
    struct kg_err err;
    struct kg_tokenizer *tok = NULL;
    struct kg_ids ids = {0};
    struct kg_encode_opts opts = {.parse_special = true, .add_special = true};
    if (fuzz_parse(&tok, bytes, n, &err) != KG_OK)
        return 0;
    for (int i = 0; i < 2; i++) {
        opts.continues = i == 1;
        if (kg_tokenizer_encode(&ids, tok, TEXT, sizeof TEXT - 1, opts, &err) == KG_OK)
            fuzz_decode(tok, &ids);
        ids.n = 0;
    }
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
    return 0;
}
