/* Joins the processes of a launcher: mpirun of Open MPI, mpiexec of MPICH, Slurm's srun
 * with --mpi=pmix or --mpi=pmi2. Environment variables tell which one:
 *
 *     OMPI_COMM_WORLD_SIZE        Open MPI
 *     PMI_SIZE                    MPICH
 *     PMIX_RANK                   PMIx, used by both MPIs: loads the one installed here
 *     SLURM_STEP_NUM_TASKS or     separate Slurm tasks: refused, because each would make
 *     SLURM_NTASKS above 1        the whole run
 *     none of them                a single process
 *
 * A Slurm job script outside a step is one process, even if SLURM_NTASKS is above 1. In a
 * job of one machine, it may start the ranks of a run itself (--ranks).
 *
 * The first variable that is set decides. The number of processes in it is compared with
 * the number that MPI finds.
 */
#ifndef KG_RANKS_LAUNCH_H
#define KG_RANKS_LAUNCH_H

#include "ranks/ranks.h"

enum kg_ranks_launcher {
    KG_RANKS_ALONE,
    KG_RANKS_OPENMPI,
    KG_RANKS_MPICH,
    KG_RANKS_PMIX,
    KG_RANKS_NOBODY /* separate tasks of Slurm */
};
struct kg_ranks_launch {
    enum kg_ranks_launcher by;
    int n;       /* number of processes according to the launcher; 0: unknown */
    bool script; /* a Slurm job script: one process for all n */
    int nodes;   /* nodes of that job */
};
void kg_ranks_read_launch(struct kg_ranks_launch *l);

/* Joins the launcher's other processes. r (out): {0} without a launcher, or for a single
 * process. Call kg_ranks_close after the last output to the user: if a rank was lost,
 * that call ends all processes. own: number of processes that the caller will fork
 * (--ranks). wait_s: timeout for a rank, 0: none; if MPI's own start exceeds it, the
 * process ends with KG_RANKS_EXIT_LOST.
 * errors: EINVAL (separate Slurm tasks; MPI finds another number of processes than the
 * launcher started), those of kg_ranks_on_mpi */
kg_status kg_ranks_open(struct kg_ranks *r, int own, double wait_s,
                        struct kg_err *err) KG_MUST_CHECK;

/* Number of processes that the launcher started for this run; 1 without a launcher. PMIx
 * may not tell the number: then this process' rank + 1. */
int kg_ranks_launched(void);

/* From now on this process ends with KG_RANKS_EXIT_LOST, within a second or so, when its
 * parent is gone, because a killed launcher leaves its ranks running.   errors: EIO */
kg_status kg_ranks_follow_launcher(struct kg_err *err) KG_MUST_CHECK;

/* Checks that all ranks have the same program and command, and that fixed products and
 * elementary functions give the same bits. Sets r->host, the host of each rank, and
 * r->here, the number of ranks that share this rank's cores.
 * command: the words of the command that must be equal on all ranks, in one line
 * errors: ECONFLICT, naming rank, host and the difference (ranks/same.h) */
kg_status kg_ranks_check_alike(struct kg_ranks *r, const char *command,
                               struct kg_err *err) KG_MUST_CHECK;

/* Sets the number of threads of this rank to `asked`; 0: its cores divided by the number
 * of ranks that share them (r->here), at least one. */
void kg_ranks_set_threads(const struct kg_ranks *r, int asked);

/* Checks that dir (present on rank 0) is the same folder on all ranks.
 * errors: EINVAL, naming rank and host; those of writing a file there */
kg_status kg_ranks_check_shared(struct kg_ranks *r, const char *dir,
                                struct kg_err *err) KG_MUST_CHECK;

#endif
