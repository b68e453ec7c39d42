/* Saves and loads the state of a run, so that a resumed run has the bits of one that
 * never stopped.
 *
 * The state is a list of slabs (vectors_of) and a table of counters (counters.c). Saving
 * and loading walk the same list and table, so nothing can be written and not read. A
 * folder is written under a temporary name, every file is synced, then the folder is
 * renamed. A kill at any moment therefore leaves the newest complete checkpoint, and the
 * next start recognises an interrupted folder by its name (settle_all).
 *
 * A thread writes during the rollout of the next step, which reads weights and changes
 * none. Code that changes weights waits for the thread first. A device's state is copied
 * in page-locked pieces, which do not delay the rollout's launches.
 *
 * If the state is sharded over ranks, the first rank creates the files at their full
 * length and each rank writes its shard into them. The threads do not communicate: the
 * ranks agree that all are done when they wait for the checkpoint. Then they hash it
 * together, and the first rank renames it.
 */
#include "train/keep/checkpoint.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"
#include "data/json.h"
#include "data/manifest.h"
#include "ranks/lanes.h"
#include "report/history.h"
#include "train/step/anchor.h"
#include "train/step/begun.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the slabs of the state, as a list ---- */
enum { MAX_VECTORS = KG_MAX_LAG + 5, VECTOR_NAME = 16 };
struct vectors {
    char name[MAX_VECTORS][VECTOR_NAME];
    struct kg_slab *slab[MAX_VECTORS];
    size_t n;
};

static void add_vector(struct vectors *v, const char *name, struct kg_slab *slab)
{
    snprintf(v->name[v->n], VECTOR_NAME, "%s", name);
    v->slab[v->n++] = slab;
}

static struct vectors vectors_of(const struct kg_run_state *state)
{
    struct vectors v = {.n = 0};

    add_vector(&v, "master", &state->model->master);
    for (int i = 0; i < KG_OPTIM_STATES; i++)
        add_vector(&v, state->optim ? state->optim->opts.row->state[i] : "",
                   state->optim ? &state->optim->state[i] : NULL);
    if (kg_run_anchor_saved(state))
        add_vector(&v, "anchor", &state->anchor->master);
    for (int i = 0; state->lagged && i <= state->lag; i++) {
        char name[VECTOR_NAME];

        snprintf(name, sizeof name, "lag.%d", i);
        add_vector(&v, name, &state->lagged[i]);
    }
    return v;
}

static enum kg_dtype saved_dtype(const struct kg_run_inputs *in)
{
    return in->recipe.checkpoint.fp32 ? KG_F32 : KG_BF16;
}

uint64_t kg_checkpoint_bytes(const struct kg_run_inputs *in,
                             const struct kg_run_state *state)
{
    uint64_t model = kg_model_save_bytes(state->model, saved_dtype(in));
    int64_t n = state->model->n_elements;

    return (vectors_of(state).n - KG_OPTIM_STATES) * (uint64_t)n * sizeof(float) +
           kg_optim_state_bytes(&in->rl_optim, n) +
           model * (kg_run_anchor_saved(state) ? 2 : 1) + (1 << 20);
}

/* elements copied from a device at once: few copies, parallel to its computing */
enum { PIECE = 1 << 20 };

/* first: element of the tensor where s begins.   piece: (PIECE) page-locked */
static kg_status put_slab(struct kg_st_writer *w, size_t tensor, const struct kg_slab *s,
                          int64_t first, float *piece, struct kg_err *err)
{
    size_t each = kg_dtype_traits(s->dtype)->bytes;

    for (int64_t i = 0; i < s->n; i += PIECE) {
        int64_t n = s->n - i < PIECE ? s->n - i : PIECE;

        KG_TRY(kg_slab_fetch(piece, s, i, n, err));
        KG_TRY(kg_st_writer_put(w, tensor, (uint64_t)(first + i) * each, piece,
                                (size_t)n * each, err));
    }
    return KG_OK;
}

