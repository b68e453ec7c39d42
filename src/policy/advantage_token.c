/* Advantages of single tokens: returns to go, whitening, critics, baselines by position.
 *
 * Whitening runs over the tokens that count and nothing else. Published code adds 1e-8 to
 * the count inside masked means; that is algo->count_eps, 0 here by default.
 */
#include "base/real.h"
#include "policy/policy_internal.h"

#include <math.h>

static bool counts(const struct kg_policy_scores *in, int64_t t)
{
    return !in->mask || in->mask[t];
}

/* The reward belongs to the last token that counts (if none does, to the last token). */
static int64_t last_token(const struct kg_policy_scores *in, int64_t i)
{
    for (int64_t t = in->seq_begin[i + 1] - 1; t >= in->seq_begin[i]; t--)
        if (counts(in, t))
            return t;
    return in->seq_begin[i + 1] - 1;
}

static double reward_at(const struct kg_policy_scores *in, int64_t i, int64_t t)
{
    double r = in->token_reward ? in->token_reward[t] : 0;

    if (in->reward && t == last_token(in, i))
        r += in->reward[i];
    return r;
}

/* x <- (x - mean) / sqrt(var + 1e-8); mean and var (n - 1) are over tokens that count.
 * Other tokens are transformed, too, but carry no loss. */
static void whiten(double *x, const struct kg_advantage_job *job)
{
    const struct kg_policy_scores *in = job->in;
    int64_t total = in->seq_begin[in->n_seqs], n = 0;
    double sum = 0, squares = 0, first = 0, mean, var, count;
    bool equal = true;

    for (int64_t t = 0; t < total; t++)
        if (counts(in, t)) {
            first = n == 0 ? x[t] : first;
            equal = equal && x[t] == first;
            sum += x[t];
            n++;
        }
    count = (double)n + job->algo->count_eps;
    mean = count > 0 ? sum / count : 0;
    if (equal && count == (double)n)
        mean = first; /* exact: equal values then whiten to 0 */
    for (int64_t t = 0; t < total; t++)
        if (counts(in, t))
            squares += (x[t] - mean) * (x[t] - mean);
    var = n > 1 ? squares / count * (double)n / (double)(n - 1) : 0;
    for (int64_t t = 0; t < total; t++)
        x[t] = (x[t] - mean) / sqrt(var + 1e-8);
}

static void keep_counted(double *x, const struct kg_policy_scores *in)
{
    for (int64_t t = 0; t < in->seq_begin[in->n_seqs]; t++)
        if (!counts(in, t))
            x[t] = 0;
}

/* G_t = R_t + gamma G_{t+1}. With reset, a token that does not count hides what follows
 * it from the tokens before it. */
static void returns_to_go(const struct kg_advantage_job *job, double gamma, bool reset)
{
    const struct kg_policy_scores *in = job->in;

    for (int64_t i = 0; i < in->n_seqs; i++) {
        double running = 0;

        for (int64_t t = in->seq_begin[i + 1] - 1; t >= in->seq_begin[i]; t--) {
            running = reward_at(in, i, t) + gamma * running;
            job->returns[t] = running;
            if (reset && !counts(in, t))
                running = 0;
        }
    }
}

void kg_advantage_reinforce_pp(struct kg_advantage_job *job)
{
    int64_t n = job->in->seq_begin[job->in->n_seqs];

    returns_to_go(job, job->algo->gamma, true);
    for (int64_t t = 0; t < n; t++)
        job->token[t] = job->returns[t];
    whiten(job->token, job);
    keep_counted(job->token, job->in);
}

void kg_advantage_reinforce_pp_baseline(struct kg_advantage_job *job)
{
    const struct kg_policy_scores *in = job->in;

    for (int64_t g = 0; g < in->n_groups; g++) {
        int64_t begin = in->group_begin[g], end = in->group_begin[g + 1];
        double mean = 0;

        for (int64_t i = begin; end - begin > 1 && i < end; i++)
            mean += job->score[i] / (double)(end - begin);
        if (end - begin > 1 && kg_advantage_equal(job->score + begin, end - begin))
            mean = job->score[begin];
        for (int64_t i = begin; i < end; i++)
            for (int64_t t = in->seq_begin[i]; t < in->seq_begin[i + 1]; t++)
                job->token[t] = counts(in, t) ? job->score[i] - mean : 0;
    }
    whiten(job->token, job);
    keep_counted(job->token, in);
    for (int64_t t = 0; t < in->seq_begin[in->n_seqs]; t++)
        job->returns[t] = job->token[t];
}

/* job->seq is scratch here: it is computed later, from the token advantages. */
void kg_advantage_gdpo_token(struct kg_advantage_job *job)
{
    const struct kg_policy_scores *in = job->in;

    kg_advantage_sum_parts(job->seq, job);
    for (int64_t i = 0; i < in->n_seqs; i++)
        for (int64_t t = in->seq_begin[i]; t < in->seq_begin[i + 1]; t++)
            job->token[t] = counts(in, t) ? job->seq[i] : 0;
    whiten(job->token, job);
    keep_counted(job->token, in);
    for (int64_t t = 0; t < in->seq_begin[in->n_seqs]; t++)
        job->returns[t] = job->token[t];
}

