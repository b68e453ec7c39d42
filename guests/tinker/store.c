/* The files below DIR or a user's folder: MODEL_ID/run.json, MODEL_ID/weights/NAME and
 * MODEL_ID/sampler_weights/NAME. A folder of weights has a manifest, and the
 * checkpoint or the adapters as `kedge train` writes them (model/ or adapter/). A folder
 * to continue from also has the state of the optimizer (state.json, state.safetensors).
 * A folder is written under another name and renamed, so it is complete under its name.
 *
 * A tinker:// path comes from the network: its parts may have only the characters of this
 * server's names, so no path leads out of the user's folder. */
#include "tinker/tinker.h"

#include "base/clock.h"
#include "base/file.h"
#include "data/manifest.h"
#include "train/keep/checkpoint.h"

#include <stdio.h>
#include <time.h>

enum { MAX_FACTS_BYTES = 1 << 16, MAX_META_BYTES = 1 << 15 };
static const char scheme[] = "tinker://";

/* Letters, digits, '-', '_', '.' and ':'; not '.' first. */
bool kg_tinker_is_name(const char *name)
{
    const size_t n = strlen(name);
    return n > 0 && n < KG_TINKER_ID && name[0] != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                        "-_.:") == n;
}

kg_status kg_tinker_folder(struct kg_path *to, const struct kg_tinker_user *u,
                           const char *path, struct kg_err *err)
{
    char part[3][KG_TINKER_ID];
    int n = 0; /* bytes read: a name that is too long must not match a shorter one */
    bool good = strncmp(path, scheme, sizeof scheme - 1) == 0 &&
                sscanf(path + sizeof scheme - 1, "%95[^/]/%95[^/]/%95[^/]%n", part[0],
                       part[1], part[2], &n) == 3 &&
                path[sizeof scheme - 1 + (size_t)n] == '\0';
    for (int i = 0; i < 3 && good; i++)
        good = kg_tinker_is_name(part[i]);
    good = good &&
           (strcmp(part[1], "weights") == 0 || strcmp(part[1], "sampler_weights") == 0);
    if (!good)
        return kg_fail(err, KG_EINVAL,
                       "path: expected tinker://MODEL_ID/weights/NAME or "
                       "tinker://MODEL_ID/sampler_weights/NAME, of letters, digits and "
                       "-_.:, found '%.200s'",
                       path);
    *to = kg_path_in(u->dir.text, part[0]);
    *to = kg_path_in(to->text, part[1]);
    *to = kg_path_in(to->text, part[2]);
    return KG_OK;
}

/* ---- facts ---- */

static kg_status read_facts(struct kg_json_doc *doc, const char *dir, const char *name,
                            struct kg_err *err)
{
    const struct kg_path file = kg_path_in(dir, name);
    if (kg_file_exists(file.text))
        return kg_json_read(doc, file.text, MAX_FACTS_BYTES, err);
    return kg_fail(err, KG_ENOTFOUND, "no such weights or training run: %s",
                   strrchr(dir, '/') + 1);
}

static struct kg_tinker_facts facts_in(const struct kg_json *r)
{
    const char *base = kg_json_text(kg_json_get(r, "base_model"), NULL);
    const struct kg_json *anchor = kg_json_get(r, "anchor");
    const char *kind = kg_json_text(kg_json_get(anchor, "kind"), NULL);
    struct kg_tinker_facts f = {
        .lora = kg_json_bool(kg_json_get(r, "is_lora"), false),
        .attn = kg_json_bool(kg_json_get(r, "train_attn"), true),
        .mlp = kg_json_bool(kg_json_get(r, "train_mlp"), true),
        .rank = (int)kg_json_int(kg_json_get(r, "lora_rank"), 0),
        .seed = (uint64_t)kg_json_int(kg_json_get(r, "seed"), 0),
        .anchor.eta = kg_json_real(kg_json_get(anchor, "eta"), 0),
        .anchor.period = kg_json_int(kg_json_get(anchor, "period"), 1),
    };
    snprintf(f.base, sizeof f.base, "%s", base ? base : "");
    snprintf(f.anchor.kind, sizeof f.anchor.kind, "%s", kind ? kind : "");
    return f;
}

