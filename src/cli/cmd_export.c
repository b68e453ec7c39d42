/* kedge export: a checkpoint, or adapters beside it, as a GGUF file.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/file.h"
#include "base/signal.h"
#include "data/source.h"
#include "model/export.h"

static const char *to;
static const char *adapter;
static const char *type; /* NULL: as stored */

const struct kg_flag kg_export_flags[] = {
    KG_FLAGS_OF(kg_ignore_flags),
    {"to", 'o', KG_TO(to), "FILE", "the file to write, FILE.gguf", 0, 0, NULL},
    {"type", 0, KG_TO(type), "TYPE",
     "of matrices: f32, f16, bf16, q8_0, q4_0, q4_k or q6_k (default: as they are "
     "stored)",
     0, 0, KG_EXPORT_TYPES},
    {"adapter", 0, KG_TO(adapter), KG_MODEL_ARG,
     "PEFT folder beside MODEL: write it, not MODEL, for llama.cpp's --lora", 0, 0, NULL},
    {0},
};

static kg_status export(const char *model, struct kg_err *err)
{
    const struct kg_export_opts opts = {adapter, type, kg_load_ignored(&kg_load)};

    if (!to)
        return kg_fail(err, KG_EINVAL, "expected --to FILE.gguf, found no --to");
    KG_TRY(kg_cli_find_model(&model, err));
    if (!kg_source_is_file(model) &&
        !kg_file_exists(kg_path_in(model, "config.json").text) &&
        kg_file_exists(kg_path_in(model, "adapter_config.json").text))
        return kg_fail(err, KG_EINVAL,
                       "%s: expected a model, found adapters: write them by `kedge "
                       "export BASE --adapter %s --to %s`",
                       model, model, to);
    kg_signal_install();
    return kg_model_export(model, to, &opts, err);
}

int kg_cmd_export(int argc, char **argv)
{
    struct kg_err err;

    if (argc != 1)
        return kg_cli_usage("expected MODEL, the folder or file to export");
    return kg_cli_exit(export(argv[0], &err), &err);
}
