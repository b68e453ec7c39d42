/* Reads a suite and resolves its sets. Every set has all keys under its name. The names
 * of sets are therefore read first; rows are made for each from the one table; then the
 * file is read like a recipe. `defaults` is a set that is not run: its values are weaker
 * than a set's own and stronger than a row's default. After kg_suite_resolve every key of
 * every set has its value. */
#include "eval/suite.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/hub.h"
#include "data/needs.h"
#include "rollout/sampler.h"
#include "rollout/sampling.h"
#include "serve/policy.h"
#include "task/rows.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 128 };

/* sets.SET.KEY into text.   returns text */
static const char *key_of(char text[KEY_BYTES], const char *set, const char *key)
{
    snprintf(text, KEY_BYTES, "sets.%.64s.%.48s", set, key);
    return text;
}

#define OF_ALL(field) KG_OPT_AT(struct kg_suite_about, field)
#define AT(field)     KG_OPT_AT(struct kg_eval_set, field)
/* suite.*, model.* and server.* */
static const struct kg_opt_row suite_rows[] = {
    {"suite.name", OF_ALL(name), "", 0, 0, NULL, "name of the suite, in the results",
     false},
    {"suite.about", OF_ALL(about), "", 0, 0, NULL, "protocol and its source", true},
    {"suite.seed", OF_ALL(seed), "1", 0, 1e15, NULL, "seed of sampling", false},
    {"suite.sets", OF_ALL(sets), "", 0, 0, NULL,
     "sets to evaluate (--sets, --without); none: all", true},
    {"model.path", OF_ALL(model_path), "", 0, 0, NULL, "checkpoint folder (--model)",
     true},
    {"model.adapter", OF_ALL(model_adapter), "", 0, 0, NULL,
     "PEFT folder of adapters for it (--adapter)", true},
    {"model.dtype", OF_ALL(model_dtype), "", 0, 0, NULL, "dtype of products (--dtype)",
     false},
    {"model.base_dtype", OF_ALL(model_base_dtype), "", 0, 0, NULL,
     "storage type of weights (--base-dtype)", false},
    {"model.device", OF_ALL(model_device), "cpu", 0, 0, NULL, "device (--device)", false},
    {"server.url", OF_ALL(server_url), "", 0, 0, NULL,
     "server instead of a folder (--base-url)", true},
    {"server.model", OF_ALL(server_model), "", 0, 0, NULL,
     "model name on that server (--model)", false},
    {"server.api", OF_ALL(server_api), "chat", 0, 0, "chat|completions",
     "API of that server (--api)", false},
    {0},
};

/* Keys of a set, without the prefix "defaults." or "sets.NAME.". */
static const struct kg_opt_row set_rows[] = {
    {"data", AT(said.data), "", 0, 0, NULL,
     "problems: JSON lines, a JSON array or Parquet; '' if the task generates them",
     true},
    {"source", AT(source), "", 0, 0, NULL, "where to get the file", true},
    {"licence", AT(licence), "", 0, 0, NULL, "licence of the file", true},
    {"expect", AT(expect), "0", 0, 1e9, NULL,
     "records that the file must have, counted after unique; 0: any number", false},
    {"group", AT(group), "", 0, 0, NULL, "sets of one group get a common unweighted mean",
     false},
    {"only_source", AT(only), "", 0, 0, NULL, "use only the records of this data_source",
     false},
    {"problems", AT(limit), "0", 0, 1e7, NULL, "largest number of problems; 0: all",
     false},
    KG_RECORD_ROWS("", struct kg_eval_set, task_opts., "data"),
    {"task", AT(said.task), "math", 0, 0, NULL, "how to grade completions (kedge task)",
     false},
    {"level", AT(task_opts.level), "", 0, 0, NULL, "difficulty of generated problems",
     false, "data="},
    KG_TASK_ROWS("", struct kg_eval_set, task_opts., "task", "rewards", "env"),
    {"command_env", AT(task_opts.env), "", 0, 0, NULL,
     "task external: environment variables that the grader gets, 'A,B'", true,
     KG_IF_PROGRAM("task", "rewards")},
    {"rewards", AT(said.rewards), "", 0, 0, NULL,
     "several rewards instead of the task's reward, each NAME=TASK or NAME=external "
     "COMMAND; the first decides what is correct",
     false},
    {"reward_weights", AT(said.reward_weights), "", 0, 0, NULL,
     "weight of each reward in the sum; none: 1 each", false},
    KG_PROMPT_ROWS("", struct kg_eval_set, task_opts.prompt.),
    {"chat_template", AT(chat_name), "auto", 0, 0, NULL,
     "auto (the model's template), none, or a file, which must apply to every problem",
     false},
    {"add_special", AT(special), "auto", 0, 0, KG_SPECIAL_CHOICES,
     "whether the tokenizer adds its special tokens (BOS); auto: to text, not to the "
     "output of a chat template",
     false},
    {"samples", AT(samples), "1", 1, KG_EVAL_MAX_N, NULL,
     "completions per problem: n of avg@n", false},
    {"pass_k", AT(said.pass_k), "", 0, 0, NULL, "k's of pass@k", false},
    {"maj_k", AT(said.maj_k), "", 0, 0, NULL, "k's of maj@k", false},
    KG_SAMPLING_ROWS("", struct kg_eval_set, sampling., false, NULL, NULL),
    {"max_tokens", AT(sampling.max_tokens), "512", 1, 1e7, NULL, "longest completion",
     false},
    {"stops", AT(said.stops), "", 0, 0, NULL, "strings that end a completion", false},
    {"env", AT(said.env), "none", 0, 0, "none|search|calculator|external",
     "environment of the model's turns; none: a completion is one turn, of max_tokens",
     false},
    KG_EPISODE_ROWS("", struct kg_eval_set, episode., "env!none",
                    "env=search,calculator"),
    KG_PLAYER_ROWS("episode_", struct kg_eval_set, episode.env_opts., "env=external"),
    {"context", AT(episode.context), "0", 0, 1e7, NULL,
     "longest episode in tokens, with prompt and observations; 0: 4096, or the model's "
     "positions if fewer",
     false, "env!none"},
    KG_SEARCH_ROWS("search_", struct kg_eval_set, episode.env_opts., "env=search", ""),
    {0},
};

