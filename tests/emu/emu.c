/* Fibers instead of a block's threads.
 *
 * A fiber keeps its stack from block to block: it calls the kernel's body, marks itself
 * done, and waits for the next call. Changing fibers is a jump; only the first entry of
 * each needs a context. Each warp has a bit for every lane that can run, so bit
 * operations find the next fiber of any schedule.
 *
 * A fault is reported once, by the next kg_dev_done. Fibers may be anywhere in the kernel
 * then, so all of them restart.
 */
#define _GNU_SOURCE
#include "emu/emu_internal.h"

#include "base/mem.h"
#include "emu/backends.h"
#include "emu/pages.h"

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

/* limits of an H100 that kernels may rely on */
enum { THREADS = KG_EMU_THREADS, GRID_Y = 65535, SHARED_BYTES = 48 << 10 };
enum { WARPS = THREADS / KG_EMU_WARP, STACK = 256 << 10, NAMES = 64, VIEWS = 64 };
/* stacks that begin at equal offsets in their pages would share a few cache lines */
enum { SHIFT = 5 * 64, SHIFTED = 4096 };

/* Where a fiber continues. For the C library's longjmp and before a call that never
 * returns, AddressSanitizer asks the system for the stack and forgets all that it knows
 * of it: nine tenths of a test's time. So the jumps are compiler builtins, in functions
 * that it does not instrument. */
typedef void *place[5];
#define UNWATCHED __attribute__((noinline, no_sanitize_address))

enum state { AT_BLOCK, AT_WARP, ASLEEP, DONE };

/* One cache line: changing fibers is mostly waiting for memory. */
struct fiber {
    _Alignas(64) place at;
    enum state state; /* what it waits for; if it can run, what it waited for */
    int line;         /* source line of the barrier */
    bool begun;
};

struct warp {
    uint32_t ready; /* a bit for each lane */
    int waiting;    /* lanes at an exchange */
    int exchanges;  /* in this block; `shown` has the last two */
    char shown[2][KG_EMU_WARP][KG_EMU_SHOWN];
};

struct shared {
    const void *name;
    size_t bytes;
    char *memory;
    uint64_t block; /* for which it was last filled */
};

static enum kg_emu_schedule order;
static struct fiber fibers[THREADS];
static struct warp warps[WARPS];
static struct shared shared[NAMES];
static char *stacks;
static _Thread_local char fault[256]; /* to be reported; "": none */
static _Thread_local bool unasked;    /* something was started since kg_dev_done */

/* of the running block */
static const char *kernel;
static void (*body)(void *);
static void *body_arg;
static unsigned n_threads, now, at_barrier, done;
static uint64_t block; /* counted over all launches */
static size_t shared_bytes, asked_bytes;
static place home;

/* Copies by other threads run between launches. Recursive: a test that jumps out of a
 * fault in a kernel must not block the next. */
static pthread_mutex_t busy = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int64_t launches, lost_at = -1; /* counted over all; -1: not lost */

static const void *views[VIEWS]; /* lent to the next launch */
static size_t n_views;

struct kg_emu_dim kg_emu_thread, kg_emu_block;

extern const struct kg_backend kg_cuda_table; /* nvcc compiles its kernels, too */
kg_status kg_cuda_use(const struct kg_cuda_opts *opts, struct kg_err *err);

kg_status kg_emu_open(const struct kg_backend **be, struct kg_err *err)
{
    struct kg_cuda_opts opts;

    *be = &kg_cuda_table;
    KG_TRY(kg_device_test_opts(&opts, err));
    return kg_cuda_use(&opts, err);
}

int kg_dev_traits(struct kg_trait traits[KG_TRAITS])
{
    traits[0] = (struct kg_trait){.name = "gpu", .value = "emulated"};
    return 1;
}

void kg_emu_schedule(enum kg_emu_schedule o) { order = o; }

/* ---- faults ---- */
static void KG_PRINTF(1, 0) blame_with(const char *fmt, va_list ap)
{
    int n;

    if (fault[0])
        return;
    n = snprintf(fault, sizeof fault, "%s: ", kernel);
    vsnprintf(fault + n, sizeof fault - (size_t)n, fmt, ap);
}
static void KG_PRINTF(1, 2) blame(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    blame_with(fmt, ap);
    va_end(ap);
}

