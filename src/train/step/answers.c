/* Reads a step's batch from a file: kg_rl_sample without a sampler.
 *
 * The rest of a step reads the recorded log-prob of each token. No policy of this run
 * sampled these tokens, so the current policy computes their log-probs as the record. The
 * ratio is then 1, and a loss that reads only distributions learns from them. Keys that
 * apply only to samples are refused at the start (check).
 */
#include "train/step/rl_batch.h"

#include "base/log.h"
#include "base/mem.h"
#include "recipe/options.h"
#include "rollout/score.h"
#include "train/open/epochs.h"

/* ---- opening ---- */

static kg_status check(const struct kg_run_inputs *in, const struct kg_run_state *state,
                       struct kg_err *err)
{
    const struct kg_algo *a = &in->algo;

    if (kg_algo_reads_sample(a))
        return kg_fail(err, KG_EINVAL,
                       "rollout.data: completions that the policy did not sample need a "
                       "loss that does not depend on sampled tokens: expected "
                       "algo.surrogate none and kl.estimator exact-*, truncated-*, "
                       "bucket-*, generalised-reverse, or topk-forward with kl.tail "
                       "false; found %s and %s",
                       kg_algo_row_name(a, KG_TABLE_SURROGATE),
                       kg_algo_row_name(a, KG_TABLE_KL));
    if (kg_algo_needs(a) & (KG_NEED_GREEDY | KG_NEED_SUM_SQ | KG_NEED_PARTS))
        return kg_fail(err, KG_EINVAL,
                       "algo.advantage: %s needs a baseline or rewards, but with "
                       "rollout.data nothing is sampled; expected a row such as grpo",
                       kg_algo_row_name(a, KG_TABLE_ADVANTAGE));
    if (in->recipe.rollout.samples != 1)
        return kg_fail(err, KG_EINVAL,
                       "rollout.samples: rollout.data has one completion per line; "
                       "expected 1, found %lld",
                       (long long)in->recipe.rollout.samples);
    if (state->sampler || kg_recipe_truncates(&in->recipe) ||
        in->recipe.rollout.dynamic || in->recipe.rollout.router_replay)
        return kg_fail(
            err, KG_EINVAL,
            "rollout.data: nothing is sampled; expected the defaults of rollout.lag, "
            "dtype, top_p, top_k, min_p, dynamic and router_replay");
    return KG_OK;
}

kg_status kg_run_answers_open(struct kg_run_inputs *in, const struct kg_run_state *state,
                              struct kg_err *err)
{
    const struct kg_recipe *r = &in->recipe;
    const char *path = r->rollout.data;
    struct kg_sft_opts opts = {
        .max_tokens = (size_t)(r->data.max_prompt_tokens +
                               r->rollout.sampling.max_tokens),
        .special = r->data.add_special,
        .eos = state->model->config.n_eos ? state->model->config.eos[0] : -1,
        .prompt = in->prompt};

    if (!*path)
        return KG_OK;
    KG_TRY(check(in, state, err));
    KG_TRY(kg_sft_from_jsonl(&in->answers, path, in->tok, &opts, err));
    kg_log_info("%s: %zu completions, longest %zu tokens with the prompt; left out: %lld "
                "over %zu tokens",
                path, in->answers.n, in->answers.longest,
                (long long)in->answers.dropped_too_long, opts.max_tokens);
    return KG_OK;
}

/* ---- the batch of a step ---- */

static kg_status read_answer(struct kg_traj *t, const struct kg_run_inputs *in, size_t i,
                             uint64_t place, struct kg_err *err)
{
    const struct kg_sft_set *set = &in->answers;
    const int32_t *tokens = set->tokens.ids;

    t->prompt_index = (int64_t)i;
    t->draw = place;
    t->temperature = in->recipe.rollout.sampling.temperature;
    t->finish = KG_FINISH_STOP;
    for (size_t j = set->begin[i]; j < set->begin[i + 1]; j++) {
        struct kg_traj_step step = {.token = tokens[j]};

        if (set->source[j] == KG_SOURCE_MODEL)
            KG_TRY(kg_traj_push(t, &step, err));
        else
            KG_TRY(kg_traj_append(t, tokens + j, 1, set->source[j], err));
    }
    return KG_OK;
}

/* Reads the lines of this step: the next ones of the endless sequence of epochs. */
static kg_status read_lines(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                            uint64_t place, struct kg_err *err)
{
    struct kg_rng_key key = {in->recipe.run.seed, KG_RNG_SHUFFLE};
    uint32_t *lines = kg_mem_calloc(b->n_trajs, sizeof *lines, "lines of a step", err);
    kg_status status = lines ? kg_epochs_take(lines, b->n_trajs, place, in->answers.n,
                                              key, err)
                             : err->code;

    for (size_t i = 0; i < b->n_trajs && status == KG_OK; i++)
        status = read_answer(&b->trajs[i], in, lines[i], place + i, err);
    kg_mem_free(lines);
    return status;
}

/* Only the model's tokens have log-probs. */
static void forget_context(struct kg_traj *t)
{
    for (size_t i = t->prompt_n; i < t->n; i++)
        if (t->source[i] != KG_SOURCE_MODEL)
            t->logp[i] = 0;
}

/* Records the policy's own log-probs in place of a sampler's. */
static kg_status record(struct kg_rl_batch *b, struct kg_rows *rows,
                        const struct kg_model *m, struct kg_err *err)
{
    struct kg_score_seq *seqs = kg_mem_calloc(b->n_trajs, sizeof *seqs, "answers", err);

    if (!seqs)
        return err->code;
    for (size_t i = 0; i < b->n_trajs; i++) {
        const struct kg_traj *t = &b->trajs[i];

        seqs[i] = (struct kg_score_seq){.tokens = t->tokens,
                                        .n = t->n,
                                        .from = t->prompt_n,
                                        .temperature = t->temperature,
                                        .logp = t->logp};
    }
    kg_status status = kg_score(rows, m, seqs, b->n_trajs, 0, 0, err);
    for (size_t i = 0; status == KG_OK && i < b->n_trajs; i++)
        forget_context(&b->trajs[i]);
    kg_mem_free(seqs);
    return status;
}

kg_status kg_rl_read_answers(struct kg_rl_batch *b, const struct kg_run_inputs *in,
                             const struct kg_run_state *state, struct kg_run_work *work,
                             struct kg_err *err)
{
    b->group = 1;
    b->n_trajs = (size_t)in->recipe.rollout.prompts;
    b->n_learned = b->n_trajs;
    b->places = (int64_t)b->n_trajs;
    b->trajs = kg_mem_calloc(b->n_trajs, sizeof *b->trajs, "trajectories", err);
    b->grades = b->trajs ? kg_mem_calloc(b->n_trajs, sizeof *b->grades, "grades", err)
                         : NULL;
    if (!b->grades)
        return err->code;
    KG_TRY(read_lines(b, in, (uint64_t)state->count.prompts, err));
    return record(b, work->rows, state->model, err);
}
