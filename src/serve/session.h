/* Sessions: the token ids of conversations, so that no completion is tokenised again.
 *
 * A client of chat completions sends the whole conversation as messages with every turn.
 * The rendering contains the model's own completions as text. Text has several
 * tokenisations, so a trainer might see ids that were never sampled. So the server keeps
 * the ids of the turns of a session. A turn continues a kept turn if
 *
 *   1. the last completion in its messages has the same index as the kept one, and
 *   2. its rendering begins, byte for byte, with the kept text: the kept rendering, then
 *      the text of all sampled ids with special tokens and the end token, and
 *   3. the completion is complete: if its last id is a special token, the message lacks
 *      that token's text; else the message's content is the whole completion, and
 *   4. no other completion of the session has this text and other ids.
 *
 * The prompt of such a turn is the kept ids, followed by the ids of the remaining text.
 * Otherwise the turn starts a new branch: the whole rendering is tokenised. So the turns
 * of a session form a tree, in which a turn stores only its addition to its parent.
 */
#ifndef KG_SERVE_SESSION_H
#define KG_SERVE_SESSION_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_SESSION_ID_BYTES = 256, KG_SESSIONS = 4096 };

/* A turn before its completion. */
struct kg_session_turn {
    const char *session; /* session id; NULL: none. Borrowed, like messages */
    int32_t adapter;     /* the request's adapter; a session belongs to one model */
    const struct kg_json *messages;
    struct kg_str text; /* owned; rendering of messages */
    uint64_t parent;    /* the kept turn that this turn continues; 0: none */
};

struct kg_session_answer {
    const int32_t *ids; /* (n) ids of prompt and completion */
    size_t n;
    const char *text; /* (text_n) of prompt and completion */
    size_t text_n;
    size_t answer_n; /* bytes of text that belong to the completion */
    size_t end_n;    /* bytes of the last id if that is a special token; else 0 */
};

struct kg_session_stats {
    int64_t continued; /* turns that continued a kept turn */
    /* turns that continued none, although their session is kept or their messages hold a
     * completion */
    int64_t branches;
    int64_t evicted; /* sessions dropped for lack of room */
    int64_t kept;    /* sessions now, and their bytes */
    int64_t bytes;
};

struct kg_sessions; /* opaque; any thread may use it */
/* max_bytes: of all sessions together. If they need more, or if there are more than
 * KG_SESSIONS, the least recently used ones are dropped.   errors: ENOMEM */
kg_status kg_sessions_create(struct kg_sessions **out, size_t max_bytes,
                             struct kg_err *err) KG_MUST_CHECK;
void kg_sessions_free(struct kg_sessions *s); /* NULL allowed */

/* Sets turn->parent, and appends the parent's ids. *known: length of the prefix of
 * turn->text that these ids encode; 0: the turn starts a branch.
 * errors: ENOMEM */
kg_status kg_sessions_continue(struct kg_sessions *s, struct kg_ids *ids, size_t *known,
                               struct kg_session_turn *turn,
                               struct kg_err *err) KG_MUST_CHECK;
/* Keeps the completion of a turn, unless that completion is kept already.
 * errors: ENOMEM (the completion is not kept) */
kg_status kg_sessions_keep(struct kg_sessions *s, const struct kg_session_turn *turn,
                           const struct kg_session_answer *a,
                           struct kg_err *err) KG_MUST_CHECK;
/* Drops a session of the base model (adapter 0), if there is one. */
void kg_sessions_drop(struct kg_sessions *s, const char *session);
void kg_sessions_stats(struct kg_session_stats *out, struct kg_sessions *s);

#endif
