/* Sampling, the decode-and-grade step that training shares, and sums over tokens. A
 * completion is UTF-8 text before it is graded, because that is what files and servers
 * hold; so a grade does not depend on where the completion came from. The grader of an
 * episode sees which text the model wrote and which a tool. Log-probs are computed again,
 * each token in the context in which it was drawn, and summed in doubles in fixed order.
 */
#include "eval/eval.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/real.h"
#include "eval/gather.h"
#include "rollout/score.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A completion as valid UTF-8: files and servers hold no other text (see above). */
static kg_status valid_text(struct kg_str *text, const struct kg_tokenizer *tok,
                            const struct kg_traj *t, const struct kg_sampling *s,
                            struct kg_err *err)
{
    struct kg_str bytes = {0};
    kg_status status = kg_rollout_text(&bytes, tok, t, s->stops, s->n_stops, err);

    if (status == KG_OK)
        status = kg_utf8_make_valid(text, kg_str_text(&bytes), bytes.len, err);
    kg_str_release(&bytes);
    return status;
}

/* The text of a completion, and what its grader reads. For an episode, spans tell which
 * text the model wrote. */
static kg_status put_item(struct kg_grade_item *item, struct kg_str *text,
                          struct kg_episode_text *episode, const struct kg_tokenizer *tok,
                          const struct kg_traj *t, const struct kg_sampling *s,
                          struct kg_err *err)
{
    KG_TRY(valid_text(text, tok, t, s, err));
    item->response = kg_str_text(text);
    item->n = text->len;
    item->traj = t;
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
    struct kg_grade_item *items = kg_mem_calloc(n, sizeof *items, "samples to grade",
                                                err);
    struct kg_str *own = texts ? NULL
                               : kg_mem_calloc(n, sizeof *own, "sample texts", err);
    struct kg_str *text = texts ? texts : own;
    struct kg_episode_text *episodes = kg_mem_calloc(n, sizeof *episodes,
                                                     "texts of episodes", err);
    uint32_t named = 0;
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
        trajs[i].reward = kg_grade_reward(&grades[i]);
        trajs[i].graded = grades[i].graded;
        trajs[i].n_parts = grades[i].n_parts;
        memcpy(trajs[i].part, grades[i].part, sizeof trajs[i].part);
        trajs[i].further = grades[i].further;
        named |= grades[i].further.said;
    }
    for (size_t i = 0; i < n; i++)
        trajs[i].further.named = named;
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

static size_t count_parts(const struct kg_traj *trajs, size_t n)
{
    size_t parts = 0;

    for (size_t i = 0; i < n; i++)
        parts += kg_traj_n_parts(&trajs[i], false);
    return parts;
}

/* Log-probs and entropy of every sampled token under one model, in the context in which
 * it was sampled; the parts of a trajectory follow each other in the arrays.   rows:
 * borrowed; if NULL or too narrow, own rows are made */
static kg_status score_all(float *logp, float *entropy, const struct kg_model *m,
                           struct kg_rows *rows, const struct kg_traj *trajs, size_t n,
                           struct kg_err *err)
{
    size_t parts = count_parts(trajs, n), longest = 0, at = 0, to = 0;
    struct kg_score_seq *seqs = kg_mem_calloc(parts, sizeof *seqs, "scored samples", err);
    struct kg_rows *own = NULL;
    kg_status status;

    if (!seqs)
        return err->code;
    for (size_t i = 0; i < n; i++)
        for (size_t x = 0; x < kg_traj_n_parts(&trajs[i], false); x++, to++) {
            struct kg_traj_part p = kg_traj_part(&trajs[i], x, false);
            size_t length = p.end - p.from;

            seqs[to] = (struct kg_score_seq){.tokens = trajs[i].tokens + p.from,
                                             .n = length,
                                             .from = p.begin - p.from,
                                             .temperature = trajs[i].temperature,
                                             .logp = logp + at,
                                             .entropy = entropy ? entropy + at : NULL};
            longest = length > longest ? length : longest;
            at += length;
        }
    if (!rows || (int64_t)longest > rows->max_tokens) {
        struct kg_rows_opts room = {
            .max_tokens = longest > 1024 ? (int64_t)longest : 1024, .share = true};

        KG_TRY_GOTO(out, kg_rows_create(&own, m, &room, err));
        rows = own;
    }
    status = kg_score(rows, m, seqs, parts, 0, 0, err);
out:
    kg_rows_free(own);
    kg_mem_free(seqs);
    return status;
}

