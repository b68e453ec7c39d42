/* Exchanges by single messages: all are posted, and polled until they are complete.
 *
 * Only headers are received into the transport's own memory, each with room for a short
 * message after it. If a header is as expected, the bytes go to their target: a short
 * message by a copy, a longer one by MPI, which gets the target only then. Exchanges may
 * overlap, so each longer message has a tag that both ranks count: it cannot be taken for
 * a message of another exchange.
 *
 * A waiting rank first polls without pause, for longer than a nap, because the others
 * usually arrive soon. Then it sleeps between polls and leaves its core to the ranks that
 * it waits for; before each sleep it handles polls about lost ranks (lost.h). After a
 * failure, messages may still arrive in memory that is invalid after the call. So the
 * transport is not used again, and closing it aborts all ranks of the launcher.
 */
#define _GNU_SOURCE /* nanosleep */
#include "ranks/mpi.h"

#include "base/clock.h"
#include "base/library.h"
#include "base/log.h"
#include "base/mem.h"
#include "ranks/lost.h"
#include "ranks/message.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* MPI counts bytes in an int, so longer parts are sent as several pieces. */
enum { PIECE = 1 << 30, LOOKS = 16, MOST_NAP_NS = 1000000 };
enum { HEAD = sizeof(struct kg_ranks_head), SHORT = 4096 - HEAD };
enum { HEADS, FIRST_LONG, N_LONG = KG_MPI_TAGS - FIRST_LONG }; /* tags */
static const double awake_s = 500e-6;
static const double turn_s = 0.05; /* seconds; longer than a note travels */
_Static_assert((int)KG_RANKS_AHEAD == (int)KG_MPI_SLOTS, "exchanges at once");
enum { ABORT_S = 5 }; /* timeout of an abort */

/* A message about lost ranks. After it: n bytes, whom the sender waits for. */
enum note_kind { ASK, ANSWER, LOST, UNLIKE };
struct note {
    int32_t kind;
    uint32_t question; /* number of the asking rank's poll */
    int32_t who, by;   /* LOST, UNLIKE: as in kg_ranks_loss */
};

/* An exchange in flight. pieces: receives of heads, then sends, then receives of longer
 * messages whose head has arrived. */
struct flight {
    struct kg_mpi_piece *pieces; /* (room) owned; n 0: complete */
    int *done, *came;            /* (room) owned */
    int n, room, heads;
    int left;                 /* pieces that are incomplete, or not posted yet */
    struct kg_ranks_part *in; /* (ranks) owned; targets of received parts */
    int *tag;                 /* (ranks) owned; of long messages to be received */
    char *frames;             /* (frames_bytes) owned; heads with short messages */
    size_t frames_bytes;
    const char *what; /* borrowed while in flight */
};

struct wire {
    const struct kg_mpi *mpi;
    struct flight flight[KG_RANKS_AHEAD];
    int oldest, n_flights;
    struct kg_ranks_loss loss; /* as far as this rank knows */
    struct kg_poll_clock clock;
    struct kg_poll roll;
    uint32_t question;      /* number of this rank's last poll */
    char *note;             /* (note_bytes) owned; buffer of notes */
    unsigned char *answers; /* (3, ranks) owned; 2 of roll, then whom this rank awaits */
    unsigned *longs;        /* (2, ranks) owned; long messages from and to each rank */
};

/* ---- what is posted ---- */

static bool is_long(const struct kg_ranks_part *part) { return part->n > SHORT; }

static size_t pieces_of(const struct kg_ranks_part *part)
{
    return part->n == 0 ? 0 : 1 + (is_long(part) ? (part->n + PIECE - 1) / PIECE : 0);
}

/* A receive has room for any short message, so that an unexpected head can be read. */
static size_t frame_of(const struct kg_ranks_part *part, bool in)
{
    return part->n == 0 ? 0 : HEAD + (in ? SHORT : is_long(part) ? 0 : part->n);
}

static void add(struct flight *f, void *data, size_t n, int rank, int tag, bool in)
{
    f->pieces[f->n++] = (struct kg_mpi_piece){data, (int)n, rank, tag, in};
}

