/* Evaluation of a server: requests, replies, errors, and continuing an interrupted run.
 * The server is a stand-in whose completion depends only on the request. */
#include "eval/remote.h"

#include "base/signal.h"
#include "eval/eval_testing.h"
#include "net/http_server.h"
#include "net/stuck_testing.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum mood {
    WELL,
    BUSY_AT_FIRST,
    NO_REST,    /* content is null, and nothing else is there */
    HUGE_USAGE, /* more tokens than the completion has */
    REFUSING_AFTER,
    NO_JSON,
    NO_CHOICE,
    NO_USAGE,
    TWO_MODELS,
    NO_LIST,
    NARROW /* prompt and completion share `positions` characters and tokens */
};

static struct kg_http_server *server;
static char url[80];
static _Atomic int mood;
static _Atomic int asked;
static _Atomic int positions;
static _Atomic int cut_short;   /* requests for all positions that a prompt leaves */
static struct kg_str last_body; /* of the server's thread; read when no request is open */

/* ---- the stand-in server ---- */

static kg_status error_body(struct kg_str *body, int status, const char *message,
                            struct kg_err *e)
{
    KG_TRY(kg_str_printf(body, e, "{\"error\": {\"code\": %d, \"message\": ", status));
    KG_TRY(kg_json_put_string(body, message, strlen(message), e));
    return kg_str_puts(body, "}}", e);
}

static void reply(struct kg_http_exchange *x, int status, const char *text)
{
    kg_http_reply(x, status, "application/json", text, strlen(text));
}

static void models(void *user, struct kg_http_exchange *x)
{
    char text[100];

    (void)user;
    snprintf(text, sizeof text, "{\"data\": [{\"id\": \"only\", \"max_model_len\": %d}]}",
             positions);
    if (mood == NARROW) {
        reply(x, 200, text);
        return;
    }
    reply(x, mood == NO_LIST ? 404 : 200,
          mood == TWO_MODELS
              ? "{\"data\": [{\"id\": \"a\"}, {\"id\": \"b\", \"max_model_len\": 11}]}"
              : "{\"data\": [{\"id\": \"only\"}]}");
}

/* The completion for a seed is its last digit; every third is cut off. */
static void put_answer(char text[300], uint64_t seed, bool chat)
{
    const char *usage = mood == NO_USAGE ? "{}"
                        : mood == HUGE_USAGE
                            ? "{\"completion_tokens\": 9223372036854775807}"
                            : "{\"completion_tokens\": 4}";
    const char *finish = seed % 3 == 0 ? "length" : "stop";

    if (mood == NO_CHOICE)
        snprintf(text, 300, "{\"choices\": [], \"usage\": %s}", usage);
    else if (mood == NO_REST)
        snprintf(text, 300, "{\"choices\": [{\"message\": {\"content\": null}}]}");
    else if (chat)
        snprintf(text, 300,
                 "{\"choices\": [{\"message\": {\"content\": \"it is %d\"}, "
                 "\"finish_reason\": \"%s\"}], \"usage\": %s}",
                 (int)(seed % 10), finish, usage);
    else
        snprintf(text, 300,
                 "{\"choices\": [{\"text\": \"%d\", \"finish_reason\": \"%s\"}], "
                 "\"usage\": %s}",
                 (int)(seed % 10), finish, usage);
}

static void answer_narrow(struct kg_http_exchange *x, const struct kg_json *body)
{
    const struct kg_json *message = kg_json_at(kg_json_get(body, "messages"), 0);
    int prompt = (int)strlen(kg_json_text(kg_json_get(message, "content"), NULL));
    int limit = (int)kg_json_int(kg_json_get(body, "max_tokens"), 0);
    int seed = (int)(kg_json_int(kg_json_get(body, "seed"), 0) % 10);
    char text[300];

    cut_short += limit > 1 && limit == positions - prompt;
    if (prompt + limit > positions) {
        reply(x, 400, "{\"error\": {\"message\": \"too long\"}}");
        return;
    }
    snprintf(text, sizeof text,
             "{\"choices\": [{\"message\": {\"content\": \"%d\"}, \"finish_reason\": "
             "\"stop\"}], \"usage\": {\"prompt_tokens\": %d, \"completion_tokens\": %d}}",
             seed, prompt, limit);
    reply(x, 200, text);
}

