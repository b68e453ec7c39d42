/* Exchange by single messages: all are posted, and looked at until they are through.
 *
 * The others are mostly as far, so a rank that waits looks again at once for a moment,
 * longer than a nap may last. Then it naps between looks, so that it leaves its core to
 * those that it waits for; and before a nap it looks for what others ask or tell of ranks
 * that are lost. After a failure messages may still be on their way
 * into memory that is gone with the call: nothing more is said over the transport, and
 * its end is an abort, which takes the launcher's other ranks along.
 */
#define _GNU_SOURCE /* nanosleep */
#include "ranks/mpi.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/program.h"
#include "ranks/lost.h"

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

/* A message is an int of bytes for MPI. */
enum { PIECE = 1 << 30, LOOKS = 16, MOST_NAP_NS = 1000000 };
static const double awake_s = 500e-6;
static const double turn_s = 0.05; /* longer than a note takes */
_Static_assert((int)KG_RANKS_AHEAD == (int)KG_MPI_SLOTS, "exchanges at once");
enum { ABORT_S = 5 }; /* for an abort, at most */

/* What ranks say beside an exchange (ranks/lost.h): waits (n of the ranks) behind it. */
enum note_kind { ASK, ANSWER, LOST };
struct note {
    int32_t kind;
    uint32_t question; /* of the rank that asks */
    int32_t who, by;   /* LOST: as kg_ranks_loss has it */
};

/* An exchange that is on its way. */
struct flight {
    struct kg_mpi_piece *pieces; /* (room) owned; n 0: it is through */
    int *done;                   /* (room) owned */
    int n, room;
    int left; /* that are not through */
};

struct wire {
    const struct kg_mpi *mpi;
    struct flight flight[KG_RANKS_AHEAD];
    int oldest, n_flights;
    struct kg_ranks_loss loss; /* as far as this rank knows */
    struct kg_roll_clock clock;
    struct kg_roll roll;
    uint32_t question;      /* the last of this rank */
    char *note;             /* (note_bytes) owned; the one at work */
    unsigned char *answers; /* (3, ranks) owned; the roll's, and whom this rank awaits */
};

/* ---- what is posted ---- */

static size_t count(const struct kg_ranks_part *parts, int n)
{
    size_t pieces = 0;

    for (int p = 0; p < n; p++)
        pieces += (parts[p].n + PIECE - 1) / PIECE;
    return pieces;
}

static void cut(struct flight *f, const struct kg_ranks_part *part, int rank, bool in)
{
    char *at = part->data;

    for (size_t left = part->n; left > 0;) {
        size_t n = left < PIECE ? left : PIECE;

        f->pieces[f->n++] = (struct kg_mpi_piece){at, (int)n, rank, in};
        at += n;
        left -= n;
    }
}

static kg_status make_room(struct flight *f, size_t n, const char *what,
                           struct kg_err *err)
{
    struct kg_mpi_piece *pieces;
    int *done;

    if (n <= (size_t)f->room)
        return KG_OK;
    if (n > INT_MAX)
        return kg_fail(err, KG_EINVAL, "%s: expected at most %d messages, found %zu",
                       what, INT_MAX, n);
    pieces = kg_mem_calloc(n, sizeof *pieces, what, err);
    done = pieces ? kg_mem_calloc(n, sizeof *done, what, err) : NULL;
    if (!done) {
        kg_mem_free(pieces);
        return err->code;
    }
    kg_mem_free(f->pieces);
    kg_mem_free(f->done);
    f->pieces = pieces;
    f->done = done;
    f->room = (int)n;
    return KG_OK;
}

/* ---- who is lost ---- */

static int note_bytes(const struct kg_ranks *r)
{
    return (int)sizeof(struct note) + r->n;
}

/* The ranks that owe something or take nothing. */
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
    kg_roll_begin(&w->roll, w->answers, r->n, r->me, waits_for(w, r->n));
    tell_all(w, r, &(struct note){.kind = ASK, .question = w->question});
}

/* The loss of which this rank knows. */
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

/* What came in meanwhile. An answer to a question of before says nothing of now. */
static bool hear_of_loss(struct wire *w, const struct kg_ranks *r)
{
    int from;

    while ((from = w->mpi->hear(w->note, note_bytes(r))) >= 0) {
        struct note note;

        memcpy(&note, w->note, sizeof note);
        if (note.kind == LOST) {
            know(w, note.who, note.by);
            return true;
        }
        if (note.kind == ASK)
            tell(w, r, from, &(struct note){.kind = ANSWER, .question = note.question});
        else if (w->clock.asked > 0 && note.question == w->question)
            kg_roll_answer(&w->roll, from, (unsigned char *)w->note + sizeof note);
    }
    return false;
}

/* Who is waited for: a rank that owes something, or that takes nothing. The lowest that
 * answered says who is lost. */
static kg_status too_long(struct wire *w, const struct kg_ranks *r, const char *what,
                          struct kg_err *err)
{
    const struct flight *f = &w->flight[w->oldest];
    int i = 0, who;

