/* RPG over whole completions. With the ratio of the whole completion, its gradient is
 * that of the objective. With the ratio of each token, as everywhere in practice, it is
 * not; the deviation is printed.
 */
#include "policy/tree_testing.h"

enum { SEEDS = 400 };
static const double beta = 0.3;

static const struct row {
    const char *name;
    bool forward; /* its KL is KL(old||p) */
} rows[] = {
    {"rpg-fkl", true},
    {"rpg-ufkl", true},
    {"rpg-rkl", false},
    {"rpg-urkl", false},
    {"rpg-reinforce-fkl", true},
    {"rpg-reinforce-ufkl", true},
    {"rpg-reinforce-rkl", false},
    {"rpg-reinforce-urkl", false},
};

static struct kg_algo algo;
static double reward[PATHS];

static void choose(const char *row, uint64_t seed)
{
    double z[VOCAB];

    kg_algo_init(&algo);
    must_set(&algo, "algo.surrogate", row);
    algo.clip_low = 1, algo.clip_high = 1e9, algo.dual_clip = 0;
    algo.kl_beta = beta;
    algo.rpg_detach = seed % 2;
    normals(z, seed, 99, 1);
    for (int i = 0; i < PATHS; i++)
        reward[i] = z[i];
}

/* -grad J, J = E_p[R] - beta D over whole completions, D = KL(p||old) or KL(old||p). */
static void objective(double gradient[CONTEXTS][BRANCH], struct tree *w, bool forward)
{
    memset(gradient, 0, sizeof(double[CONTEXTS][BRANCH]));
    for (int i = 0; i < PATHS; i++) {
        double lp = path_logp(w->lp, i), lo = path_logp(w->lo, i);
        double c = -exp(lp) * reward[i];

        c += forward ? -beta * exp(lo) : beta * exp(lp) * (lp - lo);
        for (int t = 0; t < path_length(i); t++)
            add_score(gradient, w, path_context(i, t), path_token(i, t), c);
    }
}

/* Every completion once, weighted by its probability under the sampler. */
struct answers {
    int64_t n, begin[PATHS + 1];
    int path[2 * PATHS];
    double logp[2 * PATHS], old[2 * PATHS], advantage[2 * PATHS], weight[2 * PATHS];
    double a[2 * PATHS];
};

static void push(struct answers *x, int path, double logp, double old, double weight)
{
    x->path[x->n] = path;
    x->logp[x->n] = logp;
    x->old[x->n] = old;
    x->advantage[x->n] = reward[path];
    x->weight[x->n++] = weight;
}

static void loss(struct answers *x)
{
    struct kg_policy_batch b = {.n_seqs = PATHS,
                                .n_tokens = x->n,
                                .seq_begin = x->begin,
                                .logp = x->logp,
                                .old_logp = x->old,
                                .advantage = x->advantage,
                                .pg_weight = x->weight};
    struct kg_policy_grad g = {.a_logp = x->a};
    struct kg_err err;

    if (kg_policy_loss(&g, &algo, &b, &err) != KG_OK)
        fail_msg("%s: %s", kg_algo_row_name(&algo, KG_TABLE_SURROGATE), err.message);
}

/* A completion is one term with the ratio of all its tokens. */
static void whole_answers(double gradient[CONTEXTS][BRANCH], struct tree *w)
{
    struct answers x = {0};

    memset(gradient, 0, sizeof(double[CONTEXTS][BRANCH]));
    for (int i = 0; i < PATHS; i++) {
        double lo = path_logp(w->lo, i);

        push(&x, i, path_logp(w->lp, i), lo, exp(lo));
        x.begin[i + 1] = x.n;
    }
    loss(&x);
    for (int i = 0; i < PATHS; i++)
        for (int t = 0; t < path_length(i); t++)
            add_score(gradient, w, path_context(i, t), path_token(i, t), x.a[i]);
}

/* A token is one term with its own ratio. */
static void single_tokens(double gradient[CONTEXTS][BRANCH], struct tree *w)
{
    struct answers x = {0};

    memset(gradient, 0, sizeof(double[CONTEXTS][BRANCH]));
    for (int i = 0; i < PATHS; i++) {
        for (int t = 0; t < path_length(i); t++) {
            int h = path_context(i, t), v = path_token(i, t);

            push(&x, i, w->lp[h][v], w->lo[h][v], exp(path_logp(w->lo, i)));
        }
        x.begin[i + 1] = x.n;
    }
    loss(&x);
    for (int64_t n = 0; n < x.n; n++) {
        int i = x.path[n], t = (int)(n - x.begin[i]);

        add_score(gradient, w, path_context(i, t), path_token(i, t), x.a[n]);
    }
}

static void the_ratio_of_the_whole_answer_makes_rpg_exact(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct tree w = tree_of(seed, 0.5);
            double want[CONTEXTS][BRANCH], found[CONTEXTS][BRANCH];

            choose(rows[r].name, seed);
            objective(want, &w, rows[r].forward);
            whole_answers(found, &w);
            assert_near(tree_gap(found, want), 0, 1e-10);
        }
}

static void the_ratio_of_each_token_does_not(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        double sum = 0, most = 0;

        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct tree w = tree_of(seed, 0.5);
            double want[CONTEXTS][BRANCH], found[CONTEXTS][BRANCH];

            choose(rows[r].name, seed);
            objective(want, &w, rows[r].forward);
            single_tokens(found, &w);
            sum += tree_gap(found, want) / SEEDS;
            most = fmax(most, tree_gap(found, want));
        }
        printf("    %-18s ratio of each token: %.0f %% off -grad J (at most %.0f %%)\n",
               rows[r].name, 100 * sum, 100 * most);
        assert_true(sum > 0.05 && sum < 1);
    }
}

/* On-policy every ratio is 1, and the gradient is that of the return (the KL's is 0). */
static void on_policy_both_are_exact(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct tree w = tree_of(7, 0);
        double want[CONTEXTS][BRANCH], found[CONTEXTS][BRANCH];

        choose(rows[r].name, 7);
        objective(want, &w, rows[r].forward);
        single_tokens(found, &w);
        assert_near(tree_gap(found, want), 0, 1e-10);
        whole_answers(found, &w);
        assert_near(tree_gap(found, want), 0, 1e-10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ratio_of_the_whole_answer_makes_rpg_exact),
        cmocka_unit_test(the_ratio_of_each_token_does_not),
        cmocka_unit_test(on_policy_both_are_exact),
    };

    return cmocka_run_group_tests_name("policy/rpg_tree", tests, NULL, NULL);
}
