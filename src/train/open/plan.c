/* --dry-run: prints what one step does and what the run needs, before anything starts.
 *
 * The objects are really opened, so every error of a real run occurs here too; nothing is
 * written.
 */
#include "train/run.h"

#include "base/clock.h"
#include "recipe/options.h"
#include "train/keep/checkpoint.h"
#include "train/keep/run_dir.h"
#include "train/open/init.h"
#include "train/open/memory.h"
#include "train/open/pin.h"
#include "train/open/plan_search.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double gb(uint64_t bytes) { return (double)bytes / 1e9; }

static size_t n_prompts(const struct kg_run_inputs *in)
{
    return in->answers.n > 0 ? in->answers.n : in->train.n;
}

/* Steps of this run, without those of init.from. */
static int64_t own_steps(const struct kg_run_inputs *in)
{
    return in->recipe.train.steps - in->init.step;
}

/* For each of several files: its share of the prompts, and its epochs in the run. */
static kg_status file_lines(struct kg_str *out, const struct kg_run_inputs *in,
                            struct kg_err *err)
{
    const struct kg_recipe *r = &in->recipe;
    double prompts = (double)(own_steps(in) * r->rollout.prompts);
    double all = 0;

    for (size_t i = 0; i < in->n_parts; i++)
        all += in->parts[i].weight ? in->parts[i].weight : (double)in->parts[i].n;
    for (size_t i = 0; in->n_parts > 1 && i < in->n_parts; i++) {
        const struct kg_epochs_part *part = &in->parts[i];
        double share = (part->weight ? part->weight : (double)part->n) / all;

        KG_TRY(kg_str_printf(
            out, err, "data        %s: %zu prompts, %.1f %% of a step, %.2f epochs\n",
            in->train_data.files[i].name, part->n, 100 * share,
            prompts * share / (double)part->n));
    }
    return KG_OK;
}

/* What the run starts from, its task, and SFT. */
static kg_status start_lines(struct kg_str *out, const struct kg_run_inputs *in,
                             struct kg_err *err)
{
    const struct kg_recipe *r = &in->recipe;

    if (*in->init.dir.text) {
        KG_TRY(kg_str_puts(out, "start       ", err));
        KG_TRY(kg_init_say(out, &in->init, err));
        KG_TRY(kg_str_putc(out, '\n', err));
    }
    if (n_prompts(in) + in->val.n > 0)
        KG_TRY(kg_str_printf(out, err,
                             "task        %s, %zu training prompts, %zu for validation\n",
                             in->task->name, n_prompts(in), in->val.n));
    KG_TRY(kg_str_printf(
        out, err, "SFT         %lld supervised updates, %lld sequences each (out of %zu)",
        (long long)in->sft_steps, (long long)r->sft.batch, in->sft.n));
    if (in->sft.n > 0)
        KG_TRY(kg_str_printf(out, err, ", %.2f epochs at lr %g",
                             (double)in->sft_steps * (double)r->sft.batch /
                                 (double)in->sft.n,
                             r->sft.opts.lr));
    if (in->sft_val.n > 0)
        KG_TRY(kg_str_printf(out, err, "; %zu held out", in->sft_val.n));
    return kg_str_putc(out, '\n', err);
}

/* The completions of a prompt share all of it. */
static kg_status shared_line(struct kg_str *out, const struct kg_run_inputs *in,
                             struct kg_err *err)
{
    const int64_t samples = in->recipe.rollout.samples;
    const int64_t answer = kg_recipe_answer_tokens(&in->recipe);
    double prompt = 0;

    if (!kg_recipe_shares(&in->recipe) || samples < 2 || in->train.n == 0)
        return KG_OK;
    for (size_t i = 0; i < in->train.n; i++)
        prompt += (double)in->train.ids[i].n / (double)in->train.n;
    return kg_str_printf(out, err,
                         "shared      a prompt of %.1f tokens on average is computed "
                         "once for its %lld completions:\n            at least %.0f %% "
                         "of the training tokens are not computed again\n",
                         prompt, (long long)samples,
                         100 * prompt * (double)(samples - 1) /
                             ((prompt + (double)answer) * (double)samples));
}

