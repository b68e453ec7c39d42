/* Converts a chat template to a template of Ollama.
 *
 * The idea: a template of the usual families writes fixed texts between the contents of
 * messages. These texts are extracted from renderings of conversations with known
 * contents. Then the texts must reproduce all probe conversations. A template that does
 * anything else (turns of tools, contents that change) differs in some probe, and is
 * refused.
 */
#include "gguf/ollama.h"

#include "base/log.h"
#include "data/json.h"

#include <string.h>

/* Roles by their first letters, "suau": system, user, assistant, user. */
struct talk {
    const char *roles;
    const char *const *contents; /* one for each */
};

enum piece {
    FIRST,   /* before the first user's message, without a system message */
    OPENING, /* before the system message */
    BETWEEN, /* after the system message */
    ASKS,    /* after a user's message: the assistant's turn begins */
    GIVEN,   /* between ASKS and a given message of the assistant */
    NEXT,    /* after the assistant's message, up to the next user's */
    PIECES,
};

struct made {
    const struct kg_ollama *o;
    struct kg_chat_opts opts;
    struct kg_str bos; /* text of the BOS token, which the tokenizer adds itself */
    struct kg_str piece[PIECES];
    bool late; /* the system message comes before the last user's */
    bool none; /* the chat template has no system messages */
};

/* ---- conversations ---- */

static const char *role_name(char letter)
{
    return letter == 's' ? "system" : letter == 'u' ? "user" : "assistant";
}

static kg_status put_variables(struct kg_str *out, const struct talk *t,
                               struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "{\"add_generation_prompt\": true, \"messages\": [", err));
    for (size_t i = 0; t->roles[i]; i++) {
        KG_TRY(kg_str_printf(out, err, "%s{\"role\": \"%s\"", i > 0 ? ", " : "",
                             role_name(t->roles[i])));
        KG_TRY(kg_json_put_text(out, ", \"content\": ", t->contents[i], err));
        KG_TRY(kg_str_putc(out, '}', err));
    }
    return kg_str_puts(out, "]}", err);
}

/* Renders t by the chat template, without BOS. */
static kg_status render(struct kg_str *out, const struct made *m, const struct talk *t,
                        struct kg_err *err)
{
    struct kg_str text = {0};
    struct kg_json_doc doc = {0};
    kg_status status;

    kg_str_clear(out);
    KG_TRY_GOTO(out, put_variables(&text, t, err));
    KG_TRY_GOTO(out, kg_json_parse(&doc, kg_str_text(&text), text.len, "probe", err));
    kg_str_clear(&text);
    KG_TRY_GOTO(out, kg_chat_template_render(&text, m->o->chat, doc.root, &m->opts, err));
    const size_t skip = strncmp(kg_str_text(&text), kg_str_text(&m->bos), m->bos.len) == 0
                            ? m->bos.len
                            : 0;
    status = kg_str_append(out, kg_str_text(&text) + skip, text.len - skip, err);
out:
    kg_json_release(&doc);
    kg_str_release(&text);
    return status;
}

/* Renders t by the pieces, without BOS. */
static kg_status put_talk(struct kg_str *out, const struct made *m, const struct talk *t,
                          struct kg_err *err)
{
    const bool system = t->roles[0] == 's';
    const char *const p[PIECES] = {
        kg_str_text(&m->piece[FIRST]),   kg_str_text(&m->piece[OPENING]),
        kg_str_text(&m->piece[BETWEEN]), kg_str_text(&m->piece[ASKS]),
        kg_str_text(&m->piece[GIVEN]),   kg_str_text(&m->piece[NEXT])};

