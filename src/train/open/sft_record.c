/* Reads the formats of an SFT record, and splits a conversation into what the model reads
 * and what it writes.
 *
 * For each turn of the assistant a conversation is rendered twice: up to the turn with
 * the generation prompt, which is what the model reads, and with the turn. The second
 * text must begin with the first. A template that rewrites earlier turns (removes
 * thinking, say) is refused, because no rollout would ever produce that text.
 */
#include "train/open/sft_record.h"

#include "base/mem.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PIECES = 1 << 20 };

void kg_sft_record_clear(struct kg_sft_record *r)
{
    kg_str_clear(&r->text);
    r->n = 0;
    r->rendered = false;
}

void kg_sft_record_release(struct kg_sft_record *r)
{
    kg_str_release(&r->text);
    kg_mem_free(r->pieces);
    memset(r, 0, sizeof *r);
}

kg_status kg_sft_record_add(struct kg_sft_record *r, enum kg_source source, bool plain,
                            const char *text, size_t n, struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&r->pieces, &r->capacity, r->n + 1, sizeof *r->pieces, MAX_PIECES,
                       "pieces of a record", err));
    r->pieces[r->n] = (struct kg_sft_piece){r->text.len, n, source, plain};
    KG_TRY(kg_str_append(&r->text, text, n, err));
    r->n++;
    return KG_OK;
}

/* Parquet, and writers that give every key, have null, "" or [] for nothing. */
static bool says_something(const struct kg_json *value)
{
    size_t n = 0;

    if (kg_json_text(value, &n))
        return n > 0;
    return value && kg_json_type(value) != KG_JSON_NULL &&
           !(kg_json_type(value) == KG_JSON_ARRAY && kg_json_size(value) == 0);
}

/* The first text that is not empty, else an empty one, else NULL. */
static const char *first_text(const struct kg_json *object, const char *const *keys,
                              size_t *n)
{
    const char *empty = NULL;

    for (; *keys; keys++) {
        const char *text = kg_json_text(kg_json_get(object, *keys), n);

        if (text && *n > 0)
            return text;
        empty = empty ? empty : text;
    }
    *n = 0;
    return empty;
}

static bool has_turns(const struct kg_json *object, const char *key)
{
    const struct kg_json *value = kg_json_get(object, key);

    return kg_json_type(value) == KG_JSON_ARRAY && says_something(value);
}

/* ---- prompts ---- */

/* Alpaca's prompt: the instruction and, if there is one, its input on the next line.
 * text: owns what from borrows afterwards */
static kg_status put_instruction(struct kg_str *text, struct kg_prompt_source *from,
                                 const struct kg_json *object, struct kg_err *err)
{
    static const char *const keys[] = {"instruction", NULL}, *const more[] = {"input",
                                                                              NULL};
    size_t n;

    const char *part = first_text(object, keys, &n);
    if (!part)
        return KG_OK;
    if (says_something(kg_json_get(object, "system")) ||
        says_something(kg_json_get(object, "history")))
        return kg_fail(
            err, KG_EUNSUPPORTED,
            "expected only \"instruction\", \"input\" and \"output\", found a \"system\" "
            "or \"history\" that is not empty: use \"messages\" for these");
    KG_TRY(kg_str_append(text, part, n, err));
    part = first_text(object, more, &n);
    if (part && n > 0) {
        KG_TRY(kg_str_putc(text, '\n', err));
        KG_TRY(kg_str_append(text, part, n, err));
    }
    from->text = kg_str_text(text);
    from->n = text->len;
    return KG_OK;
}

/* *found: there is a prompt, possibly an empty one. */
static kg_status add_prompt(struct kg_sft_record *r, bool *found,
                            const struct kg_json *object,
                            const struct kg_sft_reading *how, struct kg_err *err)
{
    static const char *const keys[] = {"prompt", "question", "problem", NULL};
    const struct kg_json *list = kg_json_get(object, "prompt");
    struct kg_prompt_source from = {.tools = kg_json_get(object, "tools")};
    struct kg_str text = {0}, instruction = {0};
    kg_status status;

    if (kg_json_type(list) == KG_JSON_ARRAY)
        from.messages = list;
    else
        from.text = first_text(object, keys, &from.n);
    if (!from.messages && !from.text)
        KG_TRY_GOTO(out, put_instruction(&instruction, &from, object, err));
    *found = from.messages || from.text;
    if (!*found)
        goto out;
    KG_TRY_GOTO(out, kg_prompt_put(&text, &r->rendered, &from, how->prompt, err));
    status = kg_sft_record_add(r, KG_SOURCE_PROMPT, false, kg_str_text(&text), text.len,
                               err);
out:
    kg_str_release(&instruction);
    kg_str_release(&text);
    return status;
}

/* ---- episodes ---- */

static kg_status add_segment(struct kg_sft_record *r, const struct kg_json *segment,
                             struct kg_err *err)
{
    const char *source = kg_json_text(kg_json_get(segment, "source"), NULL), *text;
    size_t n;
    bool model = source && strcmp(source, "model") == 0;

