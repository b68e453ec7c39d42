/* Prints what kedge accepts and refuses, one line per question: every key set to other
 * values, over recipes that switch things on and over every preset, from a file and from
 * the command line; pairs of keys; keys of suites; settings of an index; fields of
 * requests. tools/verdicts uses it to compare two states of the source.
 */
#include "base/log.h"
#include "cli/cli.h"
#include "eval/suite.h"
#include "policy/presets.h"
#include "recipe/options.h"
#include "rollout/sampler.h"
#include "search/index.h"
#include "serve/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct kg_err err;
static char folder[] = "/tmp/verdicts.XXXXXX", path[64];

static void put_file(const char *text)
{
    FILE *f = fopen(path, "w");

    if (!f || fputs(text, f) < 0 || fclose(f) != 0)
        exit(1);
}

static void say(const char *where, const char *what, kg_status status)
{
    printf("%s\t%s\t%s\n", where, what, status == KG_OK ? "accepted" : err.message);
}

/* ---- values ---- */

enum { MAX_VALUES = 8 };
struct values {
    char text[MAX_VALUES][96];
    int n;
};

static void add(struct values *v, const char *text, size_t n)
{
    if (v->n < MAX_VALUES)
        snprintf(v->text[v->n++], sizeof *v->text, "%.*s", (int)n, text);
}

static void add_number(struct values *v, double x)
{
    char text[40];

    snprintf(text, sizeof text, "%.9g", x);
    add(v, text, strlen(text));
}

/* A text that is valid for some keys. */
static const char *text_of(const char *key)
{
    static const char *const texts[][2] = {{"device", "cuda"},
                                           {"init.parts", "optimizer"},
                                           {"level", "hard"},
                                           {"task.rewards", "a=math"},
                                           {"kind", "schedule-free"},
                                           {"date", "2026-01-02"},
                                           {"template", "{prompt}?"},
                                           {"where", "http://h:1/retrieve"},
                                           {"targets", "q_proj"},
                                           {"algo.advantage", "gae"},
                                           {"algo.surrogate", "none"},
                                           {"kl.estimator", "k1"},
                                           {"kl.in", "reward"},
                                           {"anchor.kind", "ema"},
                                           {"algo.mask", "gspo"},
                                           {"rewards", "a=search-qa"},
                                           {"grader", "dapo"},
                                           {"task", "search-qa"},
                                           {"optimizer", "x"},
                                           {"pass_k", "1"},
                                           {"weights", "2"}};
    const size_t len = strlen(key);

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const size_t n = strlen(texts[i][0]);

        if (len >= n && strcmp(key + len - n, texts[i][0]) == 0)
            return texts[i][1];
    }
    return "some";
}

/* v <- values of a row: all choices, or the ends of a range, values beyond them and one
 * inside. */
static void list(struct values *v, const struct kg_opt_row *row)
{
    v->n = 0;
    for (const char *p = row->choices; p && *p;
         p += strcspn(p, "|") + (p[strcspn(p, "|")] != 0))
        add(v, p, strcspn(p, "|"));
    if (row->choices)
        return;
    if (row->type == KG_OPT_BOOL) {
        add(v, "true", 4);
        add(v, "false", 5);
    } else if (kg_opt_is_number(row)) {
        const bool whole = row->type == KG_OPT_INT || row->type == KG_OPT_INT32;

        add_number(v, whole ? 2 : row->max < 0.5 ? row->max / 2 : 0.5);
        add_number(v, 0);
        add_number(v, row->min);
        add_number(v, row->max);
        add_number(v, row->max * 2 + 1);
    } else {
        add(v, text_of(row->key), strlen(text_of(row->key)));
    }
}

/* The index of the first value that is not the default, or the last index. */
static int other(const struct values *v, const struct kg_opt_row *row)
{
    int i = 0;

    while (i + 1 < v->n && row->fallback && strcmp(v->text[i], row->fallback) == 0)
        i++;
    return i;
}

/* ---- recipes ---- */

