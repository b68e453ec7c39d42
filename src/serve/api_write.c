/* Responses in the shapes of OpenAI's API.
 *
 * Clients are strict about shapes and differ in which they read, so one function writes
 * each shape, for whole responses and pieces of a stream alike. JSON is written directly,
 * because the order of its parts is known. A token need not be text: it may be half a
 * character, or no bytes at all. The name of a token in lists is its text, its bytes or
 * its id, and no two tokens have the same name. Text of a stream waits until a character
 * is complete.
 */
#include "serve/api.h"

#include "base/utf8.h"
#include "serve/api_ids.h"

#include <math.h>
#include <string.h>

kg_status kg_api_put_error(struct kg_str *out, const struct kg_api_fault *fault,
                           const char *message, struct kg_err *err)
{
    const char *type = fault->status >= 500   ? "server_error"
                       : fault->status == 429 ? "rate_limit_error"
                                              : "invalid_request_error";
    KG_TRY(kg_json_put_text(out, "{\"error\": {\"message\": ", message, err));
    KG_TRY(kg_str_printf(out, err, ", \"type\": \"%s\", \"param\": ", type));
    if (fault->param)
        KG_TRY(kg_json_put_string(out, fault->param, strlen(fault->param), err));
    else
        KG_TRY(kg_str_puts(out, "null", err));
    if (fault->code)
        return kg_str_printf(out, err, ", \"code\": \"%s\"}}", fault->code);
    return kg_str_puts(out, ", \"code\": null}}", err);
}

kg_status kg_api_put_model(struct kg_str *out, const struct kg_api_model *m,
                           struct kg_err *err)
{
    KG_TRY(kg_json_put_text(out, "{\"id\": ", m->name, err));
    if (m->parent)
        KG_TRY(kg_json_put_text(out, ", \"parent\": ", m->parent, err));
    return kg_str_printf(out, err,
                         ", \"object\": \"model\", \"created\": %lld, \"owned_by\": "
                         "\"kedge\", \"max_model_len\": %d}",
                         (long long)m->created, m->max_len);
}

kg_status kg_api_put_tokens(struct kg_str *out, const struct kg_api_request *r,
                            const struct kg_api_model *m, struct kg_err *err)
{
    const struct kg_api_prompt *p = &r->prompts[0];
    if (r->kind == KG_API_DETOKENIZE) {
        KG_TRY(kg_str_puts(out, "{\"prompt\": ", err));
        KG_TRY(kg_json_put_string(out, kg_str_text(&p->text), p->text.len, err));
        return kg_str_putc(out, '}', err);
    }
    KG_TRY(kg_str_printf(out, err, "{\"count\": %zu, \"max_model_len\": %d, \"tokens\": ",
                         p->ids.n, m->max_len));
    KG_TRY(kg_json_put_ints(out, p->ids.ids, p->ids.n, err));
    return kg_str_puts(out, ", \"token_strs\": null}", err);
}

/* ---- offsets ---- */

void kg_api_offset_add(struct kg_api_offset *o, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        o->part[o->n++] = text[i];
        while (o->n > kg_utf8_cut(o->part, o->n)) {
            size_t length = kg_utf8_length(o->part, o->n);
            size_t done = length > 0 ? length : kg_utf8_bad_length(o->part, o->n);
            o->n -= done;
            memmove(o->part, o->part + done, o->n);
            o->characters++;
        }
    }
}

/* ---- tokens with log-probs ---- */

/* JSON has no infinity; OpenAI's API writes this number instead. */
static kg_status put_logp(struct kg_str *out, float x, struct kg_err *err)
{
    if (!isfinite(x))
        return kg_str_puts(out, "-9999.0", err);
    return kg_json_put_float(out, x, err);
}

static kg_status token_bytes(struct kg_str *bytes, const struct kg_api_answer *a,
                             int32_t id, struct kg_err *err)
{
    kg_str_clear(bytes);
    return a->m->tok ? kg_tokenizer_decode(bytes, a->m->tok, &id, 1, false, err) : KG_OK;
}

static kg_status put_id_name(struct kg_str *out, int32_t id, struct kg_err *err)
{
    return kg_str_printf(out, err, "\"token_id:%d\"", id);
}

