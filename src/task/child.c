/* A program of the user's: run by sh -c, fed, read, and ended, whatever it does.
 *
 * It runs in a process group of its own, so that all it started can be killed with it.
 * Its three pipes are served by one poll loop: a child may write before it has read, read
 * nothing, or never end. posix_spawn instead of fork, as the parent has threads and may
 * hold most of the memory.
 */
#define _GNU_SOURCE /* pipe2 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/phase.h"
#include "task/task_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    IN = 0, /* what the child reads */
    OUT = 1,
    ERR = 2,
    PIPES = 3,
    READ_BYTES = 1 << 16,
    STDERR_BYTES = 4096, /* the last ones are kept */
};

extern char **environ;

struct run {
    const struct kg_task_child *child;
    pid_t pid;         /* and process group */
    int ours[PIPES];   /* our ends; -1 when closed */
    int theirs[PIPES]; /* the child's ends, until it has started */
    size_t sent;
    double deadline;
    struct kg_str *out;
    char said[STDERR_BYTES + 1]; /* the end of its standard error */
    size_t said_n;
    char *buffer; /* owned, READ_BYTES */
};

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_all(struct run *run)
{
    for (int i = 0; i < PIPES; i++) {
        close_one(&run->ours[i]);
        close_one(&run->theirs[i]);
    }
}

/* ---- starting ---- */

static kg_status open_pipes(struct run *run, struct kg_err *err)
{
    for (int i = 0; i < PIPES; i++) {
        int fds[2];

        if (pipe2(fds, O_CLOEXEC) != 0)
            return kg_fail(err, KG_EIO, "expected a pipe to the grader, found: %s",
                           strerror(errno));
        run->ours[i] = fds[i == IN];
        run->theirs[i] = fds[i != IN];
        if (fcntl(run->ours[i], F_SETFL, O_NONBLOCK) != 0)
            return kg_fail(err, KG_EIO, "expected a pipe to the grader, found: %s",
                           strerror(errno));
    }
    return KG_OK;
}

/* The child starts with default signals, none blocked, in its own group. */
static int spawn(struct run *run, posix_spawn_file_actions_t *files,
                 posix_spawnattr_t *attr)
{
    char *const argv[] = {(char[]){"sh"}, (char[]){"-c"},
                          (char *)(uintptr_t)run->child->command, NULL};
    short flags = POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK;
    sigset_t all;
    sigset_t none;
    int failed = 0;

    sigfillset(&all);
    sigemptyset(&none);
    for (int i = 0; i < PIPES; i++)
        failed |= posix_spawn_file_actions_adddup2(files, run->theirs[i], i);
    failed |= posix_spawnattr_setpgroup(attr, 0) |
              posix_spawnattr_setsigdefault(attr, &all) |
              posix_spawnattr_setsigmask(attr, &none) |
              posix_spawnattr_setflags(attr, flags);
    return failed ? ENOMEM
                  : posix_spawn(&run->pid, "/bin/sh", files, attr, argv, environ);
}

static kg_status start(struct run *run, struct kg_err *err)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    int failed;

    KG_TRY(open_pipes(run, err));
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    failed = spawn(run, &files, &attr);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    for (int i = 0; i < PIPES; i++)
        close_one(&run->theirs[i]);
    if (failed)
        return kg_fail(err, KG_EIO, "expected to start '%.80s', found: %s",
                       run->child->command, strerror(failed));
    return KG_OK;
}

/* ---- serving the pipes ---- */

/* write() to a pipe whose reader is gone raises SIGPIPE, in this thread. Block it and
 * take it back. */