static const char *const bases[] = {
    "",
    "sft: {steps: 5}",
    "sft: {epochs: 2, data: a.jsonl, weight_decay: 0}",
    "sft: {steps: 5, level: hard}\ndata: {train: [a.jsonl], val: [b.jsonl]}",
    "data: {train: [a.jsonl]}\ntask: {name: math}",
    "data: {train: [a.jsonl], val: [b.jsonl]}\ntask: {name: math}",
    "task: {name: search-qa, metric: format}\ndata: {train: [a.jsonl]}",
    "task: {rewards: ['a=math', 'b=search-qa']}",
    "task: {name: none}\nsft: {data: a.jsonl, steps: 3}",
    "episode: {env: calculator}",
    "episode: {env: search}\nsearch: {where: 'http://h:1/retrieve'}",
    "episode: {env: search}\nsearch: {where: index, kind: dense, model: m}",
    "episode: {env: search}\nsearch: {where: index, kind: hybrid, model: m}",
    "model: {device: cuda}",
    "model: {device: cuda, dtype: fp32}\nrollout: {dtype: bf16}",
    "model: {device: cuda}\ndevice: {products: own}\nranks: {link: nccl}",
    "rollout: {lag: 2}",
    "rollout: {data: a.jsonl}",
    "rollout: {dynamic: true, overlong_buffer: 16}",
    "train: {updates_per_step: 4}",
    "lora: {rank: 4}",
    "optim: {schedule: cosine, warmup_steps: 3}",
    "optim: {kind: schedule-free}",
    "eval: {temperature: 0}",
    "eval: {anchor: true}\nanchor: {kind: copy}",
    "algo: {surrogate: none}",
    "algo: {tis: 2}",
    "kl: {estimator: k3, beta: 0.1}\nanchor: {kind: ema, kappa: 0.5}",
    "kl: {estimator: k1, beta: 0.1, importance: true}\nanchor: {kind: fixed}",
    "kl: {estimator: topk-forward, top_k: 8, beta: 0.1, tail: true}\nanchor: {kind: "
    "iterative}",
    "kl: {estimator: k3, beta: 0.1, in: reward}\nanchor: {kind: fixed}",
};

/* Checks a recipe as far as that is possible without a model. */
static kg_status judge_config(const struct kg_config *config)
{
    struct kg_recipe r;
    struct kg_algo algo;
    struct kg_episode_opts episodes;

    kg_recipe_read(&r, config);
    KG_TRY(kg_effect_check(config, &err));
    KG_TRY(kg_algo_from_recipe(&algo, &r, config, 1000, &err));
    KG_TRY(kg_episodes_from_recipe(&episodes, &r, &err));
    KG_TRY(kg_effect_check_sft(config, &err));
    return kg_sampler_check(&r.rollout.sampling, &err);
}

static kg_status judge(const char *file, char *const *args, size_t n)
{
    struct kg_config *config;
    kg_status status = kg_train_config(&config, file, args, n, &err);

    if (status != KG_OK)
        return status;
    status = judge_config(config);
    kg_config_free(config);
    return status;
}

/* One value, on the command line and in the file. */
static void ask(const char *where, const char *base, const char *preset,
                const struct kg_opt_row *row, const char *value)
{
    char assigned[160], named[80], text[600];
    char *args[] = {assigned, named};
    const size_t n = *preset ? 2 : 1;
    const char *dot = strchr(row->key, '.');

    snprintf(assigned, sizeof assigned, "%s=%s", row->key, value);
    snprintf(named, sizeof named, "preset=%s", preset);
    put_file(base);
    say(where, assigned, judge(path, args, n));
    snprintf(text, sizeof text, "%.*s: {%s: '%s'}", (int)(dot - row->key), row->key,
             dot + 1, value);
    put_file(text);
    args[0] = named;
    if (!*base)
        say(where, text, judge(path, args, n - 1));
}

/* For an empty recipe all values of each key; for other recipes and presets one value
 * that differs from the default. */
static void ask_all(const char *where, const char *base, const char *preset)
{
    const bool every = !*base && !*preset;
    const struct kg_opt_row *row;
    struct values v;

    for (size_t i = 0; (row = kg_recipe_row(i)); i++) {
        list(&v, row);
        for (int k = every ? 0 : other(&v, row); k < v.n; k++) {
            ask(where, base, preset, row, v.text[k]);
            if (!every)
                break;
        }
    }
}

/* Two keys, each with its first value that is not the default: once both on the command
 * line, once the first in a file. */
static void ask_pair(const struct kg_opt_row *a, const struct kg_opt_row *b)
{
    char one[160], two[160], text[200];
    char *args[] = {two, one};
    const char *dot = strchr(a->key, '.');
    struct values va, vb;
    int i, j;

    list(&va, a);
    list(&vb, b);
    i = other(&va, a);
    j = other(&vb, b);
    snprintf(one, sizeof one, "%s=%s", a->key, va.text[i]);
    snprintf(two, sizeof two, "%s=%s", b->key, vb.text[j]);
    say(one, two, judge(NULL, args, 2));
    snprintf(text, sizeof text, "%.*s: {%s: '%s'}", (int)(dot - a->key), a->key, dot + 1,
             va.text[i]);
    put_file(text);
    say(text, two, judge(path, args, 1));
}

static void recipes(void)
{
    char where[80];

    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        snprintf(where, sizeof where, "recipe %.*s", (int)strcspn(bases[i], "\n"),
                 bases[i]);
        ask_all(where, bases[i], "");
    }
}

