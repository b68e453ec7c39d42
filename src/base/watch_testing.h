/* Shared by tests of the watch: starts it and keeps its output.
 *
 * Included by *_test.c and *_testing.h only.
 */
#ifndef KG_BASE_WATCH_TESTING_H
#define KG_BASE_WATCH_TESTING_H

#include "base/clock.h"
#include "base/log.h"
#include "base/watch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Read by offset, because a growing buffer in memory would move while another thread
 * writes. */
struct heard {
    FILE *stream;
    char text[1 << 14];
};

static inline void hear_watch(struct heard *h, double warn_s)
{
    struct kg_err err;

    h->stream = tmpfile();
    h->text[0] = 0;
    assert_non_null(h->stream);
    kg_log_set_stream(h->stream, false);
    kg_watch_after(warn_s);
    if (kg_watch_start(&err) != KG_OK)
        fail_msg("%s", err.message);
}

/* All output so far. */
static inline const char *heard_text(struct heard *h)
{
    ssize_t n = pread(fileno(h->stream), h->text, sizeof h->text - 1, 0);

    h->text[n > 0 ? n : 0] = 0;
    return h->text;
}

/* Waits until `part` occurs `times` times in the output. */
static inline void wait_for_text(struct heard *h, const char *part, int times)
{
    double until = kg_clock_seconds() + 30;

    for (;;) {
        int found = 0;

        for (const char *at = heard_text(h); (at = strstr(at, part)); at++)
            found++;
        if (found >= times)
            return;
        if (kg_clock_seconds() > until)
            fail_msg("expected '%s' %d times, found %d in:\n%s", part, times, found,
                     h->text);
        usleep(2000);
    }
}

static inline void stop_hearing(struct heard *h)
{
    kg_watch_stop();
    kg_watch_after(KG_WATCH_WARN_S);
    kg_log_set_stream(NULL, false);
    (void)heard_text(h);
    fclose(h->stream);
}

#endif
