/* Creates, checks and truncates a run directory.
 *
 * A directory belongs to one run. It is created once and refused afterwards, unless the
 * run that created it made no step. --resume compares it key by key and byte by byte with
 * the recipe and its files. Then metrics.jsonl, dumps and events are truncated to the
 * step of the checkpoint, so that every later line is written once.
 */
#include "train/keep/run_dir.h"

#include "base/clock.h"
#include "base/log.h"
#include "data/json.h"
#include "data/jsonl.h"
#include "recipe/options.h"
#include "report/history.h"
#include "report/tfevents.h"
#include "train/keep/checkpoint.h"
#include "train/keep/facts.h"
#include "train/keep/inputs.h"
#include "train/log.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

enum { MAX_MANIFEST_BYTES = 1 << 20 };

static kg_status write_config(const struct kg_config *config, const char *dir,
                              struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_config_dump_yaml(&text, config, true, err));
    status = kg_file_write_atomic(kg_path_in(dir, "config.yaml").text, text.data,
                                  text.len, err);
out:
    kg_str_release(&text);
    return status;
}

/* Counts keys of config.yaml: those that are set when written, or given when read. */
static int64_t count_keys(const struct kg_config *c,
                          bool (*has)(const struct kg_config *, const char *))
{
    int64_t n = 0;

    for (size_t i = 0; i < kg_config_rows(c); i++)
        n += has(c, kg_config_row(c, i)->key);
    return n;
}

static kg_status write_manifest(const struct kg_run_inputs *in, const struct kg_model *m,
                                const struct kg_ranks *ranks, const char *dir,
                                struct kg_err *err)
{
    struct kg_str text = {0};
    struct utsname machine;
    kg_status status;

    if (uname(&machine) != 0)
        memset(&machine, 0, sizeof machine);
    KG_TRY_GOTO(
        out,
        kg_str_printf(
            &text, err,
            "{\"kedge\": \"" KG_VERSION
            "\", \"config_keys\": %lld, \"started_unix\": %.0f, \"system\": \"%s %s "
            "%s\", \"threads\": %d, "
            "\"compute_dtype\": \"%s\", \"parameters\": %lld, \"train_prompts\": %zu, "
            "\"validation_prompts\": %zu, \"inputs\": ",
            (long long)count_keys(in->config, kg_config_is_set), kg_clock_unix_seconds(),
            machine.sysname, machine.release, machine.machine, kg_threads_get(),
            kg_dtype_traits(m->ct)->name, (long long)m->n_elements,
            in->answers.n > 0 ? in->answers.n : in->train.n, in->val.n));
    KG_TRY_GOTO(out, kg_inputs_json(&text, &in->recipe, err));
    KG_TRY_GOTO(out, kg_str_puts(&text, ", ", err));
    KG_TRY_GOTO(out, kg_facts_json(&text, m->backend, ranks, err));
    KG_TRY_GOTO(out, kg_str_puts(&text, "}\n", err));
    status = kg_file_write_atomic(kg_path_in(dir, "manifest.json").text, text.data,
                                  text.len, err);
out:
    kg_str_release(&text);
    return status;
}

kg_status kg_run_dir_logged(struct kg_logged *found, const char *dir, struct kg_err *err)
{
    struct kg_path path = kg_path_in(dir, "metrics.jsonl");
    struct kg_jsonl *lines = NULL;
    struct kg_json_doc doc = {0};
    bool more = kg_file_exists(path.text);
    kg_status status = KG_OK;

    *found = (struct kg_logged){0};
    if (!more)
        return KG_OK;
    KG_TRY(kg_jsonl_open(&lines, path.text, err));
    for (;;) {
        const char *phase;

        KG_TRY_GOTO(out, kg_jsonl_next(lines, &doc, &more, err));
        if (!more)
            break;
        phase = kg_json_text(kg_json_get(doc.root, "phase"), NULL);
        found->any |= !phase || strcmp(phase, "validation") != 0;
        if (phase && strcmp(phase, "rl") == 0)
            found->last = kg_json_int(kg_json_get(doc.root, "step"), found->last);
        if (found->first == 0)
            found->first = found->last;
    }
out:
    found->any |= status == KG_EFORMAT;
    kg_json_release(&doc);
    kg_jsonl_close(lines);
    return status == KG_EFORMAT ? KG_OK : status; /* the last line is truncated */
}

/* Whether a run began here: after lock, its first file is manifest.json, with keys of
 * write_manifest. A manifest.json without them belongs to a model or to the user. */
