/* A thread that sleeps in poll: a signal handler, on any thread, wakes it through a pipe.
 *
 * Every quarter of warn_s, but at least once and at most 50 times per second, it compares
 * each thread's progress with its last value. So reporting progress reads no clock.
 */
#define _GNU_SOURCE /* pipe2 */
#include "base/watch.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 1024, PATH_BYTES = 4096, MOST_NAP_MS = 1000, LEAST_NAP_MS = 20 };

struct seen {
    bool there;
    uint64_t progress;
    double since; /* when the watch last saw progress */
    double times; /* the next warning comes after times * warn_s; 1: none yet */
};

static struct {
    bool runs;
    pthread_t thread;
    bool was_blocked; /* SIGUSR1, in the thread that started the watch */
    struct sigaction action_before;
    double began;
    struct seen seen[KG_PHASE_THREADS]; /* used only by the watch thread */
    _Atomic bool stop;
    pthread_mutex_t lock; /* protects the fields below */
    double warn_s;
    char file[PATH_BYTES]; /* "": none */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .warn_s = KG_WATCH_WARN_S};

/* a pipe that wakes the thread; opened before the handler, which writes to it */
static int bell[2] = {-1, -1};
static pid_t bell_of;
static _Atomic bool asked;

static void ring(void)
{
    ssize_t n = write(bell[1], "", 1); /* a full pipe wakes the thread, too */

    (void)n;
}

static void on_signal(int number)
{
    int saved = errno;

    (void)number;
    atomic_store(&asked, true);
    ring();
    errno = saved;
}

/* ---- output ---- */

static void put_in_file(const char *line)
{
    char path[PATH_BYTES], stamp[32];
    struct tm utc;
    time_t now = time(NULL);

    pthread_mutex_lock(&watch.lock);
    memcpy(path, watch.file, sizeof path);
    pthread_mutex_unlock(&watch.lock);
    if (!*path)
        return;
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || dprintf(fd, "%s %s\n", stamp, line) < 0)
        kg_log_warn("%.200s: cannot write the output of the watch: %s", path,
                    strerror(errno));
    if (fd >= 0)
        close(fd);
}