    kg_str_clear(out);
    if (system && !m->late)
        KG_TRY(kg_str_printf(out, err, "%s%s%s", p[OPENING], t->contents[0], p[BETWEEN]));
    else
        KG_TRY(kg_str_puts(out, p[FIRST], err));
    for (size_t i = system; t->roles[i]; i++) {
        if (system && m->late && !t->roles[i + 1])
            KG_TRY(kg_str_printf(out, err, "%s%s%s", p[OPENING], t->contents[0],
                                 p[BETWEEN]));
        if (t->roles[i] == 'u')
            KG_TRY(kg_str_printf(out, err, "%s%s", t->contents[i], p[ASKS]));
        else
            KG_TRY(kg_str_printf(out, err, "%s%s%s", p[GIVEN], t->contents[i], p[NEXT]));
    }
    return KG_OK;
}

/* ---- finding the pieces ---- */

static kg_status refuse(const char *found, struct kg_err *err)
{
    return kg_fail(
        err, KG_EUNSUPPORTED,
        "chat template: expected one that writes messages between fixed texts, "
        "which an Ollama template can express, found %s; without --ollama the "
        "GGUF file contains the chat template unchanged",
        found);
}

static kg_status set(struct made *m, enum piece piece, const char *from, const char *to,
                     struct kg_err *err)
{
    kg_str_clear(&m->piece[piece]);
    return kg_str_append(&m->piece[piece], from, (size_t)(to - from), err);
}

static kg_status cut_turns(struct made *m, struct kg_str *text, struct kg_err *err)
{
    static const char *const words[] = {"Kedge-one", "Kedge-two", "Kedge-three"};
    const struct talk t = {"uau", words};
    const char *at[3];

    KG_TRY(render(text, m, &t, err));
    const char *begin = kg_str_text(text), *from = begin, *end = begin + text->len;
    for (int i = 0; i < 3; i++) {
        at[i] = strstr(from, words[i]);
        if (!at[i])
            return refuse("one that leaves out a message", err);
        from = at[i] + strlen(words[i]);
    }
    const char *given = at[0] + strlen(words[0]);
    const size_t asks = (size_t)(end - from);
    if ((size_t)(at[1] - given) < asks || memcmp(given, from, asks) != 0)
        return refuse("another beginning of the assistant's turn when its message is "
                      "given",
                      err);
    KG_TRY(set(m, FIRST, begin, at[0], err));
    KG_TRY(set(m, ASKS, from, end, err));
    KG_TRY(set(m, GIVEN, given + asks, at[1], err));
    return set(m, NEXT, at[1] + strlen(words[1]), at[2], err);
}

static kg_status cut_system(struct made *m, struct kg_str *text, struct kg_err *err)
{
    static const char *const words[] = {"Kedge-rule", "Kedge-one"};
    const struct talk t = {"su", words};
    struct kg_err why;

    m->none = render(text, m, &t, &why) != KG_OK;
    if (m->none) {
        const struct kg_str *first = &m->piece[FIRST];

        kg_log_warn("%s: the Modelfile's template puts a system message before the first "
                    "user's, with an empty line after it",
                    why.message);
        KG_TRY(kg_str_puts(&m->piece[BETWEEN], "\n\n", err));
        return kg_str_append(&m->piece[OPENING], first->data, first->len, err);
    }
    const char *begin = kg_str_text(text), *rule = strstr(begin, words[0]);
    const char *user = rule ? strstr(rule, words[1]) : NULL;
    if (!user)
        return refuse("one that leaves out a system message", err);
    KG_TRY(set(m, OPENING, begin, rule, err));
    return set(m, BETWEEN, rule + strlen(words[0]), user, err);
}

