/* Which matrices get adapters, of which rank and scale, from adapter_config.json;
 * patterns that match nothing; and that a written config says the same.
 */
#include "model/model_testing.h"

#define QWEN2     "tests/data/reference/qwen2"
#define QWEN3_MOE "tests/data/reference/qwen3_moe"

/* Parses a config with r 4, alpha 8 and the fields `more`, target_modules among them. */
static kg_status parse(struct kg_lora *l, const char *more, struct kg_err *err)
{
    char json[1024];
    const int n = snprintf(json, sizeof json,
                           "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, %s}",
                           more);
    return kg_lora_parse(l, json, (size_t)n, "adapter_config.json", err);
}

static kg_status open_of(struct kg_model **m, const char *base, const char *more,
                         struct kg_err *err)
{
    struct kg_lora l;
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = true, .lora = &l};
    *m = NULL;
    KG_TRY(parse(&l, more, err));
    return kg_model_open(m, base, &opts, err);
}

/* "0.q_proj 4:2 1.up_proj 8:0.5 ": layer, module, rank, scale */
static void describe(struct kg_str *out, const struct kg_model *m)
{
    for (size_t i = 0; i < m->n_base; i++) {
        const struct kg_param *p = &m->params[i];
        const char *module = p->name + strlen("model.layers.0.");
        if (!p->adapter)
            continue;
        module = strstr(module, ".") + 1;
        NEED(kg_str_printf(out, err, "%c.%.*s %d:%g ", p->name[strlen("model.layers.")],
                           (int)(strlen(module) - strlen(".weight")), module,
                           (int)p->adapter->a->rows, (double)p->adapter->scale));
        assert_int_equal(p->adapter->b->cols, p->adapter->a->rows);
    }
}

static void check(const char *more, const char *expected)
{
    struct kg_str found = {0};
    struct kg_model *m;
    NEED(open_of(&m, QWEN2, more, err));
    describe(&found, m);
    if (strcmp(kg_str_text(&found), expected) != 0)
        fail_msg("%s: expected '%s', found '%s'", more, expected, kg_str_text(&found));
    kg_str_release(&found);
    kg_model_free(m);
}

#define QV   "\"target_modules\": [\"q_proj\", \"v_proj\"]"
#define RANK QV ", \"rank_pattern\": "

static void test_a_matrix_has_the_rank_of_the_first_pattern(void **state)
{
    (void)state;
    check(QV, "0.q_proj 4:2 0.v_proj 4:2 1.q_proj 4:2 1.v_proj 4:2 ");
    check(RANK "{\"q_proj\": 2}", "0.q_proj 2:4 0.v_proj 4:2 1.q_proj 2:4 1.v_proj 4:2 ");
    check(RANK "{\"layers.1.self_attn.q_proj\": 8, \"q_proj\": 2}",
          "0.q_proj 2:4 0.v_proj 4:2 1.q_proj 8:1 1.v_proj 4:2 ");
    check(RANK "{\"q_proj\": 2, \"layers.1.self_attn.q_proj\": 8}",
          "0.q_proj 2:4 0.v_proj 4:2 1.q_proj 2:4 1.v_proj 4:2 ");
    check(RANK "{\"^model.layers.[1-9].*\": 8}",
          "0.q_proj 4:2 0.v_proj 4:2 1.q_proj 8:1 1.v_proj 8:1 ");
    /* a pattern may name a matrix that is no target */
    check(RANK "{\"k_proj\": 2, \"lm_head\": 3, \"embed_tokens\": 3}",
          "0.q_proj 4:2 0.v_proj 4:2 1.q_proj 4:2 1.v_proj 4:2 ");
}

static void test_a_scale_is_of_its_own_rank_and_alpha(void **state)
{
    (void)state;
    check(QV ", \"alpha_pattern\": {\"v_proj\": 2}",
          "0.q_proj 4:2 0.v_proj 4:0.5 1.q_proj 4:2 1.v_proj 4:0.5 ");
    check(RANK "{\"v_proj\": 1}, \"alpha_pattern\": {\"v_proj\": 2.5}",
          "0.q_proj 4:2 0.v_proj 1:2.5 1.q_proj 4:2 1.v_proj 1:2.5 ");
    check(RANK "{\"v_proj\": 16}, \"use_rslora\": true",
          "0.q_proj 4:4 0.v_proj 16:2 1.q_proj 4:4 1.v_proj 16:2 ");
}

