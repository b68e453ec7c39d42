/* Detects what a template left out by rendering again with marks instead of texts. If a
 * mark is missing from that rendering, the template may have ignored the text, or only
 * transformed it (removed thinking, say). So the conversation is rendered once more with
 * that one mark: if the rendering does not change, the text was ignored.
 */
#include "text/messages.h"

#include <stdio.h>
#include <string.h>

/* ---- a list of messages ---- */

static kg_status put_pair(struct kg_str *out, const char *role, const char *text,
                          size_t n, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "{\"role\": \"%s\", \"content\": ", role));
    KG_TRY(kg_json_put_string(out, text, n, err));
    return kg_str_putc(out, '}', err);
}

static kg_status add_part(struct kg_str *text, const struct kg_json *part,
                          struct kg_err *err)
{
    const char *type = kg_json_text(kg_json_get(part, "type"), NULL);
    size_t n;
    const char *words = kg_json_text(kg_json_get(part, "text"), &n);

    if (!type || strcmp(type, "text") != 0 || !words)
        return kg_fail(err, KG_EFORMAT,
                       "expected {\"type\": \"text\", \"text\": ...}, found type %.40s",
                       type ? type : "none");
    return kg_str_append(text, words, n, err);
}

/* Content in parts becomes the text of the parts, joined by line breaks. */
static kg_status put_parts(struct kg_str *out, const struct kg_json *parts,
                           struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status = KG_OK;

    for (size_t i = 0; i < kg_json_size(parts) && status == KG_OK; i++) {
        if (i > 0)
            status = kg_str_putc(&text, '\n', err);
        if (status == KG_OK && add_part(&text, kg_json_at(parts, i), err) != KG_OK)
            status = kg_err_prefix(err, "content part %zu", i);
    }
    if (status == KG_OK)
        status = kg_json_put_string(out, kg_str_text(&text), text.len, err);
    kg_str_release(&text);
    return status;
}

static bool has_calls(const struct kg_json *message)
{
    return kg_json_size(kg_json_get(message, "tool_calls")) > 0;
}

static kg_status check_message(const struct kg_json *message, struct kg_err *err)
{
    const struct kg_json *role = kg_json_get(message, "role");
    const struct kg_json *content = kg_json_get(message, "content");
    enum kg_json_type type = kg_json_type(content);

    if (kg_json_type(message) != KG_JSON_OBJECT)
        return kg_fail(err, KG_EFORMAT, "expected an object, found %s",
                       kg_json_type_name(message));
    if (!kg_json_text(role, NULL))
        return kg_fail(err, KG_EFORMAT, "role: expected a string, found %s",
                       kg_json_type_name(role));
    if (type == KG_JSON_STRING || (type == KG_JSON_ARRAY && kg_json_size(content) > 0) ||
        (type == KG_JSON_NULL && (has_calls(message) || kg_chat_thought(message))))
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "content: expected a string or an array of text parts, found %s",
                   type == KG_JSON_ARRAY ? "an empty one" : kg_json_type_name(content));
}

static kg_status put_value(struct kg_str *out, const char *key,
                           const struct kg_json *value, kg_message_calls *put_calls,
                           struct kg_err *err)
{
    bool parts = strcmp(key, "content") == 0 && kg_json_type(value) == KG_JSON_ARRAY;
    bool calls = strcmp(key, "tool_calls") == 0 && kg_json_type(value) != KG_JSON_NULL;

    if (parts)
        return put_parts(out, value, err);
    return calls && put_calls ? put_calls(out, value, err)
                              : kg_json_put_value(out, value, err);
}

static kg_status put_message(struct kg_str *out, const struct kg_json *message,
                             kg_message_calls *put_calls, struct kg_err *err)
{
    char between = '{';

    KG_TRY(check_message(message, err));
    for (size_t i = 0; i < kg_json_size(message); i++) {
        const char *key = kg_json_key_at(message, i);
        const struct kg_json *value = kg_json_value_at(message, i);

        if (put_calls && strcmp(key, "tool_calls") == 0 &&
            kg_json_type(value) == KG_JSON_ARRAY && kg_json_size(value) == 0)
            continue;
        KG_TRY(kg_str_putc(out, between, err));
        KG_TRY(kg_json_put_string(out, key, strlen(key), err));
        KG_TRY(kg_str_putc(out, ':', err));
        KG_TRY(put_value(out, key, value, put_calls, err));
        between = ',';
    }
    return kg_str_putc(out, '}', err);
}

