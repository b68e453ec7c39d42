/* Metrics of the loss: sums and counts that add up over micro-batches (metrics_merge.c),
 * and the list made of them. A mean of means would depend on how the batch was split, so
 * only the list divides. A group of metrics is listed only if it applies, such as that of
 * algo.mask. policy/tokens counts all tokens; ratios and KL omit tokens of weight 0. */
#include "base/real.h"
#include "policy/policy_internal.h"

#include <math.h>

static void add_gap(struct kg_policy_gap *g, const struct kg_pg_in *in)
{
    double x = in->logp - in->mu, w = kg_exp(x),
           gap = fabs(kg_exp(in->logp) - kg_exp(in->mu));

    g->logp_sum += in->logp;
    g->mu_sum += in->mu;
    g->k3_sum += kg_expm1(x) - x;
    g->abs_sum += gap;
    g->abs_sum_sq += gap * gap;
    g->abs_max = fmax(g->abs_max, gap);
    g->weight_sum += w;
    g->weight_sum_sq += w * w;
    g->weight_max = fmax(g->weight_max, w);
}

static void add_dropped(struct kg_policy_dropped *d, const struct kg_pg_in *in,
                        const struct kg_pg_out *out)
{
    d->p_sum += kg_exp(in->logp);
    d->mu_sum += kg_exp(in->mu);
    d->ratio_sum += out->ratio;
    d->entropy_sum += in->entropy;
}

void kg_policy_metrics_pg(struct kg_policy_metrics *m, const struct kg_pg_in *in,
                          const struct kg_pg_out *out, const struct kg_algo *algo)
{
    double gap = in->logp - in->old, mismatch = fabs(in->old - in->mu);
    double prob_gap = kg_exp(in->logp) - kg_exp(in->mu);
    bool first = m->ratios == 0;

    m->ratios++;
    m->positive += in->advantage > 0;
    m->negative += in->advantage < 0;
    m->clip_low += out->clip == KG_CLIP_LOW;
    m->clip_high += out->clip == KG_CLIP_HIGH;
    m->clip_dual += out->clip == KG_CLIP_DUAL;
    m->outside_low += out->ratio < 1 - algo->clip_low;
    m->outside_high += out->ratio > 1 + algo->clip_high;
    add_gap(&m->gap, in);
    if (out->masked && in->advantage != 0)
        add_dropped(&m->dropped[in->advantage > 0], in, out);
    m->clips += out->clips;
    m->clips_lower += out->clips_lower;
    m->tis_outside += in->outside;
    m->masked_positive += out->masked && in->advantage > 0;
    m->masked_negative += out->masked && in->advantage < 0;
    m->ratio_sum += out->ratio;
    m->ratio_sum_sq += out->ratio * out->ratio;
    m->ratio_min = first ? out->ratio : fmin(m->ratio_min, out->ratio);
    m->ratio_max = first ? out->ratio : fmax(m->ratio_max, out->ratio);
    m->k1_sum -= gap;
    m->k3_sum += kg_expm1(gap) - gap;
    m->gap_sum += fabs(gap);
    m->gap_max = fmax(m->gap_max, fabs(gap));
    m->mismatch_sum += mismatch;
    m->mismatch_max = fmax(m->mismatch_max, mismatch);
    m->prob_gap_min = first ? prob_gap : fmin(m->prob_gap_min, prob_gap);
    m->prob_gap_max = first ? prob_gap : fmax(m->prob_gap_max, prob_gap);
    m->divergence_sum += out->divergence;
    m->divergence_max = fmax(m->divergence_max, out->divergence);
    m->divergence_below_01 += out->divergence < 0.01;
    m->divergence_below_05 += out->divergence < 0.05;
}

void kg_policy_metrics_mask(struct kg_policy_metrics *m, double divergence, bool masked)
{
    m->mask_max = m->mask_seqs == 0 ? divergence : fmax(m->mask_max, divergence);
    m->mask_seqs++;
    m->mask_dropped += masked;
    m->mask_sum += divergence;
}

