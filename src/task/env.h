/* Environments: what an episode talks to between turns of the model. One row of a table
 * per environment; the search agent is the first, a calculator the second.
 *
 * An environment never sees tokens and never changes what the model wrote: it reads the
 * text of one turn, written by the model alone, and answers with text that is tokenised
 * by itself and appended. What a tool returned cannot act, because nobody parses it.
 * An answer may come later: `step` says so, and `poll` delivers it while other episodes
 * decode. An observation is text that somebody else wrote: it is tokenised without
 * reading special tokens out of it.
 */
#ifndef KG_TASK_ENV_H
#define KG_TASK_ENV_H

#include "base/option.h"
#include "base/status.h"
#include "base/str.h"
#include "search/index.h" /* struct kg_search_how */
#include "task/task.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_env_opts {
    const char *retriever;    /* search: an index file or http://HOST:PORT/retrieve */
    struct kg_search_how how; /* search: by what an index finds */
    int topk;                 /* search: passages for a query; 0: 3 */
    bool stop_when_down;      /* a retriever that stays down: EIO stops the
                            * run (it is resumed later); else an observation says so, and
                            * is counted */
    int timeout_ms;           /* search: of one try; 0: the retriever's default */
    int tries;                /* search: 0: the retriever's default */
    const char *wording;      /* search: see task/wording.h; NULL: the first */
};
/* What can be said of it, for recipes and suites: rows over a struct S, as
 * KG_SAMPLING_ROWS. */
#define KG_SEARCH_ROWS(before, S, at, needs)                                             \
    KG_OPT_ROW(before "where", KG_OPT_AT(S, at retriever), "", 0, 0, NULL,               \
               "env search: an index file, or http://HOST:PORT/retrieve", true, needs),  \
        KG_OPT_ROW(before "kind", KG_OPT_AT(S, at how.kind), "bm25", 0, 0,               \
                   "bm25|dense|hybrid",                                                  \
                   "by what an index finds: words, vectors of an encoder, or both; "     \
                   "what a server is "                                                   \
                   "expected to find by",                                                \
                   false, needs),                                                        \
        KG_OPT_ROW(before "model", KG_OPT_AT(S, at how.model), "", 0, 0, NULL,           \
                   "kind dense, hybrid: folder of the encoder that the index was made "  \
                   "with, or "                                                           \
                   "ORG/NAME of the hub; of a server --dry-run says what it needs",      \
                   true, needs),                                                         \
        KG_OPT_ROW(                                                                      \
            before "passages", KG_OPT_AT(S, at how.passages), "0", 0, UINT32_MAX, NULL,  \
            "passages that the index or the server is expected to have; 0: any number",  \
            false, needs),                                                               \
        KG_OPT_ROW(before "vectors", KG_OPT_AT(S, at how.vectors), "fp16", 0, 0,         \
                   "fp16|int8",                                                          \
                   "kind dense, hybrid: a number of a vector in memory, 2 bytes or 1; "  \
                   "int8 looks at "                                                      \
                   "what may be among the best once more in the file (results do not "   \
                   "depend on it)",                                                      \
                   true, needs),                                                         \
        KG_OPT_ROW(before "fusion", KG_OPT_AT(S, at how.fusion), "rank", 0, 0,           \
                   "rank|score",                                                         \
                   "kind hybrid: two rankings become one by places (reciprocal rank) "   \
                   "or by scores",                                                       \
                   false, needs),                                                        \
        KG_OPT_ROW(before "weight", KG_OPT_AT(S, at how.weight), "0.5", 0, 1, NULL,      \
                   "kind hybrid: of the vectors' ranking, the words' has the rest",      \
                   false, needs),                                                        \
        KG_OPT_ROW(before "topk", KG_OPT_AT(S, at topk), "3", 1, 1000, NULL,             \
                   "passages for a query", false, needs),                                \
        KG_OPT_ROW(before "when_down", KG_OPT_AT(S, at stop_when_down), "stop", 0, 0,    \
                   "observe|stop",                                                       \
                   "a retriever that stays down stops the run (training: behind its "    \
                   "last whole step), "                                                  \
                   "or is told to the model and counted (training: episode/failed)",     \
                   true, needs),                                                         \
        KG_OPT_ROW(before "timeout_ms", KG_OPT_AT(S, at timeout_ms), "30000", 1, 3.6e6,  \
                   NULL, "time limit of one request to the retriever", true, needs),     \
        KG_OPT_ROW(before "tries", KG_OPT_AT(S, at tries), "4", 1, 1000, NULL,           \
                   "tries before it counts as down", true, needs)

enum kg_env_next {
    KG_ENV_DONE,    /* the episode is over */
    KG_ENV_OBSERVE, /* `observation` is there: append it and go on */
    KG_ENV_WAIT     /* poll will deliver the observation */
};

struct kg_env_turn {
    uint64_t episode; /* any number; given back by poll */
    const struct kg_record *record;
    /* what the model wrote in this turn, special tokens left out: up to and with the stop
     * string, and what its last token brings behind it */
    const char *text;
    size_t n;
    int turn;  /* from 0 */
    bool last; /* no turn follows: an action is read and counted, not carried out */
    /* the model was cut off by its token limit in this turn */
    bool truncated;
};

struct kg_env_result {
    enum kg_env_next next;
    bool valid;    /* the turn held a legal action */
    bool answered; /* the action was an answer: the episode finished by itself */
    bool called;   /* a tool was called */
    bool failed;   /* the tool could not answer; the observation says so */
};

/* What the tools of a run did, counted from `open`. */
struct kg_env_stats {
    int64_t calls;    /* of the model */
    int64_t requests; /* that left this process */
    int64_t cached;   /* calls answered without one */
    int64_t retries;
    int64_t failed; /* calls that no tool answered: each was an error observation */
    double seconds; /* waited for answers, summed over calls */
};

/* Delivered by poll: the observation of an episode that waited. */
struct kg_env_delivery {
    uint64_t episode;
    const char *observation; /* borrowed during the callback */
    size_t n;
    bool failed;
};
typedef kg_status (*kg_env_deliver_fn)(void *user, const struct kg_env_delivery *d,
                                       struct kg_err *err);

struct kg_env_row {
    const char *name;
    const char *help;
    const char *const *stops; /* (n_stops) strings that end a turn of the model */
    int n_stops;
    /* state: owned by the caller, closed by `close` */
    kg_status (*open)(void **state, const struct kg_env_opts *opts, struct kg_err *err);
    void (*close)(void *state);
    /* Read a turn. observation: appended to when the result is OBSERVE. */
    kg_status (*step)(struct kg_env_result *result, struct kg_str *observation,
                      void *state, const struct kg_env_turn *turn, struct kg_err *err);
    /* NULL for environments that never wait. Returns as soon as one was delivered,
     * nothing waits, or timeout_ms has passed. */
    kg_status (*poll)(void *state, int timeout_ms, kg_env_deliver_fn deliver, void *user,
                      struct kg_err *err);
    void (*stats)(struct kg_env_stats *out,
                  const void *state); /* NULL: nothing counted */
};

/* Table ended by a row with name NULL; look-up lists the valid names on failure. */
const struct kg_env_row *kg_env_table(void);
kg_status kg_env_find(const struct kg_env_row **row, const char *name,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
