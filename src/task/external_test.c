/* Tests of the external grader: programs that work, are slow, die, write too much, write
 * nothing, or are wrong. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/signal.h"
#include "task/task_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_ITEMS = 4096 };

static struct kg_err err;
static struct kg_grade grades[MAX_ITEMS];

static struct kg_record record(void)
{
    static char prompt[] = "p\"1";
    static char truth[] = "7";
    static char source[] = "src";
    static char extra[] = "{\"k\":[1,2]}";

    return (struct kg_record){.prompt = prompt,
                              .ground_truth = truth,
                              .data_source = source,
                              .extra_json = extra};
}

static kg_status grade_by(const struct kg_task_opts *opts, const char *response, size_t n)
{
    static struct kg_grade_item items[MAX_ITEMS];
    const struct kg_task_row *row;
    struct kg_record r = record();

    for (size_t i = 0; i < n; i++)
        items[i] = (struct kg_grade_item){
            .record = &r, .response = response, .n = strlen(response)};
    memset(&err, 0, sizeof err);
    memset(grades, 0, sizeof grades);
    assert_int_equal(kg_task_find(&row, "external", &err), KG_OK);
    return kg_task_grade(grades, row, opts, items, n, &err);
}

static kg_status run_with(const char *command, const char *response, size_t n,
                          int timeout_ms)
{
    const struct kg_task_opts opts = {.command = command, .timeout_ms = timeout_ms};

    return grade_by(&opts, response, n);
}

static void says(const char *part)
{
    if (!strstr(err.message, part) || strchr(err.message, '\n'))
        fail_msg("message without '%s': %s", part, err.message);
}

/* No child process is left, not even as a zombie. */
static void no_child_is_left(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void a_good_grader_gets_every_field_and_gives_scores(void **state)
{
    static const char wanted[] =
        "read -r line; [ \"$line\" = "
        "'{\"prompt\":\"p\\\"1\",\"response\":\"r\\n2\",\"ground_truth\":\"7\","
        "\"data_source\":\"src\",\"extra_info\":{\"k\":[1,2]}}' ] && echo '{\"score\": "
        "0.25}'";

    (void)state;
    if (run_with(wanted, "r\n2", 1, 10000) != KG_OK)
        fail_msg("%s", err.message);
    assert_true(grades[0].graded && grades[0].reward == 0.25 && !grades[0].correct);
    no_child_is_left();
}

static void scores_correctness_and_null_are_read(void **state)
{
    (void)state;
    assert_int_equal(
        run_with("cat >/dev/null; echo '{\"score\":1}'; echo '{\"score\":null}'; "
                 "echo '{\"score\":-2,\"correct\":true}'; printf "
                 "'{\"score\":3,\"correct\":false}'",
                 "r", 4, 10000),
        KG_OK);
    assert_true(grades[0].graded && grades[0].correct && grades[0].reward == 1);
    assert_true(!grades[1].graded && !grades[1].correct && grades[1].reward == 0);
    assert_true(grades[2].graded && grades[2].correct && grades[2].reward == -2);
    assert_true(grades[3].graded && !grades[3].correct && grades[3].reward == 3);
}

/* While SIGCHLD is ignored, the kernel reaps children, so their status is lost. This is
 * an error at once, not after the timeout. */
static void a_child_that_cannot_be_waited_for_is_an_error(void **state)
{
    double begin = kg_clock_seconds();

    (void)state;
    signal(SIGCHLD, SIG_IGN);
    kg_status status = run_with("cat >/dev/null; echo '{\"score\":1}'", "r", 1, 60000);
    signal(SIGCHLD, SIG_DFL);
    assert_int_equal(status, KG_EIO);
    says("expected the command's exit status, found: No child");
    says("SIGCHLD");
    assert_true(kg_clock_seconds() - begin < 30);
    no_child_is_left();
}

static void much_goes_both_ways_without_a_deadlock(void **state)
{
    static char response[4000];

    (void)state;
    memset(response, 'x', sizeof response - 1);
    /* the grader writes more than a pipe holds before it reads any of the 16 MB of
     * input */
    assert_int_equal(run_with("yes "
                              "'{\"score\":1,\"padding\":\".............................."
                              "..................\"}' | "
                              "head -n 4000; cat >/dev/null",
                              response, 4000, 60000),
                     KG_OK);
    assert_true(grades[3999].correct);
    no_child_is_left();
}

static void a_grader_that_does_not_read_raises_no_signal(void **state)
{
    static char response[4000];

    (void)state;
    memset(response, 'x', sizeof response - 1);
    assert_int_equal(
        run_with("exec <&-; yes '{\"score\":0}' | head -n 1000", response, 1000, 60000),
        KG_OK);
    no_child_is_left();
}

/* The process whose number is in the file is gone or will be soon: an orphan is reaped by
 * its new parent, which may take a moment. */
static void is_gone(const char *name)
{
    FILE *file = fopen(name, "r");
    pid_t pid = 0;

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%d", &pid), 1);
    fclose(file);
    for (int i = 0; i < 1000 && kill(pid, 0) == 0; i++) {
        char stat[64];
        char line[256] = "";

        snprintf(stat, sizeof stat, "/proc/%d/stat", pid);
        file = fopen(stat, "r");
        if (file && fgets(line, sizeof line, file) && strstr(line, ") Z"))
            i = 1000;
        if (file)
            fclose(file);
        usleep(10000);
        assert_true(i != 999);
    }
}

static void a_slow_grader_is_killed_with_all_it_started(void **state)
{
    double start = kg_clock_seconds();
    char command[256];
    char name[] = "/tmp/kg_external_XXXXXX";
    int fd = mkstemp(name);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    snprintf(command, sizeof command, "echo hm >&2; sleep 600 & echo $! > %s; wait",
             name);
    assert_int_equal(run_with(command, "r", 1, 400), KG_ETIMEOUT);
    assert_true(kg_clock_seconds() - start < 10);
    says("400 ms");
    says("hm");
    no_child_is_left();
    is_gone(name);
    unlink(name);
}

static void a_grader_that_closes_its_outputs_still_ends_in_time(void **state)
{
    (void)state;
    assert_int_equal(run_with("exec >&- 2>&-; sleep 600", "r", 1, 300), KG_ETIMEOUT);
    no_child_is_left();
}

static void what_a_grader_leaves_behind_is_killed(void **state)
{
    double start = kg_clock_seconds();

    (void)state;
    assert_int_equal(
        run_with("sleep 600 >/dev/null 2>&1 & cat >/dev/null; echo '{\"score\":1}'", "r",
                 1, 60000),
        KG_OK);
    assert_true(kg_clock_seconds() - start < 30);
    no_child_is_left();
}

static void a_dying_grader_is_named_with_its_last_words(void **state)
{
    (void)state;
    assert_int_equal(
        run_with("echo first >&2; echo 'no module\tnamed x' >&2; echo >&2; exit 3", "r",
                 1, 10000),
        KG_EIO);
    says("exit status 0, found 3: no module named x");
    assert_int_equal(run_with("kill -SEGV $$", "r", 1, 10000), KG_EIO);
    says("signal 11");
    says("nothing on its standard error");
    assert_int_equal(run_with("/no/such/program", "r", 1, 10000), KG_EIO);
    says("found 127");
    assert_int_equal(run_with("printf ' ' >&2; exit 4", "r", 1, 10000), KG_EIO);
    says("found 4: nothing on its standard error");
    /* of a flood of output, the last line is kept */
    assert_int_equal(
        run_with(
            "head -c 300000 /dev/zero | tr '\\0' 'y' >&2; echo >&2; echo end >&2; exit 1",
            "r", 1, 10000),
        KG_EIO);
    says("found 1: end");
    no_child_is_left();
}

static volatile sig_atomic_t rings;
static void ring(int number)
{
    (void)number;
    rings++;
}

/* A handled signal interrupts a wait, which must be resumed. */
static void signals_of_the_run_disturb_no_grader(void **state)
{
    struct sigaction act = {.sa_handler = ring}, before;
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};

    (void)state;
    assert_int_equal(sigaction(SIGALRM, &act, &before), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    for (int i = 0; i < 5; i++)
        if (run_with("sleep 0.02; while read -r x; do echo '{\"score\":1}'; done; exec "
                     ">&- 2>&-; sleep 0.02",
                     "r", 20, 10000) != KG_OK)
            fail_msg("%s", err.message);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
    assert_true(rings > 20);
    no_child_is_left();
}

static void wrong_answers_are_refused(void **state)
{
    static const struct {
        const char *answers;
        const char *part;
    } rows[] = {
        {"", "expected 2 answers, found 0"},
        {"{\"score\":1}", "expected 2 answers, found 1"},
        {"{\"score\":1}\\n{\"score\":1}\\n{\"score\":1}",
         "expected 2 answers, found more"},
        {"garbage\\n{\"score\":1}", "line 1"},
        {"{\"score\":1}\\n{\"score\":\"1\"}", "line 2"},
        {"{\"score\":1}\\n{\"reward\":1}", "line 2"},
        {"{\"score\":1}\\n[1]", "line 2"},
        {"{\"score\":NaN}\\n{\"score\":1}", "line 1"},
        {"{\"score\":1}\\n\\n{\"score\":1}", "line 2"},
    };
    char command[256];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(command, sizeof command, "cat >/dev/null; printf '%s\\n'",
                 rows[i].answers);
        if (!rows[i].answers[0])
            snprintf(command, sizeof command, "cat >/dev/null");
        assert_int_equal(run_with(command, "r", 2, 10000), KG_EFORMAT);
        says(rows[i].part);
    }
}

