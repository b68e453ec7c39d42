/* Keys, tables, presets, and the combinations that are refused with a reason. */
#include "policy/policy_testing.h"

#include "policy/shaping.h"
#include "policy/unbiased.h"

#include <yaml.h>

static struct kg_algo algo;

static void preset(const char *name)
{
    const struct kg_preset *p;
    struct kg_err err;

    kg_algo_init(&algo);
    assert_int_equal(kg_preset_find(&p, name, &err), KG_OK);
    set_values(&algo, p);
}

static void every_preset_is_a_computable_algorithm(void **state)
{
    (void)state;
    for (size_t i = 0; i < kg_preset_count(); i++) {
        const struct kg_preset *p = kg_preset_at(i);
        const char *reproduction = kg_preset_get(p, "algo.reproduction");
        struct kg_algo_setting setting = {
            .vocab = 1000,
            .samples = 8,
            .max_top_k = 512,
            .off_policy = true,
            .provides = KG_NEED_GREEDY | KG_NEED_PARTS | KG_NEED_SELECTION,
            .reproduction = reproduction && strcmp(reproduction, "true") == 0};
        struct kg_err err;

        preset(p->name);
        algo.length_norm = 128;
        if (kg_algo_check(&algo, &setting, &err) != KG_OK)
            fail_msg("%s: %s", p->name, err.message);
    }
}

static void presets_build_on_one_another(void **state)
{
    (void)state;
    for (size_t i = 0; i < kg_preset_count(); i++) {
        const struct kg_preset *p = kg_preset_at(i), *other;
        struct kg_err err;
        int depth = 0;

        assert_int_equal(kg_preset_find(&other, p->name, &err), KG_OK);
        assert_ptr_equal(other, p); /* names are unique */
        assert_true(p->help[0] && p->source[0]);
        for (; other->base; depth++) { /* it has every value of its bases */
            assert_int_equal(kg_preset_find(&other, other->base, &err), KG_OK);
            for (const struct kg_preset_value *v = other->values; v->key; v++)
                assert_non_null(kg_preset_get(p, v->key));
        }
        assert_true(depth < 8);
        assert_int_equal(other->kind, KG_PRESET_METHOD); /* the last base is a method */
    }
    preset("rpg-reinforce-urkl");
    assert_true(algo.kl_beta == 1e-4 && algo.dual_clip == 10);
    assert_string_equal(kg_algo_row_name(&algo, KG_TABLE_SURROGATE),
                        "rpg-reinforce-urkl");
}

/* ---- the files of presets, as libyaml reads them ---- */

static const char *scalar(yaml_document_t *doc, int node)
{
    return (const char *)yaml_document_get_node(doc, node)->data.scalar.value;
}

static const char *own(const struct kg_preset *p, const char *key)
{
    for (const struct kg_preset_value *v = p->values; v->from == p->name; v++)
        if (strcmp(v->key, key) == 0)
            return v->value;
    return NULL;
}

/* Checks that the row has what a line of the preset says.   returns its number of
 * values */
static size_t line_is_read(yaml_document_t *doc, yaml_node_pair_t *line,
                           const struct kg_preset *p)
{
    yaml_node_t *section = yaml_document_get_node(doc, line->value);
    const char *name = scalar(doc, line->key), *text;
    size_t n = 0;
    char key[64];

    if (section->type == YAML_MAPPING_NODE) {
        for (yaml_node_pair_t *v = section->data.mapping.pairs.start;
             v < section->data.mapping.pairs.top; v++, n++) {
            snprintf(key, sizeof key, "%s.%s", name, scalar(doc, v->key));
            assert_non_null(own(p, key));
            assert_string_equal(own(p, key), scalar(doc, v->value));
        }
        return n;
    }
    text = scalar(doc, line->value);
    if (strcmp(name, "like") == 0)
        return 0;
    assert_string_equal(text, *name == 'b'   ? p->base
                              : *name == 'h' ? p->help
                                             : p->source);
    return 0;
}

