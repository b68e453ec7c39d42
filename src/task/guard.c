/* The guard of a grader: a shell that kills what the grader started, even if kedge itself
 * was killed. It waits for the end of a pipe that only kedge holds. Then it kills the
 * grader's process group, and every process with the grader's mark in its environment,
 * which children in their own session (setsid) keep. A process that has left both must be
 * killed by hand. */
#define _GNU_SOURCE /* pipe2, POSIX_SPAWN_SETSID */
#include "task/child_internal.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* $1: the mark. The first line of input is the group, the end of input starts the kill.
 * Killed processes keep their environment until they are gone, so the script repeats
 * until it finds none, at most 12 times. */
static char script[] = "read -r group; while read -r more; do :; done\n"
                       "[ -z \"$group\" ] || kill -s KILL -- \"-$group\"\n"
                       "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do\n"
                       "    found=\n"
                       "    for f in $(grep -las -- \"$1\" /proc/[0-9]*/environ); do\n"
                       "        f=${f#/proc/}\n"
                       "        found=\"$found ${f%/environ}\"\n"
                       "    done\n"
                       "    [ \"$found\" ] || break\n"
                       "    kill -s KILL $found\n"
                       "done\n";

/* In a session of its own, which no signal to kedge's group or terminal reaches. */
static int spawn(struct kg_task_guard *g, int end, posix_spawn_file_actions_t *files,
                 posix_spawnattr_t *attr)
{
    char *const argv[] = {(char[]){"sh"}, (char[]){"-c"}, script,
                          (char[]){"sh"}, g->mark,        NULL};
    char *const env[] = {(char[]){"PATH=/usr/local/bin:/usr/bin:/bin"}, NULL};
    sigset_t all;
    sigset_t none;

    sigfillset(&all);
    sigemptyset(&none);
    int failed = posix_spawn_file_actions_adddup2(files, end, 0) |
                 posix_spawn_file_actions_addopen(files, 1, "/dev/null", O_WRONLY, 0) |
                 posix_spawn_file_actions_addopen(files, 2, "/dev/null", O_WRONLY, 0) |
                 posix_spawnattr_setsigdefault(attr, &all) |
                 posix_spawnattr_setsigmask(attr, &none) |
                 posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSID |
                                                    POSIX_SPAWN_SETSIGDEF |
                                                    POSIX_SPAWN_SETSIGMASK);
    return failed ? ENOMEM : posix_spawn(&g->pid, "/bin/sh", files, attr, argv, env);
}

kg_status kg_task_guard_start(struct kg_task_guard *g, struct kg_err *err)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    int fds[2];

    *g = (struct kg_task_guard){.fd = -1};
    static atomic_uint count;
    unsigned long long now = (unsigned long long)(kg_clock_unix_seconds() * 1e6);

    snprintf(g->mark, sizeof g->mark, "%s%d-%llx-%u", KG_TASK_MARK, (int)getpid(), now,
             atomic_fetch_add(&count, 1));
    if (pipe2(fds, O_CLOEXEC) != 0)
        return kg_fail(err, KG_EIO, "cannot create a pipe to the grader's guard: %s",
                       strerror(errno));
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    int failed = spawn(g, fds[0], &files, &attr);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    close(fds[0]);
    g->fd = fds[1];
    if (!failed)
        return KG_OK;
    g->pid = 0;
    kg_task_guard_end(g);
    return kg_fail(err, KG_EIO, "cannot start the grader's guard: %s", strerror(failed));
}

/* If the guard is gone the write fails: only a kedge that is killed needs its guard. */
void kg_task_guard_tell(struct kg_task_guard *g, pid_t group)
{
    char line[32];
    int n = snprintf(line, sizeof line, "%d\n", (int)group);

    (void)kg_task_write_quietly(g->fd, line, (size_t)n);
}

void kg_task_guard_end(struct kg_task_guard *g)
{
    if (g->fd >= 0)
        close(g->fd);
    while (g->pid > 0 && waitpid(g->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    *g = (struct kg_task_guard){.fd = -1};
}
