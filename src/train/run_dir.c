/* Creating, checking and cutting back a run directory. */
#include "train/run_dir.h"

#include "base/clock.h"
#include "base/log.h"
#include "data/json.h"
#include "data/jsonl.h"
#include "train/checkpoint.h"
#include "train/inputs.h"
#include "train/path.h"
#include "train/run_events.h"
#include "train/train_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

static struct kg_path in_run(const struct kg_run *run, const char *name)
{
    return kg_path_in(run->dir, name);
}

static kg_status write_config(const struct kg_run *run, struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_config_dump_yaml(&text, run->config, true, err));
    status = kg_file_write_atomic(in_run(run, "config.yaml").text, text.data, text.len,
                                  err);
out:
    kg_str_release(&text);
    return status;
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
            "\", \"started_unix\": %.0f, \"system\": \"%s %s %s\", \"threads\": %d, "
            "\"compute_dtype\": \"%s\", \"parameters\": %lld, \"train_prompts\": %zu, "
            "\"validation_prompts\": %zu, \"inputs\": ",
            kg_clock_unix_seconds(), machine.sysname, machine.release, machine.machine,
            kg_threads_get(), kg_dtype_traits(run->model->ct)->name,
            (long long)run->model->n_elements,
            run->answers.n > 0 ? run->answers.n : run->train.n, run->val.n));
    KG_TRY_GOTO(out, kg_inputs_json(&text, run->config, err));
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
    const char *path = in_run(run, "metrics.jsonl").text;
    struct kg_jsonl *lines = NULL;
    struct kg_json_doc doc = {0};
    bool more = true;
    kg_status status;

    *has = false;
    if (!kg_file_exists(path))
        return KG_OK;
    KG_TRY(kg_jsonl_open(&lines, path, err));
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

/* Anything of a run that a new one would write over or, keeping the newest checkpoints,
 * remove. What a run leaves that made no step (its grader failed, say) is none. */
static kg_status refuse_a_run(const struct kg_run *run, struct kg_err *err)
{
    char name[KG_CHECKPOINT_NAME];
    bool made;

    KG_TRY(kg_checkpoint_newest(name, run->dir, err));
    KG_TRY(has_steps(&made, run, err));
    if ((name[0] || made) && kg_file_exists(in_run(run, "config.yaml").text))
        return kg_fail(err, KG_ECONFLICT,
                       "%s: expected a folder without a run, found config.yaml and %s%s; "
                       "continue that run with --resume, or name another run.dir",
                       run->dir, name[0] ? "checkpoints/" : "metrics.jsonl", name);
    if (name[0] || made)
        return kg_fail(err, KG_ECONFLICT,
                       "%s: expected a folder without a run, found %s%s; name another "
                       "run.dir",
                       run->dir, name[0] ? "checkpoints/" : "metrics.jsonl", name);
    return KG_OK;
}

static kg_status remove_events(const struct kg_run *run, struct kg_err *err)
{
    static const char prefix[] = "events.out.tfevents.";
    char **names;
    size_t n;
    kg_status status = KG_OK;

    KG_TRY(kg_file_list(&names, &n, run->dir, err));
    for (size_t i = 0; i < n && status == KG_OK; i++)
        if (strncmp(names[i], prefix, sizeof prefix - 1) == 0)
            status = kg_file_remove_tree(in_run(run, names[i]).text, err);
    kg_file_names_free(names, n);
    return status;
}

