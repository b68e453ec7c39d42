/* Exchanges with all other ranks at once, a piece at a time: two ranks that send each
 * other more than a socket buffers both read while they write, so neither blocks the
 * other. A rank that can move nothing first retries for a moment, because the others
 * usually arrive soon, and then sleeps. A rank silent for too long is named (lost.h).
 */
#define _GNU_SOURCE
#include "ranks/sockets.h"

#include "base/clock.h"
#include "ranks/message.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum { LOOKS = 16, SLEEP_MS = 100 };
static const double awake_s = 200e-6; /* longer than waking a process takes */
_Static_assert((int)KG_RANKS_SOCKETS == (int)KG_RINGS_MOST, "ranks of one machine");

/* The unfinished rest of a part. */
struct flow {
    char *at;
    size_t left;
    bool head; /* its head has not passed yet */
};

struct traffic {
    const struct kg_ranks *r;
    const char *what;
    struct kg_rings *rings;
    int *fd; /* (ranks) */
    struct flow out[KG_RANKS_SOCKETS], in[KG_RANKS_SOCKETS];
    const struct kg_ranks_user *user; /* of received bytes; NULL: they are copied */
    size_t used;                      /* bytes used, of each part */
    bool ended[KG_RANKS_SOCKETS];     /* the socket is closed: the rank is gone */
    struct kg_poll_clock clock;
    unsigned question; /* number of this rank's last poll */
    kg_status heads;   /* OK: all received heads are as expected; else why is set */
    struct kg_err *why;
};

static void begin(struct traffic *t, const struct kg_ranks_part *out,
                  const struct kg_ranks_part *in)
{
    t->rings = t->r->wire;
    t->fd = kg_rings_sockets(t->rings, t->r->me);
    for (int p = 0; p < t->r->n; p++) {
        t->out[p] = (struct flow){out[p].data, out[p].n, out[p].n > 0};
        t->in[p] = (struct flow){in[p].data, in[p].n, in[p].n > 0};
    }
}

/* ---- who is lost ---- */

/* Whether this rank waits for bytes of rank p. Bytes that have arrived, but wait for
 * parts of other ranks, are not owed any more. */
static bool owes(const struct traffic *t, int p)
{
    return t->in[p].left > 0 && !kg_rings_has_bytes(t->rings, p, t->r->me);
}

static bool takes(const struct traffic *t, int p)
{
    return t->out[p].left == 0 || kg_rings_has_room(t->rings, t->r->me, p);
}

/* who: as in kg_ranks_loss */
static bool takes_nothing(const struct traffic *t, int who)
{
    int p = abs(who) - 1;

    return !owes(t, p) && !takes(t, p);
}

/* Fails with the first loss that any rank found, else with `found`. Rank 0, the parent of
 * the other ranks, reports it; if rank 0 is lost, this rank does. */
static kg_status lose(const struct traffic *t, int found, struct kg_err *err)
{
    struct kg_ranks_loss *loss = t->r->loss;
    int who = 0;

    if (loss && atomic_compare_exchange_strong(&loss->who, &who, found))
        atomic_store(&loss->by, abs(found) == 1 ? t->r->me : 0);
    if (who == 0)
        who = found;
    return kg_ranks_say_lost(t->r, who, takes_nothing(t, who), t->what, err);
}

/* If another rank has found a loss, a rank that left because of it is not the cause. */
static bool another_found_one(const struct traffic *t)
{
    return t->r->loss && atomic_load(&t->r->loss->who) != 0;
}

static kg_status gone(const struct traffic *t, int p, struct kg_err *err)
{
    return lose(t, p + 1, err);
}

/* Ranks that this rank waits for: bit p is rank p. All bits are read at one moment,
 * because other ranks change the rings. */
struct waits {
    uint64_t owing; /* they have not sent */
    uint64_t all;   /* they have not sent, or not received */
};

static struct waits waits_now(const struct traffic *t)
{
    struct waits w = {0};

    for (int p = 0; p < t->r->n; p++) {
        const uint64_t bit = (uint64_t)1 << p;
        const bool owing = owes(t, p);

        w.owing |= owing ? bit : 0;
        w.all |= owing || !takes(t, p) ? bit : 0;
    }
    return w;
}

