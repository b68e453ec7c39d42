/* kedge-mpi-NAME.so: mpi/shim.h by the MPI whose mpi.h it is compiled with.
 *
 * It uses single sends and receives and no collectives, so that a silent rank can be
 * named. Notes have their own tag, and each rank has room for one note in flight to each
 * other rank.
 */
#include "ranks/mpi/shim.h"

#include <errno.h>
#include <mpi.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NOTES = KG_MPI_TAGS, FAREWELL }; /* tags after those of pieces */

static struct slot {
    MPI_Request *requests;
    MPI_Status *ended;
    int posted, room;
} slots[KG_MPI_SLOTS];
static int n_ranks;
static struct note {
    MPI_Request request;
    void *bytes;
} * notes; /* (n_ranks), or NULL: none was sent */

static const char *said(int code)
{
    static char text[MPI_MAX_ERROR_STRING];
    int n;

    if (code == MPI_SUCCESS)
        return NULL;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d", code);
    return text;
}

static const char *open_mpi(int *me, int *n)
{
    int provided, code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);

    if (code == MPI_SUCCESS && provided < MPI_THREAD_SERIALIZED)
        return "expected support for MPI_THREAD_SERIALIZED, found a lower level";
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(MPI_COMM_WORLD, me);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(MPI_COMM_WORLD, n);
    n_ranks = *n;
    return said(code);
}

