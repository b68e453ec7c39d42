/* Evaluations whose episodes an external program plays: the same lines for any
 * concurrency, batch and continuation; the numbers of a validation in training; and every
 * failure counted under its status, never as a graded 0.
 *
 * The program is this test, started again (environment_testing.h).
 */
#include "train/rl_testing.h"

#include "base/clock.h"
#include "base/log.h"
#include "eval/runner.h"
#include "tensor/backend_testing.h"
#include "train/environment_testing.h"
#include "train/same_testing.h"

#define ROOT "build/test-runs/environment-eval"

static struct kg_model *model;
static struct kg_tokenizer *tok;
static char command[1200];

/* ---- the program's side ---- */

/* Final lines of episodes with a fault; %s: the episode. Sample 1 of each problem has
 * it. */
static const struct {
    const char *mode, *line;
    bool asks; /* takes a turn before it */
} faults[] = {
    {"word", "{\"episode\": \"%s\", \"reward\": \"high\"}\n", true},
    {"absent", "{\"episode\": \"%s\"}\n", true},
    {"null", "{\"episode\": \"%s\", \"reward\": null}\n", true},
    {"said", "{\"episode\": \"%s\", \"reward\": 1, \"status\": \"lost\"}\n", true},
    {"huge", "{\"episode\": \"%s\", \"reward\": 1e300}\n", true},
    {"list", "{\"episode\": \"%s\", \"reward\": 1, \"metrics\": [1]}\n", true},
    {"bare", "{\"episode\": \"%s\", \"reward\": 1}\n", false},
    {"mute", "", true},
    {"deaf", "", false},
    {"kill", "", true},
};
enum { N_FAULTS = sizeof faults / sizeof *faults };

static bool is_spoiled(const char *episode) /* sample 1 of each problem */
{
    return episode[strlen(episode) - 1] == '1';
}

static void play_fault(struct play *x, const char *episode)
{
    const bool all = strncmp(play_mode, "a-", 2) == 0;
    const char *mode = play_mode + (all ? 2 : 0);
    size_t i = 0;
    char line[256];

    if (!all && !is_spoiled(episode)) {
        (void)play_once(x);
        play_report(x, episode, 0.5, "");
        return;
    }
    while (strcmp(faults[i].mode, mode) != 0)
        i++;
    if (faults[i].asks)
        (void)play_once(x);
    if (strcmp(mode, "kill") == 0)
        _exit(3);
    snprintf(line, sizeof line, faults[i].line, episode);
    if (*line)
        play_say(line);
}

/* ---- an evaluation ---- */

struct outcome {
    struct kg_suite suite;
    struct kg_eval_set *sets;
    struct kg_eval_report report;
    struct kg_str lines;
    struct kg_str log;
    kg_status status;
    struct kg_err err;
    int left; /* completions until it stops; < 0: never */
    kg_eval_take_fn take;
    void *user;
    struct kg_eval_local local;
};

static kg_status add_line(void *user, const char *line, size_t n, struct kg_err *e)
{
    return kg_str_append(&((struct outcome *)user)->lines, line, n, e);
}

static kg_status take_some(void *user, const struct kg_eval_fresh *fresh,
                           struct kg_err *e)
{
    struct outcome *o = user;

    if (o->left-- == 0)
        return kg_fail(e, KG_EINTERRUPTED, "stopped by the test");
    return o->take(o->user, fresh, e);
}

/* the outcome of the running source */
static struct outcome *present;

static kg_status answer_some(struct kg_eval_source *self, struct kg_eval_set *set,
                             const bool *there, kg_eval_take_fn take, void *user,
                             struct kg_err *e)
{
    struct kg_eval_local plain = *(struct kg_eval_local *)self;

    kg_eval_local_init(&plain);
    present->take = take;
    present->user = user;
    return plain.source.answer(&plain.source, set, there, take_some, present, e);
}

