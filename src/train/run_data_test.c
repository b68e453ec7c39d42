/* Runs on several data files: shares of the prompts, templates, metrics by source,
 * refusals, and that an interrupted run resumes to the same bits.
 */
#define ROOT "build/test-run-data"
#include "train/rl_testing.h"

#include "eval/suite.h"
#include "train/open/open.h"

#define A ROOT "/a.jsonl"
#define B ROOT "/b.jsonl"
#define C ROOT "/c.jsonl"

/* a: 3 problems without a source; b: 5 of the source "bee"; c: 2, one of them too
 * long. */
static int write_files(void **state)
{
    static const char *const names[] = {A, B, C};
    struct kg_str text[3] = {{0}, {0}, {0}};

    (void)state;
    NEED(kg_file_make_dirs(ROOT, err));
    for (int i = 0; i < 3; i++)
        NEED(kg_str_printf(&text[0], err,
                           "{\"prompt\": \"%d,3:9,2\", \"completion\": \"7\"}\n", i));
    for (int i = 0; i < 5; i++)
        NEED(kg_str_printf(&text[1], err,
                           "{\"prompt\": \"%d,4:9,2\", \"completion\": \"7\", "
                           "\"data_source\": \"bee\"}\n",
                           i));
    NEED(kg_str_puts(&text[2],
                     "{\"prompt\": \"1,5:9,2\", \"completion\": \"7\"}\n"
                     "{\"prompt\": \"1,5:9,22222222222222222222\", \"completion\": "
                     "\"7\"}\n",
                     err));
    for (int i = 0; i < 3; i++) {
        NEED(kg_file_write_atomic(names[i], text[i].data, text[i].len, err));
        kg_str_release(&text[i]);
    }
    return 0;
}

static const char *const weighed[] = {"data.train=[" A ", " B ", " C "]",
                                      "data.weights=[1, 2, 1]",
                                      "data.max_prompt_tokens=12", NULL};

/* ---- loaded records ---- */

static void files_are_one_set_and_each_is_counted(void **state)
{
    struct opened o;

    (void)state;
    open_run(&o, ROOT "/set", weighed);
    assert_int_equal(o.run.in.n_parts, 3);
    assert_int_equal(o.run.in.train.n, 3 + 5 + 1);
    assert_int_equal(o.run.in.train.dropped_too_long, 1);
    assert_int_equal(o.run.in.parts[0].n, 3);
    assert_int_equal(o.run.in.parts[1].n, 5);
    assert_int_equal(o.run.in.parts[2].n, 1);
    for (size_t i = 0; i < o.run.in.train.n; i++) {
        static const char *const sources[] = {"a.jsonl", "bee", "c.jsonl"};
        size_t file = i < 3 ? 0 : i < 8 ? 1 : 2;

        assert_string_equal(
            kg_dataset_file(&o.run.in.train_data, (size_t)o.run.in.train.record[i]),
            file == 0   ? A
            : file == 1 ? B
                        : C);
        assert_string_equal(
            o.run.in.train_data.records[o.run.in.train.record[i]].data_source,
            sources[file]);
    }
    close_run(&o);
}

/* Files with the same name are named with as many of their folders as needed. */
static void files_of_one_name_are_sources_of_their_own(void **state)
{
    static const char *const paths[] = {ROOT "/nq/x/train.jsonl",
                                        ROOT "/hotpotqa/x/train.jsonl",
                                        ROOT "/hotpotqa/y/train.jsonl", A};
    static const char *const names[] = {"nq/x/train.jsonl", "hotpotqa/x/train.jsonl",
                                        "y/train.jsonl", "a.jsonl"};
    static const char line[] = "{\"prompt\": \"1,4:9,2\", \"completion\": \"7\"}\n";
    struct kg_str list = {0};
    struct opened o;

    (void)state;
    for (int i = 0; i < 4; i++)
        NEED(kg_str_printf(&list, err, "%s%s", i ? ", " : "data.train=[", paths[i]));
    NEED(kg_str_puts(&list, "]", err));
    NEED(kg_file_make_dirs(ROOT "/nq/x", err));
    NEED(kg_file_make_dirs(ROOT "/hotpotqa/x", err));
    NEED(kg_file_make_dirs(ROOT "/hotpotqa/y", err));
    for (int i = 0; i < 3; i++)
        NEED(kg_file_write_atomic(paths[i], line, strlen(line), err));
    open_run(&o, ROOT "/names", (const char *const[]){kg_str_text(&list), NULL});
    assert_int_equal(o.run.in.train_data.n, 6);
    for (int i = 0; i < 4; i++)
        assert_string_equal(o.run.in.train_data.records[i].data_source, names[i]);
    close_run(&o);
    kg_str_release(&list);
}

