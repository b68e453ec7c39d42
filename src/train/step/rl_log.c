/* Metrics and dumps of an RL step.
 *
 * Every number of a step is logged once, here, under a name that has a row in
 * report/metrics.c. A mean of nothing is not logged: a missing name means that there was
 * none, never 0.
 */
#include "train/step/rl_log.h"

#include "base/log.h"
#include "base/mem.h"
#include "data/jsonl.h"
#include "model/optim.h"
#include "recipe/options.h"
#include "report/history.h"
#include "train/log.h"
#include "train/step/anchor.h"
#include "train/step/sums.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double MUCH_UNGRADED = 0.1; /* fraction of a step's completions */

void kg_rl_terms_fill(struct kg_rl_terms *terms, const struct kg_policy_grad *grad,
                      const struct kg_policy_batch *batch)
{
    memset(terms, 0, sizeof *terms);
    terms->loss = grad->loss;
    terms->pg = grad->pg;
    terms->kl = grad->kl;
    terms->entropy = grad->entropy;
    terms->any = grad->any;
    terms->tokens = batch->n_tokens;
    terms->metrics = grad->metrics;
}

void kg_rl_totals_add(struct kg_rl_totals *t, const struct kg_rl_terms *terms)
{
    t->loss += terms->loss;
    t->pg += terms->pg;
    t->kl += terms->kl;
    t->entropy += terms->entropy;
    t->router += terms->router;
    t->shared_tokens += terms->shared;
    t->any = t->any || terms->any;
    t->trained_tokens += (double)terms->tokens;
    kg_policy_metrics_merge(&t->metrics, &terms->metrics);
    if (t->updates == 0)
        kg_policy_metrics_merge(&t->first_metrics, &terms->metrics);
}

void kg_rl_totals_update(struct kg_rl_totals *t, double grad_norm, double lr)
{
    t->updates++;
    t->grad_norm_sum += grad_norm;
    t->grad_norm_max = grad_norm > t->grad_norm_max ? grad_norm : t->grad_norm_max;
    t->lr = lr;
}

/* ---- metrics ---- */

/* Whether training uses the reward of sample i. */
static bool has_reward(const struct kg_rl_batch *b, size_t i)
{
    return kg_rl_learns(b, i) && (b->trajs[i].graded || !b->judges);
}

/* With shaping: the mean of the shaped rewards, and the fraction of shaped samples. */
static void put_shaping(struct kg_metrics *log, const struct kg_rl_batch *b)
{
    double sum = 0, n = 0;
    size_t fined = 0;

    for (size_t i = 0; i < b->n_trajs; i++) {
        if (!kg_rl_learns(b, i))
            continue;
        sum += has_reward(b, i) ? b->trajs[i].reward + b->trajs[i].shaping : 0;
        n += has_reward(b, i);
        fined += b->trajs[i].shaping != 0;
    }
    if (!b->shaped)
        return;
    if (n > 0)
        kg_metrics_put(log, "reward/shaped_mean", sum / n);
    kg_metrics_put(log, "reward/overlong", (double)fined / (double)b->n_learned);
}

static void put_greedy(struct kg_metrics *log, const struct kg_rl_batch *b)
{
    double sum = 0, of = 0, n = (double)b->n_greedy;

    if (b->n_greedy == 0)
        return;
    for (size_t i = 0; i < b->n_trajs; i++) {
        if (!kg_rl_learns(b, i) || isnan(b->greedy[i]))
            continue;
        sum += b->greedy[i];
        of++;
    }
    if (of > 0)
        kg_metrics_put(log, "reward/greedy", sum / of);
    kg_metrics_put(log, "reward/greedy_accuracy", b->greedy_correct / n);
    kg_metrics_put(log, "reward/greedy_ungraded", b->greedy_ungraded / n);
}