static kg_status take_facts(struct kg_tinker_facts *f, const char *dir, const char *name,
                            struct kg_err *err)
{
    struct kg_json_doc doc;
    KG_TRY(read_facts(&doc, dir, name, err));
    *f = facts_in(doc.root);
    kg_json_release(&doc);
    return KG_OK;
}

kg_status kg_tinker_look(struct kg_path *dir, struct kg_tinker_facts *f,
                         const struct kg_tinker_user *u, const char *path,
                         struct kg_err *err)
{
    KG_TRY(kg_tinker_folder(dir, u, path, err));
    return take_facts(f, dir->text, "tinker.json", err);
}

kg_status kg_tinker_find_weights(struct kg_path *dir, struct kg_tinker_facts *f,
                                 const struct kg_tinker_user *u, const char *path,
                                 struct kg_err *err)
{
    KG_TRY(kg_tinker_look(dir, f, u, path, err));
    if (strncmp(f->base, u->t->opts.name, sizeof f->base - 1) == 0)
        return KG_OK;
    return kg_fail(err, KG_EINVAL, "%s: expected weights of %s, found weights of '%s'",
                   path, u->t->opts.name, f->base);
}

kg_status kg_tinker_facts_of(struct kg_tinker_facts *f, const struct kg_tinker_user *u,
                             const char *model_id, struct kg_err *err)
{
    if (!kg_tinker_is_name(model_id))
        return kg_fail(err, KG_ENOTFOUND, "model_id: no model %.90s", model_id);
    return take_facts(f, kg_path_in(u->dir.text, model_id).text, "run.json", err);
}

static kg_status put_meta(struct kg_str *out, const struct kg_json *meta,
                          struct kg_err *err)
{
    struct kg_str text = {.max = MAX_META_BYTES};
    if (kg_json_type(meta) != KG_JSON_OBJECT)
        return kg_str_puts(out, "null", err);
    kg_status status = kg_json_put_value(&text, meta, err);
    if (status == KG_OK)
        status = kg_str_append(out, text.data, text.len, err);
    else
        status = kg_fail(err, KG_EINVAL,
                         "user_metadata: expected at most %d bytes of JSON, found more",
                         MAX_META_BYTES);
    kg_str_release(&text);
    return status;
}

static kg_status put_facts(struct kg_str *out, const struct kg_tinker_user *u,
                           const struct kg_tinker_facts *f, const struct kg_json *meta,
                           struct kg_err *err)
{
    char when[32];
    const time_t now = (time_t)kg_clock_unix_seconds();
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    KG_TRY(kg_str_printf(out, err, "{\"base_model\": %s, \"anchor\": ", u->t->name));
    if (*f->anchor.kind) {
        KG_TRY(kg_str_printf(out, err, "{\"kind\": \"%s\", \"period\": %lld, \"eta\": ",
                             f->anchor.kind, (long long)f->anchor.period));
        KG_TRY(kg_json_put_double(out, f->anchor.eta, err));
    }
    KG_TRY(kg_str_printf(out, err,
                         "%s, \"is_lora\": %s, \"lora_rank\": %d, \"train_attn\": %s, "
                         "\"train_mlp\": %s, \"seed\": %llu, \"time\": "
                         "\"%s\", \"user_metadata\": ",
                         *f->anchor.kind ? "}" : "null", f->lora ? "true" : "false",
                         f->rank, f->attn ? "true" : "false", f->mlp ? "true" : "false",
                         (unsigned long long)f->seed, when));
    KG_TRY(put_meta(out, meta, err));
    return kg_str_puts(out, "}\n", err);
}

kg_status kg_tinker_facts_write(const struct kg_tinker_user *u,
                                const struct kg_tinker_facts *f,
                                const struct kg_json *meta, const char *file,
                                struct kg_err *err)
{
    struct kg_str text = {.max = MAX_FACTS_BYTES};
    kg_status status = put_facts(&text, u, f, meta, err);
    if (status == KG_OK)
        status = kg_file_write_atomic(file, text.data, text.len, err);
    kg_str_release(&text);
    return status;
}

/* ---- saving ---- */

