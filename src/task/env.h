/* Environments, which respond to the model between its turns. One row of a table per
 * environment: the search agent, the calculator, a program of the user.
 *
 * An environment never sees tokens and never changes model text: it reads the text of one
 * turn and returns an observation, which is tokenised separately and appended. Only model
 * text is parsed for actions, so tool output cannot call tools. Special tokens in an
 * observation are not recognised, because it is untrusted text.
 *
 * If an observation takes time, `step` returns KG_ENV_WAIT, and `poll` delivers the
 * observation while other episodes decode.
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
    struct kg_search_how how; /* search: how an index searches */
    int topk;                 /* search: passages per query; 0: 3 */
    /* if the retriever stays down: true fails with EIO (the run can be resumed later);
     * false returns an observation that says so, and counts a failure */
    bool stop_when_down;
    int timeout_ms;      /* search: timeout of one try; 0: the retriever's default */
    int tries;           /* search: tries per query; 0: the retriever's default */
    const char *wording; /* search: see task/wording.h; NULL: the first */
    const char *command; /* external: program that plays, run by sh -c; "": use url */
    const char *url;     /* external: server that gets every episode; "": use command */
    int silent_ms;       /* external: longest silence of an episode */
    const char *section; /* external: prefix of these three keys in messages */
};
/* The option rows of a program that plays episodes; parameters as KG_SEARCH_ROWS. */
#define KG_PLAYER_ROWS(before, S, at, needs)                                             \
    KG_OPT_ROW(before "command", KG_OPT_AT(S, at command), "", 0, 0, NULL,               \
               "env external: program that plays the episodes (docs/environments.md)",   \
               false, needs),                                                            \
        KG_OPT_ROW(before "url", KG_OPT_AT(S, at url), "", 0, 0, NULL,                   \
                   "env external: instead of a program, http://HOST:PORT/PATH of a "     \
                   "server that gets every episode and answers with its report",         \
                   true, needs),                                                         \
        KG_OPT_ROW(                                                                      \
            before "timeout_ms", KG_OPT_AT(S, at silent_ms), "600000", 1, 8.64e7, NULL,  \
            "env external: an episode is given up after this time in ms without a "      \
            "turn or a report",                                                          \
            true, needs)
/* The option rows of a search, for recipes and suites, over a struct S as
 * KG_SAMPLING_ROWS. Keys of vectors and fusion need an index, not a server. on_gpu: "&"
 * and the condition that the model is on a GPU, or "" */
#define KG_IF_KIND(needs, before, kinds) needs "&" before "kind=" kinds
#define KG_IF_MINE(needs, before, kinds)                                                 \
    KG_IF_KIND(needs, before, kinds) "&" before "where!http://*"
#define KG_SEARCH_ROWS(before, S, at, needs, on_gpu)                                     \
    KG_OPT_ROW(before "where", KG_OPT_AT(S, at retriever), "", 0, 0, NULL,               \
               "env search: an index file, or http://HOST:PORT/retrieve", true, needs),  \
        KG_OPT_ROW(before "kind", KG_OPT_AT(S, at how.kind), "bm25", 0, 0,               \
                   "bm25|dense|hybrid",                                                  \
                   "kind of search: by words, by an encoder's vectors, or both; "        \
                   "a server must have this kind",                                       \
                   false, needs),                                                        \
        KG_OPT_ROW(before "model", KG_OPT_AT(S, at how.model), "", 0, 0, NULL,           \
                   "kind dense, hybrid: the index's encoder, a folder or ORG/NAME of "   \
                   "the hub; with a server only --dry-run uses it, to plan memory",      \
                   true, KG_IF_KIND(needs, before, "dense,hybrid")),                     \
        KG_OPT_ROW(before "passages", KG_OPT_AT(S, at how.passages), "0", 0, UINT32_MAX, \
                   NULL, "expected number of passages of the index or server; 0: any",   \
                   false, needs),                                                        \
        KG_OPT_ROW(before "vectors", KG_OPT_AT(S, at how.vectors), "fp16", 0, 0,         \
                   "fp16|int8",                                                          \
                   "kind dense, hybrid: type of vectors in memory; int8 recomputes the " \
                   "best candidates from the file (results do not depend on it)",        \
                   true, KG_IF_MINE(needs, before, "dense,hybrid")),                     \
        KG_OPT_ROW(before "device", KG_OPT_AT(S, at how.beside_model), "cpu", 0, 0,      \
                   "cpu|model",                                                          \
                   "kind dense, hybrid: where vectors and encoder are: cpu, or model: "  \
                   "on the GPU of the model (results do not depend on it)",              \
                   true, KG_IF_MINE(needs, before, "dense,hybrid") on_gpu),              \
        KG_OPT_ROW(                                                                      \
            before "fusion", KG_OPT_AT(S, at how.fusion), "rank", 0, 0, "rank|score",    \
            "kind hybrid: combine the two rankings by reciprocal rank or by scores",     \
            false, KG_IF_MINE(needs, before, "hybrid")),                                 \
        KG_OPT_ROW(before "weight", KG_OPT_AT(S, at how.weight), "0.5", 0, 1, NULL,      \
                   "kind hybrid: weight of the vectors' ranking; words have the rest",   \
                   false, KG_IF_MINE(needs, before, "hybrid")),                          \
        KG_OPT_ROW(before "topk", KG_OPT_AT(S, at topk), "3", 1, 1000, NULL,             \
                   "passages per query", false, needs),                                  \
        KG_OPT_ROW(                                                                      \
            before "when_down", KG_OPT_AT(S, at stop_when_down), "stop", 0, 0,           \
            "observe|stop",                                                              \
            "if the retriever stays down, stop the run (training: after the last "       \
            "complete step), or tell the model of the failure (counted in "              \
            "episode/failed)",                                                           \
            true, needs),                                                                \
        KG_OPT_ROW(before "timeout_ms", KG_OPT_AT(S, at timeout_ms), "30000", 1, 3.6e6,  \
                   NULL, "timeout of one request to the retriever in ms", true, needs),  \
        KG_OPT_ROW(before "tries", KG_OPT_AT(S, at tries), "4", 1, 1000, NULL,           \
                   "tries before the retriever counts as down", true, needs)