/* ---- the table of a suite ---- */

enum { PER_SET = sizeof set_rows / sizeof *set_rows }; /* with the row at its end */

static kg_status put_key(struct kg_opt_row *row, const char *prefix, const char *key,
                         struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status = kg_str_printf(&text, err, "%s.%s", prefix, key);

    row->key = status == KG_OK ? kg_str_take(&text, err) : NULL;
    kg_str_release(&text);
    return row->key ? KG_OK : err->code;
}

static kg_status add_rows(struct kg_opt_row *out, const char *prefix, bool fallback,
                          struct kg_err *err)
{
    for (size_t i = 0; i + 1 < PER_SET; i++) {
        out[i] = set_rows[i];
        out[i].key = NULL;
        out[i].free |= fallback ? KG_FREE_ON_RESUME
                                : 0; /* the values that count are those of the sets */
        if (!fallback)
            out[i].fallback = NULL;
        KG_TRY(put_key(&out[i], prefix, set_rows[i].key, err));
    }
    return KG_OK;
}

/* Makes the tables of defaults and of every set; each ends with a row without a key. */
static kg_status make_rows(struct kg_suite *s, struct kg_err *err)
{
    char prefix[KG_SUITE_NAME_BYTES + 8];

    KG_TRY(kg_mem_new(&s->rows, (s->n + 1) * PER_SET, sizeof *s->rows, "suite", err));
    KG_TRY(add_rows(s->rows, "defaults", true, err));
    for (size_t i = 0; i < s->n; i++) {
        snprintf(prefix, sizeof prefix, "sets.%s", s->names[i]);
        KG_TRY(add_rows(s->rows + (i + 1) * PER_SET, prefix, false, err));
    }
    return KG_OK;
}

/* The table of a set by its number in the file, from 1; table 0 is defaults. */
static const struct kg_opt_row *rows_of(const struct kg_suite *s, size_t table)
{
    return s->rows + table * PER_SET;
}

