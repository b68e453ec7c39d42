/* The calculator: <calculator> expression </calculator> is answered by its exact value
 * between <result> tags.
 *
 * If an expression cannot be evaluated, the observation gives the reason and the call
 * counts as failed. The model should learn from it, so it is not an error of the run. The
 * result is immediate, so no episode waits.
 */
#include "base/mem.h"
#include "math/math.h"
#include "task/env_internal.h"

static const struct kg_action_tags TAGS = {
    .tool = {"<calculator>", "</calculator>"},
    .answer = {"<answer>", "</answer>"},
};

struct calculator {
    int64_t calls;
    int64_t failed;
};

kg_status kg_env_calculator_open(void **state, const struct kg_env_opts *opts,
                                 struct kg_err *err)
{
    (void)opts;
    return kg_mem_new(state, 1, sizeof(struct calculator), "calculator", err);
}

void kg_env_calculator_close(void *state) { kg_mem_free(state); }

static kg_status work_out(struct kg_env_result *result, struct kg_str *observation,
                          const struct kg_action *action, struct kg_err *err)
{
    bool found;

    KG_TRY(kg_str_puts(observation, "\n\n<result>", err));
    KG_TRY(kg_math_calculate(observation, &found, action->text, action->n, err));
    KG_TRY(kg_str_puts(observation, "</result>\n\n", err));
    result->failed = !found;
    return KG_OK;
}

kg_status kg_env_calculator_step(struct kg_env_result *result, struct kg_str *observation,
                                 void *state, const struct kg_env_turn *turn,
                                 struct kg_err *err)
{
    struct calculator *c = state;
    struct kg_action action;

    KG_TRY(kg_env_read_turn(result, &action, observation, &TAGS, "expression", NULL, turn,
                            err));
    if (!result->called)
        return KG_OK;
    result->next = KG_ENV_OBSERVE;
    KG_TRY(work_out(result, observation, &action, err));
    c->calls++;
    c->failed += result->failed;
    return KG_OK;
}

void kg_env_calculator_stats(struct kg_env_stats *out, const void *state)
{
    const struct calculator *c = state;

    *out = (struct kg_env_stats){.calls = c->calls, .failed = c->failed};
}
