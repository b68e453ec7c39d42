/* A program of the user: starts it by sh -c, writes to it, reads from it, and ends it.
 *
 * It runs in its own process group under a guard (guard.c), so that all processes that it
 * started end with it. It gets only the environment variables of a list. One poll loop
 * serves its three pipes: a child may write before it has read, read nothing, or never
 * end. A child that replies line by line stays and is used again. posix_spawn instead of
 * fork, because the parent has threads and may hold most of the memory.
 */
#define _GNU_SOURCE /* pipe2 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/phase.h"
#include "base/signal.h"
#include "task/child_internal.h"
#include "task/task_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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
    SLICE_MS = 50,       /* poll interval for events without a pipe */
    LINGER_MS = 200,     /* wait for the rest in the pipes of an ended child */
    MAX_VARIABLES = 1024,
};
static const double PATIENCE = 2;   /* see struct kg_task_talk */
static const double STOP_GRACE = 3; /* seconds for a batch after a stop request */

extern char **environ;

struct kg_task_child {
    struct kg_task_command command; /* text borrowed */
    struct kg_task_guard guard;
    pid_t pid;                   /* and process group; 0: none */
    int ours[PIPES];             /* our ends; -1 when closed */
    int theirs[PIPES];           /* the child's ends, until it has started */
    bool ended_input;            /* kedge closed its input, so it should end */
    char said[STDERR_BYTES + 1]; /* the end of its standard error */
    size_t said_n;
    char *buffer; /* owned, READ_BYTES */
};

/* One batch. */
struct run {
    struct kg_task_child *child;
    const struct kg_task_talk *talk;
    struct kg_str *out;
    size_t begin; /* offset in out where its answers begin */
    size_t lines; /* lines of answers so far */
    size_t sent;
    double deadline;
    double stop; /* when it is aborted after a stop request; 0: no request */
    double idle; /* since when no data has moved */
};

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* ---- the environment ---- */

/* What programs need to run, to write and to speak the user's language. All other
 * variables, such as keys and passwords, are passed only if the user names them. */
static const char *const usual[] = {
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "TMPDIR",
    "TZ",
    "TERM",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
};

static bool is_name(const char *name, const char *variable)
{
    size_t n = strlen(name);

    if (n > 0 && name[n - 1] == '*')
        return strncmp(variable, name, n - 1) == 0;
    return strncmp(variable, name, n) == 0 && variable[n] == '=';
}

/* The next name of "A, B".   returns NULL at the end */
static const char *next_name(const char **list, size_t *n)
{
    const char *at = *list + strspn(*list, ", ");

    *n = strcspn(at, ", ");
    *list = at + *n;
    return *n ? at : NULL;
}

static bool is_listed(const char *list, const char *variable)
{
    const char *name;
    size_t n;

    while (list && (name = next_name(&list, &n)))
        if (strncmp(variable, name, n) == 0 && variable[n] == '=')
            return true;
    return false;
}

static bool is_passed(const char *list, const char *variable)
{
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        if (is_name(usual[i], variable))
            return true;
    return is_listed(list, variable);
}

/* An unset variable is a mistake: the program would lack it silently. */
kg_status kg_task_env_check(const char *names, struct kg_err *err)
{
    const char *name;
    size_t n;

    while (names && (name = next_name(&names, &n))) {
        bool found = false;

        for (char **v = environ; *v; v++)
            found = found || (strncmp(*v, name, n) == 0 && (*v)[n] == '=');
        if (!found)
            return kg_fail(err, KG_EINVAL,
                           "task.env: expected names of environment variables that are "
                           "set, found '%.*s'",
                           (int)(n < 80 ? n : 80), name);
    }
    return KG_OK;
}

/* envp: (MAX_VARIABLES) its strings are borrowed */
static void fill_env(char **envp, const struct kg_task_child *c)
{
    size_t n = 0;

    for (char **v = environ; *v && n + 2 < MAX_VARIABLES; v++)
        if (is_passed(c->command.env, *v) &&
            strncmp(*v, KG_TASK_MARK, strlen(KG_TASK_MARK)) != 0)
            envp[n++] = *v;
    envp[n++] = (char *)(uintptr_t)c->guard.mark;
    envp[n] = NULL;
}

/* ---- starting ---- */

static kg_status open_pipes(struct kg_task_child *c, struct kg_err *err)
{
    for (int i = 0; i < PIPES; i++) {
        int fds[2];

        if (pipe2(fds, O_CLOEXEC) != 0)
            return kg_fail(err, KG_EIO, "cannot create a pipe to the grader: %s",
                           strerror(errno));
        c->ours[i] = fds[i == IN];
        c->theirs[i] = fds[i != IN];
        if (fcntl(c->ours[i], F_SETFL, O_NONBLOCK) != 0)
            return kg_fail(err, KG_EIO, "cannot create a pipe to the grader: %s",
                           strerror(errno));
    }
    return KG_OK;
}

