/* The text of a growing completion: decides which bytes can be sent already.
 *
 * It holds back the bytes of an incomplete character, and an end that may begin a stop
 * string. Stop strings are searched in text that includes special tokens, which are sent
 * only on request. Without special tokens, the pieces sent add up to kg_rollout_text of
 * the finished completion.
 */
#ifndef KG_SERVE_TEXT_H
#define KG_SERVE_TEXT_H

#include "base/str.h"
#include "rollout/rollout.h"
#include "text/tokenizer.h"

struct kg_serve_text {
    bool special;        /* also send special tokens */
    struct kg_str raw;   /* owned; every token's bytes */
    struct kg_str mask;  /* owned; per byte of raw: 1 if it is to be sent */
    struct kg_str ready; /* owned; to be sent; may end in an incomplete character */
    size_t passed;       /* bytes of raw already passed to ready, or left out */
};
void kg_serve_text_release(struct kg_serve_text *t); /* {0} is empty */

/* Appends the text that can be sent after the newest token. finish: of the trajectory;
 * unless NONE, all remaining text is sent. */
kg_status kg_serve_text_add(struct kg_str *out, struct kg_serve_text *t,
                            const struct kg_tokenizer *tok, int32_t token,
                            const char *const *stops, int n_stops,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_serve_text_end(struct kg_str *out, struct kg_serve_text *t,
                            const char *const *stops, int n_stops, enum kg_finish finish,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
