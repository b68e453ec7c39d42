/* Suites from YAML; runs of a suite, whose folder gets the same bytes after any
 * interruption; and validation in training, which is the same evaluation. */
#include "eval/suite_testing.h"

#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- set-up ---- */

static int make_all(void **state)
{
    if (open_digit_model(state))
        return 1;
    put("data.jsonl", suite_data);
    put("suite.yaml", suite_yaml);
    return 0;
}

static kg_status open_text(struct kg_suite *s, const char *yaml)
{
    put("x.yaml", yaml);
    return kg_suite_open(s, in_dir("x.yaml"), &err);
}

/* Opens and resolves a suite and loads its first set, to find any error in it. */
static kg_status first_set(const char *yaml)
{
    struct kg_suite s;
    struct kg_eval_set set = {0};
    kg_status status = open_text(&s, yaml);

    if (status != KG_OK)
        return status;
    status = kg_suite_resolve(&s, &err);
    if (status == KG_OK)
        status = kg_eval_set_init(&set, &s, 0, dir, &err);
    if (status == KG_OK)
        status = kg_eval_set_load(&set, NULL, MODEL, &err);
    kg_eval_set_release(&set);
    kg_suite_release(&s);
    return status;
}

/* ---- suites ---- */

static void a_suite_that_is_wrong_says_where(void **state)
{
    static const struct {
        const char *yaml;
        kg_status status;
        const char *says;
    } rows[] = {
        {"sets:\n  a:\n    dta: x\n", KG_EINVAL, "did you mean 'sets.a.data'?"},
        {"set:\n  a:\n    data: x\n", KG_EINVAL, "at least one set"},
        {"defaults:\n  sampels: 2\nsets:\n  a:\n    data: x\n", KG_EINVAL,
         "did you mean 'defaults.samples'?"},
        {"suite:\n  seed: 1\n", KG_EINVAL, "at least one set"},
        {"", KG_EINVAL, "at least one set"},
        {"sets:\n  a: {data: x\n  \xff", KG_EFORMAT, "UTF-8"},
        {"sets: {a: {data: x}\n", KG_EFORMAT, "YAML"},
        {"sets:\n  a b:\n    data: x\n", KG_EINVAL, "found 'a b'"},
        {"sets:\n  a:\n    samples: 0\n", KG_EINVAL, "from 1 to 4096, found '0'"},
        {"sets: [a]\n", KG_EINVAL, "at least one set"},
        {"stes:\n  b:\n    data: x\nsets:\n  a:\n    data: x\n", KG_EINVAL,
         "unknown section 'stes'"},
        {"sets:\n  a:\n    data: x\n    data: y\n", KG_EFORMAT, "once"},
        {"sets:\n  a:\n    data: none.jsonl\n", KG_ENOTFOUND, "none.jsonl"},
        {"sets:\n  a:\n    data: none.jsonl\n    task: maths\n", KG_EINVAL,
         "set a: task: expected one of arithmetic"},
        {"sets:\n  a:\n    task: math\n", KG_EINVAL, "expected a data file, found none"},
        {"sets:\n  a:\n    data: data.jsonl\n    task: environment\n", KG_EINVAL,
         "set a: env external and task environment: expected both or neither, found none "
         "and environment"},
        {"sets:\n  a:\n    data: data.jsonl\n    grader: mathematica\n", KG_EINVAL,
         "sets.a.grader: expected one of default, ema-pg"},
        {"sets:\n  a:\n    data: data.jsonl\n    samples: 4\n    pass_k: [2, 5]\n",
         KG_EINVAL, "sets.a.pass_k: expected a k from 1 to the number of samples, 4"},
        {"sets:\n  a:\n    data: data.jsonl\n    maj_k: [x]\n", KG_EINVAL,
         "sets.a.maj_k: expected a k"},
        {"sets:\n  a:\n    task: countdown\n    level: easy\n    maj_k: [1]\n",
         KG_EUNSUPPORTED, "maj_k: expected a task that can compare"},
        {"sets:\n  a:\n    data: data.jsonl\n    expect: 30\n", KG_EINVAL,
         "expected 30 records, found 4"},
        {"sets:\n  a:\n    data: data.jsonl\n    only_source: even\n", KG_EINVAL,
         "expected a record of data_source 'even', found none among 4"},
        {"sets:\n  a:\n    data: empty.jsonl\n", KG_EINVAL,
         "expected at least one record, found none"},
        {"sets:\n  a:\n    data: data.jsonl\n    command: cat\n", KG_EINVAL,
         "set a: sets.a.command: has an effect only with task external or rewards with"},
        {"sets:\n  a:\n    data: data.jsonl\n    rewards: [b=math]\n    life: run\n",
         KG_EINVAL, "set a: sets.a.life: has an effect only with"},
        {"sets:\n  a:\n    data: data.jsonl\n    rewards: [b=mth]\n", KG_EINVAL,
         "set a: sets.a.rewards: task: expected one of"},
        {"sets:\n  a:\n    data: data.jsonl\n    rewards: [b=math]\n"
         "    reward_weights: [1, 2]\n",
         KG_EINVAL, "sets.a.reward_weights: expected one weight for each"},
        {"sets:\n  a:\n    data: data.jsonl\n    reward_weights: [1]\n", KG_EINVAL,
         "sets.a.reward_weights: expected one weight for each"},
        {"sets:\n  a:\n    data: data.jsonl\n    user_turn: true\n    chat_template: "
         "none\n",
         KG_EINVAL, "expected a chat template for user turns, found none"},
    };

    (void)state;
    put("empty.jsonl", "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(first_set(rows[i].yaml), rows[i].status);
        says(rows[i].says);
    }
}

