/* The conditions under which a key has an effect.
 *
 * Most keys of the algorithm have an effect if one of its rows reads them, and the rows
 * list these keys (policy/algo.h). Every other condition is in the row of the option
 * (data/needs.h).
 *
 * A preset or a recipe may set keys that an override makes ineffective (its anchor.eta,
 * say, if the user wants no anchor): these are accepted. RUN/config.yaml, which has every
 * key, may hold such keys, too, with a warning. A default or preset value counts as not
 * set. Keys that need validation problems (eval.*, log.validation) are refused only on
 * the command line, because a recipe may leave data.val to it; they are accepted if it
 * sets data.val, even to nothing. Not here: keys whose reader checks them, and
 * eval.at_start.
 */

#include "base/log.h"
#include "data/needs.h"
#include "policy/presets.h"
#include "recipe/options.h"
#include "task/task.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- conditions that only code can check ---- */

static bool is(const char *found, const char *name) { return strcmp(found, name) == 0; }

/* True if the name is not a task: that is refused elsewhere. */
static bool makes_problems(const struct kg_recipe *r)
{
    const struct kg_task_row *row;
    struct kg_err err;

    return kg_task_find(&row, r->task.name, &err) != KG_OK || row->levels;
}

/* Whether the rows of the KL fulfil `so`. True if a row's name is unknown: that is
 * refused elsewhere. */