/* A row has the values below its name, and those of the preset that it is like. */
static void preset_is_read(yaml_document_t *doc, yaml_node_pair_t *said,
                           const struct kg_preset *p)
{
    yaml_node_t *lines = yaml_document_get_node(doc, said->value);
    const struct kg_preset *like = NULL;
    size_t n = 0;
    struct kg_err err;

    assert_string_equal(scalar(doc, said->key), p->name);
    for (yaml_node_pair_t *line = lines->data.mapping.pairs.start;
         line < lines->data.mapping.pairs.top; line++) {
        n += line_is_read(doc, line, p);
        if (strcmp(scalar(doc, line->key), "like") == 0)
            assert_int_equal(kg_preset_find(&like, scalar(doc, line->value), &err),
                             KG_OK);
    }
    for (const struct kg_preset_value *v = p->values; v->from == p->name; v++)
        n -= !like || !own(like, v->key) || strcmp(own(like, v->key), v->value) != 0;
    assert_int_equal(n, 0);
}

static void the_files_of_presets_are_read_as_yaml(void **state)
{
    static const char *const files[] = {"methods", "published"};
    size_t i = 0;

    (void)state;
    for (int f = 0; f < 2; f++) {
        char path[64];
        yaml_parser_t parser;
        yaml_document_t doc;

        snprintf(path, sizeof path, "recipes/presets/%s.yaml", files[f]);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        assert_true(yaml_parser_initialize(&parser));
        yaml_parser_set_input_file(&parser, file);
        assert_true(yaml_parser_load(&parser, &doc));
        yaml_node_t *root = yaml_document_get_root_node(&doc);
        for (yaml_node_pair_t *said = root->data.mapping.pairs.start;
             said < root->data.mapping.pairs.top; said++, i++) {
            assert_int_equal(kg_preset_at(i)->kind, f);
            preset_is_read(&doc, said, kg_preset_at(i));
        }
        yaml_document_delete(&doc);
        yaml_parser_delete(&parser);
        fclose(file);
    }
    assert_int_equal(i, kg_preset_count());
}

static void ema_pg_needs_recorded_ids_and_an_anchor(void **state)
{
    (void)state;
    preset("ema-pg");
    assert_int_equal(algo.anchor->kind, KG_ANCHOR_EMA);
    assert_true(algo.kl_corrected && algo.kl_tail && algo.kl_importance);
    assert_int_equal(kg_algo_recorded_top_k(&algo), 32);
    assert_int_equal(kg_algo_width(&algo), 32);
    assert_int_equal(kg_algo_needs(&algo) & (KG_NEED_ANCHOR | KG_NEED_TOP_SAMPLER),
                     KG_NEED_ANCHOR | KG_NEED_TOP_SAMPLER);
    preset("dppo-topk-kl");
    assert_int_equal(kg_algo_recorded_top_k(&algo), 20);
    must_set(&algo, "kl.estimator", "topk-forward");
    must_set(&algo, "kl.top_k", "8");
    assert_int_equal(kg_algo_width(&algo), 28);
    assert_int_equal(kg_algo_anchor_top_k(&algo), 8);
    preset("grpo");
    assert_int_equal(kg_algo_width(&algo), 0);
}

/* What a training step has to supply for a preset with one changed key, by the
 * formulas. */
