/* kedge bench: the ceilings of this machine and what kedge reaches of them, in one
 * run. */
#include "cli/cli.h"

#include "base/clock.h"
#include "train/bench.h"

static bool json;
static int64_t threads;

const struct kg_flag kg_bench_flags[] = {
    {"json", 0, KG_FLAG_TRUE, &json, NULL, "one JSON object a figure on stdout", 0, 0,
     NULL},
    {"threads", 0, KG_FLAG_INT, &threads, "N", "threads (default: all cores)", 0, 1024,
     NULL},
    {0},
};

int kg_cmd_bench(int argc, char **argv)
{
    struct kg_str out = {0};
    struct kg_err err;
    kg_status status;

    kg_threads_set((int)threads);
    status = kg_bench_run(&out, argc > 0 ? argv[0] : NULL, json, &err);
    if (status == KG_OK)
        status = kg_cli_put(&out, &err);
    kg_str_release(&out);
    return kg_cli_exit(status, &err);
}