kg_status kg_api_put_entry(struct kg_str *out, const struct kg_api_answer *a,
                           struct kg_str *bytes, int32_t id, float logp,
                           struct kg_err *err)
{
    KG_TRY(token_bytes(bytes, a, id, err));
    KG_TRY(kg_str_puts(out, "{\"token\": ", err));
    KG_TRY(a->r->ids_for_names
               ? put_id_name(out, id, err)
               : kg_json_put_string(out, kg_str_text(bytes), bytes->len, err));
    KG_TRY(kg_str_puts(out, ", \"logprob\": ", err));
    KG_TRY(put_logp(out, logp, err));
    KG_TRY(kg_str_puts(out, ", \"bytes\": [", err));
    for (size_t i = 0; i < bytes->len; i++)
        KG_TRY(kg_str_printf(out, err, i ? ",%u" : "%u",
                             (unsigned)(unsigned char)bytes->data[i]));
    return kg_str_putc(out, ']', err);
}

static kg_status put_chat_token(struct kg_str *out, const struct kg_api_answer *a,
                                struct kg_str *bytes, const struct kg_traj *t, size_t i,
                                struct kg_err *err)
{
    const int32_t *ids = t->top_ids + i * (size_t)t->top_k;
    const float *logp = t->top_logp + i * (size_t)t->top_k;
    KG_TRY(kg_api_put_entry(out, a, bytes, t->tokens[i], t->logp[i], err));
    KG_TRY(kg_str_puts(out, ", \"top_logprobs\": [", err));
    for (int k = 0; k < t->top_k; k++) {
        if (k > 0)
            KG_TRY(kg_str_puts(out, ", ", err));
        KG_TRY(kg_api_put_entry(out, a, bytes, ids[k], logp[k], err));
        KG_TRY(kg_str_putc(out, '}', err));
    }
    return kg_str_puts(out, "]}", err);
}

static kg_status put_chat_logprobs(struct kg_str *out, const struct kg_api_answer *a,
                                   struct kg_str *bytes, const struct kg_api_choice *c,
                                   struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "{\"content\": [", err));
    for (size_t i = c->from; i < c->to; i++) {
        if (i > c->from)
            KG_TRY(kg_str_puts(out, ", ", err));
        KG_TRY(put_chat_token(out, a, bytes, c->t, i, err));
    }
    return kg_str_puts(out, "], \"refusal\": null}", err);
}

/* A token as a unique string: its text; its bytes if they are not valid UTF-8; its id if
 * it has no bytes or the request asks for ids. */
static kg_status put_token(struct kg_str *out, const struct kg_api_answer *a,
                           struct kg_str *bytes, int32_t id, struct kg_err *err)
{
    KG_TRY(token_bytes(bytes, a, id, err));
    if (bytes->len == 0 || a->r->ids_for_names)
        return put_id_name(out, id, err);
    if (kg_utf8_is_valid(bytes->data, bytes->len))
        return kg_json_put_string(out, bytes->data, bytes->len, err);
    KG_TRY(kg_str_puts(out, "\"bytes:", err));
    for (size_t i = 0; i < bytes->len; i++)
        KG_TRY(kg_str_printf(out, err, "\\\\x%02x", (unsigned char)bytes->data[i]));
    return kg_str_putc(out, '"', err);
}

static kg_status put_pair(struct kg_str *out, const struct kg_api_answer *a,
                          struct kg_str *bytes, int32_t id, float logp,
                          struct kg_err *err)
{
    KG_TRY(put_token(out, a, bytes, id, err));
    KG_TRY(kg_str_puts(out, ": ", err));
    return put_logp(out, logp, err);
}

/* Whether token i belongs to the prompt, whose log-probs are in c->prompt. */
static bool is_of_prompt(const struct kg_api_choice *c, size_t i)
{
    return c->prompt && i < c->t->prompt_n;
}

static size_t first_listed(const struct kg_api_choice *c)
{
    return c->prompt ? 0 : c->from;
}

static float logp_at(const struct kg_api_choice *c, size_t i)
{
    return is_of_prompt(c, i) ? c->prompt->scores.logp[i] : c->t->logp[i];
}

