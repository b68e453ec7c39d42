/* Takes weights, anchor and optimizer from another run's checkpoint.
 *
 * That checkpoint's model/ is written for readers, in checkpoint.dtype. The trained fp32
 * slabs are in state.safetensors, and kedge loads these. The run pins the checkpoint when
 * it begins (kg_init_pin), so that on resume the path in its config does not resolve to a
 * newer checkpoint.
 */
#include "train/open/init.h"

#include "base/file.h"
#include "data/manifest.h"
#include "data/safetensors.h"
#include "recipe/options.h"
#include "train/keep/checkpoint.h"
#include "train/open/open.h"
#include "train/step/anchor.h"

#include <stdio.h>
#include <string.h>

/* ---- init.from and init.parts ---- */

static kg_status read_part(struct kg_init *init, const char *name, struct kg_err *err)
{
    const struct {
        const char *name;
        bool *wanted;
    } rows[] = {{"model", &init->model},
                {"anchor", &init->anchor},
                {"optimizer", &init->optimizer},
                {"steps", &init->steps}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0) {
            *rows[i].wanted = true;
            return KG_OK;
        }
    return kg_fail(err, KG_EINVAL,
                   "init.parts: expected model, anchor, optimizer or steps, found "
                   "'%.40s'",
                   name);
}

static kg_status read_parts(struct kg_init *init, struct kg_opt_list parts,
                            struct kg_err *err)
{
    if (parts.n == 0)
        return kg_fail(
            err, KG_EINVAL,
            "init.parts: expected the parts to take from init.from, found none");
    for (size_t i = 0; i < parts.n; i++)
        KG_TRY(read_part(init, parts.items[i], err));
    return KG_OK;
}

static kg_status check_parts(const struct kg_init *init, const struct kg_recipe *r,
                             struct kg_err *err)
{
    if (init->model && *r->model.path)
        return kg_fail(
            err, KG_EINVAL,
            "model.path: expected none, because init.from gives the model, found %.200s",
            r->model.path);
    if (init->anchor && *r->anchor_path)
        return kg_fail(err, KG_EINVAL,
                       "anchor.path: expected none, because init.from gives the anchor, "
                       "found %.200s",
                       r->anchor_path);
    if ((init->anchor || init->optimizer) && kg_recipe_has_sft(r))
        return kg_fail(err, KG_EINVAL,
                       "init.parts: SFT would run before %s is used; expected sft.steps "
                       "0 and sft.epochs 0, found SFT",
                       init->anchor ? "anchor" : "optimizer");
    if (init->steps && !init->optimizer)
        return kg_fail(err, KG_EINVAL,
                       "init.parts: steps continues the optimizer's schedule; expected "
                       "optimizer too, found none");
    return KG_OK;
}

/* The checkpoint that init.from names, or the newest of the run that it names. */
static kg_status find_checkpoint(struct kg_path *dir, const char *from,
                                 struct kg_err *err)
{
    char name[KG_CHECKPOINT_NAME];

    snprintf(dir->text, sizeof dir->text, "%s", from);
    if (kg_file_exists(kg_path_in(from, "state.json").text))
        return KG_OK;
    KG_TRY(kg_checkpoint_last(name, from, err));
    if (!name[0])
        return kg_fail(err, KG_ENOTFOUND,
                       "init.from: expected a checkpoint or a run that has one, found "
                       "neither in %.300s",
                       from);
    *dir = kg_path_in(kg_path_in(from, "checkpoints").text, name);
    return KG_OK;
}

/* The newest checkpoint of this run at or before the step, if it has one. */
static kg_status find_own(struct kg_init *init, const struct kg_recipe *r, int64_t step,
                          struct kg_err *err)
{
    const char *run = r->run.dir;
    char name[KG_CHECKPOINT_NAME];

    if (!*run || strlen(run) > KG_RUN_DIR_MAX)
        return KG_OK; /* opening the run refuses this */
    if (step == KG_INIT_NEWEST)
        KG_TRY(kg_checkpoint_last(name, run, err));
    else
        KG_TRY(kg_checkpoint_before(name, run, step, err));
    init->own = name[0] != '\0';
    if (init->own)
        init->dir = kg_path_in(kg_path_in(run, "checkpoints").text, name);
    return KG_OK;
}

/* With init.parts steps: the other run's steps, after which this run continues. */
static kg_status find_step(struct kg_init *init, const struct kg_recipe *r,
                           struct kg_err *err)
{
    struct kg_counters before;
    int64_t last = r->train.steps;

    KG_TRY(kg_checkpoint_counters(&before, kg_path_in(init->dir.text, "state.json").text,
                                  err));
    init->step = before.step;
    if (last > before.step)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "train.steps: counts the steps of init.from too (init.parts: steps); "
                   "expected more than its %lld, found %lld",
                   (long long)before.step, (long long)last);
}

/* A checkpoint of adapters lacks whole weights, and optimizer state of their size. */
static kg_status check_whole(const char *dir, struct kg_err *err)
{
    const struct kg_path adapter = kg_path_in(dir, "adapter");

    if (!kg_file_is_dir(adapter.text))
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "init.from: expected a checkpoint of all weights, found one of "
                   "adapters; continue them with the model.path of their run and "
                   "model.adapter=%.500s, or merge them into that model with kedge merge",
                   adapter.text);
}