static void presets(void)
{
    for (size_t i = 0; i < kg_preset_count(); i++)
        ask_all(kg_preset_at(i)->name, "", kg_preset_at(i)->name);
}

static void pairs(void)
{
    for (size_t i = 0; kg_recipe_row(i); i++)
        for (size_t j = 0; kg_recipe_row(j); j++)
            if (i != j)
                ask_pair(kg_recipe_row(i), kg_recipe_row(j));
}

/* ---- suites ---- */

static const char *const sets[] = {
    "data: a.jsonl",
    "task: qa-number",
    "task: search-qa, data: a.jsonl",
    "task: external, data: a.jsonl, command: c",
    "data: a.jsonl, env: calculator",
    "data: a.jsonl, env: search, search_where: 'http://h:1/retrieve'",
    "data: a.jsonl, env: search, search_where: index, search_kind: hybrid, search_model: "
    "m",
    "data: a.jsonl, task: digits, rewards: ['a=math', 'b=search-qa']",
};

static kg_status judge_suite(const char *key, const char *value)
{
    struct kg_suite s;
    struct kg_eval_set *all;
    kg_status status = kg_suite_open(&s, path, &err);

    if (status != KG_OK)
        return status;
    if (key)
        status = kg_suite_set_all(&s, key, value, "--flag", &err);
    if (status == KG_OK)
        status = kg_suite_resolve(&s, &err);
    if (status == KG_OK)
        status = kg_suite_sets(&all, &s, NULL, &err);
    if (status == KG_OK)
        kg_suite_sets_free(all, s.n);
    kg_suite_release(&s);
    return status;
}

static void ask_set(const char *set, const char *key, const char *value)
{
    char text[400], what[200];

    snprintf(what, sizeof what, "%s: '%s'", key, value);
    snprintf(text, sizeof text, "sets: {a: {%s, %s}}", set, what);
    put_file(text);
    say(set, what, judge_suite(NULL, NULL));
    snprintf(text, sizeof text, "sets: {a: {%s}, b: {data: b.jsonl}}\ndefaults: {%s}",
             set, what);
    put_file(text);
    say(text, what, judge_suite(NULL, NULL));
    snprintf(text, sizeof text, "sets: {a: {%s}}", set);
    put_file(text);
    say(text, what, judge_suite(key, value));
}

static void suites(void)
{
    struct kg_suite s;
    struct values v;

    put_file("sets: {a: {data: b}}");
    if (kg_suite_open(&s, path, &err) != KG_OK)
        exit(1);
    for (size_t i = 0; i < kg_config_rows(s.config); i++) {
        const struct kg_opt_row *row = kg_config_row(s.config, i);

        if (strncmp(row->key, "defaults.", 9) != 0)
            continue;
        list(&v, row);
        for (size_t k = 0; k < sizeof sets / sizeof *sets; k++)
            for (int j = 0; j < v.n; j++)
                ask_set(sets[k], row->key + 9, v.text[j]);
    }
    kg_suite_release(&s);
}

/* ---- settings of an index ---- */

static void ask_how(int i)
{
    static const char *const wheres[] = {"index", "http://h:1/r"},
                             *const kinds[] = {NULL, "bm25", "dense", "hybrid", "other"},
                             *const models[] = {NULL, "m"},
                             *const vectors[] = {NULL, "fp16", "int8", "x"},
                             *const fusions[] = {NULL, "rank", "score", "y"},
                             *const weights[] = {"0.5", "0", "1", "1.5"};
    const struct {
        const char *key, *value;
    } how[] = {{"where", wheres[i % 2]},        {"kind", kinds[i / 2 % 5]},
               {"model", models[i / 10 % 2]},   {"vectors", vectors[i / 20 % 4]},
               {"fusion", fusions[i / 80 % 4]}, {"weight", weights[i / 320 % 4]}};
    char recipe[400] = "episode: {env: search}\nsearch: {", set[400] = "env: search";

    for (size_t k = 0; k < sizeof how / sizeof *how; k++) {
        if (!how[k].value)
            continue;
        snprintf(recipe + strlen(recipe), sizeof recipe - strlen(recipe), "%s%s: '%s'",
                 k ? ", " : "", how[k].key, how[k].value);
        snprintf(set + strlen(set), sizeof set - strlen(set), ", search_%s: '%s'",
                 how[k].key, how[k].value);
    }
    snprintf(recipe + strlen(recipe), sizeof recipe - strlen(recipe), "}");
    put_file(recipe);
    say("recipe", recipe, judge(path, NULL, 0));
    snprintf(recipe, sizeof recipe, "sets: {a: {data: a.jsonl, %s}}", set);
    put_file(recipe);
    say("suite", set, judge_suite(NULL, NULL));
}

static void ways(void)
{
    for (int i = 0; i < 1280; i++)
        ask_how(i);
}

/* ---- flags ---- */

enum { MAX_FLAGS = 128 };

