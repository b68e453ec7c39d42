/* Sampling from a server: requests, responses, and their errors. Servers differ, so
 * settings that are off are not sent, and a response may be any JSON. Temporary faults
 * are retried by the client; others are reported in the server's words. kedge does not
 * know the server's prompt or its number of tokens: if a sample does not fit, a request
 * for one token gives the prompt's length, and the sample is requested again with the
 * tokens that are left. Only texts are compared, never tokens. */
#include "eval/remote.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/phase.h"
#include "base/signal.h"
#include "data/json.h"
#include "net/http_client.h"
#include "rollout/sampling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POLL_MS = 200, SHOWN_BYTES = 200 };

static int or_default(int x, int fallback) { return x > 0 ? x : fallback; }

/* ---- prompts ---- */

static const char AS_JSON[] = "{{ messages | tojson }}";

/* A template that renders messages as their JSON. */
static kg_status messages_as_json(struct kg_chat_template **t, struct kg_err *err)
{
    return kg_chat_template_parse(t, AS_JSON, sizeof AS_JSON - 1, "messages", err);
}

static kg_status check_messages(const struct kg_eval_set *set, struct kg_err *err)
{
    for (size_t i = 0; i < set->data.n; i++) {
        const struct kg_record *r = &set->data.records[i];
        struct kg_json_doc doc = {0};
        struct kg_err parse;
        bool is_list = *r->prompt == '[' &&
                       kg_json_parse(&doc, r->prompt, strlen(r->prompt), "prompt",
                                     &parse) == KG_OK;

        kg_json_release(&doc);
        if (!is_list)
            return kg_fail(
                err, KG_EINVAL,
                "set %s: record %lld: expected a list of messages for the chat API, "
                "found text; user_turn: true (--user-turn) sends it as a user message",
                set->name, (long long)r->line);
    }
    return KG_OK;
}

/* ---- requests ---- */

static kg_status put_stops(struct kg_str *out, const struct kg_sampling *s,
                           struct kg_err *err)
{
    for (int i = 0; i < s->n_stops; i++) {
        KG_TRY(kg_json_put_text(out, i ? ", " : ", \"stop\": [", s->stops[i], err));
    }
    return s->n_stops ? kg_str_putc(out, ']', err) : KG_OK;
}

/* Settings that are off are not sent: servers differ in the fields that they know. */
static kg_status put_sampling(struct kg_str *out, const struct kg_sampling *s,
                              int32_t limit, struct kg_err *err)
{
    /* the shortest text of the same float, as in the suite */
    for (const struct kg_opt_row *row = kg_sampling_rows; row->key; row++) {
        const double x = kg_opt_number(row, s);
        const bool known = strcmp(row->key, "temperature") == 0 ||
                           strcmp(row->key, "top_p") == 0;

        if (!known && x == strtod(row->fallback, NULL))
            continue;
        KG_TRY(kg_str_printf(out, err, ", \"%s\": ", row->key));
        KG_TRY(row->type == KG_OPT_INT32 ? kg_str_printf(out, err, "%.0f", x)
                                         : kg_json_put_float(out, (float)x, err));
    }
    KG_TRY(kg_str_printf(out, err, ", \"max_tokens\": %d", (int)limit));
    return put_stops(out, s, err);
}

static kg_status put_body(struct kg_str *out, const struct kg_eval_remote *r,
                          const struct kg_eval_set *set, size_t i, int32_t limit,
                          struct kg_err *err)
{
    const struct kg_record *record = &set->data.records[i / (size_t)set->samples];
    uint64_t seed = kg_eval_seed(set->sampling.rng.seed, set->name, record->line,
                                 (int32_t)(i % (size_t)set->samples));

    KG_TRY(kg_json_put_text(out, "{\"model\": ", r->model, err));
    if (r->opts.completions) {
        KG_TRY(kg_json_put_text(out, ", \"prompt\": ", record->prompt, err));
    } else
        KG_TRY(kg_str_printf(out, err, ", \"messages\": %s", record->prompt));
    KG_TRY(
        kg_str_printf(out, err, ", \"n\": 1, \"seed\": %llu", (unsigned long long)seed));
    KG_TRY(put_sampling(out, &set->sampling, limit, err));
    return kg_str_putc(out, '}', err);
}

