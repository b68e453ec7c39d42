/* The table of tasks, and what all tasks share: loading with its checks, templates,
 * grading.
 *
 * A task is a file with a loader and a grader, and a row here.
 */
#include "task/task.h"

#include "base/mem.h"
#include "base/phase.h"
#include "task/task_internal.h"

#include <string.h>

static const struct kg_task_row table[] = {
    {
        .name = "arithmetic",
        .help = "sums of small numbers with worked steps; right if the number after #### "
                "is right",
        .levels = "easy|medium|hard|long-easy|long-medium|long-hard",
        .exact_reward = true,
        .load = kg_task_arithmetic_load,
        .grade = kg_task_arithmetic_grade,
        .extract = kg_task_arithmetic_extract,
        .same = kg_task_number_same_text,
    },
    {
        .name = "countdown",
        .help = "reach a target with + - * / from numbers that are each used once",
        .levels = "easy|medium|hard|small",
        .exact_reward = true,
        .load = kg_task_countdown_load,
        .grade = kg_task_countdown_grade,
    },
    {
        .name = "digits",
        .help = "verl's digit completion; a share of the reward for each right character",
        .load = kg_task_digits_load,
        .grade = kg_task_digits_grade,
    },
    {
        .name = "qa-number",
        .help = "questions with a number as answer: last \\boxed{}, text after ####, or "
                "last number",
        .exact_reward = true,
        .load = kg_task_qa_number_load,
        .grade = kg_task_qa_number_grade,
        .extract = kg_task_qa_number_extract,
        .same = kg_task_number_same_text,
    },
    {
        .name = "math",
        .help = "mathematics: last \\boxed{} or announced answer; equality is decided "
                "exactly",
        .exact_reward = true,
        .load = kg_task_math_load,
        .grade_by = kg_task_math_grade,
        .extract = kg_task_math_extract,
        .same = kg_task_math_same,
    },
    {
        .name = "search-qa",
        .help = "questions, answered between <answer> tags with or without a search: EM, "
                "sub-EM, F1 or format",
        .load = kg_task_search_qa_load,
        .grade_by = kg_task_search_qa_grade,
        .extract = kg_task_search_qa_extract,
        .same = kg_task_search_qa_same,
    },
    {
        .name = "none",
        .help = "prompts without grading, for distillation",
        .judges_none = true,
        .load = kg_task_none_load,
        .grade = kg_task_none_grade,
    },
    {
        .name = "environment",
        .help = "graded by the environment that plays the episode (episode.env external)",
        .keeps_turns = true,
        .load = kg_task_none_load,
        .grade_by = kg_task_environment_grade,
    },
    {
        .name = "external",
        .help = "graded by your program, which reads JSONL and writes {\"score\"} lines",
        .load = kg_task_external_load,
    },
    {.name = NULL},
};

const struct kg_task_row *kg_task_table(void) { return table; }

kg_status kg_task_find(const struct kg_task_row **row, const char *name,
                       struct kg_err *err)
{
    size_t i;

    KG_TRY(kg_str_pick(&i, KG_EINVAL, "task", name, table,
                       sizeof table / sizeof *table - 1, sizeof *table, err));
    *row = &table[i];
    return KG_OK;
}

/* ---- loading ---- */

/* Replaces the prompt of the file or generator by the text that the model reads. */
static kg_status make_prompt(struct kg_record *r, const struct kg_prompt_opts *how,
                             bool keeps_turns, struct kg_err *err)
{
    struct kg_prompt_source from = {.text = r->prompt, .n = strlen(r->prompt)};
    struct kg_json_doc doc = {0};
    struct kg_str text = {0};
    kg_status status = KG_OK;

    if (r->turns) {
        KG_TRY_GOTO(out, kg_json_parse(&doc, r->turns, strlen(r->turns), "prompt", err));
        from = (struct kg_prompt_source){.messages = kg_json_get(doc.root, "messages"),
                                         .tools = kg_json_get(doc.root, "tools")};
    }
    KG_TRY_GOTO(out, kg_prompt_put(&text, &r->rendered, &from, how, err));
    char *prompt = kg_str_take(&text, err);
    KG_TRY_GOTO(out, prompt ? KG_OK : err->code);
    kg_mem_free(r->prompt);
    r->prompt = prompt;
    if (keeps_turns)
        goto out;
    kg_mem_free(r->turns);
    r->turns = NULL;
out:
    kg_json_release(&doc);
    kg_str_release(&text);
    return status;
}

static kg_status make_prompts(struct kg_dataset *d, const struct kg_prompt_opts *how,
                              bool keeps_turns, struct kg_err *err)
{
    KG_TRY(kg_prompt_check(how, err));
    for (size_t i = 0; i < d->n; i++)
        if (make_prompt(&d->records[i], how, keeps_turns, err) != KG_OK)
            return kg_err_prefix(err, "%s %s %lld", d->name,
                                 d->is_file ? d->unit : "problem",
                                 (long long)d->records[i].line);
    return KG_OK;
}