/* *same: the pieces reproduce every probe conversation */
static kg_status compare(bool *same, const struct made *m, struct kg_err *err)
{
    static const char *const contents[][6] = {
        {"Be short.", "What is 2 + 2?", "4", "And 3 + 3?", "6", "Thanks!"},
        {"Réponds en français.\nSois \"poli\" & bref.", "Wie heißt du?\n\nJa?",
         "<b>`kedge`</b>", "{x: 日本語}", "1. a\n2. b", "it's 100% \\done"}};
    static const char *const roles[] = {"u", "uau", "uauau", "su", "suau", "suauau"};
    struct kg_str want = {0}, found = {0};
    kg_status status = KG_OK;

    *same = true;
    for (size_t i = 0; i < 2 * 6 && status == KG_OK && *same; i++) {
        const bool system = roles[i / 2][0] == 's';
        const struct talk t = {roles[i / 2], contents[i % 2] + !system};

        if (system && m->none)
            continue;
        status = render(&want, m, &t, err);
        if (status == KG_OK)
            status = put_talk(&found, m, &t, err);
        *same = status == KG_OK && want.len == found.len &&
                memcmp(kg_str_text(&want), kg_str_text(&found), want.len) == 0;
    }
    kg_str_release(&want);
    kg_str_release(&found);
    return status;
}

static kg_status find_pieces(struct made *m, struct kg_str *text, struct kg_err *err)
{
    const struct kg_str *first = &m->piece[FIRST], *opening = &m->piece[OPENING];
    bool same;

    KG_TRY(cut_turns(m, text, err));
    KG_TRY(cut_system(m, text, err));
    KG_TRY(compare(&same, m, err));
    if (same)
        return KG_OK;
    m->late = opening->len >= first->len &&
              strncmp(kg_str_text(opening), kg_str_text(first), first->len) == 0;
    if (m->late) {
        kg_str_clear(text);
        KG_TRY(kg_str_puts(text, kg_str_text(opening) + first->len, err));
        KG_TRY(set(m, OPENING, kg_str_text(text), kg_str_text(text) + text->len, err));
        KG_TRY(compare(&same, m, err));
    }
    return same ? KG_OK : refuse("texts that depend on other messages", err);
}

/* ---- the file ---- */

/* Such a piece could not be followed by a Go action, which begins with {{. */
static bool ends_in_brace(const struct kg_str *piece)
{
    return piece->len > 0 && piece->data[piece->len - 1] == '{';
}

/* A token's text or a file's name is written into a line; with a line break or quote, it
 * could add another instruction. */
static kg_status check_line(const char *what, const char *text, size_t n,
                            struct kg_err *err)
{
    if (n > 0 && strlen(text) == n && !strpbrk(text, "\"\r\n"))
        return KG_OK;
    return kg_fail(err, KG_EUNSUPPORTED,
                   "Modelfile: expected %s of one line without quotes, found '%s'", what,
                   text);
}

static kg_status put_template(struct kg_str *out, const struct made *m,
                              struct kg_err *err)
{
    const char *first = kg_str_text(&m->piece[FIRST]);
    const char *opening = kg_str_text(&m->piece[OPENING]);
    const char *between = kg_str_text(&m->piece[BETWEEN]);

    for (int i = 0; i < PIECES; i++)
        if (strstr(kg_str_text(&m->piece[i]), "{{") || ends_in_brace(&m->piece[i]) ||
            strstr(kg_str_text(&m->piece[i]), "\"\"\""))
            return refuse("{{ or \"\"\" in its texts, or { at the end of one", err);
    KG_TRY(kg_str_puts(out, "TEMPLATE \"\"\"", err));
    if (m->late)
        KG_TRY(kg_str_printf(out, err, "{{ \"\" }}%s", first));
    else
        KG_TRY(kg_str_printf(out, err,
                             "{{ if .System }}%s{{ .System }}%s{{ else }}%s{{ end }}",
                             opening, between, first));
    KG_TRY(kg_str_puts(out,
                       "{{ range $i, $m := .Messages }}"
                       "{{ $last := eq (len (slice $.Messages $i)) 1 }}"
                       "{{ if eq $m.Role \"user\" }}",
                       err));
    if (m->late)
        KG_TRY(kg_str_printf(out, err,
                             "{{ if and $last $.System }}%s{{ $.System }}%s{{ end }}",
                             opening, between));
    return kg_str_printf(out, err,
                         "{{ $m.Content }}%s{{ else if eq $m.Role \"assistant\" }}%s"
                         "{{ $m.Content }}{{ if not $last }}%s{{ end }}{{ end }}{{ end }}"
                         "\"\"\"\n",
                         kg_str_text(&m->piece[ASKS]), kg_str_text(&m->piece[GIVEN]),
                         kg_str_text(&m->piece[NEXT]));
}

