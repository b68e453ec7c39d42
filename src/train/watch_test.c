/* A run that is asked for its state (SIGUSR1) every millisecond has the files of a run
 * that nobody asked. */
#include "train/rl_testing.h"

#include "base/watch_testing.h"
#include "train/same_testing.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#define ROOT "build/test-runs/watch"

static const char *const options[] = {"train.steps=3",         "sft.steps=2",
                                      "algo.preset=ema-pg",    "anchor.period=1",
                                      "kl.beta=0.05",          "checkpoint.every=1",
                                      "checkpoint.dtype=fp32", "eval.every=1",
                                      "eval.problems=4",       NULL};

static void train(const char *dir)
{
    struct kg_config *c = config_of(dir, options);

    fresh(dir);
    NEED(kg_train_run(c, false, false, err));
    kg_config_free(c);
}

static _Atomic bool over;

static void *ask_and_ask(void *user)
{
    (void)user;
    while (!over) {
        kill(getpid(), SIGUSR1);
        usleep(1000);
    }
    return NULL;
}

static void a_run_that_is_asked_is_the_same(void **state)
{
    static const char *const files[] = {
        "checkpoints/step-000003/model/model.safetensors",
        "checkpoints/step-000003/anchor/model.safetensors",
        "checkpoints/step-000003/state.safetensors",
        "rollouts/step-000001.jsonl.zst",
        "rollouts/step-000002.jsonl.zst",
        "rollouts/step-000003.jsonl.zst"};
    struct kg_str log = {0};
    struct heard h;
    pthread_t thread;

    (void)state;
    train(ROOT "/alone");
    hear_watch(&h, 0);
    assert_int_equal(pthread_create(&thread, NULL, ask_and_ask, NULL), 0);
    train(ROOT "/watched");
    over = true;
    pthread_join(thread, NULL);
    stop_hearing(&h);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_same_file(ROOT "/alone", ROOT "/watched", files[i]);
    NEED(kg_file_read(&log, ROOT "/watched/watch.log", 1u << 26, err));
    assert_non_null(strstr(log.data, "Z state: process "));
    assert_non_null(strstr(log.data, "Z   run " ROOT "/watched, for "));
    assert_non_null(strstr(log.data, "Z     training: "));
    assert_non_null(strstr(log.data, "Z       step "));
    assert_null(strstr(log.data, "warning"));
    kg_str_release(&log);
    assert_false(kg_file_exists(ROOT "/alone/watch.log")); /* nothing was reported */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_that_is_asked_is_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
