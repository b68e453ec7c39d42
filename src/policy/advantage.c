/* Advantages of whole trajectories, and the call that serves every row.
 *
 * Not here: returns and baselines of single tokens (advantage_token.c). A row fills
 * job->seq or job->token; the other is derived, so that a caller always has both.
 */
#include "policy/policy_internal.h"

#include "base/mem.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Mean and deviation (n - 1) of a group's scores. A group of one has mean 0 and deviation
 * 1: its advantage is its score, as published. */
struct group {
    int64_t begin, n;
    double mean, std;
    bool equal; /* all scores are equal */
};

static double sum_of(const double *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

bool kg_advantage_equal(const double *x, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        if (x[i] != x[0])
            return false;
    return true;
}

/* The mean of equal numbers is that number. Their rounded sum over n can differ from it,
 * and the difference would act as an advantage. */
static double mean_of(const double *x, int64_t n)
{
    return n > 0 && kg_advantage_equal(x, n) ? x[0] : sum_of(x, n) / (double)n;
}

static double deviation(const double *x, int64_t n, double mean)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return sqrt(sum / (double)(n - 1));
}

static struct group group_at(const struct kg_advantage_job *job, int64_t g)
{
    struct group r = {.begin = job->in->group_begin[g], .std = 1};

    r.n = job->in->group_begin[g + 1] - r.begin;
    r.equal = kg_advantage_equal(job->score + r.begin, r.n);
    if (r.n >= 2) {
        r.mean = mean_of(job->score + r.begin, r.n);
        r.std = deviation(job->score + r.begin, r.n, r.mean);
    }
    return r;
}

/* seq = score - group mean, with by_std divided by std + eps. */
static void center(struct kg_advantage_job *job, bool by_std)
{
    for (int64_t g = 0; g < job->in->n_groups; g++) {
        struct group group = group_at(job, g);
        double divisor = by_std ? group.std + job->algo->std_eps : 1;

        for (int64_t i = group.begin; i < group.begin + group.n; i++)
            job->seq[i] = (job->score[i] - group.mean) / divisor;
    }
}

static void grpo(struct kg_advantage_job *job) { center(job, true); }
static void dr_grpo(struct kg_advantage_job *job) { center(job, false); }

static void grpo_floor(struct kg_advantage_job *job)
{
    for (int64_t g = 0; g < job->in->n_groups; g++) {
        struct group group = group_at(job, g);
        double std = fmax(group.std, 1e-3);

        for (int64_t i = group.begin; i < group.begin + group.n; i++)
            job->seq[i] = (job->score[i] - group.mean) / (std + 1e-6);
    }
}

static void batch_std(struct kg_advantage_job *job)
{
    int64_t n = job->in->n_seqs;

    center(job, false);
    if (n < 2)
        return;
    job->batch_std = deviation(job->seq, n, mean_of(job->seq, n));
    for (int64_t i = 0; i < n; i++)
        job->seq[i] /= job->batch_std + 1e-6;
}

static void batch_mean(struct kg_advantage_job *job)
{
    int64_t n = job->in->n_seqs;
    double mean = mean_of(job->score, n);

    for (int64_t i = 0; i < n; i++)
        job->seq[i] = job->score[i] - mean;
}

static void leave_one_out(struct kg_advantage_job *job, double single)
{
    for (int64_t g = 0; g < job->in->n_groups; g++) {
        struct group group = group_at(job, g);
        double scale = group.n >= 2 ? (double)group.n / (double)(group.n - 1) : single;

        for (int64_t i = group.begin; i < group.begin + group.n; i++)
            job->seq[i] = scale * (job->score[i] - group.mean);
    }
}

static void rloo(struct kg_advantage_job *job) { leave_one_out(job, 1); }
static void rloo_vectorized(struct kg_advantage_job *job) { leave_one_out(job, 0); }

static int64_t length_of(const struct kg_policy_scores *in, int64_t i)
{
    int64_t n = in->seq_begin[i + 1] - in->seq_begin[i], kept = 0;

    if (!in->mask)
        return n;
    for (int64_t t = in->seq_begin[i]; t < in->seq_begin[i + 1]; t++)
        kept += in->mask[t] != 0;
    return kept;
}

