/* What kedge says while it works: lines and one progress line, all to one stream
 * (stderr).
 *
 * Results go to stdout and are written by cli/. The stream is set once by main; the
 * default is silence, so a library user and the unit tests hear nothing.
 */
#ifndef KG_BASE_LOG_H
#define KG_BASE_LOG_H

#include "base/status.h"

#include <stdbool.h>
#include <stdio.h>

/* stream: borrowed; NULL is silence */
void kg_log_set_stream(FILE *stream, bool is_terminal);

/* From here on a process speaks as one of several: warnings alone, which it signs
 * ("rank 3 (gpu07)"). "": as the first, or alone. */
void kg_log_as(const char *who);

/* Control characters of what is quoted are written out (base/printable.h).
 * One line. warn puts "warning: " in front. Clears a progress line that stands. */
void kg_log_info(const char *fmt, ...) KG_PRINTF(1, 2);
void kg_log_warn(const char *fmt, ...) KG_PRINTF(1, 2);
/* As info, of what a process was asked for: each of several says it, with its number. */
void kg_log_answer(const char *fmt, ...) KG_PRINTF(1, 2);

/* On a terminal: rewrites the one progress line. Elsewhere: a plain line, at most one
 * every `plain_interval_ms`. */
void kg_log_progress(int plain_interval_ms, const char *fmt, ...) KG_PRINTF(2, 3);
void kg_log_progress_end(void);

#endif
