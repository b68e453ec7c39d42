/* kedge doctor: describes this machine, and checks whether kedge's promises hold on it.
 *
 * Results do not depend on threads, batches or the machine because products have a few
 * properties. They hold on the processors that were tested; on another processor or
 * compiler they might not, and a run would be silently wrong. So doctor checks them for
 * this machine's products, in each dtype; a failure is named and sets the exit status.
 * Under a launcher every rank checks its own machine, and then all check their exchanges.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/clock.h"
#include "base/status.h"
#include "ranks/launch.h"
#include "tensor/selfcheck.h"

#include <stdio.h>

enum { SILENT_S = 60 };

static bool json;
static const char *nccl; /* NULL: search for it */

const struct kg_flag kg_doctor_flags[] = {
    {"json", 0, KG_TO(json), NULL, "print one JSON object per check"},
    {"nccl", 0, KG_IF("--device", nccl), "DIR",
     "folder of libnccl.so.2, as ranks.libraries (default: search for it)"},
    KG_FLAGS_OF(kg_device_flags),
    {0},
};

static const struct {
    const char *name; /* for --json; %s: the dtype */
    const char *text;
    kg_status (*check)(const struct kg_backend *be, enum kg_dtype dtype,
                       struct kg_err *err);
} checks[] = {
    {"row invariance of %s products",
     "a row of a %s product keeps its bits for every number of rows and threads",
     kg_selfcheck_rows},
    {"definition of %s products",
     "an element of a %s product has the bits that kedge defines for every machine",
     kg_selfcheck_definition},
    {"values of %s products",
     "an element of a %s product is the sum in double, up to rounding",
     kg_selfcheck_values},
};

/* Whether this device's products have other bits than kedge's definition. That is
 * allowed: each row's bits still do not depend on the number of rows. */
static bool has_bits_of_its_own(const struct kg_backend *be, enum kg_dtype dtype,
                                size_t i)
{
    return checks[i].check == kg_selfcheck_definition && be->exact && !be->exact(dtype);
}

/* *ok stays true if the check holds or does not apply to this device. */
static kg_status check_products(struct kg_str *out, bool *ok, const struct kg_backend *be,
                                enum kg_dtype dtype, size_t i, struct kg_err *err)
{
    struct kg_err why = {0};
    char text[128];
    const bool own = has_bits_of_its_own(be, dtype, i);
    kg_status status = own ? KG_OK : checks[i].check(be, dtype, &why);
    const char *verdict = own ? "other" : status == KG_OK ? "holds" : "FAILS";

    *ok = *ok && status == KG_OK;
    snprintf(text, sizeof text, json ? checks[i].name : checks[i].text,
             kg_dtype_traits(dtype)->name);
    if (json)
        return kg_str_printf(out, err, "{\"check\": \"%s\", \"result\": \"%s\"}\n", text,
                             verdict);
    return kg_str_printf(out, err, "%-6s  %s%s%s\n", verdict, text,
                         status == KG_OK ? "" : ": ", status == KG_OK ? "" : why.message);
}

/* Total and free memory of a device. */
static kg_status put_memory(struct kg_str *out, const struct kg_backend *be,
                            struct kg_err *err)
{
    uint64_t total, free;

    if (!be->memory)
        return KG_OK;
    KG_TRY(be->memory(&total, &free, err));
    if (json)
        return kg_str_printf(out, err,
                             "{\"memory\": {\"total_bytes\": %llu, \"free_bytes\": "
                             "%llu}}\n",
                             (unsigned long long)total, (unsigned long long)free);
    return kg_str_printf(out, err, "memory: %.2f GB, %.2f of them free\n",
                         (double)total / 1e9, (double)free / 1e9);
}

static kg_status put_device(struct kg_str *out, const struct kg_backend *be,
                            struct kg_err *err)
{
    char device[512];

    if (!kg_load.device)
        return KG_OK;
    be->describe(device, sizeof device);
    if (!json)
        KG_TRY(kg_str_printf(out, err, "device: %s\n", device));
    KG_TRY(put_memory(out, be, err));
    return kg_doctor_nccl ? kg_doctor_nccl(out, be, nccl, json, err) : KG_OK;
}

static kg_status put_head(struct kg_str *out, const struct kg_backend *be,
                          struct kg_err *err)
{
    if (json)
        return put_device(out, be, err);
    KG_TRY(kg_cli_version(out, err));
    KG_TRY(put_device(out, be, err));
    return kg_str_printf(out, err, "threads: %d\ndefault dtype: %s\n\n", kg_threads_get(),
                         kg_dtype_traits(KG_BF16)->name);
}

static kg_status check_here(struct kg_str *out, const struct kg_backend **be, bool *ok,
                            struct kg_err *err)
{
    *ok = true;
    KG_TRY(kg_load_device(be, &kg_load, KG_BF16, err));
    KG_TRY(put_head(out, *be, err));
    for (size_t i = 0; i < 2 * sizeof checks / sizeof *checks; i++)
        KG_TRY(check_products(out, ok, *be, i % 2 ? KG_BF16 : KG_F32, i / 2, err));
    return KG_OK;
}

/* All ranks take part; the first prints. */
static kg_status doctor(bool *ok, struct kg_ranks *r, struct kg_err *err)
{
    const struct kg_backend *be = NULL;
    struct kg_str out = {0};

    kg_load.ranks = r;
    kg_status status = kg_ranks_agree(r, check_here(&out, &be, ok, err), "doctor", err);

    if (status == KG_OK && kg_doctor_ranks)
        status = kg_doctor_ranks(&out, ok, r, be, nccl, json, err);
    else if (status == KG_OK && (r->n > 1 || nccl))
        status = kg_guest_missing("doctor of ranks", "lab", err);
    if (status != KG_OK || r->me > 0)
        goto out;
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

/* All ranks know the verdict, and the first prints it. */
static kg_status verdict(struct kg_ranks *r, bool ok, struct kg_err *err)
{
    if (ok)
        return KG_OK;
    if (r->n < 2)
        return kg_fail(
            err, KG_ECONFLICT,
            "a promise does not hold on this machine; use a --dtype for which it does");
    r->told = true;
    return kg_fail(err, KG_ECONFLICT,
                   "a promise does not hold on some rank or between ranks: see the lines "
                   "with FAILS");
}

int kg_cmd_doctor(int argc, char **argv)
{
    struct kg_ranks r;
    struct kg_err err;
    bool ok = true;

    (void)argc;
    (void)argv;
    kg_threads_set(0);
    kg_status status = kg_ranks_open(&r, 1, SILENT_S, &err);
    if (status == KG_OK && r.n > 0)
        status = kg_ranks_agree(&r, kg_ranks_follow_launcher(&err), "start", &err);
    if (status == KG_OK)
        status = doctor(&ok, &r, &err);
    if (status == KG_OK)
        status = verdict(&r, ok, &err);
    return kg_cli_ranks_end(&r, status, &err);
}