static const char suite_text[] =
    "suite: {name: t, seed: 7}\n"
    "sets:\n"
    "  val: {task: environment, env: external, data: train.jsonl, samples: 2,\n"
    "    problems: 4, max_tokens: 9, turns: 2, context: 200}\n";

static void open_outcome(struct outcome *o, const char *const *extra)
{
    *o = (struct outcome){.left = -1};
    put_file(ROOT, "suite.yaml", suite_text);
    NEED(kg_suite_open(&o->suite, ROOT "/suite.yaml", err));
    if (*command)
        NEED(kg_config_override(o->suite.config, command, "test", err));
    for (; extra && *extra; extra++)
        NEED(kg_config_override(o->suite.config, *extra, "test", err));
    NEED(kg_suite_resolve(&o->suite, err));
    NEED(kg_suite_sets(&o->sets, &o->suite, ROOT, err));
}

static void release(struct outcome *o)
{
    kg_eval_report_release(&o->report);
    kg_suite_sets_free(o->sets, o->suite.n);
    kg_suite_release(&o->suite);
    kg_str_release(&o->lines);
    kg_str_release(&o->log);
}

static void run(struct outcome *o, int32_t max_batch, bool score, const char *out)
{
    struct kg_eval_run run = {.suite = &o->suite,
                              .sets = o->sets,
                              .source = &o->local.source,
                              .out = out,
                              .dump = out ? NULL : add_line,
                              .user = o};
    FILE *log = fopen(ROOT "/log", "w");

    o->local = (struct kg_eval_local){.model = model,
                                      .tok = tok,
                                      .model_dir = ROOT "/model",
                                      .max_batch = max_batch,
                                      .score = score};
    kg_eval_local_init(&o->local);
    o->local.source.answer = answer_some;
    present = o;
    assert_non_null(log);
    kg_log_set_stream(log, false);
    o->status = kg_eval_suite(&o->report, &run, &o->err);
    kg_log_set_stream(NULL, false);
    assert_int_equal(fclose(log), 0);
    read_in(&o->log, ROOT, "log");
}

/* Sets `command` to sets.val.episode_command=... for this mode. */
static void play_by(const char *mode, int threads)
{
    char line[1100];

    play_command(line, sizeof line, mode, threads);
    snprintf(command, sizeof command, "sets.val.episode_command=%s",
             line + strlen("episode.command="));
}

static void evaluate(struct outcome *o, const char *mode, int threads, int32_t max_batch,
                     const char *const *extra)
{
    play_by(mode, threads);
    open_outcome(o, extra);
    run(o, max_batch, false, NULL);
    if (o->status != KG_OK)
        fail_msg("%s: %s", mode, o->err.message);
}

static double mean(const struct outcome *o, const char *name)
{
    const struct kg_eval_metric *m = kg_eval_metric_find(&o->report.sets[0].score, name);

    if (!m)
        fail_msg("expected a metric %s", name);
    return m->value;
}

static int setup(void **state)
{
    const struct kg_model_opts opts = {.ct = KG_F32};

    (void)state;
    fresh(ROOT);
    assert_int_equal(
        make_agent_apart(ROOT, "the sea and the tea are as easy as a ear", 9, false), 0);
    put_file(ROOT, "model/chat_template.jinja",
             "{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}\n{% endfor %}"
             "{% if add_generation_prompt %}[a]{% endif %}");
    put_questions(ROOT);
    kg_file_skip_syncs(true);
    kg_threads_set(1);
    NEED(kg_model_open(&model, ROOT "/model", &opts, err));
    NEED(kg_tokenizer_open(&tok, ROOT "/model", err));
    NEED(kg_model_config_add_eos(&model->config, kg_tokenizer_eos(tok), err));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kg_model_free(model);
    kg_tokenizer_close(tok);
    return 0;
}

/* ---- the same lines ---- */

