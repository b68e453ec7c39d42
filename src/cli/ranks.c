/* Joins the ranks of a launcher, or forks ranks, for which it first makes shared memory
 * and a socket for every two ranks.
 *
 * A child ends when its parent ends, for any reason. One rank prints for all: rank 0
 * prints an error that all share, or which rank was lost and, if it was a child, how it
 * ended. If rank 0 was lost, the rank that found the loss prints it.
 */

#include "cli/cli.h"

#include "base/log.h"
#include "base/watch.h"
#include "ranks/launch.h"
#include "ranks/lost.h"
#include "ranks/sockets.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = KG_RANKS_SOCKETS };
/* Under a launcher: seconds that a rank waits per lower rank before it prints a loss, or
 * per rank of distance to the rank that should print it; and at most. */
enum { TURN_S = 2, SPEAKER_S = 10, LAST_TURN_S = 30 };
/* A rank that closed its sockets ends within GONE_MS, or its exit status is not shown. */
enum { GONE_MS = 2000, NAP_MS = 5 };
enum { HEARD_MS = 500 }; /* a launcher forwards output within this time */

static int fd[MOST][MOST];
static pid_t child[MOST];
static bool forked;

static kg_status join(int n, struct kg_err *err)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            int pair[2];

            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
                return kg_fail(err, KG_EIO,
                               "--ranks: cannot connect ranks %d and %d by a socket: %s",
                               j, i, strerror(errno));
            fd[i][j] = pair[0];
            fd[j][i] = pair[1];
        }
    return KG_OK;
}

/* Closes the sockets of other ranks. */
static void part(int n, int me)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (i != j && i != me)
                close(fd[i][j]);
}

/* If not all children can be started, those that run are killed. */
static kg_status give_up(int begun, struct kg_err *err)
{
    kg_status status = kg_fail(err, KG_EIO,
                               "--ranks: cannot start the process of rank %d: %s", begun,
                               strerror(errno));

    for (int p = 1; p < begun; p++)
        kill(child[p], SIGKILL);
    return status;
}

/* Zeroed memory that parent and children share. */
static kg_status share_loss(struct kg_ranks_loss **loss, struct kg_err *err)
{
    void *memory = mmap(NULL, sizeof **loss, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return kg_fail(err, KG_ENOMEM, "--ranks: cannot create shared memory: %s",
                       strerror(errno));
    *loss = memory;
    return KG_OK;
}

static kg_status become(struct kg_ranks *r, int n, struct kg_err *err)
{
    struct kg_ranks_loss *loss = NULL;
    struct kg_rings *rings = NULL;
    pid_t parent = getpid();
    int me = 0;

    if (n < 1 || n > MOST)
        return kg_fail(err, KG_EINVAL, "--ranks: expected 1 to %d, found %d", MOST, n);
    KG_TRY(share_loss(&loss, err));
    KG_TRY(kg_rings_create(&rings, n, err));
    KG_TRY(join(n, err));
    forked = true;
    kg_watch_stop(); /* each rank has its own */
    for (int p = 1; p < n && me == 0; p++) {
        child[p] = fork();
        if (child[p] < 0)
            return give_up(p, err);
        me = child[p] == 0 ? p : 0;
    }
    part(n, me);
    kg_cli_watch();
    if (me > 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent))
        _exit(KG_EXIT_FAILURE);
    KG_TRY(kg_ranks_on_sockets(r, me, n, fd[me], rings, err));
    r->loss = loss;
    return KG_OK;
}

/* ---- under a launcher ---- */
static kg_status be_launched(const struct kg_ranks *r, int n, struct kg_err *err)
{
    if (n > 1)
        return kg_fail(err, KG_EINVAL,
                       "--ranks: expected none under a launcher, which has started %d "
                       "processes, found %d",
                       r->n, n);
    return kg_ranks_follow_launcher(err);
}

kg_status kg_cli_ranks_begin(struct kg_ranks *r, int n, double wait_s,
                             const char *command, struct kg_err *err)
{
    KG_TRY(kg_ranks_open(r, n, wait_s, err));
    if (r->n == 0 && n == 1)
        return KG_OK;
    kg_status status = r->n > 0 ? kg_ranks_agree(r, be_launched(r, n, err), "start", err)
                                : become(r, n, err);
    r->wait_s = wait_s;
    if (status != KG_OK)
        return status;
    kg_log_as(r->me > 0 ? kg_ranks_name(r, r->me).text : "");
    return kg_ranks_check_alike(r, command, err);
}

