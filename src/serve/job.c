/* One request from its bytes to its response.
 *
 * A job belongs to one thread at a time: the network thread passes it on when its bytes
 * are complete, the intake when it is tokens, and the model's thread keeps it to the end.
 * So it needs no lock; the counters, which all jobs share, have one. A job may fail
 * anywhere: before the status line is sent, the client gets a response with an error
 * status; after it, an event in the stream; if the client has left, nothing. Other jobs
 * of the batch continue. Each choice has its own draws, so it does not depend on how many
 * choices there are.
 */
#include "serve/serve_internal.h"

#include "base/clock.h"
#include "base/mem.h"
#include "net/http_server.h"
#include "rollout/sampler.h"
#include "serve/policy_internal.h"

#include <stdio.h>

/* bytes of max_held_bytes that one kept id and one expert account for */
enum { BYTES_OF_KEPT = 64, BYTES_OF_ROUTED = 16 };

/* ---- life ---- */

struct kg_serve_job *kg_serve_job_create(struct kg_serve *s, struct kg_http_exchange *x,
                                         enum kg_api_kind kind)
{
    struct kg_err err;
    struct kg_serve_job *job = kg_mem_calloc(1, sizeof *job, "request", &err);
    if (job == NULL)
        return NULL;
    job->s = s;
    job->x = x;
    job->r.kind = kind;
    job->received = kg_clock_seconds();
    if (s->opts.policy)
        (void)kg_policy_path(job->episode_id, kg_http_path(x));
    return job;
}

/* The caller has ended the exchange. */
static void job_free(struct kg_serve_job *job)
{
    struct kg_serve *s = job->s;
    if (job->episode)
        kg_policy_leave(job);
    for (size_t i = 0; i < job->n_choices; i++) {
        kg_traj_release(&job->trajs[i]);
        kg_serve_text_release(&job->choices[i].text);
        kg_str_release(&job->choices[i].said);
        kg_tool_calls_release(&job->choices[i].calls);
    }
    kg_mem_free(job->trajs);
    kg_mem_free(job->choices);
    kg_mem_free(job->groups);
    kg_api_release(&job->r);
    kg_mem_free(job);
    pthread_mutex_lock(&s->lock);
    s->metrics.open--;
    pthread_mutex_unlock(&s->lock);
}

static void count(struct kg_serve *s, int64_t *counter)
{
    pthread_mutex_lock(&s->lock);
    ++*counter;
    pthread_mutex_unlock(&s->lock);
}

static void count_answer(struct kg_serve_job *job, int status)
{
    struct kg_serve *s = job->s;
    pthread_mutex_lock(&s->lock);
    kg_serve_metrics_count_answer(&s->metrics, job->r.kind, status);
    if (status == 200 && kg_api_is_answered(job->r.kind))
        kg_serve_metrics_observe(&s->metrics.request, kg_clock_seconds() - job->received);
    pthread_mutex_unlock(&s->lock);
}

void kg_serve_job_refuse(struct kg_serve_job *job, const struct kg_api_fault *fault,
                         const char *message)
{
    struct kg_err err;
    struct kg_str body = {0};
    count_answer(job, fault->status);
    if (kg_api_put_error(&body, fault, message, &err) != KG_OK)
        kg_str_clear(&body);
    kg_http_reply(job->x, fault->status, "application/json", kg_str_text(&body),
                  body.len);
    kg_str_release(&body);
    job_free(job);
}

/* Only a completion that is sent becomes a turn: the program cannot act on any other. It
 * is kept before it is sent, because the next turn may follow at once. */
static kg_status keep_as_turn(struct kg_serve_job *job, struct kg_err *err)
{
    return job->episode ? kg_policy_keep(job->s->opts.policy, job, &job->trajs[0], err)
                        : KG_OK;
}

/* Sends a whole response, or refuses the request if its body has no room. The outcome is
 * counted before it is sent, so the client finds it in the metrics. */
static kg_status answer_whole(struct kg_serve_job *job, const struct kg_str *body,
                              struct kg_err *err)
{
    const struct kg_api_fault full = {.status = 503};
    if (!kg_http_reserve(job->x, body->len)) {
        kg_serve_job_refuse(
            job, &full,
            "unread responses take all the memory reserved for them: try again later");
        return KG_OK;
    }
    kg_status status = keep_as_turn(job, err);
    count_answer(job, 200);
    kg_http_reply(job->x, 200, "application/json", kg_str_text(body), body->len);
    job_free(job);
    return status;
}