/* Standard errors are over prompts, since completions of one prompt are correlated. */
static void put_errors(struct kg_metrics *log, const struct kg_rl_batch *b)
{
    double n = 0, groups = 0, reward = 0, reward_squares = 0, right = 0,
           right_squares = 0;

    for (size_t g = 0; g < b->n_trajs / (size_t)b->group; g++) {
        size_t first = g * (size_t)b->group, end = first + (size_t)b->group;
        double r = 0, c = 0, judged = 0;

        if (!kg_rl_learns(b, first))
            continue;
        for (size_t i = first; i < end; i++)
            judged += has_reward(b, i);
        for (size_t i = first; i < end; i++) {
            r += has_reward(b, i) ? b->trajs[i].reward / judged : 0;
            c += (double)(b->grades[i].graded && b->grades[i].correct) / b->group;
        }
        n++;
        groups += judged > 0;
        reward += r, reward_squares += r * r;
        right += c, right_squares += c * c;
    }
    kg_metrics_put(log, "reward/mean_stderr",
                   kg_metrics_stderr(groups, reward, reward_squares));
    kg_metrics_put(log, "reward/accuracy_stderr",
                   kg_metrics_stderr(n, right, right_squares));
}

static void put_rewards(struct kg_metrics *log, const struct kg_rl_batch *b)
{
    double sum = 0, square = 0, low = INFINITY, high = -INFINITY, judged = 0;
    double n = (double)b->n_learned, right = 0, ungraded = 0, undecided = 0;
    size_t all_right = 0, all_wrong = 0, groups = b->n_learned / (size_t)b->group;

    for (size_t g = 0; g < b->n_trajs / (size_t)b->group; g++) {
        int correct = 0, of = 0;

        if (!kg_rl_learns(b, g * (size_t)b->group))
            continue;
        for (int i = 0; i < b->group; i++) {
            size_t at = g * (size_t)b->group + (size_t)i;
            double r = b->trajs[at].reward;

            correct += b->grades[at].graded && b->grades[at].correct;
            undecided += b->grades[at].undecided;
            ungraded += !b->trajs[at].graded;
            if (!has_reward(b, at))
                continue;
            of++;
            sum += r;
            square += r * r;
            low = fmin(low, r);
            high = fmax(high, r);
        }
        judged += of;
        right += correct;
        all_right += of > 0 && correct >= of;
        all_wrong += of > 0 && correct == 0;
    }
    if (judged > 0) {
        kg_metrics_put(log, "reward/mean", sum / judged);
        kg_metrics_put(log, "reward/std",
                       sqrt(fmax(0, square / judged - sum * sum / judged / judged)));
        kg_metrics_put(log, "reward/min", low);
        kg_metrics_put(log, "reward/max", high);
    }
    kg_metrics_put(log, "reward/accuracy", right / n);
    kg_metrics_put(log, "reward/ungraded", ungraded / n);
    kg_metrics_put(log, "reward/undecided", undecided / n);
    put_errors(log, b);
    put_shaping(log, b);
    put_greedy(log, b);
    kg_metrics_put(log, "groups/all_right", (double)all_right / (double)groups);
    kg_metrics_put(log, "groups/all_wrong", (double)all_wrong / (double)groups);
}

/* Each of several rewards, and additional numbers of graders. */
static void put_parts(struct kg_metrics *log, const struct kg_rl_batch *b,
                      const struct kg_task_opts *opts)
{
    struct kg_part_sums sums = {.answers = 0};

    for (size_t i = 0; i < b->n_trajs; i++)
        if (kg_rl_learns(b, i))
            kg_part_add(&sums, &b->trajs[i]);
    kg_part_put(log, "reward", &sums, opts);
}

/* By data source, if the training data has several. */
static void put_sources(struct kg_metrics *log, const struct kg_rl_batch *b,
                        const struct kg_run_inputs *in)
{
    struct kg_sources sources = {.n = 0};

    /* completions of rollout.data are not from the training data */
    if (in->answers.n > 0 || !kg_sources_differ(&in->train))
        return;
    for (size_t i = 0; i < b->n_trajs; i++) {
        size_t prompt = (size_t)b->trajs[i].prompt_index;
        struct kg_source_sums *row;

        if (!kg_rl_learns(b, i))
            continue;
        row = kg_sources_row(&sources, kg_source_of(&in->train, prompt));
        row->answers++;
        row->judged += has_reward(b, i);
        row->reward += has_reward(b, i) ? b->trajs[i].reward : 0;
        row->correct += b->grades[i].graded && b->grades[i].correct;
        row->tokens += (double)(b->begin[i + 1] - b->begin[i]);
    }
    kg_sources_put(log, "", &sources);
}

