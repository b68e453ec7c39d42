/* Refuses, before the run starts, what cannot be computed, with the key and the reason.
 *
 * First checks the range of each number, then the needs of the rows against the other
 * rows and against what the run provides.
 */
#include "policy/policy_internal.h"

struct range {
    const char *key;
    double value, min, max;
    const char *expected;
};

static kg_status check_ranges(const struct kg_algo *a, struct kg_err *err)
{
    const double most = 1e12;
    const struct range ranges[] = {
        {"algo.clip_low", a->clip_low, 0, most, "0 or more"},
        {"algo.clip_high", a->clip_high, 0, most, "0 or more"},
        {"algo.ratio_clamp", a->ratio_clamp, 0, 700, "0 (off) to 700"},
        {"algo.truncate", a->truncate, 0, most, "0 (off) or more"},
        {"algo.delta_low", a->delta_low, 0, most, "0 or more"},
        {"algo.delta_high", a->delta_high, 0, most, "0 or more"},
        {"algo.top_k", a->top_k, 1, 512, "1 to 512"},
        {"algo.mask_delta", a->mask_delta, 0, most, "0 or more"},
        {"algo.tau_pos", a->tau_pos, 1e-9, most, "a number above 0"},
        {"algo.tau_neg", a->tau_neg, 1e-9, most, "a number above 0"},
        {"algo.tis", a->tis, 0, most, "0 (off) or more"},
        {"algo.tis_low", a->tis_low, 0, a->tis,
         "0 (off) to algo.tis, the upper bound of the weight"},
        {"algo.entropy_coef", a->entropy_coef, 0, most, "0 or more"},
        {"algo.length_norm", a->length_norm, 0, most, "0 or more"},
        {"algo.gamma", a->gamma, 0, 1, "0 to 1"},
        {"algo.lambda", a->lambda, 0, 1, "0 to 1"},
        {"algo.gpg_norm", a->gpg_norm, 1e-12, most, "a number above 0"},
        {"algo.std_eps", a->std_eps, 1e-12, 1, "1e-12 to 1"},
        {"algo.cov_ratio", a->cov_ratio, 0, 1, "0 to 1"},
        {"algo.m2_budget", a->m2_budget, 0, most, "0 or more"},
        {"algo.vespo_k_pos", a->vespo_k_pos, 0, 10, "0 to 10"},
        {"algo.vespo_k_neg", a->vespo_k_neg, 0, 10, "0 to 10"},
        {"algo.vespo_lambda_pos", a->vespo_lambda_pos, 0.01, 100, "0.01 to 100"},
        {"algo.vespo_lambda_neg", a->vespo_lambda_neg, 0.01, 100, "0.01 to 100"},
        {"algo.prefix_weight", a->prefix_weight, 1e-3, 1, "0.001 to 1"},
        {"algo.prefix_budget", a->prefix_budget, 0, 1, "0 to 1"},
        {"algo.cov_coef", a->cov_coef, 0, most, "0 or more"},
        {"algo.count_eps", a->count_eps, 0, 1e-3, "0 to 0.001"},
        {"kl.beta", a->kl_beta, 0, most, "0 or more"},
        {"kl.target", a->kl_target, 0, most, "0 (off) or more"},
        {"kl.horizon", a->kl_horizon, 1e-9, most, "a number above 0"},
        {"kl.top_k", a->kl_top_k, 0, most, "0 or more"},
        {"kl.iw_lower", a->kl_iw_lower, 0, most, "0 (off) or more"},
        {"kl.iw_upper", a->kl_iw_upper, 0, most, "0 (off) or more"},
        {"anchor.period", (double)a->anchor_period, 1, 1e15, "1 or more"},
        {"anchor.kappa", a->anchor_kappa, 0, most, "0 (off) or more"},
        {"anchor.smoothing", a->anchor_smoothing, 0, 1 - 1e-9, "0 to below 1"},
    };

    for (size_t i = 0; i < KG_COUNT(ranges); i++)
        if (!(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max))
            return kg_fail(err, KG_EINVAL, "%s: expected %s, found %g", ranges[i].key,
                           ranges[i].expected, ranges[i].value);
    if (a->dual_clip != 0 && !(a->dual_clip > 1 && a->dual_clip <= most))
        return kg_fail(err, KG_EINVAL,
                       "algo.dual_clip: expected 0 (off) or a number above 1, found %g",
                       a->dual_clip);
    if (a->kl_iw_upper > 0 && a->kl_iw_lower > a->kl_iw_upper)
        return kg_fail(err, KG_EINVAL,
                       "kl.iw_lower: expected at most kl.iw_upper (%g), found %g",
                       a->kl_iw_upper, a->kl_iw_lower);
    return KG_OK;
}

