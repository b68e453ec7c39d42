/* Reads the launcher's environment variables, and checks ranks before they compute.
 *
 * Ranks that compute different bits, or write to different folders, would compute for
 * hours and give a run that cannot be repeated. This file finds both faults in the first
 * second.
 */
#define _GNU_SOURCE /* sched_getaffinity */
#include "ranks/launch.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/real.h"
#include "base/str.h"
#include "ranks/mpi.h"
#include "ranks/same.h"
#include "tensor/selfcheck.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the environment ---- */

static long number(const char *name)
{
    const char *text = getenv(name);

    return text ? strtol(text, NULL, 10) : 0;
}

/* Tasks of a step that Slurm itself joined by PMIx. Another PMIx launcher, which may run
 * inside a step, does not give its number of processes: 0. */
static long number_by_pmix(void)
{
    const char *space = getenv("PMIX_NAMESPACE");

    return space && strncmp(space, "slurm.pmix.", 11) == 0
               ? number("SLURM_STEP_NUM_TASKS")
               : 0;
}

/* In a step, Slurm gives the step's number of tasks; in a batch script, the job's. */
static void read_slurm(struct kg_ranks_launch *l)
{
    bool step = getenv("SLURM_STEP_NUM_TASKS");
    long n = number(step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");

    if (n > 1)
        *l = (struct kg_ranks_launch){KG_RANKS_NOBODY, (int)n, !step,
                                      (int)number("SLURM_JOB_NUM_NODES")};
}

/* The innermost launcher counts: if mpirun runs inside a Slurm step, the step's variables
 * are still set. PMIx and Slurm do not tell which MPI library is in use. */
void kg_ranks_read_launch(struct kg_ranks_launch *l)
{
    *l = (struct kg_ranks_launch){0};
    if (getenv("OMPI_COMM_WORLD_SIZE")) {
        l->by = KG_RANKS_OPENMPI;
        l->n = (int)number("OMPI_COMM_WORLD_SIZE");
    } else if (getenv("PMI_SIZE")) {
        l->by = KG_RANKS_MPICH;
        l->n = (int)number("PMI_SIZE");
    } else if (getenv("PMIX_RANK")) {
        l->by = KG_RANKS_PMIX;
        l->n = (int)number_by_pmix();
    } else {
        read_slurm(l);
    }
}

/* Slurm tasks that are not joined: SLURM_STEP_NUM_TASKS, which a batch script lacks. A
 * PMIx launcher that gives no number: at least this process's number plus one. */
int kg_ranks_launched(void)
{
    struct kg_ranks_launch l;
    long n;

    kg_ranks_read_launch(&l);
    n = l.by == KG_RANKS_NOBODY || l.by == KG_RANKS_ALONE ? number("SLURM_STEP_NUM_TASKS")
        : l.n > 0                                         ? l.n
                                                          : number("PMIX_RANK") + 1;
    return n > 1 ? (int)n : 1;
}

/* own: as in kg_ranks_open */
static kg_status check_joined(const struct kg_ranks_launch *l, int own,
                              struct kg_err *err)
{
    if (!l->script)
        return kg_fail(
            err, KG_EINVAL,
            "ranks: expected Slurm tasks joined by srun --mpi=pmix (Open MPI) or "
            "--mpi=pmi2 (MPICH), or srun -n 1 for a run of one process, found "
            "SLURM_STEP_NUM_TASKS %d: each task would repeat the whole run",
            l->n);
    if (own < 2)
        return kg_fail(
            err, KG_EINVAL,
            "ranks: SLURM_NTASKS is %d, but this is one process: expected srun "
            "--mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH) in front of it, --ranks N for N "
            "processes of this machine, or srun -n 1 for a run of one",
            l->n);
    if (l->nodes > 1)
        return kg_fail(
            err, KG_EINVAL,
            "--ranks: expected a job of one machine, found %d (SLURM_JOB_NUM_NODES): "
            "without --ranks, srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH) uses all "
            "of them; with it, srun -n 1 uses one",
            l->nodes);
    return KG_OK;
}

/* PMIx works with both libraries: takes the installed one, Open MPI if both are. */
static const char *library_for(enum kg_ranks_launcher by)
{
    if (by == KG_RANKS_MPICH)
        return "mpich";
    return by == KG_RANKS_OPENMPI || kg_ranks_has_mpi("openmpi") ||
                   !kg_ranks_has_mpi("mpich")
               ? "openmpi"
               : "mpich";
}

/* Until MPI has started, log lines carry the rank number that the launcher gave. */
static void speak_by_number(void)
{
    const char *name = getenv("OMPI_COMM_WORLD_RANK") ? "OMPI_COMM_WORLD_RANK"
                       : getenv("PMI_RANK")           ? "PMI_RANK"
                                                      : "PMIX_RANK";
    struct kg_ranks r = {.me = (int)number(name)};

    kg_log_as(kg_ranks_name(&r, r.me).text);
}

/* An MPI that does not support its launcher starts each process as a run of one. */
static kg_status check_number(struct kg_ranks *r, const struct kg_ranks_launch *l,
                              const char *library, struct kg_err *err)
{
    if (l->n == 0 || r->n == l->n)
        return KG_OK;
    kg_fail(err, KG_EINVAL,
            "ranks: expected the %d processes that the launcher started, found %d by "
            "kedge-mpi-%s.so: its MPI does not support this launcher (use its own "
            "mpirun; docs/ranks.md)",
            l->n, r->n, library);
    kg_ranks_close(r);
    return err->code;
}

kg_status kg_ranks_open(struct kg_ranks *r, int own, double wait_s, struct kg_err *err)
{
    struct kg_ranks_launch l;

    memset(r, 0, sizeof *r);
    kg_ranks_read_launch(&l);
    if (l.by == KG_RANKS_NOBODY)
        return check_joined(&l, own, err);
    if (l.by == KG_RANKS_ALONE || l.n == 1)
        return KG_OK;
    const char *library = library_for(l.by);
    speak_by_number();
    KG_TRY(kg_ranks_on_mpi(r, library, wait_s, err));
    kg_log_as(r->me > 0 ? kg_ranks_name(r, r->me).text : "");
    return check_number(r, &l, library, err);
}

/* ---- a launcher that is gone ---- */

static void *follow(void *parent)
{
    const struct timespec second = {1, 0};

    while (getppid() == (pid_t)(intptr_t)parent)
        nanosleep(&second, NULL);
    _exit(KG_RANKS_EXIT_LOST);
    return NULL;
}

kg_status kg_ranks_follow_launcher(struct kg_err *err)
{
    pthread_t thread;
    int code = pthread_create(&thread, NULL, follow, (void *)(intptr_t)getppid());

    if (code != 0)
        return kg_fail(err, KG_EIO, "ranks: cannot start a thread: %s", strerror(code));
    pthread_detach(thread);
    return KG_OK;
}

/* ---- equal ranks ---- */

/* The host and cores of a rank. */
struct seat {
    char host[KG_RANKS_HOST];
    cpu_set_t cores; /* cores that it may run on */
};

static void print_functions(char text[24])
{
    double x[64];

    for (int i = 0; i < 64; i += 4) {
        x[i] = kg_exp(-0.37 * i);
        x[i + 1] = kg_log1p(0.11 * i);
        x[i + 2] = kg_sin(0.7 * i);
        x[i + 3] = kg_expm1(-1e-3 * i);
    }
    snprintf(text, 24, "%016llx", (unsigned long long)kg_hash_bytes(x, sizeof x));
}

static struct seat own_seat(void)
{
    struct seat s;

    memset(&s, 0, sizeof s);
    gethostname(s.host, sizeof s.host - 1);
    if (sched_getaffinity(0, sizeof s.cores, &s.cores) != 0)
        CPU_ZERO(&s.cores); /* unknown; equal to other unknown sets */
    return s;
}

/* Facts that must agree: the program, its command, and the bits that this CPU
 * computes. */
static kg_status put_facts(struct kg_str *facts, const char *command, struct kg_err *err)
{
    const struct kg_backend *cpu = kg_backend_cpu_variant(0);
    uint64_t program, bytes, fp32, bf16;
    char text[64], functions[24];

    KG_TRY(kg_hash_file(&program, &bytes, "/proc/self/exe", err));
    KG_TRY(kg_selfcheck_digest(&fp32, cpu, KG_F32, err));
    KG_TRY(kg_selfcheck_digest(&bf16, cpu, KG_BF16, err));
    snprintf(text, sizeof text, "kedge " KG_VERSION " (hash %016llx)",
             (unsigned long long)program);
    KG_TRY(kg_ranks_fact(facts, "program", text, err));
    KG_TRY(kg_ranks_fact(facts, "command", command, err));
    snprintf(text, sizeof text, "%016llx and %016llx", (unsigned long long)fp32,
             (unsigned long long)bf16);
    KG_TRY(kg_ranks_fact(facts, "bits of products", text, err));
    print_functions(functions);
    return kg_ranks_fact(facts, "bits of elementary functions", functions, err);
}

/* How many ranks run on the same cores as this one. */
static int sharing(const struct seat *all, int n, const struct seat *own)
{
    int here = 0;

    for (int p = 0; p < n; p++)
        here += strcmp(all[p].host, own->host) == 0 &&
                CPU_EQUAL(&all[p].cores, &own->cores);
    return here;
}

/* From here on, names of ranks include their hosts. */
static kg_status take_hosts(struct kg_ranks *r, const struct seat *all,
                            struct kg_err *err)
{
    kg_mem_free(r->host);
    r->host = kg_mem_calloc((size_t)r->n, sizeof *r->host, "ranks", err);
    for (int p = 0; p < r->n && r->host; p++)
        memcpy(r->host[p], all[p].host, sizeof r->host[p]);
    return r->host ? KG_OK : err->code;
}

static kg_status take_seats(struct kg_ranks *r, struct kg_err *err)
{
    const struct seat own = own_seat();
    struct seat *all;
    kg_status status = kg_ranks_gather_own(&all, r, KG_OK, &own, sizeof own, "hosts",
                                           err);

    if (status == KG_OK)
        status = kg_ranks_agree(r, take_hosts(r, all, err), "hosts", err);
    if (status == KG_OK)
        r->here = sharing(all, r->n, &own);
    kg_mem_free(all);
    return status;
}

kg_status kg_ranks_check_alike(struct kg_ranks *r, const char *command,
                               struct kg_err *err)
{
    struct kg_str facts = {0};

    if (r->n < 2)
        return KG_OK;
    KG_TRY(take_seats(r, err));
    kg_status status = put_facts(&facts, command, err);
    status = kg_ranks_check_same(r, status, &facts, "fingerprints", err);
    kg_str_release(&facts);
    return status;
}

void kg_ranks_set_threads(const struct kg_ranks *r, int asked)
{
    kg_threads_set(asked);
    int cores = kg_threads_get();
    if (asked == 0 && r->here > 1)
        kg_threads_set(cores > r->here ? cores / r->here : 1);
}

/* ---- one folder ---- */

#define TOKEN ".ranks"

static kg_status put_token(uint64_t token, const char *dir, struct kg_err *err)
{
    return kg_file_write_atomic(kg_path_in(dir, TOKEN).text, &token, sizeof token, err);
}

static kg_status see_token(uint64_t token, const struct kg_ranks *r, const char *dir,
                           struct kg_err *err)
{
    struct kg_str found = {0};
    bool same = kg_file_read(&found, kg_path_in(dir, TOKEN).text, 64, err) == KG_OK &&
                found.len == sizeof token &&
                memcmp(found.data, &token, sizeof token) == 0;

    kg_str_release(&found);
    if (same)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "%s: expected a folder shared by all %d ranks, found that a file just "
                   "written by rank 0 is missing",
                   dir, r->n);
}

kg_status kg_ranks_check_shared(struct kg_ranks *r, const char *dir, struct kg_err *err)
{
    uint64_t token = 0;
    kg_status status = KG_OK;

    if (r->n < 2)
        return KG_OK;
    if (r->me == 0) {
        uint64_t parts[2] = {(uint64_t)time(NULL), (uint64_t)getpid()};

        token = kg_hash_bytes(parts, sizeof parts);
        status = put_token(token, dir, err);
    }
    KG_TRY(kg_ranks_agree(r, status, "run folder", err));
    KG_TRY(kg_ranks_share(r, &token, sizeof token, "run folder", err));
    status = kg_ranks_agree(r, see_token(token, r, dir, err), "run folder", err);
    if (r->me == 0)
        unlink(kg_path_in(dir, TOKEN).text);
    return status;
}
