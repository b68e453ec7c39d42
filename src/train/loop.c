/* The life of a run: SFT, RL steps with validation and checkpoints in between, and
 * stopping.
 *
 * The loop checks for a stop request (SIGINT, SIGTERM) between steps. It finishes the
 * step in progress, unless that step waits for a tool that does not answer, and writes a
 * checkpoint. If a step fails before its first update, or a validation fails, the loop
 * also writes a checkpoint of the last complete step.
 */
#include "train/run.h"

#include "base/log.h"
#include "base/phase.h"
#include "base/signal.h"
#include "base/watch.h"
#include "bench/bench.h"
#include "data/jsonl.h"
#include "ranks/launch.h"
#include "ranks/same.h"
#include "report/history.h"
#include "train/keep/checkpoint.h"
#include "train/keep/inputs.h"
#include "train/keep/run_dir.h"
#include "train/log.h"
#include "train/open/open.h"
#include "train/open/pin.h"
#include "train/step/anchor.h"
#include "train/step/rank_times.h"
#include "train/step/sums.h"

#include <stdio.h>
#include <string.h>

/* Sums of a validation. kg_eval_run passes completions in the order of their problems. */
struct by_source {
    struct kg_zst_writer *dump;      /* owned; NULL: completions are not written */
    struct kg_str line;              /* owned */
    const struct kg_task_opts *opts; /* borrowed */
    struct kg_sources sources;
    struct kg_part_sums parts;
    int32_t samples;
    int32_t seen; /* completions of the current problem so far */
    int32_t right;
};

/* Opens RUN/rollouts/val-NNNNNN.jsonl.zst; val_anchor-NNNNNN for the anchor. */
static kg_status dump_open(struct by_source *b, const struct kg_run *run,
                           const char *prefix, struct kg_err *err)
{
    char name[64];

    if (!run->in.recipe.log.validation || run->log.elsewhere)
        return KG_OK;
    snprintf(name, sizeof name, "rollouts/%.20s-%06lld.jsonl.zst", prefix,
             (long long)run->state.count.step);
    return kg_zst_open(&b->dump, kg_path_in(run->log.dir, name).text, 0, err);
}

static kg_status dump_answer(struct by_source *b, const struct kg_traj *t,
                             const struct kg_str *text, struct kg_err *err)
{
    struct kg_traj_notes notes = {.text = text};

    if (!b->dump)
        return KG_OK;
    kg_part_notes(&notes, b->opts, t->further.named);
    kg_str_clear(&b->line);
    KG_TRY(kg_traj_put_json(&b->line, t, &notes, err));
    return kg_zst_put(b->dump, b->line.data, b->line.len, err);
}

static kg_status dump_close(struct by_source *b, kg_status status, struct kg_err *err)
{
    uint64_t bytes;

    kg_str_release(&b->line);
    if (b->dump && status == KG_OK)
        status = kg_zst_end_frame(b->dump, &bytes, err);
    if (b->dump && status == KG_OK)
        return kg_zst_close(b->dump, err);
    kg_zst_abort(b->dump);
    return status;
}

static kg_status add_answer(void *user, const struct kg_traj *t,
                            const struct kg_record *r, const struct kg_grade *g,
                            const struct kg_str *text, struct kg_err *err)
{
    struct by_source *b = user;
    struct kg_source_sums *row = kg_sources_row(&b->sources, r->data_source);
    bool right = g->graded && g->correct;

    KG_TRY(dump_answer(b, t, text, err));
    kg_part_add(&b->parts, t);
    row->answers++;
    row->judged++;
    row->reward += t->reward;
    row->correct += right;
    row->tokens += (double)kg_traj_model_tokens(t);
    b->right += right;
    if (++b->seen < b->samples)
        return KG_OK;
    kg_source_problem(row, (double)b->right / b->samples);
    b->seen = b->right = 0;
    return KG_OK;
}

