/* The keys that rows say they read: changing a key changes the result of a row exactly if
 * the row lists it.
 */
#include "policy/policy_testing.h"

#include "base/need_testing.h"
#include "policy/shaping.h"

struct number {
    const char *key, *value; /* not the default */
};

/* Two completions of each of two prompts. Probabilities under the policy (p) are higher
 * or lower, little or much, than under the old policy or the anchor (q) and the sampler
 * (m). */
enum { S = 4, N = 8 };
static const int64_t groups[] = {0, 2, 4}, begin[] = {0, 3, 4, 6, N};
static const double p[N] = {0.8, 0.1, 0.9, 0.3, 0.5, 0.45, 0.2, 0.7};
static const double q[N] = {0.4, 0.5, 0.1, 0.29, 0.52, 0.75, 0.9, 0.2};
static const double m[N] = {0.4, 0.5, 0.1, 0.28, 0.52, 0.75, 0.9, 0.2};

struct terms {
    double a[VOCAB], b[VOCAB];
};

typedef void evaluate_fn(struct terms *t, const struct kg_algo *algo);

/* The term of a surrogate or a mask and its derivative, of tokens with either sign of the
 * advantage. */
static void surrogate(struct terms *t, const struct kg_algo *algo)
{
    static const double advantage[N] = {1, -1, -1, 1, -1, -0.5, 1, -2};
    static const double weight[N] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const int32_t tokens[N] = {0};
    uint8_t selected[N];
    double logp[N], old[N], mu[N], a_at[N];
    struct kg_policy_batch b = {.n_seqs = S,
                                .n_tokens = N,
                                .seq_begin = begin,
                                .tokens = tokens,
                                .logp = logp,
                                .old_logp = old,
                                .mu_logp = mu,
                                .advantage = advantage,
                                .k_sampler = 1,
                                .ids = tokens,
                                .logp_at = logp,
                                .mu_at = mu,
                                .pg_weight = weight};
    struct kg_policy_grad g = {.a_logp = t->a, .a_at = a_at, .pg_term = t->b};

    for (int i = 0; i < N; i++)
        logp[i] = log(p[i]), old[i] = log(q[i]), mu[i] = log(m[i]);
    if (kg_algo_needs(algo) & KG_NEED_SELECTION) {
        NEED(kg_policy_select(selected, algo, &b, err));
        b.selected = selected;
    }
    NEED(kg_policy_loss(&g, algo, &b, err));
}

static void advantage(struct terms *t, const struct kg_algo *algo)
{
    static const double reward[S] = {1, 0.25, 3, 0}, share[2] = {1, 0.5};
    static const double part[S * 2] = {1, 0, 0.25, 0.5, 3, 1, 0, 0.75};
    static const double value[N] = {0.1, 0.3, 0.2, 0.4, 0.7, 0.1, 0.6, 0.5};
    static const double logp[N] = {-0.1, -1, -2, -0.5, -0.3, -3, -1, -0.7};
    static const double sum_sq[N] = {0.9, 0.5, 0.3, 0.4, 0.8, 0.2, 0.5, 0.6};
    static const double per_token[N] = {0.1, 0, 0.3, 0, -0.2, 0, 0.4, 0};
    const struct kg_policy_scores in = {.n_seqs = S,
                                        .n_groups = 2,
                                        .reward = reward,
                                        .group_begin = groups,
                                        .seq_begin = begin,
                                        .token_reward = per_token,
                                        .n_parts = 2,
                                        .part = part,
                                        .part_weight = share,
                                        .greedy = reward,
                                        .value = value,
                                        .old_logp = logp,
                                        .sum_sq = sum_sq};
    double seq[S];
    struct kg_policy_advantage out = {.seq = seq, .token = t->a, .returns = t->b};

    NEED(kg_policy_advantages(&out, algo, &in, err));
}

static void aggregate(struct terms *t, const struct kg_algo *algo)
{
    struct kg_policy_totals totals;

    kg_policy_totals(&totals, algo, S, begin, NULL);
    NEED(kg_policy_weights_of(t->a, algo, &totals, S, begin, NULL, err));
}

