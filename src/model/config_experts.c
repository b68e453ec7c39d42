/* Fields of config.json about experts: how many, how wide, and which layers have them.
 *
 * Classes name them differently: Mixtral counts num_local_experts and has one width,
 * Qwen's have two widths and layers without experts (struct kg_arch.reads).
 */
#include "model/config_internal.h"

#include "tensor/backend.h"

static const char *const KEYS[] = {"num_experts", "num_local_experts"};

static bool is_local(const struct kg_arch *arch)
{
    return arch->reads & KG_READS_LOCAL_EXPERTS;
}

static const char *experts_key(const struct kg_arch *arch)
{
    return KEYS[is_local(arch)];
}

/* Under the class's own key or, as newer releases write for some classes, the other. */
static kg_status read_count(const struct kg_config_reader *r, int32_t *n)
{
    const char *own = experts_key(r->c->arch), *other = KEYS[!is_local(r->c->arch)];
    int32_t first, second;
    if (kg_json_type(kg_json_get(r->root, other)) == KG_JSON_NULL)
        return kg_config_size(r, own, KG_MAX_EXPERTS, 0, n);
    KG_TRY(kg_config_size(r, other, KG_MAX_EXPERTS, 0, &second));
    KG_TRY(kg_config_size(r, own, KG_MAX_EXPERTS, second, &first));
    *n = first;
    return first == second ? KG_OK
                           : kg_fail(r->err, KG_ECONFLICT, "%s: %s is %d, but %s is %d",
                                     r->doc->where, own, (int)first, other, (int)second);
}

/* mlp_only_layers: indices of layers without experts. */
static kg_status read_without(const struct kg_config_reader *r)
{
    const char *key = "mlp_only_layers";
    const struct kg_json *list = kg_json_get(r->root, key);
    if (kg_json_type(list) == KG_JSON_NULL)
        return KG_OK;
    if (kg_json_type(list) != KG_JSON_ARRAY)
        return kg_fail(r->err, KG_EFORMAT, "%s: %s: expected a list of layers, found %s",
                       r->doc->where, key, kg_json_type_name(list));
    for (size_t i = 0; i < kg_json_size(list); i++) {
        const int64_t l = kg_json_int(kg_json_at(list, i), -1);
        if (l < 0 || l >= r->c->layers)
            return kg_fail(r->err, KG_EINVAL,
                           "%s: %s[%zu]: expected a layer from 0 to %d", r->doc->where,
                           key, i, (int)r->c->layers - 1);
        r->c->experts.without[l / 64] |= (uint64_t)1 << l % 64;
    }
    return KG_OK;
}

kg_status kg_config_experts(const struct kg_config_reader *r)
{
    struct kg_experts_config *x = &r->c->experts;
    const struct kg_arch *arch = r->c->arch;
    KG_TRY(read_count(r, &x->n));
    KG_TRY(kg_config_size(r, "num_experts_per_tok", KG_MAX_EXPERTS, 0, &x->k));
    if (x->k > x->n)
        return kg_fail(r->err, KG_EINVAL,
                       "%s: num_experts_per_tok is %d, expected at most the %d of %s",
                       r->doc->where, (int)x->k, (int)x->n, experts_key(arch));
    x->ffn = r->c->ffn;
    if (arch->reads & KG_READS_EXPERT_FFN)
        KG_TRY(kg_config_size(r, "moe_intermediate_size", KG_MAX_WIDTH, 0, &x->ffn));
    if (arch->features & KG_SHARED_EXPERT)
        KG_TRY(kg_config_size(r, "shared_expert_intermediate_size", KG_MAX_WIDTH, 0,
                              &x->shared_ffn));
    const char *key = "norm_topk_prob";
    const bool always = !(r->c->arch->reads & KG_READS_NORMALISE);
    KG_TRY(kg_config_bool(r, key, always, &r->c->experts.normalise));
    if (always && !r->c->experts.normalise)
        return kg_config_refuse(r, key, kg_json_get(r->root, key),
                                "true for this model_type");
    KG_TRY(kg_config_size(r, "decoder_sparse_step", KG_MAX_LAYERS, 1, &x->step));
    return read_without(r);
}

static kg_status put_int(struct kg_str *out, const char *key, int32_t value,
                         struct kg_err *err)
{
    return kg_str_printf(out, err, ",\n  \"%s\": %d", key, (int)value);
}

kg_status kg_experts_config_write(struct kg_str *out, const struct kg_model_config *c,
                                  struct kg_err *err)
{
    const struct kg_experts_config *x = &c->experts;
    KG_TRY(put_int(out, experts_key(c->arch), x->n, err));
    KG_TRY(put_int(out, "num_experts_per_tok", x->k, err));
    if (x->shared_ffn > 0)
        KG_TRY(put_int(out, "shared_expert_intermediate_size", x->shared_ffn, err));
    if (c->arch->reads & KG_READS_NORMALISE)
        KG_TRY(kg_str_printf(out, err, ",\n  \"norm_topk_prob\": %s",
                             x->normalise ? "true" : "false"));
    if (!(c->arch->reads & KG_READS_EXPERT_FFN))
        return KG_OK;
    KG_TRY(put_int(out, "moe_intermediate_size", x->ffn, err));
    KG_TRY(put_int(out, "decoder_sparse_step", x->step, err));
    const char *comma = "";
    KG_TRY(kg_str_puts(out, ",\n  \"mlp_only_layers\": [", err));
    for (int32_t l = 0; l < c->layers; l++)
        if (c->experts.without[l / 64] >> l % 64 & 1) {
            KG_TRY(kg_str_printf(out, err, "%s%d", comma, (int)l));
            comma = ", ";
        }
    return kg_str_puts(out, "]", err);
}

int32_t kg_model_config_routed(const struct kg_model_config *c, int32_t l)
{
    int32_t n = 0;
    for (int32_t i = 0; i < l; i++)
        n += (kg_model_config_layer(c, i) & KG_EXPERTS) != 0;
    return n;
}

int32_t kg_model_config_choices(const struct kg_model_config *c)
{
    return c->experts.k * kg_model_config_routed(c, c->layers);
}