/* What a run left that made no step; nothing where none was there. */
static kg_status remove_attempt(const struct kg_run *run, struct kg_err *err)
{
    static const char *const names[] = {"manifest.json", "metrics.jsonl", "watch.log",
                                        "report.html",   "rollouts",      "sft",
                                        "config.yaml"};

    if (!kg_file_exists(in_run(run, "config.yaml").text))
        return KG_OK;
    kg_log_info("%s: a run was begun here and made no step: it is begun anew", run->dir);
    KG_TRY(remove_events(run, err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        KG_TRY(kg_file_remove_tree(in_run(run, names[i]).text, err));
    return KG_OK;
}

/* Two processes in one run directory would each cut back what the other writes. */
static kg_status lock(struct kg_run *run, struct kg_err *err)
{
    return kg_file_lock_take(&run->lock, in_run(run, "lock").text, err);
}

kg_status kg_run_dir_create(struct kg_run *run, struct kg_err *err)
{
    KG_TRY(refuse_a_run(run, err)); /* without a trace in it */
    KG_TRY(kg_file_make_dirs(run->dir, err));
    KG_TRY(lock(run, err));
    KG_TRY(refuse_a_run(run, err)); /* another may have been faster */
    KG_TRY(remove_attempt(run, err));
    KG_TRY(kg_file_make_dirs(in_run(run, "checkpoints").text, err));
    KG_TRY(kg_file_make_dirs(in_run(run, "rollouts").text, err));
    KG_TRY(write_manifest(run, err));
    return write_config(run, err);
}

static kg_status check_config(const struct kg_run *run, struct kg_err *err)
{
    struct kg_config *before = NULL;
    struct kg_str diff = {0};
    size_t n = 0;
    kg_status status;

    KG_TRY_GOTO(out,
                kg_train_config(&before, in_run(run, "config.yaml").text, NULL, 0, err));
    KG_TRY_GOTO(out, kg_config_diff(&diff, &n, before, run->config, err));
    for (size_t i = 0; i < diff.len; i++)
        diff.data[i] = diff.data[i] == '\n' ? ';' : diff.data[i];
    if (n > 0)
        status = kg_fail(err, KG_ECONFLICT,
                         "%s: expected the config that the run was started with, found "
                         "%zu changes: %s",
                         run->dir, n, kg_str_text(&diff));
out:
    kg_str_release(&diff);
    kg_config_free(before);
    return status;
}

kg_status kg_run_dir_check(struct kg_run *run, struct kg_err *err)
{
    if (!kg_file_exists(in_run(run, "config.yaml").text))
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected a run to resume, found no config.yaml", run->dir);
    KG_TRY(lock(run, err));
    KG_TRY(kg_file_remove_stale(in_run(run, "config.yaml").text, err));
    KG_TRY(kg_file_remove_stale(in_run(run, "manifest.json").text, err));
    KG_TRY(check_config(run, err));
    KG_TRY(kg_inputs_check(run->config, in_run(run, "manifest.json").text, err));
    return write_config(run, err);
}

/* Whether a file of rollouts/ is a dump of a step that the run has not done yet. */
static bool is_later_dump(const struct kg_run *run, const char *name)
{
    const struct {
        const char *prefix;
        int64_t done;
    } kinds[] = {{"step-", run->count.step},
                 {"val-", run->count.step},
                 {"val_anchor-", run->count.step},
                 {"skipped-sft-", run->count.sft_step},
                 {"skipped-", run->count.step}};

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t n = strlen(kinds[i].prefix);
        char *end;
        int64_t number;

        if (strncmp(name, kinds[i].prefix, n) != 0)
            continue;
        number = strtoll(name + n, &end, 10);
        return end > name + n && strcmp(end, ".jsonl.zst") == 0 && number > kinds[i].done;
    }
    return false;
}

static kg_status remove_later_dumps(const struct kg_run *run, struct kg_err *err)
{
    struct kg_path root = in_run(run, "rollouts");
    char **names;
    size_t n;
    kg_status status = KG_OK;

    KG_TRY(kg_file_list(&names, &n, root.text, err));
    for (size_t i = 0; i < n && status == KG_OK; i++)
        if (is_later_dump(run, names[i]))
            status = kg_file_remove_tree(kg_path_in(root.text, names[i]).text, err);
    kg_file_names_free(names, n);
    return status;
}

kg_status kg_run_dir_cut(struct kg_run *run, struct kg_err *err)
{
    KG_TRY(kg_file_writer_append(&run->metrics, in_run(run, "metrics.jsonl").text,
                                 run->count.metrics_bytes, err));
    run->metrics_open = true;
    kg_run_events_resume(run);
    return remove_later_dumps(run, err);
}
