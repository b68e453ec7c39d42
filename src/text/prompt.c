/* Prompts from questions and conversations, by the rules of prompt.h. A prompt is either
 * rendered by a template or plain text. This decides who adds special tokens, so it is
 * passed on with the text, as `rendered`. Settings that have no effect on this kind of
 * prompt are errors that name the key. A prompt is shown as its tokens decode. */
#include "text/prompt.h"

#include "base/printable.h"

#include <stdio.h>
#include <string.h>

static const char SLOT[] = "{prompt}";

static bool is_given(const char *text) { return text && *text; }

/* A key as its command spells it: data.user_turn, user_turn, --user-turn. */
struct spelled {
    char text[48];
};

static struct spelled spell(const struct kg_prompt_opts *how, const char *key)
{
    const char *prefix = how->prefix ? how->prefix : "";
    struct spelled s;

    snprintf(s.text, sizeof s.text, "%s%s", prefix, key);
    for (char *p = s.text; *prefix == '-' && *p; p++)
        *p = *p == '_' ? '-' : *p;
    return s;
}

static kg_status check_date(const struct kg_prompt_opts *how, struct kg_err *err)
{
    int64_t now_s;

    if (kg_chat_date(&now_s, how->date, err) != KG_OK)
        return kg_err_prefix(err, "%s", spell(how, "date").text);
    if (kg_chat_template_asks_date(how->chat))
        return KG_OK;
    return kg_fail(
        err, KG_EINVAL,
        "%s: expected a chat template that uses the date (strftime_now), found %s",
        spell(how, "date").text, how->chat ? "one that does not" : "none");
}

kg_status kg_prompt_check(const struct kg_prompt_opts *how, struct kg_err *err)
{
    if (is_given(how->template_text) && !strstr(how->template_text, SLOT))
        return kg_fail(err, KG_EINVAL, "%s: expected a text with {prompt}, found '%.80s'",
                       spell(how, "template").text, how->template_text);
    if (is_given(how->date))
        KG_TRY(check_date(how, err));
    if (how->chat)
        return KG_OK;
    if (how->user_turn)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected a chat template for user turns, found none",
                       spell(how, "user_turn").text);
    if (is_given(how->system) || is_given(how->opening))
        return kg_fail(err, KG_EINVAL,
                       "%s: expected a chat template that has a place for it, found none",
                       spell(how, is_given(how->system) ? "system" : "opening").text);
    return KG_OK;
}

kg_status kg_prompt_choose(struct kg_chat_template **t, struct kg_prompt_opts *how,
                           const char *choice, const char *model_dir, struct kg_err *err)
{
    bool is_auto = strcmp(choice, "auto") == 0;

    *t = NULL;
    how->chat = NULL;
    how->chat_named = !is_auto && strcmp(choice, "none") != 0;
    if (is_auto && is_given(how->template_text) && !how->user_turn)
        return KG_OK;
    KG_TRY(kg_chat_template_choose(t, choice, model_dir, err));
    how->chat = *t;
    return KG_OK;
}

/* ---- questions ---- */

static kg_status put_templated(struct kg_str *out, const char *template_text,
                               const char *text, size_t n, struct kg_err *err)
{
    const char *at = is_given(template_text) ? strstr(template_text, SLOT) : NULL;

    if (!at)
        return kg_str_append(out, text, n, err);
    KG_TRY(kg_str_append(out, template_text, (size_t)(at - template_text), err));
    KG_TRY(kg_str_append(out, text, n, err));
    return kg_str_puts(out, at + sizeof SLOT - 1, err);
}

/* Refuses settings that only a conversation has. */
static kg_status check_text(const struct kg_prompt_opts *how, struct kg_err *err)
{
    const char *value = how->prefix && *how->prefix == '-' ? "" : "=true";
    const char *key = how->chat_named          ? "chat_template"
                      : is_given(how->system)  ? "system"
                      : is_given(how->opening) ? "opening"
                                               : NULL;

    if (!key)
        return KG_OK;
    return kg_fail(err, KG_EINVAL,
                   "%s: expected a list of messages as prompt, found text; %s%s makes it "
                   "the user's turn",
                   spell(how, key).text, spell(how, "user_turn").text, value);
}

/* ---- conversations ---- */

static bool is_system(const struct kg_json *message)
{
    const char *role = kg_json_text(kg_json_get(message, "role"), NULL);

    return role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
}

