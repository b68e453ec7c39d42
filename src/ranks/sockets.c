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

static kg_status gone(const struct traffic *t, int p, struct kg_err *err)
{
    return kg_fail(err, KG_EIO, "%s: rank %d: rank %d is gone", t->what, t->r->me, p);
}

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

static kg_status too_long(const struct traffic *t, struct kg_err *err)
{
    int p = 0;

    while (p + 1 < t->r->n && t->in[p].left == 0)
        p++;
    return kg_fail(err, KG_ETIMEOUT,
                   "%s: rank %d: nothing from rank %d for %.0f s (ranks.wait_s)", t->what,
                   t->r->me, p, t->r->wait_s);
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
