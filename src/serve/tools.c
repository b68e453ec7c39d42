/* Tool calls in messages and in completions. A call is text of the model. At every point
 * the text is content, then calls that may still become content, then a beginning of
 * either. A stream sends the content, which no later text changes, and holds back
 * the rest. Only the format of tools.h is parsed; calls in other formats stay text.
 * Arguments are JSON, not checked against the tool's schema. */
#define _GNU_SOURCE /* memmem */
#include "serve/tools.h"

#include "base/mem.h"

#include <string.h>

static const char OPEN[] = "<tool_call>";
static const char CLOSE[] = "</tool_call>";
enum { OPEN_N = sizeof OPEN - 1, CLOSE_N = sizeof CLOSE - 1, MAX_CALLS = 1 << 16 };

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static size_t skip_space(const char *text, size_t n, size_t at)
{
    while (at < n && is_space(text[at]))
        at++;
    return at;
}

static void drop_calls(struct kg_tool_calls *c)
{
    while (c->n > 0)
        kg_json_release(&c->calls[--c->n]);
}

void kg_tool_calls_release(struct kg_tool_calls *c)
{
    drop_calls(c);
    kg_mem_free(c->calls);
    *c = (struct kg_tool_calls){0};
}

const char *kg_tool_name(const struct kg_json *object)
{
    size_t n;
    const char *name = kg_json_text(kg_json_get(object, "name"), &n);
    return name && n > 0 && strlen(name) == n ? name : NULL;
}

const char *kg_tool_call_name(const struct kg_tool_calls *c, size_t i)
{
    return kg_tool_name(c->calls[i].root);
}

const struct kg_json *kg_tool_call_arguments(const struct kg_tool_calls *c, size_t i)
{
    return kg_json_get(c->calls[i].root, "arguments");
}

/* ---- form of a call ---- */

static bool is_call(const struct kg_json *v)
{
    return kg_json_type(v) == KG_JSON_OBJECT && kg_json_size(v) == 2 &&
           kg_tool_name(v) != NULL &&
           kg_json_type(kg_json_get(v, "arguments")) == KG_JSON_OBJECT;
}

/* Parses the text between two tags.   *yes: it is a call, and was added to c */
static kg_status read_call(bool *yes, struct kg_tool_calls *c, const char *text, size_t n,
                           struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    kg_status status = kg_json_parse(&doc, text, n, "tool call", err);
    *yes = status == KG_OK && is_call(doc.root);
    if (*yes)
        status = kg_mem_grow(&c->calls, &c->capacity, c->n + 1, sizeof *c->calls,
                             MAX_CALLS, "tool calls", err);
    if (*yes && status == KG_OK) {
        c->calls[c->n++] = doc;
        return KG_OK;
    }
    kg_json_release(&doc);
    return status == KG_ENOMEM ? status : KG_OK;
}

/* Kind of the text at c->at. WORDS and CALL are final; BEGUN depends on later text. */
enum item { WORDS, CALL, BEGUN };

/* Whether a call may begin at c->at: compares as much of tag and brace as has arrived. */
static enum item read_opening(struct kg_tool_calls *c, const char *text, size_t n)
{
    size_t left = n - c->at;
    if (memcmp(text + c->at, OPEN, left < OPEN_N ? left : OPEN_N) != 0)
        return WORDS;
    if (left > OPEN_N && !c->opened) {
        size_t from = c->seen > OPEN_N ? c->seen : OPEN_N;
        c->seen = skip_space(text, n, c->at + from) - c->at;
        c->opened = c->seen < left;
        if (c->opened && text[c->at + c->seen] != '{')
            return WORDS;
    }
    return BEGUN;
}

/* Moves c->at to a later byte. */
static void move(struct kg_tool_calls *c, size_t at)
{
    c->at = at;
    c->seen = 0;
    c->opened = false;
}

/* Words after calls make those calls content, too. The next call may begin at the next
 * '<' or the white space before it. No call can begin within the old calls: it would end
 * at the same closing tag, followed by the same words. */