/* Numbers and booleans are kept; text, lists and null are ignored. */
static void further_numbers_are_kept_by_their_names(void **state)
{
    struct kg_further_names names = {.n = 0};
    const struct kg_task_opts opts = {
        .command = "cat >/dev/null; echo '{\"words\":12,\"score\":1,\"ok\":true,"
                   "\"why\":\"so\",\"list\":[1],\"none\":null}'; "
                   "echo '{\"score\":null,\"rate.p-1\":-0.25,\"ok\":false}'; "
                   "echo '{\"score\":0}'",
        .timeout_ms = 10000,
        .further = &names};

    (void)state;
    assert_int_equal(grade_by(&opts, "r", 3), KG_OK);
    assert_int_equal(names.n, 3);
    assert_string_equal(names.name[0], "words");
    assert_string_equal(names.name[1], "ok");
    assert_string_equal(names.name[2], "rate.p-1");
    assert_int_equal(grades[0].further.said, 3);
    assert_true(grades[0].further.x[0] == 12 && grades[0].further.x[1] == 1);
    assert_int_equal(grades[1].further.said, 6);
    assert_true(grades[1].further.x[1] == 0 && grades[1].further.x[2] == -0.25);
    assert_int_equal(grades[2].further.said, 0);
}

static void names_and_sizes_of_further_numbers_are_checked(void **state)
{
    static const struct {
        const char *answer, *part;
    } rows[] = {
        {"\"a b\":1", "found 'a b'"},
        {"\"\":1", "found ''"},
        {"\"val/x\":true", "found 'val/x'"},
        {"\"a2345678901234567890123456789012\":1", "up to 31 letters"},
        {"\"big\":1e101", "expected big of magnitude at most 1e+100"},
        {"\"correct\":1", "expected correct as true or false"},
        {"\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,"
         "\"j\":1,\"k\":1,\"l\":1,\"m\":1,\"n\":1,\"o\":1,\"p\":1,\"q\":1",
         "found one more, 'q'"},
    };
    char command[256];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kg_further_names names = {.n = 0};
        const struct kg_task_opts opts = {
            .command = command, .timeout_ms = 10000, .further = &names};

        snprintf(command, sizeof command,
                 "cat >/dev/null; echo '{\"score\":1}'; echo '{\"score\":1,%s}'",
                 rows[i].answer);
        assert_int_equal(grade_by(&opts, "r", 2), KG_EFORMAT);
        says("line 2: ");
        says(rows[i].part);
    }
}

