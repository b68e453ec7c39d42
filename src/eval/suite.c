/* Reading a suite, and its sets as what the evaluation needs. */
#include "eval/suite.h"

#include "eval/suite_internal.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "math/math.h"
#include "task/wording.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define END                                                                              \
    {                                                                                    \
        NULL, KG_OPT_STRING, NULL, 0, 0, NULL, NULL, false                               \
    }

const struct kg_opt_row kg_suite_rows[] = {
    {"suite.name", KG_OPT_STRING, "", 0, 0, NULL, "name of the suite, in the results",
     false},
    {"suite.about", KG_OPT_STRING, "", 0, 0, NULL,
     "which protocol this is, and from where", true},
    {"suite.seed", KG_OPT_INT, "1", 0, 1e15, NULL, "seed of the draws", false},
    {"suite.sets", KG_OPT_LIST, "", 0, 0, NULL,
     "the sets that are evaluated (--sets, --without); none: all", true},
    {"model.path", KG_OPT_STRING, "", 0, 0, NULL, "checkpoint folder (--model)", true},
    {"model.dtype", KG_OPT_STRING, "", 0, 0, NULL, "numbers it computes with (--dtype)",
     false},
    {"server.url", KG_OPT_STRING, "", 0, 0, NULL,
     "server instead of a folder (--base-url)", true},
    {"server.model", KG_OPT_STRING, "", 0, 0, NULL, "model asked for there (--model)",
     false},
    {"server.api", KG_OPT_CHOICE, "chat", 0, 0, "chat|completions", "how (--api)", false},
    END,
};

