/* From a request's prompt or messages to tokens that fit the model.
 *
 * The parser has checked the form of the request. Here it meets the model: its tokenizer,
 * template, vocabulary and length. The intake thread finds every fault of a request
 * before the engine sees it, so a fault is a response with a status and never breaks a
 * batch. Text is encoded as in training. If max_tokens is not set, it is the default or
 * the rest of the context, whichever is less; if it is set and does not fit, the request
 * is refused: no completion is shortened.
 */
#include "serve/api.h"

#include "base/mem.h"
#include "text/prompt.h"

#include <string.h>

static kg_status add_prompt(struct kg_api_request *r, size_t n, struct kg_err *err)
{
    r->prompts = kg_mem_calloc(n, sizeof *r->prompts, "prompts", err);
    r->n_prompts = r->prompts ? n : 0;
    return r->prompts ? KG_OK : err->code;
}

static kg_status need_tokenizer(const struct kg_api_model *m, struct kg_err *err)
{
    if (m->tok)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "the model has no tokenizer: expected a prompt of token ids");
}

/* ---- completions ---- */

/* The ids may decode to more than the text: an encoding may add BOS, or the space of a
 * SentencePiece tokenizer, in front. */
static kg_status find_added(struct kg_api_prompt *p, const struct kg_api_model *m,
                            struct kg_err *err)
{
    struct kg_str all = {0};
    size_t n = p->text.len;
    kg_status status = kg_tokenizer_decode(&all, m->tok, p->ids.ids, p->ids.n, false,
                                           err);
    if (status == KG_OK && all.len > n &&
        memcmp(all.data + all.len - n, kg_str_text(&p->text), n) == 0)
        p->added = all.len - n;
    kg_str_release(&all);
    return status;
}

static kg_status encode_text(struct kg_api_prompt *p, const struct kg_api_request *r,
                             const struct kg_api_model *m, const char *text, size_t n,
                             struct kg_err *err)
{
    KG_TRY(need_tokenizer(m, err));
    KG_TRY(
        kg_prompt_encode(&p->ids, m->tok, text, n, r->messages != NULL, r->special, err));
    return r->echo ? kg_str_append(&p->text, text, n, err) : KG_OK;
}

static kg_status take_ids(struct kg_api_prompt *p, const struct kg_api_request *r,
                          const struct kg_api_model *m, const struct kg_json *ids,
                          struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(ids); i++) {
        const struct kg_json *v = kg_json_at(ids, i);
        int64_t id = kg_json_int(v, -1);
        if (kg_json_type(v) != KG_JSON_INT)
            return kg_fail(err, KG_EINVAL, "token %zu: expected an id, found %s", i,
                           kg_json_type_name(v));
        if (id < 0 || id >= m->vocab)
            return kg_fail(err, KG_EINVAL,
                           "token %zu: expected an id from 0 to %d, found %lld", i,
                           m->vocab - 1, (long long)id);
        KG_TRY(kg_ids_push(&p->ids, (int32_t)id, err));
    }
    if (r->kind == KG_API_DETOKENIZE)
        KG_TRY(need_tokenizer(m, err));
    else if (!r->echo || m->tok == NULL) /* without one, completions have no text */
        return KG_OK;
    return kg_tokenizer_decode_text(&p->text, m->tok, p->ids.ids, p->ids.n, false, err);
}

static kg_status encode_prompt(struct kg_api_prompt *p, const struct kg_api_request *r,
                               const struct kg_api_model *m, const struct kg_json *v,
                               struct kg_err *err)
{
    size_t n;
    const char *text = kg_json_text(v, &n);
    if (text == NULL && kg_json_type(v) != KG_JSON_ARRAY)
        return kg_fail(err, KG_EINVAL, "expected text or token ids, found %s",
                       kg_json_type_name(v));
    KG_TRY(text ? encode_text(p, r, m, text, n, err) : take_ids(p, r, m, v, err));
    return r->echo && m->tok ? find_added(p, m, err) : KG_OK;
}

static kg_status encode_prompts(struct kg_api_request *r, const struct kg_api_model *m,
                                struct kg_err *err)
{
    bool one = r->kind == KG_API_DETOKENIZE || r->kind == KG_API_GENERATE ||
               kg_json_type(r->prompt) == KG_JSON_STRING ||
               kg_json_type(kg_json_at(r->prompt, 0)) == KG_JSON_INT;
    size_t n = one ? 1 : kg_json_size(r->prompt);
    if (n > KG_API_MAX_CHOICES)
        return kg_fail(err, KG_EINVAL, "expected at most %d prompts, found %zu",
                       KG_API_MAX_CHOICES, n);
    KG_TRY(add_prompt(r, n, err));
    for (size_t i = 0; i < n; i++) {
        const struct kg_json *v = one ? r->prompt : kg_json_at(r->prompt, i);
        if (encode_prompt(&r->prompts[i], r, m, v, err) != KG_OK)
            return n > 1 ? kg_err_prefix(err, "prompt %zu", i) : err->code;
    }
    return KG_OK;
}