static bool is_name(const char *name)
{
    static const char bytes[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789_-";
    size_t n = strlen(name);

    return n > 0 && n < KG_SUITE_NAME_BYTES && strspn(name, bytes) == n;
}

/* For a file in which no sets were found: fails if it is not YAML at all. */
static kg_status check_yaml(const char *path, struct kg_err *err)
{
    const struct kg_opt_row *const tables[] = {suite_rows};
    struct kg_config *config;

    KG_TRY(kg_config_create(&config, tables, 1, err));
    kg_status status = kg_config_load_yaml(config, path, err);
    kg_config_free(config);
    return status == KG_EFORMAT ? status : KG_OK;
}

static kg_status read_names(struct kg_suite *s, const char *path, struct kg_err *err)
{
    KG_TRY(kg_config_scan(&s->names, &s->n, path, "sets", err));
    s->n_all = s->n;
    if (s->n == 0) {
        KG_TRY(check_yaml(path, err));
        return kg_fail(err, KG_EINVAL,
                       "%s: expected a section 'sets' with at least one set, such as "
                       "'sets: {aime24: {data: aime24.jsonl}}', found none",
                       path);
    }
    if (s->n > KG_SUITE_MAX_SETS)
        return kg_fail(err, KG_EINVAL, "%s: expected at most %d sets, found %zu", path,
                       KG_SUITE_MAX_SETS, s->n);
    for (size_t i = 0; i < s->n; i++)
        if (!is_name(s->names[i]))
            return kg_fail(err, KG_EINVAL,
                           "%s: expected a set's name of letters, digits, _ and - (at "
                           "most %d), found '%.80s'",
                           path, KG_SUITE_NAME_BYTES - 1, s->names[i]);
    return KG_OK;
}

static kg_status only_name(struct kg_suite *s, struct kg_err *err)
{
    KG_TRY(kg_mem_new(&s->names, 1, sizeof *s->names, "suite", err));
    s->names[0] = kg_mem_strdup(KG_EVAL_SET, err);
    if (!s->names[0])
        return err->code;
    s->n = s->n_all = 1;
    return KG_OK;
}

struct kg_suite_about kg_suite_about(const struct kg_suite *s)
{
    struct kg_suite_about about = {0};

    kg_config_fill(&about, s->config, suite_rows);
    return about;
}

kg_status kg_suite_open(struct kg_suite *s, const char *path, struct kg_err *err)
{
    const struct kg_opt_row *tables[KG_SUITE_MAX_SETS + 2] = {suite_rows};
    kg_status status;

    *s = (struct kg_suite){.is_file = path};
    KG_TRY_GOTO(out, path ? read_names(s, path, err) : only_name(s, err));
    KG_TRY_GOTO(out, make_rows(s, err));
    for (size_t i = 0; i <= s->n; i++)
        tables[i + 1] = rows_of(s, i);
    KG_TRY_GOTO(out, kg_config_create(&s->config, tables, s->n + 2, err));
    if (path)
        status = kg_config_load_yaml(s->config, path, err);
out:
    if (status != KG_OK)
        kg_suite_release(s);
    return status;
}

/* Keys of rows are const, but owned by the suite. */
static void free_key(const char *key)
{
    void *owned;

    memcpy(&owned, &key, sizeof owned);
    kg_mem_free(owned);
}

void kg_suite_release(struct kg_suite *s)
{
    kg_config_free(s->config);
    for (size_t i = 0; s->rows && i < (s->n_all + 1) * PER_SET; i++)
        free_key(s->rows[i].key);
    kg_mem_free(s->rows);
    kg_file_names_free(s->names, s->n_all);
    *s = (struct kg_suite){0};
}

/* ---- which sets ---- */

/* Index of the set with this name (len bytes); n_all if there is none. */
static size_t place_of(const struct kg_suite *s, const char *name, size_t len)
{
    size_t i = 0;

    while (i < s->n_all &&
           (strlen(s->names[i]) != len || memcmp(s->names[i], name, len) != 0))
        i++;
    return i;
}

static kg_status mark_set(bool *marked, const struct kg_suite *s, const char *name,
                          size_t len, const char *where, struct kg_err *err)
{
    size_t i = place_of(s, name, len);
    char found[81];

    if (i < s->n_all) {
        marked[i] = true;
        return KG_OK;
    }
    snprintf(found, sizeof found, "%.*s", (int)(len < 80 ? len : 80), name);
    return kg_str_unknown(KG_EINVAL, where, found, s->names, s->n_all, sizeof *s->names,
                          err);
}

/* Marks the sets that suite.sets lists. */
static kg_status mark_sets(bool *marked, const struct kg_suite *s, struct kg_err *err)
{
    struct kg_opt_list sets = kg_suite_about(s).sets;

    for (size_t i = 0; i < sets.n; i++)
        KG_TRY(
            mark_set(marked, s, sets.items[i], strlen(sets.items[i]), "suite.sets", err));
    return KG_OK;
}

kg_status kg_suite_pick(struct kg_suite *s, const char *list, bool without,
                        const char *where, struct kg_err *err)
{
    bool from[KG_SUITE_MAX_SETS] = {false}, marked[KG_SUITE_MAX_SETS] = {false};
    bool all = kg_suite_about(s).sets.n == 0;
    struct kg_str lines = {0};
    kg_status status;

    /* separators of a list "a,b" */
    static const char between[] = ", ";

    for (const char *at = list + strspn(list, between); *at;) {
        size_t len = strcspn(at, between);

        KG_TRY(mark_set(marked, s, at, len, where, err));
        at += len;
        at += strspn(at, between);
    }
    if (without)
        KG_TRY(mark_sets(from, s, err));
    for (size_t i = 0; i < s->n_all; i++)
        if (without ? !marked[i] && (from[i] || all) : marked[i])
            KG_TRY_GOTO(out, kg_str_printf(&lines, err, "%s%s", lines.len ? "\n" : "",
                                           s->names[i]));
    if (lines.len == 0) {
        status = kg_fail(err, KG_EINVAL,
                         "%s: expected a set to evaluate, found none left", where);
        goto out;
    }
    status = kg_config_set(s->config, "suite.sets", lines.data, false, where, err);
out:
    kg_str_release(&lines);
    return status;
}

kg_status kg_suite_choose(struct kg_suite *s, struct kg_err *err)
{
    bool marked[KG_SUITE_MAX_SETS] = {false};
    char *names[KG_SUITE_MAX_SETS];
    size_t n = 0, left = 0;

    if (kg_suite_about(s).sets.n == 0)
        return KG_OK;
    KG_TRY(mark_sets(marked, s, err));
    for (size_t i = 0; i < s->n_all; i++)
        if (marked[i])
            names[n++] = s->names[i];
    for (size_t i = 0; i < s->n_all; i++)
        if (!marked[i])
            names[n + left++] = s->names[i];
    memcpy(s->names, names, s->n_all * sizeof *names);
    s->n = n;
    return KG_OK;
}

/* ---- values of a set ---- */

static const char of_all_sets[] = "defaults.";

static kg_status resolve_key(struct kg_suite *s, const char *set, const char *of_all,
                             struct kg_err *err)
{
    char of_set[KEY_BYTES];

    key_of(of_set, set, of_all + sizeof of_all_sets - 1);
    if (kg_config_is_given(s->config, of_set))
        return KG_OK;
    return kg_config_set(s->config, of_set, kg_config_text(s->config, of_all), true,
                         of_all, err);
}

kg_status kg_suite_resolve(struct kg_suite *s, struct kg_err *err)
{
    for (size_t i = 0; i < s->n; i++)
        for (const struct kg_opt_row *row = rows_of(s, 0); row->key; row++)
            KG_TRY(resolve_key(s, s->names[i], row->key, err));
    return kg_suite_choose(s, err);
}

kg_status kg_suite_set_all(struct kg_suite *s, const char *key, const char *value,
                           const char *where, struct kg_err *err)
{
    char text[KEY_BYTES];

    for (size_t i = 0; i < s->n; i++)
        KG_TRY(kg_config_set(s->config, key_of(text, s->names[i], key), value, false,
                             where, err));
    return KG_OK;
}

/* Reads a list of k's, each from 1 to the number of samples. */
static kg_status read_ks(int32_t out[KG_EVAL_KS], int *n, struct kg_opt_list ks,
                         const char *name, const char *key, int32_t samples,
                         struct kg_err *err)
{
    char full[KEY_BYTES];

    key_of(full, name, key);
    if (ks.n > KG_EVAL_KS)
        return kg_fail(err, KG_EINVAL, "%s: expected at most %d values, found %zu", full,
                       KG_EVAL_KS, ks.n);
    for (size_t i = 0; i < ks.n; i++) {
        char *end;

        errno = 0;
        long k = strtol(ks.items[i], &end, 10);
        if (errno || *end || k < 1 || k > samples)
            return kg_fail(err, KG_EINVAL,
                           "%s: expected a k from 1 to the number of samples, %d, found "
                           "'%.40s'",
                           full, samples, ks.items[i]);
        out[(*n)++] = (int32_t)k;
    }
    return KG_OK;
}

static kg_status take_stops(struct kg_eval_set *set, struct kg_err *err)
{
    char full[KEY_BYTES];
    struct kg_opt_list stops = set->said.stops;

    if (stops.n > KG_MAX_STOPS)
        return kg_fail(err, KG_EINVAL, "%s: expected at most %d strings, found %zu",
                       key_of(full, set->name, "stops"), KG_MAX_STOPS, stops.n);
    set->sampling.stops = stops.items;
    set->sampling.n_stops = (int)stops.n;
    return KG_OK;
}

static kg_status make_path(struct kg_eval_set *set, const char *data_dir,
                           struct kg_err *err)
{
    const char *path = set->said.data;
    struct kg_hub_found found;

    KG_TRY(kg_hub_find_file(&found, path, err));
    if (found.cached)
        return kg_str_puts(&set->path, found.path.text, err);
    if (*path && *path != '/' && data_dir)
        return kg_str_printf(&set->path, err, "%s/%s", data_dir, path);
    return kg_str_puts(&set->path, path, err);
}

/* Counts of an episode (struct kg_eval_fresh); an external program has the first
 * PLAYED. */
static const char *const searched[] = {"turns", "finished", "searches", "invalid",
                                       "failed"};
static const char *const called[] = {"turns", "finished", "calls", "invalid", "failed"};
enum { PLAYED = 2 };

/* A search server has its own encoder; an index file needs search_model. */
static kg_status take_retriever(struct kg_eval_set *set, struct kg_err *err)
{
    struct kg_search_how *how = &set->episode.env_opts.how;
    const char *where = set->episode.env_opts.retriever;
    struct kg_hub_found found;

    if (!*where)
        return kg_fail(err, KG_EINVAL,
                       "search_where: expected an index file or "
                       "http://HOST:PORT/retrieve for env search, found none");
    KG_TRY(kg_search_how_check(how, "search_", "model", err));
    if (strstr(where, "://") || !kg_search_how_dense(how))
        return KG_OK;
    if (kg_hub_find_model(&found, how->model, err) != KG_OK)
        return kg_err_prefix(err, "search_model");
    KG_TRY(kg_str_puts(&set->encoder, found.path.text, err));
    how->model = kg_str_text(&set->encoder);
    return KG_OK;
}

static kg_status take_episode(struct kg_eval_set *set, struct kg_err *err)
{
    struct kg_episode_opts *e = &set->episode;
    bool searches = strcmp(set->said.env, "search") == 0;

    if (strcmp(set->said.env, "none") != 0)
        KG_TRY(kg_env_find(&e->env, set->said.env, err));
    KG_TRY(
        kg_env_check_task(e->env, set->task, "env external and task environment", err));
    if (!e->env)
        return KG_OK;
    e->turn_tokens = set->sampling.max_tokens;
    e->env_opts.wording = set->task_opts.wording;
    e->env_opts.section = "episode_";
    e->host = &kg_policy_host;
    e->prompt = &set->task_opts.prompt;
    e->further = &set->further;
    set->ks.extra = searches ? searched : called;
    set->ks.n_extra = e->env->open ? sizeof called / sizeof *called : PLAYED;
    return searches ? take_retriever(set, err) : KG_OK;
}

static kg_status check_names(const struct kg_eval_set *set, struct kg_err *err)
{
    if (set->ks.n_maj > 0 && !set->task->same)
        return kg_fail(
            err, KG_EUNSUPPORTED,
            "maj_k: expected a task that can compare two answers, found %s, which cannot",
            set->task->name);
    if (set->path.len == 0 && !set->task->levels)
        return kg_fail(err, KG_EINVAL,
                       "expected a data file, found none (task %s does not generate "
                       "problems)",
                       set->task->name);
    return KG_OK;
}

/* The key or flag that gave `exclude`, to be named in an error; if nothing did, the set's
 * own key, or --exclude without a suite. */
static const char *said_by(char own[KEY_BYTES], const struct kg_eval_set *set,
                           const struct kg_suite *s)
{
    const char *source = kg_config_source(s->config, key_of(own, set->name, "exclude"));

    if (!s->is_file)
        return "--exclude";
    if (!*set->task_opts.exclude)
        return own;
    return strcmp(source, "defaults.exclude") == 0 || strncmp(source, "--", 2) == 0
               ? source
               : own;
}

static kg_status make_excluded(struct kg_eval_set *set, const struct kg_suite *s,
                               struct kg_err *err)
{
    struct kg_task_opts *opts = &set->task_opts;
    size_t n = kg_task_names(opts->exclude);
    char own[KEY_BYTES];

    snprintf(set->exclude_key, sizeof set->exclude_key, "%s", said_by(own, set, s));
    opts->exclude_key = set->exclude_key;
    opts->excluded = n ? kg_mem_calloc(n, sizeof *opts->excluded, "names", err) : NULL;
    return n && !opts->excluded ? err->code : KG_OK;
}

static kg_status open_rewards(struct kg_eval_set *set, struct kg_err *err)
{
    char rewards[KEY_BYTES], weights[KEY_BYTES], command[KEY_BYTES];
    const struct kg_task_rewards_keys keys = {
        key_of(rewards, set->name, "rewards"),
        key_of(weights, set->name, "reward_weights"),
        key_of(command, set->name, "command")};

    set->task_opts.further = &set->further;
    KG_TRY(kg_task_rewards_read(&set->task_opts.rewards, &keys, set->said.rewards,
                                set->said.reward_weights, &set->task_opts, err));
    set->ks.rewards = set->task_opts.rewards;
    set->ks.further = &set->further;
    return KG_OK;
}

/* ---- keys without effect ---- */

/* A value without effect: the key's condition, and where the value was given. */
struct idle {
    const char *usual, *value, *source;
    char key[KEY_BYTES], needs[200];
    bool own; /* given for this set alone; else by defaults or a flag */
};

/* row: of defaults.   returns whether the set has a value without effect */
static bool find_idle(struct idle *idle, const struct kg_opt_row *row, const char *set,
                      const struct kg_config *config)
{
    char before[KEY_BYTES];
    const struct kg_needs_in in = {config, key_of(before, set, "")};
    const char *from = row->needs, *clause = kg_needs_next(&from, &in);

    if (!clause)
        return false;
    kg_needs_say(idle->needs, sizeof idle->needs, clause);
    key_of(idle->key, set, row->key + sizeof of_all_sets - 1);
    idle->usual = row->fallback;
    idle->value = kg_config_text(config, idle->key);
    idle->source = kg_config_source(config, idle->key);
    idle->own = strncmp(idle->source, of_all_sets, sizeof of_all_sets - 1) != 0 &&
                strncmp(idle->source, "--", 2) != 0;
    return !kg_opt_same(row, idle->value, idle->usual);
}

static kg_status refuse(const struct idle *idle, struct kg_err *err)
{
    return kg_fail(err, KG_EINVAL,
                   "%s: has an effect only %s; remove it (default %s), found %.80s",
                   idle->own ? idle->key : idle->source, idle->needs,
                   *idle->usual ? idle->usual : "none", idle->value);
}

/* Whether a key has an effect in any set that is evaluated. */
static bool acts(const struct kg_suite *s, const struct kg_opt_row *row)
{
    char before[KEY_BYTES];

    for (size_t i = 0; i < s->n; i++) {
        const struct kg_needs_in in = {s->config, key_of(before, s->names[i], "")};
        const char *from = row->needs;

        if (!kg_needs_next(&from, &in))
            return true;
    }
    return false;
}

/* Refuses values given to all sets that act in none, unless sets are left out. */
static kg_status check_given(const struct kg_suite *s, struct kg_err *err)
{
    struct idle idle;

    if (s->n < s->n_all)
        return KG_OK;
    for (const struct kg_opt_row *row = rows_of(s, 0); row->key; row++)
        for (size_t i = 0; i < s->n && !acts(s, row); i++)
            if (find_idle(&idle, row, s->names[i], s->config) && !idle.own)
                return refuse(&idle, err);
    return KG_OK;
}

static kg_status make_set(struct kg_eval_set *set, const struct kg_suite *s,
                          const char *data_dir, struct kg_err *err)
{
    set->task_opts.seed = kg_suite_about(s).seed;
    set->task_opts.count = set->limit ? set->limit : 500; /* for generators */
    set->task_opts.held_out = true;
    set->task_opts.format = (struct kg_qa_format){.structure = 0.2,
                                                  .final = 0.1}; /* as Search-R1's */
    set->sampling.rng = (struct kg_rng_key){set->task_opts.seed, KG_RNG_EVAL};
    KG_TRY(kg_task_find(&set->task, set->said.task, err));
    KG_TRY(open_rewards(set, err));
    KG_TRY(make_excluded(set, s, err));
    KG_TRY(make_path(set, data_dir, err));
    KG_TRY(take_stops(set, err));
    KG_TRY(kg_sampler_check(&set->sampling, err));
    KG_TRY(take_episode(set, err));
    struct idle idle;

    for (const struct kg_opt_row *row = rows_of(s, 0); row->key; row++)
        if (find_idle(&idle, row, set->name, s->config) && idle.own)
            return refuse(&idle, err);
    if (set->path.len > 0)
        set->task_opts.level = ""; /* given to all sets; only generators use it */
    KG_TRY(read_ks(set->ks.pass, &set->ks.n_pass, set->said.pass_k, set->name, "pass_k",
                   set->samples, err));
    KG_TRY(read_ks(set->ks.maj, &set->ks.n_maj, set->said.maj_k, set->name, "maj_k",
                   set->samples, err));
    return check_names(set, err);
}

/* The table of a set by its name. */
static const struct kg_opt_row *table_of(const struct kg_suite *s, const char *name)
{
    char key[KEY_BYTES];
    size_t i = 1;

    key_of(key, name, set_rows[0].key);
    while (strcmp(rows_of(s, i)->key, key) != 0)
        i++;
    return rows_of(s, i);
}

kg_status kg_eval_set_init(struct kg_eval_set *set, const struct kg_suite *s, size_t i,
                           const char *data_dir, struct kg_err *err)
{
    *set = (struct kg_eval_set){.name = s->names[i]};
    kg_config_fill(set, s->config, table_of(s, s->names[i]));
    if (make_set(set, s, data_dir, err) == KG_OK)
        return KG_OK;
    kg_eval_set_release(set);
    return kg_err_prefix(err, "set %s", s->names[i]);
}

void kg_eval_set_release(struct kg_eval_set *set)
{
    kg_mem_free(set->task_opts.excluded);
    kg_task_grader_close(set->task_opts.running);
    kg_task_rewards_close(set->task_opts.rewards);
    kg_str_release(&set->path);
    kg_str_release(&set->encoder);
    kg_dataset_release(&set->data);
    kg_chat_template_close(set->chat);
    *set = (struct kg_eval_set){0};
}

/* ---- problems ---- */

/* Keeps the records of the wanted data_source, up to the limit, in order. */
static kg_status filter(struct kg_eval_set *set, struct kg_err *err)
{
    const struct kg_dataset *d = &set->data;
    bool *drop = kg_mem_calloc(d->n, sizeof *drop, "problems", err);
    int64_t kept = 0;

    if (!drop)
        return err->code;
    for (size_t i = 0; i < d->n; i++) {
        bool wanted = !*set->only || strcmp(d->records[i].data_source, set->only) == 0;

        drop[i] = !wanted || (set->limit && kept == set->limit);
        kept += !drop[i];
    }
    kg_dataset_drop(&set->data, drop);
    kg_mem_free(drop);
    return KG_OK;
}

/* Chooses the set's chat template, unless it is loaded. Without a model's folder, auto
 * means none, so user turns cannot be rendered. */
static kg_status choose_chat(struct kg_eval_set *set, const char *model_dir,
                             struct kg_err *err)
{
    struct kg_prompt_opts *how = &set->task_opts.prompt;
    bool is_auto = strcmp(set->chat_name, "auto") == 0;

    how->chat = set->chat;
    if (set->chat)
        return KG_OK;
    if (is_auto && !model_dir && how->user_turn)
        return kg_fail(err, KG_EINVAL,
                       "chat_template: expected a file, found auto: the server's "
                       "template is unknown");
    if (is_auto && (!model_dir || (set->path.len == 0 && !how->user_turn)))
        return KG_OK;
    return kg_prompt_choose(&set->chat, how, set->chat_name, model_dir, err);
}

static kg_status load(struct kg_eval_set *set, const char *model_dir, struct kg_err *err)
{
    const char *path = set->path.len ? set->path.data : NULL;

    KG_TRY(choose_chat(set, model_dir, err));
    if (kg_task_is_external(set->task) && !set->task_opts.rewards &&
        !set->task_opts.running)
        KG_TRY(kg_task_grader_open(&set->task_opts.running, &set->task_opts, err));
    KG_TRY(kg_task_load(&set->data, set->task, &set->task_opts, path, err));
    kg_dataset_warn_repeated(&set->data, "unique: true");
    set->records = (int64_t)set->data.n + set->data.dropped_excluded +
                   set->data.dropped_golds;
    if (set->expect && set->records != set->expect)
        return kg_fail(err, KG_EINVAL, "%s: expected %lld records, found %lld",
                       set->data.name, (long long)set->expect, (long long)set->records);
    KG_TRY(filter(set, err));
    if (set->data.n == 0)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected a record of data_source '%.60s', found none among "
                       "%lld",
                       set->data.name, set->only, (long long)set->records);
    return KG_OK;
}