static void say(bool warning, const char *fmt, ...) KG_PRINTF(2, 3);
static void say(bool warning, const char *fmt, ...)
{
    char line[LINE_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    (warning ? kg_log_warn : kg_log_answer)("%s", line);
    put_in_file(line);
}

/* ---- the state ---- */

static bool is_idle(const struct kg_phase_stack *stack)
{
    return stack->phases[stack->n - 1].kind == KG_PHASE_IDLE;
}

static void say_stack(const struct kg_phase_stack *stack, double quiet, double now)
{
    char text[KG_PHASE_TEXT + 160];

    for (int i = 0; i < stack->n; i++) {
        kg_phase_describe(text, sizeof text, &stack->phases[i], now);
        say(false, "  %*s%s", 2 * i, "", text);
    }
    if (!is_idle(stack))
        say(false, "  last progress %.0f s ago", quiet);
}

static void say_process(double now)
{
    say(false, "state: process %ld, %.0f s old, %.2f GB resident", (long)getpid(),
        now - watch.began, (double)kg_mem_resident_bytes() / 1e9);
}

/* ---- checks ---- */

/* Innermost phase first: what it waits for, then the phases around it. */
static void warn(const struct kg_phase_stack *stack, double quiet, double now)
{
    char line[LINE_BYTES], text[KG_PHASE_TEXT + 160];
    size_t at = 0;

    for (int i = stack->n - 1; i >= 0 && at + 1 < sizeof line; i--) {
        kg_phase_describe(text, sizeof text, &stack->phases[i], now);
        int n = snprintf(line + at, sizeof line - at, "%s%s", at ? "; in " : "", text);
        at += n > 0 ? (size_t)n : 0;
    }
    say(true, "no progress for %.*f s: %s", quiet < 10, quiet, line);
}

static void look_at(struct seen *seen, const struct kg_phase_stack *stack, double warn_s,
                    double now)
{
    bool moved = !seen->there || seen->progress != stack->progress;

    if (moved && seen->there && seen->times > 1)
        say(false, "progress again after %.0f s: %s", now - seen->since,
            stack->phases[0].text);
    if (moved || is_idle(stack))
        *seen = (struct seen){true, stack->progress, now, 1};
    if (warn_s <= 0 || now - seen->since < warn_s * seen->times)
        return;
    warn(stack, now - seen->since, now);
    seen->times *= 2;
}

/* told: SIGUSR1 asked for the state. */
static void look(double warn_s, bool told)
{
    struct kg_phase_stack stack;
    double now = kg_clock_seconds();
    int n = 0;

    if (told)
        say_process(now);
    for (int i = 0; i < KG_PHASE_THREADS; i++) {
        watch.seen[i].there &= kg_phase_look(&stack, i);
        if (stack.n == 0)
            continue;
        look_at(&watch.seen[i], &stack, warn_s, now);
        if (told)
            say_stack(&stack, now - watch.seen[i].since, now);
        n++;
    }
    if (told && n == 0)
        say(false, "  no thread reports a phase");
}

/* ---- the thread ---- */

static double warn_after(void)
{
    pthread_mutex_lock(&watch.lock);
    double s = watch.warn_s;
    pthread_mutex_unlock(&watch.lock);
    return s;
}

static int nap_ms(double warn_s)
{
    double ms = 1e3 * warn_s / 4;

    if (warn_s <= 0 || ms > MOST_NAP_MS)
        return MOST_NAP_MS;
    return ms < LEAST_NAP_MS ? LEAST_NAP_MS : (int)ms;
}

static void *keep_watch(void *user)
{
    char bytes[64];

    (void)user;
    while (!atomic_load(&watch.stop)) {
        struct pollfd fd = {.fd = bell[0], .events = POLLIN};
        double warn_s = warn_after();

        look(warn_s, atomic_exchange(&asked, false));
        if (poll(&fd, 1, nap_ms(warn_s)) > 0)
            while (read(bell[0], bytes, sizeof bytes) > 0)
                continue;
    }
    return NULL;
}

/* ---- life ---- */

static kg_status open_bell(struct kg_err *err)
{
    if (bell[0] >= 0 && bell_of == getpid())
        return KG_OK;   /* never closed: a late handler may still write */
    if (bell[0] >= 0) { /* the parent process's: writing would wake its watch */
        close(bell[0]);
        close(bell[1]);
    }
    if (pipe2(bell, O_CLOEXEC | O_NONBLOCK) != 0) {
        bell[0] = bell[1] = -1;
        return kg_fail(err, KG_EIO, "watch: cannot create a pipe: %s", strerror(errno));
    }
    bell_of = getpid();
    return KG_OK;
}

static sigset_t only_usr1(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    return set;
}

/* The new thread blocks every signal except SIGUSR1; the calling thread also blocks
 * SIGUSR1. */
static kg_status start_thread(struct kg_err *err)
{
    sigset_t all, before, usr1 = only_usr1();

    sigfillset(&all);
    sigdelset(&all, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&watch.thread, NULL, keep_watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return kg_fail(err, KG_EIO, "watch: cannot start a thread: %s", strerror(code));
    watch.was_blocked = sigismember(&before, SIGUSR1) == 1;
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    return KG_OK;
}

kg_status kg_watch_start(struct kg_err *err)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    if (watch.runs)
        return KG_OK;
    KG_TRY(open_bell(err));
    memset(watch.seen, 0, sizeof watch.seen);
    watch.began = kg_clock_seconds();
    atomic_store(&watch.stop, false);
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR1, &action, &watch.action_before);
    kg_status status = start_thread(err);
    if (status != KG_OK)
        sigaction(SIGUSR1, &watch.action_before, NULL);
    watch.runs = status == KG_OK;
    return status;
}

void kg_watch_stop(void)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigset_t usr1 = only_usr1();

    if (!watch.runs)
        return;
    atomic_store(&watch.stop, true);
    ring();
    pthread_join(watch.thread, NULL);
    sigaction(SIGUSR1, &ignore, NULL); /* discards a pending one */
    if (!watch.was_blocked)
        pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
    sigaction(SIGUSR1, &watch.action_before, NULL);
    watch.runs = false;
}

void kg_watch_after(double warn_s)
{
    pthread_mutex_lock(&watch.lock);
    watch.warn_s = warn_s;
    pthread_mutex_unlock(&watch.lock);
    if (bell[1] >= 0)
        ring(); /* its present sleep may be longer */
}

void kg_watch_file(const char *path)
{
    pthread_mutex_lock(&watch.lock);
    snprintf(watch.file, sizeof watch.file, "%s", path ? path : "");
    pthread_mutex_unlock(&watch.lock);
}