kg_status kg_prompt_put_turns(struct kg_str *out, const struct kg_conversation *talk,
                              const struct kg_prompt_opts *how, struct kg_err *err)
{
    struct kg_conversation all = *talk;

    if (!how->chat)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "expected a chat template (%s) for a list of messages, found none",
                       spell(how, "chat_template").text);
    if (is_given(how->system) && is_system(kg_json_at(talk->messages, 0)))
        return kg_fail(err, KG_EINVAL,
                       "%s: expected messages without a system prompt of their own, "
                       "found one",
                       spell(how, "system").text);
    all.system = how->system;
    KG_TRY(kg_chat_date(&all.now_s, how->date, err));
    return kg_conversation_render(out, &all, how->chat, err);
}

/* A question as a conversation of one message. */
static kg_status put_question_turn(struct kg_str *out, const struct kg_str *question,
                                   const struct kg_json *tools,
                                   const struct kg_prompt_opts *how, struct kg_err *err)
{
    struct kg_conversation talk = {.n = 1, .tools = tools, .generate = true};
    struct kg_json_doc doc = {0};
    struct kg_str json = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_str_puts(&json, "[{\"role\": \"user\", \"content\": ", err));
    KG_TRY_GOTO(out,
                kg_json_put_string(&json, kg_str_text(question), question->len, err));
    KG_TRY_GOTO(out, kg_str_puts(&json, "}]", err));
    KG_TRY_GOTO(out, kg_json_parse(&doc, json.data, json.len, "messages", err));
    talk.messages = doc.root;
    status = kg_prompt_put_turns(out, &talk, how, err);
out:
    kg_json_release(&doc);
    kg_str_release(&json);
    return status;
}

/* Appends the opening, unless the assistant's turn already begins with it. */
kg_status kg_prompt_put_opening(struct kg_str *out, const char *opening,
                                struct kg_err *err)
{
    size_t n = is_given(opening) ? strlen(opening) : 0;

    if (n == 0 || (out->len >= n && memcmp(out->data + out->len - n, opening, n) == 0))
        return KG_OK;
    return kg_str_append(out, opening, n, err);
}

/* ---- one prompt ---- */

static kg_status put_question(struct kg_str *out, bool *rendered, const char *text,
                              size_t n, const struct kg_json *tools,
                              const struct kg_prompt_opts *how, struct kg_err *err)
{
    struct kg_str question = {0};
    kg_status status;

    *rendered = how->user_turn;
    if (!how->user_turn) {
        KG_TRY(check_text(how, err));
        return put_templated(out, how->template_text, text, n, err);
    }
    KG_TRY_GOTO(out, put_templated(&question, how->template_text, text, n, err));
    KG_TRY_GOTO(out, put_question_turn(out, &question, tools, how, err));
    status = kg_prompt_put_opening(out, how->opening, err);
out:
    kg_str_release(&question);
    return status;
}

/* messages: as kg_messages_put writes them */
static kg_status put_conversation(struct kg_str *out, bool *rendered,
                                  const struct kg_json *messages,
                                  const struct kg_json *tools,
                                  const struct kg_prompt_opts *how, struct kg_err *err)
{
    size_t m = kg_json_size(messages), n;
    const struct kg_conversation talk = {
        .messages = messages, .n = m, .tools = tools, .generate = true};
    const struct kg_json *only = m == 1 ? kg_json_at(messages, 0) : NULL;
    const char *content = kg_json_text(kg_json_get(only, "content"), &n);
    bool templated = is_given(how->template_text);

    *rendered = true;
    if (content && (templated || !how->chat))
        return put_question(out, rendered, content, n, tools, how, err);
    if (templated)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "%s: expected one prompt to insert, found %zu messages",
                       spell(how, "template").text, m);
    if (!how->chat)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "expected one message of text, or a chat template "
                       "(%s), found %zu messages and no template",
                       spell(how, "chat_template").text, m);
    KG_TRY(kg_prompt_put_turns(out, &talk, how, err));
    return kg_prompt_put_opening(out, how->opening, err);
}

static kg_status put_list(struct kg_str *out, bool *rendered,
                          const struct kg_prompt_source *from,
                          const struct kg_prompt_opts *how, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_str json = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_messages_put(&json, from->messages, kg_json_size(from->messages),
                                     NULL, err));
    KG_TRY_GOTO(out, kg_json_parse(&doc, json.data, json.len, "messages", err));
    status = put_conversation(out, rendered, doc.root, from->tools, how, err);
out:
    kg_json_release(&doc);
    kg_str_release(&json);
    return status;
}

