/* Training of a search agent. With a server that goes down, the run stops after its last
 * complete step and resumes to the same bits, or the model gets an observation about it.
 * With an index, it resumes to the same bits after kill -9 at any moment.
 *
 * The policy learns its turns in the run's own SFT, so that it really searches.
 */
#include "train/rl_testing.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/watch_testing.h"
#include "net/http_server.h"
#include "net/stuck_testing.h"
#include "retriever/build.h"
#include "search/protocol.h"
#include "train/agent_testing.h"
#include "train/same_testing.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOT "build/test-runs/search"
#include "train/search_testing.h"

/* ---- the server ---- */

static struct kg_http_server *server;
static _Atomic int requests;
static _Atomic int up_until; /* number of requests until it is down */

static kg_status answer_with(struct kg_str *out, const char *body, size_t n,
                             struct kg_err *e)
{
    struct kg_retrieve_request r;
    kg_status status;

    KG_TRY(kg_retrieve_request_read(&r, body, n, 1000, e));
    KG_TRY_GOTO(done, kg_retrieve_answer_begin(out, e));
    for (size_t i = 0; i < r.n; i++) {
        size_t length;
        char text[80];
        const char *query = kg_retrieve_query(&r, i, &length);
        struct kg_passage p = {.id = "1", .contents = text};

        snprintf(text, sizeof text, "%.8s\nis %zu", query, length);
        KG_TRY_GOTO(done, kg_retrieve_answer_put(out, i, &p, 1, true, e));
    }
    status = kg_retrieve_answer_end(out, e);
done:
    kg_retrieve_request_release(&r);
    return status;
}

static void handle(void *user, struct kg_http_exchange *x)
{
    size_t n;
    const char *body = kg_http_body(x, &n);
    struct kg_str out = {0};
    struct kg_err e;

    (void)user;
    if (requests++ >= up_until)
        kg_http_reply_error(x, 500, "no disk");
    else if (answer_with(&out, body, n, &e) == KG_OK)
        kg_http_reply(x, 200, "application/json", out.data, out.len);
    else
        kg_http_reply_error(x, 400, e.message);
    kg_str_release(&out);
}

static const struct kg_http_route routes[] = {{"POST", "/retrieve", handle, "passages"},
                                              {NULL, NULL, NULL, NULL}};

/* ---- a run ---- */

static char where[80];
static const char *const base[] = {
    "model.path=" ROOT "/model",
    "model.dtype=fp32",
    "task.name=qa-number",
    "data.train=" ROOT "/train.jsonl",
    "sft.data=" ROOT "/sft.jsonl",
    "sft.steps=60",
    "sft.lr=2e-2",
    "sft.batch=8",
    "rollout.prompts=3",
    "rollout.samples=3",
    "rollout.max_tokens=16",
    "episode.env=search",
    "episode.turns=2",
    "episode.context=400",
    "search.tries=2",
    "optim.lr=1e-3",
    "algo.entropy_coef=0.01",
    "train.steps=3",
    "eval.at_start=false",
    "run.threads=1",
    where,
    NULL,
};

static int setup(void **state)
{
    struct kg_http_server_opts opts = {.routes = routes};

    (void)state;
    fresh(ROOT);
    make_search_agent(ROOT);
    NEED(kg_http_server_start(&server, &opts, err));
    snprintf(where, sizeof where, "search.where=http://127.0.0.1:%d/retrieve",
             kg_http_server_port(server));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kg_http_server_stop(server, 1000);
    return 0;
}

static kg_status train(const char *dir, bool resume, int up, const char *const *extra,
                       struct kg_err *e)
{
    const char *const *const lists[] = {base, extra};
    struct kg_config *c = config_from(dir, lists, 2);
    kg_status status;

    if (!resume)
        NEED(kg_file_remove_tree(dir, err));
    requests = 0;
    up_until = up;
    status = kg_train_run(c, resume, false, e);
    kg_config_free(c);
    return status;
}

static void a_run_goes_on_behind_a_server_that_was_down(void **state)
{
    struct kg_err e = {0};
    int all;

    (void)state;
    if (train(ROOT "/whole", false, 1 << 20, NULL, &e) != KG_OK)
        fail_msg("%s", e.message);
    all = requests;
    assert_true(all >= 3); /* at least one per step */
    assert_true(last_metric(ROOT "/whole", "episode/calls") > 0.5);
    assert_true(last_metric(ROOT "/whole", "mismatch/first_update_max") == 0);
    assert_true(last_metric(ROOT "/whole", "tool/calls") >= 1);
    assert_true(last_metric(ROOT "/whole", "tool/requests") >= 1);
    assert_true(last_metric(ROOT "/whole", "tool/failed") == 0);
    assert_true(last_metric(ROOT "/whole", "tool/seconds_a_call") > 0);
    assert_int_equal(train(ROOT "/broken", false, all - 1, NULL, &e), KG_EIO);
    assert_non_null(strstr(e.message, "search: the retriever failed"));
    assert_non_null(strstr(e.message, "500"));
    assert_non_null(strstr(e.message, "continue with kedge train --resume"));
    if (train(ROOT "/broken", true, 1 << 20, NULL, &e) != KG_OK)
        fail_msg("%s", e.message);
    assert_same_file(ROOT "/whole", ROOT "/broken",
                     "checkpoints/step-000003/model/model.safetensors");
    assert_same_file(ROOT "/whole", ROOT "/broken", "rollouts/step-000003.jsonl.zst");
}

