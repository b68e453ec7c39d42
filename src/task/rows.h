/* Keys of tasks, prompts and records, for recipes and suites: rows over a struct S, as
 * KG_SAMPLING_ROWS; `at` is the path in S to a struct kg_task_opts or kg_prompt_opts. */
#ifndef KG_TASK_ROWS_H
#define KG_TASK_ROWS_H

#include "base/option.h"
#include "task/task.h"
#include "task/wording.h"

/* name, rewards, env: the keys of the task, of several rewards and of the environment. */
#define KG_IF_GRADES(what, name, rewards) name "=" what "|" rewards "~" what
#define KG_IF_PROGRAM(name, rewards)                                                     \
    KG_IF_GRADES("external", name, rewards) "&" rewards "=|" rewards "~external"
#define KG_TASK_ROWS(before, S, at, name, rewards, env)                                  \
    KG_OPT_ROW(before "command", KG_OPT_AT(S, at command), "", 0, 0, NULL,               \
               "external grader: command that reads JSONL and replies line by line",     \
               false, KG_IF_PROGRAM(name, rewards)),                                     \
        KG_OPT_ROW(before "life", KG_OPT_AT(S, at life), "auto", 0, 0, "auto|run|batch", \
                   "external grader: start its program once per run, or for every "      \
                   "batch; auto detects which one it supports",                          \
                   true, KG_IF_PROGRAM(name, rewards)),                                  \
        KG_OPT_ROW(before "timeout_ms", KG_OPT_AT(S, at timeout_ms), "30000", 1, 3.6e6,  \
                   NULL, "external grader: timeout of one batch in ms", true,            \
                   KG_IF_PROGRAM(name, rewards)),                                        \
        KG_OPT_ROW(before "grader", KG_OPT_AT(S, at grader), "default", 0, 0,            \
                   "default|ema-pg|mathd|dapo",                                          \
                   "task math: mode of grading (docs/grader.md)", false,                 \
                   KG_IF_GRADES("math", name, rewards)),                                 \
        KG_OPT_ROW(before "keep_thinking", KG_OPT_AT(S, at keep_thinking), "false", 0,   \
                   0, NULL, "task math: also read an answer before </think>", false,     \
                   KG_IF_GRADES("math", name, rewards)),                                 \
        KG_OPT_ROW(before "exclude", KG_OPT_AT(S, at exclude), "", 0, 0, NULL,           \
                   "task math: comma-separated ids (or lines) of records to leave out; " \
                   "FILE:NAME applies to that file only",                                \
                   false),                                                               \
        KG_OPT_ROW(before "bad_golds", KG_OPT_AT(S, at drop_golds), "stop", 0, 0,        \
                   "stop|drop",                                                          \
                   "task math: records whose gold answer is not graded as right stop "   \
                   "the run, or are left out, named and counted",                        \
                   false, name "=math"),                                                 \
        KG_OPT_ROW(before "metric", KG_OPT_AT(S, at metric), "em", 0, 0,                 \
                   "em|subem|f1|format", "task search-qa: the reward (docs/grader.md)",  \
                   false, KG_IF_GRADES("search-qa", name, rewards)),                     \
        KG_OPT_ROW(before "answer_tags", KG_OPT_AT(S, at answer_tags), "1", 1, 2, NULL,  \
                   "task search-qa: pairs of answer tags required; 2 counts those of "   \
                   "the prompt",                                                         \
                   false, KG_IF_GRADES("search-qa", name, rewards)),                     \
        KG_OPT_ROW(before "wording", KG_OPT_AT(S, at wording), "kedge", 0, 0,            \
                   KG_WORDING_CHOICES,                                                   \
                   "search agents: instruction around a question and remark on a wrong " \
                   "turn; search-r1: those of the published runs, word for word",        \
                   false, name "=search-qa|" env "=search")

#define KG_RECORD_ROWS(before, S, at, needs)                                             \
    KG_OPT_ROW(                                                                          \
        before "unique", KG_OPT_AT(S, at unique), "false", 0, 0, NULL,                   \
        "keep only the first of a file's records with equal prompt, gold answer and "    \
        "data_source (published validation files have each problem 32 times)",           \
        false, needs),                                                                   \
        KG_OPT_ROW(before "prompt_key", KG_OPT_AT(S, at prompt_key), "", 0, 0, NULL,     \
                   "column of the prompt; empty: verl's schema and usual names", false,  \
                   needs),                                                               \
        KG_OPT_ROW(before "answer_key", KG_OPT_AT(S, at answer_key), "", 0, 0, NULL,     \
                   "column of the answer", false, needs)

#define KG_PROMPT_ROWS(before, S, at)                                                    \
    KG_OPT_ROW(before "template", KG_OPT_AT(S, at template_text), "", 0, 0, NULL,        \
               "text around the problem; {prompt} is replaced", false),                  \
        KG_OPT_ROW(                                                                      \
            before "user_turn", KG_OPT_AT(S, at user_turn), "false", 0, 0, NULL,         \
            "render a prompt of text (in its template) as the user's turn of the "       \
            "chat template; else it is plain text",                                      \
            false),                                                                      \
        KG_OPT_ROW(before "system", KG_OPT_AT(S, at system), "", 0, 0, NULL,             \
                   "system prompt in front of every conversation (" before "user_turn, " \
                   "or lists of messages)",                                              \
                   false),                                                               \
        KG_OPT_ROW(before "opening", KG_OPT_AT(S, at opening), "", 0, 0, NULL,           \
                   "beginning of the assistant's turn, such as \"<think>\\n\", added "   \
                   "if the chat template does not write it",                             \
                   false),                                                               \
        KG_OPT_ROW(before "date", KG_OPT_AT(S, at date), "", 0, 0, NULL,                 \
                   "date YYYY-MM-DD for chat templates that use it; empty: the day of "  \
                   "the run's start, stored in config.yaml",                             \
                   false)

#endif