static void cut(struct flight *f, const struct kg_ranks_part *part, int rank, int tag,
                bool in)
{
    char *at = part->data;

    for (size_t left = part->n; left > 0;) {
        size_t n = left < PIECE ? left : PIECE;

        add(f, at, n, rank, tag, in);
        at += n;
        left -= n;
    }
}

static kg_status make_pieces(struct flight *f, size_t n, const char *what,
                             struct kg_err *err)
{
    if (n <= (size_t)f->room)
        return KG_OK;
    if (n > INT_MAX)
        return kg_fail(err, KG_EINVAL, "%s: expected at most %d messages, found %zu",
                       what, INT_MAX, n);
    struct kg_mpi_piece *pieces = kg_mem_calloc(n, sizeof *pieces, what, err);
    int *done = pieces ? kg_mem_calloc(2 * n, sizeof *done, what, err) : NULL;
    if (!done) {
        kg_mem_free(pieces);
        return err->code;
    }
    kg_mem_free(f->pieces);
    kg_mem_free(f->done);
    f->pieces = pieces;
    f->done = done;
    f->came = done + n;
    f->room = (int)n;
    return KG_OK;
}

static kg_status make_frames(struct flight *f, size_t n, const char *what,
                             struct kg_err *err)
{
    if (n <= f->frames_bytes)
        return KG_OK;
    char *frames = kg_mem_calloc(n, 1, what, err);
    if (!frames)
        return err->code;
    kg_mem_free(f->frames);
    f->frames = frames;
    f->frames_bytes = n;
    return KG_OK;
}

static kg_status make_room(struct flight *f, const struct kg_ranks_part *out,
                           const struct kg_ranks_part *in, int n, const char *what,
                           struct kg_err *err)
{
    size_t pieces = 0, frames = 0;

    for (int p = 0; p < n; p++) {
        pieces += pieces_of(&in[p]) + pieces_of(&out[p]);
        frames += frame_of(&in[p], true) + frame_of(&out[p], false);
    }
    KG_TRY(make_pieces(f, pieces, what, err));
    return make_frames(f, frames, what, err);
}

static int next_long(unsigned *count) { return FIRST_LONG + (int)((*count)++ % N_LONG); }

/* Adds the receives of heads.   returns the frames after theirs */
static char *expect(struct flight *f, unsigned *longs, const struct kg_ranks_part *in,
                    int n)
{
    char *frame = f->frames;

    for (int p = 0; p < n; p++) {
        f->in[p] = in[p];
        if (in[p].n == 0)
            continue;
        f->tag[p] = is_long(&in[p]) ? next_long(&longs[p]) : 0;
        add(f, frame, HEAD + SHORT, p, HEADS, true);
        f->left += (int)pieces_of(&in[p]);
        frame += HEAD + SHORT;
    }
    f->heads = f->n;
    return frame;
}

static void put_out(struct flight *f, char *frame, unsigned *longs,
                    const struct kg_ranks *r, const struct kg_ranks_part *out)
{
    for (int p = 0; p < r->n; p++) {
        const size_t size = frame_of(&out[p], false);
        struct kg_ranks_head head;

        if (size == 0)
            continue;
        kg_ranks_head_make(&head, r, f->what, out[p].n);
        memcpy(frame, &head, HEAD);
        if (size > HEAD)
            memcpy(frame + HEAD, out[p].data, size - HEAD);
        add(f, frame, size, p, HEADS, false);
        if (is_long(&out[p]))
            cut(f, &out[p], p, next_long(&longs[p]), false);
        f->left += (int)pieces_of(&out[p]);
        frame += size;
    }
}

/* ---- who is lost ---- */

static int note_bytes(const struct kg_ranks *r)
{
    return (int)sizeof(struct note) + r->n;
}

