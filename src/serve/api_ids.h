/* Parts of answers to requests of kind KG_API_GENERATE; api_write.c joins them. */
#ifndef KG_SERVE_API_IDS_H
#define KG_SERVE_API_IDS_H

#include "serve/api.h"

/* Up to where choices follow.   first: as in kg_api_put_begin */
kg_status kg_api_put_ids_begin(struct kg_str *out, const struct kg_api_answer *a,
                               bool first, struct kg_err *err) KG_MUST_CHECK;
/* What stands behind the choices of a whole answer; nothing unless it was asked for.
 * errors: as of a choice */
kg_status kg_api_put_prompt_scores(struct kg_str *out, const struct kg_api_request *r,
                                   struct kg_err *err) KG_MUST_CHECK;
/* finish: as JSON
 * errors: ENONFINITE (a log-prob) */
kg_status kg_api_put_ids_choice(struct kg_str *out, const struct kg_api_answer *a,
                                const struct kg_api_choice *c, const char *finish,
                                struct kg_err *err) KG_MUST_CHECK;

#endif
