/* Handles access to a mapped page that was lost because the file was truncated.
 *
 * The system ends a process that touches such a page with SIGBUS, and says neither which
 * file nor why. Here every open map is in a table, and the handler finds the file by the
 * address. It may run on any thread at any moment, so it only reads the table, writes a
 * message and exits.
 */
#include "base/file_internal.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAPS = 1024, PATH_SHOWN = 400, TAKEN = 1 };

static struct mapped {
    _Atomic uintptr_t begin; /* 0: free, TAKEN: being filled in */
    uintptr_t end;
    char path[PATH_SHOWN];
} maps[MAPS];

void kg_map_enter(const struct kg_map *map, const char *path)
{
    for (int i = 0; i < MAPS; i++) {
        uintptr_t unused = 0;

        if (!atomic_compare_exchange_strong(&maps[i].begin, &unused, TAKEN))
            continue;
        maps[i].end = (uintptr_t)map->data + map->bytes;
        strncpy(maps[i].path, path, PATH_SHOWN - 1);
        atomic_store(&maps[i].begin, (uintptr_t)map->data);
        return;
    }
}

void kg_map_leave(const struct kg_map *map)
{
    for (int i = 0; i < MAPS; i++)
        if (atomic_load(&maps[i].begin) == (uintptr_t)map->data) {
            atomic_store(&maps[i].begin, 0);
            return;
        }
}

static int find(uintptr_t at)
{
    for (int i = 0; i < MAPS; i++) {
        uintptr_t begin = atomic_load(&maps[i].begin);

        if (begin > TAKEN && at >= begin && at < maps[i].end)
            return i;
    }
    return -1;
}

#define WHY ": the file was cut off while it was in use"

/* One call, so that no output of other threads comes between. */
static void say(const char *path)
{
    static char begin[] = "kedge: ", end[] = WHY "\n";
    struct iovec line[] = {{begin, sizeof begin - 1},
                           {(char *)(uintptr_t)path, strlen(path)},
                           {end, sizeof end - 1}};
    ssize_t n = writev(STDERR_FILENO, line, 3);
    (void)n;
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    int i = find((uintptr_t)info->si_addr);

    (void)context;
    if (i < 0) { /* not in an open map: the access repeats, and the default ends kedge */
        signal(number, SIG_DFL);
        return;
    }
    say(maps[i].path);
    _exit(1);
}

void kg_map_guard(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
