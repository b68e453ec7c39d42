/* The retriever: pending queries, the cache, and the table of engines.
 *
 * Every query text is one entry, found by its hash. While it is in flight, later callers
 * with the same text join its waiters; its answer stays in a list by age until the cache
 * is full. Answers wait in a queue, so they are delivered only by poll, in the order of
 * their arrival.
 */
#include "search/retriever_internal.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/phase.h"

#include <string.h>

enum {
    TOPK = 3,
    BATCH = 64,
    IN_FLIGHT = 8,
    TIMEOUT_MS = 30000,
    TRIES = 4,
    CACHE = 100000,
    CACHE_BYTES = 256 << 20,
    MAX_WAITERS = 1 << 24,
};

static const struct kg_retriever_engine *const engines[] = {&kg_retriever_http,
                                                            &kg_retriever_index};

struct delivery {
    struct kg_question *question;
    struct kg_waiter waiter;
};

struct kg_retriever {
    char *where; /* owned */
    int timeout_ms, tries;
    double since; /* when the engine last answered, or was first asked */
    const struct kg_retriever_engine *row;
    void *engine;
    int64_t cache; /* answers kept at most */
    int64_t kept;
    size_t cache_bytes, kept_bytes; /* the same in bytes */
    struct kg_question **buckets;   /* (n_buckets), a power of two */
    size_t n_buckets, n_questions;
    struct kg_question *oldest, *newest;
    struct delivery *ready; /* [first_ready, n_ready) */
    size_t first_ready, n_ready, ready_capacity;
    size_t in_flight; /* tickets that wait for the engine */
    struct kg_retriever_stats stats;
    struct kg_err err; /* of a callback */
    kg_status status;
};

/* ---- questions ---- */

kg_status kg_question_answer(struct kg_question *q, const struct kg_passage *passages,
                             size_t n, struct kg_err *err)
{
    size_t bytes = n * sizeof *passages;

    for (size_t i = 0; i < n; i++)
        bytes += strlen(passages[i].id) + strlen(passages[i].contents) + 2;
    KG_TRY(kg_mem_new(&q->passages, bytes, 1, "passages", err));
    q->n_passages = n;
    q->bytes = bytes;
    char *text = (char *)(q->passages + n);
    for (size_t i = 0; i < n; i++) {
        q->passages[i] = (struct kg_passage){text, NULL, passages[i].score};
        text = stpcpy(text, passages[i].id) + 1;
        q->passages[i].contents = text;
        text = stpcpy(text, passages[i].contents) + 1;
    }
    return KG_OK;
}

void kg_question_fail(struct kg_question *q, const char *reason)
{
    struct kg_err ignored;

    q->reason = kg_mem_strdup(reason, &ignored);
    if (!q->reason)
        q->status = KG_ENOMEM;
}

static void question_free(struct kg_question *q)
{
    kg_mem_free(q->text);
    kg_mem_free(q->passages);
    kg_mem_free(q->reason);
    kg_mem_free(q->waiters);
    kg_mem_free(q);
}

static struct kg_question *question_new(const char *text, size_t n, uint64_t hash,
                                        struct kg_err *err)
{
    struct kg_question *q = kg_mem_calloc(1, sizeof *q, "question", err);

    if (!q)
        return NULL;
    q->text = kg_mem_copy(text, n, "query", err);
    if (!q->text) {
        kg_mem_free(q);
        return NULL;
    }
    q->n = n;
    q->hash = hash;
    return q;
}

/* ---- the table by hash ---- */

static struct kg_question **bucket(const struct kg_retriever *r, uint64_t hash)
{
    return &r->buckets[hash & (r->n_buckets - 1)];
}

static struct kg_question *look_up(const struct kg_retriever *r, const char *text,
                                   size_t n, uint64_t hash)
{
    for (struct kg_question *q = *bucket(r, hash); q; q = q->in_bucket)
        if (q->hash == hash && q->n == n && memcmp(q->text, text, n) == 0)
            return q;
    return NULL;
}

static void insert(struct kg_retriever *r, struct kg_question *q)
{
    struct kg_question **head = bucket(r, q->hash);

    q->in_bucket = *head;
    *head = q;
    r->n_questions++;
}