static void opo(struct kg_advantage_job *job)
{
    for (int64_t g = 0; g < job->in->n_groups; g++) {
        struct group group = group_at(job, g);
        double weighted = 0, total = 0, baseline = 0;

        for (int64_t i = group.begin; i < group.begin + group.n; i++) {
            double length = (double)length_of(job->in, i);

            weighted += length * job->score[i];
            total += length;
        }
        if (group.n >= 2 && total > 0)
            baseline = group.equal ? group.mean : weighted / total;
        for (int64_t i = group.begin; i < group.begin + group.n; i++)
            job->seq[i] = job->score[i] - baseline;
    }
}

static void gpg(struct kg_advantage_job *job)
{
    int64_t n = job->in->n_seqs, nonzero = 0;

    for (int64_t i = 0; i < n; i++)
        nonzero += job->score[i] != 0;
    center(job, false);
    for (int64_t i = 0; i < n; i++)
        job->seq[i] *= (double)n / (double)(nonzero > 0 ? nonzero : 1) /
                       job->algo->gpg_norm;
}

/* Only the best completion of a group, by its lead over the second best. */
static void passk(struct kg_advantage_job *job, bool by_std)
{
    for (int64_t g = 0; g < job->in->n_groups; g++) {
        struct group group = group_at(job, g);
        double best = -INFINITY, second = -INFINITY;
        int64_t who = group.begin;

        for (int64_t i = group.begin; i < group.begin + group.n; i++) {
            job->seq[i] = 0;
            if (job->score[i] > best) {
                second = best;
                best = job->score[i];
                who = i;
            } else {
                second = fmax(second, job->score[i]);
            }
        }
        if (group.n >= 2)
            job->seq[who] = (best - second) / (by_std ? group.std + 1e-6 : 1);
    }
}

static void passk_plain(struct kg_advantage_job *job) { passk(job, false); }
static void passk_std(struct kg_advantage_job *job) { passk(job, true); }

/* Divides by the group's mean. With rewards 0 and 1, of which a fraction p is 1, a
 * correct completion weighs 1/p: this gives the gradient of log p, expanded up to the
 * order of the group's size. Rewards with a mean <= 0 give no signal. */
static void maxrl(struct kg_advantage_job *job)
{
    for (int64_t g = 0; g < job->in->n_groups; g++) {
        int64_t begin = job->in->group_begin[g], end = job->in->group_begin[g + 1];
        double mean = mean_of(job->score + begin, end - begin);

        for (int64_t i = begin; i < end; i++)
            job->seq[i] = mean > 0 ? (job->score[i] - mean) / mean : 0;
    }
}

static void maxrl_eps(struct kg_advantage_job *job)
{
    for (int64_t g = 0; g < job->in->n_groups; g++) {
        struct group group = group_at(job, g);
        double divisor = group.n >= 2 ? group.mean + 1e-6 : 1;

        for (int64_t i = group.begin; i < group.begin + group.n; i++)
            job->seq[i] = (job->score[i] - group.mean) / divisor;
    }
}

/* Reward k of trajectory i; NaN: no verdict. */
static double part_of(const struct kg_policy_scores *in, int64_t i, int k)
{
    return in->part[i * in->n_parts + k];
}

/* out += w (r - mean) / (std + eps) for reward k, over the completions that have it */
static void add_part(double *out, const struct kg_advantage_job *job, int64_t g, int k)
{
    const struct kg_policy_scores *in = job->in;
    int64_t begin = in->group_begin[g], end = in->group_begin[g + 1];
    double n = 0, mean = 0, squares = 0, first = NAN, divisor;
    bool equal = true;

    for (int64_t i = begin; i < end; i++) {
        double x = part_of(in, i, k);

        if (isnan(x))
            continue;
        first = n == 0 ? x : first;
        equal = equal && x == first;
        n++;
    }
    for (int64_t i = begin; !equal && i < end; i++)
        mean += isnan(part_of(in, i, k)) ? 0 : part_of(in, i, k) / n;
    if (equal)
        mean = first;
    for (int64_t i = begin; i < end; i++) {
        double x = part_of(in, i, k) - mean;

        squares += isnan(x) ? 0 : x * x;
    }
    divisor = (n > 1 ? sqrt(squares / (n - 1)) : 0) + job->algo->std_eps;
    for (int64_t i = begin; i < end; i++)
        if (!isnan(part_of(in, i, k)))
            out[i] += in->part_weight[k] * (part_of(in, i, k) - mean) / divisor;
}

