/* All sockets at once, a piece at a time, so that two ranks that send each other much do
 * not wait for each other. A rank that sends nothing for too long has a name. */
#include "ranks/sockets.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
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

/* What is told of `who`, as struct kg_ranks_loss has it. */
static kg_status say_lost(const struct traffic *t, int who, struct kg_err *err)
{
    const struct kg_ranks *r = t->r;
    int p = (who < 0 ? -who : who) - 1;
    struct kg_ranks_name me = kg_ranks_name(r, r->me), name = kg_ranks_name(r, p);

    if (p == r->me)
        return kg_fail(err, KG_ETIMEOUT,
                       "%s: %s: the others waited for it for %.0f s (ranks.wait_s), and "
                       "left",
                       t->what, me.text, r->wait_s);
    if (who > 0)
        return kg_fail(err, KG_EIO, "%s: %s: %s is gone", t->what, me.text, name.text);
    return kg_fail(
        err, KG_ETIMEOUT, "%s: %s: %s %s for %.0f s (ranks.wait_s)", t->what, me.text,
        t->in[p].left || !t->out[p].left ? "nothing from" : "nothing is taken by",
        name.text, r->wait_s);
}

/* Who was lost first, of all that any rank found; else `who`, which is found here. */
static kg_status lose(const struct traffic *t, int who, struct kg_err *err)
{
    struct kg_ranks_loss *loss = t->r->loss;
    int first = 0;

    if (loss && atomic_compare_exchange_strong(&loss->who, &first, who))
        atomic_store(&loss->by, t->r->me);
    return say_lost(t, first ? first : who, err);
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

/* Who is waited for: a rank that owes something, or else one that takes nothing. */
static kg_status too_long(const struct traffic *t, struct kg_err *err)
{
    int p = 0;

    while (p < t->r->n && t->in[p].left == 0)
        p++;
    for (int q = 0; q < t->r->n && p == t->r->n; q++)
        if (t->out[q].left > 0)
            return lose(t, -(q + 1), err);
    return lose(t, -(p + 1), err);
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

static kg_status exchange(const struct kg_ranks *r, const struct kg_ranks_part *out,
                          const struct kg_ranks_part *in, const char *what,
                          struct kg_err *err)
{
    struct traffic t = {.r = r, .what = what};
    double since = kg_clock_seconds();

    begin(&t, out, in);
    while (aim(&t)) {
        int ready = poll(t.fd, (nfds_t)r->n, 100);

        if (ready > 0)
            since = kg_clock_seconds();
        else if (another_found_one(&t))
            return lose(&t, 0, err);
        else if (r->wait_s > 0 && kg_clock_seconds() - since > r->wait_s)
            return too_long(&t, err);
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