/* Ranks that have not sent or not received a piece of this rank's exchanges. */
static unsigned char *waits_for(const struct wire *w, int n)
{
    unsigned char *waits = w->answers + 2 * (size_t)n;

    memset(waits, 0, (size_t)n);
    for (int k = 0; k < w->n_flights; k++) {
        const struct flight *f = &w->flight[(w->oldest + k) % KG_RANKS_AHEAD];

        for (int i = 0; i < f->n; i++)
            if (f->pieces[i].n > 0)
                waits[f->pieces[i].rank] = 1;
    }
    return waits;
}

static void tell(const struct wire *w, const struct kg_ranks *r, int rank,
                 const struct note *note)
{
    memcpy(w->note, note, sizeof *note);
    memcpy(w->note + sizeof *note, waits_for(w, r->n), (size_t)r->n);
    w->mpi->tell(rank, w->note, note_bytes(r));
}

static void tell_all(const struct wire *w, const struct kg_ranks *r,
                     const struct note *note)
{
    for (int p = 0; p < r->n; p++)
        if (p != r->me)
            tell(w, r, p, note);
}

static void ask(struct wire *w, const struct kg_ranks *r)
{
    w->question++;
    kg_poll_begin(&w->roll, w->answers, r->n, r->me, waits_for(w, r->n));
    tell_all(w, r, &(struct note){.kind = ASK, .question = w->question});
}

/* Fails with the error of the known loss. */
static kg_status say(const struct wire *w, const struct kg_ranks *r, bool takes,
                     const char *what, struct kg_err *err)
{
    return kg_ranks_say_lost(r, atomic_load(&w->loss.who), takes, what, err);
}

static void know(struct wire *w, int who, int by)
{
    atomic_store(&w->loss.by, by);
    atomic_store(&w->loss.who, who);
}

/* Reads notes; ignores replies to earlier polls.   returns whether a rank is lost */
static bool hear_of_loss(struct wire *w, const struct kg_ranks *r)
{
    int from;

    while ((from = w->mpi->hear(w->note, note_bytes(r))) >= 0) {
        struct note note;

        memcpy(&note, w->note, sizeof note);
        if (note.kind == LOST || note.kind == UNLIKE) {
            atomic_store(&w->loss.unlike, note.kind == UNLIKE);
            know(w, note.who, note.by);
            return true;
        }
        if (note.kind == ASK)
            tell(w, r, from, &(struct note){.kind = ANSWER, .question = note.question});
        else if (w->clock.asked > 0 && note.question == w->question)
            kg_poll_answer(&w->roll, from, (unsigned char *)w->note + sizeof note);
    }
    return false;
}

/* Finds the lost rank by the replies, and tells all ranks. The lowest rank that replied
 * is the one that reports the loss to the user. */
static kg_status too_long(struct wire *w, const struct kg_ranks *r, const char *what,
                          struct kg_err *err)
{
    const struct flight *f = &w->flight[w->oldest];
    int i = 0, who;

    while (i + 1 < f->n && f->pieces[i].n == 0)
        i++;
    who = kg_poll_missing(&w->roll, f->pieces[i].rank);
    know(w, -(who + 1), kg_poll_lowest(&w->roll));
    tell_all(w, r, &(struct note){LOST, 0, -(who + 1), kg_poll_lowest(&w->roll)});
    return say(w, r, who == f->pieces[i].rank && !f->pieces[i].in, what, err);
}

/* Leaves because of a fault that this rank found. Others may find it, too, so ranks wait
 * by their number, turn_s each: the lowest tells the others.   *err: the fault */
static kg_status leave(struct wire *w, const struct kg_ranks *r, enum note_kind kind,
                       const char *what, struct kg_err *err)
{
    const struct timespec nap_time = {0, MOST_NAP_NS};
    const double since = kg_clock_seconds();

    do {
        if (hear_of_loss(w, r))
            return say(w, r, false, what, err);
        nanosleep(&nap_time, NULL);
    } while (kg_clock_seconds() - since < r->me * turn_s);
    know(w, r->me + 1, r->me);
    tell_all(w, r, &(struct note){kind, 0, r->me + 1, r->me});
    return err->code;
}

static kg_status mpi_says(struct wire *w, const struct kg_ranks *r, const char *what,
                          const char *why, struct kg_err *err)
{
    kg_fail(err, KG_EIO, "%s: %s: MPI: %s", what, kg_ranks_name(r, r->me).text, why);
    return leave(w, r, LOST, what, err);
}

