/* Saving and loading the state of a run so that continuing gives the bits of never having
 * stopped. */
#include "train/checkpoint.h"

#include "base/log.h"
#include "base/mem.h"
#include "data/json.h"
#include "data/safetensors.h"
#include "train/path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the counters as a table, so that saving and loading cannot disagree ---- */
struct counter_row {
    const char *key;
    size_t offset;
};
static const struct counter_row counter_rows[] = {
    {"sft_step", offsetof(struct kg_counters, sft_step)},
    {"step", offsetof(struct kg_counters, step)},
    {"optim_step", offsetof(struct kg_counters, optim_step)},
    {"anchor_updates", offsetof(struct kg_counters, anchor_updates)},
    {"skipped", offsetof(struct kg_counters, skipped)},
    {"skipped_in_row", offsetof(struct kg_counters, skipped_in_row)},
    {"idle_updates", offsetof(struct kg_counters, idle_updates)},
    {"metrics_bytes", offsetof(struct kg_counters, metrics_bytes)},
};
enum { N_COUNTERS = sizeof counter_rows / sizeof *counter_rows };

static int64_t *counter(struct kg_counters *c, const struct counter_row *row)
{
    return (int64_t *)(void *)((char *)c + row->offset);
}

/* ---- the fp32 vectors of the state, as a list ---- */
enum { MAX_VECTORS = KG_MAX_LAG + 5, VECTOR_NAME = 16 };
struct vectors {
    char name[MAX_VECTORS][VECTOR_NAME];
    float *data[MAX_VECTORS];
    size_t n;
};

static void add_vector(struct vectors *v, const char *name, float *data)
{
    snprintf(v->name[v->n], VECTOR_NAME, "%s", name);
    v->data[v->n++] = data;
}

static struct vectors vectors_of(const struct kg_run *run)
{
    struct vectors v = {.n = 0};

    add_vector(&v, "master", run->model->master);
    add_vector(&v, "adam_m", run->optim ? run->optim->m : NULL);
    add_vector(&v, "adam_v", run->optim ? run->optim->v : NULL);
    if (run->anchor)
        add_vector(&v, "anchor", run->anchor->master);
    for (int i = 0; i <= run->lag && run->lagged[i]; i++) {
        char name[VECTOR_NAME];

        snprintf(name, sizeof name, "lag.%d", i);
        add_vector(&v, name, run->lagged[i]);
    }
    return v;
}

static enum kg_dtype saved_dtype(const struct kg_run *run)
{
    return strcmp(kg_config_text(run->config, "checkpoint.dtype"), "fp32") == 0 ? KG_F32
                                                                                : KG_BF16;
}

uint64_t kg_checkpoint_bytes(const struct kg_run *run)
{
    uint64_t model = kg_model_save_bytes(run->model, saved_dtype(run));

    return vectors_of(run).n * (uint64_t)run->model->n_elements * sizeof(float) +
           model * (run->anchor ? 2 : 1) + (1 << 20);
}

static kg_status write_vectors(const struct kg_run *run, const char *path,
                               struct kg_err *err)
{
    struct vectors v = vectors_of(run);
    struct kg_st_decl decls[MAX_VECTORS];
    struct kg_st_writer *w;

    for (size_t i = 0; i < v.n; i++)
        decls[i] = (struct kg_st_decl){.name = v.name[i],
                                       .dtype = "F32",
                                       .n_dims = 1,
                                       .shape = {run->model->n_elements}};
    KG_TRY(kg_st_writer_open(&w, path, decls, v.n, err));
    for (size_t i = 0; i < v.n; i++) {
        kg_status status = kg_st_writer_put(
            w, v.data[i], (size_t)run->model->n_elements * sizeof(float), err);

        if (status != KG_OK) {
            kg_st_writer_abort(w);
            return status;
        }
    }
    return kg_st_writer_close(w, err);
}

static kg_status write_counters(struct kg_run *run, const char *path, struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_puts(&text, "{\"format\": 1", err));
    for (int i = 0; i < N_COUNTERS; i++)
        KG_TRY_GOTO(out,
                    kg_str_printf(&text, err, ", \"%s\": %lld", counter_rows[i].key,
                                  (long long)*counter(&run->count, &counter_rows[i])));
    KG_TRY_GOTO(out, kg_str_puts(&text, "}\n", err));
    status = kg_file_write_atomic(path, text.data, text.len, err);
out:
    kg_str_release(&text);
    return status;
}

static kg_status write_into(struct kg_run *run, const char *dir, struct kg_err *err)
{
    struct kg_model_save save = {.dtype = saved_dtype(run),
                                 .source_dir = run->model->dir};

    KG_TRY(kg_file_make_dirs(dir, err));
    KG_TRY(kg_model_save(run->model, kg_path_in(dir, "model").text, &save, err));
    if (run->anchor)
        KG_TRY(kg_model_save(run->anchor, kg_path_in(dir, "anchor").text, &save, err));
    KG_TRY(write_vectors(run, kg_path_in(dir, "state.safetensors").text, err));
    return write_counters(run, kg_path_in(dir, "state.json").text, err);
}

/* Point checkpoints/latest at name, by renaming a new link over the old one. */
static kg_status move_latest(const char *root, const char *name, struct kg_err *err)
{
    struct kg_path link = kg_path_in(root, "latest"),
                   fresh = kg_path_in(root, ".latest.tmp");

    unlink(fresh.text);
    if (symlink(name, fresh.text) != 0 || rename(fresh.text, link.text) != 0)
        return kg_fail(err, KG_EIO, "%s: expected to link it to %s, found: %s", link.text,
                       name, strerror(errno));
    return KG_OK;
}