static void a_model_can_be_told_that_a_server_is_down(void **state)
{
    static const char *const observe[] = {"search.when_down=observe", "train.steps=1",
                                          "search.tries=1", NULL};
    struct kg_err e = {0};

    (void)state;
    if (train(ROOT "/told", false, 0, observe, &e) != KG_OK)
        fail_msg("%s", e.message);
    assert_true(last_metric(ROOT "/told", "episode/failed") > 0.5);
    assert_true(last_metric(ROOT "/told", "tool/failed") ==
                last_metric(ROOT "/told", "tool/calls"));
    assert_true(last_metric(ROOT "/told", "episode/failed") ==
                last_metric(ROOT "/told", "episode/calls"));
}

/* ---- kill -9 ---- */

enum { INDEXED_STEPS = 5, ROUNDS = 4, KILLS = 2 };

static const char *const indexed[] = {"search.where=" ROOT "/index",
                                      "search.topk=2",
                                      "train.steps=5",
                                      "checkpoint.every=1",
                                      "anchor.kind=ema",
                                      "kl.estimator=k3",
                                      "kl.beta=0.1",
                                      NULL};
static const char *const two_steps[] = {"search.where=" ROOT "/index",
                                        "search.topk=2",
                                        "train.steps=2",
                                        "checkpoint.every=1",
                                        "anchor.kind=ema",
                                        "kl.estimator=k3",
                                        "kl.beta=0.1",
                                        NULL};

static void put_index(const char *text)
{
    struct kg_index_build_opts opts = {
        .corpus = ROOT "/corpus.jsonl", .path = ROOT "/index", .bm25 = kg_bm25_default};
    struct kg_index_info info;
    char record[80];

    snprintf(record, sizeof record, "{\"title\": \"%%d\", \"text\": \"%s\"}\n", text);
    put_records(ROOT, "corpus.jsonl", record);
    NEED(kg_index_build(&info, &opts, err));
}

/* Trains in a child process and kills it after `seconds`, unless it has ended by then. */
static void train_and_be_killed(const char *dir, double seconds)
{
    bool resume = kg_file_exists(ROOT "/killed/config.yaml");
    struct kg_err e;
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        _exit(train(dir, resume, 0, indexed, &e) == KG_OK ? 0 : 1);
    usleep((useconds_t)(seconds * 1e6));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
}

/* The moments are random within the time of the whole run: in its SFT, its episodes, its
 * saves. */
static void a_killed_run_of_episodes_gives_the_bits_of_one_that_was_not(void **state)
{
    struct kg_rng_key key = {(uint64_t)kg_clock_unix_seconds(), KG_RNG_TEST};
    double seconds = -kg_clock_seconds();
    struct kg_err e = {0};

    (void)state;
    print_message("moments drawn with seed %llu\n", (unsigned long long)key.seed);
    put_index("%d and %d.");
    if (train(ROOT "/unkilled", false, 0, indexed, &e) != KG_OK)
        fail_msg("%s", e.message);
    seconds += kg_clock_seconds();
    assert_true(last_metric(ROOT "/unkilled", "episode/calls") > 0.5);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        NEED(kg_file_remove_tree(ROOT "/killed", err));
        for (uint32_t i = 0; i < KILLS; i++)
            train_and_be_killed(ROOT "/killed",
                                seconds * kg_rng_uniform(key, round, i, 0));
        if (train(ROOT "/killed", kg_file_exists(ROOT "/killed/config.yaml"), 0, indexed,
                  &e) != KG_OK)
            fail_msg("%s", e.message);
        assert_same_run(ROOT "/unkilled", ROOT "/killed", INDEXED_STEPS);
    }
}

/* The index determines what queries find, so a run does not resume with another index. */
static void a_run_does_not_go_on_with_another_index(void **state)
{
    struct kg_err e = {0};

    (void)state;
    put_index("%d and %d.");
    if (train(ROOT "/indexed", false, 0, two_steps, &e) != KG_OK)
        fail_msg("%s", e.message);
    put_index("%d or %d.");
    assert_int_equal(train(ROOT "/indexed", true, 0, indexed, &e), KG_ECONFLICT);
    assert_non_null(strstr(e.message, "search.where"));
    put_index("%d and %d.");
    if (train(ROOT "/indexed", true, 0, indexed, &e) != KG_OK)
        fail_msg("%s", e.message);
}

/* ---- hybrid search ---- */

