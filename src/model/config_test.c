/* config.json: what is read, what is refused, what is written, and the rotary
 * frequencies. */
#include "model/config.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/option.h"
#include "data/jsonl.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define CONFIGS "tests/data/configs/"

static struct kg_err err;

static struct kg_model_config read_dir(const char *dir)
{
    struct kg_model_config c;
    if (kg_model_config_read(&c, dir, &err) != KG_OK)
        fail_msg("%s", err.message);
    return c;
}

/* ---- reading ---- */

static void qwen2_is_read_with_the_end_tokens_of_both_files(void **state)
{
    struct kg_model_config c = read_dir(CONFIGS "qwen2_1.5b");
    (void)state;
    assert_string_equal(c.arch->model_type, "qwen2");
    assert_true(c.qkv_bias && c.tied && c.rope == KG_ROPE_DEFAULT &&
                !(c.arch->features & KG_HEAD_NORM));
    assert_int_equal(c.vocab, 151936);
    assert_int_equal(c.hidden, 1536);
    assert_int_equal(c.ffn, 8960);
    assert_int_equal(c.layers, 28);
    assert_int_equal(c.heads, 12);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.max_positions, 32768);
    assert_true(c.norm_eps == 1e-6f && c.rope_theta == 1e6 && c.init_range == 0.02f);
    assert_int_equal(c.n_eos, 2);
    assert_true(kg_model_config_is_eos(&c, 151643) && kg_model_config_is_eos(&c, 151645));
    assert_false(kg_model_config_is_eos(&c, 151644));
    assert_int_equal(c.bos, 151643);
    assert_string_equal(c.dtype_name, "bfloat16");
}

static void llama3_scaling_is_read(void **state)
{
    struct kg_model_config c = read_dir(CONFIGS "llama3.2_1b");
    (void)state;
    assert_true(c.rope == KG_ROPE_LLAMA3 && !c.qkv_bias && c.tied);
    assert_true(c.rope_factor == 32 && c.rope_low_freq_factor == 1 &&
                c.rope_high_freq_factor == 4);
    assert_int_equal(c.rope_original_positions, 8192);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.n_eos, 3);
}

static kg_status parse_with(struct kg_model_config *c, const char *field);

/* Every field of the scaling is needed, and none may contradict another. */
static void llama3_scaling_is_read_whole(void **state)
{
    static const char *const fields[] = {"\"factor\": 8.0", "\"low_freq_factor\": 0.5",
                                         "\"high_freq_factor\": 4.0",
                                         "\"original_max_position_embeddings\": 32"};
    static const char *const wrong[] = {"\"factor\": 0.5", "\"low_freq_factor\": 4.0",
                                        "\"high_freq_factor\": 0.25",
                                        "\"original_max_position_embeddings\": 0"};
    struct kg_model_config c;
    char text[512];
    (void)state;
    for (int miss = 0; miss < 9; miss++) { /* 0..3: missing; 4..7: wrong; 8: valid */
        size_t at = (size_t)snprintf(text, sizeof text,
                                     "\"rope_scaling\": {\"rope_type\""
                                     ": \"llama3\"");
        for (int i = 0; i < 4; i++)
            if (i != miss)
                at += (size_t)snprintf(text + at, sizeof text - at, ", %s",
                                       i + 4 == miss ? wrong[i] : fields[i]);
        snprintf(text + at, sizeof text - at, "}");
        if ((parse_with(&c, text) == KG_OK) != (miss == 8))
            fail_msg("%s: %s", text, miss == 8 ? err.message : "not refused");
    }
    struct kg_model_config other; /* an unknown field in first place is refused, too */
    snprintf(text, sizeof text,
             "\"rope_scaling\": {\"attention_factor\": 2.0, \"rope_type\": \"llama3\", "
             "%s, %s, %s, %s}",
             fields[0], fields[1], fields[2], fields[3]);
    assert_int_equal(parse_with(&other, text), KG_EUNSUPPORTED);
    assert_true(c.rope_factor == 8 && c.rope_low_freq_factor == 0.5 &&
                c.rope_high_freq_factor == 4 && c.rope_original_positions == 32);
}

static void newer_transformers_layout_is_read(void **state)
{
    static const char *const dirs[] = {
        CONFIGS "transformers_qwen2", CONFIGS "transformers_qwen3",
        CONFIGS "transformers_llama", CONFIGS "transformers_mistral"};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct kg_model_config c = read_dir(dirs[i]);
        assert_int_equal(c.hidden, 256);
        assert_int_equal(c.head_dim, i == 1 ? 128 : 64);
        assert_true(c.rope_theta == (i == 2 ? 500000 : 10000));
        assert_true((c.rope == KG_ROPE_LLAMA3) == (i == 2));
        assert_string_equal(c.dtype_name, "bfloat16");
    }
}