static kg_status make_room(struct kg_retriever *r, struct kg_err *err)
{
    size_t n = r->n_buckets;
    struct kg_question **old = r->buckets;
    struct kg_question **fresh;

    if (r->n_questions < n)
        return KG_OK;
    KG_TRY(kg_mem_new(&fresh, 2 * n, sizeof *fresh, "table of queries", err));
    r->buckets = fresh;
    r->n_buckets = 2 * n;
    r->n_questions = 0;
    for (size_t i = 0; i < n; i++)
        for (struct kg_question *q = old[i], *next; q; q = next) {
            next = q->in_bucket;
            insert(r, q);
        }
    kg_mem_free(old);
    return KG_OK;
}

/* ---- the list by age ---- */

static size_t size_of(const struct kg_question *q) { return sizeof *q + q->n + q->bytes; }

static void unlink_age(struct kg_retriever *r, struct kg_question *q)
{
    *(q->older ? &q->older->newer : &r->oldest) = q->newer;
    *(q->newer ? &q->newer->older : &r->newest) = q->older;
    q->older = q->newer = NULL;
    q->kept = false;
    r->kept--;
    r->kept_bytes -= size_of(q);
}

static void link_newest(struct kg_retriever *r, struct kg_question *q)
{
    q->older = r->newest;
    *(r->newest ? &r->newest->newer : &r->oldest) = q;
    r->newest = q;
    q->kept = true;
    r->kept++;
    r->kept_bytes += size_of(q);
}

/* Removes q from table and list, and frees it when no delivery needs it any more. */
static void forget(struct kg_retriever *r, struct kg_question *q)
{
    if (q->kept)
        unlink_age(r, q);
    struct kg_question **at = bucket(r, q->hash);

    while (*at != q)
        at = &(*at)->in_bucket;
    *at = q->in_bucket;
    r->n_questions--;
    q->n = 0;
    kg_mem_free(q->text);
    q->text = NULL; /* no longer in the table */
    if (q->owed == 0)
        question_free(q);
}

/* ---- opening ---- */

static kg_status check(const struct kg_retriever_opts *o, struct kg_err *err)
{
    if (!o->where || !*o->where)
        return kg_fail(err, KG_EINVAL,
                       "retriever: expected an index file or http://HOST:PORT/retrieve, "
                       "found nothing");
    if (o->topk < 1 || o->topk > KG_INDEX_TOPK_MAX)
        return kg_fail(err, KG_EINVAL, "retriever: topk: expected 1 to %d, found %d",
                       KG_INDEX_TOPK_MAX, o->topk);
    if (o->batch < 1 || o->max_in_flight < 1 || o->timeout_ms < 1 || o->tries < 1)
        return kg_fail(
            err, KG_EINVAL,
            "retriever: expected batch, max_in_flight, timeout_ms and tries of "
            "at least 1");
    return KG_OK;
}

static const struct kg_retriever_engine *row_for(const char *where)
{
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++)
        if (engines[i]->takes(where))
            return engines[i];
    return NULL;
}

static kg_status open_row(struct kg_retriever *r, const struct kg_retriever_opts *o,
                          struct kg_err *err)
{
    r->n_buckets = 1024;
    KG_TRY(kg_mem_new(&r->buckets, r->n_buckets, sizeof(struct kg_question *),
                      "table of queries", err));
    r->cache = o->cache < 0 ? 0 : o->cache;
    r->cache_bytes = o->cache_bytes;
    r->timeout_ms = o->timeout_ms;
    r->tries = o->tries;
    r->where = kg_mem_strdup(o->where, err);
    if (!r->where)
        return KG_ENOMEM;
    r->row = row_for(o->where);
    if (!r->row)
        return kg_fail(err, KG_EINVAL,
                       "retriever: expected an index file or http://HOST:PORT/retrieve, "
                       "found '%s'",
                       o->where);
    return r->row->open(&r->engine, o, err);
}

kg_status kg_retriever_open(struct kg_retriever **r, const struct kg_retriever_opts *opts,
                            struct kg_err *err)
{
    struct kg_retriever_opts o = *opts;