/* With the same keys, training, evaluation and SFT make the same prompt: question, system
 * prompt, template, opening and special tokens. */
static void training_and_evaluation_ask_the_same(void **state)
{
    static const char jinja[] = "{% for m in messages %}{{ m.content }}:{% endfor %}";
    static const char suite[] =
        "defaults:\n  task: digits\n  user_turn: true\n  system: '9'\n  opening: '1'\n"
        "  template: '{prompt},8'\n  chat_template: " ROOT "/x.jinja\n"
        "sets:\n  a:\n    data: " A "\n";
    static const char *const keys[] = {"data.train=" A,
                                       "data.val=" A,
                                       "data.user_turn=true",
                                       "data.system=9",
                                       "data.opening=1",
                                       "data.template={prompt},8",

                                       "sft.steps=1",
                                       "data.chat_template=" ROOT "/x.jinja",
                                       NULL};
    struct kg_suite s;
    struct kg_eval_set set;
    struct kg_prompts asked;
    struct opened o;

    (void)state;
    NEED(kg_file_write_atomic(ROOT "/x.jinja", jinja, sizeof jinja - 1, err));
    NEED(kg_file_write_atomic(ROOT "/s.yaml", suite, sizeof suite - 1, err));
    NEED(kg_suite_open(&s, ROOT "/s.yaml", err));
    NEED(kg_suite_resolve(&s, err));
    NEED(kg_eval_set_init(&set, &s, 0, NULL, err));
    NEED(kg_eval_set_load(&set, NULL, NULL, err));
    open_run(&o, ROOT "/same", keys);
    NEED(kg_prompts_init(
        &asked, &set.data, o.run.in.tok,
        &(struct kg_prompts_opts){.max_tokens = 99, .special = set.special}, err));
    assert_string_equal(o.run.in.train_data.records[0].prompt, "9:0,3:9,2S,8:1");
    assert_int_equal(asked.n, o.run.in.train.n);
    for (size_t i = 0; i < o.run.in.val.n; i++) {
        assert_int_equal(asked.ids[i].n, o.run.in.train.ids[i].n);
        assert_memory_equal(asked.ids[i].ids, o.run.in.train.ids[i].ids,
                            4 * asked.ids[i].n);
        assert_memory_equal(asked.ids[i].ids, o.run.in.val.ids[i].ids,
                            4 * asked.ids[i].n);
        assert_memory_equal(asked.ids[i].ids,
                            o.run.in.sft.tokens.ids + o.run.in.sft.begin[i],
                            4 * asked.ids[i].n);
    }
    close_run(&o);
    kg_prompts_release(&asked);
    kg_eval_set_release(&set);
    kg_suite_release(&s);
}

/* A chat template that was named but cannot be applied is refused. */
static void a_chat_template_that_cannot_apply_is_refused(void **state)
{
    static const char *const keys[] = {
        "data.train=" A,
        "data.chat_template=tests/data/chat_templates/Qwen-Qwen3-0.6B.jinja", NULL};
    struct kg_config *config = config_of(ROOT "/named", keys);
    struct kg_err err = {0};
    struct kg_run run;

    (void)state;
    assert_int_equal(kg_run_open(&run, config, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "data.chat_template: expected a list of messages "
                                        "as prompt, found text; data.user_turn=true"));
    kg_config_free(config);
}

