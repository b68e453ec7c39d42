/* kedge table: what the rows of a study say together.
 *
 * tools/queue and tools/study write a row of JSON for every run. Here rows become cells:
 * means over seeds with their intervals, or paired differences from one cell. All of it
 * is in report/cells.h.
 */
#include "cli/cli.h"

#include "report/cells.h"

static struct kg_flag_list metrics, differences;
static const char *by = "cell", *pair = "seed", *match = "", *against;
static int64_t at_least;
static bool iqm, json;

const struct kg_flag kg_table_flags[] = {
    {"metric", 'm', KG_TO(metrics), "KEY",
     "a number of the rows; may be given several times", 0, 0, NULL},
    {"by", 0, KG_TO(by), "KEY", "rows with the same text here are a cell (default cell)",
     0, 0, NULL},
    {"pair", 0, KG_TO(pair), "KEY",
     "what is the same in other cells: the seed (default seed)", 0, 0, NULL},
    {"match", 0, KG_TO(match), "TEXT", "only cells whose name begins with it", 0, 0,
     NULL},
    {"against", 0, KG_TO(against), "CELL",
     "paired differences of all cells from this one", 0, 0, NULL},
    {"difference", 'd', KG_BESIDE("!against", differences), "CELL:AGAINST",
     "the paired difference of these two cells alone; may be given several times", 0, 0,
     NULL},
    {"at-least", 0, KG_TO(at_least), "N",
     "leave out cells with fewer rows, and say how many", 0, 1e6, NULL},
    {"iqm", 0, KG_TO(iqm), NULL, "interquartile means instead of means", 0, 0, NULL},
    {"json", 0, KG_TO(json), NULL, "one JSON line for each cell", 0, 0, NULL},
    {0},
};

static kg_status table(const struct kg_cells_opts *opts, struct kg_err *err)
{
    struct kg_cells cells;
    struct kg_str out = {0};
    kg_status status;

    KG_TRY(kg_cells_read(&cells, opts, err));
    status = json ? kg_cells_json(&out, &cells, opts, err)
                  : kg_cells_table(&out, &cells, opts, err);
    kg_cells_release(&cells);
    return kg_cli_print(status, &out, err);
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
                                 .at_least = (size_t)at_least};

    if (argc < 1)
        return kg_cli_usage("expected files of rows, found none");
    if (metrics.n < 1 || metrics.n > KG_CELLS_METRICS)
        return kg_cli_usage("expected --metric 1 to %d times, found it %d times",
                            KG_CELLS_METRICS, metrics.n);
    return kg_cli_exit(table(&opts, &err), &err);
}
