/* Requests: the table of fields. OpenAI's API has more fields than any server implements.
 * Each field is a row with its endpoints. A field in use has a function; a known field
 * without effect is accepted only with its neutral value; an unknown field is refused by
 * name. Conditions between fields are checked at the end. */
#include "serve/api.h"

#include "base/mem.h"
#include "rollout/sampling.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const int64_t MAX_SEED = 1000000000000000000; /* the limit of --seed, too */

/* ---- typed values ---- */

static kg_status wrong(struct kg_err *err, const char *expected, const struct kg_json *v)
{
    struct kg_err ignored;
    struct kg_str found = {.max = 64};
    if (kg_json_put_value(&found, v, &ignored) != KG_OK)
        kg_str_clear(&found); /* too long to show */
    kg_status status = kg_fail(err, KG_EINVAL, "expected %s, found %s%s%s", expected,
                               kg_json_type_name(v), found.len ? " " : "",
                               kg_str_text(&found));
    kg_str_release(&found);
    return status;
}

static kg_status take_bool(bool *out, const struct kg_json *v, struct kg_err *err)
{
    if (kg_json_type(v) != KG_JSON_BOOL)
        return wrong(err, "true or false", v);
    *out = kg_json_bool(v, false);
    return KG_OK;
}

static kg_status take_int(int64_t *out, const struct kg_json *v, int64_t min, int64_t max,
                          struct kg_err *err)
{
    char expected[80];
    *out = kg_json_int(v, 0);
    if (kg_json_type(v) == KG_JSON_INT && *out >= min && *out <= max)
        return KG_OK;
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)min,
             (long long)max);
    return wrong(err, expected, v);
}

static kg_status take_real(double *out, const struct kg_json *v, double min, double max,
                           struct kg_err *err)
{
    char expected[80];
    *out = kg_json_real(v, 0);
    if (kg_json_is_number(v) && *out >= min && *out <= max)
        return KG_OK;
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    return wrong(err, expected, v);
}

/* Whether text is one of `values`, a list separated by " or ". */
static bool is_listed(const char *values, const char *text)
{
    size_t n = strlen(text);
    if (n == 0 || strstr(text, " or "))
        return false;
    for (const char *at = values; (at = strstr(at, text)) != NULL; at++) {
        bool begins = at == values ||
                      (at - values >= 4 && memcmp(at - 4, " or ", 4) == 0);
        if (begins && (at[n] == '\0' || strncmp(at + n, " or ", 4) == 0))
            return true;
    }
    return false;
}

static kg_status take_word(const char **out, const struct kg_json *v, const char *words,
                           struct kg_err *err)
{
    *out = kg_json_text(v, NULL);
    return *out && is_listed(words, *out) ? KG_OK : wrong(err, words, v);
}

/* ---- fields that have an effect ---- */

static kg_status take_model(struct kg_api_request *r, const struct kg_json *v,
                            struct kg_err *err)
{
    r->model = kg_json_text(v, NULL);
    return r->model ? KG_OK : wrong(err, "a string", v);
}

/* Fields of a message: those that chat templates read; those that clients copy from a
 * response and that have no effect; and those that no template reads, which must be
 * null. */
static const struct message_field {
    const char *name;
    bool null_alone;
} message_fields[] = {
    {"role", false},       {"content", false},      {"name", false},
    {"tool_calls", false}, {"tool_call_id", false}, {"reasoning_content", false},
    {"reasoning", false},  {"thinking", false},     {"annotations", false},
    {"refusal", true},     {"audio", true},         {"function_call", true},
};

static kg_status check_message_field(const char *name, const struct kg_json *v,
                                     struct kg_err *err)
{
    for (size_t i = 0; i < sizeof message_fields / sizeof *message_fields; i++) {
        const struct message_field *f = &message_fields[i];

        if (strcmp(f->name, name) != 0)
            continue;
        if (f->null_alone && kg_json_type(v) != KG_JSON_NULL)
            return kg_fail(err, KG_EUNSUPPORTED,
                           "%s: not supported: only null can be given, found %s", name,
                           kg_json_type_name(v));
        return KG_OK;
    }
    if (kg_json_type(v) == KG_JSON_NULL)
        return KG_OK; /* left out: clients send all of a response back */
    return kg_fail(err, KG_EINVAL, "unknown field '%.100s'", name);
}

/* Checks a part of type text; other types are refused where content is read. */
static kg_status check_part(const struct kg_json *part, struct kg_err *err)
{
    const char *type = kg_json_text(kg_json_get(part, "type"), NULL);

    for (size_t i = 0; type && strcmp(type, "text") == 0 && i < kg_json_size(part); i++) {
        const char *name = kg_json_key_at(part, i);

        if (strcmp(name, "type") != 0 && strcmp(name, "text") != 0)
            return kg_fail(err, KG_EINVAL, "content: unknown field '%.100s'", name);
    }
    return KG_OK;
}

