/* Conversations: what a list of messages has to be, and its rendering by a chat template.
 *
 * Templates pass over what they do not know: a role with a typing error, content in parts
 * where text is expected, a system prompt, tools. The model then is asked something else
 * than what the list says, and nobody notices. So the list is checked here, for training,
 * evaluation, generation and the server alike, and what the template left out of its
 * rendering is an error.
 */
#ifndef KG_TEXT_MESSAGES_H
#define KG_TEXT_MESSAGES_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"
#include "text/chat_template.h"

#include <stdbool.h>
#include <stddef.h>

/* Append the value of a message's tool_calls. */
typedef kg_status kg_message_calls(struct kg_str *out, const struct kg_json *calls,
                                   struct kg_err *err);

/* Append a list of messages as JSON, each with a role (text) and content: text, or parts
 * of type text, which become one text with line breaks between; null or absent where
 * there are tool_calls or a thought (kg_chat_thought). Other keys stay.
 * n: the first n of messages; put_calls: NULL to leave tool_calls as they are, else a
 * list without any is left out
 * errors: EFORMAT (not such a list; "message I: ...", from 0), those of put_calls */
kg_status kg_messages_put(struct kg_str *out, const struct kg_json *messages, size_t n,
                          kg_message_calls *put_calls, struct kg_err *err) KG_MUST_CHECK;

/* {0}: no message. All is borrowed. */
struct kg_conversation {
    const struct kg_json *messages; /* an array */
    size_t n;                       /* the first n of messages */
    const char *system;             /* in front of them; NULL or "": nothing */
    const struct kg_json *tools;    /* an array, or its JSON text; NULL, null, "": none */
    const struct kg_json *variables; /* an object of more variables, or NULL */
    kg_message_calls *put_calls;     /* as in kg_messages_put */
    int64_t now_s;                   /* as in struct kg_chat_opts */
    bool generate;                   /* up to where the assistant speaks */
    bool trusted; /* part of one that was rendered before: the rendering is not checked */
};

/* Append the rendering. A developer's message is a system's where the template does not
 * know that role. The text of a message, its tool_calls or the tools that make no
 * difference to the rendering have been left out of it, and are refused.
 * errors: those of kg_messages_put and kg_chat_template_render, EFORMAT (a message that
 * the template leaves out), EUNSUPPORTED (it leaves out the tools). On failure out may
 * have more than before. */
kg_status kg_conversation_render(struct kg_str *out, const struct kg_conversation *given,
                                 const struct kg_chat_template *chat,
                                 struct kg_err *err) KG_MUST_CHECK;

#endif
