/* The policy and its sampler: the rank's device, the folder of the weights, adapters, and
 * the options of RL's optimizer, which are checked here rather than after SFT.
 */
#include "train/open/open.h"

#include "base/mem.h"
#include "ranks/devices.h"
#include "ranks/nccl.h"
#include "recipe/options.h"
#include "tensor/device.h"

#include <math.h>
#include <string.h>

/* This rank's shard of a parameter. */
static struct kg_vec own_part(const struct kg_model *m, const struct kg_param *p)
{
    struct kg_cut own = kg_cut_within(m->cut, p->offset, p->rows * p->cols);

    return kg_slab_part(&m->master, own.n > 0 ? own.first - m->cut.first : 0, own.n);
}

/* With non-finite weights, training would skip every step. Frozen weights were checked
 * when they were read. */
static kg_status check_finite(const struct kg_model *m, struct kg_err *err)
{
    for (size_t i = kg_model_first_trained(m); i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        double squares;

        KG_TRY(kg_op_sum_squares(m->master.backend, &squares, own_part(m, p),
                                 (struct kg_vec){0}, err));
        if (!isfinite(squares))
            return kg_fail(
                err, KG_ENONFINITE,
                "%s: tensor %s: expected finite weights, found NaN or infinity", m->dir,
                p->name);
    }
    return KG_OK;
}

static kg_status choose_dtype(enum kg_dtype *ct, const char *name, struct kg_err *err)
{
    if (strcmp(name, "auto") == 0) {
        *ct = KG_BF16;
        return KG_OK;
    }
    return kg_dtype_parse(ct, name, err);
}

/* Opens this rank's device. */
static kg_status open_own(const struct kg_backend **be, const struct kg_recipe *r,
                          enum kg_dtype ct, struct kg_ranks *ranks, struct kg_err *err)
{
    struct kg_ranks_device device;
    const struct kg_device_opts opts = {
        .device = device.name,
        .products = strcmp(r->device.products, "auto") ? r->device.products : NULL,
        .libraries = *r->device.libraries ? r->device.libraries : NULL,
        .bf16 = ct == KG_BF16 || strcmp(r->rollout.dtype, "bf16") == 0};

    KG_TRY(kg_ranks_choose_device(&device, ranks, r->model.device, err));
    KG_TRY(kg_device_open(be, &opts, err));
    return kg_ranks_check_devices(ranks, *be, err);
}

static kg_status open_link(const struct kg_backend *be, const struct kg_recipe *r,
                           struct kg_ranks *ranks, struct kg_err *err)
{
    const char *folder = *r->ranks.libraries ? r->ranks.libraries : NULL;

    if (r->ranks.nccl && kg_ranks_nccl_open(ranks, be, folder, err) != KG_OK)
        return kg_err_prefix(err, "ranks.link");
    return KG_OK;
}

static kg_status open_device(const struct kg_backend **be, const struct kg_recipe *r,
                             enum kg_dtype ct, struct kg_ranks *ranks, struct kg_err *err)
{
    if (open_own(be, r, ct, ranks, err) != KG_OK)
        return kg_err_prefix(err, "model.device");
    return KG_OK;
}

/* Checked here rather than after SFT. */
static kg_status open_optim(struct kg_run_inputs *in, struct kg_err *err)
{
    const struct kg_recipe *r = &in->recipe;
    int64_t updates = r->train.updates_per_step;

    if (r->optim.stairs && r->optim.warmup_steps == 0)
        return kg_fail(err, KG_EINVAL,
                       "optim.warmup: steps is a shape of the warm-up; expected "
                       "optim.warmup_steps above 0, found 0");
    if (!r->sft.opts.decay_all && !(r->sft.opts.weight_decay > 0))
        return kg_fail(err, KG_EINVAL,
                       "sft.decay has no effect while sft.weight_decay is 0");
    in->rl_optim = r->optim.opts;
    in->rl_optim.warmup_updates = updates * r->optim.warmup_steps;
    in->rl_optim.warmup_stair = r->optim.stairs ? updates : 0;
    in->rl_optim.total_updates = updates * r->train.steps;
    in->rl_optim.rounding = (struct kg_rng_key){r->run.seed, KG_RNG_ROUND};
    in->rl_optim.cut_grads = kg_run_divides_gradients(in);
    KG_TRY(kg_optim_find(&in->rl_optim.row, r->optim.kind, err));
    return kg_optim_check(&in->rl_optim, err);
}

