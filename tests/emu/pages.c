/* Memory that the host cannot touch: pages whose protection follows who may read them.
 *
 * The list of buffers is short, and is walked at each operation. Whoever lends buffers
 * keeps other threads from doing so until they are taken back.
 *
 * Changing the protection of a small buffer costs more than the operation that uses it.
 * So under AddressSanitizer small buffers are poisoned instead, and their pages stay
 * open: it reports every access that it has compiled in; guard pages catch the others.
 */
#define _GNU_SOURCE
#include "emu/pages.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct buffer {
    struct buffer *next;
    char *pages; /* between two pages that are never accessible */
    size_t bytes;
    uint64_t asked; /* requested bytes */
    bool open;
    bool lent;
};

static struct buffer *buffers; /* owned; not freed yet */
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;
static bool shown;
static uint64_t held, most; /* requested bytes */

/* of AddressSanitizer; NULL without it */
extern void __asan_poison_memory_region(const volatile void *p, size_t n)
    __attribute__((weak));
extern void __asan_unpoison_memory_region(const volatile void *p, size_t n)
    __attribute__((weak));

/* Buffers of this size use huge pages, if the system has them: fewer to protect. */
enum { HUGE = 2 << 20, LARGE_BYTES = HUGE / 4 };

static bool is_poisoned(const struct buffer *b)
{
    return __asan_poison_memory_region && b->asked < LARGE_BYTES;
}

static void set_open(struct buffer *b, bool open)
{
    if (b->open == open)
        return;
    if (!is_poisoned(b))
        /* fails if there never was a mapping: then the next access faults */
        (void)mprotect(b->pages, b->bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    else if (open)
        __asan_unpoison_memory_region(b->pages, b->bytes);
    else
        __asan_poison_memory_region(b->pages, b->bytes);
    b->open = open;
}

/* Opens every buffer, as the host may touch all; or only those that are lent. */
static void set_all(bool open)
{
    for (struct buffer *b = buffers; b; b = b->next)
        set_open(b, open || b->lent);
}

static struct buffer **find(const void *p)
{
    struct buffer **at = &buffers;

    while (*at && ((const char *)p < (*at)->pages ||
                   (const char *)p > (*at)->pages + (*at)->bytes))
        at = &(*at)->next;
    return at;
}

static void lend_views(const void *const *views, size_t n, bool lent)
{
    for (size_t i = 0; i < n; i++) {
        struct buffer *b = views[i] ? *find(views[i]) : NULL;

        if (!b)
            continue;
        b->lent = lent;
        if (!shown)
            set_open(b, lent);
    }
}

/* ---- amounts ---- */
static uint64_t all_there_is(void)
{
    const char *text = getenv("KEDGE_TEST_MEMORY");

    return text ? strtoull(text, NULL, 10) : (uint64_t)1 << 50;
}

struct kg_pages_memory kg_pages_memory(void)
{
    struct kg_pages_memory m = {.total = all_there_is()};

    pthread_mutex_lock(&busy);
    m.held = held;
    m.most = most;
    most = held;
    pthread_mutex_unlock(&busy);
    return m;
}

kg_status kg_pages_free_bytes(uint64_t *total, uint64_t *free, struct kg_err *err)
{
    (void)err;
    *total = all_there_is();
    pthread_mutex_lock(&busy);
    *free = held < *total ? *total - held : 0;
    pthread_mutex_unlock(&busy);
    return KG_OK;
}

/* ---- allocation ---- */
static bool has_room(uint64_t bytes)
{
    uint64_t total, free;
    struct kg_err ignored;

    return kg_pages_free_bytes(&total, &free, &ignored) == KG_OK && bytes <= free;
}

static bool map(struct buffer *b, uint64_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE),
                 step = bytes < LARGE_BYTES ? page : HUGE;
    char *at;

    b->asked = bytes;
    b->bytes = (bytes + step) / step * step; /* at least one */
    at = mmap(NULL, b->bytes + page + step, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return false;
    b->pages = at + step - (uintptr_t)at % step;
    if (step == HUGE)
        (void)madvise(b->pages, b->bytes, MADV_HUGEPAGE);
    if (is_poisoned(b)) {
        __asan_poison_memory_region(b->pages, b->bytes);
        return mprotect(b->pages, b->bytes, PROT_READ | PROT_WRITE) == 0;
    }
    return true;
}

void *kg_pages_alloc(uint64_t bytes, const char *what, struct kg_err *err)
{
    enum { ALIGN = 64 };
    struct buffer *b = kg_mem_calloc(1, sizeof *b, what, err);

    if (!b)
        return NULL;
    if (bytes > SIZE_MAX / 2 || !has_room(bytes) || !map(b, bytes)) {
        kg_fail(err, KG_ENOMEM, "%s: no memory for %llu bytes", what,
                (unsigned long long)bytes);
        kg_mem_free(b);
        return NULL;
    }
    pthread_mutex_lock(&busy);
    held += bytes;
    most = held > most ? held : most;
    b->next = buffers;
    buffers = b;
    set_open(b, shown);
    pthread_mutex_unlock(&busy);
    return b->pages + b->bytes - (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

void kg_pages_free(void *memory)
{
    struct buffer **at, *b;

    pthread_mutex_lock(&busy);
    at = find(memory);
    b = *at;
    if (b) {
        /* never accessible again, and one mapping with the pages around it */
        (void)mmap(b->pages, b->bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        held -= b->asked;
        *at = b->next;
    }
    pthread_mutex_unlock(&busy);
    kg_mem_free(b);
}

/* ---- access ---- */
bool kg_pages_hold(const void *p)
{
    bool found;

    pthread_mutex_lock(&busy);
    found = *find(p);
    pthread_mutex_unlock(&busy);
    return found;
}

void kg_pages_lend(const void *const *views, size_t n)
{
    pthread_mutex_lock(&busy);
    lend_views(views, n, true);
    if (shown)
        set_all(false);
    pthread_mutex_unlock(&busy);
}

void kg_pages_take_back(const void *const *views, size_t n)
{
    pthread_mutex_lock(&busy);
    lend_views(views, n, false);
    if (shown)
        set_all(true);
    pthread_mutex_unlock(&busy);
}

void kg_pages_show(bool on)
{
    pthread_mutex_lock(&busy);
    shown = on;
    set_all(on);
    pthread_mutex_unlock(&busy);
}