static kg_status validate_model(struct kg_run *run, const struct kg_model *m,
                                const char *prefix, struct kg_metrics *log,
                                struct kg_err *err)
{
    struct kg_eval_opts opts = kg_run_eval_opts(&run->in);
    struct kg_task_opts grading = run->in.task_opts;
    struct by_source by = {.opts = &run->in.task_opts, .samples = opts.samples};
    struct kg_eval_result r;
    char under[KG_METRIC_NAME];
    kg_status status = dump_open(&by, run, prefix, err);

    grading.undecided = KG_TASK_UNDECIDED_UNGRADED; /* counted in val/ungraded */
    opts.task_opts = &grading;
    opts.episodes = run->work.episodes;
    opts.ranks = run->work.ranks;
    opts.rows = kg_run_rows(&run->state, &run->work, m);
    if (status == KG_OK)
        status = kg_eval_run(&r, m, run->in.tok, &run->in.val, &opts, add_answer, &by,
                             err);
    status = dump_close(&by, status, err);
    if (status != KG_OK && !run->work.ranks->lost)
        status = kg_run_tool_failed(run->work.episodes, run->state.count.step, status,
                                    err);
    if (status != KG_OK)
        return kg_err_prefix(err, "validation after step %lld",
                             (long long)run->state.count.step);
    kg_metrics_put_in(log, prefix, "accuracy", r.accuracy);
    kg_metrics_put_in(log, prefix, "accuracy_stderr", r.accuracy_stderr);
    kg_metrics_put_in(log, prefix, "reward", r.reward);
    kg_metrics_put_in(log, prefix, "reward_stderr", r.reward_stderr);
    kg_metrics_put_in(log, prefix, "entropy", r.entropy);
    if (opts.reference) {
        kg_metrics_put_in(log, prefix, "kl", r.kl_k3);
        kg_metrics_put_in(log, prefix, "kl_k1", r.kl_k1);
    }
    kg_metrics_put_in(log, prefix, "response_tokens", r.response_tokens);
    kg_metrics_put_in(log, prefix, "truncated", r.truncated);
    kg_metrics_put_in(log, prefix, "ungraded", r.ungraded);
    kg_metrics_put_in(log, prefix, "seconds", r.seconds);
    snprintf(under, sizeof under, "%s/episode", prefix);
    kg_episodes_put(log, under, &r.episodes);
    snprintf(under, sizeof under, "%s/", prefix);
    if (by.sources.n > 1)
        kg_sources_put(log, under, &by.sources);
    snprintf(under, sizeof under, "%s/reward", prefix);
    kg_part_put(log, under, &by.parts, &run->in.task_opts);
    kg_log_info("step %lld %s: accuracy %.1f %% +- %.1f, reward %.4f +- %.4f, entropy "
                "%.3f, %.0f tokens",
                (long long)run->state.count.step, prefix, 100 * r.accuracy,
                100 * r.accuracy_stderr, r.reward, r.reward_stderr, r.entropy,
                r.response_tokens);
    return KG_OK;
}

/* Validates the weights that checkpoints publish: with a weight average, the average. */
static kg_status validate_policy(struct kg_run *run, struct kg_metrics *log,
                                 struct kg_err *err)
{
    const struct kg_slab *weights;
    struct kg_err back = {0};

    KG_TRY(kg_checkpoint_wait(run, err)); /* a save in progress reads o->grads */
    KG_TRY(kg_optim_weights(&weights, run->state.optim, run->state.model, err));
    KG_TRY(kg_optim_exchange(run->state.optim, run->state.model, err));
    kg_status status = validate_model(run, run->state.model, "val", log, err);
    if (kg_optim_exchange(run->state.optim, run->state.model, &back) == KG_OK)
        return status;
    run->state.midway = true; /* the trained weights could not be restored */
    *err = back;
    return err->code;
}

/* A validation opens its own engine. The rollout engine is closed meanwhile to free its
 * cache, whose contents no later rollout needs. */
