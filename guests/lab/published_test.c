/* Compares the table of published runs with the presets, recipes and suites. Each is
 * resolved as `kedge train` and `kedge eval` resolve it, and every value must be the
 * published one, or the one that the row gives as kedge's. Run from the repository's
 * root.
 */
#include "base/file.h"
#include "cli/cli.h"
#include "eval/suite.h"
#include "model/model.h"
#include "policy/presets.h"
#include "recipe/options.h"
#include "text/tokenizer.h"
#include "train/open/open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lab/published_testing.h"

enum { MAX_ARGS = 8, MAX_FILE = 1 << 20 };

static struct kg_err err;

static void ok(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* Counts findings, so that all are printed before the test fails. */
static size_t wrong;

static void say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vprint_error(format, args);
    va_end(args);
    print_error("\n");
    wrong++;
}

static void nothing_is_wrong(void)
{
    size_t n = wrong;

    wrong = 0;
    if (n > 0)
        fail_msg("%zu findings, see above", n);
}

/* ---- a run as the program resolves it ---- */

struct resolved {
    const struct kg_published_run *run;
    struct kg_config *config; /* owned; by the suite if there is one */
    struct kg_suite suite;
};

/* Splits text into words at spaces, in place.   returns their number */
static size_t split(char *words[MAX_ARGS], char *copy)
{
    size_t n = 0;

    for (char *at = strtok(copy, " "); at; at = strtok(NULL, " ")) {
        assert_true(n < MAX_ARGS);
        words[n++] = at;
    }
    return n;
}

static void resolve(struct resolved *r, const struct kg_published_run *run)
{
    char *words[MAX_ARGS], *copy = strdup(run->args ? run->args : "");

    *r = (struct resolved){.run = run};
    assert_non_null(copy);
    if (run->suite) {
        ok(kg_suite_open(&r->suite, run->suite, &err));
        r->config = r->suite.config;
    } else {
        ok(kg_train_config(&r->config, run->recipe, words, split(words, copy), &err));
    }
    free(copy);
}

static void release(struct resolved *r)
{
    if (r->run->suite)
        kg_suite_release(&r->suite);
    else
        kg_config_free(r->config);
}

/* A config of the same keys, of which none is given. */
static void resolve_nothing(struct resolved *r, const struct kg_published_run *run)
{
    *r = (struct resolved){.run = run};
    if (run->suite) {
        ok(kg_suite_open(&r->suite, run->suite, &err));
        r->config = r->suite.config;
        return;
    }
    ok(kg_train_config(&r->config, NULL, NULL, 0, &err));
}

static const struct kg_opt_row *option(const struct kg_config *config, const char *key)
{
    for (size_t i = 0; i < kg_config_rows(config); i++)
        if (strcmp(kg_config_row(config, i)->key, key) == 0)
            return kg_config_row(config, i);
    return NULL;
}

static bool is_same(const struct kg_config *a, const struct kg_config *b,
                    const struct kg_opt_row *row)
{
    bool has_text = row->type == KG_OPT_STRING &&
                    !row->choices; /* "" where it is not set */

    if (!has_text && (!kg_config_is_set(a, row->key) || !kg_config_is_set(b, row->key)))
        return false;
    return kg_opt_same(row, kg_config_text(a, row->key), kg_config_text(b, row->key));
}

/* Whether the run has this value for the key; false if the value is invalid. */
static bool has_value(const struct resolved *r, const struct kg_opt_row *row,
                      const char *value)
{
    struct resolved other;
    struct kg_str line = {0};
    bool same;

    resolve_nothing(&other, r->run);
    ok(kg_str_printf(&line, &err, "%s=%s", row->key, value));
    same = row->type == KG_OPT_LIST
               ? kg_config_override(other.config, line.data, "row", &err) == KG_OK
               : kg_config_set(other.config, row->key, value, false, "row", &err) ==
                     KG_OK;
    same = same && is_same(r->config, other.config, row);
    kg_str_release(&line);
    release(&other);
    return same;
}

/* ---- walking the tables ---- */

typedef void (*on_run)(const struct kg_published_study *, const struct resolved *);

static void each_run(on_run visit)
{
    for (size_t i = 0; i < kg_published_count(); i++) {
        const struct kg_published_study *study = kg_published_at(i);

        for (size_t k = 0; k < study->n_runs; k++) {
            struct resolved r;

            resolve(&r, &study->runs[k]);
            visit(study, &r);
            release(&r);
        }
    }
    nothing_is_wrong();
}

