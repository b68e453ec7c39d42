/* The server calls the policy's host (policy.c) to assign a request to an episode and to
 * record the response. All but kg_policy_path are called by the model's thread.
 */
#ifndef KG_SERVE_POLICY_INTERNAL_H
#define KG_SERVE_POLICY_INTERNAL_H

#include "serve/serve_internal.h"

struct kg_policy; /* opaque */

/* ---- policy_report.c ---- */

struct kg_policy_numbers {
    struct kg_further_names *further; /* of the run; NULL: numbers are only checked */
    const char *key;                  /* key of the recipe that warnings name */
    bool dropped; /* a number was dropped: the run already has its most names */
};
/* Reads the verdict of a report into out's reward, graded and further; zeroes the rest.
 * errors: EFORMAT, and then nothing is changed */
kg_status kg_policy_read(struct kg_traj *out, struct kg_policy_numbers *to,
                         const struct kg_json *report, struct kg_err *err) KG_MUST_CHECK;

/* ---- policy_trace.c ---- */

/* The branches and turns that were sampled in an episode. */
struct kg_policy_turn {
    size_t branch, begin, end; /* the turn's tokens in the branch */
};
struct kg_policy_record {
    struct kg_traj *branches; /* (n_branches) owned */
    size_t n_branches, capacity;
    struct kg_policy_turn *turns; /* (n_turns) owned */
    size_t n_turns, turns_capacity;
};
/* Applies the mask of a TrainingTrace: only sampled tokens with a 1 stay MODEL tokens.
 * trace NULL or JSON null: no change. Branches without a MODEL token are removed, so the
 * branch numbers in turns are invalid afterwards.
 * errors: EFORMAT (an invalid form; a turn that was not sampled), and then nothing is
 * changed; ENOMEM */
kg_status kg_policy_take_trace(struct kg_policy_record *r, const struct kg_json *trace,
                               struct kg_err *err) KG_MUST_CHECK;

/* ---- policy.c ---- */

/* Splits /episode/ID/REST.   returns "/REST", or NULL if path has another form */
const char *kg_policy_path(char id[KG_SERVE_EPISODE_ID], const char *path);
/* Makes the request a turn of its episode, with the draws, limits and branch of the
 * episode.
 * errors: EINVAL, ENOTFOUND (no such episode is open) with *fault, ENOMEM */
kg_status kg_policy_admit(struct kg_policy *p, struct kg_serve_job *job,
                          struct kg_api_fault *fault, struct kg_err *err) KG_MUST_CHECK;
/* Records a completion, before the client gets it.   errors: ENOMEM */
kg_status kg_policy_keep(struct kg_policy *p, struct kg_serve_job *job,
                         const struct kg_traj *t, struct kg_err *err) KG_MUST_CHECK;
void kg_policy_leave(struct kg_serve_job *job); /* the job ends: its turn is over */

#endif