static void a_window_is_read_where_it_slides(void **state)
{
    static const struct {
        const char *fields;
        int32_t window;    /* in the config; -1: refused */
        int32_t effective; /* of the first layer */
    } rows[] = {
        {"\"sliding_window\": null, ", 0, 0},
        {"\"sliding_window\": 8192, ", 8192, 0}, /* no sequence is longer */
        {"\"sliding_window\": 8191, ", 8191, 8191},
        {"\"sliding_window\": \"all\", ", -1, 0},
        {"\"sliding_window\": 0, ", -1, 0},
        {"\"layer_types\": [\"full_attention\", \"sliding_attention\"], ", -1, 0},
        {"", 4096, 4096},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_model_config c;
        char text[512];
        snprintf(text, sizeof text,
                 "{\"model_type\": \"mistral\", %s\"vocab_size\": 320, \"hidden_size\": "
                 "64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
                 "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                 "\"max_position_embeddings\": 8192}",
                 rows[i].fields);
        kg_status status = kg_model_config_parse(&c, text, strlen(text), "m.json", &err);
        if ((status == KG_OK) != (rows[i].window >= 0))
            fail_msg("%s: status %d", rows[i].fields, status);
        if (status == KG_OK) {
            assert_int_equal(c.window, rows[i].window);
            assert_int_equal(kg_model_config_window(&c, 0), rows[i].effective);
        }
    }
}

#define MOE                                                                              \
    "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 8, "     \
    "\"shared_expert_intermediate_size\": 8, "

/* A class has defaults for what the file does not say about its layers. */
static void layers_are_what_their_class_makes_of_them(void **state)
{
    static const struct {
        const char *type, *fields;
        int layers[6]; /* of enum kg_layer_kind */
    } rows[] = {
        {"qwen2",
         "\"use_sliding_window\": true, \"max_window_layers\": 4",
         {0, 0, 0, 0, 1, 1}},
        {"qwen3", "\"use_sliding_window\": false, \"sliding_window\": 7", {0}},
        {"qwen3_moe", MOE "\"use_sliding_window\": true", {1, 1, 1, 1, 1, 1}},
        {"qwen3_moe", MOE "\"sliding_window\": 7, \"max_window_layers\": 2", {0}},
        {"qwen2_moe",
         MOE "\"use_sliding_window\": true, \"max_window_layers\": 4",
         {1, 0, 1, 0, 0, 0}},
        {"qwen2_moe", MOE "\"sliding_window\": 0, \"max_window_layers\": 4", {0}},
        {"smollm3", "\"use_cache\": true", {0, 0, 0, 2, 0, 0}},
        {"smollm3",
         "\"use_sliding_window\": true, \"sliding_window\": 7, "
         "\"no_rope_layers\": [1, 0, 1, 1, 1, 0]",
         {0, 3, 0, 0, 0, 3}},
        {"gemma2", "\"use_cache\": true", {1, 0, 1, 0, 1, 0}},
        {"gemma3_text", "\"use_cache\": true", {5, 5, 5, 5, 5, 0}},
        {"gemma3_text", "\"sliding_window_pattern\": 2", {5, 0, 5, 0, 5, 0}},
        {"phi3", "\"use_cache\": true", {0}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_model_config c;
        char text[512];
        snprintf(text, sizeof text,
                 "{\"model_type\": \"%s\", %s, \"vocab_size\": 320, \"hidden_size\": "
                 "64, \"intermediate_size\": 96, \"num_hidden_layers\": 6, "
                 "\"num_attention_heads\": 4, \"num_key_value_heads\": 2}",
                 rows[i].type, rows[i].fields);
        if (kg_model_config_parse(&c, text, strlen(text), "m.json", &err) != KG_OK)
            fail_msg("%s", err.message);
        for (int l = 0; l < 6; l++)
            if (c.layer[l] != rows[i].layers[l])
                fail_msg("%s, %s: layer %d is %d", rows[i].type, rows[i].fields, l,
                         c.layer[l]);
    }
}

static void small_checkpoints_are_read(void **state)
{
    static const struct {
        const char *dir, *model_type;
        int head_dim;
        bool tied;
    } rows[] = {
        {"tests/data/models/synthetic_tiny_llama", "llama", 16, false},
        {"tests/data/models/synthetic_tiny_qwen2", "qwen2", 16, true},
        {"tests/data/models/synthetic_tiny_qwen3", "qwen3", 32, true},
        {"tests/data/verl_digit_llama", "llama", 32, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_model_config c = read_dir(rows[i].dir);
        assert_string_equal(c.arch->model_type, rows[i].model_type);
        assert_int_equal(c.head_dim, rows[i].head_dim);
        assert_int_equal(c.tied, rows[i].tied);
        assert_int_equal(c.n_eos, 1);
    }
}

/* ---- rope of Phi-3.5 and Phi-4-mini ---- */

#define LONG_LISTS "\"short_factor\": [1, 1.3, 1.7], \"long_factor\": [1.1, 5, 21.5]"

/* Heads of 8 elements, of which 6 are rotated; 128 positions extended to 256. */
static kg_status parse_long(struct kg_model_config *c, const char *fields)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model_type\": \"phi3\", \"vocab_size\": 48, \"hidden_size\": 16, "
             "\"intermediate_size\": 40, \"num_hidden_layers\": 2, "
             "\"num_attention_heads\": 2, \"max_position_embeddings\": 256, %s}",
             fields);
    return kg_model_config_parse(c, text, strlen(text), "phi.json", &err);
}

static void check_long(const struct kg_model_config *c)
{
    const float factors[2][3] = {{1.0f, 1.3f, 1.7f}, {1.1f, 5.0f, 21.5f}};
    const double attention = sqrt(1 + log(2) / log(128));
    assert_int_equal(c->rope, KG_ROPE_LONGROPE);
    assert_int_equal(kg_rope_pairs(c), 3);
    assert_memory_equal(c->rope_short, factors[0], sizeof factors[0]);
    assert_memory_equal(c->rope_long, factors[1], sizeof factors[1]);
    assert_int_equal(c->max_positions, 128);
    assert_int_equal(c->rope_positions, 256);
    assert_int_equal(c->rope_original_positions, 128);
    assert_true(fabs(c->rope_attention - attention) < 1e-12);
}

