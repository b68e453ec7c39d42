/* What a key needs to act.
 *
 * Most of the algorithm's act where one of its rows reads them, and the rows say so
 * (policy/algo.h). Every other condition is a row here.
 *
 * A preset or a recipe may leave keys over that an override has made idle (its
 * anchor.eta, say, where the user wants no anchor): these pass. And RUN/config.yaml has
 * every key: so what is the default, or the preset's, is as if it was not written. What
 * waits for validation problems (eval.*, log.validation) is refused on the command line
 * alone, as a recipe may leave data.val to that, and not beside a data.val= that says
 * there that none are wanted. Not here: what is refused where it is read, and
 * eval.at_start, whose other value asks for no validation.
 */
#include "recipe/effect.h"

#include "policy/presets.h"
#include "recipe/algo.h"
#include "recipe/options.h"
#include "task/task.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool is(const char *found, const char *name) { return strcmp(found, name) == 0; }

static bool makes_bf16_on_a_gpu(const struct kg_recipe *r)
{
    return !is(r->model.device, "cpu") &&
           (!is(r->model.dtype, "fp32") || is(r->rollout.dtype, "bf16"));
}

static bool by_cublas(const struct kg_recipe *r)
{
    return makes_bf16_on_a_gpu(r) &&
           (is(r->device.products, "auto") || is(r->device.products, "cublas"));
}

static bool on_gpus(const struct kg_recipe *r) { return !is(r->model.device, "cpu"); }

static bool by_nccl(const struct kg_recipe *r) { return r->ranks.nccl; }

static bool warm(const struct kg_recipe *r) { return kg_recipe_has_sft(r); }

static bool sft_val(const struct kg_recipe *r) { return *r->sft.val; }

static bool val_files(const struct kg_recipe *r) { return r->data.val.n > 0; }

/* A name that is no task's is refused elsewhere. */
static bool makes_problems(const struct kg_recipe *r)
{
    const struct kg_task_row *row;
    struct kg_err err;

    return kg_task_find(&row, r->task.name, &err) != KG_OK || row->levels;
}

static bool generated_train(const struct kg_recipe *r)
{
    return makes_problems(r) && r->data.train.n == 0 && !*r->rollout.data;
}

static bool generated_val(const struct kg_recipe *r)
{
    return makes_problems(r) && r->data.val.n == 0;
}

static bool validates(const struct kg_recipe *r)
{
    return val_files(r) || generated_val(r);
}

static bool generated_warm(const struct kg_recipe *r)
{
    return makes_problems(r) && warm(r) && !*r->sft.data;
}

static bool generated(const struct kg_recipe *r)
{
    return generated_train(r) || generated_val(r) ||
           (generated_warm(r) && !*r->sft.level);
}

static bool episodes(const struct kg_recipe *r) { return !is(r->episode_env, "none"); }

static bool searches(const struct kg_recipe *r) { return is(r->episode_env, "search"); }

static bool hybrid(const struct kg_recipe *r)
{
    return searches(r) && is(r->episode.env_opts.how.kind, "hybrid");
}

static bool by_vectors(const struct kg_recipe *r)
{
    return searches(r) && kg_search_how_dense(&r->episode.env_opts.how);
}

static bool dynamic(const struct kg_recipe *r) { return r->rollout.dynamic; }

static bool off_policy(const struct kg_recipe *r) { return kg_recipe_off_policy(r); }

static bool samples_ahead(const struct kg_recipe *r)
{
    return r->rollout.lag > 0 && !*r->rollout.data && r->train.steps > 0;
}

static bool overlong(const struct kg_recipe *r) { return r->rollout.overlong_buffer > 0; }

/* Whether a reward is this task's. */
static bool grades_as(const struct kg_recipe *r, const char *task)
{
    for (size_t i = 0; i < r->task.rewards.n; i++) {
        const char *named = strchr(r->task.rewards.items[i], '=');

        if (named && is(named + 1, task))
            return true;
    }
    return is(r->task.name, task);
}

static bool math(const struct kg_recipe *r) { return grades_as(r, "math"); }

static bool search_qa(const struct kg_recipe *r) { return grades_as(r, "search-qa"); }

static bool format(const struct kg_recipe *r)
{
    return search_qa(r) && is(r->task_opts.metric, "format");
}

static bool learns_by_reward(const struct kg_recipe *r)
{
    return !is(r->algo.name[KG_TABLE_SURROGATE], "none");
}

static bool filters(const struct kg_recipe *r)
{
    return learns_by_reward(r) || r->algo.entropy_coef > 0 || r->algo.kl_after_filter;
}