/* Receives are posted first, so that messages find their target. */
static kg_status post(struct wire *w, const struct kg_ranks *r,
                      const struct kg_ranks_part *out, const struct kg_ranks_part *in,
                      const char *what, struct kg_err *err)
{
    const int slot = (w->oldest + w->n_flights) % KG_RANKS_AHEAD;
    struct flight *f = &w->flight[slot];

    assert(w->n_flights < KG_RANKS_AHEAD);
    KG_TRY(make_room(f, out, in, r->n, what, err));
    f->n = f->left = 0;
    f->what = what;
    put_out(f, expect(f, w->longs, in, r->n), w->longs + r->n, r, out);
    const char *why = f->n > 0 ? w->mpi->start(slot, f->pieces, 0, f->n) : NULL;
    if (why)
        return mpi_says(w, r, what, why, err);
    w->n_flights++;
    return KG_OK;
}

/* ---- what is complete ---- */

/* A message whose length is not as expected.   came: bytes, or KG_MPI_TOO_MANY */
static kg_status wrong_length(const struct kg_ranks *r, const struct kg_mpi_piece *piece,
                              size_t expected, int came, const char *what,
                              struct kg_err *err)
{
    char found[24] = "more";

    if (came >= 0)
        snprintf(found, sizeof found, "%d", came);
    return kg_fail(err, KG_ECONFLICT,
                   "%s: %s: expected a message of %zu bytes from %s, found %s", what,
                   kg_ranks_name(r, r->me).text, expected,
                   kg_ranks_name(r, piece->rank).text, found);
}

/* After an expected head: copies a short message, or posts the receives of a long one. */
static kg_status open_head(struct wire *w, int slot, const struct kg_ranks *r,
                           const struct kg_mpi_piece *piece, int came, struct kg_err *err)
{
    struct flight *f = &w->flight[slot];
    const int p = piece->rank, first = f->n;
    const struct kg_ranks_part *in = &f->in[p];
    const size_t behind = is_long(in) ? 0 : in->n;
    struct kg_ranks_head head;

    if (came < (int)HEAD)
        return wrong_length(r, piece, HEAD + behind, came, f->what, err);
    memcpy(&head, piece->data, HEAD);
    KG_TRY(kg_ranks_head_check(&head, r, p, f->what, in->n, err));
    if (came != (int)(HEAD + behind))
        return wrong_length(r, piece, HEAD + behind, came, f->what, err);
    if (!is_long(in)) {
        memcpy(in->data, (char *)piece->data + HEAD, behind);
        return KG_OK;
    }
    cut(f, in, p, f->tag[p], true);
    const char *why = w->mpi->start(slot, f->pieces, first, f->n);
    return why ? kg_fail(err, KG_EIO, "%s: %s: MPI: %s", f->what,
                         kg_ranks_name(r, r->me).text, why)
               : KG_OK;
}

static kg_status arrived(struct wire *w, int slot, const struct kg_ranks *r, int i,
                         int came, struct kg_err *err)
{
    struct flight *f = &w->flight[slot];
    const struct kg_mpi_piece piece = f->pieces[i];

    f->pieces[i].n = 0;
    f->left--;
    if (!piece.in)
        return KG_OK;
    if (i < f->heads)
        return open_head(w, slot, r, &piece, came, err);
    return came == piece.n ? KG_OK
                           : wrong_length(r, &piece, (size_t)piece.n, came, f->what, err);
}

/* Takes complete pieces of one exchange.   *moved: set if there are any */
static kg_status take(bool *moved, struct wire *w, int slot, const struct kg_ranks *r,
                      const char *what, struct kg_err *err)
{
    struct flight *f = &w->flight[slot];
    int n = 0;
    const char *why = w->mpi->test(slot, f->done, f->came, &n);

    if (why)
        return mpi_says(w, r, what, why, err);
    for (int i = 0; i < n; i++)
        if (arrived(w, slot, r, f->done[i], f->came[i], err) != KG_OK)
            return leave(w, r, err->code == KG_ECONFLICT ? UNLIKE : LOST, what, err);
    if (n > 0) {
        *moved = true;
        kg_poll_moved(&w->clock);
    }
    return KG_OK;
}

