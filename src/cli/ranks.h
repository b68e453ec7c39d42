/* A command that runs as one of several processes: a launcher's, or forked ones. */
#ifndef KG_CLI_RANKS_H
#define KG_CLI_RANKS_H

#include "ranks/ranks.h"

/* Under a launcher (ranks/launch.h) joins its processes. Else this process becomes rank 0
 * and forks the others, connected by shared memory; each returns from here with its own
 * *r. Call it before starting any thread. n 1: a single process unless there is a
 * launcher. wait_s: timeout for a silent rank; 0: none; command: as in
 * kg_ranks_check_alike
 * errors: EINVAL (n out of range, or above 1 under a launcher), EIO (no more processes or
 * sockets), ENOMEM (no shared memory), those of kg_ranks_open and kg_ranks_check_alike */
kg_status kg_cli_ranks_begin(struct kg_ranks *r, int n, double wait_s,
                             const char *command, struct kg_err *err) KG_MUST_CHECK;

/* Ends this rank. Rank 0 prints an error that all ranks share. Of forked ranks, rank 0
 * waits for the others, and names one that was ended by a signal; the others exit here.
 * returns the exit status; KG_RANKS_EXIT_LOST if another rank was lost,
 * KG_RANKS_EXIT_UNLIKE if the ranks do not belong to one run */
int kg_cli_ranks_end(struct kg_ranks *r, kg_status status, struct kg_err *err);

#endif
