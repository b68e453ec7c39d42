/* The KL subtracted from advantages: by hand; and, by enumeration of a tree of
 * completions, its gradient. That is the gradient of the KL of every token at a fixed
 * context or, if a token also pays for later ones, of the KL of whole completions. */
#include "policy/shaping.h"
#include "policy/tree_testing.h"

enum { S = 3, N = 6, SEEDS = 5 };
static const double beta = 0.25;

static const int64_t begin[] = {0, 3, 3, 6}; /* the second has no token */
static const double old_logp[N] = {-1, -2, -0.5, -3, -0.25, -1.5};
static const double anchor_logp[N] = {-1.5, -1, -0.5, -2, -2.25, -0.5};
static struct kg_algo algo;

static void choose(const char *estimator, const char *place)
{
    kg_algo_init(&algo);
    must_set(&algo, "kl.estimator", estimator);
    must_set(&algo, "anchor.kind", "fixed");
    must_set(&algo, "kl.in", place);
    algo.kl_beta = beta;
}

static struct kg_policy_taken take_off(double *advantage, int64_t n_seqs,
                                       const int64_t *at, const double *old,
                                       const double *anchor)
{
    struct kg_policy_taken taken;
    struct kg_err err;

    if (kg_policy_kl_advantage(advantage, &taken, &algo, n_seqs, at, old, anchor, &err) !=
        KG_OK)
        fail_msg("%s", err.message);
    return taken;
}

/* ---- by hand ---- */

static void a_token_pays_for_itself_or_for_all_that_follow(void **state)
{
    static const double d[N] = {0.5, -1, 0, -1, 2, -1};
    static const double later[N] = {-0.5, -1, 0, 0, 1, -1};
    static const char *const places[] = {"advantage", "advantage-future"};

    (void)state;
    for (int k = 0; k < 2; k++) {
        double a[N] = {1, 1, 1, -2, -2, -2};
        struct kg_policy_taken taken;

        choose("k1", places[k]);
        taken = take_off(a, S, begin, old_logp, anchor_logp);
        for (int n = 0; n < N; n++)
            assert_near(a[n], (n < 3 ? 1 : -2) - beta * (k ? later : d)[n], 1e-15);
        assert_near(taken.mean_kl, ((0.5 - 1) / 3 + (-1 + 2 - 1) / 3.0) / 2, 1e-15);
        assert_near(taken.most, beta * (k ? 1 : 2), 1e-15);
        taken = take_off(a, 0, begin, old_logp, anchor_logp);
        assert_near(taken.mean_kl, 0, 0);
    }
}

static void what_is_not_finite_is_refused_and_named(void **state)
{
    double a[N] = {0}, broken[N];
    struct kg_policy_taken taken;
    struct kg_err err;

    (void)state;
    memcpy(broken, anchor_logp, sizeof broken);
    broken[4] = -INFINITY;
    choose("k1", "advantage-future");
    assert_int_equal(
        kg_policy_kl_advantage(a, &taken, &algo, S, begin, old_logp, broken, &err),
        KG_ENONFINITE);
    assert_non_null(strstr(err.message, "KL in the advantage: sequence 2, token 1"));
    choose("exact-reverse", "advantage");
    assert_int_equal(
        kg_policy_kl_advantage(a, &taken, &algo, S, begin, old_logp, anchor_logp, &err),
        KG_EINVAL);
    assert_non_null(strstr(err.message, "the advantage needs an estimator that reads"));
}

/* ---- by enumeration ---- */

/* Every completion once, weighted by its probability; advantages hold only the KL. */
static void expected_gradient(double gradient[CONTEXTS][BRANCH], struct tree *w)
{
    int64_t at[PATHS + 1] = {0}, n = 0;
    double lp[2 * PATHS], lq[2 * PATHS], advantage[2 * PATHS] = {0}, weight[2 * PATHS];
    double a[2 * PATHS];
    struct kg_policy_batch b = {.n_seqs = PATHS,
                                .seq_begin = at,
                                .logp = lp,
                                .old_logp = lp,
                                .advantage = advantage,
                                .pg_weight = weight};
    struct kg_policy_grad g = {.a_logp = a};
    struct kg_err err;

    for (int i = 0; i < PATHS; i++) {
        for (int t = 0; t < path_length(i); t++, n++) {
            lp[n] = w->lp[path_context(i, t)][path_token(i, t)];
            lq[n] = w->lq[path_context(i, t)][path_token(i, t)];
            weight[n] = exp(path_logp(w->lp, i));
        }
        at[i + 1] = n;
    }
    b.n_tokens = n;
    (void)take_off(advantage, PATHS, at, lp, lq);
    if (kg_policy_loss(&g, &algo, &b, &err) != KG_OK)
        fail_msg("%s", err.message);
    memset(gradient, 0, sizeof(double[CONTEXTS][BRANCH]));
    for (int i = 0; i < PATHS; i++)
        for (int t = 0; t < path_length(i); t++)
            add_score(gradient, w, path_context(i, t), path_token(i, t), a[at[i] + t]);
}