static kg_status write_vectors(const struct kg_run_state *state, enum kg_save_part part,
                               const char *path, struct kg_err *err)
{
    const struct kg_backend *be = state->model->backend;
    struct vectors v = vectors_of(state);
    struct kg_st_decl decls[MAX_VECTORS];
    struct kg_st_writer *w = NULL;
    float *piece;

    for (size_t i = 0; i < v.n; i++)
        decls[i] = (struct kg_st_decl){
            .name = v.name[i],
            .dtype = kg_dtype_traits(v.slab[i]->dtype)->safetensors_name,
            .n_dims = 1,
            .shape = {state->model->n_elements}};
    piece = kg_buf_pin(be, PIECE * sizeof *piece, "a piece of the state", err);
    kg_status status = !piece ? KG_ENOMEM
                       : part == KG_SAVE_VALUES
                           ? kg_st_writer_join(&w, path, decls, v.n, err)
                           : kg_st_writer_open(&w, path, decls, v.n, err);
    for (size_t i = 0; part != KG_SAVE_FRAME && i < v.n && status == KG_OK; i++)
        status = put_slab(w, i, v.slab[i], state->model->cut.first, piece, err);
    if (status == KG_OK)
        status = part == KG_SAVE_ALL ? kg_st_writer_close(w, err)
                                     : kg_st_writer_leave(w, err);
    else if (w)
        kg_st_writer_abort(w);
    kg_buf_unpin(be, piece);
    return status;
}

kg_status kg_checkpoint_put_state(const struct kg_run_state *state, const char *path,
                                  struct kg_err *err)
{
    return write_vectors(state, KG_SAVE_ALL, path, err);
}

/* The folder of the trained weights: a whole model, or adapters. */
static const char *model_folder(const struct kg_model *m)
{
    return m->lora ? "adapter" : "model";
}

/* The folder from which tokenizer files are copied: the newest checkpoint, which always
 * exists; before the first, the folder of the model. */
static struct kg_path small_files_of(const struct kg_run_state *state,
                                     const char *run_dir)
{
    struct kg_path dir;

    if (state->saved_name[0]) {
        dir = kg_path_in(kg_path_in(run_dir, "checkpoints").text, state->saved_name);
        return kg_path_in(dir.text, model_folder(state->model));
    }
    snprintf(dir.text, sizeof dir.text, "%s", state->model->dir);
    return dir;
}

/* A checkpoint being written: what its writer reads, except slabs, which do not change
 * until it is done. */
struct kg_saving {
    const struct kg_run_state *state; /* borrowed */
    struct kg_counters count;
    const struct kg_slab *weights; /* the model's, or their average; borrowed */
    enum kg_dtype dtype;
    struct kg_path root, temporary, small;
    char name[KG_CHECKPOINT_NAME];
    int64_t keep;
    struct kg_str begun;    /* owned: copy of the state's, which the next step replaces */
    struct kg_ranks *ranks; /* that write it together; NULL: this process alone */

    int threads; /* of the writer */
    pthread_t thread;
    bool written; /* write_all has run, without a thread */
    bool placed;  /* it has its name, even if something failed later */
    kg_status status;
    struct kg_err err;
};

/* Writes everything but the manifest, or only this rank's part. */
static kg_status write_part(const struct kg_saving *s, enum kg_save_part part,
                            struct kg_err *err)
{
    const char *dir = s->temporary.text;
    struct kg_model_save save = {.dtype = s->dtype,
                                 .source_dir = s->small.text,
                                 .weights = s->weights,
                                 .part = part};

    if (part != KG_SAVE_VALUES)
        KG_TRY(kg_file_make_dirs(dir, err));
    KG_TRY(kg_model_save(s->state->model,
                         kg_path_in(dir, model_folder(s->state->model)).text, &save,
                         err));
    save.weights = NULL;
    if (kg_run_anchor_saved(s->state))
        KG_TRY(
            kg_model_save(s->state->anchor, kg_path_in(dir, "anchor").text, &save, err));
    KG_TRY(write_vectors(s->state, part, kg_path_in(dir, "state.safetensors").text, err));
    if (part == KG_SAVE_VALUES)
        return KG_OK;
    if (s->begun.len > 0)
        KG_TRY(kg_file_write_atomic(kg_path_in(dir, "begun.bin").text, s->begun.data,
                                    s->begun.len, err));
    return kg_checkpoint_put_counters(&s->count, kg_path_in(dir, "state.json").text, err);
}