static void every_step_has_the_shares_of_its_files(void **state)
{
    uint32_t index[400], count[3] = {0};
    struct opened o;
    struct kg_err err;

    (void)state;
    open_run(&o, ROOT "/shares", weighed);
    for (uint64_t step = 0; step < 100; step++) {
        uint32_t of_b = 0;

        assert_int_equal(kg_run_prompts_at(index, 4, 4 * step, &o.run.in, &err), KG_OK);
        for (int i = 0; i < 4; i++) {
            of_b += index[i] >= 3 && index[i] < 8;
            count[index[i] < 3 ? 0 : index[i] < 8 ? 1 : 2]++;
        }
        assert_int_equal(of_b, 2);
    }
    assert_int_equal(count[0], 100);
    assert_int_equal(count[1], 200);
    assert_int_equal(count[2], 100);
    close_run(&o);
}

static void without_weights_an_epoch_has_each_problem_once(void **state)
{
    static const char *const plain[] = {"data.train=[" A ", " B "]", NULL};
    uint32_t index[8];
    unsigned seen = 0;
    struct opened o;
    struct kg_err err;

    (void)state;
    open_run(&o, ROOT "/plain", plain);
    assert_int_equal(kg_run_prompts_at(index, 8, 8, &o.run.in, &err), KG_OK);
    for (int i = 0; i < 8; i++)
        seen |= 1u << index[i];
    assert_int_equal(seen, 0xff);
    close_run(&o);
}

static void each_file_has_its_template(void **state)
{
    static const char *const extra[] = {
        "data.train=[" A ", " B "]", "data.templates=['0,{prompt}', '{prompt}']",
        "data.val=[" B ", " A "]",   "data.val_templates=['{prompt}', '9,{prompt}']",
        "eval.problems=2",           NULL};
    struct opened o;

    (void)state;
    open_run(&o, ROOT "/templates", extra);
    assert_string_equal(o.run.in.train_data.records[0].prompt, "0,0,3:9,2S");
    assert_string_equal(o.run.in.train_data.records[3].prompt, "0,4:9,2S");
    assert_int_equal(o.run.in.val.n, 4); /* eval.problems of each file */
    assert_string_equal(o.run.in.val_data.records[o.run.in.val.record[1]].prompt,
                        "1,4:9,2S");
    assert_string_equal(o.run.in.val_data.records[o.run.in.val.record[2]].prompt,
                        "9,0,3:9,2S");
    close_run(&o);
}

/* ---- refusals ---- */

