/* An exchange is rounds of one piece for each pair of ranks, until the longest range is
 * sent. A rank with less to send and to receive ends earlier: a transport sends no
 * message for an empty range. With NCCL all ranks run equally many rounds, because each
 * round needs all of them. */
#include "model/slab_exchange.h"

#include "base/mem.h"
#include "ranks/nccl.h"

/* ---- life ---- */

uint64_t kg_slab_wire_bytes(const struct kg_backend *backend, int ranks)
{
    if (backend->host_memory)
        return 0;
    return 2 * (uint64_t)ranks * KG_SLAB_SENT * sizeof(float);
}

static float *take_room(const struct kg_slab_wire *w, uint64_t bytes, struct kg_err *err)
{
    return w->direct ? kg_buf_alloc(w->backend, bytes, "exchange", err)
                     : kg_buf_pin(w->backend, bytes, "exchange", err);
}

static void give_back(const struct kg_slab_wire *w, float *room)
{
    if (room && w->direct)
        kg_buf_free(w->backend, room);
    else if (room)
        kg_buf_unpin(w->backend, room);
}

kg_status kg_slab_wire_open(struct kg_slab_wire *w, struct kg_ranks *ranks,
                            const struct kg_backend *backend, struct kg_err *err)
{
    const size_t n = (size_t)ranks->n;
    const uint64_t bytes = kg_slab_wire_bytes(backend, ranks->n) / 2;

    *w = (struct kg_slab_wire){.ranks = ranks, .backend = backend};
    w->direct = kg_ranks_nccl_version(ranks) && !backend->host_memory;
    w->parts = kg_mem_calloc(2 * n, sizeof *w->parts, "exchange", err);
    w->longest = w->parts ? kg_mem_calloc(n, sizeof *w->longest, "exchange", err) : NULL;
    if (w->longest && bytes == 0)
        return KG_OK;
    w->out = w->longest ? take_room(w, bytes, err) : NULL;
    w->in = w->out ? take_room(w, bytes, err) : NULL;
    if (w->in)
        return KG_OK;
    kg_slab_wire_close(w);
    return err->code;
}

void kg_slab_wire_close(struct kg_slab_wire *w)
{
    give_back(w, w->out);
    give_back(w, w->in);
    kg_mem_free(w->parts);
    kg_mem_free(w->longest);
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

static bool moves_as_it_lies(const struct kg_slab_wire *w,
                             const struct kg_slab_stretch *s)
{
    return s->slab->backend->host_memory != w->direct;
}

static size_t bytes_of(const struct kg_slab_stretch *s)
{
    return (size_t)s->n * sizeof(float);
}

/* Copies to the buffer that is sent, and from the buffer that is received. */
static kg_status put_in(struct kg_slab_wire *w, float *room,
                        const struct kg_slab_stretch *s, struct kg_err *err)
{
    if (!w->direct)
        return kg_slab_read(room, s->slab, s->first, s->n, err);
    return kg_buf_put(w->backend, room, s->slab->data + s->first, bytes_of(s), err);
}

static kg_status take_out(struct kg_slab_wire *w, const float *room,
                          const struct kg_slab_stretch *s, struct kg_err *err)
{
    if (!w->direct)
        return kg_slab_write(s->slab, s->first, room, s->n, err);
    return kg_buf_get(w->backend, s->slab->data + s->first, room, bytes_of(s), err);
}

static struct kg_ranks_part going(struct kg_slab_wire *w, struct kg_slab_stretch s,
                                  int rank)
{
    struct kg_err why;

    if (s.n == 0)
        return (struct kg_ranks_part){0};
    if (moves_as_it_lies(w, &s))
        return (struct kg_ranks_part){s.slab->data + s.first, bytes_of(&s)};
    float *room = w->out + (int64_t)rank * KG_SLAB_SENT;
    keep_first(w, put_in(w, room, &s, &why), &why);
    return (struct kg_ranks_part){room, bytes_of(&s)};
}

static struct kg_ranks_part coming(const struct kg_slab_wire *w, struct kg_slab_stretch s,
                                   int rank)
{
    if (s.n == 0)
        return (struct kg_ranks_part){0};
    return (struct kg_ranks_part){moves_as_it_lies(w, &s)
                                      ? s.slab->data + s.first
                                      : w->in + (int64_t)rank * KG_SLAB_SENT,
                                  bytes_of(&s)};
}

static void take_up(struct kg_slab_wire *w, struct kg_slab_stretch s, int rank)
{
    struct kg_err why;

    if (s.n > 0 && !moves_as_it_lies(w, &s))
        keep_first(w, take_out(w, w->in + (int64_t)rank * KG_SLAB_SENT, &s, &why), &why);
}

/* ---- all pieces ---- */

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

/* *most <- its maximum over all ranks */
static kg_status agree_longest(int64_t *most, struct kg_slab_wire *w, const char *what,
                               struct kg_err *err)
{
    w->longest[w->ranks->me] = *most;
    KG_TRY(kg_ranks_gather_equal(w->ranks, w->longest, sizeof *w->longest, what, err));
    for (int p = 0; p < w->ranks->n; p++)
        *most = w->longest[p] > *most ? w->longest[p] : *most;
    return KG_OK;
}

kg_status kg_slab_exchange(struct kg_slab_wire *w, const struct kg_slab_stretch *out,
                           const struct kg_slab_stretch *in, const char *what,
                           struct kg_err *err)
{
    const int n = w->ranks->n;
    int64_t most = longest(w, out, in);

    if (w->direct)
        KG_TRY(agree_longest(&most, w, what, err));
    for (int64_t at = 0; at < most; at += KG_SLAB_SENT) {
        for (int p = 0; p < n; p++) {
            w->parts[p] = going(w, piece_of(&out[p], at), p);
            w->parts[n + p] = coming(w, piece_of(&in[p], at), p);
        }
        KG_TRY((w->direct ? kg_ranks_nccl_exchange : kg_ranks_exchange)(
            w->ranks, w->parts, w->parts + n, what, err));
        for (int p = 0; p < n; p++)
            take_up(w, piece_of(&in[p], at), p);
    }
    return KG_OK;
}
