/* kedge-mpi-NAME.so: kedge's own names over the mpi.h that it is compiled with.
 *
 * Single sends and receives and nothing collective: a rank that is silent has a name
 * then. Messages between two ranks keep their order, so one tag is enough, and one more
 * for notes, of which each rank has a place for one on its way to each other.
 */
#include "ranks/mpi/shim.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS, NOTES }; /* tags */

static struct slot {
    MPI_Request *requests;
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
        return "expected a library that one thread at a time may call, whichever it is";
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

    if (n <= s->room)
        return NULL;
    more = realloc(s->requests, (size_t)n * sizeof *more);
    if (!more)
        return "out of memory";
    s->requests = more;
    s->room = n;
    return NULL;
}

static const char *start(int slot, const struct kg_mpi_piece *pieces, int n)
{
    struct slot *s = &slots[slot];
    const char *why = reserve(s, n);

    s->posted = 0;
    for (int i = 0; i < n && !why; i++) {
        const struct kg_mpi_piece *p = &pieces[i];

        why = said(p->in ? MPI_Irecv(p->data, p->n, MPI_BYTE, p->rank, PARTS,
                                     MPI_COMM_WORLD, &s->requests[i])
                         : MPI_Isend(p->data, p->n, MPI_BYTE, p->rank, PARTS,
                                     MPI_COMM_WORLD, &s->requests[i]));
        s->posted += !why;
    }
    return why;
}

static const char *test(int slot, int *done, int *n_done)
{
    struct slot *s = &slots[slot];
    int code = MPI_Testsome(s->posted, s->requests, n_done, done, MPI_STATUSES_IGNORE);

    if (*n_done == MPI_UNDEFINED)
        *n_done = 0;
    return said(code);
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

static void close_mpi(void)
{
    MPI_Finalize();
    for (int p = 0; p < n_ranks && notes; p++)
        free(notes[p].bytes);
    free(notes);
    notes = NULL;
    for (int i = 0; i < KG_MPI_SLOTS; i++)
        free(slots[i].requests);
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
    .close = close_mpi,
    .end_all = end_all,
};
