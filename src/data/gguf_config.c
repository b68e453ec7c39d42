/* config.json from a GGUF file's metadata.
 *
 * Most keys only change their name: a table. Fields that depend on several keys or on
 * tensors (the rope's scaling, the rotated part of a head, biases) are written after
 * these. llama.cpp's constants of an architecture, which no key contains, are written if
 * transformers has another default.
 */
#include "data/gguf_model.h"
#include "data/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WINDOWED "phi3 gemma2 gemma3"
#define GEMMA    "gemma2 gemma3"
/* architectures whose config.json has norm_topk_prob */
#define NORMALISING "qwen2moe qwen3moe olmoe"

/* ---- architectures ---- */

static const struct kg_gguf_arch ARCHS[] = {
    {"llama", "llama", "LlamaForCausalLM", KG_GGUF_PAIRED},
    {"llama", "mixtral", "MixtralForCausalLM", KG_GGUF_PAIRED | KG_GGUF_EXPERTS},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", 0},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", 0},
    {"qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM", KG_GGUF_EXPERTS},
    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", KG_GGUF_EXPERTS},
    {"gemma2", "gemma2", "Gemma2ForCausalLM", KG_GGUF_NORM_1},
    {"gemma3", "gemma3_text", "Gemma3ForCausalLM", KG_GGUF_NORM_1},
    {"phi3", "phi3", "Phi3ForCausalLM", 0},
    {"granite", "granite", "GraniteForCausalLM", KG_GGUF_PAIRED},
    {"olmo2", "olmo2", "Olmo2ForCausalLM", 0},
    {"olmoe", "olmoe", "OlmoeForCausalLM", KG_GGUF_EXPERTS},
    {"smollm3", "smollm3", "SmolLM3ForCausalLM", KG_GGUF_PAIRED},
    {"llama", "mistral", "MistralForCausalLM", KG_GGUF_PAIRED | KG_GGUF_OUT},
};
enum { N_ARCHS = sizeof ARCHS / sizeof *ARCHS };

static const struct kg_gguf_value *of_name(const struct kg_gguf *g, const char *name,
                                           const char *key)
{
    char whole[2 * KG_GGUF_NAME];

    snprintf(whole, sizeof whole, "%s.%s", name, key);
    return kg_gguf_get(g, whole);
}

const struct kg_gguf_value *kg_gguf_of(const struct kg_gguf *g,
                                       const struct kg_gguf_arch *arch, const char *key)
{
    return of_name(g, arch->name, key);
}

kg_status kg_gguf_find_arch(const struct kg_gguf_arch **arch, const struct kg_gguf *g,
                            struct kg_err *err)
{
    const struct kg_gguf_value *v = kg_gguf_get(g, "general.architecture");
    const struct kg_gguf_value *kind = kg_gguf_get(g, "general.type");
    char name[64];
    size_t n, i;
    const char *text = kg_gguf_text(v, &n);

    if (kind && !kg_gguf_is(kind, "model")) {
        text = kg_gguf_text(kind, &n);
        return kg_fail(
            err, KG_EUNSUPPORTED, "%s: general.type: expected 'model', found '%.*s'",
            g->files[0].path, (int)(text ? n < 60 ? n : 60 : 0), text ? text : "");
    }
    snprintf(name, sizeof name, "%.*s", text ? (int)(n < 60 ? n : 60) : 0,
             text ? text : "");
    for (i = 0; i < N_ARCHS; i++) {
        const bool experts = kg_gguf_int(of_name(g, name, "expert_count"), 0) > 0;

        *arch = &ARCHS[i];
        if (strcmp(ARCHS[i].name, name) == 0 && !(ARCHS[i].flags & KG_GGUF_OUT) &&
            experts == ((ARCHS[i].flags & KG_GGUF_EXPERTS) != 0))
            return KG_OK;
    }
    if (kg_str_pick(&i, KG_EUNSUPPORTED, "general.architecture", name, ARCHS, N_ARCHS,
                    sizeof *ARCHS, err) == KG_OK)
        kg_fail(err, KG_EUNSUPPORTED, "%s.expert_count: expected %s, found %s", name,
                ARCHS[i].flags & KG_GGUF_EXPERTS ? "experts" : "none",
                ARCHS[i].flags & KG_GGUF_EXPERTS ? "none" : "experts");
    return kg_err_prefix(err, "%s", g->files[0].path);
}