void kg_advantage_sum_parts(double *out, const struct kg_advantage_job *job)
{
    for (int64_t i = 0; i < job->in->n_seqs; i++)
        out[i] = 0;
    for (int64_t g = 0; g < job->in->n_groups; g++)
        for (int k = 0; k < job->in->n_parts; k++)
            add_part(out, job, g, k);
}

static void gdpo(struct kg_advantage_job *job)
{
    int64_t n = job->in->n_seqs;
    double mean, std;

    kg_advantage_sum_parts(job->seq, job);
    mean = mean_of(job->seq, n);
    std = n > 1 ? deviation(job->seq, n, mean) : 0;
    for (int64_t i = 0; i < n; i++)
        job->seq[i] = (job->seq[i] - mean) / (std + job->algo->std_eps);
}

#define TRAJECTORY KG_SCOPE_SEQUENCE
static const struct kg_advantage_row rows[] = {
    {{"grpo", "group mean and deviation", "(R - mean) / (std + eps), std with n - 1",
      "Shao et al. 2024, arXiv 2402.03300", TRAJECTORY, KG_NEED_GROUP, "algo.std_eps"},
     grpo,
     NULL},
    {{"dr-grpo", "group mean only", "R - mean", "Liu et al. 2025, arXiv 2503.20783",
      TRAJECTORY, KG_NEED_GROUP, NULL},
     dr_grpo,
     NULL},
    {{"rpg", "group mean only (the name used by RPG)", "R - mean", "arXiv 2505.17508",
      TRAJECTORY, KG_NEED_GROUP, NULL},
     dr_grpo,
     NULL},
    {{"batch-std",
      "group mean, deviation of the whole batch; the KL is also divided by this "
      "deviation",
      "(R - mean) / (std_batch(R - mean) + 1e-6)", "arXiv 2602.04417, code", TRAJECTORY,
      KG_NEED_GROUP, NULL},
     batch_std,
     NULL},
    {{"batch-mean", "mean of the whole batch", "R - mean_batch", "arXiv 2505.17508, code",
      TRAJECTORY, 0, NULL},
     batch_mean,
     NULL},
    {{"grpo-floor", "grpo with a lower bound of the deviation",
      "(R - mean) / (max(std, 1e-3) + 1e-6)", "arXiv 2602.04879, code", TRAJECTORY,
      KG_NEED_GROUP, NULL},
     grpo_floor,
     NULL},
    {{"rloo", "leave-one-out mean", "n / (n - 1) (R - mean)",
      "Ahmadian et al. 2024, arXiv 2402.14740", TRAJECTORY, KG_NEED_GROUP, NULL},
     rloo,
     NULL},
    {{"rloo-vectorized", "rloo; a group of one has advantage 0, not its reward",
      "n / (n - 1) (R - mean)", "arXiv 2602.04879, code", TRAJECTORY, KG_NEED_GROUP,
      NULL},
     rloo_vectorized,
     NULL},
    {{"opo", "group mean weighted by length", "R - sum(L R) / sum(L)",
      "Hao et al. 2025, arXiv 2505.23585", TRAJECTORY, KG_NEED_GROUP, NULL},
     opo,
     NULL},
    {{"gpg", "R - group mean, divided by the share of completions whose reward is not 0",
      "(B / #nonzero) (R - mean) / f_norm", "Chu et al. 2025, arXiv 2504.02546",
      TRAJECTORY, KG_NEED_GROUP, "algo.gpg_norm"},
     gpg,
     NULL},
    {{"passk", "only the best completion of a group: its lead over the second",
      "best - second for the best, else 0", "arXiv 2602.04879, code", TRAJECTORY,
      KG_NEED_GROUP, NULL},
     passk_plain,
     NULL},
    {{"passk-std", "passk divided by the group's deviation",
      "(best - second) / (std + 1e-6)", "arXiv 2602.04879, code", TRAJECTORY,
      KG_NEED_GROUP, NULL},
     passk_std,
     NULL},
    {{"maxrl",
      "reward minus group mean, divided by the mean: rarely solved prompts weigh more",
      "(R - mean) / mean; 0 where mean <= 0",
      "Tajwar et al. 2026, arXiv 2602.02710; prime-rl", TRAJECTORY, KG_NEED_GROUP, NULL},
     maxrl,
     NULL},
    {{"maxrl-eps", "maxrl as in SkyRL; rewards below 0 can flip its sign",
      "(R - mean) / (mean + 1e-6)", "arXiv 2602.02710; SkyRL", TRAJECTORY, KG_NEED_GROUP,
      NULL},
     maxrl_eps,
     NULL},
    {{"gdpo",
      "several rewards: each is normalised in its group, then their weighted sum in "
      "the batch",
      "(X - mean_batch X) / (std_batch X + eps), X = sum_k w_k (R_k - mean) / (std + "
      "eps)",
      "Liu et al. 2026, arXiv 2601.05242; TRL, NeMo-RL", KG_SCOPE_BATCH,
      KG_NEED_GROUP | KG_NEED_PARTS, "algo.std_eps"},
     gdpo,
     NULL},
    {{"gdpo-token", "gdpo with its sum whitened over all tokens of the batch",
      "whiten(sum_k w_k (R_k - mean) / (std + eps))", "arXiv 2601.05242; verl",
      KG_SCOPE_BATCH, KG_NEED_GROUP | KG_NEED_PARTS, "algo.std_eps algo.count_eps"},
     NULL,
     kg_advantage_gdpo_token},
    {{"reinforce++", "discounted return, whitened over all tokens of the batch",
      "whiten(sum_{u >= t} gamma^(u-t) R_u)", "Hu 2025, arXiv 2501.03262", KG_SCOPE_BATCH,
      0, "algo.gamma algo.count_eps"},
     NULL,
     kg_advantage_reinforce_pp},
    {{"reinforce++-baseline", "group mean, then whitened over all tokens of the batch",
      "whiten(R - mean)", "Hu 2025, arXiv 2501.03262", KG_SCOPE_BATCH, KG_NEED_GROUP,
      "algo.count_eps"},
     NULL,
     kg_advantage_reinforce_pp_baseline},
    {{"remax", "return minus the reward of the greedy completion",
      "sum_{u >= t} R_u - R_greedy", "Li et al. 2023, arXiv 2310.10505", KG_SCOPE_TOKEN,
      KG_NEED_GREEDY, NULL},
     NULL,
     kg_advantage_remax},
    {{"gae", "generalised advantage estimate of a critic, whitened",
      "whiten(sum_l (gamma lambda)^l delta_{t+l})",
      "Schulman et al. 2015, arXiv 1506.02438", KG_SCOPE_BATCH, KG_NEED_VALUES,
      "algo.gamma algo.lambda algo.count_eps"},
     NULL,
     kg_advantage_gae},
    {{"token-baseline", "optimal baseline of each position of the group",
      "G_t - sum G w / sum w, w = cumsum(1 - 2 p_y + sum_v p_v^2)",
      "arXiv 2602.04879, code", KG_SCOPE_SEQUENCE, KG_NEED_SUM_SQ | KG_NEED_GROUP, NULL},
     NULL,
     kg_advantage_token_baseline},
    {{"token-baseline-tail",
      "token-baseline, 0 at positions that only one completion reaches",
      "as token-baseline", "arXiv 2602.04879, code", KG_SCOPE_SEQUENCE,
      KG_NEED_SUM_SQ | KG_NEED_GROUP, NULL},
     NULL,
     kg_advantage_token_baseline_tail},
};

