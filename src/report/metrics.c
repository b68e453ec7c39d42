/* The numbers of one step, in the order of first mention, which is the order in the log;
 * and the table of all metrics, with look-up and page. A second value replaces the first
 * in its place. Non-finite values are null in JSON and are read back as NaN. */
#include "report/metrics.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void kg_metrics_put(struct kg_metrics *m, const char *name, double value)
{
    int i = 0;

    while (i < m->n && strcmp(m->row[i].name, name) != 0)
        i++;
    assert(i < KG_METRICS_MAX && strlen(name) < KG_METRIC_NAME);
    if (i == m->n) {
        strncpy(m->row[i].name, name, KG_METRIC_NAME - 1);
        m->row[i].name[KG_METRIC_NAME - 1] = '\0';
        m->n++;
    }
    m->row[i].value = value;
}

void kg_metrics_put_in(struct kg_metrics *m, const char *group, const char *what,
                       double value)
{
    char name[KG_METRIC_NAME];

    snprintf(name, sizeof name, "%s/%s", group, what);
    kg_metrics_put(m, name, value);
}

double kg_metrics_get(const struct kg_metrics *m, const char *name, double fallback)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->row[i].name, name) == 0)
            return m->row[i].value;
    return fallback;
}

double kg_metrics_stderr(double n, double sum, double squares)
{
    double spread = squares - sum * sum / n;

    return n > 1 ? sqrt(fmax(0, spread / (n - 1)) / n) : 0;
}

kg_status kg_metrics_json(struct kg_str *out, const struct kg_metrics *m,
                          const char *phase, int64_t step, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "{\"phase\": \"%s\", \"step\": %lld", phase,
                         (long long)step));
    for (int i = 0; i < m->n; i++) {
        KG_TRY(kg_json_put_text(out, ", ", m->row[i].name, err));
        KG_TRY(kg_str_puts(out, ": ", err));
        KG_TRY(kg_json_put_cell(out, m->row[i].value, err));
    }
    return kg_str_puts(out, "}\n", err);
}

static double value_of(const struct kg_json *v)
{
    return kg_json_is_number(v) ? kg_json_real(v, 0) : NAN;
}

kg_status kg_metrics_parse(struct kg_metrics *m, const char **phase, int64_t *step,
                           const struct kg_json_doc *doc, struct kg_err *err)
{
    m->n = 0;
    KG_TRY(kg_json_need_text(phase, doc, doc->root, "phase", err));
    KG_TRY(kg_json_need_int(step, doc, doc->root, "step", 0, INT64_MAX, err));
    for (size_t i = 0; i < kg_json_size(doc->root); i++) {
        const char *name = kg_json_key_at(doc->root, i);

        if (strcmp(name, "phase") == 0 || strcmp(name, "step") == 0)
            continue;
        if (m->n == KG_METRICS_MAX || strlen(name) >= KG_METRIC_NAME)
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected at most %d metrics with names of at most %d "
                           "bytes, found '%.100s' as number %d",
                           doc->where, KG_METRICS_MAX, KG_METRIC_NAME - 1, name,
                           m->n + 1);
        strcpy(m->row[m->n].name, name);
        m->row[m->n++].value = value_of(kg_json_value_at(doc->root, i));
    }
    return KG_OK;
}

/* The rows, their look-up, and the page that is printed from them.
 *
 * A metric is written where it is measured and explained here, and only its name connects
 * the two. A row that ends in NAME stands for many metrics (one for each data source,
 * each reward), and the first row that matches counts; the rows for the policy's
 * validation also explain the anchor's. Standard errors have no rows: a rule derives
 * their names from the names of their metrics. Explanations have formulas, because a name
 * like kl has had six meanings.
 */

static const char *const titles[KG_METRICS_GROUPS] = {
    [KG_METRICS_VALIDATION] = "Validation",
    [KG_METRICS_REWARD] = "Reward",
    [KG_METRICS_KL] = "KL to the anchor",
    [KG_METRICS_POLICY] = "Policy: entropy, ratio, clip",
    [KG_METRICS_OPTIM] = "Loss and optimizer",
    [KG_METRICS_LENGTH] = "Lengths",
    [KG_METRICS_EPISODE] = "Episodes",
    [KG_METRICS_SAMPLING] = "Groups and dynamic sampling",
    [KG_METRICS_REGION] = "Trust regions and masks",
    [KG_METRICS_ANCHOR] = "Anchor",
    [KG_METRICS_MISMATCH] = "Sampler against trainer",
    [KG_METRICS_EXPERTS] = "Load of experts",
    [KG_METRICS_TIME] = "Time",
    [KG_METRICS_MEMORY] = "Memory",
    [KG_METRICS_SOURCE] = "By data source",
    [KG_METRICS_SFT] = "SFT",
};

