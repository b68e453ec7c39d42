/* Shared by the files of environments: functions of the rows, and the source of
 * passages. */
#ifndef KG_TASK_ENV_INTERNAL_H
#define KG_TASK_ENV_INTERNAL_H

#include "search/retriever.h"
#include "task/action.h"
#include "task/env.h"

/* A source of passages: a retriever, or a test double. kg_env_search_create takes `self`,
 * which `close` frees. */
struct kg_env_source {
    void *self;
    kg_status (*ask)(void *self, const char *query, size_t n, uint64_t ticket,
                     struct kg_err *err);
    kg_status (*poll)(void *self, int timeout_ms, kg_retrieved_fn done, void *user,
                      struct kg_err *err);
    void (*stats)(struct kg_retriever_stats *out, const void *self);
    void (*close)(void *self);
};

/* ---- search: see struct kg_env_row ---- */
/* errors: ENOMEM, EINVAL (the wording); source->self is closed then */
kg_status kg_env_search_create(void **state, const struct kg_env_source *source,
                               const struct kg_env_opts *opts,
                               struct kg_err *err) KG_MUST_CHECK;
kg_status kg_env_search_open(void **state, const struct kg_env_opts *opts,
                             struct kg_err *err) KG_MUST_CHECK;
void kg_env_search_close(void *state);
kg_status kg_env_search_step(struct kg_env_result *result, struct kg_str *observation,
                             void *state, const struct kg_env_turn *turn,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_env_search_poll(void *state, int timeout_ms, kg_env_deliver_fn deliver,
                             void *user, struct kg_err *err) KG_MUST_CHECK;
void kg_env_search_stats(struct kg_env_stats *out, const void *state);

/* ---- calculator ---- */
kg_status kg_env_calculator_open(void **state, const struct kg_env_opts *opts,
                                 struct kg_err *err) KG_MUST_CHECK;
void kg_env_calculator_close(void *state);
kg_status kg_env_calculator_step(struct kg_env_result *result, struct kg_str *observation,
                                 void *state, const struct kg_env_turn *turn,
                                 struct kg_err *err) KG_MUST_CHECK;
void kg_env_calculator_stats(struct kg_env_stats *out, const void *state);

/* ---- shared ---- */
/* Reads a turn, for every environment. A legal answer or the last turn ends the episode.
 * A turn without a legal action gets `remark` as its observation, or if NULL an
 * explanation of both formats; `inside` describes the contents of the tool's tags. If
 * result->called is set, the caller must call the tool with `action` and set the rest. */
kg_status kg_env_read_turn(struct kg_env_result *result, struct kg_action *action,
                           struct kg_str *observation, const struct kg_action_tags *tags,
                           const char *inside, const char *remark,
                           const struct kg_env_turn *turn,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