bool kg_gguf_names(const char *names, const char *name)
{
    return !names || kg_str_listed(names, name, strlen(name));
}

int64_t kg_gguf_head_dim(const struct kg_gguf *g, const struct kg_gguf_arch *arch)
{
    const int64_t heads = kg_gguf_int(kg_gguf_of(g, arch, "attention.head_count"), 1);
    const int64_t width = kg_gguf_int(kg_gguf_of(g, arch, "embedding_length"), 0);

    return kg_gguf_int(kg_gguf_of(g, arch, "attention.key_length"),
                       heads > 0 ? width / heads : 0);
}

/* ---- keys that are fields ---- */

const struct kg_gguf_key kg_gguf_keys[] = {
    {"block_count", "num_hidden_layers", NULL, false},
    {"context_length", "max_position_embeddings", NULL, false},
    {"embedding_length", "hidden_size", NULL, false},
    {"feed_forward_length", "intermediate_size", NULL, false},
    {"attention.head_count", "num_attention_heads", NULL, false},
    {"attention.head_count_kv", "num_key_value_heads", NULL, false},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", NULL, true},
    {"attention.key_length", "head_dim", NULL, false},
    {"rope.freq_base", "rope_theta", NULL, true},
    {"rope.freq_base_swa", "rope_local_base_freq", "gemma3", true},
    {"attention.sliding_window", "sliding_window", WINDOWED, false},
    {"attn_logit_softcapping", "attn_logit_softcapping", "gemma2", true},
    {"final_logit_softcapping", "final_logit_softcapping", GEMMA, true},
    {"expert_count", "num_local_experts", "llama", false},
    {"expert_count", "num_experts", "qwen2moe qwen3moe olmoe", false},
    {"expert_used_count", "num_experts_per_tok", "llama qwen2moe qwen3moe olmoe", false},
    {"expert_feed_forward_length", "moe_intermediate_size", "qwen2moe qwen3moe", false},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", "qwen2moe",
     false},
    {"attention.scale", "attention_multiplier", "granite", true},
    {"embedding_scale", "embedding_multiplier", "granite", true},
    {"residual_scale", "residual_multiplier", "granite", true},
    {"logit_scale", "logits_scaling", "granite", true},
    {"rope.scaling.original_context_length", "original_max_position_embeddings", "phi3",
     false},
    {NULL, NULL, NULL, false},
};

struct maker {
    struct kg_str *out;
    const struct kg_gguf *g;
    const struct kg_gguf_arch *arch;
    struct kg_err *err;
};

static const struct kg_gguf_value *of(const struct maker *m, const char *key)
{
    return kg_gguf_of(m->g, m->arch, key);
}

static kg_status put_value(const struct maker *m, const struct kg_gguf_value *v)
{
    size_t n;
    const char *text = kg_gguf_text(v, &n);
    struct kg_gguf_walk walk = {.array = v};

    if (text)
        return kg_json_put_string(m->out, text, n, m->err);
    if (v->type == KG_GGUF_BOOL)
        return kg_str_puts(m->out, kg_gguf_bool(v, false) ? "true" : "false", m->err);
    if (v->type == KG_GGUF_F32)
        return kg_json_put_float(m->out, (float)kg_gguf_real(v, 0), m->err);
    if (v->type == KG_GGUF_F64)
        return kg_json_put_double(m->out, kg_gguf_real(v, 0), m->err);
    if (v->type != KG_GGUF_ARRAY)
        return kg_str_printf(m->out, m->err, "%lld", (long long)kg_gguf_int(v, -1));
    KG_TRY(kg_str_putc(m->out, '[', m->err));
    while (kg_gguf_next(&walk)) {
        KG_TRY(kg_str_puts(m->out, walk.i > 0 ? ", " : "", m->err));
        KG_TRY(put_value(m, &walk.item));
    }
    return kg_str_putc(m->out, ']', m->err);
}

