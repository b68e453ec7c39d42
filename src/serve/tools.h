/* Tool calls: what requests say of earlier ones, and those that an answer makes.
 *
 * One form is read out of answers, that of Hermes and Qwen:
 *
 *   <tool_call>
 *   {"name": "...", "arguments": {...}}
 *   </tool_call>
 *
 * an object of these two keys and no other, once or several times, with white space alone
 * between and behind. An answer that ends so makes these calls, and what stands before
 * them is its content; any other answer is text and stays text.
 */
#ifndef KG_SERVE_TOOLS_H
#define KG_SERVE_TOOLS_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <stdbool.h>

struct kg_tool_calls {
    struct kg_json_doc *calls; /* (n) owned */
    size_t n, capacity;
    size_t content_n; /* bytes of the text before them, white space at the end left out;
                       * without calls all of it */
};
void kg_tool_calls_release(struct kg_tool_calls *c); /* {0} is empty */

/* The calls that the text of a finished answer ends with.   errors: ENOMEM */
kg_status kg_tool_calls_read(struct kg_tool_calls *c, const char *text, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
const char *kg_tool_call_name(const struct kg_tool_calls *c, size_t i);
const struct kg_json *kg_tool_call_arguments(const struct kg_tool_calls *c, size_t i);

/* Bytes at the front of a growing answer that are content whatever follows. */
kg_status kg_tool_calls_settled(size_t *settled, const char *text, size_t n,
                                struct kg_err *err) KG_MUST_CHECK;

/* Whether the template writes calls in this form and the tags are text to the tokenizer:
 * then the model that it was made for means calls by them. Found out by rendering one.
 * errors: ENOMEM */
kg_status kg_tool_calls_known(bool *known, const struct kg_chat_template *chat,
                              const struct kg_tokenizer *tok,
                              struct kg_err *err) KG_MUST_CHECK;

/* Append the tool_calls of a message as templates want them: as they are, but arguments
 * that are the text of an object become the object.
 * errors: EINVAL (arguments of another kind), ENOMEM */
kg_status kg_tool_calls_put(struct kg_str *out, const struct kg_json *calls,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
