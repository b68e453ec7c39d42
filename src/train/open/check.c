/* Checks a recipe against the opened model and data: sampling, routers, reward shaping
 * and lengths. Also computes the sizes of memory that steps reuse, from the longest
 * completion.
 */
#include "train/open/open.h"

#include "recipe/options.h"
#include "rollout/sampler.h"
#include "train/step/anchor.h"

/* Refuses at the start what the engine would refuse when it samples. */
kg_status kg_run_check_sampling(const struct kg_run_inputs *in, struct kg_err *err)
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
                       "train.router_aux: expected num_experts_per_tok below num_experts "
                       "(%d), found that every token uses all experts",
                       (int)x->n);
    return kg_model_moves_routers(m)
               ? KG_OK
               : kg_fail(err, KG_EINVAL,
                         "train.router_aux: changes only routers and the layers before "
                         "them; expected lora.targets with a matrix there, such as gate "
                         "or q_proj, found adapters only after the last router");
}

/* Keys about routers need a model with experts. */
kg_status kg_run_check_router(const struct kg_run_inputs *in, const struct kg_model *m,
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
    if (replay && in->episode_opts.env && !in->episode_opts.env->open)
        return kg_fail(err, KG_EINVAL,
                       "rollout.router_replay: branches of an episode compute a token in "
                       "several contexts; expected another episode.env than %s",
                       in->episode_opts.env->name);
    return in->recipe.train.router_aux > 0 ? check_router_aux(m, err) : KG_OK;
}

/* Checks keys that filter and shape samples. */
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

/* The longest prompt plus completion that RL can have. */
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

/* The longest part of longest_answer that a forward reads as one sequence. */
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
                       "episode.context: expected more than the longest prompt's %zu "
                       "tokens, found %zu",
                       prompt, context);
    if (in->episode_opts.env && !in->episode_opts.env->open && in->recipe.reproduction)
        return kg_fail(err, KG_EINVAL,
                       "algo.reproduction: needs one text per episode, which branches do "
                       "not have; expected another episode.env than %s",
                       in->episode_opts.env->name);
    if (in->episode_opts.env && window > 0 && prompt > window)
        return kg_fail(err, KG_EINVAL,
                       "episode.window: expected at least the longest prompt's %zu "
                       "tokens, found %zu",
                       prompt, window);
    return KG_OK;
}

/* Refuses positions beyond the model's limit, as `kedge generate` does. */
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

kg_status kg_run_check(const struct kg_run_inputs *in, const struct kg_run_state *state,
                       struct kg_err *err)
{
    KG_TRY(kg_run_check_router(in, state->model, err));
    KG_TRY(check_shaping(in, err));
    return check_positions(in, state, err);
}

static int64_t larger(size_t a, size_t b) { return (int64_t)(a > b ? a : b); }

/* Maximum tokens of a completion over all its contexts, which share one micro-batch. */
static size_t widest_answer(const struct kg_run_inputs *in)
{
    if (!by_windows(in))
        return longest_answer(in);
    return (size_t)kg_episodes_span(&in->episode_opts, in->train.longest);
}

/* The anchor, if micro-batches read it or if its shape may differ. */
static const struct kg_model *anchor_apart(const struct kg_run_inputs *in,
                                           const struct kg_run_state *state, bool exact)
{
    return exact || !kg_run_anchor_moves(in) ? state->anchor : NULL;
}

/* Scoring, validation and micro-batches use the same rows, one after the other. */
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

void kg_run_size(struct kg_run_work *work, const struct kg_run_inputs *in,
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
