/* Runs the ranks of a test as processes, with shared memory and a socket per pair.
 *
 * Included by *_test.c only.
 */
#ifndef KG_RANKS_RANKS_TESTING_H
#define KG_RANKS_RANKS_TESTING_H

#include "base/need_testing.h"
#include "ranks/sockets.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MOST = 5 };
struct rank_sockets {
    int fd[RANKS_MOST][RANKS_MOST]; /* [i][j]: socket of rank i to rank j */
    int n;
    struct kg_rings *rings;
};

static inline void ranks_join(struct rank_sockets *s, int n)
{
    struct kg_err why;

    s->n = n;
    assert_int_equal(kg_rings_create(&s->rings, n, &why), KG_OK);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            int pair[2];

            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
            s->fd[i][j] = pair[0];
            s->fd[j][i] = pair[1];
        }
}

/* Closes the sockets of all ranks but `me`; me < 0: all. */
static inline void ranks_part(const struct rank_sockets *s, int me)
{
    for (int i = 0; i < s->n; i++)
        for (int j = 0; j < s->n; j++)
            if (i != j && i != me)
                close(s->fd[i][j]);
    if (me < 0)
        kg_rings_free(s->rings);
}

/* What each rank runs in its process.   returns its exit status */
typedef int (*rank_fn)(struct kg_ranks *r, void *user);

/* Starts n processes that each run fn. child (n) */
static inline void ranks_start(pid_t *child, int n, rank_fn fn, void *user)
{
    struct rank_sockets s;

    ranks_join(&s, n);
    for (int p = 0; p < n; p++) {
        child[p] = fork();
        if (child[p] == 0) {
            struct kg_ranks r;
            struct kg_err e;

            ranks_part(&s, p);
            if (kg_ranks_on_sockets(&r, p, n, s.fd[p], s.rings, &e) != KG_OK)
                _exit(127);
            r.wait_s = 60;
            _exit(fn(&r, user));
        }
    }
    ranks_part(&s, -1);
}

/* state (n): exit status of each, in waitpid's form */
static inline void ranks_wait(int *state, const pid_t *child, int n)
{
    for (int p = 0; p < n; p++)
        assert_int_equal(waitpid(child[p], &state[p], 0), child[p]);
}

static inline void ranks_run(int *state, int n, rank_fn fn, void *user)
{
    pid_t child[RANKS_MOST];

    ranks_start(child, n, fn, user);
    ranks_wait(state, child, n);
}

/* Runs n ranks, which must all exit with 0. when: context for the failure message */
static inline void ranks_end_well(int n, rank_fn fn, void *user, const char *when)
{
    int ended[RANKS_MOST];

    ranks_run(ended, n, fn, user);
    for (int p = 0; p < n; p++)
        if (ended[p] != 0)
            fail_msg("rank %d, %s: %#x", p, when, (unsigned)ended[p]);
}

#endif
