/* Futures. A job stays after it is done, for clients that lost the answer, until newer
 * ones need its place. Clients ask for a result over and over: their exchanges wait with
 * the job, and the thread that ends the job answers all of them. */
#include "tinker/tinker.h"

#include "base/clock.h"
#include "base/mem.h"

enum { KEPT = 4096, HOLD_S = 30, LOST_S = 300, RETIRED = -2 };
static const char leaving[] = "the server is shutting down";

static void job_free(struct kg_tinker_job *job)
{
    kg_json_release(&job->doc);
    kg_str_release(&job->body);
    kg_str_release(&job->result);
    kg_mem_free(job);
}

/* Takes a job that is done from its place. Under the lock. */
static void drop(struct kg_tinker *t, struct kg_tinker_job **at)
{
    struct kg_tinker_job *job = *at;
    *at = job->next;
    t->n_jobs--;
    t->held -= job->result.len;
    job_free(job);
}

/* The oldest jobs that are done give way. Under the lock. */
static void make_room(struct kg_tinker *t)
{
    struct kg_tinker_job **at = &t->jobs;
    while (*at && (t->n_jobs > KEPT || t->held > t->opts.max_held_bytes)) {
        if ((*at)->done)
            drop(t, at);
        else
            at = &(*at)->next;
    }
}

/* What the server failed at may be tried again, where no order has gone by. */
static bool may_run_again(const struct kg_tinker_job *job)
{
    return job->done && job->http_status >= 500 && (!job->run || job->seq == 0);
}

static kg_status add(int64_t *id, struct kg_tinker *t, struct kg_tinker_call *call,
                     struct kg_err *err)
{
    struct kg_tinker_job **end = &t->jobs;
    if (t->quitting)
        return kg_fail(err, KG_EINTERRUPTED, "%s", leaving);
    for (; *end; end = &(*end)->next) {
        struct kg_tinker_job *job = *end;
        if (job->seq != call->seq || strcmp(job->scope, call->scope) != 0)
            continue;
        *id = job->id;
        if (job->hash == call->hash && !may_run_again(job))
            return KG_OK;
        if (job->hash == call->hash) {
            drop(t, end);
            break;
        }
        return kg_fail(err, KG_ECONFLICT,
                       "%s: expected the request that had sequence number %lld before, "
                       "found another request",
                       call->scope, (long long)call->seq);
    }
    if (t->n_open >= t->opts.max_requests)
        return kg_fail(err, KG_ENOSPACE, "%d requests are open: try again later",
                       t->opts.max_requests);
    struct kg_tinker_job *job = kg_mem_calloc(1, sizeof *job, "a request", err);
    if (!job)
        return err->code;
    job->id = *id = ++t->last_id;
    job->since = kg_clock_seconds();
    job->run = call->run;
    job->proto = call->proto;
    job->seq = call->seq;
    job->hash = call->hash;
    job->doc = call->doc;
    job->body = call->body;
    memcpy(job->scope, call->scope, sizeof job->scope);
    call->doc = (struct kg_json_doc){0};
    call->body = (struct kg_str){0};
    while (*end)
        end = &(*end)->next;
    *end = job;
    t->n_jobs++;
    t->n_open++;
    pthread_cond_signal(&t->due);
    return KG_OK;
}

kg_status kg_tinker_queue(int64_t *id, struct kg_tinker *t, struct kg_tinker_call *call,
                          struct kg_err *err)
{
    pthread_mutex_lock(&t->lock);
    make_room(t);
    const kg_status status = add(id, t, call, err);
    pthread_mutex_unlock(&t->lock);
    return status;
}

static void answer(struct kg_http_exchange *x, const struct kg_tinker_job *job)
{
    kg_http_reply(x, 200,
                  job->proto && !job->http_status ? "application/x-protobuf"
                                                  : "application/json",
                  kg_str_text(&job->result), job->result.len);
}