/* ---- responses ---- */

/* The server's own error message: OpenAI's form, else the first bytes of the body. */
static kg_status refused(const struct kg_http_answer *a, const char *url,
                         struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_err parse;
    const char *message = NULL;
    bool is_json = kg_json_parse(&doc, a->body, a->body_n, "answer", &parse) == KG_OK;

    if (is_json)
        message = kg_json_text(kg_json_get(kg_json_get(doc.root, "error"), "message"),
                               NULL);
    kg_fail(err, KG_EIO, "%s: expected status 200, found %d: %.*s", url, a->http_status,
            SHOWN_BYTES, message ? message : a->body);
    for (char *p = err->message; *p; p++)
        *p = *p == '\n' || *p == '\r' ? ' ' : *p;
    kg_json_release(&doc);
    return err->code;
}

static kg_status check_answer(const struct kg_http_answer *a, const char *url,
                              struct kg_err *err)
{
    if (a->status != KG_OK)
        return kg_fail(err, a->status, "%s: %s", url, a->reason);
    return a->http_status == 200 ? KG_OK : refused(a, url, err);
}

static kg_status read_usage(int64_t *n, const struct kg_json_doc *doc, const char *key,
                            struct kg_err *err)
{
    const struct kg_json *usage = kg_json_get(doc->root, "usage");

    if (kg_json_type(usage) != KG_JSON_OBJECT)
        return kg_fail(err, KG_EFORMAT, "%s: expected usage, an object, found %s",
                       doc->where, usage ? kg_json_type_name(usage) : "none");
    return kg_json_need_int(n, doc, usage, key, 0, INT32_MAX, err);
}

/* A message whose content is null is an empty completion. */
static kg_status read_choice(struct kg_eval_fresh *fresh, const struct kg_json_doc *doc,
                             bool completions, struct kg_err *err)
{
    const struct kg_json *choice = kg_json_at(kg_json_get(doc->root, "choices"), 0);
    const struct kg_json *from = completions ? choice : kg_json_get(choice, "message");
    const struct kg_json *text = kg_json_get(from, completions ? "text" : "content");
    const char *finish;

    if (kg_json_type(choice) != KG_JSON_OBJECT)
        return kg_fail(err, KG_EFORMAT, "%s: expected choices[0], an object, found %s",
                       doc->where, choice ? kg_json_type_name(choice) : "none");
    fresh->text = kg_json_text(text, &fresh->n);
    if (!fresh->text && text && kg_json_type(text) == KG_JSON_NULL) {
        fresh->text = "";
        fresh->n = 0;
    }
    if (!fresh->text)
        return kg_fail(err, KG_EFORMAT, "%s: expected choices[0].%s, found none",
                       doc->where, completions ? "text" : "message.content");
    if (kg_json_need_text(&finish, doc, choice, "finish_reason", err) != KG_OK)
        return kg_err_prefix(err, "choices[0]");
    fresh->finish = strcmp(finish, "length") == 0 ? KG_FINISH_LENGTH : KG_FINISH_STOP;
    return read_usage(&fresh->tokens, doc, "completion_tokens", err);
}

/* ---- a set ---- */

/* How to ask for a sample. kedge's engine ends a completion at the model's last position;
 * a server refuses a request whose max_tokens does not fit, and kedge does not know the
 * prompt's length in the server's tokens. So a refused sample is requested again with one
 * token, whose usage gives that length, and then with the tokens that are left. */
enum way { AS_THE_SET_SAYS, ONE_TOKEN, WHAT_IS_LEFT, WAYS };

struct asking {
    struct kg_eval_remote *remote;
    const struct kg_eval_set *set;
    kg_eval_take_fn take;
    void *user;
    int32_t *room; /* (problems) owned; ENOUGH, LESS, or the tokens that fit */
    size_t *again; /* (n_again) owned; samples to request again */
    size_t n_again, capacity;
};
enum { ENOUGH = 0, LESS = -1 }; /* of room: the set's max_tokens fit; fewer fit */

static kg_status ask_again(struct asking *q, size_t i, struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&q->again, &q->capacity, q->n_again + 1, sizeof *q->again,
                       SIZE_MAX / sizeof *q->again, "refused samples", err));
    q->again[q->n_again++] = i;
    return KG_OK;
}