/* ---- names ---- */

/* Position of a checkpoint in its run: SFT comes before RL. */
struct place {
    bool rl;
    int64_t number;
};

/* False if `name` is not the name of a checkpoint. */
static bool parse_name(struct place *p, const char *name)
{
    char *end;

    p->rl = strncmp(name, "step-", 5) == 0;
    if (!p->rl && strncmp(name, "sft-", 4) != 0)
        return false;
    const char *digits = name + (p->rl ? 5 : 4);
    p->number = strtoll(digits, &end, 10);
    return *digits >= '0' && *digits <= '9' && *end == '\0' &&
           strlen(name) < KG_CHECKPOINT_NAME;
}

static int by_age(const void *a, const void *b)
{
    struct place x, y;

    parse_name(&x, *(char *const *)a);
    parse_name(&y, *(char *const *)b);
    if (x.rl != y.rl)
        return x.rl ? 1 : -1;
    return (x.number > y.number) - (x.number < y.number);
}

/* Lists the checkpoints under root, oldest first, and ignores other names.
 * names: freed by kg_file_names_free */
static kg_status list_checkpoints(char ***names, size_t *n, const char *root,
                                  struct kg_err *err)
{
    struct place unused;
    size_t all, kept = 0;

    KG_TRY(kg_file_list(names, &all, root, err));
    for (size_t i = 0; i < all; i++) {
        if (parse_name(&unused, (*names)[i]))
            (*names)[kept++] = (*names)[i];
        else
            kg_mem_free((*names)[i]);
    }
    if (kept > 0)
        qsort(*names, kept, sizeof **names, by_age);
    *n = kept;
    return KG_OK;
}

/* Where names cannot be exchanged, a replaced checkpoint is NAME.old for a moment
 * (kg_file_rename_dir).   returns whether `old` is such a name; name: without .old */
static bool is_old(char name[KG_CHECKPOINT_NAME], const char *old)
{
    size_t n = strlen(old);
    struct place unused;

    if (n < 4 || n >= KG_CHECKPOINT_NAME || strcmp(old + n - 4, ".old") != 0)
        return false;
    memcpy(name, old, n - 4);
    name[n - 4] = '\0';
    return parse_name(&unused, name);
}

/* After a kill: removes NAME.old if the new NAME exists, else restores its name. */
static kg_status settle_old(const char *root, const char *old, struct kg_err *err)
{
    char name[KG_CHECKPOINT_NAME];
    struct kg_path from = kg_path_in(root, old), to;

    if (!is_old(name, old))
        return KG_OK;
    to = kg_path_in(root, name);
    if (kg_file_exists(to.text))
        return kg_file_remove_tree(from.text, err);
    kg_log_warn("%s: its replacement is incomplete; renaming it back", from.text);
    return kg_file_rename_dir(from.text, to.text, err);
}

static kg_status settle_all(const char *root, struct kg_err *err)
{
    char **names;
    size_t n;
    kg_status status = KG_OK;

    KG_TRY(kg_file_list(&names, &n, root, err));
    for (size_t i = 0; i < n && status == KG_OK; i++)
        status = settle_old(root, names[i], err);
    kg_file_names_free(names, n);
    return status;
}

static kg_status remove_old(const char *root, int64_t keep, struct kg_err *err)
{
    char **names;
    size_t n;
    kg_status status = KG_OK;

    KG_TRY(list_checkpoints(&names, &n, root, err));
    for (size_t i = 0; i + (size_t)keep < n && status == KG_OK; i++)
        status = kg_file_remove_tree(kg_path_in(root, names[i]).text, err);
    kg_file_names_free(names, n);
    return status;
}

kg_status kg_checkpoint_newest(char name[KG_CHECKPOINT_NAME], const char *dir,
                               struct kg_err *err)
{
    struct kg_path root = kg_path_in(dir, "checkpoints");