static bool kl_is(const struct kg_recipe *r, bool (*so)(const struct kg_algo *))
{
    struct kg_algo algo = r->algo;
    struct kg_err err;

    return !is(algo.name[KG_TABLE_KL], "none") &&
           (kg_algo_choose(&algo, &err) != KG_OK || so(&algo));
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool is_so(const void *recipe, const char *text)
{
    const struct kg_recipe *r = recipe;

    if (begins(text, KG_NEEDS_GENERATED))
        return (r->data.train.n == 0 && !*r->rollout.data) || r->data.val.n == 0 ||
               (kg_recipe_has_sft(r) && !*r->sft.data && !*r->sft.level);
    return kl_is(r, begins(text, &KG_NEEDS_WEIGHABLE[1]) ? kg_algo_kl_weighs
                    : begins(text, &KG_NEEDS_CLAMPED[1]) ? kg_algo_kl_may_clamp
                                                         : kg_algo_kl_in_loss);
}

/* ---- values ---- */

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

/* Whether every key that has a default is given: the recipe is a RUN/config.yaml, where
 * overrides of that run may have left keys without effect. */
static bool has_every_key(const struct kg_config *c)
{
    for (size_t i = 0; i < kg_config_rows(c); i++)
        if (kg_config_row(c, i)->fallback &&
            is(kg_config_source(c, kg_config_row(c, i)->key), "default"))
            return false;
    return true;
}

/* A recipe's key that is accepted without effect: the command line took its effect away
 * (by the key's condition or another preset), or may still give it one. */
static bool is_left_over(const struct kg_needs_in *in, const char *key,
                         const char *clause)
{
    const bool from_recipe = !from_command_line(in->config, key);

    if (begins(clause, KG_NEEDS_VALIDATION)) /* only the command line may give them */
        return from_recipe || from_command_line(in->config, "data.val");
    return from_recipe && (kg_needs_any(clause, in, from_command_line) ||
                           from_command_line(in->config, "algo.preset"));
}

/* The default of a key; the algorithm's are in kg_algo_init. NULL: none. */
static const char *default_of(char *text, size_t bytes, const struct kg_opt_row *row)
{
    struct kg_algo algo;
    struct kg_err err;

    if (row->fallback)
        return row->fallback;
    kg_algo_init(&algo);
    return kg_algo_get(&algo, row->key, text, bytes, &err) == KG_OK ? text : NULL;
}

/* Refuses a given key that has no effect because `clause` does not hold. */
static kg_status refuse(const struct kg_needs_in *in, const struct kg_opt_row *row,
                        const char *clause, const char *needs, struct kg_err *err)
{
    const struct kg_recipe *r = in->user;
    const char *key = row->key, *value = kg_config_text(in->config, key);
    char text[40];
    const char *usual = default_of(text, sizeof text, row);
    const char *preset = preset_value(r->preset, key);

    if (!kg_config_is_given(in->config, key) || is_left_over(in, key, clause) ||
        (usual && kg_opt_same(row, value, usual)) ||
        (preset && kg_opt_same(row, value, preset)))
        return KG_OK;
    if (has_every_key(in->config) && !from_command_line(in->config, key)) {
        kg_log_warn("%s: has an effect only %s; found %.80s (from %s)", key, needs, value,
                    kg_config_source(in->config, key));
        return KG_OK;
    }
    return kg_fail(
        err, KG_EINVAL,
        "%s: has an effect only %s; remove it (default %s%s), found %.80s (from %s)", key,
        needs, usual && *usual ? usual : "none", preset ? " or the preset's" : "", value,
        kg_config_source(in->config, key));
}

static kg_status check_row(const struct kg_needs_in *in, const struct kg_opt_row *row,
                           struct kg_err *err)
{
    const char *from = row->needs, *clause;

    while (kg_config_is_given(in->config, row->key) &&
           (clause = kg_needs_next(&from, in))) {
        char needs[400];

        kg_needs_say(needs, sizeof needs, clause);
        KG_TRY(refuse(in, row, clause, needs, err));
    }
    return KG_OK;
}

/* ---- what rows of the algorithm read ---- */

/* names of one table in a message */
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

/* "algo.advantage reinforce++ or gae"; only the first few of many rows. */
static void put_readers(char *text, size_t bytes, enum kg_policy_table table,
                        const char *key)
{
    size_t n = count_readers(table, key), shown = 0;
    size_t most = n > NAMED ? NAMED - 1 : n;

    append(text, bytes, "%s%s ", *text ? ", or " : "with ", kg_policy_table_key(table));
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

/* Refuses a key that none of the chosen rows reads, although other rows do. */
static kg_status refuse_unread(const struct kg_needs_in *in, const struct kg_opt_row *row,
                               struct kg_err *err)
{
    char needs[400] = "", by[256] = "@:"; /* tables' keys; all have room */

    for (int t = 0; t < KG_TABLE_COUNT; t++) {
        enum kg_policy_table table = (enum kg_policy_table)t;

        if (count_readers(table, row->key) == 0)
            continue;
        put_readers(needs, sizeof needs, table, row->key);
        append(by, sizeof by, "%s%s", by[2] ? "," : "", kg_policy_table_key(table));
    }
    return refuse(in, row, by, needs, err);
}

kg_status kg_effect_check(const struct kg_config *c, struct kg_err *err)
{
    struct kg_recipe r;
    const struct kg_needs_in in = {c, "", is_so, NULL, &r};
    struct kg_algo algo;
    struct kg_err unknown;

    kg_recipe_read(&r, c);
    for (size_t i = 0; i < kg_config_rows(c); i++)
        KG_TRY(check_row(&in, kg_config_row(c, i), err));
    algo = r.algo;
    if (kg_algo_choose(&algo, &unknown) != KG_OK)
        return KG_OK; /* unknown names of rows are refused elsewhere */
    for (const struct kg_opt_row *row = kg_algo_rows; row->key; row++)
        if (kg_policy_is_read(row->key) && !kg_algo_reads(&algo, row->key))
            KG_TRY(refuse_unread(&in, row, err));
    return KG_OK;
}

/* ---- SFT alone ---- */

/* Keys of RL updates, and SFT's key for the same; NULL: SFT has a fixed value. Without
 * optim.kind, moments and place, which also decide checkpoints and memory of SFT. */
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

static const struct kg_opt_row *option_of(const struct kg_config *c, const char *key)
{
    for (size_t i = 0; i < kg_config_rows(c); i++)
        if (strcmp(kg_config_row(c, i)->key, key) == 0)
            return kg_config_row(c, i);
    return NULL;
}

/* If there are problems, `kedge train --resume` may continue with RL and these keys. */
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
        return kg_fail(
            err, KG_EINVAL,
            "%s: has an effect only on RL updates, but there are no problems (task.name, "
            "data.train); %s%s%sremove it (default %s), found %.80s (from command line)",
            o->key, o->of_sft ? "use " : "", o->of_sft ? o->of_sft : "",
            o->of_sft ? " or " : "", row->fallback, value);
    }
    return KG_OK;
}