/* Adapters share one copy of the frozen weights: refuses keys that need another copy. */
static kg_status check_adapters(const struct kg_recipe *r, struct kg_err *err)
{
    if (*r->init.from)
        return kg_fail(err, KG_EINVAL,
                       "init.from: expected none with adapters, which start from "
                       "model.path and model.adapter, found %.200s",
                       r->init.from);
    if (r->checkpoint.fp32)
        return kg_fail(err, KG_EINVAL,
                       "checkpoint.dtype: adapters are always written in fp32; expected "
                       "the default, found fp32");
    if (strcmp(r->rollout.dtype, "same") != 0)
        return kg_fail(err, KG_EINVAL,
                       "rollout.dtype: with adapters the sampler shares the frozen base "
                       "weights; expected same, found %s",
                       r->rollout.dtype);
    if (r->anchor_on_host && !*r->anchor_path)
        return kg_fail(err, KG_EINVAL,
                       "anchor.place: with adapters the anchor shares the frozen base "
                       "weights; expected device, found host");
    return KG_OK;
}

/* The adapters to train; rank 0: none. */
static kg_status find_adapters(struct kg_lora *l, const struct kg_recipe *r,
                               struct kg_err *err)
{
    const struct kg_opt_list *names = &r->lora.targets;

    *l = (struct kg_lora){
        .rank = r->lora.rank, .alpha = r->lora.alpha, .rslora = r->lora.rslora};
    if (*r->model.adapter && l->rank > 0)
        return kg_fail(err, KG_EINVAL,
                       "lora.rank: model.adapter has its own rank; expected 0, found %d",
                       r->lora.rank);
    if (*r->model.adapter && kg_lora_read(l, r->model.adapter, err) != KG_OK)
        return kg_err_prefix(err, "model.adapter");
    if (r->lora.rank > 0 && names->n == 0)
        return kg_fail(
            err, KG_EINVAL,
            "lora.targets: expected names of matrices, or all-linear, found an "
            "empty list");
    for (size_t i = 0; r->lora.rank > 0 && i < names->n; i++)
        if (names->n > 1 || strcmp(names->items[i], "all-linear") != 0)
            KG_TRY(kg_lora_add_target(l, names->items[i], "lora.targets", err));
    return l->rank > 0 ? check_adapters(r, err) : KG_OK;
}

kg_status kg_run_model_find(struct kg_run_found *found, struct kg_run_inputs *in,
                            struct kg_ranks *ranks, int64_t step, struct kg_err *err)
{
    struct kg_model_opts *opts = &found->opts;

    *opts = (struct kg_model_opts){.trainable = true, .seed = in->recipe.run.seed};
    if (in->recipe.ranks.shard != KG_SHARD_NONE)
        opts->ranks = ranks;
    if (in->recipe.optim.on_host)
        opts->on_host = KG_HOST_MASTER;
    in->lora = kg_mem_calloc(1, sizeof *in->lora, "options of adapters", err);
    if (!in->lora)
        return KG_ENOMEM;
    KG_TRY(find_adapters(in->lora, &in->recipe, err));
    if (in->lora->rank > 0)
        opts->lora = in->lora;
    if (*in->recipe.model.adapter)
        opts->adapter = in->recipe.model.adapter;
    KG_TRY(kg_init_find(&in->init, &in->recipe, step, err));
    KG_TRY(kg_init_verify(&in->init, err));
    if (!in->init.model)
        KG_TRY(kg_config_require(in->config, "model.path", err));
    found->dir = kg_init_model_dir(&in->init, &in->recipe);
    KG_TRY(choose_dtype(&opts->ct, in->recipe.model.dtype, err));
    opts->ignore = in->recipe.model.ignore;
    if (strcmp(in->recipe.model.base_dtype, "same") != 0)
        opts->base_dtype = in->recipe.model.base_dtype;
    opts->source = found->dir.text;
    KG_TRY(kg_model_config_open(&found->config, found->dir.text, &opts->ignore, err));
    KG_TRY(kg_algo_from_recipe(&in->algo, &in->recipe, in->config, found->config.vocab,
                               err));
    return open_optim(in, err);
}

/* A lane belongs to one rank, unless its gradient passes from rank to rank. */
static kg_status check_lanes(const struct kg_recipe *r, int trainers, int ranks,
                             struct kg_err *err)
{
    if (r->train.lanes >= trainers || r->ranks.shard == KG_SHARD_GRADIENTS)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "train.lanes: expected at least one for each of %d ranks%s, found %d; "
                   "set train.lanes=%d: the bits are then equal on any number of ranks "
                   "up to train.lanes (with ranks.shard=gradients, on any number)",
                   trainers, trainers < ranks ? " that train" : "", r->train.lanes,
                   2 * trainers);
}