static kg_status put_key(const struct maker *m, const char *field)
{
    KG_TRY(kg_json_put_text(m->out, ",\n  ", field, m->err));
    return kg_str_puts(m->out, ": ", m->err);
}

static kg_status put_int(const struct maker *m, const char *field, int64_t x)
{
    KG_TRY(put_key(m, field));
    return kg_str_printf(m->out, m->err, "%lld", (long long)x);
}

static kg_status put_true(const struct maker *m, const char *field, bool truth)
{
    KG_TRY(put_key(m, field));
    return kg_str_puts(m->out, truth ? "true" : "false", m->err);
}

/* A list with one number per layer becomes a single number if all are equal. */
static const struct kg_gguf_value *same_items(const struct kg_gguf_value *v,
                                              struct kg_gguf_value *one)
{
    struct kg_gguf_walk walk = {.array = v};

    while (kg_gguf_next(&walk)) {
        if (walk.i > 0 && kg_gguf_int(&walk.item, -1) != kg_gguf_int(one, -2))
            return v;
        *one = walk.item;
    }
    return walk.i > 0 ? one : v;
}

/* Whether the key needs no field: something else gives its value, or it is the only one
 * supported. Otherwise a field of that name is written, which is refused. */
static bool is_told(const struct maker *m, const char *key, const struct kg_gguf_value *v)
{
    const int64_t head = kg_gguf_head_dim(m->g, m->arch);
    const int64_t x = kg_gguf_int(v, -1);
    const bool phi3 = strcmp(m->arch->name, "phi3") == 0;

    if (strcmp(key, "vocab_size") == 0)
        return true;
    if (strcmp(key, "attention.value_length") == 0)
        return x == head;
    if (strcmp(key, "rope.dimension_count") == 0)
        return x == head || (phi3 && x > 0);
    if (strcmp(key, "attention.causal") == 0 ||
        strcmp(key, "rope.scaling.finetuned") == 0)
        return kg_gguf_bool(v, false) || *key == 'r';
    if (strcmp(key, "expert_gating_func") == 0)
        return x == 1; /* softmax */
    if (strcmp(key, "expert_weights_norm") == 0)
        return kg_gguf_names(NORMALISING, m->arch->name) || kg_gguf_bool(v, false);
    if (strcmp(key, "rope.scaling.attn_factor") == 0)
        return phi3 || kg_gguf_real(v, 0) == 1;
    return strcmp(key, "rope.scaling.type") == 0 ||
           strcmp(key, "rope.scaling.factor") == 0 ||
           strcmp(key, "rope.scaling.original_context_length") == 0 ||
           strcmp(key, "rope.scaling.yarn_beta_fast") == 0 ||
           strcmp(key, "rope.scaling.yarn_beta_slow") == 0;
}

static kg_status put_one(const struct maker *m, const char *key,
                         const struct kg_gguf_value *v)
{
    const struct kg_gguf_key *k = kg_gguf_keys;
    struct kg_gguf_value one = {.n = 0};

    while (k->key &&
           (strcmp(k->key, key) != 0 || !kg_gguf_names(k->archs, m->arch->name)))
        k++;
    if (!k->key && is_told(m, key, v))
        return KG_OK;
    if (strcmp(key, "expert_count") == 0 && kg_gguf_int(v, 1) == 0)
        return KG_OK;
    if (strcmp(key, "expert_used_count") == 0 && kg_gguf_int(v, 1) == 0)
        return KG_OK;
    KG_TRY(put_key(m, k->key ? k->field : v->key));
    return put_value(m, k->key ? same_items(v, &one) : v);
}

/* ---- rope ---- */

/* Reads a small fp32 tensor.   returns its number of values; 0 if none or above max */
static int64_t read_floats(const struct maker *m, const char *name, float *out,
                           int64_t max)
{
    const struct kg_gguf_tensor *t = kg_gguf_find(m->g, name);
    const int64_t n = t && t->n_dims == 1 && t->type->id == 0 ? t->shape[0] : 0;

    if (n > max)
        return 0;
    for (int64_t i = 0; i < n; i++)
        memcpy(&out[i], t->data + sizeof *out * (size_t)i, sizeof *out);
    return n;
}

enum { MAX_PAIRS = 1024, LLAMA3_POSITIONS = 8192 };