static void lines_do_not_depend_on_how_episodes_are_played(void **state)
{
    static const char *const apart[] = {"sets.val.episode_timeout_ms=100000", NULL};
    static const struct {
        const char *mode;
        int threads;
        int32_t max_batch;
        bool score;
        const char *const *extra;
    } rows[] = {
        {"talk", 1, 1, false, NULL},   {"talk", 4, 4, false, NULL},
        {"talk", 9, 2, false, NULL},   {"talk", 3, 16, false, apart},
        {"talk", 9, 8, false, apart},  {"ids", 1, 1, false, NULL},
        {"ids", 4, 3, false, NULL},    {"ids", 9, 9, false, apart},
        {"once", 1, 1, false, NULL},   {"once", 9, 2, false, NULL},
        {"once", 2, 16, false, apart},
    };
    struct outcome first = {0};
    const char *last = "";

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct outcome o;

        if (strcmp(last, rows[i].mode) != 0) {
            release(&first);
            evaluate(&first, rows[i].mode, 1, 4, NULL);
            last = rows[i].mode;
        }
        evaluate(&o, rows[i].mode, rows[i].threads, rows[i].max_batch, rows[i].extra);
        assert_string_equal(o.lines.data, first.lines.data);
        assert_true(mean(&o, "further/status/ok") == 1);
        assert_true(mean(&o, "undecided") == 0);
        assert_true(mean(&o, "finished") == 1);
        assert_true(mean(&o, "turns") == (strcmp(rows[i].mode, "once") == 0 ? 1 : 3));
        release(&o);
    }
    release(&first);
}

/* A line has the turns of every branch and the numbers that the program reported. */
static void lines_have_the_turns_and_the_numbers(void **state)
{
    struct outcome o;
    struct kg_json_doc doc;

    (void)state;
    evaluate(&o, "ids", 2, 4, NULL);
    NEED(kg_json_parse(&doc, o.lines.data, strcspn(o.lines.data, "\n"), "line", err));
    assert_int_equal(kg_json_size(kg_json_get(doc.root, "segments")), 5);
    const struct kg_json *further = kg_json_get(doc.root, "further");
    assert_true(kg_json_real(kg_json_get(further, "status/ok"), 0) == 1);
    assert_true(kg_json_real(kg_json_get(further, "status/died"), 1) == 0);
    assert_true(kg_json_real(kg_json_get(further, "sampled"), 0) > 0);
    assert_true(kg_json_real(kg_json_get(further, "rewards/first"), 0) == 1);
    assert_true(kg_json_bool(kg_json_get(doc.root, "graded"), false));
    kg_json_release(&doc);
    release(&o);
}

/* With the seed and the set's name of a validation, an evaluation gives its numbers to
 * the last bit. */
static void numbers_are_those_of_a_validation(void **state)
{
    static const char *const modes[] = {"talk", "ids", "once"};
    static const char *const names[][2] = {
        {"accuracy", "val/accuracy"},   {"reward", "val/reward"},
        {"turns", "val/episode/turns"}, {"tokens", "val/response_tokens"},
        {"truncated", "val/truncated"}, {"undecided", "val/ungraded"},
    };
    static char played[1200];
    static const char *const assignments[] = {
        "model.path=" ROOT "/model",
        "model.dtype=fp32",
        "task.name=environment",
        "data.train=" ROOT "/train.jsonl",
        "data.val=" ROOT "/train.jsonl",
        "eval.problems=4",
        "eval.samples=2",
        "eval.temperature=1",
        "eval.top_p=1",
        "run.seed=7",
        "rollout.prompts=2",
        "rollout.samples=2",
        "rollout.max_tokens=9",
        "episode.env=external",
        "episode.turns=2",
        "episode.context=200",
        "train.steps=1",
        "optim.lr=0", /* both validations see the same weights */
        "run.threads=1",
        played,
        NULL,
    };

    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        const char *const *const lists[] = {assignments};
        struct kg_config *c;
        struct outcome o;

        play_command(played, sizeof played, modes[i], 3);
        c = config_from(ROOT "/run", lists, 1);
        NEED(kg_file_remove_tree(ROOT "/run", err));
        NEED(kg_train_run(c, false, false, err));
        kg_config_free(c);
        evaluate(&o, modes[i], 2, 3, NULL);
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (mean(&o, names[k][0]) != last_metric(ROOT "/run", names[k][1]))
                fail_msg("%s: %s is %.17g, in a validation %.17g", modes[i], names[k][0],
                         mean(&o, names[k][0]), last_metric(ROOT "/run", names[k][1]));
        release(&o);
    }
}

