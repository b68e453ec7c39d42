/* The forms that a record of supervised training may have, and a conversation cut into
 * what the model reads and what it writes.
 *
 * A conversation is rendered twice for each turn of the assistant: up to the turn with
 * the generation prompt, which is what the model reads, and with the turn. The second
 * must begin with the first; a template that rewrites what was said before (leaving
 * thinking out, say) is refused, because no rollout would ever see that text.
 */
#include "train/sft_record.h"

#include "base/mem.h"

#include <stdbool.h>
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

static const char *first_text(const struct kg_json *object, const char *const *keys,
                              size_t *n)
{
    for (; *keys; keys++) {
        const char *text = kg_json_text(kg_json_get(object, *keys), n);

        if (text)
            return text;
    }
    return NULL;
}

/* ---- prompts ---- */

/* *found: there is one; it may be empty text. */
static kg_status add_prompt(struct kg_sft_record *r, bool *found,
                            const struct kg_json *object,
                            const struct kg_sft_reading *how, struct kg_err *err)
{
    static const char *const keys[] = {"prompt", "question", "problem", NULL};
    const struct kg_json *list = kg_json_get(object, "prompt");
    struct kg_prompt_source from = {.tools = kg_json_get(object, "tools")};
    struct kg_str text = {0};
    kg_status status;

    if (kg_json_type(list) == KG_JSON_ARRAY)
        from.messages = list;
    else
        from.text = first_text(object, keys, &from.n);
    *found = from.messages || from.text;
    if (!*found)
        return KG_OK;
    KG_TRY_GOTO(out, kg_prompt_put(&text, &r->rendered, &from, how->prompt, err));
    status = kg_sft_record_add(r, KG_SOURCE_PROMPT, false, kg_str_text(&text), text.len,
                               err);
out:
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
    struct kg_str before, with; /* the text up to a turn, and with it */
    size_t done;                /* bytes that are pieces of the record */
};

/* The first n messages as the template writes them.   replaces out */
static kg_status render(struct kg_str *out, const struct talk *t, size_t n, bool generate,
                        struct kg_err *err)
{
    kg_str_clear(out);
    return kg_prompt_put_turns(out, kg_json_get(t->object, "messages"), n,
                               kg_json_get(t->object, "tools"), generate, t->how->prompt,
                               err);
}

/* How much of a turn is the model's: up to and with the last end token, else all of it.
 * What follows (a line break, in most templates) is written before the next turn. */
static size_t own_part(const char *turn, size_t n, const char *end)
{
    size_t m = strlen(end);

    for (size_t at = n; m > 0 && at >= m; at--)
        if (memcmp(turn + at - m, end, m) == 0)
            return at;
    return n;
}

/* Message i, of the assistant: what stands before it and was not read, then the turn. */
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
        return kg_fail(err, KG_EUNSUPPORTED,
                       "expected the assistant's turn behind the generation prompt of "
                       "the chat template, found another text");
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
    kg_status status = KG_OK;

    r->rendered = true;

    for (size_t i = 0; status == KG_OK && i < kg_json_size(messages); i++) {
        const struct kg_json *m = kg_json_at(messages, i);
        const char *role = kg_json_text(kg_json_get(m, "role"), NULL);

        if (role && strcmp(role, "assistant") == 0)
            status = add_turn(r, &talk, i, err);
        if (status != KG_OK)
            kg_err_prefix(err, "message %zu", i + 1);
    }
    kg_str_release(&talk.before);
    kg_str_release(&talk.with);
    return status;
}

/* ---- one record ---- */

kg_status kg_sft_record_read(struct kg_sft_record *r, const struct kg_json *object,
                             const struct kg_sft_reading *how, struct kg_err *err)
{
    static const char *const response_keys[] = {"response", "completion", "solution",
                                                "answer", NULL};
    static const char *const text_keys[] = {"text", NULL};
    const struct kg_json *segments = kg_json_get(object, "segments");
    const char *response;
    bool has_prompt;
    size_t n;

    kg_sft_record_clear(r);
    response = first_text(object, text_keys, &n);
    if (response)
        return kg_sft_record_add(r, KG_SOURCE_MODEL, false, response, n, err);
    if (kg_json_type(kg_json_get(object, "messages")) == KG_JSON_ARRAY)
        return add_messages(r, object, how, err);
    KG_TRY(add_prompt(r, &has_prompt, object, how, err));
    if (has_prompt && segments)
        return add_segments(r, segments, err);
    response = first_text(object, response_keys, &n);
    if (!has_prompt || !response)
        return kg_fail(err, KG_EFORMAT,
                       "expected \"text\", \"messages\", or \"prompt\" with "
                       "\"response\" or \"segments\", found %s",
                       has_prompt ? "no response" : "no prompt");
    return kg_sft_record_add(r, KG_SOURCE_MODEL, false, response, n, err);
}