/* system: put before the messages; NULL or "": none */
static kg_status put_list(struct kg_str *out, const char *system,
                          const struct kg_json *messages, size_t n,
                          kg_message_calls *put_calls, struct kg_err *err)
{
    bool first = !system || !*system;

    KG_TRY(kg_str_putc(out, '[', err));
    if (!first)
        KG_TRY(put_pair(out, "system", system, strlen(system), err));
    for (size_t i = 0; i < n; i++) {
        KG_TRY(kg_str_puts(out, first && i == 0 ? "" : ",", err));
        if (put_message(out, kg_json_at(messages, i), put_calls, err) != KG_OK)
            return kg_err_prefix(err, "message %zu", i);
    }
    return kg_str_putc(out, ']', err);
}

kg_status kg_messages_put(struct kg_str *out, const struct kg_json *messages, size_t n,
                          kg_message_calls *put_calls, struct kg_err *err)
{
    return put_list(out, NULL, messages, n, put_calls, err);
}

/* ---- variants of a conversation ---- */

enum { NO_MESSAGE = -1, EVERY_MESSAGE = -2 };

/* How a rendering differs from the conversation. */
struct variant {
    int64_t marked; /* the message whose text is a mark, NO_MESSAGE or EVERY_MESSAGE */
    bool as_system; /* role developer becomes system */
    bool no_tools, no_calls;
};

struct mark {
    char text[32];
};

static struct mark mark_of(size_t i)
{
    struct mark m;

    snprintf(m.text, sizeof m.text, "kedge#%zu#", i);
    return m;
}

/* Whether the message has text that a rendering could leave out. */
static bool says_something(const struct kg_json *message)
{
    size_t n;
    const char *text = kg_json_text(kg_json_get(message, "content"), &n);

    for (size_t i = 0; text && i < n; i++)
        if (!kg_char_in(" \t\r\n", text[i]))
            return true;
    return false;
}

static bool is_role(const struct kg_json *message, const char *role)
{
    const char *found = kg_json_text(kg_json_get(message, "role"), NULL);

    return found && strcmp(found, role) == 0;
}

static kg_status put_varied_value(struct kg_str *json, const struct kg_json *message,
                                  size_t i, size_t key, const struct variant *v,
                                  struct kg_err *err)
{
    const char *name = kg_json_key_at(message, key);
    bool marked = v->marked == EVERY_MESSAGE || v->marked == (int64_t)i;
    struct mark mark = mark_of(i);

    if (strcmp(name, "content") == 0 && marked && says_something(message))
        return kg_json_put_string(json, mark.text, strlen(mark.text), err);
    if (strcmp(name, "role") == 0 && v->as_system && is_role(message, "developer"))
        return kg_str_puts(json, "\"system\"", err);
    return kg_json_put_value(json, kg_json_value_at(message, key), err);
}

static kg_status put_varied(struct kg_str *json, const struct kg_json *message, size_t i,
                            const struct variant *v, struct kg_err *err)
{
    const char *between = "";

    KG_TRY(kg_str_putc(json, '{', err));
    for (size_t key = 0; key < kg_json_size(message); key++) {
        const char *name = kg_json_key_at(message, key);

        if (v->no_calls && strcmp(name, "tool_calls") == 0)
            continue;
        KG_TRY(kg_json_put_text(json, between, name, err));
        KG_TRY(kg_str_putc(json, ':', err));
        KG_TRY(put_varied_value(json, message, i, key, v, err));
        between = ",";
    }
    return kg_str_putc(json, '}', err);
}

/* Data in tables (Parquet) has an empty list where there are no tools. */
static bool has_tools(const struct kg_conversation *c)
{
    enum kg_json_type type = kg_json_type(c->tools);

    return type != KG_JSON_NULL &&
           !(type == KG_JSON_ARRAY && kg_json_size(c->tools) == 0);
}

