/* What kedge asks of an MPI library: a table of functions over bytes.
 *
 * The types of mpi.h have other sizes from library to library, so the one file that
 * includes it (shim.c) is compiled once for each, to a library of its own, and a run
 * opens the one of its launcher (ranks/mpi.h). Nothing here adds numbers.
 */
#ifndef KG_RANKS_MPI_SHIM_H
#define KG_RANKS_MPI_SHIM_H

#include <stdbool.h>

enum { KG_MPI_INTERFACE = 4, KG_MPI_TEXT = 256 };
enum { KG_MPI_SLOTS = 4 }; /* lists of pieces that may be on their way at once */

/* Bytes to or from a rank. */
struct kg_mpi_piece {
    void *data;
    int n;
    int rank;
    bool in;
};

/* One thread at a time calls these.   returns where text: NULL, or what MPI said, of
 * static life */
struct kg_mpi {
    int interface;         /* KG_MPI_INTERFACE */
    const char *built_for; /* "openmpi", "mpich" */
    const char *(*open)(int *me, int *n);
    void (*library)(char text[KG_MPI_TEXT]); /* its name and version */
    /* Post all of them, in order; of this slot none is on its way from before. */
    const char *(*start)(int slot, const struct kg_mpi_piece *pieces, int n);
    /* done (as many as were started): indices of those of the slot that ended since the
     * last call; others move on too */
    const char *(*test)(int slot, int *done, int *n_done);
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
