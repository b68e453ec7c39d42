/* What a run's retriever needs, for --dry-run: of an index what it has, of a server what
 * search.kind, search.model and search.passages say that it has. */
#ifndef KG_TRAIN_PLAN_SEARCH_H
#define KG_TRAIN_PLAN_SEARCH_H

#include "rollout/episode.h"

/* Nothing where no retriever is asked.
 * errors: those of kg_index_open and kg_index_ask */
kg_status kg_plan_search(struct kg_str *out, const struct kg_env_opts *o,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