static void answer(const struct traffic *t)
{
    struct kg_ranks_loss *loss = t->r->loss;
    unsigned question = loss ? atomic_load(&loss->question) : 0;

    if (!loss || atomic_load(&loss->answer[t->r->me].to) == question)
        return;
    atomic_store(&loss->answer[t->r->me].waits, waits_now(t).all);
    atomic_store(&loss->answer[t->r->me].to, question);
}

static void ask(struct traffic *t)
{
    if (t->r->loss)
        t->question = atomic_fetch_add(&t->r->loss->question, 1) + 1;
}

static void spread(unsigned char *waits, uint64_t bits, int n)
{
    for (int p = 0; p < n; p++)
        waits[p] = bits >> p & 1;
}

/* Takes replies to this rank's poll, or to a later one. */
static void hear(struct kg_poll *roll, const struct traffic *t)
{
    struct kg_ranks_loss *loss = t->r->loss;
    unsigned char waits[KG_RANKS_SOCKETS];

    for (int p = 0; p < roll->n && loss; p++)
        if (p != roll->me && atomic_load(&loss->answer[p].to) >= t->question) {
            spread(waits, atomic_load(&loss->answer[p].waits), roll->n);
            kg_poll_answer(roll, p, waits);
        }
}

/* The lowest rank that has not sent, else that has not received.   w: not empty */
static int waited_for(struct waits w)
{
    const uint64_t of = w.owing ? w.owing : w.all;
    int p = 0;

    assert(of != 0);
    while (!(of >> p & 1))
        p++;
    return p;
}

/* Names a lost rank, unless the awaited bytes arrived meanwhile. */
static kg_status too_long(const struct traffic *t, struct kg_err *err)
{
    unsigned char room[2 * KG_RANKS_SOCKETS], bytes[KG_RANKS_SOCKETS];
    const struct waits w = waits_now(t);
    struct kg_poll roll;

    if (w.all == 0)
        return KG_OK;
    spread(bytes, w.all, t->r->n);
    kg_poll_begin(&roll, room, t->r->n, t->r->me, bytes);
    hear(&roll, t);
    return lose(t, -(kg_poll_missing(&roll, waited_for(w)) + 1), err);
}

/* ---- what moves ---- */

