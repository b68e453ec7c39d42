/* Where the anchor's weights come from, and when they change.
 *
 * The iterative anchor is the sampler's record. All others are a struct kg_model: a copy
 * of the policy that follows it (ema), is replaced by it (copy) or never changes (fixed),
 * or a fixed checkpoint. Only an anchor with master weights can change, and only
 * such an anchor is in checkpoints. Changes are counted here alone, at the ends of
 * updates and steps, so a resumed run makes them at the same points.
 */
#include "train/step/anchor.h"

#include "policy/shaping.h"
#include "train/open/open.h"

/* ---- opening ---- */

static kg_status check_shape(const struct kg_model *anchor, const struct kg_model *m,
                             const char *kind, struct kg_err *err)
{
    bool same = anchor->n_params == m->n_params && anchor->n_elements == m->n_elements;

    for (size_t i = 0; same && i < m->n_params; i++)
        same = anchor->params[i].rows == m->params[i].rows &&
               anchor->params[i].cols == m->params[i].cols;
    if (same)
        return KG_OK;
    return kg_fail(err, KG_ESHAPE,
                   "anchor.path: %s: an anchor that follows the policy (%s) must have "
                   "its shape; expected %lld parameters, found %lld",
                   anchor->dir, kind, (long long)m->n_elements,
                   (long long)anchor->n_elements);
}

/* The layers are on the host with anchor.place=host, else where the policy's are. */
static struct kg_model_opts opts_of(const struct kg_run_inputs *in,
                                    const struct kg_run_state *state)
{
    return (struct kg_model_opts){
        .ct = state->model->ct,
        .on_host = in->recipe.anchor_on_host ? KG_HOST_LAYERS : state->model->on_host,
        .whose = "anchor's ",
        .ranks = state->model->ranks,
        .ignore = in->recipe.model.ignore};
}

static kg_status open_path(const struct kg_run_inputs *in, struct kg_run_state *state,
                           const char *path, struct kg_err *err)
{
    enum kg_anchor_kind kind = in->algo.anchor->kind;
    const char *name = in->algo.anchor->about.name;
    bool follows = kg_run_anchor_moves(in);
    struct kg_model_opts opts = opts_of(in, state);

    if (kind == KG_ANCHOR_NONE || kind == KG_ANCHOR_ITERATIVE)
        return kg_fail(err, KG_EINVAL,
                       "anchor.path: expected anchor.kind fixed, ema or copy with it, "
                       "found %s",
                       name);
    if (!follows && in->recipe.anchor_on_host && state->model->backend->host_memory)
        return kg_fail(
            err, KG_EINVAL,
            "anchor.place: on the CPU a fixed anchor (%s, of anchor.path) is stored only "
            "once, packed for products; expected device, found host",
            name);
    opts.trainable = follows;
    KG_TRY(kg_reference_open(&state->anchor, path, "anchor.path", state->model, in->tok,
                             &opts, err));
    return follows ? check_shape(state->anchor, state->model, name, err) : KG_OK;
}

kg_status kg_run_anchor_open(const struct kg_run_inputs *in, struct kg_run_state *state,
                             struct kg_err *err)
{
    enum kg_anchor_kind kind = in->algo.anchor->kind;
    const char *path = in->recipe.anchor_path;

    if (*path)
        return open_path(in, state, path, err);
    if (kind == KG_ANCHOR_NONE || kind == KG_ANCHOR_ITERATIVE)
        return KG_OK;
    struct kg_model_opts opts = opts_of(in, state);
    return kg_model_clone(&state->anchor, state->model, &opts, err);
}

bool kg_run_anchor_moves(const struct kg_run_inputs *in)
{
    return !*in->recipe.anchor_path || in->algo.anchor->kind != KG_ANCHOR_FIXED;
}

void kg_run_adapted(struct kg_model_opts *opts, const struct kg_model *m)
{
    if (!m->lora)
        return;
    opts->lora = m->lora;
    opts->base = m;
}

kg_status kg_run_anchor_outline(const struct kg_run_inputs *in,
                                struct kg_run_state *state, struct kg_err *err)
{
    enum kg_anchor_kind kind = in->algo.anchor->kind;
    struct kg_model_config config = state->model->config;
    struct kg_model_opts opts = opts_of(in, state);

    if (kind == KG_ANCHOR_NONE || kind == KG_ANCHOR_ITERATIVE)
        return KG_OK;
    if (*in->recipe.anchor_path &&
        kg_model_config_open(&config, in->recipe.anchor_path, &opts.ignore, err) != KG_OK)
        return kg_err_prefix(err, "anchor.path");
    opts.backend = state->model->backend;
    if (!*in->recipe.anchor_path)
        kg_run_adapted(&opts, state->model);
    return kg_model_outline(&state->anchor, &config, &opts, err);
}

static kg_status become_policy(struct kg_run_state *state, struct kg_err *err)
{
    KG_TRY(kg_slab_copy(&state->anchor->master, &state->model->master, err));
    return kg_model_refresh(state->anchor, err);
}

kg_status kg_run_anchor_begin(const struct kg_run_inputs *in, struct kg_run_state *state,
                              struct kg_err *err)
{
    if (!state->anchor || *in->recipe.anchor_path)
        return KG_OK;
    return become_policy(state, err);
}

bool kg_run_anchor_saved(const struct kg_run_state *state)
{
    return state->anchor && state->anchor->master.data;
}

struct kg_rows *kg_run_rows(const struct kg_run_state *state,
                            const struct kg_run_work *work, const struct kg_model *m)
{
    return m == state->sampler && work->sampler_rows ? work->sampler_rows : work->rows;
}

/* ---- moving ---- */

static kg_status move(const struct kg_algo *algo, struct kg_run_state *state,
                      struct kg_err *err)
{
    state->count.anchor_updates++;
    if (algo->anchor->kind == KG_ANCHOR_COPY) {
        state->count.anchor_kl = 0;
        return become_policy(state, err);
    }
    return kg_anchor_update(state->anchor, state->model, algo->anchor_eta, err);
}

kg_status kg_run_anchor_after_update(bool *moved, const struct kg_algo *a,
                                     struct kg_run_state *state, double kl,
                                     struct kg_err *err)
{
    struct kg_counters *c = &state->count;

    *moved = false;
    if (!state->anchor)
        return KG_OK;
    if (a->anchor_kappa > 0) {
        c->anchor_kl = a->anchor_smoothing * c->anchor_kl +
                       (1 - a->anchor_smoothing) * kl;
        *moved = c->anchor_kl > a->anchor_kappa;
        c->anchor_refreshed += *moved;
    }
    if (a->anchor_per_update && kg_policy_anchor_due(a, state->optim->step))
        *moved = true;
    return *moved ? move(a, state, err) : KG_OK;
}

kg_status kg_run_anchor_after_step(const struct kg_algo *a, struct kg_run_state *state,
                                   struct kg_err *err)
{
    if (!state->anchor || a->anchor_per_update ||
        !kg_policy_anchor_due(a, state->count.step))
        return KG_OK;
    return move(a, state, err);
}