static void test_targets_may_be_a_regular_expression(void **state)
{
    (void)state;
    check("\"target_modules\": \".*\\\\.(q|o)_proj\"",
          "0.q_proj 4:2 0.o_proj 4:2 1.q_proj 4:2 1.o_proj 4:2 ");
    check("\"target_modules\": \"model\\\\.layers\\\\.1\\\\.mlp\\\\.(up|down)_proj\", "
          "\"rank_pattern\": {\"up_proj\": 2}",
          "1.up_proj 2:4 1.down_proj 4:2 ");
}

static void test_what_is_excluded_is_no_target(void **state)
{
    (void)state;
    check(QV ", \"exclude_modules\": [\"layers.0.self_attn.q_proj\", \"lm_head\"]",
          "0.v_proj 4:2 1.q_proj 4:2 1.v_proj 4:2 ");
    check(QV ", \"exclude_modules\": \".*v_proj\"", "0.q_proj 4:2 1.q_proj 4:2 ");
    check(QV ", \"exclude_modules\": \"v_proj\"", /* a regex has to match a whole name */
          "0.q_proj 4:2 0.v_proj 4:2 1.q_proj 4:2 1.v_proj 4:2 ");
    check("\"target_modules\": \"All-Linear\", \"exclude_modules\": "
          "[\"mlp.up_proj\", \"mlp.gate_proj\", \"down_proj\", \"o_proj\", \"k_proj\"]",
          "0.q_proj 4:2 0.v_proj 4:2 1.q_proj 4:2 1.v_proj 4:2 ");
}

static void test_layers_are_those_asked_for(void **state)
{
    (void)state;
    check(QV ", \"layers_to_transform\": 1", "1.q_proj 4:2 1.v_proj 4:2 ");
    check(QV ", \"layers_to_transform\": [0], \"layers_pattern\": \"layers\"",
          "0.q_proj 4:2 0.v_proj 4:2 ");
    check(QV ", \"layers_to_transform\": []",
          "0.q_proj 4:2 0.v_proj 4:2 1.q_proj 4:2 1.v_proj 4:2 ");
    /* a whole name is a target in spite of layers_to_transform */
    check("\"target_modules\": [\"q_proj\", \"model.layers.0.self_attn.v_proj\"], "
          "\"layers_to_transform\": [1]",
          "0.v_proj 4:2 1.q_proj 4:2 ");
}

