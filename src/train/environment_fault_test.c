/* Programs that spoil episodes: kedge does not fail, no episode gets a verdict that the
 * program did not give, and each fault is counted under its status and named in the log.
 * Also: requests that a policy in training refuses, with status and message.
 *
 * The program is this test, started again (environment_testing.h). The faults are in the
 * episodes of sample 1 of each group; the others are sound.
 */
#include "train/rl_testing.h"

#include "base/log.h"
#include "tensor/backend_testing.h"
#include "train/environment_testing.h"
#include "train/step/sums.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define ROOT "build/test-runs/environment-fault"

static char command[1200];
static const char *const base[] = {
    "model.path=" ROOT "/model",
    "model.dtype=fp32",
    "task.name=environment",
    "data.train=" ROOT "/train.jsonl",
    "rollout.prompts=3",
    "rollout.samples=3",
    "rollout.max_batch=4",
    "rollout.max_tokens=9",
    "episode.env=external",
    "episode.turns=2",
    "episode.context=120",
    "optim.lr=1e-2",
    "train.steps=1",
    "eval.at_start=false",
    "run.threads=1",
    command,
    NULL,
};

/* ---- the program's side ---- */

/* path: after the episode's url; "/" alone: the url of another episode, which is not
 * open. body NULL: GET */
static const struct request {
    const char *path, *body, *key; /* NULL: the run's */
    int status;
} requests[] = {
    {"/completions", "{\"prompt\": \"a\"}", NULL, 200},
    {"/completions", "{\"prompt\": \"a\", \"temperature\": 1, \"top_k\": -1}", NULL, 200},
    {"/completions", "{\"prompt\": \"a\", \"temperature\": null, \"n\": 1}", NULL, 200},
    {"/completions", "{\"prompt\": \"a\", \"stream\": true}", NULL, 200},
    {"/completions", "{\"prompt\": \"a\", \"temperature\": 0.5}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\", \"top_p\": 0.5}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\", \"top_k\": 5}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\", \"min_p\": 0.1}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\", \"seed\": 7}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\", \"n\": 2}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\", \"logit_bias\": {\"5\": 1}}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\", \"presence_penalty\": 1}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\", \"ignore_eos\": true}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\", \"echo\": true}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\", \"logprobs\": 5}", NULL, 400},
    {"/completions", "{\"prompt\": [\"a\", \"b\"]}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\", \"max_tokens\": 0}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\", \"max_tokens\": 1000}", NULL, 200},
    {"/completions", "{\"prompt\": \"a\", \"nonsense\": 1}", NULL, 400},
    {"/completions", "{\"prompt\": [300]}", NULL, 400},
    {"/completions", "{", NULL, 400},
    {"/chat/completions", "{\"messages\": []}", NULL, 400},
    {"/inference/v1/generate",
     "{\"token_ids\": [1], \"sampling_params\": {\"temperature\": 2}}", NULL, 400},
    {"/inference/v1/generate",
     "{\"token_ids\": [1], \"sampling_params\": {\"prompt_logprobs\": 1}}", NULL, 400},
    {"/completions", "{\"prompt\": \"a\"}", "another-key", 401},
    {"/nothing", "{}", NULL, 404},
    {"/models", NULL, NULL, 200},
    {"/models/policy", NULL, NULL, 200},
    {"/models/polic", NULL, NULL, 404},
    {"/models/policy/more", NULL, NULL, 404},
    {"/models/", NULL, NULL, 404},
    {"/model", NULL, NULL, 404},
    {"/models/policy", NULL, "another-key", 401},
    {"/models/policy", "{}", NULL, 404},
    {"/completions", NULL, NULL, 404},
    {"", "{}", NULL, 404},
    {"/", "{\"prompt\": \"a\"}", NULL, 404},
};
enum { N_REQUESTS = sizeof requests / sizeof *requests };

static void ask(struct play *x, const struct request *r)
{
    struct kg_json_doc own = x->task;
    const char *key = r->key ? r->key : play_text(own.root, "key");
    char line[256];

    if (strcmp(r->path, "/") == 0) { /* of an episode that is not open any more */
        snprintf(line, sizeof line, "{\"url\": \"%.*s/episode/train-77-0/v1\"}",
                 (int)(strstr(play_text(own.root, "url"), "/episode/") -
                       play_text(own.root, "url")),
                 play_text(own.root, "url"));
        PLAY_NEED(kg_json_parse(&x->task, line, strlen(line), "task", err));
        play_ask(x, "/completions", r->body, key);
        kg_json_release(&x->task);
        x->task = own;
    } else {
        play_ask(x, r->path, r->body, key);
    }
}

static void ask_all(struct play *x, const char *episode)
{
    char more[96];
    int wrong = -1, found = 0, taken = 0;

    for (int i = 0; i < N_REQUESTS; i++) {
        ask(x, &requests[i]);
        taken += x->status == 200 && requests[i].body;
        if (wrong >= 0 || x->status == requests[i].status)
            continue;
        wrong = i;
        found = x->status;
    }
    snprintf(more, sizeof more, ", \"wrong\": %d, \"found\": %d, \"taken\": %d", wrong,
             found, taken);
    play_report(x, episode, 1, more);
}

