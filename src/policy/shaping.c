/* What stands around the loss. Nothing here touches gradients of log-probs. */
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

kg_status kg_policy_kl_reward(double *token_reward, double *mean_kl,
                              const struct kg_algo *algo, int64_t n_seqs,
                              const int64_t *seq_begin, const double *old_logp,
                              const double *anchor_logp, struct kg_err *err)
{
    const struct kg_kl_row *row = algo->kl;
    double total = 0;
    int64_t counted = 0;

    if (row->about.needs & ~(unsigned)(KG_NEED_ANCHOR | KG_NEED_ON_POLICY_OR_IW))
        return kg_fail(
            err, KG_EINVAL,
            "kl.estimator: the reward takes an estimator from the sampled token "
            "alone, found %s",
            row->about.name);
    for (int64_t i = 0; i < n_seqs; i++) {
        double sum = 0, length = (double)(seq_begin[i + 1] - seq_begin[i]);

        for (int64_t t = seq_begin[i]; t < seq_begin[i + 1]; t++) {
            struct kg_kl_in in = {.d = old_logp[t] - anchor_logp[t], .s = 1, .token = -1};
            struct kg_kl_out out = {0};

            row->token(&out, &in, row, algo);
            if (!isfinite(out.value))
                return kg_fail(err, KG_ENONFINITE,
                               "KL in the reward: sequence %lld, token %lld: found %g",
                               (long long)i, (long long)(t - seq_begin[i]), out.value);
            token_reward[t] -= algo->kl_beta * out.value;
            sum += out.value;
        }
        total += length > 0 ? sum / (length + algo->count_eps) : 0;
        counted += length > 0;
    }
    *mean_kl = counted > 0 ? total / (double)counted : 0;
    return KG_OK;
}

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
