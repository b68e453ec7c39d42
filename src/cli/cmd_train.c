/* kedge train, sft and distill: a recipe, overrides, and a plan or a run. sft is a run
 * without RL steps; distill reads the same keys with other defaults. An argument without
 * '=' is the recipe; an installed recipe is found by its path in the source tree.
 * Everything in a config is checked before anything is written. */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/file.h"
#include "base/mem.h"
#include "recipe/options.h"
#include "train/keep/run_dir.h"
#include "train/run.h"

#include <stdlib.h>
#include <string.h>

static bool dry_run;
static bool resume;
static bool resume_if_any;
static bool list_keys;
static const char *device_memory;
static bool config_only;
static int ranks = 1;

const struct kg_flag kg_train_flags[] = {
    {"dry-run", 0, KG_IF("--keys=", dry_run), NULL,
     "check everything and print the plan (batch, memory, disk) without starting"},
    {"device-memory", 0, KG_IF("--dry-run", device_memory), "SIZE",
     "with --dry-run: print only the memory of the run on a GPU of this size (141GB, "
     "80GiB); the model's config.json is enough"},
    {"config-only", 0, KG_IF("--dry-run&--device-memory=", config_only), NULL,
     "with --dry-run: print only the memory of the run on this machine; the model's "
     "config.json is enough"},
    {"resume", 0, KG_IF("--keys=", resume), NULL,
     "continue run.dir from its newest checkpoint, bit for bit"},
    {"resume-if-any", 0, KG_IF("--keys=&--resume=", resume_if_any), NULL,
     "like --resume if run.dir has a checkpoint or a step, else start from the "
     "beginning: for jobs that a scheduler restarts"},
    {"ranks", 0, KG_IF("--keys=", ranks), "N",
     "run as N processes on this machine, with the bits of one process; needs "
     "train.lanes=N or more, or ranks.shard=gradients; with --dry-run: print the memory "
     "of each process",
     1, 64},
    {"keys", 0, KG_IF("RECIPE=", list_keys), NULL,
     "print every key with its help and default as YAML"},
    {0},
};

static kg_status print_keys(struct kg_err *err)
{
    struct kg_config *config;
    struct kg_str out = {0};

    KG_TRY(kg_train_config(&config, NULL, NULL, 0, err));
    kg_status status = kg_config_dump_yaml(&out, config, true, err);
    status = kg_cli_print(status, &out, err);
    kg_config_free(config);
    return status;
}

/* "141GB", "80GiB" */
static kg_status read_size(uint64_t *bytes, const char *text, struct kg_err *err)
{
    char *unit;
    double n = strtod(text, &unit);
    bool binary = strcmp(unit, "GiB") == 0;

    if (unit == text || !(n > 0 && n < 1e6) || (!binary && strcmp(unit, "GB") != 0))
        return kg_fail(
            err, KG_EINVAL,
            "--device-memory: expected a size such as 141GB or 80GiB, found '%s'", text);
    *bytes = (uint64_t)(n * (binary ? (double)(1 << 30) : 1e9));
    return KG_OK;
}

static kg_status print_memory(struct kg_config *config, struct kg_err *err)
{
    struct kg_str out = {0};
    struct kg_err why;
    uint64_t bytes = 0;

    if (device_memory)
        KG_TRY(read_size(&bytes, device_memory, err));
    kg_status status = kg_train_plan_memory(&out, config, resume, ranks, bytes, &why);
    if (status != KG_OK)
        *err = why;
    if (status == KG_ENOMEM && kg_cli_print(KG_OK, &out, &why) != KG_OK)
        *err = why;
    return status == KG_ENOMEM ? err->code : kg_cli_print(status, &out, err);
}

static kg_status print_plan(struct kg_config *config, struct kg_err *err)
{
    struct kg_str out = {0};

    if (device_memory || config_only)
        return print_memory(config, err);
    return kg_cli_print(kg_train_plan(&out, config, resume, ranks, err), &out, err);
}

/* An argument without '=' is a recipe if it is the first or a file; otherwise it is kept,
 * and refused as an assignment. */
static bool is_recipe(const char *argument, int place)
{
    return !strchr(argument, '=') && (place == 0 || kg_file_exists(argument));
}

