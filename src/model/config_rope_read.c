/* Fields of config.json about rope: its base, and how it is scaled beyond the positions
 * that it was trained on. What the frequencies are is in config_rope.c.
 */
#include "base/real.h"
#include "model/config_internal.h"

#include <string.h>

static const char *const ROPE_NAMES[KG_ROPES] = {
    [KG_ROPE_DEFAULT] = "default", [KG_ROPE_LINEAR] = "linear",
    [KG_ROPE_DYNAMIC] = "dynamic", [KG_ROPE_LLAMA3] = "llama3",
    [KG_ROPE_YARN] = "yarn",
};

const char *kg_rope_name(enum kg_rope rope) { return ROPE_NAMES[rope]; }

/* Keys of the object, and the types that have them, as bits. */
static const struct {
    const char *key;
    uint32_t of;
} ROPE_KEYS[] = {
    {"rope_type", UINT32_MAX},
    {"type", UINT32_MAX},
    {"rope_theta", UINT32_MAX},
    {"factor", UINT32_MAX & ~(1u << KG_ROPE_DEFAULT)},
    {"original_max_position_embeddings",
     1u << KG_ROPE_LLAMA3 | 1u << KG_ROPE_YARN | 1u << KG_ROPE_DYNAMIC},
    {"low_freq_factor", 1u << KG_ROPE_LLAMA3},
    {"high_freq_factor", 1u << KG_ROPE_LLAMA3},
    {"attention_factor", 1u << KG_ROPE_YARN},
    {"beta_fast", 1u << KG_ROPE_YARN},
    {"beta_slow", 1u << KG_ROPE_YARN},
    {"mscale", 1u << KG_ROPE_YARN},
    {"mscale_all_dim", 1u << KG_ROPE_YARN},
    {"truncate", 1u << KG_ROPE_YARN},
};

static kg_status check_rope_keys(const struct kg_config_reader *r, const char *name,
                                 const struct kg_json *rope)
{
    const size_t n = sizeof ROPE_KEYS / sizeof *ROPE_KEYS;
    for (size_t i = 0; i < kg_json_size(rope); i++) {
        size_t k = 0;
        while (k < n && strcmp(ROPE_KEYS[k].key, kg_json_key_at(rope, i)) != 0)
            k++;
        if (k == n || !(ROPE_KEYS[k].of & 1u << r->c->rope))
            return kg_config_refuse(r, name, rope, "only the fields of its rope_type");
    }
    return KG_OK;
}

static kg_status read_factor(const struct kg_config_reader *r, const struct kg_json *rope)
{
    KG_TRY(kg_config_real(r, rope, "factor", 0, &r->c->rope_factor));
    if (r->c->rope_factor < 1)
        return kg_config_refuse(r, "factor", kg_json_get(rope, "factor"), "1 or more");
    return KG_OK;
}

static kg_status read_original(const struct kg_config_reader *r,
                               const struct kg_json *rope)
{
    int64_t original;
    KG_TRY(kg_json_need_int(&original, r->doc, rope, "original_max_position_embeddings",
                            1, KG_MAX_POSITIONS, r->err));
    r->c->rope_original_positions = (int32_t)original;
    return KG_OK;
}

static kg_status read_llama3(const struct kg_config_reader *r, const struct kg_json *rope)
{
    struct kg_model_config *c = r->c;
    KG_TRY(read_factor(r, rope));
    KG_TRY(kg_config_real(r, rope, "low_freq_factor", 0, &c->rope_low_freq_factor));
    KG_TRY(kg_config_real(r, rope, "high_freq_factor", 0, &c->rope_high_freq_factor));
    KG_TRY(read_original(r, rope));
    if (c->rope_high_freq_factor <= c->rope_low_freq_factor)
        return kg_config_refuse(r, "high_freq_factor",
                                kg_json_get(rope, "high_freq_factor"),
                                "more than low_freq_factor");
    return KG_OK;
}

/* 1 for factors that stretch nothing, else 0.1 scale log(factor) + 1 */
static double yarn_attention(double factor, double scale)
{
    return factor <= 1 ? 1.0 : 0.1 * scale * kg_log(factor) + 1.0;
}

/* 0 where it is absent or null, which says the same. */
static kg_status read_mscale(const struct kg_config_reader *r, const struct kg_json *rope,
                             const char *key, double *out)
{
    const struct kg_json *value = kg_json_get(rope, key);
    const bool zero = kg_json_is_number(value) && kg_json_real(value, 1) == 0;
    *out = 0;
    return zero || kg_json_type(value) == KG_JSON_NULL
               ? KG_OK
               : kg_config_real(r, rope, key, 0, out);
}