static void a_key_without_effect_is_refused(void **state)
{
    static const struct {
        const char *set, *says;
    } rows[] = {
        {"task: math, env: none, grader: default", NULL},
        {"task: digits, bad_golds: drop", "bad_golds: has an effect only with task math"},
        {"task: digits, grader: dapo", "grader: has an effect only with task math"},
        {"task: digits, keep_thinking: true",
         "keep_thinking: has an effect only with task math"},
        {"wording: search-r1", "wording: has an effect only with task search-qa or env"},
        {"metric: f1",
         "metric: has an effect only with task search-qa or rewards with search-qa; rem"},
        {"answer_tags: 2",
         "answer_tags: has an effect only with task search-qa or rewards with search-qa"},
        {"task: arithmetic, level: hard+x", "level: has an effect only without data; "
                                            "remove it (default none), found hard+x"},
        {"data: '', task: arithmetic, level: easy, unique: true",
         "unique: has an effect only with data; remove it (default false), found true"},
        {"data: '', task: arithmetic, level: easy, prompt_key: q",
         "prompt_key: has an effect only with data; remove it (default none), found q"},
        {"turns: 9", "turns: has an effect only with env other than none; remove it "
                     "(default 4), found 9"},
        {"context: 9", "context: has an effect only with env other than none; remove it "
                       "(default 0), found 9"},
        {"env: calculator, search_where: x.db",
         "search_where: has an effect only with env sea"},
        {"env: search, search_where: x.db, search_vectors: int8",
         "search_vectors: has an effect only with search_kind dense or hybrid; remove it "
         "(default "
         "fp16)"},
        {"env: search, search_where: x.db, search_model: m",
         "search_model: has an effect only with search_kind dense or hybrid; remove it "
         "(default "
         "none)"},
        {"env: search, search_where: x.db, search_fusion: score",
         "search_fusion: has an effect only with search_kind hybrid; remove it (default "
         "rank)"},
        {"env: search, search_where: 'http://h:1/r', search_kind: hybrid, search_model: "
         "m, search_weight: 0",
         "search_weight: has an effect only with search_where other than http://*; "
         "remove it "
         "(default 0.5)"},
        {"search_tries: 1", "search_tries: has an effect only with env search; remove it "
                            "(default 4), found 1"},
    };
    char yaml[200];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(yaml, sizeof yaml, "defaults: {data: data.jsonl}\nsets: {a: {%s}}\n",
                 rows[i].set);
        assert_int_equal(first_set(yaml), rows[i].says ? KG_EINVAL : KG_OK);
        if (rows[i].says)
            says(rows[i].says);
    }
}

static void a_set_has_what_defaults_say_unless_it_says(void **state)
{
    struct kg_suite s;
    struct kg_eval_set *sets;

    (void)state;
    ok(kg_suite_open(&s, in_dir("suite.yaml"), &err));
    ok(kg_config_override(s.config, "defaults.top_p=0.9", "test", &err));
    ok(kg_suite_set_all(&s, "top_k", "7", "test", &err));
    ok(kg_suite_resolve(&s, &err));
    ok(kg_suite_sets(&sets, &s, dir, &err));
    assert_int_equal(s.n, 3);
    assert_string_equal(sets[0].name, "all");
    assert_string_equal(sets[2].name, "two");
    assert_float_equal(sets[0].sampling.temperature, 1, 0);
    assert_float_equal(sets[1].sampling.temperature, 0.7f, 0);
    assert_float_equal(sets[1].sampling.top_p, 0.9f, 0);
    assert_int_equal(sets[2].sampling.top_k, 7);
    assert_int_equal(sets[0].samples, 4);
    assert_int_equal(sets[2].samples, 5);
    assert_int_equal(sets[0].ks.n_maj, 2);
    assert_int_equal(sets[0].ks.maj[1], 3);
    assert_int_equal(sets[1].ks.n_maj, 0);
    assert_string_equal(sets[2].sampling.stops[0], "3");
    kg_suite_sets_free(sets, s.n);
    kg_suite_release(&s);
}

static void missing_files_are_listed_together(void **state)
{
    struct kg_suite s;
    struct kg_eval_set *sets;

    (void)state;
    ok(open_text(&s,
                 "sets:\n  a:\n    data: one.jsonl\n    expect: 30\n    source: there\n"
                 "    licence: MIT\n  b:\n    data: data.jsonl\n  c:\n    data: "
                 "/two.jsonl\n"));
    ok(kg_suite_resolve(&s, &err));
    ok(kg_suite_sets(&sets, &s, dir, &err));
    assert_int_equal(kg_suite_check_data(sets, s.n, &err), KG_ENOTFOUND);
    says("found 2 files missing: a: ");
    says("one.jsonl, 30 records, from there (MIT); c: /two.jsonl");
    kg_suite_sets_free(sets, s.n);
    kg_suite_release(&s);
}

/* With `unique`, `expect` counts distinct problems. */
static void a_repeated_problem_can_be_taken_once(void **state)
{
    static const char again[] = "{\"question\":\"1\",\"answer\":\"2\"}\n"
                                "{\"question\":\"3\",\"answer\":\"4\"}\n"
                                "{\"question\":\"1\",\"answer\":\"2\"}\n";

    (void)state;
    put("again.jsonl", again);
    ok(first_set("sets:\n  a:\n    data: again.jsonl\n    task: qa-number\n    unique: "
                 "true\n    expect: 2\n"));
    assert_int_equal(first_set("sets:\n  a:\n    data: again.jsonl\n    task: qa-number\n"
                               "    expect: 2\n"),
                     KG_EINVAL);
    says("expected 2 records, found 3");
}

