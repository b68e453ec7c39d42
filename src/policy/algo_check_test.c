/* Every refusal of algo_check.c: a valid composition, a change to it or to its setting,
 * and what the message must say. */
#include "policy/policy_testing.h"

enum change {
    NOTHING,
    OFF_POLICY,
    SAMPLED_OLD,
    TRUNCATED,
    SINGLE,
    SMALL_VOCAB,
    NO_NEEDS
};

struct refusal {
    const char *preset;
    const char *sets[3][2]; /* keys and values to change, up to a NULL */
    enum change change;
    const char *key;  /* what the message begins with */
    const char *says; /* and what else it contains */
};

static const struct refusal refusals[] = {
    /* single numbers */
    {"grpo", {{"algo.clip_low", "-0.1"}}, NOTHING, "algo.clip_low", "0 or more"},
    {"grpo", {{"algo.clip_high", "-1"}}, NOTHING, "algo.clip_high", "-1"},
    {"grpo", {{"algo.ratio_clamp", "-1"}}, NOTHING, "algo.ratio_clamp", "0 (off)"},
    {"grpo", {{"algo.ratio_clamp", "701"}}, NOTHING, "algo.ratio_clamp", "700"},
    {"pg-is", {{"algo.truncate", "-1"}}, NOTHING, "algo.truncate", "0 (off)"},
    {"dppo-binary-tv", {{"algo.delta_low", "-1"}}, NOTHING, "algo.delta_low", "-1"},
    {"dppo-binary-tv", {{"algo.delta_high", "-1"}}, NOTHING, "algo.delta_high", "-1"},
    {"dppo-topk-kl", {{"algo.top_k", "0"}}, NOTHING, "algo.top_k", "1 to 512"},
    {"dppo-topk-kl", {{"algo.top_k", "513"}}, NOTHING, "algo.top_k", "1 to 512"},
    {"grpo", {{"algo.mask_delta", "-1"}}, NOTHING, "algo.mask_delta", "-1"},
    {"sapo", {{"algo.tau_pos", "0"}}, NOTHING, "algo.tau_pos", "above 0"},
    {"sapo", {{"algo.tau_neg", "0"}}, NOTHING, "algo.tau_neg", "above 0"},
    {"grpo", {{"algo.tis", "-1"}}, NOTHING, "algo.tis", "-1"},
    {"grpo", {{"algo.entropy_coef", "-1"}}, NOTHING, "algo.entropy_coef", "-1"},
    {"grpo", {{"algo.length_norm", "-1"}}, NOTHING, "algo.length_norm", "-1"},
    {"reinforce++", {{"algo.gamma", "1.1"}}, NOTHING, "algo.gamma", "0 to 1"},
    {"reinforce++", {{"algo.lambda", "-0.1"}}, NOTHING, "algo.lambda", "0 to 1"},
    {"gpg", {{"algo.gpg_norm", "0"}}, NOTHING, "algo.gpg_norm", "above 0"},
    {"grpo", {{"algo.cov_ratio", "1.5"}}, NOTHING, "algo.cov_ratio", "0 to 1"},
    {"grpo", {{"algo.cov_coef", "-1"}}, NOTHING, "algo.cov_coef", "-1"},
    {"vespo", {{"algo.vespo_k_pos", "-1"}}, NOTHING, "algo.vespo_k_pos", "0 to 10"},
    {"vespo", {{"algo.vespo_k_neg", "11"}}, NOTHING, "algo.vespo_k_neg", "0 to 10"},
    {"vespo", {{"algo.vespo_lambda_pos", "0"}}, NOTHING, "algo.vespo_lambda_pos", "0.01"},
    {"vespo",
     {{"algo.vespo_lambda_neg", "101"}},
     NOTHING,
     "algo.vespo_lambda_neg",
     "to 100"},
    {"cppo", {{"algo.prefix_weight", "0"}}, NOTHING, "algo.prefix_weight", "0.001 to 1"},
    {"cppo", {{"algo.prefix_weight", "1.1"}}, NOTHING, "algo.prefix_weight", "1.1"},
    {"cppo", {{"algo.prefix_budget", "-1"}}, NOTHING, "algo.prefix_budget", "0 to 1"},
    {"cppo", {{"algo.prefix_budget", "2"}}, NOTHING, "algo.prefix_budget", "0 to 1"},
    {"cppo", {{"algo.tis", "2"}}, NOTHING, "algo.tis", "already"},
    {"drpo", {{"algo.delta_low", "0"}}, NOTHING, "algo.delta_low", "above 0"},
    {"drpo", {{"algo.delta_high", "0"}}, NOTHING, "algo.delta_high", "above 0"},
    {"drpo", {{"algo.tis", "2"}}, NOTHING, "algo.tis", "already"},
    {"vespo", {{"algo.tis", "2"}}, NOTHING, "algo.tis", "already"},
    {"m2po", {{"algo.m2_budget", "-1"}}, NOTHING, "algo.m2_budget", "0 or more"},
    {"grpo", {{"algo.count_eps", "1"}}, NOTHING, "algo.count_eps", "0.001"},
    {"grpo", {{"kl.beta", "-0.1"}}, NOTHING, "kl.beta", "0 or more"},
    {"grpo", {{"kl.target", "-1"}}, NOTHING, "kl.target", "0 (off)"},
    {"grpo", {{"kl.horizon", "0"}}, NOTHING, "kl.horizon", "above 0"},
    {"ema-pg", {{"kl.top_k", "-1"}}, NOTHING, "kl.top_k", "0 or more"},
    {"grpo", {{"kl.iw_lower", "-1"}}, NOTHING, "kl.iw_lower", "0 (off)"},
    {"grpo", {{"kl.iw_upper", "-1"}}, NOTHING, "kl.iw_upper", "0 (off)"},
    {"ema-pg", {{"anchor.period", "0"}}, NOTHING, "anchor.period", "1 or more"},
    {"ema-pg", {{"anchor.kappa", "-1"}}, NOTHING, "anchor.kappa", "0 (off)"},
    {"ema-pg", {{"anchor.smoothing", "1"}}, NOTHING, "anchor.smoothing", "below 1"},
    {"grpo", {{"algo.dual_clip", "0.5"}}, NOTHING, "algo.dual_clip", "above 1"},
    {"grpo",
     {{"kl.iw_lower", "2"}, {"kl.iw_upper", "1.5"}},
     NOTHING,
     "kl.iw_lower",
     "at most kl.iw_upper"},
    /* anchors */
    {"grpo", {{"anchor.kind", "none"}}, NOTHING, "anchor.kind", "k3 needs an anchor"},
    {"grpo",
     {{"kl.estimator", "exact-reverse"}, {"anchor.kind", "iterative"}},
     NOTHING,
     "anchor.kind",
     "whole vocabulary"},
    {"grpo",
     {{"kl.estimator", "exact-forward"}, {"anchor.kind", "iterative"}},
     NOTHING,
     "anchor.kind",
     "whole vocabulary"},
    {"ema-pg", {{"anchor.eta", "0"}}, NOTHING, "anchor.eta", "anchor.kind copy"},
    {"ema-pg", {{"anchor.eta", "1.01"}}, NOTHING, "anchor.eta", "at most 1"},
    {"ema-pg", {{"anchor.eta", "-0.5"}}, NOTHING, "anchor.eta", "above 0"},
    {"ema-pg", {{"anchor.kappa", "0.1"}}, NOTHING, "anchor.kappa", "anchor.kind copy"},
    {"reinforce++",
     {{"anchor.kind", "copy"}, {"anchor.kappa", "0.1"}},
     NOTHING,
     "anchor.kappa",
     "KL of every update"},
    /* the KL */
    {"dapo", {{"kl.beta", "0.1"}}, NOTHING, "kl.beta", "would have no effect"},
    {"dapo", {{"kl.in", "reward"}}, NOTHING, "kl.in", "expected a kl.estimator"},
    {"ema-pg", {{"kl.in", "reward"}}, NOTHING, "kl.in", "only the sampled token"},
    {"reinforce++",
     {{"kl.estimator", "exact-reverse"}},
     NOTHING,
     "kl.in",
     "only the sampled token"},
    {"reinforce++", {{"anchor.kind", "iterative"}}, NOTHING, "kl.in", "would not change"},
    {"dapo", {{"kl.target", "0.1"}}, NOTHING, "kl.target", "no KL to control"},
    {"grpo",
     {{"kl.target", "0.1"}, {"kl.beta", "0"}},
     NOTHING,
     "kl.beta",
     "starting value for kl.target 0.1"},
    {"ema-pg",
     {{"kl.top_k", "0"}, {"kl.tail", "false"}},
     NOTHING,
     "kl.tail",
     "topk-reverse consists of the tail only"},
    {"ema-pg",
     {{"kl.estimator", "truncated-forward"}, {"kl.top_k", "0"}},
     NOTHING,
     "kl.top_k",
     "reads that many ids"},
    {"ema-pg",
     {{"kl.estimator", "bucket-reverse"}, {"kl.top_k", "0"}},
     NOTHING,
     "kl.top_k",
     "bucket-reverse"},
    {"ema-pg",
     {{"kl.estimator", "generalised-reverse"}, {"kl.gradient", "published"}},
     NOTHING,
     "kl.gradient",
     "no sampled tail"},
    {"ema-pg",
     {{"kl.estimator", "truncated-forward"}, {"kl.gradient", "published"}},
     NOTHING,
     "kl.gradient",
     "only gradient"},
    {"grpo", {{"kl.estimator", "reward-rkl"}}, NOTHING, "kl.estimator", "not a loss"},
    {"grpo",
     {{"kl.estimator", "reward-rkl"}, {"kl.in", "reward"}},
     NOTHING,
     "kl.estimator",
     "expected algo.reproduction true"},
    {"grpo", {{"kl.estimator", "rpg-rkl"}}, NOTHING, "kl.estimator", "iterative"},
    {"grpo", {{"kl.estimator", "jeffreys"}}, NOTHING, "kl.estimator", "found fixed"},
    {"grpo", {{"kl.estimator", "k1"}}, OFF_POLICY, "kl.importance", "k1 as a loss"},
    {"rpg-urkl",
     {{"kl.estimator", "k3"}, {"anchor.kind", "fixed"}},
     NOTHING,
     "kl.estimator",
     "already has a KL"},
    /* surrogates */
    {"rpg-urkl", {{"anchor.kind", "ema"}}, NOTHING, "anchor.kind", "has no effect"},
    {"rpg-reinforce-ufkl",
     {{"anchor.kind", "iterative"}},
     NOTHING,
     "anchor.kind",
     "found iterative"},
    {"dapo", {{"algo.surrogate", "none"}}, NOTHING, "algo.surrogate", "the KL"},
    {"reinforce++", {{"algo.surrogate", "none"}}, NOTHING, "algo.surrogate", "the KL"},
    {"distill-reverse", {{"kl.beta", "0"}}, NOTHING, "kl.beta", "the loss is the KL"},
    {"tis", {{NULL, NULL}}, SAMPLED_OLD, "algo.tis", "train.old_logp=recompute"},
    {"grpo", {{"algo.mask", "trm-max"}}, NOTHING, "algo.mask_delta", "above 0"},
    {"grpo", {{"algo.mask_delta", "0.1"}}, NOTHING, "algo.mask_delta", "expected 0"},
    {"grpo", {{"algo.mask", "vaco"}}, NOTHING, "algo.mask_delta", "above 0"},
    {"vaco", {{"algo.mask_delta", "0"}}, NOTHING, "algo.mask_delta", "found 0"},
    {"vaco", {{"algo.mask_delta", "-0.2"}}, NOTHING, "algo.mask_delta", "-0.2"},
    {"vaco", {{"algo.mask", "none"}}, NOTHING, "algo.mask_delta", "expected 0"},
    {"vaco", {{"algo.mask", "vaco-old"}}, SAMPLED_OLD, "algo.mask", "drops nothing"},
    {"vaco-released",
     {{NULL, NULL}},
     SAMPLED_OLD,
     "algo.tis",
     "train.old_logp=recompute"},
    {"gmpo",
     {{"algo.mask", "vaco"}, {"algo.mask_delta", "0.2"}},
     NOTHING,
     "algo.mask",
     "gmpo has one term"},
    {"dppo-binary-tv", {{"algo.tis", "2"}}, NOTHING, "algo.tis", "already"},
    {"grpo", {{"algo.tis_low", "0.5"}}, NOTHING, "algo.tis_low", "upper bound"},
    {"tis", {{"algo.tis_low", "3"}}, NOTHING, "algo.tis_low", "found 3"},
    {"grpo", {{"algo.mask", "icepop"}}, NOTHING, "algo.tis", "icepop"},
    {"tis",
     {{"algo.mask", "icepop"}, {"algo.mask_delta", "1"}},
     NOTHING,
     "algo.mask_delta",
     "icepop"},
    {"gmpo",
     {{"algo.mask", "icepop"}, {"algo.tis", "5"}},
     NOTHING,
     "algo.mask",
     "gmpo has one term"},
    {"dppo-topk-tv", {{NULL, NULL}}, TRUNCATED, "algo.surrogate", "rollout.top_p 1"},
    {"grpo",
     {{"algo.surrogate", "clip-cov"}, {"algo.cov_low", "5"}, {"algo.cov_high", "5"}},
     NOTHING,
     "algo.cov_low",
     "below algo.cov_high"},
    {"dr-grpo", {{"algo.length_norm", "0"}}, NOTHING, "algo.length_norm", "divides by"},
    /* recorded ids */
    {"ema-pg", {{"kl.top_k", "513"}}, NOTHING, "kl.top_k", "at most 512 ids"},
    {"dppo-topk-kl", {{NULL, NULL}}, SMALL_VOCAB, "algo.top_k", "the vocabulary (10)"},
    /* what the run cannot provide */
    {"remax", {{NULL, NULL}}, NO_NEEDS, "algo.advantage", "greedy completion"},
    {"grpo", {{"algo.advantage", "gae"}}, NO_NEEDS, "algo.advantage", "critic"},
    {"grpo", {{"algo.advantage", "token-baseline"}}, NO_NEEDS, "algo.advantage", "p_v^2"},
    {"grpo", {{"kl.estimator", "exact-reverse"}}, NO_NEEDS, "kl.estimator", "two-head"},
    {"grpo", {{"kl.estimator", "exact-forward"}}, NO_NEEDS, "kl.estimator", "two-head"},
    {"dapo", {{"algo.surrogate", "kl-cov"}}, NO_NEEDS, "algo.surrogate", "whole"},
    {"grpo",
     {{"algo.advantage", "token-baseline"}},
     TRUNCATED,
     "algo.advantage",
     "full softmax"},
    {"rloo", {{NULL, NULL}}, SINGLE, "rollout.samples", "2 or more"},
    {"grpo", {{NULL, NULL}}, SINGLE, "rollout.samples", "2 or more"},
};