/* beta grad KL(p||q) over whole completions. */
static void of_answers(double gradient[CONTEXTS][BRANCH], struct tree *w)
{
    memset(gradient, 0, sizeof(double[CONTEXTS][BRANCH]));
    for (int i = 0; i < PATHS; i++) {
        double lp = path_logp(w->lp, i), c = beta * exp(lp) * (lp - path_logp(w->lq, i));

        for (int t = 0; t < path_length(i); t++)
            add_score(gradient, w, path_context(i, t), path_token(i, t), c);
    }
}

/* beta sum_h P(h) grad KL_h, with fixed contexts. */
static void of_tokens(double gradient[CONTEXTS][BRANCH], struct tree *w)
{
    memset(gradient, 0, sizeof(double[CONTEXTS][BRANCH]));
    for (int h = 0; h < CONTEXTS; h++)
        for (int v = 0; v < BRANCH; v++) {
            double reach = h == 0 ? 1 : exp(w->lp[0][h]);
            double d = w->lp[h][v] - w->lq[h][v];

            add_score(gradient, w, h, v, beta * reach * exp(w->lp[h][v]) * d);
        }
}

static void the_gradient_is_that_of_tokens_or_of_answers(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct tree w = tree_of(seed, 0);
        double found[CONTEXTS][BRANCH], answers[CONTEXTS][BRANCH];
        double tokens[CONTEXTS][BRANCH];

        of_answers(answers, &w);
        of_tokens(tokens, &w);
        choose("k1", "advantage");
        must_set(&algo, "algo.surrogate", "reinforce");
        expected_gradient(found, &w);
        assert_true(tree_gap(found, tokens) < 1e-12);
        assert_true(tree_gap(found, answers) > 1e-2);
        must_set(&algo, "kl.in", "advantage-future");
        expected_gradient(found, &w);
        assert_true(tree_gap(found, answers) < 1e-12);
        assert_true(tree_gap(found, tokens) > 1e-2);
    }
}

/* ---- with other choices ---- */

static void refuse(const char *key, const char *value, const char *says)
{
    struct kg_algo_setting setting = {.vocab = 100, .samples = 4, .provides = ~0u};
    struct kg_err err = {0};

    choose("k1", "advantage-future");
    must_set(&algo, key, value);
    if (kg_algo_check(&algo, &setting, &err) == KG_OK || !strstr(err.message, says))
        fail_msg("%s=%s: '%s' does not say '%s'", key, value, err.message, says);
}

static void what_it_cannot_stand_beside_is_refused(void **state)
{
    struct kg_algo_setting setting = {
        .vocab = 100, .samples = 4, .off_policy = true, .provides = ~0u};
    struct kg_err err;

    (void)state;
    refuse("kl.estimator", "topk-reverse", "the advantage-future needs an estimator");
    refuse("kl.estimator", "exact-forward", "only the sampled token");
    refuse("anchor.kind", "iterative", "the advantage-future would not change");
    refuse("algo.surrogate", "none", "expected a kl.estimator in the loss");
    choose("k1", "advantage-future");
    must_set(&algo, "algo.surrogate", "gmpo");
    must_set(&algo, "algo.mask", "off-policy");
    algo.mask_delta = 0.1;
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "found grpo and kl.in advantage-future"));
    choose("k1", "advantage"); /* gdpo allows only rewards, which this is not */
    must_set(&algo, "algo.advantage", "gdpo");
    assert_int_equal(kg_algo_check(&algo, &setting, &err), KG_OK);
    assert_true(kg_algo_kl_taken(&algo) && !kg_algo_kl_in_loss(&algo));
    assert_true(kg_algo_needs(&algo) & KG_NEED_ANCHOR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_pays_for_itself_or_for_all_that_follow),
        cmocka_unit_test(what_is_not_finite_is_refused_and_named),
        cmocka_unit_test(the_gradient_is_that_of_tokens_or_of_answers),
        cmocka_unit_test(what_it_cannot_stand_beside_is_refused),
    };

    return cmocka_run_group_tests_name("policy/place", tests, NULL, NULL);
}