void kg_serve_job_answer_tokens(struct kg_serve_job *job)
{
    struct kg_err err;
    struct kg_str body = {0};
    if (kg_api_put_tokens(&body, &job->r, job->answer.m, &err) != KG_OK) {
        const struct kg_api_fault fault = {.status = 503};
        kg_str_release(&body);
        kg_serve_job_refuse(job, &fault, err.message);
        return;
    }
    (void)answer_whole(job, &body, &err); /* not a turn of a session */
    kg_str_release(&body);
}

/* ---- preparing ---- */

/* Choice i, counted over all prompts, has seed + i. A prompt is one group, or two if the
 * seeds span two draws; the first group also scores the prompt. */
static void plan_prompt(struct kg_serve_job *job, size_t prompt)
{
    const struct kg_api_prompt *p = &job->r.prompts[prompt];
    int32_t left = (int32_t)job->r.n;
    uint64_t seed = job->answer.seed + prompt * (uint64_t)job->r.n;
    while (left > 0) {
        int32_t sample = kg_seed_sample(seed);
        int32_t room = KG_SEED_SAMPLES - sample;
        int32_t n = left < room ? left : room;
        job->groups[job->n_groups++] = (struct kg_serve_group){
            .q = {.prompt = p->ids.ids,
                  .prompt_n = p->ids.n,
                  .prompt_index = (int64_t)prompt,
                  .draw = kg_seed_draw(seed),
                  .n_samples = n,
                  .max_tokens = job->r.max_tokens > 0 ? (int32_t)job->r.max_tokens
                                                      : KG_PROMPT_ONLY,
                  .first_sample = sample,
                  .sampling = &job->sampling,
                  .adapter = job->answer.m->adapter,
                  .scores = left == job->r.n && p->scores.logp ? &p->scores : NULL},
            .job = job};
        seed += (uint64_t)n;
        left -= n;
    }
}

static kg_status plan(struct kg_serve_job *job, struct kg_err *err)
{
    const struct kg_api_request *r = &job->r;
    size_t n = r->n_prompts * (size_t)r->n;
    struct kg_sampling *s = &job->sampling;
    *s = r->sampling;
    s->max_tokens = 1; /* each group has its own */
    s->ignore_eos = r->ignore_eos;
    s->stops = r->stops;
    s->n_stops = r->n_stops;
    s->stop_ids = r->stop_ids;
    s->n_stop_ids = r->n_stop_ids;
    s->record_top_k = kg_api_records(r);
    s->rng = kg_seed_key();
    job->adjust = (struct kg_adjust){.bias = r->bias_ids,
                                     .n_bias = r->n_bias,
                                     .repetition = (float)r->repetition,
                                     .presence = (float)r->presence,
                                     .frequency = (float)r->frequency};
    if (r->n_bias > 0 || r->repetition != 1 || r->presence != 0 || r->frequency != 0)
        job->sampling.adjust = &job->adjust;
    /* a stream has no masks: it sends token by token */
    job->sampling.record_kept = r->kind == KG_API_GENERATE && !r->stream &&
                                !job->sampling.adjust &&
                                kg_sampler_truncates(&job->sampling,
                                                     job->answer.m->vocab);
    job->sampling.record_experts = job->answer.m->routed && !r->stream;
    job->groups = kg_mem_calloc(2 * r->n_prompts, sizeof *job->groups, "request", err);
    job->trajs = kg_mem_calloc(n, sizeof *job->trajs, "request", err);
    job->choices = kg_mem_calloc(n, sizeof *job->choices, "request", err);
    if (job->groups == NULL || job->trajs == NULL || job->choices == NULL)
        return err->code;
    job->n_choices = job->left = n;
    for (size_t i = 0; i < n; i++)
        job->choices[i].text.special = r->specials;
    for (size_t i = 0; i < r->n_prompts; i++)
        plan_prompt(job, i);
    return KG_OK;
}