static void the_needs_of_a_choice_are_what_its_formula_reads(void **state)
{
    enum { A = KG_NEED_ANCHOR, H = KG_NEED_TOP_SAMPLER, MU = KG_NEED_MU_AT };
    enum { Q = KG_NEED_TOP_ANCHOR, E = KG_NEED_ENTROPY, ALL = A | H | MU | Q | E };
    static const struct {
        const char *base, *key, *value;
        unsigned needs;
        bool reads_sample;
    } rows[] = {
        {"ema-pg", "kl.top_k", "16", A | H, true},
        {"ema-pg", "kl.top_k", "0", A, true}, /* the sampled token only */
        {"ema-pg", "algo.entropy_coef", "0.1", A | H | E, true},
        {"ema-pg", "anchor.kind", "iterative", A | H | MU, true},
        {"ema-pg", "kl.estimator", "topk-forward", A | Q, true},
        {"dppo-topk-kl", "algo.top_k", "8", H | MU, true}, /* a region without a KL */
        {"grpo", "kl.estimator", "k3", A, true},
        {"grpo", "anchor.kind", "iterative", A, true}, /* reads no head */
        {"grpo", "kl.in", "reward", A, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        preset(rows[i].base);
        must_set(&algo, rows[i].key, rows[i].value);
        if ((kg_algo_needs(&algo) & ALL) != rows[i].needs ||
            kg_algo_reads_sample(&algo) != rows[i].reads_sample)
            fail_msg("%s with %s=%s needs %#x, expected %#x", rows[i].base, rows[i].key,
                     rows[i].value, kg_algo_needs(&algo) & ALL, rows[i].needs);
    }
}

/* Without a policy term, a loss may be a function of the context alone. */
static void a_kl_of_the_context_reads_no_sample(void **state)
{
    static const struct {
        const char *estimator, *tail, *in;
        bool reads;
    } rows[] = {
        {"exact-reverse", "true", "loss", false},
        {"exact-forward", "true", "loss", false},
        {"topk-forward", "false", "loss", false},
        {"topk-forward", "true", "loss", true},
        {"topk-reverse", "false", "loss", true},
        {"k3", "false", "loss", true},
        {"k3", "false", "reward", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kg_algo_init(&algo);
        must_set(&algo, "algo.surrogate", "none");
        must_set(&algo, "anchor.kind", "fixed");
        must_set(&algo, "kl.estimator", rows[i].estimator);
        must_set(&algo, "kl.top_k", "4");
        must_set(&algo, "kl.tail", rows[i].tail);
        must_set(&algo, "kl.in", rows[i].in);
        if (kg_algo_reads_sample(&algo) != rows[i].reads)
            fail_msg("%s, tail %s, in the %s: expected %d", rows[i].estimator,
                     rows[i].tail, rows[i].in, rows[i].reads);
        must_set(&algo, "algo.surrogate", "reinforce");
        assert_true(kg_algo_reads_sample(&algo));
    }
    assert_string_equal(kg_preset_kind_name(KG_PRESET_METHOD), "method");
    assert_string_equal(kg_preset_kind_name(KG_PRESET_RECIPE), "recipe");
}

static void names_that_do_not_exist_list_those_that_do(void **state)
{
    const struct kg_preset *p;
    struct kg_err err;

    (void)state;
    kg_algo_init(&algo);
    assert_int_equal(kg_algo_set(&algo, "kl.estimator", "k7", &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "kl.estimator"));
    assert_non_null(strstr(err.message, "topk-reverse"));
    assert_non_null(strstr(err.message, "'k7'"));
    for (int t = 0; t < KG_TABLE_COUNT; t++) {
        assert_null(kg_policy_find((enum kg_policy_table)t, "no such row", &err));
        assert_non_null(strstr(err.message, "'no such row'"));
    }
    assert_int_equal(kg_preset_find(&p, "grpoo", &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "ema-pg"));
    assert_int_equal(kg_algo_set(&algo, "kl.betta", "1", &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "kl.beta"));
    assert_int_equal(kg_algo_set(&algo, "kl.beta", "much", &err), KG_EINVAL);
    assert_int_equal(kg_algo_set(&algo, "kl.top_k", "1.5", &err), KG_EINVAL);
    assert_int_equal(kg_algo_set(&algo, "kl.tail", "yes", &err), KG_EINVAL);
}

static void every_row_tells_what_it_is(void **state)
{
    (void)state;
    for (int t = 0; t < KG_TABLE_COUNT; t++)
        for (size_t i = 0; i < kg_policy_n_rows((enum kg_policy_table)t); i++) {
            const struct kg_policy_about *a = kg_policy_row((enum kg_policy_table)t, i);
            struct kg_err err;

            assert_true(a->name[0] && a->help[0] && a->formula && a->source);
            assert_ptr_equal(kg_policy_find((enum kg_policy_table)t, a->name, &err), a);
        }
}

struct refusal {
    const char *key, *value; /* changed in base */
    const char *says;
};

static void refuse(const char *base, const struct refusal *r,
                   struct kg_algo_setting setting)
{
    struct kg_err err;

    preset(base);
    if (r->key)
        must_set(&algo, r->key, r->value);
    if (kg_algo_check(&algo, &setting, &err) == KG_OK)
        fail_msg("%s with %s=%s: not refused", base, r->key ? r->key : "", r->value);
    if (!strstr(err.message, r->says))
        fail_msg("%s with %s=%s: '%s' does not say '%s'", base, r->key ? r->key : "",
                 r->value, err.message, r->says);
}

static void what_cannot_be_computed_is_refused_with_the_key(void **state)
{
    static const struct refusal rows[] = {
        {"anchor.kind", "none", "anchor.kind"},
        {"anchor.eta", "1.5", "anchor.eta"},
        {"anchor.eta", "0", "copy"},
        {"anchor.period", "0", "anchor.period"},
        {"kl.beta", "-1", "kl.beta"},
        {"kl.estimator", "exact-reverse", "two-head"},
        {"kl.estimator", "reward-rkl", "shapes rewards"},
        {"kl.estimator", "rpg-rkl", "iterative"},
        {"kl.estimator", "none", "would have no effect"},
        {"kl.top_k", "600", "kl.top_k"},
        {"kl.in", "reward", "only the sampled token"},
        {"kl.target", "-1", "kl.target"},
        {"kl.horizon", "0", "kl.horizon"},
        {"algo.clip_low", "-0.1", "algo.clip_low"},
        {"algo.dual_clip", "0.5", "algo.dual_clip"},
        {"algo.entropy_coef", "-1", "algo.entropy_coef"},
        {"algo.aggregate", "seq-mean-token-sum-norm", "algo.length_norm"},
        {"algo.surrogate", "rpg-urkl", "already"},
        {"algo.surrogate", "kl-cov", "whole optimizer batch"},
        {"algo.advantage", "gae", "critic"},
        {"algo.advantage", "remax", "greedy"},
        {"algo.advantage", "token-baseline", "p_v^2"},
    };
    struct kg_algo_setting setting = {.vocab = 1000, .samples = 8, .max_top_k = 512};
    struct refusal single = {"algo.advantage", "rloo", "rollout.samples"};
    struct refusal none = {NULL, "", "full softmax"};
    struct refusal tis = {"algo.tis", "2", "algo.tis"};
    struct refusal k1 = {"kl.estimator", "k1", "kl.importance"};
    struct refusal all_of_it = {"anchor.kind", "iterative", "whole vocabulary"};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        refuse("ema-pg", &rows[i], setting);
    refuse("dppo-binary-tv", &tis, setting);
    setting.truncated_sampling = true;
    refuse("dppo-topk-kl", &none, setting);
    setting.off_policy = true;
    refuse("grpo", &k1, setting);
    setting.samples = 1;
    refuse("dapo", &single, setting);
    preset("ema-pg");
    assert_true(kg_algo_exact_when_full(&algo, 32));
    must_set(&algo, "anchor.kind", "iterative");
    {
        struct kg_err err;

        setting.samples = 8;
        assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_EUNSUPPORTED);
        assert_non_null(strstr(err.message, all_of_it.says));
    }
}

/* Expects that two keys together are refused. */
static void refuse_both(const char *base, const char *const keys[4], const char *says,
                        struct kg_algo_setting setting)
{
    struct refusal r = {keys[2], keys[3], says};
    struct kg_err err;

    preset(base);
    must_set(&algo, keys[0], keys[1]);
    must_set(&algo, r.key, r.value);
    if (kg_algo_check(&algo, &setting, &err) == KG_OK || !strstr(err.message, says))
        fail_msg("%s with %s=%s and %s=%s: '%s' does not say '%s'", base, keys[0],
                 keys[1], keys[2], keys[3], err.message, says);
}

static void the_kl_in_the_reward_takes_sampled_estimators_and_moving_anchors(void **state)
{
    static const char *const iterative[] = {"kl.in", "reward", "anchor.kind",
                                            "iterative"};
    static const char *const none[] = {"kl.in", "reward", "kl.beta", "0"};
    static const char *const exact[] = {"kl.in", "reward", "kl.estimator",
                                        "exact-reverse"};
    static const char *const nothing[] = {"kl.target", "0.1", "kl.beta", "0"};
    static const char *const from_zero[] = {"kl.target", "0.1", "kl.beta", "0"};
    struct kg_algo_setting setting = {
        .vocab = 1000, .samples = 8, .off_policy = true, .provides = ~0u};
    struct kg_err err;

    (void)state;
    refuse_both("grpo", iterative, "would not change", setting);
    refuse_both("grpo", exact, "only the sampled token", setting);
    refuse_both("dapo", none, "expected a kl.estimator", setting);
    refuse_both("dapo", nothing, "no KL to control", setting);
    refuse_both("grpo", from_zero, "starting value", setting);
    for (int i = 0; i < 3; i++) {
        static const char *const anchors[] = {"fixed", "ema", "copy"};

        preset("grpo");
        must_set(&algo, "kl.in", "reward");
        must_set(&algo, "kl.estimator", "k1"); /* in the loss, refused in this setting */
        must_set(&algo, "anchor.kind", anchors[i]);
        assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_OK);
        assert_false(kg_algo_kl_in_loss(&algo));
        assert_true(kg_algo_needs(&algo) & KG_NEED_ANCHOR);
    }
}