static void ask_again(struct kg_http_exchange *x)
{
    static const char body[] = "{\"type\": \"try_again\", \"queue_state\": \"active\"}";
    kg_http_reply(x, 408, "application/json", body, sizeof body - 1);
}

/* Takes a waiter out of its list.   returns its exchange */
static struct kg_http_exchange *take_waiter(struct kg_tinker_waiter **at)
{
    struct kg_tinker_waiter *w = *at;
    struct kg_http_exchange *x = w->x;
    *at = w->next;
    kg_mem_free(w);
    return x;
}

void kg_tinker_retrieve(struct kg_tinker *t, int64_t id, struct kg_http_exchange *x)
{
    struct kg_err err;
    struct kg_tinker_waiter *w = kg_mem_calloc(1, sizeof *w, "a waiting client", &err);
    if (!w) {
        ask_again(x);
        return;
    }
    *w = (struct kg_tinker_waiter){.x = x, .until = kg_clock_seconds() + HOLD_S};
    pthread_mutex_lock(&t->lock);
    struct kg_tinker_job *job = t->quitting ? NULL : t->jobs;
    while (job && job->id != id)
        job = job->next;
    if (job && !job->done) {
        w->next = job->waiters;
        job->waiters = w;
        w = NULL;
    } else if (job) {
        answer(x, job);
    }
    pthread_mutex_unlock(&t->lock);
    kg_mem_free(w);
    if (!job)
        kg_http_reply_error(x, 410, "no such future is kept: send the request again");
}

static bool is_users_fault(kg_status status)
{
    return kg_tinker_http_status(status) < 500;
}

void kg_tinker_finish(struct kg_tinker *t, struct kg_tinker_job *job, kg_status status,
                      const struct kg_err *failure)
{
    struct kg_err err;
    if (status != KG_OK) {
        kg_str_clear(&job->result);
        if (kg_json_put_text(&job->result, "{\"error\": ", failure->message, &err) !=
                KG_OK ||
            kg_str_printf(&job->result, &err, ", \"category\": \"%s\"}",
                          is_users_fault(status) ? "user" : "server") != KG_OK)
            kg_str_clear(&job->result);
    }
    pthread_mutex_lock(&t->lock);
    job->http_status = status == KG_OK ? 0 : kg_tinker_http_status(status);
    job->done = true;
    job->running = false;
    t->n_open--;
    t->held += job->result.len;
    kg_json_release(&job->doc);
    job->doc = (struct kg_json_doc){0};
    kg_str_release(&job->body);
    while (job->waiters)
        answer(take_waiter(&job->waiters), job);
    pthread_mutex_unlock(&t->lock);
}

void kg_tinker_retire(struct kg_tinker *t, const char *model_id)
{
    pthread_mutex_lock(&t->lock);
    for (struct kg_tinker_job *job = t->jobs; job; job = job->next)
        if (job->done && strcmp(job->scope, model_id) == 0)
            job->seq = RETIRED;
    pthread_mutex_unlock(&t->lock);
}

void kg_tinker_expire(struct kg_tinker *t, double now)
{
    pthread_mutex_lock(&t->lock);
    for (struct kg_tinker_job *job = t->jobs; job; job = job->next) {
        job->late = now > job->since + LOST_S;
        for (struct kg_tinker_waiter **at = &job->waiters; *at;)
            if (now > (*at)->until)
                ask_again(take_waiter(at));
            else
                at = &(*at)->next;
    }
    pthread_mutex_unlock(&t->lock);
}

void kg_tinker_forget(struct kg_tinker *t)
{
    pthread_mutex_lock(&t->lock);
    for (struct kg_tinker_job *job = t->jobs, *next; job; job = next) {
        next = job->next;
        while (job->waiters)
            kg_http_reply_error(take_waiter(&job->waiters), 503, leaving);
        job_free(job);
    }
    t->jobs = NULL;
    t->n_jobs = t->n_open = 0;
    t->held = 0;
    pthread_mutex_unlock(&t->lock);
}