/* The likeliest ids, and the token itself if it is not among them. */
static kg_status put_top(struct kg_str *out, const struct kg_api_answer *a,
                         struct kg_str *bytes, const struct kg_api_choice *c, size_t i,
                         struct kg_err *err)
{
    const struct kg_traj *t = c->t;
    const struct kg_prompt_scores *s = is_of_prompt(c, i) ? &c->prompt->scores : NULL;
    const int32_t *ids = (s ? s->top_ids : t->top_ids) + i * (size_t)t->top_k;
    const float *logp = (s ? s->top_logp : t->top_logp) + i * (size_t)t->top_k;
    bool listed = false;
    KG_TRY(kg_str_putc(out, '{', err));
    for (int k = 0; k < t->top_k; k++) {
        listed |= ids[k] == t->tokens[i];
        KG_TRY(put_pair(out, a, bytes, ids[k], logp[k], err));
        if (k + 1 < t->top_k)
            KG_TRY(kg_str_puts(out, ", ", err));
    }
    if (!listed) {
        KG_TRY(kg_str_puts(out, ", ", err));
        KG_TRY(put_pair(out, a, bytes, t->tokens[i], logp_at(c, i), err));
    }
    return kg_str_putc(out, '}', err);
}

/* Prompt tokens have an offset of their own: the choice's offset has already passed the
 * prompt's text. Added tokens (BOS) have the offset 0. */
static kg_status put_prompt_offsets(struct kg_str *out, const struct kg_api_answer *a,
                                    struct kg_str *bytes, const struct kg_api_choice *c,
                                    struct kg_err *err)
{
    struct kg_api_offset at = {0};
    size_t added = c->prompt->added;
    for (size_t i = 0; i < c->t->prompt_n; i++) {
        KG_TRY(kg_str_printf(out, err, i > 0 ? ", %zu" : "%zu", at.characters));
        KG_TRY(token_bytes(bytes, a, c->t->tokens[i], err));
        size_t skip = added < bytes->len ? added : bytes->len;
        added -= skip;
        kg_api_offset_add(&at, kg_str_text(bytes) + skip, bytes->len - skip);
    }
    return c->from < c->to ? kg_str_puts(out, ", ", err) : KG_OK;
}

/* Special tokens are not part of a completion's text, unless the request asks for
 * them. */
static kg_status put_offsets(struct kg_str *out, const struct kg_api_answer *a,
                             struct kg_str *bytes, const struct kg_api_choice *c,
                             struct kg_err *err)
{
    if (c->prompt)
        KG_TRY(put_prompt_offsets(out, a, bytes, c, err));
    for (size_t i = c->from; i < c->to; i++) {
        KG_TRY(kg_str_printf(out, err, i > c->from ? ", %zu" : "%zu",
                             c->offset->characters));
        if (a->m->tok && !a->r->specials &&
            kg_tokenizer_is_special(a->m->tok, c->t->tokens[i]))
            continue;
        KG_TRY(token_bytes(bytes, a, c->t->tokens[i], err));
        kg_api_offset_add(c->offset, kg_str_text(bytes), bytes->len);
    }
    return KG_OK;
}

/* The first token of a prompt has no log-prob: null. */
static kg_status put_text_logps(struct kg_str *out, const struct kg_api_choice *c,
                                struct kg_err *err)
{
    size_t first = first_listed(c);
    for (size_t i = first; i < c->to; i++) {
        KG_TRY(kg_str_puts(out, i > first ? ", " : "", err));
        KG_TRY(i == 0 ? kg_str_puts(out, "null", err)
                      : put_logp(out, logp_at(c, i), err));
    }
    return KG_OK;
}

static kg_status put_tops(struct kg_str *out, const struct kg_api_answer *a,
                          struct kg_str *bytes, const struct kg_api_choice *c,
                          struct kg_err *err)
{
    size_t first = first_listed(c);
    if (c->t->top_k == 0)
        return kg_str_puts(out, "null", err);
    KG_TRY(kg_str_putc(out, '[', err));
    for (size_t i = first; i < c->to; i++) {
        KG_TRY(kg_str_puts(out, i > first ? ", " : "", err));
        KG_TRY(i == 0 ? kg_str_puts(out, "null", err)
                      : put_top(out, a, bytes, c, i, err));
    }
    return kg_str_putc(out, ']', err);
}

static kg_status put_text_logprobs(struct kg_str *out, const struct kg_api_answer *a,
                                   struct kg_str *bytes, const struct kg_api_choice *c,
                                   struct kg_err *err)
{
    size_t first = first_listed(c);
    KG_TRY(kg_str_puts(out, "{\"tokens\": [", err));
    for (size_t i = first; i < c->to; i++) {
        KG_TRY(kg_str_puts(out, i > first ? ", " : "", err));
        KG_TRY(put_token(out, a, bytes, c->t->tokens[i], err));
    }
    KG_TRY(kg_str_puts(out, "], \"token_logprobs\": [", err));
    KG_TRY(put_text_logps(out, c, err));
    KG_TRY(kg_str_puts(out, "], \"top_logprobs\": ", err));
    KG_TRY(put_tops(out, a, bytes, c, err));
    KG_TRY(kg_str_puts(out, ", \"text_offset\": [", err));
    KG_TRY(put_offsets(out, a, bytes, c, err));
    return kg_str_puts(out, "]}", err);
}