static kg_status check_anchor(const struct kg_algo *a, struct kg_err *err)
{
    bool exact = a->kl->about.needs & (KG_NEED_EXACT_REVERSE | KG_NEED_EXACT_FORWARD);
    bool none = a->anchor->kind == KG_ANCHOR_NONE;
    const char *kl = a->kl->about.name;

    if (a->kl->about.needs != 0 && none)
        return kg_fail(err, KG_EINVAL,
                       "anchor.kind: kl.estimator %s needs an anchor (fixed, ema, "
                       "iterative, copy), found none",
                       kl);
    if (exact && a->anchor->kind == KG_ANCHOR_ITERATIVE)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "anchor.kind: %s needs the anchor's whole vocabulary, but the "
                       "iterative anchor has only the recorded log-probs",
                       kl);
    if (a->anchor->kind == KG_ANCHOR_EMA && !(a->anchor_eta > 0 && a->anchor_eta <= 1))
        return kg_fail(err, KG_EINVAL,
                       "anchor.eta: expected above 0 and at most 1, found %g%s",
                       a->anchor_eta,
                       a->anchor_eta == 0 ? " (anchor.kind copy is that anchor)" : "");
    if (a->anchor_kappa > 0 && a->anchor->kind != KG_ANCHOR_COPY)
        return kg_fail(err, KG_EINVAL,
                       "anchor.kappa: sets when an anchor is replaced; expected "
                       "anchor.kind copy, found %s",
                       a->anchor->about.name);
    if (a->anchor_kappa > 0 && !kg_algo_kl_in_loss(a))
        return kg_fail(err, KG_EINVAL,
                       "anchor.kappa: is compared with the KL of every update; expected "
                       "a kl.estimator in the loss, found %s %s",
                       kg_algo_kl_taken(a) ? "kl.in" : "kl.estimator",
                       kg_algo_kl_taken(a) ? a->kl_in->about.name : "none");
    return KG_OK;
}

/* Rewards and advantages are fixed before the update, so their KL may read only the
 * sampled token. */
static kg_status check_kl_taken(const struct kg_algo *a, const struct kg_algo_setting *s,
                                struct kg_err *err)
{
    const char *kl = a->kl->about.name;

    if (!kg_algo_kl_taken(a))
        return KG_OK;
    if (a->kl->about.needs == 0)
        return kg_fail(err, KG_EINVAL,
                       "kl.in: expected a kl.estimator for the %s, found none",
                       a->kl_in->about.name);
    if (a->kl->reward_only && !s->reproduction)
        return kg_fail(err, KG_EINVAL,
                       "kl.estimator: %s is the weight of a published run, against the "
                       "policy that sampled; expected algo.reproduction true, found "
                       "false",
                       kl);
    if (a->kl->about.needs & ~(unsigned)(KG_NEED_ANCHOR | KG_NEED_ON_POLICY_OR_IW))
        return kg_fail(err, KG_EINVAL,
                       "kl.in: the %s needs an estimator that reads only the sampled "
                       "token (k1 to k5, abs), found %s",
                       a->kl_in->about.name, kl);
    if (a->anchor->kind == KG_ANCHOR_ITERATIVE && !s->reproduction)
        return kg_fail(err, KG_EINVAL,
                       "kl.in: the KL between the samples and the policy that sampled "
                       "them is 0, so the %s would not change; expected anchor.kind "
                       "fixed, ema or copy, found iterative",
                       a->kl_in->about.name);
    return KG_OK;
}