/* The divisor of pair i in Llama 3's scaling by `factor` from 8,192 positions on. */
static double llama3_factor(double theta, double factor, int64_t i, int64_t pairs)
{
    const double wavelength = 2 * M_PI * pow(theta, (double)i / (double)pairs);
    const double smooth = (LLAMA3_POSITIONS / wavelength - 1) / 3;

    if (smooth >= 1)
        return 1;
    return smooth <= 0 ? factor : 1 / ((1 - smooth) / factor + smooth);
}

/* rope_freqs.weight holds divisors of frequencies. config.json can express only those of
 * Llama 3's scaling, whose factor is the last divisor. */
static kg_status put_divided(const struct maker *m)
{
    float x[MAX_PAIRS];
    const int64_t n = read_floats(m, "rope_freqs.weight", x, MAX_PAIRS);
    const double theta = kg_gguf_real(of(m, "rope.freq_base"), 10000);
    const double factor = n > 0 ? (double)x[n - 1] : 0;
    int64_t i = 0;

    while (i < n && fabs((double)x[i] - llama3_factor(theta, factor, i, n)) <=
                        1e-5 * fabs((double)x[i]))
        i++;
    if (n == 0 || i < n) {
        KG_TRY(put_key(m, "rope_freqs.weight"));
        return kg_str_puts(m->out, "\"factors of a scaling other than Llama 3's\"",
                           m->err);
    }
    KG_TRY(put_key(m, "rope_scaling"));
    KG_TRY(kg_str_puts(m->out, "{\"rope_type\": \"llama3\", \"factor\": ", m->err));
    KG_TRY(kg_json_put_double(m->out, factor, m->err));
    return kg_str_printf(m->out, m->err,
                         ", \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                         "\"original_max_position_embeddings\": %d}",
                         LLAMA3_POSITIONS);
}

static kg_status put_list(const struct maker *m, const char *before, const char *tensor)
{
    float x[MAX_PAIRS];
    const int64_t n = read_floats(m, tensor, x, MAX_PAIRS);

    KG_TRY(kg_str_puts(m->out, before, m->err));
    for (int64_t i = 0; i < n; i++) {
        KG_TRY(kg_str_puts(m->out, i > 0 ? ", " : "", m->err));
        KG_TRY(kg_json_put_float(m->out, x[i], m->err));
    }
    return kg_str_putc(m->out, ']', m->err);
}

#define POSITIONS "max_position_embeddings"
#define ORIGINAL  "original_max_position_embeddings"

/* Default of longrope's factor for cos and sin. */
double kg_gguf_usual_attention(double positions, double original)
{
    return positions <= original ? 1
                                 : sqrt(1 + log(positions / original) / log(original));
}

/* Phi-3's scaling: a factor for each pair, and one for cos and sin. */
static kg_status put_longrope(const struct maker *m)
{
    const struct kg_gguf_value *attention = of(m, "rope.scaling.attn_factor");

    KG_TRY(put_key(m, "rope_scaling"));
    KG_TRY(kg_str_puts(m->out, "{\"rope_type\": \"longrope\"", m->err));
    KG_TRY(put_list(m, ", \"long_factor\": [", "rope_factors_long.weight"));
    KG_TRY(put_list(m, ", \"short_factor\": [", "rope_factors_short.weight"));
    const double usual = kg_gguf_usual_attention(
        kg_gguf_real(of(m, "context_length"), 1),
        kg_gguf_real(of(m, "rope.scaling.original_context_length"), 1));
    if (attention && fabs(kg_gguf_real(attention, 0) - usual) > 1e-6 * usual) {
        KG_TRY(kg_str_puts(m->out, ", \"attention_factor\": ", m->err));
        KG_TRY(put_value(m, attention));
    }
    return kg_str_putc(m->out, '}', m->err);
}

static kg_status put_member(const struct maker *m, const char *field, const char *key)
{
    const struct kg_gguf_value *v = of(m, key);

    if (!v)
        return KG_OK;
    KG_TRY(kg_str_printf(m->out, m->err, ", \"%s\": ", field));
    return put_value(m, v);
}