    *r = NULL;
    o.topk = o.topk ? o.topk : TOPK;
    o.batch = o.batch ? o.batch : BATCH;
    o.max_in_flight = o.max_in_flight ? o.max_in_flight : IN_FLIGHT;
    o.timeout_ms = o.timeout_ms ? o.timeout_ms : TIMEOUT_MS;
    o.tries = o.tries ? o.tries : TRIES;
    o.cache = o.cache ? o.cache : CACHE;
    o.cache_bytes = o.cache_bytes ? o.cache_bytes : CACHE_BYTES;
    KG_TRY(check(&o, err));
    struct kg_retriever *fresh = kg_mem_calloc(1, sizeof *fresh, "retriever", err);
    if (!fresh)
        return KG_ENOMEM;
    kg_status status = open_row(fresh, &o, err);
    if (status != KG_OK) {
        kg_retriever_close(fresh);
        return status;
    }
    *r = fresh;
    return KG_OK;
}

void kg_retriever_close(struct kg_retriever *r)
{
    if (!r)
        return;
    if (r->engine)
        r->row->close(r->engine);
    /* deliveries may point to questions that are no longer in the table */
    for (size_t i = r->first_ready; i < r->n_ready; i++) {
        struct kg_question *q = r->ready[i].question;

        if (--q->owed == 0 && !q->text)
            question_free(q);
    }
    kg_mem_free(r->ready);
    for (size_t i = 0; r->buckets && i < r->n_buckets; i++)
        for (struct kg_question *q = r->buckets[i], *next; q; q = next) {
            next = q->in_bucket;
            question_free(q);
        }
    kg_mem_free(r->buckets);
    kg_mem_free(r->where);
    kg_mem_free(r);
}

/* ---- asking ---- */

static kg_status deliver_later(struct kg_retriever *r, struct kg_question *q,
                               const struct kg_waiter *w, struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&r->ready, &r->ready_capacity, r->n_ready + 1, sizeof *r->ready,
                       MAX_WAITERS, "answers", err));
    r->ready[r->n_ready++] = (struct delivery){q, *w};
    q->owed++;
    return KG_OK;
}

static kg_status wait_for(struct kg_retriever *r, struct kg_question *q,
                          const struct kg_waiter *w, struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&q->waiters, &q->waiters_capacity, q->n_waiters + 1,
                       sizeof *q->waiters, MAX_WAITERS, "waiters", err));
    q->waiters[q->n_waiters++] = *w;
    if (r->in_flight++ == 0)
        r->since = w->since;
    return KG_OK;
}

static kg_status ask_engine(struct kg_retriever *r, const char *query, size_t n,
                            uint64_t hash, const struct kg_waiter *w, struct kg_err *err)
{
    kg_status status;

    KG_TRY(make_room(r, err));
    struct kg_question *q = question_new(query, n, hash, err);
    if (!q)
        return KG_ENOMEM;
    KG_TRY_GOTO(out, wait_for(r, q, w, err));
    status = r->row->ask(r->engine, q, err);
    if (status != KG_OK) {
        r->in_flight--;
        goto out;
    }
    insert(r, q);
    return KG_OK;
out:
    question_free(q);
    return status;
}

kg_status kg_retriever_ask(struct kg_retriever *r, const char *query, size_t n,
                           uint64_t ticket, struct kg_err *err)
{
    struct kg_waiter w = {ticket, kg_clock_seconds()};
    uint64_t hash = kg_hash_bytes(query, n);
    struct kg_question *q = look_up(r, query, n, hash);

    r->stats.queries++;
    if (!q)
        return ask_engine(r, query, n, hash, &w, err);
    if (!q->answered) {
        r->stats.joined++;
        return wait_for(r, q, &w, err);
    }
    r->stats.cached++;
    unlink_age(r, q);
    link_newest(r, q);
    return deliver_later(r, q, &w, err);
}

/* ---- answers ---- */