/* Removes the recipe from argv.   returns it, or NULL; *extra: a second one, or NULL */
static const char *take_recipe(int *argc, char **argv, const char **extra)
{
    const char *recipe = NULL;
    int kept = 0;

    *extra = NULL;
    for (int i = 0; i < *argc; i++) {
        bool is = is_recipe(argv[i], i);

        if (is && recipe)
            *extra = argv[i];
        if (is && !recipe)
            recipe = argv[i];
        else
            argv[kept++] = argv[i];
    }
    *argc = kept;
    return recipe;
}

/* The first rank looks for a run; all get the answer.   r: {0} without ranks */
static kg_status look_for_a_run(struct kg_ranks *r, const struct kg_recipe *recipe,
                                struct kg_err *err)
{
    kg_status status = KG_OK;

    if (!resume_if_any)
        return KG_OK;
    if (r->me == 0)
        status = kg_run_dir_resumable(&resume, recipe->run.dir, err);
    KG_TRY(kg_ranks_agree(r, status, "run folder", err));
    return kg_ranks_any(r, &resume, "run folder", err);
}

/* What ranks must have in common besides keys (which already tell sft from distill). */
static const char *resuming(void)
{
    return resume ? "train --resume" : resume_if_any ? "train --resume-if-any" : "train";
}

/* A plan (--dry-run) needs only one process. */
static int plan_or_train(struct kg_config *config)
{
    struct kg_ranks r = {0};
    struct kg_recipe recipe;
    struct kg_err err;
    kg_status status;

    kg_recipe_read(&recipe, config);
    if (dry_run) {
        status = look_for_a_run(&r, &recipe, &err);
        return kg_cli_exit(status == KG_OK ? print_plan(config, &err) : status, &err);
    }
    status = kg_cli_ranks_begin(&r, ranks, recipe.ranks.wait_s, resuming(), &err);
    if (status == KG_OK)
        status = look_for_a_run(&r, &recipe, &err);
    if (status == KG_OK)
        status = kg_train_run_on(&r, config, resume, true, &err);
    return kg_cli_ranks_end(&r, status, &err);
}

/* kedge sft ends after sft.steps: the recipe's train.steps is for kedge train. */
static kg_status force_sft(struct kg_config *config, struct kg_err *err)
{
    static const char key[] = "train.steps";
    const char *found = kg_config_text(config, key);

    if (strcmp(kg_config_source(config, key), "command line") == 0 &&
        strcmp(found, "0") != 0)
        return kg_fail(err, KG_EINVAL,
                       "%s: kedge sft makes no RL steps; expected sft.steps or "
                       "sft.epochs, or kedge train, found %s=%s",
                       key, key, found);
    KG_TRY(kg_effect_check_sft(config, err));
    return kg_config_override(config, "train.steps=0", "kedge sft", err);
}

typedef kg_status (*config_fn)(struct kg_config **config, const char *path,
                               char *const *assignments, size_t n, struct kg_err *err);
typedef kg_status (*force_fn)(struct kg_config *config, struct kg_err *err);

static int run_recipe(int argc, char **argv, config_fn read, force_fn force)
{
    struct kg_config *config = NULL;
    struct kg_err err;
    char *own = NULL;
    const char *extra;
    int code;

    if (list_keys)
        return kg_cli_exit(print_keys(&err), &err);
    if (argc == 0)
        return kg_cli_usage("expected a recipe, preset=NAME or section.key=value");
    const char *recipe = take_recipe(&argc, argv, &extra);
    if (extra)
        return kg_cli_usage(
            "expected one recipe and section.key=value, found '%.200s' and '%.200s'",
            recipe, extra);
    if (recipe && !(recipe = kg_cli_shared(&own, recipe, &err)))
        return kg_cli_exit(err.code, &err);
    kg_status status = read(&config, recipe, argv, (size_t)argc, &err);
    kg_mem_free(own);
    if (status != KG_OK)
        return kg_cli_exit(status, &err);
    if (force)
        status = force(config, &err);
    if (status != KG_OK) {
        kg_config_free(config);
        return kg_cli_exit(status, &err);
    }
    code = plan_or_train(config);
    kg_config_free(config);
    return code;
}

int kg_cmd_train(int argc, char **argv)
{
    return run_recipe(argc, argv, kg_train_config, NULL);
}

int kg_cmd_sft(int argc, char **argv)
{
    return run_recipe(argc, argv, kg_train_config, force_sft);
}

int kg_cmd_distill(int argc, char **argv)
{
    return run_recipe(argc, argv, kg_distill_config, NULL);
}
