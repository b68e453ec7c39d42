/* The ranks of one machine: a command that becomes several processes. */
#ifndef KG_CLI_RANKS_H
#define KG_CLI_RANKS_H

#include "ranks/ranks.h"

/* This process becomes rank 0 of n, and the others are its children, joined to it by
 * sockets: each returns from here with its own *r. To be called before any thread is
 * begun. n 1: nothing happens.
 * errors: EINVAL (n out of range), EIO (no process or socket more is to be had) */
kg_status kg_cli_ranks_begin(struct kg_ranks *r, int n, struct kg_err *err) KG_MUST_CHECK;

/* Rank 0 waits for the others, and names one that was ended by a signal; the others leave
 * the program here.   returns the exit status */
int kg_cli_ranks_end(struct kg_ranks *r, kg_status status, struct kg_err *err);

#endif
