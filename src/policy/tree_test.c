/* Is the expected gradient of every KL estimator x aggregation x filter that of the exact
 * KL, over completions whose length is sampled? All batches of 2 completions are
 * enumerated (of 4 if the bias is claimed to fade, and if dynamic sampling refills),
 * under the policy itself and under another sampler. The result must be what
 * kg_policy_average says.
 */
#include "policy/policy_internal.h"
#include "policy/tree_testing.h"

enum { MOST = 4, SEEDS = 2, K = 1 };

static const double exactly = 1e-10, apart = 1e-3;

/* One combination. */
struct trial {
    struct kg_algo algo;
    enum kg_policy_filter filter;
    struct tree w;
    double found[CONTEXTS][BRANCH]; /* expected gradient */
    double weight[CONTEXTS];        /* expected weight of a context */
};

/* A batch: completions one after the other. */
struct batch {
    int n, path[MOST], token[2 * MOST], context[2 * MOST];
    double probability;
    int64_t begin[MOST + 1];
    uint8_t drop[MOST];
    int32_t tokens[2 * MOST], ids[2 * MOST * K];
    double logp[2 * MOST], old[2 * MOST], anchor[2 * MOST], exact[2 * MOST];
    double at[2 * MOST * K], anchor_at[2 * MOST * K];
    double zero[2 * MOST], weight[2 * MOST];
    double a[2 * MOST], a_at[2 * MOST * K], a_exact[2 * MOST];
};

static double divergence(const double *la, const double *lb)
{
    double sum = 0;

    for (int v = 0; v < BRANCH; v++)
        sum += exp(la[v]) * (la[v] - lb[v]);
    return sum;
}

/* ---- a batch ---- */

static void add_token(struct batch *b, const struct trial *x, int path, int t)
{
    int64_t n = b->begin[b->n + 1]++;
    int h = path_context(path, t), v = path_token(path, t), top = 0;
    bool forward = x->algo.kl->forward;
    const double *by = kg_kl_anchor_head(x->algo.kl) ? x->w.lq[h] : x->w.lo[h];

    for (int u = 1; u < BRANCH; u++)
        top = by[u] > by[top] ? u : top;
    b->token[n] = b->tokens[n] = v;
    b->context[n] = h;
    b->logp[n] = x->w.lp[h][v];
    b->old[n] = x->w.lo[h][v];
    b->anchor[n] = x->w.lq[h][v];
    b->exact[n] = forward ? divergence(x->w.lq[h], x->w.lp[h])
                          : divergence(x->w.lp[h], x->w.lq[h]);
    b->ids[n] = top;
    b->at[n] = x->w.lp[h][top];
    b->anchor_at[n] = x->w.lq[h][top];
}

static double reward_of(int path) { return path == 2 || path == 3 || path == 6; }

/* Marks what the filter drops from groups of two. */
static void filter(struct batch *b, const struct trial *x)
{
    for (int i = 0; i < b->n; i++) {
        int other = b->path[i ^ 1];

        if (x->filter == KG_FILTER_DYNAMIC)
            b->drop[i] = reward_of(b->path[i]) == reward_of(other);
        if (x->filter == KG_FILTER_TRUNCATED)
            b->drop[i] = path_is_cut(b->path[i]);
    }
}

/* Batch number `index` of PATHS^n. */
static struct batch batch_of(struct trial *x, int index, int n)
{
    struct batch b = {.probability = 1};

    for (int i = 0; i < n; i++, index /= PATHS) {
        int path = index % PATHS;

        b.path[i] = path;
        b.begin[i + 1] = b.begin[i];
        for (int t = 0; t < path_length(path); t++)
            add_token(&b, x, path, t);
        b.probability *= exp(path_logp(x->w.lo, path));
        b.n++;
    }
    filter(&b, x);
    return b;
}

static void weigh(struct batch *b, const struct trial *x)
{
    struct kg_policy_shape shape = {b->n, b->begin, b->drop};
    struct kg_policy_weights w = {b->zero, b->weight, NULL};
    struct kg_err err;

    if (kg_policy_weights(&w, &x->algo, &shape, &err) != KG_OK)
        fail_msg("%s", err.message);
    memset(b->zero, 0, sizeof b->zero); /* only the KL */
}