int64_t kg_emu_lose(int64_t n)
{
    lost_at = n < 0 ? -1 : launches + n;
    fault[0] = 0;
    return launches;
}

static bool is_lost(void) { return lost_at >= 0 && launches >= lost_at; }

UNWATCHED static _Noreturn void leave(place to) { __builtin_longjmp(to, 1); }

/* After a jump: tells the compiler that other fibers ran in between. */
static inline void reload(void) { __asm__ volatile("" ::: "memory"); }

/* Fault of a thread: ends the block. */
void kg_emu_blame(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    blame_with(fmt, ap);
    va_end(ap);
    leave(home);
}
#define BLAME(...) kg_emu_blame(__VA_ARGS__)

bool kg_emu_is_asked(void) { return !unasked; }

kg_status kg_dev_done(const char *op, struct kg_err *err)
{
    unasked = false;
    if (!fault[0])
        return KG_OK;
    kg_fail(err, KG_EDEVICE, "%s: %s", op, fault);
    if (!is_lost())
        fault[0] = 0;
    return KG_EDEVICE;
}

/* ---- scheduling ---- */
static int lowest(uint32_t bits) { return __builtin_ctz(bits); }
static int highest(uint32_t bits) { return 31 - __builtin_clz(bits); }

/* The first ready thread from thread `from` on; and (_last) the last ready thread. */
static int ready_from(unsigned from)
{
    for (unsigned w = from / KG_EMU_WARP; w < n_threads / KG_EMU_WARP; w++) {
        uint32_t bits = warps[w].ready;

        if (w == from / KG_EMU_WARP)
            bits &= ~0u << from % KG_EMU_WARP;
        if (bits)
            return (int)w * KG_EMU_WARP + lowest(bits);
    }
    return -1;
}

static int ready_last(void)
{
    for (int w = (int)n_threads / KG_EMU_WARP - 1; w >= 0; w--)
        if (warps[w].ready)
            return w * KG_EMU_WARP + highest(warps[w].ready);
    return -1;
}

static int next_thread(void)
{
    int t = order == KG_EMU_ROUND_ROBIN ? ready_from(now + 1) : -1;

    return t >= 0 ? t : order == KG_EMU_BACKWARD ? ready_last() : ready_from(0);
}

static void fiber_main(void);

UNWATCHED static _Noreturn void enter(int t)
{
    static ucontext_t context;

    now = kg_emu_thread.x = (unsigned)t;
    if (fibers[t].begun)
        leave(fibers[t].at);
    fibers[t].begun = true;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks + (size_t)t * STACK;
    context.uc_stack.ss_size = STACK - SHIFT * (size_t)t % SHIFTED;
    makecontext(&context, fiber_main, 0);
    setcontext(&context);
    __builtin_unreachable(); /* the context was just made */
}

/* Continues with the next thread; leaves the block if none is left or all wait. */
UNWATCHED static _Noreturn void go_on(void)
{
    int t = next_thread();

    if (t >= 0)
        enter(t);
    leave(home);
}

/* Threads [first, first+n), whole warps, have met; they continue if at the same line. */
static void release(unsigned first, unsigned n, const char *where)
{
    for (unsigned t = first; t < first + n; t++)
        if (fibers[t].line != fibers[first].line)
            BLAME("threads %u and %u of a %s meet at lines %d and %d", first, t, where,
                  fibers[first].line, fibers[t].line);
    for (unsigned w = first / KG_EMU_WARP; w < (first + n) / KG_EMU_WARP; w++)
        warps[w].ready = ~0u;
}

UNWATCHED static void wait_at(enum state state, int line)
{
    struct fiber *f = &fibers[now];
    struct warp *w = &warps[now / KG_EMU_WARP];

    f->state = state;
    f->line = line;
    w->ready &= ~(1u << now % KG_EMU_WARP);
    if (state == AT_BLOCK && ++at_barrier == n_threads) {
        at_barrier = 0;
        release(0, n_threads, "block");
    } else if (state == AT_WARP && ++w->waiting == KG_EMU_WARP) {
        w->waiting = 0;
        w->exchanges++;
        release(now / KG_EMU_WARP * KG_EMU_WARP, KG_EMU_WARP, "warp");
    } else if (state == DONE) {
        done++;
    }
    if (__builtin_setjmp(f->at) == 0)
        go_on();
    reload();
}