    if (kg_file_exists(root.text))
        KG_TRY(settle_all(root.text, err));
    return kg_checkpoint_last(name, dir, err);
}

/* The newest RL checkpoint at or before `step`; if warm, else the newest of SFT. */
static kg_status newest_until(char name[KG_CHECKPOINT_NAME], const char *dir, bool warm,
                              int64_t step, struct kg_err *err)
{
    struct kg_path root = kg_path_in(dir, "checkpoints");
    char **names;
    size_t n;

    name[0] = '\0';
    if (!kg_file_exists(root.text))
        return KG_OK;
    KG_TRY(list_checkpoints(&names, &n, root.text, err));
    for (size_t i = 0; i < n; i++) {
        struct place p;

        if (parse_name(&p, names[i]) && (p.rl ? p.number <= step : warm))
            strcpy(name, names[i]);
    }
    kg_file_names_free(names, n);
    return KG_OK;
}

kg_status kg_checkpoint_last(char name[KG_CHECKPOINT_NAME], const char *dir,
                             struct kg_err *err)
{
    return newest_until(name, dir, true, INT64_MAX, err);
}

/* Whether folder is a checkpoint. NAME.old is one if NAME does not exist. */
static bool stands(char name[KG_CHECKPOINT_NAME], const char *root, const char *folder)
{
    struct place unused;

    if (is_old(name, folder))
        return !kg_file_exists(kg_path_in(root, name).text);
    if (!parse_name(&unused, folder))
        return false;
    strcpy(name, folder);
    return true;
}

kg_status kg_checkpoint_seen(char folder[KG_CHECKPOINT_NAME], const char *dir,
                             struct kg_err *err)
{
    struct kg_path root = kg_path_in(dir, "checkpoints");
    char name[KG_CHECKPOINT_NAME], last[KG_CHECKPOINT_NAME];
    const char *newest = NULL, *next = name;
    char **names;
    size_t n;

    folder[0] = '\0';
    if (!kg_file_exists(root.text))
        return KG_OK;
    KG_TRY(kg_file_list(&names, &n, root.text, err));
    for (size_t i = 0; i < n; i++) {
        if (!stands(name, root.text, names[i]) || (newest && by_age(&next, &newest) <= 0))
            continue;
        newest = strcpy(last, name);
        strcpy(folder, names[i]);
    }
    kg_file_names_free(names, n);
    return KG_OK;
}

kg_status kg_checkpoint_before(char name[KG_CHECKPOINT_NAME], const char *dir,
                               int64_t step, struct kg_err *err)
{
    return newest_until(name, dir, false, step, err);
}

/* ---- saving ---- */

static kg_status check_space(uint64_t need, const char *root, struct kg_err *err)
{
    uint64_t found;

    KG_TRY(kg_file_free_bytes(&found, root, err));
    if (found < need)
        return kg_fail(err, KG_ENOSPACE,
                       "%s: expected %.1f MB free for a checkpoint, found %.1f MB", root,
                       need / 1e6, found / 1e6);
    return KG_OK;
}

static void name_of(char name[KG_CHECKPOINT_NAME], const struct kg_run *run)
{
    bool rl = run->state.count.step > 0 || run->state.count.sft_step >= run->in.sft_steps;

    snprintf(name, KG_CHECKPOINT_NAME, "%s-%06lld", rl ? "step" : "sft",
             (long long)(rl ? run->state.count.step : run->state.count.sft_step));
}

/* On the rank that writes the folder: checks space, syncs the log, notes its length. */
static kg_status prepare_folder(struct kg_saving *s, struct kg_run *run,
                                struct kg_err *err)
{
    KG_TRY(kg_file_make_dirs(s->root.text, err));
    KG_TRY(kg_file_remove_tree(s->temporary.text, err));
    KG_TRY(check_space(kg_checkpoint_bytes(&run->in, &run->state), s->root.text, err));
    KG_TRY(kg_file_writer_sync(&run->log.metrics, err));
    run->state.count.metrics_bytes = run->log.metrics.written;
    return KG_OK;
}