/* Called by the engine: queues the answer for all waiters. */
static void on_answered(void *user, struct kg_question *q)
{
    struct kg_retriever *r = user;

    r->in_flight -= q->n_waiters;
    r->since = kg_clock_seconds();
    for (size_t i = 0; i < q->n_waiters; i++) {
        kg_status status = deliver_later(r, q, &q->waiters[i], &r->err);

        r->status = r->status == KG_OK ? status : r->status;
    }
    if (q->status != KG_OK && r->status == KG_OK)
        r->status = kg_fail(&r->err, q->status, "retriever: out of memory");
    if (q->reason)
        r->stats.failed += (int64_t)q->n_waiters;
    q->n_waiters = 0;
    q->answered = true;
    if (q->reason || q->status != KG_OK) {
        forget(r, q); /* so that the next query of this text tries again */
        return;
    }
    link_newest(r, q);
}

static kg_status deliver(struct kg_retriever *r, const struct delivery *d,
                         kg_retrieved_fn done, void *user, struct kg_err *err)
{
    struct kg_question *q = d->question;
    struct kg_retrieved a = {.ticket = d->waiter.ticket,
                             .passages = q->passages,
                             .n = q->n_passages,
                             .failed = q->reason != NULL,
                             .reason = q->reason};

    r->stats.seconds += kg_clock_seconds() - d->waiter.since;
    kg_status status = done(user, &a, err);
    if (--q->owed == 0 && !q->text)
        question_free(q);
    return status;
}

/* Delivers what is ready now; a later poll delivers the answers to what `done` asks. */
static kg_status deliver_ready(struct kg_retriever *r, kg_retrieved_fn done, void *user,
                               struct kg_err *err)
{
    size_t end = r->n_ready;

    while (r->first_ready < end) {
        struct delivery d = r->ready[r->first_ready++];

        KG_TRY(deliver(r, &d, done, user, err));
    }
    memmove(r->ready, r->ready + end, (r->n_ready - end) * sizeof *r->ready);
    r->n_ready -= end;
    r->first_ready = 0;
    while (r->kept > r->cache || r->kept_bytes > r->cache_bytes)
        forget(r, r->oldest);
    return KG_OK;
}

static kg_status poll_engine(struct kg_retriever *r, int timeout_ms, struct kg_err *err)
{
    r->status = KG_OK;
    KG_TRY(r->row->poll(r->engine, timeout_ms, on_answered, r, err));
    if (r->status != KG_OK)
        *err = r->err;
    return r->status;
}

/* Shows the wait as a phase; an index in this process has no tries. */
static int show_wait(const struct kg_retriever *r)
{
    if (r->row == &kg_retriever_index)
        return kg_phase_wait(r->since, "waiting for the index %s: %zu queries", r->where,
                             r->in_flight);
    return kg_phase_wait(
        r->since, "waiting for the retriever %s: %zu queries, %d %s of %g s", r->where,
        r->in_flight, r->tries, r->tries == 1 ? "try" : "tries", 1e-3 * r->timeout_ms);
}

kg_status kg_retriever_poll(struct kg_retriever *r, int timeout_ms, kg_retrieved_fn done,
                            void *user, struct kg_err *err)
{
    double until = kg_clock_seconds() + timeout_ms / 1e3;
    double left = timeout_ms;
    int phase = -1;

    if (r->in_flight > 0)
        KG_TRY(
            poll_engine(r, 0, err)); /* send new queries even if some answers are ready */
    if (r->first_ready == r->n_ready && r->in_flight > 0 && left > 0)
        phase = show_wait(r);
    while (r->first_ready == r->n_ready && r->in_flight > 0 && left > 0) {
        KG_TRY(poll_engine(r, left < 1 ? 1 : (int)left, err));
        left = (until - kg_clock_seconds()) * 1e3;
    }
    kg_phase_end(phase);
    if (r->first_ready == r->n_ready)
        return KG_OK;
    return deliver_ready(r, done, user, err);
}

size_t kg_retriever_waiting(const struct kg_retriever *r)
{
    return r->in_flight + r->n_ready - r->first_ready;
}

void kg_retriever_stats(struct kg_retriever_stats *out, const struct kg_retriever *r)
{
    *out = r->stats;
    r->row->stats(out, r->engine);
}