static void a_flood_of_answers_is_cut_off(void **state)
{
    (void)state;
    assert_int_equal(run_with("yes", "r", 1, 60000), KG_EFORMAT);
    says("bytes of answers");
    no_child_is_left();
}

/* The grader may have its own gold answers. */
static void records_need_no_answer(void **state)
{
    static const char line[] = "{\"prompt\": \"2 + 2\"}\n";
    struct kg_task_opts opts = {.command = "true", .timeout_ms = 10000};
    const struct kg_task_row *row;
    struct kg_dataset d;
    char name[] = "/tmp/kg_external_XXXXXX";
    int fd = mkstemp(name);

    (void)state;
    assert_int_equal(write(fd, line, sizeof line - 1), sizeof line - 1);
    close(fd);
    assert_int_equal(kg_task_find(&row, "external", &err), KG_OK);
    if (kg_task_load(&d, row, &opts, name, &err) != KG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(d.n, 1);
    kg_dataset_release(&d);
    unlink(name);
}

static void a_command_and_a_limit_are_needed(void **state)
{
    (void)state;
    assert_int_equal(run_with(NULL, "r", 1, 1000), KG_EINVAL);
    assert_int_equal(run_with("", "r", 1, 1000), KG_EINVAL);
    assert_int_equal(run_with("true", "r", 1, 0), KG_EINVAL);
}

/* ---- graders that keep running ---- */

#define COUNTS "while read -r l; do n=$((n + 1)); echo \"{\\\"score\\\": $n}\"; done"

static struct kg_task_grader_stats stats;

struct pace {
    int timeout_ms;
    useconds_t pause_us; /* between two batches */
};

/* Grades that many batches of two with one grader.   returns the status of the last
 * batch */
static kg_status stay_at(struct pace pace, const char *command, int batches,
                         enum kg_task_life life)
{
    struct kg_task_opts opts = {
        .command = command, .timeout_ms = pace.timeout_ms, .life = life};
    kg_status status = KG_OK;

    assert_int_equal(kg_task_grader_open(&opts.running, &opts, &err), KG_OK);
    for (int i = 0; i < batches && status == KG_OK; i++) {
        usleep(i > 0 ? pace.pause_us : 0);
        status = grade_by(&opts, "r", 2);
    }
    stats = kg_task_grader_stats(opts.running);
    kg_task_grader_close(opts.running);
    no_child_is_left();
    return status;
}

static kg_status stay(const char *command, int batches, enum kg_task_life life)
{
    return stay_at((struct pace){.timeout_ms = 10000}, command, batches, life);
}

static void a_grader_that_answers_line_by_line_is_started_once(void **state)
{
    (void)state;
    assert_int_equal(stay(COUNTS, 5, KG_TASK_LIFE_AUTO), KG_OK);
    assert_true(grades[0].reward == 9 && grades[1].reward == 10);
    assert_int_equal(stats.starts, 1);
    assert_int_equal(stats.restarts, 0);
    assert_int_equal(stats.batches, 5);
    assert_int_equal(stay(COUNTS, 2, KG_TASK_LIFE_RUN), KG_OK);
    assert_int_equal(stats.starts, 1);
    assert_int_equal(stay(COUNTS, 3, KG_TASK_LIFE_BATCH), KG_OK);
    assert_true(grades[0].reward == 1 && grades[1].reward == 2);
    assert_int_equal(stats.starts, 3);
}

/* sed buffers its output until its input ends. The first batch shows this, because no
 * score arrives until then. */
static void a_grader_that_reads_to_the_end_is_started_for_each_batch(void **state)
{
    double start = kg_clock_seconds();

    (void)state;
    assert_int_equal(stay("sed 's/.*/{\"score\": 3}/'", 4, KG_TASK_LIFE_AUTO), KG_OK);
    assert_true(grades[1].reward == 3);
    assert_int_equal(stats.starts, 4);
    assert_int_equal(stats.restarts, 0);
    assert_true(kg_clock_seconds() - start < 8); /* waited once, not four times */
    /* a grader that exits after each batch is treated in the same way */
    assert_int_equal(stay("read -r l; read -r l; echo '{\"score\": 1}'; echo "
                          "'{\"score\": 2}'",
                          3, KG_TASK_LIFE_AUTO),
                     KG_OK);
    assert_int_equal(stats.starts, 3);
    assert_int_equal(stats.restarts, 0);
    /* with KG_TASK_LIFE_RUN it must keep running, so its end counts as a failure */
    assert_int_equal(
        stay("exec <&-; yes '{\"score\": 1}' | head -n 2", 2, KG_TASK_LIFE_RUN), KG_OK);
    assert_int_equal(stats.restarts, 1);
}

/* The wait that detects such a grader is shortened to fit the timeout. */
static void a_short_time_is_enough_to_tell_what_reads_to_the_end(void **state)
{
    (void)state;
    assert_int_equal(stay_at((struct pace){.timeout_ms = 1500},
                             "sed 's/.*/{\"score\": 3}/'", 2, KG_TASK_LIFE_AUTO),
                     KG_OK);
    assert_true(grades[1].reward == 3);
    assert_int_equal(stats.starts, 2);
}

static void one_that_dies_after_it_has_served_is_started_anew(void **state)
{
    char name[] = "/tmp/kg_external_XXXXXX";
    char command[512];
    int fd = mkstemp(name);

    (void)state;
    close(fd);
    /* dies once, in the middle of the third batch */
    snprintf(command, sizeof command,
             "while read -r l; do n=$((n + 1)); if [ $n = 6 ] && [ -e %s ]; then rm %s; "
             "kill -9 $$; fi; echo \"{\\\"score\\\": $n}\"; done",
             name, name);
    assert_int_equal(stay(command, 4, KG_TASK_LIFE_AUTO), KG_OK);
    assert_true(grades[0].reward == 3 && grades[1].reward == 4);
    assert_int_equal(stats.starts, 2);
    assert_int_equal(stats.restarts, 1);
    assert_int_equal(stats.batches, 4);
    assert_int_equal(access(name, F_OK), -1);
    /* a grader that dies before its first score is not started again */
    assert_int_equal(stay("read -r l; echo no model >&2; exit 3", 2, KG_TASK_LIFE_AUTO),
                     KG_EIO);
    says("found 3: no model");
    assert_int_equal(stats.starts, 1);
    /* a grader that has served may also die at the first line of a batch */
    assert_int_equal(stay("read -r l; echo '{\"score\": 1}'; read -r l; "
                          "echo '{\"score\": 1}'; read -r l; exit 4",
                          2, KG_TASK_LIFE_RUN),
                     KG_OK);
    assert_int_equal(stats.restarts, 1);
}

static void answers_that_nobody_asked_for_are_refused(void **state)
{
    const struct pace late = {.timeout_ms = 10000, .pause_us = 500000};

    (void)state;
    assert_int_equal(stay("while read -r l; do echo '{\"score\": 1}'; echo "
                          "'{\"score\": 1}'; done",
                          2, KG_TASK_LIFE_AUTO),
                     KG_EFORMAT);
    says("found more");
    /* too late: after all scores of the batch */
    assert_int_equal(stay_at(late,
                             "while read -r l; do echo '{\"score\": 1}'; n=$((n + 1)); "
                             "[ $n != 2 ] || echo late; done",
                             2, KG_TASK_LIFE_AUTO),
                     KG_EFORMAT);
    says("late");
}

/* ---- processes that outlive the grader ---- */

static void
who_holds_the_output_of_a_grader_that_has_ended_is_not_waited_for(void **state)
{
    double start = kg_clock_seconds();

    (void)state;
    assert_int_equal(
        run_with("cat >/dev/null; sleep 600 & echo '{\"score\":1}'", "r", 1, 60000),
        KG_OK);
    assert_true(grades[0].correct);
    assert_true(kg_clock_seconds() - start < 10);
    no_child_is_left();
}

#define ESCAPES "setsid sh -c 'echo $$ > %s; exec sleep 600' >/dev/null 2>&1 & "
#define FORGETS "env -i sh -c 'echo $$ > %s; exec sleep 600' >/dev/null 2>&1 & "

static void a_child_in_a_session_of_its_own_ends_with_the_grader(void **state)
{
    char name[] = "/tmp/kg_external_XXXXXX";
    char command[512];
    int fd = mkstemp(name);

    (void)state;
    close(fd);
    snprintf(command, sizeof command,
             ESCAPES "cat >/dev/null; while [ ! -s %s ]; do sleep 0.01; done; "
                     "echo '{\"score\":1}'",
             name, name);
    assert_int_equal(run_with(command, "r", 1, 60000), KG_OK);
    is_gone(name);
    unlink(name);
    no_child_is_left();
}

/* Runs in a child process, which exits with the outcome. */
static void hang(const char *command)
{
    struct kg_task_opts opts = {.command = command, .timeout_ms = 60000};

    kg_signal_install();
    assert_int_equal(kg_task_grader_open(&opts.running, &opts, &err), KG_OK);
    kg_status status = grade_by(&opts, "r", 1);
    kg_task_grader_close(opts.running);
    _exit(status == KG_EINTERRUPTED ? 5 : 6);
}

/* Starts a child process whose grader hangs; `starts` is a command that the grader runs
 * first. */
static pid_t hang_aside(const char *starts, const char *name)
{
    char child[256], command[512];
    pid_t pid;

    unlink(name);
    snprintf(child, sizeof child, starts, name);
    snprintf(command, sizeof command,
             "%s while [ ! -s %s ]; do sleep 0.01; done; sleep 600", child, name);
    pid = fork();
    if (pid == 0)
        hang(command);
    for (int i = 0; i < 1000 && access(name, F_OK) != 0; i++)
        usleep(10000);
    usleep(100000); /* time to write the number into the file */
    return pid;
}

/* Not even a descendant that left the session, or that cleared its environment,
 * survives. */
static void a_grader_does_not_outlive_a_kedge_that_is_killed(void **state)
{
    static const char *const starts[] = {ESCAPES, FORGETS};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char name[] = "/tmp/kg_external_XXXXXX";
        int fd = mkstemp(name), wait_status;
        pid_t pid;

        close(fd);
        pid = hang_aside(starts[i], name);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, &wait_status, 0), pid);
        is_gone(name);
        unlink(name);
    }
}

