/* The watch: a thread that reads the phases of all threads (base/phase.h), logs them on
 * SIGUSR1, and warns if there is no progress.
 *
 * Output goes to the log (base/log.h), and to a file if one is set. The watch only reads:
 * a run has the same bits with and without it. It never ends the process.
 *
 * SIGUSR1 is blocked in the thread that starts the watch, and so in all threads that it
 * starts later: their system calls are not interrupted.
 */
#ifndef KG_BASE_WATCH_H
#define KG_BASE_WATCH_H

#include "base/status.h"

enum { KG_WATCH_WARN_S = 300 };

/* Does nothing if the watch already runs.   errors: EIO (no thread, no pipe) */
kg_status kg_watch_start(struct kg_err *err) KG_MUST_CHECK;
/* Call it before fork: the watch thread may hold a lock, for which the child would wait
 * forever. The child does not have the thread and may start its own.
 * Call it in the thread that started the watch, whose signal mask it restores. Does
 * nothing if the watch does not run. */
void kg_watch_stop(void);

/* Warns after warn_s seconds without progress, and again after 2, 4, .. times that; 0:
 * never. The default is KG_WATCH_WARN_S. */
void kg_watch_after(double warn_s);
/* Also appends the watch's output to the file at path, created at the first line. NULL,
 * the default: no file. */
void kg_watch_file(const char *path);

#endif
