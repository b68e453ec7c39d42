/* OpenAI's API as data: turns a request's JSON into a struct, and responses into JSON. No
 * sockets, threads or engine.
 *
 * A table has a row for every known field of a request: the field is used, or ignored
 * because it cannot change the response, or accepted only with its neutral value. Any
 * other field is refused by name, so nothing that would change a response is ignored.
 */
#ifndef KG_SERVE_API_H
#define KG_SERVE_API_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"
#include "rollout/rollout.h"
#include "serve/session.h"
#include "serve/tools.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    KG_API_MAX_CHOICES = 256,
    KG_API_MAX_TOP = 20,
    /* most log-probs of prompts that are listed: in a whole response; in a stream, whose
     * first piece lists them all and must fit into the client's buffer */
    KG_API_MAX_LISTED = 1 << 20,
    KG_API_MAX_STREAMED = 1 << 14,
    KG_API_DEFAULT_TOKENS = 16,
    KG_API_MAX_STOP_IDS = 256,
    KG_API_NOT_GIVEN = -1
};

/* The last three are extensions of vLLM: completion from ids to ids, and two requests
 * that need no model. */
enum kg_api_kind {
    KG_API_COMPLETION,
    KG_API_CHAT,
    KG_API_GENERATE,
    KG_API_TOKENIZE,
    KG_API_DETOKENIZE,
    KG_API_KINDS
};
static inline bool kg_api_is_answered(enum kg_api_kind kind) /* needs the model */
{
    return kind < KG_API_TOKENIZE;
}

/* Fields of an error response besides its message. */
struct kg_api_fault {
    int status;        /* HTTP status */
    const char *param; /* the invalid field, static or the request's; NULL: none */
    const char *code;  /* NULL for none; static text */
};
/* Appends {"error": {"message", "type", "param", "code"}}; the type follows from the
 * status */
kg_status kg_api_put_error(struct kg_str *out, const struct kg_api_fault *fault,
                           const char *message, struct kg_err *err) KG_MUST_CHECK;

struct kg_api_prompt {
    struct kg_ids ids;  /* owned */
    struct kg_str text; /* owned; set for echo and for ids to text */
    /* bytes of the first tokens that are not part of the text (BOS, the tokenizer's
     * leading space); set for echo */
    size_t added;
    struct kg_prompt_scores scores; /* owned; the engine sets it for echo with logprobs */
};

struct kg_api_request {
    enum kg_api_kind kind;
    struct kg_json_doc doc;       /* owned; pointers below borrow from it */
    const char *model;            /* NULL: not given */
    const char *id;               /* id for the response; NULL: the server chooses it */
    const struct kg_json *params; /* kind GENERATE: sampling_params; NULL: not given */
    const struct kg_json *prompt, *messages, *template_vars;
    const char *effort, *verbosity; /* template variables; NULL: not given */
    struct kg_json_doc vars;        /* owned; template_vars, effort and verbosity */
    const struct kg_json *tools;    /* NULL: no tools */
    bool no_tools;                  /* tool_choice is "none" */
    bool one_call;                  /* parallel_tool_calls is false */
    bool reads_calls;               /* parse tool calls in the completions */
    struct kg_session_turn turn;    /* kind CHAT: the session that the request names */
    enum kg_special special;        /* special tokens around a text prompt */
    bool stream;
    bool include_usage;
    bool logprobs;
    int top_logprobs;   /* number of likeliest ids listed with each token */
    bool prompt_scores; /* list the prompt's log-probs; kind GENERATE */
    int top_prompt;     /* number of likeliest ids listed with each prompt token */
    bool echo;
    bool ignore_eos;
    bool texts;           /* kind GENERATE: also return the text */
    bool specials;        /* special tokens are part of the text */
    bool token_ids;       /* list the ids of prompt and completion */
    bool ids_for_names;   /* tokens in log-prob lists are named token_id:ID */
    int64_t experts_from; /* first position whose experts are returned */
    int64_t n;
    bool seeded;
    uint64_t seed;
    int64_t max_tokens; /* KG_API_NOT_GIVEN before kg_api_encode; 0: none, with echo */
    struct kg_sampling sampling; /* only the fields of kg_sampling_rows are set */
    double repetition, presence, frequency;
    const struct kg_json *stop_tokens; /* NULL: none */
    int32_t *stop_ids;                 /* (n_stop_ids) owned; set by kg_api_encode */
    size_t n_stop_ids;
    const struct kg_json *bias;     /* NULL: none */
    struct kg_logit_bias *bias_ids; /* (n_bias) owned; set by kg_api_encode */
    size_t n_bias;
    const char *stops[KG_MAX_STOPS];
    int n_stops;
    struct kg_api_prompt *prompts; /* (n_prompts) owned; set by kg_api_encode */
    size_t n_prompts;
};

enum {
    KG_API_OF_MESSAGES = 1 << KG_API_KINDS,   /* affects messages only */
    KG_API_OF_PARAMS = KG_API_OF_MESSAGES * 2 /* is inside sampling_params */
};

struct kg_api_field {
    const char *name;
    unsigned kinds;      /* bits 1 << enum kg_api_kind, and the two above */
    const char *neutral; /* "": used; "*": ignored; else the only accepted values */
    const char *help;
    kg_status (*take)(
        struct kg_api_request *r, const struct kg_json *v,
        struct kg_err *err); /* NULL: not used, or a row of kg_sampling_rows */
};
/* Ended by a row with name NULL. A name may have several rows, for different kinds. */
extern const struct kg_api_field kg_api_fields[];