/* On-policy, k1's gradient is noise of mean zero. Off-policy and unweighted, its mean
 * pushes away from the sampler (docs/algorithms.md). */
static void k1_as_a_loss_off_policy_needs_its_weight(void **state)
{
    struct kg_algo_setting setting = {.vocab = 1000, .samples = 8, .max_top_k = 512};
    struct kg_err err;

    (void)state;
    preset("grpo");
    must_set(&algo, "kl.estimator", "k1");
    must_set(&algo, "kl.importance", "false");
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_OK);
    setting.off_policy = true;
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "kl.importance"));
    assert_non_null(strstr(err.message, "off-policy"));
    setting.reproduction = true;
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_OK);
    setting.reproduction = false;
    must_set(&algo, "kl.importance", "true");
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_OK);
}

static void a_mask_by_sign_needs_one_advantage_where_there_is_one_term(void **state)
{
    struct kg_algo_setting setting = {.vocab = 1000, .samples = 8, .max_top_k = 512};
    struct kg_err err;

    (void)state;
    kg_algo_init(&algo);
    must_set(&algo, "algo.surrogate", "gmpo");
    must_set(&algo, "algo.mask", "off-policy");
    must_set(&algo, "algo.mask_delta", "0.1");
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_OK);
    must_set(&algo, "algo.advantage", "reinforce++");
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "algo.mask"));
    must_set(&algo, "algo.surrogate", "gspo");
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_OK);
}

