/* A run's retriever, for --dry-run: for an index its contents and sizes, for a server the
 * values of search.kind, search.model and search.passages. */
#ifndef KG_TRAIN_PLAN_SEARCH_H
#define KG_TRAIN_PLAN_SEARCH_H

#include "rollout/episode.h"

/* Appends nothing without a retriever.
 * errors: those of kg_index_open and kg_index_ask */
kg_status kg_plan_search(struct kg_str *out, const struct kg_env_opts *o,
                         struct kg_err *err) KG_MUST_CHECK;

/* If the retriever is to share the model's device (search.device), sets how.backend to be
 * and *bytes to its memory there.   errors: EUNSUPPORTED (the guest is not linked), those
 * of kg_index_open and kg_index_device_plan */
kg_status kg_search_beside(struct kg_env_opts *o, uint64_t *bytes,
                           const struct kg_backend *be, struct kg_err *err) KG_MUST_CHECK;

#endif
