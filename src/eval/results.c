/* The folder of results: created, checked, continued, finished. Every file is either
 * appended to (the journal, one line per sample) or written whole and renamed, so a
 * process may be killed at any point: at most, the last line of the journal is incomplete
 * or a temporary file is left. config.yaml is written last at the start, results.json
 * last at the end. A folder is continued only by the same suite, key by key; a folder of
 * something else is not touched. */
#include "eval/results.h"

#include "base/log.h"
#include "base/mem.h"
#include "data/inputs.h"
#include "data/jsonl.h"
#include "data/records.h"
#include "eval/suite.h"

#include <stdio.h>
#include <string.h>

static bool has(const struct kg_results *r, const char *name)
{
    return kg_file_exists(kg_path_in(r->dir, name).text);
}

static kg_status write_file(const struct kg_results *r, const char *name,
                            const struct kg_str *text, struct kg_err *err)
{
    return kg_file_write_atomic(kg_path_in(r->dir, name).text, kg_str_text(text),
                                text->len, err);
}

/* ---- a new folder ---- */

static kg_status write_manifest(const struct kg_results *r, const char *inputs,
                                struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(
        out, kg_str_printf(&text, err, "{\"kedge\": \"" KG_VERSION "\", \"inputs\": "));
    KG_TRY_GOTO(out, kg_str_puts(&text, inputs, err));
    KG_TRY_GOTO(out, kg_str_puts(&text, "}\n", err));
    status = write_file(r, "manifest.json", &text, err);
out:
    kg_str_release(&text);
    return status;
}

/* config.yaml is written last: a folder with it also has manifest.json. */
static kg_status begin(const struct kg_results *r, const struct kg_config *config,
                       const char *inputs, struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, write_manifest(r, inputs, err));
    KG_TRY_GOTO(out, kg_config_dump_yaml(&text, config, false, err));
    status = write_file(r, "config.yaml", &text, err);
out:
    kg_str_release(&text);
    return status;
}

/* Refuses a folder with other files: it does not belong to an evaluation. */
static kg_status refuse_others(const struct kg_results *r, struct kg_err *err)
{
    static const char *const ours[] = {"lock", "manifest.json", "config.yaml"};
    char **names;
    size_t n;
    kg_status status = KG_OK;

    KG_TRY(kg_file_list(&names, &n, r->dir, err));
    for (size_t i = 0; i < n && status == KG_OK; i++) {
        /* left by an interrupted write */
        bool known = kg_file_is_temporary(kg_path_in(r->dir, names[i]).text);

        for (size_t k = 0; k < sizeof ours / sizeof *ours; k++)
            known = known || strcmp(names[i], ours[k]) == 0;
        if (!known)
            status = kg_fail(
                err, KG_ECONFLICT,
                "%s: expected an empty folder or the folder of an evaluation, "
                "found %.80s but no config.yaml",
                r->dir, names[i]);
    }
    kg_file_names_free(names, n);
    return status;
}

/* Removes files of interrupted writes; under the lock no other process writes. */
static kg_status remove_temporary(const struct kg_results *r, struct kg_err *err)
{
    char **names;
    size_t n;
    kg_status status = KG_OK;

    KG_TRY(kg_file_list(&names, &n, r->dir, err));
    for (size_t i = 0; i < n && status == KG_OK; i++) {
        struct kg_path path = kg_path_in(r->dir, names[i]);

        if (kg_file_is_temporary(path.text))
            status = kg_file_remove_tree(path.text, err);
    }
    kg_file_names_free(names, n);
    return status;
}

/* ---- an existing folder ---- */

static kg_status put_names(struct kg_str *out, const struct kg_suite *s,
                           struct kg_err *err)
{
    for (size_t i = 0; i < s->n_all; i++)
        KG_TRY(kg_str_printf(out, err, "%s%s",
                             i == s->n ? "; left out: "
                             : i       ? ", "
                                       : "",
                             s->names[i]));
    return KG_OK;
}

