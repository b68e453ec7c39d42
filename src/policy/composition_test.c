/* Every surrogate with every KL and every aggregation: refused with a reason, or finite
 * and the sum of its parts. */
#include "policy/policy_internal.h"
#include "policy/policy_testing.h"

enum { K = 4 };

static struct sweep sweep;
static int32_t ids[VOCAB * 2 * K];
static double at[VOCAB * 2 * K], anchor_at[VOCAB * 2 * K], mu_at[VOCAB * 2 * K];
static double a_at[VOCAB * 2 * K];
static uint8_t selected[VOCAB];

/* Columns of both kinds of head: the sampler's first, then the anchor's. */
static void both_heads(const struct world *w)
{
    int32_t sampler[VOCAB], anchor[VOCAB];

    largest(sampler, K, w->lo);
    largest(anchor, K, w->lq);
    for (int n = 0; n < VOCAB; n++)
        for (int j = 0; j < 2 * K; j++) {
            int32_t v = j < K ? sampler[j] : anchor[j - K];

            ids[n * 2 * K + j] = v;
            at[n * 2 * K + j] = w->lp[v];
            anchor_at[n * 2 * K + j] = w->lq[v];
            mu_at[n * 2 * K + j] = w->lo[v];
        }
    sweep.b.ids = ids, sweep.b.logp_at = at, sweep.b.anchor_at = anchor_at;
    sweep.b.mu_at = mu_at;
    sweep.b.k_sampler = sweep.b.k_anchor = K;
    sweep.g.a_at = a_at;
}

static void prepare(const struct world *w, const char *surrogate, const char *kl)
{
    sweep_init(&sweep, w);
    must_set(&sweep.algo, "algo.surrogate", surrogate);
    must_set(&sweep.algo, "kl.estimator", kl);
    must_set(&sweep.algo, "anchor.kind", strcmp(kl, "none") == 0 ? "none" : "fixed");
    sweep.algo.kl_beta = strcmp(kl, "none") == 0 ? 0 : 0.1;
    sweep.algo.kl_top_k = sweep.algo.top_k = K;
    sweep.algo.length_norm = 64;
    sweep.algo.dual_clip = 3;
    both_heads(w);
    sweep.b.mu_logp = w->lo;
    sweep.b.selected = selected;
    for (int v = 0; v < VOCAB; v++) {
        sweep.advantage[v] = v % 3 - 1;
        sweep.exact[v] = 0.3;
    }
}

static void weigh(bool pg, bool kl)
{
    static double weight[VOCAB];
    struct kg_policy_totals totals;
    struct kg_err err;

    kg_policy_totals(&totals, &sweep.algo, VOCAB, sweep.begin, NULL);
    assert_int_equal(kg_policy_weights_of(weight, &sweep.algo, &totals, VOCAB,
                                          sweep.begin, NULL, &err),
                     KG_OK);
    sweep.b.pg_weight = pg ? weight : sweep.zero;
    sweep.b.kl_weight = kl ? weight : sweep.zero;
}

struct result {
    double a[VOCAB], at[VOCAB * 2 * K], exact[VOCAB], loss;
};

static struct result evaluate(bool pg, bool kl)
{
    struct result r;
    struct kg_err err;

    weigh(pg, kl);
    if (kg_policy_loss(&sweep.g, &sweep.algo, &sweep.b, &err) != KG_OK)
        fail_msg("%s + %s: %s", sweep.algo.surrogate->about.name,
                 sweep.algo.kl->about.name, err.message);
    memcpy(r.a, sweep.a_logp, sizeof r.a);
    memcpy(r.at, a_at, sizeof r.at);
    memcpy(r.exact, sweep.a_exact, sizeof r.exact);
    r.loss = sweep.g.loss;
    return r;
}

static void parts_add_up(void)
{
    struct result both = evaluate(true, true), pg = evaluate(true, false);
    struct result kl = evaluate(false, true);

    assert_true(isfinite(both.loss));
    assert_near(both.loss, pg.loss + kl.loss, 1e-13);
    for (int n = 0; n < VOCAB; n++) {
        assert_near(both.a[n], pg.a[n] + kl.a[n], 1e-14);
        assert_near(both.exact[n], kl.exact[n], 0);
    }
    for (int n = 0; n < VOCAB * 2 * K; n++)
        assert_near(both.at[n], pg.at[n] + kl.at[n], 0);
}

static void every_composition_is_refused_or_the_sum_of_its_parts(void **state)
{
    struct kg_algo_setting setting = {
        .vocab = VOCAB,
        .samples = 4,
        .provides = KG_NEED_SELECTION | KG_NEED_EXACT_REVERSE | KG_NEED_EXACT_FORWARD};
    int ran = 0, refused = 0;

    (void)state;
    for (size_t i = 0; i < kg_policy_n_rows(KG_TABLE_SURROGATE); i++)
        for (size_t j = 0; j < kg_policy_n_rows(KG_TABLE_KL); j++)
            for (size_t m = 0; m < kg_policy_n_rows(KG_TABLE_AGGREGATE); m++) {
                struct world w = world_of(100 * i + j, true);
                struct kg_err err;

                selected[m] = 1;
                prepare(&w, kg_policy_row(KG_TABLE_SURROGATE, i)->name,
                        kg_policy_row(KG_TABLE_KL, j)->name);
                must_set(&sweep.algo, "algo.aggregate",
                         kg_policy_row(KG_TABLE_AGGREGATE, m)->name);
                if (kg_algo_check(&sweep.algo, &setting, &err) != KG_OK) {
                    assert_non_null(strchr(err.message, '.')); /* names a key */
                    refused++;
                    continue;
                }
                parts_add_up();
                ran++;
            }
    printf("    %d compositions ran, %d were refused\n", ran, refused);
    assert_true(ran > 500 && refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_composition_is_refused_or_the_sum_of_its_parts),
    };

    return cmocka_run_group_tests_name("policy/composition", tests, NULL, NULL);
}