/* Takes turns until one is refused, and reports their number. */
static void ask_until_refused(struct play *x, const char *episode, const char *body)
{
    char more[64];
    int taken = 0;

    do {
        play_ask(x, "/completions", body, play_text(x->task.root, "key"));
        taken += x->status == 200;
    } while (x->status == 200);
    snprintf(more, sizeof more, ", \"refused\": %d, \"taken\": %d", x->status, taken);
    play_report(x, episode, 1, more);
}

/* As above, with a prompt of n ids, which alone may be too long. */
static void ask_ids_until_refused(struct play *x, const char *episode, int n)
{
    struct kg_str body = {0};

    PLAY_NEED(kg_str_puts(&body, "{\"max_tokens\": 1000, \"prompt\": [1", err));
    for (int i = 1; i < n; i++)
        PLAY_NEED(kg_str_puts(&body, ", 1", err));
    PLAY_NEED(kg_str_puts(&body, "]}", err));
    ask_until_refused(x, episode, body.data);
    kg_str_release(&body);
}

static kg_status count_taken(void *user, const struct kg_http_answer *a,
                             struct kg_err *unused)
{
    int *taken = user;

    (void)unused;
    if (a->http_status != 200 && a->http_status != 409 && a->http_status != 429)
        _exit(9);
    *taken += a->http_status == 200;
    return KG_OK;
}

static kg_status leave_now(void *user, uint64_t ticket, const char *data, size_t n,
                           struct kg_err *err)
{
    (void)user, (void)ticket, (void)data, (void)n;
    return kg_fail(err, KG_EINTERRUPTED, "enough"); /* the connection is closed */
}

static kg_status note_status(void *user, const struct kg_http_answer *a,
                             struct kg_err *unused)
{
    int *status = user;

    (void)unused;
    *status = a->status == KG_OK ? a->http_status : 0;
    return KG_OK;
}

/* Sends a request and disconnects while hundreds of tokens are still to come: after the
 * first piece of a stream, or before any reply.   returns the status, 0 if there was
 * none */
static int ask_and_leave(struct play *x, bool stream)
{
    struct kg_http_client_opts opts = {.bearer_key = play_text(x->task.root, "key"),
                                       .tries = 1,
                                       .piece = stream ? leave_now : NULL,
                                       .timeout_ms = stream ? 100000 : 5};
    struct kg_http_client *c = NULL;
    char url[256], body[64];
    int status = 0;

    snprintf(url, sizeof url, "%s/completions", play_text(x->task.root, "url"));
    snprintf(body, sizeof body, "{\"prompt\": \"sea\", \"stream\": %s}",
             stream ? "true" : "false");
    PLAY_NEED(kg_http_client_open(&c, &opts, err));
    PLAY_NEED(kg_http_client_submit(c, url, body, strlen(body), 0, err));
    while (kg_http_client_waiting(c) > 0)
        PLAY_NEED(kg_http_client_poll(c, 1000, note_status, &status, err));
    kg_http_client_close(c);
    return status;
}

/* Asks until the turn of the earlier request is over (409: still busy). */
static void ask_again(struct play *x)
{
    do
        play_ask(x, "/completions", "{\"prompt\": \"sea\"}",
                 play_text(x->task.root, "key"));
    while (x->status == 409);
}

/* Sends eight requests of one episode at once. */
static void ask_at_once(struct play *x, const char *episode)
{
    static const char body[] = "{\"prompt\": \"a\"}";
    struct kg_http_client_opts opts = {.bearer_key = play_text(x->task.root, "key"),
                                       .tries = 1};
    struct kg_http_client *c = NULL;
    char url[256], more[64];
    int taken = 0;

    snprintf(url, sizeof url, "%s/completions", play_text(x->task.root, "url"));
    PLAY_NEED(kg_http_client_open(&c, &opts, err));
    for (int i = 0; i < 8; i++)
        PLAY_NEED(kg_http_client_submit(c, url, body, sizeof body - 1, 0, err));
    while (kg_http_client_waiting(c) > 0)
        PLAY_NEED(kg_http_client_poll(c, 1000, count_taken, &taken, err));
    kg_http_client_close(c);
    snprintf(more, sizeof more, ", \"taken\": %d", taken);
    play_report(x, episode, 1, more);
}

static void say(const char *format, const char *episode)
{
    char text[512];

    snprintf(text, sizeof text, format, episode);
    play_say(text);
}

