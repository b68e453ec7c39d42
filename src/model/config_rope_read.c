/* Fields of config.json about rope: its base, and its scaling beyond the positions of its
 * training. config_rope.c computes the frequencies.
 */
#include "base/real.h"
#include "model/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const ROPE_NAMES[KG_ROPES] = {
    [KG_ROPE_DEFAULT] = "default", [KG_ROPE_LINEAR] = "linear",
    [KG_ROPE_DYNAMIC] = "dynamic", [KG_ROPE_LLAMA3] = "llama3",
    [KG_ROPE_YARN] = "yarn",       [KG_ROPE_LONGROPE] = "longrope",
};

const char *kg_rope_name(enum kg_rope rope) { return ROPE_NAMES[rope]; }

/* Keys of the rope object, and the types that have them, as bits. */
static const struct {
    const char *key;
    uint32_t of;
} ROPE_KEYS[] = {
    {"rope_type", UINT32_MAX},
    {"type", UINT32_MAX},
    {"rope_theta", UINT32_MAX},
    {"partial_rotary_factor", UINT32_MAX},
    {"factor", UINT32_MAX & ~(1u << KG_ROPE_DEFAULT)},
    {"original_max_position_embeddings", 1u << KG_ROPE_LLAMA3 | 1u << KG_ROPE_YARN |
                                             1u << KG_ROPE_DYNAMIC |
                                             1u << KG_ROPE_LONGROPE},
    {"low_freq_factor", 1u << KG_ROPE_LLAMA3},
    {"high_freq_factor", 1u << KG_ROPE_LLAMA3},
    {"attention_factor", 1u << KG_ROPE_YARN | 1u << KG_ROPE_LONGROPE},
    {"short_factor", 1u << KG_ROPE_LONGROPE},
    {"long_factor", 1u << KG_ROPE_LONGROPE},
    {"beta_fast", 1u << KG_ROPE_YARN},
    {"beta_slow", 1u << KG_ROPE_YARN},
    {"mscale", 1u << KG_ROPE_YARN},
    {"mscale_all_dim", 1u << KG_ROPE_YARN},
    {"truncate", 1u << KG_ROPE_YARN},
};

static kg_status refuse_rope_key(const struct kg_config_reader *r, const char *name,
                                 const char *key, const struct kg_json *value)
{
    char expected[256];
    snprintf(expected, sizeof expected,
             "no such field in %s of this rope_type (if it has no effect, set "
             "model.ignore=%.80s)",
             name, key);
    return kg_config_refuse(r, key, value, expected);
}