/* Without a seed, every request gets another one; the response tells it. */
static void name_answer(struct kg_serve_job *job)
{
    struct kg_serve *s = job->s;
    uint32_t words[4];
    pthread_mutex_lock(&s->lock);
    uint64_t number = s->n_taken++;
    pthread_mutex_unlock(&s->lock);
    struct kg_rng_key key = {.seed = s->opts.seed, .stream = KG_RNG_EVAL};
    kg_rng_words(words, key, number, UINT32_MAX, 0);
    job->answer = (struct kg_api_answer){
        .r = &job->r,
        .m = job->answer.m,
        .created = (int64_t)kg_clock_unix_seconds(),
        .seedless = s->opts.policy != NULL,
        /* below 2^53, so every JSON reader keeps it exactly */
        .seed = job->r.seeded ? job->r.seed : (uint64_t)words[0] << 21 | words[1] >> 11};
    static const char *const names[] = {"cmpl", "chatcmpl", "generate"};
    snprintf(job->answer.id, sizeof job->answer.id, "%s-%s%llx", names[job->r.kind],
             s->prefix, (unsigned long long)number);
}

static kg_status find_model(struct kg_serve_job *job, struct kg_api_fault *fault,
                            struct kg_err *err)
{
    const struct kg_serve *s = job->s;
    const kg_status status = kg_api_find(&job->answer.m, s->models, s->n_models,
                                         job->r.model, err);
    *fault = status == KG_ENOTFOUND
                 ? (struct kg_api_fault){404, "model", "model_not_found"}
                 : (struct kg_api_fault){.status = 503};
    return status;
}

kg_status kg_serve_job_prepare(struct kg_serve_job *job, struct kg_api_fault *fault,
                               struct kg_err *err)
{
    size_t n;
    enum kg_api_kind kind = job->r.kind;
    const char *body = kg_http_body(job->x, &n);
    KG_TRY(kg_api_parse(&job->r, fault, kind, body, n, err));
    KG_TRY(find_model(job, fault, err));
    if (kind == KG_API_CHAT && job->s->opts.policy)
        job->r.turn.session = job->episode_id;
    else if (kind == KG_API_CHAT && !job->r.turn.session)
        job->r.turn.session = kg_http_header(job->x, "X-Session-ID");
    if (job->r.turn.session && job->r.turn.session[0] == '\0')
        job->r.turn.session = NULL; /* clients without a session send an empty id */
    KG_TRY(kg_api_encode(&job->r, fault, job->answer.m, err));
    if (!kg_api_is_answered(kind))
        return KG_OK;
    name_answer(job);
    return plan(job, err);
}

static int64_t prompt_tokens(const struct kg_serve_job *job)
{
    int64_t n = 0;
    for (size_t i = 0; i < job->r.n_prompts; i++)
        n += (int64_t)job->r.prompts[i].ids.n;
    return n;
}

kg_status kg_serve_job_submit(struct kg_serve_job *job, struct kg_err *err)
{
    struct kg_serve *s = job->s;
    struct kg_traj *t = job->trajs;
    for (size_t i = 0; i < job->n_groups; i++) {
        const struct kg_request *q = &job->groups[i].q;
        if (kg_rollout_submit(s->engine, q, t, err) != KG_OK) {
            kg_rollout_cancel(s->engine, job->trajs, job->n_choices);
            return err->code;
        }
        t += q->n_samples;
    }
    pthread_mutex_lock(&s->lock);
    s->metrics.prompt_tokens += prompt_tokens(job);
    kg_serve_metrics_observe(&s->metrics.queued, kg_clock_seconds() - job->received);
    pthread_mutex_unlock(&s->lock);
    return KG_OK;
}

/* ---- pieces of a stream ---- */

/* Events are built in the scratch buffer of the model's thread. */
static kg_status begin_event(struct kg_serve_job *job, struct kg_err *err)
{
    kg_str_clear(&job->s->scratch);
    return kg_str_puts(&job->s->scratch, "data: ", err);
}

static kg_status send_event(struct kg_serve_job *job, struct kg_err *err)
{
    struct kg_str *out = &job->s->scratch;
    KG_TRY(kg_str_puts(out, "\n\n", err));
    if (!job->streaming)
        kg_http_stream_begin(job->x, 200, "text/event-stream; charset=utf-8");
    job->streaming = true;
    kg_status status = kg_http_stream_write(job->x, out->data, out->len, err);
    if (status != KG_OK) /* the client has left, or does not read */
        kg_serve_job_leave(job);
    return status;
}