static const struct kg_metric_row rows[] = {
    {"validation", "val/accuracy", KG_METRICS_VALIDATION, "accuracy",
     "share of completions that the task calls correct, mean over the problems"},
    {"validation", "val/accuracy_stderr", KG_METRICS_VALIDATION, NULL,
     "standard error of this mean, over the problems"},
    {"validation", "val/reward", KG_METRICS_VALIDATION, "reward", "mean reward"},
    {"validation", "val/reward_stderr", KG_METRICS_VALIDATION, NULL,
     "standard error of this mean, over the problems"},
    {"validation", "val/entropy", KG_METRICS_VALIDATION, "entropy",
     "entropy of the policy at the sampled tokens, nats"},
    {"validation", "val/kl", KG_METRICS_VALIDATION, "KL to the reference",
     "KL to the checkpoint `eval.reference` on the sampled tokens, by K3"},
    {"validation", "val/kl_k1", KG_METRICS_VALIDATION, "KL to the reference",
     "this KL by K1"},
    {"validation", "val/response_tokens", KG_METRICS_VALIDATION, "length",
     "mean tokens per completion"},
    {"validation", "val/truncated", KG_METRICS_VALIDATION, "truncated",
     "share of completions that the limit truncated"},
    {"validation", "val/ungraded", KG_METRICS_VALIDATION, "not graded",
     "share of completions that could not be graded"},
    {"validation", "val/seconds", KG_METRICS_VALIDATION, "seconds",
     "wall time of the validation"},
    {"validation", "val/episode/turns", KG_METRICS_VALIDATION, "turns and calls",
     "with `episode.env`: turns of the model, mean per episode"},
    {"validation", "val/episode/calls", KG_METRICS_VALIDATION, "turns and calls",
     "tool calls (searches), mean per episode"},
    {"validation", "val/episode/invalid", KG_METRICS_VALIDATION, "faults",
     "turns without a legal action, mean per episode"},
    {"validation", "val/episode/failed", KG_METRICS_VALIDATION, "faults",
     "calls that no tool answered, mean per episode"},
    {"validation", "val/episode/answered", KG_METRICS_VALIDATION, "ends",
     "share of episodes that ended with an answer"},
    {"validation", "val/episode/cut", KG_METRICS_VALIDATION, "ends",
     "share of episodes that ended because the context was full"},
    {"validation", "val/episode/windowed", KG_METRICS_VALIDATION, "ends",
     "turns sampled only from the newest `episode.window` tokens, mean per episode"},
    {"validation", "val/reward/part/NAME", KG_METRICS_VALIDATION, "each reward",
     "with `task.rewards`: mean of one reward over the completions that it graded, "
     "without its weight"},
    {"validation", "val/reward/part_ungraded/NAME", KG_METRICS_VALIDATION, "not graded",
     "share of completions that this reward's grader could not grade"},
    {"validation", "val/reward/further/NAME", KG_METRICS_VALIDATION, "grader's numbers",
     "mean of an additional number of an external grader, over the completions that have "
     "it"},
    {"rl", "reward/mean", KG_METRICS_REWARD, "reward",
     "mean reward of the completions with a verdict"},
    {"rl", "reward/mean_stderr", KG_METRICS_REWARD, NULL,
     "standard error of this mean, over the prompts of the step"},
    {"rl", "reward/shaped_mean", KG_METRICS_REWARD, "reward",
     "with the overlong penalty: mean reward after the penalty"},
    {"rl", "reward/greedy", KG_METRICS_REWARD, "reward",
     "with a greedy baseline: mean reward of the greedy completions"},
    {"rl", "reward/accuracy", KG_METRICS_REWARD, "accuracy",
     "share of completions that the task calls correct"},
    {"rl", "reward/accuracy_stderr", KG_METRICS_REWARD, NULL,
     "standard error of this mean, over the prompts of the step"},
    {"rl", "reward/greedy_accuracy", KG_METRICS_REWARD, "accuracy",
     "with a greedy baseline: share of greedy completions that are correct"},
    {"rl", "reward/std", KG_METRICS_REWARD, "spread",
     "standard deviation of the rewards"},
    {"rl", "reward/min", KG_METRICS_REWARD, "extremes", "smallest reward"},
    {"rl", "reward/max", KG_METRICS_REWARD, "extremes", "largest reward"},
    {"rl", "reward/ungraded", KG_METRICS_REWARD, "not graded",
     "share of completions without a verdict: in no group's baseline, advantage 0"},
    {"rl", "reward/undecided", KG_METRICS_REWARD, "not graded",
     "share of completions that the grader cannot read or decide: they count as wrong, "
     "or with `task.undecided=ungraded` have no verdict"},
    {"rl", "reward/greedy_ungraded", KG_METRICS_REWARD, "not graded",
     "share of greedy completions that could not be graded: their prompt has no "
     "baseline"},
    {"rl", "reward/overlong", KG_METRICS_REWARD, "penalised for length",
     "with the overlong penalty: share of penalised completions"},
    {"rl", "reward/part/NAME", KG_METRICS_REWARD, "each reward",
     "with `task.rewards`: mean of one reward over the completions that it graded, "
     "without its weight"},
    {"rl", "reward/part_ungraded/NAME", KG_METRICS_REWARD, "not graded",
     "share of completions that this reward's grader could not grade"},
    {"rl", "reward/further/NAME", KG_METRICS_REWARD, "grader's numbers",
     "mean of an additional number of an external grader, over the completions that have "
     "it (true: 1); with `task.rewards`: PART/NAME"},
    {"rl", "grader/starts", KG_METRICS_REWARD, "grader's program",
     "external grader: starts of its program since training began or was resumed"},
    {"rl", "grader/restarts", KG_METRICS_REWARD, "grader's program",
     "external grader: starts that replaced a program that ended after it had graded"},
    {"rl", "advantage/mean", KG_METRICS_REWARD, "advantage",
     "mean advantage of the completions"},
    {"rl", "advantage/min", KG_METRICS_REWARD, "advantage",
     "smallest advantage of a completion"},
    {"rl", "advantage/max", KG_METRICS_REWARD, "advantage",
     "largest advantage of a completion"},
    {"rl", "kl/value", KG_METRICS_KL, "KL",
     "mean KL term of a token, before weight and coefficient; if `kl.in` is not `loss`: "
     "KL per token of each completion, mean over completions"},
    {"rl", "kl/max", KG_METRICS_KL, "largest KL",
     "largest KL term of a token (`kl.in: loss`)"},
    {"rl", "kl/taken_max", KG_METRICS_KL, "off an advantage",
     "`kl.in: advantage`, `advantage-future`: largest amount subtracted from a token's "
     "advantage"},
    {"rl", "kl/beta", KG_METRICS_KL, "coefficient", "coefficient of the KL in this step"},
    {"rl", "kl/head", KG_METRICS_KL, "Top-k parts", "Top-k: the part on the k ids"},
    {"rl", "kl/tail", KG_METRICS_KL, "Top-k parts",
     "Top-k: the sampled part outside the k ids"},
    {"rl", "kl/head_mass", KG_METRICS_KL, "Top-k mass",
     "Top-k: mass of the policy on the k ids"},
    {"rl", "kl/tail_tokens", KG_METRICS_KL, "Top-k tail",
     "Top-k: share of sampled tokens outside the k ids"},
    {"rl", "kl/iw_mean", KG_METRICS_KL, "importance weight",
     "mean importance weight of the sampled tokens (`kl.importance`)"},
    {"rl", "kl/iw_max", KG_METRICS_KL, "importance weight", "largest importance weight"},
    {"rl", "kl/iw_ess", KG_METRICS_KL, "effective sample",
     "effective sample size of the importance weights as a share"},
    {"rl", "policy/entropy", KG_METRICS_POLICY, "entropy",
     "entropy of the policy at the sampled tokens, nats"},
    {"rl", "policy/ratio_mean", KG_METRICS_POLICY, "ratio",
     "ratio of the surrogate, before any clip: mean"},
    {"rl", "policy/ratio_min", KG_METRICS_POLICY, "ratio", "the smallest ratio"},
    {"rl", "policy/ratio_max", KG_METRICS_POLICY, "ratio", "the largest ratio"},
    {"rl", "policy/ratio_ess", KG_METRICS_POLICY, "effective sample",
     "effective sample size of the ratios as a share: (sum r)^2 / (n sum r^2)"},
    {"rl", "policy/clip_fraction", KG_METRICS_POLICY, "clip fraction",
     "clip fraction as the method's published code counts it"},
    {"rl", "policy/clip_low", KG_METRICS_POLICY, "held by a bound",
     "share of tokens clipped at the lower bound"},
    {"rl", "policy/clip_high", KG_METRICS_POLICY, "held by a bound",
     "share of tokens clipped at the upper bound"},
    {"rl", "policy/clip_dual", KG_METRICS_POLICY, "held by a bound",
     "share of tokens clipped at the bound of dual clip"},
    {"rl", "policy/outside_low", KG_METRICS_POLICY, "outside the bounds",
     "share of tokens with a ratio below 1 - `algo.clip_low`, for any advantage "
     "(surrogates without a clip use 0.2, or the preset's value)"},
    {"rl", "policy/outside_high", KG_METRICS_POLICY, "outside the bounds",
     "share of tokens with a ratio above 1 + `algo.clip_high`, for any advantage"},
    {"rl", "policy/kl_old_k1", KG_METRICS_POLICY, "KL from the old policy",
     "KL from the old policy to the current one, by K1"},
    {"rl", "policy/kl_old_k3", KG_METRICS_POLICY, "KL from the old policy",
     "this KL by K3"},
    {"rl", "policy/gap_mean", KG_METRICS_POLICY, "gap of log-probs",
     "|log p - log old|, mean over the tokens"},
    {"rl", "policy/tis_outside", KG_METRICS_POLICY, "weights at a bound",
     "`algo.tis`: share of tokens whose weight old / mu is outside its bounds"},
    {"rl", "policy/gap_max", KG_METRICS_POLICY, "gap of log-probs",
     "largest |log p - log old|"},
    {"rl", "policy/tokens", KG_METRICS_POLICY, "tokens",
     "sampled tokens that carry a loss, of all updates of the step"},
    {"rl", "loss/total", KG_METRICS_OPTIM, "loss",
     "pg + beta kl - c_H entropy + router_aux: weighted sums, mean over the updates"},
    {"rl", "loss/pg", KG_METRICS_OPTIM, "loss", "the policy term of the loss"},
    {"rl", "loss/kl", KG_METRICS_OPTIM, "KL in the loss",
     "the KL term of the loss, before the coefficient"},
    {"rl", "loss/entropy", KG_METRICS_OPTIM, "entropy in the loss",
     "the entropy term of the loss, before the coefficient"},
    {"rl", "loss/router_aux", KG_METRICS_OPTIM, "load in the loss",
     "with `train.router_aux`: the load-balancing loss of experts, with its coefficient"},
    {"rl", "optim/grad_norm", KG_METRICS_OPTIM, "gradient norm",
     "global norm of the gradient before clipping: mean over the updates"},
    {"rl", "optim/grad_norm_max", KG_METRICS_OPTIM, "gradient norm",
     "global norm of the gradient before clipping: largest of the updates"},
    {"rl", "optim/lr", KG_METRICS_OPTIM, "learning rate",
     "learning rate of the last update"},
    {"rl", "optim/updates", KG_METRICS_OPTIM, "updates", "updates of this step"},
    {"rl", "optim/idle_updates", KG_METRICS_OPTIM, "left out",
     "updates skipped because they had no gradient, since the run began"},
    {"rl", "optim/skipped_steps", KG_METRICS_OPTIM, "left out",
     "steps skipped because of non-finite numbers, since the run began"},
    {"rl", "length/mean", KG_METRICS_LENGTH, "length", "tokens per completion: mean"},
    {"rl", "length/min", KG_METRICS_LENGTH, "length", "the shortest completion"},
    {"rl", "length/max", KG_METRICS_LENGTH, "length", "the longest completion"},
    {"rl", "length/truncated", KG_METRICS_LENGTH, "truncated",
     "share of completions that the limit truncated"},
    {"rl", "length/prompt", KG_METRICS_LENGTH, "prompt", "mean tokens per prompt"},
    {"rl", "episode/turns", KG_METRICS_EPISODE, "turns and calls",
     "with `episode.env`: turns of the model, mean per episode"},
    {"rl", "episode/calls", KG_METRICS_EPISODE, "turns and calls",
     "tool calls (searches), mean per episode"},
    {"rl", "episode/invalid", KG_METRICS_EPISODE, "faults",
     "turns without a legal action, mean per episode"},
    {"rl", "episode/failed", KG_METRICS_EPISODE, "faults",
     "calls that no tool answered, mean per episode"},
    {"rl", "episode/answered", KG_METRICS_EPISODE, "ends",
     "share of episodes that ended with an answer"},
    {"rl", "episode/cut", KG_METRICS_EPISODE, "ends",
     "share of episodes that ended because the context was full (`length/truncated` "
     "counts them, too)"},
    {"rl", "episode/windowed", KG_METRICS_EPISODE, "ends",
     "turns sampled only from the newest `episode.window` tokens, mean per episode"},
    {"rl", "episode/observed_tokens", KG_METRICS_EPISODE, "observed",
     "mean tokens that the tools returned; `length/` counts only the model's tokens"},
    {"rl", "episode/seconds_idle", KG_METRICS_EPISODE, "waiting",
     "seconds of the rollout in which every episode waited for a tool and nothing was "
     "decoded"},
    {"rl", "tool/calls", KG_METRICS_EPISODE, "tool",
     "calls of the tools in all rollouts of the step"},
    {"rl", "tool/failed", KG_METRICS_EPISODE, "tool", "calls that no tool answered"},
    {"rl", "tool/requests", KG_METRICS_EPISODE, "tool", "requests sent to a retriever"},
    {"rl", "tool/cached", KG_METRICS_EPISODE, "tool",
     "calls answered without a request: cached or in flight"},
    {"rl", "tool/retries", KG_METRICS_EPISODE, "tool",
     "tries of the retriever after the first"},
    {"rl", "tool/seconds_a_call", KG_METRICS_EPISODE, "waiting",
     "mean time from a call to its answer"},
    {"rl", "groups/all_right", KG_METRICS_SAMPLING, "groups",
     "share of prompts whose graded completions are all correct"},
    {"rl", "groups/all_wrong", KG_METRICS_SAMPLING, "groups",
     "share of prompts whose graded completions are all wrong"},
    {"rl", "groups/equal", KG_METRICS_SAMPLING, "groups",
     "share of prompts whose rewards are all equal: no signal"},
    {"rl", "dynamic/batches", KG_METRICS_SAMPLING, "generation batches",
     "with dynamic sampling: generation batches of the step"},
    {"rl", "dynamic/prompts", KG_METRICS_SAMPLING, "prompts sampled",
     "prompts that were sampled for the step"},
    {"rl", "dynamic/all_right", KG_METRICS_SAMPLING, "prompts left out",
     "sampled prompts whose graded completions are all correct"},
    {"rl", "dynamic/all_wrong", KG_METRICS_SAMPLING, "prompts left out",
     "sampled prompts whose graded completions are all wrong"},
    {"rl", "dynamic/equal", KG_METRICS_SAMPLING, "prompts left out",
     "sampled prompts that the filter left out"},
    {"rl", "dynamic/surplus", KG_METRICS_SAMPLING, "surplus",
     "prompts with differing completions beyond those needed"},
    {"rl", "dynamic/accuracy", KG_METRICS_SAMPLING, "of all completions",
     "share correct of all sampled completions; other metrics cover only the completions "
     "used for training"},
    {"rl", "dynamic/reward", KG_METRICS_SAMPLING, "of all completions",
     "mean reward of all sampled completions"},
    {"rl", "region/masked", KG_METRICS_REGION, "dropped",
     "trust regions: share of tokens dropped"},
    {"rl", "region/masked_positive", KG_METRICS_REGION, "dropped",
     "share of the tokens with A > 0 that were dropped"},
    {"rl", "region/masked_negative", KG_METRICS_REGION, "dropped",
     "share of the tokens with A < 0 that were dropped"},
    {"rl", "region/divergence_mean", KG_METRICS_REGION, "divergence",
     "trust regions: mean of the tested divergence over the tokens"},
    {"rl", "region/divergence_max", KG_METRICS_REGION, "divergence",
     "largest divergence of a token"},
    {"rl", "region/divergence_below_01", KG_METRICS_REGION, "small divergence",
     "share of tokens with a divergence below 0.01"},
    {"rl", "region/divergence_below_05", KG_METRICS_REGION, "small divergence",
     "share of tokens with a divergence below 0.05"},
    {"rl", "region/masked_positive_p", KG_METRICS_REGION, "dropped, A > 0",
     "mean p of the dropped tokens with A > 0"},
    {"rl", "region/masked_positive_mu", KG_METRICS_REGION, "dropped, A > 0",
     "mean mu of the dropped tokens with A > 0"},
    {"rl", "region/masked_negative_p", KG_METRICS_REGION, "dropped, A < 0",
     "mean p of the dropped tokens with A < 0"},
    {"rl", "region/masked_negative_mu", KG_METRICS_REGION, "dropped, A < 0",
     "mean mu of the dropped tokens with A < 0"},
    {"rl", "region/masked_positive_ratio", KG_METRICS_REGION, "ratio of dropped",
     "mean ratio of the dropped tokens with A > 0"},
    {"rl", "region/masked_negative_ratio", KG_METRICS_REGION, "ratio of dropped",
     "mean ratio of the dropped tokens with A < 0"},
    {"rl", "region/masked_positive_entropy", KG_METRICS_REGION, "entropy of dropped",
     "mean entropy at the dropped tokens with A > 0"},
    {"rl", "region/masked_negative_entropy", KG_METRICS_REGION, "entropy of dropped",
     "mean entropy at the dropped tokens with A < 0"},
    {"rl", "mask/answers", KG_METRICS_REGION, "masked completions",
     "with `algo.mask`: share of completions of which the mask dropped policy terms"},
    {"rl", "mask/divergence_mean", KG_METRICS_REGION, "divergence of completions",
     "with `algo.mask`: mean over completions of the divergence that the mask tests"},
    {"rl", "mask/divergence_max", KG_METRICS_REGION, "divergence of completions",
     "largest divergence of a completion"},
    {"rl", "anchor/distance", KG_METRICS_ANCHOR, "distance",
     "Euclidean distance between policy and anchor weights"},
    {"rl", "anchor/distance_relative", KG_METRICS_ANCHOR, "relative distance",
     "distance between policy and anchor weights divided by the norm of the policy's "
     "weights"},
    {"rl", "anchor/updates", KG_METRICS_ANCHOR, "updates",
     "updates of the anchor since the run began"},
    {"rl", "anchor/kl_average", KG_METRICS_ANCHOR, "moving average",
     "with `anchor.kappa`: moving average of the token KL"},
    {"rl", "anchor/refreshed", KG_METRICS_ANCHOR, "refreshed",
     "with `anchor.kappa`: times the policy replaced the anchor since the run began"},
    {"rl", "mismatch/first_update_max", KG_METRICS_MISMATCH, "first update",
     "largest |log p - log old| of the first update, when the policy is still the one "
     "that sampled: 0 without lag, staleness or another dtype"},
    {"rl", "staleness/mean", KG_METRICS_MISMATCH, "age",
     "with `rollout.max_staleness`: steps since the version that sampled a token, mean"},
    {"rl", "staleness/max", KG_METRICS_MISMATCH, "age", "largest age of a token"},
    {"rl", "policy/mismatch_mean", KG_METRICS_MISMATCH, "recomputed",
     "mean |log old - log mu|: 0 unless `train.old_logp: recompute` has a separate "
     "sampler, or `algo.reproduction` an `episode.window`"},
    {"rl", "policy/mismatch_max", KG_METRICS_MISMATCH, "recomputed",
     "largest |log old - log mu|"},
    {"rl", "policy/prob_gap_min", KG_METRICS_MISMATCH, "signed gap",
     "smallest p - mu of all updates"},
    {"rl", "policy/prob_gap_max", KG_METRICS_MISMATCH, "signed gap",
     "largest p - mu of all updates"},
    {"rl", "mismatch/prob_mean", KG_METRICS_MISMATCH, "gap of probabilities",
     "|p - mu| at the sampled tokens: mean; this and the rest of `mismatch/` refer to "
     "the first update"},
    {"rl", "mismatch/prob_std", KG_METRICS_MISMATCH, "gap of probabilities",
     "standard deviation of |p - mu|"},
    {"rl", "mismatch/prob_max", KG_METRICS_MISMATCH, "gap of probabilities",
     "largest |p - mu|"},
    {"rl", "mismatch/kl_k1", KG_METRICS_MISMATCH, "KL of the sampler", "KL(mu, p) by K1"},
    {"rl", "mismatch/kl_k3", KG_METRICS_MISMATCH, "KL of the sampler", "KL(mu, p) by K3"},
    {"rl", "mismatch/perplexity", KG_METRICS_MISMATCH, "perplexity",
     "perplexity of the sampled tokens under p"},
    {"rl", "mismatch/perplexity_sampler", KG_METRICS_MISMATCH, "perplexity",
     "perplexity of the sampled tokens under mu"},
    {"rl", "mismatch/weight_mean", KG_METRICS_MISMATCH, "weight",
     "importance weight p/mu: mean"},
    {"rl", "mismatch/weight_max", KG_METRICS_MISMATCH, "weight",
     "largest importance weight"},
    {"rl", "mismatch/weight_ess", KG_METRICS_MISMATCH, "effective sample",
     "effective sample size of the importance weights as a share"},
    {"rl", "mismatch/cut", KG_METRICS_MISMATCH, "truncated sampling",
     "share of tokens sampled from a part of the vocabulary (`rollout.top_p`, `top_k`, "
     "`min_p`)"},
    {"rl", "mismatch/cut_nats", KG_METRICS_MISMATCH, "truncated sampling",
     "-log of the probability mass that truncation kept, mean per token: with "
     "`algo.reproduction` the distance between the sampling policy and the one in the "
     "ratios; otherwise ratios are renormalised, and this has no effect on them"},
    {"rl", "mismatch/window", KG_METRICS_MISMATCH, "sampled from a window",
     "`algo.reproduction` with `episode.window`: share of tokens sampled from a window, "
     "the newest tokens of their text; ratios refer to the whole text"},
    {"rl", "mismatch/window_nats", KG_METRICS_MISMATCH, "sampled from a window",
     "tokens sampled from a window: mean of |log p - log mu|, nats; p: given the whole "
     "text, mu: given the window, as recorded"},
    {"rl", "experts/load_max", KG_METRICS_EXPERTS, "load of experts",
     "with experts, over all tokens of the updates: tokens of a layer's busiest "
     "expert divided by the mean of its experts; mean over the layers"},
    {"rl", "experts/load_worst", KG_METRICS_EXPERTS, "load of experts",
     "tokens of the busiest expert divided by the mean of the experts, in the worst "
     "layer"},
    {"rl", "experts/unused", KG_METRICS_EXPERTS, "unused experts",
     "share of experts without any token, over all layers"},
    {"rl", "experts/entropy", KG_METRICS_EXPERTS, "entropy of the load",
     "- sum_e f_e log f_e of the shares f of a layer's experts, nats, mean over the "
     "layers; log E if all have the same load"},
    {"rl", "seconds/step", KG_METRICS_TIME, "seconds of a step",
     "wall time of the step, without validation and saving"},
    {"rl", "seconds/rollout", KG_METRICS_TIME, "seconds of a step",
     "sampling and grading"},
    {"rl", "seconds/anchor", KG_METRICS_TIME, "seconds of a step",
     "passes of the anchor and of `train.old_logp: recompute`"},
    {"rl", "seconds/train", KG_METRICS_TIME, "seconds of a step",
     "forward, backward and update"},
    {"rl", "tokens_per_second/decode", KG_METRICS_TIME, "tokens a second",
     "tokens decoded per second"},
    {"rl", "tokens_per_second/prefill", KG_METRICS_TIME, "tokens a second",
     "prompt tokens processed per second"},
    {"rl", "tokens_per_second/train", KG_METRICS_TIME, "tokens a second",
     "tokens trained per second"},
    {"rl", "perf/shared_tokens", KG_METRICS_TIME, "tokens",
     "with `train.share_prefix`: prompt tokens of the updates that a micro-batch "
     "computed once for several completions"},
    {"rl", "share_of_gemm_ceiling", KG_METRICS_TIME, "share of the ceiling",
     "useful FLOP/s of the step, relative to multiply-adds in registers (on a GPU: to a "
     "product of its library), measured at the start"},
    {"rl", "seconds/sampling/rank/NAME", KG_METRICS_TIME, "sampling, by rank",
     "with several ranks: seconds in which this rank sampled and graded (a rollout rank: "
     "the batch of this step)"},
    {"rl", "seconds/waiting/rank/NAME", KG_METRICS_TIME, "waiting, by rank",
     "seconds since the previous line in which this rank waited for the others"},
    {"rl", "seconds/exchange/rank/NAME", KG_METRICS_TIME, "exchange, by rank",
     "seconds since the previous line in which this rank exchanged gradients, "
     "completions and weights"},
    {"rl", "seconds/slowest_rank", KG_METRICS_TIME, "slowest rank",
     "the slowest rank: it waits least, because the others wait for it"},
    {"rl", "memory/resident_gb", KG_METRICS_MEMORY, "memory",
     "anonymous resident memory, GB"},
    {"rl", "memory/peak_gb", KG_METRICS_MEMORY, "memory",
     "peak of allocated memory since the process began, GB"},
    {"rl", "reward/source/NAME", KG_METRICS_SOURCE, "reward",
     "mean reward by `data_source`, if the training data has several; beyond 16 "
     "in a step: `other`"},
    {"rl", "accuracy/source/NAME", KG_METRICS_SOURCE, "accuracy",
     "share of the source's completions that are correct"},
    {"rl", "length/source/NAME", KG_METRICS_SOURCE, "length",
     "mean tokens per completion of the source"},
    {"rl", "answers/source/NAME", KG_METRICS_SOURCE, "completions",
     "completions of the source in the step"},
    {"validation", "val/accuracy/source/NAME", KG_METRICS_SOURCE,
     "accuracy in validation",
     "share correct by `data_source`, if the validation data has several"},
    {"validation", "val/accuracy_stderr/source/NAME", KG_METRICS_SOURCE, NULL,
     "standard error of the source's accuracy, over the problems"},
    {"validation", "val/reward/source/NAME", KG_METRICS_SOURCE, "reward in validation",
     "mean reward of the source's completions"},
    {"validation", "val/length/source/NAME", KG_METRICS_SOURCE, "length in validation",
     "mean tokens per completion of the source"},
    {"validation", "val/answers/source/NAME", KG_METRICS_SOURCE,
     "completions in validation", "completions of the source in the validation"},
    {"sft", "loss", KG_METRICS_SFT, "loss",
     "mean negative log-likelihood, nats per learned token"},
    {"sft", "val_loss", KG_METRICS_SFT, "loss",
     "mean loss of the sequences of `sft.val`, after the update (`sft.eval_every`)"},
    {"sft", "grad_norm", KG_METRICS_SFT, "gradient norm",
     "global norm of the gradient before clipping"},
    {"sft", "lr", KG_METRICS_SFT, "learning rate", "learning rate of the update"},
    {"sft", "router_aux", KG_METRICS_SFT, "load in the loss",
     "with `train.router_aux`: the load-balancing loss of experts, with its coefficient; "
     "in `loss`"},
    {"sft", "experts/load_max", KG_METRICS_SFT, "load of experts",
     "with experts, over all tokens of the updates: tokens of a layer's busiest "
     "expert divided by the mean of its experts; mean over the layers"},
    {"sft", "experts/load_worst", KG_METRICS_SFT, "load of experts",
     "tokens of the busiest expert divided by the mean of the experts, in the worst "
     "layer"},
    {"sft", "experts/unused", KG_METRICS_SFT, "unused experts",
     "share of experts without any token, over all layers"},
    {"sft", "experts/entropy", KG_METRICS_SFT, "entropy of the load",
     "- sum_e f_e log f_e of the shares f of a layer's experts, nats, mean over the "
     "layers; log E if all have the same load"},
    {"sft", "loss_tokens", KG_METRICS_SFT, "tokens", "tokens that carry a loss"},
    {"sft", "perf/shared_tokens", KG_METRICS_SFT, "tokens",
     "with `train.share_prefix`: tokens that a micro-batch computed once for several "
     "sequences"},
    {"sft", "seconds", KG_METRICS_SFT, "seconds", "wall time of the update"},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

const char *kg_metric_group_title(enum kg_metric_group group) { return titles[group]; }

const struct kg_metric_row *kg_metric_at(size_t i)
{
    return i < N_ROWS ? &rows[i] : NULL;
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Whether a row's name, which may end in /NAME, matches this metric. */
static bool stands_for(const char *pattern, const char *name)
{
    size_t n = strlen(pattern);

    if (n < 5 || strcmp(pattern + n - 5, "/NAME") != 0)
        return strcmp(pattern, name) == 0;
    return strncmp(pattern, name, n - 4) == 0 && name[n - 4] != '\0';
}

const struct kg_metric_row *kg_metric_find(const char *phase, const char *name)
{
    static const char policy[] = "val/", anchor[] = "val_anchor/";
    bool of_anchor = begins(name, anchor);

    for (size_t i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].phase, phase) != 0)
            continue;
        if (!of_anchor && stands_for(rows[i].name, name))
            return &rows[i];
        if (of_anchor && begins(rows[i].name, policy) &&
            stands_for(rows[i].name + strlen(policy), name + strlen(anchor)))
            return &rows[i];
    }
    return NULL;
}

