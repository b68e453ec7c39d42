/* avg@n with a standard error over problems, KL to a reference, and the decode-and-grade
 * step that training shares. */
#include "eval/eval.h"

#include "base/clock.h"
#include "base/mem.h"
#include "rollout/score.h"

#include <math.h>
#include <string.h>

/* The text of an answer, and what its grader reads; of an episode that is told apart by
 * who wrote it. */
static kg_status put_item(struct kg_grade_item *item, struct kg_str *text,
                          struct kg_episode_text *episode, const struct kg_tokenizer *tok,
                          const struct kg_traj *t, const struct kg_sampling *s,
                          struct kg_err *err)
{
    KG_TRY(kg_rollout_text(text, tok, t, s->stops, s->n_stops, err));
    item->response = kg_str_text(text);
    item->n = text->len;
    if (t->episode.turns == 0)
        return KG_OK;
    KG_TRY(kg_episode_text_init(episode, tok, t, err));
    item->response = kg_str_text(&episode->model);
    item->n = episode->model.len;
    item->spans = episode->spans;
    item->n_spans = episode->n_spans;
    return KG_OK;
}

kg_status kg_eval_grade(struct kg_grade *grades, struct kg_str *texts,
                        struct kg_traj *trajs, size_t n, const struct kg_tokenizer *tok,
                        const struct kg_prompts *prompts, const struct kg_eval_opts *opts,
                        struct kg_err *err)
{
    const struct kg_sampling *s = &opts->sampling;
    struct kg_grade_item *items = kg_mem_calloc(n, sizeof *items, "answers to grade",
                                                err);
    struct kg_str *own = texts ? NULL
                               : kg_mem_calloc(n, sizeof *own, "answer texts", err);
    struct kg_str *text = texts ? texts : own;
    struct kg_episode_text *episodes = kg_mem_calloc(n, sizeof *episodes,
                                                     "texts of episodes", err);
    kg_status status = KG_OK;

    if (!items || !text || !episodes) {
        status = err->code;
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        items[i].record = &prompts->data->records[prompts->record[trajs[i].prompt_index]];
        KG_TRY_GOTO(out,
                    put_item(&items[i], &text[i], &episodes[i], tok, &trajs[i], s, err));
    }
    KG_TRY_GOTO(out, kg_task_grade(grades, opts->task, opts->task_opts, items, n, err));
    for (size_t i = 0; i < n; i++) {
        trajs[i].reward = grades[i].graded ? grades[i].reward : 0.0;
        trajs[i].graded = grades[i].graded;
    }
out:
    for (size_t i = 0; own && i < n; i++)
        kg_str_release(&own[i]);
    for (size_t i = 0; episodes && i < n; i++)
        kg_episode_text_release(&episodes[i]);
    kg_mem_free(episodes);
    kg_mem_free(own);
    kg_mem_free(items);
    return status;
}

/* Mean and standard error over problems of the per-problem means of x, n answers each. */
static void mean_over_problems(double *mean, double *stderror, const double *x,
                               int64_t problems, int32_t n)
{
    double sum = 0, square = 0;

    for (int64_t p = 0; p < problems; p++) {
        double of_problem = 0;

        for (int32_t j = 0; j < n; j++)
            of_problem += x[p * n + j];
        of_problem /= n;
        sum += of_problem;
        square += of_problem * of_problem;
    }
    *mean = sum / (double)problems;
    *stderror = problems > 1 ? sqrt(fmax(0, (square - sum * sum / (double)problems) /
                                                (double)(problems - 1)) /
                                    (double)problems)
                             : 0;
}

/* Log-probs and entropy of every sampled token under one model: out arrays lie one
 * trajectory after the other. */