/* Two suites can be compared key by key only if their sets have the same names. */
static kg_status same_sets(const struct kg_results *r, const struct kg_suite *before,
                           const struct kg_suite *suite, struct kg_err *err)
{
    struct kg_str was = {0}, is = {0};
    kg_status status;

    KG_TRY_GOTO(out, put_names(&was, before, err));
    KG_TRY_GOTO(out, put_names(&is, suite, err));
    if (strcmp(kg_str_text(&was), kg_str_text(&is)) != 0)
        status = kg_fail(err, KG_ECONFLICT,
                         "%s: expected the sets that it started with (%.200s), found "
                         "%.200s; choose another --out",
                         r->dir, kg_str_text(&was), kg_str_text(&is));
out:
    kg_str_release(&was);
    kg_str_release(&is);
    return status;
}

static kg_status same_config(const struct kg_results *r, const struct kg_suite *before,
                             const struct kg_config *config, struct kg_err *err)
{
    struct kg_str diff = {0};
    size_t n = 0;
    kg_status status = kg_config_diff(&diff, &n, before->config, config, err);

    if (status == KG_OK && n > 0)
        status = kg_fail(err, KG_ECONFLICT,
                         "%s: expected the config that it started with, found %zu "
                         "change%s: %.400s; choose another --out",
                         r->dir, n, n > 1 ? "s" : "", kg_str_text(&diff));
    kg_str_release(&diff);
    return status;
}

static kg_status check(const struct kg_results *r, const struct kg_suite *suite,
                       const char *inputs, struct kg_err *err)
{
    struct kg_suite before = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_suite_open(&before, kg_path_in(r->dir, "config.yaml").text, err));
    KG_TRY_GOTO(out, kg_suite_choose(&before, err));
    KG_TRY_GOTO(out, same_sets(r, &before, suite, err));
    KG_TRY_GOTO(out, same_config(r, &before, suite->config, err));
    status = kg_inputs_compare(kg_path_in(r->dir, "manifest.json").text, inputs, NULL,
                               err);
out:
    kg_suite_release(&before);
    return status;
}

kg_status kg_results_open(struct kg_results *r, const char *dir,
                          const struct kg_suite *suite, const char *inputs,
                          struct kg_err *err)
{
    kg_status status;

    *r = (struct kg_results){.dir = kg_mem_strdup(dir, err)};
    if (!r->dir)
        return err->code;
    KG_TRY_GOTO(out, kg_file_make_dirs(dir, err));
    if (!has(r, "config.yaml"))
        KG_TRY_GOTO(out, refuse_others(r, err));
    KG_TRY_GOTO(out, kg_file_lock_take(&r->lock, kg_path_in(dir, "lock").text, err));
    KG_TRY_GOTO(out, remove_temporary(r, err));
    if (has(r, "config.yaml"))
        KG_TRY_GOTO(out, check(r, suite, inputs, err));
    else
        KG_TRY_GOTO(out, begin(r, suite->config, inputs, err));
    r->complete = has(r, "results.json");
out:
    if (status != KG_OK)
        kg_results_close(r);
    return status;
}

void kg_results_close(struct kg_results *r)
{
    if (r->writing)
        kg_file_writer_abort(&r->journal);
    kg_file_lock_release(&r->lock);
    kg_mem_free(r->dir);
    *r = (struct kg_results){0};
}

/* ---- lines of samples ---- */

static kg_status read_samples(struct kg_results *r, kg_result_fn fn, void *user,
                              struct kg_err *err)
{
    const struct kg_path path = kg_path_in(r->dir, "samples.jsonl.zst");
    struct kg_records *records = NULL;
    struct kg_json_doc doc = {0};
    bool more = true;
    kg_status status;

    KG_TRY_GOTO(out, kg_records_open(&records, path.text, err));
    while (more) {
        KG_TRY_GOTO(out, kg_records_next(records, &doc, &more, err));
        if (more)
            KG_TRY_GOTO(out, fn(user, &doc, (struct kg_result_place){0, 0}, err));
    }
out:
    kg_json_release(&doc);
    kg_records_close(records);
    return status;
}