/* An evaluation that was stopped and continued has the bytes of one that was not. */
static void a_stopped_evaluation_goes_on(void **state)
{
    static const int stops[] = {1, 2, 3, 5, 7};
    static const char *const files[] = {"config.yaml", "problems.jsonl",
                                        "samples.jsonl.zst", "results.json"};
    struct outcome o;

    (void)state;
    NEED(kg_file_remove_tree(ROOT "/whole", err));
    play_by("talk", 3);
    open_outcome(&o, NULL);
    run(&o, 2, false, ROOT "/whole");
    assert_int_equal(o.status, KG_OK);
    release(&o);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        NEED(kg_file_remove_tree(ROOT "/parts", err));
        open_outcome(&o, NULL);
        o.left = stops[i];
        run(&o, 1, false, ROOT "/parts");
        assert_int_equal(o.status, KG_EINTERRUPTED);
        release(&o);
        open_outcome(&o, NULL);
        run(&o, 2, false, ROOT "/parts");
        assert_int_equal(o.status, KG_OK);
        release(&o);
        for (size_t k = 0; k < sizeof files / sizeof *files; k++)
            assert_same_file(ROOT "/whole", ROOT "/parts", files[k]);
    }
}

/* Scoring accepts episodes without a turn, and branches. It fails if no episode has a
 * turn. */
static void episodes_can_be_scored(void **state)
{
    static const char *const modes[] = {"talk", "bare", "a-bare"};

    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        struct outcome o;

        play_by(modes[i], 2);
        open_outcome(&o, NULL);
        run(&o, 3, true, NULL);
        assert_int_equal(o.status, i < 2 ? KG_OK : KG_EFORMAT);
        release(&o);
    }
}

/* ---- failures ---- */

static void a_failure_is_counted_and_is_no_grade(void **state)
{
    static const char *const soon[] = {"sets.val.episode_timeout_ms=1500", NULL};
    static const char *const status[] = {"further/status/ok", "further/status/error",
                                         "further/status/timeout", "further/status/died"};
    static const struct {
        const char *mode;
        int under; /* of status */
    } rows[] = {{"word", 1}, {"absent", 1}, {"null", 0}, {"said", 1}, {"huge", 1},
                {"list", 1}, {"bare", 0},   {"mute", 2}, {"deaf", 2}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct outcome o;
        double sum = 0;

        evaluate(&o, rows[i].mode, 4, 4, rows[i].under == 2 ? soon : NULL);
        assert_true(mean(&o, "undecided") == 0.5);
        assert_true(mean(&o, "reward") == 0.25);
        for (int k = 0; k < 4; k++)
            sum += mean(&o, status[k]);
        assert_true(sum == 1);
        assert_true(mean(&o, status[rows[i].under]) == (rows[i].under ? 0.5 : 1));
        if (!strstr(o.log.data, "set val: 4 of 8 episodes have no verdict"))
            fail_msg("%s: %s", rows[i].mode, o.log.data);
        release(&o);
    }
}

/* A program that ends loses its open episodes and is started again. */
static void a_program_that_ends_is_counted(void **state)
{
    struct outcome o;

    (void)state;
    evaluate(&o, "kill", 1, 1, NULL);
    assert_true(mean(&o, "further/status/died") >= 0.5);
    assert_true(mean(&o, "further/status/died") == mean(&o, "undecided"));
    assert_non_null(strstr(o.log.data, "episode_command: starting it again"));
    release(&o);
}

/* If every episode fails, nothing was measured: the evaluation fails instead of reporting
 * an accuracy of 0. */