/* Lines that replace the report, or, with `reports`, precede it. */
static const struct {
    const char *mode, *line;
    bool reports;
} lines[] = {
    {"double", "{\"episode\": \"%s\", \"reward\": 0.5}\n", true},
    {"liar", "{\"episode\": \"train-99-0\", \"reward\": 0.5}\n", true},
    {"garbage", "hello %s\n\n[1, 2\n\001\002\377\n{}\n\"x\"\n{\"episode\": 7}\n", true},
    {"huge", "{\"episode\": \"%s\", \"reward\": 1e300}\n", false},
    {"word", "{\"episode\": \"%s\", \"reward\": \"high\"}\n", false},
    {"absent", "{\"episode\": \"%s\"}\n", false},
    {"null", "{\"episode\": \"%s\", \"reward\": null}\n", false},
    {"said", "{\"episode\": \"%s\", \"reward\": 1, \"status\": \"lost\"}\n", false},
    {"list", "{\"episode\": \"%s\", \"reward\": 1, \"metrics\": [1]}\n", false},
    {"name", "{\"episode\": \"%s\", \"reward\": 1, \"metrics\": {\"a b\": 1}}\n", false},
    {"many",
     "{\"episode\": \"%s\", \"reward\": 0.5, \"metrics\": {\"a\": 1, \"b\": 1, \"c\": 1, "
     "\"d\": 1, \"e\": 1, \"f\": 1, \"g\": 1, \"h\": 1, \"i\": 1, \"j\": 1, \"k\": 1, "
     "\"l\": 1, \"m\": 1, \"n\": 1}}\n",
     false},
    {"empty", "{\"episode\": \"%s\", \"reward\": 1, \"metrics\": {\"a\": \"b\"}}\n",
     false},
};

/* Writes lines that are no report, or sends requests that are refused, long past the
 * timeout. */
static void play_nothing(struct play *x, const char *episode)
{
    for (int i = 0; i < 1000; i++) {
        if (strcmp(play_mode, "junk") == 0)
            say("%s is fine\n", episode);
        else
            play_ask(x, "/completions", "{\"prompt\": \"sea\", \"n\": 2}",
                     play_text(x->task.root, "key"));
        usleep(10000);
    }
    play_report(x, episode, 0.5, "");
}

/* Disconnects as often as the mode says, or until the episode is closed; then asks. */
static void leave_and_ask(struct play *x, const char *episode, bool bad)
{
    const bool always = strcmp(play_mode, "gone") == 0;
    const int times = !bad ? 0 : always ? INT_MAX : atoi(play_mode + 6);
    int received = 0;

    for (int i = 0; i < times; i++) {
        const int status = ask_and_leave(x, always || i % 2 == 0);

        if (status == 404)
            return;
        received += status == 200;
    }
    ask_again(x);
    play_report(x, episode, received + (x->status == 200), "");
}

/* Keeps asking after its report, until the reply says that the episode is over. */
static void ask_late(struct play *x, const char *episode)
{
    play_report(x, episode, 0.5, "");
    do
        play_ask(x, "/completions", "{\"prompt\": \"sea\"}",
                 play_text(x->task.root, "key"));
    while (x->status == 200 || x->status == 409);
    if (x->status != 404 && x->status != 503 && x->status != 0)
        _exit(9);
}

static void ask_big(struct play *x, const char *episode)
{
    char *body = calloc(1, (8u << 20) + 1);

    memset(body, 'a', 8u << 20);
    play_ask(x, "/completions", body, play_text(x->task.root, "key"));
    play_report(x, episode, x->status == 413 || x->status == 0 ? 0.5 : -1, "");
    free(body);
}

/* Sends a gigabyte in one chunk: the server must drop it or close the connection. */
static void ask_vast(struct play *x, const char *episode)
{
    static char piece[1 << 20];
    const char *url = play_text(x->task.root, "url");
    const char *at = strstr(url, "127.0.0.1:");
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)atoi(at + 10)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int sent = 0;

    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        _exit(9);
    snprintf(piece, sizeof piece,
             "POST %s/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
             "%s\r\nTransfer-Encoding: chunked\r\n\r\n40000000\r\n",
             strchr(at, '/'), play_text(x->task.root, "key"));
    (void)send(fd, piece, strlen(piece), MSG_NOSIGNAL);
    memset(piece, 'a', sizeof piece);
    while (sent < 1024 && send(fd, piece, sizeof piece, MSG_NOSIGNAL) > 0)
        sent++;
    close(fd);
    play_report(x, episode, 0.5, "");
}

/* Faults that need a server: wrong HTTP replies. */
static void spoil_answer(void)
{
    static const struct {
        const char *mode;
        int status;
        const char *body;
    } rows[] = {{"http-302", 302, "over there"},
                {"http-empty", 200, ""},
                {"http-number", 200, "{\"episode\": 1, \"reward\": 1}"},
                {"http-short", 200, "{\"reward\": 0.5}"}};
    static char much[2 << 20];
    struct kg_http_exchange *x = play_asked;

    play_asked = NULL;
    if (strcmp(play_mode, "http-500") == 0)
        kg_http_reply_error(x, 500, "no verdict");
    else if (strcmp(play_mode, "http-drop") == 0)
        kg_http_drop(x);
    else if (strcmp(play_mode, "http-flood") == 0)
        kg_http_reply(x, 200, "text/html", memset(much, '7', sizeof much), sizeof much);
    else
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            if (strcmp(play_mode, rows[i].mode) == 0)
                kg_http_reply(x, rows[i].status, "text/html", rows[i].body,
                              strlen(rows[i].body));
}

