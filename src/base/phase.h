/* The current work of each thread: a stack of nested phases, which base/watch.h reads to
 * tell whether the process hangs.
 *
 *   int p = kg_phase_begin(n, "completions", "grading");
 *   for (i = 0; i < n; i++) { kg_phase_at(p, i); ... }
 *   kg_phase_end(p);
 *
 * Ending a phase ends the phases inside it, so error paths need no end of their own.
 * kg_phase_at, kg_phase_tick, and the begin and end of work report progress by a plain
 * store. Begin and end also take a lock to copy a line of text; use them around loops,
 * not inside. Beginning or ending a wait is not progress; idle threads cause no warning.
 * Results do not depend on phases.
 */
#ifndef KG_BASE_PHASE_H
#define KG_BASE_PHASE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KG_PHASE_DEPTH = 8, KG_PHASE_THREADS = 64, KG_PHASE_TEXT = 200 };

enum kg_phase_kind { KG_PHASE_WORK, KG_PHASE_WAIT, KG_PHASE_IDLE };

/* Opens the next inner phase of this thread. of: its number of units; 0: unknown. unit:
 * of static storage; NULL: none.   returns the handle for the other functions. A phase
 * deeper than KG_PHASE_DEPTH, or in a thread beyond KG_PHASE_THREADS, is not shown. */
int kg_phase_begin(int64_t of, const char *unit, const char *fmt, ...) KG_PRINTF(3, 4);
/* Opens a wait that began at `since` (kg_clock_seconds). fmt: the reason and timeout */
int kg_phase_wait(double since, const char *fmt, ...) KG_PRINTF(2, 3);
int kg_phase_idle(const char *fmt, ...) KG_PRINTF(1, 2);
void kg_phase_end(int phase);

/* Sets the number of units done. Counts as progress if the number changed; in a phase
 * deeper than KG_PHASE_DEPTH, always. */
void kg_phase_at(int phase, int64_t done);
/* Shows one more number: "label: value". label: of static storage */
void kg_phase_note(int phase, const char *label, int64_t value);
/* Reports progress of this thread in its current phase. */
void kg_phase_tick(void);

/* ---- for the reader ---- */

struct kg_phase_view {
    enum kg_phase_kind kind;
    char text[KG_PHASE_TEXT];
    const char *unit, *label; /* NULL: none */
    int64_t done, of, value;
    double since;
};

struct kg_phase_stack {
    struct kg_phase_view phases[KG_PHASE_DEPTH]; /* outermost first */
    int n;                                       /* number of phases */
    uint64_t progress;                           /* changes on progress */
};

/* Copies the stack of the thread in slot `place`, 0 .. KG_PHASE_THREADS - 1.
 * returns false if the slot is free */
bool kg_phase_look(struct kg_phase_stack *out, int place);
/* "rollout: 37 of 64 sequences, tokens of the longest: 812, for 41 s" */
void kg_phase_describe(char *out, size_t n, const struct kg_phase_view *v, double now);

#endif