static kg_status load_records(struct kg_dataset *d, const struct kg_task_row *row,
                              const struct kg_task_opts *opts, const char *path,
                              struct kg_err *err)
{
    int phase = kg_phase_begin(0, NULL, "reading %s", path ? path : row->name);
    kg_status status = row->load(d, opts, path, err);

    kg_phase_end(phase);
    return status;
}

static kg_status check_records(const struct kg_dataset *d, struct kg_err *err)
{
    if (d->n == 0)
        return kg_fail(err, KG_EINVAL, "%s: expected at least one record, found none",
                       d->name);
    for (size_t i = 0; i < d->n; i++) {
        if (d->records[i].prompt[0] == 0)
            return kg_fail(err, KG_EFORMAT,
                           "%s: record %lld: expected a prompt, found empty text",
                           d->name, (long long)d->records[i].line);
    }
    return KG_OK;
}

kg_status kg_task_load(struct kg_dataset *d, const struct kg_task_row *row,
                       const struct kg_task_opts *opts, const char *path,
                       struct kg_err *err)
{
    kg_status status;

    memset(d, 0, sizeof *d);
    if (!path && !row->levels)
        return kg_fail(
            err, KG_EINVAL,
            "task %s: expected a data file, found none (it does not generate problems)",
            row->name);
    if (!row->levels && opts->level && *opts->level)
        return kg_fail(
            err, KG_EINVAL,
            "task %s: expected no level (it reads its problems), found '%.80s'",
            row->name, opts->level);
    KG_TRY_GOTO(fail, load_records(d, row, opts, path, err));
    KG_TRY_GOTO(fail, check_records(d, err));
    KG_TRY_GOTO(fail, make_prompts(d, &opts->prompt, row->keeps_turns, err));
    KG_TRY_GOTO(fail, check_records(d, err));
    return KG_OK;
fail:
    kg_dataset_release(d);
    return status;
}

/* ---- grading ---- */

bool kg_task_judges(const struct kg_task_row *row, const struct kg_task_opts *opts)
{
    return opts->rewards || !row->judges_none;
}

bool kg_task_is_external(const struct kg_task_row *row)
{
    return !row->grade && !row->grade_by;
}

/* An undecided answer earns no more than a wrong one. */
static void settle(struct kg_grade *g, const struct kg_task_row *row,
                   const struct kg_task_opts *opts)
{
    g->graded |= g->undecided && opts->undecided == KG_TASK_UNDECIDED_WRONG;
    if (row->exact_reward && (g->graded || g->undecided) && !g->correct)
        g->reward = opts->wrong_reward;
}

kg_status kg_task_grade(struct kg_grade *grades, const struct kg_task_row *row,
                        const struct kg_task_opts *opts,
                        const struct kg_grade_item *items, size_t n, struct kg_err *err)
{
    if (opts->rewards)
        return kg_task_rewards_grade(grades, opts, items, n, err);
    if (kg_task_is_external(row))
        return kg_task_external_grade(grades, opts, items, n, err);
    int phase = kg_phase_begin((int64_t)n, "completions", "grading");
    for (size_t i = 0; i < n; i++) {
        const struct kg_record *r = items[i].record;
        kg_status status = row->grade_by ? row->grade_by(&grades[i], opts, &items[i], err)
                                         : row->grade(&grades[i], r, items[i].response,
                                                      items[i].n, err);

        if (status != KG_OK)
            return kg_err_prefix(err, "task %s: record %lld", row->name,
                                 (long long)r->line);
        settle(&grades[i], row, opts);
        kg_phase_at(phase, (int64_t)i + 1);
    }
    kg_phase_end(phase);
    return KG_OK;
}

/* Prompts alone, nothing is graded: for distillation, where a teacher replaces the
 * reward.
 *
 * It is a task so that data sets are read, joined and shown in the same way. A completion
 * is not graded, which is not a grade of 0: averages over grades leave it out.
 */

kg_status kg_task_none_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                            const char *path, struct kg_err *err)
{
    return kg_task_read(d, path, opts, opts->need_answer, err);
}

kg_status kg_task_none_grade(struct kg_grade *g, const struct kg_record *r,
                             const char *response, size_t n, struct kg_err *err)
{
    (void)r, (void)response, (void)n, (void)err;
    *g = (struct kg_grade){.graded = false};
    return KG_OK;
}

/* The verdict that an environment reported with the episode: rollout/episode.h. */
kg_status kg_task_environment_grade(struct kg_grade *g, const struct kg_task_opts *opts,
                                    const struct kg_grade_item *item, struct kg_err *err)
{
    const struct kg_traj *t = item->traj;

    (void)opts, (void)err;
    *g = (struct kg_grade){.graded = t && t->graded};
    if (!t)
        return KG_OK;
    g->reward = t->graded ? t->reward : 0;
    g->correct = t->graded && t->reward >= 1;
    g->further = t->further;
    return KG_OK;
}