static void play_fault(struct play *x, const char *episode)
{
    const char *mode = play_mode, *key = play_text(x->task.root, "key");
    const size_t n = strlen(episode);
    const bool bad = n > 2 && strcmp(episode + n - 2, "-1") == 0;

    if (strncmp(mode, "leave-", 6) == 0 || (bad && strcmp(mode, "gone") == 0)) {
        leave_and_ask(x, episode, bad);
        return;
    }
    if (!bad || strcmp(mode, "mute") != 0)
        play_ask(x, "/completions", "{\"prompt\": \"sea\"}", key);
    if (strcmp(mode, "baseline") == 0) {
        play_report(x, episode, strncmp(episode, "greedy-", 7) == 0 ? 2 : 0.25, "");
        return;
    }
    if (strcmp(mode, "leaves") == 0) { /* after the step's episodes are over */
        play_report(x, episode, 1, "");
        while (strcmp(episode, "train-2-2") == 0 && x->status != 503)
            play_ask(x, "/completions", "{\"prompt\": \"sea\"}", key);
        if (x->status == 503)
            _exit(3);
        return;
    }
    if (!bad || strcmp(mode, "mute") == 0) {
        play_report(x, episode, bad ? 1 : 0.25, "");
        return;
    }
    if (strncmp(mode, "http-", 5) == 0 || strncmp(mode, "claim-", 6) == 0)
        mode[0] == 'h' ? spoil_answer() : play_claim(x, episode);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (strcmp(mode, lines[i].mode) == 0) {
            say(lines[i].line, episode);
            if (lines[i].reports)
                play_report(x, episode, 0.5, "");
        }
    if (strcmp(mode, "die") == 0)
        _exit(3);
    for (int i = 0; strcmp(mode, "flood") == 0 && i < 1 << 20; i++)
        say("0123456789%s", "abcdef");
    if (strcmp(mode, "late") == 0)
        ask_late(x, episode);
    if (strcmp(mode, "junk") == 0 || strcmp(mode, "refused") == 0)
        play_nothing(x, episode);
    if (strcmp(mode, "big") == 0 || strcmp(mode, "vast") == 0)
        mode[0] == 'b' ? ask_big(x, episode) : ask_vast(x, episode);
    if (strcmp(mode, "requests") == 0)
        ask_all(x, episode);
    if (strcmp(mode, "budget") == 0)
        ask_until_refused(x, episode, "{\"prompt\": \"sea\"}");
    if (strcmp(mode, "context") == 0)
        ask_until_refused(x, episode,
                          "{\"prompt\": \"sea the tea sea the tea sea the tea sea the "
                          "tea sea the tea sea the tea sea the tea sea the tea\"}");
    if (strcmp(mode, "room") == 0) /* room for less than a whole turn */
        ask_ids_until_refused(x, episode, 120 - (3 + 9) - 1);
    if (strcmp(mode, "long") == 0)
        ask_ids_until_refused(x, episode, 130);
    if (strcmp(mode, "longest") == 0)
        ask_ids_until_refused(x, episode, 5000);
    if (strcmp(mode, "crowd") == 0)
        ask_at_once(x, episode);
}

/* ---- kedge's side ---- */

static int setup(void **state)
{
    (void)state;
    fresh(ROOT);
    make_agent(ROOT, "the sea and the tea are as easy as a ear", 9, false);
    put_questions(ROOT);
    return 0;
}

/* A run of one mode, and its log. */
struct played {
    struct kg_task_child *server; /* owned; NULL: a program plays */
    struct opened o;
    struct kg_rl_batch b;
    char log[16384];
};

static bool over_http; /* whether a server plays */

static void play_run(struct played *p, const char *mode, int threads,
                     const char *const *extra)
{
    const char *const *const lists[] = {base, extra};
    FILE *log = tmpfile();

    *p = (struct played){0};
    if (over_http)
        p->server = play_server(command, sizeof command, ROOT, mode, threads);
    else
        play_command(command, sizeof command, mode, threads);
    NEED(kg_file_remove_tree(ROOT "/run", err));
    open_config(&p->o, config_from(ROOT "/run", lists, 2));
    kg_log_set_stream(log, false);
    NEED(kg_rl_sample(&p->b, &p->o.run.in, &p->o.run.state, &p->o.run.work, err));
    kg_log_set_stream(NULL, false);
    rewind(log);
    p->log[fread(p->log, 1, sizeof p->log - 1, log)] = '\0';
    (void)fclose(log);
    assert_int_equal(p->b.n_trajs, 9);
}

static double number_of(const struct played *p, size_t i, const char *name)
{
    const struct kg_further_names *names = &p->o.run.log.further;
    const struct kg_traj *t = &p->b.trajs[i];

    for (int k = 0; k < names->n; k++)
        if (strcmp(names->name[k], name) == 0 && t->further.said >> k & 1)
            return t->further.x[k];
    return -1;
}

static double sum_of(const struct played *p, const char *name)
{
    double sum = 0;

    for (size_t i = 0; i < 9; i++)
        sum += number_of(p, i, name);
    return sum;
}