static kg_status take_all(bool *moved, struct wire *w, const struct kg_ranks *r,
                          const char *what, struct kg_err *err)
{
    for (int k = 0; k < w->n_flights; k++) {
        int slot = (w->oldest + k) % KG_RANKS_AHEAD;

        if (w->flight[slot].left > 0)
            KG_TRY(take(moved, w, slot, r, what, err));
    }
    return KG_OK;
}

/* Nothing moved for a moment. Messages of all exchanges that arrived in time are taken
 * before this rank polls or replies: this process may have had no core, and a rank whose
 * bytes have arrived may be busy. */
static kg_status wait_on(struct wire *w, const struct kg_ranks *r, const char *what,
                         struct kg_err *err)
{
    enum kg_poll_moment now = kg_poll_look(&w->clock, r->wait_s);
    bool moved = false;

    KG_TRY(take_all(&moved, w, r, what, err));
    if (moved)
        return KG_OK;
    if (hear_of_loss(w, r))
        return say(w, r, false, what, err);
    if (now == KG_POLL_ASK)
        ask(w, r);
    return now == KG_POLL_OVER ? too_long(w, r, what, err) : KG_OK;
}

/* The longer the wait so far, the longer a nap may be. */
static void nap(const struct wire *w)
{
    const double part = (kg_clock_seconds() - w->clock.since) / 16;
    const struct timespec t = {0, part < MOST_NAP_NS * 1e-9 ? (long)(part * 1e9)
                                                            : MOST_NAP_NS};

    nanosleep(&t, NULL);
}

static kg_status rest(struct wire *w, const struct kg_ranks *r, int looks,
                      const char *what, struct kg_err *err)
{
    if (looks % LOOKS != 0)
        return KG_OK;
    if (kg_clock_seconds() - w->clock.since < awake_s) {
        sched_yield(); /* to ranks that share this core */
        return KG_OK;
    }
    KG_TRY(wait_on(w, r, what, err));
    nap(w);
    return KG_OK;
}

/* Completes the oldest exchange. */
static kg_status wait_all(struct wire *w, const struct kg_ranks *r, const char *what,
                          struct kg_err *err)
{
    const struct flight *f = &w->flight[w->oldest];
    int looks = 0;

    kg_poll_moved(&w->clock);
    while (f->left > 0) {
        bool moved = false;

        KG_TRY(take(&moved, w, w->oldest, r, what, err));
        looks = moved ? 0 : looks + 1;
        if (!moved)
            KG_TRY(rest(w, r, looks, what, err));
    }
    w->oldest = (w->oldest + 1) % KG_RANKS_AHEAD;
    w->n_flights--;
    return KG_OK;
}

/* ---- one exchange ---- */

static kg_status begin(const struct kg_ranks *r, const struct kg_ranks_part *out,
                       const struct kg_ranks_part *in, const char *what,
                       struct kg_err *err)
{
    return post(r->wire, r, out, in, what, err);
}

static kg_status finish(const struct kg_ranks *r, const char *what, struct kg_err *err)
{
    return wait_all(r->wire, r, what, err);
}

static kg_status exchange(const struct kg_ranks *r, const struct kg_ranks_part *out,
                          const struct kg_ranks_part *in, const char *what,
                          struct kg_err *err)
{
    KG_TRY(begin(r, out, in, what, err));
    return finish(r, what, err);
}

/* ---- life ---- */

/* Limits the time of a call of the MPI library at its end, which may not return. */
struct limit {
    double s;
    int status;      /* exit status of the process on timeout */
    const char *why; /* logged on timeout; NULL: already logged */
    pthread_t thread;
    bool there;
};

