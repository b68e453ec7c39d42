/* Memory that the host cannot touch: pages whose protection follows who may read them.
 *
 * The list of buffers is short, and is walked at each operation. Whoever lends buffers
 * keeps other threads from doing so until they are taken back.
 */
#define _GNU_SOURCE
#include "tensor/pages.h"

#include "base/mem.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

struct buffer {
    struct buffer *next;
    char *pages; /* behind a page that stays closed, and before one */
    size_t bytes;
};

static struct buffer *buffers; /* owned; those that are not freed */
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;
static bool shown;

static void set_open(const struct buffer *b, bool open)
{
    /* fails where a mapping was never there: then what follows faults */
    (void)mprotect(b->pages, b->bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static void set_all(bool open)
{
    for (const struct buffer *b = buffers; b; b = b->next)
        set_open(b, open);
}

static struct buffer **find(const void *p)
{
    struct buffer **at = &buffers;

    while (*at && ((const char *)p < (*at)->pages ||
                   (const char *)p > (*at)->pages + (*at)->bytes))
        at = &(*at)->next;
    return at;
}

static void set_views(const void *const *views, size_t n, bool open)
{
    for (size_t i = 0; i < n; i++) {
        const struct buffer *b = views[i] ? *find(views[i]) : NULL;

        if (b)
            set_open(b, open);
    }
}

/* ---- life ---- */
static bool map(struct buffer *b, uint64_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at;

    b->bytes = (bytes + page) / page * page; /* one at least */
    at = mmap(NULL, b->bytes + 2 * page, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return false;
    b->pages = at + page;
    return true;
}

void *kg_pages_alloc(uint64_t bytes, const char *what, struct kg_err *err)
{
    enum { ALIGN = 64 };
    struct buffer *b = kg_mem_calloc(1, sizeof *b, what, err);

    if (!b)
        return NULL;
    if (bytes > SIZE_MAX / 2 || !map(b, bytes)) {
        kg_fail(err, KG_ENOMEM, "%s: no memory for %llu bytes", what,
                (unsigned long long)bytes);
        kg_mem_free(b);
        return NULL;
    }
    pthread_mutex_lock(&busy);
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
        (void)madvise(b->pages, b->bytes, MADV_DONTNEED);
        set_open(b, false);
        *at = b->next;
    }
    pthread_mutex_unlock(&busy);
    kg_mem_free(b);
}

/* ---- who may touch them ---- */
bool kg_pages_hold(const void *p)
{
    bool held;

    pthread_mutex_lock(&busy);
    held = *find(p);
    pthread_mutex_unlock(&busy);
    return held;
}

void kg_pages_lend(const void *const *views, size_t n)
{
    pthread_mutex_lock(&busy);
    if (shown)
        set_all(false);
    set_views(views, n, true);
    pthread_mutex_unlock(&busy);
}

void kg_pages_take_back(const void *const *views, size_t n)
{
    pthread_mutex_lock(&busy);
    set_views(views, n, false);
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
