/* Episodes of a run: opens the environment of the recipe, and logs metrics of episodes.
 *
 * A tool that fails for good ends the run, not the episode: without the observation, the
 * completion would be trained on as if the model had failed. The run keeps its last
 * complete step and continues with the same bits when the tool works again.
 */
#include "train/step/sums.h"

#include "recipe/options.h"
#include "serve/policy.h"
#include "train/open/open.h"
#include "train/open/plan_search.h"

kg_status kg_run_episodes_open(struct kg_run_inputs *in, struct kg_run_work *work,
                               const struct kg_backend *be, struct kg_err *err)
{
    KG_TRY(kg_episodes_from_recipe(&in->episode_opts, &in->recipe, err));
    if (!in->episode_opts.env)
        return KG_OK;
    if (*in->recipe.rollout.data)
        return kg_fail(err, KG_EINVAL,
                       "rollout.data: nothing is sampled; expected episode.env none, "
                       "found %s",
                       in->episode_opts.env->name);
    KG_TRY(kg_env_check_task(in->episode_opts.env, in->task,
                             "episode.env external and task.name environment", err));
    KG_TRY(kg_search_beside(&in->episode_opts.env_opts, &work->index_bytes, be, err));
    in->episode_opts.host = &kg_policy_host;
    in->episode_opts.prompt = &in->prompt;
    in->episode_opts.further = in->task_opts.further;
    if (kg_episodes_open(&work->episodes, in->tok, &in->episode_opts, err) != KG_OK)
        return kg_err_prefix(err, "episode.env %s", in->episode_opts.env->name);
    return KG_OK;
}

kg_status kg_run_tool_failed(const struct kg_episodes *episodes, int64_t step,
                             kg_status status, struct kg_err *err)
{
    struct kg_err cause = *err;

    if (!episodes || (status != KG_EIO && status != KG_ETIMEOUT))
        return status;
    return kg_fail(err, status,
                   "%.500s; the run stopped at step %lld. When the tool works again, "
                   "continue with kedge train --resume: the results are the same as "
                   "without the failure",
                   cause.message, (long long)step);
}

void kg_episodes_put(struct kg_metrics *log, const char *prefix,
                     const struct kg_episode_sums *sums)
{
    double n = (double)sums->episodes;

    if (sums->episodes == 0)
        return;
    kg_metrics_put_in(log, prefix, "turns", (double)sums->turns / n);
    kg_metrics_put_in(log, prefix, "calls", (double)sums->calls / n);
    kg_metrics_put_in(log, prefix, "invalid", (double)sums->invalid / n);
    kg_metrics_put_in(log, prefix, "failed", (double)sums->failed / n);
    kg_metrics_put_in(log, prefix, "answered", (double)sums->answered / n);
    kg_metrics_put_in(log, prefix, "cut", (double)sums->cut / n);
    kg_metrics_put_in(log, prefix, "windowed", (double)sums->windowed / n);
}
