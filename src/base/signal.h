/* SIGINT, SIGTERM and SIGHUP set a flag that long loops check between steps. A second
 * signal ends the process at once. Under nohup SIGHUP stays ignored. */
#ifndef KG_BASE_SIGNAL_H
#define KG_BASE_SIGNAL_H

#include <stdbool.h>

void kg_signal_install(void); /* also calls kg_signal_ignore_writes */
/* kg_signal_install, but a blocked read fails with EINTR. For programs that read a pipe
 * and must clean up. */
void kg_signal_install_waking(void);
/* Ignores SIGPIPE and SIGXFSZ: writing to a closed pipe, or past the file size limit
 * (ulimit -f), becomes an error of that write. */
void kg_signal_ignore_writes(void);
bool kg_signal_stop_requested(void);
/* The first signal received; 0: none. */
int kg_signal_number(void);

#endif
