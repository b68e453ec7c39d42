/* The server from inside: jobs (job.c) and threads (serve.c).
 *
 * A job belongs to one thread at a time: to the HTTP server's until it is in `intake`, to
 * the intake's until it is in `ready`, then to the model's.
 */
#ifndef KG_SERVE_SERVE_INTERNAL_H
#define KG_SERVE_SERVE_INTERNAL_H

#include "rollout/rollout.h"
#include "serve/api.h"
#include "serve/metrics.h"
#include "serve/serve.h"
#include "serve/text.h"

#include <pthread.h>

/* Samples of one prompt under one draw. The request stands first: the engine gives it
 * back. */
struct kg_serve_group {
    struct kg_request q;
    struct kg_serve_job *job;
};

struct kg_serve_choice {
    struct kg_serve_text text;
    struct kg_str said;         /* owned; of a stream: the answer's text so far */
    size_t told_n;              /* bytes of it that have been told */
    struct kg_tool_calls calls; /* owned; read out of what is said */
    double last;                /* when a piece was told, seconds of the clock */
    size_t told; /* tokens of the trajectory that have been told, prompt included */
    struct kg_api_offset offset; /* of token `told` */
    bool begun;                  /* something has been told */
};

/* How a job ends; what came first stands. */
enum kg_serve_end {
    KG_SERVE_WELL,  /* as it looks until something else is known */
    KG_SERVE_LEFT,  /* nobody reads the answer any more */
    KG_SERVE_FAILED /* failure says why */
};

struct kg_serve_job {
    struct kg_serve *s;
    struct kg_http_exchange *x;
    struct kg_api_request r;
    struct kg_api_answer answer;
    struct kg_sampling sampling;
    struct kg_adjust adjust;       /* what sampling points to, if it does */
    struct kg_serve_group *groups; /* (n_groups) owned */
    size_t n_groups;
    struct kg_traj *trajs;           /* (n_choices) owned */
    struct kg_serve_choice *choices; /* (n_choices) owned */
    size_t n_choices;
    size_t left;    /* choices that are not finished */
    int64_t kept;   /* ids that truncation kept so far, where they are recorded */
    bool streaming; /* the stream has begun */
    enum kg_serve_end end;
    struct kg_err failure;
    double received; /* seconds of the clock */
    double first;    /* token; 0: none yet */
    struct kg_serve_job *next;
};

struct kg_serve_queue {
    struct kg_serve_job *first, *last;
};

struct kg_serve {
    struct kg_serve_opts opts;   /* defaults filled in */
    struct kg_api_model *models; /* (n_models) owned: the base, then what adapts it */
    size_t n_models;
    struct kg_rollout *engine;
    struct kg_http_server *http;
    pthread_t intake_thread;
    bool intake_runs;
    struct kg_serve_job *live; /* the model thread's list */
    struct kg_str scratch;     /* the model thread's */
    int phase;                 /* the model thread's, while it serves */
    int64_t fresh;             /* the model thread's: tokens not yet in the metrics */
    char prefix[24];           /* of ids: tells one start of the server from another */

    pthread_mutex_t lock;
    pthread_cond_t intake_due, ready_due;
    struct kg_serve_queue intake, ready;
    bool draining; /* no new requests */
    bool quitting; /* the intake thread ends */
    uint64_t n_taken;
    struct kg_serve_metrics metrics;
};

/* ---- job.c ---- */

/* NULL without memory. */
struct kg_serve_job *kg_serve_job_create(struct kg_serve *s, struct kg_http_exchange *x,
                                         enum kg_api_kind kind);
/* Answer with an error and free. */
void kg_serve_job_refuse(struct kg_serve_job *job, const struct kg_api_fault *fault,
                         const char *message);
/* The intake's work: parse, encode, plan.   on failure *fault */
kg_status kg_serve_job_prepare(struct kg_serve_job *job, struct kg_api_fault *fault,
                               struct kg_err *err) KG_MUST_CHECK;
/* Answer a request that needs no model, and free. */
void kg_serve_job_answer_tokens(struct kg_serve_job *job);
kg_status kg_serve_job_submit(struct kg_serve_job *job, struct kg_err *err) KG_MUST_CHECK;
/* The engine's callbacks. */
kg_status kg_serve_on_token(void *user, const struct kg_request *q,
                            const struct kg_traj *t, struct kg_err *err);
kg_status kg_serve_on_finished(void *user, const struct kg_request *q, struct kg_traj *t,
                               const struct kg_err *failure, struct kg_err *err);
void kg_serve_job_leave(struct kg_serve_job *job);
void kg_serve_job_fail(struct kg_serve_job *job, const struct kg_err *failure);
/* All choices are finished, or it does not end well: answer and free. The engine no
 * longer holds it. */
void kg_serve_job_finish(struct kg_serve_job *job);

#endif
