/* What each thread of this process is doing: a board of nested phases, for whoever asks
 * whether it hangs (base/watch.h).
 *
 *     int p = kg_phase_begin(n, "answers", "grading");
 *     for (i = 0; i < n; i++) { kg_phase_at(p, i); ... }
 *     kg_phase_end(p);
 *
 * The end of a phase ends what began inside it, so a path that fails on the way needs no
 * end of its own. Progress is what `at` and `tick` report, and the begin and end of work:
 * each a plain store. Begin and end take a lock that is held for the copy of a line of
 * text; they belong around loops. A wait is not progress, however often it begins, and
 * to be idle is nothing to warn of. No result depends on any of it.
 */
#ifndef KG_BASE_PHASE_H
#define KG_BASE_PHASE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KG_PHASE_DEPTH = 8, KG_PHASE_THREADS = 64, KG_PHASE_TEXT = 200 };

enum kg_phase_kind { KG_PHASE_WORK, KG_PHASE_WAIT, KG_PHASE_IDLE };

/* The next phase inward of this thread. of: how many `unit`s it is made of; 0: not known.
 * returns what the others take. Deeper than KG_PHASE_DEPTH, and in more threads than
 * KG_PHASE_THREADS, a phase is counted or dropped and never shown. */
int kg_phase_begin(int64_t of, const char *unit, const char *fmt, ...) KG_PRINTF(3, 4);
/* Waits for somebody else since `since` (kg_clock_seconds): say for whom, and how long at
 * most. */
int kg_phase_wait(double since, const char *fmt, ...) KG_PRINTF(2, 3);
int kg_phase_idle(const char *fmt, ...) KG_PRINTF(1, 2);
void kg_phase_end(int phase);

/* How many units are done: progress where it differs from before, and always in a phase
 * too deep to be shown. */
void kg_phase_at(int phase, int64_t done);
/* One more number to show: "label: value". label: of static storage */
void kg_phase_note(int phase, const char *label, int64_t value);
/* Something moved, wherever this thread is. */
void kg_phase_tick(void);

/* ---- for the reader ---- */

struct kg_phase_view {
    enum kg_phase_kind kind;
    char text[KG_PHASE_TEXT];
    const char *unit, *label; /* NULL without */
    int64_t done, of, value;
    double since;
};

struct kg_phase_stack {
    struct kg_phase_view phases[KG_PHASE_DEPTH]; /* outermost first */
    int n;                                       /* of them */
    uint64_t progress;                           /* changes with every progress */
};

/* The stack at `place`, 0 .. KG_PHASE_THREADS - 1.   returns false: nobody is there */
bool kg_phase_look(struct kg_phase_stack *out, int place);
/* "rollout: 37 of 64 sequences, tokens of the longest: 812, for 41 s" */
void kg_phase_describe(char *out, size_t n, const struct kg_phase_view *v, double now);

#endif