/* What truncated sampling removed, whether or not ratios account for it. */
static void put_cut(struct kg_metrics *log, const struct kg_rl_batch *b,
                    const struct kg_run_inputs *in)
{
    double cut = 0, nats = 0;

    if (!kg_recipe_truncates(&in->recipe))
        return;
    for (size_t i = 0; i < b->n_trajs; i++) {
        cut += (double)b->trajs[i].cut_n;
        nats += b->trajs[i].cut_nats;
    }
    kg_metrics_put(log, "mismatch/cut", b->n > 0 ? cut / (double)b->n : 0);
    kg_metrics_put(log, "mismatch/cut_nats", b->n > 0 ? nats / (double)b->n : 0);
}

/* Tokens that were sampled in a window while their ratios refer to the whole text. */
static void put_displaced(struct kg_metrics *log, const struct kg_rl_batch *b,
                          const struct kg_run_inputs *in)
{
    double n = 0, nats = 0;

    if (!b->whole || in->episode_opts.window == 0)
        return;
    for (size_t i = 0; i < b->n_trajs; i++) {
        const struct kg_traj *t = &b->trajs[i];
        int64_t at = b->begin[i];

        for (size_t j = t->prompt_n; kg_rl_displaced(b, i) && j < t->n; j++) {
            bool inside = j >= t->windows[0].begin;

            if (t->source[j] != KG_SOURCE_MODEL)
                continue;
            n += inside;
            nats += inside ? fabs(b->old_logp[at] - b->mu_logp[at]) : 0;
            at++;
        }
    }
    kg_metrics_put(log, "mismatch/window", b->n > 0 ? n / (double)b->n : 0);
    kg_metrics_put(log, "mismatch/window_nats", n > 0 ? nats / n : 0);
}

/* Age of sampled tokens, in steps. */
static void put_staleness(struct kg_metrics *log, const struct kg_rl_batch *b,
                          int64_t step)
{
    double n = 0, sum = 0, most = 0;

    for (size_t i = 0; i < b->n_trajs; i++) {
        const struct kg_traj *t = &b->trajs[i];

        for (size_t v = 0; v < t->n_versions; v++) {
            size_t end = v + 1 < t->n_versions ? t->versions[v + 1].begin : t->n;
            double age = (double)(step - t->versions[v].version), tokens = 0;

            for (size_t j = t->versions[v].begin; j < end; j++)
                tokens += t->source[j] == KG_SOURCE_MODEL;
            n += tokens;
            sum += age * tokens;
            most = fmax(most, age);
        }
    }
    if (n == 0)
        return;
    kg_metrics_put(log, "staleness/mean", sum / n);
    kg_metrics_put(log, "staleness/max", most);
}

static void put_lengths(struct kg_metrics *log, const struct kg_rl_batch *b)
{
    double low = INFINITY, high = 0, cut = 0, prompt = 0;
    double n = (double)b->n_learned, sum = 0;

    for (size_t i = 0; i < b->n_trajs; i++) {
        double length = (double)(b->begin[i + 1] - b->begin[i]);

        if (!kg_rl_learns(b, i))
            continue;
        sum += length;
        low = fmin(low, length);
        high = fmax(high, length);
        cut += b->trajs[i].finish == KG_FINISH_LENGTH;
        prompt += (double)b->trajs[i].prompt_n;
    }
    kg_metrics_put(log, "length/mean", sum / n);
    kg_metrics_put(log, "length/min", low);
    kg_metrics_put(log, "length/max", high);
    kg_metrics_put(log, "length/prompt", prompt / n);
    kg_metrics_put(log, "length/truncated", cut / n);
}

/* Counts samples to learn from; seconds_idle is that of all samples. */
static void put_episodes(struct kg_metrics *log, const struct kg_rl_batch *b,
                         const struct kg_run_inputs *in)
{
    struct kg_episode_sums sums = {0};
    double observed = 0;

    for (size_t i = 0; in->episode_opts.env && i < b->n_trajs; i++) {
        const struct kg_traj *t = &b->trajs[i];

        if (!kg_rl_learns(b, i))
            continue;
        kg_episode_add(&sums, t);
        observed += (double)(t->n - t->prompt_n - kg_traj_model_tokens(t));
    }
    kg_episodes_put(log, "episode", &sums);
    if (sums.episodes == 0)
        return;
    kg_metrics_put(log, "episode/observed_tokens", observed / (double)sums.episodes);
    kg_metrics_put(log, "episode/seconds_idle", b->seconds_idle);
}