static struct kg_api_choice describe(struct kg_serve_job *job, size_t index)
{
    const struct kg_traj *t = &job->trajs[index];
    const struct kg_api_prompt *prompt = &job->r.prompts[index / (size_t)job->r.n];
    struct kg_serve_choice *choice = &job->choices[index];
    return (struct kg_api_choice){
        .index = (int)index,
        .first = !choice->begun,
        .t = t,
        .from = choice->told,
        .to = t->n,
        .prompt = !choice->begun && job->r.echo && prompt->scores.logp ? prompt : NULL,
        .offset = &choice->offset};
}

/* Adds the echoed prompt in front of the first piece. */
static kg_status begin_choice(struct kg_str *text, struct kg_serve_job *job, size_t index,
                              struct kg_err *err)
{
    struct kg_serve_choice *choice = &job->choices[index];
    const struct kg_str *prompt = &job->r.prompts[index / (size_t)job->r.n].text;
    if (choice->told > 0)
        return KG_OK;
    choice->told = job->trajs[index].prompt_n;
    kg_api_offset_add(&choice->offset, kg_str_text(prompt), prompt->len);
    return kg_str_append(text, kg_str_text(prompt), prompt->len, err);
}

/* Sends one piece: text up to `end`, tokens since the last piece, calls and finish reason
 * if they are known. */
static kg_status tell_piece(struct kg_serve_job *job, size_t index, size_t end,
                            const struct kg_tool_calls *calls, enum kg_finish finish,
                            struct kg_err *err)
{
    struct kg_str *out = &job->s->scratch;
    struct kg_serve_choice *choice = &job->choices[index];
    struct kg_api_choice c = describe(job, index);
    c.text = kg_str_text(&choice->said) + choice->told_n;
    c.text_n = end - choice->told_n;
    c.calls = calls;
    c.finish = finish;
    KG_TRY(begin_event(job, err));
    KG_TRY(kg_api_put_begin(out, &job->answer, true, c.first, err));
    KG_TRY(kg_api_put_choice(out, &job->answer, true, &c, err));
    KG_TRY(kg_api_put_end(out, &job->answer, true, NULL, err));
    choice->begun = true;
    choice->told = c.to;
    choice->told_n = end;
    return send_event(job, err);
}

/* GENERATE answers with ids, and with text only if the request asks for it. */
static bool has_text(const struct kg_serve_job *job)
{
    return job->s->opts.tok && (job->r.kind != KG_API_GENERATE || job->r.texts);
}

/* The first piece is sent at once; later pieces wait for piece_seconds. */
static bool is_due(const struct kg_serve_job *job, const struct kg_serve_choice *choice,
                   size_t text_n)
{
    double gap = job->s->opts.piece_seconds;
    if (!choice->begun)
        return true;
    if (text_n == 0 && !job->r.logprobs && !job->r.token_ids && has_text(job))
        return false;
    return gap == 0 || kg_clock_seconds() - choice->last >= gap;
}

/* Number of tokens whose text is sent: not a final token of stop_token_ids, nor, if the
 * request asks for special tokens, the final end token. */
static size_t texted(const struct kg_serve_job *job, const struct kg_traj *t)
{
    if (t->finish == KG_FINISH_STOP && job->r.specials)
        return t->n - 1;
    if (t->finish == KG_FINISH_STOP)
        for (size_t i = 0; i < job->r.n_stop_ids; i++)
            if (job->r.stop_ids[i] == t->tokens[t->n - 1])
                return t->n - 1;
    return t->n;
}

