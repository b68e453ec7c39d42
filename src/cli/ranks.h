/* A command that is one of several processes: a launcher's, or those it becomes itself.
 */
#ifndef KG_CLI_RANKS_H
#define KG_CLI_RANKS_H

#include "ranks/ranks.h"

/* Under a launcher (ranks/launch.h) this process joins its others. Else it becomes rank 0
 * of n, and the others are its children, joined to it by memory that they share: each
 * returns from here with its own *r. To be called before any thread is begun. n 1: alone,
 * without a launcher.   wait_s: for a rank that says nothing, at most; 0: for ever;
 * command: as of kg_ranks_check_alike
 * errors: EINVAL (n out of range, or above 1 under a launcher), EIO (no process or socket
 * more is to be had), ENOMEM (no memory to share), those of kg_ranks_open and
 * kg_ranks_check_alike */
kg_status kg_cli_ranks_begin(struct kg_ranks *r, int n, double wait_s,
                             const char *command, struct kg_err *err) KG_MUST_CHECK;

/* The last word of this rank, and its end: an error that all ranks share is said by the
 * first. Of ranks that are children, rank 0 waits for the others, and names one that was
 * ended by a signal; the others leave the program here.
 * returns the exit status; KG_RANKS_EXIT_LOST where another rank was lost,
 * KG_RANKS_EXIT_UNLIKE where ranks would not make one run */
int kg_cli_ranks_end(struct kg_ranks *r, kg_status status, struct kg_err *err);

#endif