/* Tool calls of all rollouts of the step. */
static void put_tools(struct kg_metrics *log, const struct kg_rl_batch *b)
{
    const struct kg_env_stats *s = &b->tools;

    if (!b->tools_counted)
        return;
    kg_metrics_put(log, "tool/calls", (double)s->calls);
    kg_metrics_put(log, "tool/requests", (double)s->requests);
    kg_metrics_put(log, "tool/cached", (double)s->cached);
    kg_metrics_put(log, "tool/retries", (double)s->retries);
    kg_metrics_put(log, "tool/failed", (double)s->failed);
    kg_metrics_put(log, "tool/seconds_a_call",
                   s->calls > 0 ? s->seconds / (double)s->calls : 0);
}

/* Starts of external graders' programs since this process began. */
static void put_grader(struct kg_metrics *log, const struct kg_task_opts *opts)
{
    struct kg_task_grader_stats s = {0};

    if (opts->running)
        s = kg_task_grader_stats(opts->running);
    else if (!kg_task_rewards_stats(&s, opts->rewards))
        return;
    kg_metrics_put(log, "grader/starts", (double)s.starts);
    kg_metrics_put(log, "grader/restarts", (double)s.restarts);
}

/* Counts all samples; other metrics count only samples to learn from. */
static void put_dynamic(struct kg_metrics *log, const struct kg_rl_batch *b)
{
    const struct kg_rl_dynamic *d = &b->dynamic;

    if (d->batches == 0)
        return;
    kg_metrics_put(log, "dynamic/batches", (double)d->batches);
    kg_metrics_put(log, "dynamic/prompts", (double)d->prompts);
    kg_metrics_put(log, "dynamic/all_right", (double)d->all_right);
    kg_metrics_put(log, "dynamic/all_wrong", (double)d->all_wrong);
    kg_metrics_put(log, "dynamic/equal", (double)d->equal);
    kg_metrics_put(log, "dynamic/surplus", (double)d->surplus);
    kg_metrics_put(log, "dynamic/accuracy", (double)d->correct / (double)d->answers);
    if (d->judged > 0)
        kg_metrics_put(log, "dynamic/reward", d->reward_sum / (double)d->judged);
}

static void put_policy(struct kg_metrics *log, const struct kg_algo *algo,
                       const struct kg_rl_totals *t)
{
    struct kg_policy_metric rows[KG_POLICY_METRICS_MAX];
    size_t n = kg_policy_metrics_list(rows, algo, &t->metrics);
    double updates = t->updates > 0 ? t->updates : 1;

    kg_metrics_put(log, "loss/total", t->loss / updates);
    kg_metrics_put(log, "loss/pg", t->pg / updates);
    kg_metrics_put(log, "loss/kl", t->kl / updates);
    kg_metrics_put(log, "loss/entropy", t->entropy / updates);
    for (size_t i = 0; i < n; i++)
        kg_metrics_put(log, rows[i].name, rows[i].value);
    if (kg_algo_kl_taken(algo))
        kg_metrics_put(log, "kl/value", t->kl_taken);
    if (algo->kl_in->place == KG_PLACE_ADVANTAGE)
        kg_metrics_put(log, "kl/taken_max", t->kl_taken_max);
    if (kg_algo_kl_taken(algo) || kg_algo_kl_in_loss(algo))
        kg_metrics_put(log, "kl/beta", t->kl_beta);
    /* before the first update the policy equals the sampler, so this is 0 unless the
     * recipe lets the two differ */
    kg_metrics_put(log, "mismatch/first_update_max", t->first_metrics.gap_max);
    n = kg_policy_mismatch_list(rows, &t->first_metrics);
    for (size_t i = 0; i < n; i++)
        kg_metrics_put(log, rows[i].name, rows[i].value);
}