static kg_status batch_lines(struct kg_str *out, const struct kg_run_inputs *in,
                             const struct kg_run_state *state, struct kg_err *err)
{
    const struct kg_recipe *r = &in->recipe;
    int64_t prompts = r->rollout.prompts, samples = r->rollout.samples,
            steps = r->train.steps;
    int64_t updates = r->train.updates_per_step;
    bool on_policy = !kg_recipe_off_policy(r) && !state->sampler;

    if (steps == 0)
        return KG_OK;
    KG_TRY(kg_str_printf(out, err,
                         "one step    %lld prompts x %lld samples = %lld completions of "
                         "at most %lld tokens (at most %.2f M tokens)\n",
                         (long long)prompts, (long long)samples,
                         (long long)(prompts * samples),
                         (long long)kg_recipe_answer_tokens(r),
                         (double)(prompts * samples * kg_recipe_answer_tokens(r)) / 1e6));
    KG_TRY(kg_str_printf(
        out, err, "updates     %lld per step, %.1f prompts each; on-policy: %s\n",
        (long long)updates, (double)prompts / (double)updates, on_policy ? "yes" : "no"));
    KG_TRY(shared_line(out, in, err));
    return kg_str_printf(
        out, err, "run         %lld steps = %lld completions, %.2f epochs\n",
        (long long)own_steps(in), (long long)(own_steps(in) * prompts * samples),
        (double)(own_steps(in) * prompts) / (double)n_prompts(in));
}

static kg_status put_repeated(struct kg_str *out, int64_t n, struct kg_err *err)
{
    if (n > 0)
        KG_TRY(kg_str_printf(out, err, "; %lld repeated records left out", (long long)n));
    return kg_str_putc(out, '\n', err);
}

/* The problems of each validation file, and the number of completions. */
static kg_status validation_lines(struct kg_str *out, const struct kg_run_inputs *in,
                                  struct kg_err *err)
{
    int64_t samples = in->recipe.eval.samples;
    const struct kg_dataset *d = &in->val_data;
    size_t files = d->n_files ? d->n_files : 1, at = 0;

    for (size_t f = 0; in->val.n > 0 && f < files; f++) {
        size_t end = d->n_files ? d->files[f].end : d->n, first = at;

        while (at < in->val.n && (size_t)in->val.record[at] < end)
            at++;
        KG_TRY(kg_str_printf(
            out, err, "validation  %s: %zu problems x %lld samples = %lld completions",
            d->n_files ? d->files[f].name : d->name, at - first, (long long)samples,
            (long long)(at - first) * samples));
        KG_TRY(put_repeated(
            out, d->n_files ? d->files[f].dropped_repeated : d->dropped_repeated, err));
    }
    return KG_OK;
}

/* "a 1, b 0.25": each of several rewards. */
static kg_status put_parts(struct kg_str *out, const struct kg_task_rewards *r,
                           const struct kg_grade *g, struct kg_err *err)
{
    for (int k = 0; k < kg_task_rewards_n(r); k++) {
        KG_TRY(kg_str_printf(out, err, "%s%s ", k ? ", " : " of ",
                             kg_task_rewards_name(r, k)));
        if (isnan(g->part[k]))
            KG_TRY(kg_str_puts(out, "not graded", err));
        else
            KG_TRY(kg_str_printf(out, err, "%g", g->part[k]));
    }
    return KG_OK;
}

/* Tries an external grader on one record, so that its errors occur here. */
static kg_status grader_lines(struct kg_str *out, const struct kg_run_inputs *in,
                              struct kg_err *err)
{
    const struct kg_dataset *d = in->train_data.n ? &in->train_data : &in->val_data;
    struct kg_grade_item item = {.response = "", .record = d->records};
    const struct kg_task_rewards *rewards = in->task_opts.rewards;
    double start = kg_clock_seconds();
    struct kg_grade grade = {0};
    char said[64] = "no score";

    if (!kg_task_runs_program(in->task, &in->task_opts) || d->n == 0)
        return KG_OK;
    item.response = item.record->solution ? item.record->solution
                                          : item.record->ground_truth;
    item.n = strlen(item.response);
    KG_TRY(kg_task_grade(&grade, in->task, &in->task_opts, &item, 1, err));
    if (grade.graded)
        snprintf(said, sizeof said, "score %g, %s", grade.reward,
                 grade.correct ? "right" : "wrong");
    KG_TRY(kg_str_printf(out, err, "grader      '%.200s': %s",
                         rewards ? "task.rewards" : in->task_opts.command, said));
    KG_TRY(put_parts(out, rewards, &grade, err));
    return kg_str_printf(out, err, " for the first %s, in %.2f s\n",
                         item.record->solution ? "worked solution" : "gold answer",
                         kg_clock_seconds() - start);
}

