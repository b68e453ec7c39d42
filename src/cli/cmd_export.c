/* kedge export: a checkpoint as a GGUF file.
 */
#include "cli/cli.h"
#include "cli/hub.h"
#include "cli/load.h"

#include "model/export.h"

static const char *to;
static const char *type; /* NULL: as stored */

const struct kg_flag kg_export_flags[] = {
    KG_FLAGS_OF(kg_ignore_flags),
    {"to", 'o', KG_TO(to), "FILE", "the file to write, FILE.gguf", 0, 0, NULL},
    {"type", 0, KG_TO(type), "TYPE",
     "of matrices: f32, f16, bf16, q8_0 or q4_0 (default: as they are stored)", 0, 0,
     KG_EXPORT_TYPES},
    {0},
};

static kg_status export(const char *model, struct kg_err *err)
{
    const struct kg_opt_list ignore = kg_load_ignored(&kg_load);

    if (!to)
        return kg_fail(err, KG_EINVAL, "expected --to FILE.gguf, found no --to");
    KG_TRY(kg_cli_find_model(&model, err));
    return kg_model_export(model, to, type, &ignore, err);
}

int kg_cmd_export(int argc, char **argv)
{
    struct kg_err err;

    if (argc != 1)
        return kg_cli_usage("expected MODEL, the folder or file to export");
    return kg_cli_exit(export(argv[0], &err), &err);
}