/* The child starts with default signals, none blocked, in its own group. */
static int spawn(struct kg_task_child *c, posix_spawn_file_actions_t *files,
                 posix_spawnattr_t *attr)
{
    char *const argv[] = {(char[]){"sh"}, (char[]){"-c"},
                          (char *)(uintptr_t)c->command.command, NULL};
    short flags = POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK;
    sigset_t all;
    sigset_t none;
    char *envp[MAX_VARIABLES];
    int failed = 0;

    fill_env(envp, c);
    sigfillset(&all);
    sigemptyset(&none);
    for (int i = 0; i < PIPES; i++)
        failed |= posix_spawn_file_actions_adddup2(files, c->theirs[i], i);
    failed |= posix_spawnattr_setpgroup(attr, 0) |
              posix_spawnattr_setsigdefault(attr, &all) |
              posix_spawnattr_setsigmask(attr, &none) |
              posix_spawnattr_setflags(attr, flags);
    return failed ? ENOMEM : posix_spawn(&c->pid, "/bin/sh", files, attr, argv, envp);
}

static kg_status start(struct kg_task_child *c, struct kg_err *err)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;

    KG_TRY(open_pipes(c, err));
    KG_TRY(kg_task_guard_start(&c->guard, err));
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    int failed = spawn(c, &files, &attr);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    for (int i = 0; i < PIPES; i++)
        close_one(&c->theirs[i]);
    if (failed)
        c->pid = 0;
    if (failed)
        return kg_fail(err, KG_EIO, "cannot start '%.80s': %s", c->command.command,
                       strerror(failed));
    kg_task_guard_tell(&c->guard, c->pid);
    return KG_OK;
}

/* ---- serving the pipes ---- */

/* write() to a pipe without a reader raises SIGPIPE in this thread: the signal is
 * blocked, and removed if it is pending. */
ssize_t kg_task_write_quietly(int fd, const char *bytes, size_t n)
{
    const struct timespec now = {0};
    sigset_t pipe_only;
    sigset_t before;
    sigset_t pending;

    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    ssize_t written = write(fd, bytes, n);
    int saved = errno;
    if (written < 0 && saved == EPIPE && !sigismember(&pending, SIGPIPE)) {
        while (sigtimedwait(&pipe_only, NULL, &now) < 0 && errno == EINTR)
            continue;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = saved;
    return written;
}

static bool is_retry(void) { return errno == EAGAIN || errno == EINTR; }

/* A child that stops reading is no error: its answers and exit status decide. */
static void serve_input(struct run *run)
{
    struct kg_task_child *c = run->child;
    ssize_t n = kg_task_write_quietly(c->ours[IN], run->talk->input + run->sent,
                                      run->talk->input_n - run->sent);

    if (n < 0 && is_retry())
        return;
    if (n > 0)
        run->sent += (size_t)n;
    if (n < 0)
        close_one(&c->ours[IN]);
}

static size_t count_lines(const char *text, size_t n)
{
    size_t lines = 0;

    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    return lines;
}

static kg_status serve_output(struct run *run, struct kg_err *err)
{
    struct kg_task_child *c = run->child;
    ssize_t n = read(c->ours[OUT], c->buffer, READ_BYTES);

    if (n < 0 && is_retry())
        return KG_OK;
    if (n <= 0) {
        close_one(&c->ours[OUT]);
        return KG_OK;
    }
    if (run->out->len - run->begin + (size_t)n > run->talk->max_output)
        return kg_fail(err, KG_EFORMAT,
                       "'%.80s': expected at most %zu bytes of answers, found more",
                       c->command.command, run->talk->max_output);
    run->lines += count_lines(c->buffer, (size_t)n);
    return kg_str_append(run->out, c->buffer, (size_t)n, err);
}

static void keep_said(struct kg_task_child *c, const char *bytes, size_t n)
{
    if (n > STDERR_BYTES) {
        bytes += n - STDERR_BYTES;
        n = STDERR_BYTES;
    }
    size_t keep = c->said_n + n > STDERR_BYTES ? STDERR_BYTES - n : c->said_n;
    memmove(c->said, c->said + c->said_n - keep, keep);
    memcpy(c->said + keep, bytes, n);
    c->said_n = keep + n;
}

static void serve_error(struct kg_task_child *c)
{
    ssize_t n = read(c->ours[ERR], c->buffer, READ_BYTES);

    if (n > 0)
        keep_said(c, c->buffer, (size_t)n);
    else if (n == 0 || !is_retry())
        close_one(&c->ours[ERR]);
}

/* ---- events without a pipe ---- */

/* Looks without reaping: while the child is a zombie, its group's number is not reused.
 * If waitid fails, somebody else reaped the child: kg_task_child_end reports that. */
bool kg_task_child_ended(const struct kg_task_child *c)
{
    siginfo_t info = {.si_pid = 0};

    if (waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOWAIT | WNOHANG) != 0)
        return errno != EINTR;
    return info.si_pid == c->pid;
}

