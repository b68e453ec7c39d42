/* The table of wordings.
 *
 * The row search-r1 holds two texts of Search-R1 (https://github.com/PeterGriffinJin/
 * Search-R1, commit a14dc3a), unchanged, spelling included: make_prefix of
 * scripts/data_process/nq_search.py (Copyright 2024 Bytedance Ltd. and/or its affiliates)
 * and execute_predictions of search_r1/llm_agent/generation.py. They are licensed under
 * the Apache License, Version 2.0 (http://www.apache.org/licenses/LICENSE-2.0) and are
 * data here: the texts that the published runs gave to their models. The released code of
 * EMA-PG has the same two.
 */
#include "task/wording.h"

#include "base/str.h"

static const struct kg_wording table[] = {
    {
        .name = "kedge",
        /* the one complete <answer> pair is the example: see answer_tags 2 */
        .instruction =
            "Answer the question at the end. First reason about it inside <think> and "
            "</think>, and do so again whenever new information has reached you. If you "
            "find that you lack some knowledge, write a query inside <search> and "
            "</search>: a search engine then puts its best passages between "
            "<information> and </information>. You can search as many times as you want. "
            "As soon as no more knowledge is needed, put the answer alone inside answer "
            "tags, short and without explanation, as in <answer> Beijing </answer>. "
            "Question: ",
    },
    {
        .name = "search-r1",
        .source = "PeterGriffinJin/Search-R1 at a14dc3a, "
                  "scripts/data_process/nq_search.py and "
                  "search_r1/llm_agent/generation.py",
        .licence = "Apache-2.0",
        .instruction =
            "Answer the given question. You must conduct reasoning inside <think> and "
            "</think> first every time you get new information. After reasoning, if you "
            "find you lack some knowledge, you can call a search engine by <search> "
            "query </search> and it will return the top searched results between "
            "<information> and </information>. You can search as many times as your "
            "want. If you find no further external knowledge needed, you can directly "
            "provide the answer inside <answer> and </answer>, without detailed "
            "illustrations. For example, <answer> Beijing </answer>. Question: ",
        .remark =
            "\nMy previous action is invalid. If I want to search, I should put the "
            "query between <search> and </search>. If I want to give the final answer, I "
            "should put the answer between <answer> and </answer>. Let me try again.\n",
    },
    {.name = NULL},
};

const struct kg_wording *kg_wording_table(void) { return table; }

kg_status kg_wording_find(const struct kg_wording **w, const char *name,
                          struct kg_err *err)
{
    size_t i = 0;

    if (name && *name)
        KG_TRY(kg_str_pick(&i, KG_EINVAL, "wording", name, table,
                           sizeof table / sizeof *table - 1, sizeof *table, err));
    *w = &table[i];
    return KG_OK;
}