static bool is_key(const struct kg_published_row *row) { return *row->key != '('; }

/* ---- values ---- */

static void check_value(const struct resolved *r, const struct kg_published_row *row)
{
    const char *want = row->kedge ? row->kedge : row->value;
    const struct kg_opt_row *key = option(r->config, row->key);

    if (!key) {
        say("%s: there is no key %s", r->run->name, row->key);
        return;
    }
    if (!has_value(r, key, want))
        say("%s: %s: the table says %s, kedge has %s (%s)", r->run->name, row->key, want,
            kg_config_text(r->config, row->key), kg_config_source(r->config, row->key));
    if (row->kedge && has_value(r, key, row->value))
        say("%s: %s: the table says that kedge differs from %s, it has it", r->run->name,
            row->key, row->value);
}

static void check_values(const struct kg_published_study *study, const struct resolved *r)
{
    for (size_t i = 0; i < study->n_rows; i++)
        if (is_key(&study->rows[i]) && kg_published_applies(&study->rows[i], r->run))
            check_value(r, &study->rows[i]);
}

static void every_value_is_the_published_one_or_the_one_that_is_named(void **state)
{
    (void)state;
    each_run(check_values);
}

/* ---- rows themselves ---- */

static void check_row(const struct kg_published_study *study, size_t i)
{
    const struct kg_published_row *row = &study->rows[i];
    size_t n = 0;

    for (size_t k = 0; k < study->n_runs; k++) {
        if (!kg_published_applies(row, &study->runs[k]))
            continue;
        n++;
        if (kg_published_row(study, &study->runs[k], row->key) != row)
            say("%s: %s has two rows", study->runs[k].name, row->key);
    }
    if (n == 0)
        say("%s: %s of '%s' is of no run", study->title, row->key, row->runs);
    if (row->kedge && !row->note)
        say("%s: %s: kedge differs and no note says why", study->title, row->key);
    assert_true(row->value && *row->source);
}

static void every_row_is_of_a_run_and_says_why_kedge_differs(void **state)
{
    (void)state;
    for (size_t i = 0; i < kg_published_count(); i++)
        for (size_t k = 0; k < kg_published_at(i)->n_rows; k++)
            check_row(kg_published_at(i), k);
    nothing_is_wrong();
}

/* ---- nothing is left out ---- */

/* Keys without a row: those of the machine instead of the run and, in suites, those that
 * tell where a file is from. */
static const char *const of_the_machine[] = {
    "run.dir",           "run.threads",       "train.micro_tokens",
    "algo.preset",       "rollout.max_batch", "rollout.kv_tokens",
    "search.timeout_ms", "suite.name",        "suite.about",
};
static const char *const of_the_file[] = {".data", ".source", ".licence", ".group",
                                          ".search_where"};

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool is_exempt(const struct resolved *r, const char *key)
{
    for (size_t i = 0; i < sizeof of_the_machine / sizeof *of_the_machine; i++)
        if (strcmp(key, of_the_machine[i]) == 0)
            return true;
    for (size_t i = 0; r->run->suite && i < sizeof of_the_file / sizeof *of_the_file; i++)
        if (ends_with(key, of_the_file[i]))
            return true;
    return false;
}

static void check_given(const struct kg_published_study *study, const struct resolved *r)
{
    for (size_t i = 0; i < kg_config_rows(r->config); i++) {
        const char *key = kg_config_row(r->config, i)->key;

        if (kg_config_is_given(r->config, key) && !is_exempt(r, key) &&
            !kg_published_row(study, r->run, key))
            say("%s: %s is given by %s, and no row of the table says what was "
                "published",
                r->run->name, key, kg_config_source(r->config, key));
    }
}

static void every_key_that_a_published_run_gives_has_a_row(void **state)
{
    (void)state;
    each_run(check_given);
}

/* Keys that decide a run, whether the recipe gives them or leaves the default. A key with
 * `when` counts only if key `when` has that value (with a leading !: another value). */