    if (!model && !(source && strcmp(source, "tool") == 0))
        return kg_fail(err, KG_EFORMAT,
                       "key 'source': expected \"model\" or \"tool\", found %s%s",
                       source ? "" : "no text", source ? source : "");
    text = kg_json_text(kg_json_get(segment, "text"), &n);
    if (!text)
        return kg_fail(err, KG_EFORMAT, "key 'text': expected text, found %s",
                       kg_json_type_name(kg_json_get(segment, "text")));
    return kg_sft_record_add(r, model ? KG_SOURCE_MODEL : KG_SOURCE_TOOL, !model, text, n,
                             err);
}

static kg_status add_segments(struct kg_sft_record *r, const struct kg_json *segments,
                              struct kg_err *err)
{
    if (kg_json_type(segments) != KG_JSON_ARRAY)
        return kg_fail(err, KG_EFORMAT, "key 'segments': expected a list, found %s",
                       kg_json_type_name(segments));
    for (size_t i = 0; i < kg_json_size(segments); i++)
        if (add_segment(r, kg_json_at(segments, i), err) != KG_OK)
            return kg_err_prefix(err, "segment %zu", i + 1);
    return KG_OK;
}

/* ---- conversations ---- */

struct talk {
    const struct kg_json *object;
    const struct kg_sft_reading *how;
    bool checked;               /* the whole conversation was rendered, so it is valid */
    struct kg_str before, with; /* the text before a turn, and with it */
    size_t done;                /* bytes that are in pieces of the record already */
};

/* Renders the first n messages by the template.   replaces out */
static kg_status render(struct kg_str *out, const struct talk *t, size_t n, bool generate,
                        struct kg_err *err)
{
    const struct kg_conversation talk = {.messages = kg_json_get(t->object, "messages"),
                                         .n = n,
                                         .tools = kg_json_get(t->object, "tools"),
                                         .generate = generate,
                                         .trusted = t->checked};

    kg_str_clear(out);
    return kg_prompt_put_turns(out, &talk, t->how->prompt, err);
}

/* Bytes of a turn that the model wrote: up to its last end token, else all. What follows
 * (in most templates a line break) belongs to the text before the next turn. */
static size_t own_part(const char *turn, size_t n, const char *end)
{
    size_t m = strlen(end);

    for (size_t at = n; m > 0 && at >= m; at--)
        if (memcmp(turn + at - m, end, m) == 0)
            return at;
    return n;
}

/* Adds the text before message i that is not yet added, then i, an assistant's turn. */
static kg_status add_turn(struct kg_sft_record *r, struct talk *t, size_t i,
                          struct kg_err *err)
{
    const struct kg_str *b = &t->before, *w = &t->with;
    size_t n;

    KG_TRY(render(&t->before, t, i, true, err));
    if (b->len < t->done || memcmp(kg_str_text(b), kg_str_text(&r->text), t->done) != 0)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "expected a chat template that keeps earlier turns as they were, "
                       "found one that rewrites them");
    KG_TRY(render(&t->with, t, i + 1, false, err));
    if (w->len < b->len || memcmp(kg_str_text(w), kg_str_text(b), b->len) != 0)
        return kg_fail(
            err, KG_EUNSUPPORTED,
            "expected the chat template to begin the assistant's turn with its "
            "generation prompt, found other text");
    KG_TRY(kg_sft_record_add(r, r->n ? KG_SOURCE_TOOL : KG_SOURCE_PROMPT, false,
                             kg_str_text(b) + t->done, b->len - t->done, err));
    n = own_part(kg_str_text(w) + b->len, w->len - b->len, t->how->end);
    KG_TRY(kg_sft_record_add(r, KG_SOURCE_MODEL, false, kg_str_text(w) + b->len, n, err));
    t->done = b->len + n;
    return KG_OK;
}

static kg_status add_messages(struct kg_sft_record *r, const struct kg_json *object,
                              const struct kg_sft_reading *how, struct kg_err *err)
{
    const struct kg_json *messages = kg_json_get(object, "messages");
    struct talk talk = {.object = object, .how = how};
    size_t n = kg_json_size(messages);
    kg_status status = n > 0 ? render(&talk.with, &talk, n, false, err) : KG_OK;

    r->rendered = true;
    talk.checked = true;
    for (size_t i = 0; status == KG_OK && i < n; i++) {
        const struct kg_json *m = kg_json_at(messages, i);
        const char *role = kg_json_text(kg_json_get(m, "role"), NULL);

        if (role && strcmp(role, "assistant") == 0)
            status = add_turn(r, &talk, i, err);
        if (status != KG_OK)
            kg_err_prefix(err, "message %zu", i);
    }
    kg_str_release(&talk.before);
    kg_str_release(&talk.with);
    return status;
}

/* ---- ShareGPT ---- */