/* The KL subtracted from rewards or advantages, and the mean that kl.target controls. */
static void place(struct terms *t, const struct kg_algo *chosen)
{
    struct kg_algo with_k1 = *chosen;
    const struct kg_algo *algo = &with_k1;
    struct kg_policy_taken taken;
    double logp[N], anchor[N];

    must_set(&with_k1, "kl.estimator", "k1");
    for (int i = 0; i < N; i++)
        logp[i] = log(p[i]), anchor[i] = log(q[i]);
    if (algo->kl_in->place == KG_PLACE_REWARD)
        NEED(kg_policy_kl_reward(t->a, t->b, algo, S, begin, logp, anchor, err));
    if (algo->kl_in->place != KG_PLACE_ADVANTAGE)
        return;
    NEED(kg_policy_kl_advantage(t->a, &taken, algo, S, begin, logp, anchor, err));
    t->b[0] = taken.mean_kl;
}

/* The steps after which the anchor is updated. */
static void anchor(struct terms *t, const struct kg_algo *algo)
{
    for (int i = 0; i < VOCAB; i++)
        t->a[i] = kg_policy_anchor_due(algo, i + 1);
}

/* Value and derivative of a KL over twelve ids with another model as the anchor; the head
 * has two ids, of the sampler or the anchor. Exact rows are given their KL. */
static void kl(struct terms *t, const struct kg_algo *algo)
{
    struct world w = world_of(11, true);
    struct sweep s;
    bool anchor_head = kg_algo_needs(algo) & KG_NEED_TOP_ANCHOR;

    sweep_init(&s, &w);
    s.algo = *algo;
    sweep_head(&s, &w, anchor_head, 2);
    s.algo.kl_beta = 1;
    sweep_run(&s, &w);
    memcpy(t->a, s.grad, sizeof t->a);
    memcpy(t->b, s.kl_term, sizeof t->b);
}

enum { NUMBERS = 26 };
static const struct asked {
    enum kg_policy_table table;
    evaluate_fn *evaluate;
    struct number numbers[NUMBERS]; /* the last one has no key */
} asked[] = {
    {KG_TABLE_SURROGATE,
     surrogate,
     {{"algo.clip_low", "0.9"},        {"algo.clip_high", "3"},
      {"algo.dual_clip", "1.5"},       {"algo.ratio_clamp", "0.1"},
      {"algo.truncate", "1.2"},        {"algo.delta_low", "0.85"},
      {"algo.delta_high", "0.85"},     {"algo.tau_pos", "3"},
      {"algo.tau_neg", "3"},           {"algo.cov_ratio", "1"},
      {"algo.cov_low", "9.5"},         {"algo.cov_high", "-9.5"},
      {"algo.cov_coef", "3"},          {"algo.m2_budget", "0.5"},
      {"algo.prefix_weight", "0.001"}, {"algo.prefix_budget", "1"},
      {"algo.vespo_k_pos", "1"},       {"algo.vespo_k_neg", "1"},
      {"algo.vespo_lambda_pos", "1"},  {"algo.vespo_lambda_neg", "1"},
      {"algo.rpg_detach", "false"},    {"algo.count_eps", "1e-3"},
      {"algo.gamma", "0.5"},           {"algo.std_eps", "0.1"}}},
    {KG_TABLE_ADVANTAGE,
     advantage,
     {{"algo.gamma", "0.5"},
      {"algo.lambda", "0.5"},
      {"algo.gpg_norm", "3"},
      {"algo.std_eps", "0.1"},
      {"algo.count_eps", "1e-3"},
      {"algo.clip_low", "0.9"}}},
    {KG_TABLE_AGGREGATE,
     aggregate,
     {{"algo.length_norm", "5"}, {"algo.count_eps", "1e-3"}, {"algo.std_eps", "0.1"}}},
    {KG_TABLE_MASK, surrogate, {{"algo.mask_delta", "0.5"}}},
    {KG_TABLE_PLACE, place, {{"algo.count_eps", "1e-3"}}},
    {KG_TABLE_KL, kl, {{"kl.tail", "false"}, {"kl.gradient", "published"}}},
    {KG_TABLE_ANCHOR, anchor, {{"anchor.period", "5"}}},
};

