/* If any input that a row reads is NaN or infinite, the loss fails with ENONFINITE and
 * names sequence and token; it never returns a loss. */
#include "policy/policy_testing.h"

enum { TOKENS = 5, HALF = 2, WIDE = 2 * HALF, BAD = 3 };

static struct all {
    struct kg_algo algo;
    struct kg_policy_batch b;
    struct kg_policy_grad g;
    int64_t begin[3];
    int32_t tokens[TOKENS], ids[TOKENS * WIDE];
    uint8_t selected[TOKENS];
    double logp[TOKENS], old[TOKENS], mu[TOKENS], anchor[TOKENS], advantage[TOKENS];
    double entropy[TOKENS], exact[TOKENS], is_weight[TOKENS], weight[TOKENS];
    double kept[TOKENS], old_kept[TOKENS];
    double at[TOKENS * WIDE], anchor_at[TOKENS * WIDE], mu_at[TOKENS * WIDE];
    double a_logp[TOKENS], a_at[TOKENS * WIDE], a_entropy[TOKENS], a_exact[TOKENS];
    double a_kept[TOKENS], kl_term[TOKENS];
} x;

/* Every input that any row reads, all finite: 3 and 2 tokens, ids 0 1 | 2 3. */
static void everything(void)
{
    x = (struct all){.begin = {0, 3, TOKENS}};
    kg_algo_init(&x.algo);
    for (int n = 0; n < TOKENS; n++) {
        x.logp[n] = -1 - 0.1 * n, x.old[n] = -1.2, x.mu[n] = -1.1, x.anchor[n] = -1.5;
        x.advantage[n] = n % 2 ? 1 : -1, x.entropy[n] = 1, x.exact[n] = 0.1;
        x.is_weight[n] = x.weight[n] = 1, x.kept[n] = -0.1, x.old_kept[n] = -0.2;
        x.selected[n] = 1;
        for (int j = 0; j < WIDE; j++) {
            x.ids[n * WIDE + j] = j;
            x.at[n * WIDE + j] = -2, x.mu_at[n * WIDE + j] = -2.1;
            x.anchor_at[n * WIDE + j] = -1.9;
        }
        x.tokens[n] = n % 2 ? 0 : 7;
    }
    x.b = (struct kg_policy_batch){
        .n_seqs = 2,
        .n_tokens = TOKENS,
        .seq_begin = x.begin,
        .tokens = x.tokens,
        .logp = x.logp,
        .old_logp = x.old,
        .mu_logp = x.mu,
        .anchor_logp = x.anchor,
        .advantage = x.advantage,
        .entropy = x.entropy,
        .kl_exact = x.exact,
        .k_sampler = HALF,
        .k_anchor = HALF,
        .ids = x.ids,
        .logp_at = x.at,
        .anchor_at = x.anchor_at,
        .mu_at = x.mu_at,
        .log_kept = x.kept,
        .old_log_kept = x.old_kept,
        .pg_weight = x.weight,
        .kl_weight = x.weight,
        .entropy_weight = x.weight,
        .is_weight = x.is_weight,
        .selected = x.selected,
    };
    x.g = (struct kg_policy_grad){.a_logp = x.a_logp,
                                  .a_at = x.a_at,
                                  .a_entropy = x.a_entropy,
                                  .a_kl_exact = x.a_exact,
                                  .a_log_kept = x.a_kept,
                                  .kl_term = x.kl_term};
    must_set(&x.algo, "anchor.kind", "fixed");
    must_set(&x.algo, "kl.beta", "0.1");
    must_set(&x.algo, "kl.top_k", "2");
    must_set(&x.algo, "algo.top_k", "2");
    must_set(&x.algo, "algo.entropy_coef", "0.01");
}

static bool all_finite(void)
{
    double sum = x.g.loss;

    for (int n = 0; n < TOKENS; n++)
        sum += x.a_logp[n] + x.a_entropy[n] + x.a_exact[n] + x.a_kept[n];
    for (int j = 0; j < TOKENS * WIDE; j++)
        sum += x.a_at[j];
    return isfinite(sum);
}

/* Checks that the loss is finite; and with `bad` in *what, that it is refused, or has the
 * same bits.   returns whether it reads *what */
