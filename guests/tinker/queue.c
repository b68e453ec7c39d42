/* Futures. A job is kept after it is done, for clients that lost the response, until
 * newer jobs need the room. Clients repeat the request for a result: their exchanges wait
 * with the job, and the thread that ends the job responds to all of them. */
#include "tinker/tinker.h"

#include "base/clock.h"
#include "base/mem.h"

enum { KEPT = 4096, HOLD_S = 30, LOST_S = 300, RETIRED = -2 };
static const char leaving[] = "the server is shutting down";

void kg_tinker_job_free(struct kg_tinker_job *job)
{
    kg_json_release(&job->doc);
    kg_str_release(&job->body);
    kg_str_release(&job->result);
    kg_mem_free(job);
}

/* Removes and frees a finished job. Call under the lock. */
static void drop(struct kg_tinker_job **at)
{
    struct kg_tinker_job *job = *at;
    *at = job->next;
    job->user->n_jobs--;
    job->user->held -= job->result.len;
    kg_tinker_job_free(job);
}

/* Each user gets an equal share of a limit. */
static int64_t share(const struct kg_tinker_user *u, int64_t limit)
{
    const int64_t n = limit / (int64_t)u->t->n_users;
    return n > 0 ? n : 1;
}

/* Drops the user's oldest finished jobs that exceed its limits. Call under the lock. */
static void make_room(struct kg_tinker_user *u)
{
    const size_t held = (size_t)share(u, (int64_t)u->t->opts.max_held_bytes);
    struct kg_tinker_job **at = &u->t->jobs;
    while (*at && (u->n_jobs > share(u, KEPT) || u->held > held)) {
        if ((*at)->user == u && (*at)->done)
            drop(at);
        else
            at = &(*at)->next;
    }
}

/* Whether the user may have one more open request. If the server has only one user, the
 * memory of open requests is not limited. */
static kg_status check_open(const struct kg_tinker_user *u, size_t bytes,
                            struct kg_err *err)
{
    const int64_t most = share(u, u->t->opts.max_requests);
    const int64_t most_bytes = share(u, (int64_t)u->t->opts.max_held_bytes);
    if (u->n_open >= most)
        return kg_fail(err, KG_ENOSPACE, "%lld requests are open: try again later",
                       (long long)most);
    if (u->t->n_users > 1 && u->n_open > 0 && u->queued + bytes > (size_t)most_bytes)
        return kg_fail(err, KG_ENOSPACE,
                       "%zu bytes of requests are open: try again later", u->queued);
    return KG_OK;
}

/* After a server error a job may run again, unless it is in the order of a model. */
static bool may_run_again(const struct kg_tinker_job *job)
{
    return job->done && job->http_status >= 500 && (!job->run || job->seq == 0);
}

static kg_status add(int64_t *id, struct kg_tinker_job *job, struct kg_err *err)
{
    struct kg_tinker *t = job->user->t;
    struct kg_tinker_job **end = &t->jobs, *old;
    struct kg_tinker_user *u = job->user;
    if (t->quitting)
        return kg_fail(err, KG_EINTERRUPTED, "%s", leaving);
    while ((old = *end) && (old->user != u || old->seq != job->seq ||
                            strcmp(old->scope, job->scope) != 0))
        end = &old->next;
    if (old && old->hash != job->hash)
        return kg_fail(err, KG_ECONFLICT,
                       "%s: expected the same request as before for sequence number "
                       "%lld, found another request",
                       job->scope, (long long)job->seq);
    if (old && !may_run_again(old)) {
        *id = old->id;
        kg_tinker_job_free(job);
        return KG_OK;
    }
    if (old)
        drop(end);
    KG_TRY(check_open(u, job->bytes, err));
    while (*end)
        end = &(*end)->next;
    *end = job;
    job->id = *id = ++u->last_id;
    job->since = kg_clock_seconds();
    u->n_jobs++;
    u->queued += job->bytes;
    if (u->n_open++ == 0 && u->used < t->used)
        u->used = t->used;
    pthread_cond_signal(&t->due);
    return KG_OK;
}

kg_status kg_tinker_queue(int64_t *id, struct kg_tinker_job *job, struct kg_err *err)
{
    struct kg_tinker *t = job->user->t;

    pthread_mutex_lock(&t->lock);
    make_room(job->user);
    const kg_status status = add(id, job, err);
    pthread_mutex_unlock(&t->lock);
    return status;
}