void kg_emu_sleep(int line) { wait_at(ASLEEP, line); }
void kg_emu_wake(unsigned t) { warps[t / KG_EMU_WARP].ready |= 1u << t % KG_EMU_WARP; }

static void fiber_main(void)
{
    for (;;) {
        body(body_arg);
        kg_emu_async_end(now);
        wait_at(DONE, 0);
    }
}

/* ---- a block ---- */
/* Reports the first thread that waits for what never comes. */
static void blame_waiting(void)
{
    unsigned t = 0;

    while (fibers[t].state == DONE)
        t++;
    blame("block %u, %u: thread %u waits at line %d for others of its %s, of %u threads "
          "%u are done",
          kg_emu_block.x, kg_emu_block.y, t, fibers[t].line,
          fibers[t].state == AT_BLOCK  ? "block"
          : fibers[t].state == AT_WARP ? "warp"
                                       : "barrier",
          n_threads, done);
}

UNWATCHED static void run_block(void)
{
    block++;
    shared_bytes = 0;
    at_barrier = done = 0;
    kg_emu_async_begin(n_threads);
    for (unsigned w = 0; w < n_threads / KG_EMU_WARP; w++) {
        warps[w].waiting = warps[w].exchanges = 0;
        warps[w].ready = ~0u;
    }
    now = n_threads - 1; /* round robin starts after it */
    if (__builtin_setjmp(home) == 0)
        go_on();
    reload();
    if (done < n_threads && !fault[0])
        blame_waiting();
    if (kg_emu_boxes_left() > 0 && !fault[0])
        blame("a block ends before %d boxes that it began", kg_emu_boxes_left());
}

/* Of AddressSanitizer, if linked: clears what it knew of abandoned frames. */
void __asan_unpoison_memory_region(const volatile void *p, size_t n) KG_GUEST;

static void forget_fibers(void)
{
    for (int t = 0; t < THREADS; t++)
        fibers[t].begun = false;
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(stacks, (size_t)STACK * THREADS);
}