/* Copies begun completions; if the run has none, only their header. */
static kg_status copy_begun(struct kg_saving *s, const struct kg_str *begun,
                            struct kg_err *err)
{
    const struct kg_begun none = {.n = 0};

    if (begun->len == 0)
        return kg_begun_pack(&s->begun, &none, 0, err);
    s->begun.max = begun->max;
    return kg_str_append(&s->begun, begun->data, begun->len, err);
}

/* Checks what can be refused before writing, and copies what the writer reads. */
static kg_status prepare(struct kg_saving *s, struct kg_run *run, struct kg_err *err)
{
    s->state = &run->state;
    s->ranks = run->state.model->ranks;
    s->dtype = saved_dtype(&run->in);
    s->root = kg_path_in(run->log.dir, "checkpoints");
    s->temporary = kg_path_in(s->root.text, ".saving");
    s->small = small_files_of(&run->state, run->log.dir);
    s->keep = run->in.recipe.checkpoint.keep;
    s->threads = kg_threads_get();
    if (kg_begun_steps(&run->in.recipe) > 0)
        KG_TRY(copy_begun(s, &run->state.begun, err));
    if (!run->log.elsewhere)
        KG_TRY(prepare_folder(s, run, err));
    run->state.count.optim_step = run->state.optim->step;
    s->count = run->state.count;
    return kg_optim_weights(&s->weights, run->state.optim, run->state.model, err);
}

/* prepare on all ranks that write together; files then exist at their full length. */
static kg_status prepare_together(struct kg_saving *s, struct kg_run *run,
                                  struct kg_err *err)
{
    kg_status status = prepare(s, run, err);

    if (!s->ranks)
        return status;
    if (status == KG_OK && !run->log.elsewhere)
        status = write_part(s, KG_SAVE_FRAME, err);
    return kg_ranks_agree(s->ranks, status, "checkpoint", err);
}

/* Renames the checkpoint, moves `latest`, and removes the oldest beyond s->keep. */
static kg_status place(struct kg_saving *s, struct kg_err *err)
{
    KG_TRY(kg_file_rename_dir(s->temporary.text, kg_path_in(s->root.text, s->name).text,
                              err));
    KG_TRY(kg_file_link(s->name, kg_path_in(s->root.text, "latest").text, err));
    s->placed = true;
    kg_log_info("saved %s/%s", s->root.text, s->name);
    return remove_old(s->root.text, s->keep, err);
}

static void give_up(struct kg_saving *s, bool keeps)
{
    struct kg_err ignored = {0};

    if (keeps && kg_file_remove_tree(s->temporary.text, &ignored) != KG_OK)
        kg_log_warn("%s cannot be removed: %s", s->temporary.text, ignored.message);
    kg_err_prefix(&s->err, s->placed ? "%s is saved, but" : "saving %s", s->name);
}

static void *write_all(void *saving)
{
    struct kg_saving *s = saving;
    int phase = kg_phase_begin(0, NULL, "saving checkpoint %s", s->name);

    kg_threads_set(s->threads); /* a new thread has the machine's number */
    s->status = write_part(s, s->ranks ? KG_SAVE_VALUES : KG_SAVE_ALL, &s->err);
    if (s->status == KG_OK && !s->ranks)
        s->status = kg_manifest_write(s->temporary.text, &s->err);
    if (s->status == KG_OK && !s->ranks)
        s->status = place(s, &s->err);
    if (s->status != KG_OK && !s->ranks)
        give_up(s, true);
    kg_phase_end(phase);
    return NULL;
}

/* ---- on several ranks ---- */

/* Hashes this rank's share of the pieces of all files. */
static kg_status hash_share(struct kg_manifest *m, const struct kg_saving *s,
                            uint64_t pieces, struct kg_err *err)
{
    struct kg_share mine = kg_share_of((int64_t)pieces, s->ranks->me, s->ranks->n);

    if (pieces != m->n_pieces)
        return kg_fail(
            err, KG_EIO,
            "%s: expected %llu parts of files, as on the first rank, found %zu",
            s->temporary.text, (unsigned long long)pieces, m->n_pieces);
    return kg_manifest_hash(m, (size_t)mine.first, (size_t)mine.end, err);
}

