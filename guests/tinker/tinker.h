/* Tinker's API (`kedge serve --train DIR`): a server that trains and samples, controlled
 * by a loop that the user writes.
 *
 * Two threads. The HTTP server's thread answers short requests at once (service.c) and
 * turns the others into jobs with a future (queue.c). The worker (worker.c) owns all
 * models and runs one job at a time, those of one model in order of seq_id; but jobs that
 * sample from the same weights decode together (sample.c). Folders below DIR outlive the
 * process (store.c).
 *
 * Users. The key of a request names its user. Sessions, models, jobs and folders are
 * looked up by user and id, so a user cannot use another user's ids. Users take turns by
 * their used computing time (worker.c).
 */
#ifndef KG_TINKER_TINKER_H
#define KG_TINKER_TINKER_H

#include "base/file.h"
#include "data/json.h"
#include "model/rows.h"
#include "net/http_server.h"
#include "serve/serve.h"
#include "tinker/wire.h"
#include "train/run.h"

#include <pthread.h>

enum { KG_TINKER_ID = 96 };

struct kg_tinker;

/* The owner of a key, or the only user if there are no keys. t->lock guards numbers. */
struct kg_tinker_user {
    struct kg_tinker *t;
    const char *name;   /* borrowed */
    struct kg_path dir; /* folder of the models: DIR, or DIR/users/NAME */
    int64_t last_id;
    int64_t n_jobs, n_open, n_handles[2]; /* sessions: [0], sampling sessions: [1] */
    size_t held;                          /* bytes of results */
    size_t queued;                        /* bytes of requests of open jobs */
    double used;                          /* seconds of computing */
};

/* A model in training. Used by the worker only. */
struct kg_tinker_model {
    struct kg_tinker_user *user;
    char id[KG_TINKER_ID]; /* SESSION:train:SEQ */
    /* model, optim and anchor are owned; count.step: optimizer steps */
    struct kg_run_state state;
    struct kg_algo algo; /* algorithm of the last loss with a moving anchor */
    int64_t next_seq;    /* seq_id of the next request */
    int64_t snapshots;   /* number of saves without a name */
    struct kg_tinker_model *next;
};

/* A session, or a sampling session of the base model or of a saved folder (store.c). */
struct kg_tinker_handle {
    const struct kg_tinker_user *user;
    char id[KG_TINKER_ID]; /* SESSION, or SESSION:sample:SEQ */
    bool samples;
    char path[256]; /* tinker://..., or "" for the base */
    struct kg_tinker_handle *next;
};

struct kg_tinker_job;
/* Writes the job's result: JSON, or a protocol buffer if job->proto. */
typedef kg_status kg_tinker_run_fn(struct kg_tinker_job *job, struct kg_err *err);

/* The JSON fields of a job's request, with defaults where they are absent or null. Texts
 * and values are borrowed from its document. */
struct kg_tinker_args {
    const char *base_model, *path, *kind, *optim; /* NULL: none */
    const struct kg_json *meta, *optim_config, *lora, *prompt, *stop;
    bool with_optim, overwrite, attn, mlp, unembed, prompt_logprobs;
    int64_t rank, seed, sampler_seq, samples, top_prompt, top_sample, max_tokens, top_k;
    double lr, beta1, beta2, eps, decay, clip, temperature, top_p;
};
#define KG_TINKER_NONE INT64_MIN /* value of an integer that was not given */

/* A request that is answered later. Once it is queued, t->lock guards it; the fields that
 * the worker reads stay unchanged until the job is done. */
struct kg_tinker_job {
    struct kg_tinker_user *user;
    int64_t id;
    kg_tinker_run_fn *run; /* NULL: it samples */
    bool proto;            /* the result is a protocol buffer */
    /* a model_id (jobs run in order of seq), or a sampling_session_id (in any order) */
    char scope[KG_TINKER_ID];
    int64_t seq;
    uint64_t hash;          /* hash of the request, to recognise a repeated one */
    struct kg_json_doc doc; /* owned: the request, if it is JSON */
    struct kg_tinker_args args;
    struct kg_str body; /* owned: the request, if it is a protocol buffer */
    size_t bytes;       /* of the request */
    double since;       /* time of its arrival */
    bool late;          /* the job waited so long that its predecessor counts as lost */
    bool running, done;
    int http_status;      /* HTTP status of the result; 0: 200 */
    struct kg_str result; /* owned */
    struct kg_tinker_job *next;
};

