/* The run's own page.
 *
 * What was read of metrics.jsonl is kept, so that a checkpoint reads the lines since the
 * last one and not the whole log. A page that cannot be written is a warning: it is a
 * view, and no reason to end a run.
 */
#include "train/run_report.h"

#include "base/log.h"
#include "report/path.h"
#include "report/report.h"

static kg_status write_page(struct kg_run_log *log, struct kg_err *err)
{
    struct kg_str page = {0};
    bool more = true;
    kg_status status;

    if (log->report)
        KG_TRY(kg_report_run_read(log->report, &more, err));
    else
        KG_TRY(kg_report_run_open(&log->report, log->dir, err));
    if (!more)
        return KG_OK;
    KG_TRY_GOTO(out, kg_report_page(&page, &log->report, 1, err));
    status = kg_file_write_atomic(kg_path_in(log->dir, "report.html").text, page.data,
                                  page.len, err);
out:
    kg_str_release(&page);
    return status;
}

bool kg_run_report(const struct kg_run_inputs *in, struct kg_run_log *log)
{
    struct kg_err err;

    if (!in->recipe.log.report || log->elsewhere)
        return false;
    if (write_page(log, &err) == KG_OK)
        return true;
    kg_log_warn("%s/report.html is not written: %s", log->dir, err.message);
    kg_report_run_free(log->report); /* a line may be in it by half */
    log->report = NULL;
    return false;
}
