/* Opening and closing a run: recipe to objects.
 *
 * Every refusal happens here, before anything is written; --dry-run goes exactly so far.
 * What keys say of each other is looked at before the model is opened, what they say of
 * the model before the data. Memory that steps use again and again (rows, engine, lagged
 * weights) is taken here once, at the sizes that the longest answer can need: a run that
 * starts does not run out of memory in its tenth hour.
 */
#include "train/run.h"

#include "base/clock.h"
#include "base/mem.h"
#include "ranks/devices.h"
#include "ranks/launch.h"
#include "ranks/nccl.h"
#include "recipe/algo.h"
#include "recipe/effect.h"
#include "recipe/episodes.h"
#include "recipe/options.h"
#include "rollout/sampler.h"
#include "rollout/score.h"
#include "tensor/device.h"
#include "train/log.h"
#include "train/open/memory.h"
#include "train/open/reference.h"
#include "train/open/run_data.h"
#include "train/step/anchor.h"
#include "train/step/answers.h"
#include "train/step/episodes.h"

#include <math.h>
#include <string.h>

static struct kg_ranks alone;

/* rollout: number of rollout ranks; 0: none */
static void open_ahead(struct kg_ahead *a, struct kg_ranks *all, int rollout)
{
    *a = (struct kg_ahead){.all = all};
    if (rollout == 0)
        return;
    a->trainers = all->n - rollout;
    a->samples = all->me >= a->trainers;
    kg_ranks_split(&a->part, all, a->samples ? a->trainers : 0,
                   a->samples ? rollout : a->trainers);
}

static void begin_open(struct kg_run *run, struct kg_ranks *ranks,
                       const struct kg_config *config)
{
    memset(run, 0, sizeof *run);
    run->in.config = config;
    kg_recipe_read(&run->in.recipe, config);
    open_ahead(&run->work.ahead, ranks, ranks->n > 1 ? run->in.recipe.ranks.rollout : 0);
    run->work.ranks = run->work.ahead.trainers > 0 ? &run->work.ahead.part : ranks;
    run->log.elsewhere = ranks->me > 0;
}

/* ---- model, anchor, sampler ---- */

/* What this rank has of a parameter. */
static struct kg_vec own_part(const struct kg_model *m, const struct kg_param *p)
{
    struct kg_cut own = kg_cut_within(m->cut, p->offset, p->rows * p->cols);

    return kg_slab_part(&m->master, own.n > 0 ? own.first - m->cut.first : 0, own.n);
}

/* Training from weights that are not finite could only skip every step. Frozen ones were
 * looked at as they were read. */
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

/* Of each rank its own. */
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