static void a_stop_breaks_off_a_grader_that_hangs(void **state)
{
    char name[] = "/tmp/kg_external_XXXXXX";
    int fd = mkstemp(name), wait_status;
    double start;
    pid_t pid;

    (void)state;
    close(fd);
    pid = hang_aside(ESCAPES, name);
    start = kg_clock_seconds();
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    assert_true(WIFEXITED(wait_status));
    assert_int_equal(WEXITSTATUS(wait_status), 5);
    assert_true(kg_clock_seconds() - start < 15);
    is_gone(name);
    unlink(name);
}

static void the_environment_is_passed_by_name(void **state)
{
    static const char shows[] = "cat >/dev/null; [ \"$HOME\" ] && [ \"$PATH\" ] && "
                                "[ \"$LC_KG\" = 2 ] && echo \"{\\\"score\\\": "
                                "1${KG_SECRET}${KG_TOKEN}}\"";
    struct kg_task_opts opts = {.command = shows, .timeout_ms = 10000};

    (void)state;
    setenv("KG_SECRET", "5", 1);
    setenv("KG_TOKEN", "7", 1);
    setenv("LC_KG", "2", 1);
    setenv("HOME", "/root", 0);
    assert_int_equal(grade_by(&opts, "r", 1), KG_OK);
    assert_true(grades[0].reward == 1);
    opts.env = "KG_TOKEN";
    assert_int_equal(grade_by(&opts, "r", 1), KG_OK);
    assert_true(grades[0].reward == 17);
    opts.env = "KG_SECRET, KG_TOKEN";
    assert_int_equal(grade_by(&opts, "r", 1), KG_OK);
    assert_true(grades[0].reward == 157);
    opts.env = "KG_TOKEN,KG_TOKE";
    assert_int_equal(grade_by(&opts, "r", 1), KG_EINVAL);
    says("that are set, found 'KG_TOKE'");
    assert_int_equal(kg_task_grader_open(&opts.running, &opts, &err), KG_EINVAL);
}

