/* Tests of the watch: what it prints on SIGUSR1, when it warns and when it does not. */
#include "base/watch.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/phase.h"
#include "base/watch_testing.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define FILE_SAID "build/test-runs/watch.log"

static void usr1_says_what_is_going_on(void **state)
{
    struct heard h;
    int run;

    (void)state;
    hear_watch(&h, 0);
    run = kg_phase_begin(200, "steps", "training");
    kg_phase_at(run, 12);
    (void)kg_phase_begin(64, "sequences", "generating");
    kill(getpid(), SIGUSR1);
    wait_for_text(&h, "last progress", 1);
    assert_non_null(strstr(heard_text(&h), "state: process "));
    assert_non_null(strstr(heard_text(&h), "\n  training: 12 of 200 steps, for "));
    assert_non_null(strstr(heard_text(&h), "\n    generating: 0 of 64 sequences, for "));
    assert_null(strstr(heard_text(&h), "warning"));
    kg_phase_end(run);
    kill(getpid(), SIGUSR1);
    wait_for_text(&h, "no thread reports a phase", 1);
    stop_hearing(&h);
}

/* SIGUSR1 interrupts no system call of a thread that sleeps, and its handler is removed
 * with the watch. */
static void no_system_call_is_broken_off(void **state)
{
    struct heard h;
    struct sigaction now;
    sigset_t mask;

    (void)state;
    hear_watch(&h, 0);
    kill(getpid(), SIGUSR1);
    assert_int_equal(usleep(100000), 0);
    wait_for_text(&h, "state: ", 1);
    stop_hearing(&h);
    sigaction(SIGUSR1, NULL, &now);
    assert_true(now.sa_handler == SIG_DFL);
    sigprocmask(SIG_BLOCK, NULL, &mask);
    assert_false(sigismember(&mask, SIGUSR1));
}

/* The watch blocks only SIGUSR1 and restores it; the caller may change the mask of other
 * signals meanwhile. */
static void the_mask_of_other_signals_is_the_callers(void **state)
{
    struct heard h;
    sigset_t mine, now;

    (void)state;
    sigemptyset(&mine);
    sigaddset(&mine, SIGUSR2);
    hear_watch(&h, 0);
    pthread_sigmask(SIG_BLOCK, &mine, NULL);
    stop_hearing(&h);
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    assert_true(sigismember(&now, SIGUSR2) && !sigismember(&now, SIGUSR1));
    sigaddset(&mine, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &mine, NULL);
    hear_watch(&h, 0);
    stop_hearing(&h);
    pthread_sigmask(SIG_UNBLOCK, &mine, &now);
    assert_true(sigismember(&now, SIGUSR2) && sigismember(&now, SIGUSR1));
}

static void what_does_not_move_is_warned_of_at_doubling_times(void **state)
{
    struct heard h;
    double began = kg_clock_seconds(), second;
    int p, w;

    (void)state;
    hear_watch(&h, 0.2);
    p = kg_phase_begin(64, "sequences", "generating");
    while (!strstr(heard_text(&h), "no progress")) { /* waiting is no progress */
        w = kg_phase_wait(began, "waiting for %s", "http://127.0.0.1:1/retrieve");
        usleep(5000);
        kg_phase_end(w);
        assert_true(kg_clock_seconds() - began < 20);
    }
    assert_true(kg_clock_seconds() - began >= 0.2);
    w = kg_phase_wait(began, "waiting for %s", "http://127.0.0.1:1/retrieve");
    wait_for_text(&h, "warning: no progress for ", 2);
    second = kg_clock_seconds() - began;
    assert_true(second >= 0.4);
    assert_non_null(strstr(heard_text(&h), "s: waiting for http://127.0.0.1:1/retrieve, "
                                           "for "));
    assert_non_null(strstr(heard_text(&h), "; in generating: 0 of 64 sequences, for "));
    wait_for_text(&h, "warning: no progress for ", 3);
    assert_true(kg_clock_seconds() - began >= 0.8);
    assert_null(strstr(heard_text(&h), "again"));
    kg_phase_at(p, 1);
    wait_for_text(&h, "progress again after ", 1);
    kg_phase_end(w);
    kg_phase_end(p);
    stop_hearing(&h);
}

static void who_works_or_is_idle_is_left_alone(void **state)
{
    struct heard h;
    double began = kg_clock_seconds();
    int p = kg_phase_begin(0, "passages", "indexing"), idle;

    (void)state;
    hear_watch(&h, 0.5);
    for (int i = 0; kg_clock_seconds() - began < 0.9; i++) {
        kg_phase_at(p, i);
        usleep(1000);
    }
    idle = kg_phase_idle("waiting for requests");
    usleep(800000);
    kg_phase_end(idle);
    kg_phase_end(p);
    stop_hearing(&h);
    assert_null(strstr(h.text, "warning"));
}

/* The watch is stopped before a fork, because its thread might hold a lock that the child
 * would inherit for ever. Afterwards parent and child each start a watch. */
static void a_new_process_has_its_own(void **state)
{
    struct heard h;
    struct kg_err err;
    char who[64];
    pid_t child;
    int ended;

    (void)state;
    hear_watch(&h, 0);
    kg_watch_stop();
    child = fork();
    if (child == 0) {
        kg_log_as("rank 3 (gpu07)");
        if (kg_watch_start(&err) != KG_OK)
            _exit(1);
        kg_log_answer("ready");
        for (;;)
            pause();
    }
    assert_int_equal(kg_watch_start(&err), KG_OK);
    snprintf(who, sizeof who, "rank 3 (gpu07): state: process %ld", (long)child);
    wait_for_text(&h, "rank 3 (gpu07): ready", 1);
    kill(child, SIGUSR1);
    wait_for_text(&h, who, 1);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &ended, 0), child);
    kill(getpid(), SIGUSR1);
    snprintf(who, sizeof who, "\nstate: process %ld", (long)getpid());
    wait_for_text(&h, who, 1);
    stop_hearing(&h);
}

static void it_is_written_to_a_file_too(void **state)
{
    struct heard h;
    char line[256] = "";
    FILE *f;

    (void)state;
    (void)remove(FILE_SAID);
    (void)system("mkdir -p build/test-runs");
    kg_watch_file(FILE_SAID);
    hear_watch(&h, 0);
    kill(getpid(), SIGUSR1);
    wait_for_text(&h, "no thread reports a phase", 1);
    stop_hearing(&h);
    kg_watch_file(NULL);
    f = fopen(FILE_SAID, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_non_null(strstr(line, "Z state: process "));
    fclose(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usr1_says_what_is_going_on),
        cmocka_unit_test(no_system_call_is_broken_off),
        cmocka_unit_test(the_mask_of_other_signals_is_the_callers),
        cmocka_unit_test(what_does_not_move_is_warned_of_at_doubling_times),
        cmocka_unit_test(who_works_or_is_idle_is_left_alone),
        cmocka_unit_test(a_new_process_has_its_own),
        cmocka_unit_test(it_is_written_to_a_file_too),
    };

    return cmocka_run_group_tests_name("watch", tests, NULL, NULL);
}