/* The gradient of the exact KL of the row's target in a context. */
static void exact_gradient(double *g, const struct trial *x, int h)
{
    enum kg_target target = x->algo.kl->claims.target;
    const double *lp = x->w.lp[h], *lq = x->w.lq[h];
    double share = target == KG_TARGET_JEFFREYS ? 0.5 : target == KG_TARGET_REVERSE;

    for (int v = 0; v < BRANCH; v++)
        g[v] = share * exp(lp[v]) * (lp[v] - lq[v] - divergence(lp, lq)) +
               (1 - share) * (exp(lp[v]) - exp(lq[v]));
}

static void gather(struct trial *x, const struct batch *b)
{
    for (int64_t n = 0; n < b->begin[b->n]; n++) {
        int h = b->context[n];
        double g[BRANCH];

        add_score(x->found, &x->w, h, b->token[n], b->probability * b->a[n]);
        add_score(x->found, &x->w, h, b->ids[n], b->probability * b->a_at[n]);
        exact_gradient(g, x, h);
        for (int v = 0; v < BRANCH; v++)
            x->found[h][v] += b->probability * b->a_exact[n] * g[v];
        x->weight[h] += b->probability * b->weight[n];
    }
}

static void run_batch(struct trial *x, int index, int n)
{
    struct batch b = batch_of(x, index, n);
    bool sampler = x->algo.kl->about.needs & KG_NEED_TOP_SAMPLER;
    struct kg_policy_batch in = {.n_seqs = b.n,
                                 .n_tokens = b.begin[b.n],
                                 .seq_begin = b.begin,
                                 .tokens = b.tokens,
                                 .logp = b.logp,
                                 .old_logp = b.old,
                                 .anchor_logp = b.anchor,
                                 .advantage = b.zero,
                                 .kl_exact = b.exact,
                                 .k_sampler = sampler ? K : 0,
                                 .k_anchor = sampler ? 0 : K,
                                 .ids = b.ids,
                                 .logp_at = b.at,
                                 .anchor_at = b.anchor_at,
                                 .pg_weight = b.zero,
                                 .kl_weight = b.weight};
    struct kg_policy_grad g = {.a_logp = b.a, .a_at = b.a_at, .a_kl_exact = b.a_exact};
    struct kg_err err;

    weigh(&b, x);
    if (kg_policy_loss(&g, &x->algo, &in, &err) != KG_OK)
        fail_msg("%s: %s", x->algo.kl->about.name, err.message);
    gather(x, &b);
}

/* ---- a combination ---- */

/* Does dynamic sampling take another group after this one, batch number index of 2
 * completions? After two it stops in any case. */
static bool goes_on(int index)
{
    return reward_of(index % PATHS) == reward_of(index / PATHS % PATHS);
}

/* Every batch of n completions; with refilling, only those that it leads to. */
static void all_batches(struct trial *x, int n)
{
    int batches = 1;

    for (int i = 0; i < n; i++)
        batches *= PATHS;
    for (int i = 0; i < batches; i++)
        if (x->filter != KG_FILTER_REFILL || goes_on(i) == (n == MOST))
            run_batch(x, i, n);
}

/* How far the expected gradient is from the exact one, over all batches of n
 * completions. */
static double deviation(struct trial *x, int n)
{
    double want[CONTEXTS][BRANCH];

    memset(x->found, 0, sizeof x->found);
    memset(x->weight, 0, sizeof x->weight);
    all_batches(x, n);
    if (x->filter == KG_FILTER_REFILL)
        all_batches(x, MOST);
    for (int h = 0; h < CONTEXTS; h++) {
        exact_gradient(want[h], x, h);
        for (int v = 0; v < BRANCH; v++)
            want[h][v] *= x->weight[h];
    }
    return tree_gap(x->found, want);
}

static void prepare(struct trial *x, const struct kg_kl_row *kl, bool published,
                    size_t aggregate, enum kg_policy_filter which)
{
    memset(x, 0, sizeof *x);
    kg_algo_init(&x->algo);
    x->algo.kl = kl;
    must_set(&x->algo, "anchor.kind", "fixed");
    must_set(&x->algo, "algo.aggregate",
             kg_policy_row(KG_TABLE_AGGREGATE, aggregate)->name);
    x->algo.kl_beta = 1;
    x->algo.kl_top_k = K;
    x->algo.length_norm = 2;
    x->algo.kl_corrected = !published;
    x->algo.kl_after_filter = true;
    x->filter = which;
}