kg_status kg_eval_set_load(struct kg_eval_set *set, struct kg_chat_template *chat,
                           const char *model_dir, struct kg_err *err)
{
    set->chat = chat;
    if (load(set, model_dir, err) != KG_OK)
        return kg_err_prefix(err, "set %s", set->name);
    return KG_OK;
}

struct kg_eval_opts kg_eval_set_opts(const struct kg_eval_set *set)
{
    return (struct kg_eval_opts){
        .task = set->task,
        .task_opts = &set->task_opts,
        .sampling = set->sampling,
        .set = set->name,
        .samples = set->samples,
        .stop_on_signal = true,
    };
}

/* ---- data that must be supplied ---- */

bool kg_eval_set_has_data(const struct kg_eval_set *set)
{
    return set->path.len == 0 || kg_file_exists(set->path.data);
}

kg_status kg_eval_set_put_needs(struct kg_str *out, const struct kg_eval_set *set,
                                struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "%s", kg_str_text(&set->path)));
    if (set->expect)
        KG_TRY(kg_str_printf(out, err, ", %lld records", (long long)set->expect));
    if (*set->source)
        KG_TRY(kg_str_printf(out, err, ", from %s", set->source));
    if (*set->licence)
        KG_TRY(kg_str_printf(out, err, " (%s)", set->licence));
    return KG_OK;
}

