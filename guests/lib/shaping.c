/* Functions around the loss, for the library's user.
 *
 * Each passes its arguments to the function of policy/ with the same name, so public
 * names and types can stay when internal ones change. Single numbers are not checked.
 * Offsets and log-probs in arrays are checked here before they are passed on.
 */
#include "lib/lib_internal.h"

#include "policy/shaping.h"

double kedge_overlong(int64_t length, int64_t max_length, int64_t buffer, double factor)
{
    return kg_policy_overlong(length, max_length, buffer, factor);
}

double kedge_adaptive_kl(double coef, double kl, double target, double horizon, int64_t n)
{
    return kg_policy_adaptive_kl(coef, kl, target, horizon, n);
}

int kedge_anchor_due(const struct kedge_algo *algo, int64_t step)
{
    return kg_policy_anchor_due(&algo->algo, step);
}

double kedge_value_loss(double *dvalue, int *clipped, double value, double old_value,
                        double returns, double range)
{
    bool second;
    double dv,
        loss = kg_policy_value_loss(&dv, &second, value, old_value, returns, range);

    if (dvalue)
        *dvalue = dv;
    if (clipped)
        *clipped = second;
    return loss;
}

/* Checks the offsets, then one log-prob per token. */
static kg_status check_record(const struct kg_policy_shape *shape, const double *old_logp,
                              const double *anchor_logp, struct kg_err *err)
{
    KG_TRY(kg_lib_check_begin(shape->seq_begin, shape->n_seqs, -1, "", "seq_begin", err));
    int64_t n = shape->seq_begin[shape->n_seqs];
    KG_TRY(kg_lib_check_logp(old_logp, n, "old_logp", err));
    return kg_lib_check_logp(anchor_logp, n, "anchor_logp", err);
}

static kg_status kl_reward(double *token_reward, double *mean_kl,
                           const struct kedge_algo *algo, struct kg_policy_shape shape,
                           const double *old_logp, const double *anchor_logp,
                           struct kg_err *err)
{
    double mean;

    KG_TRY(kg_lib_given(algo, "algo", err));
    KG_TRY(kg_lib_given(token_reward, "token_reward", err));
    KG_TRY(kg_lib_given(old_logp, "old_logp", err));
    KG_TRY(kg_lib_given(anchor_logp, "anchor_logp", err));
    KG_TRY(check_record(&shape, old_logp, anchor_logp, err));
    KG_TRY(kg_policy_kl_reward(token_reward, &mean, &algo->algo, shape.n_seqs,
                               shape.seq_begin, old_logp, anchor_logp, err));
    if (mean_kl)
        *mean_kl = mean;
    return KG_OK;
}

static kg_status kl_advantage(double *advantage, struct kg_policy_taken *taken,
                              const struct kedge_algo *algo, struct kg_policy_shape shape,
                              const double *old_logp, const double *anchor_logp,
                              struct kg_err *err)
{
    KG_TRY(kg_lib_given(algo, "algo", err));
    KG_TRY(kg_lib_given(advantage, "advantage", err));
    KG_TRY(kg_lib_given(old_logp, "old_logp", err));
    KG_TRY(kg_lib_given(anchor_logp, "anchor_logp", err));
    if (algo->algo.kl_in->place != KG_PLACE_ADVANTAGE)
        return kg_fail(err, KG_EINVAL,
                       "kl.in: expected advantage or advantage-future, found %s",
                       algo->algo.kl_in->about.name);
    KG_TRY(check_record(&shape, old_logp, anchor_logp, err));
    return kg_policy_kl_advantage(advantage, taken, &algo->algo, shape.n_seqs,
                                  shape.seq_begin, old_logp, anchor_logp, err);
}

int kedge_kl_advantage(double *advantage, double *mean_kl, double *most,
                       const struct kedge_algo *algo, int64_t n_seqs,
                       const int64_t *seq_begin, const double *old_logp,
                       const double *anchor_logp, struct kedge_err *err)
{
    struct kg_policy_shape shape = {.n_seqs = n_seqs, .seq_begin = seq_begin};
    struct kg_policy_taken taken = {0};
    struct kg_err e;
    kg_status status = kl_advantage(advantage, &taken, algo, shape, old_logp, anchor_logp,
                                    &e);

    if (mean_kl)
        *mean_kl = taken.mean_kl;
    if (most)
        *most = taken.most;
    return kg_lib_report(status, &e, err);
}

int kedge_kl_reward(double *token_reward, double *mean_kl, const struct kedge_algo *algo,
                    int64_t n_seqs, const int64_t *seq_begin, const double *old_logp,
                    const double *anchor_logp, struct kedge_err *err)
{
    struct kg_policy_shape shape = {.n_seqs = n_seqs, .seq_begin = seq_begin};
    struct kg_err e;

    return kg_lib_report(
        kl_reward(token_reward, mean_kl, algo, shape, old_logp, anchor_logp, &e), &e,
        err);
}