/* ---- chat ---- */

/* The server's system prompt; NULL if the conversation begins with one. */
static const char *system_of(const struct kg_api_request *r, const struct kg_api_model *m)
{
    const struct kg_json *first = kg_json_at(r->messages, 0);
    const char *role = kg_json_text(kg_json_get(first, "role"), NULL);
    bool own = role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
    return own ? NULL : m->system;
}

static kg_status put_name(struct kg_str *out, const char *name, struct kg_err *err)
{
    KG_TRY(kg_json_put_text(out, out->len > 1 ? ", " : "", name, err));
    return kg_str_puts(out, ": ", err);
}

static kg_status put_word(struct kg_str *out, const char *name, const char *word,
                          struct kg_err *err)
{
    if (word == NULL)
        return KG_OK;
    KG_TRY(put_name(out, name, err));
    return kg_json_put_text(out, "", word, err);
}

/* As in vLLM: a field overrides the template variable of the same name, and effort also
 * sets enable_thinking, unless the request sets it. */
static kg_status put_vars(struct kg_str *out, const struct kg_api_request *r,
                          struct kg_err *err)
{
    const struct kg_json *own = r->template_vars;
    KG_TRY(kg_str_putc(out, '{', err));
    KG_TRY(put_word(out, "reasoning_effort", r->effort, err));
    KG_TRY(put_word(out, "verbosity", r->verbosity, err));
    if (r->effort && !(own && kg_json_get(own, "enable_thinking"))) {
        KG_TRY(put_name(out, "enable_thinking", err));
        KG_TRY(kg_str_puts(out, strcmp(r->effort, "none") ? "true" : "false", err));
    }
    for (size_t i = 0; i < kg_json_size(own); i++) {
        const char *name = kg_json_key_at(own, i);
        if ((r->effort && strcmp(name, "reasoning_effort") == 0) ||
            (r->verbosity && strcmp(name, "verbosity") == 0))
            continue;
        KG_TRY(put_name(out, name, err));
        KG_TRY(kg_json_put_value(out, kg_json_value_at(own, i), err));
    }
    return kg_str_putc(out, '}', err);
}

static kg_status settle_vars(struct kg_api_request *r, struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status = KG_OK;
    if (r->effort == NULL && r->verbosity == NULL)
        return KG_OK;
    status = put_vars(&text, r, err);
    if (status == KG_OK)
        status = kg_json_parse(&r->vars, text.data, text.len, "template variables", err);
    if (status == KG_OK)
        r->template_vars = r->vars.root;
    kg_str_release(&text);
    return status;
}

static kg_status render(struct kg_str *text, const struct kg_api_request *r,
                        struct kg_api_fault *fault, const struct kg_api_model *m,
                        struct kg_err *err)
{
    struct kg_conversation talk = {.messages = r->messages,
                                   .n = kg_json_size(r->messages),
                                   .system = system_of(r, m),
                                   .tools = r->tools,
                                   .variables = r->template_vars,
                                   .put_calls = kg_tool_calls_put,
                                   .generate = true};

    KG_TRY(kg_chat_date(&talk.now_s, m->date, err));
    kg_status status = kg_conversation_render(text, &talk, m->chat, err);
    if (status == KG_EUNSUPPORTED)
        *fault = (struct kg_api_fault){400, "tools", "unsupported_parameter"};
    KG_TRY(status);
    return kg_prompt_put_opening(text, m->opening, err);
}

/* Sampled ids of the session are kept as they are; only text after them is tokenised. */
static kg_status encode_turn(struct kg_api_request *r, struct kg_api_fault *fault,
                             const struct kg_api_model *m, struct kg_err *err)
{
    const struct kg_encode_opts opts = {.parse_special = true, .continues = true};
    const size_t id_n = strlen(r->turn.session);
    const struct kg_str *text = &r->turn.text;
    struct kg_api_prompt *p = &r->prompts[0];
    size_t known;
    if (id_n > KG_SESSION_ID_BYTES) {
        fault->param = "session_id";
        return kg_fail(
            err, KG_EINVAL,
            "session_id, or X-Session-ID: expected an id of at most %d bytes, found %zu",
            KG_SESSION_ID_BYTES, id_n);
    }
    KG_TRY(need_tokenizer(m, err));
    r->turn.adapter = m->adapter;
    r->turn.messages = r->messages;
    KG_TRY(kg_sessions_continue(m->sessions, &p->ids, &known, &r->turn, err));
    if (known == 0)
        return encode_text(p, r, m, kg_str_text(text), text->len, err);
    return kg_tokenizer_encode(&p->ids, m->tok, kg_str_text(text) + known,
                               text->len - known, opts, err);
}