static void put_counters(struct kg_metrics *log, const struct kg_algo *algo,
                         const struct kg_counters *c, const struct kg_rl_totals *t)
{
    double updates = t->updates > 0 ? t->updates : 1;

    kg_metrics_put(log, "optim/grad_norm", t->grad_norm_sum / updates);
    kg_metrics_put(log, "optim/grad_norm_max", t->grad_norm_max);
    kg_metrics_put(log, "optim/lr", t->lr);
    kg_metrics_put(log, "optim/updates", t->updates);
    kg_metrics_put(log, "optim/idle_updates", (double)c->idle_updates);
    kg_metrics_put(log, "optim/skipped_steps", (double)c->skipped);
    kg_metrics_put(log, "anchor/updates", (double)c->anchor_updates);
    if (algo->anchor_kappa > 0) {
        kg_metrics_put(log, "anchor/kl_average", c->anchor_kl);
        kg_metrics_put(log, "anchor/refreshed", (double)c->anchor_refreshed);
    }
}

/* Number of parameters by which each token is multiplied. */
static double product_elements(const struct kg_model *m)
{
    double n = 0;

    for (size_t i = 0; i < m->n_params; i++)
        if (m->params[i].is_product)
            n += (double)(m->params[i].rows * m->params[i].cols);
    return n;
}

/* Useful work: 2 FLOPs per parameter and token. The engine's tokens count once. The batch
 * counts once for the forward, twice more for the backward if there was an update, and
 * once each for a selection, for train.router_aux, and for every pass of the policy or
 * the anchor (an exact KL counts as one). Shared prefixes count once. */
static double step_flops(const struct kg_run_inputs *in, const struct kg_run_state *state,
                         const struct kg_rl_batch *b, const struct kg_rl_totals *t)
{
    const struct kg_rollout_stats *s = &b->rolled;
    const struct kg_model *anchor = state->anchor ? state->anchor : state->model;
    unsigned needs = kg_algo_needs(&in->algo);
    bool exact = needs & (KG_NEED_EXACT_REVERSE | KG_NEED_EXACT_FORWARD);
    int forwards = 1 + 2 * (t->updates > 0) + ((needs & KG_NEED_SELECTION) != 0) +
                   (in->recipe.train.router_aux > 0) + b->own_passes;
    double sampled = (double)(s->prefill_tokens + s->decode_tokens), tokens = 0;

    for (size_t i = 0; i < b->n_trajs; i++)
        tokens += (double)kg_traj_span(&b->trajs[i], b->whole);
    tokens -= t->shared_tokens;
    sampled += b->whole_tokens;
    return 2 * (product_elements(state->model) * (tokens * forwards + sampled) +
                product_elements(anchor) * tokens * (exact + b->anchor_passes));
}

static void put_speed(struct kg_metrics *log, const struct kg_run *run,
                      const struct kg_rl_batch *b, const struct kg_rl_totals *t)
{
    const struct kg_rollout_stats *s = &b->rolled;
    double rollout = t->clock[KG_PHASE_ANCHOR] - t->clock[KG_PHASE_ROLLOUT];
    double anchor = t->clock[KG_PHASE_TRAIN] - t->clock[KG_PHASE_ANCHOR];
    double train = t->clock[KG_PHASE_END] - t->clock[KG_PHASE_TRAIN];
    double all = rollout + anchor + train;

    kg_metrics_put(log, "seconds/rollout", rollout);
    kg_metrics_put(log, "seconds/anchor", anchor);
    kg_metrics_put(log, "seconds/train", train);
    kg_metrics_put(log, "seconds/step", all);
    kg_metrics_put(log, "tokens_per_second/prefill",
                   s->prefill_seconds > 0 ? (double)s->prefill_tokens / s->prefill_seconds
                                          : 0);
    kg_metrics_put(log, "tokens_per_second/decode",
                   s->decode_seconds > 0 ? (double)s->decode_tokens / s->decode_seconds
                                         : 0);
    kg_metrics_put(log, "tokens_per_second/train",
                   train > 0 ? t->trained_tokens / train : 0);
    if (run->log.compute_ceiling > 0)
        kg_metrics_put(log, "share_of_gemm_ceiling",
                       step_flops(&run->in, &run->state, b, t) / all /
                           run->log.compute_ceiling);
    kg_metrics_put(log, "perf/shared_tokens", t->shared_tokens);
    kg_metrics_put(log, "memory/resident_gb", (double)kg_mem_resident_bytes() / 1e9);
    kg_metrics_put(log, "memory/peak_gb", (double)kg_mem_peak_bytes() / 1e9);
}