static kg_status score_all(float *logp, float *entropy, const struct kg_model *m,
                           const struct kg_traj *trajs, size_t n, struct kg_err *err)
{
    struct kg_score_seq *seqs = kg_mem_calloc(n, sizeof *seqs, "scored answers", err);
    size_t *from = kg_mem_calloc(n, sizeof *from, "first scored positions", err);
    struct kg_acts *acts = NULL;
    size_t longest = 1024, at = 0;
    kg_status status = KG_OK;

    if (!seqs || !from) {
        status = err->code;
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        seqs[i] = (struct kg_score_seq){.tokens = trajs[i].tokens,
                                        .n = trajs[i].n,
                                        .temperature = trajs[i].temperature,
                                        .logp = logp + at,
                                        .entropy = entropy ? entropy + at : NULL};
        from[i] = trajs[i].prompt_n;
        longest = trajs[i].n > longest ? trajs[i].n : longest;
        at += trajs[i].n;
    }
    KG_TRY_GOTO(out, kg_acts_create(&acts, m, (int64_t)longest, false, err));
    KG_TRY_GOTO(out, kg_score(m, acts, (int64_t)longest, seqs, n, 0, 0, from, err));
out:
    kg_acts_free(acts);
    kg_mem_free(seqs);
    kg_mem_free(from);
    return status;
}

/* Entropy of the policy, and the KL estimates against the reference, over all sampled
 * tokens. */
static kg_status token_statistics(struct kg_eval_result *out, const struct kg_model *m,
                                  const struct kg_model *ref, const struct kg_traj *trajs,
                                  size_t n, struct kg_err *err)
{
    size_t total = 0, at = 0, tokens = 0;
    float *logp = NULL, *entropy = NULL, *ref_logp = NULL;
    kg_status status = KG_OK;

    for (size_t i = 0; i < n; i++)
        total += trajs[i].n;
    logp = kg_mem_calloc(total, sizeof *logp, "log-probs", err);
    entropy = logp ? kg_mem_calloc(total, sizeof *entropy, "entropies", err) : NULL;
    ref_logp = entropy
                   ? kg_mem_calloc(total, sizeof *ref_logp, "reference log-probs", err)
                   : NULL;
    if (!ref_logp) {
        status = err->code;
        goto out;
    }
    KG_TRY_GOTO(out, score_all(logp, entropy, m, trajs, n, err));
    if (ref)
        KG_TRY_GOTO(out, score_all(ref_logp, NULL, ref, trajs, n, err));
    for (size_t i = 0; i < n; at += trajs[i].n, i++) {
        for (size_t t = 0; t < trajs[i].n; t++) {
            double d = (double)logp[at + t] - (double)ref_logp[at + t];

            if (trajs[i].source[t] != KG_SOURCE_MODEL)
                continue;
            tokens++;
            out->entropy += entropy[at + t];
            out->kl_k1 += ref ? d : 0;
            out->kl_k3 += ref ? d + exp(-d) - 1 : 0;
        }
    }
    out->entropy /= tokens ? (double)tokens : 1;
    out->kl_k1 /= tokens ? (double)tokens : 1;
    out->kl_k3 /= tokens ? (double)tokens : 1;
out:
    kg_mem_free(logp);
    kg_mem_free(entropy);
    kg_mem_free(ref_logp);
    return status;
}

static kg_status summarise(struct kg_eval_result *out, const struct kg_traj *trajs,
                           const struct kg_grade *grades, size_t n, int32_t samples,
                           struct kg_err *err)
{
    double *right = kg_mem_calloc(2 * n, sizeof *right, "grades", err);
    double *reward = right + n;

    if (!right)
        return err->code;
    for (size_t i = 0; i < n; i++) {
        right[i] = grades[i].graded && grades[i].correct;
        reward[i] = trajs[i].reward;
        out->response_tokens += (double)kg_traj_model_tokens(&trajs[i]) / (double)n;
        out->truncated += (trajs[i].finish == KG_FINISH_LENGTH) / (double)n;
        out->ungraded += !grades[i].graded / (double)n;
        kg_episode_add(&out->episodes, &trajs[i]);
    }
    mean_over_problems(&out->accuracy, &out->accuracy_stderr, right, out->problems,
                       samples);
    mean_over_problems(&out->reward, &out->reward_stderr, reward, out->problems, samples);
    kg_mem_free(right);
    return KG_OK;
}

/* New tokens for a prompt: the limit asked for, or what is left of the model's positions
 * (the answer then ends by its length, as `generate` ends it). */
static int32_t room(const struct kg_model *m, size_t prompt_n, int32_t limit)
{
    int64_t left = (int64_t)m->config.max_positions - (int64_t)prompt_n;

    return left < limit ? (int32_t)left : limit;
}