/* Trains the next step on these episodes, whatever they are. */
static void end_run(struct played *p)
{
    kg_rl_batch_release(&p->b);
    NEED(kg_rl_step(&p->o.run, err));
    close_run(&p->o);
    kg_task_child_kill(p->server);
}

/* Expectations for episodes that the program spoiled. */
struct spoiled {
    const char *mode;
    bool graded, error;
    const char *log;
};

static void check_spoiled(const struct spoiled *row)
{
    struct played p;

    kg_mem_reset_peak();
    play_run(&p, row->mode, 3, NULL);
    assert_true(kg_mem_peak_bytes() < 64 << 20);
    for (size_t k = 0; k < 9; k++) {
        const struct kg_traj *t = &p.b.trajs[k];
        const bool bad = k % 3 == 1;

        if (t->graded != (!bad || row->graded) ||
            t->reward != (!bad          ? 0.25
                          : row->graded ? 0.5
                                        : 0) ||
            number_of(&p, k, "status/error") != (bad && row->error))
            fail_msg("%s: episode %zu is graded %d, reward %g: %s", row->mode, k,
                     t->graded, t->reward, p.log);
        assert_int_equal(t->episode.turns, bad && strcmp(row->mode, "mute") == 0 ? 0 : 1);
    }
    if (!strstr(p.log, row->log))
        fail_msg("%s: expected '%s' in the log: %s", row->mode, row->log, p.log);
    end_run(&p);
}