/* The role's name in chat templates; NULL: unknown. */
static const char *role_of(const char *from)
{
    static const char *const roles[][2] = {
        {"human", "user"},      {"user", "user"},           {"gpt", "assistant"},
        {"system", "system"},   {"assistant", "assistant"}, {"tool", "tool"},
        {"observation", "tool"}};

    for (size_t i = 0; from && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(from, roles[i][0]) == 0)
            return roles[i][1];
    return NULL;
}

static kg_status put_turn(struct kg_str *json, const struct kg_json *turn, bool first,
                          struct kg_err *err)
{
    const char *from = kg_json_text(kg_json_get(turn, "from"), NULL),
               *role = role_of(from);
    size_t n;
    const char *value = kg_json_text(kg_json_get(turn, "value"), &n);

    if (!role || !value)
        return kg_fail(err, KG_EFORMAT,
                       "expected \"from\" of human, gpt, system, tool, observation, user "
                       "or assistant with a text \"value\", found %.40s",
                       role   ? "no value"
                       : from ? from
                              : "no \"from\"");
    KG_TRY(kg_str_printf(json, err,
                         "%s{\"role\": \"%s\", \"content\": ", first ? "" : ", ", role));
    KG_TRY(kg_json_put_string(json, value, n, err));
    return kg_str_putc(json, '}', err);
}

/* The object with "messages" instead of "conversations". */
static kg_status put_messages(struct kg_str *json, const struct kg_json *object,
                              struct kg_err *err)
{
    const struct kg_json *turns = kg_json_get(object, "conversations"),
                         *tools = kg_json_get(object, "tools");
    size_t n;
    const char *system = kg_json_text(kg_json_get(object, "system"), &n);
    bool first = !system || n == 0;

    KG_TRY(kg_str_puts(json, "{\"messages\": [", err));
    if (!first) {
        KG_TRY(kg_str_puts(json, "{\"role\": \"system\", \"content\": ", err));
        KG_TRY(kg_json_put_string(json, system, n, err));
        KG_TRY(kg_str_putc(json, '}', err));
    }
    for (size_t i = 0; i < kg_json_size(turns); i++)
        if (put_turn(json, kg_json_at(turns, i), first && i == 0, err) != KG_OK)
            return kg_err_prefix(err, "conversations: turn %zu", i + 1);
    KG_TRY(kg_str_putc(json, ']', err));
    if (tools && kg_json_type(tools) != KG_JSON_NULL) {
        KG_TRY(kg_str_puts(json, ", \"tools\": ", err));
        KG_TRY(kg_json_put_value(json, tools, err));
    }
    return kg_str_putc(json, '}', err);
}

static kg_status add_conversations(struct kg_sft_record *r, const struct kg_json *object,
                                   const struct kg_sft_reading *how, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_str json = {0};
    kg_status status;

    KG_TRY_GOTO(out, put_messages(&json, object, err));
    KG_TRY_GOTO(out, kg_json_parse(&doc, json.data, json.len, "conversations", err));
    status = add_messages(r, doc.root, how, err);
out:
    kg_json_release(&doc);
    kg_str_release(&json);
    return status;
}

/* ---- one record ---- */

static kg_status no_form(const struct kg_json *object, bool has_prompt,
                         const char *const *response_keys, struct kg_err *err)
{
    char found[64] = "no prompt";

    if (has_prompt)
        snprintf(found, sizeof found, "no response");
    for (; has_prompt && *response_keys; response_keys++) {
        const struct kg_json *value = kg_json_get(object, *response_keys);

        if (!says_something(value))
            continue;
        snprintf(found, sizeof found, "a response that is not a text: %s is %s",
                 *response_keys, kg_json_type_name(value));
        break;
    }
    return kg_fail(err, KG_EFORMAT,
                   "expected \"text\", \"messages\", \"conversations\", or a prompt "
                   "(prompt, question, problem, instruction) with a response "
                   "(response, completion, solution, answer, output) or \"segments\", "
                   "found %s",
                   found);
}

kg_status kg_sft_record_read(struct kg_sft_record *r, const struct kg_json *object,
                             const struct kg_sft_reading *how, struct kg_err *err)
{
    static const char *const response_keys[] = {"response", "completion", "solution",
                                                "answer",   "output",     NULL};
    static const char *const text_keys[] = {"text", NULL};
    const struct kg_json *segments = kg_json_get(object, "segments");
    bool has_prompt;
    size_t n;

    kg_sft_record_clear(r);
    const char *response = first_text(object, text_keys, &n);
    if (response && n > 0)
        return kg_sft_record_add(r, KG_SOURCE_MODEL, false, response, n, err);
    if (has_turns(object, "messages"))
        return add_messages(r, object, how, err);
    if (has_turns(object, "conversations"))
        return add_conversations(r, object, how, err);
    KG_TRY(add_prompt(r, &has_prompt, object, how, err));
    if (has_prompt && says_something(segments))
        return add_segments(r, segments, err);
    response = first_text(object, response_keys, &n);
    if (!has_prompt || !response)
        return no_form(object, has_prompt, response_keys, err);
    return kg_sft_record_add(r, KG_SOURCE_MODEL, false, response, n, err);
}