static kg_status put_rope(const struct maker *m)
{
    const struct kg_gguf_value *type = of(m, "rope.scaling.type");
    const bool factor = of(m, "rope.scaling.factor") != NULL;
    const int64_t head = kg_gguf_head_dim(m->g, m->arch);
    const int64_t turned = kg_gguf_int(of(m, "rope.dimension_count"), head);

    if (turned != head && turned > 0 && strcmp(m->arch->name, "phi3") == 0) {
        KG_TRY(put_key(m, "partial_rotary_factor"));
        KG_TRY(kg_json_put_double(m->out, (double)turned / (double)head, m->err));
    }
    const bool scaled = type ? !kg_gguf_is(type, "none") : factor;
    const bool tensors = kg_gguf_find(m->g, "rope_factors_long.weight") ||
                         kg_gguf_find(m->g, "rope_freqs.weight");
    if (tensors && scaled && !kg_gguf_is(type, "longrope")) {
        /* config.json cannot express two scalings: write a field that is refused */
        KG_TRY(put_key(m, "rope.scaling.type"));
        KG_TRY(kg_str_puts(m->out, "\"given with tensors of rope factors\"", m->err));
    }
    if (kg_gguf_find(m->g, "rope_factors_long.weight"))
        return put_longrope(m);
    if (kg_gguf_find(m->g, "rope_freqs.weight"))
        return put_divided(m);
    if (!scaled)
        return KG_OK;
    KG_TRY(put_key(m, "rope_scaling"));
    KG_TRY(kg_str_puts(m->out, "{\"rope_type\": ", m->err));
    KG_TRY(type ? put_value(m, type) : kg_str_puts(m->out, "\"linear\"", m->err));
    KG_TRY(put_member(m, "factor", "rope.scaling.factor"));
    if (!kg_gguf_is(type, "linear") && type)
        KG_TRY(put_member(m, "original_max_position_embeddings",
                          "rope.scaling.original_context_length"));
    KG_TRY(put_member(m, "beta_fast", "rope.scaling.yarn_beta_fast"));
    KG_TRY(put_member(m, "beta_slow", "rope.scaling.yarn_beta_slow"));
    return kg_str_putc(m->out, '}', m->err);
}

/* ---- fields from tensors and the architecture ---- */

static bool has(const struct maker *m, const char *tensor)
{
    return kg_gguf_find(m->g, tensor) != NULL;
}

static kg_status put_biases(const struct maker *m)
{
    const bool of_queries = has(m, "blk.0.attn_q.bias");

    if (strcmp(m->arch->name, "qwen2moe") == 0)
        KG_TRY(put_true(m, "qkv_bias", of_queries));
    else if (of_queries && strcmp(m->arch->name, "qwen2") != 0)
        KG_TRY(put_true(m, "attention_bias", true));
    return has(m, "blk.0.ffn_up.bias") ? put_true(m, "mlp_bias", true) : KG_OK;
}

/* Gemma divides scores by the square root of this: the head size or, in the largest model
 * of each family (known by its layers), the width divided by the heads. */
static kg_status put_query_scalar(const struct maker *m)
{
    const int64_t layers = kg_gguf_int(of(m, "block_count"), 0);
    const int64_t heads = kg_gguf_int(of(m, "attention.head_count"), 0);
    const bool largest = layers == (strcmp(m->arch->name, "gemma2") == 0 ? 46 : 62);

    if (!kg_gguf_names(GEMMA, m->arch->name))
        return KG_OK;
    return put_int(m, "query_pre_attn_scalar",
                   largest && heads > 0
                       ? kg_gguf_int(of(m, "embedding_length"), 0) / heads
                       : kg_gguf_head_dim(m->g, m->arch));
}

/* norm_topk_prob: whether the weights of a token's experts are scaled to sum to 1. */
static kg_status put_normalised(const struct maker *m)
{
    if (!kg_gguf_names(NORMALISING, m->arch->name))
        return KG_OK;
    return put_true(m, "norm_topk_prob",
                    kg_gguf_bool(of(m, "expert_weights_norm"),
                                 strcmp(m->arch->name, "qwen3moe") == 0));
}

