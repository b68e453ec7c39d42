/* The board has a place for each thread that is in a phase. The end of a thread's
 * outermost phase frees its place.
 *
 * Only its own thread writes a place. Counters are atomics, stored without a lock; texts
 * and the depth change under the one lock, which readers take to copy them.
 */
#include "base/phase.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct phase {
    enum kg_phase_kind kind;
    char text[KG_PHASE_TEXT];
    const char *unit;
    double since;
    int64_t of;
    _Atomic int64_t done;
    const char *_Atomic label;
    _Atomic int64_t value;
};

struct place {
    bool taken;
    int depth; /* phases deeper than KG_PHASE_DEPTH are only counted */
    _Atomic uint64_t progress;
    struct phase phases[KG_PHASE_DEPTH];
};

static struct {
    pthread_mutex_t lock;
    struct place places[KG_PHASE_THREADS];
} board = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct place *mine; /* NULL: in no phase */

/* ---- writing ---- */

/* Only the place's own thread adds, so no addition can be lost. */
static void progress(struct place *place)
{
    uint64_t n = atomic_load_explicit(&place->progress, memory_order_relaxed);

    atomic_store_explicit(&place->progress, n + 1, memory_order_relaxed);
}

/* Called with the lock held. */
static void fill(struct phase *p, const struct phase *as, const char *fmt, va_list args)
{
    p->kind = as->kind;
    p->unit = as->unit;
    p->since = as->since;
    p->of = as->of;
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->label, NULL, memory_order_relaxed);
    vsnprintf(p->text, sizeof p->text, fmt, args);
}

static int push(const struct phase *as, const char *fmt, va_list args)
{
    int at = -1;

    pthread_mutex_lock(&board.lock);
    for (int i = 0; !mine && i < KG_PHASE_THREADS; i++)
        if (!board.places[i].taken)
            mine = &board.places[i];
    if (mine) {
        mine->taken = true;
        at = mine->depth++;
        if (at < KG_PHASE_DEPTH)
            fill(&mine->phases[at], as, fmt, args);
        if (as->kind == KG_PHASE_WORK)
            progress(mine);
    }
    pthread_mutex_unlock(&board.lock);
    return at;
}

int kg_phase_begin(int64_t of, const char *unit, const char *fmt, ...)
{
    struct phase as = {
        .kind = KG_PHASE_WORK, .unit = unit, .of = of, .since = kg_clock_seconds()};
    va_list args;

    va_start(args, fmt);
    int at = push(&as, fmt, args);
    va_end(args);
    return at;
}

int kg_phase_wait(double since, const char *fmt, ...)
{
    struct phase as = {.kind = KG_PHASE_WAIT, .since = since};
    va_list args;

    va_start(args, fmt);
    int at = push(&as, fmt, args);
    va_end(args);
    return at;
}

int kg_phase_idle(const char *fmt, ...)
{
    struct phase as = {.kind = KG_PHASE_IDLE, .since = kg_clock_seconds()};
    va_list args;

    va_start(args, fmt);
    int at = push(&as, fmt, args);
    va_end(args);
    return at;
}

static bool stands(int phase) { return mine && phase >= 0 && phase < mine->depth; }

/* Ends the phases from `depth` on; the end of work is progress. */
static void cut(int depth)
{
    pthread_mutex_lock(&board.lock);
    for (int i = depth; i < mine->depth && i < KG_PHASE_DEPTH; i++)
        if (mine->phases[i].kind == KG_PHASE_WORK)
            progress(mine);
    mine->depth = depth;
    mine->taken = depth > 0;
    pthread_mutex_unlock(&board.lock);
    if (depth == 0)
        mine = NULL;
}

void kg_phase_end(int phase)
{
    if (stands(phase))
        cut(phase);
}

/* NULL: the phase is not open, or too deep to be shown. */
static struct phase *shown(int phase)
{
    return stands(phase) && phase < KG_PHASE_DEPTH ? &mine->phases[phase] : NULL;
}

void kg_phase_at(int phase, int64_t done)
{
    struct phase *p = shown(phase);

    if (!p && stands(phase))
        progress(mine); /* too deep to know what was done before */
    if (!p)
        return;
    if (atomic_load_explicit(&p->done, memory_order_relaxed) == done)
        return;
    atomic_store_explicit(&p->done, done, memory_order_relaxed);
    progress(mine);
}

void kg_phase_note(int phase, const char *label, int64_t value)
{
    struct phase *p = shown(phase);

    if (!p)
        return;
    atomic_store_explicit(&p->value, value, memory_order_relaxed);
    atomic_store_explicit(&p->label, label, memory_order_relaxed);
}

void kg_phase_tick(void)
{
    if (mine)
        progress(mine);
}

/* ---- reading ---- */

static void view(struct kg_phase_view *v, struct phase *p)
{
    v->kind = p->kind;
    memcpy(v->text, p->text, sizeof v->text);
    v->unit = p->unit;
    v->of = p->of;
    v->since = p->since;
    v->done = atomic_load_explicit(&p->done, memory_order_relaxed);
    v->label = atomic_load_explicit(&p->label, memory_order_relaxed);
    v->value = atomic_load_explicit(&p->value, memory_order_relaxed);
}

bool kg_phase_look(struct kg_phase_stack *out, int place)
{
    struct place *x = &board.places[place];

    out->n = 0;
    pthread_mutex_lock(&board.lock);
    out->progress = atomic_load_explicit(&x->progress, memory_order_relaxed);
    for (; x->taken && out->n < x->depth && out->n < KG_PHASE_DEPTH; out->n++)
        view(&out->phases[out->n], &x->phases[out->n]);
    pthread_mutex_unlock(&board.lock);
    return out->n > 0;
}

static size_t used(int written, size_t n)
{
    return written < 0 ? 0 : (size_t)written < n ? (size_t)written : n - 1;
}

void kg_phase_describe(char *out, size_t n, const struct kg_phase_view *v, double now)
{
    size_t at = used(snprintf(out, n, "%s", v->text), n);

    if (v->unit && v->of > 0)
        at += used(snprintf(out + at, n - at, ": %lld of %lld %s", (long long)v->done,
                            (long long)v->of, v->unit),
                   n - at);
    else if (v->unit)
        at += used(snprintf(out + at, n - at, ": %lld %s", (long long)v->done, v->unit),
                   n - at);
    if (v->label)
        at += used(
            snprintf(out + at, n - at, ", %s: %lld", v->label, (long long)v->value),
            n - at);
    snprintf(out + at, n - at, ", for %.*f s", now - v->since < 10 ? 1 : 0,
             now - v->since);
}
