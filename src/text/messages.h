/* Conversations: validates a list of messages and renders it by a chat template.
 *
 * Templates silently ignore inputs that they do not know: a misspelt role, content in
 * parts where text is expected, a system prompt, tools. Then the prompt lacks a part of
 * the conversation. So training, evaluation, generation and the server render it here,
 * where that is an error.
 */
#ifndef KG_TEXT_MESSAGES_H
#define KG_TEXT_MESSAGES_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"
#include "text/chat_template.h"

#include <stdbool.h>
#include <stddef.h>

/* Appends the value of a message's tool_calls. */
typedef kg_status kg_message_calls(struct kg_str *out, const struct kg_json *calls,
                                   struct kg_err *err);

/* Appends a list of messages as JSON. Each has a role (text) and content: text, or parts
 * of type text, which are joined with line breaks. Content may be null or absent if there
 * are tool_calls or reasoning (kg_chat_thought). Other keys are kept.
 * n: number of messages used; put_calls: writes tool_calls, of which empty lists are
 * dropped; NULL: tool_calls are kept unchanged
 * errors: EFORMAT (not such a list; "message I: ...", I from 0), those of put_calls */
kg_status kg_messages_put(struct kg_str *out, const struct kg_json *messages, size_t n,
                          kg_message_calls *put_calls, struct kg_err *err) KG_MUST_CHECK;

/* {0}: no messages. All pointers are borrowed. */
struct kg_conversation {
    const struct kg_json *messages; /* an array */
    size_t n;                       /* number of messages used */
    const char *system;             /* system prompt put first; NULL or "": none */
    const struct kg_json *tools;    /* an array, or its JSON text; NULL, null, "": none */
    const struct kg_json *variables; /* an object of more variables, or NULL */
    kg_message_calls *put_calls;     /* as in kg_messages_put */
    int64_t now_s;                   /* as in struct kg_chat_opts */
    bool generate;                   /* ends with the start of an assistant's turn */
    /* the conversation is a prefix of one that was checked: skips the check */
    bool trusted;
};

/* Appends the rendering. If the template ignores the role developer, messages with this
 * role become system messages. If a message's text, all tool_calls or the tools do not
 * change the rendering, the template ignores them, which is an error.
 * errors: those of kg_messages_put and kg_chat_template_render, EFORMAT (the template
 * ignores a message or tool_calls), EUNSUPPORTED (it ignores the tools). On failure out
 * may have grown. */
kg_status kg_conversation_render(struct kg_str *out, const struct kg_conversation *given,
                                 const struct kg_chat_template *chat,
                                 struct kg_err *err) KG_MUST_CHECK;

#endif