/* The controller multiplies the coefficient, so a coefficient of 0 would stay 0. */
static kg_status check_kl_target(const struct kg_algo *a, struct kg_err *err)
{
    if (a->kl_target == 0)
        return KG_OK;
    if (a->kl->about.needs == 0)
        return kg_fail(err, KG_EINVAL,
                       "kl.target: expected 0 without kl.estimator, found %g (there is "
                       "no KL to control)",
                       a->kl_target);
    if (!(a->kl_beta > 0))
        return kg_fail(
            err, KG_EINVAL,
            "kl.beta: expected above 0, the starting value for kl.target %g, found %g",
            a->kl_target, a->kl_beta);
    return KG_OK;
}

static kg_status check_kl(const struct kg_algo *a, const struct kg_algo_setting *s,
                          struct kg_err *err)
{
    const char *kl = a->kl->about.name;

    if (a->kl->about.needs == 0 && a->kl_beta > 0 && !a->surrogate->own_kl)
        return kg_fail(err, KG_EINVAL,
                       "kl.beta: expected 0 without kl.estimator, found %g (it would "
                       "have no effect)",
                       a->kl_beta);
    KG_TRY(check_kl_taken(a, s, err));
    KG_TRY(check_kl_target(a, err));
    if (a->kl->head_only && a->kl_top_k == 0)
        return kg_fail(err, KG_EINVAL,
                       "kl.top_k: %s reads that many ids; expected 1 or more, found 0",
                       kl);
    if ((a->kl->about.needs & (KG_NEED_TOP_SAMPLER | KG_NEED_TOP_ANCHOR)) &&
        a->kl_top_k == 0 && !a->kl_tail)
        return kg_fail(err, KG_EINVAL,
                       "kl.tail: with kl.top_k 0, %s consists of the tail only; expected "
                       "true, found false (a KL of 0)",
                       kl);
    if (a->kl->head_only && !a->kl_corrected)
        return kg_fail(err, KG_EINVAL,
                       "kl.gradient: %s has no sampled tail, and its only gradient is "
                       "the gradient of its value; set kl.gradient=corrected, found "
                       "published",
                       kl);
    if (a->kl->reward_only && !kg_algo_kl_taken(a))
        return kg_fail(
            err, KG_EUNSUPPORTED,
            "kl.estimator: %s shapes rewards and is not a loss; expected kl.in "
            "reward or advantage, found loss",
            kl);
    if (a->kl->iterative && a->anchor->kind != KG_ANCHOR_ITERATIVE && !s->reproduction)
        return kg_fail(err, KG_EINVAL,
                       "kl.estimator: %s is a KL only against the policy that sampled; "
                       "expected anchor.kind iterative, found %s",
                       kl, a->anchor->about.name);
    if ((a->kl->about.needs & KG_NEED_ON_POLICY_OR_IW) && !kg_algo_kl_taken(a) &&
        s->off_policy && !a->kl_importance && !s->reproduction)
        return kg_fail(err, KG_EINVAL,
                       "kl.importance: %s as a loss pushes the policy away from the "
                       "sampler when updates are off-policy; expected true, found false",
                       kl);
    if (a->kl->about.needs != 0 && a->surrogate->own_kl)
        return kg_fail(
            err, KG_EINVAL,
            "kl.estimator: the loss of %s already has a KL; expected none, found %s",
            a->surrogate->about.name, kl);
    return KG_OK;
}

/* Values at which the bounds of a trust region have no meaning. */
static kg_status check_bounds(const struct kg_algo *a, struct kg_err *err)
{
    if (a->surrogate->token == kg_pg_drpo && !(a->delta_low > 0 && a->delta_high > 0))
        return kg_fail(err, KG_EINVAL,
                       "algo.delta_%s: %s divides by it; expected above 0, found 0",
                       a->delta_low > 0 ? "high" : "low", a->surrogate->about.name);
    if (a->surrogate->token == kg_pg_clip_cov && !(a->cov_low < a->cov_high))
        return kg_fail(err, KG_EINVAL,
                       "algo.cov_low: expected below algo.cov_high (%g), found %g",
                       a->cov_high, a->cov_low);
    return KG_OK;
}

static kg_status check_surrogate(const struct kg_algo *a, const struct kg_algo_setting *s,
                                 struct kg_err *err)
{
    const char *pg = a->surrogate->about.name;