/* ---- the end ---- */

static void say_end(int p, int state)
{
    if (WIFSIGNALED(state))
        kg_log_warn("rank %d was ended by signal %d (%s)", p, WTERMSIG(state),
                    strsignal(WTERMSIG(state)));
}

static void reap(int n)
{
    for (int p = 1; p < n; p++) {
        int state;

        if (waitpid(child[p], &state, 0) == child[p])
            say_end(p, state);
    }
}

/* Appends to the error how the child ended. */
static void add_end(struct kg_err *err, int state)
{
    struct kg_err cause = *err;

    if (WIFSIGNALED(state))
        kg_fail(err, cause.code, "%s: ended by signal %d (%s)", cause.message,
                WTERMSIG(state), strsignal(WTERMSIG(state)));
    else
        kg_fail(err, cause.code, "%s: ended with status %d", cause.message,
                WEXITSTATUS(state));
}

/* A launcher that is told to end all ranks may do so before it has forwarded output. */
static void let_it_be_heard(const struct kg_ranks *r)
{
    const struct timespec a_while = {0, HEARD_MS * 1000000l};

    if (r->lost && r->n > 1 && !forked)
        nanosleep(&a_while, NULL);
}

/* A child that is gone has closed its sockets, and ends by itself; a signal from here
 * would look like the cause.   returns whether it ended in time; state: as in waitpid */
static bool ended_by_itself(int *state, pid_t p)
{
    const struct timespec nap = {0, NAP_MS * 1000000l};

    for (int waited = 0; waited < GONE_MS; waited += NAP_MS) {
        if (waitpid(p, state, WNOHANG) == p)
            return true;
        nanosleep(&nap, NULL);
    }
    return false;
}

/* A child was lost: the others have nothing left to do, and a silent one would not end by
 * itself. If the lost child has ended, its exit status is added to the error. */
static void end_children(const struct kg_ranks *r, struct kg_err *err)
{
    int gone = atomic_load(&r->loss->who) - 1, state;
    bool known = gone > 0 && ended_by_itself(&state, child[gone]);

    if (known)
        add_end(err, state);
    for (int p = 1; p < r->n; p++)
        if (!known || p != gone)
            kill(child[p], SIGKILL);
    for (int p = 1; p < r->n; p++)
        if (!known || p != gone)
            waitpid(child[p], NULL, 0);
}

/* Whether this rank prints the loss, or an error of its own. */
static bool speaks_of_loss(const struct kg_ranks *r)
{
    return atomic_load(&r->loss->who) == 0 || atomic_load(&r->loss->by) == r->me;
}

/* Under a launcher, ranks know by poll or note which rank prints the loss. The first rank
 * that closes ends all others by a signal, which they notice while they wait here. A rank
 * that received no signal prints it, too: the rank that should print it may be lost by
 * now.   returns whether no other rank has printed it */
static bool had_its_turn(const struct kg_ranks *r)
{
    int wait_s = r->me * TURN_S;

    if (atomic_load(&r->loss->who) != 0)
        wait_s = abs(r->me - atomic_load(&r->loss->by)) * SPEAKER_S;
    fflush(NULL);
    return sleep((unsigned)(wait_s < LAST_TURN_S ? wait_s : LAST_TURN_S)) == 0;
}

static bool speaks(struct kg_ranks *r, struct kg_err *err)
{
    if (!r->lost || r->n < 2)
        return r->me == 0 || !r->told;
    if (!forked)
        return had_its_turn(r);
    if (r->me == 0)
        end_children(r, err);
    return speaks_of_loss(r);
}

int kg_cli_ranks_end(struct kg_ranks *r, kg_status status, struct kg_err *err)
{
    int code = status == KG_OK ? kg_cli_status(status)
               : r->unlike     ? KG_RANKS_EXIT_UNLIKE
               : r->lost       ? KG_RANKS_EXIT_LOST
                               : kg_cli_status(status);
    int n = r->n, me = r->me;
    bool lost = r->lost;

    if (status != KG_OK && speaks(r, err)) {
        kg_cli_fail(err);
        let_it_be_heard(r);
    }
    r->exit_status = code;
    kg_ranks_close(r); /* under a launcher all ranks stay until one has printed */
    if (!forked)
        return code;
    if (me > 0) {
        fflush(NULL);
        _exit(code);
    }
    for (int p = 1; p < n; p++)
        close(fd[0][p]); /* waiting ranks see that this one is gone */
    if (!lost)
        reap(n);
    return code;
}
