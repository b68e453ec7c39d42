/* Preloaded by tests/memory_test.sh: makes memory request number KEDGE_FAIL_NTH fail,
 * whichever library of the program makes it. If KEDGE_FAIL_COUNT=FILE is set, writes the
 * number of all requests there. Requests of the loader are not seen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_long seen;
static long fail_at; /* 0: off */
static const char *count_file;

static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static int (*real_memalign)(void **, size_t, size_t);
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);

/* serves the memory that dlsym itself requests */
static char early[1 << 14];
static size_t early_used;

static void *find(const char *name) { return dlsym(RTLD_NEXT, name); }

/* Runs with the first request, because libraries allocate before a constructor here could
 * run.   returns whether it is still in progress */
static int begin(void)
{
    static int begun;
    const char *n = getenv("KEDGE_FAIL_NTH");
    if (begun)
        return real_mmap == NULL;
    begun = 1;
    real_malloc = (void *(*)(size_t))find("malloc");
    real_calloc = (void *(*)(size_t, size_t))find("calloc");
    real_realloc = (void *(*)(void *, size_t))find("realloc");
    real_memalign = (int (*)(void **, size_t, size_t))find("posix_memalign");
    real_mmap = (void *(*)(void *, size_t, int, int, int, off_t))find("mmap");
    count_file = getenv("KEDGE_FAIL_COUNT");
    fail_at = n ? atol(n) : 0;
    return 0;
}

__attribute__((destructor)) static void end(void)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", (long)seen);
    int fd = count_file ? open(count_file, O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
    if (fd >= 0 && write(fd, text, (size_t)n) == n)
        close(fd);
}

static int fails(void)
{
    long n = ++seen;
    if (n != fail_at)
        return 0;
    errno = ENOMEM;
    return 1;
}

static void *from_early(size_t n)
{
    void *p = early + early_used;
    early_used += (n + 15) / 16 * 16;
    return early_used <= sizeof early ? p : NULL;
}

void *malloc(size_t n)
{
    if (begin())
        return from_early(n);
    return fails() ? NULL : real_malloc(n);
}

void *calloc(size_t count, size_t n)
{
    if (begin())
        return from_early(count * n);
    return fails() ? NULL : real_calloc(count, n);
}

void *realloc(void *old, size_t n)
{
    if (begin())
        return from_early(n);
    return fails() ? NULL : real_realloc(old, n);
}

void free(void *p)
{
    static void (*real_free)(void *);
    if ((char *)p >= early && (char *)p < early + sizeof early)
        return;
    if (real_free == NULL)
        real_free = (void (*)(void *))find("free");
    real_free(p);
}

int posix_memalign(void **p, size_t align, size_t n)
{
    if (begin())
        return ENOMEM;
    return fails() ? ENOMEM : real_memalign(p, align, n);
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t from)
{
    if (begin())
        return MAP_FAILED;
    return fails() ? MAP_FAILED : real_mmap(at, n, prot, flags, fd, from);
}
