/* Zeroed, aligned blocks of memory: counted, capped, and made to fail where a test asks.
 *
 * It is not an allocator. Small blocks come from the C library; blocks of a megabyte or
 * more are fresh mappings, whose pages are zero and unbacked until touched. A slab sized
 * for the worst case therefore takes only the memory that is used. The one idea: each
 * block is preceded by one cache line that holds its size, so freeing needs no size and
 * the counts are exact.
 *
 * Under AddressSanitizer every block comes from the C library, because that tool neither
 * guards mappings nor looks for pointers in them.
 */
#define _GNU_SOURCE /* madvise */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 64, HEADER_BYTES = 64 };
#define MAP_FROM_BYTES  ((size_t)1 << 20)
#define HUGE_FROM_BYTES ((size_t)64 << 20)
#define LARGEST_BYTES   ((size_t)1 << 46)

#ifdef __SANITIZE_ADDRESS__
static const bool may_map = false;
#else
static const bool may_map = true;
#endif

struct header {
    size_t bytes; /* of the block, without this header */
    bool mapped;
};
_Static_assert(sizeof(struct header) <= HEADER_BYTES, "the header fills one cache line");

static _Atomic uint64_t current_bytes;
static _Atomic uint64_t peak_bytes;
static _Atomic uint64_t cap_bytes;   /* 0: none */
static _Atomic uint64_t fail_number; /* 0: off; n: the n-th allocation from now fails */

/* True for exactly one caller after kg_mem_fail_at(n). */
static bool fails_on_purpose(void)
{
    uint64_t n = atomic_load(&fail_number);

    while (n > 0)
        if (atomic_compare_exchange_weak(&fail_number, &n, n - 1))
            return n == 1;
    return false;
}

/* Counts bytes before allocating them, so that threads together stay within the cap. */
static kg_status reserve(size_t bytes, const char *what, struct kg_err *err)
{
    uint64_t cap = atomic_load(&cap_bytes);
    uint64_t now = atomic_fetch_add(&current_bytes, bytes) + bytes;

    if (cap > 0 && now > cap) {
        atomic_fetch_sub(&current_bytes, bytes);
        return kg_fail(err, KG_ENOMEM,
                       "%s: %zu bytes do not fit under the memory cap of %llu bytes, of "
                       "which %llu are in use",
                       what, bytes, (unsigned long long)cap,
                       (unsigned long long)(now - bytes));
    }
    uint64_t peak = atomic_load(&peak_bytes);

    while (now > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, now))
        ;
    return KG_OK;
}

/* bytes includes the header.   returns zeroed memory or NULL */
static void *take(size_t bytes, bool mapped)
{
    void *base = NULL;

    if (!mapped) {
        if (posix_memalign(&base, ALIGN, bytes) != 0)
            return NULL;
        return memset(base, 0, bytes);
    }
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    if (bytes >= HUGE_FROM_BYTES)
        (void)madvise(base, bytes,
                      MADV_HUGEPAGE); /* a hint: a failure only costs speed */
    return base;
}

void *kg_mem_calloc(size_t count, size_t size, const char *what, struct kg_err *err)
{
    size_t bytes;

    if (__builtin_mul_overflow(count, size, &bytes) || bytes > LARGEST_BYTES) {
        kg_fail(err, KG_ENOMEM,
                "%s: %zu elements of %zu bytes are more than memory can hold", what,
                count, size);
        return NULL;
    }
    if (fails_on_purpose()) {
        kg_fail(err, KG_ENOMEM, "%s: allocation of %zu bytes failed on request of a test",
                what, bytes);
        return NULL;
    }
    if (reserve(bytes, what, err) != KG_OK)
        return NULL;

    bool mapped = may_map && bytes >= MAP_FROM_BYTES;
    struct header *h = take(bytes + HEADER_BYTES, mapped);
    if (!h) {
        atomic_fetch_sub(&current_bytes, bytes);
        kg_fail(err, KG_ENOMEM, "%s: the system refused %zu bytes; kedge holds %llu",
                what, bytes, (unsigned long long)kg_mem_current_bytes());
        return NULL;
    }
    h->bytes = bytes;
    h->mapped = mapped;
    return (unsigned char *)h + HEADER_BYTES;
}

void kg_mem_free(void *block)
{
    if (!block)
        return;
    struct header *h = (struct header *)(void *)((unsigned char *)block - HEADER_BYTES);
    atomic_fetch_sub(&current_bytes, h->bytes);
    if (h->mapped)
        munmap(h, h->bytes + HEADER_BYTES);
    else
        free(h);
}

kg_status kg_mem_new(void *block, size_t count, size_t size, const char *what,
                     struct kg_err *err)
{
    void *fresh = kg_mem_calloc(count, size, what, err);

    memcpy(block, &fresh, sizeof fresh);
    return fresh ? KG_OK : KG_ENOMEM;
}

void *kg_mem_copy(const void *bytes, size_t n, const char *what, struct kg_err *err)
{
    void *copy = kg_mem_calloc(n, 1, what, err);

    if (copy && n > 0)
        memcpy(copy, bytes, n);
    return copy;
}

char *kg_mem_strdup(const char *text, struct kg_err *err)
{
    return kg_mem_copy(text, strlen(text) + 1, "text", err);
}

kg_status kg_mem_grow(void *block, size_t *capacity, size_t need, size_t size, size_t max,
                      const char *what, struct kg_err *err)
{
    void *old;

    if (need <= *capacity)
        return KG_OK;
    if (need > max)
        return kg_fail(err, KG_ENOMEM,
                       "%s: %zu elements are needed, at most %zu are allowed", what, need,
                       max);
    size_t larger = *capacity < 8 ? 8 : *capacity;
    larger = larger > max / 2 ? max : larger * 2;
    if (larger < need)
        larger = need;
    void *fresh = kg_mem_calloc(larger, size, what, err);
    if (!fresh)
        return KG_ENOMEM;
    memcpy(&old, block, sizeof old); /* the caller's pointer may be of any object type */
    if (old)
        memcpy(fresh, old, *capacity * size);
    kg_mem_free(old);
    memcpy(block, &fresh, sizeof fresh);
    *capacity = larger;
    return KG_OK;
}

uint64_t kg_mem_current_bytes(void) { return atomic_load(&current_bytes); }
uint64_t kg_mem_peak_bytes(void) { return atomic_load(&peak_bytes); }
void kg_mem_reset_peak(void) { atomic_store(&peak_bytes, atomic_load(&current_bytes)); }
void kg_mem_set_cap(uint64_t bytes) { atomic_store(&cap_bytes, bytes); }
void kg_mem_fail_at(uint64_t n) { atomic_store(&fail_number, n); }

uint64_t kg_mem_resident_bytes(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");

    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %llu kB", &kib) == 1)
            break;
    fclose(f);
    return (uint64_t)kib * 1024;
}
