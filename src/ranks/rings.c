/* Two counters per ring: bytes written and bytes taken, each part rounded up to whole
 * lines. They only grow, so their difference is the content of the ring; the size is a
 * power of two, so a counter's low bits are the position.
 *
 * No wakeup is lost: a rank that moves bytes then checks whether the other sleeps; a rank
 * that goes to sleep first sets its flag and then checks for bytes (or room). A full
 * fence stands between the two steps of each, so at least one sees the other's write.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "ranks/rings.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE = KG_RINGS_LINE };
enum { LEAST_ROOM = 1 << 14, MOST_ROOM = 1 << 18, ALL_ROOM = 1 << 26, PIECES = 8 };

struct ring {
    _Alignas(LINE) atomic_size_t written;
    _Alignas(LINE) atomic_size_t taken;
};

struct process {
    _Alignas(LINE) atomic_bool sleeps;
    int *fd; /* of its own memory */
};

struct kg_rings {
    int n;
    size_t room;  /* bytes of a ring */
    size_t bytes; /* of all */
    struct process process[KG_RINGS_MOST];
    struct ring ring[]; /* (n, n) from, to; behind them (n, n, room) bytes */
};

static size_t room_of(int n)
{
    size_t room = MOST_ROOM;

    while (room > LEAST_ROOM && room * (size_t)n * (size_t)n > ALL_ROOM)
        room /= 2;
    return room;
}

kg_status kg_rings_create(struct kg_rings **rings, int n, struct kg_err *err)
{
    const size_t pairs = (size_t)n * (size_t)n, room = room_of(n);
    const size_t bytes = sizeof **rings + pairs * (sizeof(struct ring) + room);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                        -1, 0);

    *rings = NULL;
    if (memory == MAP_FAILED)
        return kg_fail(err, KG_ENOMEM, "ranks: cannot map %zu bytes of shared memory: %s",
                       bytes, strerror(errno));
    *rings = memory;
    (*rings)->n = n;
    (*rings)->room = room;
    (*rings)->bytes = bytes;
    return KG_OK;
}

void kg_rings_free(struct kg_rings *rings)
{
    if (rings)
        munmap(rings, rings->bytes);
}

void kg_rings_set_sockets(struct kg_rings *rings, int me, int *fd)
{
    rings->process[me].fd = fd;
}

int *kg_rings_sockets(const struct kg_rings *rings, int me)
{
    return rings->process[me].fd;
}

/* ---- bytes ---- */

static size_t number(const struct kg_rings *s, int from, int to)
{
    return (size_t)from * (size_t)s->n + (size_t)to;
}

static char *place(struct kg_rings *s, int from, int to, size_t at)
{
    char *all = (char *)(s->ring + (size_t)s->n * (size_t)s->n);

    return all + number(s, from, to) * s->room + (at & (s->room - 1));
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Of n bytes those of one call, from `at` on, not beyond the end of the ring. */
static size_t piece(const struct kg_rings *s, size_t at, size_t n, size_t free)
{
    return least(least(n, free), least(s->room / PIECES, s->room - (at & (s->room - 1))));
}

static size_t lines(size_t n) { return (n + LINE - 1) / LINE * LINE; }

size_t kg_rings_put(struct kg_rings *s, int from, int to, const void *bytes, size_t n)
{
    struct ring *ring = &s->ring[number(s, from, to)];
    size_t at = atomic_load_explicit(&ring->written, memory_order_relaxed);
    size_t held = at - atomic_load_explicit(&ring->taken, memory_order_acquire);

    n = piece(s, at, n, s->room - held);
    if (n == 0)
        return 0;
    memcpy(place(s, from, to, at), bytes, n);
    atomic_store_explicit(&ring->written, at + lines(n), memory_order_release);
    return n;
}

size_t kg_rings_see(struct kg_rings *s, int from, int to, void **bytes, size_t n)
{
    struct ring *ring = &s->ring[number(s, from, to)];
    size_t at = atomic_load_explicit(&ring->taken, memory_order_relaxed);
    size_t held = atomic_load_explicit(&ring->written, memory_order_acquire) - at;

    *bytes = place(s, from, to, at);
    return piece(s, at, n, held);
}

void kg_rings_give_back(struct kg_rings *s, int from, int to, size_t n)
{
    struct ring *ring = &s->ring[number(s, from, to)];
    size_t at = atomic_load_explicit(&ring->taken, memory_order_relaxed);

    atomic_store_explicit(&ring->taken, at + lines(n), memory_order_release);
}

size_t kg_rings_take(struct kg_rings *s, int from, int to, void *bytes, size_t n)
{
    void *there;

    n = kg_rings_see(s, from, to, &there, n);
    if (n == 0)
        return 0;
    memcpy(bytes, there, n);
    kg_rings_give_back(s, from, to, n);
    return n;
}

static size_t held(const struct kg_rings *s, int from, int to)
{
    const struct ring *ring = &s->ring[number(s, from, to)];

    return atomic_load(&ring->written) - atomic_load(&ring->taken);
}

bool kg_rings_has_room(const struct kg_rings *s, int from, int to)
{
    return held(s, from, to) < s->room;
}

bool kg_rings_has_bytes(const struct kg_rings *s, int from, int to)
{
    return held(s, from, to) > 0;
}

/* ---- sleep ---- */

void kg_rings_sleep(struct kg_rings *s, int me, bool on)
{
    atomic_store(&s->process[me].sleeps, on);
    atomic_thread_fence(memory_order_seq_cst);
}

bool kg_rings_must_wake(struct kg_rings *s, int rank)
{
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(&s->process[rank].sleeps, memory_order_relaxed) &&
           atomic_exchange(&s->process[rank].sleeps, false);
}
