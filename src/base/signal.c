/* SIGINT, SIGTERM and SIGHUP: the first requests a stop, the second ends the process.
 *
 * The handler touches one flag and, the second time, leaves with _exit, which unlike exit
 * may be called from a handler. Files are safe because kedge writes them under temporary
 * names.
 */
#include "base/signal.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t asked; /* the signal that requested a stop; 0: none */

static void on_signal(int number)
{
    if (asked)
        _exit(128 + number); /* what a shell reports for a process ended by the signal */
    asked = number;
}

static void install(int flags)
{
    struct sigaction action, found;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = flags;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &found) == 0 && found.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL); /* under nohup it stays ignored */
    kg_signal_ignore_writes();
}

/* Interrupted reads and writes restart; loops check the flag. */
void kg_signal_install(void) { install(SA_RESTART); }

void kg_signal_install_waking(void) { install(0); }

/* Ctrl-C in `kedge train | tee log` ends tee first: a write to the broken pipe must not
 * end the run before it has saved. */
void kg_signal_ignore_writes(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

bool kg_signal_stop_requested(void) { return asked != 0; }

int kg_signal_number(void) { return asked; }
