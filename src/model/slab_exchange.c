/* Rounds of one piece for each pair of ranks, until the longest stretch is through. A
 * rank that has less to send and to get ends earlier: to a transport nothing is no
 * message.
 */
#include "model/slab_exchange.h"

#include "base/mem.h"

/* ---- life ---- */

uint64_t kg_slab_wire_bytes(const struct kg_backend *backend, int ranks)
{
    if (backend->host_memory)
        return 0;
    return 2 * (uint64_t)ranks * KG_SLAB_SENT * sizeof(float);
}

kg_status kg_slab_wire_open(struct kg_slab_wire *w, struct kg_ranks *ranks,
                            const struct kg_backend *backend, struct kg_err *err)
{
    const size_t n = (size_t)ranks->n;
    const uint64_t bytes = kg_slab_wire_bytes(backend, ranks->n) / 2;

    *w = (struct kg_slab_wire){.ranks = ranks, .backend = backend};
    w->parts = kg_mem_calloc(2 * n, sizeof *w->parts, "exchange", err);
    if (!w->parts)
        return KG_ENOMEM;
    if (bytes == 0)
        return KG_OK;
    w->down = kg_buf_pin(backend, bytes, "exchange", err);
    w->up = w->down ? kg_buf_pin(backend, bytes, "exchange", err) : NULL;
    if (w->up)
        return KG_OK;
    kg_slab_wire_close(w);
    return err->code;
}

void kg_slab_wire_close(struct kg_slab_wire *w)
{
    if (w->down)
        kg_buf_unpin(w->backend, w->down);
    if (w->up)
        kg_buf_unpin(w->backend, w->up);
    kg_mem_free(w->parts);
    *w = (struct kg_slab_wire){0};
}

/* ---- a piece ---- */

static void keep_first(struct kg_slab_wire *w, kg_status status, const struct kg_err *why)
{
    if (status != KG_OK && w->failed.code == KG_OK)
        w->failed = *why;
}

/* The piece of a stretch that begins at its element `at`. */
static struct kg_slab_stretch piece_of(const struct kg_slab_stretch *s, int64_t at)
{
    const int64_t left = s->n - at;

    if (left <= 0)
        return (struct kg_slab_stretch){0};
    return (struct kg_slab_stretch){s->slab, s->first + at,
                                    left < KG_SLAB_SENT ? left : KG_SLAB_SENT};
}

static bool is_near(const struct kg_slab_stretch *s)
{
    return s->slab->backend->host_memory;
}

static size_t bytes_of(const struct kg_slab_stretch *s)
{
    return (size_t)s->n * sizeof(float);
}

static struct kg_ranks_part going(struct kg_slab_wire *w, struct kg_slab_stretch s,
                                  int rank)
{
    struct kg_err why;
    float *room;

    if (s.n == 0)
        return (struct kg_ranks_part){0};
    if (is_near(&s))
        return (struct kg_ranks_part){s.slab->data + s.first, bytes_of(&s)};
    room = w->down + (int64_t)rank * KG_SLAB_SENT;
    keep_first(w, kg_slab_read(room, s.slab, s.first, s.n, &why), &why);
    return (struct kg_ranks_part){room, bytes_of(&s)};
}

static struct kg_ranks_part coming(const struct kg_slab_wire *w, struct kg_slab_stretch s,
                                   int rank)
{
    if (s.n == 0)
        return (struct kg_ranks_part){0};
    return (struct kg_ranks_part){is_near(&s) ? s.slab->data + s.first
                                              : w->up + (int64_t)rank * KG_SLAB_SENT,
                                  bytes_of(&s)};
}

static void take_up(struct kg_slab_wire *w, struct kg_slab_stretch s, int rank)
{
    struct kg_err why;

    if (s.n > 0 && !is_near(&s))
        keep_first(w,
                   kg_slab_write(s.slab, s.first, w->up + (int64_t)rank * KG_SLAB_SENT,
                                 s.n, &why),
                   &why);
}

/* ---- all of them ---- */

static int64_t longest(const struct kg_slab_wire *w, const struct kg_slab_stretch *out,
                       const struct kg_slab_stretch *in)
{
    int64_t most = 0;

    for (int p = 0; p < w->ranks->n; p++) {
        most = out[p].n > most ? out[p].n : most;
        most = in[p].n > most ? in[p].n : most;
    }
    return most;
}

kg_status kg_slab_exchange(struct kg_slab_wire *w, const struct kg_slab_stretch *out,
                           const struct kg_slab_stretch *in, const char *what,
                           struct kg_err *err)
{
    const int n = w->ranks->n;
    const int64_t most = longest(w, out, in);

    for (int64_t at = 0; at < most; at += KG_SLAB_SENT) {
        for (int p = 0; p < n; p++) {
            w->parts[p] = going(w, piece_of(&out[p], at), p);
            w->parts[n + p] = coming(w, piece_of(&in[p], at), p);
        }
        KG_TRY(kg_ranks_exchange(w->ranks, w->parts, w->parts + n, what, err));
        for (int p = 0; p < n; p++)
            take_up(w, piece_of(&in[p], at), p);
    }
    return KG_OK;
}
