/* A batch of a case for policy/: logits in, loss tokens out, and the way back.
 *
 * A case gives logits [B,T,V] and a mask; the policy gets only the N tokens under it.
 * If log-probs are not given but their logits are, they are computed from the logits.
 */
#include "lab/golden/golden_internal.h"

kg_status kg_golden_start(struct kg_golden_batch *e, struct kg_golden_case *g,
                          struct kg_err *err)
{
    *e = (struct kg_golden_batch){.g = g, .scale = 1, .temperature = 1};
    kg_algo_init(&e->algo);
    return kg_algo_set(&e->algo, "anchor.kind", "fixed", err);
}

static struct kg_golden_shape per_token(const struct kg_golden_batch *e)
{
    return (struct kg_golden_shape){2, {e->all_rows, e->T}};
}

static struct kg_golden_shape per_logit(const struct kg_golden_batch *e)
{
    return (struct kg_golden_shape){3, {e->all_rows, e->T, e->V}};
}

/* ---- in ---- */

/* The tokens under the mask of rows first .. first+B-1. */
static kg_status load_tokens(struct kg_golden_batch *e, struct kg_err *err)
{
    struct kg_golden_array mask, tokens;
    int64_t *begin = kg_golden_room(e->g, e->B + 1, sizeof *begin, err), n = 0;
    int32_t *ids = kg_golden_room(e->g, e->B * e->T, sizeof *ids, err);

    e->at = kg_golden_room(e->g, e->B * e->T, sizeof *e->at, err);
    if (!begin || !ids || !e->at)
        return err->code;
    KG_TRY(kg_golden_array(&mask, e->g, "inputs", "response_mask", per_token(e), err));
    KG_TRY(kg_golden_array(&tokens, e->g, "inputs", "tokens", per_token(e), err));
    KG_TRY(kg_golden_ids(&mask, "response_mask", 2, err));
    KG_TRY(kg_golden_ids(&tokens, "tokens", e->V, err));
    for (int64_t r = 0; r < e->B; r++) {
        for (int64_t t = 0; t < e->T; t++) {
            int64_t at = (e->first + r) * e->T + t;

            if (mask.x && mask.x[at] == 0)
                continue;
            ids[n] = tokens.x ? (int32_t)tokens.x[at] : 0;
            e->at[n++] = at;
        }
        begin[r + 1] = n;
    }
    e->b.n_seqs = e->B, e->b.n_tokens = n;
    e->b.seq_begin = begin;
    e->b.tokens = e->rows.tokens = ids;
    return KG_OK;
}

/* out: (N,V) logits divided by the temperature; NULL if the case lacks them */
static kg_status load_logits(const double **out, struct kg_golden_batch *e,
                             const char *key, struct kg_err *err)
{
    struct kg_golden_array z;
    double *x;

    *out = NULL;
    KG_TRY(kg_golden_array(&z, e->g, "inputs", key, per_logit(e), err));
    if (!z.x)
        return KG_OK;
    KG_TRY(kg_golden_reals(&x, e->g, e->b.n_tokens * e->V, err));
    for (int64_t n = 0; n < e->b.n_tokens; n++)
        for (int64_t v = 0; v < e->V; v++)
            x[n * e->V + v] = z.x[e->at[n] * e->V + v] / e->temperature;
    *out = x;
    return KG_OK;
}

static kg_status load_plain(const double **out, struct kg_golden_batch *e,
                            const char *key, struct kg_err *err)
{
    struct kg_golden_array a;
    double *x;

    *out = NULL;
    KG_TRY(kg_golden_array(&a, e->g, "inputs", key, per_token(e), err));
    if (!a.x)
        return KG_OK;
    KG_TRY(kg_golden_reals(&x, e->g, e->b.n_tokens, err));
    for (int64_t n = 0; n < e->b.n_tokens; n++)
        x[n] = a.x[e->at[n]];
    *out = x;
    return KG_OK;
}

/* Log-probs as given; if only the policy's logits are given, computed from them. */
static kg_status load_logp(const double **out, struct kg_golden_batch *e, const char *key,
                           const char *logits, struct kg_err *err)
{
    struct kg_golden_rows rows = e->rows;
    double *entropy;

    KG_TRY(load_plain(out, e, key, err));
    if (*out)
        return KG_OK;
    KG_TRY(load_logits(&rows.logits, e, logits, err));
    if (!rows.logits)
        return KG_OK;
    rows.anchor = NULL, rows.kl = KG_GOLDEN_NO_KL, rows.k = 0;
    KG_TRY(kg_golden_reals(&rows.logp, e->g, rows.n, err));
    KG_TRY(kg_golden_reals(&entropy, e->g, rows.n, err));
    rows.entropy = entropy;
    KG_TRY(kg_golden_plain_head.forward(&rows, NULL, err));
    *out = rows.logp;
    return KG_OK;
}

