/* Families kl_sampled, kl_topk, kl_full: KL terms as functions of two rows of logits,
 * without ratio and weights. They read the sampled token, the likeliest tokens with the
 * rest as one event, or all. Means are over the mask, with the authors' epsilon in the
 * denominator where they have one. */
#include "lab/golden/golden_internal.h"

#include <string.h>

/* Masked means, with the published eps if the case names it. */
static kg_status reduction(struct kg_golden_batch *e, struct kg_err *err)
{
    const char *text;

    KG_TRY(kg_golden_text(&text, e->g, "reduce", err));
    if (strstr(text, "1e-8"))
        e->totals.tokens += 1e-8;
    return KG_OK;
}

kg_status kg_golden_kl_finish(struct kg_golden_batch *e, const char *per_token,
                              struct kg_err *err)
{
    KG_TRY(kg_golden_run(e, false, err));
    KG_TRY(kg_golden_expect(e->g, "kl_loss", e->grad.kl, err));
    KG_TRY(kg_golden_expect_tokens(e, "expected", per_token, e->grad.kl_term, 1, err));
    KG_TRY(kg_golden_expect_tokens(e, "expected", "log_prob", e->b.logp, 1, err));
    KG_TRY(kg_golden_expect_tokens(e, "grad", "log_prob", e->grad.a_logp, 1, err));
    KG_TRY(kg_golden_expect_tokens(e, "grad", "tail_log_prob", e->grad.a_logp, 1, err));
    KG_TRY(kg_golden_backward(e, 1, err));
    return kg_golden_expect_logits(e, err);
}

kg_status kg_golden_kl_sampled(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_golden_batch e, plain;
    bool weighted = kg_golden_at(g, "expected", "kl_token_iw") != NULL;

    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_golden_estimator(&e, "estimator", err));
    KG_TRY(kg_golden_importance(&e, err));
    e.algo.kl_beta = 1;
    KG_TRY(kg_golden_load(&e, 0, 0, err));
    KG_TRY(reduction(&e, err));
    plain = e;
    KG_TRY(kg_golden_kl_finish(&e, weighted ? "kl_token_iw" : "kl_token", err));
    plain.algo.kl_importance = false;
    KG_TRY(kg_golden_run(&plain, false, err));
    return kg_golden_expect_tokens(&plain, "expected", "kl_token", plain.grad.kl_term, 1,
                                   err);
}

static const struct kg_golden_name heads[] = {
    {"full_reverse", "topk-reverse"},     {"full_forward", "topk-forward"},
    {"bucket_reverse", "bucket-reverse"}, {"bucket_forward", "bucket-forward"},
    {"mopd", "generalised-reverse"},      {NULL, NULL}};

static kg_status direction(bool *forward, const struct kg_golden_case *g,
                           struct kg_err *err)
{
    static const struct kg_golden_name names[] = {
        {"full_reverse", "reverse"}, {"full_forward", "forward"}, {NULL, NULL}};
    const char *text, *name;

    KG_TRY(kg_golden_text(&text, g, "kl_type", err));
    KG_TRY(kg_golden_rename(&name, names, "kl_type", text, err));
    *forward = strcmp(name, "forward") == 0;
    return KG_OK;
}

kg_status kg_golden_kl_topk(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_golden_batch e;
    const char *text, *row;

    KG_TRY(kg_golden_text(&text, g, "kl_type", err));
    KG_TRY(kg_golden_rename(&row, heads, "kl_type", text, err));
    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_algo_set(&e.algo, "kl.estimator", row, err));
    KG_TRY(kg_algo_set(&e.algo, "kl.gradient", "published", err));
    KG_TRY(kg_golden_bool(&e.algo.kl_tail, g, "tail", err));
    KG_TRY(kg_golden_importance(&e, err));
    e.algo.kl_beta = 1;
    KG_TRY(kg_golden_load(&e, 0, 0, err));
    KG_TRY(reduction(&e, err));
    KG_TRY(kg_golden_columns(&e, "topk_indices",
                             kg_algo_needs(&e.algo) & KG_NEED_TOP_ANCHOR, err));
    e.algo.kl_top_k = (int)e.rows.k;
    return kg_golden_kl_finish(&e, "kl_token", err);
}

kg_status kg_golden_kl_full(struct kg_golden_case *g, struct kg_err *err)
{
    struct kg_golden_batch e;
    bool forward;

    KG_TRY(direction(&forward, g, err));
    KG_TRY(kg_golden_start(&e, g, err));
    KG_TRY(kg_algo_set(&e.algo, "kl.estimator",
                       forward ? "exact-forward" : "exact-reverse", err));
    e.algo.kl_beta = 1;
    KG_TRY(kg_golden_load(&e, 0, 0, err));
    KG_TRY(reduction(&e, err));
    return kg_golden_kl_finish(&e, "kl_token", err);
}