void kg_policy_metrics_kl(struct kg_policy_metrics *m, const struct kg_kl_in *in,
                          const struct kg_kl_out *out)
{
    m->kl_max = m->kl_tokens == 0 ? out->value : fmax(m->kl_max, out->value);
    m->kl_tokens++;
    m->kl_sum += out->value;
    m->kl_head_sum += out->head;
    m->kl_tail_sum += out->tail;
    m->head_mass_sum += out->mass;
    m->tail_tokens += out->in_tail;
    m->iw_sum += in->s;
    m->iw_sum_sq += in->s * in->s;
    m->iw_max = fmax(m->iw_max, in->s);
}

/* ---- names and numbers ---- */

struct list {
    struct kg_policy_metric *out;
    size_t n;
};

static void put(struct list *l, const char *name, double value)
{
    if (l->n < KG_POLICY_METRICS_MAX)
        l->out[l->n++] = (struct kg_policy_metric){name, value};
}

static double over(double sum, int64_t n) { return n > 0 ? sum / (double)n : 0; }

/* (sum x)^2 / (n sum x^2): 1 if all weights are equal, 1/n if all but one are 0 */
static double ess(double sum, double sum_sq, int64_t n)
{
    return n > 0 && sum_sq > 0 ? sum * sum / ((double)n * sum_sq) : 0;
}

static void list_policy(struct list *l, const struct kg_algo *algo,
                        const struct kg_policy_metrics *m)
{
    put(l, "policy/tokens", (double)m->tokens);
    put(l, "policy/ratio_mean", over(m->ratio_sum, m->ratios));
    put(l, "policy/ratio_min", m->ratio_min);
    put(l, "policy/ratio_max", m->ratio_max);
    put(l, "policy/ratio_ess", ess(m->ratio_sum, m->ratio_sum_sq, m->ratios));
    put(l, "policy/clip_fraction", over((double)m->clips, m->ratios));
    put(l, "policy/outside_low", over((double)m->outside_low, m->ratios));
    put(l, "policy/outside_high", over((double)m->outside_high, m->ratios));
    put(l, "policy/clip_low", over((double)m->clip_low, m->ratios));
    put(l, "policy/clip_high", over((double)m->clip_high, m->ratios));
    put(l, "policy/clip_dual", over((double)m->clip_dual, m->ratios));
    put(l, "policy/kl_old_k1", over(m->k1_sum, m->ratios));
    put(l, "policy/kl_old_k3", over(m->k3_sum, m->ratios));
    put(l, "policy/gap_mean", over(m->gap_sum, m->ratios));
    put(l, "policy/gap_max", m->gap_max);
    put(l, "policy/mismatch_mean", over(m->mismatch_sum, m->ratios));
    put(l, "policy/mismatch_max", m->mismatch_max);
    put(l, "policy/prob_gap_min", m->prob_gap_min);
    put(l, "policy/prob_gap_max", m->prob_gap_max);
    if (algo->tis > 0)
        put(l, "policy/tis_outside", over((double)m->tis_outside, m->ratios));
    if (m->entropy_tokens > 0)
        put(l, "policy/entropy", over(m->entropy_sum, m->entropy_tokens));
}

static void list_kl(struct list *l, const struct kg_algo *algo,
                    const struct kg_policy_metrics *m)
{
    put(l, "kl/value", over(m->kl_sum, m->kl_tokens));
    put(l, "kl/max", m->kl_max);
    if (algo->kl->about.needs & (KG_NEED_TOP_SAMPLER | KG_NEED_TOP_ANCHOR)) {
        put(l, "kl/head", over(m->kl_head_sum, m->kl_tokens));
        put(l, "kl/tail", over(m->kl_tail_sum, m->kl_tokens));
        put(l, "kl/head_mass", over(m->head_mass_sum, m->kl_tokens));
        put(l, "kl/tail_tokens", over((double)m->tail_tokens, m->kl_tokens));
    }
    if (algo->kl_importance && algo->kl->weighted) {
        put(l, "kl/iw_mean", over(m->iw_sum, m->kl_tokens));
        put(l, "kl/iw_max", m->iw_max);
        put(l, "kl/iw_ess", ess(m->iw_sum, m->iw_sum_sq, m->kl_tokens));
    }
}