static kg_status was_begun(bool *begun, const char *dir, struct kg_err *err)
{
    struct kg_path path = kg_path_in(dir, "manifest.json");
    struct kg_json_doc doc = {0};

    *begun = false;
    if (!kg_file_exists(path.text))
        return KG_OK;
    kg_status status = kg_json_read(&doc, path.text, MAX_MANIFEST_BYTES, err);
    if (status == KG_EFORMAT)
        return KG_OK;
    *begun = status == KG_OK && kg_json_get(doc.root, "kedge") &&
             kg_json_get(doc.root, "started_unix");
    kg_json_release(&doc);
    return status;
}

/* Refuses to overwrite files in a folder where no run began: they are the user's. */
static kg_status refuse_others_files(const char *dir, struct kg_err *err)
{
    static const char *const names[] = {"config.yaml", "metrics.jsonl", "manifest.json"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (kg_file_exists(kg_path_in(dir, names[i]).text))
            return kg_fail(
                err, KG_ECONFLICT,
                "%s: expected a folder without a run, found a %s that is not from a run "
                "of kedge (no manifest.json of a run); choose another run.dir",
                dir, names[i]);
    return KG_OK;
}

/* Refuses a folder that has results of a run, which a new one would overwrite or remove
 * as old checkpoints. A run that made no step (its grader failed, say) has none.
 * *begun: a run began here */
static kg_status refuse_a_run(bool *begun, const char *dir, struct kg_err *err)
{
    char name[KG_CHECKPOINT_NAME];
    bool config = kg_file_exists(kg_path_in(dir, "config.yaml").text);
    struct kg_logged logged;

    KG_TRY(kg_checkpoint_seen(name, dir, err));
    KG_TRY(kg_run_dir_logged(&logged, dir, err));
    KG_TRY(was_begun(begun, dir, err));
    if (name[0] || logged.any)
        return kg_fail(
            err, KG_ECONFLICT,
            "%s: expected a folder without a run, found %s%s%s; %sname another "
            "run.dir",
            dir, config ? "config.yaml and " : "",
            name[0] ? "checkpoints/" : "metrics.jsonl", name,
            config ? "continue that run with --resume, or " : "");
    return *begun ? KG_OK : refuse_others_files(dir, err);
}

kg_status kg_run_dir_resumable(bool *resumable, const char *dir, struct kg_err *err)
{
    char name[KG_CHECKPOINT_NAME];
    struct kg_logged logged;

    KG_TRY(kg_checkpoint_seen(name, dir, err));
    KG_TRY(kg_run_dir_logged(&logged, dir, err));
    *resumable = logged.any || name[0] != '\0';
    return KG_OK;
}

/* Step of a dump in rollouts/, and whether it is an SFT step. False for other names. */
static bool is_dump(const char *name, int64_t *step, bool *sft)
{
    static const char *const prefixes[] = {"step-", "val-", "val_anchor-", "skipped-sft-",
                                           "skipped-"};

    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t n = strlen(prefixes[i]);
        char *end;

        if (strncmp(name, prefixes[i], n) != 0 || !isdigit((unsigned char)name[n]))
            continue;
        *step = strtoll(name + n, &end, 10);
        *sft = strcmp(prefixes[i], "skipped-sft-") == 0;
        return strcmp(end, ".jsonl.zst") == 0;
    }
    return false;
}

/* Whether a file of rollouts/ is a dump of a step that is not done (NULL: no step is). */
static bool is_undone_dump(const char *name, const struct kg_counters *done)
{
    int64_t step;
    bool sft;

    return is_dump(name, &step, &sft) &&
           (!done || step > (sft ? done->sft_step : done->step));
}

static bool is_events(const char *name, const struct kg_counters *done)
{
    (void)done;
    return kg_tfevents_is_name(name);
}

/* Removes the files of a folder that `which` selects. The folder may be missing; folders
 * in it are kept, because kedge writes none there. */
static kg_status remove_files(struct kg_path root,
                              bool (*which)(const char *, const struct kg_counters *),
                              const struct kg_counters *done, struct kg_err *err)
{
    char **names;
    size_t n;
    kg_status status = KG_OK;

    if (!kg_file_exists(root.text))
        return KG_OK;
    KG_TRY(kg_file_list(&names, &n, root.text, err));
    for (size_t i = 0; i < n && status == KG_OK; i++) {
        struct kg_path path = kg_path_in(root.text, names[i]);

        if (which(names[i], done) && !kg_file_is_dir(path.text))
            status = kg_file_remove_tree(path.text, err);
    }
    kg_file_names_free(names, n);
    return status;
}

