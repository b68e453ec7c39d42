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
#include "base/log.h"
#include "base/mem.h"
#include "recipe/algo.h"
#include "recipe/effect.h"
#include "recipe/episodes.h"
#include "recipe/options.h"
#include "report/path.h"
#include "report/report.h"
#include "rollout/sampler.h"
#include "rollout/score.h"
#include "train/anchor.h"
#include "train/answers.h"
#include "train/episodes.h"
#include "train/reference.h"
#include "train/run_data.h"
#include "train/run_events.h"

#include <math.h>
#include <string.h>

/* ---- model, anchor, sampler ---- */

/* Training from weights that are not finite could only skip every step. */
static kg_status check_finite(const struct kg_model *m, struct kg_err *err)
{
    for (size_t i = 0; i < m->n_params; i++) {
        const struct kg_param *p = &m->params[i];
        double squares;

        KG_TRY(kg_op_sum_squares(m->backend, &squares,
                                 kg_slab_part(&m->master, p->offset, p->rows * p->cols),
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

static kg_status open_model(struct kg_run *run, int64_t step, struct kg_err *err)
{
    struct kg_model_opts opts = {.trainable = true};

    struct kg_path dir;

    KG_TRY(kg_init_find(&run->init, &run->recipe, step, err));
    KG_TRY(kg_init_verify(&run->init, err));
    if (!run->init.model)
        KG_TRY(kg_config_require(run->config, "model.path", err));
    dir = kg_init_model_dir(&run->init, &run->recipe);
    KG_TRY(choose_dtype(&opts.ct, run->recipe.model.dtype, err));
    KG_TRY(kg_model_open(&run->model, dir.text, &opts, err));
    KG_TRY(kg_init_model(run, err));
    KG_TRY(check_finite(run->model, err));
    KG_TRY(kg_tokenizer_open(&run->tok, dir.text, err));
    return kg_model_config_add_eos(&run->model->config, kg_tokenizer_eos(run->tok), err);
}

/* A sampler of its own exists only where off-policyness is asked for: otherwise there is
 * one set of weights. */
static kg_status open_sampler(struct kg_run *run, struct kg_err *err)
{
    const char *dtype = run->recipe.rollout.dtype;
    enum kg_dtype ct = run->model->ct;

    run->lag = run->recipe.rollout.lag;
    if (strcmp(dtype, "same") != 0)
        KG_TRY(kg_dtype_parse(&ct, dtype, err));
    if (run->lag == 0 && ct == run->model->ct)
        return KG_OK;
    KG_TRY(kg_model_clone(&run->sampler, run->model, ct, err));
    if (run->lag == 0)
        return KG_OK;
    run->lagged = kg_mem_calloc((size_t)run->lag + 1, sizeof *run->lagged,
                                "lagged weights", err);
    if (!run->lagged)
        return KG_ENOMEM;
    for (int i = 0; i <= run->lag; i++)
        KG_TRY(kg_slab_init(&run->lagged[i], run->model->backend, run->model->n_elements,
                            "lagged weights", err));
    return KG_OK;
}

/* ---- stop strings ---- */

static kg_status check_stops(const struct kg_run *run, struct kg_err *err)
{
    size_t n = run->recipe.rollout.stop.n;

    if (n > KG_MAX_STOPS)
        return kg_fail(err, KG_EINVAL,
                       "rollout.stop: expected at most %d strings, found %zu",
                       KG_MAX_STOPS, n);
    return KG_OK;
}

/* ---- machinery ---- */

static kg_status open_algorithm(struct kg_run *run, struct kg_err *err)
{
    KG_TRY(kg_algo_from_recipe(&run->algo, &run->recipe, run->config,
                               run->model->config.vocab, err));
    run->count.kl_beta = run->algo.kl_beta;
    KG_TRY(kg_run_anchor_open(run, err));
    run->record_top_k = kg_algo_recorded_top_k(&run->algo);
    run->width = kg_algo_width(&run->algo);
    return KG_OK;
}

/* What the engine would refuse is refused before it samples. */
static kg_status check_sampling(const struct kg_run *run, struct kg_err *err)
{
    struct kg_sampling training = kg_run_sampling(run);
    struct kg_sampling validation = kg_run_eval_opts(run).sampling;

    if (kg_sampler_check(&training, err) != KG_OK)
        return kg_err_prefix(err, "rollout");
    if (kg_sampler_check(&validation, err) != KG_OK)
        return kg_err_prefix(err, "eval");
    return KG_OK;
}

static kg_status open_reference(struct kg_run *run, struct kg_err *err)
{
    const char *path = run->recipe.eval.reference;

    if (!*path)
        return KG_OK;
    return kg_reference_open(&run->reference, path, "eval.reference", run->model,
                             run->tok, false, err);
}

/* Judged here rather than after the warm start. */
static kg_status open_optim(struct kg_run *run, struct kg_err *err)
{
    const struct kg_recipe *r = &run->recipe;
    int64_t updates = r->train.updates_per_step;

    if (r->optim.stairs && r->optim.warmup_steps == 0)
        return kg_fail(err, KG_EINVAL,
                       "optim.warmup: steps says how a warm-up rises; expected "
                       "optim.warmup_steps above 0 with it, found 0");
    if (!r->sft.opts.decay_all && !(r->sft.opts.weight_decay > 0))
        return kg_fail(
            err, KG_EINVAL,
            "sft.decay: there is no weight decay (sft.weight_decay) whose reach "
            "it could say");
    run->rl_optim = r->optim.opts;
    run->rl_optim.warmup_updates = updates * r->optim.warmup_steps;
    run->rl_optim.warmup_stair = r->optim.stairs ? updates : 0;
    run->rl_optim.total_updates = updates * r->train.steps;
    KG_TRY(kg_optim_find(&run->rl_optim.row, r->optim.kind, err));
    return kg_optim_check(&run->rl_optim, err);
}

/* Filters and shaping of what is sampled. */
static kg_status check_shaping(const struct kg_run *run, struct kg_err *err)
{
    bool dynamic = run->recipe.rollout.dynamic;
    int64_t buffer = run->recipe.rollout.overlong_buffer;
    int64_t most = kg_recipe_answer_tokens(&run->recipe);

    if (!dynamic && run->recipe.rollout.oversample != 1)
        return kg_fail(err, KG_EINVAL,
                       "rollout.oversample: expected 1 without rollout.dynamic, found %g",
                       run->recipe.rollout.oversample);
    if (dynamic && run->recipe.rollout.samples < 2)
        return kg_fail(err, KG_EINVAL,
                       "rollout.samples: rollout.dynamic compares the answers of a "
                       "prompt; expected 2 or more, found 1");
    if (buffer > 0 && (kg_algo_needs(&run->algo) & KG_NEED_PARTS))
        return kg_fail(err, KG_EINVAL,
                       "rollout.overlong_buffer: algo.advantage %s takes each reward of "
                       "the task by itself; expected 0, found %lld",
                       kg_algo_row_name(&run->algo, KG_TABLE_ADVANTAGE),
                       (long long)buffer);
    if (buffer > most)
        return kg_fail(err, KG_EINVAL,
                       "rollout.overlong_buffer: expected at most the longest answer "
                       "(%lld), found %lld",
                       (long long)most, (long long)buffer);
    return KG_OK;
}

/* Whether episodes are sampled and learned turn by turn, each in its own context. */
static bool by_windows(const struct kg_run *run)
{
    return run->episodes && run->episode_opts.window > 0 && !run->recipe.reproduction;
}

/* The longest prompt with its answer that RL can meet. */
static size_t longest_answer(const struct kg_run *run)
{
    struct kg_episode_opts whole = run->episode_opts;

    whole.window = 0;
    if (run->answers.n > 0)
        return run->answers.longest;
    if (run->episodes)
        return (size_t)kg_episodes_span(&whole, run->train.longest);
    return run->train.longest + (size_t)run->recipe.rollout.sampling.max_tokens;
}

/* The most of it that one forward reads as a sequence. */
static size_t longest_context(const struct kg_run *run)
{
    size_t longest = longest_answer(run);
    size_t reach = by_windows(run) ? (size_t)kg_episodes_positions(&run->episode_opts)
                                   : longest;

    return reach < longest ? reach : longest;
}

static kg_status check_episodes(const struct kg_run *run, struct kg_err *err)
{
    size_t prompt = run->train.longest > run->val.longest ? run->train.longest
                                                          : run->val.longest;
    size_t context = (size_t)run->episode_opts.context;
    size_t window = (size_t)run->episode_opts.window;

    if (run->episodes && prompt >= context)
        return kg_fail(err, KG_EINVAL,
                       "episode.context: expected room for an answer behind the longest "
                       "prompt of %zu tokens, found %zu",
                       prompt, context);
    if (run->episodes && window > 0 && prompt > window)
        return kg_fail(err, KG_EINVAL,
                       "episode.window: expected at least the longest prompt's %zu "
                       "tokens, found %zu",
                       prompt, window);
    return KG_OK;
}

/* Positions beyond what the model was made for are refused, as `generate` does. */
static kg_status check_positions(const struct kg_run *run, struct kg_err *err)
{
    size_t longest = longest_context(run);
    size_t limit = (size_t)run->model->config.max_positions;

    KG_TRY(check_episodes(run, err));
    if (run->recipe.train.steps > 0 && longest > limit)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected prompt and answer within the model's "
                       "%zu positions, found %zu, of which the prompt has %zu",
                       run->episodes ? "episode.context" : "rollout.max_tokens", limit,
                       longest, run->train.longest);
    if (run->anchor && longest > (size_t)run->anchor->config.max_positions)
        return kg_fail(err, KG_EINVAL,
                       "anchor.path: expected an anchor of at least %zu positions for "
                       "prompt and answer, found %lld",
                       longest, (long long)run->anchor->config.max_positions);
    if (run->val.longest >= limit)
        return kg_fail(err, KG_EINVAL,
                       "data.val: expected prompts within the model's %zu positions with "
                       "room for an answer, found one of %zu tokens",
                       limit, run->val.longest);
    if (kg_run_sft_longest(run) > limit)
        return kg_fail(err, KG_EINVAL,
                       "sft.max_tokens: expected sequences within the model's %zu "
                       "positions, found one of %zu tokens",
                       limit, kg_run_sft_longest(run));
    return KG_OK;
}

static int64_t larger(size_t a, size_t b) { return (int64_t)(a > b ? a : b); }

/* Tokens of the answer that takes most: all contexts of one are in one micro-batch. */
static size_t widest_answer(const struct kg_run *run)
{
    if (!by_windows(run))
        return longest_answer(run);
    return (size_t)kg_episodes_span(&run->episode_opts, run->train.longest);
}

/* Where an anchor is read within a micro-batch, or is of another shape. */
static const struct kg_model *anchor_apart(const struct kg_run *run, bool exact)
{
    return exact || !kg_run_anchor_saved(run) ? run->anchor : NULL;
}

/* Scoring, validation and micro-batches take turns in one room. longest: of a context. */
static kg_status open_rows(struct kg_run *run, size_t longest, struct kg_err *err)
{
    const struct kg_recipe *r = &run->recipe;
    unsigned needs = kg_algo_needs(&run->algo);
    bool exact = needs & (KG_NEED_EXACT_REVERSE | KG_NEED_EXACT_FORWARD);
    int64_t widest = larger(widest_answer(run), kg_run_sft_longest(run));
    int64_t micro = r->train.micro_tokens;
    struct kg_rows_opts *o = &run->rows_opts;

    *o = (struct kg_rows_opts){
        .max_tokens = micro > widest ? micro : widest,
        .max_k = run->width,
        .top_k = run->width,
        .sets = kg_recipe_records_kept(r),
        .sum_sq = needs & KG_NEED_SUM_SQ,
        .backward = true,
        .checkpoint = r->train.checkpoint_layers,
        .kl = exact,
        .anchor = anchor_apart(run, exact),
    };
    KG_TRY(kg_rows_create(&run->rows, run->model, o, err));
    if (!run->sampler || run->sampler->ct == run->model->ct)
        return KG_OK;
    run->sampler_opts = (struct kg_rows_opts){.max_tokens = larger(longest, 1024),
                                              .max_k = o->max_k,
                                              .top_k = o->top_k,
                                              .sets = o->sets,
                                              .sum_sq = o->sum_sq};
    return kg_rows_create(&run->sampler_rows, run->sampler, &run->sampler_opts, err);
}

static kg_status open_machinery(struct kg_run *run, struct kg_err *err)
{
    int64_t longest = larger(longest_context(run), kg_run_sft_longest(run));
    struct kg_rollout_opts ro = run->recipe.rollout.engine;

    ro.max_len = (int32_t)longest;
    KG_TRY(open_rows(run, (size_t)longest, err));
    kg_episodes_fit(&ro, run->episodes);
    return kg_rollout_create(&run->engine, run->sampler ? run->sampler : run->model,
                             run->tok, &ro, err);
}

static kg_status open_all(struct kg_run *run, int64_t step, struct kg_err *err)
{
    KG_TRY(kg_config_require(run->config, "run.dir", err));
    run->dir = run->recipe.run.dir;
    if (!*run->dir || strlen(run->dir) > KG_RUN_DIR_MAX)
        return kg_fail(err, KG_EINVAL, "run.dir: expected 1 to %d bytes, found %zu",
                       KG_RUN_DIR_MAX, strlen(run->dir));
    if (run->recipe.train.steps == 0 && !kg_recipe_has_sft(&run->recipe))
        return kg_fail(err, KG_EINVAL,
                       "expected something to do, found train.steps 0 and sft.steps 0");
    run->seed = run->recipe.run.seed;
    kg_threads_set(run->recipe.run.threads);
    KG_TRY(open_model(run, step, err));
    KG_TRY(open_algorithm(run, err));
    KG_TRY(open_optim(run, err));
    KG_TRY(kg_init_check(run, err));
    KG_TRY(open_sampler(run, err));
    KG_TRY(open_reference(run, err));
    KG_TRY(check_stops(run, err));
    KG_TRY(check_sampling(run, err));
    KG_TRY(kg_run_episodes_open(run, err));
    KG_TRY(kg_run_data_open(run, err));
    KG_TRY(kg_run_answers_open(run, err));
    KG_TRY(kg_run_sft_open(run, err));
    KG_TRY(check_shaping(run, err));
    KG_TRY(check_positions(run, err));
    return open_machinery(run, err);
}

kg_status kg_run_open_at(struct kg_run *run, const struct kg_config *config, int64_t step,
                         struct kg_err *err)
{
    kg_status status;

    memset(run, 0, sizeof *run);
    run->config = config;
    kg_recipe_read(&run->recipe, config);
    status = open_all(run, step, err);
    if (status != KG_OK)
        kg_run_close(run);
    return status;
}

kg_status kg_run_open(struct kg_run *run, const struct kg_config *config,
                      struct kg_err *err)
{
    memset(run, 0, sizeof *run);
    KG_TRY(kg_effect_check(config, err));
    return kg_run_open_at(run, config, KG_INIT_NEWEST, err);
}

void kg_run_close(struct kg_run *run)
{
    struct kg_err ignored = {0};

    if (run->metrics_open && kg_file_writer_close(&run->metrics, &ignored) != KG_OK)
        kg_log_warn("%s", ignored.message);
    kg_run_events_close(run);
    kg_report_run_free(run->report);
    kg_file_lock_release(&run->lock);
    kg_rollout_free(run->engine);
    kg_episodes_close(run->episodes);
    kg_mem_free(run->step_memory.memory);
    kg_mem_free(run->update_memory.memory);
    kg_rows_free(run->rows);
    kg_rows_free(run->sampler_rows);
    kg_optim_free(run->optim);
    for (int i = 0; run->lagged && i <= run->lag; i++)
        kg_slab_release(&run->lagged[i]);
    kg_lane_sum_release(&run->lane_sum);
    kg_mem_free(run->lagged);
    kg_model_free(run->sampler);
    kg_model_free(run->anchor);
    kg_model_free(run->reference);
    kg_model_free(run->model);
    kg_sft_set_release(&run->answers);
    kg_sft_set_release(&run->sft_val);
    kg_sft_set_release(&run->sft);
    kg_prompts_release(&run->val);
    kg_prompts_release(&run->train);
    kg_dataset_release(&run->val_data);
    kg_dataset_release(&run->train_data);
    kg_task_grader_close(run->task_opts.running);
    kg_task_rewards_close(run->task_opts.rewards);
    kg_chat_template_close(run->chat);
    kg_tokenizer_close(run->tok);
    memset(run, 0, sizeof *run);
}

/* ---- phases ---- */

static kg_status replace_optim(struct kg_run *run, const struct kg_optim_opts *opts,
                               struct kg_err *err)
{
    kg_optim_free(run->optim);
    run->optim = NULL;
    return kg_optim_create(&run->optim, run->model, opts, err);
}

kg_status kg_run_start_sft(struct kg_run *run, struct kg_err *err)
{
    struct kg_optim_opts opts = run->recipe.sft.opts;

    opts.beta1 = 0.9;
    opts.beta2 = 0.95;
    opts.eps = 1e-8;
    opts.clip_norm = 1.0;
    opts.total_updates = run->sft_steps;
    opts.min_lr = 0.1 * opts.lr;
    return replace_optim(run, &opts, err);
}

kg_status kg_run_start_rl(struct kg_run *run, struct kg_err *err)
{
    KG_TRY(replace_optim(run, &run->rl_optim, err));
    run->optim->before = run->count.optim_before;
    KG_TRY(kg_run_anchor_begin(run, err));
    for (int i = 0; run->lagged && i <= run->lag; i++)
        KG_TRY(kg_slab_copy(&run->lagged[i], &run->model->master, err));
    return KG_OK;
}

/* ---- settings ---- */

struct kg_sampling kg_run_sampling(const struct kg_run *run)
{
    const struct kg_recipe *r = &run->recipe;
    struct kg_sampling s = r->rollout.sampling;

    s.stops = r->rollout.stop.items;
    s.n_stops = (int)r->rollout.stop.n;
    s.record_top_k = run->record_top_k;
    s.record_kept = kg_recipe_records_kept(r);
    s.rng = (struct kg_rng_key){run->seed, KG_RNG_SAMPLE};
    return s;
}

struct kg_eval_opts kg_run_eval_opts(const struct kg_run *run)
{
    const struct kg_recipe *r = &run->recipe;
    struct kg_eval_opts e = {
        .task = run->task,
        .task_opts = &run->task_opts,
        .sampling = kg_run_sampling(run),
        .samples = r->eval.samples,
        .max_batch = r->rollout.engine.max_batch,
        .reference = run->reference,
        .episodes = run->episodes,
    };

    e.sampling.temperature = r->eval.temperature;
    e.sampling.top_p = r->eval.top_p;
    e.sampling.top_k = 0;
    e.sampling.min_p = 0;
    e.sampling.record_top_k = 0;
    e.sampling.record_kept = false;
    e.sampling.rng.stream = KG_RNG_EVAL;
    return e;
}

kg_status kg_run_log(struct kg_run *run, const struct kg_metrics *m, const char *phase,
                     int64_t step, struct kg_err *err)
{
    struct kg_str line = {0};
    kg_status status;

    kg_run_events_put(run, m, phase, step);
    KG_TRY_GOTO(out, kg_metrics_json(&line, m, phase, step, err));
    KG_TRY_GOTO(out, kg_file_writer_put(&run->metrics, line.data, line.len, err));
    status = kg_file_writer_flush(&run->metrics, err);
out:
    kg_str_release(&line);
    return status;
}

kg_status kg_run_skip(struct kg_run *run, const char *what, struct kg_err *err)
{
    int64_t limit = run->recipe.train.max_skips;
    bool rl = run->count.sft_step >= run->sft_steps;
    const char *phase = rl ? "step" : "sft step";
    long long step = rl ? run->count.step : run->count.sft_step;

    run->count.skipped++;
    run->count.skipped_in_row++;
    kg_log_warn("%s %lld is skipped (%lld in a row), its batch is in %s/rollouts: %s",
                phase, step + 1, (long long)run->count.skipped_in_row, run->dir, what);
    if (run->count.skipped_in_row < limit)
        return KG_OK;
    return kg_fail(err, KG_ENONFINITE,
                   "%s %lld: expected finite numbers, found %lld steps in a row without; "
                   "the last: %.300s",
                   phase, step + 1, (long long)run->count.skipped_in_row, what);
}
