/* What kedge asks of an MPI library: a table of functions over bytes.
 *
 * The types of mpi.h have other sizes from library to library, so the one file that
 * includes it (shim.c) is compiled once for each, to a library of its own, and a run
 * opens the one of its launcher (ranks/mpi.h). Nothing here adds numbers.
 */
#ifndef KG_RANKS_MPI_SHIM_H
#define KG_RANKS_MPI_SHIM_H

#include <stdbool.h>

enum { KG_MPI_INTERFACE = 5, KG_MPI_TEXT = 256 };
enum { KG_MPI_SLOTS = 4 }; /* lists of pieces that may be on their way at once */

/* Bytes to or from a rank. Those of one tag keep their order between two ranks. */
struct kg_mpi_piece {
    void *data;
    int n; /* of what comes: at most */
    int rank;
    int tag; /* below KG_MPI_TAGS */
    bool in;
};
enum { KG_MPI_TAGS = 64 };
/* Bytes that came, where MPI says that they were more than a piece has room for; it wrote
 * none beyond that. */
enum { KG_MPI_TOO_MANY = -1 };

/* One thread at a time calls these.   returns where text: NULL, or what MPI said, of
 * static life */
struct kg_mpi {
    int interface;         /* KG_MPI_INTERFACE */
    const char *built_for; /* "openmpi", "mpich" */
    const char *(*open)(int *me, int *n);
    void (*library)(char text[KG_MPI_TEXT]); /* its name and version */
    /* Post pieces [first, n), in order, behind the others of this slot; first 0: of it
     * none is on its way from before. */
    const char *(*start)(int slot, const struct kg_mpi_piece *pieces, int first, int n);
    /* done, came (as many as were started): indices of those of the slot that ended since
     * the last call, and the bytes of what came in; others move on too */
    const char *(*test)(int slot, int *done, int *came, int *n_done);
    /* A note of n bytes, a few kB at most and always as many, beside what is on its way;
     * lost where the one before it was not taken yet, or a message cannot be sent. */
    void (*tell)(int rank, const void *note, int n);
    /* note (n) out: the next that came.   returns the rank it is from; -1: none came */
    int (*hear)(void *note, int n);
    /* Returns when every rank has called it, each with all that was sent to it. */
    const char *(*part)(void);
    void (*close)(void); /* after part; some libraries never return from their end */
    double close_s;      /* for that end, at most */
    /* This rank and, where it can, the launcher's others. */
    void (*end_all)(int status);
};

/* the one symbol of a shim */
#define KG_MPI_SYMBOL "kg_mpi_shim"

#endif
