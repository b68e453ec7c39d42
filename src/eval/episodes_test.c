/* Episodes in an evaluation: the local source runs them, their metrics are counted, lines
 * say who wrote what, and the other sequences of the batch change nothing. */
#include "eval/figures_testing.h"

static const char DATA[] = "{\"question\":\"1,2:\",\"answer\":\"3\"}\n"
                           "{\"question\":\"4,5:\",\"answer\":\"6\"}\n"
                           "{\"question\":\"7,8:\",\"answer\":\"9\"}\n";
static const char SUITE[] = "suite: {name: t}\n"
                            "defaults: {task: qa-number, data: d.jsonl, max_tokens: 5,\n"
                            "  env: calculator, turns: 2, context: 60}\n"
                            "sets:\n"
                            "  a: {group: g, samples: 2}\n"
                            "  b: {group: g, problems: 2}\n";

static int make_all(void **state)
{
    if (open_digit_model(state))
        return 1;
    put("d.jsonl", DATA);
    return 0;
}

static void open_suite(struct outcome *o, const char *assignment)
{
    put("s.yaml", SUITE);
    open_outcome(o, "s.yaml", assignment);
}

static void play_with(struct outcome *o, int32_t max_batch, const char *assignment)
{
    struct kg_eval_local local = {
        .model = model, .tok = tok, .model_dir = MODEL, .max_batch = max_batch};
    struct kg_eval_run run = {
        .suite = &o->suite, .source = &local.source, .dump = add_line, .user = o};

    open_suite(o, assignment);
    for (size_t i = 0; i < o->suite.n; i++)
        o->sets[i].episode.env = &figures;
    kg_eval_local_init(&local);
    run.sets = o->sets;
    ok(kg_eval_suite(&o->report, &run, &err));
}

static void play(struct outcome *o, int32_t max_batch) { play_with(o, max_batch, NULL); }

static void expect_mean(const struct kg_eval_score *s, const char *name, double value)
{
    const struct kg_eval_metric *m = kg_eval_metric_find(s, name);

    assert_non_null(m);
    if (m->value != value)
        fail_msg("%s: expected %g, found %g", name, value, m->value);
}

static void turns_and_calls_are_counted(void **state)
{
    struct outcome o;

    (void)state;
    play(&o, 8);
    for (size_t i = 0; i < 2; i++) {
        const struct kg_eval_score *s = &o.report.sets[i].score;

        expect_mean(s, "turns", 3);
        expect_mean(s, "calls", 2);
        expect_mean(s, "finished", 1);
        expect_mean(s, "invalid", 0);
        expect_mean(s, "failed", 0);
    }
    expect_mean(&o.report.mean, "calls", 2);
    assert_int_equal(o.report.n_groups, 1);
    expect_mean(&o.report.groups[0].mean, "turns", 3);
    release(&o);
}

/* Segments are in order, and the tool's observations are not part of the response. */
static void lines_say_who_wrote_what(void **state)
{
    struct kg_json_doc doc;
    struct outcome o;
    size_t n = 0;

    (void)state;
    play(&o, 8);
    for (char *line = o.lines.data; *line; n++) {
        char *end = strchr(line, '\n');
        const struct kg_json *segments;
        struct kg_str model_text = {0};
        size_t len;
        const char *text;

        ok(kg_json_parse(&doc, line, (size_t)(end - line), "line", &err));
        segments = kg_json_get(doc.root, "segments");
        assert_int_equal(kg_json_size(segments), 5);
        for (size_t i = 0; i < 5; i++) {
            const struct kg_json *s = kg_json_at(segments, i);

            text = kg_json_text(kg_json_get(s, "text"), &len);
            assert_string_equal(kg_json_text(kg_json_get(s, "source"), NULL),
                                i % 2 ? "tool" : "model");
            if (i % 2)
                assert_string_equal(text, "7,7:");
            else
                ok(kg_str_append(&model_text, text, len, &err));
        }
        assert_string_equal(kg_json_text(kg_json_get(doc.root, "response"), NULL),
                            kg_str_text(&model_text));
        kg_str_release(&model_text);
        kg_json_release(&doc);
        line = end + 1;
    }
    assert_int_equal(n, 3 * 2 + 2);
    release(&o);
}

static void the_batch_changes_nothing(void **state)
{
    struct outcome one, many;

    (void)state;
    play(&one, 1);
    play(&many, 8);
    assert_string_equal(one.lines.data, many.lines.data);
    release(&one);
    release(&many);
}

/* Without a window the second turn starts after 13 tokens: 4 of the prompt, 5 of the
 * first turn, 4 of the observation. A window of 8 drops some of them. */
static void a_window_is_played_in_any_batch(void **state)
{
    struct outcome all, one, many;

    (void)state;
    play(&all, 8);
    play_with(&one, 1, "defaults.window=8");
    play_with(&many, 8, "defaults.window=8");
    assert_string_equal(one.lines.data, many.lines.data);
    assert_string_not_equal(one.lines.data, all.lines.data);
    expect_mean(&many.report.sets[0].score, "turns", 3);
    release(&one);
    release(&many);
    play_with(&many, 8, "defaults.window=50"); /* never outgrown */
    assert_string_equal(many.lines.data, all.lines.data);
    release(&many);
    release(&all);
}

