/* Log lines and one progress line, all to one stream (stderr).
 *
 * Results go to stdout and are written by cli/. main sets the stream once; the default is
 * silence, so library users and unit tests see nothing.
 */
#ifndef KG_BASE_LOG_H
#define KG_BASE_LOG_H

#include "base/status.h"

#include <stdbool.h>
#include <stdio.h>

/* stream: borrowed; NULL is silence */
void kg_log_set_stream(FILE *stream, bool is_terminal);

/* From now on this process logs only warnings and kg_log_answer, with the name `who`
 * ("rank 3 (gpu07)"). All ranks but the first call it. "": logs everything, unnamed. */
void kg_log_as(const char *who);

/* One line. warn puts "warning: " in front. Control characters are escaped
 * (base/printable.h). A progress line on the screen is cleared first. */
void kg_log_info(const char *fmt, ...) KG_PRINTF(1, 2);
void kg_log_warn(const char *fmt, ...) KG_PRINTF(1, 2);
/* kg_log_info for the reply to a request: a process with a name logs it, too. */
void kg_log_answer(const char *fmt, ...) KG_PRINTF(1, 2);

/* On a terminal: rewrites the progress line. Elsewhere: a plain line, at most one every
 * `plain_interval_ms`; kg_log_progress_end prints the last one if it was skipped. */
void kg_log_progress(int plain_interval_ms, const char *fmt, ...) KG_PRINTF(2, 3);
void kg_log_progress_end(void);

#endif