/* The template's variables.   messages: as kg_messages_put writes them */
static kg_status put_variables(struct kg_str *json, const struct kg_conversation *c,
                               const struct kg_json *messages, const struct variant *v,
                               struct kg_err *err)
{
    KG_TRY(kg_str_printf(json, err, "{\"add_generation_prompt\": %s, ",
                         c->generate ? "true" : "false"));
    if (has_tools(c) && !v->no_tools) {
        KG_TRY(kg_str_puts(json, "\"tools\": ", err));
        KG_TRY(kg_json_put_value(json, c->tools, err));
        KG_TRY(kg_str_puts(json, ", ", err));
    }
    for (size_t i = 0; i < kg_json_size(c->variables); i++) {
        const char *key = kg_json_key_at(c->variables, i);

        KG_TRY(kg_json_put_string(json, key, strlen(key), err));
        KG_TRY(kg_str_puts(json, ": ", err));
        KG_TRY(kg_json_put_value(json, kg_json_value_at(c->variables, i), err));
        KG_TRY(kg_str_puts(json, ", ", err));
    }
    KG_TRY(kg_str_puts(json, "\"messages\": [", err));
    for (size_t i = 0; i < kg_json_size(messages); i++) {
        KG_TRY(kg_str_puts(json, i ? ", " : "", err));
        KG_TRY(put_varied(json, kg_json_at(messages, i), i, v, err));
    }
    return kg_str_puts(json, "]}", err);
}

/* A conversation that is being rendered. */
struct talk {
    const struct kg_conversation *c;
    const struct kg_chat_template *chat;
    const struct kg_json *messages; /* as kg_messages_put writes them, system included */
    const char *text;               /* the rendering */
    size_t n;
    bool as_system;
};

static kg_status render(struct kg_str *out, const struct talk *t, struct variant v,
                        struct kg_err *err)
{
    const struct kg_chat_opts opts = {.now_s = t->c->now_s};
    struct kg_json_doc doc = {0};
    struct kg_str json = {0};
    kg_status status;

    v.as_system = t->as_system;
    KG_TRY_GOTO(out, put_variables(&json, t->c, t->messages, &v, err));
    KG_TRY_GOTO(out, kg_json_parse(&doc, json.data, json.len, "messages", err));
    status = kg_chat_template_render(out, t->chat, doc.root, &opts, err);
out:
    kg_json_release(&doc);
    kg_str_release(&json);
    return status;
}

/* ---- text that the template left out ---- */

/* *same <- whether the variant renders like the conversation. If the template refuses the
 * variant, it has read what differs. */
static kg_status is_same(bool *same, const struct talk *t, struct variant v,
                         struct kg_err *err)
{
    struct kg_str text = {0};
    struct kg_err refused = {0};
    kg_status status = render(&text, t, v, &refused);

    *same = status == KG_OK && text.len == t->n &&
            (t->n == 0 || memcmp(text.data, t->text, t->n) == 0);
    kg_str_release(&text);
    if (status != KG_ENOMEM)
        return KG_OK;
    *err = refused;
    return status;
}

static kg_status need_message(const struct talk *t, size_t i, struct kg_err *err)
{
    const char *role = kg_json_text(kg_json_get(kg_json_at(t->messages, i), "role"),
                                    NULL);
    size_t added = kg_json_size(t->messages) - t->c->n;
    bool same;

    KG_TRY(is_same(&same, t, (struct variant){.marked = (int64_t)i}, err));
    if (!same)
        return KG_OK;
    if (i < added)
        return kg_fail(err, KG_EFORMAT,
                       "expected a chat template with a place for a system prompt, found "
                       "one that leaves it out");
    return kg_fail(err, KG_EFORMAT,
                   "message %zu: expected a chat template that writes the text of role "
                   "'%.40s', found one that leaves it out",
                   i - added, role);
}

/* Checks all texts by one rendering of marks, then alone those whose mark is missing. */
static kg_status need_messages(const struct talk *t, struct kg_err *err)
{
    struct kg_str marks = {0};
    struct kg_err refused = {0};
    kg_status status = render(&marks, t, (struct variant){.marked = EVERY_MESSAGE},
                              &refused);

    if (status == KG_ENOMEM)
        *err = refused;
    else
        status = KG_OK;
    for (size_t i = 0; i < kg_json_size(t->messages) && status == KG_OK; i++) {
        struct mark mark = mark_of(i);

        if (says_something(kg_json_at(t->messages, i)) &&
            !strstr(kg_str_text(&marks), mark.text))
            status = need_message(t, i, err);
    }
    kg_str_release(&marks);
    return status;
}