/* Sums over the sampled tokens of a part; the arrays begin with that part. */
static void sum_tokens(struct kg_eval_answer *a, const struct kg_traj *t,
                       struct kg_traj_part p, const float *logp, const float *entropy,
                       const float *ref_logp)
{
    for (size_t j = p.begin; j < p.end; j++) {
        size_t i = j - p.from;
        double d = ref_logp ? (double)logp[i] - (double)ref_logp[i] : 0;

        if (t->source[j] != KG_SOURCE_MODEL)
            continue;
        a->entropy += entropy[i];
        a->kl_k1 += d;
        a->kl_k3 += d + kg_exp(-d) - 1;
    }
}

/* returns how many values of the arrays belong to t */
static size_t sum_traj(struct kg_eval_answer *a, const struct kg_traj *t,
                       const float *logp, const float *entropy, const float *ref_logp)
{
    size_t at = 0;

    a->scored = true;
    a->entropy = a->kl_k1 = a->kl_k3 = 0;
    for (size_t x = 0; x < kg_traj_n_parts(t, false); x++) {
        struct kg_traj_part p = kg_traj_part(t, x, false);

        sum_tokens(a, t, p, logp + at, entropy + at, ref_logp ? ref_logp + at : NULL);
        at += p.end - p.from;
    }
    return at;
}

kg_status kg_eval_token_sums(struct kg_eval_answer *answers, const struct kg_model *m,
                             const struct kg_model *reference, struct kg_rows *rows,
                             const struct kg_traj *trajs, size_t n, struct kg_err *err)
{
    size_t total = 0, at = 0;
    float *logp = NULL, *entropy = NULL, *ref_logp = NULL;
    kg_status status = KG_OK;

    for (size_t i = 0; i < n; i++)
        total += kg_traj_span(&trajs[i], false);
    logp = kg_mem_calloc(total, sizeof *logp, "log-probs", err);
    entropy = logp ? kg_mem_calloc(total, sizeof *entropy, "entropies", err) : NULL;
    ref_logp = entropy
                   ? kg_mem_calloc(total, sizeof *ref_logp, "reference log-probs", err)
                   : NULL;
    if (!ref_logp) {
        status = err->code;
        goto out;
    }
    KG_TRY_GOTO(out, score_all(logp, entropy, m, rows, trajs, n, err));
    if (reference)
        KG_TRY_GOTO(out, score_all(ref_logp, NULL, reference, NULL, trajs, n, err));
    for (size_t i = 0; i < n; i++)
        at += sum_traj(&answers[i], &trajs[i], logp + at, entropy + at,
                       reference ? ref_logp + at : NULL);
out:
    kg_mem_free(logp);
    kg_mem_free(entropy);
    kg_mem_free(ref_logp);
    return status;
}

void kg_eval_result_fill(struct kg_eval_result *out, const struct kg_eval_score *score,
                         const struct kg_eval_answer *answers, size_t n)
{
    const struct {
        const char *name;
        double *value;
        double *stderror;
    } rows[] = {{"accuracy", &out->accuracy, &out->accuracy_stderr},
                {"reward", &out->reward, &out->reward_stderr},
                {"tokens", &out->response_tokens, NULL},
                {"truncated", &out->truncated, NULL},
                {"undecided", &out->ungraded, NULL}};
    double tokens = 0;

    *out = (struct kg_eval_result){.problems = score->problems, .answers = (int64_t)n};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct kg_eval_metric *m = kg_eval_metric_find(score, rows[i].name);

        *rows[i].value = m->value;
        if (rows[i].stderror)
            *rows[i].stderror = m->stderror;
    }
    for (size_t i = 0; i < n; i++) {
        tokens += (double)answers[i].tokens;
        out->entropy += answers[i].entropy;
        out->kl_k1 += answers[i].kl_k1;
        out->kl_k3 += answers[i].kl_k3;
    }
    out->entropy /= tokens > 0 ? tokens : 1;
    out->kl_k1 /= tokens > 0 ? tokens : 1;
    out->kl_k3 /= tokens > 0 ? tokens : 1;
}

/* ---- sampling ---- */

uint64_t kg_eval_seed(uint64_t seed, const char *set, int64_t problem, int32_t sample)
{
    char text[128];
    int n = snprintf(text, sizeof text, "%llu %lld %.64s", (unsigned long long)seed,
                     (long long)problem, set);
    uint64_t draw = kg_hash_bytes(text, (size_t)n) >> 24;

    return draw * KG_SEED_SAMPLES + (uint64_t)sample;
}

/* New tokens for a prompt: the limit, or the model's remaining positions if they are
 * fewer. As in `generate`, the completion then ends with finish reason length. */