kg_status kg_prompt_put(struct kg_str *out, bool *rendered,
                        const struct kg_prompt_source *from,
                        const struct kg_prompt_opts *how, struct kg_err *err)
{
    size_t begin = out->len;

    KG_TRY(kg_prompt_check(how, err));
    KG_TRY(from->text ? put_question(out, rendered, from->text, from->n, NULL, how, err)
                      : put_list(out, rendered, from, how, err));
    if (out->len > begin && memchr(out->data + begin, 0, out->len - begin))
        return kg_fail(err, KG_EFORMAT, "expected a prompt without NUL, found one");
    return KG_OK;
}

/* ---- tokens ---- */

enum kg_special kg_special_named(const char *name)
{
    if (strcmp(name, "true") == 0)
        return KG_SPECIAL_ADD;
    return strcmp(name, "false") == 0 ? KG_SPECIAL_NONE : KG_SPECIAL_AUTO;
}

bool kg_special_adds(enum kg_special special, bool rendered)
{
    return special == KG_SPECIAL_ADD || (special == KG_SPECIAL_AUTO && !rendered);
}

kg_status kg_prompt_encode(struct kg_ids *out, const struct kg_tokenizer *tok,
                           const char *text, size_t n, bool rendered,
                           enum kg_special special, struct kg_err *err)
{
    const struct kg_encode_opts opts = {
        .parse_special = true, .add_special = kg_special_adds(special, rendered)};

    return kg_tokenizer_encode(out, tok, text, n, opts, err);
}

/* Appends what the post-processor adds to every text, as text. */
static kg_status put_added(struct kg_str *out, const struct kg_tokenizer *tok,
                           struct kg_err *err)
{
    struct kg_ids ids = {0};
    kg_status status;

    KG_TRY_GOTO(out,
                kg_tokenizer_encode(&ids, tok, "", 0,
                                    (struct kg_encode_opts){.add_special = true}, err));
    if (ids.n == 0)
        goto out;
    KG_TRY_GOTO(out, kg_str_puts(out, ", ", err));
    KG_TRY_GOTO(out, kg_tokenizer_decode(out, tok, ids.ids, ids.n, false, err));
    status = kg_str_puts(out, " added", err);
out:
    kg_ids_release(&ids);
    return status;
}

/* Appends the lines of text, each after indent and a bar, with control characters
 * escaped. */
static kg_status put_lines(struct kg_str *out, const char *text, size_t n,
                           const char *indent, struct kg_err *err)
{
    for (size_t at = 0; at <= n;) {
        const char *end = at < n ? memchr(text + at, '\n', n - at) : NULL;
        size_t len = end ? (size_t)(end - text) - at : n - at;

        KG_TRY(kg_str_printf(out, err, "\n%s| ", indent));
        KG_TRY(kg_printable_put(out, text + at, len, true, err));
        at += len + 1;
    }
    return KG_OK;
}

/* The start of the character that has byte n of text. */
static size_t whole(const char *text, size_t n)
{
    while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--;
    return n;
}

static kg_status put_cut(struct kg_str *out, const struct kg_str *text,
                         const char *indent, size_t max_bytes, struct kg_err *err)
{
    const char *t = kg_str_text(text);
    size_t head = text->len, tail = text->len;

    if (text->len <= max_bytes)
        return put_lines(out, t, text->len, indent, err);
    head = whole(t, max_bytes / 2);
    tail = whole(t, text->len - max_bytes / 2);
    KG_TRY(put_lines(out, t, head, indent, err));
    KG_TRY(kg_str_printf(out, err, "\n%s.. %zu bytes ..", indent, tail - head));
    return put_lines(out, t + tail, text->len - tail, indent, err);
}

kg_status kg_prompt_put_lines(struct kg_str *out, const struct kg_tokenizer *tok,
                              const int32_t *ids, size_t n, const char *indent,
                              size_t max_bytes, struct kg_err *err)
{
    struct kg_str text = {0};
    kg_status status = kg_tokenizer_decode(&text, tok, ids, n, false, err);

    if (status == KG_OK)
        status = put_cut(out, &text, indent, max_bytes, err);
    kg_str_release(&text);
    return status;
}

kg_status kg_prompt_show(struct kg_str *out, const struct kg_tokenizer *tok,
                         const struct kg_ids *ids, bool rendered, enum kg_special special,
                         const char *indent, size_t max_bytes, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "%zu tokens, %s", ids->n,
                         rendered ? "rendered by the chat template" : "text"));
    if (kg_special_adds(special, rendered))
        KG_TRY(put_added(out, tok, err));
    return kg_prompt_put_lines(out, tok, ids->ids, ids->n, indent, max_bytes, err);
}