static kg_status check_message(const struct kg_json *message, struct kg_err *err)
{
    const struct kg_json *content = kg_json_get(message, "content");

    if (kg_json_type(message) != KG_JSON_OBJECT)
        return KG_OK; /* the reader of messages refuses it */
    for (size_t i = 0; i < kg_json_size(message); i++)
        KG_TRY(check_message_field(kg_json_key_at(message, i),
                                   kg_json_value_at(message, i), err));
    for (size_t i = 0;
         kg_json_type(content) == KG_JSON_ARRAY && i < kg_json_size(content); i++)
        KG_TRY(check_part(kg_json_at(content, i), err));
    return KG_OK;
}

static kg_status take_messages(struct kg_api_request *r, const struct kg_json *v,
                               struct kg_err *err)
{
    if (kg_json_type(v) != KG_JSON_ARRAY || kg_json_size(v) == 0)
        return wrong(err, "an array of at least one message", v);
    for (size_t i = 0; i < kg_json_size(v); i++)
        if (check_message(kg_json_at(v, i), err) != KG_OK)
            return kg_err_prefix(err, "message %zu", i);
    r->messages = v;
    return KG_OK;
}

static kg_status take_prompt(struct kg_api_request *r, const struct kg_json *v,
                             struct kg_err *err)
{
    enum kg_json_type type = kg_json_type(v);
    if (r->kind == KG_API_TOKENIZE && type != KG_JSON_STRING)
        return wrong(err, "a string", v);
    if (type != KG_JSON_STRING && (type != KG_JSON_ARRAY || kg_json_size(v) == 0))
        return wrong(err,
                     "a string, or a non-empty array of token ids, strings or "
                     "arrays of token ids",
                     v);
    r->prompt = v;
    return KG_OK;
}

static kg_status take_tokens(struct kg_api_request *r, const struct kg_json *v,
                             struct kg_err *err)
{
    if (kg_json_type(v) != KG_JSON_ARRAY)
        return wrong(err, "an array of token ids", v);
    r->prompt = v;
    return KG_OK;
}

static kg_status take_params(struct kg_api_request *r, const struct kg_json *v,
                             struct kg_err *err)
{
    if (kg_json_type(v) != KG_JSON_OBJECT)
        return wrong(err, "an object", v);
    r->params = v;
    return KG_OK;
}

static kg_status take_prompt_logprobs(struct kg_api_request *r, const struct kg_json *v,
                                      struct kg_err *err)
{
    int64_t n;
    KG_TRY(take_int(&n, v, 0, KG_API_MAX_TOP, err));
    r->prompt_scores = true;
    r->top_prompt = (int)n;
    return KG_OK;
}

static kg_status take_id(struct kg_api_request *r, const struct kg_json *v,
                         struct kg_err *err)
{
    r->id = kg_json_text(v, NULL);
    return r->id ? KG_OK : wrong(err, "a string", v);
}

static kg_status take_session(struct kg_api_request *r, const struct kg_json *v,
                              struct kg_err *err)
{
    size_t n = 0;
    const char *id = kg_json_text(v, &n);
    if (id == NULL || strlen(id) != n)
        return wrong(err, "a string without NUL", v);
    r->turn.session = id;
    return KG_OK;
}

static kg_status take_mode(struct kg_api_request *r, const struct kg_json *v,
                           struct kg_err *err)
{
    const char *mode;
    KG_TRY(take_word(&mode, v, "tokens or text", err));
    r->texts = strcmp(mode, "text") == 0;
    return KG_OK;
}

static kg_status take_add_special(struct kg_api_request *r, const struct kg_json *v,
                                  struct kg_err *err)
{
    bool add = true;
    KG_TRY(take_bool(&add, v, err));
    r->special = add ? KG_SPECIAL_ADD : KG_SPECIAL_NONE;
    return KG_OK;
}

static kg_status take_vars(struct kg_api_request *r, const struct kg_json *v,
                           struct kg_err *err)
{
    static const char *const taken[] = {"messages", "tools", "add_generation_prompt"};
    if (kg_json_type(v) != KG_JSON_OBJECT)
        return wrong(err, "an object", v);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (kg_json_get(v, taken[i]))
            return kg_fail(
                err, KG_EINVAL,
                "expected variables of the template, found '%s', which the server sets",
                taken[i]);
    r->template_vars = v;
    return KG_OK;
}

static kg_status take_effort(struct kg_api_request *r, const struct kg_json *v,
                             struct kg_err *err)
{
    return take_word(&r->effort, v,
                     "none or minimal or low or medium or high or xhigh or max", err);
}