/* Keys that count columns, and those that the training step reads. */
static const char *const asked_elsewhere[] = {
    "algo.top_k",  "kl.top_k",     /* src/policy/loss.c */
    "anchor.eta",  "anchor.kappa", /* src/train/step/anchor.c */
    "anchor.unit",
};

/* With each row of the table, the key has an effect exactly if the row lists it. */
static void check(const struct asked *of, const struct number *n)
{
    const char *table = kg_policy_table_key(of->table);
    const struct kg_policy_about *row;

    for (size_t i = 0; (row = kg_policy_row(of->table, i)); i++) {
        struct terms before = {0}, after = {0};
        struct kg_algo algo;
        bool acts;

        kg_algo_init(&algo);
        algo.top_k = 1;
        algo.kl_beta = 0.1;
        algo.length_norm = 7;
        algo.cov_ratio = 0.13;
        algo.cov_low = -10;
        algo.cov_high = 10;
        algo.delta_low = algo.delta_high = 0.25;
        algo.prefix_budget = 0;
        must_set(&algo, "anchor.kind", "fixed");
        must_set(&algo, table, row->name);
        of->evaluate(&before, &algo);
        must_set(&algo, n->key, n->value);
        of->evaluate(&after, &algo);
        acts = memcmp(&before, &after, sizeof before) != 0;
        if (acts != kg_policy_reads(row, n->key))
            fail_msg("%s %s, %s: it %s", table, row->name, n->key,
                     acts ? "acts, and the row does not list it"
                          : "does nothing, and the row lists it");
    }
}

static void rows_read_what_they_list(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        for (const struct number *n = asked[i].numbers; n->key; n++)
            check(&asked[i], n);
}

static bool is_asked(const char *key)
{
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        for (const struct number *n = asked[i].numbers; n->key; n++)
            if (strcmp(n->key, key) == 0)
                return true;
    for (size_t i = 0; i < sizeof asked_elsewhere / sizeof *asked_elsewhere; i++)
        if (strcmp(asked_elsewhere[i], key) == 0)
            return true;
    return false;
}

static void every_key_that_is_read_is_asked_for(void **state)
{
    (void)state;
    for (size_t k = 0; k < kg_algo_n_keys(); k++)
        if (kg_policy_is_read(kg_algo_key(k)) && !is_asked(kg_algo_key(k)))
            fail_msg("%s: a row lists it, and no list above has it", kg_algo_key(k));
}

/* Every key in a list exists. */
static void what_is_listed_is_a_key(void **state)
{
    const struct kg_policy_about *row;

    (void)state;
    for (int t = 0; t < KG_TABLE_COUNT; t++)
        for (size_t i = 0; (row = kg_policy_row((enum kg_policy_table)t, i)); i++) {
            size_t listed = 0, found = 0;

            for (const char *c = row->reads; c && *c; c++)
                listed += *c == ' ' || c == row->reads;
            for (size_t k = 0; k < kg_algo_n_keys(); k++)
                found += kg_policy_reads(row, kg_algo_key(k));
            if (listed != found)
                fail_msg("%s %s lists '%s': %zu keys, of which there are %zu",
                         kg_policy_table_key((enum kg_policy_table)t), row->name,
                         row->reads, listed, found);
        }
    assert_true(kg_policy_is_read("algo.cov_low"));
    assert_false(kg_policy_is_read("kl.beta"));
    assert_false(kg_policy_is_read("algo.clip"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_read_what_they_list),
        cmocka_unit_test(every_key_that_is_read_is_asked_for),
        cmocka_unit_test(what_is_listed_is_a_key),
    };

    return cmocka_run_group_tests_name("reads", tests, NULL, NULL);
}
