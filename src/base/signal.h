/* SIGINT and SIGTERM as a flag that long loops look at between steps.  A second signal
 * ends the process at once. SIGPIPE is switched off: a write to a pipe that nobody reads
 * is an error of that write. */
#ifndef KG_BASE_SIGNAL_H
#define KG_BASE_SIGNAL_H

#include <stdbool.h>

void kg_signal_install(void);
bool kg_signal_stop_requested(void);

#endif
