/* kedge train and kedge sft: a recipe, overrides, and either a plan or a run. */
#include "cli/cli.h"

#include <string.h>

#include "train/run.h"
#include "train/train_options.h"

static bool dry_run;
static bool resume;
static bool list_keys;

const struct kg_flag kg_train_flags[] = {
    {"dry-run", 0, KG_FLAG_TRUE, &dry_run, NULL,
     "open everything, print the plan (batch, memory, disk), start nothing", 0, 0, NULL},
    {"resume", 0, KG_FLAG_TRUE, &resume, NULL,
     "continue run.dir from its newest checkpoint, bit for bit", 0, 0, NULL},
    {"keys", 0, KG_FLAG_TRUE, &list_keys, NULL,
     "print every key with its help and default as YAML", 0, 0, NULL},
    {0},
};

static kg_status print_keys(struct kg_err *err)
{
    struct kg_config *config;
    struct kg_str out = {0};
    kg_status status;

    KG_TRY(kg_train_config(&config, NULL, NULL, 0, err));
    status = kg_config_dump_yaml(&out, config, true, err);
    if (status == KG_OK)
        status = kg_cli_put(&out, err);
    kg_str_release(&out);
    kg_config_free(config);
    return status;
}

static kg_status print_plan(const struct kg_config *config, struct kg_err *err)
{
    struct kg_str out = {0};
    kg_status status = kg_train_plan(&out, config, err);

    if (status == KG_OK)
        status = kg_cli_put(&out, err);
    kg_str_release(&out);
    return status;
}

/* The first argument is the recipe unless it is an assignment; the others are
 * assignments. */
static int run_recipe(int argc, char **argv, const char *forced)
{
    bool has_file = argc > 0 && !strchr(argv[0], '=');
    struct kg_config *config = NULL;
    struct kg_err err;
    bool stopped;
    kg_status status;

    if (list_keys)
        return kg_cli_exit(print_keys(&err), &err);
    if (argc == 0)
        return kg_cli_usage("expected a recipe or section.key=value");
    status = kg_train_config(&config, has_file ? argv[0] : NULL, argv + has_file,
                             (size_t)(argc - has_file), &err);
    if (status != KG_OK)
        return kg_cli_exit(status, &err);
    if (forced)
        status = kg_config_override(config, forced, "kedge sft", &err);
    if (status == KG_OK)
        status = dry_run ? print_plan(config, &err)
                         : kg_train_run(config, resume, &stopped, &err);
    kg_config_free(config);
    return kg_cli_exit(status, &err);
}

int kg_cmd_train(int argc, char **argv) { return run_recipe(argc, argv, NULL); }

int kg_cmd_sft(int argc, char **argv) { return run_recipe(argc, argv, "train.steps=0"); }