const struct kg_opt_row kg_suite_set_rows[] = {
    {"data", KG_OPT_STRING, "", 0, 0, NULL,
     "problems: JSON lines, a JSON array or Parquet; '' where the task generates them",
     true},
    {"source", KG_OPT_STRING, "", 0, 0, NULL, "where to get the file", true},
    {"licence", KG_OPT_STRING, "", 0, 0, NULL, "of the file", true},
    {"expect", KG_OPT_INT, "0", 0, 1e9, NULL,
     "records that the file must have, with unique different ones; 0 is any number",
     false},
    {"group", KG_OPT_STRING, "", 0, 0, NULL,
     "sets of one group get a mean of their own, unweighted", false},
    {"only_source", KG_OPT_STRING, "", 0, 0, NULL,
     "use the records of this data_source alone", false},
    {"problems", KG_OPT_INT, "0", 0, 1e7, NULL, "problems used at most; 0 is all", false},
    {"unique", KG_OPT_BOOL, "false", 0, 0, NULL,
     "of records with equal problem, gold answer and data_source the first", false},
    {"exclude", KG_OPT_STRING, "", 0, 0, NULL,
     "task math: ids (else lines) of records to leave out, 'a,b'", false},
    {"bad_golds", KG_OPT_CHOICE, "stop", 0, 0, "stop|drop",
     "task math: records whose gold answer does not grade itself right stop the "
     "evaluation, or are left out, named and counted",
     false},
    {"prompt_key", KG_OPT_STRING, "", 0, 0, NULL,
     "column of the problem; '' for the usual names", false},
    {"answer_key", KG_OPT_STRING, "", 0, 0, NULL,
     "column of the gold answer; '' for the usual names", false},
    {"task", KG_OPT_STRING, "math", 0, 0, NULL, "how answers are graded (kedge task)",
     false},
    {"grader", KG_OPT_STRING, "default", 0, 0, NULL,
     "task math: default, ema-pg, mathd or dapo", false},
    {"keep_thinking", KG_OPT_BOOL, "false", 0, 0, NULL,
     "task math: an answer may stand before </think>", false},
    {"level", KG_OPT_STRING, "", 0, 0, NULL, "difficulty of generated problems", false},
    {"command", KG_OPT_STRING, "", 0, 0, NULL, "task external: the grader", false},
    {"timeout_ms", KG_OPT_INT, "30000", 1, 3.6e6, NULL,
     "task external: time limit of one batch", true},
    {"life", KG_OPT_CHOICE, "auto", 0, 0, "auto|run|batch",
     "task external: started once, or for every batch; auto finds out", true},
    {"command_env", KG_OPT_STRING, "", 0, 0, NULL,
     "task external: environment variables that it gets, 'A,B'", true},
    {"rewards", KG_OPT_LIST, "", 0, 0, NULL,
     "several rewards instead of the task's one: NAME=TASK or NAME=external COMMAND "
     "each; "
     "the first says what is correct",
     false},
    {"reward_weights", KG_OPT_LIST, "", 0, 0, NULL,
     "weight of each of the rewards in their sum; none: 1 each", false},
    {"template", KG_OPT_STRING, "", 0, 0, NULL,
     "text around the problem, {prompt} is replaced; '' for the problem as it is", false},
    {"user_turn", KG_OPT_BOOL, "false", 0, 0, NULL,
     "the problem, in its template, is the user's turn of the chat template; else text",
     false},
    {"system", KG_OPT_STRING, "", 0, 0, NULL,
     "system prompt in front of every conversation", false},
    {"opening", KG_OPT_STRING, "", 0, 0, NULL,
     "text that the assistant's turn begins with, added where the chat template does not "
     "write it",
     false},
    {"chat_template", KG_OPT_STRING, "auto", 0, 0, NULL,
     "auto (the model's), none, or a file, which must apply to every problem", false},
    {"add_special", KG_OPT_CHOICE, "auto", 0, 0, KG_SPECIAL_CHOICES,
     "whether the tokenizer adds its special tokens (BOS); auto: to text, not to what a "
     "chat template rendered",
     false},
    {"samples", KG_OPT_INT, "1", 1, KG_EVAL_MAX_N, NULL,
     "answers to each problem: n of avg@n", false},
    {"pass_k", KG_OPT_LIST, "", 0, 0, NULL, "k's of pass@k", false},
    {"maj_k", KG_OPT_LIST, "", 0, 0, NULL, "k's of maj@k", false},
    {"temperature", KG_OPT_REAL, "1", 0, 100, NULL, "0 is greedy", false},
    {"top_p", KG_OPT_REAL, "1", 1e-6, 1, NULL, "nucleus; 1 is off", false},
    {"top_k", KG_OPT_INT, "0", 0, 1e9, NULL, "most likely ids kept; 0 is off", false},
    {"min_p", KG_OPT_REAL, "0", 0, 1, NULL,
     "least probability kept, as a share of the largest; 0 is off", false},
    {"max_tokens", KG_OPT_INT, "512", 1, 1e7, NULL, "longest answer", false},
    {"stops", KG_OPT_LIST, "", 0, 0, NULL, "strings that end an answer", false},
    {"metric", KG_OPT_CHOICE, "em", 0, 0, "em|subem|f1|format",
     "task search-qa: what is rewarded; accuracy is exact match", false},
    {"answer_tags", KG_OPT_CHOICE, "1", 0, 0, "1|2",
     "task search-qa: pairs of answer tags that an answer needs", false},
    {"wording", KG_OPT_CHOICE, "kedge", 0, 0, KG_WORDING_CHOICES,
     "search agents: instruction around a question and remark on a wrong turn; "
     "search-r1: "
     "those of the published runs, word for word",
     false},
    {"env", KG_OPT_CHOICE, "none", 0, 0, "none|search|calculator",
     "what an answer's turns talk to; none: an answer is one turn, of max_tokens", false},
    {"turns", KG_OPT_INT, "4", 0, 1000, NULL,
     "turns in which a tool may be called; one more follows without", false},
    {"obs_tokens", KG_OPT_INT, "500", 1, 1e6, NULL, "longest observation", false},
    {"context", KG_OPT_INT, "0", 0, 1e7, NULL,
     "longest episode in tokens, prompt and observations included; 0: 4096, or the "
     "model's positions where they are fewer",
     false},
    {"answer_tokens", KG_OPT_INT, "0", 0, 1e7, NULL,
     "longest answer of an episode in tokens, observations included; 0: what context "
     "leaves",
     false},
    {"window", KG_OPT_INT, "0", 0, 1e7, NULL,
     "a turn that begins with more text is sampled from the newest so many tokens; 0: "
     "all",
     false},
    {"search_where", KG_OPT_STRING, "", 0, 0, NULL,
     "env search: an index file, or http://HOST:PORT/retrieve", true},
    {"search_topk", KG_OPT_INT, "3", 1, 1000, NULL, "passages for a query", false},
    {"search_when_down", KG_OPT_CHOICE, "stop", 0, 0, "stop|observe",
     "a retriever that stays down stops the evaluation, or is told to the model", true},
    {"search_timeout_ms", KG_OPT_INT, "30000", 1, 3.6e6, NULL,
     "time limit of one request to the retriever", true},
    {"search_tries", KG_OPT_INT, "4", 1, 1000, NULL, "tries before it counts as down",
     true},
    END,
};