static void lists_that_do_not_fit_are_refused(void **state)
{
    static const char *const rows[][3] = {
        {"data.train=[" A ", " B "]", "data.weights=[1]",
         "data.weights: expected an item for each of the 2 files of data.train, or none; "
         "found 1"},
        {"data.train=[" A ", " B "]", "data.weights=[1, 0]",
         "data.weights: expected whole numbers from 1 to 10000, found '0'"},
        {"data.train=[" A ", " B "]", "data.weights=[1, 0.5]", "found '0.5'"},
        {"data.train=[" A ", " B "]", "data.templates=['{prompt}']",
         "data.templates: expected an item for each of the 2 files"},
        {"data.train=[" A ", " B "]", "data.templates=['x', 'y']",
         "expected a text with {prompt}, found 'x'"},
        {"data.val=[" A ", " B "]", "data.val_templates=[1, 2, 3]",
         "data.val_templates: expected an item for each of the 2 files of data.val"},
        {"task.name=digits", "task.wrong_reward=-1",
         "task.wrong_reward: expected 0 for task digits"},
        {"data.train=" A, "task.wording=search-r1",
         "task.wording: has an effect only with task.name search-qa or episode.env "
         "search"},
        {"data.train=[" A ", " ROOT "/none]", "data.weights=[]", "none: "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const extra[] = {rows[i][0], rows[i][1], NULL};
        struct kg_config *config = config_of(ROOT "/refused", extra);
        struct kg_err err = {0};
        struct kg_run run;

        assert_int_not_equal(kg_run_open(&run, config, &err), KG_OK);
        if (!strstr(err.message, rows[i][2]))
            fail_msg("expected '%s', found: %s", rows[i][2], err.message);
        kg_config_free(config);
    }
}

/* Weights are read before the files, and their number is limited. */
static void too_many_files_are_refused(void **state)
{
    static const char *const keys[] = {"data.train", "data.weights"};
    static const char *const items[] = {A, "1"};
    struct kg_str list[2] = {{0}, {0}};
    const char *extra[3] = {NULL};
    struct kg_config *config;
    struct kg_err e = {0};
    struct kg_run run;

    (void)state;
    for (int k = 0; k < 2; k++) {
        NEED(kg_str_printf(&list[k], err, "%s=[", keys[k]));
        for (int i = 0; i < KG_EPOCHS_PARTS + 1; i++)
            NEED(kg_str_printf(&list[k], err, "%s%s", i ? ", " : "", items[k]));
        NEED(kg_str_puts(&list[k], "]", err));
        extra[k] = kg_str_text(&list[k]);
    }
    config = config_of(ROOT "/refused", extra);
    assert_int_equal(kg_run_open(&run, config, &e), KG_EINVAL);
    assert_non_null(strstr(e.message, "data.train: expected at most 64 files, found 65"));
    kg_config_free(config);
    kg_str_release(&list[0]);
    kg_str_release(&list[1]);
}

/* last <- the last val_loss of a run.   returns how many it has */
static int last_val_loss(double *last, const char *path)
{
    static const char key[] = "\"val_loss\": ";
    struct kg_str text = {0};
    int n = 0;

    NEED(kg_file_read(&text, path, 1 << 20, err));
    for (const char *at = kg_str_text(&text); (at = strstr(at, key)); n++) {
        at += sizeof key - 1;
        *last = strtod(at, NULL);
    }
    kg_str_release(&text);
    return n;
}

/* SFT needs a model and a file, but no task and no data.train. */
static void supervised_training_needs_its_file_alone(void **state)
{
    static const char *const keys[] = {
        "task.name=qa-number", "data.train=", "data.val=",
        "train.steps=0",       "sft.data=" A, "sft.batch=2",
        "sft.epochs=3",        "sft.val=" B,  NULL};
    struct opened o;
    struct kg_str plan = {0};
    struct kg_config *config;
    double before, after;

    (void)state;
    open_run(&o, ROOT "/alone", keys);
    assert_int_equal(o.run.in.train.n, 0);
    assert_int_equal(o.run.in.sft.n, 3);
    assert_int_equal(o.run.in.sft_val.n, 5);
    assert_int_equal(o.run.in.sft_steps, 5); /* 3 epochs of 3 sequences, 2 at a time */
    NEED(kg_sft_held_out(&before, &o.run.in.sft_val, o.run.work.rows, o.run.state.model,
                         err));
    assert_true(before > 1);
    close_run(&o);
    config = config_of(ROOT "/alone", keys);
    NEED(kg_train_plan(&plan, config, false, 1, err));
    assert_non_null(strstr(kg_str_text(&plan), "5 supervised updates, 2 sequences each "
                                               "(out of 3), 3.33 epochs at lr 1e-05; 5 "
                                               "held out\n"));
    assert_non_null(
        strstr(kg_str_text(&plan), "7 tokens of context\n            | 0,3:9,2"));
    assert_null(strstr(kg_str_text(&plan), "one step"));
    kg_str_release(&plan);
    fresh(ROOT "/alone");
    NEED(kg_config_override(config, "sft.lr=1e-2", "test", err));
    NEED(kg_config_override(config, "sft.eval_every=2", "test", err));
    NEED(kg_train_run(config, false, false, err));
    kg_config_free(config);
    assert_int_equal(last_val_loss(&after, ROOT "/alone/metrics.jsonl"), 3);
    assert_true(after < before);
}

/* A user's grader is tried before anything starts. If it fails at the first step, the
 * folder is free for the next attempt. */
static void a_run_without_a_step_leaves_its_folder_free(void **state)
{
    static const char *const keys[] = {
        "task.name=external",
        "data.train=" A,
        "data.val=" A,
        "train.steps=1",
        "task.command=cat >/dev/null; echo no score >&2; exit 3",
        "eval.at_start=false",
        NULL};
    struct kg_config *config = config_of(ROOT "/attempt", keys);
    struct kg_str plan = {0};
    struct kg_err e = {0};

    (void)state;
    fresh(ROOT "/attempt");
    assert_int_not_equal(kg_train_plan(&plan, config, false, 1, &e), KG_OK);
    assert_non_null(strstr(e.message, "no score"));
    assert_int_not_equal(kg_train_run(config, false, false, &e), KG_OK);
    assert_true(kg_file_exists(ROOT "/attempt/config.yaml"));
    NEED(kg_config_override(config, "task.command=sed 's/.*/{\"score\": 0.25}/'", "test",
                            err));
    kg_str_clear(&plan);
    NEED(kg_train_plan(&plan, config, false, 1, err));
    assert_non_null(strstr(kg_str_text(&plan), "score 0.25, wrong for the first worked "
                                               "solution"));
    NEED(kg_train_run(config, false, false, err));
    assert_int_equal(kg_train_run(config, false, false, &e), KG_ECONFLICT);
    assert_non_null(strstr(e.message, "continue that run with --resume"));
    kg_str_release(&plan);
    kg_config_free(config);
}

/* Each external reward is tried, whatever the task, and the plan reports each. */
static void rewards_are_tried_one_by_one(void **state)
{
    static const char *const keys[] = {
        "task.name=qa-number",
        "data.train=" A,
        "data.val=",
        "train.steps=1",
        "task.rewards=[\"a=qa-number\", \"b=external exit 4\"]",
        NULL};
    struct kg_config *config = config_of(ROOT "/tried", keys);
    struct kg_str plan = {0};
    struct kg_err e = {0};

    (void)state;
    assert_int_equal(kg_train_plan(&plan, config, false, 1, &e), KG_EIO);
    assert_non_null(strstr(e.message, "reward b: 'exit 4': expected exit status 0"));
    NEED(kg_config_override(config,
                            "task.rewards=[\"a=qa-number\", \"b=external sed "
                            "'s/.*/{\\\"score\\\": 0.25}/'\"]",
                            "test", err));
    kg_str_clear(&plan);
    NEED(kg_train_plan(&plan, config, false, 1, err));
    if (!strstr(kg_str_text(&plan), "'task.rewards': score ") ||
        !strstr(kg_str_text(&plan), ", b 0.25 for the first worked solution"))
        fail_msg("%s", kg_str_text(&plan));
    kg_str_release(&plan);
    kg_config_free(config);
}

static void put_file(const char *path, const char *text)
{
    NEED(kg_file_write_atomic(path, text, strlen(text), err));
}

/* The grader fails at the first step, which leaves manifest.json and config.yaml. */
static const char *const failing[] = {
    "task.name=external", "data.train=" A,       "data.val=" A, "train.steps=1",
    "task.command=false", "eval.at_start=false", NULL};

/* A user's own recipe, data or notes are not taken for leftovers of an attempt. */
static void a_folder_of_the_users_own_is_refused_and_kept(void **state)
{
    static const char *const files[] = {
        ROOT "/own/config.yaml", ROOT "/own/sft/train.jsonl",
        ROOT "/own/rollouts/notes.txt", ROOT "/own/watch.log",
        ROOT "/own/events.out.tfevents.1"};
    struct kg_config *config = config_of(ROOT "/own", failing);
    struct kg_str text = {0};
    struct kg_err e = {0};

    (void)state;
    fresh(ROOT "/own");
    NEED(kg_file_make_dirs(ROOT "/own/sft", err));
    NEED(kg_file_make_dirs(ROOT "/own/rollouts", err));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        put_file(files[i], "mine: 1\n");
    assert_int_equal(kg_train_run(config, false, false, &e), KG_ECONFLICT);
    assert_non_null(strstr(e.message, "config.yaml that is not from a run of kedge"));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        kg_str_clear(&text);
        NEED(kg_file_read(&text, files[i], 100, err));
        assert_string_equal(text.data, "mine: 1\n");
    }
    /* a manifest that is no run's, a torn one, and a log without a run */
    NEED(kg_file_remove_tree(ROOT "/own/config.yaml", err));
    put_file(ROOT "/own/manifest.json", "{\"format\": 3}");
    assert_int_equal(kg_train_run(config, false, false, &e), KG_ECONFLICT);
    assert_non_null(strstr(e.message, "manifest.json that is not from a run"));
    put_file(ROOT "/own/manifest.json", "{\"kedge\": ");
    assert_int_equal(kg_train_run(config, false, false, &e), KG_ECONFLICT);
    NEED(kg_file_remove_tree(ROOT "/own/manifest.json", err));
    put_file(ROOT "/own/metrics.jsonl", "");
    assert_int_equal(kg_train_run(config, false, false, &e), KG_ECONFLICT);
    kg_str_release(&text);
    kg_config_free(config);
}

