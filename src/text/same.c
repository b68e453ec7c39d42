/* Whether the ids of two tokenizers have the same meaning.
 *
 * If it differs, a comparison of two models id by id, or an adapter on weights that it
 * was not trained with, gives finite but meaningless numbers, and no metric shows it. So
 * the bytes of every id are compared. How text is split into ids does not matter.
 */
#include "text/tokenizer.h"

#include <string.h>

static kg_status bytes_of(struct kg_str *out, const struct kg_tokenizer *tok, int32_t id,
                          struct kg_err *err)
{
    kg_str_clear(out);
    if (id >= kg_tokenizer_vocab_size(tok))
        return KG_OK;
    return kg_tokenizer_decode(out, tok, &id, 1, false, err);
}

static bool has(const struct kg_tokenizer *tok, int32_t id)
{
    return id < kg_tokenizer_vocab_size(tok) && kg_tokenizer_has(tok, id);
}

/* Whether only one of a and b has a token for id, and that is special, as for padding. */
static bool is_extra(const struct kg_tokenizer *a, const struct kg_tokenizer *b,
                     int32_t id)
{
    return (!has(a, id) && kg_tokenizer_is_special(b, id)) ||
           (!has(b, id) && kg_tokenizer_is_special(a, id));
}

static kg_status compare(const struct kg_tokenizer *a, const struct kg_tokenizer *b,
                         bool extra, const char *dir, struct kg_err *err)
{
    const int32_t n = kg_tokenizer_vocab_size(a), found = kg_tokenizer_vocab_size(b);
    struct kg_str x = {0}, y = {0};
    kg_status status = KG_OK;

    for (int32_t id = 0; (id < n || id < found) && status == KG_OK; id++) {
        status = bytes_of(&x, a, id, err);
        if (status == KG_OK)
            status = bytes_of(&y, b, id, err);
        if (status == KG_OK &&
            (x.len != y.len || (x.len > 0 && memcmp(x.data, y.data, x.len) != 0)) &&
            !(extra && is_extra(a, b, id)))
            status = kg_fail(
                err, KG_ECONFLICT,
                "%s: expected the model's tokenizer, found another one: id %d is "
                "'%.40s' in it and '%.40s' in the model's",
                dir, id, kg_str_text(&y), kg_str_text(&x));
    }
    kg_str_release(&x);
    kg_str_release(&y);
    return status;
}

kg_status kg_tokenizer_compare(const struct kg_tokenizer *tok,
                               const struct kg_tokenizer *other, const char *dir,
                               struct kg_err *err)
{
    const int32_t n = kg_tokenizer_vocab_size(tok);
    const int32_t found = kg_tokenizer_vocab_size(other);

    if (n != found)
        return kg_fail(err, KG_ECONFLICT,
                       "%s: expected a tokenizer with the %d ids of the model, found %d",
                       dir, n, found);
    return compare(tok, other, false, dir, err);
}

kg_status kg_tokenizer_check_beside(const struct kg_tokenizer *tok, const char *dir,
                                    struct kg_err *err)
{
    struct kg_tokenizer *other;
    kg_status status = kg_tokenizer_open(&other, dir, err);

    if (status != KG_OK)
        return status == KG_ENOTFOUND ? KG_OK : status;
    status = compare(tok, other, true, dir, err);
    kg_tokenizer_close(other);
    return status;
}