/* Times of the trainers, then of the rollout ranks that sampled the batch. */
static kg_status put_ranks(struct kg_metrics *log, const struct kg_run *run,
                           const struct kg_rl_batch *b, struct kg_err *err)
{
    struct kg_ranks *ranks = run->work.ranks;
    struct kg_ranks *all = run->work.ahead.all;
    struct kg_rank_times own, *times;

    if (all->n < 2)
        return KG_OK;
    own = kg_rank_times_take(all, b->sampling_seconds);
    times = kg_mem_calloc((size_t)all->n, sizeof *times, "clocks", err);
    kg_status status = kg_ranks_agree(ranks, times ? KG_OK : err->code, "clocks", err);
    if (status == KG_OK)
        status = kg_rank_times_gather(times, &own, ranks, err);
    if (status == KG_OK) {
        if (b->n_times > 0)
            memcpy(times + ranks->n, b->times, (size_t)b->n_times * sizeof *times);
        kg_rank_times_put(log, times, all->n);
    }
    kg_mem_free(times);
    return status;
}

/* "  slowest rank 2", or nothing. */
static void name_slowest(char text[32], const struct kg_metrics *log)
{
    double rank = kg_metrics_get(log, "seconds/slowest_rank", -1);

    text[0] = '\0';
    if (rank >= 0)
        snprintf(text, 32, "  slowest rank %d", (int)rank);
}

static void progress(int64_t step, int64_t last, const struct kg_metrics *log)
{
    double seconds = kg_metrics_get(log, "seconds/step", 0);
    double eta = seconds * (double)(last - step);
    char slowest[32];

    name_slowest(slowest, log);
    kg_log_progress(5000,
                    "step %lld/%lld  reward %.3f  accuracy %.1f %%  KL %.4f  entropy "
                    "%.3f  %.1f s  ETA %.0f min%s",
                    (long long)step, (long long)last,
                    kg_metrics_get(log, "reward/mean", 0),
                    100 * kg_metrics_get(log, "reward/accuracy", 0),
                    kg_metrics_get(log, "kl/value", 0),
                    kg_metrics_get(log, "policy/entropy", 0), seconds, eta / 60, slowest);
}

/* Counts verdicts. Warns once per run if many are missing: the grader may be broken. */
static void warn_of_ungraded(struct kg_run *run, const struct kg_rl_batch *b,
                             const struct kg_metrics *log)
{
    double share = kg_metrics_get(log, "reward/ungraded", 0);

    for (size_t i = 0; i < b->n_trajs; i++)
        if (kg_rl_learns(b, i) && kg_algo_reads_reward(&run->in.algo)) {
            run->log.samples++;
            run->log.judged += has_reward(b, i);
        }
    if (!b->judges || share < MUCH_UNGRADED || run->log.told_ungraded)
        return;
    run->log.told_ungraded = true;
    if (!run->log.elsewhere)
        kg_log_warn(
            "step %lld: %.0f %% of the samples have no verdict and are left out of the "
            "update; check the grader's output (reward/ungraded, docs/tasks.md)",
            (long long)run->state.count.step, 100 * share);
}

kg_status kg_rl_log(struct kg_run *run, const struct kg_rl_batch *b,
                    const struct kg_rl_totals *t, const struct kg_policy_advantage *a,
                    struct kg_err *err)
{
    struct kg_metrics log = {.n = 0};

    put_rewards(&log, b);
    warn_of_ungraded(run, b, &log);
    put_parts(&log, b, &run->in.task_opts);
    put_sources(&log, b, &run->in);
    put_lengths(&log, b);
    put_cut(&log, b, &run->in);
    put_displaced(&log, b, &run->in);
    put_staleness(&log, b, run->state.count.step - 1);
    put_episodes(&log, b, &run->in);
    put_tools(&log, b);
    put_grader(&log, &run->in.task_opts);
    kg_metrics_put(&log, "advantage/mean", a->mean);
    kg_metrics_put(&log, "advantage/min", a->min);
    kg_metrics_put(&log, "advantage/max", a->max);
    kg_metrics_put(&log, "groups/equal",
                   (double)a->groups_equal * b->group / (double)b->n_learned);
    put_dynamic(&log, b);
    put_policy(&log, &run->in.algo, t);
    if (run->in.recipe.train.router_aux > 0)
        kg_metrics_put(&log, "loss/router_aux", t->router / fmax(1, t->updates));
    kg_expert_load_put(&log, &run->work.load);
    put_counters(&log, &run->in.algo, &run->state.count, t);
    if (kg_run_anchor_saved(&run->state)) {
        double absolute, relative;

        KG_TRY(kg_anchor_distance(&absolute, &relative, run->state.model,
                                  run->state.anchor, err));
        kg_metrics_put(&log, "anchor/distance", absolute);
        kg_metrics_put(&log, "anchor/distance_relative", relative);
    }
    put_speed(&log, run, b, t);
    KG_TRY(put_ranks(&log, run, b, err));
    progress(run->state.count.step, run->in.recipe.train.steps, &log);
    return kg_run_log_put(&run->log, &log, "rl", run->state.count.step, err);
}

