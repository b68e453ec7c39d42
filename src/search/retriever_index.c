/* The engine `index`: a thread that searches, so that decoding does not wait.
 *
 * One list passes queries to the thread, another returns them. An answer depends only on
 * the index and the text. Only one thread may use a device, and that thread decodes. So
 * with a device there is no search thread, and a poll searches for all submitted queries.
 */
#include "search/retriever_internal.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tensor/backend.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

struct list {
    struct kg_question *first, **end;
};

struct engine {
    struct kg_index *index;
    struct kg_searcher *searcher; /* used by one thread: the search thread, or poll's */
    int topk;
    pthread_t thread;
    pthread_mutex_t lock; /* protects the members below */
    pthread_cond_t asked, answered;
    struct list todo, done;
    bool stop, runs; /* runs: there is a thread */
};

static void list_clear(struct list *l)
{
    l->first = NULL;
    l->end = &l->first;
}

static void list_add(struct list *l, struct kg_question *q)
{
    q->next = NULL;
    *l->end = q;
    l->end = &q->next;
}

static struct kg_question *list_take(struct list *l)
{
    struct kg_question *q = l->first;

    if (q) {
        l->first = q->next;
        if (!l->first)
            l->end = &l->first;
    }
    return q;
}

/* ---- the thread ---- */

/* Queries that arrive together share work if they can. If that fails, each is searched
 * for alone and reports its own error. */
static void look_ahead(struct engine *e, struct kg_question *const *batch, size_t n)
{
    struct kg_query queries[KG_AHEAD_MAX];
    struct kg_err ignored;

    for (size_t i = 0; i < n; i++)
        queries[i] = (struct kg_query){batch[i]->text, batch[i]->n};
    if (n > 1 && kg_searcher_ahead(e->searcher, queries, n, e->topk, &ignored) != KG_OK)
        return;
}

static void search_for(struct engine *e, struct kg_question *q)
{
    struct kg_hits hits;
    struct kg_err err;
    kg_status status = kg_searcher_find(&hits, e->searcher, q->text, q->n, e->topk, &err);

    if (status == KG_OK)
        status = kg_question_answer(q, hits.passages, hits.n, &err);
    if (status == KG_ENOMEM)
        q->status = status;
    else if (status != KG_OK)
        kg_question_fail(q, err.message);
}

static size_t take_batch(struct kg_question **batch, struct engine *e)
{
    size_t n = 0;

    while (n < KG_AHEAD_MAX && e->todo.first)
        batch[n++] = list_take(&e->todo);
    return n;
}

/* Called and returns with the lock held. After a stop, remaining questions are
 * dropped. */
static void answer_batch(struct engine *e, struct kg_question *const *batch, size_t n)
{
    pthread_mutex_unlock(&e->lock);
    look_ahead(e, batch, n);
    pthread_mutex_lock(&e->lock);
    for (size_t i = 0; i < n && !e->stop; i++) {
        pthread_mutex_unlock(&e->lock);
        search_for(e, batch[i]);
        pthread_mutex_lock(&e->lock);
        list_add(&e->done, batch[i]);
        pthread_cond_signal(&e->answered);
    }
}

static void *work(void *user)
{
    struct kg_question *batch[KG_AHEAD_MAX];
    struct engine *e = user;

    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        const size_t n = take_batch(batch, e);

        if (n > 0)
            answer_batch(e, batch, n);
        else
            pthread_cond_wait(&e->asked, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- the row ---- */

static bool index_takes(const char *where) { return !strstr(where, "://"); }

static void index_close(void *engine)
{
    struct engine *e = engine;

    if (e->runs) {
        pthread_mutex_lock(&e->lock);
        e->stop = true;
        pthread_cond_signal(&e->asked);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    pthread_cond_destroy(&e->asked);
    pthread_cond_destroy(&e->answered);
    pthread_mutex_destroy(&e->lock);
    kg_searcher_close(e->searcher);
    kg_index_close(e->index);
    kg_mem_free(e);
}

static kg_status begin(struct engine *e, const struct kg_retriever_opts *opts,
                       struct kg_err *err)
{
    e->topk = opts->topk;
    KG_TRY(kg_index_open(&e->index, opts->where, NULL, err));
    KG_TRY(kg_index_ask(e->index, &opts->how, err));
    KG_TRY(kg_searcher_open(&e->searcher, e->index, err));
    if (opts->how.backend && !opts->how.backend->host_memory)
        return KG_OK;
    if (pthread_create(&e->thread, NULL, work, e) != 0)
        return kg_fail(err, KG_EIO, "retriever: cannot start a thread for %s",
                       opts->where);
    e->runs = true;
    return KG_OK;
}

static kg_status index_open(void **engine, const struct kg_retriever_opts *opts,
                            struct kg_err *err)
{
    struct engine *e = kg_mem_calloc(1, sizeof *e, "retriever", err);

    if (!e)
        return KG_ENOMEM;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->asked, NULL);
    kg_clock_cond(&e->answered);
    list_clear(&e->todo);
    list_clear(&e->done);
    kg_status status = begin(e, opts, err);
    if (status != KG_OK) {
        index_close(e);
        return status;
    }
    *engine = e;
    return KG_OK;
}

static kg_status index_ask(void *engine, struct kg_question *q, struct kg_err *err)
{
    struct engine *e = engine;

    (void)err;
    pthread_mutex_lock(&e->lock);
    list_add(&e->todo, q);
    pthread_cond_signal(&e->asked);
    pthread_mutex_unlock(&e->lock);
    return KG_OK;
}

static kg_status index_poll(void *engine, int timeout_ms, kg_answered_fn answered,
                            void *user, struct kg_err *err)
{
    struct engine *e = engine;
    const struct timespec until = kg_clock_deadline(timeout_ms);
    struct kg_question *batch[KG_AHEAD_MAX];

    (void)err;
    pthread_mutex_lock(&e->lock);
    while (!e->runs && e->todo.first)
        answer_batch(e, batch, take_batch(batch, e));
    while (!e->done.first && e->runs && timeout_ms > 0)
        if (pthread_cond_timedwait(&e->answered, &e->lock, &until) != 0)
            break;
    struct kg_question *q = e->done.first;
    list_clear(&e->done);
    pthread_mutex_unlock(&e->lock);
    while (q) {
        struct kg_question *next = q->next; /* answered() may free q */

        answered(user, q);
        q = next;
    }
    return KG_OK;
}

static void index_stats(struct kg_retriever_stats *out, const void *engine)
{
    (void)out;
    (void)engine; /* no requests, no retries */
}

const struct kg_retriever_engine kg_retriever_index = {
    "index",     "an index file, searched in this process",
    index_takes, index_open,
    index_close, index_ask,
    index_poll,  index_stats};
