/* From ORG/NAME to a folder, for flags and arguments.
 *
 * The table of flags says which are models, so a new command has this by the name of its
 * flag's argument. Which commit it came to is said: "main" is another tomorrow.
 */
#include "cli/hub.h"

#include "base/log.h"
#include "base/mem.h"
#include "data/hub.h"

#include <string.h>

static kg_status take(const char **text, const struct kg_hub_found *found,
                      struct kg_err *err)
{
    if (!found->cached)
        return KG_OK;
    kg_log_info("%s: %s in the hub's cache", *text, found->pinned);
    *text = kg_mem_strdup(found->path.text, err);
    return *text ? KG_OK : KG_ENOMEM;
}

kg_status kg_cli_find_model(const char **dir, struct kg_err *err)
{
    struct kg_hub_found found;

    if (!*dir)
        return KG_OK;
    KG_TRY(kg_hub_find_model(&found, *dir, err));
    return take(dir, &found, err);
}

kg_status kg_cli_find_file(const char **path, struct kg_err *err)
{
    struct kg_hub_found found;

    if (!*path)
        return KG_OK;
    KG_TRY(kg_hub_find_file(&found, *path, err));
    return take(path, &found, err);
}

kg_status kg_cli_find_flags(const struct kg_command *c, struct kg_err *err)
{
    struct kg_flag_walk walk = {c->flags, NULL};

    for (const struct kg_flag *f; (f = kg_flag_next(&walk));)
        if (f->arg_name && strcmp(f->arg_name, KG_MODEL_ARG) == 0 &&
            kg_cli_find_model(f->target, err) != KG_OK)
            return kg_err_prefix(err, "--%s", f->name);
    return KG_OK;
}