/* Combines the excluded records of all sets with the same list into set i. */
static void share_excluded(const struct kg_eval_set *sets, size_t n, size_t i)
{
    const struct kg_task_opts *mine = &sets[i].task_opts;
    size_t names = kg_task_names(mine->exclude);

    for (size_t s = 0; s < n && names > 0; s++) {
        const struct kg_task_opts *other = &sets[s].task_opts;

        if (strcmp(other->exclude, mine->exclude) != 0)
            continue;
        for (size_t k = 0; k < names; k++)
            mine->excluded[k] |= other->excluded[k];
    }
}

/* Whether set i of the suite, evaluated or left out, has this list. */
static bool has_list(const struct kg_suite *s, size_t i, const char *list)
{
    char key[KEY_BYTES];

    return strcmp(kg_config_text(s->config, key_of(key, s->names[i], "exclude")), list) ==
           0;
}

/* Whether a set with this list has unread records: it is left out, or its file is missing
 * or invalid. */
static bool is_had_unread(const struct kg_suite *s, const struct kg_eval_set *sets,
                          const char *list)
{
    for (size_t i = 0; i < s->n_all; i++) {
        bool unread = i >= s->n || (sets[i].path.len > 0 && sets[i].data.n == 0);

        if (unread && has_list(s, i, list))
            return true;
    }
    return false;
}