static int32_t room(const struct kg_model *m, size_t prompt_n, int32_t limit)
{
    int64_t left = (int64_t)m->config.max_positions - (int64_t)prompt_n;

    return left < limit ? (int32_t)left : limit;
}

struct kg_rollout_opts kg_eval_rollout_opts(const struct kg_model *m,
                                            const struct kg_prompts *prompts,
                                            const struct kg_eval_opts *opts)
{
    int64_t longest = (int64_t)prompts->longest + opts->sampling.max_tokens;
    int32_t positions = m->config.max_positions;

    return (struct kg_rollout_opts){.max_batch = opts->max_batch,
                                    .stop_on_signal = opts->stop_on_signal,
                                    .max_len = longest < positions ? (int32_t)longest
                                                                   : positions};
}

struct kg_sampling kg_eval_sampling(const struct kg_eval_opts *opts)
{
    struct kg_sampling s = opts->sampling;

    s.rng = kg_seed_key();
    return s;
}

/* Line numbers count from each file's start, so each of several files is a set. */
static const char *set_of(char text[96], const struct kg_prompts *prompts, size_t i,
                          const struct kg_eval_opts *opts)
{
    const struct kg_dataset *d = prompts->data;
    const char *set = opts->set ? opts->set : KG_EVAL_SET;
    size_t file = 0;

    while (file < d->n_files && (size_t)prompts->record[i] >= d->files[file].end)
        file++;
    snprintf(text, 96, file > 0 ? "%.48s %zu" : "%.64s", set, file + 1);
    return text;
}

struct kg_request kg_eval_request(const struct kg_model *m,
                                  const struct kg_prompts *prompts, size_t i,
                                  int32_t first, int32_t n,
                                  const struct kg_eval_opts *opts)
{
    const struct kg_ids *ids = &prompts->ids[i];
    char set[96];
    uint64_t seed = kg_eval_seed(opts->sampling.rng.seed, set_of(set, prompts, i, opts),
                                 prompts->data->records[prompts->record[i]].line, first);

    return (struct kg_request){
        .prompt = ids->ids,
        .prompt_n = ids->n,
        .prompt_index = (int64_t)i,
        .draw = kg_seed_draw(seed),
        .first_sample = kg_seed_sample(seed),
        .n_samples = n,
        .max_tokens = room(m, ids->n, opts->sampling.max_tokens),
    };
}

/* ---- one set as a whole ---- */

struct work {
    struct kg_traj *trajs; /* (n) owned, as the next three */
    struct kg_grade *grades;
    struct kg_eval_answer *answers;
    struct kg_str *texts;
    size_t n;
};

static kg_status work_init(struct work *w, size_t n, struct kg_err *err)
{
    *w = (struct work){.n = n};
    w->trajs = kg_mem_calloc(n, sizeof *w->trajs, "evaluated samples", err);
    w->grades = w->trajs ? kg_mem_calloc(n, sizeof *w->grades, "grades", err) : NULL;
    w->answers = w->grades ? kg_mem_calloc(n, sizeof *w->answers, "grades", err) : NULL;
    w->texts = w->answers ? kg_mem_calloc(n, sizeof *w->texts, "sample texts", err)
                          : NULL;
    return w->texts ? KG_OK : err->code;
}

static void work_release(struct work *w)
{
    for (size_t i = 0; i < w->n && w->trajs; i++)
        kg_traj_release(&w->trajs[i]);
    for (size_t i = 0; i < w->n && w->texts; i++)
        kg_str_release(&w->texts[i]);
    kg_mem_free(w->texts);
    kg_mem_free(w->answers);
    kg_mem_free(w->grades);
    kg_mem_free(w->trajs);
}

/* Makes the requests of all samples, and finds this rank's share. */
static kg_status ask(struct kg_request **requests, struct kg_share *mine,
                     const struct kg_model *m, const struct kg_prompts *prompts,
                     const struct kg_eval_opts *opts, const struct kg_ranks *ranks,
                     struct kg_err *err)
{
    KG_TRY(kg_mem_new(requests, prompts->n, sizeof **requests, "requests", err));
    for (size_t i = 0; i < prompts->n; i++)
        (*requests)[i] = kg_eval_request(m, prompts, i, 0, opts->samples, opts);
    *mine = kg_eval_share(*requests, prompts->n, ranks);
    return KG_OK;
}

