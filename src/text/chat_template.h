/* Chat templates: the Jinja with which HuggingFace models format messages as a prompt.
 *
 * An interpreter with the environment of `apply_chat_template`: trim_blocks,
 * lstrip_blocks, loop controls, raise_exception, strftime_now, a tojson that neither
 * escapes nor sorts, and an immutable sandbox (a template cannot change its input). A
 * template can access its variables only: no files, no host attributes. Every rendering
 * is bounded in steps, depth, memory and output.
 *
 * Not supported: include, import, extends, block and autoescape.
 */
#ifndef KG_TEXT_CHAT_TEMPLATE_H
#define KG_TEXT_CHAT_TEMPLATE_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_CHAT_TEMPLATE_MAX_BYTES = 4 << 20 };

/* Read-only after parsing: several threads may render it at the same time. */
struct kg_chat_template; /* opaque */

/* {0} selects each default. */
struct kg_chat_limits {
    int64_t steps;       /* 50 million; one per expression, loop pass, 64 bytes */
    size_t memory_bytes; /* 256 MiB */
    size_t output_bytes; /* 64 MiB */
    int depth;           /* 200: nesting of expressions, blocks, macros and values */
};

/* Parses the text of a template. `where` begins every error message.
 * errors: EFORMAT with line and column, ENOMEM */
kg_status kg_chat_template_parse(struct kg_chat_template **t, const char *text, size_t n,
                                 const char *where, struct kg_err *err) KG_MUST_CHECK;

/* Opens a template file, or the templates of a model's folder as transformers does:
 * chat_template.jinja and the named files of additional_chat_templates; without these,
 * `chat_template` of tokenizer_config.json, one text or several by name. `name` selects
 * one. If it is NULL, `default` is used, or tool_use if there is one and a rendering has
 * `tools`. A folder's special tokens (bos_token, image_token, ...) become defaults of the
 * variables.
 * errors: ENOTFOUND (no template; none of that name: lists the names), EINVAL (name with
 * a slash), EFORMAT */
kg_status kg_chat_template_open(struct kg_chat_template **t, const char *path,
                                const char *name, struct kg_err *err) KG_MUST_CHECK;
/* Appends the names of a folder's templates, one per line.   errors: EFORMAT, EIO */
kg_status kg_chat_template_names(struct kg_str *names, const char *dir,
                                 struct kg_err *err) KG_MUST_CHECK;
/* NULL is allowed. */
void kg_chat_template_close(struct kg_chat_template *t);

struct kg_chat_opts {
    struct kg_chat_limits limits;
    /* time for strftime_now, in seconds since 1970, formatted as UTC; 0: the local clock,
     * as in transformers */
    int64_t now_s;
};

/* *now_s <- noon of a day, for kg_chat_opts. text: YYYY-MM-DD; NULL or "" gives 0
 * errors: EINVAL */
kg_status kg_chat_date(int64_t *now_s, const char *text,
                       struct kg_err *err) KG_MUST_CHECK;
/* Today in the format of kg_chat_date. */
struct kg_chat_day {
    char text[16];
};
struct kg_chat_day kg_chat_today(void);
/* Whether the template, or its tool_use variant, uses strftime_now, so that its output
 * may change from day to day. */
bool kg_chat_template_asks_date(const struct kg_chat_template *t);

/* The reasoning of an assistant's message: the first key of reasoning_content, thinking
 * and reasoning that is not null. NULL: none. */
const struct kg_json *kg_chat_thought(const struct kg_json *message);

/* Appends the rendering. variables: an object whose keys are the template's variables. As
 * in apply_chat_template, `tools` and `documents` default to none and
 * add_generation_prompt to false. Null keys of `messages` are dropped; a message's
 * reasoning is given as both reasoning_content and thinking. On failure out is unchanged.
 * errors: EFORMAT "WHERE line L column C: ..." (also raise_exception's message, and a
 * limit reached), ENOMEM */
kg_status kg_chat_template_render(struct kg_str *out, const struct kg_chat_template *t,
                                  const struct kg_json *variables,
                                  const struct kg_chat_opts *opts,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Opens the template that `choice` names: none (*t NULL), auto (that of the model's
 * folder; *t NULL if it has none), or the path of a file or folder. A template from a
 * file gets the special tokens of the model's folder. model_dir: NULL if there is none
 * errors: those of kg_chat_template_open */
kg_status kg_chat_template_choose(struct kg_chat_template **t, const char *choice,
                                  const char *model_dir,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Options of a trial rendering: a fixed day, and small limits, so that a hostile template
 * costs little time. */
extern const struct kg_chat_opts kg_chat_trial;

/* Renders one short user message with kg_chat_trial, so that a broken template fails at
 * start, not at the first request.   errors: those of kg_chat_template_render, EFORMAT
 * (the message is missing from the output) */
kg_status kg_chat_template_try(const struct kg_chat_template *t,
                               struct kg_err *err) KG_MUST_CHECK;

#endif
