/* kedge task: lists the tasks, or writes generated problems as JSONL {prompt, response,
 * ground_truth}. Level, count and seed give the same lines to a run, to an evaluation and
 * here. Use them for SFT or to train a tokenizer (`--text`). Held-out problems are drawn
 * from a part that training never draws from. */
#include "cli/cli.h"

#include "data/json.h"
#include "task/task.h"

static const char *level = "";
static int64_t count = 10, seed = 1;
static double fault_rate;
static bool held_out;
static bool as_text;

const struct kg_flag kg_task_flags[] = {
    {"level", 0, KG_IF("TASK", level), "LEVEL", "difficulty, such as easy or easy+hard"},
    {"count", 'n', KG_IF("TASK", count), "N", "problems (default 10)", 1, 1e7},
    {"seed", 0, KG_IF("TASK", seed), "S", "seed (default 1)", 0, 1e15},
    {"fault-rate", 0, KG_IF("TASK", fault_rate), "F",
     "share of worked solutions with a wrong step", 0, 1},
    {"held-out", 0, KG_IF("TASK", held_out), NULL, "problems that training never uses"},
    {"text", 0, KG_IF("TASK", as_text), NULL,
     "print lines {\"text\"} of problem and solution, to train a tokenizer", 0, 0, NULL},
    {0},
};

static kg_status put_record(struct kg_str *out, const struct kg_record *r,
                            struct kg_err *err)
{
    struct kg_str whole = {0};
    const char *solution = r->solution ? r->solution : "";

    if (!as_text) {
        KG_TRY(kg_json_put_text(out, "{\"prompt\": ", r->prompt, err));
        KG_TRY(kg_json_put_text(out, ", \"response\": ", solution, err));
        KG_TRY(kg_json_put_text(out, ", \"ground_truth\": ", r->ground_truth, err));
        return kg_str_puts(out, "}\n", err);
    }
    kg_status status = kg_str_printf(&whole, err, "%s%s", r->prompt, solution);
    if (status == KG_OK)
        status = kg_json_put_text(out, "{\"text\": ", kg_str_text(&whole), err);
    kg_str_release(&whole);
    KG_TRY(status);
    return kg_str_puts(out, "}\n", err);
}

static kg_status list_tasks(struct kg_str *out, struct kg_err *err)
{
    for (const struct kg_task_row *row = kg_task_table(); row->name; row++)
        KG_TRY(kg_str_printf(out, err, "%-12s %s%s%s%s\n", row->name, row->help,
                             row->levels ? " (levels: " : "",
                             row->levels ? row->levels : "", row->levels ? ")" : ""));
    return kg_cli_put(out, err);
}

static kg_status print_problems(struct kg_str *out, const char *name, struct kg_err *err)
{
    struct kg_task_opts opts = {.seed = (uint64_t)seed,
                                .level = level,
                                .count = count,
                                .fault_rate = fault_rate,
                                .held_out = held_out};
    struct kg_dataset data = {0};
    const struct kg_task_row *row;
    kg_status status = KG_OK;

    KG_TRY(kg_task_find(&row, name, err));
    if (!row->levels)
        return kg_fail(
            err, KG_EINVAL,
            "task %s: expected a task that generates problems, found one that reads data",
            name);
    KG_TRY(kg_task_load(&data, row, &opts, NULL, err));
    for (size_t i = 0; i < data.n && status == KG_OK; i++) {
        status = put_record(out, &data.records[i], err);
        if (status == KG_OK)
            status = kg_cli_put(out, err);
    }
    kg_dataset_release(&data);
    return status;
}

int kg_cmd_task(int argc, char **argv)
{
    struct kg_str out = {0};
    struct kg_err err;
    kg_status status = argc == 0 ? list_tasks(&out, &err)
                                 : print_problems(&out, argv[0], &err);

    kg_str_release(&out);
    return kg_cli_exit(status, &err);
}