static kg_status take_verbosity(struct kg_api_request *r, const struct kg_json *v,
                                struct kg_err *err)
{
    return take_word(&r->verbosity, v, "low or medium or high", err);
}

static bool is_tool(const struct kg_json *v)
{
    const char *type = kg_json_text(kg_json_get(v, "type"), NULL);
    const struct kg_json *function = kg_json_get(v, "function");
    return type && strcmp(type, "function") == 0 && kg_tool_name(function) != NULL;
}

static kg_status take_tools(struct kg_api_request *r, const struct kg_json *v,
                            struct kg_err *err)
{
    if (kg_json_type(v) != KG_JSON_ARRAY)
        return wrong(err, "an array of tools", v);
    for (size_t i = 0; i < kg_json_size(v); i++)
        if (!is_tool(kg_json_at(v, i)))
            return kg_fail(err, KG_EINVAL,
                           "tool %zu: expected {\"type\": \"function\", \"function\": "
                           "{\"name\": ...}}",
                           i);
    r->tools = kg_json_size(v) > 0 ? v : NULL;
    return KG_OK;
}

/* kedge cannot force a call. */
static kg_status take_tool_choice(struct kg_api_request *r, const struct kg_json *v,
                                  struct kg_err *err)
{
    const char *choice = kg_json_text(v, NULL);
    r->no_tools = choice && strcmp(choice, "none") == 0;
    if (r->no_tools || (choice && strcmp(choice, "auto") == 0))
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "not supported: only \"none\" or \"auto\" can be given, found %.60s",
                   choice ? choice : kg_json_type_name(v));
}

static kg_status take_parallel(struct kg_api_request *r, const struct kg_json *v,
                               struct kg_err *err)
{
    bool many = true;
    KG_TRY(take_bool(&many, v, err));
    r->one_call = !many;
    return KG_OK;
}

static kg_status take_stream(struct kg_api_request *r, const struct kg_json *v,
                             struct kg_err *err)
{
    return take_bool(&r->stream, v, err);
}

static kg_status take_stream_options(struct kg_api_request *r, const struct kg_json *v,
                                     struct kg_err *err)
{
    if (kg_json_type(v) != KG_JSON_OBJECT)
        return wrong(err, "an object", v);
    for (size_t i = 0; i < kg_json_size(v); i++) {
        const char *key = kg_json_key_at(v, i);
        const struct kg_json *value = kg_json_value_at(v, i);
        bool other = false;
        if (strcmp(key, "include_usage") == 0)
            KG_TRY(take_bool(&r->include_usage, value, err));
        else if (strcmp(key, "include_obfuscation") == 0)
            KG_TRY(take_bool(&other, value, err));
        else
            return kg_fail(err, KG_EINVAL, "unknown option '%.60s'", key);
        if (other)
            return kg_fail(err, KG_EINVAL, "include_obfuscation is not supported");
    }
    return KG_OK;
}

/* A bool in chat, a number elsewhere. For GENERATE, vLLM counts the sampled token among
 * the listed ones, so 1 lists no other token. */
static kg_status take_logprobs(struct kg_api_request *r, const struct kg_json *v,
                               struct kg_err *err)
{
    int64_t n;
    if (r->kind == KG_API_CHAT)
        return take_bool(&r->logprobs, v, err);
    KG_TRY(take_int(&n, v, 0, KG_API_MAX_TOP, err));
    r->logprobs = true;
    r->top_logprobs = r->kind == KG_API_GENERATE && n == 1 ? 0 : (int)n;
    return KG_OK;
}

static kg_status take_top_logprobs(struct kg_api_request *r, const struct kg_json *v,
                                   struct kg_err *err)
{
    int64_t n;
    KG_TRY(take_int(&n, v, 0, KG_API_MAX_TOP, err));
    r->top_logprobs = (int)n;
    return KG_OK;
}

static kg_status take_n(struct kg_api_request *r, const struct kg_json *v,
                        struct kg_err *err)
{
    return take_int(&r->n, v, 1, 128, err);
}

static kg_status take_seed(struct kg_api_request *r, const struct kg_json *v,
                           struct kg_err *err)
{
    int64_t seed;
    KG_TRY(take_int(&seed, v, 0, MAX_SEED, err));
    r->seed = (uint64_t)seed;
    r->seeded = true;
    return KG_OK;
}

static kg_status take_max_tokens(struct kg_api_request *r, const struct kg_json *v,
                                 struct kg_err *err)
{
    int64_t n;
    KG_TRY(take_int(&n, v, r->kind == KG_API_COMPLETION ? 0 : 1, INT_MAX / 2, err));
    if (r->max_tokens != KG_API_NOT_GIVEN && r->max_tokens != n)
        return kg_fail(err, KG_EINVAL,
                       "max_tokens and max_completion_tokens differ: %lld and %lld",
                       (long long)r->max_tokens, (long long)n);
    r->max_tokens = n;
    return KG_OK;
}

