/* Training state of a model: gradients, the optimizers' state, learning rate, clipping,
 * and the EMA anchor.
 *
 * It applies an update; it neither computes gradients nor decides when a step is due.
 *
 * The one idea: parameters, gradients and moments are slabs of one layout, so an update
 * is one call over the whole length. With decay of matrices only, it is one call for each
 * run of parameters with the same decay. The gaps between tensors hold zeros, which every
 * operation here keeps zero. Between updates the gradients are free: the weights that are
 * evaluated wait there. On a device the update also writes `compute`.
 *
 * If the model is sharded, so is the state, and each rank updates its shard: an element
 * is addressed by its position in the layout, and a shard's slabs begin at its first.
 */
#include "model/optim.h"

#include "base/mem.h"
#include "base/real.h"
#include "base/str.h"
#include "model/cut.h"
#include "model/model_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const double clip_epsilon = 1e-6; /* as torch.nn.utils.clip_grad_norm_ */

/* ---- the table ---- */
enum { ADAMW, SCHEDULE_FREE };
static const struct kg_optim_row rows[] = {
    [ADAMW] = {.name = "adamw",
               .help = "Adam with decoupled weight decay",
               .source = "Loshchilov & Hutter 2019, arXiv 1711.05101",
               .state = {"adam_m", "adam_v"}},
    [SCHEDULE_FREE] = {.name = "schedule-free",
                       .help = "AdamW; averages weights, no schedule",
                       .source = "Defazio et al. 2024, arXiv 2405.15682",
                       .state = {"free_z", "adam_v"},
                       .starts_at_weights = true,
                       .averages = true},
};

size_t kg_optim_n_rows(void) { return sizeof rows / sizeof rows[0]; }

const struct kg_optim_row *kg_optim_row_at(size_t i)
{
    return i < kg_optim_n_rows() ? &rows[i] : NULL;
}

kg_status kg_optim_find(const struct kg_optim_row **row, const char *name,
                        struct kg_err *err)
{
    for (size_t i = 0; i < kg_optim_n_rows(); i++)
        if (strcmp(rows[i].name, name) == 0) {
            *row = &rows[i];
            return KG_OK;
        }
    return kg_str_unknown(KG_ENOTFOUND, "optim.kind", name, rows, kg_optim_n_rows(),
                          sizeof *rows, err);
}

/* ---- life ---- */
kg_status kg_optim_check(const struct kg_optim_opts *o, struct kg_err *err)
{
    if (!o->decay_all && o->weight_decay == 0.0)
        return kg_fail(err, KG_EINVAL,
                       "optim.decay has no effect while optim.weight_decay is 0");
    if (o->keep_trained && (!o->row || !o->row->averages))
        return kg_fail(err, KG_EINVAL,
                       "optim.evaluate: trained has an effect only if optim.kind "
                       "averages weights; remove it");
    if (!o->row || !o->row->averages)
        return KG_OK;
    if (o->schedule != KG_SCHEDULE_CONSTANT)
        return kg_fail(err, KG_EINVAL,
                       "optim.schedule: expected constant, because optim.kind %s "
                       "replaces the schedule, found %s",
                       o->row->name,
                       o->schedule == KG_SCHEDULE_LINEAR ? "linear" : "cosine");
    if (!(o->beta1 > 0.0 && o->beta1 <= 1.0))
        return kg_fail(err, KG_EINVAL,
                       "optim.beta1: %s expects a value above 0 and at most 1, found %g",
                       o->row->name, o->beta1);
    return KG_OK;
}

enum kg_dtype kg_optim_state_dtype(const struct kg_optim_opts *opts, int i)
{
    return i == 0 && opts->row && opts->row->starts_at_weights ? KG_F32 : opts->moments;
}

uint64_t kg_optim_state_bytes(const struct kg_optim_opts *opts, int64_t n)
{
    uint64_t bytes = 0;
    for (int i = 0; i < KG_OPTIM_STATES; i++)
        bytes += (uint64_t)n * kg_dtype_traits(kg_optim_state_dtype(opts, i))->bytes;
    return bytes;
}

