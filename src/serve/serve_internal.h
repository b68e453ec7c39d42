/* The inside of the server: jobs (job.c) and threads (serve.c).
 *
 * A job belongs to one thread at a time: to the HTTP server's thread until it is in
 * `intake`, to the intake thread until it is in `ready`, then to the model thread.
 */
#ifndef KG_SERVE_SERVE_INTERNAL_H
#define KG_SERVE_SERVE_INTERNAL_H

#include "base/str.h"
#include "net/http_server.h"
#include "rollout/rollout.h"
#include "serve/api.h"
#include "serve/serve.h"
#include "serve/text.h"

#include <pthread.h>

/* Counters of a server, written in Prometheus' format. */
enum { KG_SERVE_METRICS_BUCKETS = 16, KG_SERVE_METRICS_STATUSES = 16 };

/* A histogram of seconds; all histograms have the same buckets. */
struct kg_serve_metrics_histogram {
    int64_t counts[KG_SERVE_METRICS_BUCKETS + 1]; /* the last: above all bounds */
    double sum;
};
void kg_serve_metrics_observe(struct kg_serve_metrics_histogram *h, double seconds);

/* Responses of one kind with one status. */
struct kg_serve_metrics_count {
    int status; /* 0 ends the list */
    int64_t n;
};

struct kg_serve_metrics {
    struct kg_serve_metrics_count answers[KG_API_KINDS][KG_SERVE_METRICS_STATUSES];
    int64_t prompt_tokens, completion_tokens;
    int64_t steps;         /* engine steps after which sequences were running */
    int64_t left;          /* requests whose client left before the end */
    int64_t out_of_memory; /* requests failed, or turns not kept, for lack of memory */
    int64_t open;          /* requests accepted and not finished */
    int64_t running;       /* sequences being decoded */
    int64_t waiting;       /* sequences in the engine that wait for a batch row */
    struct kg_session_stats sessions; /* filled in when the metrics are written */
    struct kg_serve_metrics_histogram request, first_token, queued;
};
void kg_serve_metrics_count_answer(struct kg_serve_metrics *m, enum kg_api_kind kind,
                                   int status);

/* Appends the exposition format, version 0.0.4. */
kg_status kg_serve_metrics_put(struct kg_str *out, const struct kg_serve_metrics *m,
                               const struct kg_http_server_stats *http,
                               struct kg_err *err) KG_MUST_CHECK;

/* Samples of one prompt under one draw. The request must be the first field, because the
 * engine's callbacks return its address. */
struct kg_serve_group {
    struct kg_request q;
    struct kg_serve_job *job;
};

struct kg_serve_choice {
    struct kg_serve_text text;
    struct kg_str said;         /* owned; streams only: the text so far */
    size_t told_n;              /* bytes of `said` already sent */
    struct kg_tool_calls calls; /* owned; parsed from the text */
    double last;                /* time of the last piece, in seconds of the clock */
    size_t told; /* tokens of the trajectory already sent, prompt included */
    struct kg_api_offset offset; /* of token `told` */
    bool begun;                  /* a piece was sent */
};

enum { KG_SERVE_EPISODE_ID = 64 };
struct kg_policy_episode; /* policy.c */

/* How a job ends; the first cause is kept. */
enum kg_serve_end {
    KG_SERVE_WELL,  /* no failure so far */
    KG_SERVE_LEFT,  /* the client has left */
    KG_SERVE_FAILED /* `failure` has the error */
};