/* ---- the table of a suite ---- */

static size_t count_rows(const struct kg_opt_row *rows)
{
    size_t n = 0;

    while (rows[n].key)
        n++;
    return n;
}

static kg_status add_rows(struct kg_opt_row *out, const char *prefix, bool fallback,
                          struct kg_err *err)
{
    struct kg_str key = {0};

    for (size_t i = 0; kg_suite_set_rows[i].key; i++) {
        out[i] = kg_suite_set_rows[i];
        out[i].key = NULL;
        out[i].free_on_resume |= fallback; /* what counts stands with the sets */
        if (!fallback)
            out[i].fallback = NULL;
        kg_status status = kg_str_printf(&key, err, "%s.%s", prefix,
                                         kg_suite_set_rows[i].key);
        if (status == KG_OK)
            out[i].key = kg_str_take(&key, err);
        kg_str_release(&key);
        if (!out[i].key)
            return err->code;
    }
    return KG_OK;
}

/* Rows of defaults and of every set, ended by a row without key. */
static kg_status make_rows(struct kg_suite *s, struct kg_err *err)
{
    size_t per_set = count_rows(kg_suite_set_rows);
    char prefix[KG_SUITE_NAME_BYTES + 8];

    s->rows = kg_mem_calloc((s->n + 1) * per_set + 1, sizeof *s->rows, "suite", err);
    if (!s->rows)
        return err->code;
    KG_TRY(add_rows(s->rows, "defaults", true, err));
    for (size_t i = 0; i < s->n; i++) {
        snprintf(prefix, sizeof prefix, "sets.%s", s->names[i]);
        KG_TRY(add_rows(s->rows + (i + 1) * per_set, prefix, false, err));
    }
    return KG_OK;
}

static bool is_name(const char *name)
{
    static const char bytes[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789_-";
    size_t n = strlen(name);

    return n > 0 && n < KG_SUITE_NAME_BYTES && strspn(name, bytes) == n;
}

static kg_status read_names(struct kg_suite *s, const char *path, struct kg_err *err)
{
    KG_TRY(kg_config_scan(&s->names, &s->n, path, "sets", err));
    s->n_all = s->n;
    if (s->n == 0)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected a section 'sets' with at least one set, such as "
                       "'sets: {aime24: {data: aime24.jsonl}}', found none",
                       path);
    if (s->n > KG_SUITE_MAX_SETS)
        return kg_fail(err, KG_EINVAL, "%s: expected at most %d sets, found %zu", path,
                       KG_SUITE_MAX_SETS, s->n);
    for (size_t i = 0; i < s->n; i++)
        if (!is_name(s->names[i]))
            return kg_fail(err, KG_EINVAL,
                           "%s: expected a name of a set of letters, digits, _ and - (at "
                           "most %d), found '%.80s'",
                           path, KG_SUITE_NAME_BYTES - 1, s->names[i]);
    return KG_OK;
}

static kg_status only_name(struct kg_suite *s, struct kg_err *err)
{
    s->names = kg_mem_calloc(1, sizeof *s->names, "suite", err);
    if (!s->names)
        return err->code;
    s->names[0] = kg_mem_strdup(KG_EVAL_SET, err);
    if (!s->names[0])
        return err->code;
    s->n = s->n_all = 1;
    return KG_OK;
}

kg_status kg_suite_open(struct kg_suite *s, const char *path, struct kg_err *err)
{
    const struct kg_opt_row *tables[2] = {kg_suite_rows};
    kg_status status;

    *s = (struct kg_suite){.is_file = path};
    KG_TRY_GOTO(out, path ? read_names(s, path, err) : only_name(s, err));
    KG_TRY_GOTO(out, make_rows(s, err));
    tables[1] = s->rows;
    KG_TRY_GOTO(out, kg_config_create(&s->config, tables, 2, err));
    if (path)
        status = kg_config_load_yaml(s->config, path, err);
out:
    if (status != KG_OK)
        kg_suite_release(s);
    return status;
}