/* The set's template is applied first; its result is one user turn of the chat. */
static void a_problem_can_be_a_user_turn(void **state)
{
    struct kg_suite s;
    struct kg_eval_set set;

    (void)state;
    put("chat.jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
                      "{% if add_generation_prompt %}<assistant>{% endif %}");
    put("verl.jsonl", "{\"prompt\":[{\"role\":\"user\",\"content\":\"a \\\"b\\\"\"}],"
                      "\"answer\":\"1\"}\n");
    ok(open_text(&s,
                 "sets:\n  a:\n    data: verl.jsonl\n    user_turn: true\n    template: "
                 "'Q: {prompt}!'\n"));
    ok(kg_suite_set_all(&s, "chat_template", in_dir("chat.jinja"), "test", &err));
    ok(kg_suite_resolve(&s, &err));
    ok(kg_eval_set_init(&set, &s, 0, dir, &err));
    ok(kg_eval_set_load(&set, NULL, NULL, &err));
    assert_string_equal(set.data.records[0].prompt, "<user>Q: a \"b\"!<assistant>");
    kg_eval_set_release(&set);
    kg_suite_release(&s);
}

/* ---- runs ---- */

static kg_status two_sets(const char *key, const char *exclude)
{
    static const char yaml[] =
        "sets:\n  a: {data: data.jsonl, task: math, max_tokens: 2}\n"
        "  b: {data: gold.jsonl, task: math, max_tokens: 2}\n";
    struct outcome o;
    char assignment[64];
    kg_status status;

    put("gold.jsonl", "{\"id\":\"bad\",\"problem\":\"1\",\"answer\":\"\"}\n"
                      "{\"problem\":\"2\",\"answer\":\"4\"}\n");
    put("suite.yaml", yaml);
    snprintf(assignment, sizeof assignment, "%s=%s", key, exclude);
    status = run(&o, NULL, assignment, source(-1, 8));
    release(&o);
    put("suite.yaml", suite_yaml);
    return status;
}

/* The advice keeps the names that are excluded already and uses the key that works for
 * the set. A name must be that of a record of some set that the key applies to. */
static void what_is_left_out_by_name_is_there(void **state)
{
    (void)state;
    assert_int_equal(two_sets("sets.b.exclude", "2"), KG_EFORMAT);
    says("set b: ");
    says("to drop them: sets.b.exclude=\"2,bad\"");
    ok(two_sets("sets.b.exclude", "bad"));
    assert_int_equal(two_sets("sets.b.exclude", "bad,nope"), KG_EINVAL);
    says("sets.b.exclude: expected ids (or lines) of records of task math, found 'nope', "
         "which no record has");
    ok(two_sets("defaults.exclude", "bad,p")); /* each is a record of another set */
    assert_int_equal(two_sets("defaults.exclude", "bad,nope"), KG_EINVAL);
    says("defaults.exclude: expected ids (or lines) of records of task math");
}

