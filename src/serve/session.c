/* The kept turns: a list of sessions, last used first, each with a list of turns.
 *
 * A turn is one block and points to its parent in the same session. Sessions are dropped
 * whole, so no pointer outlives its turn. A request refers to a turn by its number,
 * because the session may be dropped before its completion arrives; then the completion
 * is kept with its whole prompt.
 */
#define _GNU_SOURCE /* memmem */
#include "serve/session.h"

#include "base/mem.h"

#include <pthread.h>
#include <string.h>

struct kept {
    struct kept *next;
    const struct kept *parent; /* NULL: first turn of a branch */
    uint64_t number;           /* from 1, over all sessions */
    size_t answered;           /* index that the completion has among the messages */
    size_t ids_from, ids_n;    /* range of this turn's own ids in the conversation */
    size_t text_from, text_n;  /* range of its own text, in bytes */
    size_t answer_n, end_n;
    bool twice; /* another completion had this text and other ids */
    int32_t *ids;
    char *text; /* in the same block, after the ids */
};

struct session {
    struct session *next; /* the next less recently used */
    struct kept *turns;
    char *id; /* owned */
    int32_t adapter;
    size_t bytes;
};

struct kg_sessions {
    pthread_mutex_t lock;
    struct session *first;
    size_t max_bytes;
    uint64_t n_turns; /* kept so far; the last number */
    struct kg_session_stats stats;
};

/* ---- life ---- */

kg_status kg_sessions_create(struct kg_sessions **out, size_t max_bytes,
                             struct kg_err *err)
{
    struct kg_sessions *s = kg_mem_calloc(1, sizeof *s, "sessions", err);
    *out = s;
    if (s == NULL)
        return err->code;
    pthread_mutex_init(&s->lock, NULL);
    s->max_bytes = max_bytes;
    return KG_OK;
}

static void drop(struct kg_sessions *s, struct session **at)
{
    struct session *x = *at;
    *at = x->next;
    s->stats.kept--;
    s->stats.bytes -= (int64_t)x->bytes;
    while (x->turns) {
        struct kept *t = x->turns;
        x->turns = t->next;
        kg_mem_free(t);
    }
    kg_mem_free(x->id);
    kg_mem_free(x);
}

void kg_sessions_free(struct kg_sessions *s)
{
    if (s == NULL)
        return;
    while (s->first)
        drop(s, &s->first);
    pthread_mutex_destroy(&s->lock);
    kg_mem_free(s);
}

static void make_room(struct kg_sessions *s)
{
    while (s->stats.bytes > (int64_t)s->max_bytes || s->stats.kept > KG_SESSIONS) {
        struct session **last = &s->first;
        while ((*last)->next)
            last = &(*last)->next;
        drop(s, last);
        s->stats.evicted++;
    }
}

void kg_sessions_stats(struct kg_session_stats *out, struct kg_sessions *s)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}

/* ---- finding ---- */

/* Finds the session and moves it to the front; NULL: none. */
static struct session *find_session(struct kg_sessions *s,
                                    const struct kg_session_turn *turn)
{
    struct session **at = &s->first;
    while (*at &&
           ((*at)->adapter != turn->adapter || strcmp((*at)->id, turn->session) != 0))
        at = &(*at)->next;
    struct session *x = *at;
    if (x == NULL)
        return NULL;
    *at = x->next;
    x->next = s->first;
    s->first = x;
    return x;
}

/* Index of the last completion among messages; their number if there is none. */
static size_t last_answer(const struct kg_json *messages)
{
    const size_t n = kg_json_size(messages);
    for (size_t i = n; i-- > 0;) {
        const struct kg_json *role = kg_json_get(kg_json_at(messages, i), "role");
        const char *name = kg_json_text(role, NULL);
        if (name && strcmp(name, "assistant") == 0)
            return i;
    }
    return n;
}

/* Whether text begins with the whole text of turn t. */
static bool has_text(const struct kept *t, const char *text, size_t n)
{
    if (t->text_from + t->text_n > n)
        return false;
    for (; t; t = t->parent)
        if (memcmp(text + t->text_from, t->text, t->text_n) != 0)
            return false;
    return true;
}

/* The message that a kept completion may have become, serialised when first needed, and
 * the last token searched in it: many turns end with the same token. */
struct reply {
    const struct kg_json *message;
    struct kg_str all; /* owned */
    char token[64];
    bool is_there;
};

/* Whether the message contains text. True if it cannot be examined. */
static bool says(struct reply *r, const char *text, size_t n)
{
    struct kg_err err;
    if (n >= sizeof r->token ||
        (r->all.len == 0 && kg_json_put_value(&r->all, r->message, &err) != KG_OK))
        return true;
    if (strlen(r->token) != n || memcmp(r->token, text, n) != 0) {
        memcpy(r->token, text, n);
        r->token[n] = '\0';
        r->is_there = memmem(r->all.data, r->all.len, text, n) != NULL;
    }
    return r->is_there;
}

/* Condition 3 of session.h: the message does not contain the special token that ends the
 * completion; without such a token, its content is the whole completion. */
static bool ends_there(const struct kept *t, struct reply *r)
{
    const char *end = t->text + t->text_n;
    size_t n;
    const char *content = kg_json_text(kg_json_get(r->message, "content"), &n);
    if (t->end_n > 0)
        return !says(r, end - t->end_n, t->end_n);
    return content && n == t->answer_n && memcmp(content, end - n, n) == 0;
}