static const struct {
    const char *key, *when, *value;
} needed[] = {
    {"model.path", NULL, NULL},
    {"model.dtype", NULL, NULL},
    {"run.seed", NULL, NULL},
    {"task.name", NULL, NULL},
    {"task.wrong_reward", NULL, NULL},
    {"task.grader", "task.name", "math"},
    {"task.keep_thinking", "task.name", "math"},
    {"task.undecided", "task.name", "math"},
    {"task.metric", "task.name", "search-qa"},
    {"task.answer_tags", "task.name", "search-qa"},
    {"data.train", NULL, NULL},
    {"data.val", NULL, NULL},
    {"data.template", NULL, NULL},
    {"data.user_turn", NULL, NULL},
    {"data.system", NULL, NULL},
    {"data.opening", NULL, NULL},
    {"data.chat_template", NULL, NULL},
    {"data.add_special", NULL, NULL},
    {"data.max_prompt_tokens", NULL, NULL},
    {"data.overlong", NULL, NULL},
    {"rollout.prompts", NULL, NULL},
    {"rollout.samples", NULL, NULL},
    {"rollout.max_tokens", NULL, NULL},
    {"rollout.temperature", NULL, NULL},
    {"rollout.top_p", NULL, NULL},
    {"rollout.top_k", NULL, NULL},
    {"rollout.min_p", NULL, NULL},
    {"rollout.lag", NULL, NULL},
    {"rollout.dynamic", NULL, NULL},
    {"rollout.dynamic_metric", "rollout.dynamic", "true"},
    {"rollout.oversample", "rollout.dynamic", "true"},
    {"rollout.max_refills", "rollout.dynamic", "true"},
    {"rollout.overlong_buffer", NULL, NULL},
    {"rollout.overlong_factor", "rollout.overlong_buffer", "!0"},
    {"episode.env", "task.name", "search-qa"},
    {"episode.turns", "episode.env", "search"},
    {"episode.turn_tokens", "episode.env", "search"},
    {"episode.obs_tokens", "episode.env", "search"},
    {"episode.context", "episode.env", "search"},
    {"episode.answer_tokens", "episode.env", "search"},
    {"episode.window", "episode.env", "search"},
    {"search.topk", "episode.env", "search"},
    {"algo.advantage", NULL, NULL},
    {"algo.surrogate", NULL, NULL},
    {"algo.aggregate", NULL, NULL},
    {"algo.length_norm", "algo.aggregate", "seq-mean-token-sum-norm"},
    {"algo.mask", NULL, NULL},
    {"algo.clip_low", "algo.surrogate", "ppo-clip"},
    {"algo.clip_high", "algo.surrogate", "ppo-clip"},
    {"algo.dual_clip", NULL, NULL},
    {"algo.entropy_coef", NULL, NULL},
    {"algo.ratio_clamp", NULL, NULL},
    {"algo.mask_truncated", NULL, NULL},
    {"algo.tis", NULL, NULL},
    {"kl.estimator", NULL, NULL},
    {"kl.after_filter", NULL, NULL},
    {"kl.beta", "kl.estimator", "!none"},
    {"kl.in", "kl.estimator", "!none"},
    {"kl.importance", "kl.estimator", "!none"},
    {"kl.clamp", "kl.estimator", "!none"},
    {"kl.top_k", "kl.estimator", "topk-reverse"},
    {"kl.tail", "kl.estimator", "topk-reverse"},
    {"kl.gradient", "kl.estimator", "topk-reverse"},
    {"anchor.kind", NULL, NULL},
    {"anchor.eta", "anchor.kind", "ema"},
    {"anchor.period", "anchor.kind", "ema"},
    {"anchor.unit", "anchor.kind", "ema"},
    {"optim.kind", NULL, NULL},
    {"optim.lr", NULL, NULL},
    {"optim.beta1", NULL, NULL},
    {"optim.beta2", NULL, NULL},
    {"optim.eps", NULL, NULL},
    {"optim.weight_decay", NULL, NULL},
    {"optim.clip_norm", NULL, NULL},
    {"optim.schedule", NULL, NULL},
    {"optim.warmup_steps", NULL, NULL},
    {"train.steps", NULL, NULL},
    {"train.updates_per_step", NULL, NULL},
    {"train.old_logp", NULL, NULL},
    {"eval.every", NULL, NULL},
    {"eval.at_start", NULL, NULL},
    {"eval.problems", NULL, NULL},
    {"eval.samples", NULL, NULL},
    {"eval.temperature", NULL, NULL},
    {"eval.top_p", NULL, NULL},
    {"eval.anchor", NULL, NULL},
    {"checkpoint.every", NULL, NULL},
    {"checkpoint.keep", NULL, NULL},
};