/* If a row is a KL to the sampling policy only, that policy is the anchor. */
static void grow(struct trial *x, uint64_t seed, bool off_policy)
{
    bool at_sampler = x->algo.kl->iterative;

    x->w = tree_of(seed, off_policy || at_sampler ? 0.5 : 0);
    if (at_sampler)
        memcpy(x->w.lq, x->w.lo, sizeof x->w.lq);
}

static void check(struct trial *x, enum kg_average said, const char *where)
{
    double fewest = INFINITY, most = 0;

    for (int i = 0; i < 2 * SEEDS; i++) {
        double d;

        grow(x, (uint64_t)i / 2, i % 2);
        d = deviation(x, 2);
        most = fmax(most, d);
        if (said == KG_AVERAGE_FADES && x->filter == KG_FILTER_NONE)
            fewest = fmin(fewest, d / deviation(x, MOST));
    }
    if (said == KG_AVERAGE_UNBIASED ? most > exactly : most < apart)
        fail_msg("%s: said to be %s, found %g off", where,
                 said == KG_AVERAGE_UNBIASED ? "unbiased" : "biased", most);
    if (said != KG_AVERAGE_UNBIASED && strncmp(where, "k4,", 3) == 0)
        printf("    %-40s %2.0f %% off\n", where, 100 * most);
    if (said == KG_AVERAGE_FADES && !(fewest > 1.6))
        fail_msg("%s: said to fade, but 4 answers are only %g times better than 2", where,
                 fewest);
}

static void check_row(const struct kg_kl_row *kl, size_t i, bool published)
{
    for (size_t m = 0; m < kg_policy_n_rows(KG_TABLE_AGGREGATE); m++)
        for (int f = 0; f < KG_FILTER_COUNT; f++) {
            enum kg_policy_filter which = (enum kg_policy_filter)f;
            struct trial x;
            char where[160];

            snprintf(where, sizeof where, "%s%s, %s, filter %d", kl->about.name,
                     published ? " published" : "",
                     kg_policy_row(KG_TABLE_AGGREGATE, m)->name, f);
            prepare(&x, kl, published, m, which);
            check(&x, kg_policy_average(i, published, m, which), where);
        }
}

static const struct kg_kl_row *row_at(size_t i)
{
    struct kg_policy_rows table = kg_kl_rows();

    return (const void *)((const char *)table.rows + i * table.stride);
}

static void every_combination_is_as_unbiased_as_it_is_said_to_be(void **state)
{
    (void)state;
    for (size_t i = 0; i < kg_policy_n_rows(KG_TABLE_KL); i++) {
        if (row_at(i)->claims.target == KG_TARGET_NONE)
            continue;
        check_row(row_at(i), i, false);
        if (row_at(i)->about.needs & (KG_NEED_TOP_SAMPLER | KG_NEED_TOP_ANCHOR))
            check_row(row_at(i), i, true);
    }
}

/* Without kl.after_filter, the KL is that of all completions, before filters. */
static void the_kl_is_computed_before_the_filters(void **state)
{
    (void)state;
    for (size_t i = 0; i < kg_policy_n_rows(KG_TABLE_KL); i++)
        for (size_t m = 0; m < kg_policy_n_rows(KG_TABLE_AGGREGATE); m++)
            for (int f = KG_FILTER_DYNAMIC; f < KG_FILTER_COUNT; f++) {
                struct trial with, without;

                if (row_at(i)->about.needs == 0)
                    continue;
                prepare(&with, row_at(i), false, m, (enum kg_policy_filter)f);
                prepare(&without, row_at(i), false, m, KG_FILTER_NONE);
                with.algo.kl_after_filter = false;
                grow(&with, 3, true);
                grow(&without, 3, true);
                deviation(&with, 2);
                deviation(&without, 2);
                assert_memory_equal(with.found, without.found, sizeof with.found);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_is_as_unbiased_as_it_is_said_to_be),
        cmocka_unit_test(the_kl_is_computed_before_the_filters),
    };

    return cmocka_run_group_tests_name("policy/tree", tests, NULL, NULL);
}