/* Fields that are absent or null have their usual values, as in transformers, where the
 * mscales count only together. */
static kg_status read_yarn(const struct kg_config_reader *r, const struct kg_json *rope)
{
    struct kg_model_config *c = r->c;
    const struct kg_json *truncate = kg_json_get(rope, "truncate");
    double mscale, all_dim;
    KG_TRY(read_factor(r, rope));
    KG_TRY(read_mscale(r, rope, "mscale", &mscale));
    KG_TRY(read_mscale(r, rope, "mscale_all_dim", &all_dim));
    c->rope_original_positions = c->max_positions;
    if (kg_json_type(kg_json_get(rope, "original_max_position_embeddings")) !=
        KG_JSON_NULL)
        KG_TRY(read_original(r, rope));
    KG_TRY(kg_config_real(r, rope, "beta_fast", 32, &c->rope_beta_fast));
    KG_TRY(kg_config_real(r, rope, "beta_slow", 1, &c->rope_beta_slow));
    if (kg_json_type(truncate) != KG_JSON_NULL && kg_json_type(truncate) != KG_JSON_BOOL)
        return kg_config_refuse(r, "truncate", truncate, "true or false");
    c->rope_untruncated = !kg_json_bool(truncate, true);
    const double usual = mscale != 0 && all_dim != 0
                             ? yarn_attention(c->rope_factor, mscale) /
                                   yarn_attention(c->rope_factor, all_dim)
                             : yarn_attention(c->rope_factor, 1);
    return kg_config_real(r, rope, "attention_factor", usual, &c->rope_attention);
}

static kg_status read_rope_type(const struct kg_config_reader *r, const char *name,
                                const struct kg_json *rope)
{
    const struct kg_json *type = kg_json_get(rope, "rope_type");
    if (!type)
        type = kg_json_get(rope, "type");
    const bool plain = r->c->arch->reads & KG_READS_PLAIN_ROPE;
    for (int i = 0; kg_json_type(rope) == KG_JSON_OBJECT && i < (plain ? 1 : KG_ROPES);
         i++)
        if (kg_config_is_text(type, ROPE_NAMES[i])) {
            r->c->rope = (enum kg_rope)i;
            return KG_OK;
        }
    return kg_config_refuse(
        r, name, rope,
        plain ? "null, or an object of rope_type default"
              : "null, or an object of rope_type default, linear, dynamic, "
                "llama3 or yarn");
}

/* rope_scaling (older files) or rope_parameters (newer ones, with rope_theta inside) */
static kg_status read_rope_object(const struct kg_config_reader *r, const char *name)
{
    const struct kg_json *rope = kg_json_get(r->root, name);
    if (kg_json_type(rope) == KG_JSON_NULL)
        return KG_OK;
    KG_TRY(read_rope_type(r, name, rope));
    KG_TRY(check_rope_keys(r, name, rope));
    if (kg_json_get(rope, "rope_theta")) {
        double outer = r->c->rope_theta;
        KG_TRY(kg_config_real(r, rope, "rope_theta", 0, &r->c->rope_theta));
        if (kg_json_get(r->root, "rope_theta") && outer != r->c->rope_theta)
            return kg_fail(r->err, KG_ECONFLICT, "%s: rope_theta is %g, but %g in %s",
                           r->doc->where, outer, r->c->rope_theta, name);
    }
    switch (r->c->rope) {
    case KG_ROPE_LLAMA3:
        return read_llama3(r, rope);
    case KG_ROPE_YARN:
        return read_yarn(r, rope);
    case KG_ROPE_LINEAR:
    case KG_ROPE_DYNAMIC:
        return read_factor(r, rope);
    default:
        return KG_OK;
    }
}

kg_status kg_config_rope(const struct kg_config_reader *r)
{
    const double usual = r->c->arch->default_theta;
    bool both = kg_json_type(kg_json_get(r->root, "rope_scaling")) != KG_JSON_NULL &&
                kg_json_type(kg_json_get(r->root, "rope_parameters")) != KG_JSON_NULL;
    if (both)
        return kg_config_refuse(r, "rope_scaling", kg_json_get(r->root, "rope_scaling"),
                                "null where rope_parameters is given");
    KG_TRY(kg_config_real(r, r->root, "rope_theta", usual != 0 ? usual : 10000,
                          &r->c->rope_theta));
    KG_TRY(read_rope_object(r, "rope_scaling"));
    return read_rope_object(r, "rope_parameters");
}
