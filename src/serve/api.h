/* OpenAI's API as data: a request's JSON to a struct, answers to JSON. No sockets, no
 * threads, no engine.
 *
 * Every field of a request is a row of a table: one that is used, one that cannot change
 * the answer and is passed over, or one that is understood with its neutral value only. A
 * field that is none of these is refused by name: nothing that would change an answer is
 * ignored.
 */
#ifndef KG_SERVE_API_H
#define KG_SERVE_API_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"
#include "rollout/rollout.h"
#include "serve/tools.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    KG_API_MAX_CHOICES = 256,
    KG_API_MAX_TOP = 20,
    /* log-probs of prompts' tokens in an answer, and in a stream, whose first piece has
     * to fit into what may wait for a client */
    KG_API_MAX_LISTED = 1 << 20,
    KG_API_MAX_STREAMED = 1 << 14,
    KG_API_DEFAULT_TOKENS = 16,
    KG_API_MAX_STOP_IDS = 256,
    KG_API_NOT_GIVEN = -1
};

/* The last three are vLLM's: ids to ids, and two that are answered without the model. */
enum kg_api_kind {
    KG_API_COMPLETION,
    KG_API_CHAT,
    KG_API_GENERATE,
    KG_API_TOKENIZE,
    KG_API_DETOKENIZE,
    KG_API_KINDS
};
static inline bool kg_api_is_answered(enum kg_api_kind kind) /* by the model */
{
    return kind < KG_API_TOKENIZE;
}

/* What an error answer says besides its message. */
struct kg_api_fault {
    int status;        /* of HTTP */
    const char *param; /* the field at fault; NULL for none; static, or the request's */
    const char *code;  /* NULL for none; static text */
};
/* {"error": {"message", "type", "param", "code"}}; the type follows from the status */
kg_status kg_api_put_error(struct kg_str *out, const struct kg_api_fault *fault,
                           const char *message, struct kg_err *err) KG_MUST_CHECK;

struct kg_api_prompt {
    struct kg_ids ids;  /* owned */
    struct kg_str text; /* owned; filled for echo and for ids to text */
    /* bytes of the first tokens that stand for nothing in text (BOS, the space that a
     * tokenizer puts in front); filled for echo */
    size_t added;
    struct kg_prompt_scores scores; /* owned; for echo with logprobs, for the engine */
};

struct kg_api_request {
    enum kg_api_kind kind;
    struct kg_json_doc doc;       /* owned; what is borrowed below */
    const char *model;            /* NULL: not named */
    const char *id;               /* of the request, for its answer; NULL: the server's */
    const struct kg_json *params; /* of kind GENERATE: where further fields stand */
    const struct kg_json *prompt, *messages, *template_vars;
    const char *effort, *verbosity; /* variables of the template; NULL: not given */
    struct kg_json_doc vars;        /* owned; template_vars with both; filled by encode */
    const struct kg_json *tools;    /* NULL: none that the model may call */
    bool no_tools;                  /* tool_choice is "none" */
    bool one_call;                  /* parallel_tool_calls is false */
    bool reads_calls;               /* tool calls are read out of the answers */
    enum kg_special special;        /* of a prompt; of messages auto */
    bool stream;
    bool include_usage;
    bool logprobs;
    int top_logprobs;   /* other ids to list with each token */
    bool prompt_scores; /* list the prompt's log-probs; of kind GENERATE */
    int top_prompt;     /* ids to list with each of them */
    bool echo;
    bool ignore_eos;
    bool specials;      /* special tokens are part of the text */
    bool token_ids;     /* list the ids of prompt and answer */
    bool ids_for_names; /* tokens beside log-probs are called token_id:ID */
    int64_t n;
    bool seeded;
    uint64_t seed;
    int64_t max_tokens; /* KG_API_NOT_GIVEN until it is settled; 0: none, with echo */
    struct kg_sampling sampling; /* its rows' (rollout/sampling.h) alone */
    double repetition, presence, frequency;
    const struct kg_json *stop_tokens; /* NULL: none */
    int32_t *stop_ids;                 /* (n_stop_ids) owned; filled by kg_api_encode */
    size_t n_stop_ids;
    const struct kg_json *bias;     /* NULL: none */
    struct kg_logit_bias *bias_ids; /* (n_bias) owned; filled by kg_api_encode */
    size_t n_bias;
    const char *stops[KG_MAX_STOPS];
    int n_stops;
    struct kg_api_prompt *prompts; /* (n_prompts) owned; filled by kg_api_encode */
    size_t n_prompts;
};

enum {
    KG_API_OF_MESSAGES = 1 << KG_API_KINDS,   /* says nothing without messages */
    KG_API_OF_PARAMS = KG_API_OF_MESSAGES * 2 /* stands in sampling_params */
};

