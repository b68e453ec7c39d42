/* Fields of config.json that distinguish layers: which have a sliding window, which have
 * no rope, which rotate by a base of their own; and the features of a layer.
 */
#include "model/config_internal.h"

/* no_rope_layers: a number per layer; 0: without rope. If it is absent, every
 * no_rope_layer_interval-th layer is without rope. */
static kg_status read_no_rope(const struct kg_config_reader *r)
{
    struct kg_model_config *c = r->c;
    const struct kg_json *list = kg_json_get(r->root, "no_rope_layers");
    int32_t interval;
    if (!(c->arch->reads & KG_READS_NO_ROPE))
        return KG_OK;
    KG_TRY(kg_config_size(r, "no_rope_layer_interval", KG_MAX_LAYERS, 4, &interval));
    const bool given = kg_json_type(list) != KG_JSON_NULL;
    if (given &&
        (kg_json_type(list) != KG_JSON_ARRAY || kg_json_size(list) != (size_t)c->layers))
        return kg_config_refuse(r, "no_rope_layers", list, "0 or 1 for every layer");
    for (int32_t l = 0; l < c->layers; l++) {
        const int64_t has = given ? kg_json_int(kg_json_at(list, (size_t)l), -1)
                                  : (l + 1) % interval != 0;
        if (has != 0 && has != 1)
            return kg_config_refuse(r, "no_rope_layers", list, "0 or 1 for every layer");
        c->layer[l] |= has ? 0 : KG_LAYER_NO_ROPE;
    }
    return KG_OK;
}

/* Whether a class of this kind gives layer l a window, if there are no layer_types.
 * from: max_window_layers; pattern: period whose last layer has no window */
static bool usually_slides(enum kg_windows kind, int32_t l, bool turned, int64_t from,
                           int32_t pattern)
{
    switch (kind) {
    case KG_WINDOWS_SWITCHED:
        return l >= from;
    case KG_WINDOWS_SWITCHED_TURNS:
        return l % 2 == 0 && l < from;
    case KG_WINDOWS_NO_ROPE:
        return !turned;
    case KG_WINDOWS_ALTERNATE:
        return (l + 1) % pattern != 0;
    default:
        return true;
    }
}

/* Sets the layers with a window, if there are no layer_types. */
static kg_status usual_windows(const struct kg_config_reader *r)
{
    struct kg_model_config *c = r->c;
    int64_t from = 28;
    int32_t pattern = c->arch->default_pattern;
    const struct kg_json *given = kg_json_get(r->root, "max_window_layers");
    if (kg_json_type(given) != KG_JSON_NULL)
        KG_TRY(kg_json_need_int(&from, r->doc, r->root, "max_window_layers", 0, INT32_MAX,
                                r->err));
    if (c->arch->reads & KG_READS_LOCAL_ROPE)
        KG_TRY(kg_config_size(r, "sliding_window_pattern", KG_MAX_LAYERS, pattern,
                              &pattern));
    for (int32_t l = 0; l < c->layers; l++) {
        const bool turned = !(c->layer[l] & KG_LAYER_NO_ROPE);
        c->layer[l] |= usually_slides(c->arch->windows, l, turned, from, pattern)
                           ? KG_LAYER_WINDOW
                           : 0;
    }
    return KG_OK;
}

static kg_status listed_windows(const struct kg_config_reader *r,
                                const struct kg_json *list)
{
    static const char *const expected = "\"full_attention\" or \"sliding_attention\" "
                                        "for every layer";
    struct kg_model_config *c = r->c;
    const bool all = c->arch->windows == KG_WINDOWS_ALL ||
                     c->arch->windows == KG_WINDOWS_SWITCHED_ALL;
    if (kg_json_type(list) != KG_JSON_ARRAY || kg_json_size(list) != (size_t)c->layers)
        return kg_config_refuse(r, "layer_types", list, expected);
    for (int32_t l = 0; l < c->layers; l++) {
        const struct kg_json *kind = kg_json_at(list, (size_t)l);
        const bool slides = kg_config_is_text(kind, "sliding_attention");
        if (!slides && !kg_config_is_text(kind, "full_attention"))
            return kg_config_refuse(r, "layer_types", list, expected);
        if (!slides && c->window && all)
            return kg_config_refuse(r, "layer_types", list,
                                    "\"sliding_attention\" for every layer");
        if (slides && !c->window)
            return kg_config_refuse(
                r, "layer_types", list,
                "\"full_attention\" for every layer, because there is no window");
        c->layer[l] |= slides ? KG_LAYER_WINDOW : 0;
    }
    return KG_OK;
}