/* In an attempt's folder only files with names that kedge gives are removed. */
static void what_stands_beside_an_attempt_stays(void **state)
{
    static const char *const stay[] = {
        ROOT "/rest/sft/train.jsonl", ROOT "/rest/rollouts/notes.txt",
        ROOT "/rest/rollouts/step-1.jsonl", ROOT "/rest/events.out.tfevents.1.host",
        ROOT "/rest/sft/events.out.tfevents.1.host"};
    static const char *const go[] = {
        ROOT "/rest/rollouts/val-000000.jsonl.zst",
        ROOT "/rest/rollouts/skipped-sft-000001.jsonl.zst",
        ROOT "/rest/events.out.tfevents.0000000001.kedge.0000",
        ROOT "/rest/sft/events.out.tfevents.0000000001.kedge.0000",
        ROOT "/rest/watch.log"};
    struct kg_config *config = config_of(ROOT "/rest", failing);
    struct kg_err e = {0};

    (void)state;
    fresh(ROOT "/rest");
    assert_int_not_equal(kg_train_run(config, false, false, &e), KG_OK);
    NEED(kg_file_make_dirs(ROOT "/rest/sft", err));
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
        put_file(stay[i], "mine");
    for (size_t i = 0; i < sizeof go / sizeof *go; i++)
        put_file(go[i], "of the attempt");
    assert_int_not_equal(kg_train_run(config, false, false, &e), KG_ECONFLICT);
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
        assert_true(kg_file_exists(stay[i]));
    for (size_t i = 0; i < sizeof go / sizeof *go; i++)
        assert_false(kg_file_exists(go[i]));
    kg_config_free(config);
}