static void reports_that_cannot_be_taken_give_no_verdict(void **state)
{
    static const struct spoiled rows[] = {
        {"double", true, false, "expected a report"},
        {"liar", true, false, "train-99-0"},
        {"garbage", true, false, "hello train-"},
        {"huge", false, true, "expected a |reward| of at most 1e+09"},
        {"word", false, true, "expected a |reward| of at most 1e+09"},
        {"absent", false, true, "expected a |reward| of at most 1e+09"},
        {"null", false, false, ""},
        {"said", false, true, "reports the status 'lost'"},
        {"list", false, true, "expected objects as rewards and metrics"},
        {"name", false, true, "expected names of letters"},
        {"many", true, false, "expected at most 16 names"},
        {"empty", false, true, "expected numbers in rewards and metrics"},
        {"mute", false, false, ""},
        {"late", true, false, ""},
        {"big", true, false, ""},
        {"vast", true, false, ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_spoiled(&rows[i]);
}

/* As above, with a server. A reply for another episode, or for none, loses its
 * episode. */
static void answers_that_cannot_be_taken_give_no_verdict(void **state)
{
    static const struct spoiled rows[] = {
        {"double", true, false, ""},
        {"liar", false, true, "expected a report of episode train-"},
        {"garbage", false, true, "expected a report as the answer"},
        {"huge", false, true, "expected a |reward| of at most 1e+09"},
        {"word", false, true, "episode.url: expected a |reward| of at most 1e+09"},
        {"null", false, false, ""},
        {"said", false, true, "reports the status 'lost'"},
        {"list", false, true, "expected objects as rewards and metrics"},
        {"many", true, false, "episode.url: expected at most 16 names"},
        {"mute", false, false, ""},
        {"big", true, false, ""},
        {"http-500", false, true, "found 'HTTP status 500: {\"error\": \"no verdict\"}'"},
        {"http-302", false, true, "found 'HTTP status 302: over there'"},
        {"http-empty", false, true, "expected a report as the answer"},
        {"http-flood", false, false, "expected a report as the answer"},
        {"http-drop", false, false, "expected a report as the answer"},
        {"http-number", false, true, "found 'no text'"},
        {"http-short", true, false, ""},
    };

    (void)state;
    over_http = true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_spoiled(&rows[i]);
    over_http = false;
}

/* A trace is used only if it agrees with what the endpoint sent. */
static void a_trace_that_lies_gives_no_verdict(void **state)
{
    static const char *const room[] = {"episode.turns=3", NULL};
    static const struct {
        const char *mode, *log; /* NULL: it does not lie */
        int trained, branches;  /* turns, and how many of them are branches */
    } rows[] = {
        {"claim-all", NULL, 3, 1},
        {"claim-rounded", NULL, 3, 1},
        {"claim-branch", NULL, 1, 0},
        {"claim-zero", "", 0, 0},
        {"claim-nothing", "", 0, 0},
        {"claim-id", "turn 'n1': completion_token_ids[0]: expected the id that was", 0,
         0},
        {"claim-prompt", "turn 'n2': expected the prompt of a turn of this episode", 0,
         0},
        {"claim-logp", "turn 'n0': per_token_logps[0]: expected the log-prob that", 0, 0},
        {"claim-short", "turn 'n2': completion_token_ids[", 0, 0},
        {"claim-long", "turn 'n2': completion_token_ids[", 0, 0},
        {"claim-mask", "turn 'n1': loss_mask[2]: expected 0 in a prompt, found 1", 0, 0},
        {"claim-bit", "expected 0 or 1, found 2", 0, 0},
        {"claim-twice", "turn 'n1': expected the prompt of a turn of this", 0, 0},
        {"claim-node", "turns 1 and 2: expected different node_ids, found 'n2'", 0, 0},
        {"claim-unnamed", "turn 1: expected a node_id, found an empty one", 0, 0},
        {"claim-version", "trace: expected schema_version 1", 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct played p;

        play_run(&p, rows[i].mode, 3, room);
        for (size_t k = 1; k < 9; k += 3) {
            const struct kg_traj *t = &p.b.trajs[k];

            if (t->graded == (rows[i].log != NULL))
                fail_msg("%s: %s", rows[i].mode, p.log);
            assert_true(number_of(&p, k, "status/error") ==
                        (rows[i].log && *rows[i].log ? 1 : 0));
            if (rows[i].log)
                continue;
            assert_in_range(kg_traj_model_tokens(t), rows[i].trained,
                            5 * rows[i].trained);
            assert_true(t->n_windows <= (size_t)rows[i].branches);
        }
        if (rows[i].log && !strstr(p.log, rows[i].log))
            fail_msg("%s: expected '%s' in: %s", rows[i].mode, rows[i].log, p.log);
        end_run(&p);
    }
}

/* The program's other open episodes are lost with it. It is started again for the next
 * ones. */
static void a_program_that_ends_or_floods_is_started_again(void **state)
{
    static const struct {
        const char *mode, *log;
    } rows[] = {{"die", "found 3"}, {"flood", "it wrote a line of more than 10"}};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct played p;

        play_run(&p, rows[i].mode, 1, NULL);
        assert_true(sum_of(&p, "status/died") >= 1);
        assert_true(sum_of(&p, "status/ok") + sum_of(&p, "status/died") == 9);
        for (size_t k = 0; k < 9; k++)
            assert_int_equal(p.b.trajs[k].graded, number_of(&p, k, "status/ok") == 1);
        if (!strstr(p.log, rows[i].log) || !strstr(p.log, "starting it again"))
            fail_msg("%s: expected '%s' in the log: %s", rows[i].mode, rows[i].log,
                     p.log);
        kg_rl_batch_release(&p.b);
        close_run(&p.o);
    }
}

/* The program has not seen the next step's episodes, so none is lost. */
static void a_program_that_ends_between_two_steps_costs_nothing(void **state)
{
    siginfo_t info;
    struct played p;

    (void)state;
    play_run(&p, "leaves", 3, NULL);
    for (int step = 0; step < 3; step++) {
        assert_true(sum_of(&p, "status/ok") == 9);
        assert_int_equal(waitid(P_ALL, 0, &info, WEXITED | WNOWAIT), 0);
        kg_rl_batch_release(&p.b);
        p.b = (struct kg_rl_batch){0};
        NEED(kg_rl_sample(&p.b, &p.o.run.in, &p.o.run.state, &p.o.run.work, err));
    }
    assert_true(sum_of(&p, "status/ok") == 9);
    kg_rl_batch_release(&p.b);
    close_run(&p.o);
}

static void an_episode_without_a_word_is_given_up(void **state)
{
    static const char *const soon[] = {"episode.timeout_ms=1500", NULL};
    /* neither lines without a report nor refused requests extend the timeout */
    static const char *const modes[] = {"hang", "junk", "refused", "hang"};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct played p;

        over_http = i == 3;
        play_run(&p, modes[i], 9, soon);
        for (size_t k = 1; k < 9; k += 3) {
            assert_true(number_of(&p, k, "status/timeout") == 1);
            assert_false(p.b.trajs[k].graded);
            assert_int_equal(p.b.trajs[k].episode.turns, 1);
        }
        assert_true(sum_of(&p, "status/ok") + sum_of(&p, "status/timeout") == 9);
        if (i != 1) /* its lines use up the warnings */
            assert_non_null(strstr(p.log, "for timeout_ms, found 'train-0-1'"));
        end_run(&p);
    }
    over_http = false;
}

/* First keys that name none or both of program and server, or no URL; then servers that
 * do not exist or do not play. */
static void a_server_that_never_plays_stops_the_run(void **state)
{
    static const struct {
        const char *url, *command;
        kg_status status;
        const char *words;
    } rows[] = {
        {"", "", KG_EINVAL, "expected one of them, the program or the server"},
        {"http://127.0.0.1:1/run", "true", KG_EINVAL, "found both"},
        {"127.0.0.1:1/run", "", KG_EINVAL, "expected http://HOST:PORT/PATH"},
        {"ftp://127.0.0.1/run", "", KG_EINVAL, "found 'ftp://127.0.0.1/run'"},
        {"/run", "", KG_EINVAL, "expected http://HOST:PORT/PATH"},
        {"http://127.0.0.1:1/run", "", KG_EIO, "(8 requests without a report)"},
        {"http://", "", KG_EINVAL, "found 'http://'"},
        {"http:///run", "", KG_EINVAL, "found 'http:///run'"},
        {"http://:80/run", "", KG_EINVAL, "found 'http://:80/run'"},
        {"http://127.0.0.1:99999/run", "", KG_EINVAL, "found 'http://127.0.0.1:99999/"},
        {"http://127.0.0.1:0/run", "", KG_EINVAL, "found 'http://127.0.0.1:0/run'"},
        {"http://127.0.0.1:x/run", "", KG_EINVAL, "found 'http://127.0.0.1:x/run'"},
        {"http://127.0.0.1:/run", "", KG_EINVAL, "found 'http://127.0.0.1:/run'"},
        {"http://127.0.0.1:1/a run", "", KG_EINVAL, "found 'http://127.0.0.1:1/a run'"},
        {"http://me:sesame@127.0.0.1:1/run", "", KG_EINVAL,
         "PATH, found a name or a password before @"},
        {"http://me@127.0.0.1:1/run", "", KG_EINVAL, "PATH, found a name or a password"},
        {"http://nosuch.invalid/run", "", KG_EIO, "found none at http://nosuch.invalid"},
        {"PORT/", "", KG_EIO, "HTTP status 404"},
        {"PORT/running", "", KG_EIO, "HTTP status 404"},
        {"PORT/run/", "", KG_EIO, "HTTP status 404"},
    };
    static char url[256], port[256];
    struct kg_task_child *server = play_server(port, sizeof port, ROOT, "mute", 1);
    const char *extra[] = {command, url, NULL};
    const char *const *const lists[] = {base, extra};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *rest = strncmp(rows[i].url, "PORT", 4) == 0 ? rows[i].url + 4 : NULL;
        struct kg_config *c;
        struct kg_err e = {0};

        snprintf(command, sizeof command, "episode.command=%s", rows[i].command);
        if (rest)
            snprintf(url, sizeof url, "%.*s%s", (int)strlen(port) - 4, port, rest);
        else
            snprintf(url, sizeof url, "episode.url=%s", rows[i].url);
        NEED(kg_file_remove_tree(ROOT "/run", err));
        c = config_from(ROOT "/run", lists, 2);
        if (kg_train_run(c, false, false, &e) != rows[i].status ||
            !strstr(e.message, rows[i].words))
            fail_msg("row %zu: expected '%s', found %s", i, rows[i].words, e.message);
        kg_config_free(c);
    }
    kg_task_child_kill(server);
}