static kg_status create_slabs(struct kg_optim *o, const struct kg_model *m,
                              struct kg_err *err)
{
    const struct kg_cut whole = {0, m->n_elements};
    const struct kg_cut there = o->opts.cut_grads ? m->cut : whole;
    o->rounded = kg_mem_calloc(m->n_params, sizeof *o->rounded, "runs of weights", err);
    if (!o->rounded)
        return KG_ENOMEM;
    KG_TRY(kg_slab_init(&o->grads, m->backend, there.n, "gradients", err));
    o->grads_first = there.first;
    if (m->master.backend != m->backend)
        KG_TRY(kg_slab_room(&o->room, &o->grads, err));
    for (int i = 0; i < KG_OPTIM_STATES; i++)
        KG_TRY(kg_slab_init_as(&o->state[i], m->master.backend,
                               kg_optim_state_dtype(&o->opts, i), m->cut.n,
                               o->opts.row->state[i], err));
    return o->opts.row->starts_at_weights ? kg_slab_copy(&o->state[0], &m->master, err)
                                          : KG_OK;
}

kg_status kg_optim_create(struct kg_optim **out, const struct kg_model *m,
                          const struct kg_optim_opts *opts, struct kg_err *err)
{
    struct kg_optim_opts full = *opts;
    *out = NULL;
    if (!m->master.data)
        return kg_fail(err, KG_EINVAL,
                       "optimizer: the model was opened without master weights");
    if (!full.row)
        full.row = &rows[ADAMW];
    KG_TRY(kg_optim_check(&full, err));
    struct kg_optim *o = kg_mem_calloc(1, sizeof *o, "optimizer", err);
    if (!o)
        return KG_ENOMEM;
    o->opts = full;
    const kg_status status = create_slabs(o, m, err);
    if (status != KG_OK) {
        kg_optim_free(o);
        return status;
    }
    *out = o;
    return KG_OK;
}

void kg_optim_free(struct kg_optim *o)
{
    if (!o)
        return;
    kg_mem_free(o->room);
    kg_mem_free(o->rounded);
    kg_slab_release(&o->grads);
    for (int i = 0; i < KG_OPTIM_STATES; i++)
        kg_slab_release(&o->state[i]);
    kg_mem_free(o);
}

/* Share of the way from the end of the warm-up to total_updates, in [0, 1]. */
static double progress(const struct kg_optim_opts *o, int64_t update)
{
    const int64_t span = o->total_updates - o->warmup_updates;
    if (span <= 0)
        return 1.0;
    return fmin(1.0, (double)(update - o->warmup_updates) / (double)span);
}

double kg_optim_lr(const struct kg_optim_opts *o, int64_t update)
{
    if (o->warmup_stair > 0) {
        const int64_t before = (update - 1) / o->warmup_stair * o->warmup_stair;
        if (before < o->warmup_updates)
            return o->lr * (double)before / (double)o->warmup_updates;
    } else if (update < o->warmup_updates)
        return o->lr * (double)update / (double)o->warmup_updates;
    switch (o->schedule) {
    case KG_SCHEDULE_CONSTANT:
        return o->lr;
    case KG_SCHEDULE_LINEAR:
        return o->lr + (o->min_lr - o->lr) * progress(o, update);
    case KG_SCHEDULE_COSINE:
        return o->min_lr +
               (o->lr - o->min_lr) * 0.5 * (1.0 + kg_cos(M_PI * progress(o, update)));
    }
    return o->lr;
}

/* ---- one update ---- */
static struct kg_slab grads_of_cut(const struct kg_optim *o, const struct kg_model *m)
{
    const struct kg_cut cut = {m->cut.first - o->grads_first, m->cut.n};
    return kg_slab_view(&o->grads, cut);
}

/* o->rounded <- runs of matrices that are adjacent in the slabs and in `compute` */
static void find_rounded(struct kg_optim *o, const struct kg_model *m)
{
    o->n_rounded = 0;
    for (size_t i = kg_model_first_trained(m); i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        struct kg_rounded *to = o->rounded + o->n_rounded, *last = to - 1;
        if (!kg_param_is_rounded(m, p))
            continue;
        if (o->n_rounded > 0 && last->first + last->n == p->offset &&
            last->to + last->n == (uint16_t *)p->compute.data) {
            last->n += kg_param_count(p);
            continue;
        }
        *to = (struct kg_rounded){p->offset, kg_param_count(p), p->compute.data};
        o->n_rounded++;
    }
}