struct kg_serve_job {
    struct kg_serve *s;
    struct kg_http_exchange *x;
    struct kg_api_request r;
    struct kg_api_answer answer;
    struct kg_sampling sampling;
    struct kg_adjust adjust;       /* used by sampling, if needed */
    struct kg_serve_group *groups; /* (n_groups) owned */
    size_t n_groups;
    struct kg_traj *trajs;           /* (n_choices) owned */
    struct kg_serve_choice *choices; /* (n_choices) owned */
    size_t n_choices;
    size_t left;    /* number of unfinished choices */
    int64_t kept;   /* ids in the recorded kept sets so far */
    int64_t routed; /* experts recorded so far */
    bool streaming; /* the stream has begun */
    enum kg_serve_end end;
    struct kg_err failure;
    double received;                      /* seconds of the clock */
    double first;                         /* time of the first token; 0: none yet */
    char episode_id[KG_SERVE_EPISODE_ID]; /* episode in the request's path */
    /* the episode whose turn this is; NULL: none. Borrowed */
    struct kg_policy_episode *episode;
    struct kg_serve_job *next;
};

struct kg_serve_queue {
    struct kg_serve_job *first, *last;
};

struct kg_serve {
    struct kg_serve_opts opts;   /* defaults filled in */
    struct kg_api_model *models; /* (n_models) owned: the base, then its adapters */
    size_t n_models;
    struct kg_rollout *engine;
    struct kg_sessions *sessions;
    struct kg_http_server *http;
    pthread_t intake_thread;
    bool intake_runs;
    struct kg_serve_job *live; /* jobs of the model thread */
    struct kg_str scratch;     /* used by the model thread */
    int phase;                 /* phase of the model thread while it serves */
    int64_t fresh;   /* tokens that the model thread has not yet counted in metrics */
    char prefix[24]; /* prefix of response ids, different for each start of the server */

    pthread_mutex_t lock;
    pthread_cond_t intake_due, ready_due;
    struct kg_serve_queue intake, ready;
    bool draining; /* refuses new requests */
    bool quitting; /* tells the intake thread to end */
    uint64_t n_taken;
    struct kg_serve_metrics metrics;
};

/* ---- serve.c: called by the model's thread during a rollout of the policy ---- */

/* kg_serve_attach starts accepting requests for an engine that has begun a session with
 * the callbacks below; kg_serve_detach stops accepting and fails open requests. */
void kg_serve_attach(struct kg_serve *s, struct kg_rollout *engine);
void kg_serve_detach(struct kg_serve *s);
/* Submits the ready jobs; if any jobs are live (*busy out), makes a step. */
kg_status kg_serve_turn(struct kg_serve *s, bool *busy, struct kg_err *err) KG_MUST_CHECK;
void kg_serve_wait(struct kg_serve *s, int ms); /* waits for a request to be ready */

/* ---- job.c ---- */

/* NULL if out of memory. */
struct kg_serve_job *kg_serve_job_create(struct kg_serve *s, struct kg_http_exchange *x,
                                         enum kg_api_kind kind);
/* Responds with an error and frees the job. */
void kg_serve_job_refuse(struct kg_serve_job *job, const struct kg_api_fault *fault,
                         const char *message);
/* The work of the intake thread: parse, encode, plan. *fault out: set on failure */
kg_status kg_serve_job_prepare(struct kg_serve_job *job, struct kg_api_fault *fault,
                               struct kg_err *err) KG_MUST_CHECK;
/* Responds to a request that needs no model, and frees the job. */
void kg_serve_job_answer_tokens(struct kg_serve_job *job);
kg_status kg_serve_job_submit(struct kg_serve_job *job, struct kg_err *err) KG_MUST_CHECK;
/* The engine's callbacks. */
kg_status kg_serve_on_token(void *user, const struct kg_request *q,
                            const struct kg_traj *t, struct kg_err *err);
kg_status kg_serve_on_finished(void *user, const struct kg_request *q, struct kg_traj *t,
                               const struct kg_err *failure, struct kg_err *err);
void kg_serve_job_leave(struct kg_serve_job *job);
void kg_serve_job_fail(struct kg_serve_job *job, const struct kg_err *failure);
/* Responds and frees the job, after it failed or all choices have finished. The engine
 * must no longer hold the job, which is freed in any case.   errors: kg_policy_keep's */
kg_status kg_serve_job_finish(struct kg_serve_job *job, struct kg_err *err) KG_MUST_CHECK;

#endif