static kg_status read_room(struct asking *q, const struct kg_json_doc *doc, size_t i,
                           struct kg_err *err)
{
    int64_t prompt;
    int64_t most = q->set->sampling.max_tokens;
    KG_TRY(read_usage(&prompt, doc, "prompt_tokens", err));
    int64_t left = q->remote->max_len - prompt;
    left = left < most ? left : most;
    q->room[i / (size_t)q->set->samples] = left > 1 ? (int32_t)left : 1;
    return ask_again(q, i, err);
}

static kg_status take_answer(struct asking *q, const struct kg_json_doc *doc, size_t i,
                             struct kg_err *err)
{
    size_t samples = (size_t)q->set->samples;
    struct kg_eval_fresh fresh = {.problem = i / samples,
                                  .sample = (int32_t)(i % samples)};
    KG_TRY(read_choice(&fresh, doc, q->remote->opts.completions, err));
    return q->take(q->user, &fresh, err);
}

/* A prompt that leaves no room for a token ends the evaluation, as in the engine. */
static kg_status final_refusal(const struct asking *q, size_t i, struct kg_err *err)
{
    const struct kg_record *r = &q->set->data.records[i / (size_t)q->set->samples];

    return kg_err_prefix(err, "record %lld",
                         (long long)r->line); /* the caller names the set */
}

static kg_status answered(void *user, const struct kg_http_answer *a, struct kg_err *err)
{
    struct asking *q = user;
    size_t i = a->ticket / WAYS;
    enum way way = a->ticket % WAYS;
    struct kg_json_doc doc = {0};
    kg_status status;

    if (a->status == KG_OK && a->http_status == 400 && way == AS_THE_SET_SAYS &&
        q->remote->max_len > 0) {
        int32_t *room = &q->room[i / (size_t)q->set->samples];
        *room = *room == ENOUGH ? LESS : *room;
        return ask_again(q, i, err);
    }
    if (check_answer(a, q->remote->url, err) != KG_OK)
        return a->http_status == 400 ? final_refusal(q, i, err) : err->code;
    KG_TRY(kg_json_parse(&doc, a->body, a->body_n, q->remote->url, err));
    status = way == ONE_TOKEN ? read_room(q, &doc, i, err) : take_answer(q, &doc, i, err);
    kg_json_release(&doc);
    return status;
}

static kg_status submit(struct asking *q, size_t i, struct kg_err *err)
{
    int32_t room = q->room[i / (size_t)q->set->samples];
    enum way way = room == ENOUGH ? AS_THE_SET_SAYS
                   : room == LESS ? ONE_TOKEN
                                  : WHAT_IS_LEFT;
    int32_t limit = room == ENOUGH ? q->set->sampling.max_tokens
                    : room == LESS ? 1
                                   : room;
    struct kg_str body = {0};
    kg_status status = put_body(&body, q->remote, q->set, i, limit, err);

    if (status == KG_OK)
        status = kg_http_client_submit(q->remote->client, q->remote->url, body.data,
                                       body.len, i * WAYS + way, err);
    kg_str_release(&body);
    return status;
}

static kg_status submit_again(struct asking *q, struct kg_err *err)
{
    size_t n = q->n_again;
    q->n_again = 0;
    for (size_t i = 0; i < n; i++)
        KG_TRY(submit(q, q->again[i], err));
    return KG_OK;
}

static int timeout_ms(const struct kg_eval_remote *r)
{
    return or_default(r->opts.timeout_ms, 600000);
}

static int tries(const struct kg_eval_remote *r) { return or_default(r->opts.tries, 6); }

static kg_status open_client(struct kg_eval_remote *r, struct kg_err *err)
{
    const struct kg_http_client_opts opts = {
        .max_in_flight = or_default(r->opts.in_flight, 16),
        .timeout_ms = timeout_ms(r),
        .tries = tries(r),
        .backoff_ms = or_default(r->opts.backoff_ms, 500),
        .bearer_key = r->opts.key,
    };

    kg_http_client_close(r->client);
    r->client = NULL;
    r->heard = kg_clock_seconds();
    return kg_http_client_open(&r->client, &opts, err);
}

