/* Rewards, advantages and the anchor before or after the loss. To the loss these results
 * are constants; nothing here has a gradient. That is the difference between a KL here
 * and one in the loss: as a reward, the same estimator is credited to the tokens before
 * it and reaches the policy only through the score function. */
#include "policy/shaping.h"

#include "policy/policy_internal.h"

#include <math.h>

double kg_policy_overlong(int64_t length, int64_t max_length, int64_t buffer,
                          double factor)
{
    double over = (double)(length - (max_length - buffer));

    return fmin(-over / (double)buffer * factor, 0);
}

double kg_policy_adaptive_kl(double coef, double kl, double target, double horizon,
                             int64_t n)
{
    double error = fmax(fmin(kl / target - 1, 0.2), -0.2);

    return coef * (1 + error * (double)n / horizon);
}

/* ---- the KL outside the loss ---- */

#define EMA_PG "Zhang & Ba 2026, arXiv 2602.04417, code (off by default)"
static const struct kg_place_row places[] = {
    {{"loss", "a term of the loss, kl.beta times the estimator", "loss + beta mean KL_t",
      "", KG_SCOPE_TOKEN, 0, NULL},
     KG_PLACE_LOSS,
     false},
    {{"reward",
      "subtracted from the reward of every token, before advantages; advantages of "
      "completions see the sum, advantages of tokens the return",
      "R_t - beta KL_t", "Ziegler et al. 2019, arXiv 1909.08593", KG_SCOPE_TOKEN, 0,
      "algo.count_eps"},
     KG_PLACE_REWARD,
     false},
    {{"advantage",
      "subtracted from the normalised advantage of its own token; with k1 and one update "
      "the gradient is that of the KL of every token at a fixed context",
      "A_t - beta KL_t", EMA_PG, KG_SCOPE_TOKEN, 0, "algo.count_eps"},
     KG_PLACE_ADVANTAGE,
     false},
    {{"advantage-future",
      "subtracted from the advantages of its own token and of all earlier ones in the "
      "completion; with k1, one update and sums over completions the gradient is that of "
      "the KL of whole completions",
      "A_t - beta sum_{u >= t} KL_u", EMA_PG, KG_SCOPE_TOKEN, 0, "algo.count_eps"},
     KG_PLACE_ADVANTAGE,
     true},
};

struct kg_policy_rows kg_place_rows(void)
{
    return (struct kg_policy_rows){places, KG_COUNT(places), sizeof places[0]};
}

static kg_status check_estimator(const struct kg_algo *algo, const char *where,
                                 struct kg_err *err)
{
    if (algo->kl->about.needs & ~(unsigned)(KG_NEED_ANCHOR | KG_NEED_ON_POLICY_OR_IW))
        return kg_fail(err, KG_EINVAL,
                       "kl.estimator: the %s needs an estimator that reads only the "
                       "sampled token, found %s",
                       where, algo->kl->about.name);
    return KG_OK;
}

/* The estimator's value at token t of sequence i, which the old policy sampled. */
static kg_status sampled_kl(double *value, const struct kg_algo *algo, double d,
                            int64_t i, int64_t t, const char *where, struct kg_err *err)
{
    struct kg_kl_in in = {.d = d, .s = 1, .token = -1};
    struct kg_kl_out out = {0};

    algo->kl->token(&out, &in, algo->kl, algo);
    *value = out.value;
    if (isfinite(out.value))
        return KG_OK;
    return kg_fail(
        err, KG_ENONFINITE,
        "KL in the %s: sequence %lld, token %lld: expected a finite number, found %g",
        where, (long long)i, (long long)t, out.value);
}

kg_status kg_policy_kl_reward(double *token_reward, double *mean_kl,
                              const struct kg_algo *algo, int64_t n_seqs,
                              const int64_t *seq_begin, const double *old_logp,
                              const double *anchor_logp, struct kg_err *err)
{
    double total = 0;
    int64_t counted = 0;

    KG_TRY(check_estimator(algo, "reward", err));
    for (int64_t i = 0; i < n_seqs; i++) {
        double sum = 0, length = (double)(seq_begin[i + 1] - seq_begin[i]);

        for (int64_t t = seq_begin[i]; t < seq_begin[i + 1]; t++) {
            double kl;

            KG_TRY(sampled_kl(&kl, algo, old_logp[t] - anchor_logp[t], i,
                              t - seq_begin[i], "reward", err));
            token_reward[t] -= algo->kl_beta * kl;
            sum += kl;
        }
        total += length > 0 ? sum / (length + algo->count_eps) : 0;
        counted += length > 0;
    }
    *mean_kl = counted > 0 ? total / (double)counted : 0;
    return KG_OK;
}

kg_status kg_policy_kl_advantage(double *advantage, struct kg_policy_taken *taken,
                                 const struct kg_algo *algo, int64_t n_seqs,
                                 const int64_t *seq_begin, const double *old_logp,
                                 const double *anchor_logp, struct kg_err *err)
{
    double total = 0;
    int64_t counted = 0;

    *taken = (struct kg_policy_taken){0};
    KG_TRY(check_estimator(algo, "advantage", err));
    for (int64_t i = 0; i < n_seqs; i++) {
        double sum = 0, length = (double)(seq_begin[i + 1] - seq_begin[i]);

        for (int64_t t = seq_begin[i + 1] - 1; t >= seq_begin[i]; t--) {
            double kl, off;

            KG_TRY(sampled_kl(&kl, algo, old_logp[t] - anchor_logp[t], i,
                              t - seq_begin[i], "advantage", err));
            sum += kl;
            off = algo->kl_beta * (algo->kl_in->later ? sum : kl);
            advantage[t] -= off;
            taken->most = fmax(taken->most, off);
        }
        total += length > 0 ? sum / (length + algo->count_eps) : 0;
        counted += length > 0;
    }
    taken->mean_kl = counted > 0 ? total / (double)counted : 0;
    return KG_OK;
}

/* ---- anchor and critic ---- */

bool kg_policy_anchor_due(const struct kg_algo *algo, int64_t step)
{
    bool moves = algo->anchor->kind == KG_ANCHOR_COPY ||
                 (algo->anchor->kind == KG_ANCHOR_EMA && algo->anchor_eta < 1);

    return moves && step > 0 && step % algo->anchor_period == 0;
}

void kg_policy_ema(double *anchor, const double *theta, int64_t n, double eta)
{
    for (int64_t i = 0; i < n; i++)
        anchor[i] = eta * anchor[i] + (1 - eta) * theta[i];
}

double kg_policy_value_loss(double *dvalue, bool *clipped, double value, double old_value,
                            double returns, double range)
{
    double bounded = fmax(fmin(value, old_value + range), old_value - range);
    double plain = (value - returns) * (value - returns);
    double other = (bounded - returns) * (bounded - returns);

    *clipped = other > plain;
    *dvalue = *clipped && bounded != value ? 0 : value - returns;
    return fmax(plain, other) / 2;
}