static kg_status encode_chat(struct kg_api_request *r, struct kg_api_fault *fault,
                             const struct kg_api_model *m, struct kg_err *err)
{
    struct kg_str *text = &r->turn.text;
    if (m->chat == NULL)
        return kg_fail(err, KG_EINVAL,
                       "the model has no chat template: use /v1/completions");
    KG_TRY(add_prompt(r, 1, err));
    KG_TRY(settle_vars(r, err));
    KG_TRY(render(text, r, fault, m, err));
    r->reads_calls = r->tools && m->knows_calls;
    if (r->turn.session && m->sessions)
        return encode_turn(r, fault, m, err);
    KG_TRY(encode_text(&r->prompts[0], r, m, kg_str_text(text), text->len, err));
    kg_str_release(text);
    return KG_OK;
}

/* ---- what must fit ---- */

static kg_status check_length(const struct kg_api_request *r, struct kg_api_fault *fault,
                              const struct kg_api_model *m, int64_t *room,
                              struct kg_err *err)
{
    size_t longest = 0;
    for (size_t i = 0; i < r->n_prompts; i++) {
        size_t n = r->prompts[i].ids.n;
        longest = n > longest ? n : longest;
        if (n == 0)
            return kg_fail(err, KG_EINVAL,
                           "expected a prompt of at least one token, found none");
    }
    *room = INT32_MAX;
    if (m->budgeted)
        return KG_OK;
    int64_t needed = r->max_tokens == KG_API_NOT_GIVEN ? 1 : r->max_tokens;
    *room = m->max_len - (int64_t)longest;
    if (needed <= *room)
        return KG_OK;
    fault->code = "context_length_exceeded";
    return kg_fail(err, KG_EINVAL,
                   "this model's maximum context length is %d tokens: a prompt of %zu "
                   "and a completion of %lld do not fit",
                   m->max_len, longest, (long long)needed);
}

/* A default max_tokens never exceeds the room that is left. */
static void settle_max_tokens(struct kg_api_request *r, const struct kg_api_model *m,
                              int64_t room)
{
    int64_t usual = m->default_tokens > 0          ? m->default_tokens
                    : r->kind == KG_API_COMPLETION ? KG_API_DEFAULT_TOKENS
                                                   : room;
    if (r->max_tokens == KG_API_NOT_GIVEN)
        r->max_tokens = usual < room ? usual : room;
}

/* The response is written in one go, and no sequence is decoded meanwhile. */
static kg_status check_listed(const struct kg_api_request *r, struct kg_err *err)
{
    int64_t tokens = 0;
    for (size_t i = 0; i < r->n_prompts; i++)
        tokens += (int64_t)r->prompts[i].ids.n;
    int64_t listed = tokens * r->n * (1 + kg_api_records(r));
    int most = r->stream ? KG_API_MAX_STREAMED : KG_API_MAX_LISTED;
    if (listed <= most)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "%s: expected at most %d log-probs of prompts (tokens, times n, "
                   "times 1 + logprobs)%s, found %lld",
                   r->echo ? "logprobs" : "prompt_logprobs", most,
                   r->stream ? " in a stream" : "", (long long)listed);
}

/* Allocates the log-probs of the prompts' tokens. */
static kg_status want_scores(struct kg_api_request *r, struct kg_err *err)
{
    static const char what[] = "log-probs of a prompt";
    size_t k = (size_t)kg_api_records(r);
    for (size_t i = 0; i < r->n_prompts; i++) {
        struct kg_prompt_scores *s = &r->prompts[i].scores;
        size_t n = r->prompts[i].ids.n;
        s->logp = kg_mem_calloc(n, sizeof *s->logp, what, err);
        s->top_ids = k > 0 ? kg_mem_calloc(n * k, sizeof *s->top_ids, what, err) : NULL;
        s->top_logp = k > 0 ? kg_mem_calloc(n * k, sizeof *s->top_logp, what, err) : NULL;
        if (s->logp == NULL || (k > 0 && (s->top_ids == NULL || s->top_logp == NULL)))
            return err->code;
    }
    return KG_OK;
}

/* Reads an id in its only spelling: no sign, no leading zeros. */
static bool read_id(int32_t *id, const char *text, int32_t vocab)
{
    int64_t x = 0;
    size_t n = strlen(text);
    bool plain = n > 0 && n < 11 && (text[0] != '0' || n == 1);
    for (size_t i = 0; i < n && plain; i++) {
        plain = text[i] >= '0' && text[i] <= '9';
        x = 10 * x + (text[i] - '0');
    }
    *id = plain && x < vocab ? (int32_t)x : -1;
    return *id >= 0;
}