/* The last line with text of its standard error, without control characters. */
static const char *last_said(struct kg_task_child *c)
{
    char *line = c->said;

    while (c->said_n > 0 && (unsigned char)c->said[c->said_n - 1] <= ' ')
        c->said_n--;
    c->said[c->said_n] = 0;
    for (char *at = c->said; *at; at++) {
        if (*at == '\n')
            line = at + 1;
    }
    for (char *at = line; *at; at++)
        *at = (unsigned char)*at < ' ' ? ' ' : *at;
    return *line ? line : "nothing on its standard error";
}

static kg_status check_time(struct run *run, double now, struct kg_err *err)
{
    struct kg_task_child *c = run->child;

    if (run->stop == 0 && kg_signal_stop_requested())
        run->stop = now + STOP_GRACE;
    if (run->stop != 0 && now >= run->stop && now < run->deadline)
        return kg_fail(err, KG_EINTERRUPTED,
                       "'%.80s': stopped by a signal while waiting for it; killed",
                       c->command.command);
    if (now < run->deadline)
        return KG_OK;
    if (c->said_n == 0)
        return kg_fail(err, KG_ETIMEOUT,
                       "'%.80s': expected %s within %d ms, found it running; killed",
                       c->command.command, run->talk->end ? "its end" : "its answers",
                       c->command.timeout_ms);
    return kg_fail(
        err, KG_ETIMEOUT,
        "'%.80s': expected %s within %d ms, found it running; killed; last line "
        "of its standard error: %.300s",
        c->command.command, run->talk->end ? "its end" : "its answers",
        c->command.timeout_ms, last_said(c));
}

/* Whether the child seems to wait for the end of its input: it has read all, and nothing
 * has moved for PATIENCE, or for half its time, so that the rest is left for answers. */
static bool waits_for_the_end(const struct run *run, double now)
{
    double half = run->child->command.timeout_ms / 2000.0;
    double patience = half < PATIENCE ? half : PATIENCE;
    int unread = 0;

    return run->talk->patient && run->child->ours[IN] >= 0 &&
           run->sent == run->talk->input_n && now - run->idle > patience &&
           ioctl(run->child->ours[IN], FIONREAD, &unread) == 0 && unread == 0;
}

/* ---- a batch ---- */

/* Waits for a pipe, at most wait_ms.   *moved: whether one was ready */
static kg_status serve(struct run *run, int wait_ms, bool *moved, struct kg_err *err)
{
    struct kg_task_child *c = run->child;
    bool more = run->sent < run->talk->input_n;
    struct pollfd fds[PIPES] = {
        {.fd = more ? c->ours[IN] : -1, .events = POLLOUT},
        {.fd = c->ours[OUT], .events = POLLIN},
        {.fd = c->ours[ERR], .events = POLLIN},
    };
    int n = poll(fds, PIPES, wait_ms);

    *moved = n > 0;
    if (n < 0 && errno != EINTR)
        return kg_fail(err, KG_EIO, "'%.80s': cannot wait for it: %s", c->command.command,
                       strerror(errno));
    if (n <= 0)
        return KG_OK;
    if (fds[IN].revents)
        serve_input(run);
    if (fds[OUT].revents)
        KG_TRY(serve_output(run, err));
    if (fds[ERR].revents)
        serve_error(c);
    return KG_OK;
}

/* The child has ended: reads what is left in its pipes, which others may still hold. */
static kg_status drain(struct run *run, struct kg_err *err)
{
    double limit = kg_clock_seconds() + 5;
    bool moved = true;

    run->sent = run->talk->input_n;
    while (moved && kg_clock_seconds() < limit &&
           (run->child->ours[OUT] >= 0 || run->child->ours[ERR] >= 0))
        KG_TRY(serve(run, LINGER_MS, &moved, err));
    return KG_OK;
}

/* A child whose input was closed has answered only when it ends: its exit status
 * counts. */
static bool is_answered(const struct run *run)
{
    if (run->talk->end)
        return false;
    return !run->child->ended_input && run->lines >= run->talk->lines;
}

