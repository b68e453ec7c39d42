/* Ranks of a test: child processes joined by shared memory. Each trains as `kedge train`
 * would.
 *
 * Include it after ROOT, the folder of the test's runs, is defined.
 */
#ifndef KG_TESTS_RANKS_RUN_TESTING_H
#define KG_TESTS_RANKS_RUN_TESTING_H

#include "run_testing.h"

#include "base/log.h"
#include "base/mem.h"
#include "ranks/nccl.h"
#include "ranks/ranks_testing.h"

#include <sys/mman.h>

enum {
    STOPPED = 50
}; /* exit status of a rank that a signal stopped, its own or another's */

/* A fault of one rank; {0}: none. */
struct upset {
    void (*before)(int me); /* called in each rank before it begins */
    void (*given)(struct kg_ranks *r, struct kg_config *config); /* called after that */
    double wait_s;
    const char *nccl; /* folder of the library that joins their devices; NULL: none */
    const char *said; /* file for warnings and errors; NULL: stderr */
};

/* Shared memory in which ranks record a lost rank; each run needs a new one. */
static struct kg_ranks_loss *no_loss(void)
{
    void *memory = mmap(NULL, sizeof(struct kg_ranks_loss), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(memory != MAP_FAILED);
    return memory;
}

/* Joins devices as ranks.link=nccl does, a key that is refused on the tests' backends. */
static void join_devices(struct kg_ranks *r, const char *folder)
{
    const struct kg_backend *be;

    NEED_IN_CHILD(kg_backend_open(&be, NULL, err));
    NEED_IN_CHILD(kg_ranks_nccl_open(r, be, folder, err));
}

/* Runs one rank; does not return. */
static void be_rank(struct kg_ranks *r, struct kg_config *config, bool resume,
                    const struct upset *upset)
{
    struct kg_err e;
    kg_status status;

    if (upset->said && !freopen(upset->said, "a", stderr))
        _exit(127);
    if (getenv("VERBOSE") || upset->said)
        kg_log_set_stream(stderr, false);
    if (upset->before)
        upset->before(r->me);
    if (upset->given)
        upset->given(r, config);
    if (upset->nccl)
        join_devices(r, upset->nccl);
    status = kg_train_run_on(r, config, resume, true, &e);
    kg_mem_fail_at(0);
    if (status != KG_OK)
        fprintf(stderr, "rank %d of %d: %s\n", r->me, r->n, e.message);
    fflush(NULL);
    _exit(status == KG_OK             ? 0
          : r->unlike                 ? KG_RANKS_EXIT_UNLIKE
          : r->lost                   ? KG_RANKS_EXIT_LOST
          : status == KG_EINTERRUPTED ? STOPPED
                                      : 1);
}

/* Starts n ranks of a run.   child (n) out: their processes */
static void start_ranks(pid_t *child, int n, const char *dir, bool resume,
                        const char *const *extra, const struct upset *upset)
{
    struct kg_config *config = config_of(dir, extra);
    struct kg_ranks_loss *loss = no_loss();
    struct rank_sockets s;

    ranks_join(&s, n);
    for (int me = 0; me < n; me++) {
        struct kg_ranks r;

        child[me] = fork();
        if (child[me] != 0)
            continue;
        ranks_part(&s, me);
        NEED_IN_CHILD(kg_ranks_on_sockets(&r, me, n, s.fd[me], s.rings, err));
        r.loss = loss;
        r.wait_s = upset->wait_s;
        be_rank(&r, config, resume, upset);
    }
    ranks_part(&s, -1);
    kg_config_free(config);
    munmap(loss, sizeof *loss);
}

/* Waits until the file `fact` of the run exists or the child has ended. */
static inline void wait_for(const char *dir, const char *fact, pid_t child)
{
    char path[256];
    siginfo_t ended = {.si_pid = 0};

    snprintf(path, sizeof path, "%s/%s", dir, fact);
    while (!kg_file_exists(path) && ended.si_pid == 0) {
        usleep(1000);
        assert_int_equal(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT),
                         0);
    }
}

/* Waits until all ranks have ended. If rank `stopped` is stopped (>= 0), it is killed
 * after the others have ended.   ended (n) out: status of waitpid */
static inline void all_end(int *ended, const pid_t *child, int n, int stopped)
{
    for (int r = 0; r < n; r++)
        if (r != stopped)
            assert_int_equal(waitpid(child[r], &ended[r], 0), child[r]);
    if (stopped < 0)
        return;
    kill(child[stopped], SIGKILL);
    assert_int_equal(waitpid(child[stopped], &ended[stopped], 0), child[stopped]);
}

static void train_with(int n, const char *dir, bool resume, const char *const *extra,
                       const struct upset *upset)
{
    pid_t child[RANKS_MOST];
    int state;

    start_ranks(child, n, dir, resume, extra, upset);
    for (int r = 0; r < n; r++) {
        assert_int_equal(waitpid(child[r], &state, 0), child[r]);
        assert_int_equal(state, 0);
    }
}

static inline void train_on(int n, const char *dir, bool resume, const char *const *extra)
{
    static const struct upset none;

    train_with(n, dir, resume, extra, &none);
}

#endif