/* Worked answers of GSM8K are SFT responses under every task that reads them. */
static void worked_answers_are_solutions_under_every_task(void **state)
{
    static const char text[] = "{\"question\": \"1,4:9,2\", \"answer\": \"7#### 7\"}\n";
    static const char *const tasks[] = {"qa-number", "math", "none"};

    (void)state;
    NEED(kg_file_write_atomic(ROOT "/g.jsonl", text, strlen(text), err));
    for (size_t i = 0; i < 3; i++) {
        struct kg_task_opts opts = {0};
        const struct kg_task_row *row;
        struct kg_dataset d;

        NEED(kg_task_find(&row, tasks[i], err));
        NEED(kg_task_load(&d, row, &opts, ROOT "/g.jsonl", err));
        assert_string_equal(d.records[0].solution, "7#### 7");
        kg_dataset_release(&d);
    }
}

/* An error in SFT data names the file, not "one of them". */
static void a_fault_names_its_file(void **state)
{
    static const char text[] = "{\"prompt\": \"1,4:9,2\", \"answer\": \"7\"}\n";
    static const char *const extra[] = {"task.name=qa-number",
                                        "data.train=[" A ", " ROOT "/d.jsonl]",
                                        "data.val=", "sft.steps=1", NULL};
    struct kg_config *config;
    struct kg_err e = {0};
    struct kg_run run;

    (void)state;
    NEED(kg_file_write_atomic(ROOT "/d.jsonl", text, strlen(text), err));
    config = config_of(ROOT "/fault", extra);
    assert_int_equal(kg_run_open(&run, config, &e), KG_EINVAL);
    assert_non_null(strstr(e.message, ROOT "/d.jsonl: record 1: expected a worked "
                                           "solution to learn from (key solution, "));
    kg_config_free(config);
}