static kg_status validate_all(struct kg_run *run, struct kg_metrics *log,
                              struct kg_err *err)
{
    kg_run_engine_close(run);
    KG_TRY(validate_policy(run, log, err));
    if (run->state.anchor && run->in.recipe.eval.anchor)
        KG_TRY(validate_model(run, run->state.anchor, "val_anchor", log, err));
    return kg_run_engine_open(run, err);
}

kg_status kg_run_validate(struct kg_run *run, struct kg_err *err)
{
    struct kg_metrics log = {.n = 0};

    if (run->work.ahead.samples || run->in.val.n == 0 ||
        run->state.count.validated == run->state.count.step + 1)
        return KG_OK; /* rollout rank, no prompts, or validated before a stop */
    int phase = kg_phase_begin(0, NULL, "validation after step %lld",
                               (long long)run->state.count.step);
    KG_TRY(validate_all(run, &log, err));
    KG_TRY(kg_run_log_put(&run->log, &log, "validation", run->state.count.step, err));
    run->state.count.validated = run->state.count.step + 1;
    kg_phase_end(phase);
    return KG_OK;
}

/* Rollout ranks save nothing: they hold only what can be recomputed. */
static kg_status save(struct kg_run *run, struct kg_err *err)
{
    kg_status status = run->work.ahead.samples ? KG_OK : kg_checkpoint_save(run, err);

    kg_run_report(&run->in, &run->log);
    return status;
}

/* As save, but the checkpoint is written while the next step runs. */
static kg_status begin_save(struct kg_run *run, struct kg_err *err)
{
    kg_status status = run->work.ahead.samples ? KG_OK : kg_checkpoint_begin(run, err);

    kg_run_report(&run->in, &run->log);
    return status;
}

static bool due(int64_t every, int64_t step, int64_t last)
{
    return step == last || (every > 0 && step % every == 0);
}

/* Between steps: fails if a rank failed; *stop: whether any rank got a stop request. */
static kg_status step_border(bool *stop, struct kg_run *run, kg_status status,
                             struct kg_err *err)
{
    KG_TRY(kg_ahead_agree(&run->work.ahead, status, "end of a step", err));
    *stop = kg_signal_stop_requested();
    return kg_ranks_any(run->work.ahead.all, stop, "stop requests", err);
}

/* A stop request between steps. A checkpoint that already exists is not written again. */
static kg_status stop_here(struct kg_run *run, struct kg_err *err)
{
    run->stopped = true;
    kg_log_info("stop requested: saving, then exiting");
    return save(run, err);
}

/* Whether the state belongs to a complete step; for a sharded model, on all ranks. */
static bool stands(struct kg_run *run)
{
    bool midway = run->state.midway;
    struct kg_err ignored;

    if (run->state.model->ranks &&
        kg_ranks_any(run->work.ranks, &midway, "state of the step", &ignored) != KG_OK)
        return false; /* a shard is lost */
    return !midway;
}

/* Whether an error says more than the loss of a rank, with which the run ends anyway. */
static bool is_news(const struct kg_ranks *ranks, const struct kg_err *err)
{
    return !ranks->lost || !strstr(err->message, ranks->broken.message);
}

/* After a failed step: saves the last complete step if its weights are untouched (a
 * grader died, out of memory). A non-finite state is not worth saving; step 0 is already
 * saved or cheap to redo. */
static kg_status keep_what_stands(struct kg_run *run, kg_status status)
{
    struct kg_ranks *ranks = run->work.ranks;
    bool told = ranks->told;
    struct kg_err err;

    if (status == KG_ENONFINITE || status == KG_EINTERRUPTED || ranks->unlike ||
        run->state.count.step == 0 || !stands(run))
        return status;
    kg_ranks_forgive(ranks); /* a failure to save is new to all ranks */
    if (save(run, &err) != KG_OK && is_news(ranks, &err))
        kg_log_warn("step %lld is not saved: %s", (long long)run->state.count.step,
                    err.message);
    ranks->told = told;
    return status;
}