enum { SHOWN_BYTES = 1 << 16 };

static bool is_rendered(const struct kg_prompts *p)
{
    return p->data->records[p->record[0]].rendered;
}

/* The first prompt of training and of validation, as the model reads them. */
static kg_status prompt_lines(struct kg_str *out, const struct kg_run_inputs *in,
                              struct kg_err *err)
{
    const struct kg_prompts *p[] = {&in->train, &in->val};
    static const char *const names[] = {"prompt      ", "            validation: "};

    for (size_t i = 0; i < 2; i++) {
        if (p[i]->n == 0)
            continue;
        KG_TRY(kg_str_puts(out, names[p[0]->n ? i : 0], err));
        KG_TRY(kg_prompts_show(out, p[i], 0, in->tok, "            ", SHOWN_BYTES, err));
        KG_TRY(kg_str_putc(out, '\n', err));
        if (in->chat && !in->prompt.user_turn && !is_rendered(p[i]))
            KG_TRY(
                kg_str_puts(out,
                            "            (there is a chat template: data.user_turn=true "
                            "makes it the user's turn)\n",
                            err));
    }
    return KG_OK;
}

/* The first sequence of SFT: what precedes the model's first token, and the rest. */
static kg_status sequence_lines(struct kg_str *out, const struct kg_run_inputs *in,
                                struct kg_err *err)
{
    const struct kg_sft_set *s = &in->sft;
    size_t n = s->n ? s->begin[1] : 0, at = 0;

    if (n == 0)
        return KG_OK;
    while (at < n && s->source[at] != KG_SOURCE_MODEL)
        at++;
    KG_TRY(kg_str_printf(out, err, "sequence    %zu tokens of context", at));
    KG_TRY(kg_prompt_put_lines(out, in->tok, s->tokens.ids, at, "            ",
                               SHOWN_BYTES, err));
    KG_TRY(kg_str_printf(out, err, "\n            %zu follow; the loss covers %zu",
                         n - at, s->learned[0]));
    KG_TRY(kg_prompt_put_lines(out, in->tok, s->tokens.ids + at, n - at, "            ",
                               SHOWN_BYTES, err));
    return kg_str_putc(out, '\n', err);
}

static kg_status episode_lines(struct kg_str *out, const struct kg_run_inputs *in,
                               struct kg_err *err)
{
    const struct kg_episode_opts *o = &in->episode_opts;

    if (!in->episode_opts.env)
        return KG_OK;
    if (!o->env->open)
        return kg_str_printf(out, err,
                             "episodes    %s, played by '%.200s': at most %d turns of %d "
                             "tokens, %d tokens in all branches\n%s",
                             o->env->name,
                             *o->env_opts.url ? o->env_opts.url : o->env_opts.command,
                             o->turns + 1, o->turn_tokens, o->context,
                             in->chat ? ""
                                      : "            there is no chat template: requests "
                                        "to /chat/completions will be refused "
                                        "(data.chat_template)\n");
    KG_TRY(
        kg_str_printf(out, err,
                      "episodes    %s: %d turns with tools and one without, of at most "
                      "%d tokens; observations of at most %d tokens; at most %d in all",
                      o->env->name, o->turns, o->turn_tokens, o->obs_tokens, o->context));
    if (o->answer_tokens > 0)
        KG_TRY(kg_str_printf(out, err, ", %d after the prompt", o->answer_tokens));
    KG_TRY(kg_str_putc(out, '\n', err));
    if (o->window > 0)
        KG_TRY(
            kg_str_printf(out, err,
                          "            a turn is sampled from the newest %d tokens and "
                          "trained in %s\n",
                          o->window,
                          in->recipe.reproduction
                              ? "the whole text (algo.reproduction; mismatch/window)"
                              : "the same context"));
    return kg_plan_search(out, &o->env_opts, err);
}

/* Samples beyond those that are learned from. */
static kg_status sampling_lines(struct kg_str *out, const struct kg_run_inputs *in,
                                struct kg_err *err)
{
    const struct kg_recipe *r = &in->recipe;
    int64_t prompts = r->rollout.prompts;
    double batch = ceil((double)prompts * r->rollout.oversample);