static void a_head_of_the_whole_vocabulary_is_the_exact_kl(void **state)
{
    (void)state;
    preset("ema-pg");
    assert_false(kg_algo_exact_when_full(&algo, 33));
    assert_true(kg_algo_exact_when_full(&algo, 32));
    assert_string_equal(kg_algo_row_name(&algo, KG_TABLE_KL), "exact-reverse");
    assert_int_equal(kg_algo_width(&algo), 0);
    assert_true(kg_algo_needs(&algo) & KG_NEED_EXACT_REVERSE);
}

static void a_region_over_all_ids_is_cut_to_them(void **state)
{
    (void)state;
    preset("dppo-topk-tv"); /* k = 20 */
    assert_false(kg_algo_region_when_full(&algo, 20));
    assert_true(kg_algo_region_when_full(&algo, 16));
    assert_int_equal(kg_algo_recorded_top_k(&algo), 16);
    preset("ema-pg"); /* has no region, whatever its algo.top_k */
    assert_false(kg_algo_region_when_full(&algo, 16));
    must_set(&algo, "anchor.kind", "iterative");
    assert_false(kg_algo_region_when_full(&algo, 16));
}

/* Temperatures are above 0, and may be below 1. */
static void a_temperature_of_sapo_may_be_small(void **state)
{
    struct kg_algo_setting setting = {.vocab = 1000, .samples = 8, .max_top_k = 512};
    static const char *const keys[] = {"algo.tau_pos", "algo.tau_neg"};
    struct kg_err err;

    (void)state;
    for (int i = 0; i < 2; i++) {
        kg_algo_init(&algo);
        must_set(&algo, "algo.surrogate", "sapo");
        must_set(&algo, keys[i], "0.25");
        assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_OK);
        must_set(&algo, keys[i], "0");
        assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_EINVAL);
        assert_non_null(strstr(err.message, keys[i]));
    }
}