/* Following the advice of the message literally must make the run work. */
static void the_advice_about_gold_answers_can_be_followed(void **state)
{
    static const struct {
        const char *key, *list, *advised;
    } cases[] = {{"defaults.exclude", "p", "defaults.exclude"},
                 {"defaults.exclude", "", "sets.b.exclude"},
                 {"sets.b.exclude", "", "sets.b.exclude"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char key[64], list[64];

        assert_int_equal(two_sets(cases[i].key, cases[i].list), KG_EFORMAT);
        const char *advice = strstr(err.message, "to drop them: ");
        assert_non_null(advice);
        assert_int_equal(sscanf(advice, "to drop them: %63[^=]=\"%63[^\"]\"", key, list),
                         2);
        assert_string_equal(key, cases[i].advised);
        ok(two_sets(key, list));
    }
}

/* A name in defaults.exclude may belong to a set that is not run, so it gives only a
 * warning. If all sets that the list applies to are run, it is an error. */
static void a_list_may_name_records_of_a_set_that_is_left_out(void **state)
{
    struct kg_str said = {0};
    FILE *f = fopen(in_dir("said"), "w");

    (void)state;
    assert_non_null(f);
    kg_log_set_stream(f, false);
    put("suite.yaml", "suite: {sets: [a]}\ndefaults: {exclude: 'p,bad'}\n"
                      "sets:\n  a: {data: data.jsonl, task: math, max_tokens: 2}\n"
                      "  b: {data: absent.jsonl, task: math}\n");
    struct outcome o;
    ok(run(&o, NULL, NULL, source(-1, 8)));
    release(&o);
    assert_int_equal(run(&o, NULL, "sets.b.exclude=bad", source(-1, 8)), KG_EINVAL);
    says("defaults.exclude: ");
    says("found 'bad'");
    release(&o);
    kg_log_set_stream(NULL, false);
    fclose(f);
    ok(kg_file_read(&said, in_dir("said"), 1 << 16, &err));
    assert_non_null(strstr(said.data, "defaults.exclude: expected ids"));
    assert_non_null(
        strstr(said.data, "found 'bad', which no record has of those that were"));
    kg_str_release(&said);
    put("suite.yaml", suite_yaml);
}

static void a_suite_is_run_and_counted(void **state)
{
    struct outcome o;
    const struct kg_eval_set_report *all;

    (void)state;
    ok(run(&o, NULL, NULL, source(-1, 8)));
    all = &o.report.sets[0];
    assert_int_equal(o.report.n_sets, 3);
    assert_int_equal(all->score.problems, 4);
    assert_int_equal(o.report.sets[1].score.problems, 2);
    assert_int_equal(o.report.sets[2].score.samples, 5);
    assert_float_equal(metric(&all->score, "pass@1"), metric(&all->score, "accuracy"),
                       1e-12);
    assert_float_equal(metric(&all->score, "maj@1"), metric(&all->score, "accuracy"),
                       1e-12);
    assert_true(metric(&all->score, "pass@4") >= metric(&all->score, "pass@2"));
    assert_int_equal(o.report.n_groups, 1);
    assert_int_equal(o.report.groups[0].sets, 2);
    assert_float_equal(
        metric(&o.report.groups[0].mean, "tokens"),
        (metric(&all->score, "tokens") + metric(&o.report.sets[1].score, "tokens")) / 2,
        1e-12);
    assert_null(kg_eval_metric_find(&o.report.mean, "maj@1"));
    release(&o);
}

static void sets_can_be_left_out(void **state)
{
    struct kg_str table = {0}, json = {0};
    struct outcome all, o;

    (void)state;
    ok(run(&all, NULL, NULL, source(-1, 8)));
    ok(run(&o, "part", "suite.sets=[two, odd]", source(-1, 8)));
    assert_int_equal(o.report.n_sets, 2);
    assert_string_equal(o.sets[0].name, "odd");
    assert_float_equal(metric(&o.report.mean, "tokens"),
                       (metric(&all.report.sets[1].score, "tokens") +
                        metric(&all.report.sets[2].score, "tokens")) /
                           2,
                       1e-12);
    ok(kg_eval_report_table(&table, &o.report, &o.suite, o.sets, &err));
    assert_non_null(strstr(table.data, "\nboth (1 of 2 sets) "));
    assert_non_null(strstr(table.data, "\nmean (2 of 3 sets) "));
    assert_non_null(strstr(table.data, "\nleft out: all\n"));
    ok(kg_eval_report_json(&json, &o.report, &o.suite, o.sets, &err));
    assert_non_null(
        strstr(json.data, "\"left_out\": [\"all\"],\n \"mean\": {\"sets\": 2"));
    assert_non_null(strstr(json.data, "\"metrics\": {\""));
    kg_str_release(&table);
    kg_str_release(&json);
    release(&o);
    release(&all);
    assert_int_equal(run(&o, "part", NULL, source(-1, 8)), KG_ECONFLICT);
    says("expected the sets that it started with (odd, two; left out: all), found all, "
         "odd, two");
    release(&o);
    ok(run(&o, "part", "suite.sets=[odd, two]", source(0, 8)));
    release(&o);
}

/* The error that lists the sets, with each of its allocations failing in turn. */
static void a_name_of_no_set_is_said_without_memory_too(void **state)
{
    uint64_t held = kg_mem_current_bytes();
    kg_status status = KG_ENOMEM;
    struct kg_suite s;

    (void)state;
    ok(kg_suite_open(&s, in_dir("suite.yaml"), &err));
    for (uint64_t n = 1; status == KG_ENOMEM; n++) {
        uint64_t before = kg_mem_current_bytes();

        kg_mem_fail_at(n);
        status = kg_suite_pick(&s, "tow", false, "--sets", &err);
        kg_mem_fail_at(0);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
    assert_int_equal(status, KG_EINVAL);
    kg_suite_release(&s);
    assert_int_equal(kg_mem_current_bytes(), held);
}

static void sets_are_picked_by_their_names(void **state)
{
    uint64_t held = kg_mem_current_bytes();
    struct kg_suite s;

    (void)state;
    ok(kg_suite_open(&s, in_dir("suite.yaml"), &err));
    assert_int_equal(kg_suite_pick(&s, "odd,tow", false, "--sets", &err), KG_EINVAL);
    says("--sets: expected one of all, odd, two; found 'tow'");
    assert_int_equal(kg_suite_pick(&s, "odd,all, two", true, "--without", &err),
                     KG_EINVAL);
    says("--without: expected a set to evaluate, found none left");
    ok(kg_suite_pick(&s, "odd", true, "--without", &err));
    assert_string_equal(kg_config_text(s.config, "suite.sets"), "all\ntwo");
    ok(kg_suite_pick(&s, "two,odd", true, "--without", &err)); /* odd is out already */
    assert_string_equal(kg_config_text(s.config, "suite.sets"), "all");
    ok(kg_suite_pick(&s, "two, all", false, "--sets", &err));
    ok(kg_suite_resolve(&s, &err));
    assert_int_equal(s.n, 2);
    assert_string_equal(s.names[0], "all");
    assert_string_equal(s.names[1], "two");
    assert_string_equal(s.names[2], "odd");
    kg_suite_release(&s);
    assert_int_equal(kg_mem_current_bytes(), held);
    assert_int_equal(first_set("suite: {sets: [b]}\nsets:\n  a: {data: data.jsonl}\n"),
                     KG_EINVAL);
    says("suite.sets: expected one of a; found 'b'");
}

/* The last progress line of every set is logged, even if others were left out. */
static void the_last_state_of_every_set_is_said(void **state)
{
    static const char *const ends[] = {"all: 16 of 16 samples, ", "odd: 8 of 8 samples, ",
                                       "two: 10 of 10 samples, "};
    struct kg_str said = {0};
    struct outcome o;
    FILE *f = fopen(in_dir("said"), "w");

    (void)state;
    assert_non_null(f);
    kg_log_set_stream(f, false);
    ok(run(&o, NULL, NULL, source(-1, 8)));
    kg_log_set_stream(NULL, false);
    fclose(f);
    release(&o);
    ok(kg_file_read(&said, in_dir("said"), 1 << 16, &err));
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (!strstr(said.data, ends[i]))
            fail_msg("expected '%s' in '%s'", ends[i], said.data);
    kg_str_release(&said);
}

/* A sample is the same whatever else is sampled and however many run together. */
static void a_sample_depends_on_its_seed_alone(void **state)
{
    struct outcome o, fewer, other;
    const char *line, *last;

    (void)state;
    ok(run(&o, NULL, NULL, source(-1, 8)));
    ok(run(&fewer, NULL, "sets.all.problems=2", source(-1, 3)));
    ok(run(&other, NULL, "suite.seed=6", source(-1, 8)));
    line = strstr(o.lines.data, "{\"set\": \"odd\"");
    last = strstr(o.lines.data, "{\"set\": \"all\", \"problem\": 3");
    assert_non_null(line);
    assert_non_null(last);
    assert_memory_equal(o.lines.data, fewer.lines.data, (size_t)(last - o.lines.data));
    assert_string_equal(line, strstr(fewer.lines.data, "{\"set\": \"odd\""));
    assert_string_not_equal(o.lines.data, other.lines.data);
    release(&o);
    release(&fewer);
    release(&other);
}

/* Validation in training logs what a suite finds for the set "val". */
static void validation_of_training_is_the_same_evaluation(void **state)
{
    struct kg_suite s;
    struct kg_eval_set set;
    struct kg_prompts prompts;
    struct kg_prompts_opts po = {.max_tokens = 100};
    struct kg_eval_opts opts;
    struct kg_eval_result r, mine;
    struct kg_eval_report report;
    struct breaking b = source(-1, 3);
    struct kg_eval_run as = {.suite = &s, .sets = &set, .source = &b.source};
    uint64_t held;

    (void)state;
    b.local.score = true;
    ok(open_text(&s, "suite:\n  seed: 11\nsets:\n  val:\n    data: data.jsonl\n    task: "
                     "qa-number\n    samples: 3\n    max_tokens: 9\n"));
    ok(kg_suite_resolve(&s, &err));
    ok(kg_eval_set_init(&set, &s, 0, dir, &err));
    ok(kg_eval_suite(&report, &as, &err));
    kg_eval_result_fill(&mine, &report.sets[0].score, report.sets[0].answers,
                        report.sets[0].n);
    ok(kg_prompts_init(&prompts, &set.data, tok, &po, &err));
    opts = kg_eval_set_opts(&set);
    opts.set = NULL;
    opts.max_batch = 64;
    held = kg_mem_current_bytes();
    ok(kg_eval_run(&r, model, tok, &prompts, &opts, NULL, NULL, &err));
    assert_int_equal(kg_mem_current_bytes(), held);
    r.seconds = mine.seconds = 0;
    assert_memory_equal(&r, &mine, sizeof r);
    assert_true(r.entropy > 0 && r.response_tokens > 0);
    kg_prompts_release(&prompts);
    kg_eval_report_release(&report);
    kg_eval_set_release(&set);
    kg_suite_release(&s);
}

/* ---- folders ---- */

static void a_folder_keeps_all_and_is_read_again(void **state)
{
    struct outcome o, again;
    struct kg_str x = {0}, y = {0};

    (void)state;
    ok(run(&o, "first", NULL, source(-1, 8)));
    ok(kg_eval_report_json(&x, &o.report, &o.suite, o.sets, &err));
    holds("first/results.json", x.data);
    ok(run(&again, "first", NULL, source(0, 8))); /* nothing is left to sample */
    ok(kg_eval_report_json(&y, &again.report, &again.suite, again.sets, &err));
    assert_string_equal(x.data, y.data);
    kg_str_release(&x);
    kg_str_release(&y);
    release(&o);
    release(&again);
}

/* Interrupted at several points, with another batch size each time. */
static void an_interrupted_run_ends_with_the_same_bytes(void **state)
{
    (void)state;
    whole("whole");
    for (int left = 0; left < 30; left += 11) {
        struct outcome o;

        assert_int_equal(run(&o, "parts", NULL, source(left, 2 + left)), KG_EINTERRUPTED);
        says("stopped by the test");
        release(&o);
        assert_int_equal(run(&o, "parts", NULL, source(3, 5)), KG_EINTERRUPTED);
        release(&o);
        whole("parts");
        same_folder("whole", "parts");
        ok(kg_file_remove_tree(in_dir("parts"), &err));
    }
}

static void a_killed_run_ends_with_the_same_bytes(void **state)
{
    struct kg_str journal = {0};
    pid_t child;
    int status;

    (void)state;
    whole("whole");
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct breaking b = source(13, 4);
        struct outcome o;

        b.dies = true;
        _exit(run(&o, "killed", NULL, b));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ok(kg_file_read(&journal, in_dir("killed/journal.jsonl"), 1 << 20, &err));
    ok(kg_str_puts(&journal, "{\"set\": \"all\", \"prob", &err)); /* and a torn line */
    put("killed/journal.jsonl", journal.data);
    kg_str_release(&journal);
    whole("killed");
    same_folder("whole", "killed");
}

/* Killed while the last files are written: existing ones are written again. */
static void an_end_that_was_cut_short_is_done_again(void **state)
{
    struct kg_str results = {0};
    struct outcome o;

    (void)state;
    whole("whole");
    assert_int_equal(run(&o, "end", NULL, source(30, 8)), KG_EINTERRUPTED);
    release(&o);
    put("end/samples.jsonl.zst", "half");
    put("end/problems.jsonl", "half");
    put("end/results.json.tmp-77-0", "ha");
    ok(kg_file_make_dirs(in_dir("end/mine.tmp-77"), &err)); /* no writer's: it stays */
    put("end/mine.tmp-77/notes", "ha");
    put("end/mine.tmp-old", "ha");
    whole("end");
    assert_true(kg_file_exists(in_dir("end/mine.tmp-77/notes")));
    assert_true(kg_file_exists(in_dir("end/mine.tmp-old")));
    ok(kg_file_remove_tree(in_dir("end/mine.tmp-77"), &err));
    ok(kg_file_remove_tree(in_dir("end/mine.tmp-old"), &err));
    same_folder("whole", "end");
    put("end/journal.jsonl", "left behind");
    whole("end");
    same_folder("whole", "end");
    kg_str_release(&results);
}

static void a_folder_of_another_evaluation_is_refused(void **state)
{
    struct outcome o;

    (void)state;
    whole("mine");
    assert_int_equal(run(&o, "mine", "sets.odd.temperature=0.8", source(-1, 8)),
                     KG_ECONFLICT);
    says("found 1 change: sets.odd.temperature: 0.7 -> 0.8; choose another --out");
    release(&o);
    assert_int_equal(run(&o, "mine", "suite.seed=6", source(-1, 8)), KG_ECONFLICT);
    says("suite.seed: 5 -> 6");
    release(&o);
    put("data.jsonl", "{\"question\":\"1\",\"answer\":\"3\",\"data_source\":\"odd\"}\n");
    assert_int_equal(run(&o, "mine", NULL, source(-1, 8)), KG_ECONFLICT);
    says("sets.all.data: expected ");
    release(&o);
    put("data.jsonl", suite_data);
    put("suite.yaml", "sets:\n  new:\n    data: data.jsonl\n    task: qa-number\n");
    assert_int_equal(run(&o, "mine", NULL, source(-1, 8)), KG_ECONFLICT);
    says("expected the sets that it started with (all, odd, two), found new");
    release(&o);
    put("suite.yaml", suite_yaml);
    ok(kg_file_make_dirs(in_dir("theirs"), &err));
    put("theirs/thesis.tex", "");
    assert_int_equal(run(&o, "theirs", NULL, source(-1, 8)), KG_ECONFLICT);
    says("found thesis.tex but no config.yaml");
    release(&o);
    assert_false(kg_file_exists(in_dir("theirs/lock")));
}

static void another_reference_is_another_evaluation(void **state)
{
    struct breaking b = source(-1, 8);
    struct outcome o;

    (void)state;
    whole("alone");
    b.local.reference = model;
    b.local.reference_dir = MODEL;
    b.local.score = true;
    assert_int_equal(run(&o, "alone", NULL, b), KG_ECONFLICT);
    says("reference/");
    release(&o);
}

/* Lines without a completion or a grade, as after an edit by hand. */
static void a_finished_folder_has_every_answer_and_grade(void **state)
{
    struct outcome o;

    (void)state;
    whole("short");
    ok(run(&o, NULL, NULL, source(-1, 8)));
    *(strchr(o.lines.data, '\n') + 1) = '\0';
    put("short/samples.jsonl.zst", o.lines.data);
    release(&o);
    assert_int_equal(run(&o, "short", NULL, source(-1, 8)), KG_ECONFLICT);
    says("expected 34 samples in a finished evaluation, found 1");
    release(&o);
    put("short/samples.jsonl.zst",
        "{\"set\":\"all\",\"problem\":1,\"sample\":0,\"tokens\":1,\"correct\":true}\n");
    assert_int_equal(run(&o, "short", NULL, source(-1, 8)), KG_EFORMAT);
    says("key 'graded'");
    release(&o);
}

/* Completions with bytes that are not UTF-8. */
static kg_status bad_bytes(struct kg_eval_source *self, struct kg_eval_set *set,
                           const bool *there, kg_eval_take_fn take, void *user,
                           struct kg_err *e)
{
    static const char *const texts[] = {"\\boxed{\xFE}", "\\boxed{\xFF}"};

    (void)self;
    for (size_t i = 0; i < set->data.n * 2; i++) {
        const struct kg_eval_fresh fresh = {.problem = i / 2,
                                            .sample = (int32_t)(i % 2),
                                            .text = texts[i % 2],
                                            .n = strlen(texts[i % 2]),
                                            .finish = KG_FINISH_STOP};

        if (!there[i])
            KG_TRY(take(user, &fresh, e));
    }
    return KG_OK;
}

static void what_is_voted_for_is_what_is_read_back(void **state)
{
    struct breaking b = source(-1, 8);

    (void)state;
    b.source.answer = bad_bytes;
    put("suite.yaml", "sets: {a: {data: data.jsonl, task: math, samples: 2}}\n");
    for (int i = 0; i < 2; i++) {
        struct outcome o;

        ok(run(&o, "bytes", NULL, b));
        for (size_t j = 0; j < o.report.sets[0].n; j++)
            assert_string_equal(o.report.sets[0].answers[j].extracted, "\xEF\xBF\xBD");
        release(&o);
    }
    put("suite.yaml", suite_yaml);
}

static void the_engine_has_no_more_positions_than_the_model(void **state)
{
    const struct kg_prompts prompts = {.longest = 5};
    struct kg_eval_opts opts = {.max_batch = 1};

    (void)state;
    opts.sampling.max_tokens = 3;
    assert_int_equal(kg_eval_rollout_opts(model, &prompts, &opts).max_len, 8);
    opts.sampling.max_tokens = 10000000;
    assert_int_equal(kg_eval_rollout_opts(model, &prompts, &opts).max_len,
                     model->config.max_positions);
}

/* Completions cut off before max_tokens, at the model's last position, and others. */
static kg_status at_the_end(struct kg_eval_source *self, struct kg_eval_set *set,
                            const bool *there, kg_eval_take_fn take, void *user,
                            struct kg_err *e)
{
    static const struct {
        int64_t tokens;
        enum kg_finish finish;
    } answers[] = {{9, KG_FINISH_LENGTH}, {10, KG_FINISH_LENGTH}, {9, KG_FINISH_STOP},
                   {3, KG_FINISH_LENGTH}, {3, KG_FINISH_STOP},    {10, KG_FINISH_LENGTH}};

    (void)self;
    for (size_t i = 0; i < set->data.n * 2; i++) {
        const struct kg_eval_fresh fresh = {.problem = i / 2,
                                            .sample = (int32_t)(i % 2),
                                            .text = "3",
                                            .n = 1,
                                            .tokens = answers[i].tokens,
                                            .finish = answers[i].finish};

        if (!there[i])
            KG_TRY(take(user, &fresh, e));
    }
    return KG_OK;
}

static void answers_that_the_positions_end_are_said(void **state)
{
    struct breaking b = source(-1, 8);
    struct kg_str table = {0}, json = {0};
    struct outcome o;

    (void)state;
    b.source.answer = at_the_end;
    put("suite.yaml",
        "sets: {a: {data: data.jsonl, task: qa-number, problems: 3, samples: "
        "2, max_tokens: 10}}\n");
    ok(run(&o, NULL, NULL, b));
    assert_int_equal(o.report.sets[0].cut_short, 2);
    ok(kg_eval_report_table(&table, &o.report, &o.suite, o.sets, &err));
    assert_non_null(
        strstr(table.data,
               "\na: 2 of 3 problems have a completion that ended before max_tokens 10"));
    ok(kg_eval_report_json(&json, &o.report, &o.suite, o.sets, &err));
    assert_non_null(strstr(json.data, "\"cut_short\": 2"));
    kg_str_release(&table);
    kg_str_release(&json);
    release(&o);
    put("suite.yaml", suite_yaml);
}

/* A key given for all sets needs one set on which it has an effect. */
static void a_command_for_all_sets_is_run_by_one(void **state)
{
    static const char two[] = "sets:\n  a: {data: data.jsonl, task: %s}\n"
                              "  b: {data: data.jsonl, task: qa-number}\n"
                              "defaults: {command: cat, timeout_ms: 50}\n";
    char text[sizeof two + 20];
    struct outcome o = {0};

    (void)state;
    snprintf(text, sizeof text, two, "external");
    put("suite.yaml", text);
    open_outcome(&o, "suite.yaml", NULL);
    release(&o);
    snprintf(text, sizeof text, two, "math");
    put("suite.yaml", text);
    ok(kg_suite_open(&o.suite, in_dir("suite.yaml"), &err));
    ok(kg_suite_resolve(&o.suite, &err));
    assert_int_equal(kg_suite_sets(&o.sets, &o.suite, dir, &err), KG_EINVAL);
    says("command: has an effect only with");
    assert_null(o.sets);
    release(&o);
    put("suite.yaml", suite_yaml);
}

static kg_status with_all(const char *yaml, const char *key, const char *value)
{
    struct outcome o = {0};
    kg_status status;

    put("given.yaml", yaml);
    ok(kg_suite_open(&o.suite, in_dir("given.yaml"), &err));
    ok(kg_suite_set_all(&o.suite, key, value, "--given", &err));
    ok(kg_suite_resolve(&o.suite, &err));
    status = kg_suite_sets(&o.sets, &o.suite, dir, &err);
    if (status == KG_OK)
        ok(kg_eval_set_load(&o.sets[0], NULL, MODEL, &err));
    release(&o);
    return status;
}

static void what_all_sets_are_given_acts_in_one(void **state)
{
    static const struct {
        const char *b, *key, *value; /* b: a second set, after one of qa-number */
    } rows[] = {
        {"{data: data.jsonl, task: math}", "grader", "dapo"},
        {"{data: data.jsonl, rewards: [x=math], task: digits}", "keep_thinking", "true"},
        {"{data: data.jsonl, task: search-qa}", "metric", "f1"},
        {"{data: data.jsonl, env: calculator}", "turns", "9"},
        {"{task: arithmetic, level: easy}", "level", "hard"},
    };
    static const char yaml[] = "sets:\n  a: {data: data.jsonl, task: qa-number}\n";
    char text[sizeof yaml + 100];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(with_all(yaml, rows[i].key, rows[i].value), KG_EINVAL);
        says("--given: has an effect only with");
        snprintf(text, sizeof text, "%s  b: %s\n", yaml, rows[i].b);
        ok(with_all(text, rows[i].key, rows[i].value));
    }
    ok(with_all(yaml, "turns", "4")); /* as if it was not given */
}

/* Without an env, no key of a retriever has an effect. */
static void keys_of_a_retriever_need_one(void **state)
{
    static const struct {
        const char *key, *value;
    } rows[] = {
        {"search_where", "x.db"},   {"search_kind", "dense"},
        {"search_model", "m"},      {"search_passages", "7"},
        {"search_vectors", "int8"}, {"search_fusion", "score"},
        {"search_device", "model"}, {"search_weight", "0.25"},
        {"search_topk", "9"},       {"search_when_down", "observe"},
        {"search_timeout_ms", "9"}, {"search_tries", "9"},
    };
    static const char alone[] = "sets:\n  a: {data: data.jsonl, task: search-qa}\n",
                      server[] = "sets:\n  a: {data: data.jsonl, task: search-qa, env: "
                                 "search, search_where: 'http://h/retrieve'}\n";
    size_t n = 0;

    (void)state;
    n = sizeof rows / sizeof *rows;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(with_all(alone, rows[i].key, rows[i].value), KG_EINVAL);
        says("--given: has an effect only with env search; remove it (default ");
    }
    ok(with_all(server, "search_passages", "7"));
}