static bool tis(const struct kg_recipe *r)
{
    return r->algo.tis > 0 && learns_by_reward(r);
}

static bool regularised(const struct kg_recipe *r) { return r->algo.kl_beta > 0; }

static bool kl(const struct kg_recipe *r)
{
    return !is(r->algo.name[KG_TABLE_KL], "none");
}

/* Whether the algorithm's rows say so; where a name is no row's, which is refused
 * elsewhere, yes. */
static bool rows_say(const struct kg_recipe *r, bool (*so)(const struct kg_algo *))
{
    struct kg_algo algo = r->algo;
    struct kg_err err;

    return kg_algo_choose(&algo, &err) != KG_OK || so(&algo);
}

static bool weighable(const struct kg_recipe *r)
{
    return kl(r) && rows_say(r, kg_algo_kl_weighs);
}

static bool weighted(const struct kg_recipe *r)
{
    return weighable(r) && r->algo.kl_importance;
}

static bool kl_clamped(const struct kg_recipe *r)
{
    return kl(r) && rows_say(r, kg_algo_kl_may_clamp);
}

static bool kl_filtered(const struct kg_recipe *r)
{
    return kl(r) && rows_say(r, kg_algo_kl_in_loss) &&
           (r->rollout.dynamic || r->algo.mask_truncated);
}

static bool has_head(const struct kg_recipe *r) { return r->algo.kl_top_k > 0; }

static bool kl_target(const struct kg_recipe *r) { return r->algo.kl_target > 0; }

static bool anchor_is_read(const struct kg_recipe *r) { return kl(r) || r->eval.anchor; }

static bool anchor(const struct kg_recipe *r)
{
    return !is(r->algo.name[KG_TABLE_ANCHOR], "none");
}

