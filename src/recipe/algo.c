/* Makes the algorithm of a recipe. kg_recipe_read has already filled struct kg_algo from
 * the keys of algo, kl and anchor. This file adds what policy/ cannot know: whether the
 * sampler truncates, whether updates are off-policy, how long a completion may be, how
 * large the vocabulary is. Then policy/algo_check.c checks the composition against what
 * the run provides. */
#include "recipe/options.h"

#include "base/log.h"
#include "policy/presets.h"
#include "rollout/sampler.h"

#include <string.h>

bool kg_config_of_algorithm(const char *key)
{
    return strncmp(key, "algo.", 5) == 0 || strncmp(key, "kl.", 3) == 0 ||
           strncmp(key, "anchor.", 7) == 0;
}

bool kg_recipe_truncates(const struct kg_recipe *r)
{
    return kg_sampler_truncates(&r->rollout.sampling, INT32_MAX);
}

bool kg_recipe_records_kept(const struct kg_recipe *r)
{
    return kg_recipe_truncates(r) && !r->reproduction;
}

bool kg_recipe_shares(const struct kg_recipe *r)
{
    return r->train.share_prefix && r->train.router_aux == 0;
}

bool kg_recipe_off_policy(const struct kg_recipe *r)
{
    return r->train.updates_per_step > 1 || r->rollout.lag > 0 ||
           r->rollout.max_staleness > 0 || strcmp(r->rollout.dtype, "same") != 0;
}

/* For a k that covers the vocabulary. The iterative anchor has no distribution but what
 * the sampler recorded: k becomes the vocabulary, so every id is recorded and the tail is
 * empty. */
static void cover_vocabulary(struct kg_algo *algo, int64_t vocab)
{
    const char *from = kg_algo_row_name(algo, KG_TABLE_KL);
    int k = algo->kl_top_k;

    if (algo->anchor->kind == KG_ANCHOR_ITERATIVE) {
        algo->kl_top_k = k > vocab ? (int)vocab : k;
        return;
    }
    if (kg_algo_exact_when_full(algo, vocab))
        kg_log_info("kl.top_k %d covers all %lld ids of the vocabulary: kl.estimator %s "
                    "becomes %s",
                    k, (long long)vocab, from, kg_algo_row_name(algo, KG_TABLE_KL));
}

static void cover_region(struct kg_algo *algo, int64_t vocab)
{
    int k = algo->top_k;

    if (kg_algo_region_when_full(algo, vocab))
        kg_log_info("algo.top_k %d covers all %lld ids: the divergence is exact", k,
                    (long long)vocab);
}

/* Prompts are divided among the updates of a step. */
static kg_status check_updates(const struct kg_recipe *r, struct kg_err *err)
{
    int64_t updates = r->train.updates_per_step;
    int64_t prompts = r->rollout.prompts;

    if (updates <= prompts)
        return KG_OK;
    return kg_fail(
        err, KG_EINVAL,
        "train.updates_per_step: expected at most rollout.prompts (%lld), found %lld",
        (long long)prompts, (long long)updates);
}

/* Samples and log-probs are at this temperature, so it must be above 0. */
static kg_status check_temperature(const struct kg_recipe *r, struct kg_err *err)
{
    if (r->rollout.sampling.temperature > 0)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "rollout.temperature: expected above 0, since training learns from "
                   "samples, found 0");
}

/* Adds where the refused key's value came from, unless it is a default. */
static kg_status name_source(const struct kg_recipe *r, const struct kg_config *config,
                             struct kg_err *err)
{
    const char *preset = r->preset;
    struct kg_err found = *err, none;
    size_t n = strcspn(found.message, ":");

    for (size_t i = 0; i < kg_algo_n_keys(); i++) {
        const char *key = kg_algo_key(i), *source;
        const struct kg_preset *from;

        if (strlen(key) != n || memcmp(key, found.message, n) != 0)
            continue;
        source = kg_config_source(config, key);
        if (strcmp(source, "default") == 0)
            break;
        if (kg_preset_find(&from, source, &none) == KG_OK)
            return kg_fail(err, found.code, "%s; %s is from preset %s", found.message,
                           key, source);
        return kg_fail(err, found.code, "%s; %s is from %s%s%s", found.message, key,
                       source, *preset ? ", with preset " : "", preset);
    }
    return err->code;
}

kg_status kg_algo_from_recipe(struct kg_algo *algo, const struct kg_recipe *r,
                              const struct kg_config *config, int64_t vocab,
                              struct kg_err *err)
{
    struct kg_algo_setting setting = {
        .vocab = vocab,
        .samples = r->rollout.samples,
        .off_policy = kg_recipe_off_policy(r),
        .sampled_old = !r->train.recompute,
        .truncated_sampling = kg_recipe_truncates(r),
        .max_top_k = KG_MAX_TOP_K,
        .provides = KG_NEED_GREEDY | KG_NEED_SUM_SQ | KG_NEED_EXACT_REVERSE |
                    KG_NEED_EXACT_FORWARD | KG_NEED_SELECTION,
        .reproduction = r->reproduction,
    };

    if (r->task.rewards.n >= 2)
        setting.provides |= KG_NEED_PARTS;
    *algo = r->algo;
    KG_TRY(kg_algo_choose(algo, err));
    if (algo->length_norm <= 0)
        algo->length_norm = (double)kg_recipe_answer_tokens(r);
    cover_vocabulary(algo, vocab);
    cover_region(algo, vocab);
    KG_TRY(check_updates(r, err));
    KG_TRY(check_temperature(r, err));
    if (kg_algo_check(algo, &setting, err) != KG_OK)
        return name_source(r, config, err);
    if (setting.truncated_sampling && kg_algo_kl_samples(algo))
        kg_log_warn("kl.estimator %s is biased under truncated sampling: tokens outside "
                    "the kept set are never sampled",
                    kg_algo_row_name(algo, KG_TABLE_KL));
    return KG_OK;
}

kg_status kg_recipe_algorithm(struct kg_str *out, const struct kg_recipe *r,
                              struct kg_err *err)
{
    const char *const *name = r->algo.name;
    const char *preset = r->preset;
    char beta[KG_NUMBER];

    return kg_str_printf(
        out, err,
        "%s: advantage %s, surrogate %s, %s; KL %s x %s in the %s against %s anchor",
        *preset ? preset : "(no preset)", name[KG_TABLE_ADVANTAGE],
        name[KG_TABLE_SURROGATE], name[KG_TABLE_AGGREGATE], name[KG_TABLE_KL],
        kg_number(beta, r->algo.kl_beta, 6), name[KG_TABLE_PLACE], name[KG_TABLE_ANCHOR]);
}