/* Reads lines up to the first incomplete or invalid one; *good: bytes of those lines. */
static kg_status read_lines(uint64_t *good, const struct kg_map *map, const char *path,
                            kg_result_fn fn, void *user, struct kg_err *err)
{
    const char *data = (const char *)map->data;
    int64_t number = 0;

    *good = 0;
    while (*good < map->bytes) {
        const char *line = data + *good;
        const char *end = memchr(line, '\n', map->bytes - *good);
        struct kg_json_doc doc = {0};
        char where[KG_ERR_MESSAGE_BYTES / 2];
        struct kg_err parse;

        snprintf(where, sizeof where, "%.300s line %lld", path, (long long)++number);
        if (!end)
            return KG_OK;
        if (kg_json_parse(&doc, line, (size_t)(end - line), where, &parse) != KG_OK) {
            kg_log_warn("%s; this and all later samples are sampled again",
                        parse.message);
            return KG_OK;
        }
        kg_status status = fn(
            user, &doc, (struct kg_result_place){*good, (uint64_t)(end + 1 - line)}, err);
        kg_json_release(&doc);
        KG_TRY(status);
        *good += (uint64_t)(end + 1 - line);
    }
    return KG_OK;
}

static kg_status read_journal(struct kg_results *r, const char *path, kg_result_fn fn,
                              void *user, struct kg_err *err)
{
    struct kg_map map = {0};
    uint64_t good = 0;
    kg_status status = KG_OK;

    if (kg_file_exists(path)) {
        KG_TRY(kg_map_open(&map, path, err));
        status = read_lines(&good, &map, path, fn, user, err);
        kg_map_close(&map);
    }
    KG_TRY(status);
    KG_TRY(kg_file_writer_append(&r->journal, path, good, err));
    r->writing = true;
    return KG_OK;
}

kg_status kg_results_read(struct kg_results *r, kg_result_fn fn, void *user,
                          struct kg_err *err)
{
    const struct kg_path path = kg_path_in(r->dir, "journal.jsonl");

    if (!r->complete)
        return read_journal(r, path.text, fn, user, err);
    KG_TRY(kg_file_remove_tree(path.text, err)); /* a later step was interrupted */
    return read_samples(r, fn, user, err);
}

kg_status kg_results_put(struct kg_results *r, struct kg_result_place *place,
                         const struct kg_str *line, struct kg_err *err)
{
    *place = (struct kg_result_place){r->journal.written, line->len};
    KG_TRY(kg_file_writer_put(&r->journal, line->data, line->len, err));
    return kg_file_writer_flush(&r->journal, err);
}

/* ---- the end ---- */

static kg_status write_samples(struct kg_results *r, const char *journal,
                               const struct kg_results_end *end, struct kg_err *err)
{
    const struct kg_path path = kg_path_in(r->dir, "samples.jsonl.zst");
    struct kg_zst_writer *w = NULL;
    struct kg_map map = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_map_open(&map, journal, err));
    KG_TRY_GOTO(out, kg_zst_open(&w, path.text, 0, err));
    uint64_t bytes;
    size_t i = 0;

    for (size_t frame = 0; frame < end->n_ends; frame++) {
        for (; i < end->ends[frame]; i++)
            KG_TRY_GOTO(
                out, kg_zst_put(w, map.data + end->places[i].at, end->places[i].n, err));
        KG_TRY_GOTO(out, kg_zst_end_frame(w, &bytes, err));
    }
    status = kg_zst_close(w, err);
    w = NULL;
out:
    kg_zst_abort(w);
    kg_map_close(&map);
    return status;
}

kg_status kg_results_finish(struct kg_results *r, const struct kg_results_end *end,
                            struct kg_err *err)
{
    const struct kg_path journal = kg_path_in(r->dir, "journal.jsonl");

    r->writing = false;
    KG_TRY(kg_file_writer_close(&r->journal, err));
    KG_TRY(write_samples(r, journal.text, end, err));
    KG_TRY(write_file(r, "problems.jsonl", end->problems, err));
    KG_TRY(write_file(r, "results.json", end->results, err));
    r->complete = true;
    return kg_file_remove_tree(journal.text, err);
}