static kg_status begin_sft(struct kg_run *run, struct kg_err *err)
{
    double before;

    if (run->work.ahead.samples)
        return KG_OK;
    if (!run->state.optim)
        KG_TRY(kg_run_start_sft(&run->in, &run->state, err));
    if (run->state.count.sft_step > 0 || run->in.sft_val.n == 0)
        return KG_OK;
    KG_TRY(kg_sft_held_out(&before, &run->in.sft_val, run->work.rows, run->state.model,
                           err));
    kg_log_info("sft 0: held-out loss %.4f", before);
    return KG_OK;
}

/* A rollout rank only counts the trainers' updates. */
static kg_status sft_step(struct kg_run *run, struct kg_err *err)
{
    if (!run->work.ahead.samples)
        return kg_sft_step(run, err);
    run->state.count.sft_step++;
    return KG_OK;
}

static kg_status warm_start(struct kg_run *run, struct kg_err *err)
{
    int64_t last = run->in.sft_steps;
    int64_t every = run->in.recipe.checkpoint.every;
    kg_status status = KG_OK;
    bool stop;

    if (run->state.count.sft_step >= last)
        return KG_OK;
    int phase = kg_phase_begin(last, "updates", "SFT");
    KG_TRY(begin_sft(run, err));
    while (run->state.count.sft_step < last) {
        kg_phase_at(phase, run->state.count.sft_step);
        KG_TRY(step_border(&stop, run, status, err));
        if (stop)
            return stop_here(run, err);
        status = sft_step(run, err);
        if (status == KG_OK && run->state.count.sft_step < last && every > 0 &&
            run->state.count.sft_step % every == 0)
            status = save(run, err);
    }
    KG_TRY(step_border(&stop, run, status, err));
    kg_phase_end(phase);
    kg_log_progress_end();
    return KG_OK;
}

/* Between SFT and RL: creates RL's optimizer and anchor, unless a checkpoint of step 0
 * contained them. After SFT this state is saved as the checkpoint of step 0. */
static kg_status begin_rl(struct kg_run *run, struct kg_err *err)
{
    bool warm = run->in.sft_steps > 0,
         begun = strncmp(run->state.saved_name, "step-", 5) == 0;

    kg_status status = KG_OK;
    bool stop;

    if (run->state.count.step > 0)
        return KG_OK;
    if (!begun && !run->work.ahead.samples) {
        KG_TRY(kg_run_start_rl(&run->in, &run->state, err));
        KG_TRY(kg_init_rl(&run->in, &run->state, err));
    }
    if (warm)
        status = save(run, err);
    KG_TRY(step_border(&stop, run, status, err));
    if (!run->in.recipe.eval.at_start || run->in.val.n == 0)
        return KG_OK;
    run->stopped = stop; /* a resumed run validates at its start */
    return stop ? KG_OK : kg_run_validate(run, err);
}

/* Fails if every step of this run was skipped: it learned nothing. Steps of the run in
 * init.from do not count. */
static kg_status must_have_trained(const struct kg_run_state *state,
                                   const struct kg_run_log *log, struct kg_err *err)
{
    struct kg_logged logged;

    if (log->elsewhere || state->count.step == 0 || state->count.skipped_in_row == 0)
        return KG_OK;
    KG_TRY(kg_run_dir_logged(&logged, log->dir, err));
    int64_t own = logged.first > 0 ? state->count.step - logged.first + 1 : 0;
    if (own == 0 || state->count.skipped_in_row < own)
        return KG_OK;
    return kg_fail(err, KG_ENONFINITE,
                   "expected a step with finite numbers, found none: all %lld were "
                   "skipped",
                   (long long)own);
}

/* Fails if no sample had a verdict: the run learned nothing. */
static kg_status must_have_been_judged(const struct kg_run_log *log, struct kg_err *err)
{
    if (log->elsewhere || log->samples == 0 || log->judged > 0)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "expected samples with a verdict, found none: all %lld since training "
                   "began or was resumed had no reward, and nothing was learned from "
                   "them (reward/ungraded; check the grader or the environment)",
                   (long long)log->samples);
}

