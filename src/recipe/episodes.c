/* The limits of episodes out of a recipe: sections episode and search.
 *
 * Only what the keys say of each other is checked here; what depends on the prompts or
 * the model (whether a window can hold the longest prompt) is the run's to check.
 */
#include "recipe/episodes.h"

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

kg_status kg_episodes_from_config(struct kg_episode_opts *opts, const struct kg_config *c,
                                  struct kg_err *err)
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
