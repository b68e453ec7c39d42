/* The table of environments, and the remark that they share. */
#include "task/env.h"

#include "task/env_internal.h"

#include <stdio.h>
#include <string.h>

static const char *const search_stops[] = {"</search>", "</answer>"};
static const char *const calculator_stops[] = {"</calculator>", "</answer>"};

static const struct kg_env_row table[] = {
    {
        .name = "search",
        .help = "a search agent: <search> asks a retriever, <answer> ends the episode",
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
        .help = "exact arithmetic: <calculator> works an expression out, <answer> ends "
                "the episode",
        .stops = calculator_stops,
        .n_stops = 2,
        .open = kg_env_calculator_open,
        .close = kg_env_calculator_close,
        .step = kg_env_calculator_step,
        .stats = kg_env_calculator_stats,
    },
    {.name = NULL},
};

const struct kg_env_row *kg_env_table(void) { return table; }

kg_status kg_env_find(const struct kg_env_row **row, const char *name, struct kg_err *err)
{
    char names[256] = "";

    for (const struct kg_env_row *r = table; r->name; r++) {
        size_t used = strlen(names);

        if (strcmp(r->name, name) == 0) {
            *row = r;
            return KG_OK;
        }
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", r->name);
    }
    return kg_fail(err, KG_EINVAL, "expected an environment of %s, found '%s'", names,
                   name);
}

kg_status kg_env_put_remark(struct kg_str *out, const char *what,
                            const struct kg_tag_pair *tool, const char *inside,
                            struct kg_err *err)
{
    return kg_str_printf(
        out, err,
        "\nThat step of mine cannot be carried out: %s. To use the tool I write the %s "
        "between %s and %s; to finish I write the answer between <answer> and "
        "</answer>. I try once more.\n",
        what, inside, tool->open, tool->close);
}
