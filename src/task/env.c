/* The table of environments, and what they share: reading a turn, and the remark on a
 * turn without a legal action. The remark explains what is expected; the model reads it
 * like any observation, and the episode continues. So an environment sees only its own
 * actions. */
#include "task/env.h"

#include "task/env_internal.h"

#include <stdio.h>
#include <string.h>

static const char *const search_stops[] = {"</search>", "</answer>"};
static const char *const calculator_stops[] = {"</calculator>", "</answer>"};

static const struct kg_env_row table[] = {
    {
        .name = "search",
        .help = "a search agent: <search> queries a retriever, <answer> ends the episode",
        .stops = search_stops,
        .n_stops = 2,
        .open = kg_env_search_open,
        .close = kg_env_search_close,
        .step = kg_env_search_step,
        .poll = kg_env_search_poll,
        .stats = kg_env_search_stats,
    },
    {
        .name = "calculator",
        .help = "exact arithmetic: <calculator> evaluates an expression, <answer> ends "
                "the episode",
        .stops = calculator_stops,
        .n_stops = 2,
        .open = kg_env_calculator_open,
        .close = kg_env_calculator_close,
        .step = kg_env_calculator_step,
        .stats = kg_env_calculator_stats,
    },
    {
        .name = "external",
        .help = "your program, which plays with the policy over HTTP",
    },
    {.name = NULL},
};

const struct kg_env_row *kg_env_table(void) { return table; }

kg_status kg_env_find(const struct kg_env_row **row, const char *name, struct kg_err *err)
{
    size_t i;

    KG_TRY(kg_str_pick(&i, KG_EINVAL, "environment", name, table,
                       sizeof table / sizeof *table - 1, sizeof *table, err));
    *row = &table[i];
    return KG_OK;
}

kg_status kg_env_check_task(const struct kg_env_row *env, const struct kg_task_row *task,
                            const char *where, struct kg_err *err)
{
    const bool plays = env && !env->open, takes = strcmp(task->name, "environment") == 0;

    if (plays == takes)
        return KG_OK;
    return kg_fail(err, KG_EINVAL, "%s: expected both or neither, found %s and %s", where,
                   env ? env->name : "none", task->name);
}

static kg_status put_remark(struct kg_str *out, const struct kg_action *action,
                            const struct kg_action_tags *tags, const char *inside,
                            struct kg_err *err)
{
    const char *article = kg_char_in("aeiou", inside[0]) ? "an" : "a";

    KG_TRY(kg_str_puts(out, "\nThat step of mine cannot be carried out: ", err));
    if (action->kind == KG_ACTION_TOOL)
        KG_TRY(kg_str_printf(out, err, "its %s is empty", inside));
    else
        KG_TRY(kg_str_printf(out, err, "it holds neither %s %s nor an answer", article,
                             inside));
    return kg_str_printf(
        out, err,
        ". To use the tool I write the %s between %s and %s; to finish I write the "
        "answer between <answer> and </answer>. I try once more.\n",
        inside, tags->tool.open, tags->tool.close);
}

kg_status kg_env_read_turn(struct kg_env_result *result, struct kg_action *action,
                           struct kg_str *observation, const struct kg_action_tags *tags,
                           const char *inside, const char *remark,
                           const struct kg_env_turn *turn, struct kg_err *err)
{
    kg_action_read(action, tags, turn->text, turn->n);
    *result = (struct kg_env_result){.next = KG_ENV_DONE};
    result->answered = action->kind == KG_ACTION_ANSWER;
    result->valid = result->answered || (action->kind == KG_ACTION_TOOL && action->n > 0);
    if (result->answered || turn->last)
        return KG_OK;
    result->called = result->valid;
    if (result->called)
        return KG_OK;
    result->next = KG_ENV_OBSERVE;
    if (remark)
        return kg_str_puts(observation, remark, err);
    return put_remark(observation, action, tags, inside, err);
}
