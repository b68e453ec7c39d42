/* Tests of the stop flag, each in a child process so that a signal ends nothing else. */
#include "base/signal.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Exit status of a child that gets `first`, then `second` unless 0. 50: it saw the
 * request. */
static int child(int first, int second)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        kg_signal_install();
        if (kg_signal_stop_requested())
            _exit(51);
        raise(first);
        if (!kg_signal_stop_requested())
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_signal_asks),
        cmocka_unit_test(the_second_signal_ends_the_process),
        cmocka_unit_test(a_pipe_without_a_reader_is_an_error_not_the_end),
    };

    return cmocka_run_group_tests_name("signal", tests, NULL, NULL);
}