/* Adds a flag with a value that its row allows. */
static void add_flag(char **argv, int *argc, const struct kg_flag *f, char text[2][80])
{
    const size_t n = f->choices ? strcspn(f->choices, "|") : 0;

    snprintf(text[0], sizeof text[0], "--%s", f->name);
    argv[(*argc)++] = text[0];
    if (f->type == KG_OPT_BOOL)
        return;
    if (n)
        snprintf(text[1], sizeof text[1], "%.*s", (int)n, f->choices);
    else if (f->type == KG_OPT_STRING || f->type == KG_OPT_LIST)
        snprintf(text[1], sizeof text[1], "x");
    else
        snprintf(text[1], sizeof text[1], "%.17g", f->min > 1 ? f->min : 1);
    argv[(*argc)++] = text[1];
    if (f->type == KG_OPT_LIST)
        ((struct kg_flag_list *)f->target)->n = 0;
}

static void ask_flags(const struct kg_command *c, const char *action,
                      const struct kg_flag *a, const struct kg_flag *b)
{
    char texts[2][2][80], word[40], what[200] = "", *argv[6];
    int argc = 0, n;
    bool help;

    snprintf(word, sizeof word, "%s", action);
    if (*action)
        argv[argc++] = word;
    add_flag(argv, &argc, a, texts[0]);
    if (b)
        add_flag(argv, &argc, b, texts[1]);
    n = argc;
    for (int i = 0; i < n; i++)
        snprintf(what + strlen(what), sizeof what - strlen(what), " %s", argv[i]);
    say(c->name, what, kg_flags_parse(c, &argc, argv, &help, &err));
}

/* Each flag alone, and with `pairs` each ordered pair of flags. */
static void ask_command(const struct kg_command *c, const char *action, bool pairs)
{
    const struct kg_flag *all[MAX_FLAGS];
    struct kg_flag_walk walk = {c->flags, NULL};
    int n = 0;

    while (n < MAX_FLAGS && (all[n] = kg_flag_next(&walk)))
        n++;
    for (int i = 0; i < n; i++)
        for (int k = n; k >= (pairs ? 0 : n); k--)
            if (k != i)
                ask_flags(c, action, all[i], k == n ? NULL : all[k]);
}

static void flags(void)
{
    static const char *const actions[] = {
        "",     "x",       "index", "query", "serve",    "check",    "compare", "ops",
        "head", "convert", "stats", "ranks", "episodes", "products", "search",  "decode"};
    for (const struct kg_command *c = kg_commands; c->name; c++)
        for (size_t w = 0; w < sizeof actions / sizeof *actions; w++)
            ask_command(c, actions[w], w < 6);
}

/* ---- requests ---- */

static void ask_field(enum kg_api_kind kind, const char *key, const char *value)
{
    struct kg_api_request r;
    struct kg_api_fault fault;
    char body[300];

    snprintf(body, sizeof body,
             kind == KG_API_CHAT
                 ? "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"%s\":%s}"
             : kind == KG_API_GENERATE
                 ? "{\"token_ids\":[1],\"sampling_params\":{\"%s\":%s}}"
                 : "{\"prompt\":\"x\",\"%s\":%s}",
             key, value);
    say("request", body, kg_api_parse(&r, &fault, kind, body, strlen(body), &err));
    kg_api_release(&r);
}

static void requests(void)
{
    static const enum kg_api_kind kinds[] = {KG_API_COMPLETION, KG_API_CHAT,
                                             KG_API_GENERATE};
    static const char *const values[] = {
        "0", "1",   "-1",    "0.5",   "5e-5", "1e-4", "100",  "1000",  "10000", "10001",
        "2", "1e9", "1e300", "\"a\"", "[1]",  "null", "true", "false", "{}"};

    for (const struct kg_api_field *f = kg_api_fields; f->name; f++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            for (size_t v = 0; v < sizeof values / sizeof *values; v++)
                ask_field(kinds[k], f->name, values[v]);
}

static const struct section {
    const char *name;
    void (*write)(void);
} sections[] = {
    {"recipes", recipes},   {"suites", suites},   {"ways", ways},   {"flags", flags},
    {"requests", requests}, {"presets", presets}, {"pairs", pairs},
};

/* Arguments: names of sections. */
int main(int argc, char **argv)
{
    FILE *silent = freopen("/dev/null", "w", stderr);

    snprintf(path, sizeof path, "asked.yaml");
    if (!silent || !mkdtemp(folder) || chdir(folder) != 0)
        return 1;
    for (int i = 1; i < argc; i++)
        for (size_t k = 0; k < sizeof sections / sizeof *sections; k++)
            if (strcmp(argv[i], sections[k].name) == 0)
                sections[k].write();
    unlink(path);
    return rmdir(folder) != 0;
}
