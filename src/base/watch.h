/* The watch: one thread that reads the board of phases (base/phase.h), says on SIGUSR1
 * what it shows, and warns when nothing on it moves.
 *
 * Everything goes to the log (base/log.h), and into a file where one is set. It only
 * reads: a run is the same, bit for bit, with and without it. It ends nothing.
 *
 * SIGUSR1 is blocked in the thread that starts the watch and so in all that this one
 * starts later: no system call of theirs is broken off.
 */
#ifndef KG_BASE_WATCH_H
#define KG_BASE_WATCH_H

#include "base/status.h"

enum { KG_WATCH_WARN_S = 300 };

/* OK where it runs already.   errors: EIO (no thread, no pipe) */
kg_status kg_watch_start(struct kg_err *err) KG_MUST_CHECK;
/* Whoever forks stops it before: its thread may hold a lock that the new process would
 * wait for, and is not in that, which may start its own.
 * In the thread that started it, whose SIGUSR1 is then blocked or not as it was before.
 * Nothing where it does not run. */
void kg_watch_stop(void);

/* Warn when nothing has moved for warn_s seconds, and again after twice, four times that
 * long ..; 0: never. At first KG_WATCH_WARN_S. */
void kg_watch_after(double warn_s);
/* Append what is said to this file too; made when there is something to say. NULL: none,
 * as at first. */
void kg_watch_file(const char *path);

#endif
