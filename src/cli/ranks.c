/* Ranks of a launcher, or by fork: a socket for every two of them, made before any
 * process is.
 *
 * A child ends when its parent does, whatever ends that. An error that all ranks share is
 * said once, by the first; one that a rank alone knows (it waited for another that is
 * gone) is said by each.
 */
#include "cli/ranks.h"

#include "cli/cli.h"

#include "base/log.h"
#include "ranks/launch.h"
#include "ranks/sockets.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = KG_RANKS_SOCKETS };

static int fd[MOST][MOST];
static pid_t child[MOST];
static bool forked;

static kg_status join(int n, struct kg_err *err)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            int pair[2];

            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
                return kg_fail(err, KG_EIO, "--ranks: no socket for ranks %d and %d: %s",
                               j, i, strerror(errno));
            fd[i][j] = pair[0];
            fd[j][i] = pair[1];
        }
    return KG_OK;
}

/* The sockets of the others. */
static void part(int n, int me)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (i != j && i != me)
                close(fd[i][j]);
}

/* Until all are begun, a failure ends those that are. */
static kg_status give_up(int begun, struct kg_err *err)
{
    kg_status status = kg_fail(err, KG_EIO, "--ranks: no process for rank %d: %s", begun,
                               strerror(errno));

    for (int p = 1; p < begun; p++)
        kill(child[p], SIGKILL);
    return status;
}

static kg_status become(struct kg_ranks *r, int n, struct kg_err *err)
{
    pid_t parent = getpid();
    int me = 0;

    if (n < 1 || n > MOST)
        return kg_fail(err, KG_EINVAL, "--ranks: expected 1 to %d, found %d", MOST, n);
    KG_TRY(join(n, err));
    forked = true;
    for (int p = 1; p < n && me == 0; p++) {
        child[p] = fork();
        if (child[p] < 0)
            return give_up(p, err);
        me = child[p] == 0 ? p : 0;
    }
    part(n, me);
    if (me > 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent))
        _exit(KG_EXIT_FAILURE);
    return kg_ranks_on_sockets(r, me, n, fd[me], err);
}

/* ---- of a launcher ---- */
static kg_status be_launched(const struct kg_ranks *r, int n, struct kg_err *err)
{
    if (n > 1)
        return kg_fail(err, KG_EINVAL,
                       "--ranks: expected none under a launcher, which started %d "
                       "processes already, found %d",
                       r->n, n);
    return kg_ranks_follow_launcher(err);
}

kg_status kg_cli_ranks_begin(struct kg_ranks *r, int n, double wait_s, struct kg_err *err)
{
    kg_status status;

    KG_TRY(kg_ranks_open(r, wait_s, err));
    if (r->n == 0 && n == 1)
        return KG_OK;
    status = r->n > 0 ? kg_ranks_agree(r, be_launched(r, n, err), "start", err)
                      : become(r, n, err);
    r->wait_s = wait_s;
    if (status != KG_OK)
        return status;
    kg_log_as_rank(r->me);
    return kg_ranks_check_alike(r, err);
}

static void say_end(int p, int state)
{
    if (WIFSIGNALED(state))
        kg_log_warn("rank %d was ended by signal %d (%s)", p, WTERMSIG(state),
                    strsignal(WTERMSIG(state)));
}

static void reap(int n)
{
    for (int p = 1; p < n; p++)
        close(fd[0][p]); /* a rank that waits hears that this one is gone */
    for (int p = 1; p < n; p++) {
        int state;

        if (waitpid(child[p], &state, 0) == child[p])
            say_end(p, state);
    }
}

int kg_cli_ranks_end(struct kg_ranks *r, kg_status status, struct kg_err *err)
{
    int code = status == KG_OK ? KG_EXIT_OK
               : r->lost       ? KG_RANKS_EXIT_LOST
                               : KG_EXIT_FAILURE;
    int n = r->n, me = r->me;

    if (status != KG_OK && !(me > 0 && r->told))
        kg_cli_fail(err);
    kg_ranks_close(r); /* of a launcher: all stay until the first has spoken */
    if (!forked)
        return code;
    if (me > 0) {
        fflush(NULL);
        _exit(code);
    }
    reap(n);
    return code;
}