static void wake(const struct traffic *t, int p)
{
    const char bell = 0;

    if (kg_rings_must_wake(t->rings, p)) /* fails if rank p is gone */
        (void)!send(t->fd[p], &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static bool pass(struct flow *f, size_t n)
{
    f->at += n;
    f->left -= n;
    return n > 0;
}

/* A head is one line of a ring: it is written whole or not at all. */
static bool put_head(struct traffic *t, int p)
{
    struct kg_ranks_head head;

    kg_ranks_head_make(&head, t->r, t->what, t->out[p].left);
    if (kg_rings_put(t->rings, t->r->me, p, &head, sizeof head) == 0)
        return false;
    t->out[p].head = false;
    return true;
}

/* After an unexpected head, nothing more is taken. */
static bool take_head(struct traffic *t, int p)
{
    struct kg_ranks_head head;

    if (kg_rings_take(t->rings, p, t->r->me, &head, sizeof head) == 0)
        return false;
    t->in[p].head = false;
    if (t->heads == KG_OK)
        t->heads = kg_ranks_head_check(&head, t->r, p, t->what, t->in[p].left, t->why);
    return true;
}

static bool move(struct traffic *t, int p)
{
    struct flow *out = &t->out[p], *in = &t->in[p];
    int me = t->r->me;
    bool moved = false;

    if (out->head)
        moved |= put_head(t, p);
    if (out->left > 0 && !out->head)
        moved |= pass(out, kg_rings_put(t->rings, me, p, out->at, out->left));
    if (in->head)
        moved |= take_head(t, p);
    if (in->left > 0 && !in->head && !t->user && t->heads == KG_OK)
        moved |= pass(in, kg_rings_take(t->rings, p, me, in->at, in->left));
    if (moved)
        wake(t, p);
    return moved;
}

/* Addresses of the next bytes of all senders.   returns how many all of them have */
static size_t see_all(const struct traffic *t, void **lent)
{
    size_t least = SIZE_MAX;

    for (int p = 0; p < t->r->n; p++) {
        size_t left = t->in[p].left, n;

        lent[p] = NULL;
        if (left == 0)
            continue;
        n = t->in[p].head ? 0 : kg_rings_see(t->rings, p, t->r->me, &lent[p], left);
        least = n < least ? n : least;
    }
    return least == SIZE_MAX ? 0 : least;
}

/* Received bytes are used when all senders have them. */
static bool use(struct traffic *t)
{
    void *lent[KG_RANKS_SOCKETS];
    size_t n = see_all(t, lent);

    if (n == 0)
        return false;
    t->user->use(t->user->context, lent, t->used, n);
    t->used += n;
    for (int p = 0; p < t->r->n; p++) {
        if (!lent[p])
            continue;
        kg_rings_give_back(t->rings, p, t->r->me, n);
        t->in[p].left -= n;
        wake(t, p);
    }
    return true;
}

static bool move_all(struct traffic *t)
{
    bool moved = false;

    for (int p = 0; p < t->r->n; p++)
        moved |= move(t, p);
    if (t->user && t->heads == KG_OK)
        moved |= use(t);
    return moved;
}

static bool is_open(const struct traffic *t, int p)
{
    return t->out[p].left > 0 || t->in[p].left > 0;
}

static bool any_open(const struct traffic *t)
{
    for (int p = 0; p < t->r->n; p++)
        if (is_open(t, p))
            return true;
    return false;
}

static bool can_move(const struct traffic *t, int p)
{
    return (t->out[p].left > 0 && kg_rings_has_room(t->rings, t->r->me, p)) ||
           (t->in[p].left > 0 && kg_rings_has_bytes(t->rings, p, t->r->me));
}

/* Bytes that are used together are of no use until every sender has some. */
static bool any_can_move(const struct traffic *t)
{
    void *lent[KG_RANKS_SOCKETS];

    for (int p = 0; p < t->r->n; p++)
        if (t->user && !t->in[p].head ? t->out[p].left > 0 && takes(t, p)
                                      : can_move(t, p))
            return true;
    return t->user && see_all(t, lent) > 0;
}

/* ---- waiting ---- */

/* Reads the bytes that woke this rank. If the stream has ended, rank p is gone. */
static void hear_bells(struct traffic *t, int p)
{
    char bells[64];
    ssize_t n = recv(t->fd[p], bells, sizeof bells, MSG_DONTWAIT);

    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK))
        t->ended[p] = true;
}

/* returns false: no rank woke this one */
static bool sleep_a_while(struct traffic *t)
{
    struct pollfd fd[KG_RANKS_SOCKETS];
    int ready = 0;

    for (int p = 0; p < t->r->n; p++)
        fd[p] = (struct pollfd){p == t->r->me || t->ended[p] ? -1 : t->fd[p], POLLIN, 0};
    kg_rings_sleep(t->rings, t->r->me, true);
    if (!any_can_move(t))
        ready = poll(fd, (nfds_t)t->r->n, SLEEP_MS);
    else
        ready = 1;
    kg_rings_sleep(t->rings, t->r->me, false);
    for (int p = 0; p < t->r->n; p++)
        if (fd[p].revents)
            hear_bells(t, p);
    return ready > 0;
}

/* Bytes that a rank wrote before it ended are read first. */
static kg_status check_ends(const struct traffic *t, struct kg_err *err)
{
    for (int p = 0; p < t->r->n; p++)
        if (t->ended[p] && is_open(t, p) && !can_move(t, p))
            return gone(t, p, err);
    return KG_OK;
}

/* Nothing moved for a moment. Bytes that arrived in time are moved before a rank is
 * named: this process may have had no core meanwhile. */
static kg_status wait_on(struct traffic *t, struct kg_err *err)
{
    enum kg_poll_moment now = kg_poll_look(&t->clock, t->r->wait_s);

    if (another_found_one(t))
        return lose(t, 0, err);
    if (any_can_move(t))
        return KG_OK;
    if (now == KG_POLL_ASK)
        ask(t);
    return now == KG_POLL_OVER ? too_long(t, err) : KG_OK;
}