static void complete(void *user, struct kg_http_exchange *x)
{
    struct kg_json_doc doc = {0};
    struct kg_err e;
    size_t n;
    const char *body = kg_http_body(x, &n);
    int number = ++asked;
    char text[300];

    (void)user;
    kg_str_clear(&last_body);
    if (kg_str_append(&last_body, body, n, &e) != KG_OK ||
        kg_json_parse(&doc, body, n, "body", &e) != KG_OK) {
        reply(x, 400, "{}");
        return;
    }
    if (mood == BUSY_AT_FIRST && number <= 4)
        reply(x, 500, "{}");
    else if (mood == REFUSING_AFTER && number > 5)
        reply(x, 400, "{\"error\": {\"message\": \"no\\nmore\"}}");
    else if (mood == NO_JSON)
        reply(x, 200, "well");
    else if (mood == NARROW)
        answer_narrow(x, doc.root);
    else {
        put_answer(text, (uint64_t)kg_json_int(kg_json_get(doc.root, "seed"), 0),
                   kg_json_get(doc.root, "messages") != NULL);
        reply(x, 200, text);
    }
    kg_json_release(&doc);
}

static const struct kg_http_route routes[] = {
    {"GET", "/v1/models", models, "models"},
    {"POST", "/v1/completions", complete, "text"},
    {"POST", "/v1/chat/completions", complete, "chat"},
    {NULL, NULL, NULL, NULL},
};

/* ---- set-up ---- */

static const char DATA[] = "{\"question\":\"1+2\",\"answer\":\"3\"}\n"
                           "{\"question\":\"say \\\"5\\\"\",\"answer\":\"5\"}\n"
                           "{\"question\":\"2+2\",\"answer\":\"4\"}\n";
static const char SUITE[] = "suite:\n  seed: 5\n"
                            "defaults:\n"
                            "  task: qa-number\n"
                            "  data: data.jsonl\n"
                            "  user_turn: true\n"
                            "  max_tokens: 10\n"
                            "  temperature: 0.7\n"
                            "  samples: 4\n"
                            "sets:\n"
                            "  one:\n"
                            "    template: 'Q: {prompt}'\n"
                            "  two:\n"
                            "    top_k: 3\n"
                            "    min_p: 0.25\n"
                            "    stops: [\"a\", \"b\\n\"]\n"
                            "    samples: 2\n";