/* In every layout that files have; what is written reads the same. */
static void longrope_is_read_and_written(void **state)
{
    static const char *const rows[] = {
        "\"partial_rotary_factor\": 0.75, \"original_max_position_embeddings\": 128, "
        "\"rope_scaling\": {\"type\": \"longrope\", " LONG_LISTS "}",
        "\"partial_rotary_factor\": 0.75, \"original_max_position_embeddings\": 128, "
        "\"rope_scaling\": {\"type\": \"su\", " LONG_LISTS "}",
        "\"rope_parameters\": {\"rope_type\": \"longrope\", \"rope_theta\": 10000.0, "
        "\"partial_rotary_factor\": 0.75, \"factor\": 2.0, "
        "\"original_max_position_embeddings\": 128, " LONG_LISTS "}"};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_model_config c, again;
        struct kg_str text = {0};
        if (parse_long(&c, rows[i]) != KG_OK)
            fail_msg("%s", err.message);
        check_long(&c);
        assert_int_equal(kg_model_config_write(&text, &c, "float32", NULL, &err), KG_OK);
        if (kg_model_config_parse(&again, text.data, text.len, "written", &err) != KG_OK)
            fail_msg("%s", err.message);
        check_long(&again);
        kg_str_release(&text);
    }
}

/* The default of 4096 original positions exceeds max_positions, so nothing is scaled. */
static void longrope_without_more_positions_stretches_nothing(void **state)
{
    struct kg_model_config c;
    (void)state;
    if (parse_long(&c, "\"partial_rotary_factor\": 0.75, \"rope_scaling\": {\"type\": "
                       "\"longrope\", " LONG_LISTS "}") != KG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(c.rope_original_positions, 4096);
    assert_int_equal(c.max_positions, 256);
    assert_true(c.rope_attention == 1);
}

static void longrope_is_read_whole(void **state)
{
#define PHI_LONG(more)                                                                   \
    "\"rope_parameters\": {\"rope_type\": \"longrope\", "                                \
    "\"partial_rotary_factor\": 0.75, " more "}"
    static const char *const rows[][2] = {
        {PHI_LONG("\"short_factor\": [1, 2, 3]"), "long_factor is null, expected a list "
                                                  "of 3 positive numbers"},
        {PHI_LONG("\"short_factor\": [1, 2], \"long_factor\": [1, 2, 3]"),
         "short_factor is [1,2], expected a list of 3"},
        {PHI_LONG("\"long_factor\": [1, 0, 3], \"short_factor\": [1, 2, 3]"),
         "long_factor is [1,0,3]"},
        {PHI_LONG(LONG_LISTS ", \"factor\": 4.0, "
                             "\"original_max_position_embeddings\": 128"),
         "factor is 4.0, expected max_position_embeddings /"},
        {PHI_LONG(
             LONG_LISTS
             ", \"original_max_position_embeddings\": 128") ", "
                                                            "\"original_max_position_"
                                                            "embeddings\": 64",
         "original_max_position_embeddings is 64 at the top level, but 128"},
        {PHI_LONG(LONG_LISTS ", \"short_mscale\": 1.0"), "no such field in rope_"},
        {PHI_LONG(LONG_LISTS) ", \"partial_rotary_factor\": 0.5",
         "partial_rotary_factor is 0.5, but 0.75"},
        {"\"partial_rotary_factor\": 0.7",
         "partial_rotary_factor is 0.7, expected a share"},
        {"\"partial_rotary_factor\": 1.5",
         "partial_rotary_factor is 1.5, expected a share"},
        {PHI_LONG(LONG_LISTS ", \"original_max_position_embeddings\": 1"),
         "original_max_position_embeddings is 1, expected 2 or more"},
        {PHI_LONG(LONG_LISTS) ", \"original_max_position_embeddings\": 1",
         "original_max_position_embeddings is 1, expected 2 or more"},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2.0}",
         "expected null, or an object of rope_type default or longrope"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_model_config c;
        if (parse_long(&c, rows[i][0]) == KG_OK || !strstr(err.message, rows[i][1]) ||
            !strstr(err.message, "phi.json"))
            fail_msg("%s: %s", rows[i][0], err.message);
    }
}

/* transformers and other readers truncate head_dim * partial_rotary_factor to an integer:
 * the factor written has to give the same one. */
static void every_part_of_a_head_is_written_as_it_is(void **state)
{
    struct kg_model_config c, again;
    struct kg_str text = {0};
    (void)state;
    assert_int_equal(parse_long(&c, "\"partial_rotary_factor\": 0.75"), KG_OK);
    for (int32_t head = 2; head <= 256; head += 2)
        for (int32_t turned = 2; turned <= head; turned += 2) {
            const int32_t pairs = turned < head ? turned / 2 : 0;
            c.head_dim = head;
            c.hidden = c.heads * head;
            c.rope_pairs = pairs;
            kg_str_release(&text);
            assert_int_equal(kg_model_config_write(&text, &c, "float32", NULL, &err),
                             KG_OK);
            if (kg_model_config_parse(&again, text.data, text.len, "written", &err) !=
                    KG_OK ||
                again.rope_pairs != pairs)
                fail_msg("%d of %d: %s", turned, head, err.message);
        }
    kg_str_release(&text);
}