static kg_status write_folder(const struct kg_tinker_model *m, const struct kg_json *meta,
                              const char *dir, bool state, struct kg_err *err)
{
    const struct kg_model *model = m->state.model;
    const struct kg_model_save save = {.dtype = KG_F32};
    struct kg_tinker_facts facts;
    KG_TRY(kg_file_make_dirs(dir, err));
    KG_TRY(kg_tinker_facts_of(&facts, m->user, m->id, err));
    if (state && m->state.anchor) {
        snprintf(facts.anchor.kind, sizeof facts.anchor.kind, "%s",
                 m->algo.anchor->about.name);
        facts.anchor.eta = m->algo.anchor_eta;
        facts.anchor.period = m->algo.anchor_period;
    }
    KG_TRY(kg_model_save(model, kg_path_in(dir, model->lora ? "adapter" : "model").text,
                         &save, err));
    if (state) {
        struct kg_counters count = m->state.count;
        count.optim_step = m->state.optim->step;
        KG_TRY(kg_checkpoint_put_state(&m->state,
                                       kg_path_in(dir, "state.safetensors").text, err));
        KG_TRY(
            kg_checkpoint_put_counters(&count, kg_path_in(dir, "state.json").text, err));
    }
    KG_TRY(kg_tinker_facts_write(m->user, &facts, meta,
                                 kg_path_in(dir, "tinker.json").text, err));
    return kg_manifest_write(dir, err);
}

kg_status kg_tinker_save(const struct kg_tinker_model *m,
                         const struct kg_tinker_args *args, const char *path, bool state,
                         struct kg_err *err)
{
    struct kg_path to, temporary;
    struct kg_err ignored;
    KG_TRY(kg_tinker_folder(&to, m->user, path, err));
    if (kg_file_exists(to.text) && !args->overwrite)
        return kg_fail(err, KG_ECONFLICT,
                       "%s exists: expected another name, or overwrite", path);
    temporary = kg_path_in(m->user->t->dir, ".saving");
    KG_TRY(kg_file_remove_tree(temporary.text, err));
    kg_status status = write_folder(m, args->meta, temporary.text, state, err);
    struct kg_path parent = to;
    *strrchr(parent.text, '/') = '\0';
    if (status == KG_OK)
        status = kg_file_make_dirs(parent.text, err);
    if (status == KG_OK)
        status = kg_file_rename_dir(temporary.text, to.text, err);
    if (status != KG_OK && kg_file_remove_tree(temporary.text, &ignored) != KG_OK)
        return kg_err_prefix(err, "%s was not removed", temporary.text);
    return status;
}

/* ---- lists ---- */

static const char *const kinds[2][2] = {{"weights", "training"},
                                        {"sampler_weights", "sampler"}};

/* A list to write: of runs, or of a run's checkpoints of one kind. */
struct list {
    struct kg_str *out;
    const struct kg_tinker_user *u;
    const char *id; /* of the run; NULL: runs */
    int kind;
    bool last; /* keep only the latest entry: by time, then by name */
    size_t n;
    char latest[32]; /* time of the latest entry so far */
};
static kg_status put_list(struct list *l, struct kg_err *err);

static kg_status put_checkpoint(const struct list *l, const char *name, const char *when,
                                const struct kg_json *r, struct kg_err *err)
{
    const char *const *kind = kinds[l->kind];
    KG_TRY(kg_str_printf(l->out, err,
                         "{\"checkpoint_id\": \"%s/%s\", \"checkpoint_type\": \"%s\", "
                         "\"time\": \"%.30s\", \"tinker_path\": \"%s%s/%s/%s\", "
                         "\"public\": false, \"user_metadata\": ",
                         kind[0], name, kind[1], when, scheme, l->id, kind[0], name));
    KG_TRY(kg_json_put_value(l->out, kg_json_get(r, "user_metadata"), err));
    return kg_str_puts(l->out, "}", err);
}

static kg_status put_last(const struct list *runs, const char *key, const char *id,
                          int kind, struct kg_err *err)
{
    struct list l = {
        .out = runs->out, .u = runs->u, .id = id, .kind = kind, .last = true};
    KG_TRY(kg_str_printf(l.out, err, ", \"%s\": ", key));
    KG_TRY(put_list(&l, err));
    return l.n > 0 ? KG_OK : kg_str_puts(l.out, "null", err);
}