static int make_all(void **state)
{
    static const struct kg_http_server_opts opts = {
        .routes = routes, .error_body = error_body, .bearer_key = "secret"};

    if (make_dir(state) || kg_http_server_start(&server, &opts, &err) != KG_OK)
        return 1;
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1", kg_http_server_port(server));
    put("data.jsonl", DATA);
    put("suite.yaml", SUITE);
    put("chat.jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
    return 0;
}

static int free_all(void **state)
{
    kg_http_server_stop(server, 1000);
    kg_str_release(&last_body);
    return remove_dir(state);
}

static struct kg_eval_remote_opts remote_opts(void)
{
    return (struct kg_eval_remote_opts){
        .base_url = url, .key = "secret", .in_flight = 3, .tries = 3, .backoff_ms = 1};
}

static kg_status run(struct outcome *o, const char *out, enum mood how,
                     const struct kg_eval_remote_opts *opts, const char *assignment)
{
    struct kg_eval_remote r;
    struct kg_eval_run run = {.suite = &o->suite,
                              .source = &r.source,
                              .out = out ? in_dir(out) : NULL,
                              .dump = out ? NULL : add_line,
                              .user = o};
    kg_status status;

    mood = how;
    asked = 0;
    open_outcome(o, "suite.yaml", assignment);
    run.sets = o->sets;
    status = kg_eval_remote_open(&r, opts, &err);
    if (status != KG_OK)
        return status;
    status = kg_eval_suite(&o->report, &run, &err);
    kg_eval_remote_close(&r);
    return status;
}

static void fails(enum mood how, const struct kg_eval_remote_opts *opts, kg_status status,
                  const char *says)
{
    struct outcome o;

    assert_int_equal(run(&o, NULL, how, opts, NULL), status);
    if (!strstr(err.message, says))
        fail_msg("expected '%s' in '%s'", says, err.message);
    release(&o);
}

/* ---- requests ---- */

/* The body of a request must have all that determines its completion. This run has one
 * request with one sample. */
static void the_body_says_all_that_counts(void **state)
{
    struct kg_eval_remote_opts opts = remote_opts();
    struct outcome o;
    char expected[600];

    (void)state;
    put("suite.yaml",
        "suite:\n  seed: 5\nsets:\n  two:\n    task: qa-number\n    data: data.jsonl\n"
        "    user_turn: true\n    problems: 2\n    max_tokens: 10\n    temperature: 0.7\n"
        "    top_k: 3\n    min_p: 0.25\n    stops: [\"a\", \"b\\n\"]\n");
    ok(run(&o, NULL, WELL, &opts, NULL));
    release(&o);
    opts.in_flight = 1;
    ok(run(&o, NULL, WELL, &opts, NULL));
    snprintf(
        expected, sizeof expected,
        "{\"model\": \"only\", \"messages\": [{\"role\": \"user\", \"content\": "
        "\"say \\\"5\\\"\"}], \"n\": 1, \"seed\": %llu, \"temperature\": 0.7, "
        "\"top_p\": 1.0, \"top_k\": 3, \"min_p\": 0.25, \"max_tokens\": 10, \"stop\": "
        "[\"a\", \"b\\n\"]}",
        (unsigned long long)kg_eval_seed(5, "two", 2, 0));
    assert_string_equal(last_body.data, expected);
    release(&o);
    opts.completions = true;
    opts.model = "named";
    put("suite.yaml", "sets:\n  one:\n    task: qa-number\n    data: data.jsonl\n    "
                      "template: 'Q: {prompt}'\n    problems: 1\n");
    ok(run(&o, NULL, WELL, &opts, NULL));
    snprintf(expected, sizeof expected,
             "{\"model\": \"named\", \"prompt\": \"Q: 1+2\", \"n\": 1, \"seed\": %llu, "
             "\"temperature\": 1.0, \"top_p\": 1.0, \"max_tokens\": 512}",
             (unsigned long long)kg_eval_seed(1, "one", 1, 0));
    assert_string_equal(last_body.data, expected);
    release(&o);
    put("suite.yaml", SUITE);
}

/* With /completions, kedge renders the prompt by a chat template from a file. */
static void completions_get_rendered_text(void **state)
{
    struct kg_eval_remote_opts opts = remote_opts();
    char assignment[300];
    struct outcome o;

    (void)state;
    opts.completions = true;
    fails(WELL, &opts, KG_EINVAL, "set one: chat_template: expected a file, found auto");
    snprintf(assignment, sizeof assignment, "defaults.chat_template=%s",
             in_dir("chat.jinja"));
    ok(run(&o, NULL, WELL, &opts, assignment));
    assert_non_null(strstr(o.lines.data, "\"prompt\": \"<user>Q: 1+2\""));
    release(&o);
}

static void answers_are_graded_and_counted(void **state)
{
    struct kg_eval_remote_opts opts = remote_opts();
    struct outcome o, busy;
    int right = 0, cut = 0;
    static const int truth[] = {3, 5, 4};

    (void)state;
    ok(run(&o, NULL, WELL, &opts, NULL));
    ok(run(&busy, NULL, BUSY_AT_FIRST, &opts, NULL));
    assert_string_equal(o.lines.data, busy.lines.data);
    for (int p = 0; p < 3; p++)
        for (int j = 0; j < 4; j++) {
            uint64_t seed = kg_eval_seed(5, "one", p + 1, j);

            right += (int)(seed % 10) == truth[p];
            cut += seed % 3 == 0;
        }
    assert_float_equal(kg_eval_metric_find(&o.report.sets[0].score, "accuracy")->value,
                       right / 12.0, 1e-12);
    assert_float_equal(kg_eval_metric_find(&o.report.sets[0].score, "truncated")->value,
                       cut / 12.0, 1e-12);
    assert_float_equal(kg_eval_metric_find(&o.report.sets[1].score, "tokens")->value, 4,
                       0);
    release(&o);
    release(&busy);
}

static void what_was_answered_is_kept(void **state)
{
    struct kg_eval_remote_opts opts = remote_opts();
    struct outcome o;
    struct kg_str whole = {0}, parts = {0};

    (void)state;
    ok(run(&o, "whole", WELL, &opts, NULL));
    release(&o);
    opts.in_flight = 1;
    assert_int_equal(run(&o, "parts", REFUSING_AFTER, &opts, NULL), KG_EIO);
    assert_non_null(strstr(err.message, "expected status 200, found 400: no more"));
    release(&o);
    ok(run(&o, "parts", WELL, &opts, NULL));
    assert_int_equal(asked, 18 - 5);
    release(&o);
    ok(kg_file_read(&whole, in_dir("whole/samples.jsonl.zst"), 1 << 20, &err));
    ok(kg_file_read(&parts, in_dir("parts/samples.jsonl.zst"), 1 << 20, &err));
    assert_int_equal(whole.len, parts.len);
    assert_memory_equal(whole.data, parts.data, whole.len);
    kg_str_release(&whole);
    kg_str_release(&parts);
}

static void what_is_wrong_with_a_server_is_said(void **state)
{
    struct kg_eval_remote_opts opts = remote_opts();
    char closed[80];

    (void)state;
    fails(NO_JSON, &opts, KG_EFORMAT, "/v1/chat/completions");
    fails(NO_CHOICE, &opts, KG_EFORMAT, "expected choices[0], an object, found none");
    fails(NO_REST, &opts, KG_EFORMAT, "choices[0]: ");
    fails(HUGE_USAGE, &opts, KG_EFORMAT,
          "completion_tokens': expected an integer of 0..2147483647, found "
          "9223372036854775807");
    fails(NO_USAGE, &opts, KG_EFORMAT, "completion_tokens");
    fails(TWO_MODELS, &opts, KG_ENOTFOUND,
          "expected one model, or --model NAME, found 2: a, b");
    opts.key = "wrong";
    fails(WELL, &opts, KG_EIO, "expected status 200, found 401");
    opts.base_url = "127.0.0.1:80";
    fails(WELL, &opts, KG_EINVAL, "expected an address such as http://");
    snprintf(closed, sizeof closed, "http://127.0.0.1:1/v1");
    opts.base_url = closed;
    opts.tries = 1;
    fails(WELL, &opts, KG_EIO, "127.0.0.1:1");
    put("suite.yaml", "sets:\n  one:\n    task: qa-number\n    data: data.jsonl\n");
    opts = remote_opts();
    fails(WELL, &opts, KG_EINVAL,
          "user_turn: true (--user-turn) sends it as a user message");
    put("suite.yaml", SUITE);
}

/* The limit is that of the model that is asked. A server without a list of models has no
 * limit. */
static void no_list_is_no_limit(void **state)
{
    struct kg_eval_remote_opts opts = remote_opts();
    struct outcome o;

    (void)state;
    opts.model = "b";
    ok(run(&o, NULL, TWO_MODELS, &opts, NULL));
    release(&o);
    ok(run(&o, NULL, NO_LIST, &opts, "sets.two.max_tokens=11"));
    release(&o);
}

/* One request at a time, so that their number is known: 18 samples. In set one the prompt
 * 'Q: say "5"' has 10 characters and the others 6; in set two prompts have 7 and 3. */
static void narrow(int n, const char *max_tokens, int expected_asked, int expected_cut)
{
    struct kg_eval_remote_opts opts = remote_opts();
    struct outcome o;

    opts.in_flight = 1;
    positions = n;
    cut_short = 0;
    ok(run(&o, NULL, NARROW, &opts, max_tokens));
    assert_int_equal(asked, expected_asked);
    assert_int_equal(cut_short, expected_cut);
    release(&o);
}

static void an_answer_gets_what_the_prompt_leaves(void **state)
{
    (void)state;
    narrow(21, "defaults.max_tokens=10", 18, 0);
    /* refused, then asked for one token, then for nine; then the other three samples */
    narrow(19, "defaults.max_tokens=10", 18 + 2, 4);
    /* no prompt leaves so much: every problem is asked for one token first */
    narrow(19, "defaults.max_tokens=19", 18 + 6, 18);
}

static void many_at_once_get_the_same(void **state)
{
    struct kg_eval_remote_opts opts = remote_opts();
    struct outcome one, many;

    (void)state;
    positions = 12;
    opts.in_flight = 1;
    ok(run(&one, NULL, NARROW, &opts, NULL));
    opts.in_flight = 7;
    ok(run(&many, NULL, NARROW, &opts, NULL));
    assert_string_equal(one.lines.data, many.lines.data);
    assert_non_null(strstr(one.lines.data, "\"tokens\": 2,"));
    release(&one);
    release(&many);
}

/* If a prompt leaves no position, the evaluation stops and names its record. */
static void a_prompt_that_leaves_nothing_stops_it(void **state)
{
    struct kg_eval_remote_opts opts = remote_opts();

    (void)state;
    positions = 10;
    fails(NARROW, &opts, KG_EIO, "set one: record 2: http://127.0.0.1");
    assert_non_null(strstr(err.message, "found 400: too long"));
    assert_null(strstr(strstr(err.message, "set one") + 1, "set one"));
}

/* A wait for a server that never answers is logged with the server's name, and ends when
 * the run is asked to stop. It runs in a child process, which gets one request to
 * stop. */
static void a_server_that_never_answers_is_left(void **state)
{
    struct kg_eval_remote r;
    struct kg_eval_remote_opts opts = {0};
    char here[80];
    int port, fd = open_stuck(&port), status = 0;
    pid_t pid;

    (void)state;
    snprintf(here, sizeof here, "http://127.0.0.1:%d/v1", port);
    opts.base_url = here;
    pid = fork();
    if (pid == 0) {
        bool left, named;

        kg_signal_install();
        left = kg_eval_remote_open(&r, &opts, &err) == KG_EINTERRUPTED;
        named = strstr(err.message, here) && strstr(err.message, "/models");
        _exit(left && named ? 50 : 51);
    }
    until_asked(fd);
    kill(pid, SIGINT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(fd);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_body_says_all_that_counts),
        cmocka_unit_test(completions_get_rendered_text),
        cmocka_unit_test(answers_are_graded_and_counted),
        cmocka_unit_test(what_was_answered_is_kept),
        cmocka_unit_test(what_is_wrong_with_a_server_is_said),
        cmocka_unit_test(no_list_is_no_limit),
        cmocka_unit_test(an_answer_gets_what_the_prompt_leaves),
        cmocka_unit_test(many_at_once_get_the_same),
        cmocka_unit_test(a_prompt_that_leaves_nothing_stops_it),
        cmocka_unit_test(a_server_that_never_answers_is_left),
    };

    return cmocka_run_group_tests_name("evaluation of a server", tests, make_all,
                                       free_all);
}