/* A key of sampling. Other servers' clients send -1 to switch an integer off. */
static kg_status take_sampling(struct kg_api_request *r, const char *key,
                               const struct kg_json *v, struct kg_err *err)
{
    const struct kg_opt_row *row = kg_sampling_row(key);
    const bool whole = row->type == KG_OPT_INT32;
    const double x = whole && kg_json_int(v, 0) == -1 ? 0 : kg_json_real(v, 0);
    char text[128];

    if (!(whole ? kg_json_type(v) == KG_JSON_INT : kg_json_is_number(v)) ||
        !kg_opt_allows(row, x)) {
        snprintf(text, sizeof text, "%s from %g to %.15g%s",
                 whole ? "an integer" : "a number", row->min, row->max,
                 row->or_zero ? ", or 0" : "");
        return wrong(err, text, v);
    }
    snprintf(text, sizeof text, "%.17g", x);
    kg_opt_put(&r->sampling, row, text);
    return KG_OK;
}

static kg_status take_repetition(struct kg_api_request *r, const struct kg_json *v,
                                 struct kg_err *err)
{
    return take_real(&r->repetition, v, 0.0001, 10000, err);
}

static kg_status take_presence(struct kg_api_request *r, const struct kg_json *v,
                               struct kg_err *err)
{
    return take_real(&r->presence, v, -2, 2, err);
}

static kg_status take_frequency(struct kg_api_request *r, const struct kg_json *v,
                                struct kg_err *err)
{
    return take_real(&r->frequency, v, -2, 2, err);
}

/* Ids are checked against the vocabulary later, when the model is known. */
static kg_status take_bias(struct kg_api_request *r, const struct kg_json *v,
                           struct kg_err *err)
{
    if (kg_json_type(v) != KG_JSON_OBJECT)
        return wrong(err, "an object of ids and numbers", v);
    for (size_t i = 0; i < kg_json_size(v); i++) {
        double add;
        if (take_real(&add, kg_json_value_at(v, i), -100, 100, err) != KG_OK)
            return kg_err_prefix(err, "'%.40s'", kg_json_key_at(v, i));
    }
    r->bias = v;
    return KG_OK;
}

static kg_status take_ignore_eos(struct kg_api_request *r, const struct kg_json *v,
                                 struct kg_err *err)
{
    return take_bool(&r->ignore_eos, v, err);
}

static kg_status take_echo(struct kg_api_request *r, const struct kg_json *v,
                           struct kg_err *err)
{
    return take_bool(&r->echo, v, err);
}

static kg_status take_token_ids(struct kg_api_request *r, const struct kg_json *v,
                                struct kg_err *err)
{
    return take_bool(&r->token_ids, v, err);
}

static kg_status take_experts_from(struct kg_api_request *r, const struct kg_json *v,
                                   struct kg_err *err)
{
    return take_int(&r->experts_from, v, 0, INT32_MAX, err);
}

static kg_status take_skip_special(struct kg_api_request *r, const struct kg_json *v,
                                   struct kg_err *err)
{
    bool skip = true;
    KG_TRY(take_bool(&skip, v, err));
    r->specials = !skip;
    return KG_OK;
}

static kg_status take_ids_for_names(struct kg_api_request *r, const struct kg_json *v,
                                    struct kg_err *err)
{
    return take_bool(&r->ids_for_names, v, err);
}

static kg_status take_stop_tokens(struct kg_api_request *r, const struct kg_json *v,
                                  struct kg_err *err)
{
    if (kg_json_type(v) != KG_JSON_ARRAY)
        return wrong(err, "an array of token ids", v);
    if (kg_json_size(v) > KG_API_MAX_STOP_IDS)
        return kg_fail(err, KG_EINVAL, "expected at most %d token ids, found %zu",
                       KG_API_MAX_STOP_IDS, kg_json_size(v));
    for (size_t i = 0; i < kg_json_size(v); i++)
        if (kg_json_type(kg_json_at(v, i)) != KG_JSON_INT)
            return wrong(err, "a token id", kg_json_at(v, i));
    r->stop_tokens = v;
    return KG_OK;
}

static kg_status add_stop(struct kg_api_request *r, const struct kg_json *v,
                          struct kg_err *err)
{
    size_t n = 0;
    const char *text = kg_json_text(v, &n);
    if (text == NULL)
        return wrong(err, "a string or an array of strings", v);
    if (n == 0 || n > KG_MAX_STOP_BYTES || strlen(text) != n)
        return kg_fail(err, KG_EINVAL,
                       "expected a stop string of 1 to %d bytes without NUL, found %zu",
                       KG_MAX_STOP_BYTES, n);
    if (r->n_stops == KG_MAX_STOPS)
        return kg_fail(err, KG_EINVAL, "more than %d stop strings", KG_MAX_STOPS);
    r->stops[r->n_stops++] = text;
    return KG_OK;
}