struct kg_policy_rows kg_advantage_rows(void)
{
    return (struct kg_policy_rows){rows, KG_COUNT(rows), sizeof rows[0]};
}

/* ---- the call ---- */

static kg_status check_scores(const struct kg_policy_advantage *out,
                              const struct kg_algo *algo,
                              const struct kg_policy_scores *in, struct kg_err *err)
{
    const struct kg_policy_about *about = &algo->advantage->about;
    struct {
        unsigned need;
        const void *given;
        const char *what;
    } inputs[] = {{KG_NEED_GREEDY, in->greedy, "greedy rewards"},
                  {KG_NEED_VALUES, in->value, "values of a critic"},
                  {KG_NEED_SUM_SQ, in->sum_sq, "sum of squared probabilities"},
                  {KG_NEED_SUM_SQ, in->old_logp, "old log-probs"},
                  {KG_NEED_PARTS, in->n_parts > 0 ? in->part : NULL, "several rewards"},
                  {KG_NEED_PARTS, in->part_weight, "weights of the rewards"}};

    for (size_t i = 0; i < KG_COUNT(inputs); i++)
        if ((about->needs & inputs[i].need) && !inputs[i].given)
            return kg_fail(err, KG_EINVAL, "algo.advantage %s: expected %s, found none",
                           about->name, inputs[i].what);
    if (algo->advantage->token && !out->token)
        return kg_fail(err, KG_EINVAL,
                       "algo.advantage %s: expected an array for one advantage per token",
                       about->name);
    return KG_OK;
}

