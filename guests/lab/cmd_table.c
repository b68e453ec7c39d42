/* kedge table: aggregates the rows of a study. tools/queue and tools/study write a JSON
 * row for every run.
 *
 * Here rows become cells: means over seeds with their intervals, or paired differences
 * from one cell. lab/cells.h has the details.
 */
#include "cli/cli.h"

#include "base/log.h"
#include "lab/cells.h"

static struct kg_flag_list metrics, differences;
static const char *by = "cell", *pair = "seed", *match = "", *against, *over, *start;
static int64_t at_least;
static bool iqm, profile, survival, svg, json;

const struct kg_flag kg_table_flags[] = {
    {"metric", 'm', KG_TO(metrics), "KEY", "metric of the rows; may be repeated"},
    {"by", 0, KG_TO(by), "KEY", "key whose value groups rows into cells (default cell)"},
    {"pair", 0, KG_TO(pair), "KEY",
     "key that pairs rows of different cells (default seed)"},
    {"match", 0, KG_TO(match), "TEXT", "only cells whose name begins with this"},
    {"against", 0, KG_TO(against), "CELL",
     "paired differences of all cells from this one"},
    {"difference", 'd', KG_IF("--against=", differences), "CELL:AGAINST",
     "paired difference of two cells; LINE,* stands for the best of the cells LINE,...; "
     "may be repeated"},
    {"at-least", 0, KG_TO(at_least), "N",
     "omit cells with fewer rows, and print how many", 0, 1e6},
    {"iqm", 0, KG_TO(iqm), NULL, "interquartile means instead of means"},
    {"profile", 0, KG_IF("--start=", profile), NULL,
     "combine cells TASK/CELL over all tasks, with equally many rows in each, resampled "
     "separately"},
    {"over", 0, KG_IF("--profile=", over), "KEY",
     "with --difference: compare two lines through the cells NAME,... over log KEY, in "
     "the middle of their common range; with --svg: KEY is the x axis"},
    {"start", 0, KG_IF("--against=", start), "CELL",
     "count rows whose first metric reaches the mean of this cell, and rows below half "
     "of this mean"},
    {"survival", 0, KG_IF("--start", survival), NULL,
     "for cells METHOD,SETTING: print how many rows survive, and for each method the "
     "last setting before the first at which fewer than four of five survive"},
    {"svg", 0, KG_IF("--over&--against=&--start=", svg), NULL,
     "write a plot of cells LINE,SETTING: the metric with its interval over log of "
     "--over"},
    {"json", 0, KG_IF("--survival=", json), NULL, "one JSON line for each cell"},
    {0},
};

static kg_status survival_table(struct kg_str *out, const struct kg_cells *cells,
                                const struct kg_cells_opts *opts, struct kg_err *err)
{
    KG_TRY(kg_survival_table(out, cells, err));
    return kg_cells_left_out(out, cells, opts, err);
}

static kg_status table(const struct kg_cells_opts *opts, struct kg_err *err)
{
    struct kg_cells cells;
    struct kg_str out = {0};

    KG_TRY(kg_cells_read(&cells, opts, err));
    kg_status status = svg        ? kg_cells_svg(&out, &cells, opts, err)
                       : survival ? survival_table(&out, &cells, opts, err)
                       : json     ? kg_cells_json(&out, &cells, opts, err)
                                  : kg_cells_table(&out, &cells, opts, err);
    if ((svg || json) && cells.left_out > 0)
        kg_log_warn("cells left out, with fewer than %zu rows: %zu", opts->at_least,
                    cells.left_out);
    kg_cells_release(&cells);
    return kg_cli_print(status, &out, err);
}

/* The error of flags that exclude or need each other; NULL: none */
static const char *conflict(void)
{
    if (start && differences.n > 0)
        return "expected --start or --difference, found both";
    if (svg && differences.n > 0)
        return "expected --svg or --difference, found both";
    if (over && !svg && differences.n == 0)
        return "--over: expected --difference or --svg with it, found neither";
    if (over && metrics.n == KG_CELLS_METRICS)
        return "--over: expected one --metric fewer";
    if ((svg || survival) && metrics.n > 1)
        return "expected one --metric with --svg or --survival, found more";
    if (svg && survival)
        return "expected --svg or --survival, found both";
    if (svg && json)
        return "expected --svg or --json, found both";
    return NULL;
}

int kg_cmd_table(int argc, char **argv)
{
    struct kg_err err;
    struct kg_cells_opts opts = {.files = (const char *const *)argv,
                                 .n_files = (size_t)argc,
                                 .by = by,
                                 .pair = pair,
                                 .match = match,
                                 .metric = metrics.items,
                                 .n_metrics = (size_t)metrics.n,
                                 .against = against,
                                 .difference = differences.items,
                                 .n_differences = (size_t)differences.n,
                                 .iqm = iqm,
                                 .profile = profile,
                                 .over = over,
                                 .start = start,
                                 .at_least = (size_t)at_least};

    if (argc < 1)
        return kg_cli_usage("expected files of rows, found none");
    if (metrics.n < 1 || metrics.n > KG_CELLS_METRICS)
        return kg_cli_usage("expected --metric 1 to %d times, found it %d times",
                            KG_CELLS_METRICS, metrics.n);
    if (conflict())
        return kg_cli_usage("%s", conflict());
    return kg_cli_exit(table(&opts, &err), &err);
}