    if (a->surrogate->own_kl && a->anchor->kind != KG_ANCHOR_NONE)
        return kg_fail(err, KG_EINVAL,
                       "anchor.kind: %s is regularised towards the policy that sampled, "
                       "so an anchor has no effect; expected none, found %s",
                       pg, a->anchor->about.name);
    if (a->surrogate->token == kg_pg_none && !kg_algo_kl_in_loss(a))
        return kg_fail(err, KG_EINVAL,
                       "algo.surrogate: without a policy term the loss is the KL; "
                       "expected a kl.estimator in the loss");
    if (a->surrogate->token == kg_pg_none && !(a->kl_beta > 0))
        return kg_fail(
            err, KG_EINVAL,
            "kl.beta: without a policy term the loss is the KL; expected above "
            "0, found %g",
            a->kl_beta);
    if (a->tis > 0 && s->sampled_old)
        return kg_fail(err, KG_EINVAL,
                       "algo.tis: the old log-probs are the sampler's, so their ratio is "
                       "always 1; set train.old_logp=recompute or algo.tis=0, found %g",
                       a->tis);
    if (a->mask->of_weight && s->sampled_old)
        return kg_fail(err, KG_EINVAL,
                       "algo.mask: the old log-probs are the sampler's, so %s drops "
                       "nothing; set train.old_logp=recompute or another mask",
                       a->mask->about.name);
    if (a->mask->pops && !(a->tis > 0))
        return kg_fail(err, KG_EINVAL,
                       "algo.tis: algo.mask %s keeps weights old/sampler from "
                       "algo.tis_low to algo.tis; expected a bound above 0, found %g",
                       a->mask->about.name, a->tis);
    if (a->mask->single && a->surrogate->own_is)
        return kg_fail(err, KG_EINVAL,
                       "algo.mask: %s drops single tokens, but %s has one term per "
                       "sequence; choose another mask",
                       a->mask->about.name, pg);
    if ((a->mask->divergence != NULL) != (a->mask_delta > 0))
        return kg_fail(
            err, KG_EINVAL, "algo.mask_delta: expected %s with algo.mask %s, found %g",
            a->mask->divergence ? "above 0" : "0", a->mask->about.name, a->mask_delta);
    if (a->mask->takes && a->surrogate->sequence == kg_pg_gmpo &&
        (a->advantage->token || a->kl_in->place == KG_PLACE_ADVANTAGE))
        return kg_fail(err, KG_EINVAL,
                       "algo.mask: %s drops tokens by the sign of their advantage, but "
                       "%s has one term per sequence; expected an algo.advantage of "
                       "whole sequences, found %s and kl.in %s",
                       a->mask->about.name, pg, a->advantage->about.name,
                       a->kl_in->about.name);
    if (a->tis > 0 && a->surrogate->to_mu)
        return kg_fail(err, KG_EINVAL,
                       "algo.tis: the ratio of %s is already against the sampler; "
                       "expected 0, found %g",
                       pg, a->tis);
    if ((a->surrogate->about.needs & KG_NEED_MU_AT) && s->truncated_sampling)
        return kg_fail(
            err, KG_EINVAL,
            "algo.surrogate: %s compares log-probs of the full softmax; expected "
            "rollout.top_p 1, top_k 0 and min_p 0",
            pg);
    if (a->aggregate->divides_by_norm && !(a->length_norm > 0))
        return kg_fail(err, KG_EINVAL,
                       "algo.length_norm: %s divides by it; expected above 0, found %g",
                       a->aggregate->about.name, a->length_norm);
    return KG_OK;
}

static kg_status check_top_k(const struct kg_algo *a, const struct kg_algo_setting *s,
                             struct kg_err *err)
{
    if (s->max_top_k > 0 && kg_algo_recorded_top_k(a) > s->max_top_k)
        return kg_fail(
            err, KG_EINVAL,
            "%s: expected at most %d ids that the sampler can record, found %d",
            kg_algo_recorded_top_k(a) == a->kl_top_k ? "kl.top_k" : "algo.top_k",
            s->max_top_k, kg_algo_recorded_top_k(a));
    if (s->vocab > 0 && kg_algo_width(a) > 0 && a->top_k > s->vocab &&
        (a->surrogate->about.needs & KG_NEED_TOP_SAMPLER))
        return kg_fail(err, KG_EINVAL,
                       "algo.top_k: expected at most the vocabulary (%lld), found %d",
                       (long long)s->vocab, a->top_k);
    return KG_OK;
}