bool kg_metric_stderr(char *out, size_t bytes, const char *name)
{
    const char *source = strstr(name, "/source/");
    size_t head = source ? (size_t)(source - name) : strlen(name);
    int n = snprintf(out, bytes, "%.*s_stderr%s", (int)head, name, name + head);

    return n > 0 && (size_t)n < bytes;
}

/* ---- the page ---- */

static const char page_head[] =
    "# Metrics\n\n"
    "`kedge report --metrics` prints this page, which lists every number in a run's\n"
    "`metrics.jsonl` and TensorBoard events. `make docs` rewrites it from the table\n"
    "in `src/report/metrics.c`.\n\n"
    "A line has a `phase` (`sft`, `rl` or `validation`) and a `step`. In lines of\n"
    "phase `rl` \"tokens\" are the sampled tokens that carry a loss; p, old and mu are\n"
    "their probabilities under policy, old policy and sampler.\n\n"
    "Lines of phase `validation` need validation data; with `eval.anchor` they also\n"
    "have the anchor's numbers, under `val_anchor/`. A non-finite number is null. The\n"
    "line of a step that was skipped because of non-finite numbers has only counters.\n";

static kg_status put_cell(struct kg_str *out, const char *text, struct kg_err *err)
{
    for (; *text; text++) {
        if (*text == '|')
            KG_TRY(kg_str_putc(out, '\\', err));
        KG_TRY(kg_str_putc(out, *text, err));
    }
    return KG_OK;
}

kg_status kg_metric_page(struct kg_str *out, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, page_head, err));
    for (size_t i = 0; i < N_ROWS; i++) {
        if (i == 0 || rows[i].group != rows[i - 1].group)
            KG_TRY(kg_str_printf(out, err,
                                 "\n## %s\n\n| phase | name | meaning |\n|---|---|---|\n",
                                 titles[rows[i].group]));
        KG_TRY(kg_str_printf(out, err, "| %s | `%s` | ", rows[i].phase, rows[i].name));
        KG_TRY(put_cell(out, rows[i].help, err));
        KG_TRY(kg_str_puts(out, " |\n", err));
    }
    return KG_OK;
}