/* A client that asked for the result of a job that is not done. */
struct kg_tinker_waiter {
    struct kg_http_exchange *x;
    const struct kg_tinker_job *job;
    double until; /* time when the server tells the client to try again */
    struct kg_tinker_waiter *next;
};

struct kg_tinker {
    struct kg_serve_opts opts;    /* defaults filled in */
    struct kg_tinker_user *users; /* (n_users) owned: in the order of their keys */
    size_t n_users;
    char *name; /* owned: the base model's name, as JSON */
    const char *dir;
    struct kg_file_lock lock_of_dir;
    struct kg_http_server *http;
    struct kg_http_route *routes; /* owned; a row of service.c each */
    pthread_t worker;
    bool works;  /* the worker runs */
    int threads; /* threads of the worker */
    struct kg_tinker_model *models;
    struct kg_rows *rows; /* belongs to rows_model; both used by the worker */
    const struct kg_model *rows_model;
    struct kg_rows_opts rows_opts;
    struct {                               /* the open sampler; used by the worker */
        const struct kg_tinker_user *user; /* owner of `path`; unset for the base */
        char path[256];
        struct kg_model *model; /* owned; NULL: the base */
        struct kg_rollout *rollout;
    } engine;
    pthread_mutex_t lock;
    pthread_cond_t due;
    struct kg_tinker_job *jobs;       /* owned, in order of arrival */
    struct kg_tinker_waiter *waiters; /* owned */
    double used;                      /* `used` of the user who computed last */
    struct kg_tinker_handle *handles; /* owned */
    bool quitting;
};

/* ---- service.c: requests, and the life of the server ---- */
/* Starts the threads and serves.   errors: as kg_serve_train */
kg_status kg_tinker_open(struct kg_tinker **out, const struct kg_serve_opts *opts,
                         const char *dir, struct kg_err *err) KG_MUST_CHECK;
void kg_tinker_close(struct kg_tinker *t);
int kg_tinker_port(const struct kg_tinker *t);
/* path: NULL for a session.   errors: ENOMEM */
kg_status kg_tinker_add_handle(struct kg_tinker_user *u, const char *id, const char *path,
                               struct kg_err *err) KG_MUST_CHECK;
/* Finds a session, or a sampling session (samples). *copy out: it; NULL allowed */
bool kg_tinker_find_handle(struct kg_tinker_handle *copy, const struct kg_tinker_user *u,
                           const char *id, bool samples);
/* The HTTP status for an error: 4xx if the client caused it, else 5xx. */
int kg_tinker_http_status(kg_status status);

/* ---- fields.c ---- */
/* Fills job->args from job->doc.   errors: EFORMAT (another type), EINVAL (an unknown
 * setting) */
kg_status kg_tinker_read_args(struct kg_tinker_job *job,
                              struct kg_err *err) KG_MUST_CHECK;

/* ---- queue.c: futures ---- */
/* On success takes over the job. A repeated request gets the future of the first
 * one.   errors: ECONFLICT (another request with this scope and seq), ENOSPACE (too many
 * are open), EINTERRUPTED */