/* A step of this rank: trains, or (rollout rank) samples the batch of a later step. */
static kg_status rl_step(struct kg_run *run, struct kg_err *err)
{
    return run->work.ahead.samples ? kg_ahead_sample(run, err) : kg_rl_step(run, err);
}

static kg_status rl_steps(struct kg_run *run, struct kg_err *err)
{
    int64_t last = run->in.recipe.train.steps;
    int64_t save_every = run->in.recipe.checkpoint.every;
    int64_t eval_every = run->in.recipe.eval.every;
    int phase = kg_phase_begin(last, "steps", "training");
    kg_status status = KG_OK;
    bool stop;

    (void)kg_rank_times_take(run->work.ahead.all, 0); /* discards the times of opening */
    while (run->state.count.step < last) {
        kg_phase_at(phase, run->state.count.step);
        KG_TRY(step_border(&stop, run, status, err));
        if (stop)
            return stop_here(run, err);
        KG_TRY(kg_ahead_begin(run, err));
        status = rl_step(run, err);
        if (status == KG_OK && due(eval_every, run->state.count.step, last))
            status = kg_run_validate(run, err);
        status = kg_ahead_agree(&run->work.ahead, status, "step", err);
        if (status != KG_OK)
            return keep_what_stands(run, status);
        KG_TRY(kg_ahead_pass(run, err));
        if (due(save_every, run->state.count.step, last))
            status = begin_save(run, err);
    }
    if (status == KG_OK)
        status = kg_checkpoint_wait(run, err);
    KG_TRY(kg_ahead_agree(&run->work.ahead, status, "last checkpoint", err));
    kg_phase_end(phase);
    KG_TRY(must_have_trained(&run->state, &run->log, err));
    return must_have_been_judged(&run->log, err);
}

/* Warns at the start if the disk has no room for a checkpoint. */
static kg_status say_disk(const struct kg_run *run, struct kg_err *err)
{
    uint64_t need = kg_checkpoint_bytes(&run->in, &run->state), found;

    if (run->log.elsewhere)
        return KG_OK;
    KG_TRY(kg_file_free_bytes(&found, run->log.dir, err));
    kg_log_info("%s: a checkpoint takes %.2f GB, %.2f GB are free", run->log.dir,
                need / 1e9, found / 1e9);
    if (found < need)
        kg_log_warn("%s: there is not enough room for a checkpoint", run->log.dir);
    return KG_OK;
}

/* Repeats a validation that failed, or that a stop prevented, after its step was
 * saved. */
static kg_status missed_validation(struct kg_run *run, struct kg_err *err)
{
    int64_t step = run->state.count.step;

    if (step == 0 || !due(run->in.recipe.eval.every, step, run->in.recipe.train.steps))
        return KG_OK;
    return kg_run_validate(run, err);
}

/* A run that is stopped during SFT does not begin RL. */
static kg_status all_steps(struct kg_run *run, struct kg_err *err)
{
    KG_TRY(missed_validation(run, err));
    KG_TRY(warm_start(run, err));
    if (run->state.count.sft_step < run->in.sft_steps)
        return KG_OK;
    KG_TRY(begin_rl(run, err));
    return rl_steps(run, err);
}

static void say_done(const struct kg_run *run)
{
    long long steps = run->in.recipe.train.steps;

    if (steps > 0 && run->state.count.step >= steps)
        kg_log_info(
            "%s: all %lld of %lld steps are done; a larger train.steps continues the run",
            run->log.dir, (long long)run->state.count.step, steps);
}