/* Its open episodes are lost, and the run stops after some requests without a report. */
static void a_server_that_ends_stops_the_run(void **state)
{
    struct played p;
    struct kg_err e = {0};
    kg_status status = KG_OK;

    (void)state;
    over_http = true;
    play_run(&p, "http-short", 3, NULL);
    over_http = false;
    assert_true(sum_of(&p, "status/ok") == 9);
    kg_task_child_kill(p.server);
    for (int i = 0; i < 9 && status == KG_OK; i++) {
        kg_rl_batch_release(&p.b);
        p.b = (struct kg_rl_batch){0};
        status = kg_rl_sample(&p.b, &p.o.run.in, &p.o.run.state, &p.o.run.work, &e);
    }
    assert_int_equal(status, KG_EIO);
    if (!strstr(e.message, "requests without a report") || !strstr(e.message, "--resume"))
        fail_msg("%s", e.message);
    kg_rl_batch_release(&p.b);
    close_run(&p.o);
}

static void a_program_that_never_plays_stops_the_run(void **state)
{
    static const char *const commands[] = {"exit 0", "exit 5", "nosuchprogram",
                                           "head -c 3000000 /dev/zero; sleep 100"};
    static const char *const words[] = {"exit status 0", "found 5", "found 127",
                                        "more than 1062976 bytes"};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        const char *const *const lists[] = {base, NULL};
        struct opened o;
        struct kg_rl_batch b = {0};
        struct kg_err e = {0};

        snprintf(command, sizeof command, "episode.command=%s", commands[i]);
        NEED(kg_file_remove_tree(ROOT "/run", err));
        open_config(&o, config_from(ROOT "/run", lists, 1));
        assert_int_equal(kg_rl_sample(&b, &o.run.in, &o.run.state, &o.run.work, &e),
                         KG_EIO);
        if (!strstr(e.message, words[i]) || !strstr(e.message, "--resume"))
            fail_msg("expected '%s' in: %s", words[i], e.message);
        kg_rl_batch_release(&b);
        close_run(&o);
    }
}

static void a_policy_in_training_refuses_what_would_not_be_its_own(void **state)
{
    static const char *const room[] = {"episode.turns=9", NULL};
    struct played p;

    (void)state;
    play_run(&p, "requests", 3, room);
    for (size_t k = 1; k < 9; k += 3) {
        if (number_of(&p, k, "wrong") >= 0)
            fail_msg("request %g: status %g", number_of(&p, k, "wrong"),
                     number_of(&p, k, "found"));
        assert_true(number_of(&p, k, "taken") == p.b.trajs[k].episode.turns - 1);
    }
    end_run(&p);
}