kg_status kg_golden_load(struct kg_golden_batch *e, int64_t first, int64_t n_rows,
                         struct kg_err *err)
{
    struct kg_golden_case *g = e->g;
    struct kg_golden_array z;

    KG_TRY(
        kg_golden_input(&z, g, "logits", (struct kg_golden_shape){3, {-1, -1, -1}}, err));
    KG_TRY(kg_golden_real(&e->temperature, g, "temperature", 1, err));
    if (!(e->temperature > 0))
        return kg_fail(err, KG_EFORMAT, "config.temperature: expected above 0, found %g",
                       e->temperature);
    e->all_rows = z.d[0], e->T = z.d[1], e->V = z.d[2];
    e->first = first, e->B = n_rows > 0 ? n_rows : z.d[0];
    KG_TRY(load_tokens(e, err));
    e->rows.n = e->b.n_tokens, e->rows.vocab = e->V;
    KG_TRY(load_logits(&e->rows.logits, e, "logits", err));
    KG_TRY(load_logits(&e->rows.anchor, e, "ref_logits", err));
    KG_TRY(load_logp(&e->b.old_logp, e, "old_log_prob", "old_logits", err));
    KG_TRY(load_logp(&e->b.mu_logp, e, "rollout_log_prob", "rollout_logits", err));
    KG_TRY(load_logp(&e->b.anchor_logp, e, "ref_log_prob", "ref_logits", err));
    KG_TRY(load_plain(&e->b.advantage, e, "advantages", err));
    KG_TRY(load_plain(&e->b.is_weight, e, "rollout_is_weights", err));
    KG_TRY(kg_golden_reals(&e->dlogits, g, z.n, err));
    kg_policy_totals(&e->totals, &e->algo, e->B, e->b.seq_begin, NULL);
    return KG_OK;
}

kg_status kg_golden_columns(struct kg_golden_batch *e, const char *key, bool anchor_part,
                            struct kg_err *err)
{
    struct kg_golden_shape shape = {3, {e->all_rows, e->T, -1}};
    struct kg_golden_array t, mu;
    int64_t N = e->b.n_tokens, K;
    double *mu_at;

    KG_TRY(kg_golden_input(&t, e->g, key, shape, err));
    KG_TRY(kg_golden_ids(&t, key, e->V, err));
    K = shape.d[2] = t.d[2];
    KG_TRY(kg_golden_array(&mu, e->g, "inputs", "rollout_topk_log_probs", shape, err));
    int32_t *ids = kg_golden_room(e->g, N * K, sizeof *ids, err);
    if (!ids)
        return err->code;
    KG_TRY(kg_golden_reals(&mu_at, e->g, N * K, err));
    for (int64_t n = 0; n < N; n++)
        for (int64_t j = 0; j < K; j++) {
            ids[n * K + j] = (int32_t)t.x[e->at[n] * K + j];
            mu_at[n * K + j] = mu.x ? mu.x[e->at[n] * K + j] : 0;
        }
    e->b.ids = e->rows.ids = ids;
    e->b.mu_at = mu.x ? mu_at : NULL;
    e->b.k_sampler = anchor_part ? 0 : (int)K;
    e->b.k_anchor = anchor_part ? (int)K : 0;
    e->rows.k = K;
    return KG_OK;
}

/* ---- the evaluation ---- */

static kg_status run_head(struct kg_golden_batch *e, struct kg_err *err)
{
    struct kg_golden_rows *r = &e->rows;
    unsigned needs = kg_algo_needs(&e->algo);

    r->kl = needs & KG_NEED_EXACT_FORWARD   ? KG_GOLDEN_FORWARD
            : needs & KG_NEED_EXACT_REVERSE ? KG_GOLDEN_REVERSE
                                            : KG_GOLDEN_NO_KL;
    if (!r->anchor && (r->kl != KG_GOLDEN_NO_KL ||
                       (needs & (KG_NEED_TOP_ANCHOR | KG_NEED_ANCHOR) && r->k > 0)))
        return kg_fail(err, KG_EFORMAT,
                       "inputs.ref_logits: expected logits, which %s needs, found none",
                       kg_algo_row_name(&e->algo, KG_TABLE_KL));
    KG_TRY(kg_golden_reals(&r->logp, e->g, r->n, err));
    KG_TRY(kg_golden_reals(&r->entropy, e->g, r->n, err));
    KG_TRY(kg_golden_reals(&r->kl_exact, e->g, r->n, err));
    KG_TRY(kg_golden_reals(&r->logp_at, e->g, r->n * r->k, err));
    KG_TRY(kg_golden_reals(&r->anchor_at, e->g, r->n * r->k, err));
    KG_TRY(e->g->head->forward(r, e->g->head->self, err));
    e->b.logp = r->logp, e->b.entropy = r->entropy, e->b.kl_exact = r->kl_exact;
    e->b.logp_at = r->logp_at, e->b.anchor_at = r->anchor_at;
    return KG_OK;
}

