/* state.json: the counters of a run as a table, so that saving and loading cannot
 * disagree.
 *
 * A row is a name and the place of a field in struct kg_counters; a new counter is a new
 * row. Reals are written with 17 digits, which read back as the same bits.
 */
#include "train/keep/checkpoint.h"

#include "data/json.h"

#include <stddef.h>

struct counter_row {
    const char *key;
    size_t offset;
};
/* of state.json: increase it when a row or a file of a checkpoint is added */
enum { FORMAT = 3 };
static const struct counter_row counter_rows[] = {
    {"sft_step", offsetof(struct kg_counters, sft_step)},
    {"step", offsetof(struct kg_counters, step)},
    {"prompts", offsetof(struct kg_counters, prompts)},
    {"optim_step", offsetof(struct kg_counters, optim_step)},
    {"optim_before", offsetof(struct kg_counters, optim_before)},
    {"anchor_updates", offsetof(struct kg_counters, anchor_updates)},
    {"anchor_refreshed", offsetof(struct kg_counters, anchor_refreshed)},
    {"skipped", offsetof(struct kg_counters, skipped)},
    {"skipped_in_row", offsetof(struct kg_counters, skipped_in_row)},
    {"idle_updates", offsetof(struct kg_counters, idle_updates)},
    {"validated", offsetof(struct kg_counters, validated)},
    {"metrics_bytes", offsetof(struct kg_counters, metrics_bytes)},
};
enum { N_COUNTERS = sizeof counter_rows / sizeof *counter_rows };

/* Values that are not counts, written with all their bits. */
static const struct counter_row real_rows[] = {
    {"kl_beta", offsetof(struct kg_counters, kl_beta)},
    {"anchor_kl", offsetof(struct kg_counters, anchor_kl)},
};
enum { N_REALS = sizeof real_rows / sizeof *real_rows };

static double *real(struct kg_counters *c, const struct counter_row *row)
{
    return (double *)(void *)((char *)c + row->offset);
}

static int64_t *counter(struct kg_counters *c, const struct counter_row *row)
{
    return (int64_t *)(void *)((char *)c + row->offset);
}

kg_status kg_checkpoint_put_counters(const struct kg_counters *c, const char *path,
                                     struct kg_err *err)
{
    struct kg_counters from = *c;
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_printf(&text, err, "{\"format\": %d", FORMAT));
    for (int i = 0; i < N_COUNTERS; i++)
        KG_TRY_GOTO(out, kg_str_printf(&text, err, ", \"%s\": %lld", counter_rows[i].key,
                                       (long long)*counter(&from, &counter_rows[i])));
    for (int i = 0; i < N_REALS; i++)
        KG_TRY_GOTO(out, kg_str_printf(&text, err, ", \"%s\": %.17g", real_rows[i].key,
                                       *real(&from, &real_rows[i])));
    KG_TRY_GOTO(out, kg_str_puts(&text, "}\n", err));
    status = kg_file_write_atomic(path, text.data, text.len, err);
out:
    kg_str_release(&text);
    return status;
}

static kg_status read_real(double *x, const struct kg_json_doc *doc, const char *key,
                           struct kg_err *err)
{
    const struct kg_json *number = kg_json_get(doc->root, key);

    if (!kg_json_is_number(number))
        return kg_fail(err, KG_EFORMAT, "%s: key '%s': expected a number, found %s",
                       doc->where, key, kg_json_type_name(number));
    *x = kg_json_real(number, 0);
    return KG_OK;
}

static kg_status check_format(const struct kg_json_doc *doc, struct kg_err *err)
{
    int64_t format;

    KG_TRY(kg_json_need_int(&format, doc, doc->root, "format", 1, INT64_MAX, err));
    if (format == FORMAT)
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "%s: expected format %d, found %lld, written by an %s kedge. The "
                   "checkpoint's model (model/) can still be used: set model.path to it",
                   doc->where, FORMAT, (long long)format,
                   format < FORMAT ? "older" : "newer");
}

kg_status kg_checkpoint_counters(struct kg_counters *c, const char *path,
                                 struct kg_err *err)
{
    struct kg_json_doc doc;

    KG_TRY(kg_json_read(&doc, path, 1 << 16, err));
    kg_status status = check_format(&doc, err);
    for (int i = 0; i < N_COUNTERS && status == KG_OK; i++)
        status = kg_json_need_int(counter(c, &counter_rows[i]), &doc, doc.root,
                                  counter_rows[i].key, 0, INT64_MAX, err);
    for (int i = 0; i < N_REALS && status == KG_OK; i++)
        status = read_real(real(c, &real_rows[i]), &doc, real_rows[i].key, err);
    kg_json_release(&doc);
    return status;
}
