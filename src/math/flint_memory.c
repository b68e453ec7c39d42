/* FLINT's memory: every block is from base/mem.h and counts against the budget of the
 * graded answer.
 *
 * FLINT cannot report that it ran out of anything; it aborts. So its allocator jumps out
 * when the budget is spent: blocks allocated and nodes evaluated (which bound work, and
 * are the same on every machine), bytes, and as a last resort processor time. All blocks
 * are in a list of the thread; after a jump FLINT drops its own caches, and then the rest
 * of the list is freed.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "math/flint_internal.h"

#include <pthread.h>
#include <string.h>

enum {
    MAX_BYTES = 48 << 20, /* FLINT's memory for one answer */
    MAX_BLOCKS = 300000,  /* allocations for one answer */
    MAX_STEPS = 1000000,  /* nodes evaluated for one answer */
    CLOCK_EVERY = 256,    /* allocations between two reads of the clock */
};
static const double MAX_SECONDS = 0.7;

/* Precedes every block. */
struct header {
    struct header *next;
    struct header *prev;
    size_t bytes;
    size_t unused; /* keeps the block aligned to 16 */
};

struct thread_state {
    struct header list; /* ring */
    size_t bytes;
    struct kg_math_session *session;
};
static _Thread_local struct thread_state state;

static __attribute__((noreturn)) void stop(enum kg_math_stop why)
{
    struct kg_math_session *s = state.session;

    if (!s)
        __builtin_trap(); /* FLINT is called only inside a session */
    longjmp(s->out, why);
}

static __attribute__((noreturn)) void flint_gave_up(void) { stop(KG_MATH_STOP_LIBRARY); }

static void charge(size_t bytes)
{
    struct kg_math_budget *b = state.session ? state.session->budget : NULL;

    if (!b)
        return;
    if (bytes > MAX_BYTES || state.bytes + bytes > MAX_BYTES)
        stop(KG_MATH_STOP_MEMORY);
    if (--b->allocations < 0)
        stop(KG_MATH_STOP_WORK);
    if (b->allocations % CLOCK_EVERY == 0 && kg_clock_thread_seconds() > b->deadline)
        stop(KG_MATH_STOP_TIME);
}

static void *take(size_t bytes)
{
    struct kg_err err;

    charge(bytes);
    struct header *h = kg_mem_calloc(1, sizeof *h + bytes, "mathematics", &err);
    if (!h)
        stop(KG_MATH_STOP_NOMEM);
    h->bytes = bytes;
    h->next = state.list.next;
    h->prev = &state.list;
    h->next->prev = h;
    state.list.next = h;
    state.bytes += bytes;
    return h + 1;
}

static void give(void *block)
{
    struct header *h = block;

    if (!block)
        return;
    h--;
    h->prev->next = h->next;
    h->next->prev = h->prev;
    state.bytes -= h->bytes;
    kg_mem_free(h);
}

static void *take_zeroed(size_t count, size_t size)
{
    if (size && count > MAX_BYTES / size)
        stop(KG_MATH_STOP_MEMORY);
    return take(count * size);
}

static void *retake(void *block, size_t bytes)
{
    if (!block)
        return take(bytes);
    size_t old = ((struct header *)block - 1)->bytes;
    void *fresh = take(bytes);
    memcpy(fresh, block, old < bytes ? old : bytes);
    give(block);
    return fresh;
}

/* for GMP, which passes the old size */
static void *gmp_retake(void *block, size_t old, size_t bytes)
{
    (void)old;
    return retake(block, bytes);
}

static void gmp_give(void *block, size_t bytes)
{
    (void)bytes;
    give(block);
}

static void install(void)
{
    __flint_set_memory_functions(take, take_zeroed, retake, give);
    mp_set_memory_functions(take, gmp_retake, gmp_give);
    flint_set_abort(flint_gave_up);
}

void kg_math_step(void)
{
    if (--state.session->budget->steps < 0)
        stop(KG_MATH_STOP_WORK);
}

void kg_math_budget_start(struct kg_math_budget *b)
{
    b->steps = MAX_STEPS;
    b->allocations = MAX_BLOCKS;
    b->deadline = kg_clock_thread_seconds() + MAX_SECONDS;
}

const char *kg_math_budget_spent(const struct kg_math_budget *b)
{
    if (b->allocations < 0 || b->steps < 0)
        return kg_math_stop_reason(KG_MATH_STOP_WORK);
    return kg_clock_thread_seconds() > b->deadline
               ? kg_math_stop_reason(KG_MATH_STOP_TIME)
               : NULL;
}

void kg_math_session_begin(struct kg_math_session *s, struct kg_math_budget *budget)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, install);
    if (!state.list.next)
        state.list.next = state.list.prev = &state.list;
    s->budget = budget;
    state.session = s;
}

void kg_math_session_end(bool stopped)
{
    state.session->budget = NULL;
    flint_cleanup();
    while (stopped && state.list.next != &state.list)
        give(state.list.next + 1);
    state.session = NULL;
}

const char *kg_math_stop_reason(enum kg_math_stop why)
{
    switch (why) {
    case KG_MATH_STOP_MEMORY:
        return "the memory limit of an answer was reached";
    case KG_MATH_STOP_WORK:
        return "the work limit of an answer was reached";
    case KG_MATH_STOP_TIME:
        return "the time limit of an answer was reached";
    case KG_MATH_STOP_NOMEM:
        return "out of memory";
    default:
        return "the exact arithmetic gave up";
    }
}