/* Gold answers are checked in each file, and the error names the file. */
static void a_gold_answer_of_any_file_stops_the_run(void **state)
{
    static const char good[] = "{\"problem\": \"1\", \"answer\": \"1/2\"}\n";
    static const char bad[] = "{\"problem\": \"1\", \"answer\": \"7\"}\n"
                              "{\"problem\": \"2\", \"answer\": \"\"}\n";
    static const char *const extra[] = {
        "task.name=math", "data.train=[" ROOT "/good.jsonl, " ROOT "/bad.jsonl]",
        "data.val=", "data.weights=[1, 1]", NULL};
    struct opened o;
    struct kg_config *config = config_of(ROOT "/golds", extra);
    struct kg_err e = {0};
    struct kg_run run;

    (void)state;
    NEED(kg_file_write_atomic(ROOT "/good.jsonl", good, strlen(good), err));
    NEED(kg_file_write_atomic(ROOT "/bad.jsonl", bad, strlen(bad), err));
    assert_int_equal(kg_run_open(&run, config, &e), KG_EFORMAT);
    assert_non_null(
        strstr(e.message, ROOT
               "/bad.jsonl: expected gold answers that are graded as right, found 1"));
    kg_config_free(config);
    open_run(&o, ROOT "/golds",
             (const char *const[]){extra[0], extra[1], extra[2], extra[3],
                                   "task.exclude=bad.jsonl:2", NULL});
    assert_int_equal(o.run.in.train.n, 2);
    close_run(&o);
    config = config_of(ROOT "/golds", (const char *const[]){
                                          extra[0], extra[1], extra[2], extra[3],
                                          "task.exclude=bad.jsonl:2,good.jsonl:2", NULL});
    assert_int_equal(kg_run_open(&run, config, &e), KG_EINVAL);
    assert_non_null(strstr(e.message, "found 'good.jsonl:2', which no record has"));
    kg_config_free(config);
}

/* ---- whole runs ---- */

static void train_to(const char *dir, const char *steps, bool resume)
{
    const char *const extra[] = {weighed[0],
                                 weighed[1],
                                 weighed[2],
                                 steps,
                                 "data.val=[" A ", " B "]",
                                 "eval.problems=3",
                                 "eval.samples=2",
                                 "checkpoint.every=1",
                                 NULL};
    struct kg_config *config = config_of(dir, extra);

    NEED(kg_train_run(config, resume, false, err));
    kg_config_free(config);
}

static void assert_same(const char *name)
{
    char path[2][256];
    struct kg_str text[2] = {{0}, {0}};

    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", i ? ROOT "/parts" : ROOT "/whole",
                 name);
        NEED(kg_file_read(&text[i], path[i], 1u << 28, err));
    }
    assert_int_equal(text[0].len, text[1].len);
    assert_memory_equal(text[0].data, text[1].data, text[0].len);
    kg_str_release(&text[0]);
    kg_str_release(&text[1]);
}

static void an_interrupted_run_goes_on_in_the_same_mix(void **state)
{
    (void)state;
    fresh(ROOT "/whole");
    fresh(ROOT "/parts");
    train_to(ROOT "/whole", "train.steps=3", false);
    train_to(ROOT "/parts", "train.steps=1", false);
    train_to(ROOT "/parts", "train.steps=3", true);
    assert_same("checkpoints/latest/state.safetensors");
    assert_same("rollouts/step-000003.jsonl.zst");
}

/* Uses the run of the test before it. */
static void answers_are_told_apart_by_source(void **state)
{
    static const char *const whats[] = {"reward", "accuracy", "length"};
    static const char *const alls[] = {"reward/mean", "reward/accuracy", "length/mean"};
    static const double weight[] = {1, 2, 1};
    static const char *const sources[] = {"a.jsonl", "bee", "c.jsonl"};
    char name[96];

    (void)state;
    for (int w = 0; w < 3; w++) {
        double sum = 0;

        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "%s/source/%s", whats[w], sources[i]);
            sum += weight[i] * last_metric(ROOT "/whole", name) / 4;
            snprintf(name, sizeof name, "answers/source/%s", sources[i]);
            assert_true(last_metric(ROOT "/whole", name) == 4 * weight[i]);
        }
        assert_true(fabs(sum - last_metric(ROOT "/whole", alls[w])) < 1e-12);
    }
}