static kg_status converse(struct run *run, struct kg_err *err)
{
    struct kg_task_child *c = run->child;

    while (!is_answered(run)) {
        double now = kg_clock_seconds();
        bool open = c->ours[OUT] >= 0 || c->ours[ERR] >= 0, moved = false;

        if (kg_task_child_ended(c))
            return drain(run, err);
        KG_TRY(check_time(run, now, err));
        if (run->talk->end ? run->sent == run->talk->input_n
                           : waits_for_the_end(run, now)) {
            c->ended_input = true;
            close_one(&c->ours[IN]);
        }
        /* with its outputs closed, no pipe reports its end: look often */
        KG_TRY(serve(run, open ? SLICE_MS : 2, &moved, err));
        if (moved)
            run->idle = kg_clock_seconds();
    }
    return KG_OK;
}

kg_status kg_task_child_ask(struct kg_str *out, struct kg_task_child *c,
                            const struct kg_task_talk *talk, struct kg_err *err)
{
    double now = kg_clock_seconds();
    struct run run = {
        .child = c,
        .talk = talk,
        .out = out,
        .begin = out->len,
        .deadline = now + c->command.timeout_ms / 1000.0,
        .idle = now,
    };
    int phase = kg_phase_wait(now, "waiting for '%.80s', which is killed after %g s",
                              c->command.command, 1e-3 * c->command.timeout_ms);
    kg_status status = converse(&run, err);

    kg_phase_end(phase);
    return status;
}

kg_status kg_task_child_hear(struct kg_str *out, struct kg_task_child *c,
                             const struct kg_task_talk *talk, int wait_ms,
                             struct kg_err *err)
{
    struct run run = {.child = c, .talk = talk, .out = out, .begin = out->len};
    double limit = kg_clock_seconds() + wait_ms / 1000.0;
    kg_status status;
    bool moved;

    run.sent = talk->sent ? *talk->sent : talk->input_n;
    do
        status = serve(&run, wait_ms, &moved, err);
    while (status == KG_OK && moved && out->len == run.begin && c->ours[OUT] >= 0 &&
           kg_clock_seconds() < limit);
    if (talk->sent)
        *talk->sent = run.sent;
    return status;
}

bool kg_task_child_listens(const struct kg_task_child *c) { return c->ours[IN] >= 0; }

bool kg_task_child_is_done(const struct kg_task_child *c) { return c->ended_input; }

/* ---- start and end ---- */

/* Kills what is left of it, and reaps the child.   *wait_status: as from waitpid
 * returns 0, or the errno of waitpid */
static int finish(struct kg_task_child *c, int *wait_status)
{
    int failed = 0;

    *wait_status = 0;
    if (c->pid > 0)
        kill(-c->pid, SIGKILL);
    kg_task_guard_end(&c->guard);
    while (c->pid > 0 && waitpid(c->pid, wait_status, 0) < 0 && (failed = errno) == EINTR)
        failed = 0;
    c->pid = 0;
    return failed;
}

kg_status kg_task_child_start(struct kg_task_child **child,
                              const struct kg_task_command *command, struct kg_err *err)
{
    struct kg_task_child *c = kg_mem_calloc(1, sizeof *c, "grader", err);

    *child = NULL;
    if (!c)
        return err->code;
    *c = (struct kg_task_child){.command = *command,
                                .guard = {.fd = -1},
                                .ours = {-1, -1, -1},
                                .theirs = {-1, -1, -1}};
    c->buffer = kg_mem_calloc(READ_BYTES, 1, "read buffer", err);
    if (!c->buffer || start(c, err) != KG_OK) {
        kg_task_child_kill(c);
        return err->code;
    }
    *child = c;
    return KG_OK;
}

void kg_task_child_kill(struct kg_task_child *c)
{
    int wait_status;

    if (!c)
        return;
    for (int i = 0; i < PIPES; i++) {
        close_one(&c->ours[i]);
        close_one(&c->theirs[i]);
    }
    (void)finish(c, &wait_status); /* its exit status is not needed */
    kg_mem_free(c->buffer);
    kg_mem_free(c);
}

kg_status kg_task_child_end(struct kg_task_child *c, struct kg_err *err)
{
    const char *command = c->command.command;
    int wait_status, failed = finish(c, &wait_status), number = WTERMSIG(wait_status);
    kg_status status = KG_OK;

    if (failed)
        status = kg_fail(
            err, KG_EIO,
            "'%.80s': expected the command's exit status, found: %s (is SIGCHLD "
            "ignored in this process?)",
            command, strerror(failed));
    else if (WIFSIGNALED(wait_status))
        status = kg_fail(err, KG_EIO,
                         "'%.80s': expected exit status 0, found signal %d (%s): %.300s",
                         command, number, strsignal(number), last_said(c));
    else if (WEXITSTATUS(wait_status) != 0)
        status = kg_fail(err, KG_EIO, "'%.80s': expected exit status 0, found %d: %.300s",
                         command, WEXITSTATUS(wait_status), last_said(c));
    kg_task_child_kill(c);
    return status;
}