static kg_status tell_token(struct kg_serve_job *job, size_t index, struct kg_err *err)
{
    const struct kg_traj *t = &job->trajs[index];
    const struct kg_tokenizer *tok = job->s->opts.tok;
    struct kg_serve_choice *choice = &job->choices[index];
    struct kg_str *said = &choice->said;
    KG_TRY(begin_choice(said, job, index, err));
    if (has_text(job) && texted(job, t) == t->n)
        KG_TRY(kg_serve_text_add(said, &choice->text, tok, t->tokens[t->n - 1],
                                 job->r.stops, job->r.n_stops, err));
    if (job->r.reads_calls) /* text that may become a call is held back */
        KG_TRY(kg_tool_calls_read(&choice->calls, kg_str_text(said), said->len, err));
    size_t end = job->r.reads_calls ? choice->calls.content_n : said->len;
    if (!is_due(job, choice, end - choice->told_n))
        return KG_OK;
    choice->last = kg_clock_seconds();
    return tell_piece(job, index, end, NULL, KG_FINISH_NONE, err);
}

/* The remaining text is sent in a piece before the one with the finish reason: some
 * clients read no content there, because OpenAI's has none. */
static kg_status tell_end(struct kg_serve_job *job, size_t index, struct kg_err *err)
{
    struct kg_serve_choice *choice = &job->choices[index];
    struct kg_str *said = &choice->said;
    enum kg_finish finish = job->trajs[index].finish;
    KG_TRY(begin_choice(said, job, index, err));
    KG_TRY(kg_serve_text_end(said, &choice->text, job->r.stops, job->r.n_stops, finish,
                             err));
    if (job->r.reads_calls)
        KG_TRY(kg_tool_calls_end(&choice->calls, kg_str_text(said), said->len, err));
    size_t end = job->r.reads_calls ? choice->calls.content_n : said->len;
    if (job->r.kind != KG_API_GENERATE && (end > choice->told_n || choice->calls.n > 0))
        KG_TRY(tell_piece(job, index, end, &choice->calls, KG_FINISH_NONE, err));
    return tell_piece(job, index, end, &choice->calls, finish, err);
}

static struct kg_serve_job *job_of(const struct kg_request *q)
{
    /* q is the first member of a group */
    return ((const struct kg_serve_group *)(const void *)q)->job;
}

static void note_first(struct kg_serve_job *job)
{
    struct kg_serve *s = job->s;
    job->first = kg_clock_seconds();
    pthread_mutex_lock(&s->lock);
    kg_serve_metrics_observe(&s->metrics.first_token, job->first - job->received);
    pthread_mutex_unlock(&s->lock);
}

/* Truncation may keep nearly the whole vocabulary at every token, and the kept ids are
 * held until the response is written. So a request fails before it fills the memory. */
static kg_status count_kept(struct kg_serve_job *job, const struct kg_traj *t,
                            struct kg_err *err)
{
    const int64_t most = (int64_t)(job->s->opts.max_held_bytes / BYTES_OF_KEPT);
    if (!job->sampling.record_kept || job->s->opts.policy)
        return KG_OK;
    bool cut = t->kept_n && t->kept_n[t->n - 1] > 0;
    job->kept += cut ? t->kept_n[t->n - 1] : job->answer.m->vocab;
    if (job->kept <= most)
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "sampling_mask: expected at most %lld ids kept by truncation, over "
                   "all tokens of a request, found more: set top_k, lower max_tokens, "
                   "sample without truncation, or raise --max-held",
                   (long long)most);
}

/* A similar limit for experts: long prompts and completions of deep models have many. */
static kg_status count_routed(struct kg_serve_job *job, const struct kg_traj *t,
                              struct kg_err *err)
{
    const int64_t most = (int64_t)(job->s->opts.max_held_bytes / BYTES_OF_ROUTED);
    job->routed += (int64_t)(t->n == t->prompt_n + 1 ? t->n : 1) * t->choices;
    if (job->routed <= most)
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "routed_experts: expected at most %lld experts (tokens x layers x "
                   "experts of a token) in the answers of a request, found more: lower n "
                   "or max_tokens, or raise --max-held",
                   (long long)most);
}

kg_status kg_serve_on_token(void *user, const struct kg_request *q,
                            const struct kg_traj *t, struct kg_err *err)
{
    struct kg_serve *s = user;
    struct kg_serve_job *job = job_of(q);
    struct kg_err failure; /* of this request: others continue */
    (void)err;
    s->fresh++;
    if (job->first == 0)
        note_first(job);
    if (count_kept(job, t, &failure) != KG_OK || count_routed(job, t, &failure) != KG_OK)
        kg_serve_job_fail(job, &failure);
    if (job->r.stream && job->end == KG_SERVE_WELL &&
        tell_token(job, (size_t)(t - job->trajs), &failure) != KG_OK)
        kg_serve_job_fail(job, &failure);
    return KG_OK;
}