/* Ids of the tokens that end a text, a turn or a message. */
static kg_status put_ends(const struct maker *m)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    const char *comma = "";

    KG_TRY(put_key(m, "eos_token_id"));
    KG_TRY(kg_str_putc(m->out, '[', m->err));
    for (int i = 0; i < 3; i++) {
        const int64_t id = kg_gguf_int(kg_gguf_get(m->g, keys[i]), -1);

        if (id < 0)
            continue;
        KG_TRY(kg_str_printf(m->out, m->err, "%s%lld", comma, (long long)id));
        comma = ", ";
    }
    return kg_str_putc(m->out, ']', m->err);
}

static kg_status put_token(const struct maker *m, const char *field, const char *key)
{
    const int64_t id = kg_gguf_int(kg_gguf_get(m->g, key), -1);

    return id < 0 ? KG_OK : put_int(m, field, id);
}

kg_status kg_gguf_config(struct kg_str *out, const struct kg_gguf *g, struct kg_err *err)
{
    struct maker m = {.out = out, .g = g, .err = err};
    const struct kg_gguf_tensor *embed = kg_gguf_find(g, "token_embd.weight");

    KG_TRY(kg_gguf_find_arch(&m.arch, g, err));
    if (!embed || embed->n_dims != 2)
        return kg_fail(err, KG_EFORMAT,
                       "%s: expected a tensor token_embd.weight of 2 dimensions, found "
                       "%s",
                       g->files[0].path, embed ? "another shape" : "none");
    KG_TRY(kg_str_printf(out, err,
                         "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\"",
                         m.arch->class_name, m.arch->model_type));
    KG_TRY(put_int(&m, "vocab_size", embed->shape[0]));
    KG_TRY(put_true(&m, "tie_word_embeddings", !has(&m, "output.weight")));
    const size_t n = strlen(m.arch->name);

    for (size_t i = 0; i < m.g->n_values; i++) {
        const struct kg_gguf_value *v = &m.g->values[i];

        if (strncmp(v->key, m.arch->name, n) == 0 && v->key[n] == '.')
            KG_TRY(put_one(&m, v->key + n + 1, v));
    }
    KG_TRY(put_rope(&m));
    KG_TRY(put_biases(&m));
    KG_TRY(put_query_scalar(&m));
    KG_TRY(put_normalised(&m));
    KG_TRY(put_ends(&m));
    KG_TRY(put_token(&m, "bos_token_id", "tokenizer.ggml.bos_token_id"));
    KG_TRY(put_token(&m, "pad_token_id", "tokenizer.ggml.padding_token_id"));
    return kg_str_puts(out, "\n}\n", err);
}

/* ---- from config.json to GGUF ---- */

kg_status kg_gguf_arch_of(const struct kg_gguf_arch **arch, const char *model_type,
                          struct kg_err *err)
{
    for (size_t i = 0; i < N_ARCHS; i++)
        if (strcmp(ARCHS[i].model_type, model_type) == 0) {
            *arch = &ARCHS[i];
            return KG_OK;
        }
    return kg_fail(
        err, KG_EUNSUPPORTED,
        "model_type: expected an architecture that kedge writes as GGUF, found %s",
        model_type);
}

int64_t kg_gguf_rope_factors(float *to, int which, const struct kg_json *config,
                             int64_t pairs)
{
    const char *name = which == 1 ? "long_factor" : which == 2 ? "short_factor" : NULL;
    const struct kg_json *rope = kg_json_get(config, "rope_scaling");
    const char *type = kg_json_text(kg_json_get(rope, "rope_type"), NULL);
    const struct kg_json *list = name ? kg_json_get(rope, name) : NULL;
    const bool llama3 = which == 0 && type && strcmp(type, "llama3") == 0;
    const double theta = kg_json_real(kg_json_get(config, "rope_theta"), 10000);
    const double factor = kg_json_real(kg_json_get(rope, "factor"), 1);

    if (!llama3 && (int64_t)kg_json_size(list) != pairs)
        return 0;
    for (int64_t i = 0; i < pairs; i++)
        to[i] = llama3 ? (float)llama3_factor(theta, factor, i, pairs)
                       : (float)kg_json_real(kg_json_at(list, (size_t)i), 0);
    return pairs;
}