/* requests: (n) of all samples in; of this rank's share out */
static kg_status sample_share(struct kg_traj *trajs, const struct kg_model *m,
                              const struct kg_tokenizer *tok,
                              const struct kg_prompts *prompts,
                              const struct kg_eval_opts *opts,
                              struct kg_request *requests, struct kg_share mine,
                              struct kg_err *err)
{
    size_t n = kg_eval_cut_requests(requests, requests, prompts->n, mine);
    struct kg_rollout_opts ro = kg_eval_rollout_opts(m, prompts, opts);
    struct kg_sampling sampling = kg_eval_sampling(opts);
    struct kg_rollout *engine = NULL;
    kg_status status;

    kg_episodes_fit(&ro, opts->episodes);
    KG_TRY(kg_rollout_create(&engine, m, tok, &ro, err));
    status = kg_episodes_run(opts->episodes, engine, trajs, requests, n, &sampling,
                             prompts, NULL, err);
    kg_rollout_free(engine);
    return status;
}

/* Samples, grades and scores this rank's share. */
static kg_status make_share(struct work *w, const struct kg_model *m,
                            const struct kg_tokenizer *tok,
                            const struct kg_prompts *prompts,
                            const struct kg_eval_opts *opts, struct kg_request *requests,
                            struct kg_share mine, struct kg_err *err)
{
    struct kg_traj *trajs = w->trajs + mine.first;
    size_t n = (size_t)(mine.end - mine.first);

    if (n == 0)
        return KG_OK;
    KG_TRY(sample_share(trajs, m, tok, prompts, opts, requests, mine, err));
    KG_TRY(kg_eval_grade(w->grades + mine.first, w->texts + mine.first, trajs, n, tok,
                         prompts, opts, err));
    return kg_eval_token_sums(w->answers + mine.first, m, opts->reference, opts->rows,
                              trajs, n, err);
}

static kg_status make_all(struct work *w, const struct kg_model *m,
                          const struct kg_tokenizer *tok,
                          const struct kg_prompts *prompts,
                          const struct kg_eval_opts *opts, struct kg_err *err)
{
    struct kg_ranks alone = {0}, *ranks = opts->ranks ? opts->ranks : &alone;
    struct kg_eval_items items = {w->trajs, w->grades, w->texts, w->answers, w->n};
    struct kg_request *requests = NULL;
    struct kg_share mine = {0};
    kg_status status = ask(&requests, &mine, m, prompts, opts, ranks, err);

    if (status == KG_OK)
        status = make_share(w, m, tok, prompts, opts, requests, mine, err);
    kg_mem_free(requests);
    KG_TRY(kg_ranks_agree(ranks, status, "evaluation", err));
    return kg_eval_gather(&items, mine, opts->task_opts->further, ranks, err);
}

static kg_status dump_all(const struct work *w, const struct kg_prompts *prompts,
                          kg_eval_dump_fn dump, void *user, struct kg_err *err)
{
    for (size_t i = 0; dump && i < w->n; i++) {
        const struct kg_record *r =
            &prompts->data->records[prompts->record[w->trajs[i].prompt_index]];

        KG_TRY(dump(user, &w->trajs[i], r, &w->grades[i], &w->texts[i], err));
    }
    return KG_OK;
}

kg_status kg_eval_run(struct kg_eval_result *out, const struct kg_model *m,
                      const struct kg_tokenizer *tok, const struct kg_prompts *prompts,
                      const struct kg_eval_opts *opts, kg_eval_dump_fn dump, void *user,
                      struct kg_err *err)
{
    const struct kg_eval_ks ks = {.n_pass = 0};
    struct kg_eval_score score = {0};
    double start = kg_clock_seconds();
    struct work w;
    kg_status status;

    memset(out, 0, sizeof *out);
    KG_TRY_GOTO(out, work_init(&w, prompts->n * (size_t)opts->samples, err));
    KG_TRY_GOTO(out, make_all(&w, m, tok, prompts, opts, err));
    for (size_t i = 0; i < w.n; i++) {
        w.answers[i].there = true;
        w.answers[i].grade = w.grades[i];
        w.answers[i].finish = w.trajs[i].finish;
        w.answers[i].tokens = (int64_t)kg_traj_model_tokens(&w.trajs[i]);
    }
    KG_TRY_GOTO(out, kg_eval_score_init(&score, w.answers, NULL, (int64_t)prompts->n,
                                        opts->samples, &ks, err));
    KG_TRY_GOTO(out, dump_all(&w, prompts, dump, user, err));
    kg_eval_result_fill(out, &score, w.answers, w.n);
    for (size_t i = 0; i < w.n; i++)
        kg_episode_add(&out->episodes, &w.trajs[i]);
    out->seconds = kg_clock_seconds() - start;
out:
    kg_eval_score_release(&score);
    work_release(&w);
    return status;
}