static kg_status keep_text(struct kg_serve_job *job, const struct kg_traj *t,
                           struct kg_str *text, struct kg_err *err)
{
    const struct kg_session_turn *turn = &job->r.turn;
    const struct kg_tokenizer *tok = job->s->opts.tok;
    const int32_t *last = &t->tokens[t->n - 1];
    const bool special = kg_tokenizer_is_special(tok, *last);
    KG_TRY(kg_str_append(text, kg_str_text(&turn->text), turn->text.len, err));
    KG_TRY(kg_tokenizer_decode(text, tok, t->tokens + t->prompt_n, t->n - t->prompt_n - 1,
                               false, err));
    const size_t before = text->len;
    KG_TRY(kg_tokenizer_decode(text, tok, last, 1, false, err));
    const struct kg_session_answer a = {.ids = t->tokens,
                                        .n = t->n,
                                        .text = kg_str_text(text),
                                        .text_n = text->len,
                                        .answer_n = text->len - turn->text.len,
                                        .end_n = special ? text->len - before : 0};
    return kg_sessions_keep(job->s->sessions, turn, &a, err);
}

/* Called before the client learns that the completion has ended: its next turn may follow
 * at once. If keeping fails, the next turn tokenises this one as a new branch. */
static void keep_turn(struct kg_serve_job *job, const struct kg_traj *t)
{
    struct kg_str text = {0};
    struct kg_err err;
    if (job->r.turn.session && keep_text(job, t, &text, &err) != KG_OK)
        count(job->s, &job->s->metrics.out_of_memory);
    kg_str_release(&text);
}

kg_status kg_serve_on_finished(void *user, const struct kg_request *q, struct kg_traj *t,
                               const struct kg_err *failure, struct kg_err *err)
{
    struct kg_serve_job *job = job_of(q);
    struct kg_err untold;
    (void)user;
    job->left--;
    if (job->episode && failure) { /* ends the rollout, as any failure in training */
        *err = *failure;
        return failure->code;
    }
    if (!failure)
        keep_turn(job, t);
    if (failure)
        kg_serve_job_fail(job, failure);
    else if (job->r.stream && job->end == KG_SERVE_WELL &&
             tell_end(job, (size_t)(t - job->trajs), &untold) != KG_OK)
        kg_serve_job_fail(job, &untold);
    return KG_OK;
}

/* ---- ends of a request ---- */

static struct kg_api_usage usage_of(const struct kg_serve_job *job)
{
    struct kg_api_usage u = {.prompt_tokens = prompt_tokens(job)};
    for (size_t i = 0; i < job->n_choices; i++)
        u.completion_tokens += (int64_t)(job->trajs[i].n - job->trajs[i].prompt_n);
    return u;
}

/* The text that a stream would send in pieces. */
static kg_status put_whole_text(struct kg_str *out, struct kg_serve_job *job, size_t i,
                                struct kg_err *err)
{
    const struct kg_api_request *r = &job->r;
    const struct kg_traj *t = &job->trajs[i];
    struct kg_serve_text *text = &job->choices[i].text;
    for (size_t j = t->prompt_n; j < texted(job, t); j++)
        KG_TRY(kg_serve_text_add(out, text, job->s->opts.tok, t->tokens[j], r->stops,
                                 r->n_stops, err));
    return kg_serve_text_end(out, text, r->stops, r->n_stops, t->finish, err);
}

static kg_status put_whole_choice(struct kg_str *out, struct kg_serve_job *job, size_t i,
                                  struct kg_err *err)
{
    struct kg_tool_calls *calls = &job->choices[i].calls;
    struct kg_str text = {0};
    kg_status status = begin_choice(&text, job, i, err);
    if (status == KG_OK && has_text(job))
        status = put_whole_text(&text, job, i, err);
    if (status == KG_OK && job->r.reads_calls)
        status = kg_tool_calls_end(calls, kg_str_text(&text), text.len, err);
    struct kg_api_choice c = describe(job, i);
    c.text = kg_str_text(&text);
    c.text_n = job->r.reads_calls ? calls->content_n : text.len;
    c.calls = calls;
    c.finish = job->trajs[i].finish;
    if (status == KG_OK)
        status = kg_api_put_choice(out, &job->answer, false, &c, err);
    kg_str_release(&text);
    return status;
}