/* The kept turn with the longest text that the request continues; NULL: none. */
static const struct kept *find_parent(const struct session *x,
                                      const struct kg_session_turn *turn)
{
    const size_t answered = last_answer(turn->messages);
    struct reply reply = {.message = kg_json_at(turn->messages, answered)};
    const struct kept *found = NULL;
    for (const struct kept *t = x->turns; t; t = t->next)
        if (t->answered == answered &&
            (found == NULL ||
             t->text_from + t->text_n > found->text_from + found->text_n) &&
            has_text(t, kg_str_text(&turn->text), turn->text.len) &&
            ends_there(t, &reply))
            found = t;
    kg_str_release(&reply.all);
    return found && !found->twice ? found : NULL;
}

static kg_status copy_ids(struct kg_ids *ids, const struct kept *t, struct kg_err *err)
{
    const size_t n = t->ids_from + t->ids_n;
    while (ids->n < n)
        KG_TRY(kg_ids_push(ids, 0, err));
    for (; t; t = t->parent)
        memcpy(ids->ids + t->ids_from, t->ids, t->ids_n * sizeof *t->ids);
    return KG_OK;
}

kg_status kg_sessions_continue(struct kg_sessions *s, struct kg_ids *ids, size_t *known,
                               struct kg_session_turn *turn, struct kg_err *err)
{
    const size_t n = kg_json_size(turn->messages);
    pthread_mutex_lock(&s->lock);
    struct session *x = find_session(s, turn);
    const struct kept *t = x ? find_parent(x, turn) : NULL;
    const kg_status status = t ? copy_ids(ids, t, err) : KG_OK;
    turn->parent = t ? t->number : 0;
    *known = t ? t->text_from + t->text_n : 0;
    s->stats.continued += t != NULL;
    s->stats.branches += t == NULL && (x || last_answer(turn->messages) < n);
    pthread_mutex_unlock(&s->lock);
    return status;
}

void kg_sessions_drop(struct kg_sessions *s, const char *session)
{
    const struct kg_session_turn turn = {.session = session};
    pthread_mutex_lock(&s->lock);
    if (find_session(s, &turn))
        drop(s, &s->first);
    pthread_mutex_unlock(&s->lock);
}

/* ---- keeping ---- */

static kg_status add_session(struct session **out, struct kg_sessions *s,
                             const struct kg_session_turn *turn, struct kg_err *err)
{
    struct session *x = kg_mem_calloc(1, sizeof *x, "session", err);
    *out = x;
    if (x == NULL)
        return err->code;
    x->id = kg_mem_strdup(turn->session, err);
    x->adapter = turn->adapter;
    if (x->id == NULL) {
        kg_mem_free(x);
        return err->code;
    }
    x->bytes = sizeof *x + strlen(x->id) + 1;
    x->next = s->first;
    s->first = x;
    s->stats.kept++;
    s->stats.bytes += (int64_t)x->bytes;
    return KG_OK;
}

static bool has_ids(const struct kept *t, const int32_t *ids, size_t n)
{
    bool same = t->ids_from + t->ids_n == n;
    for (; t && same; t = t->parent)
        same = memcmp(ids + t->ids_from, t->ids, t->ids_n * sizeof *ids) == 0;
    return same;
}

/* Whether a completion with this text is kept. If its ids differ, the text no longer
 * tells which completion a client means, so the kept turn is marked. */
static bool is_kept(struct session *x, const struct kg_session_answer *a, size_t answered)
{
    for (struct kept *t = x->turns; t; t = t->next)
        if (t->answered == answered && t->text_from + t->text_n == a->text_n &&
            has_text(t, a->text, a->text_n)) {
            t->twice |= !has_ids(t, a->ids, a->n);
            return true;
        }
    return false;
}

static kg_status add_turn(struct kg_sessions *s, struct session *x,
                          const struct kg_session_turn *turn,
                          const struct kg_session_answer *a, struct kg_err *err)
{
    const struct kept *parent = x->turns;
    while (parent && parent->number != turn->parent)
        parent = parent->next;
    const size_t ids_from = parent ? parent->ids_from + parent->ids_n : 0;
    const size_t text_from = parent ? parent->text_from + parent->text_n : 0;
    const size_t ids_bytes = (a->n - ids_from) * sizeof *a->ids;
    const size_t bytes = sizeof(struct kept) + ids_bytes + (a->text_n - text_from);
    struct kept *t = kg_mem_calloc(1, bytes, "turn of a session", err);
    if (t == NULL)
        return err->code;
    *t = (struct kept){.next = x->turns,
                       .parent = parent,
                       .number = ++s->n_turns,
                       .answered = kg_json_size(turn->messages),
                       .ids_from = ids_from,
                       .ids_n = a->n - ids_from,
                       .text_from = text_from,
                       .text_n = a->text_n - text_from,
                       .answer_n = a->answer_n,
                       .end_n = a->end_n,
                       .ids = (int32_t *)(t + 1),
                       .text = (char *)(t + 1) + ids_bytes};
    memcpy(t->ids, a->ids + ids_from, ids_bytes);
    memcpy(t->text, a->text + text_from, t->text_n);
    x->turns = t;
    x->bytes += bytes;
    s->stats.bytes += (int64_t)bytes;
    return KG_OK;
}

kg_status kg_sessions_keep(struct kg_sessions *s, const struct kg_session_turn *turn,
                           const struct kg_session_answer *a, struct kg_err *err)
{
    kg_status status = KG_OK;
    pthread_mutex_lock(&s->lock);
    struct session *x = find_session(s, turn);
    if (x == NULL)
        status = add_session(&x, s, turn, err);
    if (status == KG_OK && !is_kept(x, a, kg_json_size(turn->messages)))
        status = add_turn(s, x, turn, a, err);
    make_room(s);
    pthread_mutex_unlock(&s->lock);
    return status;
}
