/* Allocates the working memory of a run, and frees everything when a run closes, also
 * after an opening that failed halfway. */
#include "train/open/open.h"

#include "base/mem.h"
#include "train/log.h"
#include "train/open/memory.h"

#include <string.h>

kg_status kg_run_engine_open(struct kg_run *run, struct kg_err *err)
{
    struct kg_run_work *w = &run->work;

    if (w->ahead.trainers > 0 && !w->ahead.samples)
        return KG_OK; /* rollout ranks sample */
    return kg_rollout_create(&w->engine, kg_run_sampler(&run->state), run->in.tok,
                             &w->engine_opts, err);
}

void kg_run_engine_close(struct kg_run *run)
{
    kg_rollout_free(run->work.engine);
    run->work.engine = NULL;
}

kg_status kg_run_work_open(struct kg_run *run, struct kg_err *err)
{
    const struct kg_run_state *state = &run->state;
    struct kg_run_work *w = &run->work;

    kg_run_size(w, &run->in, state);
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
    kg_str_release(&state->begun);
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
