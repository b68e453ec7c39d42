/* The program. Everything is in cli.c, so that tests can link it.
 *
 * Before that, closed standard files are opened, truncated maps are guarded
 * (base/file.h), and the spin time of threads at the end of a parallel region is set. The
 * OpenMP runtime spins for milliseconds by default, so with a busy neighbour every region
 * costs a time slice (a test of 4 s took 177 s); a few microseconds are enough. The
 * runtime reads the spin time from its environment when it is loaded, so the program sets
 * the variable and executes itself again, under its own name for `ps` and `pkill`. A
 * variable that the user has set is kept. */
#include "base/file.h"
#include "cli/cli.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* If a number below 3 is free, the next opened file gets it, and messages would be
 * written into that file, such as a run's lock or samples. /dev/null takes the number, in
 * the mode that makes reads or writes fail as on a closed file. */
static void take_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return; /* no /dev/null: leave it closed */
}

static void shorten_spinning(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    if (setenv("GOMP_SPINCOUNT", "1000", 1) == 0)
        /* on failure kedge runs all the same, only slower next to busy neighbours */
        execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    take_standard_files();
    shorten_spinning(argv);
    prctl(PR_SET_NAME, "kedge");
    kg_map_guard();
    return kg_cli_main(argc, argv);
}