bool kg_config_has_switch(const struct kg_arch *arch)
{
    return arch->windows == KG_WINDOWS_SWITCHED ||
           arch->windows == KG_WINDOWS_SWITCHED_ALL ||
           arch->windows == KG_WINDOWS_SWITCHED_TURNS ||
           arch->windows == KG_WINDOWS_NO_ROPE;
}

/* c->window: 0 if the class or the file has none */
static kg_status read_window_size(const struct kg_config_reader *r)
{
    struct kg_model_config *c = r->c;
    const enum kg_windows kind = c->arch->windows;
    const struct kg_json *value = kg_json_get(r->root, "sliding_window");
    const bool switched = kg_config_has_switch(c->arch);
    bool on;
    KG_TRY(kg_config_bool(r, "use_sliding_window", false, &on));
    if (on && !switched)
        return kg_config_refuse(r, "use_sliding_window",
                                kg_json_get(r->root, "use_sliding_window"),
                                "false for this model_type");
    if (kind == KG_WINDOWS_NONE || (value && kg_json_type(value) == KG_JSON_NULL) ||
        (!on && switched))
        return KG_OK;
    if (!value)
        c->window = c->arch->default_window;
    else
        KG_TRY(kg_config_size(r, "sliding_window", KG_MAX_POSITIONS, 0, &c->window));
    return KG_OK;
}

/* In classes with a local rope, layers with a window have a separate base. */
static kg_status read_local_rope(const struct kg_config_reader *r)
{
    struct kg_model_config *c = r->c;
    if (!(c->arch->reads & KG_READS_LOCAL_ROPE))
        return KG_OK;
    KG_TRY(
        kg_config_real(r, r->root, "rope_local_base_freq", 10000, &c->rope_local_theta));
    for (int32_t l = 0; l < c->layers; l++)
        c->layer[l] |= c->layer[l] & KG_LAYER_WINDOW ? KG_LAYER_LOCAL_ROPE : 0;
    return KG_OK;
}

/* Attention must be causal. */
static kg_status check_causal(const struct kg_config_reader *r)
{
    static const char key[] = "use_bidirectional_attention";
    bool both_ways;
    KG_TRY(kg_config_bool(r, key, false, &both_ways));
    return both_ways ? kg_config_refuse(r, key, kg_json_get(r->root, key), "false")
                     : KG_OK;
}

kg_status kg_config_layers(const struct kg_config_reader *r)
{
    struct kg_model_config *c = r->c;
    const struct kg_json *list = kg_json_get(r->root, "layer_types");
    KG_TRY(check_causal(r));
    KG_TRY(read_no_rope(r));
    KG_TRY(read_window_size(r));
    if (kg_json_type(list) != KG_JSON_NULL)
        KG_TRY(listed_windows(r, list));
    else if (c->window)
        KG_TRY(usual_windows(r));
    return read_local_rope(r);
}

int32_t kg_model_config_window(const struct kg_model_config *c, int32_t l)
{
    const bool slides = c->layer[l] & KG_LAYER_WINDOW;
    return slides && c->window < c->max_positions ? c->window : 0;
}

uint32_t kg_model_config_features(const struct kg_model_config *c)
{
    return c->arch->features | (c->qkv_bias ? KG_QKV_BIAS : 0) |
           (c->o_bias ? KG_O_BIAS : 0) | (c->mlp_bias ? KG_MLP_BIAS : 0);
}

uint32_t kg_model_config_layer(const struct kg_model_config *c, int32_t l)
{
    const uint32_t all = kg_model_config_features(c);
    const struct kg_experts_config *x = &c->experts;
    const bool without = x->n == 0 || (l + 1) % x->step != 0 ||
                         (x->without[l / 64] >> l % 64 & 1);

    return without ? (all & ~(uint32_t)KG_EXPERT_FEATURES) | KG_DENSE : all;
}
