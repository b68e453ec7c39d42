/* The program. Everything is in cli.c, so that tests can link it.
 *
 * Three things come before it: the three standard files are taken where they are closed,
 * a map whose file is cut off is guarded (base/file.h), and how long a thread spins at
 * the end of a parallel region before it sleeps is set. The OpenMP runtime spins for
 * milliseconds by default, so that beside any busy neighbour every region costs a time
 * slice (a test that takes 4 s took 177 s).
 * Some microseconds are enough: a thread that sleeps early leaves its core to the one
 * that everybody waits for.
 * It can be told only through its environment, which it reads when it is loaded: the
 * program sets it and starts itself once more. A user who sets either variable is left
 * alone. `ps` and `pkill` would know it as "exe" then, which is what it was started by.
 */
#include "base/file.h"
#include "cli/cli.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Where a number below 3 is free, the next file that is opened would get it, and what is
 * said would be written into that file: a run's lock, or its samples. What takes the
 * number refuses what it is for, so that reading and writing fail as on a closed one. */
static void take_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return; /* there is no /dev/null: as it was */
}

static void shorten_spinning(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    if (setenv("GOMP_SPINCOUNT", "1000", 1) == 0)
        /* on failure: as it was, only slower beside neighbours */
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
