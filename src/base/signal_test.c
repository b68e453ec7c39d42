/* Tests of the stop flag, each in a child process, so that a signal does not end the
 * tests. */
#include "base/signal.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Raises `first` in a child, then `second` unless 0.   returns its exit status; 50: it
 * saw the request */
static int child(int first, int second)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        signal(SIGHUP, SIG_DFL); /* the tests may run under nohup */
        kg_signal_install();
        if (kg_signal_stop_requested() || kg_signal_number() != 0)
            _exit(51);
        raise(first);
        if (!kg_signal_stop_requested() || kg_signal_number() != first)
            _exit(52);
        if (second)
            raise(second);
        _exit(50);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void the_first_signal_asks(void **state)
{
    (void)state;
    assert_int_equal(child(SIGINT, 0), 50);
    assert_int_equal(child(SIGTERM, 0), 50);
    assert_int_equal(child(SIGHUP, 0), 50);
}

static void the_second_signal_ends_the_process(void **state)
{
    (void)state;
    assert_int_equal(child(SIGINT, SIGINT), 130);
    assert_int_equal(child(SIGTERM, SIGINT), 130);
    assert_int_equal(child(SIGINT, SIGTERM), 143);
}

static void a_pipe_without_a_reader_is_an_error_not_the_end(void **state)
{
    int status;
    pid_t pid;

    (void)state;
    pid = fork();
    if (pid == 0) {
        int ends[2];

        kg_signal_install();
        if (pipe(ends) != 0 || close(ends[0]) != 0)
            _exit(2);
        _exit(write(ends[1], "x", 1) < 0 && errno == EPIPE ? 50 : 3);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 50);
}

/* Runs write_one in a child that handles signals.   returns its errno, or 0 */
static int in_child(int (*write_one)(void))
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        kg_signal_install();
        _exit(write_one() < 0 ? errno : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int write_past_the_limit(void)
{
    const struct rlimit one = {1, 1};
    char name[] = "/tmp/kg_signal_test_XXXXXX";
    int fd = mkstemp(name);

    if (fd < 0 || unlink(name) != 0 || setrlimit(RLIMIT_FSIZE, &one) != 0)
        return 0;
    return write(fd, "x", 1) == 1 && write(fd, "y", 1) < 0 ? -1 : 0;
}

static void a_file_at_its_limit_is_an_error_not_the_end(void **state)
{
    (void)state;
    assert_int_equal(in_child(write_past_the_limit), EFBIG);
}

/* As under nohup. */
static int hang_up_ignored(void)
{
    signal(SIGHUP, SIG_IGN);
    kg_signal_install();
    raise(SIGHUP);
    errno = kg_signal_stop_requested() ? 1 : 2;
    return -1;
}

static void nohup_holds(void **state)
{
    (void)state;
    assert_int_equal(in_child(hang_up_ignored), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_signal_asks),
        cmocka_unit_test(the_second_signal_ends_the_process),
        cmocka_unit_test(a_pipe_without_a_reader_is_an_error_not_the_end),
        cmocka_unit_test(a_file_at_its_limit_is_an_error_not_the_end),
        cmocka_unit_test(nohup_holds),
    };

    return cmocka_run_group_tests_name("signal", tests, NULL, NULL);
}