static bool reads(double *what, double bad, const char *name)
{
    struct kg_err err = {0};
    double loss, before = *what;
    kg_status status;

    if (kg_policy_loss(&x.g, &x.algo, &x.b, &err) != KG_OK)
        fail_msg("%s: %s", name, err.message);
    assert_true(all_finite());
    loss = x.g.loss;
    *what = bad;
    status = kg_policy_loss(&x.g, &x.algo, &x.b, &err);
    *what = before;
    if (status == KG_OK) {
        if (!all_finite() || memcmp(&loss, &x.g.loss, sizeof loss) != 0)
            fail_msg("%s: %g went through: loss %g, not %g", name, bad, x.g.loss, loss);
        return false;
    }
    if (status != KG_ENONFINITE || !strstr(err.message, "sequence 1, loss token 0"))
        fail_msg("%s: %s", name, err.message);
    return true;
}

static void every_row_of(enum kg_policy_table table, const char *key)
{
    static const struct {
        const char *name;
        double *at;
        bool always; /* every composition reads it */
    } inputs[] = {
        {"logp", &x.logp[BAD], true},
        {"old", &x.old[BAD], true},
        {"mu", &x.mu[BAD], true},
        {"advantage", &x.advantage[BAD], true},
        {"is_weight", &x.is_weight[BAD], true},
        {"entropy", &x.entropy[BAD], true},
        {"kept", &x.kept[BAD], true},
        {"old_kept", &x.old_kept[BAD], true},
        {"anchor", &x.anchor[BAD], false},
        {"exact", &x.exact[BAD], false},
        {"at (sampler's)", &x.at[BAD * WIDE], false},
        {"at (anchor's)", &x.at[BAD * WIDE + HALF], false},
        {"anchor_at (sampler's)", &x.anchor_at[BAD * WIDE], false},
        {"anchor_at (anchor's)", &x.anchor_at[BAD * WIDE + HALF], false},
        {"mu_at", &x.mu_at[BAD * WIDE], false},
    };
    const double bad[] = {NAN, INFINITY};

    for (size_t i = 0; i < kg_policy_n_rows(table); i++)
        for (size_t j = 0; j < sizeof inputs / sizeof inputs[0]; j++)
            for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
                const char *row = kg_policy_row(table, i)->name;
                char name[128];

                everything();
                must_set(&x.algo, key, row);
                snprintf(name, sizeof name, "%s, %s", row, inputs[j].name);
                if (!reads(inputs[j].at, bad[k], name) && inputs[j].always)
                    fail_msg("%s: %g is not looked at", name, bad[k]);
            }
}

static void no_kl_row_lets_one_through(void **state)
{
    (void)state;
    every_row_of(KG_TABLE_KL, "kl.estimator");
}

static void no_surrogate_lets_one_through(void **state)
{
    (void)state;
    every_row_of(KG_TABLE_SURROGATE, "algo.surrogate");
}

static void rows_read_what_they_need(void **state)
{
    (void)state;
    everything();
    must_set(&x.algo, "kl.estimator", "topk-reverse");
    assert_true(reads(&x.at[BAD * WIDE + 1], NAN, "topk-reverse"));
    assert_true(reads(&x.anchor_at[BAD * WIDE], NAN, "topk-reverse"));
    assert_true(reads(&x.anchor[BAD], NAN, "topk-reverse"));
    everything();
    must_set(&x.algo, "kl.estimator", "topk-forward");
    assert_true(reads(&x.at[BAD * WIDE + HALF], NAN, "topk-forward"));
    assert_true(reads(&x.anchor_at[BAD * WIDE + HALF], NAN, "topk-forward"));
    everything();
    must_set(&x.algo, "kl.estimator", "exact-reverse");
    assert_true(reads(&x.exact[BAD], NAN, "exact-reverse"));
    everything();
    must_set(&x.algo, "algo.surrogate", "dppo-topk-kl");
    assert_true(reads(&x.at[BAD * WIDE], NAN, "dppo-topk-kl"));
    assert_true(reads(&x.mu_at[BAD * WIDE], NAN, "dppo-topk-kl"));
    must_set(&x.algo, "algo.surrogate", "dppo-topk-tv");
    assert_true(reads(&x.at[BAD * WIDE], NAN, "dppo-topk-tv"));
    assert_true(reads(&x.mu_at[BAD * WIDE], NAN, "dppo-topk-tv"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_kl_row_lets_one_through),
        cmocka_unit_test(no_surrogate_lets_one_through),
        cmocka_unit_test(rows_read_what_they_need),
    };

    return cmocka_run_group_tests_name("non-finite", tests, NULL, NULL);
}