/* Removes what a run without a step left: only files with names that kedge gives; all
 * others, in sft/ and rollouts/ too, belong to the user. manifest.json and config.yaml
 * are overwritten later, so an interrupted removal is repeated by the next start. */
static kg_status remove_attempt(const char *dir, struct kg_err *err)
{
    static const char *const names[] = {"metrics.jsonl", "watch.log", "report.html"};

    kg_log_info("%s: an earlier run here made no step: starting over", dir);
    KG_TRY(remove_files(kg_path_in(dir, "."), is_events, NULL, err));
    KG_TRY(remove_files(kg_path_in(dir, "sft"), is_events, NULL, err));
    KG_TRY(remove_files(kg_path_in(dir, "rollouts"), is_undone_dump, NULL, err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        KG_TRY(kg_file_remove_tree(kg_path_in(dir, names[i]).text, err));
    return KG_OK;
}

/* Two processes in one run directory would truncate each other's files. */
static kg_status lock(struct kg_run_log *log, struct kg_err *err)
{
    return kg_file_lock_take(&log->lock, kg_path_in(log->dir, "lock").text, err);
}

kg_status kg_run_dir_create(const struct kg_run_inputs *in,
                            const struct kg_run_state *state,
                            const struct kg_ranks *ranks, struct kg_run_log *log,
                            struct kg_err *err)
{
    const char *dir = log->dir;
    bool begun;

    KG_TRY(refuse_a_run(&begun, dir, err)); /* before anything is written */
    KG_TRY(kg_file_make_dirs(dir, err));
    KG_TRY(lock(log, err));
    KG_TRY(refuse_a_run(&begun, dir, err)); /* again, now with the lock */
    if (begun)
        KG_TRY(remove_attempt(dir, err));
    KG_TRY(kg_file_make_dirs(kg_path_in(dir, "checkpoints").text, err));
    KG_TRY(kg_file_make_dirs(kg_path_in(dir, "rollouts").text, err));
    KG_TRY(write_manifest(in, state->model, ranks, dir, err));
    return write_config(in->config, dir, err);
}

/* In a truncated file, missing keys would have their defaults. */
static kg_status check_whole(const char *dir, const struct kg_config *before,
                             struct kg_err *err)
{
    struct kg_path path = kg_path_in(dir, "manifest.json");
    struct kg_json_doc doc = {0};
    int64_t written, found = count_keys(before, kg_config_is_given);

    if (!kg_file_exists(path.text))
        return KG_OK; /* kg_inputs_check refuses this */
    KG_TRY(kg_json_read(&doc, path.text, MAX_MANIFEST_BYTES, err));
    written = kg_json_int(kg_json_get(doc.root, "config_keys"), 0);
    kg_json_release(&doc);
    if (found >= written)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "%s: expected the %lld keys that the run started with, found %lld: "
                   "the file is truncated",
                   kg_path_in(dir, "config.yaml").text, (long long)written,
                   (long long)found);
}

/* With device.may_change, the keys that name the device may change, too. */
static kg_status take_device(struct kg_config *before, const struct kg_config *config,
                             struct kg_err *err)
{
    for (size_t i = 0; i < kg_config_rows(config); i++) {
        const char *key = kg_config_row(config, i)->key;

        if (strcmp(key, "model.device") == 0 || strncmp(key, "device.", 7) == 0)
            KG_TRY(kg_config_set(before, key, kg_config_text(config, key), false,
                                 "device.may_change", err));
    }
    return KG_OK;
}

static kg_status check_config(const struct kg_config *config, const char *dir,
                              bool may_change, struct kg_err *err)
{
    struct kg_config *before = NULL;
    struct kg_str diff = {0};
    size_t n = 0;
    kg_status status;

    KG_TRY_GOTO(
        out, kg_train_config(&before, kg_path_in(dir, "config.yaml").text, NULL, 0, err));
    KG_TRY_GOTO(out, check_whole(dir, before, err));
    if (may_change)
        KG_TRY_GOTO(out, take_device(before, config, err));
    KG_TRY_GOTO(out, kg_config_diff(&diff, &n, before, config, err));
    if (n > 0)
        status = kg_fail(
            err, KG_ECONFLICT,
            "%s: expected the config that the run started with, found %zu change%s: %s",
            dir, n, n > 1 ? "s" : "", kg_str_text(&diff));
out:
    kg_str_release(&diff);
    kg_config_free(before);
    return status;
}

/* Reading a pipe in place of a file would block. */
static kg_status check_files(const char *dir, struct kg_err *err)
{
    static const char *const names[] = {"config.yaml", "manifest.json", "metrics.jsonl"};

    if (!kg_file_exists(kg_path_in(dir, "config.yaml").text))
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected a run to resume, found no config.yaml", dir);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct kg_path path = kg_path_in(dir, names[i]);

        if (kg_file_exists(path.text) && !kg_file_is_regular(path.text))
            return kg_fail(err, KG_EIO,
                           "%s: expected a file of the run, found a folder, a pipe or a "
                           "dangling link",
                           path.text);
    }
    return KG_OK;
}

