/* An environment for the digit model, whose observations are digits.
 *
 * Included by *_test.c only.
 */
#ifndef KG_EVAL_FIGURES_TESTING_H
#define KG_EVAL_FIGURES_TESTING_H

#include "eval/eval_testing.h"

/* The digit model writes digits and no tags, so all its turns are illegal. Its tokenizer
 * cannot encode the usual remark about that, so this environment's remark is made of
 * digits. */
static inline kg_status figures_open(void **state, const struct kg_env_opts *opts,
                                     struct kg_err *e)
{
    (void)opts;
    (void)e;
    *state = &model;
    return KG_OK;
}

static inline void figures_close(void *state) { (void)state; }

static inline kg_status figures_step(struct kg_env_result *result,
                                     struct kg_str *observation, void *state,
                                     const struct kg_env_turn *turn, struct kg_err *e)
{
    (void)state;
    *result = (struct kg_env_result){.next = turn->last ? KG_ENV_DONE : KG_ENV_OBSERVE,
                                     .valid = true,
                                     .called = !turn->last,
                                     .answered = turn->last};
    return turn->last ? KG_OK : kg_str_puts(observation, "7,7:", e);
}

static const struct kg_env_row figures = {.name = "figures",
                                          .help = "figures back",
                                          .open = figures_open,
                                          .close = figures_close,
                                          .step = figures_step};

#endif
