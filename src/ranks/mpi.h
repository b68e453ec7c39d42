/* The transport over the launcher's MPI library.
 *
 * The program does not link MPI. A shim for each library (mpi/shim.h) is loaded from the
 * program's folder or from ../lib/kedge, nowhere else.
 */
#ifndef KG_RANKS_MPI_H
#define KG_RANKS_MPI_H

#include "ranks/mpi/shim.h"
#include "ranks/ranks.h"

/* name: "openmpi" or "mpich". r (out): joined with the launcher's other processes;
 * wait_s: as in kg_ranks_open
 * errors: ENOTFOUND (no such shim; lists the folders), EFORMAT (not a shim), EIO (MPI's
 * error) */
kg_status kg_ranks_on_mpi(struct kg_ranks *r, const char *name, double wait_s,
                          struct kg_err *err) KG_MUST_CHECK;
/* Whether the shim of that name exists. */
bool kg_ranks_has_mpi(const char *name);
/* kg_ranks_on_mpi with a loaded shim; for tests. */
kg_status kg_ranks_on_shim(struct kg_ranks *r, const struct kg_mpi *mpi, double wait_s,
                           struct kg_err *err) KG_MUST_CHECK;
/* "Open MPI v4.1.4" if r uses MPI; else "". */
void kg_ranks_mpi_library(char text[KG_MPI_TEXT], const struct kg_ranks *r);

#endif
