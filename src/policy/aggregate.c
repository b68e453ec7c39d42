/* How token losses become one number: a weight for every token, known before the batch is
 * split.
 *
 * Every mode gives all tokens of a sequence one weight, which depends on the sequence's
 * length and on totals of the optimizer batch (of all ranks, where there are several).
 * That is why the gradient cannot depend on how the batch is cut into micro-batches.
 */
#include "policy/policy_internal.h"

static double token_mean(double length, const struct kg_policy_totals *totals)
{
    (void)length;
    return 1 / totals->tokens;
}

static double token_sum(double length, const struct kg_policy_totals *totals)
{
    (void)length, (void)totals;
    return 1;
}

static double seq_mean_token_sum(double length, const struct kg_policy_totals *totals)
{
    (void)length;
    return 1 / totals->seqs;
}

static double seq_mean_token_mean(double length, const struct kg_policy_totals *totals)
{
    return 1 / (length + totals->length_eps) / totals->seqs;
}

static double seq_mean_token_sum_norm(double length,
                                      const struct kg_policy_totals *totals)
{
    (void)length;
    return 1 / totals->length_norm;
}

static double seq_mean_token_norm(double length, const struct kg_policy_totals *totals)
{
    (void)length;
    return 1 / totals->length_norm / totals->seqs;
}

static const struct kg_aggregate_row rows[] = {
    {{"token-mean", "mean over all tokens of the batch", "sum l / N",
      "Yu et al. 2025, arXiv 2503.14476", KG_SCOPE_TOKEN, 0, NULL},
     .weight = token_mean,
     .average = KG_AVERAGE_FADES,
     .divides_by_answers = true},
    {{"token-sum", "sum over all tokens, not divided", "sum l", "verl; Tinker",
      KG_SCOPE_TOKEN, 0, NULL},
     .weight = token_sum,
     .average = KG_AVERAGE_UNBIASED},
    {{"seq-mean-token-sum", "sum over a sequence, mean over sequences", "sum l / S",
      "verl", KG_SCOPE_TOKEN, 0, NULL},
     .weight = seq_mean_token_sum,
     .average = KG_AVERAGE_UNBIASED,
     .divides_by_answers = true},
    {{"seq-mean-token-mean", "mean over a sequence, mean over sequences",
      "sum_i (sum_t l / L_i) / S", "Shao et al. 2024, arXiv 2402.03300", KG_SCOPE_TOKEN,
      0, "algo.count_eps"},
     .weight = seq_mean_token_mean,
     .average = KG_AVERAGE_BIASED,
     .divides_by_answers = true},
    {{"seq-mean-token-sum-norm", "sum over all tokens divided by a constant length",
      "sum l / C", "Liu et al. 2025, arXiv 2503.20783", KG_SCOPE_TOKEN, 0,
      "algo.length_norm"},
     .weight = seq_mean_token_sum_norm,
     .average = KG_AVERAGE_UNBIASED,
     .divides_by_norm = true},
    {{"seq-mean-token-norm",
      "sum over a sequence divided by a constant length, mean over sequences",
      "sum l / (C S)",
      "verl: its seq-mean-token-sum-norm, as the updates of a trainer scale it",
      KG_SCOPE_TOKEN, 0, "algo.length_norm"},
     .weight = seq_mean_token_norm,
     .average = KG_AVERAGE_UNBIASED,
     .divides_by_norm = true,
     .divides_by_answers = true},
};

struct kg_policy_rows kg_aggregate_rows(void)
{
    return (struct kg_policy_rows){rows, KG_COUNT(rows), sizeof rows[0]};
}

static bool is_dropped(const uint8_t *drop, int64_t i) { return drop && drop[i]; }

void kg_policy_totals(struct kg_policy_totals *totals, const struct kg_algo *algo,
                      int64_t n_seqs, const int64_t *seq_begin, const uint8_t *drop)
{
    *totals = (struct kg_policy_totals){.length_eps = algo->count_eps,
                                        .length_norm = algo->length_norm};
    for (int64_t i = 0; i < n_seqs; i++) {
        int64_t length = seq_begin[i + 1] - seq_begin[i];

        if (is_dropped(drop, i) || length == 0)
            continue;
        totals->tokens += (double)length;
        totals->seqs += 1;
    }
}

kg_status kg_policy_weights_of(double *weight, const struct kg_algo *algo,
                               const struct kg_policy_totals *totals, int64_t n_seqs,
                               const int64_t *seq_begin, const uint8_t *drop,
                               struct kg_err *err)
{
    if (algo->aggregate->divides_by_norm && !(totals->length_norm > 0))
        return kg_fail(err, KG_EINVAL,
                       "algo.length_norm: expected a length above 0 for %s, found %g",
                       algo->aggregate->about.name, totals->length_norm);
    for (int64_t i = 0; i < n_seqs; i++) {
        int64_t length = seq_begin[i + 1] - seq_begin[i];
        double w = 0;

        if (!is_dropped(drop, i) && length > 0)
            w = algo->aggregate->weight((double)length, totals);
        for (int64_t t = seq_begin[i]; t < seq_begin[i + 1]; t++)
            weight[t] = w;
    }
    return KG_OK;
}

kg_status kg_policy_weights(const struct kg_policy_weights *w, const struct kg_algo *algo,
                            const struct kg_policy_shape *shape, struct kg_err *err)
{
    struct kg_policy_totals kept, all;
    const uint8_t *kl_drop = algo->kl_after_filter ? shape->drop : NULL;

    kg_policy_totals(&kept, algo, shape->n_seqs, shape->seq_begin, shape->drop);
    kg_policy_totals(&all, algo, shape->n_seqs, shape->seq_begin, kl_drop);
    if (w->pg)
        KG_TRY(kg_policy_weights_of(w->pg, algo, &kept, shape->n_seqs, shape->seq_begin,
                                    shape->drop, err));
    if (w->entropy)
        KG_TRY(kg_policy_weights_of(w->entropy, algo, &kept, shape->n_seqs,
                                    shape->seq_begin, shape->drop, err));
    if (w->kl)
        KG_TRY(kg_policy_weights_of(w->kl, algo, &all, shape->n_seqs, shape->seq_begin,
                                    kl_drop, err));
    return KG_OK;
}