static void a_retriever_is_as_the_suite_says(void **state)
{
    struct outcome o = {0};
    const struct kg_env_opts *e;

    (void)state;
    put("given.yaml", "defaults: {task: search-qa, data: data.jsonl, env: search}\n"
                      "sets:\n  a: {search_where: 'http://h/retrieve', "
                      "search_passages: 21015324, search_topk: 5, search_tries: 2}\n");
    ok(kg_suite_open(&o.suite, in_dir("given.yaml"), &err));
    ok(kg_suite_resolve(&o.suite, &err));
    ok(kg_suite_sets(&o.sets, &o.suite, dir, &err));
    e = &o.sets[0].episode.env_opts;
    assert_string_equal(e->retriever, "http://h/retrieve");
    assert_true(e->how.passages == 21015324 && e->topk == 5 && e->tries == 2);
    assert_true(e->timeout_ms == 30000 && e->stop_when_down && e->how.weight == 0.5);
    release(&o);
}

/* A failed request gives a status and no leak; continued, the run has the same bytes. */
static void without(uint64_t allocation, uint64_t request)
{
    struct outcome o = {0};
    struct breaking b = source(-1, 8);
    struct kg_eval_run r = {
        .suite = &o.suite, .source = &b.source, .out = in_dir("poor")};
    uint64_t held = kg_mem_current_bytes();
    kg_status status;

    ok(kg_suite_open(&o.suite, in_dir("suite.yaml"), &err));
    ok(kg_suite_resolve(&o.suite, &err));
    ok(kg_suite_sets(&o.sets, &o.suite, dir, &err));
    r.sets = o.sets;
    kg_mem_fail_at(allocation);
    kg_file_fail_at(request, ENOSPC);
    status = kg_eval_suite(&o.report, &r, &err);
    kg_mem_fail_at(0);
    kg_file_fail_at(0, 0);
    if (status != KG_OK && status != (allocation ? KG_ENOMEM : KG_ENOSPACE) &&
        status != KG_EIO)
        fail_msg("%s", err.message);
    release(&o);
    assert_int_equal(kg_mem_current_bytes(), held);
    whole("poor");
    same_folder("whole", "poor");
    ok(kg_file_remove_tree(in_dir("poor"), &err));
}