enum kg_env_next {
    KG_ENV_DONE,    /* the episode is over */
    KG_ENV_OBSERVE, /* `observation` is set: append it and continue */
    KG_ENV_WAIT     /* poll will deliver the observation */
};

struct kg_env_turn {
    uint64_t episode; /* any number; returned by poll */
    const struct kg_record *record;
    /* the model's text of this turn without special tokens, up to the end of the token
     * that completes the stop string */
    const char *text;
    size_t n;
    int turn;  /* from 0 */
    bool last; /* the last turn: actions are parsed and counted but not executed */
    /* the token limit ended this turn */
    bool truncated;
};

struct kg_env_result {
    enum kg_env_next next;
    bool valid;    /* the turn has a legal action */
    bool answered; /* the action was a final answer, which ends the episode */
    bool called;   /* a tool was called */
    bool failed;   /* the tool failed; the observation gives the reason */
};

/* Counters of an environment's tools since `open`. */
struct kg_env_stats {
    int64_t calls;    /* tool calls of the model */
    int64_t requests; /* requests sent out of this process */
    int64_t cached;   /* calls served without a request */
    int64_t retries;
    int64_t failed; /* failed calls, each with an error observation */
    double seconds; /* waiting time, summed over calls */
};

/* Delivered by poll: the observation of a waiting episode. */
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
    const char *const *stops; /* (n_stops) strings that end a model turn */
    int n_stops;
    /* NULL, as are all functions below, if an outside program drives the episodes (struct
     * kg_episode_host). state: owned by the caller, freed by `close` */
    kg_status (*open)(void **state, const struct kg_env_opts *opts, struct kg_err *err);
    void (*close)(void *state);
    /* Reads a turn. Appends to observation if the result is OBSERVE. */
    kg_status (*step)(struct kg_env_result *result, struct kg_str *observation,
                      void *state, const struct kg_env_turn *turn, struct kg_err *err);
    /* NULL for environments that never wait. Returns when at least one observation was
     * delivered, nothing is waiting, or timeout_ms has passed. */
    kg_status (*poll)(void *state, int timeout_ms, kg_env_deliver_fn deliver, void *user,
                      struct kg_err *err);
    void (*stats)(struct kg_env_stats *out, const void *state); /* NULL: no counters */
};

/* A table ended by a row with name NULL; a failed look-up lists the valid names. */
const struct kg_env_row *kg_env_table(void);
kg_status kg_env_find(const struct kg_env_row **row, const char *name,
                      struct kg_err *err) KG_MUST_CHECK;
/* If an outside program drives the environment's episodes, it reports the verdict, and
 * the task must be `environment`; that task needs such an environment. env NULL: single
 * turns; where: the two keys, for the message
 * errors: EINVAL */
kg_status kg_env_check_task(const struct kg_env_row *env, const struct kg_task_row *task,
                            const char *where, struct kg_err *err) KG_MUST_CHECK;

#endif