static void no_verdict_at_all_is_an_error(void **state)
{
    static const char *const soon[] = {"sets.val.episode_timeout_ms=1000", NULL};

    (void)state;
    for (size_t i = 0; i < N_FAULTS; i++) {
        char mode[16];
        struct outcome o;

        snprintf(mode, sizeof mode, "a-%s", faults[i].mode);
        play_by(mode, 4);
        open_outcome(&o, *faults[i].line ? NULL : soon);
        run(&o, 4, false, NULL);
        assert_true(o.status != KG_OK);
        if (!strstr(o.err.message, "expected episodes with a verdict") &&
            !strstr(o.err.message, "episode_command: expected a program that plays"))
            fail_msg("%s: %s", mode, o.err.message);
        release(&o);
    }
}

/* ---- refusals ---- */

static void what_does_not_fit_is_refused(void **state)
{
    static const struct {
        const char *extra[3], *word;
    } rows[] = {
        {{"sets.val.task=qa-number", NULL},
         "expected both or neither, found external and qa-numb"},
        {{"sets.val.env=none", NULL},
         "expected both or neither, found none and environment"},
        {{"sets.val.env=calculator", NULL}, "found calculator and environment"},
        {{"sets.val.episode_command=", NULL}, "episode_command, episode_url: expected"},
        {{"sets.val.episode_url=http://127.0.0.1:1/run", NULL}, "found both"},
        {{"sets.val.episode_command=", "sets.val.episode_url=127.0.0.1", NULL},
         "episode_url: expected http://HOST:PORT/PATH"},
        {{"sets.val.episode_command=", "sets.val.episode_url=http://a:b@c/d", NULL},
         "found a name or a password before @"},
        {{"sets.val.obs_tokens=7", NULL},
         "obs_tokens: has an effect only with env search or"},
        {{"sets.val.answer_tokens=7", NULL},
         "answer_tokens: has an effect only with env search"},
        {{"sets.val.window=90", NULL}, "window: has an effect only with env search or"},
        {{"sets.val.search_topk=2", NULL}, "search_topk: has an effect only with"},
        {{"sets.val.context=3", NULL}, "context: expected more than the longest prompt"},
        {{"sets.val.context=3000", NULL}, "context: expected at most the model's"},
        {{"sets.val.maj_k=[1]", NULL}, "maj_k: expected a task that can compare"},
        {{"sets.val.data=", NULL}, "expected a data file, found none"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct outcome o = {.left = -1};
        struct kg_err e = {0};
        kg_status status;

        play_by("talk", 1);
        NEED(kg_suite_open(&o.suite, ROOT "/suite.yaml", err));
        NEED(kg_config_override(o.suite.config, command, "test", err));
        for (int k = 0; rows[i].extra[k]; k++)
            NEED(kg_config_override(o.suite.config, rows[i].extra[k], "test", err));
        NEED(kg_suite_resolve(&o.suite, err));
        status = kg_suite_sets(&o.sets, &o.suite, ROOT, &e);
        if (status == KG_OK) {
            run(&o, 2, false, NULL);
            status = o.status;
            e = o.err;
        }
        if (status == KG_OK || !strstr(e.message, rows[i].word))
            fail_msg("expected '%s' in: %s", rows[i].word, e.message);
        release(&o);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_do_not_depend_on_how_episodes_are_played),
        cmocka_unit_test(lines_have_the_turns_and_the_numbers),
        cmocka_unit_test(numbers_are_those_of_a_validation),
        cmocka_unit_test(a_stopped_evaluation_goes_on),
        cmocka_unit_test(episodes_can_be_scored),
        cmocka_unit_test(a_failure_is_counted_and_is_no_grade),
        cmocka_unit_test(a_program_that_ends_is_counted),
        cmocka_unit_test(no_verdict_at_all_is_an_error),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };

    if (argc >= 4 && (strcmp(argv[1], "play") == 0 || strcmp(argv[1], "serve") == 0))
        return play_main(argv[2], atoi(argv[3]), argv[4]);
    return RUN_SHOWN(tests, setup, teardown);
}