static void the_anchor_moves_on_every_period_th_step(void **state)
{
    double anchor[2] = {1, 2}, theta[2] = {3, -2};

    (void)state;
    preset("ema-pg");
    assert_false(kg_policy_anchor_due(&algo, 0));
    assert_false(kg_policy_anchor_due(&algo, 9));
    assert_true(kg_policy_anchor_due(&algo, 10));
    must_set(&algo, "anchor.eta", "1");
    assert_false(kg_policy_anchor_due(&algo, 10));
    must_set(&algo, "anchor.kind", "copy");
    assert_true(kg_policy_anchor_due(&algo, 20));
    kg_policy_ema(anchor, theta, 2, 0.75);
    assert_near(anchor[0], 1.5, 0);
    assert_near(anchor[1], 1, 0);
}

/* Gradient descent on a quadratic KL of curvature a.   returns the factor by which a
 * round of `period` steps and an update of the anchor multiply delta = theta - anchor */
static double factor_of_a_round(double eta, double a, int period, bool average_first)
{
    double theta = 1.5, anchor = 0.5, before = theta;

    for (int step = 0; step < period; step++)
        theta -= a * (theta - anchor);
    kg_policy_ema(&anchor, average_first ? &before : &theta, 1, eta);
    return theta - anchor; /* delta was 1 */
}

static void the_scalar_recursions_have_the_stated_factors(void **state)
{
    static const double etas[] = {0.5, 0.9, 0.99}, curvatures[] = {0.05, 0.3, 1.7};

    (void)state;
    for (int i = 0; i < 9; i++) {
        double eta = etas[i / 3], a = curvatures[i % 3];

        assert_near(factor_of_a_round(eta, a, 1, true), eta - a, 1e-14);
        assert_near(factor_of_a_round(eta, a, 1, false), eta * (1 - a), 1e-14);
        assert_near(factor_of_a_round(eta, a, 10, false), eta * pow(1 - a, 10), 1e-13);
        assert_near(factor_of_a_round(1, a, 1, false), 1 - a, 1e-14);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_preset_is_a_computable_algorithm),
        cmocka_unit_test(presets_build_on_one_another),
        cmocka_unit_test(the_files_of_presets_are_read_as_yaml),
        cmocka_unit_test(ema_pg_needs_recorded_ids_and_an_anchor),
        cmocka_unit_test(the_needs_of_a_choice_are_what_its_formula_reads),
        cmocka_unit_test(a_kl_of_the_context_reads_no_sample),
        cmocka_unit_test(names_that_do_not_exist_list_those_that_do),
        cmocka_unit_test(every_row_tells_what_it_is),
        cmocka_unit_test(what_cannot_be_computed_is_refused_with_the_key),
        cmocka_unit_test(
            the_kl_in_the_reward_takes_sampled_estimators_and_moving_anchors),
        cmocka_unit_test(k1_as_a_loss_off_policy_needs_its_weight),
        cmocka_unit_test(a_mask_by_sign_needs_one_advantage_where_there_is_one_term),
        cmocka_unit_test(a_head_of_the_whole_vocabulary_is_the_exact_kl),
        cmocka_unit_test(a_region_over_all_ids_is_cut_to_them),
        cmocka_unit_test(a_temperature_of_sapo_may_be_small),
        cmocka_unit_test(the_anchor_moves_on_every_period_th_step),
        cmocka_unit_test(the_scalar_recursions_have_the_stated_factors),
    };

    return cmocka_run_group_tests_name("policy/algo", tests, NULL, NULL);
}