/* After the timeout the thread cannot be cancelled: it may hold the log's lock. */
static void *give_up(void *limit)
{
    const struct limit *l = limit;
    struct timespec t = {(time_t)l->s, (long)((l->s - floor(l->s)) * 1e9)};

    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        continue;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    if (l->why)
        kg_log_warn("%s for %g s: this rank ends without it", l->why, l->s);
    _exit(l->status);
    return NULL;
}

/* l->s 0: no timeout */
static void limit_begin(struct limit *l)
{
    l->there = l->s > 0 && pthread_create(&l->thread, NULL, give_up, l) == 0;
    fflush(NULL);
}

static void limit_end(const struct limit *l)
{
    if (l->there && pthread_cancel(l->thread) == 0)
        pthread_join(l->thread, NULL);
}

/* MPICH's abort waits for the launcher to end the other ranks. It never returns if the
 * launcher runs on the lost machine. */
static void end_all(const struct kg_mpi *mpi, int status)
{
    struct limit limit = {.s = ABORT_S, .status = status};

    limit_begin(&limit);
    mpi->end_all(status);
    limit_end(&limit);
}

/* A late rank may still write a checkpoint; when all have arrived, everything is written.
 * If this rank failed, it exits with its own status, even if others are lost. */
static void end_together(const struct kg_ranks *r, const struct kg_mpi *mpi)
{
    const int lost = r->exit_status ? r->exit_status : KG_RANKS_EXIT_LOST;
    struct limit others = {
        .s = r->wait_s, .status = lost, .why = "another rank has not finished"};
    struct limit library = {.s = mpi->close_s,
                            .status = r->exit_status,
                            .why = "MPI_Finalize has not returned"};

    limit_begin(&others);
    const char *why = mpi->part();
    limit_end(&others);
    if (why) {
        kg_log_warn("ending the ranks: MPI: %s", why);
        end_all(mpi, lost);
        return;
    }
    limit_begin(&library);
    mpi->close();
    limit_end(&library);
}

static void free_wire(struct wire *w)
{
    for (int i = 0; i < KG_RANKS_AHEAD; i++) {
        kg_mem_free(w->flight[i].pieces);
        kg_mem_free(w->flight[i].done);
        kg_mem_free(w->flight[i].in);
        kg_mem_free(w->flight[i].tag);
        kg_mem_free(w->flight[i].frames);
    }
    kg_mem_free(w->longs);
    kg_mem_free(w->note);
    kg_mem_free(w->answers);
    kg_mem_free(w);
}

static void close_wire(struct kg_ranks *r)
{
    struct wire *w = r->wire;

    if (r->lost)
        end_all(w->mpi, r->unlike ? KG_RANKS_EXIT_UNLIKE : KG_RANKS_EXIT_LOST);
    else
        end_together(r, w->mpi);
    free_wire(w);
}

static const struct kg_ranks_transport over_mpi = {.name = "mpi",
                                                   .exchange = exchange,
                                                   .begin = begin,
                                                   .finish = finish,
                                                   .close = close_wire};

/* On failure the caller frees w. */
static kg_status make_wire(struct wire *w, const struct kg_ranks *r, struct kg_err *err)
{
    const size_t n = (size_t)r->n;
    struct flight *f = w->flight;

    w->note = kg_mem_calloc((size_t)note_bytes(r), 1, "ranks", err);
    w->answers = w->note ? kg_mem_calloc(3 * n, 1, "ranks", err) : NULL;
    w->longs = w->answers ? kg_mem_calloc(2 * n, sizeof *w->longs, "ranks", err) : NULL;
    if (!w->longs)
        return err->code;
    for (; f < w->flight + KG_RANKS_AHEAD; f++) {
        f->in = kg_mem_calloc(n, sizeof *f->in, "ranks", err);
        f->tag = f->in ? kg_mem_calloc(n, sizeof *f->tag, "ranks", err) : NULL;
        if (!f->tag)
            return err->code;
    }
    return KG_OK;
}

/* Before MPI has started, no rank knows which rank is missing. */
static const char *open_in_time(struct kg_ranks *r, const struct kg_mpi *mpi)
{
    struct limit limit = {
        .s = r->wait_s,
        .status = KG_RANKS_EXIT_LOST,
        .why =
            "ranks.wait_s: MPI_Init has not returned (another rank has not called it)"};

    limit_begin(&limit);
    const char *why = mpi->open(&r->me, &r->n);
    limit_end(&limit);
    return why;
}

