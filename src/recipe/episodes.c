/* The limits of episodes out of a recipe: sections episode and search.
 *
 * Only what the keys say of each other is checked here; what depends on the prompts or
 * the model (whether a window can hold the longest prompt) is the run's to check.
 */
#include "recipe/episodes.h"

#include <string.h>

static bool has_episodes(const struct kg_recipe *r)
{
    return strcmp(r->episode_env, "none") != 0;
}

static struct kg_episode_opts limits(const struct kg_recipe *r)
{
    struct kg_episode_opts opts = r->episode;

    if (opts.turn_tokens == 0)
        opts.turn_tokens = r->rollout.sampling.max_tokens;
    return opts;
}

static kg_status check_search(const struct kg_recipe *r, struct kg_err *err)
{
    bool searches = strcmp(r->episode_env, "search") == 0;
    const char *where = r->episode.env_opts.retriever;

    if (searches && !*where)
        return kg_fail(err, KG_EINVAL,
                       "search.where: expected an index file or "
                       "http://HOST:PORT/retrieve for episode.env search, found none");
    return searches
               ? kg_search_how_check(&r->episode.env_opts.how, "search.", "model", err)
               : KG_OK;
}

/* A key that is a limit below another one's. */
static kg_status check_below(const struct kg_recipe *r, const char *key, int32_t found,
                             struct kg_err *err)
{
    if (found >= r->episode.context)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected fewer than episode.context (%d), or 0, found %d",
                       key, r->episode.context, found);
    return KG_OK;
}

kg_status kg_episodes_from_recipe(struct kg_episode_opts *opts, const struct kg_recipe *r,
                                  struct kg_err *err)
{
    *opts = limits(r);
    KG_TRY(check_search(r, err));
    KG_TRY(check_below(r, "episode.answer_tokens", opts->answer_tokens, err));
    KG_TRY(check_below(r, "episode.window", opts->window, err));
    return has_episodes(r) ? kg_env_find(&opts->env, r->episode_env, err) : KG_OK;
}

int64_t kg_recipe_answer_tokens(const struct kg_recipe *r)
{
    struct kg_episode_opts opts = limits(r);

    return has_episodes(r) ? kg_episodes_longest(&opts) : r->rollout.sampling.max_tokens;
}
