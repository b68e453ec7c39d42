/* The functions that kedge needs from an MPI library: a table of functions over bytes.
 *
 * MPI libraries differ in the types of mpi.h, so the only file that includes it (shim.c)
 * is compiled once per library. A run loads the shim for the library of its launcher
 * (ranks/mpi.h). Nothing here adds numbers.
 */
#ifndef KG_RANKS_MPI_SHIM_H
#define KG_RANKS_MPI_SHIM_H

#include <stdbool.h>

enum { KG_MPI_INTERFACE = 5, KG_MPI_TEXT = 256 };
enum { KG_MPI_SLOTS = 4 }; /* number of piece lists in flight at once */

/* A message to or from a rank. Messages of one tag between two ranks keep their order. */
struct kg_mpi_piece {
    void *data;
    int n; /* for receives: the maximum */
    int rank;
    int tag; /* below KG_MPI_TAGS */
    bool in;
};
enum { KG_MPI_TAGS = 64 };
/* Byte count of a received message that was larger than its piece, as reported by MPI;
 * nothing was written beyond the piece. */
enum { KG_MPI_TOO_MANY = -1 };

/* To be called by one thread at a time. Functions that return text return NULL, or MPI's
 * error (static). */
struct kg_mpi {
    int interface;         /* KG_MPI_INTERFACE */
    const char *built_for; /* "openmpi", "mpich" */
    const char *(*open)(int *me, int *n);
    void (*library)(char text[KG_MPI_TEXT]); /* text <- the library's name and version */
    /* Posts pieces [first, n) in order, after pieces [0, first) of this slot. If first is
     * 0, the slot has none in flight. */
    const char *(*start)(int slot, const struct kg_mpi_piece *pieces, int first, int n);
    /* done, came (size: pieces started): indices of the pieces of the slot that completed
     * since the last call, and the bytes received; other slots progress too */
    const char *(*test)(int slot, int *done, int *came, int *n_done);
    /* Sends a note of n bytes (a few kB, always the same size) besides the messages in
     * flight; it is dropped if the previous one was not received yet, or if sending is
     * impossible. */
    void (*tell)(int rank, const void *note, int n);
    /* note (n) out: the next note received.   returns the sending rank; -1: none */
    int (*hear)(void *note, int n);
    /* Returns after every rank has called it and received all its messages. */
    const char *(*part)(void);
    void (*close)(void); /* call part first; may never return in some libraries */
    double close_s;      /* timeout of MPI_Finalize */
    /* Ends this rank and, if possible, all ranks of the launcher. */
    void (*end_all)(int status);
};

/* the one symbol of a shim */
#define KG_MPI_SYMBOL "kg_mpi_shim"

#endif