static void test_what_matches_nothing_is_refused(void **state)
{
    static const struct {
        const char *base, *more, *said;
    } rows[] = {
        {QWEN2, RANK "{\"q_prj\": 2}",
         "key 'rank_pattern': no layer has a matrix q_prj; did you mean q_proj?"},
        {QWEN2, RANK "{\"proj\": 2}", "key 'rank_pattern'"},
        {QWEN2, QV ", \"alpha_pattern\": {\"layers\\\\.7.*\": 2}",
         "key 'alpha_pattern': 'layers\\.7.*' matches no module, expected suffixes of "
         "names such as model.layers.0.self_attn.q_proj"},
        {QWEN2, RANK "{\"\": 2}", "key 'rank_pattern': '' matches no module"},
        {QWEN2, RANK "{\"q_(proj\": 2}",
         "key 'rank_pattern': regular expression 'q_(proj', offset 7: missing"},
        {QWEN2, RANK "{\"v_proj\": 17}",
         "key 'rank_pattern': 'v_proj': expected at most 16, the smaller side of "
         "model.layers.0.self_attn.v_proj.weight [16, 32], found 17"},
        {QWEN2, RANK "{\"((a|b|.)*)*[XY]\": 2}",
         "key 'rank_pattern': regular expression"},
        {QWEN2, "\"target_modules\": \"q_proj\"",
         "key 'target_modules': the regular expression 'q_proj' matches no matrix of a "
         "layer, expected whole names such as model.layers.0.self_attn.q_proj"},
        {QWEN2,
         "\"target_modules\": \".*q_proj\", \"exclude_modules\": [\"self_attn.q_proj\"]",
         "exclude_modules and layers_to_transform leave no target"},
        {QWEN2, "\"target_modules\": \"lm_head|\"", "'lm_head|' matches no matrix"},
        {QWEN2, QV ", \"exclude_modules\": [\"q_proj\", \"v_proj\"]",
         "exclude_modules and layers_to_transform leave no target"},
        {QWEN2, QV ", \"exclude_modules\": \"*\"", "key 'exclude_modules': regular"},
        {QWEN2, QV ", \"layers_to_transform\": [0, 2]",
         "key 'layers_to_transform': expected layers of 0 to 1, found 2"},
        {QWEN3_MOE,
         "\"target_modules\": [\"up_proj\"], "
         "\"rank_pattern\": {\"experts.3.up_proj\": 2}",
         "expected one rank and one scale for the experts of a layer, found 4 and 2 at "
         "model.layers.0.mlp.experts.0.up_proj.weight, 2 and 4 at "
         "model.layers.0.mlp.experts.3.up_proj.weight"},
        {QWEN3_MOE,
         "\"target_modules\": [\"up_proj\"], "
         "\"exclude_modules\": [\"experts.1.up_proj\"]",
         "experts.1.up_proj.weight without an adapter"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_model *m;
        struct kg_err err = {0};
        if (open_of(&m, rows[i].base, rows[i].more, &err) == KG_OK ||
            !strstr(err.message, rows[i].said))
            fail_msg("%s: expected '%s', found '%s'", rows[i].more, rows[i].said,
                     err.message);
    }
}

/* Errors name the origin of the value: a key of the recipe, or a file of a folder. */
static void test_errors_name_the_key_or_the_file(void **state)
{
    struct kg_lora wrong = {.rank = 4, .alpha = 8}, high = {.rank = 400, .alpha = 8};
    const struct kg_lora *const l[] = {&wrong, &high};
    static const char *const said[][2] = {
        {"lora.targets: no layer has a matrix q_prj",
         "no/folder/adapter_config.json: key 'target_modules': no layer has"},
        {"lora.rank: expected at most 32",
         "no/folder/adapter_config.json: key 'r': expected at most 32"}};

    (void)state;
    NEED(kg_lora_add_target(&wrong, "q_prj", "targets", err));
    for (int i = 0; i < 4; i++) {
        const struct kg_model_opts opts = {
            .ct = KG_F32, .lora = l[i / 2], .adapter = i % 2 ? "no/folder" : NULL};
        struct kg_err err = {0};
        struct kg_model *m;
        assert_int_equal(kg_model_open(&m, QWEN2, &opts, &err), KG_EINVAL);
        if (strncmp(err.message, said[i / 2][i % 2], strlen(said[i / 2][i % 2])) != 0)
            fail_msg("expected '%s', found '%s'", said[i / 2][i % 2], err.message);
    }
}

static void write_config(const char *dir, const struct kg_lora *l)
{
    struct kg_str text = {0};
    NEED(kg_lora_write(&text, l, "base", err));
    NEED(kg_file_write_atomic(kg_path_in(dir, "adapter_config.json").text,
                              kg_str_text(&text), text.len, err));
    kg_str_release(&text);
}

/* The tensors have another rank than adapter_config.json says. */
static void test_shapes_are_those_of_the_rank(void **state)
{
    static const struct {
        const char *more, *said;
    } rows[] = {
        {RANK "{\"q_proj\": 2}",
         "layers.0.self_attn.q_proj.lora_A.weight: expected shape [2, 32] "
         "(from config.json and adapter_config.json: rank_pattern 'q_proj' is 2), found "
         "[3, 32]"},
        {RANK "{\"q_proj\": 3, \"v_proj\": 5}",
         "layers.0.self_attn.v_proj.lora_A.weight: expected shape [5, 32] "
         "(from config.json and adapter_config.json: rank_pattern 'v_proj' is 5), found "
         "[4, 32]"},
        {QV, "expected shape [4, 32] (from config.json and adapter_config.json: r is 4), "
             "found [3, 32]"},
    };
    struct kg_model *m;
    struct kg_lora l;
    char dir[128];

    (void)state;
    test_dir(dir, "shapes");
    NEED(open_of(&m, QWEN2, RANK "{\"q_proj\": 3}", err));
    NEED(kg_model_save(m, dir, &(struct kg_model_save){.dtype = KG_F32}, err));
    kg_model_free(m);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct kg_model_opts opts = {.ct = KG_F32, .lora = &l, .adapter = dir};
        struct kg_err why = {0};
        NEED(parse(&l, rows[i].more, err));
        write_config(dir, &l);
        NEED(kg_lora_read(&l, dir, err));
        assert_int_equal(kg_model_open(&m, QWEN2, &opts, &why), KG_ESHAPE);
        if (!strstr(why.message, rows[i].said))
            fail_msg("%s: expected '%s', found '%s'", rows[i].more, rows[i].said,
                     why.message);
    }
    test_dir_remove(dir);
}