kg_status kg_ranks_on_shim(struct kg_ranks *r, const struct kg_mpi *mpi, double wait_s,
                           struct kg_err *err)
{
    struct wire *w = kg_mem_calloc(1, sizeof *w, "ranks", err);

    memset(r, 0, sizeof *r);
    if (!w)
        return err->code;
    w->mpi = mpi;
    r->wait_s = wait_s;
    const char *why = open_in_time(r, mpi);
    if (why) {
        kg_mem_free(w);
        return kg_fail(err, KG_EIO, "ranks: MPI: %s", why);
    }
    r->transport = &over_mpi;
    r->exit_status = 1; /* until the command sets its status */
    r->wire = w;
    r->loss = &w->loss;
    if (make_wire(w, r, err) == KG_OK)
        return KG_OK;
    r->lost = true;
    kg_ranks_close(r);
    return err->code;
}

/* ---- finding it ---- */

static kg_status load(const struct kg_mpi **mpi, const char *path, struct kg_err *err)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* for MPI's plugins */

    if (!handle)
        return kg_fail(err, KG_EFORMAT, "ranks: %s", dlerror());
    *mpi = dlsym(handle, KG_MPI_SYMBOL);
    if (!*mpi)
        return kg_fail(err, KG_EFORMAT,
                       "ranks: %s: expected kedge's library for MPI, with " KG_MPI_SYMBOL
                       ", found none; rebuild it: make mpi",
                       path);
    if ((*mpi)->interface != KG_MPI_INTERFACE)
        return kg_fail(err, KG_ECONFLICT,
                       "ranks: %s: expected interface %d, found %d; rebuild it: make mpi",
                       path, KG_MPI_INTERFACE, (*mpi)->interface);
    return KG_OK;
}

static kg_status refuse(const struct kg_program_folders *f, const char *file,
                        struct kg_err *err)
{
    return kg_fail(
        err, KG_ENOTFOUND,
        "ranks: expected %s, the library for the launcher's MPI, in %s or %s, found none "
        "(`make mpi` builds it with that MPI's mpicc: docs/ranks.md)",
        file, f->list[0], f->list[1]);
}

/* path (PATH_MAX) out: of the shim; "" if no folder of f has it. */
static kg_status find(char *path, struct kg_program_folders *f, const char *file,
                      struct kg_err *err)
{
    path[0] = '\0';
    KG_TRY(kg_program_folders(f, err));
    for (size_t i = 0; i < f->n; i++)
        if (snprintf(path, PATH_MAX, "%s/%s", f->list[i], file) < PATH_MAX &&
            access(path, F_OK) == 0)
            return KG_OK;
    path[0] = '\0';
    return KG_OK;
}

static void name_shim(char file[64], const char *name)
{
    snprintf(file, 64, "kedge-mpi-%s.so", name);
}

bool kg_ranks_has_mpi(const char *name)
{
    char file[64], path[PATH_MAX];
    struct kg_program_folders f;
    struct kg_err unused;

    name_shim(file, name);
    return find(path, &f, file, &unused) == KG_OK && path[0];
}

kg_status kg_ranks_on_mpi(struct kg_ranks *r, const char *name, double wait_s,
                          struct kg_err *err)
{
    char file[64], path[PATH_MAX];
    struct kg_program_folders f;
    const struct kg_mpi *mpi = NULL;

    name_shim(file, name);
    KG_TRY(find(path, &f, file, err));
    if (!path[0])
        return refuse(&f, file, err);
    KG_TRY(load(&mpi, path, err));
    return kg_ranks_on_shim(r, mpi, wait_s, err);
}

void kg_ranks_mpi_library(char text[KG_MPI_TEXT], const struct kg_ranks *r)
{
    text[0] = '\0';
    if (r->transport == &over_mpi)
        ((const struct wire *)r->wire)->mpi->library(text);
}