static bool is_needed(const struct resolved *r, size_t i)
{
    const char *value = needed[i].value;
    bool other = value && *value == '!';

    if (!needed[i].when)
        return true;
    return has_value(r, option(r->config, needed[i].when), value + other) != other;
}

static void check_needed(const struct kg_published_study *study, const struct resolved *r)
{
    for (size_t i = 0; !r->run->suite && i < sizeof needed / sizeof *needed; i++)
        if (is_needed(r, i) && !kg_published_row(study, r->run, needed[i].key))
            say("%s: no row says what was published for %s", r->run->name, needed[i].key);
}

static void every_run_says_what_decides_it(void **state)
{
    (void)state;
    each_run(check_needed);
}

/* ---- presets ---- */

static void check_preset(const struct kg_published_study *study, const struct resolved *r)
{
    const struct kg_preset *preset;

    (void)study;
    if (!r->run->preset)
        return;
    ok(kg_preset_find(&preset, r->run->preset, &err));
    for (size_t i = 0; i < kg_config_rows(r->config); i++) {
        const struct kg_opt_row *row = kg_config_row(r->config, i);
        const char *value = kg_preset_get(preset, row->key);

        if (value && !has_value(r, row, value))
            say("%s: %s is %s, and its preset %s says %s", r->run->name, row->key,
                kg_config_text(r->config, row->key), preset->name, value);
    }
}

static void a_recipe_has_every_value_of_its_preset(void **state)
{
    (void)state;
    each_run(check_preset);
}

/* Whether a run of the table uses this preset, recipe or suite. */
static bool is_published(const char *name)
{
    for (size_t i = 0; i < kg_published_count(); i++)
        for (size_t k = 0; k < kg_published_at(i)->n_runs; k++) {
            const struct kg_published_run *run = &kg_published_at(i)->runs[k];

            if ((run->preset && strcmp(run->preset, name) == 0) ||
                (run->recipe && strcmp(run->recipe, name) == 0) ||
                (run->suite && strcmp(run->suite, name) == 0))
                return true;
        }
    return false;
}

static size_t check_folder(const char *folder, bool all)
{
    char **names, path[256];
    size_t n, found = 0;

    ok(kg_file_list(&names, &n, folder, &err));
    for (size_t i = 0; i < n; i++) {
        struct kg_str text = {0};

        if (!ends_with(names[i], ".yaml"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        ok(kg_file_read(&text, path, MAX_FILE, &err));
        if (all || strstr(kg_str_text(&text), "arXiv")) {
            found++;
            if (!is_published(path))
                fail_msg("%s names a publication and no run of the table is of it", path);
        }
        kg_str_release(&text);
    }
    kg_file_names_free(names, n);
    return found;
}

static void every_preset_recipe_and_suite_of_a_publication_is_in_the_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < kg_preset_count(); i++)
        if (kg_preset_at(i)->kind == KG_PRESET_RECIPE &&
            !is_published(kg_preset_at(i)->name))
            fail_msg("the preset %s is no run of the table", kg_preset_at(i)->name);
    assert_true(check_folder("recipes", false) >= 7);
    assert_true(check_folder("suites", true) >= 4);
}

/* ---- the page ---- */

/* Number of '|' in a line that separate cells. */
static size_t bars(const char *line, size_t n)
{
    size_t found = 0;

    for (size_t i = 0; i < n; i++)
        found += line[i] == '|' && (i == 0 || line[i - 1] != '\\');
    return found;
}

static void every_row_of_the_page_has_the_cells_of_its_head(void **state)
{
    struct kg_str page = {0};
    size_t head = 0, rows = 0;

    (void)state;
    ok(kg_file_read(&page, "docs/published.md", MAX_FILE, &err));
    for (const char *at = page.data, *end; (end = strchr(at, '\n')); at = end + 1) {
        size_t n = (size_t)(end - at);

        if (*at != '|')
            head = 0;
        else if (head == 0)
            head = bars(at, n);
        else if (bars(at, n) != head)
            say("expected %zu cells, found %.*s", head - 1, (int)n, at);
        rows += *at == '|';
    }
    assert_true(rows > 700);
    kg_str_release(&page);
    nothing_is_wrong();
}

/* ---- the first prompt ---- */

#define SHARED "../shared/data"
#define QWEN   SHARED "/tokenizers/qwen2.5"

static char folder[] = "/tmp/kedge-published-XXXXXX";