static bool anchor_has_weights(const struct kg_recipe *r)
{
    return anchor(r) && !is(r->algo.name[KG_TABLE_ANCHOR], "iterative");
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

static bool draws_validation(const struct kg_recipe *r)
{
    return r->eval.sampling.temperature > 0;
}

static bool fresh_adapters(const struct kg_recipe *r) { return r->lora.rank > 0; }

#define WARM         "a warm start (sft.steps or sft.epochs above 0)"
#define MADE         "a task.name whose problems are generated"
#define GENERATED_BY "task.name|sft.steps|sft.epochs|sft.data"
#define EPISODES     "an episode.env other than none"
#define SEARCH       "episode.env search"
#define DYNAMIC      "rollout.dynamic true"
#define REWARD       "an algo.surrogate other than none"
#define VALIDATION   "problems to validate on (data.val, or those a task makes)"
#define WEIGHABLE                                                                        \
    "a kl.estimator of the sampled token in the loss (k1 to k5, k3++, abs, topk-* with " \
    "kl.tail true)"

static const struct kg_effect_row rows[] = {
    {"device.products", "products of bf16 on a GPU", makes_bf16_on_a_gpu,
     "model.device|model.dtype|rollout.dtype"},
    {"device.libraries", "products of bf16 on a GPU by cublas", by_cublas,
     "model.device|model.dtype|rollout.dtype|device.products"},
    {"lora.alpha", "lora.rank above 0", fresh_adapters, "lora.rank"},
    {"lora.targets", "lora.rank above 0", fresh_adapters, "lora.rank"},
    {"lora.rslora", "lora.rank above 0", fresh_adapters, "lora.rank"},
    {"sft.data", WARM, warm, "sft.steps"},
    {"sft.level", WARM " without sft.data, and " MADE, generated_warm, GENERATED_BY},
    {"sft.fault_rate", WARM " without sft.data, and " MADE, generated_warm, GENERATED_BY},
    {"sft.count", WARM " without sft.data, and " MADE, generated_warm, GENERATED_BY},
    {"sft.batch", WARM, warm, "sft.steps"},
    {"sft.lr", WARM, warm, "sft.steps"},
    {"sft.warmup_steps", WARM, warm, "sft.steps"},
    {"sft.schedule", WARM, warm, "sft.steps"},
    {"sft.weight_decay", WARM, warm, "sft.steps"},
    {"sft.decay", WARM, warm, "sft.steps"},
    {"sft.max_tokens", WARM, warm, "sft.steps"},
    {"sft.eval_every", "sft.val", sft_val, "sft.val"},
    {"task.level",
     MADE ", and not all are from data.train, rollout.data, data.val and sft.data",
     generated, GENERATED_BY "|sft.level|data.train|data.val|rollout.data"},
    {"task.count", MADE ", data.train and rollout.data empty,", generated_train,
     "task.name|data.train|rollout.data"},
    {"task.val_count", MADE ", data.val empty,", generated_val, "task.name|data.val"},
    {"task.grader", "task math", math, "task.name"},
    {"task.keep_thinking", "task math", math, "task.name"},
    {"task.undecided", "task math", math, "task.name"},
    {"task.metric", "task search-qa", search_qa, "task.name"},
    {"task.answer_tags", "task search-qa", search_qa, "task.name"},
    {"task.format_structure", "task.metric format", format, "task.metric"},
    {"task.format_final", "task.metric format", format, "task.metric"},
    {"task.format_retrieval", "task.metric format", format, "task.metric"},
    {"data.val_templates", "data.val", val_files, "data.val"},
    {"rollout.dynamic_metric", DYNAMIC, dynamic, "rollout.dynamic"},
    {"rollout.oversample", DYNAMIC, dynamic, "rollout.dynamic"},
    {"rollout.max_refills", DYNAMIC, dynamic, "rollout.dynamic"},
    {"rollout.overlong_factor", "rollout.overlong_buffer above 0", overlong,
     "rollout.overlong_buffer"},
    {"rollout.router_replay",
     "a trainer that may differ from the sampler (rollout.lag, rollout.dtype, "
     "train.updates_per_step above 1)",
     off_policy, "rollout.lag|rollout.dtype|train.updates_per_step"},
    {"ranks.rollout",
     "rollout.lag above 0, train.steps above 0 and answers that are sampled",
     samples_ahead, "rollout.lag|rollout.data|train.steps"},
    {"ranks.link", "model.device of a GPU", on_gpus, "model.device"},
    {"ranks.libraries", "ranks.link nccl", by_nccl, "ranks.link"},
    {"episode.turns", EPISODES, episodes, "episode.env"},
    {"episode.turn_tokens", EPISODES, episodes, "episode.env"},
    {"episode.obs_tokens", EPISODES, episodes, "episode.env"},
    {"episode.context", EPISODES, episodes, "episode.env"},
    {"episode.window", EPISODES, episodes, "episode.env"},
    {"episode.answer_tokens", EPISODES, episodes, "episode.env"},
    {"episode.open", EPISODES, episodes, "episode.env"},
    {"search.kind", SEARCH, searches, "episode.env"},
    {"search.model", SEARCH, searches, "episode.env"},
    {"search.passages", SEARCH, searches, "episode.env"},
    {"search.vectors", "search.kind dense or hybrid", by_vectors, "search.kind"},
    {"search.fusion", "search.kind hybrid", hybrid, "search.kind"},
    {"search.weight", "search.kind hybrid", hybrid, "search.kind"},
    {"search.topk", SEARCH, searches, "episode.env"},
    {"search.when_down", SEARCH, searches, "episode.env"},
    {"search.timeout_ms", SEARCH, searches, "episode.env"},
    {"search.tries", SEARCH, searches, "episode.env"},
    {"algo.mask", REWARD, learns_by_reward, "algo.surrogate"},
    {"algo.mask_truncated",
     "an algo.surrogate other than none, algo.entropy_coef above 0, or kl.after_filter "
     "true,",
     filters, "algo.surrogate|algo.entropy_coef|kl.after_filter"},
    {"algo.std_eps", REWARD, learns_by_reward, "algo.surrogate"},
    {"algo.gpg_norm", REWARD, learns_by_reward, "algo.surrogate"},
    {"algo.gamma", REWARD, learns_by_reward, "algo.surrogate"},
    {"algo.rpg_detach", "kl.beta above 0", regularised, "kl.beta"},
    {"algo.tis_low", "algo.tis above 0 and " REWARD, tis, "algo.tis|algo.surrogate"},
    {"algo.tis_level", "algo.tis above 0 and " REWARD, tis, "algo.tis|algo.surrogate"},
    {"kl.horizon", "kl.target above 0", kl_target, "kl.target"},
    {"kl.importance", WEIGHABLE, weighable, "kl.estimator|kl.in|kl.tail"},
    {"kl.iw_lower", WEIGHABLE ", and kl.importance true", weighted,
     "kl.estimator|kl.in|kl.tail|kl.importance"},
    {"kl.iw_upper", WEIGHABLE ", and kl.importance true", weighted,
     "kl.estimator|kl.in|kl.tail|kl.importance"},
    {"kl.clamp",
     "a kl.estimator that has a clamp (`kedge algorithms`), or kl.importance true on one "
     "that takes the weight,",
     kl_clamped, "kl.estimator|kl.in|kl.tail|kl.importance"},
    {"kl.gradient", "kl.top_k above 0", has_head, "kl.top_k"},
    {"kl.after_filter",
     "a kl.estimator in the loss, and rollout.dynamic or algo.mask_truncated true",
     kl_filtered, "kl.estimator|kl.in|rollout.dynamic|algo.mask_truncated"},
    {"anchor.kind", "a kl.estimator, or eval.anchor true", anchor_is_read,
     "kl.estimator"},
    {"anchor.path", "an anchor.kind", anchor, "anchor.kind"},
    {"anchor.eta", "a kl.estimator, or eval.anchor true", anchor_is_read, "kl.estimator"},
    {"anchor.period", "a kl.estimator, or eval.anchor true", anchor_is_read,
     "kl.estimator"},
    {"anchor.unit", "a kl.estimator, or eval.anchor true", anchor_is_read,
     "kl.estimator"},
    {"anchor.place", "an anchor with weights (anchor.kind ema, copy, fixed)",
     anchor_has_weights, "anchor.kind"},
    {"anchor.smoothing", "anchor.kappa above 0", kappa, "anchor.kappa"},
    {"eval.anchor", "an anchor.kind", anchor, "anchor.kind"},
    {"eval.anchor", VALIDATION, validates, "data.val"},
    {"eval.every", VALIDATION, validates, "data.val"},
    {"eval.problems", VALIDATION, validates, "data.val"},
    {"eval.samples", VALIDATION, validates, "data.val"},
    {"eval.temperature", VALIDATION, validates, "data.val"},
    {"eval.top_p", VALIDATION, validates, "data.val"},
    {"eval.top_p", "eval.temperature above 0", draws_validation, "eval.temperature"},
    {"eval.top_k", VALIDATION, validates, "data.val"},
    {"eval.top_k", "eval.temperature above 0", draws_validation, "eval.temperature"},
    {"eval.min_p", VALIDATION, validates, "data.val"},
    {"eval.min_p", "eval.temperature above 0", draws_validation, "eval.temperature"},
    {"eval.reference", VALIDATION, validates, "data.val"},
    {"log.validation", VALIDATION, validates, "data.val"},
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

/* Whether one of "task.name|data.train" is. */
static bool any_from_command_line(const struct kg_config *c, const char *keys)
{
    char key[64];

    for (size_t n; *keys; keys += n + (keys[n] == '|')) {
        n = strcspn(keys, "|");
        snprintf(key, sizeof key, "%.*s", (int)n, keys);
        if (from_command_line(c, key))
            return true;
    }
    return false;
}

/* A recipe's key that the command line has made idle, by its switch or another preset, or
 * may yet make act. */
static bool is_left_over(const struct kg_config *c, const struct kg_effect_row *row)
{
    if (row->holds == validates) /* which the command line alone may know */
        return !from_command_line(c, row->key) || from_command_line(c, row->by);
    return !from_command_line(c, row->key) &&
           (any_from_command_line(c, row->by) || from_command_line(c, "algo.preset"));
}

/* Some of the algorithm's defaults are not the row's, but kg_algo_init's. NULL: none. */
static const char *default_of(char *text, size_t bytes, const struct kg_opt_row *row)
{
    struct kg_algo algo;
    struct kg_err err;

    if (row->fallback)
        return row->fallback;
    kg_algo_init(&algo);
    return kg_algo_get(&algo, row->key, text, bytes, &err) == KG_OK ? text : NULL;
}

/* Refuses what is given to a key that does nothing here. */
static kg_status refuse(const struct kg_config *c, const struct kg_recipe *r,
                        const struct kg_effect_row *idle, struct kg_err *err)
{
    const char *key = idle->key, *value = kg_config_text(c, key);
    const struct kg_opt_row *row = option_of(c, key);
    char text[40];
    const char *usual = default_of(text, sizeof text, row);
    const char *preset = preset_value(r->preset, key);

    if (!kg_config_is_given(c, key) || is_left_over(c, idle) ||
        (usual && kg_opt_same(row, value, usual)) ||
        (preset && kg_opt_same(row, value, preset)))
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "%s: acts with %s alone; expected %s%s, found %.80s (from %s)", key,
                   idle->needs, usual && *usual ? usual : "none",
                   preset ? " or the preset's" : "", value, kg_config_source(c, key));
}

/* ---- what rows of the algorithm read ---- */

/* of one table, in a message */
enum { NAMED = 6 };

static void KG_PRINTF(3, 4) append(char *text, size_t bytes, const char *fmt, ...)
{
    size_t n = strlen(text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + n, bytes - n, fmt, ap);
    va_end(ap);
}

static size_t count_readers(enum kg_policy_table table, const char *key)
{
    size_t n = 0;

    for (size_t i = 0; i < kg_policy_n_rows(table); i++)
        n += kg_policy_reads(kg_policy_row(table, i), key);
    return n;
}

/* "algo.advantage reinforce++ or gae": of many the first few. */
static void put_readers(char *text, size_t bytes, enum kg_policy_table table,
                        const char *key)
{
    size_t n = count_readers(table, key), shown = 0;
    size_t most = n > NAMED ? NAMED - 1 : n;

    append(text, bytes, "%s%s ", *text ? ", or " : "", kg_policy_table_key(table));
    for (size_t i = 0; shown < most; i++) {
        const struct kg_policy_about *row = kg_policy_row(table, i);

        if (!kg_policy_reads(row, key))
            continue;
        append(text, bytes, "%s%s",
               shown == 0       ? ""
               : shown + 1 == n ? " or "
                                : ", ",
               row->name);
        shown++;
    }
    if (n > most)
        append(text, bytes, " or %zu more (`kedge algorithms`)", n - most);
}

/* A key that some rows read and none of the chosen ones. */
static kg_status refuse_unread(const struct kg_config *c, const struct kg_recipe *r,
                               const char *key, struct kg_err *err)
{
    char needs[400] = "", by[256] = ""; /* who switches it: all tables have room */
    const struct kg_effect_row idle = {.key = key, .needs = needs, .by = by};

    for (int t = 0; t < KG_TABLE_COUNT; t++) {
        enum kg_policy_table table = (enum kg_policy_table)t;

        if (count_readers(table, key) == 0)
            continue;
        put_readers(needs, sizeof needs, table, key);
        append(by, sizeof by, "%s%s", *by ? "|" : "", kg_policy_table_key(table));
    }
    return refuse(c, r, &idle, err);
}

kg_status kg_effect_check(const struct kg_config *c, struct kg_err *err)
{
    struct kg_recipe r;
    struct kg_algo algo;
    struct kg_err unknown;

    kg_recipe_read(&r, c);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!rows[i].holds(&r))
            KG_TRY(refuse(c, &r, &rows[i], err));
    algo = r.algo;
    if (kg_algo_choose(&algo, &unknown) != KG_OK)
        return KG_OK; /* a name that is no row's is refused elsewhere */
    for (size_t i = 0; i < kg_algo_n_keys(); i++)
        if (kg_policy_is_read(kg_algo_key(i)) && !kg_algo_reads(&algo, kg_algo_key(i)))
            KG_TRY(refuse_unread(c, &r, kg_algo_key(i), err));
    return KG_OK;
}

