/* Builds prompts: converts the text or messages of a record to a prompt's text and its
 * tokens. SFT, RL, evaluation, generation and the server all use this file, so the same
 * settings give the same prompt.
 *
 *   a question      (text) is put into template_text. With user_turn, the result becomes
 *                   a user message of a conversation; else it is the prompt.
 *   a conversation  gets `system` in front and is rendered by the chat template, up to
 *                   the start of the assistant's turn; `opening` follows unless the
 *                   template wrote it. The content of a single message is used as a
 *                   question if template_text is set or there is no chat template.
 *
 * A setting that cannot apply to a prompt is an error: a chat template was named but the
 * prompt is text; a system prompt without a conversation; two system prompts.
 *
 * Special tokens: the tokenizer's post-processor adds its tokens (BOS) to text, but none
 * to the output of a chat template, which contains its special tokens. KG_SPECIAL_ADD and
 * KG_SPECIAL_NONE override both.
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

/* {0}: text unchanged. Texts are borrowed. */
struct kg_prompt_opts {
    const char *template_text; /* "{prompt}" is replaced; NULL or "": none */
    bool user_turn;
    const char *system;                  /* NULL or "": none */
    const char *opening;                 /* NULL or "": none */
    const char *date;                    /* YYYY-MM-DD; NULL or "": from the clock */
    const struct kg_chat_template *chat; /* NULL: none; borrowed */
    bool chat_named;    /* chat was named by the user: it must apply to every prompt */
    const char *prefix; /* put before keys in errors, such as "data."; NULL: "" */
};

/* Checks that template_text contains "{prompt}", that user_turn, system and opening can
 * apply, and that the chat template uses the date if one is given.   errors: EINVAL */
kg_status kg_prompt_check(const struct kg_prompt_opts *how,
                          struct kg_err *err) KG_MUST_CHECK;

/* Sets how->chat and chat_named by `choice` (kg_chat_template_choose). auto means none if
 * template_text is set without user_turn. *t: what the caller must close; NULL if there
 * is no template
 * errors: those of kg_chat_template_choose */
kg_status kg_prompt_choose(struct kg_chat_template **t, struct kg_prompt_opts *how,
                           const char *choice, const char *model_dir,
                           struct kg_err *err) KG_MUST_CHECK;

/* A question (text), or a conversation (messages). */
struct kg_prompt_source {
    const char *text; /* (n) bytes; NULL: messages is used */
    size_t n;
    const struct kg_json *messages; /* an array */
    const struct kg_json *tools;    /* tools of a conversation, or NULL */
};
/* Appends the prompt. *rendered <- whether a chat template rendered it
 * errors: EINVAL, EUNSUPPORTED (a setting that cannot apply), EFORMAT (the prompt has a
 * NUL), those of kg_conversation_render. On failure out may have grown. */
kg_status kg_prompt_put(struct kg_str *out, bool *rendered,
                        const struct kg_prompt_source *from,
                        const struct kg_prompt_opts *how,
                        struct kg_err *err) KG_MUST_CHECK;
/* Appends opening unless out already ends with it.   opening: NULL or "" for none */
kg_status kg_prompt_put_opening(struct kg_str *out, const char *opening,
                                struct kg_err *err) KG_MUST_CHECK;
/* Appends a conversation with how->system in front, without `opening`.
 * errors: EINVAL, EUNSUPPORTED, those of kg_conversation_render */
kg_status kg_prompt_put_turns(struct kg_str *out, const struct kg_conversation *talk,
                              const struct kg_prompt_opts *how,
                              struct kg_err *err) KG_MUST_CHECK;

/* ---- tokens ---- */

enum kg_special { KG_SPECIAL_AUTO, KG_SPECIAL_ADD, KG_SPECIAL_NONE };
/* The option's values, and the enum value of each. */
#define KG_SPECIAL_CHOICES "auto|true|false"
enum kg_special kg_special_named(const char *name);
/* Whether a prompt gets the post-processor's tokens.   rendered: by a chat template */
bool kg_special_adds(enum kg_special special, bool rendered);

/* Appends the tokens of a prompt.   errors: those of kg_tokenizer_encode */
kg_status kg_prompt_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                           const char *text, size_t n, bool rendered,
                           enum kg_special special, struct kg_err *err) KG_MUST_CHECK;
/* Appends the text of a prompt's tokens, special ones visible, after a line about them:
 *     24 tokens, text, <|begin_of_text|> added
 *     | <|begin_of_text|>What is
 *     | 1+1?
 * If the text exceeds max_bytes, its middle is replaced by a note of its size. indent:
 * put before each line but the first */
kg_status kg_prompt_show(struct kg_str *out, const struct kg_tokenizer *tok,
                         const struct kg_ids *ids, bool rendered, enum kg_special special,
                         const char *indent, size_t max_bytes,
                         struct kg_err *err) KG_MUST_CHECK;

/* Appends the text of tokens as lines, as kg_prompt_show does after its first line. */
kg_status kg_prompt_put_lines(struct kg_str *out, const struct kg_tokenizer *tok,
                              const int32_t *ids, size_t n, const char *indent,
                              size_t max_bytes, struct kg_err *err) KG_MUST_CHECK;

#endif