static kg_status put_logprobs(struct kg_str *out, const struct kg_api_answer *a,
                              const struct kg_api_choice *c, struct kg_err *err)
{
    struct kg_str bytes = {0};
    kg_status status = kg_str_puts(out, ", \"logprobs\": ", err);
    if (status == KG_OK && !a->r->logprobs)
        status = kg_str_puts(out, "null", err);
    else if (status == KG_OK && a->r->kind == KG_API_CHAT)
        status = put_chat_logprobs(out, a, &bytes, c, err);
    else if (status == KG_OK)
        status = put_text_logprobs(out, a, &bytes, c, err);
    kg_str_release(&bytes);
    return status;
}

/* ---- choices ---- */

static bool has_calls(const struct kg_api_choice *c)
{
    return c->calls && c->calls->n > 0;
}

/* The id of a call: the response's id, the choice's index and the call's index. */
static kg_status put_call(struct kg_str *out, const struct kg_api_answer *a, bool piece,
                          const struct kg_api_choice *c, size_t i, struct kg_err *err)
{
    const char *name = kg_tool_call_name(c->calls, i);
    struct kg_str arguments = {0};
    KG_TRY(kg_str_putc(out, '{', err));
    if (piece)
        KG_TRY(kg_str_printf(out, err, "\"index\": %zu, ", i));
    KG_TRY(kg_str_printf(out, err,
                         "\"id\": \"call_%s-%d-%zu\", \"type\": \"function\", "
                         "\"function\": {\"name\": ",
                         a->id, c->index, i));
    KG_TRY(kg_json_put_string(out, name, strlen(name), err));
    KG_TRY(kg_str_puts(out, ", \"arguments\": ", err));
    kg_status status = kg_json_put_value(&arguments, kg_tool_call_arguments(c->calls, i),
                                         err);
    if (status == KG_OK)
        status = kg_json_put_string(out, kg_str_text(&arguments), arguments.len, err);
    kg_str_release(&arguments);
    KG_TRY(status);
    return kg_str_puts(out, "}}", err);
}

static kg_status put_calls(struct kg_str *out, const struct kg_api_answer *a, bool piece,
                           const struct kg_api_choice *c, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "\"tool_calls\": [", err));
    for (size_t i = 0; i < c->calls->n; i++) {
        KG_TRY(kg_str_puts(out, i > 0 ? ", " : "", err));
        KG_TRY(put_call(out, a, piece, c, i, err));
    }
    return kg_str_putc(out, ']', err);
}

/* Members of a message, each followed by a comma. A stream sends calls in the piece
 * before the one with the finish reason. */
static kg_status put_members(struct kg_str *out, const struct kg_api_answer *a,
                             bool piece, const struct kg_api_choice *c,
                             struct kg_err *err)
{
    bool silent = piece && c->text_n == 0 && !c->first;
    if (!piece || c->first)
        KG_TRY(kg_str_puts(out, "\"role\": \"assistant\", ", err));
    if (!silent) {
        KG_TRY(kg_str_puts(out, "\"content\": ", err));
        KG_TRY(c->text_n == 0 && has_calls(c)
                   ? kg_str_puts(out, "null", err)
                   : kg_json_put_string(out, c->text, c->text_n, err));
        KG_TRY(kg_str_puts(out, ", ", err));
    }
    if (has_calls(c) && !(piece && c->finish != KG_FINISH_NONE)) {
        KG_TRY(put_calls(out, a, piece, c, err));
        KG_TRY(kg_str_puts(out, ", ", err));
    }
    return piece ? KG_OK : kg_str_puts(out, "\"refusal\": null, ", err);
}

static kg_status put_text(struct kg_str *out, const struct kg_api_answer *a, bool piece,
                          const struct kg_api_choice *c, struct kg_err *err)
{
    if (a->r->kind == KG_API_COMPLETION) {
        KG_TRY(kg_str_puts(out, "\"text\": ", err));
        return kg_json_put_string(out, c->text, c->text_n, err);
    }
    KG_TRY(kg_str_printf(out, err, "\"%s\": {", piece ? "delta" : "message"));
    KG_TRY(put_members(out, a, piece, c, err));
    if (out->data[out->len - 1] == ' ') /* the comma of the last member */
        out->len -= 2;
    return kg_str_putc(out, '}', err);
}

