/* The prompts of a data set as tokens, within the length limit; every exclusion is
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
    int64_t *record;               /* (n) owned: index of prompt i's record in data */
    size_t n;
    int64_t dropped_too_long;
    enum kg_special special; /* copied from the options */
    size_t longest;          /* tokens of the longest prompt kept */
};

struct kg_prompts_opts {
    size_t max_tokens;
    bool drop_overlong; /* false: a prompt that is too long is an error naming its line */
    enum kg_special special;
    size_t limit; /* number of records to use; 0: all */
};

/* errors: EINVAL (a prompt too long, an empty prompt, no prompts left), those of the
 * tokenizer with the line */
kg_status kg_prompts_init(struct kg_prompts *p, const struct kg_dataset *data,
                          const struct kg_tokenizer *tok,
                          const struct kg_prompts_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;
/* Appends the prompts and records of another file to p and its data set d; more and
 * more_data are empty afterwards. */
kg_status kg_prompts_join(struct kg_prompts *p, struct kg_dataset *d,
                          struct kg_prompts *more, struct kg_dataset *more_data,
                          struct kg_err *err) KG_MUST_CHECK;
/* Appends prompt i as text: see kg_prompt_show. */
kg_status kg_prompts_show(struct kg_str *out, const struct kg_prompts *p, size_t i,
                          const struct kg_tokenizer *tok, const char *indent,
                          size_t max_bytes, struct kg_err *err) KG_MUST_CHECK;
void kg_prompts_release(struct kg_prompts *p);

#endif