/* ---- files as they are found ---- */

/* Checks that c is unchanged after it was written and read. */
static void check_written(const struct kg_model_config *c, const char *name)
{
    struct kg_model_config again;
    struct kg_str text = {0};
    assert_int_equal(kg_model_config_write(&text, c, "bfloat16", NULL, &err), KG_OK);
    if (kg_model_config_parse(&again, text.data, text.len, name, &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_memory_equal(c, &again, offsetof(struct kg_model_config, dtype_name));
    kg_str_release(&text);
}

static void check_rows(const char *file, int rows)
{
    struct kg_jsonl *r;
    struct kg_json_doc row = {0};
    bool more = true;
    int n = -1;
    assert_int_equal(kg_jsonl_open(&r, file, &err), KG_OK);
    for (; more; n++) {
        assert_int_equal(kg_jsonl_next(r, &row, &more, &err), KG_OK);
        struct kg_model_config c;
        struct kg_str text = {0};
        const char *name = kg_json_text(more ? kg_json_get(row.root, "name") : NULL,
                                        NULL);
        if (!more)
            continue;
        assert_int_equal(kg_json_put_value(&text, kg_json_get(row.root, "config"), &err),
                         KG_OK);
        if (kg_model_config_parse(&c, text.data, text.len, name, &err) != KG_OK)
            fail_msg("%s", err.message);
        check_written(&c, name);
        kg_str_release(&text);
    }
    kg_json_release(&row);
    kg_jsonl_close(r);
    assert_int_equal(n, rows);
}

static void configs_of_newer_transformers_are_read(void **state)
{
    (void)state;
    check_rows(CONFIGS "families.jsonl", 18);
}

static void configs_of_well_known_models_are_read(void **state)
{
    (void)state;
    check_rows(CONFIGS "hub.jsonl", 22);
}

/* A class with two rotary bases has an object for each. */
static void two_ropes_are_read(void **state)
{
    static const struct {
        const char *ropes;
        const char *said; /* NULL: accepted */
    } rows[] = {
        {"\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 8.0, "
         "\"rope_theta\": 5e5}, \"sliding_attention\": {\"rope_type\": \"default\", "
         "\"rope_theta\": 7000.0}",
         NULL},
        {"\"full_attention\": {\"rope_type\": \"default\"}",
         "objects full_attention and sliding_attention"},
        {"\"full_attention\": {\"rope_type\": \"default\"}, \"sliding_attention\": "
         "{\"rope_type\": \"linear\", \"factor\": 2.0}",
         "sliding_attention is"},
        {"\"full_attention\": {\"rope_type\": \"default\"}, \"sliding_attention\": "
         "{\"rope_type\": \"default\", \"beta_fast\": 2.0}",
         "no such field in rope_parameters of this rope_type"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_model_config c;
        char text[1024];
        snprintf(text, sizeof text,
                 "{\"model_type\": \"gemma3_text\", \"vocab_size\": 48, \"hidden_size\": "
                 "16, \"intermediate_size\": 40, \"num_hidden_layers\": 2, "
                 "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
                 "\"rope_parameters\": {%s}}",
                 rows[i].ropes);
        const kg_status status = kg_model_config_parse(&c, text, strlen(text), "g.json",
                                                       &err);
        if ((status == KG_OK) != !rows[i].said ||
            (rows[i].said && !strstr(err.message, rows[i].said)))
            fail_msg("%s: %s", rows[i].ropes, err.message);
        if (status == KG_OK)
            assert_true(c.rope == KG_ROPE_LINEAR && c.rope_factor == 8 &&
                        c.rope_theta == 5e5 && c.rope_local_theta == 7000);
    }
}

/* ---- refusals ---- */

static const char *const BASE[] = {
    "\"model_type\": \"qwen2\"",  "\"vocab_size\": 320",
    "\"hidden_size\": 64",        "\"intermediate_size\": 96",
    "\"num_hidden_layers\": 2",   "\"num_attention_heads\": 4",
    "\"num_key_value_heads\": 2", "\"max_position_embeddings\": 64",
    "\"rms_norm_eps\": 1e-6",
};
enum { N_BASE = sizeof BASE / sizeof *BASE };

/* Parses BASE with `field` ("key": value) instead of the field of that key, or in
 * addition. */
static kg_status parse_with(struct kg_model_config *c, const char *field)
{
    struct kg_str text = {0};
    size_t key = strcspn(field, ":");
    assert_int_equal(kg_str_printf(&text, &err, "{%s", field), KG_OK);
    for (int i = 0; i < N_BASE; i++)
        if (strncmp(BASE[i], field, key) != 0)
            assert_int_equal(kg_str_printf(&text, &err, ", %s", BASE[i]), KG_OK);
    assert_int_equal(kg_str_puts(&text, "}", &err), KG_OK);
    kg_status status = kg_model_config_parse(c, text.data, text.len, "test.json", &err);
    kg_str_release(&text);
    return status;
}

static void fields_with_another_effect_are_refused_with_their_value(void **state)
{
    static const char *const rows[][2] = {
        {"\"model_type\": \"gpt2\"", "qwen2, qwen3, llama, mistral"},
        {"\"architectures\": [\"LlamaForCausalLM\"]", "LlamaForCausalLM"},
        {"\"architectures\": [\"Qwen2ForQuestionAnswering\"]", "Answering"},
        {"\"architectures\": [\"Qwen2ForCausalLMEagle3\"]", "Eagle3"},
        {"\"architectures\": [\"Qwen2MoeForCausalLM\"]", "Moe"},
        {"\"architectures\": \"Qwen2ForCausalLM\"", "architectures"},
        {"\"hidden_act\": \"gelu\"", "gelu"},
        {"\"attention_dropout\": 0.1", "attention_dropout is 0.1"},
        {"\"use_sliding_window\": 1", "use_sliding_window is 1"},
        {"\"mlp_bias\": true", "mlp_bias"},
        {"\"attention_bias\": false", "attention_bias"},
        {"\"partial_rotary_factor\": 0.5", "partial_rotary_factor"},
        {"\"quantization_config\": {\"bits\": 4}", "{\"bits\":4}"},
        {"\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
         "sliding_attention"},
        {"\"layer_types\": [\"full_attention\"]", "layer_types"},
        {"\"rope_scaling\": {\"type\": \"longrope\", \"factor\": 4.0}", "longrope"},
        {"\"rope_parameters\": {\"rope_type\": \"default\", "
         "\"partial_rotary_factor\": 0.5}",
         "partial_rotary_factor is 0.5, expected 1"},
        {"\"text_config\": {\"model_type\": \"qwen2\"}",
         "text_config: expected a text model, found model_type qwen2"},
        {"\"lm_head_bias\": true", "lm_head_bias is true"},
        {"\"rope_scaling\": {\"type\": \"linear\", \"beta_fast\": 4.0}", "beta_fast"},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 0.5}", "factor is 0.5"},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"mscale\": \"1\"}",
         "mscale is \"1\""},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_fast\": 0}",
         "beta_fast is 0"},
        {"\"rope_scaling\": {\"rope_type\": \"default\", \"factor\": 4.0}", "factor"},
        {"\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 4.0}",
         "low_freq_factor"},
        {"\"rope_scaling\": 2", "rope_scaling is 2"},
        {"\"rope_parameters\": {\"full_attention\": {}}", "rope_parameters"},
        {"\"rope_theta\": -1", "rope_theta is -1"},
        {"\"rms_norm_eps\": \"small\"", "rms_norm_eps"},
        {"\"torch_dtype\": \"int8\"", "int8"},
        {"\"tie_word_embeddings\": 1", "tie_word_embeddings"},
        {"\"eos_token_id\": 320", "eos_token_id is 320"},
        {"\"eos_token_id\": [1, \"x\"]", "eos_token_id"},
        {"\"bos_token_id\": [1]", "bos_token_id"},
        {"\"num_experts\": 8", "num_experts is 8"},
        {"\"clip_qkv\": 8.0", "clip_qkv"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_model_config c;
        kg_status status = parse_with(&c, rows[i][0]);
        if (status != KG_EUNSUPPORTED || !strstr(err.message, rows[i][1]) ||
            !strstr(err.message, "test.json"))
            fail_msg("%s: status %d, %s", rows[i][0], status, err.message);
    }
}

/* A field of one class in the config of another. */
static void fields_of_other_classes_are_refused(void **state)
{
    static const char *const keys[] = {"embedding_multiplier", "no_rope_layers",
                                       "rope_local_base_freq", "logits_scaling",
                                       "final_logit_softcapping"};
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct kg_model_config c;
        char field[64];
        snprintf(field, sizeof field, "\"%s\": 2.0", keys[i]);
        assert_int_equal(parse_with(&c, field), KG_EUNSUPPORTED);
        assert_non_null(strstr(err.message, keys[i]));
    }
}

