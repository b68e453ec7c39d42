/* Opening a second checkpoint, and refusing one whose ids mean something else.
 *
 * A KL between models with shuffled vocabularies is a finite number that means nothing;
 * nobody would notice. So the tokenizers are compared id by id, as bytes, before any
 * log-prob is.
 */
#include "train/reference.h"

#include <string.h>

static kg_status bytes_of(struct kg_str *out, const struct kg_tokenizer *tok, int32_t id,
                          struct kg_err *err)
{
    kg_str_clear(out);
    return kg_tokenizer_decode(out, tok, &id, 1, false, err);
}

/* Ids and their bytes; how text is cut into them does not matter to who reads ids. */
static kg_status compare_ids(const struct kg_tokenizer *a, const struct kg_tokenizer *b,
                             const char *key, const char *dir, struct kg_err *err)
{
    int32_t n = kg_tokenizer_vocab_size(a), found = kg_tokenizer_vocab_size(b);
    struct kg_str x = {0}, y = {0};
    kg_status status = KG_OK;

    if (n != found)
        return kg_fail(err, KG_ECONFLICT,
                       "%s: %s: expected a tokenizer of %d ids as the model's, found %d",
                       key, dir, n, found);
    for (int32_t id = 0; id < n && status == KG_OK; id++) {
        status = bytes_of(&x, a, id, err);
        if (status == KG_OK)
            status = bytes_of(&y, b, id, err);
        if (status == KG_OK &&
            (x.len != y.len || (x.len > 0 && memcmp(x.data, y.data, x.len) != 0)))
            status = kg_fail(err, KG_ECONFLICT,
                             "%s: %s: expected the model's tokenizer, found another: id "
                             "%d is '%.40s' there and '%.40s' here",
                             key, dir, id, kg_str_text(&y), kg_str_text(&x));
    }
    kg_str_release(&x);
    kg_str_release(&y);
    return status;
}

static kg_status check_vocabulary(const struct kg_model *other, const char *dir,
                                  const char *key, const struct kg_model *m,
                                  const struct kg_tokenizer *tok, struct kg_err *err)
{
    struct kg_tokenizer *theirs;
    kg_status status;

    if (other->config.vocab != m->config.vocab)
        return kg_fail(err, KG_ECONFLICT,
                       "%s: %s: expected a vocabulary of %lld as the model's, found %lld",
                       key, dir, (long long)m->config.vocab,
                       (long long)other->config.vocab);
    if (kg_tokenizer_open(&theirs, dir, err) != KG_OK)
        return kg_err_prefix(err, "%s", key);
    status = compare_ids(tok, theirs, key, dir, err);
    kg_tokenizer_close(theirs);
    return status;
}

kg_status kg_reference_open(struct kg_model **out, const char *dir, const char *key,
                            const struct kg_model *m, const struct kg_tokenizer *tok,
                            const struct kg_model_opts *opts, struct kg_err *err)
{
    struct kg_model_opts own = *opts;
    struct kg_model *other;
    kg_status status;

    own.backend = m->backend;
    own.ct = m->ct;
    if (kg_model_open(&other, dir, &own, err) != KG_OK)
        return kg_err_prefix(err, "%s", key);
    status = check_vocabulary(other, dir, key, m, tok, err);
    if (status != KG_OK) {
        kg_model_free(other);
        return status;
    }
    *out = other;
    return KG_OK;
}
