/* What a key needs to act.
 *
 * A preset or a recipe may leave keys over that an override has made idle (its
 * anchor.eta, say, where the user wants no anchor): these pass. And RUN/config.yaml has
 * every key: so what is the default, or the preset's, is as if it was not written. Keys
 * that are missing here always act, or are refused where they are read.
 */
#include "recipe/effect.h"

#include "policy/presets.h"
#include "recipe/options.h"
#include "task/task.h"

#include <string.h>

static bool is(const char *found, const char *name) { return strcmp(found, name) == 0; }

static bool warm(const struct kg_recipe *r) { return kg_recipe_has_sft(r); }

static bool generated_warm(const struct kg_recipe *r) { return warm(r) && !*r->sft.data; }

static bool sft_val(const struct kg_recipe *r) { return *r->sft.val; }

static bool val_files(const struct kg_recipe *r) { return r->data.val.n > 0; }

static bool generated(const struct kg_recipe *r)
{
    const struct kg_task_row *row;
    struct kg_err err;

    return kg_task_find(&row, r->task.name, &err) != KG_OK || row->levels ||
           *r->sft.level;
}

static bool episodes(const struct kg_recipe *r) { return !is(r->episode_env, "none"); }

static bool searches(const struct kg_recipe *r) { return is(r->episode_env, "search"); }

static bool dynamic(const struct kg_recipe *r) { return r->rollout.dynamic; }

static bool overlong(const struct kg_recipe *r) { return r->rollout.overlong_buffer > 0; }

static bool kl_or_clip_cov(const struct kg_recipe *r)
{
    return is(r->algo.name[KG_TABLE_SURROGATE], "kl-cov") ||
           is(r->algo.name[KG_TABLE_SURROGATE], "clip-cov");
}

static bool sapo(const struct kg_recipe *r)
{
    return is(r->algo.name[KG_TABLE_SURROGATE], "sapo");
}

static bool gpg(const struct kg_recipe *r)
{
    return is(r->algo.name[KG_TABLE_ADVANTAGE], "gpg");
}

static bool tis(const struct kg_recipe *r) { return r->algo.tis > 0; }

static bool kl(const struct kg_recipe *r)
{
    return !is(r->algo.name[KG_TABLE_KL], "none");
}

static bool kl_target(const struct kg_recipe *r) { return r->algo.kl_target > 0; }

static bool anchor_is_read(const struct kg_recipe *r) { return kl(r) || r->eval.anchor; }

static bool anchor(const struct kg_recipe *r)
{
    return !is(r->algo.name[KG_TABLE_ANCHOR], "none");
}

static bool moving(const struct kg_recipe *r)
{
    return anchor(r) && !is(r->algo.name[KG_TABLE_ANCHOR], "fixed");
}

static bool ema(const struct kg_recipe *r)
{
    return is(r->algo.name[KG_TABLE_ANCHOR], "ema");
}

static bool kappa(const struct kg_recipe *r) { return r->algo.anchor_kappa > 0; }

static bool falling(const struct kg_recipe *r)
{
    return r->optim.opts.schedule != KG_SCHEDULE_CONSTANT;
}

static bool warmup(const struct kg_recipe *r) { return r->optim.warmup_steps > 0; }

static bool schedule_free(const struct kg_recipe *r)
{
    return is(r->optim.kind, "schedule-free");
}

#define WARM     "a warm start (sft.steps or sft.epochs above 0)"
#define EPISODES "an episode.env other than none"
#define SEARCH   "episode.env search"
#define DYNAMIC  "rollout.dynamic true"