kg_status kg_rl_log_skip(struct kg_run *run, struct kg_err *err)
{
    struct kg_metrics log = {.n = 0};
    struct kg_rl_totals none = {0};

    put_counters(&log, &run->in.algo, &run->state.count, &none);
    return kg_run_log_put(&run->log, &log, "rl", run->state.count.step, err);
}

/* ---- dumps ---- */

static kg_status dump_traj(struct kg_zst_writer *w, const struct kg_run_inputs *in,
                           const struct kg_traj *t, struct kg_traj_notes *notes,
                           struct kg_err *err)
{
    struct kg_opt_list stop = in->recipe.rollout.stop;
    struct kg_str line = {0}, text = {0};
    kg_status status;

    if (t->n == 0)
        return KG_OK; /* its rollout was aborted */
    KG_TRY_GOTO(out, kg_rollout_text(&text, in->tok, t, stop.items, (int)stop.n, err));
    notes->text = &text;
    KG_TRY_GOTO(out, kg_traj_put_json(&line, t, notes, err));
    status = kg_zst_put(w, line.data, line.len, err);
out:
    kg_str_release(&line);
    kg_str_release(&text);
    return status;
}

/* The numbers that graders returned: all lines of a file have the same fields. */
static uint32_t named_in(const struct kg_rl_batch *b)
{
    uint32_t named = 0;

    for (size_t i = 0; i < b->n_trajs; i++)
        named |= b->trajs[i].further.named;
    for (size_t i = 0; i < b->n_spare; i++)
        named |= b->spare[i].further.named;
    return named;
}

/* anchored: the anchor pass is complete */
static kg_status dump_trajs(struct kg_zst_writer *w, const struct kg_run_inputs *in,
                            const struct kg_rl_batch *b, bool anchored,
                            struct kg_err *err)
{
    uint64_t bytes;
    struct kg_traj_notes none = {.text = NULL};

    kg_part_notes(&none, &in->task_opts, named_in(b));
    for (size_t i = 0; i < b->n_trajs; i++) {
        bool has = b->advantage && b->begin[i] < b->n;
        struct kg_traj_notes notes = none;

        if (has && kg_rl_learns(b, i))
            notes.advantage = &b->advantage[b->begin[i]];
        if (has && anchored && b->anchor_logp && kg_rl_anchored(b, &in->algo, i))
            notes.anchor_logp = &b->anchor_logp[b->begin[i]];
        KG_TRY(dump_traj(w, in, &b->trajs[i], &notes, err));
    }
    for (size_t i = 0; i < b->n_spare; i++)
        KG_TRY(dump_traj(w, in, &b->spare[i], &none, err));
    return kg_zst_end_frame(w, &bytes, err);
}

kg_status kg_rl_dump(const struct kg_run *run, const struct kg_rl_batch *b, bool skipped,
                     struct kg_err *err)
{
    char name[64];
    struct kg_zst_writer *w;

    if (run->log.elsewhere || (!skipped && !run->in.recipe.log.rollouts))
        return KG_OK;
    snprintf(name, sizeof name, "rollouts/%s-%06lld.jsonl.zst",
             skipped ? "skipped" : "step",
             (long long)run->state.count.step + (skipped ? 1 : 0));
    KG_TRY(kg_zst_open(&w, kg_path_in(run->log.dir, name).text, 0, err));
    kg_status status = dump_trajs(w, &run->in, b, !skipped, err);
    if (status == KG_OK)
        return kg_zst_close(w, err);
    kg_zst_abort(w);
    return status;
}