static bool is_checkpoint(const char *name)
{
    return strncmp(name, "step-", 5) == 0 || strncmp(name, "sft-", 4) == 0;
}

/* sft-* sorts before step-*, and within a phase by number: byte order is age. The newest
 * `keep` stay. */
static kg_status remove_old(const char *root, int64_t keep, struct kg_err *err)
{
    char **names;
    size_t n, kept = 0;
    kg_status status = KG_OK;

    KG_TRY(kg_file_list(&names, &n, root, err));
    for (size_t i = n; i-- > 0 && status == KG_OK;) {
        if (is_checkpoint(names[i]) && (int64_t)kept++ >= keep)
            status = kg_file_remove_tree(kg_path_in(root, names[i]).text, err);
    }
    kg_file_names_free(names, n);
    return status;
}

static kg_status check_space(const struct kg_run *run, const char *root,
                             struct kg_err *err)
{
    uint64_t need = kg_checkpoint_bytes(run), found;

    KG_TRY(kg_file_free_bytes(&found, root, err));
    if (found < need)
        return kg_fail(err, KG_ENOSPACE,
                       "%s: expected %.2f GB free for a checkpoint, found %.2f GB", root,
                       need / 1e9, found / 1e9);
    return KG_OK;
}

kg_status kg_checkpoint_save(struct kg_run *run, struct kg_err *err)
{
    struct kg_path root = kg_path_in(run->dir, "checkpoints"),
                   temporary = kg_path_in(root.text, ".saving");
    bool rl = run->count.step > 0 ||
              run->count.sft_step >= kg_config_int(run->config, "sft.steps");
    char name[32];
    kg_status status;

    snprintf(name, sizeof name, "%s-%06lld", rl ? "step" : "sft",
             (long long)(rl ? run->count.step : run->count.sft_step));
    if (strcmp(name, run->saved_name) == 0)
        return KG_OK;
    KG_TRY(kg_file_make_dirs(root.text, err));
    KG_TRY(kg_file_remove_tree(temporary.text, err));
    KG_TRY(check_space(run, root.text, err));
    run->count.optim_step = run->optim->step;
    KG_TRY(kg_file_writer_flush(&run->metrics, err));
    run->count.metrics_bytes = run->metrics.written;
    KG_TRY_GOTO(fail, write_into(run, temporary.text, err));
    KG_TRY_GOTO(
        fail, kg_file_rename_dir(temporary.text, kg_path_in(root.text, name).text, err));
    KG_TRY(move_latest(root.text, name, err));
    memcpy(run->saved_name, name, sizeof name);
    kg_log_info("saved %s/%s", root.text, name);
    return remove_old(root.text, kg_config_int(run->config, "checkpoint.keep"), err);
fail : {
    struct kg_err ignored = {0};

    if (kg_file_remove_tree(temporary.text, &ignored) != KG_OK)
        kg_log_warn("%s is left behind: %s", temporary.text, ignored.message);
    return kg_err_prefix(err, "saving %s", name);
}
}

static kg_status read_counters(struct kg_counters *c, const char *path,
                               struct kg_err *err)
{
    struct kg_json_doc doc;
    kg_status status = KG_OK;

    KG_TRY(kg_json_read(&doc, path, 1 << 16, err));
    for (int i = 0; i < N_COUNTERS && status == KG_OK; i++)
        status = kg_json_need_int(counter(c, &counter_rows[i]), &doc, doc.root,
                                  counter_rows[i].key, 0, INT64_MAX, err);
    kg_json_release(&doc);
    return status;
}

static kg_status read_vectors(const struct kg_run *run, const char *path,
                              struct kg_err *err)
{
    struct vectors v = vectors_of(run);
    uint64_t bytes = (uint64_t)run->model->n_elements * sizeof(float);
    struct kg_st_set *set;
    kg_status status = KG_OK;

    KG_TRY(kg_st_open_file(&set, path, err));
    for (size_t i = 0; i < v.n && status == KG_OK; i++) {
        const struct kg_st_tensor *t = kg_st_find(set, v.name[i]);

        if (!t || t->bytes != bytes)
            status = kg_fail(err, KG_EFORMAT,
                             "%s: expected tensor %s of %llu bytes, found %llu", path,
                             v.name[i], (unsigned long long)bytes,
                             (unsigned long long)(t ? t->bytes : 0));
        else
            memcpy(v.data[i], t->data, bytes);
    }
    kg_st_close(set);
    return status;
}

static kg_status restore(struct kg_run *run, const char *dir, struct kg_err *err)
{
    KG_TRY(read_counters(&run->count, kg_path_in(dir, "state.json").text, err));
    if (run->count.step > 0 ||
        run->count.sft_step >= kg_config_int(run->config, "sft.steps"))
        KG_TRY(kg_run_start_rl(run, err));
    else
        KG_TRY(kg_run_start_sft(run, err));
    KG_TRY(read_vectors(run, kg_path_in(dir, "state.safetensors").text, err));
    run->optim->step = run->count.optim_step;
    KG_TRY(kg_model_refresh(run->model, err));
    return run->anchor ? kg_model_refresh(run->anchor, err) : KG_OK;
}

kg_status kg_checkpoint_load(struct kg_run *run, bool *found, struct kg_err *err)
{
    struct kg_path root = kg_path_in(run->dir, "checkpoints"),
                   link = kg_path_in(root.text, "latest");
    ssize_t n;

    *found = kg_file_is_dir(link.text);
    if (!*found)
        return KG_OK;
    n = readlink(link.text, run->saved_name, sizeof run->saved_name - 1);
    run->saved_name[n > 0 ? n : 0] = '\0';
    kg_log_info("resuming from %s/%s", root.text, run->saved_name);
    return restore(run, link.text, err);
}