static void descriptors_do_not_pile_up(void **state)
{
    int before = dup(0);
    int after;

    (void)state;
    close(before);
    for (int i = 0; i < 50; i++)
        assert_int_equal(run_with("cat >/dev/null; echo '{\"score\":1}'", "r", 1, 10000),
                         KG_OK);
    after = dup(0);
    close(after);
    assert_int_equal(after, before);
}

static bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

/* Each round leaves one descriptor more, so opening fails at every possible point. */
static void
a_grader_without_descriptors_is_an_error_and_closes_none_of_kedges(void **state)
{
    struct rlimit usual, few;
    kg_status status = KG_EIO;
    int lowest = dup(0), left = 0;

    (void)state;
    close(lowest);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    for (few = usual; status == KG_EIO && left < 20; left++) {
        few.rlim_cur = (rlim_t)(lowest + left);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        status = run_with("cat >/dev/null; echo '{\"score\":1}'", "r", 1, 10000);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
        assert_true(is_open(0) && is_open(1) && is_open(2) && !is_open(lowest));
        no_child_is_left();
    }
    assert_int_equal(status, KG_OK);
    assert_true(left > 3);
}

static void every_failed_allocation_is_a_status(void **state)
{
    uint64_t before = kg_mem_current_bytes();
    kg_status status = KG_ENOMEM;
    int n = 0;

    (void)state;
    while (status != KG_OK && n < 100) {
        kg_mem_fail_at((uint64_t)++n);
        status = run_with("cat >/dev/null; echo '{\"score\":1}'", "r", 1, 10000);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), before);
        no_child_is_left();
    }
    assert_true(n > 3 && n < 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_grader_gets_every_field_and_gives_scores),
        cmocka_unit_test(scores_correctness_and_null_are_read),
        cmocka_unit_test(a_child_that_cannot_be_waited_for_is_an_error),
        cmocka_unit_test(much_goes_both_ways_without_a_deadlock),
        cmocka_unit_test(a_grader_that_does_not_read_raises_no_signal),
        cmocka_unit_test(a_slow_grader_is_killed_with_all_it_started),
        cmocka_unit_test(a_grader_that_closes_its_outputs_still_ends_in_time),
        cmocka_unit_test(what_a_grader_leaves_behind_is_killed),
        cmocka_unit_test(a_dying_grader_is_named_with_its_last_words),
        cmocka_unit_test(signals_of_the_run_disturb_no_grader),
        cmocka_unit_test(wrong_answers_are_refused),
        cmocka_unit_test(further_numbers_are_kept_by_their_names),
        cmocka_unit_test(names_and_sizes_of_further_numbers_are_checked),
        cmocka_unit_test(a_flood_of_answers_is_cut_off),
        cmocka_unit_test(records_need_no_answer),
        cmocka_unit_test(a_command_and_a_limit_are_needed),
        cmocka_unit_test(a_grader_that_answers_line_by_line_is_started_once),
        cmocka_unit_test(a_grader_that_reads_to_the_end_is_started_for_each_batch),
        cmocka_unit_test(a_short_time_is_enough_to_tell_what_reads_to_the_end),
        cmocka_unit_test(one_that_dies_after_it_has_served_is_started_anew),
        cmocka_unit_test(answers_that_nobody_asked_for_are_refused),
        cmocka_unit_test(
            who_holds_the_output_of_a_grader_that_has_ended_is_not_waited_for),
        cmocka_unit_test(a_child_in_a_session_of_its_own_ends_with_the_grader),
        cmocka_unit_test(a_grader_does_not_outlive_a_kedge_that_is_killed),
        cmocka_unit_test(a_stop_breaks_off_a_grader_that_hangs),
        cmocka_unit_test(the_environment_is_passed_by_name),
        cmocka_unit_test(descriptors_do_not_pile_up),
        cmocka_unit_test(
            a_grader_without_descriptors_is_an_error_and_closes_none_of_kedges),
        cmocka_unit_test(every_failed_allocation_is_a_status),
    };

    return cmocka_run_group_tests_name("external", tests, NULL, NULL);
}
