/* A run: all requests at once, until all are finished.
 *
 * It repeats the steps of the session until the queue is empty and no sample runs. In a
 * session a failed sequence ends alone; here the first failure ends the run.
 */
#include "base/phase.h"
#include "rollout/rollout.h"

#include <string.h>

struct run {
    kg_rollout_done_fn done;
    void *user;
};

static kg_status run_finished(void *user, const struct kg_request *q, struct kg_traj *t,
                              const struct kg_err *failure, struct kg_err *err)
{
    const struct run *run = user;
    (void)q;
    if (failure) {
        *err = *failure;
        return failure->code;
    }
    return run->done ? run->done(run->user, t, err) : KG_OK;
}

static kg_status submit_all(struct kg_rollout *r, struct kg_traj *trajs,
                            const struct kg_request *requests, size_t n,
                            struct kg_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (requests[i].context > 0)
            return kg_fail(err, KG_EINVAL,
                           "prompt %lld: expected a request of one turn, found an "
                           "episode of %d tokens",
                           (long long)requests[i].prompt_index, requests[i].context);
        KG_TRY(kg_rollout_submit(r, &requests[i], trajs, err));
        trajs += requests[i].n_samples;
    }
    return KG_OK;
}

kg_status kg_rollout_run(struct kg_rollout *r, struct kg_traj *trajs,
                         const struct kg_request *requests, size_t n_requests,
                         const struct kg_sampling *s, kg_rollout_done_fn done, void *user,
                         struct kg_err *err)
{
    size_t n_trajs = 0;
    struct run run = {done, user};
    struct kg_rollout_session session = {
        .sampling = s, .finished = run_finished, .user = &run};
    struct kg_rollout_load load = {.waiting = 1};
    for (size_t i = 0; i < n_requests; i++)
        n_trajs += requests[i].n_samples > 0 ? (size_t)requests[i].n_samples : 0;
    memset(trajs, 0, n_trajs * sizeof *trajs);
    KG_TRY(kg_rollout_begin(r, &session, err));
    KG_TRY(submit_all(r, trajs, requests, n_requests, err));
    int phase = kg_phase_begin((int64_t)n_trajs, "sequences", "generating");
    while (load.running + load.waiting > 0) {
        KG_TRY(kg_rollout_step(r, &load, err));
        kg_rollout_show(phase, r, (int64_t)n_trajs);
    }
    kg_phase_end(phase);
    return KG_OK;
}