kg_status kg_run_check_ranks(const struct kg_recipe *r, int trainers, int ranks,
                             bool on_cpu, struct kg_err *err)
{
    if (ranks > 1 && on_cpu && r->ranks.shard != KG_SHARD_NONE && r->anchor_on_host)
        return kg_fail(err, KG_EINVAL,
                       "anchor.place: on CPUs an anchor on the host is packed from whole "
                       "master weights, which ranks.shard=%s divides; expected device, "
                       "or ranks.shard=none, found host",
                       r->ranks.shard == KG_SHARD_GRADIENTS ? "gradients" : "optimizer");
    return check_lanes(r, trainers, ranks, err);
}

static kg_status check_ranks(const struct kg_recipe *r, const struct kg_ahead *ahead,
                             const struct kg_backend *be, struct kg_err *err)
{
    const struct kg_ranks *ranks = ahead->all;
    int trainers = ahead->trainers > 0 ? ahead->trainers : ranks->n;

    if (ranks->n < 2)
        return KG_OK;
    return kg_run_check_ranks(r, trainers, ranks->n, be->host_memory, err);
}

kg_status kg_run_device_open(struct kg_run_found *found, struct kg_run_inputs *in,
                             const struct kg_run_work *work, int64_t step,
                             struct kg_err *err)
{
    const struct kg_backend *be;
    enum kg_dtype ct;

    KG_TRY(choose_dtype(&ct, in->recipe.model.dtype, err));
    /* checked before anything is logged */
    KG_TRY(open_device(&be, &in->recipe, ct, work->ahead.all, err));
    KG_TRY(open_link(be, &in->recipe, work->ahead.all, err));
    KG_TRY(check_ranks(&in->recipe, &work->ahead, be, err));
    /* rollout ranks have the whole model, trainers may have shards */
    KG_TRY(kg_run_model_find(found, in, work->ahead.samples ? NULL : work->ranks, step,
                             err));
    found->opts.backend = be;
    if (in->recipe.optim.on_host && be->host_memory)
        return kg_fail(
            err, KG_EINVAL,
            "optim.place: the CPU backend already keeps weights and moments in "
            "host memory; expected device (the default), found host");
    return KG_OK;
}

kg_status kg_run_model_open(struct kg_run_inputs *in, struct kg_run_state *state,
                            const struct kg_run_found *found, struct kg_err *err)
{
    const char *dir = found->dir.text, *adapter = found->opts.adapter;

    KG_TRY(kg_model_open(&state->model, dir, &found->opts, err));
    KG_TRY(kg_init_model(in, state, err));
    KG_TRY(check_finite(state->model, err));
    KG_TRY(kg_tokenizer_open(&in->tok, dir, err));
    if (adapter && kg_tokenizer_check_beside(in->tok, adapter, err) != KG_OK)
        return kg_err_prefix(err, "model.adapter");
    return kg_model_config_add_eos(&state->model->config, kg_tokenizer_eos(in->tok), err);
}

/* A separate sampler exists only if the recipe makes it differ from the model; otherwise
 * there is one set of weights. */
kg_status kg_run_sampler_describe(bool *wanted, struct kg_model_opts *opts,
                                  const struct kg_run_inputs *in,
                                  struct kg_run_state *state, struct kg_err *err)
{
    const struct kg_model *m = state->model;
    const char *dtype = in->recipe.rollout.dtype;

    *opts = (struct kg_model_opts){.backend = m->backend,
                                   .ct = m->ct,
                                   .on_host = m->on_host,
                                   .whose = "sampler's ",
                                   .ranks = m->ranks};
    state->lag = in->recipe.rollout.lag;
    if (strcmp(dtype, "same") != 0)
        KG_TRY(kg_dtype_parse(&opts->ct, dtype, err));
    *wanted = state->lag > 0 || opts->ct != m->ct;
    return KG_OK;
}

kg_status kg_run_sampler_open(const struct kg_run_inputs *in, struct kg_run_state *state,
                              struct kg_err *err)
{
    struct kg_model_opts opts;
    bool wanted;

    KG_TRY(kg_run_sampler_describe(&wanted, &opts, in, state, err));
    if (wanted)
        KG_TRY(kg_model_clone(&state->sampler, state->model, &opts, err));
    if (state->lag == 0)
        return KG_OK;
    state->lagged = kg_mem_calloc((size_t)state->lag + 1, sizeof *state->lagged,
                                  "lagged weights", err);
    if (!state->lagged)
        return KG_ENOMEM;
    for (int i = 0; i <= state->lag; i++)
        KG_TRY(kg_slab_init(&state->lagged[i], state->model->master.backend,
                            state->model->cut.n, "lagged weights", err));
    return KG_OK;
}