/* A stack ends at a page that is never accessible. */
static bool make_stacks(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at;

    if (stacks)
        return true;
    at = mmap(NULL, (size_t)STACK * THREADS, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return false;
    for (int t = 0; t < THREADS; t++)
        (void)mprotect(at + (size_t)t * STACK, page, PROT_NONE);
    stacks = at;
    return true;
}

static bool may_launch(struct kg_emu_dim grid, unsigned threads)
{
    if (grid.x < 1 || grid.y < 1 || grid.x > INT32_MAX || grid.y > GRID_Y || grid.z != 1)
        blame("a grid of %u x %u x %u blocks, expected 1..%d x 1..%d x 1", grid.x, grid.y,
              grid.z, INT32_MAX, (int)GRID_Y);
    else if (threads < 1 || threads > THREADS || threads % KG_EMU_WARP)
        blame("a block of %u threads, expected whole warps, %d threads at most", threads,
              (int)THREADS);
    else if (launches++, is_lost())
        blame("the device is lost");
    else if (!make_stacks())
        blame("no memory for stacks");
    return !fault[0];
}

static void run_grid(struct kg_emu_dim grid)
{
    uint64_t blocks = (uint64_t)grid.x * grid.y;

    kg_pages_lend(views, n_views);
    for (uint64_t i = 0; i < blocks && !fault[0]; i++) {
        uint64_t b = order == KG_EMU_BACKWARD ? blocks - 1 - i : i;

        kg_emu_block.x = (unsigned)(b % grid.x);
        kg_emu_block.y = (unsigned)(b / grid.x);
        run_block();
    }
    kg_pages_take_back(views, n_views);
    if (fault[0])
        forget_fibers();
}

/* ---- records ---- */
/* A launch, or a call that is no launch. Records use the C library's memory, as a driver
 * uses its own: it is not counted, and failing allocations of tests do not affect it. */
struct entry {
    struct entry *next;
    const char *name;
    struct kg_emu_dim grid;
    unsigned threads;
    void (*run)(void *);
    int (*call)(void *); /* NULL: a launch */
    const void *views[VIEWS];
    size_t n_views, asked_bytes;
    _Alignas(64) char arg[];
};
struct record {
    struct entry *first, **end;
};
static struct record *recording; /* NULL: not recording */
static bool no_records;

void kg_emu_records(bool possible) { no_records = !possible; }

static void note(const struct entry *e, const void *arg, size_t bytes)
{
    struct entry *new = aligned_alloc(_Alignof(struct entry),
                                      sizeof *e + (bytes + 63) / 64 * 64);

    if (!new) {
        blame("no memory for a record");
        return;
    }
    *new = *e;
    memcpy(new->views, views, sizeof views);
    new->n_views = n_views;
    new->asked_bytes = asked_bytes;
    memcpy(new->arg, arg, bytes);
    *recording->end = new;
    recording->end = &new->next;
}

/* A fault while recording. */
static void not_recorded(const char *what)
{
    if (!recording)
        return;
    kernel = what;
    blame("it cannot be part of a record");
}

void kg_dev_record_begin(void)
{
    pthread_mutex_lock(&busy);
    if (no_records)
        return;
    kernel = "record";
    recording = calloc(1, sizeof *recording);
    if (recording)
        recording->end = &recording->first;
    else
        blame("no memory for a record");
}

void *kg_dev_record_end(void)
{
    struct record *r = recording;

    recording = NULL;
    pthread_mutex_unlock(&busy);
    return r;
}

void kg_dev_record_free(void *record)
{
    struct record *r = record;

    while (r->first) {
        struct entry *e = r->first;

        r->first = e->next;
        free(e);
    }
    free(r);
}

void kg_dev_record_launch(void *record)
{
    const struct record *r = record;

    pthread_mutex_lock(&busy);
    for (struct entry *e = r->first; e; e = e->next) {
        if (e->call) {
            kernel = "record";
            if (e->call(e->arg) != 0)
                blame("what a library did once it does no more");
            continue;
        }
        memcpy(views, e->views, sizeof views);
        n_views = e->n_views;
        asked_bytes = e->asked_bytes;
        kg_emu_launch(e->name, e->grid, e->threads, e->run, e->arg, 0);
    }
    pthread_mutex_unlock(&busy);
}

int kg_dev_call(int (*f)(void *), void *arg, size_t bytes)
{
    unasked = true;
    if (!recording)
        return f(arg);
    note(&(struct entry){.call = f}, arg, bytes);
    return 0;
}

void kg_emu_launch(const char *name, struct kg_emu_dim grid, unsigned threads,
                   void (*run)(void *), void *arg, size_t bytes)
{
    pthread_mutex_lock(&busy);
    kernel = name;
    body = run;
    body_arg = arg;
    n_threads = threads;
    unasked = true;
    if (recording)
        note(&(struct entry){.name = name, .grid = grid, .threads = threads, .run = run},
             arg, bytes);
    else if (may_launch(grid, threads))
        run_grid(grid);
    n_views = 0;
    asked_bytes = 0;
    pthread_mutex_unlock(&busy);
}

/* Words of the argument that are device addresses are pointers. */
void kg_emu_lend(const void *argument, size_t bytes)
{
    const char *word = (const char *)argument;

    for (; bytes >= sizeof(void *); bytes -= sizeof(void *), word += sizeof(void *)) {
        const void *p;

        memcpy(&p, word, sizeof p);
        if (!kg_pages_hold(p))
            continue;
        if (n_views == VIEWS)
            blame("more than %d pointers among its arguments", (int)VIEWS);
        else
            views[n_views++] = p;
    }
}

/* ---- calls of threads ---- */
void kg_emu_argument(const char *name, const void *p)
{
    kernel = name;
    if (p && !kg_pages_hold(p))
        blame("an argument is not memory of the device");
}

void kg_emu_barrier(int line) { wait_at(AT_BLOCK, line); }

const char *kg_emu_exchange(unsigned mask, const void *mine, size_t bytes,
                            void (*together)(char *shown), int line)
{
    struct warp *w = &warps[now / KG_EMU_WARP];
    char(*shown)[KG_EMU_SHOWN] = w->shown[w->exchanges % 2];

    if (mask != ~0u)
        BLAME("an exchange of lanes %#x at line %d, expected all", mask, line);
    memcpy(shown[now % KG_EMU_WARP], mine, bytes);
    if (together && w->waiting == KG_EMU_WARP - 1)
        together(shown[0]);
    wait_at(AT_WARP, line);
    return shown[0];
}

/* In pages of its own, where the array ends at the end of a page. */
static char *shared_new(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t inside = (bytes + page - 1) / page * page;
    char *at = mmap(NULL, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                    0);

    if (at == MAP_FAILED || mprotect(at + page, inside, PROT_READ | PROT_WRITE) != 0)
        BLAME("no room for shared memory");
    return at + page + inside - bytes;
}

static struct shared *shared_of(const void *name, size_t bytes)
{
    for (int i = 0; i < NAMES; i++) {
        if (!shared[i].name)
            shared[i] = (struct shared){name, bytes, shared_new(bytes), 0};
        if (shared[i].name == name && shared[i].bytes == bytes)
            return &shared[i];
    }
    BLAME("more than %d names of shared memory", (int)NAMES);
}

/* Filled with NaN for the first thread of a block. */
static void *shared_here(const void *name, size_t bytes)
{
    struct shared *s = shared_of(name, bytes);

    if (s->block != block) {
        memset(s->memory, 0xff, bytes);
        s->block = block;
        shared_bytes += bytes;
    }
    return s->memory;
}

void *kg_emu_shared(const void *name, size_t bytes)
{
    void *memory = shared_here(name, bytes);

    if (shared_bytes > SHARED_BYTES)
        BLAME("%zu bytes of shared memory, expected %d at most", shared_bytes,
              (int)SHARED_BYTES);
    return memory;
}

void kg_emu_ask(const char *name, size_t bytes, size_t most)
{
    asked_bytes = bytes;
    kernel = name;
    if (bytes > most)
        blame("%zu bytes of shared memory, expected %zu at most", bytes, most);
}

void *kg_emu_asked(void) { return shared_here(&asked_bytes, asked_bytes); }

void kg_emu_row(const void *row, int line)
{
    if ((uintptr_t)row % 16)
        BLAME("a row of a matrix at line %d begins at no multiple of 16", line);
}

/* ---- memory ---- */
/* Fills with NaN, because a device's memory may contain anything. */
void kg_dev_spoil(void *memory, uint64_t bytes)
{
    if (recording)
        return;
    kg_pages_lend((const void *[]){memory}, 1);
    memset(memory, 0xff, bytes);
    kg_pages_take_back((const void *[]){memory}, 1);
}

void *kg_dev_alloc(uint64_t bytes, const char *what, struct kg_err *err)
{
    void *p;

    if (is_lost() || recording) {
        kg_fail(err, KG_EDEVICE, "%s: %s", what,
                recording ? "alloc: it cannot be part of a record"
                          : "the device is lost");
        return NULL;
    }
    p = kg_pages_alloc(bytes, what, err);
    if (p)
        kg_dev_spoil(p, bytes);
    return p;
}
void kg_dev_free(void *memory)
{
    not_recorded("free");
    kg_pages_free(memory);
}
kg_status kg_dev_memory(uint64_t *total, uint64_t *free, struct kg_err *err)
{
    return kg_pages_free_bytes(total, free, err);
}

static void move_all(void *to, bool to_device, const void *from, bool from_device,
                     uint64_t bytes)
{
    const void *const ends[] = {to_device ? to : NULL, from_device ? from : NULL};

    if (is_lost())
        blame("the device is lost");
    if (bytes == 0 || fault[0])
        return;
    if (kg_pages_hold(to) != to_device || kg_pages_hold(from) != from_device) {
        blame("memory of the host in the place of the device's, or the reverse");
        return;
    }
    kg_pages_lend(ends, 2);
    memcpy(to, from, bytes);
    kg_pages_take_back(ends, 2);
}

static void move(const char *what, void *to, bool to_device, const void *from,
                 bool from_device, uint64_t bytes)
{
    pthread_mutex_lock(&busy);
    kernel = what;
    not_recorded(what);
    move_all(to, to_device, from, from_device, bytes);
    pthread_mutex_unlock(&busy);
}

/* ---- page-locked memory ---- */
struct pinned {
    struct pinned *next;
    uint64_t bytes;
    max_align_t memory[];
};
static struct pinned *pins; /* owned; not unpinned yet */

void *kg_dev_pin(uint64_t bytes, const char *what, struct kg_err *err)
{
    struct pinned *p = kg_mem_calloc(1, sizeof *p + bytes, what, err);

    if (!p)
        return NULL;
    pthread_mutex_lock(&busy);
    p->bytes = bytes;
    p->next = pins;
    pins = p;
    pthread_mutex_unlock(&busy);
    return p->memory;
}

/* ---- copies that the host does not wait for ---- */
/* The device's part is done at once, the host's part at the wait. In the C library's
 * memory, as records are. */
struct later {
    struct later *next;
    char *host;
    uint64_t bytes, mark; /* 0: no mark follows it yet */
    bool down;
    char held[]; /* data for the host, or what the host gave */
};
static struct later *laters; /* owned, in order */

static bool is_poison(const char *p, uint64_t bytes)
{
    while (bytes > 0 && (unsigned char)*p == 0xff)
        p++, bytes--;
    return bytes == 0;
}

/* The copy is complete: the host's memory belongs to the host again. */
static void give_later(const struct later *l)
{
    if (!l->down && memcmp(l->host, l->held, l->bytes) != 0)
        blame("what goes up was changed before it was waited for");
    if (l->down && !is_poison(l->host, l->bytes))
        blame("where it comes down was written before it was waited for");
    if (l->down)
        memcpy(l->host, l->held, l->bytes);
}

/* Before p is unpinned: no copy may be within it. */
static void end_within(const struct pinned *p)
{
    const char *begin = (const char *)p->memory;
    struct later **at = &laters;

    kernel = "unpin";
    while (*at) {
        struct later *l = *at;

        if (l->host >= begin && l->host < begin + p->bytes) {
            blame("a copy of it was not waited for");
            *at = l->next;
            free(l);
        } else {
            at = &l->next;
        }
    }
}

static bool is_pinned(const void *to, uint64_t bytes)
{
    const struct pinned *p = pins;

    while (p && !((const char *)to >= (const char *)p->memory &&
                  (const char *)to + bytes <= (const char *)p->memory + p->bytes))
        p = p->next;
    return p;
}

/* Completes copies before a mark, or all, and reports their faults. */
static void give_all(const char *what, uint64_t mark)
{
    pthread_mutex_lock(&busy);
    kernel = what;
    while (laters && (mark == UINT64_MAX || (laters->mark > 0 && laters->mark <= mark))) {
        struct later *l = laters;

        give_later(l);
        laters = l->next;
        free(l);
    }
    pthread_mutex_unlock(&busy);
}

/* The host waits until all copies are complete. */
void kg_dev_put(void *to, const void *from, uint64_t bytes)
{
    kg_traffic_count(&kg_dev_traffic.up, &kg_dev_traffic.ups, bytes);
    kg_traffic_count_wait(&kg_dev_traffic);
    move("put", to, true, from, false, bytes);
    give_all("put", UINT64_MAX);
}
void kg_dev_get(void *to, const void *from, uint64_t bytes)
{
    kg_traffic_count(&kg_dev_traffic.down, &kg_dev_traffic.downs, bytes);
    kg_traffic_count_wait(&kg_dev_traffic);
    move("get", to, false, from, true, bytes);
    give_all("get", UINT64_MAX);
}

/* returns the held data; NULL after a fault */
static char *hold(const char *what, void *host, uint64_t bytes, bool down)
{
    struct later *l = calloc(1, sizeof *l + bytes), **end = &laters;

    kernel = what;
    not_recorded(what);
    if (!l)
        blame("no memory for a copy");
    else if (!is_pinned(host, bytes))
        blame("memory that is not page-locked");
    if (fault[0]) {
        free(l);
        return NULL;
    }
    *l = (struct later){.host = host, .bytes = bytes, .down = down};
    while (*end)
        end = &(*end)->next;
    *end = l;
    return l->held;
}

void kg_dev_put_later(void *to, const void *from, uint64_t bytes)
{
    char *held;

    kg_traffic_count(&kg_dev_traffic.up, &kg_dev_traffic.ups, bytes);
    pthread_mutex_lock(&busy);
    held = hold("put_later", (void *)(uintptr_t)from, bytes, false);
    if (held) {
        memcpy(held, from, bytes);
        move_all(to, true, held, false, bytes);
    }
    pthread_mutex_unlock(&busy);
}

void kg_dev_get_later(void *to, const void *from, uint64_t bytes)
{
    char *held;

    kg_traffic_count(&kg_dev_traffic.down, &kg_dev_traffic.downs, bytes);
    pthread_mutex_lock(&busy);
    held = hold("get_later", to, bytes, true);
    if (held) {
        move_all(held, false, from, true, bytes);
        memset(to, 0xff, bytes);
    }
    pthread_mutex_unlock(&busy);
}

void kg_dev_mark(uint64_t mark)
{
    pthread_mutex_lock(&busy);
    not_recorded("mark");
    for (struct later *l = laters; l; l = l->next)
        if (l->mark == 0)
            l->mark = mark;
    pthread_mutex_unlock(&busy);
}

void kg_dev_wait(uint64_t mark)
{
    kg_traffic_count_wait(&kg_dev_traffic);
    pthread_mutex_lock(&busy);
    kernel = "wait";
    not_recorded("wait");
    if (is_lost())
        blame("the device is lost");
    give_all("wait", mark);
    pthread_mutex_unlock(&busy);
}

bool kg_dev_reached(uint64_t mark)
{
    kg_dev_wait(mark);
    return true;
}

void kg_dev_unpin(void *memory)
{
    struct pinned **at = &pins, *p;

    pthread_mutex_lock(&busy);
    while ((void *)(*at)->memory != memory)
        at = &(*at)->next;
    p = *at;
    *at = p->next;
    end_within(p);
    pthread_mutex_unlock(&busy);
    kg_mem_free(p);
}

void kg_dev_fetch(void *to, const void *from, uint64_t bytes)
{
    kg_traffic_count(&kg_dev_traffic.down, &kg_dev_traffic.downs, bytes);
    kg_traffic_count_wait(&kg_dev_traffic);
    pthread_mutex_lock(&busy);
    kernel = "fetch";
    if (is_pinned(to, bytes))
        move_all(to, false, from, true, bytes);
    else
        blame("memory that is not page-locked");
    pthread_mutex_unlock(&busy);
}

/* A copy or zeros within the device. */
struct within {
    void *to;
    const void *from; /* NULL: zeros */
    uint64_t bytes;
};

static int copy_now(void *arg)
{
    const struct within *w = arg;

    move("copy", w->to, true, w->from, true, w->bytes);
    return 0;
}
void kg_dev_copy(void *to, const void *from, uint64_t bytes)
{
    (void)kg_dev_call(copy_now, &(struct within){to, from, bytes}, sizeof(struct within));
}

static int zero_now(void *arg)
{
    const struct within *w = arg;

    pthread_mutex_lock(&busy);
    kg_emu_argument("zero", w->to);
    if (!fault[0]) {
        kg_pages_lend((const void *[]){w->to}, 1);
        memset(w->to, 0, w->bytes);
        kg_pages_take_back((const void *[]){w->to}, 1);
    }
    pthread_mutex_unlock(&busy);
    return 0;
}
void kg_dev_zero(void *to, uint64_t bytes)
{
    (void)kg_dev_call(zero_now, &(struct within){to, NULL, bytes}, sizeof(struct within));
}

/* ---- calls of libraries ---- */
void kg_dev_lend(const void *const *memory, size_t n) { kg_pages_lend(memory, n); }
void kg_dev_take_back(const void *const *memory, size_t n)
{
    kg_pages_take_back(memory, n);
}

static double (*seconds)(void);

void kg_emu_clock(double (*s)(void)) { seconds = s; }
double kg_dev_seconds(void)
{
    not_recorded("timing");
    return seconds ? seconds() : 0;
}

static const char *cuda_root = "/nowhere";

void kg_emu_cuda(const char *root) { cuda_root = root; }
const char *kg_emu_cuda_root(void) { return cuda_root; }