static kg_status gather_hashes(struct kg_manifest *m, struct kg_ranks *ranks,
                               struct kg_err *err)
{
    uint64_t *ends = kg_mem_calloc((size_t)ranks->n, sizeof *ends, "hashes", err);
    kg_status status = kg_ranks_agree(ranks, ends ? KG_OK : KG_ENOMEM, "hashes", err);

    for (int r = 0; r < ranks->n && ends; r++)
        ends[r] = (uint64_t)kg_share_of((int64_t)m->n_pieces, r, ranks->n).end *
                  sizeof *m->hashes;
    if (status == KG_OK)
        status = kg_ranks_gather(ranks, m->hashes, ends, "hashes", err);
    kg_mem_free(ends);
    return status;
}

/* m: from kg_manifest_list */
static kg_status hash_together(struct kg_manifest *m, const struct kg_saving *s,
                               struct kg_err *err)
{
    uint64_t pieces = m->n_pieces;

    KG_TRY(kg_ranks_share(s->ranks, &pieces, sizeof pieces, "hashes", err));
    kg_status status = hash_share(m, s, pieces, err);
    KG_TRY(kg_ranks_agree(s->ranks, status, "hashes", err));
    return gather_hashes(m, s->ranks, err);
}

/* The first rank writes the manifest and calls place; all ranks learn s->placed. */
static kg_status place_for_all(struct kg_saving *s, const struct kg_manifest *m,
                               struct kg_err *err)
{
    kg_status status = KG_OK;

    if (s->ranks->me == 0) {
        status = kg_manifest_put(m, err);
        if (status == KG_OK)
            status = place(s, err);
    }
    KG_TRY(kg_ranks_any(s->ranks, &s->placed, "checkpoint", err));
    return kg_ranks_agree(s->ranks, status, "checkpoint", err);
}

static kg_status finish_together(struct kg_saving *s, struct kg_err *err)
{
    struct kg_manifest m = {0};
    kg_status status = s->status;

    if (status == KG_OK)
        status = kg_manifest_list(&m, s->temporary.text, err);
    status = kg_ranks_agree(s->ranks, status, "checkpoint", err);
    if (status == KG_OK)
        status = hash_together(&m, s, err);
    if (status == KG_OK)
        status = place_for_all(s, &m, err);
    kg_manifest_release(&m);
    return status;
}

/* Whether another process writes the whole checkpoint. */
static bool written_elsewhere(const struct kg_run *run)
{
    return run->log.elsewhere && !run->state.model->ranks;
}

/* A rank that writes nothing still knows the newest checkpoint. */
static kg_status note_saved(struct kg_run *run, const char *name)
{
    run->state.count.optim_step = run->state.optim->step;
    memcpy(run->state.saved_name, name, sizeof run->state.saved_name);
    return KG_OK;
}

/* Completes a written checkpoint, notes its name and returns the writer's error. */
static kg_status settle(struct kg_run *run, struct kg_saving *s, struct kg_err *err)
{
    if (s->ranks) {
        s->status = finish_together(s, &s->err);
        if (s->status != KG_OK)
            give_up(s, !run->log.elsewhere);
    }
    kg_str_release(&s->begun);
    if (s->placed)
        memcpy(run->state.saved_name, s->name, sizeof s->name);
    if (s->status != KG_OK)
        *err = s->err;
    return s->status;
}

kg_status kg_checkpoint_save(struct kg_run *run, struct kg_err *err)
{
    struct kg_saving s = {0};
    kg_status status;

    KG_TRY(kg_checkpoint_wait(run, err));
    name_of(s.name, run);
    if (strcmp(s.name, run->state.saved_name) == 0)
        return KG_OK;
    if (written_elsewhere(run))
        return note_saved(run, s.name);
    KG_TRY_GOTO(out, prepare_together(&s, run, err));
    write_all(&s);
    return settle(run, &s, err);
out:
    kg_str_release(&s.begun);
    return status;
}

