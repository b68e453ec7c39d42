/* kedge pull: a model or a data set from the hub into the cache.
 *
 * The folder that it lies in is printed, so that a script goes on with it; all else is
 * said on stderr. kedge push uploads nothing: it prints the command of HuggingFace's own
 * program that does.
 */
#include "cli/cli.h"

#include "base/file.h"
#include "base/log.h"
#include "base/signal.h"
#include "data/manifest.h"
#include "data/safetensors.h"
#include "net/hub.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pull ---- */

static bool data_set;
static struct kg_flag_list include;

const struct kg_flag kg_pull_flags[] = {
    {"data-set", 0, KG_TO(data_set), NULL, "ORG/NAME is a data set, not a model"},
    {"include", 0, KG_TO(include), "PATTERN",
     "fetch files whose path matches (\"*.gguf\") instead of the files that kedge reads; "
     "may be repeated"},
    {0},
};

static kg_status pull(const char *name, struct kg_err *err)
{
    struct kg_hub_pull_opts opts = {.include = include.items,
                                    .n_include = (size_t)include.n};
    struct kg_hub_pulled pulled;
    struct kg_str out = {0};

    KG_TRY(
        kg_hub_name_read(&opts.name, name, data_set ? KG_HUB_DATA : KG_HUB_MODEL, err));
    if (*opts.name.file && include.n > 0)
        return kg_fail(err, KG_EINVAL,
                       "--include: expected a whole data set, found the file %.200s",
                       opts.name.file);
    kg_signal_install();
    KG_TRY(kg_hub_pull(&pulled, &opts, err));
    char bytes[32], fetched[32];

    kg_cli_bytes(bytes, (double)pulled.bytes);
    kg_cli_bytes(fetched, (double)pulled.fetched);
    kg_log_info("%s@%s: %zu files, %s, of which %s fetched", opts.name.id, pulled.commit,
                pulled.files, bytes, fetched);
    return kg_cli_print(kg_str_printf(&out, err, "%s%s%s\n", pulled.dir.text,
                                      *opts.name.file ? "/" : "", opts.name.file),
                        &out, err);
}

int kg_cmd_pull(int argc, char **argv)
{
    struct kg_err err;

    if (argc != 1)
        return kg_cli_usage("expected [ORG/]NAME[@REVISION] or hf://ORG/NAME/FILE");
    return kg_cli_exit(pull(argv[0], &err), &err);
}

/* ---- push ---- */

const struct kg_flag kg_push_flags[] = {{0}};

/* As one word of a shell. */
static kg_status put_word(struct kg_str *out, const char *text, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, " '", err));
    for (; *text; text++)
        if (*text == '\'')
            KG_TRY(kg_str_puts(out, "'\\''", err));
        else
            KG_TRY(kg_str_putc(out, *text, err));
    return kg_str_putc(out, '\'', err);
}

/* A folder of the name -x is not a flag of the program. */
static kg_status put_upload(struct kg_str *out, const char *dir,
                            const struct kg_hub_name *to, struct kg_err *err)
{
    struct kg_str path = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_printf(&path, err, "%s%s", dir[0] == '-' ? "./" : "", dir));
    KG_TRY_GOTO(out, kg_str_puts(out, "hf upload", err));
    KG_TRY_GOTO(out, put_word(out, to->id, err));
    KG_TRY_GOTO(out, put_word(out, path.data, err));
    KG_TRY_GOTO(out, kg_str_puts(out, " .", err));
    if (to->revised)
        KG_TRY_GOTO(out, kg_str_printf(out, err, " --revision %s", to->revision));
    status = kg_str_putc(out, '\n', err);
out:
    kg_str_release(&path);
    return status;
}

/* In a checkpoint of a run, whose manifest has the hashes of what was saved here, by the
 * names that it had. */
static kg_status check_saved(const char *dir, struct kg_err *err)
{
    const struct kg_path above = kg_path_in(dir, "..");
    struct kg_manifest_size saved;
    char real[PATH_MAX];

    if (!kg_file_exists(kg_path_in(above.text, "state.json").text) ||
        !kg_file_exists(kg_path_in(above.text, KG_MANIFEST_NAME).text))
        return KG_OK;
    if (!realpath(dir, real))
        return kg_fail(err, KG_EIO, "%s: cannot follow: %s", dir, strerror(errno));
    struct kg_path below = kg_path_in(strrchr(real, '/') + 1, "");
    KG_TRY(kg_manifest_check_below(&saved, above.text, below.text, err));
    if (saved.files > 0)
        return KG_OK;
    return kg_fail(err, KG_ENOTFOUND,
                   "%s: expected a folder that the run saved in this checkpoint, under "
                   "its original name, found none of its files in %s (to push another "
                   "folder, move it out of the run)",
                   dir, kg_path_in(above.text, KG_MANIFEST_NAME).text);
}

static kg_status push(const char *dir, const char *name, struct kg_err *err)
{
    struct kg_hub_name to;
    struct kg_str out = {0};

    KG_TRY(kg_hub_name_read(&to, name, KG_HUB_MODEL, err));
    if (to.kind != KG_HUB_MODEL || !strchr(to.id, '/'))
        return kg_fail(err, KG_EINVAL, "%s: expected ORG/NAME of a model", name);
    if (!kg_file_exists(kg_path_in(dir, "config.json").text) &&
        !kg_file_exists(kg_path_in(dir, "adapter_config.json").text))
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected a checkpoint, found neither config.json nor "
                       "adapter_config.json",
                       dir);
    /* Its tensors lie in the files that are there, to their ends. */
    struct kg_st_set *set;

    if (kg_file_exists(kg_path_in(dir, "config.json").text))
        KG_TRY(kg_st_open_dir(&set, dir, err));
    else
        KG_TRY(kg_st_open_file(&set, kg_path_in(dir, "adapter_model.safetensors").text,
                               err));
    kg_st_close(set);
    KG_TRY(check_saved(dir, err));
    kg_status status = put_upload(&out, dir, &to, err);
    status = kg_cli_print(status, &out, err);
    if (status == KG_OK)
        kg_log_info("kedge uploads nothing itself: the command above does (pip install "
                    "huggingface_hub; hf auth login)");
    return status;
}

int kg_cmd_push(int argc, char **argv)
{
    struct kg_err err;

    if (argc != 2)
        return kg_cli_usage("expected DIR ORG/NAME");
    return kg_cli_exit(push(argv[0], argv[1], &err), &err);
}
