/* What a model is asked: from the text or the messages of a record to the text of its
 * prompt, and to tokens. Training, supervised training, evaluation, generation and the
 * server all go through here, so that what is asked under the same settings is the same.
 *
 *   a question (text)   goes into template_text. With user_turn it then is the user's
 *                       turn of a conversation, else it is the prompt as it stands.
 *   a conversation      gets `system` in front and is rendered by the chat template, up
 *                       to where the assistant speaks; `opening` follows where the
 *                       template did not write it. Of a single message the content is a
 *                       question where template_text asks for one, or where there is no
 *                       chat template.
 *
 * A setting that a prompt cannot follow is an error: a chat template that was named and a
 * prompt that is text, a system prompt without a conversation, two of them.
 *
 * Special tokens: text gets what the tokenizer's post-processor adds (BOS); what a chat
 * template rendered has them in its text and gets none. KG_SPECIAL_ADD and
 * KG_SPECIAL_NONE say otherwise for both.
 */
#ifndef KG_TEXT_PROMPT_H
#define KG_TEXT_PROMPT_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"
#include "text/chat_template.h"
#include "text/messages.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>

/* {0}: text as it is. Texts are borrowed. */
struct kg_prompt_opts {
    const char *template_text; /* "{prompt}" is replaced; NULL or "": none */
    bool user_turn;
    const char *system;                  /* NULL or "": none */
    const char *opening;                 /* NULL or "": none */
    const char *date;                    /* YYYY-MM-DD; NULL or "": the clock's */
    const struct kg_chat_template *chat; /* NULL: none; borrowed */
    bool chat_named;    /* chat was asked for by name: it must apply to every prompt */
    const char *prefix; /* in front of keys in messages, "data."; NULL: "" */
};

/* template_text has its place, and user_turn, system, opening and date what they need: of
 * a date that is a chat template which asks for the day.   errors: EINVAL */
kg_status kg_prompt_check(const struct kg_prompt_opts *how,
                          struct kg_err *err) KG_MUST_CHECK;

/* The chat template that a word chooses (kg_chat_template_choose) becomes chat; auto is
 * not looked for where template_text makes every question text.   t: owned by the caller,
 * may be NULL
 * errors: those of kg_chat_template_choose */
kg_status kg_prompt_choose(struct kg_chat_template **t, struct kg_prompt_opts *how,
                           const char *choice, const char *model_dir,
                           struct kg_err *err) KG_MUST_CHECK;

/* A question, or a conversation. */
struct kg_prompt_source {
    const char *text; /* NULL: messages */
    size_t n;
    const struct kg_json *messages; /* an array */
    const struct kg_json *tools;    /* of a conversation, or NULL */
};
/* Append the prompt.   *rendered: by a chat template
 * errors: EINVAL, EUNSUPPORTED (a setting that cannot apply), EFORMAT (a NUL in it),
 * those of kg_conversation_render. On failure out may have more than before. */
kg_status kg_prompt_put(struct kg_str *out, bool *rendered,
                        const struct kg_prompt_source *from,
                        const struct kg_prompt_opts *how,
                        struct kg_err *err) KG_MUST_CHECK;
/* Append opening where out does not end in it.   opening: NULL or "" for none */
kg_status kg_prompt_put_opening(struct kg_str *out, const char *opening,
                                struct kg_err *err) KG_MUST_CHECK;
/* Append a conversation behind the system prompt, without `opening`.
 * errors: EINVAL, EUNSUPPORTED, those of kg_conversation_render */
kg_status kg_prompt_put_turns(struct kg_str *out, const struct kg_conversation *talk,
                              const struct kg_prompt_opts *how,
                              struct kg_err *err) KG_MUST_CHECK;

/* ---- tokens ---- */

enum kg_special { KG_SPECIAL_AUTO, KG_SPECIAL_ADD, KG_SPECIAL_NONE };
/* Values of an option, and what one of them says. */
#define KG_SPECIAL_CHOICES "auto|true|false"
enum kg_special kg_special_named(const char *name);
/* Whether a prompt gets the tokens of the post-processor. */
bool kg_special_adds(enum kg_special special, bool rendered);

/* Append the tokens of a prompt.   errors: those of kg_tokenizer_encode */
kg_status kg_prompt_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                           const char *text, size_t n, bool rendered,
                           enum kg_special special, struct kg_err *err) KG_MUST_CHECK;
/* Append what a prompt's tokens spell, special ones visible, with a note of what was
 * added to its text:
 *     24 tokens, <|begin_of_text|> added
 *     | <|begin_of_text|>What is
 *     | 1+1?
 * Of a text of more than max_bytes the middle is left out.   indent: before each line
 * but the first */
kg_status kg_prompt_show(struct kg_str *out, const struct kg_tokenizer *tok,
                         const struct kg_ids *ids, bool rendered, enum kg_special special,
                         const char *indent, size_t max_bytes,
                         struct kg_err *err) KG_MUST_CHECK;

/* What tokens spell, as lines: the second part of kg_prompt_show. */
kg_status kg_prompt_put_lines(struct kg_str *out, const struct kg_tokenizer *tok,
                              const int32_t *ids, size_t n, const char *indent,
                              size_t max_bytes, struct kg_err *err) KG_MUST_CHECK;

#endif