/* clang-format off */
#define BY_BOTH                                                                          \
    "search.where=" ROOT "/both", "search.kind=hybrid", "search.model=" ENCODER,         \
    "search.topk=2", "train.steps=2", "checkpoint.every=1", "anchor.kind=ema",           \
    "kl.estimator=k3", "kl.beta=0.1"
/* clang-format on */
static const char *const by_both[] = {BY_BOTH, NULL};
static const char *const by_both_apart[] = {BY_BOTH, "rollout.max_batch=3", NULL};

/* Which queries share an encoder pass depends on the batch and on time; no result
 * does. */
static void a_run_by_words_and_vectors_is_the_same_with_any_batch(void **state)
{
    struct kg_err e = {0};

    (void)state;
    build_both();
    if (train(ROOT "/together", false, 0, by_both, &e) != KG_OK ||
        train(ROOT "/apart", false, 0, by_both_apart, &e) != KG_OK)
        fail_msg("%s", e.message);
    assert_true(last_metric(ROOT "/together", "episode/calls") > 0.5);
    assert_same_run(ROOT "/together", ROOT "/apart", 2);
}

/* ---- a server that accepts a request and never answers ---- */

static int open_stuck_retriever(char assignment[80])
{
    int port, fd = open_stuck(&port);

    snprintf(assignment, 80, "search.where=http://127.0.0.1:%d/retrieve", port);
    return fd;
}

static void a_server_that_never_answers_is_named_in_a_warning(void **state)
{
    char stuck[80], wait[160];
    const char *const extra[] = {stuck, "search.timeout_ms=800", "search.tries=1",
                                 "log.watchdog_s=0.3", NULL};
    int fd = open_stuck_retriever(stuck);
    struct kg_str log = {0};
    struct kg_err e = {0};
    struct heard h;

    (void)state;
    hear_watch(&h, 0);
    assert_int_equal(train(ROOT "/stuck", false, 0, extra, &e), KG_EIO);
    stop_hearing(&h);
    close(fd);
    snprintf(wait, sizeof wait,
             "s: waiting for the retriever %s: ", strchr(stuck, '=') + 1);
    assert_non_null(strstr(h.text, "warning: no progress for "));
    assert_non_null(strstr(h.text, wait));
    assert_non_null(strstr(h.text, " 1 try of 0.8 s, for "));
    assert_non_null(strstr(h.text, "; in generating: 0 of 9 episodes, "));
    assert_non_null(strstr(h.text, "; in step 1, for "));
    assert_non_null(strstr(h.text, "; in training: 0 of 3 steps, for "));
    assert_non_null(strstr(h.text, "; in run " ROOT "/stuck, for "));
    NEED(kg_file_read(&log, ROOT "/stuck/watch.log", 1u << 20, err));
    assert_non_null(strstr(log.data, wait));
    kg_str_release(&log);
}

/* In a child process, which gets one request to stop. */
static void a_wait_is_left_when_a_stop_is_asked_for(void **state)
{
    char stuck[80];
    const char *const extra[] = {stuck, "search.timeout_ms=600000", NULL};
    int fd = open_stuck_retriever(stuck), status = 0;
    struct kg_err e = {0};
    double asked;
    pid_t pid;

    (void)state;
    NEED(kg_file_remove_tree(ROOT "/left", err));
    pid = fork();
    if (pid == 0) {
        const char *const *const lists[] = {base, extra};
        struct kg_config *c = config_from(ROOT "/left", lists, 2);

        _exit(kg_train_run(c, false, true, &e) == KG_EINTERRUPTED ? 50 : 51);
    }
    until_asked(fd);
    asked = kg_clock_seconds();
    kill(pid, SIGINT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(fd);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 50);
    assert_true(kg_clock_seconds() - asked < 30); /* a try has 600 */
    assert_true(kg_file_exists(ROOT "/left/checkpoints/step-000000"));
    assert_false(kg_file_exists(ROOT "/left/checkpoints/step-000001"));
    /* the step is repeated with a server that answers */
    if (train(ROOT "/left", true, 1 << 20, NULL, &e) != KG_OK)
        fail_msg("%s", e.message);
    assert_same_file(ROOT "/whole", ROOT "/left",
                     "checkpoints/step-000003/model/model.safetensors");
    assert_same_file(ROOT "/whole", ROOT "/left", "rollouts/step-000003.jsonl.zst");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_goes_on_behind_a_server_that_was_down),
        cmocka_unit_test(a_model_can_be_told_that_a_server_is_down),
        cmocka_unit_test(a_killed_run_of_episodes_gives_the_bits_of_one_that_was_not),
        cmocka_unit_test(a_run_does_not_go_on_with_another_index),
        cmocka_unit_test(a_run_by_words_and_vectors_is_the_same_with_any_batch),
        cmocka_unit_test(a_server_that_never_answers_is_named_in_a_warning),
        cmocka_unit_test(a_wait_is_left_when_a_stop_is_asked_for),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