static void impossible_sizes_are_refused(void **state)
{
    static const char *const rows[][2] = {
        {"\"hidden_size\": 0", "hidden_size"},
        {"\"hidden_size\": 66", "num_attention_heads"},
        {"\"hidden_size\": 4000000000", "hidden_size"},
        {"\"num_key_value_heads\": 3", "num_key_value_heads 3"},
        {"\"head_dim\": 7", "head_dim is 7"},
        {"\"hidden_size\": 4096", "head_dim is 1024"},
        {"\"head_dim\": 300", "head_dim"},
        {"\"vocab_size\": \"many\"", "vocab_size"},
        {"\"num_hidden_layers\": -1", "num_hidden_layers"},
        {"\"num_hidden_layers\": 2.5", "num_hidden_layers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_model_config c;
        kg_status status = parse_with(&c, rows[i][0]);
        if ((status != KG_EINVAL && status != KG_EFORMAT) ||
            !strstr(err.message, rows[i][1]))
            fail_msg("%s: status %d, %s", rows[i][0], status, err.message);
    }
}

static void a_size_that_is_not_given_is_refused(void **state)
{
    static const char *const sizes[] = {"vocab_size", "hidden_size", "intermediate_size",
                                        "num_hidden_layers", "num_attention_heads"};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct kg_model_config c;
        char field[64];
        snprintf(field, sizeof field, "\"%s\": null", sizes[i]);
        if (parse_with(&c, field) == KG_OK || !strstr(err.message, sizes[i]) ||
            !strstr(err.message, "found null"))
            fail_msg("%s: %s", field, err.message);
    }
}