struct kg_api_field {
    const char *name;
    unsigned kinds;      /* bits 1 << enum kg_api_kind, and the two above */
    const char *neutral; /* "": used; "*": passed over; else the values it may have */
    const char *help;
    kg_status (*take)(
        struct kg_api_request *r, const struct kg_json *v,
        struct kg_err *err); /* NULL: not used, or a row of kg_sampling_rows */
};
/* Ended by a row with name NULL. A name may have a row for each kind. */
extern const struct kg_api_field kg_api_fields[];

/* Read a request. On failure *fault says how to answer; r is to be released all the same.
 * errors: EFORMAT (JSON), EINVAL (fields), ENOMEM */
kg_status kg_api_parse(struct kg_api_request *r, struct kg_api_fault *fault,
                       enum kg_api_kind kind, const char *body, size_t n,
                       struct kg_err *err) KG_MUST_CHECK;
void kg_api_release(struct kg_api_request *r); /* {0} allowed */

/* The field that says what is asked: prompt, messages, token_ids or tokens. */
const char *kg_api_asked(const struct kg_api_request *r);

/* Likeliest ids to record with a token, of the prompt or the answer. */
static inline int kg_api_records(const struct kg_api_request *r)
{
    return r->top_prompt > r->top_logprobs ? r->top_prompt : r->top_logprobs;
}

/* A model that is served. */
struct kg_api_model {
    const char *name;
    const char *parent;             /* name of that whose weights it adapts; NULL: none */
    int32_t adapter;                /* as in struct kg_request */
    int64_t created;                /* seconds since 1970 */
    const struct kg_tokenizer *tok; /* NULL: ids only */
    const struct kg_chat_template *chat; /* NULL: no chat */
    const char *system;  /* in front of conversations without one; NULL: none */
    const char *opening; /* of the assistant's turn: see text/prompt.h; NULL: none */
    const char *date;    /* see text/prompt.h; NULL: the clock's, at each request */
    int32_t vocab;
    int32_t max_len; /* prompt and answer */
    /* new tokens when a request names none; 0: for chat all the room that is left, for
     * completions KG_API_DEFAULT_TOKENS */
    int32_t default_tokens;
    bool knows_calls; /* of kg_tool_calls_known */
};

/* The one of n models that has this name; the first for NULL.
 * errors: NOTFOUND, naming those that are there */
kg_status kg_api_find(const struct kg_api_model **out, const struct kg_api_model *models,
                      size_t n, const char *name, struct kg_err *err) KG_MUST_CHECK;
/* Make the request's prompts tokens, and settle max_tokens.   m: the one that it is for
 * errors: as kg_api_parse */
kg_status kg_api_encode(struct kg_api_request *r, struct kg_api_fault *fault,
                        const struct kg_api_model *m, struct kg_err *err) KG_MUST_CHECK;

/* ---- answers ---- */

struct kg_api_answer {
    const struct kg_api_request *r;
    const struct kg_api_model *m;
    char id[40];
    int64_t created;
    uint64_t seed; /* that was used; an extension, so that any answer can be had again */
};

struct kg_api_usage {
    int64_t prompt_tokens, completion_tokens;
};

/* Where the next token's text begins, in characters: a character counts when its last
 * byte is there, so that a token that only begins one moves nothing. Bytes that are no
 * character count as one each. {0} is the beginning. */
struct kg_api_offset {
    size_t characters;
    char part[4]; /* of a character that is not complete */
    size_t n;     /* bytes in it */
};
void kg_api_offset_add(struct kg_api_offset *o, const char *text, size_t n);

/* One choice, whole or a piece of it. */
struct kg_api_choice {
    int index;
    bool first; /* piece: the first one, which tells the role */
    const char *text;
    size_t text_n;
    const struct kg_traj *t;
    size_t from, to; /* tokens of t that this piece lists */
    /* not NULL: its tokens with their scores are listed in front of them */
    const struct kg_api_prompt *prompt;
    struct kg_api_offset *offset; /* before token `from`; moved behind what is listed */
    enum kg_finish finish;        /* NONE: goes on */
    const struct kg_tool_calls *calls; /* that the answer makes; NULL: none */
};

/* A whole answer is begin, choices, end; so is a piece of a stream, with `piece` true.
 * first: it is whole, or the first piece of a choice
 * usage NULL: none (in a piece of a stream whose client asked for it: null). */
kg_status kg_api_put_begin(struct kg_str *out, const struct kg_api_answer *a, bool piece,
                           bool first, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_api_put_choice(struct kg_str *out, const struct kg_api_answer *a, bool piece,
                            const struct kg_api_choice *c,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_api_put_end(struct kg_str *out, const struct kg_api_answer *a, bool piece,
                         const struct kg_api_usage *usage,
                         struct kg_err *err) KG_MUST_CHECK;

/* The whole answer to a request for tokens or for their text. */
kg_status kg_api_put_tokens(struct kg_str *out, const struct kg_api_request *r,
                            const struct kg_api_model *m,
                            struct kg_err *err) KG_MUST_CHECK;

/* The entry of the model in GET /v1/models. */
kg_status kg_api_put_model(struct kg_str *out, const struct kg_api_model *m,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