static kg_status put_whole(struct kg_str *out, struct kg_serve_job *job,
                           struct kg_err *err)
{
    struct kg_api_usage usage = usage_of(job);
    KG_TRY(kg_api_put_begin(out, &job->answer, false, true, err));
    for (size_t i = 0; i < job->n_choices; i++)
        KG_TRY(put_whole_choice(out, job, i, err));
    return kg_api_put_end(out, &job->answer, false, &usage, err);
}

static kg_status finish_stream(struct kg_serve_job *job, struct kg_err *err)
{
    struct kg_str *out = &job->s->scratch;
    struct kg_api_usage usage = usage_of(job);
    if (job->r.include_usage) {
        KG_TRY(begin_event(job, err));
        KG_TRY(kg_api_put_begin(out, &job->answer, true, false, err));
        KG_TRY(kg_api_put_end(out, &job->answer, true, &usage, err));
        KG_TRY(send_event(job, err));
    }
    KG_TRY(begin_event(job, err));
    KG_TRY(kg_str_puts(out, "[DONE]", err));
    return send_event(job, err);
}

/* After the status line, an error is an event. If the client is gone, it is dropped. */
static void fail_stream(struct kg_serve_job *job, const struct kg_api_fault *fault)
{
    struct kg_err unread;
    kg_status status = begin_event(job, &unread);
    if (status == KG_OK)
        status = kg_api_put_error(&job->s->scratch, fault, job->failure.message, &unread);
    if (status == KG_OK)
        status = send_event(job, &unread);
    (void)status;
}

static kg_status end_well(struct kg_serve_job *job, const struct kg_str *body,
                          struct kg_err *err)
{
    if (!job->streaming)
        return answer_whole(job, body, err);
    kg_status status = keep_as_turn(job, err);
    count_answer(job, 200);
    kg_http_stream_end(job->x);
    job_free(job);
    return status;
}

static void end_failed(struct kg_serve_job *job)
{
    kg_status code = job->failure.code;
    struct kg_api_fault fault = {.status = code == KG_EUNSUPPORTED ? 400 : 500};
    if (code == KG_EINTERRUPTED || code == KG_ENOMEM)
        fault.status = 503;
    if (code == KG_ENOMEM)
        count(job->s, &job->s->metrics.out_of_memory);
    if (!job->streaming) {
        kg_serve_job_refuse(job, &fault, job->failure.message);
        return;
    }
    fail_stream(job, &fault);
    kg_http_stream_end(job->x);
    count_answer(job, fault.status);
    job_free(job);
}

static void end_left(struct kg_serve_job *job)
{
    count(job->s, &job->s->metrics.left);
    if (job->streaming)
        kg_http_stream_end(job->x);
    else
        kg_http_drop(job->x);
    job_free(job);
}

void kg_serve_job_leave(struct kg_serve_job *job)
{
    if (job->end == KG_SERVE_WELL)
        job->end = KG_SERVE_LEFT;
}

void kg_serve_job_fail(struct kg_serve_job *job, const struct kg_err *failure)
{
    if (job->end != KG_SERVE_WELL)
        return;
    job->end = KG_SERVE_FAILED;
    job->failure = *failure;
}

kg_status kg_serve_job_finish(struct kg_serve_job *job, struct kg_err *err)
{
    struct kg_err failure;
    struct kg_str body = {.max = job->s->opts.max_held_bytes};
    kg_status status = KG_OK;
    if (job->end == KG_SERVE_WELL) {
        status = job->r.stream ? finish_stream(job, &failure)
                               : put_whole(&body, job, &failure);
        if (status != KG_OK)
            kg_serve_job_fail(job, &failure);
        status = KG_OK;
    }
    if (job->end == KG_SERVE_WELL)
        status = end_well(job, &body, err);
    else if (job->end == KG_SERVE_LEFT)
        end_left(job);
    else
        end_failed(job);
    kg_str_release(&body);
    return status;
}