/* The newest checkpoint may be missing, because it is written during the next step. If
 * two were due and none exists, they were lost; starting over would truncate the log of
 * their steps. */
static kg_status check_checkpoints(const struct kg_recipe *r, const char *dir,
                                   struct kg_err *err)
{
    const int64_t every = r->checkpoint.every;
    char newest[KG_CHECKPOINT_NAME];
    struct kg_logged logged;

    KG_TRY(kg_checkpoint_seen(newest, dir, err));
    KG_TRY(kg_run_dir_logged(&logged, dir, err));
    if (*newest || every == 0 || logged.last <= 2 * every)
        return KG_OK;
    return kg_fail(err, KG_ENOTFOUND,
                   "%s/checkpoints: expected a checkpoint of the %lld steps in "
                   "metrics.jsonl (checkpoint.every %lld), found none; to start over, "
                   "name another run.dir or remove this one",
                   dir, (long long)logged.last, (long long)every);
}

/* Compares config, inputs and device with those at the start of the run. */
static kg_status check_same(const struct kg_run_inputs *in,
                            const struct kg_run_state *state, const char *dir,
                            struct kg_err *err)
{
    struct kg_path manifest = kg_path_in(dir, "manifest.json");
    bool may_change = in->recipe.device.may_change;

    KG_TRY(check_checkpoints(&in->recipe, dir, err));
    KG_TRY(check_config(in->config, dir, may_change, err));
    KG_TRY(kg_inputs_check(&in->recipe, manifest.text, err));
    return may_change ? KG_OK : kg_facts_check(manifest.text, state->model->backend, err);
}

kg_status kg_run_dir_check(const struct kg_run_inputs *in,
                           const struct kg_run_state *state, struct kg_run_log *log,
                           struct kg_err *err)
{
    KG_TRY(check_files(log->dir, err));
    KG_TRY(lock(log, err));
    KG_TRY(kg_file_remove_stale(kg_path_in(log->dir, "config.yaml").text, err));
    KG_TRY(kg_file_remove_stale(kg_path_in(log->dir, "manifest.json").text, err));
    KG_TRY(check_same(in, state, log->dir, err));
    return write_config(in->config, log->dir, err);
}

kg_status kg_run_dir_try(const struct kg_run_inputs *in, const struct kg_run_state *state,
                         struct kg_run_log *log, bool resume, struct kg_err *err)
{
    bool begun;

    if (kg_file_exists(kg_path_in(log->dir, "lock").text))
        KG_TRY(lock(log, err));
    if (!resume) {
        KG_TRY(refuse_a_run(&begun, log->dir, err));
        return kg_file_try_dirs(log->dir, err);
    }
    KG_TRY(check_files(log->dir, err));
    return check_same(in, state, log->dir, err);
}

kg_status kg_run_dir_cut(const struct kg_run_inputs *in, const struct kg_run_state *state,
                         const struct kg_ranks *ranks, struct kg_run_log *log,
                         struct kg_err *err)
{
    struct kg_path metrics = kg_path_in(log->dir, "metrics.jsonl");
    bool moved;

    if (state->count.metrics_bytes > 0 && !kg_file_exists(metrics.text))
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected the log of the steps before the checkpoint (%llu "
                       "bytes), found no file",
                       metrics.text, (unsigned long long)state->count.metrics_bytes);
    KG_TRY(kg_file_writer_append(&log->metrics, metrics.text, state->count.metrics_bytes,
                                 err));
    log->metrics_open = true;
    KG_TRY(kg_facts_note(&moved, kg_path_in(log->dir, "manifest.json").text,
                         state->model->backend, ranks, state->saved_name, err));
    if (moved)
        kg_log_warn("%s: the device changes here: bits may differ from a run that stays "
                    "on one device (device.may_change; manifest.json lists all devices)",
                    log->dir);
    kg_run_log_resume(in, state, log);
    KG_TRY(kg_file_make_dirs(kg_path_in(log->dir, "rollouts").text, err));
    return remove_files(kg_path_in(log->dir, "rollouts"), is_undone_dump, &state->count,
                        err);
}