static void key_heads_of_null_are_as_many_as_heads(void **state)
{
    struct kg_model_config c;
    (void)state;
    assert_int_equal(parse_with(&c, "\"num_key_value_heads\": null"), KG_OK);
    assert_int_equal(c.kv_heads, c.heads);
}

/* transformers' Gemma 3 has this field, but its forward never reads it. */
static void gemma3_has_no_softcap_of_scores(void **state)
{
    static const char text[] =
        "{\"model_type\": \"gemma3_text\", \"vocab_size\": 48, \"hidden_size\": 16, "
        "\"intermediate_size\": 40, \"num_hidden_layers\": 1, \"num_attention_heads\": "
        "4, "
        "\"num_key_value_heads\": 2, \"attn_logit_softcapping\": 3.0, "
        "\"final_logit_softcapping\": 4.0}";
    struct kg_model_config c;
    (void)state;
    assert_int_equal(kg_model_config_parse(&c, text, strlen(text), "test.json", &err),
                     KG_OK);
    assert_true(c.score_softcap == 0 && c.logit_softcap == 4);
}

static void contradictions_are_refused(void **state)
{
    struct kg_model_config c;
    (void)state;
    assert_int_equal(
        parse_with(
            &c,
            "\"rope_theta\": 10000, \"rope_parameters\": {\"rope_type\": \"default\", "
            "\"rope_theta\": 20000.0}"),
        KG_ECONFLICT);
    assert_int_equal(parse_with(&c, "\"rope_scaling\": {\"type\": \"default\"}, "
                                    "\"rope_parameters\": {\"rope_type\": "
                                    "\"default\"}"),
                     KG_EUNSUPPORTED);
}

static void fields_without_effect_pass(void **state)
{
    struct kg_model_config c;
    (void)state;
    assert_int_equal(
        parse_with(
            &c,
            "\"use_cache\": false, \"sliding_window\": 4096, \"max_window_layers\": 28, "
            "\"pad_token_id\": -1, \"_name_or_path\": \"x\", \"rope_theta\": 5e5, "
            "\"transformers_version\": \"4.42.3\", \"layer_types\": [\"full_attention\", "
            "\"full_attention\"], \"eos_token_id\": null, \"bos_token_id\": null, "
            "\"rope_scaling\": null, \"head_dim\": null, \"attention_bias\": true, "
            "\"pretraining_tp\": 2"),
        KG_OK);
    assert_int_equal(c.n_eos, 0);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.head_dim, 16);
    assert_true(c.rope_theta == 5e5);
}

/* A field that no table lists: ignored silently, ignored with its name in `passed`, or
 * refused. */
static void unknown_fields_are_passed_over_unless_they_may_have_an_effect(void **state)
{
    static const struct {
        const char *field;
        const char *passed; /* NULL: refused; "": ignored silently */
    } rows[] = {
        {"\"_model_name_or_path\": \"x\"", ""},
        {"\"_rope_cache\": 7", ""},
        {"\"unk_token_id\": 0", ""},
        {"\"image_token_index\": 99999", ""},
        {"\"pad_token_ids\": [1]", ""},
        {"\"forced_eos_token_id\": 1", ""},
        {"\"suppress_tokens\": [1, 2]", ""},
        {"\"attn_implementation\": \"flash_attention_2\"", ""},
        {"\"use_flash_attention_2\": true", ""},
        {"\"num_nextn_predict_layers\": 1", ""},
        {"\"gradient_checkpointing\": true", ""},
        {"\"new_norm\": null", ""},
        {"\"trl_version\": \"0.20\"", "trl_version"},
        {"\"max_sequence_length\": 2048", "max_sequence_length"},
        {"\"training\": {\"steps\": 10, \"data\": [\"europe\", \"facts\"]}", "training"},
        {"\"properties\": {\"author\": \"x\"}", "properties"},
        {"\"exploration\": 0.5", "exploration"},
        {"\"post_norm\": true", NULL},
        {"\"qk_layernorm\": false", NULL},
        {"\"rope_percent\": 0.25", NULL},
        {"\"rotary_pct\": 0.25", NULL},
        {"\"attn_temperature\": 2", NULL},
        {"\"local_window\": 64", NULL},
        {"\"mlp_ratio\": 4", NULL},
        {"\"act_fn\": \"relu\"", NULL},
        {"\"use_bias\": true", NULL},
        {"\"query_scale\": 0.1", NULL},
        {"\"n_experts\": 8", NULL},
        {"\"moe_k\": 2", NULL},
        {"\"n_layer\": 12", NULL},
        {"\"lm_head_multiplier\": 2.0", NULL},
        {"\"tie_weights\": true", NULL},
        {"\"quantized\": true", NULL},
        {"\"per_layer_config\": {\"0\": {}}", NULL},
        {"\"more\": {\"inner\": {\"softcap\": 5}}", NULL},
        {"\"more\": [{\"kind\": \"sliding_attention\"}]", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_model_config c;
        char key[64];
        const kg_status status = parse_with(&c, rows[i].field);
        if ((status == KG_OK) != (rows[i].passed != NULL) ||
            (status == KG_OK && strcmp(c.passed, rows[i].passed) != 0))
            fail_msg("%s: status %d, passed '%s'", rows[i].field, status, c.passed);
        if (status == KG_OK)
            continue;
        snprintf(key, sizeof key, "set model.ignore=%.*s",
                 (int)strcspn(rows[i].field + 1, "\""), rows[i].field + 1);
        if (status != KG_EUNSUPPORTED || !strstr(err.message, key))
            fail_msg("%s: %s", rows[i].field, err.message);
    }
}

/* model.ignore is for fields that kedge does not know. */
static void known_fields_cannot_be_ignored(void **state)
{
    static const char *const keys[] = {"rms_norm_eps", "rope_parameters", "vocab_size",
                                       "attention_dropout", "use_cache"};
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct kg_opt_list ignore = {&keys[i], 1};
        struct kg_model_config c;
        assert_int_equal(
            kg_model_config_open(&c, "tests/data/reference/qwen2", &ignore, &err),
            KG_ECONFLICT);
        assert_non_null(strstr(err.message, keys[i]));
    }
}