static kg_status put_run(const struct list *l, const char *name, const char *when,
                         const struct kg_json *r, struct kg_err *err)
{
    const struct kg_tinker_facts f = facts_in(r);
    KG_TRY(kg_str_printf(l->out, err, "{\"training_run_id\": \"%s\"", name));
    KG_TRY(kg_json_put_text(l->out, ", \"base_model\": ", f.base, err));
    KG_TRY(kg_str_printf(l->out, err,
                         ", \"model_owner\": \"%s\", \"is_lora\": %s, "
                         "\"lora_rank\": %d, \"corrupted\": false, "
                         "\"last_request_time\": \"%.30s\", \"user_metadata\": ",
                         l->u->name, f.lora ? "true" : "false", f.rank, when));
    KG_TRY(kg_json_put_value(l->out, kg_json_get(r, "user_metadata"), err));
    KG_TRY(put_last(l, "last_checkpoint", name, 0, err));
    KG_TRY(put_last(l, "last_sampler_checkpoint", name, 1, err));
    return kg_str_puts(l->out, "}", err);
}

static kg_status put_entry(struct list *l, const char *name, const struct kg_json *r,
                           size_t from, struct kg_err *err)
{
    const char *time = kg_json_text(kg_json_get(r, "time"), NULL);
    const char *when = time ? time : "";
    if (l->last && strcmp(when, l->latest) < 0)
        return KG_OK;
    if (l->last)
        l->out->len = from;
    else if (l->n > 0)
        KG_TRY(kg_str_puts(l->out, ", ", err));
    snprintf(l->latest, sizeof l->latest, "%s", when);
    l->n++;
    return l->id ? put_checkpoint(l, name, when, r, err) : put_run(l, name, when, r, err);
}

/* Skips folders without facts, which are not the server's. */
static kg_status put_folder(struct list *l, const char *dir, const char *name,
                            size_t from, struct kg_err *err)
{
    const struct kg_path at = kg_path_in(dir, name);
    const char *facts = l->id ? "tinker.json" : "run.json";
    struct kg_json_doc doc;
    if (!kg_tinker_is_name(name) || !kg_file_exists(kg_path_in(at.text, facts).text))
        return KG_OK;
    KG_TRY(read_facts(&doc, at.text, facts, err));
    const kg_status status = put_entry(l, name, doc.root, from, err);
    kg_json_release(&doc);
    return status;
}

static kg_status put_list(struct list *l, struct kg_err *err)
{
    struct kg_path dir = l->u->dir;
    char **names;
    size_t n;
    kg_status status = KG_OK;
    const size_t from = l->out->len;
    if (l->id)
        dir = kg_path_in(kg_path_in(dir.text, l->id).text, kinds[l->kind][0]);
    if (!kg_file_is_dir(dir.text))
        return KG_OK;
    KG_TRY(kg_file_list(&names, &n, dir.text, err));
    for (size_t i = 0; i < n && status == KG_OK; i++)
        status = put_folder(l, dir.text, names[i], from, err);
    kg_file_names_free(names, n);
    return status;
}

kg_status kg_tinker_put_checkpoints(struct kg_str *out, const struct kg_tinker_user *u,
                                    const char *id, struct kg_err *err)
{
    struct list l = {.out = out, .u = u, .id = id};
    struct kg_tinker_facts facts;
    KG_TRY(kg_tinker_facts_of(&facts, u, id, err));
    KG_TRY(kg_str_puts(out, "{\"checkpoints\": [", err));
    for (; l.kind < 2; l.kind++)
        KG_TRY(put_list(&l, err));
    return kg_str_puts(out, "]}", err);
}

kg_status kg_tinker_put_run(struct kg_str *out, const struct kg_tinker_user *u,
                            const char *id, struct kg_err *err)
{
    struct list l = {.out = out, .u = u};
    struct kg_tinker_facts facts;
    KG_TRY(kg_tinker_facts_of(&facts, u, id, err));
    return put_folder(&l, u->dir.text, id, 0, err);
}

kg_status kg_tinker_put_runs(struct kg_str *out, const struct kg_tinker_user *u,
                             struct kg_err *err)
{
    struct list l = {.out = out, .u = u};
    KG_TRY(kg_str_puts(out, "{\"training_runs\": [", err));
    KG_TRY(put_list(&l, err));
    return kg_str_printf(out, err,
                         "], \"cursor\": {\"offset\": 0, \"limit\": %zu, "
                         "\"total_count\": %zu}}",
                         l.n, l.n);
}
