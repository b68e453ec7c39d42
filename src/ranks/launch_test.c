/* What launchers leave in the environment, whether ranks run the same program, and
 * whether they see the same folder.
 */
#define _GNU_SOURCE /* sched_setaffinity */
#include "ranks/launch.h"
#include "ranks/sockets.h"

#include "base/clock.h"
#include "base/need_testing.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const left_by_launchers[] = {
    "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",     "PMIX_RANK",
    "PMIX_NAMESPACE",       "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS",
    "SLURM_JOB_NUM_NODES"};

static int nobody(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof left_by_launchers / sizeof *left_by_launchers; i++)
        unsetenv(left_by_launchers[i]);
    return 0;
}

static void without_a_launcher_a_process_is_alone(void **state)
{
    struct kg_ranks r;

    (void)state;
    NEED(kg_ranks_open(&r, 1, 1, err));
    assert_int_equal(r.n, 0);
    setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
    NEED(kg_ranks_open(&r, 1, 1, err));
    assert_int_equal(r.n, 0);
    setenv("SLURM_NTASKS", "1", 1);
    unsetenv("OMPI_COMM_WORLD_SIZE");
    NEED(kg_ranks_open(&r, 1, 1, err));
    assert_int_equal(r.n, 0);
}

static void tasks_that_slurm_did_not_join_are_refused(void **state)
{
    struct kg_ranks r;
    struct kg_err why = {0};

    (void)state;
    setenv("SLURM_NTASKS", "4", 1);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    for (int own = 1; own <= 3; own += 2) {
        assert_int_equal(kg_ranks_open(&r, own, 1, &why), KG_EINVAL);
        assert_non_null(strstr(why.message, "found SLURM_STEP_NUM_TASKS 4"));
        assert_non_null(strstr(why.message, "srun --mpi=pmix"));
    }
}

/* The environment of a script under sbatch -n 4. A process there may start ranks on its
 * node; one that is to run alone is refused, because its srun was probably forgotten. */
static void the_script_of_a_job_may_become_ranks_of_its_machine(void **state)
{
    struct kg_ranks r;
    struct kg_err why = {0};

    (void)state;
    setenv("SLURM_NTASKS", "4", 1);
    setenv("SLURM_JOB_NUM_NODES", "1", 1);
    assert_int_equal(kg_ranks_open(&r, 1, 1, &why), KG_EINVAL);
    assert_non_null(strstr(why.message, "SLURM_NTASKS is 4"));
    assert_non_null(strstr(why.message, "--ranks N"));
    NEED(kg_ranks_open(&r, 3, 1, err));
    assert_int_equal(r.n, 0);
    setenv("SLURM_JOB_NUM_NODES", "2", 1);
    assert_int_equal(kg_ranks_open(&r, 3, 1, &why), KG_EINVAL);
    assert_non_null(strstr(why.message, "found 2 (SLURM_JOB_NUM_NODES)"));
    setenv("SLURM_STEP_NUM_TASKS", "1", 1); /* srun -n 1 */
    NEED(kg_ranks_open(&r, 3, 1, err));
    NEED(kg_ranks_open(&r, 1, 1, err));
}

/* Environments set by mpirun of Open MPI 4.1 and of MPICH 4.0, by srun of Slurm 22.05,
 * and by one inside another. */
static const struct {
    const char *what;
    const char *set[9]; /* names and values, alternating */
    enum kg_ranks_launcher by;
    int n, launched;
} launches[] = {
    {"nobody", {NULL}, KG_RANKS_ALONE, 0, 1},
    {"mpirun of Open MPI",
     {"OMPI_COMM_WORLD_SIZE", "3", "PMIX_RANK", "1"},
     KG_RANKS_OPENMPI,
     3,
     3},
    {"mpirun of MPICH", {"PMI_SIZE", "3"}, KG_RANKS_MPICH, 3, 3},
    {"srun --mpi=pmi2",
     {"PMI_SIZE", "2", "SLURM_NTASKS", "2", "SLURM_STEP_NUM_TASKS", "2"},
     KG_RANKS_MPICH,
     2,
     2},
    {"srun --mpi=pmix",
     {"PMIX_RANK", "0", "PMIX_NAMESPACE", "slurm.pmix.7.0", "SLURM_NTASKS", "2",
      "SLURM_STEP_NUM_TASKS", "2"},
     KG_RANKS_PMIX,
     2,
     2},
    {"srun --mpi=pmix of one task, in an allocation of more",
     {"PMIX_RANK", "0", "PMIX_NAMESPACE", "slurm.pmix.7.1", "SLURM_NTASKS", "4",
      "SLURM_STEP_NUM_TASKS", "1"},
     KG_RANKS_PMIX,
     1,
     1},
    {"prterun in a step of one task",
     {"PMIX_RANK", "3", "PMIX_NAMESPACE", "prterun-h-1@1", "SLURM_NTASKS", "4",
      "SLURM_STEP_NUM_TASKS", "1"},
     KG_RANKS_PMIX,
     0,
     4},
    {"PMIx without Slurm, the first", {"PMIX_RANK", "0"}, KG_RANKS_PMIX, 0, 1},
    {"PMIx without Slurm, the third", {"PMIX_RANK", "2"}, KG_RANKS_PMIX, 0, 3},
    {"srun --mpi=none",
     {"SLURM_NTASKS", "2", "SLURM_STEP_NUM_TASKS", "2"},
     KG_RANKS_NOBODY,
     2,
     2},
    {"the script of a batch", {"SLURM_NTASKS", "4"}, KG_RANKS_NOBODY, 4, 1},
    {"the script of a batch of one task", {"SLURM_NTASKS", "1"}, KG_RANKS_ALONE, 0, 1},
    {"srun --mpi=none -n 1",
     {"SLURM_NTASKS", "4", "SLURM_STEP_NUM_TASKS", "1"},
     KG_RANKS_ALONE,
     0,
     1},
    {"mpirun of MPICH in it",
     {"SLURM_NTASKS", "4", "PMI_SIZE", "4"},
     KG_RANKS_MPICH,
     4,
     4},
    {"mpirun of MPICH in a step of PMIx",
     {"PMIX_RANK", "0", "SLURM_STEP_NUM_TASKS", "1", "PMI_SIZE", "2"},
     KG_RANKS_MPICH,
     2,
     2},
    {"mpirun -n 1 of Open MPI in a step",
     {"PMI_SIZE", "4", "SLURM_STEP_NUM_TASKS", "4", "OMPI_COMM_WORLD_SIZE", "1"},
     KG_RANKS_OPENMPI,
     1,
     1},
};