/* Waits up to POLL_MS for responses; requests continue. */
static kg_status wait_for(struct kg_eval_remote *r, const char *url,
                          kg_http_answer_fn done, void *user, struct kg_err *err)
{
    size_t n = kg_http_client_waiting(r->client);
    int phase = kg_phase_wait(r->heard, "waiting for %s: %zu requests, %d tries of %g s",
                              url, n, tries(r), 1e-3 * timeout_ms(r));
    kg_status status = kg_http_client_poll(r->client, POLL_MS, done, user, err);

    kg_phase_end(phase);
    KG_TRY(status);
    if (kg_http_client_waiting(r->client) < n) {
        r->heard = kg_clock_seconds();
        kg_phase_tick();
    }
    if (kg_signal_stop_requested())
        return kg_fail(err, KG_EINTERRUPTED, "stopped by a signal while waiting for %s",
                       url);
    return KG_OK;
}

static kg_status ask_all(struct asking *q, const bool *there, struct kg_err *err)
{
    struct kg_http_client *client = q->remote->client;
    size_t window = (size_t)or_default(q->remote->opts.in_flight, 16);
    size_t n = q->set->data.n * (size_t)q->set->samples, i = 0;

    for (;;) {
        KG_TRY(submit_again(q, err));
        for (; i < n && kg_http_client_waiting(client) < window; i++)
            if (!there[i])
                KG_TRY(submit(q, i, err));
        if (kg_http_client_waiting(client) == 0)
            return KG_OK;
        KG_TRY(wait_for(q->remote, q->remote->url, answered, q, err));
    }
}

/* Every set has a new client, so requests in flight after an error are dropped. */
static kg_status answer(struct kg_eval_source *self, struct kg_eval_set *set,
                        const bool *there, kg_eval_take_fn take, void *user,
                        struct kg_err *err)
{
    struct kg_eval_remote *r = (struct kg_eval_remote *)self;
    struct asking q = {.remote = r, .set = set, .take = take, .user = user};
    bool never_fits = r->max_len > 0 && set->sampling.max_tokens >= r->max_len;
    kg_status status = KG_OK;

    KG_TRY(kg_mem_new(&q.room, set->data.n, sizeof *q.room, "room of problems", err));
    for (size_t p = 0; p < set->data.n; p++)
        q.room[p] = never_fits ? LESS : ENOUGH;
    KG_TRY_GOTO(out, open_client(r, err));
    status = ask_all(&q, there, err);
    int32_t most = q.set->sampling.max_tokens;
    size_t n = 0;
    for (size_t p = 0; p < q.set->data.n; p++)
        n += q.room[p] > 0 && q.room[p] < most;
    if (n > 0)
        kg_log_info("set %s: %zu of %zu prompts leave fewer than max_tokens (%d) of the "
                    "server's %lld positions: their completions may be truncated",
                    q.set->name, n, q.set->data.n, most, (long long)q.remote->max_len);
out:
    kg_mem_free(q.room);
    kg_mem_free(q.again);
    return status;
}

/* ---- the model ---- */

static kg_status one_model(struct kg_eval_remote *r, const struct kg_json_doc *doc,
                           struct kg_err *err)
{
    const struct kg_json *list = kg_json_get(doc->root, "data");
    const char *id = kg_json_text(kg_json_get(kg_json_at(list, 0), "id"), NULL);
    struct kg_str names = {0};
    kg_status status = KG_OK;

    if (kg_json_size(list) == 1 && id) {
        r->model = kg_mem_strdup(id, err);
        return r->model ? KG_OK : err->code;
    }
    for (size_t i = 0; i < kg_json_size(list) && i < 8 && status == KG_OK; i++) {
        id = kg_json_text(kg_json_get(kg_json_at(list, i), "id"), NULL);
        status = kg_str_printf(&names, err, "%s%.60s", i ? ", " : "", id ? id : "?");
    }
    if (status == KG_OK)
        status = kg_fail(err, KG_ENOTFOUND,
                         "%s: expected one model, or --model NAME, found %zu: %s",
                         doc->where, kg_json_size(list), kg_str_text(&names));
    kg_str_release(&names);
    return status;
}

/* 0 if the server does not give it */
static int64_t max_len_of(const struct kg_json *list, const char *model)
{
    for (size_t i = 0; i < kg_json_size(list); i++) {
        const struct kg_json *m = kg_json_at(list, i);
        const char *id = kg_json_text(kg_json_get(m, "id"), NULL);

        if (id && strcmp(id, model) == 0)
            return kg_json_int(kg_json_get(m, "max_model_len"), 0);
    }
    return 0;
}