static struct kg_algo algo;

static void load(const char *name)
{
    const struct kg_preset *p;
    struct kg_err err;

    kg_algo_init(&algo);
    algo.length_norm = 128;
    assert_int_equal(kg_preset_find(&p, name, &err), KG_OK);
    set_values(&algo, p);
}

static struct kg_algo_setting setting_of(enum change change)
{
    return (struct kg_algo_setting){
        .vocab = change == SMALL_VOCAB ? 10 : 1000,
        .samples = change == SINGLE ? 1 : 8,
        .max_top_k = 512,
        .off_policy = change == OFF_POLICY,
        .sampled_old = change == SAMPLED_OLD,
        .truncated_sampling = change == TRUNCATED,
        .provides = change == NO_NEEDS ? 0 : ~(unsigned)KG_NEED_VALUES,
    };
}

static void each_is_refused_with_its_key_and_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        struct kg_algo_setting setting = setting_of(NOTHING);
        struct kg_err err = {0};

        load(r->preset);
        if (kg_algo_check(&algo, &setting, &err) != KG_OK)
            fail_msg("%s by itself: %s", r->preset, err.message);
        for (int j = 0; j < 3 && r->sets[j][0]; j++)
            must_set(&algo, r->sets[j][0], r->sets[j][1]);
        setting = setting_of(r->change);
        if (kg_algo_check(&algo, &setting, &err) == KG_OK)
            fail_msg("row %zu (%s): not refused", i, r->preset);
        if (strncmp(err.message, r->key, strlen(r->key)) != 0 ||
            err.message[strlen(r->key)] != ':' || !strstr(err.message, r->says))
            fail_msg("row %zu (%s): '%s' does not begin with '%s:' and say '%s'", i,
                     r->preset, err.message, r->key, r->says);
    }
}

