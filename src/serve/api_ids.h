/* Parts of responses of kind KG_API_GENERATE, and the log-prob entry, which responses of
 * chat have too. api_write.c puts responses together. */
#ifndef KG_SERVE_API_IDS_H
#define KG_SERVE_API_IDS_H

#include "serve/api.h"

/* Appends one entry of a chat response's log-prob list, {"token", "logprob", "bytes"},
 * without the closing brace. bytes: scratch */
kg_status kg_api_put_entry(struct kg_str *out, const struct kg_api_answer *a,
                           struct kg_str *bytes, int32_t id, float logp,
                           struct kg_err *err);
/* The part before the choices. first: as in kg_api_put_begin */
kg_status kg_api_put_ids_begin(struct kg_str *out, const struct kg_api_answer *a,
                               bool first, struct kg_err *err) KG_MUST_CHECK;
/* The prompt's log-probs, after the choices of a complete response; nothing unless the
 * request asks for them.   errors: ENONFINITE (a log-prob) */
kg_status kg_api_put_prompt_scores(struct kg_str *out, const struct kg_api_request *r,
                                   struct kg_err *err) KG_MUST_CHECK;
/* Appends "routed_experts", the experts of the tokens of a complete response; nothing if
 * the model does not return them (kg_api_model.routed). */
kg_status kg_api_put_experts(struct kg_str *out, const struct kg_api_answer *a,
                             const struct kg_api_choice *c,
                             struct kg_err *err) KG_MUST_CHECK;
/* finish: as JSON.
 * errors: ENONFINITE (a log-prob) */
kg_status kg_api_put_ids_choice(struct kg_str *out, const struct kg_api_answer *a,
                                const struct kg_api_choice *c, const char *finish,
                                struct kg_err *err) KG_MUST_CHECK;

#endif