/* All ranks finish a checkpoint in progress, even if the run ends by an error. */
static kg_status end_saving(struct kg_run *run, kg_status status, struct kg_err *err)
{
    struct kg_ranks *ranks = run->work.ranks;
    struct kg_err why;
    bool told;

    status = kg_ahead_agree(&run->work.ahead, status, "end of the steps", err);
    told = ranks->told;
    kg_ranks_forgive(ranks);
    if (kg_checkpoint_wait(run, &why) != KG_OK && is_news(ranks, &why))
        kg_log_warn("%s", why.message);
    ranks->told = told;
    return status;
}

/* Creates or checks the run directory, on the first rank, and loads the checkpoint. */
static kg_status begin_or_resume(struct kg_run *run, bool resume, struct kg_err *err)
{
    bool found = false;
    kg_status status = KG_OK;

    if (!run->log.elsewhere)
        status = resume ? kg_run_dir_check(&run->in, &run->state, &run->log, err)
                        : kg_run_dir_create(&run->in, &run->state, run->work.ahead.all,
                                            &run->log, err);
    KG_TRY(kg_ahead_agree(&run->work.ahead, status, "run folder", err));
    KG_TRY(kg_ranks_check_shared(run->work.ahead.all, run->log.dir, err));
    if (resume && !run->work.ahead.samples) {
        KG_TRY(kg_checkpoint_load(run, &found, err));
        if (!found)
            kg_log_info("no checkpoint in %s yet: starting at step 0", run->log.dir);
        say_done(run);
    }
    if (run->log.elsewhere)
        return KG_OK;
    KG_TRY(kg_run_dir_cut(&run->in, &run->state, run->work.ahead.all, &run->log, err));
    kg_watch_file(kg_path_in(run->log.dir, "watch.log").text);
    return say_disk(run, err);
}

/* EINTERRUPTED: a stop request ended the wait for a tool. The state is still that of the
 * last complete step, which is saved. */
static kg_status run_phases(struct kg_run *run, bool resume, struct kg_err *err)
{
    kg_status status = begin_or_resume(run, resume, err);

    KG_TRY(kg_ahead_agree(&run->work.ahead, status, "run folder", err));
    KG_TRY(kg_ahead_count(run, err));
    status = end_saving(run, all_steps(run, err), err);
    if (status != KG_EINTERRUPTED)
        return status;
    kg_log_info("%s", err->message);
    /* the first rank may fail to save, which is a new error */
    kg_ranks_forgive(run->work.ranks);
    kg_ranks_forgive(run->work.ahead.all);
    return stop_here(run, err);
}

/* Logs the data and measures the machine, before the run directory is touched. */
static kg_status introduce(struct kg_run *run, struct kg_err *err)
{
    if (run->log.elsewhere)
        return KG_OK;
    KG_TRY(kg_run_data_log(&run->in, err));
    KG_TRY(kg_bench_compute_flops(&run->log.compute_ceiling, run->state.model->backend,
                                  run->state.model->ct, err));
    if (run->work.ahead.all->n > 1)
        run->log.compute_ceiling *= run->work.ahead.all->n;
    return KG_OK;
}

static kg_status leave(struct kg_run *run, kg_status status, struct kg_err *err)
{
    status = kg_ahead_agree(&run->work.ahead, status, "run", err);
    kg_log_progress_end();
    if (run->log.metrics_open && kg_run_report(&run->in, &run->log))
        kg_log_info("the page of this run: %s/report.html", run->log.dir);
    return status;
}

/* A stopped run has not failed, but is not complete either: it returns EINTERRUPTED. */
static kg_status say_stopped(const struct kg_run *run, struct kg_err *err)
{
    const struct kg_counters *count = &run->state.count;
    bool warm = count->sft_step < run->in.sft_steps;

    return kg_fail(err, KG_EINTERRUPTED,
                   "%s: stopped by a signal after %s %lld of %lld, which is saved; "
                   "--resume continues",
                   run->in.recipe.run.dir, warm ? "update" : "step",
                   (long long)(warm ? count->sft_step : count->step),
                   (long long)(warm ? run->in.sft_steps : run->in.recipe.train.steps));
}