static void an_integer_beyond_64_bits_is_a_real_number(void **state)
{
    struct kg_model_config c = read_dir(CONFIGS "wide");
    (void)state;
    assert_int_equal(c.hidden, 256);
}

static void other_families_and_absent_folders_are_refused(void **state)
{
    struct kg_model_config c;
    (void)state;
    assert_int_equal(kg_model_config_read(&c, CONFIGS "other", &err), KG_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "tiny_test"));
    assert_non_null(strstr(err.message, CONFIGS "other/config.json"));
    assert_int_equal(kg_model_config_read(&c, CONFIGS "absent", &err), KG_ENOTFOUND);
    assert_int_equal(kg_model_config_parse(&c, "[]", 2, "list.json", &err), KG_EFORMAT);
    assert_int_equal(kg_model_config_parse(&c, "{}", 2, "empty.json", &err), KG_EFORMAT);
}

static void end_tokens_are_a_set_with_a_limit(void **state)
{
    struct kg_model_config c;
    (void)state;
    assert_int_equal(parse_with(&c, "\"eos_token_id\": [5, 6, 5]"), KG_OK);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(
        parse_with(&c, "\"eos_token_id\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"),
        KG_EUNSUPPORTED);
}

/* ---- writing ---- */

static void what_is_written_reads_as_the_same(void **state)
{
    static const char *const dirs[] = {
        CONFIGS "qwen2_1.5b",           CONFIGS "llama3.2_1b",
        CONFIGS "transformers_qwen3",   CONFIGS "transformers_llama",
        CONFIGS "transformers_mistral", "tests/data/verl_digit_llama"};
    (void)state;
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        struct kg_model_config a = read_dir(dirs[i]);
        struct kg_model_config b;
        struct kg_str text = {0};
        assert_int_equal(kg_model_config_write(&text, &a, "bfloat16", NULL, &err), KG_OK);
        if (kg_model_config_parse(&b, text.data, text.len, "written", &err) != KG_OK)
            fail_msg("%s", err.message);
        assert_memory_equal(&a.vocab, &b.vocab,
                            offsetof(struct kg_model_config, max_positions));
        assert_true(a.norm_eps == b.norm_eps && a.rope_theta == b.rope_theta &&
                    a.tied == b.tied);
        assert_true(a.rope == b.rope && a.rope_factor == b.rope_factor);
        assert_int_equal(a.n_eos, b.n_eos);
        assert_memory_equal(a.eos, b.eos, sizeof a.eos);
        assert_int_equal(a.bos, b.bos);
        kg_str_release(&text);
    }
}

/* Reals are written in the type of transformers' classes: rope_theta 10000 as 10000.0. */
static void reals_are_written_as_reals(void **state)
{
    struct kg_model_config c = read_dir("tests/data/verl_digit_llama");
    struct kg_str text = {0};
    (void)state;
    assert_int_equal(kg_model_config_write(&text, &c, "float32", NULL, &err), KG_OK);
    assert_non_null(strstr(text.data, "\"rope_theta\": 10000.0,"));
    assert_non_null(strstr(text.data, "\"rms_norm_eps\": 1e-06,"));
    assert_non_null(strstr(text.data, "\"attention_dropout\": 0.0,"));
    assert_null(strstr(text.data, "pad_token_id"));
    kg_str_release(&text);
    c = read_dir(CONFIGS "llama3.2_1b");
    assert_int_equal(kg_model_config_write(&text, &c, "float32", NULL, &err), KG_OK);
    assert_non_null(strstr(text.data, "\"factor\": 32.0, \"low_freq_factor\": 1.0, "
                                      "\"high_freq_factor\": 4.0"));
    kg_str_release(&text);
    c = read_dir("tests/data/reference/gemma2"); /* an int in this class: not 12.0 */
    assert_int_equal(kg_model_config_write(&text, &c, "float32", NULL, &err), KG_OK);
    assert_non_null(strstr(text.data, "\"query_pre_attn_scalar\": 12,"));
    kg_str_release(&text);
}