kg_status kg_tinker_queue(int64_t *id, struct kg_tinker_job *job,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_tinker_job_free(struct kg_tinker_job *job);
/* Responds with the result when the job is done; 408 after a while; 410: unknown id. */
void kg_tinker_retrieve(const struct kg_tinker_user *u, int64_t id,
                        struct kg_http_exchange *x);
/* Ends a job with its result or its failure, and answers its clients. */
void kg_tinker_finish(struct kg_tinker_job *job, kg_status status,
                      const struct kg_err *failure);
/* Keeps the results of an ended model's jobs, but forgets their requests, so that a model
 * with the same id may begin. */
void kg_tinker_retire(const struct kg_tinker_model *m);
/* Tells waiters whose time is over to ask again; marks jobs that are late. */
void kg_tinker_expire(struct kg_tinker *t, double now);
void kg_tinker_forget(struct kg_tinker *t); /* drops all jobs; their waiters get a 503 */

/* ---- worker.c ---- */
void *kg_tinker_work(void *tinker);
/* Under the lock: kg_tinker_next returns the job to run next, or NULL; kg_tinker_take
 * marks a job as running. */
struct kg_tinker_job *kg_tinker_next(struct kg_tinker *t);
void kg_tinker_take(struct kg_tinker_job *job);
/* Adds computing time to a user's account. */
void kg_tinker_charge(struct kg_tinker_user *u, double seconds);
void kg_tinker_free_models(struct kg_tinker *t);
kg_tinker_run_fn kg_tinker_create_model;
kg_tinker_run_fn kg_tinker_load_weights;
kg_tinker_run_fn kg_tinker_save_weights;
kg_tinker_run_fn kg_tinker_save_sampler;
kg_tinker_run_fn kg_tinker_optim_step;
kg_tinker_run_fn kg_tinker_unload;

/* ---- loss.c, learn.c: forward_backward ---- */
kg_status kg_tinker_algo(struct kg_algo *algo, const struct kg_tinker_batch *b,
                         int64_t vocab, struct kg_err *err) KG_MUST_CHECK;
kg_tinker_run_fn kg_tinker_learn;
/* The model of a job.   errors: ENOTFOUND */
kg_status kg_tinker_model_of(struct kg_tinker_model **m, const struct kg_tinker_job *job,
                             struct kg_err *err) KG_MUST_CHECK;

/* ---- sample.c ---- */
/* Runs a job that samples, and all that may join it. */
void kg_tinker_sample(struct kg_tinker *t, struct kg_tinker_job *job);
void kg_tinker_close_engine(struct kg_tinker *t);

/* ---- store.c: MODEL_ID/{run.json,weights/NAME/,sampler_weights/NAME/} ---- */
/* The tinker.json of a folder, which describes its weights. */
struct kg_tinker_facts {
    char base[256]; /* base_model, truncated */
    bool lora, attn, mlp;
    int rank;
    uint64_t seed;
    struct {
        char kind[16]; /* "": the saved state has no anchor */
        double eta;
        int64_t period;
    } anchor; /* the saved anchor, and when it is updated */
};
/* The folder of tinker://MODEL_ID/KIND/NAME.   errors: EINVAL (no such path) */
kg_status kg_tinker_folder(struct kg_path *to, const struct kg_tinker_user *u,
                           const char *path, struct kg_err *err) KG_MUST_CHECK;
/* Finds the folder and reads the facts of a path. */
kg_status kg_tinker_look(struct kg_path *dir, struct kg_tinker_facts *f,
                         const struct kg_tinker_user *u, const char *path,
                         struct kg_err *err) KG_MUST_CHECK;
/* kg_tinker_look for weights that fit this server.   errors: EINVAL (another base) */
kg_status kg_tinker_find_weights(struct kg_path *dir, struct kg_tinker_facts *f,
                                 const struct kg_tinker_user *u, const char *path,
                                 struct kg_err *err) KG_MUST_CHECK;
/* meta: the user's metadata, or NULL */
kg_status kg_tinker_facts_write(const struct kg_tinker_user *u,
                                const struct kg_tinker_facts *f,
                                const struct kg_json *meta, const char *file,
                                struct kg_err *err) KG_MUST_CHECK;
/* Saves the complete model under path, with its optimizer's state if `state`.
 * errors: ECONFLICT (path exists, and args->overwrite is not set) */
kg_status kg_tinker_save(const struct kg_tinker_model *m,
                         const struct kg_tinker_args *args, const char *path, bool state,
                         struct kg_err *err) KG_MUST_CHECK;
kg_status kg_tinker_facts_of(struct kg_tinker_facts *f, const struct kg_tinker_user *u,
                             const char *model_id, struct kg_err *err) KG_MUST_CHECK;
/* The lists of training runs and checkpoints.   errors: ENOTFOUND */
kg_status kg_tinker_put_run(struct kg_str *out, const struct kg_tinker_user *u,
                            const char *id, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_tinker_put_runs(struct kg_str *out, const struct kg_tinker_user *u,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_tinker_put_checkpoints(struct kg_str *out, const struct kg_tinker_user *u,
                                    const char *id, struct kg_err *err) KG_MUST_CHECK;
bool kg_tinker_is_name(const char *name);

#endif