/* Selects the runs whose `compute` an update of n elements from a->first on writes. An
 * update contains a run or is disjoint from it. */
static void choose_rounded(struct kg_adamw *a, const struct kg_optim *o, int64_t n)
{
    int32_t i = 0, end;
    while (i < o->n_rounded && o->rounded[i].first < a->first)
        i++;
    for (end = i; end < o->n_rounded && o->rounded[end].first < a->first + n;)
        end++;
    a->rounded = o->rounded + i;
    a->n_rounded = end - i;
}

/* g: gradients from element `first` of this shard on, in the memory of the weights */
static kg_status update_part(struct kg_optim *o, struct kg_model *m, int64_t first,
                             struct kg_vec g, struct kg_adamw a, struct kg_err *err)
{
    const struct kg_backend *be = m->master.backend;
    const int64_t at = first - m->cut.first;
    const struct kg_vec w = kg_slab_part(&m->master, at, g.n);
    const struct kg_mat v = kg_slab_row(&o->state[1], at, g.n);

    a.first = first;
    choose_rounded(&a, o, g.n);
    if (o->opts.row == &rows[SCHEDULE_FREE])
        return kg_op_schedule_free(be, w, kg_slab_part(&o->state[0], at, g.n), v, g, &a,
                                   err);
    return kg_op_adamw(be, w, kg_slab_row(&o->state[0], at, g.n), v, g, &a, err);
}

/* Updates those of elements [first, first+n) that are in this shard: at once, or, if only
 * the weights are on the host, in runs of gradients that are copied there. */
static kg_status update_run(struct kg_optim *o, struct kg_model *m, int64_t first,
                            int64_t n, struct kg_adamw a, struct kg_err *err)
{
    const struct kg_cut own = kg_cut_within(m->cut, first, n);
    const int64_t end = own.first + own.n;
    for (int64_t i = own.first, count; i < end; i += count) {
        struct kg_vec g;
        count = o->room ? kg_slab_run(end, i) : end - i;
        KG_TRY(kg_slab_see(&g, o->room, &o->grads, i - o->grads_first, count, err));
        KG_TRY(update_part(o, m, i, g, a, err));
    }
    return KG_OK;
}

/* Matrices with decay, vectors without: one call for each run of one kind. */
static kg_status update_by_kind(struct kg_optim *o, struct kg_model *m,
                                const struct kg_adamw *a, struct kg_err *err)
{
    struct kg_adamw undecayed = *a;
    undecayed.weight_decay = 0.0f;
    for (size_t i = kg_model_first_trained(m); i < m->n_params;) {
        const struct kg_param *first = &m->params[i];
        while (i < m->n_params && m->params[i].is_product == first->is_product)
            i++;
        const int64_t end = i < m->n_params ? m->params[i].offset : m->n_elements;
        KG_TRY(update_run(o, m, first->offset, end - first->offset,
                          first->is_product ? *a : undecayed, err));
    }
    return KG_OK;
}

static double square(double x) { return x * x; }

void kg_optim_resume(struct kg_optim *o, int64_t step)
{
    o->step = step;
    o->weight_sum = 0;
    for (int64_t i = 1; i <= step; i++)
        o->weight_sum += square(kg_optim_lr(&o->opts, i));
}

/* The weight of the new z in the average: lr^2 over the sum of lr^2 so far. While that is
 * 0, all z are equal. */
static double average_weight(const struct kg_optim *o, double lr)
{
    const double sum = o->weight_sum + square(lr);
    return sum > 0.0 ? square(lr) / sum : 1.0;
}