kg_status kg_init_find(struct kg_init *init, const struct kg_recipe *r, int64_t step,
                       struct kg_err *err)
{
    const char *from = r->init.from;

    memset(init, 0, sizeof *init);
    if (strlen(from) > KG_RUN_DIR_MAX)
        return kg_fail(err, KG_EINVAL,
                       "init.from: expected a path of at most %d bytes, found %zu",
                       KG_RUN_DIR_MAX, strlen(from));
    if (*from) {
        KG_TRY(read_parts(init, r->init.parts, err));
        KG_TRY(check_parts(init, r, err));
        KG_TRY(find_own(init, r, step, err));
        if (init->own)
            return KG_OK;
        KG_TRY(find_checkpoint(&init->dir, from, err));
        KG_TRY(check_whole(init->dir.text, err));
        return init->steps ? find_step(init, r, err) : KG_OK;
    }
    if (r->init.parts.n == 1 && strcmp(r->init.parts.items[0], "model") == 0)
        return KG_OK; /* the default, as a run's config.yaml has it */
    return kg_fail(
        err, KG_EINVAL,
        "init.parts: expected init.from, which the parts are taken from, found none");
}

/* On resume: the checkpoint in config.yaml, if it is of the run that is named now. */
static kg_status pin_as_before(struct kg_config *config, const struct kg_recipe *r,
                               struct kg_err *err)
{
    struct kg_path path = kg_path_in(r->run.dir, "config.yaml"),
                   all = kg_path_in(r->init.from, "checkpoints/");
    struct kg_config *before;
    struct kg_recipe then;
    kg_status status = KG_OK;

    if (!kg_file_exists(path.text))
        return KG_OK; /* run_dir.c reports this */
    KG_TRY(kg_train_config(&before, path.text, NULL, 0, err));
    kg_recipe_read(&then, before);
    const char *found = then.init.from;
    if (strncmp(found, all.text, strlen(all.text)) == 0)
        status = kg_config_set(config, "init.from", found, false, path.text, err);
    kg_config_free(before);
    return status;
}

kg_status kg_init_pin(struct kg_config *config, bool resume, struct kg_err *err)
{
    struct kg_recipe r;
    struct kg_init init;

    kg_recipe_read(&r, config);
    if (!*r.init.from)
        return KG_OK;
    if (resume)
        return pin_as_before(config, &r, err);
    KG_TRY(kg_init_find(&init, &r, KG_INIT_NEWEST, err));
    return kg_config_set(config, "init.from", init.dir.text, false, "init.from", err);
}

kg_status kg_init_verify(const struct kg_init *init, struct kg_err *err)
{
    if (!init->dir.text[0] || init->own)
        return KG_OK;
    return kg_manifest_check(NULL, init->dir.text, err) == KG_OK
               ? KG_OK
               : kg_err_prefix(err, "init.from");
}

struct kg_path kg_init_model_dir(const struct kg_init *init, const struct kg_recipe *r)
{
    struct kg_path given;

    if (init->model)
        return kg_path_in(init->dir.text, "model");
    snprintf(given.text, sizeof given.text, "%s", r->model.path);
    return given;
}

kg_status kg_init_say(struct kg_str *out, const struct kg_init *init, struct kg_err *err)
{
    return kg_str_printf(out, err, "%s:%s%s%s%s", init->dir.text,
                         init->model ? " model" : "", init->anchor ? " anchor" : "",
                         init->optimizer ? " optimizer" : "",
                         init->steps ? " steps" : "");
}

/* ---- tensors of the checkpoint's state ---- */

static struct kg_path state_path(const struct kg_init *init)
{
    return kg_path_in(init->dir.text, "state.safetensors");
}

static kg_status open_state(struct kg_st_set **set, const struct kg_init *init,
                            struct kg_err *err)
{
    KG_TRY(kg_st_open_file(set, state_path(init).text, err));
    if (!kg_st_find(*set, "free_z"))
        return KG_OK;
    kg_st_close(*set);
    return kg_fail(err, KG_EUNSUPPORTED,
                   "init.from: %.300s: expected a run with adamw, found one with "
                   "schedule-free; its model/ is the learned model: set model.path to it",
                   init->dir.text);
}

/* A tensor of the file has all parameters of a model one after the other, so the model
 * must have the shapes of the saved one. */
static kg_status check_shapes(const struct kg_init *init, const struct kg_model *m,
                              struct kg_err *err)
{
    const struct kg_model_config *a = &m->config;
    struct kg_model_config b;

    KG_TRY(kg_model_config_read(&b, kg_path_in(init->dir.text, "model").text, err));
    if (a->arch == b.arch && a->vocab == b.vocab && a->hidden == b.hidden &&
        a->ffn == b.ffn && a->layers == b.layers && a->heads == b.heads &&
        a->kv_heads == b.kv_heads && a->head_dim == b.head_dim && a->tied == b.tied &&
        kg_model_config_features(a) == kg_model_config_features(&b) &&
        memcmp(&a->experts, &b.experts, sizeof b.experts) == 0)
        return KG_OK;
    return kg_fail(err, KG_ESHAPE,
                   "init.from: %.300s: expected the shapes of the model at %.300s, found "
                   "others",
                   init->dir.text, m->dir);
}

