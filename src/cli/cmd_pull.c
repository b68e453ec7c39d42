/* kedge pull: a model or a data set from the hub into the cache. The folder is printed on
 * stdout, so that a script can use it; all else goes to stderr. */
#include "cli/cli.h"

#include "base/log.h"
#include "base/signal.h"
#include "net/hub.h"

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
