/* Creating, checking and cutting back a run directory.
 *
 * A directory belongs to one run. It is made once and refused afterwards, unless the
 * attempt that made it came to no step; --resume compares it key by key and byte by byte
 * with what the recipe names now. metrics.jsonl, dumps and events are then cut back to
 * where the checkpoint stands, so that what follows is written once.
 */
#include "train/run_dir.h"

#include "base/clock.h"
#include "base/log.h"
#include "data/json.h"
#include "data/jsonl.h"
#include "recipe/options.h"
#include "report/path.h"
#include "report/tfevents.h"
#include "train/checkpoint.h"
#include "train/inputs.h"
#include "train/run_events.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

enum { MAX_MANIFEST_BYTES = 1 << 20 };

static struct kg_path in_run(const struct kg_run *run, const char *name)
{
    return kg_path_in(run->log.dir, name);
}

static kg_status write_config(const struct kg_run *run, struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_config_dump_yaml(&text, run->in.config, true, err));
    status = kg_file_write_atomic(in_run(run, "config.yaml").text, text.data, text.len,
                                  err);
out:
    kg_str_release(&text);
    return status;
}

/* Keys that config.yaml has: set, as it is written, or given, as it is read. */
static int64_t count_keys(const struct kg_config *c,
                          bool (*has)(const struct kg_config *, const char *))
{
    int64_t n = 0;

    for (size_t i = 0; i < kg_config_rows(c); i++)
        n += has(c, kg_config_row(c, i)->key);
    return n;
}

static kg_status write_manifest(const struct kg_run *run, struct kg_err *err)
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
            (long long)count_keys(run->in.config, kg_config_is_set),
            kg_clock_unix_seconds(), machine.sysname, machine.release, machine.machine,
            kg_threads_get(), kg_dtype_traits(run->state.model->ct)->name,
            (long long)run->state.model->n_elements,
            run->in.answers.n > 0 ? run->in.answers.n : run->in.train.n, run->in.val.n));
    KG_TRY_GOTO(out, kg_inputs_json(&text, &run->in.recipe, err));
    KG_TRY_GOTO(out, kg_str_puts(&text, "}\n", err));
    status = kg_file_write_atomic(in_run(run, "manifest.json").text, text.data, text.len,
                                  err);
out:
    kg_str_release(&text);
    return status;
}

/* Whether metrics.jsonl has a line of a step, supervised or not, or one of nobody's. */
static kg_status has_steps(bool *has, const struct kg_run *run, struct kg_err *err)
{
    struct kg_path path = in_run(run, "metrics.jsonl");
    struct kg_jsonl *lines = NULL;
    struct kg_json_doc doc = {0};
    bool more = true;
    kg_status status;

    *has = false;
    if (!kg_file_exists(path.text))
        return KG_OK;
    KG_TRY(kg_jsonl_open(&lines, path.text, err));
    while (!*has) {
        const char *phase;

        KG_TRY_GOTO(out, kg_jsonl_next(lines, &doc, &more, err));
        if (!more)
            break;
        phase = kg_json_text(kg_json_get(doc.root, "phase"), NULL);
        *has = !phase || strcmp(phase, "validation") != 0;
    }
out:
    *has |= status == KG_EFORMAT;
    status = status == KG_EFORMAT ? KG_OK : status;
    kg_json_release(&doc);
    kg_jsonl_close(lines);
    return status;
}

/* Whether a run was begun here: its manifest.json is what write_manifest wrote, before
 * any other file. A model's or somebody else's is not. */
static kg_status was_begun(bool *begun, const struct kg_run *run, struct kg_err *err)
{
    struct kg_path path = in_run(run, "manifest.json");
    struct kg_json_doc doc = {0};
    kg_status status;

    *begun = false;
    if (!kg_file_exists(path.text))
        return KG_OK;
    status = kg_json_read(&doc, path.text, MAX_MANIFEST_BYTES, err);
    if (status == KG_EFORMAT)
        return KG_OK;
    *begun = status == KG_OK && kg_json_get(doc.root, "kedge") &&
             kg_json_get(doc.root, "started_unix");
    kg_json_release(&doc);
    return status;
}