    if (r->rollout.dynamic)
        KG_TRY(kg_str_printf(
            out, err,
            "sampling    until the samples of %lld prompts differ in %s, in at most %lld "
            "generation batches of %.0f prompts; \"run\" counts only these %lld\n",
            (long long)prompts, r->rollout.dynamic_reward ? "reward" : "accuracy",
            (long long)r->rollout.max_refills, batch, (long long)prompts));
    if (kg_algo_needs(&in->algo) & KG_NEED_GREEDY)
        KG_TRY(kg_str_printf(out, err,
                             "baseline    %lld further greedy completions per step\n",
                             (long long)prompts));
    return KG_OK;
}

static kg_status algorithm_lines(struct kg_str *out, const struct kg_run_inputs *in,
                                 struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "algorithm   ", err));
    KG_TRY(kg_recipe_algorithm(out, &in->recipe, err));
    KG_TRY(kg_str_putc(out, '\n', err));
    if (!kg_algo_clamps(&in->algo))
        return KG_OK;
    return kg_str_printf(out, err,
                         "            kl.clamp keeps %s; where it does, the gradient is "
                         "not the estimator's\n",
                         kg_algo_clamps(&in->algo));
}

/* For this many ranks, of which ranks.rollout do not train.   plan: borrows run */
static kg_status plan_ranks(struct kg_memory_plan *plan, const struct kg_run *run,
                            int ranks, struct kg_err *err)
{
    const struct kg_recipe *r = &run->in.recipe;
    struct kg_ranks all = {.n = ranks};
    int trainers = ranks - r->ranks.rollout;
    bool on_cpu = strcmp(r->model.device, "cpu") == 0;

    KG_TRY(kg_ahead_check(r, &all, err));
    KG_TRY(kg_run_check_ranks(r, trainers, ranks, on_cpu, err));
    kg_run_memory_plan(plan, run, trainers);
    return KG_OK;
}

static kg_status memory_lines(struct kg_str *out, const struct kg_run *run,
                              struct kg_err *err)
{
    KG_TRY(kg_run_memory_say(out, run, err));
    return kg_str_printf(out, err, "products    %s, %d threads\n",
                         kg_dtype_traits(run->state.model->ct)->name, kg_threads_get());
}

static kg_status disk_lines(struct kg_str *out, const struct kg_run_inputs *in,
                            const struct kg_run_state *state, struct kg_err *err)
{
    int64_t keep = in->recipe.checkpoint.keep;
    uint64_t one = kg_checkpoint_bytes(in, state);

    return kg_str_printf(out, err,
                         "disk        %.2f GB for one checkpoint, %.2f GB while the next "
                         "of %lld kept is written\n",
                         gb(one), gb(one * (uint64_t)(keep + 1)), (long long)keep);
}

/* Reads the checkpoint from which a resumed run continues, as that run does. */
static kg_status resume_lines(struct kg_str *out, struct kg_run *run, struct kg_err *err)
{
    char name[KG_CHECKPOINT_NAME];
    struct kg_path dir;

    KG_TRY(kg_checkpoint_seen(name, run->log.dir, err));
    if (!name[0])
        return kg_str_printf(out, err,
                             "resume      %s has no checkpoint yet: from step 0\n",
                             run->log.dir);
    dir = kg_path_in(kg_path_in(run->log.dir, "checkpoints").text, name);
    KG_TRY(kg_checkpoint_read(&run->in, &run->state, dir.text, err));
    return kg_str_printf(
        out, err, "resume      %s: after step %lld of %lld, update %lld of %lld of SFT\n",
        dir.text, (long long)run->state.count.step, (long long)run->in.recipe.train.steps,
        (long long)run->state.count.sft_step, (long long)run->in.sft_steps);
}