kg_status kg_init_model(const struct kg_run_inputs *in, struct kg_run_state *state,
                        struct kg_err *err)
{
    struct kg_st_set *set;
    kg_status status;

    if (!in->init.model || in->init.own)
        return KG_OK;
    KG_TRY(open_state(&set, &in->init, err));
    status = kg_checkpoint_take(&state->model->master, state->model, set, "master",
                                state_path(&in->init).text, err);
    kg_st_close(set);
    return status == KG_OK ? kg_model_refresh(state->model, err) : status;
}

/* ---- anchor and optimizer ---- */

static kg_status check_wanted(const struct kg_run_inputs *in,
                              const struct kg_run_state *state,
                              const struct kg_st_set *set, struct kg_err *err)
{
    const struct kg_optim_row *row = in->rl_optim.row;
    int64_t n = state->model->n_elements;
    struct kg_path path = state_path(&in->init);
    const struct kg_st_tensor *unused;

    if (in->init.anchor && !kg_run_anchor_saved(state))
        return kg_fail(err, KG_EINVAL,
                       "init.parts: anchor: expected an anchor with weights of its own, "
                       "found anchor.kind %s",
                       in->recipe.algo.name[KG_TABLE_ANCHOR]);
    if (in->init.anchor)
        if (kg_checkpoint_find(&unused, set, "anchor", KG_F32, n, path.text, err) !=
            KG_OK)
            return kg_err_prefix(err, "init.from");
    if (in->init.optimizer && row->averages)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "init.parts: optimizer: expected optim.kind adamw, found %s",
                       row->name);
    for (int i = 0; in->init.optimizer && i < KG_OPTIM_STATES; i++)
        if (kg_checkpoint_find(&unused, set, row->state[i],
                               kg_optim_state_dtype(&in->rl_optim, i), n, path.text,
                               err) != KG_OK)
            return kg_err_prefix(err, "init.from, with optim.moments %s",
                                 kg_dtype_traits(in->rl_optim.moments)->name);
    return KG_OK;
}

kg_status kg_init_check(const struct kg_run_inputs *in, const struct kg_run_state *state,
                        struct kg_err *err)
{
    struct kg_st_set *set;

    if (in->init.own || (!in->init.anchor && !in->init.optimizer))
        return KG_OK;
    KG_TRY(check_shapes(&in->init, state->model, err));
    KG_TRY(open_state(&set, &in->init, err));
    kg_status status = check_wanted(in, state, set, err);
    kg_st_close(set);
    return status;
}

/* Continues the counters as on resume. Those that count only this run (skipped steps,
 * validations, bytes of its log) start at 0. */
static void go_on(const struct kg_run_inputs *in, struct kg_run_state *state,
                  const struct kg_counters *before)
{
    struct kg_counters *c = &state->count;

    c->step = before->step;
    c->prompts = before->prompts;
    c->optim_before = before->optim_before;
    c->anchor_updates = before->anchor_updates;
    c->anchor_refreshed = before->anchor_refreshed;
    c->anchor_kl = before->anchor_kl;
    if (in->algo.kl_target > 0)
        c->kl_beta = before->kl_beta;
    kg_optim_resume(state->optim, before->optim_step);
}

static kg_status take_optimizer(const struct kg_run_inputs *in,
                                struct kg_run_state *state, const struct kg_st_set *set,
                                struct kg_err *err)
{
    struct kg_counters before;

    KG_TRY(kg_checkpoint_counters(&before,
                                  kg_path_in(in->init.dir.text, "state.json").text, err));
    for (int i = 0; i < KG_OPTIM_STATES; i++)
        KG_TRY(kg_checkpoint_take(&state->optim->state[i], state->model, set,
                                  state->optim->opts.row->state[i],
                                  state_path(&in->init).text, err));
    if (in->init.steps)
        go_on(in, state, &before);
    else
        state->count.optim_before = before.optim_before + before.optim_step;
    state->optim->before = state->count.optim_before;
    return KG_OK;
}

kg_status kg_init_rl(const struct kg_run_inputs *in, struct kg_run_state *state,
                     struct kg_err *err)
{
    struct kg_st_set *set;
    kg_status status = KG_OK;

    if (!in->init.anchor && !in->init.optimizer)
        return KG_OK;
    KG_TRY(open_state(&set, &in->init, err));
    if (in->init.anchor)
        KG_TRY_GOTO(out, kg_checkpoint_take(&state->anchor->master, state->anchor, set,
                                            "anchor", state_path(&in->init).text, err));
    if (in->init.anchor)
        KG_TRY_GOTO(out, kg_model_refresh(state->anchor, err));
    if (in->init.optimizer)
        status = take_optimizer(in, state, set, err);
out:
    kg_st_close(set);
    return status;
}