static kg_status open_and_run(struct kg_ranks *ranks, const struct kg_config *config,
                              bool resume, bool stop_on_signal, struct kg_err *err)
{
    struct kg_run run;
    kg_status status = kg_run_open_on(&run, ranks, config, err);

    if (status != KG_OK)
        return kg_ranks_agree(ranks, status, "opening", err);
    if (stop_on_signal)
        kg_signal_install();
    status = kg_ranks_agree(ranks, introduce(&run, err), "opening", err);
    if (status == KG_OK)
        status = run_phases(&run, resume, err);
    status = leave(&run, status, err);
    if (status == KG_OK && run.stopped)
        status = say_stopped(&run, err);
    kg_run_close(&run);
    return status;
}

/* Waits until the first rank has written everything: a launcher ends all ranks when one
 * exits. */
static void wait_for_all(struct kg_ranks *ranks)
{
    struct kg_err err;
    bool unused = false;

    if (ranks->lost)
        return; /* the run ended by that error */
    if (kg_ranks_any(ranks, &unused, "end of the run", &err) != KG_OK)
        kg_log_warn("%s", err.message);
}

/* Checks that all ranks have the same keys, before names are resolved. */
static kg_status check_keys(struct kg_ranks *ranks, const struct kg_config *config,
                            bool resume, struct kg_err *err)
{
    struct kg_str facts = {0};

    if (ranks->n < 2)
        return KG_OK;
    kg_status status = kg_config_put_facts(&facts, config, err);
    if (status == KG_OK)
        status = kg_ranks_fact(&facts, "--resume", resume ? "given" : "not given", err);
    status = kg_ranks_check_same(ranks, status, &facts, "keys", err);
    kg_str_release(&facts);
    return status;
}

/* Checks that names resolved alike on all ranks, and that their files are equal. */
static kg_status check_files(struct kg_ranks *ranks, const struct kg_config *config,
                             struct kg_err *err)
{
    struct kg_str facts = {0};
    struct kg_recipe r;

    if (ranks->n < 2)
        return KG_OK;
    kg_recipe_read(&r, config);
    kg_status status = kg_config_put_facts(&facts, config, err);
    if (status == KG_OK)
        status = kg_inputs_put_all(&facts, &r, err);
    status = kg_ranks_check_same(ranks, status, &facts, "files", err);
    kg_str_release(&facts);
    return status;
}

kg_status kg_train_run_on(struct kg_ranks *ranks, struct kg_config *config, bool resume,
                          bool stop_on_signal, struct kg_err *err)
{
    struct kg_chat_day today = kg_chat_today();
    struct kg_recipe r;

    kg_recipe_read(&r, config);
    int phase = kg_phase_begin(0, NULL, "run %s", r.run.dir);
    kg_watch_after(r.log.watchdog_s);
    kg_status status = check_keys(ranks, config, resume, err);
    if (status == KG_OK) /* ranks may differ in clock or time zone */
        status = kg_ranks_share(ranks, &today, sizeof today, "day of the start", err);
    if (status == KG_OK)
        status = kg_ahead_check(&r, ranks, err);
    if (status == KG_OK)
        status = kg_pin(config, resume, today, err);
    status = kg_ranks_agree(ranks, status, "opening", err);
    if (status == KG_OK)
        status = check_files(ranks, config, err);
    if (status == KG_OK)
        status = open_and_run(ranks, config, resume, stop_on_signal, err);
    wait_for_all(ranks);
    ranks->told |= status == KG_EINTERRUPTED; /* all stopped; only the first reports it */
    kg_watch_file(NULL);
    kg_watch_after(KG_WATCH_WARN_S);
    kg_phase_end(phase);
    return status;
}

kg_status kg_train_run(struct kg_config *config, bool resume, bool stop_on_signal,
                       struct kg_err *err)
{
    struct kg_ranks alone = {0};

    return kg_train_run_on(&alone, config, resume, stop_on_signal, err);
}