kg_status kg_train_plan(struct kg_str *out, struct kg_config *config, bool resume,
                        int ranks, struct kg_err *err)
{
    struct kg_memory_plan plan;
    struct kg_run run;
    kg_status status;

    KG_TRY(kg_pin(config, resume, kg_chat_today(), err));
    KG_TRY(kg_run_open(&run, config, err));
    KG_TRY_GOTO(out, kg_run_dir_try(&run.in, &run.state, &run.log, resume, err));
    KG_TRY_GOTO(out, start_lines(out, &run.in, err));
    KG_TRY_GOTO(out, batch_lines(out, &run.in, &run.state, err));
    KG_TRY_GOTO(out, file_lines(out, &run.in, err));
    KG_TRY_GOTO(out, validation_lines(out, &run.in, err));
    KG_TRY_GOTO(out, sequence_lines(out, &run.in, err));
    KG_TRY_GOTO(out, prompt_lines(out, &run.in, err));
    KG_TRY_GOTO(out, grader_lines(out, &run.in, err));
    KG_TRY_GOTO(out, sampling_lines(out, &run.in, err));
    KG_TRY_GOTO(out, episode_lines(out, &run.in, err));
    KG_TRY_GOTO(out, algorithm_lines(out, &run.in, err));
    KG_TRY_GOTO(out, plan_ranks(&plan, &run, ranks, err));
    KG_TRY_GOTO(out, memory_lines(out, &plan.run, err));
    KG_TRY_GOTO(out, disk_lines(out, &run.in, &run.state, err));
    if (resume)
        status = resume_lines(out, &run, err);
out:
    kg_run_close(&run);
    return status;
}

static kg_status check_planned_device(const struct kg_recipe *r, bool device,
                                      struct kg_err *err)
{
    const bool cpu = strcmp(r->model.device, "cpu") == 0;
    if (cpu != device)
        return KG_OK;
    return kg_fail(
        err, KG_EINVAL,
        device
            ? "model.device: expected cuda, because --device-memory plans a GPU, found %s"
            : "model.device: expected cpu with --config-only (--device-memory plans a "
              "GPU), found %s",
        r->model.device);
}

enum { MOST_RANKS = 256 };

/* train.lanes, but at least one per rank, unless gradients are sharded. */
static int lanes_for(const struct kg_run *run, int n)
{
    int lanes = run->in.recipe.train.lanes;

    return lanes > n || kg_run_divides_gradients(&run->in) ? lanes : n;
}

/* Device memory of one of n ranks. */
static uint64_t device_bytes_of(const struct kg_run *run, int n)
{
    struct kg_memory_plan plan;
    struct kg_memory m;

    kg_run_memory_plan(&plan, run, n);
    plan.run.in.recipe.train.lanes = lanes_for(run, n);
    kg_run_memory(&m, &plan.run);
    return m.sum.there;
}

/* The number of ranks, each with a device, on which the run fits. */
static kg_status needed_lines(struct kg_str *out, const struct kg_run *run,
                              struct kg_err *err)
{
    uint64_t bytes = device_bytes_of(run, 1), room = run->work.device_total;
    int n = 1;

    while (bytes > room && n < MOST_RANKS)
        bytes = device_bytes_of(run, ++n);
    if (bytes > room)
        return kg_str_printf(
            out, err,
            "needed      more memory than sharding saves: each of %d ranks "
            "would take %.2f GB of its device\n",
            n, gb(bytes));
    return kg_str_printf(
        out, err,
        "needed      %d rank%s (train.lanes=%d), each with %.2f GB of such a device\n", n,
        n > 1 ? "s" : "", lanes_for(run, n), gb(bytes));
}

kg_status kg_train_plan_memory(struct kg_str *out, struct kg_config *config, bool resume,
                               int ranks, uint64_t device_bytes, struct kg_err *err)
{
    struct kg_memory_plan plan;
    struct kg_run run;
    kg_status status;

    KG_TRY(kg_pin(config, resume, kg_chat_today(), err));
    KG_TRY(kg_run_outline(&run, config, device_bytes, err));
    KG_TRY_GOTO(out, check_planned_device(&run.in.recipe, device_bytes > 0, err));
    KG_TRY_GOTO(out, algorithm_lines(out, &run.in, err));
    KG_TRY_GOTO(out, plan_ranks(&plan, &run, ranks, err));
    KG_TRY_GOTO(out, memory_lines(out, &plan.run, err));
    if (device_bytes > 0)
        KG_TRY_GOTO(out, needed_lines(out, &run, err));
    KG_TRY_GOTO(out, kg_str_printf(out, err,
                                   "            for prompts of up to %zu tokens "
                                   "(data.max_prompt_tokens)\n",
                                   run.in.recipe.data.max_prompt_tokens));
    if (device_bytes > 0)
        status = kg_run_memory_check(&plan.run, err);
out:
    kg_run_close(&run);
    return status;
}