static kg_status take_stop(struct kg_api_request *r, const struct kg_json *v,
                           struct kg_err *err)
{
    if (kg_json_type(v) != KG_JSON_ARRAY)
        return add_stop(r, v, err);
    for (size_t i = 0; i < kg_json_size(v); i++)
        KG_TRY(add_stop(r, kg_json_at(v, i), err));
    return KG_OK;
}

/* ---- the table ---- */

enum {
    TEXT = 1u << KG_API_COMPLETION,
    CHAT = 1u << KG_API_CHAT,
    BOTH = TEXT | CHAT,
    IDS = 1u << KG_API_TOKENIZE,
    WORDS = 1u << KG_API_DETOKENIZE,
    GEN = 1u << KG_API_GENERATE,
    PARAMS = KG_API_OF_PARAMS,
    TALK = CHAT | IDS | KG_API_OF_MESSAGES,
};

#define SAMPLING(field, key, flag, letter, arg, usual, min, max, zero, help, ...)        \
    {                                                                                    \
        key, BOTH | PARAMS, "", help, NULL                                               \
    }
static const char CONSTRAINED[] =
    "constrained answers are not supported: describe the form in the prompt and check "
    "the answer, or leave the field out";

const struct kg_api_field kg_api_fields[] = {
    {"model", BOTH | GEN | IDS | WORDS, "", "a name from /v1/models; optional",
     take_model},
    {"messages", CHAT | IDS, "",
     "role and content (text, or parts of type text); for the assistant also tool_calls",
     take_messages},
    {"tools", TALK, "", "functions that the model may call, for the chat template",
     take_tools},
    {"tool_choice", TALK, "", "auto, or none, which hides the tools from the model",
     take_tool_choice},
    {"parallel_tool_calls", CHAT, "", "true; false is refused if there are tools",
     take_parallel},
    {"prompt", TEXT | IDS, "", "text, token ids, or an array of either", take_prompt},
    {"max_tokens", BOTH | PARAMS, "",
     "largest number of new tokens (0 only with echo); default: --default-max-tokens, or "
     "else 16 for completions, the rest of the context for chat",
     take_max_tokens},
    {"max_completion_tokens", CHAT, "", "the newer name of max_tokens", take_max_tokens},
    KG_SAMPLING_KEYS(SAMPLING, ),
    {"repetition_penalty", BOTH | PARAMS, "",
     "extension: divides positive logits of ids in prompt or completion, and multiplies "
     "negative ones; 1: off",
     take_repetition},
    {"presence_penalty", BOTH | PARAMS, "",
     "subtracted from logits of ids in the completion; -2 to 2", take_presence},
    {"frequency_penalty", BOTH | PARAMS, "",
     "subtracted, times the id's count, from logits of ids in the completion; -2 to 2",
     take_frequency},
    {"logit_bias", BOTH | PARAMS, "", "numbers to add to the logits of ids; -100 to 100",
     take_bias},
    {"n", BOTH | PARAMS, "", "completions of each prompt, 1 to 128", take_n},
    {"seed", BOTH | PARAMS, "",
     "0 to 10^18; completion i is sampled with seed + i; default: the server's choice, "
     "given in the response",
     take_seed},
    {"stop", BOTH | PARAMS, "",
     "one string, or up to 16: a completion ends before any of them", take_stop},
    {"stop_token_ids", BOTH | PARAMS, "",
     "extension: ids that end a completion; they are listed and have no text",
     take_stop_tokens},
    {"stream", BOTH | GEN, "", "server-sent events, a chunk for each token", take_stream},
    {"stream_options", BOTH | GEN, "", "include_usage: a last chunk with the usage",
     take_stream_options},
    {"logprobs", BOTH | PARAMS, "", "chat: true or false; completions: 0 to 20 other ids",
     take_logprobs},
    {"top_logprobs", CHAT, "", "0 to 20 other ids with each token", take_top_logprobs},
    {"echo", TEXT, "", "prompt and completion; with logprobs also the prompt's tokens",
     take_echo},
    {"ignore_eos", BOTH | PARAMS, "", "extension: continue after an end token",
     take_ignore_eos},
    {"return_token_ids", BOTH | GEN, "",
     "extension: list the ids of prompt and completion", take_token_ids},
    {"skip_special_tokens", BOTH | PARAMS, "",
     "extension: false: special tokens are part of the text", take_skip_special},
    {"return_tokens_as_token_ids", BOTH, "",
     "extension: name the tokens of log-probs token_id:ID", take_ids_for_names},
    {"token_ids", GEN, "", "the prompt", take_tokens},
    {"sampling_params", GEN, "", "sampling of the completion", take_params},
    {"output_mode", GEN, "", "tokens, or text, which adds text and names of tokens",
     take_mode},
    {"request_id", GEN, "", "returned in the answer", take_id},
    {"session_id", CHAT, "",
     "extension: a later turn of the session reuses the sampled ids", take_session},
    {"prompt_logprobs", PARAMS, "", "log-probs of the prompt, with 0 to 20 likeliest ids",
     take_prompt_logprobs},
    {"tokens", WORDS, "", "ids to turn into text", take_tokens},
    {"add_special_tokens", IDS, "", "add BOS to a prompt (not to messages)",
     take_add_special},
    {"chat_template_kwargs", TALK, "",
     "extension: variables of the chat template, such as enable_thinking", take_vars},
    {"reasoning_effort", TALK, "",
     "a variable of the chat template, which also sets enable_thinking", take_effort},
    {"verbosity", TALK, "", "a variable of the chat template", take_verbosity},

    {"user", BOTH, "*", "", NULL},
    {"metadata", BOTH, "*", "", NULL},
    {"service_tier", BOTH, "*", "", NULL},
    {"safety_identifier", BOTH, "*", "", NULL},
    {"prompt_cache_key", BOTH, "*", "", NULL},
    {"prompt_cache_retention", BOTH, "*", "", NULL},
    {"prompt_cache_options", BOTH, "*", "", NULL},
    {"prediction", CHAT, "*", "", NULL},
    {"session_id", TEXT | GEN, "*", "", NULL},
    {"request_id", BOTH, "*", "", NULL},
    {"cache_salt", BOTH | GEN, "*", "", NULL},
    {"priority", BOTH | GEN, "*", "", NULL},

    {"reasoning_effort", PARAMS, "*", "", NULL},
    {"reasoning_ended", GEN, "*", "", NULL},
    {"reasoning_parser_kwargs", GEN, "*", "", NULL},
    {"token_offsets", GEN, "*", "", NULL},
    {"spaces_between_special_tokens", PARAMS, "*", "", NULL},
    {"include_stop_str_in_output", PARAMS, "*", "", NULL},
    {"detokenize", PARAMS, "*", "", NULL},
    {"output_kind", PARAMS, "*", "", NULL},
    {"routed_experts_prompt_start", PARAMS, "",
     "first position of routed_experts (0); without them it is ignored",
     take_experts_from},

    {"content_parts", GEN, "null or []", "prompts are ids alone", NULL},
    {"features", GEN, "null", "prompts are ids alone", NULL},
    {"kv_transfer_params", GEN, "null", "", NULL},
    {"ec_transfer_params", GEN, "null", "", NULL},
    {"extra_args", PARAMS, "null or {}", "", NULL},
    {"store", CHAT, "false", "", NULL},
    {"best_of", TEXT, "1", "", NULL},
    {"suffix", TEXT, "\"\"", "", NULL},
    {"functions", CHAT, "[]", "", NULL},
    {"function_call", CHAT, "\"none\" or \"auto\"", "", NULL},
    {"response_format", BOTH, "{\"type\":\"text\"}", CONSTRAINED, NULL},
    {"structured_outputs", BOTH | PARAMS, "null", CONSTRAINED, NULL},
    {"guided_json", BOTH, "null", CONSTRAINED, NULL},
    {"guided_regex", BOTH, "null", CONSTRAINED, NULL},
    {"guided_choice", BOTH, "null", CONSTRAINED, NULL},
    {"guided_grammar", BOTH, "null", CONSTRAINED, NULL},
    {"json_schema", BOTH, "null", CONSTRAINED, NULL},
    {"grammar", BOTH, "null", CONSTRAINED, NULL},
    {"regex", BOTH, "null", CONSTRAINED, NULL},
    {"min_tokens", BOTH | PARAMS, "0", "", NULL},
    {"length_penalty", BOTH, "1", "", NULL},
    {"bad_words", BOTH | PARAMS, "[]", "", NULL},
    {"allowed_token_ids", BOTH | PARAMS, "null", "", NULL},
    {"prompt_logprobs", BOTH, "null", "use echo with logprobs in completions", NULL},
    {"include_stop_str_in_output", BOTH, "false", "", NULL},
    {"include_reasoning", CHAT, "true", "reasoning is part of the content", NULL},
    {"modalities", CHAT, "[\"text\"]", "", NULL},
    {"spaces_between_special_tokens", BOTH, "true", "", NULL},
    {"use_beam_search", BOTH, "false", "", NULL},
    {"return_token_strs", IDS, "false", "", NULL},
    {"add_generation_prompt", CHAT | IDS, "true", "", NULL},
    {"continue_final_message", CHAT | IDS, "false", "", NULL},
    {0},
};