/* If the user named a model, a list is not needed; some servers have none. */
static kg_status take_models(void *user, const struct kg_http_answer *a,
                             struct kg_err *err)
{
    struct kg_eval_remote *r = user;
    struct kg_json_doc doc = {0};
    char where[256];
    kg_status status;

    snprintf(where, sizeof where, "%.200s/models", r->opts.base_url);
    r->listed = true;
    if (r->model && a->status == KG_OK && a->http_status != 200)
        return KG_OK;
    KG_TRY(check_answer(a, where, err));
    KG_TRY(kg_json_parse(&doc, a->body, a->body_n, where, err));
    status = r->model ? KG_OK : one_model(r, &doc, err);
    if (status == KG_OK)
        r->max_len = max_len_of(kg_json_get(doc.root, "data"), r->model);
    kg_json_release(&doc);
    return status;
}

static kg_status list_models(struct kg_eval_remote *r, struct kg_err *err)
{
    char *url = kg_path_join(r->opts.base_url, "models", err);
    kg_status status = url ? KG_OK : err->code;

    KG_TRY_GOTO(out, status);
    KG_TRY_GOTO(out, open_client(r, err));
    KG_TRY_GOTO(out, kg_http_client_submit(r->client, url, NULL, 0, 0, err));
    while (status == KG_OK && kg_http_client_waiting(r->client) > 0)
        status = wait_for(r, url, take_models, r, err);
out:
    kg_mem_free(url);
    return status;
}

/* The server tokenises prompts, and renders messages. */
static kg_status check_prompt(const struct kg_eval_remote *r, struct kg_eval_set *set,
                              struct kg_err *err)
{
    const char *opening = set->task_opts.prompt.opening;

    if (set->special != KG_SPECIAL_AUTO)
        return kg_fail(err, KG_EINVAL,
                       "set %s: add_special: expected auto, because the server tokenises "
                       "the prompts, found another value",
                       set->name);
    if (r->opts.completions || !opening || !*opening)
        return KG_OK;
    kg_log_warn(
        "set %s: the server's chat template must add the opening '%.40s', which "
        "kedge cannot check; to render prompts here, use --api completions with a "
        "chat_template file",
        set->name, opening);
    set->task_opts.prompt.opening = NULL;
    return KG_OK;
}

static kg_status prepare(struct kg_eval_source *self, struct kg_eval_set *set,
                         struct kg_err *err)
{
    struct kg_eval_remote *r = (struct kg_eval_remote *)self;
    struct kg_chat_template *chat = NULL;

    KG_TRY(check_prompt(r, set, err));
    if (!r->opts.completions)
        KG_TRY(messages_as_json(&chat, err));
    KG_TRY(kg_eval_set_load(set, chat, NULL, err));
    if (!r->opts.completions)
        KG_TRY(check_messages(set, err));
    return r->listed ? KG_OK : list_models(r, err);
}

kg_status kg_eval_remote_open(struct kg_eval_remote *r,
                              const struct kg_eval_remote_opts *opts, struct kg_err *err)
{
    const char *path = opts->completions ? "completions" : "chat/completions";
    kg_status status = KG_OK;

    *r = (struct kg_eval_remote){.source = {.prepare = prepare, .answer = answer},
                                 .opts = *opts};
    if (!kg_http_is_address(opts->base_url))
        return kg_fail(err, KG_EINVAL,
                       "expected an address such as http://127.0.0.1:8000/v1, found "
                       "'%.80s'",
                       opts->base_url);
    r->url = kg_path_join(opts->base_url, path, err);
    if (!r->url)
        return err->code;
    if (opts->model) {
        r->model = kg_mem_strdup(opts->model, err);
        status = r->model ? KG_OK : err->code;
    } else
        status = list_models(r, err);
    if (status != KG_OK)
        kg_eval_remote_close(r);
    return status;
}

void kg_eval_remote_close(struct kg_eval_remote *r)
{
    kg_http_client_close(r->client);
    kg_mem_free(r->model);
    kg_mem_free(r->url);
    *r = (struct kg_eval_remote){0};
}