kg_status kg_optim_update(struct kg_optim *o, struct kg_model *m, double *grad_norm,
                          double *lr, struct kg_err *err)
{
    assert(o->state[0].n == m->master.n);
    const struct kg_optim_opts *opts = &o->opts;
    const struct kg_slab own = grads_of_cut(o, m);
    double squares = 0.0;
    KG_TRY(kg_cut_sum_squares(&squares, m->ranks, m->n_elements, &own, NULL, err));
    *grad_norm = sqrt(squares);
    *lr = kg_optim_lr(opts, o->step + 1);
    if (!isfinite(*grad_norm))
        return kg_fail(err, KG_ENONFINITE, "update %lld: the norm of the gradient is %g",
                       (long long)o->step + 1, *grad_norm);
    double scale = 1.0;
    if (opts->clip_norm > 0.0)
        scale = fmin(1.0, opts->clip_norm / (*grad_norm + clip_epsilon));
    const struct kg_adamw a = {
        .lr = (float)*lr,
        .beta1 = (float)opts->beta1,
        .beta2 = (float)opts->beta2,
        .eps = (float)opts->eps,
        .weight_decay = (float)opts->weight_decay,
        .grad_scale = (float)scale,
        .step = o->before + o->step + 1,
        .average = (float)average_weight(o, *lr),
        .rounding = opts->rounding,
    };
    find_rounded(o, m);
    if (opts->decay_all || opts->weight_decay == 0.0)
        KG_TRY(update_run(o, m, 0, m->n_elements, a, err));
    else
        KG_TRY(update_by_kind(o, m, &a, err));
    o->step++;
    o->weight_sum += square(*lr);
    return kg_model_refresh_but(m, true, err);
}

/* ---- weights to evaluate and save ---- */
static bool evaluates_average(const struct kg_optim *o)
{
    return o->opts.row->averages && !o->opts.keep_trained;
}

/* Computes x from y and z into o->average, this shard's view of the gradients' slab. */
static kg_status average(struct kg_optim *o, const struct kg_model *m, struct kg_err *err)
{
    const int64_t n = m->cut.n;
    for (int64_t i = 0, count; i < n; i += count) {
        count = o->room ? kg_slab_run(n, i) : n;
        const struct kg_vec x = o->room ? kg_vec(o->room, count)
                                        : kg_slab_part(&o->average, i, count);
        KG_TRY(kg_op_schedule_free_average(
            m->master.backend, x, kg_slab_part(&m->master, i, count),
            kg_slab_part(&o->state[0], i, count), (float)o->opts.beta1, err));
        if (o->room)
            KG_TRY(kg_slab_write(&o->average, i, o->room, count, err));
    }
    return KG_OK;
}

kg_status kg_optim_weights(const struct kg_slab **weights, struct kg_optim *o,
                           const struct kg_model *m, struct kg_err *err)
{
    const bool averages = evaluates_average(o);
    o->average = grads_of_cut(o, m);
    *weights = averages ? &o->average : &m->master;
    return averages ? average(o, m, err) : KG_OK;
}

kg_status kg_optim_exchange(struct kg_optim *o, struct kg_model *m, struct kg_err *err)
{
    if (!evaluates_average(o))
        return KG_OK;
    KG_TRY(kg_slab_swap(&m->master, &o->average, err));
    return kg_model_refresh(m, err);
}

/* ---- anchor ---- */
kg_status kg_anchor_update(struct kg_model *anchor, const struct kg_model *m, double eta,
                           struct kg_err *err)
{
    assert(anchor->master.n == m->master.n);
    KG_TRY(kg_slab_ema(&anchor->master, &m->master, (float)eta, err));
    return kg_model_refresh(anchor, err);
}

kg_status kg_anchor_distance(double *absolute, double *relative, const struct kg_model *m,
                             const struct kg_model *anchor, struct kg_err *err)
{
    assert(anchor->master.n == m->master.n);
    const int64_t n = m->n_elements;
    double apart = 0.0;
    double size = 0.0;
    KG_TRY(kg_cut_sum_squares(&apart, m->ranks, n, &m->master, &anchor->master, err));
    KG_TRY(kg_cut_sum_squares(&size, m->ranks, n, &m->master, NULL, err));
    *absolute = sqrt(apart);
    *relative = size > 0.0 ? sqrt(apart / size) : 0.0;
    return KG_OK;
}
