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
 * them is its content; any other answer is text and stays text. What begins like a call
 * and turns out to be none is content up to its closing tag.
 */
#ifndef KG_SERVE_TOOLS_H
#define KG_SERVE_TOOLS_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <stdbool.h>

/* A reader of an answer that grows: each byte is looked at once, a call parsed once. */
struct kg_tool_calls {
    struct kg_json_doc *calls; /* (n) owned; they may yet turn out to be content */
    size_t n, capacity;
    size_t content_n; /* bytes at the front of the text that are content whatever follows;
                       * behind them white space, calls, and what may become one */
    size_t at;        /* bytes that are told apart: content, calls, white space */
    size_t seen;      /* bytes of the call that begins at `at` that need no second look */
    bool opened;      /* its brace is among them */
};
void kg_tool_calls_release(struct kg_tool_calls *c); /* {0} is empty */

/* Read on: text is that of the last time with more behind it.   errors: ENOMEM */
kg_status kg_tool_calls_read(struct kg_tool_calls *c, const char *text, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
/* Read on to the end of a finished answer: calls are those that it ends with, content_n
 * the bytes before them, white space at their end left out; without calls all bytes.
 * errors: ENOMEM */
kg_status kg_tool_calls_end(struct kg_tool_calls *c, const char *text, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;
/* The name that an object has, or NULL: a string that is not empty and has no NUL. */
const char *kg_tool_name(const struct kg_json *object);
const char *kg_tool_call_name(const struct kg_tool_calls *c, size_t i);
const struct kg_json *kg_tool_call_arguments(const struct kg_tool_calls *c, size_t i);

/* Whether the template writes calls in this form and the tags are text to the tokenizer:
 * then the model that it was made for means calls by them. Found out by rendering one.
 * errors: ENOMEM */
kg_status kg_tool_calls_known(bool *known, const struct kg_chat_template *chat,
                              const struct kg_tokenizer *tok,
                              struct kg_err *err) KG_MUST_CHECK;

/* Append the tool_calls of a message as templates want them: as they are, but arguments
 * that are the text of an object become the object, and {} if they are absent, null or
 * text that is no JSON (empty, cut off).
 * errors: EINVAL (arguments that are JSON of another kind), ENOMEM */
kg_status kg_tool_calls_put(struct kg_str *out, const struct kg_json *calls,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
