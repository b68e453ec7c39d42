/* Functions that steps call on a run: settings, the weights that sample, the optimizer of
 * a phase, and the count of skipped steps. */
#include "train/run.h"

#include "base/log.h"
#include "recipe/options.h"
#include "train/step/anchor.h"

bool kg_run_divides_gradients(const struct kg_run_inputs *in)
{
    return in->recipe.ranks.shard == KG_SHARD_GRADIENTS;
}

struct kg_model *kg_run_sampler(const struct kg_run_state *state)
{
    return state->sampler ? state->sampler : state->model;
}

struct kg_sampling kg_run_sampling(const struct kg_run_inputs *in)
{
    const struct kg_recipe *r = &in->recipe;
    struct kg_sampling s = r->rollout.sampling;

    s.stops = r->rollout.stop.items;
    s.n_stops = (int)r->rollout.stop.n;
    s.record_top_k = kg_algo_recorded_top_k(&in->algo);
    s.record_kept = kg_recipe_records_kept(r);
    s.record_experts = r->rollout.router_replay;
    s.rng = (struct kg_rng_key){in->recipe.run.seed, KG_RNG_SAMPLE};
    return s;
}

struct kg_eval_opts kg_run_eval_opts(const struct kg_run_inputs *in)
{
    const struct kg_recipe *r = &in->recipe;
    const struct kg_sampling training = kg_run_sampling(in);
    struct kg_eval_opts e = {
        .task = in->task,
        .task_opts = &in->task_opts,
        .sampling = r->eval.sampling,
        .samples = r->eval.samples,
        .max_batch = r->rollout.engine.max_batch,
        .reference = in->reference,
    };

    e.sampling.max_tokens = training.max_tokens;
    e.sampling.stops = training.stops;
    e.sampling.n_stops = training.n_stops;
    e.sampling.rng = (struct kg_rng_key){r->run.seed, KG_RNG_EVAL};
    return e;
}

/* ---- which weights sample ---- */

/* With lag n, step s samples with the weights from before step s - n. Slot s mod (n+1)
 * has the weights from before step s. */
kg_status kg_run_load_sampler(struct kg_run_state *state, int64_t step,
                              struct kg_err *err)
{
    int64_t old = step > state->lag ? step - state->lag : 0;

    KG_TRY(kg_slab_copy(&state->sampler->master, &state->lagged[old % (state->lag + 1)],
                        err));
    return kg_model_refresh(state->sampler, err);
}

kg_status kg_run_refresh_sampler(struct kg_run_state *state, struct kg_err *err)
{
    int64_t slots = state->lag + 1, step = state->count.step;

    if (!state->sampler)
        return KG_OK;
    if (state->lag == 0) {
        KG_TRY(kg_slab_copy(&state->sampler->master, &state->model->master, err));
        return kg_model_refresh(state->sampler, err);
    }
    KG_TRY(kg_slab_copy(&state->lagged[step % slots], &state->model->master, err));
    return kg_run_load_sampler(state, step, err);
}

/* ---- phases ---- */

static kg_status replace_optim(struct kg_run_state *state,
                               const struct kg_optim_opts *opts, struct kg_err *err)
{
    kg_optim_free(state->optim);
    state->optim = NULL;
    return kg_optim_create(&state->optim, state->model, opts, err);
}

kg_status kg_run_start_sft(const struct kg_run_inputs *in, struct kg_run_state *state,
                           struct kg_err *err)
{
    struct kg_optim_opts opts = in->recipe.sft.opts;

    opts.beta1 = 0.9;
    opts.beta2 = 0.95;
    opts.eps = 1e-8;
    opts.clip_norm = 1.0;
    opts.total_updates = in->sft_steps;
    opts.min_lr = 0.1 * opts.lr;
    opts.moments = in->recipe.optim.opts.moments;
    opts.cut_grads = kg_run_divides_gradients(in);
    opts.rounding = (struct kg_rng_key){in->recipe.run.seed, KG_RNG_ROUND_SFT};
    return replace_optim(state, &opts, err);
}

kg_status kg_run_start_rl(const struct kg_run_inputs *in, struct kg_run_state *state,
                          struct kg_err *err)
{
    KG_TRY(replace_optim(state, &in->rl_optim, err));
    state->optim->before = state->count.optim_before;
    KG_TRY(kg_run_anchor_begin(in, state, err));
    for (int i = 0; state->lagged && i <= state->lag; i++)
        KG_TRY(kg_slab_copy(&state->lagged[i], &state->model->master, err));
    return KG_OK;
}

kg_status kg_run_skip(struct kg_run *run, const char *what, struct kg_err *err)
{
    int64_t limit = run->in.recipe.train.max_skips;
    bool rl = run->state.count.sft_step >= run->in.sft_steps;
    const char *phase = rl ? "step" : "sft step";
    long long step = rl ? run->state.count.step : run->state.count.sft_step;

    run->state.count.skipped++;
    run->state.count.skipped_in_row++;
    if (!run->log.elsewhere)
        kg_log_warn("%s %lld is skipped (%lld in a row); its batch is in %s/rollouts: %s",
                    phase, step + 1, (long long)run->state.count.skipped_in_row,
                    run->log.dir, what);
    kg_ranks_forgive(run->work.ranks);
    if (run->state.count.skipped_in_row < limit)
        return KG_OK;
    return kg_fail(err, KG_ENONFINITE,
                   "%s %lld: expected finite numbers, found none in %lld steps in a row; "
                   "the last: %.300s",
                   phase, step + 1, (long long)run->state.count.skipped_in_row, what);
}
