/* config.json of an encoder: which family, which sizes.
 *
 * Each family with these parts is a row of FAMILIES. A setting of config.json that is not
 * supported (another activation, relative positions, a decoder) is refused by name and
 * value.
 */
#include "retriever/encoder/encoder_internal.h"

#include "base/file.h"
#include "data/json.h"

#include <string.h>

enum { CONFIG_BYTES = 1 << 20, MOST = 1 << 24, MOST_LAYERS = 1 << 10 };

static const struct kg_encoder_row FAMILIES[] = {
    {"bert", "bert.", "BERT: MiniLM, E5, BGE, GTE", false},
    {"roberta", "roberta.", "RoBERTa: positions start after the position of padding",
     true},
    {"xlm-roberta", "roberta.", "XLM-R: multilingual E5, BGE-M3's dense vectors", true},
};

/* The key must have this value, or be absent. */
static kg_status only(const struct kg_json_doc *doc, const char *key, const char *value,
                      struct kg_err *err)
{
    const struct kg_json *found = kg_json_get(doc->root, key);
    const char *text = kg_json_text(found, NULL);

    if (!found || (text && strcmp(text, value) == 0))
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED, "%s: %s: expected '%s', found %s%s%s",
                   doc->where, key, value, text ? "'" : "",
                   text ? text : kg_json_type_name(found), text ? "'" : "");
}

static kg_status never(const struct kg_json_doc *doc, const char *key, struct kg_err *err)
{
    if (!kg_json_bool(kg_json_get(doc->root, key), false))
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "%s: %s: expected false for an encoder, found true", doc->where, key);
}

static kg_status family(const struct kg_encoder_row **row, const struct kg_json_doc *doc,
                        struct kg_err *err)
{
    const char *type;
    size_t i;

    KG_TRY(kg_json_need_text(&type, doc, doc->root, "model_type", err));
    if (kg_str_pick(&i, KG_EUNSUPPORTED, "model_type of an encoder", type, FAMILIES,
                    sizeof FAMILIES / sizeof *FAMILIES, sizeof *FAMILIES, err) != KG_OK)
        return kg_err_prefix(err, "%s", doc->where);
    *row = &FAMILIES[i];
    return KG_OK;
}

static kg_status size_of(int32_t *out, const struct kg_json_doc *doc, const char *key,
                         int64_t most, struct kg_err *err)
{
    int64_t n;

    KG_TRY(kg_json_need_int(&n, doc, doc->root, key, 1, most, err));
    *out = (int32_t)n;
    return KG_OK;
}

/* In RoBERTa, a text's positions begin after the padding id. */
static kg_status first_position(struct kg_encoder_config *c,
                                const struct kg_json_doc *doc, struct kg_err *err)
{
    int64_t pad;

    if (!c->row->behind_padding)
        return KG_OK;
    KG_TRY(kg_json_need_int(&pad, doc, doc->root, "pad_token_id", 0, c->rows - 2, err));
    c->first = (int32_t)pad + 1;
    return KG_OK;
}

/* eps of layer norms; without the key, BERT's. */
static kg_status read_eps(struct kg_encoder_config *c, const struct kg_json_doc *doc,
                          struct kg_err *err)
{
    const struct kg_json *found = kg_json_get(doc->root, "layer_norm_eps");
    const double eps = found ? kg_json_real(found, -1) : 1e-12;

    c->eps = (float)eps;
    if (eps > 0 && eps < 1)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: layer_norm_eps: expected a number between 0 and 1, found %s",
                   doc->where, kg_json_type_name(found));
}

static kg_status sizes(struct kg_encoder_config *c, const struct kg_json_doc *doc,
                       struct kg_err *err)
{
    KG_TRY(size_of(&c->dim, doc, "hidden_size", MOST, err));
    KG_TRY(size_of(&c->layers, doc, "num_hidden_layers", MOST_LAYERS, err));
    KG_TRY(size_of(&c->heads, doc, "num_attention_heads", MOST, err));
    KG_TRY(size_of(&c->ffn, doc, "intermediate_size", MOST, err));
    KG_TRY(size_of(&c->vocab, doc, "vocab_size", MOST, err));
    KG_TRY(size_of(&c->rows, doc, "max_position_embeddings", MOST, err));
    KG_TRY(size_of(&c->types, doc, "type_vocab_size", MOST, err));
    KG_TRY(read_eps(c, doc, err));
    if (c->dim % c->heads == 0)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: hidden_size: expected a multiple of the %d heads, found %d",
                   doc->where, (int)c->heads, (int)c->dim);
}

static kg_status read(struct kg_encoder_config *c, const struct kg_json_doc *doc,
                      struct kg_err *err)
{
    *c = (struct kg_encoder_config){0};
    KG_TRY(family(&c->row, doc, err));
    KG_TRY(only(doc, "hidden_act", "gelu", err));
    KG_TRY(only(doc, "position_embedding_type", "absolute", err));
    KG_TRY(never(doc, "is_decoder", err));
    KG_TRY(never(doc, "add_cross_attention", err));
    KG_TRY(sizes(c, doc, err));
    return first_position(c, doc, err);
}

kg_status kg_encoder_config_read(struct kg_encoder_config *c, const char *dir,
                                 struct kg_err *err)
{
    struct kg_json_doc doc = {0};

    KG_TRY(kg_json_read(&doc, kg_path_in(dir, "config.json").text, CONFIG_BYTES, err));
    kg_status status = read(c, &doc, err);
    kg_json_release(&doc);
    return status;
}

void kg_encoder_config_of(struct kg_encoder_config *c, const struct kg_encoder_shape *s)
{
    *c = (struct kg_encoder_config){.row = &FAMILIES[0],
                                    .dim = s->dim,
                                    .layers = s->layers,
                                    .heads = s->heads,
                                    .ffn = s->ffn,
                                    .vocab = s->vocab,
                                    .rows = s->max_tokens,
                                    .types = 1,
                                    .eps = 1e-12f};
}
