/* kedge policy check DIR: compares golden cases of losses, gradients and advantages with
 * policy/. Use it to compare kedge with numbers of the authors' code in the documented
 * format. It prints cases that fail or are skipped with the reason, then totals with the
 * worst error relative to its bound. A folder in which nothing passed is a failure. */
#include "cli/cli.h"

#include "data/json.h"
#include "lab/golden/golden.h"

#include <string.h>

static bool as_json;

const struct kg_flag kg_policy_flags[] = {
    {"json", 0, KG_TO(as_json), NULL,
     "one JSON line for each case that did not pass, then one with the totals"},
    {0},
};

static const char *outcome_name(enum kg_golden_outcome outcome)
{
    return outcome == KG_GOLDEN_FAILED    ? "failed"
           : outcome == KG_GOLDEN_SKIPPED ? "skipped"
                                          : "passed";
}

static kg_status show(const struct kg_golden_result *r, void *context, struct kg_err *err)
{
    struct kg_str *out = context;
    const char *colon = *r->name ? ": " : "";

    if (r->outcome == KG_GOLDEN_PASSED)
        return KG_OK;
    if (!as_json) {
        KG_TRY(kg_str_printf(out, err, "%s: %s%s%s: %s\n", outcome_name(r->outcome),
                             r->file, colon, r->name, r->why));
        return kg_cli_put(out, err);
    }
    KG_TRY(kg_json_put_text(out, "{\"file\": ", r->file, err));
    KG_TRY(kg_json_put_text(out, ", \"case\": ", r->name, err));
    KG_TRY(kg_json_put_text(out, ", \"outcome\": ", outcome_name(r->outcome), err));
    KG_TRY(kg_json_put_text(out, ", \"reason\": ", r->why, err));
    KG_TRY(kg_str_puts(out, "}\n", err));
    return kg_cli_put(out, err);
}

static kg_status put_totals(struct kg_str *out, const struct kg_golden_report *r,
                            struct kg_err *err)
{
    long long passed = r->passed, failed = r->failed, skipped = r->skipped;

    if (as_json) {
        KG_TRY(kg_str_printf(out, err,
                             "{\"passed\": %lld, \"failed\": %lld, \"skipped\": %lld, "
                             "\"files\": %lld, \"numbers\": %lld, "
                             "\"worst_relative_error\": ",
                             passed, failed, skipped, (long long)r->files,
                             (long long)r->compared));
        KG_TRY(kg_json_put_double(out, r->worst, err));
        KG_TRY(kg_str_printf(out, err,
                             ", \"excepted\": %lld, \"worst_relative_error_excepted\": ",
                             (long long)r->excepted));
        KG_TRY(kg_json_put_double(out, r->worst_excepted, err));
        KG_TRY(kg_str_puts(out, "}\n", err));
        return kg_cli_put(out, err);
    }
    KG_TRY(kg_str_printf(out, err,
                         "worst relative error %.1e over %lld numbers in %lld files\n",
                         r->worst, (long long)r->compared, (long long)r->files));
    if (r->excepted > 0)
        KG_TRY(kg_str_printf(out, err,
                             "%lld cases of single precision in the reference, judged at "
                             "the format's wider tolerance: worst %.1e\n",
                             (long long)r->excepted, r->worst_excepted));
    KG_TRY(kg_str_printf(out, err, "%lld passed, %lld failed, %lld skipped\n", passed,
                         failed, skipped));
    return kg_cli_put(out, err);
}

static int check(const char *folder)
{
    struct kg_str out = {0};
    struct kg_golden_report report;
    const struct kg_golden_options options = {.seen = show, .context = &out};
    struct kg_err err;
    kg_status status = kg_golden_check(&report, folder, &options, &err);

    if (status == KG_OK)
        status = put_totals(&out, &report, &err);
    kg_str_release(&out);
    if (status != KG_OK)
        return kg_cli_fail(&err);
    return report.failed == 0 && report.passed > 0 ? KG_EXIT_OK : KG_EXIT_FAILURE;
}

int kg_cmd_policy(int argc, char **argv)
{
    if (argc != 2 || strcmp(argv[0], "check") != 0)
        return kg_cli_usage("expected: kedge policy check DIR");
    return check(argv[1]);
}
