/* kedge bench: the ceilings of this machine and what kedge reaches of them, in one
 * run. */
#include "cli/cli.h"

#include "base/clock.h"
#include "cli/load.h"
#include "train/bench.h"

static bool json;
static int64_t threads;
static const char *dtype;

const struct kg_flag kg_bench_flags[] = {
    {"json", 0, KG_FLAG_TRUE, &json, NULL, "one JSON object a figure on stdout", 0, 0,
     NULL},
    {"dtype", 0, KG_FLAG_CHOICE, &dtype, "TYPE",
     "bf16 or fp32: what products compute in (default: bf16 where the machine has it)", 0,
     0, "bf16|fp32"},
    {"threads", 0, KG_FLAG_INT, &threads, "N", "threads (default: all cores)", 0, 1024,
     NULL},
    {0},
};

int kg_cmd_bench(int argc, char **argv)
{
    struct kg_str out = {0};
    enum kg_dtype ct;
    struct kg_err err;
    kg_status status;

    kg_threads_set((int)threads);
    status = kg_load_dtype(&ct, dtype, &err);
    if (status == KG_OK)
        status = kg_bench_run(&out, argc > 0 ? argv[0] : NULL, ct, json, &err);
    if (status == KG_OK)
        status = kg_cli_put(&out, &err);
    kg_str_release(&out);
    return kg_cli_exit(status, &err);
}