/* Files that a run writes over, in a folder where none was begun: they are the user's. */
static kg_status refuse_others_files(const struct kg_run *run, struct kg_err *err)
{
    static const char *const names[] = {"config.yaml", "metrics.jsonl", "manifest.json"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (kg_file_exists(in_run(run, names[i]).text))
            return kg_fail(err, KG_ECONFLICT,
                           "%s: expected a folder without a run, found a %s that no run "
                           "here has written (a run's manifest.json would say so); name "
                           "another run.dir",
                           run->log.dir, names[i]);
    return KG_OK;
}

/* Anything of a run that a new one would write over or, keeping the newest checkpoints,
 * remove. What a run leaves that made no step (its grader failed, say) is none.
 * *begun: there is such a rest */
static kg_status refuse_a_run(bool *begun, const struct kg_run *run, struct kg_err *err)
{
    char name[KG_CHECKPOINT_NAME];
    bool made;

    KG_TRY(kg_checkpoint_newest(name, run->log.dir, err));
    KG_TRY(has_steps(&made, run, err));
    KG_TRY(was_begun(begun, run, err));
    if ((name[0] || made) && kg_file_exists(in_run(run, "config.yaml").text))
        return kg_fail(err, KG_ECONFLICT,
                       "%s: expected a folder without a run, found config.yaml and %s%s; "
                       "continue that run with --resume, or name another run.dir",
                       run->log.dir, name[0] ? "checkpoints/" : "metrics.jsonl", name);
    if (name[0] || made)
        return kg_fail(err, KG_ECONFLICT,
                       "%s: expected a folder without a run, found %s%s; name another "
                       "run.dir",
                       run->log.dir, name[0] ? "checkpoints/" : "metrics.jsonl", name);
    return *begun ? KG_OK : refuse_others_files(run, err);
}

/* The step of a dump in rollouts/, and whether it is one of the warm start; false for
 * every other name. */
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

static bool is_any_dump(const char *name, const struct kg_run *run)
{
    int64_t step;
    bool sft;

    (void)run;
    return is_dump(name, &step, &sft);
}

/* Whether a file of rollouts/ is a dump of a step that the run has not done yet. */
static bool is_later_dump(const char *name, const struct kg_run *run)
{
    int64_t step;
    bool sft;

    return is_dump(name, &step, &sft) &&
           step > (sft ? run->state.count.sft_step : run->state.count.step);
}

static bool is_events(const char *name, const struct kg_run *run)
{
    (void)run;
    return kg_tfevents_is_name(name);
}

/* The files of RUN/folder (RUN itself: "") which `which` says yes to; no folder, none.
 * Only regular files and links: nothing that a run writes is a folder. */
static kg_status remove_files(const struct kg_run *run, const char *folder,
                              bool (*which)(const char *, const struct kg_run *),
                              struct kg_err *err)
{
    struct kg_path root = *folder ? in_run(run, folder) : kg_path_in(run->log.dir, ".");
    char **names;
    size_t n;
    kg_status status = KG_OK;

    if (!kg_file_is_dir(root.text))
        return KG_OK;
    KG_TRY(kg_file_list(&names, &n, root.text, err));
    for (size_t i = 0; i < n && status == KG_OK; i++) {
        struct kg_path path = kg_path_in(root.text, names[i]);

        if (which(names[i], run) && !kg_file_is_dir(path.text))
            status = kg_file_remove_tree(path.text, err);
    }
    kg_file_names_free(names, n);
    return status;
}

/* What a run left that made no step, by the names that kedge gives, and not a file more:
 * what else is there, in sft/ and rollouts/ too, is the user's. manifest.json and
 * config.yaml are written over: a removal that is cut off can be begun again. */
static kg_status remove_attempt(const struct kg_run *run, struct kg_err *err)
{
    static const char *const names[] = {"metrics.jsonl", "watch.log", "report.html"};

    kg_log_info("%s: a run was begun here and made no step: it is begun anew",
                run->log.dir);
    KG_TRY(remove_files(run, "", is_events, err));
    KG_TRY(remove_files(run, "sft", is_events, err));
    KG_TRY(remove_files(run, "rollouts", is_any_dump, err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        KG_TRY(kg_file_remove_tree(in_run(run, names[i]).text, err));
    return KG_OK;
}

/* Two processes in one run directory would each cut back what the other writes. */
static kg_status lock(struct kg_run *run, struct kg_err *err)
{
    return kg_file_lock_take(&run->log.lock, in_run(run, "lock").text, err);
}

kg_status kg_run_dir_create(struct kg_run *run, struct kg_err *err)
{
    bool begun;

    KG_TRY(refuse_a_run(&begun, run, err)); /* without a trace in it */
    KG_TRY(kg_file_make_dirs(run->log.dir, err));
    KG_TRY(lock(run, err));
    KG_TRY(refuse_a_run(&begun, run, err)); /* another may have been faster */
    if (begun)
        KG_TRY(remove_attempt(run, err));
    KG_TRY(kg_file_make_dirs(in_run(run, "checkpoints").text, err));
    KG_TRY(kg_file_make_dirs(in_run(run, "rollouts").text, err));
    KG_TRY(write_manifest(run, err));
    return write_config(run, err);
}

/* A key that is missing from a file which was cut off would be its default. */
static kg_status check_whole(const struct kg_run *run, const struct kg_config *before,
                             struct kg_err *err)
{
    struct kg_path path = in_run(run, "manifest.json");
    struct kg_json_doc doc = {0};
    int64_t written, found = count_keys(before, kg_config_is_given);

    if (!kg_file_exists(path.text))
        return KG_OK; /* refused with the inputs */
    KG_TRY(kg_json_read(&doc, path.text, MAX_MANIFEST_BYTES, err));
    written = kg_json_int(kg_json_get(doc.root, "config_keys"), 0);
    kg_json_release(&doc);
    if (found >= written)
        return KG_OK;
    return kg_fail(
        err, KG_EFORMAT,
        "%s: expected the %lld keys that the run was started with, found %lld: "
        "it is cut off",
        in_run(run, "config.yaml").text, (long long)written, (long long)found);
}

static kg_status check_config(const struct kg_run *run, struct kg_err *err)
{
    struct kg_config *before = NULL;
    struct kg_str diff = {0};
    size_t n = 0;
    kg_status status;

    KG_TRY_GOTO(out,
                kg_train_config(&before, in_run(run, "config.yaml").text, NULL, 0, err));
    KG_TRY_GOTO(out, check_whole(run, before, err));
    KG_TRY_GOTO(out, kg_config_diff(&diff, &n, before, run->in.config, err));
    for (size_t i = 0; i < diff.len; i++)
        diff.data[i] = diff.data[i] == '\n' ? ';' : diff.data[i];
    if (n > 0)
        status = kg_fail(err, KG_ECONFLICT,
                         "%s: expected the config that the run was started with, found "
                         "%zu changes: %s",
                         run->log.dir, n, kg_str_text(&diff));
out:
    kg_str_release(&diff);
    kg_config_free(before);
    return status;
}

/* A pipe in the place of one of them would be waited for. */
static kg_status check_files(const struct kg_run *run, struct kg_err *err)
{
    static const char *const names[] = {"config.yaml", "manifest.json", "metrics.jsonl"};

    if (!kg_file_exists(in_run(run, "config.yaml").text))
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected a run to resume, found no config.yaml",
                       run->log.dir);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct kg_path path = in_run(run, names[i]);

        if (kg_file_exists(path.text) && !kg_file_is_regular(path.text))
            return kg_fail(err, KG_EIO,
                           "%s: expected a file of the run, found something else (a "
                           "folder, a pipe, a link that leads nowhere)",
                           path.text);
    }
    return KG_OK;
}

kg_status kg_run_dir_check(struct kg_run *run, struct kg_err *err)
{
    KG_TRY(check_files(run, err));
    KG_TRY(lock(run, err));
    KG_TRY(kg_file_remove_stale(in_run(run, "config.yaml").text, err));
    KG_TRY(kg_file_remove_stale(in_run(run, "manifest.json").text, err));
    KG_TRY(check_config(run, err));
    KG_TRY(kg_inputs_check(&run->in.recipe, in_run(run, "manifest.json").text, err));
    return write_config(run, err);
}

kg_status kg_run_dir_try(struct kg_run *run, bool resume, struct kg_err *err)
{
    bool begun;

    if (kg_file_exists(in_run(run, "lock").text))
        KG_TRY(lock(run, err));
    if (!resume) {
        KG_TRY(refuse_a_run(&begun, run, err));
        return kg_file_try_dirs(run->log.dir, err);
    }
    KG_TRY(check_files(run, err));
    KG_TRY(check_config(run, err));
    return kg_inputs_check(&run->in.recipe, in_run(run, "manifest.json").text, err);
}

kg_status kg_run_dir_cut(struct kg_run *run, struct kg_err *err)
{
    KG_TRY(kg_file_writer_append(&run->log.metrics, in_run(run, "metrics.jsonl").text,
                                 run->state.count.metrics_bytes, err));
    run->log.metrics_open = true;
    kg_run_events_resume(run);
    return remove_files(run, "rollouts", is_later_dump, err);
}
