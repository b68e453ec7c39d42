/* All sockets at once, a piece at a time, so that two ranks that send each other much do
 * not wait for each other. A rank that sends nothing for too long has a name. */
#include "ranks/sockets.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { PIECE = 1 << 16 };

/* What is done of a part. */
struct flow {
    char *at;
    size_t left;
};

struct traffic {
    const struct kg_ranks *r;
    const char *what;
    struct flow out[KG_RANKS_SOCKETS], in[KG_RANKS_SOCKETS];
    struct pollfd fd[KG_RANKS_SOCKETS];
    struct kg_roll_clock clock;
    unsigned question; /* that this rank asked last */
};

static void begin(struct traffic *t, const struct kg_ranks_part *out,
                  const struct kg_ranks_part *in)
{
    for (int p = 0; p < t->r->n; p++) {
        t->out[p] = (struct flow){out[p].data, out[p].n};
        t->in[p] = (struct flow){in[p].data, in[p].n};
    }
}

/* What is left to wait for.   returns false: nothing */
static bool aim(struct traffic *t)
{
    const int *fd = t->r->wire;
    bool more = false;

    for (int p = 0; p < t->r->n; p++) {
        short events = (short)((t->out[p].left ? POLLOUT : 0) |
                               (t->in[p].left ? POLLIN : 0));

        t->fd[p] = (struct pollfd){events ? fd[p] : -1, events, 0};
        more |= events != 0;
    }
    return more;
}

/* ---- who is lost ---- */

/* who: as kg_ranks_loss has it */
static bool takes_nothing(const struct traffic *t, int who)
{
    int p = abs(who) - 1;

    return t->in[p].left == 0 && t->out[p].left > 0;
}

/* Who was lost first, of all that any rank found; else `found`, which is here. The first
 * rank says it, which is the others' parent, unless it is the one. */
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

/* A rank that waits for one that left has somebody else to blame. */
static bool another_found_one(const struct traffic *t)
{
    return t->r->loss && atomic_load(&t->r->loss->who) != 0;
}

static kg_status gone(const struct traffic *t, int p, struct kg_err *err)
{
    return lose(t, p + 1, err);
}

/* Bit p: rank p owes something, or takes nothing. */
static uint64_t waits_for(const struct traffic *t)
{
    uint64_t waits = 0;

    for (int p = 0; p < t->r->n; p++)
        if (t->in[p].left > 0 || t->out[p].left > 0)
            waits |= (uint64_t)1 << p;
    return waits;
}

static void answer(const struct traffic *t)
{
    struct kg_ranks_loss *loss = t->r->loss;
    unsigned question = loss ? atomic_load(&loss->question) : 0;

    if (!loss || atomic_load(&loss->answer[t->r->me].to) == question)
        return;
    atomic_store(&loss->answer[t->r->me].waits, waits_for(t));
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

/* Those that answered the question of this rank, or a later one. */
static void hear(struct kg_roll *roll, const struct traffic *t)
{
    struct kg_ranks_loss *loss = t->r->loss;
    unsigned char waits[KG_RANKS_SOCKETS];

    for (int p = 0; p < roll->n && loss; p++)
        if (p != roll->me && atomic_load(&loss->answer[p].to) >= t->question) {
            spread(waits, atomic_load(&loss->answer[p].waits), roll->n);
            kg_roll_answer(roll, p, waits);
        }
}

/* A rank that owes something, or else one that takes nothing. */
static int waited_for(const struct traffic *t)
{
    int n = t->r->n, p = 0, q = 0;

    while (p < n && t->in[p].left == 0)
        p++;
    while (q + 1 < n && t->out[q].left == 0)
        q++;
    return p < n ? p : q;
}

static kg_status too_long(const struct traffic *t, struct kg_err *err)
{
    unsigned char room[2 * KG_RANKS_SOCKETS], waits[KG_RANKS_SOCKETS];
    struct kg_roll roll;

    spread(waits, waits_for(t), t->r->n);
    kg_roll_begin(&roll, room, t->r->n, t->r->me, waits);
    hear(&roll, t);
    return lose(t, -(kg_roll_missing(&roll, waited_for(t)) + 1), err);
}

/* ---- one exchange ---- */

/* n of send or recv: bytes, 0 or -1 */
static kg_status pass(struct flow *f, ssize_t n, const struct traffic *t, int p,
                      struct kg_err *err)
{
    if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK))
        return KG_OK;
    if (n <= 0)
        return gone(t, p, err);
    f->at += n;
    f->left -= (size_t)n;
    return KG_OK;
}

static kg_status move(struct traffic *t, int p, struct kg_err *err)
{
    struct flow *out = &t->out[p], *in = &t->in[p];
    int fd = t->fd[p].fd;

    if (out->left > 0 && (t->fd[p].revents & (POLLOUT | POLLERR | POLLHUP)))
        KG_TRY(pass(out,
                    send(fd, out->at, out->left < PIECE ? out->left : PIECE,
                         MSG_DONTWAIT | MSG_NOSIGNAL),
                    t, p, err));
    if (in->left > 0 && (t->fd[p].revents & (POLLIN | POLLERR | POLLHUP)))
        KG_TRY(pass(in, recv(fd, in->at, in->left, MSG_DONTWAIT), t, p, err));
    return KG_OK;
}

/* Nothing moved for a moment. */
static kg_status wait_on(struct traffic *t, struct kg_err *err)
{
    enum kg_roll_moment now;

    if (another_found_one(t))
        return lose(t, 0, err);
    now = kg_roll_look(&t->clock, t->r->wait_s);
    if (now == KG_ROLL_ASK)
        ask(t);
    return now == KG_ROLL_OVER ? too_long(t, err) : KG_OK;
}

static kg_status exchange(const struct kg_ranks *r, const struct kg_ranks_part *out,
                          const struct kg_ranks_part *in, const char *what,
                          struct kg_err *err)
{
    struct traffic t = {.r = r, .what = what};

    begin(&t, out, in);
    kg_roll_moved(&t.clock);
    while (aim(&t)) {
        int ready = poll(t.fd, (nfds_t)r->n, 100);

        answer(&t);
        if (ready > 0)
            kg_roll_moved(&t.clock);
        else
            KG_TRY(wait_on(&t, err));
        for (int p = 0; p < r->n && ready > 0; p++)
            if (t.fd[p].revents)
                KG_TRY(move(&t, p, err));
    }
    return KG_OK;
}

static const struct kg_ranks_transport sockets = {.name = "sockets",
                                                  .exchange = exchange};

kg_status kg_ranks_on_sockets(struct kg_ranks *r, int me, int n, int *fd,
                              struct kg_err *err)
{
    if (n > KG_RANKS_SOCKETS)
        return kg_fail(err, KG_EINVAL, "expected at most %d ranks, found %d",
                       KG_RANKS_SOCKETS, n);
    *r = (struct kg_ranks){
        .me = me, .n = n, .here = n, .transport = &sockets, .wire = fd};
    return KG_OK;
}