/* The row of this name for the kind; else a row of another kind; NULL: no such name. */
static const struct kg_api_field *find_field(const char *name, unsigned kind)
{
    const struct kg_api_field *found = NULL;
    for (const struct kg_api_field *f = kg_api_fields; f->name; f++)
        if (strcmp(f->name, name) == 0 && (found == NULL || f->kinds & kind))
            found = f;
    return found;
}

/* Values are compared as JSON text; 0.0 equals 0. */
static kg_status take_neutral(const struct kg_api_field *f, const struct kg_json *v,
                              struct kg_err *err)
{
    struct kg_str found = {0};
    kg_status status = KG_OK;
    double x = kg_json_real(v, 0.5);
    if (kg_json_is_number(v) && x == floor(x) && fabs(x) < 1e9)
        status = kg_str_printf(&found, err, "%.0f", x + 0.0);
    else
        status = kg_json_put_value(&found, v, err);
    if (status == KG_OK && !is_listed(f->neutral, kg_str_text(&found)))
        status = kg_fail(
            err, KG_EUNSUPPORTED, "not supported: only %s can be given, found %.100s%s%s",
            f->neutral, kg_str_text(&found), f->help[0] ? "; " : "", f->help);
    kg_str_release(&found);
    return status;
}

static kg_status take_field(struct kg_api_request *r, const struct kg_api_field *f,
                            const struct kg_json *v, struct kg_err *err)
{
    if (kg_json_type(v) == KG_JSON_NULL || f->neutral[0] == '*')
        return KG_OK;
    kg_status status = f->take       ? f->take(r, v, err)
                       : *f->neutral ? take_neutral(f, v, err)
                                     : take_sampling(r, f->name, v, err);
    return status == KG_OK ? KG_OK : kg_err_prefix(err, "%s", f->name);
}