static const struct kg_effect_row rows[] = {
    {"sft.data", WARM, warm, "sft.steps"},
    {"sft.level", WARM " without sft.data", generated_warm, "sft.steps"},
    {"sft.fault_rate", WARM " without sft.data", generated_warm, "sft.steps"},
    {"sft.eval_every", "sft.val", sft_val, "sft.val"},
    {"task.level", "a task.name whose problems are generated", generated, "task.name"},
    {"data.val_templates", "data.val", val_files, "data.val"},
    {"rollout.dynamic_metric", DYNAMIC, dynamic, "rollout.dynamic"},
    {"rollout.oversample", DYNAMIC, dynamic, "rollout.dynamic"},
    {"rollout.max_refills", DYNAMIC, dynamic, "rollout.dynamic"},
    {"rollout.overlong_factor", "rollout.overlong_buffer above 0", overlong,
     "rollout.overlong_buffer"},
    {"episode.turns", EPISODES, episodes, "episode.env"},
    {"episode.turn_tokens", EPISODES, episodes, "episode.env"},
    {"episode.obs_tokens", EPISODES, episodes, "episode.env"},
    {"episode.context", EPISODES, episodes, "episode.env"},
    {"episode.window", EPISODES, episodes, "episode.env"},
    {"episode.answer_tokens", EPISODES, episodes, "episode.env"},
    {"episode.open", EPISODES, episodes, "episode.env"},
    {"search.topk", SEARCH, searches, "episode.env"},
    {"search.when_down", SEARCH, searches, "episode.env"},
    {"search.timeout_ms", SEARCH, searches, "episode.env"},
    {"search.tries", SEARCH, searches, "episode.env"},
    {"algo.cov_ratio", "algo.surrogate kl-cov or clip-cov", kl_or_clip_cov,
     "algo.surrogate"},
    {"algo.cov_low", "algo.surrogate kl-cov or clip-cov", kl_or_clip_cov,
     "algo.surrogate"},
    {"algo.cov_high", "algo.surrogate kl-cov or clip-cov", kl_or_clip_cov,
     "algo.surrogate"},
    {"algo.cov_coef", "algo.surrogate kl-cov or clip-cov", kl_or_clip_cov,
     "algo.surrogate"},
    {"algo.tau_pos", "algo.surrogate sapo", sapo, "algo.surrogate"},
    {"algo.tau_neg", "algo.surrogate sapo", sapo, "algo.surrogate"},
    {"algo.gpg_norm", "algo.advantage gpg", gpg, "algo.advantage"},
    {"algo.tis_low", "algo.tis above 0", tis, "algo.tis"},
    {"algo.tis_level", "algo.tis above 0", tis, "algo.tis"},
    {"kl.horizon", "kl.target above 0", kl_target, "kl.target"},
    {"kl.tail", "a kl.estimator", kl, "kl.estimator"},
    {"kl.gradient", "a kl.estimator", kl, "kl.estimator"},
    {"kl.after_filter", "a kl.estimator", kl, "kl.estimator"},
    {"anchor.kind", "a kl.estimator, or eval.anchor true", anchor_is_read,
     "kl.estimator"},
    {"anchor.path", "an anchor.kind", anchor, "anchor.kind"},
    {"anchor.eta", "anchor.kind ema", ema, "anchor.kind"},
    {"anchor.period", "an anchor that moves (anchor.kind ema, iterative, copy)", moving,
     "anchor.kind"},
    {"anchor.unit", "an anchor that moves (anchor.kind ema, iterative, copy)", moving,
     "anchor.kind"},
    {"anchor.smoothing", "anchor.kappa above 0", kappa, "anchor.kappa"},
    {"eval.anchor", "an anchor.kind", anchor, "anchor.kind"},
    {"optim.min_lr", "optim.schedule linear or cosine", falling, "optim.schedule"},
    {"optim.warmup", "optim.warmup_steps above 0", warmup, "optim.warmup_steps"},
    {"optim.evaluate", "optim.kind schedule-free", schedule_free, "optim.kind"},
};

const struct kg_effect_row *kg_effect_rows(size_t *n)
{
    *n = sizeof rows / sizeof *rows;
    return rows;
}

/* ---- values ---- */

static const struct kg_opt_row *option_of(const struct kg_config *c, const char *key)
{
    for (size_t i = 0; i < kg_config_rows(c); i++)
        if (strcmp(kg_config_row(c, i)->key, key) == 0)
            return kg_config_row(c, i);
    return NULL;
}

/* What a preset gives the key; NULL: nothing. */
static const char *preset_value(const char *preset, const char *key)
{
    const struct kg_preset *p;
    struct kg_err err;

    if (kg_preset_find(&p, preset, &err) != KG_OK)
        return NULL;
    return kg_preset_get(p, key);
}

static bool from_command_line(const struct kg_config *c, const char *key)
{
    return strcmp(kg_config_source(c, key), "command line") == 0;
}

/* A recipe's key that the command line has made idle, by its switch or another preset. */
static bool is_left_over(const struct kg_config *c, const struct kg_effect_row *row)
{
    return !from_command_line(c, row->key) &&
           (from_command_line(c, row->by) || from_command_line(c, "algo.preset"));
}

kg_status kg_effect_check(const struct kg_config *c, struct kg_err *err)
{
    struct kg_recipe r;

    kg_recipe_read(&r, c);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *key = rows[i].key, *value = kg_config_text(c, key);
        const struct kg_opt_row *row = option_of(c, key);
        const char *usual = row->fallback, *preset = preset_value(r.preset, key);

        if (rows[i].holds(&r) || !kg_config_is_given(c, key) ||
            is_left_over(c, &rows[i]) || (usual && kg_opt_same(row, value, usual)) ||
            (preset && kg_opt_same(row, value, preset)))
            continue;
        return kg_fail(err, KG_EINVAL,
                       "%s: acts with %s alone; expected %s%s, found %.80s (from %s)",
                       key, rows[i].needs, usual && *usual ? usual : "none",
                       preset ? " or the preset's" : "", value, kg_config_source(c, key));
    }
    return KG_OK;
}