static void validation_is_told_apart_by_source(void **state)
{
    double of_a, of_b;

    (void)state;
    of_a = last_metric(ROOT "/whole", "val/reward/source/a.jsonl");
    of_b = last_metric(ROOT "/whole", "val/reward/source/bee");
    assert_true(fabs((of_a + of_b) / 2 - last_metric(ROOT "/whole", "val/reward")) <
                1e-12);
    assert_true(last_metric(ROOT "/whole", "val/answers/source/bee") == 6);
    assert_true(last_metric(ROOT "/whole", "val/accuracy_stderr/source/bee") >= 0);
}

static void a_change_of_any_file_is_named(void **state)
{
    static const char line[] = "{\"prompt\": \"1,4:9,2\", \"completion\": \"7\"}\n";
    struct kg_config *config;
    struct kg_err e = {0};

    (void)state;
    NEED(kg_file_write_atomic(C, line, strlen(line), err));
    config = config_of(ROOT "/whole",
                       (const char *const[]){weighed[0], weighed[1], weighed[2],
                                             "data.val=[" A ", " B "]", "eval.problems=3",
                                             "eval.samples=2", "train.steps=4", NULL});
    assert_int_equal(kg_train_run(config, true, false, &e), KG_ECONFLICT);
    assert_non_null(strstr(e.message, "data.train 3: expected "));
    kg_config_free(config);
}

static void the_plan_says_the_shares(void **state)
{
    struct kg_config *config;
    struct kg_str text = {0};

    (void)state;
    write_files(NULL);
    config = config_of(ROOT "/none", weighed);
    NEED(kg_train_plan(&text, config, false, 1, err));
    assert_non_null(strstr(text.data, B ": 5 prompts, 50.0 % of a step, 40.00 epochs\n"));
    kg_str_release(&text);
    kg_config_free(config);
}

/* A recipe's SFT is switched off: its data file, which does not exist here, is not
 * read. */
static void a_warm_start_that_is_not_made_reads_no_file(void **state)
{
    static const char recipe[] = "sft: {steps: 2, data: nowhere.jsonl}\n";
    char *words[32] = {"sft.steps=0", "run.dir=" ROOT "/off"};
    struct opened o;
    size_t n = 2;

    (void)state;
    for (const char *const *a = rl_base; *a; a++)
        words[n++] = (char *)(uintptr_t)*a;
    NEED(kg_file_write_atomic(ROOT "/off.yaml", recipe, sizeof recipe - 1, err));
    NEED(kg_train_config(&o.config, ROOT "/off.yaml", words, n, err));
    fresh(ROOT "/off");
    open_config(&o, o.config);
    close_run(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_one_set_and_each_is_counted),
        cmocka_unit_test(files_of_one_name_are_sources_of_their_own),
        cmocka_unit_test(training_and_evaluation_ask_the_same),
        cmocka_unit_test(a_chat_template_that_cannot_apply_is_refused),
        cmocka_unit_test(every_step_has_the_shares_of_its_files),
        cmocka_unit_test(without_weights_an_epoch_has_each_problem_once),
        cmocka_unit_test(each_file_has_its_template),
        cmocka_unit_test(lists_that_do_not_fit_are_refused),
        cmocka_unit_test(too_many_files_are_refused),
        cmocka_unit_test(supervised_training_needs_its_file_alone),
        cmocka_unit_test(a_run_without_a_step_leaves_its_folder_free),
        cmocka_unit_test(rewards_are_tried_one_by_one),
        cmocka_unit_test(a_folder_of_the_users_own_is_refused_and_kept),
        cmocka_unit_test(what_stands_beside_an_attempt_stays),
        cmocka_unit_test(worked_answers_are_solutions_under_every_task),
        cmocka_unit_test(a_fault_names_its_file),
        cmocka_unit_test(a_gold_answer_of_any_file_stops_the_run),
        cmocka_unit_test(an_interrupted_run_goes_on_in_the_same_mix),
        cmocka_unit_test(answers_are_told_apart_by_source),
        cmocka_unit_test(validation_is_told_apart_by_source),
        cmocka_unit_test(a_change_of_any_file_is_named),
        cmocka_unit_test(the_plan_says_the_shares),
        cmocka_unit_test(a_warm_start_that_is_not_made_reads_no_file),
    };

    return cmocka_run_group_tests(tests, write_files, NULL);
}
