/* Selects the folder and first step of events, and the lines of metrics.jsonl to repeat.
 *
 * Events are a second copy of the log, and the two may differ after a kill. The log
 * decides: on a resume, events after the checkpoint are made void, and lines without
 * events are read from metrics.jsonl and written now.
 */
#include "train/log.h"

#include "base/log.h"
#include "report/history.h"
#include "report/report.h"

#include <string.h>

static bool is_sft(const char *phase) { return strcmp(phase, "sft") == 0; }

static struct kg_path folder(const char *dir, bool sft)
{
    struct kg_path p = kg_path_in(dir, "sft");

    if (!sft)
        strcpy(p.text, dir); /* at most KG_RUN_DIR_MAX bytes */
    return p;
}

static void give_up(struct kg_run_log *log, const struct kg_err *err)
{
    kg_log_warn("no more TensorBoard events until the run is resumed: %s", err->message);
    if (log->events.open)
        kg_tfevents_abort(&log->events);
    log->events_off = true;
}

/* Writes a line of metrics.jsonl as events if it is of this folder, at step >= from. */
static kg_status say_again(struct kg_run_log *log, const char *text, size_t n,
                           int64_t from, struct kg_err *err)
{
    struct kg_json_doc doc;
    struct kg_metrics m;
    const char *phase;
    int64_t step;

    KG_TRY(kg_json_parse(&doc, text, n, "metrics.jsonl", err));
    kg_status status = kg_metrics_parse(&m, &phase, &step, &doc, err);
    if (status == KG_OK && step >= from && is_sft(phase) == log->events_sft)
        status = kg_tfevents_put(&log->events, &m, step, err);
    kg_json_release(&doc);
    return status;
}

static kg_status say_lines_again(struct kg_run_log *log, int64_t from, struct kg_err *err)
{
    struct kg_map map;
    const char *at, *end;
    kg_status status = KG_OK;

    KG_TRY(kg_map_open(&map, kg_path_in(log->dir, "metrics.jsonl").text, err));
    at = (const char *)map.data;
    for (end = at + map.bytes; at < end && status == KG_OK;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));

        if (!stop)
            break;
        status = say_again(log, at, (size_t)(stop - at), from, err);
        at = stop + 1;
    }
    kg_map_close(&map);
    return status;
}

/* Voids the events from step `from` on and writes them again from metrics.jsonl, because
 * a validation of that step may be newer than the checkpoint. */
static kg_status begin(struct kg_run_log *log, bool sft, int64_t from, struct kg_err *err)
{
    KG_TRY(kg_tfevents_close(&log->events, err));
    log->events_sft = sft;
    KG_TRY(kg_tfevents_open(&log->events, folder(log->dir, sft).text, from, err));
    return say_lines_again(log, from, err);
}

/* The folder's lines reach step `at`. If events were off or given up, they end earlier,
 * and everything after their end is written again. The folder of a finished phase is not
 * opened if nothing is missing. */
static kg_status resume(struct kg_run_log *log, bool sft, int64_t at, bool over,
                        struct kg_err *err)
{
    int64_t said;

    KG_TRY(kg_tfevents_last_step(&said, folder(log->dir, sft).text, err));
    if (over ? said >= at : said < 0 && at == 0)
        return KG_OK; /* the first line opens it */
    said = said < 0 ? 0 : said;
    return begin(log, sft, said < at ? said : at, err);
}

void kg_run_log_resume(const struct kg_run_inputs *in, const struct kg_run_state *state,
                       struct kg_run_log *log)
{
    bool sft = state->count.sft_step < in->sft_steps;
    struct kg_err err;
    kg_status status = KG_OK;

    log->events_off = !in->recipe.log.tensorboard;
    if (log->events_off)
        return;
    if (!sft && state->count.sft_step > 0)
        status = resume(log, true, state->count.sft_step, true, &err);
    if (status == KG_OK)
        status = resume(log, sft, sft ? state->count.sft_step : state->count.step, false,
                        &err);
    if (status != KG_OK)
        give_up(log, &err);
}

/* The first line of a folder: earlier lines can only be those of a validation of step 0.
 * Existing events, of a run that was cut back to its SFT, become void. */
static void put_event(struct kg_run_log *log, const struct kg_metrics *m,
                      const char *phase, int64_t step)
{
    bool sft = is_sft(phase);
    struct kg_err err;
    kg_status status = KG_OK;

    if (log->events_off)
        return;
    if (!log->events.open || sft != log->events_sft)
        status = begin(log, sft, 0, &err);
    if (status == KG_OK)
        status = kg_tfevents_put(&log->events, m, step, &err);
    if (status != KG_OK)
        give_up(log, &err);
}

kg_status kg_run_log_put(struct kg_run_log *log, const struct kg_metrics *m,
                         const char *phase, int64_t step, struct kg_err *err)
{
    struct kg_str line = {0};
    kg_status status;

    if (log->elsewhere)
        return KG_OK;
    put_event(log, m, phase, step);
    KG_TRY_GOTO(out, kg_metrics_json(&line, m, phase, step, err));
    KG_TRY_GOTO(out, kg_file_writer_put(&log->metrics, line.data, line.len, err));
    status = kg_file_writer_flush(&log->metrics, err);
out:
    kg_str_release(&line);
    return status;
}

/* ---- report.html ---- */

/* log->report keeps what it has read, so each checkpoint reads only new lines. */
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
    kg_report_run_free(log->report); /* it may have half a line */
    log->report = NULL;
    return false;
}

void kg_run_log_close(struct kg_run_log *log)
{
    struct kg_err ignored = {0};

    if (log->metrics_open && kg_file_writer_close(&log->metrics, &ignored) != KG_OK)
        kg_log_warn("%s", ignored.message);
    if (kg_tfevents_close(&log->events, &ignored) != KG_OK)
        kg_log_warn("%s", ignored.message);
    kg_report_run_free(log->report);
    kg_file_lock_release(&log->lock);
}
