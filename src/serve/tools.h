/* Tool calls: those of earlier messages in a request, and those that a completion makes.
 *
 * One format is parsed, that of Hermes and Qwen:
 *   <tool_call>
 *   {"name": "...", "arguments": {...}}
 *   </tool_call>
 * A call is an object with exactly these keys. If a completion ends with one or several
 * calls, separated and followed by white space only, it makes these calls, and the text
 * before them is its content. Any other completion is just text. Text that begins like a
 * call but is not one is content up to its closing tag.
 */
#ifndef KG_SERVE_TOOLS_H
#define KG_SERVE_TOOLS_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <stdbool.h>

/* An incremental reader: each byte is read once, each call parsed once. */
struct kg_tool_calls {
    struct kg_json_doc *calls; /* (n) owned; dropped if words follow: then content */
    size_t n, capacity;
    /* number of leading bytes that are certainly content; after them come only white
     * space, calls and possible calls */
    size_t content_n;
    size_t at;   /* number of bytes classified as content, calls or white space */
    size_t seen; /* bytes of the possible call at `at` that were already read */
    bool opened; /* the call's brace was read */
};
void kg_tool_calls_release(struct kg_tool_calls *c); /* {0} is empty */

/* Reads on. text (n): all text so far, the previous read's included.   errors: ENOMEM */
kg_status kg_tool_calls_read(struct kg_tool_calls *c, const char *text, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
/* Reads to the end of a finished completion: calls are those at its end, content_n the
 * bytes before them without trailing white space; without calls, all bytes.
 * errors: ENOMEM */
kg_status kg_tool_calls_end(struct kg_tool_calls *c, const char *text, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;
/* The name in an object if it is a string that is not empty and has no NUL; else NULL. */
const char *kg_tool_name(const struct kg_json *object);
const char *kg_tool_call_name(const struct kg_tool_calls *c, size_t i);
const struct kg_json *kg_tool_call_arguments(const struct kg_tool_calls *c, size_t i);

/* *known out: whether the model uses this format, which it does if the template renders a
 * call in this format and the tokenizer has no special tokens for the tags.
 * errors: ENOMEM */
kg_status kg_tool_calls_known(bool *known, const struct kg_chat_template *chat,
                              const struct kg_tokenizer *tok,
                              struct kg_err *err) KG_MUST_CHECK;

/* Appends the tool_calls of a message as templates need them: arguments that are the text
 * of an object become that object; absent, null or malformed arguments (empty, truncated)
 * become {}.
 * errors: EINVAL (calls is no list of calls; arguments are other JSON), ENOMEM */
kg_status kg_tool_calls_put(struct kg_str *out, const struct kg_json *calls,
                            struct kg_err *err) KG_MUST_CHECK;

#endif