/* Tokenizer and data to use instead of those of the published model. */
static const struct stand_in {
    const char *runs;
    const char *tokenizer; /* folder */
    const char *chat;      /* template, if the folder has none */
    bool distilled; /* R1's special tokens replace Qwen's, as in the distilled model */
    const char *data;
} stand_ins[] = {
    {"ema-pg-math-* grpo-ema-pg-* suites/ema-pg-math.yaml *-stability",
     SHARED "/tokenizers/deepseek_r1_distill_qwen", NULL, true,
     SHARED "/math/aime24.jsonl"},
    {"*-search-3b suites/search-qa.yaml", QWEN,
     SHARED "/chat_templates/Qwen-Qwen2.5-7B-Instruct.jinja", false,
     SHARED "/search/qa/nq_open_dev.jsonl"},
    {"dapo-32b", QWEN, SHARED "/chat_templates/Qwen-Qwen2.5-7B-Instruct.jinja", false,
     SHARED "/math/raw/rpg_aime-2024.parquet"},
    {"suites/rpg.yaml suites/dppo.yaml", SHARED "/tokenizers/qwen3", NULL, false,
     SHARED "/math/aime24.jsonl"},
    {"*", SHARED "/tokenizers/qwen3", NULL, false,
     SHARED "/math/raw/rpg_aime-2024.parquet"},
};

static const struct stand_in *stand_in_of(const struct kg_published_run *run)
{
    for (size_t i = 0; i < sizeof stand_ins / sizeof *stand_ins; i++) {
        struct kg_published_row row = {.runs = stand_ins[i].runs};

        if (kg_published_applies(&row, run))
            return &stand_ins[i];
    }
    fail_msg("%s has no stand-in", run->name);
    return NULL;
}

static void replace_all(struct kg_str *text, const char *from, const char *to)
{
    struct kg_str out = {0};
    const char *at = kg_str_text(text);

    for (const char *hit; (hit = strstr(at, from)); at = hit + strlen(from)) {
        ok(kg_str_append(&out, at, (size_t)(hit - at), &err));
        ok(kg_str_puts(&out, to, &err));
    }
    ok(kg_str_puts(&out, at, &err));
    kg_str_release(text);
    *text = out;
}

/* Copies a file into the folder, with R1's tokens if distilled; does nothing if the file
 * is absent. */
static void copy(const char *from, const char *to, bool distilled)
{
    static const char *const tokens[][2] = {
        {"<|endoftext|>", "<｜end▁of▁sentence｜>"},
        {"<|im_start|>", "<｜User｜>"},
        {"<|im_end|>", "<｜Assistant｜>"},
        {"<|object_ref_start|>", "<｜begin▁of▁sentence｜>"},
    };
    struct kg_str text = {0};
    char path[256];

    if (!kg_file_exists(from))
        return;
    ok(kg_file_read(&text, from, 1 << 26, &err));
    for (size_t i = 0; distilled && i < sizeof tokens / sizeof *tokens; i++)
        replace_all(&text, tokens[i][0], tokens[i][1]);
    snprintf(path, sizeof path, "%s/%s", folder, to);
    ok(kg_file_write_atomic(path, text.data, text.len, &err));
    kg_str_release(&text);
}

/* The distilled model has Qwen2.5's tokenizer except for the added tokens. */
static void make_folder(const struct stand_in *in)
{
    char path[256];

    ok(kg_file_remove_tree(folder, &err));
    ok(kg_file_make_dirs(folder, &err));
    snprintf(path, sizeof path, "%s/tokenizer.json",
             in->distilled ? QWEN : in->tokenizer);
    copy(path, "tokenizer.json", in->distilled);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", in->tokenizer);
    copy(path, "tokenizer_config.json", false);
    if (in->chat)
        copy(in->chat, "chat_template.jinja", false);
}

static size_t count(const char *text, const char *word)
{
    size_t n = 0;

    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        n++;
    return n;
}

/* The prompt is the row's value with the question filled in; the question must not bring
 * an instruction or a role of its own. */
static void check_prompt(const struct kg_published_row *row, const char *run,
                         const char *text)
{
    const char *hole = strstr(row->value, "{question}");
    const char *end = hole + strlen("{question}");
    size_t n = strlen(text), head = (size_t)(hole - row->value), tail = strlen(end);

    assert_non_null(hole);
    if (n <= head + tail || strncmp(text, row->value, head) != 0 ||
        strcmp(text + n - tail, end) != 0)
        say("%s: expected a prompt like\n%s\nfound\n%s", run, row->value, text);
    else if (count(text, "<|im_") != count(row->value, "<|im_") ||
             count(text, "Answer:") != count(row->value, "Answer:"))
        say("%s: the instruction stands twice:\n%s", run, text);
}