/* All answers to all prompts, in prompt order. */
static kg_status sample_all(struct kg_traj *trajs, const struct kg_model *m,
                            const struct kg_tokenizer *tok,
                            const struct kg_prompts *prompts,
                            const struct kg_eval_opts *opts, struct kg_err *err)
{
    struct kg_rollout_opts ro = {.max_batch = opts->max_batch,
                                 .stop_on_signal = opts->stop_on_signal,
                                 .max_len = (int32_t)prompts->longest +
                                            opts->sampling.max_tokens};
    struct kg_request *requests = kg_mem_calloc(prompts->n, sizeof *requests, "requests",
                                                err);
    struct kg_rollout *engine = NULL;
    kg_status status;

    if (!requests)
        return err->code;
    for (size_t i = 0; i < prompts->n; i++)
        requests[i] = (struct kg_request){
            .prompt = prompts->ids[i].ids,
            .prompt_n = prompts->ids[i].n,
            .prompt_index = (int64_t)i,
            .draw = i,
            .n_samples = opts->samples,
            .max_tokens = room(m, prompts->ids[i].n, opts->sampling.max_tokens)};
    kg_episodes_fit(&ro, opts->episodes);
    KG_TRY_GOTO(out, kg_rollout_create(&engine, m, tok, &ro, err));
    KG_TRY_GOTO(out, kg_episodes_run(opts->episodes, engine, trajs, requests, prompts->n,
                                     &opts->sampling, prompts, NULL, err));
out:
    kg_rollout_free(engine);
    kg_mem_free(requests);
    return status;
}

static kg_status dump_all(const struct kg_traj *trajs, const struct kg_grade *grades,
                          const struct kg_str *texts, size_t n,
                          const struct kg_prompts *prompts, kg_eval_dump_fn dump,
                          void *user, struct kg_err *err)
{
    for (size_t i = 0; dump && i < n; i++) {
        const struct kg_record *r =
            &prompts->data->records[prompts->record[trajs[i].prompt_index]];

        KG_TRY(dump(user, &trajs[i], r, &grades[i], kg_str_text(&texts[i]), err));
    }
    return KG_OK;
}

kg_status kg_eval_run(struct kg_eval_result *out, const struct kg_model *m,
                      const struct kg_tokenizer *tok, const struct kg_prompts *prompts,
                      const struct kg_eval_opts *opts, kg_eval_dump_fn dump, void *user,
                      struct kg_err *err)
{
    size_t n = prompts->n * (size_t)opts->samples;
    struct kg_traj *trajs = kg_mem_calloc(n, sizeof *trajs, "evaluated answers", err);
    struct kg_grade *grades = trajs ? kg_mem_calloc(n, sizeof *grades, "grades", err)
                                    : NULL;
    struct kg_str *texts = grades ? kg_mem_calloc(n, sizeof *texts, "answer texts", err)
                                  : NULL;
    double start = kg_clock_seconds();
    kg_status status = KG_OK;

    memset(out, 0, sizeof *out);
    out->problems = (int64_t)prompts->n;
    out->answers = (int64_t)n;
    if (!texts) {
        status = err->code;
        goto out;
    }
    KG_TRY_GOTO(out, sample_all(trajs, m, tok, prompts, opts, err));
    KG_TRY_GOTO(out, kg_eval_grade(grades, texts, trajs, n, tok, prompts, opts, err));
    KG_TRY_GOTO(out, summarise(out, trajs, grades, n, opts->samples, err));
    KG_TRY_GOTO(out, token_statistics(out, m, opts->reference, trajs, n, err));
    KG_TRY_GOTO(out, dump_all(trajs, grades, texts, n, prompts, dump, user, err));
    out->seconds = kg_clock_seconds() - start;
out:
    for (size_t i = 0; i < n && texts; i++)
        kg_str_release(&texts[i]);
    for (size_t i = 0; i < n && trajs; i++)
        kg_traj_release(&trajs[i]);
    kg_mem_free(texts);
    kg_mem_free(grades);
    kg_mem_free(trajs);
    return status;
}