static ssize_t write_quietly(int fd, const char *bytes, size_t n)
{
    const struct timespec now = {0};
    sigset_t pipe_only;
    sigset_t before;
    sigset_t pending;
    ssize_t written;
    int saved;

    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    written = write(fd, bytes, n);
    saved = errno;
    if (written < 0 && saved == EPIPE && !sigismember(&pending, SIGPIPE)) {
        while (sigtimedwait(&pipe_only, NULL, &now) < 0 && errno == EINTR)
            continue;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = saved;
    return written;
}

static bool is_retry(void) { return errno == EAGAIN || errno == EINTR; }

/* A child that stops reading is not an error of its own: its answers and exit status
 * tell. */
static void serve_input(struct run *run)
{
    size_t left = run->child->input_n - run->sent;
    ssize_t n = write_quietly(run->ours[IN], run->child->input + run->sent, left);

    if (n < 0 && is_retry())
        return;
    if (n > 0)
        run->sent += (size_t)n;
    if (n < 0 || run->sent == run->child->input_n)
        close_one(&run->ours[IN]);
}

static kg_status serve_output(struct run *run, struct kg_err *err)
{
    ssize_t n = read(run->ours[OUT], run->buffer, READ_BYTES);

    if (n < 0 && is_retry())
        return KG_OK;
    if (n <= 0) {
        close_one(&run->ours[OUT]);
        return KG_OK;
    }
    if (run->out->len + (size_t)n > run->child->max_output)
        return kg_fail(err, KG_EFORMAT,
                       "'%.80s': expected at most %zu bytes of answers, found more",
                       run->child->command, run->child->max_output);
    return kg_str_append(run->out, run->buffer, (size_t)n, err);
}

static void keep_said(struct run *run, const char *bytes, size_t n)
{
    size_t keep;

    if (n > STDERR_BYTES) {
        bytes += n - STDERR_BYTES;
        n = STDERR_BYTES;
    }
    keep = run->said_n + n > STDERR_BYTES ? STDERR_BYTES - n : run->said_n;
    memmove(run->said, run->said + run->said_n - keep, keep);
    memcpy(run->said + keep, bytes, n);
    run->said_n = keep + n;
}

static void serve_error(struct run *run)
{
    ssize_t n = read(run->ours[ERR], run->buffer, READ_BYTES);

    if (n > 0)
        keep_said(run, run->buffer, (size_t)n);
    else if (n == 0 || !is_retry())
        close_one(&run->ours[ERR]);
}

static int left_ms(const struct run *run)
{
    double left = (run->deadline - kg_clock_seconds()) * 1000;

    return left <= 0 ? 0 : left > 1e9 ? 1000000000 : (int)left + 1;
}

static kg_status timed_out(const struct run *run, struct kg_err *err)
{
    return kg_fail(err, KG_ETIMEOUT,
                   "'%.80s': expected to end within %d ms, found it running; killed",
                   run->child->command, run->child->timeout_ms);
}

/* Until the child has closed both of its outputs. */
static kg_status serve(struct run *run, struct kg_err *err)
{
    if (run->child->input_n == 0)
        close_one(&run->ours[IN]);
    while (run->ours[OUT] >= 0 || run->ours[ERR] >= 0) {
        struct pollfd fds[PIPES] = {
            {.fd = run->ours[IN], .events = POLLOUT},
            {.fd = run->ours[OUT], .events = POLLIN},
            {.fd = run->ours[ERR], .events = POLLIN},
        };
        int wait_ms = left_ms(run);

        if (wait_ms == 0)
            return timed_out(run, err);
        if (poll(fds, PIPES, wait_ms) < 0 && errno != EINTR)
            return kg_fail(err, KG_EIO, "'%.80s': expected to wait for it, found: %s",
                           run->child->command, strerror(errno));
        if (fds[IN].revents)
            serve_input(run);
        if (fds[OUT].revents)
            KG_TRY(serve_output(run, err));
        if (fds[ERR].revents)
            serve_error(run);
    }
    return KG_OK;
}

/* ---- the end ---- */

/* Wait for the child without reaping it: while it is a zombie, its group's number is
 * still its own. */
static kg_status await(const struct run *run, struct kg_err *err)
{
    struct timespec nap = {.tv_nsec = 200 * 1000};

    for (;;) {
        siginfo_t info = {.si_pid = 0};

        if (waitid(P_PID, (id_t)run->pid, &info, WEXITED | WNOWAIT | WNOHANG) != 0 &&
            errno != EINTR)
            return kg_fail(err, KG_EIO, "'%.80s': expected to wait for it, found: %s",
                           run->child->command, strerror(errno));
        if (info.si_pid == run->pid)
            return KG_OK;
        if (left_ms(run) == 0)
            return timed_out(run, err);
        nanosleep(&nap, NULL);
        if (nap.tv_nsec < 10 * 1000 * 1000)
            nap.tv_nsec *= 2;
    }
}

/* Kill what is left of the group, and reap the child.   returns its wait status */
static int finish(struct run *run)
{
    int wait_status = 0;

    kill(-run->pid, SIGKILL);
    while (waitpid(run->pid, &wait_status, 0) < 0 && errno == EINTR)
        continue;
    return wait_status;
}

/* The last line with text of its standard error, without control characters. */
static const char *last_said(struct run *run)
{
    char *line = run->said;

    while (run->said_n > 0 && (unsigned char)run->said[run->said_n - 1] <= ' ')
        run->said_n--;
    run->said[run->said_n] = 0;
    for (char *c = run->said; *c; c++) {
        if (*c == '\n')
            line = c + 1;
    }
    for (char *c = line; *c; c++)
        *c = (unsigned char)*c < ' ' ? ' ' : *c;
    return *line ? line : "nothing on its standard error";
}

static kg_status judge(struct run *run, int wait_status, struct kg_err *err)
{
    const char *command = run->child->command;

    if (WIFSIGNALED(wait_status))
        return kg_fail(err, KG_EIO,
                       "'%.80s': expected exit status 0, found signal %d (%s): %.300s",
                       command, WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)),
                       last_said(run));
    if (WEXITSTATUS(wait_status) != 0)
        return kg_fail(err, KG_EIO, "'%.80s': expected exit status 0, found %d: %.300s",
                       command, WEXITSTATUS(wait_status), last_said(run));
    return KG_OK;
}

static kg_status run_started(struct run *run, struct kg_err *err)
{
    int phase = kg_phase_wait(kg_clock_seconds(),
                              "waiting for '%.80s', which is killed after %g s",
                              run->child->command, 1e-3 * run->child->timeout_ms);
    kg_status status;
    int wait_status;

    KG_TRY_GOTO(out, serve(run, err));
    KG_TRY_GOTO(out, await(run, err));
out:
    wait_status = finish(run);
    kg_phase_end(phase);
    if (status == KG_OK)
        return judge(run, wait_status, err);
    if (status == KG_ETIMEOUT && run->said_n > 0)
        return kg_fail(
            err, status,
            "'%.80s': expected to end within %d ms, found it running; killed: %.300s",
            run->child->command, run->child->timeout_ms, last_said(run));
    return status;
}

kg_status kg_task_child_run(struct kg_str *out, const struct kg_task_child *child,
                            struct kg_err *err)
{
    struct run run = {
        .child = child,
        .ours = {-1, -1, -1},
        .theirs = {-1, -1, -1},
        .deadline = kg_clock_seconds() + child->timeout_ms / 1000.0,
        .out = out,
    };
    kg_status status;

    run.buffer = kg_mem_calloc(READ_BYTES, 1, "read buffer", err);
    if (!run.buffer)
        return err->code;
    KG_TRY_GOTO(out, start(&run, err));
    KG_TRY_GOTO(out, run_started(&run, err));
out:
    close_all(&run);
    kg_mem_free(run.buffer);
    return status;
}