/* Retries for a moment, then sleeps. */
static kg_status rest(struct traffic *t, int looks, struct kg_err *err)
{
    if (looks % LOOKS != 0)
        return KG_OK;
    answer(t);
    if (kg_clock_seconds() - t->clock.since < awake_s) {
        sched_yield(); /* to ranks that share this core */
        return KG_OK;
    }
    if (!sleep_a_while(t))
        KG_TRY(wait_on(t, err));
    return check_ends(t, err);
}

/* Announces this rank's own fault, so that others do not wait, unless a rank is lost. */
static kg_status leave_unlike(const struct traffic *t, struct kg_err *err)
{
    struct kg_ranks_loss *loss = t->r->loss;
    int who = 0;

    if (!loss)
        return t->heads;
    if (!atomic_compare_exchange_strong(&loss->who, &who, t->r->me + 1))
        return lose(t, 0, err);
    atomic_store(&loss->by, t->r->me);
    atomic_store(&loss->unlike, true);
    return t->heads;
}

/* Parts of `in` have sizes and no memory if there is a user. */
static kg_status lend(const struct kg_ranks *r, const struct kg_ranks_part *out,
                      const struct kg_ranks_part *in, const struct kg_ranks_user *user,
                      const char *what, struct kg_err *err)
{
    struct traffic t = {.r = r, .what = what, .user = user, .why = err};
    int looks = 0;

    begin(&t, out, in);
    kg_poll_moved(&t.clock);
    while (any_open(&t) && t.heads == KG_OK) {
        if (move_all(&t)) {
            kg_poll_moved(&t.clock);
            looks = 0;
        } else {
            KG_TRY(rest(&t, ++looks, err));
        }
    }
    return t.heads == KG_OK ? KG_OK : leave_unlike(&t, err);
}

static kg_status exchange(const struct kg_ranks *r, const struct kg_ranks_part *out,
                          const struct kg_ranks_part *in, const char *what,
                          struct kg_err *err)
{
    return lend(r, out, in, NULL, what, err);
}

static const struct kg_ranks_transport sockets = {
    .name = "shared memory", .exchange = exchange, .lend = lend};

kg_status kg_ranks_on_sockets(struct kg_ranks *r, int me, int n, int *fd,
                              struct kg_rings *rings, struct kg_err *err)
{
    if (n > KG_RANKS_SOCKETS)
        return kg_fail(err, KG_EINVAL, "expected at most %d ranks, found %d",
                       KG_RANKS_SOCKETS, n);
    kg_rings_set_sockets(rings, me, fd);
    *r = (struct kg_ranks){
        .me = me, .n = n, .here = n, .transport = &sockets, .wire = rings};
    return KG_OK;
}

/* Two counters per ring: bytes written and bytes taken, each part rounded up to whole
 * lines. They only grow, so their difference is the content of the ring; the size is a
 * power of two, so a counter's low bits are the position.
 *
 * No wakeup is lost: a rank that moves bytes then checks whether the other sleeps; a rank
 * that goes to sleep first sets its flag and then checks for bytes (or room). A full
 * fence stands between the two steps of each, so at least one sees the other's write.
 */

enum { LINE = KG_RINGS_LINE };
enum { LEAST_ROOM = 1 << 14, MOST_ROOM = 1 << 18, ALL_ROOM = 1 << 26, PIECES = 8 };

struct ring {
    _Alignas(LINE) atomic_size_t written;
    _Alignas(LINE) atomic_size_t taken;
};

struct process {
    _Alignas(LINE) atomic_bool sleeps;
    int *fd; /* (n) owned by the process; its sockets */
};

struct kg_rings {
    int n;
    size_t room;  /* bytes of a ring */
    size_t bytes; /* of the whole object */
    struct process process[KG_RINGS_MOST];
    struct ring ring[]; /* (n, n): from, to; then (n, n, room) bytes */
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

/* How many of n bytes one call moves at offset `at`: never past the end of the ring. */
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