static void without_memory_or_disk_it_fails_and_can_go_on(void **state)
{
    (void)state;
    whole("whole");
    for (uint64_t n = 30; n < 6000; n = n * 6 / 5)
        without(n, 0);
    for (uint64_t n = 1; n < 150; n += 7)
        without(0, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_suite_that_is_wrong_says_where),
        cmocka_unit_test(a_key_without_effect_is_refused),
        cmocka_unit_test(a_set_has_what_defaults_say_unless_it_says),
        cmocka_unit_test(missing_files_are_listed_together),
        cmocka_unit_test(a_repeated_problem_can_be_taken_once),
        cmocka_unit_test(a_problem_can_be_a_user_turn),
        cmocka_unit_test(what_is_left_out_by_name_is_there),
        cmocka_unit_test(the_advice_about_gold_answers_can_be_followed),
        cmocka_unit_test(a_list_may_name_records_of_a_set_that_is_left_out),
        cmocka_unit_test(a_suite_is_run_and_counted),
        cmocka_unit_test(the_last_state_of_every_set_is_said),
        cmocka_unit_test(sets_can_be_left_out),
        cmocka_unit_test(sets_are_picked_by_their_names),
        cmocka_unit_test(a_name_of_no_set_is_said_without_memory_too),
        cmocka_unit_test(a_sample_depends_on_its_seed_alone),
        cmocka_unit_test(validation_of_training_is_the_same_evaluation),
        cmocka_unit_test(a_folder_keeps_all_and_is_read_again),
        cmocka_unit_test(an_interrupted_run_ends_with_the_same_bytes),
        cmocka_unit_test(a_killed_run_ends_with_the_same_bytes),
        cmocka_unit_test(an_end_that_was_cut_short_is_done_again),
        cmocka_unit_test(a_folder_of_another_evaluation_is_refused),
        cmocka_unit_test(another_reference_is_another_evaluation),
        cmocka_unit_test(a_finished_folder_has_every_answer_and_grade),
        cmocka_unit_test(what_is_voted_for_is_what_is_read_back),
        cmocka_unit_test(answers_that_the_positions_end_are_said),
        cmocka_unit_test(the_engine_has_no_more_positions_than_the_model),
        cmocka_unit_test(a_command_for_all_sets_is_run_by_one),
        cmocka_unit_test(what_all_sets_are_given_acts_in_one),
        cmocka_unit_test(keys_of_a_retriever_need_one),
        cmocka_unit_test(a_retriever_is_as_the_suite_says),
        cmocka_unit_test(without_memory_or_disk_it_fails_and_can_go_on),
    };

    return cmocka_run_group_tests_name("suites", tests, make_all, close_digit_model);
}