    while (i + 1 < f->n && f->pieces[i].n == 0)
        i++;
    who = kg_roll_missing(&w->roll, f->pieces[i].rank);
    know(w, -(who + 1), kg_roll_lowest(&w->roll));
    tell_all(w, r, &(struct note){LOST, 0, -(who + 1), kg_roll_lowest(&w->roll)});
    return say(w, r, who == f->pieces[i].rank && !f->pieces[i].in, what, err);
}

/* What MPI says ends this rank. Others may find the same: the lowest of them speaks, each
 * in its turn, and the others are told by it. */
static kg_status mpi_says(struct wire *w, const struct kg_ranks *r, const char *what,
                          const char *why, struct kg_err *err)
{
    const struct timespec nap_time = {0, MOST_NAP_NS};
    const double since = kg_clock_seconds();
    kg_status status = kg_fail(err, KG_EIO, "%s: %s: MPI: %s", what,
                               kg_ranks_name(r, r->me).text, why);

    do {
        if (hear_of_loss(w, r))
            return say(w, r, false, what, err);
        nanosleep(&nap_time, NULL);
    } while (kg_clock_seconds() - since < r->me * turn_s);
    know(w, r->me + 1, r->me);
    tell_all(w, r, &(struct note){LOST, 0, r->me + 1, r->me});
    return status;
}

/* Receives first: what is sent finds its place. */
static kg_status post(struct wire *w, const struct kg_ranks *r,
                      const struct kg_ranks_part *out, const struct kg_ranks_part *in,
                      const char *what, struct kg_err *err)
{
    const int slot = (w->oldest + w->n_flights) % KG_RANKS_AHEAD;
    struct flight *f = &w->flight[slot];
    const char *why;

    assert(w->n_flights < KG_RANKS_AHEAD);
    KG_TRY(make_room(f, count(out, r->n) + count(in, r->n), what, err));
    f->n = f->left = 0;
    for (int p = 0; p < r->n; p++)
        cut(f, &in[p], p, true);
    for (int p = 0; p < r->n; p++)
        cut(f, &out[p], p, false);
    why = f->n > 0 ? w->mpi->start(slot, f->pieces, f->n) : NULL;
    if (why)
        return mpi_says(w, r, what, why, err);
    f->left = f->n;
    w->n_flights++;
    return KG_OK;
}

/* ---- what is through ---- */

/* Of a flight.   *moved: set where anything is, since the last call */
static kg_status take(bool *moved, struct wire *w, int slot, const struct kg_ranks *r,
                      const char *what, struct kg_err *err)
{
    struct flight *f = &w->flight[slot];
    int n = 0;
    const char *why = w->mpi->test(slot, f->done, &n);

    if (why)
        return mpi_says(w, r, what, why, err);
    for (int i = 0; i < n; i++)
        f->pieces[f->done[i]].n = 0;
    f->left -= n;
    if (n > 0) {
        *moved = true;
        kg_roll_moved(&w->clock);
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

/* Nothing moved for a moment. What arrived until the limit, of any flight, is taken
 * before it is asked or answered who is waited for: this process may have had no core
 * meanwhile, and a rank whose bytes are there may be at work. */
static kg_status wait_on(struct wire *w, const struct kg_ranks *r, const char *what,
                         struct kg_err *err)
{
    enum kg_roll_moment now = kg_roll_look(&w->clock, r->wait_s);
    bool moved = false;

    KG_TRY(take_all(&moved, w, r, what, err));
    if (moved)
        return KG_OK;
    if (hear_of_loss(w, r))
        return say(w, r, false, what, err);
    if (now == KG_ROLL_ASK)
        ask(w, r);
    return now == KG_ROLL_OVER ? too_long(w, r, what, err) : KG_OK;
}

/* The longer it waits the less exactly it has to know when that ends. */
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
        sched_yield(); /* to a rank that has no core of its own */
        return KG_OK;
    }
    KG_TRY(wait_on(w, r, what, err));
    nap(w);
    return KG_OK;
}

/* The oldest of all. */
static kg_status wait_all(struct wire *w, const struct kg_ranks *r, const char *what,
                          struct kg_err *err)
{
    const struct flight *f = &w->flight[w->oldest];
    int looks = 0;

