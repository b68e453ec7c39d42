/* The text of an answer while it grows: what may be told already.
 *
 * Held back are bytes of a character that is not complete, and an end that may turn out
 * to be the beginning of a stop string. Special tokens are part of what stop strings are
 * looked for in, and told only where that is asked for; without them all that was told
 * is, put together, what kg_rollout_text gives for the finished answer.
 */
#ifndef KG_SERVE_TEXT_H
#define KG_SERVE_TEXT_H

#include "base/str.h"
#include "rollout/rollout.h"
#include "text/tokenizer.h"

struct kg_serve_text {
    bool special;        /* tell special tokens, too */
    struct kg_str raw;   /* owned; every token's bytes */
    struct kg_str mask;  /* owned; one byte for each of raw: 1 when it is to be told */
    struct kg_str ready; /* owned; to be told; an incomplete character may stay */
    size_t passed;       /* bytes of raw that are in ready, or will never be */
};
void kg_serve_text_release(struct kg_serve_text *t); /* {0} is empty */

/* Append the text that the newest token allows to tell.   finish: of the trajectory;
 * unless it is NONE, all that is left is told. */
kg_status kg_serve_text_add(struct kg_str *out, struct kg_serve_text *t,
                            const struct kg_tokenizer *tok, int32_t token,
                            const char *const *stops, int n_stops,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_serve_text_end(struct kg_str *out, struct kg_serve_text *t,
                            const char *const *stops, int n_stops, enum kg_finish finish,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