static kg_status put_stop(struct kg_str *out, const struct made *m, int32_t id,
                          struct kg_err *err)
{
    struct kg_str token = {0}, line = {0};
    kg_status status;

    KG_TRY_GOTO(out, kg_tokenizer_decode(&token, m->o->tok, &id, 1, false, err));
    KG_TRY_GOTO(out, check_line("an end token", kg_str_text(&token), token.len, err));
    KG_TRY_GOTO(
        out, kg_str_printf(&line, err, "PARAMETER stop \"%s\"\n", kg_str_text(&token)));
    if (!strstr(kg_str_text(out), kg_str_text(&line)))
        status = kg_str_append(out, line.data, line.len, err);
out:
    kg_str_release(&token);
    kg_str_release(&line);
    return status;
}

/* End tokens, and the special token that ends the assistant's turn. */
static kg_status put_stops(struct kg_str *out, const struct made *m, struct kg_err *err)
{
    const struct kg_str *next = &m->piece[NEXT];
    const struct kg_encode_opts opts = {.parse_special = true, .continues = true};
    struct kg_ids ids = {0};
    kg_status status = KG_OK;
    size_t i = 0;

    for (size_t e = 0; e < m->o->n_eos && status == KG_OK; e++)
        if (kg_tokenizer_has(m->o->tok, m->o->eos[e]))
            status = put_stop(out, m, m->o->eos[e], err);
    if (status == KG_OK)
        status = kg_tokenizer_encode(&ids, m->o->tok, kg_str_text(next), next->len, opts,
                                     err);
    while (i < ids.n && !kg_tokenizer_is_special(m->o->tok, ids.ids[i]))
        i++;
    if (status == KG_OK && i < ids.n)
        status = put_stop(out, m, ids.ids[i], err);
    kg_ids_release(&ids);
    return status;
}

/* m->bos: the text of the first token that the tokenizer adds to every text, if any */
static kg_status read_bos(struct made *m, struct kg_err *err)
{
    const struct kg_encode_opts opts = {.add_special = true};
    struct kg_ids ids = {0};
    kg_status status = kg_tokenizer_encode(&ids, m->o->tok, "", 0, opts, err);

    if (status == KG_OK && ids.n > 0)
        status = kg_tokenizer_decode(&m->bos, m->o->tok, ids.ids, 1, false, err);
    kg_ids_release(&ids);
    return status;
}

kg_status kg_ollama_modelfile(struct kg_str *out, const struct kg_ollama *o,
                              struct kg_err *err)
{
    struct made m = {.o = o, .opts = kg_chat_trial};
    struct kg_str text = {0};
    kg_status status;

    m.opts.now_s = o->now_s;
    if (kg_chat_template_asks_date(o->chat))
        kg_log_warn("the chat template uses the date: the Modelfile contains today's");
    KG_TRY_GOTO(out, check_line("the name of a file", o->from, strlen(o->from), err));
    KG_TRY_GOTO(out, read_bos(&m, err));
    KG_TRY_GOTO(out, find_pieces(&m, &text, err));
    KG_TRY_GOTO(out, kg_str_printf(out, err, "FROM %s\n", o->from));
    KG_TRY_GOTO(out, put_template(out, &m, err));
    status = put_stops(out, &m, err);
out:
    for (int i = 0; i < PIECES; i++)
        kg_str_release(&m.piece[i]);
    kg_str_release(&m.bos);
    kg_str_release(&text);
    return status;
}