/* Takes the fields of a request or of its sampling_params.   kind: bit of the kind */
static kg_status take_fields(struct kg_api_request *r, struct kg_api_fault *fault,
                             const struct kg_json *object, unsigned kind,
                             struct kg_err *err)
{
    for (size_t i = 0; i < kg_json_size(object); i++) {
        const char *key = kg_json_key_at(object, i);
        const struct kg_api_field *f = find_field(key, kind);
        if (f == NULL || !(f->kinds & kind)) {
            fault->code = "unknown_parameter";
            fault->param = f ? f->name : strlen(key) <= 100 ? key : NULL;
            return kg_fail(err, KG_EINVAL,
                           "Unrecognized request argument supplied: %.100s%s", key,
                           f ? " (it belongs to another kind of request)" : "");
        }
        fault->param = f->name;
        if (take_field(r, f, kg_json_value_at(object, i), err) != KG_OK) {
            if (err->code == KG_EUNSUPPORTED)
                fault->code = "unsupported_parameter";
            return err->code;
        }
    }
    fault->param = NULL;
    return KG_OK;
}

/* ---- fields that concern each other ---- */

const char *kg_api_asked(const struct kg_api_request *r)
{
    if (r->messages || r->kind == KG_API_CHAT)
        return "messages";
    return r->kind == KG_API_DETOKENIZE ? "tokens"
           : r->kind == KG_API_GENERATE ? "token_ids"
                                        : "prompt";
}

/* Refuses fields that need messages in a request with a prompt. */
static kg_status check_prompt_only(const struct kg_api_request *r,
                                   struct kg_api_fault *fault, struct kg_err *err)
{
    const struct kg_json *root = r->doc.root;
    for (size_t i = 0; i < kg_json_size(root); i++) {
        const struct kg_api_field *f = find_field(kg_json_key_at(root, i), 1u << r->kind);
        fault->param = f->name;
        if (f->kinds & KG_API_OF_MESSAGES &&
            kg_json_type(kg_json_value_at(root, i)) != KG_JSON_NULL)
            return kg_fail(err, KG_EINVAL, "%s: expected messages with it, found prompt",
                           f->name);
    }
    return KG_OK;
}

/* A field in use that changes the sampled distribution but no log-prob; NULL: none. */
static const char *adjusts(const struct kg_api_request *r)
{
    return r->repetition != 1          ? "repetition_penalty"
           : r->presence != 0          ? "presence_penalty"
           : r->frequency != 0         ? "frequency_penalty"
           : kg_json_size(r->bias) > 0 ? "logit_bias"
                                       : NULL;
}

