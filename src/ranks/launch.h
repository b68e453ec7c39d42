/* From a launcher's environment to ranks: mpirun of Open MPI, mpiexec of MPICH, Slurm's
 * srun with --mpi=pmix or --mpi=pmi2.
 *
 *     OMPI_COMM_WORLD_SIZE        Open MPI
 *     PMI_SIZE                    MPICH
 *     PMIX_RANK                   PMIx, which both speak: the library that is here
 *     SLURM_STEP_NUM_TASKS or     Slurm's tasks that know nothing of each other: refused,
 *     SLURM_NTASKS above 1        each would take itself for the whole run
 *     none of them                alone
 *
 * The script of a job is one process for all of its SLURM_NTASKS, and has no step. On one
 * machine it may become the ranks of a run itself.
 *
 * The first that is there counts. How many processes the launcher says it started is
 * compared with how many MPI finds.
 */
#ifndef KG_RANKS_LAUNCH_H
#define KG_RANKS_LAUNCH_H

#include "ranks/ranks.h"

enum kg_ranks_launcher {
    KG_RANKS_ALONE,
    KG_RANKS_OPENMPI,
    KG_RANKS_MPICH,
    KG_RANKS_PMIX,
    KG_RANKS_NOBODY /* tasks of Slurm, joined by nobody */
};
struct kg_ranks_launch {
    enum kg_ranks_launcher by;
    int n;       /* processes that it says it started; 0: it does not say */
    bool script; /* of a job of Slurm's: it started one for all n */
    int nodes;   /* of that job */
};
void kg_ranks_read_launch(struct kg_ranks_launch *l);

/* Join the launcher's other processes.   r (out): {0} where there is no launcher, or one
 * of a single process; closed by kg_ranks_close, after the last word to the user: where a
 * rank was lost it ends all of them.   own: processes that this one becomes itself where
 * there is no launcher; wait_s: for a rank at most, in MPI's own start too, where the
 * process ends with KG_RANKS_EXIT_LOST; 0: for ever
 * errors: EINVAL (Slurm's tasks that know nothing of each other; a library that finds
 * another number of processes than the launcher started), those of kg_ranks_on_mpi */
kg_status kg_ranks_open(struct kg_ranks *r, int own, double wait_s,
                        struct kg_err *err) KG_MUST_CHECK;

/* How many processes the launcher of this one started, that may make one run; 1: none
 * did, or one alone. */
int kg_ranks_launched(void);

/* End this process with KG_RANKS_EXIT_LOST when the one that started it is gone: a
 * launcher that was killed leaves its ranks behind. For the life of the process. */
kg_status kg_ranks_follow_launcher(struct kg_err *err) KG_MUST_CHECK;

/* Whether all have the same program and command, and the same bits come out of fixed
 * products and elementary functions here. And r->host: where each runs; and r->here: how
 * many run on this one's cores, which are a rank's own where the launcher gave it some.
 * command: in one line, as far as its words must be the same
 * errors: ECONFLICT, naming rank, host and what differs (ranks/same.h) */
kg_status kg_ranks_check_alike(struct kg_ranks *r, const char *command,
                               struct kg_err *err) KG_MUST_CHECK;

/* So many threads for this rank; 0: its part of the cores, of which ranks that share them
 * (r->here) get one each. */
void kg_ranks_set_threads(const struct kg_ranks *r, int asked);

/* Whether dir (there on rank 0) is one folder for all.
 * errors: EINVAL, naming rank and host; those of writing a file there */
kg_status kg_ranks_check_shared(struct kg_ranks *r, const char *dir,
                                struct kg_err *err) KG_MUST_CHECK;

#endif
