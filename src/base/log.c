/* Log lines and one progress line, under one lock. On a terminal the progress line is the
 * last line, without a line break: a log line erases it, and the next progress call
 * prints it again. In a file or pipe, progress is plain lines at a bounded rate, and the
 * last state is always printed. */
#include "base/log.h"

#include "base/clock.h"
#include "base/printable.h"

#include <pthread.h>
#include <stdarg.h>
#include <sys/ioctl.h>

enum { LINE_BYTES = 2048, NAME_BYTES = 96 };

static struct {
    pthread_mutex_t lock;
    FILE *stream; /* borrowed; NULL: silence */
    bool is_terminal;
    char who[NAME_BYTES];    /* see kg_log_as; "": logs everything */
    bool progress_stands;    /* terminal: the cursor is after a progress line */
    bool progress_held;      /* file or pipe: `last` was not printed yet */
    double progress_seconds; /* when a plain progress line was printed; 0: never */
    char last[LINE_BYTES];   /* latest progress text */
} log_state = {.lock = PTHREAD_MUTEX_INITIALIZER};

void kg_log_set_stream(FILE *stream, bool is_terminal)
{
    pthread_mutex_lock(&log_state.lock);
    log_state.stream = stream;
    log_state.is_terminal = is_terminal;
    log_state.progress_stands = false;
    log_state.progress_held = false;
    log_state.progress_seconds = 0;
    pthread_mutex_unlock(&log_state.lock);
}

void kg_log_as(const char *who)
{
    pthread_mutex_lock(&log_state.lock);
    snprintf(log_state.who, sizeof log_state.who, "%s", who);
    pthread_mutex_unlock(&log_state.lock);
}

/* Called with the lock held. */
static void put_line(const char *prefix, const char *text)
{
    if (log_state.progress_stands)
        fputs("\r\033[K", log_state.stream);
    log_state.progress_stands = false;
    fputs(prefix, log_state.stream);
    fputs(text, log_state.stream);
    fputc('\n', log_state.stream);
    fflush(log_state.stream);
}

static void say(const char *prefix, const char *fmt, va_list args)
{
    char text[LINE_BYTES], clean[LINE_BYTES];

    vsnprintf(text, sizeof text, fmt, args);
    kg_printable_copy(clean, sizeof clean, text, true); /* it may quote a file */
    pthread_mutex_lock(&log_state.lock);
    if (log_state.stream)
        put_line(prefix, clean);
    pthread_mutex_unlock(&log_state.lock);
}

void kg_log_info(const char *fmt, ...)
{
    va_list args;

    if (log_state.who[0])
        return;
    va_start(args, fmt);
    say("", fmt, args);
    va_end(args);
}

void kg_log_answer(const char *fmt, ...)
{
    char prefix[NAME_BYTES + 4] = "";
    va_list args;

    if (log_state.who[0])
        snprintf(prefix, sizeof prefix, "%s: ", log_state.who);
    va_start(args, fmt);
    say(prefix, fmt, args);
    va_end(args);
}

void kg_log_warn(const char *fmt, ...)
{
    char prefix[NAME_BYTES + 16] = "warning: ";
    va_list args;

    if (log_state.who[0])
        snprintf(prefix, sizeof prefix, "warning: %s: ", log_state.who);
    va_start(args, fmt);
    say(prefix, fmt, args);
    va_end(args);
}

static size_t terminal_columns(FILE *stream)
{
    struct winsize size;
    int fd = fileno(stream);

    if (fd < 0 || ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col < 2)
        return 80;
    return size.ws_col;
}

/* A progress line wider than the terminal would wrap, and a wrapped line cannot be
 * erased: cut it at `columns` characters (UTF-8 continuation bytes do not count). */
static void cut_to(char *text, size_t columns)
{
    size_t seen = 0;

    for (; *text; text++) {
        bool starts = ((unsigned char)*text & 0xc0) != 0x80;
        if (starts && seen == columns) {
            *text = '\0';
            return;
        }
        seen += starts;
    }
}

static void progress_on_terminal(void)
{
    cut_to(log_state.last, terminal_columns(log_state.stream) - 1);
    fputs("\r\033[K", log_state.stream);
    fputs(log_state.last, log_state.stream);
    fflush(log_state.stream);
    log_state.progress_stands = true;
}

static void progress_as_line(int interval_ms)
{
    double now = kg_clock_seconds();
    bool first = log_state.progress_seconds == 0;

    log_state.progress_held = true;
    if (!first && now - log_state.progress_seconds < 1e-3 * interval_ms)
        return;
    put_line("", log_state.last);
    log_state.progress_held = false;
    log_state.progress_seconds = now;
}

void kg_log_progress(int plain_interval_ms, const char *fmt, ...)
{
    va_list args;
    char text[LINE_BYTES];

    if (log_state.who[0])
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pthread_mutex_lock(&log_state.lock);
    if (log_state.stream) {
        kg_printable_copy(log_state.last, sizeof log_state.last, text, false);
        if (log_state.is_terminal)
            progress_on_terminal();
        else
            progress_as_line(plain_interval_ms);
    }
    pthread_mutex_unlock(&log_state.lock);
}

void kg_log_progress_end(void)
{
    pthread_mutex_lock(&log_state.lock);
    if (log_state.stream && log_state.progress_stands) {
        fputc('\n', log_state.stream);
        fflush(log_state.stream);
    }
    if (log_state.stream && log_state.progress_held)
        put_line("", log_state.last);
    log_state.progress_stands = false;
    log_state.progress_held = false;
    log_state.progress_seconds = 0;
    pthread_mutex_unlock(&log_state.lock);
}