/* Parses a request. On failure *fault describes the response; r must be released in any
 * case.
 * errors: EFORMAT (JSON), EINVAL (fields), ENOMEM */
kg_status kg_api_parse(struct kg_api_request *r, struct kg_api_fault *fault,
                       enum kg_api_kind kind, const char *body, size_t n,
                       struct kg_err *err) KG_MUST_CHECK;
void kg_api_release(struct kg_api_request *r); /* {0} allowed */

/* The name of the field with the input: prompt, messages, token_ids or tokens. */
const char *kg_api_asked(const struct kg_api_request *r);

/* Number of top ids to record per token of prompt or completion. */
static inline int kg_api_records(const struct kg_api_request *r)
{
    return r->top_prompt > r->top_logprobs ? r->top_prompt : r->top_logprobs;
}

/* A served model. */
struct kg_api_model {
    const char *name;
    const char *parent; /* name of its base model; NULL: not an adapter */
    int32_t adapter;    /* as in struct kg_request */
    /* not NULL: complete responses list the experts of their tokens */
    const struct kg_model_config *routed;
    int64_t created;                     /* seconds since 1970 */
    const struct kg_tokenizer *tok;      /* NULL: ids only */
    const struct kg_chat_template *chat; /* NULL: no chat */
    const char *system;  /* system prompt for conversations without one; NULL: none */
    const char *opening; /* start of the assistant's turn: text/prompt.h; NULL: none */
    const char *date;    /* see text/prompt.h; NULL: today, at each request */
    int32_t vocab;
    int32_t max_len; /* tokens of prompt and completion together */
    /* max_tokens for requests that do not set it; 0: for chat the rest of the context,
     * for completions KG_API_DEFAULT_TOKENS */
    int32_t default_tokens;
    bool knows_calls;             /* kg_tool_calls_known */
    bool budgeted;                /* an episode's budgets may shorten or refuse turns */
    struct kg_sessions *sessions; /* borrowed; NULL: no sessions are kept */
};

/* The model with this name; the first if NULL.
 * errors: ENOTFOUND, listing the names */
kg_status kg_api_find(const struct kg_api_model **out, const struct kg_api_model *models,
                      size_t n, const char *name, struct kg_err *err) KG_MUST_CHECK;
/* Tokenizes the request's prompts, stop ids and biases, and sets max_tokens. m: the
 * requested model.   errors: as kg_api_parse */
kg_status kg_api_encode(struct kg_api_request *r, struct kg_api_fault *fault,
                        const struct kg_api_model *m, struct kg_err *err) KG_MUST_CHECK;

/* ---- responses ---- */

struct kg_api_answer {
    const struct kg_api_request *r;
    const struct kg_api_model *m;
    char id[40];
    int64_t created;
    /* the seed that was used; an extension that makes every completion reproducible */
    uint64_t seed;
    bool seedless; /* an episode determines the draws, so there is no seed to report */
};

struct kg_api_usage {
    int64_t prompt_tokens, completion_tokens;
};

/* The text offset of the next token, in characters. A character counts once its last byte
 * has arrived, so a token that only begins a character adds 0. Each malformed byte counts
 * as one character. {0} is the start. */
struct kg_api_offset {
    size_t characters;
    char part[4]; /* bytes of an incomplete character */
    size_t n;     /* number of bytes in `part` */
};
void kg_api_offset_add(struct kg_api_offset *o, const char *text, size_t n);

/* One choice, complete or a streamed piece of it. */
struct kg_api_choice {
    int index;
    bool first; /* streamed: the first piece, which has the role */
    const char *text;
    size_t text_n;
    const struct kg_traj *t;
    size_t from, to; /* tokens of t listed in this piece */
    /* not NULL: list the prompt's tokens and scores first */
    const struct kg_api_prompt *prompt;
    struct kg_api_offset *offset;      /* in: of token `from`; out: of token `to` */
    enum kg_finish finish;             /* KG_FINISH_NONE: unfinished */
    const struct kg_tool_calls *calls; /* tool calls of the completion; NULL: none */
};

/* A complete response is begin, choices, end. A streamed piece has the same form, with
 * `piece` true.
 * first: true for a complete response and for the first piece of a choice
 * usage NULL: no usage (in a stream with include_usage: null). */
kg_status kg_api_put_begin(struct kg_str *out, const struct kg_api_answer *a, bool piece,
                           bool first, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_api_put_choice(struct kg_str *out, const struct kg_api_answer *a, bool piece,
                            const struct kg_api_choice *c,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_api_put_end(struct kg_str *out, const struct kg_api_answer *a, bool piece,
                         const struct kg_api_usage *usage,
                         struct kg_err *err) KG_MUST_CHECK;

/* The complete response to a request of kind TOKENIZE or DETOKENIZE. */
kg_status kg_api_put_tokens(struct kg_str *out, const struct kg_api_request *r,
                            const struct kg_api_model *m,
                            struct kg_err *err) KG_MUST_CHECK;

/* The model's entry in GET /v1/models. */
kg_status kg_api_put_model(struct kg_str *out, const struct kg_api_model *m,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
