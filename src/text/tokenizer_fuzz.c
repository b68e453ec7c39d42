/* Fuzz target: bytes that read as a tokenizer.json encode a fixed text, and the ids
 * decode again. */
#include "text/tokenizer.h"

#include <assert.h>
#include <string.h>

int kg_fuzz_tokenizer(const uint8_t *bytes, size_t n);

static const char TEXT[] = "Hello world's 12 + 34 = 46\n\n  <|im_end|> caf\x65\xCC\x81 "
                           "\xE6\xB1\x89\xE5\xAD\x97 aaaaaaaaaaaaaaaa"
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

int kg_fuzz_tokenizer(const uint8_t *bytes, size_t n)
{
    struct kg_err err;
    struct kg_tokenizer *tok = NULL;
    struct kg_ids ids = {0};
    struct kg_str text = {0};
    const struct kg_encode_opts opts = {.parse_special = true, .add_special = true};
    if (kg_tokenizer_parse(&tok, (const char *)bytes, n, "fuzz", &err) != KG_OK)
        return 0;
    if (kg_tokenizer_encode(&ids, tok, TEXT, sizeof TEXT - 1, opts, &err) == KG_OK) {
        kg_status status = kg_tokenizer_decode(&text, tok, ids.ids, ids.n, false, &err);
        assert(status == KG_OK); /* encode gives known ids only */
        (void)status;
    }
    kg_str_release(&text);
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
    return 0;
}
