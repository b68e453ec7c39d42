/* SIGINT, SIGTERM and SIGHUP (a terminal that is closed) as a flag that long loops look
 * at between steps. A second signal ends the process at once. Under nohup SIGHUP stays
 * ignored. */
#ifndef KG_BASE_SIGNAL_H
#define KG_BASE_SIGNAL_H

#include <stdbool.h>

void kg_signal_install(void); /* and kg_signal_ignore_writes */
/* The same, and a read that waits for input fails with EINTR: for who reads a pipe and
 * has something to take away. */
void kg_signal_install_waking(void);
/* SIGPIPE and SIGXFSZ are switched off: a write to a pipe that nobody reads, or past the
 * limit of a file's size (ulimit -f), is an error of that write. */
void kg_signal_ignore_writes(void);
bool kg_signal_stop_requested(void);
/* The signal that asked first; 0: none did. */
int kg_signal_number(void);

#endif