static void pass_words(struct kg_tool_calls *c, const char *text, size_t n, size_t at)
{
    while (at < n && text[at] != '<' && !is_space(text[at]))
        at++;
    drop_calls(c);
    move(c, at);
    c->content_n = at;
}

/* Reads one item at c->at, and moves c->at after it unless it is BEGUN. */
static kg_status read_item(enum item *item, struct kg_tool_calls *c, const char *text,
                           size_t n, struct kg_err *err)
{
    bool yes;
    *item = read_opening(c, text, n);
    if (*item == WORDS)
        pass_words(c, text, n, c->at + 1);
    if (*item == WORDS || !c->opened)
        return KG_OK;
    const char *from = text + c->at + c->seen;
    const char *end = memmem(from, n - c->at - c->seen, CLOSE, CLOSE_N);
    if (end == NULL) { /* the next search begins where a tag may have begun */
        size_t left = n - c->at;
        if (left > c->seen + CLOSE_N)
            c->seen = left - CLOSE_N;
        return KG_OK;
    }
    const char *body = text + c->at + OPEN_N;
    KG_TRY(read_call(&yes, c, body, (size_t)(end - body), err));
    *item = yes ? CALL : WORDS;
    if (yes)
        move(c, (size_t)(end - text) + CLOSE_N);
    else
        pass_words(c, text, n, (size_t)(end - text) + CLOSE_N);
    return KG_OK;
}

kg_status kg_tool_calls_read(struct kg_tool_calls *c, const char *text, size_t n,
                             struct kg_err *err)
{
    enum item item = WORDS;
    while (item != BEGUN && (c->at = skip_space(text, n, c->at)) < n)
        KG_TRY(read_item(&item, c, text, n, err));
    return KG_OK;
}

kg_status kg_tool_calls_end(struct kg_tool_calls *c, const char *text, size_t n,
                            struct kg_err *err)
{
    kg_status status = kg_tool_calls_read(c, text, n, err);
    if (status != KG_OK || c->at < n) /* an incomplete call */
        drop_calls(c);
    if (c->n == 0)
        c->content_n = n;
    return status;
}

/* ---- the model's form ---- */

static const char PROBE[] =
    "{\"add_generation_prompt\": false, \"tools\": [{\"type\": \"function\", "
    "\"function\": {\"name\": \"probe\", \"description\": \"probe\", \"parameters\": "
    "{\"type\": \"object\", \"properties\": {\"key\": {\"type\": \"string\"}}}}}], "
    "\"messages\": [{\"role\": \"user\", \"content\": \"probe\"}, {\"role\": "
    "\"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"id\": "
    "\"call00000\", \"function\": {\"name\": \"probe\", \"arguments\": {\"key\": "
    "\"value\"}}}]}]}";

/* Takes the last call of the rendering: the template may show the form before it. */
static kg_status is_probe(bool *yes, const struct kg_str *text, struct kg_err *err)
{
    struct kg_tool_calls c = {0};
    const char *open = NULL;
    *yes = false;
    for (const char *at = kg_str_text(text); (at = strstr(at, OPEN)) != NULL; at++)
        open = at + OPEN_N;
    const char *end = open ? strstr(open, CLOSE) : NULL;
    if (end == NULL)
        return KG_OK;
    kg_status status = read_call(yes, &c, open, (size_t)(end - open), err);
    if (*yes && status == KG_OK) {
        const char *value = kg_json_text(
            kg_json_get(kg_tool_call_arguments(&c, 0), "key"), NULL);
        *yes = strcmp(kg_tool_call_name(&c, 0), "probe") == 0 && value &&
               strcmp(value, "value") == 0;
    }
    kg_tool_calls_release(&c);
    return status;
}

static bool is_text(const struct kg_tokenizer *tok, const char *tag)
{
    int32_t id = kg_tokenizer_find(tok, tag);
    return id < 0 || !kg_tokenizer_is_special(tok, id);
}

