/* Keys of a set that would do nothing, refused as training refuses them: options of a
 * program without one, and what only some tasks read.
 *
 * A key is a set's own, or given to all sets: then one set that reads it is enough.
 */
#include "eval/suite_internal.h"

#include <stdio.h>
#include <string.h>

const char *kg_suite_key(char text[KG_SUITE_KEY_BYTES], const char *set, const char *key)
{
    snprintf(text, KG_SUITE_KEY_BYTES, "sets.%.64s.%.48s", set, key);
    return text;
}

/* Where its value comes from: its own key, defaults.KEY or a flag. */
static const char *source_of(const struct kg_config *config,
                             const struct kg_eval_set *set, const char *key)
{
    char own[KG_SUITE_KEY_BYTES];

    return kg_config_source(config, kg_suite_key(own, set->name, key));
}

static bool is_own(const struct kg_config *config, const struct kg_eval_set *set,
                   const char *key)
{
    const char *source = source_of(config, set, key);

    return strncmp(source, "defaults.", 9) != 0 && strncmp(source, "--", 2) != 0;
}

/* ---- options of an external grader ---- */

/* What they are where nothing says them. */
static const struct kg_task_program_key program_keys[] = {
    {"command", ""},         {"life", "auto"}, {"command_env", ""},
    {"timeout_ms", "30000"}, {NULL, NULL},
};

/* own: what this set says; else what it is given with all others. */
static kg_status check_program(const struct kg_eval_set *set,
                               const struct kg_config *config, bool own,
                               struct kg_err *err)
{
    for (size_t i = 0; program_keys[i].key; i++) {
        char key[KG_SUITE_KEY_BYTES];
        const struct kg_task_program_key one[] = {
            {kg_suite_key(key, set->name, program_keys[i].key), program_keys[i].idle},
            {NULL, NULL}};

        if (is_own(config, set, program_keys[i].key) == own)
            KG_TRY(kg_task_check_program(config, one, set->task, &set->task_opts, err));
    }
    return KG_OK;
}

static bool runs_program(const struct kg_eval_set *set)
{
    return kg_task_runs_program(set->task, &set->task_opts);
}

/* ---- what some tasks read ---- */

/* Whether the task, or one of several rewards in its place, is the one of this name. */
static bool is_graded_by(const struct kg_eval_set *set, const char *task)
{
    const struct kg_opt_list *rewards = &set->said.rewards;

    for (size_t i = 0; i < rewards->n; i++)
        if (strcmp(strchr(rewards->items[i], '=') + 1, task) == 0)
            return true;
    return strcmp(set->task->name, task) == 0;
}

static bool checks_golds(const struct kg_eval_set *set)
{
    return strcmp(set->task->name, "math") == 0;
}

static bool grades_math(const struct kg_eval_set *set)
{
    return is_graded_by(set, "math");
}

static bool grades_search(const struct kg_eval_set *set)
{
    return is_graded_by(set, "search-qa");
}

static bool reads_file(const struct kg_eval_set *set) { return set->path.len > 0; }

static bool generates(const struct kg_eval_set *set) { return set->path.len == 0; }

static bool plays(const struct kg_eval_set *set) { return set->episode.env; }

static bool retrieves(const struct kg_eval_set *set)
{
    return plays(set) && strcmp(set->episode.env->name, "search") == 0;
}

static bool is_search(const struct kg_eval_set *set)
{
    return strcmp(set->task->name, "search-qa") == 0 || retrieves(set);
}

static const struct {
    const char *key;
    bool (*is_read)(const struct kg_eval_set *set);
    const char *by; /* who reads it */
} rows[] = {
    {"bad_golds", checks_golds, "task math, which checks its gold answers"},
    {"grader", grades_math, "task math"},
    {"keep_thinking", grades_math, "task math"},
    {"metric", grades_search, "task search-qa"},
    {"answer_tags", grades_search, "task search-qa"},
    {"wording", is_search, "task search-qa and env search"},
    {"unique", reads_file, "a data file"},
    {"prompt_key", reads_file, "a data file"},
    {"answer_key", reads_file, "a data file"},
    {"level", generates, "problems that the task generates"},
    {"turns", plays, "an env"},
    {"obs_tokens", plays, "an env"},
    {"context", plays, "an env"},
    {"answer_tokens", plays, "an env"},
    {"window", plays, "an env"},
    {"search_where", retrieves, "env search"},
    {"search_kind", retrieves, "env search"},
    {"search_model", retrieves, "env search"},
    {"search_passages", retrieves, "env search"},
    {"search_vectors", retrieves, "env search"},
    {"search_fusion", retrieves, "env search"},
    {"search_weight", retrieves, "env search"},
    {"search_topk", retrieves, "env search"},
    {"search_when_down", retrieves, "env search"},
    {"search_timeout_ms", retrieves, "env search"},
    {"search_tries", retrieves, "env search"},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* The option of all sets, whose fallback is what a set has where nothing says it. */
static const struct kg_opt_row *option_of(const struct kg_config *config, const char *key)
{
    char of_all[KG_SUITE_KEY_BYTES];
    size_t i = 0;

    snprintf(of_all, sizeof of_all, "defaults.%s", key);
    while (strcmp(kg_config_row(config, i)->key, of_all) != 0)
        i++;
    return kg_config_row(config, i);
}

static kg_status check_row(size_t row, const struct kg_eval_set *set,
                           const struct kg_config *config, bool own, struct kg_err *err)
{
    char key[KG_SUITE_KEY_BYTES];
    const char *source = source_of(config, set, rows[row].key),
               *value = kg_config_text(config,
                                       kg_suite_key(key, set->name, rows[row].key));
    const struct kg_opt_row *option = option_of(config, rows[row].key);

    if (is_own(config, set, rows[row].key) != own ||
        kg_opt_same(option, value, option->fallback))
        return KG_OK;
    return kg_fail(err, KG_EINVAL, "%s: expected %s without %s, found %.80s",
                   own ? key : source, *option->fallback ? option->fallback : "none",
                   rows[row].by, value);
}

/* ---- both ---- */

kg_status kg_suite_check_own(const struct kg_eval_set *set,
                             const struct kg_config *config, struct kg_err *err)
{
    KG_TRY(check_program(set, config, true, err));
    for (size_t r = 0; r < ROWS; r++)
        if (!rows[r].is_read(set))
            KG_TRY(check_row(r, set, config, true, err));
    return KG_OK;
}

static bool any(bool (*is_read)(const struct kg_eval_set *set),
                const struct kg_eval_set *sets, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_read(&sets[i]))
            return true;
    return false;
}

kg_status kg_suite_check_given(const struct kg_suite *s, const struct kg_eval_set *sets,
                               struct kg_err *err)
{
    if (s->n < s->n_all)
        return KG_OK;
    if (!any(runs_program, sets, s->n))
        KG_TRY(check_program(&sets[0], s->config, false, err));
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < s->n && !any(rows[r].is_read, sets, s->n); i++)
            KG_TRY(check_row(r, &sets[i], s->config, false, err));
    return KG_OK;
}
