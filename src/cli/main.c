/* The program. Everything is in cli.c, so that tests can link it.
 *
 * Two things come before it: a map whose file is cut off is guarded (base/file.h), and
 * how long a thread spins at the end of a parallel region
 * before it sleeps. The OpenMP runtime spins for milliseconds by default, so that beside
 * any busy neighbour every region costs a time slice (a test that takes 4 s took 177 s).
 * Some microseconds are enough: a thread that sleeps early leaves its core to the one
 * that everybody waits for.
 * It can be told only through its environment, which it reads when it is loaded: the
 * program sets it and starts itself once more. A user who sets either variable is left
 * alone. `ps` and `pkill` would know it as "exe" then, which is what it was started by.
 */
#include "base/file.h"
#include "cli/cli.h"

#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static void shorten_spinning(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    if (setenv("GOMP_SPINCOUNT", "300", 1) == 0)
        /* on failure: as it was, only slower beside neighbours */
        execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    shorten_spinning(argv);
    prctl(PR_SET_NAME, "kedge");
    kg_map_guard();
    return kg_cli_main(argc, argv);
}
