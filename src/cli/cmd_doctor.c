/* kedge doctor: what this machine is, and which promises hold on it. Checked here and
 * now, not assumed. */
#include "cli/cli.h"

#include "base/clock.h"
#include "tensor/backend.h"
#include "tensor/selfcheck.h"

static bool json;

const struct kg_flag kg_doctor_flags[] = {
    {"json", 0, KG_FLAG_TRUE, &json, NULL, "one JSON object a check on stdout", 0, 0,
     NULL},
    {0},
};

/* *ok: the check held. A dtype that this machine lacks is said to be so and is no
 * failure. */
static kg_status check_products(struct kg_str *out, bool *ok, enum kg_dtype dtype,
                                struct kg_err *err)
{
    struct kg_err why = {0};
    const char *name = kg_dtype_traits(dtype)->name;
    kg_status status = kg_selfcheck_rows(kg_backend_cpu(), dtype, &why);
    const char *verdict = status == KG_OK             ? "holds"
                          : status == KG_EUNSUPPORTED ? "absent"
                                                      : "FAILS";

    *ok = *ok && (status == KG_OK || status == KG_EUNSUPPORTED);
    if (json)
        return kg_str_printf(
            out, err,
            "{\"check\": \"row invariance of %s products\", \"result\": \"%s\"}\n", name,
            verdict);
    return kg_str_printf(out, err,
                         "%-6s  a row of a %s product keeps its bits for every number of "
                         "rows and threads%s%s\n",
                         verdict, name, status == KG_OK ? "" : ": ",
                         status == KG_OK ? "" : why.message);
}

static kg_status doctor(bool *ok, struct kg_err *err)
{
    struct kg_str out = {0};
    kg_status status = KG_OK;

    *ok = true;
    if (!json) {
        KG_TRY_GOTO(out, kg_cli_version(&out, err));
        KG_TRY_GOTO(out,
                    kg_str_printf(
                        &out, err, "threads: %d\ndefault dtype: %s\n\n", kg_threads_get(),
                        kg_dtype_traits(kg_backend_best_dtype(kg_backend_cpu()))->name));
    }
    KG_TRY_GOTO(out, check_products(&out, ok, KG_F32, err));
    KG_TRY_GOTO(out, check_products(&out, ok, KG_BF16, err));
    if (!json && *ok)
        KG_TRY_GOTO(out, kg_str_puts(&out,
                                     "\nSampler and trainer agree bit for bit on this "
                                     "machine (promises 1 and 3).\n",
                                     err));
    status = kg_cli_put(&out, err);
out:
    kg_str_release(&out);
    return status;
}

int kg_cmd_doctor(int argc, char **argv)
{
    struct kg_err err;
    bool ok;
    kg_status status;

    (void)argc;
    (void)argv;
    kg_threads_set(0);
    status = doctor(&ok, &err);
    if (status == KG_OK && !ok)
        status = kg_fail(
            &err, KG_ECONFLICT,
            "a promise does not hold on this machine; use --dtype of one that does");
    return kg_cli_exit(status, &err);
}