void kg_advantage_remax(struct kg_advantage_job *job)
{
    const struct kg_policy_scores *in = job->in;

    for (int64_t i = 0; i < in->n_seqs; i++) {
        double running = 0;

        for (int64_t t = in->seq_begin[i + 1] - 1; t >= in->seq_begin[i]; t--) {
            running += counts(in, t) ? reward_at(in, i, t) : 0;
            job->returns[t] = running;
            job->token[t] = running - (counts(in, t) ? in->greedy[i] : 0);
        }
    }
}

/* delta_t = R_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lambda A_{t+1}; V = A = 0
 * after the end. */
void kg_advantage_gae(struct kg_advantage_job *job)
{
    const struct kg_policy_scores *in = job->in;
    double gamma = job->algo->gamma;

    for (int64_t i = 0; i < in->n_seqs; i++) {
        double next_value = 0, running = 0;

        for (int64_t t = in->seq_begin[i + 1] - 1; t >= in->seq_begin[i]; t--) {
            double delta = reward_at(in, i, t) + gamma * next_value - in->value[t];

            running = delta + gamma * job->algo->lambda * running;
            next_value = in->value[t];
            job->token[t] = running;
            job->returns[t] = running + in->value[t];
        }
    }
    whiten(job->token, job);
}

/* ---- optimal baseline by position ---- */

/* token <- cumulative weight w of the trajectory's tokens that count */
static void cumulative_weight(const struct kg_advantage_job *job, int64_t i)
{
    const struct kg_policy_scores *in = job->in;
    double w = 0;

    for (int64_t t = in->seq_begin[i]; t < in->seq_begin[i + 1]; t++) {
        double term = 1 - 2 * kg_exp(in->old_logp[t]) + in->sum_sq[t];

        if (in->is_weight)
            term *= in->is_weight[t] * in->is_weight[t];
        w += counts(in, t) ? term : 0;
        job->token[t] = w;
    }
}

static double baseline_at(const struct kg_advantage_job *job, int64_t begin, int64_t end,
                          int64_t at)
{
    const struct kg_policy_scores *in = job->in;
    double weighted = 0, total = 0;

    for (int64_t i = begin; i < end; i++) {
        int64_t t = in->seq_begin[i] + at;

        if (t >= in->seq_begin[i + 1] || !counts(in, t))
            continue;
        weighted += job->returns[t] * job->token[t];
        total += job->token[t];
    }
    return weighted / (total + 1e-8);
}

struct tail {
    int64_t longest, length, second; /* trajectory, its length, the next length */
};

/* Length of a trajectory: the number of its tokens that count. */
static struct tail find_tail(const struct kg_policy_scores *in, int64_t begin,
                             int64_t end)
{
    struct tail r = {-1, 0, 0};

    for (int64_t i = begin; i < end; i++) {
        int64_t n = 0;

        for (int64_t t = in->seq_begin[i]; t < in->seq_begin[i + 1]; t++)
            n += counts(in, t);
        if (n > r.length) {
            r.second = r.length;
            r.length = n;
            r.longest = i;
        } else if (n > r.second) {
            r.second = n;
        }
    }
    return r;
}

static int64_t longest_span(const struct kg_policy_scores *in, int64_t begin, int64_t end)
{
    int64_t longest = 0;

    for (int64_t i = begin; i < end; i++)
        if (in->seq_begin[i + 1] - in->seq_begin[i] > longest)
            longest = in->seq_begin[i + 1] - in->seq_begin[i];
    return longest;
}

/* job->token holds weights, and then advantages: all weights of a position are read
 * before they are overwritten. */
static void group_baseline(struct kg_advantage_job *job, int64_t begin, int64_t end,
                           bool zero_tail)
{
    const struct kg_policy_scores *in = job->in;
    struct tail tail = find_tail(in, begin, end);
    int64_t span = longest_span(in, begin, end);

    for (int64_t at = 0; at < span; at++) {
        double baseline = end - begin > 1 ? baseline_at(job, begin, end, at) : 0;

        for (int64_t i = begin; i < end; i++) {
            int64_t t = in->seq_begin[i] + at;
            bool alone = zero_tail && i == tail.longest && tail.length > tail.second &&
                         at >= tail.second;

            if (t < in->seq_begin[i + 1])
                job->token[t] = counts(in, t) ? job->returns[t] - (alone ? 0 : baseline)
                                              : 0;
        }
    }
}

static void token_baseline(struct kg_advantage_job *job, bool zero_tail)
{
    const struct kg_policy_scores *in = job->in;

    returns_to_go(job, 1, false);
    for (int64_t i = 0; i < in->n_seqs; i++)
        cumulative_weight(job, i);
    for (int64_t g = 0; g < in->n_groups; g++)
        group_baseline(job, in->group_begin[g], in->group_begin[g + 1], zero_tail);
}

void kg_advantage_token_baseline(struct kg_advantage_job *job)
{
    token_baseline(job, false);
}
void kg_advantage_token_baseline_tail(struct kg_advantage_job *job)
{
    token_baseline(job, true);
}