/* A client that asks for ids and log-probs trains on them, so they must agree. */
static kg_status check_trained(const struct kg_api_request *r, struct kg_api_fault *fault,
                               struct kg_err *err)
{
    fault->param = adjusts(r);
    bool ids = r->token_ids || r->kind == KG_API_GENERATE;
    if (fault->param == NULL || !ids || !r->logprobs)
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "%s: not supported together with %slogprobs: tokens would not be "
                   "sampled from the listed log-probs; leave one of them out",
                   fault->param, r->token_ids ? "return_token_ids and " : "");
}

/* Fields of text are ignored for GENERATE, unless the request asks for text. */
static kg_status check_text(const struct kg_api_request *r, struct kg_api_fault *fault,
                            struct kg_err *err)
{
    static const struct {
        const char *name;
        bool only;
    } fixed[] = {{"detokenize", true},
                 {"include_stop_str_in_output", false},
                 {"spaces_between_special_tokens", true}};
    for (size_t i = 0; r->texts && i < sizeof fixed / sizeof *fixed; i++) {
        const bool only = fixed[i].only;
        fault->param = fixed[i].name;
        const struct kg_json *v = kg_json_get(r->params, fixed[i].name);
        if (v && kg_json_type(v) != KG_JSON_NULL && kg_json_type(v) != KG_JSON_BOOL)
            return wrong(err, "true or false", v);
        if (kg_json_bool(v, only) != only)
            return kg_fail(err, KG_EUNSUPPORTED,
                           "%s: expected %s together with output_mode \"text\"",
                           fixed[i].name, only ? "true" : "false");
    }
    return KG_OK;
}

static kg_status check_together(struct kg_api_request *r, struct kg_api_fault *fault,
                                struct kg_err *err)
{
    if (r->no_tools)
        r->tools = NULL;
    fault->param = "parallel_tool_calls";
    if (r->tools && r->one_call)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "parallel_tool_calls: false is not supported: a model may make "
                       "several calls at once");
    fault->param = kg_api_asked(r);
    if (r->prompt == NULL && r->messages == NULL)
        return kg_fail(err, KG_EINVAL, "expected the field '%s'", fault->param);
    if (r->prompt && r->messages)
        return kg_fail(err, KG_EINVAL, "expected either prompt or messages, found both");
    if (r->messages == NULL)
        KG_TRY(check_prompt_only(r, fault, err));
    fault->param = "top_logprobs";
    if (r->top_logprobs > 0 && !r->logprobs)
        return kg_fail(err, KG_EINVAL, "top_logprobs: expected logprobs to be true");
    KG_TRY(check_trained(r, fault, err));
    KG_TRY(check_text(r, fault, err));
    fault->param = "stream_options";
    if (r->include_usage && !r->stream)
        return kg_fail(err, KG_EINVAL, "stream_options: expected stream to be true");
    fault->param = "prompt_logprobs";
    if (r->prompt_scores && r->stream)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "prompt_logprobs: not supported in a stream: set stream to false");
    fault->param = "max_tokens";
    if (r->max_tokens == 0 && !r->echo)
        return kg_fail(err, KG_EINVAL,
                       "max_tokens: expected an integer from 1, or 0 together with echo");
    fault->param = NULL;
    return KG_OK;
}

kg_status kg_api_parse(struct kg_api_request *r, struct kg_api_fault *fault,
                       enum kg_api_kind kind, const char *body, size_t n,
                       struct kg_err *err)
{
    *r = (struct kg_api_request){.kind = kind,
                                 .n = 1,
                                 .max_tokens = KG_API_NOT_GIVEN,
                                 .sampling = {.temperature = 1, KG_TRUNCATION_OFF},
                                 .repetition = 1};
    *fault = (struct kg_api_fault){.status = 400};
    KG_TRY(kg_json_parse(&r->doc, body, n, "the body", err));
    if (kg_json_type(r->doc.root) != KG_JSON_OBJECT)
        return kg_fail(err, KG_EFORMAT, "the body: expected a JSON object, found %s",
                       kg_json_type_name(r->doc.root));
    KG_TRY(take_fields(r, fault, r->doc.root, 1u << kind, err));
    KG_TRY(take_fields(r, fault, r->params, KG_API_OF_PARAMS, err));
    return check_together(r, fault, err);
}

void kg_api_release(struct kg_api_request *r)
{
    for (size_t i = 0; i < r->n_prompts; i++) {
        kg_ids_release(&r->prompts[i].ids);
        kg_str_release(&r->prompts[i].text);
        kg_mem_free(r->prompts[i].scores.logp);
        kg_mem_free(r->prompts[i].scores.top_ids);
        kg_mem_free(r->prompts[i].scores.top_logp);
    }
    kg_str_release(&r->turn.text);
    kg_mem_free(r->prompts);
    kg_mem_free(r->bias_ids);
    kg_mem_free(r->stop_ids);
    kg_json_release(&r->vars);
    kg_json_release(&r->doc);
    *r = (struct kg_api_request){0};
}
