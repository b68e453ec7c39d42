/* Fields of config.json about experts: how many, how wide, and which layers have them.
 *
 * Classes name them differently: Mixtral counts num_local_experts and has one width,
 * Qwen's have two widths and layers without experts (struct kg_arch.reads).
 */
#include "model/config.h"

#include "data/json.h"
#include "tensor/backend.h"

struct reader {
    struct kg_experts_config *x;
    const struct kg_json_doc *doc;
    const struct kg_json *root;
    struct kg_err *err;
};

static const char *experts_key(const struct kg_arch *arch)
{
    return arch->reads & KG_READS_LOCAL_EXPERTS ? "num_local_experts" : "num_experts";
}

static kg_status read_size(const struct reader *r, const char *key, int64_t max,
                           int32_t *out)
{
    int64_t value;
    KG_TRY(kg_json_need_int(&value, r->doc, r->root, key, 1, max, r->err));
    *out = (int32_t)value;
    return KG_OK;
}

/* mlp_only_layers: indices of layers without experts. */
static kg_status read_without(const struct reader *r, int32_t layers)
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
        if (l < 0 || l >= layers)
            return kg_fail(r->err, KG_EINVAL,
                           "%s: %s[%zu]: expected a layer from 0 to %d", r->doc->where,
                           key, i, (int)layers - 1);
        r->x->without[l / 64] |= (uint64_t)1 << l % 64;
    }
    return KG_OK;
}

static kg_status read_step(const struct reader *r, int32_t layers)
{
    r->x->step = 1;
    if (kg_json_type(kg_json_get(r->root, "decoder_sparse_step")) != KG_JSON_NULL)
        KG_TRY(read_size(r, "decoder_sparse_step", KG_MAX_LAYERS, &r->x->step));
    return read_without(r, layers);
}

static kg_status read_normalise(const struct reader *r, const struct kg_arch *arch)
{
    const struct kg_json *value = kg_json_get(r->root, "norm_topk_prob");
    const bool given = kg_json_type(value) != KG_JSON_NULL;
    const bool always = !(arch->reads & KG_READS_NORMALISE);
    r->x->normalise = kg_json_bool(value, always);
    if (given && kg_json_type(value) != KG_JSON_BOOL)
        return kg_fail(r->err, KG_EFORMAT,
                       "%s: norm_topk_prob: expected true or false, found %s",
                       r->doc->where, kg_json_type_name(value));
    if (always && !r->x->normalise)
        return kg_fail(r->err, KG_EUNSUPPORTED,
                       "%s: norm_topk_prob is false, expected true for model_type %s",
                       r->doc->where, arch->model_type);
    return KG_OK;
}

kg_status kg_experts_config_read(struct kg_model_config *c, const struct kg_json_doc *doc,
                                 const struct kg_json *root, struct kg_err *err)
{
    enum { MAX_WIDTH = 1 << 20 };
    const struct reader r = {&c->experts, doc, root, err};
    const struct kg_arch *arch = c->arch;
    KG_TRY(read_size(&r, experts_key(arch), KG_MAX_EXPERTS, &c->experts.n));
    KG_TRY(read_size(&r, "num_experts_per_tok", KG_MAX_EXPERTS, &c->experts.k));
    if (c->experts.k > c->experts.n)
        return kg_fail(err, KG_EINVAL,
                       "%s: num_experts_per_tok is %d, expected at most the %d of %s",
                       doc->where, (int)c->experts.k, (int)c->experts.n,
                       experts_key(arch));
    c->experts.ffn = c->ffn;
    if (arch->reads & KG_READS_EXPERT_FFN)
        KG_TRY(read_size(&r, "moe_intermediate_size", MAX_WIDTH, &c->experts.ffn));
    if (arch->features & KG_SHARED_EXPERT)
        KG_TRY(read_size(&r, "shared_expert_intermediate_size", MAX_WIDTH,
                         &c->experts.shared_ffn));
    KG_TRY(read_normalise(&r, arch));
    return read_step(&r, c->layers);
}

static kg_status put_int(struct kg_str *out, const char *key, int32_t value,
                         struct kg_err *err)
{
    return kg_str_printf(out, err, ",\n  \"%s\": %d", key, (int)value);
}

static kg_status put_without(struct kg_str *out, const struct kg_model_config *c,
                             struct kg_err *err)
{
    const char *comma = "";
    KG_TRY(kg_str_puts(out, ",\n  \"mlp_only_layers\": [", err));
    for (int32_t l = 0; l < c->layers; l++)
        if (c->experts.without[l / 64] >> l % 64 & 1) {
            KG_TRY(kg_str_printf(out, err, "%s%d", comma, (int)l));
            comma = ", ";
        }
    return kg_str_puts(out, "]", err);
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
    return put_without(out, c, err);
}