static kg_status check_rope_keys(const struct kg_config_reader *r, const char *name,
                                 const struct kg_json *rope)
{
    const size_t n = sizeof ROPE_KEYS / sizeof *ROPE_KEYS;
    for (size_t i = 0; i < kg_json_size(rope); i++) {
        const char *key = kg_json_key_at(rope, i);
        size_t k = 0;
        while (k < n && strcmp(ROPE_KEYS[k].key, key) != 0)
            k++;
        const bool has = k < n && ROPE_KEYS[k].of & 1u << r->c->rope;
        if (!has && !kg_config_ignores(r, key))
            return refuse_rope_key(r, name, key, kg_json_value_at(rope, i));
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

double kg_longrope_attention(const struct kg_model_config *c)
{
    const double original = (double)c->rope_original_positions;
    return c->rope_factor <= 1 ? 1.0
                               : sqrt(1 + kg_log(c->rope_factor) / kg_log(original));
}

/* 1 for factors that stretch nothing, else 0.1 scale log(factor) + 1 */
static double yarn_attention(double factor, double scale)
{
    return factor <= 1 ? 1.0 : 0.1 * scale * kg_log(factor) + 1.0;
}

/* 0 if it is absent or null; a given 0 means the same. */
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

/* Absent or null fields have the defaults of transformers. The two mscales count only
 * together. */
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

/* A list of one number per pair. */
static kg_status read_list(const struct kg_config_reader *r, const struct kg_json *rope,
                           const char *key, float *out)
{
    const struct kg_json *list = kg_json_get(rope, key);
    const int32_t pairs = kg_rope_pairs(r->c);
    bool right = kg_json_type(list) == KG_JSON_ARRAY &&
                 kg_json_size(list) == (size_t)pairs;
    for (int32_t i = 0; i < pairs && right; i++) {
        out[i] = (float)kg_json_real(kg_json_at(list, (size_t)i), 0);
        right = out[i] >= 1e-6f && out[i] <= 1e6f;
    }
    if (right)
        return KG_OK;
    char expected[64];
    snprintf(expected, sizeof expected, "a list of %d positive numbers", (int)pairs);
    return kg_config_refuse(r, key, list, expected);
}

/* original_max_position_embeddings, in the object or at the top level, and the factor
 * that follows from it. */
static kg_status read_longrope_positions(const struct kg_config_reader *r,
                                         const struct kg_json *rope)
{
    static const char key[] = "original_max_position_embeddings";
    struct kg_model_config *c = r->c;
    KG_TRY(kg_config_size(r, key, KG_MAX_POSITIONS, c->arch->default_original,
                          &c->rope_original_positions));
    const int32_t outer = c->rope_original_positions;
    if (kg_json_get(rope, key))
        KG_TRY(read_original(r, rope));
    if (kg_json_get(r->root, key) && outer != c->rope_original_positions)
        return kg_fail(r->err, KG_ECONFLICT,
                       "%s: %s is %d at the top level, but %d beside the factors",
                       r->doc->where, key, outer, c->rope_original_positions);
    /* the attention factor divides by their logarithm */
    if (c->rope_original_positions < 2)
        return kg_config_refuse(r, key,
                                kg_json_get(kg_json_get(rope, key) ? rope : r->root, key),
                                "2 or more");
    c->rope_factor = (double)c->max_positions / c->rope_original_positions;
    if (kg_json_get(rope, "factor") &&
        kg_json_real(kg_json_get(rope, "factor"), 0) != c->rope_factor)
        return kg_config_refuse(r, "factor", kg_json_get(rope, "factor"),
                                "max_position_embeddings / "
                                "original_max_position_embeddings");
    return KG_OK;
}

/* The long factors apply to all tokens of a sequence longer than the original positions:
 * its first keys would change when it grows beyond. So sequences must stay within. */
static kg_status read_longrope(const struct kg_config_reader *r,
                               const struct kg_json *rope)
{
    struct kg_model_config *c = r->c;
    KG_TRY(read_list(r, rope, "short_factor", c->rope_short));
    KG_TRY(read_list(r, rope, "long_factor", c->rope_long));
    KG_TRY(read_longrope_positions(r, rope));
    c->rope_positions = c->max_positions;
    if (c->max_positions > c->rope_original_positions)
        c->max_positions = c->rope_original_positions;
    return kg_config_real(r, rope, "attention_factor", kg_longrope_attention(c),
                          &c->rope_attention);
}

static bool is_rope_type(const struct kg_json *type, enum kg_rope rope)
{
    const bool was = rope == KG_ROPE_LONGROPE && kg_config_is_text(type, "su");
    return was || kg_config_is_text(type, ROPE_NAMES[rope]);
}

static kg_status read_rope_type(const struct kg_config_reader *r, const char *name,
                                const struct kg_json *rope)
{
    static const uint32_t of_longrope = 1u << KG_ROPE_DEFAULT | 1u << KG_ROPE_LONGROPE;
    const bool is_long = r->c->arch->reads & KG_READS_LONGROPE;
    const uint32_t known = is_long ? of_longrope : ~(1u << KG_ROPE_LONGROPE);
    const bool object = kg_json_type(rope) == KG_JSON_OBJECT;
    const struct kg_json *type = kg_json_get(rope, "rope_type");
    if (!type)
        type = kg_json_get(rope, "type");
    r->c->rope = KG_ROPE_DEFAULT; /* without a type */
    if (object && !type)
        return KG_OK;
    for (int i = 0; object && i < KG_ROPES; i++)
        if (known & 1u << i && is_rope_type(type, (enum kg_rope)i)) {
            r->c->rope = (enum kg_rope)i;
            return KG_OK;
        }
    return kg_config_refuse(r, name, rope,
                            is_long ? "null, or an object of rope_type default or "
                                      "longrope"
                                    : "null, or an object of rope_type default, linear, "
                                      "dynamic, llama3 or yarn");
}

/* A field that newer files have in the rope object and older ones at the top level. If a
 * file has both, they must be equal. */
static kg_status read_either(const struct kg_config_reader *r, const struct kg_json *rope,
                             const char *name, const char *key, double *value)
{
    const double outer = *value;
    if (!kg_json_get(rope, key))
        return KG_OK;
    KG_TRY(kg_config_real(r, rope, key, 0, value));
    return !kg_json_get(r->root, key) || outer == *value
               ? KG_OK
               : kg_fail(r->err, KG_ECONFLICT, "%s: %s is %g, but %g in %s",
                         r->doc->where, key, outer, *value, name);
}

/* partial_rotary_factor: the part of a head that rotates. */
static kg_status read_part(const struct kg_config_reader *r, const struct kg_json *rope,
                           const char *name)
{
    static const char key[] = "partial_rotary_factor";
    struct kg_model_config *c = r->c;
    double part = 1;
    KG_TRY(kg_config_real(r, r->root, key, 1, &part));
    KG_TRY(read_either(r, rope, name, key, &part));
    const int32_t turned = part <= 1 ? (int32_t)(c->head_dim * part) : 0;
    const struct kg_json *from = kg_json_get(rope, key) ? rope : r->root;
    if (part != 1 && !(c->arch->reads & KG_READS_PART_ROPE))
        return kg_config_refuse(r, key, kg_json_get(from, key), "1");
    if (turned < 2 || turned % 2)
        return kg_config_refuse(r, key, kg_json_get(from, key),
                                "a share of head_dim with an even number of dimensions");
    c->rope_pairs = turned < c->head_dim ? turned / 2 : 0;
    return KG_OK;
}

/* rope_scaling (older files) or rope_parameters (newer ones, with rope_theta inside) */
static kg_status read_rope_object(const struct kg_config_reader *r, const char *name,
                                  const struct kg_json *rope)
{
    if (kg_json_type(rope) == KG_JSON_NULL)
        return KG_OK;
    KG_TRY(read_rope_type(r, name, rope));
    KG_TRY(check_rope_keys(r, name, rope));
    KG_TRY(read_either(r, rope, name, "rope_theta", &r->c->rope_theta));
    KG_TRY(read_part(r, rope, name));
    switch (r->c->rope) {
    case KG_ROPE_LLAMA3:
        return read_llama3(r, rope);
    case KG_ROPE_YARN:
        return read_yarn(r, rope);
    case KG_ROPE_LONGROPE:
        return read_longrope(r, rope);
    case KG_ROPE_LINEAR:
    case KG_ROPE_DYNAMIC:
        return read_factor(r, rope);
    default:
        return KG_OK;
    }
}

/* Newer files of a class with two bases: an object for each kind of layer. */
static kg_status read_two_ropes(const struct kg_config_reader *r,
                                const struct kg_json *both)
{
    static const char name[] = "rope_parameters";
    static const char beside[] = "rope_local_base_freq";
    const struct kg_json *local = kg_json_get(both, "sliding_attention");
    struct kg_model_config *c = r->c;
    const double outer = c->rope_local_theta;
    if (kg_json_size(both) != 2 || kg_json_type(local) != KG_JSON_OBJECT)
        return kg_config_refuse(r, name, both,
                                "objects full_attention and sliding_attention");
    KG_TRY(read_rope_type(r, name, local));
    KG_TRY(check_rope_keys(r, name, local));
    if (c->rope != KG_ROPE_DEFAULT)
        return kg_config_refuse(r, "sliding_attention", local, "rope_type default");
    KG_TRY(kg_config_real(r, local, "rope_theta", outer, &c->rope_local_theta));
    if (kg_json_get(r->root, beside) && outer != c->rope_local_theta)
        return kg_fail(r->err, KG_ECONFLICT, "%s: %s is %g, but %g in %s", r->doc->where,
                       beside, outer, c->rope_local_theta, name);
    return read_rope_object(r, name, kg_json_get(both, "full_attention"));
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
    KG_TRY(read_part(r, NULL, ""));
    KG_TRY(read_rope_object(r, "rope_scaling", kg_json_get(r->root, "rope_scaling")));
    const struct kg_json *newer = kg_json_get(r->root, "rope_parameters");
    return r->c->rope_local_theta > 0 && kg_json_size(newer) > 0
               ? read_two_ropes(r, newer)
               : read_rope_object(r, "rope_parameters", newer);
}