static void the_innermost_launcher_is_told_from_the_environment(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        struct kg_ranks_launch l;

        nobody(state);
        for (int k = 0; k < 8 && launches[i].set[k]; k += 2)
            setenv(launches[i].set[k], launches[i].set[k + 1], 1);
        kg_ranks_read_launch(&l);
        if (l.by != launches[i].by || l.n != launches[i].n ||
            kg_ranks_launched() != launches[i].launched)
            fail_msg("%s: found launcher %d of %d processes, %d were started",
                     launches[i].what, (int)l.by, l.n, kg_ranks_launched());
    }
    nobody(state);
}

/* ---- two ranks, the second a child ---- */
static int fd[2];

static struct kg_ranks pair_up(pid_t *child)
{
    static int wires[2];
    struct kg_rings *rings = NULL;
    struct kg_ranks r;
    int me;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    NEED(kg_rings_create(&rings, 2, err));
    *child = fork();
    me = *child == 0;
    wires[!me] = fd[me];
    NEED_IN_CHILD(
        kg_ranks_on_sockets(&r, me, 2, wires, rings, err)); /* NULL in the child */
    r.wait_s = 20;
    close(fd[!me]);
    return r;
}

static void end_both(struct kg_ranks *r, pid_t child, bool as_expected)
{
    int status;

    kg_ranks_close(r);
    if (child == 0)
        _exit(as_expected ? 0 : 1);
    close(fd[0]);
    assert_true(as_expected);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void one_program_is_alike(void **state)
{
    pid_t child;
    struct kg_ranks r = pair_up(&child);
    struct kg_err err = {0};
    kg_status status = kg_ranks_check_alike(&r, "test", &err);

    (void)state;
    end_both(&r, child, status == KG_OK && r.here == 2);
}

static void a_rank_with_cores_of_its_own_shares_none(void **state)
{
    cpu_set_t cores, one;
    struct kg_err err = {0};
    struct kg_ranks r;
    kg_status status;
    pid_t child;
    int first = 0;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof cores, &cores), 0);
    if (CPU_COUNT(&cores) < 2) {
        print_message("skip: there is one core\n");
        skip();
    }
    while (!CPU_ISSET(first, &cores))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    r = pair_up(&child);
    if (child == 0 && sched_setaffinity(0, sizeof one, &one) != 0)
        _exit(1);
    status = kg_ranks_check_alike(&r, "test", &err);
    end_both(&r, child, status == KG_OK && r.here == 1);
}

static void a_folder_is_shared_or_not(void **state)
{
    char dir[] = "/tmp/kedge-ranks-XXXXXX", own[sizeof dir + 2];
    struct kg_err err = {0};
    struct kg_ranks r;
    kg_status status;
    pid_t child;

    (void)state;
    assert_non_null(mkdtemp(dir));
    r = pair_up(&child);
    status = kg_ranks_check_shared(&r, dir, &err);
    end_both(&r, child, status == KG_OK);

    snprintf(own, sizeof own, "%s/x", dir);
    r = pair_up(&child);
    status = kg_ranks_check_shared(&r, child == 0 ? own : dir, &err);
    end_both(&r, child,
             status == KG_EINVAL && strstr(err.message, "rank 1") &&
                 strstr(err.message, "share"));
    assert_int_equal(rmdir(dir), 0); /* the check left no file */
}

static void who_has_lost_its_launcher_ends(void **state)
{
    int ends[2], status;
    pid_t launcher;
    char byte;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    launcher = fork();
    if (launcher == 0) { /* its child, the rank, keeps the pipe open */
        if (fork() == 0) {
            struct kg_err err;

            close(ends[0]);
            if (kg_ranks_follow_launcher(&err) != KG_OK)
                _exit(1);
            sleep(30);
        }
        usleep(200000);
        _exit(0);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 0); /* the rank ended before its 30 s */
    close(ends[0]);
    waitpid(launcher, &status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(without_a_launcher_a_process_is_alone, nobody),
        cmocka_unit_test_setup(tasks_that_slurm_did_not_join_are_refused, nobody),
        cmocka_unit_test_setup(the_script_of_a_job_may_become_ranks_of_its_machine,
                               nobody),
        cmocka_unit_test_setup(the_innermost_launcher_is_told_from_the_environment,
                               nobody),
        cmocka_unit_test(one_program_is_alike),
        cmocka_unit_test(a_rank_with_cores_of_its_own_shares_none),
        cmocka_unit_test(a_folder_is_shared_or_not),
        cmocka_unit_test(who_has_lost_its_launcher_ends),
    };

    kg_threads_set(
        1); /* tests fork after products, and a child has none of their threads */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
