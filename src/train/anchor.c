/* Where the anchor's weights come from, and when they move.
 *
 * Three kinds of anchor are one struct kg_model: a copy of the policy that follows it
 * (ema), one that jumps to it (copy), and a checkpoint of its own that stands still. What
 * differs is who owns the weights: only an anchor with master weights can move, and only
 * such a one is state that a checkpoint must hold. Moving is counted here, at the ends of
 * updates and of steps, and nowhere else, so that a resumed run moves at the same places.
 */
#include "train/anchor.h"

#include "policy/shaping.h"
#include "train/reference.h"

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
                   "anchor.path: %s: an anchor that follows the policy (%s) has its "
                   "shape; expected %lld parameters, found %lld",
                   anchor->dir, kind, (long long)m->n_elements,
                   (long long)anchor->n_elements);
}

static kg_status open_path(struct kg_run *run, const char *path, struct kg_err *err)
{
    enum kg_anchor_kind kind = run->in.algo.anchor->kind;
    const char *name = run->in.algo.anchor->about.name;
    bool follows = kind != KG_ANCHOR_FIXED;

    if (kind == KG_ANCHOR_NONE || kind == KG_ANCHOR_ITERATIVE)
        return kg_fail(err, KG_EINVAL,
                       "anchor.path: expected anchor.kind fixed, ema or copy with it, "
                       "found %s",
                       name);
    KG_TRY(kg_reference_open(&run->state.anchor, path, "anchor.path", run->state.model,
                             run->in.tok, follows, err));
    return follows ? check_shape(run->state.anchor, run->state.model, name, err) : KG_OK;
}

kg_status kg_run_anchor_open(struct kg_run *run, struct kg_err *err)
{
    enum kg_anchor_kind kind = run->in.algo.anchor->kind;
    const char *path = run->in.recipe.anchor_path;

    if (*path)
        return open_path(run, path, err);
    if (kind == KG_ANCHOR_NONE || kind == KG_ANCHOR_ITERATIVE)
        return KG_OK;
    return kg_model_clone(&run->state.anchor, run->state.model, run->state.model->ct,
                          err);
}

static kg_status become_policy(struct kg_run *run, struct kg_err *err)
{
    KG_TRY(kg_slab_copy(&run->state.anchor->master, &run->state.model->master, err));
    return kg_model_refresh(run->state.anchor, err);
}

kg_status kg_run_anchor_begin(struct kg_run *run, struct kg_err *err)
{
    if (!run->state.anchor || *run->in.recipe.anchor_path)
        return KG_OK;
    return become_policy(run, err);
}

bool kg_run_anchor_saved(const struct kg_run *run)
{
    return run->state.anchor && run->state.anchor->master.data;
}

struct kg_rows *kg_run_rows(const struct kg_run *run, const struct kg_model *m)
{
    return m == run->state.sampler && run->work.sampler_rows ? run->work.sampler_rows
                                                             : run->work.rows;
}

/* ---- moving ---- */

static kg_status move(struct kg_run *run, struct kg_err *err)
{
    run->state.count.anchor_updates++;
    if (run->in.algo.anchor->kind == KG_ANCHOR_COPY) {
        run->state.count.anchor_kl = 0;
        return become_policy(run, err);
    }
    return kg_anchor_update(run->state.anchor, run->state.model, run->in.algo.anchor_eta,
                            err);
}

kg_status kg_run_anchor_after_update(bool *moved, struct kg_run *run, double kl,
                                     struct kg_err *err)
{
    const struct kg_algo *a = &run->in.algo;
    struct kg_counters *c = &run->state.count;

    *moved = false;
    if (!run->state.anchor)
        return KG_OK;
    if (a->anchor_kappa > 0) {
        c->anchor_kl = a->anchor_smoothing * c->anchor_kl +
                       (1 - a->anchor_smoothing) * kl;
        *moved = c->anchor_kl > a->anchor_kappa;
        c->anchor_refreshed += *moved;
    }
    if (a->anchor_per_update && kg_policy_anchor_due(a, run->state.optim->step))
        *moved = true;
    return *moved ? move(run, err) : KG_OK;
}

kg_status kg_run_anchor_after_step(struct kg_run *run, struct kg_err *err)
{
    const struct kg_algo *a = &run->in.algo;

    if (!run->state.anchor || a->anchor_per_update ||
        !kg_policy_anchor_due(a, run->state.count.step))
        return KG_OK;
    return move(run, err);
}