kg_status kg_suite_check_excluded(const struct kg_suite *s,
                                  const struct kg_eval_set *sets, struct kg_err *err)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct kg_task_opts *opts = &sets[i].task_opts;
        size_t first = 0;

        while (!has_list(s, first, opts->exclude))
            first++;
        if (first < i)
            continue; /* that set has reported it */
        share_excluded(sets, s->n, i);
        if (kg_task_check_excluded(opts, err) == KG_OK)
            continue;
        if (!is_had_unread(s, sets, opts->exclude))
            return err->code;
        kg_log_warn("%s of those that were read", err->message);
    }
    return KG_OK;
}

kg_status kg_suite_sets(struct kg_eval_set **sets, const struct kg_suite *s,
                        const char *data_dir, struct kg_err *err)
{
    KG_TRY(kg_mem_new(sets, s->n, sizeof **sets, "sets", err));
    for (size_t i = 0; i < s->n; i++) {
        if (kg_eval_set_init(&(*sets)[i], s, i, data_dir, err) == KG_OK)
            continue;
        kg_suite_sets_free(*sets, i);
        *sets = NULL;
        return err->code;
    }
    if (check_given(s, err) == KG_OK)
        return KG_OK;
    kg_suite_sets_free(*sets, s->n);
    *sets = NULL;
    return err->code;
}

void kg_suite_sets_free(struct kg_eval_set *sets, size_t n)
{
    for (size_t i = 0; sets && i < n; i++)
        kg_eval_set_release(&sets[i]);
    kg_mem_free(sets);
}

kg_status kg_suite_check_data(const struct kg_eval_set *sets, size_t n,
                              struct kg_err *err)
{
    struct kg_str missing = {0};
    size_t count = 0;
    kg_status status = KG_OK;

    for (size_t i = 0; i < n; i++) {
        if (kg_eval_set_has_data(&sets[i]))
            continue;
        KG_TRY_GOTO(out, kg_str_printf(&missing, err, "%s%s: ", count++ ? "; " : "",
                                       sets[i].name));
        KG_TRY_GOTO(out, kg_eval_set_put_needs(&missing, &sets[i], err));
    }
    if (count)
        status = kg_fail(err, KG_ENOTFOUND,
                         "expected the data of every set (--dry-run lists them), found "
                         "%zu files missing: %s",
                         count, missing.data);
out:
    kg_str_release(&missing);
    return status;
}
