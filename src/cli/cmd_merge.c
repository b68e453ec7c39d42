/* kedge merge: base and adapters as one checkpoint.
 *
 * The base is held in the type of its files, bf16 or else fp32, so no weight is rounded
 * before B A is added. The result is written to a temporary folder next to OUT and
 * renamed at the end: OUT is complete or absent.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/file.h"
#include "base/log.h"
#include "data/source.h"
#include "report/history.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *dtype; /* NULL: the base's dtype */

const struct kg_flag kg_merge_flags[] = {
    KG_FLAGS_OF(kg_model_flags),
    KG_FLAGS_OF(kg_ignore_flags),
    {"dtype", 0, KG_TO(dtype), "TYPE",
     "dtype of the file: bf16 or fp32 (default: as in the base; fp32 for an fp16 base)",
     0, 0, "bf16|fp32"},
    {0},
};

/* The smaller dtype that holds every weight of the base exactly. */
static kg_status find_dtype(enum kg_dtype *ct, const char *dir, struct kg_err *err)
{
    struct kg_st_set *set;

    KG_TRY(kg_source_tensors(&set, dir, err));
    *ct = KG_BF16;
    for (size_t i = 0; i < kg_st_count(set); i++)
        if (strcmp(kg_st_at(set, i)->dtype, "BF16") != 0)
            *ct = KG_F32;
    kg_st_close(set);
    return KG_OK;
}

static kg_status check_out(const char *out, struct kg_err *err)
{
    if (!kg_file_exists(out))
        return KG_OK;
    return kg_fail(err, KG_ECONFLICT, "%s: expected no such folder yet, found one", out);
}

static kg_status merge_into(const struct kg_model *m, const char *out,
                            const struct kg_model_save *save, struct kg_err *err)
{
    char work[KG_RUN_DIR_MAX + 32];
    struct kg_err ignored;

    snprintf(work, sizeof work, "%s.new-%ld", out, (long)getpid());
    kg_status status = kg_model_save(m, work, save, err);
    if (status == KG_OK)
        status = kg_file_rename_dir(work, out, err);
    if (status != KG_OK && kg_file_remove_tree(work, &ignored) != KG_OK)
        kg_log_warn("%s", ignored.message);
    return status;
}

/* Removes trailing slashes from OUT: the temporary folder is made next to it. */
static kg_status read_out(char out[KG_RUN_DIR_MAX + 1], const char *name,
                          struct kg_err *err)
{
    size_t n = strlen(name);

    if (n > KG_RUN_DIR_MAX)
        return kg_fail(err, KG_EINVAL,
                       "OUT: expected a path of at most %d bytes, found %zu",
                       KG_RUN_DIR_MAX, n);
    while (n > 0 && name[n - 1] == '/')
        n--;
    if (n == 0)
        return kg_fail(err, KG_EINVAL, "OUT: expected a folder's name, found '%s'", name);
    memcpy(out, name, n);
    out[n] = '\0';
    return KG_OK;
}

static kg_status merge(const char *name, struct kg_err *err)
{
    struct kg_model_save save = {.merge = true};
    struct kg_load_args args = kg_load;
    char out[KG_RUN_DIR_MAX + 1];
    struct kg_loaded l;
    enum kg_dtype ct;

    if (!args.dir || !args.adapter)
        return kg_fail(err, KG_EINVAL,
                       "expected --model and " KG_ADAPTER_KEY ", found no %s",
                       args.dir ? KG_ADAPTER_KEY : "--model");
    KG_TRY(read_out(out, name, err));
    KG_TRY(check_out(out, err));
    KG_TRY(find_dtype(&ct, args.dir, err));
    args.dtype = kg_dtype_traits(ct)->name;
    save.dtype = ct;
    if (dtype)
        KG_TRY(kg_dtype_parse(&save.dtype, dtype, err));
    KG_TRY(kg_load_model(&l, &args, err));
    kg_status status = merge_into(l.model, out, &save, err);
    kg_load_release(&l);
    return status;
}

int kg_cmd_merge(int argc, char **argv)
{
    struct kg_err err;

    if (argc != 1)
        return kg_cli_usage("expected OUT, the folder to write");
    return kg_cli_exit(merge(argv[0], &err), &err);
}