/* The names of rows are owned, though rows borrow them. */
static void free_key(const char *key)
{
    void *owned;

    memcpy(&owned, &key, sizeof owned);
    kg_mem_free(owned);
}

void kg_suite_release(struct kg_suite *s)
{
    size_t per_set = count_rows(kg_suite_set_rows);

    kg_config_free(s->config);
    for (size_t i = 0; s->rows && i < (s->n_all + 1) * per_set; i++)
        free_key(s->rows[i].key);
    kg_mem_free(s->rows);
    kg_file_names_free(s->names, s->n_all);
    *s = (struct kg_suite){0};
}

/* ---- which sets ---- */

/* The place of a name of len bytes; n_all where no set has it. */
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
    struct kg_str names = {0};
    kg_status status;

    if (i < s->n_all) {
        marked[i] = true;
        return KG_OK;
    }
    for (size_t k = 0; k < s->n_all; k++)
        KG_TRY_GOTO(out, kg_str_printf(&names, err, "%s%s", k ? ", " : "", s->names[k]));
    status = kg_fail(err, KG_EINVAL, "%s: expected sets of %.400s, found '%.*s'", where,
                     kg_str_text(&names), len < 80 ? (int)len : 80, name);
out:
    kg_str_release(&names);
    return status;
}

/* The sets of a list "a,b" or of lines, which suite.sets is. */
static kg_status mark_sets(bool *marked, const struct kg_suite *s, const char *list,
                           const char *where, struct kg_err *err)
{
    static const char between[] = ", \n";

    for (const char *at = list + strspn(list, between); *at;) {
        size_t len = strcspn(at, between);

        KG_TRY(mark_set(marked, s, at, len, where, err));
        at += len;
        at += strspn(at, between);
    }
    return KG_OK;
}

kg_status kg_suite_pick(struct kg_suite *s, const char *list, bool without,
                        const char *where, struct kg_err *err)
{
    const char *before = kg_config_text(s->config, "suite.sets");
    bool from[KG_SUITE_MAX_SETS] = {false}, marked[KG_SUITE_MAX_SETS] = {false};
    struct kg_str lines = {0};
    kg_status status;

    KG_TRY(mark_sets(marked, s, list, where, err));
    KG_TRY(mark_sets(from, s, without ? before : "", "suite.sets", err));
    for (size_t i = 0; i < s->n_all; i++)
        if (without ? !marked[i] && (from[i] || !*before) : marked[i])
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
    const char *list = kg_config_text(s->config, "suite.sets");
    bool marked[KG_SUITE_MAX_SETS] = {false};
    char *names[KG_SUITE_MAX_SETS];
    size_t n = 0, left = 0;

    if (!*list)
        return KG_OK;
    KG_TRY(mark_sets(marked, s, list, "suite.sets", err));
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

static kg_status resolve_key(struct kg_suite *s, const char *set, const char *key,
                             struct kg_err *err)
{
    char of_set[KG_SUITE_KEY_BYTES], of_all[KG_SUITE_KEY_BYTES];

    snprintf(of_all, sizeof of_all, "defaults.%s", key);
    if (kg_config_is_given(s->config, kg_suite_key(of_set, set, key)))
        return KG_OK;
    return kg_config_set(s->config, of_set, kg_config_text(s->config, of_all), true,
                         of_all, err);
}

kg_status kg_suite_resolve(struct kg_suite *s, struct kg_err *err)
{
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; kg_suite_set_rows[k].key; k++)
            KG_TRY(resolve_key(s, s->names[i], kg_suite_set_rows[k].key, err));
    return kg_suite_choose(s, err);
}

kg_status kg_suite_set_all(struct kg_suite *s, const char *key, const char *value,
                           const char *where, struct kg_err *err)
{
    char text[KG_SUITE_KEY_BYTES];

    for (size_t i = 0; i < s->n; i++)
        KG_TRY(kg_config_set(s->config, kg_suite_key(text, s->names[i], key), value,
                             false, where, err));
    return KG_OK;
}

/* Where a set's values come from. */
struct values {
    const struct kg_config *config;
    const char *set;
    char key[KG_SUITE_KEY_BYTES];
};

static const char *text(struct values *v, const char *key)
{
    return kg_config_text(v->config, kg_suite_key(v->key, v->set, key));
}

static int64_t whole(struct values *v, const char *key)
{
    return kg_config_int(v->config, kg_suite_key(v->key, v->set, key));
}