/* ---- supervised training alone ---- */

/* Keys of the updates of RL, and who has the same of supervised ones; NULL: fixed there.
 * Not optim.kind, moments and place: checkpoints and memory are by them. */
static const struct of_rl {
    const char *key, *of_sft;
} of_rl[] = {
    {"optim.lr", "sft.lr"},
    {"optim.warmup_steps", "sft.warmup_steps"},
    {"optim.schedule", "sft.schedule"},
    {"optim.weight_decay", "sft.weight_decay"},
    {"optim.decay", "sft.decay"},
    {"optim.warmup", NULL},
    {"optim.min_lr", NULL},
    {"optim.beta1", NULL},
    {"optim.beta2", NULL},
    {"optim.eps", NULL},
    {"optim.clip_norm", NULL},
};

/* Where there are problems `kedge train --resume` goes on with the run, and compares. */
static bool rl_may_follow(const struct kg_recipe *r)
{
    return makes_problems(r) || r->data.train.n > 0 || *r->rollout.data;
}

kg_status kg_effect_check_sft(const struct kg_config *c, struct kg_err *err)
{
    struct kg_recipe r;

    kg_recipe_read(&r, c);
    for (size_t i = 0; !rl_may_follow(&r) && i < sizeof of_rl / sizeof *of_rl; i++) {
        const struct of_rl *o = &of_rl[i];
        const char *value = kg_config_text(c, o->key);
        const struct kg_opt_row *row = option_of(c, o->key);

        if (!from_command_line(c, o->key) || kg_opt_same(row, value, row->fallback))
            continue;
        return kg_fail(err, KG_EINVAL,
                       "%s: is of RL's updates, and there are no problems (task.name, "
                       "data.train) for any; expected %s%s%s, found %.80s (from command "
                       "line)",
                       o->key, o->of_sft ? o->of_sft : "", o->of_sft ? ", or " : "",
                       row->fallback, value);
    }
    return KG_OK;
}