kg_status kg_tool_calls_known(bool *known, const struct kg_chat_template *chat,
                              const struct kg_tokenizer *tok, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_str text = {0};
    kg_status status;
    *known = false;
    if (chat == NULL || tok == NULL || !is_text(tok, OPEN) || !is_text(tok, CLOSE))
        return KG_OK;
    KG_TRY(kg_json_parse(&doc, PROBE, sizeof PROBE - 1, "probe", err));
    status = kg_chat_template_render(&text, chat, doc.root, &kg_chat_trial, err);
    if (status == KG_OK)
        status = is_probe(known, &text, err);
    kg_json_release(&doc);
    kg_str_release(&text);
    return status == KG_ENOMEM ? status : KG_OK; /* the template may refuse calls */
}

/* ---- messages ---- */

/* A client sends the whole conversation again with every turn. So a call whose text is
 * empty or incomplete, which no later turn can correct, counts as having no arguments;
 * complete JSON of another type is the client's error. */
static kg_status put_arguments(struct kg_str *out, const struct kg_json *v,
                               struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_err unread;
    size_t n;
    const char *text = kg_json_text(v, &n);
    kg_status status = KG_OK;
    if (text) {
        status = kg_json_parse(&doc, text, n, "arguments", &unread);
        v = doc.root;
    }
    if (status == KG_ENOMEM)
        *err = unread;
    else if (status != KG_OK || kg_json_type(v) == KG_JSON_NULL) {
        kg_json_release(&doc);
        return kg_str_puts(out, "{}", err);
    } else if (kg_json_type(v) != KG_JSON_OBJECT)
        status = kg_fail(err, KG_EINVAL,
                         "arguments: expected an object or its text, found %.100s",
                         text ? text : kg_json_type_name(v));
    if (status == KG_OK)
        status = kg_json_put_value(out, v, err);
    kg_json_release(&doc);
    return status;
}

typedef kg_status (*put_fn)(struct kg_str *out, const struct kg_json *v,
                            struct kg_err *err);

/* Copies an object, except the value of one key, which `put` writes. */
static kg_status put_object(struct kg_str *out, const struct kg_json *v, const char *key,
                            put_fn put, struct kg_err *err)
{
    KG_TRY(kg_str_putc(out, '{', err));
    for (size_t i = 0; i < kg_json_size(v); i++) {
        const char *name = kg_json_key_at(v, i);
        const struct kg_json *value = kg_json_value_at(v, i);
        KG_TRY(kg_json_put_text(out, i > 0 ? "," : "", name, err));
        KG_TRY(kg_str_putc(out, ':', err));
        KG_TRY(strcmp(name, key) == 0 ? put(out, value, err)
                                      : kg_json_put_value(out, value, err));
    }
    return kg_str_putc(out, '}', err);
}

static kg_status put_function(struct kg_str *out, const struct kg_json *v,
                              struct kg_err *err)
{
    if (kg_tool_name(v) == NULL)
        return kg_fail(err, KG_EINVAL, "function: expected an object with a name");
    KG_TRY(put_object(out, v, "arguments", put_arguments, err));
    if (kg_json_get(v, "arguments"))
        return KG_OK;
    out->len--; /* remove the brace: another key follows */
    return kg_str_puts(out, ",\"arguments\":{}}", err);
}

kg_status kg_tool_calls_put(struct kg_str *out, const struct kg_json *calls,
                            struct kg_err *err)
{
    if (kg_json_type(calls) != KG_JSON_ARRAY)
        return kg_fail(err, KG_EINVAL, "tool_calls: expected an array, found %s",
                       kg_json_type_name(calls));
    KG_TRY(kg_str_putc(out, '[', err));
    for (size_t i = 0; i < kg_json_size(calls); i++) {
        const struct kg_json *call = kg_json_at(calls, i);
        KG_TRY(kg_str_puts(out, i > 0 ? "," : "", err));
        if (kg_json_type(kg_json_get(call, "function")) != KG_JSON_OBJECT)
            return kg_fail(err, KG_EINVAL,
                           "tool_calls: call %zu: expected an object with a function", i);
        if (put_object(out, call, "function", put_function, err) != KG_OK)
            return kg_err_prefix(err, "tool_calls: call %zu", i);
    }
    return kg_str_putc(out, ']', err);
}