static void list_dropped(struct list *l, const struct kg_policy_metrics *m)
{
    const struct kg_policy_dropped *up = &m->dropped[1], *down = &m->dropped[0];
    int64_t n_up = m->masked_positive, n_down = m->masked_negative;

    put(l, "region/masked_positive_p", over(up->p_sum, n_up));
    put(l, "region/masked_positive_mu", over(up->mu_sum, n_up));
    put(l, "region/masked_positive_ratio", over(up->ratio_sum, n_up));
    put(l, "region/masked_positive_entropy", over(up->entropy_sum, n_up));
    put(l, "region/masked_negative_p", over(down->p_sum, n_down));
    put(l, "region/masked_negative_mu", over(down->mu_sum, n_down));
    put(l, "region/masked_negative_ratio", over(down->ratio_sum, n_down));
    put(l, "region/masked_negative_entropy", over(down->entropy_sum, n_down));
}

static void list_region(struct list *l, const struct kg_policy_metrics *m)
{
    list_dropped(l, m);
    put(l, "region/masked",
        over((double)(m->masked_positive + m->masked_negative), m->ratios));
    put(l, "region/masked_positive", over((double)m->masked_positive, m->positive));
    put(l, "region/masked_negative", over((double)m->masked_negative, m->negative));
    put(l, "region/divergence_mean", over(m->divergence_sum, m->ratios));
    put(l, "region/divergence_max", m->divergence_max);
    put(l, "region/divergence_below_01", over((double)m->divergence_below_01, m->ratios));
    put(l, "region/divergence_below_05", over((double)m->divergence_below_05, m->ratios));
}

static void list_mask(struct list *l, const struct kg_policy_metrics *m)
{
    put(l, "mask/answers", over((double)m->mask_dropped, m->mask_seqs));
    put(l, "mask/divergence_mean", over(m->mask_sum, m->mask_seqs));
    put(l, "mask/divergence_max", m->mask_max);
}

size_t kg_policy_mismatch_list(struct kg_policy_metric out[KG_POLICY_METRICS_MAX],
                               const struct kg_policy_metrics *m)
{
    struct list l = {out, 0};
    const struct kg_policy_gap *g = &m->gap;
    int64_t n = m->ratios;
    double mean = over(g->abs_sum, n);

    put(&l, "mismatch/prob_mean", mean);
    put(&l, "mismatch/prob_std", sqrt(fmax(0, over(g->abs_sum_sq, n) - mean * mean)));
    put(&l, "mismatch/prob_max", g->abs_max);
    put(&l, "mismatch/kl_k1", over(g->mu_sum - g->logp_sum, n));
    put(&l, "mismatch/kl_k3", over(g->k3_sum, n));
    put(&l, "mismatch/perplexity", kg_exp(-over(g->logp_sum, n)));
    put(&l, "mismatch/perplexity_sampler", kg_exp(-over(g->mu_sum, n)));
    put(&l, "mismatch/weight_mean", over(g->weight_sum, n));
    put(&l, "mismatch/weight_max", g->weight_max);
    put(&l, "mismatch/weight_ess", ess(g->weight_sum, g->weight_sum_sq, n));
    return l.n;
}

size_t kg_policy_metrics_list(struct kg_policy_metric out[KG_POLICY_METRICS_MAX],
                              const struct kg_algo *algo,
                              const struct kg_policy_metrics *m)
{
    struct list l = {out, 0};

    list_policy(&l, algo, m);
    if (kg_algo_kl_in_loss(algo))
        list_kl(&l, algo, m);
    if (algo->mask->divergence)
        list_mask(&l, m);
    if (algo->surrogate->divergence)
        list_region(&l, m);
    return l.n;
}
