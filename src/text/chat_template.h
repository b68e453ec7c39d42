/* Chat templates: the Jinja in which HuggingFace models say how messages become a prompt.
 *
 * An interpreter with the environment of `apply_chat_template`: trim_blocks,
 * lstrip_blocks, loop controls, raise_exception, strftime_now, a tojson that neither
 * escapes nor sorts, and an immutable sandbox (a template changes nothing that it was
 * given). A template reaches its variables and nothing else: no file, no attribute of the
 * host. Every rendering is bounded in steps, depth, memory and output.
 *
 * It is not all of Jinja: include, import, extends, block and autoescape are refused.
 */
#ifndef KG_TEXT_CHAT_TEMPLATE_H
#define KG_TEXT_CHAT_TEMPLATE_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_CHAT_TEMPLATE_MAX_BYTES = 4 << 20 };

/* Read-only once it is made: several threads may render it at the same time. */
struct kg_chat_template; /* opaque */

/* {0} is the default of each. */
struct kg_chat_limits {
    int64_t steps;       /* 50 million: expressions, passes of loops, bytes over 64 */
    size_t memory_bytes; /* 256 MiB */
    size_t output_bytes; /* 64 MiB */
    int depth;           /* 200: of expressions, blocks, macros and values, together */
};

/* The text of a template. `where` stands in front of every message.
 * errors: EFORMAT with line and column, ENOMEM */
kg_status kg_chat_template_parse(struct kg_chat_template **t, const char *text, size_t n,
                                 const char *where, struct kg_err *err) KG_MUST_CHECK;

/* A file, or a model's folder, as transformers reads it: its chat_template.jinja and the
 * files of additional_chat_templates, which have names; if there are none `chat_template`
 * of its tokenizer_config.json: text, or named ones. `name` is taken; without a name
 * `default`, and where variables have `tools` the one named tool_use, if there is one.
 * From a folder come the special tokens too (bos_token, image_token, ...), as defaults of
 * the variables.
 * errors: NOTFOUND (nothing there; none of that name: those there are listed), EFORMAT */
kg_status kg_chat_template_open(struct kg_chat_template **t, const char *path,
                                const char *name, struct kg_err *err) KG_MUST_CHECK;
/* Append the names of a folder's templates, a line break between two.
 * errors: EFORMAT, EIO */
kg_status kg_chat_template_names(struct kg_str *names, const char *dir,
                                 struct kg_err *err) KG_MUST_CHECK;
/* NULL is allowed. */
void kg_chat_template_close(struct kg_chat_template *t);

struct kg_chat_opts {
    struct kg_chat_limits limits;
    int64_t now_s; /* what strftime_now reads: seconds since 1970 as in UTC; 0: the clock,
                    * which is the local one, as with transformers */
};

/* The noon of a day, for now_s.   text: YYYY-MM-DD; NULL or "": 0, the clock
 * errors: EINVAL */
kg_status kg_chat_date(int64_t *now_s, const char *text,
                       struct kg_err *err) KG_MUST_CHECK;
/* The day of the clock as kg_chat_date reads it. */
struct kg_chat_day {
    char text[16];
};
struct kg_chat_day kg_chat_today(void);
/* Whether the template, or the one for tools, names strftime_now: what it renders may
 * then change from day to day. */
bool kg_chat_template_asks_date(const struct kg_chat_template *t);

/* What an assistant's message says it thought: reasoning_content, else thinking, else
 * reasoning, whichever is there and not null. NULL: nothing. */
const struct kg_json *kg_chat_thought(const struct kg_json *message);

/* Append the rendering. variables: an object, every key a variable of the template. As in
 * apply_chat_template, `tools` and `documents` are none and add_generation_prompt is
 * false when they are not given; keys of `messages` that are null are left out, and the
 * thought of a message is its reasoning_content and its thinking. On failure out is as
 * it was.
 * errors: EFORMAT "WHERE line L column C: ..." (raise_exception too, with its message;
 * a limit that was reached), ENOMEM */
kg_status kg_chat_template_render(struct kg_str *out, const struct kg_chat_template *t,
                                  const struct kg_json *variables,
                                  const struct kg_chat_opts *opts,
                                  struct kg_err *err) KG_MUST_CHECK;

/* The template that a word chooses: none (*t NULL), auto (the model folder's, *t NULL
 * when it has none at all), or the path of a file or folder. One from a file has the
 * special tokens of the model's folder.   model_dir: NULL where there is none
 * errors: those of kg_chat_template_open */
kg_status kg_chat_template_choose(struct kg_chat_template **t, const char *choice,
                                  const char *model_dir,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Limits so small that a template which turns out to be hostile costs a moment, and a day
 * that is always the same. */
extern const struct kg_chat_opts kg_chat_trial;

/* Render one short message of a user with kg_chat_trial: what fails here is known before
 * a client asks.   errors: those of kg_chat_template_render, EFORMAT (it
 * leaves the message out) */
kg_status kg_chat_template_try(const struct kg_chat_template *t,
                               struct kg_err *err) KG_MUST_CHECK;

#endif
