/* Opens a run: from recipe to objects.
 *
 * All refusals of a recipe are here, before anything is written; --dry-run stops here.
 * Keys are checked against each other before the model is opened, and against the model
 * before the data is. The memory that steps reuse (rows, engine, lagged weights) is
 * allocated here once, at the sizes that the longest completion can need, so a run that
 * has started does not run out of memory in its tenth hour.
 */
#include "train/open/open.h"

#include "ranks/launch.h"
#include "recipe/options.h"
#include "tensor/device.h"
#include "train/open/memory.h"
#include "train/open/plan_search.h"
#include "train/step/anchor.h"
#include "train/step/begun.h"
#include "train/step/rl_batch.h"

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

/* ---- a plan ---- */

/* open_all with shapes only.   prompt: tokens of the longest prompt */
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
    KG_TRY(kg_run_sampler_describe(&wanted, &own, in, &run->state, err));
    kg_run_adapted(&own, run->state.model);
    if (wanted)
        KG_TRY(kg_model_outline(&run->state.sampler, config, &own, err));
    KG_TRY(kg_run_reference_outline(in, run->state.model, err));
    KG_TRY(kg_episodes_from_recipe(&in->episode_opts, r, err));
    KG_TRY(kg_search_beside(&in->episode_opts.env_opts, &run->work.index_bytes,
                            run->state.model->backend, err));
    KG_TRY(kg_run_check_router(in, run->state.model, err));
    in->train.longest = in->val.longest = prompt;
    in->val.n = r->data.val.n > 0 || r->task.val_count > 0;
    if (kg_recipe_has_sft(r) && prompt > 1)
        in->sft.longest = r->sft.max_tokens;
    kg_run_size(&run->work, in, &run->state);
    return KG_OK;
}

kg_status kg_run_outline(struct kg_run *run, const struct kg_config *config,
                         uint64_t device_bytes, struct kg_err *err)
{
    struct kg_run_found found;
    kg_status status;

    begin_open(run, &alone, config);
    KG_TRY(kg_effect_check(config, err));
    run->work.device_total = run->work.device_free = device_bytes;
    status = kg_run_model_find(&found, &run->in, run->work.ranks, KG_INIT_NEWEST, err);
    found.opts.backend = device_bytes > 0 ? kg_device_planned() : NULL;
    if (status == KG_OK)
        status = outline_all(run, &found.config, &found.opts,
                             run->in.recipe.data.max_prompt_tokens, err);
    if (status != KG_OK)
        kg_run_close(run);
    return status;
}

/* ---- opening ---- */

/* Before anything large is allocated: whether the device has room for completions of the
 * shortest prompts. */
static kg_status check_device(struct kg_run_work *work, const struct kg_run_inputs *in,
                              const struct kg_model_config *config,
                              const struct kg_model_opts *opts, struct kg_err *err)
{
    const struct kg_backend *be = opts->backend;
    struct kg_run run = {.in = *in};
    kg_status status;

    run.in.lora = NULL; /* in owns it */
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

static kg_status open_all(struct kg_run *run, int64_t step, struct kg_err *err)
{
    struct kg_run_found found;

    KG_TRY(kg_config_require(run->in.config, "run.dir", err));
    run->log.dir = run->in.recipe.run.dir;
    if (!*run->log.dir || strlen(run->log.dir) > KG_RUN_DIR_MAX)
        return kg_fail(err, KG_EINVAL,
                       "run.dir: expected a path of 1 to %d bytes, found %zu",
                       KG_RUN_DIR_MAX, strlen(run->log.dir));
    if (run->in.recipe.train.steps == 0 && !kg_recipe_has_sft(&run->in.recipe))
        return kg_fail(err, KG_EINVAL,
                       "expected something to do, found train.steps 0 and sft.steps 0");
    kg_ranks_set_threads(run->work.ahead.all, run->in.recipe.run.threads);
    KG_TRY(kg_run_device_open(&found, &run->in, &run->work, step, err));
    KG_TRY(check_device(&run->work, &run->in, &found.config, &found.opts, err));
    KG_TRY(kg_run_model_open(&run->in, &run->state, &found, err));
    if (!run->work.ahead.samples) {
        run->state.count.kl_beta = run->in.algo.kl_beta;
        KG_TRY(kg_run_anchor_open(&run->in, &run->state, err));
        KG_TRY(kg_init_check(&run->in, &run->state, err));
    }
    KG_TRY(kg_run_sampler_open(&run->in, &run->state, err));
    if (!run->work.ahead.samples)
        KG_TRY(kg_run_reference_open(&run->in, &run->state, err));
    KG_TRY(kg_run_check_sampling(&run->in, err));
    KG_TRY(kg_run_data_open(run, err));
    KG_TRY(kg_run_episodes_open(&run->in, &run->work, run->state.model->backend, err));
    KG_TRY(kg_run_answers_open(&run->in, &run->state, err));
    KG_TRY(kg_run_sft_open(&run->in, &run->state, err));
    KG_TRY(kg_run_check(&run->in, &run->state, err));
    KG_TRY(kg_begun_check(&run->in, err));
    return kg_run_work_open(run, err);
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