/* A written config selects the same adapters, and is the same when written again. */
static void test_what_is_written_says_the_same(void **state)
{
    static const char *const rows[] = {
        RANK "{\"^model.layers.1.*q_proj\": 2, \"v_proj\": 8}, \"use_rslora\": true, "
             "\"alpha_pattern\": {\"layers\\\\.0\\\\..*\": 2.5, \"v_proj\": 3}",
        "\"target_modules\": \".*\\\\.(q|o)_proj\", \"exclude_modules\": \".*0.*o_proj\"",
        QV ", \"layers_to_transform\": [1, 0], \"exclude_modules\": "
           "[\"0.self_attn.q_proj\"]",
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct kg_model_opts opts = {.ct = KG_F32};
        struct kg_str text[2] = {{0}}, found[2] = {{0}};
        struct kg_model *m[2];
        NEED(open_of(&m[0], QWEN2, rows[i], err));
        NEED(kg_lora_write(&text[0], m[0]->lora, "base", err));
        struct kg_lora l;
        struct kg_model_opts again = opts;
        NEED(kg_lora_parse(&l, kg_str_text(&text[0]), text[0].len, "again", err));
        again.lora = &l;
        NEED(kg_model_open(&m[1], QWEN2, &again, err));
        NEED(kg_lora_write(&text[1], m[1]->lora, "base", err));
        assert_string_equal(kg_str_text(&text[0]), kg_str_text(&text[1]));
        for (int j = 0; j < 2; j++)
            describe(&found[j], m[j]);
        assert_string_equal(kg_str_text(&found[0]), kg_str_text(&found[1]));
        for (int j = 0; j < 2; j++) {
            kg_str_release(&text[j]);
            kg_str_release(&found[j]);
            kg_model_free(m[j]);
        }
    }
}

/* An outline of a 30B model, 18,600 matrices, with n rules of this alpha_pattern. */
static kg_status open_large(int n, const char *pattern, struct kg_err *err)
{
    struct kg_lora l = {.rank = 4, .alpha = 8};
    const struct kg_model_opts opts = {.ct = KG_BF16, .lora = &l, .adapter = "no/folder"};
    struct kg_model_config config;
    struct kg_model *m = NULL;
    for (int i = 0; i < n; i++)
        KG_TRY(kg_lora_add_rule(&l, KG_LORA_ALPHA, pattern, 2, "file", err));
    KG_TRY(kg_model_config_read(&config, "tests/data/configs/qwen3_30b_a3b", err));
    const kg_status status = kg_model_outline(&m, &config, &opts, err);
    kg_model_free(m);
    return status;
}

static void test_all_expressions_have_a_limit_together(void **state)
{
    static const char hostile[] = ".*.*.*[!?]|lm_head|N";
    struct kg_err why = {0};

    (void)state;
    NEED(open_large(60, "embed_tokens", err)); /* tried on every matrix, matches none */
    NEED(open_large(2, ".*\\.mlp\\..*embed|.*lm_head", err));
    assert_int_equal(open_large(1000, hostile, &why), KG_EINVAL);
    if (!strstr(why.message,
                "no/folder/adapter_config.json: key 'alpha_pattern': regular "
                "expressions: expected at most 268435456 matching steps in total, "
                "found more at '.*.*.*[!?]|lm_head|N' on model."))
        fail_msg("found '%s'", why.message);
}

static void test_rules_have_a_limit(void **state)
{
    struct kg_lora l = {0};
    struct kg_err why = {0};
    char text[1000];

    (void)state;
    for (int i = 0; i < KG_LORA_RULES; i++)
        NEED(kg_lora_add_rule(&l, KG_LORA_RANK, "q_proj", 1, "file", err));
    assert_int_equal(kg_lora_add_rule(&l, KG_LORA_RANK, "q_proj", 1, "file", &why),
                     KG_EINVAL);
    assert_string_equal(why.message,
                        "file: key 'rank_pattern': expected at most 1024 names and "
                        "patterns in the file, found one more, 'q_proj'");
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 0;
    l = (struct kg_lora){0};
    for (int i = 0; i < 32; i++)
        NEED(kg_lora_add_rule(&l, KG_LORA_RANK, text, 1, "file", err));
    assert_int_equal(kg_lora_add_rule(&l, KG_LORA_RANK, text, 1, "file", &why),
                     KG_EINVAL);
    assert_string_equal(why.message,
                        "file: key 'rank_pattern': expected names and patterns of at "
                        "most 32768 bytes together, found 33000 up to this one");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_matrix_has_the_rank_of_the_first_pattern),
        cmocka_unit_test(test_a_scale_is_of_its_own_rank_and_alpha),
        cmocka_unit_test(test_targets_may_be_a_regular_expression),
        cmocka_unit_test(test_what_is_excluded_is_no_target),
        cmocka_unit_test(test_layers_are_those_asked_for),
        cmocka_unit_test(test_what_matches_nothing_is_refused),
        cmocka_unit_test(test_errors_name_the_key_or_the_file),
        cmocka_unit_test(test_shapes_are_those_of_the_rank),
        cmocka_unit_test(test_what_is_written_says_the_same),
        cmocka_unit_test(test_all_expressions_have_a_limit_together),
        cmocka_unit_test(test_rules_have_a_limit),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