static kg_status need_tools(const struct talk *t, struct kg_err *err)
{
    const struct variant without = {.marked = NO_MESSAGE, .no_tools = true};
    bool same = false;

    if (has_tools(t->c))
        KG_TRY(is_same(&same, t, without, err));
    if (!same)
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "tools: the model's chat template does not support tools");
}

static kg_status need_calls(const struct talk *t, struct kg_err *err)
{
    const struct variant without = {.marked = NO_MESSAGE, .no_calls = true};
    bool any = false, same = false;

    for (size_t i = 0; i < kg_json_size(t->messages); i++)
        any = any || has_calls(kg_json_at(t->messages, i));
    if (any)
        KG_TRY(is_same(&same, t, without, err));
    if (!same)
        return KG_OK;
    return kg_fail(
        err, KG_EFORMAT,
        "tool_calls: expected a chat template that has a place for them, found "
        "one that leaves them out");
}

/* ---- role developer ---- */

/* Whether the template writes the text of role developer. */
static kg_status knows_developer(bool *known, const struct kg_chat_template *chat,
                                 struct kg_err *err)
{
    static const char vars[] =
        "{\"add_generation_prompt\": true, \"messages\": [{\"role\": \"developer\", "
        "\"content\": \"kedge#0#\"}, {\"role\": \"user\", \"content\": \"kedge#1#\"}]}";
    struct kg_json_doc doc = {0};
    struct kg_str text = {0};
    struct kg_err refused = {0};
    kg_status status;

    KG_TRY(kg_json_parse(&doc, vars, sizeof vars - 1, "trial", err));
    status = kg_chat_template_render(&text, chat, doc.root, &kg_chat_trial, &refused);
    *known = status == KG_OK && strstr(kg_str_text(&text), "kedge#0#");
    kg_json_release(&doc);
    kg_str_release(&text);
    if (status != KG_ENOMEM)
        return KG_OK;
    *err = refused;
    return status;
}

/* ---- rendering ---- */

static kg_status render_checked(struct kg_str *out, struct talk *t, struct kg_err *err)
{
    size_t begin = out->len;

    bool any = false, known = true;

    for (size_t i = 0; i < kg_json_size(t->messages); i++)
        any = any || is_role(kg_json_at(t->messages, i), "developer");
    if (any)
        KG_TRY(knows_developer(&known, t->chat, err));
    t->as_system = !known;
    KG_TRY(render(out, t, (struct variant){.marked = NO_MESSAGE}, err));
    t->text = kg_str_text(out) + begin;
    t->n = out->len - begin;
    if (t->c->trusted)
        return KG_OK;
    KG_TRY(need_messages(t, err));
    KG_TRY(need_calls(t, err));
    return need_tools(t, err);
}

/* Parses tools that are given as JSON text, as in tables.   doc: owns what c then
 * borrows */
static kg_status read_tools(struct kg_conversation *c, struct kg_json_doc *doc,
                            struct kg_err *err)
{
    size_t n = 0;
    const char *text = kg_json_text(c->tools, &n);

    if (text)
        c->tools = NULL;
    if (n > 0) {
        KG_TRY(kg_json_parse(doc, text, n, "tools", err));
        c->tools = doc->root;
    }
    if (kg_json_type(c->tools) == KG_JSON_NULL || kg_json_type(c->tools) == KG_JSON_ARRAY)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "tools: expected an array, or its JSON text, found %s",
                   kg_json_type_name(c->tools));
}

kg_status kg_conversation_render(struct kg_str *out, const struct kg_conversation *given,
                                 const struct kg_chat_template *chat, struct kg_err *err)
{
    struct kg_conversation all = *given, *c = &all;
    struct talk t = {.c = c, .chat = chat};
    struct kg_json_doc doc = {0}, tools = {0};
    struct kg_str list = {0};
    kg_status status;

    KG_TRY_GOTO(out, read_tools(c, &tools, err));
    KG_TRY_GOTO(out, put_list(&list, c->system, c->messages, c->n, c->put_calls, err));
    KG_TRY_GOTO(out, kg_json_parse(&doc, list.data, list.len, "messages", err));
    t.messages = doc.root;
    status = render_checked(out, &t, err);
out:
    kg_json_release(&tools);
    kg_json_release(&doc);
    kg_str_release(&list);
    return status;
}