kg_status kg_checkpoint_begin(struct kg_run *run, struct kg_err *err)
{
    kg_status status;

    if (written_elsewhere(run) ||
        run->state.lag > 0) /* the next step first overwrites a lagged slab */
        return kg_checkpoint_save(run, err);
    KG_TRY(kg_checkpoint_wait(run, err));
    struct kg_saving *s = kg_mem_calloc(1, sizeof *s, "a checkpoint being saved", err);
    if (!s)
        return err->code;
    name_of(s->name, run);
    KG_TRY_GOTO(out, prepare_together(s, run, err));
    /* The step uses the other cores. And a thread with helpers ends them by pthread_exit,
     * which ends the process if memory for loading a library is missing. */
    s->threads = 1;
    if (pthread_create(&s->thread, NULL, write_all, s) != 0) {
        s->threads = kg_threads_get();
        write_all(s); /* no thread is available: write now */
        s->written = true;
    }
    run->saving = s;
    /* several ranks settle it together when they wait for it */
    return s->written && !s->ranks ? kg_checkpoint_wait(run, err) : KG_OK;
out:
    kg_str_release(&s->begun);
    kg_mem_free(s);
    return status;
}

kg_status kg_checkpoint_wait(struct kg_run *run, struct kg_err *err)
{
    struct kg_saving *s = run->saving;

    if (!s)
        return KG_OK;
    run->saving = NULL;
    int phase = kg_phase_wait(kg_clock_seconds(), "checkpoint %s to be written", s->name);
    if (!s->written)
        pthread_join(s->thread, NULL);
    kg_phase_end(phase);
    kg_status status = settle(run, s, err);
    kg_mem_free(s);
    return status;
}

kg_status kg_checkpoint_find(const struct kg_st_tensor **t, const struct kg_st_set *set,
                             const char *name, enum kg_dtype dtype, int64_t n,
                             const char *path, struct kg_err *err)
{
    const struct kg_dtype_traits *type = kg_dtype_traits(dtype);
    uint64_t bytes = (uint64_t)n * type->bytes;

    *t = kg_st_find(set, name);
    if (*t && strcmp((*t)->dtype, type->safetensors_name) != 0)
        return kg_fail(err, KG_EFORMAT, "%s: expected tensor %s in %s, found %s", path,
                       name, type->safetensors_name, (*t)->dtype);
    if (*t && (*t)->bytes == bytes)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT, "%s: expected tensor %s of %llu bytes, found %s%llu",
                   path, name, (unsigned long long)bytes,
                   *t ? "" : "none: ", (unsigned long long)(*t ? (*t)->bytes : 0));
}

kg_status kg_checkpoint_take(struct kg_slab *to, const struct kg_model *m,
                             const struct kg_st_set *set, const char *name,
                             const char *path, struct kg_err *err)
{
    size_t each = kg_dtype_traits(to->dtype)->bytes;
    const struct kg_st_tensor *t;

    KG_TRY(kg_checkpoint_find(&t, set, name, to->dtype, m->n_elements, path, err));
    return kg_slab_write(to, 0, t->data + (size_t)m->cut.first * each, to->n, err);
}

kg_status kg_checkpoint_take_state(struct kg_run_state *state, const char *path,
                                   struct kg_err *err)
{
    struct vectors v = vectors_of(state);
    struct kg_st_set *set;
    kg_status status = KG_OK;

    KG_TRY(kg_st_open_file(&set, path, err));
    for (size_t i = 0; i < v.n && status == KG_OK; i++)
        status = kg_checkpoint_take(v.slab[i], state->model, set, v.name[i], path, err);
    kg_st_close(set);
    return status;
}