static double real(struct values *v, const char *key)
{
    return kg_config_real(v->config, kg_suite_key(v->key, v->set, key));
}

static bool is_on(struct values *v, const char *key)
{
    return kg_config_bool(v->config, kg_suite_key(v->key, v->set, key));
}

/* The k's of a list, each from 1 to the number of samples. */
static kg_status read_ks(int32_t out[KG_EVAL_KS], int *n, struct values *v,
                         const char *key, int32_t samples, struct kg_err *err)
{
    const char *full = kg_suite_key(v->key, v->set, key);
    size_t size = kg_config_list_size(v->config, full);
    struct kg_str item = {0};
    kg_status status = KG_OK;

    if (size > KG_EVAL_KS)
        return kg_fail(err, KG_EINVAL, "%s: expected at most %d values, found %zu", full,
                       KG_EVAL_KS, size);
    for (size_t i = 0; i < size && status == KG_OK; i++) {
        char *end;

        kg_str_clear(&item);
        KG_TRY_GOTO(out, kg_config_list_at(&item, v->config, full, i, err));
        errno = 0;
        long k = strtol(kg_str_text(&item), &end, 10);
        if (errno || *end || end == item.data || k < 1 || k > samples)
            status = kg_fail(
                err, KG_EINVAL,
                "%s: expected a k from 1 to the number of samples, %d, found "
                "'%.40s'",
                full, samples, kg_str_text(&item));
        out[(*n)++] = (int32_t)k;
    }
out:
    kg_str_release(&item);
    return status;
}

static kg_status read_stops(struct kg_eval_set *set, struct values *v, struct kg_err *err)
{
    const char *full = kg_suite_key(v->key, v->set, "stops");
    size_t n = kg_config_list_size(v->config, full);

    if (n > KG_MAX_STOPS)
        return kg_fail(err, KG_EINVAL, "%s: expected at most %d strings, found %zu", full,
                       KG_MAX_STOPS, n);
    set->stops = n ? kg_mem_calloc(n, sizeof *set->stops, "stop strings", err) : NULL;
    if (n && !set->stops)
        return err->code;
    for (size_t i = 0; i < n; i++) {
        struct kg_str item = {0};
        kg_status status = kg_config_list_at(&item, v->config, full, i, err);

        set->stops[i] = status == KG_OK ? kg_str_take(&item, err) : NULL;
        kg_str_release(&item);
        if (!set->stops[i])
            return err->code;
        set->sampling.n_stops++;
    }
    set->sampling.stops = (const char *const *)set->stops;
    return KG_OK;
}

static kg_status read_path(struct kg_eval_set *set, struct values *v,
                           const char *data_dir, struct kg_err *err)
{
    const char *path = text(v, "data");

    if (*path && *path != '/' && data_dir)
        return kg_str_printf(&set->path, err, "%s/%s", data_dir, path);
    return kg_str_puts(&set->path, path, err);
}

static struct kg_task_opts task_opts(struct values *v, uint64_t seed)
{
    int64_t problems = whole(v, "problems");

    return (struct kg_task_opts){
        .seed = seed,
        .level = text(v, "level"),
        .count = problems ? problems : 500, /* of a generator */
        .held_out = true,
        .prompt_key = text(v, "prompt_key"),
        .answer_key = text(v, "answer_key"),
        .unique = is_on(v, "unique"),
        .prompt = {.template_text = text(v, "template"),
                   .user_turn = is_on(v, "user_turn"),
                   .system = text(v, "system"),
                   .opening = text(v, "opening")},
        .command = text(v, "command"),
        .timeout_ms = (int)whole(v, "timeout_ms"),
        .life = kg_task_life_named(text(v, "life")),
        .env = text(v, "command_env"),
        .grader = text(v, "grader"),
        .keep_thinking = is_on(v, "keep_thinking"),
        .exclude = text(v, "exclude"),
        .drop_golds = strcmp(text(v, "bad_golds"), "drop") == 0,
        .metric = text(v, "metric"),
        .answer_tags = text(v, "answer_tags")[0] - '0',
        .wording = text(v, "wording"),
        .format = {.structure = 0.2, .final = 0.1}, /* Search-R1's example */
    };
}

/* What is counted of episodes; see struct kg_eval_fresh. */
static const char *const searched[] = {"searches", "turns", "finished", "invalid",
                                       "failed"};