    kg_roll_moved(&w->clock);
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

/* A call of the library's end, which may not return. */
struct limit {
    double s;
    int status;      /* of the process, when it is over */
    const char *why; /* NULL: it was said already */
    pthread_t thread;
    bool there;
};

/* Once the time is over nothing keeps it from the exit: what it says holds the log. */
static void *leave(void *limit)
{
    const struct limit *l = limit;
    struct timespec t = {(time_t)l->s, (long)((l->s - floor(l->s)) * 1e9)};

    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        continue;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    if (l->why)
        kg_log_warn("%s for %g s: this rank ends without", l->why, l->s);
    _exit(l->status);
    return NULL;
}

/* l->s 0: for ever */
static void limit_begin(struct limit *l)
{
    l->there = l->s > 0 && pthread_create(&l->thread, NULL, leave, l) == 0;
    fflush(NULL);
}

static void limit_end(const struct limit *l)
{
    if (l->there && pthread_cancel(l->thread) == 0)
        pthread_join(l->thread, NULL);
}

/* MPICH's abort asks the launcher to end the others and waits for it: for ever where it
 * is on the machine that was lost. */
static void end_all(const struct kg_mpi *mpi, int status)
{
    struct limit limit = {.s = ABORT_S, .status = status};

    limit_begin(&limit);
    mpi->end_all(status);
    limit_end(&limit);
}

/* One that comes late may be at a checkpoint that it alone writes. When all are there,
 * all is said and written. A failure of this rank is its status, lost or not. */
static void end_together(const struct kg_ranks *r, const struct kg_mpi *mpi)
{
    const int lost = r->exit_status ? r->exit_status : KG_RANKS_EXIT_LOST;
    struct limit others = {
        .s = r->wait_s, .status = lost, .why = "another rank did not come to its end"};
    struct limit library = {.s = mpi->close_s,
                            .status = r->exit_status,
                            .why = "MPI did not come to its end"};
    const char *why;

    limit_begin(&others);
    why = mpi->part();
    limit_end(&others);
    if (why) {
        kg_log_warn("the end of the ranks: MPI: %s", why);
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
    }
    kg_mem_free(w->note);
    kg_mem_free(w->answers);
    kg_mem_free(w);
}

static void close_wire(struct kg_ranks *r)
{
    struct wire *w = r->wire;

    if (r->lost)
        end_all(w->mpi, KG_RANKS_EXIT_LOST);
    else
        end_together(r, w->mpi);
    free_wire(w);
}

static const struct kg_ranks_transport over_mpi = {.name = "mpi",
                                                   .exchange = exchange,
                                                   .begin = begin,
                                                   .finish = finish,
                                                   .close = close_wire};

kg_status kg_ranks_on_shim(struct kg_ranks *r, const struct kg_mpi *mpi,
                           struct kg_err *err)
{
    struct wire *w = kg_mem_calloc(1, sizeof *w, "ranks", err);
    const char *why;

    memset(r, 0, sizeof *r);
    if (!w)
        return err->code;
    w->mpi = mpi;
    why = mpi->open(&r->me, &r->n);
    if (why) {
        kg_mem_free(w);
        return kg_fail(err, KG_EIO, "ranks: MPI: %s", why);
    }
    r->transport = &over_mpi;
    r->exit_status = 1; /* until the command says how it ended */
    r->wire = w;
    r->loss = &w->loss;
    w->note = kg_mem_calloc((size_t)note_bytes(r), 1, "ranks", err);
    w->answers = w->note ? kg_mem_calloc(3 * (size_t)r->n, 1, "ranks", err) : NULL;
    if (w->answers)
        return KG_OK;
    r->lost = true;
    kg_ranks_close(r);
    return err->code;
}

/* ---- finding it ---- */

static kg_status load(const struct kg_mpi **mpi, const char *path, struct kg_err *err)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* MPI's own parts look in it */

    if (!handle)
        return kg_fail(err, KG_EFORMAT, "ranks: %s", dlerror());
    *mpi = dlsym(handle, KG_MPI_SYMBOL);
    if (!*mpi)
        return kg_fail(err, KG_EFORMAT,
                       "ranks: %s: expected the symbol " KG_MPI_SYMBOL ", found none",
                       path);
    if ((*mpi)->interface != KG_MPI_INTERFACE)
        return kg_fail(err, KG_ECONFLICT, "ranks: %s: expected interface %d, found %d",
                       path, KG_MPI_INTERFACE, (*mpi)->interface);
    return KG_OK;
}

static kg_status refuse(const struct kg_program_folders *f, const char *file,
                        struct kg_err *err)
{
    return kg_fail(
        err, KG_ENOTFOUND,
        "ranks: expected %s, the part that speaks the launcher's MPI, in %s or "
        "%s, found none (`make mpi` builds it where that MPI's mpicc is: "
        "docs/ranks.md)",
        file, f->list[0], f->list[1]);
}

/* path (PATH_MAX) out: of the shim; "" where it is in none of the folders f. */
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

kg_status kg_ranks_on_mpi(struct kg_ranks *r, const char *name, struct kg_err *err)
{
    char file[64], path[PATH_MAX];
    struct kg_program_folders f;
    const struct kg_mpi *mpi = NULL;

    name_shim(file, name);
    KG_TRY(find(path, &f, file, err));
    if (!path[0])
        return refuse(&f, file, err);
    KG_TRY(load(&mpi, path, err));
    return kg_ranks_on_shim(r, mpi, err);
}

void kg_ranks_mpi_library(char text[KG_MPI_TEXT], const struct kg_ranks *r)
{
    text[0] = '\0';
    if (r->transport == &over_mpi)
        ((const struct wire *)r->wire)->mpi->library(text);
}