static void budgets_end_a_conversation_and_not_the_episode(void **state)
{
    static const struct {
        const char *mode;
        int least, most; /* turns */
    } rows[] = {{"budget", 3, 3},
                {"context", 2, 3},
                {"room", 2, 2},
                {"long", 1, 1},
                {"longest", 1, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct played p;

        play_run(&p, rows[i].mode, 3, NULL);
        for (size_t k = 1; k < 9; k += 3) {
            const struct kg_traj *t = &p.b.trajs[k];

            assert_true(number_of(&p, k, "refused") == 400);
            assert_true(number_of(&p, k, "taken") == t->episode.turns - 1);
            assert_in_range(t->episode.turns, rows[i].least, rows[i].most);
            assert_true(t->episode.cut && t->graded && t->reward == 1);
            assert_int_equal(t->finish, KG_FINISH_LENGTH);
            assert_true(t->n <= 120);
        }
        end_run(&p);
    }
}

static void an_episode_has_one_request_at_a_time(void **state)
{
    static const char *const room[] = {"episode.turns=20", NULL};
    struct played p;

    (void)state;
    play_run(&p, "crowd", 3, room);
    for (size_t k = 1; k < 9; k += 3) {
        assert_true(number_of(&p, k, "taken") == p.b.trajs[k].episode.turns - 1);
        assert_true(p.b.trajs[k].graded);
    }
    end_run(&p);
}

/* A turn whose client disconnected is not trained and changes no other turn. If the reply
 * was already sent when the client disconnects, the turn counts. */
static void an_answer_whose_client_left_is_no_turn(void **state)
{
    static const char *const modes[] = {"leave-1", "leave-2", "leave-3", "leave-6"};
    static const char *const longer[] = {"model.path=" ROOT "/endless/model",
                                         "rollout.max_tokens=480", "episode.context=500",
                                         NULL};
    struct played own;
    int n_left = 0;

    (void)state;
    make_agent(ROOT "/endless", "the sea and the tea are as easy as a ear", 9, true);
    put_file(ROOT, "endless/model/tokenizer_config.json", "{\"eos_token\": null}");
    play_run(&own, "leave-0", 3, longer);
    for (size_t i = 0; i < 4; i++) {
        struct played p;

        play_run(&p, modes[i], 3, longer);
        for (size_t k = 0; k < 9; k++) {
            const struct kg_traj *t = &p.b.trajs[k], *as = &own.b.trajs[k];

            assert_true(t->graded);
            assert_true(t->episode.turns >= t->reward);
            n_left += k % 3 == 1 && t->episode.turns == t->reward;
            assert_int_equal(as->n, 482);
            assert_memory_equal(t->tokens, as->tokens, t->n * sizeof *t->tokens);
            assert_memory_equal(t->logp, as->logp, t->n * sizeof *t->logp);
        }
        end_run(&p);
    }
    assert_true(n_left > 0);
    end_run(&own);
}

/* Requests whose client disconnects do not extend the timeout. */
static void who_always_leaves_is_given_up(void **state)
{
    static const char *const soon[] = {
        "episode.timeout_ms=1500", "model.path=" ROOT "/endless/model",
        "rollout.max_tokens=480", "episode.context=500", NULL};
    struct played p;

    (void)state;
    play_run(&p, "gone", 9, soon);
    for (size_t k = 0; k < 9; k++)
        assert_true(number_of(&p, k, "status/timeout") == (k % 3 == 1));
    end_run(&p);
}

static void greedy_answers_have_names_of_their_own(void **state)
{
    static const char *const remax[] = {"algo.advantage=remax", NULL};
    struct played p;
    int greedy = 0;

    (void)state;
    play_run(&p, "baseline", 3, remax);
    for (size_t k = 0; k < 9; k++)
        assert_true(p.b.trajs[k].reward == 0.25);
    for (size_t k = 0; k < p.b.n_spare; k++)
        if (p.b.spare[k].temperature == 0) {
            assert_true(p.b.spare[k].reward == 2);
            greedy++;
        }
    assert_int_equal(greedy, 3);
    end_run(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports_that_cannot_be_taken_give_no_verdict),
        cmocka_unit_test(answers_that_cannot_be_taken_give_no_verdict),
        cmocka_unit_test(a_trace_that_lies_gives_no_verdict),
        cmocka_unit_test(a_program_that_ends_or_floods_is_started_again),
        cmocka_unit_test(a_program_that_ends_between_two_steps_costs_nothing),
        cmocka_unit_test(an_episode_without_a_word_is_given_up),
        cmocka_unit_test(a_server_that_never_plays_stops_the_run),
        cmocka_unit_test(a_server_that_ends_stops_the_run),
        cmocka_unit_test(a_program_that_never_plays_stops_the_run),
        cmocka_unit_test(a_policy_in_training_refuses_what_would_not_be_its_own),
        cmocka_unit_test(budgets_end_a_conversation_and_not_the_episode),
        cmocka_unit_test(an_episode_has_one_request_at_a_time),
        cmocka_unit_test(an_answer_whose_client_left_is_no_turn),
        cmocka_unit_test(who_always_leaves_is_given_up),
        cmocka_unit_test(greedy_answers_have_names_of_their_own),
    };

    if (argc >= 4 && (strcmp(argv[1], "play") == 0 || strcmp(argv[1], "serve") == 0))
        return play_main(argv[2], atoi(argv[3]), argv[4]);
    return RUN_SHOWN(tests, setup, NULL);
}