static const char *const called[] = {"calls", "turns", "finished", "invalid", "failed"};

static kg_status check_no_episode(struct values *v, struct kg_err *err)
{
    static const char *const keys[] = {"answer_tokens", "window"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (whole(v, keys[i]) > 0)
            return kg_fail(err, KG_EINVAL, "%s: expected 0 without env, found %lld",
                           keys[i], (long long)whole(v, keys[i]));
    return KG_OK;
}

static kg_status read_episode(struct kg_eval_set *set, struct values *v,
                              struct kg_err *err)
{
    const char *env = text(v, "env");
    bool searches = strcmp(env, "search") == 0;

    if (strcmp(env, "none") == 0)
        return check_no_episode(v, err);
    set->episode = (struct kg_episode_opts){
        .turns = (int32_t)whole(v, "turns"),
        .turn_tokens = (int32_t)whole(v, "max_tokens"),
        .obs_tokens = (int32_t)whole(v, "obs_tokens"),
        .context = (int32_t)whole(v, "context"),
        .answer_tokens = (int32_t)whole(v, "answer_tokens"),
        .window = (int32_t)whole(v, "window"),
        .env_opts = {.retriever = text(v, "search_where"),
                     .topk = (int)whole(v, "search_topk"),
                     .stop_when_down = strcmp(text(v, "search_when_down"), "stop") == 0,
                     .timeout_ms = (int)whole(v, "search_timeout_ms"),
                     .tries = (int)whole(v, "search_tries"),
                     .wording = text(v, "wording")},
    };
    set->ks.extra = searches ? searched : called;
    set->ks.n_extra = sizeof called / sizeof *called;
    if (searches && !*set->episode.env_opts.retriever)
        return kg_fail(err, KG_EINVAL,
                       "search_where: expected an index file or "
                       "http://HOST:PORT/retrieve for env search, found none");
    return kg_env_find(&set->episode.env, env, err);
}

static struct kg_sampling sampling(struct values *v, uint64_t seed)
{
    int64_t top_k = whole(v, "top_k");

    return (struct kg_sampling){
        .temperature = (float)real(v, "temperature"),
        .top_p = (float)real(v, "top_p"),
        .top_k = (int)top_k,
        .min_p = (float)real(v, "min_p"),
        .max_tokens = (int32_t)whole(v, "max_tokens"),
        .rng = {seed, KG_RNG_EVAL},
    };
}

static kg_status check_names(const struct kg_eval_set *set, struct kg_err *err)
{
    const struct kg_math_mode *mode;

    if (strcmp(set->task->name, "math") == 0)
        KG_TRY(kg_math_mode_find(&mode, set->task_opts.grader, err));
    if (set->ks.n_maj > 0 && !set->task->same)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "maj_k: expected a task that says when two answers are the same, "
                       "found %s, which does not",
                       set->task->name);
    if (set->path.len == 0 && !set->task->levels)
        return kg_fail(err, KG_EINVAL,
                       "expected a data file, found none (task %s does not generate "
                       "problems)",
                       set->task->name);
    return KG_OK;
}

/* What leaves records out, to be changed: the key or flag that gave it, else the set's
 * own; without a suite the flag. */
static const char *said_by(struct values *v, bool is_file)
{
    const char *own = kg_suite_key(v->key, v->set, "exclude");
    const char *source = kg_config_source(v->config, own);

    if (!is_file)
        return "--exclude";
    if (!*kg_config_text(v->config, own))
        return own;
    return strcmp(source, "defaults.exclude") == 0 || strncmp(source, "--", 2) == 0
               ? source
               : own;
}

static kg_status read_exclude(struct kg_eval_set *set, struct values *v, bool is_file,
                              struct kg_err *err)
{
    struct kg_task_opts *opts = &set->task_opts;
    size_t n = kg_task_names(opts->exclude);

    snprintf(set->exclude_key, sizeof set->exclude_key, "%s", said_by(v, is_file));
    opts->exclude_key = set->exclude_key;
    opts->excluded = n ? kg_mem_calloc(n, sizeof *opts->excluded, "names", err) : NULL;
    return n && !opts->excluded ? err->code : KG_OK;
}