static void fields_without_effect_are_kept(void **state)
{
    static const char json[] =
        "{\"pad_token_id\": 2, \"id2label\": {\"0\": \"a\"}, \"use_cache\": false, "
        "\"unsloth_version\": \"1\", \"auto_map\": {\"AutoConfig\": \"x.Y\"}, "
        "\"hidden_size\": 7}";
    struct kg_model_config c = read_dir("tests/data/verl_digit_llama");
    struct kg_model_config again;
    struct kg_json_doc source;
    struct kg_str text = {0};
    (void)state;
    assert_int_equal(kg_json_parse(&source, json, strlen(json), "source", &err), KG_OK);
    assert_int_equal(kg_model_config_write(&text, &c, "float32", source.root, &err),
                     KG_OK);
    assert_non_null(strstr(text.data, "\"pad_token_id\": 2,"));
    assert_non_null(strstr(text.data, "\"id2label\": {\"0\":\"a\"},"));
    assert_non_null(strstr(text.data, "\"use_cache\": false,"));
    assert_non_null(strstr(text.data, "\"unsloth_version\": \"1\","));
    assert_null(strstr(text.data, "auto_map"));
    assert_null(strstr(text.data, "\"hidden_size\": 7"));
    /* no key occurs twice: the parser would refuse it */
    if (kg_model_config_parse(&again, text.data, text.len, "written", &err) != KG_OK)
        fail_msg("%s", err.message);
    kg_json_release(&source);
    kg_str_release(&text);
}

/* ---- rotary frequencies ---- */

static void check_rope_row(const struct kg_json_doc *row)
{
    struct kg_model_config c;
    struct kg_str text = {0};
    float inv_freq[KG_MAX_HEAD_DIM / 2];
    const struct kg_json *want = kg_json_get(row->root, "inv_freq");
    assert_int_equal(kg_json_put_value(&text, kg_json_get(row->root, "config"), &err),
                     KG_OK);
    /* The rows come from configuration objects that name no class. */
    if (kg_model_config_parse(&c, text.data, text.len, row->where, &err) != KG_OK)
        fail_msg("%s", err.message);
    kg_rope_inv_freq(inv_freq, &c);
    assert_int_equal(kg_json_size(want), kg_rope_pairs(&c));
    for (int i = 0; i < kg_rope_pairs(&c); i++) {
        double w = kg_json_real(kg_json_at(want, (size_t)i), -1);
        if (fabs(inv_freq[i] - w) > (c.rope == KG_ROPE_LONGROPE ? 2.4e-7 : 1.2e-7) * w)
            fail_msg("%s: inv_freq[%d] is %.9g, expected %.9g", row->where, i,
                     inv_freq[i], w);
    }
    kg_str_release(&text);
}

static void rotary_frequencies_are_those_of_transformers(void **state)
{
    struct kg_jsonl *r;
    struct kg_json_doc row = {0};
    bool more = true;
    int n = 0;
    (void)state;
    assert_int_equal(kg_jsonl_open(&r, CONFIGS "rope.jsonl", &err), KG_OK);
    for (;;) {
        assert_int_equal(kg_jsonl_next(r, &row, &more, &err), KG_OK);
        if (!more)
            break;
        check_rope_row(&row);
        n++;
    }
    kg_json_release(&row);
    kg_jsonl_close(r);
    assert_int_equal(n, 20);
}

static void every_failed_allocation_is_a_status(void **state)
{
    struct kg_model_config c;
    uint64_t before = kg_mem_current_bytes();
    kg_status status = KG_ENOMEM;
    (void)state;
    for (uint64_t n = 1; status != KG_OK; n++) {
        kg_mem_fail_at(n);
        status = kg_model_config_read(&c, CONFIGS "qwen2_1.5b", &err);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen2_is_read_with_the_end_tokens_of_both_files),
        cmocka_unit_test(llama3_scaling_is_read),
        cmocka_unit_test(llama3_scaling_is_read_whole),
        cmocka_unit_test(newer_transformers_layout_is_read),
        cmocka_unit_test(a_window_is_read_where_it_slides),
        cmocka_unit_test(layers_are_what_their_class_makes_of_them),
        cmocka_unit_test(fields_of_other_classes_are_refused),
        cmocka_unit_test(longrope_is_read_and_written),
        cmocka_unit_test(longrope_without_more_positions_stretches_nothing),
        cmocka_unit_test(longrope_is_read_whole),
        cmocka_unit_test(every_part_of_a_head_is_written_as_it_is),
        cmocka_unit_test(configs_of_newer_transformers_are_read),
        cmocka_unit_test(configs_of_well_known_models_are_read),
        cmocka_unit_test(two_ropes_are_read),
        cmocka_unit_test(small_checkpoints_are_read),
        cmocka_unit_test(fields_with_another_effect_are_refused_with_their_value),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(a_size_that_is_not_given_is_refused),
        cmocka_unit_test(key_heads_of_null_are_as_many_as_heads),
        cmocka_unit_test(gemma3_has_no_softcap_of_scores),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(fields_without_effect_pass),
        cmocka_unit_test(unknown_fields_are_passed_over_unless_they_may_have_an_effect),
        cmocka_unit_test(known_fields_cannot_be_ignored),
        cmocka_unit_test(an_integer_beyond_64_bits_is_a_real_number),
        cmocka_unit_test(other_families_and_absent_folders_are_refused),
        cmocka_unit_test(end_tokens_are_a_set_with_a_limit),
        cmocka_unit_test(what_is_written_reads_as_the_same),
        cmocka_unit_test(reals_are_written_as_reals),
        cmocka_unit_test(fields_without_effect_are_kept),
        cmocka_unit_test(rotary_frequencies_are_those_of_transformers),
        cmocka_unit_test(every_failed_allocation_is_a_status),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