/* 5 tokens of the first turn, 4 of the tool, and 2 of the second turn make 11. */
static void an_answer_has_a_limit_of_its_own(void **state)
{
    struct outcome o;

    (void)state;
    play_with(&o, 8, "defaults.answer_tokens=11");
    expect_mean(&o.report.sets[0].score, "turns", 2);
    expect_mean(&o.report.sets[0].score, "tokens", 7);
    expect_mean(&o.report.sets[0].score, "truncated", 1);
    release(&o);
}

/* A source that answers with one turn, as a server does. */
static kg_status one_turn(struct kg_eval_source *self, struct kg_eval_set *set,
                          const bool *there, kg_eval_take_fn take, void *user,
                          struct kg_err *e)
{
    const struct kg_eval_fresh fresh = {.text = "3", .n = 1, .finish = KG_FINISH_STOP};

    (void)self;
    (void)set;
    (void)there;
    return take(user, &fresh, e);
}

static kg_status load(struct kg_eval_source *self, struct kg_eval_set *set,
                      struct kg_err *e)
{
    (void)self;
    return kg_eval_set_load(set, NULL, NULL, e);
}

static void answers_of_one_turn_are_no_episodes(void **state)
{
    struct kg_eval_source source = {load, one_turn, NULL};
    struct outcome o;
    struct kg_eval_run run = {.suite = &o.suite, .source = &source};

    (void)state;
    open_suite(&o, NULL);
    run.sets = o.sets;
    assert_int_equal(kg_eval_suite(&o.report, &run, &err), KG_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "env calculator needs multi-turn episodes"));
    release(&o);
}

static void a_context_beyond_the_model_is_refused(void **state)
{
    struct kg_eval_local local = {
        .model = model, .tok = tok, .model_dir = MODEL, .max_batch = 1};
    struct kg_eval_run run = {.source = &local.source};
    struct outcome o;
    char expected[100];

    (void)state;
    open_suite(&o, NULL);
    o.sets[1].episode.context = model->config.max_positions + 1;
    run.suite = &o.suite;
    run.sets = o.sets;
    kg_eval_local_init(&local);
    assert_int_equal(kg_eval_suite(&o.report, &run, &err), KG_EINVAL);
    snprintf(expected, sizeof expected,
             "set b: context: expected at most the model's max_positions, %d, found %d",
             model->config.max_positions, model->config.max_positions + 1);
    assert_string_equal(err.message, expected);
    release(&o);
}

static void limits_that_are_none_are_refused(void **state)
{
    static const struct {
        const char *assignment, *message;
    } cases[] = {
        {"defaults.window=60", "set a: window: expected fewer than context (60), or 0"},
        {"defaults.window=3", "set a: window: expected at least the longest prompt's 4"},
        {"defaults.answer_tokens=61",
         "set a: answer_tokens: expected fewer than context"},
    };
    struct kg_eval_local local = {
        .model = model, .tok = tok, .model_dir = MODEL, .max_batch = 1};
    struct kg_eval_set *sets;
    struct kg_suite suite;

    (void)state;
    kg_eval_local_init(&local);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct outcome o;
        struct kg_eval_run run = {.source = &local.source, .suite = &o.suite};

        open_suite(&o, cases[i].assignment);
        run.sets = o.sets;
        assert_int_equal(kg_eval_suite(&o.report, &run, &err), KG_EINVAL);
        if (!strstr(err.message, cases[i].message))
            fail_msg("expected '%s' in: %s", cases[i].message, err.message);
        release(&o);
    }
    put("n.yaml", "sets: {a: {task: qa-number, data: d.jsonl, window: 9}}\n");
    ok(kg_suite_open(&suite, in_dir("n.yaml"), &err));
    ok(kg_suite_resolve(&suite, &err));
    assert_int_equal(kg_suite_sets(&sets, &suite, dir, &err), KG_EINVAL);
    assert_non_null(strstr(
        err.message, "window: has an effect only with env search or calculator; rem"));
    kg_suite_release(&suite);
}

static void a_search_needs_a_place(void **state)
{
    struct kg_eval_set *sets;
    struct kg_suite suite;

    (void)state;
    put("n.yaml", "sets: {a: {task: search-qa, data: d.jsonl, env: search}}\n");
    ok(kg_suite_open(&suite, in_dir("n.yaml"), &err));
    ok(kg_suite_resolve(&suite, &err));
    assert_int_equal(kg_suite_sets(&sets, &suite, dir, &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "set a: search_where: expected an index file"));
    kg_suite_release(&suite);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_and_calls_are_counted),
        cmocka_unit_test(lines_say_who_wrote_what),
        cmocka_unit_test(the_batch_changes_nothing),
        cmocka_unit_test(a_window_is_played_in_any_batch),
        cmocka_unit_test(an_answer_has_a_limit_of_its_own),
        cmocka_unit_test(limits_that_are_none_are_refused),
        cmocka_unit_test(answers_of_one_turn_are_no_episodes),
        cmocka_unit_test(a_context_beyond_the_model_is_refused),
        cmocka_unit_test(a_search_needs_a_place),
    };

    return cmocka_run_group_tests(tests, make_all, close_digit_model);
}