static kg_status read_rewards(struct kg_eval_set *set, struct values *v,
                              struct kg_err *err)
{
    char rewards[KG_SUITE_KEY_BYTES], weights[KG_SUITE_KEY_BYTES],
        command[KG_SUITE_KEY_BYTES];
    const struct kg_task_rewards_keys keys = {
        kg_suite_key(rewards, v->set, "rewards"),
        kg_suite_key(weights, v->set, "reward_weights"),
        kg_suite_key(command, v->set, "command")};

    set->task_opts.further = &set->further;
    KG_TRY(kg_task_rewards_read(&set->task_opts.rewards, v->config, &keys,
                                &set->task_opts, err));
    set->ks.rewards = set->task_opts.rewards;
    set->ks.further = &set->further;
    return KG_OK;
}

static kg_status read_set(struct kg_eval_set *set, struct values *v, const char *data_dir,
                          bool is_file, struct kg_err *err)
{
    uint64_t seed = (uint64_t)kg_config_int(v->config, "suite.seed");

    set->name = v->set;
    set->group = text(v, "group");
    set->source = text(v, "source");
    set->licence = text(v, "licence");
    set->chat_name = text(v, "chat_template");
    set->special = kg_special_named(text(v, "add_special"));
    set->only = text(v, "only_source");
    set->limit = whole(v, "problems");
    set->expect = whole(v, "expect");
    set->samples = (int32_t)whole(v, "samples");
    set->task_opts = task_opts(v, seed);
    set->sampling = sampling(v, seed);
    KG_TRY(kg_task_find(&set->task, text(v, "task"), err));
    KG_TRY(read_rewards(set, v, err));
    KG_TRY(read_exclude(set, v, is_file, err));
    KG_TRY(read_path(set, v, data_dir, err));
    KG_TRY(read_stops(set, v, err));
    KG_TRY(read_episode(set, v, err));
    KG_TRY(kg_suite_check_own(set, v->config, err));
    KG_TRY(read_ks(set->ks.pass, &set->ks.n_pass, v, "pass_k", set->samples, err));
    KG_TRY(read_ks(set->ks.maj, &set->ks.n_maj, v, "maj_k", set->samples, err));
    return check_names(set, err);
}

kg_status kg_eval_set_init(struct kg_eval_set *set, const struct kg_suite *s, size_t i,
                           const char *data_dir, struct kg_err *err)
{
    struct values v = {.config = s->config, .set = s->names[i]};

    *set = (struct kg_eval_set){0};
    if (read_set(set, &v, data_dir, s->is_file, err) == KG_OK)
        return KG_OK;
    kg_eval_set_release(set);
    return kg_err_prefix(err, "set %s", s->names[i]);
}

void kg_eval_set_release(struct kg_eval_set *set)
{
    for (int i = 0; set->stops && i < set->sampling.n_stops; i++)
        kg_mem_free(set->stops[i]);
    kg_mem_free(set->stops);
    kg_mem_free(set->task_opts.excluded);
    kg_task_grader_close(set->task_opts.running);
    kg_task_rewards_close(set->task_opts.rewards);
    kg_str_release(&set->path);
    kg_dataset_release(&set->data);
    kg_chat_template_close(set->chat);
    *set = (struct kg_eval_set){0};
}

/* ---- problems ---- */

/* Keep the records that count, in order, as many as are wanted. */
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

/* The chat template that the set names, unless there is one already: without a model's
 * folder auto is none, which user turns cannot be made of. */
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
                       "chat_template: expected a file, found auto: the template of a "
                       "server is not known here");
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

/* Marks in set i what other sets with the same list met. */
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

/* Whether set i of the suite, evaluated or left out, has the list. */
static bool has_list(const struct kg_suite *s, size_t i, const char *list)
{
    char key[KG_SUITE_KEY_BYTES];

    return strcmp(kg_config_text(s->config, kg_suite_key(key, s->names[i], "exclude")),
                  list) == 0;
}

/* Whether a set has the list whose records were not read: it is left out, or its file is
 * missing or bad. */
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
            continue; /* said of that one */
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
    *sets = kg_mem_calloc(s->n, sizeof **sets, "sets", err);
    if (!*sets)
        return err->code;
    for (size_t i = 0; i < s->n; i++) {
        if (kg_eval_set_init(&(*sets)[i], s, i, data_dir, err) == KG_OK)
            continue;
        kg_suite_sets_free(*sets, i);
        *sets = NULL;
        return err->code;
    }
    if (kg_suite_check_given(s, *sets, err) == KG_OK)
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