/* ---- waiting clients ---- */

static void ask_again(struct kg_http_exchange *x)
{
    static const char body[] = "{\"type\": \"try_again\", \"queue_state\": \"active\"}";
    kg_http_reply(x, 408, "application/json", body, sizeof body - 1);
}

/* Replies to clients whose job is done or whose wait is over. Call under the lock. */
static void settle(struct kg_tinker *t, double now)
{
    for (struct kg_tinker_waiter **at = &t->waiters, *w; (w = *at);) {
        const struct kg_tinker_job *job = w->job;
        if (job->done)
            kg_http_reply(w->x, 200,
                          job->proto && !job->http_status ? "application/x-protobuf"
                                                          : "application/json",
                          kg_str_text(&job->result), job->result.len);
        else if (t->quitting)
            kg_http_reply_error(w->x, 503, leaving);
        else if (now > w->until)
            ask_again(w->x);
        else {
            at = &w->next;
            continue;
        }
        *at = w->next;
        kg_mem_free(w);
    }
}

void kg_tinker_retrieve(const struct kg_tinker_user *u, int64_t id,
                        struct kg_http_exchange *x)
{
    struct kg_tinker *t = u->t;
    const double now = kg_clock_seconds();
    struct kg_err err;
    struct kg_tinker_waiter *w = kg_mem_calloc(1, sizeof *w, "a waiting client", &err);
    pthread_mutex_lock(&t->lock);
    const struct kg_tinker_job *job = t->jobs;
    while (job && (job->user != u || job->id != id))
        job = job->next;
    if (job && w) {
        *w = (struct kg_tinker_waiter){x, job, now + HOLD_S, t->waiters};
        t->waiters = w;
        settle(t, now);
    }
    pthread_mutex_unlock(&t->lock);
    if (!job)
        kg_http_reply_error(x, 410, "no such future is kept: send the request again");
    else if (!w)
        ask_again(x);
    if (!job)
        kg_mem_free(w);
}

/* ---- the end of jobs ---- */

static kg_status put_failure(struct kg_str *out, int http_status, const char *message,
                             struct kg_err *err)
{
    KG_TRY(kg_json_put_text(out, "{\"error\": ", message, err));
    return kg_str_printf(out, err, ", \"category\": \"%s\"}",
                         http_status < 500 ? "user" : "server");
}

void kg_tinker_finish(struct kg_tinker_job *job, kg_status status,
                      const struct kg_err *failure)
{
    struct kg_tinker *t = job->user->t;
    const int http_status = status == KG_OK ? 0 : kg_tinker_http_status(status);
    struct kg_err err;
    if (http_status)
        kg_str_clear(&job->result);
    if (http_status &&
        put_failure(&job->result, http_status, failure->message, &err) != KG_OK)
        kg_str_clear(&job->result);
    pthread_mutex_lock(&t->lock);
    job->http_status = http_status;
    job->done = true;
    job->running = false;
    job->user->n_open--;
    job->user->queued -= job->bytes;
    job->user->held += job->result.len;
    kg_json_release(&job->doc);
    job->doc = (struct kg_json_doc){0};
    kg_str_release(&job->body);
    settle(t, kg_clock_seconds());
    pthread_mutex_unlock(&t->lock);
}

void kg_tinker_retire(const struct kg_tinker_model *m)
{
    struct kg_tinker *t = m->user->t;

    pthread_mutex_lock(&t->lock);
    for (struct kg_tinker_job *job = t->jobs; job; job = job->next)
        if (job->done && job->user == m->user && strcmp(job->scope, m->id) == 0)
            job->seq = RETIRED;
    pthread_mutex_unlock(&t->lock);
}

void kg_tinker_expire(struct kg_tinker *t, double now)
{
    pthread_mutex_lock(&t->lock);
    for (struct kg_tinker_job *job = t->jobs; job; job = job->next)
        job->late = now > job->since + LOST_S;
    settle(t, now);
    pthread_mutex_unlock(&t->lock);
}

void kg_tinker_forget(struct kg_tinker *t)
{
    pthread_mutex_lock(&t->lock);
    settle(t, 0);
    for (struct kg_tinker_job *job; (job = t->jobs);) {
        t->jobs = job->next;
        kg_tinker_job_free(job);
    }
    pthread_mutex_unlock(&t->lock);
}