static kg_status encode_stop_ids(struct kg_api_request *r, const struct kg_api_model *m,
                                 struct kg_err *err)
{
    size_t n = kg_json_size(r->stop_tokens);
    if (n == 0)
        return KG_OK;
    r->stop_ids = kg_mem_calloc(n, sizeof *r->stop_ids, "stop_token_ids", err);
    if (r->stop_ids == NULL)
        return err->code;
    for (; r->n_stop_ids < n; r->n_stop_ids++) {
        int64_t id = kg_json_int(kg_json_at(r->stop_tokens, r->n_stop_ids), -1);
        if (id < 0 || id >= m->vocab)
            return kg_fail(err, KG_EINVAL,
                           "stop_token_ids: expected ids from 0 to %d, found %lld",
                           m->vocab - 1, (long long)id);
        r->stop_ids[r->n_stop_ids] = (int32_t)id;
    }
    return KG_OK;
}

static kg_status encode_bias(struct kg_api_request *r, const struct kg_api_model *m,
                             struct kg_err *err)
{
    size_t n = kg_json_size(r->bias);
    if (n == 0)
        return KG_OK;
    r->bias_ids = kg_mem_calloc(n, sizeof *r->bias_ids, "logit_bias", err);
    if (r->bias_ids == NULL)
        return err->code;
    for (; r->n_bias < n; r->n_bias++) {
        struct kg_logit_bias *b = &r->bias_ids[r->n_bias];
        const char *key = kg_json_key_at(r->bias, r->n_bias);
        if (!read_id(&b->id, key, m->vocab))
            return kg_fail(err, KG_EINVAL,
                           "logit_bias: expected an id from 0 to %d, found '%.40s'",
                           m->vocab - 1, key);
        b->add = (float)kg_json_real(kg_json_value_at(r->bias, r->n_bias), 0);
    }
    return KG_OK;
}

/* ---- models ---- */

static kg_status not_found(const struct kg_api_model *models, size_t n, const char *name,
                           struct kg_err *err)
{
    struct kg_str there = {0};
    kg_status status = KG_OK;
    for (size_t i = 0; i < n && status == KG_OK; i++)
        status = kg_str_printf(&there, err, "%s'%s'", i > 0 ? ", " : "", models[i].name);
    if (status == KG_OK)
        status = kg_fail(err, KG_ENOTFOUND,
                         "the model '%.100s' does not exist; there %s %s", name,
                         n > 1 ? "are" : "is", kg_str_text(&there));
    kg_str_release(&there);
    return status;
}

kg_status kg_api_find(const struct kg_api_model **out, const struct kg_api_model *models,
                      size_t n, const char *name, struct kg_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (name == NULL || strcmp(name, models[i].name) == 0) {
            *out = &models[i];
            return KG_OK;
        }
    return not_found(models, n, name, err);
}

/* ---- all requests ---- */

kg_status kg_api_encode(struct kg_api_request *r, struct kg_api_fault *fault,
                        const struct kg_api_model *m, struct kg_err *err)
{
    int64_t room = 0;
    *fault = (struct kg_api_fault){.status = 400};
    fault->param = "stop";
    if (r->n_stops > 0)
        KG_TRY(need_tokenizer(m, err));
    fault->param = "output_mode";
    if (r->texts)
        KG_TRY(need_tokenizer(m, err));
    fault->param = "stop_token_ids";
    KG_TRY(encode_stop_ids(r, m, err));
    fault->param = "logit_bias";
    KG_TRY(encode_bias(r, m, err));
    fault->param = kg_api_asked(r);
    KG_TRY(r->messages ? encode_chat(r, fault, m, err) : encode_prompts(r, m, err));
    if (!kg_api_is_answered(r->kind))
        return KG_OK;
    KG_TRY(check_length(r, fault, m, &room, err));
    settle_max_tokens(r, m, room);
    fault->param = "n";
    if (r->n_prompts * (size_t)r->n > KG_API_MAX_CHOICES)
        return kg_fail(err, KG_EINVAL,
                       "%zu prompts with n %lld give more than %d choices", r->n_prompts,
                       (long long)r->n, KG_API_MAX_CHOICES);
    fault->param = r->prompt_scores         ? "prompt_logprobs"
                   : r->echo && r->logprobs ? "logprobs"
                                            : NULL;
    if (fault->param == NULL)
        return KG_OK;
    KG_TRY(check_listed(r, err));
    fault->param = NULL;
    return want_scores(r, err);
}