/* With setting.reproduction, what may be misleading is accepted, and nothing else. */
static void reproduction_lets_through_what_misleads_and_nothing_else(void **state)
{
    size_t let_through = 0;

    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        struct kg_algo_setting setting = setting_of(r->change);
        struct kg_err err = {0};
        kg_status status;

        load(r->preset);
        for (int j = 0; j < 3 && r->sets[j][0]; j++)
            must_set(&algo, r->sets[j][0], r->sets[j][1]);
        setting.reproduction = true;
        status = kg_algo_check(&algo, &setting, &err);
        let_through += status == KG_OK;
        if (status == KG_OK && strcmp(r->says, "would not change") != 0 &&
            strcmp(r->says, "iterative") != 0 && strcmp(r->says, "found fixed") != 0 &&
            strcmp(r->says, "k1 as a loss") != 0 &&
            strcmp(r->says, "expected algo.reproduction true") != 0)
            fail_msg("row %zu (%s, %s) is let through", i, r->preset, r->says);
    }
    assert_int_equal(let_through, 5);
}

static void numbers_that_are_none_are_refused(void **state)
{
    struct kg_err err;

    (void)state;
    kg_algo_init(&algo);
    for (size_t i = 0; i < kg_algo_n_keys(); i++) {
        char text[64];

        assert_int_equal(kg_algo_get(&algo, kg_algo_key(i), text, sizeof text, &err),
                         KG_OK);
        if (kg_algo_set(&algo, kg_algo_key(i), "nan", &err) == KG_OK)
            fail_msg("%s=nan: not refused", kg_algo_key(i));
        if (kg_algo_set(&algo, kg_algo_key(i), "inf", &err) == KG_OK)
            fail_msg("%s=inf: not refused", kg_algo_key(i));
    }
}

static void a_kl_from_samples_is_known_as_one(void **state)
{
    static const struct {
        const char *preset, *key, *value;
        bool samples;
    } rows[] = {
        {"grpo", "kl.estimator", "k3", true},
        {"grpo", "kl.estimator", "exact-reverse", false},
        {"ema-pg", "kl.tail", "true", true},
        {"ema-pg", "kl.tail", "false", false},
        {"ema-pg", "kl.estimator", "truncated-reverse", false},
        {"ema-pg", "kl.estimator", "bucket-forward", false},
        {"reinforce++", "kl.beta", "0.1", false}, /* in the reward */
        {"dapo", "kl.beta", "0", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        load(rows[i].preset);
        must_set(&algo, rows[i].key, rows[i].value);
        assert_int_equal(kg_algo_kl_samples(&algo), rows[i].samples);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_refused_with_its_key_and_reason),
        cmocka_unit_test(reproduction_lets_through_what_misleads_and_nothing_else),
        cmocka_unit_test(numbers_that_are_none_are_refused),
        cmocka_unit_test(a_kl_from_samples_is_known_as_one),
    };

    return cmocka_run_group_tests_name("algo check", tests, NULL, NULL);
}