static const char *finish_word(const struct kg_api_choice *c)
{
    if (c->finish == KG_FINISH_NONE)
        return "null";
    if (has_calls(c))
        return "\"tool_calls\"";
    return c->finish == KG_FINISH_LENGTH ? "\"length\"" : "\"stop\"";
}

static kg_status put_ids(struct kg_str *out, const struct kg_api_choice *c, bool prompt,
                         struct kg_err *err)
{
    if (prompt) {
        KG_TRY(kg_str_puts(out, ", \"prompt_token_ids\": ", err));
        KG_TRY(kg_json_put_ints(out, c->t->tokens, c->t->prompt_n, err));
    }
    KG_TRY(kg_str_puts(out, ", \"token_ids\": ", err));
    return kg_json_put_ints(out, c->t->tokens + c->from, c->to - c->from, err);
}

/* Ids of a chat's only prompt: vLLM's clients read them here, SGLang's in the choices, so
 * both places have them. */
static kg_status put_prompt_ids(struct kg_str *out, const struct kg_api_answer *a,
                                struct kg_err *err)
{
    const struct kg_ids *ids = &a->r->prompts[0].ids;
    KG_TRY(kg_str_puts(out, ", \"prompt_token_ids\": ", err));
    return kg_json_put_ints(out, ids->ids, ids->n, err);
}

kg_status kg_api_put_begin(struct kg_str *out, const struct kg_api_answer *a, bool piece,
                           bool first, struct kg_err *err)
{
    if (a->r->kind == KG_API_GENERATE)
        return kg_api_put_ids_begin(out, a, first, err);
    const char *object = a->r->kind == KG_API_COMPLETION ? "text_completion"
                         : piece                         ? "chat.completion.chunk"
                                                         : "chat.completion";
    KG_TRY(kg_str_printf(out, err,
                         "{\"id\": \"%s\", \"object\": \"%s\", \"created\": %lld, "
                         "\"model\": ",
                         a->id, object, (long long)a->created));
    KG_TRY(kg_json_put_string(out, a->m->name, strlen(a->m->name), err));
    if (first && a->r->token_ids && a->r->kind == KG_API_CHAT)
        KG_TRY(put_prompt_ids(out, a, err));
    return kg_str_puts(out, ", \"choices\": [", err);
}

kg_status kg_api_put_choice(struct kg_str *out, const struct kg_api_answer *a, bool piece,
                            const struct kg_api_choice *c, struct kg_err *err)
{
    if (out->len > 0 && out->data[out->len - 1] == '}')
        KG_TRY(kg_str_puts(out, ", ", err));
    if (a->r->kind == KG_API_GENERATE)
        return kg_api_put_ids_choice(out, a, c, finish_word(c), err);
    KG_TRY(kg_str_printf(out, err, "{\"index\": %d, ", c->index));
    KG_TRY(put_text(out, a, piece, c, err));
    KG_TRY(put_logprobs(out, a, c, err));
    KG_TRY(kg_str_printf(out, err, ", \"finish_reason\": %s", finish_word(c)));
    if (a->r->token_ids)
        KG_TRY(put_ids(out, c, !piece || c->first, err));
    KG_TRY(kg_api_put_experts(out, a, c, err));
    return kg_str_putc(out, '}', err);
}

kg_status kg_api_put_end(struct kg_str *out, const struct kg_api_answer *a, bool piece,
                         const struct kg_api_usage *usage, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "]", err));
    if (!piece)
        KG_TRY(kg_api_put_prompt_scores(out, a->r, err));
    if (usage)
        KG_TRY(kg_str_printf(
            out, err,
            ", \"usage\": {\"prompt_tokens\": %lld, "
            "\"completion_tokens\": %lld, \"total_tokens\": %lld}",
            (long long)usage->prompt_tokens, (long long)usage->completion_tokens,
            (long long)(usage->prompt_tokens + usage->completion_tokens)));
    else if (piece && a->r->include_usage)
        KG_TRY(kg_str_puts(out, ", \"usage\": null", err));
    if (a->seedless)
        return kg_str_putc(out, '}', err);
    return kg_str_printf(out, err, ", \"seed\": %lld}", (long long)a->seed);
}
