/* Writes config.json as metadata, with the keys that data/gguf_config.c reads. */
#include "gguf/gguf_write.h"

#include <stdio.h>
#include <string.h>

#define POSITIONS "max_position_embeddings"
#define ORIGINAL  "original_max_position_embeddings"

struct giver {
    struct kg_gguf_writer *w;
    const struct kg_gguf_arch *arch;
    const struct kg_json *config;
    struct kg_err *err;
};

static const char *whole_key(char to[KG_GGUF_NAME + 1], const struct giver *g,
                             const char *key)
{
    snprintf(to, KG_GGUF_NAME + 1, "%s.%s", g->arch->name, key);
    return to;
}

static kg_status give_int(const struct giver *g, const char *key, int64_t x)
{
    char whole[KG_GGUF_NAME + 1];

    return kg_gguf_put_int(g->w, whole_key(whole, g, key), x, g->err);
}

static kg_status give_real(const struct giver *g, const char *key,
                           const struct kg_json *value)
{
    char whole[KG_GGUF_NAME + 1];

    return kg_json_is_number(value) ? kg_gguf_put_real(g->w, whole_key(whole, g, key),
                                                       kg_json_real(value, 0), g->err)
                                    : KG_OK;
}

/* Scalings that GGUF stores as tensors are declared in export.c. */
static kg_status give_rope(const struct giver *g)
{
    const struct kg_json *rope = kg_json_get(g->config, "rope_scaling");
    const char *type = kg_json_text(kg_json_get(rope, "rope_type"), NULL);
    const struct kg_json *original = kg_json_get(rope, ORIGINAL);
    char whole[KG_GGUF_NAME + 1];

    if (!type)
        type = kg_json_text(kg_json_get(rope, "type"), NULL);
    if (type && strcmp(type, "longrope") == 0) {
        const struct kg_json *given = kg_json_get(rope, "attention_factor");

        return kg_gguf_put_real(
            g->w, whole_key(whole, g, "rope.scaling.attn_factor"),
            kg_json_real(given, kg_gguf_usual_attention(
                                    kg_json_real(kg_json_get(g->config, POSITIONS), 1),
                                    kg_json_real(kg_json_get(g->config, ORIGINAL), 1))),
            g->err);
    }
    if (!type || (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0))
        return KG_OK;
    KG_TRY(kg_gguf_put_text(g->w, whole_key(whole, g, "rope.scaling.type"), type,
                            strlen(type), g->err));
    KG_TRY(give_real(g, "rope.scaling.factor", kg_json_get(rope, "factor")));
    KG_TRY(give_real(g, "rope.scaling.yarn_beta_fast", kg_json_get(rope, "beta_fast")));
    KG_TRY(give_real(g, "rope.scaling.yarn_beta_slow", kg_json_get(rope, "beta_slow")));
    return original ? give_int(g, "rope.scaling.original_context_length",
                               kg_json_int(original, 0))
                    : KG_OK;
}

/* End of text, of turn, of message. */
static kg_status give_ends(const struct giver *g)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    const struct kg_json *eos = kg_json_get(g->config, "eos_token_id");
    const bool list = kg_json_type(eos) == KG_JSON_ARRAY;

    for (size_t i = 0; i < 3 && i < (list ? kg_json_size(eos) : 1); i++) {
        const int64_t id = kg_json_int(list ? kg_json_at(eos, i) : eos, -1);

        if (id >= 0)
            KG_TRY(kg_gguf_put_int(g->w, keys[i], id, g->err));
    }
    const int64_t bos = kg_json_int(kg_json_get(g->config, "bos_token_id"), -1);
    return bos < 0 ? KG_OK
                   : kg_gguf_put_int(g->w, "tokenizer.ggml.bos_token_id", bos, g->err);
}

kg_status kg_gguf_put_config(struct kg_gguf_writer *w, const struct kg_gguf_arch *arch,
                             const struct kg_json *config, int64_t head_dim,
                             struct kg_err *err)
{
    const struct giver g = {w, arch, config, err};
    const double part = kg_json_real(kg_json_get(config, "partial_rotary_factor"), 1);

    KG_TRY(
        kg_gguf_put_text(w, "general.architecture", arch->name, strlen(arch->name), err));
    KG_TRY(kg_gguf_put_text(w, "general.type", "model", 5, err));
    KG_TRY(kg_gguf_put_int(w, "general.quantization_version", 2, err));
    for (const struct kg_gguf_key *k = kg_gguf_keys; k->key; k++) {
        const struct kg_json *value = kg_json_get(g.config, k->field);

        if (!kg_gguf_names(k->archs, g.arch->name) || strcmp(k->field, "head_dim") == 0 ||
            !kg_json_is_number(value))
            continue;
        KG_TRY(k->real ? give_real(&g, k->key, value)
                       : give_int(&g, k->key, kg_json_int(value, 0)));
    }
    KG_TRY(give_int(&g, "attention.key_length", head_dim));
    KG_TRY(give_int(&g, "attention.value_length", head_dim));
    KG_TRY(give_int(&g, "vocab_size", kg_json_int(kg_json_get(config, "vocab_size"), 0)));
    KG_TRY(give_int(&g, "rope.dimension_count", (int64_t)((double)head_dim * part)));
    KG_TRY(give_rope(&g));
    return give_ends(&g);
}
