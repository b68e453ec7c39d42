/* Episodes of a run: from the options to an open environment. */
#include "train/episodes.h"

#include <string.h>

/* Whether a config asks for episodes: episode.env is not none. */
static bool config_episodes(const struct kg_config *config)
{
    return strcmp(kg_config_text(config, "episode.env"), "none") != 0;
}

static int32_t turn_tokens(const struct kg_config *c)
{
    int64_t n = kg_config_int(c, "episode.turn_tokens");

    return (int32_t)(n > 0 ? n : kg_config_int(c, "rollout.max_tokens"));
}

static struct kg_episode_opts limits(const struct kg_config *c)
{
    return (struct kg_episode_opts){
        .turns = (int32_t)kg_config_int(c, "episode.turns"),
        .turn_tokens = turn_tokens(c),
        .obs_tokens = (int32_t)kg_config_int(c, "episode.obs_tokens"),
        .context = (int32_t)kg_config_int(c, "episode.context"),
        .answer_tokens = (int32_t)kg_config_int(c, "episode.answer_tokens"),
        .window = (int32_t)kg_config_int(c, "episode.window"),
        .open = (int32_t)kg_config_int(c, "episode.open"),
    };
}

static kg_status check_search(const struct kg_config *c, struct kg_err *err)
{
    bool searches = strcmp(kg_config_text(c, "episode.env"), "search") == 0;
    const char *where = kg_config_text(c, "search.where");

    if (searches && !*where)
        return kg_fail(err, KG_EINVAL,
                       "search.where: expected an index file or "
                       "http://HOST:PORT/retrieve for episode.env search, found none");
    if (!searches && *where)
        return kg_fail(err, KG_EINVAL,
                       "search.where: expected none without episode.env search, found "
                       "%.200s",
                       where);
    return KG_OK;
}

/* Two keys that are limits below another one's. */
static kg_status check_below(const struct kg_config *c, const char *key,
                             struct kg_err *err)
{
    int64_t found = kg_config_int(c, key), context = kg_config_int(c, "episode.context");

    if (found >= context)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected fewer than episode.context (%lld), or 0, found %lld",
                       key, (long long)context, (long long)found);
    return KG_OK;
}

/* The options under episode and search; env NULL without an environment.
 * errors: ENOTFOUND (the environment), EINVAL (a retriever without a use for it, or none
 * where one is needed) */
static kg_status episodes_from_config(struct kg_episode_opts *opts,
                                      const struct kg_config *c, struct kg_err *err)
{
    *opts = limits(c);
    KG_TRY(check_search(c, err));
    KG_TRY(check_below(c, "episode.answer_tokens", err));
    KG_TRY(check_below(c, "episode.window", err));
    if (!config_episodes(c))
        return KG_OK;
    opts->env_opts = (struct kg_env_opts){
        .retriever = kg_config_text(c, "search.where"),
        .topk = (int)kg_config_int(c, "search.topk"),
        .stop_when_down = strcmp(kg_config_text(c, "search.when_down"), "stop") == 0,
        .timeout_ms = (int)kg_config_int(c, "search.timeout_ms"),
        .tries = (int)kg_config_int(c, "search.tries"),
        .wording = kg_config_text(c, "task.wording"),
    };
    return kg_env_find(&opts->env, kg_config_text(c, "episode.env"), err);
}

int64_t kg_config_answer_tokens(const struct kg_config *config)
{
    struct kg_episode_opts opts = limits(config);

    return config_episodes(config) ? kg_episodes_longest(&opts)
                                   : kg_config_int(config, "rollout.max_tokens");
}

kg_status kg_run_episodes_open(struct kg_run *run, struct kg_err *err)
{
    KG_TRY(episodes_from_config(&run->episode_opts, run->config, err));
    if (!run->episode_opts.env)
        return KG_OK;
    if (*kg_config_text(run->config, "rollout.data"))
        return kg_fail(err, KG_EINVAL,
                       "rollout.data: nothing is sampled; expected episode.env none, "
                       "found %s",
                       run->episode_opts.env->name);
    if (kg_episodes_open(&run->episodes, run->tok, &run->episode_opts, err) != KG_OK)
        return kg_err_prefix(err, "episode.env %s", run->episode_opts.env->name);
    return KG_OK;
}

kg_status kg_run_tool_failed(const struct kg_run *run, kg_status status,
                             struct kg_err *err)
{
    struct kg_err cause = *err;

    if (!run->episodes || (status != KG_EIO && status != KG_ETIMEOUT))
        return status;
    return kg_fail(
        err, status,
        "%.500s; the run stands behind step %lld: when the tool answers again, "
        "kedge train --resume goes on with the same bits",
        cause.message, (long long)run->count.step);
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