kg_status kg_checkpoint_read(const struct kg_run_inputs *in, struct kg_run_state *state,
                             const char *dir, struct kg_err *err)
{
    /* the format first, because checkpoints of an older kedge have no manifest */
    KG_TRY(
        kg_checkpoint_counters(&state->count, kg_path_in(dir, "state.json").text, err));
    KG_TRY(kg_manifest_check(NULL, dir, err));
    if (state->count.step > 0 || state->count.sft_step >= in->sft_steps)
        KG_TRY(kg_run_start_rl(in, state, err));
    else
        KG_TRY(kg_run_start_sft(in, state, err));
    KG_TRY(
        kg_checkpoint_take_state(state, kg_path_in(dir, "state.safetensors").text, err));
    kg_str_clear(&state->begun);
    state->begun.max = SIZE_MAX / 2;
    if (kg_begun_steps(&in->recipe) > 0)
        KG_TRY(kg_file_read(&state->begun, kg_path_in(dir, "begun.bin").text,
                            SIZE_MAX / 2, err));
    kg_optim_resume(state->optim, state->count.optim_step);
    KG_TRY(kg_model_refresh(state->model, err));
    return kg_run_anchor_saved(state) ? kg_model_refresh(state->anchor, err) : KG_OK;
}

static bool is_whole(const char *dir)
{
    struct kg_counters unused;
    struct kg_err ignored;

    return kg_checkpoint_counters(&unused, kg_path_in(dir, "state.json").text,
                                  &ignored) == KG_OK &&
           kg_manifest_check(NULL, dir, &ignored) == KG_OK;
}

/* The newest intact checkpoint before `name`; "" if none. */
static void find_whole(char whole[KG_CHECKPOINT_NAME], const char *root, const char *name)
{
    struct kg_err ignored;
    char **names;
    size_t n, i = 0;

    whole[0] = '\0';
    if (list_checkpoints(&names, &n, root, &ignored) != KG_OK)
        return;
    while (i < n && strcmp(names[i], name) != 0)
        i++;
    while (i > 0 && !whole[0])
        if (is_whole(kg_path_in(root, names[--i]).text))
            strcpy(whole, names[i]);
    kg_file_names_free(names, n);
}

/* The newest checkpoint cannot be read. To take an older one would silently lose steps,
 * so the error names it and leaves the decision to the user. */
static kg_status name_whole(const char *root, const char *name, struct kg_err *err)
{
    char whole[KG_CHECKPOINT_NAME];

    if (err->code != KG_EFORMAT && err->code != KG_ENOTFOUND)
        return err->code;
    find_whole(whole, root, name);
    if (!whole[0])
        return kg_fail(err, err->code, "%s; no older checkpoint there is intact",
                       err->message);
    return kg_fail(err, err->code,
                   "%s; %s is intact: to continue from it, move all later ones, up to "
                   "%s, out of %.200s and resume again",
                   err->message, whole, name, root);
}

/* The rank that writes the folder finds the newest checkpoint and shares its name. */
static kg_status newest_for_all(char name[KG_CHECKPOINT_NAME], const struct kg_run *run,
                                struct kg_err *err)
{
    struct kg_ranks *ranks = run->work.ranks;
    kg_status status = KG_OK;

    if (!run->log.elsewhere)
        status = kg_checkpoint_newest(name, run->log.dir, err);
    KG_TRY(kg_ranks_agree(ranks, status, "newest checkpoint", err));
    return kg_ranks_share(ranks, name, KG_CHECKPOINT_NAME, "newest checkpoint", err);
}

kg_status kg_checkpoint_load(struct kg_run *run, bool *found, struct kg_err *err)
{
    struct kg_path root = kg_path_in(run->log.dir, "checkpoints");
    char name[KG_CHECKPOINT_NAME] = "";

    *found = false;
    KG_TRY(newest_for_all(name, run, err));
    if (!name[0])
        return KG_OK;
    kg_log_info("resuming from %s/%s", root.text, name);
    if (kg_checkpoint_read(&run->in, &run->state, kg_path_in(root.text, name).text,
                           err) != KG_OK)
        return name_whole(root.text, name, err);
    if (!run->log.elsewhere)
        KG_TRY(kg_file_link(name, kg_path_in(root.text, "latest").text, err));
    memcpy(run->state.saved_name, name, sizeof name);
    *found = true;
    return KG_OK;
}
