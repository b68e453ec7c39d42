/* Prompts: the records of a data set as tokens, within the length limit, every exclusion
 * counted. */
#ifndef KG_TASK_PROMPTS_H
#define KG_TASK_PROMPTS_H

#include "base/status.h"
#include "task/task.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_prompts {
    const struct kg_dataset *data; /* borrowed */
    struct kg_ids *ids;            /* (n) owned */
    int64_t *record;               /* (n) owned: row of data that prompt i is */
    size_t n;
    int64_t dropped_too_long;
    size_t longest; /* tokens, of those kept */
};

struct kg_prompts_opts {
    size_t max_tokens;
    bool drop_overlong; /* else an over-long prompt is an error that names its line */
    bool add_special;
    size_t limit; /* use the first so many records; 0: all */
};

/* errors: EINVAL (over-long and not to be dropped; an empty prompt; nothing left), those
 * of the tokenizer with the line */
kg_status kg_prompts_init(struct kg_prompts *p, const struct kg_dataset *data,
                          const struct kg_tokenizer *tok,
                          const struct kg_prompts_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;
/* Moves prompts and records of another file behind those of p and of d, its data set;
 * more and more_data are empty afterwards. */
kg_status kg_prompts_join(struct kg_prompts *p, struct kg_dataset *d,
                          struct kg_prompts *more, struct kg_dataset *more_data,
                          struct kg_err *err) KG_MUST_CHECK;
/* The chat template that renders prompts which are lists of messages: see
 * kg_chat_template_choose. With a template of text, auto means none.
 * errors: EINVAL (both given), those of kg_chat_template_choose */
kg_status kg_prompts_chat(struct kg_chat_template **t, const char *choice,
                          const char *model_dir, const char *template_text,
                          struct kg_err *err) KG_MUST_CHECK;
void kg_prompts_release(struct kg_prompts *p);

#endif