static void library(char text[KG_MPI_TEXT])
{
    char all[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n, i = 0;

    MPI_Get_library_version(all, &n);
    for (; i < KG_MPI_TEXT - 1 && all[i] && all[i] != '\n' && all[i] != ','; i++)
        text[i] = all[i] == '\t' ? ' ' : all[i];
    text[i] = '\0';
}

static const char *reserve(struct slot *s, int n)
{
    MPI_Request *more;
    MPI_Status *ended;

    if (n <= s->room)
        return NULL;
    more = realloc(s->requests, (size_t)n * sizeof *more);
    s->requests = more ? more : s->requests;
    ended = realloc(s->ended, (size_t)n * sizeof *ended);
    s->ended = ended ? ended : s->ended;
    if (!more || !ended)
        return "out of memory";
    s->room = n;
    return NULL;
}

static const char *start(int slot, const struct kg_mpi_piece *pieces, int first, int n)
{
    struct slot *s = &slots[slot];
    const char *why = reserve(s, n);

    s->posted = first;
    for (int i = first; i < n && !why; i++) {
        const struct kg_mpi_piece *p = &pieces[i];

        why = said(p->in ? MPI_Irecv(p->data, p->n, MPI_BYTE, p->rank, p->tag,
                                     MPI_COMM_WORLD, &s->requests[i])
                         : MPI_Isend(p->data, p->n, MPI_BYTE, p->rank, p->tag,
                                     MPI_COMM_WORLD, &s->requests[i]));
        s->posted += !why;
    }
    return why;
}

/* *came: bytes of a completed receive, or KG_MPI_TOO_MANY. */
static int count(int *came, const MPI_Status *s, int code)
{
    int own = code == MPI_ERR_IN_STATUS ? s->MPI_ERROR : MPI_SUCCESS, class = own;

    if (own != MPI_SUCCESS && MPI_Error_class(own, &class) == MPI_SUCCESS &&
        class == MPI_ERR_TRUNCATE) {
        *came = KG_MPI_TOO_MANY;
        return MPI_SUCCESS;
    }
    return own == MPI_SUCCESS ? MPI_Get_count(s, MPI_BYTE, came) : own;
}

static const char *test(int slot, int *done, int *came, int *n_done)
{
    struct slot *s = &slots[slot];
    int code = MPI_Testsome(s->posted, s->requests, n_done, done, s->ended);
    int failed = code == MPI_ERR_IN_STATUS ? MPI_SUCCESS : code;

    if (*n_done == MPI_UNDEFINED)
        *n_done = 0;
    for (int i = 0; i < *n_done && failed == MPI_SUCCESS; i++)
        failed = count(&came[i], &s->ended[i], code);
    return said(failed);
}

/* ---- notes ---- */

static int make_notes(void)
{
    notes = notes ? notes : calloc((size_t)n_ranks, sizeof *notes);
    for (int p = 0; p < n_ranks && notes; p++)
        if (!notes[p].bytes)
            notes[p].request = MPI_REQUEST_NULL;
    return notes != NULL;
}

static void tell(int rank, const void *note, int n)
{
    struct note *to;
    int free_again = 0;

    if (!make_notes())
        return;
    to = &notes[rank];
    if (MPI_Test(&to->request, &free_again, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
        !free_again)
        return;
    to->bytes = to->bytes ? to->bytes : malloc((size_t)n);
    if (!to->bytes)
        return;
    memcpy(to->bytes, note, (size_t)n);
    if (MPI_Isend(to->bytes, n, MPI_BYTE, rank, NOTES, MPI_COMM_WORLD, &to->request) !=
        MPI_SUCCESS)
        to->request = MPI_REQUEST_NULL;
}

static int hear(void *note, int n)
{
    MPI_Status came;
    int there = 0;

    if (MPI_Iprobe(MPI_ANY_SOURCE, NOTES, MPI_COMM_WORLD, &there, &came) != MPI_SUCCESS ||
        !there ||
        MPI_Recv(note, n, MPI_BYTE, came.MPI_SOURCE, NOTES, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return -1;
    return came.MPI_SOURCE;
}

/* ---- the end ---- */

/* Exchanges a byte with every rank: when it returns, all ranks have called it. */
static const char *farewell(void)
{
    static char out;
    MPI_Request *all = calloc(2 * (size_t)n_ranks, sizeof *all);
    char *in = calloc((size_t)n_ranks, 1);
    const struct timespec nap = {0, 1000000};
    int code = all && in ? MPI_SUCCESS : MPI_ERR_NO_MEM, through = 0, n = 0;

    for (int p = 0; p < n_ranks && code == MPI_SUCCESS; p++) {
        code = MPI_Irecv(&in[p], 1, MPI_BYTE, p, FAREWELL, MPI_COMM_WORLD, &all[n++]);
        if (code == MPI_SUCCESS)
            code = MPI_Isend(&out, 1, MPI_BYTE, p, FAREWELL, MPI_COMM_WORLD, &all[n++]);
    }
    while (code == MPI_SUCCESS && !through) {
        code = MPI_Testall(n, all, &through, MPI_STATUSES_IGNORE);
        if (!through)
            nanosleep(&nap, NULL);
    }
    if (code != MPI_SUCCESS)
        return said(code); /* pending requests still use the memory */
    free(all);
    free(in);
    return NULL;
}

/* MPICH over UCX before 4.2 may never return from MPI_Finalize: a rank that has finished
 * it does not reply any more, and the last flush of another rank over TCP needs its reply
 * (pmodels/mpich, pull request 6596). A library configured for another PMI than 1 is left
 * out: leave_launcher uses PMI 1. */
static bool may_stay(void)
{
    char all[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n, major, minor;

    MPI_Get_library_version(all, &n);
    return strstr(all, "ch4:ucx") && !strstr(all, "--with-pmi") &&
           sscanf(all, "MPICH Version: %d.%d", &major, &minor) == 2 &&
           (major < 4 || (major == 4 && minor < 2));
}

/* Replaces MPI_Finalize: tells the launcher, by PMI 1, that this process ends. From then
 * on its exit is not an error.   returns whether the launcher was told */
static bool leave_launcher(void)
{
    static const char end[] = "cmd=finalize\n";
    const char *number = getenv("PMI_FD"), *version = getenv("MPIR_CVAR_PMI_VERSION");
    struct pollfd launcher = {.fd = number ? atoi(number) : -1, .events = POLLIN};
    char ack[64];
    ssize_t n = 0;

    if (launcher.fd <= 0 || (version && strcmp(version, "1") != 0) ||
        write(launcher.fd, end, sizeof end - 1) != (ssize_t)sizeof end - 1)
        return false;
    while (poll(&launcher, 1, 1000) < 0 && errno == EINTR)
        continue;
    if (launcher.revents & POLLIN)
        n = read(launcher.fd, ack, sizeof ack);
    return n >= 0; /* the launcher replied, or is gone */
}

/* After a second round every rank has received the first: no message is in flight. */
static void close_mpi(void)
{
    if (farewell() || !may_stay() || !leave_launcher())
        MPI_Finalize();
    for (int p = 0; p < n_ranks && notes; p++)
        free(notes[p].bytes);
    free(notes);
    notes = NULL;
    for (int i = 0; i < KG_MPI_SLOTS; i++) {
        free(slots[i].requests);
        free(slots[i].ended);
    }
    memset(slots, 0, sizeof slots);
}

static void end_all(int status) { MPI_Abort(MPI_COMM_WORLD, status); }

extern const struct kg_mpi kg_mpi_shim;
__attribute__((visibility("default"))) const struct kg_mpi kg_mpi_shim = {
    .interface = KG_MPI_INTERFACE,
    .built_for = KG_MPI_NAME, /* set by rules.mk */
    .open = open_mpi,
    .library = library,
    .start = start,
    .test = test,
    .tell = tell,
    .hear = hear,
    .part = farewell,
    .close = close_mpi,
    .close_s = 60,
    .end_all = end_all,
};