static void training_prompts(const struct kg_published_row *row, const struct resolved *r,
                             const struct stand_in *in)
{
    struct kg_model model = {.dir = folder};
    struct kg_run run = {.in.config = r->config, .state.model = &model};
    const struct kg_prompts *sets[] = {&run.in.train, &run.in.val};

    ok(kg_config_set(r->config, "data.train", in->data, false, "test", &err));
    ok(kg_config_set(r->config, "data.val", in->data, false, "test", &err));
    kg_recipe_read(&run.in.recipe, r->config);
    ok(kg_tokenizer_open(&run.in.tok, folder, &err));
    ok(kg_run_data_open(&run, &err));
    for (size_t i = 0; i < 2; i++) {
        struct kg_str text = {0};

        ok(kg_tokenizer_decode_text(&text, run.in.tok, sets[i]->ids[0].ids,
                                    sets[i]->ids[0].n, false, &err));
        check_prompt(row, r->run->name, kg_str_text(&text));
        kg_str_release(&text);
    }
    kg_prompts_release(&run.in.train);
    kg_prompts_release(&run.in.val);
    kg_dataset_release(&run.in.train_data);
    kg_dataset_release(&run.in.val_data);
    kg_chat_template_close(run.in.chat);
    kg_tokenizer_close(run.in.tok);
}

static void suite_prompts(const struct kg_published_row *row, struct resolved *r,
                          const struct stand_in *in)
{
    struct kg_eval_set set;
    struct kg_str key = {0};

    ok(kg_str_printf(&key, &err, "sets.%s.data", r->suite.names[0]));
    ok(kg_config_set(r->config, key.data, in->data, false, "test", &err));
    key.len = 0;
    ok(kg_str_printf(&key, &err, "sets.%s.expect", r->suite.names[0]));
    ok(kg_config_set(r->config, key.data, "0", false, "test", &err));
    ok(kg_suite_resolve(&r->suite, &err));
    ok(kg_eval_set_init(&set, &r->suite, 0, NULL, &err));
    ok(kg_eval_set_load(&set, NULL, folder, &err));
    check_prompt(row, r->run->name, set.data.records[0].prompt);
    kg_eval_set_release(&set);
    kg_str_release(&key);
}

/* Runs of one recipe have the same prompt, so one of them is checked. */
static void check_first(const struct kg_published_study *study, const struct resolved *r)
{
    static const char *asked;
    const char *file = r->run->suite ? r->run->suite : r->run->recipe;
    const struct kg_published_row *row = kg_published_row(study, r->run,
                                                          "(first prompt)");
    const struct stand_in *in = stand_in_of(r->run);
    struct resolved mine;

    if (!row)
        say("%s: no row has the first prompt", r->run->name);
    if (!row || (asked && strcmp(asked, file) == 0))
        return;
    asked = file;
    make_folder(in);
    resolve(&mine, r->run);
    if (r->run->suite)
        suite_prompts(row, &mine, in);
    else
        training_prompts(row, &mine, in);
    release(&mine);
}

static void the_first_prompt_is_the_published_one(void **state)
{
    (void)state;
    if (!kg_file_is_dir(SHARED)) {
        print_message("skip: " SHARED " is not there\n");
        skip();
    }
    assert_non_null(mkdtemp(folder));
    each_run(check_first);
    ok(kg_file_remove_tree(folder, &err));
}

static int setup(void **state)
{
    (void)state;
    published_read();
    return published_n > 5 ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    kg_str_release(&published_page);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_is_the_published_one_or_the_one_that_is_named),
        cmocka_unit_test(every_row_is_of_a_run_and_says_why_kedge_differs),
        cmocka_unit_test(every_key_that_a_published_run_gives_has_a_row),
        cmocka_unit_test(every_run_says_what_decides_it),
        cmocka_unit_test(a_recipe_has_every_value_of_its_preset),
        cmocka_unit_test(every_preset_recipe_and_suite_of_a_publication_is_in_the_table),
        cmocka_unit_test(every_row_of_the_page_has_the_cells_of_its_head),
        cmocka_unit_test(the_first_prompt_is_the_published_one),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
