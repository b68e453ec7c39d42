/* A transport over MPI, of whichever library the launcher belongs to.
 *
 * The program links no MPI. Its part that knows one is a shim (mpi/shim.h), found beside
 * the program or in ../lib/kedge and nowhere else.
 */
#ifndef KG_RANKS_MPI_H
#define KG_RANKS_MPI_H

#include "ranks/mpi/shim.h"
#include "ranks/ranks.h"

/* name: "openmpi" or "mpich".   r (out): joined to the launcher's others; wait_s: as of
 * kg_ranks_open
 * errors: NOTFOUND (no such shim, the folders listed), EFORMAT (a file that is none), EIO
 * (what MPI says) */
kg_status kg_ranks_on_mpi(struct kg_ranks *r, const char *name, double wait_s,
                          struct kg_err *err) KG_MUST_CHECK;
/* Whether the shim of that name is there. */
bool kg_ranks_has_mpi(const char *name);
/* Over a shim that is there already: for tests. */
kg_status kg_ranks_on_shim(struct kg_ranks *r, const struct kg_mpi *mpi, double wait_s,
                           struct kg_err *err) KG_MUST_CHECK;
/* "Open MPI v4.1.4", where r is over MPI; else "". */
void kg_ranks_mpi_library(char text[KG_MPI_TEXT], const struct kg_ranks *r);

#endif
