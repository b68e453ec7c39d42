/* Prompts: the records of a data set as tokens, within the length limit, every exclusion
 * counted. */
#ifndef KG_TASK_PROMPTS_H
#define KG_TASK_PROMPTS_H

#include "base/status.h"
#include "task/task.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_prompts {
    const struct kg_dataset *data; /* borrowed */
    struct kg_ids *ids;            /* (n) owned */
    int64_t *record;               /* (n) owned: row of data that prompt i is */
    size_t n;
    int64_t dropped_too_long;
    enum kg_special special; /* of opts */
    size_t longest;          /* tokens, of those kept */
};

struct kg_prompts_opts {
    size_t max_tokens;
    bool drop_overlong; /* else an over-long prompt is an error that names its line */
    enum kg_special special;
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
/* Append prompt i, decoded: see kg_prompt_show. */
kg_status kg_prompts_show(struct kg_str *out, const struct kg_prompts *p, size_t i,
                          const struct kg_tokenizer *tok, const char *indent,
                          size_t max_bytes, struct kg_err *err) KG_MUST_CHECK;
void kg_prompts_release(struct kg_prompts *p);

#endif