static kg_status sum_scores(double *score, const struct kg_policy_scores *in,
                            struct kg_err *err)
{
    for (int64_t i = 0; i < in->n_seqs; i++) {
        score[i] = in->reward ? in->reward[i] : 0;
        for (int64_t t = in->seq_begin[i]; in->token_reward && t < in->seq_begin[i + 1];
             t++)
            score[i] += in->token_reward[t];
        if (!isfinite(score[i]))
            return kg_fail(err, KG_ENONFINITE,
                           "reward of trajectory %lld: expected a number, found %g",
                           (long long)i, score[i]);
    }
    for (int64_t i = 0; in->part && i < in->n_seqs * in->n_parts; i++)
        if (isinf(in->part[i]))
            return kg_fail(err, KG_ENONFINITE,
                           "reward %lld of trajectory %lld: expected a number, found %g",
                           (long long)(i % in->n_parts), (long long)(i / in->n_parts),
                           in->part[i]);
    return KG_OK;
}

/* Trajectory rows: copies the scalar to every token that counts. Token rows: computes the
 * mean over a trajectory's tokens that count. */
static void spread(const struct kg_advantage_job *job, struct kg_policy_advantage *out)
{
    const struct kg_policy_scores *in = job->in;
    bool by_token = job->algo->advantage->token != NULL;

    for (int64_t i = 0; i < in->n_seqs; i++) {
        double sum = 0;

        for (int64_t t = in->seq_begin[i]; out->token && t < in->seq_begin[i + 1]; t++) {
            bool counts = !in->mask || in->mask[t];

            if (!by_token)
                out->token[t] = counts ? job->seq[i] : 0;
            sum += counts ? out->token[t] : 0;
        }
        if (by_token)
            job->seq[i] = length_of(in, i) > 0 ? sum / (double)length_of(in, i) : 0;
    }
}

static void describe(const struct kg_advantage_job *job, struct kg_policy_advantage *out)
{
    const struct kg_policy_scores *in = job->in;

    out->batch_std = job->batch_std;
    out->mean = in->n_seqs > 0 ? sum_of(job->seq, in->n_seqs) / (double)in->n_seqs : 0;
    out->min = in->n_seqs > 0 ? DBL_MAX : 0;
    out->max = in->n_seqs > 0 ? -DBL_MAX : 0;
    for (int64_t i = 0; i < in->n_seqs; i++) {
        out->min = fmin(out->min, job->seq[i]);
        out->max = fmax(out->max, job->seq[i]);
    }
    out->groups_equal = 0;
    for (int64_t g = 0; g < in->n_groups; g++) {
        int64_t begin = in->group_begin[g], end = in->group_begin[g + 1];

        out->groups_equal += kg_advantage_equal(job->score + begin, end - begin);
    }
    if (out->seq)
        memcpy(out->seq, job->seq, (size_t)in->n_seqs * sizeof *out->seq);
}

kg_status kg_policy_advantages(struct kg_policy_advantage *out,
                               const struct kg_algo *algo,
                               const struct kg_policy_scores *scores, struct kg_err *err)
{
    const struct kg_advantage_row *row = algo->advantage;
    struct kg_advantage_job job = {.algo = algo, .in = scores, .token = out->token};
    size_t s = (size_t)scores->n_seqs, n = (size_t)scores->seq_begin[scores->n_seqs];
    double *block;
    kg_status status;

    KG_TRY(check_scores(out, algo, scores, err));
    if (kg_advantage_drops(scores))
        return kg_advantage_of_kept(out, algo, scores, err);
    KG_TRY(kg_mem_new(&block, 2 * s + (row->token ? n : 0), sizeof(double), "advantages",
                      err));
    job.score = block;
    job.seq = block + s;
    job.returns = out->returns ? out->returns : block + 2 * s;
    KG_TRY_GOTO(out, sum_scores(block, scores, err));
    if (row->token)
        row->token(&job);
    else
        row->trajectory(&job);
    spread(&job, out);
    describe(&job, out);
out:
    kg_mem_free(block);
    return status;
}