static kg_status room_for_results(struct kg_golden_batch *e, struct kg_err *err)
{
    int64_t N = e->rows.n;

    KG_TRY(kg_golden_reals(&e->grad.a_logp, e->g, N, err));
    KG_TRY(kg_golden_reals(&e->grad.a_at, e->g, N * e->rows.k, err));
    KG_TRY(kg_golden_reals(&e->grad.a_entropy, e->g, N, err));
    KG_TRY(kg_golden_reals(&e->grad.a_kl_exact, e->g, N, err));
    return kg_golden_reals(&e->grad.kl_term, e->g, N, err);
}

kg_status kg_golden_run(struct kg_golden_batch *e, bool with_pg, struct kg_err *err)
{
    int64_t N = e->b.n_tokens;
    double *w, *zero;

    KG_TRY(kg_golden_reals(&w, e->g, N, err));
    KG_TRY(kg_golden_reals(&zero, e->g, N, err));
    if (with_pg && !e->b.advantage)
        return kg_fail(err, KG_EFORMAT,
                       "inputs.advantages: expected an array, found nothing");
    KG_TRY(run_head(e, err));
    if (!e->b.old_logp)
        e->b.old_logp = e->b.logp;
    if (!e->b.advantage)
        e->b.advantage = zero;
    KG_TRY(
        kg_policy_weights_of(w, &e->algo, &e->totals, e->B, e->b.seq_begin, NULL, err));
    for (int64_t n = 0; n < N; n++)
        w[n] *= e->scale;
    e->b.pg_weight = with_pg ? w : zero;
    e->b.kl_weight = e->b.entropy_weight = w;
    KG_TRY(room_for_results(e, err));
    if (kg_algo_scope(&e->algo) == KG_SCOPE_BATCH) {
        /* Batch-scope rows choose their tokens from the whole batch. */
        uint8_t *selected = kg_golden_room(e->g, e->b.n_tokens, 1, err);

        if (!selected)
            return err->code;
        e->b.selected = selected;
        KG_TRY(kg_policy_select(selected, &e->algo, &e->b, err));
    }
    return kg_policy_loss(&e->grad, &e->algo, &e->b, err);
}

kg_status kg_golden_backward(struct kg_golden_batch *e, double factor, struct kg_err *err)
{
    struct kg_golden_coefs coefs = {.logp = e->grad.a_logp,
                                    .logp_at = e->grad.a_at,
                                    .entropy = e->grad.a_entropy,
                                    .kl_exact = e->grad.a_kl_exact};
    double *d;

    KG_TRY(kg_golden_reals(&d, e->g, e->rows.n * e->V, err));
    KG_TRY(e->g->head->backward(d, &e->rows, &coefs, e->g->head->self, err));
    for (int64_t n = 0; n < e->rows.n; n++)
        for (int64_t v = 0; v < e->V; v++)
            e->dlogits[e->at[n] * e->V + v] += factor * d[n * e->V + v] / e->temperature;
    return KG_OK;
}

/* ---- out ---- */

kg_status kg_golden_expect_tokens(struct kg_golden_batch *e, const char *section,
                                  const char *key, const double *found, double factor,
                                  struct kg_err *err)
{
    struct kg_golden_array want;

    KG_TRY(kg_golden_array(&want, e->g, section, key, per_token(e), err));
    for (int64_t n = 0; want.x && n < e->b.n_tokens; n++)
        kg_golden_compare(e->g, key, e->at[n], factor * found[n], want.x[e->at[n]]);
    return KG_OK;
}

kg_status kg_golden_expect_logits(struct kg_golden_batch *e, struct kg_err *err)
{
    struct kg_golden_array want;

    KG_TRY(kg_golden_array(&want, e->g, "grad", "logits", per_logit(e), err));
    for (int64_t i = 0; i < want.n; i++)
        kg_golden_compare(e->g, "grad.logits", i, e->dlogits[i], want.x[i]);
    return KG_OK;
}

kg_status kg_golden_finish(struct kg_golden_batch *e, struct kg_err *err)
{
    KG_TRY(kg_golden_run(e, true, err));
    KG_TRY(kg_golden_expect(e->g, "loss", e->grad.loss, err));
    KG_TRY(kg_golden_expect_tokens(e, "expected", "log_prob", e->b.logp, 1, err));
    KG_TRY(kg_golden_expect_tokens(e, "grad", "log_prob", e->grad.a_logp, 1, err));
    KG_TRY(kg_golden_backward(e, 1, err));
    return kg_golden_expect_logits(e, err);
}