struct provision {
    unsigned need;
    const char *key, *what;
};

static kg_status check_provisions(const struct kg_algo *a,
                                  const struct kg_algo_setting *s, struct kg_err *err)
{
    const struct provision list[] = {
        {KG_NEED_GREEDY, "algo.advantage",
         "the reward of a greedy completion of every prompt"},
        {KG_NEED_VALUES, "algo.advantage", "a critic, and kedge trains none"},
        {KG_NEED_SUM_SQ, "algo.advantage", "sum_v p_v^2 of the sampler at every token"},
        {KG_NEED_PARTS, "algo.advantage",
         "two or more separate rewards of a completion (task.rewards)"},
        {KG_NEED_EXACT_REVERSE, "kl.estimator", "the two-head pass of the exact KL"},
        {KG_NEED_EXACT_FORWARD, "kl.estimator", "the two-head pass of the exact KL"},
        {KG_NEED_SELECTION, "algo.surrogate",
         "a pass over the whole optimizer batch first"},
    };
    const char *const rows[] = {a->advantage->about.name, a->kl->about.name,
                                a->surrogate->about.name};
    unsigned missing = kg_algo_needs(a) & ~s->provides;

    for (size_t i = 0; i < KG_COUNT(list); i++)
        if (missing & list[i].need)
            return kg_fail(err, KG_EUNSUPPORTED, "%s: %s needs %s", list[i].key,
                           rows[i < 4   ? 0
                                : i < 6 ? 1
                                        : 2],
                           list[i].what);
    if ((a->advantage->about.needs & KG_NEED_PARTS) && a->kl_in->place == KG_PLACE_REWARD)
        return kg_fail(err, KG_EINVAL,
                       "kl.in: algo.advantage %s takes only rewards of the task; "
                       "expected loss or advantage, found reward",
                       a->advantage->about.name);
    if ((a->advantage->about.needs & KG_NEED_SUM_SQ) && s->truncated_sampling)
        return kg_fail(err, KG_EINVAL,
                       "algo.advantage: %s weighs by the full softmax; expected "
                       "rollout.top_p 1, top_k 0 and min_p 0",
                       a->advantage->about.name);
    if ((a->advantage->about.needs & KG_NEED_GROUP) && s->samples == 1)
        return kg_fail(err, KG_EINVAL,
                       "rollout.samples: algo.advantage %s compares the samples of a "
                       "group; expected 2 or more, found 1",
                       a->advantage->about.name);
    return KG_OK;
}

/* Whether the KL is a head without the sampled tail. */
static bool is_cut_off(const struct kg_algo *a)
{
    bool head = a->kl->about.needs & (KG_NEED_TOP_SAMPLER | KG_NEED_TOP_ANCHOR);

    return head && !a->kl_tail;
}

bool kg_algo_kl_samples(const struct kg_algo *a)
{
    return kg_algo_kl_in_loss(a) && !a->kl->head_only &&
           (a->kl->about.needs & KG_NEED_ANCHOR) && !is_cut_off(a);
}

bool kg_algo_kl_weighs(const struct kg_algo *a)
{
    return kg_algo_kl_samples(a) && a->kl->weighted;
}

bool kg_algo_kl_may_clamp(const struct kg_algo *a)
{
    return (a->kl->clamps && !is_cut_off(a)) ||
           (kg_algo_kl_weighs(a) && a->kl_importance);
}

kg_status kg_algo_check(const struct kg_algo *algo, const struct kg_algo_setting *setting,
                        struct kg_err *err)
{
    KG_TRY(check_ranges(algo, err));
    KG_TRY(check_anchor(algo, err));
    KG_TRY(check_kl(algo, setting, err));
    KG_TRY(check_surrogate(algo, setting, err));
    KG_TRY(check_bounds(algo, err));
    KG_TRY(check_top_k(algo, setting, err));
    return check_provisions(algo, setting, err);
}