/* Judged here rather than after the warm start. */
static kg_status open_optim(struct kg_run_inputs *in, struct kg_err *err)
{
    const struct kg_recipe *r = &in->recipe;
    int64_t updates = r->train.updates_per_step;

    if (r->optim.stairs && r->optim.warmup_steps == 0)
        return kg_fail(err, KG_EINVAL,
                       "optim.warmup: steps sets the shape of a warmup; expected "
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

/* What shares one copy of frozen weights can be nothing that wants another. */
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

/* Those that are to be trained, if any. */
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

/* The folder of the model and what it is opened as; and what of the recipe needs no more
 * of it than its shape. */
static kg_status find_model(struct kg_path *dir, struct kg_model_config *config,
                            struct kg_model_opts *opts, struct kg_run_inputs *in,
                            struct kg_ranks *ranks, int64_t step, struct kg_err *err)
{
    *opts = (struct kg_model_opts){.trainable = true, .seed = in->recipe.run.seed};
    if (in->recipe.ranks.shard != KG_SHARD_NONE)
        opts->ranks = ranks;
    if (in->recipe.optim.on_host)
        opts->on_host = KG_HOST_MASTER;
    in->lora = kg_mem_calloc(1, sizeof *in->lora, "what adapters are", err);
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
    *dir = kg_init_model_dir(&in->init, &in->recipe);
    KG_TRY(choose_dtype(&opts->ct, in->recipe.model.dtype, err));
    opts->ignore = in->recipe.model.ignore;
    KG_TRY(kg_model_config_open(config, dir->text, &opts->ignore, err));
    KG_TRY(kg_algo_from_recipe(&in->algo, &in->recipe, in->config, config->vocab, err));
    return open_optim(in, err);
}

static kg_status outline_all(struct kg_run *run, const struct kg_model_config *config,
                             const struct kg_model_opts *opts, size_t prompt,
                             struct kg_err *err);

/* Before anything large is taken: whether the device has room for answers to the shortest
 * prompts. */
static kg_status check_device(struct kg_run_work *work, const struct kg_run_inputs *in,
                              const struct kg_model_config *config,
                              const struct kg_model_opts *opts, struct kg_err *err)
{
    const struct kg_backend *be = opts->backend;
    struct kg_run run = {.in = *in};
    kg_status status;

    run.in.lora = NULL; /* it is in's */
    if (!be->memory)
        return KG_OK;
    KG_TRY(be->memory(&work->device_total, &work->device_free, err));
    run.work.ranks = work->ranks;
    run.work.device_total = work->device_total;
    run.work.device_free = work->device_free;
    status = outline_all(&run, config, opts, 1, err);
    if (status == KG_OK)
        status = kg_run_memory_check(&run, err);
    kg_run_close(&run);
    return status;
}

/* A lane is one rank's, unless its gradient goes from rank to rank. */
static kg_status check_lanes(const struct kg_recipe *r, int trainers, int ranks,
                             struct kg_err *err)
{
    if (r->train.lanes >= trainers || r->ranks.shard == KG_SHARD_GRADIENTS)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "train.lanes: expected at least one for each of %d ranks%s, found %d; "
                   "train.lanes=%d gives the same bits on any number of ranks up to "
                   "that, and with ranks.shard=gradients on any number",
                   trainers, trainers < ranks ? " that train" : "", r->train.lanes,
                   2 * trainers);
}

kg_status kg_run_check_ranks(const struct kg_recipe *r, int trainers, int ranks,
                             bool on_cpu, struct kg_err *err)
{
    if (ranks > 1 && on_cpu && r->ranks.shard != KG_SHARD_NONE && r->anchor_on_host)
        return kg_fail(err, KG_EINVAL,
                       "anchor.place: on CPUs an anchor on the host is packed from whole "
                       "master weights, which ranks.shard=%s cuts; expected device, or "
                       "ranks.shard=none, found host",
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

static kg_status open_model(struct kg_run_inputs *in, struct kg_run_state *state,
                            struct kg_run_work *work, int64_t step, struct kg_err *err)
{
    const struct kg_backend *be;
    struct kg_model_config config;
    struct kg_model_opts opts;
    struct kg_path dir;
    enum kg_dtype ct;

    KG_TRY(choose_dtype(&ct, in->recipe.model.dtype, err));
    /* refused before anything is said */
    KG_TRY(open_device(&be, &in->recipe, ct, work->ahead.all, err));
    KG_TRY(open_link(be, &in->recipe, work->ahead.all, err));
    KG_TRY(check_ranks(&in->recipe, &work->ahead, be, err));
    /* those that sample have all of what the trainers have cuts of */
    KG_TRY(find_model(&dir, &config, &opts, in, work->ahead.samples ? NULL : work->ranks,
                      step, err));
    opts.backend = be;
    if (in->recipe.optim.on_host && opts.backend->host_memory)
        return kg_fail(err, KG_EINVAL,
                       "optim.place: on the CPU weights and moments are in the host's "
                       "memory; expected device, found host");
    KG_TRY(check_device(work, in, &config, &opts, err));
    KG_TRY(kg_model_open(&state->model, dir.text, &opts, err));
    KG_TRY(kg_init_model(in, state, err));
    KG_TRY(check_finite(state->model, err));
    KG_TRY(kg_tokenizer_open(&in->tok, dir.text, err));
    if (opts.adapter && kg_tokenizer_check_beside(in->tok, opts.adapter, err) != KG_OK)
        return kg_err_prefix(err, "model.adapter");
    return kg_model_config_add_eos(&state->model->config, kg_tokenizer_eos(in->tok), err);
}

/* A sampler of its own exists only where off-policyness is asked for: otherwise there is
 * one set of weights. */
static kg_status describe_sampler(bool *wanted, struct kg_model_opts *opts,
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

static kg_status open_sampler(const struct kg_run_inputs *in, struct kg_run_state *state,
                              struct kg_err *err)
{
    struct kg_model_opts opts;
    bool wanted;

    KG_TRY(describe_sampler(&wanted, &opts, in, state, err));
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

/* ---- machinery ---- */

static kg_status open_anchor(const struct kg_run_inputs *in, struct kg_run_state *state,
                             struct kg_err *err)
{
    state->count.kl_beta = in->algo.kl_beta;
    return kg_run_anchor_open(in, state, err);
}

/* What the engine would refuse is refused before it samples. */
static kg_status check_sampling(const struct kg_run_inputs *in, struct kg_err *err)
{
    struct kg_sampling training = kg_run_sampling(in);
    struct kg_sampling validation = kg_run_eval_opts(in).sampling;
    size_t stops = in->recipe.rollout.stop.n;

    if (stops > KG_MAX_STOPS)
        return kg_fail(err, KG_EINVAL,
                       "rollout.stop: expected at most %d strings, found %zu",
                       KG_MAX_STOPS, stops);
    if (kg_sampler_check(&training, err) != KG_OK)
        return kg_err_prefix(err, "rollout");
    if (kg_sampler_check(&validation, err) != KG_OK)
        return kg_err_prefix(err, "eval");
    return KG_OK;
}

static kg_status check_router_aux(const struct kg_model *m, struct kg_err *err)
{
    const struct kg_experts_config *x = &m->config.experts;

    if (x->k >= x->n)
        return kg_fail(err, KG_EINVAL,
                       "train.router_aux: balances the experts; expected "
                       "num_experts_per_tok below num_experts, found all %d",
                       (int)x->n);
    return kg_model_moves_routers(m)
               ? KG_OK
               : kg_fail(err, KG_EINVAL,
                         "train.router_aux: acts on routers and the layers before them; "
                         "expected lora.targets with a matrix there, as gate or q_proj, "
                         "found adapters only after the last router");
}

/* What is said of routers needs a model that has any. */
static kg_status check_router(const struct kg_run_inputs *in, const struct kg_model *m,
                              struct kg_err *err)
{
    bool replay = in->recipe.rollout.router_replay;

    if ((replay || in->recipe.train.router_aux > 0) &&
        kg_model_config_choices(&m->config) == 0)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected a model with experts, found model_type %s",
                       replay ? "rollout.router_replay" : "train.router_aux",
                       m->config.arch->model_type);
    if (replay && in->episode_opts.env && in->episode_opts.window > 0)
        return kg_fail(err, KG_EINVAL,
                       "rollout.router_replay: a token has one choice of experts, but "
                       "episode.window computes it in several contexts; expected "
                       "episode.window 0, found %d",
                       (int)in->episode_opts.window);
    return in->recipe.train.router_aux > 0 ? check_router_aux(m, err) : KG_OK;
}

static kg_status open_reference(struct kg_run_inputs *in,
                                const struct kg_run_state *state, struct kg_err *err)
{
    const char *path = in->recipe.eval.reference;

    if (!*path)
        return KG_OK;
    return kg_reference_open(&in->reference, path, "eval.reference", state->model,
                             in->tok, &(struct kg_model_opts){.whose = "reference's "},
                             err);
}

/* Filters and shaping of what is sampled. */
static kg_status check_shaping(const struct kg_run_inputs *in, struct kg_err *err)
{
    bool dynamic = in->recipe.rollout.dynamic;
    int64_t buffer = in->recipe.rollout.overlong_buffer;
    int64_t most = kg_recipe_answer_tokens(&in->recipe);

    if (!dynamic && in->recipe.rollout.oversample != 1)
        return kg_fail(err, KG_EINVAL,
                       "rollout.oversample: expected 1 without rollout.dynamic, found %g",
                       in->recipe.rollout.oversample);
    if (dynamic && in->recipe.rollout.samples < 2)
        return kg_fail(err, KG_EINVAL,
                       "rollout.samples: rollout.dynamic compares the samples of a "
                       "prompt; expected 2 or more, found 1");
    if (buffer > 0 && (kg_algo_needs(&in->algo) & KG_NEED_PARTS))
        return kg_fail(err, KG_EINVAL,
                       "rollout.overlong_buffer: algo.advantage %s takes each reward "
                       "separately; expected 0, found %lld",
                       kg_algo_row_name(&in->algo, KG_TABLE_ADVANTAGE),
                       (long long)buffer);
    if (buffer > most)
        return kg_fail(err, KG_EINVAL,
                       "rollout.overlong_buffer: expected at most the longest completion "
                       "(%lld), found %lld",
                       (long long)most, (long long)buffer);
    return KG_OK;
}

/* Whether episodes are sampled and learned turn by turn, each in its own context. */
static bool by_windows(const struct kg_run_inputs *in)
{
    return in->episode_opts.env && in->episode_opts.window > 0 &&
           !in->recipe.reproduction;
}

/* The longest prompt with its answer that RL can meet. */
static size_t longest_answer(const struct kg_run_inputs *in)
{
    struct kg_episode_opts whole = in->episode_opts;

    whole.window = 0;
    if (in->answers.n > 0)
        return in->answers.longest;
    if (in->episode_opts.env)
        return (size_t)kg_episodes_span(&whole, in->train.longest);
    return in->train.longest + (size_t)in->recipe.rollout.sampling.max_tokens;
}

/* The most of it that one forward reads as a sequence. */
static size_t longest_context(const struct kg_run_inputs *in)
{
    size_t longest = longest_answer(in);
    size_t reach = by_windows(in) ? (size_t)kg_episodes_positions(&in->episode_opts)
                                  : longest;

    return reach < longest ? reach : longest;
}

static kg_status check_episodes(const struct kg_run_inputs *in, struct kg_err *err)
{
    size_t prompt = in->train.longest > in->val.longest ? in->train.longest
                                                        : in->val.longest;
    size_t context = (size_t)in->episode_opts.context;
    size_t window = (size_t)in->episode_opts.window;

    if (in->episode_opts.env && prompt >= context)
        return kg_fail(err, KG_EINVAL,
                       "episode.context: expected room for a completion after the "
                       "longest prompt of %zu tokens, found %zu",
                       prompt, context);
    if (in->episode_opts.env && window > 0 && prompt > window)
        return kg_fail(err, KG_EINVAL,
                       "episode.window: expected at least the longest prompt's %zu "
                       "tokens, found %zu",
                       prompt, window);
    return KG_OK;
}

/* Positions beyond what the model was made for are refused, as `generate` does. */
static kg_status check_positions(const struct kg_run_inputs *in,
                                 const struct kg_run_state *state, struct kg_err *err)
{
    size_t longest = longest_context(in);
    size_t limit = (size_t)state->model->config.max_positions;

    KG_TRY(check_episodes(in, err));
    if (in->recipe.train.steps > 0 && longest > limit)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected prompt and completion within the model's %zu "
                       "positions, found %zu, of which the prompt has %zu",
                       in->episode_opts.env ? "episode.context" : "rollout.max_tokens",
                       limit, longest, in->train.longest);
    if (state->anchor && longest > (size_t)state->anchor->config.max_positions)
        return kg_fail(err, KG_EINVAL,
                       "anchor.path: expected an anchor of at least %zu positions for "
                       "prompt and completion, found %lld",
                       longest, (long long)state->anchor->config.max_positions);
    if (in->val.longest >= limit)
        return kg_fail(err, KG_EINVAL,
                       "data.val: expected prompts within the model's %zu positions with "
                       "room for a completion, found one of %zu tokens",
                       limit, in->val.longest);
    if (kg_run_sft_longest(in) > limit)
        return kg_fail(err, KG_EINVAL,
                       "sft.max_tokens: expected sequences within the model's %zu "
                       "positions, found one of %zu tokens",
                       limit, kg_run_sft_longest(in));
    return KG_OK;
}

static int64_t larger(size_t a, size_t b) { return (int64_t)(a > b ? a : b); }

/* Tokens of the answer that takes most: all contexts of one are in one micro-batch. */
static size_t widest_answer(const struct kg_run_inputs *in)
{
    if (!by_windows(in))
        return longest_answer(in);
    return (size_t)kg_episodes_span(&in->episode_opts, in->train.longest);
}

/* Where an anchor is read within a micro-batch, or is of another shape. */
static const struct kg_model *anchor_apart(const struct kg_run_inputs *in,
                                           const struct kg_run_state *state, bool exact)
{
    return exact || !kg_run_anchor_moves(in) ? state->anchor : NULL;
}

/* Scoring, validation and micro-batches take turns in one room. */
static void size_rows(struct kg_run_work *work, const struct kg_run_inputs *in,
                      const struct kg_run_state *state, size_t longest)
{
    const struct kg_recipe *r = &in->recipe;
    unsigned needs = kg_algo_needs(&in->algo);
    bool exact = needs & (KG_NEED_EXACT_REVERSE | KG_NEED_EXACT_FORWARD);
    int64_t widest = larger(widest_answer(in), kg_run_sft_longest(in));
    int64_t micro = r->train.micro_tokens;
    struct kg_rows_opts *o = &work->rows_opts;

    *o = (struct kg_rows_opts){
        .max_tokens = micro > widest ? micro : widest,
        .max_k = kg_algo_width(&in->algo),
        .top_k = kg_algo_width(&in->algo),
        .sets = kg_recipe_records_kept(r),
        .sum_sq = needs & KG_NEED_SUM_SQ,
        .experts = r->rollout.router_replay,
        .backward = true,
        .checkpoint = r->train.checkpoint_layers,
        .kl = exact,
        .anchor = anchor_apart(in, state, exact),
        .share = kg_recipe_shares(r),
    };
    if (state->sampler && state->sampler->ct != state->model->ct)
        work->sampler_opts = (struct kg_rows_opts){.max_tokens = larger(longest, 1024),
                                                   .max_k = o->max_k,
                                                   .top_k = o->top_k,
                                                   .sets = o->sets,
                                                   .sum_sq = o->sum_sq,
                                                   .share = o->share};
}

/* What rows and engines are made with, at the lengths of what was read. */
static void size_machinery(struct kg_run_work *work, const struct kg_run_inputs *in,
                           const struct kg_run_state *state)
{
    int64_t longest = larger(longest_context(in), kg_run_sft_longest(in));
    struct kg_eval_opts eval = kg_run_eval_opts(in);

    size_rows(work, in, state, (size_t)longest);
    work->engine_opts = in->recipe.rollout.engine;
    work->engine_opts.max_len = (int32_t)longest;
    kg_episode_opts_fit(&work->engine_opts, &in->episode_opts);
    if (in->val.n == 0)
        return;
    work->validation_opts = kg_eval_rollout_opts(state->model, &in->val, &eval);
    kg_episode_opts_fit(&work->validation_opts, &in->episode_opts);
}

kg_status kg_run_engine_open(struct kg_run *run, struct kg_err *err)
{
    struct kg_run_work *w = &run->work;

    if (w->ahead.trainers > 0 && !w->ahead.samples)
        return KG_OK; /* others sample */
    return kg_rollout_create(&w->engine, kg_run_sampler(&run->state), run->in.tok,
                             &w->engine_opts, err);
}

void kg_run_engine_close(struct kg_run *run)
{
    kg_rollout_free(run->work.engine);
    run->work.engine = NULL;
}

static kg_status open_machinery(struct kg_run *run, struct kg_err *err)
{
    const struct kg_run_state *state = &run->state;
    struct kg_run_work *w = &run->work;

    size_machinery(w, &run->in, state);
    KG_TRY(kg_run_memory_check(run, err));
    if (w->ahead.samples)
        return kg_run_engine_open(run, err);
    KG_TRY(kg_expert_load_init(&w->load, &state->model->config, err));
    KG_TRY(kg_expert_load_init(&w->whole_load, &state->model->config, err));
    KG_TRY(kg_rows_create(&w->rows, state->model, &w->rows_opts, err));
    if (w->sampler_opts.max_tokens > 0)
        KG_TRY(kg_rows_create(&w->sampler_rows, state->sampler, &w->sampler_opts, err));
    return kg_run_engine_open(run, err);
}

/* ---- a plan ---- */

static kg_status outline_reference(struct kg_run_inputs *in, const struct kg_model *m,
                                   struct kg_err *err)
{
    const char *path = in->recipe.eval.reference;
    const struct kg_model_opts opts = {.backend = m->backend, .ct = m->ct};
    struct kg_model_config config;

    if (!*path)
        return KG_OK;
    if (kg_model_config_open(&config, path, &in->recipe.model.ignore, err) != KG_OK)
        return kg_err_prefix(err, "eval.reference");
    return kg_model_outline(&in->reference, &config, &opts, err);
}

/* As open_all, of shapes alone: prompts of so many tokens. */
static kg_status outline_all(struct kg_run *run, const struct kg_model_config *config,
                             const struct kg_model_opts *opts, size_t prompt,
                             struct kg_err *err)
{
    struct kg_run_inputs *in = &run->in;
    const struct kg_recipe *r = &in->recipe;
    struct kg_model_opts own;
    bool wanted;

    KG_TRY(kg_model_outline(&run->state.model, config, opts, err));
    KG_TRY(kg_run_anchor_outline(in, &run->state, err));
    KG_TRY(describe_sampler(&wanted, &own, in, &run->state, err));
    kg_run_adapted(&own, run->state.model);
    if (wanted)
        KG_TRY(kg_model_outline(&run->state.sampler, config, &own, err));
    KG_TRY(outline_reference(in, run->state.model, err));
    KG_TRY(kg_episodes_from_recipe(&in->episode_opts, r, err));
    KG_TRY(check_router(in, run->state.model, err));
    in->train.longest = in->val.longest = prompt;
    in->val.n = r->data.val.n > 0 || r->task.val_count > 0;
    if (kg_recipe_has_sft(r) && prompt > 1)
        in->sft.longest = r->sft.max_tokens;
    size_machinery(&run->work, in, &run->state);
    return KG_OK;
}

kg_status kg_run_outline(struct kg_run *run, const struct kg_config *config,
                         uint64_t device_bytes, struct kg_err *err)
{
    struct kg_model_config shape;
    struct kg_model_opts opts;
    struct kg_path dir;
    kg_status status;

    begin_open(run, &alone, config);
    KG_TRY(kg_effect_check(config, err));
    run->work.device_total = run->work.device_free = device_bytes;
    status = find_model(&dir, &shape, &opts, &run->in, run->work.ranks, KG_INIT_NEWEST,
                        err);
    opts.backend = device_bytes > 0 ? kg_device_planned() : NULL;
    if (status == KG_OK)
        status = outline_all(run, &shape, &opts, run->in.recipe.data.max_prompt_tokens,
                             err);
    if (status != KG_OK)
        kg_run_close(run);
    return status;
}

/* ---- all of it ---- */

static kg_status open_all(struct kg_run *run, int64_t step, struct kg_err *err)
{
    KG_TRY(kg_config_require(run->in.config, "run.dir", err));
    run->log.dir = run->in.recipe.run.dir;
    if (!*run->log.dir || strlen(run->log.dir) > KG_RUN_DIR_MAX)
        return kg_fail(err, KG_EINVAL, "run.dir: expected 1 to %d bytes, found %zu",
                       KG_RUN_DIR_MAX, strlen(run->log.dir));
    if (run->in.recipe.train.steps == 0 && !kg_recipe_has_sft(&run->in.recipe))
        return kg_fail(err, KG_EINVAL,
                       "expected something to do, found train.steps 0 and sft.steps 0");
    kg_ranks_set_threads(run->work.ahead.all, run->in.recipe.run.threads);
    KG_TRY(open_model(&run->in, &run->state, &run->work, step, err));
    if (!run->work.ahead.samples)
        KG_TRY(open_anchor(&run->in, &run->state, err));
    if (!run->work.ahead.samples)
        KG_TRY(kg_init_check(&run->in, &run->state, err));
    KG_TRY(open_sampler(&run->in, &run->state, err));
    if (!run->work.ahead.samples)
        KG_TRY(open_reference(&run->in, &run->state, err));
    KG_TRY(check_sampling(&run->in, err));
    KG_TRY(kg_run_episodes_open(&run->in, &run->work, err));
    KG_TRY(kg_run_data_open(run, err));
    KG_TRY(kg_run_answers_open(&run->in, &run->state, err));
    KG_TRY(kg_run_sft_open(&run->in, &run->state, err));
    KG_TRY(check_router(&run->in, run->state.model, err));
    KG_TRY(check_shaping(&run->in, err));
    KG_TRY(check_positions(&run->in, &run->state, err));
    return open_machinery(run, err);
}

static kg_status open_begun(struct kg_run *run, int64_t step, struct kg_err *err)
{
    kg_status status = open_all(run, step, err);

    if (status != KG_OK)
        kg_run_close(run);
    return status;
}

kg_status kg_run_open_at(struct kg_run *run, const struct kg_config *config, int64_t step,
                         struct kg_err *err)
{
    begin_open(run, &alone, config);
    return open_begun(run, step, err);
}

kg_status kg_run_open_on(struct kg_run *run, struct kg_ranks *ranks,
                         const struct kg_config *config, struct kg_err *err)
{
    begin_open(run, ranks, config);
    KG_TRY(kg_effect_check(config, err));
    return open_begun(run, KG_INIT_NEWEST, err);
}

kg_status kg_run_open(struct kg_run *run, const struct kg_config *config,
                      struct kg_err *err)
{
    return kg_run_open_on(run, &alone, config, err);
}

static void close_ahead(struct kg_ahead *a)
{
    kg_slab_wire_close(&a->wire);
    for (size_t i = 0; i < sizeof a->batch / sizeof *a->batch; i++)
        kg_str_release(&a->batch[i]);
}

static void close_work(struct kg_run_work *work)
{
    close_ahead(&work->ahead);
    kg_rollout_free(work->engine);
    kg_episodes_close(work->episodes);
    kg_mem_free(work->step_memory.memory);
    kg_mem_free(work->update_memory.memory);
    kg_rows_free(work->rows);
    kg_rows_free(work->sampler_rows);
    kg_lane_sum_release(&work->lane_sum);
    kg_expert_load_release(&work->load);
    kg_expert_load_release(&work->whole_load);
}

static void close_state(struct kg_run_state *state)
{
    kg_optim_free(state->optim);
    for (int i = 0; state->lagged && i <= state->lag; i++)
        kg_slab_release(&state->lagged[i]);
    kg_mem_free(state->lagged);
    kg_model_free(state->sampler);
    kg_model_free(state->anchor);
    kg_model_free(state->model);
}

static void close_inputs(struct kg_run_inputs *in)
{
    kg_model_free(in->reference);
    kg_sft_set_release(&in->answers);
    kg_sft_set_release(&in->sft_val);
    kg_sft_set_release(&in->sft);
    kg_prompts_release(&in->val);
    kg_prompts_release(&in->train);
    kg_dataset_release(&in->val_data);
    kg_dataset_release(&in->train_data);
    kg_task_grader_close(in->task_opts.running);
    kg_task_rewards_close(in->task_opts.rewards);
    kg_chat_template_close(in->chat);
    kg_tokenizer_close(in->tok);
    kg_mem_free(in->lora);
}

void kg_run_close(struct kg_run *run)
{
    kg_run_log_close(&run->log);
    close_work(&run->work);
    close_state(&run->state);
    close_inputs(&run->in);
    memset(run, 0, sizeof *run);
}
